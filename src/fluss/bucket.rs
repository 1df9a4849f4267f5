//! Bucket functions: which bucket a row's key falls into (F6.7). Writers hash by the table's lake format, so that Fluss and lake agree.
//!
//! Owns key bytes and hashes for log tables. Rows without bucket key go anywhere; that choice is the writer's.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType,
    Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use arrow_array::{Array, ArrayRef};

use super::partition::{civil_text, java_double, java_float};
use super::record::arrow_type;
use crate::error::{Error, Result};
use crate::model::{TableInfo, TypeKind};
use crate::paimon::{RowWriter, bucket_of_hash, murmur_hash};

/// How keys are hashed, by the table's lake format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BucketFunction {
    /// Paimon's default function over its BinaryRow.
    Paimon,
    /// Iceberg's, over exactly one column.
    Iceberg,
    /// Hudi's, over the columns' text.
    Hudi,
    /// Fluss's own: no lake format, and Lance.
    Fluss,
}

impl BucketFunction {
    /// The function of a log table (`table.datalake.format`, also while its lake is disabled).
    ///
    /// # Errors
    /// `Unsupported` for a primary-key table, or a format that is unknown.
    pub fn of(table: &TableInfo) -> Result<Self> {
        if table.has_primary_key() {
            return Err(Error::unsupported(format!("bucket keys of primary-key table `{}`", table.path)));
        }
        match table.properties.get("table.datalake.format").map(|format| format.to_ascii_lowercase()).as_deref() {
            None | Some("lance") => Ok(Self::Fluss),
            Some("paimon") => Ok(Self::Paimon),
            Some("iceberg") => Ok(Self::Iceberg),
            Some("hudi") => Ok(Self::Hudi),
            Some(other) => Err(Error::unsupported(format!("lake format `{other}` of `{}`", table.path))),
        }
    }
}

/// The bucket of each row, `0..count`, by its bucket-key columns in key order, each with its Fluss type (columns in the types of F5.3).
///
/// # Errors
/// `Invalid` when the function refuses a key (NULL, type, empty value), there are no columns, or `count` is below 1;
/// `Internal` when a column is not of its type.
///
/// Source: F6.7.
pub fn buckets_of(function: BucketFunction, columns: &[(&TypeKind, &ArrayRef)], count: i32) -> Result<Vec<i32>> {
    let rows = columns.first().map_or(0, |(_, array)| array.len());
    if columns.is_empty() || count < 1 || columns.iter().any(|(_, array)| array.len() != rows) {
        return Err(Error::invalid(format!("buckets of `{}` key columns among `{count}`", columns.len())));
    }
    let columns: Vec<Column<'_>> = columns.iter().map(|(kind, array)| Column::of(kind, array)).collect::<Result<_>>()?;
    let mut hasher = Hasher::new(function, columns.len());
    let mut key = Vec::with_capacity(columns.len());
    let bucket = |row: usize| {
        key.clear();
        key.extend(columns.iter().map(|column| column.value(row)));
        hasher.bucket(&key, count)
    };
    (0..rows).map(bucket).collect()
}

#[derive(Debug, Clone, Copy)]
enum Value<'a> {
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

struct Column<'a> {
    array: &'a dyn Array,
    read: Box<dyn Fn(usize) -> Value<'a> + 'a>,
}

