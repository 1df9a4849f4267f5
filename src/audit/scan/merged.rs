//! A bucket of a primary-key table: merged files of the lake, overlaid by the change log behind them. Rows by key.

use std::collections::btree_map;
use std::iter::Peekable;

use arrow_array::RecordBatch;
use arrow_select::interleave::interleave_record_batch;

use super::overlay::{Overlay, key_columns};
use crate::audit::AuditContext;
use crate::audit::rows::LogRows;
use crate::audit::tail::Tail;
use crate::error::{Error, Result};
use crate::lake::MergeReader;
use crate::model::Split;
use crate::paimon::{KeyOrder, ManifestEntry};

/// Rows of a batch that come from the change log alone, behind the last of the lake.
const BATCH_ROWS: usize = 8192;

type Keys = Peekable<btree_map::IntoIter<Box<[u8]>, Option<(usize, usize)>>>;

/// One bucket.
pub(in crate::audit) struct Merged {
    lake: Option<MergeReader>,
    keys: Keys,
    /// Batches of the change log, in the columns that are read.
    batches: Vec<RecordBatch>,
    order: KeyOrder,
}

impl Merged {
    pub(in crate::audit) async fn open(
        context: &AuditContext,
        files: Vec<ManifestEntry>,
        log: Option<(Box<Split>, std::sync::Arc<LogRows>)>,
        names: &[&str],
    ) -> Result<Self> {
        let schema = context.lake.schema();
        let mut overlay = Overlay::new(schema, &context.runtime.budget)?;
        let order_names: Vec<String> = overlay.order().names().to_vec();
        let all = schema.fields.iter().map(|field| field.name.as_str());
        let read: Vec<&str> = all.filter(|name| names.contains(name) || order_names.iter().any(|key| key == name)).collect();
        if let Some((split, rows)) = log {
            let mut tail = Tail::open(context, vec![*split]).await?;
            while let Some((split, chunk)) = tail.next().await? {
                let converted = rows.convert(&split, chunk.batches).await?;
                // What the reader held is given back before more is asked for.
                drop(chunk.permit);
                for (rows, changes) in converted {
                    overlay.apply(pick(&rows, &read)?, changes.as_deref())?;
                }
            }
        }
        let lake = if files.is_empty() { None } else { Some(context.lake.merge_files(files, Some(&read)).await?) };
        let (keys, batches, order) = overlay.into_parts();
        Ok(Self { lake, keys: keys.into_iter().peekable(), batches, order })
    }

    pub(in crate::audit) async fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let lake = match &mut self.lake {
                Some(reader) => reader.next_batch().await?,
                None => None,
            };
            let Some(lake) = lake else {
                self.lake = None;
                return self.rest();
            };
            if let Some(batch) = self.overlaid(lake)? {
                return Ok(Some(batch));
            }
        }
    }

    /// Rows of the lake, with what the change log has below and among them.
    fn overlaid(&mut self, lake: RecordBatch) -> Result<Option<RecordBatch>> {
        let encoded = self.order.rows(&key_columns(&self.order, &lake)?)?;
        let place = self.batches.len();
        let mut picked = Vec::with_capacity(lake.num_rows());
        for row in 0..lake.num_rows() {
            let key = encoded.row(row);
            while let Some((_, value)) = self.keys.next_if(|(changed, _)| changed.as_ref() < key.data()) {
                picked.extend(value);
            }
            match self.keys.next_if(|(changed, _)| changed.as_ref() == key.data()) {
                Some((_, value)) => picked.extend(value),
                None => picked.push((place, row)),
            }
        }
        self.batches.push(lake);
        let batch = self.gather(&picked);
        self.batches.pop();
        batch
    }

    /// Behind the last row of the lake.
    fn rest(&mut self) -> Result<Option<RecordBatch>> {
        let mut picked = Vec::new();
        while picked.len() < BATCH_ROWS {
            match self.keys.next() {
                Some((_, value)) => picked.extend(value),
                None => break,
            }
        }
        self.gather(&picked)
    }

    fn gather(&self, picked: &[(usize, usize)]) -> Result<Option<RecordBatch>> {
        if picked.is_empty() {
            return Ok(None);
        }
        let batches: Vec<&RecordBatch> = self.batches.iter().collect();
        interleave_record_batch(&batches, picked)
            .map(Some)
            .map_err(|source| Error::internal("put rows together").with_source(source))
    }
}

/// Columns by name, in this order.
fn pick(rows: &RecordBatch, names: &[&str]) -> Result<RecordBatch> {
    let place = |name: &&str| {
        rows.schema_ref()
            .fields()
            .find(name)
            .map(|(index, _)| index)
            .ok_or_else(|| Error::internal(format!("rows without column `{name}`")))
    };
    let places = names.iter().map(place).collect::<Result<Vec<_>>>()?;
    rows.project(&places).map_err(|source| Error::internal("pick columns").with_source(source))
}
