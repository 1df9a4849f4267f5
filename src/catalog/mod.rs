//! The lake table that a Fluss table wants, against the one that is found: changes decided purely, applied idempotently.
//!
//! Does what a coordinator does for lake tables (F6.4, F6.5, F4.4): create, alter, set the bucket count; always lake first, so that
//! a failed call leaves Fluss as it was and the same call heals it. What a lake table should look like is `mapping`'s, how its
//! files change `lake`'s. Callers: node, round, cli (`sync`, `plan`, `rescale`).

mod sync;

use crate::error::{Error, Kind, Result};
use crate::lake::{LakeTable, SchemaChange, Warehouse};
use crate::mapping::{Fit, LakeForm, SYSTEM_COLUMNS, compatible, fit, lake_path, lake_schema, not_taken_away};
use crate::model::{Field, TableInfo};
use crate::paimon::TableSchema;
use crate::paimon::options::{IMMUTABLE, TableOptions};

pub use sync::{State, mend, state};

/// Fluss error codes that a coordinator answers with (F2.5).
const INVALID_CONFIG: i32 = 39;
const LAKE_TABLE_ALREADY_EXIST: i32 = 54;
const INVALID_ALTER_TABLE: i32 = 56;

/// Makes the lake table of `table`, its database included. One that is there already has to fit, and to be empty if the Fluss
/// table is `new`.
///
/// # Errors
/// `Unavailable`; `Invalid` with code 54 when the table that is there does not fit or is not empty; as [`lake_schema`].
///
/// Source: F6.5.
pub async fn create(warehouse: &Warehouse, table: &TableInfo, new: bool) -> Result<()> {
    check_format(table)?;
    let (path, wanted) = (lake_path(table)?, lake_schema(table)?);
    // A value that nobody can read; what this build can't follow is another matter, said when a round is planned.
    if let Err(error) = TableOptions::parse(&wanted)
        && error.kind() == Kind::Invalid
    {
        return Err(error.with_code(INVALID_CONFIG));
    }
    if warehouse.create_table(&path.database, &path.table, &wanted).await? {
        return Ok(());
    }
    let Some(found) = warehouse.table(&path.database, &path.table).await? else {
        return Err(Error::unavailable(format!("lake table `{path}` came and went")));
    };
    let exists =
        |why: String| Error::invalid(format!("lake table `{path}` exists already {why}")).with_code(LAKE_TABLE_ALREADY_EXIST);
    if let Err(error) = compatible(table, found.schema()) {
        return Err(exists("and does not fit".to_owned()).with_source(error));
    }
    match found.newest_snapshot_id().await? {
        Some(id) if new => Err(exists(format!("and is not empty: it has snapshot `{id}`"))
            .with_hint("drop the lake table, or take another name for the Fluss table")),
        _ => Ok(()),
    }
}

/// Makes the lake table of `before` that of `after`: options and added columns. Half-done earlier tries are finished.
///
/// # Errors
/// `Unavailable`: call again; `Data` when there is no lake table; as [`alterations`].
pub async fn alter(warehouse: &Warehouse, before: &TableInfo, after: &TableInfo) -> Result<()> {
    check_format(after)?;
    let path = lake_path(before)?;
    warehouse.alter_table(&path.database, &path.table, |found| alterations(before, after, found)).await.map(|_| ())
}

/// Brings option `bucket` of the lake table to `count`, for partitions to come: a change of its own kind, apart from those of schema
/// and options, so that neither waits for the other (F4.4). A new schema file by create-if-absent, decided afresh when another writer
/// was faster. The same count again is fine, and a table without bucket key has no count in the lake.
///
/// # Errors
/// As [`check_rescale`] and [`bucket_change`]; `Unavailable`: the outcome is unknown, call again; `Data` when there is no lake table.
///
/// Source: F4.4, architecture.md 4.
pub async fn set_bucket_count(warehouse: &Warehouse, table: &TableInfo, count: i32) -> Result<()> {
    if table.bucket_keys.is_empty() {
        return Ok(());
    }
    check_counts(table)?;
    let path = lake_path(table)?;
    warehouse.alter_table(&path.database, &path.table, |found| bucket_change(table, count, found)).await.map(|_| ())
}

