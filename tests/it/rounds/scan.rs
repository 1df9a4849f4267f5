//! `scan`: lake and log together, beside rounds and a rescale, and what is printed of it.

use lakeward::audit::scan::{Options, Scan};
use lakeward::error::Kind;
use lakeward::model::Datum;
use lakeward::paimon::BinaryRow;

use super::binary::{run, run_unread};
use super::verify::{audited, commit, copied};
use super::*;

/// Partition, and id of every row, in the order of the scan.
async fn scanned(stage: &Stage, path: &TablePath, options: &Options) -> Vec<(String, i64)> {
    let mut scan = Scan::open(&audited(stage, path).await, options).await.map_err(|error| error.chain()).unwrap();
    let mut rows = Vec::new();
    while let Some(batch) = scan.next_batch().await.map_err(|error| error.chain()).unwrap() {
        assert!(batch.num_rows() > 0);
        let days = batch.column_by_name("day").unwrap().as_string::<i32>().clone();
        let ids = batch.column_by_name("id").unwrap().as_primitive::<Int64Type>().clone();
        rows.extend(days.iter().zip(ids.values()).map(|(day, id)| (day.unwrap().to_owned(), *id)));
    }
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_has_every_row_once_while_rounds_commit_and_the_table_is_rescaled() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    assert_eq!(scanned(&stage, &path, &Options::default()).await, vec![]);
    let mut model: Vec<(String, i64)> = Vec::new();
    for (step, day) in ["a", "a", "b", "a", "c", "b", "d"].iter().enumerate() {
        let from = i64::try_from(step).unwrap() * 100;
        if step == 2 || step == 4 {
            stage.admin.alter_bucket_count(&path, if step == 2 { 4 } else { 3 }).await.unwrap();
        }
        stage.append(&path, from..from + 70, day).await;
        model.extend((from..from + 70).map(|id| ((*day).to_owned(), id)));
        model.sort();
        // From the log alone, then while a round brings it into the lake.
        if step % 2 == 0 {
            assert_eq!(scanned(&stage, &path, &Options::default()).await.len(), model.len());
        }
        let options = Options::default();
        let (_, found) = tokio::join!(stage.tier(), scanned(&stage, &path, &options));
        let again = scanned(&stage, &path, &Options::default()).await;
        assert_eq!(again, scanned(&stage, &path, &Options::default()).await, "the order of a table at rest is the same each time");
        assert!(again.is_sorted_by_key(|(day, _)| day.clone()), "partitions come in the order of their names");
        for mut found in [found, again] {
            found.sort();
            assert_eq!(found, model, "step {step}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_scan_prints_and_how_it_ends() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 6..8, "a").await;
    stage.tier().await;
    stage.append(&path, 8..9, "b").await;
    stage.tier().await;
    stage.append(&path, 9..10, "a").await;
    let address = stage.address();
    let scan = async |more: &[&str]| run(&[&["scan", "demo.orders", "--server", &address], more].concat(), None).await;
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let all = scan(&[]).await;
    assert_eq!((all.code, all.stderr.as_str()), (Some(0), ""), "{all:?}");
    let rows = [
        r#"{"id":6,"words":"words of 6","day":"a"}"#,
        r#"{"id":7,"words":null,"day":"a"}"#,
        r#"{"id":8,"words":"words of 8","day":"b"}"#,
        r#"{"id":9,"words":"words of 9","day":"a"}"#,
    ];
    assert_eq!(sorted(&all.stdout), rows);
    let csv = scan(&["--format", "csv", "--columns", "day,id", "--partition", "day=a"]).await;
    assert_eq!(csv.stdout.lines().next(), Some("day,id"));
    assert_eq!(sorted(&csv.stdout), ["a,6", "a,7", "a,9", "day,id"]);
    for (more, expected) in [
        (&["--count"][..], "4\n"),
        (&["--count", "--partition", "day=a"], "3\n"),
        (&["--count", "--snapshot", "1"], "2\n"),
        (&["--count", "--snapshot", "2"], "3\n"),
        (&["--count", "--limit", "2"], "2\n"),
        (&["--limit", "0"], ""),
    ] {
        let ended = scan(more).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), expected), "{more:?}: {ended:?}");
    }
    let limited = scan(&["--limit", "3"]).await;
    assert_eq!(limited.stdout.lines().collect::<Vec<_>>(), all.stdout.lines().take(3).collect::<Vec<_>>());
    assert_eq!(run_unread(&["scan", "demo.orders", "--server", &address]).await.code, Some(0), "who has seen enough may go");
    for (more, code, said) in [
        (&["--columns", "id,nothing"][..], 2, "there is `id`, `words`, `day`"),
        (&["--columns", "id,id"], 2, "named twice"),
        (&["--snapshot", "9"], 2, "there is snapshot 1 to 2"),
        (&["--partition", "day=x"], 2, "has no partition `day=x`"),
        (&["--count", "--columns", "id"], 2, "cannot be used with"),
    ] {
        let ended = scan(more).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(code), ""), "{more:?}: {ended:?}");
        assert!(ended.stderr.contains(said), "`{said}` is not in: {}", ended.stderr);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_the_partition_does_not_have_fails_the_scan_before_any_row() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 0..60, "a").await;
    stage.append(&path, 60..90, "b").await;
    stage.tier().await;
    let lake = stage.lake(&path).await;
    let wrong = copied(&lake, 0, "data-wrong-0.parquet", |entry| (entry.bucket, entry.total_buckets) = (2, 4)).await;
    let day = path::partition_path(lake.schema(), &wrong.partition).unwrap();
    commit(&lake, "somebody", "APPEND", vec![wrong], &[]).await;
    let address = stage.address();
    let scan = ["scan", "demo.orders", "--server", &address];
    let ended = run(&scan, None).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""), "{ended:?}");
    for said in [
        format!("error: the lake has rows of bucket `2` of partition `{day}` of `demo.orders`, which has `2` buckets"),
        format!(
            "hint: `lakeward verify demo.orders` tells more; `lakeward repair rewrite-partition demo.orders --partition {day}` shows"
        ),
    ] {
        assert!(ended.stderr.contains(&said), "`{said}` is not in: {}", ended.stderr);
    }
    // A snapshot is read by itself as its own files say.
    let before = run(&[&scan[..], &["--snapshot", "1", "--count"]].concat(), None).await;
    assert_eq!((before.code, before.stdout.as_str()), (Some(0), "90\n"), "{before:?}");

    // Rows of a partition that Fluss no longer has are read as well.
    let types = lake.schema().partition_types().unwrap();
    let other = BinaryRow::write(&[Some(Datum::String("z".into()))], &types).unwrap();
    std::fs::remove_file(lake.store().local_root().unwrap().join(lake.root()).join("snapshot/snapshot-2")).unwrap();
    std::fs::write(lake.store().local_root().unwrap().join(lake.root()).join("snapshot/LATEST"), "1").unwrap();
    let dropped = copied(&lake, 0, "data-dropped-0.parquet", |entry| entry.partition = other).await;
    let rows = dropped.file.row_count;
    commit(&lake, "somebody", "APPEND", vec![dropped], &[]).await;
    assert_eq!(scanned(&stage, &path, &Options::default()).await.len(), 90 + usize::try_from(rows).unwrap());
    let only = Options { columns: Some(vec!["nothing".into()]), ..Options::default() };
    assert_eq!(Scan::open(&audited(&stage, &path).await, &only).await.unwrap_err().kind(), Kind::Invalid);
}
