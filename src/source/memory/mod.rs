//! The twin: a cluster in memory with the real coordinator's semantics and with faults, for simulations.
//!
//! [`MemoryCluster`] is the cluster: its methods are what users and operators do (tables, partitions, rows, restarts).
//! [`MemoryService`] is one service's way into it: it implements the three source traits, each with its own faults.

mod faults;
mod ledger;
mod queue;
mod remote;
mod states;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow_array::{BooleanArray, RecordBatch};
use async_trait::async_trait;
use bytes::Bytes;

pub use faults::{Fault, Faults};
pub use ledger::Recorded;

use self::ledger::Ledger;
use self::queue::Queue;
use super::{
    Assignments, FetchBucket, FetchRequest, FetchedBucket, Heartbeat, HeartbeatReply, LakeLedger, LedgerRecord, LedgerState,
    LogSlice, RemoteSegment, StateRequest, StateScan, TableScan,
};
use crate::error::{Error, Result};
use crate::fluss::bucket::{BucketFunction, buckets_of};
use crate::fluss::partition::format_value;
use crate::fluss::record::{BatchHeader, Compression, EncodeOptions, LogFormat, arrow_schema, encode_arrow_batch, stamp, value_at};
use crate::fluss::table_json::TableDescriptor;
use crate::model::{
    BucketCountEpoch, BucketId, BucketKey, BucketLayout, ChangeKind, Field, LakeOffsets, OffsetsFile, Partition, PartitionId,
    Schema, SchemaId, SnapshotId, StartOffset, TableBucket, TableId, TableInfo, TablePath,
};
use crate::runtime::{Rng, Runtime};

/// The coordinator's lease (F1.3).
const LEASE_MS: i64 = 120_000;

#[derive(Debug, Default)]
struct Log {
    batches: Vec<Bytes>,
    /// What has left the server, oldest first.
    segments: Vec<RemoteSegment>,
    start: i64,
    end: i64,
    timestamp_ms: i64,
    /// Of a primary-key table: the stored values by key.
    values: BTreeMap<Vec<u8>, Bytes>,
}

#[derive(Debug)]
struct Table {
    info: TableInfo,
    schemas: BTreeMap<SchemaId, Arc<Schema>>,
    partitions: BTreeMap<PartitionId, Partition>,
    logs: BTreeMap<BucketKey, Log>,
}

#[derive(Debug)]
struct State {
    next_table: i64,
    next_partition: i64,
    tables: BTreeMap<TableId, Table>,
    paths: BTreeMap<TablePath, TableId>,
    queue: Queue,
    ledger: Ledger,
    servers: usize,
    files: remote::Files,
    segment_batches: Option<usize>,
    unreadable_until_ms: i64,
    /// Servers without ScanKv.
    no_states: bool,
    next_scan: u64,
    scans: BTreeMap<u64, TableBucket>,
}

/// A cluster in memory. Clones are the same cluster.
#[derive(Debug, Clone)]
pub struct MemoryCluster {
    state: Arc<Mutex<State>>,
    runtime: Runtime,
}

fn gone(path: &TablePath) -> Error {
    Error::invalid(format!("table `{path}` does not exist")).with_code(7)
}

fn wrong_routing(bucket: &str, told: i32, actual: i32) -> Error {
    Error::stale(format!("{bucket} has `{actual}` buckets, the request was routed by `{told}`")).with_code(74)
}

impl MemoryCluster {
    /// An empty cluster of two servers that tells `runtime`'s time.
    #[must_use]
    pub fn new(runtime: Runtime) -> Self {
        let state = State {
            next_table: 1,
            next_partition: 1,
            tables: BTreeMap::new(),
            paths: BTreeMap::new(),
            queue: Queue::new(LEASE_MS),
            ledger: Ledger::default(),
            servers: 2,
            files: BTreeMap::new(),
            segment_batches: None,
            unreadable_until_ms: 0,
            no_states: false,
            next_scan: 1,
            scans: BTreeMap::new(),
        };
        Self { state: Arc::new(Mutex::new(state)), runtime }
    }

