"""A frame proxy between a tiering job and the coordinator: it holds requests by their api key, and lets the job ask for tables only when a case wants it."""
import contextlib
import socket
import struct
import threading

import frames
from frames import HEARTBEAT
from world import Failed


class Proxy:
    """Listens at one local port, passes frames on to another. Requests and answers of a connection are pumped by a thread each."""

    def __init__(self, listen, target):
        self.target, self.holds, self.lock = target, {}, threading.Condition()
        self.asks = False  # whether its heartbeats may ask for a table
        self.held = set()  # ids of tables handed out, and not reported as done yet
        self.sockets = []
        self.listener = socket.create_server(("127.0.0.1", listen))
        self._spawn(self._accept)

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for s in self.sockets:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def hold(self, key):
        """Requests of this key are kept from now on, until they are released; others pass."""
        with self.lock:
            self.holds[key] = hold = Hold(self, key)
        return hold

    def wait(self, seconds, what, reached):
        """Waits for a state that the pumps change."""
        with self.lock:
            if not self.lock.wait_for(reached, seconds):
                raise Failed(f"no {what} within {seconds} s")

    def _spawn(self, function, *args):
        threading.Thread(target=function, args=args, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                inside, _ = self.listener.accept()
                outside = socket.create_connection(("127.0.0.1", self.target))
                self.sockets += [inside, outside]
                link = Link(outside)
                self._spawn(self._pump, inside, outside, lambda frame, link=link: self._request(link, frame))
                self._spawn(self._pump, outside, inside, lambda frame, link=link, inside=inside: self._answer(link, inside, frame))

    def _pump(self, source, sink, each):
        with contextlib.suppress(OSError):
            file = source.makefile("rb")
            while (frame := frames.read(file)) is not None:
                each(frame)
        for s in (source, sink):  # a client that is gone takes what we hold of it along
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def _request(self, link, frame):
        key, _, number = struct.unpack(">hhi", frame[:8])
        with self.lock:
            if key == HEARTBEAT:
                body = frame[8:]
                if not self.asks:
                    body = frames.message(*((n, 0 if n == 4 else value) for n, value in frames.fields(body)))
                    frame = frame[:8] + body
                link.reports[number] = {frames.first(one, 1) for n, one in frames.fields(body) if n in (2, 3)}
            hold = self.holds.get(key)
            if hold:
                hold.frames.append((link, frame))
                self.lock.notify_all()
                return
        link.send(frame)

    def _answer(self, link, inside, frame):
        number = struct.unpack(">i", frame[1:5])[0]
        with self.lock:
            reported = link.reports.pop(number, None)
            if reported is not None and frame[0] == 0:
                self.held -= reported
                table = frames.first(frame[5:], 2)
                if table is not None:
                    self.held.add(frames.first(table, 1))
                self.lock.notify_all()
        inside.sendall(frames.framed(frame))


class Link:
    """The server's side of a connection: the pump and a release may send at the same time."""

    def __init__(self, outside):
        self.outside, self.lock, self.reports = outside, threading.Lock(), {}

    def send(self, frame):
        with self.lock, contextlib.suppress(OSError):  # gone meanwhile
            self.outside.sendall(frames.framed(frame))


class Hold:
    def __init__(self, proxy, key):
        self.proxy, self.key, self.frames = proxy, key, []

    def caught(self, seconds=60):
        """Waits until a request is held; its body."""
        self.proxy.wait(seconds, f"call {self.key} of the job", lambda: self.frames)
        return self.frames[0][1][8:]

    def release(self):
        """What is held goes on in its order, and so does what comes."""
        self._end(lambda link, frame: link.send(frame))

    def drop(self):
        """What is held never arrives."""
        self._end(lambda link, frame: None)

    def _end(self, each):
        with self.proxy.lock:
            if self.proxy.holds.get(self.key) is self:
                del self.proxy.holds[self.key]
            for link, frame in self.frames:
                each(link, frame)
            self.frames = []
