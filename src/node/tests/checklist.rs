//! S10.2, the rows that need raw requests, and S1.5.

use super::*;
use crate::fluss::record::batches;

#[tokio::test]
async fn row_3_and_4_repeated_and_out_of_order_batches() {
    let stage = Stage::new().await;
    let id = stage.create("t", table(false, 1)).await;
    for (sequence, expected) in [
        (0, (0, Some(0))),
        (0, (0, Some(0))),
        (1, (0, Some(2))),
        (3, (31, None)),
        (2, (0, Some(4))),
        (3, (0, Some(6))),
        (4, (0, Some(8))),
        (5, (0, Some(10))),
        (1, (0, Some(2))),
        (0, (31, None)),
    ] {
        assert_eq!(stage.produce(id, records(7, sequence, 2)).await, expected, "{sequence}");
    }
    assert_eq!(stage.produce(id, records(8, 5, 2)).await, (31, None));
    assert_eq!(stage.latest_offset(id, 0).await, 12);
}

#[tokio::test]
async fn row_6_a_torn_tail_is_cut_at_start() {
    let stage = Stage::new().await;
    let id = stage.create("t", table(false, 1)).await;
    stage.produce(id, records(7, 0, 2)).await;
    let file = stage.folder.path().join(format!("log/{id}/0/{:020}.log", 0));
    let Stage { folder, node, client, runtime } = stage;
    drop(client);
    node.stop().await;
    let mut bytes = std::fs::read(&file).unwrap();
    bytes.extend(&batch(7, 1, 2, 40).bytes[..60]);
    std::fs::write(&file, bytes).unwrap();
    let (node, client) = started(NodeOptions::new(folder.path()), &runtime).await;
    let stage = Stage { folder, node, client, runtime };
    assert_eq!(stage.latest_offset(id, 0).await, 2);
    assert_eq!(stage.produce(id, records(7, 1, 2)).await, (0, Some(2)));
}

#[tokio::test]
async fn row_9_where_a_fetch_may_start_and_what_it_gets() {
    let stage = Stage::new().await;
    let id = stage.create("t", table(false, 2)).await;
    for sequence in 0..3 {
        stage.produce(id, records(7, sequence, 2)).await;
    }
    let offsets = |entry: &PbFetchLogRespForBucket| -> Vec<i64> {
        batches(entry.records.clone().unwrap()).map(|batch| batch.unwrap().header.base_offset).collect()
    };
    let all = stage.fetch(id, from(-2), 0).await;
    assert_eq!((offsets(&all), all.high_watermark, all.error_code), (vec![0, 2, 4], Some(6), None));
    assert_eq!(offsets(&stage.fetch(id, from(3), 0).await), [2, 4]);
    for (offset, expected) in [(7, 19), (-1, 19), (100, 19)] {
        assert_eq!(stage.fetch(id, from(offset), 5_000).await.error_code, Some(expected), "at once");
    }
    let small = PbFetchLogReqForBucket { max_fetch_bytes: 1, ..from(2) };
    assert_eq!(offsets(&stage.fetch(id, small, 0).await), [2], "one whole batch, whatever the limit");
    // At the end: waits, and answers with zero bytes and the high watermark.
    let before = stage.runtime.clock.moment();
    let idle = stage.fetch(id, from(6), 300).await;
    assert!(before.elapsed() >= Duration::from_millis(300));
    assert_eq!((idle.records, idle.high_watermark), (Some(Bytes::new()), Some(6)));
    // A batch that comes meanwhile ends the wait; other requests of the connection are not held up by it.
    let (client, produced) = (stage.fetch(id, from(6), 60_000), stage.produce(id, records(7, 3, 2)));
    let (entry, outcome) = tokio::join!(client, produced);
    assert_eq!((offsets(&entry), outcome), (vec![6], (0, Some(6))));
    // Several buckets: the one without data says so with zero bytes, the budget is shared, and `min_bytes` waits.
    let bucket = |bucket_id| PbFetchLogReqForBucket { bucket_id, ..from(-2) };
    let request = |max_bytes, min_bytes, wait| FetchLogRequest {
        follower_server_id: -1,
        max_bytes,
        tables_req: vec![PbFetchLogReqForTable { table_id: id, buckets_req: vec![bucket(1), bucket(0)], ..Default::default() }],
        max_wait_ms: Some(wait),
        min_bytes: Some(min_bytes),
        read_preference: Some(1),
    };
    let answer = stage.client.call(&request(100, 1, 60_000)).await.unwrap().tables_resp.remove(0).buckets_resp;
    assert_eq!((answer[0].records.clone(), offsets(&answer[1])), (Some(Bytes::new()), vec![0]));
    let before = stage.runtime.clock.moment();
    let answer = stage.client.call(&request(10 << 20, 1 << 20, 200)).await.unwrap().tables_resp.remove(0).buckets_resp;
    assert!(before.elapsed() >= Duration::from_millis(200));
    assert_eq!(offsets(&answer[1]).len(), 4);
}

