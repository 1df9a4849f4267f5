//! The lake service's calls over the wire.

use super::*;

async fn heartbeat(stage: &Stage, request: LakeTieringHeartbeatRequest) -> LakeTieringHeartbeatResponse {
    stage.client.call(&request).await.unwrap()
}

pub(super) fn bucket(bucket_id: i32, offset: i64) -> PbBucketOffset {
    PbBucketOffset { partition_id: None, bucket_id, log_end_offset: Some(offset) }
}

pub(super) async fn prepare(
    stage: &Stage,
    table_id: i64,
    offsets: Vec<PbBucketOffset>,
    alone: bool,
) -> PbPrepareLakeTableRespForTable {
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
    for wrong in [i32::MAX, -1] {
        assert_eq!(
            prepare(&stage, id, vec![bucket(wrong, 1)], true).await.error_code,
            Some(21),
            "one number may not ask for gigabytes"
        );
    }
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

/// A partitioned, keyed table that goes to the lake.
fn lake_table(freshness: &str) -> Value {
    let mut json = table(true, 2);
    json["properties"] = json!({"table.datalake.enabled": "true", "table.datalake.freshness": freshness});
    json
}

async fn claim(stage: &Stage) -> Option<PbLakeTieringTableInfo> {
    heartbeat(stage, LakeTieringHeartbeatRequest { request_table: Some(true), ..Default::default() }).await.tiering_table
}

async fn alter(stage: &Stage, request: AlterTableRequest) -> i32 {
    code(stage.client.call(&AlterTableRequest { table_path: path("t"), ..request }).await)
}

fn option(key: &str, value: &str) -> Vec<PbAlterConfig> {
    vec![PbAlterConfig { config_key: key.into(), config_value: Some(value.into()), op_type: 0 }]
}

#[tokio::test]
async fn a_lake_table_is_made_in_the_lake_and_every_change_comes_there_first() {
    let stage = Stage::new().await;
    stage.create("t", lake_table("1h")).await;
    assert_eq!(stage.lake_schema("t"), ("2".into(), vec!["id".into(), "day".into()]));
    let json: Value = serde_json::from_slice(&stage.info("t").await.table_json).unwrap();
    let told = |key: &str| json["properties"][format!("table.datalake.paimon.{key}")].as_str().unwrap().to_owned();
    assert_eq!((told("metastore"), told("warehouse")), ("filesystem".into(), stage.node.warehouse().to_owned()));
    stage.add_partition("t", "1").await;
    stage.rescale("t", 4).await.unwrap();
    assert_eq!(stage.lake_schema("t").0, "4");
    let added = PbAddColumn {
        column_name: "note".into(),
        data_type_json: Bytes::from_static(b"{\"type\":\"STRING\"}"),
        ..PbAddColumn::default()
    };
    assert_eq!(alter(&stage, AlterTableRequest { add_columns: vec![added], ..Default::default() }).await, 0);
    assert_eq!(stage.lake_schema("t").1, ["id", "day", "note"]);
    // The lake says no: Fluss stays as it was.
    std::fs::remove_dir_all(std::path::Path::new(stage.node.warehouse()).join("fluss.db/t")).unwrap();
    assert_ne!(code(stage.rescale("t", 8).await), 0);
    let info = stage.info("t").await;
    let json: Value = serde_json::from_slice(&info.table_json).unwrap();
    assert_eq!((&json["bucket_count"], info.bucket_count_epoch), (&json!(4), Some(1)));
    // A lake table that is in the way is 54, and then there is no Fluss table either.
    let folder = std::path::Path::new(stage.node.warehouse()).join("fluss.db/u");
    stage.create("other", table(true, 2)).await;
    let make =
        |json: Value| CreateTableRequest { table_path: path("u"), table_json: json.to_string().into(), ignore_if_exists: false };
    stage.client.call(&make(lake_table("1h"))).await.unwrap();
    stage.client.call(&DropTableRequest { table_path: path("u"), ignore_if_not_exists: false }).await.unwrap();
    assert!(folder.exists(), "the lake keeps it");
    let mut wider = lake_table("1h");
    wider["schema"]["columns"][0]["data_type"]["type"] = json!("INTEGER");
    assert_eq!(code(stage.client.call(&make(wider)).await), 54);
    assert_eq!(code(stage.client.call(&GetTableInfoRequest { table_path: path("u") }).await), 7);
    let mut nested = lake_table("1h");
    nested["schema"]["columns"][1] = json!({"name":"day","data_type":{"type":"ARRAY","element_type":{"type":"STRING"}},"id":1});
    nested["partition_key"] = json!([]);
    let request = CreateTableRequest { table_path: path("nested"), ..make(nested) };
    stage.client.call(&request).await.unwrap();
    let folder = std::path::Path::new(stage.node.warehouse()).join("fluss.db/nested/schema/schema-0");
    let made: Value = serde_json::from_slice(&std::fs::read(folder).unwrap()).unwrap();
    assert_eq!(made["fields"][1]["type"], json!({"type": "ARRAY", "element": "STRING"}));
}

#[tokio::test]
async fn a_table_whose_lake_was_never_on_is_altered_without_it_and_may_come_to_it_later() {
    let stage = Stage::new().await;
    let mut off = lake_table("1ms");
    off["properties"]["table.datalake.enabled"] = json!("false");
    let id = stage.create("t", off).await;
    assert_eq!(claim(&stage).await, None);
    stage.rescale("t", 4).await.unwrap();
    assert_eq!(
        alter(&stage, AlterTableRequest { config_changes: option("table.datalake.enabled", "true"), ..Default::default() }).await,
        0
    );
    assert_eq!(stage.lake_schema("t").0, "4");
    tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            if let Some(given) = claim(&stage).await {
                assert_eq!((given.table_id, given.tiering_epoch), (id, 1));
                break;
            }
        }
    })
    .await
    .unwrap();
    assert_eq!(
        alter(&stage, AlterTableRequest { config_changes: option("table.datalake.enabled", "false"), ..Default::default() }).await,
        0
    );
    let renew = PbHeartbeatReqForTable { table_id: id, coordinator_epoch: 0, tiering_epoch: 1, lake_tiering_stats: None };
    let answer = heartbeat(&stage, LakeTieringHeartbeatRequest { tiering_tables: vec![renew], ..Default::default() }).await;
    assert_eq!(answer.tiering_table_resp[0].error.as_ref().unwrap().error_code, 7);
}

