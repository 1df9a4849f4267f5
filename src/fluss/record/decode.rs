//! A batch's rows → Arrow.

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::SchemaRef;
use bytes::Bytes;

use super::header::RawBatch;
use super::message::{Arrays, Codec, Message};
use super::{arrow_schema, rows};
use crate::error::{Error, Result};
use crate::model::{ChangeKind, LogBatch, Memory, Schema, TableBucket, TableInfo};

/// How the rows of a table's batches are laid out (`table.log.format`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum LogFormat {
    /// One Arrow message (F5.3); what almost every table has.
    #[default]
    Arrow,
    /// Row by row, IndexedRow (F5.4).
    Indexed,
    /// Row by row, CompactedRow (F5.4).
    Compacted,
}

impl LogFormat {
    /// The format of a table; ARROW when it names none.
    ///
    /// # Errors
    /// `Unsupported` when it names a format that is unknown.
    pub fn of(table: &TableInfo) -> Result<Self> {
        match table.properties.get("table.log.format").map(|format| format.to_ascii_uppercase()).as_deref() {
            None | Some("ARROW") => Ok(Self::Arrow),
            Some("INDEXED") => Ok(Self::Indexed),
            Some("COMPACTED") => Ok(Self::Compacted),
            Some(other) => Err(Error::unsupported(format!("log format `{other}` of `{}`", table.path))),
        }
    }
}

/// A schema with the Arrow schema its batches decode to, made once for many batches.
#[derive(Debug, Clone)]
pub struct BatchSchema {
    /// As Fluss has it.
    pub schema: Arc<Schema>,
    /// As [`arrow_schema()`] makes it.
    pub arrow: SchemaRef,
}

impl BatchSchema {
    /// Makes the Arrow schema.
    ///
    /// # Errors
    /// As [`arrow_schema()`].
    pub fn new(schema: Arc<Schema>) -> Result<Self> {
        let arrow = arrow_schema(&schema)?;
        Ok(Self { schema, arrow })
    }
}

pub(super) fn change_kind(byte: u8) -> Result<ChangeKind> {
    Ok(match byte {
        0 => ChangeKind::Append,
        1 => ChangeKind::Insert,
        2 => ChangeKind::UpdateBefore,
        3 => ChangeKind::UpdateAfter,
        4 => ChangeKind::Delete,
        _ => return Err(Error::data(format!("a record has change type `{byte}`"))),
    })
}

/// `None` when all are appends.
pub(super) fn changes_or_none(changes: Vec<ChangeKind>) -> Option<Vec<ChangeKind>> {
    if changes.iter().all(|change| *change == ChangeKind::Append) { None } else { Some(changes) }
}

type Rows = (RecordBatch, Option<Vec<ChangeKind>>, usize);

impl RawBatch {
    /// Decodes the rows; `None` for an empty batch. The checksum is not looked at: see [`RawBatch::verify_crc`].
    ///
    /// What is not compressed is not copied where it lies at a fit address: the rows then keep `bytes` alive (`memory.shared`), with all
    /// that it is a part of.
    ///
    /// # Errors
    /// `Data` when the bytes are not what header and schema promise, with bucket and offset named.
    pub fn decode(&self, format: LogFormat, schema: &BatchSchema, bucket: TableBucket) -> Result<Option<LogBatch>> {
        let header = &self.header;
        if header.is_empty() {
            return Ok(None);
        }
        let place = || format!("decode the record batch at offset `{}` of {bucket}", header.base_offset);
        if schema.schema.id != header.schema_id {
            return Err(Error::internal(format!("schema `{}` given for schema `{}`", schema.schema.id, header.schema_id)));
        }
        let (rows, changes, shared) = self.rows(format, &schema.arrow, schema).map_err(|error| error.context(place()))?;
        let own = rows.get_array_memory_size().saturating_sub(shared);
        Ok(Some(LogBatch {
            bucket,
            base_offset: header.base_offset,
            commit_timestamp_ms: header.commit_timestamp_ms,
            schema_id: header.schema_id,
            rows,
            changes,
            memory: Memory { own, shared: if shared > 0 { self.bytes.len() } else { 0 } },
        }))
    }

    /// Bytes that the rows take when decoded, about; known without decoding them.
    ///
    /// # Errors
    /// As [`RawBatch::decode`].
    pub fn decoded_bytes(&self, format: LogFormat) -> Result<usize> {
        match format {
            _ if self.header.is_empty() => Ok(0),
            LogFormat::Arrow => Message::parse(&self.arrow_message()?)?.decoded_bytes(),
            LogFormat::Indexed | LogFormat::Compacted => Ok(self.bytes.len().saturating_mul(2)),
        }
    }

    /// Whether decoded rows may share memory with the batch.
    ///
    /// # Errors
    /// As [`RawBatch::decode`].
    pub fn is_shared(&self, format: LogFormat) -> Result<bool> {
        Ok(format == LogFormat::Arrow && !self.header.is_empty() && Message::parse(&self.arrow_message()?)?.codec == Codec::None)
    }

    /// The batch in memory of its own.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self { header: self.header.clone(), bytes: Bytes::copy_from_slice(&self.bytes) }
    }

    fn record_count(&self) -> usize {
        usize::try_from(self.header.record_count).unwrap_or_default()
    }

    /// What follows the change types.
    pub(super) fn arrow_message(&self) -> Result<Bytes> {
        let payload = self.payload();
        let changes = if self.header.is_append_only() { 0 } else { self.record_count() };
        if changes > payload.len() {
            return Err(Error::data(format!("`{changes}` change types do not fit into `{}` bytes", payload.len())));
        }
        Ok(payload.slice(changes..))
    }

    /// Rows, what they do, and how many bytes of their arrays are this batch's own.
    fn rows(&self, format: LogFormat, arrow: &SchemaRef, schema: &BatchSchema) -> Result<Rows> {
        let count = self.record_count();
        if format != LogFormat::Arrow {
            let (rows, changes) = rows::decode(&self.payload(), count, format, &schema.schema, arrow)?;
            return Ok((rows, changes, 0));
        }
        let message = Message::parse(&self.arrow_message()?)?;
        if message.rows != count {
            return Err(Error::data(format!("the Arrow message has `{}` rows, the header says `{count}`", message.rows)));
        }
        let mut arrays = Arrays::of(&message)?;
        let columns = arrow.fields().iter().map(|field| arrays.column(field, count)).collect::<Result<_>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        let rows = RecordBatch::try_new_with_options(Arc::clone(arrow), columns, &options)
            .map_err(|source| Error::data("the columns do not fit the schema").with_source(source))?;
        if self.header.is_append_only() {
            return Ok((rows, None, arrays.shared));
        }
        let payload = self.payload();
        let changes: Vec<ChangeKind> = payload.iter().take(count).map(|byte| change_kind(*byte)).collect::<Result<_>>()?;
        Ok((rows, changes_or_none(changes), arrays.shared))
    }
}
