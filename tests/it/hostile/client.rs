//! The client against servers: each request ends in time with an error that names the server, the request and what happened; the
//! connection is replaced; others go on.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lakeward::error::{Error, Kind};
use lakeward::fluss::api::ApiKey;
use lakeward::fluss::cluster::Cluster;
use lakeward::fluss::connection::{Connection, ConnectionOptions, Credentials};
use lakeward::fluss::frame::ResponseFrame;
use lakeward::fluss::proto::{
    ApiVersionsRequest, ApiVersionsResponse, DatabaseExistsRequest, LakeTieringHeartbeatRequest, ListDatabasesRequest, Message,
    PbApiVersion,
};
use tokio::net::{TcpSocket, TcpStream};

use super::servers::{Manner, Stand, quick};
use crate::rounds::until;

const SHORT: Duration = Duration::from_secs(2);

fn exists() -> DatabaseExistsRequest {
    DatabaseExistsRequest { database_name: "demo".into() }
}

fn announce(bytes: i32, more: usize) -> Vec<u8> {
    let mut frame = bytes.to_be_bytes().to_vec();
    // The first request after the handshake has id 1.
    frame.extend([0, 0, 0, 0, 1]);
    frame.extend(vec![0; more]);
    frame
}

fn with_id(frame: ResponseFrame, change: impl Fn(i32) -> i32) -> ResponseFrame {
    match frame {
        ResponseFrame::Success { id, body } => ResponseFrame::Success { id: change(id), body },
        other => other,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_trouble_of_a_server_ends_its_request_in_time_by_name_and_the_next_one_gets_another_connection() {
    let http = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec();
    let cases: Vec<(Manner, Kind, &'static str)> = vec![
        (Manner::Silent, Kind::Unavailable, "no answer within 2 s"),
        // In the length, in the rest of the head, in the body.
        (Manner::Trickles(vec![0, 0, 1]), Kind::Unavailable, "only 3 bytes of one"),
        (Manner::Trickles(announce(1000, 0)), Kind::Unavailable, "bytes of one"),
        (Manner::Trickles(announce(1000, 900)), Kind::Unavailable, "bytes of one"),
        (Manner::Says(announce(64 << 20, 10)), Kind::Unavailable, "only 19 bytes of one"),
        (Manner::SaysAndCloses(vec![]), Kind::Unavailable, "server closed the connection"),
        (Manner::SaysAndCloses(announce(1000, 20)), Kind::Unavailable, "closed after 29 bytes"),
        (Manner::Says(http.clone()), Kind::Data, "frame of `1213486160` bytes"),
        (Manner::SaysAndCloses(http), Kind::Data, "frame of `1213486160` bytes"),
        (Manner::Says(vec![0; 4]), Kind::Data, "frame of `0` bytes"),
        (Manner::Says(vec![0xff; 4]), Kind::Data, "frame of `-1` bytes"),
        (Manner::Says(vec![0x7f, 0xff, 0xff, 0xff]), Kind::Data, "frame of `2147483647` bytes"),
        // More than such an answer can be.
        (Manner::Says(announce(100 << 20, 0)), Kind::Data, "frame of `104857600` bytes"),
        (Manner::Mangles(|frame| vec![with_id(frame, |id| id + 1000)]), Kind::Data, "which is not open"),
        (Manner::Mangles(|frame| vec![with_id(frame, |_| -5)]), Kind::Data, "answer to request `-5`"),
    ];
    futures::future::join_all(cases.into_iter().map(|(manner, kind, words)| case(manner, kind, words))).await;
}

async fn case(manner: Manner, kind: Kind, words: &'static str) {
    let stand = Stand::new().await;
    let cluster = stand.cluster(SHORT).await.unwrap();
    cluster.coordinator(&exists()).await.unwrap_or_else(|error| panic!("{words}: {}", error.chain()));
    // So that the next has id 1 on a new connection.
    let before = stand.coordinator.connections.load(Ordering::SeqCst);
    stand.coordinator.hang_up();
    until(&stand.runtime, "there is another connection", async || {
        let shaken = cluster.coordinator_version(ApiKey::DatabaseExists).await.ok();
        shaken.filter(|_| stand.coordinator.connections.load(Ordering::SeqCst) > before)
    })
    .await;
    stand.coordinator.set_for(ApiKey::DatabaseExists, manner);
    let (request, hello) = (exists(), ApiVersionsRequest::default());
    let (failed, other) = tokio::join!(cluster.coordinator_once(&request), cluster.server(1, &hello));
    let error = failed.unwrap_err();
    let text = error.chain();
    assert_eq!(error.kind(), kind, "{text}");
    for part in [words, "`DatabaseExists` to", &stand.coordinator.address()] {
        assert!(text.contains(part), "`{part}` is not in `{text}`");
    }
    other.unwrap_or_else(|error| panic!("{words}: the other server: {}", error.chain()));
    let before = stand.coordinator.connections.load(Ordering::SeqCst);
    stand.coordinator.sound();
    cluster.coordinator(&exists()).await.unwrap_or_else(|error| panic!("after {words}: {}", error.chain()));
    assert!(stand.coordinator.connections.load(Ordering::SeqCst) > before, "after {words}: the old connection was used");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_comes_twice_or_to_nobody_ends_the_connection_and_no_request_gets_anothers() {
    let stand = Stand::new().await;
    let cluster = stand.cluster(SHORT).await.unwrap();
    stand.coordinator.set_for(ApiKey::DatabaseExists, Manner::Mangles(|frame| vec![frame.clone(), frame]));
    assert!(!cluster.coordinator_once(&exists()).await.unwrap().exists);
    let before = stand.coordinator.connections.load(Ordering::SeqCst);
    stand.coordinator.sound();
    // One that is still on the old connection fails; it goes on with the next.
    assert!(!cluster.coordinator(&exists()).await.unwrap().exists);
    until(&stand.runtime, "there is another connection", async || {
        drop(cluster.coordinator(&exists()).await);
        (stand.coordinator.connections.load(Ordering::SeqCst) > before).then_some(())
    })
    .await;
}

/// A heartbeat, for one, is given up earlier than the connection's own time-out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_connection_is_replaced_though_no_caller_waits_to_the_end_and_the_coordinator_is_looked_up_anew() {
    let stand = Stand::new().await;
    let cluster = stand.cluster(SHORT).await.unwrap();
    cluster.coordinator_once(&exists()).await.unwrap();
    let before = stand.coordinator.connections.load(Ordering::SeqCst);
    stand.coordinator.set_for(ApiKey::LakeTieringHeartbeat, Manner::Silent);
    let heartbeat = LakeTieringHeartbeatRequest::default();
    until(&stand.runtime, "another connection is made", async || {
        let given_up = stand.runtime.clock.timeout(SHORT / 4, cluster.coordinator_once(&heartbeat)).await;
        assert!(given_up.is_none_or(|answer| answer.is_err()));
        (stand.coordinator.connections.load(Ordering::SeqCst) > before).then_some(())
    })
    .await;
    stand.coordinator.sound();
    cluster.coordinator(&heartbeat).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_are_right_but_slow_or_close_idle_connections_do_no_harm() {
    let stand = Stand::new().await;
    let cluster = stand.cluster(Duration::from_secs(5)).await.unwrap();
    for front in stand.tablets.iter().chain([&stand.coordinator]) {
        front.set(|_| Manner::Late(Duration::from_millis(100)));
    }
    let request = exists();
    let calls = (0..20).map(|_| cluster.coordinator_once(&request));
    assert!(futures::future::join_all(calls).await.into_iter().all(|answer| answer.is_ok()));
    for _ in 0..5 {
        stand.coordinator.hang_up();
        stand.tablets.iter().for_each(super::servers::Front::hang_up);
        cluster.any(&ListDatabasesRequest { include_summary: None }).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trouble_in_the_handshake_names_the_server_and_is_over_in_time() {
    fn nonsense(frame: ResponseFrame) -> Vec<ResponseFrame> {
        let versions = |api_key, min_version, max_version| PbApiVersion { api_key, min_version, max_version };
        let api_versions = vec![
            versions(1003, 7, 3),
            versions(1004, i32::MIN, i32::MAX),
            versions(1004, 5, 1),
            versions(-1, 0, 0),
            versions(i32::MAX, -3, -2),
        ];
        let body = ApiVersionsResponse { api_versions, server_type: Some(-7) };
        vec![match frame {
            ResponseFrame::Success { id, .. } => ResponseFrame::Success { id, body: body.encode_to_vec().into() },
            other => other,
        }]
    }
    let stand = Stand::new().await;
    let address = stand.coordinator.address();
    let otto = Some(Credentials::new("otto", "geheim").unwrap());
    let options = ConnectionOptions { connect_timeout: SHORT, request_timeout: SHORT * 100, ..ConnectionOptions::default() };
    let connect = async |credentials: Option<Credentials>| -> Result<Connection, Error> {
        Connection::connect(&address, &ConnectionOptions { credentials, ..options.clone() }, &stand.runtime).await
    };
    for (key, manner, words) in [
        (ApiKey::ApiVersions, Manner::Silent, "no answer within 2 s"),
        (ApiKey::ApiVersions, Manner::Trickles(vec![0; 500]), "frame of `0`"),
        (ApiKey::ApiVersions, Manner::Says(vec![0, 0x10, 0, 1, 0, 0, 0, 0, 0]), "frame of `1048577` bytes"),
        (ApiKey::ApiVersions, Manner::SaysAndCloses(vec![]), "server closed the connection"),
        (
            ApiKey::ApiVersions,
            Manner::Mangles(|_| vec![ResponseFrame::Success { id: 0, body: vec![0xff; 99].into() }]),
            "can't be read",
        ),
        (ApiKey::Authenticate, Manner::Silent, "no answer within 2 s"),
        (ApiKey::Authenticate, Manner::SaysAndCloses(vec![0, 0]), "log in as `otto`"),
        (ApiKey::Authenticate, Manner::SaysAndCloses(vec![]), "log in as `otto`"),
        (ApiKey::Authenticate, Manner::Says(b"SSH-2.0-OpenSSH_9.6\r\n".to_vec()), "log in as `otto`"),
    ] {
        stand.coordinator.set_for(key, manner);
        let error = connect(otto.clone()).await.unwrap_err();
        let text = error.chain();
        assert!(text.contains(words) && text.contains(&address) && !text.contains("geheim"), "`{words}` is not in `{text}`");
        assert!(matches!(error.kind(), Kind::Unavailable | Kind::Data), "{text}");
    }
    stand.coordinator.set_for(ApiKey::ApiVersions, Manner::Mangles(nonsense));
    let connection = connect(None).await.unwrap();
    assert_eq!(connection.server_type(), None);
    for error in [
        connection.call(&ListDatabasesRequest { include_summary: None }).await.unwrap_err(),
        connection.call(&exists()).await.unwrap_err(),
        connection.call(&LakeTieringHeartbeatRequest::default()).await.unwrap_err(),
    ] {
        assert!(error.kind() == Kind::Unsupported && error.chain().contains(&address), "{}", error.chain());
    }
}

/// An address where connecting never ends: its queue is full, and nobody takes from it.
struct BlackHole {
    _listener: tokio::net::TcpListener,
    _waiting: Vec<TcpStream>,
    address: String,
}

impl BlackHole {
    async fn new(stand: &Stand) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut waiting = Vec::new();
        while let Some(stream) = stand.runtime.clock.timeout(Duration::from_millis(200), TcpStream::connect(&address)).await {
            waiting.push(stream.unwrap());
        }
        Self { _listener: listener, _waiting: waiting, address }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_can_not_be_connected_to_is_named_in_time_and_keeps_nobody_from_the_others() {
    let stand = Stand::new().await;
    let hole = BlackHole::new(&stand).await;
    let options = ConnectionOptions { connect_timeout: SHORT, ..ConnectionOptions::default() };
    let error = Connection::connect(&hole.address, &options, &stand.runtime).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.chain().contains(&hole.address) && error.chain().contains("no answer within 2 s"), "{}", error.chain());
    // With the times that are the default, the next server is asked long before the first is given up.
    let servers = [hole.address.clone(), stand.coordinator.address()];
    let cluster = Cluster::connect(&servers, quick(Duration::from_secs(600)), &stand.runtime).await.unwrap();
    assert!(!cluster.any(&exists()).await.unwrap().exists);
}
