//! When the queue is asked, and what that costs.

use super::*;

#[tokio::test(start_paused = true)]
async fn fifty_empty_tables_cost_a_busy_one_nothing_and_the_coordinator_little() {
    let world = World::new();
    for index in 0..50 {
        world.table(&format!("empty_{index}"), "10s").await;
    }
    let busy = world.table("busy", "10s").await;
    let running = world.start(options(4));
    for _ in 0..70 {
        world.append(busy, 3);
        world.sleep(1).await;
    }
    let calls = world.log.calls.load(Ordering::Relaxed);
    running.stop().await;
    let claims = world.claims("busy");
    assert!(claims.len() >= 6, "{claims:?}");
    let reports = world.reports(busy);
    for (claim, (finished, how)) in claims[1..].iter().zip(&reports) {
        assert_eq!(*how, "finished");
        assert!(claim - finished <= 10_050, "claimed {} ms after the last round", claim - finished);
    }
    // 51 tables, 7 rounds each; a round costs one call for the claim and one for the report, which asks as well.
    assert!(calls < 51 * 7 * 5 / 2, "{calls} calls");
    let lag = reports.windows(2).map(|two| two[1].0 - two[0].0).max().unwrap();
    assert!(lag <= 12_000, "{lag}");
    let ids = world.ids("busy").await;
    assert!(ids.windows(2).all(|two| two[0] < two[1]) && ids.len() >= 180, "each row once: {}", ids.len());
}

#[tokio::test(start_paused = true)]
async fn an_idle_service_asks_once_per_poll() {
    let world = World::new();
    let running = world.start(options(4));
    world.sleep(60).await;
    assert_eq!(running.board.service().phase, Phase::Running);
    let calls = world.log.calls.load(Ordering::Relaxed);
    assert!((58..=62).contains(&calls), "{calls}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_table_is_asked_for_at_the_moment_when_its_freshness_runs_out() {
    let world = World::new();
    let table = world.table("t", "7500ms").await;
    let mut slow = options(4);
    slow.poll = SECOND * 60;
    let running = world.start(slow);
    world.sleep(301).await;
    let (claims, reports) = (world.claims("t"), world.reports(table));
    assert!(claims.len() > 25, "{}", claims.len());
    for (claim, (finished, _)) in claims[1..].iter().zip(&reports) {
        assert!((7_500..7_510).contains(&(claim - finished)), "{}", claim - finished);
    }
    let status = running.status(table);
    assert_eq!((status.state, status.freshness_ms, status.reason), (TableState::Waiting, Some(7_500), None));
    assert!(status.next_look_ms.unwrap() > world.now_ms() && status.lag_seconds.is_none());
    assert!(running.board.tables(world.now_ms())[0].lag_seconds.unwrap() <= 8);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn as_many_tables_as_allowed_are_in_hand_and_a_finished_one_is_followed_at_once() {
    let world = World::new();
    let mut tables = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        let table = world.table(name, "1s").await;
        world.append(table, 5);
        tables.push(table);
    }
    world.sleep(2).await;
    let running = world.start_with(options(3), Faults::default(), FailPoints::default());
    world.sleep(30).await;
    for (name, table) in ["a", "b", "c", "d", "e"].into_iter().zip(&tables) {
        assert_eq!(world.commits(name), 1, "{name}");
        assert_eq!(running.status(*table).rows, 5);
    }
    let claims = world.log.claims.lock().unwrap().clone();
    assert!(claims[4].0 - claims[0].0 < 1_000, "five tables, three slots, no poll between: {claims:?}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn unwanted_tables_go_back_at_once_and_cost_a_call_each_per_poll() {
    let world = World::new();
    let mut unwanted = Vec::new();
    for index in 0..20 {
        unwanted.push(world.table(&format!("other_{index}"), "1s").await);
    }
    let wanted = world.table("mine", "10s").await;
    world.append(wanted, 5);
    let mut only = options(4);
    only.tables.include = vec!["demo.mine".parse().unwrap()];
    let running = world.start(only);
    world.sleep(60).await;
    let calls = world.log.calls.load(Ordering::Relaxed);
    // A sweep has them all once, and the first of them twice.
    assert!((55 * 21..62 * 24).contains(&calls), "{calls}");
    for table in &unwanted {
        assert!(world.reports(*table).iter().all(|(_, how)| *how == "forced"));
        let status = running.status(*table);
        assert_eq!((status.state, status.next_look_ms), (TableState::Excluded, None));
    }
    let claims = world.claims("mine");
    assert!(claims.len() >= 5 && claims.windows(2).all(|two| two[1] - two[0] <= 10_050), "{claims:?}");
    assert_eq!(running.status(wanted).rows, 5);
    // Somebody else can have them: they are in the queue, not in our hands.
    running.stop().await;
    let other = world.cluster.service(Faults::default());
    let request = Heartbeat { request_table: true, ..Heartbeat::default() };
    assert!(other.heartbeat(request).await.unwrap().assigned.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_table_without_freshness_that_has_nothing_is_looked_at_once_per_poll() {
    let world = World::new();
    let table = world.table("t", "0ms").await;
    let running = world.start(options(4));
    world.sleep(60).await;
    let rounds = running.status(table).rounds;
    assert!((55..=62).contains(&rounds), "{rounds}");
    let calls = world.log.calls.load(Ordering::Relaxed);
    assert!(calls <= 62 * 5, "{calls}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_changed_freshness_is_followed() {
    let world = World::new();
    let table = world.table("t", "10s").await;
    let running = world.start(options(4));
    world.sleep(12).await;
    assert_eq!(running.status(table).freshness_ms, Some(10_000));
    world.cluster.alter_property(&path("t"), "table.datalake.freshness", Some("20s")).unwrap();
    world.sleep(12).await;
    assert_eq!(running.status(table).freshness_ms, Some(20_000));
    running.stop().await;
}
