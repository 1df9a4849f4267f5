//! Primary-key tables over the wire (S6).

use std::time::Duration;

use super::*;
use crate::fluss::record::{KvBatch, LogFormat, Value as Stored, Values, batches};
use crate::model::{ChangeKind, TableInfo};
use crate::node::kv::tests::{Op, kv_batch, upsert};
use crate::runtime::FailAction;

/// Columns `k` INT, the key, and `v` STRING, with these options.
fn keyed(options: Value) -> Value {
    json!({"version":1,
        "schema":{"version":1,"columns":[
            {"name":"k","data_type":{"type":"INTEGER"},"id":0},
            {"name":"v","data_type":{"type":"STRING"},"id":1}],"primary_key":["k"],"highest_field_id":1},
        "partition_key":[],"bucket_count":1,"properties":options,"custom_properties":{}})
}

/// By day, keyed by id and day.
fn keyed_by_day(count: i32) -> Value {
    let mut json = table(true, count);
    json["schema"]["primary_key"] = json!(["id", "day"]);
    json
}

impl Stage {
    fn registered(&self, table: &str) -> TableInfo {
        let path = crate::model::TablePath::new("fluss", table);
        self.node.server.registry().table(&path).unwrap().info.clone()
    }

    async fn put_request(&self, request: PutKvRequest) -> PbPutKvRespForBucket {
        let entry = self.client.call(&request).await.unwrap().buckets_resp.remove(0);
        assert_ne!(entry.error_code, Some(0), "presence means failure");
        entry
    }

    /// Error code (0 = none) and end offset.
    async fn put(&self, table: &str, writer: i64, sequence: i32, ops: &[Op]) -> (i32, Option<i64>) {
        let info = self.registered(table);
        let entry = self.put_request(put_of(info.id.0, kv_batch(&info, writer, sequence, ops))).await;
        (entry.error_code.unwrap_or(0), entry.log_end_offset)
    }

    /// The stored row bytes of each key, or that there is none.
    async fn look_up(&self, table: &str, keys: &[i32]) -> Vec<Option<(i32, Vec<u8>)>> {
        let info = self.registered(table);
        let keys = keys.iter().map(|key| key_of(&info, *key)).collect();
        let bucket = PbLookupReqForBucket { keys, ..Default::default() };
        let request = LookupRequest { table_id: info.id.0, buckets_req: vec![bucket], ..Default::default() };
        let entry = self.client.call(&request).await.unwrap().buckets_resp.remove(0);
        assert_eq!(entry.error_code, None, "{:?}", entry.error_message);
        let value = |value: PbValue| {
            value.values.map(|bytes| {
                let value = Stored::parse(&bytes).unwrap();
                (value.schema_id.0, value.row.to_vec())
            })
        };
        entry.values.into_iter().map(value).collect()
    }

    /// Changes of bucket 0, as kind and text of the key column.
    async fn changelog(&self, table: &str) -> Vec<Vec<ChangeKind>> {
        let info = self.registered(table);
        let records = self.fetch(info.id.0, from(0), 0).await.records.unwrap();
        let schema = |id| {
            let schemas = self.node.server.registry().table(&info.path).unwrap().schemas.clone();
            crate::fluss::record::BatchSchema::new(Arc::clone(&schemas[&id])).unwrap()
        };
        let bucket = crate::model::TableBucket { table: info.id, partition: None, bucket: crate::model::BucketId(0) };
        let kinds = |batch: Result<crate::fluss::record::RawBatch>| {
            let batch = batch.unwrap();
            let decoded = batch.decode(LogFormat::Arrow, &schema(batch.header.schema_id), bucket).unwrap();
            decoded.map(|decoded| decoded.changes.unwrap()).unwrap_or_default()
        };
        batches(records).map(kinds).collect()
    }

    async fn scan_call(&self, request: ScanKvRequest) -> ScanKvResponse {
        self.client.call(&request).await.unwrap()
    }

