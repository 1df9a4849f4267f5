//! What there is: databases, tables, schemas, partitions, and who leads.
//!
//! Source: S1.3, S1.4, S2, S3.2, S7.1.

use std::sync::Arc;

use super::{NODE_ID, Server};
use crate::error::Result;
use crate::fluss::code::Code;
use crate::fluss::proto::{
    DatabaseExistsRequest, DatabaseExistsResponse, DescribeClusterConfigsRequest, DescribeClusterConfigsResponse,
    GetDatabaseInfoRequest, GetDatabaseInfoResponse, GetLatestKvSnapshotsRequest, GetLatestKvSnapshotsResponse,
    GetTableInfoRequest, GetTableInfoResponse, GetTableSchemaRequest, GetTableSchemaResponse, ListDatabasesRequest,
    ListDatabasesResponse, ListPartitionInfosRequest, ListPartitionInfosResponse, ListTablesRequest, ListTablesResponse,
    MetadataRequest, MetadataResponse, PbBucketMetadata, PbDatabaseSummary, PbDescribeConfig, PbKeyValue, PbKvSnapshot,
    PbPartitionInfo, PbPartitionMetadata, PbPartitionSpec, PbTableMetadata, TableExistsRequest, TableExistsResponse,
};
use crate::fluss::table_json::{TableDescriptor, schema_to_json, table_to_json};
use crate::model::{BucketLayout, Partition, PartitionId, SchemaId, TablePath};
use crate::node::registry::{Table, lake_enabled};

impl Server {
    pub(super) async fn list_databases(&self, request: ListDatabasesRequest) -> Result<ListDatabasesResponse> {
        let databases = self.registry.databases();
        if !request.include_summary.unwrap_or(false) {
            return Ok(ListDatabasesResponse { database_name: databases.into_keys().collect(), database_summary: vec![] });
        }
        let summary = |(name, record): (String, crate::node::registry::DatabaseRecord)| PbDatabaseSummary {
            table_count: i32::try_from(self.registry.table_names(&name).len()).unwrap_or(i32::MAX),
            created_time: record.created_time,
            database_name: name,
        };
        Ok(ListDatabasesResponse { database_name: vec![], database_summary: databases.into_iter().map(summary).collect() })
    }

    pub(super) async fn database_exists(&self, request: DatabaseExistsRequest) -> Result<DatabaseExistsResponse> {
        Ok(DatabaseExistsResponse { exists: self.registry.database(&request.database_name).is_ok() })
    }

    pub(super) async fn database_info(&self, request: GetDatabaseInfoRequest) -> Result<GetDatabaseInfoResponse> {
        let record = self.registry.database(&request.database_name)?;
        Ok(GetDatabaseInfoResponse {
            database_json: record.descriptor()?.into(),
            created_time: record.created_time,
            modified_time: record.modified_time,
        })
    }

    pub(super) async fn list_tables(&self, request: ListTablesRequest) -> Result<ListTablesResponse> {
        self.registry.database(&request.database_name)?;
        Ok(ListTablesResponse { table_name: self.registry.table_names(&request.database_name) })
    }

    pub(super) async fn table_exists(&self, request: TableExistsRequest) -> Result<TableExistsResponse> {
        Ok(TableExistsResponse { exists: self.registry.table(&request.table_path.into()).is_ok() })
    }

    pub(super) async fn table_info(&self, request: GetTableInfoRequest) -> Result<GetTableInfoResponse> {
        let table = self.registry.table(&request.table_path.into())?;
        let info = &table.info;
        Ok(GetTableInfoResponse {
            table_id: info.id.0,
            schema_id: info.schema.id.0,
            table_json: self.table_json(&table)?.into(),
            created_time: info.created_ms,
            modified_time: info.modified_ms,
            remote_data_dir: info.remote_data_dir.clone(),
            bucket_count_epoch: Some(info.bucket_count_epoch.0).filter(|epoch| *epoch > 0),
        })
    }

