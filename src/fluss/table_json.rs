//! Table and schema JSON, as CreateTable, GetTableInfo, GetMetadata and GetTableSchema carry it (F5.9, S3.2).
//!
//! Aggregate functions and auto-increment columns are read over: only primary-key tables have them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::model::{DataType, Field, NESTED_DEPTH_MAX, Schema, SchemaId, TypeKind, number_fields, visit_fields};

/// Largest count of columns and nested fields of one schema; far above what a server accepts.
const FIELDS_MAX: usize = 100_000;

/// A table as its user describes it: what table JSON says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableDescriptor {
    /// Columns and primary key.
    pub schema: Schema,
    /// Comment.
    pub comment: Option<String>,
    /// Partition columns.
    pub partition_keys: Vec<String>,
    /// Bucket key columns; empty = none named.
    pub bucket_keys: Vec<String>,
    /// Bucket count; a request may leave it to the server.
    pub bucket_count: Option<i32>,
    /// `table.*` options.
    pub properties: BTreeMap<String, String>,
    /// Everything else.
    pub custom_properties: BTreeMap<String, String>,
}

/// Reads table JSON. The schema gets `schema_id`, which the JSON does not tell.
///
/// # Errors
/// `Data` when it is not table JSON or names types that do not exist; `Unsupported` when types are nested too deep.
pub fn table_from_json(json: &[u8], schema_id: SchemaId) -> Result<TableDescriptor> {
    let wire: TableWire =
        serde_json::from_slice(json).map_err(|source| Error::data("table JSON can't be read").with_source(source))?;
    Ok(TableDescriptor {
        schema: wire.schema.into_schema(schema_id)?,
        comment: wire.comment,
        partition_keys: wire.partition_key,
        bucket_keys: wire.bucket_key.unwrap_or_default(),
        bucket_count: wire.bucket_count,
        properties: wire.properties,
        custom_properties: wire.custom_properties,
    })
}

/// Writes table JSON in the key order of the Java client. Bucket keys without a count can't be told apart from none (S3.2).
///
/// # Errors
/// `Invalid` when the schema has a type that only Paimon knows.
pub fn table_to_json(table: &TableDescriptor) -> Result<String> {
    let wire = TableWire {
        version: 1,
        schema: SchemaWire::of(&table.schema)?,
        comment: table.comment.clone(),
        partition_key: table.partition_keys.clone(),
        bucket_key: (table.bucket_count.is_some() || !table.bucket_keys.is_empty()).then(|| table.bucket_keys.clone()),
        bucket_count: table.bucket_count,
        properties: table.properties.clone(),
        custom_properties: table.custom_properties.clone(),
    };
    to_text(&wire)
}

/// Reads schema JSON alone (GetTableSchema); it gets `schema_id`.
///
/// # Errors
/// As [`table_from_json`].
pub fn schema_from_json(json: &[u8], schema_id: SchemaId) -> Result<Schema> {
    let wire: SchemaWire =
        serde_json::from_slice(json).map_err(|source| Error::data("schema JSON can't be read").with_source(source))?;
    wire.into_schema(schema_id)
}

/// Writes schema JSON alone.
///
/// # Errors
/// As [`table_to_json`].
pub fn schema_to_json(schema: &Schema) -> Result<String> {
    to_text(&SchemaWire::of(schema)?)
}

/// Writes a type alone, as ADD COLUMN carries it.
///
/// # Errors
/// As [`table_to_json`].
pub fn type_to_json(data_type: &DataType) -> Result<String> {
    to_text(&TypeWire::of(data_type)?)
}

fn to_text<T: Serialize>(wire: &T) -> Result<String> {
    serde_json::to_string(wire).map_err(|source| Error::internal("write JSON").with_source(source))
}

#[derive(Serialize, Deserialize)]
struct TableWire {
    #[serde(default)]
    version: i64,
    schema: SchemaWire,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    comment: Option<String>,
    partition_key: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bucket_key: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bucket_count: Option<i32>,
    properties: BTreeMap<String, String>,
    custom_properties: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct SchemaWire {
    #[serde(default)]
    version: i64,
    columns: Vec<ColumnWire>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    primary_key: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    highest_field_id: Option<i32>,
}

#[derive(Serialize, Deserialize)]
struct ColumnWire {
    name: String,
    data_type: TypeWire,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    comment: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<i32>,
}

#[derive(Serialize, Deserialize)]
struct NestedWire {
    name: String,
    field_type: TypeWire,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    field_id: Option<i32>,
}

#[derive(Default, Serialize, Deserialize)]
struct TypeWire {
    #[serde(rename = "type")]
    root: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nullable: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    length: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    precision: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scale: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    element_type: Option<Box<Self>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_type: Option<Box<Self>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value_type: Option<Box<Self>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fields: Option<Vec<NestedWire>>,
}

const NO_ID: i32 = -1;

impl SchemaWire {
    fn of(schema: &Schema) -> Result<Self> {
        let column = |field: &Field| {
            let data_type = TypeWire::of(&field.data_type)?;
            Ok(ColumnWire { name: field.name.clone(), data_type, comment: field.comment.clone(), id: Some(field.id) })
        };
        Ok(Self {
            version: 1,
            columns: schema.fields.iter().map(column).collect::<Result<_>>()?,
            primary_key: (!schema.primary_key.is_empty()).then(|| schema.primary_key.clone()),
            highest_field_id: Some(schema.highest_field_id),
        })
    }

