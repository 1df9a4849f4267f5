//! Schedules that go for one rule each. They judge by rows, files, offsets and pins, not by how a round got there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lakeward::commit::COMMIT_IDENTIFIER;
use lakeward::error::Kind;
use lakeward::lake::{CommitFacts, Published};
use lakeward::model::{LakeOffsets, SnapshotId};
use lakeward::paimon::{BinaryRow, path};
use lakeward::source::{LedgerRecord, memory};
use lakeward::storage::{self, Fault};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::super::audit::each_row_once;
use super::super::chaos::some_rows;
use super::super::rivals::{append_somewhere, java_round};
use super::super::service::{Ended, Service, body, entry};
use super::super::world::{ROOT, World, bucket, for_seeds};

macro_rules! all {
    ($($name:ident),* $(,)?) => {
        pub(super) const ALL: &[(&str, fn())] = &[$((stringify!($name), $name)),*];
    };
}

all! {
    a_snapshot_that_fluss_never_heard_of_counts_and_is_told,
    a_snapshot_is_never_recorded_by_the_path_that_it_names,
    a_snapshot_that_was_built_on_another_than_k_holds_the_table,
    a_zombie_whose_double_is_masked_by_empty_batches_is_found_by_its_offsets,
    a_coordinator_that_starts_holds_nothing,
    what_was_published_and_not_recorded_does_not_expire,
    an_id_that_was_used_and_has_expired_is_never_used_again,
    a_round_of_one_bucket_keeps_the_offsets_of_the_others,
    a_round_whose_files_may_be_swept_publishes_no_more,
    a_rollback_below_an_expired_base_is_found_by_the_round_under_way,
    a_base_whose_id_is_used_again_holds_the_table,
    a_base_that_expires_under_a_round_is_no_fault,
    a_lake_table_that_is_made_again_under_a_round_gets_none_of_its_files,
    rows_of_others_and_ours_share_no_sequence_number,
    a_publish_that_lost_a_race_overwrites_nothing,
    a_rivals_snapshot_under_our_id_is_not_ours,
    a_late_publish_above_a_rollback_finds_its_lists,
    a_living_rounds_pin_keeps_the_id_that_it_publishes_under,
    pins_of_dead_rounds_go_after_a_day,
    a_round_that_is_stale_takes_its_pin_away,
    a_late_record_of_ours_leaves_javas_file_alone,
}

async fn commits(world: &World) {
    Service::healthy(world).tier_all().await.unwrap();
}

async fn heals(world: &World) {
    commits(world).await;
    each_row_once(world, world.info().await.id).await;
    each_snapshot_stands_on_the_one_below(world).await;
}

/// A stray or overwritten snapshot shows in the totals.
async fn each_snapshot_stands_on_the_one_below(world: &World) {
    let lake = world.lake().await;
    let mut below = None;
    for id in lake.snapshot_ids().await.unwrap() {
        let snapshot = lake.snapshot(id).await.unwrap().unwrap();
        if let Some((at, total)) = below
            && at == id - 1
        {
            let before = snapshot.total_record_count.zip(snapshot.delta_record_count).map(|(total, delta)| total - delta);
            assert_eq!(before, total, "snapshot {id} does not stand on {at}");
        }
        below = Some((id, snapshot.total_record_count));
    }
}

/// A round in which `act` of the coordinator takes so long, once.
fn slow_at(world: &World, at: &'static str, time: Duration) -> JoinHandle<lakeward::error::Result<Ended>> {
    let mut first = true;
    let script = move |act: &str, _: &str| (act == at && std::mem::take(&mut first)).then_some(memory::Fault::Slow(time));
    let service = Service::with_faults(world, None, memory::Faults::scripted(script));
    tokio::spawn(async move { service.round().await })
}

/// The same at a call to the lake whose path has `part` in it.
fn slow_in_lake(world: &World, at: &'static str, part: &'static str, time: Duration) -> JoinHandle<lakeward::error::Result<Ended>> {
    let mut first = true;
    let script =
        move |act: &str, path: &str| (act == at && path.contains(part) && std::mem::take(&mut first)).then_some(Fault::Slow(time));
    let service = Service::with_faults(world, Some(storage::Faults::scripted(script)), memory::Faults::default());
    tokio::spawn(async move { service.round().await })
}

