//! What a change log does to keys: per key its last row, or that it is gone.

use std::collections::BTreeMap;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_select::interleave::interleave_record_batch;

use crate::error::{Error, Result};
use crate::model::ChangeKind;
use crate::paimon::{KeyOrder, TableOptions, TableSchema};
use crate::runtime::Budget;

/// Bytes that an entry takes beside its key.
const ENTRY_BYTES: usize = 64;

/// Keys in the order of P7.4, each with its last row or none. Rows that are overtaken are thrown away now and then.
pub(in crate::audit) struct Overlay {
    order: KeyOrder,
    keys: BTreeMap<Box<[u8]>, Option<(usize, usize)>>,
    batches: Vec<RecordBatch>,
    bytes: usize,
    key_bytes: usize,
    compacted: usize,
    bytes_max: usize,
    /// Deletes say nothing, as in the lake's own merging.
    ignores_deletes: bool,
}

impl Overlay {
    /// It may take a quarter of what the budget is. Not of the budget itself: whoever reads the log waits for that, and would wait for ever.
    pub(in crate::audit) fn new(schema: &TableSchema, budget: &Budget) -> Result<Self> {
        let order = KeyOrder::new(schema, schema.trimmed_primary_keys(), &[])?;
        let bytes_max = budget.total() / 4;
        let ignores_deletes = TableOptions::ignores_deletes(schema)?;
        let keys = BTreeMap::new();
        Ok(Self { order, keys, batches: vec![], bytes: 0, key_bytes: 0, compacted: 0, bytes_max, ignores_deletes })
    }

    pub(in crate::audit) const fn order(&self) -> &KeyOrder {
        &self.order
    }

    /// Applies rows, in order. Of an update the row before it says nothing.
    ///
    /// # Errors
    /// `Invalid` when the changed keys do not fit into memory.
    pub(in crate::audit) fn apply(&mut self, rows: RecordBatch, changes: Option<&[ChangeKind]>) -> Result<()> {
        let encoded = self.order.rows(&key_columns(&self.order, &rows)?)?;
        let batch = self.batches.len();
        for row in 0..rows.num_rows() {
            let change = changes.and_then(|changes| changes.get(row)).copied().unwrap_or(ChangeKind::Insert);
            let value = match change {
                ChangeKind::Append | ChangeKind::Insert | ChangeKind::UpdateAfter => Some((batch, row)),
                ChangeKind::Delete if !self.ignores_deletes => None,
                ChangeKind::Delete | ChangeKind::UpdateBefore => continue,
            };
            let key = encoded.row(row);
            if let Some(found) = self.keys.get_mut(key.data()) {
                *found = value;
            } else {
                self.key_bytes += key.data().len() + ENTRY_BYTES;
                self.keys.insert(key.data().into(), value);
            }
        }
        self.bytes += rows.get_array_memory_size();
        self.batches.push(rows);
        if self.bytes > 2 * self.compacted + (1 << 20) {
            self.compact()?;
        }
        let need = self.bytes + self.key_bytes;
        if need <= self.bytes_max {
            return Ok(());
        }
        self.compact()?;
        let need = self.bytes + self.key_bytes;
        if need <= self.bytes_max {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the keys that changed in one bucket since it was tiered take more than {} bytes",
            self.bytes_max
        ))
        .with_hint("let a round bring them into the lake first, or raise `memory.limit`"))
    }

    /// One batch of the rows that still count.
    fn compact(&mut self) -> Result<()> {
        let picked: Vec<(usize, usize)> = self.keys.values().flatten().copied().collect();
        let rows = gather(&self.batches, &picked)?;
        for (at, slot) in self.keys.values_mut().filter_map(Option::as_mut).enumerate() {
            *slot = (0, at);
        }
        self.batches = rows.into_iter().collect();
        self.bytes = self.batches.iter().map(RecordBatch::get_array_memory_size).sum();
        self.compacted = self.bytes;
        Ok(())
    }

    /// Keys that changed, ascending, and where their rows are.
    pub(in crate::audit) fn into_parts(self) -> (OverlayKeys, Vec<RecordBatch>, KeyOrder) {
        (self.keys, self.batches, self.order)
    }
}

/// Keys that changed, and where their rows are.
pub(in crate::audit) type OverlayKeys = BTreeMap<Box<[u8]>, Option<(usize, usize)>>;

/// Columns of the key.
pub(in crate::audit) fn key_columns(order: &KeyOrder, rows: &RecordBatch) -> Result<Vec<ArrayRef>> {
    let column =
        |name: &String| rows.column_by_name(name).cloned().ok_or_else(|| Error::internal(format!("no key column `{name}`")));
    order.names().iter().map(column).collect()
}

fn gather(batches: &[RecordBatch], picked: &[(usize, usize)]) -> Result<Option<RecordBatch>> {
    if picked.is_empty() {
        return Ok(None);
    }
    let batches: Vec<&RecordBatch> = batches.iter().collect();
    interleave_record_batch(&batches, picked).map(Some).map_err(|source| Error::internal("put rows together").with_source(source))
}
