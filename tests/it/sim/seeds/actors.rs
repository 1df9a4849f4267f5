//! Who acts on the stage: services whose processes die, backfills, a Java job, users, a compactor, an expirer, operators.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray, new_null_array};
use async_trait::async_trait;
use lakeward::commit::{COMMIT_IDENTIFIER, COMMIT_USER};
use lakeward::daemon::backfill::{self, Backfill};
use lakeward::daemon::board::Board;
use lakeward::daemon::{self, Service};
use lakeward::error::{Kind, Result};
use lakeward::lake::{CommitFacts, LakeTable, Published};
use lakeward::mapping;
use lakeward::model::{BucketLayout, LakeOffsets, Partition, Schema, SchemaId, SnapshotId, TableBucket, TableInfo, TablePath};
use lakeward::paimon::{BinaryRow, EntryKind, ManifestEntry, path};
use lakeward::round::{self, RoundContext};
use lakeward::runtime::{FailPoints, Rng, Runtime};
use lakeward::source::memory;
use lakeward::source::{FetchRequest, FetchedBucket, LedgerRecord, StateRequest, StateScan, TableScan};
use lakeward::storage::{self, Fault};
use parquet::arrow::ArrowWriter;
use tokio_util::sync::CancellationToken;

use super::super::service::entry;
use super::super::world::ROOT;
use super::keyed;
use super::stage::{Stage, pick};
use crate::keys::Row;

/// A process: its own way to lake and coordinator, through its own faults.
pub(crate) struct Process {
    stage: Stage,
    rng: Rng,
    scan: Arc<Seen>,
    ledger: Arc<memory::MemoryService>,
    deaf: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    interrupt: Arc<Mutex<Option<Interrupt>>>,
    /// Told when it has died: nothing of it may run any more.
    pub(crate) dead: CancellationToken,
}

impl Process {
    /// `dies` = at which of its calls, done or not.
    pub(crate) fn new(stage: &Stage, who: &str, dies: Option<u64>) -> Self {
        let (rng, dead, deaf) = (stage.rng(who), CancellationToken::new(), Arc::new(AtomicBool::new(false)));
        let (calls, interrupt) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(None)));
        let death = Death {
            dies,
            calls: Arc::clone(&calls),
            interrupt: Arc::clone(&interrupt),
            dead: dead.clone(),
            stage: stage.clone(),
            rng: rng.clone(),
        };
        let lake = {
            let (stage, rng, death) = (stage.clone(), rng.clone(), death.clone());
            move |act: &str, path: &str| lake_fault(&stage, &rng, &death, act, path)
        };
        let coordinator = {
            let (stage, rng, deaf) = (stage.clone(), rng.clone(), Arc::clone(&deaf));
            move |act: &str, _: &str| coordinator_fault(&stage, &rng, &death, &deaf, act)
        };
        let store = stage.store.with_faults(storage::Faults::scripted(lake).yielding(rng.clone()));
        let service = Arc::new(stage.cluster.service(memory::Faults::scripted(coordinator)));
        let scan = Seen { inner: Arc::clone(&service), warehouse: stage.warehouse(who, store) };
        Self { stage: stage.clone(), rng, scan: Arc::new(scan), ledger: service, deaf, calls, interrupt, dead }
    }

    /// Calls so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Does `act` right before call `at`, which goes on after `pause`.
    pub(crate) fn interrupt(&self, at: u64, pause: Duration, act: impl FnOnce() + Send + 'static) {
        *self.interrupt.lock().unwrap() = Some((at, pause, Box::new(act)));
    }

    pub(crate) fn rounds(&self) -> RoundContext {
        let mut options = round::Options::default();
        options.commit.off = self.stage.off.commit;
        options.off = self.stage.off.round;
        // One batch per fetch, so that rounds can end anywhere.
        options.read.bucket_bytes = 1;
        // And ranges side by side, however short the log.
        (options.read.ahead, options.read.range_rows) = (Some(6), 0);
        let runtime = Runtime {
            fail: FailPoints::default(),
            rng: self.rng.clone(),
            shutdown: CancellationToken::new(),
            ..self.stage.runtime.clone()
        };
        RoundContext { scan: Arc::clone(&self.scan) as _, ledger: Arc::clone(&self.ledger) as _, runtime, options }
    }

    /// Runs until it dies.
    pub(crate) async fn daemon(&self, board: &Board) {
        let service = Service { queue: Arc::clone(&self.ledger) as _, rounds: self.rounds(), options: daemon::Options::default() };
        let stage = self.stage.clone();
        let mut on_round = |_: &lakeward::model::RoundSummary| stage.count("round");
        tokio::select! {
            _ = daemon::run(&service, CancellationToken::new(), board, &mut on_round) => {}
            () = self.dead.cancelled() => {}
        }
    }
}

