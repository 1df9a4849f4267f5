//! The order of the rows of a primary-key bucket: by key, then by what decides between versions (P7.3, P7.4).

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType,
};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_buffer::BooleanBuffer;
use arrow_row::Rows;
use arrow_schema::{DataType as ArrowType, Field as ArrowField, Schema as ArrowSchema, SchemaRef, TimeUnit};

use super::nested;
use crate::error::{Error, Result};
use crate::model::{ChangeKind, DataType};
use crate::paimon::options::TableOptions;

use crate::paimon::{BinaryRow, KeyOrder, TableSchema, lake_arrow_schema, value_at};

/// What sorting by key needs to know of a table.
#[derive(Debug)]
pub(super) struct Keys {
    order: KeyOrder,
    /// The columns of `sequence.field`, if there are any.
    versions: Option<KeyOrder>,
    /// Places of the key columns and of the version columns in the table.
    places: Vec<usize>,
    version_places: Vec<usize>,
    types: Vec<DataType>,
    /// Files repeat the key columns as `_KEY_…` (`data-file.thin-mode` is off).
    pub(super) repeated: bool,
    /// Rows that are left out: −U, −D (`ignore-update-before`, `ignore-delete`).
    ignored: [bool; 2],
    /// The table's columns, and a row's kind.
    pub(super) with_kind: SchemaRef,
}

impl Keys {
    /// # Errors
    /// `Data` when the key names no column; `Unsupported` for a key without order.
    pub(super) fn new(schema: &TableSchema, options: &TableOptions) -> Result<Self> {
        let names = schema.trimmed_primary_keys();
        let place = |name: &String| {
            let found = schema.fields.iter().position(|field| field.name == *name);
            found.ok_or_else(|| Error::data(format!("the primary key names no column: `{name}`")))
        };
        let versions = &options.sequence_fields;
        let mut fields = lake_arrow_schema(schema)?.fields().to_vec();
        fields.push(Arc::new(ArrowField::new("_VALUE_KIND", ArrowType::Int8, false)));
        Ok(Self {
            places: names.iter().map(place).collect::<Result<_>>()?,
            version_places: versions.iter().map(place).collect::<Result<_>>()?,
            types: schema.types_of(&names)?,
            order: KeyOrder::new(schema, names, &[])?,
            versions: (!versions.is_empty()).then(|| KeyOrder::new(schema, versions.clone(), &[])).transpose()?,
            repeated: !options.thin,
            ignored: [options.ignore_update_before || options.ignore_delete, options.ignore_delete],
            with_kind: Arc::new(ArrowSchema::new(fields)),
        })
    }

    /// The key columns among those of the table.
    pub(super) fn columns(&self, columns: &[ArrayRef]) -> Vec<ArrayRef> {
        picked(columns, &self.places)
    }

    /// What sorting these rows takes beside them, about: keys as bytes that compare like them, a place and two marks for each row.
    pub(super) fn sort_bytes(&self, rows: &RecordBatch) -> usize {
        // Text is cut into blocks of 32 bytes with one more each; a row has a place in the buffer, a column a mark and a block's rest.
        let column =
            |place: &usize| rows.columns().get(*place).map_or(0, |column| nested::size_of(column) * 9 / 8 + rows.num_rows() * 10);
        let columns: usize = self.places.iter().chain(&self.version_places).map(column).sum();
        columns + rows.num_rows() * (size_of::<Entry>() + size_of::<usize>() + 2)
    }

    /// Places of sequence number and kind among a file's columns.
    pub(super) const fn system_places(&self) -> (usize, usize) {
        let lead = if self.repeated { self.places.len() } else { 0 };
        (lead, lead + 1)
    }

    /// The key of a row in a file's columns.
    ///
    /// # Errors
    /// `Internal` when the columns are of other types.
    pub(super) fn key(&self, columns: &[ArrayRef], row: usize) -> Result<BinaryRow> {
        let columns = self.columns(columns.get(self.system_places().1 + 1..).unwrap_or_default());
        let value = |(column, data_type): (&ArrayRef, &DataType)| value_at(column, &data_type.kind, row);
        BinaryRow::write(&columns.iter().zip(&self.types).map(value).collect::<Result<Vec<_>>>()?, &self.types)
    }

    /// How many rows are left out.
    pub(super) fn ignored_of(&self, changes: &[ChangeKind]) -> u64 {
        let [update_before, delete] = self.ignored;
        let is_out = |change: &&ChangeKind| match change {
            ChangeKind::UpdateBefore => update_before,
            ChangeKind::Delete => delete,
            ChangeKind::Append | ChangeKind::Insert | ChangeKind::UpdateAfter => false,
        };
        changes.iter().filter(is_out).count() as u64
    }

