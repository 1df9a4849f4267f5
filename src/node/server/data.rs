//! Logs: append, offsets, bounded reads, counts.
//!
//! Source: S4, S5.4, F4.6.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::try_join_all;

use super::{Act, Routed, Server, blocking, decoded, in_order, lanes, log_of, told};
use crate::error::Result;
use crate::fluss::api::ApiKey;
use crate::fluss::code::Code;
use crate::fluss::frame::{RequestFrame, ResponseFrame};
use crate::fluss::proto::{
    GetFileSystemSecurityTokenRequest, GetFileSystemSecurityTokenResponse, GetTableStatsRequest, GetTableStatsResponse,
    InitWriterRequest, InitWriterResponse, LimitScanRequest, LimitScanResponse, ListOffsetsRequest, ListOffsetsResponse,
    PbListOffsetsRespForBucket, PbProduceLogReqForBucket, PbProduceLogRespForBucket, PbTableStatsRespForBucket, ProduceLogRequest,
    ProduceLogResponse,
};
use crate::fluss::record::batches;
use crate::model::TableId;
use crate::node::log::{Appending, BucketLog, LogStore};

/// Most bytes that a bounded read answers with.
const LIMIT_SCAN_BYTES_MAX: usize = 256 << 20;

/// The answer for one bucket, and up to where its log has to be durable first.
type Entry = (PbProduceLogRespForBucket, Option<(Arc<BucketLog>, i64)>);

/// A ProduceLog whose batches are in their logs, but not yet durable.
#[derive(Debug)]
pub(super) struct Appended {
    id: i32,
    outcome: Result<Vec<Entry>>,
}

impl Appended {
    /// The answer, once all of it is durable.
    pub(super) async fn acknowledged(self) -> ResponseFrame {
        let entries = match self.outcome {
            Ok(entries) => entries,
            Err(error) => return ResponseFrame::error(self.id, &error),
        };
        let mut buckets_resp = Vec::with_capacity(entries.len());
        for (mut entry, waiting) in entries {
            if let Some((log, end_offset)) = waiting
                && let Err(error) = log.durable(end_offset).await
            {
                (entry.error_code, entry.error_message) = told(&Code::LOG_STORAGE.answer("not durable").with_source(error));
                entry.base_offset = None;
            }
            buckets_resp.push(entry);
        }
        ResponseFrame::success(self.id, &ProduceLogResponse { buckets_resp })
    }
}

impl Server {
    /// Puts the batches of a ProduceLog into their logs, those of a bucket in order.
    pub(super) async fn append(self: &Arc<Self>, frame: RequestFrame) -> Appended {
        let id = frame.id;
        let outcome = match decoded::<ProduceLogRequest>(ApiKey::ProduceLog, frame.body) {
            Ok(request) if !(-1..=1).contains(&request.acks) => {
                Err(Code::INVALID_REQUIRED_ACKS.answer(format!("acks `{}` is none of -1, 0, 1", request.acks)))
            }
            Ok(request) => self.append_all(request).await,
            Err(error) => Err(error),
        };
        Appended { id, outcome }
    }

    async fn append_all(self: &Arc<Self>, request: ProduceLogRequest) -> Result<Vec<Entry>> {
        let table = TableId(request.table_id);
        let lanes = lanes(request.buckets_req, |bucket| (bucket.partition_id, bucket.bucket_id)).into_iter().map(|lane| {
            let server = Arc::clone(self);
            blocking(move || {
                let appended = lane.into_iter().map(|(number, request)| (number, server.append_entry(table, request)));
                appended.collect::<Vec<_>>()
            })
        });
        Ok(in_order(try_join_all(lanes).await?))
    }

    fn append_entry(&self, table: TableId, request: PbProduceLogReqForBucket) -> Entry {
        let mut entry = PbProduceLogRespForBucket {
            partition_id: request.partition_id,
            bucket_id: request.bucket_id,
            original_partition_name: request.original_partition_name.clone(),
            ..PbProduceLogRespForBucket::default()
        };
        match self.append_bucket(table, request) {
            Ok((log, appending)) => {
                entry.base_offset = Some(appending.base_offset);
                (entry, Some((log, appending.end_offset)))
            }
            Err(error) => {
                (entry.error_code, entry.error_message) = told(&error);
                (entry, None)
            }
        }
    }

