use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, RecordBatch, StringArray};

use super::*;
use crate::fluss::record::arrow_schema;
use crate::fluss::table_json::TableDescriptor;
use crate::lake::Warehouse;
use crate::model::{BucketId, DataType, Field, Partition, Schema, SchemaId, SnapshotId, TableBucket, TypeKind};
use crate::source::memory::{Faults, MemoryCluster, MemoryService};
use crate::storage;

mod keyed;
mod limits;
mod rescale;
mod verified;

struct World {
    cluster: MemoryCluster,
    context: RoundContext,
    path: TablePath,
    next_id: std::sync::atomic::AtomicI64,
    _folder: tempfile::TempDir,
}

const MEMORY: usize = 64 << 20;

fn context(cluster: &MemoryCluster, faults: Faults, runtime: Runtime) -> RoundContext {
    let service = Arc::new(cluster.service(faults));
    RoundContext { scan: Arc::<MemoryService>::clone(&service), ledger: service, runtime, options: Options::default() }
}

impl World {
    async fn new(buckets: i32, keyed: bool, memory: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::simulated(11, 1_790_000_000_000, memory);
        let cluster = MemoryCluster::new(runtime.clone());
        let path = TablePath::new("demo", "t");
        let field = |id, name: &str, kind| Field { id, name: name.into(), data_type: DataType::nullable(kind), comment: None };
        let warehouse = folder.path().to_str().unwrap().to_owned();
        let descriptor = TableDescriptor {
            schema: Schema {
                id: SchemaId(1),
                fields: vec![field(0, "id", TypeKind::BigInt), field(1, "day", TypeKind::String)],
                primary_key: vec![],
                highest_field_id: 1,
            },
            comment: None,
            partition_keys: vec!["day".into()],
            bucket_keys: if keyed { vec!["id".into()] } else { vec![] },
            bucket_count: Some(buckets),
            properties: BTreeMap::from([
                ("table.datalake.enabled".to_owned(), "true".to_owned()),
                ("table.datalake.format".to_owned(), "paimon".to_owned()),
                ("table.datalake.paimon.warehouse".to_owned(), warehouse.clone()),
            ]),
            custom_properties: BTreeMap::new(),
        };
        let table = cluster.create_table(&path, &descriptor).unwrap();
        let store = storage::open(&warehouse, &storage::StoreOptions::default()).unwrap();
        let lake = Warehouse::new(store, runtime.clone());
        assert!(lake.create_table("demo", "t", &mapping::lake_schema(&table).unwrap()).await.unwrap());
        let context = context(&cluster, Faults::default(), runtime);
        Self { cluster, context, path, next_id: 0.into(), _folder: folder }
    }

    /// From now on calls go wrong so.
    fn through(&mut self, faults: Faults) {
        let options = self.context.options;
        self.context = RoundContext { options, ..context(&self.cluster, faults, self.context.runtime.clone()) };
    }

    async fn table(&self) -> TableInfo {
        self.context.scan.table_info(&self.path).await.unwrap()
    }

    async fn append(&self, partition: &Partition, bucket: i32, count: i64) {
        let first = self.next_id.fetch_add(count, std::sync::atomic::Ordering::Relaxed);
        let table = self.table().await;
        let ids = Arc::new((first..first + count).collect::<Int64Array>());
        let day = partition.spec[0].1.as_str();
        let days = Arc::new(StringArray::from_iter_values((0..count).map(|_| day)));
        let rows = RecordBatch::try_new(arrow_schema(&table.schema).unwrap(), vec![ids, days]).unwrap();
        let bucket = TableBucket { table: table.id, partition: Some(partition.id), bucket: BucketId(bucket) };
        self.cluster.append(bucket, SchemaId(1), &rows, None).unwrap();
    }

    async fn round(&self) -> Result<RoundSummary> {
        self.limited(Limits::default()).await
    }

    async fn limited(&self, limits: Limits) -> Result<RoundSummary> {
        let table = self.table().await.id;
        run(&self.context, &Job { path: self.path.clone(), table, epoch: TieringEpoch(1), lease: None, limits }).await
    }

    async fn lake(&self) -> Arc<LakeTable> {
        open_lake(&self.table().await, &self.context.runtime).await.unwrap().0
    }

