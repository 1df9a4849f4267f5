//! The lake table that a coordinator makes for a Fluss table (F6.1–6.5).

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::model::{DataType, Field, TableInfo, TablePath, TypeKind};
use crate::paimon::TableSchema;

/// The table option that turns tiering on.
const LAKE_ENABLED: &str = "table.datalake.enabled";
/// Options of the lake catalog, which GetTableInfo injects; none of the lake table's.
const CATALOG_PREFIX: &str = "table.datalake.paimon.";
/// A property that becomes the lake table's own.
const LAKE_PREFIX: &str = "paimon.";
/// Where every other property goes.
const FLUSS_PREFIX: &str = "fluss.";
/// What only the coordinator sets (F6.4).
const RESERVED: [&str; 3] = ["bucket", "bucket-key", "partition.legacy-name"];
/// Names of the columns that tables from before FIP-27 end with, in order (F6.3).
pub const SYSTEM_COLUMNS: [&str; 3] = ["__bucket", "__offset", "__timestamp"];

/// Whether the table is tiered.
#[must_use]
pub fn is_lake_enabled(table: &TableInfo) -> bool {
    table.properties.get(LAKE_ENABLED).is_some_and(|value| value.eq_ignore_ascii_case("true"))
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
/// `Unsupported` names a column of a nested type; `Invalid` a column (15) or an option (39) that only the coordinator may set.
///
/// Source: F6.2–6.5; field ids P2.3.
pub fn lake_schema(table: &TableInfo) -> Result<TableSchema> {
    let fields = table.schema.fields.iter().zip(0..).map(|(field, id)| lake_field(table, field, id)).collect::<Result<Vec<_>>>()?;
    Ok(TableSchema {
        id: 0,
        highest_field_id: fields.last().map_or(-1, |field| field.id),
        fields,
        partition_keys: table.partition_keys.clone(),
        primary_keys: table.schema.primary_key.clone(),
        options: lake_options(table)?,
        comment: table.comment.clone(),
        time_ms: table.created_ms,
    })
}

fn lake_field(table: &TableInfo, field: &Field, id: i32) -> Result<Field> {
    if SYSTEM_COLUMNS.contains(&field.name.as_str()) {
        return Err(Error::invalid(format!("column `{}` of `{}` has a reserved name", field.name, table.path)).with_code(15));
    }
    let data_type = lake_type(&field.data_type)
        .ok_or_else(|| Error::unsupported(format!("column `{}` of `{}` has a nested type", field.name, table.path)))?;
    Ok(Field { id, name: field.name.clone(), data_type, comment: field.comment.clone() })
}

/// The lake's type of a Fluss type; `None` for nested ones.
fn lake_type(data_type: &DataType) -> Option<DataType> {
    let kind = match &data_type.kind {
        kind if kind.is_nested() => return None,
        // The precision is lost in the type; values are milliseconds (F6.2).
        TypeKind::Time { .. } => TypeKind::Time { precision: 0 },
        kind => kind.clone(),
    };
    Some(DataType { kind, nullable: data_type.nullable })
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
