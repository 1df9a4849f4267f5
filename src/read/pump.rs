//! One split: what of it is fetched when, and put together in order.
//!
//! A large split is fetched in ranges side by side (`beside`). From the server a range begins at an offset: where the one before it ends
//! is guessed from the last answer, and what two have in common is decoded once, in the earlier one. From remote segments it is a range of
//! bytes, so that nothing is read twice. A guess that leaves a gap costs one more fetch.
//!
//! **Rows that take more than their fetch has memory for** (texts that repeat themselves: a thousand times their bytes on the wire) are cut
//! off at the last batch that fits, and fetched again: whoever waited for more with these bytes in hand could wait for himself. What has come
//! tells how many bytes to ask for from then on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use super::beside::Beside;
use super::lane::{Answer, Lane, Slice, memory};
use super::{BUCKET_BYTES_MAX, Chunk, Cut, EXPANSION, Options, Remote, fit, grow};
use crate::error::{Error, Result};
use crate::model::{Split, StartOffset};
use crate::runtime::{Permit, Runtime};
use crate::source::{FetchBucket, LogSlice, RemoteLog, RemoteRange, RemoteRead};

/// Of the budget, in hundredths, beyond which no range is fetched ahead of its turn: the rest is for rows that wait to be written.
const BESIDE_PERCENT: usize = 75;

/// Fetches, decodes and delivers one split: fetching is ahead of decoding.
pub(super) struct Pump {
    pub(super) split: Split,
    pub(super) lane: Lane,
    pub(super) remote: Remote,
    /// Places for state scans.
    pub(super) states: Arc<Semaphore>,
    /// Splits that are read now.
    pub(super) open: Arc<AtomicUsize>,
    pub(super) options: Options,
    pub(super) cut: Cut,
    pub(super) runtime: Runtime,
}

/// Raw records in `from..end`.
struct Range {
    slice: Slice,
    from: i64,
    end: i64,
    /// What decoding allocates, about.
    decoded_bytes: Result<usize>,
}

/// Where a split goes on.
struct Place {
    from: i64,
    /// Ranges asked of the server, each from its offset on.
    ranges: Beside<i64, Answer>,
    /// Offsets that one fetch covers, and half a batch, by the last answer.
    reach: Option<(i64, i64)>,
    /// How many times its bytes on the wire the last answer took, with them, at least [`EXPANSION`].
    expansion: usize,
    /// The largest batch that it had.
    batch_bytes: usize,
    /// The segments that `from` lies in, while the server does not have it.
    remote: Option<RemoteLog>,
    files: Beside<RemoteRange, (Option<Bytes>, Permit)>,
}

impl Pump {
    pub(super) async fn run(self: Arc<Self>, to: &mpsc::Sender<Result<Chunk>>) -> Result<()> {
        debug!(bucket = %self.split.bucket, start = ?self.split.start, stop = self.split.stop_offset, "split begins");
        let from = match self.split.start {
            StartOffset::At(offset) => offset,
            // The log's own beginning, wherever it is.
            StartOffset::Earliest => -1,
        };
        let place = Place {
            from,
            ranges: Beside::new(),
            reach: None,
            expansion: EXPANSION,
            batch_bytes: 0,
            remote: None,
            files: Beside::new(),
        };
        let mut fetching = Some(Box::pin(Arc::clone(&self).fetch(place)));
        let mut decoding = VecDeque::new();
        loop {
            let room = decoding.len() < self.decodes_max();
            tokio::select! {
                biased;
                delivered = deliver(&mut decoding, to), if !decoding.is_empty() => {
                    if !delivered? {
                        return Ok(()); // nobody listens any more
                    }
                }
                next = async { match &mut fetching { Some(next) => next.await, None => Ok(None) } }, if room && fetching.is_some() => {
                    fetching = next?.map(|(range, place)| {
                        decoding.push_back(AbortOnDropHandle::new(tokio::spawn(Arc::clone(&self).decode(range))));
                        Box::pin(Arc::clone(&self).fetch(place))
                    });
                }
                else => return Ok(()),
            }
        }
    }

    /// Ranges of this split that may be under way at once: its share of what all splits may have together.
    fn ranges_max(&self) -> usize {
        self.ahead() / self.open.load(Ordering::Relaxed).max(1)
    }

