//! Whole rounds: rows of a real client in a real node, through the wire, into a lake on disk, read back from there.
//!
//! In-process where a test has to hold or look into a round, else the binary that `cargo test` built.

mod backfill;
pub(crate) mod binary;
mod check;
mod commands;
mod crash;
mod edges;
mod faults;
mod load;
mod memory;
mod nested;
mod orphans;
mod outputs;
mod repair;
mod rescale;
mod restart;
mod rivals;
mod scan;
mod schema;
mod service;
mod states;
mod sync;
mod types;
mod verify;
mod volume;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_select::concat::concat_batches;
use lakeward::client::{Admin, Writer, WriterOptions};
use lakeward::daemon::{self, OnceReport, Service};
use lakeward::fluss::cluster::{Cluster, ClusterOptions};
use lakeward::fluss::table_json::TableDescriptor;
use lakeward::lake::LakeTable;
use lakeward::model::{DataType, Field, RoundOutcome, RoundSummary, Schema, SchemaId, SnapshotId, TableInfo, TablePath, TypeKind};
use lakeward::node::{Node, NodeOptions};
use lakeward::paimon::{ManifestEntry, Snapshot, path};
use lakeward::round::{self, RoundContext};
use lakeward::runtime::{FailPoints, Runtime};
use lakeward::source::cluster::ClusterSource;
use lakeward::source::{LakeLedger, LedgerState};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// A node in this process, and a user's and a service's ways to it.
pub(crate) struct Stage {
    pub(crate) dir: TempDir,
    runtime: Runtime,
    node: Option<Node>,
    cluster: Cluster,
    admin: Admin,
}

/// A data file that is live in the lake, and its rows.
struct LakeFile {
    entry: ManifestEntry,
    /// Folder of its partition, such as `day=a`.
    partition: String,
    place: PathBuf,
    rows: RecordBatch,
}

/// A node on a folder of its own.
pub(crate) async fn node(change: impl FnOnce(&mut NodeOptions)) -> (TempDir, Runtime, Node) {
    let dir = tempfile::tempdir().unwrap();
    let mut options = NodeOptions::new(dir.path());
    options.log.fsync = false;
    change(&mut options);
    let runtime = Runtime::system(2, 64 << 20).unwrap();
    let node = Node::start(options, runtime.clone()).await.unwrap();
    (dir, runtime, node)
}

impl Stage {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut NodeOptions)) -> Self {
        let (dir, runtime, node) = node(change).await;
        let cluster = Cluster::connect(&[node.address().to_string()], ClusterOptions::default(), &runtime).await.unwrap();
        let admin = Admin::new(cluster.clone());
        admin.create_database("demo", true).await.unwrap();
        Self { dir, runtime, node: Some(node), cluster, admin }
    }

    pub(crate) fn address(&self) -> String {
        self.node.as_ref().unwrap().address().to_string()
    }

    async fn table(&self, name: &str, table: &TableDescriptor) -> TablePath {
        let path = TablePath::new("demo", name);
        self.admin.create_table(&path, table, false).await.map_err(|error| error.chain()).unwrap();
        path
    }

    async fn info(&self, path: &TablePath) -> TableInfo {
        self.admin.table_info(path).await.unwrap()
    }

    async fn append(&self, path: &TablePath, ids: Range<i64>, day: &str) {
        append(&self.cluster, path, ids, day).await;
    }

    fn source(&self) -> Arc<ClusterSource> {
        Arc::new(ClusterSource::new(self.cluster.clone()))
    }

    /// What rounds of a service need that shares nothing but the machine with others.
    fn rounds(&self) -> RoundContext {
        let runtime = Runtime { fail: FailPoints::default(), shutdown: CancellationToken::new(), ..self.runtime.clone() };
        let source = self.source();
        RoundContext { scan: Arc::<ClusterSource>::clone(&source), ledger: source, runtime, options: round::Options::default() }
    }

    fn service(&self, rounds: RoundContext) -> Service {
        Service { queue: self.source(), rounds, options: daemon::Options::default() }
    }

    /// A service works until the queue is empty: what it did, and the rounds that ended well.
    async fn run_once(&self) -> (OnceReport, Vec<RoundSummary>) {
        run_once(&self.service(self.rounds()), Duration::ZERO).await
    }

    /// As [`Stage::run_once`] where nothing may fail: snapshots by round, `None` = nothing to tier.
    async fn tier(&self) -> Vec<Option<i64>> {
        let (report, rounds) = self.run_once().await;
        assert_no_faults(&report);
        rounds.iter().map(snapshot_of).collect()
    }

    async fn lake(&self, path: &TablePath) -> Arc<LakeTable> {
        let (lake, _) = round::open_lake(&self.info(path).await, &self.runtime).await.map_err(|error| error.chain()).unwrap();
        lake
    }

    async fn newest(&self, path: &TablePath) -> Option<Snapshot> {
        newest(&*self.lake(path).await).await
    }

    /// All live files, in manifest order.
    async fn files(&self, path: &TablePath) -> Vec<LakeFile> {
        files(&*self.lake(path).await).await
    }

    /// All ids in the lake, sorted, as often as they are there.
    async fn ids(&self, path: &TablePath) -> Vec<i64> {
        ids(&self.files(path).await)
    }

    /// The newest snapshot that Fluss knows.
    async fn known(&self, path: &TablePath) -> Option<SnapshotId> {
        match self.source().latest(path).await.unwrap() {
            LedgerState::At(entry) => Some(entry.snapshot),
            LedgerState::Empty => None,
            other => panic!("the ledger says {other:?}"),
        }
    }
}

