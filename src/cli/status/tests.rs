//! The text of a made-up board, and answers of services that are none.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::daemon::board::ServiceStatus;
use crate::error::Kind;
use crate::model::{SnapshotId, TableId, TablePath};

const NOW: i64 = 1_764_500_000_000;

fn table(id: i64, name: &str, state: TableState, since_ms: i64) -> TableStatus {
    TableStatus::new(TablePath::new("sales", name), TableId(id), state, NOW - since_ms)
}

fn made_up() -> StatusReport {
    let held = TableStatus {
        lag_seconds: Some(7_385),
        lag_rows: Some(1_200_000),
        snapshot: Some(SnapshotId(3)),
        last_success_ms: Some(NOW - 7_385_000),
        next_look_ms: Some(NOW + 181_000),
        reason: Some("partition `day=a` of table `sales.broken` has files of `2` buckets\nin the lake, but `4` in Fluss".into()),
        kind: Some(Kind::Data),
        help: Some("write that partition again".into()),
        ..table(1, "broken", TableState::Held, 725_000)
    };
    let healthy = TableStatus {
        lag_seconds: Some(4),
        lag_rows: Some(0),
        snapshot: Some(SnapshotId(1_017)),
        last_success_ms: Some(NOW - 4_100),
        next_look_ms: Some(NOW + 5_900),
        ..table(2, "orders", TableState::Waiting, 4_000)
    };
    let late = TableStatus {
        reason: Some("the store does not answer".into()),
        kind: Some(Kind::Unavailable),
        next_look_ms: Some(NOW - 1),
        ..table(4, "slow", TableState::BackingOff, 300)
    };
    StatusReport {
        version: "1.2.3".into(),
        now_ms: NOW,
        service: ServiceStatus {
            phase: Phase::Running,
            started_ms: NOW - 183_600_000,
            heart_alive: true,
            heartbeat_ms: Some(NOW - 400),
            heartbeat_fault: None,
            parallel: 4,
        },
        budget_bytes: 1_610_612_736,
        budget_used_bytes: 12 << 20,
        tables: vec![held, healthy, table(3, "new", TableState::Tiering, 61_000), late],
    }
}

#[test]
fn the_text_has_each_tables_state_reason_since_when_and_what_would_help() {
    let expected = "\
lakeward 1.2.3, running for 2 d 3 h; the coordinator answered 400 ms ago
2 of 4 tables in hand; 12.0 MiB of 1.5 GiB in flight; 1 waiting, 1 tiering, 1 backing off, 1 held

table                             state         for        lag  rows left  snapshot   last success     next look
sales.broken                held (data)  12 min 5 s  2 h 3 min  1,200,000         3  2 h 3 min ago  in 3 min 1 s
  why   partition `day=a` of table `sales.broken` has files of `2` buckets in the lake, but `4` in Fluss
  help  write that partition again
sales.orders                    waiting         4 s        4 s          0      1017        4 s ago        in 5 s
sales.new                       tiering   1 min 1 s          –          –         –              –             –
sales.slow    backing off (unavailable)      300 ms          –          –         –              –           due
  why   the store does not answer";
    assert_eq!(text(&made_up()), expected);
}

#[test]
fn a_service_without_tables_or_answers_says_so() {
    let mut report = made_up();
    report.tables.clear();
    report.service.heartbeat_ms = None;
    report.service.phase = Phase::Starting;
    report.service.heartbeat_fault = Some("connection refused\u{1b}[31m".into());
    let told = text(&report);
    for part in ["starting for 2 d 3 h; the coordinator has not answered yet", "no table yet", "refused [31m", "0 of 4 tables"] {
        assert!(told.contains(part), "{told}");
    }
    report.service.heart_alive = false;
    assert!(text(&report).contains("the heartbeat task has ended"));
}

#[test]
fn an_address_to_listen_on_becomes_one_to_connect_to() {
    for (listen, expected) in
        [("0.0.0.0:9180", "127.0.0.1:9180"), ("[::]:9180", "[::1]:9180"), ("10.0.0.7:1", "10.0.0.7:1"), ("host:2", "host:2")]
    {
        assert_eq!(reachable(listen).unwrap(), expected);
    }
    assert_eq!(reachable("127.0.0.1:0").unwrap_err().kind(), Kind::Invalid);
}

#[tokio::test]
async fn what_answers_wrongly_or_not_at_all_is_told_apart() {
    let ok = "HTTP/1.1 200 OK\r\nContent-Length:";
    for (answer, expected) in [
        (String::new(), Some(Kind::Unavailable)),
        ("SSH-2.0-OpenSSH_9.6\r\n".to_owned(), Some(Kind::Invalid)),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned(), Some(Kind::Invalid)),
        (format!("{ok} 99999999999\r\n\r\nx"), Some(Kind::Unavailable)),
        (format!("{ok} 2\r\n\r\n{{}}"), None),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            drop(stream.read(&mut [0; 1024]).await);
            stream.write_all(answer.as_bytes()).await.unwrap();
        };
        let (fetched, ()) = tokio::join!(fetch(&address), serve);
        assert_eq!(fetched.as_ref().err().map(Error::kind), expected, "{answer}: {fetched:?}");
    }
}
