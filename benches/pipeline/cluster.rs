//! A node and a table on it; the node has threads of its own, so that its share of the core time can be told.

use std::sync::Arc;
use std::time::Duration;

use lakeward::client::{Admin, Writer, WriterOptions};
use lakeward::fluss::cluster::{Cluster as WireCluster, ClusterOptions};
use lakeward::fluss::record::BatchSchema;
use lakeward::fluss::table_json::TableDescriptor;
use lakeward::model::{ChangeKind, RoundSummary, TablePath, TieringEpoch};
use lakeward::node::{Node, NodeOptions};
use lakeward::round::{self, Job, Limits, RoundContext};
use lakeward::runtime::Runtime;
use lakeward::source::cluster::ClusterSource;
use rustix::time::ClockId;

use super::{kit, log, seconds_of};

pub(super) struct Cluster {
    runtime: tokio::runtime::Runtime,
    context: RoundContext,
    job: Job,
    writer: Writer,
    schema: BatchSchema,
    /// Ids up to here are taken.
    taken: i64,
    // Dropped last.
    _node: Node,
    _threads: tokio::runtime::Runtime,
    _dir: tempfile::TempDir,
}

fn threads(name: &str) -> tokio::runtime::Runtime {
    // Threads that end would take their figures with them.
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().thread_name(name).thread_keep_alive(Duration::from_secs(3600)).build().unwrap()
}

impl Cluster {
    /// A log table if `key` names no column.
    pub(super) fn new(key: &[usize], changelog: bool) -> Self {
        let (runtime, node_threads) = (threads("round"), threads("node"));
        let dir = tempfile::tempdir().unwrap();
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        // A Runtime of its own: the node's clock and threads are not the service's.
        let options = NodeOptions::new(dir.path());
        let node = node_threads.block_on(async { Node::start(options, Runtime::system(1, 1 << 28).unwrap()).await.unwrap() });
        let schema = log::schema(key);
        let producer = if key.is_empty() || changelog { None } else { Some(("paimon.changelog-producer".into(), "none".into())) };
        let table = TableDescriptor {
            schema: schema.clone(),
            comment: None,
            partition_keys: vec![],
            bucket_keys: vec!["id".to_owned()],
            bucket_count: Some(log::BUCKETS.try_into().unwrap()),
            properties: [("table.datalake.enabled".to_owned(), "true".to_owned())].into(),
            custom_properties: producer.into_iter().collect(),
        };
        let (context, job, writer) = runtime.block_on(async {
            let machine = Runtime::system(cores, 1 << 30).unwrap();
            let cluster = WireCluster::connect(&[node.address().to_string()], ClusterOptions::default(), &machine).await.unwrap();
            let (admin, path) = (Admin::new(cluster.clone()), TablePath::new("demo", "orders"));
            admin.create_database("demo", true).await.unwrap();
            admin.create_table(&path, &table, false).await.unwrap();
            let info = admin.table_info(&path).await.unwrap();
            let writer = Writer::open(&cluster, &path, WriterOptions::default()).await.unwrap();
            let source = Arc::new(ClusterSource::new(cluster));
            let context = RoundContext {
                scan: Arc::<ClusterSource>::clone(&source),
                ledger: source,
                runtime: machine,
                options: round::Options::default(),
            };
            (context, Job { path, table: info.id, epoch: TieringEpoch(1), lease: None, limits: Limits::default() }, writer)
        });
        let schema = BatchSchema::new(Arc::new(schema)).unwrap();
        let mut cluster = Self { runtime, context, job, writer, schema, taken: 0, _node: node, _threads: node_threads, _dir: dir };
        // What is never tiered is read as a state; and a first round makes what later ones find.
        cluster.fill(1000);
        cluster.round();
        cluster
    }

    /// Makes the log longer by `rows` rows, or some more. On a primary-key table they are the changes of [`Log`](log::Log) to keys of their own, so
    /// that a round has as many rows to encode as the floor has.
    pub(super) fn fill(&mut self, rows: i64) {
        let has_key = !self.schema.schema.primary_key.is_empty();
        let mut events = log::events();
        let step = 100_000;
        for from in (0..rows).step_by(step) {
            let count = (rows - from).min(i64::try_from(step).unwrap());
            if !has_key {
                let rows = kit::rows(&self.schema, self.taken..self.taken + count);
                self.runtime.block_on(self.writer.append(&rows)).unwrap();
                self.taken += count;
                continue;
            }
            let mut part: Vec<(i64, ChangeKind)> = events.by_ref().take(usize::try_from(count).unwrap()).collect();
            while part.last().is_some_and(|(_, change)| *change == ChangeKind::UpdateBefore) {
                part.extend(events.next());
            }
            // A server writes −U by itself.
            part.retain(|(_, change)| *change != ChangeKind::UpdateBefore);
            let rows = kit::rows(&self.schema, part.iter().map(|(id, _)| self.taken + id));
            let deletes: Vec<bool> = part.iter().map(|(_, change)| *change == ChangeKind::Delete).collect();
            self.runtime.block_on(self.writer.change(&rows, &deletes)).unwrap();
        }
        if has_key {
            self.taken += log::KEYS;
        }
    }

    pub(super) fn round(&self) -> RoundSummary {
        self.runtime.block_on(round::run(&self.context, &self.job)).unwrap()
    }
}

/// Core seconds of this process: of the node's threads, and of all others.
pub(super) fn core_seconds() -> [f64; 2] {
    let mut node = Duration::ZERO;
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        // Of a thread that waits it is told to the nanosecond.
        let stat = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let nanos: u64 = stat.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0);
        if name.starts_with("node") {
            node += Duration::from_nanos(nanos);
        }
    }
    [node.as_secs_f64(), seconds_of(ClockId::ProcessCPUTime) - node.as_secs_f64()]
}
