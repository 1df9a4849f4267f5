use std::sync::Arc;

use super::*;
use crate::model::{DataType, Partition, Schema, SchemaId, TypeKind};
use crate::runtime::Runtime;
use crate::storage::Store;

fn warehouse() -> Warehouse {
    Warehouse::new(Store::in_memory(), Runtime::simulated(7, 1_700_000_000_000, 1 << 20))
}

fn column(id: i32, name: &str, kind: TypeKind) -> Field {
    Field { id, name: name.into(), data_type: DataType::nullable(kind), comment: None }
}

/// A partitioned log table with bucket key.
fn table(count: i32) -> TableInfo {
    let mut table = TableInfo::for_tests("demo.orders", count);
    with_columns(&mut table, &[("id", TypeKind::BigInt), ("day", TypeKind::String)]);
    table.partition_keys = vec!["day".into()];
    table.properties.insert("table.datalake.enabled".into(), "true".into());
    table.properties.insert("table.datalake.format".into(), "paimon".into());
    table
}

fn with_columns(table: &mut TableInfo, columns: &[(&str, TypeKind)]) {
    let fields: Vec<Field> = columns.iter().zip(0..).map(|((name, kind), id)| column(id, name, kind.clone())).collect();
    let highest_field_id = fields.last().map_or(-1, |field| field.id);
    table.schema = Arc::new(Schema { fields, highest_field_id, ..(*table.schema).clone() });
}

async fn found(warehouse: &Warehouse) -> TableSchema {
    (**warehouse.table("demo", "orders").await.unwrap().unwrap().schema()).clone()
}

#[tokio::test]
async fn a_table_is_made_as_a_coordinator_would_and_making_it_again_is_fine() {
    let warehouse = warehouse();
    create(&warehouse, &table(2), true).await.unwrap();
    create(&warehouse, &table(2), true).await.unwrap();
    let schema = found(&warehouse).await;
    assert_eq!(schema.id, 0);
    for (key, value) in [("bucket", "2"), ("bucket-key", "id"), ("partition.legacy-name", "false"), ("lakestream.enabled", "true")]
    {
        assert_eq!(schema.option(key), Some(value), "{key}");
    }
    TableOptions::parse(&schema).unwrap();
}

#[tokio::test]
async fn a_table_that_does_not_fit_or_is_not_empty_is_error_54() {
    let warehouse = warehouse();
    create(&warehouse, &table(2), true).await.unwrap();
    let error = create(&warehouse, &table(4).clone_unpartitioned(), true).await.unwrap_err();
    assert_eq!(error.code(), Some(54), "{}", error.chain());
    assert!(error.chain().contains("partition keys"), "{}", error.chain());

    let lake = warehouse.table("demo", "orders").await.unwrap().unwrap();
    let delta = lake.write_delta(vec![], vec![]).await.unwrap();
    let facts = crate::lake::CommitFacts {
        schema_id: 0,
        user: "u".into(),
        identifier: 1,
        kind: "APPEND".into(),
        time_ms: 1,
        properties: Default::default(),
    };
    let snapshot = lake.stage(None, &delta, true).await.unwrap().snapshot(None, facts);
    assert_eq!(lake.publish(&snapshot).await.unwrap(), crate::lake::Published::Created);
    let error = create(&warehouse, &table(2), true).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Invalid, Some(54)));
    create(&warehouse, &table(2), false).await.unwrap();
}

impl TableInfo {
    fn clone_unpartitioned(&self) -> Self {
        Self { partition_keys: vec![], ..self.clone() }
    }
}

#[tokio::test]
async fn option_values_that_nobody_can_read_are_refused_before_anything_is_made() {
    let warehouse = warehouse();
    let mut wrong = table(2);
    wrong.custom_properties.insert("paimon.target-file-size".into(), "large".into());
    let error = create(&warehouse, &wrong, true).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Invalid, Some(39)));
    assert!(warehouse.table("demo", "orders").await.unwrap().is_none());
}

