use std::sync::Arc;

use arrow_array::builder::{Int64Builder, StringBuilder};
use arrow_array::types::TimestampNanosecondType;
use arrow_array::{
    Array, ArrayRef, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, PrimitiveArray, RecordBatch, StringArray,
    make_array,
};
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, Encoding};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::printer::print_schema;
use serde_json::{Value, json};

use super::schema::parquet_schema;
use super::*;
use crate::error::Kind;
use crate::model::{BucketId, DataType, Datum, Field, TableBucket, TableId, TypeKind};
use crate::paimon::{BinaryRow, lake_arrow_schema};
use crate::runtime::{Budget, Encoders, SetAside};
use crate::storage::{Fault, Faults};

mod any;
mod beside;
mod keyed;
mod keys;
mod merging;
mod torn;

const GOLDEN: &str = "fixtures/paimon/all_types";

fn field(id: i32, name: &str, data_type: DataType) -> Field {
    Field { id, name: name.into(), data_type, comment: None }
}

fn table(fields: Vec<Field>, options: &[(&str, &str)]) -> Arc<TableSchema> {
    Arc::new(TableSchema {
        id: 3,
        highest_field_id: i32::try_from(fields.len()).unwrap(),
        fields,
        partition_keys: vec![],
        primary_keys: vec![],
        options: options.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
        comment: None,
        time_ms: 0,
    })
}

fn context(store: &Store, schema: &Arc<TableSchema>, options: WriteOptions) -> Arc<WriteContext> {
    let mut runtime = Runtime::simulated(1, 1_000, 64 << 20);
    runtime.encoders = Encoders::threads(2).unwrap();
    WriteContext::new(store.clone(), "demo.db/t", Arc::clone(schema), RoundId(uuid::Uuid::from_u128(7)), runtime, options).unwrap()
}

fn target() -> BucketTarget {
    let source = TableBucket { table: TableId(5), partition: None, bucket: BucketId(1) };
    BucketTarget { source, partition: BinaryRow::empty(), bucket: 1, total_buckets: 4 }
}

fn read(bytes: Bytes) -> Vec<RecordBatch> {
    ParquetRecordBatchReaderBuilder::try_new(bytes).unwrap().build().unwrap().map(Result::unwrap).collect()
}

async fn written(store: &Store, entry: &ManifestEntry) -> Bytes {
    let bytes = store.get_existing(&format!("demo.db/t/bucket-{}/{}", entry.bucket, entry.file.file_name)).await.unwrap();
    assert_eq!(bytes.len(), usize::try_from(entry.file.file_size).unwrap());
    bytes
}

/// Same values, the lake's type: the reader gives INT96 no time zone, and nested fields other metadata.
fn as_type(array: &ArrayRef, target: &arrow_schema::DataType) -> ArrayRef {
    if target.is_nested() {
        return arrow_cast::cast(array, target).unwrap();
    }
    make_array(array.to_data().into_builder().data_type(target.clone()).build().unwrap())
}

/// The golden table of every type: its schema, and its rows in lake Arrow types.
fn golden() -> (Arc<TableSchema>, Bytes, RecordBatch) {
    let schema = TableSchema::from_json(&std::fs::read_to_string(format!("{GOLDEN}/schema/schema-0")).unwrap()).unwrap();
    let file = std::fs::read_dir(format!("{GOLDEN}/bucket-0")).unwrap().next().unwrap().unwrap().path();
    let bytes = Bytes::from(std::fs::read(file).unwrap());
    let rows = read(bytes.clone()).remove(0);
    let arrow = lake_arrow_schema(&schema).unwrap();
    let columns = arrow.fields().iter().map(|field| as_type(rows.column_by_name(field.name()).unwrap(), field.data_type()));
    let rows = RecordBatch::try_new(Arc::clone(&arrow), columns.collect()).unwrap();
    (Arc::new(schema), bytes, rows)
}

fn printed(schema: &parquet::schema::types::Type) -> String {
    let mut text = Vec::new();
    print_schema(&mut text, schema);
    String::from_utf8(text).unwrap()
}

