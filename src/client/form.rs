//! How batches look: Arrow for log tables, KV records for tables with a primary key.
//!
//! Owns what a table has to be like so that rows can be written, and the bytes of a batch. Called by the writer alone.

use arrow_array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow_schema::SchemaRef;
use arrow_select::take::take_record_batch;
use bytes::Bytes;

use super::rows::{RowName, columns};
use crate::error::{Error, Result};
use crate::fluss::bucket::{KeyRules, KeyWriter};
use crate::fluss::record::{
    Compression, EncodeOptions, KvBatchBuilder, KvFormat, LogFormat, RowEncoder, arrow_schema, encode_arrow_batch,
};
use crate::model::{Schema, TableInfo};

/// What the batches of a table hold.
#[derive(Debug, Clone)]
pub(super) enum Form {
    /// Rows that are appended.
    Log(Compression),
    /// Rows that are put under their key, and keys that are deleted.
    Keyed(KeyRules, KvFormat),
}

impl Form {
    /// The form of a table's batches.
    ///
    /// # Errors
    /// `Unsupported` names what of the table can't be written to.
    pub(super) fn of(table: &TableInfo) -> Result<Self> {
        if !table.has_primary_key() {
            if LogFormat::of(table)? != LogFormat::Arrow {
                return Err(Error::unsupported(format!("writing to `{}`, whose log format is not ARROW", table.path)));
            }
            return Ok(Self::Log(Compression::of(table)?));
        }
        if let Some(engine) = table.property("table.merge-engine") {
            let text = format!("writing to `{}`, whose merge engine is `{engine}`", table.path);
            return Err(Error::unsupported(text).with_hint("write to it with the Java client or Flink"));
        }
        Ok(Self::Keyed(KeyRules::of(table)?, KvFormat::of(table)?))
    }

    /// Columns by which rows go to buckets; none = anywhere.
    pub(super) fn bucket_columns<'a>(&'a self, table: &'a TableInfo) -> &'a [String] {
        match self {
            Self::Log(_) => &table.bucket_keys,
            Self::Keyed(rules, _) => &rules.bucket_columns,
        }
    }

    /// What the rows must have (F5.3). With a primary key the other columns may be NULL, as deletes need none of them.
    pub(super) fn schema(&self, table: &TableInfo) -> Result<SchemaRef> {
        match self {
            Self::Log(_) => arrow_schema(&table.schema),
            Self::Keyed(..) => arrow_schema(&for_deletes(&table.schema)),
        }
    }

    /// Refuses rows that the table does not take; `deletes` says which are deletes, empty = none.
    ///
    /// # Errors
    /// `Invalid` or `Unsupported`, with the row named.
    pub(super) fn accept(&self, table: &TableInfo, rows: &RecordBatch, deletes: &[bool], at: RowName<'_>) -> Result<()> {
        let is_delete = |row: usize| deletes.get(row).copied().unwrap_or_default();
        let named = |row: usize, error: Error| error.context(at(u32::try_from(row).unwrap_or(u32::MAX)));
        if !deletes.is_empty() && deletes.len() != rows.num_rows() {
            return Err(Error::internal(format!("`{}` rows, of which `{}` are told apart", rows.num_rows(), deletes.len())));
        }
        if let Some(row) = deletes.iter().position(|delete| *delete) {
            let behavior = table.property("table.delete.behavior").filter(|behavior| !behavior.eq_ignore_ascii_case("allow"));
            let why = match (self, behavior) {
                (Self::Log(_), _) => Some("a log table, of which no row can be deleted".to_owned()),
                (_, Some(behavior)) => Some(format!("told by `table.delete.behavior` to {behavior} deletes")),
                _ => None,
            };
            if let Some(why) = why {
                return Err(named(row, Error::invalid(format!("a delete, but table `{}` is {why}", table.path))));
            }
        }
        for (field, column) in table.schema.fields.iter().zip(rows.columns()).filter(|(field, _)| !field.data_type.nullable) {
            let missing = if column.null_count() == 0 {
                None
            } else {
                (0..rows.num_rows()).find(|row| column.is_null(*row) && !is_delete(*row))
            };
            if let Some(row) = missing {
                return Err(named(row, Error::invalid(format!("NULL in column `{}`, which is NOT NULL", field.name))));
            }
        }
        Ok(())
    }

    /// One batch: the rows with these numbers.
    ///
    /// # Errors
    /// `Invalid` when a value has no place in the table's row format.
    pub(super) fn encode(
        &self,
        table: &TableInfo,
        rows: &RecordBatch,
        deletes: &[bool],
        numbers: &UInt32Array,
        (writer_id, sequence): (i64, i32),
    ) -> Result<Bytes> {
        let (rules, format) = match self {
            Self::Log(compression) => {
                let options =
                    EncodeOptions { compression: *compression, writer_id, sequence, ..EncodeOptions::new(table.schema.id) };
                let rows = take_record_batch(rows, numbers)
                    .map_err(|source| Error::internal("select the rows of a bucket").with_source(source))?;
                return encode_arrow_batch(options, &rows, None);
            }
            Self::Keyed(rules, format) => (rules, *format),
        };
        let key_columns = columns(table, &rules.columns)?;
        let key_columns: Vec<(_, &ArrayRef)> =
            key_columns.iter().map(|(at, field)| (&field.data_type.kind, rows.column(*at))).collect();
        let mut keys = KeyWriter::new(rules.encoding, &key_columns)?;
        let encoder = RowEncoder::new(format, &table.schema, rows)?;
        let mut batch = KvBatchBuilder::new(table.schema.id)?;
        let mut bytes = Vec::new();
        for row in numbers.values().iter().map(|number| *number as usize) {
            bytes.clear();
            let is_delete = deletes.get(row).copied().unwrap_or_default();
            if !is_delete {
                encoder.encode(row, &mut bytes)?;
            }
            batch.push(keys.key(row)?, (!is_delete).then_some(&bytes[..]))?;
        }
        Ok(batch.finish(writer_id, sequence))
    }
}

/// The schema with only its primary key NOT NULL.
fn for_deletes(schema: &Schema) -> Schema {
    let mut schema = schema.clone();
    for field in schema.fields.iter_mut().filter(|field| !schema.primary_key.contains(&field.name)) {
        field.data_type.nullable = true;
    }
    schema
}
