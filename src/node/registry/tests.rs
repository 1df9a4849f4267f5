use serde_json::{Value, json};

use super::*;
use crate::error::Kind;
use crate::fluss::proto::{PbAddColumn, PbAlterConfig, PbKeyValue};
use crate::fluss::table_json::TableDescriptor;

mod rescale;

fn table_json() -> Value {
    json!({"version":1,
        "schema":{"version":1,"columns":[
            {"name":"id","data_type":{"type":"BIGINT","nullable":false},"id":0},
            {"name":"day","data_type":{"type":"STRING"},"id":1},
            {"name":"amount","data_type":{"type":"DECIMAL","precision":10,"scale":2},"id":2},
            {"name":"r","data_type":{"type":"ROW","fields":[{"name":"x","field_type":{"type":"BIGINT"},"field_id":4}]},"id":3}],
            "highest_field_id":4},
        "partition_key":["day"],"bucket_key":["id"],"bucket_count":2,"properties":{},"custom_properties":{"owner":"x"}})
}

fn completed(json: &Value) -> Result<TableDescriptor> {
    complete(json.to_string().as_bytes(), &Limits::default())
}

fn info(name: &str) -> TableInfo {
    let table = completed(&table_json()).unwrap();
    TableInfo {
        path: TablePath::new("demo", name),
        id: TableId(-1),
        schema: Arc::new(table.schema),
        comment: table.comment,
        partition_keys: table.partition_keys,
        bucket_keys: table.bucket_keys,
        bucket_count: table.bucket_count.unwrap(),
        bucket_count_epoch: BucketCountEpoch(0),
        properties: table.properties,
        custom_properties: table.custom_properties,
        remote_data_dir: None,
        created_ms: 1,
        modified_ms: 1,
    }
}

fn spec(value: &str) -> Vec<(String, String)> {
    vec![("day".to_owned(), value.to_owned())]
}

#[test]
fn the_coordinators_defaults_are_filled_in() {
    let mut json = table_json();
    json.as_object_mut().unwrap().remove("bucket_count");
    json.as_object_mut().unwrap().remove("bucket_key");
    let table = completed(&json).unwrap();
    assert_eq!((table.bucket_count, table.bucket_keys.len()), (Some(1), 0));
    let properties: Vec<_> = table.properties.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(properties, [("table.datalake.format", "paimon"), ("table.replication.factor", "1")]);
}

#[test]
fn every_rejection_of_create_table_has_its_code() {
    let property = |key: &str, value: &str| (format!("/properties/{}", key.replace('/', "~1")), json!(value));
    let cases: Vec<((String, Value), i32)> = vec![
        (("/bucket_count".into(), json!(0)), 15),
        (("/bucket_count".into(), json!(4097)), 49),
        (("/schema/columns/1/name".into(), json!("id")), 15),
        (("/schema/columns/1/name".into(), json!("__offset")), 15),
        (("/schema/columns/1/id".into(), json!(4)), 15),
        (("/schema/columns".into(), json!([])), 15),
        (("/schema/columns/0/data_type/type".into(), json!("INTERVAL")), 15),
        (("/partition_key".into(), json!(["nobody"])), 15),
        (("/partition_key".into(), json!(["amount"])), 15),
        (("/partition_key".into(), json!(["r"])), 15),
        (("/partition_key".into(), json!(["day", "day"])), 15),
        (("/bucket_key".into(), json!(["nobody"])), 15),
        (("/bucket_key".into(), json!(["day"])), 15),
        (("/bucket_key".into(), json!(["r"])), 15),
        (("/schema/columns/0/agg_function".into(), json!({"type":"sum"})), 39),
        (("/schema/auto_increment_column".into(), json!(["id"])), 39),
        (property("table.nonsense", "1"), 39),
        (property("table.log.ttl", "soon"), 39),
        (property("table.replication.factor", "0"), 39),
        (property("table.replication.factor", "3"), 17),
        (property("table.log.arrow.compression.zstd.level", "23"), 39),
        (property("table.log.tiered.local-segments", "0"), 39),
        (property("table.log.local-ttl", "8d"), 39),
        (property("table.log.format", "INDEXED"), 39),
        (property("table.log.format", "COMPACTED"), 39),
        (property("table.merge-engine", "first_row"), 39),
        (property("table.delete.behavior", "ALLOW"), 39),
        (property("table.statistics.columns", "nobody"), 39),
        (property("table.datalake.historical-partition.enabled", "true"), 39),
        (("/properties".into(), json!({"table.datalake.enabled":"true","table.datalake.format":"iceberg"})), 39),
        (("/custom_properties".into(), json!({"paimon.bucket":"3"})), 39),
        (("/custom_properties".into(), json!({"bucket-key":"id"})), 39),
        (("/properties".into(), json!({"table.auto-partition.enabled":"true","table.auto-partition.time-zone":"Mars/North"})), 39),
        (("/properties".into(), json!({"table.auto-partition.enabled":"true","table.auto-partition.key":"id"})), 15),
    ];
    for ((pointer, value), code) in cases {
        let mut json = table_json();
        match json.pointer_mut(&pointer) {
            Some(place) => *place = value.clone(),
            None => {
                let (parent, key) = pointer.rsplit_once('/').unwrap();
                json.pointer_mut(parent).unwrap()[key] = value.clone();
            }
        }
        let error = completed(&json).map(|_| ()).unwrap_err();
        assert_eq!(error.code(), Some(code), "{pointer} = {value}: {}", error.chain());
    }
    assert!(complete(b"{}", &Limits::default()).is_err());
}

