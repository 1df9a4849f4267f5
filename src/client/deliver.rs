//! One wave of batches on its way to the leaders of their buckets: sent, repeated, and what became of each.
//!
//! Owns which answers settle a batch and which leave it open (S4.4). What to do about a refusal is the writer's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use futures::future::FutureExt;

use crate::error::{Error, Result};
use crate::fluss::cluster::{Answers, Cluster};
use crate::fluss::code::Code;
use crate::fluss::proto::{PbProduceLogReqForBucket, PbPutKvReqForBucket, ProduceLogRequest, PutKvRequest};
use crate::model::{BucketId, BucketLayout, PartitionId, TableBucket, TableId, TableInfo};

/// A batch, and the layout that its rows were routed by.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) layout: BucketLayout,
    pub(super) batch: Bytes,
    /// Rows of the batch.
    pub(super) rows: usize,
}

/// What became of a wave. A bucket in none of the maps is still open: `failure` says why.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    /// Durable, with the end of the log behind it where the server tells that.
    pub(super) acknowledged: BTreeMap<TableBucket, Option<i64>>,
    /// Turned away by the last answer, with 31, 33 or 74.
    pub(super) refused: BTreeMap<TableBucket, Error>,
    /// Stored or not: the answer was lost, or leaves it open.
    pub(super) unsure: BTreeSet<TableBucket>,
    /// Why one of these is.
    pub(super) doubt: Option<Error>,
    /// Why the wave ended early.
    pub(super) failure: Option<Error>,
}

/// Sends each parcel to its bucket's leader until it is acknowledged, refused, or it can't be said whether it is stored.
pub(super) async fn deliver(
    cluster: &Cluster,
    table: &TableInfo,
    timeout_ms: i32,
    parcels: &BTreeMap<TableBucket, Parcel>,
) -> Delivery {
    let seen = Mutex::new(Delivery::default());
    let told = cluster
        .routed("append", &table.path, parcels.keys().copied(), |server, buckets| {
            let seen = &seen;
            async move { settled(send(cluster, server, table, timeout_ms, &buckets, parcels).await, table.id, &buckets, seen) }
                .boxed()
        })
        .await;
    let mut delivery = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    delivery.failure = told.err();
    delivery
}

/// What a server says of one bucket.
struct Word {
    partition_id: Option<i64>,
    bucket_id: i32,
    error_code: Option<i32>,
    error_message: Option<String>,
    /// End of the log behind the batch.
    end: Option<i64>,
}

async fn send(
    cluster: &Cluster,
    server: i32,
    table: &TableInfo,
    timeout_ms: i32,
    buckets: &[TableBucket],
    parcels: &BTreeMap<TableBucket, Parcel>,
) -> Result<Vec<Word>> {
    let sent = buckets.iter().filter_map(|bucket| parcels.get(bucket).map(|parcel| (bucket, parcel)));
    if table.has_primary_key() {
        let entries = sent.map(|(bucket, parcel)| PbPutKvReqForBucket {
            partition_id: bucket.partition.map(|partition| partition.0),
            bucket_id: bucket.bucket.0,
            records: parcel.batch.clone(),
            original_partition_name: None,
            routing_bucket_count: Some(parcel.layout.count),
        });
        let request = PutKvRequest {
            acks: -1,
            table_id: table.id.0,
            timeout_ms,
            // All of them.
            target_columns: Vec::new(),
            buckets_req: entries.collect(),
            agg_mode: Some(0),
        };
        let answer = cluster.server(server, &request).await?;
        return Ok(answer
            .buckets_resp
            .into_iter()
            .map(|entry| Word {
                partition_id: entry.partition_id,
                bucket_id: entry.bucket_id,
                error_code: entry.error_code,
                error_message: entry.error_message,
                end: entry.log_end_offset.filter(|end| *end >= 0),
            })
            .collect());
    }
    let entries = sent.map(|(bucket, parcel)| PbProduceLogReqForBucket {
        partition_id: bucket.partition.map(|partition| partition.0),
        bucket_id: bucket.bucket.0,
        records: parcel.batch.clone(),
        original_partition_name: None,
        routing_bucket_count: Some(parcel.layout.count),
    });
    let request = ProduceLogRequest { acks: -1, table_id: table.id.0, timeout_ms, buckets_req: entries.collect() };
    let answer = cluster.server(server, &request).await?;
    let words = answer.buckets_resp.into_iter().map(|entry| {
        let bucket =
            TableBucket { table: table.id, partition: entry.partition_id.map(PartitionId), bucket: BucketId(entry.bucket_id) };
        let rows = parcels.get(&bucket).and_then(|parcel| i64::try_from(parcel.rows).ok());
        let base = entry.base_offset.filter(|offset| *offset >= 0);
        Word {
            partition_id: entry.partition_id,
            bucket_id: entry.bucket_id,
            error_code: entry.error_code,
            error_message: entry.error_message,
            end: base.zip(rows).and_then(|(base, rows)| base.checked_add(rows)),
        }
    });
    Ok(words.collect())
}

/// Notes what an answer settles and leaves open; what servers say before they touch the log stays an error.
fn settled(answer: Result<Vec<Word>>, table: TableId, buckets: &[TableBucket], seen: &Mutex<Delivery>) -> Result<Answers<()>> {
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let words = match answer {
        Ok(words) => words,
        Err(error) if leaves_open(&error) => {
            seen.unsure.extend(buckets);
            seen.doubt = Some(error);
            return Ok(buckets.iter().map(|bucket| (*bucket, Ok(()))).collect());
        }
        Err(error) => return Err(error),
    };
    let mut answers = Answers::new();
    let mut silent: BTreeSet<&TableBucket> = buckets.iter().collect();
    for entry in words {
        let bucket = TableBucket { table, partition: entry.partition_id.map(PartitionId), bucket: BucketId(entry.bucket_id) };
        if !silent.remove(&bucket) {
            continue;
        }
        let refusal = Code::refusal(entry.error_code, entry.error_message.as_deref());
        let outcome = match refusal.map(|error| (error.code().map(Code), error)) {
            // 32: already there, an earlier answer was lost.
            None | Some((Some(Code::DUPLICATE_SEQUENCE), _)) => {
                seen.acknowledged.insert(bucket, entry.end);
                Ok(())
            }
            Some((Some(Code::OUT_OF_ORDER_SEQUENCE | Code::UNKNOWN_WRITER_ID | Code::INVALID_BUCKET_ROUTING), error)) => {
                seen.refused.insert(bucket, error);
                Ok(())
            }
            Some((_, error)) if leaves_open(&error) => {
                seen.unsure.insert(bucket);
                seen.doubt = Some(error);
                Ok(())
            }
            Some((_, error)) => Err(error),
        };
        answers.push((bucket, outcome));
    }
    for bucket in silent {
        seen.unsure.insert(*bucket);
        seen.doubt = Some(Code::CORRUPT_MESSAGE.error(format!("the server left {bucket} out of its answer")));
        answers.push((*bucket, Ok(())));
    }
    Ok(answers)
}

/// Whether a batch may be stored although this was said instead of an acknowledgement. What servers say before they touch the
/// log is left to [`Cluster::routed`], and so is what repeating does not help against.
fn leaves_open(error: &Error) -> bool {
    let after = [
        Code::NETWORK_EXCEPTION,
        Code::CORRUPT_MESSAGE,
        Code::LOG_STORAGE,
        Code::KV_STORAGE,
        Code::REQUEST_TIME_OUT,
        Code::STORAGE,
        Code::NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ];
    error.code().is_some_and(|code| after.contains(&Code(code)))
}
