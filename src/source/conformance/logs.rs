//! Tables, partitions and logs: how they are described, and that rows come back (F2.5, F4.2, F5, S5).

use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};

use super::{World, check, descriptor, eventually, made};
use crate::error::{Error, Kind, Result};
use crate::fluss::record::arrow_schema;
use crate::model::{
    BucketCountEpoch, BucketId, BucketLayout, DataType, Field, Partition, PartitionId, SchemaId, StartOffset, TableBucket,
    TableInfo, TablePath, TypeKind,
};
use crate::source::{FetchBucket, FetchRequest, FetchedBucket, RemoteRead};

/// Text that compression leaves some of.
fn words(id: i64) -> String {
    let mixed = id.wrapping_mul(0x1E37_79B9_7F4A_7C15);
    format!("words of {id}: {mixed:x}{:x}", mixed.wrapping_mul(mixed).rotate_left(31))
}

fn rows(table: &TableInfo, ids: std::ops::Range<i64>, day: &str) -> Result<RecordBatch> {
    let count = usize::try_from(ids.end - ids.start).unwrap_or_default();
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(ids.clone().collect::<Int64Array>()),
        Arc::new(ids.clone().map(|id| (id % 7 != 0).then(|| words(id))).collect::<StringArray>()),
    ];
    if table.is_partitioned() {
        columns.push(Arc::new(StringArray::from(vec![day; count])));
    }
    if table.schema.index_of("later").is_some() {
        columns.push(Arc::new(ids.collect::<Int64Array>()));
    }
    RecordBatch::try_new(arrow_schema(&table.schema)?, columns).map_err(|source| Error::internal("rows").with_source(source))
}

pub(super) fn spec(day: &str) -> Vec<(String, String)> {
    vec![("day".to_owned(), day.to_owned())]
}

pub(super) async fn tables_are_described(world: &dyn World) -> Result<()> {
    let missing = world.scan().table_info(&TablePath::new(world.database(), "nobody")).await;
    let code = missing.as_ref().err().and_then(Error::code);
    check(code == Some(7), || format!("a missing table is described as {missing:?}"))?;
    let wanted = descriptor(true, false);
    let table = made(world, "described", &wanted).await?;
    check(table.schema.fields == wanted.schema.fields && table.schema_id() == SchemaId(1), || {
        format!("schema {:?}", table.schema)
    })?;
    check(table.partition_keys == ["day"] && table.bucket_keys == ["id"], || format!("keys of {table:?}"))?;
    check(table.bucket_count == 2 && table.bucket_count_epoch == BucketCountEpoch(0), || format!("counts of {table:?}"))?;
    check(table.comment == wanted.comment && table.property("owner") == Some("suite"), || format!("words of {table:?}"))?;
    let schema = world.scan().schema(&table.path, SchemaId(1)).await?;
    check(*schema == *table.schema, || format!("schema 1 is {schema:?}"))?;
    let unknown = world.scan().schema(&table.path, SchemaId(99)).await;
    let found = unknown.as_ref().err().map(|error| (error.kind(), error.code()));
    check(found == Some((Kind::Unavailable, Some(9))), || format!("schema 99 is {unknown:?}"))?;
    world.drop_table(&table.path).await?;
    let again = made(world, "described", &wanted).await?;
    check(again.id > table.id, || format!("a table made again has the id `{}`, after `{}`", again.id, table.id))
}

pub(super) fn buckets(table: &TableInfo, partition: Option<&Partition>, layout: BucketLayout) -> Vec<TableBucket> {
    let partition = partition.map(|partition| partition.id);
    (0..layout.count).map(|bucket| TableBucket { table: table.id, partition, bucket: BucketId(bucket) }).collect()
}

pub(super) async fn ends(
    world: &dyn World,
    table: &TableInfo,
    partition: Option<&Partition>,
    layout: BucketLayout,
) -> Result<Vec<i64>> {
    let ends = world.scan().end_offsets(table, partition, layout).await?;
    let ends = ends.ok_or_else(|| Error::internal("a partition that is there has no offsets"))?;
    check(ends.len() == usize::try_from(layout.count).unwrap_or_default(), || format!("`{}` buckets have {ends:?}", layout.count))?;
    Ok(ends)
}