#[test]
fn a_primary_key_brings_its_defaults_and_is_checked() {
    let keyed = |keys: Value, change: &dyn Fn(&mut Value)| {
        let mut json = table_json();
        json["schema"]["primary_key"] = keys;
        json.as_object_mut().unwrap().remove("bucket_key");
        change(&mut json);
        completed(&json)
    };
    let set = |key: &'static str, value: &'static str| move |json: &mut Value| json["properties"][key] = json!(value);
    let table = keyed(json!(["id", "day"]), &|_| {}).unwrap();
    assert_eq!(table.bucket_keys, ["id"], "the primary key without the partition columns");
    assert_eq!(table.schema.fields.iter().map(|field| field.data_type.nullable).collect::<Vec<_>>(), [false, false, true, true]);
    assert_eq!(table.properties["table.kv.format-version"], "2");
    for (key, value) in [("table.delete.behavior", "IGNORE"), ("table.changelog.image", "wal"), ("table.kv.format", "INDEXED")] {
        keyed(json!(["id", "day"]), &set(key, value)).unwrap();
    }
    let several = keyed(json!(["id", "day", "amount"]), &|json| json["bucket_key"] = json!(["amount"])).unwrap();
    assert_eq!(several.bucket_keys, ["amount"]);
    let refused: Vec<(Result<TableDescriptor>, i32)> = vec![
        (keyed(json!(["id"]), &|_| {}), 15),
        (keyed(json!(["day"]), &|_| {}), 15),
        (keyed(json!(["id", "day", "id"]), &|_| {}), 15),
        (keyed(json!(["id", "day", "r"]), &|_| {}), 15),
        (keyed(json!(["id", "day", "nobody"]), &|_| {}), 15),
        (keyed(json!(["id", "day"]), &|json| json["bucket_key"] = json!(["amount"])), 15),
        (keyed(json!(["id", "day"]), &|json| json["schema"]["auto_increment_column"] = json!(["id"])), 39),
        (keyed(json!(["id", "day"]), &set("table.merge-engine", "versioned")), 39),
        (keyed(json!(["id", "day"]), &set("table.kv.ttl", "1h")), 39),
        (keyed(json!(["id", "day"]), &set("table.kv.ttl.time-column", "day")), 39),
        (keyed(json!(["id", "day"]), &|json| json["schema"]["columns"][2]["agg_function"] = json!({"type": "sum"})), 39),
        (keyed(json!(["id", "day"]), &set("table.kv.format-version", "3")), 39),
        (keyed(json!(["id", "day"]), &set("table.kv.value-layout-version", "2")), 39),
        (keyed(json!(["id", "day"]), &set("table.log.format", "COMPACTED")), 39),
        (keyed(json!(["id", "day"]), &set("table.delete.behavior", "MAYBE")), 39),
        (keyed(json!(["id", "day"]), &set("table.changelog.image", "PARTIAL")), 39),
    ];
    for (index, (outcome, code)) in refused.into_iter().enumerate() {
        assert_eq!(outcome.unwrap_err().code(), Some(code), "case {index}");
    }
}

