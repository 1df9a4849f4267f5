//! A split → a bounded stream of decoded batches, in offset order, that ends exactly at its stop offset (F5.1), or earlier at
//! the end of a batch where the round's limits cut it. A state split gives all rows of its bucket as inserts (`state`).
//!
//! Owns what is fetched when and how much of it is in memory: buckets that one server leads share requests (`lane`), no
//! permit means no fetch, the next ranges are fetched while the previous ones decode on the encoder threads, and those of a large
//! split side by side (`pump`). Records that have left the servers (F5.6) are read range by range from where they lie. Does not own
//! wire or decoding (`source`), nor what the rows become. Callers: `round`, `audit`.

mod beside;
mod cut;
mod lane;
mod pump;
mod state;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio_util::task::AbortOnDropHandle;

use crate::error::{Error, Result};
use crate::model::{LogBatch, Split, SplitKind, TableBucket, TableInfo};
use crate::runtime::{Permit, Runtime};
use crate::source::TableScan;
pub use cut::Cut;
use lane::Lane;
use pump::Pump;

/// Bounds of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Bytes asked of a bucket in one fetch. More helps against latency and takes memory in all buckets at once.
    pub bucket_bytes: i32,
    /// How long a server may wait for the first bytes.
    pub wait: Duration,
    /// Requests in flight to one server.
    pub requests_max: usize,
    /// Ranges of remote log segments read at once, in all buckets of a round.
    pub remote_max: usize,
    /// Ranges that are fetched side by side, and as many that decode at once, in all buckets of a round; `None` = as many as there are
    /// encoder threads, at least 2. A bucket decodes 2 at once in any case, unless this is 1.
    pub ahead: Option<usize>,
    /// A split of which so many rows or fewer are left is fetched range after range.
    pub range_rows: i64,
    /// A bucket that makes no progress for so long fails the round.
    pub stall: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            bucket_bytes: 4 << 20,
            wait: Duration::from_millis(500),
            requests_max: 2,
            remote_max: 16,
            ahead: None,
            range_rows: 1 << 16,
            stall: Duration::from_secs(60),
        }
    }
}

/// How far the size of one fetch may grow for a batch that does not fit: more than a server takes in one batch (100 MiB), and
/// less than the frame that its answer has to fit into.
const BUCKET_BYTES_MAX: i32 = 128 << 20;

/// Decoded rows and their bytes on the wire take about this many times the latter until decoding tells (zstd; measured 3–4). Where it tells
/// more, fewer bytes are asked for with the same memory.
const EXPANSION: usize = 4;

/// Some consecutive records of a split.
#[derive(Debug)]
pub struct Chunk {
    /// Batches with rows, in offset order; none when only empty batches were read. Of a state: batches without offset (−1), all inserts.
    pub batches: Vec<LogBatch>,
    /// Exclusive end: everything before it was delivered. Of a state: where the log goes on, once the stream has ended.
    pub end_offset: i64,
    /// Bytes that were fetched for it.
    pub fetched_bytes: usize,
    /// The memory of the batches.
    pub permit: Permit,
}

/// Reads the splits of one round. Dropped, it stops everything that it started.
#[derive(Debug)]
pub struct Reader {
    remote: Remote,
    states: Arc<Semaphore>,
    open: Arc<AtomicUsize>,
    lanes: Vec<Lane>,
    lane_of: BTreeMap<TableBucket, usize>,
    options: Options,
    cut: Cut,
    runtime: Runtime,
}

