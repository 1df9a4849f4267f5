//! What audits say of primary-key tables that rounds have made: the merged state, and rows that a scan merges.

use super::keyed::Keyed;
use super::*;
use crate::audit::AuditContext;
use crate::audit::scan::{self, Scan};
use crate::audit::verify::{self, Check, Progress, Report};
use crate::lake::{CommitFacts, Published};
use crate::paimon::{EntryKind, ManifestEntry};

/// Upserts and deletes of a client, in bucket 0 of a partition: log and state of the servers follow.
async fn put(world: &Keyed, partition: &Partition, changes: &[(i64, Option<&str>)]) {
    let table = world.table().await;
    let bucket = TableBucket { table: table.id, partition: Some(partition.id), bucket: BucketId(0) };
    let days = vec![partition.spec[0].1.as_str(); changes.len()];
    let columns: Vec<arrow_array::ArrayRef> = vec![
        Arc::new(changes.iter().map(|(id, _)| *id).collect::<Int64Array>()),
        Arc::new(StringArray::from(days)),
        Arc::new(changes.iter().map(|(_, value)| *value).collect::<StringArray>()),
    ];
    let rows = RecordBatch::try_new(arrow_schema(&table.schema).unwrap(), columns).unwrap();
    let deletes: Vec<bool> = changes.iter().map(|(_, value)| value.is_none()).collect();
    world.cluster.put(bucket, table.schema.id, &rows, Some(&deletes)).unwrap();
}

async fn audited(world: &Keyed) -> AuditContext {
    let table = Arc::new(world.table().await);
    let lake = world.lake().await;
    let form = mapping::fit(&table, lake.schema()).unwrap().form;
    let (scan, ledger) = (Arc::clone(&world.context.scan), Arc::clone(&world.context.ledger));
    AuditContext { table, lake, form, scan, ledger, runtime: world.context.runtime.clone(), read: read::Options::default() }
}

async fn verified(world: &Keyed) -> Report {
    let options = verify::Options { all: true, only: None };
    verify::verify(&audited(world).await, &options, &Progress::default()).await.map_err(|error| error.chain()).unwrap()
}

/// Partition, key and value of each row, in the order of the scan.
async fn scanned(world: &Keyed) -> Vec<(String, i64, String)> {
    let mut scan = Scan::open(&audited(world).await, &scan::Options::default()).await.map_err(|error| error.chain()).unwrap();
    let mut rows = vec![];
    while let Some(batch) = scan.next_batch().await.map_err(|error| error.chain()).unwrap() {
        let ids = batch.column_by_name("id").unwrap().as_primitive::<Int64Type>();
        let days = batch.column_by_name("day").unwrap().as_string::<i32>();
        let values = batch.column_by_name("value").unwrap().as_string::<i32>();
        rows.extend((0..batch.num_rows()).map(|at| (days.value(at).to_owned(), ids.value(at), values.value(at).to_owned())));
    }
    rows
}

/// Publishes a snapshot of somebody over the newest.
async fn foreign(world: &Keyed, entries: Vec<ManifestEntry>) {
    let (lake, newest) = (world.lake().await, world.newest().await);
    let delta = lake.write_delta(entries, vec![]).await.unwrap();
    let staged = lake.stage(Some(&newest), &delta, false).await.unwrap();
    let facts = CommitFacts {
        schema_id: 0,
        user: "somebody".into(),
        identifier: 1,
        kind: "OVERWRITE".into(),
        time_ms: newest.time_ms,
        properties: BTreeMap::new(),
    };
    assert_eq!(lake.publish(&staged.snapshot(Some(&newest), facts)).await.unwrap(), Published::Created);
}

