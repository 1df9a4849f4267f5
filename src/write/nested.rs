//! Nested arrays, taken apart: what statistics, estimates and encodings need of them.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_buffer::OffsetBuffer;
use arrow_schema::DataType as ArrowType;

use crate::model::{DataType, TypeKind};

/// The children of a nested array, cut to what its rows refer to; none for any other.
pub(super) fn children(array: &ArrayRef) -> Vec<ArrayRef> {
    let cut = |offsets: &OffsetBuffer<i32>, values: &ArrayRef| {
        let (first, last) = (offsets.first(), offsets.last());
        // Offsets are never below 0 and never fall.
        let (first, last) = (usize::try_from(first).unwrap_or(0), usize::try_from(last).unwrap_or(0));
        values.slice(first, last.saturating_sub(first))
    };
    match array.data_type() {
        ArrowType::List(_) => vec![cut(array.as_list::<i32>().offsets(), array.as_list::<i32>().values())],
        ArrowType::Map(..) => {
            let map = array.as_map();
            vec![cut(map.offsets(), map.keys()), cut(map.offsets(), map.values())]
        }
        ArrowType::Struct(_) => array.as_struct().columns().to_vec(),
        _ => vec![],
    }
}

/// Adds the arrays that hold values, in the order of Parquet's leaf columns; an array that is not nested is its own leaf.
pub(super) fn leaves(array: &ArrayRef, all: &mut Vec<ArrayRef>) {
    match array.data_type() {
        ArrowType::List(_) | ArrowType::Map(..) | ArrowType::Struct(_) => {
            children(array).iter().for_each(|child| leaves(child, all));
        }
        _ => all.push(Arc::clone(array)),
    }
}

/// Parquet's leaf columns of a column of `kind`.
pub(super) fn leaf_count(kind: &TypeKind) -> usize {
    match kind {
        TypeKind::Row(fields) => fields.iter().map(|field| leaf_count(&field.data_type.kind)).sum(),
        TypeKind::Array(element) | TypeKind::Multiset(element) => leaf_count(&element.kind),
        TypeKind::Map(key, value) => leaf_count(&key.kind) + leaf_count(&value.kind),
        _ => 1,
    }
}

/// The types of the children of a nested type, as [`children`] gives the arrays.
pub(super) fn child_types(kind: &TypeKind) -> Vec<&DataType> {
    match kind {
        TypeKind::Array(element) | TypeKind::Multiset(element) => vec![element],
        TypeKind::Map(key, value) => vec![key, value],
        TypeKind::Row(fields) => fields.iter().map(|field| &field.data_type).collect(),
        _ => vec![],
    }
}

/// Bytes of the values, however large the buffers behind them are.
pub(super) fn size_of(array: &ArrayRef) -> usize {
    let own = match array.data_type() {
        ArrowType::List(_) | ArrowType::Map(..) => 4 * (array.len() + 1),
        ArrowType::Struct(_) => 0,
        _ => return array.to_data().get_slice_memory_size().unwrap_or(0),
    };
    let nulls = if array.nulls().is_some() { array.len().div_ceil(8) } else { 0 };
    own + nulls + children(array).iter().map(size_of).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int32Type;
    use arrow_array::{Int32Array, ListArray};

    use super::*;

    #[test]
    fn a_slice_of_lists_counts_its_own_elements_only() {
        let lists: Vec<Option<Vec<Option<i32>>>> = (0..100).map(|_| Some(vec![Some(1); 10])).collect();
        let whole: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
        assert_eq!(size_of(&whole), 101 * 4 + 1000 * 4);
        let part = whole.slice(40, 3);
        assert_eq!(size_of(&part), 4 * 4 + 30 * 4);
        let mut all = Vec::new();
        leaves(&part, &mut all);
        assert_eq!(all, [Arc::new(Int32Array::from(vec![1; 30])) as ArrayRef]);
    }
}
