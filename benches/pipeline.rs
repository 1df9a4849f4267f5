//! Seconds on a core per million rows, beside the floor measured in the same run (architecture.md 6).
//!
//! The row is the 12-column one of the cluster kit (`Produce.java`): about 140 bytes, ZSTD-compressed record batches. Three tables: a log;
//! a primary key of one integer; one of a text and an integer (`pipeline/log.rs`). All steps take turns, the fastest turn of each counts.
//!
//! **Floor** = what nobody can do without (`pipeline/floor.rs`): checksum and decode; with a primary key sort and `take`; encode with
//! parquet's own `ArrowWriter`, zstd, and (*tuned*) the encodings that our files have, in the columns that a file has to have. With changelog files
//! all rows are taken and encoded, and the newest of each key once more.
//! **Write stage** = the same bytes, decoded, through the write stage, statistics and metadata included, on one thread.
//! **Round** = a whole round over all cores: a node in this process serves the log over the wire, the rows end in a committed snapshot on the
//! local disk. What the node's threads take is told apart.
//!
//! `cargo bench --bench pipeline` runs criterion and then the report; `-- --report [TABLE]` the report alone (`log`, `'primary key: integer'`, …); `-- --columns` what each column costs;
//! `-- --profile log|key|composite [stage]` rounds, or the write stage, over and over, for a profiler.
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
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_select::take::take_record_batch;
use bytes::Bytes;
use cluster::{Cluster, core_seconds};
use criterion::{Criterion, SamplingMode, Throughput, criterion_group};
use lakeward::fluss::record::Compression;
use lakeward::model::{Field, RoundId, RoundSummary};
use lakeward::paimon::{BinaryRow, TableSchema};
use lakeward::runtime::Runtime;
use lakeward::storage::Store;
use lakeward::write::{BucketTarget, BucketWriter, WriteContext, WriteOptions};
use log::{BATCH_ROWS, BUCKET, Changes, Log};

const ROWS: i64 = 500_000;
const TURNS: usize = 5;
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
        let (mut least, mut mine) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..TURNS {
            turn(&mut least, encode);
            turn(&mut mine, ours);
        }
        let nanos = |seconds: f64| seconds * 1e9 / per_row();
        println!("{:<10} {:>12.1} {:>12.1} {:>12} {:>12}", fields[0].name, nanos(least), nanos(mine), encode(), file.len());
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

/// Keeps the core seconds of the fastest turn: noise only ever adds.
fn turn<T>(fastest: &mut f64, work: impl FnOnce() -> T) -> T {
    let start = now();
    // Nanoseconds that this thread has been on a core; wall time where Linux does not tell.
    let seconds = || {
        let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
        let nanos = told.and_then(|text| text.split(' ').next()?.parse().ok());
        nanos.map_or_else(|| start.elapsed(), Duration::from_nanos).as_secs_f64()
    };
    let before = seconds();
    let done = black_box(work());
    *fastest = fastest.min(seconds() - before);
    done
}

fn line(name: &str, seconds: f64) {
    println!("  {name:<42} {:>7.3} s per million rows {:>10.0} rows/s", seconds * 1e6 / per_row(), per_row() / seconds);
}

