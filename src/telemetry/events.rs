//! The events: a struct each, emitted by the part that handles the fact.

use std::net::SocketAddr;
use std::time::Duration;

use tracing::{debug, error, info, warn};

use super::metrics;
use crate::error::Error;
use crate::model::{ChangeCounts, RoundOutcome, RoundSummary, SnapshotId, TableBucket, TablePath, TieringEpoch};

/// Target of the one line that each round ends with.
const ROUND: &str = "lakeward::round";
/// Target of what happens to tables between rounds.
const TABLE: &str = "lakeward::table";
/// Target of what the admin endpoints have to say.
const ADMIN: &str = "lakeward::admin";
/// Target of what happens between us and the coordinator.
const HEART: &str = "lakeward::heart";

/// A round ended well.
#[derive(Debug)]
pub struct RoundFinished<'a>(pub &'a RoundSummary);

impl RoundFinished<'_> {
    /// Logs and counts it.
    pub fn emit(self) {
        let round = self.0;
        let (outcome, snapshot) = match round.outcome {
            RoundOutcome::Committed { snapshot } => ("committed", Some(snapshot.0)),
            RoundOutcome::Idle => ("idle", None),
            RoundOutcome::Gone => ("gone", None),
        };
        metrics::ROUNDS.add(outcome, 1);
        metrics::ROWS.add("", round.rows);
        if let Some(ChangeCounts { inserts, updates, deletes }) = round.changes {
            for (kind, count) in [("insert", inserts), ("update", updates), ("delete", deletes)] {
                metrics::CHANGES.add(kind, count);
            }
        }
        metrics::FILES.add("", round.files);
        metrics::BYTES.add("", round.bytes);
        metrics::FETCHED.add("", round.fetched_bytes);
        metrics::ROUNDS_CUT.add("", round.cut.into());
        metrics::ATTEMPTS.add("", round.attempts.into());
        macro_rules! line {
            ($log:ident, $words:literal) => {
                $log!(
                    target: ROUND,
                    table = %round.table,
                    round = %round.round,
                    outcome,
                    snapshot,
                    recovered = round.recovered.map(|snapshot| snapshot.0),
                    rows = round.rows,
                    inserts = round.changes.map(|changes| changes.inserts),
                    updates = round.changes.map(|changes| changes.updates),
                    deletes = round.changes.map(|changes| changes.deletes),
                    files = round.files,
                    bytes = round.bytes,
                    splits = round.splits,
                    fetched_bytes = round.fetched_bytes,
                    cut = round.cut,
                    lag_rows = round.backlog_rows,
                    lag_ms = round.lag_ms,
                    requests = round.requests.values().sum::<u64>(),
                    attempts = round.attempts,
                    plan_ms = round.plan_ms,
                    write_ms = round.write_ms,
                    commit_ms = round.commit_ms,
                    $words
                )
            };
        }
        match round.outcome {
            RoundOutcome::Committed { .. } => {
                for (stage, ms) in [("plan", round.plan_ms), ("write", round.write_ms), ("commit", round.commit_ms)] {
                    metrics::ROUND_SECONDS.record(stage, Duration::from_millis(ms).as_secs_f64());
                }
                line!(info, "round committed");
            }
            // Nothing has changed, and there may be many.
            RoundOutcome::Idle => line!(debug, "nothing to tier"),
            RoundOutcome::Gone => line!(info, "the table was dropped"),
        }
    }
}

/// The state of a bucket was lost while it was read: it begins again.
#[derive(Debug)]
pub struct StateLost<'a> {
    /// The table.
    pub table: &'a TablePath,
    /// The bucket.
    pub bucket: TableBucket,
    /// Which try it was, from 1.
    pub attempt: u32,
    /// Rows that were read for nothing.
    pub rows: u64,
    /// Why.
    pub error: &'a Error,
}

impl StateLost<'_> {
    /// Logs and counts it.
    pub fn emit(self) {
        metrics::STATES_LOST.add("", 1);
        let (table, bucket, attempt, rows) = (self.table, self.bucket, self.attempt, self.rows);
        warn!(target: ROUND, %table, %bucket, attempt, rows, error = %self.error.chain(), "a bucket's state was lost, it begins again");
    }
}