    fn ahead(&self) -> usize {
        self.options.ahead.unwrap_or_else(|| self.runtime.encoders.count().max(2))
    }

    pub(super) fn decodes_max(&self) -> usize {
        self.ranges_max().max(self.ahead().min(2)).max(1)
    }

    /// The next range from `place` on, and where to go on; `None` at the stop offset, or when it is cut.
    async fn fetch(self: Arc<Self>, mut place: Place) -> Result<Option<(Range, Place)>> {
        if place.from >= self.split.stop_offset {
            return Ok(None);
        }
        let due = self.cut.is_due();
        let next = async {
            // What is under way already counts as fetched.
            let next = if due { self.under_way(&mut place).await } else { self.range(&mut place).await.map(Some) };
            next.map(|next| next.map(|range| (range, place)))
        };
        tokio::select! {
            biased;
            next = next => {
                let next = next?;
                if let Some((range, _)) = &next {
                    self.cut.count(range.slice.log.len());
                }
                Ok(next)
            }
            () = self.cut.cancelled() => Ok(None),
        }
    }

    async fn range(&self, place: &mut Place) -> Result<Range> {
        self.runtime.fail.hit("read.before_fetch").await?;
        let began = self.runtime.clock.moment();
        let mut bytes_max = self.bytes_max(place);
        // Whether the server was asked in this call, and the file that it names and that is not there.
        let (mut asked, mut missing) = (false, None);
        loop {
            let (slice, stuck) = if place.remote.is_some() {
                self.begin_files(place).await?;
                match self.next_file(place).await? {
                    (RemoteRead::Slice(log), permit) => (Some(Slice::new(log, permit, place.expansion)), false),
                    // Expired or read to the end: the server knows how to go on.
                    (RemoteRead::End, _) => (place.leave_files(), asked),
                    (RemoteRead::Gone(file), _) => {
                        missing = Some(file);
                        (place.leave_files(), asked)
                    }
                }
            } else {
                self.begin_ranges(place);
                match self.next_range(place).await {
                    Some(slice) => (Some(slice), false),
                    None => {
                        asked = true;
                        match self.ask(place, bytes_max).await? {
                            Answer::Slice(slice) => (Some(slice), true),
                            Answer::Remote(segments) => {
                                debug!(bucket = %self.split.bucket, from = place.from, "the log has left its server, remote segments are read");
                                place.ranges.clear();
                                place.remote = Some(segments);
                                (None, false)
                            }
                        }
                    }
                }
            };
            if let Some(range) = slice.and_then(|slice| self.step_on(place, slice)) {
                return Ok(range);
            }
            if !stuck {
                continue;
            }
            if began.elapsed() >= self.options.stall {
                return Err(self.stalled(place.from.max(0), missing));
            }
            // A batch that does not fit may come as a cut-off tail only.
            bytes_max = bytes_max.saturating_mul(2).clamp(1, BUCKET_BYTES_MAX);
            self.runtime.clock.sleep(Duration::from_millis(10)).await;
        }
    }

    /// The next range, if it is under way.
    async fn under_way(&self, place: &mut Place) -> Result<Option<Range>> {
        let slice = match &place.remote {
            None => self.next_range(place).await,
            // A batch that was longer than its range has gone beyond where the next one was planned.
            Some(log) if !place.files.first().is_some_and(|range| log.is_due(range)) => None,
            Some(_) => match self.next_file(place).await? {
                (RemoteRead::Slice(log), permit) => Some(Slice::new(log, permit, place.expansion)),
                _ => None,
            },
        };
        Ok(slice.and_then(|slice| self.step_on(place, slice)))
    }

