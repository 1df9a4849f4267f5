//! Rows in Fluss's columns → rows in the lake's columns.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::builder::BinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Time32MillisecondType, Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
};
use arrow_array::{
    Array, ArrayRef, BinaryArray, Int32Array, Int64Array, ListArray, MapArray, PrimitiveArray, RecordBatch, RecordBatchOptions,
    StructArray, new_null_array,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{ArrowError, DataType as ArrowType, SchemaRef, TimeUnit};

use super::compatible::{LakeForm, user_columns};
use super::partition::partition_values;
use crate::error::{Error, Result};
use crate::fluss::record::array_of;
use crate::model::{LogBatch, Partition, Schema, SchemaId, TableInfo};
use crate::paimon::{TableSchema, lake_arrow_schema};

/// Where a lake column's values come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// A column of the batch.
    Batch(usize),
    /// A value of the partition, by its place among the partition keys.
    Partition(usize),
    /// Nowhere: the column is newer than the rows.
    Null,
    Bucket,
    Offset,
    Timestamp,
}

/// Converts decoded batches of one table to the columns of its lake table. Made once per round, used by many threads.
#[derive(Debug)]
pub struct LakeRows {
    table: TableInfo,
    lake: TableSchema,
    form: LakeForm,
    arrow: SchemaRef,
    sources: Mutex<BTreeMap<SchemaId, Arc<[Source]>>>,
}

impl LakeRows {
    /// For rows of `table` into `lake`, which [`super::compatible`] found to be of `form`.
    ///
    /// # Errors
    /// As [`lake_arrow_schema`].
    pub fn new(table: &TableInfo, lake: &TableSchema, form: LakeForm) -> Result<Self> {
        Ok(Self { table: table.clone(), lake: lake.clone(), form, arrow: lake_arrow_schema(lake)?, sources: Mutex::default() })
    }

    /// The Arrow schema of what comes out: [`lake_arrow_schema`].
    #[must_use]
    pub const fn arrow_schema(&self) -> &SchemaRef {
        &self.arrow
    }

    /// Converts a batch whose rows have the columns of `schema`: as many rows, all columns of the lake, in its order.
    ///
    /// Columns go by id (F5.5); what `schema` does not have yet is NULL; partition columns get the partition's typed values and are not
    /// read from the rows (F6.6). Of the system columns, `__bucket` is the true Fluss bucket, also in tables without bucket key: Java's
    /// row path writes the same, its Arrow path 0 (F6.3). Buffers are shared where the types are the same.
    ///
    /// # Errors
    /// `Stale` when the rows are newer than `table` and have a column that the lake table, as it was opened, does not have; `Data` when
    /// older ones have: nothing is ever dropped. `Data` when types differ, a NOT NULL column would get NULL, or rows of a log table are no appends.
    pub fn convert(&self, batch: &LogBatch, schema: &Schema, partition: Option<&Partition>) -> Result<RecordBatch> {
        if batch.changes.is_some() && !self.table.has_primary_key() {
            return Err(Error::data(format!("{} of log table `{}` has rows that are no appends", batch.bucket, self.table.path)));
        }
        let sources = self.sources(schema)?;
        let rows = batch.rows.num_rows();
        let values = match partition {
            Some(partition) => partition_values(partition, &self.table)?,
            None => vec![],
        };
        let columns = sources.iter().zip(self.arrow.fields()).map(|(source, field)| {
            let target = field.data_type();
            let column: ArrayRef = match source {
                Source::Batch(index) => {
                    let column = batch.rows.columns().get(*index).ok_or_else(|| {
                        Error::internal(format!("a batch of schema `{}` has `{}` columns", schema.id, batch.rows.num_columns()))
                    })?;
                    adapt(column, target).map_err(|error| error.context(format!("column `{}`", field.name())))?
                }
                Source::Partition(index) => {
                    let (data_type, value) = values
                        .get(*index)
                        .ok_or_else(|| Error::internal(format!("rows of `{}` without their partition", self.table.path)))?;
                    adapt(&array_of(&data_type.kind, &vec![Some(value.clone()); rows])?, target)?
                }
                Source::Null => new_null_array(target, rows),
                Source::Bucket => Arc::new(Int32Array::from_value(batch.bucket.bucket.0, rows)),
                // Rows of a state have none (F5.7).
                Source::Offset if batch.base_offset < 0 => Arc::new(Int64Array::from_value(-1, rows)),
                Source::Offset => Arc::new(Int64Array::from_iter_values((batch.base_offset..).take(rows))),
                Source::Timestamp => {
                    let column = PrimitiveArray::<TimestampMillisecondType>::from_value(batch.commit_timestamp_ms, rows);
                    adapt(&(Arc::new(column) as ArrayRef), target)?
                }
            };
            Ok(column)
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.arrow), columns, &options)
            .map_err(|source| Error::data(format!("rows of `{}` do not fit its lake table", self.table.path)).with_source(source))
    }

