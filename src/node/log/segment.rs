//! One segment file: whole batches one after another, named by the offset of the first.
//!
//! Beside a full segment lies its seal, which tells what a scan would find, and beside each but the first the producer state before it;
//! when one of them is missing or wrong, that only costs scans.

use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::Path;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::writers::{Appended, Writers};
use crate::error::{Error, Result};
use crate::fluss::record::{BATCH_BYTES_MAX, BatchHeader, HEADER_BYTES_MIN, RawBatch};

/// Bytes between two marks of the sparse index.
const MARK_EVERY_BYTES: u64 = 64 << 10;

/// Extension of the file that tells what a scan of a full segment would find.
const SEAL: &str = "seal";
/// Extension of the file with the producer state before a segment.
const WRITERS: &str = "writers";

/// A batch whose place is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    /// Its base offset.
    pub(super) offset: i64,
    /// Byte position in the segment.
    pub(super) position: u64,
    /// Its commit timestamp.
    pub(super) timestamp_ms: i64,
}

/// What is known of a segment without reading it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Segment {
    /// Offset of its first record.
    pub(super) start_offset: i64,
    /// Offset after its last record.
    pub(super) end_offset: i64,
    /// Bytes of whole batches.
    pub(super) bytes: u64,
    /// Rows; fewer than offsets where batches are empty.
    pub(super) rows: u64,
    /// Largest commit timestamp; −1 when empty.
    pub(super) max_timestamp_ms: i64,
    /// Sparse index, in order; the first batch is always marked.
    pub(super) marks: Vec<Mark>,
}

impl Segment {
    /// An empty one that starts at `offset`.
    pub(super) const fn empty(offset: i64) -> Self {
        Self { start_offset: offset, end_offset: offset, bytes: 0, rows: 0, max_timestamp_ms: -1, marks: Vec::new() }
    }

    /// File name of the segment that starts at `offset`.
    pub(super) fn file_name(offset: i64) -> String {
        format!("{offset:020}.log")
    }

    /// Accounts for a batch that was written at the end.
    pub(super) fn push(&mut self, header: &BatchHeader) {
        if self.marks.last().is_none_or(|mark| self.bytes - mark.position >= MARK_EVERY_BYTES) {
            self.marks.push(Mark { offset: header.base_offset, position: self.bytes, timestamp_ms: header.commit_timestamp_ms });
        }
        self.bytes += header.total_bytes as u64;
        self.rows += u64::try_from(header.record_count).unwrap_or_default();
        self.end_offset = header.next_offset();
        self.max_timestamp_ms = self.max_timestamp_ms.max(header.commit_timestamp_ms);
    }

    /// Whether it has rows, all of them older than `oldest_ms` and before `tiered_end`.
    pub(super) const fn is_old(&self, oldest_ms: i64, tiered_end: i64) -> bool {
        self.bytes > 0 && self.max_timestamp_ms < oldest_ms && self.end_offset <= tiered_end
    }

    /// Position of a batch at or before the one that holds `offset`.
    pub(super) fn position_before(&self, offset: i64) -> u64 {
        let after = self.marks.partition_point(|mark| mark.offset <= offset);
        after.checked_sub(1).and_then(|index| self.marks.get(index)).map_or(0, |mark| mark.position)
    }

    /// Position of a batch before the first one with a commit timestamp ≥ `timestamp_ms`, or of that one.
    pub(super) fn position_before_time(&self, timestamp_ms: i64) -> u64 {
        let after = self.marks.partition_point(|mark| mark.timestamp_ms < timestamp_ms);
        after.checked_sub(1).and_then(|index| self.marks.get(index)).map_or(0, |mark| mark.position)
    }

    /// Writes the seal of the full segment at `path`. Losing it costs a scan at the next start, so it is not synced.
    pub(super) fn write_seal(&self, path: &Path) {
        write_beside(path, SEAL, self);
    }

    /// What the seal of the segment at `path` tells, if it fits the file.
    pub(super) fn read_seal(path: &Path, start_offset: i64) -> Option<Self> {
        let segment: Self = read_beside(path, SEAL)?;
        (segment.start_offset == start_offset && fs::metadata(path).ok()?.len() == segment.bytes).then_some(segment)
    }

    /// Writes the producer state as it is before the first batch of the segment at `path`; as replaceable as a seal.
    pub(super) fn write_writers(path: &Path, writers: &Writers) {
        write_beside(path, WRITERS, writers);
    }