#[test]
fn the_parquet_schema_is_java_s_for_every_type() {
    for name in ["all_types", "nested"] {
        let folder = format!("fixtures/paimon/{name}");
        let schema = TableSchema::from_json(&std::fs::read_to_string(format!("{folder}/schema/schema-0")).unwrap()).unwrap();
        let ours = printed(parquet_schema(&schema.fields).unwrap().root_schema());
        let file = std::fs::read_dir(format!("{folder}/bucket-0")).unwrap().next().unwrap().unwrap().path();
        let java = SerializedFileReader::new(Bytes::from(std::fs::read(file).unwrap())).unwrap();
        assert_eq!(ours, printed(java.metadata().file_metadata().schema()));
    }
}

fn rendered(value: &Option<Datum>, kind: &TypeKind) -> Value {
    let Some(value) = value else { return Value::Null };
    let moment = |millis: i64, nanos: i32, digits: u8| {
        let time = jiff::Timestamp::from_millisecond(millis).unwrap() + jiff::SignedDuration::from_nanos(i64::from(nanos));
        let text: String = jiff::tz::TimeZone::UTC.to_datetime(time).strftime("%Y-%m-%dT%H:%M:%S.%9f").to_string();
        let keep = if digits == 0 { 19 } else { 20 + usize::from(digits) };
        text.chars().take(keep).collect::<String>()
    };
    match (value, kind) {
        (Datum::Boolean(value), _) => json!(value),
        (Datum::TinyInt(value), _) => json!(value),
        (Datum::SmallInt(value), _) => json!(value),
        (Datum::Int(value), _) => json!(value),
        (Datum::BigInt(value), _) => json!(value),
        (Datum::Float(value), _) => json!(value),
        (Datum::Double(value), _) => json!(value),
        (Datum::String(value), _) => json!(value),
        (Datum::Decimal { unscaled, scale, .. }, _) => {
            let digits = format!("{:0width$}", unscaled.abs(), width = usize::from(*scale) + 1);
            let (whole, rest) = digits.split_at(digits.len() - usize::from(*scale));
            json!(format!("{}{whole}.{rest}", if *unscaled < 0 { "-" } else { "" }))
        }
        (Datum::Date(days), _) => json!(moment(i64::from(*days) * 86_400_000, 0, 0).split_once('T').unwrap().0),
        (Datum::Time(millis), _) => json!(moment(i64::from(*millis), 0, 3).split_once('T').unwrap().1),
        (Datum::Timestamp { millis, nanos }, TypeKind::TimestampLtz { precision }) => {
            json!(format!("{}Z", moment(*millis, *nanos, *precision)))
        }
        (Datum::Timestamp { millis, nanos }, TypeKind::Timestamp { precision }) => json!(moment(*millis, *nanos, *precision)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn java_s_rows_get_java_s_statistics_and_come_back_unchanged() {
    let (schema, _, rows) = golden();
    let store = Store::in_memory();
    let context = context(&store, &schema, WriteOptions::default());
    let mut writer = BucketWriter::new(Arc::clone(&context), target(), 10).unwrap();
    writer.write(rows.clone(), None, 0, context.runtime.budget.acquire(1 << 10).await).await.unwrap();
    let entries = writer.finish().await.unwrap().data;
    let [entry] = entries.as_slice() else { panic!("{entries:?}") };

    let dump = std::fs::read_to_string(format!("{GOLDEN}.dump.jsonl")).unwrap();
    let java: Value =
        dump.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).find(|line| line["type"] == "file").unwrap();
    let kept = || schema.fields.iter().filter(|field| !field.data_type.kind.is_nested());
    let types: Vec<DataType> = kept().map(|field| field.data_type.clone()).collect();
    let file = &entry.file;
    for (ours, bound) in [(&file.value_stats.min_values, "min"), (&file.value_stats.max_values, "max")] {
        for (value, field) in ours.read(&types).unwrap().iter().zip(kept()) {
            let java = &java["valueStats"][bound][&field.name];
            assert_eq!(&rendered(value, &field.data_type.kind), java, "{bound} of `{}`", field.name);
        }
    }
    assert_eq!(json!(file.value_stats.null_counts), java["valueStats"]["nullCounts"]);
    assert_eq!(json!(file.value_stats_cols), java["valueStatsCols"], "all but the nested columns");
    assert_eq!((file.row_count, file.min_sequence_number, file.max_sequence_number), (3, 10, 12));
    assert_eq!((file.schema_id, file.level, file.delete_row_count, file.file_source), (0, 0, Some(0), Some(0)));
    assert_eq!(file.creation_time_ms, Some(1_000));
    assert_eq!((entry.bucket, entry.total_buckets), (1, 4));

    let back = read(written(&store, entry).await).remove(0);
    for (ours, field) in rows.columns().iter().zip(&schema.fields) {
        let back = back.column_by_name(&field.name).unwrap();
        let back = as_type(back, ours.data_type());
        assert_eq!(&back, ours, "{}", field.name);
    }
}

/// `id BIGINT NOT NULL, code INT, price DECIMAL(12, 2), ratio DOUBLE, day DATE, region STRING, note STRING, at TIMESTAMP(9)`.
fn orders(options: &[(&str, &str)]) -> Arc<TableSchema> {
    let nullable = DataType::nullable;
    table(
        vec![
            field(0, "id", DataType::required(TypeKind::BigInt)),
            field(1, "code", nullable(TypeKind::Int)),
            field(2, "price", nullable(TypeKind::Decimal { precision: 12, scale: 2 })),
            field(3, "ratio", nullable(TypeKind::Double)),
            field(4, "day", nullable(TypeKind::Date)),
            field(5, "region", nullable(TypeKind::String)),
            field(6, "note", nullable(TypeKind::String)),
            field(7, "at", nullable(TypeKind::Timestamp { precision: 9 })),
        ],
        options,
    )
}

/// Rows `from..to` of a made-up table, every seventh with NULLs.
fn order_rows(schema: &TableSchema, from: i64, to: i64) -> RecordBatch {
    let ids = from..to;
    let some = |id: i64| id % 7 != 0;
    let mix = |id: i64| id.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64.cast_signed()) >> 20;
    let columns: Vec<ArrayRef> = vec![
        Arc::new(ids.clone().collect::<Int64Array>()),
        Arc::new(ids.clone().map(|id| some(id).then_some(i32::try_from(id % 1000).unwrap() - 500)).collect::<Int32Array>()),
        Arc::new(
            ids.clone()
                .map(|id| some(id).then(|| i128::from(mix(id) % 1_000_000)))
                .collect::<Decimal128Array>()
                .with_precision_and_scale(12, 2)
                .unwrap(),
        ),
        #[expect(clippy::cast_precision_loss, reason = "any value does")]
        Arc::new(ids.clone().map(|id| some(id).then(|| mix(id) as f64)).collect::<Float64Array>()),
        Arc::new(ids.clone().map(|id| some(id).then(|| i32::try_from(id / 100).unwrap())).collect::<Date32Array>()),
        Arc::new(ids.clone().map(|id| some(id).then(|| format!("region-{}", id % 16))).collect::<StringArray>()),
        Arc::new(ids.clone().map(|id| some(id).then(|| format!("note {:x} {id}", mix(id)))).collect::<StringArray>()),
        Arc::new(ids.map(|id| some(id).then(|| mix(id))).collect::<PrimitiveArray<TimestampNanosecondType>>()),
    ];
    RecordBatch::try_new(lake_arrow_schema(schema).unwrap(), columns).unwrap()
}

async fn write_orders(context: &Arc<WriteContext>, schema: &TableSchema, rows: i64, batch: i64) -> BucketWriter {
    let mut writer = BucketWriter::new(Arc::clone(context), target(), 100).unwrap();
    let mut from = 0;
    while from < rows {
        let to = rows.min(from + batch);
        let permit = context.runtime.budget.acquire(64 << 10).await;
        writer.write(order_rows(schema, from, to), None, from, permit).await.unwrap();
        from = to;
    }
    writer
}

#[tokio::test]
async fn files_hold_only_what_java_reads_right() {
    let schema = orders(&[]);
    let store = Store::in_memory();
    let context = context(&store, &schema, WriteOptions::default());
    let entries = write_orders(&context, &schema, 60_000, 9_999).await.finish().await.unwrap().data;
    let reader = SerializedFileReader::new(written(&store, &entries[0]).await).unwrap();
    let file = reader.metadata().file_metadata();
    assert_eq!((file.version(), file.key_value_metadata()), (1, None), "no arrow schema");
    let group = reader.metadata().row_group(0);
    for column in group.columns() {
        let encodings: Vec<Encoding> = column.encodings().collect();
        assert!(
            encodings.iter().all(|encoding| matches!(
                encoding,
                Encoding::PLAIN | Encoding::RLE | Encoding::RLE_DICTIONARY | Encoding::DELTA_BINARY_PACKED
            )),
            "{encodings:?}"
        );
        assert!(matches!(column.compression(), Compression::ZSTD(level) if level.compression_level() == 1));
    }
    let of = |name: &str| group.columns().iter().find(|column| column.column_path().string() == name).unwrap();
    let has = |name: &str, wanted| of(name).encodings().any(|encoding| encoding == wanted);
    for name in ["id", "code", "price", "day"] {
        assert!(has(name, Encoding::DELTA_BINARY_PACKED), "{name}");
    }
    assert!(has("region", Encoding::RLE_DICTIONARY));
    assert!(!has("note", Encoding::RLE_DICTIONARY) && !has("ratio", Encoding::RLE_DICTIONARY));
    assert!(of("at").statistics().is_none());
    assert!(of("note").statistics().is_some());
}

#[tokio::test]
async fn the_first_rows_of_a_file_decide_about_a_dictionary_for_all_of_it() {
    const ROWS: u64 = 5_000;
    type Text = fn(u64) -> String;
    let schema = table(vec![field(0, "note", DataType::nullable(TypeKind::String))], &[]);
    let repeated = |row: u64| format!("one of four notes, the {}", row % 4);
    let unique = |row: u64| format!("{:016x}", row.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let texts: [(Text, Text, bool); 2] = [(repeated, unique, true), (unique, repeated, false)];
    for (first, second, dictionary) in texts {
        let store = Store::in_memory();
        let options = WriteOptions { row_group_rows: usize::try_from(ROWS).unwrap(), ..WriteOptions::default() };
        let context = context(&store, &schema, options);
        let mut writer = BucketWriter::new(Arc::clone(&context), target(), 0).unwrap();
        for texts in [first, second] {
            let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..ROWS).map(texts)));
            let rows = RecordBatch::try_new(lake_arrow_schema(&schema).unwrap(), vec![texts]).unwrap();
            writer.write(rows, None, 0, context.runtime.budget.acquire(1).await).await.unwrap();
        }
        let entries = writer.finish().await.unwrap().data;
        let reader = SerializedFileReader::new(written(&store, &entries[0]).await).unwrap();
        let groups = reader.metadata().row_groups();
        assert_eq!((entries.len(), groups.len()), (1, 2));
        for group in groups {
            let encodings: Vec<Encoding> = group.column(0).encodings().collect();
            assert_eq!(encodings.contains(&Encoding::RLE_DICTIONARY), dictionary, "{encodings:?}");
        }
    }
}

