//! Rows of a primary-key bucket: sorted by key, one per key and file, with sequence number and kind (P7.3–7.5, P9.3).

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, Int64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, Int8Array, Int64Array, RecordBatch};
use arrow_buffer::BooleanBuffer;
use arrow_schema::SchemaRef;
use arrow_select::filter::filter_record_batch;
use arrow_select::interleave::interleave;

use super::buffer::{Buffer, Taken, size_of_rows};
use super::files::{Files, Marks, RowGroup};
use super::order::{Entry, Keys, sort};
use super::{FileKind, WriteContext};
use crate::error::{Error, Result};
use crate::model::ChangeKind;
use crate::paimon::BinaryRow;
use crate::runtime::{Permit, Runtime};

/// Arrow bytes that wait before they become files of their own: more make fewer sorted runs, which readers have to merge. At most
/// half of the budget, and of what is set aside for sorting them, so that one large bucket does not wait for itself.
const SORTED_BYTES_MAX: usize = 256 << 20;

/// Rows that follow each other in the input are handed on without a copy if there are so many of them on average.
const RUN_ROWS_MIN: usize = 128;

const fn kind_of(change: ChangeKind) -> i8 {
    match change {
        ChangeKind::Append | ChangeKind::Insert => 0,
        ChangeKind::UpdateBefore => 1,
        ChangeKind::UpdateAfter => 2,
        ChangeKind::Delete => 3,
    }
}

/// Rows that wait to be sorted, each with its kind in a column behind those of the table.
#[derive(Debug, Default)]
pub(super) struct Sorter {
    buffer: Buffer,
    /// Sequence number of the first row; the others count on.
    sequence: i64,
    /// What sorting them takes beside them.
    sort_bytes: usize,
}

impl Sorter {
    pub(super) const fn bytes(&self) -> usize {
        self.buffer.bytes
    }

    /// Whether the rows should become files.
    pub(super) fn is_full(&self, runtime: &Runtime) -> bool {
        self.buffer.bytes >= SORTED_BYTES_MAX.min(runtime.budget.total() / 2) || self.sort_bytes >= runtime.aside.sorts.total() / 2
    }

    /// `sequence` is the number of the first row, which follows the last one that is there.
    ///
    /// # Errors
    /// `Internal` when there are more or fewer changes than rows.
    pub(super) fn push(
        &mut self,
        rows: &RecordBatch,
        changes: Option<&[ChangeKind]>,
        sequence: i64,
        keys: &Keys,
        permit: Permit,
    ) -> Result<()> {
        let kinds: Int8Array = match changes {
            Some(changes) => changes.iter().map(|change| kind_of(*change)).collect::<Vec<_>>().into(),
            None => vec![0; rows.num_rows()].into(),
        };
        if kinds.len() != rows.num_rows() {
            return Err(Error::internal(format!("`{}` changes of `{}` rows", kinds.len(), rows.num_rows())));
        }
        if self.buffer.rows == 0 {
            self.sequence = sequence;
        }
        self.sort_bytes += keys.sort_bytes(rows);
        let mut columns = rows.columns().to_vec();
        columns.push(Arc::new(kinds));
        self.buffer.push(RecordBatch::try_new(Arc::clone(&keys.with_kind), columns).map_err(fault)?, permit)
    }

    pub(super) fn take(&mut self) -> Unsorted {
        let Taken { batches, permits, rows, bytes } = self.buffer.take(usize::MAX, usize::MAX);
        let sort_bytes = std::mem::take(&mut self.sort_bytes);
        Unsorted { batches, permits, rows, bytes, sequence: self.sequence, sort_bytes }
    }
}

/// What a sorter held.
pub(super) struct Unsorted {
    batches: Vec<RecordBatch>,
    permits: Vec<Permit>,
    rows: usize,
    bytes: usize,
    sequence: i64,
    sort_bytes: usize,
}

