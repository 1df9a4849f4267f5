use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::fluss::api::ApiKey;
use crate::fluss::cluster::ClusterOptions;
use crate::fluss::fake::{FakeServer, Reply, read, servers};
use crate::fluss::proto::*;
use crate::model::LayoutOrigin;
use crate::runtime::{BackoffOptions, Runtime};
use crate::source::{Finished, RemoteRead};

mod states;

const LAYOUT: BucketLayout = BucketLayout { count: 2, origin: LayoutOrigin::Own };

/// A source whose only server knows table 1 with buckets 0 and 1 in partition 3, and answers the rest by `handler`.
async fn source(handler: impl Fn(ApiKey, Bytes) -> Reply + Send + Sync + 'static) -> (ClusterSource, FakeServer) {
    let port = Arc::new(AtomicI32::new(0));
    let own = Arc::clone(&port);
    let server = FakeServer::start(None, 1, move |key, _, body| {
        if key != ApiKey::GetMetadata {
            return handler(key, body);
        }
        let request = read::<MetadataRequest>(body);
        let port = own.load(Ordering::SeqCst);
        let mut answer = servers(port, &[port]);
        if request.partitions_id.iter().any(|id| *id != 3) {
            return Reply::Error(Code::PARTITION_NOT_EXISTS.error("gone"));
        }
        let bucket = |bucket_id| PbBucketMetadata { bucket_id, leader_id: Some(0), ..Default::default() };
        answer.partition_metadata = vec![PbPartitionMetadata {
            table_id: 1,
            partition_name: "a".into(),
            partition_id: 3,
            bucket_metadata: vec![bucket(0), bucket(1)],
            bucket_count: Some(2),
        }];
        answer.into()
    })
    .await;
    port.store(server.port, Ordering::SeqCst);
    let backoff = BackoffOptions { first: Duration::from_millis(1), max: Duration::from_millis(2), attempts_max: 4 };
    let options = ClusterOptions { retry: backoff, bootstrap: backoff, ..Default::default() };
    let cluster = Cluster::connect(&[server.address()], options, &Runtime::simulated(1, 0, 1 << 20)).await.unwrap();
    (ClusterSource::new(cluster), server)
}

fn bucket(id: i32) -> TableBucket {
    TableBucket { table: TableId(1), partition: Some(PartitionId(3)), bucket: BucketId(id) }
}

fn request(offset: i64) -> FetchRequest {
    let wanted = |id| FetchBucket { bucket: bucket(id), offset: StartOffset::At(offset), bytes_max: 100, layout: LAYOUT };
    FetchRequest { table: Arc::new(TableInfo::for_tests("demo.t", 2)), buckets: vec![wanted(0), wanted(1)], wait_ms: 500 }
}

fn entry(bucket_id: i32) -> PbFetchLogRespForBucket {
    PbFetchLogRespForBucket {
        partition_id: Some(3),
        bucket_id,
        high_watermark: Some(9),
        records: Some(Bytes::new()),
        ..Default::default()
    }
}

fn refused(bucket_id: i32, code: Code) -> PbFetchLogRespForBucket {
    PbFetchLogRespForBucket { partition_id: Some(3), bucket_id, error_code: Some(code.0), ..Default::default() }
}

fn fetched(buckets_resp: Vec<PbFetchLogRespForBucket>) -> Reply {
    FetchLogResponse { tables_resp: vec![PbFetchLogRespForTable { table_id: 1, buckets_resp }] }.into()
}

fn offsets(ends: [i64; 2]) -> Reply {
    let entries = ends.into_iter().zip(0..).map(|(offset, bucket_id)| PbListOffsetsRespForBucket {
        bucket_id,
        offset: Some(offset),
        ..Default::default()
    });
    ListOffsetsResponse { buckets_resp: entries.collect() }.into()
}

#[tokio::test]
async fn many_buckets_go_out_in_one_request_and_only_those_that_moved_are_asked_for_again() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let requests = Arc::clone(&seen);
    let (source, _server) = source(move |_, body| {
        let request = read::<FetchLogRequest>(body);
        let buckets: Vec<i32> = request.tables_req[0].buckets_req.iter().map(|bucket| bucket.bucket_id).collect();
        requests.lock().unwrap().push(request);
        match buckets[..] {
            [0, 1] => fetched(vec![entry(0), refused(1, Code::NOT_LEADER_OR_FOLLOWER)]),
            _ => fetched(vec![entry(1)]),
        }
    })
    .await;
    let answers = source.fetch(request(5)).await.unwrap();
    assert_eq!(
        answers.iter().map(|answer| (answer.bucket, answer.high_watermark)).collect::<Vec<_>>(),
        [(bucket(0), 9), (bucket(1), 9)]
    );
    let seen = seen.lock().unwrap();
    let first = &seen[0];
    assert_eq!((seen.len(), first.max_bytes, first.read_preference, first.max_wait_ms), (2, 200, Some(0), Some(500)));
    let sent = &first.tables_req[0].buckets_req[0];
    assert_eq!((sent.routing_bucket_count, sent.fetch_offset, sent.partition_id), (Some(2), 5, Some(3)));
}

