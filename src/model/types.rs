//! Types, fields and values that both systems know.

use serde::{Deserialize, Serialize};

use super::ids::SchemaId;

/// Types nested deeper than this are refused: functions that walk types recurse, and a hostile schema must not exhaust the stack.
/// As JSON of either system this stays below what JSON readers take (128 levels).
pub const NESTED_DEPTH_MAX: usize = 32;

/// A column type: what it holds and whether it may be NULL.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DataType {
    /// What it holds.
    pub kind: TypeKind,
    /// Whether NULL is allowed.
    pub nullable: bool,
}

impl DataType {
    /// A nullable type.
    #[must_use]
    pub const fn nullable(kind: TypeKind) -> Self {
        Self { kind, nullable: true }
    }

    /// A NOT NULL type.
    #[must_use]
    pub const fn required(kind: TypeKind) -> Self {
        Self { kind, nullable: false }
    }

    /// Whether both hold the same values: ids and comments of nested fields don't matter (F6.5).
    #[must_use]
    pub fn same_as(&self, other: &Self) -> bool {
        self.nullable == other.nullable
            && match (&self.kind, &other.kind) {
                (TypeKind::Array(a), TypeKind::Array(b)) | (TypeKind::Multiset(a), TypeKind::Multiset(b)) => a.same_as(b),
                (TypeKind::Map(a_key, a), TypeKind::Map(b_key, b)) => a_key.same_as(b_key) && a.same_as(b),
                (TypeKind::Row(a), TypeKind::Row(b)) => {
                    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.name == b.name && a.data_type.same_as(&b.data_type))
                }
                (a, b) => a == b,
            }
    }

    fn fields_inside(&self, act: &mut dyn FnMut(&Field)) {
        match &self.kind {
            TypeKind::Array(element) | TypeKind::Multiset(element) => element.fields_inside(act),
            TypeKind::Map(key, value) => {
                key.fields_inside(act);
                value.fields_inside(act);
            }
            TypeKind::Row(fields) => visit_fields(fields, act),
            _ => {}
        }
    }

    /// [`number_fields`] for the fields inside this type.
    pub fn number_nested(&mut self, highest: &mut i32) {
        match &mut self.kind {
            TypeKind::Array(element) | TypeKind::Multiset(element) => element.number_nested(highest),
            TypeKind::Map(key, value) => {
                key.number_nested(highest);
                value.number_nested(highest);
            }
            TypeKind::Row(fields) => number_fields(fields, highest),
            _ => {}
        }
    }
}

/// Calls `act` with every field and every field nested in it, each before what is nested in it.
pub fn visit_fields(fields: &[Field], act: &mut dyn FnMut(&Field)) {
    for field in fields {
        act(field);
        field.data_type.fields_inside(act);
    }
}

/// Gives every field an id from one counter as Fluss does, each before the fields nested in it (S3.2); `highest` is the last one
/// given out before and afterwards. (Paimon counts otherwise: `paimon::number_nested`.)
pub fn number_fields(fields: &mut [Field], highest: &mut i32) {
    for field in fields {
        *highest = highest.saturating_add(1);
        field.id = *highest;
        field.data_type.number_nested(highest);
    }
}

/// The union of the Fluss types (F5.3) and the Paimon types (P2.2) that Lakeward knows by name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the SQL type names")]
pub enum TypeKind {
    Boolean,
    TinyInt,
    SmallInt,
    Int,
    BigInt,
    Float,
    Double,
    Decimal {
        precision: u8,
        scale: u8,
    },
    Char {
        length: u32,
    },
    /// Paimon only.
    VarChar {
        length: u32,
    },
    String,
    Binary {
        length: u32,
    },
    /// Paimon only.
    VarBinary {
        length: u32,
    },
    Bytes,
    Date,
    Time {
        precision: u8,
    },
    Timestamp {
        precision: u8,
    },
    TimestampLtz {
        precision: u8,
    },
    Array(Box<DataType>),
    /// Paimon only.
    Multiset(Box<DataType>),
    Map(Box<DataType>, Box<DataType>),
    Row(Vec<Field>),
}

impl TypeKind {
    /// Whether it is ARRAY, MULTISET, MAP or ROW.
    #[must_use]
    pub const fn is_nested(&self) -> bool {
        matches!(self, Self::Array(_) | Self::Multiset(_) | Self::Map(..) | Self::Row(_))
    }
}

/// A column or a field of a ROW.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Field {
    /// Column id (Fluss) or field id (Paimon).
    pub id: i32,
    /// Name, case-sensitive.
    pub name: String,
    /// Type.
    pub data_type: DataType,
    /// Comment or description.
    pub comment: Option<String>,
}

/// A Fluss table schema version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    /// Its id, from 1.
    pub id: SchemaId,
    /// Columns in order.
    pub fields: Vec<Field>,
    /// Primary key columns; empty on a log table.
    pub primary_key: Vec<String>,
    /// Largest column or nested field id ever used.
    pub highest_field_id: i32,
}

impl Schema {
    /// Position of column `name`.
    #[must_use]
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.name == name)
    }
}

/// A typed, non-null scalar: partition values, statistics, keys. NULL is `Option::None`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the type names")]
pub enum Datum {
    Boolean(bool),
    TinyInt(i8),
    SmallInt(i16),
    Int(i32),
    BigInt(i64),
    Float(f32),
    Double(f64),
    /// Value = unscaled · 10^−scale.
    Decimal {
        unscaled: i128,
        precision: u8,
        scale: u8,
    },
    /// CHAR, VARCHAR, STRING.
    String(String),
    /// BINARY, VARBINARY, BYTES.
    Bytes(Vec<u8>),
    /// Days since 1970-01-01.
    Date(i32),
    /// Milliseconds of the day.
    Time(i32),
    /// TIMESTAMP and TIMESTAMP_LTZ: epoch milliseconds (floor) and 0–999,999 nanoseconds within the millisecond.
    Timestamp {
        millis: i64,
        nanos: i32,
    },
}