#[tokio::test]
async fn a_column_with_nan_has_no_bounds_in_manifest_or_file() {
    let double = DataType::nullable(TypeKind::Double);
    for (mode, values) in [("truncate(16)", [1.0, f64::NAN, 3.0]), ("none", [1.0, f64::NAN, 3.0]), ("full", [1.0, 2.0, 3.0])] {
        let schema = table(vec![field(0, "x", double.clone())], &[("metadata.stats-mode", mode)]);
        let store = Store::in_memory();
        let context = context(&store, &schema, WriteOptions::default());
        let rows: ArrayRef = Arc::new(Float64Array::from(values.to_vec()));
        let rows = RecordBatch::try_new(lake_arrow_schema(&schema).unwrap(), vec![rows]).unwrap();
        let mut writer = BucketWriter::new(Arc::clone(&context), target(), 0).unwrap();
        writer.write(rows, None, 0, context.runtime.budget.acquire(1).await).await.unwrap();
        let entries = writer.finish().await.unwrap().data;
        let reader = SerializedFileReader::new(written(&store, &entries[0]).await).unwrap();
        let in_file = reader.metadata().row_group(0).column(0).statistics().is_some();
        assert_eq!(in_file, mode == "full", "{mode}");
        if mode != "none" {
            let max = entries[0].file.value_stats.max_values.read(std::slice::from_ref(&double)).unwrap().remove(0);
            assert_eq!(max, (mode == "full").then_some(Datum::Double(3.0)));
        }
    }
}

