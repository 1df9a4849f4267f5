//! Plans and commits of many buckets, on the twin: what the coordinator's side costs is a round trip per call, and that is set here.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::{Int64Array, RecordBatch, StringArray};
use lakeward::fluss::record::arrow_schema;
use lakeward::fluss::table_json::TableDescriptor;
use lakeward::lake::Warehouse;
use lakeward::mapping;
use lakeward::model::{
    BucketId, DataType, Field, LakeOffsets, Partition, RoundSummary, Schema, SchemaId, TableBucket, TableInfo, TablePath,
    TieringEpoch, TypeKind,
};
use lakeward::plan::{self, Scope};
use lakeward::round::{self, Job, Limits, RoundContext};
use lakeward::runtime::Runtime;
use lakeward::source::TableScan;
use lakeward::source::memory::{Fault, Faults, MemoryCluster, MemoryService};
use lakeward::storage::{StoreOptions, open};

/// A round trip.
const CALL: Duration = Duration::from_millis(1);

struct World {
    tokio: tokio::runtime::Runtime,
    runtime: Runtime,
    cluster: MemoryCluster,
    service: Arc<MemoryService>,
    calls: Arc<Mutex<BTreeMap<String, u64>>>,
    table: TableInfo,
    partitions: Vec<Partition>,
    next_id: AtomicU64,
    _dir: tempfile::TempDir,
}

impl World {
    fn new(partitions: usize, buckets: i32) -> Self {
        let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let warehouse = dir.path().to_str().unwrap().to_owned();
        let runtime = Runtime::system(2, 256 << 20).unwrap();
        let cluster = MemoryCluster::new(runtime.clone());
        let calls: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
        let counted = Arc::clone(&calls);
        let faults = Faults::scripted(move |act, _| {
            *counted.lock().unwrap().entry(act.to_owned()).or_default() += 1;
            Some(Fault::Slow(CALL))
        });
        let service = Arc::new(cluster.service(faults));
        let field = |id, name: &str, kind| Field { id, name: name.to_owned(), data_type: DataType::nullable(kind), comment: None };
        let properties = [
            ("table.datalake.enabled", "true"),
            ("table.datalake.format", "paimon"),
            ("table.datalake.paimon.warehouse", &warehouse),
        ];
        let descriptor = TableDescriptor {
            schema: Schema {
                id: SchemaId(1),
                fields: vec![field(0, "id", TypeKind::BigInt), field(1, "day", TypeKind::String)],
                primary_key: vec![],
                highest_field_id: 1,
            },
            comment: None,
            partition_keys: vec!["day".to_owned()],
            bucket_keys: vec!["id".to_owned()],
            bucket_count: Some(buckets),
            properties: properties.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            custom_properties: BTreeMap::new(),
        };
        let path = TablePath::new("demo", "t");
        let table = cluster.create_table(&path, &descriptor).unwrap();
        tokio.block_on(async {
            let store = open(&warehouse, &StoreOptions::default()).unwrap();
            let lake = Warehouse::new(store, runtime.clone());
            assert!(lake.create_table("demo", "t", &mapping::lake_schema(&table).unwrap()).await.unwrap());
        });
        let make = |day| cluster.create_partition(&path, &[&format!("d{day:04}")]).unwrap();
        let partitions = (0..partitions).map(make).collect();
        Self { tokio, runtime, cluster, service, calls, table, partitions, next_id: AtomicU64::new(0), _dir: dir }
    }

    /// A batch of `rows` rows into every bucket.
    fn load(&self, rows: u64) {
        for partition in &self.partitions {
            for bucket in 0..partition.bucket_count.unwrap() {
                let first = i64::try_from(self.next_id.fetch_add(rows, Ordering::Relaxed)).unwrap();
                let count = usize::try_from(rows).unwrap();
                let ids: Int64Array = (first..).take(count).collect();
                let days = StringArray::from_iter_values(std::iter::repeat_n(partition.spec.first().unwrap().1.as_str(), count));
                let rows =
                    RecordBatch::try_new(arrow_schema(&self.table.schema).unwrap(), vec![Arc::new(ids), Arc::new(days)]).unwrap();
                let bucket = TableBucket { table: self.table.id, partition: Some(partition.id), bucket: BucketId(bucket) };
                self.cluster.append(bucket, SchemaId(1), &rows, None).unwrap();
            }
        }
    }

    fn round(&self) -> RoundSummary {
        let context = RoundContext {
            scan: Arc::<MemoryService>::clone(&self.service),
            ledger: Arc::<MemoryService>::clone(&self.service),
            runtime: self.runtime.clone(),
            options: round::Options::default(),
        };
        let job = Job {
            path: self.table.path.clone(),
            table: self.table.id,
            epoch: TieringEpoch(1),
            lease: None,
            limits: Limits::default(),
        };
        self.tokio.block_on(async { tokio::spawn(async move { round::run(&context, &job).await }).await }).unwrap().unwrap()
    }

    /// Wall and core seconds of `work`, and the calls that it made.
    fn measured<T>(&self, name: &str, work: impl FnOnce() -> T) -> T {
        self.calls.lock().unwrap().clear();
        let (start, before) = (super::now(), super::core_seconds("self"));
        let done = work();
        let (wall, cores) = (start.elapsed().as_secs_f64(), super::core_seconds("self") - before);
        println!("{name:<44} {wall:>7.3} s wall {cores:>7.2} s on cores  calls {:?}", self.calls.lock().unwrap());
        done
    }
}

/// 1,000 partitions of 16 buckets, 1 ms per call.
pub(super) fn planning() {
    let world = World::new(1_000, 16);
    let plan = |base: &LakeOffsets| {
        world.tokio.block_on(async {
            let table = Arc::new(world.service.table_info(&world.table.path).await.unwrap());
            let scope = Scope::default();
            let facts = plan::gather(world.service.as_ref(), table, base, &scope, plan::Options::default()).await.unwrap();
            plan::splits(&facts, base, &scope)
        })
    };
    let nothing = LakeOffsets::default();
    let empty = world.measured("plan, no rows", || plan(&nothing));
    assert!(empty.splits.is_empty());
    world.load(1);
    let first = world.measured("plan, rows in each of 16,000 buckets", || plan(&nothing));
    assert_eq!(first.splits.len(), 16_000);
    let base = LakeOffsets(first.splits.iter().map(|split| (split.bucket.into(), split.stop_offset)).collect());
    let idle = world.measured("plan, all 16,000 buckets tiered", || plan(&base));
    assert!(idle.splits.is_empty());
}

/// Rounds that touch 1,000 buckets, on the local disk, with everything synced.
pub(super) fn commit() {
    let world = World::new(50, 20);
    for number in 1..=4 {
        world.load(20);
        let summary = world.measured(&format!("round {number} of 1,000 buckets"), || world.round());
        assert_eq!(summary.splits, 1_000);
        let RoundSummary { plan_ms, write_ms, commit_ms, files, .. } = summary;
        println!("    plan {plan_ms} ms, read and write {write_ms} ms ({files} files), commit {commit_ms} ms");
    }
    world.measured("round without rows", || world.round());
}
