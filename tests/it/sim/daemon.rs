//! The daemon under simulated time: many tables, whole rounds, one thread. Each rule of architecture.md 5 has its test.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, RecordBatch, StringArray};
use async_trait::async_trait;
use lakeward::daemon::board::{Board, Phase, TableState, TableStatus};
use lakeward::daemon::{self, Options, Service};
use lakeward::error::{Kind, Result};
use lakeward::fluss::record::arrow_schema;
use lakeward::fluss::table_json::TableDescriptor;
use lakeward::lake::{LakeTable, Warehouse};
use lakeward::mapping;
use lakeward::model::{
    BucketLayout, Partition, RoundOutcome, RoundSummary, Schema, SchemaId, TableBucket, TableId, TableInfo, TablePath,
};
use lakeward::round::{self, RoundContext};
use lakeward::runtime::{FailAction, FailPoints, Rng, Runtime};
use lakeward::source::memory::{Fault, Faults, MemoryCluster};
use lakeward::source::{Assignments, FetchRequest, FetchedBucket, Heartbeat, HeartbeatReply, TableScan};
use lakeward::storage::{StoreOptions, open};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::world::{bucket, fields, for_seeds};

/// A cluster, a warehouse on disk, and what was said between the cluster and our service.
struct World {
    runtime: Runtime,
    cluster: MemoryCluster,
    folder: tempfile::TempDir,
    next_id: AtomicU64,
    log: Arc<Log>,
}

#[derive(Default)]
struct Log {
    /// Heartbeats so far.
    calls: AtomicU64,
    /// Each assignment: when, which table.
    claims: Mutex<Vec<(i64, TablePath)>>,
    /// Each report: when, which table, how.
    reports: Mutex<Vec<(i64, TableId, &'static str)>>,
    /// Each round that ended well: when, what it did.
    rounds: Mutex<Vec<(i64, RoundSummary)>>,
    /// Heartbeats fail.
    deaf: AtomicBool,
}

/// The queue, listened to.
struct Tapped {
    queue: Arc<dyn Assignments>,
    log: Arc<Log>,
    runtime: Runtime,
}

#[async_trait]
impl Assignments for Tapped {
    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatReply> {
        let now_ms = self.runtime.clock.now_ms();
        self.log.calls.fetch_add(1, Ordering::Relaxed);
        if self.log.deaf.load(Ordering::Relaxed) {
            return Err(lakeward::error::Error::unavailable("the coordinator is away"));
        }
        let reply = self.queue.heartbeat(heartbeat.clone()).await?;
        let mut reports = self.log.reports.lock().unwrap();
        for done in &heartbeat.finished {
            reports.push((now_ms, done.held.table, if done.forced { "forced" } else { "finished" }));
        }
        reports.extend(heartbeat.failed.iter().map(|held| (now_ms, held.table, "failed")));
        self.log.claims.lock().unwrap().extend(reply.assigned.iter().map(|assigned| (now_ms, assigned.path.clone())));
        Ok(reply)
    }
}

/// Tables whose fetches take time.
struct Slow {
    scan: Arc<dyn TableScan>,
    fetch: Duration,
    runtime: Runtime,
}

#[async_trait]
impl TableScan for Slow {
    async fn table_info(&self, path: &TablePath) -> Result<TableInfo> {
        self.scan.table_info(path).await
    }
    async fn schema(&self, path: &TablePath, id: SchemaId) -> Result<Arc<Schema>> {
        self.scan.schema(path, id).await
    }
    async fn partitions(&self, table: &TableInfo) -> Result<Vec<Partition>> {
        self.scan.partitions(table).await
    }
    async fn end_offsets(&self, table: &TableInfo, of: Option<&Partition>, layout: BucketLayout) -> Result<Option<Vec<i64>>> {
        self.scan.end_offsets(table, of, layout).await
    }
    async fn start_offsets(&self, table: &TableInfo, of: Option<&Partition>, layout: BucketLayout) -> Result<Option<Vec<i64>>> {
        self.scan.start_offsets(table, of, layout).await
    }
    async fn lanes(&self, table: &TableInfo, buckets: &[TableBucket]) -> Result<Vec<Vec<TableBucket>>> {
        self.scan.lanes(table, buckets).await
    }
    async fn fetch(&self, request: FetchRequest) -> Result<Vec<FetchedBucket>> {
        self.runtime.clock.sleep(self.fetch).await;
        self.scan.fetch(request).await
    }
    fn forget(&self, path: &TablePath) {
        self.scan.forget(path);
    }
}

/// The daemon, while it runs.
struct Running {
    stop: CancellationToken,
    shutdown: CancellationToken,
    board: Board,
    task: JoinHandle<Result<()>>,
}

const SECOND: Duration = Duration::from_secs(1);

fn path(name: &str) -> TablePath {
    TablePath::new("demo", name)
}

impl World {
    fn new() -> Self {
        let runtime = Runtime::simulated(7, 1_790_000_000_000, 64 << 20);
        Self {
            cluster: MemoryCluster::new(runtime.clone()),
            folder: tempfile::tempdir().unwrap(),
            next_id: AtomicU64::new(0),
            log: Arc::default(),
            runtime,
        }
    }

