//! BinaryRow, byte for byte (P5), and the default bucket function (P6.1).

use bytes::Bytes;

use super::meta::BinaryRow;
use crate::error::{Error, Result};
use crate::model::{DataType, Datum, TypeKind};

/// Bytes of the arity that stands before the row bytes in the serialized form.
const PREFIX: usize = 4;
/// Longest text or byte string that sits inside its slot.
const INLINE_MAX: usize = 7;

const fn null_bits_len(arity: usize) -> usize {
    arity.saturating_add(63 + 8) / 64 * 8
}

/// Writes rows field by field into one reused buffer; the caller names each field once, in ascending order.
///
/// Fields that are not named stay zero, which reads as 0 and not as NULL.
#[derive(Debug, Clone)]
pub struct RowWriter {
    arity: usize,
    buffer: Vec<u8>,
}

impl RowWriter {
    /// A writer of rows with `arity` fields.
    #[must_use]
    pub fn new(arity: usize) -> Self {
        let mut writer = Self { arity, buffer: Vec::new() };
        writer.reset();
        writer
    }

    /// Starts the next row.
    pub fn reset(&mut self) {
        self.buffer.clear();
        self.buffer.extend_from_slice(&u32::try_from(self.arity).unwrap_or(u32::MAX).to_be_bytes());
        self.buffer.resize(PREFIX + null_bits_len(self.arity) + 8 * self.arity, 0);
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(target) = self.buffer.get_mut(at..at + bytes.len()) {
            target.copy_from_slice(bytes);
        }
    }

    fn slot(&mut self, field: usize, bytes: &[u8]) {
        debug_assert!(field < self.arity, "field {field} of a row with {} fields", self.arity);
        self.put(PREFIX + null_bits_len(self.arity) + 8 * field, bytes);
    }

