//! Services that die over a primary-key table: what a reader of the lake sees is the state at the offsets, and its changelog tells every
//! change once.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use lakeward::commit::invariants;
use lakeward::lake::LakeTable;
use lakeward::model::{BucketId, BucketKey, LakeOffsets, OffsetsFile, Partition, SnapshotId};
use lakeward::paimon::{ManifestEntry, Snapshot};
use lakeward::round;
use lakeward::runtime::Rng;
use lakeward::source::cluster::ClusterSource;
use lakeward::source::{LakeLedger, LedgerState};

use super::service::{of_recovery, of_rounds};
use super::world::{World, accounts, accounts_table, day, done};
use super::*;

/// Cases that a world sees before a fresh one takes over.
const CASES_PER_WORLD: usize = 12;

/// Partitions of 2 and 3 buckets.
async fn with_accounts() -> World {
    let mut world = World::new();
    assert_eq!(world.start(None).await, None);
    let admin = world.admin();
    let all = async {
        admin.create_database("demo", true).await?;
        admin.create_table(&accounts(), &accounts_table(), false).await?;
        admin.create_partition(&accounts(), &day("a"), false).await?;
        admin.alter_bucket_count(&accounts(), 3).await?;
        admin.create_partition(&accounts(), &day("b"), false).await
    };
    done(world.step(all).await);
    world
}

/// Upserts and deletes of some keys in each partition, each key once.
async fn load(world: &mut World, rng: &Rng) {
    for day in ["a", "b"] {
        let first = world.ids(30).start;
        let puts: Vec<_> =
            (0..30).filter(|_| rng.below(2) == 0).map(|key| (key, (rng.below(3) > 0).then_some(first + key))).collect();
        world.put(day, &puts).await;
    }
}

async fn serve(world: &World, wait: &str, fail: Option<&str>) -> Option<world::Death> {
    let (ended, death) = world.serve(fail, wait, &[]).await;
    assert!(death.is_some() || ended.code == Some(0), "{fail:?}: {ended:?}");
    assert!(!ended.stderr.contains("table held") && !ended.stderr.contains("panicked"), "{}", ended.stderr);
    death
}

async fn case(world: &mut World, rng: &Rng, case: &Case, kills: &mut Kills) -> bool {
    load(world, rng).await;
    let mut died = false;
    for (turn, fail) in case.fails.iter().enumerate() {
        let death = serve(world, if turn == 0 { "0s" } else { "1500ms" }, Some(fail)).await;
        died = death.is_some();
        if let Some(death) = death {
            kills.add(&death.point, &death.place);
        }
        audit(world, false).await;
        load(world, rng).await;
    }
    for _ in 0..6 {
        serve(world, "1500ms", None).await;
        if ends(world).await == known(world).await.map(|(_, offsets)| offsets).unwrap_or_default() {
            audit(world, true).await;
            return died;
        }
    }
    panic!("six runs of a healthy service do not bring the lake up");
}

async fn ends(world: &World) -> LakeOffsets {
    let ends = world.keys.iter().map(|(bucket, keys)| (*bucket, keys.end()));
    LakeOffsets(ends.collect())
}

async fn known(world: &World) -> Option<(SnapshotId, LakeOffsets)> {
    match ClusterSource::new(world.cluster()).latest(&accounts()).await.unwrap() {
        LedgerState::At(entry) => Some((entry.snapshot, entry.offsets)),
        LedgerState::Empty => None,
        other => panic!("{other:?}"),
    }
}

fn told(snapshot: &Snapshot) -> LakeOffsets {
    OffsetsFile::from_json(&snapshot.properties["lakeward.offsets"]).unwrap().offsets
}

/// Compares lake and model; `strict` = everybody is done.
async fn audit(world: &World, strict: bool) {
    let info = world.admin().table_info(&accounts()).await.unwrap();
    let partitions = world.admin().partitions(&accounts()).await.unwrap();
    let (lake, _) = round::open_lake(&info, &world.runtime).await.map_err(|error| error.chain()).unwrap();
    let mut snapshots = vec![];
    for id in lake.snapshot_ids().await.unwrap() {
        snapshots.push(lake.snapshot(id).await.unwrap().unwrap());
    }
    for two in snapshots.windows(2) {
        let (before, after) = (&two[0], &two[1]);
        let stands = invariants::stands_on(after.total_record_count, after.delta_record_count, before.total_record_count);
        assert_eq!(stands, Ok(()), "snapshot {}", after.id);
    }
    let Some(newest) = snapshots.last() else {
        assert!(!strict && known(world).await.is_none());
        return;
    };
    let offsets = told(newest);
    for (bucket, keys) in &world.keys {
        let end = offsets.get(*bucket).unwrap_or(0);
        let live = live(&lake, newest, &partitions, *bucket).await;
        let numbers = live.iter().map(|entry| (entry.file.min_sequence_number, entry.file.max_sequence_number));
        let numbers: Vec<_> = numbers.collect();
        assert!(numbers.is_sorted_by(|one, next| one.1 < next.0), "{bucket:?}: sequence numbers {numbers:?}");
        assert_eq!(shown(&lake, live).await, keys.state_at(end), "{bucket:?} at {end}");
        let first = snapshots.iter().find_map(|snapshot| told(snapshot).get(*bucket)).unwrap_or(0);
        // The first round of a bucket takes its state.
        let changes = keys.state_at(first).len() + keys.changes(first, end).len();
        assert_eq!(changelog(&lake, &snapshots, &partitions, *bucket).await, changes, "{bucket:?}: changes up to {end}");
    }
    if strict {
        assert_eq!(offsets, ends(world).await, "everything is in the lake");
        assert_eq!(known(world).await, Some((SnapshotId(newest.id), offsets)), "and Fluss knows");
    }
}