#[tokio::test]
async fn small_files_do_without_zstd_unless_it_was_asked_for() {
    for (options, rows, zstd) in [
        (&[][..], 400, false),
        (&[], 10_000, true),
        (&[("file.compression", "zstd")], 400, true),
        (&[("file.compression", "snappy")], 10_000, false),
    ] {
        let schema = orders(options);
        let store = Store::in_memory();
        let context = context(&store, &schema, WriteOptions::default());
        let entries = write_orders(&context, &schema, rows, 1_000).await.finish().await.unwrap().data;
        let reader = SerializedFileReader::new(written(&store, &entries[0]).await).unwrap();
        let codec = reader.metadata().row_group(0).column(0).compression();
        assert_eq!(matches!(codec, Compression::ZSTD(_)), zstd, "{options:?} {rows}");
    }
}

#[tokio::test]
async fn files_roll_at_the_target_size_and_their_sequences_go_on() {
    let schema = orders(&[("target-file-size", "300 kb")]);
    let store = Store::in_memory();
    let options = WriteOptions { row_group_bytes: 256 << 10, part_bytes: 100 << 10, ..WriteOptions::default() };
    let context = context(&store, &schema, options);
    let entries = write_orders(&context, &schema, 60_000, 1_234).await.finish().await.unwrap().data;
    assert!(entries.len() > 3, "{}", entries.len());
    let (mut next, mut seen) = (100, Vec::new());
    for entry in &entries {
        let file = &entry.file;
        assert_eq!(file.min_sequence_number, next);
        assert_eq!(file.max_sequence_number, next + file.row_count - 1);
        next += file.row_count;
        assert!(file.file_size < 400 << 10, "{}", file.file_size);
        let bytes = written(&store, entry).await;
        for batch in read(bytes) {
            seen.extend(batch.column(0).to_data().buffers()[0].typed_data::<i64>()[..batch.num_rows()].to_vec());
        }
    }
    assert_eq!(seen, (0..60_000).collect::<Vec<i64>>());
    assert!(entries[..entries.len() - 1].iter().all(|entry| entry.file.file_size > 200 << 10));
}

