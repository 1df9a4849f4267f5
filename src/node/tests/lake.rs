//! The lake service's calls over the wire.

use super::*;

async fn heartbeat(stage: &Stage, request: LakeTieringHeartbeatRequest) -> LakeTieringHeartbeatResponse {
    stage.client.call(&request).await.unwrap()
}

fn bucket(bucket_id: i32, offset: i64) -> PbBucketOffset {
    PbBucketOffset { partition_id: None, bucket_id, log_end_offset: Some(offset) }
}

async fn prepare(stage: &Stage, table_id: i64, offsets: Vec<PbBucketOffset>, alone: bool) -> PbPrepareLakeTableRespForTable {
    let bucket_offsets = vec![PbTableOffsets { table_id, table_path: path("t"), bucket_offsets: offsets }];
    let request = PrepareLakeTableSnapshotRequest { bucket_offsets, ignore_previous_table_offsets: Some(alone) };
    stage.client.call(&request).await.unwrap().prepare_lake_table_resp.remove(0)
}

async fn commit(stage: &Stage, table_id: i64, snapshot_id: i64, path: &str, earliest: Option<i64>) {
    let metadata = PbLakeTableSnapshotMetadata {
        table_id,
        snapshot_id,
        tiered_bucket_offsets_file_path: path.to_owned(),
        readable_bucket_offsets_file_path: None,
        earliest_snapshot_id_to_keep: earliest,
    };
    let request = CommitLakeTableSnapshotRequest { tables_req: vec![], lake_table_snapshot_metadata: vec![metadata] };
    let entry = stage.client.call(&request).await.unwrap().table_resp.remove(0);
    assert_eq!((entry.table_id, entry.error_code), (table_id, None));
}

/// Snapshot id and offsets by bucket, or the error code.
async fn snapshot(stage: &Stage, id: Option<i64>) -> Result<(i64, Vec<(i32, i64)>), i32> {
    let request = GetLakeSnapshotRequest { table_path: path("t"), snapshot_id: id, readable: None };
    let answer = stage.client.call(&request).await.map_err(|error| error.code().unwrap())?;
    let offsets = answer.bucket_snapshots.iter().map(|bucket| (bucket.bucket_id, bucket.log_offset.unwrap()));
    Ok((answer.snapshot_id, offsets.collect()))
}

