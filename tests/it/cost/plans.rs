//! Plans of many partitions.

use lakeward::fluss::record::{EncodeOptions, encode_arrow_batch};
use lakeward::model::LakeOffsets;
use lakeward::plan::{self, Options, Scope};
use lakeward::source::TableScan;

use super::*;

/// Plans from `base`; the splits, their buckets' ends, and the time that it took.
async fn plan(world: &World, base: &LakeOffsets, options: Options) -> (LakeOffsets, Duration) {
    let began = world.runtime.clock.moment();
    let table = Arc::new(world.service.table_info(&path("t")).await.unwrap());
    let facts = plan::gather(world.service.as_ref(), table, base, &Scope::default(), options).await.unwrap();
    let plan = plan::splits(&facts, base, &Scope::default());
    assert!(plan.faults.is_empty());
    (LakeOffsets(plan.splits.iter().map(|split| (split.bucket.into(), split.stop_offset)).collect()), began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_thousand_partitions_are_planned_by_one_call_each_side_by_side_and_well_within_two_seconds() {
    let world = World::new("plans");
    let table = world.table("t", 16, &[]).await;
    let days = world.days(&table, 1_000);
    let nothing = LakeOffsets::default();
    let (splits, time) = plan(&world, &nothing, Options::default()).await;
    let ends = [("end_offsets", 1_000), ("partitions", 1), ("table_info", 1)].map(|(act, times)| (act.to_owned(), times));
    assert_eq!(counted(world.calls()), ends.clone().into());
    assert!(splits.0.is_empty());
    // One after the other it would be a second; 32 at once, and never more.
    assert!((32 * MS..200 * MS).contains(&time), "{time:?}");

    // One batch, encoded once.
    let columns = vec![Arc::new(Int64Array::from(vec![1, 2])) as _, Arc::new(StringArray::from(vec!["d", "d"])) as _];
    let rows = RecordBatch::try_new(arrow_schema(&table.schema).unwrap(), columns).unwrap();
    let batch = encode_arrow_batch(EncodeOptions::new(SchemaId(1)), &rows, None).unwrap();
    for day in &days {
        for bucket in (0..16).map(BucketId) {
            world.cluster.append_raw(TableBucket { table: table.id, partition: Some(day.id), bucket }, &batch).unwrap();
        }
    }
    let (splits, time) = plan(&world, &nothing, Options::default()).await;
    assert_eq!(splits.0.len(), 16_000);
    let mut both = BTreeMap::from(ends.clone());
    both.insert("start_offsets".into(), 1_000);
    assert_eq!(counted(world.calls()), both, "starts only where there is something to read");
    assert!((63 * MS..400 * MS).contains(&time), "{time:?}");

    let (idle, _) = plan(&world, &splits, Options::default()).await;
    assert!(idle.0.is_empty());
    assert_eq!(counted(world.calls()), ends.into(), "what is tiered is not asked for its start");

    let (_, time) = plan(&world, &splits, Options { lookups_max: 4 }).await;
    assert!(time >= 250 * MS, "no more at once than the operator allows: {time:?}");
}
