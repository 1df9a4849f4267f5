//! What servers tell about tables, as our nouns.

use std::sync::Arc;

use super::Cluster;
use crate::error::{Error, Result};
use crate::fluss::proto::{GetTableInfoRequest, GetTableSchemaRequest, ListPartitionInfosRequest};
use crate::fluss::table_json::{schema_from_json, table_from_json};
use crate::model::{BucketCountEpoch, Partition, PartitionId, Schema, SchemaId, TableId, TableInfo, TablePath};

impl Cluster {
    /// Describes a table (GetTableInfo).
    ///
    /// # Errors
    /// `Invalid` with code 7 when there is no such table; `Data` when the answer can't be read; `Unavailable`.
    pub async fn table_info(&self, path: &TablePath) -> Result<TableInfo> {
        let named = |error: Error| error.context(format!("describe table `{path}`"));
        let answer = self.any(&GetTableInfoRequest { table_path: path.into() }).await.map_err(named)?;
        let schema_id = SchemaId(answer.schema_id);
        let table = table_from_json(&answer.table_json, schema_id).map_err(named)?;
        let schema = Arc::new(table.schema);
        self.metadata().meet(path, TableId(answer.table_id), Arc::clone(&schema));
        Ok(TableInfo {
            path: path.clone(),
            id: TableId(answer.table_id),
            schema,
            comment: table.comment,
            partition_keys: table.partition_keys,
            bucket_keys: table.bucket_keys,
            bucket_count: table.bucket_count.ok_or_else(|| named(Error::data("table JSON names no bucket count")))?,
            bucket_count_epoch: BucketCountEpoch(answer.bucket_count_epoch.unwrap_or(0)),
            properties: table.properties,
            custom_properties: table.custom_properties,
            remote_data_dir: answer.remote_data_dir,
            created_ms: answer.created_time,
            modified_ms: answer.modified_time,
        })
    }

    /// One schema of a table (GetTableSchema), cached.
    ///
    /// # Errors
    /// `Invalid` with code 7 when there is no such table; `Data` when the answer can't be read; `Unavailable`, also when the
    /// servers don't know the schema (9).
    pub async fn schema(&self, path: &TablePath, id: SchemaId) -> Result<Arc<Schema>> {
        let known = self.metadata().schema(path, id);
        if let Some(schema) = known {
            return Ok(schema);
        }
        let named = |error: Error| error.context(format!("read schema `{id}` of table `{path}`"));
        let request = GetTableSchemaRequest { table_path: path.into(), schema_id: Some(id.0) };
        let answer = self.any(&request).await.map_err(named)?;
        if answer.schema_id != id.0 {
            return Err(named(Error::data(format!("the server answered with schema `{}`", answer.schema_id))));
        }
        let schema = Arc::new(schema_from_json(&answer.schema_json, id).map_err(named)?);
        self.metadata().keep_schema(path, Arc::clone(&schema));
        Ok(schema)
    }

    /// The partitions of a table (ListPartitionInfos), with their own bucket counts where the server tells them.
    ///
    /// # Errors
    /// `Invalid` with code 7 or 37; `Unavailable`.
    pub async fn partitions(&self, path: &TablePath) -> Result<Vec<Partition>> {
        let request = ListPartitionInfosRequest { table_path: path.into(), ..Default::default() };
        let answer = self.any(&request).await.map_err(|error| error.context(format!("list partitions of table `{path}`")))?;
        let partitions = answer.partitions_info.into_iter().map(|info| Partition {
            id: PartitionId(info.partition_id),
            spec: info.partition_spec.partition_key_values.into_iter().map(|pair| (pair.key, pair.value)).collect(),
            bucket_count: info.bucket_count,
        });
        Ok(partitions.collect())
    }
}
