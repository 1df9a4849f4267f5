//! The lake side of DDL: creates and alters the Paimon tables of lake tables, through `catalog`.

use crate::error::{Error, Result};
use crate::model::TableInfo;
use crate::runtime::Runtime;
use crate::storage::Store;

/// The warehouse of the node.
#[derive(Debug)]
pub(super) struct Lake {
    warehouse: Store,
    runtime: Runtime,
}

impl Lake {
    pub(super) fn new(warehouse: Store, runtime: Runtime) -> Self {
        Self { warehouse, runtime }
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
        let _ = (info, new, &self.runtime);
        Err(Error::unsupported("lake tables"))
    }

    /// Makes the lake table of `before` look like `after`: options and columns.
    pub(super) async fn alter(&self, before: &TableInfo, after: &TableInfo) -> Result<()> {
        let _ = (before, after);
        Err(Error::unsupported("altering lake tables"))
    }

    /// Sets the bucket count for future partitions; the same count again is fine.
    pub(super) async fn set_bucket_count(&self, info: &TableInfo, count: i32) -> Result<()> {
        let _ = (info, count);
        Err(Error::unsupported("altering the bucket count of lake tables"))
    }
}