    fn ignores(&self, kind: i8) -> bool {
        let [update_before, delete] = self.ignored;
        (update_before && kind == UPDATE_BEFORE) || (delete && kind == DELETE)
    }
}

const UPDATE_BEFORE: i8 = 1;
const DELETE: i8 = 3;

fn picked(columns: &[ArrayRef], places: &[usize]) -> Vec<ArrayRef> {
    places.iter().filter_map(|place| columns.get(*place).cloned()).collect()
}

/// A row by its place, with some bytes of its key as a number.
pub(super) struct Entry {
    word: u64,
    pub(super) batch: u32,
    pub(super) row: u32,
}

impl Entry {
    /// For `interleave`; in the order of arrival.
    pub(super) const fn place(&self) -> (usize, usize) {
        (self.batch as usize, self.row as usize)
    }
}

/// Rows in the order of a file.
pub(super) struct Sorted {
    pub(super) entries: Vec<Entry>,
    /// Which of them are the newest of their key; `None` = all.
    pub(super) newest: Option<BooleanBuffer>,
}

/// Sorts the rows of `batches`, whose last column is the kind. Without `every` row wanted, only the newest of each key stay.
///
/// # Errors
/// `Internal` when the columns are of other types.
pub(super) fn sort(keys: &Keys, batches: &[RecordBatch], every: bool) -> Result<Sorted> {
    let kinds: Vec<&[i8]> = batches
        .iter()
        .map(|batch| batch.columns().last().and_then(|kinds| kinds.as_primitive_opt::<Int8Type>()).map(|kinds| &**kinds.values()))
        .collect::<Option<_>>()
        .ok_or_else(|| Error::internal("rows without their kinds"))?;
    let kind_of = |entry: &Entry| kinds.get(entry.batch as usize).and_then(|kinds| kinds.get(entry.row as usize)).copied();
    let mut entries = Vec::with_capacity(batches.iter().map(RecordBatch::num_rows).sum());
    for (batch, kinds) in (0_u32..).zip(&kinds) {
        entries.extend((0_u32..).zip(*kinds).filter(|(_, kind)| !keys.ignores(**kind)).map(|(row, _)| Entry {
            word: 0,
            batch,
            row,
        }));
    }
    let starts = match &keys.versions {
        None => match batches.iter().map(|batch| words(&keys.columns(batch.columns()))).collect::<Option<Vec<_>>>() {
            Some(words) => sort_words(&mut entries, &words),
            None => Order::of(keys, batches, entries.len())?.sort(&mut entries),
        },
        Some(versions) => {
            let of = |batch: &RecordBatch| versions.rows(&picked(batch.columns(), &keys.version_places));
            let versions = batches.iter().map(of).collect::<Result<Vec<_>>>()?;
            Order::of(keys, batches, entries.len())?.sort_versions(&mut entries, &versions)
        }
    };
    // With `sequence.field` a −U decides as in Java; without, its +U follows.
    let decides = |entry: &Entry| keys.versions.is_some() || kind_of(entry) != Some(UPDATE_BEFORE);
    let mut newest = vec![false; entries.len()];
    let mut wanted = true;
    for ((entry, newest), start) in entries.iter().zip(&mut newest).zip(&starts).rev() {
        *newest = wanted && decides(entry);
        wanted = *start || (wanted && !*newest);
    }
    drop(starts);
    if !every {
        let mut flags = newest.iter();
        entries.retain(|_| flags.next().copied().unwrap_or(false));
        return Ok(Sorted { entries, newest: None });
    }
    let all = newest.iter().all(|newest| *newest);
    Ok(Sorted { entries, newest: (!all).then(|| BooleanBuffer::from(newest)) })
}

