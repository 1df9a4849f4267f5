//! Tables and coordinators in trouble: each kind leads where architecture.md 5 says, and to nobody else.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_round_that_stands_still_takes_one_slot_and_nothing_from_the_others() {
    let world = World::new();
    let stuck = world.table("stuck", "10s").await;
    world.append(stuck, 5);
    let well = world.table("well", "10s").await;
    let fail = FailPoints::default();
    fail.arm("commit.before_publish", 1, FailAction::Hang);
    let running = world.start_with(options(2), Faults::default(), fail);
    world.sleep(12).await;
    world.append(well, 5);
    world.sleep(600).await;
    assert_eq!(running.status(stuck).state, TableState::Tiering);
    assert_eq!((world.claims("stuck").len(), world.reports(stuck).len()), (1, 0), "the lease is kept by renewals");
    assert!(world.claims("well").len() > 55);
    assert_eq!(world.commits("well"), 1);
    running.stop().await;
    // What stands still is aborted after the grace, and handed back.
    assert_eq!(world.reports(stuck).iter().map(|(_, how)| *how).collect::<Vec<_>>(), ["forced"]);
}

#[tokio::test(start_paused = true)]
async fn a_table_out_of_reach_is_kept_for_two_minutes_while_the_others_go_on() {
    let world = World::new();
    let lost = world.table("lost", "10s").await;
    world.append(lost, 5);
    for name in ["a", "b"] {
        let table = world.table(name, "10s").await;
        world.append(table, 5);
    }
    let (faults, on) = out_of_reach("latest", "lost");
    // One slot: the table that waits must not take it.
    let running = world.start_with(options(1), faults, FailPoints::default());
    world.sleep(60).await;
    assert_eq!((world.claims("lost").len(), world.reports(lost).len()), (1, 0), "the lease is kept");
    let status = running.status(lost);
    assert!(matches!(status.state, TableState::BackingOff | TableState::Tiering), "{status:?}");
    assert_eq!((status.kind, status.reason.is_some()), (Some(Kind::Unavailable), true));
    assert!(world.claims("a").len() >= 4 && world.claims("b").len() >= 4, "{:?}", world.log.claims.lock().unwrap());
    world.sleep(100).await;
    let reports = world.reports(lost);
    let [(at, "failed"), ..] = *reports else { panic!("{reports:?}") };
    let kept = at - world.claims("lost")[0];
    assert!((120_000..170_000).contains(&kept), "{kept}");
    on.store(false, Ordering::Relaxed);
    world.sleep(15).await;
    let status = running.status(lost);
    assert_eq!((status.state, status.kind, status.failures_in_row, status.rows), (TableState::Waiting, None, 0, 5));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_held_table_is_looked_at_again_ever_more_rarely_and_a_look_lifts_the_hold() {
    let world = World::new();
    let table = world.table("t", "10s").await;
    world.append(table, 5);
    let (here, away) = (world.folder.path().join("demo.db/t"), world.folder.path().join("away"));
    std::fs::rename(&here, &away).unwrap();
    let running = world.start(options(4));
    world.sleep(11).await;
    let held = running.status(table);
    assert_eq!((held.state, held.kind), (TableState::Held, Some(Kind::Data)), "{held:?}");
    assert!(held.reason.unwrap().contains("is missing in") && held.help.is_some());
    assert_eq!(held.next_look_ms, Some(held.since_ms + 60_000));
    world.sleep(300).await;
    let later = running.status(table);
    assert_eq!((later.since_ms, later.failures_in_row), (held.since_ms, 3), "looks after 1, 3 and 7 minutes");
    // Each time that the queue hands it out meanwhile, it is reported finished, so that it rests.
    let reports = world.reports(table);
    assert!(reports.len() > 20 && reports.iter().all(|(_, how)| *how == "finished"), "{reports:?}");
    std::fs::rename(&away, &here).unwrap();
    world.sleep(240).await;
    let status = running.status(table);
    assert_eq!((status.state, status.reason, status.rows), (TableState::Waiting, None, 5));
    assert!(status.since_ms > later.since_ms);
    running.stop().await;
    assert_eq!(world.ids("t").await, Vec::from_iter(0..5));
}

#[tokio::test(start_paused = true)]
async fn an_unsupported_table_rests_for_its_freshness() {
    let world = World::new();
    let table = world.table_with("t", "30s", &[("paimon.file.format", "orc")]).await;
    world.append(table, 5);
    let running = world.start(options(4));
    world.sleep(45).await;
    let status = running.status(table);
    assert_eq!((status.state, status.kind), (TableState::Unsupported, Some(Kind::Unsupported)), "{status:?}");
    assert!(status.reason.unwrap().contains("orc"));
    assert_eq!(world.reports(table).iter().map(|(_, how)| *how).collect::<Vec<_>>(), ["finished"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn other_lake_formats_and_historical_partitions_are_refused_at_claim_by_name_and_keep_nobody_up() {
    let cases = [
        ("iceberg", "table.datalake.format", "lake format `iceberg`"),
        ("hudi", "table.datalake.format", "lake format `hudi`"),
        ("lance", "table.datalake.format", "lake format `lance`"),
        ("true", "table.datalake.historical-partition.enabled", "historical partition"),
    ];
    let world = World::new();
    let well = world.table("well", "30s").await;
    world.append(well, 5);
    let mut tables = Vec::new();
    for (value, key, said) in cases {
        let table = world.table(value, "30s").await;
        world.cluster.alter_property(&path(value), key, Some(value)).unwrap();
        world.append(table, 5);
        tables.push((value, table, said));
    }
    let running = world.start(options(2));
    // The looks after 1 and 2 minutes find the same.
    world.sleep(240).await;
    for (name, table, said) in tables {
        let status = running.status(table);
        assert_eq!((status.state, status.kind), (TableState::Unsupported, Some(Kind::Unsupported)), "{status:?}");
        assert!(status.reason.as_deref().is_some_and(|reason| reason.contains(said)), "{status:?}");
        assert!(status.failures_in_row >= 2, "looked at again: {status:?}");
        assert!(world.reports(table).iter().all(|(_, how)| *how == "finished"), "{:?}", world.reports(table));
        let claims = world.claims(name);
        assert!(claims.windows(2).all(|pair| pair[1] - pair[0] >= 30_000), "it rests for its freshness: {claims:?}");
        assert!(world.ids(name).await.is_empty());
    }
    assert_eq!(running.status(well).rows, 5);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_round_is_that_tables_trouble_and_holds_it_after_three() {
    let world = World::new();
    let table = world.table("t", "10s").await;
    world.append(table, 5);
    let well = world.table("well", "10s").await;
    world.append(well, 5);
    let target = path("t").to_string();
    let faults = Faults::scripted(move |act, table| {
        assert!(!(act == "latest" && table == target), "a bug of this test");
        None
    });
    let running = world.start_with(options(2), faults, FailPoints::default());
    world.sleep(15).await;
    let status = running.status(table);
    assert_eq!((status.state, status.kind, status.failures_in_row), (TableState::Held, Some(Kind::Internal), 3), "{status:?}");
    assert!(status.reason.unwrap().contains("a bug of this test"));
    assert_eq!(world.reports(table).iter().map(|(_, how)| *how).collect::<Vec<_>>(), ["failed", "failed", "finished"]);
    assert_eq!(running.status(well).rows, 5);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_is_away_is_waited_for_and_seen_on_the_board() {
    let world = World::new();
    let table = world.table("t", "10s").await;
    let running = world.start(options(4));
    world.sleep(11).await;
    assert_eq!(running.status(table).rounds, 1);
    world.log.deaf.store(true, Ordering::Relaxed);
    world.sleep(600).await;
    let service = running.board.service();
    assert!(service.heart_alive && service.heartbeat_fault.unwrap().contains("away"));
    world.log.deaf.store(false, Ordering::Relaxed);
    world.sleep(15).await;
    assert!(running.board.service().heartbeat_fault.is_none() && running.status(table).rounds >= 2);
    world.log.deaf.store(true, Ordering::Relaxed);
    world.sleep(11).await;
    let began = world.now_ms();
    running.stop().await;
    assert!(world.now_ms() - began <= 5_001, "nothing is in hand, so nothing is waited for");
}

#[tokio::test(start_paused = true)]
async fn tables_that_went_without_a_word_leave_the_board() {
    let world = World::new();
    let dropped = world.table("dropped", "10s").await;
    let turned_off = world.table("turned_off", "10s").await;
    let stays = world.table("stays", "10s").await;
    let running = world.start(options(4));
    world.sleep(12).await;
    for table in [dropped, turned_off, stays] {
        assert_eq!(running.status(table).rounds, 1);
    }
    world.cluster.drop_table(&path("dropped")).unwrap();
    world.cluster.alter_property(&path("turned_off"), "table.datalake.enabled", Some("false")).unwrap();
    world.sleep(90).await;
    let left: Vec<TableId> = running.board.tables(world.now_ms()).into_iter().map(|table| table.id).collect();
    assert_eq!(left, [stays]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn rounds_at_once_share_a_budget_that_is_too_small_for_one() {
    let mut world = World::new();
    world.runtime.budget = Budget::new(128 << 10);
    let mut tables = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let table = world.table(name, "1s").await;
        for _ in 0..10 {
            world.append(table, 5_000);
        }
        tables.push(table);
    }
    let running = world.start_slow(options(4), Faults::default(), FailPoints::default(), SECOND / 100);
    world.sleep(60).await;
    for (name, table) in ["a", "b", "c", "d"].into_iter().zip(tables) {
        assert_eq!((running.status(table).rows, world.ids(name).await.len()), (50_000, 50_000), "{name}");
    }
    running.stop().await;
}