/// At which call, for how long, what.
type Interrupt = (u64, Duration, Box<dyn FnOnce() + Send>);

#[derive(Clone)]
struct Death {
    dies: Option<u64>,
    calls: Arc<AtomicU64>,
    interrupt: Arc<Mutex<Option<Interrupt>>>,
    dead: CancellationToken,
    stage: Stage,
    rng: Rng,
}

enum Dying {
    No,
    /// Its call is not done.
    Before,
    /// Its call is done, and it never learns.
    After,
    /// It lives; something happens before its call.
    Later(Duration),
}

impl Death {
    fn look(&self) -> Dying {
        if self.dead.is_cancelled() {
            return Dying::Before;
        }
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let interrupt = self.interrupt.lock().unwrap().take_if(|(at, _, _)| *at == call);
        if let Some((_, pause, act)) = interrupt {
            act();
            return Dying::Later(pause);
        }
        if self.stage.is_calm() || self.dies != Some(call) {
            return Dying::No;
        }
        self.dead.cancel();
        self.stage.count("crash");
        if self.rng.below(2) == 0 { Dying::Before } else { Dying::After }
    }
}

fn one_in(rng: &Rng, rate: u64) -> bool {
    rate > 0 && rng.below(rate) == 0
}

fn slow(stage: &Stage, rng: &Rng) -> Option<Duration> {
    one_in(rng, stage.plan.slow).then(|| {
        stage.count("slow call");
        Duration::from_millis(rng.below(if rng.below(6) == 0 { 200_000 } else { 5_000 }))
    })
}

fn lake_fault(stage: &Stage, rng: &Rng, death: &Death, act: &str, path: &str) -> Option<Fault> {
    match death.look() {
        Dying::No => {}
        Dying::Before => return Some(Fault::Hang),
        Dying::After => return Some(Fault::After),
        Dying::Later(pause) => return Some(Fault::Slow(pause)),
    }
    if stage.is_calm() {
        return None;
    }
    let plan = stage.plan;
    if act == "create" && path.contains("/snapshot-") && one_in(rng, plan.late_puts) {
        return Some(Fault::Late(land_late(stage, rng)));
    }
    if act == "list" && one_in(rng, plan.stale_lists) {
        stage.count("stale list");
        return Some(Fault::Stale(Duration::from_millis(rng.below(3_000))));
    }
    if one_in(rng, plan.lake_faults) {
        let before = rng.below(2) == 0;
        stage.count(if before { "lake call failed" } else { "lake reply lost" });
        return Some(if before { Fault::Before } else { Fault::After });
    }
    slow(stage, rng).map(Fault::Slow)
}

fn coordinator_fault(stage: &Stage, rng: &Rng, death: &Death, deaf: &AtomicBool, act: &str) -> Option<memory::Fault> {
    match death.look() {
        Dying::No => {}
        Dying::Before => return Some(memory::Fault::Hang),
        Dying::After => return Some(memory::Fault::After),
        Dying::Later(pause) => return Some(memory::Fault::Slow(pause)),
    }
    if stage.is_calm() {
        return None;
    }
    if act == "heartbeat" && deaf.load(Ordering::Relaxed) {
        return Some(memory::Fault::Before);
    }
    // Records are few, and matter most.
    let rate = stage.plan.coordinator_faults;
    if one_in(rng, if act == "record" { rate.div_ceil(8) } else { rate }) {
        let (what, fault) = match rng.below(if act == "record" { 4 } else { 2 }) {
            0 => ("coordinator call failed", memory::Fault::Before),
            1 => ("coordinator reply lost", memory::Fault::After),
            2 => ("record lost after OK", memory::Fault::Lost),
            _ => ("record late", memory::Fault::Late(later(stage, rng, 200))),
        };
        stage.count(what);
        return Some(fault);
    }
    slow(stage, rng).map(memory::Fault::Slow)
}

