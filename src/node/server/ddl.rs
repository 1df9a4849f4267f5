//! Changes of databases, tables and partitions. The lake comes first, the registry last.
//!
//! Source: S3.4–3.6, S7.1, F4.4, F6.5.

use std::sync::Arc;

use super::{Server, blocking};
use crate::catalog::check_rescale;
use crate::error::{Error, Result};
use crate::fluss::code::Code;
use crate::fluss::proto::{
    AlterDatabaseRequest, AlterDatabaseResponse, AlterTableRequest, AlterTableResponse, CreateDatabaseRequest,
    CreateDatabaseResponse, CreatePartitionRequest, CreatePartitionResponse, CreateTableRequest, CreateTableResponse,
    DropDatabaseRequest, DropDatabaseResponse, DropPartitionRequest, DropPartitionResponse, DropTableRequest, DropTableResponse,
};
use crate::model::{BucketCountEpoch, PartitionId, TableId, TableInfo, TablePath, TypeKind};
use crate::node::registry::{
    AutoPartition, DEFAULT_DATABASE, DatabaseDescriptor, DatabaseRecord, Table, TableLock, added_columns, altered_options,
    check_name, complete, freshness_ms, lake_enabled, partition_of, rescales,
};

/// AlterTable requests of this version on may change the bucket count (F4.4).
const BUCKET_COUNT_VERSION: i16 = 1;

/// Checks both names of a path.
pub(super) fn check_path(path: &TablePath) -> Result<()> {
    check_name(&path.database, "database name", Code::INVALID_DATABASE)?;
    check_name(&path.table, "table name", Code::INVALID_TABLE)
}

/// What partitions a table gets by itself, if it does.
pub(super) fn auto_partition(info: &TableInfo) -> Result<Option<AutoPartition>> {
    let is_date = |key: &str| info.schema.fields.iter().any(|field| field.name == key && field.data_type.kind == TypeKind::Date);
    AutoPartition::of(&info.properties, &info.partition_keys, is_date)
}

impl Server {
    pub(super) async fn create_database(&self, request: CreateDatabaseRequest) -> Result<CreateDatabaseResponse> {
        let name = &request.database_name;
        check_name(name, "database name", Code::INVALID_DATABASE)?;
        let descriptor: DatabaseDescriptor = match request.database_json.as_deref() {
            None | Some([]) => DatabaseDescriptor::default(),
            Some(json) => serde_json::from_slice(json)
                .map_err(|source| Code::INVALID_DATABASE.answer("database JSON can't be read").with_source(source))?,
        };
        let _lock = self.registry.lock_database(name).await;
        match self.registry.database(name) {
            Ok(_) if request.ignore_if_exists => {}
            Ok(_) => return Err(Code::DATABASE_ALREADY_EXIST.answer(format!("database `{name}` exists already"))),
            Err(_) => {
                let now_ms = self.runtime.clock.now_ms();
                let record = DatabaseRecord::new(descriptor.comment, descriptor.custom_properties, now_ms);
                self.registry.put_database(name, record).await?;
            }
        }
        Ok(CreateDatabaseResponse {})
    }

    pub(super) async fn alter_database(&self, request: AlterDatabaseRequest) -> Result<AlterDatabaseResponse> {
        let name = &request.database_name;
        let _lock = self.registry.lock_database(name).await;
        let mut record = match self.registry.database(name) {
            Err(_) if request.ignore_if_not_exists => return Ok(AlterDatabaseResponse {}),
            found => found?,
        };
        for change in request.config_changes {
            match (change.op_type, change.config_value) {
                (0, Some(value)) => drop(record.custom_properties.insert(change.config_key, value)),
                (1, _) => drop(record.custom_properties.remove(&change.config_key)),
                (op, _) => return Err(Code::INVALID_DATABASE.answer(format!("operation `{op}` is not supported"))),
            }
        }
        if let Some(comment) = request.comment {
            record.comment = Some(comment).filter(|comment| !comment.is_empty());
        }
        record.modified_time = self.runtime.clock.now_ms();
        self.registry.put_database(name, record).await?;
        Ok(AlterDatabaseResponse {})
    }