    /// NULL. Big decimals and precise timestamps keep their place in the variable part, as in Java (P5.3).
    pub fn null(&mut self, field: usize, kind: &TypeKind) {
        let bit = field + 8;
        if let Some(byte) = self.buffer.get_mut(PREFIX + bit / 8) {
            *byte |= 1 << (bit % 8);
        }
        let reserved = match kind {
            TypeKind::Decimal { precision, .. } if *precision > 18 => 16,
            TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision } if *precision > 3 => 8,
            _ => return,
        };
        let offset = self.offset();
        self.buffer.resize(self.buffer.len() + reserved, 0);
        self.slot(field, &(offset << 32).to_le_bytes());
    }

    fn offset(&self) -> u64 {
        (self.buffer.len() - PREFIX) as u64
    }

    /// BOOLEAN.
    pub fn boolean(&mut self, field: usize, value: bool) {
        self.slot(field, &[u8::from(value)]);
    }

    /// TINYINT.
    pub fn i8(&mut self, field: usize, value: i8) {
        self.slot(field, &value.to_le_bytes());
    }

    /// SMALLINT.
    pub fn i16(&mut self, field: usize, value: i16) {
        self.slot(field, &value.to_le_bytes());
    }

    /// INT, DATE (days) and TIME (milliseconds of the day).
    pub fn i32(&mut self, field: usize, value: i32) {
        self.slot(field, &value.to_le_bytes());
    }

    /// BIGINT.
    pub fn i64(&mut self, field: usize, value: i64) {
        self.slot(field, &value.to_le_bytes());
    }

    /// FLOAT.
    pub fn f32(&mut self, field: usize, value: f32) {
        self.slot(field, &value.to_bits().to_le_bytes());
    }

    /// DOUBLE.
    pub fn f64(&mut self, field: usize, value: f64) {
        self.slot(field, &value.to_bits().to_le_bytes());
    }

    /// CHAR, VARCHAR, STRING (UTF-8), BINARY, VARBINARY, BYTES.
    pub fn bytes(&mut self, field: usize, value: &[u8]) {
        if value.len() <= INLINE_MAX {
            let mut slot = [0_u8; 8];
            for (to, from) in slot.iter_mut().zip(value) {
                *to = *from;
            }
            slot[7] = 0x80 | u8::try_from(value.len()).unwrap_or_default();
            self.slot(field, &slot);
        } else {
            self.variable(field, value, value.len() as u64);
        }
    }

    fn variable(&mut self, field: usize, value: &[u8], low: u64) {
        let slot = (self.offset() << 32) | (low & 0xffff_ffff);
        self.buffer.extend_from_slice(value);
        self.buffer.resize(self.buffer.len() + padding(self.buffer.len()), 0);
        self.slot(field, &slot.to_le_bytes());
    }

    /// DECIMAL of `precision`, as its unscaled value.
    pub fn decimal(&mut self, field: usize, unscaled: i128, precision: u8) {
        if precision <= 18 {
            self.slot(field, &i64::try_from(unscaled).unwrap_or_default().to_le_bytes());
            return;
        }
        let all = unscaled.to_be_bytes();
        let minimal = minimal_twos_complement(&all);
        let mut place = [0_u8; 16];
        for (to, from) in place.iter_mut().zip(minimal) {
            *to = *from;
        }
        self.variable(field, &place, minimal.len() as u64);
    }

    /// TIMESTAMP or TIMESTAMP_LTZ of `precision`: epoch milliseconds (floor) and nanoseconds within the millisecond.
    pub fn timestamp(&mut self, field: usize, millis: i64, nanos: i32, precision: u8) {
        if precision <= 3 {
            self.i64(field, millis);
        } else {
            self.variable(field, &millis.to_le_bytes(), u64::from(nanos.unsigned_abs()));
        }
    }

    /// The row bytes so far, without arity: what is hashed.
    #[must_use]
    pub fn row_bytes(&self) -> &[u8] {
        self.buffer.get(PREFIX..).unwrap_or_default()
    }

    /// The row so far, serialized.
    #[must_use]
    pub fn row(&self) -> BinaryRow {
        BinaryRow(Bytes::copy_from_slice(&self.buffer))
    }

    fn datum(&mut self, field: usize, value: &Datum, kind: &TypeKind) -> Result<()> {
        match (value, kind) {
            (Datum::Boolean(value), TypeKind::Boolean) => self.boolean(field, *value),
            (Datum::TinyInt(value), TypeKind::TinyInt) => self.i8(field, *value),
            (Datum::SmallInt(value), TypeKind::SmallInt) => self.i16(field, *value),
            (Datum::Int(value), TypeKind::Int)
            | (Datum::Date(value), TypeKind::Date)
            | (Datum::Time(value), TypeKind::Time { .. }) => self.i32(field, *value),
            (Datum::BigInt(value), TypeKind::BigInt) => self.i64(field, *value),
            (Datum::Float(value), TypeKind::Float) => self.f32(field, *value),
            (Datum::Double(value), TypeKind::Double) => self.f64(field, *value),
            (Datum::Decimal { unscaled, .. }, TypeKind::Decimal { precision, .. }) => {
                if *precision <= 18 && i64::try_from(*unscaled).is_err() {
                    return Err(Error::invalid(format!("decimal `{unscaled}` has more than {precision} digits")));
                }
                self.decimal(field, *unscaled, *precision);
            }
            (Datum::String(value), TypeKind::Char { .. } | TypeKind::VarChar { .. } | TypeKind::String) => {
                self.bytes(field, value.as_bytes());
            }
            (Datum::Bytes(value), TypeKind::Binary { .. } | TypeKind::VarBinary { .. } | TypeKind::Bytes) => {
                self.bytes(field, value);
            }
            (Datum::Timestamp { millis, nanos }, TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision }) => {
                self.timestamp(field, *millis, *nanos, *precision);
            }
            _ => return Err(Error::internal(format!("value `{value:?}` is not of type `{kind:?}`"))),
        }
        Ok(())
    }
}

/// Zero bytes that bring the row bytes of a buffer of `len` bytes (arity included) to a multiple of 8.
const fn padding(len: usize) -> usize {
    (8 - (len + (8 - PREFIX)) % 8) % 8
}

