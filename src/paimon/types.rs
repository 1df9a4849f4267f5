//! Column types as text and JSON, both ways (P2.2).

use serde::Serialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::model::{DataType, Field, NESTED_DEPTH_MAX, TypeKind};

/// The SQL text of a type; for nested types a form for messages (schema files hold those as JSON objects).
#[must_use]
pub fn type_text(data_type: &DataType) -> String {
    let base = match &data_type.kind {
        TypeKind::Boolean => "BOOLEAN".to_owned(),
        TypeKind::TinyInt => "TINYINT".to_owned(),
        TypeKind::SmallInt => "SMALLINT".to_owned(),
        TypeKind::Int => "INT".to_owned(),
        TypeKind::BigInt => "BIGINT".to_owned(),
        TypeKind::Float => "FLOAT".to_owned(),
        TypeKind::Double => "DOUBLE".to_owned(),
        TypeKind::Decimal { precision, scale } => format!("DECIMAL({precision}, {scale})"),
        TypeKind::Char { length } => format!("CHAR({length})"),
        TypeKind::VarChar { length } => format!("VARCHAR({length})"),
        TypeKind::String => "STRING".to_owned(),
        TypeKind::Binary { length } => format!("BINARY({length})"),
        TypeKind::VarBinary { length } => format!("VARBINARY({length})"),
        TypeKind::Bytes => "BYTES".to_owned(),
        TypeKind::Date => "DATE".to_owned(),
        TypeKind::Time { precision } => format!("TIME({precision})"),
        TypeKind::Timestamp { precision } => format!("TIMESTAMP({precision})"),
        TypeKind::TimestampLtz { precision } => format!("TIMESTAMP({precision}) WITH LOCAL TIME ZONE"),
        TypeKind::Array(element) => format!("ARRAY<{}>", type_text(element)),
        TypeKind::Multiset(element) => format!("MULTISET<{}>", type_text(element)),
        TypeKind::Map(key, value) => format!("MAP<{}, {}>", type_text(key), type_text(value)),
        TypeKind::Row(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|field| format!("{} {}", field.name, type_text(&field.data_type))).collect();
            format!("ROW<{}>", fields.join(", "))
        }
    };
    if data_type.nullable { base } else { format!("{base} NOT NULL") }
}

/// A type as schema files hold it, members in Java's order.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum TypeJson {
    Text(String),
    List {
        #[serde(rename = "type")]
        name: String,
        element: Box<Self>,
    },
    Map {
        #[serde(rename = "type")]
        name: String,
        key: Box<Self>,
        value: Box<Self>,
    },
    Row {
        #[serde(rename = "type")]
        name: String,
        fields: Vec<FieldJson>,
    },
}

/// A field as schema files hold it.
#[derive(Debug, Serialize)]
pub(super) struct FieldJson {
    id: i32,
    name: String,
    #[serde(rename = "type")]
    data_type: TypeJson,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

impl From<&Field> for FieldJson {
    fn from(field: &Field) -> Self {
        Self {
            id: field.id,
            name: field.name.clone(),
            data_type: TypeJson::from(&field.data_type),
            description: field.comment.clone(),
        }
    }
}

impl From<&DataType> for TypeJson {
    fn from(data_type: &DataType) -> Self {
        let name = |name: &str| if data_type.nullable { name.to_owned() } else { format!("{name} NOT NULL") };
        let boxed = |inner: &DataType| Box::new(Self::from(inner));
        match &data_type.kind {
            TypeKind::Array(element) => Self::List { name: name("ARRAY"), element: boxed(element) },
            TypeKind::Multiset(element) => Self::List { name: name("MULTISET"), element: boxed(element) },
            TypeKind::Map(key, value) => Self::Map { name: name("MAP"), key: boxed(key), value: boxed(value) },
            TypeKind::Row(fields) => Self::Row { name: name("ROW"), fields: fields.iter().map(FieldJson::from).collect() },
            _ => Self::Text(type_text(data_type)),
        }
    }
}

/// A type as schema files hold it: text, or an object for nested types.
#[must_use]
pub fn type_json(data_type: &DataType) -> Value {
    // Only texts, numbers and structures of them: this can't fail.
    serde_json::to_value(TypeJson::from(data_type)).unwrap_or_default()
}

/// Gives the fields inside a type the ids that Java Paimon gives at creation and for an added column: inside a ROW a field comes
/// after what is nested in it, while a column comes before. `highest` is the last id given out, before and afterwards.
///
/// Source: P2.3; golden table `nested`.
pub fn number_nested(data_type: &mut DataType, highest: &mut i32) {
    match &mut data_type.kind {
        TypeKind::Array(element) | TypeKind::Multiset(element) => number_nested(element, highest),
        TypeKind::Map(key, value) => {
            number_nested(key, highest);
            number_nested(value, highest);
        }
        TypeKind::Row(fields) => {
            for field in fields {
                number_nested(&mut field.data_type, highest);
                *highest = highest.saturating_add(1);
                field.id = *highest;
            }
        }
        _ => {}
    }
}

/// Reads one field of a schema file.
///
/// # Errors
/// `Unsupported` names VARIANT, BLOB, VECTOR and types that are nested too deep; `Data` anything that is no type; the field named.
pub(super) fn field_from_json(value: &Value) -> Result<Field> {
    field_at(value, 0)
}

fn field_at(value: &Value, depth: usize) -> Result<Field> {
    let name = text_of(value, "name")?.to_owned();
    let id = value
        .get("id")
        .and_then(Value::as_i64)
        .and_then(|id| i32::try_from(id).ok())
        .ok_or_else(|| Error::data(format!("field `{name}` has no id")))?;
    let data_type = value.get("type").ok_or_else(|| Error::data(format!("field `{name}` has no type")))?;
    let data_type = from_json(data_type, depth).map_err(|error| error.context(format!("field `{name}`")))?;
    let comment = value.get("description").and_then(Value::as_str).map(str::to_owned);
    Ok(Field { id, name, data_type, comment })
}

fn text_of<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value.get(key).and_then(Value::as_str).ok_or_else(|| Error::data(format!("`{key}` is missing or no text")))
}

