//! `verify` on sound tables, and on tables with each kind of fault, made on purpose. With faults that Java and Python writers make:
//! tests/interop.

use lakeward::audit::AuditContext;
use lakeward::audit::verify::{self, Check, Fault, Options, Progress, Report};
use lakeward::commit::{COMMIT_IDENTIFIER, COMMIT_USER};
use lakeward::lake::{CommitFacts, Published};
use lakeward::mapping;
use lakeward::model::{BucketId, BucketKey, Datum, LakeOffsets};
use lakeward::paimon::{BinaryRow, EntryKind};
use lakeward::read;
use lakeward::source::{LedgerEntry, LedgerRecord, TableScan};
use serde_json::json as value;

use super::binary::{run, run_unread};
use super::*;

pub(super) async fn audited(stage: &Stage, path: &TablePath) -> AuditContext {
    let table = Arc::new(stage.info(path).await);
    let lake = stage.lake(path).await;
    let form = mapping::fit(&table, lake.schema()).unwrap().form;
    let (scan, ledger) = (stage.source(), stage.source());
    AuditContext { table, lake, form, scan, ledger, runtime: stage.runtime.clone(), read: read::Options::default() }
}

pub(super) async fn verified(stage: &Stage, path: &TablePath, all: bool) -> Report {
    let options = Options { all, only: None };
    let report = verify::verify(&audited(stage, path).await, &options, &Progress::default()).await;
    report.map_err(|error| error.chain()).unwrap()
}

/// The only fault, of this kind.
async fn only_fault(stage: &Stage, path: &TablePath, check: Check) -> Fault {
    let report = verified(stage, path, true).await;
    let [fault] = &report.faults[..] else { panic!("{:#?}", report.faults) };
    assert_eq!(fault.check, check, "{fault:#?}");
    assert!(fault.hint.as_ref().is_some_and(|hint| !hint.is_empty()), "{fault:#?}");
    fault.clone()
}

/// Publishes a snapshot over the newest.
pub(super) async fn commit(
    lake: &LakeTable,
    user: &str,
    kind: &str,
    entries: Vec<ManifestEntry>,
    properties: &[(&str, &str)],
) -> Snapshot {
    let newest = newest(lake).await;
    let delta = lake.write_delta(entries, vec![]).await.unwrap();
    let staged = lake.stage(newest.as_ref(), &delta, false).await.unwrap();
    let facts = CommitFacts {
        schema_id: lake.schema().id,
        user: user.to_owned(),
        identifier: COMMIT_IDENTIFIER,
        kind: kind.to_owned(),
        time_ms: lake.runtime().clock.now_ms(),
        properties: properties.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
    };
    let snapshot = staged.snapshot(newest.as_ref(), facts);
    assert_eq!(lake.publish(&snapshot).await.unwrap(), Published::Created);
    lake.write_latest_hint(snapshot.id).await.unwrap();
    snapshot
}

/// A copy of a live file under a name of its own, as an entry that `change` has changed. Not committed yet.
pub(super) async fn copied(lake: &LakeTable, of: usize, name: &str, change: impl FnOnce(&mut ManifestEntry)) -> ManifestEntry {
    let live = lake.live_entries(&newest(lake).await.unwrap(), None).await.unwrap();
    let mut entry = live[of].clone();
    let bytes = lake.store().get_existing(&place(lake, &entry)).await.unwrap();
    entry.file.file_name = name.to_owned();
    change(&mut entry);
    lake.store().put(&place(lake, &entry), bytes).await.unwrap();
    entry
}

pub(super) fn place(lake: &LakeTable, entry: &ManifestEntry) -> String {
    lake.object(&path::data_file(lake.schema(), entry).unwrap())
}

async fn entry_of(stage: &Stage, path: &TablePath) -> LedgerEntry {
    match stage.source().latest(path).await.unwrap() {
        LedgerState::At(entry) => entry,
        other => panic!("{other:?}"),
    }
}

