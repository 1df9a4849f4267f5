//! What a table, a partition, and a change of a table may be. Pure.
//!
//! Source: S3.1, S3.4–3.6, S7.1, F6.4. Features of later releases are refused by name with error 39.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::Table;
use super::options::{AutoPartition, check_forms, int, is_alterable, is_on};
use crate::error::{Error, Result};
use crate::fluss::code::Code;
use crate::fluss::proto::{PbAddColumn, PbAlterConfig, PbKeyValue};
use crate::fluss::table_json::{TableDescriptor, schema_from_json, table_from_json};
use crate::model::{Schema, SchemaId, TableInfo, TypeKind, number_fields, visit_fields};

/// Bounds of the cluster (F8.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `max.bucket.num`: largest bucket count of a table or partition.
    pub buckets_max: i32,
    /// `max.partition.num`: most partitions of a table.
    pub partitions_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { buckets_max: 4096, partitions_max: 1000 }
    }
}

const DELETE_BEHAVIOR: &str = "table.delete.behavior";
const KV_FORMAT_VERSION: &str = "table.kv.format-version";
/// Newest way to encode keys; what new tables get (S3.5).
const KV_FORMAT_VERSION_MAX: i32 = 2;
const HISTORICAL_PARTITION: &str = "table.datalake.historical-partition.enabled";
/// Columns that Fluss itself adds somewhere.
const RESERVED_COLUMNS: [&str; 6] = ["__offset", "__timestamp", "__bucket", "_change_type", "_log_offset", "_commit_timestamp"];
/// Lake options that the coordinator derives (F6.4).
const DERIVED_LAKE_OPTIONS: [&str; 3] = ["bucket", "bucket-key", "partition.legacy-name"];

/// Checks the name of a database (error 16) or table (error 15), or a partition value (error 43).
///
/// # Errors
/// `code` for a name that is empty, too long, of other characters, or that begins with `__`.
pub fn check_name(name: &str, what: &str, code: Code) -> Result<()> {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if (1..=200).contains(&name.len()) && plain && !name.starts_with("__") {
        return Ok(());
    }
    let shown: String = name.chars().take(220).collect();
    Err(code.answer(format!("{what} `{shown}` must be 1 to 200 letters, digits, `_` or `-` and must not begin with `__`")))
}

fn invalid(message: impl std::fmt::Display) -> Error {
    Code::INVALID_TABLE.answer(message)
}

fn refused(message: impl std::fmt::Display) -> Error {
    Code::INVALID_CONFIG.answer(message)
}

/// Reads a CreateTable's table JSON, fills in the coordinator's defaults and checks the result.
///
/// # Errors
/// The codes of S3.4.
pub fn complete(table_json: &[u8], limits: &Limits) -> Result<TableDescriptor> {
    let mut table = table_from_json(table_json, SchemaId(1)).map_err(|error| invalid(error.chain()))?;
    table.bucket_count.get_or_insert(1);
    complete_primary_key(&mut table);
    let defaults = [("table.replication.factor", "1"), ("table.datalake.format", "paimon")];
    for (key, value) in defaults {
        table.properties.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }
    refuse_later_features(table_json, &table)?;
    check(&table, limits)?;
    Ok(table)
}

/// What a primary key brings along: its columns are NOT NULL, and keys say the bucket unless others are named.
fn complete_primary_key(table: &mut TableDescriptor) {
    let key = &table.schema.primary_key;
    if key.is_empty() {
        return;
    }
    for field in table.schema.fields.iter_mut().filter(|field| key.contains(&field.name)) {
        field.data_type.nullable = false;
    }
    if table.bucket_keys.is_empty() {
        table.bucket_keys = key.iter().filter(|name| !table.partition_keys.contains(name)).cloned().collect();
    }
    table.properties.entry(KV_FORMAT_VERSION.to_owned()).or_insert_with(|| KV_FORMAT_VERSION_MAX.to_string());
}

fn refuse_later_features(table_json: &[u8], table: &TableDescriptor) -> Result<()> {
    let later = |what: &str| Err(refused(format!("this server does not support {what} yet")));
    let raw: Value = serde_json::from_slice(table_json).unwrap_or_default();
    let schema = raw.get("schema");
    let has = |value: Option<&Value>| value.is_some_and(|value| value.as_array().is_none_or(|list| !list.is_empty()));
    if has(schema.and_then(|schema| schema.get("auto_increment_column"))) {
        return later("auto-increment columns");
    }
    let columns = schema.and_then(|schema| schema.get("columns")).and_then(Value::as_array);
    if columns.into_iter().flatten().any(|column| column.get("agg_function").is_some_and(|function| !function.is_null())) {
        return later("aggregate functions");
    }
    for (key, what) in [
        ("table.merge-engine", "merge engines"),
        ("table.kv.ttl", "row time-to-live"),
        ("table.kv.ttl.time-column", "row time-to-live"),
    ] {
        if table.properties.contains_key(key) {
            return later(&format!("{what} (`{key}`)"));
        }
    }
    if int(&table.properties, "table.kv.value-layout-version").is_some_and(|layout| layout != 1) {
        return later("value layouts other than 1 (`table.kv.value-layout-version`)");
    }
    match table.properties.get("table.log.format").map(|format| format.to_ascii_uppercase()).as_deref() {
        Some("INDEXED") => return later("log format INDEXED"),
        Some("COMPACTED") => return later("log format COMPACTED"),
        _ => {}
    }
    if is_on(&table.properties, HISTORICAL_PARTITION) {
        return later("historical partitions");
    }
    Ok(())
}

