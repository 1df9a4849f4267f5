//! A cluster behind three traits: the queue, the tables, the ledger of lake snapshots.
//!
//! [`Assignments`] hands out tables and takes reports, [`TableScan`] describes tables and serves log records,
//! [`LakeLedger`] is what the coordinator knows about lake snapshots. Two implementations: [`cluster`] over the wire
//! (real Fluss and `lakeward node` alike) and the doc-hidden twin [`memory`] with faults. One conformance suite
//! (`conformance`) runs on twin, node and a real cluster. Callers: plan, read, commit, round, daemon.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{Error, Result};
use crate::model::{
    BucketKey, BucketLayout, CoordinatorEpoch, LakeOffsets, OffsetsFile, Partition, Schema, SchemaId, SnapshotId, StartOffset,
    TableBucket, TableId, TableInfo, TablePath, TieringEpoch,
};
use crate::storage;

/// A table in our hands: what names it in a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The table.
    pub table: TableId,
    /// Coordinator epoch of the answer that assigned it.
    pub coordinator_epoch: CoordinatorEpoch,
    /// Tiering epoch of the assignment.
    pub tiering_epoch: TieringEpoch,
}

/// A table handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// What names it from now on.
    pub held: Held,
    /// Where it is.
    pub path: TablePath,
}

/// A finished table in a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finished {
    /// The table.
    pub held: Held,
    /// Back into the queue at once, instead of one freshness later.
    pub forced: bool,
}

/// One heartbeat: requests, renewals and results in one call (F1.3, F2.4).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// Renewals.
    pub tiering: Vec<Held>,
    /// Done.
    pub finished: Vec<Finished>,
    /// Failed: back into the queue at once.
    pub failed: Vec<Held>,
    /// Whether another table is wanted.
    pub request_table: bool,
}

/// A per-table error in a heartbeat's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeartbeatFault {
    /// Fluss error code: 7, 23, 50, −1.
    pub code: i32,
    /// The server's words.
    pub message: String,
}

/// Answer to a heartbeat. The lists name every table of the request once; `None` = accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeartbeatReply {
    /// Adopt it for new assignments only.
    pub coordinator_epoch: CoordinatorEpoch,
    /// At most one table, and only if one was asked for.
    pub assigned: Option<Assignment>,
    /// Renewals.
    pub tiering: Vec<(TableId, Option<HeartbeatFault>)>,
    /// Finished tables.
    pub finished: Vec<(TableId, Option<HeartbeatFault>)>,
    /// Failed tables.
    pub failed: Vec<(TableId, Option<HeartbeatFault>)>,
}

/// The queue of tables (F1.3).
///
/// A heartbeat is not idempotent: a lost answer may have handed out a table, which then waits for its lease to end.
#[async_trait]
pub trait Assignments: Send + Sync {
    /// Sends one heartbeat.
    ///
    /// # Errors
    /// `Unavailable` when the coordinator can't be reached or is starting (whole-request −1, 65).
    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatReply>;
}

/// One bucket in a [`FetchRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchBucket {
    /// The bucket.
    pub bucket: TableBucket,
    /// First offset wanted.
    pub offset: StartOffset,
    /// Bytes wanted at most; one whole batch comes even if larger.
    pub bytes_max: i32,
    /// The layout the round was planned by: its count goes out as `routing_bucket_count`.
    pub layout: BucketLayout,
}

/// Buckets of one table to fetch from, in one request per server that leads them.
#[derive(Debug, Clone)]
pub struct FetchRequest {
    /// The table, as the round was planned by it.
    pub table: Arc<TableInfo>,
    /// The buckets, each once.
    pub buckets: Vec<FetchBucket>,
    /// How long a server may wait for the first bytes, milliseconds.
    pub wait_ms: i32,
}

/// What one bucket answered.
#[derive(Debug)]
pub struct FetchedBucket {
    /// The bucket.
    pub bucket: TableBucket,
    /// Exclusive end of what readers may see.
    pub high_watermark: i64,
    /// Raw, checked-on-decode batches; may be empty.
    pub log: LogSlice,
    /// Where the wanted offset lies, when it has left the server; `log` is empty then.
    pub remote: Option<RemoteLog>,
}

/// Describes tables and serves their logs. All calls may be repeated.
#[async_trait]
pub trait TableScan: Send + Sync {
    /// Describes a table (GetTableInfo). Call it before [`TableScan::partitions`] (architecture.md 4).
    ///
    /// # Errors
    /// `Invalid` with code 7 when there is no such table; `Unavailable`.
    async fn table_info(&self, path: &TablePath) -> Result<TableInfo>;

    /// An older or newer schema of the table.
    ///
    /// # Errors
    /// `Unavailable`, also when the server does not know the schema yet (9).
    async fn schema(&self, path: &TablePath, id: SchemaId) -> Result<Arc<Schema>>;

    /// The table's partitions with their own bucket counts (ListPartitionInfos; where a server does not tell counts, `None`).
    ///
    /// # Errors
    /// `Invalid` with code 7 or 37; `Unavailable`.
    async fn partitions(&self, table: &TableInfo) -> Result<Vec<Partition>>;

    /// Exclusive end offset (high watermark) of each bucket `0..layout.count`; `None` when the partition is gone.
    ///
    /// # Errors
    /// `Stale` on error 74; `Unavailable`.
    async fn end_offsets(&self, table: &TableInfo, partition: Option<&Partition>, layout: BucketLayout)
    -> Result<Option<Vec<i64>>>;

    /// Log start offset of each bucket `0..layout.count`; `None` when the partition is gone.
    ///
    /// # Errors
    /// As [`TableScan::end_offsets`].
    async fn start_offsets(
        &self,
        table: &TableInfo,
        partition: Option<&Partition>,
        layout: BucketLayout,
    ) -> Result<Option<Vec<i64>>>;

