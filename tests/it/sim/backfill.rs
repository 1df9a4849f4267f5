//! Backfills beside a daemon, beside each other, and killed.

use std::sync::Arc;
use std::time::Duration;

use lakeward::daemon::backfill::{Backfill, Options, Outcome};
use lakeward::error::{Error, Kind};
use lakeward::model::{LakeOffsets, RoundOutcome, TieringEpoch};
use lakeward::round::{self, Job, Limits};
use lakeward::runtime::FailAction;
use lakeward::source::memory::{Fault, Faults};
use tokio_util::sync::CancellationToken;

use super::rounds::{Process, World};
use super::schedules::FAIL_POINTS;
use super::world::{bucket, for_seeds};

/// One batch per fetch: what a round takes on can be bounded finely.
fn by_batch(mut process: Process) -> Process {
    process.0.options.read.bucket_bytes = 1;
    process
}

fn backfill(world: &World, process: &Process, options: Options, partitions: &[&str]) -> Backfill {
    let specs = partitions.iter().map(|spec| spec.parse().unwrap()).collect();
    Backfill::new(process.0.clone(), world.path.clone(), specs, options, CancellationToken::new())
}

/// Every round reads about one batch per bucket.
fn tiny() -> Options {
    Options { bytes_max: 1, ..Options::default() }
}

/// Each batch takes so long, whether a server has it or a remote segment, which takes two calls.
fn slow(time: Duration) -> Faults {
    Faults::scripted(move |act, _| match act {
        "fetch" => Some(Fault::Slow(time)),
        "remote_bytes" => Some(Fault::Slow(time / 2)),
        _ => None,
    })
}

#[test]
fn a_backfill_brings_what_was_there_when_it_started_round_by_round_and_no_more() {
    for_seeds("backfill alone", 1, |seed| async move {
        let world = World::new(seed).await;
        let day = world.days.lock().unwrap()[0].clone();
        for _ in 0..10 {
            world.fill(&day, 0, 7).await;
            world.fill(&day, 1, 3).await;
        }
        let process = by_batch(world.process(slow(Duration::from_millis(100))));
        let job = backfill(&world, &process, tiny(), &[]);
        let running = tokio::spawn({
            let job = job.clone();
            async move { job.run().await }
        });
        // The total is told before the first round ends; rows and partitions that come later are not of it.
        while job.status().rows_total.is_none() {
            world.runtime.clock.sleep(Duration::from_millis(10)).await;
        }
        assert_eq!((job.status().rows_total, job.status().rounds), (Some(100), 0));
        world.fill(&day, 0, 1_000).await;
        world.rescale(3, "later");
        let later = world.days.lock().unwrap()[1].clone();
        world.fill(&later, 2, 50).await;
        running.await.unwrap().unwrap();
        let status = job.status();
        assert_eq!((status.outcome, status.rows, status.rows_by_others, status.rows_left), (Outcome::Done, 100, 0, Some(0)));
        assert!(status.rounds >= 5, "{} rounds", status.rounds);
        assert_eq!(status.snapshot.map(|snapshot| snapshot.0), world.lake().await.newest_snapshot_id().await.unwrap());
        assert_eq!(world.healthy().round().await.unwrap().rows, 1_050);
        world.heals().await;
        // Again: nothing to do, no snapshot, no round.
        let again = backfill(&world, &process, tiny(), &[]);
        again.run().await.unwrap();
        assert_eq!((again.status().rows_total, again.status().rounds), (Some(0), 0));
    });
}

