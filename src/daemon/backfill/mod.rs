//! A backfill: what a table's logs hold when it starts is brought into the lake, round by round, without a lease.
//!
//! Owns the stop offsets, taken once at the start, how much each round takes on (`bounds`), who brought how much (`tally`),
//! which partitions are meant (`choice`), and when it ends: as soon as the newest Fluss-made offsets reach the stop offsets,
//! whoever brought them. It asks no queue and holds no lease: the commit decides (commit.md), so it is safe beside
//! daemons and other backfills. Caller: `cli`.

mod bounds;
mod choice;
mod tally;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use self::bounds::Bounds;
use self::tally::{Counts, Tally};
use crate::error::{Error, Kind, Result};
use crate::model::{PartitionId, RoundOutcome, RoundSummary, SnapshotId, TableInfo, TablePath, TieringEpoch};
use crate::round::{self, Job, Limits, LogEnds, Progress, RoundContext};
use crate::runtime::{Backoff, BackoffOptions, Moment};
use crate::telemetry;

pub use choice::{PartitionSpec, choose};

/// Bounds of a backfill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Bytes of log that one round reads, about.
    pub bytes_max: u64,
    /// Time that one round reads.
    pub time_max: Duration,
    /// How long it goes on while nobody brings the table forward.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { bytes_max: 4 << 30, time_max: Duration::from_secs(300), patience: Duration::from_secs(900) }
    }
}

/// First pause after a round that failed or was in vain; it doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
/// Longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// How a backfill ended, or that it has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It goes on.
    Running,
    /// All that was asked for is in the lake, or is no more.
    Done,
    /// It was asked to stop: what it had read is in the lake.
    Stopped,
    /// It failed, or gave up.
    Failed,
}

impl Outcome {
    /// As it is printed.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

/// How far a backfill is. Counts of records are of what lay between lake and stop offsets at the start.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// The table.
    pub table: TablePath,
    /// Whether and how it ended.
    pub outcome: Outcome,
    /// Records to bring into the lake, when it started; `None` until the lake has been looked at.
    pub rows_total: Option<u64>,
    /// Records that it brought there.
    pub rows: u64,
    /// Records that others brought there meanwhile.
    pub rows_by_others: u64,
    /// Records that left the log before they were there: dropped with their partition, or expired.
    pub rows_gone: u64,
    /// Records that are not there yet.
    pub rows_left: Option<u64>,
    /// Rounds that it committed.
    pub rounds: u64,
    /// Newest snapshot of Fluss in the lake, as far as it knows.
    pub snapshot: Option<SnapshotId>,
    /// Bytes of log that went into committed rounds.
    pub fetched_bytes: u64,
    /// Partitions that it was to bring there and that were dropped meanwhile.
    pub dropped_partitions: Vec<String>,
    /// Seconds since its start.
    pub seconds: f64,
}

/// One backfill. Clones share it: one runs it, others look.
#[derive(Debug, Clone)]
pub struct Backfill {
    context: RoundContext,
    path: TablePath,
    specs: Vec<PartitionSpec>,
    options: Options,
    cut: CancellationToken,
    progress: Progress,
    began: Moment,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    outcome: Outcome,
    tally: Tally,
    rounds: u64,
    snapshot: Option<SnapshotId>,
    fetched_bytes: u64,
    dropped_partitions: Vec<String>,
}

/// What was found at the start.
struct Target {
    table: Arc<TableInfo>,
    /// Name of each partition that was there.
    names: BTreeMap<PartitionId, String>,
}

impl Backfill {
    /// A backfill of the table at `path`: of all partitions that it has when the backfill starts, or of those that `specs` name.
    ///
    /// When `cut` is cancelled, it commits what it has read and ends; when the context's shutdown token is, it ends at once.
    #[must_use]
    pub fn new(
        context: RoundContext,
        path: TablePath,
        specs: Vec<PartitionSpec>,
        options: Options,
        cut: CancellationToken,
    ) -> Self {
        // How to go on after a stale round is decided here, not inside the round.
        let options_of_rounds = round::Options { replans_max: 0, ..context.options };
        let context = RoundContext { options: options_of_rounds, ..context };
        let state = State {
            outcome: Outcome::Running,
            tally: Tally::default(),
            rounds: 0,
            snapshot: None,
            fetched_bytes: 0,
            dropped_partitions: vec![],
        };
        let began = context.runtime.clock.moment();
        Self { context, path, specs, options, cut, progress: Progress::default(), began, state: Arc::new(Mutex::new(state)) }
    }

