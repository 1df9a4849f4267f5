"""Services that get in each other's way, and the story that a newcomer sees."""
import json
import pathlib
import signal
import subprocess

from case_readback import LAKE
from checks import rows_equal, totals
from readers import Python
from world import case, check, same, tail, until


@case("two-services", "a service whose lease ran out while it stood still wakes up after another has tiered its table: every row once")
def two_services(world):
    node = world.node("--lease", "2s")
    client = world.client(node.address)
    columns = [("id", "BIGINT"), ("note", "STRING")]
    client.ask("create", "s.t", columns=columns, buckets=2, properties=LAKE, **{"bucket-keys": ["id"]})
    written = [[id, f"row {id}"] for id in range(60_000)]
    client.ask("append", "s.t", rows=written)
    argv = [world.lakeward(), "run", "--server", node.address, "--once", "--wait", "6s", "--json", "--log-level", "debug"]
    sleeper = world.start("sleeper", argv)
    until(30, "claim by the first service", lambda: "table claimed" in pathlib.Path(sleeper.log).read_text(), pause=0.01)
    sleeper.send_signal(signal.SIGSTOP)
    same(len(list(node.table("s.t").glob("snapshot/snapshot-*"))), 0, "snapshots when the first service is stopped")
    more = [[id, f"row {id}"] for id in range(60_000, 61_000)]
    client.ask("append", "s.t", rows=more)
    rounds, _ = world.round(node.address, "--wait", "8s")
    same(sum(r["rows"] for r in rounds), len(written + more), "rows tiered by the second service")
    sleeper.send_signal(signal.SIGCONT)
    sleeper.wait(60)
    check(sleeper.returncode in (0, 7), f"the first service ended with {sleeper.returncode}: {tail(sleeper.log)}")
    world.round(node.address)
    rows_equal(world, node.table("s.t"), written + more)
    return f"{len(written + more)} rows"


@case("quickstart", "`lakeward quickstart`: its lake is read back by Java Paimon and pypaimon as it says")
def quickstart(world):
    home = world.here / "home"
    process = world.start("quickstart", [world.lakeward(), "quickstart", "--dir", home, "--json"], stdout=subprocess.PIPE)
    out, _ = process.communicate(timeout=120)
    check(process.returncode == 0, f"quickstart ended with {process.returncode}: {tail(process.log)}")
    told = json.loads(out)
    folders = [p.parent for p in pathlib.Path(home).rglob("schema") if p.is_dir() and (p / "schema-0").exists()]
    same(len(folders), 1, "lake tables")
    rows_equal(world, folders[0], Python(folders[0]).rows())
    found = {partition: sorted(counts) for partition, counts in totals(world, folders[0]).items()}
    check(sorted(map(str, found.values())) == ["[2]", "[2]", "[4]"], f"totals in the lake: {found}")
    check(told["table"] == {"database": "demo", "table": "orders"}, f"what it told: {told}")
