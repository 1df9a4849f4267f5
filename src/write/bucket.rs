//! One bucket of one round: buffers, encodes late, rolls files.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::Schema;
use arrow_select::concat::concat_batches;
use futures::future::try_join_all;

use super::WriteContext;
use super::bounds::Bounds;
use super::encode::{ColumnSet, FileEncoder};
use super::nested::size_of;
use crate::error::{Error, Result};
use crate::model::TableBucket;
use crate::paimon::{BinaryRow, DataFile, EntryKind, ManifestEntry, SimpleStats, path, stats};
use crate::runtime::Permit;
use crate::storage::Upload;

/// Row groups of fewer Arrow bytes are encoded by one thread: handing them out costs more than it brings.
const PARALLEL_BYTES: usize = 4 << 20;
/// Batches of fewer rows are joined once there are enough of them: an array costs hundreds of bytes, however few its rows.
const SMALL_BATCH_ROWS: usize = 256;
/// How many small batches are joined into one.
const JOINED_BATCHES: usize = 64;
/// A file this full (in hundredths of the target size) is closed rather than topped up with a small row group.
const FULL_PERCENT: u64 = 90;

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
    folder: String,
    next_sequence: i64,
    buffer: Buffer,
    open: Option<OpenFile>,
    /// Encoded bytes per Arrow byte, in thousandths, as far as this bucket has shown.
    permille: u64,
    done: Vec<ManifestEntry>,
    /// Paths of the files that are there or may be.
    written: Vec<String>,
}

/// Batches that wait, each with the memory permit that covers it.
#[derive(Debug, Default)]
struct Buffer {
    batches: VecDeque<(RecordBatch, usize, Permit)>,
    rows: usize,
    bytes: usize,
    /// Small batches at the end of `batches`.
    small: usize,
}

/// A file that waits for its next row group.
struct OpenFile {
    path: String,
    /// Absent only while it is on an encoder thread, and after a failure there.
    encoder: Option<FileEncoder>,
    upload: Option<Upload>,
    rows: u64,
}

impl std::fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenFile").field("path", &self.path).field("rows", &self.rows).finish_non_exhaustive()
    }
}

struct Taken {
    batches: Vec<RecordBatch>,
    permits: Vec<Permit>,
    rows: usize,
    bytes: usize,
}

impl Buffer {
    fn push(&mut self, rows: RecordBatch, permit: Permit) -> Result<()> {
        let (count, size) = (rows.num_rows(), size_of_rows(&rows));
        self.rows += count;
        self.bytes += size;
        self.batches.push_back((rows, size, permit));
        self.small = if count < SMALL_BATCH_ROWS { self.small + 1 } else { 0 };
        if self.small >= JOINED_BATCHES { self.join() } else { Ok(()) }
    }

    /// Makes one batch of the small ones at the end.
    fn join(&mut self) -> Result<()> {
        let tail = self.batches.split_off(self.batches.len() - self.small);
        self.small = 0;
        let schema = tail.front().map_or_else(|| Arc::new(Schema::empty()), |(rows, ..)| rows.schema());
        let joined = concat_batches(&schema, tail.iter().map(|(rows, ..)| rows))
            .map_err(|source| Error::internal("join small batches").with_source(source))?;
        let size = size_of_rows(&joined);
        self.bytes = self.bytes + size - tail.iter().map(|(_, size, _)| size).sum::<usize>();
        let permit = tail.into_iter().map(|(_, _, permit)| permit).reduce(|mut all, permit| {
            all.merge(permit);
            all
        });
        if let Some(mut permit) = permit {
            permit.shrink(size);
            self.batches.push_back((joined, size, permit));
        }
        Ok(())
    }

    /// Takes batches from the front until one limit is reached; the last one is cut where it crosses. At least one row.
    /// A cut batch's permit stays with its rest.
    fn take(&mut self, rows_max: usize, bytes_max: usize) -> Taken {
        let (mut batches, mut permits, mut rows, mut bytes) = (Vec::new(), Vec::new(), 0, 0);
        while rows < rows_max && bytes < bytes_max {
            let Some((batch, size, permit)) = self.batches.pop_front() else { break };
            let by_bytes = batch.num_rows().saturating_mul(bytes_max - bytes) / size.max(1);
            let fits = (rows_max - rows).min(by_bytes.max(1));
            if fits < batch.num_rows() {
                let part = size * fits / batch.num_rows();
                self.batches.push_front((batch.slice(fits, batch.num_rows() - fits), size - part, permit));
                batches.push(batch.slice(0, fits));
                rows += fits;
                bytes += part;
                break;
            }
            rows += batch.num_rows();
            bytes += size;
            batches.push(batch);
            permits.push(permit);
        }
        self.rows -= rows;
        self.bytes -= bytes;
        self.small = self.small.min(self.batches.len());
        Taken { batches, permits, rows, bytes }
    }
}