#[tokio::test]
async fn the_bucket_count_is_set_once_and_nothing_else_changes() {
    let warehouse = warehouse();
    create(&warehouse, &table(2), true).await.unwrap();
    let before = found(&warehouse).await;
    set_bucket_count(&warehouse, &table(2), 4).await.unwrap();
    set_bucket_count(&warehouse, &table(2), 4).await.unwrap();
    let after = found(&warehouse).await;
    assert_eq!((after.id, after.option("bucket")), (1, Some("4")));
    let mut expected = before.clone();
    expected.options.insert("bucket".into(), "4".into());
    assert_eq!(TableSchema { id: 0, time_ms: before.time_ms, ..after }, expected);
    // Fluss was not reached: it still says 2, and the same ALTER or another one goes on from there.
    set_bucket_count(&warehouse, &table(2), 3).await.unwrap();
    assert_eq!(found(&warehouse).await.option("bucket"), Some("3"));
}

#[tokio::test]
async fn formats_that_cannot_hold_several_counts_refuse_by_name_before_anything_changes() {
    let warehouse = warehouse();
    create(&warehouse, &table(2), true).await.unwrap();
    for format in ["iceberg", "hudi", "lance"] {
        let mut other = table(2);
        other.properties.insert("table.datalake.format".into(), format.into());
        let error = set_bucket_count(&warehouse, &other, 4).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), (Kind::Unsupported, Some(56)));
        assert!(error.to_string().contains(format) && error.to_string().contains("one bucket count"), "{error}");
        assert_eq!(check_rescale(&other).unwrap_err().chain(), error.chain(), "known without the lake");
        other.properties.insert("table.datalake.enabled".into(), "false".into());
        assert!(check_rescale(&other).is_err(), "off by now, but the lake has its table");
        other.bucket_keys.clear();
        check_rescale(&other).unwrap();
        set_bucket_count(&warehouse, &other, 4).await.unwrap();
        let mut never = TableInfo { properties: other.properties, ..table(2) };
        never.properties.remove("table.datalake.enabled");
        check_rescale(&never).unwrap();
    }
    check_rescale(&table(2)).unwrap();
    assert_eq!(found(&warehouse).await.id, 0);
}

#[test]
fn a_lake_table_without_fixed_buckets_or_of_somebody_else_keeps_what_it_has() {
    let ours = lake_schema(&table(2)).unwrap();
    let refused = |found: &TableSchema, count: i32| bucket_change(&table(2), count, found).unwrap_err();
    for bucket in [None, Some("-1"), Some("-2"), Some("0"), Some("many")] {
        let mut other = ours.clone();
        other.options.remove("bucket");
        other.options.extend(bucket.map(|bucket| ("bucket".to_owned(), bucket.to_owned())));
        let error = refused(&other, 4);
        let said = format!("`bucket` is `{}`", bucket.unwrap_or("-1"));
        assert!(error.kind() == Kind::Data && error.chain().contains(&said), "{}", error.chain());
        assert!(error.hint().is_some());
    }
    let mut other = ours.clone();
    other.options.insert("bucket-key".into(), "day".into());
    other.fields[0].name = "number".into();
    let error = refused(&other, 4);
    assert!(error.chain().contains("`bucket-key` is `day`") && error.chain().contains("`number`"), "{}", error.chain());
    assert_eq!(refused(&ours, 0).code(), Some(56));
    // Whatever it is by now, and also where columns have not come, or have come before Fluss has them.
    for (count, changes) in [(2, vec![]), (1, vec![SchemaChange::BucketCount(1)]), (8, vec![SchemaChange::BucketCount(8)])] {
        assert_eq!(bucket_change(&table(2), count, &ours).unwrap(), changes);
        assert_eq!(bucket_change(&table(7), count, &ours).unwrap(), changes);
        assert_eq!(bucket_change(&altered(&table(2)), count, &ours).unwrap(), changes);
        assert_eq!(bucket_change(&table(2), count, &lake_schema(&altered(&table(2))).unwrap()).unwrap(), changes);
    }
}

/// Repeats a call whose reply was lost, as its caller would.
async fn until_told<T>(mut call: impl AsyncFnMut() -> Result<T>) -> T {
    loop {
        match call().await {
            Err(error) if error.kind() == Kind::Unavailable => {}
            told => break told.unwrap(),
        }
    }
}

