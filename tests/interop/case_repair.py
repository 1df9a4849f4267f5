"""What held tables need: `lakeward repair` on tables that Paimon's own writers and operators have spoilt, read back by Java Paimon and pypaimon; `lakeward sync` on a real cluster."""
import subprocess

from case_readback import LAKE
from checks import rows_equal, totals
from readers import Java, Python
from world import case, check, same

COLUMNS = [("id", "BIGINT"), ("part", "STRING"), ("note", "STRING")]


def ends(world, server, *args, codes=(0,)):
    """A command of the product as text: how it ended, and all that it said."""
    done = subprocess.run([world.lakeward(), *map(str, args), "--server", server], capture_output=True, timeout=60)
    said = (done.stdout + done.stderr).decode()
    check(done.returncode in codes, f"`{' '.join(map(str, args))}` ended with {done.returncode}: {said[-800:]}")
    return done.returncode, said


def repair(world, server, action, table, *more):
    return world.says("repair", action, table, *more, "--server", server, "--confirm")[0]


@case("repair-rewrite", "an append partition whose totals pypaimon has mixed: held, rewritten by `repair rewrite-partition`, read right by Java Paimon and pypaimon; a round goes on; Java compacts and expires after it")
def rewrite(world):
    node = world.node()
    client = world.client(node.address)
    client.ask("create", "p.t", columns=COLUMNS, partitions=["part"], buckets=2, properties=LAKE, **{"bucket-keys": ["id"]})
    written = [[id, "A", f"A{id}"] for id in range(60)]
    client.ask("append", "p.t", rows=written)
    world.rounds_until(node.address, ["p.t"])
    folder = node.table("p.t")
    world.says("rescale", "p.t", 4, "--server", node.address, "--confirm")
    foreign = [[id, "A", f"pypaimon{id}"] for id in range(1000, 1040)]
    Python(folder).append(foreign)
    written += foreign
    same(totals(world, folder), {"A": {2, 4}}, "totals that pypaimon has mixed")
    fresh = [[id, "A", f"A{id}"] for id in range(60, 80)]
    client.ask("append", "p.t", rows=fresh)
    code, said = ends(world, node.address, "run", "--once", "--wait", "2s", codes=(5,))
    check("lakeward repair rewrite-partition p.t --partition part=A" in said, f"the hold does not name the command: {said}")
    done = repair(world, node.address, "rewrite-partition", "p.t", "--partition", "part=A")
    same((done["outcome"], done["partition"]["after"]["rows"]), ("done", 100), "what the command says")
    same(totals(world, folder), {"A": {2}}, "totals afterwards")
    rows_equal(world, folder, written)
    world.rounds_until(node.address, ["p.t"])
    written += fresh
    rows_equal(world, folder, written)
    java = Java(world, folder)
    for reader in (java, Python(folder)):
        for id in (0, 33, 79, 1000, 1039):
            same(reader.rows(where=[["id", "=", id]]), [row for row in written if row[0] == id], f"{reader.name}: key {id}")
    for bucket in range(2):
        java.ask("compact", partition={"part": "A"}, bucket=bucket, options={"bucket": "2"})
    java.ask("expire")
    same(java.ask("orphans"), 0, "orphans that Java finds")
    rows_equal(world, folder, written)
    return f"{len(written)} rows"


