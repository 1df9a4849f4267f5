//! What primary-key tables put and hold: KV record batches (F5.8, S6.2) and value record batches (F5.7), both directions.
//!
//! Keys are opaque here ([`bucket`](crate::fluss::bucket) makes them). Rows are in the table's KV format; [`decode_rows`] turns them into
//! Arrow. Callers: `client` (puts), `node` (puts, values), `source` (values).

use std::collections::BTreeSet;

use arrow_array::RecordBatch;
use bytes::Bytes;

use super::decode::{BatchSchema, LogFormat};
use super::header::{BATCH_BYTES_MAX, i32_at};
use super::rows;
use crate::error::{Error, Result};
use crate::model::{SchemaId, TableInfo};

/// Length, magic, checksum, schema id, attributes, writer id, sequence, record count.
const KV_HEADER_BYTES: usize = 28;
/// Where the checksum of a KV batch begins: at the schema id.
const KV_CHECKED_FROM: usize = 9;
/// Length, magic, record count.
const VALUE_HEADER_BYTES: usize = 9;
/// Bytes of the schema id before each value.
const SCHEMA_ID_BYTES: usize = 2;

/// How the rows of a primary-key table's state are laid out (`table.kv.format`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum KvFormat {
    /// CompactedRow; what almost every table has.
    #[default]
    Compacted,
    /// IndexedRow.
    Indexed,
}

impl KvFormat {
    /// The format of a table; COMPACTED when it names none.
    ///
    /// # Errors
    /// `Unsupported` when it names a format that is unknown.
    pub fn of(table: &TableInfo) -> Result<Self> {
        match table.properties.get("table.kv.format").map(|format| format.to_ascii_uppercase()).as_deref() {
            None | Some("COMPACTED") => Ok(Self::Compacted),
            Some("INDEXED") => Ok(Self::Indexed),
            Some(other) => Err(Error::unsupported(format!("KV format `{other}` of `{}`", table.path))),
        }
    }

    const fn as_log_format(self) -> LogFormat {
        match self {
            Self::Compacted => LogFormat::Compacted,
            Self::Indexed => LogFormat::Indexed,
        }
    }
}

/// Decodes rows (without schema id before them) that were written with `schema`, in their order, to the Arrow types of F5.3.
///
/// # Errors
/// `Data` when a row is not what the schema promises.
///
/// Source: F5.8.
pub fn decode_rows<'a>(
    format: KvFormat,
    schema: &BatchSchema,
    rows: impl IntoIterator<Item = &'a [u8], IntoIter: Clone>,
) -> Result<RecordBatch> {
    rows::decode_plain(rows.into_iter(), format.as_log_format(), &schema.schema, &schema.arrow)
}

/// One record of a KV batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvRecord<'a> {
    /// The encoded key.
    pub key: &'a [u8],
    /// The whole row; `None` = delete.
    pub row: Option<&'a [u8]>,
}

/// A KV record batch as a client sends it for one bucket, checksum and lengths checked.
#[derive(Debug, Clone)]
pub struct KvBatch {
    /// Schema of the rows.
    pub schema_id: SchemaId,
    /// Idempotent writer, or [`super::NO_WRITER`].
    pub writer_id: i64,
    /// Its sequence number, or [`super::NO_SEQUENCE`].
    pub sequence: i32,
    /// Records.
    pub count: usize,
    bytes: Bytes,
}

impl KvBatch {
    /// Reads the one batch in `bytes`.
    ///
    /// # Errors
    /// `Data` when the bytes are not exactly one batch of magic 0 with a right checksum, and records that fill it.
    ///
    /// Source: S6.2, F5.8.
    pub fn parse(bytes: Bytes) -> Result<Self> {
        let broken = |what: String| Error::data(format!("a KV record batch of `{}` bytes {what}", bytes.len()));
        let Some((header, _)) = bytes.split_first_chunk::<KV_HEADER_BYTES>() else {
            return Err(broken("ends inside its header".to_owned()));
        };
        let length = i32_at(header, 0)?;
        if usize::try_from(length).ok().and_then(|length| length.checked_add(4)) != Some(bytes.len()) {
            return Err(broken(format!("says length `{length}`")));
        }
        let [_, _, _, _, magic, c0, c1, c2, c3, s0, s1, _, w0, w1, w2, w3, w4, w5, w6, w7, ..] = *header;
        if magic != 0 {
            return Err(broken(format!("has magic `{magic}`, 0 is known")));
        }
        let (says, found) =
            (u32::from_le_bytes([c0, c1, c2, c3]), crc32c::crc32c(bytes.get(KV_CHECKED_FROM..).unwrap_or_default()));
        if says != found {
            return Err(broken(format!("has checksum `{found:08x}` but says `{says:08x}`")));
        }
        let (sequence, records) = (i32_at(header, 20)?, i32_at(header, 24)?);
        let count = usize::try_from(records).ok();
        // A record is at least its length and that of its key.
        let fits = count.is_some_and(|count| count <= (bytes.len() - KV_HEADER_BYTES) / 5);
        let Some(count) = count.filter(|_| fits) else { return Err(broken(format!("says record count `{records}`"))) };
        let batch = Self {
            schema_id: SchemaId(i16::from_le_bytes([s0, s1]).into()),
            writer_id: i64::from_le_bytes([w0, w1, w2, w3, w4, w5, w6, w7]),
            sequence,
            count,
            bytes: bytes.clone(),
        };
        let mut walk = batch.walk();
        if walk.by_ref().take(count).filter(Result::is_ok).count() < count || !walk.rest.is_empty() {
            return Err(broken(format!("does not end with its `{count}` records")));
        }
        Ok(batch)
    }