/// Whether a change of `bucket.num` could go to the table's lake at all, by what Fluss says alone: with a lake, on or off by now, and a
/// bucket key, the lake's format has to hold partitions of several counts.
///
/// # Errors
/// `Unsupported` with code 56 names the format and the reason.
///
/// Source: F4.6.
pub fn check_rescale(table: &TableInfo) -> Result<()> {
    if table.has_lake_count() { check_counts(table) } else { Ok(()) }
}

fn check_counts(table: &TableInfo) -> Result<()> {
    let Some(format) = other_format(table) else { return Ok(()) };
    Err(Error::unsupported(format!(
        "`bucket.num` of `{}` can't be changed: its lake format `{format}` has one bucket count for a whole table, and its catalog \
         takes no such change",
        table.path
    ))
    .with_code(INVALID_ALTER_TABLE)
    .with_hint(
        "only lake format `paimon` holds partitions of several counts: load the rows into a new table with the count you want",
    ))
}

fn check_format(table: &TableInfo) -> Result<()> {
    match other_format(table) {
        None => Ok(()),
        Some(format) => {
            Err(Error::unsupported(format!("lake format `{format}` of `{}`", table.path)).with_hint("use lake format `paimon`"))
        }
    }
}

/// The table's lake format, unless it is Paimon's.
fn other_format(table: &TableInfo) -> Option<&str> {
    table.property("table.datalake.format").filter(|format| !format.eq_ignore_ascii_case("paimon"))
}

/// What makes `found` the lake table of `after`, when it was that of `before`, or is half-way.
///
/// # Errors
/// `Invalid` with code 56 when columns change other than by nullable ones at the end, or `found` is neither's; with code 39 for an
/// option that may not change.
///
/// Source: F6.4, F6.5.
pub fn alterations(before: &TableInfo, after: &TableInfo, found: &TableSchema) -> Result<Vec<SchemaChange>> {
    let (was, wanted) = (lake_schema(before)?, lake_schema(after)?);
    let form = LakeForm::of(found);
    let mut changes = Vec::new();
    let keys = was.options.keys().chain(wanted.options.keys().filter(|key| !was.options.contains_key(*key)));
    for key in keys.filter(|key| was.option(key) != wanted.option(key)) {
        // The count has its own kind of change; a legacy table never says that it is clean (F6.3).
        if key == "bucket" || (form == LakeForm::Legacy && key == "lakestream.enabled") {
            continue;
        }
        if key == "bucket-key" || key == "partition.legacy-name" || IMMUTABLE.contains(&key.as_str()) {
            return Err(Error::invalid(format!("option `{key}` of lake table `{}` can't be altered", before.path))
                .with_code(INVALID_CONFIG));
        }
        if found.option(key) != wanted.option(key) {
            changes.push(SchemaChange::Option { key: key.clone(), value: wanted.option(key).map(str::to_owned) });
        }
    }
    changes.extend(added_columns(before, &was.fields, &wanted.fields, found, form)?);
    Ok(changes)
}

fn added_columns(
    table: &TableInfo,
    was: &[Field],
    wanted: &[Field],
    found: &TableSchema,
    form: LakeForm,
) -> Result<Vec<SchemaChange>> {
    let refused = |what: &str| Error::invalid(format!("lake table of `{}`: {what}", table.path)).with_code(INVALID_ALTER_TABLE);
    let system = if form == LakeForm::Legacy { SYSTEM_COLUMNS.len() } else { 0 };
    let users = found.fields.get(..found.fields.len().saturating_sub(system)).unwrap_or_default();
    let Some(added) = wanted.get(was.len()..).filter(|_| wanted.get(..was.len()).is_some_and(|kept| same(kept, was))) else {
        return Err(refused("columns can be added only, not dropped, renamed or changed"));
    };
    if same(users, wanted) {
        return Ok(Vec::new());
    }
    if !same(users, was) {
        return Err(refused("its columns are those of neither the old nor the new schema"));
    }
    if let Some(field) = added.iter().find(|field| !field.data_type.nullable) {
        return Err(refused(&format!("column `{}` is added NOT NULL", field.name)));
    }
    let before = (form == LakeForm::Legacy).then(|| SYSTEM_COLUMNS[0].to_owned());
    Ok(added.iter().map(|field| SchemaChange::AddColumn { field: field.clone(), before: before.clone() }).collect())
}

