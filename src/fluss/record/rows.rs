//! Batches in row formats, INDEXED and COMPACTED (F5.4, F5.8) → the Arrow types of F5.3.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::SchemaRef;

use super::columns::{Allowance, Column};
use super::decode::{LogFormat, change_kind, changes_or_none};
use crate::error::{Error, Result};
use crate::model::{ChangeKind, Datum, Schema, TypeKind};

/// Length and change type.
const RECORD_BYTES_MIN: usize = 5;

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

/// Decodes `count` records. The types of their changes come with the records. Errors name record and field by number.
pub(super) fn decode(
    payload: &[u8],
    count: usize,
    format: LogFormat,
    schema: &Schema,
    arrow: &SchemaRef,
) -> Result<(RecordBatch, Option<Vec<ChangeKind>>)> {
    if payload.len() / RECORD_BYTES_MIN < count {
        return Err(Error::data(format!("`{count}` records do not fit into `{}` bytes", payload.len())));
    }
    let mut columns = schema.fields.iter().map(|field| Column::of(&field.data_type)).collect::<Result<Vec<_>>>()?;
    let mut decoder = Decoder { format, allowance: Allowance::of(payload.len()) };
    let mut changes = Vec::with_capacity(count);
    let mut records = Reader(payload);
    for number in 0..count {
        let change = decoder.record(&mut records, &mut columns);
        changes.push(change.map_err(|error| error.context(format!("record `{number}`")))?);
    }
    Ok((batch(columns, count, arrow)?, changes_or_none(changes)))
}

/// Decodes rows that stand alone, as states have them.
pub(super) fn decode_plain<'a>(
    rows: impl Iterator<Item = &'a [u8]> + Clone,
    format: LogFormat,
    schema: &Schema,
    arrow: &SchemaRef,
) -> Result<RecordBatch> {
    let bytes = rows.clone().fold(0_usize, |bytes, row| bytes.saturating_add(row.len()));
    let mut columns = schema.fields.iter().map(|field| Column::of(&field.data_type)).collect::<Result<Vec<_>>>()?;
    let mut decoder = Decoder { format, allowance: Allowance::of(bytes) };
    let mut count = 0;
    for row in rows {
        decoder.row(&mut Reader(row), &mut columns).map_err(|error| error.context(format!("record `{count}`")))?;
        count += 1;
    }
    batch(columns, count, arrow)
}

fn batch(columns: Vec<Column<'_>>, count: usize, arrow: &SchemaRef) -> Result<RecordBatch> {
    let arrays = columns.into_iter().zip(arrow.fields()).map(|(column, field)| column.finish(field.data_type()));
    let arrays: Vec<ArrayRef> = arrays.collect::<Result<_>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(count));
    RecordBatch::try_new_with_options(Arc::clone(arrow), arrays, &options)
        .map_err(|source| Error::data("the records do not fit the schema").with_source(source))
}

fn nulls(row: &mut Reader<'_>, fields: usize) -> Result<Vec<bool>> {
    let bits = row.take(fields.div_ceil(8))?;
    Ok((0..fields).map(|field| bits.get(field / 8).is_some_and(|byte| byte >> (field % 8) & 1 == 1)).collect())
}

/// Reads rows, and what is nested in them, to the ends of columns.
struct Decoder {
    format: LogFormat,
    allowance: Allowance,
}

impl Decoder {
    /// A record of a batch: its length, what it does, its row.
    fn record(&mut self, records: &mut Reader<'_>, columns: &mut [Column<'_>]) -> Result<ChangeKind> {
        let length = usize::try_from(records.i32()?).map_err(|source| cut().with_source(source))?;
        let mut record = Reader(records.take(length)?);
        let change = change_kind(record.byte()?)?;
        self.row(&mut record, columns)?;
        Ok(change)
    }

    /// One row; a ROW inside has the form of the rows around it.
    fn row(&mut self, row: &mut Reader<'_>, columns: &mut [Column<'_>]) -> Result<()> {
        let nulls = nulls(row, columns.len())?;
        let indexed = self.format == LogFormat::Indexed;
        let slots = if indexed {
            columns.iter().filter(|column| !matches!(column, Column::Scalar { kind, .. } if !has_length(kind))).count()
        } else {
            0
        };
        let mut lengths = Reader(row.take(slots * 4)?);
        for (at, (column, null)) in columns.iter_mut().zip(nulls).enumerate() {
            let done = if null { column.push_null(&mut self.allowance) } else { self.field(row, &mut lengths, column) };
            done.map_err(|error| error.context(format!("field `{at}`")))?;
        }
        Ok(())
    }

    /// A field that is not NULL. `lengths`: of an IndexedRow.
    fn field(&mut self, row: &mut Reader<'_>, lengths: &mut Reader<'_>, column: &mut Column<'_>) -> Result<()> {
        let indexed = self.format == LogFormat::Indexed;
        let bytes = match column {
            Column::Scalar { kind, values } if !indexed => return self.push(values, compacted_value(row, kind)?),
            Column::Scalar { kind, values } if !has_length(kind) => return self.push(values, indexed_fixed(row, kind)?),
            _ if indexed => row.take(usize::try_from(lengths.i32()?).map_err(|source| cut().with_source(source))?)?,
            _ => row.leb_bytes()?,
        };
        match column {
            Column::Scalar { kind, values } => self.push(values, variable(bytes, kind)?),
            nested => self.nested(bytes, nested),
        }
    }

    fn push(&mut self, values: &mut Vec<Option<Datum>>, value: Datum) -> Result<()> {
        let heap = match &value {
            Datum::String(text) => text.len(),
            Datum::Bytes(bytes) => bytes.len(),
            _ => 0,
        };
        self.allowance.take(size_of::<Option<Datum>>() + heap)?;
        values.push(Some(value));
        Ok(())
    }

    /// A list, map or row from its own bytes.
    fn nested(&mut self, bytes: &[u8], column: &mut Column<'_>) -> Result<()> {
        match column {
            Column::List { element, .. } => {
                self.elements(bytes, element)?;
            }
            Column::Map { key, value, .. } => {
                let mut map = Reader(bytes);
                let length = usize::try_from(map.i32()?).map_err(|source| cut().with_source(source))?;
                let keys = self.elements(map.take(length)?, key)?;
                let values = self.elements(map.0, value)?;
                if keys != values {
                    return Err(Error::data(format!("a map has `{keys}` keys and `{values}` values")));
                }
            }
            Column::Row { fields, valid } => {
                self.allowance.take(1)?;
                self.row(&mut Reader(bytes), fields)?;
                valid.push(true);
                return Ok(());
            }
            Column::Scalar { .. } => return Err(Error::internal("a scalar as nested value")),
        }
        column.end_list(true, &mut self.allowance)
    }

    /// The elements of a BinaryArray, and how many they are.
    fn elements(&mut self, array: &[u8], column: &mut Column<'_>) -> Result<usize> {
        let width = slot_bytes(column);
        let mut head = Reader(array);
        let count = usize::try_from(head.i32()?).map_err(|source| cut().with_source(source))?;
        let slots = count.checked_mul(width).ok_or_else(cut)?;
        let nulls = head.take(count.div_ceil(32).saturating_mul(4))?;
        let slots = head.take(slots)?;
        for (index, slot) in slots.chunks_exact(width).enumerate() {
            if nulls.get(index / 8).is_some_and(|byte| byte >> (index % 8) & 1 == 1) {
                column.push_null(&mut self.allowance)?;
                continue;
            }
            match column {
                Column::Scalar { kind, values } => self.push(values, element(array, slot, kind)?)?,
                _ => self.nested(slot_data(array, slot)?, column)?,
            }
        }
        Ok(count)
    }
}

