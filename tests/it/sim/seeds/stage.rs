//! The stage: cluster, lake, the source's rows by number, and whatever counts what went wrong.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use lakeward::fluss::record::arrow_schema;
use lakeward::fluss::table_json::TableDescriptor;
use lakeward::lake::{LakeTable, SchemaChange, Warehouse};
use lakeward::mapping;
use lakeward::model::{DataType, Field, Partition, Schema, SchemaId, TableBucket, TableId, TableInfo, TablePath, TypeKind};
use lakeward::runtime::{Rng, Runtime};
use lakeward::source::memory::{Faults, MemoryCluster};
use lakeward::source::{LakeLedger, LedgerEntry, LedgerState, TableScan};
use lakeward::storage::{Mounted, Store, mount};

use super::super::world::{ROOT, bucket, fields};
use super::Off;
use super::keyed;
use super::plan::Plan;
use crate::keys::{self, Keys};

/// Names of mounted stores must not meet: tests run side by side.
static STAGES: AtomicU64 = AtomicU64::new(0);

/// Clones are the same stage.
#[derive(Clone)]
pub(crate) struct Stage(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) seed: u64,
    pub(crate) plan: Plan,
    /// What is switched off everywhere.
    pub(super) off: Off,
    pub(crate) runtime: Runtime,
    /// Without faults.
    pub(crate) store: Store,
    pub(crate) cluster: MemoryCluster,
    pub(crate) path: TablePath,
    /// Faults are over.
    pub(crate) calm: AtomicBool,
    /// PUTs under way: nothing expires meanwhile (the one assumption on time).
    pub(crate) late_puts: AtomicU64,
    /// What happened, by name.
    pub(crate) counts: Mutex<BTreeMap<&'static str, u64>>,
    /// What was held, and by what, while the faults went on.
    pub(crate) held: Mutex<Vec<String>>,
    next_id: AtomicI64,
    rows: Mutex<BTreeMap<(TableBucket, i64), i64>>,
    ends: Mutex<BTreeMap<TableBucket, i64>>,
    /// Of primary-key tables.
    keys: Mutex<BTreeMap<TableBucket, Keys>>,
    columns: AtomicU64,
    number: u64,
    mounted: Mutex<Vec<Mounted>>,
}

impl std::ops::Deref for Stage {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Stage {
    pub(super) async fn new(seed: u64, plan: Plan, off: Off) -> Self {
        let runtime = Runtime::simulated(seed, 1_790_000_000_000, 64 << 20);
        let store = Store::in_memory_at(runtime.clock.clone());
        let stage = Self(Arc::new(Inner {
            seed,
            plan,
            off,
            cluster: MemoryCluster::new(runtime.clone()),
            runtime,
            store,
            path: TablePath::new("demo", "t"),
            calm: AtomicBool::new(false),
            late_puts: AtomicU64::new(0),
            counts: Mutex::default(),
            held: Mutex::default(),
            next_id: AtomicI64::new(0),
            rows: Mutex::default(),
            ends: Mutex::default(),
            keys: Mutex::default(),
            columns: AtomicU64::new(0),
            number: STAGES.fetch_add(1, Ordering::Relaxed),
            mounted: Mutex::default(),
        }));
        if plan.remote > 0 {
            stage.cluster.segments_leave(2).unwrap();
        }
        stage.cluster.serve_states(plan.primary < 3);
        stage.create_table().await;
        stage
    }

    /// The table has a primary key.
    pub(crate) fn is_primary(&self) -> bool {
        self.plan.primary > 0
    }

    /// Change logs have no rows before updates.
    fn is_wal(&self) -> bool {
        self.plan.primary > 0 && self.plan.primary.is_multiple_of(2)
    }

    /// The warehouse as `who` sees it: through `store`.
    pub(crate) fn warehouse(&self, who: &str, store: Store) -> String {
        let url = format!("memory:{}-{who}", self.number);
        self.mounted.lock().unwrap().push(mount(&url, store));
        url
    }