/// Checks a descriptor with its defaults; also run on the result of an ALTER.
fn check(table: &TableDescriptor, limits: &Limits) -> Result<()> {
    check_forms(&table.properties)?;
    check_schema(&table.schema)?;
    check_keys(table)?;
    let count = table.bucket_count.unwrap_or_default();
    if count < 1 {
        return Err(invalid(format!("bucket count `{count}` is below 1")));
    }
    if count > limits.buckets_max {
        return Err(
            Code::TOO_MANY_BUCKETS.answer(format!("bucket count `{count}` is above `max.bucket.num` `{}`", limits.buckets_max))
        );
    }
    check_numbers(&table.properties)?;
    check_key_options(table)?;
    let is_date = |key: &str| table.schema.fields.iter().any(|field| field.name == key && field.data_type.kind == TypeKind::Date);
    AutoPartition::of(&table.properties, &table.partition_keys, is_date)?;
    for column in table.properties.get("table.statistics.columns").into_iter().flat_map(|list| list.split(',')) {
        let column = column.trim();
        if column != "*" && table.schema.index_of(column).is_none() {
            return Err(refused(format!("statistics column `{column}` is not a column")));
        }
    }
    check_lake(table)
}

fn check_schema(schema: &Schema) -> Result<()> {
    if schema.fields.is_empty() {
        return Err(invalid("a table needs at least one column"));
    }
    let mut ids = BTreeSet::new();
    let mut twice = None;
    visit_fields(&schema.fields, &mut |field| {
        if !ids.insert(field.id) {
            twice = Some(field.id);
        }
    });
    if let Some(id) = twice {
        return Err(invalid(format!("field id `{id}` appears twice")));
    }
    if schema.highest_field_id > i32::from(i16::MAX) {
        return Err(invalid(format!("highest field id `{}` is too large", schema.highest_field_id)));
    }
    match schema.fields.iter().find(|field| RESERVED_COLUMNS.contains(&field.name.as_str())) {
        Some(field) => Err(invalid(format!("column name `{}` is reserved", field.name))),
        None => Ok(()),
    }
}

fn check_keys(table: &TableDescriptor) -> Result<()> {
    let column = |name: &String, what: &str| {
        let found = table.schema.fields.iter().find(|field| field.name == *name);
        found.ok_or_else(|| invalid(format!("{what} `{name}` is not a column")))
    };
    let unique = |names: &[String], what: &str| match names
        .iter()
        .enumerate()
        .find(|(index, name)| names.iter().take(*index).any(|other| other == *name))
    {
        Some((_, name)) => Err(invalid(format!("{what} `{name}` appears twice"))),
        None => Ok(()),
    };
    unique(&table.partition_keys, "partition key")?;
    unique(&table.bucket_keys, "bucket key")?;
    for name in &table.partition_keys {
        let field = column(name, "partition key")?;
        if field.data_type.kind.is_nested() || matches!(field.data_type.kind, TypeKind::Decimal { .. }) {
            return Err(invalid(format!("partition key `{name}` has a type that can't be one: {:?}", field.data_type.kind)));
        }
    }
    for name in &table.bucket_keys {
        if column(name, "bucket key")?.data_type.kind.is_nested() {
            return Err(invalid(format!("bucket key `{name}` is ARRAY, MAP or ROW")));
        }
        if table.partition_keys.contains(name) {
            return Err(invalid(format!("bucket key `{name}` is a partition key")));
        }
    }
    let key = &table.schema.primary_key;
    if key.is_empty() {
        return Ok(());
    }
    unique(key, "primary key column")?;
    for name in key {
        if column(name, "primary key column")?.data_type.kind.is_nested() {
            return Err(invalid(format!("primary key column `{name}` is ARRAY, MAP or ROW")));
        }
    }
    for (names, what) in [(&table.partition_keys, "partition key"), (&table.bucket_keys, "bucket key")] {
        if let Some(name) = names.iter().find(|name| !key.contains(name)) {
            return Err(invalid(format!("{what} `{name}` is not of the primary key {key:?}")));
        }
    }
    if key.iter().all(|name| table.partition_keys.contains(name)) {
        return Err(invalid(format!("primary key {key:?} has no column beside the partition keys")));
    }
    Ok(())
}

