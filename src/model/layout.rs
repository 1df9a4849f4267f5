//! The bucket layout rule (architecture.md 4): which count a partition has, and when that can't be told.

use serde::Serialize;

use super::ids::BucketCountEpoch;
use super::offsets::BUCKET_ID_MAX;
use super::table::{Partition, TableInfo};
use crate::error::{Error, Result};

/// Where a layout's count comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayoutOrigin {
    /// The table (not partitioned) or the partition names its own count.
    Own,
    /// The partition names none and the table was never rescaled: the table's count.
    TableAtEpochZero,
}

/// Number of buckets of a table without partitions, or of one partition; taken once when a round is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct BucketLayout {
    /// Bucket count, at least 1.
    pub count: i32,
    /// Where the count comes from.
    pub origin: LayoutOrigin,
}

impl BucketLayout {
    /// Decides the layout of `partition` (or of the table, when `None`), from GetTableInfo and ListPartitionInfos alone.
    ///
    /// # Errors
    /// `Stale` when the partition names no count although the table was rescaled; `Data` when a count is below 1, or one that nobody
    /// could mean: work and memory go by it.
    ///
    /// Source: architecture.md 4, F4.2.
    pub fn of(table: &TableInfo, partition: Option<&Partition>) -> Result<Self> {
        let (count, origin) = match partition {
            None => (table.bucket_count, LayoutOrigin::Own),
            Some(partition) => match partition.bucket_count {
                Some(count) => (count, LayoutOrigin::Own),
                None if table.bucket_count_epoch <= BucketCountEpoch(0) => (table.bucket_count, LayoutOrigin::TableAtEpochZero),
                None => {
                    return Err(Error::stale(format!(
                        "partition `{}` of `{}` names no bucket count although the table was rescaled (bucket count epoch `{}`)",
                        partition.name(),
                        table.path,
                        table.bucket_count_epoch
                    ))
                    .with_hint("ask for the partitions again; if it persists, a server older than 1.0 answered"));
                }
            },
        };
        if !(1..=BUCKET_ID_MAX).contains(&count) {
            let place = partition.map_or_else(String::new, |partition| format!(" partition `{}`", partition.name()));
            return Err(Error::data(format!("table `{}`{place} says bucket count `{count}`", table.path)));
        }
        Ok(Self { count, origin })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;
    use crate::model::PartitionId;

    fn partition(bucket_count: Option<i32>) -> Partition {
        Partition { id: PartitionId(3), spec: vec![("day".into(), "1".into())], bucket_count }
    }

    #[test]
    fn the_partition_count_wins_and_an_absent_one_is_never_guessed_after_a_rescale() {
        let mut table = TableInfo::for_tests("demo.t", 4);
        assert_eq!(BucketLayout::of(&table, None).unwrap().count, 4);
        let own = BucketLayout::of(&table, Some(&partition(Some(2)))).unwrap();
        assert_eq!(own, BucketLayout { count: 2, origin: LayoutOrigin::Own });
        let old = BucketLayout::of(&table, Some(&partition(None))).unwrap();
        assert_eq!(old, BucketLayout { count: 4, origin: LayoutOrigin::TableAtEpochZero });
        table.bucket_count_epoch = BucketCountEpoch(2);
        let error = BucketLayout::of(&table, Some(&partition(None))).unwrap_err();
        assert_eq!(error.kind(), Kind::Stale);
        assert_eq!(BucketLayout::of(&table, Some(&partition(Some(0)))).unwrap_err().kind(), Kind::Data);
    }
}
