//! Containers being written.

use uuid::Uuid;

use super::MAGIC;
use crate::error::{Error, Result};
use crate::paimon::options::ManifestCompression;

/// Uncompressed bytes of a block, as Java's.
const BLOCK_BYTES: usize = 64_000;

/// A container being written: records are collected into blocks, blocks compressed.
pub(in crate::paimon) struct Container {
    file: Vec<u8>,
    block: Vec<u8>,
    records: i64,
    compression: ManifestCompression,
    sync: Uuid,
}

impl Container {
    pub(in crate::paimon) fn new(schema: &str, compression: ManifestCompression, sync: Uuid) -> Self {
        let codec = match compression {
            ManifestCompression::None => "null",
            ManifestCompression::Zstd(_) => "zstandard",
        };
        let mut file = MAGIC.to_vec();
        put_long(&mut file, 2);
        for (key, value) in [("avro.schema", schema), ("avro.codec", codec)] {
            put_bytes(&mut file, key.as_bytes());
            put_bytes(&mut file, value.as_bytes());
        }
        put_long(&mut file, 0);
        file.extend_from_slice(sync.as_bytes());
        Self { file, block: Vec::new(), records: 0, compression, sync }
    }

    /// Appends a record: what `put` writes into the block.
    pub(in crate::paimon) fn record(&mut self, put: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        put(&mut self.block);
        self.records += 1;
        if self.block.len() >= BLOCK_BYTES { self.flush() } else { Ok(()) }
    }

    /// Bytes of the file so far; what is not compressed yet counts a third.
    pub(in crate::paimon) fn bytes(&self) -> u64 {
        (self.file.len() + self.block.len() / 3) as u64
    }

    fn flush(&mut self) -> Result<()> {
        if self.records == 0 {
            return Ok(());
        }
        put_long(&mut self.file, self.records);
        match self.compression {
            ManifestCompression::None => put_bytes(&mut self.file, &self.block),
            ManifestCompression::Zstd(level) => {
                let block = zstd::bulk::compress(&self.block, level)
                    .map_err(|source| Error::internal("compress avro block").with_source(source))?;
                put_bytes(&mut self.file, &block);
            }
        }
        self.file.extend_from_slice(self.sync.as_bytes());
        self.block.clear();
        self.records = 0;
        Ok(())
    }

    pub(in crate::paimon) fn finish(mut self) -> Result<bytes::Bytes> {
        self.flush()?;
        Ok(self.file.into())
    }
}

pub(in crate::paimon) fn put_long(to: &mut Vec<u8>, value: i64) {
    let mut rest = (value << 1 ^ value >> 63).cast_unsigned();
    while rest > 0x7f {
        to.push(u8::try_from(rest & 0x7f).unwrap_or_default() | 0x80);
        rest >>= 7;
    }
    to.push(u8::try_from(rest).unwrap_or_default());
}

pub(in crate::paimon) fn put_int(to: &mut Vec<u8>, value: i32) {
    put_long(to, i64::from(value));
}

pub(in crate::paimon) fn put_bytes(to: &mut Vec<u8>, value: &[u8]) {
    put_long(to, i64::try_from(value.len()).unwrap_or(i64::MAX));
    to.extend_from_slice(value);
}

/// Branch 1 of a nullable field, then its value as `put` writes it; branch 0 for `None`.
pub(in crate::paimon) fn put_some<T>(to: &mut Vec<u8>, value: Option<T>, put: impl FnOnce(&mut Vec<u8>, T)) {
    match value {
        Some(value) => {
            put_long(to, 1);
            put(to, value);
        }
        None => put_long(to, 0),
    }
}
