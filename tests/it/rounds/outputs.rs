//! What `repair`, `orphans` and `inspect` print, word for word, as text and as JSON, and their exit codes. What they do: `repair`.

use std::fs;
use std::time::SystemTime;

use super::binary::run;
use super::repair::tiered_twice_and_tagged;
use super::sync::plain;
use super::*;

/// Commands that were run one after the other, and what they said, without what differs from run to run.
struct Transcript<'a> {
    stage: &'a Stage,
    path: &'a TablePath,
    text: String,
}

impl Transcript<'_> {
    async fn say(&mut self, args: &[&str]) {
        let ended = run(&[args, &["--server", &self.stage.address()]].concat(), None).await;
        self.told(args, &ended).await;
    }

    /// As text, then as JSON.
    async fn both(&mut self, args: &[&str]) {
        self.say(args).await;
        self.say(&[args, &["--json"]].concat()).await;
    }

    async fn told(&mut self, args: &[&str], ended: &binary::Ended) {
        let stderr: String = ended.stderr.lines().map(|line| format!("stderr: {line}\n")).collect();
        let text = format!("$ {}\n{}{stderr}exit {}\n", args.join(" "), ended.stdout, ended.code.unwrap());
        let mut text = masked(&plain(&text, self.stage));
        let lake = self.stage.lake(self.path).await;
        let newest = newest(&lake).await.unwrap();
        let mut sizes: Vec<i64> = lake.manifests(&newest).await.unwrap().iter().map(|manifest| manifest.file_size).collect();
        sizes.extend(lake.live_entries(&newest, None).await.unwrap().iter().map(|entry| entry.file.file_size));
        sizes.extend(lake.live_partitions(&newest, None).await.unwrap().values().map(|partition| partition.bytes));
        sizes.sort_unstable();
        // Compressed bytes, which have three digits at least; no other number here has.
        for size in sizes.iter().rev() {
            text = text.replace(&format!("{},{:03}", size / 1000, size % 1000), "SIZE").replace(&size.to_string(), "SIZE");
        }
        // How often the queue was asked before, and which bucket's file was opened first, is chance.
        for number in 0..100 {
            text = text.replace(&format!("tiering-epoch\":\"{number}\""), "tiering-epoch\":\"EPOCH\"");
            text = text.replace(&format!("tiering-epoch = {number}\n"), "tiering-epoch = EPOCH\n");
            text = text.replace(&format!("UUID-{number}.parquet"), "UUID-N.parquet");
        }
        // Text cuts it where it is long, which is for the folder of this run to say.
        for line in text.split_inclusive('\n') {
            let of_run = line.starts_with("properties fluss-offsets = ");
            self.text.push_str(if of_run { "properties fluss-offsets = PATH\n" } else { line });
        }
    }
}

/// Ids and times by their names. Each is as long in every run: columns stay where they are.
fn masked(mut text: &str) -> String {
    const FORMS: [(&str, &str); 3] =
        [("xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", "UUID"), ("dddd-dd-dd dd:dd:dd UTC", "TIME"), ("ddddddddddddd", "MS")];
    let fits = |form: &str, text: &str| {
        let same = |(form, byte): (u8, u8)| match form {
            b'x' => byte.is_ascii_hexdigit(),
            b'd' => byte.is_ascii_digit(),
            other => byte == other,
        };
        text.len() >= form.len() && form.bytes().zip(text.bytes()).all(same)
    };
    let mut out = String::new();
    while let Some(first) = text.chars().next() {
        let found = FORMS.iter().find(|(form, _)| fits(form, text));
        out.push_str(found.map_or(&text[..first.len_utf8()], |(_, name)| name));
        text = &text[found.map_or(first.len_utf8(), |(form, _)| form.len())..];
    }
    out
}

