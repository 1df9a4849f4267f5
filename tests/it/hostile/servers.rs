//! A cluster of fronts: a coordinator and two tablet servers before one embedded node, each with manners of its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use lakeward::error::Result;
use lakeward::fluss::api::ApiKey;
use lakeward::fluss::cluster::{Cluster, ClusterOptions};
use lakeward::fluss::connection::ConnectionOptions;
use lakeward::fluss::frame::{RequestCodec, RequestFrame, ResponseCodec, ResponseFrame};
use lakeward::fluss::proto::{Message, MetadataResponse, PbServerNode};
use lakeward::node::{Node, NodeOptions};
use lakeward::runtime::{BackoffOptions, Clock, Runtime};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::codec::{Encoder, FramedRead, FramedWrite};
use tokio_util::task::AbortOnDropHandle;

/// What a front does with a request.
#[derive(Clone)]
pub(super) enum Manner {
    /// Has it answered.
    Sound,
    /// Nothing.
    Silent,
    /// Says these bytes instead of an answer, and goes on.
    Says(Vec<u8>),
    /// Says these bytes and closes.
    SaysAndCloses(Vec<u8>),
    /// Says these bytes one by one.
    Trickles(Vec<u8>),
    /// Answers with what is made of the answer.
    Mangles(fn(ResponseFrame) -> Vec<ResponseFrame>),
    /// Answers so much later.
    Late(Duration),
}

type Manners = Arc<Mutex<Box<dyn Fn(ApiKey) -> Manner + Send>>>;

/// One server. Ends when dropped, with its connections.
pub(super) struct Front {
    pub(super) port: i32,
    manners: Manners,
    pub(super) connections: Arc<AtomicUsize>,
    open: Arc<Mutex<Vec<AbortOnDropHandle<()>>>>,
    _task: AbortOnDropHandle<()>,
}

/// What fronts answer for metadata: their ports, and the leader of each table, 0 if none is named.
#[derive(Default)]
struct Map {
    coordinator: i32,
    tablets: Vec<i32>,
    leaders: BTreeMap<i64, i32>,
}

impl Front {
    async fn start(node: String, map: Arc<Mutex<Map>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port().into();
        let manners: Manners = Arc::new(Mutex::new(Box::new(|_| Manner::Sound)));
        let connections = Arc::new(AtomicUsize::new(0));
        let open = Arc::<Mutex<Vec<AbortOnDropHandle<()>>>>::default();
        let (shared, counted, kept) = (Arc::clone(&manners), Arc::clone(&connections), Arc::clone(&open));
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                let served = tokio::spawn(serve(stream, node.clone(), Arc::clone(&map), Arc::clone(&shared)));
                kept.lock().unwrap().push(AbortOnDropHandle::new(served));
            }
        });
        Self { port, manners, connections, open, _task: AbortOnDropHandle::new(task) }
    }

    pub(super) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Behaves so from now on.
    pub(super) fn set(&self, manner: impl Fn(ApiKey) -> Manner + Send + 'static) {
        *self.manners.lock().unwrap() = Box::new(manner);
    }

    /// Behaves so for `key` alone.
    pub(super) fn set_for(&self, key: ApiKey, manner: Manner) {
        self.set(move |asked| if asked == key { manner.clone() } else { Manner::Sound });
    }

    pub(super) fn sound(&self) {
        self.set(|_| Manner::Sound);
    }

    /// Closes the connections that are open.
    pub(super) fn hang_up(&self) {
        self.open.lock().unwrap().clear();
    }
}

type Writer = Arc<tokio::sync::Mutex<OwnedWriteHalf>>;

async fn say(writer: &Writer, bytes: &[u8]) {
    drop(writer.lock().await.write_all(bytes).await);
}

fn wire(frame: ResponseFrame) -> bytes::BytesMut {
    let mut bytes = bytes::BytesMut::new();
    ResponseCodec::default().encode(frame, &mut bytes).unwrap();
    bytes
}

