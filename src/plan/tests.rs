use super::*;
use crate::error::Kind;
use crate::model::{BucketKey, LayoutOrigin, PartitionId, TableInfo};

fn partition(id: i64, day: &str, count: i32, ends: Option<Vec<i64>>, starts: Option<Vec<i64>>) -> PartitionFacts {
    PartitionFacts {
        partition: Some(Arc::new(Partition {
            id: PartitionId(id),
            spec: vec![("day".into(), day.into())],
            bucket_count: Some(count),
        })),
        layout: BucketLayout { count, origin: LayoutOrigin::Own },
        ends,
        starts,
    }
}

fn facts(partitions: Vec<PartitionFacts>) -> Facts {
    Facts { table: Arc::new(TableInfo::for_tests("demo.t", 4)), partitions, serves_states: false }
}

fn base(offsets: &[(i64, i32, i64)]) -> LakeOffsets {
    LakeOffsets(
        offsets
            .iter()
            .map(|(partition, bucket, offset)| {
                (BucketKey { partition: Some(PartitionId(*partition)), bucket: BucketId(*bucket) }, *offset)
            })
            .collect(),
    )
}

#[test]
fn each_row_of_the_split_rules_for_log_tables() {
    let read = |start, records| Verdict::Read { start, records };
    for (tiered, log_start, end, verdict) in [
        (None, None, 0, Verdict::Nothing),
        (None, None, -1, Verdict::Nothing),
        (None, None, 9, read(StartOffset::Earliest, 9)),
        (None, Some(4), 9, read(StartOffset::Earliest, 5)),
        (None, Some(9), 9, Verdict::Nothing),
        (Some(0), Some(0), 0, Verdict::Nothing),
        (Some(3), Some(3), 9, read(StartOffset::At(3), 6)),
        (Some(3), Some(4), 9, Verdict::Gap { tiered: 3, log_start: 4 }),
        (Some(9), Some(9), 9, Verdict::Nothing),
        (Some(9), Some(12), 9, Verdict::Nothing),
        (Some(10), None, 9, Verdict::Ahead { tiered: 10 }),
    ] {
        assert_eq!(decide(tiered, log_start, end), verdict, "tiered {tiered:?}, start {log_start:?}, end {end}");
    }
}

#[test]
fn every_partition_goes_by_its_own_count() {
    let facts = facts(vec![
        partition(1, "a", 2, Some(vec![5, 0]), Some(vec![0, 0])),
        partition(2, "b", 4, Some(vec![1, 2, 3, 4]), None),
        partition(3, "c", 1, None, None),
    ]);
    let plan = splits(&facts, &base(&[(1, 0, 2)]), &Scope::default());
    let found: Vec<(i64, i32, i32, StartOffset, i64)> = plan
        .splits
        .iter()
        .map(|split| (split.bucket.partition.unwrap().0, split.bucket.bucket.0, split.layout.count, split.start, split.stop_offset))
        .collect();
    assert_eq!(
        found,
        [
            (1, 0, 2, StartOffset::At(2), 5),
            (2, 0, 4, StartOffset::Earliest, 1),
            (2, 1, 4, StartOffset::Earliest, 2),
            (2, 2, 4, StartOffset::Earliest, 3),
            (2, 3, 4, StartOffset::Earliest, 4),
        ]
    );
    assert_eq!(plan.skipped, ["c"]);
    assert!(plan.faults.is_empty());
    assert_eq!(plan.partitions.iter().map(|planned| planned.backlog).collect::<Vec<_>>(), [3, 10]);
}

#[test]
fn a_scope_ends_buckets_early_and_leaves_out_what_it_does_not_name() {
    let facts = facts(vec![
        partition(1, "a", 3, Some(vec![50, 60, 70]), Some(vec![20, 0, 0])),
        partition(2, "b", 1, Some(vec![9]), Some(vec![5])),
    ]);
    let scope = |stops: &[(i64, i32, i64)]| Scope { stops: Some(Arc::new(base(stops))) };
    let found = |scope: &Scope, lake: &[(i64, i32, i64)]| -> Vec<(i64, i32, StartOffset, i64)> {
        let plan = splits(&facts, &base(lake), scope);
        assert!(plan.faults.is_empty(), "{:?}", plan.faults);
        plan.splits
            .iter()
            .map(|split| (split.bucket.partition.unwrap().0, split.bucket.bucket.0, split.start, split.stop_offset))
            .collect()
    };
    // Bucket 0 of `a` would be a fault (the lake ends at 7, the log starts at 20), but is not asked for.
    let lake = [(1, 0, 7), (1, 1, 30)];
    assert_eq!(
        found(&scope(&[(1, 1, 40), (1, 2, 99)]), &lake),
        [(1, 1, StartOffset::At(30), 40), (1, 2, StartOffset::Earliest, 70)]
    );
    assert_eq!(found(&scope(&[(1, 1, 30), (1, 2, 0)]), &lake), []);
    assert_eq!(found(&scope(&[(1, 1, 20)]), &lake), []);
    // The log of `b` has expired beyond the stop.
    assert_eq!(found(&scope(&[(2, 0, 5)]), &[]), []);
    assert_eq!(found(&scope(&[(2, 0, 6)]), &[]), [(2, 0, StartOffset::Earliest, 6)]);
    assert!(scope(&[(1, 1, 40)]).has(Some(PartitionId(1))) && !scope(&[(1, 1, 40)]).has(Some(PartitionId(2))));
    assert!(!scope(&[(1, 1, 40)]).has(None) && Scope::default().has(None));
    // The backlog counts to the ends of the logs all the same.
    assert_eq!(splits(&facts, &base(&lake), &scope(&[(1, 1, 40)])).backlog(), 30);
}

