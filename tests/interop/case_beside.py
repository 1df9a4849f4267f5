"""Lakeward beside the real Flink tiering job, on the same tables of a real cluster."""
import json
import pathlib
import re
import time

import frames
from beside import BEFORE_PUBLISH, Shared, committed_snapshot, made_by
from case_audit import faults
from case_cluster import LAKE, with_system_columns
from checks import rows_equal
from flink import Job
from proxy import Proxy
from world import case, check, same, tail, until

LOG, KEYED, PART, PART_KEYED = "b.log", "b.keyed", "b.part", "b.part_keyed"
TABLES = [LOG, KEYED, PART, PART_KEYED]
LATE, ZOMBIE = "o.late_keyed", "o.zombie_part"
OVERLAPPED = [LATE, ZOMBIE]


@case("beside", "Lakeward and the real Flink tiering job on the same tables. In turn, either first, each killed between publish and record: each takes the other's snapshots, offsets "
                "and commit user, every row once. Roll-back: Lakeward dies at bad moments and the job goes on alone, our pins there or taken off. Held beyond its lease before it "
                "records: its rows are recovered, its late record is repaired; before it prepares: what it doubles is found and held, and the hint's way out heals it")
def beside(world):
    shared = Shared(world)
    zombie, job = Job(world, shared.cluster, "ZOMBIE", parallelism=2), Job(world, shared.cluster, "JOB")
    for table in TABLES + OVERLAPPED:
        shared.create(table, partitions=["part"] if "part" in table else [], bucket_keys=["id"] if "keyed" in table else [])
    overlap = Overlap(shared, zombie)
    overlap.begin()
    in_turn(shared, job)
    killed(shared, job)
    late_ourselves(shared, job)
    rolled_back(shared, job)
    overlap.leases_end()
    overlap.late_record()
    overlap.doubled_rows()
    overlap.way_out(job)
    return f"{sum(map(len, shared.written.values()))} rows"


def in_turn(shared, job):
    theirs_first, ours_first = [LOG, PART_KEYED], [KEYED, PART]
    shared.write(TABLES)
    shared.ours(ours_first)
    shared.theirs(job, theirs_first)
    shared.agree(ours_first, "ours")
    shared.agree(theirs_first, "theirs")
    shared.write(TABLES)
    shared.ours(theirs_first)
    shared.theirs(job, ours_first)
    shared.agree(theirs_first, "ours")
    shared.agree(ours_first, "theirs")
    shared.every_row_once(TABLES)


def killed(shared, job):
    dead = [LOG, PART_KEYED]
    shared.write(dead)
    shared.ours_killed(dead)
    shared.write([LOG])  # the other has nothing new: the job has to see that its rows are there
    shared.theirs(job, dead)
    shared.agree([LOG], "theirs")
    shared.agree([PART_KEYED], "ours")
    for table in (PART, KEYED):
        shared.write([table])
        snapshot = shared.theirs_killed(job, table)
        job.start()
        if table == KEYED:
            shared.write([table])
        same(shared.ours([table]), {table: snapshot}, "snapshot of the job that we recorded")
    shared.agree([PART], "theirs")
    shared.agree([KEYED], "ours")
    shared.every_row_once(TABLES)


def late_ourselves(shared, job):
    """The mirror of a zombie: our round stands still before it prepares, the job takes the table and commits the same rows, and we go on."""
    world = shared.world
    listen, target = shared.cluster.doors["OURS"]
    proxy = Proxy(listen, target)
    world.closing.append(proxy.close)
    proxy.asks, hold = True, proxy.hold(frames.PREPARE)
    shared.write([LOG])
    process = world.start("late", [world.lakeward(), "run", "--server", f"127.0.0.1:{listen}", "--once", "--set", f"tables.include={LOG}"])
    hold.caught()
    frames.expire(shared.cluster.address, shared.ids[LOG])
    shared.theirs(job, [LOG])
    hold.release()
    process.wait(60)
    check(process.returncode in (0, 7), f"the late service ended with {process.returncode}: {tail(process.log)}")
    shared.agree([LOG], "theirs")
    shared.every_row_once([LOG])


