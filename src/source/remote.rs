//! Log segments that have left the servers (F5.6): which ones, how far they are read, and what has to hold for their bytes.
//!
//! A [`RemoteLog`] comes with a bucket's answer to a fetch; `read` reads it range by range, under permits of its own, and
//! asks the server again when it ends. The bytes come through [`TableScan::remote_bytes`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::{LogSlice, TableScan};
use crate::error::{Error, Kind, Result};
use crate::fluss::record::{BATCH_BYTES_MAX, BatchHeader, HEADER_BYTES_MIN, LogFormat, batch_bytes};
use crate::model::{Schema, SchemaId, TableBucket, TableInfo};

/// Segments remembered of one answer; the server is asked again for those behind.
const SEGMENTS_MAX: usize = 64;

/// One segment, as the server lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteSegment {
    /// Its folder's name, a uuid.
    pub id: String,
    /// Offset of its first record.
    pub start_offset: i64,
    /// Exclusive end.
    pub end_offset: i64,
    /// Size of its file.
    pub bytes: u64,
}

impl RemoteSegment {
    /// Where `offset` lies in the file, about: all rows are taken for equally long.
    fn bytes_to(&self, offset: i64) -> u64 {
        let all = u128::from(self.end_offset.abs_diff(self.start_offset)).max(1);
        let part = u128::try_from(i128::from(offset) - i128::from(self.start_offset)).unwrap_or(0).min(all);
        u64::try_from(u128::from(self.bytes) * part / all).unwrap_or(u64::MAX)
    }
}

/// The segments of one bucket from some offset on, in order, and how far they are read.
///
/// Their files are read in ranges of bytes ([`RemoteLog::plan`]), as many at once as the caller likes, that are handed back in order
/// ([`RemoteLog::take`]): where a batch begins is known only from the bytes before it, so a range's cut-off tail waits for the next one.
#[derive(Debug, Clone)]
pub struct RemoteLog {
    bucket: TableBucket,
    folder: Arc<str>,
    segments: VecDeque<RemoteSegment>,
    /// Byte in the first of them: a batch begins there.
    position: u64,
    /// What was read from there on.
    tail: Bytes,
    /// Offset of that batch; not known before the first is read.
    due: Option<i64>,
    /// Place among `segments` and byte where the next range begins; `None` = behind `tail`.
    planned: Option<(usize, u64)>,
}

/// A range of bytes of a segment's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteRange {
    url: String,
    start: u64,
    end: u64,
}

impl RemoteRange {
    /// The file.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Reads it; `None` when the file is not there.
    ///
    /// # Errors
    /// `Data` when the file is shorter than listed; `Unsupported` names a storage scheme that is not there; `Unavailable`.
    pub async fn read(&self, scan: &dyn TableScan) -> Result<Option<Bytes>> {
        bytes(scan, &self.url, self.start, self.end).await
    }
}

/// What [`RemoteLog::take`] found.
#[derive(Debug)]
pub enum RemoteRead {
    /// One whole batch or more; on first reading maybe only batches before the wanted offset.
    Slice(LogSlice),
    /// All segments are read: the log goes on at the server.
    End,
    /// This file is not there (any more): the server knows what is.
    Gone(String),
}

impl RemoteLog {
    /// The log of `bucket` in `segments` below `folder`, from byte `position` of the first on. What does not follow without a gap is
    /// left out: the server is asked for it then.
    ///
    /// # Errors
    /// `Data` when a segment's name, offsets or size can't be.
    pub fn new(bucket: TableBucket, folder: &str, segments: Vec<RemoteSegment>, position: u64) -> Result<Self> {
        let mut kept: VecDeque<RemoteSegment> = VecDeque::new();
        for segment in segments.into_iter().take(SEGMENTS_MAX) {
            let named = !segment.id.is_empty() && segment.id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
            if !named || segment.start_offset < 0 || segment.end_offset < segment.start_offset {
                return Err(Error::data(format!("the server lists a remote log segment of {bucket} that can't be: {segment:?}")));
            }
            if kept.back().is_some_and(|last| last.end_offset != segment.start_offset) {
                break;
            }
            kept.push_back(segment);
        }
        Ok(Self {
            bucket,
            folder: folder.trim_end_matches('/').into(),
            segments: kept,
            position,
            tail: Bytes::new(),
            due: None,
            planned: None,
        })
    }

