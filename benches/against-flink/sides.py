"""The two sides of the comparison, each on a table of its own with the same rows: what they took, and what they left in the lake."""
import json
import os
import pathlib
import re
import time
import typing

import flink
from readers import Python
from world import HERE as INTEROP, JARS, Refused, check, same, table_name, tail, until

HERE = pathlib.Path(__file__).resolve().parent
COLUMNS = [("id", "BIGINT"), ("qty", "INT"), ("amount", "BIGINT"), ("ratio", "DOUBLE"), ("price", "DECIMAL(12, 2)"), ("ts", "TIMESTAMP(6)"),
           ("day", "DATE"), ("flag", "BOOLEAN"), ("region", "STRING"), ("customer", "STRING"), ("product", "STRING"), ("note", "STRING")]
TICKS = os.sysconf("SC_CLK_TCK")


class Took(typing.NamedTuple):
    rows: int
    cpu: float  # seconds of CPU of the tiering process, and of them those in the kernel
    kernel: float
    wall: float
    memory: int  # the most bytes resident
    servers: float  # seconds of CPU of the Fluss servers meanwhile
    others: float  # and of everything else on the machine


class Meter:
    """Seconds of CPU since it was made, of a process, the servers and the machine."""

    def __init__(self, cluster, pid):
        self.cluster, self.pid, self.since = cluster, pid, time.time()
        self.before = self.now()

    def now(self):
        user, kernel = cpu(self.pid)
        return user + kernel, kernel, sum(sum(cpu(server.pid)) for server in self.cluster.processes), machine()

    def took(self, rows, until, memory):
        own, kernel, servers, all = (now - before for now, before in zip(self.now(), self.before))
        return Took(rows, own, kernel, until - self.since, memory, servers, max(0, all - own - servers))