impl<'a> Column<'a> {
    fn of(kind: &TypeKind, array: &'a ArrayRef) -> Result<Self> {
        if kind.is_nested() {
            return Err(Error::invalid(format!("a bucket key of type {kind:?}")));
        }
        if *array.data_type() != arrow_type(kind)? {
            return Err(Error::internal(format!("a bucket key of type {kind:?} in an array of {:?}", array.data_type())));
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
        let timestamp = move |millis, nanos| Value::Timestamp { millis, nanos, precision, zoned };
        let split = move |value: i64, per_milli: i64| {
            let nanos = i32::try_from(value.rem_euclid(per_milli) * (1_000_000 / per_milli)).unwrap_or_default();
            timestamp(value.div_euclid(per_milli), nanos)
        };
        let time = |millis: i64| Value::Time(i32::try_from(millis).unwrap_or_default());
        let read: Box<dyn Fn(usize) -> Value<'a> + 'a> = match kind {
            TypeKind::Boolean => Box::new(|row| Value::Boolean(array.as_boolean().value(row))),
            TypeKind::TinyInt => plain!(Int8Type, Value::I8),
            TypeKind::SmallInt => plain!(Int16Type, Value::I16),
            TypeKind::Int => plain!(Int32Type, Value::I32),
            TypeKind::BigInt => plain!(Int64Type, Value::I64),
            TypeKind::Float => plain!(Float32Type, Value::F32),
            TypeKind::Double => plain!(Float64Type, Value::F64),
            TypeKind::Date => plain!(Date32Type, Value::Date),
            TypeKind::Decimal { precision, scale } => {
                let (precision, scale) = (*precision, *scale);
                plain!(Decimal128Type, |unscaled| Value::Decimal { unscaled, precision, scale })
            }
            TypeKind::Char { .. } | TypeKind::String => Box::new(|row| Value::Text(array.as_string::<i32>().value(row))),
            TypeKind::Binary { .. } => Box::new(|row| Value::Bytes(array.as_fixed_size_binary().value(row))),
            TypeKind::Bytes => Box::new(|row| Value::Bytes(array.as_binary::<i32>().value(row))),
            TypeKind::Time { .. } => match precision {
                0 => plain!(Time32SecondType, |value| time(i64::from(value) * 1000)),
                1..=3 => plain!(Time32MillisecondType, Value::Time),
                4..=6 => plain!(Time64MicrosecondType, |value: i64| time(value.div_euclid(1000))),
                _ => plain!(Time64NanosecondType, |value: i64| time(value.div_euclid(1_000_000))),
            },
            _ => match precision {
                0 => plain!(TimestampSecondType, |value: i64| timestamp(value.saturating_mul(1000), 0)),
                1..=3 => plain!(TimestampMillisecondType, |value| timestamp(value, 0)),
                4..=6 => plain!(TimestampMicrosecondType, |value| split(value, 1000)),
                _ => plain!(TimestampNanosecondType, |value| split(value, 1_000_000)),
            },
        };
        Ok(Self { array, read })
    }

    fn value(&self, row: usize) -> Option<Value<'a>> {
        if self.array.is_null(row) { None } else { Some((self.read)(row)) }
    }
}

/// Hashes keys one after another, with one buffer.
struct Hasher {
    function: BucketFunction,
    writer: RowWriter,
    bytes: Vec<u8>,
}

impl Hasher {
    fn new(function: BucketFunction, arity: usize) -> Self {
        Self { function, writer: RowWriter::new(arity), bytes: vec![] }
    }