fn from_json(value: &Value, depth: usize) -> Result<DataType> {
    if depth > NESTED_DEPTH_MAX {
        return Err(Error::unsupported(format!("types nested deeper than {NESTED_DEPTH_MAX} levels")));
    }
    if let Some(text) = value.as_str() {
        return parse_type(text);
    }
    let text = text_of(value, "type")?.trim();
    let (name, nullable) = text.strip_suffix("NOT NULL").map_or((text, true), |name| (name.trim_end(), false));
    let inner = |key: &str| {
        let inner = value.get(key).ok_or_else(|| Error::data(format!("`{name}` type without `{key}`")))?;
        from_json(inner, depth + 1).map(Box::new)
    };
    let kind = match name {
        "ARRAY" => TypeKind::Array(inner("element")?),
        "MULTISET" => TypeKind::Multiset(inner("element")?),
        "MAP" => TypeKind::Map(inner("key")?, inner("value")?),
        "ROW" => {
            let fields = value.get("fields").and_then(Value::as_array).ok_or_else(|| Error::data("`ROW` type without `fields`"))?;
            TypeKind::Row(fields.iter().map(|field| field_at(field, depth + 1)).collect::<Result<_>>()?)
        }
        "VECTOR" => return Err(Error::unsupported("column type `VECTOR`")),
        _ => return parse_type(text),
    };
    Ok(DataType { kind, nullable })
}

