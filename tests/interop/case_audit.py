"""`verify` and `scan` on tables that Java, Python and the real Flink job write too: what is sound, and what is not."""
import base64
import json
import shutil
import struct
import subprocess
import threading

import fastavro

from beside import COLUMNS, Shared
from case_writers import Tiered, compact, expire, rows
from flink import Job
from readers import Python
from world import case, check, same

VERIFY, SCAN = "verify", "scan"
LOG, KEYED = "a.log", "a.part_keyed"


def ask(world, *args, codes=(0,)):
    """What a command prints, by its exit code."""
    argv = list(map(str, [world.lakeward(), *args]))
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    check(done.returncode in codes, f"`{' '.join(argv[1:])}` ended with {done.returncode} instead of {codes}: {done.stderr.decode()[-800:]}")
    return done.stdout.decode()


def faults(world, server, table, *flags):
    """The faults that `verify` finds; its exit code says the same."""
    report = json.loads(ask(world, VERIFY, table, "--server", server, "--json", *flags, codes=(0, 5)))
    ask(world, VERIFY, table, "--server", server, *flags, codes=(5 if report["faults"] else 0,))
    check(all(fault["hint"] for fault in report["faults"]), f"a fault without a way out: {report['faults']}")
    return report["faults"]


def sound(world, server, table):
    same(faults(world, server, table, "--all"), [], f"{table}: faults")


def scanned(world, server, table, *flags):
    return [json.loads(line) for line in ask(world, SCAN, table, "--server", server, *flags).splitlines()]


@case("verify-writers", "`verify` on our tables beside Java's and Python's writers: appends, streams, compactions, overwrites and expiry of theirs are no faults, and `scan` has every row once; "
                        "totals that they mix, a file that is gone, another bucket's file, statistics of other values and a roll-back are found and named, and heal")
def verify_writers(world):
    node = world.node()
    client = world.client(node.address)
    t, free = Tiered(world, node, client, "v.keyed"), Tiered(world, node, client, "v.free", keyed=False)
    for table in (t, free):
        for ids in (range(0, 20), range(20, 40), range(40, 60)):
            for part in "AB":
                table.ours(part, ids)
            world.rounds_until(node.address, [table.name])
        table.theirs(table.java(), "A", range(100, 110), "java")
        table.theirs(Python(table.folder), "B", range(200, 210), "python")
        compact(table, old=False)
        table.theirs(table.java(), "B", range(300, 310), "over", overwrite={"part": "B"})
        table.ours("B", range(400, 410))
        world.rounds_until(node.address, [table.name])
        expire(table)
        sound(world, node.address, table.name)
        found = [[row["id"], row["part"], row["note"]] for row in scanned(world, node.address, table.name)]
        same(sorted(found), sorted(table.rows), f"{table.name}: rows that `scan` prints")
    spoilt(world, node, client, t)
    return f"{len(t.rows) + len(free.rows)} rows in 2 tables"


def spoilt(world, node, client, t):
    """Each fault by itself; then as it was."""
    def found(*flags):
        return faults(world, node.address, t.name, "--all", *flags)

    def checks():
        return sorted({fault["check"] for fault in found()})
    # The count changes; writers of Paimon go by the new one, also in partitions of the old.
    client.ask("bucket-count", t.name, count=4)
    t.ours("C", range(40))
    t.goes_on()
    bucket = {row[4][0]: row[1] for row in client.ask("scan", t.name, columns=["id", "part"]) if row[4][1] == "C"}
    low, high = ([id for id, b in bucket.items() if b in half] for half in ((0, 1), (2, 3)))
    sound(world, node.address, t.name)
    good = t.java().snapshot()["id"]
    for writer, ids, loud in ((t.java(), high, True), (Python(t.folder), low, False)):
        writer.append(rows("A", ids[:4], "mixed"))
        mixed = [fault for fault in found() if fault["check"] == "totals"]
        same([(fault["partition"], "`2`, `4`" in fault["message"]) for fault in mixed], [("part=A", True)], "totals that were mixed")
        check("rewrite-partition" in mixed[0]["hint"], f"no repair in {mixed[0]['hint']}")
        if loud:  # buckets that the partition does not have
            check("bucket" in checks(), f"checks: {checks()}")
            same(ask(world, SCAN, t.name, "--server", node.address, codes=(5,)), "", "what `scan` prints of wrong buckets")
        same(found("--partition", "part=C"), [], "faults of another partition")
        t.java().ask("roll-back", snapshot=good)
    sound(world, node.address, t.name)

    # A file that is gone.
    file = next(file for file in t.java().files() if file["partition"] == ["C"])
    shutil.move(file["path"], world.here / "moved")
    same([(fault["check"], file["name"] in fault["file"]) for fault in found()], [("file", True)], "file that is gone")
    shutil.move(world.here / "moved", file["path"])

    # Manifests that Python writes: a file in another bucket; statistics of other values.
    t.ours("D", range(1))
    t.goes_on()
    newest = t.java().snapshot()["id"]
    [manifest] = deltas(t.folder, newest)
    whole, [file] = manifest.read_bytes(), [file for file in t.java().files() if file["partition"] == ["D"]]

    def stray(entry):
        entry["_BUCKET"] = (entry["_BUCKET"] + 1) % 4
    rewrite(manifest, stray)
    other = t.folder / f"part=D/bucket-{(file['bucket'] + 1) % 4}"
    other.mkdir(exist_ok=True)
    shutil.copy(file["path"], other / file["name"])
    check("hash" in checks(), f"checks: {checks()}")
    (other / file["name"]).unlink()
    manifest.write_bytes(whole)

    def lies(entry):
        entry["_FILE"]["_VALUE_STATS"]["_NULL_COUNTS"][2] = 1
    rewrite(manifest, lies)
    same([fault["check"] for fault in found()], ["statistics"], "checks")
    manifest.write_bytes(whole)
    sound(world, node.address, t.name)

    # Behind what Fluss knows.
    t.java().ask("roll-back", snapshot=newest - 1)
    check("ledger" in checks(), f"checks: {checks()}")