#[tokio::test]
async fn files_are_cut_at_the_row_limit_of_the_table() {
    let schema = orders(&[("target-file-row-num", "2500")]);
    let store = Store::in_memory();
    let context = context(&store, &schema, WriteOptions::default());
    let entries = write_orders(&context, &schema, 10_100, 999).await.finish().await.unwrap().data;
    let rows: Vec<i64> = entries.iter().map(|entry| entry.file.row_count).collect();
    assert_eq!(rows, [2_500, 2_500, 2_500, 2_500, 100]);
}

#[tokio::test]
async fn row_groups_encoded_side_by_side_are_the_same_file_as_one_after_the_other() {
    let schema = orders(&[]);
    let mut files = Vec::new();
    for threads in [1, 2, 5] {
        let store = Store::in_memory();
        let mut runtime = Runtime::simulated(1, 1_000, 64 << 20);
        runtime.encoders = if threads == 1 { Encoders::inline() } else { Encoders::threads(threads).unwrap() };
        let round = RoundId(uuid::Uuid::from_u128(7));
        let options = WriteOptions { row_group_bytes: 6 << 20, ..WriteOptions::default() };
        let context = WriteContext::new(store.clone(), "demo.db/t", Arc::clone(&schema), round, runtime, options).unwrap();
        let mut entries = write_orders(&context, &schema, 100_000, 10_000).await.finish().await.unwrap().data;
        entries[0].file.creation_time_ms = None;
        files.push((written(&store, &entries[0]).await, entries));
    }
    assert!(files.windows(2).all(|pair| pair[0] == pair[1]));
}