/// Whether an IndexedRow keeps the length of such a scalar apart, as it does for everything nested.
fn has_length(kind: &TypeKind) -> bool {
    matches!(kind, TypeKind::String | TypeKind::Bytes | TypeKind::Decimal { precision: 19.., .. })
}

/// Bytes of an element's slot in a BinaryArray.
const fn slot_bytes(column: &Column<'_>) -> usize {
    match column {
        Column::Scalar { kind: TypeKind::Boolean | TypeKind::TinyInt, .. } => 1,
        Column::Scalar { kind: TypeKind::SmallInt, .. } => 2,
        Column::Scalar { kind: TypeKind::Int | TypeKind::Date | TypeKind::Time { .. } | TypeKind::Float, .. } => 4,
        _ => 8,
    }
}

/// Low and high half of a slot: mostly length and offset.
fn halves(slot: &[u8]) -> Result<(i32, i32)> {
    let mut slot = Reader(slot);
    Ok((slot.i32()?, slot.i32()?))
}

/// What a slot of offset and length points at.
fn slot_data<'a>(array: &'a [u8], slot: &[u8]) -> Result<&'a [u8]> {
    let (length, offset) = halves(slot)?;
    let range = usize::try_from(offset).ok().zip(usize::try_from(length).ok());
    let range = range.and_then(|(offset, length)| Some(offset..offset.checked_add(length)?));
    range.and_then(|range| array.get(range)).ok_or_else(|| Error::data("an element of a list lies outside of it"))
}

/// A text or bytes: up to seven bytes lie in the slot itself.
fn slot_bytes_of<'a>(array: &'a [u8], slot: &'a [u8]) -> Result<&'a [u8]> {
    match slot.last() {
        Some(last) if last & 0x80 != 0 => slot.get(..usize::from(last & 0x7f)).filter(|data| data.len() < 8).ok_or_else(cut),
        _ => slot_data(array, slot),
    }
}

/// The element of a BinaryArray in `slot`.
fn element(array: &[u8], slot: &[u8], kind: &TypeKind) -> Result<Datum> {
    match kind {
        TypeKind::Char { .. } | TypeKind::String => text(slot_bytes_of(array, slot)?),
        TypeKind::Binary { .. } | TypeKind::Bytes => Ok(Datum::Bytes(slot_bytes_of(array, slot)?.to_vec())),
        TypeKind::Decimal { precision: 19.., .. } => variable(slot_data(array, slot)?, kind),
        TypeKind::Timestamp { precision: 4.. } | TypeKind::TimestampLtz { precision: 4.. } => {
            let (nanos, offset) = halves(slot)?;
            let millis = usize::try_from(offset).ok().and_then(|offset| array.get(offset..)).ok_or_else(cut)?;
            timestamp(Reader(millis).i64()?, nanos)
        }
        _ => indexed_fixed(&mut Reader(slot), kind),
    }
}

/// A value of a type whose length stands apart.
fn variable(bytes: &[u8], kind: &TypeKind) -> Result<Datum> {
    match kind {
        TypeKind::String => text(bytes),
        TypeKind::Bytes => Ok(Datum::Bytes(bytes.to_vec())),
        TypeKind::Decimal { precision, scale } => big_decimal(bytes, *precision, *scale),
        _ => Err(Error::internal(format!("type {kind:?} with a length of its own"))),
    }
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