/// A round that stands still between recovery and writing.
async fn asleep(world: &World) -> (Arc<Notify>, JoinHandle<lakeward::error::Result<Ended>>) {
    let wake = Arc::new(Notify::new());
    let mut slow = Service::healthy(world);
    slow.stall_after_recovery = Some(Arc::clone(&wake));
    let round = tokio::spawn(async move { slow.round().await });
    world.sleep(1).await;
    (wake, round)
}

/// A round that publishes and dies before Fluss hears of it.
async fn dies_before_the_record(world: &World) {
    let script = |act: &str, _: &str| (act == "record").then_some(memory::Fault::Hang);
    let service = Service::with_faults(world, None, memory::Faults::scripted(script));
    assert!(world.runtime.clock.timeout(Duration::from_secs(60), service.round()).await.is_none());
}

/// Commits of users, and an expirer that keeps one snapshot.
async fn others_go_on(world: &World) {
    for _ in 0..3 {
        world.foreign_commit().await;
    }
    world.expire(1).await;
}

const HOUR: Duration = Duration::from_secs(3600);

#[test]
pub(super) fn a_snapshot_that_fluss_never_heard_of_counts_and_is_told() {
    for_seeds("never heard of", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        dies_before_the_record(&world).await;
        heals(&world).await;
    });
}

#[test]
pub(super) fn a_snapshot_is_never_recorded_by_the_path_that_it_names() {
    for_seeds("own path", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        dies_before_the_record(&world).await;
        let first = world.lake().await.snapshot(1).await.unwrap().unwrap().properties["fluss-offsets"].clone();
        // A Java job that has found snapshot 1 too records it by the path that it names, and a last time when others have gone on.
        let table = world.info().await.id;
        let javas = LedgerRecord {
            table,
            path: world.path.clone(),
            snapshot: SnapshotId(1),
            offsets_path: first,
            offsets: LakeOffsets::default(),
            max_timestamps: BTreeMap::new(),
            earliest_to_keep: -1,
        };
        commits(&world).await;
        world.cluster.record_raw(&javas, None);
        assert!(world.known().await.is_some(), "Java's record has deleted the file that it names");
        heals(&world).await;
    });
}

#[test]
pub(super) fn a_snapshot_that_was_built_on_another_than_k_holds_the_table() {
    for_seeds("not standing", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        commits(&world).await;
        // Built when nothing was there yet.
        let lake = world.lake().await;
        let delta = lake.write_delta(vec![], vec![]).await.unwrap();
        let facts = CommitFacts { identifier: COMMIT_IDENTIFIER, ..world.facts("java", "APPEND") };
        let mut stray = lake.stage(None, &delta, false).await.unwrap().snapshot(None, facts);
        stray.id = 2;
        world.store.put(&format!("{ROOT}/{}", path::snapshot(2)), stray.to_json().unwrap().into()).await.unwrap();
        append_somewhere(&world).await;
        assert_eq!(Service::healthy(&world).round().await.unwrap_err().kind(), Kind::Data);
    });
}

/// A Java-made snapshot with rows `from..to` of bucket 0, which ends at `to`; nobody has recorded it.
async fn java_made(world: &World, from: i64, to: i64) {
    let table = world.info().await.id;
    let (at, lake) = (bucket(table, None, 0), world.lake().await);
    let mut entries = vec![];
    let rows = world.rows_in(at, from, to);
    if let Some(first) = rows.first() {
        let file =
            entry(BinaryRow::empty(), 0, 2, format!("data-java-{from}-{to}-{}.parquet", world.newest().await), *first, rows.len());
        world.store.put(&lake.object(&path::data_file(lake.schema(), &file).unwrap()), body(at, &rows).into()).await.unwrap();
        entries.push(file);
    }
    let mut ends = world.known().await.unwrap().offsets;
    ends.0.insert(at.into(), to);
    let offsets = world.cluster.prepare_raw(table, &world.path, &ends, true).unwrap();
    let newest = lake.snapshot(world.newest().await).await.unwrap();
    let delta = lake.write_delta(entries, vec![]).await.unwrap();
    let staged = lake.stage(newest.as_ref(), &delta, false).await.unwrap();
    let snapshot = staged.snapshot(newest.as_ref(), world.java_facts(&offsets));
    assert_eq!(lake.publish(&snapshot).await.unwrap(), Published::Created);
}