/// Ours beside the floor: one kind of table.
fn report(name: &str, key: &'static [usize], changelog: bool) {
    let log = Log::new(key, ZSTD);
    let arrow = &log.schema.arrow;
    let options: &[(&str, &str)] = if changelog { &[("changelog-producer", "input")] } else { &[] };
    // What is to be encoded: the log's batches, or what sorting makes of them.
    let (mut every, mut newest) = (None, None);
    let mut files: Vec<Vec<RecordBatch>> = vec![log.rows().collect()];
    if !key.is_empty() {
        let (all, [by_key, of_key]) = floor::sort(arrow, key, &log.decoded);
        let cut = |rows: RecordBatch| {
            let count = rows.num_rows();
            (0..count).step_by(BATCH_ROWS).map(|from| rows.slice(from, BATCH_ROWS.min(count - from))).collect::<Vec<_>>()
        };
        let orders = if changelog { vec![&by_key, &of_key] } else { vec![&of_key] };
        files = orders.into_iter().map(|order| cut(floor::file_rows(&all, key, &log.decoded, order))).collect();
        (every, newest) = (changelog.then_some((all.clone(), by_key)), Some((all, of_key)));
    }
    let ours = write_stage(log.fields(), log.names(), options, log.decoded.iter().cloned());
    let (plain, tuned) = (floor::plain(), floor::tuned(ours.first().unwrap().clone()));
    let encode = |properties| files.iter().map(|rows| floor::encode(properties, rows.iter().cloned())).sum::<usize>();

    let mut cluster = Cluster::new(key, changelog);
    let [mut decode, mut sort, mut take, mut by_plain, mut by_tuned, mut stage] = [f64::INFINITY; 6];
    let (mut wall, mut round, mut summary) = (f64::INFINITY, [f64::INFINITY; 2], None);
    for _ in 0..TURNS {
        turn(&mut decode, || log.decode().count());
        if let Some((all, of_key)) = &newest {
            turn(&mut sort, || floor::sort(arrow, key, &log.decoded));
            // By key once, then picked: what changelog files need beside it is a filter.
            let (all, order) = every.as_ref().map_or((all, of_key), |(all, by_key)| (all, by_key));
            turn(&mut take, || take_record_batch(all, order).unwrap());
        }
        turn(&mut by_plain, || encode(&plain));
        turn(&mut by_tuned, || encode(&tuned));
        turn(&mut stage, || write_stage(log.fields(), log.names(), options, log.decode()));
        cluster.fill(ROWS);
        let (start, before) = (now(), core_seconds());
        summary = Some(cluster.round());
        wall = wall.min(start.elapsed().as_secs_f64());
        let took = core_seconds().iter().zip(before).map(|(after, before)| after - before).collect::<Vec<_>>();
        if took.iter().sum::<f64>() < round.iter().sum() {
            round.copy_from_slice(&took);
        }
    }
    if key.is_empty() {
        (sort, take) = (0.0, 0.0);
    }

    println!("\n{name}");
    line("decode", decode);
    if !key.is_empty() {
        line("sort", sort);
        line("take", take);
    }
    line("encode, ArrowWriter as it comes", by_plain);
    line("encode, ArrowWriter tuned", by_tuned);
    let least = decode + sort + take;
    let (plain_floor, floor) = (least + by_plain, least + by_tuned);
    line("floor", floor);
    line("write stage, decode included", stage);
    let [node, service] = round;
    line("round, without the node's threads", service);
    line("round, all threads", node + service);
    line("round, wall", wall);
    let bytes = ours.iter().map(Bytes::len).sum::<usize>();
    println!(
        "  bytes: log {}, files {bytes}; ArrowWriter tuned {}, as it comes {}",
        log.bytes.len(),
        encode(&tuned),
        encode(&plain)
    );
    if let Some(RoundSummary { plan_ms, write_ms, commit_ms, .. }) = summary {
        println!("  last round: plan {plan_ms} ms, read and write {write_ms} ms, commit {commit_ms} ms");
    }
    let ratios = |floor: f64| [stage, service, node + service].map(|ours| format!("{:.2}", floor / ours)).join(", ");
    println!(
        "  floor ÷ write stage, round without node, round: {}; with encodings as they come {}",
        ratios(floor),
        ratios(plain_floor)
    );
}

/// One kind of work over and over.
fn profile(table: &str, stage: bool) {
    let key: &'static [usize] = match table {
        "key" => &[0],
        "composite" => &[8, 0],
        _ => &[],
    };
    let changelog = !key.is_empty();
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
    if let Some(place) = arguments.iter().position(|argument| argument == "--profile") {
        return profile(arguments.get(place + 1).map_or("log", String::as_str), given("stage"));
    }
    if !given("--report") {
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
        if only.is_empty() || only.iter().any(|only| **only == name) {
            report(name, key, changelog);
        }
    }
}