/// A token that is cancelled within so many seconds.
fn later(stage: &Stage, rng: &Rng, seconds: u64) -> CancellationToken {
    let token = CancellationToken::new();
    let (release, stage, wait) = (token.clone(), stage.clone(), Duration::from_millis(rng.below(seconds * 1000)));
    tokio::spawn(async move {
        stage.sleep(wait).await;
        release.cancel();
    });
    token
}

/// The same for a PUT, which may also never land; until it has landed or died nothing expires.
fn land_late(stage: &Stage, rng: &Rng) -> CancellationToken {
    let token = CancellationToken::new();
    let (release, stage) = (token.clone(), stage.clone());
    let (wait, lands) = (Duration::from_millis(rng.below(120_000)), rng.below(4) != 0);
    stage.count(if lands { "late PUT" } else { "lost PUT" });
    stage.late_puts.fetch_add(1, Ordering::Relaxed);
    tokio::spawn(async move {
        stage.sleep(wait).await;
        if lands {
            release.cancel();
        }
        stage.sleep(Duration::from_millis(1)).await;
        stage.late_puts.fetch_sub(1, Ordering::Relaxed);
    });
    token
}

/// Tables whose warehouse is seen through this process's faults.
struct Seen {
    inner: Arc<memory::MemoryService>,
    warehouse: String,
}

#[async_trait]
impl TableScan for Seen {
    async fn table_info(&self, path: &TablePath) -> Result<TableInfo> {
        let mut table = self.inner.table_info(path).await?;
        table.properties.insert("table.datalake.paimon.warehouse".into(), self.warehouse.clone());
        Ok(table)
    }
    async fn schema(&self, path: &TablePath, id: SchemaId) -> Result<Arc<Schema>> {
        self.inner.schema(path, id).await
    }
    async fn partitions(&self, table: &TableInfo) -> Result<Vec<Partition>> {
        self.inner.partitions(table).await
    }
    async fn end_offsets(&self, table: &TableInfo, of: Option<&Partition>, layout: BucketLayout) -> Result<Option<Vec<i64>>> {
        self.inner.end_offsets(table, of, layout).await
    }
    async fn start_offsets(&self, table: &TableInfo, of: Option<&Partition>, layout: BucketLayout) -> Result<Option<Vec<i64>>> {
        self.inner.start_offsets(table, of, layout).await
    }
    async fn lanes(&self, table: &TableInfo, buckets: &[TableBucket]) -> Result<Vec<Vec<TableBucket>>> {
        self.inner.lanes(table, buckets).await
    }
    async fn fetch(&self, request: FetchRequest) -> Result<Vec<FetchedBucket>> {
        self.inner.fetch(request).await
    }
    async fn remote_bytes(&self, url: &str, start: u64, end: u64) -> Result<Option<bytes::Bytes>> {
        self.inner.remote_bytes(url, start, end).await
    }
    async fn serves_states(&self) -> Result<bool> {
        self.inner.serves_states().await
    }
    async fn open_state(&self, request: StateRequest) -> Result<Box<dyn StateScan>> {
        self.inner.open_state(request).await
    }
    fn forget(&self, path: &TablePath) {
        self.inner.forget(path);
    }
}

