//! Rows of logs in the lake's columns.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use arrow_array::RecordBatch;

use super::AuditContext;
use crate::error::{Error, Result};
use crate::mapping::LakeRows;
use crate::model::{ChangeKind, LogBatch, Schema, SchemaId, Split};

/// Converts decoded batches of the table.
pub(super) struct LogRows {
    context: AuditContext,
    rows: Arc<LakeRows>,
}

impl LogRows {
    /// # Errors
    /// As [`LakeRows::new`].
    pub(super) fn new(context: &AuditContext) -> Result<Self> {
        let rows = LakeRows::new(&context.table, context.lake.schema(), context.form)?;
        Ok(Self { context: context.clone(), rows: Arc::new(rows) })
    }

    /// All columns of the lake, and what each row does; `None` = all are appends.
    ///
    /// # Errors
    /// As [`LakeRows::convert`]; `Unavailable` when a schema can't be asked for.
    pub(super) async fn convert(
        &self,
        split: &Split,
        batches: Vec<LogBatch>,
    ) -> Result<Vec<(RecordBatch, Option<Vec<ChangeKind>>)>> {
        let context = &self.context;
        let mut schemas: BTreeMap<SchemaId, Arc<Schema>> = BTreeMap::new();
        for batch in &batches {
            if let Entry::Vacant(missing) = schemas.entry(batch.schema_id) {
                missing.insert(if batch.schema_id == context.table.schema_id() {
                    Arc::clone(&context.table.schema)
                } else {
                    context.scan.schema(&context.table.path, batch.schema_id).await?
                });
            }
        }
        let (rows, partition) = (Arc::clone(&self.rows), split.partition.clone());
        let convert = move || {
            let one = |batch: LogBatch| {
                let schema = schemas.get(&batch.schema_id).ok_or_else(|| Error::internal("a batch without schema"))?;
                Ok((rows.convert(&batch, schema, partition.as_deref())?, batch.changes))
            };
            batches.into_iter().map(one).collect::<Result<Vec<_>>>()
        };
        context.runtime.encoders.run(convert).await?
    }
}