fn minimal_twos_complement(bytes: &[u8]) -> &[u8] {
    let mut rest = bytes;
    while let [first, tail @ ..] = rest
        && let Some(next) = tail.first()
        && ((*first == 0 && *next < 0x80) || (*first == 0xff && *next >= 0x80))
    {
        rest = tail;
    }
    rest
}

impl BinaryRow {
    /// The row without fields (P5.5).
    #[must_use]
    pub fn empty() -> Self {
        Self(Bytes::from_static(&[0; 12]))
    }

    /// A row of values: a partition, a key, bounds of columns.
    ///
    /// # Errors
    /// `Internal` when a value is not of its type or the numbers differ; `Invalid` when a decimal has too many digits.
    pub fn write(values: &[Option<Datum>], types: &[DataType]) -> Result<Self> {
        if values.len() != types.len() {
            return Err(Error::internal(format!("{} values for {} columns", values.len(), types.len())));
        }
        let mut writer = RowWriter::new(values.len());
        for (field, (value, data_type)) in values.iter().zip(types).enumerate() {
            match value {
                Some(value) => writer.datum(field, value, &data_type.kind)?,
                None => writer.null(field, &data_type.kind),
            }
        }
        Ok(Self(Bytes::from(writer.buffer)))
    }

    /// Number of fields it says to have.
    ///
    /// # Errors
    /// `Data` when it is shorter than that number.
    pub fn arity(&self) -> Result<usize> {
        let [a, b, c, d, ..] = *self.0 else {
            return Err(Error::data(format!("row of {} bytes is shorter than its arity", self.0.len())));
        };
        usize::try_from(u32::from_be_bytes([a, b, c, d])).map_err(|source| Error::data("arity is too large").with_source(source))
    }

    /// The values, `types` telling what they are.
    ///
    /// # Errors
    /// `Data` when the number of fields differs, an offset points outside or a text is not UTF-8; `Unsupported` for a nested type.
    pub fn read(&self, types: &[DataType]) -> Result<Vec<Option<Datum>>> {
        let arity = self.arity()?;
        if arity != types.len() {
            return Err(Error::data(format!("row has {arity} fields, {} are expected", types.len())));
        }
        let reader = RowReader { bytes: self.row_bytes(), slots: null_bits_len(arity) };
        types.iter().enumerate().map(|(field, data_type)| reader.field(field, &data_type.kind)).collect()
    }

    /// The row bytes without arity: what is hashed.
    #[must_use]
    pub fn row_bytes(&self) -> &[u8] {
        self.0.get(PREFIX..).unwrap_or_default()
    }
}

struct RowReader<'a> {
    bytes: &'a [u8],
    slots: usize,
}