    /// What `slice` has from `place` on and memory for, if anything; `place` is behind it then.
    fn step_on(&self, place: &mut Place, mut slice: Slice) -> Option<Range> {
        let (from, next) = (place.from, slice.log.next_offset()?);
        self.look_ahead(place, &slice.log);
        if next <= from {
            return None;
        }
        let all = next.min(self.split.stop_offset);
        // Before anything more is fetched: a batch may be longer than what was asked for.
        grow(&self.runtime, &mut slice.permit, slice.log.len());
        // What is a quarter more gets through (see `fit`): fetching it again would cost more.
        let room = slice.permit.bytes().saturating_sub(slice.log.len());
        let (end, decoded_bytes) = match slice.log.fitting(from, all, room.saturating_add(room / 4)) {
            Ok(fitting) => {
                let times = fitting.decoded_bytes.div_ceil(fitting.raw_bytes.max(1)).saturating_add(1);
                (place.expansion, place.batch_bytes) = (times.max(EXPANSION), fitting.batch_bytes);
                self.look_ahead(place, &slice.log);
                (fitting.end, Ok(fitting.decoded_bytes))
            }
            // Decoding tells it, after what was read before.
            Err(error) => (all, Err(error)),
        };
        place.from = end;
        if end < all {
            debug!(bucket = %self.split.bucket, from, end, all, expansion = place.expansion, "rows take more memory than there is for them");
            place.ranges.clear();
            place.leave_files();
        }
        Some(Range { slice, from, end, decoded_bytes })
    }

    /// How far the next fetch will reach, if the log goes on like this.
    fn look_ahead(&self, place: &mut Place, log: &LogSlice) {
        if place.remote.is_none() {
            place.reach = log.reach(self.bytes_max(place));
        }
    }

    /// Bytes to ask for at once: with their rows they take no more memory than at [`EXPANSION`], but a batch has to fit.
    fn bytes_max(&self, place: &Place) -> i32 {
        let fit = memory(self.options.bucket_bytes, EXPANSION) / place.expansion.max(1);
        let bytes_max = i32::try_from(fit.max(place.batch_bytes.saturating_mul(2))).unwrap_or(i32::MAX);
        bytes_max.min(self.options.bucket_bytes)
    }

    /// Memory for a range ahead of its turn, with so many of its split under way; only if it is free.
    fn spare(&self, bytes_max: i32, expansion: usize, under_way: usize) -> Option<Permit> {
        let (budget, bytes) = (&self.runtime.budget, memory(bytes_max, expansion));
        let limit = u64::from(bytes_max.unsigned_abs()).saturating_mul(under_way as u64 + 1);
        let free = budget.used().saturating_add(bytes) <= budget.total() / 100 * BESIDE_PERCENT;
        (free && !budget.is_pressed() && self.cut.left() > limit).then(|| budget.try_acquire(bytes)).flatten()
    }

    /// Begins to fetch what comes after what is under way, as far as there is memory for it.
    fn begin_ranges(&self, place: &mut Place) {
        let (Some((reach, half)), share, stop) = (place.reach, self.ranges_max(), self.split.stop_offset) else { return };
        if share < 2 || stop.saturating_sub(place.from) <= self.options.range_rows {
            return;
        }
        while place.ranges.len() < share {
            // In the midst of the batch that is expected there: the server answers from its begin, also where that is half a batch off.
            let ahead = i64::try_from(place.ranges.len()).unwrap_or(i64::MAX);
            let guess = if ahead > 0 { ahead.saturating_mul(reach).saturating_add(half) } else { 0 };
            let from = place.from.saturating_add(guess);
            if from >= stop || place.ranges.last().is_some_and(|last| *last >= from) {
                return;
            }
            let (bytes_max, expansion) = (self.bytes_max(place), place.expansion);
            let Some(permit) = self.spare(bytes_max, expansion, place.ranges.len()) else { return };
            let (lane, want) = (self.lane.clone(), self.want(StartOffset::At(from), bytes_max));
            place.ranges.begin(from, async move { lane.fetch_alone(want, expansion, permit).await });
        }
    }

    /// The range that is due, if it is under way and begins where it has to. What went wrong ahead of its turn is asked for again.
    async fn next_range(&self, place: &mut Place) -> Option<Slice> {
        loop {
            let (begin, answer) = place.ranges.next().await?;
            let Ok(Answer::Slice(slice)) = answer else {
                place.ranges.clear();
                return None;
            };
            let (first, next) = (slice.log.first_offset().unwrap_or(begin), slice.log.next_offset().unwrap_or(begin));
            if next <= place.from {
                continue; // others had it all
            }
            if first <= place.from {
                return Some(slice);
            }
            place.ranges.put_back(begin, Answer::Slice(slice));
            return None;
        }
    }