/// Reads the SQL text of a type that is not nested.
///
/// # Errors
/// `Unsupported` names VARIANT and BLOB; `Data` anything that is no type.
pub fn parse_type(text: &str) -> Result<DataType> {
    let wrong = || Error::data(format!("`{text}` is no column type"));
    let trimmed = text.trim();
    let (rest, nullable) = match trimmed.strip_suffix("NOT NULL") {
        Some(rest) => (rest.trim_end(), false),
        None => (trimmed.strip_suffix(" NULL").unwrap_or(trimmed).trim_end(), true),
    };
    let (name, arguments, tail) = match rest.split_once('(') {
        None => {
            let name = rest.split(' ').next().unwrap_or_default();
            (name, Vec::new(), rest.get(name.len()..).unwrap_or_default().trim())
        }
        Some((name, after)) => {
            let (inside, tail) = after.split_once(')').ok_or_else(wrong)?;
            let arguments = inside
                .split(',')
                .map(|number| number.trim().parse::<u32>())
                .collect::<Result<Vec<_>, _>>()
                .map_err(|source| wrong().with_source(source))?;
            (name.trim(), arguments, tail.trim())
        }
    };
    let small = |index: usize, default: u8, max: u8| match arguments.get(index) {
        None => Ok(default),
        Some(number) => u8::try_from(*number).ok().filter(|number| *number <= max).ok_or_else(wrong),
    };
    let length = || match arguments.first() {
        None => Ok(1),
        Some(0) => Err(wrong()),
        Some(length) => Ok(*length),
    };
    const UNBOUNDED: u32 = 2_147_483_647;
    let local = match tail {
        "" | "WITHOUT TIME ZONE" => false,
        "WITH LOCAL TIME ZONE" => true,
        _ => return Err(wrong()),
    };
    let most = match name {
        "DECIMAL" | "DEC" | "NUMERIC" => 2,
        "CHAR" | "VARCHAR" | "BINARY" | "VARBINARY" | "TIME" | "TIMESTAMP" | "TIMESTAMP_LTZ" => 1,
        _ => 0,
    };
    if arguments.len() > most || (!tail.is_empty() && !matches!(name, "TIME" | "TIMESTAMP")) {
        return Err(wrong());
    }
    let kind = match name {
        "BOOLEAN" => TypeKind::Boolean,
        "TINYINT" => TypeKind::TinyInt,
        "SMALLINT" => TypeKind::SmallInt,
        "INT" | "INTEGER" => TypeKind::Int,
        "BIGINT" => TypeKind::BigInt,
        "FLOAT" => TypeKind::Float,
        "DOUBLE" => TypeKind::Double,
        "DECIMAL" | "DEC" | "NUMERIC" => {
            let (precision, scale) = (small(0, 10, 38)?, small(1, 0, 38)?);
            if precision == 0 || scale > precision {
                return Err(wrong());
            }
            TypeKind::Decimal { precision, scale }
        }
        "CHAR" => TypeKind::Char { length: length()? },
        "VARCHAR" => match length()? {
            UNBOUNDED => TypeKind::String,
            length => TypeKind::VarChar { length },
        },
        "STRING" => TypeKind::String,
        "BINARY" => TypeKind::Binary { length: length()? },
        "VARBINARY" => match length()? {
            UNBOUNDED => TypeKind::Bytes,
            length => TypeKind::VarBinary { length },
        },
        "BYTES" => TypeKind::Bytes,
        "DATE" => TypeKind::Date,
        "TIME" if !local => TypeKind::Time { precision: small(0, 0, 9)? },
        "TIMESTAMP" if !local => TypeKind::Timestamp { precision: small(0, 6, 9)? },
        "TIMESTAMP" | "TIMESTAMP_LTZ" => TypeKind::TimestampLtz { precision: small(0, 6, 9)? },
        "VARIANT" | "BLOB" => return Err(Error::unsupported(format!("column type `{name}`"))),
        _ => return Err(wrong()),
    };
    Ok(DataType { kind, nullable })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;
    use serde_json::json;

    #[test]
    fn type_texts_survive_a_round_trip() {
        for text in [
            "BOOLEAN",
            "TINYINT NOT NULL",
            "SMALLINT",
            "INT",
            "BIGINT",
            "FLOAT",
            "DOUBLE",
            "DECIMAL(10, 2)",
            "DECIMAL(38, 38) NOT NULL",
            "CHAR(4)",
            "VARCHAR(40)",
            "STRING NOT NULL",
            "BINARY(4)",
            "VARBINARY(10)",
            "BYTES",
            "DATE",
            "TIME(3)",
            "TIMESTAMP(0)",
            "TIMESTAMP(9) NOT NULL",
            "TIMESTAMP(6) WITH LOCAL TIME ZONE",
            "TIMESTAMP(3) WITH LOCAL TIME ZONE NOT NULL",
        ] {
            assert_eq!(type_text(&parse_type(text).unwrap()), text);
        }
    }

    #[test]
    fn other_spellings_are_understood() {
        for (text, canonical) in [
            ("DECIMAL(10,2)", "DECIMAL(10, 2)"),
            ("DECIMAL", "DECIMAL(10, 0)"),
            ("VARCHAR(2147483647)", "STRING"),
            ("VARBINARY(2147483647) NOT NULL", "BYTES NOT NULL"),
            ("TIMESTAMP", "TIMESTAMP(6)"),
            ("TIMESTAMP_LTZ(3)", "TIMESTAMP(3) WITH LOCAL TIME ZONE"),
            ("TIMESTAMP(3) WITHOUT TIME ZONE", "TIMESTAMP(3)"),
            ("TIME", "TIME(0)"),
        ] {
            assert_eq!(type_text(&parse_type(text).unwrap()), canonical);
        }
    }

    #[test]
    fn what_is_no_type_is_refused() {
        for text in ["", "WORD", "DECIMAL(0, 0)", "DECIMAL(39, 0)", "DECIMAL(4, 5)", "INT(3)", "CHAR(0)", "CHAR(", "TIMESTAMP(10)"]
        {
            assert_eq!(parse_type(text).unwrap_err().kind(), Kind::Data, "{text}");
        }
        assert_eq!(parse_type("VARIANT").unwrap_err().kind(), Kind::Unsupported);
        let mut deep = json!("INT");
        for level in 1..100 {
            deep = json!({"type": "ARRAY", "element": deep});
            let kind = from_json(&deep, 0).map(|_| ()).map_err(|error| error.kind());
            assert_eq!(kind, if level <= NESTED_DEPTH_MAX { Ok(()) } else { Err(Kind::Unsupported) }, "{level}");
        }
    }
}
