//! Daemons and commands with the lake in a bucket: one of two daemons is killed, a denied table is held, uploads that hang are given up.

use std::net::TcpListener;

use super::world::{World, events, load, with_tables_on};
use super::*;
use crate::rounds::binary::{Running, run};
use crate::rounds::until;
use crate::s3::server::{Server, Trouble};

/// `lakeward run` until a signal ends it.
fn daemon(world: &World, name: &str, fail: Option<&str>, more: &[&str]) -> Running {
    let flags = world.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let args = ["run", "--server", world.address(), "--set", "poll.interval=100ms"];
    Running::failing_into(&[&args, more, &flags].concat(), fail, &world.dir.path().join(name))
}

async fn ends(running: Running) {
    running.signal("TERM");
    assert_eq!(tokio::task::spawn_blocking(|| running.wait()).await.unwrap(), Some(143));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_s3_one_of_two_daemons_is_killed_while_rows_arrive_and_each_row_is_there_once() {
    let mut world = with_tables_on(Some(Server::start())).await;
    let runtime = world.runtime.clone();
    let mut dies = daemon(&world, "dies.log", Some("commit.after_publish=kill@2"), &[]);
    let lives = daemon(&world, "lives.log", None, &[]);
    let signal = until(&runtime, "one daemon is killed", async || {
        load(&mut world).await;
        dies.killed()
    });
    assert_eq!(signal.await, 9);
    // What the dead one left is noted while the other has nothing to publish.
    until(&runtime, "the other brings all of it up", async || world.auditor.is_settled(&world).await.then_some(())).await;
    world.inspect().await;
    load(&mut world).await;
    until(&runtime, "the other brings more up", async || world.auditor.is_settled(&world).await.then_some(())).await;
    ends(lives).await;
    world.audit().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_s3_a_daemon_holds_the_table_that_is_denied_and_goes_on_with_others() {
    let mut world = with_tables_on(Some(Server::start())).await;
    world.bucket().deny("put", "w/demo.db/orders/manifest/");
    load(&mut world).await;
    let admin = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let running = daemon(&world, "run.log", None, &["--set", &format!("admin.listen={admin}")]);
    let reason = until(&world.runtime, "one table is held and the other tiered", async || {
        let status = run(&["status", "--admin", &admin, "--json"], None).await;
        let report = (status.code == Some(0)).then(|| status.json().remove(0))?;
        let table = |name: &str| report["tables"].as_array()?.iter().find(|table| table["table"]["table"] == name).cloned();
        let (orders, events) = (table("orders")?, table("events")?);
        (orders["state"] == "held" && events["rows"] == 40).then(|| orders["reason"].as_str().unwrap().to_owned())
    })
    .await;
    assert!(reason.contains("s3:PutObject") && reason.contains("s3://lake/w/demo.db/orders/manifest/"), "{reason}");
    load(&mut world).await;
    let tiered = async || {
        let status = run(&["status", "--admin", &admin, "--json"], None).await.json().remove(0);
        let found = status["tables"].as_array()?.iter().find(|table| table["table"]["table"] == events().table.as_str())?.clone();
        (found["rows"] == 80).then_some(())
    };
    until(&world.runtime, "the other table goes on", tiered).await;
    ends(running).await;
    world.bucket().allow_all();
    world.settle().await;
    world.audit().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_s3_check_and_run_refuse_a_store_that_lets_two_creates_pass_and_check_names_rights_that_are_missing() {
    let mut world = with_tables_on(Some(Server::start())).await;
    load(&mut world).await;
    let flags = world.flags();
    let address = world.address().to_owned();
    let says = async |command: &[&str]| {
        let flags = flags.iter().map(String::as_str).collect::<Vec<_>>();
        let ended = run(&[command, &["--server", &address], &flags].concat(), None).await;
        assert!(!format!("{ended:?}").contains("hush"), "{ended:?}");
        ended
    };
    let check = async |code: i32, words: &[&str]| {
        let ended = says(&["check"]).await;
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(words.iter().all(|word| ended.stdout.contains(word)), "{words:?}: {ended:?}");
    };
    let before = world.bucket().keys();
    check(0, &["s3://lake/w"]).await;
    world.bucket().trouble(|asked| (asked.act == "create").then_some(Trouble::Unconditional));
    check(4, &["no atomic create-if-absent", "If-None-Match"]).await;
    let refused = async || {
        let ended = says(&["run", "--once"]).await;
        // Until their freshness has run out, no table is handed out.
        (ended.code != Some(0)).then_some(ended)
    };
    let ended = until(&world.runtime, "a table is handed out", refused).await;
    assert!(ended.code == Some(4) && ended.stderr.contains("no atomic create-if-absent"), "{ended:?}");
    world.bucket().calm();
    for (act, right) in [("create", "s3:PutObject"), ("delete", "s3:DeleteObject")] {
        world.bucket().deny(act, "w/demo.db/orders/snapshot/");
        check(2, &[right, "s3://lake/w/demo.db/orders/snapshot/"]).await;
        world.bucket().allow_all();
    }
    let left: Vec<_> = world.bucket().keys().into_iter().filter(|key| !before.contains(key)).collect();
    // Whoever may not delete leaves the probe.
    assert!(left.len() == 1 && left[0].contains(".lakeward-check-"), "{left:?}");
    world.inspect().await;
    world.settle().await;
    world.audit().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_s3_orphans_finds_uploads_that_hang_and_gives_up_those_older_than_a_day() {
    let mut world = with_tables_on(Some(Server::start())).await;
    load(&mut world).await;
    world.settle().await;
    let day = Duration::from_secs(24 * 60 * 60);
    for (name, age) in [("old", 2 * day), ("young", day / 2)] {
        world.bucket().hang("lake", &format!("w/demo.db/orders/day=a/bucket-0/data-{name}.parquet"), age);
    }
    // Another table's is not looked at.
    world.bucket().hang("lake", "w/demo.db/events/bucket-0/data-old.parquet", 2 * day);
    for (delete, deleted, left) in [(None, false, 3), (Some("--delete"), true, 2), (None, false, 2)] {
        let flags = world.flags();
        let args = ["orphans", "demo.orders", "--server", world.address(), "--json"];
        let args = args.into_iter().chain(delete).chain(flags.iter().map(String::as_str));
        let ended = run(&args.collect::<Vec<_>>(), None).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let told = ended.json().remove(0);
        let uploads: Vec<&str> = told["uploads"].as_array().unwrap().iter().map(|path| path.as_str().unwrap()).collect();
        let there = world.bucket().uploads();
        assert_eq!((told["deleted"].as_bool(), there), (Some(deleted), left), "{told}");
        match uploads.as_slice() {
            [one] => assert!(one.ends_with("demo.db/orders/day=a/bucket-0/data-old.parquet"), "{one}"),
            found => assert!(found.is_empty() && delete.is_none() && left == 2, "{told}"),
        }
    }
    world.audit().await;
}
