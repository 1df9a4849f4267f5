//! Whole rounds: node, wire, service, local store; in this process, and through the binary where a process has to die.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, RecordBatch, StringArray};
use lakeward::client::{Admin, Writer, WriterOptions};
use lakeward::daemon::{self, OnceReport, Service};
use lakeward::fluss::cluster::{Cluster, ClusterOptions};
use lakeward::fluss::record::arrow_schema;
use lakeward::fluss::table_json::TableDescriptor;
use lakeward::lake::LakeTable;
use lakeward::model::{DataType, Field, RoundOutcome, RoundSummary, Schema, SchemaId, TablePath, TypeKind};
use lakeward::node::{Node, NodeOptions};
use lakeward::round::{self, RoundContext};
use lakeward::runtime::Runtime;
use lakeward::source::cluster::ClusterSource;
use lakeward::source::{LakeLedger, LedgerState};

/// A node with one table, partitioned by day, that is due for tiering all the time; ids are given once.
pub(crate) struct World {
    pub(crate) node: Node,
    pub(crate) folder: tempfile::TempDir,
    admin: Admin,
    cluster: Cluster,
    runtime: Runtime,
    path: TablePath,
    next_id: AtomicI64,
}

impl World {
    pub(crate) async fn new(lease: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::system(2, 64 << 20).unwrap();
        let options = NodeOptions { lease, ..NodeOptions::new(folder.path().join("node")) };
        let node = Node::start(options, runtime.clone()).await.unwrap();
        let cluster = Cluster::connect(&[node.address().to_string()], ClusterOptions::default(), &runtime).await.unwrap();
        let admin = Admin::new(cluster.clone());
        let path = TablePath::new("demo", "t");
        admin.create_database("demo", false).await.unwrap();
        let field = |id, name: &str, kind| Field { id, name: name.into(), data_type: DataType::nullable(kind), comment: None };
        let table = TableDescriptor {
            schema: Schema {
                id: SchemaId(1),
                fields: vec![field(0, "id", TypeKind::BigInt), field(1, "day", TypeKind::String)],
                primary_key: vec![],
                highest_field_id: 1,
            },
            comment: None,
            partition_keys: vec!["day".into()],
            bucket_keys: vec!["id".into()],
            bucket_count: Some(2),
            properties: BTreeMap::from([
                ("table.datalake.enabled".into(), "true".into()),
                ("table.datalake.freshness".into(), "50ms".into()),
            ]),
            custom_properties: BTreeMap::new(),
        };
        admin.create_table(&path, &table, false).await.unwrap();
        Self { node, folder, admin, cluster, runtime, path, next_id: AtomicI64::new(0) }
    }

    pub(crate) async fn append(&self, day: &str, count: i64) {
        let mut writer = Writer::open(&self.cluster, &self.path, WriterOptions::default()).await.unwrap();
        let first = self.next_id.fetch_add(count, Ordering::Relaxed);
        let ids = Arc::new((first..first + count).collect::<Int64Array>());
        let days = Arc::new(StringArray::from_iter_values((0..count).map(|_| day)));
        let schema = arrow_schema(&writer.table().schema).unwrap();
        writer.append(&RecordBatch::try_new(schema, vec![ids, days]).unwrap()).await.unwrap();
    }

    /// A service of its own: own connections, own memory.
    async fn service(&self) -> Service {
        let runtime = Runtime::system(1, 64 << 20).unwrap();
        let cluster = Cluster::connect(&[self.node.address().to_string()], ClusterOptions::default(), &runtime).await.unwrap();
        let source = Arc::new(ClusterSource::new(cluster));
        Service {
            queue: Arc::<ClusterSource>::clone(&source),
            rounds: RoundContext {
                scan: Arc::<ClusterSource>::clone(&source),
                ledger: source,
                runtime,
                options: round::Options::default(),
            },
            options: daemon::Options::default(),
        }
    }

    async fn once(&self, service: &Service) -> (OnceReport, Vec<RoundSummary>) {
        let mut rounds = Vec::new();
        let report =
            daemon::run_once(service, Duration::ZERO, &mut |summary: &RoundSummary| rounds.push(summary.clone())).await.unwrap();
        (report, rounds)
    }

    /// Works until the table has had a round, whatever it did.
    async fn round(&self, service: &Service) -> RoundSummary {
        loop {
            let (report, rounds) = self.once(service).await;
            assert!(report.faults.is_empty(), "{:?}", report.faults);
            if let Some(summary) = rounds.into_iter().next() {
                return summary;
            }
            self.runtime.clock.sleep(Duration::from_millis(10)).await;
        }
    }

