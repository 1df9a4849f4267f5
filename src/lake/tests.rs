use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::error::Kind;
use crate::model::TypeKind;
use crate::paimon::{BinaryRow, DataFile, EntryKind, ManifestEntry, SimpleStats};
use crate::storage::{Fault, Faults, StoreOptions, open};

fn runtime() -> Runtime {
    Runtime::simulated(7, 1_700_000_000_000, 1 << 20)
}

async fn golden(group: &str, table: &str) -> LakeTable {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(group);
    let store = open(folder.to_str().unwrap(), &StoreOptions::default()).unwrap();
    LakeTable::open(store, table, runtime()).await.unwrap().unwrap()
}

fn lines(group: &str, table: &str, kind: &str) -> Vec<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(group).join(format!("{table}.{kind}.jsonl"));
    std::fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn golden_append_tables_are_read_as_java_reads_them() {
    for (group, table) in [
        ("paimon", "append_bucket"),
        ("paimon", "append_partitioned"),
        ("paimon", "append_unaware"),
        ("paimon", "append_properties"),
        ("paimon", "append_evolved"),
        ("paimon", "append_rescaled"),
        ("paimon", "partition_strings"),
        ("paimon", "partition_types_legacy_true"),
        ("paimon", "partition_types_legacy_false"),
        ("paimon", "all_types"),
        ("fluss-lake", "log"),
        ("fluss-lake", "log_keyed"),
        ("fluss-lake", "log_part"),
    ] {
        let lake = golden(group, table).await;
        let dump = lines(group, table, "dump");
        let newest = dump.iter().find(|line| line["type"] == "snapshot").unwrap();
        let id = lake.newest_snapshot_id().await.unwrap().unwrap();
        assert_eq!(id, newest["snapshot"]["id"].as_i64().unwrap(), "{table}");
        let snapshot = lake.snapshot(id).await.unwrap().unwrap();
        let files: BTreeSet<String> =
            dump.iter().filter(|line| line["type"] == "file").map(|line| line["fileName"].as_str().unwrap().to_owned()).collect();
        let entries = lake.live_entries(&snapshot, None).await.unwrap();
        assert_eq!(entries.iter().map(|entry| entry.file.file_name.clone()).collect::<BTreeSet<_>>(), files, "{table}");
        let rows: usize = lake.read_rows(&snapshot, None, None).await.unwrap().iter().map(|batch| batch.num_rows()).sum();
        assert_eq!(rows, lines(group, table, "rows").len(), "{table}");
        let live = lake.live_partitions(&snapshot, None).await.unwrap();
        assert_eq!(live.values().map(|partition| partition.rows).sum::<i64>(), i64::try_from(rows).unwrap());
        for entry in &entries {
            let filter = BTreeSet::from([entry.partition.clone()]);
            let pruned = lake.live_entries(&snapshot, Some(&filter)).await.unwrap();
            assert!(pruned.contains(entry) && pruned.iter().all(|other| other.partition == entry.partition), "{table}");
            let again = lake.clone_without_cache().live_partitions(&snapshot, Some(&filter)).await.unwrap();
            assert_eq!(again.get(&entry.partition), live.get(&entry.partition));
        }
    }
}

impl LakeTable {
    fn clone_without_cache(&self) -> Self {
        Self { live: Arc::default(), ..self.clone() }
    }
}

#[tokio::test]
async fn totals_of_a_rescaled_table_differ_by_partition() {
    let lake = golden("paimon", "append_rescaled").await;
    let snapshot = lake.snapshot(lake.newest_snapshot_id().await.unwrap().unwrap()).await.unwrap().unwrap();
    let types = lake.schema().partition_types().unwrap();
    let live = lake.live_partitions(&snapshot, None).await.unwrap();
    let totals: BTreeMap<String, Vec<i32>> = live
        .iter()
        .map(|(row, facts)| (format!("{:?}", row.read(&types).unwrap()), facts.totals.iter().copied().collect()))
        .collect();
    assert_eq!(totals.values().cloned().collect::<Vec<_>>(), [vec![2], vec![4], vec![4]], "{totals:?}");
}

