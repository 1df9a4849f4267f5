//! Commits of many buckets, and of tables whose manifests merge.

use std::sync::atomic::AtomicBool;

use lakeward::daemon::{self, Service, board::Board};
use lakeward::model::RoundOutcome;
use tokio_util::sync::CancellationToken;

use super::*;

/// How often each act met each kind of object.
fn kinds(requests: Vec<String>) -> BTreeMap<String, usize> {
    let kind = |request: String| {
        let (act, path) = request.split_once(' ').unwrap();
        let path = path.strip_prefix("demo.db/t/").unwrap_or(path);
        let kind = match path {
            path if path.contains("/bucket-") => "data",
            path if path.starts_with("manifest/manifest-list") => "list",
            path if path.starts_with("manifest/") => "manifest",
            "snapshot/LATEST" => "hint",
            path if path.starts_with("snapshot/snapshot-") => "snapshot",
            path if path.starts_with("schema/") => "schema",
            path if path.starts_with("consumer") => "pin",
            path => path,
        };
        format!("{act} {kind}")
    };
    counted(requests.into_iter().map(kind))
}

#[tokio::test(start_paused = true)]
async fn a_commit_of_a_thousand_buckets_reads_each_manifest_once_and_writes_a_handful_of_objects() {
    let puts = |act: &str, path: &str| (act == "put" && path.contains("/bucket-")).then_some(5 * MS);
    let world = World::with("thousand", Box::new(puts));
    let table = world.table("t", 20, &[]).await;
    let days = world.days(&table, 50);
    for round in 1..=3 {
        world.load(&table, &days);
        let summary = world.round(&table).await;
        assert_eq!((summary.rows, summary.files, summary.splits), (2_000, 1_000, 1_000));
        // 1,000 files of 5 ms each, one after the other, were 5 s.
        assert!(summary.write_ms < 1_000, "files are finished side by side: {} ms", summary.write_ms);
        assert!(summary.commit_ms < 100, "{} ms", summary.commit_ms);
        let asked = kinds(world.requests());
        let times = |kind: &str| asked.get(kind).copied().unwrap_or(0);
        assert_eq!(times("put data"), 1_000);
        assert_eq!((times("put manifest"), times("put list"), times("create snapshot")), (1, 2, 1), "{asked:?}");
        assert_eq!((times("put hint"), times("put pin")), (1, 1), "{asked:?}");
        let before = round - 1;
        assert_eq!((times("get manifest"), times("get list")), (before, if round > 1 { 2 } else { 0 }), "{asked:?}");
        let rest: usize =
            asked.iter().filter(|(kind, _)| !kind.ends_with("data") && !kind.ends_with("manifest")).map(|(_, times)| times).sum();
        assert!(rest <= 40, "{rest}: {asked:?}");
    }
}

/// Tables `a` and `b` whose next commits merge manifests, and a day of each. Reads of `a`'s manifests take `time` from then on.
async fn merging_slowly(name: &str, time: Duration) -> (Arc<World>, [(TableInfo, Vec<Partition>); 2]) {
    let slow = Arc::new(AtomicBool::new(false));
    let on = Arc::clone(&slow);
    // Merging alone reads manifests of the commits before the last.
    let of_a = move |act: &str, path: &str| {
        (on.load(Ordering::Relaxed) && act == "get" && path.starts_with("demo.db/a/manifest/manifest-") && !path.contains("list"))
            .then_some(time)
    };
    let world = Arc::new(World::with(name, Box::new(of_a)));
    let options = [("manifest.merge-min-count", "3")];
    let (a, b) = (world.table("a", 2, &options).await, world.table("b", 2, &options).await);
    let tables = [a, b].map(|table| {
        let days = world.days(&table, 1);
        (table, days)
    });
    for _ in 0..3 {
        for (table, days) in &tables {
            world.load(table, days);
            world.round(table).await;
        }
    }
    slow.store(true, Ordering::Relaxed);
    for (table, days) in &tables {
        world.load(table, days);
    }
    (world, tables)
}