/// Bytes of the values, however large the buffers behind them are.
fn size_of_rows(rows: &RecordBatch) -> usize {
    rows.columns().iter().map(size_of).sum()
}

impl BucketWriter {
    /// A writer without rows. `first_sequence` is the sequence number of its first row: 1 + the bucket's live maximum (P7.5).
    ///
    /// # Errors
    /// `Data` when the partition row is not one of this table.
    pub fn new(context: Arc<WriteContext>, target: BucketTarget, first_sequence: i64) -> Result<Self> {
        let folder = format!("{}/{}", context.root, path::bucket_path(&context.shape.schema, &target.partition, target.bucket)?);
        Ok(Self {
            context,
            target,
            folder,
            next_sequence: first_sequence,
            buffer: Buffer::default(),
            open: None,
            permille: 500,
            done: Vec::new(),
            written: Vec::new(),
        })
    }

    /// Appends rows in the lake's columns (`paimon::lake_arrow_schema`); row `i` has log offset `base_offset + i`.
    ///
    /// May encode and upload a row group before it returns. `permit` covers the batch's memory and is given back as soon
    /// as the rows are encoded. A batch without rows is fine.
    ///
    /// # Errors
    /// `Data` names column, bucket and offset of a NULL in a NOT NULL column; `Unavailable` when the store fails. Abort then.
    pub async fn write(&mut self, rows: RecordBatch, base_offset: i64, permit: Permit) -> Result<()> {
        if rows.num_rows() == 0 {
            return Ok(());
        }
        self.check(&rows, base_offset)?;
        self.buffer.push(rows, permit)?;
        while self.buffer.bytes >= self.group_bytes() || self.buffer.rows >= self.group_rows() {
            self.encode().await?;
        }
        Ok(())
    }