#[test]
pub(super) fn a_zombie_whose_double_is_masked_by_empty_batches_is_found_by_its_offsets() {
    for_seeds("masked zombie", 1, |seed| async move {
        let world = World::new(seed, false).await;
        let at = bucket(world.info().await.id, None, 0);
        world.append(at, 2);
        commits(&world).await;
        world.append(at, 1);
        world.append_empty(at);
        world.append_empty(at);
        // One worker takes 2..5, a zombie 2..3 once more, and the next one goes on from there: 2 rows for 3 offsets.
        java_made(&world, 2, 5).await;
        java_made(&world, 2, 3).await;
        java_made(&world, 3, 5).await;
        let error = Service::healthy(&world).round().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Data, "{}", error.chain());
        assert!(error.to_string().contains("went back"), "{}", error.chain());
    });
}

#[test]
pub(super) fn a_coordinator_that_starts_holds_nothing() {
    for_seeds("starting", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        java_round(&world, 0).await;
        others_go_on(&world).await;
        world.cluster.start_slowly(Duration::from_secs(2));
        append_somewhere(&world).await;
        if let Err(error) = Service::healthy(&world).round().await {
            assert_ne!(error.kind(), Kind::Data, "{}", error.chain());
        }
        heals(&world).await;
    });
}

#[test]
pub(super) fn what_was_published_and_not_recorded_does_not_expire() {
    for_seeds("unrecorded", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        dies_before_the_record(&world).await;
        others_go_on(&world).await;
        heals(&world).await;
    });
}

#[test]
pub(super) fn an_id_that_was_used_and_has_expired_is_never_used_again() {
    for_seeds("used id", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        // Whatever it has looked at by then: it writes its pin after Java's commit has come and gone.
        let round = slow_in_lake(&world, "put", "consumer-", HOUR);
        world.sleep(60).await;
        append_somewhere(&world).await;
        java_round(&world, 0).await;
        others_go_on(&world).await;
        drop(round.await.unwrap());
        assert_eq!(world.lake().await.snapshot(1).await.unwrap(), None, "a stray snapshot under an id that was used");
        heals(&world).await;
    });
}

#[test]
pub(super) fn a_round_of_one_bucket_keeps_the_offsets_of_the_others() {
    for_seeds("one bucket", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        commits(&world).await;
        world.append(bucket(world.info().await.id, None, 1), 2);
        heals(&world).await;
    });
}

#[test]
pub(super) fn a_round_whose_files_may_be_swept_publishes_no_more() {
    for_seeds("swept", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        let round = slow_at(&world, "prepare", 30 * HOUR);
        world.sleep(26 * 3600).await;
        // The orphan sweep: named by nothing, older than a day.
        for file in world.store.list("").await.unwrap().into_iter().filter(|file| file.path.contains("/bucket-")) {
            world.store.delete(&file.path).await.unwrap();
        }
        drop(round.await.unwrap());
        heals(&world).await;
    });
}

#[test]
pub(super) fn a_rollback_below_an_expired_base_is_found_by_the_round_under_way() {
    for_seeds("below an expired base", 1, |seed| async move {
        let world = World::new(seed, false).await;
        for _ in 0..2 {
            some_rows(&world).await;
            commits(&world).await;
        }
        let tag = world.store.get(&format!("{ROOT}/{}", path::snapshot(1))).await.unwrap().unwrap();
        // An operator has taken our pins away.
        for pin in world.pins().await {
            world.lake().await.delete_pin(&pin.name).await.unwrap();
        }
        others_go_on(&world).await;
        append_somewhere(&world).await;
        let (wake, round) = asleep(&world).await;
        world.roll_back(0).await;
        world.store.put(&format!("{ROOT}/{}", path::snapshot(1)), tag).await.unwrap();
        world.lake().await.write_latest_hint(1).await.unwrap();
        wake.notify_one();
        assert_eq!(round.await.unwrap().unwrap_err().kind(), Kind::Data);
        assert_eq!(world.newest().await, 1, "nothing was built on a lake that lacks rows");
    });
}

