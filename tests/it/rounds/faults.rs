//! Faults that `verify` finds in what keys, counts, manifests and tables of one name are about. The others: `verify`.

use std::path::Path;

use lakeward::audit::verify::Check;
use lakeward::commit::COMMIT_USER;
use lakeward::model::{Datum, LakeOffsets, TableId};
use lakeward::paimon::{BinaryRow, EntryKind};
use parquet::arrow::ArrowWriter;
use serde_json::json as value;

use super::binary::run;
use super::verify::{commit, copied, place, verified};
use super::*;

/// Keys 0 to 59 in one bucket; a second round has another row of 58, and deletes 59.
async fn keyed() -> (Stage, TablePath) {
    let stage = Stage::new().await;
    let mut table = descriptor(events().schema.fields, &[], &["id"], 1);
    table.schema.primary_key = vec!["id".to_owned()];
    let path = stage.table("keyed", &table).await;
    stage.append(&path, 0..60, "").await;
    assert_eq!(stage.tier().await, [Some(1)]);
    let mut writer = Writer::open(&stage.cluster, &path, WriterOptions::default()).await.unwrap();
    let words: ArrayRef = Arc::new(StringArray::from(vec!["other words", ""]));
    let changed = RecordBatch::try_new(writer.schema(), vec![Arc::new(Int64Array::from(vec![58, 59])), words]).unwrap();
    writer.change(&changed, &[false, true]).await.unwrap();
    assert_eq!(stage.tier().await, [Some(2)]);
    (stage, path)
}

/// The newest of the live files, and what takes it away.
async fn last(lake: &LakeTable) -> (usize, ManifestEntry) {
    let live = lake.live_entries(&newest(lake).await.unwrap(), None).await.unwrap();
    let at = (0..live.len()).max_by_key(|at| live[*at].file.max_sequence_number).unwrap();
    (at, ManifestEntry { kind: EntryKind::Delete, ..live[at].clone() })
}

/// In place of the newest file a copy, as `change` makes its entry, or the copy itself.
async fn replaced(lake: &LakeTable, change: impl FnOnce(&mut ManifestEntry, &Path)) {
    let (at, gone) = last(lake).await;
    let mut entry = copied(lake, at, "data-other-0.parquet", |_| {}).await;
    let file = lake.store().local_root().unwrap().join(place(lake, &entry));
    change(&mut entry, &file);
    commit(lake, "somebody", "OVERWRITE", vec![gone, entry], &[]).await;
}

/// Takes the newest snapshot away.
async fn undo(lake: &LakeTable) {
    let root = lake.store().local_root().unwrap().join(lake.root()).join("snapshot");
    let id = newest(lake).await.unwrap().id;
    std::fs::remove_file(root.join(format!("snapshot-{id}"))).unwrap();
    std::fs::write(root.join("LATEST"), (id - 1).to_string()).unwrap();
}

/// Turns the rows of a file round; its size then.
fn turned(file: &Path) -> i64 {
    let reader = ParquetRecordBatchReaderBuilder::try_new(std::fs::File::open(file).unwrap()).unwrap();
    let schema = Arc::clone(reader.schema());
    let rows = concat_batches(&schema, &reader.build().unwrap().map(Result::unwrap).collect::<Vec<_>>()).unwrap();
    let backwards: Vec<RecordBatch> = (0..rows.num_rows()).rev().map(|row| rows.slice(row, 1)).collect();
    let mut writer = ArrowWriter::try_new(std::fs::File::create(file).unwrap(), Arc::clone(&schema), None).unwrap();
    writer.write(&concat_batches(&schema, &backwards).unwrap()).unwrap();
    writer.close().unwrap();
    i64::try_from(std::fs::metadata(file).unwrap().len()).unwrap()
}

