//! Arrow rows (types of F5.3) → CompactedRow and IndexedRow (F5.8): what clients write into primary-key tables.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, ListArray, MapArray, RecordBatch, StructArray};

use super::cells::{Cell, Cells, compacted_cell, push_minimal, push_sized};
use super::kv::KvFormat;
use crate::error::{Error, Result};
use crate::model::{DataType, Schema, TypeKind};

/// Encodes rows of one batch.
#[derive(Debug)]
pub struct RowEncoder<'a> {
    indexed: bool,
    columns: Vec<Node<'a>>,
}

/// A column and what is nested in it.
#[derive(Debug)]
enum Node<'a> {
    Scalar(&'a TypeKind, Cells<'a>),
    List(&'a ListArray, Box<Self>),
    Map(&'a MapArray, Box<[Self; 2]>),
    Row(&'a StructArray, Vec<Self>),
}

impl<'a> Node<'a> {
    fn of(data_type: &'a DataType, array: &'a ArrayRef) -> Result<Self> {
        let wrong = || Error::internal(format!("values of type {:?} in an array of {:?}", data_type.kind, array.data_type()));
        Ok(match &data_type.kind {
            TypeKind::Array(element) => {
                let list = array.as_list_opt().ok_or_else(wrong)?;
                Self::List(list, Box::new(Self::of(element, list.values())?))
            }
            TypeKind::Map(key, value) => {
                let map = array.as_map_opt().ok_or_else(wrong)?;
                Self::Map(map, Box::new([Self::of(key, map.keys())?, Self::of(value, map.values())?]))
            }
            TypeKind::Row(fields) => {
                let row = array.as_struct_opt().filter(|row| row.num_columns() == fields.len()).ok_or_else(wrong)?;
                let fields = fields.iter().zip(row.columns()).map(|(field, array)| Self::of(&field.data_type, array));
                Self::Row(row, fields.collect::<Result<_>>()?)
            }
            kind => Self::Scalar(kind, Cells::of(kind, array)?),
        })
    }

    fn is_null(&self, row: usize) -> bool {
        match self {
            Self::Scalar(_, cells) => cells.get(row).is_none(),
            Self::List(array, _) => array.is_null(row),
            Self::Map(array, _) => array.is_null(row),
            Self::Row(array, _) => array.is_null(row),
        }
    }

    /// Whether an IndexedRow keeps the length apart.
    fn has_length(&self) -> bool {
        match self {
            Self::Scalar(kind, _) => matches!(kind, TypeKind::String | TypeKind::Bytes | TypeKind::Decimal { precision: 19.., .. }),
            _ => true,
        }
    }

    /// Bytes of a slot in a BinaryArray.
    fn slot_bytes(&self) -> usize {
        match self {
            Self::Scalar(TypeKind::Boolean | TypeKind::TinyInt, _) => 1,
            Self::Scalar(TypeKind::SmallInt, _) => 2,
            Self::Scalar(TypeKind::Int | TypeKind::Date | TypeKind::Time { .. } | TypeKind::Float, _) => 4,
            _ => 8,
        }
    }
}

fn size(bytes: usize) -> Result<u32> {
    let bytes = i32::try_from(bytes).map_err(|source| Error::invalid("a value of 2 GiB or more").with_source(source))?;
    Ok(bytes.cast_unsigned())
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

/// Sets bit `field` behind `at`.
fn set_null(bytes: &mut [u8], at: usize, field: usize) {
    if let Some(byte) = bytes.get_mut(at + field / 8) {
        *byte |= 1 << (field % 8);
    }
}

fn range(offsets: &[i32], row: usize) -> Result<Range<usize>> {
    let bound = |at: usize| offsets.get(at).and_then(|offset| usize::try_from(*offset).ok());
    let range = bound(row).zip(bound(row + 1)).map(|(start, end)| start..end);
    range.ok_or_else(|| Error::internal(format!("row `{row}` of `{}` lists", offsets.len().saturating_sub(1))))
}

impl<'a> RowEncoder<'a> {
    /// For rows with the columns of `schema`.
    ///
    /// # Errors
    /// `Internal` when the columns are not those of `schema`.
    pub fn new(format: KvFormat, schema: &'a Schema, rows: &'a RecordBatch) -> Result<Self> {
        if rows.num_columns() != schema.fields.len() {
            return Err(Error::internal(format!("rows of `{}` columns, not `{}`", rows.num_columns(), schema.fields.len())));
        }
        let columns = schema.fields.iter().zip(rows.columns()).map(|(field, array)| Node::of(&field.data_type, array));
        Ok(Self { indexed: format == KvFormat::Indexed, columns: columns.collect::<Result<_>>()? })
    }

    /// Appends the bytes of `row` to `out`.
    ///
    /// # Errors
    /// `Invalid` when a value does not fit its type in this format, as a CHAR of more bytes than characters.
    pub fn encode(&self, row: usize, out: &mut Vec<u8>) -> Result<()> {
        self.row(&self.columns, row, out)
    }

    /// One row; a ROW inside has the form of the rows around it.
    fn row(&self, columns: &[Node<'a>], row: usize, out: &mut Vec<u8>) -> Result<()> {
        let nulls = out.len();
        out.resize(nulls + columns.len().div_ceil(8), 0);
        let mut length_at = out.len();
        if self.indexed {
            out.resize(length_at + 4 * columns.iter().filter(|column| column.has_length()).count(), 0);
        }
        for (field, column) in columns.iter().enumerate() {
            if column.is_null(row) {
                set_null(out, nulls, field);
                continue;
            }
            let start = out.len();
            match column {
                Node::Scalar(kind, cells) => {
                    let Some(cell) = cells.get(row) else { continue };
                    if self.indexed { indexed_cell(out, kind, cell)? } else { compacted_cell(out, cell) }
                }
                nested if self.indexed => self.nested(nested, row, out)?,
                nested => {
                    let mut inner = Vec::new();
                    self.nested(nested, row, &mut inner)?;
                    size(inner.len())?;
                    push_sized(out, &inner);
                }
            }
            if self.indexed && column.has_length() {
                let length = size(out.len() - start)?;
                put(out, length_at, &length.to_le_bytes());
                length_at += 4;
            }
        }
        Ok(())
    }

    /// A list, map or row, without its length.
    fn nested(&self, node: &Node<'a>, row: usize, out: &mut Vec<u8>) -> Result<()> {
        match node {
            Node::List(array, element) => self.array(element, range(array.value_offsets(), row)?, out),
            Node::Map(array, entries) => {
                let ([keys, values], range) = (entries.as_ref(), range(array.value_offsets(), row)?);
                let start = out.len();
                out.extend([0; 4]);
                self.array(keys, range.clone(), out)?;
                let length = size(out.len() - start - 4)?;
                put(out, start, &length.to_le_bytes());
                self.array(values, range, out)
            }
            Node::Row(_, fields) => self.row(fields, row, out),
            Node::Scalar(..) => Err(Error::internal("a scalar as nested value")),
        }
    }

    /// A BinaryArray.
    fn array(&self, element: &Node<'a>, rows: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        let (start, width) = (out.len(), element.slot_bytes());
        out.extend(size(rows.len())?.to_le_bytes());
        let slots = start + 4 + rows.len().div_ceil(32) * 4;
        pad(out, start, slots + rows.len() * width);
        for (index, row) in rows.enumerate() {
            let slot = slots + index * width;
            match element {
                node if node.is_null(row) => set_null(out, start + 4, index),
                Node::Scalar(kind, cells) => {
                    let Some(cell) = cells.get(row) else { continue };
                    put_element(out, start, slot, kind, cell)?;
                }
                nested => {
                    let at = out.len();
                    self.nested(nested, row, out)?;
                    let length = size(out.len() - at)?;
                    put_slot(out, start, slot, at, length)?;
                    pad(out, start, 0);
                }
            }
        }
        Ok(())
    }
}

/// Fills up with zeros to `length`, and to whole words behind `start`.
fn pad(out: &mut Vec<u8>, start: usize, length: usize) {
    out.resize(start + (out.len().max(length) - start).next_multiple_of(8), 0);
}

/// What an element's slot says of data that stands at `at`.
fn put_slot(out: &mut [u8], start: usize, slot: usize, at: usize, low: u32) -> Result<()> {
    let word = u64::from(size(at - start)?) << 32 | u64::from(low);
    put(out, slot, &word.to_le_bytes());
    Ok(())
}

fn put_element(out: &mut Vec<u8>, start: usize, slot: usize, kind: &TypeKind, cell: Cell<'_>) -> Result<()> {
    let at = out.len();
    match cell {
        Cell::Text(text) => put_bytes(out, start, slot, text.as_bytes()),
        Cell::Bytes(bytes) => put_bytes(out, start, slot, bytes),
        Cell::Decimal { unscaled, precision: 19.., .. } => {
            push_minimal(out, unscaled);
            let length = size(out.len() - at)?;
            // Whatever the value takes, its place has 16 bytes.
            pad(out, start, at + 16);
            put_slot(out, start, slot, at, length)
        }
        Cell::Timestamp { millis, nanos, precision: 4.., .. } => {
            out.extend(millis.to_le_bytes());
            put_slot(out, start, slot, at, nanos.cast_unsigned())
        }
        cell => {
            let mut bytes = Vec::with_capacity(8);
            indexed_cell(&mut bytes, kind, cell)?;
            put(out, slot, &bytes);
            Ok(())
        }
    }
}

/// A text or bytes: up to seven bytes lie in the slot itself.
fn put_bytes(out: &mut Vec<u8>, start: usize, slot: usize, bytes: &[u8]) -> Result<()> {
    let length = size(bytes.len())?;
    if let (0..=7, [low, ..]) = (bytes.len(), length.to_le_bytes()) {
        put(out, slot, bytes);
        put(out, slot + 7, &[0x80 | low]);
        return Ok(());
    }
    let at = out.len();
    out.extend_from_slice(bytes);
    pad(out, start, 0);
    put_slot(out, start, slot, at, length)
}

/// A value of an IndexedRow; lengths stand apart.
fn indexed_cell(out: &mut Vec<u8>, kind: &TypeKind, cell: Cell<'_>) -> Result<()> {
    match cell {
        Cell::I32(value) | Cell::Date(value) | Cell::Time(value) => out.extend(value.to_le_bytes()),
        Cell::I64(value) => out.extend(value.to_le_bytes()),
        Cell::Text(text) => {
            out.extend_from_slice(text.as_bytes());
            if let TypeKind::Char { length } = kind {
                let spare = usize::try_from(*length).ok().and_then(|length| length.checked_sub(text.len()));
                let spare = spare.ok_or_else(|| {
                    Error::invalid(format!(
                        "a value of `{}` bytes in CHAR({length}): row format INDEXED has no room for it",
                        text.len()
                    ))
                })?;
                out.resize(out.len() + spare, 0);
            }
        }
        Cell::Bytes(bytes) => out.extend_from_slice(bytes),
        Cell::Decimal { unscaled, precision: ..=18, .. } => {
            out.extend(i64::try_from(unscaled).unwrap_or_default().to_le_bytes());
        }
        Cell::Decimal { unscaled, .. } => push_minimal(out, unscaled),
        Cell::Timestamp { millis, nanos, precision, .. } => {
            out.extend(millis.to_le_bytes());
            if precision > 3 {
                out.extend(nanos.to_le_bytes());
            }
        }
        fixed => compacted_cell(out, fixed),
    }
    Ok(())
}
