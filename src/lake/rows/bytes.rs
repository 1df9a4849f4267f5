//! The bytes of a data file that a reader needs: all of a small one and of one on a local disk; of a large one in an object store its
//! footer, and then the chunks of the columns that are wanted, by range.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::buf::Reader;
use bytes::{Buf, Bytes};
use futures::{StreamExt, TryStreamExt, stream};
use parquet::arrow::ProjectionMask;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::file::reader::{ChunkReader, Length};
use parquet::schema::types::SchemaDescriptor;

use crate::error::{Error, Result};
use crate::paimon::pages;
use crate::storage::Store;

/// What is read first of a file's end: most footers fit, and a file of that size is read whole.
pub(super) const TAIL_BYTES: u64 = 64 << 10;
/// Ranges that lie closer to each other are one request.
const GAP_BYTES: u64 = 128 << 10;
/// Ranges of a file in flight.
const AT_ONCE: usize = 4;

/// What the files that are open at once may hold together, beside the largest: as elsewhere, what is larger than all of it is let in.
///
/// No permit of the memory budget: whoever takes the rows waits for that, and would wait for ever for what the files hold.
#[derive(Debug, Clone)]
pub(super) struct Share {
    bytes_max: u64,
    held: Arc<AtomicU64>,
    largest: Arc<AtomicU64>,
}

impl Share {
    pub(super) fn of(bytes_max: u64) -> Self {
        Self { bytes_max, held: Arc::default(), largest: Arc::default() }
    }

    /// Of somebody who has a permit for the one file that is open.
    pub(super) fn any() -> Self {
        Self::of(u64::MAX)
    }

    /// Takes `bytes`, until what it gives is dropped.
    pub(super) fn take(&self, bytes: u64) -> Result<Held> {
        let held = self.held.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let taken = Held { bytes, of: Arc::clone(&self.held) };
        let largest = self.largest.fetch_max(bytes, Ordering::Relaxed).max(bytes);
        if held.saturating_sub(largest) > self.bytes_max {
            return Err(Error::invalid(format!(
                "files that have to be merged take {held} bytes at once, and {} may be taken beside the largest",
                self.bytes_max
            ))
            .with_hint("raise `memory.limit`, ask for fewer columns, or compact the bucket"));
        }
        Ok(taken)
    }
}

/// Bytes of a [`Share`].
#[derive(Debug)]
pub(super) struct Held {
    bytes: u64,
    of: Arc<AtomicU64>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Parts of a file, by where they begin. A part that begins later reaches further.
#[derive(Debug, Clone)]
pub(super) struct FileBytes {
    size: u64,
    parts: Arc<(BTreeMap<u64, Bytes>, Held)>,
}

impl FileBytes {
    pub(super) fn whole(bytes: Bytes, held: Held) -> Self {
        Self { size: bytes.len() as u64, parts: Arc::new((BTreeMap::from([(0, bytes)]), held)) }
    }

