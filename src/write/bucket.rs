//! One bucket of one round: buffers rows, encodes late, makes files of them.

use std::sync::Arc;

use arrow_array::RecordBatch;

use super::buffer::{Buffer, Taken};
use super::files::{Files, Marks, RowGroup};
use super::keyed::Sorter;
use super::{FileKind, WriteContext};
use crate::error::{Error, Result};
use crate::model::{ChangeKind, TableBucket};
use crate::paimon::{BinaryRow, ManifestEntry, path};
use crate::runtime::Permit;

/// Where a bucket's rows go.
#[derive(Debug, Clone)]
pub struct BucketTarget {
    /// The Fluss bucket that the rows come from; for messages.
    pub source: TableBucket,
    /// Partition row in the order of the partition keys; arity 0 on a table without partitions.
    pub partition: BinaryRow,
    /// Lake bucket; 0 on a bucket-unaware table (P6.3).
    pub bucket: i32,
    /// Bucket count of the partition; −1 on a bucket-unaware table.
    pub total_buckets: i32,
}

/// What a bucket's rows have become: an ADD entry per file.
#[derive(Debug, Clone, Default)]
pub struct BucketFiles {
    /// Data files, in sequence order.
    pub data: Vec<ManifestEntry>,
    /// Changelog files, where the table's option `changelog-producer` is `input` (P9.3).
    pub changelog: Vec<ManifestEntry>,
    /// Rows that the table's options leave out of both (`ignore-delete`, `ignore-update-before`).
    pub ignored: u64,
}

/// Writes one bucket's rows into files of about the table's target size.
///
/// Make it when the bucket's first row arrives: a writer without rows writes no file. Rows wait as Arrow batches and are
/// encoded a row group at a time on the encoder threads. On append tables they stay in the order given, and only a file with
/// more than one row group stays open between them; on primary-key tables they wait until [`BucketWriter::flush`], which makes
/// sorted files of them that no later row is added to. End it with [`BucketWriter::finish`] or [`BucketWriter::abort`];
/// dropped, it leaves finished files behind for the orphan sweep.
#[derive(Debug)]
pub struct BucketWriter {
    context: Arc<WriteContext>,
    target: BucketTarget,
    /// Sequence number of the next row.
    next_sequence: i64,
    ignored: u64,
    waiting: Waiting,
    data: Files,
    changelog: Option<Files>,
}

/// Rows that are not in a file yet.
#[derive(Debug)]
enum Waiting {
    Append(Buffer),
    Keyed(Sorter),
}

impl BucketWriter {
    /// A writer without rows. `first_sequence` is the sequence number of its first row: 1 + the bucket's live maximum (P7.5).
    ///
    /// # Errors
    /// `Data` when the partition row is not one of this table.
    pub fn new(context: Arc<WriteContext>, target: BucketTarget, first_sequence: i64) -> Result<Self> {
        let folder = format!("{}/{}", context.root, path::bucket_path(&context.schema, &target.partition, target.bucket)?);
        let files = |kind| Files::new(Arc::clone(&context), kind, folder.clone(), target.clone());
        let (data, changelog) = (files(FileKind::Data), context.table.changelog_input.then(|| files(FileKind::Changelog)));
        let waiting = match &context.keys {
            None => Waiting::Append(Buffer::default()),
            Some(_) => Waiting::Keyed(Sorter::default()),
        };
        Ok(Self { context, target, next_sequence: first_sequence, ignored: 0, waiting, data, changelog })
    }

    /// Appends rows in the lake's columns (`paimon::lake_arrow_schema`); row `i` has log offset `base_offset + i` and does what
    /// `changes[i]` says (`None` = all are appends, on a primary-key table inserts).
    ///
    /// May encode and upload before it returns. `permit` covers the batch's memory and is given back as soon as the rows are
    /// encoded. A batch without rows is fine.
    ///
    /// # Errors
    /// `Data` names column, bucket and offset of a NULL in a NOT NULL column; `Unavailable` when the store fails. Abort then.
    pub async fn write(
        &mut self,
        rows: RecordBatch,
        changes: Option<&[ChangeKind]>,
        base_offset: i64,
        permit: Permit,
    ) -> Result<()> {
        let count = rows.num_rows();
        if count == 0 {
            return Ok(());
        }
        self.check(&rows, base_offset)?;
        let count = i64::try_from(count).map_err(|source| Error::internal("rows of a batch").with_source(source))?;
        let last = self.next_sequence.checked_add(count).ok_or_else(|| {
            Error::data(format!(
                "{} has used up its sequence numbers: the next one is `{}`",
                self.target.source, self.next_sequence
            ))
        })?;
        match &mut self.waiting {
            Waiting::Append(buffer) => {
                buffer.push(rows, permit)?;
                while let Waiting::Append(buffer) = &self.waiting
                    && (buffer.bytes >= self.data.group_bytes() || buffer.rows >= self.data.group_rows())
                {
                    self.encode().await?;
                }
            }
            Waiting::Keyed(sorter) => {
                let keys = self.context.keys()?;
                self.ignored += changes.map_or(0, |changes| keys.ignored_of(changes));
                sorter.push(&rows, changes, self.next_sequence, &keys.with_kind, permit)?;
                self.next_sequence = last;
                if sorter.is_full(self.context.runtime.budget.total()) {
                    self.flush().await?;
                }
            }
        }
        Ok(())
    }