impl<'a> RowReader<'a> {
    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N]> {
        self.range(at, N)?.try_into().map_err(|source| Error::internal("slice length").with_source(source))
    }

    fn range(&self, at: usize, len: usize) -> Result<&'a [u8]> {
        at.checked_add(len)
            .and_then(|end| self.bytes.get(at..end))
            .ok_or_else(|| Error::data(format!("row of {} bytes has no {len} bytes at {at}", self.bytes.len())))
    }

    fn field(&self, field: usize, kind: &TypeKind) -> Result<Option<Datum>> {
        let at = self.slots + 8 * field;
        let slot = self.array::<8>(at)?;
        let bit = field + 8;
        if self.array::<1>(bit / 8)?[0] & (1 << (bit % 8)) != 0 {
            return Ok(None);
        }
        let [a, b, c, d, ..] = slot;
        let low = i32::from_le_bytes([a, b, c, d]);
        let long = i64::from_le_bytes(slot);
        Ok(Some(match kind {
            TypeKind::Boolean => Datum::Boolean(a != 0),
            TypeKind::TinyInt => Datum::TinyInt(i8::from_le_bytes([a])),
            TypeKind::SmallInt => Datum::SmallInt(i16::from_le_bytes([a, b])),
            TypeKind::Int => Datum::Int(low),
            TypeKind::Date => Datum::Date(low),
            TypeKind::Time { .. } => Datum::Time(low),
            TypeKind::BigInt => Datum::BigInt(long),
            TypeKind::Float => Datum::Float(f32::from_le_bytes([a, b, c, d])),
            TypeKind::Double => Datum::Double(f64::from_le_bytes(slot)),
            TypeKind::Decimal { precision, scale } => {
                let unscaled = if *precision <= 18 { i128::from(long) } else { big_decimal(self.variable(slot)?)? };
                Datum::Decimal { unscaled, precision: *precision, scale: *scale }
            }
            TypeKind::Char { .. } | TypeKind::VarChar { .. } | TypeKind::String => {
                let text = std::str::from_utf8(self.text(at, slot)?)
                    .map_err(|source| Error::data(format!("field {field} is not UTF-8")).with_source(source))?;
                Datum::String(text.to_owned())
            }
            TypeKind::Binary { .. } | TypeKind::VarBinary { .. } | TypeKind::Bytes => Datum::Bytes(self.text(at, slot)?.to_vec()),
            TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision } if *precision <= 3 => {
                Datum::Timestamp { millis: long, nanos: 0 }
            }
            TypeKind::Timestamp { .. } | TypeKind::TimestampLtz { .. } => {
                let (offset, nanos) = split(slot)?;
                let nanos = i32::try_from(nanos)
                    .ok()
                    .filter(|nanos| *nanos < 1_000_000)
                    .ok_or_else(|| Error::data(format!("timestamp has `{nanos}` nanoseconds in a millisecond")))?;
                Datum::Timestamp { millis: i64::from_le_bytes(self.array(offset)?), nanos }
            }
            TypeKind::Array(_) | TypeKind::Multiset(_) | TypeKind::Map(..) | TypeKind::Row(_) => {
                return Err(Error::unsupported("nested values in keys, partitions or statistics"));
            }
        }))
    }

    fn text(&self, at: usize, slot: [u8; 8]) -> Result<&'a [u8]> {
        if slot[7] & 0x80 == 0 {
            return self.variable(slot);
        }
        let len = usize::from(slot[7] & 0x7f);
        if len > INLINE_MAX {
            return Err(Error::data(format!("inline value of {len} bytes")));
        }
        self.range(at, len)
    }

    fn variable(&self, slot: [u8; 8]) -> Result<&'a [u8]> {
        let (offset, len) = split(slot)?;
        self.range(offset, len)
    }
}

fn split(slot: [u8; 8]) -> Result<(usize, usize)> {
    let [a, b, c, d, e, f, g, h] = slot;
    let number =
        |bytes| usize::try_from(u32::from_le_bytes(bytes)).map_err(|source| Error::data("offset is too large").with_source(source));
    Ok((number([e, f, g, h])?, number([a, b, c, d])?))
}

fn big_decimal(bytes: &[u8]) -> Result<i128> {
    if bytes.is_empty() || bytes.len() > 16 {
        return Err(Error::data(format!("decimal of {} bytes", bytes.len())));
    }
    let sign = if bytes.first().is_some_and(|first| *first >= 0x80) { -1 } else { 0 };
    Ok(bytes.iter().fold(sign, |value: i128, byte| (value << 8) | i128::from(*byte)))
}

/// Murmur3-x86-32 with seed 42 over bytes whose number is a multiple of 4, as row bytes are (P6.1).
#[must_use]
pub fn murmur_hash(bytes: &[u8]) -> i32 {
    let mut state = 42_u32;
    for word in bytes.chunks_exact(4) {
        let [a, b, c, d] = *word else { continue };
        let word = u32::from_le_bytes([a, b, c, d]).wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
        state = (state ^ word).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    state ^= u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    state = (state ^ (state >> 16)).wrapping_mul(0x85eb_ca6b);
    state = (state ^ (state >> 13)).wrapping_mul(0xc2b2_ae35);
    (state ^ (state >> 16)).cast_signed()
}

/// Bucket of a hash among `count` (at least 1) buckets, function `default` (P6.1).
#[must_use]
pub fn bucket_of_hash(hash: i32, count: i32) -> i32 {
    hash.checked_rem(count).unwrap_or_default().saturating_abs()
}

#[cfg(test)]
mod tests;