    pub(super) async fn drop_database(&self, request: DropDatabaseRequest) -> Result<DropDatabaseResponse> {
        let name = &request.database_name;
        let _lock = self.registry.lock_database(name).await;
        match self.registry.database(name) {
            Err(_) if request.ignore_if_not_exists => return Ok(DropDatabaseResponse {}),
            found => drop(found?),
        }
        if name == DEFAULT_DATABASE {
            return Err(Code::UNKNOWN_SERVER_ERROR.answer(format!("database `{name}` can't be dropped")));
        }
        let tables = self.registry.table_names(name);
        if !tables.is_empty() && !request.cascade {
            return Err(Code::DATABASE_NOT_EMPTY.answer(format!("database `{name}` is not empty")));
        }
        for table in tables {
            self.drop_found(&*self.registry.table(&TablePath::new(name, table))?).await?;
        }
        self.registry.remove_database(name).await?;
        Ok(DropDatabaseResponse {})
    }

    pub(super) async fn create_table(&self, request: CreateTableRequest) -> Result<CreateTableResponse> {
        let path: TablePath = request.table_path.into();
        check_path(&path)?;
        let table = complete(&request.table_json, &self.options.limits)?;
        let lock = self.registry.lock_table(&path).await;
        self.registry.database(&path.database)?;
        if self.registry.table(&path).is_ok() {
            return match request.ignore_if_exists {
                true => Ok(CreateTableResponse {}),
                false => Err(Code::TABLE_ALREADY_EXIST.answer(format!("table `{path}` exists already"))),
            };
        }
        let now_ms = self.runtime.clock.now_ms();
        let info = TableInfo {
            path,
            // The registry gives it one.
            id: TableId(-1),
            schema: Arc::new(table.schema),
            comment: table.comment,
            partition_keys: table.partition_keys,
            bucket_keys: table.bucket_keys,
            bucket_count: table.bucket_count.unwrap_or(1),
            bucket_count_epoch: BucketCountEpoch(0),
            properties: table.properties,
            custom_properties: table.custom_properties,
            remote_data_dir: None,
            created_ms: now_ms,
            modified_ms: now_ms,
        };
        if lake_enabled(&info) {
            self.lake.create(&info, true).await?;
        }
        let table = self.registry.create_table(info, &lock).await?;
        self.enlist(&table.info);
        self.roll_partitions(&table, &lock).await;
        Ok(CreateTableResponse {})
    }

    /// Puts a lake table into the tiering queue.
    fn enlist(&self, info: &TableInfo) {
        if lake_enabled(info) {
            let now_ms = self.uptime_ms();
            self.queue().add(info.id, info.path.clone(), freshness_ms(info), now_ms);
        }
    }

    pub(super) async fn drop_table(&self, request: DropTableRequest) -> Result<DropTableResponse> {
        let path: TablePath = request.table_path.into();
        let _lock = self.registry.lock_table(&path).await;
        match self.registry.table(&path) {
            Err(_) if request.ignore_if_not_exists => {}
            found => self.drop_found(&*found?).await?,
        }
        Ok(DropTableResponse {})
    }

    /// Drops a table under its lock or its database's. The lake table stays, as with Fluss.
    async fn drop_found(&self, table: &Table) -> Result<()> {
        self.registry.drop_table(table).await?;
        self.queue().remove(table.info.id);
        self.forget_lake_ends(table.info.id);
        self.delete_logs(table.info.id, None).await;
        Ok(())
    }

    /// Deletes the files of what is gone from the registry; if that fails, the next start does it.
    async fn delete_logs(&self, table: TableId, partition: Option<PartitionId>) {
        self.scanners.forget(table, partition);
        let (logs, states) = (Arc::clone(&self.logs), Arc::clone(&self.states));
        let deleted = blocking(move || logs.delete(table, partition).and(states.delete(table, partition))).await;
        if let Err(error) = deleted.and_then(|deleted| deleted) {
            tracing::warn!(%table, error = %error.chain(), "files of a dropped table stay until the next start");
        }
    }

