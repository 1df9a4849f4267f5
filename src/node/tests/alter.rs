//! F4.4 row by row, over the wire; and the lake first. The rows are in `fixtures/node/alter.json`, from where the interop suite has the
//! official client send those that it can.

use super::*;
use crate::runtime::FailAction;

#[derive(serde::Deserialize)]
struct Matrix {
    /// Registry records of states that DDL refuses.
    records: std::collections::BTreeMap<String, Value>,
    rows: Vec<Row>,
}

/// One ALTER and what becomes of it.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    table: String,
    count: Option<i32>,
    #[serde(default)]
    set: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    reset: Vec<String>,
    #[serde(default)]
    add: Vec<String>,
    #[serde(default)]
    drop: Vec<String>,
    version: Option<i16>,
    /// 0 = done.
    code: i32,
    /// What the refusal tells.
    #[serde(default)]
    says: String,
    /// Count and epoch afterwards.
    after: (i64, i64),
    /// The partitions' own counts afterwards.
    partitions: Option<Vec<Option<i32>>>,
    /// What the official client does that does not send it.
    #[expect(dead_code, reason = "for the interop suite")]
    java: Option<String>,
}

impl Row {
    fn request(&self) -> AlterTableRequest {
        let config = |key: &str, value: Option<&str>| PbAlterConfig {
            config_key: key.into(),
            config_value: value.map(Into::into),
            op_type: i32::from(value.is_none()),
        };
        let set = self.set.iter().map(|(key, value)| config(key, Some(value)));
        AlterTableRequest {
            table_path: path(&self.table),
            config_changes: set.chain(self.reset.iter().map(|key| config(key, None))).collect(),
            add_columns: self.add.iter().map(|name| column(name)).collect(),
            drop_columns: self.drop.iter().map(|name| PbDropColumn { column_name: name.into() }).collect(),
            modify_bucket_count: self.count.map(|new_bucket_count| PbModifyBucketCount { new_bucket_count }),
            ..Default::default()
        }
    }
}

fn column(name: &str) -> PbAddColumn {
    let data_type_json = Bytes::from_static(b"{\"type\":\"INTEGER\"}");
    PbAddColumn { column_name: name.into(), data_type_json, ..Default::default() }
}

fn matrix() -> Matrix {
    serde_json::from_str(include_str!("../../../fixtures/node/alter.json")).unwrap()
}

/// Count, epoch, and the partitions' own counts.
async fn layout(stage: &Stage, table: &str) -> (i64, i64, Vec<Option<i32>>) {
    let info = stage.info(table).await;
    let json: Value = serde_json::from_slice(&info.table_json).unwrap();
    let request = MetadataRequest { table_path: vec![path(table)], ..Default::default() };
    let told = stage.client.call(&request).await.unwrap().table_metadata.remove(0);
    assert_eq!(
        (told.bucket_count_epoch, &told.table_json),
        (info.bucket_count_epoch, &info.table_json),
        "both calls tell the same"
    );
    let own = match json["partition_key"].as_array().is_some_and(|keys| !keys.is_empty()) {
        true => stage.partitions(table).await.iter().map(|partition| partition.bucket_count).collect(),
        false => vec![],
    };
    (json["bucket_count"].as_i64().unwrap(), info.bucket_count_epoch.unwrap_or(0), own)
}

/// Puts the records of the matrix into a registry.
fn seed(file: &std::path::Path) {
    let records: Vec<(String, String)> = matrix().records.into_iter().map(|(key, json)| (key, json.to_string())).collect();
    registry::seed(file, &records.iter().map(|(key, json)| (key.as_str(), json.as_str())).collect::<Vec<_>>());
}

