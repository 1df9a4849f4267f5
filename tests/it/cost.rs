//! What rounds ask of the cluster and of the store: counted on the twin and on a store in memory, with a clock of their own.

mod calls;
mod commits;
mod idle;
mod plans;
mod wire;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::{Int64Array, RecordBatch, StringArray};
use lakeward::fluss::record::arrow_schema;
use lakeward::lake::{LakeTable, Warehouse};
use lakeward::mapping;
use lakeward::model::{
    BucketId, DataType, Field, Partition, RoundSummary, SchemaId, TableBucket, TableInfo, TablePath, TieringEpoch, TypeKind,
};
use lakeward::round::{self, Job, Limits, Options, RoundContext};
use lakeward::runtime::Runtime;
use lakeward::source::memory::{self, MemoryCluster, MemoryService};
use lakeward::storage::{self, Mounted, Store, mount};

use crate::rounds::{descriptor, field, in_warehouse};

const MS: Duration = Duration::from_millis(1);

/// Times that it takes the store to answer, by act and path; `None` = none.
type StoreTimes = Box<dyn Fn(&str, &str) -> Option<Duration> + Send>;

/// A cluster whose calls take a millisecond each, and a lake in memory. Both tell what they were asked.
struct World {
    runtime: Runtime,
    cluster: MemoryCluster,
    service: Arc<MemoryService>,
    /// `act`, as often as it came.
    calls: Arc<Mutex<Vec<String>>>,
    /// `act path`.
    requests: Arc<Mutex<Vec<String>>>,
    /// Without times and counts.
    store: Store,
    url: String,
    next_id: AtomicI64,
    _mounted: Mounted,
}

fn path(name: &str) -> TablePath {
    TablePath::new("demo", name)
}

impl World {
    /// `name` is the world's own: stores are mounted by it.
    fn new(name: &str) -> Self {
        Self::with(name, Box::new(|_, _| None))
    }

    fn with(name: &str, times: StoreTimes) -> Self {
        let runtime = Runtime::simulated(5, 1_790_000_000_000, 256 << 20);
        let cluster = MemoryCluster::new(runtime.clone());
        let calls: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&calls);
        let service = cluster.service(memory::Faults::scripted(move |act, _| {
            log.lock().unwrap().push(act.to_owned());
            Some(memory::Fault::Slow(MS))
        }));
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&requests);
        let store = Store::in_memory_at(runtime.clock.clone());
        let slow = store.with_faults(storage::Faults::scripted(move |act, path| {
            log.lock().unwrap().push(format!("{act} {path}"));
            times(act, path).map(storage::Fault::Slow)
        }));
        let url = format!("memory:cost-{name}");
        let mounted = mount(&url, slow);
        let next_id = AtomicI64::new(0);
        Self { runtime, cluster, service: Arc::new(service), calls, requests, store, url, next_id, _mounted: mounted }
    }

    /// A log table, partitioned by day, in Fluss and in the lake.
    async fn table(&self, name: &str, buckets: i32, lake_options: &[(&str, &str)]) -> TableInfo {
        let fields = vec![field("id", TypeKind::BigInt, true), field("day", TypeKind::String, true)];
        let descriptor = in_warehouse(descriptor(fields, &["day"], &["id"], buckets), &self.url, "3min");
        let table = self.cluster.create_table(&path(name), &descriptor).unwrap();
        let lake = Warehouse::new(self.store.clone(), self.runtime.clone());
        let mut schema = mapping::lake_schema(&table).unwrap();
        schema.options.extend(lake_options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        assert!(lake.create_table("demo", name, &schema).await.unwrap());
        table
    }

    fn days(&self, table: &TableInfo, count: usize) -> Vec<Partition> {
        (0..count).map(|day| self.cluster.create_partition(&table.path, &[&format!("d{day:04}")]).unwrap()).collect()
    }

    /// Two rows into every bucket of these partitions.
    fn load(&self, table: &TableInfo, days: &[Partition]) {
        for day in days {
            for bucket in 0..day.bucket_count.unwrap() {
                let first = self.next_id.fetch_add(2, Ordering::Relaxed);
                let name = day.spec[0].1.as_str();
                let columns = vec![
                    Arc::new(Int64Array::from(vec![first, first + 1])) as _,
                    Arc::new(StringArray::from(vec![name, name])) as _,
                ];
                let rows = RecordBatch::try_new(arrow_schema(&table.schema).unwrap(), columns).unwrap();
                let bucket = TableBucket { table: table.id, partition: Some(day.id), bucket: BucketId(bucket) };
                self.cluster.append(bucket, SchemaId(1), &rows, None).unwrap();
            }
        }
    }

    fn context(&self) -> RoundContext {
        RoundContext {
            scan: Arc::<MemoryService>::clone(&self.service),
            ledger: Arc::<MemoryService>::clone(&self.service),
            runtime: self.runtime.clone(),
            options: Options::default(),
        }
    }

    async fn round(&self, table: &TableInfo) -> RoundSummary {
        let job = Job { path: table.path.clone(), table: table.id, epoch: TieringEpoch(1), lease: None, limits: Limits::default() };
        Box::pin(round::run(&self.context(), &job)).await.map_err(|error| error.chain()).unwrap()
    }

    /// The lake table, by requests that nobody counts.
    async fn lake(&self, table: &TableInfo) -> LakeTable {
        let root = format!("demo.db/{}", table.path.table);
        LakeTable::open(self.store.clone(), root, self.runtime.clone()).await.unwrap().unwrap()
    }

    /// Calls to the cluster since the last look.
    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    /// Requests to the store since the last look.
    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

/// How often each came.
fn counted(names: impl IntoIterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    counts
}
