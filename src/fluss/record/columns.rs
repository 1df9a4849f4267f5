//! Columns that grow value by value, nested ones with their children: what row formats are decoded into.

use std::sync::Arc;

use arrow_array::{ArrayRef, ListArray, MapArray, StructArray};
use arrow_buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType as ArrowType};

use super::message::DECODED_BYTES_MAX;
use super::values::array_of;
use crate::error::{Error, Result};
use crate::model::{DataType, Datum, Field, TypeKind};

/// Memory that decoded values may still take. Row formats name children by offset, so a few bytes can ask for very many values.
#[derive(Debug)]
pub(super) struct Allowance(usize);

/// What a payload byte may ask for: a NULL is one bit, and takes a place in every column of a wide ROW.
const DECODED_PER_BYTE: usize = 4096;

impl Allowance {
    /// For a payload of `bytes`.
    pub(super) fn of(bytes: usize) -> Self {
        Self(bytes.saturating_mul(DECODED_PER_BYTE).saturating_add(1 << 20).min(DECODED_BYTES_MAX))
    }

    pub(super) fn take(&mut self, bytes: usize) -> Result<()> {
        let left =
            self.0.checked_sub(bytes).ok_or_else(|| Error::data("records ask for far more values than their bytes can hold"))?;
        self.0 = left;
        Ok(())
    }
}

/// The values of a column so far.
#[derive(Debug)]
pub(super) enum Column<'a> {
    Scalar { kind: &'a TypeKind, values: Vec<Option<Datum>> },
    List { element: Box<Self>, lists: Lists },
    Map { key: Box<Self>, value: Box<Self>, lists: Lists },
    Row { fields: Vec<Self>, valid: Vec<bool> },
}

/// Ends of the lists or maps so far, and which of them are there.
#[derive(Debug, Default)]
pub(super) struct Lists {
    ends: Vec<i32>,
    valid: Vec<bool>,
}

impl Lists {
    /// `length`: of the children, all lists so far together.
    fn push(&mut self, valid: bool, length: usize) -> Result<()> {
        let end = i32::try_from(length).map_err(|source| Error::data("lists of too many elements").with_source(source))?;
        self.ends.push(end);
        self.valid.push(valid);
        Ok(())
    }

    fn finish(self) -> (OffsetBuffer<i32>, Option<NullBuffer>) {
        // Ends never fall: children only grow.
        let offsets: Vec<i32> = std::iter::once(0).chain(self.ends).collect();
        (OffsetBuffer::new(ScalarBuffer::from(offsets)), nulls(self.valid))
    }
}

fn nulls(valid: Vec<bool>) -> Option<NullBuffer> {
    Some(NullBuffer::from(valid)).filter(|nulls| nulls.null_count() > 0)
}

impl<'a> Column<'a> {
    pub(super) fn of(data_type: &'a DataType) -> Result<Self> {
        let inner = |data_type: &'a DataType| Self::of(data_type).map(Box::new);
        Ok(match &data_type.kind {
            TypeKind::Array(element) => Self::List { element: inner(element)?, lists: Lists::default() },
            TypeKind::Map(key, value) => Self::Map { key: inner(key)?, value: inner(value)?, lists: Lists::default() },
            TypeKind::Row(fields) => Self::Row {
                fields: fields.iter().map(|field: &Field| Self::of(&field.data_type)).collect::<Result<_>>()?,
                valid: Vec::new(),
            },
            TypeKind::Multiset(_) => return Err(Error::invalid("Fluss has no MULTISET")),
            kind => Self::Scalar { kind, values: Vec::new() },
        })
    }

    fn len(&self) -> usize {
        match self {
            Self::Scalar { values, .. } => values.len(),
            Self::List { lists, .. } | Self::Map { lists, .. } => lists.valid.len(),
            Self::Row { valid, .. } => valid.len(),
        }
    }

    pub(super) fn push_null(&mut self, allowance: &mut Allowance) -> Result<()> {
        match self {
            Self::Scalar { values, .. } => {
                allowance.take(size_of::<Option<Datum>>())?;
                values.push(None);
            }
            Self::List { .. } | Self::Map { .. } => return self.end_list(false, allowance),
            Self::Row { fields, valid } => {
                allowance.take(1)?;
                fields.iter_mut().try_for_each(|field| field.push_null(allowance))?;
                valid.push(false);
            }
        }
        Ok(())
    }

    /// Ends a list or map whose elements have been pushed to the children.
    pub(super) fn end_list(&mut self, valid: bool, allowance: &mut Allowance) -> Result<()> {
        allowance.take(size_of::<i32>() + 1)?;
        match self {
            Self::List { element: child, lists } | Self::Map { key: child, lists, .. } => lists.push(valid, child.len()),
            Self::Scalar { .. } | Self::Row { .. } => Err(Error::internal("the end of a list in another column")),
        }
    }

    /// The column as an array of `arrow`, which is the type that `super::arrow_type` has for it.
    pub(super) fn finish(self, arrow: &ArrowType) -> Result<ArrayRef> {
        let broken = |source: ArrowError| Error::data("nested values do not fit their type").with_source(source);
        Ok(match (self, arrow) {
            (Self::Scalar { kind, values }, _) => array_of(kind, &values)?,
            (Self::List { element, lists }, ArrowType::List(field)) => {
                let (offsets, nulls) = lists.finish();
                let values = element.finish(field.data_type())?;
                Arc::new(ListArray::try_new(Arc::clone(field), offsets, values, nulls).map_err(broken)?)
            }
            (Self::Map { key, value, lists }, ArrowType::Map(field, ordered)) => {
                let (offsets, nulls) = lists.finish();
                let ArrowType::Struct(fields) = field.data_type() else { return Err(Error::internal("a map without entries")) };
                let children = [key, value].into_iter().zip(fields).map(|(column, child)| column.finish(child.data_type()));
                let children = children.collect::<Result<Vec<_>>>()?;
                let entries = StructArray::try_new(fields.clone(), children, None).map_err(broken)?;
                Arc::new(MapArray::try_new(Arc::clone(field), offsets, entries, nulls, *ordered).map_err(broken)?)
            }
            (Self::Row { fields, valid }, ArrowType::Struct(children)) => {
                let length = valid.len();
                let columns = fields.into_iter().zip(children).map(|(column, child)| column.finish(child.data_type()));
                let columns = columns.collect::<Result<Vec<_>>>()?;
                let rows = StructArray::try_new_with_length(children.clone(), columns, nulls(valid), length);
                Arc::new(rows.map_err(broken)?)
            }
            (_, other) => return Err(Error::internal(format!("a nested column as `{other}`"))),
        })
    }
}
