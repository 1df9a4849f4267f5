//! The registry: databases, tables, schemas, partitions and counters as JSON records in redb, all of them also in memory.
//!
//! Owns what is stored and that a change is one transaction, checked against what its maker saw and against this coordinator's
//! epoch. Owns no rules (see `validate.rs`), no logs and no lake. Called by the server's DDL and look-ups.
//!
//! Keys are the paths that Fluss uses in ZooKeeper (S3.3).

mod options;
mod records;
mod store;
mod validate;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard};

use crate::error::{Error, Kind, Result};
use crate::fluss::code::Code;
use crate::fluss::table_json::{schema_from_json, schema_to_json};
use crate::model::{BucketCountEpoch, CoordinatorEpoch, Partition, PartitionId, Schema, SchemaId, TableId, TableInfo, TablePath};
use crate::node::places::guarded;
use crate::runtime::FailPoints;

pub use options::{AutoPartition, TimeUnit, freshness_ms, lake_enabled, log_ttl_ms};
pub use records::{DatabaseDescriptor, DatabaseRecord};
use records::{PartitionRecord, Record, TableRecord, from_json, to_json};
#[cfg(test)]
pub(super) use store::Moment;
use store::{Change, Store};
pub use validate::{Limits, added_columns, altered_options, check_name, complete, partition_of, rescales};

/// Attempts at the transaction of a rescale (F4.4).
const RESCALE_ATTEMPTS: usize = 3;
/// Writer ids are taken from the store in blocks of this size: what a crash leaves unused is skipped.
const WRITER_BLOCK: i64 = 100;

/// A table as it is at one moment: a change makes a new value.
#[derive(Debug, Clone)]
pub struct Table {
    /// What GetTableInfo tells, without the lake catalog's options.
    pub info: TableInfo,
    /// All schemas it ever had.
    pub schemas: BTreeMap<SchemaId, Arc<Schema>>,
    /// Partitions by name.
    pub partitions: BTreeMap<String, Arc<Partition>>,
    /// Partitions by id.
    pub partitions_by_id: BTreeMap<PartitionId, Arc<Partition>>,
}

impl Table {
    fn put_partition(&mut self, partition: Partition) {
        let partition = Arc::new(partition);
        self.partitions_by_id.insert(partition.id, Arc::clone(&partition));
        self.partitions.insert(partition.name(), partition);
    }
}

#[derive(Debug, Default)]
struct Content {
    databases: BTreeMap<String, DatabaseRecord>,
    tables: BTreeMap<TablePath, Arc<Table>>,
    paths: BTreeMap<TableId, TablePath>,
}

/// The registry.
#[derive(Debug)]
pub struct Registry {
    store: Arc<Store>,
    epoch: CoordinatorEpoch,
    content: RwLock<Content>,
    locks: Mutex<BTreeMap<String, Arc<tokio::sync::RwLock<()>>>>,
    /// Serialises what takes from a counter: the record in the store is written with what it numbers.
    counters: tokio::sync::Mutex<Counters>,
    writers: AtomicI64,
}

#[derive(Debug)]
struct Counters {
    table: i64,
    partition: i64,
    writer_block_end: i64,
}

/// Held while a table is changed: nobody else changes it, its partitions, or drops its database.
#[derive(Debug)]
pub struct TableLock {
    _database: OwnedRwLockReadGuard<()>,
    _table: OwnedRwLockWriteGuard<()>,
}

const TABLE_COUNTER: &str = "/metadata/table_seqid";
const PARTITION_COUNTER: &str = "/metadata/partition_seqid";
const WRITER_COUNTER: &str = "/metadata/writer_id";
const DATABASES: &str = "/metadata/databases/";
/// The database that exists from the start and can't be dropped.
pub const DEFAULT_DATABASE: &str = "fluss";

fn database_key(database: &str) -> String {
    format!("{DATABASES}{database}")
}

fn table_key(path: &TablePath) -> String {
    format!("{DATABASES}{}/tables/{}", path.database, path.table)
}

