//! Single values of a lake table's columns: read from Arrow, compared, hashed into buckets (P5, P6, P7.4).

use std::cmp::Ordering;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
};
use arrow_array::{Array, ArrayRef};

use super::{BinaryRow, TableSchema, bucket_of_hash, murmur_hash};
use crate::error::{Error, Result};
use crate::model::{DataType, Datum, TypeKind};

/// One value of a column of `kind` in [`super::lake_arrow_schema`]'s type; `None` = NULL.
///
/// # Errors
/// `Internal` when the column is of another type, or nested.
pub fn value_at(column: &ArrayRef, kind: &TypeKind, row: usize) -> Result<Option<Datum>> {
    if row >= column.len() || column.is_null(row) {
        return Ok(None);
    }
    let wrong = || Error::internal(format!("a column of type {kind:?} comes as `{}`", column.data_type()));
    macro_rules! value {
        ($type:ty) => {
            column.as_primitive_opt::<$type>().ok_or_else(wrong)?.value(row)
        };
    }
    Ok(Some(match kind {
        TypeKind::Boolean => Datum::Boolean(column.as_boolean_opt().ok_or_else(wrong)?.value(row)),
        TypeKind::TinyInt => Datum::TinyInt(value!(Int8Type)),
        TypeKind::SmallInt => Datum::SmallInt(value!(Int16Type)),
        TypeKind::Int => Datum::Int(value!(Int32Type)),
        TypeKind::BigInt => Datum::BigInt(value!(Int64Type)),
        TypeKind::Float => Datum::Float(value!(Float32Type)),
        TypeKind::Double => Datum::Double(value!(Float64Type)),
        TypeKind::Decimal { precision, scale } => {
            Datum::Decimal { unscaled: value!(Decimal128Type), precision: *precision, scale: *scale }
        }
        TypeKind::Char { .. } | TypeKind::VarChar { .. } | TypeKind::String => {
            Datum::String(column.as_string_opt::<i32>().ok_or_else(wrong)?.value(row).to_owned())
        }
        TypeKind::Binary { .. } | TypeKind::VarBinary { .. } | TypeKind::Bytes => {
            Datum::Bytes(column.as_binary_opt::<i32>().ok_or_else(wrong)?.value(row).to_vec())
        }
        TypeKind::Date => Datum::Date(value!(Date32Type)),
        TypeKind::Time { .. } => Datum::Time(value!(Time32MillisecondType)),
        TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision } => {
            let (value, per_milli) = match precision {
                0..=3 => (value!(TimestampMillisecondType), 1),
                4..=6 => (value!(TimestampMicrosecondType), 1_000),
                _ => (value!(TimestampNanosecondType), 1_000_000),
            };
            let nanos = value.rem_euclid(per_milli) * (1_000_000 / per_milli);
            Datum::Timestamp { millis: value.div_euclid(per_milli), nanos: i32::try_from(nanos).unwrap_or(0) }
        }
        TypeKind::Array(_) | TypeKind::Multiset(_) | TypeKind::Map(..) | TypeKind::Row(_) => return Err(wrong()),
    }))
}

/// Order of values of one type (P7.4): of keys, of statistics. Values of different types are equal: they do not meet.
#[must_use]
pub fn compare_values(one: &Datum, other: &Datum) -> Ordering {
    let floats = |one: f64, other: f64| match (one.is_nan(), other.is_nan()) {
        (false, false) => one.total_cmp(&other),
        (one, other) => one.cmp(&other),
    };
    match (one, other) {
        (Datum::Boolean(one), Datum::Boolean(other)) => one.cmp(other),
        (Datum::TinyInt(one), Datum::TinyInt(other)) => one.cmp(other),
        (Datum::SmallInt(one), Datum::SmallInt(other)) => one.cmp(other),
        (Datum::Int(one), Datum::Int(other)) | (Datum::Date(one), Datum::Date(other)) | (Datum::Time(one), Datum::Time(other)) => {
            one.cmp(other)
        }
        (Datum::BigInt(one), Datum::BigInt(other)) => one.cmp(other),
        (Datum::Float(one), Datum::Float(other)) => floats(f64::from(*one), f64::from(*other)),
        (Datum::Double(one), Datum::Double(other)) => floats(*one, *other),
        (Datum::Decimal { unscaled: one, .. }, Datum::Decimal { unscaled: other, .. }) => one.cmp(other),
        (Datum::String(one), Datum::String(other)) => one.cmp(other),
        (Datum::Bytes(one), Datum::Bytes(other)) => one.cmp(other),
        (Datum::Timestamp { millis: one, nanos: a }, Datum::Timestamp { millis: other, nanos: b }) => (one, a).cmp(&(other, b)),
        _ => Ordering::Equal,
    }
}

/// Who hashed a key. They differ where a bucket key is a NULL of DECIMAL(19…) or TIMESTAMP(4…): Fluss keeps no place for it (F6.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashedBy {
    /// A writer of Fluss: what tiering takes over.
    Fluss,
    /// A writer of Paimon.
    Paimon,
}

/// Tells which bucket rows of a lake table belong into (P6.1).
#[derive(Debug, Clone)]
pub struct RowBuckets {
    names: Vec<String>,
    types: Vec<DataType>,
}

impl RowBuckets {
    /// For tables with the columns of `schema`; `None` on a table without fixed buckets (P6.3).
    ///
    /// # Errors
    /// `Unsupported` names a bucket function other than the default one; `Data` when the bucket key names no column.
    pub fn new(schema: &TableSchema) -> Result<Option<Self>> {
        let fixed = schema.option("bucket").and_then(|text| text.trim().parse::<i32>().ok()).is_some_and(|count| count > 0);
        if !fixed {
            return Ok(None);
        }
        if let Some(function) = schema.option("bucket-function.type").filter(|name| !name.trim().eq_ignore_ascii_case("default")) {
            return Err(Error::unsupported(format!("the bucket function `{function}` of a lake table")));
        }
        let named = schema.option("bucket-key").map(str::trim).filter(|text| !text.is_empty());
        let names = match named {
            Some(text) => text.split(',').map(|name| name.trim().to_owned()).collect(),
            None => schema.trimmed_primary_keys(),
        };
        Ok(Some(Self { types: schema.types_of(&names)?, names }))
    }

    /// The columns that [`RowBuckets::buckets`] wants, in this order.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The bucket of each row among `total`, by the columns of the bucket key in [`super::lake_arrow_schema`]'s types.
    ///
    /// # Errors
    /// `Internal` when the columns are of other types or `total` is below 1.
    pub fn buckets(&self, columns: &[ArrayRef], total: i32, by: HashedBy) -> Result<Vec<i32>> {
        if total < 1 || columns.len() != self.types.len() {
            return Err(Error::internal(format!("buckets of `{}` key columns among `{total}`", columns.len())));
        }
        let rows = columns.first().map_or(0, |column| column.len());
        let bucket = |row: usize| {
            let mut types = self.types.clone();
            let mut values = Vec::with_capacity(types.len());
            for (column, data_type) in columns.iter().zip(&mut types) {
                let value = value_at(column, &data_type.kind, row)?;
                if value.is_none() && by == HashedBy::Fluss {
                    data_type.kind = TypeKind::Int;
                }
                values.push(value);
            }
            Ok(bucket_of_hash(murmur_hash(BinaryRow::write(&values, &types)?.row_bytes()), total))
        };
        (0..rows).map(bucket).collect()
    }
}
