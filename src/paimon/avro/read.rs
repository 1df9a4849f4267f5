//! A container's records as values. Lengths and counts are checked before anything is allocated by them.

use std::io::Read;

use super::MAGIC;
use super::schema::Type;
use crate::error::{Error, Result};

/// Bytes of a decompressed block at most. Java's blocks have 64 kB; other writers put a whole manifest into one.
const BLOCK_MAX: u64 = 256 << 20;
/// What a block may decompress to for each of its bytes: file names and keys differ, so that real manifests stay far below.
const BLOCK_RATIO_MAX: u64 = 4096;
/// A record of one small field is two values in one byte, one inside another is three.
const VALUES_PER_BYTE: usize = 4;

/// A value; borrows from the decompressed block and the schema.
#[derive(Debug)]
pub(in crate::paimon) enum Value<'a> {
    Null,
    Number(i64),
    Bytes(&'a [u8]),
    String(&'a str),
    Array(Vec<Self>),
    Record(Record<'a>),
    /// Of a type that no field of ours has.
    Other,
}

/// Fields of a record, in the writer's order, looked up by name.
#[derive(Debug)]
pub(in crate::paimon) struct Record<'a> {
    fields: Vec<(&'a str, Value<'a>)>,
    /// Where the next look-up starts: the reader's order is mostly the writer's.
    next: usize,
}

impl<'a> Record<'a> {
    /// Takes field `name`; NULL when there is none.
    pub(in crate::paimon) fn take(&mut self, name: &str) -> Value<'a> {
        let start = self.next.min(self.fields.len());
        let (front, back) = self.fields.split_at_mut(start);
        let after = back.iter_mut().enumerate().map(|(index, field)| (index + start, field));
        match after.chain(front.iter_mut().enumerate()).find(|(_, (field, _))| *field == name) {
            Some((index, (_, value))) => {
                self.next = index + 1;
                std::mem::replace(value, Value::Null)
            }
            None => Value::Null,
        }
    }
}

