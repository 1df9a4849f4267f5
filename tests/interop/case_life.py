"""A day of life, shortened: the daemon on a real cluster while operators and mishaps do what they do in a day."""
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

from checks import rows_equal
from world import case, check, free_port, same, tail, until

FRESHNESS = 10
WITHIN = FRESHNESS + 2
COLUMNS = [("id", "BIGINT"), ("note", "STRING"), ("part", "STRING")]
KINDS = {"plain": {}, "keyed": {"bucket-keys": ["id"]}, "part": {"partitions": ["part"]}, "part_keyed": {"partitions": ["part"], "bucket-keys": ["id"]},
         "fifth": {"bucket-keys": ["id"]}}
TABLES = [f"life.{name}" for name in KINDS]
HEALTHY, FIFTH, EVOLVED = TABLES[:4], TABLES[4], "life.keyed"


class Watch:
    """Looks at the lake tables all the time: when the rows that a table had at a moment have become visible, and how late the worst came."""

    def __init__(self, folders):
        self.folders, self.open, self.worst, self.total, self.seen = folders, {t: [] for t in folders}, {t: 0.0 for t in folders}, {t: 0 for t in folders}, {}
        self.stood_still, self.end, self.lock = 0.0, threading.Event(), threading.Lock()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def written(self, table, total):
        with self.lock:
            self.open[table].append((total, time.monotonic()))

    def run(self):
        last = time.monotonic()
        while not self.end.wait(0.05):
            now = time.monotonic()
            self.stood_still = max(self.stood_still, now - last - 0.05)  # this machine's own pauses are nobody's lateness
            last = now
            for table, folder in self.folders.items():
                self.look(table, folder)

    def look(self, table, folder):
        """Log tables: the newest snapshot's total is what a reader sees. Each id is looked at once."""
        try:
            names = [int(name.rpartition("-")[2]) for name in os.listdir(folder / "snapshot") if name.startswith("snapshot-") and name.rpartition("-")[2].isdigit()]
            newest = max(names, default=0)
            if newest <= self.seen.get(table, 0):
                return
            self.total[table] = json.loads((folder / "snapshot" / f"snapshot-{newest}").read_text())["totalRecordCount"]
            self.seen[table] = newest
        except (OSError, ValueError):  # the folder is away, or the file is just being made
            return
        now = time.monotonic()
        with self.lock:
            while self.open[table] and self.open[table][0][0] <= self.total[table]:
                self.worst[table] = max(self.worst[table], now - self.open[table].pop(0)[1])