/// A daemon: one process after the other, each but the last dies at some call.
pub(crate) async fn daemon(stage: Stage, number: u64, crashes: u64) {
    let rng = stage.rng(&format!("daemon {number}"));
    for life in 0..=crashes {
        // Most calls are heartbeats and looks at an idle table; a round makes some dozens.
        let dies = (life < crashes).then(|| rng.below(if rng.below(2) == 0 { 60 } else { 400 }));
        let process = Process::new(&stage, &format!("daemon {number}.{life}"), dies);
        let board = Board::new(4, stage.runtime.clock.now_ms());
        let watched = async {
            loop {
                stage.sleep(Duration::from_secs(1)).await;
                note_held(&stage, &board);
            }
        };
        let unheard = async {
            for _ in 0..stage.plan.deaf {
                stage.sleep(Duration::from_millis(rng.below(150_000))).await;
                process.deaf.store(true, Ordering::Relaxed);
                stage.count("heartbeats unheard");
                stage.sleep(Duration::from_millis(90_000 + rng.below(90_000))).await;
                process.deaf.store(false, Ordering::Relaxed);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = process.daemon(&board) => {}
            () = watched => {}
            () = unheard => {}
        }
        stage.sleep(Duration::from_millis(rng.below(20_000))).await;
    }
}

fn note_held(stage: &Stage, board: &Board) {
    for table in board.tables(stage.runtime.clock.now_ms()) {
        if table.state == daemon::board::TableState::Held
            && let Some(reason) = table.reason
        {
            let mut held = stage.held.lock().unwrap();
            if held.last() != Some(&reason) {
                held.push(reason);
            }
        }
    }
}

/// Backfills, one after the other, some killed.
pub(crate) async fn backfills(stage: Stage) {
    let rng = stage.rng("backfills");
    for number in 0..stage.plan.backfills {
        stage.sleep(Duration::from_millis(rng.below(60_000))).await;
        let dies = (rng.below(3) == 0).then(|| rng.below(150));
        let process = Process::new(&stage, &format!("backfill {number}"), dies);
        let options = backfill::Options {
            bytes_max: if rng.below(2) == 0 { 1 } else { 1 << 20 },
            patience: Duration::from_secs(300),
            ..backfill::Options::default()
        };
        let job = Backfill::new(process.rounds(), stage.path.clone(), vec![], options, CancellationToken::new());
        tokio::select! {
            ended = job.run() => {
                stage.count("backfill");
                if let Err(error) = ended
                    && matches!(error.kind(), Kind::Data | Kind::Internal)
                {
                    stage.held.lock().unwrap().push(error.chain());
                }
            }
            () = process.dead.cancelled() => {}
        }
    }
}

/// Does `act` so many times, with pauses of up to `pause`.
pub(crate) fn now_and_then<F: Future<Output = ()> + Send + 'static>(
    stage: &Stage,
    who: &'static str,
    times: u64,
    pause: Duration,
    act: impl Fn(Stage, Rng) -> F + Send + 'static,
) -> tokio::task::JoinHandle<()> {
    let (stage, rng) = (stage.clone(), stage.rng(who));
    tokio::spawn(async move {
        for _ in 0..times {
            let wait = rng.below(u64::try_from(pause.as_millis()).unwrap());
            stage.sleep(Duration::from_millis(wait)).await;
            act(stage.clone(), rng.clone()).await;
        }
    })
}

fn facts(stage: &Stage, lake: &LakeTable, user: &str, kind: &str) -> CommitFacts {
    CommitFacts {
        schema_id: lake.schema().id,
        user: user.into(),
        identifier: 1,
        kind: kind.into(),
        time_ms: stage.runtime.clock.now_ms(),
        properties: BTreeMap::new(),
    }
}

/// Commits what `entries` tells for the newest snapshot, by create-if-absent, until it wins. What it leaves behind when it loses is
/// taken away.
async fn commit<F: Future<Output = Option<Vec<ManifestEntry>>>>(
    stage: &Stage,
    rng: &Rng,
    facts: impl Fn(&LakeTable) -> CommitFacts,
    entries: impl Fn(LakeTable, Option<lakeward::paimon::Snapshot>) -> F,
) -> Option<i64> {
    loop {
        let lake = stage.lake().await;
        let newest = match lake.newest_snapshot_id().await.unwrap() {
            Some(id) => match lake.snapshot(id).await.unwrap() {
                Some(newest) => Some(newest),
                None => continue,
            },
            None => None,
        };
        let entries = entries(lake.clone(), newest.clone()).await?;
        let delta = lake.write_delta(entries, vec![]).await.unwrap();
        let staged = lake.stage(newest.as_ref(), &delta, false).await;
        stage.sleep(Duration::from_millis(rng.below(500))).await;
        if let Ok(staged) = staged {
            let snapshot = staged.snapshot(newest.as_ref(), facts(&lake));
            if lake.publish(&snapshot).await.unwrap() == Published::Created {
                return Some(snapshot.id);
            }
            lake.discard_staged(&staged).await.unwrap();
        }
        lake.discard_delta(&delta).await.unwrap();
    }
}

