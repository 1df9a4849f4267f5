//! Values of Arrow columns (types of F5.3), one at a time and without copying: what keys and row formats are written from.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType,
    Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use arrow_array::{Array, ArrayRef};

use super::schema::arrow_type;
use crate::error::{Error, Result};
use crate::model::TypeKind;

/// One value that is not NULL.
#[derive(Debug, Clone, Copy)]
pub(in crate::fluss) enum Cell<'a> {
    Boolean(bool),
    I8(i8),
    I16(i16),
    I32(i32),
    I64(i64),
    F32(f32),
    F64(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    Decimal { unscaled: i128, precision: u8, scale: u8 },
    Date(i32),
    Time(i32),
    Timestamp { millis: i64, nanos: i32, precision: u8, zoned: bool },
}

/// The values of a column.
pub(in crate::fluss) struct Cells<'a> {
    array: &'a dyn Array,
    read: Box<dyn Fn(usize) -> Cell<'a> + Send + Sync + 'a>,
}

impl std::fmt::Debug for Cells<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cells").field("type", self.array.data_type()).field("rows", &self.array.len()).finish()
    }
}

impl<'a> Cells<'a> {
    /// Of a column of type `kind`.
    ///
    /// # Errors
    /// `Internal` when the array is not of the Arrow type that `kind` has; `Unsupported` for nested types.
    pub(in crate::fluss) fn of(kind: &TypeKind, array: &'a ArrayRef) -> Result<Self> {
        if *array.data_type() != arrow_type(kind)? {
            return Err(Error::internal(format!("values of type {kind:?} in an array of {:?}", array.data_type())));
        }
        macro_rules! plain {
            ($arrow:ty, $value:expr) => {{
                let values = array.as_primitive::<$arrow>().values();
                // In bounds: rows of the array only.
                Box::new(move |row| $value(values.get(row).copied().unwrap_or_default()))
            }};
        }
        let (precision, zoned) = match kind {
            TypeKind::Timestamp { precision } | TypeKind::Time { precision } => (*precision, false),
            TypeKind::TimestampLtz { precision } => (*precision, true),
            _ => (0, false),
        };
        let timestamp = move |millis, nanos| Cell::Timestamp { millis, nanos, precision, zoned };
        let split = move |value: i64, per_milli: i64| {
            let nanos = i32::try_from(value.rem_euclid(per_milli) * (1_000_000 / per_milli)).unwrap_or_default();
            timestamp(value.div_euclid(per_milli), nanos)
        };
        let time = |millis: i64| Cell::Time(i32::try_from(millis).unwrap_or_default());
        let read: Box<dyn Fn(usize) -> Cell<'a> + Send + Sync + 'a> = match kind {
            TypeKind::Boolean => Box::new(|row| Cell::Boolean(array.as_boolean().value(row))),
            TypeKind::TinyInt => plain!(Int8Type, Cell::I8),
            TypeKind::SmallInt => plain!(Int16Type, Cell::I16),
            TypeKind::Int => plain!(Int32Type, Cell::I32),
            TypeKind::BigInt => plain!(Int64Type, Cell::I64),
            TypeKind::Float => plain!(Float32Type, Cell::F32),
            TypeKind::Double => plain!(Float64Type, Cell::F64),
            TypeKind::Date => plain!(Date32Type, Cell::Date),
            TypeKind::Decimal { precision, scale } => {
                let (precision, scale) = (*precision, *scale);
                plain!(Decimal128Type, |unscaled| Cell::Decimal { unscaled, precision, scale })
            }
            TypeKind::Char { .. } | TypeKind::String => Box::new(|row| Cell::Text(array.as_string::<i32>().value(row))),
            TypeKind::Binary { .. } => Box::new(|row| Cell::Bytes(array.as_fixed_size_binary().value(row))),
            TypeKind::Bytes => Box::new(|row| Cell::Bytes(array.as_binary::<i32>().value(row))),
            TypeKind::Time { .. } => match precision {
                0 => plain!(Time32SecondType, |value| time(i64::from(value) * 1000)),
                1..=3 => plain!(Time32MillisecondType, Cell::Time),
                4..=6 => plain!(Time64MicrosecondType, |value: i64| time(value.div_euclid(1000))),
                _ => plain!(Time64NanosecondType, |value: i64| time(value.div_euclid(1_000_000))),
            },
            TypeKind::Timestamp { .. } | TypeKind::TimestampLtz { .. } => match precision {
                0 => plain!(TimestampSecondType, |value: i64| timestamp(value.saturating_mul(1000), 0)),
                1..=3 => plain!(TimestampMillisecondType, |value| timestamp(value, 0)),
                4..=6 => plain!(TimestampMicrosecondType, |value| split(value, 1000)),
                _ => plain!(TimestampNanosecondType, |value| split(value, 1_000_000)),
            },
            _ => return Err(Error::unsupported(format!("single values of type {kind:?}"))),
        };
        Ok(Self { array, read })
    }

    /// The value at `row`; `None` = NULL.
    pub(in crate::fluss) fn get(&self, row: usize) -> Option<Cell<'a>> {
        if self.array.is_null(row) { None } else { Some((self.read)(row)) }
    }
}

/// Shortest big-endian two's complement.
pub(in crate::fluss) fn push_minimal(bytes: &mut Vec<u8>, value: i128) {
    let spare = if value < 0 { (!value).leading_zeros() } else { value.leading_zeros() };
    // One sign bit stays.
    let keep = 16 - usize::try_from(spare.saturating_sub(1) / 8).unwrap_or_default().min(15);
    bytes.extend(value.to_be_bytes().iter().skip(16 - keep));
}

/// Unsigned LEB128.
pub(super) fn push_leb(bytes: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            return bytes.push(low & 0x7f);
        }
        bytes.push(low | 0x80);
    }
}

/// Length and bytes, as a CompactedRow has them.
pub(super) fn push_sized(bytes: &mut Vec<u8>, value: &[u8]) {
    push_leb(bytes, value.len() as u64);
    bytes.extend_from_slice(value);
}

/// A value of a CompactedRow (F5.8); keys are these one after another.
pub(in crate::fluss) fn compacted_cell(bytes: &mut Vec<u8>, value: Cell<'_>) {
    match value {
        Cell::Boolean(value) => bytes.push(u8::from(value)),
        Cell::I8(value) => bytes.extend(value.to_le_bytes()),
        Cell::I16(value) => bytes.extend(value.to_le_bytes()),
        Cell::I32(value) | Cell::Date(value) | Cell::Time(value) => push_leb(bytes, value.cast_unsigned().into()),
        Cell::I64(value) => push_leb(bytes, value.cast_unsigned()),
        Cell::F32(value) => bytes.extend(value.to_le_bytes()),
        Cell::F64(value) => bytes.extend(value.to_le_bytes()),
        Cell::Text(value) => push_sized(bytes, value.as_bytes()),
        Cell::Bytes(value) => push_sized(bytes, value),
        Cell::Decimal { unscaled, precision, .. } if precision <= 18 => {
            // In bounds: who makes rows has checked the precision.
            push_leb(bytes, i64::try_from(unscaled).unwrap_or_default().cast_unsigned());
        }
        Cell::Decimal { unscaled, .. } => {
            let mut minimal = Vec::with_capacity(16);
            push_minimal(&mut minimal, unscaled);
            push_sized(bytes, &minimal);
        }
        Cell::Timestamp { millis, nanos, precision, .. } => {
            push_leb(bytes, millis.cast_unsigned());
            if precision > 3 {
                push_leb(bytes, nanos.cast_unsigned().into());
            }
        }
    }
}
