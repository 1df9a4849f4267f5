//! Batches in row formats, INDEXED and COMPACTED (F5.4, F5.8) → the Arrow types of F5.3. Scalar types only.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::SchemaRef;

use super::decode::{LogFormat, change_kind, changes_or_none};
use super::values::array_of;
use crate::error::{Error, Result};
use crate::model::{ChangeKind, DataType, Datum, Schema, TypeKind};

/// Length, change type, and at least one byte of NULL bits.
const RECORD_BYTES_MIN: usize = 6;

fn cut() -> Error {
    Error::data("a record ends inside a value")
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(cut)?;
        self.0 = rest;
        Ok(taken)
    }

    fn chunk<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|source| cut().with_source(Box::<dyn std::error::Error + Send + Sync>::from(source)))
    }

    fn byte(&mut self) -> Result<u8> {
        self.chunk::<1>().map(|[byte]| byte)
    }

    fn i32(&mut self) -> Result<i32> {
        self.chunk().map(i32::from_le_bytes)
    }

    fn i64(&mut self) -> Result<i64> {
        self.chunk().map(i64::from_le_bytes)
    }

    /// Unsigned LEB128 of at most `bits` bits; what lies above them in the last byte is dropped, as Java does.
    fn leb(&mut self, bits: u32) -> Result<u64> {
        let (mut value, mut shift) = (0_u64, 0);
        loop {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
            shift += 7;
            if shift >= bits {
                return Err(Error::data("a number in a record is too long"));
            }
        }
    }

    fn leb_i32(&mut self) -> Result<i32> {
        let [a, b, c, d, ..] = self.leb(32)?.to_le_bytes();
        Ok(i32::from_le_bytes([a, b, c, d]))
    }

    fn leb_i64(&mut self) -> Result<i64> {
        Ok(self.leb(64)?.cast_signed())
    }

    fn leb_bytes(&mut self) -> Result<&'a [u8]> {
        let length = usize::try_from(self.leb(32)?).unwrap_or(usize::MAX);
        self.take(length)
    }
}

/// Decodes `count` records. The types of their changes come with the records.
pub(super) fn decode(
    payload: &[u8],
    count: usize,
    format: LogFormat,
    schema: &Schema,
    arrow: &SchemaRef,
) -> Result<(RecordBatch, Option<Vec<ChangeKind>>)> {
    if payload.len() / RECORD_BYTES_MIN < count && !schema.fields.is_empty() {
        return Err(Error::data(format!("`{count}` records do not fit into `{}` bytes", payload.len())));
    }
    let types: Vec<&DataType> = schema.fields.iter().map(|field| &field.data_type).collect();
    let mut columns: Vec<Vec<Option<Datum>>> = types.iter().map(|_| Vec::with_capacity(count)).collect();
    let mut changes = Vec::with_capacity(count);
    let mut records = Reader(payload);
    for _ in 0..count {
        let length = records.i32()?;
        let mut record = Reader(records.take(usize::try_from(length).map_err(|source| cut().with_source(source))?)?);
        changes.push(change_kind(record.byte()?)?);
        let values = match format {
            LogFormat::Indexed => indexed_row(&mut record, &types)?,
            LogFormat::Compacted | LogFormat::Arrow => compacted_row(&mut record, &types)?,
        };
        for (column, value) in columns.iter_mut().zip(values) {
            column.push(value);
        }
    }
    let arrays = types.iter().zip(&columns).map(|(data_type, values)| array_of(&data_type.kind, values));
    let arrays: Vec<ArrayRef> = arrays.collect::<Result<_>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(count));
    let rows = RecordBatch::try_new_with_options(Arc::clone(arrow), arrays, &options)
        .map_err(|source| Error::data("the records do not fit the schema").with_source(source))?;
    Ok((rows, changes_or_none(changes)))
}

fn nulls(row: &mut Reader<'_>, fields: usize) -> Result<Vec<bool>> {
    let bits = row.take(fields.div_ceil(8))?;
    Ok((0..fields).map(|field| bits.get(field / 8).is_some_and(|byte| byte >> (field % 8) & 1 == 1)).collect())
}

fn compacted_row(row: &mut Reader<'_>, types: &[&DataType]) -> Result<Vec<Option<Datum>>> {
    let nulls = nulls(row, types.len())?;
    types
        .iter()
        .zip(nulls)
        .map(|(data_type, null)| if null { Ok(None) } else { compacted_value(row, &data_type.kind).map(Some) })
        .collect()
}

