//! The schedules: the named ones step by step, the others by seed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lakeward::error::{Error, Kind};
use lakeward::model::{LakeOffsets, SnapshotId};
use lakeward::runtime::FailAction;
use lakeward::source::{LEASE_TRUSTED, Lease, LedgerRecord, memory};
use lakeward::storage::{self, Fault};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::audit::{each_row_once, surplus, we_never_doubled};
use super::chaos::{Chaos, some_rows};
use super::rivals::{append_somewhere, java_round, overwrite};
use super::service::{Ended, Service};
use super::world::{World, bucket, for_seeds};

pub(crate) const FAIL_POINTS: [&str; 7] = [
    "commit.before_pin",
    "commit.before_prepare",
    "commit.before_publish",
    "commit.after_publish",
    "commit.before_record",
    "commit.after_record",
    "commit.before_unpin",
];

fn committed(snapshot: i64) -> Ended {
    Ended { snapshot: Some(SnapshotId(snapshot)), recovered: None }
}

const NOTHING: Ended = Ended { snapshot: None, recovered: None };

/// A round that dies where it hangs.
async fn killed(world: &World, service: &Service, point: &str) {
    service.fail().arm(point, 1, FailAction::Hang);
    let ended = world.runtime.clock.timeout(Duration::from_secs(60), service.round()).await;
    assert!(ended.is_none(), "{point} was passed: {ended:?}");
}

/// Chaos, then one service alone without faults: it tiers what is left, and each row is there once.
async fn survives(world: &World, chaos: Chaos) {
    let held = chaos.run(world).await;
    assert!(held.is_empty(), "held: {:?}, seed {}", held.iter().map(Error::chain).collect::<Vec<_>>(), world.seed);
    heals(world).await;
}

async fn heals(world: &World) {
    Service::healthy(world).tier_all().await.unwrap();
    each_row_once(world, world.info().await.id).await;
}

#[test]
pub(super) fn a_round_commits_records_and_leaves_its_pin_the_next_one_makes_nothing() {
    for_seeds("plain", 1, |seed| async move {
        let world = World::new(seed, false).await;
        let service = Service::healthy(&world);
        assert_eq!(service.round().await.unwrap(), NOTHING);
        some_rows(&world).await;
        assert_eq!(service.round().await.unwrap(), committed(1));
        assert_eq!(service.round().await.unwrap(), NOTHING);
        assert_eq!(world.pins().await.iter().map(|pin| pin.next_snapshot).collect::<Vec<_>>(), [1]);
        append_somewhere(&world).await;
        assert_eq!(service.round().await.unwrap(), committed(2));
        // The first round's pin has gone, the second's stands.
        assert_eq!(world.pins().await.iter().map(|pin| pin.next_snapshot).collect::<Vec<_>>(), [2]);
        each_row_once(&world, world.info().await.id).await;
    });
}

#[test]
pub(super) fn a_snapshot_of_ours_carries_what_the_protocol_says() {
    for_seeds("properties", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        let _ = Service::healthy(&world).round().await.unwrap();
        append_somewhere(&world).await;
        let _ = Service::healthy(&world).round().await.unwrap();
        let snapshot = world.lake().await.snapshot(2).await.unwrap().unwrap();
        assert_eq!(snapshot.commit_user, "__fluss_lake_tiering");
        assert_eq!((snapshot.commit_identifier, snapshot.commit_kind.as_str()), (i64::MAX, "APPEND"));
        let keys: Vec<_> = snapshot.properties.keys().map(String::as_str).collect();
        assert_eq!(keys, ["fluss-offsets", "lakeward.base", "lakeward.offsets", "lakeward.round-id"]);
        assert_eq!(snapshot.properties["lakeward.base"], "1");
        assert!(snapshot.properties["lakeward.offsets"].starts_with("{\"version\":1,\"table_id\":1,\"bucket_offsets\":["));
        let recorded = world.cluster.recorded(world.info().await.id);
        assert_eq!(recorded.last().unwrap().offsets_path, snapshot.properties["fluss-offsets"]);
    });
}

