"""What a real cluster does that needs settings of its own: logs that leave the servers, clients that have to log in."""
import time

import cluster
from case_cluster import LAKE, batch, COLUMNS, snapshot_is_ours, with_system_columns
from checks import rows_equal
from world import case, check, same, table_name, tail, until

TINY = ["log.segment.file-size: 64kb", "remote.log.task-interval-duration: 1s"]


def left(c, table):
    """The files of a table's remote log, if all of its buckets have lost their first segment on the server."""
    database, name = table.split(".")
    local = list((c.folder / "data" / database).glob(f"{name}-*/**/log-*"))
    here = [folder for folder in local if (folder / f"{0:020}.log").exists()]
    files = sorted((c.remote / "log" / database).glob(f"{name}-*/**/*.log"), key=lambda file: file.name)
    return files if local and not here and files else None


@case("remote-log", "logs of a real 0.9.1 cluster whose first segments have left the server: tiered from the beginning, each row once; a damaged segment is named and holds its table alone")
def remote_log(world):
    c = cluster.up(world, shared=False, settings=TINY)
    client = world.client(c.address, old=True)
    tables = ["r.log", "r.part_keyed", "r.damaged"]
    for table in tables:
        client.ask("create", table, columns=COLUMNS, buckets=2 if "keyed" in table else 1, properties={**LAKE, "table.log.tiered.local-segments": "1"},
                   partitions=["part"] if "part" in table else [], **{"bucket-keys": ["id"] if "keyed" in table else []})
    written = {}
    rows = batch(range(3000))
    for table in tables:
        written[table] = rows
        client.ask("append", table, rows=rows, **{"flush-every": 60})
    files = {table: until(60, f"remote log of {table}", lambda table=table: left(c, table)) for table in tables}
    victim = files["r.damaged"][0]
    good = victim.read_bytes()
    victim.write_bytes(good[:len(good) // 2] + bytes([good[len(good) // 2] ^ 1]) + good[len(good) // 2 + 1:])
    healthy, log = set(tables[:2]), world.here / "run.log"
    rounds = []

    def tiered():
        found, code = world.round(c.address, "--log-level", "debug", codes=(0, 5))
        rounds.extend(found)
        healthy.difference_update(table_name(r) for r in found if r["outcome"] != "idle")
        return not healthy and code == 5
    until(90, "round of the healthy tables, and a data fault of the other", tiered)
    said = log.read_text()
    check("remote segments are read" in said, f"nothing was read from remote segments: {tail(log)}")
    check(victim.name in said and "r.damaged" in said, f"the damaged segment {victim} is not named: {tail(log)}")
    check(not list(c.table("r.damaged").glob("snapshot/snapshot-*")), "the damaged table was tiered")
    victim.write_bytes(good)
    world.rounds_until(c.address, ["r.damaged"])
    for table in tables:
        snapshot_is_ours(world, c, client, table)
        rows_equal(world, c.table(table), with_system_columns(client, table, written[table]))
    return f"{sum(map(len, written.values()))} rows, {sum(map(len, files.values()))} remote segments"


@case("sasl", "a real 0.9.1 cluster that wants SASL/PLAIN: tiered with the right password; wrong password, no login, and a login where none is wanted end at once, with the reason; the node does the same")
def sasl(world):
    user, password = "otto", "geheim-1"
    c = cluster.up(world, shared=False, login=(user, password))
    client = world.client(c.address, old=True, login=c.client)
    rows = batch(range(500))
    client.ask("create", "s.log", columns=COLUMNS, buckets=2, properties=LAKE)
    client.ask("append", "s.log", rows=rows)
    secret = world.here / "password"
    secret.write_text(f"{password}\n")
    secret.chmod(0o600)
    config = world.here / "sasl.toml"
    config.write_text(f"""[security]
protocol = "sasl"
sasl.username = "{user}"
sasl.password_file = "{secret}"
""")
    right, wrong = ["--config", config], {"LAKEWARD_SECURITY_SASL_PASSWORD": "not-it-42"}
    refused = [("wrong", c.address, right, wrong, f"`{user}`", "Invalid username or password"),
               ("none", c.address, [], {}, "has not completed authentication", "security.protocol"),
               ("unwanted", c.open_address, right, {}, "PLAINTEXT", "security.protocol")]
    for name, server, flags, env, *words in refused:
        begin = time.monotonic()
        world.round(server, *flags, env=env, codes=(2,), name=name)
        took, said = time.monotonic() - begin, (world.here / f"{name}.log").read_text()
        check(took < 10, f"{name}: it took {took:.1f} s")
        for word in words:
            check(word in said, f"{name}: `{word}` is not in: {said}")
        check("not-it-42" not in said and password not in said, f"{name}: the password is in: {said}")
    found = []

    def tiered():
        found.extend(world.round(c.address, *right)[0])
        return sum(r["rows"] for r in found) >= len(rows)
    until(60, "round", tiered)
    snapshot_is_ours(world, c, client, "s.log")
    same(sum(r["rows"] for r in found), len(rows), "rows tiered")
    checked = world.says("check", "--server", c.address, *right)
    same([line for line in checked if line["state"] != "ok"], [], "what `check` finds wrong")
    same({line["check"] for line in checked}, {"configuration", "connect", "cluster", "warehouse", "table", "remote"}, "what `check` tries")
    check(any(line["check"] == "remote" and line["on"].endswith(str(c.remote)) for line in checked), f"the remote folder is not tried: {checked}")
    # Should it die there, what it tries out with harms no reader.
    (c.table("s.log") / "snapshot" / ".lakeward-check-0").write_text("first")
    rows_equal(world, c.table("s.log"), with_system_columns(client, "s.log", rows))
    # The node takes the same login, and refuses the same.
    users = world.here / "users"
    users.write_text(f"{user}:{password}\n")
    node = world.node("--sasl-users", users)
    client = world.client(node.address, login=c.client)
    client.ask("create", "s.log", columns=COLUMNS, buckets=2, properties=LAKE)
    client.ask("append", "s.log", rows=rows)
    world.client(f"localhost:{node.address.split(':')[1]}").refuses(None, "databases")
    world.round(node.address, codes=(2,), name="node-none")
    found.clear()
    until(60, "round at the node", lambda: found.extend(world.round(node.address, *right)[0]) or sum(r["rows"] for r in found) >= len(rows))
    rows_equal(world, node.table("s.log"), rows)
    return f"{len(rows)} rows each"