    /// Table JSON as clients get it: complete, and with the lake catalog's options while the lake is on (F5.9).
    fn table_json(&self, table: &Table) -> Result<String> {
        let info = &table.info;
        let mut properties = info.properties.clone();
        if lake_enabled(info) {
            properties.extend(self.lake.catalog_options());
        }
        table_to_json(&TableDescriptor {
            schema: (*info.schema).clone(),
            comment: info.comment.clone(),
            partition_keys: info.partition_keys.clone(),
            bucket_keys: info.bucket_keys.clone(),
            bucket_count: Some(info.bucket_count),
            properties,
            custom_properties: info.custom_properties.clone(),
        })
    }

    pub(super) async fn table_schema(&self, request: GetTableSchemaRequest) -> Result<GetTableSchemaResponse> {
        let table = self.registry.table(&request.table_path.into())?;
        let id = request.schema_id.map_or(table.info.schema.id, SchemaId);
        let schema = table.schemas.get(&id);
        let schema = schema.ok_or_else(|| Code::SCHEMA_NOT_EXIST.answer(format!("`{}` has no schema `{id}`", table.info.path)))?;
        Ok(GetTableSchemaResponse { schema_id: id.0, schema_json: schema_to_json(schema)?.into() })
    }

    pub(super) async fn list_partitions(&self, request: ListPartitionInfosRequest) -> Result<ListPartitionInfosResponse> {
        let table = self.registry.table(&request.table_path.into())?;
        if !table.info.is_partitioned() {
            return Err(Code::TABLE_NOT_PARTITIONED.answer(format!("table `{}` has no partitions", table.info.path)));
        }
        let filter = request.partial_partition_spec.map(|spec| spec.partition_key_values).unwrap_or_default();
        if let Some(pair) = filter.iter().find(|pair| !table.info.partition_keys.contains(&pair.key)) {
            return Err(
                Code::PARTITION_SPEC_INVALID.answer(format!("`{}` is not a partition key of `{}`", pair.key, table.info.path))
            );
        }
        let wanted = |partition: &&Arc<Partition>| {
            filter.iter().all(|pair| partition.spec.iter().any(|(key, value)| *key == pair.key && *value == pair.value))
        };
        let info = |partition: &Arc<Partition>| PbPartitionInfo {
            partition_id: partition.id.0,
            partition_spec: spec_of(partition),
            remote_data_dir: None,
            bucket_count: partition.bucket_count,
        };
        Ok(ListPartitionInfosResponse {
            partitions_info: table.partitions.values().filter(wanted).map(info).collect(),
            // There are none, so they are all in the list.
            system_partitions_included: request.include_system_partitions.filter(|include| *include),
        })
    }

    pub(super) async fn metadata(&self, request: MetadataRequest) -> Result<MetadataResponse> {
        let mut response = MetadataResponse {
            coordinator_server: Some(self.node.clone()),
            // Each answer replaces the client's whole list (S1.4).
            tablet_servers: vec![self.node.clone()],
            ..MetadataResponse::default()
        };
        let mut listed = Vec::with_capacity(request.table_path.len());
        for path in request.table_path {
            let table = self.registry.table(&path.into())?;
            response.table_metadata.push(self.table_metadata(&table)?);
            listed.push(table);
        }
        for path in request.partitions_path {
            let table = self.registry.table(&TablePath::new(path.database_name, path.table_name))?;
            let name = path.partition_name.unwrap_or_default();
            let partition = table.partitions.get(&name).ok_or_else(|| missing_partition(&table, &name))?;
            response.partition_metadata.push(partition_metadata(&table, partition)?);
            listed.push(table);
        }
        for id in request.partitions_id {
            let found = listed.iter().find_map(|table| Some((table, table.partitions_by_id.get(&PartitionId(id))?)));
            let (table, partition) =
                found.ok_or_else(|| Code::PARTITION_NOT_EXISTS.answer(format!("partition id `{id}` does not exist")))?;
            response.partition_metadata.push(partition_metadata(table, partition)?);
        }
        Ok(response)
    }

