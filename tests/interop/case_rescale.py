"""A bucket count per partition: what ALTER changes and what it must leave alone."""
import json
import os
import signal
import subprocess
import time

from case_readback import LAKE
from checks import rows_equal, totals
from readers import Java, Python
from world import Refused, case, check, same, table_name, tail, until

CHUNK = 8 << 20  # of text that `load` reads before it writes
SECONDS = 60


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


def rescale_to(world, server, table, count):
    return world.says("rescale", table, count, "--server", server, "--confirm")[0]


@case("rescale-load", "60 partitions, ALTER every second for a minute while one `load` writes and the daemon tiers: every row once, each partition's total is its count in Fluss")
def rescale_load(world):
    node = world.node()
    client = world.client(node.address)
    client.ask("create", "r.many", columns=[("id", "BIGINT"), ("part", "STRING"), ("n", "INT")], partitions=["part"], buckets=2,
               properties=LAKE, **{"bucket-keys": ["id"]})
    daemon = world.start("daemon", [world.lakeward(), "run", "--server", node.address])
    load = world.start("load", [world.lakeward(), "load", "--server", node.address, "r.many", "-", "--json"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    written, epoch = [], 0
    begin = time.monotonic()
    for second in range(SECONDS):
        # A new partition, and older ones of other counts; a blank line fills the chunk up, so that `load` goes on at once.
        fresh = [[id, f"p{part:02}", second] for part in sorted({second, second // 2, second // 3, 0}) for id in range(30)]
        text = "".join(json.dumps(dict(zip(("id", "part", "n"), row))) + "\n" for row in fresh).encode()
        load.stdin.write(text + b" " * (CHUNK - len(text) - 1) + b"\n")
        load.stdin.flush()
        written += fresh
        changed = rescale_to(world, node.address, "r.many", (3, 1, 4, 2, 5, 7)[second % 6])
        epoch += 1
        same((changed["outcome"], changed["epoch"]["to"]), ("changed", epoch), "the change, and its epoch")
        time.sleep(max(0, begin + second + 1 - time.monotonic()))
    took = time.monotonic() - begin
    load.stdin.close()
    report = json.loads(load.stdout.read())
    check(load.wait(60) == 0, f"load ended with {load.returncode}: {tail(load.log)}")
    same((report["complete"], report["rows"], report["partitions_made"]), (True, len(written), SECONDS), "what load says")
    folder = node.table("r.many")
    until(60, "last row in the lake", lambda: sum(p["rows"] for p in world.says("inspect", folder)[0]["partitions"]) >= len(written), pause=0.5)
    daemon.send_signal(signal.SIGTERM)
    same(daemon.wait(60), 143, "how the daemon ended")
    counts = {p["name"]: {p["buckets"]} for p in client.ask("partitions", "r.many")}
    same(len(counts), SECONDS, "partitions")
    check(len(set().union(*counts.values())) > 3, f"bucket counts of the partitions: {counts}")
    same(totals(world, folder), counts, "totals in the lake, bucket counts in Fluss")
    same(Java(world, folder).schema()["options"]["bucket"], "7", "option bucket of the lake table")
    rows_equal(world, folder, written)
    java = Java(world, folder)
    for id, part in ((0, "p00"), (7, "p05"), (29, f"p{SECONDS - 1}")):
        same(sorted(java.rows(where=[["part", "=", part], ["id", "=", id]])), sorted(row for row in written if row[:2] == [id, part]), f"key {id} of {part}")
    return f"{len(written)} rows, {SECONDS} changes in {took:.0f} s, {Java(world, folder).snapshot()['id']} snapshots"


@case("rescale-again", "a partition dropped and made again with another count: the table is held, others go on; the way out that is named (INSERT OVERWRITE by Java Paimon) heals it")
def rescale_again(world):
    node = world.node()
    client = world.client(node.address)
    for table in ("r.again", "r.other"):
        client.ask("create", table, columns=[("id", "BIGINT"), ("part", "STRING")], partitions=["part"], buckets=2, properties=LAKE, **{"bucket-keys": ["id"]})
    old = [[id, "A"] for id in range(40)]
    client.ask("append", "r.again", rows=old)
    world.rounds_until(node.address, ["r.again"])
    folder = node.table("r.again")
    rescale_to(world, node.address, "r.again", 3)
    java = Java(world, folder)
    try:
        world.paimon().ask("append", table=str(folder), rows=[[1, "A"]])
        check(False, "Java appended to a partition of 2 buckets by 3")
    except Refused as refused:
        check("overwrite" in refused.message.lower(), f"what Java says: {refused.message}")
    client.ask("drop-partition", "r.again", spec={"part": "A"})
    new = [[id, "A"] for id in range(40, 70)]
    # The Java client would write to the partition that it knew, for ever.
    file = world.here / "new.jsonl"
    file.write_text("".join(json.dumps({"id": id, "part": part}) + "\n" for id, part in new))
    same(world.says("load", "--server", node.address, "r.again", file)[0]["rows"], len(new), "rows loaded into the new partition")
    client.ask("append", "r.other", rows=old)
    rounds = []

    def held():
        more, code = world.round(node.address, codes=(0, 5))
        rounds.extend(more)
        return code == 5 and any(table_name(r) == "r.other" for r in rounds)
    until(30, "round that holds one table and tiers the other", held)
    rows_equal(world, node.table("r.other"), old)
    same(totals(world, folder), {"A": {2}}, "totals while it is held")
    world.paimon().ask("append", table=str(folder), overwrite={"part": "A"}, rows=java.rows())
    same(totals(world, folder), {"A": {3}}, "totals after INSERT OVERWRITE")
    world.rounds_until(node.address, ["r.again"])
    rows_equal(world, folder, old + new)
    same(totals(world, folder), {"A": {3}}, "totals in the end")
    return f"{len(old + new)} rows"


@case("rescale-cluster", "`rescale` refuses a real 0.9.1 cluster, which would say yes and change nothing; its own check agrees with the Java client's")
def rescale_cluster(world):
    cluster = world.cluster()
    client = world.client(cluster.address, old=True)
    client.ask("create", "r.old", columns=[("id", "BIGINT"), ("part", "STRING")], partitions=["part"], buckets=2, properties=LAKE, **{"bucket-keys": ["id"]})
    client.ask("append", "r.old", rows=[[1, "A"]])
    before = client.ask("info", "r.old")
    argv = list(map(str, [world.lakeward(), "rescale", "r.old", 4, "--server", cluster.address, "--confirm", "--json"]))
    done = subprocess.run(argv, capture_output=True, timeout=60, text=True)
    same(done.returncode, 4, f"exit code of `rescale`: {done.stderr}")
    report = json.loads(done.stdout)
    same((report["outcome"], report["partitions"]), ("refused", [{"partition": "A", "buckets": 2, "origin": "table_at_epoch_zero"}]), "what it shows")
    check("older than 1.0" in done.stderr and "hint:" in done.stderr, f"what it says: {done.stderr}")
    world.client(cluster.address).refuses(None, "bucket-count", "r.old", count=4)
    same(client.ask("info", "r.old"), before, "the table")
    client.ask("drop", "r.old")
