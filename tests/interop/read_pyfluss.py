"""pyfluss reads the buckets [[partition name, partition id, number of buckets]…] of a table: rows, or what stops it, as one JSON object."""
import asyncio
import json
import os
import sys
import time

import fluss


async def read(connection, path, partitions):
    admin = connection.get_admin()
    ends, starts = 0, {}
    for name, id, count in partitions:
        ends += sum((await admin.list_partition_offsets(path, name, list(range(count)), fluss.OffsetSpec.latest())).values())
        starts.update({(id, bucket): fluss.EARLIEST_OFFSET for bucket in range(count)})
    scanner = await (await connection.get_table(path)).new_scan().create_log_scanner()
    scanner.subscribe_partition_buckets(starts)
    rows, deadline = [], time.monotonic() + 30
    while len(rows) < ends and time.monotonic() < deadline:
        rows += [[r.row["id"], r.row["day"]] for r in await scanner.poll(500)]
    return {"ends": ends, "rows": rows}


async def main():
    address, table, partitions = sys.argv[1:]
    connection = await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": address}))
    try:
        seen = await read(connection, fluss.TablePath(*table.split(".")), json.loads(partitions))
    except Exception as e:
        seen = {"error": str(e)}
    print(json.dumps(seen), flush=True)
    os._exit(0)  # see tour_pyfluss.py


asyncio.run(main())