    fn check(&self, rows: &RecordBatch, base_offset: i64) -> Result<()> {
        let expected = &self.context.shape.arrow;
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
    pub fn buffered_bytes(&self) -> usize {
        self.buffer.bytes
    }

    /// Encodes what waits as row groups, to give memory back under pressure (the largest bucket first).
    ///
    /// # Errors
    /// As [`BucketWriter::write`].
    pub async fn flush(&mut self) -> Result<()> {
        while self.buffer.rows > 0 {
            self.encode().await?;
        }
        Ok(())
    }

    /// Writes what waits and returns an ADD entry per file, in sequence order; none when there were no rows.
    ///
    /// # Errors
    /// `Unavailable` when the store fails; the files of this writer are then deleted as far as that works.
    pub async fn finish(mut self) -> Result<Vec<ManifestEntry>> {
        match self.end().await {
            Ok(()) => Ok(self.done),
            Err(error) => {
                // The first error tells more; what can't be deleted is left to the orphan sweep.
                drop(self.abort().await);
                Err(error)
            }
        }
    }

    async fn end(&mut self) -> Result<()> {
        self.flush().await?;
        self.close().await
    }

    /// Gives up and deletes what was written.
    ///
    /// # Errors
    /// `Unavailable` when some file could not be deleted; the others are.
    pub async fn abort(self) -> Result<()> {
        let upload = match self.open.and_then(|file| file.upload) {
            Some(upload) => upload.abort().await,
            None => Ok(()),
        };
        self.context.delete(self.written).await.and(upload)
    }

    fn open_bytes(&self) -> u64 {
        self.open.as_ref().and_then(|file| file.encoder.as_ref()).map_or(0, FileEncoder::bytes)
    }

    /// Arrow bytes of the next row group: no more than what fills the open file, as far as one can tell.
    fn group_bytes(&self) -> usize {
        let missing = self.context.table.target_file_bytes.saturating_sub(self.open_bytes());
        let missing = usize::try_from(missing.saturating_mul(1000) / self.permille.max(1)).unwrap_or(usize::MAX);
        missing.clamp(1, self.context.options.row_group_bytes)
    }

    fn group_rows(&self) -> usize {
        let missing = self.context.table.target_file_rows.saturating_sub(self.open.as_ref().map_or(0, |file| file.rows));
        usize::try_from(missing).unwrap_or(usize::MAX).clamp(1, self.context.options.row_group_rows)
    }

    /// Encodes one row group from the front of the buffer into the open file, or a new one, and closes the file if it is full.
    async fn encode(&mut self) -> Result<()> {
        let Taken { batches, permits, rows, bytes } = self.buffer.take(self.group_rows(), self.group_bytes());
        if self.open.is_none() {
            let path = format!("{}/{}", self.folder, self.context.next_file_name());
            self.open = Some(OpenFile { path, encoder: None, upload: None, rows: 0 });
        }
        let before = self.open_bytes();
        let encoder = self.open.as_mut().and_then(|file| file.encoder.take());
        let encoder = encode_group(&self.context, encoder, batches, bytes).await?;
        // The rows' memory is free now.
        drop(permits);
        let size = encoder.bytes();
        self.permille = (size - before).saturating_mul(1000) / u64::try_from(bytes).unwrap_or(u64::MAX).max(1);
        let Some(file) = &mut self.open else { return Err(Error::internal("the open file is gone")) };
        let encoder = file.encoder.insert(encoder);
        file.rows += rows as u64;
        let full = size.saturating_mul(100) >= self.context.table.target_file_bytes.saturating_mul(FULL_PERCENT);
        if full || file.rows >= self.context.table.target_file_rows {
            return self.close().await;
        }
        if encoder.unsent() < self.context.options.part_bytes {
            return Ok(());
        }
        let part = encoder.take_bytes()?;
        if file.upload.is_none() {
            file.upload = Some(self.context.store.upload(&file.path).await?);
        }
        match &mut file.upload {
            Some(upload) => upload.part(part).await,
            None => Ok(()),
        }
    }

    /// Ends the open file, if there is one.
    async fn close(&mut self) -> Result<()> {
        let Some(OpenFile { path, encoder: Some(encoder), upload, rows }) = self.open.take() else { return Ok(()) };
        let (rest, bounds) = encoder.close()?;
        // From here on the file may be there, whatever is answered.
        self.written.push(path.clone());
        let size = match upload {
            None => {
                let size = rest.len() as u64;
                self.context.store.put(&path, rest).await?;
                size
            }
            Some(mut upload) => {
                upload.part(rest).await?;
                upload.finish().await?
            }
        };
        let name = path.rsplit_once('/').map_or(path.as_str(), |(_, name)| name).to_owned();
        let rows = i64::try_from(rows).unwrap_or(i64::MAX);
        let shape = &self.context.shape;
        let exact = bounds.iter().map(Bounds::stats).collect();
        let (value_stats, value_stats_cols) =
            stats::value_stats(&shape.schema.fields, &shape.modes, exact, self.context.table.stats_dense)?;
        let file = DataFile {
            file_name: name,
            file_size: i64::try_from(size).unwrap_or(i64::MAX),
            row_count: rows,
            min_key: BinaryRow::empty(),
            max_key: BinaryRow::empty(),
            key_stats: SimpleStats::empty(),
            value_stats,
            min_sequence_number: self.next_sequence,
            max_sequence_number: self.next_sequence + rows - 1,
            schema_id: self.context.shape.schema.id,
            level: 0,
            extra_files: Vec::new(),
            creation_time_ms: Some(self.context.runtime.clock.now_ms()),
            delete_row_count: Some(0),
            embedded_file_index: None,
            file_source: Some(0),
            value_stats_cols,
            external_path: None,
            first_row_id: None,
            write_cols: None,
        };
        self.next_sequence += rows;
        self.done.push(ManifestEntry {
            kind: EntryKind::Add,
            partition: self.target.partition.clone(),
            bucket: self.target.bucket,
            total_buckets: self.target.total_buckets,
            file,
        });
        Ok(())
    }
}

/// Encodes `batches` as a row group; a file starts when there is no `encoder`.
///
/// No method: a writer that is borrowed is not `Send` (uploads are not `Sync`), and rounds run on any thread.
async fn encode_group(
    context: &WriteContext,
    encoder: Option<FileEncoder>,
    batches: Vec<RecordBatch>,
    bytes: usize,
) -> Result<FileEncoder> {
    let pool = &context.runtime.encoders;
    let count = if bytes < PARALLEL_BYTES { 1 } else { pool.count() };
    let shape = Arc::clone(&context.shape);
    let batches = Arc::new(batches);
    let start = move || -> Result<(FileEncoder, Vec<ColumnSet>)> {
        let mut encoder = match encoder {
            Some(encoder) => encoder,
            None => FileEncoder::new(shape, &batches, bytes)?,
        };
        let sets = encoder.split(&batches, count)?;
        if count > 1 {
            return Ok((encoder, sets));
        }
        let columns = sets.into_iter().map(ColumnSet::encode).collect::<Result<_>>()?;
        encoder.append(columns)?;
        Ok((encoder, Vec::new()))
    };
    let (mut encoder, sets) = pool.run(start).await??;
    if sets.is_empty() {
        return Ok(encoder);
    }
    let columns = try_join_all(sets.into_iter().map(|set| pool.run(move || set.encode()))).await?;
    let append = move || -> Result<FileEncoder> {
        encoder.append(columns.into_iter().collect::<Result<_>>()?)?;
        Ok(encoder)
    };
    pool.run(append).await?
}
