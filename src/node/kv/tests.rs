use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{Array, ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::fluss::bucket::{KeyRules, KeyWriter};
use crate::fluss::record::{BatchSchema, KvBatch, KvBatchBuilder, KvFormat, LogFormat, RowEncoder, Value, batches, decode_rows};
use crate::model::{BucketId, ChangeKind, DataType, Field, Schema, SchemaId, TableInfo, TypeKind};
use crate::node::log::{BucketLog, LogOptions};
use crate::node::registry::Table;
use crate::runtime::FailAction;

const ID: TableBucket = TableBucket { table: TableId(1), partition: None, bucket: BucketId(0) };

/// A row: key, text, and number, which the first schema does not have.
type Row = (i32, Option<String>, Option<i64>);

/// One record of a batch.
#[derive(Debug, Clone)]
pub(in crate::node) enum Op {
    /// Key and text.
    Upsert(i32, Option<String>),
    /// Key.
    Delete(i32),
}

pub(in crate::node) fn upsert(key: i32, text: &str) -> Op {
    Op::Upsert(key, Some(text.to_owned()))
}

/// Columns `k` INT, the key, `v` STRING, and in the second schema `n` BIGINT.
fn schema(id: i32) -> Schema {
    let field =
        |id, name: &str, kind, nullable| Field { id, name: name.into(), data_type: DataType { kind, nullable }, comment: None };
    let mut fields = vec![field(0, "k", TypeKind::Int, false), field(1, "v", TypeKind::String, true)];
    if id > 1 {
        fields.push(field(2, "n", TypeKind::BigInt, true));
    }
    let highest_field_id = i32::try_from(fields.len()).unwrap() - 1;
    Schema { id: SchemaId(id), fields, primary_key: vec!["k".into()], highest_field_id }
}

fn table(schemas: i32, options: &[(&str, &str)]) -> Arc<Table> {
    let mut info = TableInfo::for_tests("t", 1);
    let all: BTreeMap<_, _> = (1..=schemas).map(|id| (SchemaId(id), Arc::new(schema(id)))).collect();
    info.schema = Arc::clone(&all[&SchemaId(schemas)]);
    info.bucket_keys = vec!["k".into()];
    info.properties = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    info.properties.insert("table.datalake.format".into(), "paimon".into());
    info.properties.insert("table.kv.format-version".into(), "2".into());
    Arc::new(Table { info, schemas: all, partitions: BTreeMap::new(), partitions_by_id: BTreeMap::new() })
}

/// A KV batch of the official form for a table of `info`, rows of its newest schema; `n` is the key times ten.
pub(in crate::node) fn kv_batch(info: &TableInfo, writer: i64, sequence: i32, ops: &[Op]) -> Bytes {
    let upserts: Vec<(i32, Option<&str>)> = ops
        .iter()
        .map(|op| match op {
            Op::Upsert(key, text) => (*key, text.as_deref()),
            Op::Delete(key) => (*key, None),
        })
        .collect();
    let keys: ArrayRef = Arc::new(upserts.iter().map(|(key, _)| *key).collect::<Int32Array>());
    let texts: ArrayRef = Arc::new(upserts.iter().map(|(_, text)| *text).collect::<StringArray>());
    let numbers: ArrayRef = Arc::new(upserts.iter().map(|(key, _)| i64::from(*key) * 10).collect::<Int64Array>());
    let schema = BatchSchema::new(Arc::clone(&info.schema)).unwrap();
    let columns = [Arc::clone(&keys), texts, numbers].into_iter().take(schema.schema.fields.len()).collect();
    let rows = RecordBatch::try_new(Arc::clone(&schema.arrow), columns).unwrap();
    let encoder = RowEncoder::new(KvFormat::of(info).unwrap(), &schema.schema, &rows).unwrap();
    let rules = KeyRules::of(info).unwrap();
    let mut writer_of_keys = KeyWriter::new(rules.encoding, &[(&TypeKind::Int, &keys)]).unwrap();
    let mut builder = KvBatchBuilder::new(schema.schema.id).unwrap();
    for (row, op) in ops.iter().enumerate() {
        let mut bytes = Vec::new();
        encoder.encode(row, &mut bytes).unwrap();
        let key = writer_of_keys.key(row).unwrap();
        builder.push(key, matches!(op, Op::Upsert(..)).then_some(bytes.as_slice())).unwrap();
    }
    builder.finish(writer, sequence)
}

fn rows_of(rows: &RecordBatch) -> Vec<Row> {
    let texts = rows.column(1).as_string::<i32>();
    let numbers = rows.columns().get(2).map(|column| column.as_primitive::<Int64Type>());
    (0..rows.num_rows())
        .map(|row| {
            let text = texts.is_valid(row).then(|| texts.value(row).to_owned());
            let number = numbers.and_then(|numbers| numbers.is_valid(row).then(|| numbers.value(row)));
            (rows.column(0).as_primitive::<Int32Type>().value(row), text, number)
        })
        .collect()
}

/// A log with its state.
struct Stage {
    folder: tempfile::TempDir,
    runtime: Runtime,
    logs: Arc<LogStore>,
    states: KvStore,
    table: Arc<Table>,
    fsync: bool,
}

fn stores(folder: &Path, runtime: &Runtime, fsync: bool) -> (Arc<LogStore>, KvStore) {
    let options = LogOptions { fsync, ..LogOptions::default() };
    let logs = Arc::new(LogStore::open(folder.join("log"), options, runtime).unwrap());
    let states = KvStore::open(folder.join("kv"), KvOptions::default(), Arc::clone(&logs), runtime).unwrap();
    (logs, states)
}

impl Stage {
    fn new(options: &[(&str, &str)], fsync: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::system(1, 64 << 20).unwrap();
        let (logs, states) = stores(folder.path(), &runtime, fsync);
        Self { folder, runtime, logs, states, table: table(1, options), fsync }
    }

    /// As after a crash that took nothing that is in files.
    fn reopened(self) -> Self {
        self.reopened_after(|_| {})
    }

    fn reopened_after(self, act: impl FnOnce(&Path)) -> Self {
        let Self { folder, runtime, logs, states, table, fsync } = self;
        drop((logs, states));
        act(folder.path());
        let (logs, states) = stores(folder.path(), &runtime, fsync);
        Self { folder, runtime, logs, states, table, fsync }
    }

    fn shape(&self) -> Shape {
        Shape::of(Arc::clone(&self.table)).unwrap()
    }

    fn state(&self) -> Arc<BucketKv> {
        self.states.bucket(ID, &self.shape()).unwrap()
    }

    fn log(&self) -> Arc<BucketLog> {
        self.logs.bucket(ID).unwrap()
    }

    async fn put(&self, sequence: i32, ops: &[Op]) -> Result<i64> {
        let batch = KvBatch::parse(kv_batch(&self.table.info, 7, sequence, ops)).unwrap();
        let kv = self.states.bucket(ID, &self.shape())?;
        let mut progress = kv.writing(&self.shape()).await?;
        let appended = kv.put(&mut progress, &self.shape(), &batch)?;
        kv.log().durable(appended.end_offset).await?;
        Ok(appended.end_offset)
    }

    async fn save(&self) {
        let kv = self.state();
        kv.save(kv.turn().await).await.unwrap();
    }

    /// All rows, in the order of keys as they are stored.
    fn rows(&self) -> BTreeMap<i32, Row> {
        let (shape, mut found) = (self.shape(), BTreeMap::new());
        self.state()
            .snapshot()
            .unwrap()
            .walk(std::ops::Bound::Unbounded, |_, value| {
                let value = Value::parse(value)?;
                let schema = shape.schema(value.schema_id)?;
                let rows = decode_rows(shape.format, &schema, [value.row])?;
                found.extend(rows_of(&rows).into_iter().map(|row| (row.0, row)));
                Ok(true)
            })
            .unwrap();
        found
    }

    /// The changelog: of each batch its sequence and its changes. Offsets have no gap.
    fn changelog(&self) -> Vec<(i32, Vec<(ChangeKind, Row)>)> {
        let (shape, mut next) = (self.shape(), 0);
        let decoded = batches(self.log().read(0, 1 << 24, true).unwrap()).map(|batch| {
            let batch = batch.unwrap();
            batch.verify_crc().unwrap();
            assert_eq!((batch.header.base_offset, batch.header.writer_id, batch.header.is_append_only()), (next, 7, false));
            next = batch.header.next_offset();
            let schema = shape.schema(batch.header.schema_id).unwrap();
            let decoded = batch.decode(LogFormat::Arrow, &schema, ID).unwrap();
            let changes = decoded.map(|decoded| decoded.changes.unwrap().into_iter().zip(rows_of(&decoded.rows)).collect());
            (batch.header.batch_sequence, changes.unwrap_or_default())
        });
        decoded.collect()
    }
}

/// What tables do, in so few lines that they can be seen to be right (S6.3).
#[derive(Debug, Default)]
struct Model {
    rows: BTreeMap<i32, Row>,
    changelog: Vec<(i32, Vec<(ChangeKind, Row)>)>,
}

impl Model {
    fn put(&mut self, sequence: i32, schema: i32, ops: &[Op], wal: bool, ignores: bool) {
        let mut changes = Vec::new();
        for op in ops {
            match op {
                Op::Upsert(key, text) => {
                    let row = (*key, text.clone(), (schema > 1).then(|| i64::from(*key) * 10));
                    match self.rows.insert(*key, row.clone()) {
                        _ if wal => changes.push((ChangeKind::UpdateAfter, row)),
                        None => changes.push((ChangeKind::Insert, row)),
                        Some(old) => changes.extend([(ChangeKind::UpdateBefore, old), (ChangeKind::UpdateAfter, row)]),
                    }
                }
                Op::Delete(_) if ignores => {}
                Op::Delete(key) => changes.extend(self.rows.remove(key).map(|old| (ChangeKind::Delete, old))),
            }
        }
        self.changelog.push((sequence, changes));
    }
}

#[derive(Debug, Clone)]
enum Step {
    Put(Vec<Op>),
    /// The last batch once more.
    Again,
    /// A batch that is in the log when the state fails; reopened before it is sent again, or not.
    Torn(Vec<Op>, bool),
    AddColumn,
    Save,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let op = || {
        prop_oneof![
            3 => (0..6_i32, proptest::option::of("[a-c]{0,3}")).prop_map(|(key, text)| Op::Upsert(key, text)),
            1 => (0..6_i32).prop_map(Op::Delete),
        ]
    };
    let ops = || proptest::collection::vec(op(), 1..8);
    prop_oneof![
        6 => ops().prop_map(Step::Put),
        1 => Just(Step::Again),
        2 => (ops(), any::<bool>()).prop_map(|(ops, reopened)| Step::Torn(ops, reopened)),
        1 => Just(Step::AddColumn),
        1 => Just(Step::Save),
        1 => Just(Step::Reopen),
    ]
}

async fn follow(steps: Vec<Step>, wal: bool, ignores: bool, indexed: bool) {
    let mut options = vec![("table.changelog.image", if wal { "WAL" } else { "FULL" })];
    options.extend(ignores.then_some(("table.delete.behavior", "ignore")));
    options.extend(indexed.then_some(("table.kv.format", "INDEXED")));
    let (mut stage, mut model) = (Stage::new(&options, false), Model::default());
    let (mut sequence, mut schemas, mut last) = (0, 1, None);
    for step in steps {
        match step {
            Step::Put(ops) => {
                last = Some((stage.put(sequence, &ops).await.unwrap(), ops.clone()));
                model.put(sequence, schemas, &ops, wal, ignores);
                sequence += 1;
            }
            Step::Again => {
                if let Some((end, ops)) = &last {
                    assert_eq!(stage.put(sequence - 1, ops).await.unwrap(), *end);
                }
            }
            Step::Torn(ops, reopened) => {
                stage.runtime.fail.arm("kv.before_commit", 1, FailAction::Error);
                assert_eq!(stage.put(sequence, &ops).await.unwrap_err().code(), Some(11));
                if reopened {
                    stage = stage.reopened();
                }
                last = Some((stage.put(sequence, &ops).await.unwrap(), ops.clone()));
                model.put(sequence, schemas, &ops, wal, ignores);
                sequence += 1;
            }
            Step::AddColumn => {
                schemas = 2;
                stage.table = table(2, &options);
            }
            Step::Save => stage.save().await,
            Step::Reopen => stage = stage.reopened(),
        }
        assert_eq!(stage.rows(), model.rows);
        assert_eq!(stage.state().snapshot().unwrap().log_offset, stage.log().log_end());
    }
    assert_eq!(stage.changelog(), model.changelog);
    // From nothing but the log.
    let stage = stage.reopened_after(|folder| std::fs::remove_dir_all(folder.join("kv")).unwrap());
    assert_eq!(stage.rows(), model.rows);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn state_and_changelog_are_those_of_a_simple_model_whatever_fails_between_them(
        steps in proptest::collection::vec(step(), 1..14), wal: bool, ignores: bool, indexed: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(follow(steps, wal, ignores, indexed));
    }
}

#[tokio::test]
async fn a_state_that_is_ahead_of_its_log_is_made_again_and_one_that_is_behind_is_caught_up() {
    let stage = Stage::new(&[], false);
    stage.put(0, &[upsert(1, "a"), upsert(2, "b")]).await.unwrap();
    let segment = |folder: &Path| folder.join("log/1/0/00000000000000000000.log");
    let whole = std::fs::metadata(segment(stage.folder.path())).unwrap().len();
    stage.put(1, &[upsert(1, "later"), upsert(3, "c")]).await.unwrap();
    stage.save().await;
    // What a machine that went down may leave where the log is not synced.
    let cut = |length: u64| {
        move |folder: &Path| std::fs::File::options().write(true).open(segment(folder)).unwrap().set_len(length).unwrap()
    };
    let stage = stage.reopened_after(cut(whole));
    assert_eq!(stage.rows().into_values().collect::<Vec<_>>(), [(1, Some("a".into()), None), (2, Some("b".into()), None)]);
    assert_eq!(stage.state().applied(), 2);
    // A state file of before: as far behind as can be.
    let stage = stage.reopened_after(|folder| std::fs::copy(folder.join("kv/1/0.redb"), folder.join("before")).map(drop).unwrap());
    stage.put(1, &[Op::Delete(2), upsert(4, "d")]).await.unwrap();
    stage.save().await;
    let stage = stage.reopened_after(|folder| std::fs::rename(folder.join("before"), folder.join("kv/1/0.redb")).unwrap());
    assert_eq!(stage.rows().into_keys().collect::<Vec<_>>(), [1, 4]);
}

#[tokio::test]
async fn a_state_that_its_log_does_not_reach_back_to_is_an_error_that_says_what_helps() {
    let stage = Stage::new(&[], true);
    stage.put(0, &[upsert(1, "a")]).await.unwrap();
    stage.save().await;
    stage.log().expire(i64::MAX, 1).unwrap();
    assert_eq!((stage.log().log_start(), stage.rows().len()), (1, 1));
    let stage = stage.reopened();
    assert_eq!(stage.rows().len(), 1);
    let stage = stage.reopened_after(|folder| std::fs::remove_dir_all(folder.join("kv")).unwrap());
    let error = stage.states.bucket(ID, &stage.shape()).unwrap_err();
    assert!(error.chain().contains("stands at offset `0`, but its log begins at `1`"), "{}", error.chain());
}

#[tokio::test]
async fn what_was_not_made_durable_is_not_in_the_file_and_comes_from_the_log() {
    let stage = Stage::new(&[], true);
    stage.put(0, &[upsert(1, "a")]).await.unwrap();
    stage.save().await;
    stage.put(1, &[upsert(2, "b")]).await.unwrap();
    assert_eq!((stage.state().applied(), stage.state().saved()), (2, 1));
    // The file as it would be found after SIGKILL.
    std::fs::copy(stage.folder.path().join("kv/1/0.redb"), stage.folder.path().join("killed")).unwrap();
    let stage = stage.reopened_after(|folder| std::fs::rename(folder.join("killed"), folder.join("kv/1/0.redb")).unwrap());
    assert_eq!(stage.rows().into_keys().collect::<Vec<_>>(), [1, 2]);
}

#[tokio::test]
async fn rows_and_keys_that_are_not_of_the_table_are_refused_and_change_nothing() {
    let stage = Stage::new(&[], false);
    stage.put(0, &[upsert(1, "a")]).await.unwrap();
    let put = async |schema: i32, records: &[(&[u8], Option<&[u8]>)]| {
        let mut builder = KvBatchBuilder::new(SchemaId(schema)).unwrap();
        for (key, row) in records {
            builder.push(key, *row).unwrap();
        }
        let batch = KvBatch::parse(builder.finish(7, 1)).unwrap();
        let kv = stage.state();
        let mut progress = kv.writing(&stage.shape()).await.unwrap();
        kv.put(&mut progress, &stage.shape(), &batch).map(|_| ()).map_err(|error| error.code())
    };
    let good = KvBatch::parse(kv_batch(&stage.table.info, 7, 1, &[upsert(2, "b"), upsert(3, "c")])).unwrap();
    let records: Vec<(Vec<u8>, Vec<u8>)> =
        good.records().map(|record| (record.key.to_vec(), record.row.unwrap().to_vec())).collect();
    let [(two, row_of_two), (three, _)] = &records[..] else { panic!() };
    assert_eq!(put(1, &[(two, Some(row_of_two)), (three, Some(row_of_two))]).await, Err(Some(15)), "a row under another's key");
    assert_eq!(put(1, &[(two, Some(row_of_two)), (three, Some(&[0, 3, 200]))]).await, Err(Some(15)), "a row that is cut off");
    assert_eq!(put(2, &[(two, Some(row_of_two))]).await, Err(Some(9)));
    assert_eq!(put(-1, &[(two, Some(row_of_two))]).await, Err(Some(9)));
    assert_eq!((stage.rows().len(), stage.log().log_end()), (1, 1));
    assert_eq!(put(1, &[(two, Some(row_of_two))]).await, Ok(()));
}

#[tokio::test]
async fn states_that_nobody_uses_are_closed_and_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::system(1, 64 << 20).unwrap();
    let logs = Arc::new(LogStore::open(folder.path().join("log"), LogOptions::default(), &runtime).unwrap());
    let options = KvOptions { open_max: 3, ..KvOptions::default() };
    let states = KvStore::open(folder.path().join("kv"), options, Arc::clone(&logs), &runtime).unwrap();
    let table = table(1, &[]);
    let shape = Shape::of(Arc::clone(&table)).unwrap();
    let bucket = |bucket| TableBucket { bucket: BucketId(bucket), ..ID };
    for round in 0..2 {
        for id in 0..8 {
            let kv = states.bucket(bucket(id), &shape).unwrap();
            let mut progress = kv.writing(&shape).await.unwrap();
            let batch = KvBatch::parse(kv_batch(&table.info, 7, round, &[upsert(round * 100 + id, "x")])).unwrap();
            let appended = kv.put(&mut progress, &shape, &batch).unwrap();
            kv.log().durable(appended.end_offset).await.unwrap();
        }
        assert!(states.all_open().len() <= 3, "{}", states.all_open().len());
    }
    for id in 0..8 {
        assert_eq!(states.bucket(bucket(id), &shape).unwrap().snapshot().unwrap().rows().unwrap(), 2);
    }
    let scanned = states.bucket(bucket(0), &shape).unwrap();
    states.delete(TableId(1), None).unwrap();
    assert_eq!(states.bucket(bucket(0), &shape).unwrap_err().code(), Some(21));
    assert_eq!(scanned.snapshot().unwrap().rows().unwrap(), 2, "who reads it still may");
}