#[tokio::test]
async fn a_wrong_bucket_count_is_stale_and_names_the_bucket() {
    let (source, _server) = source(|_, _| fetched(vec![entry(0), refused(1, Code::INVALID_BUCKET_ROUTING)])).await;
    let error = source.fetch(request(5)).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Stale, Some(74)));
    assert!(error.to_string().contains("`demo.t`, table 1 partition 3 bucket 1"), "{error}");
}

#[tokio::test]
async fn an_offset_that_is_gone_names_both_ends_of_the_log() {
    let (source, _server) = source(|key, body| match key {
        ApiKey::FetchLog => fetched(vec![refused(0, Code::LOG_OFFSET_OUT_OF_RANGE), entry(1)]),
        _ => match read::<ListOffsetsRequest>(body).offset_type {
            0 => offsets([7, 7]),
            _ => offsets([70, 70]),
        },
    })
    .await;
    let error = source.fetch(request(5)).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Data, Some(19)));
    let text = error.chain();
    assert!(text.contains("bucket 0") && text.contains("offset `5`") && text.contains("from `7` to `70`"), "{text}");
}

/// The golden batches 200–205 and 206–210 as segments in `folder`, and what a server says of them.
fn golden_segments(folder: &std::path::Path) -> PbRemoteLogFetchInfo {
    let payload = include_bytes!("../../../fixtures/vectors/log-fetch-payload.bin");
    let mut walk = crate::fluss::record::batches(Bytes::from_static(payload));
    let batches: Vec<_> = walk.by_ref().map(|batch| batch.unwrap()).collect();
    let (first, second) = batches.split_at(2);
    let segments = [(first, "0b5c", 200, 206), (second, "7e1f", 206, 211)].map(|(batches, id, start, end)| {
        let bytes: Vec<u8> = batches.iter().flat_map(|batch| batch.bytes.to_vec()).collect();
        std::fs::create_dir(folder.join(id)).unwrap();
        std::fs::write(folder.join(format!("{id}/{start:020}.log")), &bytes).unwrap();
        PbRemoteLogSegment {
            remote_log_segment_id: id.into(),
            remote_log_start_offset: start,
            remote_log_end_offset: end,
            segment_size_in_bytes: bytes.len().try_into().unwrap(),
            max_timestamp: None,
        }
    });
    PbRemoteLogFetchInfo {
        remote_log_tablet_dir: format!("file://{}", folder.display()),
        remote_log_segments: segments.into(),
        first_start_pos: Some(0),
        ..Default::default()
    }
}

/// Bucket 0 has its records there, bucket 1 has none; schemas are asked for.
async fn remote_source(info: PbRemoteLogFetchInfo) -> (ClusterSource, FakeServer) {
    source(move |key, body| match key {
        ApiKey::FetchLog => fetched(vec![
            PbFetchLogRespForBucket { remote_log_fetch_info: Some(info.clone()), records: None, ..entry(0) },
            entry(1),
        ]),
        _ => {
            let schema_id = read::<GetTableSchemaRequest>(body).schema_id.unwrap();
            let schema_json = br#"{"version":1,"columns":[{"name":"id","data_type":{"type":"INTEGER","nullable":false},"id":0},
                {"name":"name","data_type":{"type":"STRING"},"id":1},
                {"name":"amount","data_type":{"type":"DECIMAL","precision":10,"scale":2},"id":2}],"highest_field_id":2}"#;
            GetTableSchemaResponse { schema_id, schema_json: Bytes::from_static(schema_json) }.into()
        }
    })
    .await
}

/// A table whose schema is none of those that the golden batches name.
fn other_table() -> TableInfo {
    let mut table = TableInfo::for_tests("demo.t", 2);
    table.schema = Arc::new(Schema { id: SchemaId(9), ..Schema::clone(&table.schema) });
    table
}

