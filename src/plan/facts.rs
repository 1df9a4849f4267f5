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
    let partitions = stream::iter(lookups).buffered(options.lookups_max.max(1)).try_collect().await?;
    Ok(Facts { table, partitions })
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
    let behind = (0..).map(BucketId).zip(ends).any(|(bucket, end)| {
        let bucket = TableBucket { table: table.id, partition: facts.partition.as_ref().map(|partition| partition.id), bucket };
        base.get(bucket).unwrap_or(0) < *end
    });
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