async fn run_once(service: &Service, wait: Duration) -> (OnceReport, Vec<RoundSummary>) {
    let mut rounds = Vec::new();
    let report = daemon::run_once(service, wait, &mut |summary| rounds.push(summary.clone())).await.unwrap();
    (report, rounds)
}

fn assert_no_faults(report: &OnceReport) {
    let faults: Vec<_> = report.faults.iter().map(|(table, error)| format!("{table}: {}", error.chain())).collect();
    assert!(faults.is_empty(), "{faults:?}");
}

fn snapshot_of(summary: &RoundSummary) -> Option<i64> {
    match summary.outcome {
        RoundOutcome::Committed { snapshot } => Some(snapshot.0),
        RoundOutcome::Idle | RoundOutcome::Gone => None,
    }
}

async fn newest(lake: &LakeTable) -> Option<Snapshot> {
    lake.snapshot(lake.newest_snapshot_id().await.unwrap()?).await.unwrap()
}

async fn files(lake: &LakeTable) -> Vec<LakeFile> {
    let Some(newest) = newest(lake).await else { return Vec::new() };
    // Rows are read twice: here by file, there with everything that a reader checks.
    let whole: usize = lake.read_rows(&newest, None, None).await.unwrap().iter().map(RecordBatch::num_rows).sum();
    let mut files = Vec::new();
    for entry in lake.live_entries(&newest, None).await.unwrap() {
        let place = lake.object(&path::data_file(lake.schema(), &entry).unwrap());
        let bytes = lake.store().get_existing(&place).await.unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(bytes).unwrap();
        let schema = Arc::clone(reader.schema());
        let batches: Vec<RecordBatch> = reader.build().unwrap().map(Result::unwrap).collect();
        let rows = concat_batches(&schema, &batches).unwrap();
        let partition = path::partition_path(lake.schema(), &entry.partition).unwrap().trim_end_matches('/').to_owned();
        files.push(LakeFile { entry, partition, place: lake.store().local_root().unwrap().join(place), rows });
    }
    let found: usize = files.iter().map(|file| file.rows.num_rows()).sum();
    assert_eq!((found, newest.total_record_count), (whole, Some(i64::try_from(whole).unwrap())));
    files
}

fn ids(files: &[LakeFile]) -> Vec<i64> {
    let mut ids: Vec<i64> = files.iter().flat_map(LakeFile::ids).collect();
    ids.sort_unstable();
    ids
}

impl LakeFile {
    fn ids(&self) -> Vec<i64> {
        self.rows.column_by_name("id").unwrap().as_primitive::<Int64Type>().values().to_vec()
    }
}

