use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};

use prost::Message;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio_util::codec::Framed;

use super::*;
use crate::fluss::fake::{FakeServer, Reply, ServerCodec, ServerStream, read as read_message};
use crate::fluss::proto::*;

fn offers(keys: &[(ApiKey, i32)], server_type: Option<i32>) -> ApiVersionsResponse {
    let api_versions =
        keys.iter().map(|(key, max)| PbApiVersion { api_key: key.number().into(), min_version: 0, max_version: *max }).collect();
    ApiVersionsResponse { api_versions, server_type }
}

/// A connection to a server that shakes hands, then does as `script` says.
async fn against<F, S>(options: ConnectionOptions, script: S) -> Connection
where
    F: Future<Output = ()> + Send + 'static,
    S: FnOnce(ServerStream) -> F + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let mut server = Framed::new(listener.accept().await.unwrap().0, ServerCodec);
        let hello = server.next().await.unwrap().unwrap();
        assert_eq!((hello.key, hello.version), (1000, 0));
        let known = [(ApiKey::TableExists, 0), (ApiKey::ListTables, 0), (ApiKey::AlterTable, 7), (ApiKey::ProduceLog, 0)];
        server.send(ResponseFrame::success(hello.id, &offers(&known, Some(2)))).await.unwrap();
        script(server).await;
    });
    Connection::connect(&address, &options, &Runtime::simulated(1, 0, 1 << 20)).await.unwrap()
}

fn exists(name: &str) -> TableExistsRequest {
    TableExistsRequest { table_path: PbTablePath { database_name: "db".into(), table_name: name.into() } }
}

async fn next_request(server: &mut ServerStream) -> (i32, String) {
    let frame = server.next().await.unwrap().unwrap();
    (frame.id, TableExistsRequest::decode(frame.body).unwrap().table_path.table_name)
}

#[tokio::test]
async fn answers_out_of_order_reach_who_asked() {
    let connection = against(ConnectionOptions::default(), |mut server| async move {
        let (first, a) = next_request(&mut server).await;
        let (second, b) = next_request(&mut server).await;
        assert_eq!((a.as_str(), b.as_str()), ("a", "b"));
        server.send(ResponseFrame::success(second, &TableExistsResponse { exists: true })).await.unwrap();
        server.send(ResponseFrame::success(first, &TableExistsResponse { exists: false })).await.unwrap();
        server.next().await;
    })
    .await;
    let (a, b) = (exists("a"), exists("b"));
    let (a, b) = tokio::join!(connection.call(&a), connection.call(&b));
    assert!(!a.unwrap().exists);
    assert!(b.unwrap().exists);
    assert_eq!(connection.server_type(), Some(ServerType::Tablet));
    assert_eq!(connection.waiting(), 0);
}

#[tokio::test]
async fn the_highest_common_version_is_used_and_none_is_an_error_before_sending() {
    let connection = against(ConnectionOptions::default(), |mut server| async move {
        let frame = server.next().await.unwrap().unwrap();
        assert_eq!((frame.key, frame.version), (ApiKey::AlterTable.number(), 1));
        server.send(ResponseFrame::success(frame.id, &AlterTableResponse {})).await.unwrap();
        server.next().await;
    })
    .await;
    assert_eq!(connection.version(ApiKey::AlterTable).unwrap(), 1);
    assert_eq!(connection.version(ApiKey::ProduceLog).unwrap(), 0);
    let error = connection.call(&LakeTieringHeartbeatRequest::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Unsupported, Some(2)));
    assert!(error.to_string().contains("LakeTieringHeartbeat"), "{error}");
    connection.call(&AlterTableRequest::default()).await.unwrap();
}

#[tokio::test]
async fn an_error_frame_fails_its_request_alone() {
    let connection = against(ConnectionOptions::default(), |mut server| async move {
        let (id, _) = next_request(&mut server).await;
        server.send(ResponseFrame::error(id, &Code::UNSUPPORTED_VERSION.error("unknown key"))).await.unwrap();
        let (id, _) = next_request(&mut server).await;
        server.send(ResponseFrame::success(id, &TableExistsResponse { exists: true })).await.unwrap();
        server.next().await;
    })
    .await;
    let error = connection.call(&exists("a")).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Unsupported, Some(2)));
    assert!(connection.call(&exists("b")).await.unwrap().exists);
}

