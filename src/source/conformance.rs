//! What every implementation of the source traits has to do: one suite for the twin, the node and a real cluster.
//!
//! A [`World`] lends the traits and does what a user would do; each check makes its own tables in the world's database. A check that
//! does not hold is an `Internal` error which says what was found.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, RecordBatch, StringArray};
use async_trait::async_trait;

use super::{
    Assignment, Assignments, FetchBucket, FetchRequest, FetchedBucket, Finished, Heartbeat, Held, LakeLedger, LedgerRecord,
    LedgerState, RemoteRead, TableScan,
};
use crate::error::{Error, Kind, Result};
use crate::fluss::record::arrow_schema;
use crate::fluss::table_json::TableDescriptor;
use crate::model::{
    BucketCountEpoch, BucketId, BucketKey, BucketLayout, CoordinatorEpoch, DataType, Field, LakeOffsets, Partition, Schema,
    SchemaId, SnapshotId, StartOffset, TableBucket, TableId, TableInfo, TablePath, TieringEpoch, TypeKind,
};
use crate::runtime::Clock;

/// A cluster with a database of the suite's own, and a user's hands in it.
#[async_trait]
pub trait World: Send + Sync {
    /// The queue.
    fn assignments(&self) -> &dyn Assignments;
    /// Tables and logs.
    fn scan(&self) -> &dyn TableScan;
    /// The ledger.
    fn ledger(&self) -> &dyn LakeLedger;
    /// Time.
    fn clock(&self) -> &Clock;
    /// Name of the database, which exists.
    fn database(&self) -> &str;
    /// Whether partitions have bucket counts of their own and `bucket.num` can be altered (1.0).
    fn rescales(&self) -> bool;
    /// Lease time, if it is worth waiting for.
    fn lease(&self) -> Option<Duration>;
    /// Creates a table.
    async fn create_table(&self, path: &TablePath, table: &TableDescriptor) -> Result<()>;
    /// Drops a table.
    async fn drop_table(&self, path: &TablePath) -> Result<()>;
    /// Creates a partition.
    async fn create_partition(&self, path: &TablePath, spec: &[(String, String)]) -> Result<()>;
    /// Drops a partition.
    async fn drop_partition(&self, path: &TablePath, spec: &[(String, String)]) -> Result<()>;
    /// Alters `bucket.num`.
    async fn alter_bucket_count(&self, path: &TablePath, count: i32) -> Result<()>;
    /// Appends rows as a client does, to the buckets that their keys hash to.
    async fn append(&self, path: &TablePath, rows: &RecordBatch) -> Result<()>;
}

/// Runs every check.
///
/// # Errors
/// `Internal` names the check and what was found; else what the world answered.
pub async fn run(world: &dyn World) -> Result<()> {
    let named = |name: &'static str| move |error: Error| error.context(format!("conformance check `{name}`"));
    tables_are_described(world).await.map_err(named("tables_are_described"))?;
    rows_come_back_once_and_in_offset_order(world).await.map_err(named("rows_come_back_once_and_in_offset_order"))?;
    partitions_have_their_layout(world).await.map_err(named("partitions_have_their_layout"))?;
    the_ledger_keeps_what_it_was_told_last(world).await.map_err(named("the_ledger_keeps_what_it_was_told_last"))?;
    the_queue_hands_out_fences_and_takes_back(world).await.map_err(named("the_queue_hands_out_fences_and_takes_back"))
}

fn check(holds: bool, found: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::internal(found())) }
}

/// A column `id` that is the bucket key, a text, and a partition column where `partitioned`.
fn descriptor(partitioned: bool, lake: bool) -> TableDescriptor {
    let field = |id, name: &str, kind| Field { id, name: name.into(), data_type: DataType::nullable(kind), comment: None };
    let mut fields = vec![field(0, "id", TypeKind::BigInt), field(1, "words", TypeKind::String)];
    if partitioned {
        fields.push(field(2, "day", TypeKind::String));
    }
    let mut properties = BTreeMap::new();
    if lake {
        properties.insert("table.datalake.enabled".to_owned(), "true".to_owned());
        properties.insert("table.datalake.freshness".to_owned(), "1s".to_owned());
    }
    let highest_field_id = fields.last().map_or(-1, |field| field.id);
    TableDescriptor {
        schema: Schema { id: SchemaId(1), fields, primary_key: vec![], highest_field_id },
        comment: Some("conformance".into()),
        partition_keys: if partitioned { vec!["day".into()] } else { vec![] },
        bucket_keys: vec!["id".into()],
        bucket_count: Some(2),
        properties,
        custom_properties: BTreeMap::from([("owner".to_owned(), "suite".to_owned())]),
    }
}