/// Records a snapshot as a Java job does.
async fn record(stage: &Stage, path: &TablePath, snapshot: i64, offsets: &LakeOffsets) -> String {
    let (source, table) = (stage.source(), stage.info(path).await.id);
    let offsets_path = source.prepare(table, path, offsets).await.unwrap();
    let record = LedgerRecord {
        table,
        path: path.clone(),
        snapshot: SnapshotId(snapshot),
        offsets_path: offsets_path.clone(),
        offsets: offsets.clone(),
        max_timestamps: BTreeMap::new(),
        earliest_to_keep: -1,
    };
    source.record(record).await.unwrap();
    offsets_path
}

/// One partition `a` of 2 buckets, two rounds of 60 rows.
async fn tiered() -> (Stage, TablePath) {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    for from in [0, 60] {
        stage.append(&path, from..from + 60, "a").await;
        assert_eq!(stage.tier().await.len(), 1);
    }
    (stage, path)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sound_tables_have_no_faults_whatever_has_happened_to_them() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    let report = verified(&stage, &path, true).await;
    assert_eq!((report.snapshot, &report.faults, &report.notes), (None, &vec![], &vec![]), "never written");

    // Rows that a user put there before, several counts, a partition that is dropped, and one that is made again.
    let lake = stage.lake(&path).await;
    commit(&lake, "somebody", "APPEND", vec![], &[]).await;
    stage.append(&path, 0..200, "a").await;
    stage.append(&path, 200..260, "gone").await;
    stage.tier().await;
    stage.admin.alter_bucket_count(&path, 4).await.unwrap();
    stage.append(&path, 300..500, "b").await;
    stage.append(&path, 500..600, "a").await;
    stage.tier().await;
    stage.admin.drop_partition(&path, &spec("gone"), false).await.unwrap();
    let theirs = copied(&lake, 0, "data-of-a-user-0.parquet", |_| {}).await;
    commit(&lake, "somebody", "APPEND", vec![theirs], &[]).await;
    stage.append(&path, 600..650, "b").await;
    stage.tier().await;
    let report = verified(&stage, &path, true).await;
    assert_eq!((&report.faults, &report.notes), (&vec![], &vec![]));
    let partitions: Vec<_> =
        report.partitions.iter().map(|found| (found.partition.as_str(), found.buckets, &found.totals)).collect();
    let of = |total| BTreeSet::from([total]);
    assert_eq!(partitions, [("day=a", Some(2), &of(2)), ("day=b", Some(4), &of(4)), ("day=gone", None, &of(2))]);
    let rows: i64 = report.partitions.iter().map(|found| found.rows).sum();
    let files: u64 = report.partitions.iter().map(|found| found.files).sum();
    assert_eq!((report.files_read, i64::try_from(report.rows_read).unwrap()), (files, rows));

    // The first snapshots expire: what is left is counted from the oldest that is there.
    let root = lake.store().local_root().unwrap().join(lake.root()).join("snapshot");
    for id in 1..=2 {
        std::fs::remove_file(root.join(format!("snapshot-{id}"))).unwrap();
    }
    let report = verified(&stage, &path, false).await;
    assert_eq!(report.faults, vec![]);
    assert_eq!(
        report.notes,
        ["rows are counted against offsets from snapshot 3 on: what came before has expired or can't be read"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_without_buckets_in_the_lake_is_counted_by_partition() {
    let stage = Stage::new().await;
    let fields =
        vec![field("id", TypeKind::BigInt, false), field("words", TypeKind::String, true), field("day", TypeKind::String, false)];
    let path = stage.table("logs", &descriptor(fields, &["day"], &[], 3)).await;
    for from in [0, 100] {
        stage.append(&path, from..from + 100, "a").await;
        stage.tier().await;
    }
    let report = verified(&stage, &path, true).await;
    assert_eq!((&report.faults, &report.notes), (&vec![], &vec![]));
    assert_eq!((report.partitions[0].rows, report.partitions[0].offsets), (200, Some(200)));
    let lake = stage.lake(&path).await;
    let known = entry_of(&stage, &path).await;
    let twice = copied(&lake, 0, "data-of-a-zombie-0.parquet", |_| {}).await;
    let rows = twice.file.row_count;
    let offsets_path = record(&stage, &path, 3, &known.offsets).await;
    commit(&lake, COMMIT_USER, "APPEND", vec![twice], &[("fluss-offsets", &offsets_path)]).await;
    let fault = only_fault(&stage, &path, Check::Rows).await;
    assert!(fault.message.starts_with(&format!("partition `day=a` has `{rows}` rows too many")), "{}", fault.message);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_a_tiering_job_without_lease_doubled_are_counted_and_its_snapshot_named() {
    let (stage, path) = tiered().await;
    let lake = stage.lake(&path).await;
    let known = entry_of(&stage, &path).await;
    let twice = copied(&lake, 1, "data-of-a-zombie-0.parquet", |_| {}).await;
    let (bucket, rows) = (twice.bucket, twice.file.row_count);
    let offsets_path = record(&stage, &path, 3, &known.offsets).await;
    commit(&lake, COMMIT_USER, "APPEND", vec![twice], &[("fluss-offsets", &offsets_path)]).await;
    let fault = only_fault(&stage, &path, Check::Rows).await;
    for said in [
        &format!("bucket `{bucket}` of partition `day=a` has `{rows}` rows too many") as &str,
        "since the first snapshot",
        &format!("snapshot 3 (APPEND by a Java tiering job): +{rows}"),
    ] {
        assert!(fault.message.contains(said), "`{said}` is not in: {}", fault.message);
    }
    let place = (fault.partition.as_deref(), fault.bucket, fault.snapshot);
    assert_eq!(place, (Some("day=a"), Some(bucket), Some(3)));
    assert_eq!(fault.offset, known.offsets.get(BucketKey { bucket: BucketId(bucket), ..*known.offsets.0.keys().next().unwrap() }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_offsets_went_past_are_missed_unless_they_were_empty_batches() {
    let (stage, path) = tiered().await;
    stage.append(&path, 200..230, "a").await;
    let lake = stage.lake(&path).await;
    let table = stage.info(&path).await;
    let partition = stage.source().partitions(&table).await.unwrap().remove(0);
    let layout = lakeward::model::BucketLayout::of(&table, Some(&partition)).unwrap();
    let ends = stage.source().end_offsets(&table, Some(&partition), layout).await.unwrap().unwrap();
    let key = |bucket| BucketKey { partition: Some(partition.id), bucket: BucketId(bucket) };
    let offsets = LakeOffsets((0..).zip(&ends).map(|(bucket, end)| (key(bucket), *end)).collect());
    let offsets_path = record(&stage, &path, 3, &offsets).await;
    commit(&lake, COMMIT_USER, "APPEND", vec![], &[("fluss-offsets", &offsets_path)]).await;
    let report = verified(&stage, &path, false).await;
    assert_eq!(report.faults.len(), 2, "{:#?}", report.faults);
    assert!(report.faults.iter().all(|fault| fault.check == Check::Rows && fault.message.contains("rows too few")));
    assert!(report.faults[0].hint.as_ref().unwrap().contains("repair reset-offsets demo.orders"), "{:?}", report.faults[0].hint);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_are_gone_cut_or_broken_are_named() {
    let (stage, path) = tiered().await;
    let files = stage.files(&path).await;
    let of = |file: &LakeFile| format!("day=a/bucket-{}/{}", file.entry.bucket, file.entry.file.file_name);
    let whole = std::fs::read(&files[0].place).unwrap();
    std::fs::remove_file(&files[0].place).unwrap();
    let fault = only_fault(&stage, &path, Check::File).await;
    assert_eq!(fault.message, format!("file `{}` is missing", of(&files[0])));
    assert_eq!((fault.file.as_deref(), fault.bucket), (Some(of(&files[0]).as_str()), Some(files[0].entry.bucket)));
    std::fs::write(&files[0].place, &whole[1..]).unwrap();
    let fault = only_fault(&stage, &path, Check::File).await;
    let (now, then) = (whole.len() - 1, whole.len());
    assert_eq!(fault.message, format!("file `{}` has {now} bytes, its manifest says {then}", of(&files[0])));
    let mut broken = whole.clone();
    broken[4..then - 8].fill(0);
    std::fs::write(&files[0].place, &broken).unwrap();
    let fault = only_fault(&stage, &path, Check::Content).await;
    assert!(fault.message.contains("read parquet"), "{}", fault.message);
    std::fs::write(&files[0].place, &whole).unwrap();
    assert_eq!(verified(&stage, &path, true).await.faults, vec![]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_counts_buckets_partitions_and_statistics_are_told_apart() {
    let (stage, path) = tiered().await;
    let lake = stage.lake(&path).await;
    let checks = async || {
        let report = verified(&stage, &path, true).await;
        report.faults.into_iter().map(|fault| (fault.check, fault.message)).collect::<Vec<_>>()
    };
    let root = lake.store().local_root().unwrap().join(lake.root()).join("snapshot");
    let undo = || {
        std::fs::remove_file(root.join("snapshot-3")).unwrap();
        std::fs::write(root.join("LATEST"), "2").unwrap();
    };
    // A Java write into a bucket id that is still empty mixes totals; what it wrote is in no bucket of Fluss.
    let mixed = copied(&lake, 0, "data-mixed-0.parquet", |entry| (entry.bucket, entry.total_buckets) = (3, 4)).await;
    commit(&lake, "somebody", "APPEND", vec![mixed], &[]).await;
    let found = checks().await;
    let kinds: Vec<Check> = found.iter().map(|(check, _)| *check).collect();
    assert_eq!(kinds, [Check::Totals, Check::Bucket, Check::Hash], "{found:#?}");
    assert!(
        found[0].1.contains("several bucket totals, `2`, `4`") && found[0].1.ends_with("Fluss has `2` buckets"),
        "{}",
        found[0].1
    );
    assert!(found[1].1.starts_with("bucket `3` has 1 files and"), "{}", found[1].1);
    undo();

    let strayed = copied(&lake, 0, "data-strayed-0.parquet", |entry| entry.bucket = 1 - entry.bucket).await;
    let rows = strayed.file.row_count;
    commit(&lake, "somebody", "APPEND", vec![strayed], &[]).await;
    let found = checks().await;
    assert_eq!((found.len(), found[0].0), (1, Check::Hash), "{found:#?}");
    assert!(found[0].1.contains(&format!("{rows} of its {rows} rows belong into other buckets")), "{}", found[0].1);
    undo();

    let types = lake.schema().partition_types().unwrap();
    let other = BinaryRow::write(&[Some(Datum::String("b".into()))], &types).unwrap();
    let moved = copied(&lake, 0, "data-moved-0.parquet", |entry| entry.partition = other).await;
    commit(&lake, "somebody", "APPEND", vec![moved], &[]).await;
    let found = checks().await;
    assert_eq!((found.len(), found[0].0), (1, Check::Partition), "{found:#?}");
    assert!(found[0].1.contains("column `day` has `a` to `a`"), "{}", found[0].1);
    undo();

    // The bounds of another file, and one NULL fewer.
    let all = lake.live_entries(&newest(&lake).await.unwrap(), None).await.unwrap();
    let bounds = all.iter().find(|entry| entry.file.min_sequence_number > 0 && entry.bucket == all[0].bucket).unwrap();
    let mut stats = bounds.file.value_stats.clone();
    stats.null_counts.as_mut().unwrap()[1] = Some(0);
    let wrong = copied(&lake, 0, "data-wrong-0.parquet", |entry| entry.file.value_stats = stats).await;
    commit(&lake, "somebody", "APPEND", vec![wrong], &[]).await;
    let found = checks().await;
    assert!(found.len() >= 2 && found.iter().all(|(check, _)| *check == Check::Statistics), "{found:#?}");
    assert!(found.iter().any(|(_, text)| text.contains("statistics of column `id` begin at")), "{found:#?}");
    assert!(found.iter().any(|(_, text)| text.contains("say 0 NULLs, it has")), "{found:#?}");
    undo();
    assert_eq!(checks().await, vec![]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manifests_and_snapshots_that_contradict_themselves_are_found() {
    let (stage, path) = tiered().await;
    let lake = stage.lake(&path).await;
    let root = lake.store().local_root().unwrap().join(lake.root());
    // A committer without atomic create puts another snapshot where one is.
    let text = std::fs::read_to_string(root.join("snapshot/snapshot-2")).unwrap();
    let total = text.replace("\"totalRecordCount\": 120", "\"totalRecordCount\": 130");
    assert_ne!(text, total);
    std::fs::write(root.join("snapshot/snapshot-2"), total).unwrap();
    let report = verified(&stage, &path, false).await;
    assert_eq!(report.faults.len(), 2, "{:#?}", report.faults);
    assert!(report.faults.iter().all(|fault| fault.check == Check::History && fault.snapshot == Some(2)), "{:#?}", report.faults);
    std::fs::write(root.join("snapshot/snapshot-2"), &text).unwrap();

    // One that is older can't be read: what it holds is no more than a fault of its own.
    let first = root.join("snapshot/snapshot-1");
    let whole = std::fs::read(&first).unwrap();
    for spoilt in [&whole[..whole.len() / 2], &b"\xff"[..], &b"{\"id\": 1}"[..]] {
        std::fs::write(&first, spoilt).unwrap();
        let fault = only_fault(&stage, &path, Check::History).await;
        assert_eq!(fault.snapshot, Some(1), "{fault:?}");
        assert!(fault.message.contains("snapshot/snapshot-1`: "), "{fault:?}");
    }
    std::fs::write(&first, whole).unwrap();
    assert_eq!(verified(&stage, &path, false).await.faults, []);

    // A file that is removed and was never there.
    let never = copied(&lake, 0, "data-never-0.parquet", |entry| entry.kind = EntryKind::Delete).await;
    let rows = never.file.row_count;
    commit(&lake, "somebody", "OVERWRITE", vec![never], &[]).await;
    let report = verified(&stage, &path, false).await;
    let kinds: Vec<_> = report.faults.iter().map(|fault| fault.check).collect();
    assert!(kinds.contains(&Check::Manifest) && kinds.contains(&Check::History), "{:#?}", report.faults);
    assert!(report.faults.iter().any(|fault| fault.message.contains(&format!("says `{}` rows in all", 120 - rows))));

    let newest = newest(&lake).await.unwrap();
    std::fs::remove_file(root.join("manifest").join(&newest.delta_manifest_list)).unwrap();
    let address = stage.address();
    for command in [&["scan", "demo.orders", "--count"][..], &["orphans", "demo.orders"]] {
        let ended = run(&[command, &["--server", &address]].concat(), None).await;
        assert!(ended.code == Some(5) && ended.stderr.contains("hint: bring the object back from a copy"), "{ended:?}");
    }
    let report = verified(&stage, &path, false).await;
    assert!(
        report.faults.iter().any(|fault| fault.check == Check::Manifest && fault.message.contains("is missing")),
        "{:#?}",
        report.faults
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lake_and_fluss_that_disagree_about_snapshots_and_offsets_are_found() {
    let (stage, path) = tiered().await;
    let known = entry_of(&stage, &path).await;
    let mut other = known.offsets.clone();
    let (key, offset) = other.0.iter().next().map(|(key, offset)| (*key, *offset)).unwrap();
    other.0.insert(key, offset - 1);
    record(&stage, &path, 2, &other).await;
    let fault = only_fault(&stage, &path, Check::Ledger).await;
    let said = format!(
        "bucket `{}` of partition `day=a` is tiered to `{offset}` by snapshot `2` of the lake, and to `{}` by what Fluss knows of it",
        key.bucket,
        offset - 1
    );
    assert_eq!((fault.message, fault.bucket, fault.offset), (said, Some(key.bucket.0), Some(offset)));
    record(&stage, &path, 2, &known.offsets).await;

    // Rolled back below what Fluss knows.
    let lake = stage.lake(&path).await;
    let root = lake.store().local_root().unwrap().join(lake.root()).join("snapshot");
    let second = std::fs::read(root.join("snapshot-2")).unwrap();
    std::fs::remove_file(root.join("snapshot-2")).unwrap();
    std::fs::write(root.join("LATEST"), "1").unwrap();
    let fault = only_fault(&stage, &path, Check::Ledger).await;
    assert_eq!(fault.message, "the lake ends at snapshot `1`, Fluss knows snapshot `2`: it was rolled back");
    // And overgrown by somebody else.
    commit(&lake, "somebody", "APPEND", vec![], &[]).await;
    let fault = only_fault(&stage, &path, Check::Ledger).await;
    assert!(fault.message.contains("snapshot `2`, which Fluss knows, is not Fluss-made in the lake"), "{}", fault.message);
    std::fs::write(root.join("snapshot-2"), second).unwrap();

    // Offsets beyond the log, and of a bucket that is not there.
    let mut other = known.offsets.clone();
    other.0.insert(BucketKey { bucket: BucketId(7), ..key }, 5);
    other.0.insert(key, 1_000);
    let offsets_path = record(&stage, &path, 3, &other).await;
    commit(&lake, COMMIT_USER, "APPEND", vec![], &[("fluss-offsets", &offsets_path)]).await;
    let report = verified(&stage, &path, false).await;
    let offsets: Vec<_> = report.faults.iter().filter(|fault| fault.check == Check::Offsets).map(|fault| &fault.message).collect();
    assert_eq!(offsets.len(), 2, "{:#?}", report.faults);
    assert!(offsets[0].contains("is tiered to `1000`, beyond its log's end"), "{offsets:?}");
    assert!(offsets[1].contains("the lake has offset `5` of bucket `7`"), "{offsets:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_verify_prints_and_how_it_ends() {
    let (stage, path) = tiered().await;
    let address = stage.address();
    let lake = stage.lake(&path).await;
    let verify = ["verify", "demo.orders", "--server", &address];
    let sound = run(&verify, None).await;
    assert_eq!((sound.code, sound.stderr.as_str()), (Some(0), ""), "{sound:?}");
    let text = sound.stdout.replace(&lake.location(), "LAKE");
    assert_eq!(
        text,
        "demo.orders: snapshot 2 of LAKE, newest from Fluss 2, known to Fluss 2\n  \
           partition  buckets  totals in lake  files  rows  offsets\n  \
           day=a            2               2      4   120      120\n  \
           read 4 of 4 files, 120 rows\n  \
           no faults\n"
    );
    let json = run(&[&verify[..], &["--json", "--all", "--partition", "day=a"]].concat(), None).await;
    assert_eq!(json.code, Some(0), "{json:?}");
    assert_eq!(
        json.json(),
        [value!({
            "table": {"database": "demo", "table": "orders"}, "table_id": stage.info(&path).await.id, "lake": lake.location(),
            "snapshot": 2, "tiered_snapshot": 2, "known_snapshot": 2,
            "partitions": [{"partition": "day=a", "buckets": 2, "totals": [2], "files": 4, "rows": 120, "offsets": 120}],
            "all": true, "files_read": 4, "rows_read": 120, "faults": [], "faults_more": 0, "notes": []
        })]
    );

    let file = stage.files(&path).await.remove(0);
    std::fs::remove_file(&file.place).unwrap();
    let name = format!("day=a/bucket-{}/{}", file.entry.bucket, file.entry.file.file_name);
    let faulty = run(&verify, None).await;
    assert_eq!(faulty.code, Some(5), "{faulty:?}");
    assert_eq!(faulty.stderr, "error: a fault was found in `demo.orders`\n");
    let text = faulty.stdout.replace(&lake.location(), "LAKE").replace(&name, "FILE");
    assert!(
        text.ends_with(
            "  fault (file): file `FILE` is missing\n    way out: bring the object back from a copy, or roll the lake table back to a \
             snapshot that does not need it (docs/compatibility.md)\n"
        ),
        "{text}"
    );
    let json = run(&[&verify[..], &["--json"]].concat(), None).await;
    assert_eq!(json.code, Some(5), "{json:?}");
    assert_eq!(
        json.json()[0]["faults"],
        value!([{
            "check": "file", "message": format!("file `{name}` is missing"),
            "hint": "bring the object back from a copy, or roll the lake table back to a snapshot that does not need it (docs/compatibility.md)",
            "partition": "day=a", "bucket": file.entry.bucket, "file": name, "snapshot": 2
        }])
    );
    assert_eq!(run_unread(&verify).await.code, Some(5), "a fault counts also when nobody reads");
    for (wrong, code, said) in [
        (&["verify", "demo.nothing", "--server", &address][..], 2, "demo.nothing"),
        (&["verify", "demo.orders", "--server", &address, "--partition", "day=x"], 2, "there is, nearest first: `day=a`"),
        (&["verify", "demo.orders", "--server", "127.0.0.1:1"], 3, "127.0.0.1:1"),
        (&["verify", "demo.orders"], 2, "--server"),
    ] {
        let ended = run(wrong, None).await;
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(ended.stderr.contains(said), "`{said}` is not in: {}", ended.stderr);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_nobody_records_is_found_and_one_on_its_way_is_not() {
    let (stage, path) = tiered().await;
    let (lake, table) = (stage.lake(&path).await, stage.info(&path).await.id);
    let offsets = entry_of(&stage, &path).await.offsets;
    let publish = async || {
        let offsets_path = stage.source().prepare(table, &path, &offsets).await.unwrap();
        commit(&lake, COMMIT_USER, "APPEND", vec![], &[("fluss-offsets", &offsets_path)]).await;
    };
    publish().await;
    let context = audited(&stage, &path).await;
    let (options, progress) = (Options::default(), Progress::default());
    let looking = verify::verify(&context, &options, &progress);
    // A round's recovery records it, while we look.
    let (report, _) = tokio::join!(looking, stage.tier());
    let report = report.unwrap();
    assert_eq!(
        (&report.faults, report.tiered_snapshot, report.known_snapshot),
        (&vec![], Some(SnapshotId(3)), Some(SnapshotId(3)))
    );

    publish().await;
    let fault = only_fault(&stage, &path, Check::Ledger).await;
    assert_eq!(fault.message, "snapshot `4` is in the lake, and Fluss does not know it: it knows snapshot `3`");
    assert!(fault.hint.unwrap().contains("`lakeward repair record demo.orders`"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_rounds_and_expiry_work_on_has_no_faults() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 0..60, "a").await;
    stage.tier().await;
    let lake = stage.lake(&path).await;
    let root = lake.store().local_root().unwrap().join(lake.root()).join("snapshot");
    // However quick rounds are: a look has ended between two of them, while others go on.
    let (looked, all_seen) = (tokio::sync::Notify::new(), CancellationToken::new());
    let work = async {
        for round in 1..12_i64 {
            tokio::select! {
                () = looked.notified() => {}
                () = all_seen.cancelled() => {}
            }
            if round == 4 {
                stage.admin.alter_bucket_count(&path, 3).await.unwrap();
            }
            stage.append(&path, round * 100..round * 100 + 60, if round % 2 == 0 { "a" } else { "b" }).await;
            stage.tier().await;
            // Java's expiry keeps what a pin keeps.
            let newest = stage.newest(&path).await.unwrap().id;
            let pinned = lake.pins("").await.unwrap().iter().map(|pin| pin.next_snapshot).min().unwrap();
            for id in 1..pinned.min(newest) {
                drop(std::fs::remove_file(root.join(format!("snapshot-{id}"))));
            }
        }
    };
    let look = async {
        let mut seen = BTreeSet::new();
        while seen.last() < Some(&10) {
            let report = verified(&stage, &path, true).await;
            assert_eq!(report.faults, vec![], "{report:#?}");
            seen.insert(report.snapshot.unwrap().0);
            looked.notify_one();
        }
        all_seen.cancel();
        seen.len()
    };
    let (_, looks) = tokio::join!(work, look);
    assert!(looks > 2, "{looks}");
}
