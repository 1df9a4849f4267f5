//! The lake side of DDL: creates and alters the Paimon tables of lake tables, through `catalog`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::catalog;
use crate::error::{Error, Kind, Result};
use crate::fluss::code::Code;
use crate::lake::Warehouse;
use crate::mapping::{is_lake_enabled, lake_path};
use crate::model::TableInfo;
use crate::runtime::Runtime;
use crate::storage::Store;

/// The warehouse of the node.
#[derive(Debug)]
pub(super) struct Lake {
    warehouse: Warehouse,
    /// How object stores are reached from here; what is no secret of it is told to clients.
    stores: Arc<BTreeMap<String, String>>,
}

impl Lake {
    pub(super) fn new(store: Store, runtime: Runtime) -> Self {
        let stores = runtime.stores.options();
        Self { warehouse: Warehouse::new(store, runtime), stores }
    }

    /// Path of the warehouse.
    pub(super) fn warehouse(&self) -> &str {
        self.warehouse.url()
    }

    /// What clients are told to find the lake, in the options of a lake table (F5.9).
    pub(super) fn catalog_options(&self) -> BTreeMap<String, String> {
        let mut options = BTreeMap::from([
            ("table.datalake.paimon.metastore".to_owned(), "filesystem".to_owned()),
            ("table.datalake.paimon.warehouse".to_owned(), self.warehouse().to_owned()),
        ]);
        if self.warehouse().starts_with("s3") {
            let known = [("s3.endpoint", "s3.endpoint"), ("s3.region", "s3.endpoint.region")];
            let told = known.into_iter().filter_map(|(ours, paimon)| Some((paimon, self.stores.get(ours)?)));
            options.extend(told.map(|(key, value)| (format!("table.datalake.paimon.{key}"), value.clone())));
            // Java's default is the other one.
            if self.stores.contains_key("s3.endpoint") && self.stores.get("s3.style").is_none_or(|style| style != "host") {
                options.insert("table.datalake.paimon.s3.path.style.access".to_owned(), "true".to_owned());
            }
        }
        options
    }

    /// Creates the lake table. One that exists has to be compatible, and empty if the Fluss table is `new`.
    pub(super) async fn create(&self, info: &TableInfo, new: bool) -> Result<()> {
        catalog::create(&self.warehouse, info, new).await.map_err(coded)
    }

    /// Makes the lake table of `before` look like `after`: options and columns.
    pub(super) async fn alter(&self, before: &TableInfo, after: &TableInfo) -> Result<()> {
        match self.has(before).await? {
            true => catalog::alter(&self.warehouse, before, after).await.map_err(coded),
            false => Ok(()),
        }
    }

    /// Sets the bucket count for future partitions; the same count again is fine.
    pub(super) async fn set_bucket_count(&self, info: &TableInfo, count: i32) -> Result<()> {
        match self.has(info).await? {
            true => catalog::set_bucket_count(&self.warehouse, info, count).await.map_err(coded),
            false => Ok(()),
        }
    }

    /// Whether there is a lake table to change. One whose lake is off now may never have had it on, though its options name it.
    async fn has(&self, info: &TableInfo) -> Result<bool> {
        if is_lake_enabled(info) {
            return Ok(true);
        }
        let path = lake_path(info)?;
        Ok(self.warehouse.table(&path.database, &path.table).await?.is_some())
    }
}

/// What this build does not support in a lake table is, for the client, a table that can't be configured so.
fn coded(error: Error) -> Error {
    match error.code() {
        None if error.kind() == Kind::Unsupported => error.with_code(Code::INVALID_CONFIG.0),
        _ => error,
    }
}
