//! The daemon under simulated time: many tables, whole rounds, one thread. Each rule of architecture.md 5 has its test.

mod queue;
mod rivals;
mod stop;
mod trouble;

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
use lakeward::runtime::{Budget, FailAction, FailPoints, Rng, Runtime};
use lakeward::source::memory::{Fault, Faults, MemoryCluster};
use lakeward::source::{Assignments, FetchRequest, FetchedBucket, Heartbeat, HeartbeatReply, StateRequest, StateScan, TableScan};
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
    async fn serves_states(&self) -> Result<bool> {
        self.scan.serves_states().await
    }
    async fn open_state(&self, request: StateRequest) -> Result<Box<dyn StateScan>> {
        self.scan.open_state(request).await
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
