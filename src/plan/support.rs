//! What is refused before anything is read, each by its name.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::{Error, Result};
use crate::mapping;
use crate::model::{TableInfo, TablePath};

/// Where a table's lake table is.
#[derive(Clone, PartialEq, Eq)]
pub struct LakePlace {
    /// URL of the warehouse.
    pub warehouse: String,
    /// Options of its store and catalog, without prefix.
    pub options: BTreeMap<String, String>,
    /// Folder of the table below it.
    pub root: String,
}

impl fmt::Debug for LakePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values of options may be secrets.
        let keys: Vec<&String> = self.options.keys().collect();
        f.debug_struct("LakePlace").field("warehouse", &self.warehouse).field("options", &keys).field("root", &self.root).finish()
    }
}

const CATALOG_PREFIX: &str = "table.datalake.paimon.";

/// Whether this build tiers such a table at all, from what Fluss says about it; and where its lake table is (F6.1).
///
/// # Errors
/// `Unsupported` names the feature; `Invalid` when the lake's place is not told.
pub fn check_table(table: &TableInfo) -> Result<LakePlace> {
    let refuse = |what: String| Err(Error::unsupported(format!("table `{}`: {what} not supported", table.path)));
    mapping::check_columns(table)?;
    let option = |key: &str| table.properties.get(key).map(String::as_str);
    match option("table.datalake.format") {
        Some(format) if format.eq_ignore_ascii_case("paimon") => {}
        Some(format) => {
            return refuse(format!("lake format `{format}` is")).map_err(|error: Error| {
                error.with_hint("this build tiers into Paimon: leave the table to the Flink job of its format (`tables.exclude`)")
            });
        }
        None => {
            return Err(Error::invalid(format!("table `{}` has no lake format", table.path))
                .with_hint("the cluster needs `datalake.format`, the table `table.datalake.enabled`"));
        }
    }
    if option("table.datalake.historical-partition.enabled").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return refuse("the historical partition (`table.datalake.historical-partition.enabled`) is".to_owned());
    }
    mapping::check_options(table)?;
    lake_place(table)
}

/// Where the lake table of `table` is (F6.1), whether its rows can be tiered or not.
///
/// # Errors
/// `Unsupported` names a metastore that this build can't look into; `Invalid` when the lake's place is not told.
pub fn lake_place(table: &TableInfo) -> Result<LakePlace> {
    let option = |key: &str| table.properties.get(key).map(String::as_str);
    if let Some(metastore) = option("table.datalake.paimon.metastore").filter(|metastore| *metastore != "filesystem") {
        let what = format!("table `{}`: metastore `{metastore}` of the lake catalog is not supported", table.path);
        return Err(Error::unsupported(what));
    }
    let Some(warehouse) = option("table.datalake.paimon.warehouse") else {
        if !mapping::is_lake_enabled(table) {
            return Err(Error::invalid(format!("table `{}` has its lake off", table.path))
                .with_hint("set `table.datalake.enabled` = `true` on it"));
        }
        return Err(Error::invalid(format!("table `{}` does not tell the lake's warehouse", table.path))
            .with_hint("the cluster needs `datalake.paimon.warehouse`"));
    };
    let TablePath { database, table: name } = mapping::lake_path(table)?;
    let options =
        table.properties.iter().filter_map(|(key, value)| Some((key.strip_prefix(CATALOG_PREFIX)?.to_owned(), value.clone())));
    Ok(LakePlace { warehouse: warehouse.to_owned(), options: options.collect(), root: format!("{database}.db/{name}") })
}