def cpu(pid):
    """Seconds of CPU in user mode and in the kernel of a process with all its threads."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return int(fields[11]) / TICKS, int(fields[12]) / TICKS


def machine():
    fields = [int(field) for field in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS


def peak(pid):
    found = re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0  # none: it has ended


def fill(world, cluster, table, kind, rows, buckets):
    """Rows 0 to `rows` by the official client, in a table that stands in the tiering queue and whose round has an hour."""
    client, keys = world.client(cluster.address, old=True), ["id"] if kind == "pk" else []
    columns = [(name, type + (" NOT NULL" if name in keys else "")) for name, type in COLUMNS]
    client.ask("create", table, columns=columns, buckets=buckets, properties={"table.datalake.enabled": "true", "table.datalake.freshness": "2s"}, **({"keys": keys} if keys else {}))
    queued = time.monotonic() + 4  # one freshness after its creation; that is also what a round may take, so it is raised then
    filling = world.start("fill", ["java", "-Xmx1g", "--add-opens=java.base/java.nio=ALL-UNNAMED", f"-Dlog4j.configurationFile={INTEROP}/java/log4j2.properties",
                                   "-cp", f"{JARS}/client-old/*:{JARS}/log/*", HERE / "Fill.java", cluster.address, table, kind, rows])
    check(filling.wait(3600) == 0, f"writing into {table} failed: {tail(filling.log)}")
    same(sum(offset for *_, offset in client.ask("offsets", table)), rows, f"rows in the log of {table}")
    time.sleep(max(0, queued - time.monotonic()))
    client.ask("set", table, properties={"table.datalake.freshness": "1h"})


def theirs(world, cluster, table, rows, parallelism, jvm):
    """The Flink job, in a JVM of its own: from the moment that it is given the table until its snapshot is in the lake. Its start is not counted."""
    temp = world.here / f"{table}-tmp"
    temp.mkdir()
    job = world.start(table, flink.command(cluster.address, cluster.warehouse, temp, parallelism, jvm, poll="1s"), env=flink.LOGS)

    def wait(seconds, what, attempt):
        def working():
            check(job.poll() is None, f"the Flink job ended with {job.returncode}: {tail(job.log)}")
            return attempt()
        return until(seconds, f"{what} {table}", working, pause=0.02)
    with open(job.log, errors="replace") as log:
        wait(180, "Flink job that has", lambda: f",{table}) has been requested" in log.read())
    meter = Meter(cluster, job.pid)
    end = wait(3600, "whole", lambda: made(cluster.table(table), rows))
    took = meter.took(rows, end, peak(job.pid))
    wait(60, "word to Fluss on", lambda: recorded(world, cluster, table) == rows)
    world.stop(job)
    return took


def ours(world, cluster, table, rows, memory):
    """`lakeward run --once`, for this table alone, with one arena of the allocator (docs/performance.md): the whole process, from its start to its end."""
    argv = [world.lakeward(), "run", "--server", cluster.address, "--once", "--json", "--set", f"tables.include={table}", "--set", f"memory.limit={memory}"]
    meter, most = None, 0
    with open(world.here / f"{table}.json", "w+b") as out:
        process = world.start(table, argv, stdout=out, env={"MALLOC_ARENA_MAX": "1", **os.environ})
        meter = Meter(cluster, process.pid)
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            most = max(most, peak(process.pid))
            time.sleep(0.01)
        took = meter.took(rows, time.time(), most)  # one that has ended keeps its counters until it is waited for
        check(process.wait() == 0, f"`lakeward run --once` ended with {process.returncode}: {tail(process.log)}")
        out.seek(0)
        rounds = [json.loads(line) for line in out]
    same([(table_name(r), r["rows"]) for r in rounds], [(table, rows)], "rounds of Lakeward")
    same(recorded(world, cluster, table), rows, f"rows of {table} in the lake, as Fluss knows it")
    return took


def made(folder, rows):
    """When the snapshot that has all rows was made, if it is there, in seconds."""
    for path in folder.glob("snapshot/snapshot-*"):
        try:
            snapshot = json.loads(path.read_text())
        except json.JSONDecodeError:  # being written
            continue
        if snapshot["totalRecordCount"] >= rows:
            return snapshot["timeMillis"] / 1000
    return None


def recorded(world, cluster, table):
    """Rows that Fluss knows to be in the lake; None where it knows of no snapshot."""
    try:
        snapshot = world.client(cluster.address, old=True).ask("lake-snapshot", table)
    except Refused:
        return None
    return sum(offset for _, _, offset in snapshot["offsets"])


def contents(folder, rows):
    """Facts of all rows of a lake table, by the files that its newest snapshot has (pypaimon plans, pyarrow reads): each id once; of each column its sum, or that of its lengths."""
    import pyarrow.compute
    import pyarrow.parquet
    scan = Python(folder).table.new_read_builder().new_scan()
    ids, sums = [], dict.fromkeys((name for name, _ in COLUMNS), 0)
    for file in (file for split in scan.plan().splits() for file in split.files):
        for batch in pyarrow.parquet.ParquetFile(file.file_path).iter_batches(columns=list(sums)):
            ids.append(batch["id"])
            for name, kind in COLUMNS:
                column = batch[name]
                if kind == "STRING":
                    column = pyarrow.compute.binary_length(column)
                elif kind == "DATE" or kind.startswith("TIMESTAMP"):
                    column = column.cast("int64" if kind != "DATE" else "int32")
                elif kind == "DOUBLE":
                    column = pyarrow.compute.multiply(column, 2.0**53).cast("int64")  # exact, so that the order of rows does not matter
                sums[name] += pyarrow.compute.sum(column).as_py()
    ids = pyarrow.chunked_array(ids)
    once = (len(ids), len(pyarrow.compute.unique(ids)), pyarrow.compute.min(ids).as_py(), pyarrow.compute.max(ids).as_py())
    same(once, (rows, rows, 0, rows - 1), f"{folder.name}: rows, ids, least and greatest id")
    return {name: int(sum * 100) % 2**64 for name, sum in sums.items()}  # in int64 a sum of many wraps; of a DECIMAL it has two places