/// What one server has of a bucket from the wanted offset on.
async fn fetch_once(world: &dyn World, table: &TableInfo, wanted: FetchBucket, wait_ms: i32) -> Result<FetchedBucket> {
    let request = FetchRequest { table: Arc::new(table.clone()), buckets: vec![wanted], wait_ms };
    let mut fetched = world.scan().fetch(request).await?;
    check(fetched.len() == 1, || format!("one bucket was asked for, `{}` came", fetched.len()))?;
    fetched.pop().ok_or_else(|| Error::internal("nothing came"))
}

/// What one bucket has from the wanted offset on, wherever it lies.
pub(super) async fn fetch(world: &dyn World, table: &TableInfo, wanted: FetchBucket) -> Result<FetchedBucket> {
    let mut fetched = fetch_once(world, table, wanted, 50).await?;
    let Some(mut remote) = fetched.remote.take() else { return Ok(fetched) };
    check(fetched.log.is_empty(), || format!("records and remote segments came: {fetched:?}"))?;
    let from = if let StartOffset::At(from) = wanted.offset { from } else { -1 };
    while fetched.log.next_offset().is_none_or(|next| next <= from) {
        match remote.next(world.scan(), table, wanted.bytes_max).await? {
            RemoteRead::Slice(log) => fetched.log = log,
            other => return Err(Error::internal(format!("of remote segments from `{from}` on came {other:?}"))),
        }
    }
    Ok(fetched)
}

/// Reads a bucket to `end` in steps of `bytes_max`, and checks that offsets follow each other.
async fn read(world: &dyn World, table: &TableInfo, wanted: FetchBucket, end: i64) -> Result<Vec<i64>> {
    let (mut ids, mut offset, mut from) =
        (vec![], wanted.offset, if let StartOffset::At(from) = wanted.offset { from } else { -1 });
    while from < end {
        let fetched = fetch(world, table, FetchBucket { offset, ..wanted }).await?;
        check(fetched.high_watermark >= end, || format!("the end `{end}` became `{}`", fetched.high_watermark))?;
        let decoded = fetched.log.decode(from, end)?;
        for batch in &decoded.batches {
            check(from < 0 || batch.base_offset >= from, || format!("offset `{}` after `{from}`", batch.base_offset))?;
            ids.extend(batch.rows.column(0).as_primitive::<Int64Type>().values().iter());
        }
        check(decoded.next_offset > from, || format!("no progress at `{from}` of `{end}`"))?;
        from = decoded.next_offset;
        offset = StartOffset::At(from);
    }
    Ok(ids)
}

pub(super) async fn rows_come_back_once_and_in_offset_order(world: &dyn World) -> Result<()> {
    let table = made(world, "read", &descriptor(false, false)).await?;
    let layout = BucketLayout::of(&table, None)?;
    check(ends(world, &table, None, layout).await? == [0, 0], || "an empty table has rows".into())?;
    for start in [0, 400, 800] {
        world.append(&table.path, &rows(&table, start..start + 400, "")?).await?;
    }
    let ends = ends(world, &table, None, layout).await?;
    check(ends.iter().sum::<i64>() == 1200 && ends.iter().all(|end| *end > 0), || format!("1200 rows end at {ends:?}"))?;
    let starts = world.scan().start_offsets(&table, None, layout).await?;
    check(starts == Some(vec![0, 0]), || format!("logs start at {starts:?}"))?;
    let all = buckets(&table, None, layout);
    let lanes = world.scan().lanes(&table, &all).await?;
    let mut led: Vec<TableBucket> = lanes.concat();
    led.sort();
    check(led == all && lanes.iter().all(|lane| !lane.is_empty()), || format!("lanes {lanes:?}"))?;
    for bytes_max in [1, 12_000, 1 << 20] {
        let mut ids = vec![];
        for (bucket, end) in all.iter().zip(&ends) {
            let wanted = FetchBucket { bucket: *bucket, offset: StartOffset::Earliest, bytes_max, layout };
            ids.extend(read(world, &table, wanted, *end).await?);
        }
        ids.sort_unstable();
        check(ids == (0..1200).collect::<Vec<_>>(), || format!("`{}` rows by `{bytes_max}` bytes", ids.len()))?;
    }
    for (bucket, end) in all.iter().zip(ends) {
        let wanted = FetchBucket { bucket: *bucket, offset: StartOffset::At(end), bytes_max: 1000, layout };
        let at_end = fetch(world, &table, wanted).await?;
        check(at_end.log.next_offset().is_none() && at_end.high_watermark == end, || format!("at the end came {at_end:?}"))?;
        let inside = StartOffset::At(end - 1);
        let last = fetch(world, &table, FetchBucket { offset: inside, ..wanted }).await?.log.decode(end - 1, end)?;
        check(last.batches.iter().map(|batch| batch.rows.num_rows()).sum::<usize>() == 1, || format!("last record {last:?}"))?;
        let beyond = fetch(world, &table, FetchBucket { offset: StartOffset::At(end + 3), ..wanted }).await;
        let named = beyond.as_ref().err().map(|error| (error.kind(), error.chain().contains(&format!("`{}`", end + 3))));
        check(named == Some((Kind::Data, true)), || format!("beyond the end came {beyond:?}"))?;
    }
    a_fetch_that_waits_gets_what_came(world, &table, layout).await
}