    /// A stream of chance of its own for each who, so that one that is left out changes nothing for the others.
    pub(crate) fn rng(&self, who: &str) -> Rng {
        let mut seed = self.seed ^ 0xcbf2_9ce4_8422_2325;
        for byte in who.bytes() {
            seed = (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Rng::from_seed(seed)
    }

    /// The table in Fluss, and in the lake unless it is there.
    pub(crate) async fn create_table(&self) {
        let own = |of: u64, name: &str| if of > 0 { vec![name.to_owned()] } else { vec![] };
        let warehouse = self.warehouse("operator", self.store.clone());
        let properties = [
            ("table.datalake.enabled", "true"),
            ("table.datalake.freshness", "5s"),
            ("table.datalake.format", "paimon"),
            ("table.datalake.paimon.warehouse", &warehouse),
            ("table.changelog.image", if self.is_wal() { "wal" } else { "full" }),
        ];
        let key = [own(self.plan.primary, "id"), own(self.plan.primary * self.plan.partitioned, "day")].concat();
        let fields = if self.is_primary() { keys::fields() } else { fields() };
        let highest_field_id = i32::try_from(fields.len()).unwrap() - 1;
        let descriptor = TableDescriptor {
            schema: Schema { id: SchemaId(1), fields, primary_key: key, highest_field_id },
            comment: None,
            partition_keys: own(self.plan.partitioned, "day"),
            bucket_keys: own(self.plan.keyed + self.plan.primary, "id"),
            bucket_count: Some(2),
            properties: properties.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            custom_properties: BTreeMap::new(),
        };
        self.columns.store(0, Ordering::Relaxed);
        let table = self.cluster.create_table(&self.path, &descriptor).unwrap();
        if self.plan.partitioned > 0 {
            self.cluster.create_partition(&self.path, &["a"]).unwrap();
        }
        self.create_lake_table(&table).await;
    }

    async fn create_lake_table(&self, table: &TableInfo) {
        let lake = Warehouse::new(self.store.clone(), self.runtime.clone());
        let _ = lake.create_table("demo", "t", &mapping::lake_schema(table).unwrap()).await.unwrap();
    }

    /// What the error of a lake table that belongs to an earlier table says: it is dropped, and made again for this one.
    pub(crate) async fn new_lake_table(&self) {
        for object in self.store.list(ROOT).await.unwrap() {
            self.store.delete(&object.path).await.unwrap();
        }
        self.create_lake_table(&self.table().await).await;
    }

    pub(crate) async fn table(&self) -> TableInfo {
        self.cluster.service(Faults::default()).table_info(&self.path).await.unwrap()
    }

    pub(crate) async fn partitions(&self, table: &TableInfo) -> Vec<Option<Partition>> {
        if !table.is_partitioned() {
            return vec![None];
        }
        let partitions = self.cluster.service(Faults::default()).partitions(table).await.unwrap();
        partitions.into_iter().map(Some).collect()
    }

    pub(crate) async fn known(&self) -> Option<LedgerEntry> {
        match self.cluster.service(Faults::default()).latest(&self.path).await.unwrap() {
            LedgerState::At(entry) => Some(entry),
            _ => None,
        }
    }

    pub(crate) async fn lake(&self) -> LakeTable {
        LakeTable::open(self.store.clone(), ROOT, self.runtime.clone()).await.unwrap().unwrap()
    }

    pub(crate) async fn sleep(&self, time: Duration) {
        self.runtime.clock.sleep(time).await;
    }

    pub(crate) fn count(&self, what: &'static str) {
        *self.counts.lock().unwrap().entry(what).or_default() += 1;
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }

    /// A batch of some rows, now and then an empty one, for some bucket.
    pub(crate) async fn append(&self, rng: &Rng) {
        let table = self.table().await;
        let partitions = self.partitions(&table).await;
        let Some(partition) = partitions.get(pick(rng, partitions.len())) else { return };
        let count = partition.as_ref().and_then(|partition| partition.bucket_count).unwrap_or(table.bucket_count);
        let index = i32::try_from(pick(rng, usize::try_from(count).unwrap())).unwrap();
        let bucket = bucket(table.id, partition.as_ref().map(|partition| partition.id), index);
        if self.is_primary() {
            return self.put(rng, &table, partition.as_ref(), bucket);
        }
        if rng.below(8) == 0 {
            let base = self.cluster.append_empty(bucket).unwrap();
            self.ends.lock().unwrap().insert(bucket, base + 1);
            return;
        }
        let rows = 1 + i64::try_from(rng.below(3)).unwrap();
        let first = self.next_id.fetch_add(rows, Ordering::Relaxed);
        let day = partition.as_ref().map_or("d", |partition| partition.spec[0].1.as_str());
        let batch = self.batch(&table, first..first + rows, day);
        let base = self.cluster.append(bucket, table.schema.id, &batch, None).unwrap();
        self.rows.lock().unwrap().extend((0..rows).map(|row| ((bucket, base + row), first + row)));
        self.ends.lock().unwrap().insert(bucket, base + rows);
    }

    /// Upserts and deletes as one batch, some of which change nothing.
    fn put(&self, rng: &Rng, table: &TableInfo, partition: Option<&Partition>, bucket: TableBucket) {
        let first = self.next_id.fetch_add(4, Ordering::Relaxed);
        let puts = keyed::some_puts(rng, bucket.bucket.0, first);
        let day = partition.map_or("d", |partition| partition.spec[0].1.as_str());
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(puts.iter().map(|(key, _)| *key).collect::<Int64Array>()),
            Arc::new(StringArray::from(vec![day; puts.len()])),
            Arc::new(puts.iter().map(|(_, number)| *number).collect::<Int64Array>()),
        ];
        columns.extend(table.schema.fields[3..].iter().map(|_| Arc::new(StringArray::from(vec!["x"; puts.len()])) as ArrayRef));
        let batch = RecordBatch::try_new(arrow_schema(&table.schema).unwrap(), columns).unwrap();
        let deletes: Vec<bool> = puts.iter().map(|(_, number)| number.is_none()).collect();
        let end = self.cluster.put(bucket, table.schema.id, &batch, Some(&deletes)).unwrap();
        let told = self.keys.lock().unwrap().entry(bucket).or_default().put(self.is_wal(), &puts);
        assert_eq!(end, told, "the twin's log of {bucket}");
        self.ends.lock().unwrap().insert(bucket, end);
    }

    fn batch(&self, table: &TableInfo, ids: std::ops::Range<i64>, day: &str) -> RecordBatch {
        let rows = usize::try_from(ids.end - ids.start).unwrap();
        let mut columns: Vec<ArrayRef> = vec![Arc::new(ids.collect::<Int64Array>()), Arc::new(StringArray::from(vec![day; rows]))];
        columns.extend(table.schema.fields[2..].iter().map(|_| Arc::new(StringArray::from(vec!["x"; rows])) as ArrayRef));
        RecordBatch::try_new(arrow_schema(&table.schema).unwrap(), columns).unwrap()
    }

    /// A new bucket count, lake first, and a partition that gets it.
    pub(crate) async fn rescale(&self, rng: &Rng) {
        if self.plan.partitioned == 0 {
            return;
        }
        let count = 1 + i32::try_from(rng.below(5)).unwrap();
        if self.plan.keyed + self.plan.primary > 0 {
            let change = SchemaChange::Option { key: "bucket".into(), value: Some(count.to_string()) };
            let _ = self.lake().await.alter(|_| Ok(vec![change.clone()])).await.unwrap();
        }
        self.cluster.alter_bucket_count(&self.path, count).unwrap();
        let name = format!("p{}", rng.below(1_000_000));
        self.cluster.create_partition(&self.path, &[&name]).unwrap();
        self.count("rescale");
    }

    pub(crate) async fn drop_partition(&self, rng: &Rng) {
        let table = self.table().await;
        let partitions = self.partitions(&table).await;
        if let Some(Some(partition)) = partitions.get(pick(rng, partitions.len())) {
            self.cluster.drop_partition(&self.path, partition.id).unwrap();
            self.count("partition dropped");
        }
    }

    pub(crate) fn add_column(&self) {
        let name = format!("c{}", self.columns.fetch_add(1, Ordering::Relaxed));
        let data_type = DataType::nullable(TypeKind::String);
        self.cluster.add_column(&self.path, &Field { id: 0, name, data_type, comment: None }).unwrap();
        self.count("column added");
    }

    /// Every row that was ever in table `id`, by place.
    pub(crate) fn rows(&self, id: TableId) -> BTreeMap<(TableBucket, i64), i64> {
        self.rows.lock().unwrap().iter().filter(|((bucket, _), _)| bucket.table == id).map(|(at, row)| (*at, *row)).collect()
    }

    /// What has happened in the buckets of table `id`, handed to `look`.
    pub(crate) fn keys<T>(&self, id: TableId, look: impl FnOnce(&BTreeMap<TableBucket, Keys>) -> T) -> T {
        let mut all = self.keys.lock().unwrap();
        let mut others: BTreeMap<_, _> = std::mem::take(&mut *all);
        let mine: BTreeMap<_, _> = others.extract_if(.., |bucket, _| bucket.table == id).collect();
        let told = look(&mine);
        all.extend(others);
        all.extend(mine);
        told
    }

    /// End of every bucket of table `id` that was ever written.
    pub(crate) fn ends(&self, id: TableId) -> BTreeMap<TableBucket, i64> {
        self.ends.lock().unwrap().iter().filter(|(bucket, _)| bucket.table == id).map(|(bucket, end)| (*bucket, *end)).collect()
    }
}

pub(crate) fn pick(rng: &Rng, count: usize) -> usize {
    usize::try_from(rng.below(count as u64)).unwrap()
}