#[tokio::test]
async fn a_request_without_answer_times_out_and_the_silent_connection_is_given_up() {
    let options = ConnectionOptions { request_timeout: Duration::from_millis(500), ..Default::default() };
    let connection = against(options, |mut server| async move { while server.next().await.is_some() {} }).await;
    let error = connection.call(&exists("a")).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Unavailable, Some(1)));
    assert!(error.chain().contains("no answer within"), "{}", error.chain());
    assert!(connection.is_dead());
    assert_eq!(connection.waiting(), 0);
}

#[tokio::test]
async fn a_late_answer_goes_to_nobody_and_the_connection_lives_on() {
    let options = ConnectionOptions { request_timeout: Duration::from_secs(1), ..Default::default() };
    let (told, hear) = oneshot::channel::<()>();
    let connection = against(options, |mut server| async move {
        let (lost, _) = next_request(&mut server).await;
        let (id, _) = next_request(&mut server).await;
        server.send(ResponseFrame::success(id, &TableExistsResponse { exists: true })).await.unwrap();
        hear.await.unwrap();
        server.send(ResponseFrame::success(lost, &TableExistsResponse { exists: true })).await.unwrap();
        let (id, _) = next_request(&mut server).await;
        server.send(ResponseFrame::success(id, &TableExistsResponse { exists: false })).await.unwrap();
        server.next().await;
    })
    .await;
    let (a, b) = (exists("a"), exists("b"));
    let (lost, answered) = tokio::join!(connection.call(&a), connection.call(&b));
    assert_eq!(lost.unwrap_err().kind(), Kind::Unavailable);
    assert!(answered.unwrap().exists);
    assert!(!connection.is_dead());
    told.send(()).unwrap();
    assert!(!connection.call(&exists("c")).await.unwrap().exists);
}

#[tokio::test]
async fn a_dropped_caller_leaves_nothing_behind() {
    let connection =
        against(ConnectionOptions::default(), |mut server| async move { while server.next().await.is_some() {} }).await;
    let request = exists("a");
    {
        let call = connection.call(&request);
        tokio::pin!(call);
        assert!(futures::poll!(&mut call).is_pending());
        assert_eq!(connection.waiting(), 1);
    }
    assert_eq!(connection.waiting(), 0);
    assert!(!connection.is_dead());
}

/// Two requests in flight while the server sends `bytes` and hangs up: both fail with this error, and so does the next.
async fn fails_all(bytes: &'static [u8], kind: Kind, words: &str) {
    let connection = against(ConnectionOptions::default(), move |mut server| async move {
        server.next().await.unwrap().unwrap();
        server.next().await.unwrap().unwrap();
        server.get_mut().write_all(bytes).await.unwrap();
    })
    .await;
    let (a, b) = (exists("a"), exists("b"));
    let (a, b) = tokio::join!(connection.call(&a), connection.call(&b));
    for error in [a.unwrap_err(), b.unwrap_err(), connection.call(&exists("c")).await.unwrap_err()] {
        assert_eq!(error.kind(), kind, "{}", error.chain());
        assert!(error.chain().contains(words), "{}", error.chain());
    }
    assert!(connection.is_dead());
    assert_eq!(connection.waiting(), 0);
}

#[tokio::test]
async fn a_dropped_connection_fails_all_in_flight() {
    fails_all(b"", Kind::Unavailable, "closed the connection").await;
    fails_all(b"\0\0\0\x64\0\0", Kind::Unavailable, "closed after 6 bytes").await;
}

#[tokio::test]
async fn a_failure_frame_fails_all_in_flight() {
    fails_all(b"\0\0\0\x12\x02\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x12\x04boom", Kind::Unavailable, "boom").await;
}

#[tokio::test]
async fn garbage_and_too_large_lengths_fail_all_in_flight() {
    fails_all(b"HTTP/1.1 400 Bad Request\r\n\r\n", Kind::Data, "frame of").await;
    fails_all(b"\0\0\0\x09\x07\0\0\0\0\0\0\0\0", Kind::Data, "unknown type").await;
    fails_all(b"\x7f\xff\xff\xff\0\0\0\0\0", Kind::Data, "frame of `2147483647` bytes").await;
}

#[tokio::test]
async fn a_server_that_can_not_be_reached_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let runtime = Runtime::simulated(1, 0, 1 << 20);
    let error = Connection::connect(&address, &ConnectionOptions::default(), &runtime).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Unavailable, Some(1)));
    assert!(error.to_string().contains(&address));
}

