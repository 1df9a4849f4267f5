//! In what a lake table differs from the one that a coordinator would make, one by one: for whoever shows or mends it.
//!
//! [`super::fit`] judges whether rows can be tiered; here everything counts that Fluss owns, comments and options too (F6.4, F6.5).

use serde::Serialize;

use super::compatible::{BucketDrift, LakeForm, bucket_drift, fit, user_columns};
use super::repair::Repair;
use super::schema::{FLUSS_PREFIX, lake_path, lake_schema};
use crate::error::Result;
use crate::model::{DataType, Field, TableInfo};
use crate::paimon::options::IMMUTABLE;
use crate::paimon::{TableSchema, type_text};

/// What differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Aspect {
    /// A column is not there.
    Column,
    /// A column's type.
    Type,
    /// Whether a column may be NULL.
    Nullability,
    /// The order of the columns.
    Order,
    /// A column's comment.
    Comment,
    /// The partition keys.
    PartitionKeys,
    /// The primary key.
    PrimaryKey,
    /// An option that Fluss owns.
    Option,
    /// Option `bucket` against `bucket.num`.
    Bucket,
}

/// What brings the lake's side to that of Fluss without a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mend {
    /// The nullable column is added behind the others.
    Column(Field),
    /// The option is set, or removed.
    Option {
        /// Its key.
        key: String,
        /// Its value.
        value: Option<String>,
    },
    /// Option `bucket` is set to this count.
    Bucket(i32),
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// What differs.
    pub aspect: Aspect,
    /// Of which column or option; empty where it is the table's.
    pub name: String,
    /// As a coordinator would make it; `None` = not there.
    pub fluss: Option<String>,
    /// As the lake table has it; `None` = not there.
    pub lake: Option<String>,
    /// What mends it; `None` = a person has to decide.
    #[serde(skip)]
    pub mend: Option<Mend>,
    /// The same as a statement in Flink SQL, with the lake's catalog; `None` where none does.
    pub sql: Option<String>,
}

