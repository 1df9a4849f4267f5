//! Single values ⇄ Arrow arrays in the types of F5.3; for row formats, partition values and small things. Not for the fast path.

use std::sync::Arc;

use arrow_array::builder::{FixedSizeBinaryBuilder, PrimitiveBuilder};
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    Time32MillisecondType, Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
};
use arrow_array::{Array, ArrayRef, BinaryArray, BooleanArray, StringArray};

use super::schema::arrow_type;
use crate::error::{Error, Result};
use crate::model::{Datum, TypeKind};

fn mismatch(kind: &TypeKind, value: &Datum) -> Error {
    Error::data(format!("{value:?} is no value of type {kind:?}"))
}

fn primitive<T: ArrowPrimitiveType>(
    kind: &TypeKind,
    values: &[Option<Datum>],
    native: impl Fn(&Datum) -> Option<T::Native>,
) -> Result<ArrayRef> {
    let mut builder = PrimitiveBuilder::<T>::with_capacity(values.len()).with_data_type(arrow_type(kind)?);
    for value in values {
        match value {
            None => builder.append_null(),
            Some(value) => builder.append_value(native(value).ok_or_else(|| mismatch(kind, value))?),
        }
    }
    Ok(Arc::new(builder.finish()))
}

/// The value in units of 10^−`digits` seconds.
fn timestamp_in(value: &Datum, digits: u32) -> Option<i64> {
    let Datum::Timestamp { millis, nanos } = value else { return None };
    match digits {
        0 => Some(millis.div_euclid(1000)),
        3 => Some(*millis),
        6 => millis.checked_mul(1000)?.checked_add(i64::from(*nanos) / 1000),
        _ => millis.checked_mul(1_000_000)?.checked_add(i64::from(*nanos)),
    }
}

fn time_in(value: &Datum) -> Option<i32> {
    if let Datum::Time(millis) = value { Some(*millis) } else { None }
}

/// An array of `kind` with these values.
///
/// # Errors
/// `Data` when a value is of another type or does not fit; `Unsupported` for nested types.
pub fn array_of(kind: &TypeKind, values: &[Option<Datum>]) -> Result<ArrayRef> {
    macro_rules! plain {
        ($arrow:ty, $variant:ident) => {
            primitive::<$arrow>(kind, values, |value| if let Datum::$variant(value) = value { Some(*value) } else { None })
        };
    }
    macro_rules! bytes {
        ($variant:ident) => {
            values
                .iter()
                .map(|value| match value {
                    None => Ok(None),
                    Some(Datum::$variant(value)) => Ok(Some(value)),
                    Some(value) => Err(mismatch(kind, value)),
                })
                .collect::<Result<Vec<_>>>()?
        };
    }
    match kind {
        TypeKind::Boolean => {
            let values = values.iter().map(|value| match value {
                None => Ok(None),
                Some(Datum::Boolean(value)) => Ok(Some(*value)),
                Some(value) => Err(mismatch(kind, value)),
            });
            Ok(Arc::new(BooleanArray::from(values.collect::<Result<Vec<_>>>()?)))
        }
        TypeKind::TinyInt => plain!(Int8Type, TinyInt),
        TypeKind::SmallInt => plain!(Int16Type, SmallInt),
        TypeKind::Int => plain!(Int32Type, Int),
        TypeKind::BigInt => plain!(Int64Type, BigInt),
        TypeKind::Float => plain!(Float32Type, Float),
        TypeKind::Double => plain!(Float64Type, Double),
        TypeKind::Date => plain!(Date32Type, Date),
        TypeKind::Decimal { precision, scale } => primitive::<Decimal128Type>(kind, values, |value| match value {
            Datum::Decimal { unscaled, precision: p, scale: s } if (p, s) == (precision, scale) => Some(*unscaled),
            _ => None,
        }),
        TypeKind::Char { .. } | TypeKind::String | TypeKind::VarChar { .. } => {
            Ok(Arc::new(bytes!(String).into_iter().map(|value| value.map(String::as_str)).collect::<StringArray>()))
        }
        TypeKind::Bytes | TypeKind::VarBinary { .. } => {
            Ok(Arc::new(bytes!(Bytes).into_iter().map(|value| value.map(Vec::as_slice)).collect::<BinaryArray>()))
        }
        TypeKind::Binary { length } => {
            let width = i32::try_from(*length).map_err(|source| Error::data("binary length").with_source(source))?;
            let mut builder = FixedSizeBinaryBuilder::new(width);
            for value in bytes!(Bytes) {
                match value {
                    None => builder.append_null(),
                    Some(value) => builder.append_value(value).map_err(|source| {
                        Error::data(format!("`{}` bytes in BINARY({length})", value.len())).with_source(source)
                    })?,
                }
            }
            Ok(Arc::new(builder.finish()))
        }
        TypeKind::Time { precision } => match precision {
            0 => primitive::<Time32SecondType>(kind, values, |value| time_in(value).map(|millis| millis / 1000)),
            1..=3 => primitive::<Time32MillisecondType>(kind, values, time_in),
            4..=6 => primitive::<Time64MicrosecondType>(kind, values, |value| Some(i64::from(time_in(value)?) * 1000)),
            _ => primitive::<Time64NanosecondType>(kind, values, |value| Some(i64::from(time_in(value)?) * 1_000_000)),
        },
        TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision } => match precision {
            0 => primitive::<TimestampSecondType>(kind, values, |value| timestamp_in(value, 0)),
            1..=3 => primitive::<TimestampMillisecondType>(kind, values, |value| timestamp_in(value, 3)),
            4..=6 => primitive::<TimestampMicrosecondType>(kind, values, |value| timestamp_in(value, 6)),
            _ => primitive::<TimestampNanosecondType>(kind, values, |value| timestamp_in(value, 9)),
        },
        TypeKind::Array(_) | TypeKind::Multiset(_) | TypeKind::Map(..) | TypeKind::Row(_) => {
            Err(Error::unsupported(format!("single values of type {kind:?}")))
        }
    }
}

