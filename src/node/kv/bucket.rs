//! The state of one bucket.

use std::ops::Bound;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use redb::{
    Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, WriteTransaction,
};
use tokio::sync::OwnedMutexGuard;

use super::changes::Changes;
use super::shape::{Deletes, Shape};
use super::{Shared, broken};
use crate::error::{Error, Result};
use crate::fluss::code::Code;
use crate::fluss::record::{KvBatch, LogFormat, RawBatch, RowEncoder, Value, batches};
use crate::model::{ChangeKind, TableBucket};
use crate::node::log::{AppendError, Appending, BucketLog};
use crate::node::places::{guarded, sync_folder};
use crate::runtime::Moment;

/// Newest row by key: schema id and row, as look-ups answer them (S6.1).
const ROWS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("rows");
const META: TableDefinition<'static, &str, i64> = TableDefinition::new("meta");
/// The offset that the rows stand at: everything before it is in them, nothing behind it.
const APPLIED: &str = "applied";
/// Bytes of the log that are replayed in one transaction.
const REPLAY_BYTES: usize = 4 << 20;

/// The state of one bucket. Puts are serialised by [`BucketKv::writing`]; readers see whole batches and wait for nobody.
#[derive(Debug)]
pub struct BucketKv {
    bucket: TableBucket,
    log: Arc<BucketLog>,
    shared: Arc<Shared>,
    database: Database,
    writing: Arc<tokio::sync::Mutex<Progress>>,
    applied: AtomicI64,
    saved: AtomicI64,
    used: Mutex<Moment>,
}

/// What was changed since the state was made durable; who has it may put.
#[derive(Debug, Default)]
pub struct Progress {
    unsaved_bytes: u64,
    unsaved_since: Option<Moment>,
}

impl BucketKv {
    /// Opens the state and replays what the log has beyond it.
    pub(super) fn open(bucket: TableBucket, log: Arc<BucketLog>, shared: Arc<Shared>, shape: &Shape) -> Result<Self> {
        let folder = shared.places.folder(bucket.table, bucket.partition);
        shared
            .places
            .create(&folder)
            .map_err(|error| Code::KV_STORAGE.answer(format!("the state of {bucket}")).with_source(error))?;
        let path = folder.join(format!("{}.redb", bucket.bucket));
        let mut database = create(bucket, &path, shared.options.cache_bytes)?;
        let mut applied = guarded(&path, || begin(bucket, &database))?;
        if applied > log.log_end() {
            // Only where the log is not synced can a machine that went down lose what the state has.
            tracing::warn!(%bucket, applied, log_end = log.log_end(), "the log ends before its state, which is made again");
            drop(database);
            std::fs::remove_file(&path).map_err(|source| broken(bucket, "delete", redb::StorageError::Io(source)))?;
            database = create(bucket, &path, shared.options.cache_bytes)?;
            applied = begin(bucket, &database)?;
        }
        if applied == 0 {
            // One that stands anywhere else was opened before, and got this far.
            sync_folder(&folder).map_err(|source| broken(bucket, "create", redb::StorageError::Io(source)))?;
        }
        if applied < log.log_start() {
            let text = format!(
                "the state of {bucket} (`{}`) stands at offset `{applied}`, but its log begins at `{}`",
                path.display(),
                log.log_start()
            );
            return Err(Error::data(text).with_hint("the folder `kv` was lost or is of another time than `log`: bring both back from the same copy, or drop the table and write it again"));
        }
        let used = Mutex::new(shared.clock.moment());
        let (applied, saved) = (AtomicI64::new(applied), AtomicI64::new(applied));
        let kv = Self { bucket, log, shared, database, writing: Arc::default(), applied, saved, used };
        kv.catch_up(shape)?;
        Ok(kv)
    }

    /// Its log.
    #[must_use]
    pub fn log(&self) -> &Arc<BucketLog> {
        &self.log
    }

    /// The offset that the state stands at, durable or not.
    #[must_use]
    pub fn applied(&self) -> i64 {
        self.applied.load(Ordering::Acquire)
    }

    /// The offset that it would stand at after a crash.
    #[must_use]
    pub fn saved(&self) -> i64 {
        self.saved.load(Ordering::Acquire)
    }

