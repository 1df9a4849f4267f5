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

/// The segments of one bucket from some offset on, in order, and how far they are read.
#[derive(Debug, Clone)]
pub struct RemoteLog {
    bucket: TableBucket,
    folder: Arc<str>,
    segments: VecDeque<RemoteSegment>,
    /// Byte in the first of them: a batch begins there.
    position: u64,
    /// Offset of that batch; not known before the first is read.
    due: Option<i64>,
}

/// What [`RemoteLog::next`] found.
#[derive(Debug)]
pub enum RemoteRead {
    /// One whole batch or more, and maybe a cut-off one; on first reading maybe only batches before the wanted offset.
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
        Ok(Self { bucket, folder: folder.trim_end_matches('/').into(), segments: kept, position, due: None })
    }

    /// Reads about `bytes_max` bytes on: at least one whole batch, whatever its size. Reads nothing twice but cut-off batches.
    ///
    /// # Errors
    /// `Data` when a file is shorter than listed, holds no batches, or others than listed: file, byte, bucket and offset are named;
    /// `Unsupported` names a storage scheme that is not there; `Unavailable`. Checksums are for [`LogSlice::decode`].
    pub async fn next(&mut self, scan: &dyn TableScan, table: &TableInfo, bytes_max: i32) -> Result<RemoteRead> {
        let Some((segment, url)) = self.here()? else { return Ok(RemoteRead::End) };
        let wanted = usize::try_from(bytes_max).unwrap_or(0).max(HEADER_BYTES_MIN) as u64;
        let end = self.position.saturating_add(wanted).min(segment.bytes);
        let position = self.position;
        let Some(mut raw) = bytes(scan, &url, position, end).await.map_err(|error| self.located(&url, error))? else {
            return Ok(RemoteRead::Gone(url));
        };
        let total = batch_bytes(&raw).map_err(|error| self.located(&url, error))?;
        let total = total.ok_or_else(|| self.located(&url, Error::data("the segment ends inside a batch")))?;
        if total > raw.len() {
            let batch_end = position.saturating_add(total as u64);
            if total > BATCH_BYTES_MAX || batch_end > segment.bytes {
                let of = segment.bytes;
                return Err(self.located(&url, Error::data(format!("a batch of `{total}` bytes begins, in a segment of `{of}`"))));
            }
            let mut whole = BytesMut::with_capacity(total);
            whole.extend_from_slice(&raw);
            match bytes(scan, &url, end, batch_end).await.map_err(|error| self.located(&url, error))? {
                Some(rest) => whole.extend_from_slice(&rest),
                None => return Ok(RemoteRead::Gone(url)),
            }
            raw = whole.freeze();
        }
        let first = BatchHeader::parse(&raw).map_err(|error| self.located(&url, error))?.base_offset;
        if let Some(due) = self.due.filter(|due| *due != first) {
            return Err(self.located(&url, Error::data(format!("a batch begins with offset `{first}` where `{due}` is due"))));
        }
        let schemas = schemas(scan, table, &raw).await.map_err(|error| self.located(&url, error))?;
        let slice = LogSlice::new(self.bucket, LogFormat::of(table)?, raw, schemas);
        let slice = slice.map_err(|error| self.located(&url, error))?.read_from(self.place(&url));
        self.position = position.saturating_add(slice.whole_bytes() as u64);
        self.due = slice.next_offset();
        Ok(RemoteRead::Slice(slice))
    }

    /// The segment to read in, and its file; passes over those that are read.
    fn here(&mut self) -> Result<Option<(RemoteSegment, String)>> {
        while let Some(segment) = self.segments.front() {
            let url = format!("{}/{}/{:020}.log", self.folder, segment.id, segment.start_offset);
            if self.position < segment.bytes {
                return Ok(Some((segment.clone(), url)));
            }
            let (bytes, end) = (segment.bytes, segment.end_offset);
            if self.position > bytes || self.due.is_some_and(|due| due != end) {
                let found = self.due.map_or_else(|| "nothing".to_owned(), |due| format!("offset `{due}`"));
                return Err(self.located(
                    &url,
                    Error::data(format!("a segment of `{bytes}` bytes, listed up to offset `{end}`, ends at {found}")),
                ));
            }
            self.segments.pop_front();
            (self.position, self.due) = (0, Some(end));
        }
        Ok(None)
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