    /// A service's way into the cluster.
    #[must_use]
    pub fn service(&self, faults: Faults) -> MemoryService {
        MemoryService { cluster: self.clone(), faults, absent: false }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> i64 {
        self.runtime.clock.now_ms()
    }

    /// Creates a table; tiered if `table.datalake.enabled` is `true`, every `table.datalake.freshness`.
    ///
    /// # Errors
    /// `Invalid` (8) when the path is taken.
    pub fn create_table(&self, path: &TablePath, table: &TableDescriptor) -> Result<TableInfo> {
        let now_ms = self.now_ms();
        let mut state = self.state();
        if state.paths.contains_key(path) {
            return Err(Error::invalid(format!("table `{path}` exists")).with_code(8));
        }
        let id = TableId(state.next_table);
        state.next_table += 1;
        let schema = Arc::new(Schema { id: SchemaId(1), ..table.schema.clone() });
        let info = TableInfo {
            path: path.clone(),
            id,
            schema: Arc::clone(&schema),
            comment: table.comment.clone(),
            partition_keys: table.partition_keys.clone(),
            bucket_keys: bucket_keys_of(table),
            bucket_count: table.bucket_count.unwrap_or(1),
            bucket_count_epoch: BucketCountEpoch(0),
            properties: table.properties.clone(),
            custom_properties: table.custom_properties.clone(),
            remote_data_dir: None,
            created_ms: now_ms,
            modified_ms: now_ms,
        };
        let mut entry = Table {
            info: info.clone(),
            schemas: BTreeMap::from([(SchemaId(1), schema)]),
            partitions: BTreeMap::new(),
            logs: BTreeMap::new(),
        };
        if !info.is_partitioned() {
            entry.add_logs(None, info.bucket_count);
        }
        if info.property("table.datalake.enabled") == Some("true") {
            state.queue.add(id, path.clone(), freshness_ms(&info), now_ms);
        }
        state.tables.insert(id, entry);
        state.paths.insert(path.clone(), id);
        Ok(info)
    }

    /// Drops a table; its ledger entries stay, as in ZooKeeper.
    ///
    /// # Errors
    /// `Invalid` (7) when there is none.
    pub fn drop_table(&self, path: &TablePath) -> Result<()> {
        let mut state = self.state();
        let id = state.paths.remove(path).ok_or_else(|| gone(path))?;
        state.tables.remove(&id);
        state.scans.retain(|_, bucket| bucket.table != id);
        state.queue.remove(id);
        Ok(())
    }

    /// Sets or resets a property; `table.datalake.enabled` and `.freshness` act on the queue.
    ///
    /// # Errors
    /// `Invalid` (7) when there is no such table.
    pub fn alter_property(&self, path: &TablePath, key: &str, value: Option<&str>) -> Result<()> {
        let now_ms = self.now_ms();
        let mut state = self.state();
        let table = state.table_mut(path)?;
        match value {
            Some(value) => table.info.properties.insert(key.to_owned(), value.to_owned()),
            None => table.info.properties.remove(key),
        };
        let info = table.info.clone();
        if key == "table.datalake.enabled" {
            state.queue.remove(info.id);
            if value == Some("true") {
                state.queue.add(info.id, path.clone(), freshness_ms(&info), now_ms);
            }
        }
        Ok(())
    }

    /// ALTER of `bucket.num`: partitions made from now on get `count` (F4.4).
    ///
    /// # Errors
    /// `Invalid` (7, 56).
    pub fn alter_bucket_count(&self, path: &TablePath, count: i32) -> Result<()> {
        let mut state = self.state();
        let table = state.table_mut(path)?;
        if !table.info.is_partitioned() || count < 1 {
            return Err(Error::invalid(format!("`{path}` can't get `{count}` buckets")).with_code(56));
        }
        if table.info.bucket_count != count {
            table.info.bucket_count = count;
            table.info.bucket_count_epoch.0 += 1;
        }
        Ok(())
    }

    /// Adds a nullable column at the end.
    ///
    /// # Errors
    /// `Invalid` (7).
    pub fn add_column(&self, path: &TablePath, column: &Field) -> Result<Arc<Schema>> {
        let mut state = self.state();
        let table = state.table_mut(path)?;
        let mut schema = (*table.info.schema).clone();
        schema.id.0 += 1;
        schema.highest_field_id += 1;
        schema.fields.push(Field { id: schema.highest_field_id, ..column.clone() });
        table.info.schema = Arc::new(schema);
        table.schemas.insert(table.info.schema.id, Arc::clone(&table.info.schema));
        Ok(Arc::clone(&table.info.schema))
    }

    /// Creates a partition with the table's count of this moment.
    ///
    /// # Errors
    /// `Invalid` (7, 42).
    pub fn create_partition(&self, path: &TablePath, values: &[&str]) -> Result<Partition> {
        let mut state = self.state();
        let id = PartitionId(state.next_partition);
        let table = state.table_mut(path)?;
        let keys = table.info.partition_keys.iter().cloned();
        let spec: Vec<(String, String)> = keys.zip(values.iter().map(|value| (*value).to_owned())).collect();
        if spec.len() != table.info.partition_keys.len() || table.partitions.values().any(|partition| partition.spec == spec) {
            return Err(Error::invalid(format!("partition {values:?} of `{path}`")).with_code(42));
        }
        let partition = Partition { id, spec, bucket_count: Some(table.info.bucket_count) };
        table.partitions.insert(id, partition.clone());
        table.add_logs(Some(id), table.info.bucket_count);
        state.next_partition += 1;
        Ok(partition)
    }

    /// Drops a partition.
    ///
    /// # Errors
    /// `Invalid` (7, 36).
    pub fn drop_partition(&self, path: &TablePath, id: PartitionId) -> Result<()> {
        let mut state = self.state();
        let table = state.table_mut(path)?;
        table.partitions.remove(&id).ok_or_else(|| Error::invalid(format!("partition `{id}` of `{path}`")).with_code(36))?;
        table.logs.retain(|key, _| key.partition != Some(id));
        state.scans.retain(|_, bucket| bucket.partition != Some(id));
        Ok(())
    }

    /// Appends rows (columns of schema `schema_id`) as one batch; without rows, an empty batch. Returns the base offset.
    ///
    /// # Errors
    /// `Invalid` (21) when there is no such bucket; as [`encode_arrow_batch`].
    pub fn append(
        &self,
        bucket: TableBucket,
        schema_id: SchemaId,
        rows: &RecordBatch,
        changes: Option<&[ChangeKind]>,
    ) -> Result<i64> {
        let options = EncodeOptions { compression: Compression::Zstd(1), ..EncodeOptions::new(schema_id) };
        self.append_raw(bucket, &encode_arrow_batch(options, rows, changes)?)
    }

    /// Appends rows in the newest schema as a client does: to the buckets that their keys hash to (bucket 0 without bucket key), of the
    /// partition that the first row names.
    ///
    /// # Errors
    /// `Invalid` (7, 36); as [`buckets_of`] and [`encode_arrow_batch`].
    pub fn append_rows(&self, path: &TablePath, rows: &RecordBatch) -> Result<()> {
        let (info, buckets) = self.routed(path, rows)?;
        for (bucket, mask) in buckets {
            let mine = states::filter(rows, &mask)?;
            if mine.num_rows() > 0 {
                self.append(bucket, info.schema.id, &mine, None)?;
            }
        }
        Ok(())
    }

    /// The table, and which rows go to which bucket of the partition that the first row names.
    fn routed(&self, path: &TablePath, rows: &RecordBatch) -> Result<(TableInfo, Vec<(TableBucket, BooleanArray)>)> {
        let (info, partition) = {
            let state = self.state();
            let table = state.table(path)?;
            (table.info.clone(), table.partition_of(rows)?)
        };
        let layout = BucketLayout::of(&info, partition.as_ref())?;
        let keys = states::columns_of(&info.schema, rows, &info.bucket_keys)?;
        let buckets = match keys.as_slice() {
            [] => vec![0; rows.num_rows()],
            keys => buckets_of(BucketFunction::of(&info)?, keys, layout.count)?,
        };
        let partition = partition.map(|partition| partition.id);
        let masks = (0..layout.count).map(|bucket| {
            let mask = buckets.iter().map(|of_row| Some(*of_row == bucket)).collect();
            (TableBucket { table: info.id, partition, bucket: BucketId(bucket) }, mask)
        });
        let masks = masks.collect();
        Ok((info, masks))
    }

    /// Appends an empty batch, which takes one offset.
    ///
    /// # Errors
    /// As [`MemoryCluster::append`].
    pub fn append_empty(&self, bucket: TableBucket) -> Result<i64> {
        let schema = {
            let state = self.state();
            let table = state.tables.get(&bucket.table).ok_or_else(|| Error::invalid(format!("{bucket}")).with_code(21))?;
            Arc::clone(&table.info.schema)
        };
        self.append(bucket, schema.id, &RecordBatch::new_empty(arrow_schema(&schema)?), None)
    }

    /// Appends one encoded batch as a server does: stamps base offset and timestamp.
    ///
    /// # Errors
    /// `Invalid` (21) when there is no such bucket; `Data` when it is no batch.
    pub fn append_raw(&self, bucket: TableBucket, batch: &[u8]) -> Result<i64> {
        let now_ms = self.now_ms();
        self.state().append_raw(bucket, batch, now_ms, &self.runtime.rng)
    }

    /// Moves the log's start forward: what lies below is gone.
    ///
    /// # Errors
    /// `Invalid` (21).
    pub fn set_log_start(&self, bucket: TableBucket, start: i64) -> Result<()> {
        let mut state = self.state();
        let log = state.log_mut(bucket)?;
        log.start = start.clamp(log.start, log.end);
        state.expire(bucket)
    }

    /// For so long the coordinator can't read its offsets files: a starting one says so.
    pub fn start_slowly(&self, time: Duration) {
        let until_ms = self.now_ms().saturating_add(i64::try_from(time.as_millis()).unwrap_or(i64::MAX));
        self.state().unreadable_until_ms = until_ms;
    }

    /// The coordinator loses what it had in memory.
    pub fn restart_coordinator(&self, new_epoch: bool) {
        let now_ms = self.now_ms();
        self.state().queue.restart(new_epoch, now_ms);
    }

    /// A table's ledger entries, oldest first.
    #[must_use]
    pub fn recorded(&self, table: TableId) -> Vec<Recorded> {
        self.state().ledger.entries(table).to_vec()
    }

    /// What the leader of a bucket was told to be in the lake: log segments below may be deleted.
    #[must_use]
    pub fn told_lake_end(&self, bucket: TableBucket) -> Option<i64> {
        self.state().ledger.told.get(&bucket).copied()
    }

    /// Loses an offsets file; whether it was there.
    #[must_use]
    pub fn lose_offsets_file(&self, path: &str) -> bool {
        self.state().ledger.remove_file(path)
    }

    /// An offsets file, as whoever reads remote data finds it.
    #[must_use]
    pub fn offsets_file(&self, path: &str) -> Option<OffsetsFile> {
        self.state().ledger.file(path).cloned()
    }

    /// Prepare with its overlay (F3.2), as a Java job does it.
    ///
    /// # Errors
    /// `Invalid` (−1) when the newest entry's file can't be read.
    pub fn prepare_raw(&self, table: TableId, path: &TablePath, offsets: &LakeOffsets, ignore_previous: bool) -> Result<String> {
        let file = OffsetsFile { table, offsets: offsets.clone() };
        let name =
            format!("file:/remote/lake/{}/{}-{table}/metadata/{}.offsets", path.database, path.table, self.runtime.rng.uuid());
        self.state().ledger.prepare(name, file, ignore_previous)
    }

    /// Record with any `earliest`, as a Java job does it: absent throws every other entry and its file away (F3.3).
    pub fn record_raw(&self, record: &LedgerRecord, earliest: Option<i64>) {
        let entry = Recorded { snapshot: record.snapshot, offsets_path: record.offsets_path.clone() };
        self.state().ledger.record(record.table, entry, earliest.map(SnapshotId), &record.offsets);
    }
}

/// Of a primary-key table that names none: its key without the partition columns (S3.5).
fn bucket_keys_of(table: &TableDescriptor) -> Vec<String> {
    let keys = if table.bucket_keys.is_empty() { &table.schema.primary_key } else { &table.bucket_keys };
    keys.iter().filter(|key| !table.partition_keys.contains(key)).cloned().collect()
}

fn freshness_ms(info: &TableInfo) -> i64 {
    i64::try_from(info.lake_freshness().as_millis()).unwrap_or(i64::MAX)
}

impl Table {
    fn add_logs(&mut self, partition: Option<PartitionId>, count: i32) {
        for bucket in (0..count).map(BucketId) {
            self.logs.insert(BucketKey { partition, bucket }, Log::default());
        }
    }