#[test]
fn a_daemon_and_two_backfills_that_are_killed_now_and_then_bring_every_row_once() {
    for_seeds("daemon and two backfills", 4, |seed| async move {
        let world = World::new(seed).await;
        for _ in 0..20 {
            world.append().await;
        }
        world.rescale(4, "b");
        for _ in 0..20 {
            world.append().await;
        }
        let rng = world.runtime.rng.clone();
        let faults = || {
            let rng = rng.clone();
            Faults::scripted(move |act, _| match act {
                "fetch" => Some(Fault::Slow(Duration::from_millis(rng.below(30)))),
                "prepare" | "record" | "latest" if rng.below(12) == 0 => {
                    Some(if rng.below(2) == 0 { Fault::Before } else { Fault::After })
                }
                _ => None,
            })
        };
        let daemon = {
            let (world, process) = (world.clone(), by_batch(world.process(faults())));
            tokio::spawn(async move {
                for _ in 0..6 {
                    world.runtime.clock.sleep(Duration::from_millis(100 + world.runtime.rng.below(400))).await;
                    world.append().await;
                    if let Err(error) = process.round().await {
                        assert!(matches!(error.kind(), Kind::Stale | Kind::Unavailable), "{}, seed {seed}", error.chain());
                    }
                }
            })
        };
        let backfills: Vec<_> = (0..2)
            .map(|_| {
                let (world, faults) = (world.clone(), [faults(), faults(), faults()]);
                tokio::spawn(async move {
                    let mut last = None;
                    for (attempt, faults) in faults.into_iter().enumerate() {
                        let process = by_batch(world.process(faults));
                        if attempt < 2 {
                            // It is killed: its run is dropped where it stands.
                            let point = FAIL_POINTS[usize::try_from(world.runtime.rng.below(FAIL_POINTS.len() as u64)).unwrap()];
                            let hit = 1 + u32::try_from(world.runtime.rng.below(3)).unwrap();
                            process.0.runtime.fail.arm(point, hit, FailAction::Hang);
                            let job = backfill(&world, &process, tiny(), &[]);
                            let ended = world.runtime.clock.timeout(Duration::from_secs(30), job.run()).await;
                            if let Some(Err(error)) = ended {
                                panic!("{}, seed {seed}", error.chain());
                            }
                            continue;
                        }
                        let job = backfill(&world, &process, tiny(), &[]);
                        job.run().await.map_err(|error| format!("{}, seed {seed}", error.chain())).unwrap();
                        last = Some(job.status());
                    }
                    last.unwrap()
                })
            })
            .collect();
        for job in backfills {
            let status = job.await.unwrap();
            assert_eq!((status.outcome, status.rows_left), (Outcome::Done, Some(0)), "seed {seed}");
            assert_eq!(status.rows_total, Some(status.rows + status.rows_by_others), "seed {seed}");
        }
        daemon.await.unwrap();
        world.heals().await;
    });
}

#[test]
fn a_backfill_ends_when_a_daemon_has_done_its_work() {
    for_seeds("backfill whose work a daemon does", 1, |seed| async move {
        let world = World::new(seed).await;
        let day = world.days.lock().unwrap()[0].clone();
        for _ in 0..10 {
            world.fill(&day, 0, 7).await;
        }
        // It can commit nothing itself.
        let refused = Faults::scripted(|act, _| (act == "prepare").then_some(Fault::Before));
        let job = backfill(&world, &world.process(refused), Options::default(), &[]);
        let running = tokio::spawn({
            let job = job.clone();
            async move { job.run().await }
        });
        world.runtime.clock.sleep(Duration::from_secs(60)).await;
        assert_eq!(job.status().outcome, Outcome::Running);
        assert_eq!(world.healthy().round().await.unwrap().rows, 70);
        running.await.unwrap().unwrap();
        let status = job.status();
        assert_eq!((status.outcome, status.rows, status.rows_by_others), (Outcome::Done, 0, 70));
        assert_eq!((status.rounds, status.snapshot.map(|snapshot| snapshot.0)), (0, Some(1)));
        world.heals().await;
    });
}

