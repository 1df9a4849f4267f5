//! Whether an existing lake table fits a Fluss table (F6.5), in which form, and what would have to change.

use serde::Serialize;

use super::repair::Repair;
use super::schema::{SYSTEM_COLUMNS, lake_path, lake_schema};
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

/// How a lake table fits a Fluss table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fit {
    /// Its form.
    pub form: LakeForm,
    /// The last columns of the Fluss table that the lake does not have, all nullable, with the lake's types: an ADD COLUMN has not
    /// reached the lake. They have to be there before rows are written.
    pub missing: Vec<Field>,
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

/// Checks that the rows of `table` can go into `lake`, as it is: as [`fit`], and no column is missing.
///
/// # Errors
/// `Data` names every difference, its hint the DDL that would repair them; as [`lake_schema`] for what can't be tiered at all.
pub fn compatible(table: &TableInfo, lake: &TableSchema) -> Result<LakeForm> {
    let Fit { form, missing } = fit(table, lake)?;
    if missing.is_empty() {
        return Ok(form);
    }
    let mut differences = Differences::default();
    let mut after = user_columns(lake, form).0.last().map(|field| field.name.clone());
    for field in missing {
        let name = field.name.clone();
        differences.lacks(&field, after.replace(name));
    }
    Err(differences.error(table)?)
}

/// How `lake` fits `table`, compared with what a coordinator would have made.
///
/// Tolerated: nullable columns that Fluss does not have (the lake is altered first, and users may have their own), comments, ids,
/// other options, and another `bucket` count of a partitioned table, which [`bucket_drift`] reports.
///
/// # Errors
/// `Data` names every difference, its hint the DDL that would repair them; as [`lake_schema`] for what can't be tiered at all.
///
/// Source: F6.5, F6.3, F4.4.
pub fn fit(table: &TableInfo, lake: &TableSchema) -> Result<Fit> {
    let expected = lake_schema(table)?;
    let form = LakeForm::of(lake);
    let (users, system) = user_columns(lake, form);
    let mut differences = Differences::default();
    let missing = differences.columns(&expected.fields, users);
    if form == LakeForm::Legacy {
        differences.system_columns(system);
    }
    for (what, fluss, lake) in [
        ("partition keys", &expected.partition_keys, &lake.partition_keys),
        ("primary key", &expected.primary_keys, &lake.primary_keys),
    ] {
        if fluss != lake {
            differences.fixed(format!("it has {what} `{}` where Fluss has `{}`", lake.join(","), fluss.join(",")));
        }
    }
    for key in ["partition.legacy-name", "bucket-key"].into_iter().chain(IMMUTABLE) {
        differences.option(key, expected.option(key), lake.option(key));
    }
    if !table.is_partitioned() || bucket_drift(table, lake).is_none() {
        let bucket = |schema: &TableSchema| schema.option("bucket").unwrap_or("-1").to_owned();
        differences.option("bucket", Some(&bucket(&expected)), Some(&bucket(lake)));
    }
    if differences.texts.is_empty() { Ok(Fit { form, missing }) } else { Err(differences.error(table)?) }
}

/// Checks that none of the `missing` columns ([`Fit::missing`]) is one that the lake table had in the schema `earlier`: that one was
/// dropped or renamed in the lake on purpose, and adding it again is for whoever did it.
///
/// # Errors
/// `Data` names each, its hint the DDL that would bring it back.
pub fn not_taken_away(table: &TableInfo, lake: &TableSchema, earlier: &TableSchema, missing: &[Field]) -> Result<()> {
    let mut differences = Differences::default();
    let mut after = user_columns(lake, LakeForm::of(lake)).0.last().map(|field| field.name.clone());
    for field in missing {
        let Some(old) = earlier.field(&field.name) else { continue };
        match lake.fields.iter().find(|now| now.id == old.id) {
            Some(now) => differences.renamed(&now.name, &field.name),
            None => differences.lacks(field, after.replace(field.name.clone())),
        }
    }
    if differences.texts.is_empty() {
        return Ok(());
    }
    Err(differences.error(table)?.context(format!("its schema `{}` had what it lacks", earlier.id)))
}

/// What is found to differ, and the statements that would repair it, in the order in which they have to run.
#[derive(Debug, Default)]
struct Differences {
    texts: Vec<String>,
    repairs: Vec<Repair>,
    /// Something differs that no statement changes.
    fixed: bool,
    /// A statement makes a column NOT NULL.
    tightens: bool,
}

