"""Lakeward beside the real Flink tiering job, on the same tables of a real cluster."""
from beside import Shared
from flink import Job
from world import case, check, same

LOG, KEYED, PART, PART_KEYED = "b.log", "b.keyed", "b.part", "b.part_keyed"
TABLES = [LOG, KEYED, PART, PART_KEYED]


@case("beside", "rounds of Lakeward and of the real Flink tiering job in turn on the same tables, either first, each killed once between publish and record: "
                "each takes the other's snapshots, offsets and commit user, every row once")
def beside(world):
    shared = Shared(world)
    job = Job(world, shared.cluster, "JOB")
    for table in TABLES:
        shared.create(table, partitions=["part"] if "part" in table else [], bucket_keys=["id"] if "keyed" in table else [])
    in_turn(shared, job)
    killed(shared, job)


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
    shared.write(TABLES)
    shared.ours_killed(TABLES)
    shared.write([LOG, PART])  # the others have nothing new: the job has to see that their rows are there
    shared.theirs(job, TABLES)
    shared.agree([LOG, PART], "theirs")
    shared.agree([KEYED, PART_KEYED], "ours")
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
    shared.write(TABLES)
    shared.theirs(job, TABLES)
    shared.agree(TABLES, "theirs")
    shared.every_row_once(TABLES)