impl Unsorted {
    /// Writes all rows, sorted, into `changelog`, and the newest one of each key into `data`: files that are closed.
    ///
    /// −U rows are in the changelog only: merging takes the newest row of a key, and a −U is never that one once its +U is there. A
    /// round that ends between the two leaves the old row standing. With `sequence.field` a −U may be the newest, as in Java.
    ///
    /// # Errors
    /// As `Files::encode`.
    pub(super) async fn write(
        self,
        context: &Arc<WriteContext>,
        data: &mut Files,
        mut changelog: Option<&mut Files>,
    ) -> Result<()> {
        let Self { batches, permits, rows, bytes, sequence, sort_bytes } = self;
        if rows == 0 {
            return Ok(());
        }
        let row_bytes = (bytes / rows).max(1);
        let encoders = &context.runtime.encoders;
        let aside = &context.runtime.aside;
        // What the rows' permits do not cover. First keys and places; then places, and what is encoded and not sent yet.
        let unsent = |files: &Files| files.encoded_bytes(bytes).min(context.options.part_bytes);
        let kept = rows * size_of::<Entry>() + unsent(data) + changelog.as_deref().map_or(0, unsent);
        let mut sorting = aside.sorts.acquire(sort_bytes.max(kept)).await;
        let (keys, batches) = (context.keys()?, Arc::new(batches));
        let sorted = {
            let (keys, batches, log) = (Arc::clone(&keys), Arc::clone(&batches), changelog.is_some());
            encoders.run(move || sort(&keys, &batches, log)).await??
        };
        sorting.shrink(kept);
        let sorted = Arc::new(sorted);
        // Where each key comes once, data and changelog are the same rows: encoded once, if also in the same shape.
        let twice = sorted.newest.is_none() && context.changelog.as_ref().is_some_and(|shape| shape.is_as(&context.shape));
        let kinds: &[FileKind] = if twice { &[FileKind::Changelog, FileKind::Data] } else { &[FileKind::Data] };
        let log = changelog.is_some() && !twice;
        let group_bytes_max = (aside.encodes.total() / if log { 4 } else { 2 }).max(1);
        let mut from = 0;
        while from < sorted.entries.len() {
            let fits = |files: &Files| files.group_rows().min(files.group_bytes().min(group_bytes_max) / row_bytes).max(1);
            let count = changelog.as_deref().map_or(usize::MAX, &fits).min(fits(data)).min(sorted.entries.len() - from);
            let group_bytes = count * row_bytes;
            // The rows in order, and their encoding.
            let needed = group_bytes + data.encode_bytes(group_bytes);
            let mut encoding = aside.encodes.acquire(if log { needed * 2 } else { needed }).await;
            let gather = {
                let (keys, batches, sorted) = (Arc::clone(&keys), Arc::clone(&batches), Arc::clone(&sorted));
                let arrow = Arc::clone(&context.shape.arrow);
                move || {
                    let every =
                        gather(&keys, &batches, &arrow, sequence, sorted.entries.get(from..from + count).unwrap_or_default())?;
                    let newest = match &sorted.newest {
                        Some(newest) => filter(&every, &newest.slice(from, count))?,
                        None => every.clone(),
                    };
                    let groups = (if log { Some(group(&keys, every)?) } else { None }, group(&keys, newest)?);
                    Ok::<_, Error>(groups)
                }
            };
            let (log_group, data_group) = encoders.run(gather).await??;
            if let (Some(files), Some(group)) = (changelog.as_deref_mut(), log_group) {
                let half = encoding.bytes() / 2;
                files.encode(RowGroup { aside: Some(encoding.split(half)), ..group }).await?;
            }
            if data_group.rows > 0 {
                data.encode_as(RowGroup { aside: Some(encoding), ..data_group }, kinds).await?;
            }
            from += count;
        }
        // What comes later is sorted by itself.
        if let Some(files) = changelog.as_deref_mut() {
            files.close().await?;
        }
        data.close().await?;
        if let Some(files) = changelog {
            files.adopt(data);
        }
        drop((permits, sorting));
        Ok(())
    }
}

fn fault(source: arrow_schema::ArrowError) -> Error {
    Error::internal("put sorted rows together").with_source(source)
}

