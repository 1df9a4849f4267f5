//! The log of one bucket.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use tokio::sync::watch;

use super::Shared;
use super::segment::{Segment, appended};
use super::writers::{Verdict, Writers};
use crate::error::{Error, Result};
use crate::fluss::code::Code;
use crate::fluss::record::{BatchHeader, RawBatch, batches, stamp};
use crate::model::TableBucket;
use crate::node::places::sync_folder;

/// Leader epoch stamped into batches: the node never elects.
const LEADER_EPOCH: i32 = 0;
/// Bytes read at once while looking for a batch.
const LOOK_BYTES: usize = 128 << 10;

/// Bytes that hold the header of a batch of any magic.
const HEADER_BYTES_MAX: usize = 56;

/// The log of one bucket: offsets from [`BucketLog::log_start`] up to [`BucketLog::log_end`], served up to
/// [`BucketLog::high_watermark`].
///
/// Appends are serialised by their own lock, so that readers never wait for the disk of a writer.
#[derive(Debug)]
pub struct BucketLog {
    bucket: TableBucket,
    folder: PathBuf,
    shared: Arc<Shared>,
    appending: Mutex<()>,
    state: Mutex<State>,
    durable: watch::Sender<Durable>,
}

#[derive(Debug)]
struct State {
    /// At least one unless nothing was ever appended.
    segments: VecDeque<Segment>,
    writers: Writers,
    last_timestamp_ms: i64,
    syncing: bool,
    /// Why nothing can be appended any more.
    broken: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Durable {
    end_offset: i64,
    broken: bool,
}

/// A batch that was written (or had been before): acknowledge it once [`BucketLog::durable`] says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appending {
    /// Offset of its first record.
    pub base_offset: i64,
    /// Offset after its last record.
    pub end_offset: i64,
}

/// Why a batch was not appended; nothing was written then.
#[derive(Debug)]
pub enum AppendError {
    /// Error 14: damaged.
    Corrupt(Error),
    /// Error 31: neither the producer's next batch nor one of its last.
    OutOfOrder {
        /// The producer.
        writer: i64,
        /// What it sent.
        sequence: i32,
        /// The last one it had appended, if it is known.
        last: Option<i32>,
    },
    /// Error 10: the disk failed, or the log is being deleted.
    Storage(Error),
}

/// Why nothing was read.
#[derive(Debug)]
pub enum ReadError {
    /// Error 19.
    OutOfRange {
        /// First offset there is.
        start: i64,
        /// Offset after the last one.
        end: i64,
    },
    /// Error 10.
    Storage(Error),
}

impl AppendError {
    /// What the producer is answered.
    #[must_use]
    pub fn answer(self, bucket: TableBucket) -> Error {
        match self {
            Self::Corrupt(error) => Code::CORRUPT_RECORD.answer(bucket).with_source(error),
            Self::OutOfOrder { writer, sequence, last } => Code::OUT_OF_ORDER_SEQUENCE.answer(format!(
                "{bucket}: writer `{writer}` sent batch `{sequence}`, its last one here was `{}`",
                last.map_or_else(|| "none".to_owned(), |last| last.to_string())
            )),
            Self::Storage(error) => {
                tracing::error!(%bucket, error = %error.chain(), "batch not appended");
                Code::LOG_STORAGE.answer(bucket).with_source(error)
            }
        }
    }
}

impl ReadError {
    /// What the reader is answered.
    #[must_use]
    pub fn answer(self, bucket: TableBucket) -> Error {
        match self {
            Self::OutOfRange { start, end } => {
                Code::LOG_OFFSET_OUT_OF_RANGE.answer(format!("{bucket}: offset is out of range, there are `{start}` up to `{end}`"))
            }
            Self::Storage(error) => {
                tracing::error!(%bucket, error = %error.chain(), "log can't be read");
                Code::LOG_STORAGE.answer(bucket).with_source(error)
            }
        }
    }
}

