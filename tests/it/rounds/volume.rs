//! More than fits at once: memory, batches, partitions, files.

use lakeward::daemon::backfill::{self, Backfill, Outcome};
use lakeward::mapping::lake_schema;
use lakeward::runtime::Budget;

use super::*;

/// Rows of `events` with long, hardly compressible texts.
async fn append_long(stage: &Stage, path: &TablePath, ids: Range<i64>, bytes: usize, batch_bytes: usize) {
    let options = WriterOptions { batch_bytes, ..WriterOptions::default() };
    let mut writer = Writer::open(&stage.cluster, path, options).await.unwrap();
    let random = fastrand::Rng::with_seed(7);
    let word = |_| {
        let mut random = random.clone();
        (0..bytes).map(|_| random.alphanumeric()).collect::<String>()
    };
    let columns: Vec<ArrayRef> =
        vec![Arc::new(Int64Array::from_iter_values(ids.clone())), Arc::new(StringArray::from_iter_values(ids.map(word)))];
    let rows = RecordBatch::try_new(writer.schema(), columns).unwrap();
    writer.append(&rows).await.map_err(|error| error.chain()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_of_many_times_its_memory_ends() {
    let stage = Stage::new().await;
    let mut table = events();
    table.bucket_count = Some(16);
    let path = stage.table("large", &table).await;
    append_long(&stage, &path, 0..4000, 2000, 64 << 10).await;
    // Batches that alone are larger than the budget come in between.
    append_long(&stage, &path, 4000..4200, 20_000, 8 << 20).await;
    append_long(&stage, &path, 4200..5000, 2000, 64 << 10).await;
    let mut rounds = stage.rounds();
    rounds.runtime.budget = Budget::new(128 << 10);
    let budget = rounds.runtime.budget.clone();
    let (report, done) = run_once(&stage.service(rounds), Duration::ZERO).await;
    assert_no_faults(&report);
    assert_eq!(done.iter().map(|round| (snapshot_of(round), round.rows)).collect::<Vec<_>>(), [(Some(1), 5000)]);
    assert_eq!(stage.ids(&path).await, Vec::from_iter(0..5000));
    assert_eq!(budget.used(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_backfill_of_many_times_its_memory_goes_round_by_round() {
    let stage = Stage::new().await;
    let mut table = events();
    table.bucket_count = Some(4);
    let path = stage.table("large", &table).await;
    append_long(&stage, &path, 0..5000, 2000, 64 << 10).await;
    let mut rounds = stage.rounds();
    rounds.runtime.budget = Budget::new(128 << 10);
    // A fetch is a batch, so that a round is exceeded by one batch per bucket.
    rounds.options.read.bucket_bytes = 1 << 10;
    let budget = rounds.runtime.budget.clone();
    let options = backfill::Options { bytes_max: 32 << 10, ..backfill::Options::default() };
    let job = Backfill::new(rounds, path.clone(), vec![], options, CancellationToken::new());
    job.run().await.map_err(|error| error.chain()).unwrap();
    let status = job.status();
    assert_eq!((status.outcome, status.rows, status.rows_left), (Outcome::Done, 5000, Some(0)));
    // About 320 KiB on the wire, 10 MiB in memory.
    assert!(status.rounds >= 4 && status.rounds <= 12, "{status:?}");
    assert_eq!(stage.newest(&path).await.map(|snapshot| snapshot.id), i64::try_from(status.rounds).ok());
    assert_eq!(stage.ids(&path).await, Vec::from_iter(0..5000));
    assert_eq!(budget.used(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_partitions_go_into_one_snapshot() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    let mut writer = Writer::open(&stage.cluster, &path, WriterOptions::default()).await.unwrap();
    let batches: Vec<RecordBatch> = (0..100).map(|day| rows(&writer, day * 10..day * 10 + 10, &format!("d{day}"))).collect();
    let batch = concat_batches(&writer.schema(), &batches).unwrap();
    writer.append(&batch).await.unwrap();
    let (report, rounds) = stage.run_once().await;
    assert_no_faults(&report);
    assert_eq!((snapshot_of(&rounds[0]), rounds[0].partitions.len(), rounds[0].rows), (Some(1), 100, 1000));
    let files = stage.files(&path).await;
    assert_eq!((ids(&files), totals(&files).len()), (Vec::from_iter(0..1000), 100));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_roll_where_the_table_says_and_follow_each_other() {
    let stage = Stage::new().await;
    let mut table = events();
    table.bucket_count = Some(1);
    table.custom_properties.insert("paimon.target-file-row-num".into(), "64".into());
    table.properties.insert("table.log.arrow.compression.type".into(), "LZ4_FRAME".into());
    let path = stage.table("rolled", &table).await;
    stage.append(&path, 0..200, "").await;
    stage.append(&path, 200..250, "").await;
    assert_eq!(stage.tier().await, [Some(1)]);
    stage.append(&path, 250..300, "").await;
    assert_eq!(stage.tier().await, [Some(2)]);
    let mut files = stage.files(&path).await;
    files.sort_by_key(|file| file.entry.file.min_sequence_number);
    assert!(files.iter().all(|file| file.entry.file.row_count <= 64), "{:?}", files.iter().map(LakeFile::ids).collect::<Vec<_>>());
    let mut next = 0;
    for file in &files {
        let (first, last) = (file.entry.file.min_sequence_number, file.entry.file.max_sequence_number);
        assert_eq!((first, last - first + 1), (next, file.entry.file.row_count));
        next = last + 1;
    }
    assert_eq!(files.iter().flat_map(LakeFile::ids).collect::<Vec<_>>(), Vec::from_iter(0..300), "offset order");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lake_table_of_an_older_fluss_gets_its_system_columns() {
    let stage = Stage::new().await;
    // What a coordinator of 0.9 would have made: the columns, and three of the system behind them.
    let mut model = TableInfo::for_tests("demo.old", 2);
    model.bucket_keys.clear();
    model.schema = Arc::new(events().schema);
    model.properties = BTreeMap::from([("table.datalake.enabled".to_owned(), "true".to_owned())]);
    model.properties.extend(
        [("table.datalake.format", "paimon"), ("table.datalake.freshness", "0ms")]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    model.properties.insert("table.replication.factor".into(), "1".into());
    let mut old = lake_schema(&model).unwrap();
    for (name, kind) in
        [("__bucket", TypeKind::Int), ("__offset", TypeKind::BigInt), ("__timestamp", TypeKind::TimestampLtz { precision: 3 })]
    {
        old.highest_field_id += 1;
        old.fields.push(Field { id: old.highest_field_id, ..field(name, kind, true) });
    }
    let warehouse = stage.node.as_ref().unwrap().warehouse().trim_start_matches("file:").to_owned();
    let folder = PathBuf::from(warehouse).join("demo.db/old/schema");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("schema-0"), old.to_json().unwrap()).unwrap();

    let mut table = events();
    table.bucket_keys.clear();
    let path = stage.table("old", &table).await;
    let before = stage.runtime.clock.now_ms();
    // One batch in each bucket, in turn.
    let mut writer = Writer::open(&stage.cluster, &path, WriterOptions::default()).await.unwrap();
    for start in [0, 10, 20, 30] {
        let batch = rows(&writer, start..start + 10, "");
        writer.append(&batch).await.unwrap();
    }
    assert_eq!(stage.tier().await, [Some(1)]);
    let after = stage.runtime.clock.now_ms();
    let files = stage.files(&path).await;
    assert_eq!(ids(&files), Vec::from_iter(0..40));
    for file in &files {
        assert_eq!((file.entry.bucket, file.entry.total_buckets), (0, -1));
        let column = |name: &str| file.rows.column_by_name(name).unwrap();
        let buckets = column("__bucket").as_primitive::<arrow_array::types::Int32Type>();
        let offsets = column("__offset").as_primitive::<Int64Type>();
        let times = column("__timestamp").as_primitive::<arrow_array::types::TimestampMillisecondType>();
        for (row, id) in file.ids().into_iter().enumerate() {
            // Batches 0 and 2 lie in bucket 0, 1 and 3 in bucket 1.
            let (batch, within) = (id / 10, id % 10);
            assert_eq!((i64::from(buckets.value(row)), offsets.value(row)), (batch % 2, batch / 2 * 10 + within), "row {id}");
            assert!((before..=after).contains(&times.value(row)), "row {id}");
        }
    }
}
