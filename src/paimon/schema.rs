//! Schema files, both ways (P2.1), and what a schema says about keys.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::meta::TableSchema;
use super::types::{FieldJson, field_from_json};
use crate::error::{Error, Result};
use crate::model::{DataType, Field};

/// The version that we write.
const VERSION: i64 = 3;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SchemaJson<'a> {
    version: i64,
    id: i64,
    fields: Vec<FieldJson>,
    highest_field_id: i32,
    partition_keys: &'a [String],
    primary_keys: &'a [String],
    options: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<&'a str>,
    time_millis: i64,
}

impl TableSchema {
    /// The text of a schema file, members in Java's order.
    ///
    /// # Errors
    /// `Internal` when JSON can't be made of it.
    pub fn to_json(&self) -> Result<String> {
        let json = SchemaJson {
            version: VERSION,
            id: self.id,
            fields: self.fields.iter().map(FieldJson::from).collect(),
            highest_field_id: self.highest_field_id,
            partition_keys: &self.partition_keys,
            primary_keys: &self.primary_keys,
            options: &self.options,
            comment: self.comment.as_deref(),
            time_millis: self.time_ms,
        };
        serde_json::to_string_pretty(&json).map_err(|source| Error::internal("write schema").with_source(source))
    }

    /// Reads the text of a schema file. Unknown members are ignored, numbers and booleans are taken as option values.
    ///
    /// # Errors
    /// `Data` when a member is missing or of the wrong type; `Unsupported` names a type or a file older than version 3.
    pub fn from_json(text: &str) -> Result<Self> {
        let value: Value =
            serde_json::from_str(text).map_err(|source| Error::data("schema file is not JSON").with_source(source))?;
        if let Some(version) = value.get("version").and_then(Value::as_i64)
            && version < VERSION
        {
            return Err(Error::unsupported(format!("schema file of version {version}")));
        }
        let id = number(&value, "id")?;
        let fields: Vec<Field> = array(&value, "fields")?.iter().map(field_from_json).collect::<Result<_>>()?;
        let highest_field_id = i32::try_from(number(&value, "highestFieldId")?)
            .map_err(|source| Error::data("`highestFieldId` of the schema file is too large").with_source(source))?;
        let mut options = BTreeMap::new();
        let members = value.get("options").and_then(Value::as_object).ok_or_else(|| Error::data("schema file has no `options`"))?;
        for (key, option) in members {
            let text = match option {
                Value::String(text) => text.clone(),
                Value::Number(_) | Value::Bool(_) => option.to_string(),
                _ => return Err(Error::data(format!("option `{key}` of the schema file is no text"))),
            };
            options.insert(key.clone(), text);
        }
        Ok(Self {
            id,
            fields,
            highest_field_id,
            partition_keys: names(&value, "partitionKeys")?,
            primary_keys: names(&value, "primaryKeys")?,
            options,
            comment: value.get("comment").and_then(Value::as_str).map(str::to_owned),
            time_ms: value.get("timeMillis").and_then(Value::as_i64).unwrap_or(0),
        })
    }

    /// Column `name`.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// Types of the partition columns, in the order of the partition keys.
    ///
    /// # Errors
    /// `Data` when a partition key names no column.
    pub fn partition_types(&self) -> Result<Vec<DataType>> {
        self.types_of(&self.partition_keys)
    }

    /// The primary key without the partition columns, in its order: what files are sorted by and `_MIN_KEY` holds (P7.3, D.5).
    #[must_use]
    pub fn trimmed_primary_keys(&self) -> Vec<String> {
        self.primary_keys.iter().filter(|key| !self.partition_keys.contains(key)).cloned().collect()
    }

    /// Types of the columns `names`.
    ///
    /// # Errors
    /// `Data` when there is no such column.
    pub fn types_of(&self, names: &[String]) -> Result<Vec<DataType>> {
        let type_of = |name: &String| {
            let field = self.field(name).ok_or_else(|| Error::data(format!("schema {} has no column `{name}`", self.id)))?;
            Ok(field.data_type.clone())
        };
        names.iter().map(type_of).collect()
    }

    /// An option's value text.
    #[must_use]
    pub fn option(&self, key: &str) -> Option<&str> {
        self.options.get(key).map(String::as_str)
    }
}

fn number(value: &Value, key: &str) -> Result<i64> {
    value.get(key).and_then(Value::as_i64).ok_or_else(|| Error::data(format!("schema file has no number `{key}`")))
}

fn array<'a>(value: &'a Value, key: &str) -> Result<&'a [Value]> {
    value
        .get(key)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .ok_or_else(|| Error::data(format!("schema file has no list `{key}`")))
}

fn names(value: &Value, key: &str) -> Result<Vec<String>> {
    array(value, key)?
        .iter()
        .map(|name| name.as_str().map(str::to_owned).ok_or_else(|| Error::data(format!("`{key}` of the schema file is no name"))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_survives_a_round_trip_and_unknown_members_do_not_matter() {
        let text = r#"{"version":3,"id":1,"fields":[{"id":0,"name":"k","type":"INT NOT NULL","description":"key"},
            {"id":1,"name":"a","type":{"type":"ARRAY NOT NULL","element":{"type":"ROW","fields":[{"id":2,"name":"x","type":"STRING"}]}}},
            {"id":3,"name":"m","type":{"type":"MAP","key":"STRING NOT NULL","value":"BIGINT"}},
            {"id":4,"name":"s","type":{"type":"MULTISET","element":"INT"}}],
            "highestFieldId":4,"partitionKeys":["k"],"primaryKeys":[],"options":{"bucket":4,"x":"y"},"comment":"c","timeMillis":7,"new":{}}"#;
        let schema = TableSchema::from_json(text).unwrap();
        assert_eq!(schema.option("bucket"), Some("4"));
        assert_eq!(schema.fields[0].comment.as_deref(), Some("key"));
        assert_eq!(TableSchema::from_json(&schema.to_json().unwrap()).unwrap(), schema);
    }

    #[test]
    fn missing_members_are_named() {
        let error =
            TableSchema::from_json(r#"{"id":0,"fields":[],"highestFieldId":-1,"partitionKeys":[],"options":{}}"#).unwrap_err();
        assert!(error.to_string().contains("`primaryKeys`"), "{error}");
        assert!(TableSchema::from_json("{").is_err());
    }
}
