//! Primary-key tables: puts, look-ups, reads of their state.
//!
//! Source: S6, F5.7, F4.6.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;

use super::{Act, Routed, Server, blocking, decoded, in_order, lanes, told};
use crate::error::{Error, Result};
use crate::fluss::api::ApiKey;
use crate::fluss::bucket::{BucketFunction, KeyRules};
use crate::fluss::code::Code;
use crate::fluss::frame::{RequestFrame, ResponseFrame};
use crate::fluss::proto::{
    LookupRequest, LookupResponse, PbLookupReqForBucket, PbLookupRespForBucket, PbPrefixLookupReqForBucket,
    PbPrefixLookupRespForBucket, PbPutKvReqForBucket, PbPutKvRespForBucket, PbScanReqForBucket, PbValue, PbValueList,
    PrefixLookupRequest, PrefixLookupResponse, PutKvRequest, PutKvResponse, ScanKvRequest, ScanKvResponse,
};
use crate::fluss::record::{KvBatch, ValueBatchBuilder};
use crate::model::{TableId, TableInfo};
use crate::node::kv::{Answer, BucketKv, Shape, Snapshot};
use crate::node::log::BucketLog;

/// Most bytes of values that one answer to a look-up has.
const LOOKUP_BYTES_MAX: usize = 64 << 20;

/// The answer for one bucket, and up to where its log has to be durable first.
type Entry = (PbPutKvRespForBucket, Option<(Arc<BucketLog>, i64)>);

/// A PutKv whose changes are in their logs and states, but not yet durable.
#[derive(Debug)]
pub(super) struct Put {
    id: i32,
    outcome: Result<Vec<Entry>>,
}

impl Put {
    /// The answer, once all of it is durable.
    pub(super) async fn acknowledged(self) -> ResponseFrame {
        let entries = match self.outcome {
            Ok(entries) => entries,
            Err(error) => return ResponseFrame::error(self.id, &error),
        };
        let mut buckets_resp = Vec::with_capacity(entries.len());
        for (mut entry, waiting) in entries {
            if let Some((log, end_offset)) = waiting {
                match log.durable(end_offset).await {
                    Ok(()) => entry.log_end_offset = Some(end_offset),
                    Err(error) => {
                        (entry.error_code, entry.error_message) = told(&Code::LOG_STORAGE.answer("not durable").with_source(error));
                    }
                }
            }
            buckets_resp.push(entry);
        }
        ResponseFrame::success(self.id, &PutKvResponse { buckets_resp })
    }
}

impl Server {
    /// Puts the batches of a PutKv into logs and states, those of a bucket in order.
    pub(super) async fn put(&self, frame: RequestFrame) -> Put {
        let id = frame.id;
        let outcome = match decoded::<PutKvRequest>(ApiKey::PutKv, frame.body) {
            Ok(request) => self.put_all(request).await,
            Err(error) => Err(error),
        };
        Put { id, outcome }
    }

    async fn put_all(&self, request: PutKvRequest) -> Result<Vec<Entry>> {
        if !(-1..=1).contains(&request.acks) {
            return Err(Code::INVALID_REQUIRED_ACKS.answer(format!("acks `{}` is none of -1, 0, 1", request.acks)));
        }
        if request.agg_mode == Some(1) {
            return Err(Code::INVALID_CONFIG.answer("this server does not support aggregation mode `overwrite` yet"));
        }
        let (table, targets) = (TableId(request.table_id), &request.target_columns);
        let lanes = lanes(request.buckets_req, |bucket| (bucket.partition_id, bucket.bucket_id)).into_iter().map(async |lane| {
            let mut entries = Vec::with_capacity(lane.len());
            for (number, bucket) in lane {
                entries.push((number, self.put_entry(table, targets, bucket).await));
            }
            entries
        });
        Ok(in_order(join_all(lanes).await))
    }

    async fn put_entry(&self, table: TableId, targets: &[i32], bucket: PbPutKvReqForBucket) -> Entry {
        let mut entry = PbPutKvRespForBucket {
            partition_id: bucket.partition_id,
            bucket_id: bucket.bucket_id,
            original_partition_name: bucket.original_partition_name.clone(),
            ..PbPutKvRespForBucket::default()
        };
        let waiting = match self.put_bucket(table, targets, bucket).await {
            Ok(waiting) => Some(waiting),
            Err(error) => {
                (entry.error_code, entry.error_message) = told(&error);
                None
            }
        };
        (entry, waiting)
    }