    pub(super) fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = self.shared.clock.moment();
    }

    pub(super) fn used(&self) -> Moment {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closing makes everything durable: the log has to be so far, too.
    pub(super) fn may_close(&self) -> bool {
        self.applied() == self.log.log_end() && self.applied() <= self.log.high_watermark()
    }

    /// Waits for its turn to put; the state stands where the log ends then.
    ///
    /// # Errors
    /// Code 10 when the log fails, 11 when the state does.
    pub async fn writing(self: &Arc<Self>, shape: &Shape) -> Result<OwnedMutexGuard<Progress>> {
        let progress = Arc::clone(&self.writing).lock_owned().await;
        if self.applied() < self.log.log_end() {
            // The last put got into the log, but not into the state.
            self.log_durable(self.log.log_end()).await?;
            let (kv, shape) = (Arc::clone(self), shape.clone());
            blocking(move || kv.catch_up(&shape)).await??;
        }
        Ok(progress)
    }

    async fn log_durable(&self, offset: i64) -> Result<()> {
        self.log.durable(offset).await.map_err(|error| Code::LOG_STORAGE.answer("not durable").with_source(error))
    }

    /// Puts a batch: changes into the log, then into the state; both or none (blocking). The answer has to wait for the log.
    ///
    /// # Errors
    /// 9, 13, 14, 15, 31 or 57, and nothing was changed; 10 and 11 when the disk failed.
    pub fn put(&self, progress: &mut Progress, shape: &Shape, batch: &KvBatch) -> Result<Appending> {
        let refused = |error: AppendError| error.answer(self.bucket);
        if let Some(original) = self.log.judge(batch.writer_id, batch.sequence).map_err(refused)? {
            return Ok(original);
        }
        if shape.deletes == Deletes::Disable && batch.records().any(|record| record.row.is_none()) {
            return Err(Code::DELETION_DISABLED.answer("the table takes no deletes (`table.delete.behavior`)"));
        }
        let upserts = shape.upserts(batch)?;
        let fault = |source: redb::StorageError| broken(self.bucket, "write", source);
        let write = self.begin(Durability::None)?;
        let mut changes = Changes::default();
        let mut bytes = 0;
        {
            let mut rows = write.open_table(ROWS).map_err(|source| broken(self.bucket, "write", source))?;
            let mut number = 0;
            for record in batch.records() {
                bytes += record.key.len() as u64;
                if let Some(row) = record.row {
                    let value = Value { schema_id: batch.schema_id, row }.to_bytes()?;
                    bytes += value.len() as u64;
                    let old = rows.insert(record.key, value.as_slice()).map_err(fault)?;
                    match old {
                        _ if shape.wal => changes.upsert(ChangeKind::UpdateAfter, number),
                        None => changes.upsert(ChangeKind::Insert, number),
                        Some(old) => {
                            changes.old(ChangeKind::UpdateBefore, old.value())?;
                            changes.upsert(ChangeKind::UpdateAfter, number);
                        }
                    }
                    number += 1;
                } else if shape.deletes == Deletes::Allow
                    && let Some(old) = rows.remove(record.key).map_err(fault)?
                {
                    changes.old(ChangeKind::Delete, old.value())?;
                }
            }
        }
        let changelog = changes.encode(shape, batch, &upserts)?;
        let appending = self.log.append(&changelog).map_err(refused)?;
        self.commit(write, appending.end_offset)?;
        progress.unsaved_bytes += bytes;
        progress.unsaved_since.get_or_insert_with(|| self.shared.clock.moment());
        Ok(appending)
    }

    fn begin(&self, durability: Durability) -> Result<WriteTransaction> {
        let mut write = self.database.begin_write().map_err(|source| broken(self.bucket, "write", source))?;
        write.set_durability(durability).map_err(|source| broken(self.bucket, "write", source))?;
        Ok(write)
    }

    /// Ends a transaction after which the state stands at `applied`.
    fn commit(&self, write: WriteTransaction, applied: i64) -> Result<()> {
        {
            let mut meta = write.open_table(META).map_err(|source| broken(self.bucket, "write", source))?;
            meta.insert(APPLIED, applied).map_err(|source| broken(self.bucket, "write", source))?;
        }
        self.fail_at("kv.before_commit")?;
        write.commit().map_err(|source| broken(self.bucket, "write", source))?;
        self.applied.store(applied, Ordering::Release);
        self.fail_at("kv.after_commit")
    }

    fn fail_at(&self, point: &str) -> Result<()> {
        let failed = self.shared.fail.hit_blocking(point, &self.bucket.to_string());
        failed.map_err(|error| Code::KV_STORAGE.answer("the state").with_source(error))
    }

    /// Whether so much was changed, or so long ago, that the state should be made durable.
    #[must_use]
    pub fn is_due(&self, progress: &Progress) -> bool {
        let options = &self.shared.options;
        let late = progress.unsaved_since.is_some_and(|since| since.elapsed() >= options.unsaved_time_max);
        late || progress.unsaved_bytes >= options.unsaved_bytes_max
    }

    /// Makes the state durable, after the log.
    ///
    /// # Errors
    /// Code 10 when the log fails, 11 when the state does.
    pub async fn save(self: &Arc<Self>, mut progress: OwnedMutexGuard<Progress>) -> Result<()> {
        let applied = self.applied();
        if applied == self.saved() {
            return Ok(());
        }
        self.log_durable(applied).await?;
        let kv = Arc::clone(self);
        blocking(move || {
            kv.fail_at("kv.before_save")?;
            kv.commit(kv.begin(Durability::Immediate)?, applied)?;
            kv.saved.store(applied, Ordering::Release);
            *progress = Progress::default();
            kv.fail_at("kv.after_save")
        })
        .await?
    }

    /// Its turn to put, if nobody has it.
    #[must_use]
    pub fn try_writing(&self) -> Option<OwnedMutexGuard<Progress>> {
        Arc::clone(&self.writing).try_lock_owned().ok()
    }

    /// Waits for its turn, to save.
    pub async fn turn(&self) -> OwnedMutexGuard<Progress> {
        Arc::clone(&self.writing).lock_owned().await
    }

    /// Replays the log from where the state stands, as far as it is durable (blocking).
    fn catch_up(&self, shape: &Shape) -> Result<()> {
        let from = self.applied();
        loop {
            let applied = self.applied();
            let bytes = self.log.read(applied, REPLAY_BYTES, true).map_err(|error| error.answer(self.bucket))?;
            if bytes.is_empty() {
                if applied > from {
                    tracing::info!(bucket = %self.bucket, from, to = applied, "state caught up with its log");
                }
                return Ok(());
            }
            let write = self.begin(Durability::Immediate)?;
            let mut next = applied;
            for batch in batches(bytes) {
                let batch = batch?;
                if batch.header.base_offset != next {
                    return Err(Error::data(format!(
                        "the log of {} goes from `{next}` on with `{}`",
                        self.bucket, batch.header.base_offset
                    )));
                }
                next = batch.header.next_offset();
                self.replay(&write, shape, &batch)?;
            }
            self.commit(write, next)?;
            self.saved.store(next, Ordering::Release);
        }
    }

    fn replay(&self, write: &WriteTransaction, shape: &Shape, batch: &RawBatch) -> Result<()> {
        let id = batch.header.schema_id;
        let schema = shape.schema(id)?;
        let Some(decoded) = batch.decode(LogFormat::Arrow, &schema, self.bucket)? else { return Ok(()) };
        let kinds =
            decoded.changes.ok_or_else(|| Error::data(format!("the log of {} has rows that are no changes", self.bucket)))?;
        let mut keys = shape.keys(&schema.schema, &decoded.rows)?;
        let encoder = RowEncoder::new(shape.format, &schema.schema, &decoded.rows)?;
        let mut rows = write.open_table(ROWS).map_err(|source| broken(self.bucket, "write", source))?;
        let mut encoded = Vec::new();
        for (row, kind) in kinds.into_iter().enumerate() {
            let fault = |source: redb::StorageError| broken(self.bucket, "write", source);
            match kind {
                ChangeKind::UpdateBefore => {}
                ChangeKind::Insert | ChangeKind::UpdateAfter => {
                    encoded.clear();
                    encoder.encode(row, &mut encoded)?;
                    let value = Value { schema_id: id, row: &encoded }.to_bytes()?;
                    rows.insert(keys.key(row)?, value.as_slice()).map_err(fault)?;
                }
                ChangeKind::Delete => {
                    rows.remove(keys.key(row)?).map_err(fault)?;
                }
                ChangeKind::Append => return Err(Error::data(format!("the log of {} has appends", self.bucket))),
            }
        }
        Ok(())
    }

    /// The state as it is now (blocking). What it tells may be heard of only after [`Snapshot::settled`].
    ///
    /// # Errors
    /// Code 11 when it can't be read.
    pub fn snapshot(self: &Arc<Self>) -> Result<Snapshot> {
        self.touch();
        let read = self.database.begin_read().map_err(|source| broken(self.bucket, "read", source))?;
        let rows = read.open_table(ROWS).map_err(|source| broken(self.bucket, "read", source))?;
        let meta = read.open_table(META).map_err(|source| broken(self.bucket, "read", source))?;
        let applied = meta.get(APPLIED).map_err(|source| broken(self.bucket, "read", source))?;
        let log_offset = applied.map_or(0, |applied| applied.value());
        Ok(Snapshot { log_offset, rows, kv: Arc::clone(self) })
    }
}