def deltas(folder, id):
    """The manifests of a snapshot's own."""
    snapshot = json.loads((folder / f"snapshot/snapshot-{id}").read_text())
    with open(folder / "manifest" / snapshot["deltaManifestList"], "rb") as f:
        return [folder / "manifest" / entry["_FILE_NAME"] for entry in fastavro.reader(f)]


def rewrite(manifest, change):
    with open(manifest, "rb") as f:
        reader = fastavro.reader(f)
        schema, entries = reader.writer_schema, list(reader)
    for entry in entries:
        change(entry)
    with open(manifest, "wb") as f:
        fastavro.writer(f, schema, entries, codec="null")


@case("scan-beside", "`scan` beside the real Flink job's rounds and ours, on log tables of a real 0.9.1 cluster, with and without buckets: before, while and after each round every row once, "
                     "with its values; `verify --all` finds nothing, whoever made the newest snapshot")
def scan_beside(world):
    shared = Shared(world)
    job = Job(world, shared.cluster, "JOB")
    tables = [LOG, KEYED]
    for table in tables:
        shared.create(table, partitions=["part"] if "part" in table else [], bucket_keys=["id"] if "keyed" in table else [])
    scans = 0
    for turn, (one, other) in enumerate(((LOG, KEYED), (KEYED, LOG))):
        shared.write(tables)
        scans += every_row(shared, tables)
        scans += during(shared, tables, lambda: shared.ours([one]))
        scans += during(shared, tables, lambda: shared.theirs(job, [other]))
        shared.agree([one], "ours")
        shared.agree([other], "theirs")
        for table in tables:
            sound(world, shared.cluster.address, table)
    return f"{scans} scans of up to {sum(map(len, shared.written.values()))} rows"


def every_row(shared, tables):
    for table in tables:
        found = [[plain(row[name], kind) for name, kind in COLUMNS] for row in scanned(shared.world, shared.cluster.address, table)]
        same(sorted(map(str, found)), sorted(map(str, shared.written[table])), f"{table}: rows that `scan` prints")
        count = ask(shared.world, SCAN, table, "--server", shared.cluster.address, "--count")
        same(int(count), len(shared.written[table]), f"{table}: `scan --count`")
    return len(tables)


def during(shared, tables, act):
    """Scans as long as it takes, and once afterwards."""
    failed = []

    def run():
        try:
            act()
        except BaseException as error:
            failed.append(error)
    thread = threading.Thread(target=run)
    thread.start()
    scans = 0
    while thread.is_alive():
        scans += every_row(shared, tables)
    thread.join()
    if failed:
        raise failed[0]
    return scans + every_row(shared, tables)


def plain(value, kind):
    """A value that `scan` printed in the text form of README.md."""
    if value is None:
        return None
    if kind == "DOUBLE":
        return struct.pack(">d", float(value)).hex()
    if kind in ("BYTES",) or kind.startswith("BINARY"):
        return base64.b64decode(value).hex()
    return value
