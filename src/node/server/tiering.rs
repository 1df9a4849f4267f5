//! The lake service's calls: heartbeat, prepare, commit, snapshot.
//!
//! Source: F1.3, F3.2, F3.3.

use std::sync::PoisonError;

use super::{Server, told};
use crate::error::{Error, Result};
use crate::fluss::code::Code;
use crate::fluss::proto::{
    CommitLakeTableSnapshotRequest, CommitLakeTableSnapshotResponse, ErrorResponse, GetLakeSnapshotRequest,
    GetLakeSnapshotResponse, LakeTieringHeartbeatRequest, LakeTieringHeartbeatResponse, PbCommitLakeTableSnapshotRespForTable,
    PbHeartbeatReqForTable, PbHeartbeatRespForTable, PbLakeSnapshotForBucket, PbLakeTableSnapshotInfo, PbLakeTieringTableInfo,
    PbPrepareLakeTableRespForTable, PbTableOffsets, PrepareLakeTableSnapshotRequest, PrepareLakeTableSnapshotResponse,
};
use crate::model::{
    BUCKET_ID_MAX, BucketId, BucketKey, CoordinatorEpoch, LakeOffsets, PartitionId, SnapshotId, TableBucket, TableId, TieringEpoch,
};
use crate::node::snapshots::{Entry, Which};
use crate::node::tiering::{Heartbeat, Outcomes, Refusal, Report};

impl Server {
    pub(super) async fn heartbeat(&self, request: LakeTieringHeartbeatRequest) -> Result<LakeTieringHeartbeatResponse> {
        let heartbeat = Heartbeat {
            failed: reports(&request.failed_tables),
            renewed: reports(&request.tiering_tables),
            finished: reports(&request.finished_tables),
            force_finished: request.force_finished_tables.iter().copied().map(TableId).collect(),
            request: request.request_table.unwrap_or(false),
        };
        let now_ms = self.uptime_ms();
        let (epoch, answer) = {
            let mut queue = self.queue();
            let answer = queue.heartbeat(&heartbeat, now_ms);
            (queue.coordinator_epoch(), answer)
        };
        if let Some(given) = &answer.assignment {
            tracing::debug!(table = %given.path, epoch = %given.epoch, "table handed out for tiering");
        }
        Ok(LakeTieringHeartbeatResponse {
            coordinator_epoch: epoch.0,
            tiering_table: answer.assignment.map(|given| PbLakeTieringTableInfo {
                table_id: given.table.0,
                table_path: (&given.path).into(),
                tiering_epoch: given.epoch.0,
            }),
            tiering_table_resp: outcomes(answer.renewed),
            finished_table_resp: outcomes(answer.finished),
            failed_table_resp: outcomes(answer.failed),
        })
    }

    pub(super) async fn prepare_snapshot(
        &self,
        request: PrepareLakeTableSnapshotRequest,
    ) -> Result<PrepareLakeTableSnapshotResponse> {
        let alone = request.ignore_previous_table_offsets.unwrap_or(false);
        let mut prepare_lake_table_resp = Vec::with_capacity(request.bucket_offsets.len());
        for table in request.bucket_offsets {
            let id = table.table_id;
            let mut entry = PbPrepareLakeTableRespForTable::default();
            match self.prepare_one(table, alone).await {
                Ok(path) => (entry.table_id, entry.lake_table_offsets_path) = (Some(id), Some(path)),
                Err(error) => (entry.error_code, entry.error_message) = told(&error),
            }
            prepare_lake_table_resp.push(entry);
        }
        Ok(PrepareLakeTableSnapshotResponse { prepare_lake_table_resp })
    }

    async fn prepare_one(&self, table: PbTableOffsets, alone: bool) -> Result<String> {
        let offsets = table.bucket_offsets.iter().filter_map(|bucket| {
            let key = BucketKey { partition: bucket.partition_id.map(PartitionId), bucket: BucketId(bucket.bucket_id) };
            bucket.log_end_offset.map(|offset| (key, offset))
        });
        let offsets = LakeOffsets(offsets.collect());
        // A file has a place for every bucket up to the largest: one number must not ask for gigabytes.
        if let Some((key, _)) = offsets.0.iter().find(|(key, _)| !(0..BUCKET_ID_MAX).contains(&key.bucket.0)) {
            return Err(
                Code::UNKNOWN_TABLE_OR_BUCKET.answer(format!("table id `{}` has no bucket `{}`", table.table_id, key.bucket))
            );
        }
        // Table id and path are taken on trust, as the real coordinator does; but the path becomes a folder's name.
        let path = table.table_path.into();
        super::ddl::check_path(&path)?;
        self.snapshots.prepare(TableId(table.table_id), &path, &offsets, alone).await
    }

