"""The real Flink tiering job (Fluss 0.9.1, Flink 1.20.3, Paimon 1.3.1) in one JVM with a mini cluster. It reaches the coordinator through a proxy.

In the jars: the Hadoop jar holds old copies of other libraries, so it comes last on the class path."""
import os

from proxy import Proxy
from world import CLASSES, HERE, JARS, check, tail

OPENS = "lang lang.invoke lang.reflect io net nio text time util util.concurrent util.concurrent.atomic util.concurrent.locks".split()
LOGS = {**os.environ, "LAKEWARD_INTEROP_LOG_LEVEL": "INFO"}


def command(address, warehouse, temp, parallelism, jvm, poll):
    """The job in a JVM with these flags, which asks the coordinator at this address for a table each `poll`."""
    return ["java", *jvm, "-Duser.timezone=UTC", f"-Djava.io.tmpdir={temp}",
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in [*(f"java.{p}" for p in OPENS), "sun.nio.ch", "sun.net.util"]),
            f"-Dlog4j.configurationFile={HERE}/java/log4j2.properties", f"-Dlog4j2.configurationFile={HERE}/java/log4j2.properties",
            f"-Dlakeward.parallelism={parallelism}",
            "-cp", f"{CLASSES}/flink:{JARS}/flink/*:{JARS}/log/*:{JARS}/plugins/paimon/*", "TieringJob",
            "--fluss.bootstrap.servers", address, "--fluss.tiering.poll.table.interval", poll,
            "--datalake.format", "paimon", "--datalake.paimon.metastore", "filesystem", "--datalake.paimon.warehouse", warehouse]


class Job:
    """A job that asks for no table until it is told to: `proxy.asks`."""

    def __init__(self, world, cluster, name, parallelism=1):
        self.world, self.cluster, self.name = world, cluster, name
        self.listen, target = cluster.doors[name]
        self.proxy = Proxy(self.listen, target)
        self.parallelism = parallelism
        world.closing.append(self.proxy.close)
        self.start()

    def start(self):
        """Starts it, for the first time or again."""
        temp = self.world.here / f"{self.name}-tmp"
        temp.mkdir(exist_ok=True)
        self.proxy.held.clear()
        argv = command(f"127.0.0.1:{self.listen}", self.cluster.warehouse, temp, self.parallelism,
                       ["-Xmx400m", "-XX:MaxDirectMemorySize=300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"], poll="300ms")
        self.process = self.world.start(self.name, argv, env=LOGS)

    def kill(self):
        """SIGKILL: what the proxy holds of it never arrives. The ids of the tables that it had in hand."""
        self.world.stop(self.process, kill=True)
        for hold in list(self.proxy.holds.values()):
            hold.drop()
        return sorted(self.proxy.held)

    def has_in_hand(self, *tables):
        """Waits until it has exactly these table ids in hand; none: until it rests."""
        self.proxy.wait(30, f"moment when the Flink job has tables {tables} in hand", lambda: self.proxy.held == set(tables))

    def works(self):
        check(self.process.poll() is None, f"the Flink job ended with {self.process.returncode}: {tail(self.process.log)}")


def sql(world):
    """Flink SQL in batch mode in one JVM, shared: a function of statements that gives the rows of the last."""
    flags = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in OPENS]
    lines = world.shared("sql", lambda: world.java("sql", "768m", ["flink", "sql", "log", "json", "plugins/paimon"], "FlinkSql", *flags))
    return lambda statements: lines.ask(statements, 180)