#[test]
fn names_and_partition_specs_are_checked() {
    for name in ["", "a/b", "__x", ".", "a b", "ä", &"x".repeat(201)] {
        assert_eq!(check_name(name, "table", Code::INVALID_TABLE).unwrap_err().code(), Some(15), "{name}");
    }
    check_name(&"x".repeat(200), "table", Code::INVALID_TABLE).unwrap();
    let mut info = info("t");
    let given = |pairs: &[(&str, &str)]| -> Vec<PbKeyValue> {
        pairs.iter().map(|(key, value)| PbKeyValue { key: (*key).into(), value: (*value).into() }).collect()
    };
    let code =
        |info: &TableInfo, pairs: &[(&str, &str)], create| partition_of(info, &given(pairs), create).map_err(|error| error.code());
    assert_eq!(code(&info, &[("day", "a/b")], true), Err(Some(43)));
    assert_eq!(code(&info, &[("day", "__historical__")], true), Err(Some(43)));
    assert_eq!(code(&info, &[("hour", "1")], true), Err(Some(43)));
    assert_eq!(code(&info, &[], true), Err(Some(43)));
    assert_eq!(code(&info, &[("day", "__x")], false), Ok(spec("__x")));
    info.partition_keys.push("id".into());
    let both = vec![("day".to_owned(), "1".to_owned()), ("id".to_owned(), "2".to_owned())];
    assert_eq!(code(&info, &[("id", "2"), ("day", "1")], true), Ok(both));
    info.partition_keys.clear();
    assert_eq!(code(&info, &[("day", "1")], true), Err(Some(37)));
}

