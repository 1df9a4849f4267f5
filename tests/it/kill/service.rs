//! Services that die: at each durable step of a round, once, twice in a row, while recovering, while clearing up after `Stale`.

use futures::FutureExt;

use super::world::{Death, World, blobs, blobs_table, done, events, load, orders, with_tables, with_tables_on};
use super::*;
use crate::rounds::binary::Running;
use crate::rounds::until;
use crate::s3::server::Server;

/// Cases that a world sees before a fresh one takes over, so that histories stay short enough to be read again and again.
const CASES_PER_WORLD: usize = 20;

/// Dies where each of the fail points says, then a healthy service brings everything up. `false` = the last one was not reached.
async fn case(world: &mut World, case: &Case, kills: &mut Kills) -> bool {
    load(world).await;
    let mut died = false;
    for (turn, fail) in case.fails.iter().enumerate() {
        // Whoever comes second waits for the dead one's lease.
        let wait = if turn == 0 { "0s" } else { "1500ms" };
        let (ended, death) = match fail.strip_prefix("backfill ") {
            Some(fail) => world.backfill(fail).await,
            None => world.serve(Some(fail), wait, &[]).await,
        };
        died = death.is_some();
        match death {
            Some(death) => kills.add(&death.point, &death.place),
            None => assert_eq!(ended.code, Some(0), "{fail}: {ended:?}"),
        }
        world.inspect().await;
        // Rows arrive while nobody is there, in the dead one's buckets and in others.
        done(world.append(&orders(), "a", 12).await);
        done(world.append(&events(), "", 7).await);
    }
    world.settle().await;
    world.audit().await;
    died
}

/// Files that stay for the orphan sweep, by kind.
type Orphans = BTreeMap<&'static str, usize>;

fn add(orphans: &mut Orphans, more: Orphans) {
    for (kind, count) in more {
        *orphans.entry(kind).or_default() += count;
    }
}

/// All cases, over some worlds side by side.
fn run(cases: &Cases) -> (Kills, Orphans) {
    run_on(cases, || None)
}

/// As [`run`], with lakes where `bucket` says.
fn run_on(cases: &Cases, bucket: impl Fn() -> Option<Server> + Sync) -> (Kills, Orphans) {
    let work = || async {
        let (mut kills, mut orphans) = (Kills::default(), Orphans::new());
        while let Some(first) = cases.take() {
            let mut world = with_tables_on(bucket()).await;
            let mut next = Some(first);
            for _ in 0..CASES_PER_WORLD {
                let Some(one) = next.take().or_else(|| cases.take()) else { break };
                if !case(&mut world, &one, &mut kills).await {
                    cases.not_reached(&one);
                }
            }
            add(&mut orphans, world.auditor.orphans());
        }
        (kills, orphans)
    };
    let (mut kills, mut orphans) = (Kills::default(), Orphans::new());
    for (more, left) in side_by_side(work) {
        kills.merge(more);
        add(&mut orphans, left);
    }
    (kills, orphans)
}

/// Points that every round passes.
pub(super) fn of_rounds() -> Vec<&'static str> {
    points(|point| !is_of_the_node(point) && !point.starts_with("recover.") && !point.ends_with("_part"))
}

pub(super) fn of_recovery() -> Vec<&'static str> {
    points(|point| point.starts_with("recover."))
}

/// Somebody else publishes while a round stands before its own publish; the round clears up, and is killed at `fail`.
async fn dies_clearing_up(world: &mut World, fail: Option<&str>) -> Option<Death> {
    done(world.append(&orders(), "a", 40).await);
    done(world.append(&orders(), "b", 40).await);
    let log = world.dir.path().join("loser.log");
    let fails = ["commit.before_publish=stop"].into_iter().chain(fail).collect::<Vec<_>>().join(",");
    let server = world.address().to_owned();
    let args = ["run", "--server", &server, "--once", "--wait", "1500ms", "--set", "tables.include=demo.orders"];
    let mut loser = Running::failing_into(&args, Some(&fails), &log);
    let clock = world.runtime.clock.clone();
    let mut starts = 1;
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", loser.id())).unwrap();
        if stat.rsplit(')').next().unwrap().trim().starts_with('T') {
            break;
        }
        // Somebody's lease ran on: once more.
        if loser.try_wait().is_some() {
            assert!(starts < 10, "no round came to its publish: {}", std::fs::read_to_string(&log).unwrap());
            starts += 1;
            loser = Running::failing_into(&args, Some(&fails), &log);
        }
        clock.sleep(Duration::from_millis(5)).await;
    }
    world.settle().await;
    loser.signal("CONT");
    let ended = until(&world.runtime, "the loser has ended", async || loser.try_wait()).await;
    let text = std::fs::read_to_string(&log).unwrap();
    let death = (loser.killed() == Some(9)).then(|| world::death(&text).unwrap_or_else(|| panic!("{text}")));
    assert!(death.is_some() || ended.is_some(), "{ended:?}: {text}");
    if death.is_some() {
        world.inspect().await;
    }
    load(world).await;
    world.settle().await;
    world.audit().await;
    death
}

