"""What cases stand on: folders, ports, processes that end with the run, the product, the official client, the readers, a real cluster."""
import contextlib
import ctypes
import json
import os
import pathlib
import queue
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
import traceback
import typing

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
SHARED = pathlib.Path(os.environ["LAKEWARD_INTEROP_DIR"]).absolute()
JARS, CLASSES = (pathlib.Path(os.environ.get(f"LAKEWARD_INTEROP_{name}", "")) for name in ("JARS", "CLASSES"))
CASES = {}


class Failed(Exception):
    """A case found something wrong."""


class Case(typing.NamedTuple):
    fact: str
    run: typing.Callable
    timed: bool
    calm: bool


def case(name, fact, timed=False, calm=False):
    """Registers a function of the world as a case. `timed`: it asserts seconds, and wants a quiet machine; `calm`: it mostly waits."""
    def register(function):
        CASES[name] = Case(fact, function, timed, calm)
        return function
    return register


def check(condition, message):
    if not condition:
        raise Failed(message)


def same(got, want, what):
    """Both are equal, else the message shows where they part."""
    if got == want:
        return
    if isinstance(got, list) and isinstance(want, list):
        only_got, only_want = list(map(str, got)), list(map(str, want))
        for text in list(only_got):
            if text in only_want:
                only_got.remove(text)
                only_want.remove(text)
        parts = [f"{len(got)} instead of {len(want)}"]
        parts += [f"not expected: {text[:600]}" for text in only_got[:2]] + [f"missing: {text[:600]}" for text in only_want[:2]]
        raise Failed(f"{what}: " + "; ".join(parts))
    raise Failed(f"{what}: got {str(got)[:800]}, want {str(want)[:800]}")


def until(seconds, what, attempt, pause=0.1):
    """Calls `attempt` until it gives something true."""
    end = time.monotonic() + seconds
    while True:
        result = attempt()
        if result:
            return result
        if time.monotonic() > end:
            raise Failed(f"no {what} within {seconds} s")
        time.sleep(pause)


def free_port():
    """One that no outgoing connection takes before its server is up: below those that the system hands out."""
    while True:
        port = random.randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as s:
            s.bind(("127.0.0.1", port))
            return port


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: nothing outlives us, whatever ends us


def build():
    """The binaries that `cargo test` builds too (with the same features of dependencies, so that nothing is built twice): the product, with fail points, and its tests."""
    done = subprocess.run(["cargo", "test", "-q", "--no-run", "--test", "it", "--message-format", "json-render-diagnostics"], cwd=REPOSITORY, check=True,
                          stdout=subprocess.PIPE)
    made = [json.loads(line) for line in done.stdout.splitlines()]
    return {artifact["target"]["name"]: artifact["executable"] for artifact in made if artifact.get("executable")}


