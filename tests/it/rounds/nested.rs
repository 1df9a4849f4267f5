//! Nested columns through the whole path, held against what Java wrote of the same rows (fixtures/README.md).

use arrow_array::{Array, Int32Array, UInt32Array};
use arrow_select::take::take_record_batch;
use lakeward::error::Kind;
use lakeward::fluss::record::{BatchSchema, LogFormat, batches};
use lakeward::fluss::table_json::schema_from_json;
use lakeward::model::{BucketId, TableBucket, TableId};
use lakeward::paimon::TableSchema;
use parquet::basic::Encoding;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::printer::print_schema;

use super::*;

fn fixture(path: &str) -> Vec<u8> {
    std::fs::read(format!("{}/fixtures/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// The table, and its five rows as Java's client sent them.
fn golden(bucket_keys: &[&str], buckets: i32) -> (TableDescriptor, RecordBatch) {
    let all: serde_json::Value = serde_json::from_slice(&fixture("vectors/fluss-nested.json")).unwrap();
    let schema = schema_from_json(all["schema"].to_string().as_bytes(), SchemaId(1)).unwrap();
    let bucket = TableBucket { table: TableId(1), partition: None, bucket: BucketId(0) };
    let raw = batches(fixture("vectors/log-arrow-v0-nested-deep.bin").into()).next().unwrap().unwrap();
    let decoded = raw.decode(LogFormat::Arrow, &BatchSchema::new(Arc::new(schema.clone())).unwrap(), bucket).unwrap().unwrap();
    (TableDescriptor { schema, ..descriptor(vec![field("id", TypeKind::Int, false)], &[], bucket_keys, buckets) }, decoded.rows)
}

/// The file that Java Paimon wrote of them.
fn java_file() -> bytes::Bytes {
    let folder = format!("{}/fixtures/paimon/nested/bucket-0", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path()).unwrap().into()
}

fn java_rows() -> RecordBatch {
    ParquetRecordBatchReaderBuilder::try_new(java_file()).unwrap().build().unwrap().next().unwrap().unwrap()
}

fn printed(file: &SerializedFileReader<bytes::Bytes>) -> String {
    let mut text = Vec::new();
    print_schema(&mut text, file.metadata().file_metadata().schema());
    String::from_utf8(text).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_s_nested_rows_become_the_lake_table_that_java_makes_of_them() {
    let stage = Stage::new().await;
    let (table, rows) = golden(&[], 1);
    let path = stage.table("nested", &table).await;
    let mut writer = Writer::open(&stage.cluster, &path, WriterOptions::default()).await.unwrap();
    writer.append(&rows).await.map_err(|error| error.chain()).unwrap();
    assert_eq!(stage.tier().await, [Some(1)]);

    let schema = TableSchema::from_json(std::str::from_utf8(&fixture("paimon/nested/schema/schema-0")).unwrap()).unwrap();
    let lake = stage.lake(&path).await;
    assert_eq!((&lake.schema().fields, lake.schema().highest_field_id), (&schema.fields, schema.highest_field_id));
    let files = stage.files(&path).await;
    let [file] = files.as_slice() else { panic!("{} files", files.len()) };
    assert_eq!(file.rows, java_rows());
    assert_eq!(file.entry.file.value_stats_cols, Some(vec!["id".to_owned()]));

    let bytes: bytes::Bytes = std::fs::read(&file.place).unwrap().into();
    let (ours, java) = (SerializedFileReader::new(bytes).unwrap(), SerializedFileReader::new(java_file()).unwrap());
    assert_eq!(printed(&ours), printed(&java));
    for leaf in ours.metadata().row_group(0).columns() {
        let readable = |encoding| {
            matches!(encoding, Encoding::PLAIN | Encoding::RLE | Encoding::RLE_DICTIONARY | Encoding::DELTA_BINARY_PACKED)
        };
        assert!(leaf.encodings().all(readable), "{leaf:?}");
        assert_eq!(leaf.statistics().is_some(), leaf.column_path().parts().len() == 1, "{}", leaf.column_path());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_nested_rows_come_back_by_key_however_batches_and_row_groups_cut_them() {
    let stage = Stage::new().await;
    let (table, five) = golden(&["id"], 3);
    let path = stage.table("nested", &table).await;
    let count = 6_000_u32;
    let which = UInt32Array::from_iter_values((0..count).map(|id| id * 7 % 5));
    let mut rows = take_record_batch(&five, &which).unwrap();
    let ids = Arc::new(Int32Array::from_iter_values(0..i32::try_from(count).unwrap()));
    rows = RecordBatch::try_new(rows.schema(), [&[ids as ArrayRef][..], &rows.columns()[1..]].concat()).unwrap();
    let mut writer = Writer::open(&stage.cluster, &path, WriterOptions::default()).await.unwrap();
    for at in (0..rows.num_rows()).step_by(1_250) {
        writer.append(&rows.slice(at, 1_250.min(rows.num_rows() - at))).await.map_err(|error| error.chain()).unwrap();
    }
    let mut rounds = stage.rounds();
    rounds.options.write.row_group_rows = 700;
    let (report, done) = run_once(&stage.service(rounds), Duration::ZERO).await;
    assert_no_faults(&report);
    assert_eq!(done.iter().map(snapshot_of).collect::<Vec<_>>(), [Some(1)]);

    let (java, files) = (java_rows(), stage.files(&path).await);
    let mut seen = BTreeSet::new();
    for file in &files {
        let ids = file.rows.column(0).as_primitive::<arrow_array::types::Int32Type>();
        for (row, id) in ids.values().iter().enumerate() {
            assert!(seen.insert(*id), "row {id} twice");
            let wanted = usize::try_from(*id * 7 % 5).unwrap();
            for (found, wanted_column) in file.rows.columns().iter().zip(java.columns()).skip(1) {
                assert_eq!(&found.slice(row, 1), &wanted_column.slice(wanted, 1), "row {id}");
            }
        }
    }
    assert_eq!((seen.len(), files.len()), (count as usize, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_precise_timestamp_inside_a_nested_type_is_refused_by_name_when_the_round_is_planned() {
    let stage = Stage::new().await;
    let inner = |kind| Box::new(DataType::nullable(kind));
    let at = Field { id: 2, ..field("at", TypeKind::Timestamp { precision: 9 }, true) };
    let kind = TypeKind::Map(inner(TypeKind::String), inner(TypeKind::Row(vec![at])));
    let mut table = descriptor(vec![field("id", TypeKind::BigInt, false), field("seen", kind, true)], &[], &[], 1);
    table.schema.highest_field_id = 2;
    let path = stage.table("precise", &table).await;
    let (report, done) = stage.run_once().await;
    let [(found, error)] = report.faults.as_slice() else { panic!("{:?}", report.faults) };
    assert_eq!((found.to_string(), error.kind(), done.len()), (path.to_string(), Kind::Unsupported, 0));
    let text = error.chain();
    assert!(text.contains("column `seen` has TIMESTAMP(9)") && text.contains("`seen.value.at`"), "{text}");
}
