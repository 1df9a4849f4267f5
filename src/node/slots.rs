//! One slot per bucket for what is open of it: a log, or a state. Called by `log` and `kv`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::model::{PartitionId, TableBucket, TableId};

/// What is open of a bucket, or being opened by whoever holds the lock: others may open theirs meanwhile.
pub(super) type Slot<T> = Arc<Mutex<Option<Arc<T>>>>;

/// The slots of all buckets.
#[derive(Debug)]
pub(super) struct Slots<T>(Mutex<Open<T>>);

#[derive(Debug)]
struct Open<T> {
    slots: BTreeMap<TableBucket, Slot<T>>,
    /// What was deleted. Ids never come again, so requests that are still under way must not open it anew.
    gone: BTreeSet<(TableId, Option<PartitionId>)>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self(Mutex::new(Open { slots: BTreeMap::new(), gone: BTreeSet::new() }))
    }
}

impl<T> Slots<T> {
    /// The slot of a bucket, made when missing; `None` = it was deleted.
    pub(super) fn of(&self, bucket: TableBucket) -> Option<Slot<T>> {
        let mut open = self.lock();
        let gone = [None, bucket.partition].iter().any(|partition| open.gone.contains(&(bucket.table, *partition)));
        (!gone).then(|| Arc::clone(open.slots.entry(bucket).or_default()))
    }

    /// The slot of a bucket that was opened before.
    pub(super) fn known(&self, bucket: TableBucket) -> Option<Slot<T>> {
        self.lock().slots.get(&bucket).cloned()
    }

    /// All slots but that of `except`.
    pub(super) fn all(&self, except: Option<TableBucket>) -> Vec<Slot<T>> {
        self.lock().slots.iter().filter(|(bucket, _)| Some(**bucket) != except).map(|(_, slot)| Arc::clone(slot)).collect()
    }

    /// Takes out the slots of a table, or of one partition of it, for good.
    pub(super) fn delete(&self, table: TableId, partition: Option<PartitionId>) -> Vec<Slot<T>> {
        let mut open = self.lock();
        open.gone.insert((table, partition));
        let gone = |bucket: &TableBucket| bucket.table == table && (partition.is_none() || bucket.partition == partition);
        open.slots.extract_if(.., |bucket, _| gone(bucket)).map(|(_, slot)| slot).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Open<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is in a slot, for as long as the guard lives.
pub(super) fn inside<T>(slot: &Slot<T>) -> MutexGuard<'_, Option<Arc<T>>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}
