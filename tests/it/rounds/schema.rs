//! Columns that are added in Fluss, and lake tables that were changed by others.

use arrow_array::Array;
use futures::FutureExt;
use lakeward::error::Kind;
use lakeward::model::{Datum, TieringEpoch};
use lakeward::paimon::TableSchema;
use lakeward::round::{Job, Limits};
use lakeward::runtime::FailAction;

use super::binary::run;
use super::edges::{interrupted, interrupted_early};
use super::*;

async fn add(stage: &Stage, path: &TablePath, name: &str) {
    stage.admin.add_columns(path, &[field(name, TypeKind::String, true)]).await.map_err(|error| error.chain()).unwrap();
}

/// The table without a queue.
async fn job(stage: &Stage, path: &TablePath) -> Job {
    let table = stage.info(path).await.id;
    Job { path: path.clone(), table, epoch: TieringEpoch(1), lease: None, limits: Limits::default() }
}

/// What a reader of the table as it is now sees in a text column, by id; columns of `rows` have NULL for each seventh.
async fn texts(stage: &Stage, path: &TablePath, column: &str) -> BTreeMap<i64, Option<String>> {
    let lake = stage.lake(path).await;
    let newest = newest(&lake).await.unwrap();
    let batches = lake.read_rows(&newest, None, Some(&["id", column])).await.map_err(|error| error.chain()).unwrap();
    let mut texts = BTreeMap::new();
    for batch in batches {
        let ids = batch.column_by_name("id").unwrap().as_primitive::<Int64Type>();
        let values = batch.column_by_name(column).unwrap().as_string::<i32>();
        for (id, text) in ids.values().iter().zip(values) {
            assert_eq!(texts.insert(*id, text.map(str::to_owned)), None, "{id} is there twice");
        }
    }
    texts
}

/// Rows with ids below `end`; those of `with` have a text in `column`.
fn expected(column: &str, end: i64, with: impl IntoIterator<Item = i64>) -> BTreeMap<i64, Option<String>> {
    let with = BTreeSet::from_iter(with);
    let has = |id: i64| id % 7 != 0 && with.contains(&id);
    (0..end).map(|id| (id, has(id).then(|| format!("{column} of {id}")))).collect()
}

