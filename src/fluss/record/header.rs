//! Batch headers, and the walk over a run of batches.

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::model::SchemaId;

/// Bytes before the field *magic* plus that field: what tells a batch's length and version.
const PREFIX_BYTES: usize = 13;
/// Smallest header (magic 0).
pub const HEADER_BYTES_MIN: usize = 48;
/// Largest batch that anyone sends: the server's frame limit (S4.2).
pub const BATCH_BYTES_MAX: usize = 100 << 20;
/// Writer id of a batch without idempotence.
pub const NO_WRITER: i64 = -1;
/// Batch sequence of a batch without idempotence.
pub const NO_SEQUENCE: i32 = -1;
/// Attribute bit: all rows are appends, no change types follow.
pub(super) const APPEND_ONLY: u8 = 1;

/// The header of a log record batch, any magic (F5.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset of the first record; assigned by the server.
    pub base_offset: i64,
    /// Bytes of the whole batch, header included.
    pub total_bytes: usize,
    /// Version of the layout: 0, 1, 2.
    pub magic: u8,
    /// Commit timestamp, epoch milliseconds; assigned by the server.
    pub commit_timestamp_ms: i64,
    /// Leader epoch; assigned by the server, magic 2 only.
    pub leader_epoch: Option<i32>,
    /// CRC-32C of everything from the schema id on.
    pub crc: u32,
    /// Schema that the rows were written with.
    pub schema_id: SchemaId,
    /// Attribute bits as they came.
    pub attributes: u8,
    /// Offset of the last record minus base offset; 0 in an empty batch.
    pub last_offset_delta: i32,
    /// Idempotent writer; −1 = none.
    pub writer_id: i64,
    /// Its sequence number; −1 = none.
    pub batch_sequence: i32,
    /// Rows; 0 = an empty batch, which still takes one offset.
    pub record_count: i32,
    /// Bytes of statistics between header and records (magic 1, 2).
    pub statistics_bytes: usize,
}

/// Offset of the field *schema id*, where the checksum starts; the fixed header's size.
pub(super) const fn layout(magic: u8) -> (usize, usize) {
    match magic {
        0 => (25, 48),
        1 => (25, 52),
        _ => (29, 56),
    }
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    bytes
        .get(at..)
        .and_then(<[u8]>::first_chunk::<N>)
        .copied()
        .ok_or_else(|| Error::data(format!("a record batch of `{}` bytes ends inside its header", bytes.len())))
}

pub(super) fn i32_at(bytes: &[u8], at: usize) -> Result<i32> {
    Ok(i32::from_le_bytes(bytes_at(bytes, at)?))
}

fn i64_at(bytes: &[u8], at: usize) -> Result<i64> {
    Ok(i64::from_le_bytes(bytes_at(bytes, at)?))
}

fn not_negative(value: i32, field: &str) -> Result<i32> {
    if value < 0 { Err(Error::data(format!("a record batch says {field} `{value}`"))) } else { Ok(value) }
}

/// Total bytes of the batch that starts here, as it says; `None` when not even its length is there.
///
/// # Errors
/// `Data` when no batch is that short.
pub fn batch_bytes(bytes: &[u8]) -> Result<Option<usize>> {
    if bytes.len() < PREFIX_BYTES {
        return Ok(None);
    }
    let length = i32_at(bytes, 8)?;
    let total = usize::try_from(length).ok().map(|length| length + 12).filter(|total| *total >= HEADER_BYTES_MIN);
    total.map(Some).ok_or_else(|| Error::data(format!("a record batch says length `{length}`")))
}

