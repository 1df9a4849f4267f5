//! Clients against the node: closed in time, bounded in what they hold, and no harm to others.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{BinaryArray, Int64Array, RecordBatch};
use futures::{SinkExt, StreamExt};
use lakeward::client::{Admin, Writer, WriterOptions};
use lakeward::fluss::api::{ApiKey, Request};
use lakeward::fluss::cluster::{Cluster, ClusterOptions};
use lakeward::fluss::connection::{Connection, ConnectionOptions, Credentials};
use lakeward::fluss::frame::{RequestCodec, RequestFrame, ResponseCodec, ResponseFrame};
use lakeward::fluss::proto::{ApiVersionsRequest, DatabaseExistsRequest, FetchLogRequest, PbFetchLogReqForBucket};
use lakeward::model::{BucketId, BucketLayout, TableBucket, TableInfo, TablePath, TypeKind};
use lakeward::node::{Node, NodeOptions};
use lakeward::runtime::Runtime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::codec::{Encoder, FramedRead, FramedWrite};

use crate::rounds::binary::Running;
use crate::rounds::{self, descriptor, field, until};

struct Stand {
    _dir: tempfile::TempDir,
    runtime: Runtime,
    node: Node,
}

impl Stand {
    async fn new(change: impl FnOnce(&mut NodeOptions)) -> Self {
        let (_dir, runtime, node) = rounds::node(change).await;
        Self { _dir, runtime, node }
    }

    async fn open(&self) -> TcpStream {
        TcpStream::connect(self.node.address()).await.unwrap()
    }

    async fn connect(&self) -> Connection {
        Connection::connect(&self.node.address().to_string(), &ConnectionOptions::default(), &self.runtime).await.unwrap()
    }
}

fn exists() -> DatabaseExistsRequest {
    DatabaseExistsRequest { database_name: "demo".into() }
}

fn frame<R: Request>(id: i32, request: &R) -> RequestFrame {
    RequestFrame { key: R::KEY.number(), version: 0, id, body: request.encode_to_vec().into() }
}

fn wire<R: Request>(id: i32, request: &R) -> Vec<u8> {
    let mut bytes = bytes::BytesMut::new();
    RequestCodec::default().encode(frame(id, request), &mut bytes).unwrap();
    bytes.to_vec()
}

