"""The harness itself, and the golden tables: what Java wrote reads as recorded."""
import json
import struct

from checks import multiset
from readers import Java, Python, root
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