class World:
    """Everything of one lane. Processes are known by id and end with it."""

    def __init__(self):
        runs = SHARED / "runs"
        for old in runs.glob("*"):  # what failed is kept for a day
            if not pathlib.Path("/proc", old.name).exists() and old.stat().st_mtime < time.time() - 86_400:
                shutil.rmtree(old, ignore_errors=True)
        self.folder = runs / str(os.getpid())
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.processes, self.parts, self.real = [], {}, set()

    @contextlib.contextmanager
    def case(self, name):
        """Folder and log of a case; what the case started and did not share ends with it, and so do its tables on the shared cluster.

        What a failed case has shared ends too, so that no other depends on what it left."""
        self.here = self.folder / name
        self.here.mkdir()
        self.own, self.clients, self.closing = [], [], []
        try:
            yield
            if "cluster" in self.parts:
                self.parts["cluster"].clear(self)
            for client in self.clients:
                with contextlib.suppress(Failed):
                    client.ask("close")
        except BaseException as error:
            self.trouble = self.trouble_of_others(error)
            with open(self.here / "case.log", "w") as log:
                traceback.print_exc(file=log)
            self.reset()
            raise
        finally:
            for process in reversed(self.own):
                self.stop(process)
            for close in self.closing:
                close()

    def trouble_of_others(self, error):
        """Why a case failed, if a real server ended by itself, or its client can't reach it or says nothing; `None` = it may be us."""
        servers = {pathlib.Path(process.log).stem: process for process in self.processes if process.real}
        ended = [f"the real {name} ended with {process.returncode}: {tail(process.log)}" for name, process in servers.items()
                 if process.poll() not in (None, -signal.SIGKILL, -signal.SIGTERM)]
        text = str(error)
        if text.startswith("client-old:") and (isinstance(error, NoAnswer) or "Connection refused" in text):
            running = [name for name, process in servers.items() if process.poll() is None]
            ended.append(f"{text.splitlines()[0]} (running: {', '.join(running)})")
        return "\n".join(ended) or None

    def reset(self):
        """Ends everything."""
        for process in self.processes.copy():
            self.stop(process, kill=True)
        self.parts = {}

    def close(self, keep):
        self.reset()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    # ---- processes

    def start(self, name, argv, shared=False, folder=None, real=False, **options):
        """Starts a process with its output in NAME.log, in a session of its own. `real`: a server that is not ours."""
        log = open((folder or (self.folder if shared else self.here)) / f"{name}.log", "ab")
        process = subprocess.Popen(list(map(str, argv)), **{"stdin": subprocess.DEVNULL, "stdout": log, **options}, stderr=log,
                                   start_new_session=True, preexec_fn=die_with_parent)
        log.close()
        process.log, process.real = log.name, real
        self.processes.append(process)
        if not shared:
            self.own.append(process)
        return process

    def stop(self, process, kill=False):
        if process.poll() is None:
            (process.kill if kill else process.terminate)()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process in self.processes:
            self.processes.remove(process)

    def shared(self, name, make):
        """A part that several cases use; made when first asked for, and again when its process has ended."""
        part = self.parts.get(name)
        if part is None or (isinstance(part, Lines) and part.process.poll() is not None):
            part = self.parts[name] = make()
        return part

    # ---- the product

    def lakeward(self):
        return pathlib.Path(os.environ["LAKEWARD_BIN"]).absolute()

    def node(self, *flags):
        """A fresh `lakeward node` of this case."""
        address = f"127.0.0.1:{free_port()}"
        node = Node(address, self.here / "node" / "warehouse", self.here / "node")
        node.argv = [self.lakeward(), "node", "--dir", node.folder, "--listen", address, "--warehouse", node.warehouse, *flags]
        self.serve(node)
        return node

    def serve(self, node):
        """Starts a node, for the first time or again."""
        node.process = self.start("node", node.argv)

        def listens():
            check(node.process.poll() is None, f"the node ended with {node.process.returncode}: {tail(node.process.log)}")
            with contextlib.suppress(OSError):
                socket.create_connection(node.address.split(":"), 1).close()
                return True
        until(20, "node", listens)

    def round(self, server, *flags, fail=None, codes=(0,), name="run", seconds=240, env=None):
        """`lakeward run --once`: the summaries of its rounds, and how it ended."""
        argv = [self.lakeward(), "run", "--server", server, "--once", "--json", *flags]
        env = {**os.environ, **({"LAKEWARD_FAIL": fail} if fail else {}), **(env or {})}
        process = self.start(name, argv, stdout=subprocess.PIPE, env=env)
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"`lakeward run --once` did not end within {seconds} s: {tail(process.log)}")
        check(process.returncode in codes, f"`lakeward run --once` ended with {process.returncode}: {tail(process.log)}")
        return [json.loads(line) for line in out.decode().splitlines()], process.returncode

    def says(self, *args, seconds=60):
        """What a command of the product prints as JSON lines."""
        argv = list(map(str, [self.lakeward(), *args, "--json"]))
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds)
        check(done.returncode == 0, f"`{' '.join(argv[1:])}` ended with {done.returncode}: {done.stderr.decode()[-800:]}")
        return [json.loads(line) for line in done.stdout.decode().splitlines()]

    def rounds_until(self, server, wanted, seconds=90):
        """Calls `round` until tables of `wanted` (db.table) have been committed: a table is handed out one freshness after its creation."""
        missing, done = set(wanted), []

        def attempt():
            done.extend(self.round(server)[0])
            missing.difference_update(table_name(r) for r in done if r["outcome"] != "idle")
            return not missing
        until(seconds, f"round of {', '.join(sorted(missing))}", attempt)
        return done

    # ---- Java

    def java(self, name, heap, class_path, main, *flags, shared=True):
        paths = ":".join(f"{JARS}/{folder}/*" for folder in class_path)
        argv = ["java", f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Duser.timezone=UTC", "--add-opens=java.base/java.nio=ALL-UNNAMED",
                f"-Dlog4j.configurationFile={HERE}/java/log4j2.properties", f"-Dlog4j2.configurationFile={HERE}/java/log4j2.properties",
                *flags, "-cp", f"{CLASSES}/{class_path[0]}:{paths}", main]
        return Lines(name, self.start(name, argv, shared=shared, stdin=subprocess.PIPE, stdout=subprocess.PIPE))

    def client(self, at, old=False, login=None):
        """The official Java client (1.0.0, or 0.9.1), connected to a server; `login` are its options for that."""
        folder = "client-old" if old else "client-new"
        client = Client(self.shared(folder, lambda: self.java(folder, "512m", [folder, "log", "json"], "FlussClient")), at, login, at in self.real)
        self.clients.append(client)
        return client

    def paimon(self, old=False):
        """Java Paimon 1.4.2, or 1.3.1 as the 0.9.1 servers and the Flink job have it."""
        name, folders = ("paimon-old", ["plugins/paimon", "slf4j", "log", "json"]) if old else ("paimon", ["paimon", "s3", "slf4j", "json"])
        return self.shared(name, lambda: self.java(name, "512m", folders, "PaimonReader"))

    def cluster(self):
        """A real Fluss 0.9.1 cluster."""
        import cluster
        return self.shared("cluster", lambda: cluster.up(self))


