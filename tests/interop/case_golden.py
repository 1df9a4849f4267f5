"""The harness itself, and the golden tables: what Java wrote reads as recorded."""
import json
import struct

from checks import filters_hold, multiset, rows_equal
from case_readback import UNABLE, lake_columns, partitioned
from readers import Java, Python, root
from rows import SCALARS, rows
from world import REPOSITORY, case, same

UNREADABLE = {"multiset": "pypaimon knows no MULTISET"}


def recorded(folder, columns):
    """Rows of NAME.rows.jsonl in our text form: there FLOAT and DOUBLE are decimal text."""
    def value(v, kind):
        if v is not None and kind == "FLOAT":
            return struct.pack(">f", float(v)).hex()
        if v is not None and kind == "DOUBLE":
            return struct.pack(">d", float(v)).hex()
        return v
    lines = folder.with_name(folder.name + ".rows.jsonl").read_text().split("\n")[:-1]
    return [[value(json.loads(line)[name], root(kind)) for name, kind in columns] for line in lines]


@case("golden", "Java Paimon and pypaimon read every golden table of fixtures/ as recorded")
def golden(world):
    count = 0
    for parent in ("paimon", "fluss-lake"):
        for folder in sorted(p for p in (REPOSITORY / "fixtures" / parent).iterdir() if p.is_dir()):
            java = Java(world, folder)
            want = multiset(recorded(folder, java.schema()["columns"]))
            readers = [java] + ([] if folder.name in UNREADABLE else [Python(folder)])
            for reader in readers:
                same(multiset(reader.rows()), want, f"{reader.name}, {folder.name}")
            count += 1
    return f"{count} tables"


@case("control", "what Java Paimon writes, every scalar type, passes the same checks as what we write: what fails here is the reader's")
def control(world):
    java = Java(world, world.here / "control")
    java.ask("create", columns=lake_columns(SCALARS), options={"bucket": "3", "bucket-key": "id", "write-only": "true"})
    written = rows(range(140), SCALARS)
    for half in (written[:70], written[70:]):
        java.ask("append", rows=half)
    rows_equal(world, world.here / "control", written)
    # Java's bounds of a column with NaN are NaN, and nothing lies between them
    unable = UNABLE + [("pypaimon", "nan*", "*", op) for op in "=<>"]
    return f"{filters_hold(world, world.here / 'control', lake_columns(SCALARS), written, unable)} filters"


@case("control-partitions", "the same for partition values of every type")
def control_partitions(world):
    tables = partitioned()
    for table, (columns, written, by, keyed) in tables.items():
        folder = world.here / table.split(".")[1]
        buckets = {"bucket": "2", "bucket-key": "id"} if keyed else {"bucket": "-1"}
        java = Java(world, folder)
        java.ask("create", columns=lake_columns(columns), partitions=by, options={**buckets, "write-only": "true", "partition.legacy-name": "false"})
        java.ask("append", rows=written)
        rows_equal(world, folder, written)
        filters_hold(world, folder, lake_columns(columns), written, UNABLE)
    return f"{len(tables)} tables"
