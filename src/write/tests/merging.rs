//! Options that change which row of a key is the newest, and buckets that do not fit into memory, against a model.

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, Int32Type, Int64Type};
use arrow_array::{ArrayRef, Int32Array, Int64Array, RecordBatch};
use proptest::prelude::*;

use super::*;
use crate::lake::Warehouse;
use crate::model::ChangeKind;
use crate::paimon::DataFile;

const KINDS: [ChangeKind; 4] = [ChangeKind::Insert, ChangeKind::UpdateBefore, ChangeKind::UpdateAfter, ChangeKind::Delete];

/// Key, kind, version, value.
type Change = (i32, u8, Option<i64>, i64);

/// `k INT, version BIGINT, v BIGINT`, key k.
fn versioned(options: &[(&str, &str)]) -> TableSchema {
    let nullable = || DataType::nullable(TypeKind::BigInt);
    let fields = vec![field(0, "k", DataType::required(TypeKind::Int)), field(1, "version", nullable()), field(2, "v", nullable())];
    let mut schema = (*table(fields, options)).clone();
    (schema.id, schema.highest_field_id, schema.primary_keys) = (0, 2, vec!["k".into()]);
    schema.options.insert("bucket".into(), "4".into());
    schema
}

fn batch_of(schema: &TableSchema, changes: &[Change]) -> (RecordBatch, Vec<ChangeKind>) {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(changes.iter().map(|(key, ..)| Some(*key)).collect::<Int32Array>()),
        Arc::new(changes.iter().map(|(_, _, version, _)| *version).collect::<Int64Array>()),
        Arc::new(changes.iter().map(|(.., value)| Some(*value)).collect::<Int64Array>()),
    ];
    let kinds = changes.iter().map(|(_, kind, ..)| KINDS[usize::from(*kind)]).collect();
    (RecordBatch::try_new(lake_arrow_schema(schema).unwrap(), columns).unwrap(), kinds)
}

fn numbers(batch: &RecordBatch, name: &str) -> Vec<Option<i64>> {
    batch.column_by_name(name).unwrap().as_primitive::<Int64Type>().iter().collect()
}

/// Kind, version, value of the rows of a key among `changes`, as Java's write buffer has them, newest last.
fn versions(changes: &[Change], key: i32, sequence: bool) -> Vec<(u8, Option<i64>, i64)> {
    let mut of_key: Vec<_> =
        changes.iter().filter(|(other, ..)| *other == key).map(|(_, kind, version, value)| (*kind, *version, *value)).collect();
    if sequence {
        // Stable: the later one of equal versions stays behind.
        of_key.sort_by_key(|(_, version, _)| *version);
    }
    of_key
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// `sequence.field` decides before arrival, a −U too; `ignore-delete` and `ignore-update-before` leave rows out everywhere.
    #[test]
    fn versions_and_ignored_rows_are_those_of_a_model(
        rounds in prop::collection::vec(prop::collection::vec((0_i32..8, 0_u8..4, prop::option::of(-3_i64..3), any::<i64>()), 1..30), 1..4),
        sequence: bool,
        ignore_delete: bool,
        ignore_update_before: bool,
    ) {
        let mut options = vec![("changelog-producer", "input")];
        if sequence { options.push(("sequence.field", "version")); }
        if ignore_delete { options.push(("ignore-delete", "true")); }
        if ignore_update_before { options.push(("ignore-update-before", "true")); }
        let schema = versioned(&options);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = Store::in_memory();
            let warehouse = Warehouse::new(store.clone(), Runtime::simulated(3, 0, 1 << 20));
            assert!(warehouse.create_table("demo", "t", &schema).await.unwrap());
            let lake = warehouse.table("demo", "t").await.unwrap().unwrap();
            let schema = Arc::new(schema);
            let (mut live, mut next) = (Vec::new(), 0_i64);
            let is_kept = |change: &Change| !(ignore_delete && change.1 % 2 == 1 || ignore_update_before && change.1 == 1);
            let mut all: Vec<Change> = Vec::new();
            for (number, changes) in rounds.iter().enumerate() {
                let round = RoundId(uuid::Uuid::from_u128(number as u128));
                let context = WriteContext::new(store.clone(), lake.root(), Arc::clone(&schema), round, Runtime::simulated(1, 0, 64 << 20), WriteOptions::default()).unwrap();
                let mut writer = BucketWriter::new(Arc::clone(&context), target(), next).unwrap();
                let (rows, kinds) = batch_of(&schema, changes);
                writer.write(rows, Some(&kinds), next, context.runtime.budget.acquire(64).await).await.unwrap();
                next += i64::try_from(changes.len()).unwrap();
                let files = writer.finish().await.unwrap();
                let kept: Vec<Change> = changes.iter().filter(|change| is_kept(change)).copied().collect();
                let mut want = Vec::new();
                for key in 0..8 {
                    want.extend(versions(&kept, key, sequence).into_iter().map(|(kind, version, value)| (key, kind, version, value)));
                }
                let mut logged = Vec::new();
                for entry in &files.changelog {
                    for batch in read(written(&store, entry).await) {
                        let keys = batch.column_by_name("k").unwrap().as_primitive::<Int32Type>().clone();
                        let kinds = batch.column_by_name("_VALUE_KIND").unwrap().as_primitive::<Int8Type>().clone();
                        for (((key, kind), version), value) in keys.values().iter().zip(kinds.values()).zip(numbers(&batch, "version")).zip(numbers(&batch, "v")) {
                            logged.push((*key, u8::try_from(*kind).unwrap(), version, value.unwrap()));
                        }
                    }
                }
                assert_eq!(logged, want, "the changelog has every row that is not ignored, by key and version");
                all.extend(kept);
                live.extend(files.data);
            }
            let mut reader = lake.merge_files(live, None).await.unwrap();
            let mut merged = Vec::new();
            while let Some(batch) = reader.next_batch().await.unwrap() {
                let keys = batch.column(0).as_primitive::<Int32Type>().clone();
                merged.extend(keys.values().iter().copied().zip(numbers(&batch, "version")).zip(numbers(&batch, "v")).map(|((key, version), value)| (key, version, value.unwrap())));
            }
            let newest = |key: i32| {
                let mut of_key = versions(&all, key, sequence);
                if !sequence {
                    // Our writer drops −U rows, whose +U follows or did not come.
                    of_key.retain(|(kind, ..)| *kind != 1);
                }
                let (kind, version, value) = of_key.pop()?;
                (kind % 2 == 0).then_some((key, version, value))
            };
            assert_eq!(merged, (0..8).filter_map(newest).collect::<Vec<_>>());
        });
    }
}

