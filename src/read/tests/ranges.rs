//! Ranges of one bucket side by side: whatever is cut how, the rows are the same ones in the same order.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use tokio::sync::oneshot;

use super::*;
use crate::fluss::record::{Compression, EncodeOptions, encode_arrow_batch};

/// What a bucket's log is like, and how it is read.
#[derive(Debug, Clone)]
struct Case {
    /// Rows of each batch; 0 = an empty batch, which has an offset all the same.
    batches: Vec<i64>,
    /// Batches of a segment; 0 = nothing has left the servers.
    segment: usize,
    buckets: i32,
    /// Hundredths of the log.
    start: i64,
    stop: i64,
    bucket_bytes: i32,
    ahead: usize,
    range_rows: i64,
    requests_max: usize,
    memory: usize,
    /// Which calls fail, by their number, and what is fetched at most.
    failing: Vec<usize>,
    bytes_max: Option<u64>,
    /// Whether rows take a hundred times their bytes.
    dense: bool,
    /// Whether the consumer keeps the rows' memory until somebody waits for it, as a writer does.
    keeps: bool,
}

fn cases() -> impl Strategy<Value = Case> {
    let log = (prop::collection::vec(prop_oneof![1 => Just(0_i64), 9 => 1_i64..60], 1..60), 0_usize..5, 1..=3_i32);
    let split = (0_i64..100, 0_i64..=100);
    let options = (1_i32..4000, 1_usize..7, 0_i64..200, 1_usize..4, 1_usize..200);
    let trouble =
        (prop::collection::vec(0_usize..80, 0..3), prop::option::weighted(0.2, 1_u64..20_000), any::<bool>(), any::<bool>());
    (log, split, options, trouble).prop_map(
        |((batches, segment, buckets), (start, stop), options, (failing, bytes_max, keeps, dense))| {
            let (bucket_bytes, ahead, range_rows, requests_max, kib) = options;
            let memory = kib * 1024;
            Case {
                batches,
                segment,
                buckets,
                start,
                stop,
                bucket_bytes,
                ahead,
                range_rows,
                requests_max,
                memory,
                failing,
                bytes_max,
                dense,
                keeps,
            }
        },
    )
}

/// What a stream gave: its rows' offsets, the end of each chunk, how it ended.
struct Read {
    offsets: Vec<i64>,
    ends: Vec<i64>,
    ended: Result<()>,
}

async fn read(mut stream: SplitStream, runtime: &Runtime, keeps: bool) -> Read {
    let (mut read, mut kept) = (Read { offsets: vec![], ends: vec![], ended: Ok(()) }, vec![]);
    loop {
        let next = tokio::select! {
            next = stream.next() => next,
            () = runtime.budget.pressed(), if !kept.is_empty() => {
                kept.clear();
                continue;
            }
        };
        match next {
            Ok(None) => return read,
            Err(error) => {
                read.ended = Err(error);
                return read;
            }
            Ok(Some(chunk)) => {
                for batch in &chunk.batches {
                    let ids = batch.rows.column(0).as_primitive::<Int64Type>().values();
                    assert_eq!(ids[0], batch.base_offset);
                    read.offsets.extend(ids);
                }
                read.ends.push(chunk.end_offset);
                if keeps {
                    kept.push(chunk.permit);
                }
            }
        }
    }
}