/// Options of primary-key tables.
fn check_key_options(table: &TableDescriptor) -> Result<()> {
    let keyed = !table.schema.primary_key.is_empty();
    if !keyed && table.properties.contains_key(DELETE_BEHAVIOR) {
        return Err(refused(format!("`{DELETE_BEHAVIOR}` is for tables with a primary key")));
    }
    match int(&table.properties, KV_FORMAT_VERSION) {
        Some(version) if keyed && !(1..=KV_FORMAT_VERSION_MAX).contains(&version) => {
            Err(refused(format!("`{KV_FORMAT_VERSION}` is `{version}`, allowed is 1 to {KV_FORMAT_VERSION_MAX}")))
        }
        _ => Ok(()),
    }
}

fn check_numbers(properties: &BTreeMap<String, String>) -> Result<()> {
    let bounded = |key: &str, low: i32, high: i32| match int(properties, key) {
        Some(value) if !(low..=high).contains(&value) => Err(refused(format!("`{key}` is `{value}`, allowed is {low} to {high}"))),
        _ => Ok(()),
    };
    bounded("table.replication.factor", 1, i32::MAX)?;
    bounded("table.log.arrow.compression.zstd.level", 1, 22)?;
    bounded("table.log.tiered.local-segments", 1, i32::MAX)?;
    if let Some(factor) = int(properties, "table.replication.factor").filter(|factor| *factor > 1) {
        let text = format!("replication factor `{factor}` is larger than the number of servers, which is 1");
        return Err(Code::INVALID_REPLICATION_FACTOR.answer(text));
    }
    let duration = |key: &str| properties.get(key).and_then(|text| crate::model::parse_duration_ms(text));
    let ttl = duration("table.log.ttl").unwrap_or(7 * 86_400_000);
    if duration("table.log.local-ttl").is_some_and(|local| local > ttl) {
        return Err(refused("`table.log.local-ttl` is longer than `table.log.ttl`"));
    }
    Ok(())
}

fn check_lake(table: &TableDescriptor) -> Result<()> {
    for key in table.properties.keys().chain(table.custom_properties.keys()) {
        let plain = key.strip_prefix("paimon.").unwrap_or(key);
        if DERIVED_LAKE_OPTIONS.contains(&plain) {
            return Err(refused(format!("`{key}` is derived by the server and can't be set")));
        }
    }
    if !is_on(&table.properties, "table.datalake.enabled") {
        return Ok(());
    }
    match table.properties.get("table.datalake.format").map(String::as_str) {
        Some("paimon") => Ok(()),
        format => Err(refused(format!("lake format `{}` is not the cluster's, which is `paimon`", format.unwrap_or("none")))),
    }
}

/// Whether an ALTER to `count` changes the bucket count for partitions to come: not if it is that already (F4.4).
///
/// # Errors
/// 49 above `max.bucket.num`; 56 for what else F4.4 refuses.
pub fn rescales(table: &Table, count: i32, limits: &Limits) -> Result<bool> {
    let info = &table.info;
    let refuse = |text: String| Err(Code::INVALID_ALTER_TABLE.answer(format!("bucket count of table `{}`: {text}", info.path)));
    if !info.is_partitioned() {
        return refuse("a table without partitions keeps its count, since it would change where rows of old keys are".to_owned());
    }
    if count < 1 {
        return refuse(format!("`{count}` is below 1"));
    }
    if count > limits.buckets_max {
        return Err(Code::TOO_MANY_BUCKETS.answer(format!(
            "bucket count of table `{}`: `{count}` is above `max.bucket.num` `{}`",
            info.path, limits.buckets_max
        )));
    }
    if info.property("table.merge-engine").is_some_and(|engine| engine.eq_ignore_ascii_case("aggregation")) {
        return refuse("it can't be changed with merge engine `aggregation`".to_owned());
    }
    if is_on(&info.properties, HISTORICAL_PARTITION) {
        return refuse(format!("it can't be changed with a historical partition (`{HISTORICAL_PARTITION}`)"));
    }
    let rescaled = info.bucket_count_epoch.0 > 0;
    if let Some(partition) = table.partitions.values().find(|partition| rescaled && partition.bucket_count.is_none()) {
        return refuse(format!("partition `{}` has none of its own although the table was rescaled", partition.name()));
    }
    Ok(count != info.bucket_count)
}