#[test]
pub(super) fn a_bucket_with_empty_batches_only_advances_once() {
    for_seeds("empty", 1, |seed| async move {
        let world = World::new(seed, false).await;
        let id = world.info().await.id;
        world.append_empty(bucket(id, None, 1));
        let service = Service::healthy(&world);
        assert_eq!(service.round().await.unwrap(), committed(1));
        assert_eq!(service.round().await.unwrap(), NOTHING);
        let snapshot = world.lake().await.snapshot(1).await.unwrap().unwrap();
        assert_eq!((snapshot.total_record_count, snapshot.delta_record_count), (Some(0), Some(0)));
        world.append(bucket(id, None, 0), 2);
        assert_eq!(service.round().await.unwrap(), committed(2));
        assert_eq!(service.round().await.unwrap(), NOTHING);
        each_row_once(&world, id).await;
    });
}

#[test]
pub(super) fn a_process_killed_at_any_fail_point_costs_nothing() {
    for_seeds("fail points", 1, |seed| async move {
        for tiered_before in [false, true] {
            for point in FAIL_POINTS {
                let world = World::new(seed, false).await;
                if tiered_before {
                    some_rows(&world).await;
                    assert_eq!(Service::healthy(&world).round().await.unwrap(), committed(1));
                }
                some_rows(&world).await;
                killed(&world, &Service::healthy(&world), point).await;
                heals(&world).await;
            }
        }
    });
}

#[test]
pub(super) fn what_was_published_and_not_recorded_is_recorded_first_and_no_round_fails_for_it() {
    for_seeds("between publish and record", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        killed(&world, &Service::healthy(&world), "commit.before_record").await;
        assert_eq!(world.known().await, None);
        append_somewhere(&world).await;
        let ended = Service::healthy(&world).round().await.unwrap();
        assert_eq!(ended, Ended { snapshot: Some(SnapshotId(2)), recovered: Some(SnapshotId(1)) });
        each_row_once(&world, world.info().await.id).await;
        let recorded: Vec<i64> = world.cluster.recorded(world.info().await.id).iter().map(|entry| entry.snapshot.0).collect();
        assert_eq!(recorded, [1, 2]);
        // Prepared again: nobody else may name the file that we recorded.
        let paths: Vec<_> = world.cluster.recorded(world.info().await.id).into_iter().map(|entry| entry.offsets_path).collect();
        let first = world.lake().await.snapshot(1).await.unwrap().unwrap();
        assert!(!paths.contains(&first.properties["fluss-offsets"]));
    });
}

#[test]
pub(super) fn an_error_at_any_fail_point_is_survived() {
    for_seeds("errors at fail points", 1, |seed| async move {
        for point in FAIL_POINTS {
            let world = World::new(seed, false).await;
            some_rows(&world).await;
            let service = Service::healthy(&world);
            service.fail().arm(point, 1, FailAction::Error);
            drop(service.round().await);
            heals(&world).await;
        }
    });
}

#[test]
pub(super) fn services_that_hold_one_table_while_rows_arrive_and_processes_die() {
    for_seeds("rivals", 12, |seed| async move {
        let world = World::new(seed, false).await;
        let services = 2 + usize::from(seed % 3 == 0);
        survives(&world, Chaos { services, appends: 8, crashes: 3, ..Chaos::default() }).await;
    });
}

#[test]
pub(super) fn lost_replies_of_the_lake_and_the_coordinator() {
    for_seeds("lost replies", 20, |seed| async move {
        let world = World::new(seed, false).await;
        let chaos = Chaos { services: 2, appends: 8, crashes: 2, lake_faults: 25, coordinator_faults: 8, ..Chaos::default() };
        survives(&world, chaos).await;
    });
}

#[test]
pub(super) fn publishes_that_land_late_or_never() {
    for_seeds("late publishes", 14, |seed| async move {
        let world = World::new(seed, false).await;
        let chaos = Chaos { services: 2, appends: 8, crashes: 2, late_puts: 3, foreign: 2, ..Chaos::default() };
        survives(&world, chaos).await;
    });
}

#[test]
pub(super) fn expiry_that_keeps_one_snapshot_while_others_commit() {
    for_seeds("expiry", 14, |seed| async move {
        let world = World::new(seed, false).await;
        let chaos =
            Chaos { services: 2, appends: 8, crashes: 3, foreign: 6, expiries: 8, coordinator_faults: 10, ..Chaos::default() };
        survives(&world, chaos).await;
    });
}

