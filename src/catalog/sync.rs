//! A lake table against its Fluss table, everything that Fluss owns: looked at, and mended as far as that needs no person.

use super::{additions, bucket_change, check_format, missing};
use crate::error::{Kind, Result};
use crate::lake::{SchemaChange, Warehouse};
use crate::mapping::{Difference, Mend, differences, fit, lake_path};
use crate::model::TableInfo;
use crate::paimon::TableSchema;

/// How a lake table stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// There is none.
    Missing,
    /// It is there, and differs in this.
    There(Vec<Difference>),
}

/// Compares the lake table of `table` with it. Changes nothing.
///
/// # Errors
/// `Unavailable`; `Unsupported` names what this build can't look into; `Data` when the schema file is wrong; as [`differences`].
pub async fn state(warehouse: &Warehouse, table: &TableInfo) -> Result<State> {
    check_format(table)?;
    let path = lake_path(table)?;
    let Some(lake) = warehouse.table(&path.database, &path.table).await? else { return Ok(State::Missing) };
    let mut found = differences(table, lake.schema())?;
    if found.iter().any(|found| matches!(found.mend, Some(Mend::Column(_)))) {
        match missing(&lake, table).await {
            Ok(_) => {}
            // A column that was taken away by hand is for whoever did it.
            Err(error) if error.kind() == Kind::Data => {
                found.iter_mut().filter(|found| matches!(found.mend, Some(Mend::Column(_)))).for_each(|found| found.mend = None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(State::There(found))
}

/// Mends those of `seen` that need no person and are there still: one new schema file, decided afresh when another writer was faster.
/// `false` when nothing was left to do. The same again does no harm.
///
/// # Errors
/// `Unavailable`: the outcome is unknown, call again; `Data` when there is no lake table; as [`differences`].
pub async fn mend(warehouse: &Warehouse, table: &TableInfo, seen: &[Difference]) -> Result<bool> {
    let path = lake_path(table)?;
    warehouse.alter_table(&path.database, &path.table, |found| changes(table, found, seen)).await
}

fn changes(table: &TableInfo, found: &TableSchema, seen: &[Difference]) -> Result<Vec<SchemaChange>> {
    let is_seen = |now: &Difference| seen.iter().any(|seen| seen == now);
    let still: Vec<Mend> = differences(table, found)?.into_iter().filter(is_seen).filter_map(|now| now.mend).collect();
    let mut changes = Vec::new();
    // All of them or none: they are the last columns.
    if still.iter().any(|mend| matches!(mend, Mend::Column(_))) {
        changes.extend(additions(&fit(table, found)?));
    }
    for mend in still {
        match mend {
            Mend::Column(_) => {}
            Mend::Option { key, value } => changes.push(SchemaChange::Option { key, value }),
            Mend::Bucket(count) => changes.extend(bucket_change(table, count, found)?),
        }
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::lake_schema;
    use crate::runtime::Runtime;
    use crate::storage::Store;

    fn table() -> TableInfo {
        let mut table = TableInfo::for_tests("demo.t", 4);
        let mut schema = (*table.schema).clone();
        let field = schema.fields[0].clone();
        schema.fields.push(crate::model::Field { id: 1, name: "day".into(), ..field.clone() });
        schema.fields.push(crate::model::Field { id: 2, name: "late".into(), ..field });
        schema.highest_field_id = 2;
        table.schema = schema.into();
        table.partition_keys = vec!["day".into()];
        table.properties.insert("table.datalake.enabled".into(), "true".into());
        table
    }

    async fn warehouse(change: impl FnOnce(&mut TableSchema)) -> Warehouse {
        let warehouse = Warehouse::new(Store::in_memory(), Runtime::simulated(1, 0, 1 << 20));
        let mut schema = lake_schema(&table()).unwrap();
        change(&mut schema);
        assert!(warehouse.create_table("demo", "t", &schema).await.unwrap());
        warehouse
    }

    async fn seen(warehouse: &Warehouse) -> Vec<Difference> {
        match state(warehouse, &table()).await.unwrap() {
            State::There(found) => found,
            State::Missing => panic!("there is no table"),
        }
    }

    #[tokio::test]
    async fn what_is_mended_is_in_step_afterwards_and_the_rest_stays() {
        let warehouse = warehouse(|lake| {
            lake.fields.pop();
            lake.options.insert("bucket".into(), "2".into());
            lake.options.insert("fluss.gone".into(), "1".into());
            lake.fields[0].comment = Some("by hand".into());
        })
        .await;
        let found = seen(&warehouse).await;
        assert_eq!(found.len(), 4);
        assert!(mend(&warehouse, &table(), &found).await.unwrap());
        let left = seen(&warehouse).await;
        assert_eq!(left.iter().map(|left| left.name.as_str()).collect::<Vec<_>>(), ["id"]);
        assert!(!mend(&warehouse, &table(), &left).await.unwrap());
        let lake = warehouse.table("demo", "t").await.unwrap().unwrap();
        assert_eq!((lake.schema().id, lake.schema().option("bucket"), lake.schema().option("fluss.gone")), (1, Some("4"), None));
    }

    #[tokio::test]
    async fn two_that_mend_at_once_make_one_schema_and_only_what_was_seen_is_touched() {
        let warehouse = warehouse(|lake| drop(lake.options.insert("bucket".into(), "2".into()))).await;
        let found = seen(&warehouse).await;
        let table = table();
        let (one, other) = tokio::join!(mend(&warehouse, &table, &found), mend(&warehouse, &table, &found));
        assert!(one.unwrap() ^ other.unwrap());
        let set = |count| warehouse.alter_table("demo", "t", move |_| Ok(vec![SchemaChange::BucketCount(count)]));
        // Somebody else has set it since: that is another difference than the one that was seen.
        assert!(set(7).await.unwrap());
        assert!(!mend(&warehouse, &table, &found).await.unwrap());
    }

    #[tokio::test]
    async fn a_column_that_was_taken_away_by_hand_is_for_a_person() {
        let warehouse = warehouse(|_| {}).await;
        let lake = warehouse.table("demo", "t").await.unwrap().unwrap();
        // As a DROP COLUMN by another program leaves it.
        let json = lake_schema(&table()).map(|mut schema| {
            schema.id = 1;
            schema.fields.pop();
            schema.to_json().unwrap()
        });
        lake.store().put(&lake.object("schema/schema-1"), json.unwrap().into()).await.unwrap();
        let found = seen(&warehouse).await;
        assert_eq!((found.len(), &found[0].mend, found[0].name.as_str()), (1, &None, "late"));
    }
}