/// Applies config changes to the options of a table (S3.6).
///
/// # Errors
/// 56 for an option that may not be altered, 39 and others as for a new table.
pub fn altered_options(info: &TableInfo, changes: &[PbAlterConfig], limits: &Limits) -> Result<TableInfo> {
    let refuse = |message: String| Code::INVALID_ALTER_TABLE.answer(message);
    let mut after = info.clone();
    for change in changes {
        let key = &change.config_key;
        if ["bucket.num", "bucket-num", "table.bucket.num"].contains(&key.as_str()) {
            let text = "change the bucket count as such (AlterTable version 1), alone; it can't be reset or set as an option";
            return Err(refuse(format!("`{key}`: {text}")));
        }
        let options = if key.starts_with("table.") {
            if !is_alterable(key) {
                return Err(refuse(format!("option `{key}` can't be altered")));
            }
            &mut after.properties
        } else {
            &mut after.custom_properties
        };
        match (change.op_type, &change.config_value) {
            (0, Some(value)) => {
                options.insert(key.clone(), value.clone());
            }
            (1, _) => {
                options.remove(key);
            }
            (op, _) => return Err(refuse(format!("operation `{op}` on option `{key}` is not supported"))),
        }
    }
    let table = TableDescriptor {
        schema: (*after.schema).clone(),
        comment: after.comment.clone(),
        partition_keys: after.partition_keys.clone(),
        bucket_keys: after.bucket_keys.clone(),
        bucket_count: Some(after.bucket_count),
        properties: after.properties.clone(),
        custom_properties: after.custom_properties.clone(),
    };
    if is_on(&table.properties, HISTORICAL_PARTITION) {
        if info.bucket_count_epoch.0 > 0 {
            let text =
                format!("`{HISTORICAL_PARTITION}`: table `{}` was rescaled, it can't have a historical partition", info.path);
            return Err(refuse(text));
        }
        return Err(refused("this server does not support historical partitions yet"));
    }
    check(&table, limits)?;
    Ok(after)
}

/// The next schema of a table: the columns of `added` behind those of `schema` (S3.6).
///
/// # Errors
/// 56 for a name that is taken, −1 for a position but last and for NOT NULL columns, 15 for what a new table could not have.
pub fn added_columns(schema: &Schema, added: &[PbAddColumn]) -> Result<Schema> {
    let mut after = schema.clone();
    after.id = SchemaId(schema.id.0 + 1);
    if after.id.0 > i32::from(i16::MAX) {
        return Err(invalid("the table has had too many schemas"));
    }
    for column in added {
        let name = &column.column_name;
        if after.index_of(name).is_some() {
            return Err(Code::INVALID_ALTER_TABLE.answer(format!("column `{name}` exists already")));
        }
        if column.column_position_type != 0 {
            return Err(Code::UNKNOWN_SERVER_ERROR.answer(format!("column `{name}`: columns can be added at the end only")));
        }
        let data_type: Value = serde_json::from_slice(&column.data_type_json)
            .map_err(|source| invalid(format!("the type of column `{name}` can't be read")).with_source(source))?;
        let alone = json!({"columns": [{"name": name, "data_type": data_type}]}).to_string();
        let mut fields = schema_from_json(alone.as_bytes(), after.id).map_err(|error| invalid(error.chain()))?.fields;
        for field in &mut fields {
            if !field.data_type.nullable {
                return Err(Code::UNKNOWN_SERVER_ERROR.answer(format!("column `{name}`: only nullable columns can be added")));
            }
            field.comment.clone_from(&column.comment);
        }
        // Ids go on where the table's last one ended, each column before what is nested in it.
        number_fields(&mut fields, &mut after.highest_field_id);
        after.fields.append(&mut fields);
    }
    check_schema(&after)?;
    Ok(after)
}

/// Puts a partition spec, which comes in any order, into the order of the table's keys (S7.1).
///
/// # Errors
/// 37 when the table has no partitions; 43 when the keys are not exactly the table's, or a value is no name or not of its type.
pub fn partition_of(info: &TableInfo, spec: &[PbKeyValue], create: bool) -> Result<Vec<(String, String)>> {
    if info.partition_keys.is_empty() {
        return Err(Code::TABLE_NOT_PARTITIONED.answer(format!("table `{}` has no partitions", info.path)));
    }
    let refuse = |message: String| Code::PARTITION_SPEC_INVALID.answer(message);
    if spec.len() != info.partition_keys.len() {
        return Err(refuse(format!(
            "a partition of `{}` is told by {} values, not {}",
            info.path,
            info.partition_keys.len(),
            spec.len()
        )));
    }
    let mut ordered = Vec::with_capacity(spec.len());
    for key in &info.partition_keys {
        let given = spec.iter().find(|given| given.key == *key);
        let value = &given.ok_or_else(|| refuse(format!("a partition of `{}` needs a value for `{key}`", info.path)))?.value;
        if create {
            check_name(value, "partition value", Code::PARTITION_SPEC_INVALID)?;
        }
        ordered.push((key.clone(), value.clone()));
    }
    Ok(ordered)
}
