//! Others on the same queue.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_table_that_somebody_else_was_given_is_left_to_them() {
    let world = World::new();
    let table = world.table("t", "10s").await;
    world.append(table, 5);
    let fail = FailPoints::default();
    fail.arm("commit.before_publish", 1, FailAction::Hang);
    let running = world.start_with(options(4), Faults::default(), fail);
    world.sleep(11).await;
    assert_eq!(running.status(table).state, TableState::Tiering);
    world.cluster.restart_coordinator(true);
    world.sleep(60).await;
    assert!(running.status(table).rounds >= 1, "handed out again by the new coordinator");
    let first_report = world.reports(table)[0].0;
    assert!(first_report >= world.claims("t")[1], "nothing was said about the lost one");
    running.stop().await;
}

#[test]
fn two_daemons_share_a_queue_while_calls_fail_and_no_row_is_lost_or_doubled() {
    for_seeds("two daemons", 2, |seed| async move {
        let world = World::new();
        let mut tables = Vec::new();
        for index in 0..6 {
            tables.push(world.table(&format!("t{index}"), if index == 0 { "2s" } else { "9s" }).await);
        }
        let rng = Rng::from_seed(seed);
        let faults = || Faults::seeded(rng.clone(), world.runtime.clock.clone(), 12);
        let daemons = [(); 2].map(|()| world.start_with(options(2), faults(), FailPoints::default()));
        let mut rows = 0;
        for _ in 0..80 {
            let table = tables[usize::try_from(rng.below(6)).unwrap()];
            world.append(table, 1 + rng.below(5));
            world.runtime.clock.sleep(Duration::from_millis(rng.below(1_000))).await;
        }
        for daemon in daemons {
            daemon.stop().await;
        }
        // Leases of answers that were lost end within two minutes.
        let healthy = world.start(options(4));
        world.sleep(130).await;
        for table in &tables {
            let status = healthy.status(*table);
            assert_eq!((status.state, status.reason), (TableState::Waiting, None), "seed {seed}");
        }
        healthy.stop().await;
        let mut ids = Vec::new();
        for index in 0..6 {
            let found = world.ids(&format!("t{index}")).await;
            rows += found.len();
            ids.extend(found);
        }
        ids.sort_unstable();
        let all = i64::try_from(world.next_id.load(Ordering::Relaxed)).unwrap();
        assert_eq!((rows, ids), (usize::try_from(all).unwrap(), Vec::from_iter(0..all)), "seed {seed}");
    });
}

#[tokio::test(start_paused = true)]
async fn a_table_that_another_service_keeps_is_told_to_be_elsewhere() {
    let world = World::new();
    let table = world.table("t", "10s").await;
    let running = world.start(options(4));
    world.runtime.clock.sleep(Duration::from_millis(12_500)).await;
    assert_eq!(running.status(table).state, TableState::Waiting);
    // It is due 10 s from now, at a moment when ours does not look.
    world.cluster.restart_coordinator(false);
    world.runtime.clock.sleep(Duration::from_millis(9_990)).await;
    let other = world.cluster.service(Faults::default());
    let held = loop {
        let reply = other.heartbeat(Heartbeat { request_table: true, ..Heartbeat::default() }).await.unwrap();
        if let Some(assigned) = reply.assigned {
            break assigned.held;
        }
        world.runtime.clock.sleep(Duration::from_millis(5)).await;
    };
    for _ in 0..8 {
        world.sleep(10).await;
        let renewed = other.heartbeat(Heartbeat { tiering: vec![held], ..Heartbeat::default() }).await.unwrap();
        assert_eq!(renewed.tiering, [(table, None)]);
    }
    let status = running.status(table);
    assert_eq!((status.state, status.next_look_ms, status.tiered_to_ms), (TableState::Elsewhere, None, None), "{status:?}");
    other.heartbeat(Heartbeat { failed: vec![held], ..Heartbeat::default() }).await.unwrap();
    world.sleep(2).await;
    assert_eq!(running.status(table).state, TableState::Waiting, "ours again");
    running.stop().await;
}
