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
    // One table at a time, of two: neither daemon is ever without.
    let one = ["--set", "tables.parallel=1"];
    let mut dies = daemon(&world, "dies.log", Some("commit.after_publish=kill@2"), &one);
    let lives = daemon(&world, "lives.log", None, &one);
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
    // That the store is tried at the start, beside that table too, ends nothing.
    world.bucket().deny("create", "w/demo.db/events/snapshot/.lakeward-check");
    let more = ["--set", &format!("admin.listen={admin}"), "--datalake.paimon.warehouse", "s3://lake/w"];
    let running = daemon(&world, "run.log", None, &more);
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
    // Where the settings say where the lake is, the daemon need not wait for a table.
    let ended = says(&["run", "--datalake.paimon.warehouse", "s3://lake/w", "--set", "admin.listen=127.0.0.1:0"]).await;
    assert!(ended.code == Some(4) && ended.stderr.contains("hint: two services could both publish"), "{ended:?}");
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
async fn on_s3_commands_reach_the_lake_by_the_keys_that_they_are_given_and_say_what_to_do_about_wrong_ones() {
    let mut world = with_tables_on(Some(Server::start())).await;
    world.bucket().let_in("me", Duration::from_secs(600));
    load(&mut world).await;
    world.settle().await;
    let (flags, address) = (world.flags(), world.address().to_owned());
    let wrong: Vec<String> = flags.iter().map(|flag| flag.replace("access-key=me", "access-key=stranger")).collect();
    for command in [
        &["plan"][..],
        &["check"],
        &["sync", "--check"],
        &["verify", "demo.orders"],
        &["scan", "demo.orders", "--count"],
        &["orphans", "demo.orders"],
        &["repair", "record", "demo.orders"],
        &["repair", "release", "demo.orders"],
        &["repair", "rewrite-partition", "demo.orders", "--partition", "day=a"],
        &["backfill", "demo.orders"],
    ] {
        for (flags, code) in [(&flags, 0), (&wrong, 2)] {
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            let ended = run(&[command, &["--server", &address], &flags].concat(), None).await;
            assert_eq!(ended.code, Some(code), "{ended:?}");
            let said = "does not know these keys";
            assert!(code == 0 || ended.stdout.contains(said) || ended.stderr.contains(said), "{ended:?}");
        }
    }
    // The node's own keys are wrong: its clients hear what helps.
    let folder = world.dir.path().join("stranger").display().to_string();
    let args = ["node", "--dir", &folder, "--listen", "127.0.0.1:0", "--warehouse", "s3://lake/w2"];
    let mut node = Running::start(&args.into_iter().chain(wrong.iter().map(String::as_str)).collect::<Vec<_>>());
    let address = node.line().unwrap().split(' ').nth(1).unwrap().to_owned();
    let rows = world.dir.path().join("rows.csv");
    std::fs::write(&rows, "id\n1\n").unwrap();
    let options = ["--create", "--column", "id:BIGINT", "--option", "table.datalake.enabled=true"];
    let load = ["load", "demo.new", rows.to_str().unwrap(), "--server", &address];
    let ended = run(&[&load[..], &options].concat(), None).await;
    assert!(ended.code == Some(3) && ended.stderr.contains("\nhint: the store does not know these keys"), "{ended:?}");
    node.signal("TERM");
    assert_eq!(tokio::task::spawn_blocking(|| node.wait()).await.unwrap(), Some(143));
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
    let flags = world.flags();
    let args = ["orphans", "demo.orders", "--server", world.address()];
    let ended = run(&args.into_iter().chain(flags.iter().map(String::as_str)).collect::<Vec<_>>(), None).await;
    let said = ended.stdout.split_once(" files are named, 0 are too young to judge\n").unwrap();
    assert!(said.0.starts_with("demo.orders: 0 orphans, 0 B; "), "{ended:?}");
    assert_eq!(
        (ended.code, said.1, ended.stderr.as_str()),
        (Some(0), "  an upload that was never ended: demo.db/orders/day=a/bucket-0/data-old.parquet\n", ""),
        "{ended:?}"
    );
    for (delete, deleted, left) in [(None, false, 3), (Some("--delete"), true, 2), (None, false, 2)] {
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