def table_name(summary):
    """`db.table` of a round."""
    return f"{summary['table']['database']}.{summary['table']['table']}"


class Node:
    def __init__(self, address, warehouse, folder):
        self.address, self.warehouse, self.folder = address, warehouse, folder

    def table(self, name):
        database, table = name.split(".")
        return self.warehouse / f"{database}.db" / table


class Lines:
    """A program that answers JSON lines with JSON lines. An answer that does not come in time is a failure, not a wait."""

    def __init__(self, name, process):
        self.name, self.process, self.answers = name, process, queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put(None)

    def ask(self, cmd, seconds=90, **request):
        try:
            self.process.stdin.write(json.dumps({"cmd": cmd, **request}, default=str).encode() + b"\n")
            self.process.stdin.flush()
            line = self.answers.get(timeout=seconds)
        except (queue.Empty, BrokenPipeError) as error:
            self.process.kill()
            raise NoAnswer(f"{self.name}: no answer to `{cmd}` within {seconds} s ({type(error).__name__}): {tail(self.process.log)}")
        if line is None:
            raise Failed(f"{self.name} ended at `{cmd}`: {tail(self.process.log)}")
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(self.name, cmd, answer["error"], answer["message"])
        return answer["ok"]


class NoAnswer(Failed):
    """The other side says nothing."""


class Refused(Failed):
    """The other side answered with an error."""

    def __init__(self, who, cmd, error, message):
        super().__init__(f"{who}: `{cmd}` refused: {error}: {message}")
        self.error, self.message = error, message


class Client:
    """The Java client at one address."""

    def __init__(self, lines, at, options=None, real=False):
        self.lines, self.at, self.options, self.real = lines, at, options or {}, real

    def ask(self, cmd, table=None, seconds=90, **request):
        if table:
            request["table"] = table
        if cmd == "create" and self.real and request.get("partitions"):
            request["settle"] = True
        return self.lines.ask(cmd, seconds, at=self.at, client=self.options, **request)

    def refuses(self, error, cmd, table=None, **request):
        """The call fails in time, with that error."""
        try:
            answer = self.ask(cmd, table, **request)
        except Refused as refused:
            check(error in (refused.error, None), f"`{cmd}`: {refused.error} ({refused.message}) instead of {error}")
            return refused
        raise Failed(f"`{cmd}` should have been refused with {error}, got {answer}")


def tail(path, lines=12):
    return "\n".join(pathlib.Path(path).read_text(errors="replace").splitlines()[-lines:])