impl Differences {
    /// Compares the user's columns. Returns the last ones that the lake lacks, if they are nullable and the tables have any in common.
    fn columns(&mut self, expected: &[Field], found: &[Field]) -> Vec<Field> {
        let lake_has = |name: &str| found.iter().any(|field| field.name == name);
        let fluss_has = |name: &str| expected.iter().any(|field| field.name == name);
        let last_shared = expected.iter().rposition(|field| lake_has(&field.name)).map_or(0, |last| last + 1);
        let (inner, end) = expected.split_at(last_shared);
        // The lake's columns as the statements so far leave them: names in order.
        let mut order: Vec<String> = found.iter().map(|field| field.name.clone()).collect();
        let mut renamed: Vec<&str> = vec![];
        for field in inner.iter().filter(|field| !lake_has(&field.name)) {
            let old =
                found.iter().find(|old| old.id == field.id && !fluss_has(&old.name) && old.data_type.same_as(&field.data_type));
            let Some(old) = old else { continue };
            self.renamed(&old.name, &field.name);
            renamed.push(&old.name);
            if let Some(name) = order.iter_mut().find(|name| **name == old.name) {
                name.clone_from(&field.name);
            }
        }
        let mut before: Option<&Field> = None;
        for field in inner {
            if !order.contains(&field.name) {
                let after = before.map(|before| before.name.clone());
                let at = after.as_ref().and_then(|after| order.iter().position(|name| name == after)).map_or(0, |at| at + 1);
                order.insert(at, field.name.clone());
                self.lacks(field, after);
            }
            before = Some(field);
        }
        for field in inner {
            let Some(old) = found.iter().find(|old| old.name == field.name) else { continue };
            if !old.data_type.same_as(&field.data_type) {
                self.texts.push(format!("its column `{}` is `{}` in Fluss", column_text(old), column_text(field)));
                self.modify(Field { comment: old.comment.clone(), ..field.clone() }, old.data_type.nullable);
            }
        }
        for old in found.iter().filter(|old| !fluss_has(&old.name) && !renamed.contains(&old.name.as_str())) {
            if !old.data_type.nullable {
                self.texts.push(format!("its column `{}` is not in Fluss, and is NOT NULL", column_text(old)));
                let mut loose = old.clone();
                loose.data_type.nullable = true;
                self.modify(loose, true);
            }
        }
        for (field, before) in inner.iter().skip(1).zip(inner) {
            let place = |name: &str| order.iter().position(|other| other == name);
            let (Some(at), Some(after)) = (place(&field.name), place(&before.name)) else { continue };
            if at < after {
                self.texts.push(format!("its column `{}` stands before `{}`, in Fluss behind it", field.name, before.name));
                self.repairs.push(Repair::Move { field: field.clone(), after: Some(before.name.clone()) });
                let name = order.remove(at);
                order.insert(after, name);
            }
        }
        match last_shared > 0 && end.iter().all(|field| field.data_type.nullable) {
            true => end.to_vec(),
            false => {
                for field in end {
                    let after = order.last().cloned();
                    order.push(field.name.clone());
                    self.lacks(field, after);
                }
                vec![]
            }
        }
    }

    fn renamed(&mut self, from: &str, to: &str) {
        self.texts.push(format!("its column `{from}` is `{to}` in Fluss"));
        self.repairs.push(Repair::Rename { from: from.to_owned(), to: to.to_owned() });
    }

    fn lacks(&mut self, field: &Field, after: Option<String>) {
        self.texts.push(format!("it lacks the column `{}`", column_text(field)));
        let mut added = field.clone();
        // Columns can't be added NOT NULL (P2.5).
        added.data_type.nullable = true;
        self.repairs.push(Repair::Add { field: added, after });
        if !field.data_type.nullable {
            self.modify(field.clone(), true);
        }
    }

    fn modify(&mut self, field: Field, was_nullable: bool) {
        self.tightens |= was_nullable && !field.data_type.nullable;
        self.repairs.push(Repair::Modify(field));
    }

    fn system_columns(&mut self, system: &[Field]) {
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
        if system.len() != SYSTEM_COLUMNS.len() || !system.iter().enumerate().all(fits) {
            let found: Vec<String> = system.iter().map(column_text).collect();
            self.fixed(format!(
                "it ends with `{}` where a legacy table has `__bucket INT, __offset BIGINT, __timestamp TIMESTAMP(3) WITH LOCAL TIME ZONE`",
                found.join(", ")
            ));
        }
    }

    fn option(&mut self, key: &str, fluss: Option<&str>, lake: Option<&str>) {
        if fluss == lake {
            return;
        }
        let text = |value: Option<&str>| value.unwrap_or("unset").to_owned();
        self.texts.push(format!("its option `{key}` is `{}` where Fluss has `{}`", text(lake), text(fluss)));
        self.repairs.push(Repair::Set { key: key.to_owned(), value: fluss.map(str::to_owned) });
        self.fixed = true;
    }

    fn fixed(&mut self, text: String) {
        self.texts.push(text);
        self.fixed = true;
    }

    fn error(self, table: &TableInfo) -> Result<Error> {
        let lake = lake_path(table)?;
        let mut hints = vec![];
        if !self.repairs.is_empty() {
            let statements: Vec<String> = self.repairs.iter().map(|repair| repair.sql(&lake)).collect();
            hints.push(format!("in Flink SQL, with the lake's catalog: {};", statements.join("; ")));
        }
        if self.tightens {
            hints.push("NOT NULL needs the table option `alter-column-null-to-not-null.disabled` = `false`".to_owned());
        }
        if self.fixed {
            hints.push(
                "keys can't be altered, nor most of these options once there are snapshots: the way out is to move the lake table away, and to set `table.datalake.enabled` to `false` and to `true` again, which makes a new one".to_owned(),
            );
        }
        let message = format!("the lake table of `{}` does not fit: {}", table.path, self.texts.join("; "));
        Ok(Error::data(message).with_hint(hints.join(" ")))
    }
}

fn column_text(field: &Field) -> String {
    format!("{} {}", field.name, type_text(&field.data_type))
}

#[cfg(test)]
mod tests;
