//! The Parquet schema of a lake table, exactly as P7.1 has it.

use std::sync::Arc;

use parquet::basic::{ConvertedType, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::errors::ParquetError;
use parquet::schema::types::{SchemaDescriptor, Type, TypePtr};

use crate::error::{Error, Result};
use crate::model::{DataType, Field, TypeKind};
use crate::paimon::type_text;

/// Timestamps of this precision and above have no INT64 form that Java reads (P7.1).
const INT96_PRECISION: u8 = 7;

/// Whether a column is stored as INT96.
pub(super) const fn is_int96(kind: &TypeKind) -> bool {
    matches!(kind, TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision } if *precision >= INT96_PRECISION)
}

/// Ids that Java gives to elements, keys and values, which have none of their own: the column's or field's id times 1024 plus the
/// depth, on this side or (keys) that of it (P7.1).
const NESTED_ID_BASE: i32 = 536_870_911;
const NESTED_ID_STEP: i32 = 1024;

/// The Parquet schema: message `paimon_schema`, with field ids.
///
/// # Errors
/// `Unsupported` names a column of a type that a lake file can't hold.
pub(super) fn parquet_schema(fields: &[Field]) -> Result<Arc<SchemaDescriptor>> {
    let columns = fields.iter().map(column).collect::<Result<Vec<_>>>()?;
    let root = Type::group_type_builder("paimon_schema").with_fields(columns).build().map_err(fault)?;
    Ok(Arc::new(SchemaDescriptor::new(Arc::new(root))))
}

fn fault(source: ParquetError) -> Error {
    Error::internal("build the parquet schema").with_source(source)
}

fn column(field: &Field) -> Result<TypePtr> {
    let place = Place { name: &field.name, id: Some(field.id), field_id: field.id, depth: 0 };
    let kind = &field.data_type.kind;
    if is_int96(kind) {
        return leaf(place, &field.data_type);
    }
    node(place, &field.data_type).map_err(|error| error.context(format!("column `{}`", field.name)))
}

/// Where in a schema a type stands.
#[derive(Clone, Copy)]
struct Place<'a> {
    name: &'a str,
    id: Option<i32>,
    /// Of the innermost column or ROW field around it, or itself.
    field_id: i32,
    /// Elements, keys and values between that and this.
    depth: i32,
}

impl<'a> Place<'a> {
    fn inside(self, name: &'a str, sign: i32) -> Self {
        let depth = self.depth + 1;
        let offset = self.field_id.checked_mul(NESTED_ID_STEP).and_then(|step| step.checked_add(depth));
        let id = offset.and_then(|offset| NESTED_ID_BASE.checked_add(sign.checked_mul(offset)?));
        Place { name, id, depth, ..self }
    }
}

fn repetition(data_type: &DataType) -> Repetition {
    if data_type.nullable { Repetition::OPTIONAL } else { Repetition::REQUIRED }
}

/// A type and all inside it; the names of children are Java's (P7.1).
fn node(place: Place<'_>, data_type: &DataType) -> Result<TypePtr> {
    let repeated = |name: &str, converted: ConvertedType, fields: Vec<TypePtr>| {
        let group = Type::group_type_builder(name).with_repetition(Repetition::REPEATED).with_converted_type(converted);
        group.with_fields(fields).build().map(Arc::new).map_err(fault)
    };
    let (fields, logical) = match &data_type.kind {
        TypeKind::Array(element) => {
            let element = vec![node(place.inside("element", 1), element)?];
            (vec![repeated("list", ConvertedType::NONE, element)?], Some(LogicalType::List))
        }
        TypeKind::Map(key, value) => {
            let key = DataType::required(key.kind.clone());
            let entry = vec![node(place.inside("key", -1), &key)?, node(place.inside("value", 1), value)?];
            (vec![repeated("key_value", ConvertedType::MAP_KEY_VALUE, entry)?], Some(LogicalType::Map))
        }
        TypeKind::Row(fields) if fields.is_empty() => return Err(Error::unsupported("a ROW without fields")),
        TypeKind::Row(fields) => {
            let field = |field: &Field| {
                let place = Place { name: &field.name, id: Some(field.id), field_id: field.id, depth: 0 };
                node(place, &field.data_type)
            };
            (fields.iter().map(field).collect::<Result<_>>()?, None)
        }
        kind if is_int96(kind) => {
            return Err(Error::unsupported(format!("{} inside a nested type", type_text(data_type))));
        }
        _ => return leaf(place, data_type),
    };
    let group = Type::group_type_builder(place.name)
        .with_repetition(repetition(data_type))
        .with_logical_type(logical)
        .with_id(place.id)
        .with_fields(fields);
    group.build().map(Arc::new).map_err(fault)
}

fn leaf(place: Place<'_>, data_type: &DataType) -> Result<TypePtr> {
    let timestamp = |precision: u8, is_adjusted_to_u_t_c: bool| match precision {
        0..=3 => (Physical::INT64, Some(LogicalType::timestamp(is_adjusted_to_u_t_c, TimeUnit::MILLIS))),
        4..INT96_PRECISION => (Physical::INT64, Some(LogicalType::timestamp(is_adjusted_to_u_t_c, TimeUnit::MICROS))),
        _ => (Physical::INT96, None),
    };
    let (physical, logical) = match &data_type.kind {
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
            return Err(Error::unsupported(format!("writing type {}", type_text(data_type))));
        }
    };
    let mut builder = Type::primitive_type_builder(place.name, physical)
        .with_repetition(repetition(data_type))
        .with_logical_type(logical)
        .with_id(place.id);
    if let TypeKind::Decimal { precision, scale } = data_type.kind {
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
