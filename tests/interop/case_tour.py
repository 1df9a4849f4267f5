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


def changelog_state(scanned, keys, full=True):
    """What the changelog leads to, and how many changes of each kind; each −U and −D has the row that was there."""
    state, kinds = {}, {}
    for part, bucket, offset, change, row, _ in scanned:
        key = (part, *(row[i] for i in keys))
        kinds[change] = kinds.get(change, 0) + 1
        if change in ("-U", "-D"):
            same(state.pop(key, None), row, f"the row before {change} at offset {offset} of bucket {bucket}")
        else:
            check(not full or key not in state, f"{change} of {row} at offset {offset} of bucket {bucket} over {state.get(key)}")
            state[key] = row
    return state, kinds


KEY_TYPES = [("i", "INT"), ("l", "BIGINT"), ("s", "STRING"), ("o", "BOOLEAN"), ("y", "TINYINT"), ("h", "SMALLINT"), ("f", "FLOAT"), ("d", "DOUBLE"), ("a", "DATE"), ("m", "TIME(3)"),
             ("e", "DECIMAL(10, 2)"), ("g", "DECIMAL(30, 5)"), ("t", "TIMESTAMP(3)"), ("u", "TIMESTAMP(6)"), ("z", "TIMESTAMP_LTZ(9)"), ("b", "BYTES"), ("c", "CHAR(4)"), ("n", "BINARY(2)")]


def typed(id):
    return [id - 1, -id * 10**12, f"s{id}" * id, id % 2 == 0, -id, 300 * id, f"3f8{id:05x}", f"c00{id:013x}", f"20{20 + id}-02-28", f"01:02:03.{id:03}",
            f"{id}.25", f"-{10**20 + id}.00001", f"2024-01-01T00:00:0{id}.123", f"1969-12-31T23:59:5{id}.000000", f"2024-06-01T12:00:0{id}.123456789Z", f"{id:02x}ff" * id, f"c{id}", f"00{id:02x}", f"v{id}"]


