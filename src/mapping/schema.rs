//! The lake table that a coordinator makes for a Fluss table (F6.1–6.5).

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::model::{DataType, Field, TableInfo, TablePath, TypeKind};
use crate::paimon::{TableOptions, TableSchema, number_nested, type_text};

/// The table option that turns tiering on.
/// Options of the lake catalog, which GetTableInfo injects; none of the lake table's.
const CATALOG_PREFIX: &str = "table.datalake.paimon.";
/// A property that becomes the lake table's own.
const LAKE_PREFIX: &str = "paimon.";
/// Where every other property goes.
pub(super) const FLUSS_PREFIX: &str = "fluss.";
/// What only the coordinator sets (F6.4).
const RESERVED: [&str; 3] = ["bucket", "bucket-key", "partition.legacy-name"];
/// Names of the columns that tables from before FIP-27 end with, in order (F6.3).
pub const SYSTEM_COLUMNS: [&str; 3] = ["__bucket", "__offset", "__timestamp"];

/// Whether the table is tiered.
#[must_use]
pub fn is_lake_enabled(table: &TableInfo) -> bool {
    table.is_lake_enabled()
}

/// Database and name of the lake table: Fluss's own unless the table names others.
///
/// # Errors
/// `Unsupported` when the table has a path of its own (`paimon.path`).
///
/// Source: F6.1.
pub fn lake_path(table: &TableInfo) -> Result<TablePath> {
    if table.property("paimon.path").is_some() {
        return Err(Error::unsupported(format!("table `{}` has a lake path of its own (`paimon.path`)", table.path)));
    }
    let named = |key: &str, default: &str| table.property(key).unwrap_or(default).to_owned();
    Ok(TablePath {
        database: named("table.datalake.database-name", &table.path.database),
        table: named("table.datalake.table-name", &table.path.table),
    })
}

/// The schema of the lake table that a coordinator would create: clean, without system columns. Its id is 0.
///
/// # Errors
/// `Invalid` names a column (15) or an option (39) that only the coordinator may set.
///
/// Source: F6.2–6.5; field ids P2.3.
pub fn lake_schema(table: &TableInfo) -> Result<TableSchema> {
    let mut highest_field_id = -1;
    let fields = table.schema.fields.iter().map(|field| lake_field(table, field, &mut highest_field_id)).collect::<Result<_>>()?;
    Ok(TableSchema {
        id: 0,
        highest_field_id,
        fields,
        partition_keys: table.partition_keys.clone(),
        primary_keys: table.schema.primary_key.clone(),
        options: lake_options(table)?,
        comment: table.comment.clone(),
        time_ms: table.created_ms,
    })
}

fn lake_field(table: &TableInfo, field: &Field, highest_id: &mut i32) -> Result<Field> {
    if SYSTEM_COLUMNS.contains(&field.name.as_str()) {
        return Err(Error::invalid(format!("column `{}` of `{}` has a reserved name", field.name, table.path)).with_code(15));
    }
    *highest_id = highest_id.saturating_add(1);
    let id = *highest_id;
    let mut data_type = lake_type(&field.data_type);
    number_nested(&mut data_type, highest_id);
    Ok(Field { id, name: field.name.clone(), data_type, comment: field.comment.clone() })
}

/// The lake's type of a Fluss type, with the ids of Fluss inside.
fn lake_type(data_type: &DataType) -> DataType {
    let boxed = |inner: &DataType| Box::new(lake_type(inner));
    let kind = match &data_type.kind {
        // The precision is lost in the type; values are milliseconds (F6.2).
        TypeKind::Time { .. } => TypeKind::Time { precision: 0 },
        TypeKind::Array(element) => TypeKind::Array(boxed(element)),
        TypeKind::Map(key, value) => TypeKind::Map(boxed(key), boxed(value)),
        TypeKind::Row(fields) => {
            let field = |field: &Field| Field { data_type: lake_type(&field.data_type), ..field.clone() };
            TypeKind::Row(fields.iter().map(field).collect())
        }
        kind => kind.clone(),
    };
    DataType { kind, nullable: data_type.nullable }
}