#[tokio::test]
async fn rescales_and_other_alterations_at_once_each_happen_once_and_lose_nothing() {
    use crate::storage::Faults;
    let mut last = std::collections::BTreeSet::new();
    for seed in 0..60 {
        let store = Store::in_memory();
        let runtime = Runtime::simulated(seed, 1_700_000_000_000, 1 << 20);
        create(&Warehouse::new(store.clone(), runtime.clone()), &table(2), true).await.unwrap();
        let rng = runtime.rng.clone();
        let faulty = Warehouse::new(store.with_faults(Faults::seeded(rng, 12)), runtime.clone());
        let (before, after) = (table(2), altered(&table(2)));
        // A user of the lake, who knows nothing of Fluss.
        let owner = SchemaChange::Option { key: "owner".into(), value: Some("me".into()) };
        let owned = |found: &TableSchema| Ok(if found.option("owner").is_none() { vec![owner.clone()] } else { vec![] });
        tokio::join!(
            until_told(async || set_bucket_count(&faulty, &before, 4).await),
            until_told(async || set_bucket_count(&faulty, &before, 8).await),
            until_told(async || alter(&faulty, &before, &after).await),
            until_told(async || faulty.alter_table("demo", "orders", owned).await),
        );
        let clear = Warehouse::new(store, runtime);
        let lake = clear.table("demo", "orders").await.unwrap().unwrap();
        let mut schemas = vec![];
        for id in 0..=lake.schema().id {
            schemas.push((*lake.load_schema(id).await.unwrap()).clone());
        }
        for pair in schemas.windows(2) {
            let counts = pair[0].option("bucket") != pair[1].option("bucket");
            let columns = pair[0].fields != pair[1].fields;
            let owner = pair[0].option("owner") != pair[1].option("owner");
            assert_eq!(u8::from(counts) + u8::from(columns) + u8::from(owner), 1, "seed {seed}: each its own change: {pair:?}");
        }
        let newest = schemas.last().unwrap();
        assert_eq!((newest.fields.len(), newest.option("owner")), (4, Some("me")), "seed {seed}");
        last.insert(newest.option("bucket").unwrap().to_owned());
    }
    assert_eq!(last.into_iter().collect::<Vec<_>>(), ["4", "8"], "the last one counts, whichever it is");
}

#[tokio::test]
async fn options_and_columns_are_altered_and_a_half_done_try_is_finished() {
    let warehouse = warehouse();
    let before = table(2);
    create(&warehouse, &before, true).await.unwrap();
    let mut after = before.clone();
    with_columns(&mut after, &[("id", TypeKind::BigInt), ("day", TypeKind::String), ("note", TypeKind::String)]);
    after.custom_properties.insert("paimon.snapshot.num-retained.min".into(), "5".into());
    after.custom_properties.insert("owner".into(), "x".into());
    alter(&warehouse, &before, &after).await.unwrap();
    let schema = found(&warehouse).await;
    assert_eq!((schema.id, schema.option("snapshot.num-retained.min"), schema.option("fluss.owner")), (1, Some("5"), Some("x")));
    assert_eq!(schema.fields.last().map(|field| (field.name.as_str(), field.id)), Some(("note", 2)));
    // Fluss was not reached, the same ALTER comes again.
    alter(&warehouse, &before, &after).await.unwrap();
    assert_eq!(found(&warehouse).await.id, 1);
    alter(&warehouse, &after, &before).await.unwrap_err();
    let mut back = after.clone();
    back.custom_properties.clear();
    alter(&warehouse, &after, &back).await.unwrap();
    assert_eq!(found(&warehouse).await.option("fluss.owner"), None);
}