/// Bucket totals of each partition's live files.
fn totals(files: &[LakeFile]) -> BTreeMap<String, BTreeSet<i32>> {
    let mut totals: BTreeMap<String, BTreeSet<i32>> = BTreeMap::new();
    for file in files {
        totals.entry(file.partition.clone()).or_default().insert(file.entry.total_buckets);
    }
    totals
}

/// Every row once: the ids of these ranges, sorted.
fn all(ranges: &[Range<i64>]) -> Vec<i64> {
    let mut ids: Vec<i64> = ranges.iter().cloned().flatten().collect();
    ids.sort_unstable();
    ids
}

pub(crate) fn field(name: &str, kind: TypeKind, nullable: bool) -> Field {
    Field { id: 0, name: name.into(), data_type: DataType { kind, nullable }, comment: None }
}

/// A lake table that is due whenever somebody asks.
pub(crate) fn descriptor(mut fields: Vec<Field>, partition_keys: &[&str], bucket_keys: &[&str], buckets: i32) -> TableDescriptor {
    for (field, id) in fields.iter_mut().zip(0..) {
        field.id = id;
    }
    let highest_field_id = fields.last().unwrap().id;
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    TableDescriptor {
        schema: Schema { id: SchemaId(1), fields, primary_key: vec![], highest_field_id },
        comment: None,
        partition_keys: owned(partition_keys),
        bucket_keys: owned(bucket_keys),
        bucket_count: Some(buckets),
        properties: BTreeMap::from([
            ("table.datalake.enabled".to_owned(), "true".to_owned()),
            ("table.datalake.freshness".to_owned(), "0ms".to_owned()),
        ]),
        custom_properties: BTreeMap::new(),
    }
}

/// It as a coordinator lists it whose lakes are in `warehouse`.
pub(crate) fn in_warehouse(mut table: TableDescriptor, warehouse: &str, freshness: &str) -> TableDescriptor {
    let properties = [
        ("table.datalake.freshness", freshness),
        ("table.datalake.format", "paimon"),
        ("table.datalake.paimon.warehouse", warehouse),
    ];
    table.properties.extend(properties.map(|(key, value)| (key.to_owned(), value.to_owned())));
    table
}

/// `id` (the bucket key), a text, and the partition column `day`; 2 buckets.
fn orders() -> TableDescriptor {
    let fields =
        vec![field("id", TypeKind::BigInt, false), field("words", TypeKind::String, true), field("day", TypeKind::String, false)];
    descriptor(fields, &["day"], &["id"], 2)
}

/// `id` (the bucket key) and a text; 2 buckets, no partitions.
fn events() -> TableDescriptor {
    descriptor(vec![field("id", TypeKind::BigInt, false), field("words", TypeKind::String, true)], &[], &["id"], 2)
}

/// Appends rows of [`orders`] or [`events`] with these ids.
async fn append(cluster: &Cluster, path: &TablePath, ids: Range<i64>, day: &str) {
    let mut writer = Writer::open(cluster, path, WriterOptions::default()).await.unwrap();
    let rows = rows(&writer, ids, day);
    writer.append(&rows).await.map_err(|error| error.chain()).unwrap();
}

pub(crate) fn rows(writer: &Writer, ids: Range<i64>, day: &str) -> RecordBatch {
    let schema = writer.schema();
    let columns = schema.fields().iter().map(|field| -> ArrayRef {
        match field.name().as_str() {
            "id" => Arc::new(Int64Array::from_iter_values(ids.clone())),
            "day" => Arc::new(StringArray::from_iter_values(ids.clone().map(|_| day))),
            name => Arc::new(ids.clone().map(|id| (id % 7 != 0).then(|| format!("{name} of {id}"))).collect::<StringArray>()),
        }
    });
    RecordBatch::try_new(Arc::clone(&schema), columns.collect()).unwrap()
}

fn spec(day: &str) -> Vec<(String, String)> {
    vec![("day".to_owned(), day.to_owned())]
}

/// Looks again and again until there is something to see.
pub(crate) async fn until<T>(runtime: &Runtime, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(seen) = look().await {
                return seen;
            }
            runtime.clock.sleep(Duration::from_millis(5)).await;
        }
    };
    runtime.clock.timeout(Duration::from_secs(60), wait).await.unwrap_or_else(|| panic!("waited in vain until {what}"))
}
