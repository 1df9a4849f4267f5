//! The logs: segment files per bucket, producer state, durability, retention.
//!
//! Owns the files below one folder. Batches go in as producers sent them and come out with base offset and commit timestamp
//! stamped; nothing is served to readers before it is durable. Knows no tables, only bucket ids. Called by the server.
//!
//! Source: S4.2, S4.3, S5.1, S5.4.

mod bucket;
mod handles;
mod segment;
mod writers;
#[cfg(test)]
pub(super) mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::places::Places;
use super::slots::{Slots, inside};
use crate::error::{Error, Result};
use crate::model::{PartitionId, TableBucket, TableId};
use crate::runtime::{Clock, FailPoints, Runtime};

/// Reads a segment at `path` with these files beside it, for [`crate::hostile`].
#[cfg(any(test, fuzzing))]
pub(super) fn read_segment(path: &std::path::Path, seal: &[u8], writers: &[u8]) -> Result<()> {
    segment::read_all(path, seal, writers)
}

pub use bucket::{AppendError, Appending, BucketLog, ReadError};
use handles::Handles;

/// How logs are kept.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// Sync a batch's bytes to the disk before it is acknowledged and served.
    pub fsync: bool,
    /// Bytes after which a segment is closed and the next begun.
    pub segment_bytes: u64,
    /// Segment files kept open, beside those in use.
    pub open_files_max: usize,
    /// Buckets whose bytes are synced at the same time.
    pub syncs_max: usize,
    /// A producer that was idle for longer is forgotten.
    pub writer_idle_ms: i64,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            fsync: true,
            segment_bytes: 128 << 20,
            open_files_max: 512,
            syncs_max: 16,
            writer_idle_ms: 7 * 24 * 3_600_000, // S4.3
        }
    }
}

/// All logs of a node.
#[derive(Debug)]
pub struct LogStore {
    shared: Arc<Shared>,
    open: Slots<BucketLog>,
}

/// What every bucket needs of the store.
#[derive(Debug)]
struct Shared {
    places: Places,
    options: LogOptions,
    handles: Handles,
    syncs: Arc<Semaphore>,
    clock: Clock,
    fail: FailPoints,
}

impl LogStore {
    /// Opens the logs below `root`, which is made when missing. Buckets are opened when they are first asked for.
    ///
    /// # Errors
    /// `Invalid` when the folder can't be made.
    pub fn open(root: PathBuf, options: LogOptions, runtime: &Runtime) -> Result<Self> {
        let places = Places::open(root, runtime.fail.clone())?;
        let handles = Handles::new(options.open_files_max);
        let syncs = Arc::new(Semaphore::new(options.syncs_max.max(1)));
        let (clock, fail) = (runtime.clock.clone(), runtime.fail.clone());
        Ok(Self { shared: Arc::new(Shared { places, options, handles, syncs, clock, fail }), open: Slots::default() })
    }

    /// The log of `bucket`; one without files is empty. Reads its newest segment when it is asked for the first time (blocking).
    ///
    /// # Errors
    /// `Data` when a closed segment is damaged or missing, `Unavailable` when files can't be read.
    pub fn bucket(&self, bucket: TableBucket) -> Result<Arc<BucketLog>> {
        let slot = self.open.of(bucket).ok_or_else(|| Error::unavailable(format!("the log of {bucket} was deleted")))?;
        let mut slot = inside(&slot);
        if let Some(log) = &*slot {
            return Ok(Arc::clone(log));
        }
        let log = Arc::new(BucketLog::open(bucket, self.shared.bucket_folder(bucket), Arc::clone(&self.shared))?);
        *slot = Some(Arc::clone(&log));
        Ok(log)
    }

    /// Closes and deletes the logs of a table, or of one partition of it (blocking).
    ///
    /// # Errors
    /// `Unavailable` when files can't be deleted; the next start does it then.
    pub fn delete(&self, table: TableId, partition: Option<PartitionId>) -> Result<()> {
        for slot in self.open.delete(table, partition) {
            if let Some(log) = &*inside(&slot) {
                log.close();
            }
        }
        let folder = self.shared.places.folder(table, partition);
        self.shared.handles.forget(&folder);
        self.shared.places.remove(&folder)
    }

    /// Deletes the logs of tables that `known` does not know (blocking): what a crash left of dropped tables.
    ///
    /// # Errors
    /// `Unavailable` when the folder can't be read or files can't be deleted.
    pub fn delete_unknown(&self, known: impl Fn(TableId, Option<PartitionId>) -> bool) -> Result<()> {
        self.shared.places.remove_unknown(known)
    }

    /// Makes everything written durable (graceful stop).
    pub async fn flush(&self) {
        for slot in self.open.all(None) {
            let Some(log) = inside(&slot).clone() else { continue };
            if let Err(error) = log.durable(log.log_end()).await {
                tracing::error!(bucket = %log.bucket(), error = %error.chain(), "log not flushed");
            }
        }
    }
}

impl Shared {
    fn bucket_folder(&self, bucket: TableBucket) -> PathBuf {
        self.places.folder(bucket.table, bucket.partition).join(bucket.bucket.to_string())
    }
}
