"""Columns of every scalar type and of nested ones, and rows that are a pure function of their id, in the text form of README.md.

A scalar type is its text; a nested one is ("ARRAY", element), ("MAP", key, value) or ("ROW", {name: type}). A " NOT NULL" behind a text or as a last member means that."""
import datetime
import decimal
import random
import struct

decimal.getcontext().prec = 60

F32 = ["3f800000", "bf800000", "7f7fffff", "ff7fffff", "00000001", "80000001", "7f800000", "ff800000", "00000000"]
F64 = ["3ff0000000000000", "bff0000000000000", "7fefffffffffffff", "ffefffffffffffff", "0000000000000001", "7ff0000000000000", "fff0000000000000", "0000000000000000"]
TEXT = ["", "a", "lake", "a string that is longer than sixteen characters", "a string that is longer than sixteen letters", "ä€😀", "日本語のとても長い文字列です、はい。", " ",
        "\u007f", "\uffff" * 20, "tab\tnew\nline", "zz", "'\"\\"]


def decimals(p, s):
    greatest = decimal.Decimal(10 ** p - 1).scaleb(-s)
    return [format(greatest, "f"), format(-greatest, "f"), format(decimal.Decimal(0).scaleb(-s), "f"), format(decimal.Decimal(1).scaleb(-s), "f"), format(decimal.Decimal(-1).scaleb(-s), "f")]


def stamp(seconds, nanos, p, zone):
    text = (datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)).isoformat()
    return text + (".%09d" % nanos)[:p + 1 if p else 0] + zone


def stamps(p, zone):
    edges = [(-62135596800, 0), (253402300799, 999_999_999)] if p <= 6 else [(-9_223_372_036, 145_224_193), (9_223_372_036, 854_775_807)]
    return [stamp(s, n, p, zone) for s, n in edges + [(0, 0), (-1, 999_999_999), (-1, 0), (1_704_067_200, 123_456_789), (1_709_210_096, 500_000_000)]]


def integers(bits):
    return [2 ** (bits - 1) - 1, -2 ** (bits - 1), 0, 1, -1, 42]