fn schema_key(path: &TablePath, id: SchemaId) -> String {
    format!("{}/schemas/{id}", table_key(path))
}

fn partition_key(path: &TablePath, name: &str) -> String {
    format!("{}/partitions/{name}", table_key(path))
}

/// Key of a table's lake snapshots.
fn lake_key(table: TableId) -> String {
    format!("/tables/{table}/laketable")
}

impl Registry {
    /// Opens the registry in the file at `path`, made when missing, as a coordinator with a new epoch (blocking).
    ///
    /// # Errors
    /// `Unavailable` when another process has it open or it can't be read; `Data` when a record is wrong.
    pub fn open(path: &Path, now_ms: i64, fail: FailPoints) -> Result<Self> {
        let (store, epoch, records) = guarded(path, || {
            let (store, epoch) = Store::open(path, fail)?;
            let records = store.scan("/metadata/")?;
            Ok((store, epoch, records))
        })?;
        let counter = |key: &str| -> Result<i64> {
            let Some(text) = records.get(key) else { return Ok(0) };
            text.parse().map_err(|source| Error::data(format!("registry counter `{key}` is `{text}`")).with_source(source))
        };
        let (table, partition, writer) = (counter(TABLE_COUNTER)?, counter(PARTITION_COUNTER)?, counter(WRITER_COUNTER)?);
        let mut content = Content::default();
        for (key, json) in &records {
            if let [database] = parts(key).as_slice() {
                content.databases.insert((*database).to_owned(), from_json(key, json)?);
            }
        }
        for table in tables_of(&records)? {
            content.paths.insert(table.info.id, table.info.path.clone());
            content.tables.insert(table.info.path.clone(), Arc::new(table));
        }
        let registry = Self {
            store: Arc::new(store),
            epoch,
            content: RwLock::new(content),
            locks: Mutex::default(),
            counters: tokio::sync::Mutex::new(Counters { table, partition, writer_block_end: writer }),
            writers: AtomicI64::new(writer),
        };
        if registry.read().databases.is_empty() {
            let record = DatabaseRecord::new(None, BTreeMap::new(), now_ms);
            registry.store.write(vec![Change::Put(database_key(DEFAULT_DATABASE), to_json(&record)?)], epoch)?;
            registry.change(|content| content.databases.insert(DEFAULT_DATABASE.to_owned(), record));
        }
        Ok(registry)
    }

