//! Primary-key files: against Java's bytes, and merged again against a model.

use std::collections::BTreeMap;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, Int64Type};
use arrow_array::{Int8Array, RecordBatch, UInt32Array};
use arrow_select::take::take_record_batch;
use proptest::prelude::*;

use super::*;
use crate::lake::{LakeTable, Warehouse};
use crate::model::ChangeKind;
use crate::paimon::EntryKind;

fn golden_table(name: &str) -> (Arc<TableSchema>, Vec<Value>) {
    let folder = format!("fixtures/paimon/{name}");
    let schema = TableSchema::from_json(&std::fs::read_to_string(format!("{folder}/schema/schema-0")).unwrap()).unwrap();
    let dump = std::fs::read_to_string(format!("{folder}.dump.jsonl")).unwrap();
    (Arc::new(schema), dump.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn golden_file(name: &str, file: &Value) -> Bytes {
    Bytes::from(std::fs::read(format!("fixtures/paimon/{name}/{}", file["path"].as_str().unwrap())).unwrap())
}

fn one_batch(bytes: Bytes) -> RecordBatch {
    let batches = read(bytes);
    arrow_select::concat::concat_batches(&batches[0].schema(), &batches).unwrap()
}

/// The rows of a file in the order of their sequence numbers, in the lake's columns, and what they do.
fn arrivals(file: &RecordBatch, schema: &TableSchema) -> (RecordBatch, Vec<ChangeKind>) {
    let sequences = file.column_by_name("_SEQUENCE_NUMBER").unwrap().as_primitive::<Int64Type>();
    let mut order: Vec<u32> = (0..u32::try_from(file.num_rows()).unwrap()).collect();
    order.sort_by_key(|row| sequences.value(*row as usize));
    let sorted = take_record_batch(file, &UInt32Array::from(order)).unwrap();
    let kinds: &Int8Array = sorted.column_by_name("_VALUE_KIND").unwrap().as_primitive::<Int8Type>();
    let changes = [ChangeKind::Insert, ChangeKind::UpdateBefore, ChangeKind::UpdateAfter, ChangeKind::Delete];
    let changes = kinds.values().iter().map(|kind| changes[usize::try_from(*kind).unwrap()]).collect();
    let arrow = lake_arrow_schema(schema).unwrap();
    let columns = arrow.fields().iter().map(|field| as_type(sorted.column_by_name(field.name()).unwrap(), field.data_type()));
    (RecordBatch::try_new(Arc::clone(&arrow), columns.collect()).unwrap(), changes)
}

fn hex(row: &BinaryRow) -> String {
    row.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What we say of a file is what Java says of its own.
fn assert_told_as(ours: &ManifestEntry, java: &Value, schema: &TableSchema) {
    let file = &ours.file;
    assert_eq!((hex(&file.min_key), hex(&file.max_key)), (text(&java["minKeyHex"]), text(&java["maxKeyHex"])));
    assert_eq!(
        json!([file.min_sequence_number, file.max_sequence_number]),
        json!([java["minSequenceNumber"], java["maxSequenceNumber"]])
    );
    assert_eq!(json!([file.row_count, file.delete_row_count]), json!([java["rowCount"], java["deleteRowCount"]]));
    assert_eq!((file.level, &json!(file.value_stats_cols)), (0, &java["valueStatsCols"]));
    let keys = schema.trimmed_primary_keys();
    let names = schema.fields.iter().map(|field| field.name.clone()).collect();
    for (stats, names, found) in [(&file.key_stats, keys, &java["keyStats"]), (&file.value_stats, names, &java["valueStats"])] {
        let types = schema.types_of(&names).unwrap();
        assert_eq!(json!(stats.null_counts), found["nullCounts"]);
        for (row, bound) in [(&stats.min_values, "min"), (&stats.max_values, "max")] {
            for ((value, data_type), name) in row.read(&types).unwrap().iter().zip(&types).zip(&names) {
                assert_eq!(&rendered(value, &data_type.kind), &found[bound][name], "{bound} of `{name}`");
            }
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// Same columns of the same names, types, ids and values as in Java's file.
fn assert_same_file(ours: Bytes, java: Bytes) {
    let schema = |bytes: &Bytes| {
        let reader = SerializedFileReader::new(bytes.clone()).unwrap();
        printed(reader.metadata().file_metadata().schema())
    };
    assert_eq!(schema(&ours), schema(&java));
    let (ours, java) = (one_batch(ours), one_batch(java));
    for (index, field) in java.schema().fields().iter().enumerate() {
        assert_eq!(ours.column(index), java.column(index), "{}", field.name());
    }
}

async fn write_all(context: &Arc<WriteContext>, rows: RecordBatch, changes: &[ChangeKind], first: i64) -> BucketFiles {
    let target = BucketTarget { bucket: 0, ..target() };
    let mut writer = BucketWriter::new(Arc::clone(context), target, first).unwrap();
    writer.write(rows, Some(changes), 0, context.runtime.budget.acquire(1 << 10).await).await.unwrap();
    writer.finish().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_same_changes_become_the_files_that_java_makes_of_them() {
    let name = "pk_changelog_input";
    let (schema, dump) = golden_table(name);
    let store = Store::in_memory();
    let context = context(&store, &schema, WriteOptions::default());
    let data: Vec<&Value> = dump.iter().filter(|line| line["type"] == "file").collect();
    let changelog = dump.iter().find(|line| line["type"] == "changelog").unwrap();
    // The first commit's changelog is not in the dump of the second, but its file is there.
    let first = data[0]["path"].as_str().unwrap().replace("data-", "changelog-").replace("-1.parquet", "-0.parquet");
    for (changes, data, told) in [(json!({"path": first}), data[0], None), (changelog.clone(), data[1], Some(changelog))] {
        let bytes = golden_file(name, &changes);
        let (rows, kinds) = arrivals(&one_batch(bytes.clone()), &schema);
        let first = data["minSequenceNumber"]
            .as_i64()
            .unwrap()
            .min(told.map_or(i64::MAX, |told| told["minSequenceNumber"].as_i64().unwrap()));
        let files = write_all(&context, rows, &kinds, first).await;
        let ([ours], [log]) = (files.data.as_slice(), files.changelog.as_slice()) else { panic!("{files:?}") };
        assert_told_as(ours, data, &schema);
        assert_same_file(written(&store, ours).await, golden_file(name, data));
        if let Some(told) = told {
            assert_told_as(log, told, &schema);
        }
        assert!(log.file.file_name.starts_with("changelog-"), "{}", log.file.file_name);
        assert_same_file(written(&store, log).await, bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn composite_keys_have_java_s_order_bytes_and_bounds() {
    let name = "pk_key_types";
    let (schema, dump) = golden_table(name);
    let store = Store::in_memory();
    let context = context(&store, &schema, WriteOptions::default());
    let java = dump.iter().find(|line| line["type"] == "file").unwrap();
    let (rows, kinds) = arrivals(&one_batch(golden_file(name, java)), &schema);
    let partition = BinaryRow::write(&[Some(Datum::Int(7))], &schema.partition_types().unwrap()).unwrap();
    let target = BucketTarget { bucket: 0, partition, ..target() };
    let mut writer = BucketWriter::new(Arc::clone(&context), target, 0).unwrap();
    writer.write(rows, Some(&kinds), 0, context.runtime.budget.acquire(1).await).await.unwrap();
    let files = writer.finish().await.unwrap();
    assert_eq!(files.changelog, []);
    assert_told_as(&files.data[0], java, &schema);
    let ours = store.get_existing(&format!("demo.db/t/p=7/bucket-0/{}", files.data[0].file.file_name)).await.unwrap();
    assert_same_file(ours, golden_file(name, java));
}

/// `region STRING, id INT, v BIGINT`, key (region, id).
fn keyed(options: &[(&str, &str)]) -> TableSchema {
    let fields = vec![
        field(0, "region", DataType::required(TypeKind::String)),
        field(1, "id", DataType::required(TypeKind::Int)),
        field(2, "v", DataType::nullable(TypeKind::BigInt)),
    ];
    let mut schema = (*table(fields, options)).clone();
    (schema.id, schema.highest_field_id) = (0, 2);
    schema.primary_keys = vec!["region".into(), "id".into()];
    schema.options.insert("bucket".into(), "4".into());
    schema
}

/// Keys that share their first eight bytes, and more.
fn key(number: u8) -> (String, i32) {
    (format!("{}-region", "x".repeat(usize::from(number % 3) * 7)), i32::from(number / 3) - 10)
}

type Change = (u8, u8, i64);

const KINDS: [ChangeKind; 4] = [ChangeKind::Insert, ChangeKind::UpdateBefore, ChangeKind::UpdateAfter, ChangeKind::Delete];

fn batch_of(schema: &TableSchema, changes: &[Change]) -> (RecordBatch, Vec<ChangeKind>) {
    let keys: Vec<(String, i32)> = changes.iter().map(|(number, ..)| key(*number)).collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(keys.iter().map(|(region, _)| region))),
        Arc::new(Int32Array::from_iter_values(keys.iter().map(|(_, id)| *id))),
        Arc::new(changes.iter().map(|(_, _, value)| (value % 5 != 0).then_some(*value)).collect::<Int64Array>()),
    ];
    let kinds = changes.iter().map(|(_, kind, _)| KINDS[usize::from(*kind)]).collect();
    (RecordBatch::try_new(lake_arrow_schema(schema).unwrap(), columns).unwrap(), kinds)
}

fn rows_of(batches: &[RecordBatch]) -> Vec<((String, i32), Option<i64>)> {
    let one = |batch: &RecordBatch| {
        let regions = batch.column(0).as_string::<i32>();
        let ids = batch.column(1).as_primitive::<arrow_array::types::Int32Type>();
        let values = batch.column(2).as_primitive::<Int64Type>();
        let row = |row| ((regions.value(row).to_owned(), ids.value(row)), values.is_valid(row).then(|| values.value(row)));
        (0..batch.num_rows()).map(row).collect::<Vec<_>>()
    };
    batches.iter().flat_map(one).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Rounds of batches, flushed now and then: what a reader merges is what a map would hold, whatever the form of the files.
    #[test]
    fn merged_rows_are_those_of_a_model(
        rounds in prop::collection::vec(prop::collection::vec(prop::collection::vec((0_u8..60, 0_u8..4, any::<i64>()), 1..40), 1..4), 1..4),
        thin: bool,
        log: bool,
        small: bool,
    ) {
        let mut options = vec![];
        if thin { options.push(("data-file.thin-mode", "true")); }
        if log { options.push(("changelog-producer", "input")); }
        if small { options.push(("target-file-row-num", "7")); }
        let schema = keyed(&options);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = Store::in_memory();
            let warehouse = Warehouse::new(store.clone(), Runtime::simulated(3, 0, 1 << 20));
            assert!(warehouse.create_table("demo", "t", &schema).await.unwrap());
            let lake: LakeTable = warehouse.table("demo", "t").await.unwrap().unwrap();
            let schema = Arc::new(schema);
            let (mut model, mut live, mut next) = (BTreeMap::new(), Vec::new(), 0_i64);
            for (number, batches) in rounds.iter().enumerate() {
                let round = RoundId(uuid::Uuid::from_u128(number as u128));
                let context = WriteContext::new(store.clone(), lake.root(), Arc::clone(&schema), round, Runtime::simulated(1, 0, 64 << 20), WriteOptions::default()).unwrap();
                let mut writer = BucketWriter::new(Arc::clone(&context), target(), next).unwrap();
                let mut told = Vec::new();
                for (at, changes) in batches.iter().enumerate() {
                    let (rows, kinds) = batch_of(&schema, changes);
                    writer.write(rows, Some(&kinds), next, context.runtime.budget.acquire(64).await).await.unwrap();
                    next += i64::try_from(changes.len()).unwrap();
                    for (number, kind, value) in changes {
                        told.push((key(*number), *kind));
                        match kind {
                            0 | 2 => { model.insert(key(*number), (value % 5 != 0).then_some(*value)); }
                            3 => { model.remove(&key(*number)); }
                            _ => {}
                        }
                    }
                    if at % 2 == 1 { writer.flush().await.unwrap(); }
                }
                let files = writer.finish().await.unwrap();
                assert_eq!(context.runtime.budget.used(), 0, "all memory is given back");
                for entry in files.data.iter().chain(&files.changelog) {
                    let bytes = store.get_existing(&format!("demo.db/t/bucket-1/{}", entry.file.file_name)).await.unwrap();
                    let rows = one_batch(bytes);
                    assert_eq!(rows.column_by_name("_KEY_id").is_none(), thin);
                    let kinds: &Int8Array = rows.column_by_name("_VALUE_KIND").unwrap().as_primitive();
                    let deletes = kinds.values().iter().filter(|kind| **kind % 2 == 1).count();
                    assert_eq!(entry.file.delete_row_count, Some(i64::try_from(deletes).unwrap()));
                    assert!(entry.file.row_count <= if small { 7 } else { i64::MAX });
                    assert_eq!((entry.kind, entry.file.key_stats.null_counts.clone()), (EntryKind::Add, Some(vec![Some(0); 2])));
                }
                let logged: i64 = files.changelog.iter().map(|entry| entry.file.row_count).sum();
                assert_eq!(logged, if log { i64::try_from(told.len()).unwrap() } else { 0 }, "the changelog has every row");
                live.extend(files.data);
            }
            let mut reader = lake.merge_files(live, None).await.unwrap();
            let mut merged = Vec::new();
            while let Some(batch) = reader.next_batch().await.unwrap() { merged.push(batch); }
            assert_eq!(rows_of(&merged), model.into_iter().collect::<Vec<_>>(), "each key once, in the order of the keys");
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_not_sorted_is_named_when_it_is_read() {
    let schema = keyed(&[]);
    let store = Store::in_memory();
    let warehouse = Warehouse::new(store.clone(), Runtime::simulated(3, 0, 1 << 20));
    assert!(warehouse.create_table("demo", "t", &schema).await.unwrap());
    let lake = warehouse.table("demo", "t").await.unwrap().unwrap();
    let context = context(&store, &Arc::new(schema.clone()), WriteOptions::default());
    let (rows, kinds) = batch_of(&schema, &[(1, 0, 1), (2, 0, 2)]);
    let mut one = write_all(&context, rows, &kinds, 0).await.data.remove(0);
    let (rows, kinds) = batch_of(&schema, &[(1, 0, 3)]);
    let mut other = write_all(&context, rows, &kinds, 2).await.data.remove(0);
    // Two files of one level that overlap: somebody's compaction went wrong.
    (one.file.level, other.file.level) = (5, 5);
    let mut reader = lake.merge_files(vec![one, other.clone()], None).await.unwrap();
    let error = loop {
        match reader.next_batch().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the overlap was not seen"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), Kind::Data);
    assert!(error.chain().contains("not sorted") && error.chain().contains("bucket-0/data-"), "{}", error.chain());
}

#[test]
fn rows_that_come_sorted_are_handed_on_without_a_copy() {
    let schema = keyed(&[]);
    let keys = Keys::new(&schema, &TableOptions::parse(&schema).unwrap()).unwrap();
    let context = context(&Store::in_memory(), &Arc::new(schema.clone()), WriteOptions::default());
    let batch = |ids: std::ops::Range<i32>| {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from_iter_values(ids.clone().map(|_| "north"))),
            Arc::new(Int32Array::from_iter_values(ids.clone())),
            Arc::new(Int64Array::from_iter_values(ids.clone().map(i64::from))),
            Arc::new(Int8Array::from_iter_values(ids.map(|_| 0))),
        ];
        RecordBatch::try_new(Arc::clone(&keys.with_kind), columns).unwrap()
    };
    let gathered = |batches: &[RecordBatch]| {
        let sorted = order::sort(&keys, batches, true).unwrap();
        super::super::keyed::gather(&keys, batches, &context.shape.arrow, 100, &sorted.entries).unwrap()
    };
    let values =
        |batch: &RecordBatch| batch.columns()[batch.num_columns() - 1].as_primitive::<Int64Type>().values().inner().as_ptr();
    // The later keys come first: two runs.
    let batches = [batch(1000..2000), batch(0..1000)];
    let found = gathered(&batches);
    let expected: Vec<_> = [&batches[1], &batches[0]]
        .iter()
        .map(|batch| batch.column(2).as_primitive::<Int64Type>().values().inner().as_ptr())
        .collect();
    assert_eq!(found.iter().map(values).collect::<Vec<_>>(), expected);
    let sequences = |batch: &RecordBatch| batch.columns()[2].as_primitive::<Int64Type>().values()[0];
    assert_eq!(found.iter().map(sequences).collect::<Vec<_>>(), [1100, 100]);
    // Rows that take turns are put together in one batch.
    let every = |first: i32| {
        let rows = batch(0..1000);
        let places = UInt32Array::from_iter_values((0..500).map(|row| row * 2 + u32::try_from(first).unwrap()));
        take_record_batch(&rows, &places).unwrap()
    };
    assert_eq!(gathered(&[every(0), every(1)]).len(), 1);
}