    pub(super) async fn commit_snapshot(&self, request: CommitLakeTableSnapshotRequest) -> Result<CommitLakeTableSnapshotResponse> {
        if request.lake_table_snapshot_metadata.is_empty() && !request.tables_req.is_empty() {
            return Err(Code::UNSUPPORTED_VERSION.answer("commits without snapshot metadata are not supported"));
        }
        let mut table_resp = Vec::with_capacity(request.lake_table_snapshot_metadata.len());
        for metadata in request.lake_table_snapshot_metadata {
            let table = TableId(metadata.table_id);
            let entry = Entry {
                snapshot_id: SnapshotId(metadata.snapshot_id),
                tiered_offsets: metadata.tiered_bucket_offsets_file_path,
                readable_offsets: metadata.readable_bucket_offsets_file_path,
            };
            let mut response = PbCommitLakeTableSnapshotRespForTable { table_id: table.0, ..Default::default() };
            if let Err(error) = self.snapshots.commit(table, entry, metadata.earliest_snapshot_id_to_keep).await {
                (response.error_code, response.error_message) = told(&error);
            }
            table_resp.push(response);
        }
        for info in &request.tables_req {
            self.learn_lake_ends(info);
        }
        Ok(CommitLakeTableSnapshotResponse { table_resp })
    }

    /// What bucket leaders keep of a commit: rows beyond it may not expire. It only grows.
    fn learn_lake_ends(&self, info: &PbLakeTableSnapshotInfo) {
        let Some(table) = info.table_id.map(TableId) else { return };
        let mut ends = self.lake_ends.lock().unwrap_or_else(PoisonError::into_inner);
        for bucket in &info.buckets_req {
            let key = TableBucket { table, partition: bucket.partition_id.map(PartitionId), bucket: BucketId(bucket.bucket_id) };
            if let Some(end) = bucket.log_end_offset {
                let known = ends.entry(key).or_insert(end);
                *known = (*known).max(end);
            }
        }
    }

    /// End offsets in the lake of a table's buckets, for retention: what was reported since the start, else the recorded ones, as
    /// leaders load them on a leader change.
    pub(super) async fn lake_ends(&self, table: TableId) -> Result<LakeOffsets> {
        let mut offsets = self.snapshots.latest(table).await?.unwrap_or_default();
        let ends = self.lake_ends.lock().unwrap_or_else(PoisonError::into_inner);
        for (bucket, end) in ends.iter().filter(|(bucket, _)| bucket.table == table) {
            let known = offsets.0.entry((*bucket).into()).or_insert(*end);
            *known = (*known).max(*end);
        }
        Ok(offsets)
    }

    pub(super) fn forget_lake_ends(&self, table: TableId) {
        self.lake_ends.lock().unwrap_or_else(PoisonError::into_inner).retain(|bucket, _| bucket.table != table);
    }

    pub(super) async fn lake_snapshot(&self, request: GetLakeSnapshotRequest) -> Result<GetLakeSnapshotResponse> {
        let table = self.registry.table(&request.table_path.into())?;
        let which = match (request.snapshot_id, request.readable.unwrap_or(false)) {
            (Some(_), true) => {
                return Err(Code::UNKNOWN_SERVER_ERROR.answer("a snapshot is asked for by its id or as the readable one, not both"));
            }
            (Some(id), false) => Which::Id(SnapshotId(id)),
            (None, true) => Which::Readable,
            (None, false) => Which::Latest,
        };
        let (snapshot, offsets) = self.snapshots.get(table.info.id, which).await?;
        let buckets = offsets.0.into_iter().map(|(key, offset)| PbLakeSnapshotForBucket {
            partition_id: key.partition.map(|partition| partition.0),
            bucket_id: key.bucket.0,
            log_offset: Some(offset),
            partition_name: key.partition.and_then(|id| table.partitions_by_id.get(&id)).map(|partition| partition.name()),
        });
        Ok(GetLakeSnapshotResponse { table_id: table.info.id.0, snapshot_id: snapshot.0, bucket_snapshots: buckets.collect() })
    }
}

fn reports(tables: &[PbHeartbeatReqForTable]) -> Vec<Report> {
    let report = |table: &PbHeartbeatReqForTable| Report {
        table: TableId(table.table_id),
        coordinator_epoch: CoordinatorEpoch(table.coordinator_epoch),
        epoch: TieringEpoch(table.tiering_epoch),
    };
    tables.iter().map(report).collect()
}

fn outcomes(outcomes: Outcomes) -> Vec<PbHeartbeatRespForTable> {
    let entry = |(table, outcome): (TableId, Result<(), Refusal>)| PbHeartbeatRespForTable {
        table_id: table.0,
        error: outcome.err().map(|refusal| ErrorResponse::from(&refusal_error(table, refusal))),
    };
    outcomes.into_iter().map(entry).collect()
}

fn refusal_error(table: TableId, refusal: Refusal) -> Error {
    match refusal {
        Refusal::InvalidCoordinator => Code::INVALID_COORDINATOR.answer(format!("table id `{table}`: another coordinator epoch")),
        Refusal::UnknownTable => Code::TABLE_NOT_EXIST.answer(format!("table id `{table}` is no lake table here")),
        Refusal::FencedEpoch { current } => {
            Code::FENCED_TIERING_EPOCH.answer(format!("table id `{table}` is at tiering epoch `{current}`"))
        }
        Refusal::NotTiering => Code::UNKNOWN_SERVER_ERROR.answer(format!("table id `{table}` is not handed out")),
    }
}