async fn found(stage: &Stage, path: &TablePath) -> Vec<(Check, String)> {
    verified(stage, path, true).await.faults.into_iter().map(|fault| (fault.check, fault.message)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primary_key_files_that_are_not_what_their_entries_say_are_named() {
    let (stage, path) = keyed().await;
    let lake = stage.lake(&path).await;
    let key = |id: i64| BinaryRow::write(&[Some(Datum::BigInt(id))], &[DataType::required(TypeKind::BigInt)]).unwrap();
    let file = last(&lake).await.1.file;
    let (min, max) = (file.min_sequence_number, file.max_sequence_number);
    replaced(&lake, |_, _| {}).await;
    assert_eq!(found(&stage, &path).await, [], "a copy is none");
    undo(&lake).await;
    type Change<'a> = &'a (dyn Fn(&mut ManifestEntry, &Path) + Sync);
    let changes: [(Change<'_>, String); 5] = [
        (&|entry, _| entry.file.min_key = key(57), "its smallest key is not the one that its entry says".to_owned()),
        (&|entry, _| entry.file.max_key = key(60), "its largest key is not the one that its entry says".to_owned()),
        (
            &|entry, _| entry.file.max_sequence_number += 1,
            format!("its sequence numbers are {min} to {max}, its entry says {min} to {}", max + 1),
        ),
        (&|entry, _| entry.file.delete_row_count = Some(2), "it has 1 rows that delete, its entry says 2".to_owned()),
        (
            &|entry, file| entry.file.file_size = turned(file),
            "it is not sorted by its key: row 1 is not above the one before it".to_owned(),
        ),
    ];
    let verify = ["verify", "demo.keyed", "--server", &stage.address(), "--all"];
    for (change, said) in changes {
        replaced(&lake, change).await;
        let said = format!("file `bucket-0/data-other-0.parquet`: {said}");
        assert_eq!(found(&stage, &path).await, [(Check::Keys, said.clone())]);
        let ended = run(&verify, None).await;
        let said = format!("  fault (keys): {said}\n    way out: bring the object back from a copy, or roll");
        assert!(ended.code == Some(5) && ended.stdout.contains(&said), "{ended:?}");
        undo(&lake).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_the_lake_has_otherwise_than_fluss_are_named() {
    let (stage, path) = keyed().await;
    let lake = stage.lake(&path).await;
    // What the second round brought is taken out of the lake, as by somebody's DELETE.
    let (_, gone) = last(&lake).await;
    commit(&lake, "somebody", "OVERWRITE", vec![gone], &[]).await;
    let said = "bucket `0` has 60 rows in lake and change log at offset `63`, Fluss has 59 then; they differ in";
    let ended = run(&["verify", "demo.keyed", "--server", &stage.address(), "--json"], None).await;
    let message = format!("{said} key {{\"id\":58}} (another row), key {{\"id\":59}} (not in Fluss)");
    let hint = "`lakeward repair reset-offsets demo.keyed --snapshot ID` shows what it would do, and does it with `--confirm`";
    let fault = value!({"check": "state", "message": message, "hint": hint, "bucket": 0, "offset": 63});
    assert_eq!((ended.code, &ended.json()[0]["faults"]), (Some(5), &value!([fault])), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_count_another_table_and_manifests_at_odds_are_found() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 0..60, "a").await;
    assert_eq!(stage.tier().await, [Some(1)]);
    let lake = stage.lake(&path).await;

    // The lake table is of another table of this name.
    let table = stage.info(&path).await;
    let other = TableId(table.id.0 + 1);
    let offsets_path = stage.source().prepare(other, &path, &LakeOffsets::default()).await.unwrap();
    commit(&lake, COMMIT_USER, "APPEND", vec![], &[("fluss-offsets", &offsets_path)]).await;
    let said = format!("snapshot `2` belongs to table id `{other}`, this table has id `{}`", table.id);
    assert_eq!(found(&stage, &path).await, [(Check::Ledger, said)]);
    undo(&lake).await;

    // A file twice.
    let live = lake.live_entries(&newest(&lake).await.unwrap(), None).await.unwrap();
    let gone = ManifestEntry { kind: EntryKind::Delete, ..live[1].clone() };
    commit(&lake, "somebody", "OVERWRITE", vec![live[0].clone(), gone], &[]).await;
    let said = format!("file `{}` is added twice", live[0].file.file_name);
    assert!(found(&stage, &path).await.contains(&(Check::Manifest, said)));
    undo(&lake).await;

    // A manifest that is not there, and one that is another than its list says.
    stage.append(&path, 60..61, "b").await;
    assert_eq!(stage.tier().await, [Some(2)]);
    let manifests = lake.manifests(&newest(&lake).await.unwrap()).await.unwrap();
    let [other, manifest] = [0, 1]
        .map(|at: usize| lake.store().local_root().unwrap().join(lake.root()).join("manifest").join(&manifests[at].file_name));
    let bytes = std::fs::read(&manifest).unwrap();
    std::fs::remove_file(&manifest).unwrap();
    let said = format!("`{}` is missing", manifest.display());
    assert_eq!(found(&stage, &path).await, [(Check::Manifest, said)]);
    let scanned = run(&["scan", "demo.orders", "--server", &stage.address()], None).await;
    assert_eq!((scanned.code, scanned.stdout.as_str()), (Some(5), ""), "the snapshot is the newest: {scanned:?}");
    std::fs::copy(&other, &manifest).unwrap();
    let found_there = found(&stage, &path).await;
    for said in ["its list says `1` files added, it has `2`", "its list's partition bounds leave out the partition of file `data-"]
    {
        let said = format!("manifest `{}`: {said}", manifests[1].file_name);
        let is_it = |(check, message): &(Check, String)| *check == Check::Manifest && message.starts_with(&said);
        assert!(found_there.iter().any(is_it), "`{said}` is not in {found_there:#?}");
    }
    std::fs::write(&manifest, bytes).unwrap();

    // Another count in Fluss.
    stage.admin.alter_bucket_count(&path, 4).await.unwrap();
    stage.admin.drop_partition(&path, &spec("a"), false).await.unwrap();
    stage.admin.create_partition(&path, &spec("a"), false).await.unwrap();
    let said = "partition `day=a` has files of `2` buckets in the lake, but `4` in Fluss".to_owned();
    assert_eq!(found(&stage, &path).await, [(Check::Totals, said)]);
}
