//! The lake side of DDL: creates and alters the Paimon tables of lake tables, through `catalog`.

use crate::catalog;
use crate::error::Result;
use crate::lake::Warehouse;
use crate::model::TableInfo;
use crate::runtime::Runtime;
use crate::storage::Store;

/// The warehouse of the node.
#[derive(Debug)]
pub(super) struct Lake {
    warehouse: Warehouse,
}

impl Lake {
    pub(super) const fn new(warehouse: Store, runtime: Runtime) -> Self {
        Self { warehouse: Warehouse::new(warehouse, runtime) }
    }

    /// Path or URL of the warehouse.
    pub(super) fn warehouse(&self) -> &str {
        self.warehouse.url()
    }

    /// What clients are told to find the lake, in the options of a lake table (F5.9).
    pub(super) fn catalog_options(&self) -> [(String, String); 2] {
        [
            ("table.datalake.paimon.metastore".to_owned(), "filesystem".to_owned()),
            ("table.datalake.paimon.warehouse".to_owned(), self.warehouse.url().to_owned()),
        ]
    }

    /// Creates the lake table. One that exists has to be compatible, and empty if the Fluss table is new.
    pub(super) async fn create(&self, info: &TableInfo, new: bool) -> Result<()> {
        catalog::create(&self.warehouse, info, new).await
    }

    /// Makes the lake table of `before` look like `after`: options and columns.
    pub(super) async fn alter(&self, before: &TableInfo, after: &TableInfo) -> Result<()> {
        catalog::alter(&self.warehouse, before, after).await
    }

    /// Sets the bucket count for future partitions; the same count again is fine.
    pub(super) async fn set_bucket_count(&self, info: &TableInfo, count: i32) -> Result<()> {
        catalog::set_bucket_count(&self.warehouse, info, count).await
    }
}
