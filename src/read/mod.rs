//! A split → a bounded stream of decoded batches, in offset order, that ends exactly at its stop offset (F5.1), or earlier at
//! the end of a batch where the round's limits cut it. A state split gives all rows of its bucket as inserts (`state`).
//!
//! Owns what is fetched when and how much of it is in memory: buckets that one server leads share requests (`lane`), no
//! permit means no fetch, the next range is fetched while the previous one decodes on the encoder threads. Records that have left
//! the servers (F5.6) are read range by range from where they lie. Does not own wire or decoding (`source`), nor what the
//! rows become. Caller: `round`.

mod cut;
mod lane;
mod state;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, TryStreamExt};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use crate::error::{Error, Result};
use crate::model::{LogBatch, Split, SplitKind, StartOffset, TableBucket, TableInfo};
use crate::runtime::{Permit, Runtime};
use crate::source::{FetchBucket, RemoteLog, RemoteRead, TableScan};
pub use cut::Cut;
use lane::{Answer, Lane, Slice, memory};

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
    /// Ranges of one bucket that decode at once, while the next is fetched.
    pub ahead: usize,
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
            ahead: 2,
            stall: Duration::from_secs(60),
        }
    }
}

/// How far the size of one fetch may grow for a batch that does not fit: more than a server takes in one batch (100 MiB), and
/// less than the frame that its answer has to fit into.
const BUCKET_BYTES_MAX: i32 = 128 << 20;

