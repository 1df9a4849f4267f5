use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::log::tests::batch;
use super::*;
use crate::error::Kind;
use crate::fluss::connection::{Connection, ConnectionOptions};
use crate::fluss::proto::*;

mod alter;
mod checklist;
mod clients;
mod interleaved;
mod keyed;
mod lake;
mod replay;

/// A node in a folder of its own and a connection to it.
struct Stage {
    folder: tempfile::TempDir,
    node: Node,
    client: Connection,
    runtime: Runtime,
}

impl Stage {
    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut NodeOptions)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut options = NodeOptions::new(folder.path());
        change(&mut options);
        let runtime = Runtime::system(1, 64 << 20).unwrap();
        let (node, client) = started(options, &runtime).await;
        Self { folder, node, client, runtime }
    }

    /// Ends the node, well or as a crash would, and starts it again.
    async fn restarted(self, well: bool) -> Self {
        self.restarted_after(well, |_| {}).await
    }

    /// Ends the node, lets `act` have its folder, and starts it again.
    async fn restarted_after(self, well: bool, act: impl FnOnce(&std::path::Path)) -> Self {
        let Self { folder, node, client, runtime } = self;
        drop(client);
        let tasks = node.tasks.clone();
        if well {
            node.stop().await;
        } else {
            drop(node);
            tasks.close();
            tasks.wait().await;
        }
        act(folder.path());
        let (node, client) = started(NodeOptions::new(folder.path()), &runtime).await;
        Self { folder, node, client, runtime }
    }

    /// Sends a request as bytes: code (0 = done) and text.
    async fn ask(&self, key: i16, version: i16, body: &[u8]) -> (i32, String) {
        let mut stream = TcpStream::connect(self.node.address()).await.unwrap();
        let mut frame = Vec::new();
        frame.extend(i32::try_from(8 + body.len()).unwrap().to_be_bytes());
        frame.extend(key.to_be_bytes());
        frame.extend(version.to_be_bytes());
        frame.extend(77_i32.to_be_bytes());
        frame.extend(body);
        stream.write_all(&frame).await.unwrap();
        let length = stream.read_i32().await.unwrap();
        let mut answer = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer[1..5], 77_i32.to_be_bytes());
        match answer[0] {
            0 => (0, String::new()),
            _ => {
                let error = <ErrorResponse as Message>::decode(&answer[5..]).unwrap();
                (error.error_code, error.error_message.unwrap_or_default())
            }
        }
    }

    async fn connect(&self) -> Connection {
        Connection::connect(&self.node.address().to_string(), &ConnectionOptions::default(), &self.runtime).await.unwrap()
    }

    async fn create(&self, table: &str, json: Value) -> i64 {
        let request = CreateTableRequest { table_path: path(table), table_json: json.to_string().into(), ignore_if_exists: false };
        self.client.call(&request).await.unwrap();
        self.info(table).await.table_id
    }

    async fn info(&self, table: &str) -> GetTableInfoResponse {
        self.client.call(&GetTableInfoRequest { table_path: path(table) }).await.unwrap()
    }

    async fn add_partition(&self, table: &str, day: &str) -> PbPartitionInfo {
        let request = CreatePartitionRequest { table_path: path(table), partition_spec: spec(day), ignore_if_not_exists: false };
        self.client.call(&request).await.unwrap();
        let found = self.partitions(table).await;
        found.into_iter().find(|found| found.partition_spec.partition_key_values[0].value == day).unwrap()
    }

    async fn partitions(&self, table: &str) -> Vec<PbPartitionInfo> {
        let request = ListPartitionInfosRequest { table_path: path(table), ..Default::default() };
        self.client.call(&request).await.unwrap().partitions_info
    }

    /// Option `bucket` of the newest lake schema, and its column names.
    fn lake_schema(&self, table: &str) -> (String, Vec<String>) {
        let folder = std::path::Path::new(self.node.warehouse()).join(format!("fluss.db/{table}/schema"));
        let newest = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
        let json: Value = serde_json::from_slice(&std::fs::read(newest).unwrap()).unwrap();
        let names = json["fields"].as_array().unwrap().iter().map(|field| field["name"].as_str().unwrap().to_owned());
        (json["options"]["bucket"].as_str().unwrap().to_owned(), names.collect())
    }

    async fn rescale(&self, table: &str, count: i32) -> Result<()> {
        let modify_bucket_count = Some(PbModifyBucketCount { new_bucket_count: count });
        let request = AlterTableRequest { table_path: path(table), modify_bucket_count, ..Default::default() };
        self.client.call(&request).await.map(|_| ())
    }

    /// Error code (0 = none) and base offset.
    async fn produce(&self, table: i64, bucket: PbProduceLogReqForBucket) -> (i32, Option<i64>) {
        let request = ProduceLogRequest { acks: -1, table_id: table, timeout_ms: 1000, buckets_req: vec![bucket] };
        let entry = self.client.call(&request).await.unwrap().buckets_resp.remove(0);
        assert_ne!(entry.error_code, Some(0), "presence means failure");
        (entry.error_code.unwrap_or(0), entry.base_offset)
    }

    async fn fetch(&self, table: i64, bucket: PbFetchLogReqForBucket, wait_ms: i32) -> PbFetchLogRespForBucket {
        let tables_req = vec![PbFetchLogReqForTable { table_id: table, buckets_req: vec![bucket], ..Default::default() }];
        let request = FetchLogRequest {
            follower_server_id: -1,
            max_bytes: 16 << 20,
            tables_req,
            max_wait_ms: Some(wait_ms),
            min_bytes: Some(1),
            read_preference: None,
        };
        self.client.call(&request).await.unwrap().tables_resp.remove(0).buckets_resp.remove(0)
    }

    async fn latest_offset(&self, table: i64, bucket: i32) -> i64 {
        let request = ListOffsetsRequest {
            follower_server_id: -1,
            offset_type: 1,
            table_id: table,
            bucket_id: vec![bucket],
            ..Default::default()
        };
        self.client.call(&request).await.unwrap().buckets_resp.remove(0).offset.unwrap()
    }
}

