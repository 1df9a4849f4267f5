//! Rows of a primary-key bucket: sorted by key, one per key and file, with sequence number and kind (P7.3–7.5, P9.3).

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, Int8Array, Int64Array, RecordBatch};
use arrow_row::Rows;
use arrow_select::interleave::interleave;

use super::WriteContext;
use super::buffer::size_of_rows;
use super::files::{Files, Marks, RowGroup};
use crate::error::{Error, Result};
use crate::model::{ChangeKind, DataType};
use crate::paimon::{BinaryRow, KeyOrder, TableSchema, value_at};
use crate::runtime::Permit;

/// Arrow bytes that wait before they become files of their own: more make fewer sorted runs, which readers have to merge.
const SORTED_BYTES_MAX: usize = 256 << 20;

/// Bytes of a key that are compared as a number: behind the mark that a key column is not NULL.
const PREFIX: std::ops::Range<usize> = 1..9;

/// What sorting by key needs to know of a table.
#[derive(Debug)]
pub(super) struct Keys {
    order: KeyOrder,
    /// Places of the key columns in the table, and their types.
    places: Vec<(usize, DataType)>,
    /// Files repeat the key columns as `_KEY_…` (`data-file.thin-mode` is off).
    repeated: bool,
}

impl Keys {
    /// # Errors
    /// `Data` when the key names no column; `Unsupported` for a key without order.
    pub(super) fn new(schema: &TableSchema, repeated: bool) -> Result<Self> {
        let names = schema.trimmed_primary_keys();
        let place = |name: &String| {
            let found = schema.fields.iter().enumerate().find(|(_, field)| field.name == *name);
            let (place, field) = found.ok_or_else(|| Error::data(format!("the primary key names no column: `{name}`")))?;
            Ok((place, field.data_type.clone()))
        };
        let places = names.iter().map(place).collect::<Result<Vec<_>>>()?;
        Ok(Self { order: KeyOrder::new(schema, names, &[])?, places, repeated })
    }

    fn columns(&self, rows: &RecordBatch) -> Vec<ArrayRef> {
        self.places.iter().filter_map(|(place, _)| rows.columns().get(*place).cloned()).collect()
    }

    fn key(&self, columns: &[ArrayRef], row: usize) -> Result<BinaryRow> {
        let types: Vec<DataType> = self.places.iter().map(|(_, data_type)| data_type.clone()).collect();
        let value = |(column, data_type): (&ArrayRef, &DataType)| value_at(column, &data_type.kind, row);
        BinaryRow::write(&columns.iter().zip(&types).map(value).collect::<Result<Vec<_>>>()?, &types)
    }
}

/// Rows that wait to be sorted.
#[derive(Debug, Default)]
pub(super) struct Sorter {
    batches: Vec<Held>,
    bytes: usize,
}

/// A batch in the lake's columns.
#[derive(Debug)]
struct Held {
    rows: RecordBatch,
    kinds: Int8Array,
    /// Of its first row; the others count on.
    sequence: i64,
    _permit: Permit,
}

/// What a sorter held.
pub(super) struct Unsorted {
    batches: Vec<Held>,
    bytes: usize,
}

/// A row by its place, with the start of its key as a number.
struct Entry {
    prefix: u64,
    batch: u32,
    row: u32,
}

impl Entry {
    /// For `interleave`.
    const fn place(&self) -> (usize, usize) {
        (self.batch as usize, self.row as usize)
    }
}

const fn kind_of(change: ChangeKind) -> i8 {
    match change {
        ChangeKind::Append | ChangeKind::Insert => 0,
        ChangeKind::UpdateBefore => UPDATE_BEFORE,
        ChangeKind::UpdateAfter => 2,
        ChangeKind::Delete => 3,
    }
}

const UPDATE_BEFORE: i8 = 1;