#[tokio::test]
async fn golden_segments_are_read_from_disk_in_ranges_of_any_size() {
    let folder = tempfile::tempdir().unwrap();
    let (source, _server) = remote_source(golden_segments(folder.path())).await;
    let answers = source.fetch(request(203)).await.unwrap();
    assert!(answers[1].remote.is_none() && answers[0].log.is_empty() && answers[0].high_watermark == 9);
    for bytes_max in [1, 100, 1 << 20] {
        let mut segments = answers[0].remote.clone().unwrap();
        let (mut from, mut offsets, mut reads) = (203, vec![], 0);
        while let RemoteRead::Slice(log) = segments.next(&source, &other_table(), bytes_max).await.unwrap() {
            reads += 1;
            let decoded = log.decode(from, 300).unwrap();
            offsets.extend(decoded.batches.iter().flat_map(|batch| batch.base_offset..batch.end_offset()));
            from = decoded.next_offset;
        }
        assert_eq!(offsets, [203, 204, 206, 207, 208, 209, 210], "205 is an empty batch");
        assert_eq!((from, reads), (211, if bytes_max == 1 << 20 { 2 } else { 3 }), "{bytes_max}");
    }
}

#[tokio::test]
async fn what_a_server_says_of_segments_is_checked_before_anything_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let good = golden_segments(folder.path());
    type Change = fn(&mut PbRemoteLogFetchInfo);
    let wrong: [(Change, Kind, &str); 8] = [
        (|info| info.remote_log_tablet_dir = "gs://bucket/log".into(), Kind::Unsupported, "`gs`"),
        (|info| info.remote_log_segments[0].segment_size_in_bytes = -1, Kind::Data, "size `-1`"),
        (|info| info.remote_log_segments[0].segment_size_in_bytes += 1, Kind::Data, "the file ends at byte"),
        (|info| info.remote_log_segments[0].segment_size_in_bytes -= 1, Kind::Data, "in a segment of"),
        (|info| info.first_start_pos = Some(-3), Kind::Data, "position `-3`"),
        (|info| info.first_start_pos = Some(1 << 30), Kind::Data, "ends at nothing"),
        (|info| info.remote_log_segments[0].remote_log_segment_id = "../x".into(), Kind::Data, "../x"),
        (|info| info.remote_log_segments[1].remote_log_end_offset = 210, Kind::Data, "ends at offset `211`"),
    ];
    for (change, kind, words) in wrong {
        let mut info = good.clone();
        change(&mut info);
        let (source, _server) = remote_source(info).await;
        let read = async {
            let mut segments = source.fetch(request(203)).await?.remove(0).remote.unwrap();
            while !matches!(segments.next(&source, &other_table(), 1).await?, RemoteRead::End) {}
            Ok(())
        };
        let error: Error = read.await.unwrap_err();
        let text = error.chain();
        assert!(error.kind() == kind && text.contains(words) && text.contains("bucket 0"), "{text}");
        assert_eq!(error.hint().is_some_and(|hint| hint.contains("local-segments")), kind == Kind::Unsupported, "{error:?}");
    }
    // What does not follow is left to the next question; what is gone is told.
    let mut info = good.clone();
    info.remote_log_segments[1].remote_log_start_offset = 207;
    std::fs::remove_dir_all(folder.path().join("7e1f")).unwrap();
    for (info, gone) in [(info, false), (good, true)] {
        let (source, _server) = remote_source(info).await;
        let mut segments = source.fetch(request(203)).await.unwrap().remove(0).remote.unwrap();
        assert!(matches!(segments.next(&source, &other_table(), 1 << 20).await.unwrap(), RemoteRead::Slice(_)));
        match segments.next(&source, &other_table(), 1 << 20).await.unwrap() {
            RemoteRead::Gone(file) => assert!(gone && file.ends_with("7e1f/00000000000000000206.log"), "{file}"),
            RemoteRead::End => assert!(!gone),
            RemoteRead::Slice(log) => panic!("{log:?}"),
        }
    }
}

#[tokio::test]
async fn a_missing_watermark_is_a_fault() {
    let (bare, _server) =
        source(|_, _| fetched(vec![PbFetchLogRespForBucket { high_watermark: None, ..entry(0) }, entry(1)])).await;
    assert_eq!(bare.fetch(request(5)).await.unwrap_err().kind(), Kind::Data);
}

#[tokio::test]
async fn a_bucket_left_out_of_the_answer_is_asked_for_again_and_then_given_up() {
    let (source, server) = source(|_, _| fetched(vec![entry(0)])).await;
    let error = source.fetch(request(5)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.chain().contains("left the bucket out"), "{}", error.chain());
    assert!(server.requests.load(Ordering::SeqCst) > 4);
}

