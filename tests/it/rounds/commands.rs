//! What a user types against a running node, and the exit codes that come back. More in `cli`.

use serde_json::json as value;

use super::binary::{Running, json, run};
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_run_has_nothing_to_do_and_makes_no_snapshot() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 0..60, "a").await;
    let address = stage.address();
    let tier = ["run", "--server", &address, "--once", "--json"];
    let first = run(&tier, None).await;
    assert_eq!((first.code, &first.json()[0]["outcome"]), (Some(0), &value!({"committed": {"snapshot": 1}})), "{first:?}");
    let second = run(&tier, None).await;
    assert_eq!((second.code, &second.json()[0]["outcome"]), (Some(0), &value!("idle")), "{second:?}");
    assert_eq!(second.json().len(), 1, "once means once, also where a table is due again at once");
    assert_eq!(stage.newest(&path).await.map(|snapshot| snapshot.id), Some(1));

    // Text is for people: a line per round, nothing else on stdout.
    stage.append(&path, 60..100, "b").await;
    let third = run(&tier[..4], None).await;
    assert_eq!(third.code, Some(0), "{third:?}");
    assert!(third.stdout.starts_with("demo.orders: snapshot 2: 40 rows in 2 files, ") && third.stdout.lines().count() == 1);
    let planned = run(&["plan", "--server", &address, "--json"], None).await;
    let report = &planned.json()[0];
    assert_eq!((&report["known_snapshot"], &report["splits"], &report["faults"]), (&value!(2), &value!(0), &value!([])));
    let inspected = run(&["inspect", &stage.lake(&path).await.location(), "--json"], None).await;
    assert_eq!(inspected.code, Some(0), "{inspected:?}");
    let report = &inspected.json()[0];
    assert_eq!((&report["snapshot"]["total_rows"], &report["schema"]["options"]["bucket"]), (&value!(100), &value!("2")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_fail_decide_the_exit_code_and_do_not_hinder_the_others() {
    let stage = Stage::new().await;
    let mut other_format = orders();
    other_format.custom_properties.insert("paimon.file.format".into(), "orc".into());
    let refused = stage.table("a_refused", &other_format).await;
    let fine = stage.table("b_fine", &orders()).await;
    for path in [&refused, &fine] {
        stage.append(path, 0..30, "a").await;
    }
    let address = stage.address();
    let tier = ["run", "--server", &address, "--once"];
    let ended = run(&tier, None).await;
    assert_eq!(ended.code, Some(4), "{ended:?}");
    for said in ["error: 1 of 2 tables could not be tiered", "`demo.a_refused`", "file.format", "orc"] {
        assert!(ended.stderr.contains(said), "`{said}` is not in: {}", ended.stderr);
    }
    assert_eq!(stage.ids(&fine).await, Vec::from_iter(0..30));
    let planned = run(&["plan", "--server", &address, "--json"], None).await;
    assert_eq!(planned.code, Some(4), "{planned:?}");
    let reports = planned.json();
    assert_eq!((&reports[0]["faults"][0]["kind"], &reports[1]["faults"]), (&value!("unsupported"), &value!([])));

    // A lake table that is gone is a data fault, which is graver.
    let moved = stage.table("c_moved", &orders()).await;
    stage.append(&moved, 0..30, "a").await;
    let lake = stage.lake(&moved).await;
    std::fs::remove_dir_all(lake.store().local_root().unwrap().join(lake.root())).unwrap();
    let ended = run(&tier, None).await;
    assert_eq!(ended.code, Some(5), "{ended:?}");
    for said in ["error: 2 of 3 tables could not be tiered", "`demo.c_moved`", "is missing in", "hint: "] {
        assert!(ended.stderr.contains(said), "`{said}` is not in: {}", ended.stderr);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_can_t_be_planned_does_not_hide_the_others() {
    let stage = Stage::new().await;
    let broken = stage.table("a_broken", &orders()).await;
    let fine = stage.table("b_fine", &orders()).await;
    for path in [&broken, &fine] {
        stage.append(path, 0..30, "a").await;
    }
    assert_eq!(stage.tier().await.len(), 2);
    let lake = stage.lake(&broken).await;
    let snapshot = lake.store().local_root().unwrap().join(lake.root()).join("snapshot/snapshot-1");
    std::fs::write(snapshot, "{").unwrap();
    let address = stage.address();
    for plan in [vec!["plan", "--server", &address], vec!["plan", "--server", &address, "demo.a_broken"]] {
        let planned = run(&plan, None).await;
        assert_eq!(planned.code, Some(5), "{planned:?}");
        assert!(planned.stderr.contains("a_broken") && planned.stderr.contains("snapshot-1"), "{planned:?}");
        assert_eq!(planned.stdout.contains("demo.b_fine: 0 splits"), plan.len() == 3, "{planned:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_asked_to_stop_hands_its_table_back() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 0..60, "a").await;
    let address = stage.address();
    for (snapshot, signal, code) in [(1, "TERM", 143), (2, "INT", 130)] {
        let mut running = Running::start(&["run", "--server", &address, "--once", "--wait", "1h"]);
        assert!(running.line().unwrap().starts_with(&format!("demo.orders: snapshot {snapshot}")));
        running.signal(signal);
        assert_eq!(tokio::task::spawn_blocking(|| running.wait()).await.unwrap(), Some(code));
        // The node's lease is 2 minutes: the table is free for the next one because it was handed back.
        stage.append(&path, 60 * snapshot..60 * snapshot + 60, "a").await;
    }
    assert_eq!(stage.tier().await, [Some(3)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_not_due_or_has_its_lake_off_is_told_so() {
    let stage = Stage::new().await;
    let mut table = orders();
    table.properties.insert("table.datalake.freshness".into(), "1h".into());
    let path = stage.table("later", &table).await;
    stage.append(&path, 0..60, "a").await;
    let address = stage.address();
    let ended = run(&["run", "--server", &address, "--once"], None).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""), "{ended:?}");
    assert!(ended.stderr.contains("no table was due"), "{}", ended.stderr);
    table.properties.insert("table.datalake.enabled".into(), "false".into());
    stage.table("never", &table).await;
    let ended = run(&["plan", "--server", &address, "demo.never"], None).await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("table `demo.never` has its lake off"), "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_logs_are_one_object_per_line_and_tell_of_the_round() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 0..10, "a").await;
    let ended = run(&["run", "--server", &stage.address(), "--once", "--log-format", "json"], None).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines = json(&ended.stderr);
    let rounds: Vec<_> = lines.iter().filter(|line| line["target"] == "lakeward::round").collect();
    let [round] = &*rounds else { panic!("one line per round: {lines:?}") };
    let (version, files) = (stage.newest(&path).await.unwrap(), stage.files(&path).await);
    let bytes: i64 = files.iter().map(|file| file.entry.file.file_size).sum();
    for (figure, expected) in [
        ("table", value!("demo.orders")),
        ("level", value!("INFO")),
        ("message", value!("round committed")),
        ("outcome", value!("committed")),
        ("snapshot", value!(version.id)),
        ("rows", value!(10)),
        ("files", value!(files.len())),
        ("bytes", value!(bytes)),
        ("splits", value!(2)),
        ("attempts", value!(1)),
        ("cut", value!(false)),
        ("lag_rows", value!(0)),
    ] {
        assert_eq!(round[figure], expected, "{figure} of {round}");
    }
    for figure in ["plan_ms", "write_ms", "commit_ms", "lag_ms", "fetched_bytes"] {
        assert!(round[figure].is_u64(), "{figure} of {round}");
    }
    assert!(round["round"].is_string() && round.get("recovered").is_none(), "{round}");
    assert!(lines.iter().all(|line| line["level"] == "INFO"), "a good round leaves no warning: {lines:?}");
}
