//! Looks into logs for batches whose answer was lost.
//!
//! A server remembers the last batches of a writer and would turn a repeated one away, but may forget (0.9.1 does when it is
//! killed). The log itself does not: each batch carries its writer and sequence.

use std::collections::BTreeMap;

use futures::future::{FutureExt, try_join_all};

use crate::error::{Error, Result};
use crate::fluss::cluster::{Answers, Cluster};
use crate::fluss::code::Code;
use crate::fluss::proto::{EARLIEST, FetchLogRequest, ListOffsetsRequest, LogEnd, PbFetchLogReqForBucket, PbFetchLogRespForBucket};
use crate::fluss::record::batches;
use crate::model::{BucketId, BucketLayout, PartitionId, TableBucket, TableInfo};

const FETCH_BYTES: i32 = 4 << 20;

/// A batch by what its header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) writer: i64,
    pub(super) sequence: i32,
}

/// End of each bucket's log now. Buckets whose routing is out of date (74) are left out.
///
/// # Errors
/// As [`Cluster::routed`].
pub(super) async fn log_ends(
    cluster: &Cluster,
    table: &TableInfo,
    buckets: &BTreeMap<TableBucket, BucketLayout>,
) -> Result<BTreeMap<TableBucket, i64>> {
    let mut partitions: BTreeMap<Option<PartitionId>, BTreeMap<TableBucket, BucketLayout>> = BTreeMap::new();
    for (bucket, layout) in buckets {
        partitions.entry(bucket.partition).or_default().insert(*bucket, *layout);
    }
    // A request asks about one partition, of which all buckets have one count.
    let asked = partitions.into_iter().filter_map(|(partition, buckets)| {
        let layout = *buckets.values().next()?;
        Some(async move {
            let ask = |server, buckets: Vec<TableBucket>| {
                let request = ListOffsetsRequest::of_client(table.id, partition, &buckets, layout, LogEnd::HighWatermark);
                async move {
                    let answer = cluster.server(server, &request).await?;
                    let entries = answer.buckets_resp.into_iter().map(|entry| {
                        let bucket = TableBucket { table: table.id, partition, bucket: BucketId(entry.bucket_id) };
                        let told = match Code::refusal(entry.error_code, entry.error_message.as_deref()) {
                            Some(error) if error.code() == Some(Code::INVALID_BUCKET_ROUTING.0) => Ok(None),
                            Some(error) => Err(error),
                            None => Ok(entry.offset),
                        };
                        (bucket, told)
                    });
                    Ok(entries.collect::<Answers<_>>())
                }
                .boxed()
            };
            cluster.routed("find the log end", &table.path, buckets.into_keys(), ask).await
        })
    });
    let told = try_join_all(asked).await?;
    Ok(told.into_iter().flatten().filter_map(|(bucket, offset)| Some((bucket, offset?))).collect())
}

/// The end offset of the batch with this mark, if it is in the log of `bucket` at `from` or behind it.
///
/// # Errors
/// As [`Cluster::routed`]; `Data` when the log ends before `from`, `Unavailable` when that part of it can't be read.
pub(super) async fn find(
    cluster: &Cluster,
    table: &TableInfo,
    (bucket, layout): (TableBucket, BucketLayout),
    from: i64,
    mark: Mark,
) -> Result<Option<i64>> {
    let mut offset = from;
    loop {
        let entry = match fetch(cluster, table, bucket, layout, offset).await {
            Err(error) if error.code() == Some(Code::LOG_OFFSET_OUT_OF_RANGE.0) && offset != EARLIEST => {
                let end = log_ends(cluster, table, &[(bucket, layout)].into()).await?.remove(&bucket);
                if let Some(end) = end.filter(|end| *end < from) {
                    return Err(lost(table, bucket, from, end).with_source(error));
                }
                // Retention has moved on: the batch is behind what it took.
                offset = EARLIEST;
                continue;
            }
            entry => entry?,
        };
        let mut next = offset;
        for batch in batches(entry.records.unwrap_or_default()) {
            let header = batch?.header;
            next = header.next_offset();
            if (header.writer_id, header.batch_sequence) == (mark.writer, mark.sequence) {
                return Ok(Some(next));
            }
        }
        if next == offset {
            let is_end = offset == EARLIEST || entry.high_watermark.is_some_and(|end| offset >= end);
            if is_end && entry.remote_log_fetch_info.is_none() {
                return Ok(None);
            }
            let text = format!("look for a batch in table `{}`, {bucket}: nothing can be read at offset `{offset}`", table.path);
            return Err(Error::unavailable(text));
        }
        offset = next;
    }
}

fn lost(table: &TableInfo, bucket: TableBucket, from: i64, end: i64) -> Error {
    let text = format!(
        "the log of table `{}`, {bucket} ends at offset `{end}`, although rows before `{from}` were acknowledged: the server has lost them",
        table.path
    );
    Error::data(text).with_hint("compare the table with the input, or drop what was loaded and load it again")
}

async fn fetch(
    cluster: &Cluster,
    table: &TableInfo,
    bucket: TableBucket,
    layout: BucketLayout,
    offset: i64,
) -> Result<PbFetchLogRespForBucket> {
    let wanted = PbFetchLogReqForBucket::of(bucket, layout, offset, FETCH_BYTES);
    let ask = |server, _| {
        let request = FetchLogRequest::of_client(table.id, vec![wanted], FETCH_BYTES, 0);
        async move {
            let answer = cluster.server(server, &request).await?;
            let entries = answer.tables_resp.into_iter().flat_map(|entry| entry.buckets_resp);
            let entries = entries.filter(|entry| entry.bucket_id == bucket.bucket.0).map(|entry| {
                let told = Code::refusal(entry.error_code, entry.error_message.as_deref()).map_or(Ok(entry), Err);
                (bucket, told)
            });
            Ok(entries.collect::<Answers<_>>())
        }
        .boxed()
    };
    let told = cluster.routed("look for a batch", &table.path, [bucket], ask).await?;
    told.into_values().next().ok_or_else(|| Error::internal("a routed call without answer"))
}
