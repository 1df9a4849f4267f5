"""Primary-key tables of a real 0.9.1 cluster: `load` beside the Java client, Lakeward beside the Flink job."""
import json
import random

from beside import COLUMNS, Shared, made_by
from case_load import text
from checks import rows_equal
from flink import Job
from rows import maker, row
from world import case, check, same

# Values are what the 0.9.1 client can scan (README.md): a fraction below a millisecond before 1970 it can't.
VALUES = [(name, kind) for name, kind in COLUMNS if name not in ("id", "part")]
KEYS = ["CHAR(20)", "BOOLEAN", "STRING", "TINYINT", "BYTES", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(5,2)", "DECIMAL(18,4)", "BINARY(4)", "DECIMAL(38,10)", "DATE", "TIME(0)", "TIME(3)"]
KEYS += [f"{kind}({p})" for kind in ("TIMESTAMP", "TIMESTAMP_LTZ") for p in (0, 3, 6, 9)]


def keys(kind, count=24):
    """Distinct values of a type: its edges first, then any."""
    edges, other = maker("k", kind)
    r, found = random.Random(kind), list(dict.fromkeys(edges))
    for _ in range(20 * count):
        value = other(r)
        if len(found) < count and value not in found:
            found.append(value)
    return [key for key in found if not (kind.endswith(("(6)", "(9)")) and key < "1970")]


def write_changes(file, columns, changes, op):
    """JSON lines of changes ["+" or "-", row]; deletes have the key alone, which is what `op` says."""
    with open(file, "w") as out:
        for change, values in changes:
            shown = {name: text(value, kind) for (name, kind), value in zip(columns, values) if change == "+" or name in op["keys"]}
            out.write(json.dumps({**shown, op["column"]: op[change]}) + "\n")


def load(world, server, table, columns, changes, keys, debezium=True):
    """The changes by `lakeward load`, told by one column or the other."""
    file = world.here / f"{table}.jsonl"
    op = {"column": "op", "+": "u", "-": "d", "keys": keys} if debezium else {"column": "gone", "+": False, "-": True, "keys": keys}
    write_changes(file, columns, changes, op)
    report = world.says("load", "--server", server, table, file, "--bytes", "hex", "--op-column" if debezium else "--delete-column", op["column"])[0]
    deletes = sum(change == "-" for change, _ in changes)
    same((report["complete"], report["rows"], report["upserts"], report["deletes"]), (True, len(changes), len(changes) - deletes, deletes), f"{table}: report of `load`")


def replayed(world, client, table, by):
    """The rows that the changelog leaves, and how often it says each kind."""
    state, kinds = {}, {}
    for _, bucket, _, kind, values, _ in client.ask("scan", table):
        key = (bucket, *(str(values[i]) for i in by))
        kinds[kind] = kinds.get(kind, 0) + 1
        if kind in ("+I", "+U"):
            state[key] = values
        elif kind == "-D":
            state.pop(key, None)
    return sorted(state.values(), key=str), kinds


@case("pk-keys", "keys of every type on a real 0.9.1 cluster, alone and composite, both row formats, with and without a bucket key of their own: what `load` upserts and deletes is what the "
                 "Java client put there, in the same bucket; the changelog that the server makes of it is right")
def every_key(world):
    cluster = world.cluster()
    client = world.client(cluster.address, old=True)
    tables = [(f"p.k{i}", [("k", kind)], {}, {}) for i, kind in enumerate(KEYS)]
    pair = [("s", "STRING"), ("i", "INT")]
    tables += [("p.pair", pair, {}, {}), ("p.prefix", pair, {"bucket-keys": ["s"]}, {}), ("p.late", pair, {"bucket-keys": ["i"]}, {}), ("p.part", pair, {"partitions": ["i"]}, {})]
    tables += [(f"p.{name}_v1", pair, more, {"table.kv.format-version": "1"}) for name, more in (("pair", {}), ("prefix", {"bucket-keys": ["s"]}))]
    count = 0
    for at, (table, key, more, properties) in enumerate(tables):
        columns = [("id", "BIGINT"), *key, *VALUES]
        if at % 2:
            properties = {**properties, "table.kv.format": "indexed"}
        names = [name for name, _ in key]
        client.ask("create", table, columns=columns, keys=names, buckets=3, properties=properties, **more)
        found = [[k] for k in keys(key[0][1])] if len(key) == 1 else [[s, i] for s in keys("STRING", 14) for i in (0, 7)]
        put = {str(k): [id, *k, *row(id, [("id", "BIGINT"), *VALUES])[1:]] for id, k in enumerate(found)}
        client.ask("upsert", table, rows=list(put.values()))
        changes = [("-", values) if id % 3 == 0 else ("+", [1000 + id, *values[1:]]) for id, values in enumerate(put.values()) if id % 3 < 2]
        load(world, cluster.address, table, columns, changes, names, debezium=at % 4 < 2)
        want = [values for id, values in enumerate(put.values()) if id % 3 == 2] + [values for change, values in changes if change == "+"]
        by = range(1, 1 + len(names))
        state, kinds = replayed(world, client, table, by)
        same(state, sorted(want, key=str), f"{table}: rows by {key}")
        updates = sum(change == "+" for change, _ in changes)
        same(kinds, {kind: n for kind, n in (("+I", len(put)), ("-U", updates), ("+U", updates), ("-D", len(changes) - updates)) if n}, f"{table}: changelog by {key}")
        count += len(changes)
        client.ask("drop", table)
    return f"{len(tables)} tables, {count} changes of rows that Java put there"


OURS, THEIRS, PART = "pk.ours", "pk.theirs", "pk.part"


class Keyed(Shared):
    """Shared tables with a primary key, changed by the Java client and by `load` in turn."""

    def create(self, table, partitions=(), bucket_keys=()):
        self.by = {**getattr(self, "by", {}), table: [*partitions, "id"]}
        self.ids[table] = self.client.ask("create", table, columns=COLUMNS, keys=self.by[table], buckets=2, partitions=partitions,
                                          properties={"table.datalake.enabled": "true", "table.datalake.freshness": "3s"})  # shorter ones cut the first round of the job on a busy machine
        self.written[table] = {}

    def write(self, tables, count=90):
        for table in tables:
            changes = []
            for at in range(count):
                self.next += 1
                id = self.next * 7919 % 150
                changes.append(("-" if self.next % 5 == 0 else "+", [id, *row(self.next, COLUMNS)[1:-1], f"p{id % 3}"]))
            half = count // 2
            for who, part in enumerate((changes[:half], changes[half:])):
                if who == self.next % 2:
                    self.client.ask("upsert", table, changes=part, **{"flush-every": 20})
                else:
                    load(self.world, self.cluster.address, table, COLUMNS, part, self.by[table], debezium=who)
            for change, values in changes:
                if change == "+":
                    self.written[table][values[0]] = values
                else:
                    self.written[table].pop(values[0], None)

    def every_row_once(self, tables):
        for table in tables:
            rows_equal(self.world, self.folder(table), list(self.written[table].values()), skip=3)
            found = self.world.says("verify", table, "--all", "--server", self.cluster.address, seconds=120)[0]
            same(found["faults"], [], f"{table}: faults that `verify` finds")


@case("pk-beside", "primary-key tables that Lakeward and the real Flink job tier in turn, either first, each killed once between publish and record, changed by the Java client and `load`: "
                   "each takes over the other's snapshots; Java Paimon of both versions and pypaimon read the rows of a model")
def beside(world):
    shared = Keyed(world)
    job = Job(world, shared.cluster, "JOB")
    for table in (OURS, THEIRS, PART):
        shared.create(table, partitions=["part"] if table == PART else [])
    tables = [OURS, THEIRS, PART]
    ours, theirs = [OURS, PART], [THEIRS]
    for turn in range(3):
        shared.write(tables)
        shared.ours(ours)
        shared.theirs(job, theirs, seconds=120)
        shared.agree(ours, "ours")
        shared.agree(theirs, "theirs")
        shared.every_row_once(tables)
        ours, theirs = theirs, ours
    shared.write(tables)
    shared.ours_killed([PART])
    shared.write([PART])
    shared.theirs(job, [PART], seconds=120)
    shared.agree([PART], "theirs")
    shared.ours([OURS, THEIRS])  # as far as the job has not taken them as well
    shared.write([THEIRS])
    snapshot = shared.theirs_killed(job, THEIRS)
    shared.write([THEIRS])
    same(shared.ours([THEIRS]), {THEIRS: snapshot}, "snapshot of the job that we recorded")
    shared.agree([THEIRS], "ours")
    shared.every_row_once(tables)
    makers = {made_by(shared.snapshot(table, id)) for table in tables for id in shared.snapshots(table)}
    same(makers, {"ours", "theirs"}, "who made the snapshots")
    return f"{shared.next} changes, {sum(map(len, shared.written.values()))} rows in the end"