/// A round ended in an error.
#[derive(Debug)]
pub struct RoundFailed<'a> {
    /// The table.
    pub table: &'a TablePath,
    /// Why.
    pub error: &'a Error,
}

impl RoundFailed<'_> {
    /// Logs and counts it.
    pub fn emit(self) {
        self.count();
        warn!(
            target: ROUND,
            table = %self.table,
            outcome = "failed",
            kind = %self.error.kind(),
            error = %self.error.chain(),
            "round failed"
        );
    }

    /// The same where it holds the table: [`TableHeld`] tells the operator, once, however often it is looked at again.
    pub fn emit_quietly(self) {
        self.count();
        debug!(
            target: ROUND,
            table = %self.table,
            outcome = "failed",
            kind = %self.error.kind(),
            error = %self.error.chain(),
            "round failed"
        );
    }

    fn count(&self) {
        metrics::ROUNDS_FAILED.add(self.error.kind().as_str(), 1);
    }
}

/// A table is put on hold until an operator helped or the next look finds the cause gone.
#[derive(Debug)]
pub struct TableHeld<'a> {
    /// The table.
    pub table: &'a TablePath,
    /// Why.
    pub error: &'a Error,
}

impl TableHeld<'_> {
    /// Logs and counts it.
    pub fn emit(self) {
        metrics::HOLDS.add(self.error.kind().as_str(), 1);
        error!(
            target: TABLE,
            table = %self.table,
            kind = %self.error.kind(),
            error = %self.error.chain(),
            hint = self.error.hint().unwrap_or_default(),
            "table held"
        );
    }
}

/// The coordinator handed a table to us.
#[derive(Debug)]
pub struct TableClaimed<'a> {
    /// The table.
    pub table: &'a TablePath,
    /// Its epoch.
    pub epoch: TieringEpoch,
}

impl TableClaimed<'_> {
    /// Logs it.
    pub fn emit(self) {
        debug!(target: TABLE, table = %self.table, tiering_epoch = %self.epoch, "table claimed");
    }
}

/// A table went back to the queue without a round of ours.
#[derive(Debug)]
pub struct TableReturned<'a> {
    /// The table.
    pub table: &'a TablePath,
    /// Why.
    pub reason: &'a str,
}

impl TableReturned<'_> {
    /// Logs it.
    pub fn emit(self) {
        debug!(target: TABLE, table = %self.table, reason = self.reason, "table handed back");
    }
}

/// A partition was dropped before a backfill had brought all of it into the lake.
#[derive(Debug)]
pub struct PartitionDropped<'a> {
    /// The table.
    pub table: &'a TablePath,
    /// The partition's name.
    pub partition: &'a str,
}

impl PartitionDropped<'_> {
    /// Logs it.
    pub fn emit(self) {
        warn!(target: TABLE, table = %self.table, partition = self.partition, "partition dropped meanwhile: nothing is left to do for it");
    }
}

/// How far a backfill is.
#[derive(Debug)]
pub struct BackfillProgress<'a> {
    /// The table.
    pub table: &'a TablePath,
    /// Records in the lake or on their way, of `rows_total`.
    pub rows: u64,
    /// Records to bring there.
    pub rows_total: u64,
    /// MiB of log per second, lately.
    pub mib_per_second: f64,
    /// Seconds left at that speed.
    pub seconds_left: Option<u64>,
}

impl BackfillProgress<'_> {
    /// Logs it.
    pub fn emit(self) {
        let Self { table, rows, rows_total, mib_per_second, seconds_left } = self;
        info!(target: TABLE, %table, rows, rows_total, mib_per_second, seconds_left, "backfill goes on");
    }
}

/// The lease of a table is no longer ours: its round is dropped.
#[derive(Debug)]
pub struct LeaseLost<'a> {
    /// The table.
    pub table: &'a TablePath,
    /// What told us.
    pub reason: &'a str,
}

impl LeaseLost<'_> {
    /// Logs and counts it.
    pub fn emit(self) {
        metrics::LEASES_LOST.add("", 1);
        warn!(target: HEART, table = %self.table, reason = self.reason, "lease lost");
    }
}

