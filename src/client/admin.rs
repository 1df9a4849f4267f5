//! Databases, tables, partitions, bucket counts.

use crate::error::{Error, Result};
use crate::fluss::api::{ApiKey, Request};
use crate::fluss::cluster::Cluster;
use crate::fluss::code::Code;
use crate::fluss::proto::{
    AlterTableRequest, CreateDatabaseRequest, CreatePartitionRequest, CreateTableRequest, DropDatabaseRequest,
    DropPartitionRequest, DropTableRequest, ListDatabasesRequest, ListTablesRequest, PbAddColumn, PbAlterConfig, PbKeyValue,
    PbModifyBucketCount, PbPartitionSpec,
};
use crate::fluss::table_json::{TableDescriptor, table_to_json, type_to_json};
use crate::model::{Field, Partition, TableInfo, TablePath};

/// AlterTable requests of this version may change the bucket count; older servers say yes and change nothing (F4.4).
const ALTER_WITH_BUCKET_COUNT: i16 = 1;

/// Position of an added column: behind all others.
const LAST: i32 = 0;

/// Calls that change or list what a cluster holds. A change is sent at most once: after `Unavailable`, look before repeating it.
#[derive(Debug, Clone)]
pub struct Admin {
    cluster: Cluster,
}

impl Admin {
    /// Works on `cluster`.
    #[must_use]
    pub fn new(cluster: Cluster) -> Self {
        Self { cluster }
    }

    async fn change<R: Request>(&self, what: String, request: &R) -> Result<()> {
        self.cluster.coordinator_once(request).await.map(drop).map_err(|error| error.context(what))
    }

    /// Makes a database.
    ///
    /// # Errors
    /// `Invalid` with code 6 when it exists and `ignore_if_exists` is not set, 16 when the name is not allowed; `Unavailable`.
    pub async fn create_database(&self, name: &str, ignore_if_exists: bool) -> Result<()> {
        let request = CreateDatabaseRequest { database_name: name.to_owned(), ignore_if_exists, database_json: None };
        self.change(format!("create database `{name}`"), &request).await
    }

    /// Drops a database, with `cascade` its tables too.
    ///
    /// # Errors
    /// `Invalid` with code 4 when it does not exist, 5 when it has tables; `Unavailable`.
    pub async fn drop_database(&self, name: &str, ignore_if_not_exists: bool, cascade: bool) -> Result<()> {
        let request = DropDatabaseRequest { database_name: name.to_owned(), ignore_if_not_exists, cascade };
        self.change(format!("drop database `{name}`"), &request).await
    }

