//! `lakeward check` against a running node, and settings from every source on their way into commands.

use std::path::Path;

use lakeward::fluss::connection::Credentials;

use super::binary::{Ended, json, run, run_in};
use super::*;

/// Every line as check, on, state.
fn lines(ended: &Ended) -> Vec<(String, String, String)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    json(&ended.stdout).iter().map(|line| (text(&line["check"]), text(&line["on"]), text(&line["state"]))).collect()
}

fn has(ended: &Ended, check: &str, on: &str, state: &str) -> bool {
    lines(ended).contains(&(check.to_owned(), on.to_owned(), state.to_owned()))
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            found.extend(files_below(&entry));
        } else {
            found.push(entry);
        }
    }
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sound_set_up_passes_every_check_and_nothing_is_left_behind() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    stage.table("fresh", &events()).await;
    stage.append(&path, 0..60, "a").await;
    stage.tier().await;
    let warehouse = stage.lake(&path).await.store().local_root().unwrap().to_owned();
    let before = files_below(&warehouse);
    let address = stage.address();
    let ended = run(&["check", "--server", &address, "--json"], None).await;
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    for (check, on) in [
        ("configuration", ""),
        ("connect", address.as_str()),
        ("cluster", &address),
        ("warehouse", warehouse.to_str().unwrap()),
        ("table", "demo.fresh"),
        ("table", "demo.orders"),
        ("remote", ""),
    ] {
        assert!(has(&ended, check, on, "ok"), "{check} {on}: {}", ended.stdout);
    }
    assert!(lines(&ended).iter().all(|(.., state)| state == "ok"), "{}", ended.stdout);
    assert_eq!(files_below(&warehouse), before);

    // For people: one line each, and how many.
    let ended = run(&["check", "--server", &address], None).await;
    assert!(ended.code == Some(0) && ended.stdout.contains("ok    table demo.orders: 0 splits, 0 records behind"), "{ended:?}");
    assert!(ended.stderr.contains(" checks, 0 warnings, 0 faults"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_round_could_not_do_is_said_with_the_way_out_and_decides_the_exit_code() {
    let stage = Stage::new().await;
    let mut expiring = events();
    expiring.custom_properties.insert("paimon.consumer.expiration-time".into(), "2 h".into());
    stage.table("expiring", &expiring).await;
    let mut refused = events();
    refused.custom_properties.insert("paimon.file.format".into(), "orc".into());
    stage.table("refused", &refused).await;
    let address = stage.address();
    let ended = run(&["check", "--server", &address, "--json"], None).await;
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(has(&ended, "table", "demo.expiring", "warn") && has(&ended, "table", "demo.expiring", "ok"), "{}", ended.stdout);
    assert!(ended.stdout.contains("`consumer.expiration-time` is 2 h"), "{}", ended.stdout);
    assert!(has(&ended, "table", "demo.refused", "fault"), "{}", ended.stdout);
    assert!(ended.stderr.contains("`table demo.refused`"), "{}", ended.stderr);

    // A table that is left to others is no fault of this service.
    let ended = run(&["check", "--server", &address, "--json", "--tables.exclude", "*.refused"], None).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("1 with the lake enabled, 1 more are left to others"), "{}", ended.stdout);

    // A lake that is moved away: the warehouse is named, and each table in it.
    let lake = stage.lake(&"demo.expiring".parse().unwrap()).await;
    let warehouse = lake.store().local_root().unwrap().to_owned();
    let away = warehouse.with_extension("away");
    std::fs::rename(&warehouse, &away).unwrap();
    let ended = run(&["check", "--server", &address, "--json", "--tables.exclude", "*.refused"], None).await;
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert!(has(&ended, "warehouse", warehouse.to_str().unwrap(), "fault"), "{}", ended.stdout);
    assert!(has(&ended, "table", "demo.expiring", "fault") && !warehouse.exists(), "{}", ended.stdout);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_of_several_that_answers_is_enough() {
    let stage = Stage::new().await;
    let both = format!("127.0.0.1:1,{}", stage.address());
    let ended = run(&["check", "--server", &both, "--json"], None).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(has(&ended, "connect", "127.0.0.1:1", "warn") && has(&ended, "connect", &stage.address(), "ok"), "{}", ended.stdout);
    assert_eq!(run(&["plan", "--server", &both], None).await.code, Some(0));
    let ended = run(&["check", "--server", "127.0.0.1:1", "--json"], None).await;
    assert!(ended.code == Some(3) && has(&ended, "connect", "127.0.0.1:1", "fault"), "{ended:?}");
    let ended = run(&["check"], None).await;
    assert!(ended.code == Some(2) && ended.stdout.contains("LAKEWARD_CLUSTER_SERVERS"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_reach_a_round_from_file_environment_and_a_flink_jobs_arguments() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 0..60, "a").await;
    let address = stage.address();
    let warehouse = stage.lake(&path).await.store().local_root().unwrap().to_str().unwrap().to_owned();
    let pasted = [
        "run",
        "--once",
        "--fluss.bootstrap.servers",
        &address,
        "--datalake.format",
        "paimon",
        "--datalake.paimon.metastore",
        "filesystem",
        "--datalake.paimon.warehouse",
        &format!("file://{warehouse}/"),
        "--fluss.client.scanner.log.max-poll-records",
        "500",
    ];
    let ended = run(&pasted, None).await;
    assert!(ended.code == Some(0) && ended.stdout.starts_with("demo.orders: snapshot 1: 60 rows"), "{ended:?}");
    assert!(ended.stderr.contains("max-poll-records: has no meaning here"), "{}", ended.stderr);

    // Written where the cluster says, or not at all.
    let ended = run(&["run", "--once", "--server", &address, "--datalake.paimon.warehouse=/elsewhere"], None).await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains(&format!("`/elsewhere` in the settings, `{warehouse}` in the cluster")), "{}", ended.stderr);

    let file = stage.dir.path().join("c.toml");
    std::fs::write(&file, "log.format = 'json'\ntables.exclude = ['demo.orders']").unwrap();
    stage.append(&path, 60..90, "a").await;
    let tier = ["run", "--once", "--config", file.to_str().unwrap()];
    let ended = run_in(&tier, &[("LAKEWARD_CLUSTER_SERVERS", &address), ("LAKEWARD_TABLES_EXCLUDE", "demo.none")]).await;
    assert!(ended.code == Some(0) && ended.stdout.starts_with("demo.orders: snapshot 2: 30 rows"), "{ended:?}");
    assert!(json(&ended.stderr).iter().any(|line| line["message"] == "round committed"), "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_shown_by_no_command_at_any_level() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 0..10, "a").await;
    let (address, canary) = (stage.address(), "c4nary");
    let file = stage.dir.path().join("password");
    std::fs::write(&file, canary).unwrap();
    let given = [
        vec!["--set", "security.sasl.password=c4nary"],
        vec!["--set=security.sasl.password=c4nary"],
        vec!["--security.sasl.password", canary],
        vec!["--fluss.client.security.sasl.password", canary],
        vec!["--security.sasl.password=c4nary", "--set=security.sasl.password=c4nary"],
        vec!["--fluss.client.security.sasl.pasword", canary],
        vec!["--set", canary],
        vec!["--security.sasl.password=c4nary", "--security.sasl.username"],
        vec!["--security.sasl.password_file", file.to_str().unwrap()],
    ];
    let mut codes = BTreeSet::new();
    for (at, secret) in given.iter().enumerate() {
        for command in ["run", "plan", "check"] {
            // Nobody is there; a node that wants no login.
            for server in ["127.0.0.1:1", &address] {
                let protocol = if at % 2 == 0 { "security.protocol=sasl" } else { "security.protocol=plaintext" };
                let mut args = vec![command, "--server", server, "--set", protocol, "--set", "security.sasl.username=otto"];
                args.extend(["--log-level", "trace"]);
                args.extend(secret);
                if command == "run" {
                    args.push("--once");
                }
                let ended = run(&args, None).await;
                assert!(!format!("{ended:?}").contains(canary), "{args:?}: {ended:?}");
                codes.insert(ended.code.unwrap());
            }
        }
    }
    assert!(codes.contains(&2) && codes.contains(&3), "{codes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_is_tried_and_a_wrong_password_is_told_apart_from_a_wrong_address() {
    let folder = tempfile::tempdir().unwrap();
    let users = vec![Credentials::new("otto", "c4nary-right").unwrap()];
    let runtime = Runtime::system(2, 64 << 20).unwrap();
    let node = Node::start(NodeOptions { users, ..NodeOptions::new(folder.path()) }, runtime).await.unwrap();
    let address = node.address().to_string();
    let check = ["check", "--json", "--log-level", "trace", "--server", &address];
    let login = [&check[..], &["--security.protocol", "sasl", "--security.sasl.username", "otto"]].concat();
    let password = "LAKEWARD_SECURITY_SASL_PASSWORD";
    let right = run_in(&login, &[(password, "c4nary-right")]).await;
    assert!(right.code == Some(0) && right.stdout.contains("logged in as `otto`"), "{right:?}");
    let wrong = run_in(&login, &[(password, "c4nary-wrong")]).await;
    assert!(wrong.code == Some(2) && has(&wrong, "connect", &address, "fault"), "{wrong:?}");
    assert!(wrong.stdout.contains("the server is there, but does not let us in"), "{wrong:?}");
    let none = run(&check, None).await;
    assert!(none.code == Some(2) && none.stdout.contains("security.protocol"), "{none:?}");
    for ended in [right, wrong, none] {
        assert!(!format!("{ended:?}").contains("c4nary"), "{ended:?}");
    }
}