#[tokio::test]
async fn a_projection_that_can_not_be_is_refused_per_bucket() {
    let stage = Stage::new().await;
    let id = stage.create("t", table(false, 1)).await;
    stage.produce(id, records(-1, -1, 0)).await;
    for (fields, expected) in
        [(vec![], Some(34)), (vec![1, 0], Some(34)), (vec![0, 0], Some(34)), (vec![0, 5], Some(34)), (vec![1], None)]
    {
        let table = PbFetchLogReqForTable {
            table_id: id,
            projection_pushdown_enabled: true,
            projected_fields: fields.clone(),
            buckets_req: vec![from(0)],
            ..Default::default()
        };
        let request = FetchLogRequest { follower_server_id: -1, max_bytes: 1 << 20, tables_req: vec![table], ..Default::default() };
        let entry = stage.client.call(&request).await.unwrap().tables_resp.remove(0).buckets_resp.remove(0);
        assert_eq!(entry.error_code, expected, "{fields:?}");
    }
}

#[tokio::test]
async fn row_11_partitions_and_alterations_are_refused_with_the_right_code() {
    let stage = Stage::with(|options| options.limits.partitions_max = 3).await;
    stage.create("t", table(true, 2)).await;
    stage.create("plain", table(false, 2)).await;
    let create = |table: &str, spec: PbPartitionSpec, ignore_if_not_exists| {
        let (client, table_path) = (stage.client.clone(), path(table));
        async move { code(client.call(&CreatePartitionRequest { table_path, partition_spec: spec, ignore_if_not_exists }).await) }
    };
    assert_eq!(create("t", spec("1"), false).await, 0);
    assert_eq!(create("t", spec("1"), false).await, 42);
    assert_eq!(create("t", spec("1"), true).await, 0);
    assert_eq!(create("t", spec("a/b"), true).await, 43);
    assert_eq!(create("t", PbPartitionSpec::default(), true).await, 43);
    assert_eq!(create("nope", spec("1"), true).await, 7);
    assert_eq!(create("plain", spec("1"), true).await, 37);
    assert_eq!(create("t", spec("2"), false).await, 0);
    assert_eq!(create("t", spec("3"), false).await, 0);
    assert_eq!(create("t", spec("4"), false).await, 45);
    let drop = |day: &str, ignore_if_not_exists| {
        let (client, request) =
            (stage.client.clone(), DropPartitionRequest { table_path: path("t"), partition_spec: spec(day), ignore_if_not_exists });
        async move { code(client.call(&request).await) }
    };
    assert_eq!(drop("3", false).await, 0);
    assert_eq!((drop("3", false).await, drop("3", true).await, drop("__historical__", true).await), (36, 0, 43));
    // F4.4, row by row; nothing has changed until the last one.
    assert_eq!(code(stage.rescale("plain", 4).await), 56);
    assert_eq!(code(stage.rescale("t", 0).await), 56);
    assert_eq!(code(stage.rescale("t", 4097).await), 49);
    let option = |key: &str, value: Option<&str>, op_type| PbAlterConfig {
        config_key: key.into(),
        config_value: value.map(Into::into),
        op_type,
    };
    let alter = |change: AlterTableRequest| {
        let (client, request) = (stage.client.clone(), AlterTableRequest { table_path: path("t"), ..change });
        async move { code(client.call(&request).await) }
    };
    let count = Some(PbModifyBucketCount { new_bucket_count: 4 });
    let set = vec![option("u", Some("2"), 0)];
    let column = PbAddColumn {
        column_name: "d".into(),
        data_type_json: Bytes::from_static(b"{\"type\":\"INTEGER\"}"),
        ..Default::default()
    };
    assert_eq!(
        alter(AlterTableRequest { modify_bucket_count: count, config_changes: set.clone(), ..Default::default() }).await,
        56
    );
    assert_eq!(
        alter(AlterTableRequest { modify_bucket_count: count, add_columns: vec![column.clone()], ..Default::default() }).await,
        56
    );
    assert_eq!(
        alter(AlterTableRequest { add_columns: vec![column.clone()], config_changes: set.clone(), ..Default::default() }).await,
        56
    );
    assert_eq!(alter(AlterTableRequest { config_changes: vec![option("bucket.num", None, 1)], ..Default::default() }).await, 56);
    let dropped = vec![PbDropColumn { column_name: "id".into() }];
    assert_eq!(alter(AlterTableRequest { drop_columns: dropped, ..Default::default() }).await, 56);
    assert_eq!(stage.info("t").await.bucket_count_epoch, None);
    stage.rescale("t", 2).await.unwrap();
    assert_eq!(stage.info("t").await.bucket_count_epoch, None, "the same count changes nothing");
    for (count, epoch) in [(4, 1), (3, 2), (4, 3)] {
        stage.rescale("t", count).await.unwrap();
        assert_eq!(stage.info("t").await.bucket_count_epoch, Some(epoch));
    }
    assert_eq!(stage.partitions("t").await.iter().map(|partition| partition.bucket_count).collect::<Vec<_>>(), [Some(2), Some(2)]);
    assert_eq!(alter(AlterTableRequest { add_columns: vec![column], ..Default::default() }).await, 0);
    assert_eq!(alter(AlterTableRequest { config_changes: set, ..Default::default() }).await, 0);
    assert_eq!(stage.info("t").await.schema_id, 2);
    let schema = stage.client.call(&GetTableSchemaRequest { table_path: path("t"), schema_id: Some(1) }).await.unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&schema.schema_json).unwrap()["columns"].as_array().unwrap().len(), 2);
    assert_eq!(code(stage.client.call(&GetTableSchemaRequest { table_path: path("t"), schema_id: Some(9) }).await), 9);
}