#[tokio::test]
async fn columns_are_projected_by_name() {
    let lake = golden("paimon", "append_bucket").await;
    let snapshot = lake.snapshot(2).await.unwrap().unwrap();
    let batches = lake.read_rows(&snapshot, None, Some(&["id"])).await.unwrap();
    assert!(batches.iter().all(|batch| batch.num_columns() == 1 && batch.schema().field(0).name() == "id"));
    let nulls: usize = batches.iter().map(|batch| batch.column(0).null_count()).sum();
    let expected = lines("paimon", "append_bucket", "rows").iter().filter(|row| row["id"].is_null()).count();
    assert_eq!(nulls, expected);

    let lake = golden("paimon", "nested").await;
    let snapshot = lake.snapshot(1).await.unwrap().unwrap();
    let rows = lake.read_rows(&snapshot, None, Some(&["rr", "id", "g"])).await.unwrap().remove(0);
    let names: Vec<_> = rows.schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(names, ["id", "rr"], "whole columns, no fields inside");
    assert_eq!(rows.column(1).as_struct().columns().len(), 3);
}

#[tokio::test]
async fn files_of_older_schemas_are_read_as_the_table_is_now() {
    let lake = golden("paimon", "append_evolved").await;
    let snapshot = lake.snapshot(2).await.unwrap().unwrap();
    let text = |batches: &[RecordBatch]| text_rows(batches).into_iter().collect::<BTreeSet<_>>();
    // Renamed, cast from BIGINT, added; `dt` was dropped.
    let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let names = ["id", "title", "v", "extra"];
    let java = lines("paimon", "append_evolved", "rows");
    let expected = |names: &[&str]| java.iter().map(|row| names.iter().map(|name| shown(&row[*name])).collect()).collect();
    let batches = lake.read_rows(&snapshot, None, None).await.unwrap();
    assert!(batches.iter().all(|batch| batch.schema() == batches[0].schema()), "one shape for all files");
    assert_eq!(text(&batches), expected(&names));
    // Columns come in the table's order.
    assert_eq!(text(&lake.read_rows(&snapshot, None, Some(&["extra", "id"])).await.unwrap()), expected(&["id", "extra"]));
    // Nothing of what is asked for is in the old file: its rows are there all the same.
    assert_eq!(text(&lake.read_rows(&snapshot, None, Some(&["extra"])).await.unwrap()), expected(&["extra"]));
}

fn text_rows(batches: &[RecordBatch]) -> Vec<Vec<String>> {
    let rows = batches.iter().flat_map(|batch| {
        let columns: Vec<_> = batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &nulls()).unwrap()).collect();
        let texts = (0..batch.num_rows()).map(|row| columns.iter().map(|column| column.value(row).to_string()).collect());
        texts.collect::<Vec<Vec<String>>>()
    });
    rows.collect()
}

fn nulls() -> FormatOptions<'static> {
    FormatOptions::default().with_null("null")
}

#[tokio::test]
async fn golden_primary_key_tables_are_merged_as_java_merges_them() {
    for (group, table) in [
        ("paimon", "pk_plain"),
        ("paimon", "pk_partitioned"),
        ("paimon", "pk_rescaled"),
        ("paimon", "pk_key_types"),
        ("paimon", "pk_changelog_input"),
        ("paimon", "pk_evolved"),
        ("fluss-lake", "pk"),
        ("fluss-lake", "pk_part"),
    ] {
        let lake = golden(group, table).await;
        let snapshot = lake.snapshot(lake.newest_snapshot_id().await.unwrap().unwrap()).await.unwrap().unwrap();
        // Arrow can't show times of a named zone, and Java 17 has another text for some doubles.
        let alike = |kind: &TypeKind| !matches!(kind, TypeKind::TimestampLtz { .. } | TypeKind::Double);
        let fields = lake.schema().fields.iter().filter(|field| alike(&field.data_type.kind));
        let names: Vec<&str> = fields.map(|field| field.name.as_str()).collect();
        let batches = lake.read_rows(&snapshot, None, Some(&names)).await.map_err(|error| error.chain()).unwrap();
        let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let mut java: Vec<Vec<String>> =
            lines(group, table, "rows").iter().map(|row| names.iter().map(|name| shown(&row[*name])).collect()).collect();
        let mut ours = text_rows(&batches);
        for value in java.iter_mut().chain(&mut ours).flatten().filter(|value| value.contains("T08:")) {
            value.truncate(value.trim_end_matches('0').len()); // Arrow leaves out 000 at the end of a fraction.
        }
        java.sort();
        ours.sort();
        for (ours, java) in ours.iter().zip(&java) {
            assert_eq!(ours, java, "{table}");
        }
        assert_eq!(ours.len(), java.len(), "{table}");
        let keys: Vec<&str> = lake.schema().primary_keys.iter().map(String::as_str).collect();
        let few: usize = lake.read_rows(&snapshot, None, Some(&keys[..1])).await.unwrap().iter().map(RecordBatch::num_rows).sum();
        assert_eq!(few, java.len(), "{table}: the key need not be asked for");
    }
}