/// A data file so large that it goes up in parts; the round dies at `fail`.
async fn dies_in_parts(world: &mut World, fail: &str) -> Option<Death> {
    // The file has to be larger than the least part, 5 MiB.
    let parts = ["--set", "write.part_bytes=5MiB", "--set", "write.row_group_bytes=1MiB", "--set", "tables.include=demo.blobs"];
    done(world.append_sized(&blobs(), "", 12_000, true).await);
    let (ended, death) = world.serve(Some(fail), "0s", &parts).await;
    assert!(death.is_some() || ended.code == Some(0), "{ended:?}");
    world.inspect().await;
    world.settle().await;
    world.audit().await;
    death
}

#[test]
fn a_service_that_is_killed_at_any_point_loses_and_doubles_nothing() {
    let mut cases = Cases::default();
    for point in of_rounds().into_iter().filter(|point| !point.starts_with("store.")) {
        cases.once(&[&format!("{point}=kill")]);
    }
    // Probe (twice), data files, pin (9), manifest, lists, snapshot (13), hint: the whole matrix takes them all.
    for (point, hits) in [
        ("store.before_write", [3, 13]),
        ("store.staged", [10, 13]),
        ("store.shown", [9, 13]),
        ("store.after_write", [11, 13]),
        ("store.before_delete", [1, 2]),
        ("store.after_delete", [1, 2]),
    ] {
        for hit in hits {
            cases.once(&[&format!("{point}=kill@{hit}")]);
        }
    }
    cases.once(&["backfill commit.before_record=kill", "commit.before_publish=kill"]);
    for point in of_recovery() {
        cases.once(&["commit.after_publish=kill", &format!("{point}=kill")]);
    }
    let (kills, _) = run(&cases);
    kills.print("service, in part");
    kills.assert_reached(&[of_rounds(), of_recovery()].concat());
}

/// Cases that change more than a series can say: clearing up after `Stale`, and files that go up in parts.
async fn special(kills: &mut Kills, orphans: &mut Orphans) {
    for point in points(|point| point.starts_with("store.") && point.ends_with("_delete")) {
        let mut world = with_tables().await;
        // The first one is the probe's, before the round stands.
        for hit in 2.. {
            match dies_clearing_up(&mut world, Some(&format!("{point}=kill@{hit}"))).await {
                Some(death) => kills.add(&death.point, &death.place),
                None => break,
            }
        }
        add(orphans, world.auditor.orphans());
    }
    let mut world = with_tables().await;
    let admin = world.admin();
    done(world.step(admin.create_table(&blobs(), &blobs_table(), false)).await);
    // The third write, behind the probe's two, is the last step of the file.
    for (point, hit) in
        [("before_part", 1), ("after_part", 1), ("before_part", 2), ("after_part", 2), ("before_write", 3), ("after_write", 3)]
    {
        let death = dies_in_parts(&mut world, &format!("store.{point}=kill@{hit}")).await.expect("the file goes up in parts");
        assert_eq!(places::kind(&death.place), "data file");
        kills.add(&death.point, &death.place);
    }
    add(orphans, world.auditor.orphans());
}