    fn append_bucket(&self, table: TableId, request: PbProduceLogReqForBucket) -> Result<(Arc<BucketLog>, Appending)> {
        if request.original_partition_name.is_some() {
            return Err(Code::INVALID_CONFIG.answer("this server does not support historical partitions yet"));
        }
        let routed = self.routed(table, request.partition_id, request.bucket_id, request.routing_bucket_count, Act::ByKey)?;
        if routed.table.info.has_primary_key() {
            return Err(Code::INVALID_TABLE.answer(format!("table `{}` has a primary key", routed.table.info.path)));
        }
        let log = log_of(&self.logs, routed.bucket)?;
        let corrupt = |text: &str| Code::CORRUPT_RECORD.answer(format!("{}: {text}", routed.bucket));
        let mut walk = batches(request.records);
        let mut all = Vec::new();
        for batch in walk.by_ref() {
            let batch = batch.map_err(|error| corrupt("unreadable batch").with_source(error))?;
            if !routed.table.schemas.contains_key(&batch.header.schema_id) {
                // 9 would be asked again for ever (S4.2).
                return Err(Code::INVALID_TABLE.answer(format!("schema id `{}` is unknown", batch.header.schema_id)));
            }
            all.push(batch);
        }
        if !walk.rest().is_empty() || all.is_empty() {
            return Err(corrupt("records are not whole batches"));
        }
        let mut whole: Option<Appending> = None;
        for batch in &all {
            let appended = log.append(batch).map_err(|error| error.answer(routed.bucket))?;
            let base_offset = whole.map_or(appended.base_offset, |first| first.base_offset);
            whole = Some(Appending { base_offset, end_offset: appended.end_offset });
        }
        whole.map(|whole| (log, whole)).ok_or_else(|| corrupt("no batch"))
    }

    pub(super) async fn init_writer(&self, _: InitWriterRequest) -> Result<InitWriterResponse> {
        Ok(InitWriterResponse { writer_id: self.registry.next_writer_id().await? })
    }

    pub(super) async fn list_offsets(&self, request: ListOffsetsRequest) -> Result<ListOffsetsResponse> {
        let table = TableId(request.table_id);
        let (kind, time, now_ms) = (request.offset_type, request.start_timestamp, self.runtime.clock.now_ms());
        let routed: Vec<(i32, Result<Routed>)> = request
            .bucket_id
            .iter()
            .map(|bucket| (*bucket, self.routed(table, request.partition_id, *bucket, request.routing_bucket_count, Act::Read)))
            .collect();
        let logs = Arc::clone(&self.logs);
        let buckets_resp = blocking(move || {
            let entries = routed.into_iter().map(|(bucket_id, routed)| {
                let mut entry = PbListOffsetsRespForBucket { bucket_id, ..PbListOffsetsRespForBucket::default() };
                match routed.and_then(|routed| offset(&logs, &routed, kind, time, now_ms)) {
                    Ok(offset) => entry.offset = Some(offset),
                    Err(error) => (entry.error_code, entry.error_message) = told(&error),
                }
                entry
            });
            entries.collect()
        });
        Ok(ListOffsetsResponse { buckets_resp: buckets_resp.await? })
    }

    pub(super) async fn limit_scan(&self, request: LimitScanRequest) -> Result<LimitScanResponse> {
        let table = TableId(request.table_id);
        let routed = self.routed(table, request.partition_id, request.bucket_id, request.routing_bucket_count, Act::Read);
        let logs = Arc::clone(&self.logs);
        let limit = i64::from(request.limit.max(0));
        let records = match routed {
            Ok(routed) if routed.table.info.has_primary_key() => {
                self.first_rows(&routed, request.limit).await.map(|records| (false, records))
            }
            Ok(routed) => blocking(move || newest_rows(&logs, &routed, limit)).await?.map(|records| (true, records)),
            Err(error) => Err(error),
        };
        Ok(match records {
            Ok((is_log, records)) => {
                LimitScanResponse { is_log_table: Some(is_log), records: Some(records), ..LimitScanResponse::default() }
            }
            Err(error) => {
                let (error_code, error_message) = told(&error);
                LimitScanResponse { error_code, error_message, ..LimitScanResponse::default() }
            }
        })
    }

