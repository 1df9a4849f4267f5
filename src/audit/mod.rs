//! Lake against Fluss, looked at from outside: `verify`, `scan`, `inspect`, `repair`, `orphans`.
//!
//! Owns what these commands find out and do; nothing of it runs by itself, and what only looks leaves nothing behind. [`View`] is the
//! common ground: one lake snapshot, and the offsets up to which it has what Fluss gave it, taken so that both belong together while
//! rounds go on. Commits go through `commit`. Caller: `cli`.

pub mod orphans;
mod rewrite;
mod rows;
pub mod scan;
mod tail;
pub mod verify;
mod view;

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::lake::LakeTable;
use crate::mapping::{self, LakeForm};
use crate::model::{BucketLayout, Partition, TableInfo};
use crate::paimon::BinaryRow;
use crate::read;
use crate::runtime::Runtime;
use crate::source::{LakeLedger, TableScan};

pub use rewrite::{Held, RewriteOptions, Rewritten, held, rewrite};
pub use view::{Tiered, View, view};

/// A table under audit: in Fluss, in the lake, in the ledger between them.
#[derive(Clone)]
pub struct AuditContext {
    /// The table.
    pub table: Arc<TableInfo>,
    /// Its lake table.
    pub lake: Arc<LakeTable>,
    /// How that is laid out.
    pub form: LakeForm,
    /// Tables and logs.
    pub scan: Arc<dyn TableScan>,
    /// What Fluss knows about the lake.
    pub ledger: Arc<dyn LakeLedger>,
    /// Time, memory, threads.
    pub runtime: Runtime,
    /// Bounds of reading logs.
    pub read: read::Options,
}

impl std::fmt::Debug for AuditContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuditContext").field("table", &self.table.path).field("lake", &self.lake).finish_non_exhaustive()
    }
}

/// A partition as Fluss has it, and where its rows are in the lake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditPartition {
    /// The partition; `None` on a table without partitions.
    pub partition: Option<Arc<Partition>>,
    /// Its bucket count.
    pub layout: BucketLayout,
    /// Its partition row in the lake.
    pub row: BinaryRow,
}

impl AuditPartition {
    /// Its name; empty on a table without partitions.
    #[must_use]
    pub fn name(&self) -> String {
        self.partition.as_ref().map(|partition| partition.name()).unwrap_or_default()
    }

    /// The bucket total of its files in the lake: its count, or −1 where the lake table has no buckets (P6.3).
    #[must_use]
    pub fn total(&self, table: &TableInfo) -> i32 {
        if table.bucket_keys.is_empty() { -1 } else { self.layout.count }
    }
}

impl AuditContext {
    /// The partitions that Fluss has now, in name order; one entry without partition on a table that has none.
    ///
    /// # Errors
    /// `Stale` where a layout can't be told; `Unavailable`; `Data` when a partition does not fit the lake table.
    pub async fn partitions(&self) -> Result<Vec<AuditPartition>> {
        let found = if self.table.is_partitioned() {
            self.scan.partitions(&self.table).await?.into_iter().map(|partition| Some(Arc::new(partition))).collect()
        } else {
            vec![None]
        };
        let audited = |partition: Option<Arc<Partition>>| {
            let layout = BucketLayout::of(&self.table, partition.as_deref())?;
            let row = mapping::partition_row(partition.as_deref(), &self.table, self.lake.schema())?;
            Ok(AuditPartition { partition, layout, row })
        };
        let mut partitions = found.into_iter().map(audited).collect::<Result<Vec<_>>>()?;
        partitions.sort_by_cached_key(AuditPartition::name);
        Ok(partitions)
    }

    /// The same table as it is now, in Fluss and in the lake.
    ///
    /// # Errors
    /// `Stale` when it is gone, or another one; `Unavailable`; `Data` when both don't fit.
    async fn afresh(&self) -> Result<Self> {
        self.scan.forget(&self.table.path);
        let table = self.scan.table_info(&self.table.path).await?;
        let lake = LakeTable::open(self.lake.store().clone(), self.lake.root(), self.runtime.clone()).await?;
        let lake = lake.filter(|_| table.id == self.table.id).ok_or_else(|| self.gone())?;
        let form = mapping::fit(&table, lake.schema())?.form;
        Ok(Self { table: Arc::new(table), lake: Arc::new(lake), form, ..self.clone() })
    }

    fn gone(&self) -> Error {
        Error::stale(format!("table `{}` is gone, or another one by now", self.table.path))
    }
}