/// What it says until it closes.
async fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    // A reset is an end too.
    drop(stream.read_to_end(&mut said).await);
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_says_nothing_trickles_or_is_idle_is_closed_and_who_waits_for_an_answer_is_not() {
    let stand = Stand::new(|options| {
        options.clients.stall = Duration::from_millis(300);
        options.clients.idle = Duration::from_millis(600);
    })
    .await;
    let silent = rest(stand.open().await);
    let trickling = async {
        let mut stream = stand.open().await;
        stream.write_all(&wire(0, &exists())).await.unwrap();
        stream.read_i32().await.unwrap();
        // A byte now and then of the next one, until it is closed.
        let next = wire(1, &exists());
        for byte in next.iter().cycle() {
            if stream.write_all(&[*byte]).await.is_err() {
                break;
            }
            stand.runtime.clock.sleep(Duration::from_millis(40)).await;
            // Never the whole of it.
            if stand
                .runtime
                .clock
                .timeout(Duration::from_millis(1), stream.peek(&mut [0; 64]))
                .await
                .is_some_and(|read| read.is_err())
            {
                break;
            }
        }
    };
    let idle = async {
        let mut stream = stand.open().await;
        stream.write_all(&wire(0, &exists())).await.unwrap();
        rest(stream).await
    };
    let (silent, idle, ()) = tokio::join!(silent, idle, trickling);
    assert!(silent.is_empty());
    assert!(idle.len() > 4, "answered, and closed later");
    let connection = stand.connect().await;
    connection.call(&exists()).await.unwrap();
    until(&stand.runtime, "the idle connection is closed", async || connection.is_dead().then_some(())).await;
    stand.node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_told_and_closed_and_nothing_is_allocated_for_what_is_announced() {
    let stand = Stand::new(|_| {}).await;
    let friend = stand.connect().await;
    for garbage in [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n".to_vec(),
        vec![0xff; 64],
        vec![0; 64],
        vec![0x7f, 0xff, 0xff, 0xff],
        [&104_857_597_i32.to_be_bytes()[..], &[0; 60]].concat(),
    ] {
        let mut stream = stand.open().await;
        stream.write_all(&garbage).await.unwrap();
        let said = rest(stream).await;
        assert!(said.get(4) == Some(&2), "a frame of type 2, not {said:?}");
    }
    // A request that can't be read is answered; the connection goes on.
    let (reader, writer) = stand.open().await.into_split();
    let mut requests = FramedWrite::new(writer, RequestCodec::default());
    let mut answers = FramedRead::new(reader, ResponseCodec::default());
    for (key, version, id) in [(ApiKey::FetchLog.number(), 0, 5), (12, 0, 6), (ApiKey::PutKv.number(), 99, 7), (-1, -1, -1)] {
        requests.send(RequestFrame { key, version, id, body: vec![0xff; 40].into() }).await.unwrap();
        let answer = answers.next().await.unwrap().unwrap();
        assert!(matches!(answer, ResponseFrame::Error { id: found, .. } if found == id), "{answer:?}");
    }
    friend.call(&exists()).await.unwrap();
    stand.node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_closes_its_side_gets_the_answers_that_are_due_and_long_polls_at_once() {
    let stand = Stand::new(|_| {}).await;
    let (info, _) = filled(&stand.node.address().to_string(), &stand.runtime, 1).await;
    let mut stream = stand.open().await;
    for id in 0..3 {
        stream.write_all(&wire(id, &exists())).await.unwrap();
    }
    // There is nothing at that offset, and it would wait for weeks.
    let poll = FetchLogRequest { min_bytes: Some(i32::MAX), max_wait_ms: Some(i32::MAX), ..fetch(&info, 1, i32::MAX) };
    stream.write_all(&wire(3, &poll)).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answers = FramedRead::new(stream, ResponseCodec::default());
    let mut ids = Vec::new();
    while let Some(answer) = answers.next().await {
        match answer.unwrap() {
            ResponseFrame::Success { id, .. } => ids.push(id),
            other => panic!("{other:?}"),
        }
    }
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2, 3]);
    stand.node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_number_of_silent_connections_keeps_nobody_out_and_the_oldest_of_them_goes_first() {
    let stand = Stand::new(|options| options.clients.connections_max = Some(8)).await;
    let friend = stand.connect().await;
    friend.call(&exists()).await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(stand.open().await);
    }
    friend.call(&exists()).await.unwrap();
    let other = stand.connect().await;
    other.call(&exists()).await.unwrap();
    let first = silent.remove(0);
    assert!(rest(first).await.is_empty(), "closed long before its time");
    assert!(!friend.is_dead());
    // Those that are in use stay, and there is no place for more than the bound.
    let mut busy = vec![friend, other];
    while busy.len() < 8 {
        busy.push(stand.connect().await);
    }
    for connection in &busy {
        connection.call(&exists()).await.unwrap();
    }
    stand.node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_log_in_is_closed_whatever_it_says_and_can_say_little() {
    let stand = Stand::new(|options| {
        options.clients.stall = Duration::from_millis(500);
        options.users = vec![Credentials::new("otto", "geheim").unwrap()];
    })
    .await;
    let mut stream = stand.open().await;
    let mut answered = 0;
    while stream.write_all(&wire(answered, &ApiVersionsRequest::default())).await.is_ok() {
        let Ok(length) = stream.read_i32().await else { break };
        let mut body = vec![0; usize::try_from(length).unwrap()];
        if stream.read_exact(&mut body).await.is_err() {
            break;
        }
        answered += 1;
        stand.runtime.clock.sleep(Duration::from_millis(20)).await;
    }
    assert!(answered > 1);
    let mut stream = stand.open().await;
    stream.write_all(&(1_i32 << 20).to_be_bytes()).await.unwrap();
    assert_eq!(rest(stream).await.get(4), Some(&2), "a stranger's frame is small");
    let options =
        ConnectionOptions { credentials: Some(Credentials::new("otto", "geheim").unwrap()), ..ConnectionOptions::default() };
    let friend = Connection::connect(&stand.node.address().to_string(), &options, &stand.runtime).await.unwrap();
    stand.runtime.clock.sleep(Duration::from_millis(700)).await;
    friend.call(&exists()).await.unwrap();
    stand.node.stop().await;
}

/// A log of one bucket with `rows` rows of a mebibyte each.
async fn filled(address: &str, runtime: &Runtime, rows: i64) -> (TableInfo, Cluster) {
    let cluster = Cluster::connect(&[address.to_owned()], ClusterOptions::default(), runtime).await.unwrap();
    let admin = Admin::new(cluster.clone());
    admin.create_database("demo", true).await.unwrap();
    let path = TablePath::new("demo", "large");
    let fields = vec![field("id", TypeKind::BigInt, false), field("blob", TypeKind::Bytes, false)];
    let mut table = descriptor(fields, &[], &[], 1);
    table.properties.clear();
    admin.create_table(&path, &table, false).await.unwrap();
    let mut writer = Writer::open(&cluster, &path, WriterOptions::default()).await.unwrap();
    for id in 0..rows {
        let mut state = 1_u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_be_bytes()[0]
        })
        .take(1 << 20)
        .collect();
        let columns: Vec<arrow_array::ArrayRef> =
            vec![Arc::new(Int64Array::from(vec![id])), Arc::new(BinaryArray::from(vec![noise.as_slice()]))];
        writer.append(&RecordBatch::try_new(writer.schema(), columns).unwrap()).await.unwrap();
    }
    (admin.table_info(&path).await.unwrap(), cluster)
}

