//! Rows per second per core, beside the floor measured in the same run (architecture.md 6).
//!
//! The row is the 12-column one of the cluster kit (`Produce.java`): about 140 bytes, ZSTD-compressed record batches.
//! **Floor** = checksum and decode of those batches, then parquet's own `ArrowWriter` with zstd. **Ours** = the same bytes
//! through the write stage, statistics and metadata included, on one thread. **Round** = a whole round: an in-process node
//! serves the log over the wire, the rows end in a committed snapshot on the local disk.
//!
//! `cargo bench --bench pipeline` runs criterion and then the report; `-- --report` the report alone, `-- --columns` what each column costs,
//! `-- --keyed` primary-key tables alone (`pipeline/keyed.rs`).
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

#[path = "pipeline/keyed.rs"]
mod keyed;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use criterion::{Criterion, SamplingMode, Throughput, criterion_group};
use lakeward::client::{Admin, Writer, WriterOptions};
use lakeward::fluss::cluster::{Cluster as WireCluster, ClusterOptions};
use lakeward::fluss::record::{BatchSchema, Compression, EncodeOptions, LogFormat, batches, encode_arrow_batch, stamp};
use lakeward::fluss::table_json::TableDescriptor;
use lakeward::model::{
    BucketId, ChangeKind, Field, RoundId, RoundSummary, Schema, SchemaId, TableBucket, TableId, TablePath, TieringEpoch,
};
use lakeward::node::{Node, NodeOptions};
use lakeward::paimon::{BinaryRow, TableSchema};
use lakeward::round::{self, Job, Limits, RoundContext};
use lakeward::runtime::Runtime;
use lakeward::source::cluster::ClusterSource;
use lakeward::storage::Store;
use lakeward::write::{BucketTarget, BucketWriter, WriteContext, WriteOptions};
use parquet::arrow::ArrowWriter;
use parquet::basic::ZstdLevel;
use parquet::file::properties::WriterProperties;

const ROWS: i64 = 500_000;
const BATCH_ROWS: i64 = 10_000;
const BUCKET: TableBucket = TableBucket { table: TableId(1), partition: None, bucket: BucketId(0) };

/// Rows of the cluster kit, by the same arithmetic.
mod kit {
    use std::sync::Arc;

    use arrow_array::types::{Int64Type, TimestampMicrosecondType};
    use arrow_array::{
        ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, PrimitiveArray, RecordBatch,
        StringArray,
    };
    use lakeward::fluss::record::BatchSchema;
    use lakeward::model::{DataType, Field, TypeKind};

    const WORDS: [&str; 32] = [
        "lake", "river", "stream", "delta", "basin", "harbor", "tide", "shore", "reef", "cove", "marsh", "inlet", "fjord",
        "lagoon", "brook", "estuary", "anchor", "beacon", "buoy", "canal", "dock", "ferry", "jetty", "keel", "mast", "oar", "pier",
        "quay", "rudder", "sail", "wharf", "skiff",
    ];

    pub(super) fn fields() -> Vec<Field> {
        let kinds = [
            ("id", TypeKind::BigInt),
            ("qty", TypeKind::Int),
            ("amount", TypeKind::BigInt),
            ("ratio", TypeKind::Double),
            ("price", TypeKind::Decimal { precision: 12, scale: 2 }),
            ("ts", TypeKind::Timestamp { precision: 6 }),
            ("day", TypeKind::Date),
            ("flag", TypeKind::Boolean),
            ("region", TypeKind::String),
            ("customer", TypeKind::String),
            ("product", TypeKind::String),
            ("note", TypeKind::String),
        ];
        let field = |(id, (name, kind)): (i32, (&str, TypeKind))| Field {
            id,
            name: name.to_owned(),
            data_type: DataType::nullable(kind),
            comment: None,
        };
        (0..).zip(kinds).map(field).collect()
    }

