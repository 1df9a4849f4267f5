//! The state of primary-key tables: newest row per key, a redb file per bucket.
//!
//! Owns those files and what a KV batch does to them and to the log. **The log is the truth**: a batch is in it before its changes are in
//! the state, each state names the log offset that it stands at (in the same transaction), and what a crash took from a state is
//! replayed from the log before the state is used. A state becomes durable only up to what the log has durable, so a torn tail never
//! leaves it ahead. Keys and rows lie there as clients send them: bytes that only `shape` looks into. Called by the server.
//!
//! Source: S6, F5.7, F5.8.

mod bucket;
mod changes;
mod scan;
mod shape;
#[cfg(test)]
pub(super) mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::log::LogStore;
use super::places::Places;
use super::slots::{Slot, Slots, inside};
use crate::error::{Error, Result};
use crate::fluss::code::Code;
use crate::model::{PartitionId, TableBucket, TableId};
use crate::runtime::{Clock, FailPoints, Runtime};

pub use bucket::{BucketKv, Progress, Snapshot};
pub use scan::{Answer, Next, Scanners};
pub use shape::Shape;

/// How states are kept.
#[derive(Debug, Clone)]
pub struct KvOptions {
    /// States open at the same time, beside those in use.
    pub open_max: usize,
    /// Memory of an open state's cache.
    pub cache_bytes: usize,
    /// Bytes of changes after which a state is made durable; what a crash takes is read from the log again.
    pub unsaved_bytes_max: u64,
    /// Time after which it is, however few there are.
    pub unsaved_time_max: Duration,
    /// Scans of one bucket at the same time.
    pub scanners_per_bucket_max: usize,
    /// Scans at the same time.
    pub scanners_max: usize,
    /// A scan that nobody asked to go on for so long ends.
    pub scanner_idle_max: Duration,
}

impl Default for KvOptions {
    fn default() -> Self {
        Self {
            open_max: 256,
            cache_bytes: 2 << 20,
            unsaved_bytes_max: 32 << 20,
            unsaved_time_max: Duration::from_secs(10),
            // F8.1
            scanners_per_bucket_max: 8,
            scanners_max: 200,
            scanner_idle_max: Duration::from_secs(600),
        }
    }
}

/// All states of a node.
#[derive(Debug)]
pub struct KvStore {
    shared: Arc<Shared>,
    logs: Arc<LogStore>,
    open: Slots<BucketKv>,
}

/// What every bucket needs of the store.
#[derive(Debug)]
struct Shared {
    places: Places,
    options: KvOptions,
    clock: Clock,
    fail: FailPoints,
}

impl KvStore {
    /// Opens the states below `root`, which is made when missing. Buckets are opened when they are first asked for.
    ///
    /// # Errors
    /// `Invalid` when the folder can't be made.
    pub fn open(root: PathBuf, options: KvOptions, logs: Arc<LogStore>, runtime: &Runtime) -> Result<Self> {
        let places = Places::open(root, runtime.fail.clone())?;
        let shared = Shared { places, options, clock: runtime.clock.clone(), fail: runtime.fail.clone() };
        Ok(Self { shared: Arc::new(shared), logs, open: Slots::default() })
    }

    /// The options.
    #[must_use]
    pub fn options(&self) -> &KvOptions {
        &self.shared.options
    }

    /// The state of `bucket`, which stands where its log ends when it is opened (blocking).
    ///
    /// # Errors
    /// `Data` when it can't be made from the log; code 11 when files can't be read or written, 10 for those of the log.
    pub fn bucket(&self, bucket: TableBucket, shape: &Shape) -> Result<Arc<BucketKv>> {
        let slot = self.slot(bucket)?;
        let mut slot = inside(&slot);
        if let Some(kv) = &*slot {
            kv.touch();
            return Ok(Arc::clone(kv));
        }
        // Who waited for a delete to let go of it must not make it anew.
        self.slot(bucket)?;
        self.close_idle(bucket);
        let log = self
            .logs
            .bucket(bucket)
            .map_err(|error| Code::LOG_STORAGE.answer(format!("the log of {bucket}")).with_source(error))?;
        let kv = Arc::new(BucketKv::open(bucket, log, Arc::clone(&self.shared), shape)?);
        *slot = Some(Arc::clone(&kv));
        Ok(kv)
    }

    /// Lets go of a state whose file failed: the next who asks for it opens it anew, as soon as nobody uses this one.
    pub fn close(&self, bucket: TableBucket) {
        if let Some(slot) = self.open.known(bucket) {
            inside(&slot).take();
        }
    }

    fn slot(&self, bucket: TableBucket) -> Result<Slot<BucketKv>> {
        self.open.of(bucket).ok_or_else(|| Code::UNKNOWN_TABLE_OR_BUCKET.answer(format!("{bucket} was dropped")))
    }

    /// Closes the states that were not used for the longest time, as far as there are too many. `opening` is one more.
    fn close_idle(&self, opening: TableBucket) {
        let slots = self.open.all(Some(opening));
        let used = |slot: &Slot<BucketKv>| slot.try_lock().ok()?.as_ref().map(|kv| kv.used());
        let mut open: Vec<_> = slots.iter().filter_map(|slot| Some((used(slot)?, slot))).collect();
        let Some(too_many) = (open.len() + 1).checked_sub(self.shared.options.open_max.max(1)).filter(|count| *count > 0) else {
            return;
        };
        open.sort_by_key(|(used, _)| *used);
        for (_, slot) in open.into_iter().take(too_many) {
            if let Ok(mut slot) = slot.try_lock()
                && slot.as_ref().is_some_and(|kv| Arc::strong_count(kv) == 1 && kv.may_close())
            {
                slot.take();
            }
        }
    }

    /// The states that are open.
    #[must_use]
    pub fn all_open(&self) -> Vec<Arc<BucketKv>> {
        // One that is being opened has nothing to save yet.
        self.open.all(None).iter().filter_map(|slot| slot.try_lock().ok()?.clone()).collect()
    }

    /// Deletes the states of a table, or of one partition of it (blocking).
    ///
    /// # Errors
    /// `Unavailable` when files can't be deleted; the next start does it then.
    pub fn delete(&self, table: TableId, partition: Option<PartitionId>) -> Result<()> {
        for slot in self.open.delete(table, partition) {
            inside(&slot).take();
        }
        self.shared.places.remove(&self.shared.places.folder(table, partition))
    }

    /// Deletes the states of tables that `known` does not know (blocking): what a crash left of dropped tables.
    ///
    /// # Errors
    /// `Unavailable` when the folder can't be read or files can't be deleted.
    pub fn delete_unknown(&self, known: impl Fn(TableId, Option<PartitionId>) -> bool) -> Result<()> {
        self.shared.places.remove_unknown(known)
    }
}

/// Opens the state in the file at `path` and reads all of it, for [`crate::hostile`].
#[cfg(test)]
pub(super) fn read_state(path: &std::path::Path) -> Result<()> {
    bucket::read_state(path)
}

/// Error 11: the state can't be read or written.
fn broken(bucket: TableBucket, act: &str, source: impl Into<redb::Error>) -> Error {
    let source: redb::Error = source.into();
    tracing::error!(%bucket, act, error = %source, "state can't be used");
    Code::KV_STORAGE.answer(format!("{act} the state of {bucket}")).with_source(source)
}
