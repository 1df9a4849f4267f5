//! Counter-examples of the model (docs/reliability.md), played with the real code.

use std::collections::BTreeMap;
use std::time::Duration;

use lakeward::error::Kind;
use lakeward::model::{LakeOffsets, SnapshotId};
use lakeward::paimon::{BinaryRow, path};
use lakeward::runtime::FailAction;
use lakeward::source::{LEASE_TRUSTED, Lease, LedgerRecord, memory};
use lakeward::storage::{self, Fault};
use tokio_util::sync::CancellationToken;

use super::audit::{each_row_once, surplus};
use super::chaos::some_rows;
use super::rivals::{append_somewhere, java_round};
use super::service::{Ended, Service, body, entry};
use super::world::{ROOT, World, for_seeds};

/// A Java worker's first snapshot, put where `snapshot-1` is or is not, with the offsets file that it names; not recorded.
async fn java_puts_the_first(world: &World, with_rows: bool) -> String {
    let (lake, table) = (world.lake().await, world.info().await.id);
    let (mut ends, mut entries) = (LakeOffsets::default(), vec![]);
    for (bucket, end) in world.ends(table).into_iter().filter(|_| with_rows) {
        ends.0.insert(bucket.into(), end);
        let rows = world.rows_in(bucket, 0, end);
        let row = BinaryRow::write(&[], &[]).unwrap();
        let file = entry(row, bucket.bucket.0, 2, format!("data-java-{}.parquet", bucket.bucket), rows[0], rows.len());
        let object = lake.object(&path::data_file(lake.schema(), &file).unwrap());
        world.store.put(&object, body(bucket, &rows).into()).await.unwrap();
        entries.push(file);
    }
    let offsets_path = world.cluster.prepare_raw(table, &world.path, &ends, true).unwrap();
    let delta = lake.write_delta(entries, vec![]).await.unwrap();
    let staged = lake.stage(None, &delta, false).await.unwrap();
    let json = staged.snapshot(None, world.java_facts(&offsets_path)).to_json().unwrap();
    world.store.put(&format!("{ROOT}/{}", path::snapshot(1)), json.into()).await.unwrap();
    offsets_path
}

#[test]
pub(super) fn a_java_made_snapshot_over_the_one_that_was_recorded_holds_the_table() {
    for_seeds("java over ours", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        assert_eq!(Service::healthy(&world).round().await.unwrap().snapshot, Some(SnapshotId(1)));
        java_puts_the_first(&world, false).await;
        let error = Service::healthy(&world).round().await.unwrap_err();
        assert!(error.kind() == Kind::Data && error.to_string().contains("other offsets"), "{}", error.chain());
    });
}

#[test]
pub(super) fn a_slow_record_of_javas_snapshot_does_not_let_the_next_one_expire() {
    for_seeds("slow record of recovery", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        let offsets_path = java_puts_the_first(&world, true).await;
        // Our recovery records it, late, and is cut off.
        let release = CancellationToken::new();
        let (late, mut cut) = (release.clone(), false);
        let script = move |act: &str, _: &str| {
            let first = act == "record" && !cut;
            let fault = if first { Some(memory::Fault::Late(late.clone())) } else { cut.then_some(memory::Fault::Before) };
            cut |= first;
            fault
        };
        append_somewhere(&world).await;
        let slow = Service::with_faults(&world, None, memory::Faults::scripted(script));
        assert_eq!(slow.round().await.unwrap_err().kind(), Kind::Unavailable);
        // Java records it and goes on, and all of that expires unless it is pinned.
        let record = LedgerRecord {
            table: world.info().await.id,
            path: world.path.clone(),
            snapshot: SnapshotId(1),
            offsets_path,
            offsets: LakeOffsets::default(),
            max_timestamps: BTreeMap::new(),
            earliest_to_keep: -1,
        };
        world.cluster.record_raw(&record, None);
        java_round(&world, 0).await;
        world.foreign_commit().await;
        world.expire(1).await;
        release.cancel();
        world.sleep(1).await;
        assert_eq!(world.known().await.unwrap().snapshot, SnapshotId(1), "the slow record has taken K back");
        append_somewhere(&world).await;
        Service::healthy(&world).tier_all().await.unwrap();
        each_row_once(&world, world.info().await.id).await;
    });
}

