//! A daemon over tables that get no rows.

use lakeward::daemon::{self, Service, board::Board};
use tokio_util::sync::CancellationToken;

use super::*;

#[tokio::test(start_paused = true)]
async fn three_hundred_empty_tables_cost_a_round_per_freshness_and_the_coordinator_a_call_per_second() {
    let world = World::new("idle");
    for number in 0..300 {
        world.table(&format!("t{number:03}"), 2, &[]).await;
    }
    let service = Service {
        queue: Arc::<MemoryService>::clone(&world.service),
        rounds: world.context(),
        options: daemon::Options::default(),
    };
    let (stop, board) = (CancellationToken::new(), Board::new(4, world.runtime.clock.now_ms()));
    let (token, told) = (stop.clone(), board.clone());
    let running = tokio::spawn(async move { daemon::run(&service, token, &told, &mut |_: &RoundSummary| ()).await });
    let minute = Duration::from_secs(60);
    // The first round of each, which also asks for its freshness.
    world.runtime.clock.sleep(4 * minute).await;
    assert_eq!(counted(world.calls()).get("latest"), Some(&300));
    world.requests();
    world.runtime.clock.sleep(30 * minute).await;
    let (calls, requests) = (counted(world.calls()), world.requests().len());
    let per_minute = |act: &str| calls.get(act).copied().unwrap_or(0) / 30;
    // A round every 3 minutes, less what a poll is late.
    assert!((90..=100).contains(&per_minute("latest")), "{calls:?}");
    assert_eq!(calls["table_info"], calls["latest"]);
    assert_eq!(calls["partitions"], calls["latest"]);
    assert!(!calls.contains_key("end_offsets"), "there are no partitions: {calls:?}");
    // Two per round, to claim and to report, and the polls.
    assert!(per_minute("heartbeat") <= 60 + 2 * 100, "{calls:?}");
    assert_eq!(requests, 4 * calls["latest"], "each as a table that was never tiered");
    stop.cancel();
    running.await.unwrap().unwrap();
}