#[test]
pub(super) fn everything_at_once_but_java() {
    for_seeds("everything", 16, |seed| async move {
        let world = World::new(seed, false).await;
        let chaos = Chaos {
            services: 2,
            appends: 10,
            crashes: 3,
            lake_faults: 40,
            coordinator_faults: 10,
            late_puts: 8,
            foreign: 4,
            expiries: 6,
            java: 0,
        };
        survives(&world, chaos).await;
    });
}

#[test]
pub(super) fn java_workers_beside_us_may_double_and_are_found_out_but_we_never_do() {
    let (found, harmless) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0)));
    for_seeds("zombies", 16, |seed| {
        let (found, harmless) = (Arc::clone(&found), Arc::clone(&harmless));
        async move {
            let world = World::new(seed, false).await;
            let chaos = Chaos { services: 1, appends: 8, crashes: 1, java: 3, ..Chaos::default() };
            let held = chaos.run(&world).await;
            we_never_doubled(&world).await;
            let newest = world.lake().await.snapshot(world.newest().await).await.unwrap().unwrap();
            if surplus(&world, &newest).await == 0 {
                assert!(held.is_empty(), "held without a double: {:?}, seed {seed}", held[0].chain());
                heals(&world).await;
                *harmless.lock().unwrap() += 1;
            } else {
                *found.lock().unwrap() += 1;
                if held.is_empty() {
                    // Found by the next look at the latest, unless none of ours is below the Java ones to count from.
                    append_somewhere(&world).await;
                    if let Err(error) = Service::healthy(&world).tier_all().await {
                        assert_eq!(error.kind(), Kind::Data, "{}, seed {seed}", error.chain());
                    }
                }
            }
        }
    });
    let (found, harmless) = (*found.lock().unwrap(), *harmless.lock().unwrap());
    assert!(found > 0 && harmless > 0, "{found} worlds with doubles, {harmless} without");
}

#[test]
pub(super) fn a_zombie_that_doubles_our_rows_is_held_with_its_numbers() {
    for_seeds("one zombie", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        assert_eq!(Service::healthy(&world).round().await.unwrap(), committed(1));
        append_somewhere(&world).await;
        // It plans from snapshot 1, we commit 2, then it commits the same rows.
        let zombie = tokio::spawn({
            let world = world.clone();
            async move { java_round(&world, 100_000).await }
        });
        tokio::task::yield_now().await;
        assert_eq!(Service::healthy(&world).round().await.unwrap(), committed(2));
        zombie.await.unwrap();
        append_somewhere(&world).await;
        let error = Service::healthy(&world).round().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Data);
        assert!(error.to_string().contains("written rows twice"), "{}", error.chain());
        assert!(error.hint().unwrap().contains("snapshot `2`"));
        we_never_doubled(&world).await;
    });
}

#[test]
pub(super) fn late_and_repeated_records_destroy_nothing() {
    for_seeds("late records", 1, |seed| async move {
        for earliest in [-1, 3] {
            let world = World::new(seed, false).await;
            let mut late = Some(CancellationToken::new());
            let release = late.clone().unwrap();
            let script = move |act: &str, _: &str| if act == "record" { late.take().map(memory::Fault::Late) } else { None };
            some_rows(&world).await;
            let slow = Service::with_faults(&world, None, memory::Faults::scripted(script));
            assert_eq!(slow.round().await.unwrap(), committed(1));
            let id = world.info().await.id;
            for snapshot in 2..5 {
                append_somewhere(&world).await;
                assert_eq!(Service::healthy(&world).round().await.unwrap(), committed(snapshot));
            }
            // The first record of snapshot 1 comes now, though its file has gone, and the newest one comes once more.
            let newest = world.cluster.recorded(id).pop().unwrap();
            release.cancel();
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            assert_eq!(world.known().await, None, "the coordinator can't read what it has");
            if earliest == -1 {
                heals(&world).await;
            }
            world.cluster.record_raw(
                &LedgerRecord {
                    table: id,
                    path: world.path.clone(),
                    snapshot: newest.snapshot,
                    offsets_path: newest.offsets_path.clone(),
                    offsets: LakeOffsets::default(),
                    max_timestamps: BTreeMap::new(),
                    earliest_to_keep: earliest,
                },
                Some(earliest),
            );
            heals(&world).await;
            append_somewhere(&world).await;
            heals(&world).await;
        }
    });
}

