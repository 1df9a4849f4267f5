//! The lake table of a round: opened, compared with the Fluss table, and given the columns that it lacks.

use std::sync::Arc;

use crate::catalog;
use crate::error::{Error, Result};
use crate::lake::LakeTable;
use crate::mapping::{self, Fit, LakeForm};
use crate::model::TableInfo;
use crate::plan;
use crate::runtime::Runtime;
use crate::telemetry;

/// Opens the lake table of `table`, and tells how it fits. Everything that this build can't do with the pair is refused here.
///
/// # Errors
/// `Unsupported` and `Invalid` name feature or option; `Data` when the lake table is missing or does not match.
pub async fn open_lake(table: &TableInfo, runtime: &Runtime) -> Result<(Arc<LakeTable>, Fit)> {
    let place = plan::check_table(table)?;
    let lake = LakeTable::open_in(&place.warehouse, &place.options, place.root, runtime.clone()).await?.ok_or_else(|| {
        Error::data(format!("the lake table of `{}` is missing in `{}`", table.path, place.warehouse))
            .with_hint(
                "if the warehouse was moved or is not mounted, bring it back; the coordinator makes the table when its lake is enabled, \
                 and both have to see the same warehouse",
            )
    })?;
    let fit = mapping::fit(table, lake.schema())?;
    lake.options()?;
    Ok((Arc::new(lake), fit))
}

/// The lake table with every column that rows of `table` can have: columns that it lacks are added first, so that none is ever lost.
///
/// A coordinator alters the lake before Fluss, so this finds something only where that failed or was not done (F6.5). It comes after
/// recovery, which knows a lake table that belongs to an earlier table of the same name.
///
/// # Errors
/// As [`catalog::add_missing`] and [`open_lake`]; `Stale` when the lake table changes all the time.
pub(super) async fn with_all_columns(
    (lake, fit): (Arc<LakeTable>, Fit),
    table: &TableInfo,
    runtime: &Runtime,
) -> Result<(Arc<LakeTable>, LakeForm)> {
    if fit.missing.is_empty() {
        return Ok((lake, fit.form));
    }
    let added = catalog::add_missing(&lake, table).await?;
    if !added.is_empty() {
        telemetry::LakeColumnsAdded { table: &table.path, columns: &added }.emit();
    }
    let (lake, fit) = open_lake(table, runtime).await?;
    if !fit.missing.is_empty() {
        return Err(Error::stale(format!("the columns of the lake table of `{}` keep changing", table.path)));
    }
    Ok((lake, fit.form))
}