/// A round was dropped as stale and is planned afresh.
#[derive(Debug)]
pub struct Replanned<'a> {
    /// The table.
    pub table: &'a TablePath,
    /// Plans so far.
    pub attempt: u32,
    /// Why.
    pub error: &'a Error,
}

impl Replanned<'_> {
    /// Logs and counts it.
    pub fn emit(self) {
        metrics::REPLANS.add("", 1);
        info!(target: TABLE, table = %self.table, attempt = self.attempt, reason = %self.error.chain(), "round planned afresh");
    }
}

/// Recovery found a snapshot of Fluss in the lake that Fluss did not know, and recorded it.
#[derive(Debug)]
pub struct SnapshotRecovered<'a> {
    /// The table.
    pub table: &'a TablePath,
    /// The snapshot.
    pub snapshot: SnapshotId,
}

impl SnapshotRecovered<'_> {
    /// Logs and counts it.
    pub fn emit(self) {
        metrics::RECOVERED.add("", 1);
        info!(target: TABLE, table = %self.table, snapshot = %self.snapshot, "unknown lake snapshot recorded in Fluss");
    }
}

/// The lake table lacked columns that the Fluss table has; they were added before anything was written.
#[derive(Debug)]
pub struct LakeColumnsAdded<'a> {
    /// The table.
    pub table: &'a TablePath,
    /// Their names.
    pub columns: &'a [String],
}

impl LakeColumnsAdded<'_> {
    /// Logs it.
    pub fn emit(self) {
        info!(target: TABLE, table = %self.table, columns = %self.columns.join(", "), "columns added to the lake table");
    }
}

/// A heartbeat got no answer; it is sent again after a pause.
#[derive(Debug)]
pub struct HeartbeatFailed<'a> {
    /// Why.
    pub error: &'a Error,
    /// Pause before the next.
    pub pause: Duration,
}

impl HeartbeatFailed<'_> {
    /// Logs and counts it.
    pub fn emit(self) {
        metrics::HEARTBEATS_FAILED.add("", 1);
        let pause_ms = u64::try_from(self.pause.as_millis()).unwrap_or(u64::MAX);
        warn!(target: HEART, error = %self.error.chain(), pause_ms, "heartbeat failed");
    }
}

/// How a round ended could not be told to the coordinator: the table waits for its lease to end.
#[derive(Debug)]
pub struct ReportLost<'a> {
    /// The table.
    pub table: &'a TablePath,
    /// Why.
    pub error: &'a Error,
}

impl ReportLost<'_> {
    /// Logs it.
    pub fn emit(self) {
        warn!(target: HEART, table = %self.table, error = %self.error.chain(), "table not handed back, its lease runs out");
    }
}

/// The service was asked to stop.
#[derive(Debug)]
pub struct Stopping {
    /// Tables in hand.
    pub tables: usize,
    /// How long their rounds may go on.
    pub grace: Duration,
}

impl Stopping {
    /// Logs it.
    pub fn emit(self) {
        let grace_ms = u64::try_from(self.grace.as_millis()).unwrap_or(u64::MAX);
        info!(target: HEART, tables = self.tables, grace_ms, "asked to stop: rounds commit what they have read");
    }
}

/// A request to an object store was sent.
#[derive(Debug)]
pub struct StoreRequest(pub &'static str);

impl StoreRequest {
    /// Counts it, by what it does.
    pub fn emit(self) {
        metrics::REQUESTS.add(self.0, 1);
    }
}

/// The admin endpoints answer.
#[derive(Debug)]
pub struct AdminListens {
    /// Where; a port that was asked for as 0 is the real one here.
    pub address: SocketAddr,
}

impl AdminListens {
    /// Logs it.
    pub fn emit(self) {
        info!(target: ADMIN, address = %self.address, "admin endpoints answer: /metrics, /healthz, /readyz, /status");
    }
}

/// A connection to the admin endpoints could not be accepted.
#[derive(Debug)]
pub struct AdminRefused<'a> {
    /// Why.
    pub error: &'a std::io::Error,
}

impl AdminRefused<'_> {
    /// Logs it.
    pub fn emit(self) {
        warn!(target: ADMIN, error = %self.error, "a connection to the admin endpoints was not accepted");
    }
}