fn long_ago(file: &std::path::Path) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::options().write(true).open(file).unwrap().set_modified(time).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_repair_and_orphans_print() {
    let stage = Stage::with(|options| options.lease = Duration::from_millis(300)).await;
    let path = stage.table("orders", &orders()).await;
    let folder = stage.folder(&path);
    let mut said = Transcript { stage: &stage, path: &path, text: String::new() };
    stage.append(&path, 0..40, "a").await;
    let tier = ["run", "--server", &stage.address(), "--once"];
    assert_eq!(run(&tier, Some("commit.after_publish=kill".to_owned())).await.signal, Some(9));
    said.say(&["repair", "release", "demo.orders"]).await;
    said.both(&["repair", "record", "demo.orders"]).await;
    said.both(&["repair", "record", "demo.orders", "--confirm"]).await;
    said.both(&["repair", "release", "demo.orders"]).await;
    said.both(&["repair", "release", "demo.orders", "--confirm"]).await;
    assert_eq!(said.text, RECORD_AND_RELEASE);

    stage.append(&path, 40..80, "a").await;
    assert_eq!(run(&[&tier[..], &["--wait", "2s"]].concat(), None).await.code, Some(0));
    fs::remove_file(folder.join("snapshot/snapshot-2")).unwrap();
    fs::write(folder.join("snapshot/LATEST"), "1").unwrap();
    said.text.clear();
    said.both(&["repair", "accept-base", "demo.orders"]).await;
    said.both(&["repair", "reset-offsets", "demo.orders", "--snapshot", "0"]).await;
    said.say(&["repair", "accept-base", "demo.orders", "--at", "1", "--confirm"]).await;
    said.both(&["repair", "accept-base", "demo.orders", "--confirm"]).await;
    said.both(&["repair", "reset-offsets", "demo.orders", "--snapshot", "1", "--confirm"]).await;
    said.say(&["repair", "reset-offsets", "demo.orders", "--snapshot", "9"]).await;
    assert_eq!(said.text, WORDS);

    assert_eq!(stage.tier().await, [Some(5)]);
    stage.admin.alter_bucket_count(&path, 4).await.unwrap();
    stage.admin.drop_partition(&path, &spec("a"), false).await.unwrap();
    stage.admin.create_partition(&path, &spec("a"), false).await.unwrap();
    said.text.clear();
    let rewrite = ["repair", "rewrite-partition", "demo.orders", "--partition", "day=a"];
    said.both(&rewrite).await;
    said.both(&[&rewrite[..], &["--confirm"]].concat()).await;
    assert_eq!(said.text, REWRITE);

    let orphan = folder.join("day=a/bucket-0/data-nobodys-0.parquet");
    fs::write(&orphan, "rows").unwrap();
    long_ago(&orphan);
    for pin in fs::read_dir(folder.join("consumer")).unwrap() {
        long_ago(&pin.unwrap().path());
    }
    said.text.clear();
    said.both(&["orphans", "demo.orders"]).await;
    said.say(&["orphans", "demo.orders", "--delete"]).await;
    said.both(&["orphans", "demo.orders", "--delete"]).await;
    assert!(!orphan.exists());
    assert_eq!(said.text, ORPHANS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_inspect_prints() {
    let (stage, path) = tiered_twice_and_tagged().await;
    let folder = stage.folder(&path);
    fs::write(folder.join("consumer/consumer-a-flink-job"), "{\"nextSnapshot\": 1}").unwrap();
    let place = folder.display().to_string();
    let mut said = Transcript { stage: &stage, path: &path, text: String::new() };
    for more in [&[][..], &["--json"], &["--snapshot", "1"]] {
        let args = [&["inspect", &place], more].concat();
        said.told(&args, &run(&args, None).await).await;
    }
    for part in ["snapshots", "manifests", "files", "partitions", "tags", "consumers", "nothing"] {
        for json in [&[][..], &["--json"]] {
            let args = [&["inspect", &place, part], json].concat();
            said.told(&args, &run(&args, None).await).await;
        }
    }
    assert_eq!(said.text, INSPECT);
}

const RECORD_AND_RELEASE: &str = r#"$ repair release demo.orders
stderr: error: table `demo.orders`: snapshot `1` is in the lake, but Fluss knows nothing: without our pins it could expire before anybody has recorded it
stderr: hint: record it first: `lakeward repair record demo.orders --confirm`
exit 4
$ repair record demo.orders
demo.orders: record
  lake table DIR/warehouse/demo.db/orders
  record snapshot 1 in Fluss, with the offsets that it carries
stderr: nothing was done: add --confirm to do it
exit 0
$ repair record demo.orders --json
{"table":{"database":"demo","table":"orders"},"action":"record","outcome":"shown","lake":"DIR/warehouse/demo.db/orders","newest_snapshot":1,"held":null,"steps":["record snapshot 1 in Fluss, with the offsets that it carries"],"offsets":null,"rows_again":null,"rows_skipped":null,"pins":[],"partition":null,"snapshot":null,"warnings":[]}
exit 0
$ repair record demo.orders --confirm
demo.orders: record
  lake table DIR/warehouse/demo.db/orders
  record snapshot 1 in Fluss, with the offsets that it carries
done: Fluss knows snapshot 1
exit 0
$ repair record demo.orders --confirm --json
{"table":{"database":"demo","table":"orders"},"action":"record","outcome":"unchanged","lake":"DIR/warehouse/demo.db/orders","newest_snapshot":1,"held":null,"steps":["Fluss knows snapshot 1, the newest that it has made"],"offsets":null,"rows_again":null,"rows_skipped":null,"pins":[],"partition":null,"snapshot":1,"warnings":[]}
exit 0
$ repair release demo.orders
demo.orders: release
  lake table DIR/warehouse/demo.db/orders
  take 1 pin of ours off: from then on the lake expires snapshots as if Lakeward had never been there
  pin                                                 use  keeps from snapshot                  written
  lakeward-UUID  standing                    1  TIME
  note: the next round of a Lakeward on this table pins it again
stderr: nothing was done: add --confirm to do it
exit 0
$ repair release demo.orders --json
{"table":{"database":"demo","table":"orders"},"action":"release","outcome":"shown","lake":"DIR/warehouse/demo.db/orders","newest_snapshot":1,"held":null,"steps":["take 1 pin of ours off: from then on the lake expires snapshots as if Lakeward had never been there"],"offsets":null,"rows_again":null,"rows_skipped":null,"pins":[{"name":"lakeward-UUID","next_snapshot":1,"written_ms":MS,"use":"standing"}],"partition":null,"snapshot":1,"warnings":["the next round of a Lakeward on this table pins it again"]}
exit 0
$ repair release demo.orders --confirm
demo.orders: release
  lake table DIR/warehouse/demo.db/orders
  take 1 pin of ours off: from then on the lake expires snapshots as if Lakeward had never been there
  pin                                                 use  keeps from snapshot                  written
  lakeward-UUID  standing                    1  TIME
  note: the next round of a Lakeward on this table pins it again
done
exit 0
$ repair release demo.orders --confirm --json
{"table":{"database":"demo","table":"orders"},"action":"release","outcome":"unchanged","lake":"DIR/warehouse/demo.db/orders","newest_snapshot":1,"held":null,"steps":["no pin of ours is there"],"offsets":null,"rows_again":null,"rows_skipped":null,"pins":[],"partition":null,"snapshot":1,"warnings":[]}
exit 0
"#;

const WORDS: &str = r#"$ repair accept-base demo.orders
demo.orders: accept-base
  lake table DIR/warehouse/demo.db/orders
  held: table `demo.orders`: the newest snapshot in `DIR/warehouse/demo.db/orders` is `1`, although snapshot `2` was committed: the lake was rolled back
  state that the lake's rows, as snapshot 1 has them, are those up to the offsets of snapshot 1, the newest made by Fluss
  by snapshot 2 without rows, on top of snapshot 1; recorded in Fluss over whatever it knows
  note: a Flink tiering job that works on this table right now would not notice: let none have it meanwhile
stderr: nothing was done: add --at 1 --confirm to do it
exit 0
$ repair accept-base demo.orders --json
{"table":{"database":"demo","table":"orders"},"action":"accept-base","outcome":"shown","lake":"DIR/warehouse/demo.db/orders","newest_snapshot":1,"held":"table `demo.orders`: the newest snapshot in `DIR/warehouse/demo.db/orders` is `1`, although snapshot `2` was committed: the lake was rolled back","steps":["state that the lake's rows, as snapshot 1 has them, are those up to the offsets of snapshot 1, the newest made by Fluss","by snapshot 2 without rows, on top of snapshot 1; recorded in Fluss over whatever it knows"],"offsets":{"partition_offsets":[{"bucket_offsets":[23,17],"partition_id":0}],"table_id":0,"version":1},"rows_again":null,"rows_skipped":null,"pins":[],"partition":null,"snapshot":null,"warnings":["a Flink tiering job that works on this table right now would not notice: let none have it meanwhile"]}
exit 0
$ repair reset-offsets demo.orders --snapshot 0
demo.orders: reset-offsets
  lake table DIR/warehouse/demo.db/orders
  held: table `demo.orders`: the newest snapshot in `DIR/warehouse/demo.db/orders` is `1`, although snapshot `2` was committed: the lake was rolled back
  state that no row is tiered: everything is tiered from the start of the logs
  by snapshot 2 without rows, on top of snapshot 1; recorded in Fluss over whatever it knows
  note: 40 records that the lake's newest Fluss-made snapshot counts as tiered are tiered again: those that are in the lake will be there twice (on a table with a primary key: once)
  note: a Flink tiering job that works on this table right now would not notice: let none have it meanwhile
stderr: nothing was done: add --at 1 --confirm to do it
exit 0
$ repair reset-offsets demo.orders --snapshot 0 --json
{"table":{"database":"demo","table":"orders"},"action":"reset-offsets","outcome":"shown","lake":"DIR/warehouse/demo.db/orders","newest_snapshot":1,"held":"table `demo.orders`: the newest snapshot in `DIR/warehouse/demo.db/orders` is `1`, although snapshot `2` was committed: the lake was rolled back","steps":["state that no row is tiered: everything is tiered from the start of the logs","by snapshot 2 without rows, on top of snapshot 1; recorded in Fluss over whatever it knows"],"offsets":{"table_id":0,"version":1},"rows_again":40,"rows_skipped":0,"pins":[],"partition":null,"snapshot":null,"warnings":["40 records that the lake's newest Fluss-made snapshot counts as tiered are tiered again: those that are in the lake will be there twice (on a table with a primary key: once)","a Flink tiering job that works on this table right now would not notice: let none have it meanwhile"]}
exit 0
$ repair accept-base demo.orders --at 1 --confirm
demo.orders: accept-base
  lake table DIR/warehouse/demo.db/orders
  held: table `demo.orders`: the newest snapshot in `DIR/warehouse/demo.db/orders` is `1`, although snapshot `2` was committed: the lake was rolled back
  state that the lake's rows, as snapshot 1 has them, are those up to the offsets of snapshot 1, the newest made by Fluss
  by snapshot 2 without rows, on top of snapshot 1; recorded in Fluss over whatever it knows
  note: a Flink tiering job that works on this table right now would not notice: let none have it meanwhile
done: Fluss knows snapshot 2
exit 0
$ repair accept-base demo.orders --confirm
demo.orders: accept-base
  lake table DIR/warehouse/demo.db/orders
  the table is not held: lake and Fluss agree
stderr: there is nothing to do
exit 0
$ repair accept-base demo.orders --confirm --json
{"table":{"database":"demo","table":"orders"},"action":"accept-base","outcome":"unchanged","lake":"DIR/warehouse/demo.db/orders","newest_snapshot":2,"held":null,"steps":["the table is not held: lake and Fluss agree"],"offsets":null,"rows_again":null,"rows_skipped":null,"pins":[],"partition":null,"snapshot":null,"warnings":[]}
exit 0
$ repair reset-offsets demo.orders --snapshot 1 --confirm
demo.orders: reset-offsets
  lake table DIR/warehouse/demo.db/orders
  state that rows are tiered up to the given offsets of 2 buckets
  by snapshot 3 without rows, on top of snapshot 2; recorded in Fluss over whatever it knows
  note: a Flink tiering job that works on this table right now would not notice: let none have it meanwhile
done: Fluss knows snapshot 3
exit 0
$ repair reset-offsets demo.orders --snapshot 1 --confirm --json
{"table":{"database":"demo","table":"orders"},"action":"reset-offsets","outcome":"done","lake":"DIR/warehouse/demo.db/orders","newest_snapshot":3,"held":null,"steps":["state that rows are tiered up to the given offsets of 2 buckets","by snapshot 4 without rows, on top of snapshot 3; recorded in Fluss over whatever it knows"],"offsets":{"partition_offsets":[{"bucket_offsets":[23,17],"partition_id":0}],"table_id":0,"version":1},"rows_again":0,"rows_skipped":0,"pins":[],"partition":null,"snapshot":4,"warnings":["a Flink tiering job that works on this table right now would not notice: let none have it meanwhile"]}
exit 0
$ repair reset-offsets demo.orders --snapshot 9
stderr: error: there is no snapshot `9` in `DIR/warehouse/demo.db/orders`
stderr: hint: `lakeward inspect PATH snapshots` lists them
exit 2
"#;

const REWRITE: &str = r#"$ repair rewrite-partition demo.orders --partition day=a
demo.orders: rewrite-partition
  lake table DIR/warehouse/demo.db/orders
  write day=a again by 4 buckets: 80 rows in 4 files of 2 buckets, replaced in one OVERWRITE by `lakeward-maintenance`
stderr: nothing was done: add --confirm to do it
exit 0
$ repair rewrite-partition demo.orders --partition day=a --json
{"table":{"database":"demo","table":"orders"},"action":"rewrite-partition","outcome":"shown","lake":"DIR/warehouse/demo.db/orders","newest_snapshot":5,"held":null,"steps":["write day=a again by 4 buckets: 80 rows in 4 files of 2 buckets, replaced in one OVERWRITE by `lakeward-maintenance`"],"offsets":null,"rows_again":null,"rows_skipped":null,"pins":[],"partition":{"partition":"day=a","buckets":4,"before":{"totals":[2],"files":4,"rows":80},"after":null},"snapshot":null,"warnings":[]}
exit 0
$ repair rewrite-partition demo.orders --partition day=a --confirm
demo.orders: rewrite-partition
  lake table DIR/warehouse/demo.db/orders
  write day=a again by 4 buckets: 80 rows in 4 files of 2 buckets, replaced in one OVERWRITE by `lakeward-maintenance`
done: snapshot 6 has 80 rows in 4 files of 4 buckets there
exit 0
$ repair rewrite-partition demo.orders --partition day=a --confirm --json
{"table":{"database":"demo","table":"orders"},"action":"rewrite-partition","outcome":"unchanged","lake":"DIR/warehouse/demo.db/orders","newest_snapshot":6,"held":null,"steps":["all files of day=a are of 4 buckets already"],"offsets":null,"rows_again":null,"rows_skipped":null,"pins":[],"partition":{"partition":"day=a","buckets":4,"before":{"totals":[4],"files":4,"rows":80},"after":null},"snapshot":null,"warnings":[]}
exit 0
"#;

const ORPHANS: &str = r#"$ orphans demo.orders
demo.orders: 1 orphan, 4 B; 23 files are named, 5 are too young to judge
  TIME  4 B  day=a/bucket-0/data-nobodys-0.parquet
  dead pin consumer-lakeward-UUID
exit 0
$ orphans demo.orders --json
{"table":{"database":"demo","table":"orders"},"lake":"DIR/warehouse/demo.db/orders","files":[{"path":"day=a/bucket-0/data-nobodys-0.parquet","bytes":4,"modified_ms":MS}],"bytes":4,"uploads":[],"pins":["lakeward-UUID"],"named":23,"young":5,"deleted":false}
exit 0
$ orphans demo.orders --delete
demo.orders: 1 orphan, 4 B; 23 files are named, 5 are too young to judge
  TIME  4 B  day=a/bucket-0/data-nobodys-0.parquet
  dead pin consumer-lakeward-UUID
  deleted
exit 0
$ orphans demo.orders --delete
demo.orders: 0 orphans, 0 B; 23 files are named, 5 are too young to judge
exit 0
$ orphans demo.orders --delete --json
{"table":{"database":"demo","table":"orders"},"lake":"DIR/warehouse/demo.db/orders","files":[],"bytes":0,"uploads":[],"pins":[],"named":23,"young":5,"deleted":false}
exit 0
"#;

const INSPECT: &str = r#"$ inspect DIR/warehouse/demo.db/orders
table      DIR/warehouse/demo.db/orders
schema     0
           id BIGINT NOT NULL
           words STRING
           day STRING NOT NULL  (partition key)
options    bucket = 2
           bucket-key = id
           fluss.table.datalake.enabled = true
           fluss.table.datalake.format = paimon
           fluss.table.datalake.freshness = 0ms
           fluss.table.replication.factor = 1
           lakestream.enabled = true
           partition.legacy-name = false
snapshot   2: APPEND by __fluss_lake_tiering, TIME, 60 rows, 20 of them new
properties fluss-offsets = PATH
           lakeward.base = 1
           lakeward.offsets = {"version":1,"table_id":0,"partition_offsets":[{"partition_id":0,"bucket_offsets":[23,17]},{"partiti…
           lakeward.round-id = UUID
           lakeward.tiering-epoch = EPOCH

partition  total buckets  files  rows  bytes
day=a                  2      2    40  SIZE
day=b                  2      2    20  SIZE
exit 0
$ inspect DIR/warehouse/demo.db/orders --json
{"path":"DIR/warehouse/demo.db/orders","schema":{"id":0,"columns":[{"name":"id","type":"BIGINT NOT NULL"},{"name":"words","type":"STRING"},{"name":"day","type":"STRING NOT NULL"}],"partition_keys":["day"],"primary_keys":[],"options":{"bucket":"2","bucket-key":"id","fluss.table.datalake.enabled":"true","fluss.table.datalake.format":"paimon","fluss.table.datalake.freshness":"0ms","fluss.table.replication.factor":"1","lakestream.enabled":"true","partition.legacy-name":"false"}},"snapshot":{"id":2,"schema":0,"kind":"APPEND","user":"__fluss_lake_tiering","time_ms":MS,"total_rows":60,"added_rows":20,"properties":{"fluss-offsets":"file:DIR/remote/lake/demo/orders-0/metadata/UUID.offsets","lakeward.base":"1","lakeward.offsets":"{\"version\":1,\"table_id\":0,\"partition_offsets\":[{\"partition_id\":0,\"bucket_offsets\":[23,17]},{\"partition_id\":1,\"bucket_offsets\":[7,13]}]}","lakeward.round-id":"UUID","lakeward.tiering-epoch":"EPOCH"}},"partitions":[{"partition":"day=a","totals":[2],"files":2,"rows":40,"bytes":SIZE},{"partition":"day=b","totals":[2],"files":2,"rows":20,"bytes":SIZE}]}
exit 0
$ inspect DIR/warehouse/demo.db/orders --snapshot 1
table      DIR/warehouse/demo.db/orders
schema     0
           id BIGINT NOT NULL
           words STRING
           day STRING NOT NULL  (partition key)
options    bucket = 2
           bucket-key = id
           fluss.table.datalake.enabled = true
           fluss.table.datalake.format = paimon
           fluss.table.datalake.freshness = 0ms
           fluss.table.replication.factor = 1
           lakestream.enabled = true
           partition.legacy-name = false
snapshot   1: APPEND by __fluss_lake_tiering, TIME, 40 rows, 40 of them new
properties fluss-offsets = PATH
           lakeward.base = 0
           lakeward.offsets = {"version":1,"table_id":0,"partition_offsets":[{"partition_id":0,"bucket_offsets":[23,17]}]}
           lakeward.round-id = UUID
           lakeward.tiering-epoch = EPOCH

partition  total buckets  files  rows  bytes
day=a                  2      2    40  SIZE
exit 0
$ inspect DIR/warehouse/demo.db/orders snapshots
snapshot    kind                  user  rows  of them new  schema                     time
1         APPEND  __fluss_lake_tiering    40           40       0  TIME
2         APPEND  __fluss_lake_tiering    60           20       0  TIME
exit 0
$ inspect DIR/warehouse/demo.db/orders snapshots --json
{"id":1,"schema":0,"kind":"APPEND","user":"__fluss_lake_tiering","time_ms":MS,"total_rows":40,"added_rows":40,"properties":{"fluss-offsets":"file:DIR/remote/lake/demo/orders-0/metadata/UUID.offsets","lakeward.base":"0","lakeward.offsets":"{\"version\":1,\"table_id\":0,\"partition_offsets\":[{\"partition_id\":0,\"bucket_offsets\":[23,17]}]}","lakeward.round-id":"UUID","lakeward.tiering-epoch":"EPOCH"}}
{"id":2,"schema":0,"kind":"APPEND","user":"__fluss_lake_tiering","time_ms":MS,"total_rows":60,"added_rows":20,"properties":{"fluss-offsets":"file:DIR/remote/lake/demo/orders-0/metadata/UUID.offsets","lakeward.base":"1","lakeward.offsets":"{\"version\":1,\"table_id\":0,\"partition_offsets\":[{\"partition_id\":0,\"bucket_offsets\":[23,17]},{\"partition_id\":1,\"bucket_offsets\":[7,13]}]}","lakeward.round-id":"UUID","lakeward.tiering-epoch":"EPOCH"}}
exit 0
$ inspect DIR/warehouse/demo.db/orders manifests
manifest                                         bytes  added files  deleted files  schema  buckets
manifest-UUID-0  SIZE            2              0       0      0–1
manifest-UUID-0  SIZE            2              0       0      0–1
exit 0
$ inspect DIR/warehouse/demo.db/orders manifests --json
{"file":"manifest-UUID-0","bytes":SIZE,"added_files":2,"deleted_files":0,"schema":0,"min_bucket":0,"max_bucket":1}
{"file":"manifest-UUID-0","bytes":SIZE,"added_files":2,"deleted_files":0,"schema":0,"min_bucket":0,"max_bucket":1}
exit 0
$ inspect DIR/warehouse/demo.db/orders files
partition  bucket  of  level                                                 file  rows  bytes  sequence  schema
day=a           0   2      0  data-UUID-N.parquet    23    SIZE      0–22       0
day=a           1   2      0  data-UUID-N.parquet    17    SIZE      0–16       0
day=b           0   2      0  data-UUID-N.parquet     7    SIZE       0–6       0
day=b           1   2      0  data-UUID-N.parquet    13    SIZE      0–12       0
exit 0
$ inspect DIR/warehouse/demo.db/orders files --json
{"partition":"day=a","bucket":0,"total_buckets":2,"level":0,"file":"data-UUID-N.parquet","rows":23,"deletes":0,"bytes":SIZE,"min_sequence":0,"max_sequence":22,"schema":0,"created_ms":MS}
{"partition":"day=a","bucket":1,"total_buckets":2,"level":0,"file":"data-UUID-N.parquet","rows":17,"deletes":0,"bytes":SIZE,"min_sequence":0,"max_sequence":16,"schema":0,"created_ms":MS}
{"partition":"day=b","bucket":0,"total_buckets":2,"level":0,"file":"data-UUID-N.parquet","rows":7,"deletes":0,"bytes":SIZE,"min_sequence":0,"max_sequence":6,"schema":0,"created_ms":MS}
{"partition":"day=b","bucket":1,"total_buckets":2,"level":0,"file":"data-UUID-N.parquet","rows":13,"deletes":0,"bytes":SIZE,"min_sequence":0,"max_sequence":12,"schema":0,"created_ms":MS}
exit 0
$ inspect DIR/warehouse/demo.db/orders partitions
partition  total buckets  files  rows  bytes
day=a                  2      2    40  SIZE
day=b                  2      2    20  SIZE
exit 0
$ inspect DIR/warehouse/demo.db/orders partitions --json
{"partition":"day=a","totals":[2],"files":2,"rows":40,"bytes":SIZE}
{"partition":"day=b","totals":[2],"files":2,"rows":20,"bytes":SIZE}
exit 0
$ inspect DIR/warehouse/demo.db/orders tags
tag    snapshot  rows                     time
first         1    40  TIME
exit 0
$ inspect DIR/warehouse/demo.db/orders tags --json
{"name":"first","snapshot":1,"time_ms":MS,"rows":40}
exit 0
$ inspect DIR/warehouse/demo.db/orders consumers
consumer                                       keeps from snapshot                  written     whose
a-flink-job                                                      1  TIME    others
lakeward-UUID                    2  TIME  Lakeward
exit 0
$ inspect DIR/warehouse/demo.db/orders consumers --json
{"name":"a-flink-job","next_snapshot":1,"written_ms":MS,"ours":false}
{"name":"lakeward-UUID","next_snapshot":2,"written_ms":MS,"ours":true}
exit 0
$ inspect DIR/warehouse/demo.db/orders nothing
stderr: error: invalid value 'nothing' for '[WHAT]'
stderr:   [possible values: snapshots, manifests, files, partitions, tags, consumers]
stderr: 
stderr: For more information, try '--help'.
exit 2
$ inspect DIR/warehouse/demo.db/orders nothing --json
stderr: error: invalid value 'nothing' for '[WHAT]'
stderr:   [possible values: snapshots, manifests, files, partitions, tags, consumers]
stderr: 
stderr: For more information, try '--help'.
exit 2
"#;
