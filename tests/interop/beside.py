"""Tables that Lakeward and the real Flink job share: who tiers next, what must hold afterwards."""
import json
import time

import frames
from case_cluster import LAKE, with_system_columns
from checks import rows_equal
from readers import Java
from rows import SCALARS, rows
from world import Failed, Refused, check, same, table_name, until

# What the 0.9.1 job can read: a fraction below a millisecond before 1970 ends it (README.md).
COLUMNS = [(name, kind) for name, kind in SCALARS if name in "id bool i32 f64 dec5_2 string bytes date time3 ts3 ltz3".split()] + [("part", "STRING")]
AFTER_PUBLISH, BEFORE_PUBLISH = "commit.after_publish", "commit.before_publish"


class Shared:
    """Tables on one cluster, and the rows that each has been given. Log tables; for others `create`, `write` and `every_row_once` are what differs."""

    def __init__(self, world):
        self.world, self.cluster = world, world.cluster()
        self.client = world.client(self.cluster.address, old=True)
        self.ids, self.written, self.next = {}, {}, 0
        self.leased = {}  # table -> when its lease was renewed that nobody else is to have yet

    # ---- tables and rows

    def create(self, table, partitions=(), bucket_keys=()):
        self.ids[table] = self.client.ask("create", table, columns=COLUMNS, buckets=2, properties=LAKE, partitions=partitions, **{"bucket-keys": bucket_keys})
        self.written[table] = []

    def write(self, tables, count=60):
        """New rows, the same for each table."""
        new = [row[:-1] + [f"p{row[0] % 3}"] for row in rows(range(self.next, self.next + count), COLUMNS)]
        self.next += count
        for table in tables:
            self.client.ask("append", table, rows=new, **{"flush-every": 25})
            self.written[table] += new

    # ---- what both sides say

    def folder(self, table):
        return self.cluster.table(table)

    def known(self, table):
        """The newest lake snapshot that Fluss knows and its offsets by (partition id, bucket); None without one."""
        try:
            answer = self.client.ask("lake-snapshot", table)
        except Refused as refused:
            if "LakeTableSnapshotNotExist" in str(refused.error) + refused.message:
                return None
            raise
        return answer["id"], {(o[0], o[1]): o[2] for o in answer["offsets"] if o[2] > 0}

    def ends(self, table):
        return {(o[1], o[2]): o[3] for o in self.client.ask("offsets", table) if o[3] > 0}

    def tiered(self, table):
        known = self.known(table)
        return known is not None and known[1] == self.ends(table)

    def newest(self, table):
        return Java(self.world, self.folder(table)).snapshot()

    def snapshot(self, table, id):
        return json.loads((self.folder(table) / f"snapshot/snapshot-{id}").read_text())

    def snapshots(self, table):
        return sorted(int(path.name.rpartition("-")[2]) for path in self.folder(table).glob("snapshot/snapshot-*"))

    def data_files(self, table):
        return sorted(self.folder(table).rglob("data-*"))

    def pins(self, table):
        return sorted(self.folder(table).glob("consumer/consumer-lakeward-*"))

    def take_off(self, table):
        """What an operator does to take Lakeward off a table."""
        same(self.known(table)[0], self.newest(table)["id"], f"{table}: snapshot known to Fluss, before the pins are taken off")
        for pin in self.pins(table):
            pin.unlink()

    def lake(self, table, cmd, **request):
        """A command of Java Paimon."""
        return Java(self.world, self.folder(table)).ask(cmd, **request)

    def agree(self, tables, maker):
        """Fluss knows the newest snapshot with the offsets of all rows; `maker` ("ours", "theirs") made it, under the user that both share."""
        for table in tables:
            newest = self.newest(table)
            same(self.known(table), (newest["id"], self.ends(table)), f"{table}: newest snapshot and its offsets, as Fluss knows them")
            same((newest["commitUser"], newest["commitIdentifier"], newest["commitKind"]), ("__fluss_lake_tiering", 2**63 - 1, "APPEND"), f"{table}: who committed")
            same(made_by(newest), maker, f"{table}: who made snapshot {newest['id']}")

    def every_row_once(self, tables):
        """Both readers see what was written, each row once, with bucket, offset and time of the log."""
        for table in tables:
            rows_equal(self.world, self.folder(table), with_system_columns(self.client, table, self.written[table]))

    # ---- who tiers

    def round(self, tables, *flags, **more):
        """One run of ours for these tables only: snapshots of others that its rounds found and recorded, by table, and how it ended."""
        done, code = self.world.round(self.cluster.address, "--set", f"tables.include={','.join(tables)}", *flags, **more)
        return {table_name(r): r["recovered"] for r in done if r["recovered"] is not None}, code

    def ours(self, tables, seconds=60, pause=0.1):
        """Rounds of ours until these tables are tiered; the snapshots that they recorded for others."""
        done = {}

        def attempt():
            left = [table for table in tables if not self.tiered(table)]
            if left:
                done.update(self.round(left)[0])
            return not left
        until(seconds, f"rounds of {', '.join(tables)}", attempt, pause)
        return done

    def ours_killed(self, tables, point=AFTER_PUBLISH):
        """A service of ours dies at a fail point of each table's round. Their leases are ended."""
        for table in tables:
            before = (self.newest(table) or {"id": 0})["id"]
            until(60, f"kill at {point}", lambda: self.round([table], fail=f"{point}=kill", codes=(0, -6, -9))[1])
            same((self.newest(table) or {"id": 0})["id"], before + (point != BEFORE_PUBLISH), f"{table}: newest snapshot after a kill at {point}")
            check(not self.tiered(table), f"{table} is recorded in Fluss after a kill at {point}")
            frames.expire(self.cluster.address, self.ids[table])

    def theirs(self, job, tables, seconds=60):
        """The job works until these tables are tiered, and rests again."""
        self.renew()
        job.proxy.asks = True
        try:
            for table in tables:
                until(seconds, f"round of {table} by the Flink job", lambda: job.works() or self.tiered(table))
        finally:
            job.proxy.asks = False
        job.has_in_hand()

    def renew(self):
        """On a slow machine a lease must not end before a case wants it to."""
        for table, since in self.leased.items():
            if time.monotonic() > since + 75:
                frames.renew(self.cluster.address, self.ids[table])
                self.leased[table] = time.monotonic()

    def theirs_killed(self, job, table):
        """The job is killed when its snapshot of this table is in the lake, and its call that tells Fluss is held; the snapshot's id. Its leases are ended."""
        before = (self.known(table) or (0,))[0]
        self.renew()
        hold = job.proxy.hold(frames.COMMIT)
        job.proxy.asks = True
        committed = committed_snapshot(hold.caught())
        job.proxy.asks = False
        same(committed, (self.ids[table], before + 1), "table and snapshot of the call that is held")
        newest = self.newest(table)
        same((newest["id"], made_by(newest)), (committed[1], "theirs"), f"{table}: newest snapshot in the lake")
        leased = job.kill()
        same(self.known(table), None if before == 0 else (before, self.known(table)[1]), f"{table}: snapshot known to Fluss")
        for id in leased:
            frames.expire(self.cluster.address, id)
        return committed[1]


def made_by(snapshot):
    return "ours" if "lakeward.round-id" in (snapshot.get("properties") or {}) else "theirs"


def committed_snapshot(body):
    """(table id, snapshot id) of a CommitLakeTableSnapshot request."""
    entry = frames.first(body, 2)
    if entry is None:
        raise Failed("a record without metadata entries")
    return frames.first(entry, 1), frames.first(entry, 2)