fn rows(table: &TableInfo, ids: std::ops::Range<i64>, day: &str) -> Result<RecordBatch> {
    let count = usize::try_from(ids.end - ids.start).unwrap_or_default();
    let mut columns: Vec<arrow_array::ArrayRef> = vec![
        Arc::new(ids.clone().collect::<Int64Array>()),
        Arc::new(ids.map(|id| (id % 7 != 0).then(|| format!("words of {id}"))).collect::<StringArray>()),
    ];
    if table.is_partitioned() {
        columns.push(Arc::new(StringArray::from(vec![day; count])));
    }
    RecordBatch::try_new(arrow_schema(&table.schema)?, columns).map_err(|source| Error::internal("rows").with_source(source))
}

fn spec(day: &str) -> Vec<(String, String)> {
    vec![("day".to_owned(), day.to_owned())]
}

async fn made(world: &dyn World, name: &str, table: &TableDescriptor) -> Result<TableInfo> {
    let path = TablePath::new(world.database(), name);
    world.create_table(&path, table).await?;
    world.scan().table_info(&path).await
}

async fn tables_are_described(world: &dyn World) -> Result<()> {
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
    world.drop_table(&table.path).await?;
    let again = made(world, "described", &wanted).await?;
    check(again.id != table.id, || format!("a table made again has the id `{}` again", table.id))
}

fn buckets(table: &TableInfo, partition: Option<&Partition>, layout: BucketLayout) -> Vec<TableBucket> {
    let partition = partition.map(|partition| partition.id);
    (0..layout.count).map(|bucket| TableBucket { table: table.id, partition, bucket: BucketId(bucket) }).collect()
}

async fn ends(world: &dyn World, table: &TableInfo, partition: Option<&Partition>, layout: BucketLayout) -> Result<Vec<i64>> {
    let ends = world.scan().end_offsets(table, partition, layout).await?;
    let ends = ends.ok_or_else(|| Error::internal("a partition that is there has no offsets"))?;
    check(ends.len() == usize::try_from(layout.count).unwrap_or_default(), || format!("`{}` buckets have {ends:?}", layout.count))?;
    Ok(ends)
}