    fn partition_of(&self, rows: &RecordBatch) -> Result<Option<Partition>> {
        let mut spec = vec![];
        for key in &self.info.partition_keys {
            let at = self.info.schema.index_of(key).unwrap_or(usize::MAX);
            let (Some(field), Some(column)) = (self.info.schema.fields.get(at), rows.columns().get(at)) else {
                return Err(Error::invalid(format!("rows lack `{key}`")));
            };
            let value = value_at(column, &field.data_type.kind, 0)?.ok_or_else(|| Error::invalid(format!("`{key}` is NULL")))?;
            spec.push((key.clone(), format_value(&value, &field.data_type)?));
        }
        if spec.is_empty() {
            return Ok(None);
        }
        let found = self.partitions.values().find(|partition| partition.spec == spec).cloned();
        found.map(Some).ok_or_else(|| Error::invalid(format!("partition {spec:?} does not exist")).with_code(36))
    }

    /// The logs of one partition, by bucket.
    fn logs_of(&self, partition: Option<PartitionId>) -> impl Iterator<Item = &Log> {
        let key = |bucket| BucketKey { partition, bucket: BucketId(bucket) };
        self.logs.range(key(i32::MIN)..=key(i32::MAX)).map(|(_, log)| log)
    }

    fn actual_count(&self, partition: Option<PartitionId>) -> i32 {
        i32::try_from(self.logs_of(partition).count()).unwrap_or(i32::MAX)
    }
}

impl State {
    fn table_mut(&mut self, path: &TablePath) -> Result<&mut Table> {
        let id = self.paths.get(path).ok_or_else(|| gone(path))?;
        self.tables.get_mut(id).ok_or_else(|| gone(path))
    }

