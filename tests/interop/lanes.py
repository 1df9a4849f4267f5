"""Two lanes take cases from one list, each a process with a world of its own: much of a case is waiting.

A `timed` case asserts seconds, so nothing but a `calm` one, which mostly waits, runs beside it."""
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time

import world

fork = multiprocessing.get_context("fork")
CASE_SECONDS_MAX = int(os.environ.get("LAKEWARD_INTEROP_CASE_SECONDS", 600))  # each wait of a case has its own, shorter limit


def following(waiting, running):
    """The first of the waiting cases that may run beside those that run, if any."""
    calm = all(world.CASES[name].calm for name in running)
    timed = any(world.CASES[name].timed for name in running)
    for name in waiting:
        case = world.CASES[name]
        if (case.calm or not timed) and (calm or not case.timed):
            return name
    return None


class Lane:
    """A process that runs the cases it is told, one at a time."""

    def __init__(self):
        self.pipe, theirs = fork.Pipe()
        self.process = fork.Process(target=serve, args=(theirs, os.getpid()))
        self.process.start()
        theirs.close()
        self.name = None

    def give(self, name):
        self.name, self.begin = name, time.monotonic()
        self.pipe.send(name)

    def left(self):
        return self.begin + CASE_SECONDS_MAX - time.monotonic()

    def result(self):
        """(passed, text) of its case; a lane that ended or takes too long has failed it."""
        text = f"not done after {CASE_SECONDS_MAX} s"
        if self.pipe.poll():
            try:
                return self.pipe.recv()
            except EOFError:
                text = "its lane was killed"
        self.process.kill()
        self.process.join()
        return False, f"{text}\n    see {world.SHARED}/runs/{self.process.pid}/{self.name}"


def run(names, count):
    """Runs the cases in so many lanes and prints one line for each; how many failed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    waiting, failed, lanes = list(names), 0, [Lane() for _ in range(count)]
    try:
        while True:
            for lane in lanes:
                name = None if lane.name else following(waiting, [other.name for other in lanes if other.name])
                if name:
                    waiting.remove(name)
                    lane.give(name)
            busy = [lane for lane in lanes if lane.name]
            if not busy:
                return failed
            ready = multiprocessing.connection.wait([lane.pipe for lane in busy], max(0, min(lane.left() for lane in busy)))
            for lane in busy:
                if lane.pipe not in ready and lane.left() > 0:
                    continue
                passed, text = lane.result()
                failed += not passed
                tail = ("  " if passed else "\n    ") + text if text else ""
                print(f"{'ok' if passed else 'FAILED':<6}  {time.monotonic() - lane.begin:6.1f} s  {lane.name}{tail}", flush=True)
                lane.name = None
                if not lane.process.is_alive():
                    lanes[lanes.index(lane)] = Lane()
    finally:
        for lane in lanes:
            if lane.name:
                lane.process.terminate()
            else:
                with contextlib.suppress(OSError):
                    lane.pipe.send(None)
        for lane in lanes:
            lane.process.join(30)
            lane.process.kill()


def serve(pipe, parent):
    """The lane's side: runs cases until it is told none."""
    world.die_with_parent()
    os.setpgid(0, 0)  # Ctrl-C is for the one that tells us
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    w, failed = world.World(), False
    try:
        while os.getppid() == parent and (name := pipe.recv()):
            passed, text = attempt(w, name)
            failed |= not passed
            pipe.send((passed, text))
    finally:
        w.close(keep=failed)


def attempt(w, name):
    """A real server, or its client, that ends or falls silent (README.md) gets a second chance, with everything made afresh; nobody else does."""
    first = None
    while True:
        try:
            with w.case(f"{name}-again" if first else name):
                text = world.CASES[name].run(w) or ""
                return True, f"{text}  (second attempt: {first.splitlines()[0]})" if first else text
        except Exception as error:  # a case may fail in any way, the others still run
            if w.trouble and not first:
                first = w.trouble
                continue
            text = str(error).strip() or repr(error)
            return False, "\n    ".join([*([f"at first: {first}"] if first else []), text, *([w.trouble] if w.trouble else []), f"see {w.here}/case.log"])