/// The value at `row`, as `kind`; `None` = NULL.
///
/// # Errors
/// `Internal` when the array is not of the Arrow type that `kind` has; `Unsupported` for nested types.
pub fn value_at(array: &dyn Array, kind: &TypeKind, row: usize) -> Result<Option<Datum>> {
    use arrow_array::cast::AsArray;
    if row >= array.len() || *array.data_type() != arrow_type(kind)? {
        return Err(Error::internal(format!("row `{row}` of an array of `{}` {:?}", array.len(), array.data_type())));
    }
    if array.is_null(row) {
        return Ok(None);
    }
    macro_rules! plain {
        ($arrow:ty) => {
            array.as_primitive::<$arrow>().value(row)
        };
    }
    let narrow = |value: i64| i32::try_from(value).map_err(|source| Error::data("a time of day").with_source(source));
    Ok(Some(match kind {
        TypeKind::Boolean => Datum::Boolean(array.as_boolean().value(row)),
        TypeKind::TinyInt => Datum::TinyInt(plain!(Int8Type)),
        TypeKind::SmallInt => Datum::SmallInt(plain!(Int16Type)),
        TypeKind::Int => Datum::Int(plain!(Int32Type)),
        TypeKind::BigInt => Datum::BigInt(plain!(Int64Type)),
        TypeKind::Float => Datum::Float(plain!(Float32Type)),
        TypeKind::Double => Datum::Double(plain!(Float64Type)),
        TypeKind::Date => Datum::Date(plain!(Date32Type)),
        TypeKind::Decimal { precision, scale } => {
            Datum::Decimal { unscaled: plain!(Decimal128Type), precision: *precision, scale: *scale }
        }
        TypeKind::Char { .. } | TypeKind::String => Datum::String(array.as_string::<i32>().value(row).to_owned()),
        TypeKind::Bytes => Datum::Bytes(array.as_binary::<i32>().value(row).to_vec()),
        TypeKind::Binary { .. } => Datum::Bytes(array.as_fixed_size_binary().value(row).to_vec()),
        TypeKind::Time { precision } => Datum::Time(match precision {
            0 => plain!(Time32SecondType).saturating_mul(1000),
            1..=3 => plain!(Time32MillisecondType),
            4..=6 => narrow(plain!(Time64MicrosecondType).div_euclid(1000))?,
            _ => narrow(plain!(Time64NanosecondType).div_euclid(1_000_000))?,
        }),
        TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision } => match precision {
            0 => Datum::Timestamp { millis: plain!(TimestampSecondType).saturating_mul(1000), nanos: 0 },
            1..=3 => Datum::Timestamp { millis: plain!(TimestampMillisecondType), nanos: 0 },
            4..=6 => split(plain!(TimestampMicrosecondType), 1000)?,
            _ => split(plain!(TimestampNanosecondType), 1_000_000)?,
        },
        _ => return Err(Error::unsupported(format!("single values of type {kind:?}"))),
    }))
}

fn split(value: i64, per_milli: i64) -> Result<Datum> {
    let nanos = i32::try_from(value.rem_euclid(per_milli) * (1_000_000 / per_milli));
    let nanos = nanos.map_err(|source| Error::internal("nanoseconds").with_source(source))?;
    Ok(Datum::Timestamp { millis: value.div_euclid(per_milli), nanos })
}
