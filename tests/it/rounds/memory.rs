//! What a process takes: resident memory, file handles, temporary files. Told by the child's own files in `/proc`.
//!
//! Figures for docs/performance.md: `cargo test --test it rounds::memory -- --include-ignored --nocapture`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use lakeward::commit::{self, CommitContext, CommitOutcome};
use lakeward::lake::Warehouse;
use lakeward::mapping;
use lakeward::model::{BucketId, BucketKey, LakeOffsets, TableBucket, TieringEpoch};
use lakeward::round::{Job, Limits};
use lakeward::source::memory::{Faults, MemoryCluster, MemoryService};
use lakeward::storage;

use super::binary::{Running, json};
use super::*;

const MIB: u64 = 1 << 20;

/// A figure of a process's status file, in bytes.
fn status(id: u32, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn tell(what: &str) {
    // Not captured where `--nocapture` is given, unlike what a thread of its own prints.
    writeln!(std::io::stderr(), "{what}").unwrap();
}

/// `id` (the bucket key), a partition column, numbers and texts.
fn wide(key: bool, buckets: i32) -> TableDescriptor {
    let mut fields = vec![field("id", TypeKind::BigInt, false), field("day", TypeKind::String, false)];
    fields.extend((0..4).map(|column| field(&format!("n{column}"), TypeKind::BigInt, true)));
    fields.extend((0..4).map(|column| field(&format!("text{column}"), TypeKind::String, true)));
    let mut table = descriptor(fields, &["day"], &["id"], buckets);
    if key {
        table.schema.primary_key = vec!["id".into(), "day".into()];
    }
    table
}

/// `ids` on each of `days`, as rows of about 1 KB; texts that compress to a third or so.
fn wave(schema: &arrow_schema::SchemaRef, days: i64, ids: Range<i64>) -> RecordBatch {
    let mut random = fastrand::Rng::with_seed(ids.start.unsigned_abs());
    let words: String = (0..1 << 20).map(|_| if random.u8(..6) == 0 { ' ' } else { random.char('a'..'l') }).collect();
    let days: Vec<String> = (0..days).map(|day| format!("d{day}")).collect();
    let all = days.iter().flat_map(|day| ids.clone().map(move |id| (id, day)));
    let columns = schema.fields().iter().map(|field| -> ArrayRef {
        match field.name().as_str() {
            "id" => Arc::new(Int64Array::from_iter_values(all.clone().map(|(id, _)| id))),
            "day" => Arc::new(StringArray::from_iter_values(all.clone().map(|(_, day)| day))),
            name if name.starts_with('n') => Arc::new(Int64Array::from_iter_values(all.clone().map(|(id, _)| id * 7))),
            _ => Arc::new(StringArray::from_iter_values(all.clone().map(|_| {
                let at = random.usize(..words.len() - 250);
                &words[at..at + 250]
            }))),
        }
    });
    RecordBatch::try_new(Arc::clone(schema), columns.collect()).unwrap()
}

/// What is written into a table, and what a daemon may take for it.
struct Load {
    key: bool,
    days: i64,
    buckets: i32,
    /// About, in each bucket of each day and wave.
    rows: i64,
    /// Waves before the daemon starts, and while it runs.
    waves: (i64, i64),
    limit: &'static str,
}

/// Runs a daemon until it has tiered everything, some of which comes while it does; returns its peak resident memory.
async fn peak(load: &Load) -> u64 {
    let stage = Stage::new().await;
    let path = stage.table("wide", &wide(load.key, load.buckets)).await;
    let mut writer = Writer::open(&stage.cluster, &path, WriterOptions::default()).await.unwrap();
    let per_wave = load.rows * i64::from(load.buckets);
    let mut add = async |wave_number: i64| {
        let (first, schema) = (wave_number * per_wave, writer.schema());
        // A day at a time where each bucket is made with its state: servers answer in time then.
        let rows = wave(&schema, load.days, first..first + per_wave);
        let piece = if load.key { rows.num_rows() / usize::try_from(load.days).unwrap() } else { rows.num_rows() };
        for at in (0..rows.num_rows()).step_by(piece) {
            writer.append(&rows.slice(at, piece)).await.map_err(|error| error.chain()).unwrap();
        }
    };
    for wave_number in 0..load.waves.0 {
        add(wave_number).await;
    }
    let log = stage.dir.path().join("daemon.log");
    let limit = format!("memory.limit={}", load.limit);
    let mut running = Running::logging(&["run", "--server", &stage.address(), "--json", "--set", &limit], &log);
    let mut rounds = vec![json(&running.line().expect("it runs")).remove(0)];
    for wave_number in load.waves.0..load.waves.0 + load.waves.1 {
        add(wave_number).await;
    }
    let rows = u64::try_from((load.waves.0 + load.waves.1) * per_wave * load.days).unwrap();
    let (rounds, peak) = tokio::task::spawn_blocking(move || {
        let rows_of = |rounds: &[serde_json::Value]| rounds.iter().map(|round| round["rows"].as_u64().unwrap()).sum::<u64>();
        while rows_of(&rounds) < rows {
            rounds.push(json(&running.line().expect("it runs")).remove(0));
        }
        assert_eq!(rows_of(&rounds), rows, "each row once");
        (rounds, status(running.id(), "VmHWM"))
    })
    .await
    .unwrap();
    // A deadline may have cut a round.
    let splits: u64 = rounds.iter().map(|round| round["splits"].as_u64().unwrap()).sum();
    assert!(splits >= u64::try_from(load.days * i64::from(load.buckets)).unwrap(), "{splits}");
    assert!(rounds.len() > 1, "rows came while it worked");
    let faults = std::fs::read_to_string(&log).unwrap();
    assert!(!faults.contains("ERROR") && !faults.contains("WARN"), "{faults}");
    let kind = if load.key { "primary-key" } else { "log" };
    let buckets = load.days * i64::from(load.buckets);
    tell(&format!("{kind} table, {buckets} buckets, {rows} rows, memory.limit {}: peak {} MiB", load.limit, peak / MIB));
    peak
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_buckets_of_fifty_partitions_stay_within_twice_their_limit() {
    let load = Load { key: false, days: 50, buckets: 40, rows: 10, waves: (2, 2), limit: "128MiB" };
    let peak = peak(&load).await;
    assert!(peak < 256 * MIB, "{} MiB", peak / MIB);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_of_a_primary_key_table_stay_within_twice_their_limit() {
    let load = Load { key: true, days: 10, buckets: 20, rows: 60, waves: (2, 2), limit: "128MiB" };
    let peak = peak(&load).await;
    assert!(peak < 256 * MIB, "{} MiB", peak / MIB);
}

/// The embedded node makes each bucket's state with some fsyncs, and has 256 of 2,000 open: 45 s on cores.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: cargo test --test it two_thousand_buckets_of_a_primary -- --ignored --nocapture"]
async fn two_thousand_buckets_of_a_primary_key_table_stay_within_twice_their_limit() {
    let load = Load { key: true, days: 50, buckets: 40, rows: 12, waves: (2, 2), limit: "128MiB" };
    let peak = peak(&load).await;
    assert!(peak < 256 * MIB, "{} MiB", peak / MIB);
}

/// Buckets that hold far more than there is memory, so that all of it is in use all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a minute: cargo test --test it full_buckets_stay -- --ignored --nocapture"]
async fn full_buckets_stay_within_their_limit_and_what_a_process_takes_anyway() {
    for (key, limit, bytes) in [(false, "64MiB", 64), (true, "64MiB", 64), (false, "256MiB", 256), (true, "256MiB", 256)] {
        let load = Load { key, days: 1, buckets: 32, rows: 6000, waves: (2, 1), limit };
        let peak = peak(&load).await;
        assert!(peak < (bytes + 96) * MIB, "key {key}, {limit}: {} MiB", peak / MIB);
    }
}

/// A table of `partitions` times `buckets` buckets that the lake has all been told of, none with rows, in a cluster in this process.
async fn known_buckets(partitions: i64, buckets: i32, folder: &TempDir) -> (RoundContext, TablePath, TableBucket, MemoryCluster) {
    let runtime = Runtime::system(2, 64 << 20).unwrap();
    let cluster = MemoryCluster::new(runtime.clone());
    let path = TablePath::new("demo", "many");
    let mut table = orders();
    table.bucket_count = Some(buckets);
    let warehouse = folder.path().display().to_string();
    for (key, value) in [("table.datalake.format", "paimon"), ("table.datalake.paimon.warehouse", &warehouse)] {
        table.properties.insert(key.into(), value.into());
    }
    let table = Arc::new(cluster.create_table(&path, &table).unwrap());
    let store = storage::open(&warehouse, &storage::StoreOptions::default()).unwrap();
    let made = Warehouse::new(store, runtime.clone()).create_table("demo", "many", &mapping::lake_schema(&table).unwrap()).await;
    assert!(made.unwrap());
    let mut offsets = LakeOffsets::default();
    for day in 0..partitions {
        let partition = cluster.create_partition(&path, &[&format!("d{day}")]).unwrap();
        let keys = (0..buckets).map(|bucket| BucketKey { partition: Some(partition.id), bucket: BucketId(bucket) });
        offsets.0.extend(keys.map(|key| (key, 0)));
    }
    let first = offsets.0.keys().next().copied().unwrap();
    let service: Arc<MemoryService> = Arc::new(cluster.service(Faults::default()));
    let rounds =
        RoundContext { scan: Arc::<MemoryService>::clone(&service), ledger: service, runtime, options: round::Options::default() };
    let (lake, _) = round::open_lake(&table, &rounds.runtime).await.unwrap();
    let protocol = CommitContext {
        table: Arc::clone(&table),
        lake,
        ledger: Arc::clone(&rounds.ledger),
        lease: None,
        scan: Arc::clone(&rounds.scan),
        runtime: rounds.runtime.clone(),
        options: commit::Options::default(),
    };
    let ground = commit::ground(&protocol).await.unwrap();
    let said = commit::say(&protocol, &ground, offsets).await;
    assert!(matches!(said, CommitOutcome::Committed { .. }), "{said:?}");
    (rounds, path, TableBucket { table: table.id, partition: first.partition, bucket: first.bucket }, cluster)
}

/// In a process of its own, for what the others take must not count: how much a round adds to the resident memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the test below"]
async fn alone_rounds_of_a_hundred_thousand_known_buckets() {
    const PER_BUCKET_MAX: u64 = 600;
    let folder = tempfile::tempdir().unwrap();
    let (rounds, path, bucket, cluster) = known_buckets(100, 1000, &folder).await;
    let id = std::process::id();
    let job = Job { path, table: bucket.table, epoch: TieringEpoch(1), lease: None, limits: Limits::default() };
    // Once, so that what the process takes anyway is there.
    assert_eq!(round::run(&rounds, &job).await.unwrap().outcome, RoundOutcome::Idle);
    for new in [0, 10] {
        if new > 0 {
            let table = rounds.scan.table_info(&job.path).await.unwrap();
            let schema = lakeward::fluss::record::arrow_schema(&table.schema).unwrap();
            let text = |text: &str| -> ArrayRef { Arc::new(StringArray::from_iter_values((0..new).map(|_| text))) };
            let rows = RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from_iter_values(0..new)), text("w"), text("d0")]);
            cluster.append(bucket, SchemaId(1), &rows.unwrap(), None).unwrap();
        }
        let before = status(id, "VmRSS");
        // The peak starts anew.
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        let summary = round::run(&rounds, &job).await.unwrap();
        assert_eq!((summary.rows, summary.splits), (u64::try_from(new).unwrap(), u64::from(new > 0)));
        let (peak, after) = (status(id, "VmHWM").saturating_sub(before), status(id, "VmRSS").saturating_sub(before));
        tell(&format!("100,000 known buckets, {new} rows: a round takes {} KiB, keeps {} KiB", peak / 1024, after / 1024));
        assert!(peak < PER_BUCKET_MAX * 100_000, "{} bytes per bucket", peak / 100_000);
    }
}