    fn mix(seed: u64) -> u64 {
        let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn word(bits: u64) -> &'static str {
        WORDS.get(usize::try_from(bits & 31).unwrap()).unwrap()
    }

    fn customer(index: u64) -> String {
        format!("cust-{:08x}", mix(index) & 0xffff_ffff)
    }

    fn product(index: u64) -> String {
        let h = mix(index * 31 + 7);
        let mut text = format!("{}-{}-{}", word(h), word(h >> 5), h >> 10 & 0xfff);
        while text.len() < 8 + usize::try_from(h >> 30 & 15).unwrap() {
            text.push('x');
        }
        text.truncate(32);
        text
    }

    fn note(h: u64, g: u64) -> String {
        let mut text = String::with_capacity(64);
        for step in 0..5 {
            let word = word(g >> (5 * step));
            text.push_str(word.get(..word.len().min(48_usize.saturating_sub(text.len()))).unwrap());
            text.push(' ');
        }
        for digit in 0..16 {
            let digit = char::from_digit(u32::try_from(h >> (digit * 4) & 15).unwrap(), 16).unwrap();
            if text.len() == 64 {
                text.pop();
            }
            text.push(digit);
        }
        text
    }

    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    pub(super) fn rows(schema: &BatchSchema, ids: impl Iterator<Item = i64>) -> RecordBatch {
        let seeds: Vec<(i64, u64, u64)> = ids
            .map(|id| {
                let h = mix(id.cast_unsigned().wrapping_mul(1_000_003));
                (id, h, mix(h))
            })
            .collect();
        let row = || seeds.iter().copied();
        let price = row().map(|(_, _, g)| i128::from((g >> 5) % 10_000_000)).collect::<Decimal128Array>();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(row().map(|(id, ..)| id).collect::<Int64Array>()),
            Arc::new(row().map(|(_, h, _)| i32::try_from(h & 0x3ff).unwrap()).collect::<Int32Array>()),
            Arc::new(row().map(|(_, _, g)| (g >> 20).cast_signed()).collect::<Int64Array>()),
            Arc::new(row().map(|(_, h, _)| (h >> 11) as f64 / (1_u64 << 53) as f64).collect::<Float64Array>()),
            Arc::new(price.with_precision_and_scale(12, 2).unwrap()),
            Arc::new(
                row()
                    .map(|(id, h, _)| (1_760_000_000_000 + id * 3) * 1000 + (h & 999).cast_signed())
                    .collect::<PrimitiveArray<Int64Type>>()
                    .reinterpret_cast::<TimestampMicrosecondType>(),
            ),
            Arc::new(row().map(|(id, ..)| Some(20_000 + i32::try_from(id / 1000 % 365).unwrap())).collect::<Date32Array>()),
            Arc::new(row().map(|(_, h, _)| Some(h & 1 == 0)).collect::<BooleanArray>()),
            Arc::new(row().map(|(id, ..)| Some(format!("region-{:02}", id % 16))).collect::<StringArray>()),
            Arc::new(row().map(|(_, _, g)| Some(customer((g >> 8 & 0xff_ffff) % 20_000))).collect::<StringArray>()),
            Arc::new(row().map(|(_, h, _)| Some(product((h >> 12 & 0xff_ffff) % 2_000))).collect::<StringArray>()),
            Arc::new(row().map(|(_, h, g)| Some(note(h, g))).collect::<StringArray>()),
        ];
        RecordBatch::try_new(Arc::clone(&schema.arrow), columns).unwrap()
    }
}

/// A log of [`ROWS`] rows, as a server keeps it.
struct Log {
    schema: BatchSchema,
    bytes: Bytes,
    decoded: Vec<RecordBatch>,
}

