//! The changelog batch of one KV batch.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow_select::interleave::interleave_record_batch;
use bytes::Bytes;

use super::shape::Shape;
use crate::error::{Error, Result};
use crate::fluss::code::Code;
use crate::fluss::record::{
    BATCH_BYTES_MAX, BatchSchema, EncodeOptions, KvBatch, RawBatch, Value, batches, decode_rows, encode_arrow_batch,
};
use crate::model::{ChangeKind, SchemaId};

/// Where a row of the changelog comes from.
#[derive(Debug, Clone, Copy)]
enum From {
    /// The upsert with this number.
    Upsert(usize),
    /// An old row: its schema, and its number among those of that schema.
    Old(SchemaId, usize),
}

/// What a KV batch changes, in order (S6.3).
#[derive(Debug, Default)]
pub(super) struct Changes {
    kinds: Vec<ChangeKind>,
    rows: Vec<From>,
    /// By schema: rows that were in the state.
    old: BTreeMap<SchemaId, Vec<Bytes>>,
}

impl Changes {
    /// A row of the batch.
    pub(super) fn upsert(&mut self, kind: ChangeKind, number: usize) {
        self.kinds.push(kind);
        self.rows.push(From::Upsert(number));
    }

    /// A row that was in the state, as it was stored.
    pub(super) fn old(&mut self, kind: ChangeKind, stored: &[u8]) -> Result<()> {
        let value = Value::parse(stored)?;
        let rows = self.old.entry(value.schema_id).or_default();
        self.kinds.push(kind);
        self.rows.push(From::Old(value.schema_id, rows.len()));
        rows.push(Bytes::copy_from_slice(value.row));
        Ok(())
    }

    /// The changelog batch: the newest schema, rows widened to it, writer and sequence of `batch`, whose upserts are `upserts`. Without
    /// changes an empty one, which carries the sequence (S6.3).
    pub(super) fn encode(self, shape: &Shape, batch: &KvBatch, upserts: &RecordBatch) -> Result<RawBatch> {
        let newest = &shape.newest;
        let rows = if self.rows.is_empty() {
            RecordBatch::new_empty(Arc::clone(&newest.arrow))
        } else {
            self.rows(shape, batch, upserts)?
        };
        let options = EncodeOptions {
            magic: 0,
            schema_id: newest.schema.id,
            compression: shape.compression,
            writer_id: batch.writer_id,
            sequence: batch.sequence,
        };
        let bytes = encode_arrow_batch(options, &rows, Some(&self.kinds))?;
        if bytes.len() > BATCH_BYTES_MAX {
            let text = format!("`{}` bytes of changes in one batch, at most `{BATCH_BYTES_MAX}` are taken", bytes.len());
            return Err(Code::RECORD_TOO_LARGE.answer(text));
        }
        batches(bytes).next().transpose()?.ok_or_else(|| Error::internal("a changelog batch that is none"))
    }

    fn rows(&self, shape: &Shape, batch: &KvBatch, upserts: &RecordBatch) -> Result<RecordBatch> {
        let mut sources = vec![widened(upserts, &shape.schema(batch.schema_id)?, &shape.newest)?];
        let mut places = BTreeMap::new();
        for (id, rows) in &self.old {
            let schema = shape.schema(*id)?;
            let rows = decode_rows(shape.format, &schema, rows.iter().map(AsRef::as_ref))?;
            places.insert(*id, sources.len());
            sources.push(widened(&rows, &schema, &shape.newest)?);
        }
        let indices = self.rows.iter().map(|row| match row {
            From::Upsert(number) => (0, *number),
            From::Old(id, number) => (places.get(id).copied().unwrap_or_default(), *number),
        });
        let indices: Vec<(usize, usize)> = indices.collect();
        if self.old.is_empty() && indices.iter().enumerate().all(|(at, (_, number))| at == *number) {
            return Ok(sources.swap_remove(0));
        }
        interleave_record_batch(&sources.iter().collect::<Vec<_>>(), &indices)
            .map_err(|source| Error::internal("put rows of a changelog in order").with_source(source))
    }
}

/// `rows` of `schema` with the columns of `newest`: those that came later are NULL.
fn widened(rows: &RecordBatch, schema: &BatchSchema, newest: &BatchSchema) -> Result<RecordBatch> {
    if schema.schema.id == newest.schema.id {
        return Ok(rows.clone());
    }
    let column = |(field, arrow): (&crate::model::Field, &arrow_schema::FieldRef)| -> ArrayRef {
        let at = schema.schema.fields.iter().position(|old| old.id == field.id);
        let found = at.and_then(|at| rows.columns().get(at)).cloned();
        found.unwrap_or_else(|| new_null_array(arrow.data_type(), rows.num_rows()))
    };
    let columns = newest.schema.fields.iter().zip(newest.arrow.fields()).map(column).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(&newest.arrow), columns, &options)
        .map_err(|source| Error::data("old rows don't fit the newest schema").with_source(source))
}