#[tokio::test]
async fn schemas_that_batches_name_are_fetched_once() {
    let bytes = Bytes::from_static(include_bytes!("../../../fixtures/vectors/log-arrow-v0-empty.bin"));
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let id = LogSlice::schema_ids(&bytes).unwrap().into_iter().next().unwrap();
    let log = bytes.clone();
    let (source, _server) = source(move |key, _| match key {
        ApiKey::FetchLog => {
            let full = |id| PbFetchLogRespForBucket { records: Some(log.clone()), ..entry(id) };
            fetched(vec![full(0), full(1)])
        }
        _ => {
            count.fetch_add(1, Ordering::SeqCst);
            let schema_json =
                br#"{"version":1,"columns":[{"name":"a","data_type":{"type":"INTEGER"},"id":0}],"highest_field_id":0}"#;
            GetTableSchemaResponse { schema_id: id.0, schema_json: Bytes::from_static(schema_json) }.into()
        }
    })
    .await;
    let mut request = request(5);
    let mut other = Schema::clone(&request.table.schema);
    other.id = SchemaId(id.0 + 1);
    Arc::make_mut(&mut request.table).schema = Arc::new(other);
    for _ in 0..2 {
        let answers = source.fetch(request.clone()).await.unwrap();
        assert!(answers.iter().all(|answer| answer.log.len() == bytes.len()));
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_schema_that_the_servers_do_not_know_yet_is_waited_for_and_then_unavailable() {
    let bytes = Bytes::from_static(include_bytes!("../../../fixtures/vectors/log-arrow-v0-empty.bin"));
    let id = LogSlice::schema_ids(&bytes).unwrap().into_iter().next().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let (source, _server) = source(move |key, _| match key {
        ApiKey::FetchLog => {
            let full = |id| PbFetchLogRespForBucket { records: Some(bytes.clone()), ..entry(id) };
            fetched(vec![full(0), full(1)])
        }
        _ => {
            count.fetch_add(1, Ordering::SeqCst);
            Reply::Error(Code::SCHEMA_NOT_EXIST.error("no such schema"))
        }
    })
    .await;
    let mut request = request(5);
    let mut other = Schema::clone(&request.table.schema);
    other.id = SchemaId(id.0 + 1);
    Arc::make_mut(&mut request.table).schema = Arc::new(other);
    let error = source.fetch(request).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Unavailable, Some(9)), "{}", error.chain());
    assert!(error.chain().contains(&format!("schema `{id}` of table `demo.t`")), "{}", error.chain());
    assert!(asked.load(Ordering::SeqCst) > 1, "asked again");
}

#[tokio::test]
async fn offsets_come_in_bucket_order_and_a_partition_that_is_gone_has_none() {
    let (source, _server) = source(|_, body| {
        let request = read::<ListOffsetsRequest>(body);
        assert_eq!((request.routing_bucket_count, request.follower_server_id), (Some(2), -1));
        offsets([4, 5])
    })
    .await;
    let table = TableInfo::for_tests("demo.t", 2);
    let partition = |id| Partition { id: PartitionId(id), spec: vec![], bucket_count: Some(2) };
    assert_eq!(source.end_offsets(&table, Some(&partition(3)), LAYOUT).await.unwrap(), Some(vec![4, 5]));
    assert_eq!(source.start_offsets(&table, Some(&partition(4)), LAYOUT).await.unwrap(), None);
    assert_eq!(source.lanes(&table, &[bucket(0), bucket(1)]).await.unwrap(), [[bucket(0), bucket(1)]]);
}