    async fn lake(&self) -> LakeTable {
        LakeTable::open_in(self.node.warehouse(), &BTreeMap::new(), "demo.db/t", self.runtime.clone()).await.unwrap().unwrap()
    }

    async fn newest(&self) -> i64 {
        self.lake().await.newest_snapshot_id().await.unwrap().unwrap_or(0)
    }

    /// Every id that was written is in the lake once.
    pub(crate) async fn audit(&self) {
        let lake = self.lake().await;
        let newest = lake.snapshot(self.newest().await).await.unwrap().unwrap();
        let rows = lake.read_rows(&newest, None, Some(&["id"])).await.unwrap();
        let mut ids: Vec<i64> =
            rows.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec()).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..self.next_id.load(Ordering::Relaxed)).collect::<Vec<i64>>());
        assert_eq!(newest.total_record_count, Some(self.next_id.load(Ordering::Relaxed)));
    }

    async fn known(&self) -> Option<i64> {
        match ClusterSource::new(self.cluster.clone()).latest(&self.path).await.unwrap() {
            LedgerState::At(entry) => Some(entry.snapshot.0),
            LedgerState::Empty => None,
            other => panic!("{other:?}"),
        }
    }

    fn data_files(&self) -> BTreeMap<String, u64> {
        let mut found = BTreeMap::new();
        files_below(&Path::new(self.node.warehouse()).join("demo.db/t"), &mut found);
        found.retain(|name, _| name.contains("/bucket-"));
        found
    }

    /// `lakeward run --once --json` on this node.
    pub(crate) fn run(&self, flags: &[&str], fail: Option<&str>) -> Command {
        let mut command = lakeward();
        command.args(["run", "--server", &self.node.address().to_string(), "--once", "--json"]).args(flags);
        if let Some(fail) = fail {
            command.env("LAKEWARD_FAIL", fail);
        }
        command
    }
}

fn files_below(folder: &Path, found: &mut BTreeMap<String, u64>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries {
        let entry = entry.unwrap();
        if entry.path().is_dir() {
            files_below(&entry.path(), found);
        } else {
            found.insert(entry.path().to_str().unwrap().to_owned(), entry.metadata().unwrap().len());
        }
    }
}

/// The binary that `cargo test` builds: it has fail points.
pub(crate) fn lakeward() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lakeward"));
    command.env_remove("LAKEWARD_FAIL").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Ends with the process's output, without standing in the way of the node in this process.
pub(crate) async fn output(command: Command) -> Output {
    ended(started(command)).await
}

pub(crate) fn started(mut command: Command) -> Child {
    command.spawn().unwrap()
}

pub(crate) async fn ended(child: Child) -> Output {
    tokio::task::spawn_blocking(move || child.wait_with_output().unwrap()).await.unwrap()
}