/// Error codes of every routed call for one bucket (0 = served).
async fn routed(stage: &Stage, table_id: i64, partition_id: Option<i64>, bucket_id: i32, routing: Option<i32>) -> [i32; 5] {
    let mut produce = records(-1, -1, 0);
    (produce.partition_id, produce.bucket_id, produce.routing_bucket_count) = (partition_id, bucket_id, routing);
    let fetch = PbFetchLogReqForBucket { partition_id, bucket_id, routing_bucket_count: routing, ..from(-2) };
    let offsets = ListOffsetsRequest {
        follower_server_id: -1,
        offset_type: 0,
        table_id,
        partition_id,
        bucket_id: vec![bucket_id],
        start_timestamp: None,
        routing_bucket_count: routing,
    };
    let scan = LimitScanRequest { table_id, partition_id, bucket_id, limit: 1, routing_bucket_count: routing };
    let stats = GetTableStatsRequest {
        table_id,
        buckets_req: vec![PbTableStatsReqForBucket { partition_id, bucket_id, routing_bucket_count: routing }],
        target_columns: vec![],
    };
    let client = &stage.client;
    let offsets = client.call(&offsets).await.unwrap().buckets_resp.remove(0);
    let stats = client.call(&stats).await.unwrap().buckets_resp.remove(0);
    assert_eq!((stats.partition_id, stats.bucket_id), (partition_id, bucket_id), "echoed as asked");
    [
        stage.produce(table_id, produce).await.0,
        stage.fetch(table_id, fetch, 0).await.error_code.unwrap_or(0),
        offsets.error_code.unwrap_or(0),
        client.call(&scan).await.unwrap().error_code.unwrap_or(0),
        stats.error_code.unwrap_or(0),
    ]
}

