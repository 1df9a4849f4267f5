//! What a plan is made of, asked for concurrently and within bounds.

use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};

use super::{Options, Scope};
use crate::error::{Error, Kind, Result};
use crate::model::{BucketId, BucketLayout, LakeOffsets, Partition, TableBucket, TableInfo};
use crate::source::TableScan;

/// What Fluss says about a table at the time of a plan.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The table, read before the partitions.
    pub table: Arc<TableInfo>,
    /// The partitions in name order; one entry without partition on a table that has none.
    pub partitions: Vec<PartitionFacts>,
    /// Whether the servers serve states (F5.7); asked for only where a bucket of a primary-key table was never tiered.
    pub serves_states: bool,
}

/// What Fluss says about one partition, or about a table without partitions.
#[derive(Debug, Clone)]
pub struct PartitionFacts {
    /// The partition.
    pub partition: Option<Arc<Partition>>,
    /// Its layout.
    pub layout: BucketLayout,
    /// Exclusive end offset per bucket; `None` = it was dropped meanwhile.
    pub ends: Option<Vec<i64>>,
    /// Log start per bucket, where a bucket is behind its log's end.
    pub starts: Option<Vec<i64>>,
}

impl PartitionFacts {
    /// Its name; empty on a table without partitions.
    pub(super) fn name(&self) -> String {
        self.partition.as_ref().map(|partition| partition.name()).unwrap_or_default()
    }

    /// Each bucket with its exclusive end offset; none where the partition was dropped.
    pub(super) fn buckets(&self, table: &TableInfo) -> impl Iterator<Item = (TableBucket, i64)> {
        let (table, partition) = (table.id, self.partition.as_ref().map(|partition| partition.id));
        let ends = self.ends.iter().flatten().copied();
        (0..self.layout.count).zip(ends).map(move |(bucket, end)| (TableBucket { table, partition, bucket: BucketId(bucket) }, end))
    }

    /// For messages.
    pub(super) fn place(&self) -> String {
        self.partition.as_ref().map_or_else(|| "table".to_owned(), |partition| format!("partition `{}`", partition.name()))
    }
}

/// Asks for partitions and offsets. `table` must come from a GetTableInfo of this plan: an ALTER between the two calls can
/// then only make the partition list newer (architecture.md 4). Partitions that are not in `scope` are left out.
///
/// # Errors
/// `Stale` where a layout can't be told, or on 74; `Unavailable`; `Data` when counts contradict each other.
pub async fn gather(
    scan: &dyn TableScan,
    table: Arc<TableInfo>,
    base: &LakeOffsets,
    scope: &Scope,
    options: Options,
) -> Result<Facts> {
    let mut partitions: Vec<Option<Arc<Partition>>> = if table.is_partitioned() {
        scan.partitions(&table).await?.into_iter().map(|partition| Some(Arc::new(partition))).collect()
    } else {
        vec![None]
    };
    partitions.retain(|partition| scope.has(partition.as_ref().map(|partition| partition.id)));
    partitions.sort_by_cached_key(|partition| partition.as_ref().map(|partition| partition.name()));
    let lookups = partitions.into_iter().map(|partition| look_up(scan, &table, partition, base));
    let partitions: Vec<PartitionFacts> = stream::iter(lookups).buffered(options.lookups_max.max(1)).try_collect().await?;
    let is_new = |found: &PartitionFacts| found.buckets(&table).any(|(bucket, end)| end > 0 && base.get(bucket).is_none());
    let serves_states = table.has_primary_key() && partitions.iter().any(is_new) && scan.serves_states().await?;
    Ok(Facts { table, partitions, serves_states })
}

async fn look_up(
    scan: &dyn TableScan,
    table: &TableInfo,
    partition: Option<Arc<Partition>>,
    base: &LakeOffsets,
) -> Result<PartitionFacts> {
    let layout = BucketLayout::of(table, partition.as_deref())?;
    let mut facts = PartitionFacts { partition, layout, ends: None, starts: None };
    let gone = |error: Error| if error.code() == Some(36) { Ok(None) } else { Err(error) };
    facts.ends = scan.end_offsets(table, facts.partition.as_deref(), layout).await.or_else(gone)?;
    let Some(ends) = &facts.ends else {
        if facts.partition.is_none() {
            return Err(Error::new(Kind::Stale, format!("table `{}` is gone", table.path)));
        }
        return Ok(facts);
    };
    check_count("end", ends, layout, table, &facts)?;
    // Also where nothing is tiered yet: a log that has expired to its end has nothing to read, and reading it would wait in vain.
    let behind = facts.buckets(table).any(|(bucket, end)| base.get(bucket).unwrap_or(0) < end);
    if behind {
        let starts = scan.start_offsets(table, facts.partition.as_deref(), layout).await.or_else(gone)?;
        match starts {
            Some(starts) => {
                check_count("start", &starts, layout, table, &facts)?;
                facts.starts = Some(starts);
            }
            None => facts.ends = None,
        }
    }
    Ok(facts)
}

fn check_count(what: &str, offsets: &[i64], layout: BucketLayout, table: &TableInfo, facts: &PartitionFacts) -> Result<()> {
    if i32::try_from(offsets.len()) == Ok(layout.count) {
        return Ok(());
    }
    Err(Error::data(format!(
        "Fluss gave `{}` {what} offsets for the `{}` buckets of {} of `{}`",
        offsets.len(),
        layout.count,
        facts.place(),
        table.path
    )))
}