    fn warehouse(&self) -> String {
        self.folder.path().to_str().unwrap().to_owned()
    }

    fn now_ms(&self) -> i64 {
        self.runtime.clock.now_ms()
    }

    async fn sleep(&self, seconds: u64) {
        self.runtime.clock.sleep(SECOND * u32::try_from(seconds).unwrap()).await;
    }

    /// A log table of two buckets, in Fluss and in the lake.
    async fn table(&self, name: &str, freshness: &str) -> TableId {
        self.table_with(name, freshness, &[]).await
    }

    async fn table_with(&self, name: &str, freshness: &str, custom: &[(&str, &str)]) -> TableId {
        let warehouse = self.warehouse();
        let properties = [
            ("table.datalake.enabled", "true"),
            ("table.datalake.freshness", freshness),
            ("table.datalake.format", "paimon"),
            ("table.datalake.paimon.warehouse", &warehouse),
        ];
        let owned = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let descriptor = TableDescriptor {
            schema: Schema { id: SchemaId(1), fields: fields(), primary_key: vec![], highest_field_id: 1 },
            comment: None,
            partition_keys: vec![],
            bucket_keys: vec!["id".into()],
            bucket_count: Some(2),
            properties: owned(&properties),
            custom_properties: owned(custom),
        };
        let table = self.cluster.create_table(&path(name), &descriptor).unwrap();
        let lake = Warehouse::new(open(&warehouse, &StoreOptions::default()).unwrap(), self.runtime.clone());
        assert!(lake.create_table("demo", name, &mapping::lake_schema(&table).unwrap()).await.unwrap());
        table.id
    }

    /// Rows with numbers of their own.
    fn append(&self, table: TableId, rows: u64) {
        let schema = Schema { id: SchemaId(1), fields: fields(), primary_key: vec![], highest_field_id: 1 };
        let first = i64::try_from(self.next_id.fetch_add(rows, Ordering::Relaxed)).unwrap();
        let ids: Vec<i64> = (first..).take(usize::try_from(rows).unwrap()).collect();
        let days = Arc::new(StringArray::from(vec!["d"; ids.len()]));
        let batch = RecordBatch::try_new(arrow_schema(&schema).unwrap(), vec![Arc::new(Int64Array::from(ids)), days]).unwrap();
        self.cluster.append(bucket(table, None, i32::try_from(first % 2).unwrap()), SchemaId(1), &batch, None).unwrap();
    }

    /// Ids in the lake, sorted, as often as they are there.
    async fn ids(&self, name: &str) -> Vec<i64> {
        let store = open(&self.warehouse(), &StoreOptions::default()).unwrap();
        let lake = LakeTable::open(store, &format!("demo.db/{name}"), self.runtime.clone()).await.unwrap().unwrap();
        let Some(newest) = lake.newest_snapshot_id().await.unwrap() else { return vec![] };
        let newest = lake.snapshot(newest).await.unwrap().unwrap();
        let rows = lake.read_rows(&newest, None, Some(&["id"])).await.unwrap();
        let mut ids: Vec<i64> = rows.iter().flat_map(|rows| rows.column(0).as_primitive::<Int64Type>().values().to_vec()).collect();
        ids.sort_unstable();
        ids
    }

