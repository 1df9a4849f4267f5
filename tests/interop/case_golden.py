"""The harness itself, and the golden tables: what Java wrote reads as recorded."""
import json
import struct

from checks import filters_hold, multiset, rows_equal
from case_readback import UNABLE, lake_columns, partitioned
from readers import Java, Python, root
from rows import SCALARS, rows
from world import REPOSITORY, case, same

UNREADABLE = {"multiset": "pypaimon knows no MULTISET"}


def recorded(folder):
    """Rows of NAME.rows.jsonl in our text form: there FLOAT and DOUBLE are decimal text."""
    def value(v, kind):
        if v is None:
            return None
        if isinstance(kind, dict):
            name = root(kind["type"])
            if name == "ROW":
                return {f["name"]: value(v[f["name"]], f["type"]) for f in kind["fields"]}
            return [value(x, kind["element"]) for x in v] if name == "ARRAY" else [[k, value(x, kind.get("value", "INT"))] for k, x in v]
        if root(kind) in ("FLOAT", "DOUBLE"):
            return struct.pack(">f" if root(kind) == "FLOAT" else ">d", float(v)).hex()
        return v
    newest = max((folder / "schema").iterdir(), key=lambda file: int(file.name.split("-")[1]))
    columns = [(field["name"], field["type"]) for field in json.loads(newest.read_text())["fields"]]
    lines = folder.with_name(folder.name + ".rows.jsonl").read_text().split("\n")[:-1]
    return [[value(json.loads(line)[name], kind) for name, kind in columns] for line in lines]


@case("golden", "Java Paimon and pypaimon read every golden table of fixtures/ as recorded")
def golden(world):
    count = 0
    for parent in ("paimon", "fluss-lake"):
        for folder in sorted(p for p in (REPOSITORY / "fixtures" / parent).iterdir() if p.is_dir()):
            java = Java(world, folder)
            want = multiset(recorded(folder))
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