    /// What is there from `start` on, to the end of its part.
    fn rest(&self, start: u64) -> parquet::errors::Result<Bytes> {
        let absent = || ParquetError::EOF(format!("nothing was read at {start} of {} bytes", self.size));
        let (begin, part) = self.parts.0.range(..=start).next_back().ok_or_else(absent)?;
        let skipped = usize::try_from(start - begin).ok().filter(|skipped| *skipped <= part.len()).ok_or_else(absent)?;
        Ok(part.slice(skipped..))
    }
}

impl Length for FileBytes {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for FileBytes {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(self.rest(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let there = self.rest(start)?;
        if there.len() < length {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} are not there, of {} bytes", self.size)));
        }
        Ok(there.slice(..length))
    }
}

/// Reads the footer of a file of `size` bytes, `tail` bytes at first, and the chunks of the columns that `wanted` picks.
pub(super) async fn by_range(
    store: &Store,
    path: &str,
    (size, tail): (u64, u64),
    share: &Share,
    wanted: impl Fn(&SchemaDescriptor) -> ProjectionMask,
) -> Result<FileBytes> {
    let mut start = size.saturating_sub(tail);
    let mut end = exactly(store, path, start, size).await?;
    let footer = loop {
        pages::check_footer(&end).map_err(|error| error.context("read parquet"))?;
        let mut reader = ParquetMetaDataReader::new();
        match reader.try_parse_sized(&end, size).and_then(|()| reader.finish()) {
            Ok(footer) => break footer,
            Err(ParquetError::NeedMoreData(needed)) if needed as u64 <= size && size - (needed as u64) < start => {
                start = size - needed as u64;
                end = exactly(store, path, start, size).await?;
            }
            Err(source) => return Err(Error::data(format!("read the footer of {size} bytes of parquet")).with_source(source)),
        }
    };
    let ranges = ranges(&footer, &wanted(footer.file_metadata().schema_descr()), (start, size))?;
    let held = share.take(ranges.iter().map(|(from, to)| to - from).sum::<u64>() + (size - start))?;
    let read = ranges.into_iter().map(|(from, to)| async move { Ok::<_, Error>((from, exactly(store, path, from, to).await?)) });
    let mut parts: BTreeMap<u64, Bytes> = stream::iter(read).buffer_unordered(AT_ONCE).try_collect().await?;
    parts.insert(start, end);
    Ok(FileBytes { size, parts: Arc::new((parts, held)) })
}

/// Where the wanted chunks lie, before `tail`, from which on everything is there.
fn ranges(footer: &ParquetMetaData, wanted: &ProjectionMask, (tail, size): (u64, u64)) -> Result<Vec<(u64, u64)>> {
    let mut found = Vec::new();
    for group in footer.row_groups() {
        let chunks = group.columns().iter().enumerate().filter(|(leaf, _)| wanted.leaf_included(*leaf));
        for (_, chunk) in chunks {
            let start = u64::try_from(chunk.dictionary_page_offset().unwrap_or_else(|| chunk.data_page_offset())).ok();
            let end = start.and_then(|start| start.checked_add(u64::try_from(chunk.compressed_size()).ok()?));
            let (Some(start), Some(end)) = (start, end.filter(|end| *end <= size)) else {
                return Err(Error::data("a chunk of the parquet lies nowhere"));
            };
            if start < tail {
                // To its end, also where that lies behind `tail`: a chunk has to be in one part.
                found.push((start, end));
            }
        }
    }
    found.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (start, end) in found {
        match joined.last_mut() {
            Some((_, last)) if start <= last.saturating_add(GAP_BYTES) => *last = end.max(*last),
            _ => joined.push((start, end)),
        }
    }
    Ok(joined)
}

async fn exactly(store: &Store, path: &str, start: u64, end: u64) -> Result<Bytes> {
    if start == end {
        return Ok(Bytes::new());
    }
    let bytes = store.get_range(path, start, end).await?;
    match bytes.len() as u64 == end - start {
        true => Ok(bytes),
        false => Err(Error::data(format!(
            "{} bytes at {start} instead of {}: the file is shorter than its manifest says",
            bytes.len(),
            end - start
        ))),
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{Int64Array, RecordBatch, StringArray};
    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use parquet::file::properties::WriterProperties;

    use super::*;
    use crate::error::Kind;

    /// `id`, `words` (long, random), `more`, in groups of 1000 rows.
    fn file() -> Bytes {
        let rng = crate::runtime::Rng::from_seed(1);
        let words = StringArray::from_iter_values((0..5000).map(|_| (0..8).map(|_| rng.uuid().to_string()).collect::<String>()));
        let columns: [(&str, arrow_array::ArrayRef); 3] = [
            ("id", Arc::new(Int64Array::from_iter_values(0..5000))),
            ("words", Arc::new(words)),
            ("more", Arc::new(Int64Array::from_iter_values((0..5000).map(|id| id * 3)))),
        ];
        let rows = RecordBatch::try_from_iter(columns).unwrap();
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(1000)).build();
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, rows.schema(), Some(properties)).unwrap();
        writer.write(&rows).unwrap();
        writer.close().unwrap();
        bytes.into()
    }

    fn rows(bytes: FileBytes, mask: ProjectionMask) -> Vec<RecordBatch> {
        let builder = ParquetRecordBatchReaderBuilder::try_new(bytes).unwrap();
        builder.with_projection(mask).build().unwrap().map(|batch| batch.unwrap()).collect()
    }