    fn into_schema(self, id: SchemaId) -> Result<Schema> {
        let column = |column: ColumnWire| {
            let (name, comment, id) = (column.name, column.comment, column.id.unwrap_or(NO_ID));
            let data_type = column.data_type.into_type(0).map_err(|error| error.context(format!("column `{name}`")))?;
            Ok(Field { id, name, data_type, comment })
        };
        let mut fields = self.columns.into_iter().map(column).collect::<Result<Vec<_>>>()?;
        let (mut count, mut largest) = (0, NO_ID);
        visit_fields(&fields, &mut |field| {
            count += 1;
            largest = largest.max(field.id);
        });
        if count > FIELDS_MAX {
            return Err(Error::data(format!("a schema has `{count}` columns and fields")));
        }
        if fields.iter().all(|field| field.id == NO_ID) {
            largest = NO_ID;
            number_fields(&mut fields, &mut largest);
        } else if let Some(field) = fields.iter().find(|field| field.id < 0) {
            return Err(Error::data(format!("column `{}` has no id while others have one", field.name)));
        }
        let mut highest = self.highest_field_id.unwrap_or(NO_ID).max(largest);
        let mut incomplete = false;
        visit_fields(&fields, &mut |field| incomplete |= field.id < 0);
        if incomplete {
            // Only nested fields: `field_id` is younger than `id`.
            fields.iter_mut().for_each(|field| field.data_type.number_nested(&mut highest));
        }
        let (mut names, mut ids) = (BTreeSet::new(), BTreeSet::new());
        if let Some(field) = fields.iter().find(|field| !names.insert(&field.name) || !ids.insert(field.id)) {
            return Err(Error::data(format!("column `{}` or its id `{}` appears twice", field.name, field.id)));
        }
        let primary_key = self.primary_key.unwrap_or_default();
        if let Some(name) = primary_key.iter().find(|name| fields.iter().all(|field| field.name != **name)) {
            return Err(Error::data(format!("primary key column `{name}` is not a column")));
        }
        Ok(Schema { id, fields, primary_key, highest_field_id: highest })
    }
}

impl TypeWire {
    fn of(data_type: &DataType) -> Result<Self> {
        let mut wire = Self { nullable: (!data_type.nullable).then_some(false), ..Self::default() };
        let root = match &data_type.kind {
            TypeKind::Boolean => "BOOLEAN",
            TypeKind::TinyInt => "TINYINT",
            TypeKind::SmallInt => "SMALLINT",
            TypeKind::Int => "INTEGER",
            TypeKind::BigInt => "BIGINT",
            TypeKind::Float => "FLOAT",
            TypeKind::Double => "DOUBLE",
            TypeKind::String => "STRING",
            TypeKind::Bytes => "BYTES",
            TypeKind::Date => "DATE",
            TypeKind::Char { length } => {
                wire.length = Some(*length);
                "CHAR"
            }
            TypeKind::Binary { length } => {
                wire.length = Some(*length);
                "BINARY"
            }
            TypeKind::Decimal { precision, scale } => {
                (wire.precision, wire.scale) = (Some(*precision), Some(*scale));
                "DECIMAL"
            }
            TypeKind::Time { precision } => {
                wire.precision = Some(*precision);
                "TIME_WITHOUT_TIME_ZONE"
            }
            TypeKind::Timestamp { precision } => {
                wire.precision = Some(*precision);
                "TIMESTAMP_WITHOUT_TIME_ZONE"
            }
            TypeKind::TimestampLtz { precision } => {
                wire.precision = Some(*precision);
                "TIMESTAMP_WITH_LOCAL_TIME_ZONE"
            }
            TypeKind::Array(element) => {
                wire.element_type = Some(Box::new(Self::of(element)?));
                "ARRAY"
            }
            TypeKind::Map(key, value) => {
                wire.key_type = Some(Box::new(Self::of(key)?));
                wire.value_type = Some(Box::new(Self::of(value)?));
                "MAP"
            }
            TypeKind::Row(fields) => {
                let field = |field: &Field| {
                    Ok(NestedWire {
                        name: field.name.clone(),
                        field_type: Self::of(&field.data_type)?,
                        description: field.comment.clone(),
                        field_id: Some(field.id),
                    })
                };
                wire.fields = Some(fields.iter().map(field).collect::<Result<_>>()?);
                "ROW"
            }
            TypeKind::VarChar { .. } | TypeKind::VarBinary { .. } | TypeKind::Multiset(_) => {
                return Err(Error::invalid("Fluss has no VARCHAR, VARBINARY or MULTISET"));
            }
        };
        root.clone_into(&mut wire.root);
        Ok(wire)
    }

