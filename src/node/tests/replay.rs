//! The recorded frames of official clients, replayed against the node (S appendix A).

use std::collections::BTreeMap;

use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::fluss::frame::{ResponseCodec, ResponseFrame};
use crate::fluss::record::{Values, batches};

fn entries() -> Vec<Value> {
    let text = include_str!("../../../fixtures/vectors/fluss-server-frames.json");
    serde_json::from_str::<Value>(text).unwrap()["entries"].as_array().unwrap().clone()
}

fn bytes(entry: &Value, key: &str) -> Vec<u8> {
    let hex = entry[key].as_str().unwrap();
    hex.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn decoded(mut bytes: bytes::BytesMut) -> ResponseFrame {
    tokio_util::codec::Decoder::decode(&mut ResponseCodec::default(), &mut bytes).unwrap().unwrap()
}

async fn exchange(stream: &mut TcpStream, request: &[u8]) -> ResponseFrame {
    stream.write_all(request).await.unwrap();
    let length = stream.read_u32().await.unwrap();
    let mut answer = length.to_be_bytes().to_vec();
    answer.resize(4 + length as usize, 0);
    stream.read_exact(&mut answer[4..]).await.unwrap();
    decoded(answer.as_slice().into())
}

/// Compares what must agree: ids, times, ports and texts may differ.
fn compare(api: &str, note: &str, expected: &[u8], found: &[u8]) {
    fn both<M: Message + Default>(expected: &[u8], found: &[u8]) -> (M, M) {
        (M::decode(expected).unwrap(), M::decode(found).unwrap())
    }
    let label = format!("{api} {note}");
    let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
    match api.split('(').next().unwrap() {
        "LIST_DATABASES" => {
            let (expected, found) = both::<ListDatabasesResponse>(expected, found);
            assert_eq!(expected, found, "{label}");
        }
        "GET_DATABASE_INFO" => {
            let (expected, found) = both::<GetDatabaseInfoResponse>(expected, found);
            assert_eq!(json(&expected.database_json), json(&found.database_json), "{label}");
        }
        "GET_TABLE_INFO" => {
            let (expected, found) = both::<GetTableInfoResponse>(expected, found);
            assert_eq!((expected.schema_id, json(&expected.table_json)), (found.schema_id, json(&found.table_json)), "{label}");
        }
        "GET_TABLE_SCHEMA" => {
            let (expected, found) = both::<GetTableSchemaResponse>(expected, found);
            assert_eq!((expected.schema_id, json(&expected.schema_json)), (found.schema_id, json(&found.schema_json)), "{label}");
        }
        "GET_METADATA" => {
            let (expected, found) = both::<MetadataResponse>(expected, found);
            assert_eq!(expected.table_metadata.len(), found.table_metadata.len(), "{label}");
            for (expected, found) in expected.table_metadata.iter().zip(&found.table_metadata) {
                assert_eq!(expected.bucket_metadata.len(), found.bucket_metadata.len(), "{label}");
                assert_eq!(json(&expected.table_json), json(&found.table_json), "{label}");
            }
        }
        "PRODUCE_LOG" => {
            let (mut expected, mut found) = both::<ProduceLogResponse>(expected, found);
            for answer in [&mut expected, &mut found] {
                answer.buckets_resp.sort_by_key(|entry| (entry.partition_id, entry.bucket_id));
            }
            assert_eq!(expected, found, "{label}");
        }
        "PUT_KV" => {
            let (expected, found) = both::<PutKvResponse>(expected, found);
            if note.contains("target columns") {
                assert_eq!(found.buckets_resp[0].error_code, Some(35), "{label}");
            } else {
                assert_eq!(expected, found, "{label}");
            }
        }
        "LOOKUP" => {
            let (expected, found) = both::<LookupResponse>(expected, found);
            // The row that was found had been updated in part.
            let there = |answer: &LookupResponse| {
                let values = answer.buckets_resp.iter().flat_map(|bucket| &bucket.values);
                values.map(|value| value.values.is_some()).collect::<Vec<_>>()
            };
            assert_eq!(there(&expected), there(&found), "{label}");
        }
        "LIST_OFFSETS" => {
            let (expected, found) = both::<ListOffsetsResponse>(expected, found);
            let plain = |entry: &PbListOffsetsRespForBucket| (entry.bucket_id, entry.error_code, entry.offset);
            let sorted = |entries: &[PbListOffsetsRespForBucket]| {
                entries.iter().map(|entry| (entry.bucket_id, plain(entry))).collect::<BTreeMap<_, _>>()
            };
            assert_eq!(sorted(&expected.buckets_resp), sorted(&found.buckets_resp), "{label}");
        }
        "GET_TABLE_STATS" => {
            let (expected, found) = both::<GetTableStatsResponse>(expected, found);
            assert_eq!(expected, found, "{label}");
        }
        "LIST_PARTITION_INFOS" => {
            let (expected, found) = both::<ListPartitionInfosResponse>(expected, found);
            let specs = |answer: &ListPartitionInfosResponse| {
                answer.partitions_info.iter().map(|info| info.partition_spec.clone()).collect::<Vec<_>>()
            };
            assert_eq!(specs(&expected), specs(&found), "{label}");
            assert!(found.partitions_info.iter().all(|info| info.bucket_count.is_some()), "{label}");
        }
        "FETCH_LOG" => {
            let (expected, found) = both::<FetchLogResponse>(expected, found);
            let mut sorted = [expected, found].map(|answer| {
                let entries = answer.tables_resp.into_iter().flat_map(|table| table.buckets_resp);
                entries.map(|entry| (entry.bucket_id, entry)).collect::<BTreeMap<_, _>>()
            });
            let [expected, found] = &mut sorted;
            assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>(), "{label}");
            for (expected, found) in expected.values().zip(found.values()) {
                if note.contains("changelog") {
                    // Java's and our Arrow writer differ in their bytes; the last batch is of an update in part.
                    let records = |entry: &PbFetchLogRespForBucket| -> Vec<(i64, i32, i32, i64, i32)> {
                        let header = |batch: Result<crate::fluss::record::RawBatch>| {
                            let header = batch.unwrap().header;
                            let id = (header.writer_id, header.batch_sequence);
                            (header.base_offset, header.record_count, header.last_offset_delta, id.0, id.1)
                        };
                        entry.records.clone().map(|records| batches(records).map(header).take(3).collect()).unwrap_or_default()
                    };
                    assert_eq!((records(expected).len(), records(expected)), (3, records(found)), "{label}");
                    continue;
                }
                let plain = |entry: &PbFetchLogRespForBucket| {
                    (entry.error_code, entry.high_watermark, entry.log_start_offset, entry.partition_id)
                };
                assert_eq!(plain(expected), plain(found), "{label}");
                let records = |entry: &PbFetchLogRespForBucket| -> Vec<(i64, i32, u32, usize)> {
                    let header = |batch: Result<crate::fluss::record::RawBatch>| {
                        let header = batch.unwrap().header;
                        (header.base_offset, header.record_count, header.crc, header.total_bytes)
                    };
                    entry.records.clone().map(|records| batches(records).map(header).collect()).unwrap_or_default()
                };
                assert_eq!(records(expected), records(found), "{label}");
            }
        }
        "LIMIT_SCAN" => {
            let (expected, found) = both::<LimitScanResponse>(expected, found);
            let count = |answer: LimitScanResponse| {
                let records = answer.records.unwrap();
                let is_log = answer.is_log_table.unwrap();
                // One of the rows was put by an update in part.
                (is_log, if is_log { batches(records).count() } else { Values::parse(&records).unwrap().take(1).count() })
            };
            assert_eq!(count(expected), count(found), "{label}");
        }
        "GET_FILESYSTEM_SECURITY_TOKEN" | "CREATE_DATABASE" | "CREATE_TABLE" | "CREATE_PARTITION" | "ALTER_TABLE" => {
            assert_eq!(expected, found, "{label}");
        }
        "API_VERSIONS" | "INIT_WRITER" => {}
        other => panic!("{other} is not compared"),
    }
}

