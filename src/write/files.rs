//! The files of a bucket, one open at a time: row groups in, uploads and metadata out.

use std::sync::Arc;

use arrow_array::RecordBatch;
use futures::future::try_join_all;

use super::bounds::Bounds;
use super::bucket::BucketTarget;
use super::encode::{ColumnSet, FileEncoder};
use super::{FileKind, WriteContext};
use crate::error::{Error, Result};
use crate::paimon::{BinaryRow, DataFile, EntryKind, ManifestEntry};
use crate::runtime::Permit;
use crate::storage::Upload;

/// Row groups of fewer Arrow bytes are encoded by one thread: handing them out costs more than it brings.
const PARALLEL_BYTES: usize = 4 << 20;
/// A file this full (in hundredths of the target size) is closed rather than topped up with a small row group.
const FULL_PERCENT: u64 = 90;

/// What a row group's rows add to the metadata of their file.
#[derive(Debug, Clone)]
pub(super) struct Marks {
    /// Smallest and largest sequence number.
    pub(super) sequences: (i64, i64),
    /// −U and −D rows.
    pub(super) deletes: i64,
    /// First and last key; rows of no columns on append tables.
    pub(super) keys: (BinaryRow, BinaryRow),
}

impl Marks {
    /// Of this row group, then `next`.
    fn and(self, next: Self) -> Self {
        Self {
            sequences: (self.sequences.0.min(next.sequences.0), self.sequences.1.max(next.sequences.1)),
            deletes: self.deletes + next.deletes,
            keys: (self.keys.0, next.keys.1),
        }
    }
}

/// Rows that are to be encoded together.
pub(super) struct RowGroup {
    /// In the columns of the file.
    pub(super) batches: Vec<RecordBatch>,
    pub(super) rows: usize,
    /// Arrow bytes.
    pub(super) bytes: usize,
    pub(super) marks: Marks,
    /// Given back when the rows are encoded, but for what their file needs until it is sent.
    pub(super) permits: Vec<Permit>,
    /// What is set aside for encoding them, where that is taken already.
    pub(super) aside: Option<Permit>,
}

/// A file that waits for its next row group.
struct OpenFile {
    /// Where its bytes go: one place, or two where a changelog has the same rows.
    places: Vec<Place>,
    /// Absent only while it is on an encoder thread, and after a failure there.
    encoder: Option<FileEncoder>,
    rows: u64,
    marks: Option<Marks>,
    /// Covers what is encoded and not sent yet; on primary-key tables the sorter does.
    held: Option<Permit>,
}

struct Place {
    kind: FileKind,
    path: String,
    upload: Option<Upload>,
}

impl std::fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let paths: Vec<&str> = self.places.iter().map(|place| place.path.as_str()).collect();
        f.debug_struct("OpenFile").field("paths", &paths).field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// Files of one kind in one bucket, of about the table's target size each.
#[derive(Debug)]
pub(super) struct Files {
    context: Arc<WriteContext>,
    kind: FileKind,
    folder: String,
    target: BucketTarget,
    open: Option<OpenFile>,
    /// Encoded bytes per Arrow byte, in thousandths, as far as this bucket has shown.
    permille: u64,
    done: Vec<(FileKind, ManifestEntry)>,
    /// Paths of the files that are there or may be.
    written: Vec<String>,
}

impl Files {
    pub(super) const fn new(context: Arc<WriteContext>, kind: FileKind, folder: String, target: BucketTarget) -> Self {
        Self { context, kind, folder, target, open: None, permille: 500, done: Vec::new(), written: Vec::new() }
    }

    fn open_bytes(&self) -> u64 {
        self.open.as_ref().and_then(|file| file.encoder.as_ref()).map_or(0, FileEncoder::bytes)
    }

    /// Arrow bytes of the next row group: no more than what fills the open file, as far as one can tell.
    pub(super) fn group_bytes(&self) -> usize {
        let missing = self.context.table.target_file_bytes.saturating_sub(self.open_bytes());
        let missing = usize::try_from(missing.saturating_mul(1000) / self.permille.max(1)).unwrap_or(usize::MAX);
        // So that some buckets at once have room for one.
        let share = self.context.runtime.budget.total() / 4;
        missing.clamp(1, self.context.options.row_group_bytes.min(share).max(1))
    }