#[test]
#[ignore = "minutes: `cargo test --test it -- --ignored kill_matrix --nocapture`"]
fn kill_matrix_of_services() {
    let mut cases = Cases::default();
    for point in of_rounds() {
        let fail = format!("{point}=kill@HIT");
        cases.series(&[&fail], 60);
        // Twice in a row at the same place; what comes between changes what the second one finds there.
        cases.series(&[&fail, &fail], 60);
        // While recovering a snapshot that Fluss does not know.
        cases.series(&["commit.after_publish=kill", &fail], 60);
        // A backfill, and a daemon behind it.
        cases.series(&[&format!("backfill {fail}"), &fail], 60);
    }
    for point in of_recovery() {
        let fail = format!("{point}=kill@HIT");
        cases.series(&["commit.after_publish=kill", &fail], 60);
        cases.series(&["commit.after_publish=kill", &fail, &fail], 60);
    }
    let (kills, orphans) = run(&cases);
    kills.print("service");
    tell(&orphans);
    kills.assert_reached(&[of_rounds(), of_recovery()].concat());
    for kind in ["probe", "pin", "data file", "manifest", "manifest list", "snapshot", "hint"] {
        for point in ["store.before_write", "store.staged", "store.shown", "store.after_write"] {
            assert!(kills.0[point].contains_key(kind), "nobody died at {point} of a {kind}");
        }
    }
}

/// Points that a round on a bucket passes: nothing is staged there.
fn on_s3() -> Vec<&'static str> {
    of_rounds().into_iter().filter(|point| !["store.staged", "store.shown"].contains(point)).collect()
}