#[tokio::test]
async fn row_12_every_routed_call_is_checked_against_the_partitions_own_count() {
    // What a rescaled table answers to requests that don't say how they are routed.
    for (accept_absent_count, absent) in [(AcceptAbsentCount::Never, [74; 5]), (AcceptAbsentCount::Reads, [74, 0, 0, 0, 0])] {
        let stage = Stage::with(|options| options.routing = RoutingOptions { accept_absent_count }).await;
        let keyed = stage.create("keyed", table(true, 2)).await;
        let first = Some(stage.add_partition("keyed", "1").await.partition_id);
        assert_eq!(routed(&stage, keyed, first, 1, Some(2)).await, [0; 5]);
        assert_eq!(routed(&stage, keyed, first, 1, Some(4)).await, [74; 5]);
        assert_eq!(routed(&stage, keyed, first, 1, None).await, [0; 5], "epoch 0: old clients are served");
        assert_eq!(routed(&stage, keyed, first, 2, Some(2)).await, [21; 5]);
        assert_eq!(routed(&stage, keyed, None, 0, Some(2)).await, [21; 5]);
        assert_eq!(routed(&stage, keyed, Some(99), 0, Some(2)).await, [21; 5]);
        assert_eq!(routed(&stage, 99, None, 0, None).await, [21; 5]);
        stage.rescale("keyed", 4).await.unwrap();
        let second = Some(stage.add_partition("keyed", "2").await.partition_id);
        assert_eq!(routed(&stage, keyed, first, 1, Some(2)).await, [0; 5]);
        assert_eq!(routed(&stage, keyed, first, 1, Some(4)).await, [74; 5]);
        assert_eq!(routed(&stage, keyed, second, 3, Some(4)).await, [0; 5]);
        assert_eq!(routed(&stage, keyed, second, 3, None).await, absent);
        assert_eq!(routed(&stage, keyed, first, 1, None).await, absent);
        assert_eq!(routed(&stage, keyed, first, 2, None).await, [21; 5]);
        let mut json = table(true, 1);
        json["bucket_key"] = json!([]);
        let unkeyed = stage.create("unkeyed", json).await;
        stage.rescale("unkeyed", 2).await.unwrap();
        let partition = Some(stage.add_partition("unkeyed", "1").await.partition_id);
        assert_eq!(routed(&stage, unkeyed, partition, 1, None).await, absent);
        assert_eq!(routed(&stage, unkeyed, partition, 1, Some(2)).await, [0; 5]);
    }
}

