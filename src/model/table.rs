//! A table and its partitions as Fluss describes them, and the splits that a round is made of.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::{BucketCountEpoch, PartitionId, SchemaId, TableBucket, TableId, TablePath};
use super::layout::BucketLayout;
use super::types::Schema;

/// A table as GetTableInfo describes it (F2.4, F5.9).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// The cluster puts the lake catalog's options into the properties, keys of object stores among them: of those only names are shown.
impl std::fmt::Debug for TableInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |(key, value): (&String, &String)| {
            let hidden = key.starts_with("table.datalake.") && key.matches('.').count() > 2;
            (key.clone(), if hidden { "…".to_owned() } else { value.clone() })
        };
        let properties: BTreeMap<String, String> = self.properties.iter().map(shown).collect();
        f.debug_struct("TableInfo")
            .field("path", &self.path)
            .field("id", &self.id)
            .field("schema", &self.schema)
            .field("comment", &self.comment)
            .field("partition_keys", &self.partition_keys)
            .field("bucket_keys", &self.bucket_keys)
            .field("bucket_count", &self.bucket_count)
            .field("bucket_count_epoch", &self.bucket_count_epoch)
            .field("properties", &properties)
            .field("custom_properties", &self.custom_properties)
            .field("remote_data_dir", &self.remote_data_dir)
            .field("created_ms", &self.created_ms)
            .field("modified_ms", &self.modified_ms)
            .finish()
    }
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

    /// Whether its lake is on.
    #[must_use]
    pub fn is_lake_enabled(&self) -> bool {
        self.properties.get("table.datalake.enabled").is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// Whether the lake has, or may have, a table for this one: its lake was on at some time (F6.5).
    #[must_use]
    pub fn has_lake_table(&self) -> bool {
        self.properties.contains_key("table.datalake.enabled")
    }

    /// Whether that table has a bucket count: one without bucket key is bucket-unaware in the lake.
    #[must_use]
    pub fn has_lake_count(&self) -> bool {
        self.has_lake_table() && !self.bucket_keys.is_empty()
    }

    /// How far the lake may lag behind (`table.datalake.freshness`); 3 min if it is not set.
    #[must_use]
    pub fn lake_freshness(&self) -> Duration {
        let text = self.properties.get("table.datalake.freshness");
        let ms = text.and_then(|text| parse_duration_ms(text)).and_then(|ms| u64::try_from(ms).ok());
        Duration::from_millis(ms.unwrap_or(180_000))
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

/// A duration such as `3min`, `7 d`, `500` (milliseconds) in milliseconds; sums such as `1h 30min`, too.
#[must_use]
pub fn parse_duration_ms(text: &str) -> Option<i64> {
    let mut rest = text.trim();
    let mut total: i64 = 0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|symbol: char| !symbol.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at_checked(digits)?;
        let after = after.trim_start();
        let letters = after.find(|symbol: char| !symbol.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at_checked(letters)?;
        let unit_ms = match unit.to_ascii_lowercase().as_str() {
            "" | "ms" | "milli" | "millis" | "millisecond" | "milliseconds" => 1,
            "s" | "sec" | "secs" | "second" | "seconds" => 1_000,
            "m" | "min" | "minute" | "minutes" => 60_000,
            "h" | "hour" | "hours" => 3_600_000,
            "d" | "day" | "days" => 86_400_000,
            _ => return None,
        };
        total = total.checked_add(number.parse::<i64>().ok()?.checked_mul(unit_ms)?)?;
        rest = after.trim_start();
    }
    Some(total)
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

/// What a split reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SplitKind {
    /// Log records from `start` to `stop_offset`.
    #[default]
    Log,
    /// The whole state of a primary-key bucket (F5.7): `start` says nothing, `stop_offset` is the end of the log when it was planned.
    /// The state itself names the offset at which the log goes on. Never cut short (F1.5).
    State,
}

/// One bucket's work in one round: an offset range, or the bucket's state (F4.1).
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
    /// What is read.
    pub kind: SplitKind,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_fluss_reads_them() {
        for (text, ms) in [
            ("3min", Some(180_000)),
            ("7 d", Some(604_800_000)),
            ("500", Some(500)),
            ("1h 30min", Some(5_400_000)),
            ("1 s", Some(1000)),
        ] {
            assert_eq!(parse_duration_ms(text), ms, "{text}");
        }
        for text in ["", "s", "3 fortnights", "-1s", "99999999999999 d"] {
            assert_eq!(parse_duration_ms(text), None, "{text}");
        }
    }

    #[test]
    fn freshness_is_three_minutes_unless_the_table_says_otherwise() {
        let mut table = TableInfo::for_tests("t", 1);
        assert_eq!(table.lake_freshness(), Duration::from_secs(180));
        table.properties.insert("table.datalake.freshness".into(), "10s".into());
        assert_eq!(table.lake_freshness(), Duration::from_secs(10));
    }

    #[test]
    fn keys_of_object_stores_that_the_cluster_tells_are_not_shown() {
        let mut table = TableInfo::for_tests("t", 1);
        for (key, value) in [("table.datalake.paimon.s3.secret-key", "hush"), ("table.datalake.freshness", "7s")] {
            table.properties.insert(key.into(), value.into());
        }
        let shown = format!("{table:?}");
        assert!(!shown.contains("hush") && shown.contains("s3.secret-key") && shown.contains("7s"), "{shown}");
    }
}
