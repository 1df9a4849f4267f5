//! Values of a file → the Arrow types of a table's columns (F5.3), nothing lost in silence.
//!
//! Text (JSON, CSV, text columns of Parquet) is read by one set of rules; typed columns of Parquet are cast and compared with
//! what they were. A value that its column can't hold exactly is a fault that names row, column and value.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    Time32MillisecondType, Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, PrimitiveArray, StringArray, make_array, new_null_array,
};
use arrow_buffer::NullBuffer;
use arrow_cast::display::array_value_to_string;
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType as ArrowType, TimeUnit};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::BytesText;
use super::moments::{FINER, date, time, timestamp};
use crate::error::{Error, Result};
use crate::fluss::record::arrow_type;
use crate::model::{DataType, TypeKind};
use crate::paimon::type_text;

/// Characters of a value that a message shows.
const SHOWN_MAX: usize = 40;

/// A value that can't be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BadValue {
    /// Index of the row in its chunk.
    pub(super) row: usize,
    /// Column, and the way down where it is nested.
    pub(super) path: String,
    pub(super) why: String,
}

/// Why a column can't be converted.
#[derive(Debug)]
pub(super) enum Fault {
    /// These values; as many as were asked for at most.
    Values(Vec<BadValue>),
    /// Something else.
    Other(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// How values are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub(super) bytes: BytesText,
    /// Bad values that are told of one column at most, at least 1.
    pub(super) faults_max: usize,
}

/// A value as a message shows it.
pub(super) fn shown(text: &str) -> String {
    let mut short = String::new();
    for char in text.chars().take(SHOWN_MAX) {
        if char.is_control() { short.extend(char.escape_default()) } else { short.push(char) }
    }
    if text.chars().count() > SHOWN_MAX {
        short.push('…');
    }
    short
}

/// `array`, of a column of a file, as the array of a table's column.
pub(super) fn column(array: &ArrayRef, name: &str, data_type: &DataType, reading: Reading) -> Result<ArrayRef, Fault> {
    let target = arrow_type(&data_type.kind)?;
    if *array.data_type() == ArrowType::Null {
        let nothing = new_null_array(&target, array.len());
        required(&nothing, None, name, data_type, reading)?;
        return Ok(nothing);
    }
    let converted = if data_type.kind.is_nested() {
        super::nested::convert(array, name, data_type, reading)?
    } else {
        leaf(array, name, data_type, &target, reading)?
    };
    required(&converted, None, name, data_type, reading)?;
    Ok(converted)
}

/// Refuses NULL where there may be none; where a parent is NULL its children may be anything.
pub(super) fn required(
    array: &ArrayRef,
    parents: Option<&NullBuffer>,
    path: &str,
    data_type: &DataType,
    reading: Reading,
) -> Result<(), Fault> {
    if data_type.nullable || array.null_count() == 0 {
        return Ok(());
    }
    let is_missing = |row: &usize| array.is_null(*row) && parents.is_none_or(|parents| parents.is_valid(*row));
    let bad = (0..array.len()).filter(is_missing).take(reading.faults_max);
    let bad: Vec<BadValue> =
        bad.map(|row| BadValue { row, path: path.to_owned(), why: "no value, and the column is NOT NULL".to_owned() }).collect();
    if bad.is_empty() { Ok(()) } else { Err(Fault::Values(bad)) }
}

/// Whether a column of Parquet can become one of the table's, value by value.
pub(super) fn fits(source: &ArrowType, kind: &TypeKind) -> bool {
    let text = |source: &ArrowType| matches!(source, ArrowType::Utf8 | ArrowType::LargeUtf8 | ArrowType::Utf8View);
    let binary = |source: &ArrowType| {
        matches!(source, ArrowType::Binary | ArrowType::LargeBinary | ArrowType::BinaryView | ArrowType::FixedSizeBinary(_))
    };
    if let ArrowType::Dictionary(_, values) = source {
        return !values.is_nested() && fits(values, kind);
    }
    match kind {
        TypeKind::Array(_) | TypeKind::Multiset(_) | TypeKind::Map(..) | TypeKind::Row(_) => super::nested::fits(source, kind),
        _ if text(source) || *source == ArrowType::Null => true,
        TypeKind::Boolean => *source == ArrowType::Boolean,
        TypeKind::TinyInt | TypeKind::SmallInt | TypeKind::Int | TypeKind::BigInt => source.is_integer(),
        TypeKind::Float => matches!(source, ArrowType::Float16 | ArrowType::Float32) || is_int_of(source, 2),
        TypeKind::Double => matches!(source, ArrowType::Float16 | ArrowType::Float32 | ArrowType::Float64) || is_int_of(source, 4),
        TypeKind::Decimal { .. } => source.is_decimal() || source.is_integer(),
        TypeKind::Char { .. } | TypeKind::VarChar { .. } | TypeKind::String => binary(source),
        TypeKind::Binary { .. } | TypeKind::VarBinary { .. } | TypeKind::Bytes => binary(source),
        TypeKind::Date => matches!(source, ArrowType::Date32 | ArrowType::Date64),
        TypeKind::Time { .. } => matches!(source, ArrowType::Time32(_) | ArrowType::Time64(_)),
        TypeKind::Timestamp { .. } | TypeKind::TimestampLtz { .. } => matches!(source, ArrowType::Timestamp(..)),
    }
}

fn is_int_of(source: &ArrowType, width_max: usize) -> bool {
    source.is_integer() && source.primitive_width().is_some_and(|width| width <= width_max)
}

/// A scalar column.
pub(super) fn leaf(
    array: &ArrayRef,
    path: &str,
    data_type: &DataType,
    target: &ArrowType,
    reading: Reading,
) -> Result<ArrayRef, Fault> {
    let is_text = matches!(data_type.kind, TypeKind::String);
    let plain = match array.data_type() {
        source if source == target && is_text => return Ok(Arc::clone(array)),
        ArrowType::Utf8 => Arc::clone(array),
        ArrowType::LargeUtf8 | ArrowType::Utf8View => cast(array, &ArrowType::Utf8)?,
        ArrowType::Dictionary(_, values) => return leaf(&cast(array, values)?, path, data_type, target, reading),
        _ => return typed(array, path, data_type, target, reading),
    };
    let Some(texts) = plain.as_string_opt::<i32>() else { return Err(Error::internal("text is no text").into()) };
    from_text(texts, path, data_type, target, reading)
}

pub(super) fn cast(array: &ArrayRef, target: &ArrowType) -> Result<ArrayRef> {
    cast_with_options(array, target, &CastOptions { safe: true, ..CastOptions::default() })
        .map_err(|source| Error::invalid(format!("{} as {target}", array.data_type())).with_source(source))
}

/// Casts, and refuses each value that would not be the same when cast back.
fn typed(array: &ArrayRef, path: &str, data_type: &DataType, target: &ArrowType, reading: Reading) -> Result<ArrayRef, Fault> {
    let array = &without_zone(array)?;
    if matches!(data_type.kind, TypeKind::Time { precision } if precision > 3) {
        // A TIME holds milliseconds, whatever its precision (F5.3).
        let millis = same_after_cast(array, &ArrowType::Time32(TimeUnit::Millisecond), path, data_type, reading)?;
        return Ok(cast(&millis, target)?);
    }
    let cast = same_after_cast(array, target, path, data_type, reading)?;
    if let TypeKind::Char { .. } | TypeKind::Decimal { .. } | TypeKind::Timestamp { .. } | TypeKind::TimestampLtz { .. } =
        data_type.kind
    {
        fine(&cast, path, data_type, reading)?;
    }
    Ok(cast)
}

fn same_after_cast(
    array: &ArrayRef,
    target: &ArrowType,
    path: &str,
    data_type: &DataType,
    reading: Reading,
) -> Result<ArrayRef, Fault> {
    if array.data_type() == target {
        return Ok(Arc::clone(array));
    }
    let there = cast(array, target)?;
    let back = cast(&there, array.data_type())?;
    if back.as_ref() == array.as_ref() {
        return Ok(there);
    }
    let differs = |row: &usize| back.slice(*row, 1).as_ref() != array.slice(*row, 1).as_ref();
    let bad = (0..array.len()).filter(differs).take(reading.faults_max);
    Err(Fault::Values(
        bad.map(|row| refusal(&array_value_to_string(array, row).unwrap_or_default(), "", row, path, data_type)).collect(),
    ))
}

/// What a value may have although the column's precision or length says no: digits, those of its time unit, characters.
fn fine(array: &ArrayRef, path: &str, data_type: &DataType, reading: Reading) -> Result<(), Fault> {
    let fault: Box<dyn Fn(usize) -> Option<&'static str> + '_> = match (&data_type.kind, array.data_type()) {
        (TypeKind::Char { length }, _) => {
            let Some(texts) = array.as_string_opt::<i32>() else { return Ok(()) };
            let length = *length as usize;
            Box::new(move |row| (texts.value(row).chars().count() > length).then_some("too long"))
        }
        // A file says how many digits its decimals have, and need not keep to it.
        (TypeKind::Decimal { precision, .. }, _) => {
            let Some(values) = array.as_primitive_opt::<Decimal128Type>() else { return Ok(()) };
            let end = 10_u128.pow(u32::from((*precision).min(38)));
            Box::new(move |row| (values.value(row).unsigned_abs() >= end).then_some("too many digits"))
        }
        (TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision }, ArrowType::Timestamp(unit, _)) => {
            let digits: u32 = match unit {
                TimeUnit::Second => 0,
                TimeUnit::Millisecond => 3,
                TimeUnit::Microsecond => 6,
                TimeUnit::Nanosecond => 9,
            };
            let step = 10_i64.pow(digits.saturating_sub(u32::from(*precision)));
            if step == 1 {
                return Ok(());
            }
            let raw = reinterpreted(array, ArrowType::Int64)?;
            let values = raw.as_primitive::<Int64Type>().values().clone();
            Box::new(move |row| values.get(row).is_some_and(|value| value % step != 0).then_some(FINER))
        }
        _ => return Ok(()),
    };
    let bad = (0..array.len()).filter(|row| array.is_valid(*row)).filter_map(|row| fault(row).map(|why| (row, why)));
    let bad: Vec<BadValue> = bad
        .take(reading.faults_max)
        .map(|(row, why)| refusal(&array_value_to_string(array, row).unwrap_or_default(), why, row, path, data_type))
        .collect();
    if bad.is_empty() { Ok(()) } else { Err(Fault::Values(bad)) }
}

