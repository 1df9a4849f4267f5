use std::collections::BTreeMap;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::error::Kind;
use crate::fluss::record::arrow_schema;
use crate::fluss::table_json::TableDescriptor;
use crate::model::{
    BucketId, BucketLayout, DataType, Field, LayoutOrigin, Partition, Schema, SchemaId, SplitKind, StartOffset, TablePath, TypeKind,
};
use crate::source::memory::{Fault, Faults, MemoryCluster};
use crate::source::{FetchRequest, FetchedBucket, StateRequest, StateScan};

mod ranges;
mod states;

const LAYOUT: BucketLayout = BucketLayout { count: 3, origin: LayoutOrigin::Own };

struct World {
    cluster: MemoryCluster,
    table: Arc<TableInfo>,
    runtime: Runtime,
}

fn world(memory: usize) -> World {
    world_of(memory, false)
}

/// `dense` = with a text that compresses to almost nothing.
fn world_of(memory: usize, dense: bool) -> World {
    let runtime = Runtime::simulated(7, 0, memory);
    let cluster = MemoryCluster::new(runtime.clone());
    let field = |id, name: &str, kind| Field { id, name: name.into(), data_type: DataType::nullable(kind), comment: None };
    let mut fields = vec![field(0, "id", TypeKind::BigInt)];
    fields.extend(dense.then(|| field(1, "text", TypeKind::String)));
    let descriptor = TableDescriptor {
        schema: Schema { id: SchemaId(1), highest_field_id: i32::from(dense), fields, primary_key: vec![] },
        comment: None,
        partition_keys: vec![],
        bucket_keys: vec!["id".into()],
        bucket_count: Some(LAYOUT.count),
        properties: BTreeMap::new(),
        custom_properties: BTreeMap::new(),
    };
    let table = Arc::new(cluster.create_table(&TablePath::new("demo", "t"), &descriptor).unwrap());
    World { cluster, table, runtime }
}

impl World {
    fn bucket(&self, bucket: i32) -> TableBucket {
        TableBucket { table: self.table.id, partition: None, bucket: BucketId(bucket) }
    }

    /// Appends the ids `first..first + count` in one batch.
    fn append(&self, bucket: i32, first: i64, count: i64) {
        let mut columns: Vec<ArrayRef> = vec![Arc::new((first..first + count).collect::<Int64Array>())];
        if self.table.schema.fields.len() > 1 {
            let text = "a".repeat(1000);
            columns.push(Arc::new((0..count).map(|_| Some(text.as_str())).collect::<StringArray>()));
        }
        let rows = RecordBatch::try_new(arrow_schema(&self.table.schema).unwrap(), columns).unwrap();
        self.cluster.append(self.bucket(bucket), SchemaId(1), &rows, None).unwrap();
    }

    fn split(&self, bucket: i32, start: StartOffset, stop_offset: i64) -> Split {
        Split { bucket: self.bucket(bucket), partition: None, layout: LAYOUT, start, stop_offset, kind: SplitKind::Log }
    }

    async fn reader(&self, splits: &[Split], options: Options) -> Reader {
        let scan = Arc::new(self.cluster.service(Faults::default()));
        Reader::new(scan, Arc::clone(&self.table), splits, options, whole(), self.runtime.clone()).await.unwrap()
    }
}

/// All ids of a stream, and its last end offset. Offsets and ids are the same in these tests.
async fn ids(mut stream: SplitStream) -> Result<(Vec<i64>, i64)> {
    let (mut ids, mut end) = (vec![], -1);
    while let Some(chunk) = stream.next().await? {
        for batch in &chunk.batches {
            let column = batch.rows.column(0).as_primitive::<Int64Type>();
            assert_eq!(column.value(0), batch.base_offset);
            ids.extend(column.values());
        }
        assert!(chunk.end_offset > end, "every chunk goes on");
        end = chunk.end_offset;
    }
    Ok((ids, end))
}

/// Never cut.
fn whole() -> Cut {
    Cut::new(CancellationToken::new(), None)
}

fn small() -> Options {
    // One batch per fetch: a server gives at least one, whatever it is asked for.
    Options { bucket_bytes: 1, ..Options::default() }
}