    #[tokio::test]
    async fn of_a_large_file_only_footer_and_wanted_columns_are_read_and_rows_are_the_same() {
        let (store, whole) = (Store::in_memory(), file());
        store.put("f", whole.clone()).await.unwrap();
        let size = whole.len() as u64;
        // A tail too short for the length of the footer, for the footer, long enough, and all of it.
        for tail in [8, 100, 16 << 10, 400 << 10, size, 2 * size] {
            for picked in [vec![0], vec![2], vec![0, 2], vec![1], vec![0, 1, 2], vec![]] {
                let mask = |schema: &SchemaDescriptor| ProjectionMask::roots(schema, picked.clone());
                let read = by_range(&store, "f", (size, tail), &Share::any(), mask).await.unwrap();
                let bytes: usize = read.parts.0.values().map(Bytes::len).sum();
                if !picked.contains(&1) && tail < 100 << 10 {
                    assert!(bytes as u64 * 4 < size, "{bytes} of {size} for {picked:?}, tail {tail}");
                }
                let schema = ParquetRecordBatchReaderBuilder::try_new(whole.clone()).unwrap();
                let mask = mask(schema.parquet_schema());
                assert_eq!(
                    rows(read, mask.clone()),
                    rows(FileBytes::whole(whole.clone(), Share::any().take(0).unwrap()), mask),
                    "{picked:?}, tail {tail}"
                );
            }
        }
        let ids = |batch: &RecordBatch| batch.column(0).as_primitive::<Int64Type>().values().to_vec();
        let read = by_range(&store, "f", (size, 100), &Share::any(), |schema| ProjectionMask::roots(schema, [0])).await.unwrap();
        let schema = ParquetRecordBatchReaderBuilder::try_new(whole).unwrap();
        let read = rows(read, ProjectionMask::roots(schema.parquet_schema(), [0]));
        assert_eq!(read.iter().flat_map(ids).collect::<Vec<_>>(), Vec::from_iter(0..5000));
    }

    #[tokio::test]
    async fn a_file_that_is_not_what_its_manifest_says_is_refused() {
        let (store, whole) = (Store::in_memory(), file());
        let size = whole.len() as u64;
        store.put("f", whole.clone()).await.unwrap();
        let mut torn = whole.to_vec();
        let end = torn.len();
        torn[end - 8..end - 4].copy_from_slice(&u32::MAX.to_le_bytes());
        store.put("torn", torn.into()).await.unwrap();
        store.put("noise", vec![7; 300_000].into()).await.unwrap();
        let first = |schema: &SchemaDescriptor| ProjectionMask::roots(schema, [0]);
        for (path, size) in [("f", size + 1), ("f", size - 1), ("torn", size), ("noise", 300_000), ("none", size)] {
            let error = by_range(&store, path, (size, 100), &Share::any(), first).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Data, "{path} {size}: {}", error.chain());
        }
    }

    #[tokio::test]
    async fn what_open_files_hold_is_bounded_and_given_back() {
        let (store, whole) = (Store::in_memory(), file());
        store.put("f", whole.clone()).await.unwrap();
        let size = whole.len() as u64;
        let first = |schema: &SchemaDescriptor| ProjectionMask::roots(schema, [0]);
        let all = |schema: &SchemaDescriptor| ProjectionMask::leaves(schema, 0..schema.num_columns());
        let share = Share::of(size / 2);
        let few = by_range(&store, "f", (size, 100), &share, first).await.unwrap();
        let held: usize = few.parts.0.values().map(Bytes::len).sum();
        assert_eq!(share.held.load(Ordering::Relaxed), held as u64, "what is held is what is counted");
        drop(few);
        let alone = by_range(&store, "f", (size, 100), &share, all).await.unwrap();
        let held = share.held.load(Ordering::Relaxed);
        let error = by_range(&store, "f", (size, 100), &share, all).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.hint().unwrap().contains("memory.limit"), "{:?}", error.hint());
        assert_eq!(share.held.load(Ordering::Relaxed), held, "what was refused is not counted");
        drop(alone);
        assert_eq!(share.held.load(Ordering::Relaxed), 0);
        by_range(&store, "f", (size, 100), &share, all).await.unwrap();
    }
}
