//! One bucket of one round: buffers rows, encodes late, makes files of them.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::RecordBatch;

use super::beside::{Beside, Output, Work};
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
/// encoded a row group at a time on the encoder threads, beside the writer, which takes more rows meanwhile. On append tables they
/// stay in the order given, and only a file with more than one row group stays open between them; on primary-key tables they wait
/// until there are many, or [`BucketWriter::flush`], which makes sorted files of them that no later row is added to. End it with [`BucketWriter::finish`] or [`BucketWriter::abort`];
/// dropped, it leaves finished files behind for the orphan sweep.
#[derive(Debug)]
pub struct BucketWriter {
    context: Arc<WriteContext>,
    target: BucketTarget,
    folder: String,
    /// Sequence number of the next row.
    next_sequence: i64,
    ignored: u64,
    waiting: Waiting,
    /// What is at work, oldest first. On append tables one at most, since its file goes on with the next rows.
    busy: VecDeque<Beside>,
    /// What has done its work, on primary-key tables.
    done: Vec<Output>,
    idle: Option<Output>,
}

/// Rows that are not in a file yet.
#[derive(Debug)]
enum Waiting {
    Append(Buffer),
    Keyed(Sorter),
}

impl Waiting {
    const fn bytes(&self) -> usize {
        match self {
            Self::Append(buffer) => buffer.bytes,
            Self::Keyed(sorter) => sorter.bytes(),
        }
    }
}

impl BucketWriter {
    /// A writer without rows. `first_sequence` is the sequence number of its first row: 1 + the bucket's live maximum (P7.5).
    ///
    /// # Errors
    /// `Data` when the partition row is not one of this table.
    pub fn new(context: Arc<WriteContext>, target: BucketTarget, first_sequence: i64) -> Result<Self> {
        let folder = format!("{}/{}", context.root, path::bucket_path(&context.schema, &target.partition, target.bucket)?);
        let waiting = match &context.keys {
            None => Waiting::Append(Buffer::default()),
            Some(_) => Waiting::Keyed(Sorter::default()),
        };
        let (busy, done, idle, ignored) = (VecDeque::new(), Vec::new(), None, 0);
        let mut writer = Self { context, target, folder, next_sequence: first_sequence, ignored, waiting, busy, done, idle };
        writer.idle = Some(writer.output());
        Ok(writer)
    }

    fn output(&self) -> Output {
        let files = |kind| Files::new(Arc::clone(&self.context), kind, self.folder.clone(), self.target.clone());
        Output { data: files(FileKind::Data), changelog: self.context.table.changelog_input.then(|| files(FileKind::Changelog)) }
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
                while self.has_group() {
                    // How much the open file still takes is known then.
                    self.join(0).await?;
                    if let Some((work, bytes)) = self.take_group() {
                        self.begin(work, bytes).await?;
                    }
                }
            }
            Waiting::Keyed(sorter) => {
                let keys = self.context.keys()?;
                self.ignored += changes.map_or(0, |changes| keys.ignored_of(changes));
                sorter.push(&rows, changes, self.next_sequence, &keys, permit)?;
                self.next_sequence = last;
                if sorter.is_full(&self.context.runtime) {
                    let (bytes, rows) = (sorter.bytes(), sorter.take());
                    // As many sorts as there are threads, of which one goes on decoding.
                    self.join(self.context.runtime.encoders.count().saturating_sub(2)).await?;
                    self.begin(Work::Sort(rows), bytes).await?;
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

    /// Bytes of Arrow batches that wait or are at work.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.waiting.bytes() + self.busy.iter().map(|beside| beside.bytes).sum::<usize>()
    }

    /// What is encoded and not sent yet, while nothing is at work.
    fn unsent(&self) -> usize {
        self.idle.as_ref().map_or(0, |output| output.data.unsent())
    }

    /// Bytes that [`BucketWriter::relieve`] can give back, in the end: rows that wait or are at work, and what is encoded and not sent yet.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.buffered_bytes() + self.unsent()
    }

    /// Gives memory back under pressure (the largest bucket first): waits for what is at work, else encodes what waits, or sends what
    /// is encoded, whichever is more.
    ///
    /// # Errors
    /// As [`BucketWriter::write`].
    pub async fn relieve(&mut self) -> Result<()> {
        if !self.busy.is_empty() {
            return self.join(0).await;
        }
        match &mut self.idle {
            Some(output) if output.data.unsent() > self.waiting.bytes() => output.data.relieve().await,
            _ => self.flush().await,
        }
    }