def rolled_back(shared, job):
    """Lakeward has worked on all tables, dies at several moments of their rounds, and never comes back."""
    shared.write(TABLES)
    shared.ours(TABLES)
    shared.write(TABLES)
    shared.ours_killed([LOG, PART])
    shared.ours_killed([KEYED], "commit.before_record")
    shared.ours_killed([PART_KEYED], BEFORE_PUBLISH)
    for _ in range(2):
        shared.write(TABLES)
        shared.theirs(job, TABLES)
        shared.agree(TABLES, "theirs")
    shared.every_row_once(TABLES)
    for table in TABLES:
        check(shared.pins(table), f"{table}: no pin of ours is there")
        pinned = min(json.loads(pin.read_text())["nextSnapshot"] for pin in shared.pins(table))
        shared.lake(table, "expire")
        same(shared.snapshots(table)[0], pinned, f"{table}: oldest snapshot after an expiry with our pins")
        shared.take_off(table)
        shared.lake(table, "expire")
        same(shared.snapshots(table), [shared.newest(table)["id"]], f"{table}: snapshots after an expiry without our pins")
    shared.write(TABLES)
    shared.theirs(job, TABLES)
    shared.agree(TABLES, "theirs")
    shared.every_row_once(TABLES)


class Overlap:
    """The job is held beyond its lease with a table at two places of a round, and meets what we did meanwhile."""

    def __init__(self, shared, job):
        self.shared, self.job = shared, job

    def begin(self):
        shared, job = self.shared, self.job
        shared.write(OVERLAPPED)
        shared.ours(OVERLAPPED)
        shared.write([LATE])
        self.commit = job.proxy.hold(frames.COMMIT)
        job.proxy.asks = True
        self.theirs = committed_snapshot(self.commit.caught())
        same(self.theirs, (shared.ids[LATE], shared.newest(LATE)["id"]), "table and snapshot of the call that is held")
        # Its committer stands still; its readers read the other table, whose rows then wait for the committer.
        job.proxy.asks = False
        job.has_in_hand(shared.ids[LATE])
        # A round of the job lasts one freshness at most.
        shared.client.ask("set", ZOMBIE, properties={"table.datalake.freshness": "10s"})
        idle = shared.data_files(ZOMBIE)
        before = shared.ends(ZOMBIE)
        shared.write([ZOMBIE])
        self.doubled = shared.written[ZOMBIE][-60:]
        splits = sum(end > before.get(bucket, 0) for bucket, end in shared.ends(ZOMBIE).items())
        job.proxy.asks = True
        until(30, "files of the zombie", lambda: job.works() or len(shared.data_files(ZOMBIE)) == len(idle) + splits)
        job.proxy.asks = False
        job.has_in_hand(shared.ids[LATE], shared.ids[ZOMBIE])
        shared.client.ask("set", ZOMBIE, properties=LAKE)
        self.prepare = job.proxy.hold(frames.PREPARE)
        self.heartbeat = job.proxy.hold(frames.HEARTBEAT)
        self.heartbeat.caught()
        shared.leased = dict.fromkeys(OVERLAPPED, time.monotonic())

    def leases_end(self):
        """The coordinator's fixed 2 minutes, looked at each 15 s. Then the tables are ours."""
        shared = self.shared
        shared.leased = {}
        shared.write(OVERLAPPED)
        recovered = shared.ours(OVERLAPPED, seconds=180, pause=2)
        same(recovered, {LATE: self.theirs[1]}, "snapshot of the job that we recorded")
        shared.agree(OVERLAPPED, "ours")
        shared.every_row_once(OVERLAPPED)

    def late_record(self):
        """The job's call arrives: Fluss goes back to its snapshot and throws ours away. A round of ours puts it right."""
        shared = self.shared
        ours = shared.newest(LATE)
        file = pathlib.Path(ours["properties"]["fluss-offsets"].removeprefix("file:"))
        check(file.exists(), f"no offsets file {file}")
        self.commit.release()
        until(30, "late record", lambda: shared.known(LATE)[0] == self.theirs[1])
        until(30, "end of the offsets file of the entry that was thrown away", lambda: not file.exists())
        shared.write([LATE])
        same(shared.ours([LATE]), {LATE: ours["id"]}, "snapshot recorded again")
        shared.agree([LATE], "ours")
        shared.every_row_once([LATE])

    def doubled_rows(self):
        """The job prepares and commits what we have tiered meanwhile. Its next look at the table holds it, and it alone."""
        shared = self.shared
        self.own = shared.newest(ZOMBIE)["id"]
        same(frames.first(frames.first(self.prepare.caught(), 1), 1), shared.ids[ZOMBIE], "table that the job prepares")
        self.prepare.release()
        until(30, "commit of the zombie", lambda: self.job.works() or shared.known(ZOMBIE)[0] == self.own + 1)
        self.heartbeat.release()
        same(made_by(shared.newest(ZOMBIE)), "theirs", "who made the newest snapshot")
        self.job.kill()
        twice = with_system_columns(shared.client, ZOMBIE, shared.written[ZOMBIE] + self.doubled)
        rows_equal(shared.world, shared.folder(ZOMBIE), twice)
        # Its offsets went back behind ours as well: what we tiered beyond them is too many too, by what the lake says.
        back = sum(shared.ends(ZOMBIE).values()) - sum(shared.known(ZOMBIE)[1].values())
        found = faults(shared.world, shared.cluster.address, ZOMBIE)
        same({fault["check"] for fault in found}, {"rows"}, "what `verify` finds in doubled rows")
        for fault in found:
            check(f"snapshot {self.own + 1} (APPEND by a Java tiering job): +" in fault["message"], f"the snapshot is not named: {fault['message']}")
        same(sum(int(re.search(r"has `(\d+)` rows too many", fault["message"])[1]) for fault in found), len(self.doubled) + back, "rows too many, as `verify` counts them")
        shared.write([LATE, ZOMBIE])
        said = until(30, "hold", self.held)
        for fact in (ZOMBIE, f"above `{self.own}` up to `{self.own + 1}`", f"`{len(self.doubled)}` rows", "roll the lake table back", f"lakeward repair accept-base {ZOMBIE}"):
            check(fact in said, f"the hold does not say {fact}: {said}")
        same(shared.newest(ZOMBIE)["id"], self.own + 1, "newest snapshot of the table on hold")
        shared.ours([LATE])
        shared.agree([LATE], "ours")

    def held(self):
        """What a run of ours says that finds a data fault; nothing when the table was not handed out."""
        log = self.shared.world.here / "held.log"
        code = self.shared.round([LATE, ZOMBIE], codes=(0, 5), name="held")[1]
        return code == 5 and tail(log, 100)

    def way_out(self, job):
        """As the hold says: back to our snapshot, and Fluss told so; what lies beyond is tiered again."""
        shared = self.shared
        shared.lake(ZOMBIE, "roll-back", snapshot=self.own)
        done = shared.world.says("repair", "accept-base", ZOMBIE, "--server", shared.cluster.address, "--confirm")[0]
        same((done["outcome"], done["snapshot"]), ("done", self.own + 1), "what the operator's word came to")
        shared.ours([ZOMBIE])
        shared.agree([ZOMBIE], "ours")
        same(faults(shared.world, shared.cluster.address, ZOMBIE, "--all"), [], "faults after the way out")
        shared.write([ZOMBIE])
        shared.theirs(job, [ZOMBIE])
        shared.agree([ZOMBIE], "theirs")
        shared.every_row_once([ZOMBIE])