/// Whether names and types are equal, in order; ids and comments don't matter (F6.5).
fn same(a: &[Field], b: &[Field]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.name == b.name && a.data_type.same_as(&b.data_type))
}

/// Gives the lake table the columns at the end of `table` that it does not have, and nothing else: a coordinator's ALTER that did not
/// reach the lake is finished. Names of what was added; none when there was nothing to do.
///
/// The lake table must be known to be that of `table`, not of one of the same name before it.
///
/// # Errors
/// `Unavailable`: call again; `Data` when the two differ in another way, or a column was taken away from the lake table by hand.
///
/// Source: F6.5.
pub async fn add_missing(lake: &LakeTable, table: &TableInfo) -> Result<Vec<String>> {
    check_format(table)?;
    let missing = missing(lake, table).await?;
    if missing.is_empty() {
        return Ok(vec![]);
    }
    // Whoever was faster may have left nothing to do, or something else.
    let altered = lake.alter(|found| Ok(additions(&fit(table, found)?))).await?;
    let names: Vec<String> = missing.into_iter().map(|field| field.name).collect();
    Ok(if altered { names } else { vec![] })
}

/// The columns that [`add_missing`] would add. Changes nothing.
///
/// # Errors
/// As [`add_missing`].
pub async fn missing(lake: &LakeTable, table: &TableInfo) -> Result<Vec<Field>> {
    let fit = fit(table, lake.schema())?;
    if !fit.missing.is_empty() {
        for id in (0..lake.schema().id).rev() {
            let earlier = lake.load_schema(id).await?;
            not_taken_away(table, lake.schema(), &earlier, &fit.missing)?;
        }
    }
    Ok(fit.missing)
}

/// What adds the missing columns where a coordinator would put them.
fn additions(fit: &Fit) -> Vec<SchemaChange> {
    let before = (fit.form == LakeForm::Legacy).then(|| SYSTEM_COLUMNS[0].to_owned());
    let add = |field: &Field| SchemaChange::AddColumn { field: field.clone(), before: before.clone() };
    fit.missing.iter().map(add).collect()
}

/// What gives `found` the bucket count `count`. Columns that an ADD COLUMN has not brought yet, or has brought already, don't matter.
///
/// # Errors
/// `Invalid` when the count is below 1; `Data` when `found` is not of fixed buckets, or not the lake table of `table`, every
/// difference named.
pub fn bucket_change(table: &TableInfo, count: i32, found: &TableSchema) -> Result<Vec<SchemaChange>> {
    if count < 1 {
        return Err(Error::invalid(format!("bucket count `{count}` is below 1")).with_code(INVALID_ALTER_TABLE));
    }
    let now = found.option("bucket").unwrap_or("-1");
    let Some(now) = now.trim().parse::<i32>().ok().filter(|now| *now > 0) else {
        return Err(Error::data(format!(
            "the lake table of `{}` has no fixed bucket count that could be changed: its option `bucket` is `{now}`, in Fluss `{}`",
            table.path, table.bucket_count
        ))
        .with_hint(
            "it is another table of that name, or was changed by hand: move it away, or take the Fluss table's lake off it",
        ));
    };
    fit(table, found)?;
    Ok(if now == count { vec![] } else { vec![SchemaChange::BucketCount(count)] })
}

#[cfg(test)]
mod tests;