#[tokio::test]
async fn nothing_written_makes_no_file() {
    let schema = orders(&[]);
    let store = Store::in_memory();
    let context = context(&store, &schema, WriteOptions::default());
    let mut writer = BucketWriter::new(Arc::clone(&context), target(), 0).unwrap();
    writer.write(order_rows(&schema, 5, 5), None, 5, context.runtime.budget.acquire(1).await).await.unwrap();
    assert_eq!(writer.finish().await.unwrap().data, []);
    assert_eq!(store.list("").await.unwrap(), []);
}

#[tokio::test]
async fn a_null_in_a_not_null_column_is_refused_with_its_place() {
    let schema = table(
        vec![field(0, "id", DataType::required(TypeKind::BigInt)), field(1, "name", DataType::nullable(TypeKind::String))],
        &[],
    );
    let store = Store::in_memory();
    let context = context(&store, &schema, WriteOptions::default());
    let mut writer = BucketWriter::new(Arc::clone(&context), target(), 0).unwrap();
    let (mut ids, mut names) = (Int64Builder::new(), StringBuilder::new());
    for id in [Some(1), Some(2), None] {
        ids.append_option(id);
        names.append_option(None::<&str>);
    }
    let arrow = lake_arrow_schema(&table(
        schema.fields.iter().map(|f| Field { data_type: DataType::nullable(f.data_type.kind.clone()), ..f.clone() }).collect(),
        &[],
    ))
    .unwrap();
    let rows = RecordBatch::try_new(arrow, vec![Arc::new(ids.finish()), Arc::new(names.finish())]).unwrap();
    let error = writer.write(rows, None, 40, context.runtime.budget.acquire(1).await).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Data);
    assert_eq!(error.to_string(), "NULL in column `id`, which is NOT NULL, at offset `42` of table 5 bucket 1");
}

#[tokio::test]
async fn memory_is_given_back_when_rows_are_encoded() {
    let schema = orders(&[]);
    let store = Store::in_memory();
    let context = context(&store, &schema, WriteOptions::default());
    let mut writer = write_orders(&context, &schema, 5_000, 1_000).await;
    assert_eq!(context.runtime.budget.used(), 5 * (64 << 10));
    assert!(writer.buffered_bytes() > 5_000 * 40);
    writer.flush().await.unwrap();
    // What they have become is still in memory, and covered.
    let held = writer.held_bytes();
    assert!(writer.buffered_bytes() == 0 && held > 0);
    assert_eq!(context.runtime.budget.used(), held.next_multiple_of(1024));
    writer.relieve().await.unwrap();
    assert_eq!((context.runtime.budget.used(), writer.held_bytes()), (0, 0));
    assert_eq!(writer.finish().await.unwrap().data[0].file.row_count, 5_000);
}

