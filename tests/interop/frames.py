"""Fluss frames and their protobuf bodies as far as the cases touch them (fluss-tiering.md 2), and the private calls of tiering services."""
import itertools
import socket
import struct

HEARTBEAT, PREPARE, COMMIT = 1042, 1052, 1030


def read(file):
    """The next frame without its length; None at the end."""
    head = file.read(4)
    if len(head) < 4:
        return None
    return file.read(int.from_bytes(head, "big"))


def framed(payload):
    return len(payload).to_bytes(4, "big") + payload


def varint(value):
    out, value = bytearray(), value & (1 << 64) - 1
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def message(*parts):
    """A message of (number, value): integers and booleans as varints, text, bytes (nested messages too); None is left out."""
    out = b""
    for number, value in parts:
        if value is None:
            continue
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def fields(body):
    """All (number, value) of a message: integers, and bytes for anything else."""
    at, out = 0, []

    def number():
        nonlocal at
        value = 0
        for shift in itertools.count(0, 7):
            value |= (body[at] & 0x7F) << shift
            at += 1
            if not body[at - 1] & 0x80:
                return value
    while at < len(body):
        tag = number()
        if tag & 7 == 0:
            out.append((tag >> 3, number()))
        elif tag & 7 == 2:
            size = number()
            out.append((tag >> 3, body[at:at + size]))
            at += size
        else:
            raise ValueError(f"wire type {tag & 7}")
    return out


def every(body, number):
    return [value for n, value in fields(body) if n == number]


def first(body, number):
    return next(iter(every(body, number)), None)


def call(address, key, body):
    """One request on a connection of its own."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), 30) as s:
        s.sendall(framed(struct.pack(">hhi", key, 0, 1) + body))
        answer = read(s.makefile("rb"))
    if answer is None or answer[0] != 0:
        raise OSError(f"call {key} was answered with {answer}")
    return answer[5:]


def expire(address, table_id):
    """What the end of a lease does: somebody who names its epoch reports the table failed (the coordinator knows no owners, 1.3), so it is queued again."""
    _report(address, table_id, 3)


def renew(address, table_id):
    """Keeps a lease alive in its holder's place."""
    _report(address, table_id, 1)


def _report(address, table_id, kind):
    """Nobody tells us the epoch: all are named, from above, so that one alone is the present one."""
    epochs = range(600, 0, -1)
    answer = call(address, HEARTBEAT, message(*((kind, message((1, table_id), (2, 0), (3, epoch))) for epoch in epochs)))
    accepted = [entry for entry in every(answer, kind + 2) if first(entry, 2) is None]
    if len(accepted) != 1:
        raise OSError(f"{len(accepted)} of {len(epochs)} epochs of table {table_id} were accepted")
