//! When reading ends before the stop offsets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;

/// Ends all streams of a reader early, each at the end of what it has fetched. Clones share it.
#[derive(Debug, Clone)]
pub struct Cut {
    now: CancellationToken,
    bytes_max: u64,
    fetched: Arc<AtomicU64>,
}

impl Cut {
    /// Cuts when `now` is cancelled: fetches in flight are given up. And when so many bytes were fetched: those in flight
    /// still come, so that it is exceeded by about one fetch per open stream. At least one fetch is always made before that.
    #[must_use]
    pub fn new(now: CancellationToken, bytes_max: Option<u64>) -> Self {
        Self { now, bytes_max: bytes_max.unwrap_or(u64::MAX), fetched: Arc::default() }
    }

    /// Whether nothing more is to be fetched.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let fetched = self.fetched.load(Ordering::Relaxed);
        self.now.is_cancelled() || (fetched > 0 && fetched >= self.bytes_max)
    }

    /// Bytes that may still be fetched.
    pub(super) fn left(&self) -> u64 {
        self.bytes_max.saturating_sub(self.fetched.load(Ordering::Relaxed))
    }

    /// Cuts now.
    pub fn cut(&self) {
        self.now.cancel();
    }

    /// Returns when it is to be cut now.
    pub(super) async fn cancelled(&self) {
        self.now.cancelled().await;
    }

    /// Counts what came.
    pub(super) fn count(&self, bytes: usize) {
        self.fetched.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
