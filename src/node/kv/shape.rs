//! How a table's rows and keys are written, and what it does with upserts and deletes.

use std::sync::Arc;

use arrow_array::RecordBatch;

use crate::error::{Error, Result};
use crate::fluss::bucket::{KeyRules, KeyWriter};
use crate::fluss::code::Code;
use crate::fluss::record::{BatchSchema, Compression, KvBatch, KvFormat, decode_rows};
use crate::model::{Schema, SchemaId};
use crate::node::registry::Table;

/// What a delete does (`table.delete.behavior`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deletes {
    /// Deletes.
    Allow,
    /// Nothing.
    Ignore,
    /// Error 57, for the whole batch.
    Disable,
}

/// A primary-key table as its state needs it, at one moment: schemas only become more.
#[derive(Debug, Clone)]
pub struct Shape {
    table: Arc<Table>,
    keys: KeyRules,
    pub(super) format: KvFormat,
    /// The changelog has no rows from before updates (`table.changelog.image` = WAL).
    pub(super) wal: bool,
    pub(super) deletes: Deletes,
    pub(super) compression: Compression,
    /// The newest schema.
    pub(super) newest: BatchSchema,
}

impl Shape {
    /// Of `table`.
    ///
    /// # Errors
    /// `Unsupported` when an option names what is unknown, `Internal` for a log table.
    pub fn of(table: Arc<Table>) -> Result<Self> {
        let info = &table.info;
        let is = |key: &str, word: &str| info.properties.get(key).is_some_and(|value| value.eq_ignore_ascii_case(word));
        let deletes = match ["IGNORE", "DISABLE"].map(|word| is("table.delete.behavior", word)) {
            [true, _] => Deletes::Ignore,
            [_, true] => Deletes::Disable,
            _ => Deletes::Allow,
        };
        Ok(Self {
            keys: KeyRules::of(info)?,
            format: KvFormat::of(info)?,
            wal: is("table.changelog.image", "WAL"),
            deletes,
            compression: Compression::of(info)?,
            newest: BatchSchema::new(Arc::clone(&info.schema))?,
            table,
        })
    }

    /// The schema `id`.
    ///
    /// # Errors
    /// 9 when there is none.
    pub(super) fn schema(&self, id: SchemaId) -> Result<BatchSchema> {
        if id == self.newest.schema.id {
            return Ok(self.newest.clone());
        }
        let schema = self.table.schemas.get(&id);
        let schema = schema
            .ok_or_else(|| Code::SCHEMA_NOT_EXIST.answer(format!("table `{}` has no schema `{id}`", self.table.info.path)))?;
        BatchSchema::new(Arc::clone(schema))
    }

    /// Writes the keys of `rows`, which have the columns of `schema`.
    pub(super) fn keys<'a>(&self, schema: &Schema, rows: &'a RecordBatch) -> Result<KeyWriter<'a>> {
        let column = |name: &String| {
            let at = schema.index_of(name);
            let found = at.and_then(|at| Some((&schema.fields.get(at)?.data_type.kind, rows.columns().get(at)?)));
            found.ok_or_else(|| Error::internal(format!("rows of `{}` without key column `{name}`", self.table.info.path)))
        };
        KeyWriter::new(self.keys.encoding, &self.keys.columns.iter().map(column).collect::<Result<Vec<_>>>()?)
    }

    /// The rows of a batch's upserts, in order, checked: each as its schema says, under its own key. A state is made from the log
    /// again after a crash, and there is no key but what the row says.
    ///
    /// # Errors
    /// 9 for an unknown schema; 15 when a row or its key is not as the table says: the client would ask for ever for what is
    /// retriable.
    pub(super) fn upserts(&self, batch: &KvBatch) -> Result<RecordBatch> {
        let path = &self.table.info.path;
        let schema = self.schema(batch.schema_id)?;
        let rows = batch.records().filter_map(|record| record.row).collect::<Vec<_>>();
        let wrong = |text: &str| Code::INVALID_TABLE.answer(format!("table `{path}`: {text}"));
        let rows = decode_rows(self.format, &schema, rows.iter().copied())
            .map_err(|error| wrong("a row is not what its schema says").with_source(error))?;
        let mut keys = self.keys(&schema.schema, &rows)?;
        for (row, record) in batch.records().filter(|record| record.row.is_some()).enumerate() {
            let key = keys.key(row).map_err(|error| wrong("a row without key").with_source(error))?;
            if key != record.key {
                return Err(wrong("the key of a row is not what its columns say").with_hint(
                    "the client encodes keys in another way than the table's format version and lake format ask for, or a value has more \
                     digits than its column's type",
                ));
            }
        }
        drop(keys);
        Ok(rows)
    }
}