#[tokio::test]
async fn deletion_vectors_are_refused_by_name() {
    let lake = golden("paimon", "pk_deletion_vectors").await;
    let snapshot = lake.snapshot(lake.newest_snapshot_id().await.unwrap().unwrap()).await.unwrap().unwrap();
    assert_eq!(lake.read_rows(&snapshot, None, None).await.unwrap_err().kind(), Kind::Unsupported);
}

fn schema(options: &[(&str, &str)]) -> TableSchema {
    let mut json: Value = serde_json::from_str(
        r#"{"version":3,"id":0,"fields":[{"id":0,"name":"dt","type":"STRING"},{"id":1,"name":"id","type":"INT"}],
            "highestFieldId":1,"partitionKeys":["dt"],"primaryKeys":[],"options":{"bucket":"2","bucket-key":"id"},"timeMillis":5}"#,
    )
    .unwrap();
    for (key, value) in options {
        json["options"][*key] = (*value).into();
    }
    TableSchema::from_json(&json.to_string()).unwrap()
}

async fn table(options: &[(&str, &str)]) -> LakeTable {
    let store = Store::in_memory();
    let warehouse = Warehouse::new(store, runtime());
    assert!(warehouse.create_table("demo", "t", &schema(options)).await.unwrap());
    warehouse.table("demo", "t").await.unwrap().unwrap()
}

fn partition(name: &str) -> BinaryRow {
    let types = schema(&[]).partition_types().unwrap();
    BinaryRow::write(&[Some(crate::model::Datum::String(name.into()))], &types).unwrap()
}

fn entry(kind: EntryKind, dt: &str, number: u64) -> ManifestEntry {
    ManifestEntry {
        kind,
        partition: partition(dt),
        bucket: i32::try_from(number % 2).unwrap(),
        total_buckets: 2,
        file: DataFile {
            file_name: format!("data-{number}.parquet"),
            file_size: 100,
            row_count: 10,
            min_key: BinaryRow::empty(),
            max_key: BinaryRow::empty(),
            key_stats: SimpleStats::empty(),
            value_stats: SimpleStats::empty(),
            min_sequence_number: i64::try_from(number).unwrap(),
            max_sequence_number: i64::try_from(number).unwrap() + 9,
            schema_id: 0,
            level: 0,
            extra_files: vec![],
            creation_time_ms: Some(1),
            delete_row_count: Some(0),
            embedded_file_index: None,
            file_source: Some(0),
            value_stats_cols: Some(vec![]),
            external_path: None,
            first_row_id: None,
            write_cols: None,
        },
    }
}

async fn commit(lake: &LakeTable, entries: Vec<ManifestEntry>) -> Snapshot {
    let newest = match lake.newest_snapshot_id().await.unwrap() {
        Some(id) => lake.snapshot(id).await.unwrap(),
        None => None,
    };
    let delta = lake.write_delta(entries, vec![]).await.unwrap();
    let staged = lake.stage(newest.as_ref(), &delta, true).await.unwrap();
    let facts = CommitFacts {
        schema_id: lake.newest_schema_id().await.unwrap(),
        user: "u".into(),
        identifier: i64::MAX,
        kind: "APPEND".into(),
        time_ms: lake.runtime().clock.now_ms(),
        properties: BTreeMap::from([("a".into(), "b".into())]),
    };
    let snapshot = staged.snapshot(newest.as_ref(), facts);
    assert_eq!(lake.publish(&snapshot).await.unwrap(), Published::Created);
    assert_eq!(lake.publish(&snapshot).await.unwrap(), Published::Exists);
    lake.write_latest_hint(snapshot.id).await.unwrap();
    assert_eq!(lake.snapshot(snapshot.id).await.unwrap().as_ref(), Some(&snapshot));
    valid(lake, &snapshot, newest.as_ref()).await;
    snapshot
}

