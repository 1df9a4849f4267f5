"""Readers of a lake table, Java Paimon of two versions and pypaimon, that answer in the same text form (README.md); they write too."""
import datetime
import decimal
import json
import os
import struct

from world import Failed, Refused, check


class Java:
    def __init__(self, world, folder, old=False, store=None):
        self.name = "Java Paimon 1.3.1" if old else "Java Paimon"
        self.lines, self.folder, self.store = world.paimon(old), str(folder), {"store": store} if store else {}

    def ask(self, cmd, **request):
        return self.lines.ask(cmd, table=self.folder, **self.store, **request)

    def schema(self):
        return self.ask("schema")

    def files(self):
        return self.ask("files")

    def snapshot(self):
        return self.ask("snapshot")

    def rows(self, columns=None, where=None):
        return self.ask("read", **({"columns": columns} if columns else {}), **({"where": where} if where else {}))

    def filters(self, id, filters):
        """For each filter the ids of the rows that it gives, or why it fails."""
        size = 100  # each answer comes in time
        return [ids for i in range(0, len(filters), size) for ids in self.ask("filters", id=id, filters=filters[i:i + size])]

    def refuses(self, error, cmd, **request):
        """The call fails, with an exception of that class; its message."""
        try:
            answer = self.ask(cmd, **request)
        except Refused as refused:
            check(error == refused.error, f"{self.name}: `{cmd}`: {refused.error} ({refused.message}) instead of {error}")
            return refused.message
        raise Failed(f"{self.name}: `{cmd}` should have been refused with {error}, got {answer}")

    def append(self, rows, **how):
        """Commits rows; `overwrite` names the partition that they replace, `options` are dynamic."""
        return self.ask("append", rows=rows, **how)


class Python:
    name = "pypaimon"

    def __init__(self, folder):
        from pypaimon.catalog.catalog_environment import CatalogEnvironment
        from pypaimon.common.file_io import FileIO
        from pypaimon.common.identifier import Identifier
        from pypaimon.common.options import Options
        from pypaimon.schema.schema_manager import SchemaManager
        from pypaimon.table.file_store_table import FileStoreTable
        folder = str(folder)
        files = FileIO.get(folder, Options({"warehouse": os.path.dirname(folder), "path": folder}))
        schema = SchemaManager(files, folder).latest()
        self.table = FileStoreTable(files, Identifier.create("db", os.path.basename(folder)), folder, schema, CatalogEnvironment.empty())
        newest = max(int(name.split("-")[1]) for name in os.listdir(os.path.join(folder, "schema")) if name.startswith("schema-"))
        with open(os.path.join(folder, "schema", f"schema-{newest}")) as f:
            self.types = {field["name"]: field["type"] for field in json.load(f)["fields"]}

    def rows(self, columns=None, where=None):
        builder = self.table.new_read_builder()
        if where:  # before the projection: else pypaimon numbers the columns by it and prunes by other columns' statistics
            p = builder.new_predicate_builder()
            make = {"=": p.equal, "<": p.less_than, "<=": p.less_or_equal, ">": p.greater_than, ">=": p.greater_or_equal,
                    "null": p.is_null, "not null": p.is_not_null}
            builder = builder.with_filter(p.and_predicates(
                [make[op](column, *(literal(v, self.types[column]) for v in value)) for column, op, *value in where]))
        if columns:
            builder = builder.with_projection(columns)
        data = builder.new_read().to_arrow(builder.new_scan().plan().splits())
        columns = columns or list(self.types)
        shown = [[show(v, self.types[c]) for v in plain(data.column(c))] for c in columns]
        return [list(row) for row in zip(*shown)]

    def filters(self, id, filters):
        def one(where):
            try:
                return [row[0] for row in self.rows(list(dict.fromkeys([id, where[0]])), [where])]
            except Exception as error:  # a reader that gives up is reported with its filter, like a wrong answer
                return f"{type(error).__name__}: {str(error)[:200]}"
        return [one(where) for where in filters]

    def append(self, rows, overwrite=None):
        import pyarrow
        from pypaimon.schema.data_types import PyarrowFieldParser
        schema = PyarrowFieldParser.from_paimon_schema(self.table.table_schema.fields)
        columns = [[row[i] if row[i] is None else literal(row[i], kind) for row in rows] for i, kind in enumerate(self.types.values())]
        builder = self.table.new_batch_write_builder()
        if overwrite:
            builder = builder.overwrite(overwrite)
        write, commit = builder.new_write(), builder.new_commit()
        write.write_arrow(pyarrow.Table.from_arrays([pyarrow.array(c, f.type) for c, f in zip(columns, schema)], schema=schema))
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()