#[tokio::test]
async fn sorting_and_encoding_wait_for_what_is_set_aside_for_them_and_give_it_back() {
    let pools: [fn(&SetAside) -> &Budget; 3] = [|aside| &aside.encodes, |aside| &aside.sorts, |aside| &aside.uploads];
    for (keyed, pool) in [(false, pools[0]), (true, pools[0]), (true, pools[1]), (true, pools[2])] {
        let mut schema = (*orders(if keyed { &[("bucket", "1")] } else { &[] })).clone();
        if keyed {
            schema.primary_keys.push("id".into());
        }
        let (schema, round) = (Arc::new(schema), RoundId(uuid::Uuid::from_u128(7)));
        let runtime = Runtime::simulated(1, 1_000, 64 << 20);
        let (budget, aside) = (runtime.budget.clone(), Arc::clone(&runtime.aside));
        let context = WriteContext::new(Store::in_memory(), "t", Arc::clone(&schema), round, runtime, WriteOptions::default());
        let writer = write_orders(&context.unwrap(), &schema, 5_000, 1_000).await;
        let all = pool(&aside).acquire(usize::MAX).await;
        let mut finish = Box::pin(writer.finish());
        tokio::select! {
            biased;
            _ = &mut finish => panic!("it did not wait"),
            () = std::future::ready(()) => {}
        }
        drop(all);
        assert_eq!(finish.await.unwrap().data[0].file.row_count, 5_000);
        assert_eq!((aside.used(), budget.used()), (0, 0));
    }
}

#[tokio::test]
async fn rows_that_come_one_by_one_take_the_memory_of_rows_not_of_batches() {
    let schema = orders(&[]);
    let store = Store::in_memory();
    let context = context(&store, &schema, WriteOptions::default());
    let writer = write_orders(&context, &schema, 640, 1).await;
    assert!(writer.buffered_bytes() < 640 * 200, "{}", writer.buffered_bytes());
    assert!(context.runtime.budget.used() < 640 * 200, "{}", context.runtime.budget.used());
    let entries = writer.finish().await.unwrap().data;
    let back = read(written(&store, &entries[0]).await);
    assert_eq!(back[0].columns(), order_rows(&schema, 0, 640).columns());
}

#[tokio::test]
async fn abort_and_discard_leave_nothing_behind() {
    let schema = orders(&[("target-file-size", "300 kb")]);
    let store = Store::in_memory();
    let options = WriteOptions { row_group_bytes: 256 << 10, part_bytes: 100 << 10, ..WriteOptions::default() };
    let context = context(&store, &schema, options);
    write_orders(&context, &schema, 30_000, 1_000).await.abort().await.unwrap();
    assert_eq!(store.list("").await.unwrap(), []);
    let entries = write_orders(&context, &schema, 30_000, 1_000).await.finish().await.unwrap().data;
    assert_eq!(store.list("").await.unwrap().len(), entries.len());
    context.discard(&entries).await.unwrap();
    assert_eq!(store.list("").await.unwrap(), []);
}