#[tokio::test]
async fn a_heartbeat_carries_everything_at_once_and_tells_faults_per_table() {
    let (source, server) = source(|_, body| {
        let request = read::<LakeTieringHeartbeatRequest>(body);
        if request.tiering_tables.is_empty() {
            return Reply::Error(Code::UNKNOWN_SERVER_ERROR.error("not initialized yet"));
        }
        assert_eq!((request.force_finished_tables.as_slice(), request.request_table), (&[8][..], Some(true)));
        assert_eq!(request.finished_tables.len(), 2);
        let fenced = ErrorResponse { error_code: 50, error_message: Some("fenced\n\tat java".into()) };
        LakeTieringHeartbeatResponse {
            coordinator_epoch: 2,
            tiering_table: Some(PbLakeTieringTableInfo {
                table_id: 11,
                table_path: PbTablePath { database_name: "db".into(), table_name: "t".into() },
                tiering_epoch: 5,
            }),
            tiering_table_resp: vec![PbHeartbeatRespForTable { table_id: 7, error: None }],
            finished_table_resp: vec![PbHeartbeatRespForTable { table_id: 8, error: Some(fenced) }],
            failed_table_resp: vec![],
        }
        .into()
    })
    .await;
    let held = |id| Held { table: TableId(id), coordinator_epoch: CoordinatorEpoch(1), tiering_epoch: TieringEpoch(3) };
    let heartbeat = Heartbeat {
        tiering: vec![held(7)],
        finished: vec![Finished { held: held(8), forced: true }, Finished { held: held(9), forced: false }],
        failed: vec![],
        request_table: true,
    };
    let reply = source.heartbeat(heartbeat).await.unwrap();
    let assigned = reply.assigned.unwrap();
    assert_eq!((assigned.path, assigned.held.coordinator_epoch), (TablePath::new("db", "t"), CoordinatorEpoch(2)));
    assert_eq!(reply.tiering, [(TableId(7), None)]);
    assert_eq!(reply.finished, [(TableId(8), Some(HeartbeatFault { code: 50, message: "fenced".into() }))]);
    let before = server.requests.load(Ordering::SeqCst);
    assert_eq!(source.heartbeat(Heartbeat::default()).await.unwrap_err().kind(), Kind::Unavailable);
    assert_eq!(server.requests.load(Ordering::SeqCst), before + 1);
}

#[tokio::test]
async fn the_ledger_tells_empty_gone_and_unknown_apart() {
    for (code, state) in [(53, LedgerState::Empty), (7, LedgerState::TableGone)] {
        let (source, _server) = source(move |_, _| Reply::Error(Code(code).error("x"))).await;
        assert_eq!(source.latest(&TablePath::new("db", "t")).await.unwrap(), state);
    }
    let (unknown, _server) = source(|_, _| Reply::Error(Code(-1).error("file is gone"))).await;
    let state = unknown.latest(&TablePath::new("db", "t")).await.unwrap();
    assert!(matches!(state, LedgerState::Unknown { message } if message.contains("file is gone")));
    let (denied, _server) = source(|_, _| Reply::Error(Code(48).error("no"))).await;
    assert_eq!(denied.latest(&TablePath::new("db", "t")).await.unwrap_err().kind(), Kind::Invalid);
}

#[tokio::test]
async fn prepare_sends_the_complete_map_and_record_names_the_oldest_entry_to_keep() {
    let sent = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&sent);
    let (source, _server) = source(move |key, body| match key {
        ApiKey::PrepareLakeTableSnapshot => {
            let request = read::<PrepareLakeTableSnapshotRequest>(body);
            assert_eq!(request.ignore_previous_table_offsets, Some(true));
            assert_eq!(request.bucket_offsets[0].bucket_offsets[0].log_end_offset, Some(40));
            let entry = PbPrepareLakeTableRespForTable { lake_table_offsets_path: Some("file:/x".into()), ..Default::default() };
            PrepareLakeTableSnapshotResponse { prepare_lake_table_resp: vec![entry] }.into()
        }
        _ => {
            *keep.lock().unwrap() = Some(read::<CommitLakeTableSnapshotRequest>(body));
            let entry = PbCommitLakeTableSnapshotRespForTable { table_id: 1, ..Default::default() };
            CommitLakeTableSnapshotResponse { table_resp: vec![entry] }.into()
        }
    })
    .await;
    let (table, path) = (TableId(1), TablePath::new("demo", "t"));
    let key = BucketKey::from(bucket(0));
    let offsets = LakeOffsets([(key, 40)].into());
    let offsets_path = source.prepare(table, &path, &offsets).await.unwrap();
    assert_eq!(offsets_path, "file:/x");
    let max_timestamps = [(key, 1_000)].into();
    let snapshot = SnapshotId(12);
    source
        .record(LedgerRecord { table, path, snapshot, offsets_path, offsets, max_timestamps, earliest_to_keep: -1 })
        .await
        .unwrap();
    let sent = sent.lock().unwrap().take().unwrap();
    let metadata = &sent.lake_table_snapshot_metadata[0];
    assert_eq!(metadata.earliest_snapshot_id_to_keep, Some(-1));
    assert_eq!(metadata.readable_bucket_offsets_file_path.as_deref(), Some("file:/x"));
    assert_eq!(sent.tables_req[0].buckets_req[0].max_timestamp, Some(1_000));
}
