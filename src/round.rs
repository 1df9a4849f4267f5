//! One table, one round: recover, plan, read and write, commit. The only place where the stages meet.
//!
//! Owns the order of things, how many buckets are in progress, when a stale round is planned afresh, when a bucket begins again, and
//! what becomes of the files of a round that failed. Callers: `daemon`, `cli` (quickstart).

mod ends;
mod lake;
mod limits;
mod pressure;
mod splits;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug, info_span, warn};

use crate::commit::{self, CommitContext, CommitOutcome, DataFiles, RoundWork};
use crate::error::{Error, Kind, Result};
use crate::lake::LakeTable;
use crate::mapping::{self, LakeRows};
use crate::model::{
    BucketProgress, ChangeCounts, LakeOffsets, PartitionSummary, RoundId, RoundOutcome, RoundSummary, Split, SplitKind,
    StartOffset, TableId, TableInfo, TablePath, TieringEpoch,
};
use crate::plan::{self, Scope};
use crate::read::{self, Cut, Reader};
use crate::runtime::{Backoff, BackoffOptions, Clock, Moment, Runtime};
use crate::source::{LakeLedger, Lease, TableScan};
use crate::telemetry;
use crate::write::{BucketTarget, WriteContext, WriteOptions};
pub use limits::{Limits, Progress};
use splits::{Done, Target, Work};

pub use ends::{LogEnds, log_ends};
pub use lake::open_lake;

/// Bounds of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Splits in progress at once. More keep more servers busy and hold more rows in memory.
    pub splits_max: usize,
    /// How often a round that turned out stale is planned afresh before it is given up.
    pub replans_max: u32,
    /// Pause before the first of these; it doubles.
    pub replan_pause: Duration,
    /// Planning.
    pub plan: plan::Options,
    /// Reading.
    pub read: read::Options,
    /// Writing.
    pub write: WriteOptions,
    /// Committing.
    pub commit: commit::Options,
    /// Switched off by a test.
    #[doc(hidden)]
    pub off: Option<Rule>,
}

/// A rule of primary-key rounds that a test can switch off in the real code, as [`commit::Rule`]. Nothing but a test ever does.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Change kinds go along with their rows.
    Kinds,
    /// A state is never cut short: its offset counts when all of it is read.
    WholeState,
    /// A state that is lost begins again from nothing.
    StateAgain,
    /// Sequence numbers go on after the greatest of the bucket.
    AfterGreatest,
}

impl Options {
    fn holds(&self, rule: Rule) -> bool {
        self.off != Some(rule)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            splits_max: 64,
            replans_max: 5,
            replan_pause: Duration::from_millis(100),
            plan: plan::Options::default(),
            read: read::Options::default(),
            write: WriteOptions::default(),
            commit: commit::Options::default(),
            off: None,
        }
    }
}

/// Splits in progress at once, however little memory there is.
const SPLITS_MIN: usize = 4;

/// What all rounds of a process share.
#[derive(Clone)]
pub struct RoundContext {
    /// Tables and logs.
    pub scan: Arc<dyn TableScan>,
    /// What Fluss knows about the lake.
    pub ledger: Arc<dyn LakeLedger>,
    /// Time, memory, threads.
    pub runtime: Runtime,
    /// Bounds.
    pub options: Options,
}

impl std::fmt::Debug for RoundContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RoundContext").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The table of a round.
#[derive(Debug, Clone)]
pub struct Job {
    /// Where it is.
    pub path: TablePath,
    /// Which one it was when it was handed out.
    pub table: TableId,
    /// Its epoch.
    pub epoch: TieringEpoch,
    /// Its lease; `None` where no queue is involved.
    pub lease: Option<Lease>,
    /// What ends it early.
    pub limits: Limits,
}