#[test]
pub(super) fn a_late_record_takes_k_back_and_the_next_round_records_again_first() {
    for_seeds("late record", 1, |seed| async move {
        let world = World::new(seed, false).await;
        let mut late = Some(CancellationToken::new());
        let release = late.clone().unwrap();
        let script = move |act: &str, _: &str| if act == "record" { late.take().map(memory::Fault::Late) } else { None };
        some_rows(&world).await;
        let slow = Service::with_faults(&world, None, memory::Faults::scripted(script));
        assert_eq!(slow.round().await.unwrap(), committed(1));
        append_somewhere(&world).await;
        assert_eq!(Service::healthy(&world).round().await.unwrap(), committed(2));
        // Foreign commits and an expirer push everything out that is not pinned.
        for _ in 0..4 {
            world.foreign_commit().await;
        }
        world.expire(1).await;
        release.cancel();
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        assert_eq!(world.known().await.unwrap().snapshot, SnapshotId(1));
        append_somewhere(&world).await;
        let ended = Service::healthy(&world).round().await.unwrap();
        assert_eq!(ended.recovered, Some(SnapshotId(2)), "the standing pin has kept snapshot 2");
        each_row_once(&world, world.info().await.id).await;
    });
}

#[test]
pub(super) fn a_publish_whose_reply_is_lost_is_told_by_its_round_id() {
    for_seeds("lost publish", 1, |seed| async move {
        for rival in [false, true] {
            let world = World::new(seed, false).await;
            some_rows(&world).await;
            let mut first = true;
            let script = move |act: &str, path: &str| {
                (act == "create" && path.contains("snapshot-") && std::mem::take(&mut first)).then_some(Fault::After)
            };
            let service = Service::with_faults(&world, Some(storage::Faults::scripted(script)), memory::Faults::default());
            if rival {
                world.foreign_commit().await;
            }
            assert_eq!(service.round().await.unwrap(), committed(1 + i64::from(rival)));
            each_row_once(&world, world.info().await.id).await;
        }
    });
}

#[test]
pub(super) fn files_stay_while_a_publish_may_still_land() {
    for_seeds("files stay", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        // Nothing but unknown outcomes: the first PUT lands after the round has given up.
        let release = CancellationToken::new();
        let late = release.clone();
        let mut first = true;
        let script = move |act: &str, path: &str| {
            (act == "create" && path.contains("snapshot-"))
                .then(|| if std::mem::take(&mut first) { Fault::Late(late.clone()) } else { Fault::Before })
        };
        let service = Service::with_faults(&world, Some(storage::Faults::scripted(script)), memory::Faults::default());
        let error = service.round().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Stale, "{}", error.chain());
        assert_eq!(world.pins().await.len(), 1, "the pin stays with the files");
        release.cancel();
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        assert_eq!(world.newest().await, 1);
        let ended = Service::healthy(&world).round().await.unwrap();
        assert_eq!(ended, Ended { snapshot: None, recovered: Some(SnapshotId(1)) });
        each_row_once(&world, world.info().await.id).await;
    });
}

#[test]
pub(super) fn a_stale_round_deletes_its_files_and_its_pin() {
    for_seeds("stale", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        let slow = Service::healthy(&world);
        let points = slow.fail().clone();
        points.arm("commit.before_publish", 1, FailAction::Hang);
        let round = tokio::spawn({
            let slow = slow.clone();
            async move { slow.round().await }
        });
        world.sleep(1).await;
        let files = |world: World| async move {
            let all = world.store.list("").await.unwrap();
            all.iter().filter(|object| !object.path.contains("/schema/")).map(|object| object.path.clone()).collect::<Vec<_>>()
        };
        assert!(files(world.clone()).await.iter().any(|path| path.ends_with(".parquet")));
        round.abort();
        drop(round.await);
        // The dead round's files stay for the orphan sweep; those of one that finds itself stale go at once.
        let before = files(world.clone()).await;
        let script_world = world.clone();
        let mut first = true;
        let script = move |act: &str, _: &str| {
            if act == "prepare" && std::mem::take(&mut first) {
                let world = script_world.clone();
                tokio::spawn(async move { Service::healthy(&world).round().await.unwrap() });
                return Some(memory::Fault::Before);
            }
            None
        };
        let stale = Service::with_faults(&world, None, memory::Faults::scripted(script));
        let error = stale.round().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Stale);
        assert!(error.to_string().contains("somebody else has tiered"), "{}", error.chain());
        let winner = world.lake().await.snapshot(1).await.unwrap().unwrap().properties["lakeward.round-id"].clone();
        let left: Vec<_> = files(world.clone()).await.into_iter().filter(|path| !before.contains(path)).collect();
        let pins: Vec<_> = left.iter().filter(|path| path.contains("consumer-")).collect();
        assert!(pins.len() == 1 && pins[0].ends_with(&winner), "{left:?}");
        assert!(left.iter().filter(|path| path.ends_with(".parquet")).all(|path| path.contains(&winner)), "{left:?}");
        each_row_once(&world, world.info().await.id).await;
    });
}