    fn sources(&self, schema: &Schema) -> Result<Arc<[Source]>> {
        let mut known = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sources) = known.get(&schema.id) {
            return Ok(Arc::clone(sources));
        }
        let sources: Arc<[Source]> = self.resolve(schema)?.into();
        known.insert(schema.id, Arc::clone(&sources));
        Ok(sources)
    }

    fn resolve(&self, schema: &Schema) -> Result<Vec<Source>> {
        let (users, system) = user_columns(&self.lake, self.form);
        let newest: BTreeMap<i32, &str> = self.table.schema.fields.iter().map(|field| (field.id, field.name.as_str())).collect();
        // Name that each of the batch's columns has in the lake: by id as far as we know the id, else it is newer than what we know.
        let mut batch: BTreeMap<&str, usize> = BTreeMap::new();
        for (index, field) in schema.fields.iter().enumerate() {
            batch.insert(newest.get(&field.id).copied().unwrap_or(&field.name), index);
        }
        if let Some(name) = batch.keys().find(|name| users.iter().all(|field| field.name != **name)) {
            let text = format!(
                "rows of schema `{}` of `{}` have a column `{name}` that the lake table, as it was opened, does not have",
                schema.id, self.table.path
            );
            return Err(if schema.id > self.table.schema_id() {
                Error::stale(text)
            } else {
                // The lake has every column of the newest schema (`fit`), so looking again would change nothing.
                Error::data(text).with_hint("the column is no longer in Fluss either: add it to the lake table, of the type it had")
            });
        }
        let mut sources = Vec::with_capacity(self.lake.fields.len());
        for field in users {
            let key = self.table.partition_keys.iter().position(|key| *key == field.name);
            sources.push(match (key, batch.get(field.name.as_str())) {
                (Some(key), _) => Source::Partition(key),
                (None, Some(index)) => Source::Batch(*index),
                (None, None) if field.data_type.nullable => Source::Null,
                (None, None) => {
                    return Err(Error::data(format!(
                        "column `{}` of the lake table of `{}` is NOT NULL, but rows of schema `{}` do not have it",
                        field.name, self.table.path, schema.id
                    )));
                }
            });
        }
        sources.extend([Source::Bucket, Source::Offset, Source::Timestamp].into_iter().take(system.len()));
        Ok(sources)
    }
}

fn overflow(source: ArrowError) -> Error {
    Error::data("a value does not fit the lake's unit").with_source(source)
}

fn scale(value: i64, factor: i64) -> Result<i64, ArrowError> {
    value.checked_mul(factor).ok_or_else(|| ArrowError::ArithmeticOverflow(format!("{value} * {factor}")))
}

fn narrow(value: i64) -> Result<i32, ArrowError> {
    i32::try_from(value).map_err(|_source| ArrowError::ArithmeticOverflow(format!("time of day {value}")))
}