/// Runs one round: recover, plan, read and write, commit; afresh, a bounded number of times, when it turns out stale. A round
/// that reaches one of its limits commits what it has read.
///
/// # Errors
/// Those of the stages; a table that is gone is none. `Stale` when it was planned afresh as often as allowed, or when its lease was lost.
pub async fn run(context: &RoundContext, job: &Job) -> Result<RoundSummary> {
    let runtime = &context.runtime;
    let stop = job.lease.as_ref().map_or_else(|| runtime.shutdown.clone(), |lease| lease.lost().clone());
    let options = context.options;
    let pauses = BackoffOptions { first: options.replan_pause, max: options.replan_pause * 32, attempts_max: usize::MAX };
    let mut pauses = Backoff::new(pauses, &runtime.rng);
    let mut plans = 0;
    loop {
        plans += 1;
        let round = RoundId(runtime.rng.uuid());
        let span = info_span!("round", table = %job.path, tiering_epoch = %job.epoch, %round);
        match Box::pin(attempt(context, job, round, &stop)).instrument(span).await {
            Err(error) if error.kind() == Kind::Stale && plans <= options.replans_max && !stop.is_cancelled() => {
                context.scan.forget(&job.path);
                telemetry::Replanned { table: &job.path, attempt: plans, error: &error }.emit();
                let pause = pauses.next_pause().unwrap_or(options.replan_pause);
                tokio::select! {
                    () = runtime.clock.sleep(pause) => {}
                    () = stop.cancelled() => return Err(error),
                    () = job.limits.cut.cancelled() => return Err(error),
                }
            }
            ended => {
                return ended.map(|summary| {
                    let whole = !summary.cut && summary.outcome != RoundOutcome::Gone;
                    let lag_ms = runtime.clock.now_ms().saturating_sub(summary.planned_ms);
                    RoundSummary { lag_ms: whole.then(|| u64::try_from(lag_ms).unwrap_or(0)), ..summary }
                });
            }
        }
    }
}

/// Error code of Fluss: there is no such table (F2.5).
pub(crate) const TABLE_NOT_EXIST: i32 = 7;

