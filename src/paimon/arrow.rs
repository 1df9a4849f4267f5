//! The Arrow form of a lake table's columns: what rows are converted to, files are written from, and read as.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_schema::{DataType as ArrowType, Field as ArrowField, Schema as ArrowSchema, SchemaRef, TimeUnit};

use super::meta::TableSchema;
use crate::error::{Error, Result};
use crate::model::{Field, TypeKind};

/// Zone of TIMESTAMP_LTZ columns: marks them as instants.
const ZONE: &str = "UTC";

/// The Arrow schema of the lake's columns, all of them in order.
///
/// Timestamps have the unit that Paimon reads by precision: milliseconds to 3, microseconds to 6, nanoseconds above (written as INT96);
/// TIME is milliseconds; BINARY is variable. Each field names its id under `PARQUET:field_id`, TIME has `adjusted_to_utc`.
///
/// # Errors
/// `Unsupported` names a column of a nested type.
///
/// Source: P7.1, P7.2.
pub fn lake_arrow_schema(schema: &TableSchema) -> Result<SchemaRef> {
    let fields = schema.fields.iter().map(lake_arrow_field).collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(ArrowSchema::new(fields)))
}

/// [`lake_arrow_schema`] for one column.
///
/// # Errors
/// `Unsupported` when its type is nested.
pub fn lake_arrow_field(field: &Field) -> Result<ArrowField> {
    let kind = &field.data_type.kind;
    let arrow = ArrowField::new(&field.name, arrow_type(field)?, field.data_type.nullable);
    let mut metadata = BTreeMap::from([("PARQUET:field_id".to_owned(), field.id.to_string())]);
    if matches!(kind, TypeKind::Time { .. }) {
        metadata.insert("adjusted_to_utc".to_owned(), String::new());
    }
    Ok(arrow.with_metadata(metadata))
}

fn arrow_type(field: &Field) -> Result<ArrowType> {
    let unit = |precision: u8| match precision {
        0..=3 => TimeUnit::Millisecond,
        4..=6 => TimeUnit::Microsecond,
        _ => TimeUnit::Nanosecond,
    };
    Ok(match &field.data_type.kind {
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
        TypeKind::Array(_) | TypeKind::Multiset(_) | TypeKind::Map(..) | TypeKind::Row(_) => {
            return Err(Error::unsupported(format!("column `{}` of a nested type", field.name)));
        }
    })
}