@case("tour-keyed", "Java fluss-client 1.0.0 upserts, deletes, looks up, limit-scans, scans states and changelogs of primary-key tables on the node, over a killed node too")
def keyed(world):
    node = world.node()
    client = world.client(node.address)
    ask = client.ask
    columns = [("k", "INT"), ("v", "STRING"), ("n", "BIGINT")]
    ask("create", "tour.pk", columns=columns, keys=["k"], buckets=3)
    ask("create", "tour.wal", columns=columns, keys=["k"], buckets=2, properties={"table.changelog.image": "WAL", "table.kv.format": "INDEXED", "table.log.arrow.compression.type": "NONE"})
    info = ask("info", "tour.pk")
    same((info["keys"], info["bucket-keys"], info["properties"]["table.kv.format-version"]), (["k"], ["k"], "2"), "keys of the table")
    model = {}

    def both(command, rows):
        for table in ("tour.pk", "tour.wal"):
            same(ask(command, table, rows=rows), len(rows), f"{command} on {table}")
        for row in rows:
            model.pop(row[0], None)
            if command == "upsert":
                model[row[0]] = row

    def right(when):
        for table in ("tour.pk", "tour.wal"):
            keys = list(range(-5, 330))
            same(ask("lookup", table, keys=[[k] for k in keys]), [model.get(k) for k in keys], f"look-ups on {table} {when}")
            same(multiset(ask("state", table)), multiset(model.values()), f"states of {table} {when}")
        state, kinds = changelog_state(ask("scan", "tour.pk"), [0])
        same({k: r for (_, k), r in state.items()}, model, f"what the changelog leads to {when}")
        wal, wal_kinds = changelog_state(ask("scan", "tour.wal"), [0], full=False)
        same({k: r for (_, k), r in wal.items()}, model, f"what the changelog of image WAL leads to {when}")
        return kinds, wal_kinds

    both("delete", [[900, None, None]])  # an empty batch; not at the end, where the client tells nobody of it
    both("upsert", [[k, None if k % 5 == 0 else f"v{k}", k * 10] for k in range(300)])
    both("upsert", [[k, f"new{k}", None] for k in range(100)])
    both("delete", [[k, None, None] for k in range(80, 120)])
    kinds, wal_kinds = right("at first")
    same(kinds, {"+I": 300, "-U": 100, "+U": 100, "-D": 40}, "changes")
    same(wal_kinds, {"+U": 400, "-D": 40}, "changes of image WAL")
    same(sum(o[3] for o in ask("offsets", "tour.pk")), 541, "offsets: a delete of nothing takes one")
    rows = ask("limit", "tour.pk", bucket=1, limit=7)
    check(len(rows) == 7 and all(model[r[0]] == r for r in rows), f"a scan with a limit gives {rows}")

    world.stop(node.process, kill=True)
    world.serve(node)
    right("after SIGKILL")
    both("upsert", [[k, "again", k] for k in range(290, 320)])
    ask("add-columns", "tour.pk", columns=[("late", "INT")])
    same(ask("lookup", "tour.pk", keys=[[1], [300]]), [model[1] + [None], model[300] + [None]], "rows from before a column was added")
    ask("upsert", "tour.pk", rows=[[1, "wide", 1, 7]])
    same(ask("lookup", "tour.pk", keys=[[1]]), [[1, "wide", 1, 7]], "a row of after")
    before, after = [r for r in ask("scan", "tour.pk") if r[4][0] == 1][-2:]
    same((before[3], before[4], after[3], after[4]), ("-U", model[1] + [None], "+U", [1, "wide", 1, 7]), "its changes")

    ask("create", "tour.parts", columns=[("day", "STRING"), ("k", "BIGINT"), ("j", "INT"), ("v", "STRING")], keys=["day", "k", "j"], partitions=["day"], buckets=2, **{"bucket-keys": ["k"]})
    written = [[f"d{k % 2}", k, j, f"{k}/{j}"] for k in range(20) for j in range(3)]
    ask("upsert", "tour.parts", rows=written)  # partitions come by writing
    ask("bucket-count", "tour.parts", count=5)
    ask("create-partition", "tour.parts", spec={"day": "late"})
    written += [["late", k, 0, "x"] for k in range(30)]
    ask("upsert", "tour.parts", rows=written[-30:])
    ask("delete", "tour.parts", rows=written[:3])
    written = written[3:]
    same({p["name"]: p["buckets"] for p in ask("partitions", "tour.parts")}, {"d0": 2, "d1": 2, "late": 5}, "bucket counts")
    same(ask("lookup", "tour.parts", keys=[r[:3] for r in written] + [["d0", 0, 0]]), written + [None], "look-ups by partition and key")
    same(ask("prefix-lookup", "tour.parts", columns=["day", "k"], keys=[["d1", 3], ["d0", 0], ["late", 7]]),
         [[["d1", 3, j, f"3/{j}"] for j in range(3)], [], [["late", 7, 0, "x"]]], "look-ups by the bucket key")
    ask("create", "tour.prefix", columns=[("a", "STRING"), ("b", "INT"), ("v", "DOUBLE")], keys=["a", "b"], buckets=3, **{"bucket-keys": ["a"]})
    ask("upsert", "tour.prefix", rows=[[a, b, None] for a in ("", "x", "xy", "y") for b in (-1, 0, 300)])
    ask("delete", "tour.prefix", rows=[["x", 0, None]])
    same([multiset(rows) for rows in ask("prefix-lookup", "tour.prefix", columns=["a"], keys=[["x"], [""], ["z"]])],
         [multiset([["x", -1, None], ["x", 300, None]]), multiset([["", b, None] for b in (-1, 0, 300)]), multiset([])], "look-ups by the bucket key without partitions")
    client.refuses("IllegalArgumentException", "prefix-lookup", "tour.pk", columns=["k"], keys=[[1]])
    state, _ = changelog_state(ask("scan", "tour.parts"), [1, 2])
    same(multiset(state.values()), multiset(written), "what the changelogs of the partitions lead to")
    same(multiset(ask("state", "tour.parts")), multiset(written), "states of the partitions")
    ask("drop-partition", "tour.parts", spec={"day": "d0"})
    same(multiset(ask("state", "tour.parts")), multiset([r for r in written if r[0] != "d0"]), "states after a partition was dropped")

    for table, properties in (("tour.types", {}), ("tour.types_indexed", {"table.kv.format": "INDEXED"})):
        ask("create", table, columns=[*KEY_TYPES, ("v", "STRING")], keys=[name for name, _ in KEY_TYPES], buckets=2, properties=properties)
        ask("upsert", table, rows=[typed(id) for id in range(1, 10)])
    world.stop(node.process, kill=True)
    world.serve(node)
    for table in ("tour.types", "tour.types_indexed"):
        same(ask("lookup", table, keys=[typed(id)[:-1] for id in range(1, 10)]), [typed(id) for id in range(1, 10)], f"look-ups by keys of every type on {table}, made from the log again")
    return f"{len(KEY_TYPES)} key types"