/// A node whose registry has the records of the matrix, and the tables that DDL can make.
async fn seeded() -> Stage {
    let stage = Stage::new().await.restarted_after(true, |folder| seed(&folder.join("registry.redb"))).await;
    stage.create("plain", table(false, 2)).await;
    for (name, lake) in [("log", false), ("lake", true), ("unaware", true)] {
        let mut json = table(true, 2);
        if lake {
            json["properties"] = json!({"table.datalake.enabled": "true"});
        }
        if name == "unaware" {
            json["bucket_key"] = json!([]);
        }
        stage.create(name, json).await;
        stage.add_partition(name, "1").await;
    }
    stage
}

#[tokio::test]
async fn the_alter_matrix_row_by_row() {
    let stage = seeded().await;
    for row in matrix().rows {
        let before = layout(&stage, &row.table).await;
        let schemas = |table: &str| {
            let folder = std::path::Path::new(stage.node.warehouse()).join(format!("fluss.db/{table}/schema"));
            std::fs::read_dir(folder).map_or(0, Iterator::count)
        };
        let lake = schemas(&row.table);
        let outcome = match row.version {
            None => stage.client.call(&row.request()).await.map(|_| ()),
            Some(version) => {
                let (code, text) = stage.ask(1044, version, &row.request().encode_to_vec()).await;
                if code == 0 { Ok(()) } else { Err(Error::invalid(text).with_code(code)) }
            }
        };
        let text = outcome.as_ref().map_or_else(|error| error.chain(), |()| String::new());
        assert_eq!((code(outcome), text.contains(&row.says)), (row.code, true), "{}: {text}", row.name);
        let after = layout(&stage, &row.table).await;
        assert_eq!((after.0, after.1), row.after, "{}", row.name);
        assert_eq!(&after.2, row.partitions.as_ref().unwrap_or(&before.2), "{}", row.name);
        let changed = row.code == 0 && row.count.is_some_and(|count| i64::from(count) != before.0);
        assert_eq!(schemas(&row.table) - lake, usize::from(changed && row.table == "lake"), "{}: lake calls", row.name);
        if changed && row.table == "lake" {
            assert_eq!(stage.lake_schema("lake").0, row.count.unwrap().to_string(), "{}", row.name);
        }
    }
    // And so it is after a restart.
    let stage = stage.restarted(false).await;
    assert_eq!(layout(&stage, "iceberg").await, (2, 0, vec![Some(2)]));
}

#[tokio::test]
async fn the_same_count_does_not_even_ask_the_lake() {
    let stage = seeded().await;
    std::fs::remove_dir_all(std::path::Path::new(stage.node.warehouse()).join("fluss.db/lake")).unwrap();
    stage.rescale("lake", 2).await.unwrap();
    assert_ne!(code(stage.rescale("lake", 4).await), 0);
    assert_eq!(layout(&stage, "lake").await, (2, 0, vec![Some(2)]));
}

#[tokio::test]
async fn where_the_lake_fails_fluss_stays_as_it_was_and_the_same_alter_heals_it() {
    let stage = seeded().await;
    let folder = std::path::Path::new(stage.node.warehouse()).join("fluss.db/lake");
    let aside = folder.with_file_name("aside");
    std::fs::rename(&folder, &aside).unwrap();
    let error = stage.rescale("lake", 4).await.unwrap_err();
    let text = error.chain();
    assert!(text.contains("nothing was changed in Fluss") && text.contains("run the same ALTER again"), "{text}");
    assert_eq!(layout(&stage, "lake").await, (2, 0, vec![Some(2)]));
    std::fs::rename(&aside, &folder).unwrap();
    stage.rescale("lake", 4).await.unwrap();
    assert_eq!((layout(&stage, "lake").await, stage.lake_schema("lake").0.as_str()), ((4, 1, vec![Some(2)]), "4"));
}

