//! The command line by itself: exit codes, streams, the quickstart. Against a running node: `rounds::commands`.

use std::process::Command;

use super::rounds::Stage;
use super::rounds::binary::{json, run};

#[tokio::test]
async fn exit_codes_are_those_of_the_readme() {
    for (args, expected, word) in [
        (&["--help"][..], 0, "quickstart"),
        (&["--version"], 0, "lakeward"),
        (&["run", "--help"], 0, "--once"),
        (&[], 2, "Usage"),
        (&["polish"], 2, "polish"),
        (&["run", "--server", "127.0.0.1:1", "--once", "--wait", "soon"], 2, "soon"),
        (&["run", "--server", "localhost", "--once"], 2, "`localhost` is not of the form HOST:PORT"),
        (&["inspect", "/nowhere/at/all"], 2, "hint:"),
        (&["inspect", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")], 2, "no lake table"),
        (&["run", "--server", "127.0.0.1:1"], 3, "find the cluster"),
        (&["status", "--admin", "127.0.0.1:1"], 3, "`--set admin.listen=127.0.0.1:1`"),
        (&["status", "--config", "config/tiering.toml"], 2, "has the admin endpoints off"),
        (&["inspect", "gs://bucket/table"], 4, "gs"),
    ] {
        let ended = run(args, None).await;
        assert_eq!(ended.code, Some(expected), "{args:?}: {ended:?}");
        let stream = if expected == 0 { &ended.stdout } else { &ended.stderr };
        assert!(stream.contains(word), "{args:?}: {stream}");
        assert!(expected == 0 || ended.stdout.is_empty(), "{args:?}: an error is no data: {ended:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_there_ends_with_3_and_an_unknown_table_with_2() {
    let stage = Stage::new().await;
    let server = stage.address();
    for (args, expected) in [
        (&["plan", "--server", "127.0.0.1:1"][..], 3),
        (&["run", "--server", "127.0.0.1:1", "--once"], 3),
        (&["plan", "--server", &server, "demo.nothing"], 2),
        (&["plan", "--server", &server, "nothing"], 2),
    ] {
        let ended = run(args, None).await;
        assert_eq!(ended.code, Some(expected), "{args:?}: {ended:?}");
    }
}

#[tokio::test]
async fn a_reader_that_leaves_early_is_a_clean_end() {
    let mut command = Command::new("sh");
    command.args(["-c", "\"$0\" --help | true; echo ended", env!("CARGO_BIN_EXE_lakeward")]);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn the_quickstart_tells_its_story_and_keeps_what_it_made() {
    let folder = tempfile::tempdir().unwrap();
    // A folder's name is taken as it is, wherever it is part of a URL.
    let home = folder.path().join("a home#1%20?");
    let home = home.to_str().unwrap();
    let ended = run(&["quickstart", "--dir", home, "--json"], None).await;
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "a quickstart is calm");
    let told = &json(&ended.stdout)[0];
    assert_eq!((&told["rows_written"], &told["rows_read"]), (&35_000.into(), &35_000.into()));
    let partitions = told["partitions"].as_array().unwrap();
    let counts: Vec<(i64, i64, i64)> = partitions
        .iter()
        .map(|p| (p["buckets"].as_i64().unwrap(), p["totals"][0].as_i64().unwrap(), p["rows"].as_i64().unwrap()))
        .collect();
    assert_eq!(counts, [(2, 2, 15_000), (2, 2, 10_000), (4, 4, 10_000)]);
    assert_eq!(told["rounds"][1]["rows"], 15_000);
    let serve = told["serve_with"].as_str().unwrap();
    assert!(serve.contains(&format!("--dir '{home}/node' --warehouse '{home}/lake'")), "{serve}");

    let ended = run(&["inspect", &format!("{home}/lake/demo.db/orders")], None).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("35,000 rows"), "{}", ended.stdout);
    let ended = run(&["quickstart", "--dir", home], None).await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("not empty"), "{}", ended.stderr);
}
