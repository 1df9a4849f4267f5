"""Paimon's own writers on tables that we wrote (P, appendix D.4): what they may do, what they refuse, what they spoil without a word, and what we find and hold."""
from case_readback import LAKE
from checks import rows_equal, totals
from readers import Java, Python
from world import case, check, same, until

COLUMNS = [("id", "BIGINT"), ("part", "STRING"), ("note", "STRING")]
NO_OPTION = "Cannot change bucket number through dynamic options"  # 1.3.1, of any table
REFUSED = "Try to write partition"
MIXED = "Total buckets of partition"


class Tiered:
    """A tiered table, with every row that has to be in its lake."""

    def __init__(self, world, node, client, name, keyed=True, partitions=("part",), properties=LAKE):
        self.world, self.node, self.client, self.name, self.rows = world, node, client, name, []
        client.ask("create", name, columns=COLUMNS, partitions=partitions, buckets=2, properties=properties, **({"bucket-keys": ["id"]} if keyed else {}))
        self.folder = node.table(name)

    def java(self, old=False):
        return Java(self.world, self.folder, old)

    def ours(self, part, ids, note="ours"):
        """Rows into Fluss."""
        fresh = rows(part, ids, note)
        self.client.ask("append", self.name, rows=fresh)
        self.rows += fresh

    def theirs(self, writer, part, ids, note, **how):
        """Rows into the lake."""
        fresh = rows(part, ids, note)
        writer.append(fresh, **how)
        if "overwrite" in how:
            self.rows = [row for row in self.rows if row[1] != part]
        self.rows += fresh

    def again(self, part, **how):
        """INSERT OVERWRITE of a partition from itself, by Java."""
        java = self.java()
        java.append(java.rows(where=[["part", "=", part]]), overwrite={"part": part}, **how)

    def refuses(self, text, cmd, old=False, **request):
        """Java refuses it, and nothing has changed."""
        java = self.java(old)
        before = java.snapshot()["id"]
        message = java.refuses("UnsupportedOperationException" if text == NO_OPTION else "RuntimeException", cmd, **request)
        check(text in message, f"{java.name}: `{cmd}` was refused for another reason: {message}")
        same(java.snapshot()["id"], before, f"newest snapshot after {java.name} refused `{cmd}`")

    def goes_on(self):
        self.world.rounds_until(self.node.address, [self.name])

    def held(self, *words):
        """The table is held for what the words tell; the line that says so."""
        log = self.world.here / "run.log"

        def attempt():
            known = log.stat().st_size if log.exists() else 0
            self.world.round(self.node.address, codes=(0, 5))
            return [line for line in log.read_bytes()[known:].decode().splitlines() if f"table held table={self.name} " in line]
        line = until(60, f"hold of {self.name}", attempt)[-1]
        for word in words:
            check(word in line, f"the reason does not say `{word}`: {line}")
        return line

    def equal(self):
        rows_equal(self.world, self.folder, self.rows)

    def totals(self, **want):
        found = totals(self.world, self.folder)
        same({part: found.get(part) for part in want}, want, f"{self.name}: bucket totals")


def rows(part, ids, note):
    return [[id, part, f"{note} {id}"] for id in ids]