    fn bucket(&mut self, key: &[Option<Value<'_>>], count: i32) -> Result<i32> {
        self.encode(key)?;
        let positive = |hash: i32| hash & i32::MAX;
        Ok(match self.function {
            BucketFunction::Paimon => bucket_of_hash(murmur_hash(self.key_bytes()), count),
            BucketFunction::Iceberg => positive(murmur(0, &self.bytes, Tail::Standard)) % count,
            BucketFunction::Hudi => positive(self.bytes.iter().fold(0, |hash: i32, byte| hash << 8 | i32::from(*byte))) % count,
            BucketFunction::Fluss => flink_mix(murmur(42, &self.bytes, Tail::Flink)) % count,
        })
    }

    fn key_bytes(&self) -> &[u8] {
        if self.function == BucketFunction::Paimon { self.writer.row_bytes() } else { &self.bytes }
    }

    fn encode(&mut self, key: &[Option<Value<'_>>]) -> Result<()> {
        self.bytes.clear();
        match self.function {
            BucketFunction::Paimon => paimon_row(&mut self.writer, key),
            BucketFunction::Iceberg => {
                let [Some(value)] = key else { return Err(Error::invalid("an Iceberg bucket key is one column and not NULL")) };
                iceberg_bytes(&mut self.bytes, *value)?;
            }
            BucketFunction::Hudi => self.bytes.extend(hudi_hash(key)?.to_be_bytes()),
            BucketFunction::Fluss => {
                for value in key {
                    let value = value.ok_or_else(|| Error::invalid("a bucket key is NULL"))?;
                    compacted_bytes(&mut self.bytes, value);
                }
            }
        }
        Ok(())
    }
}

fn paimon_row(writer: &mut RowWriter, key: &[Option<Value<'_>>]) {
    writer.reset();
    for (field, value) in key.iter().enumerate() {
        match value {
            // Whatever the type, Fluss keeps no place in the variable part, unlike Paimon's own projection (F6.7).
            None => writer.null(field, &TypeKind::Int),
            Some(Value::Boolean(value)) => writer.boolean(field, *value),
            Some(Value::I8(value)) => writer.i8(field, *value),
            Some(Value::I16(value)) => writer.i16(field, *value),
            Some(Value::I32(value) | Value::Date(value) | Value::Time(value)) => writer.i32(field, *value),
            Some(Value::I64(value)) => writer.i64(field, *value),
            Some(Value::F32(value)) => writer.f32(field, *value),
            Some(Value::F64(value)) => writer.f64(field, *value),
            Some(Value::Text(value)) => writer.bytes(field, value.as_bytes()),
            Some(Value::Bytes(value)) => writer.bytes(field, value),
            Some(Value::Decimal { unscaled, precision, .. }) => writer.decimal(field, *unscaled, *precision),
            Some(Value::Timestamp { millis, nanos, precision, .. }) => writer.timestamp(field, *millis, *nanos, *precision),
        }
    }
}

/// Shortest big-endian two's complement.
fn push_minimal(bytes: &mut Vec<u8>, value: i128) {
    let spare = if value < 0 { (!value).leading_zeros() } else { value.leading_zeros() };
    // One sign bit stays.
    let keep = 16 - usize::try_from(spare.saturating_sub(1) / 8).unwrap_or_default().min(15);
    bytes.extend(value.to_be_bytes().iter().skip(16 - keep));
}

fn iceberg_bytes(bytes: &mut Vec<u8>, value: Value<'_>) -> Result<()> {
    match value {
        Value::I32(value) | Value::Date(value) => bytes.extend(i64::from(value).to_le_bytes()),
        Value::I64(value) => bytes.extend(value.to_le_bytes()),
        Value::Time(value) => bytes.extend((i64::from(value) * 1000).to_le_bytes()),
        Value::Timestamp { millis, nanos, zoned: false, .. } => {
            let micros = millis.checked_mul(1000).and_then(|micros| micros.checked_add(i64::from(nanos / 1000)));
            bytes.extend(micros.ok_or_else(|| Error::invalid("a timestamp is too far away"))?.to_le_bytes());
        }
        Value::F32(value) => bytes.extend(value.to_le_bytes()),
        Value::F64(value) => bytes.extend(value.to_le_bytes()),
        Value::Decimal { unscaled, .. } => push_minimal(bytes, unscaled),
        Value::Text(value) => bytes.extend_from_slice(value.as_bytes()),
        Value::Bytes(value) => bytes.extend_from_slice(value),
        Value::Boolean(_) | Value::I8(_) | Value::I16(_) | Value::Timestamp { .. } => {
            return Err(Error::invalid("a type that can't be an Iceberg bucket key"));
        }
    }
    if bytes.is_empty() { Err(Error::invalid("an Iceberg bucket key is empty")) } else { Ok(()) }
}

fn push_leb(bytes: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            return bytes.push(low & 0x7f);
        }
        bytes.push(low | 0x80);
    }
}

fn push_sized(bytes: &mut Vec<u8>, value: &[u8]) {
    push_leb(bytes, value.len() as u64);
    bytes.extend_from_slice(value);
}

/// CompactedRow values (F5.8) without NULL bits.
fn compacted_bytes(bytes: &mut Vec<u8>, value: Value<'_>) {
    match value {
        Value::Boolean(value) => bytes.push(u8::from(value)),
        Value::I8(value) => bytes.extend(value.to_le_bytes()),
        Value::I16(value) => bytes.extend(value.to_le_bytes()),
        Value::I32(value) | Value::Date(value) | Value::Time(value) => push_leb(bytes, value.cast_unsigned().into()),
        Value::I64(value) => push_leb(bytes, value.cast_unsigned()),
        Value::F32(value) => bytes.extend(value.to_le_bytes()),
        Value::F64(value) => bytes.extend(value.to_le_bytes()),
        Value::Text(value) => push_sized(bytes, value.as_bytes()),
        Value::Bytes(value) => push_sized(bytes, value),
        Value::Decimal { unscaled, precision, .. } if precision <= 18 => {
            push_leb(bytes, i64::try_from(unscaled).unwrap_or_default().cast_unsigned());
        }
        Value::Decimal { unscaled, .. } => {
            let mut minimal = Vec::with_capacity(16);
            push_minimal(&mut minimal, unscaled);
            push_sized(bytes, &minimal);
        }
        Value::Timestamp { millis, nanos, precision, .. } => {
            push_leb(bytes, millis.cast_unsigned());
            if precision > 3 {
                push_leb(bytes, nanos.cast_unsigned().into());
            }
        }
    }
}

/// `Arrays.hashCode` of Java over the hashes of the columns' texts.
fn hudi_hash(key: &[Option<Value<'_>>]) -> Result<i32> {
    let mut hash = 1_i32;
    for value in key {
        let text = match value {
            None if key.len() == 1 => "__null__".to_owned(),
            None => String::new(),
            Some(value) => java_text(*value)?,
        };
        if key.len() > 1 && text.contains(',') {
            return Err(Error::invalid("a Hudi bucket key of several columns has a comma in a value"));
        }
        let of_text = text.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
        hash = hash.wrapping_mul(31).wrapping_add(of_text);
    }
    Ok(hash)
}

fn java_text(value: Value<'_>) -> Result<String> {
    Ok(match value {
        Value::Boolean(value) => value.to_string(),
        Value::I8(value) => value.to_string(),
        Value::I16(value) => value.to_string(),
        Value::I32(value) | Value::Date(value) | Value::Time(value) => value.to_string(),
        Value::I64(value) => value.to_string(),
        Value::F32(value) => java_float(value),
        Value::F64(value) => java_double(value),
        Value::Text(value) => value.to_owned(),
        Value::Decimal { unscaled, scale, .. } => {
            let scale = usize::from(scale);
            let digits = format!("{:0width$}", unscaled.unsigned_abs(), width = scale + 1);
            let (whole, fraction) = digits.split_at(digits.len() - scale);
            let sign = if unscaled < 0 { "-" } else { "" };
            if scale == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
        }
        Value::Timestamp { millis, nanos, zoned, .. } => instant_text(millis, nanos, zoned)?,
        Value::Bytes(_) => return Err(Error::invalid("a type that can't be a Hudi bucket key")),
    })
}

/// `LocalDateTime.toString`, or `Instant.toString` when `zoned`: seconds are left out of the former when they are 0.
fn instant_text(millis: i64, nanos: i32, zoned: bool) -> Result<String> {
    let (date, clock) = civil_text(millis).ok_or_else(|| Error::invalid("a timestamp is too far away"))?;
    let clock = clock.replace('-', ":");
    let nanos = millis.rem_euclid(1000) * 1_000_000 + i64::from(nanos);
    let fraction = match nanos {
        0 => String::new(),
        _ if nanos % 1_000_000 == 0 => format!(".{:03}", nanos / 1_000_000),
        _ if nanos % 1_000 == 0 => format!(".{:06}", nanos / 1_000),
        _ => format!(".{nanos:09}"),
    };
    if zoned {
        return Ok(format!("{date}T{clock}{fraction}Z"));
    }
    let short = if fraction.is_empty() { clock.strip_suffix(":00").unwrap_or(&clock) } else { &clock };
    Ok(format!("{date}T{short}{fraction}"))
}

/// How the bytes behind the last whole word are mixed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tail {
    /// As one word.
    Standard,
    /// Each as a word of its own, sign-extended.
    Flink,
}

const fn mix_word(word: u32) -> u32 {
    word.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593)
}