/// The checklist of P12.1, as far as metadata goes.
async fn valid(lake: &LakeTable, snapshot: &Snapshot, before: Option<&Snapshot>) {
    let base = lake.read_manifest_list(&snapshot.base_manifest_list).await.unwrap();
    let delta = lake.read_manifest_list(&snapshot.delta_manifest_list).await.unwrap();
    let types = lake.schema().partition_types().unwrap();
    for listed in base.iter().chain(&delta) {
        let bytes = lake.store().get_existing(&lake.object(&path::manifest(&listed.file_name))).await.unwrap();
        let entries = lake.read_manifest(&listed.file_name).await.unwrap();
        let size = i64::try_from(bytes.len()).unwrap();
        let told = crate::paimon::ManifestFile::of(&listed.file_name, size, &entries, &types).unwrap();
        assert_eq!(&told, listed);
        assert!(!entries.is_empty());
    }
    for (name, size) in [
        (&snapshot.base_manifest_list, snapshot.base_manifest_list_size),
        (&snapshot.delta_manifest_list, snapshot.delta_manifest_list_size),
    ] {
        let stored = lake.store().size(&lake.object(&path::manifest(name))).await.unwrap();
        assert_eq!(stored, size.map(|size| u64::try_from(size).unwrap()));
    }
    let mut rows = 0;
    for listed in &delta {
        for entry in lake.read_manifest(&listed.file_name).await.unwrap() {
            rows += if entry.kind == EntryKind::Add { entry.file.row_count } else { -entry.file.row_count };
        }
    }
    assert_eq!(snapshot.delta_record_count, Some(rows));
    let total = before.map_or(0, |before| before.total_record_count.unwrap()) + rows;
    assert_eq!(snapshot.total_record_count, Some(total));
    assert_eq!(snapshot.id, before.map_or(1, |before| before.id + 1));
    assert!(snapshot.time_ms >= before.map_or(0, |before| before.time_ms));
}

async fn names(lake: &LakeTable, snapshot: &Snapshot) -> Vec<String> {
    lake.live_entries(snapshot, None).await.unwrap().into_iter().map(|entry| entry.file.file_name).collect()
}

#[tokio::test]
async fn hundreds_of_commits_keep_every_file_in_order_and_the_lists_short() {
    let lake = table(&[("manifest.target-file-size", "8 kb"), ("manifest.merge-min-count", "5")]).await;
    let mut expected = Vec::new();
    for number in 0..200 {
        let snapshot =
            commit(&lake, vec![entry(EntryKind::Add, "a", 2 * number), entry(EntryKind::Add, "b", 2 * number + 1)]).await;
        expected.extend([format!("data-{}.parquet", 2 * number), format!("data-{}.parquet", 2 * number + 1)]);
        let base = lake.read_manifest_list(&snapshot.base_manifest_list).await.unwrap();
        assert!(base.len() < 15, "{}", base.len());
    }
    let snapshot = lake.snapshot(200).await.unwrap().unwrap();
    assert_eq!(names(&lake, &snapshot).await, expected);
    assert_eq!(snapshot.total_record_count, Some(4000));
    let live = lake.live_partitions(&snapshot, Some(&BTreeSet::from([partition("b")]))).await.unwrap();
    assert_eq!(live.len(), 1);
    let facts = &live[&partition("b")];
    assert_eq!((facts.files, facts.rows, facts.totals.clone()), (200, 2000, BTreeSet::from([2])));
    assert_eq!(facts.max_sequence, BTreeMap::from([(1, 399 + 9)]));
}

#[tokio::test(start_paused = true)]
async fn whoever_scans_manifests_does_not_wait_for_the_merge_of_another_table() {
    let (store, runtime) = (Store::in_memory(), runtime());
    let warehouse = Warehouse::new(store.clone(), runtime.clone());
    let mut tables = Vec::new();
    for name in ["merged", "scanned"] {
        assert!(warehouse.create_table("demo", name, &schema(&[("manifest.merge-min-count", "3")])).await.unwrap());
        let lake = warehouse.table("demo", name).await.unwrap().unwrap();
        for number in 0..3 {
            commit(&lake, (0..40).map(|file| entry(EntryKind::Add, "a", 40 * number + file)).collect()).await;
        }
        tables.push((lake.newest_snapshot().await.unwrap().1.unwrap(), lake));
    }
    let hangs = |act: &str, path: &str| {
        let manifest = path.contains("/manifest-") && !path.contains("/manifest-list-");
        (act == "get" && manifest).then_some(Fault::Hang)
    };
    let faulty = Warehouse::new(store.with_faults(Faults::scripted(hangs)), runtime.clone());
    let merged = faulty.table("demo", "merged").await.unwrap().unwrap();
    let parent = tables[0].0.clone();
    let merge = tokio::spawn(async move {
        let delta = merged.write_delta(vec![entry(EntryKind::Add, "a", 500)], vec![]).await.unwrap();
        merged.stage(Some(&parent), &delta, true).await.map(|_| ())
    });
    while runtime.aside.used() == 0 && !merge.is_finished() {
        tokio::task::yield_now().await;
    }
    let (newest, scanned) = &tables[1];
    let found = runtime.clock.timeout(std::time::Duration::from_secs(3600), names(scanned, newest)).await;
    assert_eq!(found.map(|found| found.len()), Some(120));
    let held = &runtime.aside.merges;
    assert!(!merge.is_finished());
    assert_eq!(held.used(), held.total(), "all that a merge may have is taken");
    merge.abort();
}

