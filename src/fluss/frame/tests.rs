use serde_json::Value;

use super::*;
use crate::fluss::api::{ApiKey, Request};
use crate::fluss::proto::*;

fn vectors(text: &str) -> Vec<Value> {
    let value: Value = serde_json::from_str(text).unwrap();
    value["entries"].as_array().unwrap().clone()
}

fn rpc_frames() -> Vec<Value> {
    vectors(include_str!("../../../fixtures/vectors/fluss-rpc-frames.json"))
}

fn server_frames() -> Vec<Value> {
    vectors(include_str!("../../../fixtures/vectors/fluss-server-frames.json"))
}

fn bytes(entry: &Value, key: &str) -> BytesMut {
    let hex = entry[key].as_str().unwrap();
    hex.as_bytes().chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn written<C: Encoder<F>, F>(mut codec: C, frame: F) -> BytesMut
where
    C::Error: std::fmt::Debug,
{
    let mut target = BytesMut::new();
    codec.encode(frame, &mut target).unwrap();
    target
}

/// What `key`'s messages look like when read and written again.
fn again(key: ApiKey, request: bool, body: &Bytes) -> Vec<u8> {
    fn both<R: Request + Default>(request: bool, body: &Bytes) -> Vec<u8> {
        if request {
            R::decode(body.clone()).unwrap().encode_to_vec()
        } else {
            R::Response::decode(body.clone()).unwrap().encode_to_vec()
        }
    }
    match key {
        ApiKey::ApiVersions => both::<ApiVersionsRequest>(request, body),
        ApiKey::Authenticate => both::<AuthenticateRequest>(request, body),
        ApiKey::CreateDatabase => both::<CreateDatabaseRequest>(request, body),
        ApiKey::DropDatabase => both::<DropDatabaseRequest>(request, body),
        ApiKey::ListDatabases => both::<ListDatabasesRequest>(request, body),
        ApiKey::DatabaseExists => both::<DatabaseExistsRequest>(request, body),
        ApiKey::GetDatabaseInfo => both::<GetDatabaseInfoRequest>(request, body),
        ApiKey::CreateTable => both::<CreateTableRequest>(request, body),
        ApiKey::DropTable => both::<DropTableRequest>(request, body),
        ApiKey::GetTableInfo => both::<GetTableInfoRequest>(request, body),
        ApiKey::ListTables => both::<ListTablesRequest>(request, body),
        ApiKey::TableExists => both::<TableExistsRequest>(request, body),
        ApiKey::GetTableSchema => both::<GetTableSchemaRequest>(request, body),
        ApiKey::AlterTable => both::<AlterTableRequest>(request, body),
        ApiKey::ListPartitionInfos => both::<ListPartitionInfosRequest>(request, body),
        ApiKey::CreatePartition => both::<CreatePartitionRequest>(request, body),
        ApiKey::DropPartition => both::<DropPartitionRequest>(request, body),
        ApiKey::GetMetadata => both::<MetadataRequest>(request, body),
        ApiKey::InitWriter => both::<InitWriterRequest>(request, body),
        ApiKey::ProduceLog => both::<ProduceLogRequest>(request, body),
        ApiKey::PutKv => both::<PutKvRequest>(request, body),
        ApiKey::Lookup => both::<LookupRequest>(request, body),
        ApiKey::PrefixLookup => both::<PrefixLookupRequest>(request, body),
        ApiKey::ScanKv => both::<ScanKvRequest>(request, body),
        ApiKey::FetchLog => both::<FetchLogRequest>(request, body),
        ApiKey::ListOffsets => both::<ListOffsetsRequest>(request, body),
        ApiKey::LimitScan => both::<LimitScanRequest>(request, body),
        ApiKey::GetTableStats => both::<GetTableStatsRequest>(request, body),
        ApiKey::GetLatestKvSnapshots => both::<GetLatestKvSnapshotsRequest>(request, body),
        ApiKey::GetFileSystemSecurityToken => both::<GetFileSystemSecurityTokenRequest>(request, body),
        ApiKey::LakeTieringHeartbeat => both::<LakeTieringHeartbeatRequest>(request, body),
        ApiKey::PrepareLakeTableSnapshot => both::<PrepareLakeTableSnapshotRequest>(request, body),
        ApiKey::CommitLakeTableSnapshot => both::<CommitLakeTableSnapshotRequest>(request, body),
        ApiKey::GetLakeSnapshot => both::<GetLakeSnapshotRequest>(request, body),
        _ => panic!("no vectors are known for {key}"),
    }
}

/// Drops fields `list` without content at the top level and one level down: Java writes empty packed lists, prost does not.
fn without_empty_lists(bytes: &[u8], list: u32, depth: usize) -> Vec<u8> {
    let mut rest = bytes;
    let mut out = Vec::new();
    while !rest.is_empty() {
        let before = rest;
        let (number, wire) = prost::encoding::decode_key(&mut rest).unwrap();
        match wire {
            prost::encoding::WireType::LengthDelimited => {
                let length = usize::try_from(prost::encoding::decode_varint(&mut rest).unwrap()).unwrap();
                let (content, after) = rest.split_at(length);
                rest = after;
                let content = if number == list && depth == 0 && length > 0 && content[0] == 0x08 {
                    without_empty_lists(content, list, 1)
                } else {
                    content.to_vec()
                };
                if content.is_empty() && number == list {
                    continue;
                }
                prost::encoding::encode_key(number, wire, &mut out);
                prost::encoding::encode_varint(content.len() as u64, &mut out);
                out.extend(content);
            }
            prost::encoding::WireType::Varint => {
                prost::encoding::decode_varint(&mut rest).unwrap();
                out.extend(&before[..before.len() - rest.len()]);
            }
            other => panic!("{other:?}"),
        }
    }
    out
}

fn check_request(mut raw: BytesMut, label: &str) -> Option<ApiKey> {
    let original = raw.clone();
    let frame = RequestCodec::default().decode(&mut raw).unwrap().unwrap();
    assert!(raw.is_empty(), "{label}");
    let key = ApiKey::from_number(frame.key)?;
    let body = again(key, true, &frame.body);
    let expected = match key {
        ApiKey::GetMetadata | ApiKey::FetchLog | ApiKey::GetTableStats => without_empty_lists(&frame.body, 3, 0),
        ApiKey::PutKv => without_empty_lists(&frame.body, 4, 0),
        _ => frame.body.to_vec(),
    };
    assert_eq!(body, expected, "{label}");
    assert_eq!(written(RequestCodec::default(), frame), original, "{label}");
    Some(key)
}

#[test]
fn recorded_requests_and_answers_survive_reading_and_writing() {
    let mut seen = 0;
    for entry in server_frames() {
        let label = format!("{} {}", entry["api"], entry["note"]);
        let Some(key) = check_request(bytes(&entry, "request"), &label) else { continue };
        let mut raw = bytes(&entry, "response");
        let original = raw.clone();
        let frame = ResponseCodec::default().decode(&mut raw).unwrap().unwrap();
        if let ResponseFrame::Success { body, .. } = &frame {
            assert_eq!(again(key, false, body), body.to_vec(), "{label}");
        }
        assert_eq!(written(ResponseCodec::default(), frame), original, "{label}");
        seen += 1;
    }
    assert!(seen > 42, "{seen}");
}

#[test]
fn requests_of_the_java_client_survive_reading_and_writing() {
    let entries = rpc_frames();
    let requests: Vec<&Value> = entries.iter().filter(|entry| entry["kind"] == "request").collect();
    let seen = requests.iter().filter_map(|entry| check_request(bytes(entry, "frame"), &entry["fields"].to_string())).count();
    assert!(seen >= 14, "{seen}");
}

#[test]
fn our_requests_are_the_java_clients() {
    let frame = |fields: &str| {
        let entries = rpc_frames();
        let entry = entries.iter().find(|entry| entry["fields"].as_str().is_some_and(|text| text.starts_with(fields))).unwrap();
        RequestCodec::default().decode(&mut bytes(entry, "frame")).unwrap().unwrap()
    };
    let alter = AlterTableRequest {
        table_path: PbTablePath { database_name: "db".into(), table_name: "t".into() },
        modify_bucket_count: Some(PbModifyBucketCount { new_bucket_count: 8 }),
        ..Default::default()
    };
    let expected = frame("db.t, bucket count 8");
    assert_eq!((expected.version, expected.body.to_vec()), (1, alter.encode_to_vec()));
    let offsets = ListOffsetsRequest {
        follower_server_id: -1,
        offset_type: 1,
        table_id: 7,
        partition_id: Some(3),
        bucket_id: vec![0, 1, 2, 3],
        start_timestamp: None,
        routing_bucket_count: Some(4),
    };
    assert_eq!(frame("follower -1, latest").body.to_vec(), offsets.encode_to_vec());
}

#[test]
fn answers_of_the_java_server_are_read() {
    for entry in rpc_frames().iter().filter(|entry| entry["kind"] == "body") {
        let body = bytes(entry, "bytes").freeze();
        let written = match entry["message"].as_str().unwrap() {
            "ErrorResponse" => ErrorResponse::decode(body.clone()).unwrap().encode_to_vec(),
            "ListPartitionInfosResponse" => again(ApiKey::ListPartitionInfos, false, &body),
            "GetTableInfoResponse" => again(ApiKey::GetTableInfo, false, &body),
            "MetadataResponse" => again(ApiKey::GetMetadata, false, &body),
            "LakeTieringHeartbeatResponse" => again(ApiKey::LakeTieringHeartbeat, false, &body),
            _ => continue,
        };
        assert_eq!(written, body.to_vec(), "{entry}");
    }
}

#[test]
fn error_and_failure_frames_of_java_are_read() {
    let entries = rpc_frames();
    let read = |kind: &str| {
        let entry = entries.iter().find(|entry| entry["kind"] == kind).unwrap();
        ResponseCodec::default().decode(&mut bytes(entry, "frame")).unwrap().unwrap()
    };
    let stale = ErrorResponse { error_code: 74, error_message: Some("stale".into()) };
    assert_eq!(read("error response"), ResponseFrame::Error { id: 7, error: stale });
    assert_eq!(
        read("server failure"),
        ResponseFrame::Failure(ErrorResponse { error_code: -1, error_message: Some("boom".into()) })
    );
}

#[test]
fn numbers_are_read_packed_unpacked_and_empty() {
    let base = ListOffsetsRequest { follower_server_id: -1, offset_type: 1, table_id: 7, ..Default::default() };
    let mut unpacked = base.encode_to_vec();
    unpacked.extend([0x28, 1, 0x28, 2]);
    assert_eq!(ListOffsetsRequest::decode(&unpacked[..]).unwrap().bucket_id, [1, 2]);
    let mut empty = base.encode_to_vec();
    empty.extend([0x2a, 0]);
    assert_eq!(ListOffsetsRequest::decode(&empty[..]).unwrap(), base);
}

#[test]
fn a_frame_is_read_only_when_it_is_there_whole() {
    let whole = written(ResponseCodec::default(), ResponseFrame::Success { id: 5, body: Bytes::from_static(b"abc") });
    let mut source = BytesMut::new();
    let mut codec = ResponseCodec::default();
    for byte in &whole[..whole.len() - 1] {
        source.put_u8(*byte);
        assert_eq!(codec.decode(&mut source).unwrap(), None);
    }
    source.put_u8(whole[whole.len() - 1]);
    source.put_u8(0);
    assert_eq!(codec.decode(&mut source).unwrap(), Some(ResponseFrame::Success { id: 5, body: Bytes::from_static(b"abc") }));
    assert_eq!(source.len(), 1);
}

#[test]
fn wrong_lengths_and_types_are_errors_before_anything_is_allocated() {
    for head in [-1, 0, i32::MAX] {
        let mut source = BytesMut::from(&i32::to_be_bytes(head)[..]);
        assert!(matches!(ResponseCodec::default().decode(&mut source), Err(FrameError::Length { .. })), "{head}");
        assert!(source.capacity() < 1024);
    }
    for head in [-1, 0, 7, 104_857_597] {
        let mut source = BytesMut::from(&i32::to_be_bytes(head)[..]);
        assert!(matches!(RequestCodec::default().decode(&mut source), Err(FrameError::Length { .. })), "{head}");
    }
    let mut source = BytesMut::from(&b"\0\0\0\x05\x03\0\0\0\0"[..]);
    assert!(matches!(ResponseCodec::default().decode(&mut source), Err(FrameError::Type(3))));
    let mut source = BytesMut::from(&b"\0\0\0\x03\0\0\0"[..]);
    assert!(matches!(ResponseCodec::default().decode(&mut source), Err(FrameError::Length { .. })));
    let mut source = BytesMut::from(&b"HTTP/1.1 400 Bad Request"[..]);
    assert!(ResponseCodec::default().decode(&mut source).is_err());
    let mut target = BytesMut::new();
    let large = ResponseFrame::Success { id: 0, body: Bytes::from_static(&[0; 100]) };
    assert!(ResponseCodec { bytes_max: 50 }.encode(large, &mut target).is_err());
    assert!(target.is_empty());
}

#[test]
fn a_failure_frame_has_no_id() {
    let error = ErrorResponse { error_code: -1, error_message: Some("x".into()) };
    let mut raw = written(ResponseCodec::default(), ResponseFrame::Failure(error.clone()));
    assert_eq!(raw[4], 2);
    assert_eq!(raw.len(), 4 + 1 + error.encoded_len());
    assert_eq!(ResponseCodec::default().decode(&mut raw).unwrap(), Some(ResponseFrame::Failure(error)));
}

/// An answer is read into one buffer, and all records in it are parts of that: nothing is copied between socket and decoder.
#[tokio::test]
async fn an_answer_is_one_buffer_with_all_its_records() {
    let records = |bucket: i32| Bytes::from(vec![u8::try_from(bucket).unwrap(); 300_000]);
    let entry = |bucket_id| PbFetchLogRespForBucket { bucket_id, records: Some(records(bucket_id)), ..Default::default() };
    let answer =
        FetchLogResponse { tables_resp: vec![PbFetchLogRespForTable { table_id: 1, buckets_resp: (0..4).map(entry).collect() }] };
    let sent = [1, 2].map(|id| written(ResponseCodec::default(), ResponseFrame::success(id, &answer)));
    // In pieces, as a socket gives them, two answers without a seam.
    let (mut server, client) = tokio::io::duplex(10_007);
    tokio::spawn(async move { tokio::io::AsyncWriteExt::write_all(&mut server, &sent.concat()).await });
    let mut frames = tokio_util::codec::FramedRead::new(client, ResponseCodec::default());
    let mut count = 0;
    while let Some(frame) = futures::StreamExt::next(&mut frames).await {
        let ResponseFrame::Success { body, .. } = frame.unwrap() else { panic!("no answer") };
        let frame = body.as_ptr_range();
        let found = FetchLogResponse::decode(body).unwrap();
        for entry in &found.tables_resp[0].buckets_resp {
            let place = entry.records.as_ref().unwrap().as_ptr_range();
            assert!(frame.contains(&place.start) && place.end <= frame.end, "records were copied");
        }
        assert_eq!(found, answer);
        count += 1;
    }
    assert_eq!(count, 2);
}

#[test]
fn what_is_announced_is_believed_only_up_to_a_bound_until_bytes_come() {
    let announced = i32::try_from(CLIENT_FRAME_BYTES_MAX).unwrap().to_be_bytes();
    let mut buffer = BytesMut::from(&announced[..]);
    assert!(ResponseCodec::default().decode(&mut buffer).unwrap().is_none());
    assert!(buffer.capacity() <= BELIEVED + 64, "{}", buffer.capacity());
    let announced = i32::try_from(SERVER_FRAME_BYTES_MAX).unwrap().to_be_bytes();
    let mut buffer = BytesMut::from(&announced[..]);
    for _ in 0..4 {
        assert!(RequestCodec::default().decode(&mut buffer).unwrap().is_none());
        let (room, there) = (buffer.capacity(), buffer.len());
        assert!(room <= BELIEVED.max(there * 8), "{room} for {there}");
        buffer.resize(room.max(there + 1), 0);
    }
}

#[test]
fn a_large_frame_that_is_done_with_leaves_no_memory_to_its_connection() {
    let mut buffer = written(RequestCodec::default(), RequestFrame { key: 1, version: 0, id: 7, body: vec![7; 1 << 20].into() });
    buffer.extend_from_slice(&[0, 0, 1]);
    let frame = RequestCodec::default().decode(&mut buffer).unwrap().unwrap();
    assert_eq!((frame.id, frame.body.len(), &buffer[..]), (7, 1 << 20, &[0, 0, 1][..]));
    drop(frame);
    assert!(!buffer.try_reclaim(512 << 10), "what is behind the frame keeps all of it");
}

#[test]
fn answers_on_the_wire_are_the_codecs_without_a_copy_of_the_body() {
    let body = Bytes::from(vec![7; 1000]);
    let error = ErrorResponse { error_code: 7, error_message: Some("gone".into()) };
    for frame in [
        ResponseFrame::Success { id: 5, body: body.clone() },
        ResponseFrame::Error { id: 6, error: error.clone() },
        ResponseFrame::Failure(error),
    ] {
        let (head, rest) = frame.clone().into_wire().unwrap();
        assert_eq!([head, rest.clone()].concat(), written(ResponseCodec::default(), frame).to_vec());
        assert!(rest.is_empty() || rest.as_ptr() == body.as_ptr());
    }
}