def plain(column):
    """Python values of an Arrow column; timestamps as nanoseconds."""
    import pyarrow
    if pyarrow.types.is_timestamp(column.type):
        unit = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[column.type.unit]
        return [None if v is None else v * unit for v in column.cast(pyarrow.int64()).to_pylist()]
    return column.to_pylist()


def root(kind):
    return kind.split("(")[0].split(" ")[0]


def precision(kind):
    return int(kind[kind.index("(") + 1:kind.index(")")].split(",")[0])


def show(v, kind):
    """The text form of a value that pypaimon gave."""
    if v is None:
        return None
    if isinstance(kind, dict):
        name = root(kind["type"])
        if name == "ARRAY":
            return [show(x, kind["element"]) for x in v]
        if name == "MAP":
            return sorted(([show(k, kind["key"]), show(x, kind["value"])] for k, x in (v.items() if isinstance(v, dict) else v)), key=str)
        return {field["name"]: show(v.get(field["name"]), field["type"]) for field in kind["fields"]}
    name = root(kind)
    if name == "FLOAT":
        return struct.pack(">f", v).hex()
    if name == "DOUBLE":
        return struct.pack(">d", v).hex()
    if name == "DECIMAL":
        return format(v, "f")
    if name in ("BINARY", "VARBINARY", "BYTES"):
        return v.hex()
    if name == "DATE":
        return v.isoformat()
    if name == "TIME":
        return v.strftime("%H:%M:%S.") + "%03d" % (v.microsecond // 1000)
    if name == "TIMESTAMP":
        if isinstance(v, datetime.datetime):  # inside nested values
            whole = v.replace(tzinfo=None) - datetime.datetime(1970, 1, 1)
            v = (whole.days * 86_400 + whole.seconds) * 10**9 + whole.microseconds * 1000
        seconds, nanos = divmod(v, 10**9)
        text = (datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)).isoformat()
        p = precision(kind)
        return text + (".%09d" % nanos)[:p + 1 if p else 0] + ("Z" if "LOCAL" in kind else "")
    return v


def literal(text, kind):
    """What pypaimon wants to be given for a value in text form."""
    name = root(kind)
    if name == "FLOAT":
        return struct.unpack(">f", bytes.fromhex(text))[0]
    if name == "DOUBLE":
        return struct.unpack(">d", bytes.fromhex(text))[0]
    if name == "DECIMAL":
        return decimal.Decimal(text)
    if name in ("BINARY", "VARBINARY", "BYTES"):
        return bytes.fromhex(text)
    if name == "DATE":
        return datetime.date.fromisoformat(text)
    if name == "TIME":
        return datetime.time.fromisoformat(text)
    if name == "TIMESTAMP":
        seconds, _, fraction = text.rstrip("Z").partition(".")
        return datetime.datetime.fromisoformat(seconds).replace(microsecond=int((fraction + "000000")[:6]),
                                                                tzinfo=datetime.timezone.utc if "LOCAL" in kind else None)
    return text


def order(text, kind):
    """Something that sorts as the values do."""
    name = root(kind)
    if name in ("FLOAT", "DOUBLE", "DECIMAL", "BINARY", "VARBINARY", "BYTES"):
        return literal(text, kind)
    return text.encode() if isinstance(text, str) else text