    pub(super) async fn alter_table(&self, version: i16, request: AlterTableRequest) -> Result<AlterTableResponse> {
        let path: TablePath = request.table_path.clone().into();
        if request.modify_bucket_count.is_some() && version < BUCKET_COUNT_VERSION {
            let text = format!("a change of the bucket count needs AlterTable version `{BUCKET_COUNT_VERSION}`, not `{version}`");
            return Err(Code::UNSUPPORTED_VERSION.answer(text));
        }
        let lock = self.registry.lock_table(&path).await;
        let table = match self.registry.table(&path) {
            Err(_) if request.ignore_if_not_exists => return Ok(AlterTableResponse {}),
            found => found?,
        };
        let refuse = |text: &str| Err(Code::INVALID_ALTER_TABLE.answer(format!("table `{path}`: {text}")));
        let (options, columns) = (!request.config_changes.is_empty(), !request.add_columns.is_empty());
        let others = !request.drop_columns.is_empty() || !request.rename_columns.is_empty() || !request.modify_columns.is_empty();
        match (&request.modify_bucket_count, options, columns, others) {
            (_, _, _, true) => refuse("columns can't be dropped, renamed or modified"),
            (Some(_), true, _, _) | (Some(_), _, true, _) => refuse("the bucket count must be changed alone"),
            (None, true, true, _) => refuse("options and columns must be changed apart"),
            (Some(change), false, false, false) => self.rescale(&table, change.new_bucket_count, &lock).await,
            (None, false, true, false) => self.add_columns(&table, &request, &lock).await,
            (None, true, false, false) => self.alter_options(&table, &request, &lock).await,
            (None, false, false, false) => Ok(()),
        }?;
        Ok(AlterTableResponse {})
    }

    /// `bucket.num`: for partitions made from now on (F4.4).
    async fn rescale(&self, table: &Table, count: i32, lock: &TableLock) -> Result<()> {
        let (info, limits) = (&table.info, &self.options.limits);
        if !rescales(table, count, limits)? {
            return Ok(());
        }
        check_rescale(info)?;
        let in_lake = info.has_lake_count();
        if in_lake {
            self.lake.set_bucket_count(info, count).await.map_err(|error| {
                let text = format!(
                    "table `{}`: the lake did not take bucket count `{count}`; nothing was changed in Fluss, run the same ALTER again",
                    info.path
                );
                Code::of(&error).answer(text).with_source(error)
            })?;
        }
        let recorded = self.registry.rescale_table(&info.path, count, limits, self.runtime.clock.now_ms(), lock).await;
        let table = recorded.map_err(|error| {
            let lake = if in_lake { ", though the lake has it already" } else { "" };
            let text =
                format!("table `{}`: bucket count `{count}` could not be recorded{lake}; run the same ALTER again", info.path);
            Code::of(&error).answer(text).with_source(error)
        })?;
        tracing::info!(
            table = %info.path, from = info.bucket_count, to = count, epoch = %table.info.bucket_count_epoch, "bucket count changed"
        );
        Ok(())
    }

    async fn add_columns(&self, table: &Table, request: &AlterTableRequest, lock: &TableLock) -> Result<()> {
        let mut after = table.info.clone();
        after.schema = Arc::new(added_columns(&table.info.schema, &request.add_columns)?);
        after.modified_ms = self.runtime.clock.now_ms();
        if table.info.has_lake_table() {
            self.lake.alter(&table.info, &after).await.map_err(|error| {
                let text = format!(
                    "table `{}`: the lake refused the columns; nothing was changed in Fluss, run the same ALTER again",
                    table.info.path
                );
                Code::of(&error).answer(text).with_source(error)
            })?;
        }
        self.runtime.fail.hit("node.add_columns").await?;
        let schema = after.schema.id;
        self.registry.alter_table(table, after, lock).await?;
        tracing::info!(table = %table.info.path, %schema, columns = request.add_columns.len(), "columns added");
        Ok(())
    }