impl Sorter {
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) const fn is_full(&self) -> bool {
        self.bytes >= SORTED_BYTES_MAX
    }

    /// `sequence` is the number of the first row.
    ///
    /// # Errors
    /// `Internal` when there are more or fewer changes than rows.
    pub(super) fn push(&mut self, rows: RecordBatch, changes: Option<&[ChangeKind]>, sequence: i64, permit: Permit) -> Result<()> {
        let kinds = match changes {
            Some(changes) => changes.iter().map(|change| kind_of(*change)).collect(),
            None => Int8Array::from_value(0, rows.num_rows()),
        };
        if kinds.len() != rows.num_rows() {
            return Err(Error::internal(format!("`{}` changes of `{}` rows", kinds.len(), rows.num_rows())));
        }
        self.bytes += size_of_rows(&rows);
        self.batches.push(Held { rows, kinds, sequence, _permit: permit });
        Ok(())
    }

    pub(super) fn take(&mut self) -> Unsorted {
        let Self { batches, bytes } = std::mem::take(self);
        Unsorted { batches, bytes }
    }
}

impl Unsorted {
    /// Writes all rows, sorted, into `changelog`, and the last one of each key into `data`: files that are closed.
    ///
    /// −U rows are in the changelog only: merging takes the newest row of a key, and a −U is never that one once its +U is there. A
    /// round that ends between the two leaves the old row standing.
    ///
    /// # Errors
    /// As `Files::encode`.
    pub(super) async fn write(self, context: &Arc<WriteContext>, data: &mut Files, changelog: Option<&mut Files>) -> Result<()> {
        let rows: usize = self.batches.iter().map(|held| held.rows.num_rows()).sum();
        if rows == 0 {
            return Ok(());
        }
        let row_bytes = (self.bytes / rows).max(1);
        let encoders = &context.runtime.encoders;
        let (keys, held) = (context.keys()?, Arc::new(self.batches));
        let (sorted, last) = {
            let (keys, held) = (Arc::clone(&keys), Arc::clone(&held));
            encoders.run(move || sort(&keys, &held)).await??
        };
        let (sorted, last) = (Arc::new(sorted), Arc::new(last));
        let every: Arc<Vec<u32>> = Arc::new(match changelog {
            Some(_) => (0..u32::try_from(sorted.len()).unwrap_or(u32::MAX)).collect(),
            None => Vec::new(),
        });
        for (files, picked) in changelog.into_iter().map(|files| (files, &every)).chain([(data, &last)]) {
            let mut from = 0;
            while from < picked.len() {
                let count = files.group_rows().min(files.group_bytes() / row_bytes).max(1).min(picked.len() - from);
                let gather = {
                    let (keys, held, sorted, picked) =
                        (Arc::clone(&keys), Arc::clone(&held), Arc::clone(&sorted), Arc::clone(picked));
                    let arrow = Arc::clone(&context.shape.arrow);
                    move || gather(&keys, &held, &arrow, places(&sorted, picked.get(from..from + count).unwrap_or_default()))
                };
                let (batch, marks) = encoders.run(gather).await??;
                let bytes = size_of_rows(&batch);
                files.encode(RowGroup { batches: vec![batch], rows: count, bytes, marks, permits: vec![] }).await?;
                from += count;
            }
            // What comes later is sorted by itself.
            files.close().await?;
        }
        Ok(())
    }
}

fn places(sorted: &[Entry], picked: &[u32]) -> Vec<(usize, usize)> {
    picked.iter().filter_map(|at| sorted.get(*at as usize)).map(Entry::place).collect()
}