    fn table_metadata(&self, table: &Table) -> Result<PbTableMetadata> {
        let info = &table.info;
        Ok(PbTableMetadata {
            table_path: (&info.path).into(),
            table_id: info.id.0,
            schema_id: info.schema.id.0,
            table_json: self.table_json(table)?.into(),
            // With entries here clients would take their number for the bucket count of each partition (S1.4).
            bucket_metadata: if info.is_partitioned() { vec![] } else { buckets(info.bucket_count) },
            created_time: info.created_ms,
            modified_time: info.modified_ms,
            remote_data_dir: info.remote_data_dir.clone(),
            bucket_count_epoch: Some(info.bucket_count_epoch.0).filter(|epoch| *epoch > 0),
        })
    }

    /// No snapshots: an entry for each bucket that there is, with nothing in it (S6.9).
    pub(super) async fn latest_kv_snapshots(&self, request: GetLatestKvSnapshotsRequest) -> Result<GetLatestKvSnapshotsResponse> {
        let table = self.registry.table(&request.table_path.into())?;
        let info = &table.info;
        if !info.has_primary_key() {
            return Err(Code::NON_PRIMARY_KEY_TABLE.answer(format!("table `{}` has no primary key", info.path)));
        }
        let partition = match (request.partition_name, info.is_partitioned()) {
            (Some(name), true) => Some(table.partitions.get(&name).ok_or_else(|| missing_partition(&table, &name))?),
            (None, true) => return Err(missing_partition(&table, "")),
            (Some(_), false) => {
                return Err(Code::TABLE_NOT_PARTITIONED.answer(format!("table `{}` has no partitions", info.path)));
            }
            (None, false) => None,
        };
        let layout = BucketLayout::of(info, partition.map(Arc::as_ref))?;
        let latest_snapshots = (0..layout.count).map(|bucket_id| PbKvSnapshot { bucket_id, ..PbKvSnapshot::default() });
        Ok(GetLatestKvSnapshotsResponse {
            table_id: info.id.0,
            partition_id: partition.map(|partition| partition.id.0),
            latest_snapshots: latest_snapshots.collect(),
        })
    }

    pub(super) async fn cluster_configs(&self, _: DescribeClusterConfigsRequest) -> Result<DescribeClusterConfigsResponse> {
        let entry = |key: &str, value: String| PbDescribeConfig {
            config_key: key.to_owned(),
            config_value: Some(value),
            config_source: "INITIAL_SERVER_CONFIG".to_owned(),
        };
        Ok(DescribeClusterConfigsResponse {
            configs: vec![
                entry("datalake.format", "paimon".to_owned()),
                entry("datalake.paimon.metastore", "filesystem".to_owned()),
                entry("datalake.paimon.warehouse", self.lake.warehouse().to_owned()),
                entry("max.bucket.num", self.options.limits.buckets_max.to_string()),
                entry("max.partition.num", self.options.limits.partitions_max.to_string()),
            ],
        })
    }
}

fn spec_of(partition: &Partition) -> PbPartitionSpec {
    let pairs = partition.spec.iter().map(|(key, value)| PbKeyValue { key: key.clone(), value: value.clone() });
    PbPartitionSpec { partition_key_values: pairs.collect() }
}

/// Error 36: writers create a partition because of exactly this code (S1.4).
fn missing_partition(table: &Table, name: &str) -> crate::error::Error {
    Code::PARTITION_NOT_EXISTS.answer(format!("table `{}` has no partition `{name}`", table.info.path))
}

fn partition_metadata(table: &Table, partition: &Partition) -> Result<PbPartitionMetadata> {
    let layout = BucketLayout::of(&table.info, Some(partition))?;
    Ok(PbPartitionMetadata {
        table_id: table.info.id.0,
        partition_name: partition.name(),
        partition_id: partition.id.0,
        bucket_metadata: buckets(layout.count),
        bucket_count: partition.bucket_count,
    })
}

fn buckets(count: i32) -> Vec<PbBucketMetadata> {
    let bucket = |bucket_id| PbBucketMetadata {
        bucket_id,
        leader_id: Some(NODE_ID),
        replica_id: vec![NODE_ID],
        leader_epoch: Some(0),
        bucket_epoch: Some(0),
        isr: vec![NODE_ID],
    };
    (0..count).map(bucket).collect()
}
