//! Rounds on primary-key tables: what a reader of the lake sees is the state of the table at the offsets.

use super::*;
use crate::lake::SchemaChange;
use crate::model::{BucketKey, ChangeKind, LakeOffsets, PartitionId};
use crate::paimon::Snapshot;
use crate::source::memory::Fault;
use ChangeKind::{Delete, Insert, UpdateAfter, UpdateBefore};

/// `id` and `day` are the key, `day` the partition column.
pub(super) struct Keyed {
    pub(super) cluster: MemoryCluster,
    pub(super) context: RoundContext,
    pub(super) path: TablePath,
    /// What is in the source now: bucket and key → value.
    state: std::sync::Mutex<BTreeMap<(BucketKey, i64), String>>,
    _folder: tempfile::TempDir,
}

/// `None` = delete.
type Change = (i64, Option<&'static str>);

fn keyed_descriptor(warehouse: &str, buckets: i32, own: &[(&str, &str)]) -> TableDescriptor {
    let field = |id, name: &str, data_type| Field { id, name: name.into(), data_type, comment: None };
    let mut properties = vec![
        ("table.datalake.enabled", "true"),
        ("table.datalake.format", "paimon"),
        ("table.datalake.paimon.warehouse", warehouse),
    ];
    properties.extend(own);
    TableDescriptor {
        schema: Schema {
            id: SchemaId(1),
            fields: vec![
                field(0, "id", DataType::required(TypeKind::BigInt)),
                field(1, "day", DataType::required(TypeKind::String)),
                field(2, "value", DataType::nullable(TypeKind::String)),
            ],
            primary_key: vec!["id".into(), "day".into()],
            highest_field_id: 2,
        },
        comment: None,
        partition_keys: vec!["day".into()],
        bucket_keys: vec!["id".into()],
        bucket_count: Some(buckets),
        properties: properties.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        custom_properties: BTreeMap::new(),
    }
}

impl Keyed {
    pub(super) async fn new(buckets: i32, own: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::simulated(11, 1_790_000_000_000, MEMORY);
        let cluster = MemoryCluster::new(runtime.clone());
        let path = TablePath::new("demo", "t");
        let warehouse = folder.path().to_str().unwrap().to_owned();
        let table = cluster.create_table(&path, &keyed_descriptor(&warehouse, buckets, own)).unwrap();
        let store = storage::open(&warehouse, &storage::StoreOptions::default()).unwrap();
        let lake = Warehouse::new(store, runtime.clone());
        assert!(lake.create_table("demo", "t", &mapping::lake_schema(&table).unwrap()).await.unwrap());
        let context = context(&cluster, Faults::default(), runtime);
        // Logs that are appended to have no state.
        cluster.serve_states(false);
        Self { cluster, context, path, state: std::sync::Mutex::default(), _folder: folder }
    }

    pub(super) fn partition(&self, day: &str) -> Partition {
        self.cluster.create_partition(&self.path, &[day]).unwrap()
    }

    pub(super) async fn table(&self) -> TableInfo {
        self.context.scan.table_info(&self.path).await.unwrap()
    }

    /// What a server appends to the log for these upserts and deletes; `full` = with the rows before updates.
    pub(super) async fn apply(&self, partition: &Partition, bucket: i32, full: bool, changes: &[Change]) {
        let table = self.table().await;
        let bucket = TableBucket { table: table.id, partition: Some(partition.id), bucket: BucketId(bucket) };
        let (mut rows, mut kinds) = (vec![], vec![]);
        {
            let mut state = self.state.lock().unwrap();
            for (id, value) in changes {
                let key = (bucket.into(), *id);
                let before = state.get(&key).cloned();
                let mut row = |kind, value: Option<String>| {
                    kinds.push(kind);
                    rows.push((*id, value));
                };
                match (before, value) {
                    (None, None) => {}
                    (Some(before), None) => {
                        row(Delete, Some(before));
                        state.remove(&key);
                    }
                    (before, Some(value)) => {
                        match before {
                            Some(before) if full => {
                                row(UpdateBefore, Some(before));
                                row(UpdateAfter, Some((*value).to_owned()));
                            }
                            None if full => row(Insert, Some((*value).to_owned())),
                            _ => row(UpdateAfter, Some((*value).to_owned())),
                        }
                        state.insert(key, (*value).to_owned());
                    }
                }
            }
        }
        let days = vec![partition.spec[0].1.as_str(); rows.len()];
        let mut columns: Vec<arrow_array::ArrayRef> = vec![
            Arc::new(rows.iter().map(|(id, _)| *id).collect::<Int64Array>()),
            Arc::new(StringArray::from(days)),
            Arc::new(rows.iter().map(|(_, value)| value.clone()).collect::<StringArray>()),
        ];
        for field in &table.schema.fields[3..] {
            let text = format!("{} is new", field.name);
            columns.push(Arc::new(StringArray::from(vec![text.as_str(); rows.len()])));
        }
        let batch = RecordBatch::try_new(arrow_schema(&table.schema).unwrap(), columns).unwrap();
        self.cluster.append(bucket, table.schema.id, &batch, Some(&kinds)).unwrap();
    }

    /// The same upserts and deletes as a client's: the server makes the changes, and a state.
    async fn put(&self, partition: &Partition, bucket: i32, changes: &[Change]) {
        self.cluster.serve_states(true);
        let table = self.table().await;
        let bucket = TableBucket { table: table.id, partition: Some(partition.id), bucket: BucketId(bucket) };
        let mut columns: Vec<arrow_array::ArrayRef> = vec![
            Arc::new(changes.iter().map(|(id, _)| *id).collect::<Int64Array>()),
            Arc::new(StringArray::from(vec![partition.spec[0].1.as_str(); changes.len()])),
            Arc::new(changes.iter().map(|(_, value)| *value).collect::<StringArray>()),
        ];
        for field in &table.schema.fields[3..] {
            let text = format!("{} is new", field.name);
            columns.push(Arc::new(StringArray::from(vec![text.as_str(); changes.len()])));
        }
        let batch = RecordBatch::try_new(arrow_schema(&table.schema).unwrap(), columns).unwrap();
        let deletes: Vec<bool> = changes.iter().map(|(_, value)| value.is_none()).collect();
        self.cluster.put(bucket, table.schema.id, &batch, Some(&deletes)).unwrap();
        let mut state = self.state.lock().unwrap();
        for (id, value) in changes {
            match value {
                Some(value) => drop(state.insert((bucket.into(), *id), (*value).to_owned())),
                None => drop(state.remove(&(bucket.into(), *id))),
            }
        }
    }

    /// From now on calls go wrong so.
    fn through(&mut self, faults: Faults) {
        let options = self.context.options;
        self.context = RoundContext { options, ..context(&self.cluster, faults, self.context.runtime.clone()) };
    }

    async fn limited(&self, limits: Limits) -> Result<RoundSummary> {
        let table = self.table().await.id;
        run(&self.context, &Job { path: self.path.clone(), table, epoch: TieringEpoch(1), lease: None, limits }).await
    }

    pub(super) async fn round(&self) -> RoundSummary {
        self.limited(Limits::default()).await.map_err(|error| error.chain()).unwrap()
    }

    pub(super) async fn lake(&self) -> Arc<LakeTable> {
        open_lake(&self.table().await, &self.context.runtime).await.unwrap().0
    }

    pub(super) async fn newest(&self) -> Snapshot {
        let lake = self.lake().await;
        lake.snapshot(lake.newest_snapshot_id().await.unwrap().unwrap()).await.unwrap().unwrap()
    }

    /// Partition, key and value of every row that a reader of the newest snapshot sees, sorted.
    async fn shown(&self) -> Vec<(String, i64, String)> {
        let lake = self.lake().await;
        let mut shown = vec![];
        for batch in lake.read_rows(&self.newest().await, None, Some(&["id", "day", "value"])).await.unwrap() {
            let (days, values) = (batch.column(1).as_string::<i32>(), batch.column(2).as_string::<i32>());
            let ids = batch.column(0).as_primitive::<Int64Type>();
            shown.extend((0..batch.num_rows()).map(|at| (days.value(at).into(), ids.value(at), values.value(at).into())));
        }
        shown.sort();
        shown
    }

    /// The same of the source.
    async fn expected(&self) -> Vec<(String, i64, String)> {
        let partitions = self.context.scan.partitions(&self.table().await).await.unwrap();
        let day = |id: Option<PartitionId>| partitions.iter().find(|found| Some(found.id) == id).map(Partition::name);
        let state = self.state.lock().unwrap();
        let rows = state.iter().filter_map(|((bucket, id), value)| Some((day(bucket.partition)?, *id, value.clone())));
        let mut rows: Vec<_> = rows.collect();
        rows.sort();
        rows
    }

    async fn known(&self) -> LakeOffsets {
        match self.context.ledger.latest(&self.path).await.unwrap() {
            crate::source::LedgerState::At(entry) => entry.offsets,
            other => panic!("{other:?}"),
        }
    }
}

/// Smallest and largest sequence number, rows and deletes of each live file, in manifest order.
async fn file_marks(world: &Keyed) -> Vec<(i64, i64, i64, i64)> {
    let live = world.lake().await.live_entries(&world.newest().await, None).await.unwrap();
    let marks = |file: crate::paimon::DataFile| {
        (file.min_sequence_number, file.max_sequence_number, file.row_count, file.delete_row_count.unwrap())
    };
    live.into_iter().map(|entry| marks(entry.file)).collect()
}

#[tokio::test(start_paused = true)]
async fn rounds_over_upserts_and_deletes_show_the_state_and_number_rows_after_the_buckets_greatest() {
    for full in [true, false] {
        let world = Keyed::new(1, &[]).await;
        let a = world.partition("a");
        world.apply(&a, 0, full, &[(1, Some("one")), (2, Some("two")), (3, Some("three"))]).await;
        assert_eq!(world.round().await.outcome, RoundOutcome::Committed { snapshot: SnapshotId(1) });
        assert_eq!(world.shown().await, world.expected().await);
        world.apply(&a, 0, full, &[(2, Some("TWO")), (3, None), (4, Some("four")), (4, None)]).await;
        world.apply(&a, 0, full, &[(4, Some("4")), (2, Some("2"))]).await;
        let _ = world.round().await;
        assert_eq!(world.shown().await, world.expected().await);
        let marks = file_marks(&world).await;
        assert_eq!(marks[0], (0, 2, 3, 0));
        // One row a key: 2, 3 deleted, 4. The log had -U +U -D +I -D +I -U +U, or +U -D +U -D +U +U.
        let rows = if full { 8 } else { 6 };
        assert_eq!((marks.len(), marks[1].1, marks[1].2, marks[1].3), (2, 2 + rows, 3, 1), "{marks:?}");
        assert!(marks[1].0 > marks[0].1);
        world.apply(&a, 0, full, &[(1, None), (2, None), (4, None)]).await;
        let _ = world.round().await;
        assert_eq!(world.shown().await, []);
        assert_eq!(world.context.runtime.budget.used(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_snapshot_counts_physical_rows_and_names_every_change_in_its_changelog() {
    let world = Keyed::new(2, &[]).await;
    let a = world.partition("a");
    world.apply(&a, 0, true, &[(1, Some("x")), (1, Some("y")), (2, Some("z"))]).await;
    world.apply(&a, 1, true, &[(7, Some("x")), (7, None)]).await;
    let summary = world.round().await;
    assert_eq!((summary.rows, summary.files), (6, 2));
    let snapshot = world.newest().await;
    assert_eq!((snapshot.delta_record_count, snapshot.total_record_count), (Some(3), Some(3)));
    assert_eq!(snapshot.changelog_record_count, Some(6));
    let lake = world.lake().await;
    let list = lake.read_manifest_list(snapshot.changelog_manifest_list.as_ref().unwrap()).await.unwrap();
    let mut rows = 0;
    for manifest in list {
        for entry in lake.read_manifest(&manifest.file_name).await.unwrap() {
            assert!(entry.file.file_name.starts_with("changelog-"));
            let place = lake.object(&crate::paimon::path::data_file(lake.schema(), &entry).unwrap());
            assert!(lake.store().size(&place).await.unwrap().is_some());
            rows += entry.file.row_count;
        }
    }
    assert_eq!(rows, 6);

    let plain = Keyed::new(1, &[("paimon.changelog-producer", "none")]).await;
    let a = plain.partition("a");
    plain.apply(&a, 0, true, &[(1, Some("x")), (1, Some("y"))]).await;
    let _ = plain.round().await;
    assert_eq!((plain.newest().await.changelog_manifest_list, plain.shown().await.len()), (None, 1));
}

#[tokio::test(start_paused = true)]
async fn each_partition_keeps_its_count_over_a_rescale_and_shows_its_state() {
    let world = Keyed::new(2, &[]).await;
    let a = world.partition("a");
    world.apply(&a, 0, true, &[(1, Some("x")), (2, Some("y"))]).await;
    world.apply(&a, 1, true, &[(3, Some("z"))]).await;
    let _ = world.round().await;
    world.cluster.alter_bucket_count(&world.path, 3).unwrap();
    let lake = Warehouse::new(world.lake().await.store().clone(), world.context.runtime.clone());
    let set = SchemaChange::Option { key: "bucket".into(), value: Some("3".into()) };
    assert!(lake.alter_table("demo", "t", |_| Ok(vec![set.clone()])).await.unwrap());
    let b = world.partition("b");
    for bucket in 0..3 {
        world.apply(&b, bucket, true, &[(1, Some("b")), (5, Some("b5"))]).await;
    }
    world.apply(&a, 1, true, &[(3, None), (9, Some("n"))]).await;
    let _ = world.round().await;
    assert_eq!(world.shown().await, world.expected().await);
    let live = world.lake().await.live_partitions(&world.newest().await, None).await.unwrap();
    let totals: Vec<Vec<i32>> = live.values().map(|live| live.totals.iter().copied().collect()).collect();
    assert_eq!(totals, [vec![2], vec![3]]);
}

#[tokio::test(start_paused = true)]
async fn a_column_that_is_added_meanwhile_is_null_in_what_was_written_before() {
    let world = Keyed::new(1, &[]).await;
    let a = world.partition("a");
    world.apply(&a, 0, true, &[(1, Some("x")), (2, Some("y"))]).await;
    let _ = world.round().await;
    let data_type = DataType::nullable(TypeKind::String);
    world.cluster.add_column(&world.path, &Field { id: 0, name: "more".into(), data_type, comment: None }).unwrap();
    world.apply(&a, 0, true, &[(2, Some("z"))]).await;
    let _ = world.round().await;
    assert_eq!(world.shown().await, world.expected().await);
    let lake = world.lake().await;
    let rows = lake.read_rows(&world.newest().await, None, Some(&["id", "more"])).await.unwrap();
    let more: Vec<(i64, Option<String>)> = rows
        .iter()
        .flat_map(|rows| {
            let (ids, more) = (rows.column(0).as_primitive::<Int64Type>().clone(), rows.column(1).as_string::<i32>().clone());
            (0..rows.num_rows()).map(move |at| {
                let is_there = !arrow_array::Array::is_null(&more, at);
                (ids.value(at), is_there.then(|| more.value(at).to_owned()))
            })
        })
        .collect();
    assert_eq!(more, [(1, None), (2, Some("more is new".to_owned()))]);
}

#[tokio::test(start_paused = true)]
async fn rounds_that_end_after_any_batch_show_the_state_at_their_offsets_and_the_last_one_all() {
    let mut world = Keyed::new(2, &[]).await;
    world.context.options.read.bucket_bytes = 1;
    let a = world.partition("a");
    let values = ["p", "q", "r"];
    for step in 0..30_usize {
        let value = (step % 4 != 3).then(|| values[step % 3]);
        let id = i64::try_from(step * 7 % 5).unwrap();
        world.apply(&a, i32::try_from(step % 2).unwrap(), true, &[(id, value), (id + 1, Some("next"))]).await;
    }
    let mut rounds = 0;
    while world.limited(Limits { bytes_max: Some(1), ..Limits::default() }).await.unwrap().cut {
        rounds += 1;
    }
    assert!(rounds > 2, "{rounds}");
    assert_eq!(world.shown().await, world.expected().await);
    assert!(world.known().await.0.values().all(|end| *end > 0));
}

#[tokio::test(start_paused = true)]
async fn a_log_without_its_beginning_and_no_state_hold_the_table_with_the_ways_out() {
    let world = Keyed::new(1, &[]).await;
    let a = world.partition("a");
    world.apply(&a, 0, true, &[(1, Some("x"))]).await;
    world.apply(&a, 0, true, &[(2, Some("y"))]).await;
    let bucket = TableBucket { table: world.table().await.id, partition: Some(a.id), bucket: BucketId(0) };
    world.cluster.set_log_start(bucket, 1).unwrap();
    let error = world.limited(Limits::default()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Data);
    assert!(error.to_string().contains("`1`") && error.hint().unwrap().contains("Flink"), "{}", error.chain());
    assert_eq!(world.lake().await.newest_snapshot_id().await.unwrap(), None);
}

const MANY: &[Change] = &[(1, Some("a")), (2, Some("b")), (3, Some("c")), (4, Some("d")), (5, Some("e")), (6, Some("f"))];

#[tokio::test(start_paused = true)]
async fn the_first_round_takes_the_state_and_the_next_goes_on_by_the_log_from_its_offset() {
    let world = Keyed::new(2, &[]).await;
    let a = world.partition("a");
    world.put(&a, 0, MANY).await;
    world.put(&a, 0, &[(2, None), (3, Some("C")), (3, Some("CC")), (9, None)]).await;
    world.put(&a, 1, &[(7, Some("x")), (7, None)]).await;
    let first = world.round().await;
    assert_eq!(world.shown().await, world.expected().await);
    // Six inserts, −D, two updates; a bucket without rows goes forward too.
    assert_eq!(world.known().await.0.values().copied().collect::<Vec<_>>(), [11, 2]);
    assert_eq!((first.rows, first.cut, first.buckets[0].start_offset, first.buckets[0].end_offset), (5, false, -1, 11));
    assert_eq!((first.buckets[0].max_timestamp_ms, first.backlog_rows), (-1, 0));
    assert_eq!(file_marks(&world).await, [(0, 4, 5, 0)]);
    assert_eq!(world.newest().await.changelog_record_count, Some(5));
    world.put(&a, 0, &[(1, None), (2, Some("again"))]).await;
    world.put(&a, 1, &[(7, Some("y"))]).await;
    // A partition that is new meanwhile: its state beside the others' logs.
    let b = world.partition("b");
    world.put(&b, 0, &[(1, Some("p")), (2, Some("q"))]).await;
    let second = world.round().await;
    assert_eq!(world.shown().await, world.expected().await);
    let starts: Vec<i64> = second.buckets.iter().map(|bucket| bucket.start_offset).collect();
    assert_eq!(starts, [11, 2, -1]);
    assert_eq!(world.round().await.outcome, RoundOutcome::Idle);
    assert_eq!((world.cluster.open_states(), world.context.runtime.budget.used()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_log_without_its_beginning_is_no_trouble_where_states_are_served() {
    let world = Keyed::new(1, &[]).await;
    let a = world.partition("a");
    world.put(&a, 0, MANY).await;
    world.put(&a, 0, &[(1, None)]).await;
    let bucket = TableBucket { table: world.table().await.id, partition: Some(a.id), bucket: BucketId(0) };
    // All of it has expired.
    world.cluster.set_log_start(bucket, 7).unwrap();
    assert_eq!(world.round().await.rows, 5);
    assert_eq!(world.shown().await, world.expected().await);
}

/// The second page of a state is lost `times` times.
fn lost(times: u32) -> Faults {
    let mut left = times;
    Faults::scripted(move |act, _| {
        (act == "next_state" && left > 0).then(|| {
            left -= 1;
            Fault::Before
        })
    })
}

#[tokio::test(start_paused = true)]
async fn a_state_that_is_lost_begins_again_from_nothing_and_leaves_no_file() {
    let mut world = Keyed::new(1, &[]).await;
    world.context.options.read.bucket_bytes = 1;
    let a = world.partition("a");
    world.put(&a, 0, MANY).await;
    world.through(lost(2));
    let limits = Limits::default();
    let summary = world.limited(limits.clone()).await.unwrap();
    assert_eq!((summary.rows, limits.progress.rows()), (6, 6), "what was read in vain is not counted");
    assert_eq!(world.shown().await, world.expected().await);
    let lake = world.lake().await;
    let files = lake.store().list(lake.root()).await.unwrap();
    assert_eq!(files.iter().filter(|file| file.path.contains("/bucket-")).count(), 2, "one of data, one of changelog");

    // A server that never holds a session makes the round fail, and nothing of it is there.
    world.put(&world.partition("b"), 0, MANY).await;
    world.through(lost(u32::MAX));
    let error = world.limited(Limits::default()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert_eq!(lake.newest_snapshot_id().await.unwrap(), Some(1));
    assert_eq!(lake.store().list(lake.root()).await.unwrap().iter().filter(|file| file.path.contains("/bucket-")).count(), 2);
    assert_eq!((world.cluster.open_states(), world.context.runtime.budget.used()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_state_that_has_begun_is_read_to_its_end_whatever_the_limits_say() {
    let mut world = Keyed::new(3, &[]).await;
    world.context.options.read.bucket_bytes = 1;
    world.context.options.splits_max = 1;
    let a = world.partition("a");
    for bucket in 0..3 {
        world.put(&a, bucket, MANY).await;
    }
    for round in 1..=3_usize {
        let summary = world.limited(Limits { bytes_max: Some(1), ..Limits::default() }).await.unwrap();
        assert_eq!((summary.rows, summary.cut), (6, round < 3), "one whole bucket a round");
        assert_eq!(world.known().await.0.len(), round);
        assert_eq!(world.shown().await.len(), 6 * round);
    }
    assert_eq!(world.shown().await, world.expected().await);
}

#[tokio::test(start_paused = true)]
async fn a_state_that_is_slower_than_the_deadline_is_committed_whole_and_the_next_waits_for_its_round() {
    let mut world = Keyed::new(2, &[]).await;
    world.context.options.read.bucket_bytes = 1;
    world.context.options.splits_max = 1;
    let a = world.partition("a");
    for bucket in 0..2 {
        world.put(&a, bucket, MANY).await;
    }
    let page = Duration::from_secs(120);
    world.through(Faults::scripted(move |act, _| (act == "next_state").then_some(Fault::Slow(page))));
    let clock = world.context.runtime.clock.clone();
    for round in 1..=2_usize {
        let began = clock.moment();
        let deadline = Some(began + Duration::from_secs(5));
        let summary = world.limited(Limits { deadline, ..Limits::default() }).await.unwrap();
        assert!(clock.moment() - began > 2 * page, "it took {:?}", clock.moment() - began);
        assert_eq!((summary.rows, summary.cut), (6, round < 2), "one whole bucket a round");
        assert_eq!(world.shown().await.len(), 6 * round);
    }
    assert_eq!(world.shown().await, world.expected().await);
}

#[tokio::test(start_paused = true)]
async fn what_is_put_while_a_state_is_read_comes_with_the_log_behind_it() {
    let mut world = Keyed::new(1, &[]).await;
    world.context.options.read.bucket_bytes = 1;
    let a = world.partition("a");
    world.put(&a, 0, MANY).await;
    let bucket = TableBucket { table: world.table().await.id, partition: Some(a.id), bucket: BucketId(0) };
    let (cluster, schema, mut pages) = (world.cluster.clone(), arrow_schema(&world.table().await.schema).unwrap(), 0);
    world.through(Faults::scripted(move |act, _| {
        pages += u32::from(act == "next_state");
        if pages == 2 && act == "next_state" {
            let columns: Vec<arrow_array::ArrayRef> = vec![
                Arc::new(Int64Array::from(vec![1, 6, 8])),
                Arc::new(StringArray::from(vec!["a"; 3])),
                Arc::new(StringArray::from(vec![Some("A"), None, Some("h")])),
            ];
            let rows = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
            cluster.put(bucket, SchemaId(1), &rows, Some(&[false, true, false])).unwrap();
        }
        None
    }));
    let first = world.round().await;
    assert_eq!((first.rows, first.buckets[0].end_offset), (6, 6), "one image, and the offset that it names");
    let _ = world.round().await;
    let shown: Vec<(i64, String)> = world.shown().await.into_iter().map(|(_, id, value)| (id, value)).collect();
    let expected = [(1, "A"), (2, "b"), (3, "c"), (4, "d"), (5, "e"), (8, "h")];
    assert_eq!(shown, expected.map(|(id, value)| (id, value.to_owned())));
}