impl BatchHeader {
    /// Reads the header of a batch. `bytes` begins with the batch, of which at least the header must be there.
    ///
    /// # Errors
    /// `Data` when the bytes are too few, the magic is unknown, or lengths and counts contradict each other.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let total_bytes = batch_bytes(bytes)?
            .ok_or_else(|| Error::data(format!("a record batch of `{}` bytes ends inside its header", bytes.len())))?;
        let [magic] = bytes_at(bytes, 12)?;
        if magic > 2 {
            return Err(Error::data(format!("a record batch has magic `{magic}`, 0 to 2 are known")));
        }
        let (schema_at, header_bytes) = layout(magic);
        let schema_id = i16::from_le_bytes(bytes_at(bytes, schema_at)?);
        let [attributes] = bytes_at(bytes, schema_at + 2)?;
        let last_offset_delta = not_negative(i32_at(bytes, schema_at + 3)?, "last offset delta")?;
        let record_count = not_negative(i32_at(bytes, schema_at + 19)?, "record count")?;
        if record_count > 0 && last_offset_delta != record_count - 1 {
            return Err(Error::data(format!(
                "a record batch says record count `{record_count}` but last offset delta `{last_offset_delta}`"
            )));
        }
        let statistics = if magic == 0 { 0 } else { not_negative(i32_at(bytes, schema_at + 23)?, "statistics length")? };
        let statistics_bytes = usize::try_from(statistics).unwrap_or(usize::MAX);
        if header_bytes.saturating_add(statistics_bytes) > total_bytes {
            return Err(Error::data(format!("a record batch of `{total_bytes}` bytes says statistics length `{statistics}`")));
        }
        let header = Self {
            base_offset: i64_at(bytes, 0)?,
            total_bytes,
            magic,
            commit_timestamp_ms: i64_at(bytes, 13)?,
            leader_epoch: if magic == 2 { Some(i32_at(bytes, 21)?) } else { None },
            crc: u32::from_le_bytes(bytes_at(bytes, schema_at - 4)?),
            schema_id: SchemaId(i32::from(schema_id)),
            attributes,
            last_offset_delta,
            writer_id: i64_at(bytes, schema_at + 7)?,
            batch_sequence: i32_at(bytes, schema_at + 15)?,
            record_count,
            statistics_bytes,
        };
        if header.base_offset.checked_add(i64::from(last_offset_delta) + 1).is_none() {
            return Err(Error::data(format!("a record batch says base offset `{}`", header.base_offset)));
        }
        Ok(header)
    }

    /// Exclusive end offset: where the next batch begins.
    #[must_use]
    pub const fn next_offset(&self) -> i64 {
        self.base_offset + self.last_offset_delta as i64 + 1
    }

    /// Whether it holds no row; it still takes an offset.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.record_count == 0
    }

    /// Whether all rows are appends, so that no change types follow.
    #[must_use]
    pub const fn is_append_only(&self) -> bool {
        self.attributes & APPEND_ONLY != 0
    }

    /// Bytes of the fixed header.
    #[must_use]
    pub const fn header_bytes(&self) -> usize {
        layout(self.magic).1
    }
}

/// One whole batch: its header and all its bytes, header included.
#[derive(Debug, Clone)]
pub struct RawBatch {
    /// The header.
    pub header: BatchHeader,
    /// All bytes.
    pub bytes: Bytes,
}

impl RawBatch {
    /// Compares the checksum with the bytes.
    ///
    /// # Errors
    /// `Data` when they differ; the base offset is named.
    pub fn verify_crc(&self) -> Result<()> {
        let found = crc32c::crc32c(self.bytes.get(layout(self.header.magic).0..).unwrap_or_default());
        if found == self.header.crc {
            return Ok(());
        }
        Err(Error::data(format!(
            "the record batch at offset `{}` has checksum `{:08x}` but says `{:08x}`",
            self.header.base_offset, found, self.header.crc
        )))
    }

    /// What follows header and statistics: change types, records.
    #[must_use]
    pub fn payload(&self) -> Bytes {
        self.bytes.slice((self.header.header_bytes() + self.header.statistics_bytes).min(self.bytes.len())..)
    }
}

/// Walks the whole batches in `bytes`, first to last; a cut-off batch at the end is left out. Ends after the first error.
#[must_use]
pub const fn batches(bytes: Bytes) -> RawBatches {
    RawBatches { rest: bytes }
}

/// See [`batches`].
#[derive(Debug, Clone)]
pub struct RawBatches {
    rest: Bytes,
}

impl RawBatches {
    /// Bytes not yet walked over; after the last batch: the cut-off tail.
    #[must_use]
    pub const fn rest(&self) -> &Bytes {
        &self.rest
    }

    fn take(&mut self) -> Result<Option<RawBatch>> {
        let Some(total) = batch_bytes(&self.rest)?.filter(|total| *total <= self.rest.len()) else { return Ok(None) };
        let header = BatchHeader::parse(&self.rest)?;
        if header.header_bytes() > total {
            return Err(Error::data(format!("a record batch of magic `{}` has only `{total}` bytes", header.magic)));
        }
        Ok(Some(RawBatch { header, bytes: self.rest.split_to(total) }))
    }
}

