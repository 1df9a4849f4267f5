"""Primary-key tables that we wrote, read and compacted by others: every key type, partitions with bucket counts of their own, options that change what is seen."""
import collections
import random

from case_readback import LAKE, UNABLE, lake_columns
from checks import filters_hold, multiset, rows_equal, totals
from readers import Java
from rows import maker
from world import case, check, same, until

KEYS = ["BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(5,2)", "DECIMAL(18,4)", "DECIMAL(38,10)", "CHAR(20)", "STRING", "BINARY(4)", "BYTES", "DATE", "TIME(3)", "TIMESTAMP(0)", "TIMESTAMP(6)", "TIMESTAMP(9)", "TIMESTAMP_LTZ(3)", "TIMESTAMP_LTZ(9)"]
ZEROS = ("80000000", "8000000000000000")  # −0.0 is a key of its own for Java, not for pyarrow


def keys(kind, count):
    """Distinct values of a type: its edges first, then any."""
    edges, other = maker("k", kind)
    r, found = random.Random(kind), [value for value in dict.fromkeys(edges) if value not in ZEROS]
    for _ in range(20 * count):
        value = other(r)
        if len(found) < count and value not in found:
            found.append(value)
    return found


class Keyed:
    """A tiered table, and what has to be in its lake by the columns `by`."""

    def __init__(self, world, node, client, name, columns, by, partitions=(), buckets=2, properties=LAKE):
        self.world, self.node, self.client, self.name, self.columns, self.by = world, node, client, name, columns, [[c for c, _ in columns].index(k) for k in by]
        self.state, self.folder, self.partitions = {}, node.table(name), partitions
        client.ask("create", name, columns=columns, keys=by, partitions=partitions, buckets=buckets, properties=properties,
                   **{"bucket-keys": [k for k in by if k not in partitions]})

    def change(self, changes, every=0):
        """Upserts ("+") and deletes ("-") in this order."""
        self.client.ask("upsert", self.name, changes=changes, **{"flush-every": every})
        for op, row in changes:
            key = str([row[i] for i in self.by])
            if op == "+":
                self.state[key] = row
            else:
                self.state.pop(key, None)

    @property
    def rows(self):
        return list(self.state.values())

    def files(self):
        return Java(self.world, self.folder).files()

    def compact(self, old=False):
        """Full compaction of every bucket by Java; all rows are on one level then."""
        java = Java(self.world, self.folder, old)
        for partition, bucket, total in sorted({(tuple(map(str, f["partition"])), f["bucket"], f["total"]) for f in self.files()}):
            options = {"options": {"bucket": str(total)}} if self.partitions else {}  # Java compacts no other count than its option's
            java.ask("compact", partition=dict(zip(self.partitions, partition)), bucket=bucket, **options)
        levels = {f["level"] for f in self.files()}
        check(0 not in levels, f"{self.name}: levels after a full compaction: {levels}")

    def sound(self):
        """What the manifest says of our files: sequence numbers of a bucket's files follow each other, deletes are counted."""
        of_bucket = collections.defaultdict(list)
        for f in self.files():
            check(f["deletes"] >= 0, f"{self.name}: no delete row count in {f}")
            of_bucket[str(f["partition"]), f["bucket"]].append(f)
        for files in of_bucket.values():
            ours = sorted((f for f in files if f["level"] == 0), key=lambda f: f["min-sequence"])
            for one, other in zip(ours, ours[1:]):
                # Files of one flush share their numbers; those of different rounds do not.
                check(one["max-sequence"] < other["min-sequence"], f"{self.name}: sequence numbers overlap: {one} {other}")


def three_rounds(tables, makes, node, world):
    """Rows into tables in three rounds, the last one after a full compaction by Java; `check` after each."""
    for step in range(3):
        for table in tables:
            table.change(makes(table, step), every=37)
        world.rounds_until(node.address, [table.name for table in tables])
        yield step


@case("pk-read-types", "keys of every type, alone and composite, upserts and deletes in three rounds: Java 1.4.2 and 1.3.1 and pypaimon read the model's rows, filters on keys and values hold, "
                       "also after a full compaction by Java and a round on top of it; `verify` merges them alike")
