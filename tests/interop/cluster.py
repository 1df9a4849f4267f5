"""A real Fluss 0.9.1 cluster on loopback: ZooKeeper, coordinator, one tablet server, with the Paimon lake plug-in.

In the jars: fluss-lake-paimon holds no Paimon classes, so paimon-bundle and the Hadoop jar lie beside it in plugins/paimon; the Hadoop jar needs log4j-1.2-api.
"""
import os

from world import JARS, HERE, Failed, free_port, tail, until

ZOOKEEPER = "org.apache.fluss.shaded.zookeeper3.org.apache.zookeeper.server.quorum.QuorumPeerMain"
COORDINATOR = "org.apache.fluss.server.coordinator.CoordinatorServer"
TABLET = "org.apache.fluss.server.tablet.TabletServer"

DOORS = ("JOB", "ZOMBIE", "OURS")


class Cluster:
    def __init__(self, folder):
        self.folder = folder
        self.warehouse = self.folder / "warehouse"
        self.remote = self.folder / "remote"
        self.zookeeper, self.coordinator, self.tablet = free_port(), free_port(), free_port()
        self.address = f"127.0.0.1:{self.coordinator}"
        # Further listeners, whose clients are told another address of the coordinator: a case may put a proxy there, for all calls of one program.
        self.doors = {name: (free_port(), free_port()) for name in DOORS}

    def clear(self, world):
        """Drops every table, so that the next case finds none. Their folders in the lake stay: names are a case's own."""
        client = world.client(self.address)
        for database in client.ask("databases"):
            if database != "fluss":
                client.ask("drop-database", db=database)

    def table(self, name):
        database, table = name.split(".")
        return self.warehouse / f"{database}.db" / table


def up(world, shared=True, settings=(), login=None, tablet_heap="640m", remote=None):
    """Starts the cluster and waits until the coordinator names the tablet server. A cluster that is not shared ends with its case.

    `settings` are further lines of both `server.yaml`; `login` is (user, password): clients have to log in, the servers among themselves do not;
    `remote` is the URL on S3 where logs go that leave the servers."""
    c = Cluster(world.here / "cluster")  # what is shared lies with the case that asked first
    c.client = {}
    world.real.add(c.address)
    if login:
        user, password = login
        c.client = {"client.security.protocol": "SASL", "client.security.sasl.mechanism": "PLAIN",
                    "client.security.sasl.username": user, "client.security.sasl.password": password}
        settings = [*settings, "security.protocol.map: FLUSS:SASL, INTERNAL:PLAINTEXT", "internal.listener.name: INTERNAL", "security.sasl.enabled.mechanisms: PLAIN",
                    f'security.sasl.plain.jaas.config: org.apache.fluss.security.auth.sasl.plain.PlainLoginModule required user_{user}="{password}";']
    for folder in ("zk", "tmp", "data", "remote", "warehouse", "conf/coordinator", "conf/tablet"):
        (c.folder / folder).mkdir(parents=True)
    (c.folder / "conf/zoo.cfg").write_text(
        f"dataDir={c.folder}/zk\nclientPort={c.zookeeper}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n")
    for name, port in (("coordinator", c.coordinator), ("tablet", c.tablet)):
        inside = free_port()
        internal = f", INTERNAL://127.0.0.1:{inside}" if login else ""
        if name == "coordinator":
            c.open_address = f"127.0.0.1:{inside}"  # no login there
        doors = "".join(f", {door}://127.0.0.1:{inner if name == 'coordinator' else free_port()}" for door, (_, inner) in c.doors.items())
        if name == "coordinator":
            settings_here = [*settings, "advertised.listeners: " + ", ".join(f"{door}://127.0.0.1:{outer}" for door, (outer, _) in c.doors.items())]
        else:
            settings_here = settings
        (c.folder / f"conf/{name}/server.yaml").write_text(f"""zookeeper.address: 127.0.0.1:{c.zookeeper}
bind.listeners: FLUSS://127.0.0.1:{port}{internal}{doors}
tablet-server.id: 0
default.bucket.number: 1
default.replication.factor: 1
data.dir: {c.folder}/data
remote.data.dir: {remote or f"file://{c.folder}/remote"}
datalake.format: paimon
datalake.paimon.metastore: filesystem
datalake.paimon.warehouse: {c.warehouse}
""" + "".join(f"{line}\n" for line in settings_here))

    plugins = JARS / "plugins"
    if remote:  # no other cluster is to open so large a jar
        plugins = c.folder / "plugins"
        for name, jars in (("paimon", JARS / "plugins/paimon"), ("s3", JARS / "plugins-s3")):
            (plugins / name).mkdir(parents=True)
            for jar in jars.glob("*.jar"):
                (plugins / name / jar.name).symlink_to(jar)

    def java(name, heap, main, *args):
        argv = ["java", f"-Xmx{heap}", "-XX:+UseSerialGC", "--add-opens=java.base/java.nio=ALL-UNNAMED", f"-Djava.io.tmpdir={c.folder}/tmp",
                f"-Dlog4j.configurationFile={HERE}/java/log4j2.properties", f"-Dlog4j2.configurationFile={HERE}/java/log4j2.properties",
                "-cp", f"{JARS}/server/*:{JARS}/log/*", main, *args]
        return world.start(name, argv, shared=shared, folder=c.folder, real=True, cwd=c.folder, env={**os.environ, "FLUSS_PLUGINS_DIR": str(plugins)})

    def tablet():
        return java("tablet", tablet_heap, TABLET, "--configDir", c.folder / "conf/tablet")

    c.restart_tablet = tablet
    processes = [java("zookeeper", "96m", ZOOKEEPER, c.folder / "conf/zoo.cfg"),
                 java("coordinator", "256m", COORDINATOR, "--configDir", c.folder / "conf/coordinator"),
                 tablet()]
    c.processes = processes
    client = world.client(c.address, login=c.client)

    def serves():
        for process in processes:
            if process.poll() is not None:
                raise Failed(f"a server ended: {tail(process.log)}")
        try:
            return "TABLET_SERVER" in client.ask("nodes")
        except Failed:
            return False
    until(90, "cluster", serves)
    return c