/// What one bucket has from the wanted offset on, wherever it lies.
async fn fetch(world: &dyn World, table: &TableInfo, wanted: FetchBucket) -> Result<FetchedBucket> {
    let request = FetchRequest { table: Arc::new(table.clone()), buckets: vec![wanted], wait_ms: 50 };
    let mut fetched = world.scan().fetch(request).await?;
    check(fetched.len() == 1, || format!("one bucket was asked for, `{}` came", fetched.len()))?;
    let mut fetched = fetched.pop().ok_or_else(|| Error::internal("nothing came"))?;
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
    let (mut ids, mut offset, mut from) = (vec![], wanted.offset, -1);
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

async fn rows_come_back_once_and_in_offset_order(world: &dyn World) -> Result<()> {
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
    for bytes_max in [1, 1 << 20] {
        let mut ids = vec![];
        for (bucket, end) in all.iter().zip(&ends) {
            let wanted = FetchBucket { bucket: *bucket, offset: StartOffset::Earliest, bytes_max, layout };
            ids.extend(read(world, &table, wanted, *end).await?);
        }
        ids.sort_unstable();
        check(ids == (0..1200).collect::<Vec<_>>(), || format!("`{}` rows by `{bytes_max}` bytes", ids.len()))?;
    }
    for (bucket, end) in all.into_iter().zip(ends) {
        let wanted = FetchBucket { bucket, offset: StartOffset::At(end), bytes_max: 1000, layout };
        let at_end = fetch(world, &table, wanted).await?;
        check(at_end.log.next_offset().is_none() && at_end.high_watermark == end, || format!("at the end came {at_end:?}"))?;
        let inside = StartOffset::At(end - 1);
        let last = fetch(world, &table, FetchBucket { offset: inside, ..wanted }).await?.log.decode(end - 1, end)?;
        check(last.batches.iter().map(|batch| batch.rows.num_rows()).sum::<usize>() == 1, || format!("last record {last:?}"))?;
        let beyond = fetch(world, &table, FetchBucket { offset: StartOffset::At(end + 3), ..wanted }).await;
        let named = beyond.as_ref().err().map(|error| (error.kind(), error.chain().contains(&format!("`{}`", end + 3))));
        check(named == Some((Kind::Data, true)), || format!("beyond the end came {beyond:?}"))?;
    }
    Ok(())
}

async fn partitions_have_their_layout(world: &dyn World) -> Result<()> {
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
    let mut ends = Some(vec![]);
    for _ in 0..100 {
        world.scan().forget(&table.path);
        ends = world.scan().end_offsets(&table, Some(old), layout).await?;
        if ends.is_none() {
            break;
        }
        world.clock().sleep(Duration::from_millis(100)).await;
    }
    check(ends.is_none(), || format!("a dropped partition ends at {ends:?}"))?;
    let left = world.scan().partitions(&table).await?;
    check(left.len() == 1, || format!("partitions left {left:?}"))
}

fn offsets(values: &[(i32, i64)]) -> LakeOffsets {
    let key = |bucket| BucketKey { partition: None, bucket: BucketId(bucket) };
    LakeOffsets(values.iter().map(|(bucket, offset)| (key(*bucket), *offset)).collect())
}

async fn the_ledger_keeps_what_it_was_told_last(world: &dyn World) -> Result<()> {
    let ledger = world.ledger();
    let table = made(world, "ledger", &descriptor(false, false)).await?;
    let gone = ledger.latest(&TablePath::new(world.database(), "nobody")).await?;
    check(gone == LedgerState::TableGone, || format!("a missing table has {gone:?}"))?;
    let empty = ledger.latest(&table.path).await?;
    check(empty == LedgerState::Empty, || format!("a new table has {empty:?}"))?;
    // Ids as told, the last one counts, nothing is laid over what was there before.
    for (snapshot, told, earliest_to_keep) in
        [(3, offsets(&[(0, 5), (1, 7)]), -1), (4, offsets(&[(0, 9)]), 3), (3, offsets(&[(0, 6), (1, 7)]), -1)]
    {
        let offsets_path = ledger.prepare(table.id, &table.path, &told).await?;
        match ledger.offsets_file(&offsets_path).await {
            Ok(file) => {
                let found = file.map(|file| (file.table, file.offsets));
                check(found == Some((table.id, told.clone())), || format!("offsets file {found:?}"))?;
            }
            // A file system of the server's own.
            Err(error) => check(error.kind() == Kind::Unsupported, || error.chain())?,
        }
        let record = LedgerRecord {
            table: table.id,
            path: table.path.clone(),
            snapshot: SnapshotId(snapshot),
            offsets_path,
            offsets: told.clone(),
            max_timestamps: told.0.keys().map(|key| (*key, 1)).collect(),
            earliest_to_keep,
        };
        ledger.record(record).await?;
        let LedgerState::At(entry) = ledger.latest(&table.path).await? else {
            return Err(Error::internal(format!("snapshot `{snapshot}` was recorded and is not there")));
        };
        let found = (entry.table, entry.snapshot, &entry.offsets);
        check(found == (table.id, SnapshotId(snapshot), &told), || format!("after `{snapshot}` stands {entry:?}"))?;
    }
    world.drop_table(&table.path).await?;
    let gone = ledger.latest(&table.path).await?;
    check(gone == LedgerState::TableGone, || format!("a dropped table has {gone:?}"))
}

/// Asks until `table` comes; others go back to rest.
async fn assigned(world: &dyn World, table: TableId, when: &str) -> Result<Assignment> {
    for _ in 0..200 {
        let ask = Heartbeat { request_table: true, ..Heartbeat::default() };
        match world.assignments().heartbeat(ask).await?.assigned {
            Some(assignment) if assignment.held.table == table => return Ok(assignment),
            Some(other) => {
                let finished = vec![Finished { held: other.held, forced: false }];
                world.assignments().heartbeat(Heartbeat { finished, ..Heartbeat::default() }).await?;
            }
            None => world.clock().sleep(Duration::from_millis(100)).await,
        }
    }
    Err(Error::internal(format!("table `{table}` was not handed out {when}")))
}

async fn renewal(world: &dyn World, held: Held) -> Result<Option<i32>> {
    let reply = world.assignments().heartbeat(Heartbeat { tiering: vec![held], ..Heartbeat::default() }).await?;
    match reply.tiering.as_slice() {
        [(table, fault)] if *table == held.table => Ok(fault.as_ref().map(|fault| fault.code)),
        other => Err(Error::internal(format!("a renewal got {other:?}"))),
    }
}

async fn the_queue_hands_out_fences_and_takes_back(world: &dyn World) -> Result<()> {
    let table = made(world, "queued", &descriptor(false, true)).await?;
    let first = assigned(world, table.id, "when it came").await?;
    check(first.path == table.path, || format!("assigned {first:?}"))?;
    let held = first.held;
    for (change, code) in [
        (held, None),
        (Held { tiering_epoch: TieringEpoch(held.tiering_epoch.0 + 9), ..held }, Some(50)),
        (Held { coordinator_epoch: CoordinatorEpoch(held.coordinator_epoch.0 + 9), ..held }, Some(23)),
        (Held { table: TableId(i64::from(i32::MAX)), ..held }, Some(7)),
    ] {
        let found = renewal(world, change).await?;
        check(found == code, || format!("the renewal of {change:?} got {found:?}"))?;
    }
    // Forced: queued again at once. Failed: the same. Each time under the next epoch.
    let forced = Heartbeat { finished: vec![Finished { held, forced: true }], ..Heartbeat::default() };
    let reply = world.assignments().heartbeat(forced).await?;
    check(reply.finished == [(table.id, None)], || format!("finished got {:?}", reply.finished))?;
    let second = assigned(world, table.id, "after it was forced").await?.held;
    check(second.tiering_epoch.0 == held.tiering_epoch.0 + 1, || format!("after forced came {second:?}"))?;
    let stale = Heartbeat { finished: vec![Finished { held, forced: false }], ..Heartbeat::default() };
    let codes: Vec<_> = world
        .assignments()
        .heartbeat(stale)
        .await?
        .finished
        .iter()
        .map(|(_, fault)| fault.as_ref().map(|fault| fault.code))
        .collect();
    check(codes == [Some(50)], || format!("an old epoch's finish got {codes:?}"))?;
    world.assignments().heartbeat(Heartbeat { failed: vec![second], ..Heartbeat::default() }).await?;
    let third = assigned(world, table.id, "after it failed").await?.held;
    check(third.tiering_epoch.0 == second.tiering_epoch.0 + 1, || format!("after failed came {third:?}"))?;
    // Finished alone: rests for its freshness, and is nobody's meanwhile.
    let done = Heartbeat { finished: vec![Finished { held: third, forced: false }], ..Heartbeat::default() };
    world.assignments().heartbeat(done).await?;
    let code = renewal(world, third).await?;
    check(code == Some(-1), || format!("the renewal of a resting table got {code:?}"))?;
    let mut last = assigned(world, table.id, "after its rest").await?.held;
    if let Some(lease) = world.lease() {
        // The coordinator looks each 15 s (F1.3).
        world.clock().sleep(lease + Duration::from_secs(if lease > Duration::from_secs(60) { 16 } else { 0 })).await;
        let next = assigned(world, table.id, "after its lease").await?.held;
        let code = renewal(world, last).await?;
        check(next.tiering_epoch > last.tiering_epoch && code == Some(50), || format!("after the lease {next:?} and {code:?}"))?;
        last = next;
    }
    world.drop_table(&table.path).await?;
    // A real coordinator takes it off the queue a moment after its answer.
    let mut code = None;
    for _ in 0..100 {
        code = renewal(world, last).await?;
        if code == Some(7) {
            break;
        }
        world.clock().sleep(Duration::from_millis(100)).await;
    }
    check(code == Some(7), || format!("the renewal of a dropped table got {code:?}"))
}