def types(world):
    node = world.node()
    client = world.client(node.address)
    tables = []
    for i, kind in enumerate(KEYS):
        tables.append(Keyed(world, node, client, f"pk.k{i}", [("id", "BIGINT"), ("k", kind), ("v", "STRING"), ("n", "INT")], ["k"]))
    composite = [("id", "BIGINT"), ("v", "STRING"), ("b", "BYTES"), ("s", "STRING"), ("i", "INT"), ("d", "DECIMAL(20,2)"), ("t", "TIMESTAMP(6)"), ("f", "BOOLEAN"), ("n", "INT")]
    tables.append(Keyed(world, node, client, "pk.composite", composite, ["s", "f", "i", "b", "d", "t"]))

    def makes(table, step):
        """A third of the keys changes in each round, some go and come again, some come late."""
        changes = []
        for id, row in enumerate(all_rows(table)):
            if (id + step) % 3 == 0 or id == 0 or step == 0 and id % 5:
                changes.append(("+", [*row[:-1], step * 1000 + id]))
            elif step and (id + step) % 4 == 0:
                changes.append(("-", row))
                if id % 8 == 0:
                    changes.append(("+", [*row[:-1], -id]))
        return changes

    def all_rows(table):
        if table.name != "pk.composite":
            return [[id, key, None if id % 7 == 3 else f"v{id}", 0] for id, key in enumerate(keys(dict(table.columns)["k"], 30))]
        parts = [keys(dict(composite)[name], 4) for name in ("b", "s", "i", "d", "t", "f")]
        return [[id, f"v{id}", *(part[(id * (3 + 2 * at) + id // 7) % len(part)] for at, part in enumerate(parts)), id % 11, 0][:8] + [0] for id in range(300)]

    asked = 0
    for step in three_rounds(tables, makes, node, world):
        for i, table in enumerate(tables):
            table.sound()
            # pypaimon cuts TIMESTAMP(7–9) to microseconds when it merges.
            without = ("pypaimon",) if dict(table.columns).get("k", "").endswith("(9)") else ()
            if step == 1:
                rows_equal(world, table.folder, table.rows, without=without)
                once = [("Java Paimon 1.3.1", "*", "*", "*")] if i % 3 else []
                asked += filters_hold(world, table.folder, lake_columns(table.columns), table.rows, UNABLE + once)
                table.compact(old=i % 2 == 1)
            if step == 2 or i % 4 == 0:
                rows_equal(world, table.folder, table.rows, without=without)
            if step:  # our own merging over Java's levels, beside the state of the node
                same(world.says("verify", table.name, "--all", "--server", node.address)[0]["faults"], [], f"{table.name}: faults that `verify` finds")
    return f"{len(tables)} tables, {asked} filters"


@case("pk-read-partitions", "a partitioned table whose partitions have 2, 4 and 3 buckets: rows, totals and the changelog that Java reads are those of the log, −U of each update in its place; "
                            "compaction by Java partition by partition, a round on top of it; the same of a table whose log has no −U (`changelog.image` WAL)")
def partitions(world):
    node = world.node()
    client = world.client(node.address)
    return "; ".join(in_partitions(world, node, client, image) for image in ("full", "wal"))


def in_partitions(world, node, client, image):
    columns, properties = [("id", "BIGINT"), ("day", "DATE"), ("region", "STRING"), ("k", "INT"), ("v", "STRING")], {**LAKE, "table.changelog.image": image}
    table = Keyed(world, node, client, f"pk.parts_{image}", columns, ["region", "day", "k"], ["day", "region"], properties=properties)
    days = ["2024-02-28", "2024-02-29", "2024-03-01"]

    def changes(day, step):
        ids = range(120)
        fresh = [("+", [id, day, f"r{id % 2}", id * 7919 % 1000, f"{step} {id}"]) for id in ids if step == 0 or id % 3 == step]
        return fresh + [("-", row) for _, row in fresh[step::4]] + [("+", [*row[:4], "again"]) for _, row in fresh[step::8]]

    for day, count in zip(days, (2, 4, 3)):
        if count != 2:
            client.ask("bucket-count", table.name, count=count)
        for r in (0, 1):
            client.ask("create-partition", table.name, spec={"day": day, "region": f"r{r}"})
        table.change(changes(day, 0), every=50)
        world.rounds_until(node.address, [table.name])
    # The first round of a partition reads its state, those after it the log.
    first = {str(row[1:4]): ["+I", *row] for row in table.rows}
    ends = collections.Counter()
    for partition, bucket, offset, *_ in client.ask("scan", table.name):
        ends[partition, bucket] = max(ends[partition, bucket], offset + 1)
    for step in (1, 2):
        for day in days:
            table.change(changes(day, step), every=50)
        world.rounds_until(node.address, [table.name])
    table.sound()
    rows_equal(world, table.folder, table.rows)
    want = {f"{day}/r{r}": {count} for day, count in zip(days, (2, 4, 3)) for r in (0, 1)}
    same(totals(world, table.folder), want, "bucket totals by partition")
    # The changelog: per key, the row that there was at first, then what happened to it in the log, in that order.
    java = Java(world, table.folder)
    newest = java.snapshot()["id"]
    logged, read = collections.defaultdict(list, {key: [row] for key, row in first.items()}), collections.defaultdict(list)
    for partition, bucket, offset, kind, row, _ in client.ask("scan", table.name):
        if offset >= ends[partition, bucket]:
            logged[str(row[1:4])].append([kind, *row])
    for id in range(1, newest + 1):
        options = {"incremental-between": f"{id - 1},{id}", "incremental-between-scan-mode": "changelog"}
        for row in java.ask("read", kinds=True, options=options):
            read[str(row[2:5])].append(row)
    same(sorted(read.items()), sorted(logged.items()), "changelog of each key")
    check(any(kind == "-U" for rows in logged.values() for kind, *_ in rows) == (image == "full"), f"whether the log has −U, with image {image}")
    check(any(kind == "+U" for rows in logged.values() for kind, *_ in rows), "the log has no +U")
    if image == "wal":
        return f"{image}: {sum(map(len, logged.values()))} records in the log, {newest} snapshots"
    filters_hold(world, table.folder, lake_columns(table.columns), table.rows, UNABLE + [("Java Paimon 1.3.1", "*", "*", "*")])
    table.compact()
    rows_equal(world, table.folder, table.rows)
    table.change(changes(days[0], 1) + changes(days[2], 2))
    world.rounds_until(node.address, [table.name])
    rows_equal(world, table.folder, table.rows)
    return f"{image}: {sum(map(len, logged.values()))} records in the log, {newest} snapshots"


OPTIONS = {
    "plain": {},
    "thin": {"data-file.thin-mode": "true"},
    "sequence": {"sequence.field": "seq"},
    "sequence_2": {"sequence.field": "v,seq"},
    "no_deletes": {"ignore-delete": "true"},
    "no_before": {"ignore-update-before": "true"},
    "lookup": {"changelog-producer": "lookup"},
    "full": {"changelog-producer": "full-compaction"},
    "none": {"changelog-producer": "none"},
    "small": {"target-file-row-num": "7"},
    "codecs": {"file.compression.per.level": "0:snappy", "changelog-file.compression": "none", "metadata.stats-mode.per.level": "0:none", "file.suffix.include.compression": "true"},
    "index": {"file-index.bloom-filter.columns": "v", "record-level.expire-time": "1 d", "record-level.time-field": "at"},
}
REFUSED = {
    "partial": ("merge-engine", "partial-update"), "aggregation": ("merge-engine", "aggregation"), "first": ("merge-engine", "first-row"),
    "vectors": ("deletion-vectors.enabled", "true"), "rowkind": ("rowkind.field", "v"), "iceberg": ("metadata.iceberg.storage", "table-location"),
    "descending": ("sequence.field.sort-order", "descending"), "orc": ("file.format", "orc"),
}


@case("pk-read-options", "tables with options that change what is seen, beside twins into which Java writes the same change log: the same rows before and after a full compaction; "
                         "what can't be followed is held by name before a file is written")
def options(world):
    node = world.node()
    client = world.client(node.address)
    columns = [("id", "BIGINT"), ("k", "INT"), ("v", "STRING"), ("seq", "BIGINT"), ("at", "TIMESTAMP(3)")]

    def properties(options):
        return {**LAKE, **{f"paimon.{key}": value for key, value in options.items()}}

    tables = {name: Keyed(world, node, client, f"opt.{name}", columns, ["k"], properties=properties(options)) for name, options in OPTIONS.items()}
    r = random.Random(7)
    for step in range(3):
        changes = []
        for id in range(80):
            row = [id, r.randrange(25), r.choice("abcd"), None if r.random() < 0.1 else r.randrange(6), "2024-02-29T12:00:00.000"]
            changes.append(("-" if r.random() < 0.2 else "+", row))
        for table in tables.values():
            table.change(changes, every=20)
        world.rounds_until(node.address, [table.name for table in tables.values()])
    for name, table in tables.items():
        twin = Java(world, world.here / "twins" / name)
        schema = Java(world, table.folder).schema()
        twin.ask("create", columns=schema["columns"], keys=["k"], partitions=[], options={**schema["options"], "write-only": "true"})
        log = client.ask("scan", table.name)
        of_bucket = collections.defaultdict(list)
        for _, bucket, _, kind, row, _ in log:
            of_bucket[bucket].append((kind, row))
        written = [pair for bucket in sorted(of_bucket) for pair in of_bucket[bucket]]
        twin.append([row for _, row in written], kinds=[kind for kind, _ in written])
        want = multiset(twin.rows())
        rows_equal(world, table.folder, want)
        if name not in ("sequence", "sequence_2", "no_deletes"):
            same(want, multiset(table.rows), f"{name}: rows of the twin")
        if name == "index":
            continue  # a compaction drops the records that are older than a day
        table.compact()
        same(multiset(Java(world, table.folder).rows()), want, f"{name}: rows after a full compaction")
    refused = {f"no.{name}": pair for name, pair in REFUSED.items()}
    for name, (key, value) in refused.items():
        client.ask("create", name, columns=columns, keys=["k"], buckets=1, properties=properties({key: value, **({"sequence.field": "seq"} if "sort-order" in key else {})}), **{"bucket-keys": ["k"]})
        client.ask("upsert", name, rows=[[1, 1, "v", 1, None]])
    log = world.here / "run.log"

    def held():
        world.round(node.address, codes=(0, 4))
        return all(f"table held table={name} " in log.read_text() for name in refused)
    until(60, "hold of each refused table", held)
    log = log.read_text()
    for name, (key, value) in refused.items():
        lines = [line for line in log.splitlines() if f"table={name} " in line and f"`{key}` = `{value}`" in line]
        check(lines and "tables.exclude" in lines[0], f"{name} is not held for `{key}`: {[line for line in log.splitlines() if name in line][:3]}")
        files = [path.name for path in node.table(name).rglob("*") if path.is_file() and path.name != "schema-0"]
        same(files, [], f"files of {name}")
    return f"{len(tables)} options beside a twin, {len(refused)} refused"