#[tokio::test(start_paused = true)]
async fn a_scan_merges_the_change_log_into_the_lake_by_key_and_verify_finds_the_state_there() {
    for (wal, served) in [(false, true), (true, true), (false, false), (true, false)] {
        let image = [("table.changelog.image", "wal")];
        let world = Keyed::new(1, if wal { &image } else { &[] }).await;
        world.cluster.serve_states(served);
        let (a, b) = (world.partition("a"), world.partition("b"));
        assert_eq!(scanned(&world).await, []);
        let mut model: BTreeMap<(String, i64), String> = BTreeMap::new();
        let steps: [&[(i64, Option<&'static str>)]; 4] = [
            &[(5, Some("five")), (1, Some("one")), (3, Some("three")), (9, Some("nine"))],
            &[(3, None), (1, Some("ONE")), (2, Some("two")), (10, Some("ten")), (10, None)],
            &[(0, Some("zero")), (9, None), (3, Some("3"))],
            &[(0, None), (1, None), (2, None), (3, None), (5, None)],
        ];
        for step in steps {
            for partition in [&a, &b] {
                put(&world, partition, step).await;
                for (id, value) in step {
                    let key = (partition.name(), *id);
                    match value {
                        Some(value) => drop(model.insert(key, (*value).to_owned())),
                        None => drop(model.remove(&key)),
                    }
                }
            }
            let expected: Vec<_> = model.iter().map(|((day, id), value)| (day.clone(), *id, value.clone())).collect();
            assert_eq!(scanned(&world).await, expected, "the log over the lake, by key");
            let report = verified(&world).await;
            assert_eq!((&report.faults, &report.notes), (&vec![], &vec![]), "with a log that is not tiered yet");
            let _ = world.round().await;
            assert_eq!(scanned(&world).await, expected, "the lake alone");
            let report = verified(&world).await;
            assert_eq!((&report.faults, &report.notes), (&vec![], &vec![]));
        }
        assert_eq!(world.context.runtime.budget.used(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn keys_that_the_lake_lost_keeps_or_has_otherwise_are_named() {
    for served in [true, false] {
        keys_are_named(served).await;
    }
}

async fn keys_are_named(served: bool) {
    let world = Keyed::new(1, &[]).await;
    world.cluster.serve_states(served);
    let a = world.partition("a");
    put(&world, &a, &[(1, Some("one")), (2, Some("two"))]).await;
    let _ = world.round().await;
    put(&world, &a, &[(1, Some("ONE")), (2, None), (7, Some("seven"))]).await;
    let _ = world.round().await;
    assert_eq!(verified(&world).await.faults, vec![]);
    // The file of the second round is taken away.
    let lake = world.lake().await;
    let mut last = lake.live_entries(&world.newest().await, None).await.unwrap().pop().unwrap();
    last.kind = EntryKind::Delete;
    foreign(&world, vec![last]).await;
    let report = verified(&world).await;
    let [fault] = &report.faults[..] else { panic!("{:#?}", report.faults) };
    let table = world.table().await;
    let layout = crate::model::BucketLayout::of(&table, Some(&a)).unwrap();
    let end = world.context.scan.end_offsets(&table, Some(&a), layout).await.unwrap().unwrap()[0];
    assert_eq!((fault.check, fault.bucket, fault.offset), (Check::State, Some(0), Some(end)));
    for said in [
        "bucket `0` of partition `day=a` has 2 rows in lake and change log",
        "Fluss has 2 then",
        r#"key {"id":1} (another row)"#,
        r#"key {"id":2} (not in Fluss)"#,
        r#"key {"id":7} (not in the lake)"#,
    ] {
        assert!(fault.message.contains(said), "`{said}` is not in: {}", fault.message);
    }
    assert!(fault.hint.as_ref().unwrap().contains("repair reset-offsets demo.t"));
}

#[tokio::test(start_paused = true)]
async fn options_that_let_the_lake_have_other_rows_are_said_and_are_no_fault() {
    for (option, own, value) in [
        ("ignore-delete", "paimon.ignore-delete", "true"),
        ("sequence.field", "paimon.sequence.field", "value"),
        ("table.kv.ttl", "table.kv.ttl", "1h"),
    ] {
        let world = Keyed::new(1, &[(own, value)]).await;
        let a = world.partition("a");
        put(&world, &a, &[(1, Some("one")), (2, Some("two"))]).await;
        let _ = world.round().await;
        put(&world, &a, &[(1, None), (2, Some("a lesser version"))]).await;
        if option == "ignore-delete" {
            let ids: Vec<i64> = scanned(&world).await.into_iter().map(|(_, id, _)| id).collect();
            assert_eq!(ids, [1, 2], "with a delete in the log");
        }
        let _ = world.round().await;
        let report = verified(&world).await;
        assert_eq!(report.faults, vec![], "{option}");
        assert!(report.notes.iter().any(|note| note.contains(&format!("`{option}`"))), "{option}: {:?}", report.notes);
    }
}

#[tokio::test(start_paused = true)]
async fn what_can_t_be_compared_is_said_and_is_no_fault() {
    for served in [true, false] {
        let world = Keyed::new(1, &[]).await;
        let a = world.partition("a");
        put(&world, &a, &[(1, Some("one")), (2, Some("two"))]).await;
        let _ = world.round().await;
        let bucket = TableBucket { table: world.table().await.id, partition: Some(a.id), bucket: BucketId(0) };
        world.cluster.set_log_start(bucket, 2).unwrap();
        world.cluster.serve_states(served);
        let report = verified(&world).await;
        assert_eq!(report.faults, vec![]);
        let said = "the state of 1 bucket could not be compared: the cluster serves no states (ScanKv)";
        assert_eq!(report.notes.iter().filter(|note| note.starts_with(said)).count(), usize::from(!served), "{:?}", report.notes);
    }
}

#[tokio::test(start_paused = true)]
async fn verify_goes_on_over_a_column_that_is_added_under_it() {
    let world = Keyed::new(1, &[]).await;
    let a = world.partition("a");
    world.apply(&a, 0, true, &[(1, Some("x")), (2, Some("y"))]).await;
    let _ = world.round().await;
    let before = audited(&world).await;
    let data_type = DataType::nullable(TypeKind::String);
    world.cluster.add_column(&world.path, &Field { id: 0, name: "more".into(), data_type, comment: None }).unwrap();
    world.apply(&a, 0, true, &[(2, Some("z"))]).await;
    let _ = world.round().await;
    world.apply(&a, 0, true, &[(1, Some("w"))]).await;
    let options = verify::Options { all: true, only: None };
    let report = verify::verify(&before, &options, &Progress::default()).await.map_err(|error| error.chain()).unwrap();
    assert_eq!((&report.faults, &report.notes), (&vec![], &vec![]));
}
