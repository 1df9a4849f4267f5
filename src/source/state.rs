//! The whole state of a primary-key bucket (F5.7): how it is asked for, and what comes.
//!
//! [`TableScan::open_state`](super::TableScan::open_state) opens a scan; `read` takes its slices under permits and decodes them on encoder
//! threads. A scan that is lost is begun again from its beginning by whoever wants the bucket: nothing of it may be kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{Error, Kind, Result};
use crate::fluss::code::Code;
use crate::fluss::record::{BatchSchema, KvFormat, Value, Values, decode_rows};
use crate::model::{BucketLayout, ChangeKind, LogBatch, Memory, Schema, SchemaId, TableBucket, TableInfo};

/// Largest `bytes_max` that a server takes for what it is (F5.7).
pub const STATE_BYTES_MAX: i32 = 10 << 20;

/// A bucket whose state is wanted.
#[derive(Debug, Clone)]
pub struct StateRequest {
    /// The table, as the round was planned by it.
    pub table: Arc<TableInfo>,
    /// The bucket.
    pub bucket: TableBucket,
    /// The layout the round was planned by: its count goes out as `routing_bucket_count`.
    pub layout: BucketLayout,
    /// Bytes of values wanted at once, 1 to [`STATE_BYTES_MAX`]; one whole value comes even if larger.
    pub bytes_max: i32,
}

/// An open scan: one consistent image of a bucket. Dropped before its end, it is closed at the server.
#[async_trait]
pub trait StateScan: fmt::Debug + Send {
    /// Where the bucket's log goes on from this image.
    fn log_offset(&self) -> i64;

    /// Whether the last values were handed out.
    fn is_done(&self) -> bool;

    /// The next values, maybe none at all; `None` after the last. Each key is there once, in no order that matters.
    ///
    /// # Errors
    /// One that [`is_state_lost`] when the scan can't go on (expired, leader moved, an answer lost), whose rows so far are to be
    /// thrown away; `Stale` when table or partition are gone; `Data`.
    async fn next(&mut self) -> Result<Option<StateSlice>>;
}

/// The error of a scan that can't go on because of `cause`.
pub(super) fn state_lost(bucket: TableBucket, cause: Error) -> Error {
    let code = cause.code().filter(|code| is_session_code(*code)).unwrap_or(Code::SCANNER_EXPIRED.0);
    Error::new(Kind::Unavailable, format!("the scan of the state of {bucket} is lost, it has to begin again"))
        .with_code(code)
        .with_source(cause)
}

const fn is_session_code(code: i32) -> bool {
    matches!(Code(code), Code::SCANNER_EXPIRED | Code::UNKNOWN_SCANNER_ID | Code::INVALID_SCAN_REQUEST)
}

/// Whether `error` says that a state scan was lost: that bucket starts again from the beginning, what was written of it is thrown away.
#[must_use]
pub fn is_state_lost(error: &Error) -> bool {
    error.kind() == Kind::Unavailable && error.code().is_some_and(is_session_code)
}

/// Raw values of one bucket, as a server sent them, with the schemas that they name.
///
/// Cheap to move; [`StateSlice::decode`] is CPU-bound and belongs on an encoder thread.
#[derive(Clone)]
pub struct StateSlice {
    bucket: TableBucket,
    format: KvFormat,
    raw: Bytes,
    schemas: BTreeMap<SchemaId, Arc<Schema>>,
}

impl fmt::Debug for StateSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateSlice").field("bucket", &self.bucket).field("bytes", &self.raw.len()).finish_non_exhaustive()
    }
}

impl StateSlice {
    /// A slice of what a server sent for `bucket`: one value batch, or nothing. `schemas` holds at least [`StateSlice::schema_ids`].
    #[must_use]
    pub fn new(bucket: TableBucket, format: KvFormat, raw: Bytes, schemas: BTreeMap<SchemaId, Arc<Schema>>) -> Self {
        Self { bucket, format, raw, schemas }
    }

    /// The schemas that the values in `raw` name.
    ///
    /// # Errors
    /// `Data` when it is no value batch.
    pub fn schema_ids(raw: &[u8]) -> Result<BTreeSet<SchemaId>> {
        Values::parse(raw).map(Values::schema_ids)
    }

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

    /// Decodes all rows: one batch per schema, every row an insert, without offset (−1) and time (−1).
    ///
    /// # Errors
    /// `Data` when the values can't be read; the bucket is named.
    pub fn decode(&self) -> Result<Vec<LogBatch>> {
        self.batches().map_err(|error| error.context(format!("decode the state of {}", self.bucket)))
    }

    fn batches(&self) -> Result<Vec<LogBatch>> {
        let mut by_schema: BTreeMap<SchemaId, Vec<&[u8]>> = BTreeMap::new();
        for Value { schema_id, row } in Values::parse(&self.raw)? {
            by_schema.entry(schema_id).or_default().push(row);
        }
        let batch = |(schema_id, rows): (SchemaId, Vec<&[u8]>)| {
            let schema = self.schemas.get(&schema_id);
            let schema = schema.ok_or_else(|| Error::internal(format!("schema `{schema_id}` was not looked up")))?;
            let rows = decode_rows(self.format, &BatchSchema::new(Arc::clone(schema))?, rows.iter().copied())?;
            let changes = Some(vec![ChangeKind::Insert; rows.num_rows()]);
            let (bucket, memory) = (self.bucket, Memory { own: rows.get_array_memory_size(), shared: 0 });
            Ok(LogBatch { bucket, base_offset: -1, commit_timestamp_ms: -1, schema_id, rows, changes, memory })
        };
        by_schema.into_iter().map(batch).collect()
    }
}
