//! Merge-on-read of a primary-key bucket: per key the newest version, unless it retracts (P7.3, P9.1, P9.2).

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_row::OwnedRow;
use arrow_select::interleave::interleave_record_batch;

use super::bytes::Share;
use super::run::{Block, Order, Run, RunFile, runs_of};
use super::{Schemas, arrow_fault};
use crate::error::{Error, Result};
use crate::lake::LakeTable;
use crate::paimon::{ManifestEntry, TableOptions};

/// The files of a merge hold one part in so many of the memory budget at most.
const SHARE: u64 = 2;
/// Rows of a batch that a merge gives, at most.
const BATCH_ROWS: usize = 8192;

/// Merges the files of one bucket, rows in key order. Holds for each sorted run the bytes of one file and a few decoded blocks.
pub struct MergeReader {
    table: LakeTable,
    order: Arc<Order>,
    ignore_delete: bool,
    /// Places of the columns that are asked for.
    wanted: Vec<usize>,
    runs: Vec<(Run, Block)>,
    /// A binary heap of places in `runs`: the smallest key first, of equal ones the newest version.
    heap: Vec<usize>,
    /// Where `held` has the current block of each run.
    slots: Vec<Option<usize>>,
    held: Vec<RecordBatch>,
    picked: Vec<(usize, usize)>,
    last: Option<OwnedRow>,
}

impl std::fmt::Debug for MergeReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MergeReader").field("table", &self.table.location()).field("runs", &self.runs.len()).finish_non_exhaustive()
    }
}

impl LakeTable {
    /// Merges live files of **one** bucket of a primary-key table: the columns `columns` (`None` = all) of the schema that the table
    /// was opened with, in its order.
    ///
    /// # Errors
    /// `Unavailable`; `Invalid` when the files take more memory at once, the largest apart, than half of the budget; `Data` as [`LakeTable::read_rows`], and when a file is not sorted by its key (P7.4); `Unsupported` names the
    /// option whose merging this build can't follow.
    pub async fn merge_files(&self, files: Vec<ManifestEntry>, columns: Option<&[&str]>) -> Result<MergeReader> {
        let text = |key: &str| self.schema.option(key).map(str::trim).filter(|text| !text.is_empty());
        let refuse =
            |key: &str, value: &str| Err(Error::unsupported(format!("reading `{}`: option `{key}` = `{value}`", self.location())));
        for (key, only) in
            [("merge-engine", "deduplicate"), ("sequence.field.sort-order", "ascending"), ("deletion-vectors.enabled", "false")]
        {
            if let Some(value) = text(key).filter(|value| !value.eq_ignore_ascii_case(only)) {
                return refuse(key, value);
            }
        }
        let versions = text("sequence.field").map(|names| names.split(',').map(|name| name.trim().to_owned()).collect());
        let order = Arc::new(Order::of(&self.schema, versions.unwrap_or_default())?);
        let named: Vec<&str> = self.schema.fields.iter().map(|field| field.name.as_str()).collect();
        let is_wanted = |name: &str| columns.is_none_or(|columns| columns.contains(&name));
        let read: Vec<&str> = named.into_iter().filter(|name| is_wanted(name) || order.names().any(|key| key == *name)).collect();
        let wanted = read.iter().enumerate().filter(|(_, name)| is_wanted(name)).map(|(index, _)| index).collect();
        let mut schemas = Schemas::default();
        let mut found = Vec::new();
        for entry in files {
            let (schema, columns) = schemas.of(self, entry.file.schema_id, Some(&read)).await?;
            found.push(RunFile { entry, schema, columns });
        }
        let mut runs = Vec::new();
        let share = Share::of(self.runtime.budget.total() as u64 / SHARE);
        for mut run in runs_of(found, &share)? {
            if let Some(block) = run.next_block(self, &order).await? {
                runs.push((run, block));
            }
        }
        let ignore_delete = TableOptions::ignores_deletes(&self.schema)?;
        let (heap, slots) = ((0..runs.len()).collect(), vec![None; runs.len()]);
        let mut reader = MergeReader {
            table: self.clone(),
            order,
            ignore_delete,
            wanted,
            runs,
            heap,
            slots,
            held: Vec::new(),
            picked: Vec::new(),
            last: None,
        };
        for place in (0..reader.heap.len() / 2).rev() {
            reader.sift_down(place);
        }
        Ok(reader)
    }
}

impl MergeReader {
    /// The next rows; `None` at the end.
    ///
    /// # Errors
    /// As [`LakeTable::merge_files`].
    pub async fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        while let Some(top) = self.heap.first().copied() {
            let Some((run, block)) = self.runs.get_mut(top) else { break };
            let is_new = self.last.as_ref().is_none_or(|last| last.row() != block.key());
            if is_new && !(self.ignore_delete && block.retracts()) {
                self.last = Some(block.key().owned());
                if !block.retracts()
                    && let Some(slot) = self.slots.get_mut(top)
                {
                    let slot = *slot.get_or_insert_with(|| {
                        self.held.push(block.batch.clone());
                        self.held.len() - 1
                    });
                    self.picked.push((slot, block.at));
                }
            }
            block.at += 1;
            if block.is_done() {
                match run.next_block(&self.table, &self.order).await? {
                    Some(next) => *block = next,
                    None => {
                        self.heap.swap_remove(0);
                    }
                }
                if let Some(slot) = self.slots.get_mut(top) {
                    *slot = None;
                }
            }
            self.sift_down(0);
            // Few rows of many blocks must not hold all of them.
            if self.picked.len() >= BATCH_ROWS || self.held.len() > 2 * self.runs.len() + 2 {
                break;
            }
        }
        self.take()
    }

    fn take(&mut self) -> Result<Option<RecordBatch>> {
        let (held, picked) = (std::mem::take(&mut self.held), std::mem::take(&mut self.picked));
        self.slots.fill(None);
        if picked.is_empty() {
            return Ok(None);
        }
        let held = held.iter().map(|batch| batch.project(&self.wanted)).collect::<Result<Vec<_>, _>>().map_err(arrow_fault)?;
        let merged = interleave_record_batch(&held.iter().collect::<Vec<_>>(), &picked);
        merged.map(Some).map_err(|source| Error::internal("put rows together").with_source(source))
    }

    fn comes_before(&self, one: usize, other: usize) -> bool {
        let (Some((_, a)), Some((_, b))) = (self.runs.get(one), self.runs.get(other)) else { return false };
        // Equal versions do not occur in sound tables (P7.5): then the later file of the manifest wins.
        a.key().cmp(&b.key()).then_with(|| b.version().cmp(&a.version())).then_with(|| other.cmp(&one)).is_lt()
    }

    fn sift_down(&mut self, mut place: usize) {
        loop {
            let children = [2 * place + 1, 2 * place + 2];
            let mut first = place;
            for child in children {
                if let (Some(one), Some(other)) = (self.heap.get(child), self.heap.get(first))
                    && self.comes_before(*one, *other)
                {
                    first = child;
                }
            }
            if first == place {
                return;
            }
            self.heap.swap(first, place);
            place = first;
        }
    }
}
