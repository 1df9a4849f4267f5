"""What must hold for a table in the lake, asked of each reader."""
import collections
import operator

from readers import Java, Python, literal, order, root
from rows import normal
from world import check, same

OPERATORS = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def readers(world, folder):
    """Java of both versions, and pypaimon; that one looks for partitions of bytes in folders named as Python shows bytes, so Java stands alone there."""
    java = [Java(world, folder), Java(world, folder, old=True)]
    schema = java[0].schema()
    by_bytes = any(name in schema["partitions"] and root(kind) in ("BINARY", "VARBINARY", "BYTES") for name, kind in schema["columns"])
    return java if by_bytes else [*java, Python(folder)]


def multiset(rows):
    return sorted(rows, key=str)


def rows_equal(world, folder, want, columns=None, skip=0, kinds=None, without=()):
    """All readers, `without` some by name, see exactly these rows, each as often; `skip` leaves out that many trailing columns; `kinds` are the types of nested ones."""
    for reader in readers(world, folder):
        if reader.name in without:
            continue
        got = reader.rows(columns)
        got = [row[:len(row) - skip] for row in got]
        if kinds:
            nested_equal(got, want, kinds, f"{reader.name}, {folder.name}")
        else:
            same(multiset(got), multiset(want), f"{reader.name}, {folder.name}")


def nested_equal(got, want, kinds, what):
    """The same rows by id, the first column; maps in any order. The first difference is named by row and column."""
    same(sorted(row[0] for row in got), sorted(row[0] for row in want), f"{what}: ids")
    by_id = {row[0]: row for row in want}
    for row in got:
        for i, (value, kind) in enumerate(zip(row, kinds)):
            same(normal(value, kind), normal(by_id[row[0]][i], kind), f"{what}: row {row[0]}, column {i} {kind}")


def filters(columns, rows):
    """For each column: is null, is not null, and comparisons with its smallest, greatest and middle value; with the ids that each must give."""
    for i, (column, kind) in enumerate(columns):
        present = [row for row in rows if row[i] is not None]
        yield [column, "null"], [row[0] for row in rows if row[i] is None]
        yield [column, "not null"], [row[0] for row in present]
        values = sorted({row[i] for row in present if not odd(row[i], kind)}, key=lambda v: order(v, kind))
        ordered = root(kind) not in ("BINARY", "VARBINARY", "BYTES", "BOOLEAN") and not any(odd(row[i], kind) for row in present)
        for value, operators in ((values[0], "= <= <"), (values[-1], "= >= >"), (values[len(values) // 2], "= < >")) if values else ():
            for op in operators.split():
                if op == "=" or ordered:
                    key = order(value, kind)
                    yield [column, op, value], [row[0] for row in present if OPERATORS[op](order(row[i], kind), key)]


def odd(value, kind):
    """NaN and negative zero: readers differ on how they compare."""
    return root(kind) in ("FLOAT", "DOUBLE") and (literal(value, kind) != literal(value, kind) or value.strip("0") == "8")


def filters_hold(world, folder, columns, rows, unable=()):
    """Each filter of `filters` gives the same rows as a filter of all rows. `unable`: (reader, column, type, operator) that a reader cannot do."""
    asked, wrong = 0, []
    for reader in readers(world, folder):
        able = [(where, ids) for where, ids in filters(columns, rows)
                if not any(match(rule, (reader.name, where[0], dict(columns)[where[0]], where[1])) for rule in unable)]
        asked += len(able)
        for (where, ids), got in zip(able, reader.filters(columns[0][0], [where for where, _ in able])):
            what = f"{reader.name}: {where} on {dict(columns)[where[0]]}"
            if isinstance(got, str):
                wrong.append(f"{what}: {got}")
            elif collections.Counter(got) != collections.Counter(ids):
                lost, more = collections.Counter(ids) - collections.Counter(got), collections.Counter(got) - collections.Counter(ids)
                wrong.append(f"{what}: {len(got)} rows instead of {len(ids)}; lost {list(lost)[:4]}, too many {list(more)[:4]}")
    check(not wrong, f"{folder.name}: {len(wrong)} of {asked} filters are wrong:\n    " + "\n    ".join(wrong[:40]))
    return asked


def match(rule, facts):
    return all(want in ("*", fact) or (want.endswith("*") and fact.startswith(want[:-1])) for want, fact in zip(rule, facts))


def totals(world, folder):
    """`_TOTAL_BUCKETS` in use, by partition."""
    found = collections.defaultdict(set)
    for file in Java(world, folder).files():
        found["/".join(map(str, file["partition"]))].add(file["total"])
    return dict(found)
