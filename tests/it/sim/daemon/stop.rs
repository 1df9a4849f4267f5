//! Rounds that are cut, and a service that is asked to stop.

use super::*;

#[tokio::test(start_paused = true)]
async fn asked_to_stop_it_commits_what_it_can_and_hands_back_the_rest() {
    let world = World::new();
    let done = world.table("done", "10s").await;
    world.append(done, 5);
    world.sleep(11).await;
    let fail = FailPoints::default();
    fail.arm("commit.before_publish", 1, FailAction::Hang);
    let running = world.start_with(options(4), Faults::default(), fail);
    world.sleep(1).await;
    assert_eq!(running.status(done).state, TableState::Tiering);
    let late = world.table("late", "1s").await;
    world.append(late, 5);
    world.sleep(3).await;
    assert_eq!(world.commits("late"), 1);
    let began = world.now_ms();
    running.stop.cancel();
    world.sleep(1).await;
    assert_eq!(running.board.service().phase, Phase::Stopping);
    let calls = world.log.calls.load(Ordering::Relaxed);
    world.sleep(20).await;
    assert!(world.log.calls.load(Ordering::Relaxed) - calls <= 2, "renewals, no claims");
    assert!(!running.shutdown.is_cancelled(), "within the grace");
    running.until_ended().await;
    let took = world.now_ms() - began;
    assert!((30_000..35_001).contains(&took), "{took}");
    assert_eq!(world.reports(done).iter().map(|(_, how)| *how).collect::<Vec<_>>(), ["forced"]);
    // Nothing is lost: the next one tiers it.
    let next = world.start(options(4));
    world.sleep(5).await;
    assert_eq!(world.commits("done"), 1);
    next.stop().await;
    assert_eq!(world.ids("done").await.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn an_idle_service_stops_at_once_and_one_that_backs_off_hands_back_at_once() {
    let world = World::new();
    let lost = world.table("lost", "1s").await;
    let (faults, _) = out_of_reach("latest", "lost");
    let running = world.start_with(options(1), faults, FailPoints::default());
    world.runtime.clock.sleep(Duration::from_millis(30_500)).await;
    assert_eq!(running.status(lost).state, TableState::BackingOff);
    let began = world.now_ms();
    running.stop().await;
    assert!(world.now_ms() - began < 100);
    assert_eq!(world.reports(lost).iter().map(|(_, how)| *how).collect::<Vec<_>>(), ["forced"]);
}

#[tokio::test(start_paused = true)]
async fn a_round_is_cut_at_the_freshness_and_commits_what_it_has_read() {
    let world = World::new();
    let table = world.table("t", "10s").await;
    for _ in 0..60 {
        world.append(table, 1);
    }
    world.sleep(10).await;
    // 30 batches per bucket, both buckets in turn, one per second at most.
    let running = world.start_slow(options(4), Faults::default(), FailPoints::default(), SECOND);
    world.sleep(15).await;
    let status = running.status(table);
    assert!(status.rows > 0 && status.rows < 60, "{status:?}");
    assert_eq!((status.lag_rows, status.tiered_to_ms), (Some(60 - status.rows), None));
    assert_eq!(world.ids("t").await.len() as u64, status.rows);
    world.sleep(90).await;
    let reports = world.reports(table);
    let forced = reports.iter().take_while(|(_, how)| *how == "forced").count();
    assert!(forced >= 2 && reports[forced..].iter().all(|(_, how)| *how == "finished"), "{reports:?}");
    assert!(reports[..forced].windows(2).all(|two| (10_000..13_000).contains(&(two[1].0 - two[0].0))), "{reports:?}");
    assert_eq!(world.ids("t").await, Vec::from_iter(0..60));
    assert_eq!(running.status(table).lag_rows, Some(0));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn asked_to_stop_in_the_middle_of_a_round_it_keeps_what_was_read() {
    let world = World::new();
    let table = world.table("t", "1h").await;
    for _ in 0..200 {
        world.append(table, 1);
    }
    world.sleep(3_600).await;
    let running = world.start_slow(options(4), Faults::default(), FailPoints::default(), SECOND);
    world.sleep(20).await;
    let began = world.now_ms();
    running.stop().await;
    assert!(world.now_ms() - began < 5_000, "no need for the whole grace");
    let kept = world.ids("t").await.len();
    assert!((10..200).contains(&kept), "{kept}");
    assert_eq!(world.reports(table).iter().map(|(_, how)| *how).collect::<Vec<_>>(), ["forced"]);
    let next = world.start(options(4));
    world.sleep(10).await;
    next.stop().await;
    assert_eq!(world.ids("t").await, Vec::from_iter(0..200));
}

#[tokio::test(start_paused = true)]
async fn an_end_that_nobody_hears_is_an_end_too() {
    let world = World::new();
    let table = world.table("t", "10s").await;
    world.append(table, 5);
    let fail = FailPoints::default();
    fail.arm("commit.before_publish", 1, FailAction::Hang);
    let running = world.start_with(options(4), Faults::default(), fail);
    world.sleep(11).await;
    assert_eq!(running.status(table).state, TableState::Tiering);
    world.log.deaf.store(true, Ordering::Relaxed);
    let began = world.now_ms();
    running.stop().await;
    let took = world.now_ms() - began;
    assert!((30_000..=35_001).contains(&took), "{took}");
    assert_eq!(world.reports(table), []);
}