/// Compares `lake` with what a coordinator would make for `table`. None: they are in step.
///
/// Tolerated are nullable columns and options that Fluss does not have, ids, and what a legacy table has behind (F6.3).
///
/// # Errors
/// As [`lake_schema`] for what can't be tiered at all.
pub fn differences(table: &TableInfo, lake: &TableSchema) -> Result<Vec<Difference>> {
    let (expected, place) = (lake_schema(table)?, lake_path(table)?);
    let form = LakeForm::of(lake);
    let (users, _) = user_columns(lake, form);
    // What does not fit may be another table of that name: nothing is mended there before a person has looked.
    let fit = fit(table, lake).ok();
    let addable = fit.as_ref().map(|fit| fit.missing.as_slice()).unwrap_or_default();
    let mut found = Vec::new();
    let mut add = |aspect, name: &str, fluss: Option<String>, lake: Option<String>, mend: Option<Mend>, repair: Option<Repair>| {
        let sql = repair.map(|repair| repair.sql(&place));
        let mend = mend.filter(|_| fit.is_some());
        found.push(Difference { aspect, name: name.to_owned(), fluss, lake, mend, sql });
    };
    let mut before: Option<&Field> = None;
    for field in &expected.fields {
        let after = before.replace(field).map(|field| field.name.clone());
        let modify = || Some(Repair::Modify(field.clone()));
        let Some(old) = users.iter().find(|old| old.name == field.name) else {
            let mend = addable.iter().find(|added| added.name == field.name).map(|added| Mend::Column(added.clone()));
            let mut loose = field.clone();
            loose.data_type.nullable = true;
            add(
                Aspect::Column,
                &field.name,
                Some(type_text(&field.data_type)),
                None,
                mend,
                Some(Repair::Add { field: loose, after }),
            );
            continue;
        };
        let nullable = |data_type: &DataType| DataType { nullable: true, ..data_type.clone() };
        let is_same = old.data_type.same_as(&field.data_type);
        if !nullable(&old.data_type).same_as(&nullable(&field.data_type)) {
            let text = |data_type: &DataType| Some(type_text(&nullable(data_type)));
            add(Aspect::Type, &field.name, text(&field.data_type), text(&old.data_type), None, modify());
        }
        if old.data_type.nullable != field.data_type.nullable {
            let text = |data_type: &DataType| Some(nullability(data_type).to_owned());
            add(Aspect::Nullability, &field.name, text(&field.data_type), text(&old.data_type), None, modify());
        }
        if old.comment.as_deref().unwrap_or("") != field.comment.as_deref().unwrap_or("") {
            // Whoever runs all statements must not get the old type back by this one.
            let data_type = if is_same { &old.data_type } else { &field.data_type };
            let repair = Repair::Modify(Field { data_type: data_type.clone(), ..field.clone() });
            add(Aspect::Comment, &field.name, field.comment.clone(), old.comment.clone(), None, Some(repair));
        }
    }
    for old in users.iter().filter(|old| !old.data_type.nullable && expected.field(&old.name).is_none()) {
        let mut loose = old.clone();
        loose.data_type.nullable = true;
        add(Aspect::Nullability, &old.name, None, Some("NOT NULL".to_owned()), None, Some(Repair::Modify(loose)));
    }
    let shared = |fields: &[Field], others: &[Field]| -> Vec<String> {
        fields.iter().map(|field| field.name.clone()).filter(|name| others.iter().any(|other| other.name == *name)).collect()
    };
    let (fluss, theirs) = (shared(&expected.fields, users), shared(users, &expected.fields));
    if fluss != theirs {
        add(Aspect::Order, "", Some(fluss.join(", ")), Some(theirs.join(", ")), None, None);
    }
    for (aspect, fluss, theirs) in [
        (Aspect::PartitionKeys, &expected.partition_keys, &lake.partition_keys),
        (Aspect::PrimaryKey, &expected.primary_keys, &lake.primary_keys),
    ] {
        if fluss != theirs {
            add(aspect, "", Some(fluss.join(", ")), Some(theirs.join(", ")), None, None);
        }
    }
    let of_fluss = lake.options.keys().filter(|key| key.starts_with(FLUSS_PREFIX) && !expected.options.contains_key(*key));
    for key in expected.options.keys().chain(of_fluss).filter(|key| *key != "bucket") {
        let (fluss, theirs) = (expected.option(key), lake.option(key));
        if fluss == theirs || (form == LakeForm::Legacy && key == "lakestream.enabled") {
            continue;
        }
        let value = fluss.map(str::to_owned);
        let repair = Repair::Set { key: key.clone(), value: value.clone() };
        let fixed = key == "bucket-key" || key == "partition.legacy-name" || IMMUTABLE.contains(&key.as_str());
        // What Fluss only keeps a copy of there changes nothing for readers; the lake's own options do.
        let mend = (key.starts_with(FLUSS_PREFIX) || key == "lakestream.enabled")
            .then(|| Mend::Option { key: key.clone(), value: value.clone() });
        add(Aspect::Option, key, value, theirs.map(str::to_owned), mend, (!fixed).then_some(repair));
    }
    let bucket = |schema: &TableSchema| schema.option("bucket").unwrap_or("-1").trim().to_owned();
    if bucket(&expected) != bucket(lake) {
        let mend =
            bucket_drift(table, lake).filter(|_| table.is_partitioned()).map(|BucketDrift { fluss, .. }| Mend::Bucket(fluss));
        add(Aspect::Bucket, "bucket", Some(bucket(&expected)), Some(bucket(lake)), mend, None);
    }
    Ok(found)
}

