//! A cluster over the wire: the three traits on [`fluss::cluster`](crate::fluss::cluster).
//!
//! Real Fluss (0.9.1 and later) and `lakeward node` alike. Owns what the answers mean for a round; leaders, connections and
//! retries are the cluster's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::FutureExt;

use super::{
    Assignment, Assignments, FetchBucket, FetchRequest, FetchedBucket, Heartbeat, HeartbeatFault, HeartbeatReply, Held, LakeLedger,
    LedgerEntry, LedgerRecord, LedgerState, LogSlice, RemoteLog, RemoteSegment, StateRequest, StateScan, TableScan, parsed, remote,
};
use crate::error::{Error, Kind, Result};
use crate::fluss::cluster::{Answers, Cluster};
use crate::fluss::code::Code;
use crate::fluss::proto::{
    CommitLakeTableSnapshotRequest, EARLIEST, FetchLogRequest, GetFileSystemSecurityTokenRequest, GetLakeSnapshotRequest,
    LakeTieringHeartbeatRequest, ListOffsetsRequest, LogEnd, PbBucketOffset, PbFetchLogReqForBucket, PbFetchLogRespForBucket,
    PbHeartbeatReqForTable, PbHeartbeatRespForTable, PbLakeTableOffsetForBucket, PbLakeTableSnapshotInfo,
    PbLakeTableSnapshotMetadata, PbRemoteLogFetchInfo, PbTableOffsets, PrepareLakeTableSnapshotRequest,
};
use crate::fluss::record::LogFormat;
use crate::model::{
    BucketId, BucketKey, BucketLayout, CoordinatorEpoch, LakeOffsets, OffsetsFile, Partition, PartitionId, Schema, SchemaId,
    SnapshotId, StartOffset, TableBucket, TableId, TableInfo, TablePath, TieringEpoch,
};
use crate::storage::{Remote, Token, Tokens};

mod states;

/// A cluster over the wire. Clones share its connections.
#[derive(Debug, Clone)]
pub struct ClusterSource {
    cluster: Cluster,
    remote: Remote,
}

/// The cluster's tokens for its remote storage (F5.6).
#[derive(Debug)]
struct ClusterTokens(Cluster);

#[async_trait]
impl Tokens for ClusterTokens {
    async fn token(&self) -> Result<Token> {
        let answer = self.0.any(&GetFileSystemSecurityTokenRequest {}).await?;
        Ok(Token {
            scheme: answer.schema,
            json: answer.token,
            ends_ms: answer.expiration_time,
            options: answer.addition_info.into_iter().map(|pair| (pair.key, pair.value)).collect(),
        })
    }
}

impl ClusterSource {
    /// A source on top of `cluster`.
    #[must_use]
    pub fn new(cluster: Cluster) -> Self {
        let tokens: Arc<dyn Tokens> = Arc::new(ClusterTokens(cluster.clone()));
        let remote = Remote::new(cluster.runtime().stores.options(), Some(tokens));
        Self { cluster, remote }
    }

    /// The storage that the cluster keeps its remote log and offsets files in.
    #[must_use]
    pub fn remote(&self) -> &Remote {
        &self.remote
    }