async fn attempt(context: &RoundContext, job: &Job, round: RoundId, stop: &CancellationToken) -> Result<RoundSummary> {
    let runtime = &context.runtime;
    let limits = &job.limits;
    limits.progress.reset();
    let mut watch = Watch::new(runtime);
    let started_ms = runtime.clock.now_ms();
    let table = match context.scan.table_info(&job.path).await {
        Ok(table) if table.id == job.table => Arc::new(table),
        // Whatever else a dropped table made fail before is no fault of anybody's: this look decides.
        Ok(_) => return Ok(RoundSummary { outcome: RoundOutcome::Gone, ..RoundSummary::new(job.path.clone(), job.table, round) }),
        Err(error) if error.code() == Some(TABLE_NOT_EXIST) => {
            return Ok(RoundSummary { outcome: RoundOutcome::Gone, ..RoundSummary::new(job.path.clone(), job.table, round) });
        }
        Err(error) => return Err(error),
    };
    let opened = open_lake(&table, runtime).await?;
    let requests = opened.0.store().clone();
    commit::prove_once(&opened.0).await?;
    let mut protocol = CommitContext {
        table: Arc::clone(&table),
        lake: Arc::clone(&opened.0),
        ledger: Arc::clone(&context.ledger),
        lease: job.lease.clone(),
        scan: Arc::clone(&context.scan),
        runtime: runtime.clone(),
        options: context.options.commit,
    };
    let base = commit::recover(&protocol).await?;
    if let Some(snapshot) = base.recovered {
        telemetry::SnapshotRecovered { table: &job.path, snapshot }.emit();
    }
    let (lake, form) = lake::with_all_columns(opened, &table, runtime).await?;
    protocol.lake = Arc::clone(&lake);
    limits.progress.starts_from(&base);
    let scope = Scope { stops: limits.stops.clone() };
    let mut summary = RoundSummary::new(job.path.clone(), job.table, round);
    summary.recovered = base.recovered;
    summary.base = base.snapshot();
    summary.freshness_ms = u64::try_from(table.lake_freshness().as_millis()).ok();
    summary.planned_ms = runtime.clock.now_ms();
    let facts = plan::gather(context.scan.as_ref(), Arc::clone(&table), &base.offsets, &scope, context.options.plan).await?;
    let plan = plan::splits(&facts, &base.offsets, &scope);
    summary.backlog_rows = plan.backlog();
    if let Some(fault) = first_fault(plan.faults) {
        return Err(fault);
    }
    if plan.splits.is_empty() {
        commit::keep_standing_pin(&protocol, &base).await?;
        summary.plan_ms = watch.lap_ms();
        summary.requests = requests.requests();
        return Ok(summary);
    }
    let mut targets = targets(&table, &lake, plan.splits).await?;
    if !context.options.holds(Rule::AfterGreatest) {
        targets.iter_mut().for_each(|target| target.first_sequence = 0);
    }
    summary.plan_ms = watch.lap_ms();

    let store = lake.store().clone();
    let schema = Arc::clone(lake.schema());
    let write = WriteContext::new(store, lake.root(), Arc::clone(&schema), round, runtime.clone(), context.options.write)?;
    let splits: Vec<Split> = targets.iter().map(|target| target.split.clone()).collect();
    let cut = Cut::new(limits.cut.child_token(), limits.bytes_max);
    let (scan, read) = (Arc::clone(&context.scan), context.options.read);
    let work = Work {
        options: context.options,
        reader: Reader::new(scan, Arc::clone(&table), &splits, read, cut.clone(), runtime.clone()).await?,
        rows: Arc::new(LakeRows::new(&table, &schema, form)?),
        scan: Arc::clone(&context.scan),
        table: Arc::clone(&table),
        write: Arc::clone(&write),
        runtime: runtime.clone(),
        stop: stop.clone(),
        cut,
        deadline: limits.deadline,
        progress: limits.progress.clone(),
    };
    // Each split in progress has room for a fetch at least: more of them would only make each other's files smaller.
    let fits = runtime.budget.total() / usize::try_from(read.bucket_bytes).unwrap_or(1).max(1);
    let mut done = work.run(targets, context.options.splits_max.min(fits.max(SPLITS_MIN))).await?;
    // Nothing is held, fetched or waited for any more while the commit runs.
    drop(work);
    summary.write_ms = watch.lap_ms();
    summary.cut = done.iter().any(Done::is_cut);
    done.retain(|done| done.end_offset.is_some());
    let has_key = table.has_primary_key();
    debug_assert!(
        done.iter().all(|done| done.is_sound(has_key)),
        "the offsets that are committed are those of the rows that were written"
    );

    tell(&mut summary, &done);
    summary.changes = has_key.then(|| done.iter().fold(ChangeCounts::default(), |sum, done| sum.and(done.changes)));
    let work = RoundWork {
        round,
        started_ms,
        tiering_epoch: job.lease.as_ref().map(|_| job.epoch),
        end_offsets: LakeOffsets(done.iter().filter_map(|done| Some((done.split.bucket.into(), done.end_offset?))).collect()),
        // Rows of a state have no timestamps (F4.1).
        max_timestamps: done
            .iter()
            .filter(|done| done.max_timestamp_ms >= 0)
            .map(|done| (done.split.bucket.into(), done.max_timestamp_ms))
            .collect(),
        entries: done.iter_mut().flat_map(|done| std::mem::take(&mut done.files.data)).collect(),
        changelog: done.into_iter().flat_map(|done| done.files.changelog).collect(),
    };
    // From here on a stop is not looked at: a commit is short, and each of its steps may be the last anyway.
    match commit::commit(&protocol, &base, &work).await {
        CommitOutcome::Committed { snapshot, attempts, warnings } => {
            for warning in warnings {
                warn!(table = %job.path, %snapshot, error = %warning.chain(), "something beside the commit failed");
            }
            limits.progress.published(snapshot, &work.end_offsets);
            summary.outcome = RoundOutcome::Committed { snapshot };
            summary.attempts = attempts;
            summary.backlog_rows = plan::splits(&facts, &base.offsets.overlaid(&work.end_offsets), &scope).backlog();
        }
        CommitOutcome::Nothing => {}
        CommitOutcome::Failed { error, files, published } => {
            if files == DataFiles::Unnamed
                && let Err(left) = write.discard(work.entries.iter().chain(&work.changelog)).await
            {
                debug!(error = %left.chain(), "files of a failed round stay for the orphan sweep");
            }
            if let Some(snapshot) = published {
                limits.progress.published(snapshot, &work.end_offsets);
                warn!(table = %job.path, %snapshot, "published, but not recorded in Fluss: the next round records it");
            }
            return Err(error);
        }
    }
    summary.commit_ms = watch.lap_ms();
    summary.requests = requests.requests();
    Ok(summary)
}