    fn check(&self, rows: &RecordBatch, base_offset: i64) -> Result<()> {
        let expected = &self.context.arrow;
        if rows.num_columns() != expected.fields().len() {
            return Err(Error::internal(format!(
                "a batch of {} columns, the table has {}",
                rows.num_columns(),
                expected.fields().len()
            )));
        }
        for (field, array) in expected.fields().iter().zip(rows.columns()) {
            if field.data_type() != array.data_type() {
                return Err(Error::internal(format!(
                    "column `{}` comes as `{}`, not as `{}`",
                    field.name(),
                    array.data_type(),
                    field.data_type()
                )));
            }
            if !field.is_nullable() && array.null_count() > 0 {
                let row = (0..array.len()).find(|row| array.is_null(*row)).unwrap_or(0);
                let offset = base_offset.saturating_add(i64::try_from(row).unwrap_or(i64::MAX));
                return Err(Error::data(format!(
                    "NULL in column `{}`, which is NOT NULL, at offset `{offset}` of {}",
                    field.name(),
                    self.target.source
                )));
            }
        }
        Ok(())
    }

    /// Bytes of Arrow batches that wait: what [`BucketWriter::flush`] would give back.
    #[must_use]
    pub const fn buffered_bytes(&self) -> usize {
        match &self.waiting {
            Waiting::Append(buffer) => buffer.bytes,
            Waiting::Keyed(sorter) => sorter.bytes(),
        }
    }

    /// Encodes what waits, to give memory back under pressure (the largest bucket first): as row groups, on a primary-key table
    /// as sorted files.
    ///
    /// # Errors
    /// As [`BucketWriter::write`].
    pub async fn flush(&mut self) -> Result<()> {
        loop {
            match &mut self.waiting {
                Waiting::Append(buffer) if buffer.rows > 0 => self.encode().await?,
                Waiting::Append(_) => return Ok(()),
                Waiting::Keyed(sorter) => {
                    let rows = sorter.take();
                    return rows.write(&self.context, &mut self.data, self.changelog.as_mut()).await;
                }
            }
        }
    }

    /// Encodes one row group from the front of the buffer.
    async fn encode(&mut self) -> Result<()> {
        let Waiting::Append(buffer) = &mut self.waiting else { return Ok(()) };
        let Taken { batches, permits, rows, bytes } = buffer.take(self.data.group_rows(), self.data.group_bytes());
        let first = self.next_sequence;
        self.next_sequence = first.saturating_add(i64::try_from(rows).unwrap_or(i64::MAX));
        let marks = Marks {
            sequences: (first, self.next_sequence.saturating_sub(1)),
            deletes: 0,
            keys: (BinaryRow::empty(), BinaryRow::empty()),
        };
        self.data.encode(RowGroup { batches, rows, bytes, marks, permits }).await
    }

    /// Writes what waits and returns the files; none when there were no rows.
    ///
    /// # Errors
    /// `Unavailable` when the store fails; the files of this writer are then deleted as far as that works.
    pub async fn finish(mut self) -> Result<BucketFiles> {
        match self.end().await {
            Ok(()) => {
                let changelog = self.changelog.as_mut().map(Files::take).unwrap_or_default();
                Ok(BucketFiles { data: self.data.take(), changelog, ignored: self.ignored })
            }
            Err(error) => {
                // The first error tells more; what can't be deleted is left to the orphan sweep.
                drop(self.abort().await);
                Err(error)
            }
        }
    }

    async fn end(&mut self) -> Result<()> {
        self.flush().await?;
        self.data.close().await
    }

    /// Gives up and deletes what was written.
    ///
    /// # Errors
    /// `Unavailable` when some file could not be deleted; the others are.
    pub async fn abort(self) -> Result<()> {
        let data = self.data.abort().await;
        match self.changelog {
            Some(changelog) => data.and(changelog.abort().await),
            None => data,
        }
    }
}