#[tokio::test]
async fn where_fluss_fails_after_the_lake_the_same_alter_or_another_heals_both() {
    let stage = seeded().await;
    let fails = async |count: i32| {
        stage.runtime.fail.arm("registry.before_write", 1, FailAction::Error);
        stage.rescale("lake", count).await.unwrap_err().chain()
    };
    let text = fails(4).await;
    assert!(text.contains("the lake has it already") && text.contains("run the same ALTER again"), "{text}");
    assert_eq!((layout(&stage, "lake").await, stage.lake_schema("lake").0.as_str()), ((2, 0, vec![Some(2)]), "4"));
    // Meanwhile partitions are made by what Fluss says, and columns are added all the same.
    assert_eq!(stage.add_partition("lake", "2").await.bucket_count, Some(2));
    let add = AlterTableRequest { table_path: path("lake"), add_columns: vec![column("late")], ..Default::default() };
    stage.client.call(&add).await.unwrap();
    assert_eq!(stage.lake_schema("lake"), ("4".into(), vec!["id".into(), "day".into(), "late".into()]));
    stage.rescale("lake", 4).await.unwrap();
    assert_eq!(layout(&stage, "lake").await, (4, 1, vec![Some(2); 2]));
    // The node dies between the two: it says so to nobody, and the next ALTER sets both.
    fails(8).await;
    let stage = stage.restarted(false).await;
    assert_eq!((layout(&stage, "lake").await.0, stage.lake_schema("lake").0.as_str()), (4, "8"));
    stage.rescale("lake", 3).await.unwrap();
    assert_eq!((layout(&stage, "lake").await, stage.lake_schema("lake").0.as_str()), ((3, 2, vec![Some(2); 2]), "3"));
}

#[tokio::test]
async fn partitions_made_by_time_or_by_writers_get_the_count_of_that_moment() {
    let stage = Stage::with(|options| options.partition_interval = Duration::from_millis(10)).await;
    let mut json = table(true, 2);
    json["properties"] = json!({"table.auto-partition.enabled":"true","table.auto-partition.time-unit":"YEAR",
        "table.auto-partition.num-precreate":"1","table.auto-partition.num-retention":"-1"});
    stage.create("t", json).await;
    let year: i32 = stage.partitions("t").await[0].partition_spec.partition_key_values[0].value.parse().unwrap();
    stage.rescale("t", 5).await.unwrap();
    let precreate = |number: &str| AlterTableRequest {
        table_path: path("t"),
        config_changes: vec![PbAlterConfig {
            config_key: "table.auto-partition.num-precreate".into(),
            config_value: Some(number.into()),
            op_type: 0,
        }],
        ..Default::default()
    };
    stage.client.call(&precreate("2")).await.unwrap();
    stage.rescale("t", 3).await.unwrap();
    // As a writer does: whoever comes first.
    let day = (year + 5).to_string();
    let request = CreatePartitionRequest { table_path: path("t"), partition_spec: spec(&day), ignore_if_not_exists: true };
    stage.client.call(&request).await.unwrap();
    stage.rescale("t", 4).await.unwrap();
    stage.client.call(&request).await.unwrap();
    assert_eq!(layout(&stage, "t").await, (4, 3, vec![Some(2), Some(5), Some(3)]));
    // One that is dropped comes back by itself, with the count of now.
    let drop = DropPartitionRequest { table_path: path("t"), partition_spec: spec(&year.to_string()), ignore_if_not_exists: false };
    stage.client.call(&drop).await.unwrap();
    let back = async { while stage.partitions("t").await.len() < 3 {} };
    tokio::time::timeout(Duration::from_secs(10), back).await.unwrap();
    assert_eq!(layout(&stage, "t").await.2, [Some(4), Some(5), Some(3)]);
}