impl Log {
    fn new() -> Self {
        let schema = Schema { id: SchemaId(1), fields: kit::fields(), primary_key: vec![], highest_field_id: 11 };
        let schema = BatchSchema::new(Arc::new(schema)).unwrap();
        let mut bytes = Vec::new();
        for from in (0..ROWS).step_by(usize::try_from(BATCH_ROWS).unwrap()) {
            let rows = kit::rows(&schema, from..ROWS.min(from + BATCH_ROWS));
            let options = EncodeOptions { compression: Compression::Zstd(3), ..EncodeOptions::new(SchemaId(1)) };
            let mut batch = encode_arrow_batch(options, &rows, None).unwrap().to_vec();
            stamp(&mut batch, from, 1_700_000_000_000, 0).unwrap();
            bytes.extend_from_slice(&batch);
        }
        let mut log = Self { schema, bytes: bytes.into(), decoded: Vec::new() };
        log.decoded = log.decode().collect();
        log
    }

    fn decode(&self) -> impl Iterator<Item = RecordBatch> + '_ {
        batches(self.bytes.clone()).map(|batch| {
            let batch = batch.unwrap();
            batch.verify_crc().unwrap();
            batch.decode(LogFormat::Arrow, &self.schema, BUCKET).unwrap().unwrap().rows
        })
    }
}

/// What parquet's own writer makes of the rows.
fn plain_encode(schema: &SchemaRef, rows: impl Iterator<Item = RecordBatch>) -> usize {
    let properties = WriterProperties::builder().set_compression(parquet::basic::Compression::ZSTD(ZstdLevel::try_new(1).unwrap()));
    let mut writer = ArrowWriter::try_new(Vec::new(), Arc::clone(schema), Some(properties.build())).unwrap();
    for rows in rows {
        writer.write(&rows).unwrap();
    }
    writer.into_inner().unwrap().len()
}

/// What the write stage makes of rows of `fields` and what they do, on one thread, into memory: bytes of files.
fn write_stage(
    fields: &[Field],
    key: &[String],
    options: &[(&str, &str)],
    rows: impl Iterator<Item = (RecordBatch, Option<Vec<ChangeKind>>)>,
) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let bucket = (!key.is_empty()).then_some(("bucket", "1"));
        let schema = TableSchema {
            id: 0,
            fields: fields.to_vec(),
            highest_field_id: 11,
            partition_keys: vec![],
            primary_keys: key.to_vec(),
            options: options.iter().chain(&bucket).map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            comment: None,
            time_ms: 0,
        };
        let machine = Runtime::simulated(1, 0, 1 << 30);
        let round = RoundId(uuid::Uuid::from_u128(1));
        let context =
            WriteContext::new(Store::in_memory(), "t", Arc::new(schema), round, machine.clone(), WriteOptions::default()).unwrap();
        let total_buckets = if key.is_empty() { -1 } else { 1 };
        let target = BucketTarget { source: BUCKET, partition: BinaryRow::empty(), bucket: 0, total_buckets };
        let mut writer = BucketWriter::new(context, target, 0).unwrap();
        let mut offset = 0;
        for (rows, changes) in rows {
            let count = i64::try_from(rows.num_rows()).unwrap();
            let permit = machine.budget.acquire(1 << 20).await;
            writer.write(rows, changes.as_deref(), offset, permit).await.unwrap();
            offset += count;
        }
        let files = writer.finish().await.unwrap();
        files.data.iter().chain(&files.changelog).map(|entry| usize::try_from(entry.file.file_size).unwrap()).sum()
    })
}

/// Rows that are appended.
fn appended(rows: impl Iterator<Item = RecordBatch>) -> impl Iterator<Item = (RecordBatch, Option<Vec<ChangeKind>>)> {
    rows.map(|rows| (rows, None))
}