    /// `depth` = levels of nested types around this one.
    fn into_type(self, depth: usize) -> Result<DataType> {
        if depth > NESTED_DEPTH_MAX {
            return Err(Error::unsupported(format!("types nested deeper than {NESTED_DEPTH_MAX} levels")));
        }
        let root = self.root;
        let lacks = |what: &str| Error::data(format!("type `{root}` lacks `{what}`"));
        let in_range = |what: &str, value: Option<u8>, low: u8, high: u8, default: Option<u8>| {
            let value = value.or(default).ok_or_else(|| lacks(what))?;
            if (low..=high).contains(&value) { Ok(value) } else { Err(Error::data(format!("type `{root}` has {what} `{value}`"))) }
        };
        let inner = |what: &str, inner: Option<Box<Self>>| inner.ok_or_else(|| lacks(what))?.into_type(depth + 1).map(Box::new);
        let length = |length: Option<u32>| {
            let known = length.filter(|length| (1..=i32::MAX.unsigned_abs()).contains(length));
            known.ok_or_else(|| Error::data(format!("type `{root}` has length `{length:?}`")))
        };
        let kind = match root.as_str() {
            "BOOLEAN" => TypeKind::Boolean,
            "TINYINT" => TypeKind::TinyInt,
            "SMALLINT" => TypeKind::SmallInt,
            "INTEGER" => TypeKind::Int,
            "BIGINT" => TypeKind::BigInt,
            "FLOAT" => TypeKind::Float,
            "DOUBLE" => TypeKind::Double,
            "CHAR" => TypeKind::Char { length: length(self.length)? },
            "STRING" => TypeKind::String,
            "BINARY" => TypeKind::Binary { length: length(self.length)? },
            "BYTES" => TypeKind::Bytes,
            "DECIMAL" => {
                let precision = in_range("precision", self.precision, 1, 38, None)?;
                TypeKind::Decimal { precision, scale: in_range("scale", self.scale, 0, precision, Some(0))? }
            }
            "DATE" => TypeKind::Date,
            "TIME_WITHOUT_TIME_ZONE" => TypeKind::Time { precision: in_range("precision", self.precision, 0, 9, Some(0))? },
            "TIMESTAMP_WITHOUT_TIME_ZONE" => {
                TypeKind::Timestamp { precision: in_range("precision", self.precision, 0, 9, Some(6))? }
            }
            "TIMESTAMP_WITH_LOCAL_TIME_ZONE" => {
                TypeKind::TimestampLtz { precision: in_range("precision", self.precision, 0, 9, Some(6))? }
            }
            "ARRAY" => TypeKind::Array(inner("element_type", self.element_type)?),
            "MAP" => {
                let mut key = inner("key_type", self.key_type)?;
                // As in Java, whatever the JSON says.
                key.nullable = false;
                TypeKind::Map(key, inner("value_type", self.value_type)?)
            }
            "ROW" => {
                let field = |field: NestedWire| {
                    let data_type =
                        field.field_type.into_type(depth + 1).map_err(|error| error.context(format!("field `{}`", field.name)))?;
                    Ok(Field { id: field.field_id.unwrap_or(NO_ID), name: field.name, data_type, comment: field.description })
                };
                let fields = self.fields.ok_or_else(|| lacks("fields"))?;
                let fields: Vec<Field> = fields.into_iter().map(field).collect::<Result<_>>()?;
                let mut names = BTreeSet::new();
                if let Some(twice) = fields.iter().find(|field| !names.insert(&field.name)) {
                    return Err(Error::data(format!("field `{}` appears twice in a ROW", twice.name)));
                }
                TypeKind::Row(fields)
            }
            _ => return Err(Error::data(format!("type `{root}` is unknown"))),
        };
        Ok(DataType { kind, nullable: self.nullable.unwrap_or(true) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden() -> Vec<String> {
        let text = include_str!("../../fixtures/vectors/fluss-text.json");
        let all: serde_json::Value = serde_json::from_str(text).unwrap();
        all["table_json"].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn what_java_wrote_is_read_and_written_back_byte_for_byte() {
        for text in golden() {
            let table = table_from_json(text.as_bytes(), SchemaId(1)).unwrap();
            assert_eq!(table_to_json(&table).unwrap(), text);
            let schema = schema_to_json(&table.schema).unwrap();
            assert_eq!(schema_from_json(schema.as_bytes(), SchemaId(1)).unwrap(), table.schema);
        }
    }

    #[test]
    fn missing_ids_are_counted_through_nested_fields_as_java_does() {
        let with_ids = golden().remove(0);
        let table = table_from_json(with_ids.as_bytes(), SchemaId(1)).unwrap();
        let mut json: serde_json::Value = serde_json::from_str(&with_ids).unwrap();
        json["schema"].as_object_mut().unwrap().remove("highest_field_id");
        for column in json["schema"]["columns"].as_array_mut().unwrap() {
            column.as_object_mut().unwrap().remove("id");
        }
        assert_eq!(table_from_json(json.to_string().as_bytes(), SchemaId(1)).unwrap(), table);
    }

    #[test]
    fn a_deeply_nested_schema_of_java_survives_byte_for_byte_and_gets_java_s_ids() {
        let text = include_str!("../../fixtures/vectors/fluss-nested.json");
        let start = text.find("{\"version\"").unwrap();
        let golden = text.get(start..text.find(",\n \"rows\"").unwrap()).unwrap();
        let schema = schema_from_json(golden.as_bytes(), SchemaId(1)).unwrap();
        assert_eq!(schema_to_json(&schema).unwrap(), golden);
        let (mut again, mut highest) = (schema.clone(), NO_ID);
        visit_fields(&schema.fields, &mut |field| assert!(field.id >= 0));
        number_fields(&mut again.fields, &mut highest);
        assert_eq!((again, highest), (schema.clone(), schema.highest_field_id));
    }

    #[test]
    fn nested_types_have_a_bound_and_map_keys_are_never_null() {
        let table = |data_type: &str| format!(r#"{{"columns":[{{"name":"a","data_type":{data_type}}}]}}"#);
        let read = |data_type: &str| schema_from_json(table(data_type).as_bytes(), SchemaId(1));
        let deep = |levels: usize| {
            let open = r#"{"type":"ROW","fields":[{"name":"x","field_type":"#;
            format!("{}{}{}", open.repeat(levels), r#"{"type":"INTEGER"}"#, "}]}".repeat(levels))
        };
        let schema = read(&deep(NESTED_DEPTH_MAX)).unwrap();
        assert_eq!(schema.highest_field_id, 32);
        assert_eq!(schema_from_json(schema_to_json(&schema).unwrap().as_bytes(), SchemaId(1)).unwrap(), schema);
        assert_eq!(read(&deep(NESTED_DEPTH_MAX + 1)).unwrap_err().kind(), crate::error::Kind::Unsupported);
        assert!(read(&deep(100_000)).is_err());
        let map = read(r#"{"type":"MAP","key_type":{"type":"STRING"},"value_type":{"type":"STRING"}}"#).unwrap();
        let TypeKind::Map(key, value) = &map.fields[0].data_type.kind else { panic!() };
        assert!(!key.nullable && value.nullable);
        let twice =
            r#"{"type":"ROW","fields":[{"name":"x","field_type":{"type":"DATE"}},{"name":"x","field_type":{"type":"DATE"}}]}"#;
        assert!(read(twice).unwrap_err().chain().contains("`x`"));
    }

    #[test]
    fn wrong_json_is_refused() {
        let whole = golden().remove(0);
        for (from, to) in [
            ("INTEGER", "INTERVAL"),
            ("\"precision\":10,", ""),
            ("\"length\":3", "\"length\":0"),
            ("\"element_type\":{\"type\":\"STRING\"}", "\"x\":1"),
            ("\"name\":\"dt\"", "\"name\":\"id\""),
            ("[\"id\",\"dt\"]", "[\"nobody\"]"),
            ("\"partition_key\":[\"dt\"],", ""),
            ("\"id\":3", "\"id\":2"),
        ] {
            assert!(whole.contains(from), "{from}");
            assert!(table_from_json(whole.replacen(from, to, 1).as_bytes(), SchemaId(1)).is_err(), "{from} → {to}");
        }
        assert!(table_from_json(&vec![b'['; 100_000], SchemaId(1)).is_err());
    }
}