class Day:
    def __init__(self, world):
        self.world, self.cluster = world, world.cluster()
        self.client = world.client(self.cluster.address, old=True)
        self.folders = {table: self.cluster.table(table) for table in TABLES}
        self.rows, self.next, self.evolved = {table: [] for table in TABLES}, 0, False
        self.admin = f"127.0.0.1:{free_port()}"
        self.config = world.here / "lakeward.toml"
        self.config.write_text(f'[cluster]\nservers = ["{self.cluster.address}"]\n\n[tables]\ninclude = ["life.*"]\n\n[admin]\nlisten = "{self.admin}"\n')

    def run(self):
        for table in TABLES:
            self.client.ask("create", table, columns=COLUMNS, buckets=2, properties={"table.datalake.enabled": "true", "table.datalake.freshness": f"{FRESHNESS}s"},
                            **KINDS[table.split(".")[1]])
        self.watch = Watch(self.folders)
        try:
            self.start()
            self.write_for(15)
            away = self.folders[FIFTH].with_name("away")
            self.folders[FIFTH].rename(away)
            self.write_until(30, "hold of the fifth table", lambda: self.state(FIFTH) == "held")
            self.reason_is_told()
            self.client.ask("add-columns", EVOLVED, columns=[("extra", "INT")])
            self.evolved = True
            self.write_for(3)
            self.stop()
            self.start()
            self.backfill("life.part_keyed")
            self.write_for(14)
            away.rename(self.folders[FIFTH])
            missed = len(self.rows[FIFTH])
            self.write_until(150, "rows of the fifth table", lambda: self.watch.total[FIFTH] >= missed)
            until(WITHIN + 20, "last rows in the lake", lambda: not any(self.watch.open[table] for table in TABLES), pause=0.2)
            until(10, "healthy table again", lambda: self.state(FIFTH) in ("waiting", "tiering"))
            self.stop()
        finally:
            self.watch.end.set()
            self.watch.thread.join()
        for table in TABLES:
            names = ["id", "note", "part"] + (["extra"] if table == EVOLVED else [])
            want = [row + [None] * (len(names) - len(row)) for row in self.rows[table]]
            rows_equal(self.world, self.folders[table], want, names)
        worst = {table: self.watch.worst[table] for table in HEALTHY}
        late = {table: round(seconds, 1) for table, seconds in worst.items() if seconds > WITHIN + self.watch.stood_still}
        check(not late, f"later than {WITHIN} s (the machine stood still for {self.watch.stood_still:.1f} s at most): {late}")
        for table in TABLES:
            self.client.ask("drop", table)
        return f"{sum(map(len, self.rows.values()))} rows; visible after {max(worst.values()):.1f} s at most"

    # ---- what happens in a day

    def start(self):
        self.daemon = self.world.start("daemon", [self.world.lakeward(), "run", "--config", self.config])

    def stop(self):
        self.daemon.send_signal(signal.SIGTERM)
        self.daemon.wait(40)
        same(self.daemon.returncode, 128 + signal.SIGTERM, f"exit code of the daemon ({tail(self.daemon.log)})")

    def write(self):
        """A few rows into each table."""
        for table in TABLES:
            ids = range(self.next, self.next + 20)
            rows = [[id, f"row {id}", f"p{id % 3}"] + ([id % 7] if table == EVOLVED and self.evolved else []) for id in ids]
            self.client.ask("append", table, rows=rows)
            self.rows[table] += rows
            self.watch.written(table, len(self.rows[table]))
        self.next += 20
        check(self.daemon.poll() is None, f"the daemon ended with {self.daemon.poll()}: {tail(self.daemon.log)}")

    def write_for(self, seconds):
        """Life goes on for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.write()
            time.sleep(0.3)

    def write_until(self, seconds, what, reached):
        """Life goes on until something is reached."""
        until(seconds, what, lambda: self.write() or reached(), pause=0.3)

    def backfill(self, table):
        """A backfill beside the daemon: what was written before it started is in the lake when it ends, whoever brought it."""
        written = len(self.rows[table])
        argv = [self.world.lakeward(), "backfill", table, "--server", self.cluster.address, "--json"]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        check(done.returncode == 0, f"backfill ended with {done.returncode}: {done.stderr.decode()[-800:]}")
        json.loads(done.stdout.decode().splitlines()[-1])
        newest = max((self.folders[table] / "snapshot").glob("snapshot-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        total = json.loads(newest.read_text())["totalRecordCount"]
        check(total >= written, f"{table}: {total} rows in the lake after the backfill, {written} were written before it")

    # ---- what the service says

    def status(self):
        done = subprocess.run([self.world.lakeward(), "status", "--admin", self.admin, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20)
        return json.loads(done.stdout) if done.returncode == 0 else {"tables": []}

    def table(self, name):
        for table in self.status()["tables"]:
            if f"{table['table']['database']}.{table['table']['table']}" == name:
                return table
        return None

    def state(self, name):
        return (self.table(name) or {}).get("state")

    def reason_is_told(self):
        fifth = self.table(FIFTH)
        check(str(self.folders[FIFTH].parent.parent) in fifth["reason"] and "missing" in fifth["reason"], f"reason of the held table: {fifth}")
        check(fifth["help"] and fifth["next_look_ms"] and fifth["since_ms"], f"what would help, since when, next look: {fifth}")
        text = subprocess.run([self.world.lakeward(), "status", "--admin", self.admin], stdout=subprocess.PIPE, timeout=20, check=True).stdout.decode()
        check(fifth["reason"] in text and fifth["help"] in text, f"`lakeward status` does not say why: {text}")
        others = {table: self.state(table) for table in HEALTHY}
        check(set(others.values()) <= {"waiting", "tiering"}, f"the others: {others}")


@case("life", "a day of life on the real cluster: five tables, daemon stopped and started, a column added, a lake folder away and back, a backfill beside it: "
              "every row once, the four healthy tables within freshness + 2 s, `status` names the fifth's reason", timed=True)
def life(world):
    return Day(world).run()
