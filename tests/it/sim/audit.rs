//! Counts each source row in the lake.

use std::collections::BTreeMap;

use lakeward::model::{TableBucket, TableId};
use lakeward::paimon::{Snapshot, path};

use super::world::World;

/// How often each source row is in a snapshot, and whether each bucket's rows come in offset order.
async fn counts(world: &World, snapshot: &Snapshot) -> (BTreeMap<(TableBucket, i64), u32>, bool) {
    let lake = world.lake().await;
    let (mut counts, mut ordered) = (BTreeMap::new(), true);
    let mut ends: BTreeMap<TableBucket, i64> = BTreeMap::new();
    for entry in lake.live_entries(snapshot, None).await.unwrap() {
        let object = lake.object(&path::data_file(lake.schema(), &entry).unwrap());
        let body = world
            .store
            .get(&object)
            .await
            .unwrap()
            .unwrap_or_else(|| panic!("snapshot {} names {object}, which was deleted", snapshot.id));
        let (bucket, rows): (TableBucket, Vec<i64>) = serde_json::from_slice(&body).unwrap();
        assert_eq!(entry.file.row_count, i64::try_from(rows.len()).unwrap());
        // Manifest order is commit order.
        ordered &= ends.insert(bucket, rows.last().unwrap() + 1).is_none_or(|end| end <= rows[0]);
        for row in rows {
            *counts.entry((bucket, row)).or_default() += 1;
        }
    }
    (counts, ordered)
}

/// How many times too often rows are in a snapshot.
pub(crate) async fn surplus(world: &World, snapshot: &Snapshot) -> u32 {
    counts(world, snapshot).await.0.into_values().map(|count| count - 1).sum()
}

/// No snapshot of ours added a row that was there before. All snapshots have to be there still.
pub(crate) async fn we_never_doubled(world: &World) {
    let lake = world.lake().await;
    let mut before = 0;
    for id in lake.snapshot_ids().await.unwrap() {
        let snapshot = lake.snapshot(id).await.unwrap().unwrap();
        let now = surplus(world, &snapshot).await;
        assert!(
            now == before || !snapshot.properties.contains_key("lakeward.round-id"),
            "snapshot {id} doubles rows, seed {}",
            world.seed
        );
        before = now;
    }
}

/// Each row of table `id` is in the newest snapshot exactly once, and Fluss knows all of it.
pub(crate) async fn each_row_once(world: &World, id: TableId) {
    let lake = world.lake().await;
    let newest = lake.newest_snapshot_id().await.unwrap().expect("rows were tiered");
    let snapshot = lake.snapshot(newest).await.unwrap().unwrap();
    let (mut counts, ordered) = counts(world, &snapshot).await;
    assert!(ordered, "rows out of order, seed {}", world.seed);
    assert_eq!(
        snapshot.total_record_count,
        Some(counts.values().map(|count| i64::from(*count)).sum()),
        "total of snapshot {newest}"
    );
    let ends = world.ends(id);
    for (bucket, end) in &ends {
        for row in world.rows_in(*bucket, 0, *end) {
            assert_eq!(counts.remove(&(*bucket, row)), Some(1), "row {row} of {bucket}, seed {}", world.seed);
        }
    }
    let strange: Vec<_> = counts.keys().filter(|(bucket, _)| bucket.table == id).collect();
    assert!(strange.is_empty(), "rows that nobody wrote: {strange:?}");
    let known = world.known().await.expect("Fluss knows a snapshot");
    for (bucket, end) in ends {
        assert_eq!(known.offsets.get(bucket), Some(end), "Fluss's end of {bucket}, seed {}", world.seed);
    }
}