#[test]
fn a_hundred_thousand_known_buckets_cost_bookkeeping_only() {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "rounds::memory::alone_rounds_of_a_hundred_thousand_known_buckets", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let said = [child.stdout, child.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
    said.lines().filter(|line| line.contains("known buckets, ")).for_each(tell);
}

/// A row of 64 MB is larger than all the memory for rows; it goes in alone, and comes out as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_larger_than_the_memory_for_rows_passes_alone() {
    const BYTES: usize = 64_000_000;
    let stage = Stage::new().await;
    let mut random = fastrand::Rng::with_seed(3);
    let block: String = (0..1_000_000).map(|_| random.alphanumeric()).collect();
    let huge = block.repeat(BYTES / block.len());
    for key in [false, true] {
        let mut table = events();
        table.bucket_count = Some(1);
        if key {
            table.schema.primary_key = vec!["id".into()];
        }
        let path = stage.table(if key { "keyed" } else { "plain" }, &table).await;
        let mut writer = Writer::open(&stage.cluster, &path, WriterOptions::default()).await.unwrap();
        let schema = writer.schema();
        for (id, text) in [(0, "small"), (1, huge.as_str()), (2, "small")] {
            let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(vec![id])), Arc::new(StringArray::from(vec![text]))];
            let row = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
            writer.append(&row).await.map_err(|error| error.chain()).unwrap();
        }
    }
    let address = stage.address();
    let args = ["run", "--once", "--server", &address, "--json", "--set", "memory.limit=64MiB"];
    let ended = binary::run(&args, None).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for name in ["plain", "keyed"] {
        let path = TablePath::new("demo", name);
        let files = stage.files(&path).await;
        let mut rows: Vec<(i64, bool)> = Vec::new();
        for file in &files {
            let words = file.rows.column_by_name("words").unwrap().as_string::<i32>().clone();
            rows.extend(
                file.ids().into_iter().zip(0..).map(|(id, row)| (id, words.value(row) == if id == 1 { &huge } else { "small" })),
            );
        }
        rows.sort_unstable();
        assert_eq!(rows, [(0, true), (1, true), (2, true)], "{name}");
    }
}