#[test]
fn a_snapshot_of_ours_that_could_not_be_recorded_counts_as_ours() {
    for_seeds("backfill that is not recorded", 1, |seed| async move {
        let world = World::new(seed).await;
        let day = world.days.lock().unwrap()[0].clone();
        world.fill(&day, 0, 7).await;
        let mut records = 0;
        let faults = Faults::scripted(move |act, _| {
            records += u32::from(act == "record");
            // As often as one round tries.
            (act == "record" && records <= 8).then_some(Fault::Before)
        });
        let job = backfill(&world, &world.process(faults), Options::default(), &[]);
        job.run().await.unwrap();
        let status = job.status();
        assert_eq!((status.outcome, status.rows, status.rows_by_others, status.rounds), (Outcome::Done, 7, 0, 1));
        world.heals().await;
    });
}

/// Commits new rows of `from` again and again, a round every `pause`: a neighbour that leaves the backfill's partition alone.
async fn neighbour(world: World, from: usize, pause: Duration) {
    let day = world.days.lock().unwrap()[from].clone();
    let process = world.healthy();
    let table = world.table().await.id;
    let stops = Arc::new(LakeOffsets([(bucket(table, Some(day.id), 0).into(), i64::MAX)].into()));
    loop {
        world.fill(&day, 0, 1).await;
        let limits = Limits { stops: Some(Arc::clone(&stops)), ..Limits::default() };
        let job = Job { path: world.path.clone(), table, epoch: TieringEpoch(1), lease: None, limits };
        match round::run(&process.0, &job).await {
            Ok(summary) => assert!(matches!(summary.outcome, RoundOutcome::Committed { .. })),
            Err(error) => assert_eq!(error.kind(), Kind::Stale),
        }
        world.runtime.clock.sleep(pause).await;
    }
}

/// A backfill of partition `b`, 20 batches of 10 rows at a second each, beside a neighbour of this pace.
async fn beside(seed: u64, pace: Duration, patience: Duration) -> (World, Backfill, Result<(), Error>) {
    let world = World::new(seed).await;
    world.rescale(2, "b");
    let day = world.days.lock().unwrap()[1].clone();
    for _ in 0..20 {
        world.fill(&day, 0, 10).await;
    }
    let process = by_batch(world.process(slow(Duration::from_secs(1))));
    let options = Options { time_max: Duration::from_secs(60), patience, ..Options::default() };
    let job = backfill(&world, &process, options, &["day=b"]);
    let ended = tokio::select! {
        ended = job.run() => ended,
        () = neighbour(world.clone(), 0, pace) => unreachable!(),
    };
    (world, job, ended)
}

#[test]
fn beside_a_livelier_neighbour_rounds_get_smaller_until_they_succeed() {
    for_seeds("backfill beside a lively neighbour", 2, |seed| async move {
        let (world, job, ended) = beside(seed, Duration::from_secs(9), Options::default().patience).await;
        ended.map_err(|error| error.chain()).unwrap();
        let status = job.status();
        assert_eq!((status.outcome, status.rows, status.rows_by_others), (Outcome::Done, 200, 0));
        assert!(status.rounds > 1, "a whole round takes 20 s, and the neighbour commits every 9 s");
        world.heals().await;
    });
}

#[test]
fn a_backfill_that_nobody_brings_forward_gives_up_as_stale_and_says_how_far_it_came() {
    for_seeds("backfill that gives up", 1, |seed| async move {
        let (world, job, ended) = beside(seed, Duration::from_secs(3), Duration::from_secs(90)).await;
        let error = ended.unwrap_err();
        assert_eq!(error.kind(), Kind::Stale);
        assert!(error.to_string().contains("nobody has brought table `demo.t` forward for `"), "{error}");
        assert!(error.hint().unwrap().contains("backfill.patience"));
        let status = job.status();
        assert_eq!((status.outcome, status.rows, status.rows_left), (Outcome::Failed, 0, Some(200)));
        assert!(status.seconds > 90.0 && status.seconds < 180.0, "{} s", status.seconds);
        world.heals().await;
    });
}