#[tokio::test]
async fn an_empty_commit_and_the_first_one_have_the_forms_of_the_specification() {
    let lake = table(&[]).await;
    assert_eq!(lake.newest_snapshot_id().await.unwrap(), None);
    let first = commit(&lake, vec![]).await;
    assert_eq!((first.id, first.total_record_count, first.next_row_id), (1, Some(0), Some(0)));
    assert!(lake.manifests(&first).await.unwrap().is_empty());
    let second = commit(&lake, vec![entry(EntryKind::Add, "a", 1)]).await;
    assert!(second.base_manifest_list.ends_with("-3") && second.delta_manifest_list.ends_with("-4"), "{second:?}");
}

#[tokio::test]
async fn inherited_members_are_carried_and_properties_are_not() {
    let lake = table(&[]).await;
    let mut first = commit(&lake, vec![]).await;
    first.watermark = Some(9);
    first.statistics = Some("stat-1".into());
    first.index_manifest = Some("index-manifest-1".into());
    first.next_row_id = Some(5);
    first.time_ms = i64::MAX;
    let delta = lake.write_delta(vec![], vec![]).await.unwrap();
    let staged = lake.stage(Some(&first), &delta, true).await.unwrap();
    let facts = |schema_id| CommitFacts {
        schema_id,
        user: "u".into(),
        identifier: 1,
        kind: "APPEND".into(),
        time_ms: 3,
        properties: BTreeMap::new(),
    };
    let next = staged.snapshot(Some(&first), facts(0));
    assert_eq!((next.watermark, next.next_row_id, next.time_ms), (Some(9), Some(5), i64::MAX));
    assert_eq!((next.statistics.as_deref(), next.index_manifest.as_deref()), (Some("stat-1"), Some("index-manifest-1")));
    assert!(next.properties.is_empty());
    assert_eq!(staged.snapshot(Some(&first), facts(1)).statistics, None);
}

#[tokio::test]
async fn discarding_leaves_nothing_of_an_attempt() {
    let lake = table(&[]).await;
    commit(&lake, vec![entry(EntryKind::Add, "a", 1)]).await;
    let before = lake.store().list(&lake.object("manifest")).await.unwrap();
    let delta = lake.write_delta(vec![entry(EntryKind::Add, "a", 2)], vec![]).await.unwrap();
    let newest = lake.snapshot(1).await.unwrap();
    let staged = lake.stage(newest.as_ref(), &delta, true).await.unwrap();
    lake.discard_staged(&staged).await.unwrap();
    lake.discard_delta(&delta).await.unwrap();
    assert_eq!(lake.store().list(&lake.object("manifest")).await.unwrap(), before);
    let twice = vec![entry(EntryKind::Add, "a", 2), entry(EntryKind::Add, "a", 2)];
    assert_eq!(lake.write_delta(twice, vec![]).await.unwrap_err().kind(), Kind::Internal);
}

