//! One bucket of one round: buffers, encodes late, rolls files.

use std::sync::Arc;

use arrow_array::RecordBatch;

use super::WriteContext;
use crate::error::{Error, Result};
use crate::model::TableBucket;
use crate::paimon::{BinaryRow, ManifestEntry};
use crate::runtime::Permit;

/// Where a bucket's rows go.
#[derive(Debug, Clone)]
pub struct BucketTarget {
    /// The Fluss bucket that the rows come from; for messages.
    pub source: TableBucket,
    /// Partition row in the order of the partition keys; arity 0 on a table without partitions.
    pub partition: BinaryRow,
    /// Partition folder below the table, e.g. `dt=2024-01-01`, as `paimon::path` renders it; empty without partitions.
    pub partition_path: String,
    /// Lake bucket; 0 on a bucket-unaware table (P6.3).
    pub bucket: i32,
    /// Bucket count of the partition; −1 on a bucket-unaware table.
    pub total_buckets: i32,
}

/// Writes one bucket's rows, in the order given, into files of about the table's target size.
///
/// Make it when the bucket's first row arrives: a writer without rows writes no file. Rows wait as Arrow batches and are
/// encoded a row group at a time on the encoder threads; only a file with more than one row group stays open between them.
/// End it with [`BucketWriter::finish`] or [`BucketWriter::abort`]; dropped, it leaves finished files behind for the
/// orphan sweep.
#[derive(Debug)]
pub struct BucketWriter {
    context: Arc<WriteContext>,
    target: BucketTarget,
    next_sequence: i64,
}

impl BucketWriter {
    /// A writer without rows. `first_sequence` is the sequence number of its first row: 1 + the bucket's live maximum (P7.5).
    #[must_use]
    pub fn new(context: Arc<WriteContext>, target: BucketTarget, first_sequence: i64) -> Self {
        Self { context, target, next_sequence: first_sequence }
    }

    /// Appends rows in the lake's columns (`mapping::lake_arrow_schema`); row `i` has log offset `base_offset + i`.
    ///
    /// May encode and upload a row group before it returns. `permit` covers the batch's memory and is given back as soon
    /// as the rows are encoded. A batch without rows is fine.
    ///
    /// # Errors
    /// `Data` names column, bucket and offset of a NULL in a NOT NULL column; `Unavailable` when the store fails. Abort then.
    pub async fn write(&mut self, rows: RecordBatch, base_offset: i64, permit: Permit) -> Result<()> {
        let _ = (rows, base_offset, permit, &self.context, &self.target, self.next_sequence, self.context.next_file_name());
        Err(Error::unsupported("writing rows"))
    }

    /// Bytes of Arrow batches that wait: what [`BucketWriter::flush`] would give back.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        0
    }

    /// Encodes what waits as a row group of its own, to give memory back under pressure (the largest bucket first).
    ///
    /// # Errors
    /// As [`BucketWriter::write`].
    pub async fn flush(&mut self) -> Result<()> {
        Err(Error::unsupported("flushing rows"))
    }

    /// Writes what waits and returns an ADD entry per file, in sequence order; none when there were no rows.
    ///
    /// # Errors
    /// `Unavailable` when the store fails; the files of this writer are then deleted as far as that works.
    pub async fn finish(self) -> Result<Vec<ManifestEntry>> {
        Err(Error::unsupported("finishing files"))
    }

    /// Gives up and deletes what was written.
    ///
    /// # Errors
    /// `Unavailable` when some file could not be deleted.
    pub async fn abort(self) -> Result<()> {
        Err(Error::unsupported("aborting files"))
    }
}
