//! Lake offsets: the exclusive end offset per bucket that is in the lake, and the offsets file (F3.1).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ids::{BucketId, PartitionId, TableBucket, TableId};
use crate::error::{Error, Result};

/// A bucket inside a known table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BucketKey {
    /// The partition; `None` on a table without partitions.
    pub partition: Option<PartitionId>,
    /// The bucket.
    pub bucket: BucketId,
}

impl From<TableBucket> for BucketKey {
    fn from(bucket: TableBucket) -> Self {
        Self { partition: bucket.partition, bucket: bucket.bucket }
    }
}

/// Exclusive end offset in the lake per bucket; a bucket that was never tiered is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LakeOffsets(pub BTreeMap<BucketKey, i64>);

impl LakeOffsets {
    /// The offset of `bucket`, if it was ever tiered.
    #[must_use]
    pub fn get(&self, bucket: impl Into<BucketKey>) -> Option<i64> {
        self.0.get(&bucket.into()).copied()
    }

    /// Whether no bucket was ever tiered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These offsets overlaid by `newer`, bucket by bucket: the complete map of commit.md step 4.
    #[must_use]
    pub fn overlaid(&self, newer: &Self) -> Self {
        let mut all = self.clone();
        all.0.extend(newer.0.iter().map(|(bucket, offset)| (*bucket, *offset)));
        all
    }
}

/// Content of an offsets file and of the snapshot property `lakeward.offsets`: table id and offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffsetsFile {
    /// The table that the offsets belong to.
    pub table: TableId,
    /// Its offsets.
    pub offsets: LakeOffsets,
}

/// Bucket ids that an offsets file may name are below it: far above `max.bucket.num`, low enough that one number can't ask for gigabytes.
pub const BUCKET_ID_MAX: i32 = 1 << 20;

impl OffsetsFile {
    /// The JSON text of F3.1, as compact and in the key order that Java writes.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut groups: BTreeMap<Option<PartitionId>, Vec<i64>> = BTreeMap::new();
        for (key, offset) in &self.offsets.0 {
            let list = groups.entry(key.partition).or_default();
            let index = usize::try_from(key.bucket.0).unwrap_or_default();
            if list.len() <= index {
                list.resize(index + 1, -1);
            }
            if let Some(slot) = list.get_mut(index) {
                *slot = *offset;
            }
        }
        let mut text = format!("{{\"version\":1,\"table_id\":{}", self.table);
        if let Some(list) = groups.get(&None) {
            text.push_str(&format!(",\"bucket_offsets\":{}", json!(list)));
        } else if !groups.is_empty() {
            let parts: Vec<String> = groups
                .iter()
                .filter_map(|(partition, list)| partition.map(|id| (id, list)))
                .map(|(id, list)| format!("{{\"partition_id\":{id},\"bucket_offsets\":{}}}", json!(list)))
                .collect();
            text.push_str(&format!(",\"partition_offsets\":[{}]", parts.join(",")));
        }
        text.push('}');
        text
    }

    /// Reads the JSON text of F3.1.
    ///
    /// # Errors
    /// `Data` for anything but version 1 with a table id and at most one of the two offset keys.
    pub fn from_json(text: &str) -> Result<Self> {
        let value: Value =
            serde_json::from_str(text).map_err(|source| Error::data("offsets file is not JSON").with_source(source))?;
        let number = |value: &Value, key: &str| {
            value.get(key).and_then(Value::as_i64).ok_or_else(|| Error::data(format!("offsets file lacks the number `{key}`")))
        };
        let version = number(&value, "version")?;
        if version != 1 {
            return Err(Error::data(format!("offsets file has version `{version}`, 1 is known")));
        }
        let table = TableId(number(&value, "table_id")?);
        let mut offsets = LakeOffsets::default();
        match (value.get("bucket_offsets"), value.get("partition_offsets")) {
            (Some(_), Some(_)) => return Err(Error::data("offsets file has both `bucket_offsets` and `partition_offsets`")),
            (Some(list), None) => read_list(list, None, &mut offsets)?,
            (None, Some(Value::Array(parts))) => {
                let mut seen = BTreeSet::new();
                for part in parts {
                    let id = PartitionId(number(part, "partition_id")?);
                    if !seen.insert(id) {
                        return Err(Error::data(format!("offsets file has partition `{id}` twice")));
                    }
                    let list = part
                        .get("bucket_offsets")
                        .ok_or_else(|| Error::data(format!("offsets of partition `{id}` are missing")))?;
                    read_list(list, Some(id), &mut offsets)?;
                }
            }
            (None, Some(_)) => return Err(Error::data("offsets file: `partition_offsets` is not a list")),
            (None, None) => {}
        }
        Ok(Self { table, offsets })
    }
}

fn read_list(list: &Value, partition: Option<PartitionId>, into: &mut LakeOffsets) -> Result<()> {
    let list = list.as_array().ok_or_else(|| Error::data("offsets file: `bucket_offsets` is not a list"))?;
    for (index, offset) in list.iter().enumerate() {
        let offset = offset.as_i64().ok_or_else(|| {
            Error::data(format!("offsets file: `bucket_offsets` holds something that is no number at bucket `{index}`"))
        })?;
        let bucket = i32::try_from(index)
            .ok()
            .filter(|index| *index < BUCKET_ID_MAX)
            .ok_or_else(|| Error::data("offsets file: `bucket_offsets` is too long"))?;
        if offset >= 0 {
            into.0.insert(BucketKey { partition, bucket: BucketId(bucket) }, offset);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_shapes_of_the_specification_survive_a_round_trip() {
        for text in [
            r#"{"version":1,"table_id":12}"#,
            r#"{"version":1,"table_id":12,"bucket_offsets":[40,-1,7]}"#,
            r#"{"version":1,"table_id":12,"partition_offsets":[{"partition_id":3,"bucket_offsets":[40,41]},{"partition_id":9,"bucket_offsets":[-1,5,6,7]}]}"#,
        ] {
            assert_eq!(OffsetsFile::from_json(text).unwrap().to_json(), text);
        }
    }

    #[test]
    fn wrong_files_are_refused() {
        for text in
            ["", "[]", r#"{"version":2,"table_id":1}"#, r#"{"version":1,"table_id":1,"bucket_offsets":[],"partition_offsets":[]}"#]
        {
            assert!(OffsetsFile::from_json(text).is_err(), "{text}");
        }
    }
}
