//! Commits of many buckets, and of tables whose manifests merge.

use std::sync::atomic::AtomicBool;

use lakeward::model::RoundOutcome;

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

#[tokio::test(start_paused = true)]
async fn a_table_whose_manifests_merge_slowly_holds_up_no_other_table_that_has_to_merge_too() {
    let slow = Arc::new(AtomicBool::new(false));
    let on = Arc::clone(&slow);
    let minute = Duration::from_secs(60);
    // Merging alone reads manifests of the commits before the last.
    let of_a = move |act: &str, path: &str| {
        (on.load(Ordering::Relaxed) && act == "get" && path.starts_with("demo.db/a/manifest/manifest-") && !path.contains("list"))
            .then_some(minute)
    };
    let world = Arc::new(World::with("merging", Box::new(of_a)));
    let options = [("manifest.merge-min-count", "3")];
    let (a, b) = (world.table("a", 2, &options).await, world.table("b", 2, &options).await);
    let (days_a, days_b) = (world.days(&a, 1), world.days(&b, 1));
    for _ in 0..3 {
        for (table, days) in [(&a, &days_a), (&b, &days_b)] {
            world.load(table, days);
            world.round(table).await;
        }
    }
    slow.store(true, Ordering::Relaxed);
    world.load(&a, &days_a);
    world.load(&b, &days_b);
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

async fn manifests(world: &World, table: &TableInfo) -> usize {
    let lake = world.lake(table).await;
    let newest = lake.snapshot(lake.newest_snapshot_id().await.unwrap().unwrap()).await.unwrap().unwrap();
    lake.manifests(&newest).await.unwrap().len()
}