    /// How far it is in the lake.
    #[must_use]
    pub fn status(&self) -> Status {
        let mut state = self.state();
        if state.tally.counts().is_none()
            && let Some((_, lake)) = self.progress.base()
        {
            // The first round tells how much there is to do, long before it ends.
            state.tally.saw(&lake);
        }
        let counts = state.tally.counts();
        let known = counts.unwrap_or_default();
        let seconds = self.context.runtime.clock.moment().saturating_duration_since(self.began).as_secs_f64();
        Status {
            table: self.path.clone(),
            outcome: state.outcome,
            rows_total: counts.map(|counts| counts.total),
            rows: known.ours,
            rows_by_others: known.others,
            rows_gone: known.gone,
            rows_left: counts.map(|counts| counts.left),
            rounds: state.rounds,
            snapshot: state.snapshot,
            fetched_bytes: state.fetched_bytes,
            dropped_partitions: state.dropped_partitions.clone(),
            seconds: (seconds * 1_000.0).round() / 1_000.0,
        }
    }

    /// How far the round that runs now is; not in the lake yet.
    #[must_use]
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Works until the stop offsets are in the lake, or `cut` ends it; [`Backfill::status`] then tells which.
    ///
    /// # Errors
    /// Those of the stages. `Invalid` when there is no such table or partition, or its lake is off; `Stale` when nobody has brought
    /// the table forward for as long as the options allow, or when the table was dropped; `Unavailable` when something was out of
    /// reach for that long.
    pub async fn run(&self) -> Result<()> {
        let ended = match self.target().await {
            Ok(target) => self.work(&target).await,
            Err(error) => Err(error),
        };
        let (outcome, ended) = match ended {
            Ok(outcome) => (outcome, Ok(())),
            // An abort at the end of the grace is what was asked for.
            Err(error) if self.is_stopping() && is_passing(&error) => (Outcome::Stopped, Ok(())),
            Err(error) => (Outcome::Failed, Err(error)),
        };
        self.state().outcome = outcome;
        ended
    }