    /// The next range of about `bytes_max` bytes, behind those planned already, unless it lies, by its place in the segment, beyond offset
    /// `stop`. `None` also behind the last one: the log goes on at the server when all are taken.
    ///
    /// # Errors
    /// `Data` when a segment that was read to its end is not what was listed: file, byte, bucket and offset are named.
    pub fn plan(&mut self, bytes_max: i32, stop: i64) -> Result<Option<RemoteRange>> {
        let (mut index, mut start) = match self.planned {
            Some(planned) => planned,
            None => {
                self.pass()?;
                let start = self.read_to();
                if let Some(segment) = self.segments.front().filter(|segment| !self.tail.is_empty() && start >= segment.bytes) {
                    return Err(self.cut_off(segment));
                }
                (0, start)
            }
        };
        let wanted = usize::try_from(bytes_max).unwrap_or(0).max(HEADER_BYTES_MIN) as u64;
        while let Some(segment) = self.segments.get(index) {
            let beyond = segment.end_offset > stop && start > 0 && start >= segment.bytes_to(stop);
            if beyond || segment.start_offset >= stop {
                return Ok(None);
            }
            if start < segment.bytes {
                let end = start.saturating_add(wanted).min(segment.bytes);
                self.planned = Some((index, end));
                return Ok(Some(RemoteRange { url: self.url(segment), start, end }));
            }
            (index, start) = (index + 1, 0);
        }
        Ok(None)
    }

    /// Plans those ranges again that were planned and not taken.
    pub fn replan(&mut self) {
        self.planned = None;
    }

    /// Whether this range is the one to take next.
    #[must_use]
    pub fn is_due(&self, range: &RemoteRange) -> bool {
        let (read_to, end) = (self.read_to(), self.segments.front().map_or(0, |segment| segment.bytes));
        let mut segments = self.segments.iter();
        let here = if read_to < end { segments.next() } else { segments.nth(1) };
        here.is_some_and(|segment| self.url(segment) == range.url) && range.start == if read_to < end { read_to } else { 0 }
    }

    /// Goes on by the bytes of the range that is due: to the end of its last whole batch, but one batch at least, whatever its size.
    /// Nothing is read twice.
    ///
    /// # Errors
    /// `Data` when a file is shorter than listed, holds no batches, or others than listed: file, byte, bucket and offset are named;
    /// `Unavailable`. Checksums are for [`LogSlice::decode`].
    pub async fn take(&mut self, scan: &dyn TableScan, table: &TableInfo, range: &RemoteRange, raw: Bytes) -> Result<RemoteRead> {
        self.pass()?;
        let Some(segment) = self.segments.front().cloned() else { return Err(Error::internal("a range of no segment")) };
        let url = self.url(&segment);
        if *range.url != url || range.start != self.read_to() {
            // Only where this one ends inside a batch.
            return Err(self.cut_off(&segment));
        }
        let mut raw = if self.tail.is_empty() { raw } else { [&*std::mem::take(&mut self.tail), &*raw].concat().into() };
        let total = batch_bytes(&raw).map_err(|error| self.located(&url, error))?;
        let total = total.ok_or_else(|| self.located(&url, Error::data("the segment ends inside a batch")))?;
        if total > raw.len() {
            let (end, batch_end) = (range.end, self.position.saturating_add(total as u64));
            if total > BATCH_BYTES_MAX || batch_end > segment.bytes {
                return Err(self.too_long(&segment, total));
            }
            let rest = bytes(scan, &url, end, batch_end).await.map_err(|error| self.located(&url, error))?;
            let Some(rest) = rest else { return Ok(RemoteRead::Gone(url)) };
            let mut whole = BytesMut::with_capacity(total);
            whole.extend_from_slice(&raw);
            whole.extend_from_slice(&rest);
            raw = whole.freeze();
            self.replan();
        }
        let first = BatchHeader::parse(&raw).map_err(|error| self.located(&url, error))?.base_offset;
        if let Some(due) = self.due.filter(|due| *due != first) {
            return Err(self.located(&url, Error::data(format!("a batch begins with offset `{first}` where `{due}` is due"))));
        }
        let schemas = schemas(scan, table, &raw).await.map_err(|error| self.located(&url, error))?;
        let slice = LogSlice::new(self.bucket, LogFormat::of(table)?, raw.clone(), schemas);
        let slice = slice.map_err(|error| self.located(&url, error))?.whole().read_from(self.place(&url));
        self.position = self.position.saturating_add(slice.len() as u64);
        // A copy, so that it does not keep the whole range.
        self.tail = Bytes::copy_from_slice(raw.get(slice.len()..).unwrap_or_default());
        self.due = slice.next_offset();
        Ok(RemoteRead::Slice(slice))
    }