/// A state as it was at one moment, whatever is put since.
pub struct Snapshot {
    /// The log goes on from it here.
    pub log_offset: i64,
    rows: ReadOnlyTable<&'static [u8], &'static [u8]>,
    kv: Arc<BucketKv>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("bucket", &self.kv.bucket).field("log_offset", &self.log_offset).finish_non_exhaustive()
    }
}

impl Snapshot {
    /// Waits until nothing of it can be lost any more.
    ///
    /// # Errors
    /// Code 10 when the log fails.
    pub async fn settled(&self) -> Result<()> {
        self.kv.log_durable(self.log_offset).await
    }

    /// Whose it is.
    #[must_use]
    pub fn bucket(&self) -> TableBucket {
        self.kv.bucket
    }

    /// The value at `key` (blocking).
    ///
    /// # Errors
    /// Code 11 when it can't be read.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let found = self.rows.get(key).map_err(|source| broken(self.kv.bucket, "read", source))?;
        Ok(found.map(|value| Bytes::copy_from_slice(value.value())))
    }

    /// How many rows there are (blocking).
    ///
    /// # Errors
    /// Code 11 when it can't be read.
    pub fn rows(&self) -> Result<u64> {
        self.rows.len().map_err(|source| broken(self.kv.bucket, "read", source))
    }

    /// Calls `take` with keys and values in the order of keys, from `from` on, until it says no (blocking).
    ///
    /// # Errors
    /// Code 11 when they can't be read; what `take` fails with.
    pub fn walk(&self, from: Bound<&[u8]>, mut take: impl FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        let fault = |source| broken(self.kv.bucket, "read", source);
        for entry in self.rows.range::<&[u8]>((from, Bound::Unbounded)).map_err(fault)? {
            let (key, value) = entry.map_err(fault)?;
            if !take(key.value(), value.value())? {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn create(bucket: TableBucket, path: &PathBuf, cache_bytes: usize) -> Result<Database> {
    guarded(path, || Database::builder().set_cache_size(cache_bytes).create(path).map_err(|source| broken(bucket, "open", source)))
}

/// Where the state stands; a new one at 0.
fn begin(bucket: TableBucket, database: &Database) -> Result<i64> {
    let fault = |source: redb::Error| broken(bucket, "open", source);
    let mut write = database.begin_write().map_err(|source| fault(source.into()))?;
    // An empty one that a crash takes is made again.
    write.set_durability(Durability::None).map_err(|source| fault(source.into()))?;
    let (applied, fresh) = {
        let mut meta = write.open_table(META).map_err(|source| fault(source.into()))?;
        write.open_table(ROWS).map_err(|source| fault(source.into()))?;
        let known = meta.get(APPLIED).map_err(|source| fault(source.into()))?.map(|applied| applied.value());
        if known.is_none() {
            meta.insert(APPLIED, 0).map_err(|source| fault(source.into()))?;
        }
        (known.unwrap_or(0), known.is_none())
    };
    if fresh {
        write.commit().map_err(|source| fault(source.into()))?;
    } else {
        write.abort().map_err(|source| fault(source.into()))?;
    }
    Ok(applied)
}

/// See [`super::read_state`].
#[cfg(test)]
pub(super) fn read_state(path: &std::path::Path) -> Result<()> {
    let bucket = TableBucket { table: crate::model::TableId(1), partition: None, bucket: crate::model::BucketId(0) };
    let fault = |source: redb::Error| broken(bucket, "read", source);
    let database = create(bucket, &path.to_owned(), 2 << 20)?;
    guarded(path, || begin(bucket, &database))?;
    guarded(path, || {
        let read = database.begin_read().map_err(|source| fault(source.into()))?;
        let rows = read.open_table(ROWS).map_err(|source| fault(source.into()))?;
        for row in rows.iter().map_err(|source| fault(source.into()))? {
            let (_, value) = row.map_err(|source| fault(source.into()))?;
            Value::parse(value.value())?;
        }
        Ok(())
    })
}

/// Runs blocking work on a state.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|source| Error::internal("state task ended").with_source(source))
}
