"""pyfluss against one address; prints what it saw as one JSON object."""
import asyncio
import json
import os
import sys
import time

import fluss
import pyarrow as pa


async def poll(seconds, wanted, take):
    rows, end = [], time.monotonic() + seconds
    while len(rows) < wanted and time.monotonic() < end:
        rows += await take()
    return rows


async def error(call):
    try:
        await (call() if callable(call) else call)
    except Exception as e:
        return str(e)
    return None


async def keyed(connection, admin, schema, path):
    """Upserts, deletes, look-ups, the changelog, and a scan with a limit; a partitioned table, too."""
    await admin.create_table(path, fluss.TableDescriptor(fluss.Schema(schema, primary_keys=["a"]), bucket_count=1), ignore_if_exists=False)
    table = await connection.get_table(path)
    writer = table.new_upsert().create_writer()
    for id in range(50):
        writer.upsert({"a": id, "b": f"v{id}", "c": id})
    await writer.flush()
    for id in range(20):
        writer.upsert({"a": id, "b": f"w{id}", "c": None})
    for id in range(0, 60, 10):
        writer.delete({"a": id})
    await writer.flush()
    lookuper = table.new_lookup().create_lookuper()
    plain = lambda row: None if row is None else [row[k] for k in "abc"]
    seen = {"found": [plain(await lookuper.lookup({"a": id})) for id in range(55)]}
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET})

    async def changes():
        return [[r.offset, r.change_type.short_string(), plain(r.row)] for r in await scanner.poll(500)]
    seen["changes"] = await poll(20, 95, changes)
    scanner = table.new_scan().limit(100).create_bucket_batch_scanner(fluss.TableBucket((await admin.get_table_info(path)).table_id, 0))
    seen["limited"] = [plain(row) for row in (await scanner.next_batch()).batch.to_pylist()]
    parts = fluss.TablePath("py", "pk_parts")
    await admin.create_table(parts, fluss.TableDescriptor(fluss.Schema(schema, primary_keys=["a", "b"]), partition_keys=["b"], bucket_count=2), ignore_if_exists=False)
    for part in "xy":
        await admin.create_partition(parts, {"b": part}, ignore_if_exists=True)
    table = await connection.get_table(parts)
    writer = table.new_upsert().create_writer()
    for id, part in ((1, "x"), (2, "x"), (2, "y")):
        writer.upsert({"a": id, "b": part, "c": id})
    writer.delete({"a": 2, "b": "x"})
    await writer.flush()
    lookuper = table.new_lookup().create_lookuper()
    seen["parts"] = [plain(await lookuper.lookup({"a": id, "b": part})) for id, part in ((1, "x"), (2, "x"), (2, "y"))]
    return seen


async def main():
    connection = await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": sys.argv[1]}))
    admin = connection.get_admin()
    schema = pa.schema([("a", pa.int32()), ("b", pa.string()), ("c", pa.int64())])
    log, part, pk = (fluss.TablePath("py", name) for name in ("log", "part", "pk"))
    await admin.create_database("py", ignore_if_exists=True)
    await admin.create_table(log, fluss.TableDescriptor(fluss.Schema(schema), bucket_count=2), ignore_if_exists=False)
    seen = {"missing": await error(connection.get_table(fluss.TablePath("py", "nope"))) is not None}
    table = await connection.get_table(log)
    writer = table.new_append().create_writer()
    for id in range(60):
        writer.append({"a": id, "b": None if id % 5 == 0 else f"v{id}", "c": id * 10})
    await writer.flush()
    seen["offsets"] = sum((await admin.list_offsets(log, bucket_ids=[0, 1], offset_spec=fluss.OffsetSpec.latest())).values())
    everything = {0: fluss.EARLIEST_OFFSET, 1: fluss.EARLIEST_OFFSET}

    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe_buckets(everything)

    async def rows():
        return [[r.row[k] for k in "abc"] for r in await scanner.poll(500)]
    seen["rows"] = await poll(20, 60, rows)

    batches = await table.new_scan().project([2, 0]).create_record_batch_log_scanner()
    batches.subscribe_buckets(everything)

    async def projected():
        found = await batches.poll_arrow(500)
        return [] if found is None else [[r["c"], r["a"]] for r in found.to_pylist()]
    seen["projected"] = await poll(20, 60, projected)

    await admin.create_table(part, fluss.TableDescriptor(fluss.Schema(schema), partition_keys=["b"], bucket_count=1), ignore_if_exists=False)
    await admin.create_partition(part, {"b": "x"}, ignore_if_exists=True)
    writer = (await connection.get_table(part)).new_append().create_writer()
    writer.append({"a": 1, "b": "x", "c": 1})
    await writer.flush()
    seen["partitions"] = [p.partition_name for p in await admin.list_partition_infos(part)]
    seen["keyed"] = await keyed(connection, admin, schema, pk)
    # What is refused: the words, and how long it took.
    async def lookup():
        table.new_lookup().create_lookuper()

    async def upsert():
        table.new_upsert().create_writer()

    async def read(scanner, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await scanner.poll(500)

    async def beyond():
        scanner = await table.new_scan().create_log_scanner()
        scanner.subscribe(0, 1_000_000)
        await read(scanner)

    seen["refused"] = {}
    for name, call in {"lake snapshot": lambda: admin.get_latest_lake_snapshot(log), "lookup": lookup, "upsert": upsert, "beyond the end": beyond,
                       "twice": lambda: admin.create_partition(part, {"b": "x"}, ignore_if_exists=False),
                       "unknown database": lambda: admin.list_tables("nowhere"), "partitions of none": lambda: admin.list_partition_infos(log),
                       "future": lambda: admin.list_offsets(log, bucket_ids=[0], offset_spec=fluss.OffsetSpec.timestamp(int(time.time() + 3600) * 1000)),
                       "unknown bucket": lambda: admin.list_offsets(log, bucket_ids=[77], offset_spec=fluss.OffsetSpec.latest())}.items():
        begin = time.monotonic()
        try:
            said = await asyncio.wait_for(error(call), 15)
        except asyncio.TimeoutError:
            said = None
        seen["refused"][name] = (said, time.monotonic() - begin)

    seen["limited"] = 0
    for bucket in (0, 1):
        scanner = table.new_scan().limit(7).create_bucket_batch_scanner(fluss.TableBucket((await admin.get_table_info(log)).table_id, bucket))
        seen["limited"] = max(seen["limited"], (await scanner.next_batch()).batch.num_rows)
    seen["info"] = [(await admin.get_table_info(log)).num_buckets, await admin.table_exists(log), await admin.list_tables("py"), (await admin.get_database_info("py")).database_name]
    await admin.drop_database("py", ignore_if_not_exists=True, cascade=True)
    await connection.close()
    print(json.dumps(seen), flush=True)
    # pyfluss's native threads now and then abort while the interpreter winds down, long after the last answer; that is no test of ours.
    os._exit(0)


asyncio.run(main())