/// Whether the entry is of the bucket.
fn is_of(lake: &LakeTable, partitions: &[Partition], bucket: BucketKey, entry: &ManifestEntry) -> bool {
    let folder = lakeward::paimon::path::partition_path(lake.schema(), &entry.partition).unwrap();
    let day = folder.trim_end_matches('/').trim_start_matches("day=").to_owned();
    let partition = partitions.iter().find(|partition| partition.name() == day).map(|partition| partition.id);
    BucketKey { partition, bucket: BucketId(entry.bucket) } == bucket
}

async fn live(lake: &LakeTable, snapshot: &Snapshot, partitions: &[Partition], bucket: BucketKey) -> Vec<ManifestEntry> {
    let live = lake.live_entries(snapshot, None).await.unwrap();
    live.into_iter().filter(|entry| is_of(lake, partitions, bucket, entry)).collect()
}

/// The numbers that a reader sees.
async fn shown(lake: &LakeTable, files: Vec<ManifestEntry>) -> BTreeSet<i64> {
    let mut reader = lake.merge_files(files, Some(&["number"])).await.unwrap();
    let mut shown = BTreeSet::new();
    while let Some(batch) = reader.next_batch().await.unwrap() {
        for number in batch.column(0).as_primitive::<Int64Type>().values() {
            assert!(shown.insert(*number), "version {number} is there twice");
        }
    }
    shown
}

/// Rows of all changelog files of a bucket.
async fn changelog(lake: &LakeTable, snapshots: &[Snapshot], partitions: &[Partition], bucket: BucketKey) -> usize {
    let mut rows = 0;
    for list in snapshots.iter().filter_map(|snapshot| snapshot.changelog_manifest_list.as_ref()) {
        for manifest in lake.read_manifest_list(list).await.unwrap() {
            let entries = lake.read_manifest(&manifest.file_name).await.unwrap();
            rows += entries
                .iter()
                .filter(|entry| is_of(lake, partitions, bucket, entry))
                .map(|entry| entry.file.row_count)
                .sum::<i64>();
        }
    }
    usize::try_from(rows).unwrap()
}

fn run(cases: &Cases) -> Kills {
    let work = || async {
        let mut kills = Kills::default();
        while let Some(first) = cases.take() {
            let (mut world, rng) = (with_accounts().await, Arc::new(Rng::from_seed(u64::from(first.hit))));
            let mut next = Some(first);
            for _ in 0..CASES_PER_WORLD {
                let Some(one) = next.take().or_else(|| cases.take()) else { break };
                if !case(&mut world, &rng, &one, &mut kills).await {
                    cases.not_reached(&one);
                }
            }
        }
        kills
    };
    let mut kills = Kills::default();
    side_by_side(work).into_iter().for_each(|more| kills.merge(more));
    kills
}

#[test]
fn a_service_that_is_killed_over_a_primary_key_table_loses_no_change_and_tells_none_twice() {
    let mut cases = Cases::default();
    for point in ["read.before_fetch", "commit.before_publish", "commit.before_record"] {
        cases.once(&[&format!("{point}=kill")]);
    }
    for hit in [4, 9, 14] {
        cases.once(&[&format!("store.after_write=kill@{hit}")]);
    }
    cases.once(&["commit.after_publish=kill", "recover.after_prepare=kill"]);
    let kills = run(&cases);
    kills.print("primary keys, in part");
    kills.assert_reached(&["read.before_fetch", "commit.before_publish", "commit.before_record", "store.after_write"]);
}

#[test]
#[ignore = "minutes: `cargo test --test it -- --ignored kill_matrix --nocapture`"]
fn kill_matrix_of_primary_keys() {
    let mut cases = Cases::default();
    for point in of_rounds() {
        let fail = format!("{point}=kill@HIT");
        cases.series(&[&fail], 60);
        cases.series(&["commit.after_publish=kill", &fail], 60);
    }
    for point in of_recovery() {
        cases.series(&["commit.after_publish=kill", &format!("{point}=kill@HIT")], 60);
    }
    let kills = run(&cases);
    kills.print("primary keys");
    kills.assert_reached(&[of_rounds(), of_recovery()].concat());
}
