"""`lakeward load` into a real cluster, beside the official client that writes the same rows."""
import csv
import json
import signal
import struct
import subprocess

from case_cluster import COLUMNS, LAKE, batch, snapshot_is_ours, with_system_columns
from checks import rows_equal
from readers import root
from world import case, check, same, until

# What the 0.9.1 client can't scan: fractions below a millisecond before 1970 (README.md). The lake is compared whole.
SCANNED = [name for name, kind in COLUMNS if name not in ("ts6", "ts9", "ltz6", "ltz9")]


def text(value, kind):
    """A value of the suite's text form as `load` reads it with `--bytes hex`."""
    if value is None:
        return None
    width = {"FLOAT": ">f", "DOUBLE": ">d"}.get(root(kind))
    return repr(struct.unpack(width, bytes.fromhex(value))[0]) if width else value


def places(client, table):
    """Partition, bucket and values of each row, sorted by id."""
    return sorted(((row[0], row[1], row[4]) for row in client.ask("scan", table, columns=SCANNED)), key=lambda place: place[2][0])


def values(found):
    return [place[2] for place in found]


def write_files(folder, written):
    """A third of the rows each as JSON lines, CSV and Parquet."""
    kinds = [kind for _, kind in COLUMNS]
    names = [name for name, _ in COLUMNS]
    rows = [[text(value, kind) for value, kind in zip(row, kinds)] for row in written]
    third = len(rows) // 3
    with open(folder / "a.jsonl", "w") as file:
        for row in rows[:third]:
            file.write(json.dumps({name: value for name, value in zip(names, row) if value is not None or row[0] % 2}) + "\n")
    with open(folder / "b.csv", "w", newline="") as file:
        order = list(reversed(range(len(names))))
        file.write(",".join(names[i] for i in order) + "\n")
        # An empty text is quoted, NULL is not.
        quoted = csv.writer(file, quoting=csv.QUOTE_NOTNULL, lineterminator="\n") if hasattr(csv, "QUOTE_NOTNULL") else None
        for row in rows[third:2 * third]:
            values = [None if row[i] is None else str(row[i]) for i in order]
            if quoted:
                quoted.writerow(values)
            else:
                file.write(",".join("" if value is None else '"' + value.replace('"', '""') + '"' for value in values) + "\n")
    import pyarrow.parquet  # of the suite's own Python, which `--list` does without
    table = pyarrow.table({name: pyarrow.array([row[i] if kinds[i] in ("BIGINT", "BOOLEAN") or row[i] is None else str(row[i]) for row in rows[2 * third:]])
                           for i, name in enumerate(names)})
    pyarrow.parquet.write_table(table, folder / "c.parquet")
    return [folder / name for name in ("a.jsonl", "b.csv", "c.parquet")]


@case("load", "files loaded into a real 0.9.1 cluster, the table made by --create: rows of every type, and each in the partition and bucket where the Java client puts it; tiered like any")
def load(world):
    cluster = world.cluster()
    client = world.client(cluster.address, old=True)
    ddl = world.here / "t.sql"
    options = {**LAKE, "bucket.num": "3", "bucket.key": "id"}
    ddl.write_text("CREATE TABLE l.t (\n" + ",\n".join(f"  `{name}` {kind}" for name, kind in COLUMNS) + "\n) PARTITIONED BY (part)\nWITH ("
                   + ", ".join(f"'{key}' = '{value}'" for key, value in options.items()) + ")")
    client.ask("create", "l.twin", columns=COLUMNS, partitions=["part"], buckets=3, properties=LAKE, **{"bucket-keys": ["id"]})
    written = batch(range(900))
    client.ask("append", "l.twin", rows=written)
    files = write_files(world.here, written)
    for create in (["--create", "--ddl", ddl], []):
        report = world.says("load", "--server", cluster.address, "l.t", *(files if create else files[:1]), "--bytes", "hex", *create)[0]
        same((report["complete"], report["rows"], report["partitions_made"]), (True, 900 if create else 300, 3 if create else 0), "report")
        if create:
            same(places(client, "l.t"), places(client, "l.twin"), "values, partition and bucket of each row")
            made, twin = client.ask("info", "l.t"), client.ask("info", "l.twin")
            for key in ("columns", "buckets", "bucket-keys", "partitions", "properties"):
                same(made[key], twin[key], f"{key} of the table that `--create` made")
            world.rounds_until(cluster.address, ["l.t", "l.twin"])
            snapshot_is_ours(world, cluster, client, "l.t")
            rows_equal(world, cluster.table("l.t"), with_system_columns(client, "l.t", written))
    same(len(client.ask("scan", "l.t", columns=["id"])), 1200, "rows after one file was loaded again")

    client.ask("create", "l.loose", columns=COLUMNS, buckets=2, properties=LAKE)
    same(world.says("load", "--server", cluster.address, "l.loose", *files, "--bytes", "hex")[0]["rows"], 900, "rows without a bucket key")
    found = places(client, "l.loose")
    same(values(found), values(places(client, "l.twin")), "rows without a bucket key")
    for table in ("l.t", "l.twin", "l.loose"):
        client.ask("drop", table)
    return f"{len(written)} rows as JSON, CSV and Parquet, {len({bucket for _, bucket, _ in found})} keyless buckets"


@case("load-restart", "the tablet server of a real 0.9.1 cluster is stopped and started again under a load: it ends well and each row is there once, in the order of its key")
def restart(world):
    import cluster as clusters
    c = clusters.up(world, shared=False)
    client = world.client(c.address, old=True)
    client.ask("create", "l.keys", columns=[("id", "BIGINT"), ("turn", "INT"), ("words", "STRING")], buckets=2, properties={}, **{"bucket-keys": ["id"]})
    argv = [world.lakeward(), "load", "--server", c.address, "l.keys", "-", "--json"]
    process = world.start("load", argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def turns(numbers):
        for turn in numbers:
            process.stdin.write("".join(json.dumps({"id": id, "turn": turn, "words": "-" * 400}) + "\n" for id in range(1000)).encode())
        process.stdin.flush()
    turns(range(0, 30))  # more than one chunk, so that batches are on their way
    until(60, "first rows", lambda: sum(o[3] for o in client.ask("offsets", "l.keys")) > 0)
    tablet = next(p for p in world.own if p.log.endswith("/tablet.log"))
    tablet.send_signal(signal.SIGTERM)
    tablet.wait(60)
    c.restart_tablet()
    turns(range(30, 60))
    process.stdin.close()
    out = process.stdout.read()
    check(process.wait(240) == 0, f"load ended with {process.returncode}")
    same(json.loads(out)["rows"], 60_000, "rows acknowledged")
    found = {}
    for row in until(90, "scan", lambda: client.ask("scan", "l.keys", columns=["id", "turn"], seconds=80)):
        found.setdefault(row[4][0], []).append(row[4][1])
    wrong = {id: got for id, got in found.items() if got != list(range(60))}
    check(not wrong and len(found) == 1000, f"{len(found)} keys; lost, doubled or out of order: {list(wrong.items())[:2]}")
    return "60000 rows"
