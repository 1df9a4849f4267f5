"""A bucket count per partition: what ALTER changes and what it must leave alone."""
import os

from case_readback import LAKE
from checks import rows_equal, totals
from readers import Java, Python
from world import case, check, same


@case("rescale", "2, then ALTER to 4 and 3: partitions keep their totals 2/4/3, old files stay as they are, every key is found in every partition")
def rescale(world):
    node = world.node()
    client = world.client(node.address)
    columns = [("id", "BIGINT"), ("part", "STRING"), ("note", "STRING")]
    written = []

    def append(part, ids):
        fresh = [[id, part, f"{part}{id}"] for id in ids]
        client.ask("append", "r.t", rows=fresh)
        written.extend(fresh)

    client.ask("create", "r.t", columns=columns, partitions=["part"], buckets=2, properties=LAKE, **{"bucket-keys": ["id"]})
    append("A", range(0, 60))
    world.rounds_until(node.address, ["r.t"])
    folder = node.table("r.t")
    old = {f["path"]: os.stat(f["path"]).st_mtime_ns for f in Java(world, folder).files()}
    same(totals(world, folder), {"A": {2}}, "totals after the first round")
    client.ask("bucket-count", "r.t", count=4)
    append("B", range(0, 60))
    client.ask("bucket-count", "r.t", count=3)
    append("C", range(0, 60))
    append("A", range(60, 90))
    append("B", range(60, 90))
    same({p["name"]: p["buckets"] for p in client.ask("partitions", "r.t")}, {"A": 2, "B": 4, "C": 3}, "bucket counts in Fluss")
    world.rounds_until(node.address, ["r.t"])
    same(totals(world, folder), {"A": {2}, "B": {4}, "C": {3}}, "totals")
    java = Java(world, folder)
    same(java.schema()["options"].get("bucket"), "3", "table option bucket")
    now = {f["path"] for f in java.files()}
    for path, changed in old.items():
        check(path in now and os.stat(path).st_mtime_ns == changed, f"{path} of the first round was touched")
    rows_equal(world, folder, written)
    lookups = 0
    for reader in (java, Python(folder)):
        for id in range(0, 95, 3):
            for part in "ABC":
                got = reader.rows(where=[["part", "=", part], ["id", "=", id]])
                same(got, [row for row in written if row[0] == id and row[1] == part], f"{reader.name}: key {id} in {part}")
                lookups += 1
            same(len(reader.rows(where=[["id", "=", id]])), sum(row[0] == id for row in written), f"{reader.name}: key {id} in all partitions")
    return f"{len(written)} rows, {lookups} look-ups"
