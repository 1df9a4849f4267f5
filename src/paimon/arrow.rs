//! The Arrow form of a lake table's columns: what rows are converted to, files are written from, and read as.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_schema::{DataType as ArrowType, Field as ArrowField, Schema as ArrowSchema, SchemaRef, TimeUnit};

use super::meta::TableSchema;
use crate::error::{Error, Result};
use crate::model::{DataType, Field, TypeKind};

/// Zone of TIMESTAMP_LTZ columns: marks them as instants.
const ZONE: &str = "UTC";

/// The Arrow schema of the lake's columns, all of them in order.
///
/// Timestamps have the unit that Paimon reads by precision: milliseconds to 3, microseconds to 6, nanoseconds above (written as INT96);
/// TIME is milliseconds; BINARY is variable; children of lists and maps are `element`, `key` (never NULL) and `value`. Each column and
/// ROW field names its id under `PARQUET:field_id`, TIME has `adjusted_to_utc`.
///
/// # Errors
/// `Unsupported` names a column of a MULTISET.
///
/// Source: P7.1, P7.2.
pub fn lake_arrow_schema(schema: &TableSchema) -> Result<SchemaRef> {
    let fields = schema.fields.iter().map(lake_arrow_field).collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(ArrowSchema::new(fields)))
}

/// [`lake_arrow_schema`] for one column.
///
/// # Errors
/// `Unsupported` names a column of a MULTISET.
pub fn lake_arrow_field(field: &Field) -> Result<ArrowField> {
    let arrow = child(&field.name, &field.data_type).map_err(|error| error.context(format!("column `{}`", field.name)))?;
    let mut metadata = arrow.metadata().clone();
    metadata.insert("PARQUET:field_id".to_owned(), field.id.to_string());
    Ok(arrow.with_metadata(metadata))
}

fn child(name: &str, data_type: &DataType) -> Result<ArrowField> {
    let arrow = ArrowField::new(name, arrow_type(&data_type.kind)?, data_type.nullable);
    Ok(match data_type.kind {
        TypeKind::Time { .. } => arrow.with_metadata(BTreeMap::from([("adjusted_to_utc".to_owned(), String::new())])),
        _ => arrow,
    })
}

fn arrow_type(kind: &TypeKind) -> Result<ArrowType> {
    let unit = |precision: u8| match precision {
        0..=3 => TimeUnit::Millisecond,
        4..=6 => TimeUnit::Microsecond,
        _ => TimeUnit::Nanosecond,
    };
    Ok(match kind {
        TypeKind::Boolean => ArrowType::Boolean,
        TypeKind::TinyInt => ArrowType::Int8,
        TypeKind::SmallInt => ArrowType::Int16,
        TypeKind::Int => ArrowType::Int32,
        TypeKind::BigInt => ArrowType::Int64,
        TypeKind::Float => ArrowType::Float32,
        TypeKind::Double => ArrowType::Float64,
        TypeKind::Decimal { precision, scale } => {
            let scale = i8::try_from(*scale).map_err(|source| Error::data("decimal scale").with_source(source))?;
            ArrowType::Decimal128(*precision, scale)
        }
        TypeKind::Char { .. } | TypeKind::VarChar { .. } | TypeKind::String => ArrowType::Utf8,
        TypeKind::Binary { .. } | TypeKind::VarBinary { .. } | TypeKind::Bytes => ArrowType::Binary,
        TypeKind::Date => ArrowType::Date32,
        TypeKind::Time { .. } => ArrowType::Time32(TimeUnit::Millisecond),
        TypeKind::Timestamp { precision } => ArrowType::Timestamp(unit(*precision), None),
        TypeKind::TimestampLtz { precision } => ArrowType::Timestamp(unit(*precision), Some(ZONE.into())),
        TypeKind::Array(element) => ArrowType::List(Arc::new(child("element", element)?)),
        TypeKind::Map(key, value) => {
            let entries = vec![child("key", key)?.with_nullable(false), child("value", value)?];
            ArrowType::Map(Arc::new(ArrowField::new("key_value", ArrowType::Struct(entries.into()), false)), false)
        }
        TypeKind::Row(fields) => ArrowType::Struct(fields.iter().map(lake_arrow_field).collect::<Result<_>>()?),
        TypeKind::Multiset(_) => return Err(Error::unsupported("type MULTISET")),
    })
}