#[tokio::test]
async fn a_partition_whose_count_nobody_knows_is_never_served_by_a_guess() {
    let stage = seeded().await;
    let info = stage.info("missing").await;
    let partition = stage.partitions("missing").await.remove(0);
    assert_eq!((info.bucket_count_epoch, partition.bucket_count), (Some(1), None));
    let mut produce = records(-1, -1, 0);
    (produce.partition_id, produce.routing_bucket_count) = (Some(partition.partition_id), Some(2));
    assert_eq!(stage.produce(info.table_id, produce).await.0, 74);
    let request =
        MetadataRequest { table_path: vec![path("missing")], partitions_id: vec![partition.partition_id], ..Default::default() };
    let error = stage.client.call(&request).await.unwrap_err();
    assert!(error.chain().contains("names no bucket count although the table was rescaled"), "{}", error.chain());
    // A partition from before 1.0 in a table that was never rescaled has the table's.
    let (table_id, old) = (stage.info("legacy").await.table_id, stage.partitions("legacy").await.remove(0));
    let request = MetadataRequest { table_path: vec![path("legacy")], partitions_id: vec![old.partition_id], ..Default::default() };
    let found = stage.client.call(&request).await.unwrap().partition_metadata.remove(0);
    assert_eq!((found.table_id, found.bucket_metadata.len(), found.bucket_count), (table_id, 2, None));
}

#[tokio::test]
async fn what_enumerates_buckets_goes_by_the_partitions_count_and_what_needs_state_is_named() {
    let stage = seeded().await;
    let ask = |table: &str, partition: Option<&str>| {
        let request = GetLatestKvSnapshotsRequest { table_path: path(table), partition_name: partition.map(str::to_owned) };
        let client = stage.client.clone();
        async move { client.call(&request).await }
    };
    for (day, buckets) in [("1", 2), ("2", 5)] {
        let answer = ask("keyed", Some(day)).await.unwrap();
        let listed: Vec<i32> = answer.latest_snapshots.iter().map(|bucket| bucket.bucket_id).collect();
        assert_eq!((listed, answer.latest_snapshots[0].snapshot_id), ((0..buckets).collect(), None));
        assert!(answer.partition_id.is_some());
    }
    for (table, partition, expected) in
        [("keyed", None, 36), ("keyed", Some("9"), 36), ("log", Some("1"), 20), ("plain", None, 20), ("nope", None, 7)]
    {
        assert_eq!(code(ask(table, partition).await), expected, "{table} {partition:?}");
    }
    let (table_id, partition) = (stage.info("keyed").await.table_id, stage.partitions("keyed").await.remove(0));
    let partition_id = Some(partition.partition_id);
    let scan = LimitScanRequest { table_id, partition_id, bucket_id: 0, limit: 1, routing_bucket_count: partition.bucket_count };
    let answer = stage.client.call(&scan).await.unwrap();
    assert_eq!((answer.error_code, answer.is_log_table), (None, Some(false)));
    let bucket = PbTableStatsReqForBucket { partition_id, bucket_id: 0, routing_bucket_count: partition.bucket_count };
    let stats = GetTableStatsRequest { table_id, buckets_req: vec![bucket], target_columns: vec![] };
    let answer = stage.client.call(&stats).await.unwrap().buckets_resp.remove(0);
    assert_eq!((answer.error_code, answer.row_count), (None, Some(0)));
    let mut produce = records(-1, -1, 0);
    (produce.partition_id, produce.routing_bucket_count) = (partition_id, partition.bucket_count);
    assert_eq!(stage.produce(table_id, produce).await.0, 15);
}

/// For the interop suite, which can't write a registry: `cargo test --lib registry_of_the_alter_matrix -- --ignored`.
#[tokio::test]
#[ignore = "makes fixtures/node/registry.redb.zst again, after a change of alter.json"]
async fn the_registry_of_the_alter_matrix_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("registry.redb");
    seed(&file);
    let bytes = std::fs::read(file).unwrap();
    let packed = zstd::stream::encode_all(bytes.as_slice(), 19).unwrap();
    std::fs::write("fixtures/node/registry.redb.zst", packed).unwrap();
}

#[test]
fn the_registry_for_the_interop_suite_is_that_of_the_alter_matrix() {
    let packed = include_bytes!("../../../fixtures/node/registry.redb.zst");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("registry.redb");
    std::fs::write(&file, zstd::stream::decode_all(packed.as_slice()).unwrap()).unwrap();
    let kept = registry::content(&file);
    let wanted = matrix().records.into_iter().map(|(key, json)| (key, json.to_string()));
    assert_eq!(kept, wanted.collect(), "make it again, see above");
}
