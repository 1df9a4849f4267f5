//! FetchLog: long poll, size limits, projection.
//!
//! Source: S5.1, S5.2.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::future::select_all;

use super::clients::{Client, Held};
use super::{Act, Routed, Server, blocking, decoded, log_of, told};
use crate::error::{Error, Result};
use crate::fluss::api::ApiKey;
use crate::fluss::code::Code;
use crate::fluss::frame::{RequestFrame, ResponseFrame};
use crate::fluss::proto::{
    FetchLogRequest, FetchLogResponse, PbFetchLogReqForTable, PbFetchLogRespForBucket, PbFetchLogRespForTable,
};
use crate::fluss::record::{BatchSchema, batches, project};
use crate::model::{SchemaId, TableId};
use crate::node::log::{BucketLog, LogStore};
use crate::node::registry::Table;

/// Most bytes of records in an answer, whatever is asked for.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Longest wait, whatever is asked for: an answer without records is always right.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Offset that stands for the log's start.
const FROM_START: i64 = -2;

/// One bucket of the request.
struct Wanted {
    partition_id: Option<i64>,
    bucket_id: i32,
    offset: i64,
    bytes_max: usize,
    projection: Option<Arc<Vec<usize>>>,
    routed: Result<Routed>,
}

/// What one pass over the request found.
struct Pass {
    tables: Vec<PbFetchLogRespForTable>,
    bytes: usize,
    /// An entry says something that the client should hear at once.
    urgent: bool,
    /// Logs that could still get what is waited for.
    logs: Vec<Arc<BucketLog>>,
}

impl Server {
    /// The answer to a FetchLog and the memory that it holds; `None` = the client is gone.
    pub(super) async fn fetch(&self, frame: RequestFrame, client: &Client) -> Option<(ResponseFrame, Held)> {
        let id = frame.id;
        let fetched = match decoded(ApiKey::FetchLog, frame.body) {
            Ok(request) => self.fetch_log(request, client).await,
            Err(error) => Err(error),
        };
        match fetched {
            Ok((answer, held)) => Some((ResponseFrame::success(id, &answer), held?)),
            Err(error) => {
                tracing::debug!(error = %error.chain(), "fetch refused");
                Some((ResponseFrame::error(id, &error), Held::none()))
            }
        }
    }

    /// Memory is held while it reads, not while it waits.
    async fn fetch_log(&self, request: FetchLogRequest, client: &Client) -> Result<(FetchLogResponse, Option<Held>)> {
        let bytes_max = usize::try_from(request.max_bytes).unwrap_or(0).min(ANSWER_BYTES_MAX);
        let bytes_min = usize::try_from(request.min_bytes.unwrap_or(1)).unwrap_or(0).min(bytes_max.max(1));
        let wait = Duration::from_millis(u64::try_from(request.max_wait_ms.unwrap_or(0)).unwrap_or(0)).min(WAIT_MAX);
        let deadline = self.runtime.clock.moment() + wait;
        let buckets = request.tables_req.iter().flat_map(|table| &table.buckets_req);
        let mut room =
            buckets.fold(0_usize, |sum, bucket| sum.saturating_add(usize::try_from(bucket.max_fetch_bytes).unwrap_or(0)));
        room = room.min(bytes_max);
        loop {
            let Some(mut held) = client.hold_answer(room).await else { return Ok((FetchLogResponse::default(), None)) };
            // Looked up for each pass: a table may be dropped or rescaled while the request waits.
            let list: Vec<(TableId, Vec<Wanted>)> = request.tables_req.iter().map(|table| self.wanted(table)).collect();
            let logs = Arc::clone(&self.logs);
            // Logs are watched before they are read, so that nothing is missed in between.
            let (pass, moves) = blocking(move || {
                let pass = Pass::open(&logs, &list);
                let moves: Vec<_> = pass.logs.iter().map(|log| Box::pin(log.moved())).collect();
                (pass.read(&logs, &list, bytes_max), moves)
            })
            .await?;
            if pass.bytes > room.max(held.bytes()) {
                // A first batch that is larger than what was asked for: again, with room for it.
                room = pass.bytes;
                continue;
            }
            let left = deadline.saturating_duration_since(self.runtime.clock.moment());
            let hurry = self.stopping.is_cancelled() || client.ended.is_cancelled();
            if pass.urgent || pass.bytes >= bytes_min || left.is_zero() || hurry {
                held.shrink(pass.bytes);
                return Ok((FetchLogResponse { tables_resp: pass.tables }, Some(held)));
            }
            drop(held);
            let moved = async { if moves.is_empty() { std::future::pending().await } else { drop(select_all(moves).await) } };
            tokio::select! {
                () = moved => {}
                () = self.runtime.clock.sleep(left) => {}
                () = self.stopping.cancelled() => {}
                () = client.ended.cancelled() => {}
            }
        }
    }

    fn wanted(&self, request: &PbFetchLogReqForTable) -> (TableId, Vec<Wanted>) {
        let table = TableId(request.table_id);
        let projection = request.projection_pushdown_enabled.then(|| columns(&request.projected_fields));
        let buckets = request.buckets_req.iter().map(|bucket| {
            let routed = self.routed(table, bucket.partition_id, bucket.bucket_id, bucket.routing_bucket_count, Act::Read);
            let (projection, routed) = match &projection {
                Some(Err(fields)) => (None, routed.and(Err(bad_projection(fields)))),
                Some(Ok(positions)) => (Some(Arc::clone(positions)), routed),
                None => (None, routed),
            };
            Wanted {
                partition_id: bucket.partition_id,
                bucket_id: bucket.bucket_id,
                offset: bucket.fetch_offset,
                bytes_max: usize::try_from(bucket.max_fetch_bytes).unwrap_or(0),
                projection,
                routed,
            }
        });
        (table, buckets.collect())
    }
}