/// An instant as its UTC clock time: what both kinds of TIMESTAMP hold.
fn without_zone(array: &ArrayRef) -> Result<ArrayRef> {
    match array.data_type() {
        ArrowType::Timestamp(unit, Some(_)) => reinterpreted(array, ArrowType::Timestamp(*unit, None)),
        _ => Ok(Arc::clone(array)),
    }
}

fn reinterpreted(array: &ArrayRef, data_type: ArrowType) -> Result<ArrayRef> {
    let data = array.to_data().into_builder().data_type(data_type).build();
    data.map(make_array).map_err(|source| Error::internal("look at an array otherwise").with_source(source))
}

fn refusal(text: &str, why: &str, row: usize, path: &str, data_type: &DataType) -> BadValue {
    let kind = type_text(&DataType::nullable(data_type.kind.clone()));
    let colon = if why.is_empty() { "" } else { ": " };
    BadValue { row, path: path.to_owned(), why: format!("`{}` is no {kind}{colon}{why}", shown(text)) }
}

fn from_text(
    texts: &StringArray,
    path: &str,
    data_type: &DataType,
    target: &ArrowType,
    reading: Reading,
) -> Result<ArrayRef, Fault> {
    let mut bad = Vec::new();
    let mut refuse = |row: usize, why: &str| {
        if bad.len() < reading.faults_max {
            bad.push(refusal(texts.value(row), why, row, path, data_type));
        }
    };
    macro_rules! parse {
        ($arrow:ty, $read:expr) => {
            Arc::new(primitive::<$arrow>(texts, &mut refuse, $read)) as ArrayRef
        };
    }
    macro_rules! integer {
        ($arrow:ty) => {
            parse!($arrow, |text: &str| text.trim().parse().ok().ok_or(""))
        };
    }
    let array = match &data_type.kind {
        TypeKind::Boolean => Arc::new(values(texts, &mut refuse, boolean).into_iter().collect::<BooleanArray>()) as ArrayRef,
        TypeKind::TinyInt => integer!(Int8Type),
        TypeKind::SmallInt => integer!(Int16Type),
        TypeKind::Int => integer!(Int32Type),
        TypeKind::BigInt => integer!(Int64Type),
        TypeKind::Float => parse!(Float32Type, |text: &str| float(text, |value: &f32| value.is_infinite())),
        TypeKind::Double => parse!(Float64Type, |text: &str| float(text, |value: &f64| value.is_infinite())),
        TypeKind::Decimal { precision, scale } => {
            let read = parse!(Decimal128Type, |text: &str| decimal(text.trim(), *precision, *scale));
            reinterpreted(&read, target.clone())?
        }
        TypeKind::Char { length } => {
            let length = *length as usize;
            let read = |text: &str| if text.chars().count() > length { Err("too long") } else { Ok(text.to_owned()) };
            Arc::new(values(texts, &mut refuse, read).into_iter().collect::<StringArray>())
        }
        TypeKind::VarChar { .. } | TypeKind::String => Arc::new(texts.clone()),
        TypeKind::Binary { length } => {
            let length = *length as usize;
            let read = |text: &str| {
                bytes(text, reading.bytes).and_then(|bytes| if bytes.len() == length { Ok(bytes) } else { Err("another length") })
            };
            let all = values(texts, &mut refuse, read);
            let width = i32::try_from(length).map_err(|source| Error::data("length of BINARY").with_source(source))?;
            let array = FixedSizeBinaryArray::try_from_sparse_iter_with_size(all.into_iter(), width);
            Arc::new(array.map_err(|source| Error::internal("make BINARY").with_source(source))?)
        }
        TypeKind::VarBinary { .. } | TypeKind::Bytes => {
            let all = values(texts, &mut refuse, |text| bytes(text, reading.bytes));
            Arc::new(all.iter().map(Option::as_deref).collect::<BinaryArray>())
        }
        TypeKind::Date => parse!(Date32Type, |text: &str| date(text.trim())),
        TypeKind::Time { precision } => {
            let digits = (*precision).min(3);
            let unit = |nanos: i64| move |text: &str| time(text.trim(), digits).map(|value| value / nanos);
            let narrow = |nanos: i64| {
                move |text: &str| time(text.trim(), digits).and_then(|value| i32::try_from(value / nanos).ok().ok_or(""))
            };
            match precision {
                0 => parse!(Time32SecondType, narrow(1_000_000_000)),
                1..=3 => parse!(Time32MillisecondType, narrow(1_000_000)),
                4..=6 => parse!(Time64MicrosecondType, unit(1000)),
                _ => parse!(Time64NanosecondType, unit(1)),
            }
        }
        TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision } => {
            let zoned = matches!(data_type.kind, TypeKind::TimestampLtz { .. });
            // Ticks of the unit; only those of nanoseconds can be too many.
            let read = |ticks: i64| {
                move |text: &str| {
                    let (seconds, nanos) = timestamp(text.trim(), *precision, zoned)?;
                    let whole = seconds.checked_mul(ticks).ok_or("too far from 1970 for nanoseconds")?;
                    whole.checked_add(nanos / (1_000_000_000 / ticks)).ok_or("too far from 1970 for nanoseconds")
                }
            };
            match precision {
                0 => parse!(TimestampSecondType, read(1)),
                1..=3 => parse!(TimestampMillisecondType, read(1000)),
                4..=6 => parse!(TimestampMicrosecondType, read(1_000_000)),
                _ => parse!(TimestampNanosecondType, read(1_000_000_000)),
            }
        }
        TypeKind::Array(_) | TypeKind::Multiset(_) | TypeKind::Map(..) | TypeKind::Row(_) => {
            return Err(Error::invalid(format!("column `{path}` is nested and can't come from text")).into());
        }
    };
    if bad.is_empty() { Ok(array) } else { Err(Fault::Values(bad)) }
}