impl Iterator for RawBatches {
    type Item = Result<RawBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.take();
        if next.is_err() {
            self.rest.clear();
        }
        next.transpose()
    }
}

/// Rewrites what the server assigns: base offset, commit timestamp, and in magic 2 the leader epoch (S4.2). The checksum stays valid.
///
/// # Errors
/// `Data` when `batch` does not begin with a whole header.
pub fn stamp(batch: &mut [u8], base_offset: i64, commit_timestamp_ms: i64, leader_epoch: i32) -> Result<()> {
    let magic = BatchHeader::parse(batch)?.magic;
    let mut put = |at: usize, value: &[u8]| {
        if let Some(place) = batch.get_mut(at..at + value.len()) {
            place.copy_from_slice(value);
        }
    };
    put(0, &base_offset.to_le_bytes());
    put(13, &commit_timestamp_ms.to_le_bytes());
    if magic == 2 {
        put(21, &leader_epoch.to_le_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn fixture(name: &str) -> Vec<u8> {
        std::fs::read(format!("{}/fixtures/vectors/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    }

    fn described() -> Vec<Value> {
        let all: Value = serde_json::from_slice(&fixture("fluss-records.json")).unwrap();
        let files = all["files"].as_array().unwrap().clone();
        files.into_iter().filter(|file| file["file"].as_str().unwrap().starts_with("log-") && !file["magic"].is_null()).collect()
    }

    #[test]
    fn headers_and_checksums_of_every_golden_batch_are_as_java_says() {
        assert!(described().len() >= 15);
        for file in described() {
            let name = file["file"].as_str().unwrap();
            let bytes = Bytes::from(fixture(name));
            let found: Vec<RawBatch> = batches(bytes.clone()).collect::<Result<_>>().unwrap();
            assert_eq!(found.len(), 1, "{name}");
            found[0].verify_crc().unwrap();
            let header = &found[0].header;
            assert_eq!(header.total_bytes, bytes.len(), "{name}");
            for (field, value) in [
                ("magic", i64::from(header.magic)),
                ("base_offset", header.base_offset),
                ("next_offset", header.next_offset()),
                ("commit_timestamp", header.commit_timestamp_ms),
                ("schema_id", i64::from(header.schema_id.0)),
                ("writer_id", header.writer_id),
                ("batch_sequence", i64::from(header.batch_sequence)),
                ("record_count", i64::from(header.record_count)),
                ("crc32c", i64::from(header.crc)),
            ] {
                assert_eq!(file[field].as_i64().unwrap(), value, "{name} {field}");
            }
            assert_eq!(file["leader_epoch"].as_i64(), header.leader_epoch.map(i64::from), "{name}");
            assert_eq!(file["append_only"].as_bool().unwrap(), header.is_append_only(), "{name}");
        }
    }

    #[test]
    fn a_cut_off_tail_is_left_out_at_every_length() {
        let whole = fixture("log-arrow-v0-empty.bin");
        let mut two = whole.clone();
        two.extend(fixture("log-arrow-v0-scalars-none.bin"));
        for end in 0..two.len() {
            let found: Vec<RawBatch> = batches(Bytes::copy_from_slice(&two[..end])).collect::<Result<_>>().unwrap();
            assert_eq!(found.len(), usize::from(end >= whole.len()), "{end}");
        }
    }

    #[test]
    fn stamping_keeps_the_checksum_valid() {
        for name in ["log-arrow-v0-scalars-zstd.bin", "log-arrow-v1-nostats.bin", "log-arrow-v2-changes.bin"] {
            let mut bytes = fixture(name);
            stamp(&mut bytes, 4711, 99, 5).unwrap();
            let batch = batches(bytes.into()).next().unwrap().unwrap();
            batch.verify_crc().unwrap();
            assert_eq!((batch.header.base_offset, batch.header.commit_timestamp_ms), (4711, 99));
            assert_eq!(batch.header.leader_epoch, (batch.header.magic == 2).then_some(5));
        }
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), length in 0_i32..200, magic in 0_u8..4) {
            let mut bytes = bytes;
            if let Some(place) = bytes.get_mut(8..12) { place.copy_from_slice(&length.to_le_bytes()); }
            if let Some(place) = bytes.get_mut(12) { *place = magic; }
            for batch in batches(bytes.into()).take(1000).flatten() {
                drop((batch.verify_crc(), batch.payload()));
            }
        }
    }
}