/// Keys of whole numbers that fit into one word, side by side: as numbers that sort like the keys. `None` for all others.
fn words(columns: &[ArrayRef]) -> Option<Vec<u64>> {
    if columns.iter().any(|column| column.null_count() > 0) {
        return None;
    }
    let mut words = vec![0; columns.first()?.len()];
    let mut bits = 0;
    for column in columns {
        bits += match column.data_type() {
            ArrowType::Int8 => append::<Int8Type>(&mut words, column)?,
            ArrowType::Int16 => append::<Int16Type>(&mut words, column)?,
            ArrowType::Int32 => append::<Int32Type>(&mut words, column)?,
            ArrowType::Int64 => append::<Int64Type>(&mut words, column)?,
            ArrowType::Date32 => append::<Date32Type>(&mut words, column)?,
            ArrowType::Time32(TimeUnit::Millisecond) => append::<Time32MillisecondType>(&mut words, column)?,
            ArrowType::Timestamp(TimeUnit::Millisecond, _) => append::<TimestampMillisecondType>(&mut words, column)?,
            ArrowType::Timestamp(TimeUnit::Microsecond, _) => append::<TimestampMicrosecondType>(&mut words, column)?,
            ArrowType::Timestamp(TimeUnit::Nanosecond, _) => append::<TimestampNanosecondType>(&mut words, column)?,
            _ => return None,
        };
    }
    (bits <= u64::BITS).then_some(words)
}

/// Puts the values of `column` behind what the words have; says of how many bits they are.
fn append<T: ArrowPrimitiveType<Native: Into<i64>>>(words: &mut [u64], column: &ArrayRef) -> Option<u32> {
    let bits = u32::try_from(8 * size_of::<T::Native>()).ok()?;
    let (mask, sign) = (u64::MAX >> (u64::BITS - bits), 1 << (bits - 1));
    for (word, value) in words.iter_mut().zip(column.as_primitive_opt::<T>()?.values()) {
        let value: i64 = (*value).into();
        // Negative numbers come first once the sign is turned round.
        *word = word.checked_shl(bits).unwrap_or(0) | ((value.cast_unsigned() ^ sign) & mask);
    }
    Some(bits)
}

/// Sorts by words that are whole keys, one per row of each batch; says which of the sorted rows are the first of their key.
///
/// A stable sort keeps the order of arrival, and takes runs that are sorted as they are: it merges them.
fn sort_words(entries: &mut [Entry], words: &[Vec<u64>]) -> Vec<bool> {
    for entry in &mut *entries {
        entry.word = words.get(entry.batch as usize).and_then(|words| words.get(entry.row as usize)).copied().unwrap_or(0);
    }
    entries.sort_by_key(|entry| entry.word);
    let mut before = None;
    entries.iter().map(|entry| before.replace(entry.word) != Some(entry.word)).collect()
}

/// Keys of all rows, and what is known of their order.
struct Order {
    rows: Vec<Rows>,
    longest: usize,
    /// Which of the sorted rows are the first of their key.
    starts: Vec<bool>,
}

/// Words of a key that are looked at one after the other, before keys are compared whole.
const WORDS_MAX: usize = 6;

impl Order {
    fn of(keys: &Keys, batches: &[RecordBatch], count: usize) -> Result<Self> {
        let rows = batches.iter().map(|batch| keys.order.rows(&keys.columns(batch.columns()))).collect::<Result<_>>()?;
        Ok(Self { rows, longest: 0, starts: vec![false; count] })
    }

    fn key(&self, entry: &Entry) -> &[u8] {
        // `Rows` panics beyond its end.
        let rows = self.rows.get(entry.batch as usize).filter(|rows| (entry.row as usize) < rows.num_rows());
        rows.map_or(&[], |rows| rows.row(entry.row as usize).data())
    }

    /// By key, then by arrival, in which `entries` come. Says which of them are then the first of their key.
    ///
    /// Keys are compared eight bytes at a time, as numbers that stand beside the places: most pairs need no look at a key. Padding with
    /// zeros is right, for no key is the beginning of another.
    fn sort(mut self, entries: &mut [Entry]) -> Vec<bool> {
        let mut shared: Option<&[u8]> = None;
        let mut longest = 0;
        for entry in &*entries {
            let key = self.key(entry);
            longest = longest.max(key.len());
            shared = Some(match shared {
                None => key,
                Some(shared) if key.starts_with(shared) => shared,
                Some(shared) => {
                    let same = shared.iter().zip(key).take_while(|(one, other)| one == other).count();
                    shared.get(..same).unwrap_or_default()
                }
            });
        }
        let shared = shared.map_or(0, <[u8]>::len);
        self.longest = longest;
        self.sort_from(entries, 0, shared, 0);
        self.starts
    }