const fn nullability(data_type: &DataType) -> &'static str {
    if data_type.nullable { "NULL" } else { "NOT NULL" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::TypeKind;

    fn table() -> TableInfo {
        let mut table = TableInfo::for_tests("demo.t", 4);
        let mut schema = (*table.schema).clone();
        let field = |id, name: &str, nullable, comment: Option<&str>| Field {
            id,
            name: name.into(),
            data_type: DataType { kind: TypeKind::String, nullable },
            comment: comment.map(str::to_owned),
        };
        schema.fields.extend([field(1, "day", false, None), field(2, "words", true, Some("what was said"))]);
        schema.highest_field_id = 2;
        table.schema = schema.into();
        table.partition_keys = vec!["day".into()];
        table.properties.insert("table.datalake.enabled".into(), "true".into());
        table
    }

    /// Aspect, name, and whether it is mended without a person, of each.
    fn found(table: &TableInfo, change: impl FnOnce(&mut TableSchema)) -> Vec<(Aspect, String, bool)> {
        let mut lake = lake_schema(table).unwrap();
        change(&mut lake);
        let found = differences(table, &lake).unwrap();
        found.into_iter().map(|found| (found.aspect, found.name, found.mend.is_some())).collect()
    }

    #[test]
    fn a_table_as_the_coordinator_makes_it_is_in_step_whatever_users_added() {
        assert_eq!(found(&table(), |_| {}), []);
        let more = |lake: &mut TableSchema| {
            let extra = Field { id: 9, name: "extra".into(), ..lake.fields[2].clone() };
            lake.fields.push(extra);
            lake.options.insert("snapshot.time-retained".into(), "2 h".into());
        };
        assert_eq!(found(&table(), more), []);
    }

    #[test]
    fn what_an_alter_left_half_way_is_mended_and_the_rest_is_for_a_person() {
        let is = |aspect, name: &str, mended| vec![(aspect, name.to_owned(), mended)];
        let table = table();
        let set = |key: &'static str, value: &'static str| {
            move |lake: &mut TableSchema| drop(lake.options.insert(key.to_owned(), value.to_owned()))
        };
        assert_eq!(found(&table, |lake| drop(lake.fields.pop())), is(Aspect::Column, "words", true));
        assert_eq!(found(&table, set("bucket", "2")), is(Aspect::Bucket, "bucket", true));
        assert_eq!(found(&table, set("bucket", "-1")), is(Aspect::Bucket, "bucket", false));
        assert_eq!(found(&table, set("fluss.gone", "1")), is(Aspect::Option, "fluss.gone", true));
        assert_eq!(found(&table, set("partition.legacy-name", "true")), is(Aspect::Option, "partition.legacy-name", false));
        assert_eq!(found(&table, |lake| lake.fields[2].comment = None), is(Aspect::Comment, "words", false));
        assert_eq!(found(&table, |lake| lake.fields[0].data_type.kind = TypeKind::Int), is(Aspect::Type, "id", false));
        assert_eq!(found(&table, |lake| lake.fields[0].data_type.nullable = false), is(Aspect::Nullability, "id", false));
        assert_eq!(found(&table, |lake| lake.fields.swap(0, 2)), is(Aspect::Order, "", false));
        assert_eq!(found(&table, |lake| lake.partition_keys.clear()), is(Aspect::PartitionKeys, "", false));
        // The first column is gone: nothing is added at the end while that is so.
        let twice = |lake: &mut TableSchema| lake.fields = vec![lake.fields[1].clone()];
        assert_eq!(found(&table, twice), [(Aspect::Column, "id".to_owned(), false), (Aspect::Column, "words".to_owned(), false)]);
    }

    #[test]
    fn what_a_person_would_run_is_told_and_keeps_the_comment() {
        let table = table();
        let mut lake = lake_schema(&table).unwrap();
        lake.fields[2].comment = None;
        let found = differences(&table, &lake).unwrap();
        let whole = "ALTER TABLE `demo`.`t` MODIFY `words` STRING COMMENT 'what was said'";
        assert_eq!(found[0].sql.as_deref(), Some(whole));
        // Where the type differs too, each statement says the one that is wanted.
        lake.fields[2].data_type.kind = TypeKind::Int;
        let found = differences(&table, &lake).unwrap();
        let said: Vec<_> = found.iter().map(|found| (found.aspect, found.sql.as_deref())).collect();
        assert_eq!(said, [(Aspect::Type, Some(whole)), (Aspect::Comment, Some(whole))]);
    }
}
