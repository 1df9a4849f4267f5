//! Cluster, lake, and what users and operators do to them.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::{Int64Array, RecordBatch, StringArray};
use lakeward::commit::{COMMIT_IDENTIFIER, COMMIT_USER};
use lakeward::fluss::record::arrow_schema;
use lakeward::fluss::table_json::TableDescriptor;
use lakeward::lake::{self, CommitFacts, LakeTable};
use lakeward::model::{
    BucketId, DataType, Field, PartitionId, Schema, SchemaId, TableBucket, TableId, TableInfo, TablePath, TypeKind,
};
use lakeward::paimon::{TableSchema, path};
use lakeward::runtime::Runtime;
use lakeward::source::memory::{Faults, MemoryCluster};
use lakeward::source::{LakeLedger, LedgerEntry, LedgerState, TableScan};
use lakeward::storage::{Created, Store};

use super::mutants::{self, Off};

/// Folder of the lake table.
pub(crate) const ROOT: &str = "demo.db/t";
const MEMORY: usize = 64 << 20;

/// Everything but the services. Clones are the same world.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) runtime: Runtime,
    /// Without faults: what operators and rivals see.
    pub(crate) store: Store,
    pub(crate) cluster: MemoryCluster,
    pub(crate) path: TablePath,
    partitioned: bool,
    keyed: bool,
    /// Offsets that hold no row.
    empty: Arc<Mutex<BTreeSet<(TableBucket, i64)>>>,
    /// Exclusive end of each bucket that was ever written.
    ends: Arc<Mutex<BTreeMap<TableBucket, i64>>>,
    /// Late PUTs that may still land: nothing expires while there are any (the one assumption on time).
    pub(crate) late_puts: Arc<AtomicUsize>,
    /// What the mutation check has switched off in every service.
    pub(crate) off: Option<Off>,
}