impl BucketLog {
    pub(super) fn open(bucket: TableBucket, folder: PathBuf, shared: Arc<Shared>) -> Result<Self> {
        let mut state =
            State { segments: VecDeque::new(), writers: Writers::default(), last_timestamp_ms: -1, syncing: false, broken: None };
        let starts = segment_starts(&folder)?;
        let path = |start: i64| folder.join(Segment::file_name(start));
        let before_newest = starts.last().and_then(|start| Segment::read_writers(&path(*start)));
        for (index, start) in starts.iter().enumerate() {
            let path = path(*start);
            if state.segments.back().is_some_and(|before| before.end_offset != *start) {
                return Err(Error::data(format!("{bucket}: segment `{}` does not follow the one before it", path.display())));
            }
            let newest = index + 1 == starts.len();
            let sealed = Segment::read_seal(&path, *start).filter(|_| !newest && before_newest.is_some());
            if let Some(writers) = before_newest.as_ref().filter(|_| newest) {
                state.writers = writers.clone();
            }
            let segment = sealed.map_or_else(|| Segment::scan(&path, *start, &mut state.writers), Ok)?;
            settle(&path, &segment, newest).map_err(|error| error.context(format!("open the log of {bucket}")))?;
            state.last_timestamp_ms = state.last_timestamp_ms.max(segment.max_timestamp_ms);
            state.segments.push_back(segment);
        }
        state.writers.expire(shared.clock.now_ms().saturating_sub(shared.options.writer_idle_ms));
        let end_offset = state.end_offset();
        let durable = watch::Sender::new(Durable { end_offset, broken: false });
        Ok(Self { bucket, folder, shared, appending: Mutex::default(), state: Mutex::new(state), durable })
    }

    /// Whose log it is.
    #[must_use]
    pub fn bucket(&self) -> TableBucket {
        self.bucket
    }

    /// First offset there is.
    #[must_use]
    pub fn log_start(&self) -> i64 {
        self.state().start_offset()
    }

    /// Offset after the last one written.
    #[must_use]
    pub fn log_end(&self) -> i64 {
        self.state().end_offset()
    }

    /// Offset after the last one that is durable, hence served.
    #[must_use]
    pub fn high_watermark(&self) -> i64 {
        self.durable.borrow().end_offset
    }

