"""A primary-key table under load: many upserts and deletes, many rounds, a rescale and kills on the way."""
import json
import os
import random
import signal

from case_rescale import rescale_to
from checks import multiset, totals
from readers import Java, Python
from world import case, check, same, tail, until

# The whole proof: LAKEWARD_INTEROP_CHANGES=1000000 LAKEWARD_INTEROP_CASE_SECONDS=3600.
CHANGES = int(os.environ.get("LAKEWARD_INTEROP_CHANGES", 120_000))
KEYS, WAVES, PARTITIONS = CHANGES // 10, 20, 8
COLUMNS = [("id", "BIGINT"), ("part", "STRING"), ("n", "BIGINT"), ("words", "STRING")]


@case("pk-many", "upserts and deletes of random keys in random partitions by `load`, a daemon that tiers them, a rescale in the middle; the daemon dies between publish and record, then at any moment, "
                 "and the node dies under a load: Java Paimon, pypaimon and `verify` agree with a model (120,000 changes; all 1,000,000 over 100,000 keys with LAKEWARD_INTEROP_CHANGES)")
def many(world):
    node = world.node("--lease", "20s")
    client = world.client(node.address)
    table, r, model, made = "m.t", random.Random(7), {}, 0
    client.ask("create", table, columns=COLUMNS, keys=["part", "id"], partitions=["part"], buckets=2, properties={"table.datalake.enabled": "true", "table.datalake.freshness": "1s"})
    folder = node.table(table)

    def daemon(fail=None):
        argv = [world.lakeward(), "run", "--server", node.address]
        return world.start("daemon", argv, env={**os.environ, **({"LAKEWARD_FAIL": fail} if fail else {})})

    def loading(wave):
        """A `load` of the next changes; keys of a partition that is not there yet come when it is their turn."""
        nonlocal made
        file = world.here / "wave.jsonl"
        parts = PARTITIONS // 2 if wave < WAVES // 2 else PARTITIONS
        with open(file, "w") as out:
            for _ in range(CHANGES // WAVES):
                made += 1
                key = r.randrange(KEYS // PARTITIONS), f"p{r.randrange(parts)}"
                row = {"id": key[0], "part": key[1], "op": "d"}
                if r.random() < 0.3:
                    model.pop(key, None)
                else:
                    model[key] = [*key, made, f"{r.getrandbits(40):x}" * r.randrange(4)]
                    row = {**dict(zip(("id", "part", "n", "words"), model[key])), "op": "u"}
                out.write(json.dumps(row) + "\n")
        return world.start("load", [world.lakeward(), "load", "--server", node.address, table, file, "--op-column", "op", "--json"])

    def ended(load):
        check(load.wait(240) == 0, f"load ended with {load.returncode}: {tail(load.log)}")

    def snapshots():
        return sorted(int(path.name.rpartition("-")[2]) for path in folder.glob("snapshot/snapshot-*"))

    def verified():
        """The lake and the rest of the log make what the node holds under each key; else it ends with 5."""
        return world.says("verify", table, "--server", node.address, seconds=600)[0]

    running = daemon("commit.after_publish=kill@3")
    for wave in range(WAVES):
        if wave == WAVES // 2:
            rescale_to(world, node.address, table, 3)
        count, load = len(snapshots()), loading(wave)
        if wave == 6:
            before = sum(o[3] for o in client.ask("offsets", table))
            until(60, "rows of a load", lambda: load.poll() is not None or sum(o[3] for o in client.ask("offsets", table)) > before, 0.02)
            node.process.kill()
            node.process.wait()
            world.serve(node)
        ended(load)
        if running.poll() is not None:
            running = daemon()
        until(90, "round", lambda: len(snapshots()) > count, 0.02)
        if wave == WAVES // 2:
            verified()  # while rounds go on
        if wave == 12:
            running.kill()
            running.wait()
    until(120, "last round", lambda: tiered(client, table), 0.5)
    running.send_signal(signal.SIGTERM)
    same(running.wait(60), 143, "how the daemon ended")
    same(verified()["faults"], [], "faults that `verify` finds")
    want = multiset(list(model.values()))
    for reader in (Java(world, folder), Python(folder)):
        same(multiset(reader.rows()), want, reader.name)
    counts = {p["name"]: {p["buckets"]} for p in client.ask("partitions", table)}
    same(totals(world, folder), counts, "totals in the lake, bucket counts in Fluss")
    same(set().union(*counts.values()), {2, 3}, "bucket counts")
    rounds = len(snapshots())
    check(rounds >= WAVES, f"{rounds} snapshots")
    return f"{made} changes, {len(model)} rows, {rounds} snapshots"


def tiered(client, table):
    known = {(o[0], o[1]): o[2] for o in client.ask("lake-snapshot", table)["offsets"] if o[2] > 0}
    return known == {(o[1], o[2]): o[3] for o in client.ask("offsets", table) if o[3] > 0}