#[tokio::test(start_paused = true)]
async fn all_records_come_once_in_order_and_end_at_the_stop() {
    for options in [Options::default(), small()] {
        let world = world(1 << 20);
        for bucket in 0..3 {
            for batch in 0..20 {
                world.append(bucket, batch * 10, 10);
            }
        }
        let splits = [
            world.split(0, StartOffset::Earliest, 200),
            world.split(1, StartOffset::At(33), 187),
            world.split(2, StartOffset::At(199), 200),
        ];
        let reader = world.reader(&splits, options).await;
        let streams = splits.iter().map(|split| ids(reader.open(split).unwrap()));
        let found = futures::future::try_join_all(streams).await.unwrap();
        assert_eq!(found[0], ((0..200).collect(), 200));
        assert_eq!(found[1], ((33..187).collect(), 187));
        assert_eq!(found[2], (vec![199], 200));
        assert_eq!(world.runtime.budget.used(), 0, "everything was given back");
    }
}

#[tokio::test(start_paused = true)]
async fn rows_that_take_a_hundred_times_their_bytes_are_read_in_pieces_that_there_is_memory_for() {
    const BATCH: usize = 5 * 1000;
    for remote in [false, true] {
        let world = world_of(1 << 20, true);
        for batch in 0..400 {
            world.append(0, batch * 5, 5);
        }
        if remote {
            world.cluster.segments_leave(100).unwrap();
        }
        let split = world.split(0, StartOffset::Earliest, 2000);
        let options = Options { bucket_bytes: 8 << 10, ahead: Some(1), ..Options::default() };
        let (mut log, one_by_one) = (0, world.reader(std::slice::from_ref(&split), small()).await);
        let mut stream = one_by_one.open(&split).unwrap();
        while let Some(chunk) = stream.next().await.unwrap() {
            log += chunk.fetched_bytes;
        }
        let reader = world.reader(std::slice::from_ref(&split), options).await;
        let (mut stream, mut next, mut fetched) = (reader.open(&split).unwrap(), 0, 0);
        while let Some(chunk) = stream.next().await.unwrap() {
            let bytes: usize = chunk.batches.iter().map(|batch| batch.memory.bytes()).sum();
            // Memory for 8 KiB at 4 times that, a quarter more, and what arrays are rounded up to.
            assert!(bytes <= 48 << 10 && chunk.batches.len() <= 8, "{} batches, {bytes} bytes", chunk.batches.len());
            assert!(chunk.permit.bytes() >= bytes && bytes >= BATCH, "{} of {bytes}", chunk.permit.bytes());
            for batch in &chunk.batches {
                assert_eq!(batch.base_offset, next);
                next = batch.end_offset();
            }
            fetched += chunk.fetched_bytes;
        }
        assert_eq!(next, 2000);
        // Each answer ends with a batch that is cut off.
        assert!(fetched < log + log / 4 + (8 << 10), "{fetched} bytes fetched of a log of {log}");
    }
}

/// Bucket 0 with 20 batches of 10 rows; but for the last 2, all have left in segments of 3.
fn remote_world() -> World {
    remote_world_with(1 << 20)
}

fn remote_world_with(memory: usize) -> World {
    let world = world(memory);
    for batch in 0..20 {
        world.append(0, batch * 10, 10);
    }
    world.cluster.segments_leave(3).unwrap();
    world
}

/// The files of the remote log, oldest first.
fn files(world: &World) -> Vec<(String, bytes::Bytes)> {
    let mut files = vec![];
    world.cluster.alter_remote(|url, bytes| {
        files.push((url.to_owned(), bytes.clone()));
        Some(bytes)
    });
    files.sort_by_key(|(url, _)| url.rsplit_once('/').map(|(_, name)| name.to_owned()));
    files
}

/// Reads bucket 0 from `start` to `stop`.
async fn read_all(world: &World, start: StartOffset, stop: i64, options: Options) -> Result<(Vec<i64>, i64)> {
    let splits = [world.split(0, start, stop)];
    ids(world.reader(&splits, options).await.open(&splits[0])?).await
}