#[test]
pub(super) fn a_rolled_back_lake_is_held_and_nothing_is_doubled() {
    for_seeds("rollback", 1, |seed| async move {
        for foreign_after in 0..4 {
            let world = World::new(seed, false).await;
            some_rows(&world).await;
            assert_eq!(Service::healthy(&world).round().await.unwrap(), committed(1));
            append_somewhere(&world).await;
            assert_eq!(Service::healthy(&world).round().await.unwrap(), committed(2));
            world.roll_back(1).await;
            for _ in 0..foreign_after {
                world.foreign_commit().await;
            }
            // With nothing to tier as well.
            assert_eq!(Service::healthy(&world).round().await.unwrap_err().kind(), Kind::Data);
            append_somewhere(&world).await;
            let error = Service::healthy(&world).round().await.unwrap_err();
            assert_eq!(error.kind(), Kind::Data, "{foreign_after}: {}", error.chain());
            assert!(error.hint().is_some());
            let newest = world.lake().await.snapshot(world.newest().await).await.unwrap().unwrap();
            assert_eq!(surplus(&world, &newest).await, 0);
        }
    });
}

#[test]
pub(super) fn a_snapshot_that_a_committer_without_atomic_create_overwrote_is_found_out() {
    for_seeds("overwritten", 1, |seed| async move {
        // After the round: by the next one.
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        assert_eq!(Service::healthy(&world).round().await.unwrap(), committed(1));
        append_somewhere(&world).await;
        assert_eq!(Service::healthy(&world).round().await.unwrap(), committed(2));
        overwrite(&world, 2).await;
        assert_eq!(Service::healthy(&world).round().await.unwrap_err().kind(), Kind::Data);
        // Before it was recorded: by the round itself.
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        let scene = world.clone();
        let mut first = true;
        let script = move |act: &str, _: &str| {
            if act == "record" && std::mem::take(&mut first) {
                let world = scene.clone();
                tokio::spawn(async move { overwrite(&world, 1).await });
                return Some(memory::Fault::Before);
            }
            None
        };
        let error = Service::with_faults(&world, None, memory::Faults::scripted(script)).round().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Data);
        assert!(error.to_string().contains("without atomic create"), "{}", error.chain());
    });
}

#[test]
pub(super) fn a_table_that_was_dropped_and_made_again_never_continues_the_old_ones_offsets() {
    for_seeds("re-created", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        assert_eq!(Service::healthy(&world).round().await.unwrap(), committed(1));
        world.cluster.drop_table(&world.path).unwrap();
        world.create_table();
        some_rows(&world).await;
        let error = Service::healthy(&world).round().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Data);
        assert!(error.to_string().contains("belongs to table id `1`, this table has id `2`"), "{}", error.chain());
        // The way out that the error names.
        world.drop_lake_table().await;
        world.create_lake_table(&[]).await;
        heals(&world).await;
    });
}

#[test]
pub(super) fn a_round_whose_table_is_made_again_under_it_is_stale() {
    for_seeds("re-created under a round", 1, |seed| async move {
        for point in ["commit.before_pin", "commit.before_prepare"] {
            let world = World::new(seed, false).await;
            some_rows(&world).await;
            let scene = world.clone();
            let mut calls = 0;
            // The second look at the table is step 4's.
            let script = move |act: &str, _: &str| {
                if act == "table_info" {
                    calls += 1;
                    if calls == 2 {
                        scene.cluster.drop_table(&scene.path).unwrap();
                        scene.create_table();
                    }
                }
                None
            };
            let service = Service::with_faults(&world, None, memory::Faults::scripted(script));
            let error = service.round().await.unwrap_err();
            assert_eq!(error.kind(), Kind::Stale, "{point}: {}", error.chain());
            assert_eq!((world.newest().await, world.pins().await.len()), (0, 0));
        }
    });
}