#[tokio::test]
async fn changelog_files_have_a_list_of_their_own_and_are_not_inherited() {
    let lake = table(&[]).await;
    let before = commit(&lake, vec![entry(EntryKind::Add, "a", 1)]).await;
    let change = |number: u64| {
        let mut entry = entry(EntryKind::Add, "a", number);
        entry.file.file_name = format!("changelog-{number}.parquet");
        entry.file.row_count = 17;
        entry
    };
    let delta = lake.write_delta(vec![entry(EntryKind::Add, "a", 2)], vec![change(3), change(4)]).await.unwrap();
    let staged = lake.stage(Some(&before), &delta, true).await.unwrap();
    let facts = || CommitFacts {
        schema_id: 0,
        user: "u".into(),
        identifier: 1,
        kind: "APPEND".into(),
        time_ms: 3,
        properties: BTreeMap::new(),
    };
    let snapshot = staged.snapshot(Some(&before), facts());
    valid(&lake, &snapshot, Some(&before)).await;
    let list = snapshot.changelog_manifest_list.clone().unwrap();
    let size = lake.store().size(&lake.object(&path::manifest(&list))).await.unwrap();
    assert_eq!(size, snapshot.changelog_manifest_list_size.map(|size| u64::try_from(size).unwrap()));
    let manifests = lake.read_manifest_list(&list).await.unwrap();
    assert_eq!((manifests.len(), manifests[0].num_added_files), (1, 2));
    let entries = lake.read_manifest(&manifests[0].file_name).await.unwrap();
    assert_eq!(entries, [change(3), change(4)]);
    assert_eq!((snapshot.changelog_record_count, snapshot.delta_record_count), (Some(34), Some(10)));
    assert_eq!(names(&lake, &snapshot).await, ["data-1.parquet", "data-2.parquet"], "no reader of rows meets them");

    let empty = lake.write_delta(vec![], vec![]).await.unwrap();
    let next = lake.stage(Some(&snapshot), &empty, true).await.unwrap().snapshot(Some(&snapshot), facts());
    assert_eq!((next.changelog_manifest_list, next.changelog_record_count), (None, None));

    lake.discard_staged(&staged).await.unwrap();
    lake.discard_delta(&delta).await.unwrap();
    let left = lake.store().list(&lake.object("manifest")).await.unwrap();
    let own: BTreeSet<String> = [list, manifests[0].file_name.clone()].into_iter().collect();
    assert!(left.iter().all(|file| !own.iter().any(|name| file.path.ends_with(name))), "{left:?}");
}