/// Names what this build can't tier of the table's columns: what a lake file can't hold, keys of a type that can't be one.
///
/// # Errors
/// `Unsupported` names the column, and the place inside it.
///
/// Source: P7.1, P2.4, F6.6.
pub fn check_columns(table: &TableInfo) -> Result<()> {
    let refuse = |what: String| Err(Error::unsupported(format!("table `{}`: {what}", table.path)));
    for field in &table.schema.fields {
        if let Some((place, why)) = unsupported_inside(&field.data_type.kind, &field.name) {
            return refuse(format!("column `{}` has {why} at `{place}`", field.name));
        }
        let (is_key, is_bucket_key) = (table.partition_keys.contains(&field.name), table.bucket_keys.contains(&field.name));
        let kind = &field.data_type.kind;
        if (is_bucket_key && kind.is_nested()) || (is_key && (kind.is_nested() || matches!(kind, TypeKind::Decimal { .. }))) {
            let what = if is_key { "partition" } else { "bucket" };
            return refuse(format!("{what} key `{}` of type {}", field.name, type_text(&field.data_type)));
        }
    }
    Ok(())
}

/// Names what this build can't follow of the options that a coordinator gives the lake table, and of what its key asks for (P appendix A).
/// The lake table itself is looked at again before a file is written, for it may have been altered in Paimon.
///
/// # Errors
/// `Unsupported` names option and value, its hint what to do; `Invalid` a value that can't be read, or one that only the coordinator sets.
pub fn check_options(table: &TableInfo) -> Result<()> {
    let context = |error: Error| error.context(format!("table `{}`", table.path));
    lake_schema(table).and_then(|schema| TableOptions::parse(&schema)).map(drop).map_err(context)
}

/// The first thing inside a nested type that can't be tiered, and where it is.
fn unsupported_inside(kind: &TypeKind, place: &str) -> Option<(String, String)> {
    let check = |data_type: &DataType, name: &str| {
        let place = format!("{place}.{name}");
        match &data_type.kind {
            TypeKind::Timestamp { precision: 7.. } | TypeKind::TimestampLtz { precision: 7.. } => {
                Some((place, format!("{} inside a nested type, which only INT96 could hold,", type_text(data_type))))
            }
            kind => unsupported_inside(kind, &place),
        }
    };
    match kind {
        TypeKind::Array(element) => check(element, "element"),
        TypeKind::Map(key, value) => check(key, "key").or_else(|| check(value, "value")),
        TypeKind::Row(fields) if fields.is_empty() => Some((place.to_owned(), "a ROW without fields".to_owned())),
        TypeKind::Row(fields) => fields.iter().find_map(|field| check(&field.data_type, &field.name)),
        _ => None,
    }
}

fn lake_options(table: &TableInfo) -> Result<BTreeMap<String, String>> {
    let mut options = BTreeMap::from([("partition.legacy-name".to_owned(), "false".to_owned())]);
    if table.bucket_keys.is_empty() {
        options.insert("bucket".into(), "-1".into());
    } else {
        options.insert("bucket".into(), table.bucket_count.to_string());
        options.insert("bucket-key".into(), table.bucket_keys.join(","));
    }
    if table.has_primary_key() {
        options.insert("changelog-producer".into(), "input".into());
    }
    if is_lake_enabled(table) {
        options.insert("lakestream.enabled".into(), "true".into());
    }
    let mut own = BTreeMap::new();
    for (key, value) in table.properties.iter().chain(&table.custom_properties) {
        if RESERVED.contains(&key.strip_prefix(LAKE_PREFIX).unwrap_or(key)) {
            return Err(Error::invalid(format!("option `{key}` of `{}` can't be set", table.path)).with_code(39));
        }
        if let Some(key) = key.strip_prefix(LAKE_PREFIX) {
            own.insert(key.to_owned(), value.clone());
        } else if !key.starts_with(CATALOG_PREFIX) {
            options.insert(format!("{FLUSS_PREFIX}{key}"), value.clone());
        }
    }
    options.extend(own);
    Ok(options)
}
