//! The Arrow schema of a Fluss schema (F5.3): batches travel without one.

use std::sync::Arc;

use arrow_schema::{DataType as ArrowType, Field as ArrowField, FieldRef, Schema as ArrowSchema, SchemaRef, TimeUnit};

use crate::error::{Error, Result};
use crate::model::{DataType, Field, Schema, TypeKind};

/// The Arrow schema that batches of `schema` are decoded with, columns in order.
///
/// # Errors
/// `Invalid` when the schema has a type that Fluss does not have.
///
/// Source: F5.3.
pub fn arrow_schema(schema: &Schema) -> Result<SchemaRef> {
    let fields: Vec<FieldRef> = schema.fields.iter().map(arrow_field).collect::<Result<_>>()?;
    Ok(Arc::new(ArrowSchema::new(fields)))
}

fn arrow_field(field: &Field) -> Result<FieldRef> {
    child(&field.name, &field.data_type)
}

fn child(name: &str, data_type: &DataType) -> Result<FieldRef> {
    Ok(Arc::new(ArrowField::new(name, arrow_type(&data_type.kind)?, data_type.nullable)))
}

/// Time unit by precision class: 0, 1–3, 4–6, 7–9.
const fn unit(precision: u8) -> TimeUnit {
    match precision {
        0 => TimeUnit::Second,
        1..=3 => TimeUnit::Millisecond,
        4..=6 => TimeUnit::Microsecond,
        _ => TimeUnit::Nanosecond,
    }
}

/// The Arrow type that a Fluss type has in a batch.
///
/// # Errors
/// As [`arrow_schema()`].
pub fn arrow_type(kind: &TypeKind) -> Result<ArrowType> {
    let too_long = |length: u32| Error::invalid(format!("a length of `{length}`"));
    Ok(match kind {
        TypeKind::Boolean => ArrowType::Boolean,
        TypeKind::TinyInt => ArrowType::Int8,
        TypeKind::SmallInt => ArrowType::Int16,
        TypeKind::Int => ArrowType::Int32,
        TypeKind::BigInt => ArrowType::Int64,
        TypeKind::Float => ArrowType::Float32,
        TypeKind::Double => ArrowType::Float64,
        TypeKind::Decimal { precision, scale } => {
            let scale = i8::try_from(*scale).map_err(|source| Error::invalid("decimal scale").with_source(source))?;
            ArrowType::Decimal128(*precision, scale)
        }
        TypeKind::Char { .. } | TypeKind::String => ArrowType::Utf8,
        TypeKind::Binary { length } => {
            ArrowType::FixedSizeBinary(i32::try_from(*length).map_err(|source| too_long(*length).with_source(source))?)
        }
        TypeKind::Bytes => ArrowType::Binary,
        TypeKind::Date => ArrowType::Date32,
        TypeKind::Time { precision } => match unit(*precision) {
            unit @ (TimeUnit::Second | TimeUnit::Millisecond) => ArrowType::Time32(unit),
            unit => ArrowType::Time64(unit),
        },
        TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision } => ArrowType::Timestamp(unit(*precision), None),
        TypeKind::Array(element) => ArrowType::List(child("element", element)?),
        TypeKind::Map(key, value) => {
            let entries = vec![child("key", key)?, child("value", value)?];
            ArrowType::Map(Arc::new(ArrowField::new("entries", ArrowType::Struct(entries.into()), false)), false)
        }
        TypeKind::Row(fields) => {
            let fields: Vec<FieldRef> = fields.iter().map(arrow_field).collect::<Result<_>>()?;
            ArrowType::Struct(fields.into())
        }
        TypeKind::VarChar { .. } | TypeKind::VarBinary { .. } | TypeKind::Multiset(_) => {
            return Err(Error::invalid("Fluss has no VARCHAR, VARBINARY or MULTISET"));
        }
    })
}