/// Projected positions, if they are ascending, unique and any.
fn columns(fields: &[i32]) -> Result<Arc<Vec<usize>>, Vec<i32>> {
    let positions: Option<Vec<usize>> = fields.iter().map(|field| usize::try_from(*field).ok()).collect();
    match positions {
        Some(positions) if !positions.is_empty() && positions.is_sorted_by(|a, b| a < b) => Ok(Arc::new(positions)),
        _ => Err(fields.to_vec()),
    }
}

fn bad_projection(fields: &[i32]) -> Error {
    Code::INVALID_COLUMN_PROJECTION.answer(format!("projected columns {fields:?} are not ascending positions"))
}

impl Pass {
    fn open(logs: &LogStore, wanted: &[(TableId, Vec<Wanted>)]) -> Self {
        let routed = wanted.iter().flat_map(|(_, buckets)| buckets).filter_map(|bucket| bucket.routed.as_ref().ok());
        let logs = routed.filter_map(|routed| log_of(logs, routed.bucket).ok()).collect();
        Self { tables: Vec::new(), bytes: 0, urgent: false, logs }
    }

    fn read(mut self, logs: &LogStore, wanted: &[(TableId, Vec<Wanted>)], bytes_max: usize) -> Self {
        for (table, buckets) in wanted {
            let mut schemas = Schemas::default();
            let mut buckets_resp = Vec::with_capacity(buckets.len());
            for bucket in buckets {
                let mut entry = PbFetchLogRespForBucket {
                    partition_id: bucket.partition_id,
                    bucket_id: bucket.bucket_id,
                    ..PbFetchLogRespForBucket::default()
                };
                let left = bytes_max.saturating_sub(self.bytes).min(bucket.bytes_max);
                match read_bucket(logs, bucket, left, self.bytes == 0, &mut schemas) {
                    Ok((high_watermark, records)) => {
                        self.bytes += records.len();
                        entry.high_watermark = Some(high_watermark);
                        entry.log_start_offset = Some(0);
                        entry.records = Some(records);
                    }
                    Err(error) => {
                        (entry.error_code, entry.error_message) = told(&error);
                        let waits = [Code::NOT_LEADER_OR_FOLLOWER, Code::UNKNOWN_TABLE_OR_BUCKET].contains(&Code::of(&error));
                        self.urgent |= !waits;
                    }
                }
                buckets_resp.push(entry);
            }
            self.tables.push(PbFetchLogRespForTable { table_id: table.0, buckets_resp });
        }
        self
    }
}

/// High watermark and records of one bucket.
fn read_bucket(logs: &LogStore, bucket: &Wanted, bytes_max: usize, first: bool, schemas: &mut Schemas) -> Result<(i64, Bytes)> {
    let routed = match &bucket.routed {
        Ok(routed) => routed,
        Err(error) => return Err(Code::of(error).answer(error.chain())),
    };
    let log = log_of(logs, routed.bucket)?;
    let offset = if bucket.offset == FROM_START { log.log_start() } else { bucket.offset };
    let high_watermark = log.high_watermark();
    let records = log.read(offset, bytes_max, first).map_err(|error| error.answer(routed.bucket))?;
    let records = match &bucket.projection {
        Some(positions) => cut(records, &routed.table, positions, schemas)?,
        None => records,
    };
    Ok((high_watermark.max(log.high_watermark()), records))
}

/// Schemas of one table, with what projection needs of them.
#[derive(Default)]
struct Schemas(BTreeMap<SchemaId, Arc<BatchSchema>>);

impl Schemas {
    fn get(&mut self, table: &Table, id: SchemaId) -> Result<Arc<BatchSchema>> {
        if let Some(schema) = self.0.get(&id) {
            return Ok(Arc::clone(schema));
        }
        let schema = table.schemas.get(&id);
        let schema = schema.ok_or_else(|| Error::data(format!("`{}` has a batch of unknown schema id `{id}`", table.info.path)))?;
        let schema = Arc::new(BatchSchema::new(Arc::clone(schema))?);
        self.0.insert(id, Arc::clone(&schema));
        Ok(schema)
    }
}

/// The batches with the columns at `positions` only.
fn cut(records: Bytes, table: &Table, positions: &[usize], schemas: &mut Schemas) -> Result<Bytes> {
    let newest = schemas.get(table, table.info.schema.id)?;
    if let Some(beyond) = positions.iter().find(|position| **position >= newest.schema.fields.len()) {
        return Err(Code::INVALID_COLUMN_PROJECTION.answer(format!("`{}` has no column at position `{beyond}`", table.info.path)));
    }
    let mut all = BytesMut::with_capacity(records.len());
    for batch in batches(records) {
        let batch = batch?;
        let schema = schemas.get(table, batch.header.schema_id)?;
        all.extend_from_slice(&project(&batch, &schema, &newest, positions)?);
    }
    Ok(all.freeze())
}
