//! Which rows go where: partition by value, bucket by key or in turn, batches of bounded size.

use std::collections::BTreeMap;

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch, UInt32Array};
use arrow_select::take::take_record_batch;

use crate::error::{Error, Result};
use crate::fluss::bucket::{BucketFunction, buckets_of};
use crate::fluss::partition::format_value;
use crate::fluss::record::value_at;
use crate::model::{Field, TableInfo};

/// Partition column and value text, in the order of the table's partition keys; empty on a table without partitions.
pub(super) type Spec = Vec<(String, String)>;

/// The bucket of each row of a table with bucket key.
///
/// # Errors
/// `Invalid` when the table's bucket function refuses a key; `Unsupported` when the function is unknown.
pub(super) fn by_key(table: &TableInfo, rows: &RecordBatch, count: i32) -> Result<Vec<i32>> {
    let keys = columns(table, &table.bucket_keys)?;
    let keys: Vec<_> = keys.iter().map(|(at, field)| (&field.data_type.kind, rows.column(*at))).collect();
    buckets_of(BucketFunction::of(table)?, &keys, count)
}

/// Row numbers per bucket, where row `i` belongs to `buckets[i]`.
pub(super) fn grouped(numbers: Vec<u32>, buckets: &[i32]) -> BTreeMap<i32, Vec<u32>> {
    let mut groups: BTreeMap<i32, Vec<u32>> = BTreeMap::new();
    for number in numbers {
        if let Some(bucket) = buckets.get(number as usize) {
            groups.entry(*bucket).or_default().push(number);
        }
    }
    groups
}

/// Columns of `table` called `names`, in that order.
fn columns<'a>(table: &'a TableInfo, names: &[String]) -> Result<Vec<(usize, &'a Field)>> {
    names
        .iter()
        .map(|name| {
            let found = table.schema.index_of(name).and_then(|at| table.schema.fields.get(at).map(|field| (at, field)));
            found.ok_or_else(|| Error::data(format!("table `{}` has no column `{name}` although a key names it", table.path)))
        })
        .collect()
}

/// Row numbers per partition.
///
/// # Errors
/// `Invalid` when a partition value is NULL or can't be written as text.
pub(super) fn by_partition(table: &TableInfo, rows: &RecordBatch) -> Result<BTreeMap<Spec, Vec<u32>>> {
    let count = row_count(rows)?;
    let mut partitions: BTreeMap<Spec, Vec<u32>> = BTreeMap::new();
    if !table.is_partitioned() {
        partitions.insert(Vec::new(), (0..count).collect());
        return Ok(partitions);
    }
    let keys = columns(table, &table.partition_keys)?;
    // Rows of one partition mostly stand together: its text is made anew only where the value changes.
    let mut run: Option<(u32, Spec)> = None;
    for row in 0..count {
        let same = match &run {
            Some((first, _)) => keys.iter().all(|(at, _)| same_value(rows.column(*at).as_ref(), *first, row)),
            None => false,
        };
        if !same {
            run = Some((row, spec_of_row(table, &keys, rows, row)?));
        }
        let Some((_, spec)) = &run else { continue };
        match partitions.get_mut(spec) {
            Some(list) => list.push(row),
            None => drop(partitions.insert(spec.clone(), vec![row])),
        }
    }
    Ok(partitions)
}

fn spec_of_row(table: &TableInfo, keys: &[(usize, &Field)], rows: &RecordBatch, row: u32) -> Result<Spec> {
    keys.iter()
        .map(|(at, field)| {
            let value = value_at(rows.column(*at).as_ref(), &field.data_type.kind, row as usize)?;
            let value = value.ok_or_else(|| {
                Error::invalid(format!("row `{row}` for table `{}` has NULL in partition column `{}`", table.path, field.name))
            })?;
            Ok((field.name.clone(), format_value(&value, &field.data_type)?))
        })
        .collect()
}

/// Whether two rows surely have the same value; only for the types that are cheap to compare.
fn same_value(array: &dyn Array, one: u32, other: u32) -> bool {
    let (one, other) = (one as usize, other as usize);
    if array.is_null(one) || array.is_null(other) {
        return false;
    }
    array.as_string_opt::<i32>().is_some_and(|texts| texts.value(one) == texts.value(other))
}

pub(super) fn row_count(rows: &RecordBatch) -> Result<u32> {
    u32::try_from(rows.num_rows())
        .map_err(|source| Error::invalid(format!("`{}` rows are more than a batch may have", rows.num_rows())).with_source(source))
}

/// The rows with these numbers, cut so that each piece stays near `bytes_max` in memory.
pub(super) fn pieces(rows: &RecordBatch, numbers: Vec<u32>, bytes_max: usize) -> Result<Vec<RecordBatch>> {
    let taken = take_record_batch(rows, &UInt32Array::from(numbers))
        .map_err(|source| Error::internal("select the rows of a bucket").with_source(source))?;
    let count = taken.num_rows();
    let rows_max = (bytes_max.saturating_mul(count) / taken.get_array_memory_size().max(1)).clamp(1, count.max(1));
    Ok((0..count).step_by(rows_max).map(|at| taken.slice(at, rows_max.min(count - at))).collect())
}
