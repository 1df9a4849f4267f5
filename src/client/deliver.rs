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
use crate::fluss::proto::{PbProduceLogReqForBucket, ProduceLogRequest};
use crate::model::{BucketId, BucketLayout, PartitionId, TableBucket, TableId, TableInfo};

/// A batch, and the layout that its rows were routed by.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) layout: BucketLayout,
    pub(super) batch: Bytes,
}

/// What became of a wave. A bucket in none of the maps is still open: `failure` says why.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    /// Durable, with the offset of the first record where the server tells it.
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
            let batches = buckets.iter().filter_map(|bucket| parcels.get(bucket).map(|parcel| (bucket, parcel)));
            let request = ProduceLogRequest {
                acks: -1,
                table_id: table.id.0,
                timeout_ms,
                buckets_req: batches
                    .map(|(bucket, parcel)| PbProduceLogReqForBucket {
                        partition_id: bucket.partition.map(|partition| partition.0),
                        bucket_id: bucket.bucket.0,
                        records: parcel.batch.clone(),
                        original_partition_name: None,
                        routing_bucket_count: Some(parcel.layout.count),
                    })
                    .collect(),
            };
            let seen = &seen;
            async move { produce(cluster, server, &buckets, &request, seen).await }.boxed()
        })
        .await;
    let mut delivery = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    delivery.failure = told.err();
    delivery
}

async fn produce(
    cluster: &Cluster,
    server: i32,
    buckets: &[TableBucket],
    request: &ProduceLogRequest,
    seen: &Mutex<Delivery>,
) -> Result<Answers<()>> {
    let answer = cluster.server(server, request).await;
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) if leaves_open(&error) => {
            seen.unsure.extend(buckets);
            seen.doubt = Some(error);
            return Ok(buckets.iter().map(|bucket| (*bucket, Ok(()))).collect());
        }
        Err(error) => return Err(error),
    };
    let mut answers = Answers::new();
    let mut silent: BTreeSet<&TableBucket> = buckets.iter().collect();
    for entry in answer.buckets_resp {
        let bucket = TableBucket {
            table: TableId(request.table_id),
            partition: entry.partition_id.map(PartitionId),
            bucket: BucketId(entry.bucket_id),
        };
        if !silent.remove(&bucket) {
            continue;
        }
        let refusal = Code::refusal(entry.error_code, entry.error_message.as_deref());
        let outcome = match refusal.map(|error| (error.code().map(Code), error)) {
            // 32: already there, an earlier answer was lost.
            None | Some((Some(Code::DUPLICATE_SEQUENCE), _)) => {
                seen.acknowledged.insert(bucket, entry.base_offset.filter(|offset| *offset >= 0));
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