    async fn put_bucket(&self, table: TableId, targets: &[i32], request: PbPutKvReqForBucket) -> Result<(Arc<BucketLog>, i64)> {
        if request.original_partition_name.is_some() {
            return Err(Code::INVALID_CONFIG.answer("this server does not support historical partitions yet"));
        }
        let routed = self.routed(table, request.partition_id, request.bucket_id, request.routing_bucket_count, Act::ByKey)?;
        let routed = keyed(routed)?;
        check_targets(&routed.table.info, targets)?;
        let batch = KvBatch::parse(request.records)
            .map_err(|error| Code::CORRUPT_RECORD.answer(format!("{}: unreadable batch", routed.bucket)).with_source(error))?;
        let kv = self.state_of(&routed).await?;
        let mut progress = kv.writing(&Shape::of(routed.table)?).await?;
        // As it is now that no other put can come between: what is in the state is of schemas that this one knows.
        let newest = self.registry.table_by_id(table);
        let newest = newest.ok_or_else(|| Code::UNKNOWN_TABLE_OR_BUCKET.answer(format!("table id `{table}` is unknown")))?;
        let shape = Shape::of(newest)?;
        let putting = Arc::clone(&kv);
        let (outcome, progress) = blocking(move || {
            let outcome = putting.put(&mut progress, &shape, &batch);
            (outcome, progress)
        })
        .await?;
        if kv.is_due(&progress)
            && let Err(error) = kv.save(progress).await
        {
            tracing::warn!(bucket = %routed.bucket, error = %error.chain(), "state not made durable for now");
        }
        if outcome.as_ref().is_err_and(|error| Code::of(error) == Code::KV_STORAGE) {
            // A file that failed once takes nothing more until it is opened again.
            self.states.close(routed.bucket);
        }
        Ok((Arc::clone(kv.log()), outcome?.end_offset))
    }

    /// The state of a bucket, opened if it is not.
    async fn state_of(&self, routed: &Routed) -> Result<Arc<BucketKv>> {
        let (states, bucket, shape) = (Arc::clone(&self.states), routed.bucket, Shape::of(Arc::clone(&routed.table))?);
        blocking(move || states.bucket(bucket, &shape)).await?
    }

    /// The state of a bucket as it is now. What is read from it may be told after [`Snapshot::settled`].
    pub(super) async fn snapshot(&self, routed: &Routed) -> Result<Arc<Snapshot>> {
        let kv = self.state_of(routed).await?;
        blocking(move || kv.snapshot()).await?.map(Arc::new)
    }

    pub(super) async fn lookup(&self, request: LookupRequest) -> Result<LookupResponse> {
        if request.insert_if_not_exists.unwrap_or(false) {
            return Err(Code::INVALID_CONFIG.answer("this server does not support look-ups that insert what is missing yet"));
        }
        let mut buckets_resp = Vec::with_capacity(request.buckets_req.len());
        for bucket in request.buckets_req {
            let mut entry = PbLookupRespForBucket {
                partition_id: bucket.partition_id,
                bucket_id: bucket.bucket_id,
                original_partition_name: bucket.original_partition_name.clone(),
                ..PbLookupRespForBucket::default()
            };
            match self.lookup_bucket(TableId(request.table_id), bucket).await {
                Ok(values) => entry.values = values,
                Err(error) => (entry.error_code, entry.error_message) = told(&error),
            }
            buckets_resp.push(entry);
        }
        Ok(LookupResponse { buckets_resp })
    }

    async fn lookup_bucket(&self, table: TableId, request: PbLookupReqForBucket) -> Result<Vec<PbValue>> {
        let routed = self.routed(table, request.partition_id, request.bucket_id, request.routing_bucket_count, Act::ByKey)?;
        let snapshot = self.snapshot(&keyed(routed)?).await?;
        let reading = Arc::clone(&snapshot);
        let values = blocking(move || {
            let mut room = Room::default();
            let value = |key: &Bytes| Ok(PbValue { values: reading.get(key)?.map(|value| room.take(value)).transpose()? });
            request.keys.iter().map(value).collect::<Result<Vec<_>>>()
        })
        .await??;
        snapshot.settled().await?;
        Ok(values)
    }

