//! Seconds on a core per million rows, beside the floor measured in the same run (architecture.md 6).
//!
//! The row is the 12-column one of the cluster kit (`Produce.java`): about 140 bytes, ZSTD-compressed record batches. Three tables: a log;
//! a primary key of one integer; one of a text and an integer (`pipeline/log.rs`). All steps take turns.
//! A core of a virtual machine is up to a third slower from one second to the next, so ratios are made within a turn; what is told is the middle of all turns.
//!
//! **Floor** = what nobody can do without (`pipeline/floor.rs`), bucket by bucket as a round has to: checksum and decode; with a primary key sort and `take`; encode with
//! parquet's own `ArrowWriter`, zstd, and (*tuned*) the encodings that our files have, in the columns that a file has to have. With changelog files
//! all rows are taken and encoded, and the newest of each key once more.
//! **Files** = our files written anew and synced, by `write` alone: where a host takes free pages back, new ones are dear (docs/performance.md).
//! **Write stage** = the same bytes, decoded, through the write stage, statistics and metadata included, on one thread.
//! **Round** = a whole round over all cores: a node in this process serves the log over the wire, the rows end in a committed snapshot on the
//! local disk. What the node's threads take is told apart.
//!
//! `cargo bench --bench pipeline` runs criterion and then the report; `-- --report [TABLE]` the report alone (`log`, `'primary key: integer'`, …); `-- --columns` what each column costs;
//! `-- --profile TABLE [stage]` a long round, or the write stage over and over, for a profiler.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

#[path = "pipeline/cluster.rs"]
mod cluster;
#[path = "pipeline/floor.rs"]
mod floor;
#[path = "pipeline/kit.rs"]
mod kit;
#[path = "pipeline/log.rs"]
mod log;

use std::hint::black_box;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{RecordBatch, UInt32Array};
use arrow_select::take::take_record_batch;
use bytes::Bytes;
use cluster::Cluster;
use criterion::{Criterion, SamplingMode, Throughput, criterion_group};
use lakeward::fluss::record::Compression;
use lakeward::model::{Field, RoundId, RoundSummary};
use lakeward::paimon::{BinaryRow, TableSchema};
use lakeward::runtime::Runtime;
use lakeward::storage::Store;
use lakeward::write::{BucketTarget, BucketWriter, WriteContext, WriteOptions};
use log::{BATCH_ROWS, BUCKET, Changes, Log};
use rustix::time::{ClockId, clock_gettime};

const ROWS: i64 = 500_000;
const TURNS: usize = 11;
const ZSTD: Compression = Compression::Zstd(3);

/// The files that the write stage makes of rows of `fields`, on one thread, in memory.
fn write_stage(fields: &[Field], key: &[String], options: &[(&str, &str)], rows: impl Iterator<Item = Changes>) -> Vec<Bytes> {
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
        let (machine, store) = (Runtime::simulated(1, 0, 1 << 30), Store::in_memory());
        let round = RoundId(uuid::Uuid::from_u128(1));
        let options = WriteOptions::default();
        let context = WriteContext::new(store.clone(), "t", Arc::new(schema), round, machine.clone(), options).unwrap();
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
        let written = writer.finish().await.unwrap();
        let mut files = Vec::new();
        for entry in written.data.iter().chain(&written.changelog) {
            files.push(store.get_existing(&format!("t/bucket-0/{}", entry.file.file_name)).await.unwrap());
        }
        files
    })
}

