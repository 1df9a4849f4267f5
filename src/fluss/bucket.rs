//! Bucket functions: which bucket a row's key falls into (F6.7). Writers hash by the table's lake format, so that Fluss and lake agree.
//!
//! Owns key bytes and hashes, for log and primary-key tables. Rows without bucket key go anywhere; that choice is the writer's.

mod keys;

use arrow_array::{Array, ArrayRef};

pub use self::keys::{KeyRules, KeyWriter};
use super::partition::{civil_text, java_double, java_float};
use super::record::{Cell, Cells, compacted_cell, push_minimal};
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
    /// The function of a table (`table.datalake.format`, also while its lake is disabled).
    ///
    /// # Errors
    /// `Unsupported` when the format is unknown.
    pub fn of(table: &TableInfo) -> Result<Self> {
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
    let columns = cells_of(columns)?;
    let mut encoder = Encoder::new(function, columns.len());
    let mut key = Vec::with_capacity(columns.len());
    let bucket = |row: usize| {
        key.clear();
        key.extend(columns.iter().map(|column| column.get(row)));
        encoder.bucket(&key, count)
    };
    (0..rows).map(bucket).collect()
}

fn cells_of<'a>(columns: &[(&TypeKind, &'a ArrayRef)]) -> Result<Vec<Cells<'a>>> {
    let cells = columns.iter().map(|(kind, array)| match kind.is_nested() {
        true => Err(Error::invalid(format!("a key of type {kind:?}"))),
        false => Cells::of(kind, array),
    });
    cells.collect()
}

/// Encodes keys one after another, with one buffer.
#[derive(Debug)]
struct Encoder {
    function: BucketFunction,
    writer: RowWriter,
    bytes: Vec<u8>,
}

impl Encoder {
    fn new(function: BucketFunction, arity: usize) -> Self {
        Self { function, writer: RowWriter::new(arity), bytes: vec![] }
    }

    fn bucket(&mut self, key: &[Option<Cell<'_>>], count: i32) -> Result<i32> {
        self.encode(key)?;
        let positive = |hash: i32| hash & i32::MAX;
        Ok(match self.function {
            BucketFunction::Paimon => bucket_of_hash(murmur_hash(self.bytes()), count),
            BucketFunction::Iceberg => positive(murmur(0, &self.bytes, Tail::Standard)) % count,
            BucketFunction::Hudi => positive(self.bytes.iter().fold(0, |hash: i32, byte| hash << 8 | i32::from(*byte))) % count,
            BucketFunction::Fluss => flink_mix(murmur(42, &self.bytes, Tail::Flink)) % count,
        })
    }

    fn bytes(&self) -> &[u8] {
        if self.function == BucketFunction::Paimon { self.writer.row_bytes() } else { &self.bytes }
    }

    fn encode(&mut self, key: &[Option<Cell<'_>>]) -> Result<()> {
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
                    compacted_cell(&mut self.bytes, value);
                }
            }
        }
        Ok(())
    }
}

fn paimon_row(writer: &mut RowWriter, key: &[Option<Cell<'_>>]) {
    writer.reset();
    for (field, value) in key.iter().enumerate() {
        match value {
            // Whatever the type, Fluss keeps no place in the variable part, unlike Paimon's own projection (F6.7).
            None => writer.null(field, &TypeKind::Int),
            Some(Cell::Boolean(value)) => writer.boolean(field, *value),
            Some(Cell::I8(value)) => writer.i8(field, *value),
            Some(Cell::I16(value)) => writer.i16(field, *value),
            Some(Cell::I32(value) | Cell::Date(value) | Cell::Time(value)) => writer.i32(field, *value),
            Some(Cell::I64(value)) => writer.i64(field, *value),
            Some(Cell::F32(value)) => writer.f32(field, *value),
            Some(Cell::F64(value)) => writer.f64(field, *value),
            Some(Cell::Text(value)) => writer.bytes(field, value.as_bytes()),
            Some(Cell::Bytes(value)) => writer.bytes(field, value),
            Some(Cell::Decimal { unscaled, precision, .. }) => writer.decimal(field, *unscaled, *precision),
            Some(Cell::Timestamp { millis, nanos, precision, .. }) => writer.timestamp(field, *millis, *nanos, *precision),
        }
    }
}

fn iceberg_bytes(bytes: &mut Vec<u8>, value: Cell<'_>) -> Result<()> {
    match value {
        Cell::I32(value) | Cell::Date(value) => bytes.extend(i64::from(value).to_le_bytes()),
        Cell::I64(value) => bytes.extend(value.to_le_bytes()),
        Cell::Time(value) => bytes.extend((i64::from(value) * 1000).to_le_bytes()),
        Cell::Timestamp { millis, nanos, zoned: false, .. } => {
            let micros = millis.checked_mul(1000).and_then(|micros| micros.checked_add(i64::from(nanos / 1000)));
            bytes.extend(micros.ok_or_else(|| Error::invalid("a timestamp is too far away"))?.to_le_bytes());
        }
        Cell::F32(value) => bytes.extend(value.to_le_bytes()),
        Cell::F64(value) => bytes.extend(value.to_le_bytes()),
        Cell::Decimal { unscaled, .. } => push_minimal(bytes, unscaled),
        Cell::Text(value) => bytes.extend_from_slice(value.as_bytes()),
        Cell::Bytes(value) => bytes.extend_from_slice(value),
        Cell::Boolean(_) | Cell::I8(_) | Cell::I16(_) | Cell::Timestamp { .. } => {
            return Err(Error::invalid("a type that can't be an Iceberg bucket key"));
        }
    }
    if bytes.is_empty() { Err(Error::invalid("an Iceberg bucket key is empty")) } else { Ok(()) }
}

/// `Arrays.hashCode` of Java over the hashes of the columns' texts.
fn hudi_hash(key: &[Option<Cell<'_>>]) -> Result<i32> {
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

fn java_text(value: Cell<'_>) -> Result<String> {
    Ok(match value {
        Cell::Boolean(value) => value.to_string(),
        Cell::I8(value) => value.to_string(),
        Cell::I16(value) => value.to_string(),
        Cell::I32(value) | Cell::Date(value) | Cell::Time(value) => value.to_string(),
        Cell::I64(value) => value.to_string(),
        Cell::F32(value) => java_float(value),
        Cell::F64(value) => java_double(value),
        Cell::Text(value) => value.to_owned(),
        Cell::Decimal { unscaled, scale, .. } => {
            let scale = usize::from(scale);
            let digits = format!("{:0width$}", unscaled.unsigned_abs(), width = scale + 1);
            let (whole, fraction) = digits.split_at(digits.len() - scale);
            let sign = if unscaled < 0 { "-" } else { "" };
            if scale == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
        }
        Cell::Timestamp { millis, nanos, zoned, .. } => instant_text(millis, nanos, zoned)?,
        Cell::Bytes(_) => return Err(Error::invalid("a type that can't be a Hudi bucket key")),
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