/// The column in the lake's Arrow type: shared where it is the same, else with other units, zone, offsets, or names inside.
///
/// Fields of a ROW go by name: one that the rows do not have yet is NULL, one that the lake does not have is never dropped.
fn adapt(column: &ArrayRef, target: &ArrowType) -> Result<ArrayRef> {
    use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
    if column.data_type() == target {
        return Ok(Arc::clone(column));
    }
    let adapted: ArrayRef = match (column.data_type(), target) {
        (ArrowType::FixedSizeBinary(width), ArrowType::Binary) => fixed_to_variable(column, *width)?,
        (ArrowType::Time32(Second), ArrowType::Time32(Millisecond)) => {
            let times = column.as_primitive::<Time32SecondType>();
            Arc::new(times.try_unary::<_, Time32MillisecondType, _>(|value| narrow(i64::from(value) * 1000)).map_err(overflow)?)
        }
        (ArrowType::Time64(Microsecond), ArrowType::Time32(Millisecond)) => {
            let times = column.as_primitive::<Time64MicrosecondType>();
            Arc::new(times.try_unary::<_, Time32MillisecondType, _>(|value| narrow(value / 1000)).map_err(overflow)?)
        }
        (ArrowType::Time64(Nanosecond), ArrowType::Time32(Millisecond)) => {
            let times = column.as_primitive::<Time64NanosecondType>();
            Arc::new(times.try_unary::<_, Time32MillisecondType, _>(|value| narrow(value / 1_000_000)).map_err(overflow)?)
        }
        (ArrowType::Timestamp(Second, None), ArrowType::Timestamp(Millisecond, zone)) => {
            let times = column.as_primitive::<TimestampSecondType>();
            let times = times.try_unary::<_, TimestampMillisecondType, _>(|value| scale(value, 1000)).map_err(overflow)?;
            Arc::new(times.with_timezone_opt(zone.clone()))
        }
        (ArrowType::Timestamp(Millisecond, None), ArrowType::Timestamp(Millisecond, zone)) => {
            Arc::new(column.as_primitive::<TimestampMillisecondType>().clone().with_timezone_opt(zone.clone()))
        }
        // `__timestamp` of very old tables.
        (ArrowType::Timestamp(Millisecond, None), ArrowType::Timestamp(Microsecond, zone)) => {
            let times = column.as_primitive::<TimestampMillisecondType>();
            let times = times.try_unary::<_, TimestampMicrosecondType, _>(|value| scale(value, 1000)).map_err(overflow)?;
            Arc::new(times.with_timezone_opt(zone.clone()))
        }
        (ArrowType::Timestamp(Microsecond, None), ArrowType::Timestamp(Microsecond, zone)) => {
            Arc::new(column.as_primitive::<TimestampMicrosecondType>().clone().with_timezone_opt(zone.clone()))
        }
        (ArrowType::Timestamp(Nanosecond, None), ArrowType::Timestamp(Nanosecond, zone)) => {
            Arc::new(column.as_primitive::<TimestampNanosecondType>().clone().with_timezone_opt(zone.clone()))
        }
        (ArrowType::List(_), ArrowType::List(child)) => {
            let lists = column.as_list::<i32>();
            let values = adapt(lists.values(), child.data_type())?;
            let adapted = ListArray::try_new(Arc::clone(child), lists.offsets().clone(), values, lists.nulls().cloned());
            Arc::new(adapted.map_err(misfit)?)
        }
        (ArrowType::Map(..), ArrowType::Map(child, ordered)) => {
            let maps = column.as_map();
            let entries = adapt_row(maps.entries(), child.data_type())?;
            let (offsets, nulls) = (maps.offsets().clone(), maps.nulls().cloned());
            Arc::new(MapArray::try_new(Arc::clone(child), offsets, entries, nulls, *ordered).map_err(misfit)?)
        }
        (ArrowType::Struct(_), ArrowType::Struct(_)) => Arc::new(adapt_row(column.as_struct(), target)?),
        (found, wanted) => return Err(Error::data(format!("rows of type {found} where the lake has {wanted}"))),
    };
    Ok(adapted)
}

fn misfit(source: ArrowError) -> Error {
    Error::data("nested values do not fit the lake's type").with_source(source)
}

fn adapt_row(rows: &StructArray, target: &ArrowType) -> Result<StructArray> {
    let ArrowType::Struct(wanted) = target else { return Err(Error::internal(format!("rows as {target}"))) };
    if let Some(extra) = rows.fields().iter().find(|field| wanted.find(field.name()).is_none()) {
        let why = "that the lake table, as it was opened, does not have";
        return Err(Error::stale(format!("rows have a nested field `{}` {why}", extra.name())));
    }
    let columns = wanted.iter().map(|field| match rows.column_by_name(field.name()) {
        Some(column) => adapt(column, field.data_type()).map_err(|error| error.context(format!("field `{}`", field.name()))),
        None if field.is_nullable() => Ok(new_null_array(field.data_type(), rows.len())),
        None => Err(Error::data(format!("field `{}` of the lake table is NOT NULL, but rows do not have it", field.name()))),
    });
    let columns = columns.collect::<Result<_>>()?;
    StructArray::try_new_with_length(wanted.clone(), columns, rows.nulls().cloned(), rows.len()).map_err(misfit)
}

fn fixed_to_variable(column: &ArrayRef, width: i32) -> Result<ArrayRef> {
    let fixed = column.as_fixed_size_binary();
    let width = usize::try_from(width).map_err(|source| Error::internal("binary width").with_source(source))?;
    let values = fixed.values().clone();
    if fixed.len().saturating_mul(width) > i32::MAX.unsigned_abs() as usize || values.len() < fixed.len() * width {
        let mut builder = BinaryBuilder::new();
        fixed.iter().for_each(|value| builder.append_option(value));
        return Ok(Arc::new(builder.finish()));
    }
    let offsets = OffsetBuffer::from_repeated_length(width, fixed.len());
    let array = BinaryArray::try_new(offsets, values.slice_with_length(0, fixed.len() * width), fixed.nulls().cloned());
    Ok(Arc::new(array.map_err(|source| Error::internal("binary column").with_source(source))?))
}
