//! The command line: exit codes, signals, streams, the quickstart.

use std::process::Command;
use std::time::Duration;

use super::flow::{World, ended, lakeward, output, started};

async fn code(args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = lakeward();
    command.args(args);
    let output = output(command).await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[tokio::test]
async fn exit_codes_are_those_of_the_readme() {
    for (args, expected, word) in [
        (&["--help"][..], 0, "quickstart"),
        (&["--version"], 0, "lakeward"),
        (&["run", "--help"], 0, "--once"),
        (&[], 2, "Usage"),
        (&["polish"], 2, "polish"),
        (&["run", "--server", "127.0.0.1:1", "--once", "--wait", "soon"], 2, "soon"),
        (&["inspect", "/nowhere/at/all"], 2, "hint:"),
        (&["run", "--server", "127.0.0.1:1"], 4, "the daemon"),
        (&["inspect", "s3://bucket/table"], 4, "s3"),
    ] {
        let (found, stdout, stderr) = code(args).await;
        assert_eq!(found, Some(expected), "{args:?}: {stderr}");
        let stream = if expected == 0 { &stdout } else { &stderr };
        assert!(stream.contains(word), "{args:?}: {stream}");
        assert!(expected == 0 || stdout.is_empty(), "{args:?}: an error is no data: {stdout}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_ends_with_3_and_an_unknown_table_with_2() {
    let (found, _, stderr) = code(&["plan", "--server", "127.0.0.1:1"]).await;
    assert_eq!(found, Some(3), "{stderr}");
    let world = World::new(Duration::from_secs(120)).await;
    let server = world.node.address().to_string();
    let (found, _, stderr) = code(&["plan", "--server", &server, "demo.nothing"]).await;
    assert_eq!(found, Some(2), "{stderr}");
    let (found, _, stderr) = code(&["plan", "--server", &server, "nothing"]).await;
    assert_eq!(found, Some(2), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_end_run_and_node_with_their_codes() {
    let world = World::new(Duration::from_secs(120)).await;
    let folder = world.folder.path().join("second");
    let mut node = lakeward();
    node.args(["node", "--listen", "127.0.0.1:0", "--dir", folder.to_str().unwrap()]);
    for (command, signal, expected) in [(world.run(&["--wait", "600s"], None), "-INT", 130), (node, "-TERM", 143)] {
        let mut child = started(command);
        // It has come far enough to listen for signals when it has logged something.
        let mut log = child.stderr.take().unwrap();
        let log = tokio::task::spawn_blocking(move || {
            let mut first = [0_u8; 1];
            std::io::Read::read_exact(&mut log, &mut first).unwrap();
            log
        })
        .await
        .unwrap();
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        let output = ended(child).await;
        drop(log);
        assert_eq!(output.status.code(), Some(expected), "{signal}");
    }
}

#[tokio::test]
async fn a_reader_that_leaves_early_is_a_clean_end() {
    let mut command = Command::new("sh");
    command.args(["-c", "\"$0\" --help | true; echo ended", env!("CARGO_BIN_EXE_lakeward")]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let output = output(command).await;
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn the_quickstart_tells_its_story_and_keeps_what_it_made() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    let home = home.to_str().unwrap();
    let (found, stdout, stderr) = code(&["quickstart", "--dir", home, "--json"]).await;
    assert_eq!(found, Some(0), "{stderr}");
    assert!(stderr.is_empty(), "a quickstart is calm: {stderr}");
    let told: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&told["rows_written"], &told["rows_read"]), (&35_000.into(), &35_000.into()));
    let partitions = told["partitions"].as_array().unwrap();
    let counts: Vec<(i64, i64, i64)> = partitions
        .iter()
        .map(|p| (p["buckets"].as_i64().unwrap(), p["totals"][0].as_i64().unwrap(), p["rows"].as_i64().unwrap()))
        .collect();
    assert_eq!(counts, [(2, 2, 15_000), (2, 2, 10_000), (4, 4, 10_000)]);
    assert_eq!(told["rounds"][1]["rows"], 15_000);

    let (found, stdout, stderr) = code(&["inspect", &format!("{home}/lake/demo.db/orders")]).await;
    assert_eq!(found, Some(0), "{stderr}");
    assert!(stdout.contains("35,000 rows"), "{stdout}");
    let (found, _, stderr) = code(&["quickstart", "--dir", home]).await;
    assert_eq!(found, Some(2), "{stderr}");
    assert!(stderr.contains("not empty"), "{stderr}");
}