    fn table(&self, path: &TablePath) -> Result<&Table> {
        self.paths.get(path).and_then(|id| self.tables.get(id)).ok_or_else(|| gone(path))
    }

    fn log_mut(&mut self, bucket: TableBucket) -> Result<&mut Log> {
        let table = self.tables.get_mut(&bucket.table);
        table
            .and_then(|table| table.logs.get_mut(&bucket.into()))
            .ok_or_else(|| Error::invalid(format!("{bucket} does not exist")).with_code(21))
    }

    fn append_raw(&mut self, bucket: TableBucket, batch: &[u8], now_ms: i64, rng: &Rng) -> Result<i64> {
        let log = self.log_mut(bucket)?;
        let mut bytes = batch.to_vec();
        log.timestamp_ms = log.timestamp_ms.max(now_ms);
        let base = log.end;
        stamp(&mut bytes, base, log.timestamp_ms, 0)?;
        log.end = BatchHeader::parse(&bytes)?.next_offset();
        log.batches.push(bytes.into());
        self.offload(bucket, rng)?;
        Ok(base)
    }

    /// Both ends of each bucket of the table or partition; `None` when the partition is gone.
    fn ranges(&self, table: &TableInfo, partition: Option<&Partition>, layout: BucketLayout) -> Result<Option<Vec<(i64, i64)>>> {
        let Some(known) = self.tables.get(&table.id) else {
            return Err(Error::stale(format!("table `{}` is gone", table.path)).with_code(21));
        };
        let id = partition.map(|partition| partition.id);
        if id.is_some_and(|id| !known.partitions.contains_key(&id)) {
            return Ok(None);
        }
        let actual = known.actual_count(id);
        if actual != layout.count {
            return Err(wrong_routing(&table.path.to_string(), layout.count, actual));
        }
        Ok(Some(known.logs_of(id).map(|log| (log.start, log.end)).collect()))
    }