/// Where the splits' rows go, and from which sequence number on. Looks at the lake's bucket totals on the way: what the
/// commit would refuse is better known before anything is written.
async fn targets(table: &TableInfo, lake: &LakeTable, splits: Vec<Split>) -> Result<Vec<Target>> {
    let aware = table.has_primary_key() || !table.bucket_keys.is_empty();
    let mut targets = Vec::with_capacity(splits.len());
    for split in splits {
        let row = mapping::partition_row(split.partition.as_deref(), table, lake.schema())?;
        let (bucket, total_buckets) = if aware { (split.bucket.bucket.0, split.layout.count) } else { (0, -1) };
        let bucket = BucketTarget { source: split.bucket, partition: row, bucket, total_buckets };
        targets.push(Target { split, bucket, first_sequence: 0 });
    }
    let newest = match lake.newest_snapshot().await? {
        (Some(id), None) => lake.snapshot(id).await?,
        (_, read) => read,
    };
    let Some(newest) = newest else { return Ok(targets) };
    let touched: BTreeSet<_> = targets.iter().map(|target| target.bucket.partition.clone()).collect();
    let live = lake.live_partitions(&newest, Some(&touched)).await?;
    for target in &mut targets {
        let Some(found) = live.get(&target.bucket.partition) else { continue };
        if let Some(other) = found.totals.iter().find(|total| **total != target.bucket.total_buckets) {
            return Err(wrong_total(table, &target.split, *other, target.bucket.total_buckets));
        }
        target.first_sequence = found.max_sequence.get(&target.bucket.bucket).map_or(0, |max| max.saturating_add(1));
    }
    Ok(targets)
}

fn wrong_total(table: &TableInfo, split: &Split, lake: i32, fluss: i32) -> Error {
    let partition = split.partition.as_deref();
    let place = partition.map_or_else(String::new, |partition| format!("partition `{}` of ", partition.name()));
    Error::data(format!("{place}table `{}` has files of `{lake}` buckets in the lake, but `{fluss}` buckets in Fluss", table.path))
        .with_hint(mapping::other_count_hint(table, partition, fluss))
}

/// The first fault of a plan; it tells how many more there are.
fn first_fault(faults: Vec<Error>) -> Option<Error> {
    let more = faults.len().saturating_sub(1);
    let first = faults.into_iter().next()?;
    Some(if more == 0 { first } else { first.context(format!("the table has `{more}` more faults like this one")) })
}

/// Fills in what the splits wrote.
fn tell(summary: &mut RoundSummary, done: &[Done]) {
    let mut partitions: BTreeMap<String, PartitionSummary> = BTreeMap::new();
    for done in done {
        let split = &done.split;
        let name = split.partition.as_ref().map(|partition| partition.name()).unwrap_or_default();
        let files = done.files.data.len() as u64;
        let partition =
            partitions.entry(name.clone()).or_insert(PartitionSummary { partition: name, layout: split.layout, files: 0, rows: 0 });
        partition.files += files;
        partition.rows += done.rows;
        summary.splits += 1;
        summary.fetched_bytes += done.fetched_bytes;
        summary.files += files;
        summary.rows += done.rows;
        let bytes: i64 = done.files.data.iter().map(|entry| entry.file.file_size).sum();
        summary.bytes += u64::try_from(bytes).unwrap_or(0);
        summary.buckets.push(BucketProgress {
            bucket: split.bucket.into(),
            start_offset: match (split.kind, split.start) {
                (SplitKind::State, _) => -1,
                (SplitKind::Log, StartOffset::At(offset)) => offset,
                (SplitKind::Log, StartOffset::Earliest) => -2,
            },
            end_offset: done.end_offset.unwrap_or(split.stop_offset),
            max_timestamp_ms: done.max_timestamp_ms,
            rows: done.rows,
        });
    }
    summary.buckets.sort_by_key(|progress| progress.bucket);
    summary.partitions = partitions.into_values().collect();
}

/// Time from lap to lap.
struct Watch {
    clock: Clock,
    last: Moment,
}

impl Watch {
    fn new(runtime: &Runtime) -> Self {
        Self { clock: runtime.clock.clone(), last: runtime.clock.moment() }
    }

    fn lap_ms(&mut self) -> u64 {
        let now = self.clock.moment();
        let lap = now.saturating_duration_since(self.last);
        self.last = now;
        u64::try_from(lap.as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
