//! Memory pressure: when somebody waits for bytes, the bucket that buffers most encodes what it has.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::runtime::Budget;

/// Who buffers how much, in one round.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    buffers: Mutex<BTreeMap<usize, (usize, Arc<Notify>)>>,
    changed: Notify,
}

/// One bucket's entry; gone when dropped.
#[derive(Debug)]
pub(super) struct Buffer<'a> {
    pressure: &'a Pressure,
    index: usize,
    flush: Arc<Notify>,
}

impl Pressure {
    /// Enters bucket number `index`.
    pub(super) fn enter(&self, index: usize) -> Buffer<'_> {
        let flush = Arc::new(Notify::new());
        self.lock().insert(index, (0, Arc::clone(&flush)));
        Buffer { pressure: self, index, flush }
    }

    /// Asks the largest buffer to flush, again and again while somebody waits for memory. Never returns.
    pub(super) async fn relieve(&self, budget: &Budget) {
        loop {
            budget.pressed().await;
            if let Some((_, flush)) = self.lock().values().filter(|(bytes, _)| *bytes > 0).max_by_key(|(bytes, _)| *bytes) {
                flush.notify_one();
            }
            // Someone has buffered, flushed or ended: look again.
            self.changed.notified().await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<usize, (usize, Arc<Notify>)>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffer<'_> {
    /// Tells how many bytes wait in it now.
    pub(super) fn holds(&self, bytes: usize) {
        if let Some(entry) = self.pressure.lock().get_mut(&self.index) {
            entry.0 = bytes;
        }
        self.pressure.changed.notify_one();
    }

    /// Returns when it should flush. Safe to drop while it waits.
    pub(super) async fn flush_wanted(&self) {
        self.flush.notified().await;
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        self.pressure.lock().remove(&self.index);
        self.pressure.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_largest_buffer_flushes_until_nobody_waits() {
        let budget = Budget::new(8 * 1024);
        let pressure = Pressure::default();
        let (small, large) = (pressure.enter(0), pressure.enter(1));
        let held = (budget.acquire(2 * 1024).await, budget.acquire(6 * 1024).await);
        small.holds(2 * 1024);
        large.holds(6 * 1024);
        tokio::select! {
            () = pressure.relieve(&budget) => {}
            _permit = budget.acquire(4 * 1024) => panic!("nothing was given back"),
            () = small.flush_wanted() => panic!("the small one was asked first"),
            () = large.flush_wanted() => {}
        }
        drop(held.1);
        large.holds(0);
        let permit = tokio::select! {
            () = pressure.relieve(&budget) => None,
            permit = budget.acquire(4 * 1024) => Some(permit),
        };
        assert!(permit.is_some());
    }
}