    /// Rows there are, durable or not.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.state().segments.iter().map(|segment| segment.rows).sum()
    }

    /// Where the batch `sequence` of `writer` was appended, if it was; `None` = it is the next one.
    ///
    /// # Errors
    /// `OutOfOrder` when it is neither.
    pub fn judge(&self, writer: i64, sequence: i32) -> Result<Option<Appending>, AppendError> {
        self.state().judge(writer, sequence)
    }

    /// Writes one batch at the end (blocking). The answer to the producer has to wait for [`Self::durable`].
    ///
    /// A batch that was appended before is not written again; its original place is returned.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn append(self: &Arc<Self>, batch: &RawBatch) -> Result<Appending, AppendError> {
        batch.verify_crc().map_err(AppendError::Corrupt)?;
        let appending = self.appending.lock().unwrap_or_else(PoisonError::into_inner);
        let header = &batch.header;
        let (base_offset, timestamp_ms, bytes) = {
            let state = self.state();
            if let Some(why) = state.broken {
                return Err(AppendError::Storage(Error::unavailable(format!("the log of {} is closed: {why}", self.bucket))));
            }
            if let Some(original) = state.judge(header.writer_id, header.batch_sequence)? {
                return Ok(original);
            }
            // Time look-ups need timestamps that never go back, whatever the machine's clock does.
            let timestamp_ms = state.last_timestamp_ms.max(self.shared.clock.now_ms());
            (state.end_offset(), timestamp_ms, state.segments.back().map(|segment| segment.bytes))
        };
        let mut stamped = BytesMut::from(&*batch.bytes);
        stamp(&mut stamped, base_offset, timestamp_ms, LEADER_EPOCH).map_err(AppendError::Corrupt)?;
        let header = BatchHeader::parse(&stamped).map_err(AppendError::Corrupt)?;
        self.write(&stamped, base_offset, bytes).map_err(AppendError::Storage)?;
        let mut state = self.state();
        if let Some(segment) = state.segments.back_mut() {
            segment.push(&header);
        }
        state.writers.remember(header.writer_id, appended(&header));
        state.last_timestamp_ms = timestamp_ms;
        drop(state);
        drop(appending);
        let end_offset = header.next_offset();
        if self.shared.options.fsync {
            self.start_sync();
        } else {
            self.durable.send_modify(|durable| durable.end_offset = durable.end_offset.max(end_offset));
        }
        Ok(Appending { base_offset, end_offset })
    }

    /// Writes `bytes` behind the newest segment, or as a new one where that is full or absent. Leaves no half batch behind.
    fn write(&self, bytes: &[u8], base_offset: i64, newest_bytes: Option<u64>) -> Result<()> {
        let position = match newest_bytes {
            Some(position) if position == 0 || position + bytes.len() as u64 <= self.shared.options.segment_bytes => position,
            _ => {
                self.roll(base_offset)?;
                0
            }
        };
        let path = self.newest_path();
        let file = self.shared.handles.open(&path)?;
        self.fail_at("log.before_append", &path)?;
        file.write_all_at(bytes, position).map_err(|source| {
            if file.set_len(position).is_err() {
                self.break_off("a write failed half-way and could not be taken back");
            }
            Error::unavailable(format!("write segment `{}`", path.display())).with_source(source)
        })?;
        self.fail_at("log.after_append", &path)
    }

    /// Closes the newest segment and begins one at `offset`.
    fn roll(&self, offset: i64) -> Result<()> {
        let path = self.newest_path();
        let closing = {
            let state = self.state();
            state.segments.back().map(|segment| (segment.clone(), state.writers.clone()))
        };
        if let Some((segment, writers)) = closing {
            if self.shared.options.fsync {
                // `sync` looks at the newest segment only.
                self.shared.handles.open(&path)?.sync_data().map_err(|source| {
                    self.break_off("its bytes could not be synced");
                    Error::unavailable(format!("sync segment `{}`", path.display())).with_source(source)
                })?;
            }
            segment.write_seal(&path);
            Segment::write_writers(&self.folder.join(Segment::file_name(offset)), &writers);
        } else {
            self.shared.places.create(&self.folder)?;
        }
        let path = self.folder.join(Segment::file_name(offset));
        self.fail_at("log.before_segment", &path)?;
        let fault = |source| Error::unavailable(format!("create segment `{}`", path.display())).with_source(source);
        let created = File::create(&path).and_then(|_file| sync_folder(&self.folder));
        if let Err(source) = created {
            // An empty segment that stayed would not follow what is appended to the old one now; the log could not be opened again.
            drop(fs::remove_file(&path));
            return Err(fault(source));
        }
        self.state().segments.push_back(Segment::empty(offset));
        self.fail_at("log.after_segment", &path)
    }

    fn fail_at(&self, point: &str, path: &Path) -> Result<()> {
        self.shared.fail.hit_blocking(point, &path.to_string_lossy())
    }

    fn newest_path(&self) -> PathBuf {
        self.folder.join(Segment::file_name(self.state().newest_start()))
    }

    /// Starts a task that syncs until all that is written is durable, unless one is at it: appends that come in meanwhile share the
    /// next sync.
    fn start_sync(self: &Arc<Self>) {
        if std::mem::replace(&mut self.state().syncing, true) {
            return;
        }
        let log = Arc::clone(self);
        tokio::spawn(async move {
            let permit = Arc::clone(&log.shared.syncs).acquire_owned().await;
            let ended = tokio::task::spawn_blocking(move || {
                log.sync();
                drop(permit);
            });
            if let Err(error) = ended.await {
                tracing::error!(%error, "sync task ended");
            }
        });
    }

    fn sync(&self) {
        loop {
            // One look at both: what lies before the newest segment was synced when that was begun.
            let (start, end_offset) = {
                let mut state = self.state();
                let end_offset = state.end_offset();
                if state.broken.is_some() || end_offset == self.high_watermark() {
                    state.syncing = false;
                    return;
                }
                (state.newest_start(), end_offset)
            };
            let path = self.folder.join(Segment::file_name(start));
            match self.sync_newest(&path) {
                Ok(()) => self.durable.send_modify(|durable| durable.end_offset = durable.end_offset.max(end_offset)),
                Err(error) => {
                    tracing::error!(bucket = %self.bucket, error = %error.chain(), "sync failed, the log is closed");
                    // The kernel may have dropped the pages: a second try could succeed without the bytes being on disk.
                    self.break_off("its bytes could not be synced");
                }
            }
        }
    }

    fn sync_newest(&self, path: &Path) -> Result<()> {
        self.fail_at("log.before_sync", path)?;
        let synced = self.shared.handles.open(path)?.sync_data();
        synced.map_err(|source| Error::unavailable(format!("sync segment `{}`", path.display())).with_source(source))?;
        self.fail_at("log.after_sync", path)
    }

    /// Waits until everything before `end_offset` is durable.
    ///
    /// # Errors
    /// `Unavailable` when that will not happen.
    pub async fn durable(&self, end_offset: i64) -> Result<()> {
        let mut durable = self.durable.subscribe();
        let reached = durable.wait_for(|durable| durable.broken || durable.end_offset >= end_offset).await;
        match reached.map(|durable| durable.end_offset >= end_offset) {
            Ok(true) => Ok(()),
            _ => Err(Error::unavailable(format!("the log of {} is closed", self.bucket))),
        }
    }

    /// Waits until the high watermark moves or the log is closed, from the moment of this call on.
    pub fn moved(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let mut durable = self.durable.subscribe();
        async move {
            // The sender lives in the log; when it is dropped there is nothing to wait for.
            drop(durable.changed().await);
        }
    }

    /// Takes no appends any more: its files are about to be deleted.
    pub(super) fn close(&self) {
        self.break_off("its table or partition was dropped");
    }

    fn break_off(&self, why: &'static str) {
        self.state().broken.get_or_insert(why);
        self.durable.send_modify(|durable| durable.broken = true);
    }

    /// Reads whole batches from the one that holds `offset`, up to the high watermark and `bytes_max` (blocking). `whole_first` lets the first
    /// batch in even if it is larger. Empty at the high watermark and above.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read(&self, offset: i64, bytes_max: usize, whole_first: bool) -> Result<Bytes, ReadError> {
        let (segments, high_watermark) = {
            let state = self.state();
            let (start, end) = (state.start_offset(), state.end_offset());
            if offset < start || offset > end {
                return Err(ReadError::OutOfRange { start, end });
            }
            let first = state.segments.partition_point(|segment| segment.end_offset <= offset);
            // As many as the answer can touch. Where the first batch lies in its segment is not known yet: that segment counts nothing.
            let mut left = bytes_max as u64;
            let mut wanted = Vec::new();
            for segment in state.segments.range(first..) {
                if wanted.is_empty() {
                    wanted.push((segment.start_offset, segment.position_before(offset), segment.bytes));
                } else if left > 0 {
                    wanted.push((segment.start_offset, 0, segment.bytes));
                    left = left.saturating_sub(segment.bytes);
                } else {
                    break;
                }
            }
            (wanted, self.high_watermark())
        };
        if offset >= high_watermark {
            return Ok(Bytes::new());
        }
        let mut parts: Vec<Bytes> = Vec::new();
        let mut left = bytes_max;
        for (start, position, end) in segments {
            let (part, to_its_end) = self
                .read_segment(start, position..end, offset, high_watermark, left, whole_first && parts.is_empty())
                .map_err(ReadError::Storage)?;
            left = left.saturating_sub(part.len());
            parts.push(part);
            // A batch that was left out ends the answer: a smaller one of the next segment might fit.
            if !to_its_end {
                break;
            }
        }
        Ok(match <[Bytes; 1]>::try_from(parts) {
            Ok([one]) => one,
            Err(parts) => parts.concat().into(),
        })
    }

    /// Whole batches of the segment at `start`, within its bytes `range`, of at most `bytes_max` bytes; and whether they reach the range's end.
    fn read_segment(
        &self,
        start: i64,
        range: std::ops::Range<u64>,
        offset: i64,
        high_watermark: i64,
        bytes_max: usize,
        whole_first: bool,
    ) -> Result<(Bytes, bool)> {
        let Some((position, first)) = self.find(start, range.clone(), |header| header.next_offset() > offset)? else {
            return Ok((Bytes::new(), false));
        };
        if first.base_offset >= high_watermark || (first.total_bytes > bytes_max && !whole_first) {
            return Ok((Bytes::new(), false));
        }
        let wanted = (bytes_max.max(first.total_bytes) as u64).min(range.end - position);
        let mut bytes = self.read_at(start, position, usize::try_from(wanted).unwrap_or(usize::MAX))?;
        let mut whole = 0;
        for batch in batches(bytes.clone()) {
            let header = batch?.header;
            if header.base_offset >= high_watermark {
                break;
            }
            whole += header.total_bytes;
        }
        bytes.truncate(whole);
        Ok((bytes, position + whole as u64 == range.end))
    }

    /// First batch within the bytes `range` of the segment at `start` that `wanted` says yes to, and its position.
    fn find(
        &self,
        start: i64,
        range: std::ops::Range<u64>,
        wanted: impl Fn(&BatchHeader) -> bool,
    ) -> Result<Option<(u64, BatchHeader)>> {
        let mut position = range.start;
        while position < range.end {
            let left = usize::try_from(range.end - position).unwrap_or(usize::MAX);
            let bytes = self.read_at(start, position, LOOK_BYTES.min(left))?;
            let mut at = 0;
            // Headers alone matter: a batch may reach beyond what was read. Only at the range's end may a header have fewer bytes.
            while let Some(rest) =
                bytes.get(at..).filter(|rest| rest.len() >= HEADER_BYTES_MAX || (left == bytes.len() && !rest.is_empty()))
            {
                let header = BatchHeader::parse(rest)?;
                if wanted(&header) {
                    return Ok(Some((position + at as u64, header)));
                }
                at += header.total_bytes;
            }
            position += at as u64;
        }
        Ok(None)
    }

    /// Offset of the first batch with a commit timestamp ≥ `timestamp_ms`; the high watermark when there is none before it (blocking).
    ///
    /// # Errors
    /// `Unavailable` when the log can't be read.
    pub fn offset_at(&self, timestamp_ms: i64) -> Result<i64> {
        let high_watermark = self.high_watermark();
        let place = {
            let state = self.state();
            let after = state.segments.partition_point(|segment| segment.max_timestamp_ms < timestamp_ms);
            let segment = state.segments.get(after);
            segment.map(|segment| (segment.start_offset, segment.position_before_time(timestamp_ms)..segment.bytes))
        };
        let Some((start, range)) = place else { return Ok(high_watermark) };
        let found = self.find(start, range, |header| header.commit_timestamp_ms >= timestamp_ms)?;
        Ok(found.map_or(high_watermark, |(_, header)| header.base_offset.min(high_watermark)))
    }

    /// Whether [`Self::expire`] would delete something.
    pub fn expires(&self, oldest_ms: i64, tiered_end: i64) -> bool {
        self.state().segments.front().is_some_and(|segment| segment.is_old(oldest_ms, tiered_end))
    }

    /// Deletes segments whose newest row is older than `oldest_ms`, as far as they end at or before `tiered_end` (blocking). Forgets idle
    /// producers.
    ///
    /// # Errors
    /// `Unavailable` when files can't be deleted; the next call tries again.
    pub fn expire(&self, oldest_ms: i64, tiered_end: i64) -> Result<()> {
        let _appending = self.appending.lock().unwrap_or_else(PoisonError::into_inner);
        let old = |segment: &Segment| segment.is_old(oldest_ms, tiered_end);
        let newest_too = {
            let mut state = self.state();
            state.writers.expire(self.shared.clock.now_ms().saturating_sub(self.shared.options.writer_idle_ms));
            if state.broken.is_some() {
                return Ok(());
            }
            // An empty successor keeps the log's end.
            state.segments.iter().all(old).then(|| state.end_offset())
        };
        if let Some(end) = newest_too.filter(|_| !self.state().segments.is_empty()) {
            self.roll(end)?;
            self.durable.send_modify(|durable| durable.end_offset = durable.end_offset.max(end));
        }
        loop {
            let start = {
                let mut state = self.state();
                match state.segments.front() {
                    Some(segment) if old(segment) && state.segments.len() > 1 => {
                        let start = segment.start_offset;
                        state.segments.pop_front();
                        start
                    }
                    _ => return Ok(()),
                }
            };
            let path = self.folder.join(Segment::file_name(start));
            self.shared.handles.forget(&path);
            Segment::delete(&path)
                .map_err(|source| Error::unavailable(format!("delete segment `{}`", path.display())).with_source(source))?;
            tracing::debug!(bucket = %self.bucket, segment = %path.display(), "segment expired");
        }
    }

    fn read_at(&self, start: i64, position: u64, length: usize) -> Result<Bytes> {
        let path = self.folder.join(Segment::file_name(start));
        let mut bytes = BytesMut::zeroed(length);
        self.shared
            .handles
            .open(&path)?
            .read_exact_at(&mut bytes, position)
            .map_err(|source| Error::unavailable(format!("read segment `{}`", path.display())).with_source(source))?;
        Ok(bytes.freeze())
    }

    #[cfg(test)]
    pub(super) fn segment_count(&self) -> usize {
        self.state().segments.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn judge(&self, writer: i64, sequence: i32) -> Result<Option<Appending>, AppendError> {
        match self.writers.judge(writer, sequence) {
            Verdict::Append => Ok(None),
            Verdict::Duplicate(original) => {
                Ok(Some(Appending { base_offset: original.base_offset, end_offset: original.end_offset }))
            }
            Verdict::OutOfOrder { last } => Err(AppendError::OutOfOrder { writer, sequence, last }),
        }
    }

    fn start_offset(&self) -> i64 {
        self.segments.front().map_or(0, |segment| segment.start_offset)
    }

    fn end_offset(&self) -> i64 {
        self.segments.back().map_or(0, |segment| segment.end_offset)
    }

    fn newest_start(&self) -> i64 {
        self.segments.back().map_or(0, |segment| segment.start_offset)
    }
}