#[tokio::test]
async fn snapshots_are_overlaid_kept_and_forgotten_as_the_real_coordinator_does() {
    let stage = Stage::new().await;
    let id = stage.create("t", table(false, 3)).await;
    assert_eq!(snapshot(&stage, None).await, Err(53));
    let first = prepare(&stage, id, vec![bucket(0, 10), bucket(1, 20)], false).await;
    assert_eq!(first.table_id, Some(id));
    let first = first.lake_table_offsets_path.unwrap();
    assert!(first.starts_with("file:/") && first.contains(&format!("/lake/fluss/t-{id}/metadata/")));
    commit(&stage, id, 1, &first, None).await;
    assert_eq!(snapshot(&stage, None).await, Ok((1, vec![(0, 10), (1, 20)])));
    // The request wins even where it is smaller; what it does not name stays.
    let second = prepare(&stage, id, vec![bucket(0, 5), bucket(2, 7)], false).await.lake_table_offsets_path.unwrap();
    commit(&stage, id, 2, &second, Some(-1)).await;
    assert_eq!(snapshot(&stage, None).await, Ok((2, vec![(0, 5), (1, 20), (2, 7)])));
    assert_eq!(snapshot(&stage, Some(1)).await, Ok((1, vec![(0, 10), (1, 20)])));
    let alone = prepare(&stage, id, vec![bucket(2, 9)], true).await.lake_table_offsets_path.unwrap();
    commit(&stage, id, 9, &alone, Some(2)).await;
    assert_eq!((snapshot(&stage, Some(1)).await, snapshot(&stage, Some(2)).await.is_ok()), (Err(53), true));
    assert_eq!(snapshot(&stage, None).await, Ok((9, vec![(2, 9)])));
    // Nothing is fenced: a late commit of an older id becomes the newest and, saying nothing, destroys the others with their files.
    let late = prepare(&stage, id, vec![bucket(0, 1)], true).await.lake_table_offsets_path.unwrap();
    commit(&stage, id, 3, &late, None).await;
    assert_eq!(snapshot(&stage, None).await, Ok((3, vec![(0, 1)])));
    assert_eq!(snapshot(&stage, Some(9)).await, Err(53));
    let there = |path: &str| std::path::Path::new(path.strip_prefix("file:").unwrap()).exists();
    assert_eq!([&first, &second, &alone, &late].map(|path| there(path)), [false, false, false, true]);
    let stage = stage.restarted(false).await;
    assert_eq!(snapshot(&stage, None).await, Ok((3, vec![(0, 1)])));
    // A path that can't be read is taken, and then stands in the way until a good one is committed.
    commit(&stage, id, 4, "file:/nowhere/x.offsets", Some(-1)).await;
    assert_eq!(snapshot(&stage, None).await, Err(-1));
    assert_eq!(prepare(&stage, id, vec![bucket(0, 1)], false).await.error_code, Some(-1));
    let good = prepare(&stage, id, vec![bucket(0, 2)], true).await.lake_table_offsets_path.unwrap();
    commit(&stage, id, 5, &good, Some(-1)).await;
    assert_eq!(snapshot(&stage, None).await, Ok((5, vec![(0, 2)])));
    let both = GetLakeSnapshotRequest { table_path: path("t"), snapshot_id: Some(1), readable: Some(true) };
    assert_eq!(code(stage.client.call(&both).await), -1);
    let readable = GetLakeSnapshotRequest { table_path: path("t"), snapshot_id: None, readable: Some(true) };
    assert_eq!(code(stage.client.call(&readable).await), 53);
    let missing = GetLakeSnapshotRequest { table_path: path("nope"), snapshot_id: None, readable: None };
    assert_eq!(code(stage.client.call(&missing).await), 7);
    // Neither existence nor path of the table is looked at; but a path never leads out of the folder.
    commit(&stage, 4711, 1, &good, None).await;
    let outside = PbTablePath { database_name: "..".into(), table_name: "t".into() };
    let bucket_offsets = vec![PbTableOffsets { table_id: id, table_path: outside, bucket_offsets: vec![] }];
    let request = PrepareLakeTableSnapshotRequest { bucket_offsets, ignore_previous_table_offsets: None };
    assert_eq!(stage.client.call(&request).await.unwrap().prepare_lake_table_resp[0].error_code, Some(16));
}

#[tokio::test]
async fn an_unknown_table_in_a_heartbeat_gets_its_own_error() {
    let stage = Stage::new().await;
    let epoch = heartbeat(&stage, LakeTieringHeartbeatRequest::default()).await.coordinator_epoch;
    let report =
        |coordinator_epoch| PbHeartbeatReqForTable { table_id: 5, coordinator_epoch, tiering_epoch: 1, lake_tiering_stats: None };
    let request = LakeTieringHeartbeatRequest {
        tiering_tables: vec![report(epoch), report(epoch + 1)],
        finished_tables: vec![report(epoch)],
        failed_tables: vec![report(epoch)],
        request_table: Some(true),
        force_finished_tables: vec![5],
    };
    let answer = heartbeat(&stage, request).await;
    let codes = |entries: &[PbHeartbeatRespForTable]| {
        entries.iter().map(|entry| entry.error.as_ref().map_or(0, |error| error.error_code)).collect::<Vec<_>>()
    };
    assert_eq!(
        (codes(&answer.tiering_table_resp), codes(&answer.finished_table_resp), codes(&answer.failed_table_resp)),
        (vec![7, 23], vec![7], vec![7])
    );
    assert_eq!(answer.tiering_table, None);
}