/// The summaries that `run --json` printed.
fn summaries(output: &Output) -> Vec<serde_json::Value> {
    String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn told(output: &Output) -> String {
    format!("{:?}\n{}", output.status, String::from_utf8_lossy(&output.stderr))
}

const LONG: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn a_rescaled_table_keeps_a_total_per_partition_over_the_wire() {
    let world = World::new(LONG).await;
    let service = world.service().await;
    world.append("a", 100).await;
    let first = world.round(&service).await;
    assert_eq!((first.rows, first.files), (100, 2));
    let old = world.data_files();

    world.admin.alter_bucket_count(&world.path, 4).await.unwrap();
    world.append("b", 200).await;
    world.admin.alter_bucket_count(&world.path, 3).await.unwrap();
    world.append("c", 150).await;
    world.append("a", 50).await;
    let second = world.round(&service).await;
    assert_eq!((second.rows, second.files), (400, 9));

    let lake = world.lake().await;
    let newest = lake.snapshot(2).await.unwrap().unwrap();
    let totals: Vec<Vec<i32>> =
        lake.live_partitions(&newest, None).await.unwrap().values().map(|live| live.totals.iter().copied().collect()).collect();
    assert_eq!(totals, [vec![2], vec![4], vec![3]]);
    assert_eq!(lake.schema().option("bucket"), Some("3"));
    let now = world.data_files();
    assert!(old.iter().all(|(name, size)| now.get(name) == Some(size)), "old files are untouched");
    world.audit().await;
    assert_eq!(world.known().await, Some(2));

    assert_eq!(world.round(&service).await.outcome, RoundOutcome::Idle);
    assert_eq!(world.newest().await, 2, "nothing to tier makes no snapshot");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_killed_anywhere_in_a_commit_doubles_no_row_and_fails_no_later_round() {
    let points = [
        "commit.before_pin",
        "commit.before_prepare",
        "commit.before_publish",
        "commit.after_publish",
        "commit.before_record",
        "commit.after_record",
        "commit.before_unpin",
    ];
    futures::future::join_all(points.map(killed_at)).await;
}

async fn killed_at(point: &str) {
    let world = World::new(Duration::from_millis(300)).await;
    world.append("a", 60).await;
    let killed = output(world.run(&["--wait", "10s"], Some(&format!("{point}=kill")))).await;
    assert!(killed.status.code().is_none(), "{point}: {}", told(&killed));
    let published = world.newest().await;
    let unknown = published > 0 && world.known().await.is_none();
    world.append("a", 40).await;

    let restarted = output(world.run(&["--wait", "1s"], None)).await;
    assert!(restarted.status.success(), "{point}: {}", told(&restarted));
    let rounds = summaries(&restarted);
    assert_eq!(rounds[0]["recovered"].as_i64(), unknown.then_some(published), "{point}: recorded first");
    let rows = if published > 0 { 40 } else { 100 };
    assert_eq!(rounds[0]["rows"], rows, "{point}");
    world.audit().await;
    assert_eq!(world.known().await, Some(world.newest().await), "{point}");
    world.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_services_that_both_hold_one_table_while_rows_arrive_tier_each_row_once() {
    let world = Arc::new(World::new(Duration::from_millis(30)).await);
    let working = |world: Arc<World>| async move {
        let service = world.service().await;
        for _ in 0..12 {
            let (report, _) = world.once(&service).await;
            for (_, fault) in &report.faults {
                assert_eq!(fault.kind(), lakeward::error::Kind::Stale, "{}", fault.chain());
            }
            world.runtime.clock.sleep(Duration::from_millis(20)).await;
        }
    };
    let writing = |world: Arc<World>| async move {
        for round in 0..25 {
            world.append(["a", "b"][round % 2], 20).await;
            world.runtime.clock.sleep(Duration::from_millis(20)).await;
        }
    };
    let tasks = [
        tokio::spawn(working(Arc::clone(&world))),
        tokio::spawn(working(Arc::clone(&world))),
        tokio::spawn(writing(Arc::clone(&world))),
    ];
    for task in tasks {
        task.await.unwrap();
    }
    let service = world.service().await;
    let last = world.round(&service).await;
    drop(last);
    world.audit().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plan_and_inspect_tell_what_is_there_and_change_nothing() {
    let world = World::new(LONG).await;
    let server = world.node.address().to_string();
    world.append("a", 30).await;
    let mut plan = lakeward();
    plan.args(["plan", "--server", &server, "--json"]);
    let told_before = output(plan).await;
    assert!(told_before.status.success(), "{}", told(&told_before));
    let report = &summaries(&told_before)[0];
    assert_eq!((&report["table"]["table"], &report["backlog"], &report["splits"]), (&"t".into(), &30.into(), &2.into()));
    assert_eq!(world.newest().await, 0);

    let service = world.service().await;
    world.round(&service).await;
    let table = format!("{}/demo.db/t", world.node.warehouse());
    let mut inspect = lakeward();
    inspect.args(["inspect", &table, "--json"]);
    let inspected = output(inspect).await;
    assert!(inspected.status.success(), "{}", told(&inspected));
    let report = &summaries(&inspected)[0];
    assert_eq!(report["partitions"][0]["partition"], "day=a");
    assert_eq!(report["partitions"][0]["totals"], serde_json::json!([2]));
    assert_eq!((&report["snapshot"]["id"], &report["snapshot"]["total_rows"]), (&1.into(), &30.into()));

    let mut plan = lakeward();
    plan.args(["plan", "--server", &server, "demo.t"]);
    let planned = output(plan).await;
    let text = String::from_utf8_lossy(&planned.stdout).into_owned();
    assert!(text.contains("demo.t: 0 splits, 0 records behind, from snapshot 1"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn json_logs_are_one_object_per_line_and_tell_of_the_round() {
    let world = World::new(LONG).await;
    world.append("a", 10).await;
    let output = output(world.run(&["--wait", "1s", "--log-format", "json"], None)).await;
    assert!(output.status.success(), "{}", told(&output));
    let lines: Vec<serde_json::Value> =
        String::from_utf8_lossy(&output.stderr).lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let round = lines.iter().find(|line| line["message"] == "round committed").unwrap();
    assert_eq!((&round["table"], &round["rows"], &round["level"]), (&"demo.t".into(), &10.into(), &"INFO".into()));
    assert!(lines.iter().all(|line| line["level"] == "INFO"), "a good round leaves no warning: {lines:?}");
}
