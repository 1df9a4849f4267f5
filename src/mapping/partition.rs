//! A Fluss partition → the lake's partition row.

use crate::error::{Error, Result};
use crate::fluss::partition::parse_value;
use crate::model::{DataType, Datum, Partition, TableInfo};
use crate::paimon::{BinaryRow, TableSchema};

/// The partition row of `partition`, columns in the order of the lake's partition keys; the empty row without partition.
///
/// # Errors
/// `Data` when the partition's columns are not the table's, or a value is not of its column's type; as [`parse_value`].
///
/// Source: F6.6, P5.
pub fn partition_row(partition: Option<&Partition>, table: &TableInfo, lake: &TableSchema) -> Result<BinaryRow> {
    let Some(partition) = partition else { return Ok(BinaryRow::empty()) };
    let values: Vec<Option<Datum>> = partition_values(partition, table)?.into_iter().map(|(_, value)| Some(value)).collect();
    if table.partition_keys != lake.partition_keys {
        return Err(Error::data(format!("the lake table of `{}` has other partition keys", table.path)));
    }
    BinaryRow::write(&values, &lake.partition_types()?)
}

/// Typed values of the partition columns, in the order of the table's partition keys.
pub(super) fn partition_values(partition: &Partition, table: &TableInfo) -> Result<Vec<(DataType, Datum)>> {
    let other = || Error::data(format!("partition `{}` has other columns than table `{}`", partition.name(), table.path));
    if partition.spec.len() != table.partition_keys.len() {
        return Err(other());
    }
    let value = |name: &String| {
        let (_, text) = partition.spec.iter().find(|(column, _)| column == name).ok_or_else(other)?;
        let index = table.schema.index_of(name);
        let field = index.and_then(|index| table.schema.fields.get(index));
        let field = field.ok_or_else(|| Error::data(format!("partition key `{name}` of `{}` is no column", table.path)))?;
        let value = parse_value(text, &field.data_type)
            .map_err(|error| error.context(format!("partition `{}` of `{}`", partition.name(), table.path)))?;
        Ok((field.data_type.clone(), value))
    };
    table.partition_keys.iter().map(value).collect()
}
