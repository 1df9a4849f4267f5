//! Ids and epochs: one type each, so that an index, a count and an id can't be mixed up.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number!(/// Fluss table id: unique in the cluster, never used again.
    TableId(i64));
number!(/// Fluss partition id: unique in the cluster, never used again.
    PartitionId(i64));
number!(/// Bucket index inside a table or partition, from 0.
    BucketId(i32));
number!(/// Fluss schema id of a table, from 1.
    SchemaId(i32));
number!(/// Lake snapshot id, from 1.
    SnapshotId(i64));
number!(/// Counts the real changes of a table's bucket count (F4.3); 0 = never rescaled.
    BucketCountEpoch(i64));
number!(/// Epoch of the coordinator that answered.
    CoordinatorEpoch(i32));
number!(/// Counts a table's entries into the tiering queue (F1.3).
    TieringEpoch(i64));

/// Identity of one round: written into the snapshot that it makes (commit.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RoundId(pub uuid::Uuid);

impl fmt::Display for RoundId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for RoundId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        text.parse().map(Self).map_err(|source| Error::data(format!("`{text}` is not a uuid")).with_source(source))
    }
}

/// Database and table name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TablePath {
    /// Database name.
    pub database: String,
    /// Table name.
    pub table: String,
}

impl TablePath {
    /// A path from its two names.
    pub fn new(database: impl Into<String>, table: impl Into<String>) -> Self {
        Self { database: database.into(), table: table.into() }
    }
}

impl fmt::Display for TablePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.database, self.table)
    }
}

impl FromStr for TablePath {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_once('.') {
            Some((database, table)) if !database.is_empty() && !table.is_empty() && !table.contains('.') => {
                Ok(Self::new(database, table))
            }
            _ => Err(Error::invalid(format!("`{text}` is not of the form DB.TABLE"))),
        }
    }
}

/// One bucket: table id, partition id if the table is partitioned, bucket id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TableBucket {
    /// The table.
    pub table: TableId,
    /// The partition; `None` on a table without partitions.
    pub partition: Option<PartitionId>,
    /// The bucket.
    pub bucket: BucketId,
}

impl fmt::Display for TableBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.partition {
            Some(partition) => write!(f, "table {} partition {partition} bucket {}", self.table, self.bucket),
            None => write!(f, "table {} bucket {}", self.table, self.bucket),
        }
    }
}