/// All rows by key and arrival, and of each key the last row that is no −U, by its place among them.
fn sort(keys: &Keys, held: &[Held]) -> Result<(Vec<Entry>, Vec<u32>)> {
    let mut rows: Vec<Rows> = Vec::with_capacity(held.len());
    let mut entries = Vec::with_capacity(held.iter().map(|held| held.rows.num_rows()).sum());
    let mut covered = true;
    for (batch, held) in (0_u32..).zip(held) {
        let found = keys.order.rows(&keys.columns(&held.rows))?;
        for (row, key) in (0_u32..).zip(found.iter()) {
            let bytes = key.as_ref();
            covered &= bytes.len() <= PREFIX.end;
            let mut prefix = [0; 8];
            prefix.iter_mut().zip(bytes.get(PREFIX.start..).unwrap_or_default()).for_each(|(to, from)| *to = *from);
            entries.push(Entry { prefix: u64::from_be_bytes(prefix), batch, row });
        }
        rows.push(found);
    }
    let key = |entry: &Entry| rows.get(entry.batch as usize).map(|rows| rows.row(entry.row as usize));
    let compare = |one: &Entry, other: &Entry| {
        let order = one.prefix.cmp(&other.prefix);
        if order.is_eq() && !covered { key(one).cmp(&key(other)) } else { order }
    };
    entries.sort_unstable_by(|one, other| compare(one, other).then_with(|| one.place().cmp(&other.place())));
    let is_data = |entry: &Entry| {
        let kinds = held.get(entry.batch as usize).map(|held| held.kinds.values());
        kinds.and_then(|kinds| kinds.get(entry.row as usize)).is_some_and(|kind| *kind != UPDATE_BEFORE)
    };
    let mut last: Vec<u32> = Vec::new();
    let mut newest: Option<u32> = None;
    for (at, entry) in (0_u32..).zip(&entries) {
        let before = at.checked_sub(1).and_then(|before| entries.get(before as usize));
        if before.is_some_and(|before| compare(before, entry).is_ne()) {
            last.extend(newest.take());
        }
        if is_data(entry) {
            newest = Some(at);
        }
    }
    last.extend(newest);
    Ok((entries, last))
}

/// The rows at `places`, in the file's columns.
fn gather(
    keys: &Keys,
    held: &[Held],
    arrow: &arrow_schema::SchemaRef,
    places: Vec<(usize, usize)>,
) -> Result<(RecordBatch, Marks)> {
    let fault = |source| Error::internal("put sorted rows together").with_source(source);
    let width = held.first().map_or(0, |held| held.rows.num_columns());
    let column = |index: usize| {
        let arrays: Vec<&dyn Array> = held.iter().filter_map(|held| held.rows.columns().get(index)).map(AsRef::as_ref).collect();
        interleave(&arrays, &places).map_err(fault)
    };
    let columns = (0..width).map(column).collect::<Result<Vec<_>>>()?;
    let at = |(batch, row): &(usize, usize)| held.get(*batch).map(|held| (held, *row));
    let sequence = |(held, row): (&Held, usize)| held.sequence.saturating_add(i64::try_from(row).unwrap_or(i64::MAX));
    let sequences: Int64Array = places.iter().filter_map(at).map(sequence).collect();
    let kinds: Int8Array = places.iter().filter_map(at).filter_map(|(held, row)| held.kinds.values().get(row).copied()).collect();
    let key_columns: Vec<ArrayRef> = keys.places.iter().filter_map(|(place, _)| columns.get(*place).cloned()).collect();
    let marks = Marks {
        sequences: (
            sequences.values().iter().min().copied().unwrap_or_default(),
            sequences.values().iter().max().copied().unwrap_or_default(),
        ),
        deletes: i64::try_from(kinds.values().iter().filter(|kind| **kind % 2 == 1).count()).unwrap_or(i64::MAX),
        keys: (keys.key(&key_columns, 0)?, keys.key(&key_columns, places.len().saturating_sub(1))?),
    };
    let repeated = if keys.repeated { key_columns } else { vec![] };
    let system: [ArrayRef; 2] = [Arc::new(sequences), Arc::new(kinds)];
    let all = repeated.into_iter().chain(system).chain(columns).collect();
    Ok((RecordBatch::try_new(Arc::clone(arrow), all).map_err(fault)?, marks))
}
