//! One table, one round: recover, plan, read and write, commit. The only place where the stages meet.
//!
//! Owns the order of things, how many buckets are in progress, when a stale round is planned afresh, and what becomes of
//! the files of a round that failed. Callers: `daemon`, `cli` (quickstart).

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::model::{RoundSummary, TableId, TablePath, TieringEpoch};
use crate::runtime::Runtime;
use crate::source::{LakeLedger, Lease, TableScan};
use crate::write::WriteOptions;
use crate::{plan, read};

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
        }
    }
}

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
}

/// Runs one round.
///
/// # Errors
/// Those of the stages. `Stale` when it was planned afresh as often as allowed, or when its lease was lost.
pub async fn run(context: &RoundContext, job: &Job) -> Result<RoundSummary> {
    let _ = (context, job);
    Err(Error::unsupported("rounds"))
}