#[tokio::test]
async fn a_wrong_count_fails_its_own_bucket_of_a_fetch_and_a_rescale_reaches_one_that_waits() {
    let stage = Stage::new().await;
    let id = stage.create("t", table(true, 2)).await;
    let partition_id = Some(stage.add_partition("t", "1").await.partition_id);
    let mut filled = records(7, 0, 3);
    (filled.partition_id, filled.bucket_id, filled.routing_bucket_count) = (partition_id, 1, Some(2));
    assert_eq!(stage.produce(id, filled).await, (0, Some(0)));
    let fetch = |bucket_id, fetch_offset, routing_bucket_count| PbFetchLogReqForBucket {
        partition_id,
        bucket_id,
        routing_bucket_count,
        ..from(fetch_offset)
    };
    let request = FetchLogRequest {
        follower_server_id: -1,
        max_bytes: 1 << 20,
        tables_req: vec![PbFetchLogReqForTable {
            table_id: id,
            buckets_req: vec![fetch(0, 0, Some(4)), fetch(1, 0, Some(2)), fetch(7, 0, Some(2))],
            ..Default::default()
        }],
        max_wait_ms: Some(60_000),
        ..Default::default()
    };
    let entries = stage.client.call(&request).await.unwrap().tables_resp.remove(0).buckets_resp;
    let codes: Vec<Option<i32>> = entries.iter().map(|entry| entry.error_code).collect();
    assert_eq!(codes, [Some(74), None, Some(21)]);
    assert_eq!(batches(entries[1].records.clone().unwrap()).count(), 1);
    // An old client waits at the end when the table is rescaled: what it asked is not right any more.
    let (waits, sends) = (fetch(1, 3, None), async {
        stage.rescale("t", 4).await.unwrap();
        let mut more = records(7, 1, 1);
        (more.partition_id, more.bucket_id, more.routing_bucket_count) = (partition_id, 1, Some(2));
        assert_eq!(stage.produce(id, more).await.0, 0);
    });
    let (entry, ()) = tokio::join!(stage.fetch(id, waits, 60_000), sends);
    assert_eq!(entry.error_code, Some(74));
    assert_eq!(stage.fetch(id, fetch(1, 3, Some(2)), 60_000).await.high_watermark, Some(4));
}

#[tokio::test]
async fn row_16_a_client_that_asks_without_pause_does_not_starve_others() {
    let stage = Stage::new().await;
    stage.create("t", table(true, 1)).await;
    let partitions_path =
        vec![PbPhysicalTablePath { database_name: "fluss".into(), table_name: "t".into(), partition_name: Some("1".into()) }];
    let missing = MetadataRequest { partitions_path, ..Default::default() };
    let (noisy, ask) = (stage.connect().await, missing.clone());
    let spinning = tokio::spawn(async move {
        let mut asked = 0_u32;
        while code(noisy.call(&ask).await) == 36 {
            asked += 1;
        }
        asked
    });
    let id = stage.create("other", table(false, 1)).await;
    for sequence in 0..50 {
        assert_eq!(stage.produce(id, records(7, sequence, 1)).await.0, 0);
    }
    stage.add_partition("t", "1").await;
    assert!(spinning.await.unwrap() > 50);
}

#[tokio::test]
async fn appends_of_a_connection_keep_their_order_with_five_in_flight() {
    let stage = Stage::new().await;
    let id = stage.create("t", table(false, 1)).await;
    for round in 0..20 {
        let requests = (0..5).map(|index| stage.produce(id, records(7, round * 5 + index, 1)));
        let answers = futures::future::join_all(requests).await;
        assert!(answers.iter().all(|(code, _)| *code == 0), "{answers:?}");
    }
    assert_eq!(stage.latest_offset(id, 0).await, 100);
}

