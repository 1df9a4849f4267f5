//! What a round did: one shape for log, status, heartbeat and `--json`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::batch::ChangeCounts;
use super::ids::{RoundId, SnapshotId, TableId, TablePath};
use super::layout::BucketLayout;
use super::offsets::BucketKey;

/// How a round ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[must_use]
pub enum RoundOutcome {
    /// A snapshot was made and recorded.
    Committed {
        /// Its id.
        snapshot: SnapshotId,
    },
    /// Nothing to tier; no snapshot was made.
    Idle,
    /// The table was dropped; made again, it is another one. Nothing was made.
    Gone,
}

/// Progress of one bucket in a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BucketProgress {
    /// The bucket.
    pub bucket: BucketKey,
    /// First offset read; −2 = log start, −1 = none: the bucket's state was read.
    pub start_offset: i64,
    /// Exclusive end, now in the lake.
    pub end_offset: i64,
    /// Commit timestamp of the last row, epoch milliseconds; −1 = no row.
    pub max_timestamp_ms: i64,
    /// Rows written.
    pub rows: u64,
}

/// What a round wrote into one partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartitionSummary {
    /// Partition name (F6.6); empty on a table without partitions.
    pub partition: String,
    /// The layout it was planned by.
    pub layout: BucketLayout,
    /// Data files written.
    pub files: u64,
    /// Rows written.
    pub rows: u64,
}

/// Figures of one round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RoundSummary {
    /// The table.
    pub table: TablePath,
    /// Its id.
    pub table_id: TableId,
    /// The round.
    pub round: RoundId,
    /// How it ended.
    pub outcome: RoundOutcome,
    /// Snapshot that recovery found in the lake and recorded in Fluss before planning.
    pub recovered: Option<SnapshotId>,
    /// Newest snapshot that a Fluss service had made in the lake when the round was planned.
    pub base: Option<SnapshotId>,
    /// Whether a limit ended it before it had read everything that it had planned.
    pub cut: bool,
    /// The table's `table.datalake.freshness`; `None` when the table was gone.
    pub freshness_ms: Option<u64>,
    /// Clock time of the log ends that it planned by, epoch milliseconds.
    pub planned_ms: i64,
    /// Records between the lake as it left it and those log ends, of the buckets it was about.
    pub backlog_rows: u64,
    /// At its end: how old a row that is not in the lake can be, milliseconds. Absent when it was cut or its table gone.
    pub lag_ms: Option<u64>,
    /// Splits read.
    pub splits: u64,
    /// Bytes of log fetched.
    pub fetched_bytes: u64,
    /// Rows read. On a primary-key table files have the last one of a key alone.
    pub rows: u64,
    /// What they do, on a primary-key table; `null` on a log table.
    pub changes: Option<ChangeCounts>,
    /// Data files written.
    pub files: u64,
    /// Bytes of the data files.
    pub bytes: u64,
    /// Requests sent to the lake's object store, by what they do (`get`, `put`, …); empty where they cost nothing.
    pub requests: BTreeMap<&'static str, u64>,
    /// Publish attempts.
    pub attempts: u32,
    /// Milliseconds spent planning, reading and writing, committing.
    pub plan_ms: u64,
    /// See `plan_ms`.
    pub write_ms: u64,
    /// See `plan_ms`.
    pub commit_ms: u64,
    /// Per partition, in name order.
    pub partitions: Vec<PartitionSummary>,
    /// Per bucket that advanced.
    pub buckets: Vec<BucketProgress>,
}

impl RoundSummary {
    /// Of a round that has done nothing yet.
    #[must_use]
    pub const fn new(table: TablePath, table_id: TableId, round: RoundId) -> Self {
        Self {
            table,
            table_id,
            round,
            outcome: RoundOutcome::Idle,
            recovered: None,
            base: None,
            cut: false,
            freshness_ms: None,
            planned_ms: 0,
            backlog_rows: 0,
            lag_ms: None,
            splits: 0,
            fetched_bytes: 0,
            rows: 0,
            changes: None,
            files: 0,
            bytes: 0,
            requests: BTreeMap::new(),
            attempts: 0,
            plan_ms: 0,
            write_ms: 0,
            commit_ms: 0,
            partitions: Vec::new(),
            buckets: Vec::new(),
        }
    }
}
