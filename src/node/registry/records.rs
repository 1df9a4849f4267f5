//! The registry's records as JSON, with Fluss 1.0's keys; what older records lack is absent or 0 (S3.3).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::model::{BucketCountEpoch, Partition, PartitionId, TableId};

/// Newest record version that is read; 1 and 2 have the same keys.
const VERSION_MAX: i32 = 2;

/// A database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatabaseRecord {
    version: i32,
    /// Comment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// What the user set.
    #[serde(default)]
    pub custom_properties: BTreeMap<String, String>,
    /// Epoch milliseconds.
    #[serde(default)]
    pub created_time: i64,
    /// Epoch milliseconds.
    #[serde(default)]
    pub modified_time: i64,
}

impl DatabaseRecord {
    /// A database made now.
    #[must_use]
    pub const fn new(comment: Option<String>, custom_properties: BTreeMap<String, String>, now_ms: i64) -> Self {
        Self { version: 1, comment, custom_properties, created_time: now_ms, modified_time: now_ms }
    }

    /// What CreateDatabase and GetDatabaseInfo carry.
    ///
    /// # Errors
    /// `Internal`.
    pub fn descriptor(&self) -> Result<String> {
        to_json(&DatabaseDescriptor {
            version: 1,
            comment: self.comment.clone(),
            custom_properties: self.custom_properties.clone(),
        })
    }
}

/// Database JSON on the wire.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DatabaseDescriptor {
    #[serde(default)]
    version: i32,
    /// Comment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// What the user set.
    #[serde(default)]
    pub custom_properties: BTreeMap<String, String>,
}

/// A table, without its schemas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TableRecord {
    pub(super) version: i32,
    pub(super) table_id: TableId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) comment: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) partition_key: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) bucket_key: Vec<String>,
    pub(super) bucket_count: i32,
    #[serde(default = "never_rescaled")]
    pub(super) bucket_count_epoch: BucketCountEpoch,
    #[serde(default)]
    pub(super) properties: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) custom_properties: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) remote_data_dir: Option<String>,
    #[serde(default)]
    pub(super) created_time: i64,
    #[serde(default)]
    pub(super) modified_time: i64,
}

const fn never_rescaled() -> BucketCountEpoch {
    BucketCountEpoch(0)
}

/// A partition; its name is in its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PartitionRecord {
    pub(super) version: i32,
    pub(super) table_id: TableId,
    pub(super) partition_id: PartitionId,
    /// Absent in records from before 1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bucket_count: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) remote_data_dir: Option<String>,
}

impl PartitionRecord {
    pub(super) const fn of(table: TableId, partition: &Partition) -> Self {
        Self {
            version: 1,
            table_id: table,
            partition_id: partition.id,
            bucket_count: partition.bucket_count,
            remote_data_dir: None,
        }
    }
}

/// A record that transactions compare.
pub(super) trait Record: Sized + PartialEq + for<'de> Deserialize<'de> {
    /// The same content with the version that this build writes.
    fn with_version_written(self) -> Self;
}

impl Record for TableRecord {
    fn with_version_written(self) -> Self {
        Self { version: 1, ..self }
    }
}

impl Record for PartitionRecord {
    fn with_version_written(self) -> Self {
        Self { version: 1, remote_data_dir: None, ..self }
    }
}

pub(super) fn to_json<T: Serialize>(record: &T) -> Result<String> {
    serde_json::to_string(record).map_err(|source| Error::internal("write a registry record").with_source(source))
}

/// Reads the record at `key` and its `version`.
pub(super) fn from_json<T: for<'de> Deserialize<'de>>(key: &str, json: &str) -> Result<T> {
    #[derive(Deserialize)]
    struct Versioned {
        version: i32,
    }
    let fault = |source| Error::data(format!("registry record `{key}` can't be read")).with_source(source);
    let Versioned { version } = serde_json::from_str(json).map_err(fault)?;
    if !(1..=VERSION_MAX).contains(&version) {
        return Err(Error::unsupported(format!("registry record `{key}` has version `{version}`, up to `{VERSION_MAX}` is known")));
    }
    serde_json::from_str(json).map_err(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_older_servers_are_read_and_the_new_fields_are_always_written() {
        let old = r#"{"version":1,"table_id":16,"bucket_count":3,"properties":{"table.replication.factor":"1"},"custom_properties":{},"created_time":5,"modified_time":6}"#;
        let record: TableRecord = from_json("t", old).unwrap();
        assert_eq!((record.bucket_count, record.bucket_count_epoch), (3, BucketCountEpoch(0)));
        assert!(to_json(&record).unwrap().contains(r#""bucket_count":3,"bucket_count_epoch":0,"#));
        let old: PartitionRecord = from_json("p", r#"{"version":2,"table_id":17,"partition_id":5,"unknown":[1]}"#).unwrap();
        assert_eq!((old.partition_id, old.bucket_count), (PartitionId(5), None));
        let partition = Partition { id: PartitionId(6), spec: vec![], bucket_count: Some(4) };
        let new = to_json(&PartitionRecord::of(TableId(17), &partition)).unwrap();
        assert_eq!(new, r#"{"version":1,"table_id":17,"partition_id":6,"bucket_count":4}"#);
        assert!(from_json::<PartitionRecord>("p", r#"{"version":3,"table_id":17,"partition_id":5}"#).is_err());
    }
}