impl Reader {
    /// Finds out who leads the splits' buckets. Nothing is fetched yet.
    ///
    /// # Errors
    /// `Unavailable` when a bucket has no leader for long.
    pub async fn new(
        scan: Arc<dyn TableScan>,
        table: Arc<TableInfo>,
        splits: &[Split],
        options: Options,
        cut: Cut,
        runtime: Runtime,
    ) -> Result<Self> {
        let buckets: Vec<TableBucket> = splits.iter().map(|split| split.bucket).collect();
        let groups = scan.lanes(&table, &buckets).await?;
        let slots = Arc::new(Semaphore::new(options.remote_max.max(1)));
        let remote = Remote { scan: Arc::clone(&scan), table: Arc::clone(&table), slots };
        let states = Arc::new(Semaphore::new(state::STATES_MAX));
        let open = Arc::default();
        let mut reader = Self { remote, states, open, lanes: Vec::new(), lane_of: BTreeMap::new(), options, cut, runtime };
        for group in groups {
            reader.lane_of.extend(group.iter().map(|bucket| (*bucket, reader.lanes.len())));
            reader.lanes.push(Lane::start(Arc::clone(&scan), Arc::clone(&table), options, reader.runtime.clone()));
        }
        Ok(reader)
    }

    /// Starts to read `split`, one of those that the reader was made with.
    ///
    /// # Errors
    /// `Internal` for any other split.
    pub fn open(&self, split: &Split) -> Result<SplitStream> {
        let lane = self
            .lane_of
            .get(&split.bucket)
            .and_then(|index| self.lanes.get(*index))
            .ok_or_else(|| Error::internal(format!("{} has no lane", split.bucket)))?;
        // One chunk waits here while the next decodes and the one after is fetched.
        let (sender, chunks) = mpsc::channel(1);
        let (remote, cut, runtime) = (self.remote.clone(), self.cut.clone(), self.runtime.clone());
        let (states, open, options) = (Arc::clone(&self.states), Arc::clone(&self.open), self.options);
        let one = Open::new(&open);
        let pump = Arc::new(Pump { split: split.clone(), lane: lane.clone(), remote, states, open, options, cut, runtime });
        let task = tokio::spawn(async move {
            let _one = one;
            let read = match pump.split.kind {
                SplitKind::Log => pump.run(&sender).await,
                SplitKind::State => pump.run_state(&sender).await,
            };
            if let Err(error) = read {
                // Nobody listening: the round has failed elsewhere.
                drop(sender.send(Err(error)).await);
            }
        });
        Ok(SplitStream { chunks, _task: AbortOnDropHandle::new(task) })
    }
}

/// Counts one split that is read, as long as it lives.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn new(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(open))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The chunks of one split. Dropped, it stops reading.
#[derive(Debug)]
pub struct SplitStream {
    chunks: mpsc::Receiver<Result<Chunk>>,
    _task: AbortOnDropHandle<()>,
}

impl SplitStream {
    /// The next chunk; `None` after the one that ends at the split's stop offset, or after what was fetched before a cut. May be
    /// dropped while it waits.
    ///
    /// # Errors
    /// `Unavailable` when the bucket makes no progress, or a state scan is lost ([`is_state_lost`](crate::source::is_state_lost));
    /// `Stale` and `Data` as [`TableScan::fetch`] and decoding say.
    /// After an error nothing comes.
    pub async fn next(&mut self) -> Result<Option<Chunk>> {
        self.chunks.recv().await.transpose()
    }
}

/// The way to records that have left the servers.
#[derive(Clone)]
struct Remote {
    scan: Arc<dyn TableScan>,
    table: Arc<TableInfo>,
    slots: Arc<Semaphore>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("table", &self.table.path).finish_non_exhaustive()
    }
}

/// Makes the permit as large as what it stands for, as far as memory is free.
fn fit(runtime: &Runtime, permit: &mut Permit, bytes: usize) {
    permit.shrink(bytes);
    grow(runtime, permit, bytes);
}

/// Makes the permit as large as what is there already. Waiting for more with a permit in hand could wait for itself, so what is free
/// now is taken, and the next fetch waits for the rest: what alone is larger than all memory is so alone, or nearly.
fn grow(runtime: &Runtime, permit: &mut Permit, bytes: usize) {
    let missing = bytes.saturating_sub(permit.bytes());
    if missing > 0 {
        permit.merge(runtime.budget.take_free(missing));
    }
}

#[cfg(test)]
mod tests;
