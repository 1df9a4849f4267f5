//! Rounds that a limit ends early.

use super::*;
use crate::source::memory::Fault;

/// One batch per fetch: a server gives at least one, whatever it is asked for.
fn by_batch(world: &mut World) {
    world.context.options.read.bucket_bytes = 1;
}

/// 2 buckets of 20 batches of 10 rows each, in one partition.
async fn two_buckets() -> (World, Partition) {
    let mut world = World::new(2, true, MEMORY).await;
    by_batch(&mut world);
    let a = world.cluster.create_partition(&world.path, &["a"]).unwrap();
    for _ in 0..20 {
        for bucket in 0..2 {
            world.append(&a, bucket, 10).await;
        }
    }
    (world, a)
}

fn bytes(bytes_max: u64) -> Limits {
    Limits { bytes_max: Some(bytes_max), ..Limits::default() }
}

/// Ends in the lake as its newest snapshot tells them.
async fn lake_offsets(world: &World) -> Vec<i64> {
    match world.context.ledger.latest(&world.path).await.unwrap() {
        crate::source::LedgerState::At(entry) => entry.offsets.0.values().copied().collect(),
        _ => vec![],
    }
}

#[tokio::test(start_paused = true)]
async fn rounds_bounded_in_bytes_commit_exactly_what_they_read_until_nothing_is_left() {
    let (world, _) = two_buckets().await;
    let (mut rounds, mut left) = (0, 400);
    loop {
        let limits = bytes(1);
        let summary = world.limited(limits.clone()).await.unwrap();
        rounds += 1;
        assert!(summary.rows >= 10 && summary.rows <= 80, "{} rows", summary.rows);
        assert_eq!((limits.progress.rows(), limits.progress.fetched_bytes()), (summary.rows, summary.fetched_bytes));
        left -= summary.rows;
        assert_eq!(summary.backlog_rows, left);
        let ends: i64 = lake_offsets(&world).await.iter().sum();
        assert_eq!(u64::try_from(ends).unwrap(), 400 - left, "the offsets are those of the rows");
        assert_eq!(world.ids().await.len() as u64, 400 - left);
        if !summary.cut {
            break;
        }
    }
    assert!(rounds > 5, "{rounds} rounds");
    assert_eq!(left, 0);
    assert_eq!(world.ids().await, world.written());
    assert_eq!(world.round().await.unwrap().outcome, RoundOutcome::Idle);
}

#[tokio::test(start_paused = true)]
async fn a_round_that_its_limits_do_not_touch_is_not_cut() {
    let (world, _) = two_buckets().await;
    let summary =
        world.limited(Limits { deadline: Some(world.context.runtime.clock.moment() + HOUR), ..bytes(1 << 30) }).await.unwrap();
    assert!(!summary.cut);
    assert_eq!((summary.rows, summary.backlog_rows, summary.splits), (400, 0, 2));
    assert_eq!(summary.planned_ms, 1_790_000_000_000);
}

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_a_round_whose_source_has_stalled_and_keeps_what_came() {
    let (mut world, _) = two_buckets().await;
    let mut fetches = 0;
    world.through(Faults::scripted(move |act, _| {
        fetches += u64::from(act == "fetch");
        (act == "fetch" && fetches > 3).then_some(Fault::Hang)
    }));
    let clock = world.context.runtime.clock.clone();
    let began = clock.moment();
    let deadline = Some(began + Duration::from_secs(7));
    let summary = world.limited(Limits { deadline, ..Limits::default() }).await.unwrap();
    assert!(clock.moment() - began < Duration::from_secs(8), "it waited {:?}", clock.moment() - began);
    assert!(summary.cut);
    assert!(summary.rows >= 30 && summary.rows < 400, "{} rows", summary.rows);
    assert_eq!(summary.backlog_rows, 400 - summary.rows);
    assert_eq!(world.ids().await.len() as u64, summary.rows);
    world.through(Faults::default());
    assert_eq!(world.round().await.unwrap().rows, 400 - summary.rows);
    assert_eq!(world.ids().await, world.written());
    // Requests that will never be answered hold no memory.
    while world.context.runtime.budget.used() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_round_that_is_cut_before_it_has_read_anything_makes_nothing() {
    let (world, _) = two_buckets().await;
    let limits = Limits::default();
    limits.cut.cancel();
    let summary = world.limited(limits).await.unwrap();
    assert_eq!((summary.outcome, summary.cut, summary.splits), (RoundOutcome::Idle, true, 0));
    assert_eq!((summary.rows, summary.backlog_rows), (0, 400));
    assert!(summary.buckets.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_round_whose_plan_took_all_of_its_time_still_brings_something() {
    let (mut world, _) = two_buckets().await;
    let mut fetches = 0;
    world.through(Faults::scripted(move |act, _| {
        fetches += u64::from(act == "fetch");
        (act == "fetch" && fetches > 3).then_some(Fault::Hang)
    }));
    let summary =
        world.limited(Limits { deadline: Some(world.context.runtime.clock.moment()), ..Limits::default() }).await.unwrap();
    assert!(summary.cut && summary.rows >= 30 && summary.rows < 400, "{} rows", summary.rows);
    assert_eq!(world.ids().await.len() as u64, summary.rows);
}

#[tokio::test(start_paused = true)]
async fn a_bucket_of_which_nothing_was_read_is_left_out_of_the_commit() {
    let (mut world, _) = two_buckets().await;
    world.context.options.splits_max = 1;
    let summary = world.limited(bytes(1)).await.unwrap();
    assert_eq!((summary.splits, summary.buckets.len()), (1, 1));
    assert_eq!(lake_offsets(&world).await, [i64::try_from(summary.rows).unwrap()]);
    assert_eq!(summary.buckets[0].end_offset, i64::try_from(summary.rows).unwrap());
}

#[tokio::test(start_paused = true)]
async fn stops_end_buckets_inside_a_batch_and_leave_others_alone() {
    let (world, a) = two_buckets().await;
    let b = world.cluster.create_partition(&world.path, &["b"]).unwrap();
    world.append(&b, 0, 10).await;
    let key = |bucket| crate::model::BucketKey { partition: Some(a.id), bucket: BucketId(bucket) };
    let stops = |ends: &[(i32, i64)]| Limits {
        stops: Some(Arc::new(LakeOffsets(ends.iter().map(|(bucket, end)| (key(*bucket), *end)).collect()))),
        ..Limits::default()
    };
    let summary = world.limited(stops(&[(1, 33)])).await.unwrap();
    assert_eq!((summary.rows, summary.cut), (33, false));
    assert_eq!(lake_offsets(&world).await, [33]);
    assert_eq!(world.limited(stops(&[(1, 33)])).await.unwrap().outcome, RoundOutcome::Idle);
    assert_eq!(world.limited(stops(&[(0, 9_999), (1, 40)])).await.unwrap().rows, 207);
    assert_eq!(lake_offsets(&world).await, [200, 40]);
    assert_eq!(world.round().await.unwrap().rows, 170);
    assert_eq!(world.ids().await, world.written());
}