    pub(super) async fn table_stats(&self, request: GetTableStatsRequest) -> Result<GetTableStatsResponse> {
        let table = TableId(request.table_id);
        let mut buckets_resp = Vec::with_capacity(request.buckets_req.len());
        for bucket in request.buckets_req {
            let (partition_id, bucket_id) = (bucket.partition_id, bucket.bucket_id);
            let mut entry = PbTableStatsRespForBucket { partition_id, bucket_id, ..PbTableStatsRespForBucket::default() };
            let count = match self.routed(table, partition_id, bucket_id, bucket.routing_bucket_count, Act::Read) {
                Ok(routed) if routed.table.info.has_primary_key() => self.row_count(&routed).await,
                Ok(routed) => {
                    let logs = Arc::clone(&self.logs);
                    let log = blocking(move || log_of(&logs, routed.bucket)).await?;
                    log.map(|log| i64::try_from(log.rows()).unwrap_or(i64::MAX))
                }
                Err(error) => Err(error),
            };
            match count {
                Ok(count) => entry.row_count = Some(count),
                Err(error) => (entry.error_code, entry.error_message) = told(&error),
            }
            buckets_resp.push(entry);
        }
        Ok(GetTableStatsResponse { buckets_resp })
    }

    /// Everything lies on this machine: there is no secret to hand out (S5.4).
    pub(super) async fn security_token(&self, _: GetFileSystemSecurityTokenRequest) -> Result<GetFileSystemSecurityTokenResponse> {
        Ok(GetFileSystemSecurityTokenResponse { schema: "file".to_owned(), ..GetFileSystemSecurityTokenResponse::default() })
    }
}

/// ListOffsets for one bucket (S5.4).
fn offset(logs: &LogStore, routed: &Routed, kind: i32, time: Option<i64>, now_ms: i64) -> Result<i64> {
    let log = log_of(logs, routed.bucket)?;
    match (kind, time) {
        (0, _) => Ok(log.log_start()),
        (1, _) => Ok(log.high_watermark()),
        (2, Some(time)) if time > now_ms => {
            Err(Code::INVALID_TIMESTAMP.answer(format!("{}: `{time}` is in the future, it is `{now_ms}` here", routed.bucket)))
        }
        (2, Some(time)) => {
            log.offset_at(time).map_err(|error| Code::LOG_STORAGE.answer(format!("{}", routed.bucket)).with_source(error))
        }
        _ => Err(Code::UNKNOWN_SERVER_ERROR.answer(format!("offset type `{kind}` with timestamp `{time:?}`"))),
    }
}

/// Whole batches with the newest `limit` rows, and maybe some before them (S5.4).
fn newest_rows(logs: &LogStore, routed: &Routed, limit: i64) -> Result<Bytes> {
    let log = log_of(logs, routed.bucket)?;
    let high_watermark = log.high_watermark();
    let start = high_watermark.saturating_sub(limit).max(log.log_start());
    let records = log.read(start, LIMIT_SCAN_BYTES_MAX, true).map_err(|error| error.answer(routed.bucket))?;
    // The client takes the last rows of the answer for the newest ones: one that was cut off would tell it wrong rows.
    let end = batches(records.clone()).filter_map(|batch| batch.ok().map(|batch| batch.header.next_offset())).last();
    if end.is_some_and(|end| end < high_watermark) {
        let text = format!("{}: `{limit}` rows are more than `{LIMIT_SCAN_BYTES_MAX}` bytes", routed.bucket);
        return Err(Code::RECORD_TOO_LARGE.answer(text));
    }
    Ok(records)
}
