//! What a table's logs hold now, whatever of it is tiered: where a backfill begins.

use std::sync::Arc;

use super::RoundContext;
use crate::error::{Error, Result};
use crate::mapping;
use crate::model::{BucketId, BucketKey, LakeOffsets, Partition, TableInfo, TablePath};
use crate::plan::{self, Scope};

/// The logs of a table at one moment.
#[derive(Debug, Clone)]
pub struct LogEnds {
    /// The table.
    pub table: Arc<TableInfo>,
    /// Its partitions; none on a table without.
    pub partitions: Vec<Arc<Partition>>,
    /// Log start and exclusive end of each bucket that holds anything; of primary-key tables 0 and the end: what their logs have lost
    /// is in their states.
    pub buckets: Vec<(BucketKey, i64, i64)>,
}

/// Asks for the ends of all logs of a table that can be tiered.
///
/// # Errors
/// `Invalid` when there is no such table, or its lake is off; `Unsupported` when it is not tiered by this build; `Stale` when it
/// changes meanwhile; `Unavailable`.
pub async fn log_ends(context: &RoundContext, path: &TablePath) -> Result<LogEnds> {
    let scan = context.scan.as_ref();
    let table = Arc::new(scan.table_info(path).await?);
    if !mapping::is_lake_enabled(&table) {
        return Err(Error::invalid(format!("table `{path}` has its lake off"))
            .with_hint("set `table.datalake.enabled` = `true` on it; nothing is tiered before that"));
    }
    plan::check_table(&table)?;
    // As if nothing were tiered, so that every bucket is asked for its start.
    let nothing = LakeOffsets::default();
    let facts = plan::gather(scan, Arc::clone(&table), &nothing, &Scope::default(), context.options.plan).await?;
    let keyed = table.has_primary_key();
    let mut ends = LogEnds { table, partitions: vec![], buckets: vec![] };
    for found in facts.partitions {
        let partition = found.partition.as_ref().map(|partition| partition.id);
        let starts = found.starts.into_iter().flatten().filter(|_| !keyed).chain(std::iter::repeat(0));
        let buckets = (0..).map(BucketId).zip(starts.zip(found.ends.into_iter().flatten()));
        ends.buckets.extend(
            buckets
                .filter(|(_, (start, end))| start < end)
                .map(|(bucket, (start, end))| (BucketKey { partition, bucket }, start, end)),
        );
        ends.partitions.extend(found.partition);
    }
    Ok(ends)
}