/// Rows that came while it waited are in the answer. (When it comes is a server's business: 0.9.1 was seen to wait to the end.)
async fn a_fetch_that_waits_gets_what_came(world: &dyn World, table: &TableInfo, layout: BucketLayout) -> Result<()> {
    let end = ends(world, table, None, layout).await?.first().copied().unwrap_or_default();
    let bucket = TableBucket { table: table.id, partition: None, bucket: BucketId(0) };
    let wanted = FetchBucket { bucket, offset: StartOffset::At(end), bytes_max: 1 << 20, layout };
    let more = rows(table, 1200..1300, "")?;
    let append = async {
        world.clock().sleep(Duration::from_millis(200)).await;
        world.append(&table.path, &more).await
    };
    let (fetched, appended) = tokio::join!(fetch_once(world, table, wanted, 3000), append);
    appended?;
    let fetched = fetched?;
    let came = fetched.high_watermark > end && (fetched.log.next_offset() > Some(end) || fetched.remote.is_some());
    check(came, || format!("while rows came it got {fetched:?}"))
}

/// Old schemas stay, old batches too; who knows the table by its old schema reads both.
pub(super) async fn columns_come_behind_the_others(world: &dyn World) -> Result<()> {
    let before = made(world, "evolved", &descriptor(false, false)).await?;
    world.append(&before.path, &rows(&before, 0..100, "")?).await?;
    let later = Field { id: 2, name: "later".into(), data_type: DataType::nullable(TypeKind::BigInt), comment: Some("new".into()) };
    world.add_column(&before.path, &later).await?;
    let after = world.scan().table_info(&before.path).await?;
    let mut wanted = before.schema.fields.clone();
    wanted.push(later);
    check((after.id, after.schema_id()) == (before.id, SchemaId(2)), || format!("with a column more it is {after:?}"))?;
    check(after.schema.fields == wanted && after.schema.highest_field_id == 2, || format!("columns {:?}", after.schema))?;
    let old = world.scan().schema(&after.path, SchemaId(1)).await?;
    check(*old == *before.schema, || format!("schema 1 became {old:?}"))?;
    world.append(&after.path, &rows(&after, 100..200, "")?).await?;
    let layout = BucketLayout::of(&after, None)?;
    let ends = ends(world, &after, None, layout).await?;
    for table in [&before, &after] {
        let (mut ids, mut widths) = (vec![], vec![]);
        for (bucket, end) in buckets(table, None, layout).into_iter().zip(&ends) {
            let wanted = FetchBucket { bucket, offset: StartOffset::Earliest, bytes_max: 1 << 20, layout };
            ids.extend(read(world, table, wanted, *end).await?);
            let fetched = fetch(world, table, wanted).await?.log.decode(-1, *end)?;
            widths.extend(fetched.batches.iter().map(|batch| batch.rows.num_columns()));
        }
        ids.sort_unstable();
        check(ids == (0..200).collect::<Vec<_>>(), || format!("`{}` rows of two schemas", ids.len()))?;
        widths.sort_unstable();
        widths.dedup();
        check(widths.first() == Some(&2) && widths.iter().all(|width| *width <= 3), || format!("columns of batches {widths:?}"))?;
    }
    world.drop_table(&after.path).await
}

