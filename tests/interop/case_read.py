"""Other readers, and tables that come about otherwise than in case_readback: many small commits, Flink SQL, a real 0.9.1 cluster's layout and its union read."""
import json
import re
import subprocess

from case_cluster import LAKE as CLUSTER_LAKE
from case_cluster import snapshot_is_ours, with_system_columns
from case_readback import LAKE, UNABLE, lake_columns
from case_writers import Tiered
from checks import filters, filters_hold, multiset, rows_equal, totals
from flink import sql
from readers import Java, Python, root
from rows import SCALARS, rows
from world import case, check, same, tail, until

COMMITS = 24
FEW = "id bool i32 f64 dec5_2 dec38_10 string bytes date time3 ts3 ts6 ltz6 part".split()  # every type is in readback-types


@case("read-small-commits", "24 rounds of a few rows each, manifests merged at 5 and rewritten whole: each reader gives every row and finds every key, Java appends and compacts in between")
def small_commits(world):
    node = world.node()
    client = world.client(node.address)
    tables = {name: Tiered(world, node, client, name, **{"properties": {**LAKE, "paimon.manifest.merge-min-count": "5", **more}}) for name, more in
              (("m.minor", {}), ("m.full", {"paimon.manifest.full-compaction-threshold-size": "1 b"}))}
    service = world.start("service", [world.lakeward(), "run", "--server", node.address])
    for n in range(COMMITS):
        if n % 8 == 5:
            for table in tables.values():
                table.theirs(table.java(old=n == 5), "B", range(1000 + n * 3, 1003 + n * 3), "java")
        if n == 20:
            for table in tables.values():
                for bucket in {f["bucket"] for f in table.java().files() if f["partition"] == ["A"]}:
                    table.java().ask("compact", partition={"part": "A"}, bucket=bucket)
        for table in tables.values():
            table.ours("ABC"[n % 3], range(n * 4, n * 4 + 4))
        for name, table in tables.items():
            until(30, f"round {n} of {name}", lambda table=table: len(table.java().rows(["id"])) == len(table.rows))
        check(service.poll() is None, f"the service ended: {tail(service.log)}")
    world.stop(service)
    manifests = {}
    for name, table in tables.items():
        table.equal()
        table.totals(A={2}, B={2}, C={2})
        manifests[name] = table.java().ask("manifests")
        check(table.java().snapshot()["id"] >= COMMITS, f"{name}: {table.java().snapshot()['id']} snapshots only")
        check(manifests[name] < COMMITS / 2, f"{name}: {manifests[name]} manifests are named")
        for reader in (table.java(), table.java(old=True), Python(table.folder)):
            wanted = [row[0] for row in table.rows[::5]]
            same(reader.filters("id", [["id", "=", id] for id in wanted]), [[id] for id in wanted], f"{reader.name}, {name}: each key")
    return f"{manifests} manifests"


def literal(value, kind):
    """A value in our text form as SQL, or None where there is no literal of it."""
    name = root(kind)
    if name in ("TINYINT", "SMALLINT", "INT", "BIGINT"):
        return str(value)
    if name == "DECIMAL":
        return f"CAST('{value}' AS {kind})"
    if name == "BOOLEAN":
        return str(value).upper()
    if name in ("STRING", "CHAR"):
        return "'" + value.replace("'", "''") + "'" if value.isprintable() and ";" not in value else None
    if name == "DATE":
        return f"DATE '{value}'"
    if name == "TIMESTAMP" and "ZONE" not in kind:
        return f"TIMESTAMP '{value.replace('T', ' ')}'"
    return None


def sql_filters_hold(flink, table, columns, written):
    """As `filters_hold`, by Flink SQL: all filters in one job."""
    wanted, parts = [], []
    for (column, op, *value), ids in filters(columns, written):
        if op in "<>":  # `<=` and `>=` ask for the smallest and greatest value too
            continue
        text = literal(value[0], dict(columns)[column]) if value else ""
        if text is not None:
            condition = {"null": "IS NULL", "not null": "IS NOT NULL"}.get(op, f"{op} {text}")
            parts.append(f"SELECT {len(wanted)}, `id` FROM {table} WHERE `{column}` {condition}")
            wanted.append((f"{column} {condition}", sorted(ids)))
    got = [[] for _ in wanted]
    for start in range(0, len(parts), 40):
        for n, id in flink("\nUNION ALL ".join(parts[start:start + 40])):
            got[n].append(id)
    wrong = [f"{what}: {len(ids)} rows instead of {len(want)}" for (what, want), ids in zip(wanted, got) if sorted(ids) != want]
    check(not wrong, f"Flink SQL, {table}: {len(wrong)} of {len(wanted)} filters are wrong:\n    " + "\n    ".join(wrong[:20]))
    return len(wanted)