/// A user's commit: without rows, on primary-key tables of rows that are there.
pub(crate) async fn foreign(stage: Stage, rng: Rng) {
    let entries = |lake: LakeTable, newest: Option<lakeward::paimon::Snapshot>| {
        let (stage, rng) = (stage.clone(), rng.clone());
        async move {
            match newest {
                Some(newest) if stage.is_primary() => keyed::written_again(&stage, &rng, &lake, &newest).await,
                _ => Some(vec![]),
            }
        }
    };
    if commit(&stage, &rng, |lake| facts(&stage, lake, "somebody", "APPEND"), entries).await.is_some() {
        stage.count("foreign commit");
    }
}

/// A compactor that merges the files of one bucket of one partition.
pub(crate) async fn compact(stage: Stage, rng: Rng) {
    let committed = commit(
        &stage,
        &rng,
        |lake| facts(&stage, lake, "compactor", "COMPACT"),
        |lake, newest| {
            let (stage, rng) = (stage.clone(), rng.clone());
            async move { merged(&stage, &rng, &lake, &newest?).await }
        },
    )
    .await;
    if committed.is_some() {
        stage.count("compaction");
    }
}

async fn merged(stage: &Stage, rng: &Rng, lake: &LakeTable, newest: &lakeward::paimon::Snapshot) -> Option<Vec<ManifestEntry>> {
    if stage.is_primary() {
        return keyed::compacted(stage, rng, lake, newest).await;
    }
    // Expired meanwhile: nothing to do.
    let live = lake.live_entries(newest, None).await.ok()?;
    let mut groups: BTreeMap<(BinaryRow, i32), Vec<ManifestEntry>> = BTreeMap::new();
    for entry in live.into_iter().filter(|entry| entry.file.schema_id == lake.schema().id) {
        groups.entry((entry.partition.clone(), entry.bucket)).or_default().push(entry);
    }
    let groups: Vec<_> = groups.into_values().filter(|group| group.len() > 1).collect();
    let mut group = groups.get(pick(rng, groups.len().max(1)))?.clone();
    let mut batches = vec![];
    for entry in &group {
        let bytes = stage.store.get(&lake.object(&path::data_file(lake.schema(), entry).ok()?)).await.ok()??;
        let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(bytes).unwrap().build().unwrap();
        batches.extend(reader.map(|batch| batch.unwrap()));
    }
    let schema = batches.first()?.schema();
    // Files of other writers may name their columns' types differently; those stay apart.
    if batches.iter().any(|batch| batch.schema() != schema) {
        return None;
    }
    let mut bytes = vec![];
    let mut writer = ArrowWriter::try_new(&mut bytes, schema, None).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.close().unwrap();
    let mut merged = group[0].clone();
    merged.file.file_name = format!("data-{}-0.parquet", rng.uuid());
    merged.file.row_count = group.iter().map(|entry| entry.file.row_count).sum();
    merged.file.file_size = i64::try_from(bytes.len()).unwrap();
    merged.file.max_sequence_number = group.iter().map(|entry| entry.file.max_sequence_number).max()?;
    merged.file.file_source = Some(1);
    stage.store.put(&lake.object(&path::data_file(lake.schema(), &merged).ok()?), bytes.into()).await.unwrap();
    group.iter_mut().for_each(|entry| entry.kind = EntryKind::Delete);
    group.push(merged);
    Some(group)
}