    /// All ids in the newest snapshot, sorted.
    async fn ids(&self) -> Vec<i64> {
        let lake = self.lake().await;
        let newest = lake.snapshot(lake.newest_snapshot_id().await.unwrap().unwrap()).await.unwrap().unwrap();
        let rows = lake.read_rows(&newest, None, Some(&["id"])).await.unwrap();
        let mut ids: Vec<i64> =
            rows.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec()).collect();
        ids.sort_unstable();
        ids
    }

    fn written(&self) -> Vec<i64> {
        (0..self.next_id.load(std::sync::atomic::Ordering::Relaxed)).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn each_partition_keeps_its_own_total_over_rescales_and_every_row_is_there_once() {
    let world = World::new(2, true, MEMORY).await;
    let a = world.cluster.create_partition(&world.path, &["a"]).unwrap();
    world.append(&a, 0, 10).await;
    world.append(&a, 1, 10).await;
    let first = world.round().await.unwrap();
    assert_eq!(first.outcome, RoundOutcome::Committed { snapshot: SnapshotId(1) });
    assert_eq!((first.rows, first.files, first.splits), (20, 2, 2));
    let old_files = files(&world).await;

    let mut partitions = vec![a];
    for (count, name) in [(4, "b"), (3, "c")] {
        world.cluster.alter_bucket_count(&world.path, count).unwrap();
        let lake = Warehouse::new(world.lake().await.store().clone(), world.context.runtime.clone());
        let set = crate::lake::SchemaChange::Option { key: "bucket".into(), value: Some(count.to_string()) };
        assert!(lake.alter_table("demo", "t", |_| Ok(vec![set.clone()])).await.unwrap());
        partitions.push(world.cluster.create_partition(&world.path, &[name]).unwrap());
    }
    for (partition, buckets) in partitions.iter().zip([2, 4, 3]) {
        for bucket in 0..buckets {
            world.append(partition, bucket, 7).await;
        }
    }
    let second = world.round().await.unwrap();
    assert_eq!(second.outcome, RoundOutcome::Committed { snapshot: SnapshotId(2) });
    let counts: Vec<(String, i32)> = second.partitions.iter().map(|p| (p.partition.clone(), p.layout.count)).collect();
    assert_eq!(counts, [("a".into(), 2), ("b".into(), 4), ("c".into(), 3)]);

    let lake = world.lake().await;
    let newest = lake.snapshot(2).await.unwrap().unwrap();
    let totals: Vec<Vec<i32>> =
        lake.live_partitions(&newest, None).await.unwrap().values().map(|live| live.totals.iter().copied().collect()).collect();
    assert_eq!(totals, [vec![2], vec![4], vec![3]]);
    assert_eq!(lake.schema().option("bucket"), Some("3"));
    assert_eq!(world.ids().await, world.written());
    let now = files(&world).await;
    assert!(old_files.iter().all(|old| now.contains(old)), "old files are untouched");
    assert_eq!(world.round().await.unwrap().outcome, RoundOutcome::Idle);
    assert_eq!(world.context.runtime.budget.used(), 0);
}

async fn files(world: &World) -> Vec<(String, u64)> {
    let lake = world.lake().await;
    let listed = lake.store().list(lake.root()).await.unwrap();
    listed.into_iter().filter(|file| file.path.contains("/bucket-")).map(|file| (file.path, file.size)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_table_without_bucket_key_goes_to_one_bucket_and_total_minus_one() {
    let world = World::new(3, false, MEMORY).await;
    let a = world.cluster.create_partition(&world.path, &["a"]).unwrap();
    for bucket in [0, 1, 2, 0] {
        world.append(&a, bucket, 5).await;
    }
    let summary = world.round().await.unwrap();
    assert_eq!(summary.rows, 20);
    let lake = world.lake().await;
    let newest = lake.snapshot(1).await.unwrap().unwrap();
    for entry in lake.live_entries(&newest, None).await.unwrap() {
        assert_eq!((entry.bucket, entry.total_buckets), (0, -1));
    }
    assert_eq!(world.ids().await, world.written());
}

#[tokio::test(start_paused = true)]
async fn a_bucket_of_empty_batches_advances_and_the_next_round_makes_no_snapshot() {
    let world = World::new(1, true, MEMORY).await;
    let a = world.cluster.create_partition(&world.path, &["a"]).unwrap();
    let bucket = TableBucket { table: world.table().await.id, partition: Some(a.id), bucket: BucketId(0) };
    world.cluster.append_empty(bucket).unwrap();
    let first = world.round().await.unwrap();
    assert_eq!(first.outcome, RoundOutcome::Committed { snapshot: SnapshotId(1) });
    assert_eq!((first.rows, first.files, first.buckets[0].end_offset), (0, 0, 1));
    assert_eq!(world.round().await.unwrap().outcome, RoundOutcome::Idle);
    assert_eq!(world.lake().await.newest_snapshot_id().await.unwrap(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn little_memory_makes_smaller_row_groups_and_the_same_rows() {
    let world = World::new(4, true, 16 << 10).await;
    let a = world.cluster.create_partition(&world.path, &["a"]).unwrap();
    for _ in 0..20 {
        for bucket in 0..4 {
            world.append(&a, bucket, 200).await;
        }
    }
    assert_eq!(world.round().await.unwrap().rows, 16_000);
    assert_eq!(world.ids().await, world.written());
    assert_eq!(world.context.runtime.budget.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn another_total_in_the_lake_is_a_data_fault_that_names_both_and_leaves_no_file() {
    let world = World::new(2, true, MEMORY).await;
    let a = world.cluster.create_partition(&world.path, &["a"]).unwrap();
    world.append(&a, 0, 10).await;
    assert_eq!(world.round().await.unwrap().rows, 10);
    let before = files(&world).await;
    // The same table, as a cluster would tell it that believes in 3 buckets.
    world.append(&a, 0, 10).await;
    let mut table = world.table().await;
    table.bucket_count = 3;
    let split = Split {
        bucket: TableBucket { table: table.id, partition: Some(a.id), bucket: BucketId(0) },
        partition: Some(Arc::new(a)),
        layout: crate::model::BucketLayout { count: 3, origin: crate::model::LayoutOrigin::Own },
        start: StartOffset::At(10),
        stop_offset: 20,
        kind: SplitKind::Log,
    };
    let Err(error) = targets(&table, &*world.lake().await, vec![split]).await else { panic!("accepted") };
    assert_eq!(error.kind(), Kind::Data);
    assert!(error.to_string().contains("`2`") && error.to_string().contains("`3`"), "{error}");
    assert_eq!(files(&world).await, before);
}

#[tokio::test(start_paused = true)]
async fn a_log_that_was_cut_before_it_was_tiered_holds_the_table_with_both_offsets() {
    let world = World::new(1, true, MEMORY).await;
    let a = world.cluster.create_partition(&world.path, &["a"]).unwrap();
    let bucket = TableBucket { table: world.table().await.id, partition: Some(a.id), bucket: BucketId(0) };
    world.append(&a, 0, 10).await;
    assert_eq!(world.round().await.unwrap().rows, 10);
    world.append(&a, 0, 10).await;
    world.append(&a, 0, 10).await;
    world.cluster.set_log_start(bucket, 20).unwrap();
    let error = world.round().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Data);
    assert!(error.to_string().contains("`10`") && error.to_string().contains("`20`"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_expired_to_its_end_before_it_was_ever_tiered_holds_nothing_up() {
    let world = World::new(2, true, MEMORY).await;
    let a = world.cluster.create_partition(&world.path, &["a"]).unwrap();
    let bucket = TableBucket { table: world.table().await.id, partition: Some(a.id), bucket: BucketId(0) };
    world.append(&a, 0, 10).await;
    world.cluster.set_log_start(bucket, 10).unwrap();
    world.append(&a, 1, 5).await;
    assert_eq!(world.round().await.unwrap().rows, 5);
    world.append(&a, 0, 3).await;
    assert_eq!(world.round().await.unwrap().rows, 3);
    assert_eq!(world.ids().await, (10..18).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_stopped_round_leaves_no_file() {
    let world = World::new(2, true, MEMORY).await;
    let a = world.cluster.create_partition(&world.path, &["a"]).unwrap();
    world.append(&a, 0, 10).await;
    world.context.runtime.shutdown.cancel();
    assert_eq!(world.round().await.unwrap_err().kind(), Kind::Stale);
    assert!(files(&world).await.is_empty());
    assert_eq!(world.lake().await.newest_snapshot_id().await.unwrap(), None);
}

#[test]
fn rounds_are_futures_that_can_be_spawned() {
    fn is_send<T: Send>(_: impl FnOnce(&'static RoundContext, &'static Job) -> T) {}
    is_send(run);
}