@case("writers-one-total", "Java 1.4.2 and 1.3.1 and pypaimon append, stream, compact, overwrite, expire and sweep on our tables with one total, keyed and not, a round of ours after each: every row once, one total, no file of ours an orphan")
def one_total(world):
    node = world.node()
    client = world.client(node.address)
    tables = [Tiered(world, node, client, "w.keyed"), Tiered(world, node, client, "w.free", keyed=False)]
    total = {"w.keyed": 2, "w.free": -1}
    steps = [(f"append {old}", lambda t, old=old: t.theirs(t.java(old), "A", range(100, 110), "java")) for old in (False, True)]
    steps += [(f"stream {old}", lambda t, old=old: stream(t, old)) for old in (False, True)]
    steps += [("pypaimon", lambda t: t.theirs(Python(t.folder), "B", range(200, 210), "python"))]
    steps += [("compact", lambda t: compact(t, old=False))]
    steps += [("new partition", lambda t: t.theirs(t.java(), "N", range(300, 310), "java"))]
    steps += [("overwrite", lambda t: t.theirs(t.java(), "B", range(400, 410), "over", overwrite={"part": "B"}))]
    steps += [("overwrite by pypaimon", lambda t: t.theirs(Python(t.folder), "N", range(500, 510), "over", overwrite={"part": "N"}))]
    steps += [("compact by 1.3.1", lambda t: compact(t, old=True)), ("expire", expire)]
    ids = iter(range(1000, 10_000, 5))

    def round():
        for table in tables:
            for part in "ABN":
                table.ours(part, range(start := next(ids), start + 5))
        world.rounds_until(node.address, total)
    round()
    for name, step in steps:
        for table in tables:
            step(table)
        round()
        for table in tables:
            same(len(table.java().rows(["id"])), len(table.rows), f"{table.name}: rows after {name}")
    for table in tables:
        table.equal()
        table.totals(A={total[table.name]}, B={total[table.name]}, N={total[table.name]})
    return f"{len(steps)} actions on {len(tables)} tables, {sum(len(t.rows) for t in tables)} rows"


def stream(table, old):
    batches = [rows("A", range(n, n + 5), "stream") for n in (600, 620)]
    table.java(old).ask("stream", batches=batches)
    table.rows += batches[0] + batches[1]


def compact(table, old):
    java = table.java(old)
    before = {f["name"] for f in java.files() if f["partition"] == ["A"]}
    for bucket in sorted({f["bucket"] for f in java.files() if f["partition"] == ["A"]}):
        java.ask("compact", partition={"part": "A"}, bucket=bucket)
    same(java.snapshot()["commitKind"], "COMPACT", f"{table.name}: kind of the newest snapshot")
    after = {f["name"] for f in java.files() if f["partition"] == ["A"]}
    check(len(after) < len(before), f"{table.name}: {len(before)} files before, {len(after)} after a compaction")


def expire(table):
    java = table.java()
    recorded = table.client.ask("lake-snapshot", table.name)["id"]
    java.append([])
    table.theirs(java, "A", range(700, 705), "last")
    java.ask("expire")
    check((table.folder / f"snapshot/snapshot-{recorded}").exists(), f"{table.name}: snapshot {recorded}, which Fluss knows, has expired in spite of our pin")
    check(not (table.folder / "snapshot/snapshot-1").exists(), f"{table.name}: nothing has expired")
    same(java.ask("orphans"), 0, f"{table.name}: orphans")
    table.equal()