    /// What encoding takes beside the rows, about: the columns, and their copy in the file.
    pub(super) fn encode_bytes(&self, bytes: usize) -> usize {
        self.encoded_bytes(bytes).saturating_mul(2)
    }

    /// What becomes of so many Arrow bytes, as far as one can tell.
    pub(super) fn encoded_bytes(&self, bytes: usize) -> usize {
        let permille = usize::try_from(self.permille).unwrap_or(usize::MAX);
        bytes.saturating_mul(permille.max(100)) / 1000
    }

    /// Bytes that are encoded and not sent yet.
    pub(super) fn unsent(&self) -> usize {
        self.open.as_ref().and_then(|file| file.encoder.as_ref()).map_or(0, FileEncoder::unsent)
    }

    pub(super) fn group_rows(&self) -> usize {
        let missing = self.context.table.target_file_rows.saturating_sub(self.open.as_ref().map_or(0, |file| file.rows));
        usize::try_from(missing).unwrap_or(usize::MAX).clamp(1, self.context.options.row_group_rows)
    }

    /// Encodes a row group into the open file, or a new one, and closes the file if it is full.
    ///
    /// # Errors
    /// `Data` names a column whose values do not fit it; `Unavailable` when the store fails.
    pub(super) async fn encode(&mut self, group: RowGroup) -> Result<()> {
        self.encode_as(group, &[self.kind]).await
    }

    /// The same, for a file of several kinds: the same bytes, each with a name of its own. Close it before a group of other kinds.
    ///
    /// # Errors
    /// As [`Files::encode`].
    pub(super) async fn encode_as(&mut self, group: RowGroup, kinds: &[FileKind]) -> Result<()> {
        let RowGroup { batches, rows, bytes, marks, permits, aside } = group;
        if self.open.is_none() {
            let place = |kind: &FileKind| {
                let path = format!("{}/{}", self.folder, self.context.next_file_name(*kind));
                Place { kind: *kind, path, upload: None }
            };
            let places = kinds.iter().map(place).collect();
            self.open = Some(OpenFile { places, encoder: None, rows: 0, marks: None, held: None });
        }
        let before = self.open_bytes();
        let aside = match aside {
            Some(aside) => aside,
            None => self.context.runtime.aside.encodes.acquire(self.encode_bytes(bytes)).await,
        };
        let encoder = self.open.as_mut().and_then(|file| file.encoder.take());
        let encoder = encode_group(&self.context, self.kind, encoder, batches, bytes).await?;
        drop(aside);
        let size = encoder.bytes();
        self.permille = (size - before).saturating_mul(1000) / u64::try_from(bytes).unwrap_or(u64::MAX).max(1);
        let Some(file) = &mut self.open else { return Err(Error::internal("the open file is gone")) };
        let unsent = file.encoder.insert(encoder).unsent();
        file.rows += rows as u64;
        file.marks = Some(match file.marks.take() {
            Some(before) => before.and(marks),
            None => marks,
        });
        // The rows' memory is free now, but for what they have become. So nobody waits for memory to send a file.
        file.held = file.held.take().into_iter().chain(permits).reduce(|mut all, more| {
            all.merge(more);
            all
        });
        if let Some(held) = &mut file.held {
            held.shrink(unsent);
        }
        let full = size.saturating_mul(100) >= self.context.table.target_file_bytes.saturating_mul(FULL_PERCENT);
        if full || file.rows >= self.context.table.target_file_rows {
            return self.close().await;
        }
        if unsent < self.context.options.part_bytes { Ok(()) } else { self.send().await }
    }

    /// Gives memory back under pressure: sends what is encoded, or ends the file where the store takes no parts so small.
    ///
    /// # Errors
    /// `Unavailable` when the store fails.
    pub(super) async fn relieve(&mut self) -> Result<()> {
        if self.unsent() < self.context.store.part_bytes_min() { self.close().await } else { self.send().await }
    }

    /// Sends what is encoded as a part.
    async fn send(&mut self) -> Result<()> {
        let Some(OpenFile { places, encoder: Some(encoder), held, .. }) = &mut self.open else { return Ok(()) };
        let part = encoder.take_bytes()?;
        let permit = Arc::new(match held.take() {
            Some(held) => held,
            None => self.context.runtime.aside.uploads.acquire(part.len()).await,
        });
        for place in places {
            if place.upload.is_none() {
                place.upload = Some(self.context.store.upload(&place.path).await?);
            }
            if let Some(upload) = &mut place.upload {
                upload.part(part.clone(), Some(Arc::clone(&permit))).await?;
            }
        }
        Ok(())
    }