#[tokio::test]
async fn after_a_restart_lake_tables_are_scheduled_and_epochs_start_over() {
    let stage = Stage::new().await;
    let id = stage.create("t", lake_table("0")).await;
    let given = claim(&stage).await.unwrap();
    assert_eq!((given.table_id, given.tiering_epoch, given.table_path), (id, 1, path("t")));
    assert_eq!(claim(&stage).await, None);
    let report =
        |coordinator_epoch| PbHeartbeatReqForTable { table_id: id, coordinator_epoch, tiering_epoch: 1, lake_tiering_stats: None };
    let renew = |epoch| LakeTieringHeartbeatRequest { tiering_tables: vec![report(epoch)], ..Default::default() };
    let errors = |answer: LakeTieringHeartbeatResponse| answer.tiering_table_resp[0].error.as_ref().map(|error| error.error_code);
    assert_eq!(errors(heartbeat(&stage, renew(0)).await), None);
    let stage = stage.restarted(false).await;
    assert_eq!(errors(heartbeat(&stage, renew(0)).await), Some(23), "the coordinator's epoch has grown");
    assert_eq!(claim(&stage).await.unwrap().tiering_epoch, 1);
    assert_eq!(errors(heartbeat(&stage, renew(1)).await), None);
}

#[tokio::test]
async fn rows_expire_only_past_what_is_tiered() {
    let stage = Stage::with(|options| {
        options.retention_interval = Duration::from_millis(20);
        options.log.segment_bytes = 100;
    })
    .await;
    let mut json = lake_table("1h");
    json["partition_key"] = json!([]);
    json["properties"]["table.log.ttl"] = json!("1ms");
    let id = stage.create("t", json).await;
    for sequence in 0..4 {
        stage.produce(id, records(7, sequence, 1)).await;
    }
    let mut plain = table(false, 1);
    plain["properties"]["table.log.ttl"] = json!("1ms");
    let other = stage.create("plain", plain).await;
    stage.produce(other, records(7, 0, 1)).await;
    let earliest = async |table_id, wanted: i64| {
        let request =
            ListOffsetsRequest { follower_server_id: -1, offset_type: 0, table_id, bucket_id: vec![0], ..Default::default() };
        tokio::time::timeout(Duration::from_secs(10), async {
            while stage.client.call(&request).await.unwrap().buckets_resp[0].offset != Some(wanted) {}
        })
        .await
        .unwrap();
    };
    earliest(other, 1).await;
    earliest(id, 0).await;
    let end = |log_end_offset| PbLakeTableOffsetForBucket {
        partition_id: None,
        bucket_id: 0,
        log_end_offset: Some(log_end_offset),
        max_timestamp: None,
    };
    // Each with a file of its own: a record that forgets others deletes theirs, also when it names it again.
    let record = async |offset: i64| {
        let path = prepare(&stage, id, vec![bucket(0, offset)], false).await.lake_table_offsets_path.unwrap();
        let request = CommitLakeTableSnapshotRequest {
            tables_req: vec![PbLakeTableSnapshotInfo {
                table_id: Some(id),
                snapshot_id: 1,
                buckets_req: vec![end(offset)],
                table_path: None,
            }],
            lake_table_snapshot_metadata: vec![PbLakeTableSnapshotMetadata {
                table_id: id,
                snapshot_id: 1,
                tiered_bucket_offsets_file_path: path,
                ..Default::default()
            }],
        };
        stage.client.call(&request).await.unwrap();
    };
    record(2).await;
    earliest(id, 2).await;
    record(1).await;
    record(4).await;
    earliest(id, 4).await;
    assert_eq!(stage.fetch(id, from(0), 0).await.error_code, Some(19));
}