    async fn scan_open(&self, table: i64, bytes: i32) -> ScanKvResponse {
        let bucket_scan_req = Some(PbScanReqForBucket { table_id: table, ..Default::default() });
        let request = ScanKvRequest { bucket_scan_req, call_seq_id: Some(0), batch_size_bytes: Some(bytes), ..Default::default() };
        self.scan_call(request).await
    }

    async fn scan_next(&self, scanner: &Bytes, sequence: i32) -> ScanKvResponse {
        let scanner_id = Some(scanner.clone());
        let request = ScanKvRequest { scanner_id, call_seq_id: Some(sequence), batch_size_bytes: Some(1), ..Default::default() };
        self.scan_call(request).await
    }
}

fn put_of(table_id: i64, records: Bytes) -> PutKvRequest {
    let bucket = PbPutKvReqForBucket { records, ..Default::default() };
    PutKvRequest { acks: -1, table_id, timeout_ms: 1000, buckets_req: vec![bucket], ..Default::default() }
}

fn key_of(info: &TableInfo, key: i32) -> Bytes {
    let batch = KvBatch::parse(kv_batch(info, -1, -1, &[Op::Delete(key)])).unwrap();
    let key = batch.records().next().unwrap().key.to_vec();
    key.into()
}

#[tokio::test]
async fn buckets_of_one_put_wait_for_the_disk_side_by_side_and_batches_of_one_bucket_for_each_other() {
    let stage = Stage::new().await;
    let mut json = keyed(json!({}));
    json["bucket_count"] = json!(2);
    let id = stage.create("t", json).await;
    let info = stage.registered("t");
    let place = |bucket| crate::model::TableBucket { table: info.id, partition: None, bucket: crate::model::BucketId(bucket) };
    let shape = kv::Shape::of(stage.node.server.registry().table(&info.path).unwrap()).unwrap();
    let state = |bucket| stage.node.server.states().bucket(place(bucket), &shape).unwrap();
    let entry = |bucket_id, sequence, text| PbPutKvReqForBucket {
        bucket_id,
        records: kv_batch(&info, 5, sequence, &[upsert(1, text)]),
        ..Default::default()
    };
    let buckets_req = vec![entry(0, 0, "a"), entry(1, 0, "b"), entry(0, 1, "c")];
    let request = PutKvRequest { buckets_req, ..put_of(id, Bytes::new()) };
    // The first bucket is busy, the second one's batch gets through all the same.
    let busy = state(0).turn().await;
    let (client, second) = (stage.client.clone(), state(1));
    let put = tokio::spawn(async move { client.call(&request).await.unwrap() });
    while second.applied() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(state(0).applied(), 0);
    drop(busy);
    let told = put.await.unwrap().buckets_resp.into_iter().map(|entry| (entry.error_code, entry.bucket_id, entry.log_end_offset));
    assert_eq!(told.collect::<Vec<_>>(), [(None, 0, Some(1)), (None, 1, Some(1)), (None, 0, Some(3))]);
}