#[tokio::test]
async fn ids_go_round_and_pass_over_those_in_use() {
    let connection =
        against(ConnectionOptions::default(), |mut server| async move { while server.next().await.is_some() {} }).await;
    connection.shared.state().next_id = i32::MAX;
    let (sender, _keep) = oneshot::channel();
    let last = connection.enter(sender, 1).unwrap();
    let (sender, _keep) = oneshot::channel();
    let first = connection.enter(sender, 1).unwrap();
    connection.shared.state().next_id = i32::MAX;
    let (sender, _keep) = oneshot::channel();
    let passed = connection.enter(sender, 1).unwrap();
    assert_eq!((last.id, first.id, passed.id), (i32::MAX, 0, 1));
}

fn otto() -> ConnectionOptions {
    ConnectionOptions { credentials: Some(Credentials::new("otto", "geheim").unwrap()), ..Default::default() }
}

/// A server that lets in whom `login` lets in, and nobody else do anything.
async fn guarded(login: impl Fn(usize, AuthenticateRequest) -> Reply + Send + Sync + 'static) -> FakeServer {
    let logins = AtomicUsize::new(0);
    FakeServer::start(None, 0, move |key, _, body| match key {
        ApiKey::Authenticate => login(logins.fetch_add(1, Ordering::SeqCst), read_message(body)),
        _ => TableExistsResponse { exists: true }.into(),
    })
    .await
}

async fn connect(server: &FakeServer, options: &ConnectionOptions) -> Result<Connection> {
    Connection::connect(&server.address(), options, &Runtime::simulated(1, 0, 1 << 20)).await
}

#[tokio::test]
async fn each_new_connection_logs_in_before_anything_else_and_waits_when_asked_to() {
    let server = guarded(|nth, request| {
        assert_eq!((request.protocol.as_str(), request.token.as_ref()), ("PLAIN", b"\0otto\0geheim".as_slice()));
        match nth {
            0 | 1 => Reply::Error(Code::RETRIABLE_AUTHENTICATE.error("not yet")),
            2 => AuthenticateResponse { challenge: Some(Bytes::new()) }.into(),
            _ => AuthenticateResponse { challenge: None }.into(),
        }
    })
    .await;
    let first = connect(&server, &otto()).await.unwrap();
    assert_eq!(server.requests.load(Ordering::SeqCst), 3);
    assert!(first.call(&exists("a")).await.unwrap().exists);
    let second = connect(&server, &otto()).await.unwrap();
    assert!(second.call(&exists("a")).await.unwrap().exists);
    assert_eq!(server.requests.load(Ordering::SeqCst), 6);
    connect(&server, &ConnectionOptions::default()).await.unwrap();
    assert_eq!(server.requests.load(Ordering::SeqCst), 6, "without credentials nothing is sent");
}

#[tokio::test]
async fn a_refused_login_is_asked_once_and_names_the_user_the_reason_and_a_way_out() {
    let server =
        guarded(|_, _| Reply::Error(Code::AUTHENTICATE.error("Authentication failed: Invalid username or password"))).await;
    let error = connect(&server, &otto()).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Invalid, Some(46)));
    let text = error.chain();
    assert!(text.contains("`otto`") && text.contains("Invalid username") && !text.contains("geheim"), "{text}");
    assert!(error.hint().is_some_and(|hint| hint.contains("security.sasl")), "{error:?}");
    assert_eq!(server.requests.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_server_that_has_no_login_or_another_one_is_told_apart() {
    let server = guarded(|_, _| AuthenticateResponse { challenge: Some(Bytes::from_static(b"prove it")) }.into()).await;
    let error = connect(&server, &otto()).await.unwrap_err();
    assert!(error.kind() == Kind::Unsupported && error.chain().contains("more than SASL/PLAIN"), "{}", error.chain());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let mut server = Framed::new(listener.accept().await.unwrap().0, ServerCodec);
        let hello = server.next().await.unwrap().unwrap();
        server.send(ResponseFrame::success(hello.id, &offers(&[(ApiKey::ListTables, 0)], None))).await.unwrap();
        assert!(server.next().await.is_none(), "the password went out");
    });
    let error = Connection::connect(&address, &otto(), &Runtime::simulated(1, 0, 1 << 20)).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Unsupported, Some(2)));
    assert!(error.chain().contains("does not offer `Authenticate`") && error.hint().is_some(), "{error:?}");
}

#[tokio::test]
async fn a_server_that_wants_a_login_that_we_do_not_have_is_told_with_a_way_out() {
    let server =
        FakeServer::start(None, 0, |_, _, _| Reply::Error(Code::AUTHENTICATE.error("has not completed authentication yet"))).await;
    let connection = connect(&server, &ConnectionOptions::default()).await.unwrap();
    let error = connection.call(&exists("a")).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Invalid, Some(46)));
    assert!(error.hint().is_some_and(|hint| hint.contains("security.protocol")), "{error:?}");
}