    /// The cluster beneath.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

#[async_trait]
impl Assignments for ClusterSource {
    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatReply> {
        let request = LakeTieringHeartbeatRequest {
            tiering_tables: heartbeat.tiering.iter().map(named_table).collect(),
            finished_tables: heartbeat.finished.iter().map(|finished| named_table(&finished.held)).collect(),
            failed_tables: heartbeat.failed.iter().map(named_table).collect(),
            request_table: heartbeat.request_table.then_some(true),
            force_finished_tables: heartbeat
                .finished
                .iter()
                .filter(|finished| finished.forced)
                .map(|finished| finished.held.table.0)
                .collect(),
        };
        // Sent at most once: a repeated request could be handed a second table.
        let answer = self.cluster.coordinator_once(&request).await?;
        let coordinator_epoch = CoordinatorEpoch(answer.coordinator_epoch);
        let assigned = answer.tiering_table.map(|table| Assignment {
            held: Held { table: TableId(table.table_id), coordinator_epoch, tiering_epoch: TieringEpoch(table.tiering_epoch) },
            path: table.table_path.into(),
        });
        Ok(HeartbeatReply {
            coordinator_epoch,
            assigned,
            tiering: faults(answer.tiering_table_resp),
            finished: faults(answer.finished_table_resp),
            failed: faults(answer.failed_table_resp),
        })
    }
}

fn named_table(held: &Held) -> PbHeartbeatReqForTable {
    PbHeartbeatReqForTable {
        table_id: held.table.0,
        coordinator_epoch: held.coordinator_epoch.0,
        tiering_epoch: held.tiering_epoch.0,
        lake_tiering_stats: None,
    }
}

fn faults(answers: Vec<PbHeartbeatRespForTable>) -> Vec<(TableId, Option<HeartbeatFault>)> {
    let fault = |answer: PbHeartbeatRespForTable| {
        let fault = answer.error.filter(|error| error.error_code != 0).map(|error| {
            let message = error.error_message.as_deref().and_then(|text| text.lines().next()).unwrap_or_default();
            HeartbeatFault { code: error.error_code, message: message.to_owned() }
        });
        (TableId(answer.table_id), fault)
    };
    answers.into_iter().map(fault).collect()
}

#[async_trait]
impl TableScan for ClusterSource {
    async fn table_info(&self, path: &TablePath) -> Result<TableInfo> {
        self.cluster.table_info(path).await
    }

    async fn schema(&self, path: &TablePath, id: SchemaId) -> Result<Arc<Schema>> {
        self.cluster.schema(path, id).await
    }

    async fn partitions(&self, table: &TableInfo) -> Result<Vec<Partition>> {
        let partitions = self.cluster.partitions(&table.path).await?;
        // Leaders of hundreds of partitions come in one answer; each asked for alone is a call more before its ListOffsets. What fails
        // here is asked for again there.
        let first = |partition: &Partition| TableBucket { table: table.id, partition: Some(partition.id), bucket: BucketId(0) };
        let buckets: Vec<TableBucket> = partitions.iter().map(first).collect();
        drop(self.cluster.locate(&table.path, &buckets).await);
        Ok(partitions)
    }

    async fn end_offsets(
        &self,
        table: &TableInfo,
        partition: Option<&Partition>,
        layout: BucketLayout,
    ) -> Result<Option<Vec<i64>>> {
        self.all_offsets(table, partition, layout, LogEnd::HighWatermark).await
    }

    async fn start_offsets(
        &self,
        table: &TableInfo,
        partition: Option<&Partition>,
        layout: BucketLayout,
    ) -> Result<Option<Vec<i64>>> {
        self.all_offsets(table, partition, layout, LogEnd::Start).await
    }

    async fn lanes(&self, table: &TableInfo, buckets: &[TableBucket]) -> Result<Vec<Vec<TableBucket>>> {
        let mut lanes: BTreeMap<i32, Vec<TableBucket>> = BTreeMap::new();
        let located = self
            .cluster
            .routed("find the leaders", &table.path, buckets.iter().copied(), |server, buckets| {
                futures::future::ready(Ok(buckets.into_iter().map(|bucket| (bucket, Ok(server))).collect())).boxed()
            })
            .await
            .map_err(gone_is_stale)?;
        for (bucket, server) in located {
            lanes.entry(server).or_default().push(bucket);
        }
        Ok(lanes.into_values().collect())
    }

    async fn fetch(&self, request: FetchRequest) -> Result<Vec<FetchedBucket>> {
        let wanted: BTreeMap<TableBucket, FetchBucket> = request.buckets.iter().map(|bucket| (bucket.bucket, *bucket)).collect();
        let (table, wait_ms, wanted) = (&request.table, request.wait_ms, &wanted);
        let fetched = self
            .cluster
            .routed("fetch the log", &table.path, wanted.keys().copied(), |server, buckets| {
                let request = fetch_request(table.id, wait_ms, buckets.iter().filter_map(|bucket| wanted.get(bucket)));
                let (source, wanted, table) = (self.clone(), wanted.clone(), Arc::clone(table));
                async move { source.fetch_from(server, &request, &table, &wanted).await }.boxed()
            })
            .await
            .map_err(gone_is_stale)?;
        Ok(fetched.into_values().collect())
    }