#[test]
pub(super) fn a_base_whose_id_is_used_again_holds_the_table() {
    for_seeds("base used again", 1, |seed| async move {
        let world = World::new(seed, false).await;
        for _ in 0..2 {
            some_rows(&world).await;
            commits(&world).await;
        }
        append_somewhere(&world).await;
        let (wake, round) = asleep(&world).await;
        world.roll_back(1).await;
        world.foreign_commit().await;
        wake.notify_one();
        assert_eq!(round.await.unwrap().unwrap_err().kind(), Kind::Data);
        assert_eq!(world.newest().await, 2, "nothing was built on a lake that lacks rows");
    });
}

#[test]
pub(super) fn a_base_that_expires_under_a_round_is_no_fault() {
    for_seeds("base expires", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        java_round(&world, 0).await;
        append_somewhere(&world).await;
        let (wake, round) = asleep(&world).await;
        others_go_on(&world).await;
        wake.notify_one();
        if let Err(error) = round.await.unwrap() {
            assert_ne!(error.kind(), Kind::Data, "{}", error.chain());
        }
        heals(&world).await;
    });
}

#[test]
pub(super) fn a_lake_table_that_is_made_again_under_a_round_gets_none_of_its_files() {
    for_seeds("lake made again", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        let round = slow_at(&world, "prepare", HOUR);
        world.sleep(60).await;
        world.drop_lake_table().await;
        world.create_lake_table(&[]).await;
        drop(round.await.unwrap());
        heals(&world).await;
    });
}

#[test]
pub(super) fn rows_of_others_and_ours_share_no_sequence_number() {
    for_seeds("sequence numbers", 1, |seed| async move {
        let world = World::keyed(seed).await;
        let (at, lake) = (bucket(world.info().await.id, None, 0), world.lake().await);
        world.append(at, 2);
        commits(&world).await;
        world.append(at, 1);
        // A user puts rows into the bucket after this round has looked for the number that its own begin at.
        let file = entry(BinaryRow::empty(), 0, 2, "data-user.parquet".to_owned(), 2, 2);
        world.store.put(&lake.object(&path::data_file(lake.schema(), &file).unwrap()), body(at, &[8, 9]).into()).await.unwrap();
        let newest = lake.snapshot(world.newest().await).await.unwrap();
        let delta = lake.write_delta(vec![file], vec![]).await.unwrap();
        let staged = lake.stage(newest.as_ref(), &delta, false).await.unwrap();
        let users = staged.snapshot(newest.as_ref(), world.facts("somebody", "APPEND"));
        assert_eq!(lake.publish(&users).await.unwrap(), Published::Created);
        if let Err(error) = Service::healthy(&world).round().await {
            assert_eq!(error.kind(), Kind::Stale, "{}", error.chain());
        }
        let newest = lake.snapshot(world.newest().await).await.unwrap().unwrap();
        let live = lake.live_entries(&newest, None).await.unwrap();
        let numbers: Vec<(i64, i64)> =
            live.iter().map(|entry| (entry.file.min_sequence_number, entry.file.max_sequence_number)).collect();
        assert!(numbers.is_sorted_by(|one, next| one.1 < next.0), "{numbers:?}");
    });
}

#[test]
pub(super) fn a_publish_that_lost_a_race_overwrites_nothing() {
    for_seeds("lost race", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        let mut first = true;
        let script = move |act: &str, path: &str| {
            (matches!(act, "create" | "put") && path.contains("/snapshot-") && std::mem::take(&mut first))
                .then_some(Fault::Slow(HOUR))
        };
        let late = Service::with_faults(&world, Some(storage::Faults::scripted(script)), memory::Faults::default());
        let late = tokio::spawn(async move { late.round().await });
        world.sleep(60).await;
        some_rows(&world).await;
        commits(&world).await;
        world.foreign_commit().await;
        drop(late.await.unwrap());
        heals(&world).await;
    });
}