pub(super) async fn partitions_have_their_layout(world: &dyn World) -> Result<()> {
    let table = made(world, "partitioned", &descriptor(true, false)).await?;
    check(world.scan().partitions(&table).await?.is_empty(), || "a new table has partitions".into())?;
    world.create_partition(&table.path, &spec("2026-11-29")).await?;
    if world.rescales() {
        world.alter_bucket_count(&table.path, 4).await?;
        world.scan().forget(&table.path);
    }
    world.create_partition(&table.path, &spec("2026-11-30")).await?;
    world.append(&table.path, &rows(&table, 0..200, "2026-11-30")?).await?;
    let (before, table) = (table.clone(), world.scan().table_info(&table.path).await?);
    let mut found = world.scan().partitions(&table).await?;
    found.sort_by_key(Partition::name);
    let specs: Vec<_> = found.iter().map(|partition| partition.spec.clone()).collect();
    check(specs == [spec("2026-11-29"), spec("2026-11-30")], || format!("partitions {specs:?}"))?;
    let counts: Vec<i32> = found
        .iter()
        .map(|partition| BucketLayout::of(&table, Some(partition)).map(|layout| layout.count))
        .collect::<Result<_>>()?;
    let (wanted, epoch) = if world.rescales() { (vec![2, 4], 1) } else { (vec![2, 2], 0) };
    check(counts == wanted && table.bucket_count_epoch.0 == epoch, || format!("counts {counts:?} of {table:?}"))?;
    let [old, new] = found.as_slice() else { return Err(Error::internal("two partitions")) };
    let layout = BucketLayout::of(&table, Some(new))?;
    let total: i64 = ends(world, &table, Some(new), layout).await?.iter().sum();
    check(total == 200, || format!("200 rows end at `{total}`"))?;
    if world.rescales() {
        let wrong = world.scan().end_offsets(&before, Some(new), BucketLayout::of(&before, None)?).await;
        check(wrong.as_ref().is_err_and(|error| error.kind() == Kind::Stale), || format!("a wrong count gets {wrong:?}"))?;
        let bucket = TableBucket { table: table.id, partition: Some(new.id), bucket: BucketId(0) };
        let wanted =
            FetchBucket { bucket, offset: StartOffset::Earliest, bytes_max: 1000, layout: BucketLayout::of(&before, None)? };
        let wrong = fetch(world, &before, wanted).await;
        check(wrong.as_ref().is_err_and(|error| error.kind() == Kind::Stale), || format!("a wrong count gets {wrong:?}"))?;
    }
    world.drop_partition(&table.path, &old.spec).await?;
    // A real server stops serving it a moment later.
    let layout = BucketLayout::of(&table, Some(old))?;
    eventually(world, "end of a dropped partition", async || {
        world.scan().forget(&table.path);
        Ok(world.scan().end_offsets(&table, Some(old), layout).await?.is_none().then_some(()))
    })
    .await?;
    let left = world.scan().partitions(&table).await?;
    check(left.len() == 1, || format!("partitions left {left:?}"))
}

async fn gone<T: std::fmt::Debug>(what: &str, found: Result<T>) -> Result<()> {
    check(found.as_ref().is_err_and(|error| error.kind() == Kind::Stale), || format!("{what}: {found:?}"))
}

