//! The messages of the Fluss RPC protocol, generated from `tools/protogen/fluss.proto` (F2.4, S2).
//!
//! Required fields that are missing on the wire read as their default: callers check what they rely on. Packed numbers
//! are read packed, unpacked and empty. `bytes` fields share the memory of the frame that they came in.

#[allow(missing_docs, clippy::all, clippy::pedantic, clippy::restriction, unused_qualifications, reason = "generated code")]
mod messages;

pub use messages::*;
pub use prost::Message;

use crate::error::{Error, Result};
use crate::model::{BucketLayout, PartitionId, TableBucket, TableId, TablePath};

impl From<&TablePath> for PbTablePath {
    fn from(path: &TablePath) -> Self {
        Self { database_name: path.database.clone(), table_name: path.table.clone() }
    }
}

impl From<PbTablePath> for TablePath {
    fn from(path: PbTablePath) -> Self {
        Self::new(path.database_name, path.table_name)
    }
}

impl PbServerNode {
    /// `HOST:PORT`.
    #[must_use]
    pub fn address(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        format!("{host}:{}", self.port)
    }
}

/// Who asks, for servers: a client, no follower.
const NO_FOLLOWER: i32 = -1;
/// Log start, as a fetch offset.
pub const EARLIEST: i64 = -2;

/// Which end of a log.
#[derive(Debug, Clone, Copy)]
pub enum LogEnd {
    /// Its first offset.
    Start = 0,
    /// Behind its last record that is safe.
    HighWatermark = 1,
}

impl ListOffsetsRequest {
    /// A client's, about `buckets` of one partition (or of a table without partitions).
    #[must_use]
    pub fn of_client(
        table: TableId,
        partition: Option<PartitionId>,
        buckets: &[TableBucket],
        layout: BucketLayout,
        end: LogEnd,
    ) -> Self {
        Self {
            follower_server_id: NO_FOLLOWER,
            offset_type: end as i32,
            table_id: table.0,
            partition_id: partition.map(|partition| partition.0),
            bucket_id: buckets.iter().map(|bucket| bucket.bucket.0).collect(),
            start_timestamp: None,
            routing_bucket_count: Some(layout.count),
        }
    }
}

impl PbFetchLogReqForBucket {
    /// Of one bucket, from `offset` on.
    #[must_use]
    pub fn of(bucket: TableBucket, layout: BucketLayout, offset: i64, bytes_max: i32) -> Self {
        Self {
            partition_id: bucket.partition.map(|partition| partition.0),
            bucket_id: bucket.bucket.0,
            fetch_offset: offset,
            max_fetch_bytes: bytes_max,
            routing_bucket_count: Some(layout.count),
        }
    }
}

impl FetchLogRequest {
    /// A client's, of all columns of one table's buckets.
    #[must_use]
    pub fn of_client(table: TableId, buckets_req: Vec<PbFetchLogReqForBucket>, bytes_max: i32, wait_ms: i32) -> Self {
        Self {
            follower_server_id: NO_FOLLOWER,
            max_bytes: bytes_max,
            tables_req: vec![PbFetchLogReqForTable {
                table_id: table.0,
                projection_pushdown_enabled: false,
                projected_fields: Vec::new(),
                buckets_req,
                filter_predicate: None,
                filter_schema_id: None,
            }],
            max_wait_ms: Some(wait_ms),
            min_bytes: Some(1),
            read_preference: Some(0),
        }
    }
}

/// Reads a message, naming it when it can't be read.
///
/// # Errors
/// `Data` when `body` is no such message.
pub fn decode<M: Message + Default>(name: &str, body: bytes::Bytes) -> Result<M> {
    M::decode(body).map_err(|source| Error::data(format!("`{name}` message can't be read")).with_source(source))
}