    /// Its records, in order.
    pub fn records(&self) -> impl Iterator<Item = KvRecord<'_>> {
        // All of them were read once when the batch was parsed.
        self.walk().filter_map(Result::ok)
    }

    fn walk(&self) -> KvRecords<'_> {
        KvRecords { rest: self.bytes.get(KV_HEADER_BYTES..).unwrap_or_default() }
    }
}

struct KvRecords<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for KvRecords<'a> {
    type Item = Result<KvRecord<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let record = take_record(&mut self.rest).and_then(|mut record| {
            let key = take_leb(&mut record)?;
            let (key, row) = record.split_at_checked(key).ok_or_else(|| Error::data("a key ends outside of its record"))?;
            Ok(KvRecord { key, row: Some(row).filter(|row| !row.is_empty()) })
        });
        if record.is_err() {
            self.rest = &[];
        }
        Some(record)
    }
}

/// Cuts off a record: its length, which excludes itself, and so many bytes.
fn take_record<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8]> {
    let cut = || Error::data("a record ends outside of its batch");
    let (length, after) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
    let length = usize::try_from(i32::from_le_bytes(*length)).map_err(|source| cut().with_source(source))?;
    let (record, after) = after.split_at_checked(length).ok_or_else(cut)?;
    *rest = after;
    Ok(record)
}

/// Cuts off an unsigned LEB128 of 32 bits.
fn take_leb(rest: &mut &[u8]) -> Result<usize> {
    let mut value = 0_u64;
    for shift in [0, 7, 14, 21, 28] {
        let (byte, after) = rest.split_first().ok_or_else(|| Error::data("a record ends inside the length of its key"))?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(usize::try_from(value).unwrap_or(usize::MAX));
        }
    }
    Err(Error::data("the length of a key is no number of 32 bits"))
}

/// Collects the records of a KV batch.
#[derive(Debug, Clone)]
pub struct KvBatchBuilder {
    schema_id: i16,
    count: i32,
    bytes: Vec<u8>,
}

impl KvBatchBuilder {
    /// A batch of rows of `schema_id`.
    ///
    /// # Errors
    /// `Invalid` when the id does not fit.
    pub fn new(schema_id: SchemaId) -> Result<Self> {
        Ok(Self { schema_id: narrow(schema_id)?, count: 0, bytes: vec![0; KV_HEADER_BYTES] })
    }

    /// Adds an upsert of `row`, or a delete.
    ///
    /// # Errors
    /// `Invalid` when the row has no bytes, or the batch gets larger than servers take; it is as before then.
    pub fn push(&mut self, key: &[u8], row: Option<&[u8]>) -> Result<()> {
        if row.is_some_and(<[u8]>::is_empty) {
            return Err(Error::invalid("a row without bytes would be a delete"));
        }
        let row = row.unwrap_or_default();
        let mut head = Vec::with_capacity(5);
        let mut length = key.len();
        while length >= 0x80 {
            head.push(u8::try_from(length & 0x7f).unwrap_or_default() | 0x80);
            length >>= 7;
        }
        head.push(u8::try_from(length).unwrap_or_default());
        push_record(&mut self.bytes, &[&head, key, row])?;
        self.count += 1;
        Ok(())
    }

    /// Records so far.
    #[must_use]
    pub fn count(&self) -> usize {
        usize::try_from(self.count).unwrap_or_default()
    }

    /// Bytes so far, header included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The batch, as number `sequence` of `writer_id` ([`super::NO_SEQUENCE`] and [`super::NO_WRITER`]: without idempotence).
    #[must_use]
    pub fn finish(mut self, writer_id: i64, sequence: i32) -> Bytes {
        let length = i32::try_from(self.bytes.len() - 4).unwrap_or(i32::MAX);
        let mut header = length.to_le_bytes().to_vec();
        header.extend([0; 5]);
        header.extend(self.schema_id.to_le_bytes());
        header.push(0);
        header.extend(writer_id.to_le_bytes());
        header.extend(sequence.to_le_bytes());
        header.extend(self.count.to_le_bytes());
        put(&mut self.bytes, 0, &header);
        let crc = crc32c::crc32c(self.bytes.get(KV_CHECKED_FROM..).unwrap_or_default());
        put(&mut self.bytes, KV_CHECKED_FROM - 4, &crc.to_le_bytes());
        self.bytes.into()
    }
}

/// A stored value: the schema that its row was written with, and the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value<'a> {
    /// The schema.
    pub schema_id: SchemaId,
    /// The row, in the table's KV format.
    pub row: &'a [u8],
}