/// What a process has open, by what it is, and the files in `folder` that are none of a lake.
fn held(id: u32, folder: &Path) -> (BTreeMap<String, usize>, u64) {
    let mut open = BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{id}/fd")).unwrap().flatten() {
        // It may be closed meanwhile.
        if let Ok(to) = std::fs::read_link(entry.path()) {
            let to = to.display().to_string();
            *open.entry(to.split(':').next().unwrap_or_default().to_owned()).or_default() += 1;
        }
    }
    let mut bytes = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_dir() {
                folders.push(entry.path());
            } else {
                let name = entry.file_name().display().to_string();
                let of_lake = ["data-", "manifest", "snapshot-", "schema-", "LATEST", "EARLIEST", "consumer-"];
                bytes += if of_lake.iter().any(|start| name.starts_with(start)) && !name.contains('#') { 0 } else { meta.len() };
            }
        }
    }
    (open, bytes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_handles_and_temporary_bytes_are_flat_over_five_hundred_rounds() {
    const TABLES: usize = 25;
    let stage = Stage::new().await;
    let mut writers = BTreeMap::new();
    for number in 0..TABLES {
        let mut table = events();
        table.properties.insert("table.datalake.freshness".into(), "200ms".into());
        let name = format!("t{number}");
        let path = stage.table(&name, &table).await;
        writers.insert(name, (Writer::open(&stage.cluster, &path, WriterOptions::default()).await.unwrap(), 0));
    }
    let warehouse = PathBuf::from(stage.node.as_ref().unwrap().warehouse().trim_start_matches("file:"));
    let temporary = stage.dir.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let mut running =
        Running::start_in(&["run", "--server", &stage.address(), "--json", "--set", "poll.interval=100ms"], &temporary);
    let id = running.id();
    let (sender, mut done) = tokio::sync::mpsc::unbounded_channel();
    for table in writers.keys() {
        sender.send(table.clone()).unwrap();
    }
    let reader = std::thread::spawn(move || {
        while let Some(line) = running.line() {
            let round = json(&line).remove(0);
            let table = round["table"]["table"].as_str().unwrap().to_owned();
            if round["outcome"]["committed"].is_object() && sender.send(table).is_err() {
                break;
            }
        }
    });
    // The least of some: rounds that are at work at a moment have files open, and some hidden ones.
    let look = || {
        let looks = (0..20).map(|_| {
            let ((open, left), (_, more)) = (held(id, &warehouse), held(id, &temporary));
            (open.values().sum::<usize>(), left + more, open)
        });
        let (mut handles, mut left, mut open) = (usize::MAX, u64::MAX, BTreeMap::new());
        for look in looks {
            left = left.min(look.1);
            if look.0 < handles {
                (handles, open) = (look.0, look.2);
            }
        }
        (handles, left, open, status(id, "VmRSS"))
    };
    // New rows for a table as soon as its round has committed, so that the next one, 200 ms later, finds some: after one that finds none a table rests.
    let (mut first, mut rounds) = (None, 0);
    while rounds < 500 {
        let table = done.recv().await.expect("it runs");
        let (writer, next) = writers.get_mut(&table).unwrap();
        let rows = rows(writer, *next..*next + 10, "");
        writer.append(&rows).await.unwrap();
        // The first of each table tells of no round.
        rounds += usize::from(*next > 0);
        *next += 10;
        if rounds == 50 {
            first.get_or_insert_with(look);
        }
    }
    let last = look();
    let first = first.unwrap();
    for (round, (handles, left, open, resident)) in [(50, &first), (500, &last)] {
        tell(&format!("round {round}: {handles} open ({open:?}), {left} bytes left, {} MiB", resident / MIB));
    }
    // A connection may have come since.
    assert!(last.0 <= first.0 + 4, "{first:?} {last:?}");
    assert!(last.1 <= first.1 + 4096, "{first:?} {last:?}");
    let killed = std::process::Command::new("kill").args(["-KILL", &id.to_string()]).status().unwrap();
    assert!(killed.success());
    reader.join().unwrap();
}
