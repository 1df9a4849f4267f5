"""The official clients on `lakeward node`: what it serves works, what it does not is a clear error in time."""
import json
import subprocess
import sys
import time

from checks import multiset
from world import HERE, Failed, Refused, case, check, same, tail

COLUMNS = [("a", "INT"), ("b", "STRING"), ("c", "BIGINT")]


def values(ids):
    return [[id, None if id % 5 == 0 else f"v{id}", id * 10] for id in ids]


@case("tour-java", "Java fluss-client 1.0.0 creates, appends, scans (also projected), asks offsets and partitions, alters, over a killed node too")
def java(world):
    node = world.node()
    client = world.client(node.address)
    ask = client.ask
    check("TABLET_SERVER" in ask("nodes"), "no tablet server is named")
    ask("create-database", db="tour")
    check("tour" in ask("databases"), "the database is not listed")
    same(ask("exists", "tour.log"), False, "existence before creation")
    client.refuses("TableNotExistException", "info", "tour.log")
    ask("create", "tour.log", columns=COLUMNS, buckets=3, properties={"owner": "me"})
    same(ask("exists", "tour.log"), True, "existence")
    same(ask("tables", db="tour"), ["tour.log".split(".")[1]], "tables")
    info = ask("info", "tour.log")
    same((info["buckets"], info["columns"], info["custom"]["owner"]), (3, [["a", "INT"], ["b", "STRING"], ["c", "BIGINT"]], "me"), "table info")
    client.refuses("TableAlreadyExistException", "create", "tour.log", columns=COLUMNS)
    client.refuses("DatabaseNotExistException", "tables", db="nowhere")

    written = values(range(500))
    same(ask("append", "tour.log", rows=written, **{"flush-every": 50}), 500, "rows appended")
    same(sum(o[3] for o in ask("offsets", "tour.log")), 500, "sum of latest offsets")
    same({o[3] for o in ask("offsets", "tour.log", which="earliest")}, {0}, "earliest offsets")
    scanned = ask("scan", "tour.log")
    same(multiset([r[4] for r in scanned]), multiset(written), "scan")
    for bucket in range(3):
        offsets = [r[2] for r in scanned if r[1] == bucket]
        same(offsets, list(range(len(offsets))), f"offsets of bucket {bucket}")
    same(multiset([r[4] for r in ask("scan", "tour.log", columns=["c", "a"])]), multiset([[r[2], r[0]] for r in written]), "projected scan")
    client.refuses("LakeTableSnapshotNotExistException", "lake-snapshot", "tour.log")

    for compression in ("NONE", "LZ4_FRAME", "ZSTD"):
        table = f"tour.{compression.lower()}"
        ask("create", table, columns=COLUMNS, buckets=1, properties={"table.log.arrow.compression.type": compression})
        ask("append", table, rows=written)
        same([r[4] for r in ask("scan", table)], written, f"scan of {compression} batches")
        same([r[4] for r in ask("scan", table, columns=["b"])], [[r[1]] for r in written], f"projected scan of {compression} batches")

    ask("create", "tour.part", columns=COLUMNS, partitions=["b"], buckets=2, **{"bucket-keys": ["a"]})
    ask("append", "tour.part", rows=[[id, f"p{id % 3}", id] for id in range(90)])  # partitions come by writing
    same({p["name"]: p["buckets"] for p in ask("partitions", "tour.part")}, {"p0": 2, "p1": 2, "p2": 2}, "partitions made by the writer")
    client.refuses("PartitionAlreadyExistsException", "create-partition", "tour.part", spec={"b": "p1"})
    client.refuses("InvalidPartitionException", "create-partition", "tour.part", spec={"b": "a/b"})
    ask("bucket-count", "tour.part", count=4)
    ask("create-partition", "tour.part", spec={"b": "late"})
    ask("append", "tour.part", rows=[[id, part, id] for id in range(90, 150) for part in ("p0", "late")])
    same({p["name"]: p["buckets"] for p in ask("partitions", "tour.part")}, {"p0": 2, "p1": 2, "p2": 2, "late": 4}, "bucket counts after ALTER")
    same(len(ask("scan", "tour.part")), 210, "rows of the partitioned table")
    # A writer that knows the old count makes a partition: it gets the new count, and what the writer has routed by the old one is turned away.
    ask("append", "tour.part", rows=[[id, "p0", id] for id in range(150, 160)], writer="old")
    ask("bucket-count", "tour.part", count=7)
    ask("turned-away")
    ask("append", "tour.part", rows=[[id, "fresh", id] for id in range(160, 260)], writer="old")
    check(ask("turned-away") > 0, "no row was turned away by error 74")
    same({p["name"]: p["buckets"] for p in ask("partitions", "tour.part")}["fresh"], 7, "bucket count of the partition that it made")
    fresh = [r for r in ask("scan", "tour.part") if r[0] == "fresh"]
    same(sorted(r[4][0] for r in fresh), list(range(160, 260)), "rows that came after error 74")
    ask("append", "tour.part", rows=[[id, "fresh", id] for id in range(160, 260)])
    buckets = {r[4][0]: r[1] for r in fresh}
    same([r[4] for r in ask("scan", "tour.part") if r[0] == "fresh" and r[1] != buckets[r[4][0]]], [], "rows in another bucket than a fresh writer's")
    ask("drop-partition", "tour.part", spec={"b": "fresh"})
    ask("drop-partition", "tour.part", spec={"b": "p2"})
    same({p["name"] for p in ask("partitions", "tour.part")}, {"p0", "p1", "late"}, "partitions after a drop")
    ask("set", "tour.part", properties={"note": "kept"})
    same(ask("info", "tour.part")["custom"]["note"], "kept", "custom property")

    refused = client.refuses(None, "create", "tour.pk", columns=COLUMNS, keys=["a"], buckets=1)
    check("primary" in refused.message.lower(), f"the error for a primary-key table should name it: {refused.message}")

    world.stop(node.process, kill=True)
    world.serve(node)
    more = values(range(500, 600))
    ask("append", "tour.log", rows=more)
    same(multiset([r[4] for r in ask("scan", "tour.log")]), multiset(written + more), "scan after SIGKILL and restart")
    same(len(ask("partitions", "tour.part")), 3, "partitions after restart")
    ask("drop", "tour.log")
    same(ask("exists", "tour.log"), False, "existence after drop")
    ask("drop-database", db="tour")
    check("tour" not in ask("databases"), "the dropped database is listed")