async fn started(options: NodeOptions, runtime: &Runtime) -> (Node, Connection) {
    let node = Node::start(options, runtime.clone()).await.unwrap();
    let client = Connection::connect(&node.address().to_string(), &ConnectionOptions::default(), runtime).await.unwrap();
    (node, client)
}

fn path(table: &str) -> PbTablePath {
    PbTablePath { database_name: "fluss".into(), table_name: table.into() }
}

fn spec(day: &str) -> PbPartitionSpec {
    PbPartitionSpec { partition_key_values: vec![PbKeyValue { key: "day".into(), value: day.into() }] }
}

/// Two columns, by day if `partitioned`, keyed by id, `count` buckets.
fn table(partitioned: bool, count: i32) -> Value {
    json!({"version":1,
        "schema":{"version":1,"columns":[
            {"name":"id","data_type":{"type":"BIGINT"},"id":0},
            {"name":"day","data_type":{"type":"STRING"},"id":1}],"highest_field_id":1},
        "partition_key": if partitioned { json!(["day"]) } else { json!([]) },
        "bucket_key":["id"],"bucket_count":count,"properties":{},"custom_properties":{}})
}

fn records(writer: i64, sequence: i32, rows: i32) -> PbProduceLogReqForBucket {
    PbProduceLogReqForBucket { records: batch(writer, sequence, rows, 40).bytes, ..Default::default() }
}

fn from(offset: i64) -> PbFetchLogReqForBucket {
    PbFetchLogReqForBucket { fetch_offset: offset, max_fetch_bytes: 1 << 20, ..Default::default() }
}