#[tokio::test(start_paused = true)]
async fn a_table_whose_manifests_merge_slowly_holds_up_no_other_table_that_has_to_merge_too() {
    let minute = Duration::from_secs(60);
    let (world, [(a, _), (b, days_b)]) = merging_slowly("merging", minute).await;
    let began = world.runtime.clock.moment();
    let (of_a, table) = (Arc::clone(&world), a.clone());
    let merging = tokio::spawn(async move { of_a.round(&table).await });
    // In the midst of it.
    world.runtime.clock.sleep(minute + minute / 2).await;
    assert!(!merging.is_finished(), "the plan's read of the manifests is over, and the merge's has begun");
    let beside = world.runtime.clock.moment();
    let summary = world.round(&b).await;
    assert!(matches!(summary.outcome, RoundOutcome::Committed { .. }));
    assert!(beside.elapsed() < 100 * MS, "{:?}", beside.elapsed());
    assert_eq!(manifests(&world, &b).await, 4, "it has put off its own merge");
    assert!(matches!(merging.await.unwrap().outcome, RoundOutcome::Committed { .. }));
    assert!(began.elapsed() >= 2 * minute);
    assert_eq!(manifests(&world, &a).await, 2, "three in one, and the newest");
    world.load(&b, &days_b);
    world.round(&b).await;
    assert_eq!(manifests(&world, &b).await, 2, "four in one, and the newest");
}

/// Far longer than a lease (2 minutes): whoever does not renew it while it merges loses the table, and commits nothing.
#[tokio::test(start_paused = true)]
async fn leases_are_renewed_and_other_tables_tiered_while_one_merges_its_manifests() {
    let (minute, long) = (Duration::from_secs(60), Duration::from_secs(600));
    let (world, [(a, _), (b, days_b)]) = merging_slowly("beating", long).await;
    let service = Service {
        queue: Arc::<MemoryService>::clone(&world.service),
        rounds: world.context(),
        options: daemon::Options::default(),
    };
    let (stop, board) = (CancellationToken::new(), Board::new(4, world.runtime.clock.now_ms()));
    let commits: Arc<Mutex<Vec<TablePath>>> = Arc::default();
    let (token, told, seen) = (stop.clone(), board.clone(), Arc::clone(&commits));
    let running = tokio::spawn(async move {
        let mut tell = |round: &RoundSummary| {
            if matches!(round.outcome, RoundOutcome::Committed { .. }) {
                seen.lock().unwrap().push(round.table.clone());
            }
        };
        daemon::run(&service, token, &told, &mut tell).await
    });
    // Tables are due after their freshness. Then: the plan's read of the manifests is over, and the merge's has begun.
    world.requests();
    world.runtime.clock.sleep(3 * minute + long + minute).await;
    let of_a = |request: &String| request.starts_with("get demo.db/a/manifest/manifest-") && !request.contains("list");
    assert!(world.requests().iter().filter(|request| of_a(request)).count() > 3, "in the midst of it");
    assert_eq!(std::mem::take(&mut *commits.lock().unwrap()), std::slice::from_ref(&b.path));
    world.calls();
    world.load(&b, &days_b);
    world.runtime.clock.sleep(5 * minute).await;
    let beats = counted(world.calls())["heartbeat"];
    assert!(beats >= 5 * 60 * 9 / 10, "one a second asks for tables: {beats} in 5 minutes");
    assert_eq!(
        std::mem::take(&mut *commits.lock().unwrap()),
        std::slice::from_ref(&b.path),
        "beside the merge, within its freshness"
    );
    assert_eq!(manifests(&world, &a).await, 3, "it merges still");
    world.runtime.clock.sleep(6 * minute).await;
    assert_eq!(*commits.lock().unwrap(), std::slice::from_ref(&a.path), "its lease lived on: one round did it all");
    assert_eq!(manifests(&world, &a).await, 2, "three in one, and the newest");
    stop.cancel();
    running.await.unwrap().unwrap();
}

async fn manifests(world: &World, table: &TableInfo) -> usize {
    let lake = world.lake(table).await;
    let newest = lake.snapshot(lake.newest_snapshot_id().await.unwrap().unwrap()).await.unwrap().unwrap();
    lake.manifests(&newest).await.unwrap().len()
}
