//! Processes that die: at each step of a commit, and the node under its writers.

use std::io;

use lakeward::model::SnapshotId;
use serde_json::json;

use super::binary::{Running, run};
use super::*;

/// A file that a reader of the lake could take for something it is not.
fn strangers(table: &std::path::Path) -> io::Result<Vec<PathBuf>> {
    let mut strange = Vec::new();
    for entry in std::fs::read_dir(table.join("snapshot"))? {
        let name = entry?.file_name().into_string().unwrap();
        let known = name.strip_prefix("snapshot-").map_or(name == "LATEST" || name == "EARLIEST", |id| id.parse::<i64>().is_ok());
        if !known && !name.starts_with('.') {
            strange.push(name.into());
        }
    }
    Ok(strange)
}

/// The process dies at `point` of its first commit and a new one takes over. `published`: the dead one's snapshot is in the
/// lake; `recorded`: and Fluss knows it.
async fn dies_at(point: &str, published: bool, recorded: bool) {
    let stage = Stage::with(|options| options.lease = Duration::from_millis(300)).await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 0..100, "a").await;
    let server = stage.address();
    let died = run(&["run", "--server", &server, "--once"], Some(format!("{point}=kill"))).await;
    assert_eq!(died.code, None, "{point}: {died:?}");
    let left = stage.newest(&path).await;
    assert_eq!(left.as_ref().map(|snapshot| snapshot.id), published.then_some(1), "{point}");
    assert_eq!(stage.known(&path).await, recorded.then_some(SnapshotId(1)), "{point}");

    // Rows arrive while nobody is there, in the dead one's buckets and in others.
    stage.append(&path, 100..150, "a").await;
    stage.append(&path, 150..200, "b").await;
    let again = run(&["run", "--server", &server, "--once", "--wait", "1500ms", "--json"], None).await;
    assert_eq!(again.code, Some(0), "{point}: {again:?}");
    assert!(!again.stderr.contains("round failed") && !again.stderr.contains("table held"), "{point}: {}", again.stderr);
    let rounds = again.json();
    let last = if published { 2 } else { 1 };
    assert_eq!(rounds.len(), 1, "{point}: {rounds:?}");
    assert_eq!(rounds[0]["outcome"], json!({"committed": {"snapshot": last}}), "{point}");
    let recovered = if published && !recorded { json!(1) } else { json!(null) };
    assert_eq!((&rounds[0]["recovered"], &rounds[0]["rows"]), (&recovered, &json!(if published { 100 } else { 200 })), "{point}");

    assert_eq!(stage.ids(&path).await, Vec::from_iter(0..200), "{point}");
    assert_eq!(stage.known(&path).await, Some(SnapshotId(last)), "{point}");
    let lake = stage.lake(&path).await;
    // The pin of a round that never published could be a living one's: it stays for a day.
    let pins = if published || point == "commit.before_pin" { 1 } else { 2 };
    assert_eq!(lake.pins("lakeward-").await.unwrap().len(), pins, "{point}");
    let table = lake.store().local_root().unwrap().join(lake.root());
    assert_eq!(strangers(&table).unwrap(), Vec::<PathBuf>::new(), "{point}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_dies_at_any_step_of_a_commit_loses_and_doubles_nothing() {
    futures::join!(
        dies_at("commit.before_pin", false, false),
        dies_at("commit.before_prepare", false, false),
        dies_at("commit.before_publish", false, false),
        dies_at("commit.after_publish", true, false),
        dies_at("commit.before_record", true, false),
        dies_at("commit.after_record", true, true),
        dies_at("commit.before_unpin", true, true),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_has_every_row_that_it_acknowledged_and_the_lake_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = Runtime::system(1, 64 << 20).unwrap();
    let folder = dir.path().to_str().unwrap();
    let start = |listen: &str| {
        let mut node = Running::start(&["node", "--dir", folder, "--listen", listen]);
        let line = node.line().unwrap();
        let address = line.split(' ').nth(1).unwrap().to_owned();
        (node, address)
    };
    let connect = async |address: &str| {
        Cluster::connect(&[address.to_owned()], ClusterOptions::default(), &runtime).await.map_err(|error| error.chain()).unwrap()
    };
    let (node, address) = start("127.0.0.1:0");
    let cluster = connect(&address).await;
    let admin = Admin::new(cluster.clone());
    let path = TablePath::new("demo", "orders");
    admin.create_database("demo", false).await.unwrap();
    admin.create_table(&path, &orders(), false).await.unwrap();
    append(&cluster, &path, 0..100, "a").await;
    let tier = async |address: &str| run(&["run", "--server", address, "--once", "--json"], None).await;
    let first = tier(&address).await;
    assert_eq!((first.code, first.json()[0]["rows"].as_i64()), (Some(0), Some(100)), "{first:?}");
    admin.alter_bucket_count(&path, 4).await.unwrap();

    // A writer goes on until the node dies under it: what it was told is there must be there.
    let mut writer = Writer::open(&cluster, &path, WriterOptions::default()).await.unwrap();
    let (acknowledged, mut seen) = tokio::sync::watch::channel(100_i64);
    let writing = tokio::spawn(async move {
        for start in (100..).step_by(10) {
            let batch = rows(&writer, start..start + 10, if start % 20 == 0 { "a" } else { "b" });
            if writer.append(&batch).await.is_err() {
                return;
            }
            acknowledged.send(start + 10).unwrap();
        }
    });
    seen.wait_for(|end| *end >= 160).await.unwrap();
    node.kill();
    // The writer would try for a minute: it is the process that died with the node's machine.
    writing.abort();
    drop(writing.await);
    let end = *seen.borrow();

    let (node, address) = start("127.0.0.1:0");
    let cluster = connect(&address).await;
    let admin = Admin::new(cluster.clone());
    assert_eq!(admin.table_info(&path).await.unwrap().bucket_count, 4);
    append(&cluster, &path, 1_000_000..1_000_010, "c").await;
    let second = tier(&address).await;
    assert_eq!(second.code, Some(0), "{second:?}");
    let (lake, _) = round::open_lake(&admin.table_info(&path).await.unwrap(), &runtime).await.unwrap();
    let files = files(&lake).await;
    let found = ids(&files);
    let unique: BTreeSet<i64> = found.iter().copied().collect();
    assert_eq!(found.len(), unique.len(), "a row is there twice");
    let missing: Vec<i64> = all(&[0..end, 1_000_000..1_000_010]).into_iter().filter(|id| !unique.contains(id)).collect();
    assert_eq!(missing, Vec::<i64>::new(), "acknowledged up to {end}");
    // At most the batch that was under way when the node died came without word.
    assert!(unique.iter().all(|id| *id < end + 10 || *id >= 1_000_000), "{unique:?}");
    let counts = totals(&files);
    assert_eq!(
        (&counts["day=a"], &counts["day=b"], &counts["day=c"]),
        (&BTreeSet::from([2]), &BTreeSet::from([4]), &BTreeSet::from([4]))
    );
    node.signal("TERM");
    assert_eq!(node.wait(), Some(143));
}
