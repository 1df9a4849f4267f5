//! `lakeward sync`: lake tables brought in step with their Fluss tables, beside whoever else does it.

use lakeward::lake::SchemaChange;
use lakeward::paimon::TableSchema;
use serde_json::json as value;

use super::binary::{Running, run, run_unread};
use super::*;

/// What a process said, without the places of this run.
pub(super) fn plain(text: &str, stage: &Stage) -> String {
    text.replace(stage.dir.path().to_str().unwrap(), "DIR").replace(&stage.address(), "SERVER")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sync_shows_what_differs_ends_with_6_on_a_check_and_mends_what_needs_no_person() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 0..20, "a").await;
    let address = stage.address();
    let sync = async |more: &[&str]| run(&[&["sync", "--server", &address][..], more].concat(), None).await;
    let check = sync(&["--check"]).await;
    assert_eq!(
        (check.code, plain(&check.stdout, &stage).as_str()),
        (Some(0), "demo.orders: in step with DIR/warehouse/demo.db/orders\n"),
        "{check:?}"
    );
    // By hand: another count, and an option that Fluss does not have.
    let option = |key: &str, value: &str| SchemaChange::Option { key: key.into(), value: Some(value.into()) };
    let by_hand = |_: &_| Ok(vec![SchemaChange::BucketCount(7), option("fluss.old", "1")]);
    assert!(stage.lake(&path).await.alter(by_hand).await.unwrap());
    let shown = sync(&[]).await;
    assert_eq!(shown.code, Some(0), "without --check nothing is judged: {shown:?}");
    let expected = "\
demo.orders: 2 differences to DIR/warehouse/demo.db/orders
  what differs      in Fluss  in the lake  who mends it
  option fluss.old         -            1       --apply
  option bucket            2            7       --apply
";
    assert_eq!(plain(&shown.stdout, &stage), expected);
    let unread = run_unread(&["sync", "--server", &address, "--check"]).await;
    assert_eq!(unread.code, Some(6), "drift counts also when nobody reads: {unread:?}");
    let checked = sync(&["--check", "demo.orders", "--json"]).await;
    let report = &checked.json()[0];
    assert_eq!(
        (checked.code, &report["outcome"], &report["differences"][1]),
        (
            Some(6),
            &value!("drift"),
            &value!({
                "aspect": "bucket", "name": "bucket", "fluss": "2", "lake": "7", "sql": null
            })
        ),
        "{checked:?}"
    );
    let applied = sync(&["--apply"]).await;
    let expected = "\
demo.orders: in step with DIR/warehouse/demo.db/orders
  mended: option fluss.old is -
  mended: option bucket is 2