const fn mix_state(state: u32, word: u32) -> u32 {
    (state ^ mix_word(word)).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64)
}

const fn finish(mut state: u32) -> u32 {
    state = (state ^ (state >> 16)).wrapping_mul(0x85eb_ca6b);
    state = (state ^ (state >> 13)).wrapping_mul(0xc2b2_ae35);
    state ^ (state >> 16)
}

/// Murmur3, 32 bits.
fn murmur(seed: u32, bytes: &[u8], tail: Tail) -> i32 {
    let mut state = seed;
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        state = mix_state(state, u32::from_le_bytes(*word));
    }
    match tail {
        Tail::Standard => {
            let word = rest.iter().rev().fold(0, |word: u32, byte| word << 8 | u32::from(*byte));
            state ^= mix_word(word);
        }
        Tail::Flink => {
            for byte in rest {
                state = mix_state(state, i32::from(byte.cast_signed()).cast_unsigned());
            }
        }
    }
    finish(state ^ u32::try_from(bytes.len()).unwrap_or(u32::MAX)).cast_signed()
}

/// Flink's murmur of one integer, made non-negative.
fn flink_mix(hash: i32) -> i32 {
    let mixed = finish(mix_state(0, hash.cast_unsigned()) ^ 4).cast_signed();
    mixed.checked_abs().unwrap_or_default()
}

#[cfg(test)]
mod tests;
