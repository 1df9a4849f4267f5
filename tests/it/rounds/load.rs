//! `lakeward load`: files into tables of a node, tiered and read back; what stops it, and how to go on.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use arrow_array::types::Int32Type;
use lakeward::model::{BucketLayout, DataType};
use parquet::arrow::ArrowWriter;

use super::binary::{Ended, json, run};
use super::rescale::assert_each_row_is_in_its_bucket;
use super::*;

/// More than one chunk of a file.
const CHUNK: usize = 9 << 20;

/// Lines of [`orders`], `words` long enough that a chunk is soon full.
fn lines(ids: Range<i64>, day: impl Fn(i64) -> String) -> String {
    let mut text = String::new();
    for id in ids {
        writeln!(text, r#"{{"id":{id},"day":"{}","words":"words of {id} {:-<500}"}}"#, day(id), "").unwrap();
    }
    text
}

/// The binary loads what is written to its standard input.
struct Loading(Child);

impl Loading {
    fn start(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lakeward"));
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    async fn write(&mut self, text: String) {
        let mut stdin = self.0.stdin.take().unwrap();
        let written = tokio::task::spawn_blocking(move || {
            // It may have ended already.
            drop(stdin.write_all(text.as_bytes()));
            stdin
        });
        self.0.stdin = Some(written.await.unwrap());
    }

    /// Closes its input and waits for its end.
    async fn end(mut self) -> Ended {
        drop(self.0.stdin.take());
        self.wait().await
    }

    async fn wait(self) -> Ended {
        tokio::task::spawn_blocking(move || self.0.wait_with_output().unwrap().into()).await.unwrap()
    }
}

fn put(folder: &Path, name: &str, bytes: impl AsRef<[u8]>) -> String {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

fn texts(files: &[LakeFile], column: &str) -> BTreeMap<i64, Option<String>> {
    let mut found = BTreeMap::new();
    for file in files {
        let texts = file.rows.column_by_name(column).unwrap().as_string::<i32>();
        found.extend(file.ids().into_iter().zip(texts.iter().map(|text| text.map(str::to_owned))));
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_csv_and_parquet_are_loaded_tiered_and_read_back_equal() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    let folder = stage.dir.path();
    let json_file = put(folder, "a.jsonl", "{\"id\":1,\"day\":\"a\",\"words\":\"one\"}\n{\"day\":\"b\",\"id\":2}\n");
    let csv_file = put(folder, "b.csv", "day,words,id\na,\"th\nree\",3\nb,,4\n");
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![5, 6]));
    let (days, words) = (Arc::new(StringArray::from(vec!["c", "a"])), Arc::new(StringArray::from(vec![None, Some("six")])));
    let rows = RecordBatch::try_from_iter([("id", ids), ("words", words), ("day", days)]).unwrap();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, rows.schema(), None).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
    let parquet_file = put(folder, "c.parquet", bytes);

    let server = stage.address();
    let ended = run(&["load", "--server", &server, "demo.orders", &json_file, &csv_file, &parquet_file, "--json"], None).await;
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let report = &ended.json()[0];
    assert_eq!((&report["complete"], &report["rows"], &report["partitions_made"]), (&true.into(), &6.into(), &3.into()));
    assert_eq!(stage.tier().await, [Some(1)]);
    let files = stage.files(&path).await;
    let expected = [(1, Some("one")), (2, None), (3, Some("th\nree")), (4, None), (5, None), (6, Some("six"))];
    assert_eq!(texts(&files, "words"), expected.map(|(id, text)| (id, text.map(str::to_owned))).into());
    let days = ["a", "b", "a", "b", "c", "a"].into_iter().zip(1..).map(|(day, id)| (id, Some(day.to_owned())));
    assert_eq!(texts(&files, "day"), days.collect());
    assert_each_row_is_in_its_bucket(&stage.info(&path).await, &files);

    // Text is for people: one line.
    let ended = run(&["load", "--server", &server, "demo.orders", &json_file], None).await;
    assert!(ended.stdout.starts_with("demo.orders: 2 rows in 2 batches, ") && ended.stdout.lines().count() == 1, "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rescale_in_the_middle_of_a_load_keeps_each_row_once_and_each_key_in_order() {
    let stage = Stage::new().await;
    let mut table = orders();
    table.schema.fields.push(Field { id: 3, ..field("turn", TypeKind::Int, false) });
    table.schema.highest_field_id = 3;
    let path = stage.table("orders", &table).await;
    let mut loading = Loading::start(&["load", "--server", &stage.address(), "demo.orders", "-", "--json"]);
    // Keys come again and again; days turn up one after the other.
    let text = |turns: Range<i64>| {
        let mut text = String::new();
        for turn in turns {
            for id in 0..1000 {
                let day = ["a", "b", "c", "d"][usize::try_from((turn / 10 + id % 2).min(3)).unwrap()];
                writeln!(text, r#"{{"id":{id},"day":"{day}","turn":{turn},"words":"{:-<500}"}}"#, id % 7).unwrap();
            }
        }
        text
    };
    loading.write(text(0..18)).await;
    until(&stage.runtime, "the first partitions are there", async || {
        (stage.admin.partitions(&path).await.unwrap().len() >= 2).then_some(())
    })
    .await;
    stage.admin.alter_bucket_count(&path, 5).await.unwrap();
    loading.write(text(18..40)).await;
    let ended = loading.end().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.json()[0]["rows"], 40_000);

    let table = stage.info(&path).await;
    let partitions = stage.admin.partitions(&path).await.unwrap();
    let counts: BTreeMap<String, i32> =
        partitions.iter().map(|partition| (partition.name(), BucketLayout::of(&table, Some(partition)).unwrap().count)).collect();
    assert_eq!((counts["a"], counts["d"], counts.len()), (2, 5, 4), "{counts:?}");
    assert_eq!(stage.tier().await, [Some(1)]);
    let mut files = stage.files(&path).await;
    assert_each_row_is_in_its_bucket(&table, &files);
    files.sort_by_key(|file| file.entry.file.min_sequence_number);
    let mut turns: BTreeMap<(String, i64), Vec<i32>> = BTreeMap::new();
    for file in &files {
        let values = file.rows.column_by_name("turn").unwrap().as_primitive::<Int32Type>().values();
        for (id, turn) in file.ids().into_iter().zip(values) {
            turns.entry((file.partition.clone(), id)).or_default().push(*turn);
        }
    }
    assert!(turns.values().all(|turns| turns.windows(2).all(|pair| pair[0] < pair[1])), "a key is out of order");
    let mut all: Vec<(i64, i32)> = turns.iter().flat_map(|((_, id), turns)| turns.iter().map(|turn| (*id, *turn))).collect();
    all.sort_unstable();
    assert_eq!(all, (0..1000).flat_map(|id| (0..40).map(move |turn| (id, turn))).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_fails_says_where_to_go_on_and_going_on_completes_it() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    let server = stage.address();
    let mut text = lines(0..20_000, |_| "a".to_owned());
    text.push_str("{\"id\":20000,\"day\":\"a\",\"words\":7,\"price\":1}\n");
    text.push_str(&lines(20_001..20_010, |_| "b".to_owned()));
    assert!(text.len() > CHUNK);
    let file = put(stage.dir.path(), "rows.json", &text);
    let ended = run(&["load", "--server", &server, "demo.orders", &file, "--json"], None).await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    for said in ["rows.json` line 20001: the table has no column `price`", "hint: ", "with `--from-line "] {
        assert!(ended.stderr.contains(said), "`{said}` is not in: {}", ended.stderr);
    }
    let report = &ended.json()[0];
    let (rows, line) = (report["rows"].as_i64().unwrap(), report["go_on"]["line"].as_i64().unwrap());
    assert_eq!((&report["complete"], &report["rows_beyond"], line), (&false.into(), &0.into(), rows + 1));
    assert!(rows > 10_000, "{report}");

    let from = line.to_string();
    let again = ["load", "--server", &server, "demo.orders", &file, "--from-line", &from, "--skip-bad", "1"];
    let ended = run(&again, None).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.starts_with("left out: `") && ended.stderr.contains("line 20001"), "{}", ended.stderr);
    assert!(ended.stdout.contains("1 bad rows left out") && ended.stdout.contains("1 partitions made"), "{}", ended.stdout);
    assert_eq!(stage.tier().await, [Some(1)]);
    assert_eq!(stage.ids(&path).await, all(&[0..20_000, 20_001..20_010]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_is_dropped_under_a_load_ends_it_with_the_line() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    let mut loading = Loading::start(&["load", "--server", &stage.address(), "demo.orders", "-", "--json"]);
    let first = lines(0..20_000, |_| "a".to_owned());
    assert!(first.len() > CHUNK);
    loading.write(first).await;
    let found = until(&stage.runtime, "the partition is there", async || stage.admin.partitions(&path).await.unwrap().pop()).await;
    // Dropped before a row went there it would be made again, and nothing be lost.
    let rounds = stage.rounds();
    let arrived = async || round::log_ends(&rounds, &path).await.ok()?.buckets.iter().any(|(_, _, end)| *end > 0).then_some(());
    until(&stage.runtime, "rows are in it", arrived).await;
    stage.admin.drop_partition(&path, &found.spec, false).await.unwrap();
    loading.write(lines(20_000..40_000, |_| "a".to_owned())).await;
    let ended = loading.end().await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("partition `a` of table `demo.orders` was dropped while rows were written to it"), "{ended:?}");
    let line = ended.json()[0]["go_on"]["line"].as_u64().unwrap();
    assert!(ended.stderr.contains(&format!("`-` line {line}: partition")), "{line}: {}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_is_asked_to_stop_says_where_to_go_on() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    let mut loading = Loading::start(&["load", "--server", &stage.address(), "demo.orders", "-", "--json"]);
    loading.write(lines(0..20_000, |_| "a".to_owned())).await;
    until(&stage.runtime, "the partition is there", async || stage.admin.partitions(&path).await.unwrap().pop()).await;
    let sent = Command::new("kill").args(["-INT", &loading.0.id().to_string()]).status().unwrap();
    assert!(sent.success());
    // Its input stays open: it does not wait for more.
    let stdin = loading.0.stdin.take();
    let ended = loading.wait().await;
    drop(stdin);
    assert_eq!(ended.code, Some(130), "{ended:?}");
    let report = &ended.json()[0];
    let rows = report["rows"].as_i64().unwrap();
    assert_eq!((&report["complete"], &report["go_on"]["line"]), (&false.into(), &(rows + 1).into()), "{report}");
    stage.tier().await;
    assert_eq!(stage.ids(&path).await, Vec::from_iter(0..rows));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_is_made_from_a_ddl_or_flags_and_one_that_differs_is_refused() {
    let stage = Stage::new().await;
    let folder = stage.dir.path();
    let rows = put(folder, "rows.json", "{\"id\":1,\"at\":\"2024-02-29T12:00:00Z\",\"tags\":[\"x\"]}\n");
    let ddl = put(
        folder,
        "t.sql",
        "CREATE TABLE made.t (id BIGINT NOT NULL, at TIMESTAMP_LTZ(3), tags ARRAY<STRING>)\n\
         WITH ('bucket.num' = '3', 'bucket.key' = 'id', 'table.datalake.enabled' = 'true', 'table.datalake.freshness' = '0ms')",
    );
    let server = stage.address();
    let load = ["load", "--server", &server, "made.t", &rows, "--create"];
    for _ in 0..2 {
        let ended = run(&[&load[..], &["--ddl", &ddl]].concat(), None).await;
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    }
    let found = stage.info(&TablePath::new("made", "t")).await;
    assert_eq!((found.bucket_count, found.bucket_keys.as_slice()), (3, &["id".to_owned()][..]));
    assert_eq!(found.schema.fields[1].data_type, DataType::nullable(TypeKind::TimestampLtz { precision: 3 }));
    assert_eq!(found.property("table.datalake.enabled"), Some("true"));

    let flags = ["--column", "id:BIGINT NOT NULL", "--column", "at:TIMESTAMP(3)", "--bucket-key", "id", "--buckets", "4"];
    let ended = run(&[&load[..], &flags].concat(), None).await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let said = "column 2: `at TIMESTAMP(3)` wanted, `at TIMESTAMP(3) WITH LOCAL TIME ZONE` in the table; column 3: `tags ARRAY<STRING>` in the table only";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    let flags = [
        "--column",
        "id:BIGINT NOT NULL",
        "--column",
        "at:TIMESTAMP_LTZ(3)",
        "--column",
        "tags:ARRAY<STRING>",
        "--bucket-key",
        "id",
        "--buckets",
        "4",
        "--option",
        "table.datalake.freshness=5s",
    ];
    let ended = run(&[&load[..], &flags].concat(), None).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for said in ["`bucket.num` is 3, not 4", "`table.datalake.freshness` is `0ms`, not `5s`"] {
        assert!(ended.stderr.contains(said), "`{said}` is not in: {}", ended.stderr);
    }
    let by_flags = ["load", "--server", &server, "made.u", &rows, "--create"];
    let ended = run(&[&by_flags[..], &flags, &["--partition-by", "id"]].concat(), None).await;
    assert_eq!(ended.code, Some(2), "a bucket key that is a partition key: {ended:?}");
    let ended = run(&[&by_flags[..], &flags].concat(), None).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(stage.info(&TablePath::new("made", "u")).await.bucket_count, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_not_be_loaded_ends_with_the_code_that_the_readme_lists() {
    let stage = Stage::new().await;
    stage.table("orders", &orders()).await;
    let folder = stage.dir.path();
    let rows = put(folder, "rows.json", "{\"id\":1,\"day\":\"a\"}\n");
    let packed = put(folder, "rows.json.gz", "x");
    let primary = put(
        folder,
        "pk.sql",
        "CREATE TABLE t (id INT PRIMARY KEY NOT ENFORCED, day STRING) WITH ('table.merge-engine' = 'first_row')",
    );
    let wrong_day = put(folder, "day.json", "{\"id\":1,\"day\":\"a\"}\n\n{\"id\":2,\"day\":\"a b\"}\n");
    let server = stage.address();
    for (args, code, said) in [
        (&["--server", "127.0.0.1:1", "demo.orders", &rows][..], 3, "127.0.0.1:1"),
        (&["--server", &server, "demo.nothing", &rows], 2, "hint: `--create` makes it"),
        (&["--server", &server, "demo.orders", "/nowhere.json"], 2, "/nowhere.json"),
        (&["--server", &server, "demo.orders", &packed], 4, "zcat"),
        (&["--server", &server, "demo.orders", "-", "-"], 2, "once only"),
        (&["--server", &server, "demo.t", &rows, "--create", "--ddl", &primary], 2, "merge engines"),
        (&["--server", &server, "demo.t", &rows, "--create"], 2, "--ddl"),
        (&["--server", &server, "demo.t", &rows, "--create", "--column", "id:INTT"], 2, "`INTT` is no type"),
        (&["--server", &server, "demo.orders", &rows, "--no-new-partitions"], 2, "has no partition `a`"),
        (&["--server", &server, "demo.orders", &wrong_day], 2, "day.json` line 3"),
    ] {
        let ended = run(&[&["load"], args].concat(), None).await;
        assert_eq!(ended.code, Some(code), "{args:?}: {ended:?}");
        assert!(ended.stderr.contains(said), "{args:?}: {}", ended.stderr);
        assert_eq!(json(&ended.stdout).len(), 0, "{args:?}: an error is no data");
    }
}