";
    assert_eq!((applied.code, plain(&applied.stdout, &stage).as_str()), (Some(0), expected), "{applied:?}");
    let folder = stage.dir.path().join("warehouse/demo.db/orders/schema");
    let schemas = || std::fs::read_dir(&folder).unwrap().count();
    let before = schemas();
    let again = sync(&["--apply", "--json"]).await;
    assert_eq!((again.code, &again.json()[0]["applied"], schemas()), (Some(0), &value!([]), before), "{again:?}");

    // What does not fit is for a person, and so is all else of that table until then.
    let by_hand = |_: &_| Ok(vec![SchemaChange::BucketCount(7), option("partition.legacy-name", "true")]);
    let lake = stage.lake(&path).await;
    assert!(lake.alter(by_hand).await.unwrap());
    let before = schemas();
    let left = sync(&["--apply"]).await;
    assert_eq!((left.code, schemas()), (Some(6), before), "{left:?}");
    for said in [
        "option partition.legacy-name     false         true      a person",
        "option bucket",
        "SET ('partition.legacy-name' = 'false')",
    ] {
        assert!(left.stdout.contains(said), "`{said}` is not in {}", left.stdout);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sync_makes_a_lake_table_that_nothing_was_tiered_into_and_two_at_once_make_one() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 0..20, "a").await;
    let folder = stage.dir.path().join("warehouse/demo.db/orders");
    std::fs::remove_dir_all(&folder).unwrap();
    let address = stage.address();
    let sync = async |more: &[&str]| run(&[&["sync", "--server", &address][..], more].concat(), None).await;
    let check = sync(&["--check"]).await;
    assert!(check.code == Some(6) && check.stdout.ends_with("--apply makes it\n"), "{check:?}");
    assert!(!folder.exists(), "a check changes nothing");
    let (one, other) = futures::join!(sync(&["--apply", "--json"]), sync(&["--apply", "--json"]));
    assert_eq!((one.code, other.code), (Some(0), Some(0)), "{one:?} {other:?}");
    assert_eq!(stage.tier().await, [Some(1)]);
    // Once rows were tiered an empty table in its place would be no help.
    std::fs::remove_dir_all(&folder).unwrap();
    let refused = sync(&["--apply"]).await;
    assert!(refused.code == Some(6) && refused.stdout.contains("Fluss knows snapshot 1 of it"), "{refused:?}");
    assert!(refused.stdout.contains("lakeward repair reset-offsets demo.orders --snapshot 0"), "{refused:?}");
    assert!(!folder.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_sync_prints_of_columns_that_differ_and_the_statements_bring_them_in_step() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    let lake = stage.lake(&path).await;
    let by_hand = async |change: &dyn Fn(&mut TableSchema)| {
        let lake = LakeTable::open(lake.store().clone(), lake.root(), stage.runtime.clone()).await.unwrap().unwrap();
        let mut schema = (**lake.schema()).clone();
        schema.id += 1;
        change(&mut schema);
        lake.store().put(&lake.object(&path::schema(schema.id)), schema.to_json().unwrap().into()).await.unwrap();
    };
    by_hand(&|schema| {
        schema.fields[0].data_type.kind = TypeKind::Int;
        schema.fields[0].comment = Some("by hand".into());
        schema.fields[1].comment = Some("a word".into());
        schema.options.insert("fluss.old".into(), "1".into());
    })
    .await;
    let address = stage.address();
    let sync = async |more: &[&str]| run(&[&["sync", "--server", &address][..], more].concat(), None).await;
    let shown = sync(&["--apply"]).await;
    let expected = "\
demo.orders: 4 differences to DIR/warehouse/demo.db/orders
  what differs             in Fluss  in the lake  who mends it
  type of column id          BIGINT          INT      a person
  comment of column id            -      by hand      a person
  comment of column words         -       a word      a person
  option fluss.old                -            1      a person
  in Flink SQL, with the lake's catalog: ALTER TABLE `demo`.`orders` MODIFY `id` BIGINT NOT NULL COMMENT 'by hand';
  in Flink SQL, with the lake's catalog: ALTER TABLE `demo`.`orders` MODIFY `id` BIGINT NOT NULL;
  in Flink SQL, with the lake's catalog: ALTER TABLE `demo`.`orders` MODIFY `words` STRING;
  in Flink SQL, with the lake's catalog: ALTER TABLE `demo`.`orders` RESET ('fluss.old');
";
    assert_eq!((shown.code, plain(&shown.stdout, &stage).as_str()), (Some(6), expected), "{shown:?}");
    assert_eq!(shown.stderr, "1 of the tables need a person: see above\n");
    let json = sync(&["--check", "--json"]).await;
    let expected = r#"{"table":{"database":"demo","table":"orders"},"lake":"DIR/warehouse/demo.db/orders","outcome":"drift","differences":[{"aspect":"type","name":"id","fluss":"BIGINT","lake":"INT","sql":"ALTER TABLE `demo`.`orders` MODIFY `id` BIGINT NOT NULL"},{"aspect":"comment","name":"id","fluss":null,"lake":"by hand","sql":"ALTER TABLE `demo`.`orders` MODIFY `id` BIGINT NOT NULL"},{"aspect":"comment","name":"words","fluss":null,"lake":"a word","sql":"ALTER TABLE `demo`.`orders` MODIFY `words` STRING"},{"aspect":"option","name":"fluss.old","fluss":null,"lake":"1","sql":"ALTER TABLE `demo`.`orders` RESET ('fluss.old')"}],"applied":[],"created":false,"note":null,"hint":"in Flink SQL, with the lake's catalog: ALTER TABLE `demo`.`orders` MODIFY `id` BIGINT NOT NULL COMMENT 'by hand';"}
"#;
    assert_eq!((json.code, plain(&json.stdout, &stage).as_str()), (Some(6), expected), "{json:?}");
    // As a person runs them.
    by_hand(&|schema| {
        schema.fields[0].data_type.kind = TypeKind::BigInt;
        schema.fields.iter_mut().for_each(|field| field.comment = None);
    })
    .await;
    let applied = sync(&["--apply", "--json"]).await;
    let expected = r#"{"table":{"database":"demo","table":"orders"},"lake":"DIR/warehouse/demo.db/orders","outcome":"in_step","differences":[],"applied":[{"aspect":"option","name":"fluss.old","fluss":null,"lake":"1","sql":"ALTER TABLE `demo`.`orders` RESET ('fluss.old')"}],"created":false,"note":null,"hint":null}
"#;
    assert_eq!((applied.code, plain(&applied.stdout, &stage).as_str()), (Some(0), expected), "{applied:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sync_beside_added_columns_and_a_daemon_adds_each_once_and_every_row_is_tiered() {
    let stage = Stage::new().await;
    let mut soon = orders();
    soon.properties.insert("table.datalake.freshness".into(), "100ms".into());
    let path = stage.table("orders", &soon).await;
    let address = stage.address();
    let log = stage.dir.path().join("daemon.log");
    let daemon = Running::logging(&["run", "--server", &address, "--set", "poll.interval=100ms"], &log);
    let altering = async {
        for (round, name) in (0..).zip(["one", "two", "three"]) {
            stage.append(&path, round * 20..round * 20 + 20, "a").await;
            stage.admin.add_columns(&path, &[field(name, TypeKind::String, true)]).await.unwrap();
        }
    };
    let syncing = async || {
        for _ in 0..3 {
            let ended = run(&["sync", "demo.orders", "--server", &address, "--apply"], None).await;
            assert_eq!(ended.code, Some(0), "{ended:?}");
        }
    };
    futures::join!(altering, syncing(), syncing());
    let tiered = async || (stage.ids(&path).await.len() >= 60).then_some(());
    Box::pin(until(&stage.runtime, "all rows are tiered", tiered)).await;
    daemon.signal("TERM");
    assert_eq!(tokio::task::spawn_blocking(|| daemon.wait()).await.unwrap(), Some(143));
    let last = run(&["sync", "demo.orders", "--server", &address, "--check"], None).await;
    assert_eq!(last.code, Some(0), "{last:?}");
    assert_eq!(stage.ids(&path).await, Vec::from_iter(0..60));
    let lake = stage.lake(&path).await;
    let names: Vec<&str> = lake.schema().fields.iter().map(|field| field.name.as_str()).collect();
    assert_eq!((lake.schema().id, &names[names.len() - 3..]), (3, &["one", "two", "three"][..]), "{names:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sync_beside_a_rescale_and_tables_that_it_skips() {
    let stage = Stage::with(|options| {
        let packed = include_bytes!("../../../fixtures/node/registry.redb.zst");
        std::fs::write(options.dir.join("registry.redb"), zstd::stream::decode_all(packed.as_slice()).unwrap()).unwrap();
    })
    .await;
    let path = stage.table("orders", &orders()).await;
    let address = stage.address();
    let skipped = run(&["sync", "fluss.iceberg", "--server", &address, "--check"], None).await;
    assert_eq!(
        (skipped.code, skipped.stdout.as_str()),
        (Some(0), "fluss.iceberg: skipped: lake format `iceberg`\n"),
        "{skipped:?}"
    );
    let rescaling = async {
        for count in [3, 4, 5] {
            stage.admin.alter_bucket_count(&path, count).await.unwrap();
        }
    };
    let syncing = async {
        for _ in 0..3 {
            let ended = run(&["sync", "demo.orders", "--server", &address, "--apply"], None).await;
            assert_eq!(ended.code, Some(0), "{ended:?}");
        }
    };
    futures::join!(rescaling, syncing);
    let last = run(&["sync", "demo.orders", "--server", &address, "--check"], None).await;
    assert_eq!(last.code, Some(0), "{last:?}");
    assert_eq!(stage.lake(&path).await.schema().option("bucket"), Some("5"));
}
