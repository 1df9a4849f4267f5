"""A real Fluss 0.9.1 cluster as the source, filled by its own Java client."""
import collections
import datetime
import json
import signal

from checks import rows_equal
from readers import Java
from rows import NESTED, SCALARS, columns_text, nested_rows, rows
from world import case, check, same, table_name, until

COLUMNS = [(name, kind) for name, kind in SCALARS if name in
           "id bool i8 i16 i32 i64 f32 f64 dec5_2 dec38_10 char20 string binary4 bytes date time0 time3 ts0 ts3 ts6 ts9 ltz3 ltz6 ltz9".split()] + [("part", "STRING")]
LAKE = {"table.datalake.enabled": "true", "table.datalake.freshness": "1s"}


def batch(ids):
    return [row[:-1] + [f"p{row[0] % 3}"] for row in rows(ids, COLUMNS)]


def with_system_columns(client, table, written):
    """The rows as a 0.9.1 lake table has them: Fluss bucket, offset and commit time behind each."""
    places = {r[4][0]: (r[1], r[2], r[5]) for r in client.ask("scan", table, columns=["id"])}

    def time(ms):
        return (datetime.datetime(1970, 1, 1) + datetime.timedelta(milliseconds=ms)).isoformat(timespec="milliseconds") + "Z"
    return [row + [bucket, offset, time(ms)] for row in written for bucket, offset, ms in [places[row[0]]]]


def snapshot_is_ours(world, cluster, client, table):
    """Fluss knows the newest lake snapshot, with the offsets of all rows; the snapshot says who made it."""
    newest = Java(world, cluster.table(table)).snapshot()
    known = client.ask("lake-snapshot", table)
    same(known["id"], newest["id"], f"{table}: snapshot known to Fluss")
    want = {(o[1], o[2]): o[3] for o in client.ask("offsets", table) if o[3] > 0}
    same({(o[0], o[1]): o[2] for o in known["offsets"] if o[2] > 0}, want, f"{table}: offsets known to Fluss")
    same(newest["commitUser"], "__fluss_lake_tiering", f"{table}: commit user")
    check("lakeward.round-id" in newest["properties"], f"{table}: the snapshot has no round id: {newest['properties']}")


@case("cluster-log", "log tables of a real 0.9.1 cluster, filled by its Java client, keyed or not, partitioned or not: plan, two rounds, inspect; rows and system columns right")
def log(world):
    cluster = world.cluster()
    client = world.client(cluster.address, old=True)
    tables = ["g.log", "g.log_keyed", "g.log_part", "g.log_part_keyed"]
    for table in tables:
        client.ask("create", table, columns=COLUMNS, buckets=2, properties=LAKE, partitions=["part"] if "part" in table else [],
                   **{"bucket-keys": ["id"] if "keyed" in table else []})
    written = collections.defaultdict(list)
    for ids in (range(0, 400), range(400, 700)):
        for table in tables:
            written[table] += batch(ids)
            client.ask("append", table, rows=batch(ids), **{"flush-every": 100})
        same({table_name(p): p["backlog"] for p in world.says("plan", "--server", cluster.address)}, {table: len(ids) for table in tables}, "backlogs")
        world.rounds_until(cluster.address, tables)
        for table in tables:
            snapshot_is_ours(world, cluster, client, table)
    for table in tables:
        rows_equal(world, cluster.table(table), with_system_columns(client, table, written[table]))
        want = {"p0", "p1", "p2"} if "part" in table else {""}
        found = Java(world, cluster.table(table)).files()
        same({"/".join(f["partition"]) for f in found}, want, f"{table}: partitions")
        totals = {2} if "keyed" in table else {-1}
        same({f["total"] for f in found}, totals, f"{table}: totals")
        inspected = world.says("inspect", cluster.table(table))[0]["partitions"]
        same((sum(p["rows"] for p in inspected), sum(p["files"] for p in inspected), {t for p in inspected for t in p["totals"]}),
             (len(written[table]), len(found), totals), f"{table}: rows, files and totals that `inspect` shows")
        client.ask("drop", table)
    return f"{sum(map(len, written.values()))} rows in {len(tables)} tables"


@case("cluster-nested", "nested columns on a real 0.9.1 cluster: its coordinator's lake table is the one we expect, its client's batches decode right, each reader see the rows")
def nested(world):
    cluster = world.cluster()
    client = world.client(cluster.address, old=True)
    kinds = [kind for _, kind in NESTED]
    written = nested_rows(range(120), NESTED)
    client.ask("create", "g.nested", columns=columns_text(NESTED), buckets=2, properties=LAKE, **{"bucket-keys": ["id"]})
    node = world.node()
    world.client(node.address).ask("create", "g.nested", columns=columns_text(NESTED), buckets=2, properties=LAKE, **{"bucket-keys": ["id"]})
    theirs, ours = (json.loads((place.table("g.nested") / "schema/schema-0").read_text())["fields"] for place in (cluster, node))
    same(theirs[:-3], ours, "columns of the lake table, ids inside nested types included")
    client.ask("append", "g.nested", rows=written, **{"flush-every": 50})
    world.rounds_until(cluster.address, ["g.nested"])
    snapshot_is_ours(world, cluster, client, "g.nested")
    rows_equal(world, cluster.table("g.nested"), written, kinds=kinds, skip=3)
    client.ask("drop", "g.nested")
    return f"{len(NESTED)} columns, {len(written)} rows"


@case("crash", "SIGKILL between publish and record on the real cluster: the next service records first, no row twice, no round failed for it", calm=True)
def crash(world):
    cluster = world.cluster()
    client = world.client(cluster.address, old=True)
    client.ask("create", "g.crash", columns=COLUMNS, buckets=2, properties=LAKE, **{"bucket-keys": ["id"]})
    written = batch(range(300))
    client.ask("append", "g.crash", rows=written)
    until(60, "kill", lambda: world.round(cluster.address, fail="commit.after_publish=kill", codes=(0, -signal.SIGABRT, -signal.SIGKILL))[1])
    published = Java(world, cluster.table("g.crash")).snapshot()["id"]
    client.refuses("LakeTableSnapshotNotExistException", "lake-snapshot", "g.crash")
    more = batch(range(300, 500))
    client.ask("append", "g.crash", rows=more)
    rounds, _ = world.round(cluster.address, "--wait", "140s")  # the lease of the dead one: 2 minutes, looked at each 15 s
    same([r["recovered"] for r in rounds], [published], "snapshots recovered")
    snapshot_is_ours(world, cluster, client, "g.crash")
    rows_equal(world, cluster.table("g.crash"), with_system_columns(client, "g.crash", written + more))
    client.ask("drop", "g.crash")
    return f"snapshot {published} recorded afterwards"
