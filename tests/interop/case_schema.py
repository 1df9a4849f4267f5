"""Columns added by the official client under a running stream of writers that know more or less of them."""
import json

from case_cluster import snapshot_is_ours, with_system_columns
from case_readback import LAKE, UNABLE, lake_columns
from checks import filters_hold, multiset, rows_equal
from readers import Java
from rows import SCALARS, row
from world import case, check, same

NAMES = "bool i32 f64 string dec5_2 bytes date ts3 time3 i64 dec38_10 char20 ltz6 f32 i8 binary4 ts6 ltz3 nan64".split()
COLUMNS = [("id", "BIGINT"), ("part", "STRING")] + [column for name in NAMES for column in SCALARS if column[0] == name]
FIRST, SECOND = 8, 15  # columns at the start, and after the first change


def values(ids, known):
    """Rows of a writer that knows so many columns, as they are sent and as they are read."""
    sent = [[v if i != 1 else f"p{id % 3}" for i, v in enumerate(row(id, COLUMNS))][:known] for id in ids]
    return sent, [r + [None] * (len(COLUMNS) - known) for r in sent]


class Writers:
    """A table and its writers: one per state of its columns, all of them open. What was written, by table."""

    def __init__(self, client, tables):
        self.client, self.tables = client, tables
        self.written = {table: [] for table in tables}

    def append(self, ids, known):
        sent, read = values(ids, known)
        for table in self.tables:
            self.client.ask("append", table, rows=sent, writer=f"{table} {known}", **{"flush-every": 20})
            self.written[table] += read

    def add(self, *columns):
        for table in self.tables:
            before = self.client.ask("info", table)["schema-id"]
            self.client.ask("add-columns", table, columns=columns)
            same(self.client.ask("info", table)["schema-id"], before + 1, f"{table}: schema id after ADD COLUMN")


@case("schema-change", "columns added by Java fluss-client 1.0.0 on the node, batches of three schemas in one split: each reader see every row, NULLs, and the right rows for filters on old and new columns")
def node(world):
    node = world.node()
    client = world.client(node.address)
    tables = ["e.keyed", "e.unaware"]
    for table in tables:
        keys = {"bucket-keys": ["id"], "partitions": ["part"]} if table == "e.keyed" else {}
        client.ask("create", table, columns=COLUMNS[:FIRST], buckets=2, properties=LAKE, **keys)
    writers = Writers(client, tables)
    writers.append(range(0, 60), FIRST)
    world.rounds_until(node.address, tables)
    writers.add(*COLUMNS[FIRST:SECOND])
    writers.append(range(60, 100), SECOND)
    writers.append(range(100, 130), FIRST)
    world.rounds_until(node.address, tables)
    writers.add(*COLUMNS[SECOND:-1])
    writers.add(COLUMNS[-1])
    for ids, known in ((range(130, 160), len(COLUMNS)), (range(160, 180), FIRST), (range(180, 210), SECOND), (range(210, 230), len(COLUMNS))):
        writers.append(ids, known)
    rounds = world.rounds_until(node.address, tables)
    same({r["rows"] for r in rounds if r["outcome"] != "idle"}, {100}, "rows of the last rounds: no batch waits for another")
    client.refuses("InvalidAlterTableException", "add-columns", tables[0], columns=[COLUMNS[-1]])
    asked = 0
    for table in tables:
        folder, written = node.table(table), writers.written[table]
        same(sorted({f["schema"] for f in Java(world, folder).files()}), [0, 1, 3], f"{table}: schemas of its files")
        rows_equal(world, folder, written)
        asked += filters_hold(world, folder, lake_columns(COLUMNS), written, UNABLE)
        # A client's own scan sees the same through the log; of microseconds it cannot scan all (README.md).
        seen = [i for i, (name, _) in enumerate(COLUMNS) if name not in ("ts6", "ltz6")]
        scanned = [r[4] for r in client.ask("scan", table, columns=[COLUMNS[i][0] for i in seen])]
        same(multiset(scanned), multiset([[r[i] for i in seen] for r in written]), f"{table}: scan of the log")
    return f"{sum(map(len, writers.written.values()))} rows, {asked} filters"


@case("schema-change-cluster", "ADD COLUMN by Java fluss-client 1.0.0 on the real 0.9.1 cluster; a lake that misses one gets it from a round, as the coordinator would have added it, and the coordinator goes on from there")
def cluster(world):
    cluster = world.cluster()
    client = world.client(cluster.address)
    table, folder = "g.evolve", cluster.table("g.evolve")
    client.ask("create", table, columns=COLUMNS[:FIRST], buckets=2, properties={**LAKE, "table.datalake.freshness": "1s"},
               **{"bucket-keys": ["id"], "partitions": ["part"]})
    writers = Writers(client, [table])
    writers.append(range(0, 60), FIRST)
    world.rounds_until(cluster.address, [table])
    writers.add(*COLUMNS[FIRST:SECOND])
    writers.append(range(60, 100), SECOND)
    writers.append(range(100, 130), FIRST)
    world.rounds_until(cluster.address, [table])

    # Fluss has the columns, the lake has not: what an older coordinator leaves behind.
    writers.add(*COLUMNS[SECOND:-1])
    file = folder / "schema/schema-2"
    coordinators = json.loads(file.read_text())
    file.unlink()
    (folder / "schema/LATEST").unlink(missing_ok=True)
    same(world.says("plan", "--server", cluster.address, table)[0]["missing_columns"], [name for name, _ in COLUMNS[SECOND:-1]], "columns that `plan` misses")
    writers.append(range(130, 170), len(COLUMNS) - 1)
    writers.append(range(170, 190), SECOND)
    world.rounds_until(cluster.address, [table])
    ours = json.loads(file.read_text())
    check(ours.pop("timeMillis") != coordinators.pop("timeMillis"), "the lake's schema was not made again")
    same(ours, coordinators, "schema made by a round, and by the coordinator")

    # And on: the real coordinator takes our schema for its own.
    writers.add(COLUMNS[-1])
    writers.append(range(190, 220), len(COLUMNS))
    writers.append(range(220, 230), FIRST)
    world.rounds_until(cluster.address, [table])
    snapshot_is_ours(world, cluster, client, table)
    written = with_system_columns(client, table, writers.written[table])
    rows_equal(world, folder, written)
    asked = filters_hold(world, folder, lake_columns(COLUMNS), writers.written[table], UNABLE)
    same(sorted({f["schema"] for f in Java(world, folder).files()}), [0, 1, 2, 3], "schemas of its files")
    client.ask("drop", table)
    return f"{len(written)} rows, {asked} filters"