fn code<T>(outcome: Result<T>) -> i32 {
    outcome.err().and_then(|error| error.code()).unwrap_or(0)
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_a_stop_and_after_a_crash() {
    let mut stage = Stage::new().await;
    let plain = stage.create("plain", table(false, 2)).await;
    let parts = stage.create("parts", table(true, 2)).await;
    let first = stage.add_partition("parts", "1").await;
    stage.rescale("parts", 4).await.unwrap();
    let second = stage.add_partition("parts", "2").await;
    assert_eq!((first.bucket_count, second.bucket_count), (Some(2), Some(4)));
    let writer = stage.client.call(&InitWriterRequest::default()).await.unwrap().writer_id;
    for (sequence, well) in [(0, true), (1, false), (2, true)] {
        let offset = i64::from(sequence) * 3;
        assert_eq!(stage.produce(plain, records(writer, sequence, 3)).await, (0, Some(offset)));
        let mut routed = records(writer, sequence, 3);
        (routed.partition_id, routed.bucket_id, routed.routing_bucket_count) = (Some(second.partition_id), 3, Some(4));
        assert_eq!(stage.produce(parts, routed).await, (0, Some(offset)));
        stage = stage.restarted(well).await;
        assert_eq!(stage.latest_offset(plain, 0).await, offset + 3);
        assert_eq!(stage.produce(plain, records(writer, sequence, 3)).await, (0, Some(offset)), "the producer's state is there");
        assert_eq!(stage.fetch(plain, from(0), 0).await.high_watermark, Some(offset + 3));
        assert_eq!(stage.partitions("parts").await, [first.clone(), second.clone()]);
        assert_eq!(stage.info("parts").await.bucket_count_epoch, Some(1));
        assert!(stage.client.call(&InitWriterRequest::default()).await.unwrap().writer_id > writer);
    }
}

#[tokio::test]
async fn a_dropped_table_takes_everything_with_it_and_comes_back_with_another_id() {
    let stage = Stage::new().await;
    let before = stage.create("t", table(false, 1)).await;
    stage.produce(before, records(-1, -1, 3)).await;
    stage.client.call(&DropTableRequest { table_path: path("t"), ignore_if_not_exists: false }).await.unwrap();
    assert_eq!(stage.produce(before, records(-1, -1, 3)).await.0, 21);
    assert_eq!(stage.fetch(before, from(0), 0).await.error_code, Some(21));
    assert_eq!(code(stage.client.call(&GetTableInfoRequest { table_path: path("t") }).await), 7);
    assert_eq!(code(stage.client.call(&DropTableRequest { table_path: path("t"), ignore_if_not_exists: false }).await), 7);
    let after = stage.create("t", table(false, 1)).await;
    assert!(after > before);
    assert_eq!(stage.latest_offset(after, 0).await, 0);
    assert!(!stage.folder.path().join("log").join(before.to_string()).exists());
    stage.node.stop().await;
}

#[tokio::test]
async fn a_client_is_told_one_server_that_is_both_and_every_bucket_has_a_leader() {
    let stage = Stage::with(|options| options.advertise = Some("node.example:7".into())).await;
    let id = stage.create("parts", table(true, 2)).await;
    let partition = stage.add_partition("parts", "1").await;
    let plain = stage.create("plain", table(false, 3)).await;
    let answer = |request: MetadataRequest| {
        let client = stage.client.clone();
        async move { client.call(&request).await }
    };
    let empty = answer(MetadataRequest::default()).await.unwrap();
    let server = empty.coordinator_server.unwrap();
    assert_eq!((server.host.as_str(), server.port, &empty.tablet_servers[..]), ("node.example", 7, &[server.clone()][..]));
    assert_eq!((stage.client.server_type(), empty.table_metadata.len()), (None, 0));
    let request = MetadataRequest {
        table_path: vec![path("parts"), path("plain")],
        partitions_id: vec![partition.partition_id],
        ..Default::default()
    };
    let full = answer(request).await.unwrap();
    assert_eq!(full.tablet_servers.len(), 1, "on partial requests too");
    let [parts, other] = &full.table_metadata[..] else { panic!("two tables") };
    assert_eq!((parts.table_id, parts.bucket_metadata.len()), (id, 0));
    assert_eq!((other.table_id, other.bucket_metadata.len()), (plain, 3));
    assert!(other.bucket_metadata.iter().all(|bucket| bucket.leader_id == Some(server.node_id)));
    let json: Value = serde_json::from_slice(&parts.table_json).unwrap();
    assert_eq!((&json["bucket_count"], &json["schema"]["columns"][0]["name"]), (&json!(2), &json!("id")));
    let [found] = &full.partition_metadata[..] else { panic!("one partition") };
    assert_eq!((found.bucket_count, found.bucket_metadata.len(), found.partition_name.as_str()), (Some(2), 2, "1"));
    let by_name = |day: &str| PbPhysicalTablePath {
        partition_name: Some(day.into()),
        database_name: "fluss".into(),
        table_name: "parts".into(),
    };
    let request = |day: &str| MetadataRequest { partitions_path: vec![by_name(day)], ..Default::default() };
    assert_eq!(answer(request("1")).await.unwrap().partition_metadata.len(), 1);
    assert_eq!(code(answer(request("2")).await), 36);
    assert_eq!(code(answer(MetadataRequest { table_path: vec![path("nope")], ..Default::default() }).await), 7);
    let missing = MetadataRequest { table_path: vec![path("parts")], partitions_id: vec![99], ..Default::default() };
    assert_eq!(code(answer(missing).await), 36);
}

#[tokio::test]
async fn databases_and_tables_are_made_listed_and_dropped_with_the_right_refusals() {
    let stage = Stage::new().await;
    let client = &stage.client;
    let create =
        |name: &str, ignore_if_exists| CreateDatabaseRequest { database_name: name.into(), ignore_if_exists, database_json: None };
    client.call(&create("db", false)).await.unwrap();
    client.call(&create("db", true)).await.unwrap();
    assert_eq!(code(client.call(&create("db", false)).await), 6);
    assert_eq!(code(client.call(&create("a/b", false)).await), 16);
    let names = client.call(&ListDatabasesRequest::default()).await.unwrap().database_name;
    assert_eq!(names, ["db", "fluss"]);
    let table_path = |database: &str, table: &str| PbTablePath { database_name: database.into(), table_name: table.into() };
    let make = |database: &str, name: &str, ignore_if_exists| CreateTableRequest {
        table_path: table_path(database, name),
        table_json: table(false, 1).to_string().into(),
        ignore_if_exists,
    };
    client.call(&make("db", "t", false)).await.unwrap();
    client.call(&make("db", "t", true)).await.unwrap();
    assert_eq!(code(client.call(&make("db", "t", false)).await), 8);
    assert_eq!(code(client.call(&make("nope", "t", false)).await), 4);
    assert_eq!(code(client.call(&make("db", "__t", false)).await), 15);
    assert_eq!(code(client.call(&ListTablesRequest { database_name: "nope".into() }).await), 4);
    let drop = |name: &str, ignore_if_not_exists, cascade| DropDatabaseRequest {
        database_name: name.into(),
        ignore_if_not_exists,
        cascade,
    };
    assert_eq!(code(client.call(&drop("db", false, false)).await), 5);
    assert_eq!(code(client.call(&drop("fluss", false, true)).await), -1);
    client.call(&drop("db", false, true)).await.unwrap();
    assert_eq!(code(client.call(&drop("db", false, true)).await), 4);
    client.call(&drop("db", true, true)).await.unwrap();
    assert!(!client.call(&TableExistsRequest { table_path: table_path("db", "t") }).await.unwrap().exists);
    let lists = ListDatabasesRequest { include_summary: Some(true) };
    assert_eq!(client.call(&lists).await.unwrap().database_summary[0].table_count, 0);
}

#[test]
fn advertised_addresses_are_read_with_and_without_port() {
    for (text, bound, host, port) in [
        (None, "127.0.0.1:5", "127.0.0.1", 5),
        (Some("h"), "0.0.0.0:5", "h", 5),
        (Some("h:9"), "127.0.0.1:5", "h", 9),
        (Some("[::1]:9"), "[::1]:5", "::1", 9),
        (Some("::1"), "[::1]:5", "::1", 5),
    ] {
        let node = server::advertised(text, bound.parse().unwrap()).unwrap();
        assert_eq!((node.host.as_str(), node.port), (host, port));
    }
    assert!(server::advertised(Some("h:x"), "127.0.0.1:5".parse().unwrap()).is_err());
    assert!(server::advertised(None, "0.0.0.0:5".parse().unwrap()).is_err());
}

#[tokio::test]
async fn a_node_with_users_serves_nobody_else_and_one_without_takes_no_login() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::system(1, 64 << 20).unwrap();
    let otto = Credentials::new("otto", "geheim").unwrap();
    let as_user = |credentials| ConnectionOptions { credentials, ..Default::default() };
    let mut options = NodeOptions::new(folder.path());
    options.users = vec![Credentials::new("anna", "x").unwrap(), otto.clone()];
    let node = Node::start(options, runtime.clone()).await.unwrap();
    let address = node.address().to_string();
    let connect = async |credentials| Connection::connect(&address, &as_user(credentials), &runtime).await;
    let code = |error: Error| (error.kind(), error.code());
    let client = connect(Some(otto.clone())).await.unwrap();
    client.call(&ListDatabasesRequest::default()).await.unwrap();
    let stranger = connect(None).await.unwrap();
    assert_eq!(code(stranger.call(&ListDatabasesRequest::default()).await.unwrap_err()), (Kind::Invalid, Some(46)));
    let produce = stranger.call(&ProduceLogRequest { acks: -1, table_id: 1, ..Default::default() }).await.unwrap_err();
    assert_eq!(code(produce), (Kind::Invalid, Some(46)));
    for wrong in [Credentials::new("otto", "x").unwrap(), Credentials::new("emil", "geheim").unwrap()] {
        assert_eq!(code(connect(Some(wrong)).await.unwrap_err()), (Kind::Invalid, Some(46)));
    }
    node.stop().await;
    let open = Node::start(NodeOptions::new(folder.path()), runtime.clone()).await.unwrap();
    let refused = Connection::connect(&open.address().to_string(), &as_user(Some(otto)), &runtime).await.unwrap_err();
    assert!(refused.chain().contains("PLAINTEXT") && refused.code() == Some(46), "{}", refused.chain());
}