    fn start(&self, options: Options) -> Running {
        self.start_with(options, Faults::default(), FailPoints::default())
    }

    fn start_with(&self, options: Options, faults: Faults, fail: FailPoints) -> Running {
        self.start_slow(options, faults, fail, Duration::ZERO)
    }

    /// Each fetch takes `fetch` and brings one batch per bucket.
    fn start_slow(&self, options: Options, faults: Faults, fail: FailPoints, fetch: Duration) -> Running {
        let source = Arc::new(self.cluster.service(faults));
        let shutdown = CancellationToken::new();
        let runtime = Runtime { fail, shutdown: shutdown.clone(), ..self.runtime.clone() };
        let queue = Tapped { queue: Arc::clone(&source) as _, log: Arc::clone(&self.log), runtime: runtime.clone() };
        let mut of_rounds = round::Options::default();
        of_rounds.read.bucket_bytes = 1;
        let scan = Arc::new(Slow { scan: Arc::clone(&source) as _, fetch, runtime: runtime.clone() });
        let rounds = RoundContext { scan, ledger: source, runtime, options: of_rounds };
        let board = Board::new(options.parallel, self.now_ms());
        let service = Service { queue: Arc::new(queue), rounds, options };
        let stop = CancellationToken::new();
        let (token, told, log, clock) = (stop.clone(), board.clone(), Arc::clone(&self.log), self.runtime.clock.clone());
        let task = tokio::spawn(async move {
            let mut on_round = |summary: &RoundSummary| log.rounds.lock().unwrap().push((clock.now_ms(), summary.clone()));
            daemon::run(&service, token, &told, &mut on_round).await
        });
        Running { stop, shutdown, board, task }
    }

    fn claims(&self, name: &str) -> Vec<i64> {
        let claims = self.log.claims.lock().unwrap();
        claims.iter().filter(|(_, table)| *table == path(name)).map(|(at, _)| *at).collect()
    }

    fn reports(&self, table: TableId) -> Vec<(i64, &'static str)> {
        let reports = self.log.reports.lock().unwrap();
        reports.iter().filter(|(_, of, _)| *of == table).map(|(at, _, how)| (*at, *how)).collect()
    }

    /// Snapshots that rounds made of a table.
    fn commits(&self, name: &str) -> usize {
        let rounds = self.log.rounds.lock().unwrap();
        let committed = |round: &RoundSummary| matches!(round.outcome, RoundOutcome::Committed { .. });
        rounds.iter().filter(|(_, round)| round.table == path(name) && committed(round)).count()
    }
}

impl Running {
    fn status(&self, id: TableId) -> TableStatus {
        self.board.table(id).unwrap()
    }

    async fn until_ended(self) {
        self.task.await.unwrap().unwrap();
    }