    async fn serves_states(&self) -> Result<bool> {
        self.offers_states().await
    }

    async fn open_state(&self, request: StateRequest) -> Result<Box<dyn StateScan>> {
        self.open_session(request).await
    }

    async fn remote_bytes(&self, url: &str, start: u64, end: u64) -> Result<Option<Bytes>> {
        self.remote.read_range(url, start, end).await
    }

    fn forget(&self, path: &TablePath) {
        self.cluster.forget(path);
    }
}

/// During a round a table or partition that is gone ends the plan; nothing is wrong with the input.
fn gone_is_stale(error: Error) -> Error {
    let gone = [Code::TABLE_NOT_EXIST, Code::UNKNOWN_TABLE_OR_BUCKET, Code::PARTITION_NOT_EXISTS];
    match error.code() {
        Some(code) if gone.contains(&Code(code)) && error.kind() != Kind::Stale => {
            Error::stale("what the round was planned by is gone").with_code(code).with_source(error)
        }
        _ => error,
    }
}

fn offset_text(offset: StartOffset) -> String {
    match offset {
        StartOffset::Earliest => "log start".to_owned(),
        StartOffset::At(offset) => offset.to_string(),
    }
}

fn fetch_request<'a>(table: TableId, wait_ms: i32, buckets: impl Iterator<Item = &'a FetchBucket>) -> FetchLogRequest {
    let buckets_req: Vec<PbFetchLogReqForBucket> = buckets
        .map(|bucket| {
            let offset = match bucket.offset {
                StartOffset::Earliest => EARLIEST,
                StartOffset::At(offset) => offset,
            };
            PbFetchLogReqForBucket::of(bucket.bucket, bucket.layout, offset, bucket.bytes_max)
        })
        .collect();
    // A server serves buckets in its own order: a smaller bound would starve the same ones each time (F5.1).
    let max_bytes = buckets_req.iter().fold(0_i32, |sum, bucket| sum.saturating_add(bucket.max_fetch_bytes));
    FetchLogRequest::of_client(table, buckets_req, max_bytes, wait_ms)
}

pub(crate) fn remote_log(bucket: TableBucket, info: PbRemoteLogFetchInfo) -> Result<RemoteLog> {
    let wrong = |what: &str, value: i32| Error::data(format!("the server says {what} `{value}` of remote log segments"));
    let mut segments = Vec::with_capacity(info.remote_log_segments.len());
    for segment in info.remote_log_segments {
        let size = segment.segment_size_in_bytes;
        segments.push(RemoteSegment {
            id: segment.remote_log_segment_id,
            start_offset: segment.remote_log_start_offset,
            end_offset: segment.remote_log_end_offset,
            bytes: u64::try_from(size).map_err(|source| wrong("size", size).with_source(source))?,
        });
    }
    let position = info.first_start_pos.unwrap_or(0);
    let position = u64::try_from(position).map_err(|source| wrong("position", position).with_source(source))?;
    RemoteLog::new(bucket, &info.remote_log_tablet_dir, segments, position)
}

impl ClusterSource {
    async fn fetch_from(
        &self,
        server: i32,
        request: &FetchLogRequest,
        table: &TableInfo,
        wanted: &BTreeMap<TableBucket, FetchBucket>,
    ) -> Result<Answers<FetchedBucket>> {
        let answer = self.cluster.server(server, request).await?;
        let mut answers = Vec::new();
        let entries: Vec<PbFetchLogRespForBucket> = answer
            .tables_resp
            .into_iter()
            .filter(|entry| entry.table_id == table.id.0)
            .flat_map(|entry| entry.buckets_resp)
            .collect();
        // All records of an answer are parts of one buffer, the frame's.
        let bytes = entries.iter().filter_map(|entry| entry.records.as_ref()).map(Bytes::len).sum();
        for entry in entries {
            let bucket =
                TableBucket { table: table.id, partition: entry.partition_id.map(PartitionId), bucket: BucketId(entry.bucket_id) };
            if let Some(wanted) = wanted.get(&bucket) {
                answers.push((bucket, self.fetched(table, wanted, entry, bytes).await));
            }
        }
        Ok(answers)
    }

