//! A table and its partitions as Fluss describes them, and the splits that a round is made of.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::ids::{BucketCountEpoch, PartitionId, SchemaId, TableBucket, TableId, TablePath};
use super::layout::BucketLayout;
use super::types::Schema;

/// A table as GetTableInfo describes it (F2.4, F5.9).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableInfo {
    /// Database and name.
    pub path: TablePath,
    /// Id; a table that was dropped and made again has another.
    pub id: TableId,
    /// Newest schema.
    pub schema: Arc<Schema>,
    /// Comment.
    pub comment: Option<String>,
    /// Partition columns; empty on a table without partitions.
    pub partition_keys: Vec<String>,
    /// Bucket key columns; empty on a log table without bucket key.
    pub bucket_keys: Vec<String>,
    /// Bucket count of the table: what partitions made from now on get.
    pub bucket_count: i32,
    /// Real changes of the bucket count so far.
    pub bucket_count_epoch: BucketCountEpoch,
    /// `table.*` options; GetTableInfo adds the lake catalog's (`table.datalake.paimon.*`).
    pub properties: BTreeMap<String, String>,
    /// Everything else the user set.
    pub custom_properties: BTreeMap<String, String>,
    /// Root for remote files, where the server tells it.
    pub remote_data_dir: Option<String>,
    /// Epoch milliseconds.
    pub created_ms: i64,
    /// Epoch milliseconds.
    pub modified_ms: i64,
}

impl TableInfo {
    /// Newest schema id.
    #[must_use]
    pub fn schema_id(&self) -> SchemaId {
        self.schema.id
    }

    /// Whether it has partitions.
    #[must_use]
    pub fn is_partitioned(&self) -> bool {
        !self.partition_keys.is_empty()
    }

    /// Whether it has a primary key.
    #[must_use]
    pub fn has_primary_key(&self) -> bool {
        !self.schema.primary_key.is_empty()
    }

    /// The value of a `table.*` option or custom property.
    #[must_use]
    pub fn property(&self, key: &str) -> Option<&str> {
        self.properties.get(key).or_else(|| self.custom_properties.get(key)).map(String::as_str)
    }

    /// A small table for unit tests: one BIGINT column `id`, which is the bucket key.
    #[doc(hidden)]
    #[must_use]
    pub fn for_tests(path: &str, bucket_count: i32) -> Self {
        use super::types::{DataType, Field, TypeKind};
        let (database, table) = path.split_once('.').unwrap_or(("demo", path));
        let id = Field { id: 0, name: "id".into(), data_type: DataType::nullable(TypeKind::BigInt), comment: None };
        Self {
            path: TablePath::new(database, table),
            id: TableId(1),
            schema: Arc::new(Schema { id: SchemaId(1), fields: vec![id], primary_key: vec![], highest_field_id: 0 }),
            comment: None,
            partition_keys: vec![],
            bucket_keys: vec!["id".into()],
            bucket_count,
            bucket_count_epoch: BucketCountEpoch(0),
            properties: BTreeMap::new(),
            custom_properties: BTreeMap::new(),
            remote_data_dir: None,
            created_ms: 0,
            modified_ms: 0,
        }
    }
}

/// A partition as ListPartitionInfos describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// Id.
    pub id: PartitionId,
    /// Partition column and value text (F6.6), in the order of the table's partition keys.
    pub spec: Vec<(String, String)>,
    /// Its own bucket count; absent on servers and partitions from before 1.0.
    pub bucket_count: Option<i32>,
}

impl Partition {
    /// Values joined by `$` (F6.6).
    #[must_use]
    pub fn name(&self) -> String {
        let values: Vec<&str> = self.spec.iter().map(|(_, value)| value.as_str()).collect();
        values.join("$")
    }
}

/// Where a split starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StartOffset {
    /// At the log's start (−2 on the wire): never tiered.
    Earliest,
    /// At this offset, inclusive.
    At(i64),
}

/// One bucket's work in one round: an offset range (F4.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// The bucket.
    pub bucket: TableBucket,
    /// Its partition, if the table has partitions.
    pub partition: Option<Arc<Partition>>,
    /// The layout the round was planned by; travels with the split.
    pub layout: BucketLayout,
    /// First offset to read.
    pub start: StartOffset,
    /// Exclusive end.
    pub stop_offset: i64,
}
