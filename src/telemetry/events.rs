//! The events: a struct each, emitted by the part that handles the fact.

use std::time::Duration;

use tracing::{error, info, warn};

use crate::error::Error;
use crate::model::{RoundOutcome, RoundSummary, SnapshotId, TablePath, TieringEpoch};

/// A round ended well.
#[derive(Debug)]
pub struct RoundFinished<'a>(pub &'a RoundSummary);

impl RoundFinished<'_> {
    /// Logs it.
    pub fn emit(self) {
        let round = self.0;
        let table = &round.table;
        match round.outcome {
            RoundOutcome::Idle => info!(%table, round = %round.round, "nothing to tier"),
            RoundOutcome::Gone => info!(%table, round = %round.round, "the table was dropped"),
            RoundOutcome::Committed { snapshot } => info!(
                %table,
                round = %round.round,
                %snapshot,
                rows = round.rows,
                files = round.files,
                bytes = round.bytes,
                splits = round.splits,
                attempts = round.attempts,
                plan_ms = round.plan_ms,
                write_ms = round.write_ms,
                commit_ms = round.commit_ms,
                "round committed"
            ),
        }
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
    /// Logs it.
    pub fn emit(self) {
        warn!(table = %self.table, kind = %self.error.kind(), error = %self.error.chain(), "round failed");
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
    /// Logs it.
    pub fn emit(self) {
        error!(
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
        info!(table = %self.table, tiering_epoch = %self.epoch, "table claimed");
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
        info!(table = %self.table, reason = self.reason, "table handed back");
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
    /// Logs it.
    pub fn emit(self) {
        warn!(table = %self.table, reason = self.reason, "lease lost");
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
    /// Logs it.
    pub fn emit(self) {
        info!(table = %self.table, attempt = self.attempt, reason = %self.error.chain(), "round planned afresh");
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
    /// Logs it.
    pub fn emit(self) {
        info!(table = %self.table, snapshot = %self.snapshot, "unknown lake snapshot recorded in Fluss");
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
    /// Logs it.
    pub fn emit(self) {
        let pause_ms = u64::try_from(self.pause.as_millis()).unwrap_or(u64::MAX);
        warn!(error = %self.error.chain(), pause_ms, "heartbeat failed");
    }
}
