"""What a round writes is what the Java client wrote into the node, for every type and partition value, and for every filter."""
import collections
import re

from checks import filters_hold, nested_equal, readers, rows_equal
from rows import NESTED, SCALARS, columns_text, nested_rows, rows
from world import case, same

LAKE = {"table.datalake.enabled": "true", "table.datalake.freshness": "200ms"}

# What readers themselves cannot do, on any table: (reader, column, type, operator).
UNABLE = [("pypaimon", "*", f"TIMESTAMP({p})*", op) for p in (7, 8, 9) for op in ("=", "<", "<=", ">", ">=")]  # literals are microseconds


def lake_columns(columns):
    """Fluss column types as the lake has them."""
    def kind(k):
        if k.startswith("TIMESTAMP_LTZ"):
            return k.replace("_LTZ", "") + " WITH LOCAL TIME ZONE"
        return "TIME(0)" if k.startswith("TIME(") else k
    return [(name, kind(k)) for name, k in columns]


@case("readback-types", "every scalar type with NULLs and extremes: both readers give the rows written, and the right rows for filters on every column")
def types(world):
    node = world.node()
    client = world.client(node.address)
    client.ask("create", "t.keyed", columns=SCALARS, buckets=3, properties=LAKE, **{"bucket-keys": ["id"]})
    client.ask("create", "t.unaware", columns=SCALARS, buckets=2, properties=LAKE)
    written = []
    for batch in (range(0, 70), range(70, 140)):
        fresh = rows(batch, SCALARS)
        written += fresh
        for table in ("t.keyed", "t.unaware"):
            client.ask("append", table, rows=fresh, **{"flush-every": 25})
        world.rounds_until(node.address, ["t.keyed", "t.unaware"])
    asked = 0
    for table in ("t.keyed", "t.unaware"):
        rows_equal(world, node.table(table), written)
    for table in ("t.keyed", "t.unaware"):
        asked += filters_hold(world, node.table(table), lake_columns(SCALARS), written, UNABLE)
    return f"{len(SCALARS)} columns, {asked} filters"


@case("readback-nested", "lists of and maps by every scalar type, rows, and these in each other, with NULLs and empties at each level: both readers give the rows that the Java client wrote")
def nested(world):
    node = world.node()
    client = world.client(node.address)
    kinds = [kind for _, kind in NESTED]
    client.ask("create", "t.keyed", columns=columns_text(NESTED), buckets=3, properties=LAKE, **{"bucket-keys": ["id"]})
    client.ask("create", "t.unaware", columns=columns_text(NESTED), buckets=2, properties=LAKE)
    written = []
    for batch in (range(0, 60), range(60, 200)):
        fresh = nested_rows(batch, NESTED)
        written += fresh
        for table in ("t.keyed", "t.unaware"):
            client.ask("append", table, rows=fresh, **{"flush-every": 25})
        world.rounds_until(node.address, ["t.keyed", "t.unaware"])
    # The client can't read early timestamps with microseconds, and cuts CHAR inside lists (README.md).
    scannable = [i for i, (_, kind) in enumerate(columns_text(NESTED)) if not re.search(r"TIMESTAMP(_LTZ)?\([4-6]\)|CHAR", kind)]
    scanned = [row[4] for row in client.ask("scan", "t.unaware", columns=[NESTED[i][0] for i in scannable])]
    nested_equal(scanned, [[row[i] for i in scannable] for row in written], [kinds[i] for i in scannable], "what the Java client reads from the node")
    for table in ("t.keyed", "t.unaware"):
        rows_equal(world, node.table(table), written, kinds=kinds)
    asked = [(i, name) for i, (name, kind) in enumerate(NESTED) if name in ("l_string", "m_i64", "every") or any(isinstance(k, tuple) for k in kind[1:])]
    for table in ("t.keyed", "t.unaware"):
        for reader in readers(world, node.table(table)):
            for i, column in asked:
                for op, ids in (("null", [row[0] for row in written if row[i] is None]), ("not null", [row[0] for row in written if row[i] is not None])):
                    got = [row[0] for row in reader.rows(["id", column], [[column, op]])]
                    same(collections.Counter(got), collections.Counter(ids), f"{reader.name}, {table}: {column} {op}")
    return f"{len(NESTED)} columns, {len(written)} rows in 2 tables"


PARTITIONS = {
    "STRING": ["plain", "Case", "case", "_", "-", "-_-", "007", "a" * 120, "NULL", "true"],
    "CHAR(5)": ["ab", "abcde"],
    "BOOLEAN": [True, False],
    "TINYINT": [-128, 0, 127],
    "SMALLINT": [-32768, 7],
    "INT": [-2147483648, -5, 0, 2147483647],
    "BIGINT": [-9223372036854775808, 9223372036854775807],
    "DATE": ["0001-01-01", "1969-12-31", "2024-02-29", "9999-12-31"],
    "TIME(3)": ["00:00:00.000", "23:59:59.999", "12:34:56.700"],
    "FLOAT": ["3fc00000", "bfc00000", "501502f9"],
    "DOUBLE": ["3ff8000000000000", "bff8000000000000", "4202a05f20000000", "7fefffffffffffff"],
    "TIMESTAMP(3)": ["2024-01-01T12:34:56.700", "2024-01-01T00:00:00.000"],
    "TIMESTAMP(6)": ["2024-01-01T12:34:56.789012", "1970-01-01T00:00:00.000000"],
    "TIMESTAMP_LTZ(3)": ["2024-01-01T12:34:56.120Z"],
    "BINARY(3)": ["00ff7f"],
    "BYTES": ["00", "deadbeef"],
}


def partitioned():
    """Tables with a partition column of each type, keyed and not, and one with several: name → (columns, rows, partition columns, keyed)."""
    tables = {}
    for i, (kind, values) in enumerate(PARTITIONS.items()):
        columns = [("id", "BIGINT"), ("p", kind), ("v", "STRING")]
        written = [[id, values[id % len(values)], f"v{id}"] for id in range(4 * len(values))]
        for keyed in (True, False):
            tables[f"p.{'keyed' if keyed else 'unaware'}_{i}"] = (columns, written, ["p"], keyed)
    several = [("id", "BIGINT"), ("region", "STRING"), ("day", "DATE"), ("n", "INT")]
    tables["p.several"] = (several, [[id, f"r{id % 2}", f"2024-02-{28 + id % 2}", id % 3] for id in range(24)], ["region", "day", "n"], True)
    return tables


@case("readback-partitions", "partition values of every kind that Fluss allows, with and without bucket key: rows and filters on them read right")
def partitions(world):
    node = world.node()
    client = world.client(node.address)
    tables = partitioned()
    for table, (columns, written, by, keyed) in tables.items():
        client.ask("create", table, columns=columns, partitions=by, buckets=2, properties=LAKE, **{"bucket-keys": ["id"] if keyed else []})
        client.ask("append", table, rows=written)
    world.rounds_until(node.address, tables)
    for table, (columns, written, by, _) in tables.items():
        rows_equal(world, node.table(table), written)
        filters_hold(world, node.table(table), lake_columns(columns), written, UNABLE)
    return f"{len(tables)} tables"
