//! One budget in bytes for everything that is buffered, and what is set aside beside it (architecture.md 6).

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Bytes are counted in units of this size, so that the semaphore's 32-bit permits reach beyond 4 GiB.
const UNIT: usize = 1024;

/// A shared number of bytes; permits take from it and give back when dropped.
#[derive(Debug, Clone)]
pub struct Budget {
    semaphore: Arc<Semaphore>,
    units: u32,
    waiting: watch::Sender<usize>,
}

/// Bytes taken from a [`Budget`], given back when dropped.
#[derive(Debug)]
pub struct Permit {
    inner: OwnedSemaphorePermit,
}

impl Permit {
    /// Bytes it holds (rounded up to whole units).
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.inner.num_permits() * UNIT
    }

    /// Joins another permit of the same budget into this one.
    pub fn merge(&mut self, other: Self) {
        self.inner.merge(other.inner);
    }

    /// Moves `bytes` of it (at most all) into a permit of its own.
    #[must_use]
    pub fn split(&mut self, bytes: usize) -> Self {
        let units = bytes.div_ceil(UNIT).min(self.inner.num_permits());
        // Never more than there is, so never `None`; an empty permit is harmless.
        loop {
            if let Some(inner) = self.inner.split(units) {
                return Self { inner };
            }
        }
    }

    /// Gives back all above `bytes`.
    pub fn shrink(&mut self, bytes: usize) {
        let keep = bytes.div_ceil(UNIT);
        let spare = self.inner.num_permits().saturating_sub(keep);
        drop(self.inner.split(spare));
    }
}

impl Budget {
    /// A budget of `bytes`.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let units =
            u32::try_from((bytes / UNIT).max(1)).unwrap_or(u32::MAX).min(u32::try_from(Semaphore::MAX_PERMITS).unwrap_or(u32::MAX));
        Self { semaphore: Arc::new(Semaphore::new(units as usize)), units, waiting: watch::Sender::new(0) }
    }

    /// Total bytes.
    #[must_use]
    pub fn total(&self) -> usize {
        self.units as usize * UNIT
    }

    /// Bytes taken now.
    #[must_use]
    pub fn used(&self) -> usize {
        self.total().saturating_sub(self.semaphore.available_permits() * UNIT)
    }

    fn units_of(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(self.units)
    }

    /// Takes `bytes`, waiting for others to give back; more than the whole budget takes all of it (let in alone).
    pub async fn acquire(&self, bytes: usize) -> Permit {
        if let Some(permit) = self.try_acquire(bytes) {
            return permit;
        }
        let _waiting = Waiting::new(&self.waiting);
        // The semaphore is never closed, so waiting can't fail.
        loop {
            if let Ok(inner) = Arc::clone(&self.semaphore).acquire_many_owned(self.units_of(bytes)).await {
                return Permit { inner };
            }
        }
    }

    /// Returns when somebody waits for bytes: whoever buffers should then give some back.
    pub async fn pressed(&self) {
        let mut waiting = self.waiting.subscribe();
        // The sender lives in `self`, so waiting can't fail.
        drop(waiting.wait_for(|count| *count > 0).await);
    }

    /// Whether somebody waits for bytes now.
    #[must_use]
    pub fn is_pressed(&self) -> bool {
        *self.waiting.borrow() > 0
    }

    /// Takes `bytes` if they are free now.
    #[must_use]
    pub fn try_acquire(&self, bytes: usize) -> Option<Permit> {
        Arc::clone(&self.semaphore).try_acquire_many_owned(self.units_of(bytes)).ok().map(|inner| Permit { inner })
    }

    /// Takes of `bytes` what is free now, maybe nothing.
    #[must_use]
    pub fn take_free(&self, bytes: usize) -> Permit {
        // Others may be faster; then there is less.
        loop {
            let free = u32::try_from(self.semaphore.available_permits()).unwrap_or(u32::MAX);
            if let Ok(inner) = Arc::clone(&self.semaphore).try_acquire_many_owned(self.units_of(bytes).min(free)) {
                return Permit { inner };
            }
        }
    }
}

/// What is set aside beside the rows in flight for work on them: a third of theirs, so a quarter of both together.
///
/// Whoever has rows may wait for `sorts`, whoever sorts for `encodes`, whoever encodes for `uploads`, and nobody the other way round: so
/// nobody waits for himself. Each is a [`Budget`]: what alone is larger than all of it is let in alone.
#[derive(Debug, Clone)]
pub struct SetAside {
    /// Keys and places of rows that are put in order, for as long as their files are written.
    pub sorts: Budget,
    /// Rows that were put in order, and what becomes of row groups, while they are encoded.
    pub encodes: Budget,
    /// Parts on their way to an object store, where the rows' own permits don't cover them.
    pub uploads: Budget,
    /// Manifests that are read, and their entries.
    pub scans: Budget,
    /// The same for the one merge at a time: it may last, and whoever scans waits for no merge.
    pub merges: Budget,
}

impl SetAside {
    /// What belongs beside `rows` bytes of rows in flight.
    #[must_use]
    pub fn beside(rows: usize) -> Self {
        let part = rows / 48;
        let of = |parts: usize| Budget::new(part.saturating_mul(parts));
        Self { sorts: of(8), encodes: of(4), uploads: of(2), scans: of(1), merges: of(1) }
    }

    /// Total bytes.
    #[must_use]
    pub fn total(&self) -> usize {
        self.all().into_iter().map(Budget::total).sum()
    }

    /// Bytes taken now.
    #[must_use]
    pub fn used(&self) -> usize {
        self.all().into_iter().map(Budget::used).sum()
    }

    const fn all(&self) -> [&Budget; 5] {
        [&self.sorts, &self.encodes, &self.uploads, &self.scans, &self.merges]
    }
}

/// Counts one waiter as long as it lives, also when its future is dropped.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl<'a> Waiting<'a> {
    fn new(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_batch_larger_than_the_budget_is_let_in_alone() {
        let budget = Budget::new(64 * 1024);
        let all = budget.acquire(1 << 30).await;
        assert_eq!(budget.used(), budget.total());
        assert!(budget.try_acquire(1).is_none());
        drop(all);
        let mut some = budget.acquire(10 * 1024).await;
        some.shrink(1024);
        assert_eq!(budget.used(), 1024);
        let rest = budget.take_free(1 << 30);
        assert_eq!((rest.bytes(), budget.take_free(1).bytes()), (63 * 1024, 0));
    }

    #[tokio::test]
    async fn pressure_shows_while_somebody_waits_and_parts_of_a_permit_can_be_given_back() {
        let budget = Budget::new(8 * 1024);
        let mut all = budget.acquire(8 * 1024).await;
        let waiter = tokio::spawn({
            let budget = budget.clone();
            async move { budget.acquire(2 * 1024).await.bytes() }
        });
        budget.pressed().await;
        drop(all.split(2 * 1024));
        assert_eq!(waiter.await.unwrap(), 2 * 1024);
        assert_eq!(all.bytes(), 6 * 1024);
    }
}
