//! Arrow → a batch, as a client writes it.

use std::cell::RefCell;

use arrow_array::RecordBatch;
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions, write_message};
use arrow_ipc::{CompressionType, MetadataVersion};
use bytes::Bytes;

use super::header::{APPEND_ONLY, layout};
use crate::error::{Error, Result};
use crate::model::{ChangeKind, SchemaId, TableInfo};

/// Compression of Arrow bodies (`table.log.arrow.compression.type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// None.
    None,
    /// LZ4 frames.
    Lz4,
    /// ZSTD at this level.
    Zstd(i32),
}

impl Default for Compression {
    /// What a table has that names none (S3.5).
    fn default() -> Self {
        Self::Zstd(3)
    }
}

impl Compression {
    /// The compression of a table's batches.
    ///
    /// # Errors
    /// `Unsupported` when it names one that is unknown.
    pub fn of(table: &TableInfo) -> Result<Self> {
        let name = table.property("table.log.arrow.compression.type").unwrap_or("ZSTD");
        let wrong = |what: &str| Error::unsupported(format!("`{what}` as compression of table `{}`", table.path));
        match name.to_ascii_uppercase().as_str() {
            "NONE" => Ok(Self::None),
            "LZ4_FRAME" => Ok(Self::Lz4),
            "ZSTD" => {
                let level = table.property("table.log.arrow.compression.zstd.level").unwrap_or("3");
                level.parse().map(Self::Zstd).map_err(|source| wrong(level).with_source(source))
            }
            other => Err(wrong(other)),
        }
    }
}

/// What a batch's header says beside its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Layout version; 0 is what clients send.
    pub magic: u8,
    /// Schema that the rows have.
    pub schema_id: SchemaId,
    /// Compression of the body.
    pub compression: Compression,
    /// Idempotent writer, or [`super::NO_WRITER`].
    pub writer_id: i64,
    /// Its sequence number, or [`super::NO_SEQUENCE`].
    pub sequence: i32,
}

impl EncodeOptions {
    /// Magic 0, default compression, no writer.
    #[must_use]
    pub fn new(schema_id: SchemaId) -> Self {
        Self { magic: 0, schema_id, compression: Compression::default(), writer_id: super::NO_WRITER, sequence: super::NO_SEQUENCE }
    }
}

thread_local! {
    /// Reused for its ZSTD context, which stays at the level it was made with: that level, and the context.
    static CONTEXT: RefCell<(i32, IpcWriteContext)> = RefCell::default();
}

/// Encodes rows (columns in the types of F5.3) as one batch with base offset and timestamp 0, which the server assigns.
///
/// `changes` names a change per row; `None` = all are appends. Without rows the batch is a bare header that still takes an offset.
///
/// # Errors
/// `Invalid` when `changes` has another length than `rows`, the magic or schema id is out of range, or the batch gets too large.
///
/// Source: F5.2, F5.3.
pub fn encode_arrow_batch(options: EncodeOptions, rows: &RecordBatch, changes: Option<&[ChangeKind]>) -> Result<Bytes> {
    let count = rows.num_rows();
    if options.magic > 2 || changes.is_some_and(|changes| changes.len() != count) {
        return Err(Error::invalid(format!("a batch of magic `{}`, `{count}` rows and other changes", options.magic)));
    }
    let number = |what: &str, value: usize| {
        i32::try_from(value).map_err(|source| Error::invalid(format!("{what} `{value}` of a batch")).with_source(source))
    };
    let schema_id = i16::try_from(options.schema_id.0)
        .map_err(|source| Error::invalid(format!("schema id `{}`", options.schema_id)).with_source(source))?;
    let (schema_at, header_bytes) = layout(options.magic);
    let records = number("record count", count)?;
    let mut bytes = vec![0; header_bytes];
    if count > 0 {
        bytes.extend(changes.unwrap_or_default().iter().map(|change| change_byte(*change)));
        write_rows(rows, options.compression, &mut bytes)?;
    }
    let length = number("length", bytes.len())? - 12;
    let mut put = |at: usize, value: &[u8]| {
        if let Some(place) = bytes.get_mut(at..at + value.len()) {
            place.copy_from_slice(value);
        }
    };
    put(8, &length.to_le_bytes());
    put(12, &[options.magic]);
    put(schema_at, &schema_id.to_le_bytes());
    put(schema_at + 2, &[if changes.is_none() { APPEND_ONLY } else { 0 }]);
    put(schema_at + 3, &(records - 1).max(0).to_le_bytes());
    put(schema_at + 7, &options.writer_id.to_le_bytes());
    put(schema_at + 15, &options.sequence.to_le_bytes());
    put(schema_at + 19, &records.to_le_bytes());
    let crc = crc32c::crc32c(bytes.get(schema_at..).unwrap_or_default());
    if let Some(place) = bytes.get_mut(schema_at - 4..schema_at) {
        place.copy_from_slice(&crc.to_le_bytes());
    }
    Ok(bytes.into())
}

const fn change_byte(change: ChangeKind) -> u8 {
    match change {
        ChangeKind::Append => 0,
        ChangeKind::Insert => 1,
        ChangeKind::UpdateBefore => 2,
        ChangeKind::UpdateAfter => 3,
        ChangeKind::Delete => 4,
    }
}

fn write_rows(rows: &RecordBatch, compression: Compression, bytes: &mut Vec<u8>) -> Result<()> {
    let broken = |source: arrow_schema::ArrowError| Error::internal("encode rows as Arrow").with_source(source);
    let options = IpcWriteOptions::try_new(8, false, MetadataVersion::V5).map_err(broken)?;
    let (codec, level) = match compression {
        Compression::None => (None, None),
        Compression::Lz4 => (Some(CompressionType::LZ4_FRAME), None),
        Compression::Zstd(level) => (Some(CompressionType::ZSTD), Some(level)),
    };
    let options = options.try_with_compression(codec).and_then(|options| options.try_with_compression_level(level));
    let options = options.map_err(|source| Error::invalid("compression of a batch").with_source(source))?;
    let mut tracker = DictionaryTracker::new(false);
    let (_, message) = CONTEXT
        .with_borrow_mut(|(made_for, context)| {
            if level.is_some_and(|level| level != *made_for) {
                (*made_for, *context) = (level.unwrap_or_default(), IpcWriteContext::default());
            }
            IpcDataGenerator::default().encode(rows, &mut tracker, &options, context)
        })
        .map_err(broken)?;
    write_message(bytes, message, &options).map_err(broken)?;
    Ok(())
}