#[tokio::test]
async fn puts_are_looked_up_and_tell_their_changes_and_all_of_it_is_there_after_stops_and_crashes() {
    use ChangeKind::{Delete, Insert, UpdateAfter, UpdateBefore};
    let mut stage = Stage::new().await;
    let id = stage.create("t", keyed(json!({}))).await;
    stage.create("wal", keyed(json!({"table.changelog.image":"WAL"}))).await;
    assert_eq!(stage.put("t", 5, 0, &[upsert(1, "uno"), upsert(2, "due"), upsert(1, "one")]).await, (0, Some(4)));
    assert_eq!(stage.put("t", 5, 1, &[Op::Delete(2)]).await, (0, Some(5)));
    assert_eq!(stage.put("t", 5, 2, &[Op::Delete(9)]).await, (0, Some(6)), "an empty batch takes an offset");
    assert_eq!(stage.put("wal", 5, 0, &[upsert(1, "uno"), upsert(1, "one"), Op::Delete(1), Op::Delete(1)]).await, (0, Some(3)));
    let row = |text: &str| Some((1, [&[0, 1, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()));
    for well in [true, false] {
        assert_eq!(stage.look_up("t", &[2, 1, 7]).await, [None, row("one"), None], "in the order that was asked, misses included");
        assert_eq!(stage.changelog("t").await, [vec![Insert, Insert, UpdateBefore, UpdateAfter], vec![Delete], vec![]]);
        assert_eq!(stage.changelog("wal").await, [vec![UpdateAfter, UpdateAfter, Delete]]);
        let bucket = PbTableStatsReqForBucket::default();
        let stats = GetTableStatsRequest { table_id: id, buckets_req: vec![bucket], target_columns: vec![] };
        assert_eq!(stage.client.call(&stats).await.unwrap().buckets_resp[0].row_count, Some(1));
        assert_eq!(stage.put("t", 5, 1, &[Op::Delete(2)]).await, (0, Some(5)), "a repeated batch changes nothing");
        assert_eq!(stage.put("t", 5, 9, &[Op::Delete(2)]).await.0, 31);
        stage = stage.restarted(well).await;
    }
    assert_eq!(stage.put("t", 5, 3, &[upsert(1, "ein")]).await, (0, Some(8)));
    assert_eq!(stage.changelog("t").await.last().unwrap(), &[UpdateBefore, UpdateAfter]);
}

#[tokio::test]
async fn a_put_that_reached_the_log_alone_is_in_the_state_as_soon_as_it_can_be_seen() {
    let mut stage = Stage::new().await;
    stage.create("t", keyed(json!({}))).await;
    stage.put("t", 5, 0, &[upsert(1, "a")]).await;
    for (sequence, crash) in [(1, false), (2, true)] {
        stage.runtime.fail.arm("kv.before_commit", 1, FailAction::Error);
        let end = i64::from(sequence) * 2 + 1;
        assert_eq!(stage.put("t", 5, sequence, &[upsert(1, "b"), Op::Delete(9)]).await.0, 11);
        if crash {
            stage = stage.restarted(false).await;
            assert!(stage.look_up("t", &[1]).await[0].is_some());
        }
        assert_eq!(stage.put("t", 5, sequence, &[upsert(1, "b"), Op::Delete(9)]).await, (0, Some(end)), "told as done before");
        assert_eq!(stage.look_up("t", &[1]).await, [Some((1, vec![0, 1, 1, b'b']))]);
    }
    assert_eq!(stage.changelog("t").await.len(), 3);
}

#[tokio::test]
async fn what_the_log_has_not_durable_is_told_to_nobody() {
    let stage = Stage::new().await;
    let id = stage.create("t", keyed(json!({}))).await;
    stage.put("t", 5, 0, &[upsert(1, "a")]).await;
    stage.runtime.fail.arm("log.before_sync", 1, FailAction::Error);
    assert_eq!(stage.put("t", 5, 1, &[upsert(1, "lost"), upsert(2, "lost")]).await, (10, None));
    assert_eq!(stage.scan_open(id, 1 << 20).await.error_code, Some(10), "a state that names an offset which may not come back");
    let scan = stage.client.call(&LimitScanRequest { table_id: id, limit: 5, ..Default::default() }).await.unwrap();
    assert_eq!(scan.error_code, Some(10));
    let keys = vec![key_of(&stage.registered("t"), 1)];
    let buckets_req = vec![PbLookupReqForBucket { keys, ..Default::default() }];
    let request = LookupRequest { table_id: id, buckets_req, ..Default::default() };
    assert_eq!(stage.client.call(&request).await.unwrap().buckets_resp[0].error_code, Some(10));
}

#[tokio::test]
async fn puts_of_a_connection_keep_their_order_and_many_connections_put_side_by_side_while_others_read() {
    let stage = Stage::new().await;
    let id = stage.create("t", keyed(json!({}))).await;
    for round in 0..6 {
        let batches: Vec<Vec<Op>> = (0..5).map(|index| vec![upsert(1, &format!("{}", round * 5 + index))]).collect();
        let puts = (0..5).zip(&batches).map(|(index, ops)| stage.put("t", 5, round * 5 + index, ops));
        let answers = futures::future::join_all(puts).await;
        assert!(answers.iter().all(|(code, _)| *code == 0), "{answers:?}");
    }
    assert_eq!(stage.look_up("t", &[1]).await, [Some((1, b"\0\x01\x0229".to_vec()))]);
    let info = stage.registered("t");
    let writers = (0..6_i32).map(|writer| {
        let (client, info) = (stage.connect(), info.clone());
        async move {
            let client = client.await;
            for sequence in 0..10 {
                let ops = [
                    upsert(100 + writer, &format!("{sequence}")),
                    upsert(200 + writer * 10 + sequence, "x"),
                    Op::Delete(199 + writer * 10 + sequence),
                ];
                let records = kv_batch(&info, 20 + i64::from(writer), sequence, &ops);
                let entry = client.call(&put_of(id, records)).await.unwrap().buckets_resp.remove(0);
                assert_eq!(entry.error_code, None, "{:?}", entry.error_message);
            }
        }
    });
    let reader = async {
        let mut before = 0;
        for _ in 0..20 {
            let scan = stage.scan_open(id, 1 << 20).await;
            let (rows, offset) = (Values::parse(&scan.records.unwrap()).unwrap().len(), scan.log_offset.unwrap());
            assert!(rows >= 1 && offset >= before && offset <= stage.latest_offset(id, 0).await);
            before = offset;
        }
    };
    tokio::join!(futures::future::join_all(writers), reader);
    let kinds: Vec<ChangeKind> = stage.changelog("t").await.concat();
    let count = |kind| i64::try_from(kinds.iter().filter(|found| **found == kind).count()).unwrap();
    let scan = LimitScanRequest { table_id: id, limit: 1000, ..Default::default() };
    let rows = Values::parse(&stage.client.call(&scan).await.unwrap().records.unwrap()).unwrap().len();
    assert_eq!(count(ChangeKind::Insert) - count(ChangeKind::Delete), i64::try_from(rows).unwrap());
    assert_eq!(count(ChangeKind::UpdateBefore), count(ChangeKind::UpdateAfter));
}

#[tokio::test]
async fn a_lake_table_is_made_with_the_primary_key_and_gets_columns_and_counts_first() {
    let stage = Stage::new().await;
    let mut json = keyed_by_day(2);
    json["properties"] = json!({"table.datalake.enabled":"true"});
    stage.create("t", json).await;
    let folder = std::path::Path::new(stage.node.warehouse()).join("fluss.db/t/schema/schema-0");
    let schema: Value = serde_json::from_slice(&std::fs::read(folder).unwrap()).unwrap();
    assert_eq!((&schema["primaryKeys"], &schema["partitionKeys"]), (&json!(["id", "day"]), &json!(["day"])));
    let option = |key: &str| schema["options"][key].as_str().unwrap().to_owned();
    assert_eq!([option("bucket"), option("bucket-key"), option("changelog-producer")], ["2", "id", "input"]);
    let column =
        PbAddColumn { column_name: "n".into(), data_type_json: json!({"type":"BIGINT"}).to_string().into(), ..Default::default() };
    let request = AlterTableRequest { table_path: path("t"), add_columns: vec![column], ..Default::default() };
    stage.client.call(&request).await.unwrap();
    stage.rescale("t", 5).await.unwrap();
    let (bucket, columns) = stage.lake_schema("t");
    assert_eq!((bucket.as_str(), columns.last().unwrap().as_str()), ("5", "n"));
    // Turned on later.
    stage.create("later", keyed(json!({}))).await;
    let change = PbAlterConfig { config_key: "table.datalake.enabled".into(), config_value: Some("true".into()), op_type: 0 };
    let request = AlterTableRequest { table_path: path("later"), config_changes: vec![change], ..Default::default() };
    stage.client.call(&request).await.unwrap();
    assert_eq!(stage.lake_schema("later").0, "1");
}

#[tokio::test]
async fn every_put_that_is_not_taken_has_its_code_and_changes_nothing() {
    let stage = Stage::new().await;
    let id = stage.create("t", keyed(json!({}))).await;
    let log = stage.create("log", table(false, 1)).await;
    stage.create("strict", keyed(json!({"table.delete.behavior":"DISABLE"}))).await;
    stage.create("deaf", keyed(json!({"table.delete.behavior":"IGNORE"}))).await;
    let info = stage.registered("t");
    let good = kv_batch(&info, -1, -1, &[upsert(1, "a")]);
    let request = |change: &dyn Fn(&mut PutKvRequest)| {
        let mut request = put_of(id, good.clone());
        change(&mut request);
        request
    };
    for acks in [-2, 2] {
        assert_eq!(code(stage.client.call(&request(&|request| request.acks = acks)).await), 18);
    }
    assert_eq!(code(stage.client.call(&request(&|request| request.agg_mode = Some(1))).await), 39);
    let mut torn = good.to_vec();
    *torn.last_mut().unwrap() ^= 1;
    let mut unknown_schema = info.clone();
    Arc::make_mut(&mut unknown_schema.schema).id = crate::model::SchemaId(2);
    let unknown_schema = kv_batch(&unknown_schema, -1, -1, &[upsert(1, "a")]);
    let cases: Vec<(&str, PutKvRequest, i32)> = vec![
        ("log table", request(&|request| request.table_id = log), 20),
        ("unknown table", request(&|request| request.table_id = 99), 21),
        ("unknown bucket", request(&|request| request.buckets_req[0].bucket_id = 1), 21),
        ("other count", request(&|request| request.buckets_req[0].routing_bucket_count = Some(2)), 74),
        ("historical", request(&|request| request.buckets_req[0].original_partition_name = Some("p".into())), 39),
        ("some columns", request(&|request| request.target_columns = vec![0]), 35),
        ("damaged", request(&|request| request.buckets_req[0].records = torn.clone().into()), 14),
        ("nothing", request(&|request| request.buckets_req[0].records = Bytes::new()), 14),
        ("unknown schema", request(&|request| request.buckets_req[0].records = unknown_schema.clone()), 9),
    ];
    for (what, request, expected) in cases {
        let entry = stage.put_request(request).await;
        assert_eq!(entry.error_code, Some(expected), "{what}: {:?}", entry.error_message);
    }
    assert_eq!(stage.put("strict", -1, -1, &[upsert(1, "a"), Op::Delete(1)]).await.0, 57);
    assert_eq!((stage.latest_offset(id, 0).await, stage.latest_offset(stage.registered("strict").id.0, 0).await), (0, 0));
    let all = stage.put_request(request(&|request| request.target_columns = vec![1, 0])).await;
    assert_eq!(all.log_end_offset, Some(1), "all columns in any order are a full update");
    assert_eq!(stage.put("deaf", -1, -1, &[upsert(1, "a"), Op::Delete(1)]).await, (0, Some(1)));
    assert!(stage.look_up("deaf", &[1]).await[0].is_some());
    let lookup = |table_id| {
        let buckets_req = vec![PbLookupReqForBucket { keys: vec![Bytes::from_static(b"x")], ..Default::default() }];
        LookupRequest { table_id, buckets_req, ..Default::default() }
    };
    assert_eq!(stage.client.call(&lookup(log)).await.unwrap().buckets_resp[0].error_code, Some(20));
    let inserting = LookupRequest { insert_if_not_exists: Some(true), ..lookup(id) };
    assert_eq!(code(stage.client.call(&inserting).await), 39);
}

#[tokio::test]
async fn partitions_have_states_of_their_own_count_and_lose_them_when_they_are_dropped() {
    let stage = Stage::new().await;
    let id = stage.create("p", keyed_by_day(2)).await;
    let first = stage.add_partition("p", "1").await;
    stage.rescale("p", 3).await.unwrap();
    let second = stage.add_partition("p", "2").await;
    let states = stage.folder.path().join(format!("kv/{id}"));
    let state = |partition: &PbPartitionInfo, bucket: i32| states.join(format!("p{}/{bucket}.redb", partition.partition_id));
    for (partition, bucket, count, expected) in
        [(&first, 1, 2, None), (&second, 2, 3, None), (&first, 2, 3, Some(21)), (&second, 2, 2, Some(74))]
    {
        // No rows: keys of this table are others.
        let records = crate::fluss::record::KvBatchBuilder::new(crate::model::SchemaId(1)).unwrap().finish(-1, -1);
        let mut request = put_of(id, records);
        let entry = &mut request.buckets_req[0];
        (entry.partition_id, entry.bucket_id, entry.routing_bucket_count) = (Some(partition.partition_id), bucket, Some(count));
        assert_eq!(stage.put_request(request).await.error_code, expected, "{bucket} of {count}");
        assert_eq!(state(partition, bucket).exists(), expected != Some(21));
    }
    let request = DropPartitionRequest { table_path: path("p"), partition_spec: spec("1"), ignore_if_not_exists: false };
    stage.client.call(&request).await.unwrap();
    assert!(!state(&first, 1).exists() && state(&second, 2).exists());
    let stage = stage.restarted_after(false, |folder| std::fs::create_dir_all(folder.join(format!("kv/{id}/p77"))).unwrap()).await;
    assert!(!states.join("p77").exists() && state(&second, 2).exists(), "what a crash left is cleared away");
    stage.client.call(&DropTableRequest { table_path: path("p"), ignore_if_not_exists: false }).await.unwrap();
    assert!(!states.exists());
}

#[tokio::test]
async fn rows_of_before_a_column_was_added_stay_and_their_changes_are_as_wide_as_the_table() {
    let stage = Stage::new().await;
    stage.create("t", keyed(json!({}))).await;
    let old = stage.registered("t");
    stage.put("t", 5, 0, &[upsert(1, "a"), upsert(2, "b")]).await;
    let column =
        PbAddColumn { column_name: "n".into(), data_type_json: json!({"type":"BIGINT"}).to_string().into(), ..Default::default() };
    let request = AlterTableRequest { table_path: path("t"), add_columns: vec![column], ..Default::default() };
    stage.client.call(&request).await.unwrap();
    assert_eq!(stage.look_up("t", &[1]).await, [Some((1, vec![0, 1, 1, b'a']))], "stored values stay");
    // A writer that does not know yet.
    let entry = stage.put_request(put_of(old.id.0, kv_batch(&old, 5, 1, &[upsert(2, "c")]))).await;
    assert_eq!(entry.log_end_offset, Some(4));
    assert_eq!(stage.look_up("t", &[2]).await[0].as_ref().unwrap().0, 1);
    assert_eq!(stage.put("t", 5, 2, &[upsert(1, "d"), Op::Delete(2)]).await, (0, Some(7)));
    assert_eq!(stage.look_up("t", &[1, 2]).await, [Some((2, vec![0, 1, 1, b'd', 10])), None]);
    let records = stage.fetch(old.id.0, from(0), 0).await.records.unwrap();
    assert_eq!(batches(records).map(|batch| batch.unwrap().header.schema_id.0).collect::<Vec<_>>(), [1, 2, 2]);
    let kinds = stage.changelog("t").await;
    assert_eq!(kinds[2], [ChangeKind::UpdateBefore, ChangeKind::UpdateAfter, ChangeKind::Delete]);
}

#[tokio::test]
async fn a_limit_scan_gives_the_first_rows_in_the_order_of_keys() {
    let stage = Stage::new().await;
    let table_id = stage.create("t", keyed(json!({}))).await;
    let scan = |limit| {
        let (client, request) = (stage.client.clone(), LimitScanRequest { table_id, limit, ..Default::default() });
        async move {
            let answer = client.call(&request).await.unwrap();
            assert_eq!((answer.error_code, answer.is_log_table), (None, Some(false)));
            Values::parse(&answer.records.unwrap()).unwrap().map(|value| value.row.to_vec()).collect::<Vec<_>>()
        }
    };
    assert!(scan(5).await.is_empty());
    stage.put("t", -1, -1, &[upsert(3, "c"), upsert(1, "a"), upsert(2, "b")]).await;
    assert_eq!(scan(2).await, [vec![0, 1, 1, b'a'], vec![0, 2, 1, b'b']]);
    assert_eq!(scan(9).await.len(), 3);
}

#[tokio::test]
async fn a_state_is_scanned_as_it_was_when_the_scan_began_in_counted_calls() {
    let stage = Stage::new().await;
    let id = stage.create("t", keyed(json!({}))).await;
    let log = stage.create("log", table(false, 1)).await;
    let empty = stage.scan_open(id, 1).await;
    assert_eq!((empty.has_more_results, empty.log_offset, empty.scanner_id, empty.records), (Some(false), Some(0), None, None));
    let ops: Vec<Op> = (0..5).map(|key| upsert(key, "x")).collect();
    stage.put("t", 5, 0, &ops).await;
    let whole = stage.scan_open(id, 1 << 20).await;
    assert_eq!((whole.has_more_results, whole.log_offset), (Some(false), Some(5)));
    assert_eq!(Values::parse(&whole.records.unwrap()).unwrap().len(), 5);

    let first = stage.scan_open(id, 1).await;
    let scanner = first.scanner_id.clone().unwrap();
    assert_eq!((first.error_code, first.has_more_results, first.log_offset), (None, Some(true), Some(5)));
    stage.put("t", 5, 1, &[Op::Delete(1), upsert(7, "y")]).await;
    assert_eq!(stage.scan_next(&scanner, 2).await.error_code, Some(68), "a call is left out");
    let mut rows = Values::parse(&first.records.unwrap()).unwrap().map(|value| value.row.to_vec()).collect::<Vec<_>>();
    for sequence in 1.. {
        let answer = stage.scan_next(&scanner, sequence).await;
        assert_eq!((answer.error_code, answer.log_offset), (None, None));
        rows.extend(Values::parse(&answer.records.unwrap()).unwrap().map(|value| value.row.to_vec()));
        if answer.has_more_results == Some(false) {
            break;
        }
    }
    assert_eq!(rows, (0..5).map(|key| vec![0, key, 1, b'x']).collect::<Vec<_>>(), "nothing of what came later");
    assert_eq!(stage.scan_next(&scanner, 6).await.error_code, Some(67), "it ended with its last row");
    assert_eq!(stage.scan_open(id, 1 << 20).await.log_offset, Some(7));

    let limited = ScanKvRequest {
        bucket_scan_req: Some(PbScanReqForBucket { table_id: id, limit: Some(2), ..Default::default() }),
        call_seq_id: Some(0),
        batch_size_bytes: Some(1 << 20),
        ..Default::default()
    };
    let limited = stage.scan_call(limited).await;
    assert_eq!((limited.has_more_results, Values::parse(&limited.records.unwrap()).unwrap().len()), (Some(false), 2));

    let open = PbScanReqForBucket { table_id: id, ..Default::default() };
    let full = ScanKvRequest { call_seq_id: Some(0), batch_size_bytes: Some(1), ..Default::default() };
    let wrong = [
        full.clone(),
        ScanKvRequest { bucket_scan_req: Some(open), scanner_id: Some(scanner.clone()), ..full.clone() },
        ScanKvRequest { bucket_scan_req: Some(open), close_scanner: Some(true), ..full.clone() },
        ScanKvRequest { bucket_scan_req: Some(open), batch_size_bytes: None, ..full.clone() },
        ScanKvRequest { bucket_scan_req: Some(open), batch_size_bytes: Some(0), ..full.clone() },
        ScanKvRequest { bucket_scan_req: Some(open), call_seq_id: None, ..full.clone() },
        ScanKvRequest { bucket_scan_req: Some(open), call_seq_id: Some(1), ..full.clone() },
    ];
    for request in wrong {
        assert_eq!(stage.scan_call(request.clone()).await.error_code, Some(68), "{request:?}");
    }
    assert_eq!(stage.scan_open(log, 1).await.error_code, Some(20));
    let routed = PbScanReqForBucket { routing_bucket_count: Some(2), ..open };
    assert_eq!(stage.scan_call(ScanKvRequest { bucket_scan_req: Some(routed), ..full }).await.error_code, Some(74));
    let close = ScanKvRequest { scanner_id: Some(Bytes::from_static(b"nobody")), close_scanner: Some(true), ..Default::default() };
    let closed = stage.scan_call(close).await;
    assert_eq!((closed.error_code, closed.has_more_results), (None, Some(false)), "closing what is not there is fine");
}

#[tokio::test]
async fn scans_are_bounded_end_by_age_and_with_their_table() {
    let stage = Stage::with(|options| options.kv.scanner_idle_max = Duration::from_millis(300)).await;
    let id = stage.create("t", keyed(json!({}))).await;
    stage.put("t", 5, 0, &[upsert(1, "a"), upsert(2, "b"), upsert(3, "c")]).await;
    let mut scanners = Vec::new();
    for _ in 0..8 {
        scanners.push(stage.scan_open(id, 1).await.scanner_id.unwrap());
    }
    assert_eq!(stage.scan_open(id, 1).await.error_code, Some(69));
    let close = ScanKvRequest { scanner_id: Some(scanners[0].clone()), close_scanner: Some(true), ..Default::default() };
    stage.scan_call(close).await;
    assert_eq!(stage.scan_next(&scanners[0], 1).await.error_code, Some(67));
    scanners[0] = stage.scan_open(id, 1).await.scanner_id.unwrap();
    // Idle scans end by age, the oldest first, whoever asks next.
    let scanner = loop {
        if let Some(scanner) = stage.scan_open(id, 1).await.scanner_id {
            break scanner;
        }
    };
    assert_eq!(stage.scan_next(&scanners[1], 1).await.error_code, Some(66));
    stage.client.call(&DropTableRequest { table_path: path("t"), ignore_if_not_exists: false }).await.unwrap();
    let code = stage.scan_next(&scanner, 1).await.error_code;
    assert!([Some(66), Some(67)].contains(&code), "{code:?}");
}

#[tokio::test]
async fn changelogs_expire_only_past_what_is_tiered_and_without_a_lake_never() {
    let stage = Stage::with(|options| {
        options.retention_interval = Duration::from_millis(20);
        options.log.segment_bytes = 1;
    })
    .await;
    let options = json!({"table.log.ttl":"1ms"});
    let plain = stage.create("plain", keyed(options.clone())).await;
    let mut with_lake = options;
    with_lake["table.datalake.enabled"] = json!("true");
    let tiered = stage.create("tiered", keyed(with_lake)).await;
    let mut json = table(false, 1);
    json["properties"] = json!({"table.log.ttl":"1ms"});
    let log = stage.create("log", json).await;
    for sequence in 0..4 {
        stage.put("plain", 5, sequence, &[upsert(sequence, "a")]).await;
        stage.put("tiered", 5, sequence, &[upsert(sequence, "a")]).await;
    }
    let prepared = lake::prepare(&stage, tiered, vec![lake::bucket(0, 2)], false).await;
    let metadata = PbLakeTableSnapshotMetadata {
        table_id: tiered,
        snapshot_id: 1,
        tiered_bucket_offsets_file_path: prepared.lake_table_offsets_path.unwrap(),
        ..Default::default()
    };
    let request = CommitLakeTableSnapshotRequest { tables_req: vec![], lake_table_snapshot_metadata: vec![metadata] };
    stage.client.call(&request).await.unwrap();
    let starts = async |table: i64| {
        let request = ListOffsetsRequest {
            follower_server_id: -1,
            offset_type: 0,
            table_id: table,
            bucket_id: vec![0],
            ..Default::default()
        };
        stage.client.call(&request).await.unwrap().buckets_resp.remove(0).offset.unwrap()
    };
    for looked_at in 1..=2 {
        stage.produce(log, records(-1, -1, 1)).await;
        while starts(log).await < looked_at {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(starts(tiered).await, 0, "not saved: what a crash takes from a state must be in the log");
    stage.node.server.save_states(true).await;
    while starts(tiered).await < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!((starts(plain).await, starts(tiered).await), (0, 2));
    let stage = stage.restarted(false).await;
    assert_eq!(stage.look_up("tiered", &[0, 3]).await.iter().filter(|found| found.is_some()).count(), 2);
}