#[tokio::test(start_paused = true)]
async fn records_that_have_left_the_servers_come_once_and_in_order_and_then_those_that_have_not() {
    // Also with a budget that holds less than one batch: it is let in alone.
    for (options, memory) in [(Options::default(), 1 << 20), (small(), 1 << 20), (Options::default(), 1024)] {
        let world = remote_world_with(memory);
        assert_eq!(files(&world).len(), 6);
        for (start, stop) in [(0, 200), (33, 187), (0, 30), (29, 31), (59, 60), (175, 200), (185, 200)] {
            let found = read_all(&world, StartOffset::At(start), stop, options).await.unwrap();
            assert_eq!(found, ((start..stop).collect(), stop));
        }
        let found = read_all(&world, StartOffset::Earliest, 200, options).await.unwrap();
        assert_eq!(found, ((0..200).collect(), 200));
        assert_eq!(world.runtime.budget.used(), 0, "everything was given back");
    }
}

#[tokio::test(start_paused = true)]
async fn the_server_is_asked_once_for_all_segments_and_nothing_is_read_twice() {
    let world = remote_world();
    let calls = Arc::new(std::sync::Mutex::new(BTreeMap::<String, i32>::new()));
    let seen = Arc::clone(&calls);
    let count = move |act: &str, _: &str| {
        *seen.lock().unwrap().entry(act.to_owned()).or_default() += 1;
        None
    };
    let scan = Arc::new(world.cluster.service(Faults::scripted(count)));
    let split = world.split(0, StartOffset::At(0), 200);
    let options = Options::default();
    let reader = Reader::new(scan, Arc::clone(&world.table), std::slice::from_ref(&split), options, whole(), world.runtime.clone());
    let reader = reader.await.unwrap();
    assert_eq!(ids(reader.open(&split).unwrap()).await.unwrap().1, 200);
    let calls = calls.lock().unwrap();
    assert_eq!((calls.get("fetch"), calls.get("remote_bytes")), (Some(&2), Some(&6)), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn a_segment_that_vanished_is_asked_for_again_and_named_when_it_stays_away() {
    let world = remote_world();
    let lost = files(&world)[1].clone();
    let lose = |world: &World| world.cluster.alter_remote(|url, bytes| (url != lost.0).then_some(bytes));
    lose(&world);
    let error = read_all(&world, StartOffset::At(0), 200, Options::default()).await.unwrap_err();
    assert!(error.kind() == Kind::Data && error.hint().is_some(), "{error:?}");
    let text = error.chain();
    assert!(text.contains(&lost.0) && text.contains("`30`") && text.contains("bucket 0"), "{text}");
    // It comes back while the reader waits.
    let (splits, file) = ([world.split(0, StartOffset::At(0), 200)], files(&world)[0].0.clone());
    let reading = tokio::spawn(ids(world.reader(&splits, Options::default()).await.open(&splits[0]).unwrap()));
    world.runtime.clock.sleep(Duration::from_secs(20)).await;
    assert!(!reading.is_finished());
    world.cluster.restore_remote(&lost.0, lost.1.clone());
    assert_eq!(reading.await.unwrap().unwrap(), ((0..200).collect(), 200));
    // The log's start has moved over what is wanted, and its file is gone with it.
    assert!(files(&world).iter().any(|(url, _)| *url == file));
    world.cluster.set_log_start(world.bucket(0), 30).unwrap();
    assert!(!files(&world).iter().any(|(url, _)| *url == file));
    let error = read_all(&world, StartOffset::At(0), 200, Options::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Data, Some(19)));
    let found = read_all(&world, StartOffset::Earliest, 200, small()).await.unwrap();
    assert_eq!(found, ((30..200).collect(), 200));
}

#[tokio::test(start_paused = true)]
async fn damage_to_a_segment_is_a_data_fault_that_names_file_byte_bucket_and_offset() {
    let whole = files(&remote_world());
    let (second, third) = (&whole[1].1, &whole[2].1);
    let batch = second.len() / 3;
    let flipped = |at: usize| {
        let mut bytes = second.to_vec();
        bytes[at] ^= 0x40;
        bytes.into()
    };
    let cases: [(bytes::Bytes, &str, &str); 7] = [
        (flipped(batch + 70), "`40`", "checksum"),
        (flipped(batch + 8 + 3), "`40`", "in a segment of"),
        (flipped(batch), "`40`", "is due"),
        (flipped(0), "`30`", "is due"),
        (second.slice(..second.len() - 5), "offset `", "the file ends at byte"),
        (second.slice(..0), "`30`", "the file ends at byte"),
        (third.clone(), "`30`", "`60`"),
    ];
    for options in [Options::default(), small()] {
        for (bytes, offset, words) in &cases {
            let world = remote_world();
            let file = files(&world)[1].0.clone();
            world.cluster.alter_remote(|url, old| Some(if *url == file { bytes.clone() } else { old }));
            let error = read_all(&world, StartOffset::At(0), 200, options).await.unwrap_err();
            let text = error.chain();
            assert_eq!(error.kind(), Kind::Data, "{text}");
            for part in [file.as_str(), *offset, *words, "bucket 0", "byte `"] {
                assert!(text.contains(part), "`{part}` in: {text}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn empty_batches_advance_without_rows() {
    let world = world(1 << 20);
    world.append(0, 0, 3);
    world.cluster.append_empty(world.bucket(0)).unwrap();
    world.cluster.append_empty(world.bucket(0)).unwrap();
    world.cluster.append_empty(world.bucket(1)).unwrap();
    let splits = [world.split(0, StartOffset::At(1), 5), world.split(1, StartOffset::Earliest, 1)];
    let reader = world.reader(&splits, small()).await;
    assert_eq!(ids(reader.open(&splits[0]).unwrap()).await.unwrap(), (vec![1, 2], 5));
    assert_eq!(ids(reader.open(&splits[1]).unwrap()).await.unwrap(), (vec![], 1));
}

#[tokio::test(start_paused = true)]
async fn a_budget_smaller_than_one_batch_still_reads_everything() {
    let world = world(1024);
    for bucket in 0..3 {
        for batch in 0..5 {
            world.append(bucket, batch * 100, 100);
        }
    }
    let splits: Vec<Split> = (0..3).map(|bucket| world.split(bucket, StartOffset::Earliest, 500)).collect();
    let reader = world.reader(&splits, Options::default()).await;
    let streams = splits.iter().map(|split| ids(reader.open(split).unwrap()));
    for found in futures::future::try_join_all(streams).await.unwrap() {
        assert_eq!(found, ((0..500).collect(), 500));
    }
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_gives_nothing_is_named_with_its_offsets() {
    let world = world(1 << 20);
    world.append(0, 0, 10);
    let split = world.split(0, StartOffset::At(10), 20);
    let reader = world.reader(std::slice::from_ref(&split), Options::default()).await;
    let error = ids(reader.open(&split).unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    for word in ["bucket 0", "`10`", "`20`"] {
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_log_is_a_data_fault() {
    let world = world(1 << 20);
    world.append(0, 0, 10);
    world.append(0, 10, 10);
    world.cluster.set_log_start(world.bucket(0), 10).unwrap();
    let split = world.split(0, StartOffset::At(5), 20);
    let reader = world.reader(std::slice::from_ref(&split), Options::default()).await;
    assert_eq!(ids(reader.open(&split).unwrap()).await.unwrap_err().kind(), Kind::Data);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_dropped_gives_its_memory_back() {
    let world = world(1 << 20);
    for batch in 0..50 {
        world.append(0, batch * 10, 10);
    }
    let split = world.split(0, StartOffset::Earliest, 500);
    let reader = world.reader(std::slice::from_ref(&split), small()).await;
    let mut stream = reader.open(&split).unwrap();
    drop(stream.next().await.unwrap());
    drop((stream, reader));
    while world.runtime.budget.used() > 0 {
        tokio::task::yield_now().await;
    }
}

/// Answers every fetch with a refusal and keeps what was asked.
#[derive(Default)]
struct Asked(std::sync::Mutex<Vec<i64>>);

#[async_trait::async_trait]
impl TableScan for Asked {
    async fn table_info(&self, _: &TablePath) -> Result<TableInfo> {
        unreachable!()
    }

    async fn schema(&self, _: &TablePath, _: SchemaId) -> Result<Arc<Schema>> {
        unreachable!()
    }

    async fn partitions(&self, _: &TableInfo) -> Result<Vec<Partition>> {
        unreachable!()
    }

    async fn end_offsets(&self, _: &TableInfo, _: Option<&Partition>, _: BucketLayout) -> Result<Option<Vec<i64>>> {
        unreachable!()
    }

    async fn start_offsets(&self, _: &TableInfo, _: Option<&Partition>, _: BucketLayout) -> Result<Option<Vec<i64>>> {
        unreachable!()
    }

    async fn lanes(&self, _: &TableInfo, buckets: &[TableBucket]) -> Result<Vec<Vec<TableBucket>>> {
        Ok(vec![buckets.to_vec()])
    }

    async fn fetch(&self, request: FetchRequest) -> Result<Vec<FetchedBucket>> {
        self.0.lock().unwrap().push(request.buckets.iter().map(|bucket| i64::from(bucket.bytes_max)).sum());
        Err(Error::unavailable("no"))
    }

    async fn serves_states(&self) -> Result<bool> {
        unreachable!()
    }

    async fn open_state(&self, _: StateRequest) -> Result<Box<dyn StateScan>> {
        unreachable!()
    }

    fn forget(&self, _: &TablePath) {}
}

#[tokio::test(start_paused = true)]
async fn a_request_never_asks_for_more_than_a_frame_holds() {
    let world = world(4 << 30);
    let asked = Arc::new(Asked::default());
    let splits: Vec<Split> = (0..100).map(|bucket| world.split(bucket, StartOffset::Earliest, 500)).collect();
    let reader = Reader::new(
        Arc::<Asked>::clone(&asked),
        Arc::clone(&world.table),
        &splits,
        Options::default(),
        whole(),
        world.runtime.clone(),
    );
    let reader = reader.await.unwrap();
    for failed in futures::future::join_all(splits.iter().map(|split| ids(reader.open(split).unwrap()))).await {
        assert_eq!(failed.unwrap_err().kind(), Kind::Unavailable);
    }
    let asked = asked.0.lock().unwrap();
    assert_eq!(asked.iter().sum::<i64>(), 100 * (4 << 20));
    assert!(asked.iter().all(|bytes| *bytes <= 64 << 20), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cut_ends_streams_at_the_end_of_what_was_fetched_and_gives_up_what_hangs() {
    let world = world(1 << 20);
    for bucket in 0..3 {
        for batch in 0..20 {
            world.append(bucket, batch * 10, 10);
        }
    }
    let splits: Vec<Split> = (0..3).map(|bucket| world.split(bucket, StartOffset::At(3), 200)).collect();
    let open = |faults: Faults, cut: Cut| {
        let scan = Arc::new(world.cluster.service(faults));
        Reader::new(scan, Arc::clone(&world.table), &splits, small(), cut, world.runtime.clone())
    };
    // One byte: what is in flight still comes, so at most a few batches per stream.
    let reader = open(Faults::default(), Cut::new(CancellationToken::new(), Some(1))).await.unwrap();
    let streams = splits.iter().map(|split| ids(reader.open(split).unwrap()));
    let found = futures::future::try_join_all(streams).await.unwrap();
    assert!(found.iter().any(|(_, end)| *end >= 10), "at least one fetch is made");
    for (ids, end) in found.into_iter().filter(|(_, end)| *end >= 0) {
        assert!(end < 200 && end % 10 == 0, "the end of a batch: {end}");
        assert_eq!(ids, (3..end).collect::<Vec<_>>());
    }
    // A token: nothing is waited for.
    let cut = Cut::new(CancellationToken::new(), None);
    let reader = open(Faults::scripted(|act, _| (act == "fetch").then_some(Fault::Hang)), cut.clone()).await.unwrap();
    let stream = reader.open(&splits[0]).unwrap();
    let (found, ()) = tokio::join!(ids(stream), async {
        world.runtime.clock.sleep(Duration::from_secs(5)).await;
        cut.cut();
    });
    assert_eq!(found.unwrap(), (vec![], -1));
    drop(reader);
    while world.runtime.budget.used() > 0 {
        tokio::task::yield_now().await;
    }
}