    async fn fetched(
        &self,
        table: &TableInfo,
        wanted: &FetchBucket,
        entry: PbFetchLogRespForBucket,
        answer_bytes: usize,
    ) -> Result<FetchedBucket> {
        let bucket = wanted.bucket;
        match Code::refusal(entry.error_code, entry.error_message.as_deref()) {
            Some(error) if error.code() == Some(Code::LOG_OFFSET_OUT_OF_RANGE.0) => {
                return Err(self.out_of_range(table, wanted, error).await);
            }
            Some(error) => return Err(error),
            None => {}
        }
        let high_watermark = entry.high_watermark.ok_or_else(|| Error::data("the answer names no high watermark"))?;
        let raw = entry.records.unwrap_or_default();
        let schemas = remote::schemas(self, table, &raw).await?;
        let log = LogSlice::new(bucket, LogFormat::of(table)?, raw, schemas)?.part_of(answer_bytes);
        let remote = entry.remote_log_fetch_info.map(|info| remote_log(bucket, info)).transpose()?;
        Ok(FetchedBucket { bucket, high_watermark, log, remote })
    }

    /// The log does not reach to the wanted offset: says from where to where it does.
    async fn out_of_range(&self, table: &TableInfo, wanted: &FetchBucket, error: Error) -> Error {
        let bucket = wanted.bucket;
        let end = async |end| {
            let found = self.offsets(table, wanted.layout, [bucket].into(), end).await;
            found.ok().and_then(|found| found.get(&bucket).map(ToString::to_string)).unwrap_or_else(|| "unknown".to_owned())
        };
        let offset = offset_text(wanted.offset);
        let (start, stop) = (end(LogEnd::Start).await, end(LogEnd::HighWatermark).await);
        error.context(format!("offset `{offset}` is not in the log, which reaches from `{start}` to `{stop}` (exclusive)"))
    }

    async fn all_offsets(
        &self,
        table: &TableInfo,
        partition: Option<&Partition>,
        layout: BucketLayout,
        end: LogEnd,
    ) -> Result<Option<Vec<i64>>> {
        let partition = partition.map(|partition| partition.id);
        let buckets = (0..layout.count).map(|id| TableBucket { table: table.id, partition, bucket: BucketId(id) }).collect();
        match self.offsets(table, layout, buckets, end).await {
            Ok(offsets) => Ok(Some(offsets.into_values().collect())),
            Err(error) if partition.is_some() && error.code() == Some(Code::PARTITION_NOT_EXISTS.0) => Ok(None),
            Err(error) => Err(gone_is_stale(error)),
        }
    }

    /// Offsets of buckets of one partition (or of a table without partitions).
    async fn offsets(
        &self,
        table: &TableInfo,
        layout: BucketLayout,
        buckets: BTreeSet<TableBucket>,
        end: LogEnd,
    ) -> Result<BTreeMap<TableBucket, i64>> {
        let table_id = table.id;
        self.cluster
            .routed("list offsets", &table.path, buckets, |server, buckets| {
                let cluster = self.cluster.clone();
                async move {
                    let partition = buckets.first().and_then(|bucket| bucket.partition);
                    let request = ListOffsetsRequest::of_client(table_id, partition, &buckets, layout, end);
                    let answer = cluster.server(server, &request).await?;
                    let entries = answer.buckets_resp.into_iter().map(|entry| {
                        let bucket = TableBucket { table: table_id, partition, bucket: BucketId(entry.bucket_id) };
                        let offset = match Code::refusal(entry.error_code, entry.error_message.as_deref()) {
                            Some(error) => Err(error),
                            None => entry.offset.ok_or_else(|| Error::data("the answer names no offset")),
                        };
                        (bucket, offset)
                    });
                    Ok(entries.filter(|(bucket, _)| buckets.contains(bucket)).collect())
                }
                .boxed()
            })
            .await
    }
}

