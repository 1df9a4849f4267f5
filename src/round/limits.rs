//! What ends a round early, and how far it is meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::commit::Base;
use crate::model::{LakeOffsets, SnapshotId};
use crate::runtime::Moment;

/// Bounds of one round. A round that reaches one stops reading at the end of a batch, commits what it has read, and says that it
/// was cut. Default: none.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// When reading ends, but not before it has had a second: a plan that takes long must not keep a table from coming forward. What
    /// was fetched by then is still written and committed, so the round ends somewhat later.
    pub deadline: Option<Moment>,
    /// Bytes of log to fetch; exceeded by about one fetch per split in progress. At least one fetch is made.
    pub bytes_max: Option<u64>,
    /// Exclusive end offsets beyond which nothing is read; buckets that are not in it are left alone.
    pub stops: Option<Arc<LakeOffsets>>,
    /// Cancelled, it is a deadline that has come. (A lost lease and the process's shutdown token do not cut a round, they abort it.)
    pub cut: CancellationToken,
    /// Where the round tells how far it is.
    pub progress: Progress,
}

/// How far a round is, for whoever looks while it runs. Clones share it; each try of a round begins afresh.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    rows: AtomicU64,
    fetched_bytes: AtomicU64,
    marks: Mutex<Marks>,
}

#[derive(Debug, Default)]
struct Marks {
    base: Option<(Option<SnapshotId>, Arc<LakeOffsets>)>,
    written: Option<(SnapshotId, Arc<LakeOffsets>)>,
}

impl Progress {
    /// Rows read; not in the lake yet.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.0.rows.load(Ordering::Relaxed)
    }

    /// Bytes of log fetched.
    #[must_use]
    pub fn fetched_bytes(&self) -> u64 {
        self.0.fetched_bytes.load(Ordering::Relaxed)
    }

    /// The newest Fluss-made snapshot that it found and the offsets that it started from, once it has recovered them.
    #[must_use]
    pub fn base(&self) -> Option<(Option<SnapshotId>, Arc<LakeOffsets>)> {
        self.marks().base.clone()
    }

    /// The snapshot that it has published and the end offsets of what it has read, also where recording it in Fluss failed.
    #[must_use]
    pub fn written(&self) -> Option<(SnapshotId, Arc<LakeOffsets>)> {
        self.marks().written.clone()
    }

    /// Forgets everything.
    pub fn reset(&self) {
        self.0.rows.store(0, Ordering::Relaxed);
        self.0.fetched_bytes.store(0, Ordering::Relaxed);
        *self.marks() = Marks::default();
    }

    pub(super) fn add(&self, rows: u64, fetched_bytes: u64) {
        self.0.rows.fetch_add(rows, Ordering::Relaxed);
        self.0.fetched_bytes.fetch_add(fetched_bytes, Ordering::Relaxed);
    }

    /// What was read and thrown away again.
    pub(super) fn take_back(&self, rows: u64) {
        self.0.rows.fetch_sub(rows, Ordering::Relaxed);
    }

    pub(super) fn starts_from(&self, base: &Base) {
        self.marks().base = Some((base.snapshot(), Arc::new(base.offsets.clone())));
    }

    pub(super) fn published(&self, snapshot: SnapshotId, ends: &LakeOffsets) {
        self.marks().written = Some((snapshot, Arc::new(ends.clone())));
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.0.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