    fn fetch(&self, request: &FetchRequest, wanted: &FetchBucket, rng: &Rng) -> Result<FetchedBucket> {
        let bucket = wanted.bucket;
        let missing = || Error::stale(format!("{bucket} of `{}` is gone", request.table.path)).with_code(21);
        let table = self.tables.get(&bucket.table).ok_or_else(missing)?;
        let log = table.logs.get(&bucket.into()).ok_or_else(missing)?;
        let actual = table.actual_count(bucket.partition);
        if actual != wanted.layout.count {
            return Err(wrong_routing(&bucket.to_string(), wanted.layout.count, actual));
        }
        let from = match wanted.offset {
            StartOffset::Earliest => log.start,
            StartOffset::At(offset) => offset,
        };
        if from < log.start || from > log.end {
            let range = format!("`{}` to `{}`", log.start, log.end);
            return Err(Error::data(format!("offset `{from}` of {bucket} is out of range: the log has {range}")).with_code(19));
        }
        let remote = (from < log.local_start()).then(|| log.remote(bucket, from, &self.files, rng)).transpose()?;
        let limit = usize::try_from(wanted.bytes_max).unwrap_or_default();
        let mut raw: Vec<u8> = vec![];
        for batch in &log.batches {
            if remote.is_some() || BatchHeader::parse(batch)?.next_offset() <= from {
                continue;
            }
            // One whole batch always; then as a real server: exactly the limit, the last batch cut off (D2).
            let room = if raw.is_empty() { batch.len() } else { limit.saturating_sub(raw.len()) };
            raw.extend(batch.iter().take(room));
            if raw.len() >= limit {
                break;
            }
        }
        let log_slice = LogSlice::new(bucket, LogFormat::of(&table.info)?, raw.into(), table.schemas.clone())?;
        Ok(FetchedBucket { bucket, high_watermark: log.end, log: log_slice, remote })
    }
}

/// One service's way into a [`MemoryCluster`], with that service's faults.
#[derive(Debug, Clone)]
pub struct MemoryService {
    cluster: MemoryCluster,
    faults: Faults,
    absent: bool,
}

impl MemoryService {
    /// The cluster behind it.
    #[must_use]
    pub const fn cluster(&self) -> &MemoryCluster {
        &self.cluster
    }

