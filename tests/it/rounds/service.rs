//! The daemon as a process, against a node: it tiers what comes, and ends as it was asked to.

use serde_json::json as value;

use super::binary::{Running, json, run};
use super::*;

fn soon(mut table: TableDescriptor) -> TableDescriptor {
    table.properties.insert("table.datalake.freshness".into(), "200ms".into());
    table
}

/// A settings file with these lines.
fn file(stage: &Stage, lines: &str) -> String {
    let path = stage.dir.path().join("service.toml");
    std::fs::write(&path, format!("cluster.servers = ['{}']\n{lines}", stage.address())).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Lines until a round of each of these tables has committed; ids, by when the lake is read, may be more.
fn until_committed(running: &mut Running, mut tables: BTreeSet<&str>) {
    while !tables.is_empty() {
        let round = json(&running.line().expect("it runs")).remove(0);
        if round["outcome"] != value!("idle") {
            tables.remove(round["table"]["table"].as_str().unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_daemon_tiers_what_comes_and_a_signal_ends_it_with_its_code() {
    let stage = Stage::new().await;
    let (ours, too) = (stage.table("orders", &soon(orders())).await, stage.table("events", &soon(events())).await);
    let others = stage.table("others", &soon(events())).await;
    stage.append(&others, 0..10, "").await;
    let config = file(&stage, "tables.exclude = ['*.others']\npoll.interval = '100ms'\nshutdown.grace = '10s'");
    for (turn, signal, code) in [(0, "TERM", 143), (1, "INT", 130)] {
        let mut running = Running::start(&["run", "--config", &config, "--json"]);
        for step in 0..2 {
            let first = (turn * 2 + step) * 50;
            stage.append(&ours, first..first + 50, "a").await;
            stage.append(&too, first..first + 50, "").await;
            running = tokio::task::spawn_blocking(move || {
                until_committed(&mut running, BTreeSet::from(["orders", "events"]));
                running
            })
            .await
            .unwrap();
        }
        running.signal(signal);
        assert_eq!(tokio::task::spawn_blocking(|| running.wait()).await.unwrap(), Some(code));
    }
    // What came after the last look is left for the next one; the tables are free, though the node's lease is 2 minutes.
    stage.tier().await;
    for path in [&ours, &too] {
        assert_eq!(stage.ids(path).await, Vec::from_iter(0..200), "{path}");
    }
    assert_eq!(stage.ids(&others).await, Vec::from_iter(0..10), "left to others, and free for them");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_it_at_once() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &soon(orders())).await;
    stage.append(&path, 0..50, "a").await;
    let config = file(&stage, "shutdown.grace = '1h'");
    let mut running = Running::failing(&["run", "--config", &config, "--json"], "commit.before_publish=hang");
    // It has the table, and its round hangs: the queue gives nothing to others.
    let staged = stage.lake(&path).await;
    until(&stage.runtime, "files are written", async || {
        let files = staged.store().list(staged.root()).await.unwrap();
        files.iter().any(|object| object.path.ends_with(".parquet")).then_some(())
    })
    .await;
    // Signals that come too close together are one to the process.
    let code = until(&stage.runtime, "a second signal ends it, and not an hour", async || {
        running.signal("TERM");
        running.try_wait()
    });
    assert_eq!(code.await, Some(143));
    assert_eq!(stage.newest(&path).await.map(|newest| newest.id), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_daemon_tells_what_it_does() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &soon(orders())).await;
    let mut refused = soon(orders());
    refused.custom_properties.insert("paimon.file.format".into(), "orc".into());
    stage.table("refused", &refused).await;
    stage.append(&path, 0..50, "a").await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let config = file(&stage, &format!("admin.listen = '{free}'"));
    let running = Running::start(&["run", "--config", &config]);
    let report = until(&stage.runtime, "both tables are told about", async || {
        let status = run(&["status", "--config", &config, "--json"], None).await;
        let report = (status.code == Some(0)).then(|| status.json().remove(0))?;
        let states: Vec<_> = report["tables"].as_array()?.iter().map(|table| table["state"].clone()).collect();
        (states == ["waiting", "unsupported"] && report["tables"][0]["rows"] == 50).then_some(report)
    })
    .await;
    assert_eq!((&report["service"]["phase"], &report["service"]["parallel"]), (&value!("running"), &value!(4)));
    let [done, held] = [0, 1].map(|index| &report["tables"][index]);
    assert_eq!((&done["freshness_ms"], &done["lag_rows"], &done["reason"]), (&value!(200), &value!(0), &value!(null)));
    assert!(held["reason"].as_str().unwrap().contains("orc") && held["next_look_ms"].is_i64(), "{held}");
    running.signal("TERM");
    assert_eq!(tokio::task::spawn_blocking(|| running.wait()).await.unwrap(), Some(143));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_leaves_to_others_what_the_filter_does_not_want() {
    let stage = Stage::new().await;
    let (mine, other) = (stage.table("mine", &events()).await, stage.table("other", &events()).await);
    for path in [&mine, &other] {
        stage.append(path, 0..10, "").await;
    }
    let config = file(&stage, "tables.include = ['demo.mine']");
    let ended = run(&["run", "--config", &config, "--once", "--json"], None).await;
    assert_eq!((ended.code, ended.json().len()), (Some(0), 1), "{ended:?}");
    assert_eq!((stage.ids(&mine).await, stage.ids(&other).await), (Vec::from_iter(0..10), vec![]));
    assert_eq!(stage.tier().await.len(), 2, "both are free");
    assert_eq!(stage.ids(&other).await, Vec::from_iter(0..10));
}