    /// The producer state before the first batch of the segment at `path`, if it was written.
    pub(super) fn read_writers(path: &Path) -> Option<Writers> {
        read_beside(path, WRITERS)
    }

    /// Deletes the segment at `path` and what lies beside it.
    pub(super) fn delete(path: &Path) -> std::io::Result<()> {
        for extension in [SEAL, WRITERS] {
            match fs::remove_file(path.with_extension(extension)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::remove_file(path)
    }

    /// Reads the segment at `path` from its start, checksums included, and feeds `writers`. Ends at the first batch that is cut off,
    /// damaged or out of line: what follows it was never acknowledged, if this is the newest segment.
    pub(super) fn scan(path: &Path, start_offset: i64, writers: &mut Writers) -> Result<Self> {
        let fault = |source| Error::unavailable(format!("read segment `{}`", path.display())).with_source(source);
        let file = File::open(path).map_err(fault)?;
        let length = file.metadata().map_err(fault)?.len();
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let mut segment = Self::empty(start_offset);
        while length - segment.bytes >= HEADER_BYTES_MIN as u64 {
            let mut bytes = vec![0_u8; HEADER_BYTES_MIN];
            reader.read_exact(&mut bytes).map_err(fault)?;
            let Some(total) = total_bytes(&bytes).filter(|total| *total as u64 <= length - segment.bytes) else { break };
            bytes.resize(total, 0);
            reader.read_exact(bytes.get_mut(HEADER_BYTES_MIN..).unwrap_or_default()).map_err(fault)?;
            let Ok(header) = BatchHeader::parse(&bytes) else { break };
            let batch = RawBatch { header, bytes: Bytes::from(bytes) };
            if batch.header.base_offset != segment.end_offset || batch.verify_crc().is_err() {
                break;
            }
            segment.push(&batch.header);
            writers.remember(batch.header.writer_id, appended(&batch.header));
        }
        Ok(segment)
    }
}

/// A checksum's digits, a line's end, JSON: a flipped bit must not be believed.
fn write_beside<T: Serialize>(path: &Path, extension: &str, content: &T) {
    let written = serde_json::to_string(content).map_err(std::io::Error::other);
    let written = written.map(|json| format!("{:08x}\n{json}", crc32c::crc32c(json.as_bytes())));
    if let Err(error) = written.and_then(|bytes| fs::write(path.with_extension(extension), bytes)) {
        tracing::warn!(segment = %path.display(), extension, %error, "file beside a segment not written, the next start reads the segment");
    }
}

fn read_beside<T: for<'de> Deserialize<'de>>(path: &Path, extension: &str) -> Option<T> {
    let text = fs::read_to_string(path.with_extension(extension)).ok()?;
    let (checksum, json) = text.split_once('\n')?;
    let is_whole = u32::from_str_radix(checksum, 16).ok()? == crc32c::crc32c(json.as_bytes());
    is_whole.then(|| serde_json::from_str(json).ok()).flatten()
}

/// Reads the segment at `path` with these files beside it, as a start of the node does.
#[cfg(any(test, fuzzing))]
pub(super) fn read_all(path: &Path, seal: &[u8], writers: &[u8]) -> Result<()> {
    let fault = |source| Error::unavailable("write").with_source(source);
    fs::write(path.with_extension(SEAL), seal).map_err(fault)?;
    fs::write(path.with_extension(WRITERS), writers).map_err(fault)?;
    drop(Segment::read_seal(path, 0));
    let mut writers = Segment::read_writers(path).unwrap_or_default();
    Segment::scan(path, 0, &mut writers).map(drop)
}

/// The producer state's view of a batch.
pub(super) const fn appended(header: &BatchHeader) -> Appended {
    Appended {
        sequence: header.batch_sequence,
        base_offset: header.base_offset,
        end_offset: header.next_offset(),
        timestamp_ms: header.commit_timestamp_ms,
    }
}

/// Bytes of the batch that begins with `prefix`, if its length field can be one.
fn total_bytes(prefix: &[u8]) -> Option<usize> {
    let length = i32::from_le_bytes(*prefix.get(8..)?.first_chunk::<4>()?);
    usize::try_from(length).ok().map(|length| length + 12).filter(|total| (HEADER_BYTES_MIN..=BATCH_BYTES_MAX).contains(total))
}