#[test]
pub(super) fn rows_that_a_user_put_there_first_stay_and_are_no_trouble() {
    for_seeds("users first", 6, |seed| async move {
        let world = World::new(seed, false).await;
        for _ in 0..3 {
            world.foreign_commit().await;
        }
        if seed % 2 == 0 {
            world.expire(1).await;
        }
        some_rows(&world).await;
        let chaos = Chaos { services: 2, appends: 4, crashes: 2, foreign: 2, expiries: 3, ..Chaos::default() };
        survives(&world, chaos).await;
    });
}

#[test]
pub(super) fn partitions_keep_their_counts_over_rescales_between_rounds() {
    for_seeds("rescale", 1, |seed| async move {
        let world = World::new(seed, true).await;
        let id = world.info().await.id;
        let service = Service::healthy(&world);
        let rows = |partition: lakeward::model::PartitionId, count: i32| {
            for index in 0..count {
                world.append(bucket(id, Some(partition), index), 2);
            }
        };
        let a = world.cluster.create_partition(&world.path, &["a:1"]).unwrap().id;
        rows(a, 2);
        assert_eq!(service.round().await.unwrap(), committed(1));
        world.cluster.alter_bucket_count(&world.path, 4).unwrap();
        let b = world.cluster.create_partition(&world.path, &["b"]).unwrap().id;
        world.cluster.alter_bucket_count(&world.path, 3).unwrap();
        let c = world.cluster.create_partition(&world.path, &["c"]).unwrap().id;
        rows(a, 2);
        rows(b, 4);
        rows(c, 3);
        assert_eq!(service.round().await.unwrap(), committed(2));
        each_row_once(&world, id).await;
        let lake = world.lake().await;
        let snapshot = lake.snapshot(2).await.unwrap().unwrap();
        let live = lake.live_partitions(&snapshot, None).await.unwrap();
        let mut totals: Vec<_> = live.values().map(|partition| partition.totals.iter().copied().collect::<Vec<_>>()).collect();
        totals.sort();
        assert_eq!(totals, [[2], [3], [4]]);
        assert!(world.store.list("demo.db/t/day=a%3A1").await.unwrap().len() >= 2);
    });
}

#[test]
pub(super) fn a_partition_with_another_total_in_the_lake_is_held_by_name() {
    for_seeds("totals", 1, |seed| async move {
        let world = World::new(seed, true).await;
        let id = world.info().await.id;
        let a = world.cluster.create_partition(&world.path, &["a"]).unwrap().id;
        world.append(bucket(id, Some(a), 0), 2);
        assert_eq!(Service::healthy(&world).round().await.unwrap(), committed(1));
        // The partition is dropped and made again with another count.
        world.cluster.drop_partition(&world.path, a).unwrap();
        world.cluster.alter_bucket_count(&world.path, 4).unwrap();
        let again = world.cluster.create_partition(&world.path, &["a"]).unwrap().id;
        world.append(bucket(id, Some(again), 0), 2);
        let error = Service::healthy(&world).round().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Data);
        let text = error.to_string();
        assert!(text.contains("day=a") && text.contains("`4` in Fluss") && text.contains("total `2`"), "{text}");
        assert_eq!((world.newest().await, world.pins().await.len()), (1, 1));
    });
}

#[test]
pub(super) fn a_round_whose_lease_ran_out_commits_nothing_and_leaves_nothing() {
    for_seeds("lease", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        let clock = world.runtime.clock.clone();
        let mut late = Service::healthy(&world);
        late.lease = Some(Lease::new(clock.clone(), clock.moment(), LEASE_TRUSTED, CancellationToken::new()));
        world.sleep(89).await;
        assert_eq!(late.round().await.unwrap(), committed(1));
        world.sleep(2).await;
        append_somewhere(&world).await;
        let error = late.round().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Stale);
        assert_eq!((world.newest().await, world.pins().await.len()), (1, 1));
        heals(&world).await;
    });
}