    /// Ends the open file, if there is one.
    ///
    /// # Errors
    /// `Unavailable` when the store fails.
    pub(super) async fn close(&mut self) -> Result<()> {
        let Some(OpenFile { places, encoder: Some(encoder), rows, marks: Some(marks), held }) = self.open.take() else {
            return Ok(());
        };
        let (rest, bounds) = encoder.close()?;
        let permit = Arc::new(match held {
            Some(held) => held,
            None => self.context.runtime.aside.uploads.acquire(rest.len()).await,
        });
        for Place { kind, path, upload } in places {
            // From here on the file may be there, whatever is answered.
            self.written.push(path.clone());
            let size = match upload {
                None => {
                    let size = rest.len() as u64;
                    self.context.store.put(&path, rest.clone()).await?;
                    size
                }
                Some(mut upload) => {
                    upload.part(rest.clone(), Some(Arc::clone(&permit))).await?;
                    upload.finish().await?
                }
            };
            let entry = self.entry(&path, size, rows, marks.clone(), &bounds)?;
            self.done.push((kind, entry));
        }
        Ok(())
    }

    fn entry(&self, path: &str, size: u64, rows: u64, marks: Marks, bounds: &[Bounds]) -> Result<ManifestEntry> {
        let name = path.rsplit_once('/').map_or(path, |(_, name)| name).to_owned();
        let stats = self.context.shape(self.kind).stats(bounds, self.context.table.stats_dense)?;
        let file = DataFile {
            file_name: name,
            file_size: i64::try_from(size).unwrap_or(i64::MAX),
            row_count: i64::try_from(rows).unwrap_or(i64::MAX),
            min_key: marks.keys.0,
            max_key: marks.keys.1,
            key_stats: stats.keys,
            value_stats: stats.values,
            min_sequence_number: marks.sequences.0,
            max_sequence_number: marks.sequences.1,
            schema_id: self.context.schema.id,
            level: 0,
            extra_files: Vec::new(),
            creation_time_ms: Some(self.context.runtime.clock.now_ms()),
            delete_row_count: Some(marks.deletes),
            embedded_file_index: None,
            file_source: Some(0),
            value_stats_cols: stats.value_columns,
            external_path: None,
            first_row_id: None,
            write_cols: None,
        };
        Ok(ManifestEntry {
            kind: EntryKind::Add,
            partition: self.target.partition.clone(),
            bucket: self.target.bucket,
            total_buckets: self.target.total_buckets,
            file,
        })
    }

    /// The files, in the order written; none is open.
    pub(super) fn take(&mut self) -> Vec<ManifestEntry> {
        std::mem::take(&mut self.done).into_iter().map(|(_, entry)| entry).collect()
    }

    /// Takes over the files of its kind that `other` has made beside its own. Their bytes stay `other`'s to delete.
    pub(super) fn adopt(&mut self, other: &mut Self) {
        self.done.extend(other.done.extract_if(.., |(kind, _)| *kind == self.kind));
    }

    /// Gives up and deletes what was written.
    ///
    /// # Errors
    /// `Unavailable` when some file could not be deleted; the others are.
    pub(super) async fn abort(self) -> Result<()> {
        let mut aborted = Ok(());
        for upload in self.open.into_iter().flat_map(|file| file.places).filter_map(|place| place.upload) {
            aborted = aborted.and(upload.abort().await);
        }
        self.context.delete(self.written).await.and(aborted)
    }
}

/// Encodes `batches` as a row group; a file starts when there is no `encoder`.
///
/// No method: a writer that is borrowed is not `Send` (uploads are not `Sync`), and rounds run on any thread.
async fn encode_group(
    context: &WriteContext,
    kind: FileKind,
    encoder: Option<FileEncoder>,
    batches: Vec<RecordBatch>,
    bytes: usize,
) -> Result<FileEncoder> {
    let pool = &context.runtime.encoders;
    let count = if bytes < PARALLEL_BYTES { 1 } else { pool.count() };
    let shape = Arc::clone(context.shape(kind));
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
