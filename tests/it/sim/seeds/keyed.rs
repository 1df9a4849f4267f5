//! Primary-key tables on the stage: the puts, and the files that others write.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, Int64Type};
use arrow_array::{ArrayRef, Int8Array, Int64Array, RecordBatch, StringArray, new_null_array};
use lakeward::lake::LakeTable;
use lakeward::model::{Datum, LakeOffsets, TableBucket};
use lakeward::paimon::{BinaryRow, EntryKind, ManifestEntry, Snapshot, path};
use lakeward::runtime::Rng;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::super::service::entry;
use super::stage::{Stage, pick};
use crate::keys::{DELETE, INSERT, Keys, Row, UPDATE_BEFORE};

/// Every number that a table ever had, and whether it is of the state at `offsets`.
pub(crate) fn covered(keys: &BTreeMap<TableBucket, Keys>, offsets: &LakeOffsets) -> BTreeMap<i64, bool> {
    let mut covered = BTreeMap::new();
    for (bucket, keys) in keys {
        let state = keys.state_at(offsets.get(*bucket).unwrap_or(0));
        covered.extend(keys.numbers().map(|number| (number, state.contains(&number))));
    }
    covered
}

/// Some puts for a bucket, whose keys are its own.
pub(crate) fn some_puts(rng: &Rng, bucket: i32, first: i64) -> Vec<(i64, Option<i64>)> {
    let key = || i64::from(bucket) * 100 + i64::try_from(rng.below(5)).unwrap();
    (0..1 + i64::try_from(rng.below(4)).unwrap()).map(|at| (key(), (rng.below(3) != 0).then_some(first + at))).collect()
}

/// The last row of each key that is no −U, in key order: what a file may hold.
fn last_of_each(rows: impl IntoIterator<Item = Row>) -> Vec<Row> {
    let mut last: BTreeMap<i64, Row> = BTreeMap::new();
    for row in rows.into_iter().filter(|row| row.kind != UPDATE_BEFORE) {
        if last.get(&row.key).is_none_or(|before| before.sequence <= row.sequence) {
            last.insert(row.key, row);
        }
    }
    last.into_values().collect()
}

/// The rows of some live files of one bucket.
async fn read(stage: &Stage, lake: &LakeTable, files: &[ManifestEntry]) -> Option<Vec<Row>> {
    let mut rows = vec![];
    for file in files {
        let bytes = stage.store.get(&lake.object(&path::data_file(lake.schema(), file).ok()?)).await.ok()??;
        for batch in ParquetRecordBatchReaderBuilder::try_new(bytes).unwrap().build().unwrap() {
            let batch = batch.unwrap();
            let long = |name: &str| batch.column_by_name(name).unwrap().as_primitive::<Int64Type>().values().to_vec();
            let (keys, numbers, sequences) = (long("id"), long("number"), long("_SEQUENCE_NUMBER"));
            let kinds = batch.column_by_name("_VALUE_KIND").unwrap().as_primitive::<Int8Type>().values().to_vec();
            rows.extend((0..batch.num_rows()).map(|at| Row {
                sequence: sequences[at],
                kind: kinds[at],
                key: keys[at],
                number: numbers[at],
            }));
        }
    }
    Some(rows)
}

/// Where rows lie in the lake.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) partition: BinaryRow,
    pub(crate) bucket: i32,
    pub(crate) total: i32,
}