#[test]
pub(super) fn a_rivals_snapshot_under_our_id_is_not_ours() {
    for_seeds("rival under our id", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        // It has planned 3 rows, takes its time, publishes, and dies before Fluss hears of it.
        let script = |act: &str, _: &str| match act {
            "prepare" => Some(memory::Fault::Slow(Duration::from_secs(60))),
            "record" => Some(memory::Fault::Hang),
            _ => None,
        };
        let rival = Service::with_faults(&world, None, memory::Faults::scripted(script));
        let rival = tokio::spawn(async move { rival.round().await });
        world.sleep(1).await;
        some_rows(&world).await;
        // We plan 6; our publish fails, nobody tells us, and we take our time too.
        let mut step = 0;
        let script = move |act: &str, path: &str| {
            if act == "create" && path.contains("/snapshot-") && step == 0 {
                step = 1;
                return Some(Fault::Before);
            }
            (step == 1).then(|| {
                step = 2;
                Fault::Slow(HOUR)
            })
        };
        let ours = Service::with_faults(&world, Some(storage::Faults::scripted(script)), memory::Faults::default());
        drop(ours.round().await);
        rival.abort();
        heals(&world).await;
    });
}

#[test]
pub(super) fn a_late_publish_above_a_rollback_finds_its_lists() {
    for_seeds("late above a rollback", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        commits(&world).await;
        world.foreign_commit().await;
        append_somewhere(&world).await;
        let release = CancellationToken::new();
        let (late, scene) = (release.clone(), world.clone());
        let mut first = true;
        let script = move |act: &str, path: &str| {
            (act == "create" && path.contains("/snapshot-3") && std::mem::take(&mut first)).then(|| {
                let world = scene.clone();
                tokio::spawn(async move { world.roll_back(1).await });
                Fault::Late(late.clone())
            })
        };
        let service = Service::with_faults(&world, Some(storage::Faults::scripted(script)), memory::Faults::default());
        drop(service.round().await);
        commits(&world).await;
        release.cancel();
        world.sleep(1).await;
        let lake = world.lake().await;
        for id in lake.snapshot_ids().await.unwrap() {
            let snapshot = lake.snapshot(id).await.unwrap().unwrap();
            lake.live_entries(&snapshot, None).await.unwrap_or_else(|error| panic!("snapshot {id}: {}", error.chain()));
        }
        commits(&world).await;
        each_row_once(&world, world.info().await.id).await;
    });
}

#[test]
pub(super) fn a_living_rounds_pin_keeps_the_id_that_it_publishes_under() {
    for_seeds("living", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        // It has looked, and publishes an hour later.
        let round = slow_in_lake(&world, "create", "/snapshot-1", HOUR);
        world.sleep(60).await;
        for _ in 0..3 {
            append_somewhere(&world).await;
            commits(&world).await;
        }
        others_go_on(&world).await;
        drop(round.await.unwrap());
        each_snapshot_stands_on_the_one_below(&world).await;
        append_somewhere(&world).await;
        heals(&world).await;
    });
}

#[test]
pub(super) fn pins_of_dead_rounds_go_after_a_day() {
    for_seeds("dead pins", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        let dead = slow_at(&world, "prepare", HOUR);
        world.sleep(60).await;
        dead.abort();
        for _ in 0..2 {
            world.sleep(26 * 3600).await;
            append_somewhere(&world).await;
            heals(&world).await;
        }
        assert_eq!(world.pins().await.len(), 1, "the dead round's pin holds everything");
    });
}

#[test]
pub(super) fn a_round_that_is_stale_takes_its_pin_away() {
    for_seeds("stale pin", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        let slow = slow_at(&world, "prepare", HOUR);
        world.sleep(60).await;
        commits(&world).await;
        assert_eq!(slow.await.unwrap().unwrap_err().kind(), Kind::Stale);
        assert_eq!(world.pins().await.len(), 1, "the stale round's pin stays beside the standing one");
        heals(&world).await;
    });
}

#[test]
pub(super) fn a_late_record_of_ours_leaves_javas_file_alone() {
    for_seeds("late record beside Java", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        let release = CancellationToken::new();
        let mut late = Some(release.clone());
        // The first record comes late, the others never.
        let script =
            move |act: &str, _: &str| (act == "record").then(|| late.take().map_or(memory::Fault::Before, memory::Fault::Late));
        drop(Service::with_faults(&world, None, memory::Faults::scripted(script)).round().await);
        append_somewhere(&world).await;
        // It records our snapshot, then makes its own.
        java_round(&world, 0).await;
        java_round(&world, 0).await;
        assert_eq!(world.newest().await, 2);
        release.cancel();
        world.sleep(1).await;
        append_somewhere(&world).await;
        heals(&world).await;
    });
}