@case("read-flink-sql", "Flink SQL 1.20.3 with paimon-flink 1.3.1: every scalar type and filters, the quickstart's statements as printed, the statements of our hints, which bring held tables on")
def flink_sql(world):
    flink = sql(world)
    node = world.node()
    client = world.client(node.address)
    flink(f"CREATE CATALOG read_sql WITH ('type' = 'paimon', 'warehouse' = 'file://{node.warehouse}');\nUSE CATALOG read_sql;")
    for table, keys in (("t.keyed", ["id"]), ("t.unaware", [])):
        client.ask("create", table, columns=SCALARS, buckets=3, properties=LAKE, **{"bucket-keys": keys})
        client.ask("append", table, rows=rows(range(100), SCALARS), **{"flush-every": 40})
    held = Tiered(world, node, client, "t.held")
    spoilt = Tiered(world, node, client, "t.spoilt")
    for table in (held, spoilt):
        table.ours("A", range(20))
    world.rounds_until(node.address, ["t.keyed", "t.unaware", "t.held", "t.spoilt"])
    written = rows(range(100), SCALARS)
    few = [i for i, (name, _) in enumerate(SCALARS) if name in "id i32 dec5_2 string date ts3".split()]  # planning takes its time
    for table in ("t.keyed", "t.unaware"):
        same(multiset(flink(f"SELECT * FROM {table}")), multiset(written), f"Flink SQL, {table}")
    asked = sql_filters_hold(flink, "t.keyed", lake_columns([SCALARS[i] for i in few]), [[row[i] for i in few] for row in written])

    # The statements of our hints.
    flink("ALTER TABLE t.held RENAME `note` TO `remark`;\nALTER TABLE t.held MODIFY `id` DECIMAL(20, 0);")
    client.ask("bucket-count", "t.spoilt", count=4)
    spoilt.theirs(Python(spoilt.folder), "A", range(100, 110), "mixed")
    spoilt.totals(A={2, 4})
    for table in (held, spoilt):
        table.ours("A", range(200, 210))
        table.ours("B", range(200, 210))
    ddl = r"with the lake's catalog: (ALTER TABLE.*?;)[\" ](?!ALTER TABLE)"
    for table, statement in ((held, ddl), (held, ddl), (spoilt, r"(CALL sys.rescale\(.*?\))")):  # a renamed column is told of once the types fit
        said = table.held("with the lake's catalog")
        found = re.search(statement, said)
        check(found, f"no statement in: {said}")
        flink(found[1].replace("; ", ";\n"))
    for table in (held, spoilt):  # one may have gone on while the other was held
        until(60, f"rows of {table.name}", lambda table=table: world.round(node.address) and len(table.java().rows(["id"])) == len(table.rows))
        table.equal()
    spoilt.totals(A={2}, B={4})

    # The quickstart, as it prints it.
    done = subprocess.run([world.lakeward(), "quickstart", "--dir", world.here / "quickstart", "--json"], stdout=subprocess.PIPE, check=True, timeout=120)
    report = json.loads(done.stdout)
    got = flink(report["read_with"]["flink_sql"])
    same(sorted(row[:2] for row in got), sorted([p["partition"], p["rows"]] for p in report["partitions"]), "rows by day of the quickstart's statement")
    return f"{len(SCALARS)} columns, {asked} filters"


@case("read-cluster", "the layout of 0.9.1 (three system columns), every scalar type, partitioned or not, rounds and Java appends in turns: each reader gives every row and the right rows for filters; the 0.9.1 Flink connector's union read of lake and log gives every row of Fluss once")
def cluster(world):
    cluster = world.cluster()
    client = world.client(cluster.address, old=True)
    flink = sql(world)
    columns = SCALARS + [("part", "STRING")]

    def batch(*ids):
        return [row + [f"p{row[0] % 3}"] for row in rows(range(*ids), SCALARS)]
    tables = ["u.free", "u.keyed"]
    for table in tables:
        client.ask("create", table, columns=columns, buckets=2, properties=CLUSTER_LAKE, **({"bucket-keys": ["id"], "partitions": ["part"]} if "keyed" in table else {}))
        client.ask("append", table, rows=batch(0, 60), **{"flush-every": 25})
    world.rounds_until(cluster.address, tables)
    for n, table in enumerate(tables):
        Java(world, cluster.table(table), old=n == 1).append([row + [None] * 3 for row in batch(1000, 1020)])
        client.ask("append", table, rows=batch(60, 110), **{"flush-every": 25})
    world.rounds_until(cluster.address, tables)
    for table in tables:
        snapshot_is_ours(world, cluster, client, table)
        lake = with_system_columns(client, table, batch(0, 110)) + [row + [None] * 3 for row in batch(1000, 1020)]
        rows_equal(world, cluster.table(table), lake)
        if table == "u.keyed":
            few = [i for i, (name, _) in enumerate(columns) if name in FEW]
            asked = filters_hold(world, cluster.table(table), lake_columns([columns[i] for i in few]), [[row[i] for i in few] for row in lake], UNABLE)
        same(totals(world, cluster.table(table)), {"": {-1}} if table == "u.free" else {f"p{i}": {2} for i in range(3)}, f"{table}: totals")

    # Lake and log in one read, by the connector of the same version.
    flink(f"CREATE CATALOG read_cluster WITH ('type' = 'fluss', 'bootstrap.servers' = '{cluster.address}');\nUSE CATALOG read_cluster;")
    seen = [i for i, (name, kind) in enumerate(columns) if not re.search(r"TIMESTAMP(_LTZ)?\([4-9]\)|TIME\([1-9]\)", kind)]  # its own limits (README.md)
    select = "SELECT " + ", ".join(f"`{columns[i][0]}`" for i in seen) + " FROM "
    for table in tables:
        client.ask("append", table, rows=batch(110, 130))  # these are in the log alone
        lake = [[row[i] for i in seen] for row in batch(0, 110) + batch(1000, 1020)]
        same(multiset(flink(select + f"u.`{table[2:]}$lake`")), multiset(lake), f"{table}: the connector's read of the lake alone")
        union = lake + [[row[i] for i in seen] for row in batch(110, 130)]
        same(multiset(flink(select + f"u.`{table[2:]}`")), multiset(union), f"{table}: union read")
        client.ask("drop", table)
    return f"{len(columns)} columns, {asked} filters, {len(union)} rows in each union"