    async fn stop(self) {
        self.stop.cancel();
        self.until_ended().await;
    }
}

fn options(parallel: usize) -> Options {
    Options { parallel, ..Options::default() }
}

/// Faults of one kind of call for one table, while the switch is on.
fn out_of_reach(act: &'static str, name: &str) -> (Faults, Arc<AtomicBool>) {
    let (on, target) = (Arc::new(AtomicBool::new(true)), path(name).to_string());
    let switch = Arc::clone(&on);
    let faults = Faults::scripted(move |of, table| {
        (of == act && table == target && switch.load(Ordering::Relaxed)).then_some(Fault::Before)
    });
    (faults, on)
}

#[tokio::test(start_paused = true)]
async fn fifty_empty_tables_cost_a_busy_one_nothing_and_the_coordinator_little() {
    let world = World::new();
    for index in 0..50 {
        world.table(&format!("empty_{index}"), "10s").await;
    }
    let busy = world.table("busy", "10s").await;
    let running = world.start(options(4));
    for _ in 0..70 {
        world.append(busy, 3);
        world.sleep(1).await;
    }
    let calls = world.log.calls.load(Ordering::Relaxed);
    running.stop().await;
    let claims = world.claims("busy");
    assert!(claims.len() >= 6, "{claims:?}");
    let reports = world.reports(busy);
    for (claim, (finished, how)) in claims[1..].iter().zip(&reports) {
        assert_eq!(*how, "finished");
        assert!(claim - finished <= 10_050, "claimed {} ms after the last round", claim - finished);
    }
    // 51 tables, 7 rounds each; a round costs one call for the claim and one for the report, which asks as well.
    assert!(calls < 51 * 7 * 5 / 2, "{calls} calls");
    let lag = reports.windows(2).map(|two| two[1].0 - two[0].0).max().unwrap();
    assert!(lag <= 12_000, "{lag}");
    let ids = world.ids("busy").await;
    assert!(ids.windows(2).all(|two| two[0] < two[1]) && ids.len() >= 180, "each row once: {}", ids.len());
}

#[tokio::test(start_paused = true)]
async fn an_idle_service_asks_once_per_poll() {
    let world = World::new();
    let running = world.start(options(4));
    world.sleep(60).await;
    assert_eq!(running.board.service().phase, Phase::Running);
    let calls = world.log.calls.load(Ordering::Relaxed);
    assert!((58..=62).contains(&calls), "{calls}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_table_is_asked_for_at_the_moment_when_its_freshness_runs_out() {
    let world = World::new();
    let table = world.table("t", "7500ms").await;
    let mut slow = options(4);
    slow.poll = SECOND * 60;
    let running = world.start(slow);
    world.sleep(301).await;
    let (claims, reports) = (world.claims("t"), world.reports(table));
    assert!(claims.len() > 25, "{}", claims.len());
    for (claim, (finished, _)) in claims[1..].iter().zip(&reports) {
        assert!((7_500..7_510).contains(&(claim - finished)), "{}", claim - finished);
    }
    let status = running.status(table);
    assert_eq!((status.state, status.freshness_ms, status.reason), (TableState::Waiting, Some(7_500), None));
    assert!(status.next_look_ms.unwrap() > world.now_ms() && status.lag_seconds.is_none());
    assert!(running.board.tables(world.now_ms())[0].lag_seconds.unwrap() <= 8);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn as_many_tables_as_allowed_are_in_hand_and_a_finished_one_is_followed_at_once() {
    let world = World::new();
    let mut tables = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        let table = world.table(name, "1s").await;
        world.append(table, 5);
        tables.push(table);
    }
    world.sleep(2).await;
    let running = world.start_with(options(3), Faults::default(), FailPoints::default());
    world.sleep(30).await;
    for (name, table) in ["a", "b", "c", "d", "e"].into_iter().zip(&tables) {
        assert_eq!(world.commits(name), 1, "{name}");
        assert_eq!(running.status(*table).rows, 5);
    }
    let claims = world.log.claims.lock().unwrap().clone();
    assert!(claims[4].0 - claims[0].0 < 1_000, "five tables, three slots, no poll between: {claims:?}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_round_that_stands_still_takes_one_slot_and_nothing_from_the_others() {
    let world = World::new();
    let stuck = world.table("stuck", "10s").await;
    world.append(stuck, 5);
    let well = world.table("well", "10s").await;
    let fail = FailPoints::default();
    fail.arm("commit.before_publish", 1, FailAction::Hang);
    let running = world.start_with(options(2), Faults::default(), fail);
    world.sleep(12).await;
    world.append(well, 5);
    world.sleep(600).await;
    assert_eq!(running.status(stuck).state, TableState::Tiering);
    assert_eq!((world.claims("stuck").len(), world.reports(stuck).len()), (1, 0), "the lease is kept by renewals");
    assert!(world.claims("well").len() > 55);
    assert_eq!(world.commits("well"), 1);
    running.stop().await;
    // What stands still is aborted after the grace, and handed back.
    assert_eq!(world.reports(stuck).iter().map(|(_, how)| *how).collect::<Vec<_>>(), ["forced"]);
}

#[tokio::test(start_paused = true)]
async fn a_table_out_of_reach_is_kept_for_two_minutes_while_the_others_go_on() {
    let world = World::new();
    let lost = world.table("lost", "10s").await;
    world.append(lost, 5);
    for name in ["a", "b"] {
        let table = world.table(name, "10s").await;
        world.append(table, 5);
    }
    let (faults, on) = out_of_reach("latest", "lost");
    // One slot: the table that waits must not take it.
    let running = world.start_with(options(1), faults, FailPoints::default());
    world.sleep(60).await;
    assert_eq!((world.claims("lost").len(), world.reports(lost).len()), (1, 0), "the lease is kept");
    let status = running.status(lost);
    assert!(matches!(status.state, TableState::BackingOff | TableState::Tiering), "{status:?}");
    assert_eq!((status.kind, status.reason.is_some()), (Some(Kind::Unavailable), true));
    assert!(world.claims("a").len() >= 4 && world.claims("b").len() >= 4, "{:?}", world.log.claims.lock().unwrap());
    world.sleep(100).await;
    let reports = world.reports(lost);
    let [(at, "failed"), ..] = *reports else { panic!("{reports:?}") };
    let kept = at - world.claims("lost")[0];
    assert!((120_000..170_000).contains(&kept), "{kept}");
    on.store(false, Ordering::Relaxed);
    world.sleep(15).await;
    let status = running.status(lost);
    assert_eq!((status.state, status.kind, status.failures_in_row, status.rows), (TableState::Waiting, None, 0, 5));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_held_table_is_looked_at_again_ever_more_rarely_and_a_look_lifts_the_hold() {
    let world = World::new();
    let table = world.table("t", "10s").await;
    world.append(table, 5);
    let (here, away) = (world.folder.path().join("demo.db/t"), world.folder.path().join("away"));
    std::fs::rename(&here, &away).unwrap();
    let running = world.start(options(4));
    world.sleep(11).await;
    let held = running.status(table);
    assert_eq!((held.state, held.kind), (TableState::Held, Some(Kind::Data)), "{held:?}");
    assert!(held.reason.unwrap().contains("is missing in") && held.help.is_some());
    assert_eq!(held.next_look_ms, Some(held.since_ms + 60_000));
    world.sleep(300).await;
    let later = running.status(table);
    assert_eq!((later.since_ms, later.failures_in_row), (held.since_ms, 3), "looks after 1, 3 and 7 minutes");
    // Each time that the queue hands it out meanwhile, it is reported finished, so that it rests.
    let reports = world.reports(table);
    assert!(reports.len() > 20 && reports.iter().all(|(_, how)| *how == "finished"), "{reports:?}");
    std::fs::rename(&away, &here).unwrap();
    world.sleep(240).await;
    let status = running.status(table);
    assert_eq!((status.state, status.reason, status.rows), (TableState::Waiting, None, 5));
    assert!(status.since_ms > later.since_ms);
    running.stop().await;
    assert_eq!(world.ids("t").await, Vec::from_iter(0..5));
}

#[tokio::test(start_paused = true)]
async fn an_unsupported_table_rests_for_its_freshness() {
    let world = World::new();
    let table = world.table_with("t", "30s", &[("paimon.file.format", "orc")]).await;
    world.append(table, 5);
    let running = world.start(options(4));
    world.sleep(45).await;
    let status = running.status(table);
    assert_eq!((status.state, status.kind), (TableState::Unsupported, Some(Kind::Unsupported)), "{status:?}");
    assert!(status.reason.unwrap().contains("orc"));
    assert_eq!(world.reports(table).iter().map(|(_, how)| *how).collect::<Vec<_>>(), ["finished"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_round_is_that_tables_trouble_and_holds_it_after_three() {
    let world = World::new();
    let table = world.table("t", "10s").await;
    world.append(table, 5);
    let well = world.table("well", "10s").await;
    world.append(well, 5);
    let target = path("t").to_string();
    let faults = Faults::scripted(move |act, table| {
        assert!(!(act == "latest" && table == target), "a bug of this test");
        None
    });
    let running = world.start_with(options(2), faults, FailPoints::default());
    world.sleep(15).await;
    let status = running.status(table);
    assert_eq!((status.state, status.kind, status.failures_in_row), (TableState::Held, Some(Kind::Internal), 3), "{status:?}");
    assert!(status.reason.unwrap().contains("a bug of this test"));
    assert_eq!(world.reports(table).iter().map(|(_, how)| *how).collect::<Vec<_>>(), ["failed", "failed", "finished"]);
    assert_eq!(running.status(well).rows, 5);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn unwanted_tables_go_back_at_once_and_cost_a_call_each_per_poll() {
    let world = World::new();
    let mut unwanted = Vec::new();
    for index in 0..20 {
        unwanted.push(world.table(&format!("other_{index}"), "1s").await);
    }
    let wanted = world.table("mine", "10s").await;
    world.append(wanted, 5);
    let mut only = options(4);
    only.tables.include = vec!["demo.mine".parse().unwrap()];
    let running = world.start(only);
    world.sleep(60).await;
    let calls = world.log.calls.load(Ordering::Relaxed);
    // A sweep has them all once, and the first of them twice.
    assert!((55 * 21..62 * 24).contains(&calls), "{calls}");
    for table in &unwanted {
        assert!(world.reports(*table).iter().all(|(_, how)| *how == "forced"));
        let status = running.status(*table);
        assert_eq!((status.state, status.next_look_ms), (TableState::Excluded, None));
    }
    let claims = world.claims("mine");
    assert!(claims.len() >= 5 && claims.windows(2).all(|two| two[1] - two[0] <= 10_050), "{claims:?}");
    assert_eq!(running.status(wanted).rows, 5);
    // Somebody else can have them: they are in the queue, not in our hands.
    running.stop().await;
    let other = world.cluster.service(Faults::default());
    let request = Heartbeat { request_table: true, ..Heartbeat::default() };
    assert!(other.heartbeat(request).await.unwrap().assigned.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_table_without_freshness_that_has_nothing_is_looked_at_once_per_poll() {
    let world = World::new();
    let table = world.table("t", "0ms").await;
    let running = world.start(options(4));
    world.sleep(60).await;
    let rounds = running.status(table).rounds;
    assert!((55..=62).contains(&rounds), "{rounds}");
    let calls = world.log.calls.load(Ordering::Relaxed);
    assert!(calls <= 62 * 5, "{calls}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn asked_to_stop_it_commits_what_it_can_and_hands_back_the_rest() {
    let world = World::new();
    let done = world.table("done", "10s").await;
    world.append(done, 5);
    world.sleep(11).await;
    let fail = FailPoints::default();
    fail.arm("commit.before_publish", 1, FailAction::Hang);
    let running = world.start_with(options(4), Faults::default(), fail);
    world.sleep(1).await;
    assert_eq!(running.status(done).state, TableState::Tiering);
    let late = world.table("late", "1s").await;
    world.append(late, 5);
    world.sleep(3).await;
    assert_eq!(world.commits("late"), 1);
    let began = world.now_ms();
    running.stop.cancel();
    world.sleep(1).await;
    assert_eq!(running.board.service().phase, Phase::Stopping);
    let calls = world.log.calls.load(Ordering::Relaxed);
    world.sleep(20).await;
    assert!(world.log.calls.load(Ordering::Relaxed) - calls <= 2, "renewals, no claims");
    assert!(!running.shutdown.is_cancelled(), "within the grace");
    running.until_ended().await;
    let took = world.now_ms() - began;
    assert!((30_000..35_001).contains(&took), "{took}");
    assert_eq!(world.reports(done).iter().map(|(_, how)| *how).collect::<Vec<_>>(), ["forced"]);
    // Nothing is lost: the next one tiers it.
    let next = world.start(options(4));
    world.sleep(5).await;
    assert_eq!(world.commits("done"), 1);
    next.stop().await;
    assert_eq!(world.ids("done").await.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn an_idle_service_stops_at_once_and_one_that_backs_off_hands_back_at_once() {
    let world = World::new();
    let lost = world.table("lost", "1s").await;
    let (faults, _) = out_of_reach("latest", "lost");
    let running = world.start_with(options(1), faults, FailPoints::default());
    world.runtime.clock.sleep(Duration::from_millis(30_500)).await;
    assert_eq!(running.status(lost).state, TableState::BackingOff);
    let began = world.now_ms();
    running.stop().await;
    assert!(world.now_ms() - began < 100);
    assert_eq!(world.reports(lost).iter().map(|(_, how)| *how).collect::<Vec<_>>(), ["forced"]);
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_is_away_is_waited_for_and_seen_on_the_board() {
    let world = World::new();
    let table = world.table("t", "10s").await;
    let running = world.start(options(4));
    world.sleep(11).await;
    assert_eq!(running.status(table).rounds, 1);
    world.log.deaf.store(true, Ordering::Relaxed);
    world.sleep(600).await;
    let service = running.board.service();
    assert!(service.heart_alive && service.heartbeat_fault.unwrap().contains("away"));
    world.log.deaf.store(false, Ordering::Relaxed);
    world.sleep(15).await;
    assert!(running.board.service().heartbeat_fault.is_none() && running.status(table).rounds >= 2);
    world.log.deaf.store(true, Ordering::Relaxed);
    world.sleep(11).await;
    let began = world.now_ms();
    running.stop().await;
    assert!(world.now_ms() - began <= 36_000, "an end that nobody hears is an end, too");
}

#[tokio::test(start_paused = true)]
async fn a_table_that_somebody_else_was_given_is_left_to_them() {
    let world = World::new();
    let table = world.table("t", "10s").await;
    world.append(table, 5);
    let fail = FailPoints::default();
    fail.arm("commit.before_publish", 1, FailAction::Hang);
    let running = world.start_with(options(4), Faults::default(), fail);
    world.sleep(11).await;
    assert_eq!(running.status(table).state, TableState::Tiering);
    world.cluster.restart_coordinator(true);
    world.sleep(60).await;
    assert!(running.status(table).rounds >= 1, "handed out again by the new coordinator");
    let first_report = world.reports(table)[0].0;
    assert!(first_report >= world.claims("t")[1], "nothing was said about the lost one");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_round_is_cut_at_the_freshness_and_commits_what_it_has_read() {
    let world = World::new();
    let table = world.table("t", "10s").await;
    for _ in 0..60 {
        world.append(table, 1);
    }
    world.sleep(10).await;
    // 30 batches per bucket, both buckets in turn, one per second at most.
    let running = world.start_slow(options(4), Faults::default(), FailPoints::default(), SECOND);
    world.sleep(15).await;
    let status = running.status(table);
    assert!(status.rows > 0 && status.rows < 60, "{status:?}");
    assert_eq!((status.lag_rows, status.tiered_to_ms), (Some(60 - status.rows), None));
    assert_eq!(world.ids("t").await.len() as u64, status.rows);
    world.sleep(90).await;
    let reports = world.reports(table);
    let forced = reports.iter().take_while(|(_, how)| *how == "forced").count();
    assert!(forced >= 2 && reports[forced..].iter().all(|(_, how)| *how == "finished"), "{reports:?}");
    assert!(reports[..forced].windows(2).all(|two| (10_000..13_000).contains(&(two[1].0 - two[0].0))), "{reports:?}");
    assert_eq!(world.ids("t").await, Vec::from_iter(0..60));
    assert_eq!(running.status(table).lag_rows, Some(0));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn asked_to_stop_in_the_middle_of_a_round_it_keeps_what_was_read() {
    let world = World::new();
    let table = world.table("t", "1h").await;
    for _ in 0..200 {
        world.append(table, 1);
    }
    world.sleep(3_600).await;
    let running = world.start_slow(options(4), Faults::default(), FailPoints::default(), SECOND);
    world.sleep(20).await;
    let began = world.now_ms();
    running.stop().await;
    assert!(world.now_ms() - began < 5_000, "no need for the whole grace");
    let kept = world.ids("t").await.len();
    assert!((10..200).contains(&kept), "{kept}");
    assert_eq!(world.reports(table).iter().map(|(_, how)| *how).collect::<Vec<_>>(), ["forced"]);
    let next = world.start(options(4));
    world.sleep(10).await;
    next.stop().await;
    assert_eq!(world.ids("t").await, Vec::from_iter(0..200));
}

#[tokio::test(start_paused = true)]
async fn tables_that_went_without_a_word_leave_the_board() {
    let world = World::new();
    let dropped = world.table("dropped", "10s").await;
    let turned_off = world.table("turned_off", "10s").await;
    let stays = world.table("stays", "10s").await;
    let running = world.start(options(4));
    world.sleep(12).await;
    for table in [dropped, turned_off, stays] {
        assert_eq!(running.status(table).rounds, 1);
    }
    world.cluster.drop_table(&path("dropped")).unwrap();
    world.cluster.alter_property(&path("turned_off"), "table.datalake.enabled", Some("false")).unwrap();
    world.sleep(90).await;
    let left: Vec<TableId> = running.board.tables(world.now_ms()).into_iter().map(|table| table.id).collect();
    assert_eq!(left, [stays]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_table_that_another_service_works_on_is_told_so() {
    let world = World::new();
    let table = world.table("t", "10s").await;
    let running = world.start(options(4));
    world.sleep(12).await;
    running.stop.cancel();
    let board = running.board.clone();
    running.until_ended().await;
    assert_eq!(board.table(table).unwrap().state, TableState::Waiting);
    // Another takes it and keeps it.
    let fail = FailPoints::default();
    world.append(table, 1);
    fail.arm("commit.before_publish", 1, FailAction::Hang);
    let other = world.start_with(options(1), Faults::default(), fail);
    world.sleep(15).await;
    assert_eq!(other.status(table).state, TableState::Tiering);
    other.stop.cancel();
    other.task.abort();
    // Its lease lives on for two minutes, in which ours does not get the table.
    let ours = world.start(options(4));
    world.sleep(60).await;
    assert_eq!(ours.board.table(table), None);
    world.sleep(75).await;
    assert_eq!(ours.status(table).rows, 1, "and then does");
    ours.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_changed_freshness_is_followed() {
    let world = World::new();
    let table = world.table("t", "10s").await;
    let running = world.start(options(4));
    world.sleep(12).await;
    assert_eq!(running.status(table).freshness_ms, Some(10_000));
    world.cluster.alter_property(&path("t"), "table.datalake.freshness", Some("20s")).unwrap();
    world.sleep(12).await;
    assert_eq!(running.status(table).freshness_ms, Some(20_000));
    running.stop().await;
}

#[test]
fn two_daemons_share_a_queue_while_calls_fail_and_no_row_is_lost_or_doubled() {
    for_seeds("two daemons", 2, |seed| async move {
        let world = World::new();
        let mut tables = Vec::new();
        for index in 0..6 {
            tables.push(world.table(&format!("t{index}"), if index == 0 { "2s" } else { "9s" }).await);
        }
        let rng = Rng::from_seed(seed);
        let faults = || Faults::seeded(rng.clone(), world.runtime.clock.clone(), 12);
        let daemons = [(); 2].map(|()| world.start_with(options(2), faults(), FailPoints::default()));
        let mut rows = 0;
        for _ in 0..80 {
            let table = tables[usize::try_from(rng.below(6)).unwrap()];
            world.append(table, 1 + rng.below(5));
            world.runtime.clock.sleep(Duration::from_millis(rng.below(1_000))).await;
        }
        for daemon in daemons {
            daemon.stop().await;
        }
        // Leases of answers that were lost end within two minutes.
        let healthy = world.start(options(4));
        world.sleep(130).await;
        for table in &tables {
            let status = healthy.status(*table);
            assert_eq!((status.state, status.reason), (TableState::Waiting, None), "seed {seed}");
        }
        healthy.stop().await;
        let mut ids = Vec::new();
        for index in 0..6 {
            let found = world.ids(&format!("t{index}")).await;
            rows += found.len();
            ids.extend(found);
        }
        ids.sort_unstable();
        let all = i64::try_from(world.next_id.load(Ordering::Relaxed)).unwrap();
        assert_eq!((rows, ids), (usize::try_from(all).unwrap(), Vec::from_iter(0..all)), "seed {seed}");
    });
}