@case("repair-rewrite-keys", "a primary-key partition by 2 buckets that pypaimon wrote to by 4, older and newer versions of a key in different buckets: rewritten, each key once with its newest version, in Java Paimon and pypaimon")
def rewrite_keys(world):
    node = world.node()
    client = world.client(node.address)
    client.ask("create", "p.k", columns=[(n, f"{k} NOT NULL" if n != "note" else k) for n, k in COLUMNS], keys=["id", "part"], partitions=["part"], buckets=2, properties=LAKE, **{"bucket-keys": ["id"]})
    folder = node.table("p.k")
    java = Java(world, folder)
    java.append([[id, "A", f"old{id}"] for id in range(100)])
    java.append([[id, "A", f"mid{id}"] for id in range(0, 100, 5)])
    world.says("rescale", "p.k", 4, "--server", node.address, "--confirm")
    Python(folder).append([[id, "A", f"new{id}"] for id in range(0, 100, 3)])
    same(totals(world, folder), {"A": {2, 4}}, "totals that pypaimon has mixed")
    want = [[id, "A", ("new" if id % 3 == 0 else "mid" if id % 5 == 0 else "old") + str(id)] for id in range(100)]
    check(len(java.rows()) > 100, "the spoilt partition shows no key twice: nothing is proved")
    done = repair(world, node.address, "rewrite-partition", "p.k", "--partition", "part=A")
    same((done["outcome"], done["partition"]["after"]["totals"]), ("done", [4]), "what the command says")
    same(totals(world, folder), {"A": {4}}, "totals afterwards")
    rows_equal(world, folder, want)
    for reader in (java, Python(folder)):
        for id in (0, 5, 7, 15, 99):
            same(reader.rows(where=[["id", "=", id]]), [want[id]], f"{reader.name}: key {id}")
    later = [[id, "A", f"later{id}"] for id in range(50, 120)]
    java.append(later)
    rows_equal(world, folder, want[:50] + later)
    for bucket in range(4):
        java.ask("compact", partition={"part": "A"}, bucket=bucket)
    rows_equal(world, folder, want[:50] + later)
    return f"{len(want)} keys, {done['partition']['before']['rows']} versions before"


@case("repair-word", "Java rolls a lake table back: held, `repair accept-base` takes what is left, and so does `reset-offsets`; rounds go on, every row once")
def word(world):
    node = world.node()
    client = world.client(node.address)
    for table, command in (("p.a", ["accept-base"]), ("p.r", ["reset-offsets", "--snapshot", 1])):
        client.ask("create", table, columns=COLUMNS, partitions=["part"], buckets=2, properties=LAKE, **{"bucket-keys": ["id"]})
        written = []
        for first in range(0, 90, 30):
            fresh = [[id, f"P{id % 2}", f"n{id}"] for id in range(first, first + 30)]
            client.ask("append", table, rows=fresh)
            written += fresh
            world.rounds_until(node.address, [table])
        folder = node.table(table)
        Java(world, folder).ask("roll-back", snapshot=1)
        rows_equal(world, folder, written[:30])
        said = ends(world, node.address, "plan", table, codes=(5,))[1]
        check(f"lakeward repair accept-base {table}" in said, f"the hold does not name the command: {said}")
        done = repair(world, node.address, command[0], table, *command[1:])
        same((done["outcome"], done["snapshot"]), ("done", 2), "what the command says")
        rows_equal(world, folder, written[:30])
        world.rounds_until(node.address, [table])
        rows_equal(world, folder, written)
        same(client.ask("lake-snapshot", table)["id"], 3, "snapshot that Fluss knows")
    return "2 tables"


@case("sync-cluster", "tables that a real 0.9.1 coordinator made are in step for `sync --check`; what Java changes by hand is drift, `--apply` mends it, and the job's coordinator alters them afterwards")
def sync_cluster(world):
    cluster = world.cluster()
    client = world.client(cluster.address, old=True)
    table = "sync_real.t"
    client.ask("create", table, columns=COLUMNS, partitions=["part"], buckets=2, properties=LAKE, **{"bucket-keys": ["id"]})
    plain = "sync_real.plain"
    client.ask("create", plain, columns=COLUMNS, buckets=2, properties=LAKE)
    for name in (table, plain):
        report = world.says("sync", name, "--check", "--server", cluster.address)[0]
        same((report["outcome"], report["differences"]), ("in_step", []), f"{name} as the coordinator made it")
    java = Java(world, cluster.table(table))
    java.ask("set", key="bucket", value="5")
    code, said = ends(world, cluster.address, "sync", table, "--check", codes=(6,))
    check("option bucket" in said, f"the drift is not named: {said}")
    report = world.says("sync", table, "--apply", "--server", cluster.address)[0]
    same((report["outcome"], [found["name"] for found in report["applied"]]), ("in_step", ["bucket"]), "what was mended")
    same(java.schema()["options"]["bucket"], "2", "option bucket, read by Java")
    return "2 tables"