#[tokio::test]
async fn a_finish_that_fails_takes_its_files_away_even_those_of_unknown_outcome() {
    let schema = orders(&[("target-file-row-num", "1000")]);
    for fault in [Fault::Before, Fault::After] {
        let store = Store::in_memory();
        let mut puts = 0;
        let faulty = store.with_faults(Faults::scripted(move |act, _| {
            puts += u32::from(act == "put");
            (act == "put" && puts == 3).then(|| fault.clone())
        }));
        let context = context(&faulty, &schema, WriteOptions::default());
        let mut writer = write_orders(&context, &schema, 900, 900).await;
        let rows = order_rows(&schema, 900, 2_900);
        let permit = context.runtime.budget.acquire(1).await;
        let error = match writer.write(rows, None, 900, permit).await {
            Ok(()) => writer.finish().await.unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(error.kind(), Kind::Unavailable);
        assert_eq!(store.list("").await.unwrap(), []);
    }
}

#[tokio::test]
async fn what_can_t_be_written_is_refused_by_name() {
    let store = Store::in_memory();
    let refusal = |schema: TableSchema| {
        let runtime = Runtime::simulated(1, 0, 1 << 20);
        let round = RoundId(uuid::Uuid::from_u128(7));
        WriteContext::new(store.clone(), "t", Arc::new(schema), round, runtime, WriteOptions::default()).unwrap_err()
    };
    let mut keyed = (*orders(&[("bucket", "1"), ("merge-engine", "partial-update")])).clone();
    keyed.primary_keys.push("id".into());
    let one = |kind| (*table(vec![field(0, "a", DataType::nullable(kind))], &[])).clone();
    let precise = DataType::nullable(TypeKind::TimestampLtz { precision: 7 });
    let gzip = orders(&[("file.compression", "gzip")]);
    for (schema, words) in [
        (keyed, &["`merge-engine`", "`partial-update`"][..]),
        (one(TypeKind::Row(vec![])), &["`a`", "ROW without fields"]),
        (one(TypeKind::Multiset(Box::new(DataType::nullable(TypeKind::Int)))), &["`a`", "MULTISET"]),
        (one(TypeKind::Array(Box::new(precise))), &["`a`", "TIMESTAMP(7)"]),
        ((*gzip).clone(), &["`gzip`"]),
    ] {
        let error = refusal(schema);
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(words.iter().all(|word| error.chain().contains(word)), "{}", error.chain());
    }
}

#[tokio::test]
async fn a_decimal_of_too_many_digits_is_refused_inside_nested_types_too() {
    let decimal = DataType::nullable(TypeKind::Decimal { precision: 5, scale: 2 });
    let schema = table(vec![field(0, "a", DataType::nullable(TypeKind::Array(Box::new(decimal))))], &[]);
    let arrow = lake_arrow_schema(&schema).unwrap();
    let arrow_schema::DataType::List(element) = arrow.field(0).data_type() else { panic!() };
    for (value, fits) in [(99_999, true), (100_000, false)] {
        let store = Store::in_memory();
        let context = context(&store, &schema, WriteOptions::default());
        let values = Decimal128Array::from(vec![1, value]).with_precision_and_scale(5, 2).unwrap();
        let offsets = arrow_buffer::OffsetBuffer::from_lengths([2]);
        let lists = arrow_array::ListArray::try_new(Arc::clone(element), offsets, Arc::new(values), None).unwrap();
        let mut writer = BucketWriter::new(Arc::clone(&context), target(), 0).unwrap();
        let rows = RecordBatch::try_new(Arc::clone(&arrow), vec![Arc::new(lists)]).unwrap();
        writer.write(rows, None, 0, context.runtime.budget.acquire(64).await).await.unwrap();
        let outcome = writer.finish().await.map(|files| files.data);
        assert_eq!(outcome.as_ref().map(Vec::len).map_err(|error| error.kind()), if fits { Ok(1) } else { Err(Kind::Data) });
        if let Err(error) = outcome {
            assert!(error.chain().contains("column `a`") && error.chain().contains("`100000`"), "{}", error.chain());
        }
    }
}

#[tokio::test]
async fn wide_decimals_have_no_dictionary_for_java_s_filters_find_nothing_there() {
    let decimal = |precision| DataType::nullable(TypeKind::Decimal { precision, scale: 2 });
    let schema = table(vec![field(0, "wide", decimal(20)), field(1, "s", DataType::nullable(TypeKind::String))], &[]);
    let store = Store::in_memory();
    let context = context(&store, &schema, WriteOptions::default());
    let wide = (0..1000).map(|row| Some(row % 3)).collect::<Decimal128Array>().with_precision_and_scale(20, 2).unwrap();
    let text: StringArray = (0..1000).map(|row| Some(if row % 3 == 0 { "one" } else { "other" })).collect();
    let rows = RecordBatch::try_new(lake_arrow_schema(&schema).unwrap(), vec![Arc::new(wide), Arc::new(text)]).unwrap();
    let mut writer = BucketWriter::new(Arc::clone(&context), target(), 0).unwrap();
    writer.write(rows, None, 0, context.runtime.budget.acquire(64).await).await.unwrap();
    let entry = writer.finish().await.unwrap().data.remove(0);
    let reader = SerializedFileReader::new(written(&store, &entry).await).unwrap();
    let group = reader.metadata().row_group(0);
    let has_dictionary = |column: usize| group.column(column).dictionary_page_offset().is_some();
    assert!(!has_dictionary(0) && has_dictionary(1));
}