impl<'a> Value<'a> {
    /// Takes a plain value apart, as look-ups answer it.
    ///
    /// # Errors
    /// `Data` when it has no schema id.
    ///
    /// Source: S6.1.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let (id, row) = bytes
            .split_first_chunk::<SCHEMA_ID_BYTES>()
            .ok_or_else(|| Error::data(format!("a value of `{}` bytes ends inside its schema id", bytes.len())))?;
        Ok(Self { schema_id: SchemaId(i16::from_le_bytes(*id).into()), row })
    }

    /// The plain value: schema id and row.
    ///
    /// # Errors
    /// `Invalid` when the schema id does not fit.
    pub fn to_bytes(self) -> Result<Vec<u8>> {
        Ok([&narrow(self.schema_id)?.to_le_bytes()[..], self.row].concat())
    }
}

/// The values of a value record batch, in order.
#[derive(Debug, Clone, Copy)]
pub struct Values<'a> {
    count: usize,
    records: &'a [u8],
}

impl<'a> Values<'a> {
    /// Reads the one batch in `bytes`; no bytes = no values.
    ///
    /// # Errors
    /// `Data` when the bytes are not exactly one batch of magic 0 whose records fill it.
    ///
    /// Source: F5.7.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let broken = |what: String| Error::data(format!("a value record batch of `{}` bytes {what}", bytes.len()));
        let Some((header, records)) = bytes.split_first_chunk::<VALUE_HEADER_BYTES>() else {
            return if bytes.is_empty() {
                Ok(Self { count: 0, records: &[] })
            } else {
                Err(broken("ends inside its header".to_owned()))
            };
        };
        let (length, count) = (i32_at(header, 0)?, i32_at(header, 5)?);
        if usize::try_from(length).ok().and_then(|length| length.checked_add(4)) != Some(bytes.len()) {
            return Err(broken(format!("says length `{length}`")));
        }
        if header.get(4) != Some(&0) {
            return Err(broken(format!("has magic `{:?}`, 0 is known", header.get(4))));
        }
        let mut rest = records;
        let mut found = 0_usize;
        while !rest.is_empty() {
            Value::parse(take_record(&mut rest)?)?;
            found += 1;
        }
        if usize::try_from(count) != Ok(found) {
            return Err(broken(format!("says record count `{count}` and has `{found}`")));
        }
        Ok(Self { count: found, records })
    }

    /// How many.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The schemas that they name.
    #[must_use]
    pub fn schema_ids(self) -> BTreeSet<SchemaId> {
        self.map(|value| value.schema_id).collect()
    }
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        if self.records.is_empty() {
            return None;
        }
        self.count = self.count.saturating_sub(1);
        // All of them were read once when the batch was parsed.
        take_record(&mut self.records).and_then(Value::parse).ok()
    }
}

/// Collects the values of a value record batch.
#[derive(Debug, Clone)]
pub struct ValueBatchBuilder {
    count: i32,
    bytes: Vec<u8>,
}

impl Default for ValueBatchBuilder {
    fn default() -> Self {
        Self { count: 0, bytes: vec![0; VALUE_HEADER_BYTES] }
    }
}

impl ValueBatchBuilder {
    /// Adds a plain value ([`Value::to_bytes`]), as it is stored.
    ///
    /// # Errors
    /// `Invalid` when it has no schema id, or the batch gets larger than servers send; it is as before then.
    pub fn push(&mut self, value: &[u8]) -> Result<()> {
        if value.len() < SCHEMA_ID_BYTES {
            return Err(Error::invalid("a value without schema id"));
        }
        push_record(&mut self.bytes, &[value])?;
        self.count += 1;
        Ok(())
    }

    /// Values so far.
    #[must_use]
    pub fn count(&self) -> usize {
        usize::try_from(self.count).unwrap_or_default()
    }

    /// Bytes so far, header included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The batch.
    #[must_use]
    pub fn finish(mut self) -> Bytes {
        let length = i32::try_from(self.bytes.len() - 4).unwrap_or(i32::MAX);
        put(&mut self.bytes, 0, &length.to_le_bytes());
        put(&mut self.bytes, 5, &self.count.to_le_bytes());
        self.bytes.into()
    }
}

/// Appends a record of these parts, length before it.
fn push_record(bytes: &mut Vec<u8>, parts: &[&[u8]]) -> Result<()> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let fits = bytes.len().saturating_add(length).saturating_add(4) <= BATCH_BYTES_MAX;
    let Some(prefix) = i32::try_from(length).ok().filter(|_| fits) else {
        let before = bytes.len();
        return Err(Error::invalid(format!(
            "a record of `{length}` bytes after `{before}` in a batch: servers take `{BATCH_BYTES_MAX}`"
        )));
    };
    bytes.extend(prefix.to_le_bytes());
    for part in parts {
        bytes.extend_from_slice(part);
    }
    Ok(())
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

fn narrow(schema_id: SchemaId) -> Result<i16> {
    i16::try_from(schema_id.0).map_err(|source| Error::invalid(format!("schema id `{schema_id}`")).with_source(source))
}