# Every other call of the client, and what it gives as text; or the error that it ends with, and a word of it.
SERVED = {
    "databaseExists": "true", "getDatabaseInfo": "tour", "listDatabaseSummaries": "[fluss, tour]", "alterDatabase": "null", "getTableSchema": "1",
    "getTableSchema(id)": "[a, b, c]", "getTableStats": "40", "listPartitionInfos(spec)": "[p1]", "listOffsets(time)": "{0=0}", "scan(limit)": "5",
    "scan(filter)": "true", "createTable(key)": "null", "upsert(key)": "true", "getTableStats(key)": "1", "scan(limit, key)": "1", "scan(whole, key)": "1", "getLatestKvSnapshots(key)": "[0]", "getLakeSnapshot": "1 {0=40}", "getReadableLakeSnapshot": "1 {0=40}", "describeClusterConfigs": "true",
}
REFUSED = {
    "getTableSchema(unknown)": ("SchemaNotExistException", "`99`"),
    "listPartitionInfos(log)": ("TableNotPartitionedException", "`tour.log`"),
    "createTable(engine)": ("InvalidConfigException", "merge engines"),
    "createTable(ttl)": ("InvalidConfigException", "time-to-live"),
    "createTable(increment)": ("InvalidConfigException", "auto-increment"),
    "partialUpdate(key)": ("InvalidTargetColumnException", "partial updates"),
    "lookup(insert)": ("InvalidConfigException", "insert what is missing"),
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
    keyed = got["keyed"]
    expected = {id: [id, f"w{id}", None] if id < 20 else [id, f"v{id}", id] for id in range(50) if id % 10}
    same(keyed["found"], [expected.get(id) for id in range(55)], "look-ups")
    same(multiset(keyed["limited"]), multiset(expected.values()), "a scan with a limit")
    state, kinds = changelog_state([[None, 0, offset, change, row, None] for offset, change, row in keyed["changes"]], [0])
    same((list(state.values()), kinds), ([expected[k] for (_, k) in state], {"+I": 50, "-U": 20, "+U": 20, "-D": 5}), "the changelog")
    same(len(state), 45, "rows that the changelog leads to")
    same(keyed["parts"], [[1, "x", 1], None, [2, "y", 2]], "look-ups on a partitioned table")
    same(got["limited"], 7, "rows of a scan with a limit")
    same(got["info"], [2, True, ["log", "part", "pk", "pk_parts"], "py"], "bucket count, existence, tables and database")
    wrong = [f"{name} after {seconds:.1f} s: {said}" for name, (said, seconds) in got["refused"].items() if seconds > IN_TIME or PYFLUSS_REFUSED[name] not in (said or "")]
    check(not wrong and set(got["refused"]) == set(PYFLUSS_REFUSED), f"{len(wrong)} calls should have been refused:\n    " + "\n    ".join(wrong))
    return f"{len(PYFLUSS_REFUSED)} calls refused"