/// Calls `each` with every record of a container; a top-level union of NULL and a record is fine.
pub(in crate::paimon) fn read(bytes: &[u8], mut each: impl FnMut(Record<'_>) -> Result<()>) -> Result<()> {
    let mut file = Cursor { bytes, values: 0 };
    if file.take(MAGIC.len())? != MAGIC {
        return Err(Error::data("not an avro file"));
    }
    let (mut schema, mut codec) = (None, Codec::Null);
    file.blocks(|file| {
        let key = file.string()?;
        let value = file.bytes()?;
        match key {
            "avro.schema" => schema = Some(Type::parse(text(value)?)?),
            "avro.codec" => codec = Codec::parse(text(value)?)?,
            _ => {}
        }
        Ok(())
    })?;
    let schema = schema.ok_or_else(|| Error::data("avro file without schema"))?;
    let nodes = schema.nodes();
    let sync = file.take(16)?;
    while !file.bytes.is_empty() {
        let count = file.length()?;
        let block = file.bytes()?;
        let decompressed;
        let block = match codec {
            Codec::Null => block,
            Codec::Zstandard => {
                decompressed = decompress(block)?;
                &decompressed
            }
        };
        let mut records = Cursor { bytes: block, values: 0 };
        for _ in 0..count {
            // Values that take no bytes (NULLs outside of unions) may only be those that the schema names.
            records.values = nodes.saturating_add(records.bytes.len().saturating_mul(VALUES_PER_BYTE));
            match records.value(&schema)? {
                Value::Record(record) => each(record)?,
                _ => return Err(Error::data("avro file holds something that is no record")),
            }
        }
        if !records.bytes.is_empty() {
            return Err(Error::data(format!("avro block has {} bytes behind its records", records.bytes.len())));
        }
        if file.take(16)? != sync {
            return Err(Error::data("avro block ends without sync marker"));
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Codec {
    Null,
    Zstandard,
}

impl Codec {
    fn parse(name: &str) -> Result<Self> {
        match name {
            "null" => Ok(Self::Null),
            "zstandard" => Ok(Self::Zstandard),
            _ => Err(Error::unsupported(format!("avro codec `{name}`"))),
        }
    }
}

fn decompress(block: &[u8]) -> Result<Vec<u8>> {
    let fault = |source: std::io::Error| Error::data("decompress avro block").with_source(source);
    let most = BLOCK_MAX.min((block.len() as u64).saturating_mul(BLOCK_RATIO_MAX));
    let decoder = zstd::stream::read::Decoder::with_buffer(block).map_err(fault)?;
    let mut bytes = Vec::new();
    decoder.take(most + 1).read_to_end(&mut bytes).map_err(fault)?;
    if bytes.len() as u64 > most {
        return Err(Error::data(format!("avro block of {} bytes has more than {most} when decompressed", block.len())));
    }
    Ok(bytes)
}

fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|source| Error::data("avro string is not UTF-8").with_source(source))
}

struct Cursor<'a> {
    bytes: &'a [u8],
    /// Values that the record at hand may still have.
    values: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self
            .bytes
            .split_at_checked(len)
            .ok_or_else(|| Error::data(format!("avro file ends {} bytes too early", len - self.bytes.len())))?;
        self.bytes = rest;
        Ok(taken)
    }

    fn long(&mut self) -> Result<i64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?.first().copied().unwrap_or_default();
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
            }
        }
        Err(Error::data("avro number has more than ten bytes"))
    }

    /// A length or count: what it counts takes at least a byte each, so it can't exceed what is left of the file.
    fn length(&mut self) -> Result<usize> {
        let length = self.long()?;
        usize::try_from(length).map_err(|source| Error::data(format!("avro length `{length}`")).with_source(source))
    }

    fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.length()?;
        self.take(len)
    }

    fn string(&mut self) -> Result<&'a str> {
        text(self.bytes()?)
    }

    /// The items of an array or map, block by block.
    fn blocks(&mut self, mut item: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        loop {
            let count = self.long()?;
            if count == 0 {
                return Ok(());
            }
            if count < 0 {
                self.long()?;
            }
            if count.unsigned_abs() > self.bytes.len() as u64 {
                return Err(Error::data(format!("avro file says `{count}` items in {} bytes", self.bytes.len())));
            }
            for _ in 0..count.unsigned_abs() {
                item(self)?;
            }
        }
    }

    fn value<'v>(&mut self, schema: &'v Type) -> Result<Value<'v>>
    where
        'a: 'v,
    {
        let left = self.values.checked_sub(1);
        self.values = left.ok_or_else(|| Error::data("avro record has more values than its bytes can hold"))?;
        Ok(match schema {
            Type::Null => Value::Null,
            Type::Boolean => {
                self.take(1)?;
                Value::Other
            }
            Type::Number { unit } => Value::Number(self.long()?.div_euclid(*unit)),
            Type::Float => {
                self.take(4)?;
                Value::Other
            }
            Type::Double => {
                self.take(8)?;
                Value::Other
            }
            Type::Bytes => Value::Bytes(self.bytes()?),
            Type::String => Value::String(self.string()?),
            Type::Fixed(size) => Value::Bytes(self.take(*size)?),
            Type::Array(items) => {
                let mut values = Vec::new();
                self.blocks(|this| {
                    values.push(this.value(items)?);
                    Ok(())
                })?;
                Value::Array(values)
            }
            Type::Map(items) => {
                self.blocks(|this| {
                    this.string()?;
                    this.value(items).map(|_| ())
                })?;
                Value::Other
            }
            Type::Union(branches) => {
                let index = self.length()?;
                let branch = branches.get(index).ok_or_else(|| Error::data(format!("avro union has no branch {index}")))?;
                self.value(branch)?
            }
            Type::Record(fields) => {
                let mut values = Vec::with_capacity(fields.len());
                for (name, field) in fields {
                    values.push((name.as_str(), self.value(field)?));
                }
                Value::Record(Record { fields: values, next: 0 })
            }
        })
    }
}
