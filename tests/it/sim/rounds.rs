//! Whole rounds, real files: what `schedules` shows for the commit stage alone holds for `round::run`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray};
use lakeward::error::{Kind, Result};
use lakeward::fluss::record::arrow_schema;
use lakeward::fluss::table_json::TableDescriptor;
use lakeward::lake::{LakeTable, Warehouse};
use lakeward::mapping;
use lakeward::model::{
    DataType, Field, Partition, RoundOutcome, RoundSummary, Schema, SchemaId, SnapshotId, TableInfo, TablePath, TieringEpoch,
    TypeKind,
};
use lakeward::round::{self, Job, Limits, Options, RoundContext};
use lakeward::runtime::{FailAction, FailPoints, Runtime};
use lakeward::source::TableScan;
use lakeward::source::memory::{Fault, Faults, MemoryCluster, MemoryService};
use lakeward::storage::{StoreOptions, open};

use super::schedules::FAIL_POINTS;
use super::world::{bucket, fields, for_seeds};

/// A cluster and a warehouse on disk; every row has a number of its own.
#[derive(Clone)]
pub(super) struct World {
    pub(super) runtime: Runtime,
    pub(super) cluster: MemoryCluster,
    pub(super) path: TablePath,
    next_id: Arc<AtomicI64>,
    /// Columns added behind the first two.
    columns: Arc<Mutex<Vec<String>>>,
    /// How many of them the writer of each row knew.
    known: Arc<Mutex<BTreeMap<i64, usize>>>,
    pub(super) days: Arc<Mutex<Vec<Partition>>>,
    folder: Arc<tempfile::TempDir>,
}

/// A process: its own way into the cluster, its own fail points.
#[derive(Clone)]
pub(super) struct Process(pub(super) RoundContext, TablePath);

impl Process {
    pub(super) async fn round(&self) -> Result<RoundSummary> {
        let table = self.0.scan.table_info(&self.1).await?.id;
        round::run(&self.0, &Job { path: self.1.clone(), table, epoch: TieringEpoch(1), lease: None, limits: Limits::default() })
            .await
    }
}

impl World {
    pub(super) async fn new(seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::simulated(seed, 1_790_000_000_000, 64 << 20);
        let cluster = MemoryCluster::new(runtime.clone());
        // Every other world's logs leave the servers, all but the newest batches.
        if let Some(batches) = [None, Some(1), None, Some(2)][usize::try_from(seed % 4).unwrap()] {
            cluster.segments_leave(batches).unwrap();
        }
        let path = TablePath::new("demo", "t");
        let warehouse = folder.path().to_str().unwrap().to_owned();
        let properties = [
            ("table.datalake.enabled", "true"),
            ("table.datalake.format", "paimon"),
            ("table.datalake.paimon.warehouse", &warehouse),
        ];
        let descriptor = TableDescriptor {
            schema: Schema { id: SchemaId(1), fields: fields(), primary_key: vec![], highest_field_id: 1 },
            comment: None,
            partition_keys: vec!["day".into()],
            bucket_keys: vec!["id".into()],
            bucket_count: Some(2),
            properties: properties.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            custom_properties: BTreeMap::new(),
        };
        let table = cluster.create_table(&path, &descriptor).unwrap();
        let store = open(&warehouse, &StoreOptions::default()).unwrap();
        let lake = Warehouse::new(store, runtime.clone());
        assert!(lake.create_table("demo", "t", &mapping::lake_schema(&table).unwrap()).await.unwrap());
        let days = vec![cluster.create_partition(&path, &["a:1"]).unwrap()];
        Self {
            runtime,
            cluster,
            path,
            next_id: Arc::default(),
            columns: Arc::default(),
            known: Arc::default(),
            days: Arc::new(Mutex::new(days)),
            folder: Arc::new(folder),
        }
    }

    pub(super) fn process(&self, faults: Faults) -> Process {
        let service: Arc<MemoryService> = Arc::new(self.cluster.service(faults));
        let runtime = Runtime { fail: FailPoints::default(), ..self.runtime.clone() };
        let context = RoundContext { scan: Arc::clone(&service) as _, ledger: service, runtime, options: Options::default() };
        Process(context, self.path.clone())
    }

    pub(super) fn healthy(&self) -> Process {
        self.process(Faults::default())
    }

    pub(super) async fn table(&self) -> TableInfo {
        self.cluster.service(Faults::default()).table_info(&self.path).await.unwrap()
    }

    /// ALTER of the bucket count, and a partition that gets it.
    pub(super) fn rescale(&self, count: i32, day: &str) {
        self.cluster.alter_bucket_count(&self.path, count).unwrap();
        self.days.lock().unwrap().push(self.cluster.create_partition(&self.path, &[day]).unwrap());
    }

    /// A column in Fluss alone: the lake learns of it by whoever finds it missing.
    fn add_column(&self) {
        let mut columns = self.columns.lock().unwrap();
        let name = format!("c{}", columns.len());
        let data_type = DataType::nullable(TypeKind::String);
        self.cluster.add_column(&self.path, &Field { id: 0, name: name.clone(), data_type, comment: None }).unwrap();
        columns.push(name);
    }

    /// A few rows into some bucket of some partition, of a writer that knows all columns or fewer.
    pub(super) async fn append(&self) {
        let day = {
            let days = self.days.lock().unwrap();
            days[self.pick(days.len())].clone()
        };
        let index = i32::try_from(self.pick(usize::try_from(day.bucket_count.unwrap()).unwrap())).unwrap();
        let rows = 1 + i64::try_from(self.pick(20)).unwrap();
        self.fill(&day, index, rows).await;
    }