#[tokio::test(start_paused = true)]
async fn changelog_files_have_codec_and_statistics_of_their_own() {
    let schema = Arc::new(versioned(&[
        ("changelog-producer", "input"),
        ("changelog-file.compression", "none"),
        ("changelog-file.stats-mode", "none"),
        ("file.compression", "snappy"),
        ("file.suffix.include.compression", "true"),
    ]));
    let store = Store::in_memory();
    let context = context(&store, &schema, WriteOptions::default());
    let mut writer = BucketWriter::new(Arc::clone(&context), target(), 0).unwrap();
    let (rows, kinds) = batch_of(&schema, &[(1, 0, None, 7), (0, 3, Some(1), 8)]);
    writer.write(rows, Some(&kinds), 0, context.runtime.budget.acquire(64).await).await.unwrap();
    let files = writer.finish().await.unwrap();
    for (entry, codec, extension, stats) in [
        (&files.data[0], Compression::SNAPPY, ".snappy.parquet", None),
        (&files.changelog[0], Compression::UNCOMPRESSED, ".none.parquet", Some(vec![])),
    ] {
        let reader = SerializedFileReader::new(written(&store, entry).await).unwrap();
        assert_eq!(reader.metadata().row_group(0).column(0).compression(), codec);
        assert!(entry.file.file_name.ends_with(extension), "{}", entry.file.file_name);
        assert_eq!(entry.file.value_stats_cols, stats);
    }
}