/// Keeps the newest snapshot and whatever a consumer holds; decides first, deletes later.
pub(crate) async fn expire(stage: Stage, rng: Rng) {
    let lake = stage.lake().await;
    let ids = lake.snapshot_ids().await.unwrap();
    let Some(newest) = ids.last().copied() else { return };
    let held = lake.pins("").await.unwrap().into_iter().map(|pin| pin.next_snapshot).min().unwrap_or(i64::MAX);
    stage.sleep(Duration::from_millis(rng.below(3_000))).await;
    for id in ids.into_iter().filter(|id| *id < newest.min(held)) {
        if stage.late_puts.load(Ordering::Relaxed) > 0 {
            return;
        }
        stage.store.delete(&format!("{ROOT}/{}", path::snapshot(id))).await.unwrap();
        stage.count("snapshot expired");
        stage.sleep(Duration::from_millis(rng.below(200))).await;
    }
}

/// An operator rolls the lake table back by one or two snapshots.
pub(crate) async fn roll_back(stage: Stage, rng: Rng) {
    let lake = stage.lake().await;
    let ids = lake.snapshot_ids().await.unwrap();
    let steps = 1 + pick(&rng, 2);
    if ids.len() <= steps {
        return;
    }
    for id in ids.iter().rev().take(steps) {
        stage.store.delete(&format!("{ROOT}/{}", path::snapshot(*id))).await.unwrap();
    }
    lake.write_latest_hint(ids[ids.len() - 1 - steps]).await.unwrap();
    stage.count("rollback");
}

/// Drops the table and makes it again; the lake table stays, as in reality.
pub(crate) async fn recreate(stage: Stage, rng: Rng) {
    stage.cluster.drop_table(&stage.path).unwrap();
    // The path can't be taken by somebody else here; who looks meanwhile finds no table.
    let gone = Duration::from_millis(rng.below(2));
    stage.count("table dropped and made again");
    if gone > Duration::ZERO {
        tokio::task::yield_now().await;
    }
    stage.create_table().await;
}

/// A coordinator that starts again has forgotten every assignment; 0.9.1 keeps its epoch.
pub(crate) async fn restart(stage: Stage, rng: Rng) {
    let same = rng.below(2) == 0;
    stage.cluster.restart_coordinator(!same);
    stage.cluster.lose_states();
    stage.count(if same { "coordinator restart, epochs as before" } else { "coordinator restart" });
}

/// One round of a Java worker (F1.4, F3): no lease, no pin, no second look. It stands still between its look and its commit.
pub(crate) async fn java_round(stage: Stage, rng: Rng) {
    let table = stage.table().await;
    let known = stage.known().await;
    let (k, from) = known.map_or((0, LakeOffsets::default()), |entry| (entry.snapshot.0, entry.offsets));
    let lake = stage.lake().await;
    let newest = lake.newest_snapshot_id().await.unwrap().unwrap_or(0);
    for id in (k + 1..=newest).rev() {
        let Some(snapshot) = lake.snapshot(id).await.unwrap() else { continue };
        if snapshot.commit_user.starts_with(COMMIT_USER) {
            let offsets_path = snapshot.properties["fluss-offsets"].clone();
            stage.cluster.record_raw(&record(&table, id, offsets_path, LakeOffsets::default()), Some(-1));
            stage.count("Java recovery");
            return;
        }
    }
    let mut ends = LakeOffsets::default();
    let mut entries = vec![];
    let rows = stage.rows(table.id);
    for (bucket, end) in stage.ends(table.id) {
        let start = from.get(bucket).unwrap_or(0);
        let partitions = stage.partitions(&table).await;
        let Some(partition) = partitions.iter().find(|found| found.as_ref().map(|found| found.id) == bucket.partition) else {
            continue;
        };
        if end <= start {
            continue;
        }
        ends.0.insert(bucket.into(), end);
        if stage.is_primary() {
            entries.extend(java_keyed_file(&stage, &rng, &lake, &table, partition.as_ref(), bucket, start..end).await);
            continue;
        }
        let rows: Vec<(i64, i64)> = (start..end).filter_map(|offset| Some((offset, *rows.get(&(bucket, offset))?))).collect();
        if !rows.is_empty() {
            entries.push(java_file(&stage, &rng, &lake, &table, partition.as_ref(), bucket, &rows).await);
        }
    }
    if ends.is_empty() {
        return;
    }
    stage.sleep(Duration::from_millis(rng.below(if rng.below(2) == 0 { 1_000 } else { 30_000 }))).await;
    // The overlay over whatever is K by now (F3.2).
    let Ok(offsets_path) = stage.cluster.prepare_raw(table.id, &stage.path, &ends, false) else { return };
    let commit_facts = |lake: &LakeTable| CommitFacts {
        identifier: COMMIT_IDENTIFIER,
        properties: BTreeMap::from([("fluss-offsets".to_owned(), offsets_path.clone())]),
        ..facts(&stage, lake, COMMIT_USER, "APPEND")
    };
    let Some(id) = commit(&stage, &rng, commit_facts, |_, _| std::future::ready(Some(entries.clone()))).await else { return };
    stage.count("Java commit");
    stage.sleep(Duration::from_millis(rng.below(2_000))).await;
    // Absent: every other entry goes, and its file (F3.3).
    stage.cluster.record_raw(&record(&table, id, offsets_path, ends), None);
}