async fn serve(stream: TcpStream, node: String, map: Arc<Mutex<Map>>, manners: Manners) {
    let (reader, writer) = stream.into_split();
    let writer: Writer = Arc::new(tokio::sync::Mutex::new(writer));
    let (answers, requests) = TcpStream::connect(node).await.unwrap().into_split();
    let mut requests = FramedWrite::new(requests, RequestCodec::default());
    let asked = Arc::<Mutex<BTreeMap<i32, (ApiKey, Manner)>>>::default();
    let (known, back) = (Arc::clone(&asked), Arc::clone(&writer));
    let _answering = AbortOnDropHandle::new(tokio::spawn(async move {
        let mut answers = FramedRead::new(answers, ResponseCodec::default());
        while let Some(Ok(answer)) = answers.next().await {
            let id = match &answer {
                ResponseFrame::Success { id, .. } | ResponseFrame::Error { id, .. } => *id,
                ResponseFrame::Failure(_) => return,
            };
            let (key, manner) = known.lock().unwrap().remove(&id).unwrap();
            let answer = match answer {
                ResponseFrame::Success { id, body } if key == ApiKey::GetMetadata => {
                    ResponseFrame::Success { id, body: redirected(&map.lock().unwrap(), body) }
                }
                answer => answer,
            };
            match manner {
                Manner::Mangles(mangle) => {
                    for frame in mangle(answer) {
                        say(&back, &wire(frame)).await;
                    }
                }
                Manner::Late(time) => {
                    let back = Arc::clone(&back);
                    tokio::spawn(async move {
                        Clock::system().sleep(time).await;
                        say(&back, &wire(answer)).await;
                    });
                }
                _ => say(&back, &wire(answer)).await,
            }
        }
    }));
    let mut frames = FramedRead::new(reader, RequestCodec::default());
    while let Some(Ok(frame)) = frames.next().await {
        let frame: RequestFrame = frame;
        let key = ApiKey::from_number(frame.key).unwrap();
        let manner = manners.lock().unwrap()(key);
        match manner {
            Manner::Sound | Manner::Mangles(_) | Manner::Late(_) => {
                asked.lock().unwrap().insert(frame.id, (key, manner));
                if requests.send(frame).await.is_err() {
                    return;
                }
            }
            Manner::Silent => {}
            Manner::Says(bytes) => say(&writer, &bytes).await,
            Manner::SaysAndCloses(bytes) => return say(&writer, &bytes).await,
            Manner::Trickles(bytes) => {
                let writer = Arc::clone(&writer);
                tokio::spawn(async move {
                    for byte in bytes {
                        say(&writer, &[byte]).await;
                        Clock::system().sleep(Duration::from_millis(10)).await;
                    }
                });
            }
        }
    }
}

/// Metadata as the fronts tell it.
fn redirected(map: &Map, body: Bytes) -> Bytes {
    let mut metadata = MetadataResponse::decode(body).unwrap();
    let node = |id, port| PbServerNode { node_id: id, host: "127.0.0.1".into(), port, listeners: None, rack: None };
    metadata.coordinator_server = Some(node(0, map.coordinator));
    metadata.tablet_servers = map.tablets.iter().zip(0..).map(|(port, id)| node(id, *port)).collect();
    let leader = |table: i64| Some(map.leaders.get(&table).copied().unwrap_or(0));
    for table in &mut metadata.table_metadata {
        table.bucket_metadata.iter_mut().for_each(|bucket| bucket.leader_id = leader(table.table_id));
    }
    for partition in &mut metadata.partition_metadata {
        partition.bucket_metadata.iter_mut().for_each(|bucket| bucket.leader_id = leader(partition.table_id));
    }
    metadata.encode_to_vec().into()
}

/// The cluster.
pub(super) struct Stand {
    pub(super) runtime: Runtime,
    pub(super) node: Node,
    pub(super) coordinator: Front,
    pub(super) tablets: [Front; 2],
    map: Arc<Mutex<Map>>,
    pub(super) dir: TempDir,
}

impl Stand {
    pub(super) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = NodeOptions::new(dir.path());
        options.log.fsync = false;
        let runtime = Runtime::system(2, 64 << 20).unwrap();
        let node = Node::start(options, runtime.clone()).await.unwrap();
        let map = Arc::<Mutex<Map>>::default();
        let front = || Front::start(node.address().to_string(), Arc::clone(&map));
        let (coordinator, tablets) = (front().await, [front().await, front().await]);
        {
            let mut map = map.lock().unwrap();
            map.coordinator = coordinator.port;
            map.tablets = tablets.iter().map(|front| front.port).collect();
        }
        Self { runtime, node, coordinator, tablets, map, dir }
    }

    /// Buckets of this table are led there.
    pub(super) fn lead(&self, table: i64, tablet: i32) {
        self.map.lock().unwrap().leaders.insert(table, tablet);
    }

    /// A way to it by the fronts, which does not wait long.
    pub(super) async fn cluster(&self, request_timeout: Duration) -> Result<Cluster> {
        Cluster::connect(&[self.coordinator.address()], quick(request_timeout), &self.runtime).await
    }
}

pub(super) fn quick(request_timeout: Duration) -> ClusterOptions {
    let backoff = BackoffOptions { first: Duration::from_millis(5), max: Duration::from_millis(20), attempts_max: 1 };
    let connection = ConnectionOptions { connect_timeout: request_timeout, request_timeout, ..ConnectionOptions::default() };
    ClusterOptions { connection, retry: backoff, bootstrap: backoff, ..ClusterOptions::default() }
}
