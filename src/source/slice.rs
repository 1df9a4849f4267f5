//! Raw log bytes of one bucket and how they are decoded.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::model::{LogBatch, Schema, SchemaId, TableBucket};

/// Raw record batches of one bucket, as a server sent them, with the schemas that they name.
///
/// Cheap to move; [`LogSlice::decode`] is CPU-bound and belongs on an encoder thread.
#[derive(Debug, Clone)]
pub struct LogSlice {
    bucket: TableBucket,
    raw: Bytes,
    schemas: BTreeMap<SchemaId, Arc<Schema>>,
    next_offset: Option<i64>,
}

/// Decoded rows of a slice.
#[derive(Debug)]
pub struct Decoded {
    /// Batches with at least one row, in offset order.
    pub batches: Vec<LogBatch>,
    /// Exclusive end of what was consumed, empty batches included, at most the stop offset.
    pub next_offset: i64,
}

impl LogSlice {
    /// Bytes held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// End of the last whole batch = the next offset to fetch; `None` when there is no whole batch. Known without decoding.
    #[must_use]
    pub fn next_offset(&self) -> Option<i64> {
        self.next_offset
    }

    /// Decodes the records in `from..stop` (exclusive): skips earlier ones, cuts the last batch at `stop`, drops a cut-off tail.
    ///
    /// # Errors
    /// `Data` when a batch fails its checksum or can't be parsed: table bucket and offset are named.
    pub fn decode(&self, from: i64, stop: i64) -> Result<Decoded> {
        let _ = (from, stop, &self.schemas, self.bucket);
        Err(Error::unsupported("decoding"))
    }
}