fn stages(criterion: &mut Criterion) {
    let log = Log::new(&[], ZSTD);
    let mut group = criterion.benchmark_group("pipeline");
    group.throughput(Throughput::Elements(ROWS.cast_unsigned())).sampling_mode(SamplingMode::Flat).sample_size(10);
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(3));
    group.bench_function("floor: decode", |bencher| bencher.iter(|| log.decode().count()));
    group.bench_function("floor: encode", |bencher| {
        bencher.iter(|| floor::encode(&floor::plain(), log.rows()));
    });
    group.bench_function("ours: encode", |bencher| {
        bencher.iter(|| write_stage(log.fields(), &[], &[], log.decoded.iter().cloned()));
    });
    let mut cluster = Cluster::new(&[], false);
    group.bench_function("round: node to snapshot", |bencher| {
        bencher.iter_custom(|times| {
            let one = |_| {
                cluster.fill(ROWS);
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
    let log = Log::new(&[], ZSTD);
    println!("{:<10} {:>12} {:>12} {:>12} {:>12}", "column", "floor ns/row", "ours ns/row", "floor bytes", "our bytes");
    for (index, field) in kit::fields().into_iter().enumerate() {
        let rows: Vec<RecordBatch> = log.rows().map(|rows| rows.project(&[index]).unwrap()).collect();
        let fields = [field];
        let ours = || write_stage(&fields, &[], &[], rows.iter().map(|rows| (rows.clone(), None)));
        let file = ours().concat();
        let tuned = floor::tuned(file.clone().into());
        let encode = || floor::encode(&tuned, rows.iter().cloned());
        let (least, mine): (Vec<f64>, Vec<f64>) = (0..TURNS).map(|_| (measured(encode), measured(ours))).unzip();
        let nanos = |seconds: f64| seconds * 1e9 / per_row();
        println!(
            "{:<10} {:>12.1} {:>12.1} {:>12} {:>12}",
            fields[0].name,
            nanos(median(least)),
            nanos(median(mine)),
            encode(),
            file.len()
        );
    }
}

fn per_row() -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let rows = ROWS as f64;
    rows
}

fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    Instant::now()
}

/// Core seconds, to the nanosecond (what `/proc` tells of a running thread is whole ticks of the scheduler).
fn seconds_of(clock: ClockId) -> f64 {
    Duration::try_from(clock_gettime(clock)).unwrap().as_secs_f64()
}

/// Core seconds that this thread needs for `work`.
fn measured<T>(work: impl FnOnce() -> T) -> f64 {
    let before = seconds_of(ClockId::ThreadCPUTime);
    black_box(work());
    seconds_of(ClockId::ThreadCPUTime) - before
}

/// The middle of what the turns measured.
fn median(mut turns: Vec<f64>) -> f64 {
    turns.sort_by(f64::total_cmp);
    turns.swap_remove(turns.len() / 2)
}

fn line(name: &str, seconds: f64) {
    println!("  {name:<42} {:>7.3} s per million rows {:>10.0} rows/s", seconds * 1e6 / per_row(), per_row() / seconds);
}

/// What one turn measured: core seconds, and the wall of its round.
struct Turn {
    decode: f64,
    sort: f64,
    take: f64,
    plain: f64,
    tuned: f64,
    stage: f64,
    files: f64,
    service: f64,
    node: f64,
    wall: f64,
}

impl Turn {
    fn floor(&self) -> f64 {
        self.decode + self.sort + self.take + self.tuned
    }

    fn round(&self) -> f64 {
        self.service + self.node
    }
}

/// Ours beside the floor: one kind of table.
fn report(name: &str, key: &'static [usize], changelog: bool) {
    let logs = Log::buckets(key, ZSTD);
    let options: &[(&str, &str)] = if changelog { &[("changelog-producer", "input")] } else { &[] };
    let sort = |log: &Log| floor::sort(&log.schema.arrow, key, &log.decoded);
    let sorted: Vec<_> = if key.is_empty() { vec![] } else { logs.iter().map(sort).collect() };
    // What is to be encoded: the log's batches, or what sorting makes of them.
    let files: Vec<Vec<RecordBatch>> = if key.is_empty() {
        logs.iter().map(|log| log.rows().collect()).collect()
    } else {
        let files = |(log, (all, [by_key, of_key])): (&Log, &(RecordBatch, [UInt32Array; 2]))| {
            let orders = if changelog { vec![by_key, of_key] } else { vec![of_key] };
            let rows = orders.into_iter().map(|order| floor::file_rows(all, key, &log.decoded, order));
            let cut = |rows: RecordBatch| {
                let count = rows.num_rows();
                (0..count).step_by(BATCH_ROWS).map(|from| rows.slice(from, BATCH_ROWS.min(count - from))).collect::<Vec<_>>()
            };
            rows.map(cut).collect::<Vec<_>>()
        };
        logs.iter().zip(&sorted).flat_map(files).collect()
    };
    let stage = |log: &Log| write_stage(log.fields(), log.names(), options, log.decode());
    let written: Vec<Bytes> = logs.iter().flat_map(stage).collect();
    let (plain, tuned) = (floor::plain(), floor::tuned(written.first().unwrap().clone()));
    let encode = |properties| files.iter().map(|rows| floor::encode(properties, rows.iter().cloned())).sum::<usize>();

    let mut cluster = Cluster::new(key, changelog);
    let mut summary = None;
    let dir = tempfile::tempdir().unwrap();
    let turns: Vec<Turn> = (0..TURNS)
        .map(|_| {
            let decode = measured(|| logs.iter().map(|log| log.decode().count()).sum::<usize>());
            let [sort, take] = if key.is_empty() {
                [0.0; 2]
            } else {
                // By key once, then picked: what changelog files need beside it is a filter.
                let take = |(all, [by_key, of_key]): &(RecordBatch, [UInt32Array; 2])| {
                    drop(black_box(take_record_batch(all, if changelog { by_key } else { of_key }).unwrap()));
                };
                [measured(|| logs.iter().for_each(|log| drop(black_box(sort(log))))), measured(|| sorted.iter().for_each(take))]
            };
            let [plain, tuned] = [&plain, &tuned].map(|properties| measured(|| encode(properties)));
            let stage = measured(|| logs.iter().for_each(|log| drop(black_box(stage(log)))));
            cluster.fill(ROWS);
            let place = |number: usize| dir.path().join(number.to_string());
            let files = measured(|| {
                for (number, file) in written.iter().enumerate() {
                    let mut to = std::fs::File::create(place(number)).unwrap();
                    to.write_all(file).unwrap();
                    to.sync_all().unwrap();
                }
            });
            // The round's files take these pages, as those of a service that has run for long do.
            (0..written.len()).for_each(|number| std::fs::remove_file(place(number)).unwrap());
            let (start, [node_before, before]) = (now(), cluster::core_seconds());
            summary = Some(cluster.round());
            let wall = start.elapsed().as_secs_f64();
            let [node_after, after] = cluster::core_seconds();
            let (node, service) = (node_after - node_before, after - before);
            Turn { decode, sort, take, plain, tuned, stage, files, service, node, wall }
        })
        .collect();
    let middle = |of: fn(&Turn) -> f64| median(turns.iter().map(of).collect());

    println!("\n{name}");
    line("decode", middle(|turn| turn.decode));
    if !key.is_empty() {
        line("sort", middle(|turn| turn.sort));
        line("take", middle(|turn| turn.take));
    }
    line("encode, ArrowWriter as it comes", middle(|turn| turn.plain));
    line("encode, ArrowWriter tuned", middle(|turn| turn.tuned));
    line("floor", middle(Turn::floor));
    line("write stage, decode included", middle(|turn| turn.stage));
    line("the files, written and synced", middle(|turn| turn.files));
    line("round, without the node's threads", middle(|turn| turn.service));
    line("round, all threads", middle(Turn::round));
    line("round, wall", middle(|turn| turn.wall));
    let bytes = written.iter().map(Bytes::len).sum::<usize>();
    println!(
        "  bytes: log {}, files {bytes}; ArrowWriter tuned {}, as it comes {}",
        logs.iter().map(|log| log.bytes.len()).sum::<usize>(),
        encode(&tuned),
        encode(&plain)
    );
    if let Some(RoundSummary { files, bytes, plan_ms, write_ms, commit_ms, .. }) = summary {
        println!(
            "  last round: {files} files, {bytes} bytes; plan {plan_ms} ms, read and write {write_ms} ms, commit {commit_ms} ms"
        );
    }
    let ratio =
        |floor: fn(&Turn) -> f64, ours: fn(&Turn) -> f64| median(turns.iter().map(|turn| floor(turn) / ours(turn)).collect());
    let ours: [fn(&Turn) -> f64; 3] = [|turn| turn.stage, |turn| turn.service, Turn::round];
    let ratios = |floor: fn(&Turn) -> f64| ours.map(|ours| format!("{:.2}", ratio(floor, ours))).join(", ");
    println!(
        "  floor ÷ write stage, round without node, round: {}; with encodings as they come {}; floor and files ÷ round without node: {:.2}",
        ratios(Turn::floor),
        ratios(|turn| turn.floor() - turn.tuned + turn.plain),
        ratio(|turn| turn.floor() + turn.files, |turn| turn.service)
    );
}

/// One kind of work over and over.
fn profile(key: &'static [usize], changelog: bool, stage: bool) {
    if stage {
        let log = Log::new(key, ZSTD);
        let options: &[(&str, &str)] = if changelog { &[("changelog-producer", "input")] } else { &[] };
        (0..20).for_each(|_| drop(black_box(write_stage(log.fields(), log.names(), options, log.decode()))));
        return;
    }
    let mut cluster = Cluster::new(key, changelog);
    cluster.fill(8 * ROWS);
    println!("round begins");
    black_box(cluster.round());
}

criterion_group!(benches, stages);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let given = |name: &str| arguments.iter().any(|argument| argument == name);
    // `cargo test --benches` runs it with `--test`: once, without figures.
    if given("--test") {
        return;
    }
    if given("--columns") {
        return columns();
    }
    if !given("--report") && !given("--profile") {
        benches();
        Criterion::default().configure_from_args().final_summary();
    }
    let tables: [(&str, &'static [usize], bool); 5] = [
        ("log", &[], false),
        ("primary key: integer", &[0], false),
        ("primary key: integer; changelog files", &[0], true),
        ("primary key: text and integer", &[8, 0], false),
        ("primary key: text and integer; changelog files", &[8, 0], true),
    ];
    let only: Vec<&String> = arguments.iter().filter(|argument| tables.iter().any(|(name, ..)| *name == **argument)).collect();
    for (name, key, changelog) in tables {
        let wanted = only.is_empty() || only.iter().any(|only| **only == name);
        match (wanted, given("--profile")) {
            (true, true) => profile(key, changelog, given("stage")),
            (true, false) => report(name, key, changelog),
            (false, _) => {}
        }
    }
}