/// Whoever planned by a bucket, a partition, a table that is not there (any more) has to plan again.
pub(super) async fn what_is_gone_is_stale(world: &dyn World) -> Result<()> {
    let table = made(world, "gone", &descriptor(true, false)).await?;
    world.create_partition(&table.path, &spec("1")).await?;
    let partitions = world.scan().partitions(&table).await?;
    let [partition] = partitions.as_slice() else { return Err(Error::internal(format!("partitions {partitions:?}"))) };
    let layout = BucketLayout::of(&table, Some(partition))?;
    let bucket = TableBucket { table: table.id, partition: Some(partition.id), bucket: BucketId(0) };
    let wanted = FetchBucket { bucket, offset: StartOffset::Earliest, bytes_max: 1000, layout };
    let never = FetchBucket { bucket: TableBucket { bucket: BucketId(7), ..bucket }, ..wanted };
    gone("a bucket beyond the last", fetch(world, &table, never).await).await?;
    let stranger = TableBucket { partition: Some(PartitionId(i64::from(i32::MAX))), ..bucket };
    gone("a partition that never was", fetch(world, &table, FetchBucket { bucket: stranger, ..wanted }).await).await?;
    world.drop_partition(&table.path, &partition.spec).await?;
    // What was cached may be served a moment longer by a real server.
    eventually(world, "end of a dropped partition", async || {
        world.scan().forget(&table.path);
        Ok(world.scan().start_offsets(&table, Some(partition), layout).await?.is_none().then_some(()))
    })
    .await?;
    gone("a dropped partition", fetch(world, &table, wanted).await).await?;

    let plain = made(world, "gone_plain", &descriptor(false, false)).await?;
    let unpartitioned = world.scan().partitions(&plain).await;
    let code = unpartitioned.as_ref().err().and_then(Error::code);
    check(code == Some(37), || format!("partitions of a table without are {unpartitioned:?}"))?;
    let layout = BucketLayout::of(&plain, None)?;
    let bucket = TableBucket { table: plain.id, partition: None, bucket: BucketId(0) };
    let wanted = FetchBucket { bucket, offset: StartOffset::Earliest, bytes_max: 1000, layout };
    for again in [false, true] {
        if again {
            made(world, "gone_plain", &descriptor(false, false)).await?;
        } else {
            world.drop_table(&plain.path).await?;
            world.drop_table(&table.path).await?;
            let missing = world.scan().partitions(&table).await;
            let code = missing.as_ref().err().and_then(Error::code);
            check(code == Some(7), || format!("partitions of a missing table are {missing:?}"))?;
        }
        eventually(world, "end of a dropped table", async || {
            world.scan().forget(&plain.path);
            match world.scan().end_offsets(&plain, None, layout).await {
                Ok(_) => Ok(None),
                Err(error) => gone::<()>("ends of a dropped table", Err(error)).await.map(Some),
            }
        })
        .await?;
        gone("starts of a dropped table", world.scan().start_offsets(&plain, None, layout).await).await?;
        gone("a dropped table's log", fetch(world, &plain, wanted).await).await?;
    }
    Ok(())
}

/// From the beginning and from anywhere inside; where the log starts does not change.
pub(super) async fn what_left_the_servers_reads_the_same(world: &dyn World) -> Result<()> {
    let mut descriptor = descriptor(false, false);
    descriptor.properties.insert("table.log.tiered.local-segments".to_owned(), "1".to_owned());
    let table = made(world, "offloaded", &descriptor).await?;
    let layout = BucketLayout::of(&table, None)?;
    for start in (0..12_000).step_by(1000) {
        world.append(&table.path, &rows(&table, start..start + 1000, "")?).await?;
    }
    let all = buckets(&table, None, layout);
    let wanted = |bucket, offset| FetchBucket { bucket, offset, bytes_max: 20_000, layout };
    for bucket in &all {
        eventually(world, &format!("remote log of {bucket}"), async || {
            let fetched = fetch_once(world, &table, wanted(*bucket, StartOffset::Earliest), 0).await?;
            check(fetched.remote.is_none() || fetched.log.is_empty(), || format!("records and remote segments: {fetched:?}"))?;
            Ok(fetched.remote.is_some().then_some(()))
        })
        .await?;
    }
    let starts = world.scan().start_offsets(&table, None, layout).await?;
    check(starts == Some(vec![0, 0]), || format!("logs start at {starts:?}"))?;
    let ends = ends(world, &table, None, layout).await?;
    let mut ids = vec![];
    for (bucket, end) in all.iter().zip(ends) {
        let whole = read(world, &table, wanted(*bucket, StartOffset::Earliest), end).await?;
        for from in [1, end / 7, end / 3, end - 1] {
            let rest = read(world, &table, wanted(*bucket, StartOffset::At(from)), end).await?;
            let skipped = usize::try_from(from).unwrap_or_default();
            check(whole.get(skipped..) == Some(&rest), || format!("from `{from}` of `{end}` on came `{}` rows", rest.len()))?;
        }
        ids.extend(whole);
    }
    ids.sort_unstable();
    check(ids == (0..12_000).collect::<Vec<_>>(), || format!("`{}` rows of remote logs", ids.len()))?;
    world.drop_table(&table.path).await
}