#[tokio::test]
async fn rejected_produce_requests_have_the_right_code_and_leave_nothing() {
    let stage = Stage::new().await;
    let id = stage.create("t", table(false, 1)).await;
    let with = |bytes: Bytes| PbProduceLogReqForBucket { records: bytes, ..Default::default() };
    let whole = batch(7, 0, 1, 40).bytes;
    let mut damaged = whole.to_vec();
    damaged[70] ^= 1;
    assert_eq!(stage.produce(id, with(damaged.into())).await.0, 14);
    assert_eq!(stage.produce(id, with(whole.slice(..60))).await.0, 14);
    assert_eq!(stage.produce(id, with(Bytes::new())).await.0, 14);
    let mut foreign = whole.to_vec();
    foreign[25] = 9;
    let crc = crc32c::crc32c(&foreign[25..]);
    foreign[21..25].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(stage.produce(id, with(foreign.into())).await.0, 15, "unknown schema id");
    let historical = PbProduceLogReqForBucket { original_partition_name: Some("x".into()), ..records(7, 0, 1) };
    assert_eq!(stage.produce(id, historical).await.0, 39);
    for acks in [-2, 2] {
        let request = ProduceLogRequest { acks, table_id: id, timeout_ms: 1, buckets_req: vec![records(7, 0, 1)] };
        assert_eq!(code(stage.client.call(&request).await), 18);
    }
    for acks in [0, 1] {
        let request = ProduceLogRequest { acks, table_id: id, timeout_ms: 1, buckets_req: vec![records(7, acks, 1)] };
        assert_eq!(stage.client.call(&request).await.unwrap().buckets_resp.len(), 1, "answered, too");
    }
    assert_eq!(stage.latest_offset(id, 0).await, 2);
}

#[tokio::test]
async fn whatever_comes_is_answered_or_the_connection_closed() {
    let stage = Stage::new().await;
    for (key, body, expected) in
        [(4711, &b""[..], 2), (1007, b"\xff\xff\xff", 3), (1014, b"\xff\xff\xff", 3), (1016, b"\xff\xff\xff", 3)]
    {
        assert_eq!(stage.ask(key, 0, body).await.0, expected, "{key}");
    }
    assert_eq!(stage.ask(1003, 99, b"").await.0, 0, "a version above ours is served");
    for key in [1024, 1063, 1064] {
        let (code, text) = stage.ask(key, 0, b"").await;
        assert!(code == 2 && text.contains("not served"), "{key}: {text}");
    }
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], &(-1_i32).to_be_bytes(), &4_i32.to_be_bytes(), &i32::MAX.to_be_bytes()] {
        let mut stream = TcpStream::connect(stage.node.address()).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer[4], 2, "a failure frame, then closed");
    }
}

#[tokio::test]
async fn time_look_ups_and_counts() {
    let stage = Stage::new().await;
    let id = stage.create("t", table(false, 1)).await;
    stage.produce(id, records(7, 0, 3)).await;
    stage.produce(id, records(7, 1, 0)).await;
    let ask = |start_timestamp: Option<i64>| {
        let request = ListOffsetsRequest {
            follower_server_id: -1,
            offset_type: 2,
            table_id: id,
            bucket_id: vec![0],
            start_timestamp,
            ..Default::default()
        };
        let client = stage.client.clone();
        async move {
            let entry = client.call(&request).await.unwrap().buckets_resp.remove(0);
            (entry.error_code, entry.offset)
        }
    };
    let now_ms = stage.runtime.clock.now_ms();
    assert_eq!(ask(Some(1)).await, (None, Some(0)));
    assert_eq!(ask(Some(now_ms + 100_000)).await, (Some(38), None));
    assert_eq!(ask(None).await, (Some(-1), None));
    let request =
        GetTableStatsRequest { table_id: id, buckets_req: vec![PbTableStatsReqForBucket::default()], target_columns: vec![] };
    assert_eq!(stage.client.call(&request).await.unwrap().buckets_resp[0].row_count, Some(3));
    let request = LimitScanRequest { table_id: id, limit: 2, ..Default::default() };
    let answer = stage.client.call(&request).await.unwrap();
    assert_eq!((answer.is_log_table, batches(answer.records.unwrap()).count()), (Some(true), 2));
    let token = stage.client.call(&GetFileSystemSecurityTokenRequest {}).await.unwrap();
    assert_eq!((token.schema.as_str(), token.token.len()), ("file", 0));
    let request = GetLatestKvSnapshotsRequest { table_path: path("t"), partition_name: None };
    assert_eq!(code(stage.client.call(&request).await), 20);
}