/// Decoded rows take about this many times their bytes on the wire until decoding tells (zstd; measured 3–4).
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
        let mut reader = Self { remote, states, lanes: Vec::new(), lane_of: BTreeMap::new(), options, cut, runtime };
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
        let states = Arc::clone(&self.states);
        let pump = Arc::new(Pump { split: split.clone(), lane: lane.clone(), remote, states, options: self.options, cut, runtime });
        let task = tokio::spawn(async move {
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

/// Fetches, decodes and delivers one split: fetching is one step ahead of decoding.
struct Pump {
    split: Split,
    lane: Lane,
    remote: Remote,
    /// Places for state scans.
    states: Arc<Semaphore>,
    options: Options,
    cut: Cut,
    runtime: Runtime,
}

/// Raw records in `from..end`.
struct Range {
    slice: Slice,
    from: i64,
    end: i64,
}

/// Where a split goes on.
struct Place {
    from: i64,
    /// The segments that `from` lies in, while the server does not have it.
    remote: Option<RemoteLog>,
}

impl Pump {
    async fn run(self: Arc<Self>, to: &mpsc::Sender<Result<Chunk>>) -> Result<()> {
        debug!(bucket = %self.split.bucket, start = ?self.split.start, stop = self.split.stop_offset, "split begins");
        let begin = match self.split.start {
            StartOffset::At(offset) => offset,
            // The log's own beginning, wherever it is.
            StartOffset::Earliest => -1,
        };
        let (fetcher, decoder) = (Arc::clone(&self), self);
        let begin = Place { from: begin, remote: None };
        let ranges = stream::try_unfold(begin, move |place| Arc::clone(&fetcher).fetch(place));
        // The next ranges are fetched while up to `ahead` of them decode; the order stays.
        let chunks = ranges.map_ok(|range| Arc::clone(&decoder).decode(range)).try_buffered(decoder.options.ahead.max(1));
        let mut chunks = std::pin::pin!(chunks);
        while let Some(chunk) = chunks.try_next().await? {
            if to.send(Ok(chunk)).await.is_err() {
                break; // nobody listens any more
            }
        }
        Ok(())
    }

    /// The next range from `place` on, and where to go on; `None` at the stop offset, or when it is cut.
    async fn fetch(self: Arc<Self>, place: Place) -> Result<Option<(Range, Place)>> {
        if place.from >= self.split.stop_offset || self.cut.is_due() {
            return Ok(None);
        }
        tokio::select! {
            next = self.range(place) => {
                let next = next?;
                self.cut.count(next.0.slice.log.len());
                Ok(Some(next))
            }
            () = self.cut.cancelled() => Ok(None),
        }
    }

    async fn range(&self, place: Place) -> Result<(Range, Place)> {
        self.runtime.fail.hit("read.before_fetch").await?;
        let Place { from, mut remote } = place;
        let stop = self.split.stop_offset;
        let began = self.runtime.clock.moment();
        let offset = if from < 0 { StartOffset::Earliest } else { StartOffset::At(from) };
        let mut bytes_max = self.options.bucket_bytes;
        // Whether the server was asked in this call, and the file that it names and that is not there.
        let (mut asked, mut missing) = (false, None);
        loop {
            let (slice, stuck) = match remote.take() {
                None => {
                    asked = true;
                    let want = FetchBucket { bucket: self.split.bucket, offset, bytes_max, layout: self.split.layout };
                    match self.lane.fetch(want).await? {
                        Answer::Slice(slice) => (Some(slice), true),
                        Answer::Remote(segments) => {
                            debug!(bucket = %self.split.bucket, ?offset, "the log has left its server, remote segments are read");
                            remote = Some(segments);
                            (None, false)
                        }
                    }
                }
                Some(mut segments) => match self.read_remote(&mut segments).await? {
                    (RemoteRead::Slice(log), permit) => {
                        remote = Some(segments);
                        (Some(Slice::new(log, permit)), false)
                    }
                    // Expired or read to the end: the server knows how to go on.
                    (RemoteRead::End, _) => (None, asked),
                    (RemoteRead::Gone(file), _) => {
                        missing = Some(file);
                        (None, asked)
                    }
                },
            };
            if let Some(slice) = slice
                && let Some(next) = slice.log.next_offset().filter(|next| *next > from)
            {
                let end = next.min(stop);
                return Ok((Range { slice, from, end }, Place { from: end, remote }));
            }
            if !stuck {
                continue;
            }
            if began.elapsed() >= self.options.stall {
                return Err(self.stalled(from.max(0), missing));
            }
            // A batch that does not fit may come as a cut-off tail only.
            bytes_max = bytes_max.saturating_mul(2).clamp(1, BUCKET_BYTES_MAX);
            self.runtime.clock.sleep(Duration::from_millis(10)).await;
        }
    }

    async fn read_remote(&self, segments: &mut RemoteLog) -> Result<(RemoteRead, Permit)> {
        let Remote { scan, table, slots } = &self.remote;
        // Never closed, so there is a slot sooner or later.
        let _slot = slots.acquire().await;
        let permit = self.runtime.budget.acquire(memory(self.options.bucket_bytes)).await;
        Ok((segments.next(scan.as_ref(), table, self.options.bucket_bytes).await?, permit))
    }

    fn stalled(&self, from: i64, missing: Option<String>) -> Error {
        let (bucket, stop, seconds) = (self.split.bucket, self.split.stop_offset, self.options.stall.as_secs());
        match missing {
            Some(file) => Error::data(format!(
                "offset `{from}` of {bucket} has left its server for `{file}`, and there is no such file since `{seconds}` s"
            ))
            .with_hint("does this machine see the cluster's `remote.data.dir` by that path? else put the file back from a copy"),
            None => Error::unavailable(format!(
                "{bucket} gives nothing at offset `{from}` since `{seconds}` s, although its log ends at `{stop}`"
            )),
        }
    }

    async fn decode(self: Arc<Self>, range: Range) -> Result<Chunk> {
        let Range { slice: Slice { log, mut permit }, from, end } = range;
        let fetched_bytes = log.len();
        fit(&self.runtime, &mut permit, fetched_bytes.saturating_add(log.decoded_bytes(from, end)?));
        let decoded = self.runtime.encoders.run(move || log.decode(from, end)).await??;
        if decoded.next_offset != end {
            return Err(Error::data(format!(
                "{}: records `{from}` to `{end}` were sent, but their batches end at `{}`",
                self.split.bucket, decoded.next_offset
            )));
        }
        fit(&self.runtime, &mut permit, decoded.batches.iter().map(|batch| batch.memory.bytes()).sum());
        Ok(Chunk { batches: decoded.batches, end_offset: end, fetched_bytes, permit })
    }
}

/// Makes the permit as large as what it stands for. Waiting for more with a permit in hand could wait for itself, so
/// what is not free now is not waited for: the next fetch is.
fn fit(runtime: &Runtime, permit: &mut Permit, bytes: usize) {
    permit.shrink(bytes);
    let missing = bytes.saturating_sub(permit.bytes());
    if missing > 0
        && let Some(more) = runtime.budget.try_acquire(missing)
    {
        permit.merge(more);
    }
}

#[cfg(test)]
mod tests;
