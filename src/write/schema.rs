//! The Parquet schema of a lake table, exactly as P7.1 has it.

use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::errors::ParquetError;
use parquet::schema::types::{SchemaDescriptor, Type, TypePtr};

use crate::error::{Error, Result};
use crate::model::{Field, TypeKind};
use crate::paimon::TableSchema;

/// Timestamps of this precision and above have no INT64 form that Java reads (P7.1).
const INT96_PRECISION: u8 = 7;

/// Whether a column is stored as INT96.
pub(super) const fn is_int96(kind: &TypeKind) -> bool {
    matches!(kind, TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision } if *precision >= INT96_PRECISION)
}

/// The Parquet schema: message `paimon_schema`, one leaf per column, with field ids.
///
/// # Errors
/// `Unsupported` names a nested column.
pub(super) fn parquet_schema(schema: &TableSchema) -> Result<Arc<SchemaDescriptor>> {
    let columns = schema.fields.iter().map(column).collect::<Result<Vec<_>>>()?;
    let root = Type::group_type_builder("paimon_schema").with_fields(columns).build().map_err(fault)?;
    Ok(Arc::new(SchemaDescriptor::new(Arc::new(root))))
}

fn fault(source: ParquetError) -> Error {
    Error::internal("build the parquet schema").with_source(source)
}

fn column(field: &Field) -> Result<TypePtr> {
    let timestamp = |precision: u8, is_adjusted_to_u_t_c: bool| match precision {
        0..=3 => (Physical::INT64, Some(LogicalType::timestamp(is_adjusted_to_u_t_c, TimeUnit::MILLIS))),
        4..INT96_PRECISION => (Physical::INT64, Some(LogicalType::timestamp(is_adjusted_to_u_t_c, TimeUnit::MICROS))),
        _ => (Physical::INT96, None),
    };
    let (physical, logical) = match &field.data_type.kind {
        TypeKind::Boolean => (Physical::BOOLEAN, None),
        TypeKind::TinyInt => (Physical::INT32, Some(LogicalType::integer(8, true))),
        TypeKind::SmallInt => (Physical::INT32, Some(LogicalType::integer(16, true))),
        TypeKind::Int => (Physical::INT32, None),
        TypeKind::BigInt => (Physical::INT64, None),
        TypeKind::Float => (Physical::FLOAT, None),
        TypeKind::Double => (Physical::DOUBLE, None),
        TypeKind::Decimal { precision, scale } => {
            let physical = match precision {
                0..=9 => Physical::INT32,
                10..=18 => Physical::INT64,
                _ => Physical::FIXED_LEN_BYTE_ARRAY,
            };
            (physical, Some(LogicalType::decimal(i32::from(*scale), i32::from(*precision))))
        }
        TypeKind::Char { .. } | TypeKind::VarChar { .. } | TypeKind::String => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        TypeKind::Binary { .. } | TypeKind::VarBinary { .. } | TypeKind::Bytes => (Physical::BYTE_ARRAY, None),
        TypeKind::Date => (Physical::INT32, Some(LogicalType::Date)),
        TypeKind::Time { .. } => (Physical::INT32, Some(LogicalType::time(true, TimeUnit::MILLIS))),
        TypeKind::Timestamp { precision } => timestamp(*precision, false),
        TypeKind::TimestampLtz { precision } => timestamp(*precision, true),
        TypeKind::Array(_) | TypeKind::Multiset(_) | TypeKind::Map(..) | TypeKind::Row(_) => {
            return Err(Error::unsupported(format!("writing column `{}` of a nested type", field.name)));
        }
    };
    let mut builder = Type::primitive_type_builder(&field.name, physical)
        .with_repetition(if field.data_type.nullable { Repetition::OPTIONAL } else { Repetition::REQUIRED })
        .with_logical_type(logical)
        .with_id(Some(field.id));
    if let TypeKind::Decimal { precision, scale } = field.data_type.kind {
        builder = builder.with_precision(i32::from(precision)).with_scale(i32::from(scale));
        if physical == Physical::FIXED_LEN_BYTE_ARRAY {
            builder = builder.with_length(decimal_bytes(precision));
        }
    }
    builder.build().map(Arc::new).map_err(fault)
}

/// Bytes of the smallest two's complement that holds any number of `precision` digits.
fn decimal_bytes(precision: u8) -> i32 {
    let limit = 10_u128.saturating_pow(u32::from(precision));
    (1..16).find(|bytes| limit <= 1 << (8 * bytes - 1)).unwrap_or(16)
}
