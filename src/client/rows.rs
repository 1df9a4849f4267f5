//! Which rows go where: partition by value, bucket by key, batches of bounded size.

use std::collections::BTreeMap;

use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Int8Type, Int16Type, Int32Type, Int64Type};
use arrow_array::{Array, RecordBatch, UInt32Array};
use arrow_schema::DataType as ArrowType;

use crate::error::{Error, Result};
use crate::fluss::bucket::{BucketFunction, buckets_of};
use crate::fluss::partition::format_value;
use crate::fluss::record::value_at;
use crate::model::{Field, TableInfo};

/// Partition column and value text, in the order of the table's partition keys; empty on a table without partitions.
pub(super) type Spec = Vec<(String, String)>;

/// Names a row, by its number, for whoever has to find it.
pub(super) type RowName<'a> = &'a (dyn Fn(u32) -> String + Send + Sync);

/// The bucket of each row, by its values of the columns `names`.
///
/// # Errors
/// `Invalid` when the table's bucket function refuses a key, with its row named; `Unsupported` when the function is unknown.
pub(super) fn by_key(table: &TableInfo, names: &[String], rows: &RecordBatch, count: i32, at: RowName<'_>) -> Result<Vec<i32>> {
    let function = BucketFunction::of(table)?;
    let columns = columns(table, names)?;
    let buckets = |first: usize, length: usize| {
        let arrays: Vec<_> = columns.iter().map(|(at, _)| rows.column(*at).slice(first, length)).collect();
        let keys: Vec<_> = columns.iter().zip(&arrays).map(|((_, field), array)| (&field.data_type.kind, array)).collect();
        buckets_of(function, &keys, count)
    };
    buckets(0, rows.num_rows()).map_err(|error| {
        let culprit = (0..rows.num_rows()).find_map(|row| buckets(row, 1).err().map(|error| (row, error)));
        match culprit {
            Some((row, error)) => error.context(at(u32::try_from(row).unwrap_or(u32::MAX))),
            None => error,
        }
    })
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
pub(super) fn columns<'a>(table: &'a TableInfo, names: &[String]) -> Result<Vec<(usize, &'a Field)>> {
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
/// `Invalid` when a partition value is NULL or can't be written as text, with its row named.
pub(super) fn by_partition(table: &TableInfo, rows: &RecordBatch, at: RowName<'_>) -> Result<BTreeMap<Spec, Vec<u32>>> {
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
            let spec = spec_of_row(table, &keys, rows, row).map_err(|error| error.context(at(row)))?;
            run = Some((row, spec));
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
            let value = value
                .ok_or_else(|| Error::invalid(format!("NULL in partition column `{}` of table `{}`", field.name, table.path)))?;
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
    macro_rules! same {
        ($arrow:ty) => {
            array.as_primitive_opt::<$arrow>().is_some_and(|values| values.value(one) == values.value(other))
        };
    }
    match array.data_type() {
        ArrowType::Utf8 => array.as_string_opt::<i32>().is_some_and(|texts| texts.value(one) == texts.value(other)),
        ArrowType::Int8 => same!(Int8Type),
        ArrowType::Int16 => same!(Int16Type),
        ArrowType::Int32 => same!(Int32Type),
        ArrowType::Int64 => same!(Int64Type),
        ArrowType::Date32 => same!(Date32Type),
        _ => false,
    }
}

pub(super) fn row_count(rows: &RecordBatch) -> Result<u32> {
    u32::try_from(rows.num_rows())
        .map_err(|source| Error::invalid(format!("`{}` rows are more than a batch may have", rows.num_rows())).with_source(source))
}

/// Bytes in memory of an average row of `rows`, at least 1.
pub(super) fn row_bytes(rows: &RecordBatch) -> usize {
    let bytes: usize = rows.columns().iter().map(|column| column.to_data().get_slice_memory_size().unwrap_or(0)).sum();
    (bytes / rows.num_rows().max(1)).max(1)
}

/// `numbers`, cut so that each piece has at most `rows_max` (at least 1).
pub(super) fn pieces(numbers: Vec<u32>, rows_max: usize) -> Vec<UInt32Array> {
    let whole = UInt32Array::from(numbers);
    let (count, step) = (whole.len(), rows_max.max(1));
    (0..count).step_by(step).map(|at| whole.slice(at, step.min(count - at))).collect()
}