#[test]
fn a_backfill_that_is_asked_to_stop_commits_what_it_has_read() {
    for_seeds("backfill that is stopped", 1, |seed| async move {
        let world = World::new(seed).await;
        let day = world.days.lock().unwrap()[0].clone();
        for _ in 0..20 {
            world.fill(&day, 0, 10).await;
        }
        let process = by_batch(world.process(slow(Duration::from_secs(1))));
        let cut = CancellationToken::new();
        let job = Backfill::new(process.0.clone(), world.path.clone(), vec![], Options::default(), cut.clone());
        let running = tokio::spawn({
            let job = job.clone();
            async move { job.run().await }
        });
        world.runtime.clock.sleep(Duration::from_millis(5_500)).await;
        cut.cancel();
        let began = world.runtime.clock.moment();
        running.await.unwrap().unwrap();
        assert!(began.elapsed() < Duration::from_secs(1), "it did not wait for the fetch");
        let status = job.status();
        assert_eq!((status.outcome, status.rounds), (Outcome::Stopped, 1));
        assert!((40..=50).contains(&status.rows), "{status:?}");
        assert_eq!(status.rows_left, Some(200 - status.rows));
        world.heals().await;
    });
}

#[test]
fn partitions_and_tables_that_are_dropped_meanwhile_end_their_part() {
    for_seeds("backfill of what is dropped", 1, |seed| async move {
        let world = World::new(seed).await;
        world.rescale(2, "b");
        let days = world.days.lock().unwrap().clone();
        for _ in 0..5 {
            world.fill(&days[0], 0, 10).await;
            world.fill(&days[1], 1, 10).await;
        }
        let process = by_batch(world.process(slow(Duration::from_secs(1))));
        let job = backfill(&world, &process, tiny(), &[]);
        let running = tokio::spawn({
            let job = job.clone();
            async move { job.run().await }
        });
        while job.status().rounds == 0 {
            world.runtime.clock.sleep(Duration::from_millis(100)).await;
        }
        world.cluster.drop_partition(&world.path, days[1].id).unwrap();
        running.await.unwrap().map_err(|error| error.chain()).unwrap();
        let status = job.status();
        assert_eq!((status.outcome, &status.dropped_partitions[..]), (Outcome::Done, &["b".to_owned()][..]));
        assert_eq!((status.rows + status.rows_gone, status.rows_left), (100, Some(0)), "{status:?}");
        assert!(status.rows >= 50 && status.rows_gone > 0, "{status:?}");

        // The whole table, in a round.
        world.fill(&days[0], 0, 10).await;
        world.fill(&days[0], 0, 10).await;
        let job = backfill(&world, &process, Options::default(), &[]);
        let running = tokio::spawn({
            let job = job.clone();
            async move { job.run().await }
        });
        world.runtime.clock.sleep(Duration::from_millis(1_500)).await;
        world.cluster.drop_table(&world.path).unwrap();
        let error = running.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), Kind::Stale);
        assert!(error.to_string().contains("`demo.t` was dropped"), "{}", error.chain());
        assert_eq!(job.status().outcome, Outcome::Failed);
    });
}

#[test]
fn what_can_not_be_backfilled_is_refused_with_a_way_out() {
    for_seeds("backfill that is refused", 1, |seed| async move {
        let world = World::new(seed).await;
        let process = world.healthy();
        let error = backfill(&world, &process, Options::default(), &["day=a_1"]).run().await.unwrap_err();
        assert_eq!((error.kind(), error.hint()), (Kind::Invalid, Some("there is, nearest first: `day=a:1`")));
        world.cluster.alter_property(&world.path, "table.datalake.enabled", Some("false")).unwrap();
        process.0.scan.forget(&world.path);
        let job = backfill(&world, &process, Options::default(), &[]);
        let error = job.run().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains("has its lake off") && error.hint().unwrap().contains("table.datalake.enabled"));
        assert_eq!((job.status().outcome, job.status().rows_total), (Outcome::Failed, None));
    });
}