/// Statistics of each file fit the file's own schema and rows.
async fn check_statistics(stage: &Stage, path: &TablePath) {
    let lake = stage.lake(path).await;
    for file in stage.files(path).await {
        let meta = &file.entry.file;
        let schema = lake.load_schema(meta.schema_id).await.unwrap();
        assert_eq!(meta.value_stats_cols, None, "all columns have statistics");
        let names: Vec<&str> = schema.fields.iter().map(|field| field.name.as_str()).collect();
        let stored: Vec<String> = file.rows.schema().fields().iter().map(|field| field.name().clone()).collect();
        assert_eq!(stored, names, "the file has the columns of schema {}", meta.schema_id);
        let types: Vec<DataType> = schema.fields.iter().map(|field| field.data_type.clone()).collect();
        let (min, max) = (meta.value_stats.min_values.read(&types).unwrap(), meta.value_stats.max_values.read(&types).unwrap());
        let null_counts = meta.value_stats.null_counts.as_ref().unwrap();
        assert_eq!(null_counts.len(), names.len());
        for (at, column) in file.rows.columns().iter().enumerate() {
            let nulls = i64::try_from(column.null_count()).unwrap();
            assert_eq!(null_counts[at], Some(nulls), "{}", names[at]);
            let Some(texts) = column.as_string_opt::<i32>() else { continue };
            let bound = |text: Option<&str>| text.map(|text| Datum::String(text.to_owned()));
            let (least, most) = (texts.iter().flatten().min(), texts.iter().flatten().max());
            assert_eq!((&min[at], &max[at]), (&bound(least), &bound(most)), "{}", names[at]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_column_added_between_rounds_and_inside_a_split_is_null_in_old_rows_and_there_in_new_ones() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 0..50, "a").await;
    assert_eq!(stage.tier().await, [Some(1)]);
    let mut old = Writer::open(&stage.cluster, &path, WriterOptions::default()).await.unwrap();
    add(&stage, &path, "note").await;
    assert_eq!(stage.info(&path).await.schema_id(), SchemaId(2));
    assert_eq!(stage.lake(&path).await.schema().id, 1, "the lake comes first");

    // One that knows the table of before goes on beside one that knows the new column: both kinds of batches in one log.
    let batch = rows(&old, 50..100, "a");
    old.append(&batch).await.unwrap();
    stage.append(&path, 100..150, "a").await;
    let batch = rows(&old, 150..200, "a");
    old.append(&batch).await.unwrap();
    assert_eq!(stage.tier().await, [Some(2)]);
    assert_eq!(texts(&stage, &path, "note").await, expected("note", 200, 100..150));
    assert_eq!(texts(&stage, &path, "words").await, expected("words", 200, 0..200));
    let schemas: BTreeSet<i64> = stage.files(&path).await.iter().map(|file| file.entry.file.schema_id).collect();
    assert_eq!(schemas, BTreeSet::from([0, 1]), "files keep the schema they were written by");
    check_statistics(&stage, &path).await;
    assert_eq!(stage.newest(&path).await.unwrap().schema_id, 1);
    assert_eq!(stage.tier().await, [None]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_columns_one_after_the_other_in_one_round_and_each_writer_knows_its_own() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 0..40, "a").await;
    assert_eq!(stage.tier().await, [Some(1)]);
    let mut writers = Vec::new();
    for name in ["first", "second", "third"] {
        writers.push(Writer::open(&stage.cluster, &path, WriterOptions::default()).await.unwrap());
        add(&stage, &path, name).await;
    }
    writers.push(Writer::open(&stage.cluster, &path, WriterOptions::default()).await.unwrap());
    // Schemas 4, 1, 3, 2 in the order of the offsets of both partitions.
    let mut id = 40;
    for known in [3_usize, 0, 2, 1] {
        for day in ["a", "b"] {
            let batch = rows(&writers[known], id..id + 20, day);
            writers[known].append(&batch).await.map_err(|error| error.chain()).unwrap();
            id += 20;
        }
    }
    assert_eq!(stage.tier().await, [Some(2)]);
    assert_eq!(texts(&stage, &path, "first").await, expected("first", 200, (40..80).chain(120..200)));
    assert_eq!(texts(&stage, &path, "second").await, expected("second", 200, (40..80).chain(120..160)));
    assert_eq!(texts(&stage, &path, "third").await, expected("third", 200, 40..80));
    check_statistics(&stage, &path).await;
    assert_eq!(stage.lake(&path).await.schema().id, 3);
    assert_eq!(stage.tier().await, [None]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_column_added_under_a_round_is_never_lost() {
    let stage = Stage::new().await;
    let (early, late) = (stage.table("early", &events()).await, stage.table("late", &events()).await);
    for path in [&early, &late] {
        stage.append(path, 0..30, "").await;
    }
    let alter = |path: &TablePath| {
        let (admin, cluster, path) = (stage.admin.clone(), stage.cluster.clone(), path.clone());
        move || {
            let (admin, cluster, path) = (admin.clone(), cluster.clone(), path.clone());
            async move {
                admin.add_columns(&path, &[field("note", TypeKind::String, true)]).await.unwrap();
                append(&cluster, &path, 30..60, "").await;
            }
            .boxed()
        }
    };
    let only = async |service: Service, path: &TablePath| {
        let job = job(&stage, path).await;
        round::run(&service.rounds, &job).await.map_err(|error| error.chain()).unwrap()
    };
    // The plan knows the table of before, and the ends of after: rows of schema 2 are in its splits.
    let summary = only(interrupted_early(&stage, alter(&early)), &early).await;
    assert_eq!((snapshot_of(&summary), summary.rows), (Some(1), 60), "planned afresh");
    assert_eq!(texts(&stage, &early, "note").await, expected("note", 60, 30..60));
    // The plan stands: new rows are for the next round.
    let summary = only(interrupted(&stage, alter(&late)), &late).await;
    assert_eq!((snapshot_of(&summary), summary.rows), (Some(1), 30));
    assert_eq!(stage.newest(&late).await.unwrap().schema_id, 1, "a snapshot names the newest schema");
    let summary = only(stage.service(stage.rounds()), &late).await;
    assert_eq!((snapshot_of(&summary), summary.rows), (Some(2), 30));
    assert_eq!(texts(&stage, &late, "note").await, expected("note", 60, 30..60));
    for path in [&early, &late] {
        check_statistics(&stage, path).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_that_dies_between_lake_and_fluss_leaves_a_column_of_nulls_and_the_same_alter_heals() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 0..50, "a").await;
    assert_eq!(stage.tier().await, [Some(1)]);
    stage.runtime.fail.arm("node.add_columns", 1, FailAction::Error);
    let note = [field("note", TypeKind::String, true)];
    let error = stage.admin.add_columns(&path, &note).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{}", error.chain());
    assert_eq!((stage.lake(&path).await.schema().id, stage.info(&path).await.schema_id()), (1, SchemaId(1)));
    // Rows are narrower than the lake table now.
    stage.append(&path, 50..100, "a").await;
    assert_eq!(stage.tier().await, [Some(2)]);
    assert_eq!(texts(&stage, &path, "note").await, expected("note", 100, 0..0));
    stage.admin.add_columns(&path, &note).await.unwrap();
    assert_eq!((stage.lake(&path).await.schema().id, stage.info(&path).await.schema_id()), (1, SchemaId(2)));
    stage.append(&path, 100..150, "b").await;
    assert_eq!(stage.tier().await, [Some(3)]);
    assert_eq!(texts(&stage, &path, "note").await, expected("note", 150, 100..150));
    check_statistics(&stage, &path).await;
}

/// A column that Fluss has and the lake has not, as a coordinator that does not alter lakes leaves it.
async fn add_in_fluss_only(stage: &Stage, path: &TablePath, name: &str) {
    add(stage, path, name).await;
    let lake = stage.lake(path).await;
    let newest = lake.object(&path::schema(lake.schema().id));
    lake.store().delete(&newest).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_column_that_the_lake_lacks_is_added_before_rows_are_written_whatever_dies() {
    let stage = Stage::with(|options| options.lease = Duration::from_millis(300)).await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 0..50, "a").await;
    assert_eq!(stage.tier().await, [Some(1)]);
    add_in_fluss_only(&stage, &path, "note").await;
    stage.append(&path, 50..100, "a").await;

    let server = stage.address();
    let planned = run(&["plan", "--server", &server, "demo.orders", "--json"], None).await;
    assert_eq!((planned.code, &planned.json()[0]["missing_columns"]), (Some(0), &serde_json::json!(["note"])), "{planned:?}");
    assert_eq!(stage.lake(&path).await.schema().id, 0, "a look changes nothing");
    // Dies with the lake altered and nothing committed.
    let died = run(&["run", "--server", &server, "--once"], Some("commit.before_publish=kill".to_owned())).await;
    assert_eq!(died.code, None, "{died:?}");
    assert!(died.stderr.contains("columns added to the lake table"), "{}", died.stderr);
    assert_eq!(stage.lake(&path).await.schema().id, 1);
    let again = run(&["run", "--server", &server, "--once", "--wait", "1500ms"], None).await;
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(!again.stderr.contains("columns added"), "{}", again.stderr);
    assert_eq!(texts(&stage, &path, "note").await, expected("note", 100, 50..100));
    check_statistics(&stage, &path).await;
    // The coordinator finds what it would have made, and goes on from there.
    add(&stage, &path, "more").await;
    assert_eq!(stage.lake(&path).await.schema().id, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_that_find_a_column_missing_at_once_add_it_once() {
    let stage = Stage::new().await;
    let path = stage.table("events", &events()).await;
    add_in_fluss_only(&stage, &path, "note").await;
    stage.append(&path, 0..100, "").await;
    let job = job(&stage, &path).await;
    let one = || {
        let mut context = stage.rounds();
        context.options.replans_max = 50;
        context.options.replan_pause = Duration::from_millis(1);
        let job = job.clone();
        async move { round::run(&context, &job).await.map_err(|error| error.chain()).unwrap().rows }
    };
    let (a, b, c) = futures::join!(one(), one(), one());
    assert_eq!(a + b + c, 100);
    assert_eq!(stage.lake(&path).await.schema().id, 1);
    assert_eq!(texts(&stage, &path, "note").await, expected("note", 100, 0..100));
}

/// What somebody does to the lake table by hand: its next schema.
async fn by_hand(stage: &Stage, path: &TablePath, change: impl FnOnce(&mut TableSchema)) {
    let place = lakeward::mapping::lake_path(&stage.info(path).await).unwrap();
    let folder = stage.node.as_ref().unwrap().warehouse().to_owned();
    let store = lakeward::storage::open(&folder, &lakeward::storage::StoreOptions::default()).unwrap();
    let root = path::table(&place.database, &place.table);
    let lake = LakeTable::open(store, root, stage.runtime.clone()).await.unwrap().unwrap();
    let mut schema = (**lake.schema()).clone();
    schema.id += 1;
    change(&mut schema);
    let file = lake.object(&path::schema(schema.id));
    lake.store().put(&file, schema.to_json().unwrap().into()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lake_table_that_was_changed_by_hand_is_held_with_every_difference_and_the_ddl_until_it_is_repaired() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    let other = stage.table("others", &events()).await;
    stage.append(&path, 0..50, "a").await;
    assert_eq!(stage.tier().await.len(), 2);
    stage.append(&path, 50..100, "a").await;
    stage.append(&other, 0..10, "").await;
    let required = DataType::required(TypeKind::Int);
    by_hand(&stage, &path, |schema| {
        "text".clone_into(&mut schema.fields[1].name);
        schema.fields.push(Field { id: 3, name: "extra".into(), data_type: required, comment: None });
        schema.highest_field_id = 3;
    })
    .await;
    let server = stage.address();
    let ended = run(&["run", "--server", &server, "--once"], None).await;
    assert_eq!(ended.code, Some(5), "{ended:?}");
    for said in [
        "table held",
        "the lake table of `demo.orders` does not fit",
        "its column `text` is `words` in Fluss",
        "its column `extra INT NOT NULL` is not in Fluss",
        "ALTER TABLE `demo`.`orders` RENAME `text` TO `words`",
        "ALTER TABLE `demo`.`orders` MODIFY `extra` INT",
    ] {
        assert!(ended.stderr.contains(said), "`{said}` is not in: {}", ended.stderr);
    }
    assert_eq!(stage.ids(&other).await, Vec::from_iter(0..10), "one table's trouble is its own");
    let planned = run(&["plan", "--server", &server, "demo.orders", "--json"], None).await;
    let fault = &planned.json()[0]["faults"][0];
    assert_eq!((planned.code, &fault["kind"]), (Some(5), &serde_json::json!("data")), "{planned:?}");
    assert!(fault["hint"].as_str().unwrap().contains("RENAME `text` TO `words`"), "{fault}");

    // Repaired as it says: what was the user's own stays, as NULL.
    by_hand(&stage, &path, |schema| {
        "words".clone_into(&mut schema.fields[1].name);
        schema.fields[3].data_type.nullable = true;
    })
    .await;
    assert_eq!(stage.tier().await.iter().flatten().count(), 1);
    assert_eq!(texts(&stage, &path, "words").await, expected("words", 100, 0..100));
    let lake = stage.lake(&path).await;
    let batches = lake.read_rows(&newest(&lake).await.unwrap(), None, Some(&["extra"])).await.unwrap();
    assert_eq!(batches.iter().map(|batch| batch.column(0).null_count()).sum::<usize>(), 100);
    check_statistics(&stage, &path).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nested_columns_are_added_like_others_and_old_rows_have_null() {
    let stage = Stage::new().await;
    let path = stage.table("events", &events()).await;
    stage.append(&path, 0..10, "").await;
    assert_eq!(stage.tier().await, [Some(1)]);
    let x = field("x", TypeKind::Int, true);
    let row = TypeKind::Row(vec![Field { id: 1, ..field("tags", TypeKind::Array(Box::new(x.data_type.clone())), true) }, x]);
    let list = TypeKind::Array(Box::new(DataType::nullable(row.clone())));
    stage.admin.add_columns(&path, &[field("one", row, true)]).await.map_err(|error| error.chain()).unwrap();
    // The second one the lake learns from a round.
    stage.admin.add_columns(&path, &[field("many", list, true)]).await.map_err(|error| error.chain()).unwrap();
    let altered = stage.lake(&path).await;
    let place = altered.object(&path::schema(2));
    let coordinators = altered.store().get(&place).await.unwrap().unwrap();
    altered.store().delete(&place).await.unwrap();

    let mut writer = Writer::open(&stage.cluster, &path, WriterOptions::default()).await.unwrap();
    let lines = [
        r#"{"id": 10, "words": "w", "one": {"tags": [1, null], "x": 5}, "many": [{"tags": [], "x": 1}, null]}"#,
        r#"{"id": 11, "words": "w", "one": null, "many": []}"#,
    ];
    let mut decoder = arrow_json::ReaderBuilder::new(writer.schema()).build_decoder().unwrap();
    decoder.decode(lines.join("\n").as_bytes()).unwrap();
    writer.append(&decoder.flush().unwrap().unwrap()).await.map_err(|error| error.chain()).unwrap();
    assert_eq!(stage.tier().await, [Some(2)]);

    let lake = stage.lake(&path).await;
    let schema = |bytes: &[u8]| TableSchema { time_ms: 0, ..TableSchema::from_json(std::str::from_utf8(bytes).unwrap()).unwrap() };
    let ours = lake.store().get(&place).await.unwrap().unwrap();
    assert_eq!(schema(&ours), schema(&coordinators), "ids inside of types too");
    let batches = lake.read_rows(&newest(&lake).await.unwrap(), None, None).await.map_err(|error| error.chain()).unwrap();
    let all = concat_batches(&batches[0].schema(), &batches).unwrap();
    assert_eq!(all.num_rows(), 12);
    let mut told = arrow_json::LineDelimitedWriter::new(Vec::new());
    told.write(&all).unwrap();
    told.finish().unwrap();
    let told = String::from_utf8(told.into_inner()).unwrap();
    for line in told.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()) {
        let wanted = match line["id"].as_i64().unwrap() {
            10 => serde_json::json!([{"tags": [1, null], "x": 5}, [{"tags": [], "x": 1}, null]]),
            11 => serde_json::json!([null, []]),
            _ => serde_json::json!([null, null]),
        };
        assert_eq!((&line["one"], &line["many"]), (&wanted[0], &wanted[1]), "{line}");
    }
}