#[async_trait]
impl LakeLedger for ClusterSource {
    async fn latest(&self, path: &TablePath) -> Result<LedgerState> {
        let request = GetLakeSnapshotRequest { table_path: path.into(), snapshot_id: None, readable: None };
        let answer = match self.cluster.any(&request).await {
            Ok(answer) => answer,
            Err(error) => {
                return match error.code().map(Code) {
                    Some(Code::LAKE_SNAPSHOT_NOT_EXIST) => Ok(LedgerState::Empty),
                    Some(Code::TABLE_NOT_EXIST) => Ok(LedgerState::TableGone),
                    Some(Code::UNKNOWN_SERVER_ERROR) => Ok(LedgerState::Unknown { message: error.chain() }),
                    _ => Err(error.context(format!("read the lake snapshot of table `{path}`"))),
                };
            }
        };
        let offsets = answer.bucket_snapshots.into_iter().filter_map(|entry| {
            let key = BucketKey { partition: entry.partition_id.map(PartitionId), bucket: BucketId(entry.bucket_id) };
            entry.log_offset.filter(|offset| *offset >= 0).map(|offset| (key, offset))
        });
        Ok(LedgerState::At(LedgerEntry {
            table: TableId(answer.table_id),
            snapshot: SnapshotId(answer.snapshot_id),
            offsets: LakeOffsets(offsets.collect()),
        }))
    }

    async fn prepare(&self, table: TableId, path: &TablePath, offsets: &LakeOffsets) -> Result<String> {
        let bucket_offsets = offsets.0.iter().map(|(key, offset)| PbBucketOffset {
            partition_id: key.partition.map(|partition| partition.0),
            bucket_id: key.bucket.0,
            log_end_offset: Some(*offset),
        });
        let request = PrepareLakeTableSnapshotRequest {
            bucket_offsets: vec![PbTableOffsets {
                table_id: table.0,
                table_path: path.into(),
                bucket_offsets: bucket_offsets.collect(),
            }],
            ignore_previous_table_offsets: Some(true),
        };
        let named = |error: Error| error.context(format!("prepare a lake snapshot of table `{path}`"));
        let answer = self.cluster.coordinator(&request).await.map_err(named)?;
        // One table was sent, and entries are matched by position.
        let entry = answer.prepare_lake_table_resp.into_iter().next();
        let entry = entry.ok_or_else(|| named(Error::data("the answer has no entry")))?;
        if let Some(error) = Code::refusal(entry.error_code, entry.error_message.as_deref()) {
            return Err(named(error));
        }
        entry.lake_table_offsets_path.ok_or_else(|| named(Error::data("the answer names no offsets file")))
    }

    async fn offsets_file(&self, path: &str) -> Result<Option<OffsetsFile>> {
        parsed(path, self.remote.read(path).await?)
    }

    async fn record(&self, record: LedgerRecord) -> Result<()> {
        let buckets_req = record.offsets.0.iter().map(|(key, offset)| PbLakeTableOffsetForBucket {
            partition_id: key.partition.map(|partition| partition.0),
            bucket_id: key.bucket.0,
            log_end_offset: Some(*offset),
            max_timestamp: record.max_timestamps.get(key).copied(),
        });
        let request = CommitLakeTableSnapshotRequest {
            tables_req: vec![PbLakeTableSnapshotInfo {
                table_id: Some(record.table.0),
                snapshot_id: record.snapshot.0,
                buckets_req: buckets_req.collect(),
                table_path: Some((&record.path).into()),
            }],
            lake_table_snapshot_metadata: vec![PbLakeTableSnapshotMetadata {
                table_id: record.table.0,
                snapshot_id: record.snapshot.0,
                tiered_bucket_offsets_file_path: record.offsets_path.clone(),
                readable_bucket_offsets_file_path: Some(record.offsets_path.clone()),
                earliest_snapshot_id_to_keep: Some(record.earliest_to_keep),
            }],
        };
        let named = |error: Error| error.context(format!("record lake snapshot `{}` of table `{}`", record.snapshot, record.path));
        // Sent at most once: the caller looks before it records again (commit.md 6).
        let answer = self.cluster.coordinator_once(&request).await.map_err(named)?;
        let entry = answer.table_resp.into_iter().find(|entry| entry.table_id == record.table.0);
        let entry = entry.ok_or_else(|| named(Error::data("the answer has no entry")))?;
        Code::refusal(entry.error_code, entry.error_message.as_deref()).map_or(Ok(()), |error| Err(named(error)))
    }
}

#[cfg(test)]
mod tests;