    pub(super) async fn prefix_lookup(&self, request: PrefixLookupRequest) -> Result<PrefixLookupResponse> {
        let mut buckets_resp = Vec::with_capacity(request.buckets_req.len());
        for bucket in request.buckets_req {
            let mut entry = PbPrefixLookupRespForBucket {
                partition_id: bucket.partition_id,
                bucket_id: bucket.bucket_id,
                ..PbPrefixLookupRespForBucket::default()
            };
            match self.prefix_lookup_bucket(TableId(request.table_id), bucket).await {
                Ok(lists) => entry.value_lists = lists,
                Err(error) => (entry.error_code, entry.error_message) = told(&error),
            }
            buckets_resp.push(entry);
        }
        Ok(PrefixLookupResponse { buckets_resp })
    }

    async fn prefix_lookup_bucket(&self, table: TableId, request: PbPrefixLookupReqForBucket) -> Result<Vec<PbValueList>> {
        let routed = self.routed(table, request.partition_id, request.bucket_id, request.routing_bucket_count, Act::ByKey)?;
        let routed = keyed(routed)?;
        check_prefix(&routed.table.info)?;
        let snapshot = self.snapshot(&routed).await?;
        let reading = Arc::clone(&snapshot);
        let lists = blocking(move || {
            let mut room = Room::default();
            let mut list = |prefix: &Bytes| {
                let mut values = Vec::new();
                reading.walk(Bound::Included(prefix), |key, value| {
                    let belongs = key.starts_with(prefix);
                    if belongs {
                        values.push(room.take(Bytes::copy_from_slice(value))?);
                    }
                    Ok(belongs)
                })?;
                Ok(PbValueList { values })
            };
            request.keys.iter().map(&mut list).collect::<Result<Vec<_>>>()
        })
        .await??;
        snapshot.settled().await?;
        Ok(lists)
    }

    /// The first `limit` rows in key order, as one value batch (S6.8).
    pub(super) async fn first_rows(&self, routed: &Routed, limit: i32) -> Result<Bytes> {
        let snapshot = self.snapshot(routed).await?;
        let (reading, limit) = (Arc::clone(&snapshot), usize::try_from(limit).unwrap_or(0));
        let bucket = routed.bucket;
        let records = blocking(move || {
            let mut values = ValueBatchBuilder::default();
            reading.walk(Bound::Unbounded, |_, value| {
                if values.count() == limit {
                    return Ok(false);
                }
                let too_large = |error| {
                    Code::RECORD_TOO_LARGE.answer(format!("{bucket}: `{limit}` rows are too many bytes")).with_source(error)
                };
                values.push(value).map_err(too_large)?;
                Ok(true)
            })?;
            Ok::<_, Error>(values.finish())
        })
        .await??;
        snapshot.settled().await?;
        Ok(records)
    }

    /// Rows that there are.
    pub(super) async fn row_count(&self, routed: &Routed) -> Result<i64> {
        let snapshot = self.snapshot(routed).await?;
        let reading = Arc::clone(&snapshot);
        let rows = blocking(move || reading.rows()).await??;
        snapshot.settled().await?;
        Ok(i64::try_from(rows).unwrap_or(i64::MAX))
    }

    pub(super) async fn scan_kv(&self, request: ScanKvRequest) -> Result<ScanKvResponse> {
        Ok(match self.scan(request).await {
            Ok(answer) => answer,
            Err(error) => {
                let (error_code, error_message) = told(&error);
                ScanKvResponse { error_code, error_message, ..ScanKvResponse::default() }
            }
        })
    }

