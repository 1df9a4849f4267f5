//! The endpoints over real sockets: what they answer, and what they put up with.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::daemon::board::Phase;
use crate::model::{TableId, TablePath};

async fn admin() -> (Admin, Board, Runtime) {
    let runtime = Runtime::simulated(1, 50_000, 1 << 20);
    let board = Board::new(4, 10_000);
    board.set_service(|service| {
        service.phase = Phase::Running;
        service.heartbeat_ms = Some(49_000);
    });
    let fresh = || TableStatus::new(TablePath::new("demo", "orders"), TableId(7), TableState::Tiering, 20_000);
    board.set_table(TableId(7), fresh, |table| (table.tiered_to_ms, table.rows) = (Some(38_000), 77));
    let admin = Admin::start("127.0.0.1:0", board.clone(), &runtime).await.unwrap();
    (admin, board, runtime)
}

/// What is answered to these bytes, until the connection is closed.
async fn say(admin: &Admin, request: &str) -> String {
    let mut stream = TcpStream::connect(admin.address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A reset after an answer that nobody waited for is an end too.
    drop(stream.read_to_end(&mut answer).await);
    String::from_utf8(answer).unwrap()
}

async fn ask(admin: &Admin, place: &str) -> (u16, String) {
    let answer = say(admin, &format!("GET {place} HTTP/1.1\r\nHost: here\r\n\r\n")).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[tokio::test]
async fn each_endpoint_tells_its_part_of_the_board() {
    let (admin, board, runtime) = admin().await;
    let (code, body) = ask(&admin, "/status").await;
    let told: StatusReport = serde_json::from_str(&body).unwrap();
    assert_eq!((code, told.tables[0].rows), (200, 77));
    let expected = StatusReport { now_ms: told.now_ms, tables: board.tables(told.now_ms), ..StatusReport::new(&board, &runtime) };
    assert_eq!(told, expected);
    let (code, body) = ask(&admin, "/metrics").await;
    assert_eq!(code, 200);
    for line in [
        "tiering_rounds_running 1\n",
        "tiering_tables{state=\"held\"} 0\n",
        "tiering_budget_bytes 1048576\n",
        "# TYPE tiering_written_rows_total counter\n",
    ] {
        assert!(body.contains(line), "{line} in\n{body}");
    }
    for (series, least) in [
        ("tiering_table_lag_seconds{table=\"demo.orders\"} ", 12.0),
        ("tiering_table_success_age_seconds{table=\"demo.orders\"} ", 40.0),
        ("tiering_heartbeat_age_seconds ", 1.0),
    ] {
        let value: f64 = body.lines().find_map(|line| line.strip_prefix(series)).unwrap().parse().unwrap();
        assert!((least..least + 30.0).contains(&value), "{series} is {value}, and {least} s at the start of the test");
    }
    for (place, code, body) in
        [("/healthz", 200, "ok\n"), ("/readyz", 200, "ok\n"), ("/", 200, PLACES), ("/elsewhere", 404, PLACES)]
    {
        assert_eq!(ask(&admin, place).await, (code, body.to_owned()), "{place}");
    }
    let never = || TableStatus::new(TablePath::new("demo", "orders"), TableId(7), TableState::Waiting, 0);
    board.set_table(TableId(7), never, |table| table.enter(TableState::Elsewhere, 50_000));
    let body = ask(&admin, "/metrics").await.1;
    assert!(
        !body.contains("tiering_table_lag_") && !body.contains("tiering_table_success_age_seconds{"),
        "another service brings it on"
    );
    assert!(body.contains("tiering_table_rows_total{table=\"demo.orders\"} 77\n"), "{body}");
    board.set_service(|service| (service.phase, service.heart_alive) = (Phase::Stopping, false));
    board.remove(TableId(7));
    assert_eq!(ask(&admin, "/healthz").await, (503, "the heartbeat task has ended\n".to_owned()));
    assert_eq!(ask(&admin, "/readyz").await.0, 503);
    assert!(!ask(&admin, "/metrics").await.1.contains("demo.orders"));
}

#[tokio::test]
async fn what_is_no_sound_request_is_refused() {
    let (admin, ..) = admin().await;
    let long = "x".repeat(HEAD_BYTES_MAX);
    let many: String = (0..=HEADERS_MAX).map(|at| format!("h{at}: x\r\n")).collect();
    for (request, code) in [
        ("POST /status HTTP/1.1\r\nHost: here\r\nContent-Length: 1\r\n\r\nx".to_owned(), "405"),
        (format!("GET /status HTTP/1.1\r\nHost: {long}\r\n\r\n"), "431"),
        (format!("GET /status HTTP/1.1\r\n{many}\r\n"), "431"),
        ("\u{1}\u{2}\u{3} hello\r\n\r\n".to_owned(), "400"),
    ] {
        let answer = say(&admin, &request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{answer}");
    }
    assert_eq!(ask(&admin, "/healthz").await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn silent_connections_are_closed_and_keep_nobody_out() {
    let (admin, ..) = admin().await;
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        silent.push(TcpStream::connect(admin.address()).await.unwrap());
    }
    assert_eq!(ask(&admin, "/healthz").await.0, 200);
    for stream in &mut silent {
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "closed by the service");
    }
}

#[tokio::test]
async fn with_one_connection_too_many_the_oldest_is_closed_and_a_half_closed_one_gets_its_answer() {
    let (admin, ..) = admin().await;
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        let mut stream = TcpStream::connect(admin.address()).await.unwrap();
        stream.write_all(b"GET /status HTTP/1.1\r\nX: ").await.unwrap();
        silent.push(stream);
    }
    assert_eq!(ask(&admin, "/healthz").await.0, 200);
    assert_eq!(silent[0].read(&mut [0]).await.unwrap_or(0), 0);
    // Who sends a whole request and closes its side gets the answer.
    let mut stream = TcpStream::connect(admin.address()).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn an_address_that_is_taken_or_none_is_named_and_the_end_of_the_handle_ends_the_endpoints() {
    let (admin, board, runtime) = admin().await;
    let taken = admin.address().to_string();
    for wrong in [&*taken, "127.0.0.1:99999", "no such host:80"] {
        let error = Admin::start(wrong, board.clone(), &runtime).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.chain().contains(wrong) && error.hint().is_some(), "{}", error.chain());
    }
    let open = TcpStream::connect(admin.address()).await.unwrap();
    drop(admin);
    while TcpListener::bind(&taken).await.is_err() {
        tokio::task::yield_now().await;
    }
    drop(open);
}