    /// Sorts `entries`, the ones from place `at` on, whose keys are equal up to byte `depth`.
    fn sort_from(&mut self, entries: &mut [Entry], at: usize, depth: usize, words: usize) {
        if words >= WORDS_MAX {
            entries.sort_unstable_by(|one, other| self.key(one).cmp(self.key(other)).then_with(|| one.place().cmp(&other.place())));
            let new: Vec<bool> = entries.array_windows().map(|[one, other]| self.key(one) != self.key(other)).collect();
            self.mark(at, std::iter::once(true).chain(new));
            return;
        }
        for entry in &mut *entries {
            let rest = self.key(entry).get(depth..).unwrap_or_default();
            entry.word = match rest.first_chunk() {
                Some(word) => u64::from_be_bytes(*word),
                None => rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)) << (8 * (8 - rest.len())).min(63),
            };
        }
        // Stable: what is equal stays as it came, and runs that are sorted are merged rather than sorted.
        entries.sort_by_key(|entry| entry.word);
        let mut at = at;
        for run in entries.chunk_by_mut(|one, other| one.word == other.word) {
            let count = run.len();
            self.mark(at, std::iter::once(true));
            if count > 1 && self.longest > depth + 8 {
                self.sort_from(run, at, depth + 8, words + 1);
            }
            at += count;
        }
    }

    /// By key, by `versions`, then by arrival.
    fn sort_versions(mut self, entries: &mut [Entry], versions: &[Rows]) -> Vec<bool> {
        let version = |entry: &Entry| {
            let rows = versions.get(entry.batch as usize).filter(|rows| (entry.row as usize) < rows.num_rows());
            rows.map(|rows| rows.row(entry.row as usize))
        };
        entries.sort_unstable_by(|one, other| {
            let by_key = self.key(one).cmp(self.key(other));
            by_key.then_with(|| version(one).cmp(&version(other))).then_with(|| one.place().cmp(&other.place()))
        });
        let new: Vec<bool> = entries.array_windows().map(|[one, other]| self.key(one) != self.key(other)).collect();
        self.mark(0, std::iter::once(true).chain(new));
        self.starts
    }

    fn mark(&mut self, at: usize, new: impl Iterator<Item = bool>) {
        self.starts.iter_mut().skip(at).zip(new).for_each(|(start, new)| *start = new);
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{Date32Array, Int16Array, Int32Array, Int64Array, StringArray};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn words_sort_like_the_whole_numbers_that_they_are_made_of(keys: Vec<(i16, i32)>, wide: Vec<i64>) {
            let narrow: Vec<ArrayRef> = vec![
                Arc::new(Int16Array::from_iter_values(keys.iter().map(|key| key.0))),
                Arc::new(Date32Array::from_iter_values(keys.iter().map(|key| key.1))),
            ];
            let found = words(&narrow).unwrap();
            for (one, key) in found.iter().zip(&keys) {
                for (other, other_key) in found.iter().zip(&keys) {
                    prop_assert_eq!(one.cmp(other), key.cmp(other_key));
                }
            }
            let mut found = words(&[Arc::new(Int64Array::from(wide.clone())) as ArrayRef]).unwrap();
            found.sort_unstable();
            let mut wide = wide;
            wide.sort_unstable();
            prop_assert_eq!(words(&[Arc::new(Int64Array::from(wide)) as ArrayRef]).unwrap(), found);
        }
    }

    #[test]
    fn keys_that_are_no_whole_numbers_or_too_wide_are_compared_otherwise() {
        let int = |values: Vec<Option<i32>>| Arc::new(Int32Array::from(values)) as ArrayRef;
        let text: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
        let long: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        assert!(words(&[int(vec![Some(1)]), int(vec![Some(2)])]).is_some());
        assert!(words(&[int(vec![None])]).is_none());
        assert!(words(&[Arc::clone(&long), int(vec![Some(2)])]).is_none());
        assert!(words(&[text]).is_none());
        assert!(words(&[]).is_none());
    }

    #[test]
    fn sorted_runs_are_merged_and_equal_keys_stay_in_the_order_of_arrival() {
        let words: Vec<Vec<u64>> = vec![(0..1000).collect(), (500..1500).collect(), (0..1000).step_by(2).collect()];
        let mut entries: Vec<Entry> = (0_u32..)
            .zip(&words)
            .flat_map(|(batch, words)| (0_u32..).zip(words).map(move |(row, _)| Entry { word: 0, batch, row }))
            .collect();
        let starts = sort_words(&mut entries, &words);
        assert!(entries.is_sorted_by_key(|entry| (entry.word, entry.batch, entry.row)));
        assert_eq!(starts.iter().filter(|start| **start).count(), 1500);
        for (at, window) in entries.windows(2).enumerate() {
            assert_eq!(starts[at + 1], window[0].word != window[1].word);
        }
    }
}
