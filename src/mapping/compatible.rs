//! Whether an existing lake table fits a Fluss table (F6.5), and in which form.

use serde::Serialize;

use super::schema::{SYSTEM_COLUMNS, lake_schema};
use crate::error::{Error, Result};
use crate::model::{Field, TableInfo, TypeKind};
use crate::paimon::options::IMMUTABLE;
use crate::paimon::{TableSchema, type_text};

/// How a lake table is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LakeForm {
    /// The columns of the Fluss table.
    Clean,
    /// Those, and `__bucket`, `__offset`, `__timestamp` behind them: made before FIP-27 (F6.3).
    Legacy,
}

/// The lake's `bucket` option is not the table's bucket count.
///
/// Files carry the counts of their partitions, so tiering goes on; a rescale that got half way leaves this behind (F4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BucketDrift {
    /// The table's bucket count in Fluss.
    pub fluss: i32,
    /// Option `bucket` in the lake.
    pub lake: i32,
}

impl LakeForm {
    /// The form of a lake table: legacy when it has a column `__timestamp`.
    #[must_use]
    pub fn of(lake: &TableSchema) -> Self {
        if lake.field(SYSTEM_COLUMNS[2]).is_some() { Self::Legacy } else { Self::Clean }
    }
}

/// Splits the lake's columns into those of the user and the system columns.
pub(super) fn user_columns(lake: &TableSchema, form: LakeForm) -> (&[Field], &[Field]) {
    let system = if form == LakeForm::Legacy { SYSTEM_COLUMNS.len() } else { 0 };
    lake.fields.split_at(lake.fields.len().saturating_sub(system))
}

/// The drift of a partitioned table with bucket keys, if there is one.
#[must_use]
pub fn bucket_drift(table: &TableInfo, lake: &TableSchema) -> Option<BucketDrift> {
    let lake = lake.option("bucket")?.parse().ok().filter(|count| *count > 0 && *count != table.bucket_count)?;
    (!table.bucket_keys.is_empty()).then_some(BucketDrift { fluss: table.bucket_count, lake })
}

/// Checks that the rows of `table` can go into `lake` as a coordinator would have made it.
///
/// Tolerated: nullable columns at the lake's end that Fluss does not have yet (the lake is altered first), comments, other options,
/// and another `bucket` count of a partitioned table, which [`bucket_drift`] reports.
///
/// # Errors
/// `Data` names the first difference, with both values; as [`lake_schema`] for what can't be tiered at all.
///
/// Source: F6.5, F6.3, F4.4.
pub fn compatible(table: &TableInfo, lake: &TableSchema) -> Result<LakeForm> {
    let expected = lake_schema(table)?;
    let form = LakeForm::of(lake);
    let differs = |what: &str, fluss: &str, lake: &str| {
        Error::data(format!("the lake table of `{}` has {what} `{lake}` where Fluss has `{fluss}`", table.path))
    };
    let (users, system) = user_columns(lake, form);
    if form == LakeForm::Legacy {
        check_system_columns(table, system)?;
    }
    for (index, field) in expected.fields.iter().enumerate() {
        let place = format!("column {}", index + 1);
        let found = users.get(index).ok_or_else(|| differs(&place, &column_text(field), "nothing"))?;
        if found.name != field.name || !found.data_type.same_as(&field.data_type) {
            return Err(differs(&place, &column_text(field), &column_text(found)));
        }
    }
    if let Some(extra) = users.iter().skip(expected.fields.len()).find(|field| !field.data_type.nullable) {
        return Err(differs("the column", "nothing", &column_text(extra)));
    }
    for (what, fluss, lake) in [
        ("partition keys", &expected.partition_keys, &lake.partition_keys),
        ("primary key", &expected.primary_keys, &lake.primary_keys),
    ] {
        if fluss != lake {
            return Err(differs(what, &fluss.join(","), &lake.join(",")));
        }
    }
    for key in ["partition.legacy-name", "bucket-key"].into_iter().chain(IMMUTABLE) {
        let (fluss, lake) = (expected.option(key), lake.option(key));
        if fluss != lake {
            return Err(differs(&format!("option `{key}`"), fluss.unwrap_or("unset"), lake.unwrap_or("unset")));
        }
    }
    let (fluss, found) = (expected.option("bucket").unwrap_or("-1"), lake.option("bucket").unwrap_or("-1"));
    let rescaled = table.is_partitioned() && bucket_drift(table, lake).is_some();
    if fluss != found && !rescaled {
        return Err(differs("option `bucket`", fluss, found));
    }
    Ok(form)
}

fn column_text(field: &Field) -> String {
    format!("{} {}", field.name, type_text(&field.data_type))
}

fn check_system_columns(table: &TableInfo, system: &[Field]) -> Result<()> {
    let fits = |(index, field): (usize, &Field)| {
        let kind = &field.data_type.kind;
        SYSTEM_COLUMNS.get(index).is_some_and(|name| *name == field.name)
            && match index {
                0 => *kind == TypeKind::Int,
                1 => *kind == TypeKind::BigInt,
                // Very old tables have precision 6.
                _ => matches!(kind, TypeKind::TimestampLtz { precision: 3 | 6 }),
            }
    };
    if system.len() == SYSTEM_COLUMNS.len() && system.iter().enumerate().all(fits) {
        return Ok(());
    }
    let found: Vec<String> = system.iter().map(column_text).collect();
    Err(Error::data(format!(
        "the lake table of `{}` ends with `{}` where a legacy table has `__bucket INT, __offset BIGINT, __timestamp TIMESTAMP(3) WITH LOCAL TIME ZONE`",
        table.path,
        found.join(", ")
    )))
}
