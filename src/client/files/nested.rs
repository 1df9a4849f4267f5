//! ARRAY, MAP and ROW of a file: the structure is taken over, the scalars inside are converted.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, ListArray, MapArray, StructArray, new_null_array};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType as ArrowType, Field as ArrowField, FieldRef};

use super::values::{BadValue, Fault, Reading, fits as scalar_fits, leaf, required};
use crate::error::{Error, Result};
use crate::fluss::record::arrow_type;
use crate::model::{DataType, Field, TypeKind};

/// The type that a column of JSON is first read as: its structure, with all scalars as text.
pub(super) fn text_type(kind: &TypeKind) -> ArrowType {
    let child = |name: &str, data_type: &DataType| ArrowField::new(name, text_type(&data_type.kind), true);
    match kind {
        TypeKind::Array(element) | TypeKind::Multiset(element) => ArrowType::List(Arc::new(child("element", element))),
        TypeKind::Map(key, value) => {
            let key = child("key", key).with_nullable(false);
            let entries = ArrowType::Struct(vec![key, child("value", value)].into());
            ArrowType::Map(Arc::new(ArrowField::new("entries", entries, false)), false)
        }
        TypeKind::Row(fields) => ArrowType::Struct(fields.iter().map(|field| child(&field.name, &field.data_type)).collect()),
        _ => ArrowType::Utf8,
    }
}

/// Whether the structure is the same, and the scalars fit.
pub(super) fn fits(source: &ArrowType, kind: &TypeKind) -> bool {
    match (source, kind) {
        (ArrowType::Null, _) => true,
        (ArrowType::List(child) | ArrowType::LargeList(child), TypeKind::Array(element)) => {
            scalar_fits(child.data_type(), &element.kind)
        }
        (ArrowType::Map(entries, _), TypeKind::Map(key, value)) => match entries.data_type() {
            ArrowType::Struct(pair) => match pair.as_ref() {
                [keys, values] => scalar_fits(keys.data_type(), &key.kind) && scalar_fits(values.data_type(), &value.kind),
                _ => false,
            },
            _ => false,
        },
        (ArrowType::Struct(found), TypeKind::Row(fields)) => {
            let has = |field: &FieldRef| {
                let wanted = fields.iter().find(|wanted| wanted.name == *field.name());
                wanted.is_some_and(|wanted| scalar_fits(field.data_type(), &wanted.data_type.kind))
            };
            found.iter().all(has)
        }
        _ => false,
    }
}

/// A nested column.
pub(super) fn convert(array: &ArrayRef, path: &str, data_type: &DataType, reading: Reading) -> Result<ArrayRef, Fault> {
    let broken = |source: arrow_schema::ArrowError| Error::internal(format!("build column `{path}`")).with_source(source);
    let target = arrow_type(&data_type.kind)?;
    match (&data_type.kind, &target) {
        (TypeKind::Array(element), ArrowType::List(field)) => {
            let list = match array.data_type() {
                ArrowType::LargeList(child) => super::values::cast(array, &ArrowType::List(Arc::clone(child)))?,
                _ => Arc::clone(array),
            };
            let Some(list) = list.as_list_opt::<i32>() else { return Err(mismatch(array, path)) };
            let place = format!("{path}[]");
            let values = child(list.values(), None, &place, element, reading).map_err(|fault| up(fault, list.offsets()))?;
            let made = ListArray::try_new(Arc::clone(field), list.offsets().clone(), values, list.nulls().cloned());
            Ok(Arc::new(made.map_err(broken)?))
        }
        (TypeKind::Map(key, value), ArrowType::Map(entries, _)) => {
            let Some(map) = array.as_map_opt() else { return Err(mismatch(array, path)) };
            let up = |fault| up(fault, map.offsets());
            let keys = child(map.keys(), None, &format!("{path} key"), key, reading);
            let values = child(map.values(), None, &format!("{path}{{}}"), value, reading);
            let pair = vec![keys.map_err(up)?, values.map_err(up)?];
            let ArrowType::Struct(fields) = entries.data_type() else { return Err(mismatch(array, path)) };
            let pairs = StructArray::try_new(fields.clone(), pair, None).map_err(broken)?;
            let made = MapArray::try_new(Arc::clone(entries), map.offsets().clone(), pairs, map.nulls().cloned(), false);
            Ok(Arc::new(made.map_err(broken)?))
        }
        (TypeKind::Row(fields), ArrowType::Struct(arrow)) => {
            let Some(row) = array.as_struct_opt() else { return Err(mismatch(array, path)) };
            let member = |field: &Field| {
                let place = format!("{path}.{}", field.name);
                match row.column_by_name(&field.name) {
                    Some(column) => child(column, row.nulls(), &place, &field.data_type, reading),
                    None => {
                        let nothing = new_null_array(&arrow_type(&field.data_type.kind)?, row.len());
                        required(&nothing, row.nulls(), &place, &field.data_type, reading)?;
                        Ok(nothing)
                    }
                }
            };
            let columns = fields.iter().map(member).collect::<Result<Vec<_>, Fault>>()?;
            let made = StructArray::try_new_with_length(arrow.clone(), columns, row.nulls().cloned(), row.len());
            Ok(Arc::new(made.map_err(broken)?))
        }
        _ => Err(mismatch(array, path)),
    }
}

fn child(
    array: &ArrayRef,
    parents: Option<&NullBuffer>,
    path: &str,
    data_type: &DataType,
    reading: Reading,
) -> Result<ArrayRef, Fault> {
    let converted = if *array.data_type() == ArrowType::Null {
        new_null_array(&arrow_type(&data_type.kind)?, array.len())
    } else if data_type.kind.is_nested() {
        convert(array, path, data_type, reading)?
    } else {
        leaf(array, path, data_type, &arrow_type(&data_type.kind)?, reading)?
    };
    required(&converted, parents, path, data_type, reading)?;
    Ok(converted)
}

/// Faults of elements as faults of the lists they are in.
fn up(fault: Fault, offsets: &OffsetBuffer<i32>) -> Fault {
    match fault {
        Fault::Values(bad) => {
            let row_of = |element: usize| {
                let after = offsets.partition_point(|offset| usize::try_from(*offset).is_ok_and(|offset| offset <= element));
                after.saturating_sub(1)
            };
            let mut bad: Vec<BadValue> = bad.into_iter().map(|bad| BadValue { row: row_of(bad.row), ..bad }).collect();
            bad.dedup_by_key(|bad| bad.row);
            Fault::Values(bad)
        }
        Fault::Other(error) => Fault::Other(error),
    }
}

fn mismatch(array: &ArrayRef, path: &str) -> Fault {
    Error::invalid(format!("column `{path}` can't be made of {}", array.data_type())).into()
}