#[test]
fn what_may_not_be_altered_has_the_code_of_the_coordinator() {
    let before = table(2);
    let lake = lake_schema(&before).unwrap();
    let code = |change: &dyn Fn(&mut TableInfo)| {
        let mut after = before.clone();
        change(&mut after);
        alterations(&before, &after, &lake).unwrap_err().code()
    };
    assert_eq!(code(&|t| drop(t.custom_properties.insert("paimon.merge-engine".into(), "first-row".into()))), Some(39));
    assert_eq!(code(&|t| with_columns(t, &[("id", TypeKind::BigInt)])), Some(56));
    assert_eq!(code(&|t| with_columns(t, &[("id", TypeKind::BigInt), ("day", TypeKind::Int)])), Some(56));
    let mut strange = lake.clone();
    strange.fields.pop();
    assert_eq!(alterations(&before, &before, &strange).unwrap_err().code(), Some(56));
}

#[test]
fn legacy_tables_get_their_columns_before_the_system_columns() {
    let before = table(2);
    let mut after = before.clone();
    with_columns(&mut after, &[("id", TypeKind::BigInt), ("day", TypeKind::String), ("note", TypeKind::String)]);
    after.properties.remove("table.datalake.enabled");
    let mut legacy = lake_schema(&before).unwrap();
    let system =
        [TypeKind::Int, TypeKind::BigInt, TypeKind::TimestampLtz { precision: 6 }].into_iter().zip(SYSTEM_COLUMNS).zip(2..);
    legacy.fields.extend(system.map(|((kind, name), id)| column(id, name, kind)));
    let changes = alterations(&before, &after, &legacy).unwrap();
    assert!(changes.iter().any(|change| {
        matches!(change, SchemaChange::AddColumn { field, before } if field.name == "note" && before.as_deref() == Some("__bucket"))
    }));
    let enabled = |change: &SchemaChange| matches!(change, SchemaChange::Option { key, .. } if key == "lakestream.enabled");
    assert!(!changes.iter().any(enabled));
}

#[test]
fn partition_rows_and_folders_of_a_created_table_agree_with_java() {
    let info = table(2);
    let schema = lake_schema(&info).unwrap();
    let partition =
        Partition { id: crate::model::PartitionId(1), spec: vec![("day".into(), "2026-11-30".into())], bucket_count: Some(2) };
    let row = crate::mapping::partition_row(Some(&partition), &info, &schema).unwrap();
    assert_eq!(crate::paimon::path::bucket_path(&schema, &row, 1).unwrap(), "day=2026-11-30/bucket-1");
}

/// The table of [`table`] with `note STRING` and `tags ARRAY<ROW<x INT>>` behind, added in Fluss.
fn altered(before: &TableInfo) -> TableInfo {
    let mut after = before.clone();
    let inner = TypeKind::Row(vec![column(4, "x", TypeKind::Int)]);
    let tags = TypeKind::Array(Box::new(DataType::nullable(inner)));
    let mut fields = before.schema.fields.clone();
    fields.push(Field { comment: Some("free text".into()), ..column(2, "note", TypeKind::String) });
    fields.push(column(3, "tags", tags));
    after.schema = Arc::new(Schema { id: SchemaId(2), fields, highest_field_id: 4, ..(*before.schema).clone() });
    after
}

async fn lake(warehouse: &Warehouse) -> LakeTable {
    warehouse.table("demo", "orders").await.unwrap().unwrap()
}

#[tokio::test]
async fn columns_that_the_lake_lacks_are_added_once_and_nothing_else_changes() {
    let warehouse = warehouse();
    let (before, after) = (table(2), altered(&table(2)));
    create(&warehouse, &before, true).await.unwrap();
    // Something of the user's, which is nobody's business.
    let set = SchemaChange::Option { key: "owner".into(), value: Some("me".into()) };
    warehouse.alter_table("demo", "orders", |_| Ok(vec![set.clone()])).await.unwrap();
    let opened = lake(&warehouse).await;
    assert_eq!(missing(&opened, &before).await.unwrap(), []);
    assert_eq!(add_missing(&opened, &before).await.unwrap(), Vec::<String>::new());
    assert_eq!(missing(&opened, &after).await.unwrap().len(), 2);
    assert_eq!(found(&warehouse).await.id, 1, "looking changes nothing");
    let was = found(&warehouse).await;

    assert_eq!(add_missing(&opened, &after).await.unwrap(), ["note", "tags"]);
    let is = found(&warehouse).await;
    assert_eq!((is.id, is.highest_field_id), (2, 4));
    assert_eq!(is.fields[..2], was.fields);
    assert_eq!(is.fields[2..], lake_schema(&after).unwrap().fields[2..], "ids, types and comments as a coordinator gives them");
    assert_eq!(TableSchema { id: 1, time_ms: was.time_ms, fields: was.fields.clone(), highest_field_id: 1, ..is.clone() }, was);
    compatible(&after, &is).unwrap();
    // Who opened it before finds it done, and so does the ALTER that got half way.
    assert_eq!(add_missing(&opened, &after).await.unwrap(), Vec::<String>::new());
    alter(&warehouse, &before, &after).await.unwrap();
    assert_eq!(found(&warehouse).await.id, 2);
}