    /// It was stopped and its [`Backfill::run`] dropped.
    pub fn abandon(&self) {
        self.state().outcome = Outcome::Stopped;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopping(&self) -> bool {
        self.cut.is_cancelled() || self.context.runtime.shutdown.is_cancelled()
    }

    /// The stop offsets: the ends of the logs now.
    async fn target(&self) -> Result<Target> {
        let mut pauses = self.pauses();
        loop {
            match self.look().await {
                // Counts that change while they are asked for.
                Err(error) if error.kind() == Kind::Stale && self.began.elapsed() < self.options.patience => {
                    self.context.scan.forget(&self.path);
                    self.pause(&mut pauses).await;
                    if self.is_stopping() {
                        return Err(error);
                    }
                }
                ended => return ended,
            }
        }
    }

    async fn look(&self) -> Result<Target> {
        let LogEnds { table, partitions, mut buckets } = round::log_ends(&self.context, &self.path).await?;
        if !self.specs.is_empty() {
            let chosen = choose(&table, &partitions, &self.specs)?;
            buckets.retain(|(bucket, ..)| bucket.partition.is_some_and(|partition| chosen.contains(&partition)));
        }
        let names = partitions.iter().map(|partition| (partition.id, partition.name())).collect();
        self.state().tally = Tally::new(buckets);
        Ok(Target { table, names })
    }

    async fn work(&self, target: &Target) -> Result<Outcome> {
        let clock = &self.context.runtime.clock;
        let mut bounds = Bounds::new(self.options.bytes_max, self.options.time_max);
        let mut pauses = self.pauses();
        let (mut moved, mut counts) = (clock.moment(), None);
        loop {
            if self.is_stopping() {
                return Ok(Outcome::Stopped);
            }
            let ended = self.round(target, bounds).await;
            let now = self.settle();
            let advanced = now != counts;
            counts = now;
            let reached = now.is_some_and(|now| now.left == 0);
            if advanced {
                moved = clock.moment();
                pauses = self.pauses();
            }
            let fault = match ended {
                Ok(RoundSummary { outcome: RoundOutcome::Gone, .. }) => {
                    return Err(self.dropped());
                }
                Ok(summary) => {
                    telemetry::RoundFinished(&summary).emit();
                    self.drop_partitions(target).await;
                    if !summary.cut || reached {
                        self.state().tally.ended();
                        return Ok(Outcome::Done);
                    }
                    if summary.buckets.is_empty() {
                        bounds.too_short()
                    } else {
                        bounds.committed()
                    }
                    None
                }
                Err(_) if reached => return Ok(Outcome::Done),
                Err(error) if is_passing(&error) && self.is_stopping() => return Ok(Outcome::Stopped),
                Err(error) if is_passing(&error) => Some(error),
                // Whatever a dropped table makes fail in a round is its end.
                Err(_) if self.is_gone(target).await => return Err(self.dropped()),
                Err(error) => return Err(error),
            };
            let waited = clock.moment().saturating_duration_since(moved);
            if waited >= self.options.patience {
                return Err(self.give_up(fault, waited));
            }
            let wait = match &fault {
                Some(error) if error.kind() == Kind::Stale => {
                    self.context.scan.forget(&self.path);
                    let wait = bounds.stale();
                    telemetry::Replanned { table: &self.path, attempt: bounds.stale_in_row(), error }.emit();
                    wait
                }
                Some(error) => {
                    telemetry::RoundFailed { table: &self.path, error }.emit();
                    true
                }
                None => !advanced,
            };
            if wait {
                self.pause(&mut pauses).await;
            }
        }
    }

    async fn round(&self, target: &Target, bounds: Bounds) -> Result<RoundSummary> {
        let limits = Limits {
            deadline: Some(self.context.runtime.clock.moment() + bounds.time()),
            bytes_max: Some(bounds.bytes()),
            stops: Some(Arc::new(self.state().tally.stops())),
            cut: self.cut.child_token(),
            progress: self.progress.clone(),
        };
        let job = Job { path: self.path.clone(), table: target.table.id, epoch: TieringEpoch(0), lease: None, limits };
        round::run(&self.context, &job).await
    }

    /// Takes over what the last round has seen and done.
    fn settle(&self) -> Option<Counts> {
        let mut state = self.state();
        if let Some((snapshot, lake)) = self.progress.base() {
            state.tally.saw(&lake);
            state.snapshot = snapshot;
        }
        if let Some((snapshot, ends)) = self.progress.written() {
            state.tally.wrote(&ends);
            state.snapshot = Some(snapshot);
            state.rounds += 1;
            state.fetched_bytes += self.progress.fetched_bytes();
        }
        self.progress.reset();
        state.tally.counts()
    }

    async fn is_gone(&self, target: &Target) -> bool {
        self.context.scan.forget(&self.path);
        match self.context.scan.table_info(&self.path).await {
            Ok(table) => table.id != target.table.id,
            Err(error) => error.code() == Some(round::TABLE_NOT_EXIST),
        }
    }

    fn dropped(&self) -> Error {
        Error::stale(format!("table `{}` was dropped while it was backfilled", self.path))
            .with_hint("if it was made again: the backfill of the new table is another one, start it again")
    }

    /// Takes out partitions that are no more. Where that can't be told now, the next round tells.
    async fn drop_partitions(&self, target: &Target) {
        let mine: BTreeSet<PartitionId> = self.state().tally.partitions().collect();
        if mine.is_empty() {
            return;
        }
        let Ok(partitions) = self.context.scan.partitions(&target.table).await else { return };
        let there: BTreeSet<PartitionId> = partitions.iter().map(|partition| partition.id).collect();
        let mut state = self.state();
        for gone in mine.difference(&there) {
            let name = target.names.get(gone).cloned().unwrap_or_default();
            telemetry::PartitionDropped { table: &self.path, partition: &name }.emit();
            state.tally.dropped(*gone);
            state.dropped_partitions.push(name);
        }
    }

    fn pauses(&self) -> Backoff {
        let options = BackoffOptions { first: PAUSE_FIRST, max: PAUSE_MAX, attempts_max: usize::MAX };
        Backoff::new(options, &self.context.runtime.rng)
    }

    async fn pause(&self, pauses: &mut Backoff) {
        let pause = pauses.next_pause().unwrap_or(PAUSE_MAX);
        tokio::select! {
            () = self.context.runtime.clock.sleep(pause) => {}
            () = self.cut.cancelled() => {}
            () = self.context.runtime.shutdown.cancelled() => {}
        }
    }

    fn give_up(&self, fault: Option<Error>, waited: Duration) -> Error {
        let words = format!("nobody has brought table `{}` forward for `{}` s", self.path, waited.as_secs());
        let hint = "run it again when whoever commits to the table has ended, or give it more time (`backfill.patience`)";
        match fault {
            Some(error) => error.context(words).with_hint(hint),
            None => Error::stale(words).with_hint(hint),
        }
    }
}

/// Whether another round may go well.
fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), Kind::Stale | Kind::Unavailable)
}