#[test]
pub(super) fn where_consumers_expire_a_look_with_nothing_to_tier_writes_the_standing_pin_again() {
    for_seeds("consumer expiration", 1, |seed| async move {
        for (options, expected) in [(&[][..], 0), (&[("consumer.expiration-time", "2 h")][..], 1)] {
            let world = World::new(seed, false).await;
            world.drop_lake_table().await;
            world.create_lake_table(options).await;
            some_rows(&world).await;
            assert_eq!(Service::healthy(&world).round().await.unwrap(), committed(1));
            // Beyond any time that the in-memory store may have written it at.
            world.sleep(10 * 365 * 24 * 3600).await;
            let written = Arc::new(Mutex::new(0));
            let count = Arc::clone(&written);
            let script = move |act: &str, path: &str| {
                *count.lock().unwrap() += i32::from(act == "put" && path.contains("consumer-lakeward-"));
                None
            };
            let idle = Service::with_faults(&world, Some(storage::Faults::scripted(script)), memory::Faults::default());
            assert_eq!(idle.round().await.unwrap(), NOTHING);
            assert_eq!(world.pins().await.len(), 1);
            assert_eq!(*written.lock().unwrap(), expected);
        }
    });
}

/// Java does not pin: what it made can be gone before a slow round of ours looks.
async fn java_commits_and_expires(world: &World) {
    java_round(world, 0).await;
    world.foreign_commit().await;
    world.foreign_commit().await;
    world.expire(1).await;
}

#[test]
pub(super) fn a_round_that_slept_while_a_java_commit_expired_is_stale() {
    for_seeds("slept after recovery", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        let wake = Arc::new(Notify::new());
        let mut slow = Service::healthy(&world);
        slow.stall_after_recovery = Some(Arc::clone(&wake));
        let round = tokio::spawn(async move { slow.round().await });
        world.sleep(1).await;
        java_commits_and_expires(&world).await;
        wake.notify_one();
        let error = round.await.unwrap().unwrap_err();
        assert!(error.kind() == Kind::Stale && error.to_string().contains("has expired"), "{}", error.chain());
        append_somewhere(&world).await;
        heals(&world).await;
    });
}

#[test]
pub(super) fn a_missing_id_is_believed_only_if_k_is_the_same_again() {
    for_seeds("slept after K", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        let wake = Arc::new(Notify::new());
        let mut slow = Service::healthy(&world);
        slow.stall_after_k = Some(Arc::clone(&wake));
        let round = tokio::spawn(async move { slow.round().await });
        world.sleep(1).await;
        java_commits_and_expires(&world).await;
        wake.notify_one();
        assert_eq!(round.await.unwrap().unwrap(), NOTHING);
        append_somewhere(&world).await;
        heals(&world).await;
    });
}

#[test]
pub(super) fn a_lost_offsets_file_is_made_again_from_the_lake() {
    for_seeds("lost offsets file", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        assert_eq!(Service::healthy(&world).round().await.unwrap(), committed(1));
        let recorded = world.cluster.recorded(world.info().await.id);
        assert!(world.cluster.lose_offsets_file(&recorded[0].offsets_path));
        append_somewhere(&world).await;
        let ended = Service::healthy(&world).round().await.unwrap();
        assert_eq!(ended, Ended { snapshot: Some(SnapshotId(2)), recovered: Some(SnapshotId(1)) });
        each_row_once(&world, world.info().await.id).await;
    });
}

#[test]
pub(super) fn pins_of_dead_rounds_go_after_a_day_and_expiry_goes_on() {
    for_seeds("old pins", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        killed(&world, &Service::healthy(&world), "commit.before_publish").await;
        for snapshot in 1..4 {
            append_somewhere(&world).await;
            assert_eq!(Service::healthy(&world).round().await.unwrap(), committed(snapshot));
        }
        world.expire(1).await;
        assert_eq!(world.lake().await.snapshot_ids().await.unwrap(), [1, 2, 3], "the dead round's pin holds them");
        // The in-memory store tells the machine's time, which may be years beyond the simulation's start.
        world.sleep(10 * 365 * 24 * 3600).await;
        for snapshot in 4..6 {
            append_somewhere(&world).await;
            assert_eq!(Service::healthy(&world).round().await.unwrap(), committed(snapshot));
        }
        assert_eq!(world.pins().await.len(), 1);
        world.expire(1).await;
        assert_eq!(world.lake().await.snapshot_ids().await.unwrap(), [5]);
        heals(&world).await;
    });
}
