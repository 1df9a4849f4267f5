//! A writer's schema.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::error::{Error, Result};

/// Types nested deeper than this are refused.
const DEPTH_MAX: usize = 32;
/// Types of a schema at most, references counted as what they name.
const NODES_MAX: usize = 4_096;

/// A type of a writer's schema; references are resolved.
#[derive(Debug, Clone)]
pub(super) enum Type {
    Null,
    Boolean,
    /// `int`, `long` and enum indexes: all are zigzag numbers. Divided by `unit`: 1,000 for timestamps in microseconds.
    Number {
        unit: i64,
    },
    Float,
    Double,
    Bytes,
    String,
    Fixed(usize),
    Array(Box<Self>),
    Map(Box<Self>),
    Union(Vec<Self>),
    Record(Vec<(String, Self)>),
}

impl Type {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let value: Value =
            serde_json::from_str(text).map_err(|source| Error::data("avro schema is not JSON").with_source(source))?;
        Parser { names: BTreeMap::new(), nodes: 0 }.parse(&value, 0)
    }

    pub(super) fn nodes(&self) -> usize {
        1 + match self {
            Self::Array(inner) | Self::Map(inner) => inner.nodes(),
            Self::Union(branches) => branches.iter().map(Self::nodes).sum(),
            Self::Record(fields) => fields.iter().map(|(_, field)| field.nodes()).sum(),
            _ => 0,
        }
    }
}

struct Parser {
    /// Complete named types; one that names itself is not complete when it is asked for, so recursion is refused.
    names: BTreeMap<String, Type>,
    nodes: usize,
}

impl Parser {
    fn parse(&mut self, value: &Value, depth: usize) -> Result<Type> {
        self.nodes += 1;
        if depth > DEPTH_MAX || self.nodes > NODES_MAX {
            return Err(Error::data("avro schema is too large"));
        }
        match value {
            Value::String(name) => self.named(name),
            Value::Array(branches) => {
                Ok(Type::Union(branches.iter().map(|branch| self.parse(branch, depth + 1)).collect::<Result<_>>()?))
            }
            Value::Object(_) => self.object(value, depth),
            _ => Err(Error::data("avro schema holds something that is no type")),
        }
    }

    fn named(&mut self, name: &str) -> Result<Type> {
        Ok(match name {
            "null" => Type::Null,
            "boolean" => Type::Boolean,
            "int" | "long" => Type::Number { unit: 1 },
            "float" => Type::Float,
            "double" => Type::Double,
            "bytes" => Type::Bytes,
            "string" => Type::String,
            _ => {
                let known = self.names.get(simple_name(name)).cloned();
                let known = known.ok_or_else(|| Error::data(format!("avro schema names the unknown type `{name}`")))?;
                self.nodes += known.nodes();
                known
            }
        })
    }

    fn object(&mut self, value: &Value, depth: usize) -> Result<Type> {
        let member = |key: &str| value.get(key).ok_or_else(|| Error::data(format!("avro type without `{key}`")));
        let Value::String(name) = member("type")? else { return self.parse(member("type")?, depth + 1) };
        let parsed = match name.as_str() {
            "array" => return Ok(Type::Array(Box::new(self.parse(member("items")?, depth + 1)?))),
            "map" => return Ok(Type::Map(Box::new(self.parse(member("values")?, depth + 1)?))),
            "long" if value.get("logicalType").and_then(Value::as_str) == Some("timestamp-micros") => {
                return Ok(Type::Number { unit: 1_000 });
            }
            "fixed" => {
                let size = member("size")?.as_u64().and_then(|size| usize::try_from(size).ok());
                Type::Fixed(size.ok_or_else(|| Error::data("avro fixed type without size"))?)
            }
            "enum" => Type::Number { unit: 1 },
            "record" => {
                let fields = member("fields")?.as_array().ok_or_else(|| Error::data("avro record without fields"))?;
                let mut parsed = Vec::new();
                for field in fields {
                    let name = field.get("name").and_then(Value::as_str).ok_or_else(|| Error::data("avro field without name"))?;
                    let inner = field.get("type").ok_or_else(|| Error::data(format!("avro field `{name}` without type")))?;
                    parsed.push((name.to_owned(), self.parse(inner, depth + 1)?));
                }
                Type::Record(parsed)
            }
            _ => return self.named(name),
        };
        if let Some(name) = value.get("name").and_then(Value::as_str) {
            self.names.insert(simple_name(name).to_owned(), parsed.clone());
        }
        Ok(parsed)
    }
}

fn simple_name(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
