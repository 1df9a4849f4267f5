//! The rows of the quickstart: made from their number alone, so that what comes back can be compared with what was written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{
    ArrayRef, BooleanArray, Decimal128Array, Int32Array, Int64Array, RecordBatch, StringArray, TimestampMillisecondArray,
};

use crate::error::{Error, Result};
use crate::fluss::record::arrow_schema;
use crate::fluss::table_json::TableDescriptor;
use crate::model::{DataType, Field, Schema, SchemaId, TypeKind};

const DAY_MS: i64 = 86_400_000;

/// Columns in order.
fn columns() -> Schema {
    let field = |id, name: &str, data_type| Field { id, name: name.to_owned(), data_type, comment: None };
    Schema {
        id: SchemaId(1),
        fields: vec![
            field(0, "order_id", DataType::required(TypeKind::BigInt)),
            field(1, "customer", DataType::nullable(TypeKind::String)),
            field(2, "quantity", DataType::nullable(TypeKind::Int)),
            field(3, "amount", DataType::nullable(TypeKind::Decimal { precision: 10, scale: 2 })),
            field(4, "express", DataType::nullable(TypeKind::Boolean)),
            field(5, "placed_at", DataType::nullable(TypeKind::Timestamp { precision: 3 })),
            field(6, "day", DataType::required(TypeKind::String)),
        ],
        primary_key: vec![],
        highest_field_id: 6,
    }
}

/// The table `demo.orders`.
pub(super) fn table(buckets: i32) -> TableDescriptor {
    let property = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    TableDescriptor {
        schema: columns(),
        comment: Some("quickstart".to_owned()),
        partition_keys: vec!["day".to_owned()],
        bucket_keys: vec!["order_id".to_owned()],
        bucket_count: Some(buckets),
        properties: BTreeMap::from([property("table.datalake.enabled", "true"), property("table.datalake.freshness", "100ms")]),
        custom_properties: BTreeMap::new(),
    }
}

/// What was written so far: order ids from 0, each on one day.
#[derive(Debug)]
pub(super) struct Orders {
    today_ms: i64,
    /// First id and day of each run of rows.
    runs: BTreeMap<i64, String>,
    next_id: i64,
}

impl Orders {
    pub(super) fn new(now_ms: i64) -> Self {
        Self { today_ms: now_ms - now_ms.rem_euclid(DAY_MS), runs: BTreeMap::new(), next_id: 0 }
    }

    /// The day before yesterday, yesterday, today: `YYYY-MM-DD`.
    pub(super) fn days(&self) -> [String; 3] {
        [2, 1, 0].map(|back| {
            let ms = self.today_ms - back * DAY_MS;
            jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |day| day.strftime("%Y-%m-%d").to_string())
        })
    }

    pub(super) fn written(&self) -> u64 {
        u64::try_from(self.next_id).unwrap_or_default()
    }

    /// The next `count` rows, all on `day`.
    pub(super) fn next(&mut self, day: &str, count: i64) -> Result<RecordBatch> {
        let ids: Vec<i64> = (self.next_id..self.next_id + count).collect();
        self.runs.insert(self.next_id, day.to_owned());
        self.next_id += count;
        self.rows(&ids)
    }

    /// Compares rows from the lake with what was written: each row once, each value the same. Returns how many there are.
    pub(super) fn check(&self, batches: &[RecordBatch]) -> Result<u64> {
        let mut seen = BTreeSet::new();
        for batch in batches {
            let ids = batch.column_by_name("order_id").and_then(|column| column.as_primitive_opt::<Int64Type>());
            let ids = ids.ok_or_else(|| Error::data("the lake has no column `order_id` of BIGINT"))?;
            if let Some(twice) = ids.values().iter().find(|id| !seen.insert(**id)) {
                return Err(Error::data(format!("order `{twice}` is in the lake twice")));
            }
            let expected = self.rows(ids.values())?;
            for (field, column) in expected.schema_ref().fields().iter().zip(expected.columns()) {
                if batch.column_by_name(field.name()).map(|found| found.to_data()) != Some(column.to_data()) {
                    return Err(Error::data(format!("column `{}` came back from the lake with other values", field.name())));
                }
            }
        }
        let read = seen.len() as u64;
        if read == self.written() {
            Ok(read)
        } else {
            Err(Error::data(format!("`{}` rows were written, `{read}` came back", self.written())))
        }
    }

    /// The rows with these ids; ids that were never written get the day of the last run.
    fn rows(&self, ids: &[i64]) -> Result<RecordBatch> {
        let day = |id: &i64| self.runs.range(..=*id).next_back().map_or("", |(_, day)| day.as_str());
        let customer = |id: &i64| (id % 97 != 0).then(|| format!("customer-{:04}", id.wrapping_mul(7919).rem_euclid(1000)));
        let quantity = |id: &i64| i32::try_from(id % 9 + 1).ok();
        let amount = |id: &i64| i128::from(id.wrapping_mul(37) % 1_000_000) - 5_000;
        let placed_at = |id: &i64| self.today_ms - 3 * DAY_MS + id.wrapping_mul(7_777) % (3 * DAY_MS);
        let fault = |source| Error::internal("make the quickstart's rows").with_source(source);
        let columns_of: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(ids.to_vec())),
            Arc::new(ids.iter().map(customer).collect::<StringArray>()),
            Arc::new(ids.iter().map(quantity).collect::<Int32Array>()),
            Arc::new(ids.iter().map(amount).map(Some).collect::<Decimal128Array>().with_precision_and_scale(10, 2).map_err(fault)?),
            Arc::new(ids.iter().map(|id| Some(id % 5 == 0)).collect::<BooleanArray>()),
            Arc::new(ids.iter().map(placed_at).map(Some).collect::<TimestampMillisecondArray>()),
            Arc::new(StringArray::from_iter_values(ids.iter().map(day))),
        ];
        RecordBatch::try_new(arrow_schema(&columns())?, columns_of).map_err(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_finds_missing_doubled_and_changed_rows() {
        let mut orders = Orders::new(1_796_000_000_000);
        let [old, _, new] = orders.days();
        assert!(old < new);
        let (a, b) = (orders.next(&old, 100).unwrap(), orders.next(&new, 50).unwrap());
        assert_eq!(orders.check(&[b.clone(), a.clone()]).unwrap(), 150);
        assert!(orders.check(std::slice::from_ref(&a)).unwrap_err().to_string().contains("`100` came back"));
        assert!(orders.check(&[a.clone(), b.clone(), b.slice(3, 1)]).unwrap_err().to_string().contains("twice"));
        let mut columns = b.columns().to_vec();
        columns[2] = Arc::new(Int32Array::from(vec![0; 50]));
        let changed = RecordBatch::try_new(b.schema(), columns).unwrap();
        assert!(orders.check(&[a, changed]).unwrap_err().to_string().contains("`quantity`"));
    }
}
