//! The order of keys as bytes (P7.4): what files are sorted by and merged on.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef};
use arrow_row::{RowConverter, Rows, SortField};
use arrow_schema::{ArrowError, DataType as ArrowType};

use super::{TableSchema, lake_arrow_field};
use crate::error::{Error, Result};

/// Turns some columns of a lake table, in [`super::lake_arrow_schema`]'s types, into bytes that compare like the values.
#[derive(Debug)]
pub struct KeyOrder {
    names: Vec<String>,
    converter: RowConverter,
}

impl KeyOrder {
    /// For the columns `names` of `schema`, in this order, and columns of the types `more` behind them.
    ///
    /// # Errors
    /// `Data` when there is no such column; `Unsupported` for a type that has no order.
    pub fn new(schema: &TableSchema, names: Vec<String>, more: &[ArrowType]) -> Result<Self> {
        let field = |name: &String| {
            let field = schema.field(name).ok_or_else(|| Error::data(format!("schema {} has no column `{name}`", schema.id)))?;
            Ok(lake_arrow_field(field)?.data_type().clone())
        };
        let types = names.iter().map(field).collect::<Result<Vec<_>>>()?;
        let fields = types.into_iter().chain(more.iter().cloned()).map(SortField::new).collect();
        let converter = RowConverter::new(fields)
            .map_err(|source| Error::unsupported(format!("comparing by the columns {names:?}")).with_source(source))?;
        Ok(Self { names, converter })
    }

    /// Names of the columns.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The rows of `columns`.
    ///
    /// # Errors
    /// `Internal` when the columns are of other types.
    pub fn rows(&self, columns: &[ArrayRef]) -> Result<Rows> {
        let columns: Vec<ArrayRef> = columns.iter().map(one_nan).collect();
        self.converter.convert_columns(&columns).map_err(|source: ArrowError| Error::internal("compare rows").with_source(source))
    }
}

/// Java knows one NaN, above everything; Arrow's order has negative ones below.
fn one_nan(values: &ArrayRef) -> ArrayRef {
    match values.data_type() {
        ArrowType::Float32 => {
            let one = |value: f32| if value.is_nan() { f32::NAN } else { value };
            Arc::new(values.as_primitive::<Float32Type>().unary::<_, Float32Type>(one))
        }
        ArrowType::Float64 => {
            let one = |value: f64| if value.is_nan() { f64::NAN } else { value };
            Arc::new(values.as_primitive::<Float64Type>().unary::<_, Float64Type>(one))
        }
        _ => Arc::clone(values),
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::Float64Array;

    use super::*;
    use crate::model::{DataType, Field, TypeKind};

    #[test]
    fn floats_are_ordered_as_java_orders_them() {
        let field = Field { id: 0, name: "f".into(), data_type: DataType::required(TypeKind::Double), comment: None };
        let schema = TableSchema {
            id: 0,
            fields: vec![field],
            highest_field_id: 0,
            partition_keys: vec![],
            primary_keys: vec!["f".into()],
            options: [].into(),
            comment: None,
            time_ms: 0,
        };
        let order = KeyOrder::new(&schema, vec!["f".into()], &[]).unwrap();
        let ascending = [f64::NEG_INFINITY, -1.0, -0.0, 0.0, 1.0, f64::INFINITY, -f64::NAN];
        let rows = order.rows(&[Arc::new(Float64Array::from(ascending.to_vec()))]).unwrap();
        assert!((1..ascending.len()).all(|at| rows.row(at - 1) < rows.row(at)));
        let nans = order.rows(&[Arc::new(Float64Array::from(vec![f64::NAN, -f64::NAN]))]).unwrap();
        assert_eq!(nans.row(0), nans.row(1), "one key");
    }
}