    /// Epoch of this coordinator: grows with each start.
    #[must_use]
    pub fn epoch(&self) -> CoordinatorEpoch {
        self.epoch
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Content> {
        self.content.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, act: impl FnOnce(&mut Content) -> T) -> T {
        act(&mut self.content.write().unwrap_or_else(PoisonError::into_inner))
    }

    async fn write(&self, changes: Vec<Change>) -> Result<()> {
        let (store, epoch) = (Arc::clone(&self.store), self.epoch);
        tokio::task::spawn_blocking(move || store.write(changes, epoch))
            .await
            .map_err(|source| Error::internal("registry task ended").with_source(source))?
    }

    fn lock(&self, name: &str) -> Arc<tokio::sync::RwLock<()>> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(name.to_owned()).or_default())
    }

    /// Locks a table against other changes; whether it exists is for the caller to look at afterwards.
    pub async fn lock_table(&self, path: &TablePath) -> TableLock {
        let database = self.lock(&path.database).read_owned().await;
        TableLock { _database: database, _table: self.lock(&path.to_string()).write_owned().await }
    }

    /// Locks a database against changes of itself and of its tables.
    pub async fn lock_database(&self, database: &str) -> OwnedRwLockWriteGuard<()> {
        self.lock(database).write_owned().await
    }

    /// All databases, in name order.
    #[must_use]
    pub fn databases(&self) -> BTreeMap<String, DatabaseRecord> {
        self.read().databases.clone()
    }

    /// One database.
    ///
    /// # Errors
    /// 4 when it does not exist.
    pub fn database(&self, name: &str) -> Result<DatabaseRecord> {
        let found = self.read().databases.get(name).cloned();
        found.ok_or_else(|| Code::DATABASE_NOT_EXIST.answer(format!("database `{name}` does not exist")))
    }

    /// Adds or replaces a database record.
    ///
    /// # Errors
    /// `Unavailable` when it can't be stored.
    pub async fn put_database(&self, name: &str, record: DatabaseRecord) -> Result<()> {
        self.write(vec![Change::Put(database_key(name), to_json(&record)?)]).await?;
        self.change(|content| content.databases.insert(name.to_owned(), record));
        Ok(())
    }

    /// Removes a database record; its tables are gone already.
    ///
    /// # Errors
    /// `Unavailable` when it can't be stored.
    pub async fn remove_database(&self, name: &str) -> Result<()> {
        self.write(vec![Change::Delete(database_key(name))]).await?;
        self.change(|content| content.databases.remove(name));
        Ok(())
    }

    /// Names of a database's tables, in order.
    #[must_use]
    pub fn table_names(&self, database: &str) -> Vec<String> {
        let content = self.read();
        let first = TablePath::new(database, "");
        content
            .tables
            .range(first..)
            .map(|(path, _)| path)
            .take_while(|path| path.database == database)
            .map(|path| path.table.clone())
            .collect()
    }

    /// All tables.
    #[must_use]
    pub fn tables(&self) -> Vec<Arc<Table>> {
        self.read().tables.values().cloned().collect()
    }

    /// A table by its path.
    ///
    /// # Errors
    /// 7 when it does not exist.
    pub fn table(&self, path: &TablePath) -> Result<Arc<Table>> {
        let found = self.read().tables.get(path).cloned();
        found.ok_or_else(|| Code::TABLE_NOT_EXIST.answer(format!("table `{path}` does not exist")))
    }

    /// A table by its id.
    #[must_use]
    pub fn table_by_id(&self, id: TableId) -> Option<Arc<Table>> {
        let content = self.read();
        content.paths.get(&id).and_then(|path| content.tables.get(path)).cloned()
    }

    /// Adds a table under the lock of its path. `info` gets the next table id.
    ///
    /// # Errors
    /// `Unavailable` when it can't be stored.
    pub async fn create_table(&self, mut info: TableInfo, _lock: &TableLock) -> Result<Arc<Table>> {
        let mut counters = self.counters.lock().await;
        info.id = TableId(counters.table);
        let schemas = BTreeMap::from([(info.schema.id, Arc::clone(&info.schema))]);
        let table = Table { info, schemas, partitions: BTreeMap::new(), partitions_by_id: BTreeMap::new() };
        let path = &table.info.path;
        let next = counters.table + 1;
        self.write(vec![
            absent(table_key(path)),
            Change::Put(TABLE_COUNTER.to_owned(), next.to_string()),
            Change::Put(schema_key(path, table.info.schema.id), schema_to_json(&table.info.schema)?),
            Change::Put(table_key(path), to_json(&record_of(&table.info))?),
        ])
        .await?;
        counters.table = next;
        Ok(self.show(table))
    }

    fn show(&self, table: Table) -> Arc<Table> {
        let table = Arc::new(table);
        self.change(|content| {
            content.paths.insert(table.info.id, table.info.path.clone());
            content.tables.insert(table.info.path.clone(), Arc::clone(&table));
        });
        #[cfg(test)]
        self.store.meet(&Moment::Shown);
        table
    }

    /// Replaces what `before` says by `after` (same table): options, a new schema.
    ///
    /// # Errors
    /// `Stale` when the stored table is not `before` any more; `Unavailable` when it can't be stored.
    pub async fn alter_table(&self, before: &Table, after: TableInfo, _lock: &TableLock) -> Result<Arc<Table>> {
        let mut table = before.clone();
        let path = &after.path;
        let mut changes = vec![same_table(&before.info), Change::Put(table_key(path), to_json(&record_of(&after))?)];
        if after.schema.id != before.info.schema.id {
            changes.push(Change::Put(schema_key(path, after.schema.id), schema_to_json(&after.schema)?));
            table.schemas.insert(after.schema.id, Arc::clone(&after.schema));
        }
        table.info = after;
        self.write(changes).await?;
        Ok(self.show(table))
    }

    /// Sets the count for partitions made from now on: count, epoch + 1, and the old count for every partition that has none of
    /// its own, in one transaction that compares all the records it replaces (F4.4). Where one of them was changed meanwhile, all
    /// is read and judged again, up to three times. The table as it is then; unchanged if it has that count already.
    ///
    /// # Errors
    /// As [`rescales`]; 7 when the table is gone; 65 when another coordinator has taken over; `Stale` when a record was changed again
    /// and again; `Unavailable` when it can't be stored.
    pub async fn rescale_table(
        &self,
        path: &TablePath,
        count: i32,
        limits: &Limits,
        now_ms: i64,
        _lock: &TableLock,
    ) -> Result<Arc<Table>> {
        let mut before = self.table(path)?;
        let mut attempt = 1;
        while rescales(&before, count, limits)? {
            let (after, changes) = rescaled(&before, count, now_ms)?;
            match self.write(changes).await {
                Ok(()) => return Ok(self.show(after)),
                Err(error) if error.kind() == Kind::Stale && attempt < RESCALE_ATTEMPTS => {
                    before = self.reload(path, before.info.id).await?;
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(before)
    }

    /// The table as it is stored, whatever is remembered of it.
    async fn reload(&self, path: &TablePath, id: TableId) -> Result<Arc<Table>> {
        let (store, prefix) = (Arc::clone(&self.store), table_key(path));
        let records = tokio::task::spawn_blocking(move || store.scan(&prefix))
            .await
            .map_err(|source| Error::internal("registry task ended").with_source(source))??;
        let found = tables_of(&records)?.into_iter().find(|table| table.info.path == *path && table.info.id == id);
        found
            .map(|table| self.show(table))
            .ok_or_else(|| Code::TABLE_NOT_EXIST.answer(format!("table `{path}` was dropped meanwhile")))
    }

    /// Removes a table with all that belongs to it.
    ///
    /// # Errors
    /// `Unavailable` when it can't be stored.
    pub async fn drop_table(&self, table: &Table) -> Result<()> {
        let path = &table.info.path;
        let mut changes = vec![Change::Delete(table_key(path)), Change::Delete(lake_key(table.info.id))];
        changes.extend(table.schemas.keys().map(|id| Change::Delete(schema_key(path, *id))));
        changes.extend(table.partitions.keys().map(|name| Change::Delete(partition_key(path, name))));
        self.write(changes).await?;
        self.change(|content| {
            content.tables.remove(path);
            content.paths.remove(&table.info.id);
        });
        Ok(())
    }

    /// Adds a partition with the table's count of this moment (read under the lock).
    ///
    /// # Errors
    /// 7 when the table is gone; `Unavailable` when it can't be stored.
    pub async fn create_partition(&self, path: &TablePath, spec: Vec<(String, String)>, _lock: &TableLock) -> Result<Arc<Table>> {
        let before = self.table(path)?;
        let mut counters = self.counters.lock().await;
        let partition = Partition { id: PartitionId(counters.partition), spec, bucket_count: Some(before.info.bucket_count) };
        let key = partition_key(path, &partition.name());
        let next = counters.partition + 1;
        self.write(vec![
            absent(key.clone()),
            // The count that is stamped is the one that the table has when the stamp is stored.
            same_table(&before.info),
            Change::Put(PARTITION_COUNTER.to_owned(), next.to_string()),
            Change::Put(key, to_json(&PartitionRecord::of(before.info.id, &partition))?),
        ])
        .await?;
        counters.partition = next;
        let mut table = Table::clone(&before);
        table.put_partition(partition);
        Ok(self.show(table))
    }

    /// Removes a partition.
    ///
    /// # Errors
    /// 7 when the table is gone; `Unavailable` when it can't be stored.
    pub async fn drop_partition(&self, path: &TablePath, name: &str, _lock: &TableLock) -> Result<()> {
        let mut table = Table::clone(&*self.table(path)?);
        self.write(vec![Change::Delete(partition_key(path, name))]).await?;
        if let Some(partition) = table.partitions.remove(name) {
            table.partitions_by_id.remove(&partition.id);
        }
        self.show(table);
        Ok(())
    }

    /// A writer id that was never given before and never will be again.
    ///
    /// # Errors
    /// `Unavailable` when the block it comes from can't be stored.
    pub async fn next_writer_id(&self) -> Result<i64> {
        let mut counters = self.counters.lock().await;
        let id = self.writers.load(Ordering::Relaxed);
        if id >= counters.writer_block_end {
            let end = id + WRITER_BLOCK;
            self.write(vec![Change::Put(WRITER_COUNTER.to_owned(), end.to_string())]).await?;
            counters.writer_block_end = end;
        }
        self.writers.store(id + 1, Ordering::Relaxed);
        Ok(id)
    }

    /// The record of a table's lake snapshots, if there is one.
    ///
    /// # Errors
    /// `Unavailable` when it can't be read.
    pub async fn lake_record(&self, table: TableId) -> Result<Option<String>> {
        let store = Arc::clone(&self.store);
        tokio::task::spawn_blocking(move || store.get(&lake_key(table)))
            .await
            .map_err(|source| Error::internal("registry task ended").with_source(source))?
    }

    /// Stores the record of a table's lake snapshots. Not bound to the table's existence (F3.3).
    ///
    /// # Errors
    /// `Unavailable` when it can't be stored.
    pub async fn put_lake_record(&self, table: TableId, json: String) -> Result<()> {
        self.write(vec![Change::Put(lake_key(table), json)]).await
    }
}

/// The parts of a key behind [`DATABASES`]; none for other keys.
fn parts(key: &str) -> Vec<&str> {
    key.strip_prefix(DATABASES).map(|rest| rest.split('/').collect()).unwrap_or_default()
}

/// The tables in `records`, with their schemas and partitions.
fn tables_of(records: &BTreeMap<String, String>) -> Result<Vec<Table>> {
    // A table's key comes before those of its schemas and partitions, except where another name begins with the same letters: take
    // them kind by kind.
    let mut tables = BTreeMap::new();
    for (key, json) in records {
        if let [database, _, table] = parts(key).as_slice() {
            let record: TableRecord = from_json(key, json)?;
            tables.insert(TablePath::new(*database, *table), (record, BTreeMap::new(), Vec::new()));
        }
    }
    for (key, json) in records {
        let parts = parts(key);
        let [database, _, table, kind, name] = parts.as_slice() else { continue };
        let Some((record, schemas, partitions)) = tables.get_mut(&TablePath::new(*database, *table)) else {
            return Err(Error::data(format!("registry record `{key}` belongs to no table")));
        };
        match *kind {
            "schemas" => {
                let id = name.parse().map(SchemaId);
                let id =
                    id.map_err(|source| Error::data(format!("registry key `{key}` names no schema id")).with_source(source))?;
                schemas.insert(id, Arc::new(schema_from_json(json.as_bytes(), id)?));
            }
            "partitions" => {
                let found: PartitionRecord = from_json(key, json)?;
                let values = name.split('$').map(str::to_owned);
                let spec = record.partition_key.iter().cloned().zip(values).collect();
                partitions.push(Partition { id: found.partition_id, spec, bucket_count: found.bucket_count });
            }
            _ => {}
        }
    }
    tables.into_iter().map(|(path, (record, schemas, partitions))| table_of(path, record, schemas, partitions)).collect()
}

/// What `before` becomes by a rescale to `count`, and the transaction.
fn rescaled(before: &Table, count: i32, now_ms: i64) -> Result<(Table, Vec<Change>)> {
    let (mut table, info, path) = (before.clone(), &before.info, &before.info.path);
    table.info.bucket_count = count;
    table.info.bucket_count_epoch = BucketCountEpoch(info.bucket_count_epoch.0.saturating_add(1));
    table.info.modified_ms = now_ms;
    let mut changes = vec![same_table(info), Change::Put(table_key(path), to_json(&record_of(&table.info))?)];
    for (name, partition) in before.partitions.iter().filter(|(_, partition)| partition.bucket_count.is_none()) {
        let filled = Partition { bucket_count: Some(info.bucket_count), ..Partition::clone(partition) };
        let key = partition_key(path, name);
        let expected = PartitionRecord::of(info.id, partition);
        changes.push(Change::Check(key.clone(), Box::new(move |found| holds(found, &expected))));
        changes.push(Change::Put(key, to_json(&PartitionRecord::of(info.id, &filled))?));
        table.put_partition(filled);
    }
    Ok((table, changes))
}

#[cfg(test)]
impl Registry {
    /// Has `hook` called for what happens to transactions from now on.
    pub(super) fn on(&self, hook: impl FnMut(&Store, &Moment<'_>) + Send + 'static) {
        *self.store.hook.lock().unwrap() = Some(Box::new(hook));
    }
}

/// Reads a record as each of its kinds, for [`crate::hostile`].
#[cfg(any(test, fuzzing))]
pub(super) fn read_record(json: &str) -> Result<()> {
    from_json::<TableRecord>("table", json).map(drop)?;
    from_json::<DatabaseRecord>("database", json).map(drop)?;
    from_json::<PartitionRecord>("partition", json).map(drop)
}

/// Puts records into the registry of a node that does not run.
#[cfg(test)]
pub(super) fn seed(file: &Path, records: &[(&str, &str)]) {
    let (store, _) = Store::open(file, FailPoints::default()).unwrap();
    for (key, json) in records {
        store.put(key, json);
    }
}

/// All records of tables and counters in a registry that no node has open.
#[cfg(test)]
pub(super) fn content(file: &Path) -> BTreeMap<String, String> {
    Store::open(file, FailPoints::default()).unwrap().0.scan("/metadata/").unwrap()
}

/// Nothing is stored at `key`.
fn absent(key: String) -> Change {
    Change::Check(key, Box::new(|found| found.is_none()))
}

/// The stored table is `info`.
fn same_table(info: &TableInfo) -> Change {
    let expected = record_of(info);
    Change::Check(table_key(&info.path), Box::new(move |found| holds(found, &expected)))
}

/// Whether `found` tells the same as `expected`, whatever server wrote it.
fn holds<R: Record>(found: Option<&str>, expected: &R) -> bool {
    found.and_then(|json| from_json::<R>("", json).ok()).is_some_and(|found| found.with_version_written() == *expected)
}

fn record_of(info: &TableInfo) -> TableRecord {
    TableRecord {
        version: 1,
        table_id: info.id,
        comment: info.comment.clone(),
        partition_key: info.partition_keys.clone(),
        bucket_key: info.bucket_keys.clone(),
        bucket_count: info.bucket_count,
        bucket_count_epoch: info.bucket_count_epoch,
        properties: info.properties.clone(),
        custom_properties: info.custom_properties.clone(),
        remote_data_dir: info.remote_data_dir.clone(),
        created_time: info.created_ms,
        modified_time: info.modified_ms,
    }
}

fn table_of(
    path: TablePath,
    record: TableRecord,
    schemas: BTreeMap<SchemaId, Arc<Schema>>,
    partitions: Vec<Partition>,
) -> Result<Table> {
    let newest = schemas.last_key_value().map(|(_, schema)| Arc::clone(schema));
    let info = TableInfo {
        schema: newest.ok_or_else(|| Error::data(format!("table `{path}` has no schema in the registry")))?,
        path,
        id: record.table_id,
        comment: record.comment,
        partition_keys: record.partition_key,
        bucket_keys: record.bucket_key,
        bucket_count: record.bucket_count,
        bucket_count_epoch: record.bucket_count_epoch,
        properties: record.properties,
        custom_properties: record.custom_properties,
        remote_data_dir: record.remote_data_dir,
        created_ms: record.created_time,
        modified_ms: record.modified_time,
    };
    let mut table = Table { info, schemas, partitions: BTreeMap::new(), partitions_by_id: BTreeMap::new() };
    for partition in partitions {
        table.put_partition(partition);
    }
    Ok(table)
}