    /// Encodes what waits: as row groups, on a primary-key table as sorted files.
    ///
    /// # Errors
    /// As [`BucketWriter::write`].
    pub async fn flush(&mut self) -> Result<()> {
        self.join(0).await?;
        if let Waiting::Keyed(sorter) = &mut self.waiting {
            let rows = sorter.take();
            return self.here(Work::Sort(rows)).await;
        }
        while let Some((group, _)) = self.take_group() {
            self.here(group).await?;
        }
        Ok(())
    }

    /// Whether as many rows wait as a row group has, as far as one can tell.
    fn has_group(&self) -> bool {
        let Waiting::Append(buffer) = &self.waiting else { return false };
        let options = &self.context.options;
        let (bytes, rows) = match &self.idle {
            Some(output) => (output.data.group_bytes(), output.data.group_rows()),
            None => (options.row_group_bytes.min(self.context.runtime.budget.total() / 4), options.row_group_rows),
        };
        buffer.bytes >= bytes || buffer.rows >= rows
    }

    /// A row group from the front of the buffer, and its bytes, while nothing is at work.
    fn take_group(&mut self) -> Option<(Work, usize)> {
        let (Waiting::Append(buffer), Some(output)) = (&mut self.waiting, &self.idle) else { return None };
        let Taken { batches, permits, rows, bytes } = buffer.take(output.data.group_rows(), output.data.group_bytes());
        if rows == 0 {
            return None;
        }
        let first = self.next_sequence;
        self.next_sequence = first.saturating_add(i64::try_from(rows).unwrap_or(i64::MAX));
        let marks = Marks {
            sequences: (first, self.next_sequence.saturating_sub(1)),
            deletes: 0,
            keys: (BinaryRow::empty(), BinaryRow::empty()),
        };
        Some((Work::Group(RowGroup { batches, rows, bytes, marks, permits, aside: None }), bytes))
    }

    /// Begins `work` beside the writer; with one encoder thread nothing would run beside it.
    async fn begin(&mut self, work: Work, bytes: usize) -> Result<()> {
        if self.context.runtime.encoders.count() < 2 {
            return self.here(work).await;
        }
        let output = self.idle.take().unwrap_or_else(|| self.output());
        self.busy.push_back(Beside::begin(output, Arc::clone(&self.context), work, bytes));
        Ok(())
    }

    async fn here(&mut self, work: Work) -> Result<()> {
        let output = self.idle.take().unwrap_or_else(|| self.output());
        // Boxed: futures of all callers would be as large.
        Box::pin(self.idle.insert(output).work(&self.context, work)).await
    }

    /// Waits until `left` are at work at most.
    async fn join(&mut self, left: usize) -> Result<()> {
        while self.busy.len() > left
            && let Some(first) = self.busy.front_mut()
        {
            let ended = first.end().await;
            self.busy.pop_front();
            let (output, done) = ended?;
            match self.waiting {
                Waiting::Append(_) => self.idle = Some(output),
                Waiting::Keyed(_) => self.done.push(output),
            }
            done?;
        }
        Ok(())
    }

    /// Writes what waits and returns the files; none when there were no rows.
    ///
    /// # Errors
    /// `Unavailable` when the store fails; the files of this writer are then deleted as far as that works.
    pub async fn finish(mut self) -> Result<BucketFiles> {
        match self.end().await {
            Ok(()) => {
                let mut files = BucketFiles { ignored: self.ignored, ..BucketFiles::default() };
                self.done.into_iter().chain(self.idle).for_each(|output| output.take(&mut files));
                Ok(files)
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
        match &mut self.idle {
            Some(output) => output.data.close().await,
            None => Ok(()),
        }
    }

    /// Gives up and deletes what was written.
    ///
    /// # Errors
    /// `Unavailable` when some file could not be deleted; the others are.
    pub async fn abort(self) -> Result<()> {
        let mut aborted = Ok(());
        for beside in self.busy {
            aborted = aborted.and(beside.abort().await);
        }
        for output in self.done.into_iter().chain(self.idle) {
            aborted = aborted.and(output.abort().await);
        }
        aborted
    }
}
