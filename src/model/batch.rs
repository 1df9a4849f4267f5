//! Rows on their way: a decoded log batch.

use arrow_array::RecordBatch;
use serde::Serialize;

use super::ids::{SchemaId, TableBucket};

/// What a log record does (F5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChangeKind {
    /// +A: append, on log tables.
    Append,
    /// +I: insert.
    Insert,
    /// −U: the row before an update.
    UpdateBefore,
    /// +U: the row after an update.
    UpdateAfter,
    /// −D: delete.
    Delete,
}

/// How many rows do what on a primary-key table; rows before updates (−U) are not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ChangeCounts {
    /// +I, rows of a state among them.
    pub inserts: u64,
    /// +U; where the change log has no rows before updates, keys that are new too.
    pub updates: u64,
    /// −D.
    pub deletes: u64,
}

impl ChangeCounts {
    /// Counts these too.
    pub fn add(&mut self, changes: &[ChangeKind]) {
        for change in changes {
            match change {
                ChangeKind::Append | ChangeKind::Insert => self.inserts += 1,
                ChangeKind::UpdateBefore => {}
                ChangeKind::UpdateAfter => self.updates += 1,
                ChangeKind::Delete => self.deletes += 1,
            }
        }
    }

    /// These and `others`.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self {
            inserts: self.inserts + others.inserts,
            updates: self.updates + others.updates,
            deletes: self.deletes + others.deletes,
        }
    }
}

/// Rows of one bucket with consecutive offsets, decoded.
///
/// `rows` has the columns of the batch's own schema in Fluss's Arrow types (F5.3), at least one row; row `i` has offset
/// `base_offset + i`. All rows share the commit timestamp.
#[derive(Debug, Clone)]
pub struct LogBatch {
    /// The bucket.
    pub bucket: TableBucket,
    /// Offset of the first row.
    pub base_offset: i64,
    /// Commit timestamp, epoch milliseconds.
    pub commit_timestamp_ms: i64,
    /// Schema that the rows were written with.
    pub schema_id: SchemaId,
    /// The rows.
    pub rows: RecordBatch,
    /// One change kind per row; `None` = all are appends.
    pub changes: Option<Vec<ChangeKind>>,
    /// What the rows keep alive.
    pub memory: Memory,
}

/// Bytes of memory that rows keep alive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Arrays of their own.
    pub own: usize,
    /// What they share rather than copy, with all that lives as long as that: of the answer that they came in. Of batches that share one
    /// answer the last counts what no batch has.
    pub shared: usize,
}

impl Memory {
    /// All of it.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.own.saturating_add(self.shared)
    }
}

impl LogBatch {
    /// Exclusive end offset.
    #[must_use]
    pub fn end_offset(&self) -> i64 {
        self.base_offset.saturating_add(i64::try_from(self.rows.num_rows()).unwrap_or(i64::MAX))
    }
}