/// Runs `test` once per seed, each in a runtime of its own with paused time. The last seed printed is the one that failed.
pub(crate) fn for_seeds<F: Future<Output = ()>>(name: &str, count: u64, test: impl Fn(u64) -> F) {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seeds = match number("LAKEWARD_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None if count > 1 => 0..number("LAKEWARD_SIM_SEEDS").unwrap_or(count),
        None => 0..count,
    };
    for seed in seeds {
        #[expect(clippy::print_stdout, reason = "shown when the test fails")]
        {
            println!("{name}: LAKEWARD_SIM_SEED={seed}");
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(test(seed));
    }
}

impl World {
    /// A log table of two buckets, partitioned by `day` or not, in Fluss and in the lake.
    pub(crate) async fn new(seed: u64, partitioned: bool) -> Self {
        Self::made(seed, partitioned, false).await
    }

    /// The same with primary key `id`, without partitions.
    pub(crate) async fn keyed(seed: u64) -> Self {
        Self::made(seed, false, true).await
    }

    async fn made(seed: u64, partitioned: bool, keyed: bool) -> Self {
        let runtime = Runtime::simulated(seed, 1_764_460_800_000, MEMORY);
        let world = Self {
            seed,
            store: Store::in_memory_at(runtime.clock.clone()),
            cluster: MemoryCluster::new(runtime.clone()),
            path: TablePath::new("demo", "t"),
            partitioned,
            keyed,
            empty: Arc::default(),
            ends: Arc::default(),
            late_puts: Arc::default(),
            off: mutants::off(),
            runtime,
        };
        world.create_table();
        world.create_lake_table(&[]).await;
        world
    }

    pub(crate) fn create_table(&self) {
        let day = self.partitioned.then(|| "day".to_owned());
        let descriptor = TableDescriptor {
            schema: Schema { id: SchemaId(1), fields: fields(), primary_key: self.key(), highest_field_id: 1 },
            comment: None,
            partition_keys: day.into_iter().collect(),
            bucket_keys: vec!["id".into()],
            bucket_count: Some(2),
            properties: BTreeMap::new(),
            custom_properties: BTreeMap::new(),
        };
        self.cluster.create_table(&self.path, &descriptor).unwrap();
    }

    fn key(&self) -> Vec<String> {
        self.keyed.then(|| "id".to_owned()).into_iter().collect()
    }

    pub(crate) async fn create_lake_table(&self, options: &[(&str, &str)]) {
        let mut all = BTreeMap::from([("bucket".to_owned(), "2".to_owned()), ("bucket-key".to_owned(), "id".to_owned())]);
        all.extend(options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        let schema = TableSchema {
            id: 0,
            fields: fields(),
            highest_field_id: 1,
            partition_keys: if self.partitioned { vec!["day".into()] } else { vec![] },
            primary_keys: self.key(),
            options: all,
            comment: None,
            time_ms: self.runtime.clock.now_ms(),
        };
        let json = schema.to_json().unwrap();
        assert_eq!(self.store.create(&format!("{ROOT}/{}", path::schema(0)), json.into()).await.unwrap(), Created::Yes);
    }

    /// The table as Fluss has it now.
    pub(crate) async fn info(&self) -> TableInfo {
        self.cluster.service(Faults::default()).table_info(&self.path).await.unwrap()
    }

    /// What Fluss knows to be in the lake.
    pub(crate) async fn known(&self) -> Option<LedgerEntry> {
        match self.cluster.service(Faults::default()).latest(&self.path).await.unwrap() {
            LedgerState::At(entry) => Some(entry),
            _ => None,
        }
    }

    pub(crate) async fn lake(&self) -> LakeTable {
        LakeTable::open(self.store.clone(), ROOT, self.runtime.clone()).await.unwrap().unwrap()
    }

    pub(crate) async fn newest(&self) -> i64 {
        self.lake().await.newest_snapshot_id().await.unwrap().unwrap_or(0)
    }

    /// Lets everybody else run, for a while by the seed.
    pub(crate) async fn pause(&self, turns_max: u64) {
        for _ in 0..self.runtime.rng.below(turns_max) {
            tokio::task::yield_now().await;
        }
    }

    /// Lets time pass.
    pub(crate) async fn sleep(&self, seconds: u64) {
        self.runtime.clock.sleep(Duration::from_secs(seconds)).await;
    }

    /// Appends `rows` rows as one batch.
    pub(crate) fn append(&self, bucket: TableBucket, rows: i64) {
        let schema = Schema { id: SchemaId(1), fields: fields(), primary_key: vec![], highest_field_id: 1 };
        let ids: Vec<i64> = (0..rows).collect();
        let days = vec!["d"; ids.len()];
        let columns: Vec<arrow_array::ArrayRef> = vec![Arc::new(Int64Array::from(ids)), Arc::new(StringArray::from(days))];
        let batch = RecordBatch::try_new(arrow_schema(&schema).unwrap(), columns).unwrap();
        // A table that was dropped takes no rows.
        if let Ok(base) = self.cluster.append(bucket, SchemaId(1), &batch, None) {
            self.ends.lock().unwrap().insert(bucket, base + rows);
        }
    }

    /// Appends an empty batch, which takes one offset.
    pub(crate) fn append_empty(&self, bucket: TableBucket) {
        if let Ok(base) = self.cluster.append_empty(bucket) {
            self.empty.lock().unwrap().insert((bucket, base));
            self.ends.lock().unwrap().insert(bucket, base + 1);
        }
    }

    /// Rows in `from..to` of a bucket.
    pub(crate) fn rows_in(&self, bucket: TableBucket, from: i64, to: i64) -> Vec<i64> {
        let empty = self.empty.lock().unwrap();
        (from..to).filter(|offset| !empty.contains(&(bucket, *offset))).collect()
    }

    /// Every bucket of table `id` that was ever written, with its end.
    pub(crate) fn ends(&self, id: TableId) -> BTreeMap<TableBucket, i64> {
        self.ends.lock().unwrap().iter().filter(|(bucket, _)| bucket.table == id).map(|(bucket, end)| (*bucket, *end)).collect()
    }

    /// What a commit of `user` says of itself.
    pub(crate) fn facts(&self, user: &str, kind: &str) -> CommitFacts {
        CommitFacts {
            schema_id: 0,
            user: user.into(),
            identifier: 1,
            kind: kind.into(),
            time_ms: self.runtime.clock.now_ms(),
            properties: BTreeMap::new(),
        }
    }

    /// The same of a Java job, whose snapshot names its offsets file.
    pub(crate) fn java_facts(&self, offsets_path: &str) -> CommitFacts {
        CommitFacts {
            identifier: COMMIT_IDENTIFIER,
            properties: BTreeMap::from([("fluss-offsets".to_owned(), offsets_path.to_owned())]),
            ..self.facts(COMMIT_USER, "APPEND")
        }
    }

    /// A user's, or a compactor's, commit without rows, by create-if-absent.
    pub(crate) async fn foreign_commit(&self) {
        let lake = self.lake().await;
        loop {
            let newest = match lake.newest_snapshot_id().await.unwrap() {
                Some(id) => match lake.snapshot(id).await.unwrap() {
                    Some(newest) => Some(newest),
                    None => continue,
                },
                None => None,
            };
            self.pause(4).await;
            let delta = lake.write_delta(vec![], vec![]).await.unwrap();
            let Ok(staged) = lake.stage(newest.as_ref(), &delta, false).await else { continue };
            if lake.publish(&staged.snapshot(newest.as_ref(), self.facts("somebody", "APPEND"))).await.unwrap()
                == lake::Published::Created
            {
                return;
            }
        }
    }

    /// A Java-like expirer: keeps the newest `retained`, and whatever a consumer holds; decides first, deletes later.
    pub(crate) async fn expire(&self, retained: i64) {
        let lake = self.lake().await;
        let ids = lake.snapshot_ids().await.unwrap();
        let Some(newest) = ids.last() else { return };
        let held = lake.pins("").await.unwrap().into_iter().map(|pin| pin.next_snapshot).min().unwrap_or(i64::MAX);
        let until = (newest + 1 - retained).min(held);
        self.pause(8).await;
        for id in ids.into_iter().filter(|id| *id < until) {
            if self.late_puts.load(Ordering::Relaxed) > 0 {
                return;
            }
            self.store.delete(&format!("{ROOT}/{}", path::snapshot(id))).await.unwrap();
            self.pause(2).await;
        }
    }

    /// An operator rolls the lake table back to snapshot `id`.
    pub(crate) async fn roll_back(&self, id: i64) {
        for above in id + 1..=self.newest().await {
            self.store.delete(&format!("{ROOT}/{}", path::snapshot(above))).await.unwrap();
        }
        self.lake().await.write_latest_hint(id).await.unwrap();
    }

    /// An operator drops the lake table.
    pub(crate) async fn drop_lake_table(&self) {
        for object in self.store.list(ROOT).await.unwrap() {
            self.store.delete(&object.path).await.unwrap();
        }
    }

    /// Names of our pins.
    pub(crate) async fn pins(&self) -> Vec<lake::Pin> {
        self.lake().await.pins("lakeward-").await.unwrap()
    }
}

pub(crate) fn fields() -> Vec<Field> {
    let field = |id, name: &str, kind| Field { id, name: name.into(), data_type: DataType::nullable(kind), comment: None };
    vec![field(0, "id", TypeKind::BigInt), field(1, "day", TypeKind::String)]
}

pub(crate) fn bucket(table: TableId, partition: Option<PartitionId>, bucket: i32) -> TableBucket {
    TableBucket { table, partition, bucket: BucketId(bucket) }
}
