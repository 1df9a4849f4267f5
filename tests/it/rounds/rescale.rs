//! A table whose bucket count changes: each partition keeps the one it was made with.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

use arrow_array::RecordBatch;
use lakeward::error::Kind;
use lakeward::fluss::bucket::{BucketFunction, buckets_of};
use lakeward::model::{BucketLayout, TableInfo, TypeKind};
use serde_json::json as value;

use super::binary::{run, run_unread};
use super::*;

/// What changes of a file when anybody touches it.
fn identity(file: &LakeFile) -> (String, u64, u64, (i64, i64)) {
    let meta = std::fs::metadata(&file.place).unwrap();
    (file.entry.file.file_name.clone(), meta.ino(), meta.len(), (meta.mtime(), meta.mtime_nsec()))
}

pub(super) fn assert_each_row_is_in_its_bucket(table: &TableInfo, files: &[LakeFile]) {
    let function = BucketFunction::of(table).unwrap();
    for file in files {
        let key = file.rows.column_by_name("id").unwrap();
        let buckets = buckets_of(function, &[(&TypeKind::BigInt, key)], file.entry.total_buckets).unwrap();
        assert!(buckets.iter().all(|bucket| *bucket == file.entry.bucket), "{:?}", file.place);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_of_two_four_and_three_buckets_are_tiered_side_by_side() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 0..200, "a").await;
    assert_eq!(stage.tier().await, [Some(1)]);
    let first = stage.files(&path).await;
    assert_eq!(ids(&first), Vec::from_iter(0..200));
    let untouched: Vec<_> = first.iter().map(identity).collect();
    assert_eq!(untouched.len(), 2, "one file per bucket");

    stage.admin.alter_bucket_count(&path, 4).await.unwrap();
    stage.append(&path, 200..400, "b").await;
    stage.admin.alter_bucket_count(&path, 3).await.unwrap();
    stage.append(&path, 400..600, "c").await;
    stage.append(&path, 600..700, "a").await;
    stage.append(&path, 700..800, "b").await;
    assert_eq!(stage.tier().await, [Some(2)]);

    let files = stage.files(&path).await;
    let counts: Vec<_> = totals(&files).into_iter().collect();
    assert_eq!(counts, [("day=a", 2), ("day=b", 4), ("day=c", 3)].map(|(day, total)| (day.to_owned(), BTreeSet::from([total]))));
    let now: BTreeSet<_> = files.iter().map(identity).collect();
    assert!(untouched.iter().all(|file| now.contains(file)), "old files were touched");
    assert_eq!(ids(&files), Vec::from_iter(0..800));
    let table = stage.info(&path).await;
    assert_each_row_is_in_its_bucket(&table, &files);
    for (day, expected) in
        [("day=a", all(&[0..200, 600..700])), ("day=b", all(&[200..400, 700..800])), ("day=c", Vec::from_iter(400..600))]
    {
        let mut found: Vec<i64> = files.iter().filter(|file| file.partition == day).flat_map(LakeFile::ids).collect();
        found.sort_unstable();
        assert_eq!(found, expected, "{day}");
    }
    assert_eq!(stage.lake(&path).await.schema().option("bucket"), Some("3"));
    let layouts: Vec<_> = stage
        .admin
        .partitions(&path)
        .await
        .unwrap()
        .iter()
        .map(|partition| BucketLayout::of(&table, Some(partition)).unwrap().count)
        .collect();
    assert_eq!(layouts.into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([2, 3, 4]));
    // Sequence numbers of a bucket go on where its older file ended.
    for bucket in 0..2 {
        let mut ranges: Vec<_> = files
            .iter()
            .filter(|file| file.partition == "day=a" && file.entry.bucket == bucket)
            .map(|file| (file.entry.file.min_sequence_number, file.entry.file.max_sequence_number))
            .collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "{ranges:?}");
    }
    assert_eq!(stage.tier().await, [None]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_without_bucket_key_stays_bucket_unaware_over_a_rescale() {
    let stage = Stage::new().await;
    let mut table = orders();
    table.bucket_keys.clear();
    let path = stage.table("loose", &table).await;
    stage.append(&path, 0..50, "a").await;
    stage.append(&path, 50..100, "a").await;
    stage.admin.alter_bucket_count(&path, 5).await.unwrap();
    stage.append(&path, 100..150, "b").await;
    assert_eq!(stage.tier().await, [Some(1)]);
    stage.append(&path, 150..200, "b").await;
    assert_eq!(stage.tier().await, [Some(2)]);
    let files = stage.files(&path).await;
    assert!(files.iter().all(|file| (file.entry.bucket, file.entry.total_buckets) == (0, -1)));
    assert_eq!(ids(&files), Vec::from_iter(0..200));
    assert_eq!(stage.lake(&path).await.schema().option("bucket"), Some("-1"));
    let rows: usize = files.iter().map(|file| RecordBatch::num_rows(&file.rows)).sum();
    assert_eq!(rows, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_made_again_with_another_count_holds_the_table_before_anything_is_written() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 0..100, "a").await;
    assert_eq!(stage.tier().await, [Some(1)]);
    let before = stage.lake(&path).await.store().list("demo.db/orders").await.unwrap();
    stage.admin.alter_bucket_count(&path, 4).await.unwrap();
    stage.admin.drop_partition(&path, &spec("a"), false).await.unwrap();
    stage.append(&path, 100..200, "a").await;
    let other = stage.table("other", &orders()).await;
    stage.append(&other, 0..50, "a").await;
    let (report, rounds) = stage.run_once().await;
    assert_eq!((report.faults.len(), rounds.len()), (1, 1));
    assert_eq!(stage.ids(&other).await, Vec::from_iter(0..50), "others go on");
    let (_, fault) = &report.faults[0];
    assert_eq!(fault.kind(), Kind::Data, "{}", fault.chain());
    for said in ["partition `a` of table `demo.orders`", "files of `2` buckets in the lake", "`4` buckets in Fluss"] {
        assert!(fault.chain().contains(said), "`{said}` is not in: {}", fault.chain());
    }
    let hint = fault.hint().unwrap();
    for said in [
        "by `4` buckets: CALL sys.rescale(`table` => 'demo.orders', `bucket_num` => 4, `partition` => 'day=a');",
        "ALTER TABLE `demo`.`orders` DROP PARTITION (`day` = 'a')",
    ] {
        assert!(hint.contains(said), "`{said}` is not in: {hint}");
    }
    let mut now = stage.lake(&path).await.store().list("demo.db/orders").await.unwrap();
    now.retain(|found| !before.iter().any(|old| old.path == found.path));
    assert_eq!(now.iter().map(|found| found.path.as_str()).collect::<Vec<_>>(), ["demo.db/orders/schema/schema-1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_shows_before_it_acts_and_may_be_run_again() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 0..100, "a").await;
    let address = stage.address();
    let rescale = async |count: &str, more: &[&str]| {
        let command = ["rescale", "demo.orders", count, "--server", &address];
        run(&[&command[..], more].concat(), None).await
    };
    let bucket = async || stage.lake(&path).await.schema().option("bucket").unwrap().to_owned();
    // Without --confirm nothing changes.
    let shown = rescale("4", &[]).await;
    assert_eq!(shown.code, Some(0), "{shown:?}");
    for said in
        ["bucket.num 2 → 4", "epoch 0 → 1", "option bucket 2 → 4", "1 partition keeps 2 buckets: a", "note: this is the first"]
    {
        assert!(shown.stdout.contains(said), "`{said}` is not in {}", shown.stdout);
    }
    assert!(shown.stderr.contains("add --confirm"), "{}", shown.stderr);
    let before = stage.info(&path).await;
    assert_eq!((before.bucket_count, before.bucket_count_epoch.0, bucket().await), (2, 0, "2".to_owned()));

    let changed = rescale("4", &["--confirm"]).await;
    assert_eq!(changed.code, Some(0), "{changed:?}");
    assert!(changed.stdout.ends_with("changed: new partitions of demo.orders have 4 buckets, bucket count epoch 1\n"));
    let after = stage.info(&path).await;
    assert_eq!((after.bucket_count, after.bucket_count_epoch.0, bucket().await), (4, 1, "4".to_owned()));
    let again = rescale("4", &["--confirm", "--json"]).await;
    let report = &again.json()[0];
    assert_eq!((again.code, &report["outcome"], &report["epoch"]["to"]), (Some(0), &value!("unchanged"), &value!(1)), "{again:?}");

    // The lake's count was set back by hand: the coordinator would not look, so the command mends it.
    let set_back = |_: &_| Ok(vec![lakeward::lake::SchemaChange::BucketCount(7)]);
    assert!(stage.lake(&path).await.alter(set_back).await.unwrap());
    let mended = rescale("4", &["--confirm", "--json"]).await;
    let report = &mended.json()[0];
    assert_eq!(
        (mended.code, &report["outcome"], &report["lake_bucket"]),
        (Some(0), &value!("changed"), &value!({"from": 7, "to": 4}))
    );
    assert_eq!((stage.info(&path).await.bucket_count_epoch.0, bucket().await), (1, "4".to_owned()));

    // A new partition has the new count, and all of it is tiered.
    stage.append(&path, 100..200, "b").await;
    let shown = rescale("1", &["--json"]).await;
    let report = &shown.json()[0];
    let partitions = value!([
        {"partition": "a", "buckets": 2, "origin": "own"}, {"partition": "b", "buckets": 4, "origin": "own"}
    ]);
    assert_eq!((&report["outcome"], &report["partitions"]), (&value!("shown"), &partitions), "{shown:?}");
    assert_eq!(stage.tier().await, [Some(1)]);
    let counts = totals(&stage.files(&path).await);
    assert_eq!(counts, [("day=a", 2), ("day=b", 4)].map(|(day, total)| (day.to_owned(), BTreeSet::from([total]))).into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_refuses_what_the_coordinator_would_and_says_what_it_refused_itself() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    let mut plain = orders();
    plain.partition_keys.clear();
    stage.table("plain", &plain).await;
    let address = stage.address();
    let rescale =
        async |table: &str, count: &str| run(&["rescale", table, count, "--server", &address, "--confirm", "--json"], None).await;
    let refused = rescale("demo.plain", "4").await;
    assert_eq!((refused.code, &refused.json()[0]["outcome"]), (Some(4), &value!("refused")), "{refused:?}");
    assert!(refused.stderr.contains("has no partitions"), "{refused:?}");
    for (count, code) in [("0", 2), ("-1", 2), ("many", 2), ("3000000000", 2)] {
        assert_eq!(rescale("demo.orders", count).await.code, Some(code), "{count}");
    }
    // Only the server knows its bound: its answer comes with its code.
    let refused = rescale("demo.orders", "1000000").await;
    assert_eq!(refused.code, Some(4), "{refused:?}");
    for said in ["max.bucket.num", "error 49 TooManyBuckets"] {
        assert!(refused.stderr.contains(said), "`{said}` is not in {}", refused.stderr);
    }
    assert_eq!(rescale("demo.nothing", "4").await.code, Some(2));
    // The lake's table is gone: lake first, so nothing changes, and what to do is said.
    let lake = stage.lake(&path).await;
    let (at, aside) = (lake.store().local_root().unwrap().join(lake.root()), stage.dir.path().join("aside"));
    std::fs::rename(&at, &aside).unwrap();
    let failed = rescale("demo.orders", "4").await;
    assert!(matches!(failed.code, Some(3 | 5)), "{failed:?}");
    assert!(failed.stderr.contains("run the same"), "{failed:?}");
    assert_eq!(stage.info(&path).await.bucket_count_epoch.0, 0);
    std::fs::rename(&aside, &at).unwrap();
    let healed = rescale("demo.orders", "4").await;
    assert_eq!((healed.code, stage.info(&path).await.bucket_count), (Some(0), 4), "{healed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_reads_is_neither_done_nor_a_success() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    let mut plain = orders();
    plain.partition_keys.clear();
    stage.table("plain", &plain).await;
    let address = stage.address();
    let rescale = async |table: &str, more: &[&str]| {
        let command = ["rescale", table, "4", "--server", &address];
        run_unread(&[&command[..], more].concat()).await
    };
    let ended = rescale("demo.orders", &[]).await;
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "a reader that leaves early is a clean end");
    let ended = rescale("demo.orders", &["--confirm"]).await;
    assert!(ended.code == Some(3) && ended.stderr.contains("nothing was changed"), "{ended:?}");
    assert_eq!(stage.info(&path).await.bucket_count, 2);
    for more in [&["--confirm"][..], &["--confirm", "--json"]] {
        let ended = rescale("demo.plain", more).await;
        assert!(ended.code == Some(4) && ended.stderr.contains("has no partitions"), "{ended:?}");
    }
    // One object of JSON comes after the change.
    assert_eq!(rescale("demo.orders", &["--confirm", "--json"]).await.code, Some(0));
    assert_eq!(stage.info(&path).await.bucket_count, 4);
}

/// The node's DDL refuses such tables: their records come from the registry of the ALTER matrix.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plan_and_the_command_name_lake_formats_that_have_one_count_for_a_table() {
    let stage = Stage::with(|options| {
        let packed = include_bytes!("../../../fixtures/node/registry.redb.zst");
        std::fs::write(options.dir.join("registry.redb"), zstd::stream::decode_all(packed.as_slice()).unwrap()).unwrap();
    })
    .await;
    let address = stage.address();
    for (table, format) in [
        ("iceberg", Some("iceberg")),
        ("hudi", Some("hudi")),
        ("lance", Some("lance")),
        ("iceberg-off", Some("iceberg")),
        ("iceberg-unaware", None),
    ] {
        let name = format!("fluss.{table}");
        let said = format.map(|format| format!("lake format `{format}` has one bucket count for a whole table"));
        let told = |text: &str| said.as_deref().is_some_and(|said| text.contains(said));
        let planned = run(&["plan", &name, "--server", &address, "--json"], None).await;
        assert_eq!(planned.code, Some(4), "{planned:?}");
        let found = &planned.json()[0]["rescale_refused"];
        assert_eq!((found.is_null(), told(&found.to_string())), (said.is_none(), said.is_some()), "{name}: {found}");
        let planned = run(&["plan", &name, "--server", &address], None).await;
        let finding = planned.stdout.lines().find(|line| line.starts_with("  finding: ")).unwrap_or_default();
        assert_eq!((finding.is_empty(), told(finding)), (said.is_none(), said.is_some()), "{planned:?}");
        let rescaled = run(&["rescale", &name, "4", "--server", &address, "--confirm"], None).await;
        let done = if said.is_some() { Some(4) } else { Some(0) };
        assert_eq!((rescaled.code, told(&rescaled.stderr)), (done, said.is_some()), "{rescaled:?}");
        let after = stage.info(&TablePath::new("fluss", table)).await;
        assert_eq!(after.bucket_count, if said.is_some() { 2 } else { 4 }, "{name}");
    }
}

/// Ids of each bucket of each partition, in the order of the files' rows.
async fn logs(stage: &Stage, path: &TablePath) -> BTreeMap<String, BTreeMap<i32, Vec<i64>>> {
    let mut logs: BTreeMap<String, BTreeMap<i32, Vec<i64>>> = BTreeMap::new();
    for file in stage.files(path).await {
        logs.entry(file.partition.clone()).or_default().entry(file.entry.bucket).or_default().extend(file.ids());
    }
    logs
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_writer_goes_on_over_alters_and_routes_partitions_that_it_or_others_make_by_their_own_counts() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    let mut writer = Writer::open(&stage.cluster, &path, WriterOptions::default()).await.unwrap();
    let mut next = 0;
    let mut expected = BTreeMap::new();
    for (turn, count) in [2, 4, 3, 5, 1].into_iter().enumerate() {
        stage.admin.alter_bucket_count(&path, count).await.unwrap();
        let (by_us, by_other) = (format!("w{turn}"), format!("o{turn}"));
        stage.admin.create_partition(&path, &spec(&by_other), false).await.unwrap();
        // The next ALTER comes between the partition of somebody else and our first row for it.
        let after = count % 5 + 1;
        stage.admin.alter_bucket_count(&path, after).await.unwrap();
        for day in [&by_us, &by_other] {
            let batch = rows(&writer, next..next + 50, day);
            writer.append(&batch).await.map_err(|error| error.chain()).unwrap();
            next += 50;
        }
        expected.insert(format!("day={by_us}"), BTreeSet::from([after]));
        expected.insert(format!("day={by_other}"), BTreeSet::from([count]));
        // Rows for every partition so far, in one append.
        for day in 0..=turn {
            let batch = rows(&writer, next..next + 10, &format!("w{day}"));
            writer.append(&batch).await.map_err(|error| error.chain()).unwrap();
            next += 10;
        }
    }
    assert_eq!(stage.tier().await, [Some(1)]);
    let files = stage.files(&path).await;
    assert_eq!(totals(&files), expected);
    assert_eq!(ids(&files), Vec::from_iter(0..next), "nothing lost or doubled");
    assert_each_row_is_in_its_bucket(&stage.info(&path).await, &files);
    // A file is a bucket's log in its order: later appends of a key stand behind earlier ones.
    for (partition, buckets) in logs(&stage, &path).await {
        assert!(buckets.values().all(|ids| ids.is_sorted()), "{partition}");
    }
}