fn record(table: &TableInfo, id: i64, offsets_path: String, offsets: LakeOffsets) -> LedgerRecord {
    LedgerRecord {
        table: table.id,
        path: table.path.clone(),
        snapshot: SnapshotId(id),
        offsets_path,
        offsets,
        max_timestamps: BTreeMap::new(),
        earliest_to_keep: -1,
    }
}

/// The changes of a bucket, with the numbers that its writer takes when it begins.
async fn java_keyed_file(
    stage: &Stage,
    rng: &Rng,
    lake: &LakeTable,
    table: &TableInfo,
    partition: Option<&Partition>,
    source: TableBucket,
    offsets: std::ops::Range<i64>,
) -> Option<ManifestEntry> {
    let newest = match lake.newest_snapshot_id().await.unwrap() {
        Some(id) => lake.snapshot(id).await.unwrap(),
        None => None,
    };
    let row = mapping::partition_row(partition, table, lake.schema()).unwrap();
    let total = BucketLayout::of(table, partition).unwrap().count;
    let place = keyed::Place { partition: row, bucket: source.bucket.0, total };
    let first = keyed::greatest(lake, newest.as_ref(), &place).await + 1;
    let changes = stage.keys(table.id, |keys| keys[&source].changes(offsets.start, offsets.end));
    let rows = changes.into_iter().zip(first..).map(|(row, sequence)| Row { sequence, ..row }).collect();
    keyed::file(stage, rng, lake, place, rows, 0).await
}

async fn java_file(
    stage: &Stage,
    rng: &Rng,
    lake: &LakeTable,
    table: &TableInfo,
    partition: Option<&Partition>,
    source: TableBucket,
    rows: &[(i64, i64)],
) -> ManifestEntry {
    let day = partition.map_or("d", |partition| partition.spec[0].1.as_str());
    let schema = lake.schema();
    let count = rows.len();
    let mut columns: Vec<(String, ArrayRef)> = vec![];
    for field in &schema.fields {
        let column: ArrayRef = match field.name.as_str() {
            "id" => Arc::new(rows.iter().map(|(_, id)| *id).collect::<Int64Array>()),
            "day" => Arc::new(StringArray::from(vec![day; count])),
            "__bucket" => Arc::new(Int32Array::from(vec![source.bucket.0; count])),
            "__offset" => Arc::new(rows.iter().map(|(offset, _)| *offset).collect::<Int64Array>()),
            "__timestamp" => Arc::new(TimestampMicrosecondArray::from(vec![0; count])),
            _ => new_null_array(&arrow_schema::DataType::Utf8, count),
        };
        columns.push((field.name.clone(), column));
    }
    let batch = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true))).unwrap();
    let mut bytes = vec![];
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let row = mapping::partition_row(partition, table, schema).unwrap();
    let layout = BucketLayout::of(table, partition).unwrap();
    let (at, total) = if table.bucket_keys.is_empty() { (0, -1) } else { (source.bucket.0, layout.count) };
    let mut file = entry(row, at, total, format!("data-{}-{}.parquet", rng.uuid(), source.bucket), rows[0].0, count);
    file.file.file_size = i64::try_from(bytes.len()).unwrap();
    file.file.schema_id = schema.id;
    stage.store.put(&lake.object(&path::data_file(schema, &file).unwrap()), bytes.into()).await.unwrap();
    file
}