/// Each text read; what can't be is told to `refuse`.
fn values<T>(
    texts: &StringArray,
    refuse: &mut impl FnMut(usize, &str),
    read: impl Fn(&str) -> Result<T, &'static str>,
) -> Vec<Option<T>> {
    let read = |(row, text): (usize, Option<&str>)| read(text?).map_err(|why| refuse(row, why)).ok();
    texts.iter().enumerate().map(read).collect()
}

fn primitive<T: ArrowPrimitiveType>(
    texts: &StringArray,
    refuse: &mut impl FnMut(usize, &str),
    read: impl Fn(&str) -> Result<T::Native, &'static str>,
) -> PrimitiveArray<T> {
    let read = |(row, text): (usize, Option<&str>)| read(text?).map_err(|why| refuse(row, why)).ok();
    texts.iter().enumerate().map(read).collect()
}

fn boolean(text: &str) -> Result<bool, &'static str> {
    match text.trim() {
        text if text.eq_ignore_ascii_case("true") => Ok(true),
        text if text.eq_ignore_ascii_case("false") => Ok(false),
        _ => Err(""),
    }
}

fn float<T: std::str::FromStr>(text: &str, is_infinite: impl Fn(&T) -> bool) -> Result<T, &'static str> {
    let value: T = text.trim().parse().ok().ok_or("")?;
    // `inf` says so; digits that become infinite are too many.
    if is_infinite(&value) && text.bytes().any(|byte| byte.is_ascii_digit()) { Err("too large") } else { Ok(value) }
}