@case("writers-several-totals", "each row of P, D.4 on a table of ours with totals 2 and 4: refused or right where it says so; two kinds of writes mix totals without a word, which the next round with rows for that partition finds and holds, and INSERT OVERWRITE with the partition's count heals")
def several_totals(world):
    node = world.node()
    client = world.client(node.address)
    t = Tiered(world, node, client, "w.t")
    for ids in (range(0, 20), range(20, 40), range(40, 60)):  # Java compacts three files or more
        for part in "ACDEF":
            t.ours(part, ids)
        if 59 not in ids:
            t.goes_on()
    client.ask("bucket-count", "w.t", count=4)
    t.ours("B", range(60))
    t.goes_on()
    t.totals(A={2}, B={4}, C={2}, D={2}, E={2}, F={2})
    # In B, whose count is what the option says, the bucket of a key shows where a writer that goes by the option puts it.
    bucket = {row[4][0]: row[1] for row in client.ask("scan", "w.t", columns=["id", "part"]) if row[4][1] == "B"}
    low, high = ([id for id, b in bucket.items() if b in half] for half in ((0, 1), (2, 3)))
    java, old, two = t.java(), t.java(old=True), {"bucket": "2"}

    # Where the partition's total is that of the option, and in new partitions.
    for writer, name in ((java, "java"), (old, "old"), (Python(t.folder), "python")):
        t.theirs(writer, "B", range(100, 104), name)
    t.theirs(java, "N", range(100, 110), "java")
    for part in "ABN":
        t.ours(part, range(200, 205))
    t.goes_on()
    t.totals(A={2}, B={4}, N={4})

    # Another total: an occupied bucket is refused, in batches, streams and compactions; with the partition's own count 1.4.2 works.
    for older in (False, True):
        t.refuses(REFUSED, "append", old=older, rows=rows("A", low, "no"))
        t.refuses(REFUSED, "stream", old=older, batches=[rows("A", low, "no")])
        t.refuses(REFUSED, "compact", old=older, partition={"part": "A"}, bucket=0)
    t.refuses(NO_OPTION, "append", old=True, rows=rows("A", low, "no"), options=two)
    t.refuses(REFUSED, "append", rows=rows("B", range(10), "no"), options=two)
    t.theirs(java, "A", range(300, 310), "dynamic", options=two)
    java.ask("compact", partition={"part": "A"}, bucket=0, options=two)
    same(java.snapshot()["commitKind"], "COMPACT", "kind of the newest snapshot")
    t.ours("A", range(320, 330))
    t.goes_on()
    t.totals(A={2}, B={4})
    t.equal()

    # A bucket without files is not looked at: totals are mixed and nobody says so. pypaimon never looks.
    t.theirs(java, "C", high[:4], "mixed")
    t.theirs(old, "D", high[:4], "mixed")
    t.theirs(Python(t.folder), "E", low[:4], "mixed")
    t.theirs(Python(t.folder), "F", high[:4], "mixed")
    t.totals(A={2}, C={2, 4}, D={2, 4}, E={2, 4}, F={2, 4})
    t.equal()
    t.refuses(MIXED, "compact", partition={"part": "C"}, bucket=0, options=two)
    for older in (False, True):
        t.refuses(REFUSED, "compact", old=older, partition={"part": "C"}, bucket=0)
    t.ours("A", range(400, 410))  # partitions that nobody has spoilt go on
    t.goes_on()
    t.ours("A", range(410, 420))
    t.ours("C", range(410, 420))
    said = t.held("`C`", "`4` buckets in the lake, but `2` buckets in Fluss")
    statement = "CALL sys.rescale(`table` => 'w.t', `bucket_num` => 2, `partition` => 'part=C')"  # run in read-flink-sql
    check(statement in said, f"no way out in: {said}")
    t.again("C", options=two)
    t.goes_on()
    t.totals(A={2}, C={2}, D={2, 4})
    t.again("D", options=two)
    t.again("F", options=two)
    t.again("E")  # one total again, but not the one that Fluss has
    t.totals(D={2}, E={4}, F={2})
    for part in "DEF":
        t.ours(part, range(420, 430))
    t.held("`E`", "`4` buckets in the lake, but `2` buckets in Fluss")
    t.again("E", options=two)
    t.goes_on()
    t.totals(D={2}, E={2}, F={2})
    t.equal()

    # The option itself, changed by a user: no partition of ours is ever written by it.
    java.ask("set", key="bucket", value="8")
    for part in "ABG":
        t.ours(part, range(500, 510))
    t.goes_on()
    t.totals(A={2}, B={4}, G={4})
    java.ask("expire")
    java.ask("orphans")  # what the refused writers left
    t.ours("A", range(510, 520))
    t.goes_on()
    t.equal()
    return f"{len(t.rows)} rows in {len(totals(world, t.folder))} partitions"


@case("writers-bucket-option", "option `bucket` of an unpartitioned table of ours changed in the lake: held, with the ALTER TABLE that brings it back, and on from there")
def bucket_option(world):
    node = world.node()
    t = Tiered(world, node, world.client(node.address), "w.flat", partitions=())
    t.ours("", range(20))
    t.goes_on()
    t.java().ask("set", key="bucket", value="8")
    t.ours("", range(20, 40))
    said = t.held("`bucket`")
    check("ALTER TABLE `w`.`flat` SET ('bucket' = '2')" in said, f"no way out in: {said}")
    t.java().ask("set", key="bucket", value="2")
    t.goes_on()
    t.equal()