fn stages(criterion: &mut Criterion) {
    let (log, fields) = (Log::new(), kit::fields());
    let mut group = criterion.benchmark_group("pipeline");
    group.throughput(Throughput::Elements(ROWS.cast_unsigned())).sampling_mode(SamplingMode::Flat).sample_size(10);
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(3));
    group.bench_function("floor: decode", |bencher| bencher.iter(|| log.decode().map(|rows| rows.num_rows()).sum::<usize>()));
    group.bench_function("floor: encode", |bencher| bencher.iter(|| plain_encode(&log.schema.arrow, log.decoded.iter().cloned())));
    group.bench_function("ours: encode", |bencher| {
        bencher.iter(|| write_stage(&fields, &[], &[], appended(log.decoded.iter().cloned())))
    });
    let mut cluster = Cluster::new();
    group.bench_function("round: node to snapshot", |bencher| {
        bencher.iter_custom(|times| {
            let one = |_| {
                cluster.fill(&log);
                let start = now();
                black_box(cluster.round());
                start.elapsed()
            };
            (0..times).map(one).sum()
        });
    });
    group.finish();
}

/// What each column costs alone.
fn columns() {
    let log = Log::new();
    println!("{:<10} {:>12} {:>12} {:>12} {:>12}", "column", "floor ns/row", "ours ns/row", "floor bytes", "our bytes");
    for (index, field) in kit::fields().into_iter().enumerate() {
        let rows: Vec<RecordBatch> = log.decoded.iter().map(|rows| rows.project(&[index]).unwrap()).collect();
        let schema = Arc::new(log.schema.arrow.project(&[index]).unwrap());
        let fields = [field];
        let plain = || plain_encode(&schema, rows.iter().cloned());
        let ours = || write_stage(&fields, &[], &[], appended(rows.iter().cloned()));
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let nanos = |seconds: f64| seconds * 1e9 / ROWS as f64;
        let (name, floor, mine) = (&fields[0].name, nanos(fastest(plain)), nanos(fastest(ours)));
        println!("{name:<10} {floor:>12.1} {mine:>12.1} {:>12} {:>12}", plain(), ours());
    }
}

/// A node, a table of 4 buckets on it, and what rounds need.
struct Cluster {
    runtime: tokio::runtime::Runtime,
    context: RoundContext,
    job: Job,
    writer: Writer,
    // Dropped last.
    _node: Node,
    _dir: tempfile::TempDir,
}

impl Cluster {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (node, context, job, writer) = runtime.block_on(async {
            let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            let machine = Runtime::system(cores, 1 << 30).unwrap();
            let node = Node::start(NodeOptions::new(dir.path()), machine.clone()).await.unwrap();
            let cluster = WireCluster::connect(&[node.address().to_string()], ClusterOptions::default(), &machine).await.unwrap();
            let (admin, path) = (Admin::new(cluster.clone()), TablePath::new("demo", "orders"));
            let table = TableDescriptor {
                schema: Schema { id: SchemaId(1), fields: kit::fields(), primary_key: vec![], highest_field_id: 11 },
                comment: None,
                partition_keys: vec![],
                bucket_keys: vec!["id".to_owned()],
                bucket_count: Some(4),
                properties: [("table.datalake.enabled".to_owned(), "true".to_owned())].into(),
                custom_properties: [].into(),
            };
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
            (node, context, Job { path, table: info.id, epoch: TieringEpoch(1), lease: None, limits: Limits::default() }, writer)
        });
        Self { runtime, context, job, writer, _node: node, _dir: dir }
    }

    /// Writes the log's rows into the table.
    fn fill(&mut self, log: &Log) {
        for rows in log.decoded.chunks(10) {
            let rows = arrow_select::concat::concat_batches(&log.schema.arrow, rows).unwrap();
            self.runtime.block_on(self.writer.append(&rows)).unwrap();
        }
    }

    fn round(&self) -> RoundSummary {
        let summary = self.runtime.block_on(round::run(&self.context, &self.job)).unwrap();
        assert_eq!(summary.rows, ROWS.cast_unsigned());
        summary
    }
}