#[test]
fn faults_name_bucket_and_both_offsets_and_leave_the_other_buckets_planned() {
    let facts = facts(vec![partition(1, "a", 2, Some(vec![50, 60]), Some(vec![20, 0]))]);
    let plan = splits(&facts, &base(&[(1, 0, 7), (1, 1, 61), (1, 5, 1)]), &Scope::default());
    assert_eq!(plan.faults.len(), 3);
    for (fault, words) in plan.faults.iter().zip([["`5`", "`2`"], ["`7`", "`20`"], ["`61`", "`60`"]]) {
        assert_eq!(fault.kind(), Kind::Data);
        for word in words {
            assert!(fault.to_string().contains(word), "{fault}");
        }
    }
    assert!(plan.splits.is_empty());
}

#[test]
fn a_primary_key_bucket_that_was_never_tiered_is_read_from_its_state_or_from_a_whole_log() {
    let read = |records| Verdict::Read { start: StartOffset::At(0), records };
    for (serves_states, log_start, end, verdict) in [
        (true, Some(0), 0, Verdict::Nothing),
        (true, Some(0), -1, Verdict::Nothing),
        (true, Some(0), 9, Verdict::State { records: 9 }),
        (true, Some(4), 9, Verdict::State { records: 9 }),
        // All of the log has expired, the state has not.
        (true, Some(9), 9, Verdict::State { records: 9 }),
        (true, None, 9, Verdict::State { records: 9 }),
        (false, Some(0), 0, Verdict::Nothing),
        (false, Some(0), 9, read(9)),
        (false, Some(1), 9, Verdict::NoBeginning),
        (false, Some(9), 9, Verdict::NoBeginning),
        (false, None, 9, Verdict::NoBeginning),
    ] {
        assert_eq!(decide_first(serves_states, log_start, end), verdict, "{serves_states} {log_start:?} {end}");
    }
}

fn keyed(partitions: Vec<PartitionFacts>, serves_states: bool) -> Facts {
    let mut table = TableInfo::for_tests("demo.t", 4);
    Arc::make_mut(&mut table.schema).primary_key = vec!["id".into()];
    Facts { table: Arc::new(table), partitions, serves_states }
}

#[test]
fn states_come_first_and_what_was_tiered_goes_on_by_its_log() {
    let parts =
        || vec![partition(1, "a", 3, Some(vec![50, 60, 0]), Some(vec![20, 30, 0])), partition(2, "b", 1, Some(vec![7]), None)];
    let plan = splits(&keyed(parts(), true), &base(&[(1, 0, 20)]), &Scope::default());
    let found: Vec<(i64, i32, SplitKind, i64)> = plan
        .splits
        .iter()
        .map(|split| (split.bucket.partition.unwrap().0, split.bucket.bucket.0, split.kind, split.stop_offset))
        .collect();
    assert_eq!(found, [(1, 1, SplitKind::State, 60), (2, 0, SplitKind::State, 7), (1, 0, SplitKind::Log, 50)]);
    assert!(plan.faults.is_empty());
    let told: Vec<(u64, u64, u64)> = plan.partitions.iter().map(|part| (part.splits, part.states, part.backlog)).collect();
    assert_eq!(told, [(2, 1, 90), (1, 1, 7)]);
    // A scope leaves buckets out, and ends none early that is read by its state.
    let scope = Scope { stops: Some(Arc::new(base(&[(1, 1, 5), (2, 0, 0)]))) };
    let plan = splits(&keyed(parts(), true), &base(&[]), &scope);
    let found: Vec<(i32, SplitKind, i64)> =
        plan.splits.iter().map(|split| (split.bucket.bucket.0, split.kind, split.stop_offset)).collect();
    assert_eq!(found, [(1, SplitKind::State, 5)]);
}

#[test]
fn a_server_without_states_and_a_log_without_beginning_are_a_fault_with_ways_out() {
    let parts = vec![partition(1, "a", 2, Some(vec![50, 60]), Some(vec![0, 30]))];
    let plan = splits(&keyed(parts, false), &base(&[]), &Scope::default());
    let [fault] = plan.faults.as_slice() else { panic!("{:?}", plan.faults) };
    assert_eq!(fault.kind(), Kind::Data);
    let text = fault.to_string();
    assert!(text.contains("partition `a` bucket `1` of `demo.t`") && text.contains("`30`"), "{text}");
    assert!(fault.hint().unwrap().contains("Flink") && fault.hint().unwrap().contains("1.0"));
    let [split] = plan.splits.as_slice() else { panic!("{:?}", plan.splits) };
    assert_eq!((split.bucket.bucket.0, split.kind, split.start), (0, SplitKind::Log, StartOffset::At(0)));
}

#[test]
fn what_this_build_does_not_tier_is_named() {
    let mut table = TableInfo::for_tests("demo.t", 1);
    table.properties.insert("table.datalake.format".into(), "paimon".into());
    table.properties.insert("table.datalake.paimon.warehouse".into(), "/lake".into());
    check_table(&table).unwrap();
    for (key, value) in [
        ("table.datalake.format", "iceberg"),
        ("table.datalake.historical-partition.enabled", "true"),
        ("table.datalake.paimon.metastore", "hive"),
    ] {
        let mut wrong = table.clone();
        wrong.properties.insert(key.into(), value.into());
        let error = check_table(&wrong).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.to_string().contains("demo.t"), "{error}");
    }
    let mut keyed = table.clone();
    Arc::make_mut(&mut keyed.schema).primary_key = vec!["id".into()];
    check_table(&keyed).unwrap();
}