fn fetch(info: &TableInfo, offset: i64, bytes_max: i32) -> FetchLogRequest {
    let layout = BucketLayout::of(info, None).unwrap();
    let bucket = TableBucket { table: info.id, partition: None, bucket: BucketId(0) };
    FetchLogRequest::of_client(info.id, vec![PbFetchLogReqForBucket::of(bucket, layout, offset, bytes_max)], bytes_max, 0)
}

/// The largest resident memory of a process so far, in MiB.
fn peak_mib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_read_or_announce_much_hold_bounded_memory_and_others_are_served() {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::system(2, 64 << 20).unwrap());
    let folder = dir.path().to_str().unwrap();
    let mut running = Running::start(&[
        "node",
        "--dir",
        folder,
        "--listen",
        "127.0.0.1:0",
        "--set",
        "memory.limit=64MiB",
        "--set",
        "clients.stall=60s",
    ]);
    let line = running.line().unwrap();
    let address = line.split_whitespace().nth(1).unwrap().to_owned();
    let (info, cluster) = filled(&address, &runtime, 8).await;
    let at_rest = peak_mib(running.id());
    let mut greedy = Vec::new();
    for _ in 0..12 {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        // A gigabyte and a half of answers in all.
        for id in 0..16 {
            stream.write_all(&wire(id, &fetch(&info, 0, 8 << 20))).await.unwrap();
        }
        greedy.push(stream);
    }
    for _ in 0..12 {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(&wire(0, &exists())).await.unwrap();
        stream.read_i32().await.unwrap();
        // A hundred megabytes to come, each.
        stream.write_all(&104_857_596_i32.to_be_bytes()).await.unwrap();
        stream.write_all(&[0; 4096]).await.unwrap();
        greedy.push(stream);
    }
    // Somebody who takes answers gets them: those that don't give way.
    for _ in 0..3 {
        assert!(cluster.any(&exists()).await.unwrap().exists);
        let answer = cluster.server(0, &fetch(&info, 0, 8 << 20)).await.unwrap();
        let records = answer.tables_resp[0].buckets_resp[0].records.as_ref().unwrap();
        assert!(records.len() > 6 << 20, "{}", records.len());
    }
    let peak = peak_mib(running.id());
    assert!(peak < at_rest.max(40) + 120, "peak {peak} MiB, {at_rest} MiB before");
    running.signal("TERM");
    // It ends although nobody takes the answers.
    drop(greedy);
    assert_eq!(tokio::task::spawn_blocking(|| running.wait()).await.unwrap(), Some(143));
}
