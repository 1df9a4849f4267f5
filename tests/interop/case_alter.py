"""ALTER of the bucket count, row by row (F4.4), by the official client: the rows that the node's own test sends, with the same outcome."""
import json
import subprocess
import sys

import pyarrow

from checks import multiset
from world import HERE, REPOSITORY, case, check, same, tail

FIXTURES = REPOSITORY / "fixtures" / "node"
# The official client's classes of the codes.
CLASSES = {0: None, 39: "InvalidConfigException", 49: "TooManyBucketsException", 56: "InvalidAlterTableException"}


def seeded(world):
    """A node whose registry has tables that its DDL refuses, and those that it makes."""
    folder = world.here / "node"
    folder.mkdir()
    with pyarrow.input_stream(str(FIXTURES / "registry.redb.zst"), compression="zstd") as packed:
        (folder / "registry.redb").write_bytes(packed.read())
    node = world.node()
    client = world.client(node.address)
    columns = [("id", "BIGINT"), ("day", "STRING")]
    lake = {"table.datalake.enabled": "true"}
    for name, partitions, keys, properties in [
        ("plain", [], ["id"], {}), ("log", ["day"], ["id"], {}), ("lake", ["day"], ["id"], lake), ("unaware", ["day"], [], lake),
    ]:
        client.ask("create", f"fluss.{name}", columns=columns, partitions=partitions, buckets=2, properties=properties, **{"bucket-keys": keys})
        if partitions:
            client.ask("create-partition", f"fluss.{name}", spec={"day": "1"})
    return node, client


def layout(client, table):
    """Bucket count for new partitions, and the partitions' own."""
    info = client.ask("info", table)
    own = [p["buckets"] for p in client.ask("partitions", table)] if info["partitions"] else []
    return info["buckets"], own


def bucket(folder):
    newest = max((folder / "schema").iterdir(), key=lambda path: int(path.name.split("-")[1]))
    return json.loads(newest.read_text())["options"]["bucket"]


@case("alter-matrix", "Java fluss-client 1.0.0 sends each ALTER of bucket.num that it can: class and code as Fluss has them, refusals change nothing, the lake follows")
def alter_matrix(world):
    node, client = seeded(world)
    sent = kept = 0
    for row in json.loads((FIXTURES / "alter.json").read_text())["rows"]:
        name, table, local = row["name"], f"fluss.{row['table']}", row.get("java")
        if local == "never":  # it sends the newest version that both know
            continue
        readable = row["table"] != "missing"  # the client refuses to list partitions of unknown count after a rescale
        before = layout(client, table) if readable else None
        code, error, text = client.ask("alter", table, **{key: row[key] for key in ("set", "reset", "add", "drop", "count") if key in row})
        if local:
            same((code, error), (None, local), f"{name}: refused by the client itself")
        else:
            same((code, error), (row["code"], CLASSES[row["code"]]), f"{name}: {text}")
            check(row.get("says", "") in (text or ""), f"{name}: {text}")
            sent += 1
        if not readable:
            continue
        count, own = layout(client, table)
        same(count, row["after"][0], f"{name}: count afterwards")
        same(own, row.get("partitions", before[1]), f"{name}: counts of partitions")
        kept += len(own)
        if row["table"] == "lake" and row["code"] == 0:
            same(bucket(node.table("fluss.lake")), str(count), f"{name}: option bucket of the lake table")
    # What is made after all of it has the count of now, and the others theirs.
    client.ask("bucket-count", "fluss.lake", count=5)
    client.ask("create-partition", "fluss.lake", spec={"day": "2"})
    same(layout(client, "fluss.lake"), (5, [2, 5]), "partitions of before and after")
    return f"{sent} alterations, {kept} partition counts looked at"


@case("pyfluss-rescaled", "pyfluss 1.0.0, which can't say a bucket count, reads a rescaled table where `routing.accept_absent_count` is `reads`, and nowhere else")
def pyfluss_rescaled(world):
    node = world.node("--set", "routing.accept_absent_count=reads")
    client = world.client(node.address)
    table = "fluss.seen"
    client.ask("create", table, columns=[("id", "BIGINT"), ("day", "STRING")], partitions=["day"], buckets=2, **{"bucket-keys": ["id"]})
    rows = [[id, day] for day in ("1", "2") for id in range(60)]
    client.ask("append", table, rows=rows[:60])
    client.ask("bucket-count", table, count=5)
    client.ask("append", table, rows=rows[60:])
    partitions = json.dumps([[p["name"], p["id"], p["buckets"]] for p in client.ask("partitions", table)])

    def reads():
        process = world.start("pyfluss", [sys.executable, HERE / "read_pyfluss.py", node.address, table, partitions], stdout=subprocess.PIPE)
        out, _ = process.communicate(timeout=60)
        check(process.returncode == 0, f"pyfluss ended with {process.returncode}: {tail(process.log)}")
        return json.loads(out)

    seen = reads()
    same((seen.get("ends"), multiset(seen.get("rows", []))), (120, multiset(rows)), f"what pyfluss reads ({seen.get('error')})")
    world.stop(node.process)
    node.argv = [word for word in node.argv if word not in ("--set", "routing.accept_absent_count=reads")]
    world.serve(node)
    check("bucket count" in reads().get("error", ""), f"as Fluss does, the node should refuse pyfluss: {reads()}")
    return "120 rows in partitions of 2 and 5 buckets"
