//! One hot bucket beside the same rows in eight, in one run: whether a single bucket uses all cores (architecture.md 6).
//!
//! `cargo bench --bench hot_bucket` reports, for log tables, and with `-- --keyed` for primary-key tables, the fastest of some rounds from an
//! in-process node to the committed snapshot, the two tables in turns. On a machine that others use as well the wall lies; then **wanted**
//! tells: the time that threads ran or waited for a core, by the wall. `-- --serial` reads one range after the other, as before.
#![expect(clippy::unwrap_used, clippy::print_stdout, clippy::indexing_slicing, reason = "a benchmark")]
#![expect(clippy::cast_precision_loss, reason = "small numbers")]

#[path = "pipeline/kit.rs"]
mod kit;

use std::sync::Arc;
use std::time::{Duration, Instant};

use lakeward::client::{Admin, Writer, WriterOptions};
use lakeward::fluss::cluster::{Cluster as WireCluster, ClusterOptions};
use lakeward::fluss::record::BatchSchema;
use lakeward::fluss::table_json::TableDescriptor;
use lakeward::model::{DataType, RoundSummary, Schema, SchemaId, TablePath, TieringEpoch};
use lakeward::node::{Node, NodeOptions};
use lakeward::round::{self, Job, Limits, RoundContext};
use lakeward::runtime::Runtime;
use lakeward::source::cluster::ClusterSource;

/// Rows of a round.
const ROWS: i64 = 2_000_000;
const ROUNDS: usize = 4;
const FILL_ROWS: i64 = 100_000;

fn has(argument: &str) -> bool {
    std::env::args().any(|given| given == argument)
}

struct Table {
    job: Job,
    writer: Writer,
    schema: BatchSchema,
    written: i64,
}

struct Bench {
    runtime: tokio::runtime::Runtime,
    context: RoundContext,
    tables: Vec<(i32, Table)>,
    // Dropped last.
    _node: Node,
    _threads: tokio::runtime::Runtime,
    _dir: tempfile::TempDir,
}

fn threads(name: &str, count: usize) -> tokio::runtime::Runtime {
    // Threads that end would take their figures with them.
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(count).enable_all().thread_name(name).thread_keep_alive(Duration::from_secs(3600)).build().unwrap()
}

impl Bench {
    fn new(keyed: bool, cores: usize, buckets: &[i32]) -> Self {
        let (runtime, node_threads) = (threads("round", cores), threads("node", cores));
        let dir = tempfile::tempdir().unwrap();
        let options = NodeOptions::new(dir.path());
        let node = node_threads.block_on(async { Node::start(options, Runtime::system(1, 1 << 28).unwrap()).await.unwrap() });
        let (context, tables) = runtime.block_on(async {
            let machine = Runtime::system(cores, 1 << 30).unwrap();
            let cluster = WireCluster::connect(&[node.address().to_string()], ClusterOptions::default(), &machine).await.unwrap();
            let admin = Admin::new(cluster.clone());
            admin.create_database("demo", true).await.unwrap();
            let mut tables = Vec::new();
            for count in buckets {
                let path = TablePath::new("demo", format!("t{count}"));
                let (mut fields, mut primary_key) = (kit::fields(), vec![]);
                if keyed {
                    let kind = fields[0].data_type.kind.clone();
                    fields[0].data_type = DataType::required(kind);
                    primary_key.push("id".to_owned());
                }
                let schema = Schema { id: SchemaId(1), fields, primary_key, highest_field_id: 11 };
                let table = TableDescriptor {
                    schema: schema.clone(),
                    comment: None,
                    partition_keys: vec![],
                    bucket_keys: vec!["id".to_owned()],
                    bucket_count: Some(*count),
                    properties: [("table.datalake.enabled".to_owned(), "true".to_owned())].into(),
                    custom_properties: [].into(),
                };
                admin.create_table(&path, &table, false).await.unwrap();
                let info = admin.table_info(&path).await.unwrap();
                let writer = Writer::open(&cluster, &path, WriterOptions::default()).await.unwrap();
                let job = Job { path, table: info.id, epoch: TieringEpoch(1), lease: None, limits: Limits::default() };
                let schema = BatchSchema::new(Arc::new(schema)).unwrap();
                tables.push((*count, Table { job, writer, schema, written: 0 }));
            }
            let source = Arc::new(ClusterSource::new(cluster));
            let mut options = round::Options::default();
            if has("--serial") {
                options.read.range_rows = i64::MAX;
                options.read.ahead = Some(2);
            }
            (RoundContext { scan: Arc::<ClusterSource>::clone(&source), ledger: source, runtime: machine, options }, tables)
        });
        Self { runtime, context, tables, _node: node, _threads: node_threads, _dir: dir }
    }

