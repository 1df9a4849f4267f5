//! Who commits beside us: the Java tiering job of 0.9 and 1.0, as the specification describes it (F1.4, F3).

use std::collections::BTreeMap;

use lakeward::commit::COMMIT_USER;
use lakeward::lake::Published;
use lakeward::model::{LakeOffsets, SnapshotId};
use lakeward::paimon::{BinaryRow, path};
use lakeward::source::LedgerRecord;

use super::service::{body, entry};
use super::world::{ROOT, World, bucket};

/// One round of a Java worker on a table without partitions. It respects no lease: between its look and its commit it stands still
/// for up to `turns` turns (a zombie stands still for long).
pub(crate) async fn java_round(world: &World, turns: u64) {
    let table = world.info().await;
    let known = world.known().await;
    let (k, from) = known.map_or((0, LakeOffsets::default()), |entry| (entry.snapshot.0, entry.offsets));
    let lake = world.lake().await;
    let made_by_fluss = |user: &str| user.starts_with(COMMIT_USER);
    // F1.4 step 6: a snapshot that Fluss does not know is recorded by its own path, and the round fails.
    for id in (k + 1..=world.newest().await).rev() {
        let Some(snapshot) = lake.snapshot(id).await.unwrap() else { continue };
        if made_by_fluss(&snapshot.commit_user) {
            let record = LedgerRecord {
                table: table.id,
                path: world.path.clone(),
                snapshot: SnapshotId(id),
                offsets_path: snapshot.properties["fluss-offsets"].clone(),
                offsets: LakeOffsets::default(),
                max_timestamps: BTreeMap::new(),
                earliest_to_keep: -1,
            };
            world.cluster.record_raw(&record, Some(-1));
            return;
        }
    }
    let mut ends = LakeOffsets::default();
    let mut entries = vec![];
    let uuid = world.runtime.rng.uuid();
    for (bucket, end) in world.ends(table.id) {
        let start = from.get(bucket).unwrap_or(0);
        if end <= start {
            continue;
        }
        ends.0.insert(bucket.into(), end);
        let rows = world.rows_in(bucket, start, end);
        if let Some(first) = rows.first() {
            let row = BinaryRow::write(&[], &[]).unwrap();
            let file = entry(row, bucket.bucket.0, 2, format!("data-{uuid}-{}.parquet", bucket.bucket), *first, rows.len());
            let object = lake.object(&path::data_file(lake.schema(), &file).unwrap());
            world.store.put(&object, body(bucket, &rows).into()).await.unwrap();
            entries.push(file);
        }
    }
    if ends.is_empty() {
        return;
    }
    world.pause(turns).await;
    // The overlay over whatever is K by now (F3.2).
    let Ok(offsets_path) = world.cluster.prepare_raw(table.id, &world.path, &ends, false) else { return };
    let delta = lake.write_delta(entries, vec![]).await.unwrap();
    let id = loop {
        let newest = match lake.newest_snapshot_id().await.unwrap() {
            Some(id) => lake.snapshot(id).await.unwrap(),
            None => None,
        };
        let staged = lake.stage(newest.as_ref(), &delta, false).await.unwrap();
        let snapshot = staged.snapshot(newest.as_ref(), world.java_facts(&offsets_path));
        world.pause(4).await;
        if lake.publish(&snapshot).await.unwrap() == Published::Created {
            break snapshot.id;
        }
    };
    world.pause(turns).await;
    let record = LedgerRecord {
        table: table.id,
        path: world.path.clone(),
        snapshot: SnapshotId(id),
        offsets_path,
        offsets: ends,
        max_timestamps: BTreeMap::new(),
        earliest_to_keep: -1,
    };
    // Absent: every other entry goes, and its file (F3.3).
    world.cluster.record_raw(&record, None);
}

/// A committer without atomic create (Java on a local disk): puts a snapshot of its own where ours is.
pub(crate) async fn overwrite(world: &World, id: i64) {
    let lake = world.lake().await;
    let below = lake.snapshot(id - 1).await.unwrap();
    let delta = lake.write_delta(vec![], vec![]).await.unwrap();
    let staged = lake.stage(below.as_ref(), &delta, false).await.unwrap();
    let json = staged.snapshot(below.as_ref(), world.facts("java", "COMPACT")).to_json().unwrap();
    world.store.put(&format!("{ROOT}/{}", path::snapshot(id)), json.into()).await.unwrap();
}

/// Rows for bucket 0 or 1 of the table as it is now.
pub(crate) async fn append_somewhere(world: &World) {
    let table = world.info().await;
    let bucket = bucket(table.id, None, i32::try_from(world.runtime.rng.below(2)).unwrap());
    world.append(bucket, 1 + i64::try_from(world.runtime.rng.below(3)).unwrap());
}