/// A bucket ten times the budget, written as `round` does: memory for a batch is asked for, and while it is not there the bucket
/// flushes.
#[tokio::test]
async fn a_bucket_larger_than_the_budget_becomes_several_sorted_files_that_merge_right() {
    const BUDGET: usize = 256 << 10;
    const KEYS: i32 = 20_000;
    let schema = versioned(&[("changelog-producer", "input"), ("target-file-size", "40 kb")]);
    let store = Store::in_memory();
    let warehouse = Warehouse::new(store.clone(), Runtime::simulated(3, 0, 1 << 20));
    assert!(warehouse.create_table("demo", "t", &schema).await.unwrap());
    let lake = warehouse.table("demo", "t").await.unwrap().unwrap();
    let schema = Arc::new(schema);
    // Rows as narrow as these would be sorted some hundred at a time beside so small a budget.
    let aside = Arc::new(SetAside::beside(BUDGET * 16));
    let runtime = Runtime { encoders: Encoders::threads(2).unwrap(), aside, ..Runtime::simulated(1, 0, BUDGET) };
    let budget = runtime.budget.clone();
    let round = RoundId(uuid::Uuid::from_u128(9));
    let context =
        WriteContext::new(store.clone(), lake.root(), Arc::clone(&schema), round, runtime, WriteOptions::default()).unwrap();
    let mut writer = BucketWriter::new(Arc::clone(&context), target(), 100).unwrap();
    let (mut state, mut told, mut next, mut peak, mut waiting) = (std::collections::BTreeMap::new(), 0, 100_i64, 0, 0);
    for batch in 0..130_i32 {
        // Each key comes again and again, in no order, updates as −U and +U.
        let mut changes: Vec<Change> = Vec::new();
        for at in 0..1000 {
            let key = (batch * 1000 + at).wrapping_mul(7919).rem_euclid(KEYS);
            let value = i64::from(batch) * 1000 + i64::from(at);
            match state.get(&key).copied() {
                None => changes.push((key, 0, None, value)),
                Some(old) if value % 11 == 0 => {
                    changes.push((key, 3, None, old));
                    state.remove(&key);
                    continue;
                }
                Some(old) => changes.extend([(key, 1, None, old), (key, 2, None, value)]),
            }
            state.insert(key, value);
        }
        let (rows, kinds) = batch_of(&schema, &changes);
        let bytes = rows.get_array_memory_size();
        let permit = match budget.try_acquire(bytes) {
            Some(permit) => permit,
            None => {
                writer.flush().await.unwrap();
                assert_eq!(budget.used(), 0, "a flush gives everything back");
                budget.try_acquire(bytes).unwrap()
            }
        };
        peak = peak.max(budget.used());
        writer.write(rows, Some(&kinds), next, permit).await.unwrap();
        waiting = waiting.max(writer.buffered_bytes());
        next += i64::try_from(changes.len()).unwrap();
        told += i64::try_from(changes.len()).unwrap();
    }
    let files = writer.finish().await.unwrap();
    assert!(peak <= BUDGET && waiting <= BUDGET && told * 21 > 10 * i64::try_from(BUDGET).unwrap(), "{peak} {waiting} {told}");
    assert_eq!(budget.used(), 0);
    // A flush per half a budget, each about 100 kb of file: few files for what they hold.
    assert!((10..80).contains(&files.data.len()), "{}", files.data.len());
    assert_eq!(files.changelog.iter().map(|entry| entry.file.row_count).sum::<i64>(), told);
    // The changelog of a key is in order over all files: each −U undoes what the row before it did.
    let mut log = std::collections::BTreeMap::new();
    let mut last = 99;
    for entry in &files.changelog {
        for batch in read(written(&store, entry).await) {
            let keys = batch.column_by_name("k").unwrap().as_primitive::<Int32Type>().clone();
            let kinds = batch.column_by_name("_VALUE_KIND").unwrap().as_primitive::<Int8Type>().clone();
            for ((key, kind), value) in keys.values().iter().zip(kinds.values()).zip(numbers(&batch, "v")) {
                match kind {
                    0 | 2 => assert_eq!(log.insert(*key, value), None, "{key}"),
                    _ => assert_eq!(log.remove(key), Some(value), "{key}"),
                }
            }
        }
    }
    assert_eq!(log, state.iter().map(|(key, value)| (*key, Some(*value))).collect());
    for entry in &files.data {
        let file = &entry.file;
        assert!(file.min_sequence_number >= 100 && file.max_sequence_number < next && file.file_size < 60 << 10, "{file:?}");
        last = last.max(file.max_sequence_number);
    }
    assert_eq!(last, next - 1);
    let mut reader = lake.merge_files(files.data, None).await.unwrap();
    let mut merged = std::collections::BTreeMap::new();
    while let Some(batch) = reader.next_batch().await.unwrap() {
        let keys = batch.column(0).as_primitive::<Int32Type>().clone();
        merged.extend(keys.values().iter().copied().zip(numbers(&batch, "v").into_iter().flatten()));
    }
    assert_eq!(merged, state);
}

#[tokio::test(start_paused = true)]
async fn where_each_key_comes_once_changelog_and_data_are_the_same_bytes_in_two_files_and_both_go_with_an_abort() {
    let schema = Arc::new(versioned(&[("changelog-producer", "input"), ("target-file-row-num", "3")]));
    let store = Store::in_memory();
    let options = WriteOptions { part_bytes: 1, ..WriteOptions::default() };
    let context = context(&store, &schema, options);
    let changes: Vec<Change> = (0..8).map(|key| (7 * key % 8, 0, None, i64::from(key))).collect();
    let (rows, kinds) = batch_of(&schema, &changes);
    let writer = async || {
        let mut writer = BucketWriter::new(Arc::clone(&context), target(), 0).unwrap();
        writer.write(rows.clone(), Some(&kinds), 0, context.runtime.budget.acquire(64).await).await.unwrap();
        writer.flush().await.unwrap();
        // Then a key of before: its newest row is in the data only.
        let (again, kinds) = batch_of(&schema, &[(5, 1, None, 0), (5, 2, None, 1)]);
        writer.write(again, Some(&kinds), 8, context.runtime.budget.acquire(64).await).await.unwrap();
        writer
    };
    let files = writer().await.finish().await.unwrap();
    let counts = |entries: &[ManifestEntry]| entries.iter().map(|entry| entry.file.row_count).collect::<Vec<_>>();
    assert_eq!((counts(&files.data), counts(&files.changelog)), (vec![3, 3, 2, 1], vec![3, 3, 2, 2]));
    for (data, log) in files.data.iter().zip(&files.changelog) {
        assert!(data.file.file_name.starts_with("data-") && log.file.file_name.starts_with("changelog-"));
        let same = DataFile { file_name: data.file.file_name.clone(), ..log.file.clone() };
        assert_eq!(same == data.file, data.file.row_count != 1);
        assert_eq!(written(&store, data).await == written(&store, log).await, data.file.row_count != 1);
    }
    let before = store.list("").await.unwrap().len();
    let mut writer = writer().await;
    writer.flush().await.unwrap();
    assert_eq!(store.list("").await.unwrap().len(), before + 8);
    writer.abort().await.unwrap();
    assert_eq!(store.list("").await.unwrap().len(), before);
}