    /// Reads and takes the next range, for those who read one after the other.
    ///
    /// # Errors
    /// As [`RemoteLog::plan`], [`RemoteRange::read`] and [`RemoteLog::take`].
    pub async fn next(&mut self, scan: &dyn TableScan, table: &TableInfo, bytes_max: i32) -> Result<RemoteRead> {
        self.replan();
        let Some(range) = self.plan(bytes_max, i64::MAX)? else { return Ok(RemoteRead::End) };
        match range.read(scan).await.map_err(|error| self.fault(&range, error))? {
            Some(raw) => self.take(scan, table, &range, raw).await,
            None => Ok(RemoteRead::Gone(range.url)),
        }
    }

    /// Names bucket, file, byte and offset of a fault in reading a range.
    #[must_use]
    pub fn fault(&self, range: &RemoteRange, error: Error) -> Error {
        self.located(&range.url, error)
    }

    fn url(&self, segment: &RemoteSegment) -> String {
        format!("{}/{}/{:020}.log", self.folder, segment.id, segment.start_offset)
    }

    /// Byte of the first segment up to which there is something to go on with.
    fn read_to(&self) -> u64 {
        self.position.saturating_add(self.tail.len() as u64)
    }

    /// Passes over segments that are read.
    fn pass(&mut self) -> Result<()> {
        while let Some(segment) = self.segments.front() {
            if self.position < segment.bytes {
                return Ok(());
            }
            let (url, bytes, end) = (self.url(segment), segment.bytes, segment.end_offset);
            if self.position > bytes || self.due.is_some_and(|due| due != end) {
                let found = self.due.map_or_else(|| "nothing".to_owned(), |due| format!("offset `{due}`"));
                return Err(self.located(
                    &url,
                    Error::data(format!("a segment of `{bytes}` bytes, listed up to offset `{end}`, ends at {found}")),
                ));
            }
            self.segments.pop_front();
            (self.position, self.due) = (0, Some(end));
            self.planned = self.planned.and_then(|(index, byte)| index.checked_sub(1).map(|index| (index, byte)));
        }
        Ok(())
    }

    /// Said of a segment that has been read to its end, which is no batch's.
    fn cut_off(&self, segment: &RemoteSegment) -> Error {
        match batch_bytes(&self.tail) {
            Ok(Some(total)) => self.too_long(segment, total),
            Ok(None) => self.located(&self.url(segment), Error::data("the segment ends inside a batch")),
            Err(error) => self.located(&self.url(segment), error),
        }
    }

    fn too_long(&self, segment: &RemoteSegment, total: usize) -> Error {
        let of = segment.bytes;
        self.located(&self.url(segment), Error::data(format!("a batch of `{total}` bytes begins, in a segment of `{of}`")))
    }

    fn place(&self, url: &str) -> String {
        format!("remote segment `{url}` from byte `{}` on", self.position)
    }

    fn located(&self, url: &str, error: Error) -> Error {
        let offset = self.due.or_else(|| self.segments.front().map(|segment| segment.start_offset)).unwrap_or_default();
        error.context(format!("read the log of {} in {}, offset `{offset}`", self.bucket, self.place(url)))
    }
}

async fn bytes(scan: &dyn TableScan, url: &str, start: u64, end: u64) -> Result<Option<Bytes>> {
    let found = scan.remote_bytes(url, start, end).await.map_err(|error| match error.kind() {
        Kind::Unsupported => error.with_hint(
            "log segments that have left the servers are read from local paths, `file:` and S3 only: tier the table before they do \
             (`table.datalake.freshness`, `table.log.tiered.local-segments`)",
        ),
        _ => error,
    });
    let Some(found) = found? else { return Ok(None) };
    if found.len() as u64 == end.saturating_sub(start) {
        return Ok(Some(found));
    }
    let is = start.saturating_add(found.len() as u64);
    Err(Error::data(format!("the file ends at byte `{is}`, and `{end}` are listed"))
        .with_hint("put the file back from a copy: no other has its rows"))
}

/// The schemas that whole batches in `raw` name.
pub(super) async fn schemas(scan: &dyn TableScan, table: &TableInfo, raw: &Bytes) -> Result<BTreeMap<SchemaId, Arc<Schema>>> {
    let mut schemas = BTreeMap::new();
    for id in LogSlice::schema_ids(raw)? {
        let known = id == table.schema.id;
        let schema = if known { Arc::clone(&table.schema) } else { scan.schema(&table.path, id).await? };
        schemas.insert(id, schema);
    }
    Ok(schemas)
}