    /// Names of all databases.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn databases(&self) -> Result<Vec<String>> {
        Ok(self.cluster.any(&ListDatabasesRequest { include_summary: None }).await?.database_name)
    }

    /// Makes a table.
    ///
    /// # Errors
    /// `Invalid` with code 8 when it exists and `ignore_if_exists` is not set, or what the coordinator found wrong (S3.4);
    /// `Unavailable`.
    pub async fn create_table(&self, path: &TablePath, table: &TableDescriptor, ignore_if_exists: bool) -> Result<()> {
        let table_json = table_to_json(table)?.into();
        let request = CreateTableRequest { table_path: path.into(), table_json, ignore_if_exists };
        self.change(format!("create table `{path}`"), &request).await
    }

    /// Drops a table.
    ///
    /// # Errors
    /// `Invalid` with code 7 when it does not exist and `ignore_if_not_exists` is not set; `Unavailable`.
    pub async fn drop_table(&self, path: &TablePath, ignore_if_not_exists: bool) -> Result<()> {
        let request = DropTableRequest { table_path: path.into(), ignore_if_not_exists };
        self.change(format!("drop table `{path}`"), &request).await
    }

    /// Names of a database's tables.
    ///
    /// # Errors
    /// `Invalid` with code 4 when there is no such database; `Unavailable`.
    pub async fn tables(&self, database: &str) -> Result<Vec<String>> {
        let request = ListTablesRequest { database_name: database.to_owned() };
        let answer = self.cluster.any(&request).await.map_err(|error| error.context(format!("list tables of `{database}`")))?;
        Ok(answer.table_name)
    }

    /// Describes a table.
    ///
    /// # Errors
    /// `Invalid` with code 7 when there is no such table; `Unavailable`.
    pub async fn table_info(&self, path: &TablePath) -> Result<TableInfo> {
        self.cluster.table_info(path).await
    }

    /// A table's partitions.
    ///
    /// # Errors
    /// `Invalid` with code 7 or 37; `Unavailable`.
    pub async fn partitions(&self, path: &TablePath) -> Result<Vec<Partition>> {
        self.cluster.partitions(path).await
    }

    /// Makes a partition: `spec` = partition column and value text (F6.6).
    ///
    /// # Errors
    /// `Invalid` with code 42 when it exists and `ignore_if_exists` is not set, 43 when the spec is wrong; `Unavailable`.
    pub async fn create_partition(&self, path: &TablePath, spec: &[(String, String)], ignore_if_exists: bool) -> Result<()> {
        // The wire calls the flag by the other name.
        let request = CreatePartitionRequest {
            table_path: path.into(),
            partition_spec: spec_of(spec),
            ignore_if_not_exists: ignore_if_exists,
        };
        self.change(format!("create partition `{}` of table `{path}`", name_of(spec)), &request).await
    }

    /// Drops a partition.
    ///
    /// # Errors
    /// `Invalid` with code 36 when it does not exist and `ignore_if_not_exists` is not set; `Unavailable`.
    pub async fn drop_partition(&self, path: &TablePath, spec: &[(String, String)], ignore_if_not_exists: bool) -> Result<()> {
        let request = DropPartitionRequest { table_path: path.into(), partition_spec: spec_of(spec), ignore_if_not_exists };
        self.change(format!("drop partition `{}` of table `{path}`", name_of(spec)), &request).await
    }

    /// Whether the coordinator is new enough for [`Admin::alter_bucket_count`], by the version of AlterTable that it takes.
    ///
    /// # Errors
    /// `Unsupported` (2) when it is not; `Unavailable`.
    ///
    /// Source: F4.4.
    pub async fn check_bucket_count(&self) -> Result<()> {
        if self.cluster.coordinator_version(ApiKey::AlterTable).await? >= ALTER_WITH_BUCKET_COUNT {
            return Ok(());
        }
        Err(Code::UNSUPPORTED_VERSION
            .error("the coordinator is older than 1.0: it would say yes to a change of `bucket.num` and change nothing")
            .with_hint("bring all servers of the cluster to Fluss 1.0 first"))
    }

    /// Changes `bucket.num`: the bucket count of partitions made from now on.
    ///
    /// # Errors
    /// `Unsupported` (2) when the server is too old to do it (it would say yes and change nothing), `Invalid` with code 56 or 49
    /// when it refuses; `Unavailable`.
    ///
    /// Source: F4.4.
    pub async fn alter_bucket_count(&self, path: &TablePath, count: i32) -> Result<()> {
        let what = format!("change `bucket.num` of table `{path}` to `{count}`");
        self.check_bucket_count().await.map_err(|error| error.context(what.clone()))?;
        let modify_bucket_count = Some(PbModifyBucketCount { new_bucket_count: count });
        let changed =
            self.change(what, &AlterTableRequest { table_path: path.into(), modify_bucket_count, ..Default::default() }).await;
        self.cluster.forget(path);
        changed
    }

    /// Adds nullable columns at the end: names, types and comments of `columns`; the server gives the ids. Open writers go on with the
    /// columns that they know.
    ///
    /// # Errors
    /// `Invalid` with code 56 when a name is taken, with another when the coordinator or its lake refuses; `Unsupported` when the
    /// server says yes and adds nothing; `Unavailable`, also for a column that is not nullable (−1, as a coordinator says it).
    ///
    /// Source: F4.4, S3.6.
    pub async fn add_columns(&self, path: &TablePath, columns: &[Field]) -> Result<()> {
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        let what = format!("add columns `{}` to table `{path}`", names.join("`, `"));
        let add = |column: &Field| {
            Ok(PbAddColumn {
                column_name: column.name.clone(),
                data_type_json: type_to_json(&column.data_type)?.into(),
                comment: column.comment.clone(),
                column_position_type: LAST,
                ..PbAddColumn::default()
            })
        };
        let add_columns = columns.iter().map(add).collect::<Result<Vec<_>>>()?;
        let request = AlterTableRequest { table_path: path.into(), add_columns, ..Default::default() };
        let changed = self.change(what.clone(), &request).await;
        self.cluster.forget(path);
        changed?;
        // A server from before schema changes reads over what it does not know.
        let table = self.table_info(path).await?;
        if names.iter().all(|name| table.schema.index_of(name).is_some()) {
            return Ok(());
        }
        Err(Code::UNSUPPORTED_VERSION.error("the server said yes and changed nothing: it is too old").context(what))
    }

    /// Sets options of a table; `None` takes one away.
    ///
    /// # Errors
    /// `Invalid` with code 56 or 39 when the coordinator refuses, or when `bucket.num` is among them (old servers would store it
    /// as a custom property); `Unavailable`.
    pub async fn alter_options(&self, path: &TablePath, options: &[(String, Option<String>)]) -> Result<()> {
        if options.iter().any(|(key, _)| key == "bucket.num") {
            return Err(Error::invalid("`bucket.num` is not an option").with_hint("change the bucket count instead"));
        }
        let changes = options.iter().map(|(key, value)| PbAlterConfig {
            config_key: key.clone(),
            config_value: value.clone(),
            op_type: i32::from(value.is_none()),
        });
        let request = AlterTableRequest { table_path: path.into(), config_changes: changes.collect(), ..Default::default() };
        self.change(format!("change options of table `{path}`"), &request).await
    }
}

fn spec_of(spec: &[(String, String)]) -> PbPartitionSpec {
    let pairs = spec.iter().map(|(key, value)| PbKeyValue { key: key.clone(), value: value.clone() });
    PbPartitionSpec { partition_key_values: pairs.collect() }
}

fn name_of(spec: &[(String, String)]) -> String {
    let values: Vec<&str> = spec.iter().map(|(_, value)| value.as_str()).collect();
    values.join("$")
}