/// Digits with an optional point and exponent, as an unscaled number. Digits that the scale has no place for must be zeros.
fn decimal(text: &str, precision: u8, scale: u8) -> Result<i128, &'static str> {
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (number, exponent) = match rest.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, exponent.parse::<i32>().ok().ok_or("")?),
        None => (rest, 0),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
        return Err("");
    }
    let fraction = fraction.trim_end_matches('0');
    // Value = digits · 10^power, and unscaled = value · 10^scale.
    let length = i32::try_from(fraction.len()).ok().ok_or("too long")?;
    let shift = exponent.saturating_sub(length).saturating_add(i32::from(scale));
    let mut unscaled: i128 = 0;
    let mut digits = whole.bytes().chain(fraction.bytes()).map(|byte| i128::from(byte - b'0')).peekable();
    let count = whole.len() + fraction.len();
    let kept = usize::try_from(i64::try_from(count).ok().ok_or("too long")? + i64::from(shift.min(0))).unwrap_or(0);
    let grow = |unscaled: i128, digit: i128| unscaled.checked_mul(10).and_then(|value| value.checked_add(digit)).ok_or("too large");
    for digit in digits.by_ref().take(kept) {
        unscaled = grow(unscaled, digit)?;
    }
    if digits.any(|digit| digit != 0) {
        return Err("more digits behind the point than the column has");
    }
    if unscaled != 0 {
        for _ in 0..shift.max(0) {
            unscaled = grow(unscaled, 0)?;
        }
    }
    if unscaled >= 10_i128.pow(u32::from(precision.min(38))) {
        return Err("too large");
    }
    Ok(if negative { -unscaled } else { unscaled })
}

fn bytes(text: &str, form: BytesText) -> Result<Vec<u8>, &'static str> {
    match form {
        BytesText::Base64 => BASE64_STANDARD.decode(text.trim()).ok().ok_or("not base64; `--bytes hex` reads hex"),
        BytesText::Hex => {
            let text = text.trim();
            let digits = text.strip_prefix("0x").unwrap_or(text).as_bytes();
            let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            let pair = |pair: &[u8]| match pair {
                [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
                _ => None,
            };
            digits.chunks(2).map(pair).collect::<Option<Vec<u8>>>().ok_or("not hex")
        }
    }
}

#[cfg(test)]
mod tests;