    /// Records with `earliest_snapshot_id_to_keep` absent from now on, as nobody should (commit.md 6): for the mutation check.
    #[must_use]
    pub fn without_earliest(self) -> Self {
        Self { absent: true, ..self }
    }

    async fn call<T>(
        &self,
        act: &'static str,
        target: &TablePath,
        work: impl FnOnce(&MemoryCluster) -> Result<T> + Send,
    ) -> Result<T> {
        let fault = self.faults.before(act, &target.to_string()).await?;
        let result = work(&self.cluster)?;
        faults::after(fault.as_ref(), act)?;
        Ok(result)
    }
}

#[async_trait]
impl Assignments for MemoryService {
    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatReply> {
        let fault = self.faults.before("heartbeat", "").await?;
        let now_ms = self.cluster.now_ms();
        let reply = self.cluster.state().queue.heartbeat(&heartbeat, now_ms);
        faults::after(fault.as_ref(), "heartbeat")?;
        Ok(reply)
    }
}

#[async_trait]
impl TableScan for MemoryService {
    async fn table_info(&self, path: &TablePath) -> Result<TableInfo> {
        self.call("table_info", path, |cluster| cluster.state().table(path).map(|table| table.info.clone())).await
    }

    async fn schema(&self, path: &TablePath, id: SchemaId) -> Result<Arc<Schema>> {
        self.call("schema", path, |cluster| {
            let schema = cluster.state().table(path)?.schemas.get(&id).cloned();
            schema.ok_or_else(|| Error::unavailable(format!("schema `{id}` of `{path}` is not known")).with_code(9))
        })
        .await
    }

    async fn partitions(&self, table: &TableInfo) -> Result<Vec<Partition>> {
        self.call("partitions", &table.path, |cluster| {
            let state = cluster.state();
            let found = state.table(&table.path)?;
            if !found.info.is_partitioned() {
                return Err(Error::invalid(format!("table `{}` has no partitions", table.path)).with_code(37));
            }
            Ok(found.partitions.values().cloned().collect())
        })
        .await
    }

    async fn end_offsets(
        &self,
        table: &TableInfo,
        partition: Option<&Partition>,
        layout: BucketLayout,
    ) -> Result<Option<Vec<i64>>> {
        let ranges = self.call("end_offsets", &table.path, |cluster| cluster.state().ranges(table, partition, layout)).await?;
        Ok(ranges.map(|ranges| ranges.into_iter().map(|(_, end)| end).collect()))
    }