fn recorded(table: &str) -> PbTablePath {
    PbTablePath { database_name: "capdb".into(), table_name: table.into() }
}

impl Stage {
    /// A table of columns `a` and `p`.
    async fn make(&self, table: &str, partition_keys: &[&str]) {
        let json = json!({"version":1,"schema":{"version":1,"columns":[
            {"name":"a","data_type":{"type":"INTEGER"},"id":0},{"name":"p","data_type":{"type":"STRING"},"id":1}],"highest_field_id":1},
            "partition_key":partition_keys,"bucket_key":[],"bucket_count":1,"properties":{},"custom_properties":{}});
        let request =
            CreateTableRequest { table_path: recorded(table), table_json: json.to_string().into(), ignore_if_exists: false };
        self.client.call(&request).await.unwrap();
    }
}

#[tokio::test]
async fn recorded_requests_of_official_clients_are_answered_as_the_real_server_did() {
    let stage = Stage::new().await;
    let mut stream = TcpStream::connect(stage.node.address()).await.unwrap();
    let mut compared = 0;
    for entry in entries().into_iter().filter(|entry| entry["client"].as_str().unwrap().contains("Java")) {
        let (api, note) = (entry["api"].as_str().unwrap(), entry["note"].as_str().unwrap());
        let (request, expected) = (bytes(&entry, "request"), decoded(bytes(&entry, "response").as_slice().into()));
        // Of tables whose making was not recorded, or of what the real server does and this one refuses.
        let left_out =
            ["insert_if_not_exists", "no snapshot yet"].iter().any(|word| note.contains(word)) || api.starts_with("PREFIX_LOOKUP");
        // The recording leaves out how the partitioned table and its second partition were made.
        if note.contains("partition does not exist") {
            stage.make("pt", &["p"]).await;
        }
        if note.contains("two partitions") {
            let spec = PbPartitionSpec { partition_key_values: vec![PbKeyValue { key: "p".into(), value: "y".into() }] };
            let request = CreatePartitionRequest { table_path: recorded("pt"), partition_spec: spec, ignore_if_not_exists: false };
            stage.client.call(&request).await.unwrap();
        }
        if note.contains("error 38") {
            // Its moment in the future has passed.
            continue;
        }
        let found = exchange(&mut stream, &request).await;
        let label = format!("{api} {note}");
        if left_out {
            assert!(!matches!(found, ResponseFrame::Failure(_)), "{label}: answered, and not with a closed connection");
            continue;
        }
        match (expected, found) {
            (ResponseFrame::Success { body: expected, .. }, ResponseFrame::Success { body: found, .. }) => {
                compare(api, note, &expected, &found);
            }
            (ResponseFrame::Error { error: expected, .. }, ResponseFrame::Error { error: found, .. }) => {
                assert_eq!(expected.error_code, found.error_code, "{label}");
            }
            (expected, found) => panic!("{label}: {expected:?}, but {found:?}"),
        }
        compared += 1;
    }
    assert!(compared > 25, "{compared}");
}