fn compacted_value(row: &mut Reader<'_>, kind: &TypeKind) -> Result<Datum> {
    Ok(match kind {
        TypeKind::Int => Datum::Int(row.leb_i32()?),
        TypeKind::Date => Datum::Date(row.leb_i32()?),
        TypeKind::Time { .. } => Datum::Time(row.leb_i32()?),
        TypeKind::BigInt => Datum::BigInt(row.leb_i64()?),
        TypeKind::Char { .. } | TypeKind::String => text(row.leb_bytes()?)?,
        TypeKind::Binary { .. } | TypeKind::Bytes => Datum::Bytes(row.leb_bytes()?.to_vec()),
        TypeKind::Decimal { precision, scale } if *precision <= 18 => {
            Datum::Decimal { unscaled: row.leb_i64()?.into(), precision: *precision, scale: *scale }
        }
        TypeKind::Decimal { precision, scale } => big_decimal(row.leb_bytes()?, *precision, *scale)?,
        TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision } => {
            let millis = row.leb_i64()?;
            timestamp(millis, if *precision <= 3 { 0 } else { row.leb_i32()? })?
        }
        _ => fixed_value(row, kind)?,
    })
}

fn indexed_row(row: &mut Reader<'_>, types: &[&DataType]) -> Result<Vec<Option<Datum>>> {
    let nulls = nulls(row, types.len())?;
    let variable = |kind: &TypeKind| {
        matches!(kind, TypeKind::String | TypeKind::Bytes)
            || matches!(kind, TypeKind::Decimal { precision, .. } if *precision > 18)
            || kind.is_nested()
    };
    let slots = types.iter().filter(|data_type| variable(&data_type.kind)).count();
    let mut lengths = Reader(row.take(slots * 4)?);
    types
        .iter()
        .zip(nulls)
        .map(|(data_type, null)| {
            if null {
                return Ok(None);
            }
            let kind = &data_type.kind;
            if !variable(kind) {
                return indexed_fixed(row, kind).map(Some);
            }
            let bytes = row.take(usize::try_from(lengths.i32()?).map_err(|source| cut().with_source(source))?)?;
            Ok(Some(match kind {
                TypeKind::String => text(bytes)?,
                TypeKind::Decimal { precision, scale } => big_decimal(bytes, *precision, *scale)?,
                TypeKind::Bytes => Datum::Bytes(bytes.to_vec()),
                _ => return Err(Error::unsupported("nested types in the INDEXED log format")),
            }))
        })
        .collect()
}

fn indexed_fixed(row: &mut Reader<'_>, kind: &TypeKind) -> Result<Datum> {
    let bytes_of = |length: u32| usize::try_from(length).unwrap_or(usize::MAX);
    Ok(match kind {
        TypeKind::Int => Datum::Int(row.i32()?),
        TypeKind::Date => Datum::Date(row.i32()?),
        TypeKind::Time { .. } => Datum::Time(row.i32()?),
        TypeKind::BigInt => Datum::BigInt(row.i64()?),
        TypeKind::Decimal { precision, scale } => {
            Datum::Decimal { unscaled: row.i64()?.into(), precision: *precision, scale: *scale }
        }
        TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision } => {
            let millis = row.i64()?;
            timestamp(millis, if *precision <= 3 { 0 } else { row.i32()? })?
        }
        TypeKind::Char { length } => {
            let padded = row.take(bytes_of(*length))?;
            let end = padded.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            text(padded.get(..end).unwrap_or_default())?
        }
        TypeKind::Binary { length } => Datum::Bytes(row.take(bytes_of(*length))?.to_vec()),
        _ => fixed_value(row, kind)?,
    })
}

/// Types that both formats write alike.
fn fixed_value(row: &mut Reader<'_>, kind: &TypeKind) -> Result<Datum> {
    Ok(match kind {
        TypeKind::Boolean => Datum::Boolean(row.byte()? != 0),
        TypeKind::TinyInt => Datum::TinyInt(row.byte()?.cast_signed()),
        TypeKind::SmallInt => Datum::SmallInt(row.chunk().map(i16::from_le_bytes)?),
        TypeKind::Float => Datum::Float(row.chunk().map(f32::from_le_bytes)?),
        TypeKind::Double => Datum::Double(row.chunk().map(f64::from_le_bytes)?),
        _ => return Err(Error::unsupported(format!("type {kind:?} in a row log format"))),
    })
}

fn text(bytes: &[u8]) -> Result<Datum> {
    let text = std::str::from_utf8(bytes).map_err(|source| Error::data("a text is not UTF-8").with_source(source))?;
    Ok(Datum::String(text.to_owned()))
}

fn timestamp(millis: i64, nanos: i32) -> Result<Datum> {
    if (0..1_000_000).contains(&nanos) {
        Ok(Datum::Timestamp { millis, nanos })
    } else {
        Err(Error::data(format!("a timestamp has `{nanos}` nanoseconds of its millisecond")))
    }
}

fn big_decimal(bytes: &[u8], precision: u8, scale: u8) -> Result<Datum> {
    let (Some(first), true) = (bytes.first(), bytes.len() <= 16) else {
        return Err(Error::data(format!("a decimal has `{}` bytes", bytes.len())));
    };
    let start = if first & 0x80 == 0 { 0 } else { -1 };
    let unscaled = bytes.iter().fold(start, |value: i128, byte| value << 8 | i128::from(*byte));
    Ok(Datum::Decimal { unscaled, precision, scale })
}