    async fn alter_options(&self, table: &Table, request: &AlterTableRequest, lock: &TableLock) -> Result<()> {
        let before = &table.info;
        let mut after = altered_options(before, &request.config_changes, &self.options.limits)?;
        after.modified_ms = self.runtime.clock.now_ms();
        let (was, is) = (lake_enabled(before), lake_enabled(&after));
        if before.has_lake_table() {
            self.lake.alter(before, &after).await?;
        }
        if is && !was {
            self.lake.create(&after, false).await?;
        }
        let table = self.registry.alter_table(table, after, lock).await?;
        match (was, is) {
            (false, true) => self.enlist(&table.info),
            (true, false) => self.queue().remove(table.info.id),
            (true, true) => self.queue().set_freshness(table.info.id, freshness_ms(&table.info)),
            (false, false) => {}
        }
        self.roll_partitions(&table, lock).await;
        Ok(())
    }

    pub(super) async fn create_partition(&self, request: CreatePartitionRequest) -> Result<CreatePartitionResponse> {
        let path: TablePath = request.table_path.into();
        let lock = self.registry.lock_table(&path).await;
        let table = self.registry.table(&path)?;
        let spec = partition_of(&table.info, &request.partition_spec.partition_key_values, true)?;
        if let Some(auto) = auto_partition(&table.info)?
            && let Some((_, value)) = spec.iter().find(|(key, _)| *key == auto.key)
        {
            let refuse = |text: &str| Err(Code::PARTITION_SPEC_INVALID.answer(format!("partition value `{value}` {text}")));
            if !auto.fits(value) {
                return refuse("is not written as the table's time unit asks");
            }
            if auto.is_expired(value, self.runtime.clock.now_ms()) {
                return refuse("is older than what the table keeps");
            }
        }
        match self.add_partition(&table, spec, &lock).await {
            Err(error) if request.ignore_if_not_exists && Code::of(&error) == Code::PARTITION_ALREADY_EXISTS => {}
            outcome => drop(outcome?),
        }
        Ok(CreatePartitionResponse {})
    }

    /// Adds a partition that is not there yet, within the bounds.
    pub(super) async fn add_partition(&self, table: &Table, spec: Vec<(String, String)>, lock: &TableLock) -> Result<Arc<Table>> {
        let path = &table.info.path;
        let name = spec.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join("$");
        if table.partitions.contains_key(&name) {
            return Err(Code::PARTITION_ALREADY_EXISTS.answer(format!("table `{path}` has partition `{name}` already")));
        }
        for (key, value) in &spec {
            let field = table.info.schema.fields.iter().find(|field| field.name == *key);
            let field = field.ok_or_else(|| Error::internal(format!("partition key `{key}` of `{path}` is no column")))?;
            crate::fluss::partition::parse_value(value, &field.data_type)
                .map_err(|error| Code::PARTITION_SPEC_INVALID.answer(format!("partition value of `{key}`")).with_source(error))?;
        }
        let max = self.options.limits.partitions_max;
        if table.partitions.len() >= max {
            return Err(Code::PARTITION_MAX_NUM.answer(format!("table `{path}` has `{max}` partitions, that is the limit")));
        }
        self.registry.create_partition(path, spec, lock).await
    }

    pub(super) async fn drop_partition(&self, request: DropPartitionRequest) -> Result<DropPartitionResponse> {
        let path: TablePath = request.table_path.into();
        let lock = self.registry.lock_table(&path).await;
        let table = self.registry.table(&path)?;
        let spec = partition_of(&table.info, &request.partition_spec.partition_key_values, false)?;
        let name = spec.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join("$");
        if name == "__historical__" {
            return Err(Code::PARTITION_SPEC_INVALID.answer("partition `__historical__` can't be dropped"));
        }
        if !table.partitions.contains_key(&name) && request.ignore_if_not_exists {
            return Ok(DropPartitionResponse {});
        }
        self.remove_partition(&table, &name, &lock).await?;
        Ok(DropPartitionResponse {})
    }

    /// Removes a partition, its logs and its states.
    pub(super) async fn remove_partition(&self, table: &Table, name: &str, lock: &TableLock) -> Result<()> {
        let path = &table.info.path;
        let partition = table.partitions.get(name);
        let partition =
            partition.ok_or_else(|| Code::PARTITION_NOT_EXISTS.answer(format!("table `{path}` has no partition `{name}`")))?;
        self.registry.drop_partition(path, name, lock).await?;
        self.delete_logs(table.info.id, Some(partition.id)).await;
        Ok(())
    }
}