/// The rows of `entries` in the file's columns: a batch, or one for each run of rows that follow each other already.
pub(super) fn gather(
    keys: &Keys,
    batches: &[RecordBatch],
    arrow: &SchemaRef,
    sequence: i64,
    entries: &[Entry],
) -> Result<Vec<RecordBatch>> {
    let firsts: Vec<i64> = batches
        .iter()
        .scan(sequence, |next, batch| {
            let first = *next;
            *next = first.saturating_add(i64::try_from(batch.num_rows()).unwrap_or(i64::MAX));
            Some(first)
        })
        .collect();
    let number = |entry: &Entry| firsts.get(entry.batch as usize).map_or(0, |first| first.saturating_add(i64::from(entry.row)));
    let file_batch = |columns: Vec<ArrayRef>, sequences: Int64Array| {
        let (columns, kinds) = columns.split_at(columns.len().saturating_sub(1));
        let repeated = if keys.repeated { keys.columns(columns) } else { vec![] };
        let system = [&[Arc::new(sequences) as ArrayRef], kinds].concat();
        RecordBatch::try_new(Arc::clone(arrow), [repeated, system, columns.to_vec()].concat()).map_err(fault)
    };
    let follows = |one: &Entry, other: &Entry| one.batch == other.batch && one.row + 1 == other.row;
    if entries.chunk_by(follows).count() * RUN_ROWS_MIN <= entries.len() {
        let slice = |run: &[Entry]| {
            let first = run.first().ok_or_else(|| Error::internal("a run without rows"))?;
            let batch = batches.get(first.batch as usize).ok_or_else(|| Error::internal("a row without batch"))?;
            file_batch(batch.slice(first.row as usize, run.len()).columns().to_vec(), run.iter().map(number).collect())
        };
        return entries.chunk_by(follows).map(slice).collect();
    }
    let places: Vec<(usize, usize)> = entries.iter().map(Entry::place).collect();
    let width = batches.first().map_or(0, RecordBatch::num_columns);
    let column = |index: usize| {
        let arrays: Vec<&dyn Array> = batches.iter().filter_map(|batch| batch.columns().get(index)).map(AsRef::as_ref).collect();
        interleave(&arrays, &places).map_err(fault)
    };
    let columns = (0..width).map(column).collect::<Result<Vec<_>>>()?;
    Ok(vec![file_batch(columns, entries.iter().map(number).collect())?])
}

/// The rows that `picked` says, without empty batches.
fn filter(batches: &[RecordBatch], picked: &BooleanBuffer) -> Result<Vec<RecordBatch>> {
    let mut from = 0;
    let mut kept = Vec::with_capacity(batches.len());
    for batch in batches {
        let mask = BooleanArray::new(picked.slice(from, batch.num_rows()), None);
        from += batch.num_rows();
        match mask.true_count() {
            0 => {}
            all if all == batch.num_rows() => kept.push(batch.clone()),
            _ => kept.push(filter_record_batch(batch, &mask).map_err(fault)?),
        }
    }
    Ok(kept)
}

/// A row group of batches in the file's columns, with what its rows add to the file's metadata.
fn group(keys: &Keys, batches: Vec<RecordBatch>) -> Result<RowGroup> {
    let (sequence_place, kind_place) = keys.system_places();
    let column = |batch: &RecordBatch, place: usize| {
        batch.columns().get(place).cloned().ok_or_else(|| Error::internal("a file without its system columns"))
    };
    let (mut sequences, mut deletes) = ((i64::MAX, i64::MIN), 0_usize);
    for batch in &batches {
        let numbers = column(batch, sequence_place)?;
        for number in numbers.as_primitive::<Int64Type>().values() {
            sequences = (sequences.0.min(*number), sequences.1.max(*number));
        }
        let kinds = column(batch, kind_place)?;
        deletes += kinds.as_primitive::<Int8Type>().values().iter().filter(|kind| **kind % 2 == 1).count();
    }
    let key = |batch: Option<&RecordBatch>, row: fn(usize) -> usize| match batch {
        Some(batch) => keys.key(batch.columns(), row(batch.num_rows())),
        None => Ok(BinaryRow::empty()),
    };
    let marks = Marks {
        sequences,
        deletes: i64::try_from(deletes).unwrap_or(i64::MAX),
        keys: (key(batches.first(), |_| 0)?, key(batches.last(), |rows| rows.saturating_sub(1))?),
    };
    let (rows, bytes) = (batches.iter().map(RecordBatch::num_rows).sum(), batches.iter().map(size_of_rows).sum());
    Ok(RowGroup { batches, rows, bytes, marks, permits: vec![], aside: None })
}