    /// Groups buckets by the server that leads them now: each group fits one request.
    ///
    /// # Errors
    /// `Unavailable` when a bucket has no leader for long.
    async fn lanes(&self, table: &TableInfo, buckets: &[TableBucket]) -> Result<Vec<Vec<TableBucket>>>;

    /// Fetches from all buckets of the request; one entry per bucket, in any order. Leader changes are retried inside.
    ///
    /// # Errors
    /// `Stale` on 74, or when the table or partition is gone (7, 21, 36) for good; `Data` with both offsets named when an offset is out
    /// of range (19); `Unavailable`.
    async fn fetch(&self, request: FetchRequest) -> Result<Vec<FetchedBucket>>;

    /// Whether the servers serve states (ScanKv). The answer is the cluster's, not a table's.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn serves_states(&self) -> Result<bool>;

    /// Opens a scan of the whole state of a primary-key bucket and fetches its first values. Leader changes and full servers (69) are
    /// waited for inside.
    ///
    /// # Errors
    /// `Unsupported` when the server has no ScanKv; `Stale` as [`TableScan::fetch`]; `Invalid` (20) when the table has no primary key;
    /// `Data`; `Unavailable`.
    async fn open_state(&self, request: StateRequest) -> Result<Box<dyn StateScan>>;

    /// Bytes `start..end` (exclusive) of a file of the remote log, fewer when it is shorter; `None` when it is not there.
    ///
    /// # Errors
    /// `Unsupported` names a storage scheme that is not there; `Unavailable`; `Invalid` when access is denied.
    async fn remote_bytes(&self, url: &str, start: u64, end: u64) -> Result<Option<Bytes>> {
        storage::read_range(url, start, end, &storage::StoreOptions::default()).await
    }

    /// Throws away everything cached about a table.
    fn forget(&self, path: &TablePath);
}

/// What the coordinator knows about a table's lake snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LedgerState {
    /// Nothing (53): never tiered.
    Empty,
    /// The newest entry.
    At(LedgerEntry),
    /// The server can't read what it has (−1): its offsets file is gone, or the coordinator is starting.
    Unknown {
        /// The server's words.
        message: String,
    },
    /// The table is gone (7).
    TableGone,
}

/// One lake snapshot known to Fluss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerEntry {
    /// The table.
    pub table: TableId,
    /// The lake snapshot.
    pub snapshot: SnapshotId,
    /// Exclusive end offsets.
    pub offsets: LakeOffsets,
}

/// A snapshot to record (F3.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerRecord {
    /// The table.
    pub table: TableId,
    /// Its path.
    pub path: TablePath,
    /// The lake snapshot.
    pub snapshot: SnapshotId,
    /// What [`LakeLedger::prepare`] returned: tiered and readable path alike.
    pub offsets_path: String,
    /// The same offsets, for `tables_req` (log retention).
    pub offsets: LakeOffsets,
    /// Newest commit timestamp per bucket that got rows in this round, epoch milliseconds.
    pub max_timestamps: BTreeMap<BucketKey, i64>,
    /// Oldest entry to keep; −1 = all. Never absent on the wire (commit.md 6).
    pub earliest_to_keep: i64,
}

/// The coordinator's list of lake snapshots (F3). Not fenced, not ordered, not idempotent: see commit.md.
#[async_trait]
pub trait LakeLedger: Send + Sync {
    /// The newest entry.
    ///
    /// # Errors
    /// `Unavailable` (retriable codes, network); `Invalid` for any other code but 53, 7 and −1.
    async fn latest(&self, path: &TablePath) -> Result<LedgerState>;

    /// Writes an offsets file with exactly these offsets (`ignore_previous_table_offsets` = true) and returns its path.
    ///
    /// # Errors
    /// `Unavailable`; `Invalid` with the code otherwise.
    async fn prepare(&self, table: TableId, path: &TablePath, offsets: &LakeOffsets) -> Result<String>;

    /// Reads the offsets file at a path that some service's [`LakeLedger::prepare`] returned; `None` when it is gone.
    ///
    /// The wire has no call for a file that no entry names, so it is read where it lies (F3.1).
    ///
    /// # Errors
    /// `Unavailable`; `Data` when it is no offsets file; `Unsupported` names a scheme that we can't read.
    async fn offsets_file(&self, path: &str) -> Result<Option<OffsetsFile>> {
        parsed(path, storage::read(path, &storage::StoreOptions::default()).await?)
    }

    /// Records a snapshot. An OK does not say that it stays.
    ///
    /// # Errors
    /// `Unavailable` (outcome unknown on the network); `Invalid` with the code otherwise.
    async fn record(&self, record: LedgerRecord) -> Result<()>;
}

/// What an offsets file says.
fn parsed(path: &str, bytes: Option<Bytes>) -> Result<Option<OffsetsFile>> {
    let Some(bytes) = bytes else { return Ok(None) };
    let text = std::str::from_utf8(&bytes)
        .map_err(|source| Error::data(format!("offsets file `{path}` is not text")).with_source(source))?;
    OffsetsFile::from_json(text).map(Some).map_err(|error| error.context(format!("read offsets file `{path}`")))
}

pub mod cluster;
#[doc(hidden)]
pub mod conformance;
#[doc(hidden)]
pub mod memory;
mod lease;
mod remote;
mod slice;
mod state;

pub use lease::{LEASE_TRUSTED, Lease};
pub use remote::{RemoteLog, RemoteRange, RemoteRead, RemoteSegment};
pub use slice::{Decoded, Fitting, LogSlice};
pub use state::{STATE_BYTES_MAX, StateRequest, StateScan, StateSlice, is_state_lost};
