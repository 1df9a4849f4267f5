//! `lakeward backfill` as it is typed: exit codes, the last line, and what a signal or a stalled source leaves in the lake.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json as value;

use super::binary::{Running, run};
use super::*;

/// The last line as keys and values.
fn keys(stdout: &str) -> BTreeMap<&str, &str> {
    let line = stdout.lines().last().unwrap().strip_prefix("backfill ").unwrap();
    line.split(' ').map(|pair| pair.split_once('=').unwrap()).collect()
}

/// Batches are fetched one by one, so that a round can end between them.
fn config(dir: &Path, more: &str) -> String {
    let file = dir.join("backfill.toml");
    std::fs::write(&file, format!("read.bucket_bytes = '1KiB'\n{more}")).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Some batches for both buckets of a partition.
async fn fill(stage: &Stage, path: &TablePath, days: &[&str]) -> i64 {
    let mut next = 0;
    for day in days {
        for _ in 0..8 {
            stage.append(path, next..next + 40, day).await;
            next += 40;
        }
    }
    next
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_there_is_brought_into_the_lake_and_a_second_backfill_has_nothing_to_do() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    fill(&stage, &path, &["a", "b"]).await;
    let address = stage.address();
    let unknown = run(&["backfill", "demo.orders", "--server", &address, "--partition", "day=c"], None).await;
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    assert!(unknown.stderr.contains("no partition `day=c`") && unknown.stderr.contains("hint: there is, nearest first: `day=a`"));
    assert_eq!(keys(&unknown.stdout)["outcome"], "failed");

    let one = run(&["backfill", "demo.orders", "--server", &address, "--partition", "day=b", "--json"], None).await;
    assert_eq!(one.code, Some(0), "{one:?}");
    let report = &one.json()[0];
    assert_eq!((&report["outcome"], &report["rows"], &report["rows_left"]), (&value!("done"), &value!(320), &value!(0)));
    assert_eq!(stage.ids(&path).await, Vec::from_iter(320..640));

    let rest = run(&["backfill", "demo.orders", "--server", &address], None).await;
    assert_eq!(rest.code, Some(0), "{rest:?}");
    let told = keys(&rest.stdout);
    assert_eq!(rest.stdout.lines().count(), 1, "stdout is the last line alone");
    for (key, expected) in [
        ("table", "demo.orders"),
        ("outcome", "done"),
        ("rows", "320"),
        ("rows_by_others", "0"),
        ("rows_gone", "0"),
        ("rows_left", "0"),
        ("rounds", "1"),
        ("snapshot", "2"),
        ("dropped_partitions", "0"),
    ] {
        assert_eq!(told.get(key), Some(&expected), "{key} of {}", rest.stdout);
    }
    assert!(told["fetched_bytes"].parse::<u64>().unwrap() > 0 && told["seconds"].parse::<f64>().unwrap() > 0.0);
    assert_eq!(stage.ids(&path).await, Vec::from_iter(0..640));

    let again = run(&["backfill", "demo.orders", "--server", &address], None).await;
    assert_eq!((again.code, keys(&again.stdout)["rows"], keys(&again.stdout)["rounds"]), (Some(0), "0", "0"), "{again:?}");
    assert_eq!(stage.newest(&path).await.map(|snapshot| snapshot.id), Some(2));
    // Fluss knows it too: a service goes on from there.
    assert_eq!(stage.tier().await, [None]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_source_is_cut_at_the_rounds_end_and_what_came_is_committed() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    let rows = fill(&stage, &path, &["a"]).await;
    let config = config(stage.dir.path(), "round.time_max = '2s'");
    let typed = ["backfill", "demo.orders", "--server", &stage.address(), "--config", &config, "--json"];
    let ended = run(&typed, Some("read.before_fetch=hang@5".into())).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report = &ended.json()[0];
    assert_eq!((&report["rows"], &report["rounds"], &report["snapshot"]), (&value!(rows), &value!(2), &value!(2)), "{ended:?}");
    assert_eq!(stage.ids(&path).await, Vec::from_iter(0..rows));
    assert_eq!(stage.tier().await, [None], "the offsets are those of the rows");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_ends_a_backfill_after_it_has_committed_what_it_read() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    let rows = fill(&stage, &path, &["a"]).await;
    let config = config(stage.dir.path(), "");
    let address = stage.address();
    let mut left = rows;
    for (signal, code) in [("TERM", 143), ("INT", 130)] {
        let typed = ["backfill", "demo.orders", "--server", &address, "--config", &config, "--json"];
        let mut running = Running::failing_aloud(&typed, "read.before_fetch=hang@5");
        running.says("fail point `read.before_fetch` hangs");
        running.signal(signal);
        let report: serde_json::Value = serde_json::from_str(&running.line().unwrap()).unwrap();
        assert_eq!(tokio::task::spawn_blocking(|| running.wait()).await.unwrap(), Some(code));
        assert_eq!(report["outcome"], value!("stopped"), "{report}");
        let written = report["rows"].as_i64().unwrap();
        assert!(written > 0 && written < left, "{report}");
        left -= written;
        assert_eq!(report["rows_left"], value!(left));
        assert_eq!(i64::try_from(stage.ids(&path).await.len()).unwrap(), rows - left);
    }
    let ended = run(&["backfill", "demo.orders", "--server", &address], None).await;
    assert_eq!((ended.code, keys(&ended.stdout)["rows"]), (Some(0), left.to_string().as_str()), "{ended:?}");
    assert_eq!(stage.ids(&path).await, Vec::from_iter(0..rows));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_hangs_does_not_hold_the_end_up_beyond_the_grace() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    let rows = fill(&stage, &path, &["a"]).await;
    let config = config(stage.dir.path(), "shutdown.grace = '1s'");
    let address = stage.address();
    let typed = ["backfill", "demo.orders", "--server", &address, "--config", &config];
    let mut running = Running::failing_aloud(&typed, "commit.after_publish=hang");
    running.says("fail point `commit.after_publish` hangs");
    running.signal("TERM");
    let line = running.line().unwrap();
    assert_eq!(keys(&line)["outcome"], "stopped");
    assert_eq!(tokio::task::spawn_blocking(|| running.wait()).await.unwrap(), Some(143));
    // It is in the lake, and whoever comes next records it.
    let ended = run(&["backfill", "demo.orders", "--server", &address], None).await;
    assert_eq!((ended.code, keys(&ended.stdout)["rows"], keys(&ended.stdout)["snapshot"]), (Some(0), "0", "1"), "{ended:?}");
    assert_eq!(stage.ids(&path).await, Vec::from_iter(0..rows));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_not_be_backfilled_has_its_exit_code() {
    let stage = Stage::new().await;
    let address = stage.address();
    let missing = run(&["backfill", "demo.none", "--server", &address], None).await;
    assert_eq!(missing.code, Some(2), "{missing:?}");
    let mut table = orders();
    table.custom_properties.insert("paimon.file.format".into(), "orc".into());
    let path = stage.table("refused", &table).await;
    stage.append(&path, 0..10, "a").await;
    let refused = run(&["backfill", "demo.refused", "--server", &address], None).await;
    assert_eq!(refused.code, Some(4), "{refused:?}");
    assert!(refused.stderr.contains("file.format"), "{}", refused.stderr);
    let mut off = orders();
    off.properties.insert("table.datalake.enabled".into(), "false".into());
    stage.table("off", &off).await;
    let ended = run(&["backfill", "demo.off", "--server", &address], None).await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("has its lake off") && ended.stderr.contains("hint: set `table.datalake.enabled`"));

    // Dropped while it is read.
    let path = stage.table("orders", &orders()).await;
    fill(&stage, &path, &["a"]).await;
    let config = config(stage.dir.path(), "round.time_max = '3s'");
    let typed = ["backfill", "demo.orders", "--server", &address, "--config", &config];
    let mut running = Running::failing_aloud(&typed, "read.before_fetch=hang@5");
    running.says("fail point `read.before_fetch` hangs");
    stage.admin.drop_table(&path, false).await.unwrap();
    let line = running.line().unwrap();
    assert_eq!(keys(&line)["outcome"], "failed", "{line}");
    assert_eq!(tokio::task::spawn_blocking(|| running.wait()).await.unwrap(), Some(7));
}