/// Core seconds of the whole process, ended threads included; `None` where Linux does not tell.
fn process_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Fields 14 and 15, counted after the name in parentheses, in hundredths.
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(2);
    let hundredths: u32 = fields.map(str::parse::<u32>).sum::<Result<_, _>>().ok()?;
    Some(f64::from(hundredths) / 100.0)
}

/// Seconds that this thread has been on a core; wall time where Linux does not tell.
fn core_seconds(start: Instant) -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = told.and_then(|text| text.split(' ').next()?.parse().ok());
    nanos.map_or_else(|| start.elapsed(), Duration::from_nanos).as_secs_f64()
}

fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    Instant::now()
}

/// Core seconds of the fastest of five runs: noise only ever adds.
fn fastest<T>(mut work: impl FnMut() -> T) -> f64 {
    let start = now();
    let one = |_| {
        let before = core_seconds(start);
        black_box(work());
        core_seconds(start) - before
    };
    (0..5).map(one).fold(f64::INFINITY, f64::min)
}

fn line(name: &str, seconds: f64) {
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let rows = ROWS as f64;
    println!("{name:<44} {:>8.3} s per million rows  {:>10.0} rows/s", seconds * 1e6 / rows, rows / seconds);
}

/// Ours beside the floor, on the same bytes in the same run.
fn report() {
    let (log, fields) = (Log::new(), kit::fields());
    let decode = fastest(|| log.decode().map(|rows| rows.num_rows()).sum::<usize>());
    let plain = fastest(|| plain_encode(&log.schema.arrow, log.decoded.iter().cloned()));
    let ours = fastest(|| write_stage(&fields, &[], &[], appended(log.decoded.iter().cloned())));
    let floor = fastest(|| plain_encode(&log.schema.arrow, log.decode()));
    let both = fastest(|| write_stage(&fields, &[], &[], appended(log.decode())));
    line("floor: decode", decode);
    line("floor: encode (ArrowWriter, zstd 1)", plain);
    line("floor: decode + encode", floor);
    line("ours:  write stage", ours);
    line("ours:  decode + write stage", both);
    let (plain_bytes, our_bytes) = (
        plain_encode(&log.schema.arrow, log.decoded.iter().cloned()),
        write_stage(&fields, &[], &[], appended(log.decoded.iter().cloned())),
    );
    println!("bytes: log {}, floor {plain_bytes}, ours {our_bytes}", log.bytes.len());
    println!("write stage: ours ÷ floor {:.2}", floor / both);

    let mut cluster = Cluster::new();
    let (mut wall, mut cores, mut summary) = (f64::INFINITY, f64::INFINITY, None);
    for _ in 0..5 {
        cluster.fill(&log);
        let (start, before) = (now(), process_seconds());
        summary = Some(cluster.round());
        wall = wall.min(start.elapsed().as_secs_f64());
        if let (Some(before), Some(after)) = (before, process_seconds()) {
            cores = cores.min(after - before);
        }
    }
    line("round: node to snapshot, wall", wall);
    line("round: all cores, node included", cores);
    line("       of which decode + write stage", both);
    line("       of which the rest", cores - both);
    if let Some(summary) = summary {
        let RoundSummary { plan_ms, write_ms, commit_ms, .. } = summary;
        println!("last round: plan {plan_ms} ms, read and write {write_ms} ms, commit {commit_ms} ms");
    }
    println!("round: ours ÷ floor {:.2} (node, wire and commit included)", floor / cores);
}

criterion_group!(benches, stages);

fn main() {
    // `cargo test --benches` runs it with `--test`: once, without figures.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    if std::env::args().any(|argument| argument == "--columns") {
        return columns();
    }
    if std::env::args().any(|argument| argument == "--keyed-profile") {
        return keyed::profile();
    }
    if std::env::args().any(|argument| argument == "--keyed") {
        return keyed::report();
    }
    if !std::env::args().any(|argument| argument == "--report") {
        benches();
        Criterion::default().configure_from_args().final_summary();
    }
    report();
    keyed::report();
}