    async fn scan(&self, request: ScanKvRequest) -> Result<ScanKvResponse> {
        let wrong = |text: &str| Err(Code::INVALID_SCAN_REQUEST.answer(text));
        let close = request.close_scanner.unwrap_or(false);
        let bytes_max = request.batch_size_bytes.and_then(|bytes| usize::try_from(bytes).ok()).filter(|bytes| *bytes > 0);
        match (request.bucket_scan_req, request.scanner_id, request.call_seq_id, bytes_max) {
            (Some(_), Some(_), _, _) | (None, None, _, _) => wrong("a scan is opened or goes on, one of both"),
            (Some(_), None, _, _) if close => wrong("a scan that is to be opened can't be closed"),
            (None, Some(scanner), _, _) if close => {
                self.scanners.close(&scanner);
                Ok(ScanKvResponse { scanner_id: Some(scanner), has_more_results: Some(false), ..ScanKvResponse::default() })
            }
            (_, _, _, None) => wrong("a scan needs `batch_size_bytes` above 0"),
            (_, _, None, _) => wrong("a scan needs `call_seq_id`"),
            (Some(bucket), None, Some(0), Some(bytes_max)) => self.open_scan(bucket, bytes_max).await,
            (Some(_), None, Some(sequence), _) => wrong(&format!("call `{sequence}` can't open a scan, 0 does")),
            (None, Some(scanner), Some(sequence), Some(bytes_max)) => {
                let next = self.scanners.next(scanner, sequence, bytes_max)?;
                let scanners = Arc::clone(&self.scanners);
                let answer = blocking(move || next.answer(&scanners)).await??;
                Ok(scanned(answer, None))
            }
        }
    }

    async fn open_scan(&self, request: PbScanReqForBucket, bytes_max: usize) -> Result<ScanKvResponse> {
        let table = TableId(request.table_id);
        let routed = self.routed(table, request.partition_id, request.bucket_id, request.routing_bucket_count, Act::Read)?;
        let snapshot = self.snapshot(&keyed(routed)?).await?;
        // Whoever goes on from the log must find it there.
        snapshot.settled().await?;
        let log_offset = snapshot.log_offset;
        let scanner = Bytes::from(self.runtime.rng.uuid().simple().to_string());
        let limit = request.limit.and_then(|limit| u64::try_from(limit).ok()).filter(|limit| *limit > 0);
        let next = self.scanners.open(scanner, snapshot, limit, bytes_max)?;
        let scanners = Arc::clone(&self.scanners);
        let answer = blocking(move || next.answer(&scanners)).await??;
        Ok(scanned(answer, Some(log_offset)))
    }
}

fn scanned(answer: Answer, log_offset: Option<i64>) -> ScanKvResponse {
    ScanKvResponse {
        scanner_id: answer.scanner,
        has_more_results: Some(answer.more),
        records: answer.records,
        log_offset,
        ..ScanKvResponse::default()
    }
}

/// Error 20 for a log table.
fn keyed(routed: Routed) -> Result<Routed> {
    match routed.table.info.has_primary_key() {
        true => Ok(routed),
        false => Err(Code::NON_PRIMARY_KEY_TABLE.answer(format!("table `{}` has no primary key", routed.table.info.path))),
    }
}

/// Target columns must be all columns: partial updates are not served (S6.2, S6.4).
fn check_targets(info: &TableInfo, targets: &[i32]) -> Result<()> {
    let columns = info.schema.fields.len();
    let all = (0..columns).all(|column| targets.iter().any(|target| usize::try_from(*target) == Ok(column)));
    if targets.is_empty() || all {
        return Ok(());
    }
    Err(Code::INVALID_TARGET_COLUMN.answer(format!(
        "table `{}`: this server does not support partial updates yet, `{}` of `{columns}` columns are the targets",
        info.path,
        targets.len()
    )))
}

/// Keys that begin with the bucket key can be looked up by it (S6.7).
fn check_prefix(info: &TableInfo) -> Result<()> {
    let rules = KeyRules::of(info)?;
    let begins = rules.columns.starts_with(&rules.bucket_columns) && rules.columns.len() > rules.bucket_columns.len();
    if begins && rules.encoding == BucketFunction::Fluss {
        return Ok(());
    }
    Err(Code::INVALID_TABLE.answer(format!(
        "table `{}` has no prefix look-ups: they need a bucket key that the primary key begins with, and `table.kv.format-version` 2",
        info.path
    )))
}

/// What one answer may still hold.
#[derive(Debug, Default)]
struct Room(usize);

impl Room {
    fn take(&mut self, value: Bytes) -> Result<Bytes> {
        self.0 += value.len();
        if self.0 > LOOKUP_BYTES_MAX {
            let text = format!("the values of a look-up are more than `{LOOKUP_BYTES_MAX}` bytes: ask for fewer keys at once");
            return Err(Code::RECORD_TOO_LARGE.answer(text));
        }
        Ok(value)
    }
}