    fn fill(&mut self, table: usize, rows: i64) {
        let (_, table) = &mut self.tables[table];
        for _ in 0..rows / FILL_ROWS {
            let rows = kit::rows(&table.schema, table.written..table.written + FILL_ROWS);
            let keyed = !table.schema.schema.primary_key.is_empty();
            let written = self.runtime.block_on(async {
                if keyed {
                    table.writer.change(&rows, &vec![false; rows.num_rows()]).await
                } else {
                    table.writer.append(&rows).await
                }
            });
            written.unwrap();
            table.written += FILL_ROWS;
        }
    }

    fn round(&self, table: usize) -> RoundSummary {
        self.runtime.block_on(round::run(&self.context, &self.tables[table].1.job)).unwrap()
    }
}

/// Seconds that this process's threads have run, and waited for a core: ours, and the node's.
fn thread_seconds() -> [f64; 4] {
    let mut seconds = [0.0; 4];
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        let text = |file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
        let (name, figures) = (text("comm"), text("schedstat"));
        let mut figures = figures.split_whitespace().map(|figure| figure.parse::<f64>().unwrap() / 1e9);
        let place = if name.starts_with("node") { 2 } else { 0 };
        seconds[place] += figures.next().unwrap_or_default();
        seconds[place + 1] += figures.next().unwrap_or_default();
    }
    seconds
}

struct Figures {
    wall: f64,
    ours: f64,
    node: f64,
    wanted: f64,
    files: u64,
}

fn main() {
    // `cargo test --benches` runs it with `--test`: once, without figures.
    if has("--test") {
        return;
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut bench = Bench::new(has("--keyed"), cores, &[1, 8]);
    for table in 0..2 {
        // What is never tiered is read as a state; and a first round makes what later ones find.
        bench.fill(table, FILL_ROWS);
        bench.round(table);
    }
    let mut best: [Option<Figures>; 2] = [None, None];
    for _ in 0..ROUNDS {
        for table in 0..2 {
            bench.fill(table, ROWS);
            #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
            let start = Instant::now();
            let before = thread_seconds();
            let summary = bench.round(table);
            let wall = start.elapsed().as_secs_f64();
            let after = thread_seconds();
            assert_eq!(summary.rows, ROWS.cast_unsigned());
            let [ours, waited, node, node_waited] = std::array::from_fn(|index| after[index] - before[index]);
            let wanted = ours + waited + node + node_waited;
            let figures = Figures { wall, ours, node, wanted, files: summary.files };
            if best[table].as_ref().is_none_or(|best| wall < best.wall) {
                best[table] = Some(figures);
            }
        }
    }
    let million = ROWS as f64 / 1e6;
    println!("{cores} cores, {million} million rows a round, fastest of {ROUNDS}; seconds per million rows");
    println!("buckets   wall   core time   node's   cores used   cores wanted   files");
    for ((buckets, _), figures) in bench.tables.iter().zip(&best) {
        let Some(Figures { wall, ours, node, wanted, files }) = figures else { continue };
        let (used, wants) = ((ours + node) / wall, wanted / wall);
        let (per_wall, per_ours, per_node) = (wall / million, ours / million, node / million);
        println!("{buckets:>7} {per_wall:>6.3} {per_ours:>11.3} {per_node:>8.3} {used:>12.2} {wants:>14.2} {files:>7}");
    }
    if let [Some(one), Some(eight)] = &best {
        println!("wall of one bucket ÷ of eight: {:.2}", one.wall / eight.wall);
    }
}