async fn check(case: Case) {
    let world = world_of(case.memory, case.dense);
    let (mut end, mut rows, mut edges) = (0, vec![], vec![0]);
    for count in &case.batches {
        for bucket in 0..case.buckets {
            if *count == 0 {
                world.cluster.append_empty(world.bucket(bucket)).unwrap();
            } else {
                world.append(bucket, end, *count);
            }
        }
        rows.extend(end..end + count);
        end += (*count).max(1);
        edges.push(end);
    }
    if case.segment > 0 {
        world.cluster.segments_leave(case.segment).unwrap();
    }
    let (start, stop) = (end * case.start / 100, end * case.stop / 100);
    let splits: Vec<Split> = (0..case.buckets).map(|bucket| world.split(bucket, StartOffset::At(start), stop)).collect();
    let options = Options {
        bucket_bytes: case.bucket_bytes,
        ahead: Some(case.ahead),
        range_rows: case.range_rows,
        requests_max: case.requests_max,
        ..Options::default()
    };
    let (calls, failing) = (AtomicUsize::new(0), case.failing.clone());
    let faults = Faults::scripted(move |act, _| {
        let counted = matches!(act, "fetch" | "remote_bytes");
        (counted && failing.contains(&calls.fetch_add(1, Ordering::Relaxed))).then_some(Fault::Before)
    });
    let (scan, table) = (Arc::new(world.cluster.service(faults)), Arc::clone(&world.table));
    let cut = Cut::new(CancellationToken::new(), case.bytes_max);
    let reader = Reader::new(scan, table, &splits, options, cut.clone(), world.runtime.clone()).await.unwrap();
    let all = splits.iter().map(|split| read(reader.open(split).unwrap(), &world.runtime, case.keeps));
    // Far beyond any stall: time passes only while everybody waits, so this is a wait for each other.
    let all =
        tokio::time::timeout(Duration::from_secs(3600), futures::future::join_all(all)).await.expect("nobody waits for himself");
    for read in all {
        let reached = read.ends.last().copied().unwrap_or(start);
        let expected: Vec<i64> = rows.iter().copied().filter(|row| (start..reached).contains(row)).collect();
        assert_eq!(read.offsets, expected, "up to {reached}");
        assert!(read.ends.is_sorted_by(|one, other| one < other) && reached <= stop.max(start));
        match read.ended {
            Err(error) => assert!(!case.failing.is_empty() && error.chain().contains("injected"), "{}", error.chain()),
            Ok(()) if reached < stop => {
                assert!(cut.is_due(), "it ends at its stop offset");
                assert!(read.ends.iter().all(|end| edges.contains(end)), "a cut is at the end of a batch");
            }
            Ok(()) => {}
        }
    }
    drop(reader);
    while world.runtime.budget.used() > 0 {
        tokio::task::yield_now().await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_cutting_into_ranges_with_any_budget_and_faults_gives_the_same_rows_in_the_same_order(case in cases()) {
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(check(case));
    }
}

/// Keeps fetches and reads of remote files back until it is told to let them go.
struct Held {
    inner: Arc<dyn TableScan>,
    /// Offset (or byte) of each that waits.
    waiting: Mutex<Vec<(i64, oneshot::Sender<()>)>>,
    /// All that have begun: offset or bytes.
    begun: Mutex<Vec<(String, i64, i64)>>,
    open: AtomicBool,
}

impl Held {
    fn new(world: &World) -> Arc<Self> {
        let inner = Arc::new(world.cluster.service(Faults::default()));
        Arc::new(Self { inner, waiting: Mutex::default(), begun: Mutex::default(), open: false.into() })
    }

    async fn turn(&self, what: &str, start: i64, end: i64) {
        self.begun.lock().unwrap().push((what.to_owned(), start, end));
        if self.open.load(Ordering::Relaxed) {
            return;
        }
        let (go, gone) = oneshot::channel();
        self.waiting.lock().unwrap().push((start, go));
        gone.await.unwrap();
    }

    /// Waits until so many are under way, and for whatever else would begin; where they begin.
    async fn under_way(&self, count: usize) -> Vec<i64> {
        while self.waiting.lock().unwrap().len() < count {
            tokio::task::yield_now().await;
        }
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        self.waiting.lock().unwrap().iter().map(|(start, _)| *start).collect()
    }

    /// Lets the one go that begins last.
    fn let_last_go(&self) {
        let mut waiting = self.waiting.lock().unwrap();
        let last = (0..waiting.len()).max_by_key(|index| waiting[*index].0).unwrap();
        waiting.remove(last).1.send(()).unwrap();
    }

    fn let_all_go(&self) {
        self.open.store(true, Ordering::Relaxed);
        self.waiting.lock().unwrap().drain(..).for_each(|(_, go)| go.send(()).unwrap());
    }
}

#[async_trait::async_trait]
impl TableScan for Held {
    async fn table_info(&self, path: &TablePath) -> Result<TableInfo> {
        self.inner.table_info(path).await
    }

    async fn schema(&self, path: &TablePath, id: SchemaId) -> Result<Arc<Schema>> {
        self.inner.schema(path, id).await
    }

    async fn partitions(&self, table: &TableInfo) -> Result<Vec<Partition>> {
        self.inner.partitions(table).await
    }

    async fn end_offsets(&self, _: &TableInfo, _: Option<&Partition>, _: BucketLayout) -> Result<Option<Vec<i64>>> {
        unreachable!()
    }

    async fn start_offsets(&self, _: &TableInfo, _: Option<&Partition>, _: BucketLayout) -> Result<Option<Vec<i64>>> {
        unreachable!()
    }

    async fn lanes(&self, table: &TableInfo, buckets: &[TableBucket]) -> Result<Vec<Vec<TableBucket>>> {
        self.inner.lanes(table, buckets).await
    }

    async fn fetch(&self, request: FetchRequest) -> Result<Vec<FetchedBucket>> {
        let StartOffset::At(offset) = request.buckets[0].offset else { unreachable!() };
        self.turn("fetch", offset, i64::from(request.buckets[0].bytes_max)).await;
        self.inner.fetch(request).await
    }

    async fn serves_states(&self) -> Result<bool> {
        unreachable!()
    }

    async fn open_state(&self, _: StateRequest) -> Result<Box<dyn StateScan>> {
        unreachable!()
    }

    async fn remote_bytes(&self, url: &str, start: u64, end: u64) -> Result<Option<bytes::Bytes>> {
        self.turn(url, i64::try_from(start).unwrap(), i64::try_from(end).unwrap()).await;
        self.inner.remote_bytes(url, start, end).await
    }

    fn forget(&self, _: &TablePath) {}
}

async fn held(world: &World, ahead: usize) -> (Arc<Held>, Reader, Split) {
    let (scan, split) = (Held::new(world), world.split(0, StartOffset::At(0), 5000));
    let options = Options { bucket_bytes: few(world), ahead: Some(ahead), range_rows: 300, requests_max: 8, ..Options::default() };
    let (table, runtime) = (Arc::clone(&world.table), world.runtime.clone());
    let scanned = Arc::<Held>::clone(&scan);
    let reader = Reader::new(scanned, table, std::slice::from_ref(&split), options, whole(), runtime).await.unwrap();
    (scan, reader, split)
}

/// A batch of 100 rows; all have the same size.
fn batch(world: &World, first: i64) -> bytes::Bytes {
    rows(world, first, 100)
}

fn rows(world: &World, first: i64, count: i64) -> bytes::Bytes {
    let ids = Arc::new((first..first + count).collect::<Int64Array>());
    let rows = RecordBatch::try_new(arrow_schema(&world.table.schema).unwrap(), vec![ids]).unwrap();
    let options = EncodeOptions { compression: Compression::None, ..EncodeOptions::new(SchemaId(1)) };
    encode_arrow_batch(options, &rows, None).unwrap()
}

/// Bytes of four batches and a part of the next one.
fn few(world: &World) -> i32 {
    i32::try_from(batch(world, 0).len() * 9 / 2).unwrap()
}

fn hot(memory: usize, buckets: i32) -> World {
    let world = world(memory);
    for bucket in 0..buckets {
        for first in (0..5000).step_by(100) {
            world.cluster.append_raw(world.bucket(bucket), &batch(&world, first)).unwrap();
        }
    }
    world
}

#[tokio::test(start_paused = true)]
async fn ranges_of_one_bucket_are_under_way_at_once_and_put_in_order_whichever_comes_first() {
    for ahead in [2, 5] {
        let world = hot(1 << 20, 1);
        let (scan, reader, split) = held(&world, ahead).await;
        let reading = tokio::spawn(ids(reader.open(&split).unwrap()));
        assert_eq!(scan.under_way(1).await, [0], "the first answer tells how far a fetch reaches");
        scan.let_last_go();
        let under_way = scan.under_way(ahead).await;
        assert_eq!(under_way.len(), ahead, "{under_way:?}");
        assert!(under_way.is_sorted_by(|one, other| one < other) && under_way[0] > 0);
        for _ in 0..ahead {
            assert!(!reading.is_finished());
            scan.let_last_go();
        }
        scan.let_all_go();
        assert_eq!(reading.await.unwrap().unwrap(), ((0..5000).collect(), 5000));
        // Each begins where the one before is expected to end: little is fetched twice.
        let begun = scan.begun.lock().unwrap().len();
        let alone = {
            let world = hot(1 << 20, 1);
            let (scan, reader, split) = held(&world, 1).await;
            scan.let_all_go();
            ids(reader.open(&split).unwrap()).await.unwrap();
            scan.begun.lock().unwrap().len()
        };
        assert!(begun <= alone + 1, "{begun} fetches, {alone} of one range after the other");
    }
}

#[tokio::test(start_paused = true)]
async fn of_remote_segments_too_and_no_byte_is_read_twice() {
    let world = hot(1 << 20, 1);
    world.cluster.segments_leave(7).unwrap();
    let (scan, reader, split) = held(&world, 4).await;
    let reading = tokio::spawn(ids(reader.open(&split).unwrap()));
    scan.under_way(1).await;
    scan.let_last_go();
    assert_eq!(scan.under_way(4).await.len(), 4);
    for _ in 0..4 {
        scan.let_last_go();
    }
    scan.let_all_go();
    assert_eq!(reading.await.unwrap().unwrap(), ((0..5000).collect(), 5000));
    let mut read: BTreeMap<String, Vec<(i64, i64)>> = BTreeMap::new();
    for (what, start, end) in scan.begun.lock().unwrap().iter().filter(|(what, ..)| what != "fetch") {
        read.entry(what.clone()).or_default().push((*start, *end));
    }
    let files = files(&world);
    assert_eq!(read.len(), files.len());
    for (url, bytes) in files {
        let ranges = &read[&url];
        assert_eq!(ranges[0].0, 0);
        assert!(ranges.windows(2).all(|pair| pair[0].1 == pair[1].0), "{ranges:?}");
        assert_eq!(usize::try_from(ranges.last().unwrap().1).unwrap(), bytes.len());
        assert!(ranges.len() > 1);
    }
}

#[tokio::test(start_paused = true)]
async fn many_buckets_share_what_may_be_under_way_and_a_consumer_that_waits_bounds_it() {
    let world = hot(1 << 20, 3);
    let scan = Held::new(&world);
    let splits: Vec<Split> = (0..3).map(|bucket| world.split(bucket, StartOffset::At(0), 5000)).collect();
    let options = Options { bucket_bytes: few(&world), ahead: Some(4), range_rows: 300, requests_max: 64, ..Options::default() };
    let scanned = Arc::<Held>::clone(&scan);
    let reader = Reader::new(scanned, Arc::clone(&world.table), &splits, options, whole(), world.runtime.clone()).await.unwrap();
    scan.let_all_go();
    let streams: Vec<SplitStream> = splits.iter().map(|split| reader.open(split).unwrap()).collect();
    world.runtime.clock.sleep(Duration::from_secs(60)).await;
    let used = world.runtime.budget.used();
    // Of each: one that waits for the consumer, two that are decoded, one that is fetched.
    let begun = scan.begun.lock().unwrap().len();
    assert!(begun <= 3 * 4, "{begun} fetches");
    drop(streams);
    // One alone may have four under way and four decoded.
    let alone = Held::new(&world);
    let scanned = Arc::<Held>::clone(&alone);
    let reader = Reader::new(scanned, Arc::clone(&world.table), &splits, options, whole(), world.runtime.clone()).await.unwrap();
    alone.let_all_go();
    let stream = reader.open(&splits[0]).unwrap();
    world.runtime.clock.sleep(Duration::from_secs(60)).await;
    let begun = alone.begun.lock().unwrap().len();
    assert!((8..=10).contains(&begun), "{begun} fetches");
    assert!(used > 0 && world.runtime.budget.used() > used / 3);
    drop(stream);
}

#[tokio::test(start_paused = true)]
async fn a_cut_by_bytes_behind_a_batch_that_is_longer_than_a_range_is_no_fault() {
    let world = hot(1 << 20, 1);
    world.cluster.segments_leave(7).unwrap();
    let (scan, split) = (Held::new(&world), world.split(0, StartOffset::At(0), 5000));
    let long = batch(&world, 0).len();
    let bucket_bytes = i32::try_from(long * 2 / 5).unwrap();
    let options = Options { bucket_bytes, ahead: Some(3), range_rows: 300, ..Options::default() };
    let cut = Cut::new(CancellationToken::new(), Some(u64::try_from(long * 9 / 10).unwrap()));
    let scanned = Arc::<Held>::clone(&scan);
    let (table, runtime) = (Arc::clone(&world.table), world.runtime.clone());
    let reader = Reader::new(scanned, table, std::slice::from_ref(&split), options, cut, runtime).await.unwrap();
    scan.let_all_go();
    let read = ids(reader.open(&split).unwrap()).await.unwrap();
    assert_eq!(read, ((0..read.1).collect(), read.1));
    assert_eq!(read.1, 100);
}

#[tokio::test(start_paused = true)]
async fn batches_larger_than_all_memory_are_not_gathered() {
    let world = world(16 << 10);
    for bucket in 0..2 {
        for first in (0..40_000).step_by(4000) {
            world.cluster.append_raw(world.bucket(bucket), &rows(&world, first, 4000)).unwrap();
        }
    }
    let scan = Held::new(&world);
    let splits: Vec<Split> = (0..2).map(|bucket| world.split(bucket, StartOffset::At(0), 40_000)).collect();
    let options = Options { bucket_bytes: 128, ahead: Some(4), range_rows: 300, ..Options::default() };
    let scanned = Arc::<Held>::clone(&scan);
    let reader = Reader::new(scanned, Arc::clone(&world.table), &splits, options, whole(), world.runtime.clone()).await.unwrap();
    scan.let_all_go();
    let streams: Vec<SplitStream> = splits.iter().map(|split| reader.open(split).unwrap()).collect();
    world.runtime.clock.sleep(Duration::from_secs(60)).await;
    assert_eq!(scan.begun.lock().unwrap().len(), 2, "the first of each, and nobody takes what came");
    for read in futures::future::join_all(streams.into_iter().map(ids)).await {
        assert_eq!(read.unwrap(), ((0..40_000).collect(), 40_000));
    }
}