#[test]
fn columns_are_added_at_the_end_with_ids_never_used_before() {
    let info = info("t");
    let column = |name: &str, json: &str, position| PbAddColumn {
        column_name: name.into(),
        data_type_json: json.to_owned().into(),
        column_position_type: position,
        ..PbAddColumn::default()
    };
    let row = r#"{"type":"ROW","fields":[{"name":"y","field_type":{"type":"INTEGER"},"field_id":0}]}"#;
    let after = added_columns(&info.schema, &[column("n", row, 0), column("m", r#"{"type":"INTEGER"}"#, 0)]).unwrap();
    let ids: Vec<i32> = after.fields.iter().map(|field| field.id).collect();
    assert_eq!((ids, after.id, after.highest_field_id), (vec![0, 1, 2, 3, 5, 7], SchemaId(2), 7));
    let code = |column| added_columns(&info.schema, &[column]).unwrap_err().code();
    assert_eq!(code(column("id", r#"{"type":"INTEGER"}"#, 0)), Some(56));
    assert_eq!(code(column("n", r#"{"type":"INTEGER"}"#, 1)), Some(-1));
    assert_eq!(code(column("n", r#"{"type":"INTEGER","nullable":false}"#, 0)), Some(-1));
    assert_eq!(code(column("__bucket", r#"{"type":"INTEGER"}"#, 0)), Some(15));
}

#[test]
fn only_alterable_options_are_altered() {
    let info = info("t");
    let change = |key: &str, value: Option<&str>, op| PbAlterConfig {
        config_key: key.into(),
        config_value: value.map(str::to_owned),
        op_type: op,
    };
    let alter = |changes: &[PbAlterConfig]| altered_options(&info, changes, &Limits::default()).map_err(|error| error.code());
    let after = alter(&[change("table.log.ttl", Some("1d"), 0), change("owner", None, 1), change("u", Some("2"), 0)]).unwrap();
    assert_eq!((log_ttl_ms(&after), after.custom_properties.get("owner"), after.property("u")), (86_400_000, None, Some("2")));
    for (key, value, code) in [
        ("table.log.format", Some("ARROW"), 56),
        ("table.datalake.format", Some("lance"), 56),
        ("bucket.num", Some("4"), 56),
        ("table.log.ttl", Some("x"), 39),
        ("paimon.bucket", Some("4"), 39),
        ("table.datalake.historical-partition.enabled", Some("true"), 39),
    ] {
        assert_eq!(alter(&[change(key, value, 0)]).map(|_| ()), Err(Some(code)), "{key}");
    }
    assert_eq!(alter(&[change("bucket.num", None, 1)]).map(|_| ()), Err(Some(56)));
}

#[tokio::test]
async fn everything_is_there_after_a_restart_and_numbers_are_never_given_twice() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("registry.redb");
    let path = TablePath::new("demo", "t");
    let before = {
        let registry = Registry::open(&file, 7, FailPoints::default()).unwrap();
        assert_eq!(registry.epoch(), CoordinatorEpoch(0));
        assert_eq!(registry.databases().into_keys().collect::<Vec<_>>(), ["fluss"]);
        registry.put_database("demo", DatabaseRecord::new(Some("c".into()), BTreeMap::new(), 7)).await.unwrap();
        let lock = registry.lock_table(&path).await;
        let table = registry.create_table(info("t"), &lock).await.unwrap();
        assert_eq!(table.info.id, TableId(0));
        registry.create_partition(&path, spec("1"), &lock).await.unwrap();
        registry.create_partition(&path, spec("2"), &lock).await.unwrap();
        let table = registry.rescale_table(&path, 5, &Limits::default(), 9, &lock).await.unwrap();
        registry.create_partition(&path, spec("3"), &lock).await.unwrap();
        registry.drop_partition(&path, "2", &lock).await.unwrap();
        let mut wider = table.info.clone();
        wider.schema = Arc::new(Schema { id: SchemaId(2), ..(*wider.schema).clone() });
        registry.alter_table(&registry.table(&path).unwrap(), wider, &lock).await.unwrap();
        assert_eq!(registry.next_writer_id().await.unwrap(), 0);
        assert_eq!(registry.next_writer_id().await.unwrap(), 1);
        registry.put_lake_record(TableId(0), "{}".into()).await.unwrap();
        assert!(Registry::open(&file, 7, FailPoints::default()).is_err(), "one process at a time");
        registry.table(&path).unwrap()
    };
    let registry = Registry::open(&file, 8, FailPoints::default()).unwrap();
    assert_eq!(registry.epoch(), CoordinatorEpoch(1));
    let after = registry.table(&path).unwrap();
    assert_eq!((&after.info, &after.partitions, after.schemas.len()), (&before.info, &before.partitions, 2));
    let counts: Vec<_> = after.partitions.values().map(|partition| (partition.id.0, partition.bucket_count)).collect();
    assert_eq!(counts, [(0, Some(2)), (2, Some(5))]);
    assert_eq!((after.info.bucket_count, after.info.bucket_count_epoch), (5, BucketCountEpoch(1)));
    assert!(registry.next_writer_id().await.unwrap() > 1);
    assert_eq!(registry.lake_record(TableId(0)).await.unwrap().as_deref(), Some("{}"));
    let lock = registry.lock_table(&path).await;
    registry.drop_table(&after).await.unwrap();
    assert_eq!(registry.lake_record(TableId(0)).await.unwrap(), None);
    let again = registry.create_table(info("t"), &lock).await.unwrap();
    assert_eq!((again.info.id, again.partitions.len()), (TableId(1), 0));
    assert_eq!(registry.create_partition(&path, spec("1"), &lock).await.unwrap().partitions["1"].id, PartitionId(3));
}