    async fn start_offsets(
        &self,
        table: &TableInfo,
        partition: Option<&Partition>,
        layout: BucketLayout,
    ) -> Result<Option<Vec<i64>>> {
        let ranges = self.call("start_offsets", &table.path, |cluster| cluster.state().ranges(table, partition, layout)).await?;
        Ok(ranges.map(|ranges| ranges.into_iter().map(|(start, _)| start).collect()))
    }

    async fn lanes(&self, table: &TableInfo, buckets: &[TableBucket]) -> Result<Vec<Vec<TableBucket>>> {
        self.call("lanes", &table.path, |cluster| {
            let servers = cluster.state().servers;
            let mut lanes = vec![vec![]; servers];
            for bucket in buckets {
                let server = usize::try_from(bucket.bucket.0).unwrap_or_default() % servers;
                if let Some(lane) = lanes.get_mut(server) {
                    lane.push(*bucket);
                }
            }
            lanes.retain(|lane| !lane.is_empty());
            Ok(lanes)
        })
        .await
    }

    async fn fetch(&self, request: FetchRequest) -> Result<Vec<FetchedBucket>> {
        let fault = self.faults.before("fetch", &request.table.path.to_string()).await?;
        let rng = &self.cluster.runtime.rng;
        let fetch = || {
            let state = self.cluster.state();
            request.buckets.iter().map(|wanted| state.fetch(&request, wanted, rng)).collect::<Result<Vec<_>>>()
        };
        let mut fetched = fetch()?;
        if request.wait_ms > 0 && fetched.iter().all(|bucket| bucket.log.is_empty() && bucket.remote.is_none()) {
            let wait = Duration::from_millis(request.wait_ms.unsigned_abs().into());
            self.cluster.runtime.clock.sleep(wait).await;
            fetched = fetch()?;
        }
        faults::after(fault.as_ref(), "fetch")?;
        Ok(fetched)
    }

    async fn serves_states(&self) -> Result<bool> {
        // What a server speaks is known from the connection.
        Ok(!self.cluster.state().no_states)
    }

    async fn open_state(&self, request: StateRequest) -> Result<Box<dyn StateScan>> {
        self.open_scan(request).await
    }

    async fn remote_bytes(&self, url: &str, start: u64, end: u64) -> Result<Option<Bytes>> {
        let fault = self.faults.before("remote_bytes", url).await?;
        let bytes = self.cluster.remote_bytes(url, start, end)?;
        faults::after(fault.as_ref(), "remote_bytes")?;
        Ok(bytes)
    }

    fn forget(&self, _path: &TablePath) {}
}

#[async_trait]
impl LakeLedger for MemoryService {
    async fn latest(&self, path: &TablePath) -> Result<LedgerState> {
        self.call("latest", path, |cluster| {
            let (now_ms, state) = (cluster.now_ms(), cluster.state());
            let Some(id) = state.paths.get(path) else { return Ok(LedgerState::TableGone) };
            Ok(match state.ledger.latest(*id) {
                LedgerState::At(_) if now_ms < state.unreadable_until_ms => {
                    LedgerState::Unknown { message: "the coordinator is starting".to_owned() }
                }
                latest => latest,
            })
        })
        .await
    }

    async fn prepare(&self, table: TableId, path: &TablePath, offsets: &LakeOffsets) -> Result<String> {
        self.call("prepare", path, |cluster| cluster.prepare_raw(table, path, offsets, true)).await
    }

    async fn offsets_file(&self, path: &str) -> Result<Option<OffsetsFile>> {
        let fault = self.faults.before("offsets_file", path).await?;
        faults::after(fault.as_ref(), "offsets_file")?;
        Ok(self.cluster.state().ledger.file(path).cloned())
    }

    async fn record(&self, record: LedgerRecord) -> Result<()> {
        let fault = self.faults.before("record", &record.path.to_string()).await?;
        let earliest = (!self.absent).then_some(record.earliest_to_keep);
        match fault {
            Some(Fault::Lost) => Ok(()),
            Some(Fault::Late(release)) => {
                let cluster = self.cluster.clone();
                tokio::spawn(async move {
                    release.cancelled().await;
                    cluster.record_raw(&record, earliest);
                });
                Err(Error::unavailable("injected: the reply to record was lost"))
            }
            other => {
                self.cluster.record_raw(&record, earliest);
                faults::after(other.as_ref(), "record")
            }
        }
    }
}

#[cfg(test)]
mod tests;