#[tokio::test]
async fn row_10_partition_creation_and_rescales_at_once_leave_one_count_per_partition() {
    let stage = Stage::new().await;
    stage.create("t", table(true, 1)).await;
    let mut tasks = Vec::new();
    for index in 0..8 {
        let client = stage.connect().await;
        tasks.push(tokio::spawn(async move {
            for day in 0..4 {
                let partition_spec = spec(&format!("{}", (index + day) % 6));
                let request = CreatePartitionRequest { table_path: path("t"), partition_spec, ignore_if_not_exists: true };
                client.call(&request).await.unwrap();
            }
        }));
    }
    for count in 2..6 {
        stage.rescale("t", count).await.unwrap();
    }
    for task in tasks {
        task.await.unwrap();
    }
    let partitions = stage.partitions("t").await;
    let ids: std::collections::BTreeSet<i64> = partitions.iter().map(|partition| partition.partition_id).collect();
    assert_eq!((partitions.len(), ids.len()), (6, 6));
    assert_eq!(stage.info("t").await.bucket_count_epoch, Some(4));
    for partition in &partitions {
        let count = partition.bucket_count.unwrap();
        let info = stage.info("t").await;
        assert_eq!(routed(&stage, info.table_id, Some(partition.partition_id), count - 1, Some(count)).await, [0; 5]);
    }
}

#[tokio::test]
async fn a_fetch_that_waits_hears_that_its_table_was_dropped() {
    let stage = Stage::new().await;
    let id = stage.create("t", table(false, 1)).await;
    stage.produce(id, records(7, 0, 1)).await;
    let drop = async {
        tokio::task::yield_now().await;
        stage.client.call(&DropTableRequest { table_path: path("t"), ignore_if_not_exists: false }).await.unwrap();
    };
    let (entry, ()) = tokio::join!(stage.fetch(id, from(1), 500), drop);
    assert_eq!(entry.error_code, Some(21));
}

#[tokio::test]
async fn partitions_come_and_go_with_time() {
    let stage = Stage::with(|options| options.partition_interval = Duration::from_millis(20)).await;
    let mut json = table(true, 3);
    json["properties"] = json!({"table.auto-partition.enabled":"true","table.auto-partition.time-unit":"YEAR",
        "table.auto-partition.num-precreate":"2","table.auto-partition.num-retention":"1","table.auto-partition.time-zone":"UTC"});
    stage.create("t", json).await;
    let names = async || -> Vec<String> {
        stage.partitions("t").await.into_iter().map(|info| info.partition_spec.partition_key_values[0].value.clone()).collect()
    };
    let made = names().await;
    let year: i32 = made[0].parse().unwrap();
    assert_eq!(made, [year.to_string(), (year + 1).to_string()], "at creation, at once");
    let create = |day: String| {
        let request = CreatePartitionRequest { table_path: path("t"), partition_spec: spec(&day), ignore_if_not_exists: false };
        let client = stage.client.clone();
        async move { code(client.call(&request).await) }
    };
    assert_eq!(create((year - 2).to_string()).await, 43, "older than what is kept");
    assert_eq!(create("today".to_owned()).await, 43);
    assert_eq!(create((year - 1).to_string()).await, 0);
    let keep_none =
        vec![PbAlterConfig { config_key: "table.auto-partition.num-retention".into(), config_value: Some("0".into()), op_type: 0 }];
    stage.client.call(&AlterTableRequest { table_path: path("t"), config_changes: keep_none, ..Default::default() }).await.unwrap();
    assert_eq!(names().await, made, "dropped when the option changed");
    stage
        .client
        .call(&DropPartitionRequest { table_path: path("t"), partition_spec: spec(&made[1]), ignore_if_not_exists: false })
        .await
        .unwrap();
    tokio::time::timeout(Duration::from_secs(10), async { while names().await != made {} }).await.unwrap();
}