# Every other call of the client, and what it gives as text; or the error that it ends with, and a word of it.
SERVED = {
    "databaseExists": "true", "getDatabaseInfo": "tour", "listDatabaseSummaries": "[fluss, tour]", "alterDatabase": "null", "getTableSchema": "1",
    "getTableSchema(id)": "[a, b, c]", "getTableStats": "40", "listPartitionInfos(spec)": "[p1]", "listOffsets(time)": "{0=0}", "scan(limit)": "5",
    "scan(filter)": "true", "getLakeSnapshot": "1 {0=40}", "getReadableLakeSnapshot": "1 {0=40}", "describeClusterConfigs": "true",
}
REFUSED = {
    "getTableSchema(unknown)": ("SchemaNotExistException", "`99`"),
    "listPartitionInfos(log)": ("TableNotPartitionedException", "`tour.log`"),
    "createTable(key)": ("InvalidConfigException", "does not support primary-key tables"),
    "listOffsets(future)": ("InvalidTimestampException", "in the future"),
    "listOffsets(bucket)": ("FlussRuntimeException", "Leader not found"),
    "scan(offset)": ("FetchException", "up to `40`"),
    "scan(whole)": ("UnsupportedOperationException", "requires limit"),
    "lookup": ("IllegalArgumentException", "doesn't support lookup"),
    "prefixLookup": ("IllegalArgumentException", "doesn't support prefix lookup"),
    "upsert": ("IllegalStateException", "not a Primary Key Table"),
    "partialUpdate": ("IllegalStateException", "not a Primary Key Table"),
    "getLatestKvSnapshots": ("NonPrimaryKeyTableException", "`tour.log`"),
    "getLakeSnapshot(unknown)": ("LakeTableSnapshotNotExistException", "no such lake snapshot"),
    **{name: ("UnsupportedVersionException", "The server does not support") for name in """scan(snapshot) getKvSnapshotMetadata listKvSnapshots acquireSnapshots renew
        releaseSnapshots dropLease alterClusterConfigs listAcls createAcls dropAcls addServerTag removeServerTag addServerTagByRack removeServerTagByRack rebalance
        listRebalanceProgress cancelRebalance registerProducerOffsets getProducerOffsets deleteProducerOffsets getClusterHealth listRemoteLogManifests""".split()},
}
IN_TIME = 10  # seconds of one call