/// A file of `rows`, as Java writes it.
pub(crate) async fn file(
    stage: &Stage,
    rng: &Rng,
    lake: &LakeTable,
    place: Place,
    rows: Vec<Row>,
    level: i32,
) -> Option<ManifestEntry> {
    let rows = last_of_each(rows);
    let (first, last) = (rows.first()?, rows.last()?);
    let schema = lake.schema();
    let day = match place.partition.read(&schema.partition_types().unwrap()).unwrap().pop() {
        Some(Some(Datum::String(day))) => day,
        _ => "d".to_owned(),
    };
    let long = |of: fn(&Row) -> i64| Arc::new(rows.iter().map(of).collect::<Int64Array>()) as ArrayRef;
    let mut columns: Vec<(String, ArrayRef, bool)> = vec![
        ("_KEY_id".into(), long(|row| row.key), false),
        ("_SEQUENCE_NUMBER".into(), long(|row| row.sequence), false),
        ("_VALUE_KIND".into(), Arc::new(rows.iter().map(|row| row.kind).collect::<Int8Array>()), false),
    ];
    for field in &schema.fields {
        let column: ArrayRef = match field.name.as_str() {
            "id" => long(|row| row.key),
            "number" => long(|row| row.number),
            "day" => Arc::new(StringArray::from(vec![day.as_str(); rows.len()])),
            _ => new_null_array(&arrow_schema::DataType::Utf8, rows.len()),
        };
        columns.push((field.name.clone(), column, field.data_type.nullable));
    }
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let mut bytes = vec![];
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let types = schema.types_of(&schema.trimmed_primary_keys()).unwrap();
    let key = |row: &Row| BinaryRow::write(&[Some(Datum::BigInt(row.key))], &types).unwrap();
    let mut made = entry(place.partition, place.bucket, place.total, format!("data-{}-0.parquet", rng.uuid()), 0, rows.len());
    made.file.min_key = key(first);
    made.file.max_key = key(last);
    made.file.min_sequence_number = rows.iter().map(|row| row.sequence).min()?;
    made.file.max_sequence_number = rows.iter().map(|row| row.sequence).max()?;
    made.file.delete_row_count = Some(i64::try_from(rows.iter().filter(|row| row.kind % 2 == 1).count()).unwrap());
    made.file.level = level;
    made.file.file_size = i64::try_from(bytes.len()).unwrap();
    made.file.schema_id = schema.id;
    stage.store.put(&lake.object(&path::data_file(schema, &made).unwrap()), bytes.into()).await.unwrap();
    Some(made)
}

/// The greatest sequence number of a bucket; −1 = it has no file.
pub(crate) async fn greatest(lake: &LakeTable, newest: Option<&Snapshot>, place: &Place) -> i64 {
    let Some(newest) = newest else { return -1 };
    let live = lake.live_entries(newest, None).await.unwrap_or_default();
    let mine = live.iter().filter(|entry| entry.partition == place.partition && entry.bucket == place.bucket);
    mine.map(|entry| entry.file.max_sequence_number).max().unwrap_or(-1)
}

/// Some bucket that has files, and these.
async fn some_bucket(rng: &Rng, lake: &LakeTable, newest: &Snapshot, least: usize) -> Option<(Place, Vec<ManifestEntry>)> {
    let mut buckets: BTreeMap<(BinaryRow, i32), Vec<ManifestEntry>> = BTreeMap::new();
    for entry in lake.live_entries(newest, None).await.ok()? {
        buckets.entry((entry.partition.clone(), entry.bucket)).or_default().push(entry);
    }
    let buckets: Vec<_> = buckets.into_iter().filter(|(_, files)| files.len() >= least).collect();
    let ((partition, bucket), files) = buckets.get(pick(rng, buckets.len().max(1)))?.clone();
    Some((Place { partition, bucket, total: files[0].total_buckets }, files))
}

/// A full compaction of one bucket: deletes go, and with them maybe the greatest sequence number.
pub(crate) async fn compacted(stage: &Stage, rng: &Rng, lake: &LakeTable, newest: &Snapshot) -> Option<Vec<ManifestEntry>> {
    let (place, mut files) = some_bucket(rng, lake, newest, 2).await?;
    let rows = last_of_each(read(stage, lake, &files).await?);
    let merged = file(stage, rng, lake, place, rows.into_iter().filter(|row| row.kind != DELETE).collect(), 5).await;
    files.iter_mut().for_each(|entry| entry.kind = EntryKind::Delete);
    files.extend(merged);
    Some(files)
}

/// A user writes some rows of a bucket once more, as they are.
pub(crate) async fn written_again(stage: &Stage, rng: &Rng, lake: &LakeTable, newest: &Snapshot) -> Option<Vec<ManifestEntry>> {
    let (place, files) = some_bucket(rng, lake, newest, 1).await?;
    let rows = last_of_each(read(stage, lake, &files).await?);
    let first = greatest(lake, Some(newest), &place).await + 1;
    let again = rows.into_iter().filter(|row| row.kind != DELETE).zip(first..);
    let again = again.map(|(row, sequence)| Row { sequence, kind: INSERT, ..row }).collect();
    Some(file(stage, rng, lake, place, again, 0).await.into_iter().collect())
}