    fn pick(&self, count: usize) -> usize {
        usize::try_from(self.runtime.rng.below(count as u64)).unwrap()
    }

    /// A batch of `rows` rows.
    pub(super) async fn fill(&self, day: &Partition, index: i32, rows: i64) {
        let first = self.next_id.fetch_add(rows, Ordering::Relaxed);
        let table = self.table().await;
        let ids = Arc::new((first..first + rows).collect::<Int64Array>());
        let days = Arc::new(StringArray::from_iter_values((0..rows).map(|_| day.spec[0].1.as_str())));
        let mut columns: Vec<ArrayRef> = vec![ids, days];
        let known = self.pick(self.columns.lock().unwrap().len() + 1);
        for name in &self.columns.lock().unwrap()[..known] {
            columns.push(Arc::new(StringArray::from_iter_values((first..first + rows).map(|id| format!("{name} of {id}")))));
        }
        self.known.lock().unwrap().extend((first..first + rows).map(|id| (id, known)));
        let fields = table.schema.fields[..columns.len()].to_vec();
        let schema = Schema { id: SchemaId(1 + i32::try_from(known).unwrap()), fields, ..(*table.schema).clone() };
        let batch = RecordBatch::try_new(arrow_schema(&schema).unwrap(), columns).unwrap();
        self.cluster.append(bucket(table.id, Some(day.id), index), schema.id, &batch, None).unwrap();
    }

    pub(super) async fn lake(&self) -> LakeTable {
        let store = open(self.folder.path().to_str().unwrap(), &StoreOptions::default()).unwrap();
        LakeTable::open(store, "demo.db/t", self.runtime.clone()).await.unwrap().unwrap()
    }

    /// One process alone tiers what is left; then each row is in the lake once.
    pub(super) async fn heals(&self) {
        let process = self.healthy();
        while process.round().await.unwrap().outcome != RoundOutcome::Idle {}
        let lake = self.lake().await;
        let newest = lake.snapshot(lake.newest_snapshot_id().await.unwrap().unwrap()).await.unwrap().unwrap();
        let rows = lake.read_rows(&newest, None, None).await.unwrap();
        let mut ids: Vec<i64> = rows.iter().flat_map(|rows| rows.column(0).as_primitive::<Int64Type>().values().to_vec()).collect();
        let (columns, known) = (self.columns.lock().unwrap().clone(), self.known.lock().unwrap().clone());
        for batch in &rows {
            for (at, id) in batch.column(0).as_primitive::<Int64Type>().values().iter().enumerate() {
                for (index, name) in columns.iter().enumerate() {
                    let found = batch.column_by_name(name).unwrap().as_string::<i32>();
                    let found = found.is_valid(at).then(|| found.value(at).to_owned());
                    assert_eq!(found, (index < known[id]).then(|| format!("{name} of {id}")), "row {id}");
                }
            }
        }
        ids.sort_unstable();
        assert_eq!(ids, (0..self.next_id.load(Ordering::Relaxed)).collect::<Vec<_>>());
        let totals = lake.live_partitions(&newest, None).await.unwrap();
        assert!(totals.values().all(|live| live.totals.len() == 1));
    }
}

#[test]
fn a_whole_round_that_is_killed_at_any_fail_point_costs_nothing() {
    for_seeds("whole rounds killed", 1, |seed| async move {
        for point in FAIL_POINTS {
            let world = World::new(seed).await;
            world.append().await;
            world.append().await;
            let dying = world.healthy();
            dying.0.runtime.fail.arm(point, 1, FailAction::Hang);
            assert!(world.runtime.clock.timeout(Duration::from_secs(60), dying.round()).await.is_none(), "{point}");
            world.append().await;
            let next = world.healthy().round().await.unwrap();
            let published = matches!(point, "commit.after_publish" | "commit.before_record");
            assert_eq!(next.recovered, published.then_some(SnapshotId(1)), "{point}");
            assert!(matches!(next.outcome, RoundOutcome::Committed { .. }));
            world.heals().await;
        }
    });
}

#[test]
fn two_services_that_hold_one_table_while_rows_arrive_buckets_are_rescaled_and_columns_added() {
    for_seeds("whole rounds of two", 4, |seed| async move {
        let world = World::new(seed).await;
        let rng = world.runtime.rng.clone();
        let faults = || {
            let rng = rng.clone();
            Faults::scripted(move |act, _| match act {
                "prepare" | "record" | "latest" if rng.below(8) == 0 => {
                    Some(if rng.below(2) == 0 { Fault::Before } else { Fault::After })
                }
                _ => None,
            })
        };
        let services: Vec<_> = (0..2)
            .map(|_| {
                let (world, process) = (world.clone(), world.process(faults()));
                tokio::spawn(async move {
                    for _ in 0..5 {
                        if let Err(error) = process.round().await {
                            assert!(matches!(error.kind(), Kind::Stale | Kind::Unavailable), "{}, seed {seed}", error.chain());
                        }
                        world.runtime.clock.sleep(Duration::from_millis(world.runtime.rng.below(20))).await;
                    }
                })
            })
            .collect();
        for step in 0..12 {
            world.append().await;
            match step {
                2 | 5 | 9 => world.add_column(),
                4 => world.rescale(4, "b"),
                8 => world.rescale(3, "c"),
                _ => {}
            }
            world.runtime.clock.sleep(Duration::from_millis(world.runtime.rng.below(10))).await;
        }
        for service in services {
            service.await.unwrap();
        }
        world.heals().await;
    });
}