#[tokio::test]
async fn services_that_add_the_same_columns_at_once_add_them_once() {
    let warehouse = warehouse();
    let after = altered(&table(2));
    create(&warehouse, &table(2), true).await.unwrap();
    let opened = [lake(&warehouse).await, lake(&warehouse).await, lake(&warehouse).await];
    let added = futures::future::try_join_all(opened.iter().map(|lake| add_missing(lake, &after))).await.unwrap();
    assert_eq!(added.iter().filter(|names| !names.is_empty()).count(), 1, "{added:?}");
    let schema = found(&warehouse).await;
    assert_eq!((schema.id, schema.fields.len()), (1, 4));
}

#[tokio::test]
async fn a_column_that_was_taken_away_in_the_lake_is_not_given_back() {
    let warehouse = warehouse();
    let after = altered(&table(2));
    create(&warehouse, &after, true).await.unwrap();
    let opened = lake(&warehouse).await;
    let place = |id: i64| format!("demo.db/orders/schema/schema-{id}");
    let write = async |id: i64, change: &dyn Fn(&mut TableSchema)| {
        let mut schema = TableSchema { id, ..(**opened.schema()).clone() };
        change(&mut schema);
        opened.store().put(&place(id), schema.to_json().unwrap().into()).await.unwrap();
    };
    write(1, &|schema| drop(schema.fields.pop())).await;
    let error = add_missing(&lake(&warehouse).await, &after).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Data);
    assert!(error.chain().contains("schema `0`") && error.chain().contains("`tags ARRAY<ROW<x INT>>`"), "{}", error.chain());
    assert!(error.hint().unwrap().contains("ADD `tags` ARRAY<ROW<`x` INT>> AFTER `note`"), "{:?}", error.hint());
    write(2, &|schema| "labels".clone_into(&mut schema.fields[3].name)).await;
    let error = add_missing(&lake(&warehouse).await, &after).await.unwrap_err();
    assert!(error.hint().unwrap().contains("RENAME `labels` TO `tags`"), "{:?}", error.hint());
    assert_eq!(found(&warehouse).await.id, 2, "nothing was changed");
    // Renamed back, all is well.
    write(3, &|_| {}).await;
    assert_eq!(add_missing(&lake(&warehouse).await, &after).await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn legacy_tables_get_missing_columns_before_the_system_columns() {
    let warehouse = warehouse();
    let mut legacy = lake_schema(&table(2)).unwrap();
    let system =
        [TypeKind::Int, TypeKind::BigInt, TypeKind::TimestampLtz { precision: 3 }].into_iter().zip(SYSTEM_COLUMNS).zip(2..);
    legacy.fields.extend(system.map(|((kind, name), id)| column(id, name, kind)));
    legacy.highest_field_id = 4;
    assert!(warehouse.create_table("demo", "orders", &legacy).await.unwrap());
    assert_eq!(add_missing(&lake(&warehouse).await, &altered(&table(2))).await.unwrap(), ["note", "tags"]);
    let schema = found(&warehouse).await;
    let fields: Vec<(&str, i32)> = schema.fields.iter().map(|field| (field.name.as_str(), field.id)).collect();
    let expected = [("id", 0), ("day", 1), ("note", 5), ("tags", 6), ("__bucket", 2), ("__offset", 3), ("__timestamp", 4)];
    assert_eq!(fields, expected);
    assert_eq!(schema.highest_field_id, 7);
    compatible(&altered(&table(2)), &schema).unwrap();
}