/// Start offsets of the segments in `folder`, ascending.
fn segment_starts(folder: &Path) -> Result<Vec<i64>> {
    let fault = |source| Error::unavailable(format!("list folder `{}`", folder.display())).with_source(source);
    let entries = match fs::read_dir(folder) {
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(fault)?,
    };
    let mut starts = Vec::new();
    for entry in entries {
        let name = entry.map_err(fault)?.file_name();
        starts.extend(name.to_str().and_then(|name| name.strip_suffix(".log")).and_then(|start| start.parse::<i64>().ok()));
    }
    starts.sort_unstable();
    Ok(starts)
}

/// Makes the file agree with what was found in it: the newest segment loses its torn tail and becomes durable, any other must be whole.
fn settle(path: &Path, segment: &Segment, newest: bool) -> Result<()> {
    let fault = |source| Error::unavailable(format!("settle segment `{}`", path.display())).with_source(source);
    let length = fs::metadata(path).map_err(fault)?.len();
    if !newest {
        return match length == segment.bytes {
            true => Ok(()),
            false => Err(Error::data(format!("segment `{}` is damaged at byte `{}`", path.display(), segment.bytes))),
        };
    }
    let file = File::options().write(true).open(path).map_err(fault)?;
    if length != segment.bytes {
        tracing::warn!(segment = %path.display(), bytes = length - segment.bytes, "torn tail cut off");
        file.set_len(segment.bytes).map_err(fault)?;
    }
    file.sync_all().map_err(fault)
}