#[test]
fn on_s3_a_service_that_is_killed_loses_and_doubles_nothing() {
    let mut cases = Cases::default();
    cases.once(&["store.after_write=kill@6", "store.before_write=kill@9"]);
    cases.once(&["commit.after_publish=kill", "recover.after_record=kill"]);
    cases.once(&["backfill commit.before_publish=kill", "commit.after_prepare=kill"]);
    let (kills, _) = run_on(&cases, || Some(Server::start()));
    kills.assert_reached(&["store.after_write", "store.before_write", "commit.after_publish", "recover.after_record"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_s3_two_services_share_tables_and_one_that_dies_is_followed_by_the_other() {
    let mut world = with_tables_on(Some(Server::start())).await;
    for fail in [None, Some("commit.after_publish=kill")] {
        load(&mut world).await;
        let (one, other) = futures::join!(world.serve(fail, "0s", &[]), world.serve(None, "1500ms", &[]));
        assert_eq!(other.0.code, Some(0), "{other:?}");
        assert!(one.1.is_some() || one.0.code == Some(0), "{one:?}");
        world.inspect().await;
    }
    world.settle().await;
    world.audit().await;
}

#[test]
#[ignore = "minutes: `cargo test --test it -- --ignored kill_matrix --nocapture`"]
fn kill_matrix_of_services_on_s3() {
    let mut cases = Cases::default();
    for point in on_s3() {
        let fail = format!("{point}=kill@HIT");
        cases.series(&[&fail, &fail], 60);
        cases.series(&["commit.after_publish=kill", &fail], 60);
    }
    for point in of_recovery() {
        cases.series(&["commit.after_publish=kill", &format!("{point}=kill@HIT")], 60);
    }
    let step = std::env::var("LAKEWARD_KILL_EVERY").map_or(1, |text| text.parse().unwrap());
    cases.thin(step);
    let (kills, orphans) = run_on(&cases, || Some(Server::start()));
    kills.print("service on S3");
    tell(&orphans);
    kills.assert_reached(&[on_s3(), of_recovery()].concat());
    if step > 1 {
        return;
    }
    for kind in ["probe", "pin", "data file", "manifest", "manifest list", "snapshot", "hint"] {
        for point in ["store.before_write", "store.after_write"] {
            assert!(kills.0[point].contains_key(kind), "nobody died at {point} of a {kind}");
        }
    }
}

#[expect(clippy::print_stdout, reason = "the figures of docs/reliability.md")]
fn tell(orphans: &Orphans) {
    println!("files that killed services left for the orphan sweep: {orphans:?}");
}

#[test]
#[ignore = "minutes: `cargo test --test it -- --ignored kill_matrix --nocapture`"]
fn kill_matrix_of_losers_and_large_files() {
    let (mut kills, mut orphans) = (Kills::default(), Orphans::new());
    block_on(special(&mut kills, &mut orphans));
    kills.print("losers and large files");
    tell(&orphans);
    kills.assert_reached(&points(|point| point.ends_with("_part") || point.ends_with("_delete") && point.starts_with("store.")));
    for point in ["store.before_delete", "store.after_delete"] {
        for kind in ["pin", "data file", "manifest", "manifest list"] {
            assert!(kills.0[point].contains_key(kind), "nobody died at {point} of a {kind}");
        }
    }
}

/// Whether the auditor finds something.
async fn finds(world: &mut World) -> Option<String> {
    let found = std::panic::AssertUnwindSafe(Box::pin(world.audit())).catch_unwind().await.err()?;
    Some(found.downcast_ref::<String>().unwrap().clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_auditor_finds_what_is_lost_left_or_told_wrong() {
    let mut world = with_tables().await;
    load(&mut world).await;
    world.settle().await;
    let folder = world.dir.path().join("node/warehouse/demo.db/events");
    let (sources, files) = (world.sources.clone(), audit::tree(&folder));
    for (tamper, words) in [
        ("nothing", ""),
        ("a stray data file", "nobody was killed over"),
        ("a file that is named is gone", "snapshots name what is not there"),
        ("a row that was acknowledged is not in the lake", "acknowledged rows are not in the lake"),
        ("a row that nobody wrote", "nobody wrote row"),
        ("a pin that nobody needs", "nobody was killed over"),
        ("a snapshot with other offsets", "rows per bucket are its offset"),
    ] {
        world.sources = sources.clone();
        for place in audit::tree(&folder) {
            std::fs::remove_file(place.0).unwrap();
        }
        for (place, bytes) in &files {
            std::fs::write(place, bytes).unwrap();
        }
        let data = || std::fs::read_dir(folder.join("bucket-0")).unwrap().next().unwrap().unwrap().path();
        let source = world.sources.get_mut(&events()).unwrap();
        match tamper {
            "a stray data file" => std::fs::write(folder.join("bucket-0/data-0.parquet"), "x").unwrap(),
            "a file that is named is gone" => std::fs::remove_file(data()).unwrap(),
            "a row that was acknowledged is not in the lake" => {
                let row = source.rows.first_key_value().unwrap().1.clone();
                source.rows.insert(i64::MAX, row);
            }
            "a row that nobody wrote" => drop(source.rows.pop_first()),
            "a pin that nobody needs" => {
                let pin = "consumer/consumer-lakeward-00000000-0000-0000-0000-000000000007";
                std::fs::write(folder.join(pin), r#"{"nextSnapshot": 1}"#).unwrap();
            }
            "a snapshot with other offsets" => {
                let place = folder.join("snapshot/snapshot-1");
                let mut snapshot: serde_json::Value = serde_json::from_slice(&std::fs::read(&place).unwrap()).unwrap();
                let offsets = &mut snapshot["properties"]["lakeward.offsets"];
                *offsets = offsets.as_str().unwrap().replacen("\"bucket_offsets\":[", "\"bucket_offsets\":[1", 1).into();
                std::fs::write(&place, snapshot.to_string()).unwrap();
            }
            _ => {}
        }
        let found = finds(&mut world).await;
        assert_eq!(found.is_some(), !words.is_empty(), "{tamper}: {found:?}");
        assert!(found.unwrap_or_default().contains(words), "{tamper}");
    }
}

/// The first write of whoever writes is the probe: a store without create-if-absent is found before anything lies there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn daemon_backfill_and_check_try_the_store_before_they_write() {
    let mut world = with_tables().await;
    load(&mut world).await;
    let server = world.address().to_owned();
    for args in [
        &["run", "--once", "--server", &server][..],
        &["backfill", "demo.orders", "--server", &server],
        &["check", "--server", &server],
    ] {
        let (ended, death) = world.command(args, "store.before_write=kill").await;
        assert_eq!(death.map(|death| places::kind(&death.place)), Some("probe"), "{args:?}: {ended:?}");
    }
    world.settle().await;
    world.audit().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_that_lost_clears_up_and_one_that_is_killed_over_it_leaves_only_what_nobody_names() {
    let mut world = with_tables().await;
    load(&mut world).await;
    world.settle().await;
    let death = dies_clearing_up(&mut world, Some("store.before_delete=kill@3")).await.expect("it clears up");
    assert_eq!(places::kind(&death.place), "manifest list");
    let before = world.auditor.orphans();
    assert!(before.contains_key("data file"), "{before:?}");
    assert_eq!(dies_clearing_up(&mut world, None).await, None);
    assert_eq!(world.auditor.orphans(), before, "who is not killed leaves nothing");
}