#[test]
pub(super) fn a_missing_id_is_believed_only_if_it_is_missing_still() {
    for_seeds("rolled back and grown again between two looks", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        // Snapshot 1 is ours and was never recorded; two foreign ones stand on it.
        let dead = Service::healthy(&world);
        dead.fail().arm("commit.before_record", 1, FailAction::Hang);
        assert!(world.runtime.clock.timeout(Duration::from_secs(60), dead.round()).await.is_none());
        world.foreign_commit().await;
        world.foreign_commit().await;
        // The lower goes before recovery reads it on its walk (it was read before, on the way from the hint to the newest), and others
        // have both ids before recovery looks again.
        let (scene, mut reads, mut looks) = (world.clone(), 0, 0);
        let script = move |act: &str, path: &str| {
            reads += i32::from(act == "get" && path.ends_with("snapshot-2"));
            looks += i32::from(reads > 1);
            match looks {
                1 => {
                    let world = scene.clone();
                    tokio::spawn(async move {
                        world.roll_back(1).await;
                        world.sleep(2).await;
                        world.foreign_commit().await;
                        world.foreign_commit().await;
                    });
                    Some(Fault::Slow(Duration::from_secs(1)))
                }
                2 => Some(Fault::Slow(Duration::from_secs(5))),
                _ => None,
            }
        };
        let service = Service::with_faults(&world, Some(storage::Faults::scripted(script)), memory::Faults::default());
        append_somewhere(&world).await;
        let ended = service.round().await.unwrap();
        assert_eq!(ended, Ended { snapshot: Some(SnapshotId(4)), recovered: Some(SnapshotId(1)) });
        each_row_once(&world, world.info().await.id).await;
    });
}

#[test]
pub(super) fn files_of_a_publish_without_an_answer_stay_whatever_stands_under_its_id() {
    for_seeds("late publish over a rollback", 1, |seed| async move {
        let world = World::new(seed, false).await;
        some_rows(&world).await;
        world.foreign_commit().await;
        let release = CancellationToken::new();
        let (scene, late, mut creates) = (world.clone(), release.clone(), 0);
        let script = move |act: &str, path: &str| {
            creates += i32::from(act == "create" && path.contains("snapshot-"));
            if creates != 1 || act != "create" || !path.contains("snapshot-") {
                return None;
            }
            let world = scene.clone();
            tokio::spawn(async move {
                world.foreign_commit().await;
                Service::healthy(&world).round().await.unwrap()
            });
            Some(Fault::Late(late.clone()))
        };
        let slow = Service::with_faults(&world, Some(storage::Faults::scripted(script)), memory::Faults::default());
        let error = slow.round().await.unwrap_err();
        assert!(error.kind() == Kind::Stale && error.to_string().contains("somebody else has tiered"), "{}", error.chain());
        assert_eq!(world.newest().await, 3);
        // A rollback frees the id that the PUT is on its way to.
        world.roll_back(1).await;
        release.cancel();
        world.sleep(1).await;
        let landed = world.lake().await.snapshot(2).await.unwrap().expect("it lands");
        assert_eq!(surplus(&world, &landed).await, 0);
        append_somewhere(&world).await;
        let error = Service::healthy(&world).round().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Data, "{}", error.chain());
    });
}

#[test]
pub(super) fn nothing_is_published_or_recorded_on_a_lease_that_has_run_out_on_the_way() {
    for_seeds("lease runs out in a commit", 1, |seed| async move {
        for (act, part, published) in [("put", "manifest", 0), ("put", "LATEST", 1)] {
            let world = World::new(seed, false).await;
            some_rows(&world).await;
            let mut first = true;
            let script = move |now: &str, path: &str| {
                (now == act && path.contains(part) && std::mem::take(&mut first)).then(|| Fault::Slow(Duration::from_secs(100)))
            };
            let mut late = Service::with_faults(&world, Some(storage::Faults::scripted(script)), memory::Faults::default());
            let clock = world.runtime.clock.clone();
            late.lease = Some(Lease::new(clock.clone(), clock.moment(), LEASE_TRUSTED, CancellationToken::new()));
            let error = late.round().await.unwrap_err();
            assert_eq!(error.kind(), Kind::Stale, "{}", error.chain());
            assert_eq!((world.newest().await, world.known().await), (published, None));
            Service::healthy(&world).tier_all().await.unwrap();
            each_row_once(&world, world.info().await.id).await;
        }
    });
}