    /// Asks the server for what is due.
    async fn ask(&self, place: &mut Place, bytes_max: i32) -> Result<Answer> {
        let offset = if place.from < 0 { StartOffset::Earliest } else { StartOffset::At(place.from) };
        if let (Some(next), Some((reach, _))) = (place.ranges.first(), place.reach) {
            // Between two ranges: about what is missing there. It must not wait for memory that those behind it hold.
            let missing = i128::from(bytes_max) * i128::from(next.saturating_sub(place.from)) / i128::from(reach.max(1));
            let bytes_max = i32::try_from(missing).unwrap_or(i32::MAX).clamp(1, bytes_max.max(1));
            match self.runtime.budget.try_acquire(memory(bytes_max, place.expansion)) {
                Some(permit) => return self.lane.fetch_alone(self.want(offset, bytes_max), place.expansion, permit).await,
                None => place.ranges.clear(),
            }
        }
        self.lane.fetch(self.want(offset, bytes_max), place.expansion).await
    }

    fn want(&self, offset: StartOffset, bytes_max: i32) -> FetchBucket {
        FetchBucket { bucket: self.split.bucket, offset, bytes_max, layout: self.split.layout }
    }

    /// Begins to read what is due of the remote segments, if it is not under way, and what comes after as far as there is memory for it.
    async fn begin_files(&self, place: &mut Place) -> Result<()> {
        let (bytes_max, expansion) = (self.bytes_max(place), place.expansion);
        let Some(log) = &mut place.remote else { return Ok(()) };
        if place.files.first().is_some_and(|range| !log.is_due(range)) {
            place.files.clear();
        }
        let stop = self.split.stop_offset;
        let begin = |files: &mut Beside<_, _>, range: RemoteRange, permit| {
            let (remote, key) = (self.remote.clone(), range.clone());
            files.begin(key, async move {
                // Never closed, so there is a place sooner or later; whoever has one waits for the store alone.
                let _place = remote.slots.acquire().await;
                Ok((range.read(remote.scan.as_ref()).await?, permit))
            });
        };
        if place.files.is_empty() {
            log.replan();
            let Some(range) = log.plan(bytes_max, i64::MAX)? else { return Ok(()) };
            begin(&mut place.files, range, self.runtime.budget.acquire(memory(bytes_max, expansion)).await);
        }
        while place.files.len() < self.ranges_max() && stop.saturating_sub(place.from) > self.options.range_rows {
            let Some(permit) = self.spare(bytes_max, expansion, place.files.len()) else { break };
            let Some(range) = log.plan(bytes_max, stop)? else { break };
            begin(&mut place.files, range, permit);
        }
        Ok(())
    }

    /// What is due of the remote segments, once it is there.
    async fn next_file(&self, place: &mut Place) -> Result<(RemoteRead, Permit)> {
        let Remote { scan, table, .. } = &self.remote;
        let (Some(log), Some((range, read))) = (&mut place.remote, place.files.next().await) else {
            return Ok((RemoteRead::End, self.runtime.budget.acquire(0).await));
        };
        match read.map_err(|error| log.fault(&range, error))? {
            (Some(raw), permit) => Ok((log.take(scan.as_ref(), table, &range, raw).await?, permit)),
            (None, permit) => Ok((RemoteRead::Gone(range.url().to_owned()), permit)),
        }
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
        let Range { slice: Slice { log, mut permit }, from, end, decoded_bytes } = range;
        let fetched_bytes = log.len();
        fit(&self.runtime, &mut permit, fetched_bytes.saturating_add(decoded_bytes?));
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

impl Place {
    /// The server is asked from here on.
    fn leave_files(&mut self) -> Option<Slice> {
        self.files.clear();
        self.remote = None;
        None
    }
}

/// Hands the first chunk over, once it is decoded and somebody has room for it; whether anybody listens. May be dropped while it waits.
async fn deliver(decoding: &mut VecDeque<AbortOnDropHandle<Result<Chunk>>>, to: &mpsc::Sender<Result<Chunk>>) -> Result<bool> {
    let Some(first) = decoding.front_mut() else { return Ok(true) };
    let Ok(room) = to.reserve().await else { return Ok(false) };
    let chunk = first.await.map_err(|source| Error::internal("decoding has ended without a result").with_source(source))??;
    decoding.pop_front();
    room.send(Ok(chunk));
    Ok(true)
}