#[tokio::test]
async fn hints_may_be_stale_garbage_or_beyond_the_end() {
    let lake = table(&[]).await;
    for number in 1..=30 {
        commit(&lake, vec![entry(EntryKind::Add, "a", number)]).await;
    }
    for hint in ["30", "29", "20", "2", "99", "0", "-1", "x", "", "28\n", "9223372036854775807"] {
        lake.store().put(&lake.object(path::LATEST), Bytes::from(hint)).await.unwrap();
        assert_eq!(lake.newest_snapshot_id().await.unwrap(), Some(30), "{hint}");
        let (id, snapshot) = lake.newest_snapshot().await.unwrap();
        assert!(id == Some(30) && snapshot.is_none_or(|snapshot| snapshot.id == 30), "{hint}");
    }
    lake.store().delete(&lake.object(path::LATEST)).await.unwrap();
    assert_eq!(lake.newest_snapshot_id().await.unwrap(), Some(30));
    // The hint's snapshot and those behind it have expired.
    lake.store().put(&lake.object(path::LATEST), Bytes::from("3")).await.unwrap();
    for id in 1..10 {
        lake.store().delete(&lake.object(&path::snapshot(id))).await.unwrap();
    }
    assert_eq!(lake.newest_snapshot_id().await.unwrap(), Some(30));
    assert_eq!(lake.snapshot_ids().await.unwrap(), (10..=30).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_name_that_leads_elsewhere_is_a_fault_of_the_snapshot() {
    let lake = table(&[]).await;
    let snapshot = commit(&lake, vec![entry(EntryKind::Add, "a", 1)]).await;
    for name in ["../..", "..", "", "a/b"] {
        let wrong = Snapshot { delta_manifest_list: name.to_owned(), ..snapshot.clone() };
        let error = lake.live_entries(&wrong, None).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Data, "`{name}`: {}", error.chain());
        assert!(error.hint().is_some());
    }
}

#[tokio::test]
async fn faults_name_their_object() {
    let lake = table(&[]).await;
    let snapshot = commit(&lake, vec![entry(EntryKind::Add, "a", 1)]).await;
    let delta = lake.object(&path::manifest(&snapshot.delta_manifest_list));
    lake.store().put(&delta, Bytes::from("PAR1")).await.unwrap();
    let error = lake.live_entries(&snapshot, None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Data);
    assert!(error.chain().contains(&snapshot.delta_manifest_list), "{}", error.chain());
    lake.store().delete(&delta).await.unwrap();
    let error = lake.live_entries(&snapshot, None).await.unwrap_err();
    assert!(error.kind() == Kind::Data && error.chain().contains(&snapshot.delta_manifest_list), "{}", error.chain());
    lake.store().put(&lake.object("snapshot/snapshot-2"), Bytes::from(snapshot.to_json().unwrap())).await.unwrap();
    let error = lake.snapshot(2).await.unwrap_err();
    assert!(error.kind() == Kind::Data && error.chain().contains("snapshot-2"), "{}", error.chain());
    assert!(LakeTable::open(lake.store().clone(), "demo.db/none", runtime()).await.unwrap().is_none());
}

#[tokio::test]
async fn pins_are_consumer_files() {
    let lake = table(&[]).await;
    assert_eq!(lake.pins("lakeward-").await.unwrap(), []);
    lake.write_pin("lakeward-1", 4).await.unwrap();
    lake.write_pin("lakeward-1", 5).await.unwrap();
    lake.write_pin("other", 1).await.unwrap();
    lake.store().put(&lake.object(&path::consumer("broken")), Bytes::from("{")).await.unwrap();
    let pins = lake.pins("lakeward-").await.unwrap();
    assert_eq!((pins.len(), pins[0].name.as_str(), pins[0].next_snapshot), (1, "lakeward-1", 5));
    // It may hold anything, and goes by its age.
    let broken = lake.pins("broken").await.unwrap();
    assert_eq!((broken.len(), broken[0].next_snapshot), (1, 0));
    lake.delete_pin("lakeward-1").await.unwrap();
    lake.delete_pin("lakeward-1").await.unwrap();
    assert_eq!(lake.pins("lakeward-").await.unwrap(), []);
}

#[tokio::test]
async fn tables_are_made_once_and_altered_beside_all_that_is_there() {
    let store = Store::in_memory();
    let warehouse = Warehouse::new(store.clone(), runtime());
    assert!(warehouse.create_table("d", "t", &schema(&[])).await.unwrap());
    assert!(!warehouse.create_table("d", "t", &schema(&[("x", "y")])).await.unwrap());
    // A member and a field attribute that we do not know.
    let known = schema(&[]).to_json().unwrap().replace("\"version\"", "\"future\": {\"a\": 1}, \"version\"");
    let known = known.replacen("\"name\": \"dt\"", "\"name\": \"dt\", \"defaultValue\": \"x\"", 1);
    store.put("d.db/t/schema/schema-0", Bytes::from(known)).await.unwrap();
    let set = |value: Option<&str>| {
        let value = value.map(str::to_owned);
        move |found: &TableSchema| {
            let change = SchemaChange::Option { key: "bucket".into(), value: value.clone() };
            Ok(if found.options.get("bucket") == value.as_ref() { vec![] } else { vec![change] })
        }
    };
    assert!(warehouse.alter_table("d", "t", set(Some("4"))).await.unwrap());
    assert!(!warehouse.alter_table("d", "t", set(Some("4"))).await.unwrap());
    let json: Value = serde_json::from_slice(&store.get_existing("d.db/t/schema/schema-1").await.unwrap()).unwrap();
    assert_eq!((&json["future"]["a"], &json["fields"][0]["defaultValue"]), (&1.into(), &"x".into()));
    assert_eq!((&json["id"], &json["options"]["bucket"], &json["options"]["bucket-key"]), (&1.into(), &"4".into(), &"id".into()));
    let lake = warehouse.table("d", "t").await.unwrap().unwrap();
    assert_eq!((lake.schema().id, lake.schema().option("bucket")), (1, Some("4")));
    assert_eq!((lake.schema_zero().await.unwrap().time_ms, lake.newest_schema_id().await.unwrap()), (5, 1));
    assert!(warehouse.alter_table("d", "t", set(None)).await.unwrap());
    assert_eq!(lake.newest_schema_id().await.unwrap(), 2);
    assert_eq!(warehouse.alter_table("d", "no", set(None)).await.unwrap_err().kind(), Kind::Data);
}

#[tokio::test]
async fn columns_are_added_with_fresh_ids_at_the_end_or_before_another() {
    let warehouse = Warehouse::new(Store::in_memory(), runtime());
    assert!(warehouse.create_table("d", "t", &schema(&[])).await.unwrap());
    let column = |name: &str, before: Option<&str>| SchemaChange::AddColumn {
        field: crate::model::Field {
            id: 99,
            name: name.into(),
            data_type: crate::paimon::parse_type("DECIMAL(10, 2)").unwrap(),
            comment: Some("c".into()),
        },
        before: before.map(str::to_owned),
    };
    assert!(warehouse.alter_table("d", "t", |_| Ok(vec![column("x", None), column("y", Some("id"))])).await.unwrap());
    let schema = warehouse.table("d", "t").await.unwrap().unwrap();
    let fields: Vec<(&str, i32)> = schema.schema().fields.iter().map(|field| (field.name.as_str(), field.id)).collect();
    assert_eq!(fields, [("dt", 0), ("y", 3), ("id", 1), ("x", 2)]);
    assert_eq!(schema.schema().highest_field_id, 3);
    assert_eq!(schema.schema().fields[1].comment.as_deref(), Some("c"));

    // A nested column counts on through what is inside: there a field comes after its own fields, as in Java's files.
    let golden = golden("paimon", "nested").await;
    let mut field = golden.schema().field("rr").unwrap().clone();
    let from = field.id - 4;
    crate::paimon::number_nested(&mut field.data_type, &mut 900);
    assert!(
        warehouse
            .alter_table("d", "t", |_| Ok(vec![SchemaChange::AddColumn { field: field.clone(), before: None }]))
            .await
            .unwrap()
    );
    let altered = warehouse.table("d", "t").await.unwrap().unwrap();
    let mut shown = crate::paimon::type_json(&altered.schema().fields.last().unwrap().data_type).to_string();
    let java = crate::paimon::type_json(&golden.schema().field("rr").unwrap().data_type).to_string();
    for id in (5..=altered.schema().highest_field_id).rev() {
        shown = shown.replace(&format!("\"id\":{id},"), &format!("\"id\":{},", id + from));
    }
    assert_eq!((shown, altered.schema().highest_field_id), (java, 12));
}

#[tokio::test]
async fn a_lost_race_for_a_schema_is_decided_afresh() {
    let store = Store::in_memory();
    assert!(Warehouse::new(store.clone(), runtime()).create_table("d", "t", &schema(&[])).await.unwrap());
    // Our create of schema-1 does its work but its reply is lost; the second call finds nothing to do.
    let mut first = true;
    let faulty =
        store.with_faults(Faults::scripted(move |act, _| (act == "create" && std::mem::take(&mut first)).then_some(Fault::After)));
    let warehouse = Warehouse::new(faulty, runtime());
    let four = |found: &TableSchema| {
        let change = SchemaChange::Option { key: "bucket".into(), value: Some("4".into()) };
        Ok(if found.option("bucket") == Some("4") { vec![] } else { vec![change] })
    };
    assert_eq!(warehouse.alter_table("d", "t", four).await.unwrap_err().kind(), Kind::Unavailable);
    assert!(!warehouse.alter_table("d", "t", four).await.unwrap());
    assert_eq!(warehouse.table("d", "t").await.unwrap().unwrap().schema().id, 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn merging_never_changes_what_is_live(
        commits in prop::collection::vec((1..6_u64, prop::collection::vec(any::<prop::sample::Index>(), 0..4)), 1..40),
        target in 1..6_u64,
        full in 3..30_u64,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (target, full) = (format!("{target} kb"), format!("{full} kb"));
            let lake = table(&[
                ("manifest.target-file-size", &target),
                ("manifest.full-compaction-threshold-size", &full),
                ("manifest.merge-min-count", "3"),
            ])
            .await;
            let mut live: Vec<(String, u64)> = Vec::new();
            let mut number = 0;
            for (adds, deletes) in commits {
                let mut entries = Vec::new();
                for _ in 0..deletes.len().min(live.len()) {
                    let (dt, gone) = live.remove(deletes[entries.len()].index(live.len()));
                    entries.push(entry(EntryKind::Delete, &dt, gone));
                }
                for _ in 0..adds {
                    let dt = ["a", "b", "c"][usize::try_from(number % 3).unwrap()];
                    entries.push(entry(EntryKind::Add, dt, number));
                    live.push((dt.to_owned(), number));
                    number += 1;
                }
                let snapshot = commit(&lake, entries).await;
                let expected: Vec<String> = live.iter().map(|(_, number)| format!("data-{number}.parquet")).collect();
                assert_eq!(names(&lake, &snapshot).await, expected);
                let counted = lake.live_partitions(&snapshot, None).await.unwrap();
                assert_eq!(counted.values().map(|facts| facts.files).sum::<u64>(), live.len() as u64);
            }
        });
    }
}
