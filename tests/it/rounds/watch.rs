//! What an operator sees of the daemon: endpoints, `status`, log lines.

use serde_json::{Value, json as value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::binary::{Running, json, run};
use super::*;

/// Code and body of an endpoint.
async fn ask(address: &str, place: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {place} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// The table's part of `/status`, once it is as wanted.
async fn seen(stage: &Stage, address: &str, table: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    until(&stage.runtime, "the status is as wanted", async || {
        let status: Value = serde_json::from_str(&ask(address, "/status").await.1).unwrap();
        let tables = status["tables"].as_array().unwrap();
        tables.iter().find(|status| status["table"]["table"] == table && wanted(status)).cloned()
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_can_be_watched_from_its_start_to_its_end() {
    let stage = Stage::new().await;
    let mut soon = orders();
    soon.properties.insert("table.datalake.freshness".into(), "200ms".into());
    let (path, broken) = (stage.table("orders", &soon).await, stage.table("broken", &soon).await);
    stage.append(&path, 0..60, "a").await;
    stage.append(&broken, 0..5, "a").await;
    let lake = stage.lake(&broken).await;
    std::fs::remove_dir_all(lake.store().local_root().unwrap().join(lake.root())).unwrap();

    let log = stage.dir.path().join("service.log");
    let server = stage.address();
    let listen = ["--set", "admin.listen=127.0.0.1:0", "--set", "poll.interval=100ms"];
    let args = [&["run", "--server", &server, "--log-format", "json", "--log-level", "debug"][..], &listen].concat();
    let running = Running::logging(&args, &log);
    // A line that is being written is none yet.
    let lines = || {
        let text = std::fs::read_to_string(&log).unwrap();
        json(&text[..text.rfind('\n').map_or(0, |end| end + 1)])
    };
    let address = until(&stage.runtime, "it says where it listens", async || {
        let found = lines().iter().find(|line| line["target"] == "lakeward::admin").cloned();
        Some(found?["address"].as_str().unwrap().to_owned())
    })
    .await;

    let orders = seen(&stage, &address, "orders", |table| table["rows"] == 60 && table["state"] == "waiting").await;
    assert_eq!((&orders["snapshot"], &orders["lag_rows"], &orders["reason"]), (&value!(1), &value!(0), &Value::Null));
    let held = seen(&stage, &address, "broken", |table| table["state"] == "held").await;
    assert!(held["reason"].as_str().unwrap().contains("lake table of `demo.broken` is missing"), "{held}");
    assert_eq!((&held["kind"], held["help"].is_string(), &held["rounds"]), (&value!("data"), true, &value!(0)), "{held}");

    for place in ["/healthz", "/readyz"] {
        assert_eq!(ask(&address, place).await, (200, "ok\n".to_owned()), "{place}: one held table is its own trouble");
    }
    let (files, rounds) = (stage.files(&path).await, lines());
    let bytes: i64 = files.iter().map(|file| file.entry.file.file_size).sum();
    let committed: Vec<_> = rounds.iter().filter(|line| line["outcome"] == "committed").collect();
    let [round] = &*committed else { panic!("one line per round: {committed:?}") };
    assert_eq!((&round["target"], &round["rows"], &round["bytes"]), (&value!("lakeward::round"), &value!(60), &value!(bytes)));
    let metrics = ask(&address, "/metrics").await.1;
    for line in [
        "tiering_written_rows_total 60".to_owned(),
        format!("tiering_written_files_total {}", files.len()),
        format!("tiering_written_bytes_total {bytes}"),
        format!("tiering_fetched_bytes_total {}", round["fetched_bytes"]),
        "tiering_round_finished_total{outcome=\"committed\"} 1".to_owned(),
        "tiering_round_seconds_count{stage=\"commit\"} 1".to_owned(),
        "tiering_commit_attempts_total 1".to_owned(),
        "tiering_round_failed_total{kind=\"data\"} 1".to_owned(),
        "tiering_table_held_total{kind=\"data\"} 1".to_owned(),
        "tiering_held_tables{kind=\"data\"} 1".to_owned(),
        "tiering_tables{state=\"held\"} 1".to_owned(),
        "tiering_table_rows_total{table=\"demo.orders\"} 60".to_owned(),
        "tiering_table_lag_rows{table=\"demo.orders\"} 0".to_owned(),
        "tiering_budget_used_bytes 0".to_owned(),
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} in\n{metrics}");
    }

    let told = run(&["status", "--admin", &address], None).await;
    assert_eq!((told.code, &*told.stderr), (Some(0), ""), "{told:?}");
    let row = |table: &str| told.stdout.lines().find(|line| line.starts_with(table)).unwrap().to_owned();
    assert!(row("demo.broken").contains("held (data)"), "{}", told.stdout);
    assert!(row("  why ").contains("is missing in") && row("  help").contains("see the same warehouse"), "{}", told.stdout);
    assert!(row("demo.orders").contains(" ago "), "{}", told.stdout);
    let told = run(&["status", "--admin", &address, "--json"], None).await;
    assert_eq!(told.json()[0]["tables"].as_array().unwrap().len(), 2, "{told:?}");

    let second = run(&["run", "--server", &server, "--set", &format!("admin.listen={address}")], None).await;
    assert_eq!(second.code, Some(2), "{second:?}");
    assert!(second.stderr.contains(&format!("listen on `{address}`")), "{}", second.stderr);
    running.signal("TERM");
    assert_eq!(tokio::task::spawn_blocking(|| running.wait()).await.unwrap(), Some(143));
    let gone = run(&["status", "--admin", &address], None).await;
    assert_eq!(gone.code, Some(3), "{gone:?}");
    assert!(
        gone.stderr.contains(&format!("hint: it answers while `lakeward run` runs with `--set admin.listen={address}`")),
        "{gone:?}"
    );
}