@case("tour-rest", "every other call that the API of fluss-client 1.0.0 has: right where the node serves it, else an error that says so, within seconds")
def rest(world):
    node = world.node()
    client = world.client(node.address)
    lake = {"table.datalake.enabled": "true", "table.datalake.freshness": "200ms"}
    client.ask("create", "tour.log", columns=COLUMNS, buckets=1, properties=lake)
    client.ask("create", "tour.part", columns=COLUMNS, partitions=["b"], buckets=2)
    client.ask("append", "tour.log", rows=values(range(40)))
    client.ask("append", "tour.part", rows=[[id, f"p{id % 3}", id] for id in range(9)])
    world.rounds_until(node.address, ["tour.log"])
    tour = world.java("tour", "256m", ["client-new", "log", "json"], "FlussTour", shared=False)
    tour.ask("open", at=node.address)
    names, wrong = tour.ask("calls"), []
    same(sorted(names), sorted([*SERVED, *REFUSED]), "calls")
    for name in names:
        begin = time.monotonic()
        try:
            got = tour.ask(name, seconds=30)
            fits = got == SERVED.get(name)
        except Refused as refused:
            got = (refused.error, refused.message)
            fits = name in REFUSED and got[0] == REFUSED[name][0] and REFUSED[name][1] in got[1]
        if not fits or time.monotonic() - begin > IN_TIME:
            wrong.append(f"{name} after {time.monotonic() - begin:.1f} s: {got}")
    tour.ask("close")
    check(not wrong, f"{len(wrong)} of {len(names)} calls:\n    " + "\n    ".join(wrong))
    return f"{len(SERVED)} calls served, {len(REFUSED)} refused"


PYFLUSS_REFUSED = {
    "lake snapshot": "code=53", "lookup": "only supported for primary key tables", "upsert": "only supported for primary key tables", "beyond the end": "offset is out of range",
    "twice": "code=42", "unknown database": "code=4", "partitions of none": "code=37", "future": "code=38", "unknown bucket": "No leader found",
}


@case("tour-pyfluss", "pyfluss 1.0.0 creates, appends, scans rows, projected batches and with a limit, asks offsets and partitions; what is not there or not served is an error in time")
def pyfluss(world):
    node = world.node()
    process = world.start("pyfluss", [sys.executable, HERE / "tour_pyfluss.py", node.address], stdout=subprocess.PIPE)
    try:
        out, _ = process.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        raise Failed(f"pyfluss hangs: {tail(process.log)}")
    check(process.returncode == 0, f"pyfluss ended with {process.returncode}: {tail(process.log)}")
    got = json.loads(out)
    rows = values(range(60))
    same(got["offsets"], 60, "sum of latest offsets")
    same(multiset(got["rows"]), multiset(rows), "rows")
    same(multiset(got["projected"]), multiset([[r[2], r[0]] for r in rows]), "projected batches")
    same(got["partitions"], ["x"], "partitions")
    same(got["missing"], True, "error for a missing table")
    check("primary" in got["primary"].lower(), f"the error for a primary-key table should name it: {got['primary']}")
    same(got["limited"], 7, "rows of a scan with a limit")
    same(got["info"], [2, True, ["log", "part"], "py"], "bucket count, existence, tables and database")
    wrong = [f"{name} after {seconds:.1f} s: {said}" for name, (said, seconds) in got["refused"].items() if seconds > IN_TIME or PYFLUSS_REFUSED[name] not in (said or "")]
    check(not wrong and set(got["refused"]) == set(PYFLUSS_REFUSED), f"{len(wrong)} calls should have been refused:\n    " + "\n    ".join(wrong))
    return f"{len(PYFLUSS_REFUSED)} calls refused"