def time(ms):
    return "%02d:%02d:%02d.%03d" % (ms // 3_600_000, ms // 60_000 % 60, ms // 1000 % 60, ms % 1000)


def maker(name, kind):
    """Edge values of a column, and a function of a random generator for the others."""
    if name == "nan32":
        return ["7fc00000", "80000000", "3f800000", "bf800000"], lambda r: struct.pack(">f", r.uniform(1, 1e6)).hex()
    if name == "nan64":
        return ["7ff8000000000000", "8000000000000000", "3ff0000000000000", "bff0000000000000"], lambda r: struct.pack(">d", r.uniform(1, 1e6)).hex()
    name, args = kind.split("(")[0], [int(x) for x in kind[kind.index("(") + 1:-1].split(",")] if "(" in kind else []
    if name == "BOOLEAN":
        return [True, False], lambda r: r.random() < 0.5
    if name in ("TINYINT", "SMALLINT", "INT", "BIGINT"):
        bits = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}[name]
        return integers(bits), lambda r: r.getrandbits(bits) - 2 ** (bits - 1)
    if name == "FLOAT":
        return F32, lambda r: struct.pack(">f", r.uniform(-1e6, 1e6)).hex()
    if name == "DOUBLE":
        return F64, lambda r: struct.pack(">d", r.uniform(-1e9, 1e9)).hex()
    if name == "DECIMAL":
        p, s = args
        return decimals(p, s), lambda r: format(decimal.Decimal(r.randint(-10 ** p + 1, 10 ** p - 1)).scaleb(-s), "f")
    if name == "CHAR":
        return ["x" * args[0], "é" + "y" * (args[0] - 1), "~" * args[0]], lambda r: "".join(r.choice("abcxyz019") for _ in range(args[0]))
    if name == "STRING":
        return TEXT, lambda r: "".join(r.choice("abcdefghijklmnopqrstuvwxyz 0123456789é") for _ in range(r.randint(0, 40)))
    if name == "BINARY":
        return ["00" * args[0], "ff" * args[0], "7f80" * (args[0] // 2)], lambda r: r.randbytes(args[0]).hex()
    if name == "BYTES":
        return ["", "00", "ff", "ff" * 40, "00" * 40], lambda r: r.randbytes(r.randint(0, 40)).hex()
    if name == "DATE":
        return ["0001-01-01", "9999-12-31", "1969-12-31", "1970-01-01", "2024-02-29"], lambda r: datetime.date.fromordinal(r.randint(1, 3_652_059)).isoformat()
    if name == "TIME":
        unit = 1000 // 10 ** min(args[0], 3)
        return [time(0), time(86_400_000 - unit), time(43_200_000)], lambda r: time(r.randrange(86_400_000 // unit) * unit)
    p, zone = args[0], "Z" if name == "TIMESTAMP_LTZ" else ""
    low, high = (-62135596800, 253402300799) if p <= 6 else (-9_223_372_035, 9_223_372_035)
    return stamps(p, zone), lambda r: stamp(r.randint(low, high), r.randrange(10 ** 9), p, zone)


SCALARS = [("id", "BIGINT"), ("bool", "BOOLEAN"), ("i8", "TINYINT"), ("i16", "SMALLINT"), ("i32", "INT"), ("i64", "BIGINT"), ("f32", "FLOAT"), ("f64", "DOUBLE")]
SCALARS += [(f"dec{p}_{s}", f"DECIMAL({p},{s})") for p, s in ((1, 0), (5, 2), (9, 9), (18, 4), (19, 0), (38, 10), (38, 38))]
SCALARS += [("nan32", "FLOAT"), ("nan64", "DOUBLE"), ("char1", "CHAR(1)"), ("char20", "CHAR(20)"), ("string", "STRING"), ("binary4", "BINARY(4)"), ("bytes", "BYTES"), ("date", "DATE")]
SCALARS += [(f"time{p}", f"TIME({p})") for p in range(10)] + [(f"ts{p}", f"TIMESTAMP({p})") for p in range(10)] + [(f"ltz{p}", f"TIMESTAMP_LTZ({p})") for p in range(10)]


def row(id, columns):
    """The first rows hold the edge values, each seventh value is NULL, the id never."""
    values = [id]
    for i, (name, kind) in enumerate(columns[1:], 1):
        edges, other = maker(name, kind)
        if id >= 12 and (id + i) % 7 == 0:
            values.append(None)
        elif id < len(edges):
            values.append(edges[id])
        else:
            values.append(other(random.Random(f"{name} {id}")))
    return values


def rows(ids, columns):
    return [row(id, columns) for id in ids]


# ---- nested columns

LOW = [(name, kind) for name, kind in SCALARS[1:] if not kind.endswith(("(7)", "(8)", "(9)")) or kind.startswith("TIME(")]  # TIMESTAMP(7–9) can't be inside
KEYS = [(name, kind) for name, kind in LOW if not name.startswith("nan")]
NESTED = [("id", "BIGINT")] + [(f"l_{name}", ("ARRAY", kind)) for name, kind in LOW] + [(f"m_{name}", ("MAP", kind, "BIGINT")) for name, kind in KEYS]
NESTED += [
    ("every", ("ROW", dict(LOW))),
    ("ll", ("ARRAY", ("ARRAY", "STRING"))),
    ("lll", ("ARRAY", ("ARRAY", ("ARRAY", "INT")))),
    ("l_required", ("ARRAY", "INT NOT NULL")),
    ("m_list", ("MAP", "STRING", ("ARRAY", "DECIMAL(20,3)"))),
    ("m_map", ("MAP", "INT", ("MAP", "STRING", "DATE"))),
    ("m_row", ("MAP", "BIGINT", ("ROW", {"at": "TIMESTAMP_LTZ(6)", "tags": ("ARRAY", "STRING")}))),
    ("rrr", ("ROW", {"a": "INT", "b": ("ROW", {"c": "STRING", "d": ("ROW", {"e": "BOOLEAN", "f": "BINARY(4)"})})})),
    ("r_required", ("ROW", {"a": "INT NOT NULL", "b": ("ROW", {"c": "STRING NOT NULL"}, "NOT NULL")})),
    ("l_row", ("ARRAY", ("ROW", {"k": "STRING", "v": "DOUBLE", "l": ("ARRAY", "TIMESTAMP(3)")}))),
    ("l_map", ("ARRAY", ("MAP", "STRING", ("ROW", {"x": "TIME(3)", "y": ("MAP", "INT", "BYTES")})))),
]


def text(kind):
    """A type as SQL."""
    if isinstance(kind, str):
        return kind
    inside = ", ".join(f"`{name}` {text(k)}" for name, k in kind[1].items()) if kind[0] == "ROW" else ", ".join(map(text, kind[1:]))
    return f"{kind[0]}<{inside}>" + (" NOT NULL" if kind[-1] == "NOT NULL" and kind[0] == "ROW" else "")


def columns_text(columns):
    return [(name, text(kind)) for name, kind in columns]


def nested(name, kind, r, edges):
    """A value of the type; `edges` says that lists hold all edge values of their elements, which else come in small numbers."""
    if isinstance(kind, str):
        low, other = maker(name, kind.removesuffix(" NOT NULL"))
        return r.choice(low) if r.random() < 0.3 else other(r)
    if kind[0] == "ROW":
        return {field: maybe(field, k, r, edges) for field, k in kind[1].items()}
    count = r.choice((0, 1, 2, 3, 5))
    if kind[0] == "ARRAY":
        if edges and isinstance(kind[1], str):
            return list(maker(name.removeprefix("l_"), kind[1].removesuffix(" NOT NULL"))[0])
        return [maybe(name.removeprefix("l_"), kind[1], r, edges) for _ in range(count)]
    keys = {}
    for _ in range(count):
        key = nested(name.removeprefix("m_"), kind[1], r, edges)
        if key not in ("80000000", "8000000000000000"):  # −0 and 0 are one key for Python
            keys[key] = maybe(name, kind[2], r, edges)
    return [[k, v] for k, v in keys.items()]


def maybe(name, kind, r, edges):
    required = kind.endswith("NOT NULL") if isinstance(kind, str) else kind[-1] == "NOT NULL"
    return None if not required and r.random() < 1 / 7 else nested(name, kind, r, edges)


def blank(kind):
    """The column's second and third row: empty, or all NULL inside."""
    if kind[0] != "ROW":
        return [], [] if kind[0] == "MAP" or kind[1] == "INT NOT NULL" else [None, None]
    if any(k == "INT NOT NULL" for k in kind[1].values()):
        return {"a": 0, "b": {"c": ""}}, None
    return {field: None for field in kind[1]}, {field: None if isinstance(k, str) else blank(k)[0] for field, k in kind[1].items()}


def nested_rows(ids, columns):
    """NULL in row 0 but for the id, empty and NULL inside in the next two, then edge values, then any."""
    def value(id, i, name, kind):
        if id < 3:
            return (None, *blank(kind))[id]
        return maybe(name, kind, random.Random(f"{name} {id}"), id < 6)
    return [[id] + [value(id, i, name, kind) for i, (name, kind) in enumerate(columns[1:])] for id in ids]


def normal(value, kind):
    """The value with its maps in one order: that of the text of their pairs."""
    if value is None or isinstance(kind, str):
        return value
    if kind[0] == "ROW":
        return {field: normal(value[field], k) for field, k in kind[1].items()}
    if kind[0] == "ARRAY":
        return [normal(v, kind[1]) for v in value]
    return sorted(([k, normal(v, kind[2])] for k, v in value), key=str)
