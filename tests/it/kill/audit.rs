//! Compares source and lake: rows as multisets, offsets in their three places, totals per partition, and every file of a table.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, RecordBatch};
use lakeward::commit::invariants;
use lakeward::lake::LakeTable;
use lakeward::model::{BucketId, BucketKey, LakeOffsets, OffsetsFile, SnapshotId, TableInfo, TablePath};
use lakeward::paimon::{ManifestEntry, Snapshot, path};
use lakeward::round::{self, RoundContext};
use lakeward::source::LedgerState;
use lakeward::source::cluster::ClusterSource;
use lakeward::storage;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::places::kind;
use super::world::{Source, World, of_days};

/// What is known of each table.
#[derive(Debug, Default)]
pub(super) struct Auditor {
    tables: BTreeMap<TablePath, Known>,
}

/// A row in the lake: id, partition, the other columns.
type Found = (i64, String, BTreeMap<String, Option<String>>);

#[derive(Debug, Default)]
struct Known {
    /// Files named by each snapshot: neither changes.
    named: BTreeMap<i64, BTreeSet<String>>,
    /// Rows of each data file.
    rows: BTreeMap<String, Vec<Found>>,
    /// What nobody named right after a kill: only those may stay so.
    orphans: BTreeSet<String>,
    /// The same of pins, that of the newest snapshot apart.
    pins: BTreeSet<String>,
}

impl Auditor {
    /// Whether every log is in the lake up to its end, and Fluss knows it.
    pub(super) async fn is_settled(&self, world: &World) -> bool {
        for path in world.sources.keys() {
            let context = rounds(world);
            let ends = ends(&context, path).await;
            match context.ledger.latest(path).await.unwrap() {
                LedgerState::At(entry) if entry.offsets == ends => {}
                LedgerState::Empty if ends.is_empty() => {}
                _ => return false,
            }
        }
        true
    }

    /// What always holds; with `strict` also what holds when everybody is done.
    pub(super) async fn look(&mut self, world: &World, strict: bool) {
        for (path, source) in &world.sources {
            let info = world.admin().table_info(path).await.unwrap();
            let known = self.tables.entry(path.clone()).or_default();
            known.table(world, &info, source, strict).await;
        }
    }

    /// Files that stay for the orphan sweep, and pins that stay for a day, by kind.
    pub(super) fn orphans(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        let pins = self.tables.values().flat_map(|known| &known.pins).map(|pin| format!("consumer-{pin}"));
        for file in self.tables.values().flat_map(|known| &known.orphans).chain(&Vec::from_iter(pins)) {
            *counts.entry(kind(file)).or_default() += 1;
        }
        counts
    }
}

fn rounds(world: &World) -> RoundContext {
    let source = Arc::new(ClusterSource::new(world.cluster()));
    let scan = Arc::clone(&source) as _;
    RoundContext { scan, ledger: source, runtime: world.runtime.clone(), options: round::Options::default() }
}

/// Ends of the logs, as the lake should have them.
async fn ends(context: &RoundContext, path: &TablePath) -> LakeOffsets {
    let ends = round::log_ends(context, path).await.map_err(|error| error.chain()).unwrap();
    LakeOffsets(ends.buckets.into_iter().map(|(bucket, _, end)| (bucket, end)).collect())
}

impl Known {
    async fn table(&mut self, world: &World, info: &TableInfo, source: &Source, strict: bool) {
        let table = &info.path;
        let (lake, _) = round::open_lake(info, &world.runtime).await.map_err(|error| error.chain()).unwrap();
        let ids = lake.snapshot_ids().await.unwrap();
        assert_eq!(ids, Vec::from_iter(1..=i64::try_from(ids.len()).unwrap()), "{table}: snapshots follow each other");
        let mut snapshots = Vec::new();
        for id in ids {
            snapshots.push(lake.snapshot(id).await.unwrap().unwrap());
        }
        for two in snapshots.windows(2) {
            let (before, after) = (&two[0], &two[1]);
            let (was, is) = (told(before), told(after));
            let stands = invariants::stands_on(after.total_record_count, after.delta_record_count, before.total_record_count);
            let goes_on = was.0.keys().map(|bucket| invariants::bucket_goes_on(was.get(*bucket), is.get(*bucket)));
            for verdict in goes_on.chain([stands]) {
                assert_eq!(verdict, Ok(()), "{table}: snapshot {}", after.id);
            }
        }
        self.files(&lake, &snapshots, strict).await;
        self.pins(&lake, &snapshots, strict).await;
        let context = rounds(world);
        let state = context.ledger.latest(table).await.unwrap();
        let Some(newest) = snapshots.last() else {
            assert!(matches!(state, LedgerState::Empty), "{table}: {state:?}");
            assert!(!strict || source.rows.is_empty(), "{table}: rows never came");
            return;
        };
        let entries = lake.live_entries(newest, None).await.unwrap();
        self.rows_of(&lake, &entries).await;
        let offsets = told(newest);
        self.rows_are_offsets(world, info, &lake, &entries, &offsets).await;
        self.rows_are_the_source(table, &entries, source, strict);
        let total: i64 = entries.iter().map(|entry| entry.file.row_count).sum();
        assert_eq!(newest.total_record_count, Some(total), "{table}: total of snapshot {}", newest.id);
        if let LedgerState::At(entry) = &state {
            let recorded = &snapshots[usize::try_from(entry.snapshot.0 - 1).unwrap()];
            assert_eq!(entry.offsets, told(recorded), "{table}: Fluss's offsets are those of the snapshot that it knows");
        }
        if !strict {
            return;
        }
        let LedgerState::At(entry) = state else { panic!("{table}: {state:?}") };
        assert_eq!((entry.table, entry.snapshot), (info.id, SnapshotId(newest.id)), "{table}: Fluss knows the newest");
        assert_eq!(offsets, ends(&context, table).await, "{table}: everything is in the lake");
        let place = &newest.properties["fluss-offsets"];
        let bytes = storage::read(place, &storage::StoreOptions::default())
            .await
            .unwrap()
            .unwrap_or_else(|| panic!("{table}: `{place}` is gone"));
        let file = OffsetsFile::from_json(std::str::from_utf8(&bytes).unwrap()).unwrap();
        assert_eq!(file, OffsetsFile { table: info.id, offsets }, "{table}: the offsets file says the same");
        // The reader of the product sees the same rows.
        let read: usize = lake.read_rows(newest, None, None).await.unwrap().iter().map(RecordBatch::num_rows).sum();
        assert_eq!(i64::try_from(read).unwrap(), total, "{table}");
        assert_eq!(
            lake.schema().option("bucket"),
            Some(info.bucket_count.to_string().as_str()),
            "{table}: `bucket` is `bucket.num`"
        );
    }

    /// Every file is named by a snapshot, or stayed of a process that was killed.
    async fn files(&mut self, lake: &LakeTable, snapshots: &[Snapshot], strict: bool) {
        for snapshot in snapshots {
            if let Entry::Vacant(unknown) = self.named.entry(snapshot.id) {
                unknown.insert(named(lake, snapshot).await);
            }
        }
        let folder = Path::new(lake.root());
        let there = match lake.store().local_root() {
            // Temporaries as well, which are no objects.
            Some(root) => {
                let (root, mut there) = (root.join(folder), BTreeSet::new());
                files_below(&root, &root, &mut there);
                there
            }
            None => {
                let start = format!("{}/", lake.root());
                let listed = lake.store().list(lake.root()).await.unwrap();
                listed.into_iter().map(|listed| listed.path.strip_prefix(&start).unwrap().to_owned()).collect()
            }
        };
        let named: BTreeSet<String> = self.named.values().flatten().cloned().collect();
        let missing: Vec<_> = named.difference(&there).collect();
        assert!(missing.is_empty(), "{}: snapshots name what is not there: {missing:?}", folder.display());
        let kept = |file: &String| file.starts_with("schema/schema-") || file.starts_with("consumer/consumer-") || is_hint(file);
        let unnamed: BTreeSet<String> = there.difference(&named).filter(|file| !kept(file)).cloned().collect();
        if strict {
            let strange: Vec<_> = unnamed.difference(&self.orphans).collect();
            assert!(strange.is_empty(), "{}: nobody was killed over {strange:?}", folder.display());
        }
        self.orphans = unnamed;
        // Readers take `snapshot-…` and hints for what they say.
        let strange: Vec<_> =
            self.orphans.iter().filter(|file| file.starts_with("snapshot/") && !file.starts_with("snapshot/.")).collect();
        assert!(strange.is_empty(), "{}: {strange:?}", folder.display());
    }

    /// The newest round's pin stands; others are those that a kill left, for a day at most (commit.md 7).
    async fn pins(&mut self, lake: &LakeTable, snapshots: &[Snapshot], strict: bool) {
        let mut pins: BTreeSet<String> = lake.pins("lakeward-").await.unwrap().into_iter().map(|pin| pin.name).collect();
        if let Some(newest) = snapshots.last() {
            let standing = format!("lakeward-{}", newest.properties["lakeward.round-id"]);
            assert!(pins.remove(&standing), "{}: the newest snapshot is pinned", lake.location());
        }
        if strict {
            let strange: Vec<_> = pins.difference(&self.pins).collect();
            assert!(strange.is_empty(), "{}: nobody was killed over {strange:?}", lake.location());
        }
        self.pins = pins;
    }

    async fn rows_of(&mut self, lake: &LakeTable, entries: &[ManifestEntry]) {
        for entry in entries {
            let place = path::data_file(lake.schema(), entry).unwrap();
            if self.rows.contains_key(&place) {
                continue;
            }
            let bytes = lake.store().get_existing(&lake.object(&place)).await.unwrap();
            assert_eq!(i64::try_from(bytes.len()).unwrap(), entry.file.file_size, "{place}");
            let reader = ParquetRecordBatchReaderBuilder::try_new(bytes).unwrap().build().unwrap();
            let rows: Vec<_> = reader.flat_map(|batch| rows_in(&batch.unwrap())).collect();
            assert_eq!(i64::try_from(rows.len()).unwrap(), entry.file.row_count, "{place}");
            self.rows.insert(place, rows);
        }
    }

    /// One row is one offset in these logs: what the snapshot says must be what it holds, bucket by bucket.
    async fn rows_are_offsets(
        &self,
        world: &World,
        info: &TableInfo,
        lake: &LakeTable,
        entries: &[ManifestEntry],
        offsets: &LakeOffsets,
    ) {
        let partitions = if info.is_partitioned() { world.admin().partitions(&info.path).await.unwrap() } else { vec![] };
        let mut held: BTreeMap<BucketKey, i64> = BTreeMap::new();
        for entry in entries {
            let folder = path::partition_path(lake.schema(), &entry.partition).unwrap();
            let day = folder.trim_end_matches('/').trim_start_matches("day=");
            let partition = partitions.iter().find(|partition| partition.name() == day);
            let count = match partition {
                Some(partition) => partition.bucket_count.unwrap(),
                None if info.is_partitioned() => continue,
                None => info.bucket_count,
            };
            assert_eq!(entry.total_buckets, count, "{}: total of `{folder}`", info.path);
            let bucket = BucketKey { partition: partition.map(|partition| partition.id), bucket: BucketId(entry.bucket) };
            *held.entry(bucket).or_default() += entry.file.row_count;
        }
        assert_eq!(&held, &offsets.0, "{}: rows per bucket are its offset", info.path);
    }

    fn rows_are_the_source(&self, table: &TablePath, entries: &[ManifestEntry], source: &Source, strict: bool) {
        let mut found: BTreeSet<i64> = BTreeSet::new();
        let files: BTreeSet<String> = entries.iter().map(|entry| entry.file.file_name.clone()).collect();
        let live = self.rows.iter().filter(|(place, _)| files.contains(place.rsplit('/').next().unwrap()));
        for (id, day, values) in live.flat_map(|(_, rows)| rows) {
            assert!(found.insert(*id), "{table}: row {id} is there twice");
            let sent = source.rows.get(id).or_else(|| source.unsure.get(id));
            let sent = sent.unwrap_or_else(|| panic!("{table}: nobody wrote row {id}"));
            assert_eq!(*day, sent.day, "{table}: partition of row {id}");
            for (name, value) in values {
                assert_eq!(value, &sent.value(*id, name), "{table}: `{name}` of row {id}");
            }
        }
        if strict {
            let missing: Vec<_> = source.rows.keys().filter(|id| !found.contains(id)).collect();
            assert!(missing.is_empty(), "{table}: acknowledged rows are not in the lake: {missing:?}");
            for (day, ids) in of_days(source) {
                let held = found.iter().filter(|id| source.rows.get(id).is_some_and(|row| row.day == day)).count();
                assert_eq!(held, ids.len(), "{table}: rows of `{day}`");
            }
        }
    }
}

fn is_hint(file: &str) -> bool {
    matches!(file, "snapshot/LATEST" | "snapshot/EARLIEST")
}

/// The complete offsets that a snapshot of ours carries.
fn told(snapshot: &Snapshot) -> LakeOffsets {
    OffsetsFile::from_json(&snapshot.properties["lakeward.offsets"]).unwrap().offsets
}

fn rows_in(batch: &RecordBatch) -> Vec<Found> {
    let ids = batch.column_by_name("id").unwrap().as_primitive::<Int64Type>();
    let texts: Vec<(&String, &arrow_array::StringArray)> = batch
        .schema_ref()
        .fields()
        .iter()
        .zip(batch.columns())
        .filter(|(field, _)| field.name() != "id")
        .map(|(field, column)| (field.name(), column.as_string::<i32>()))
        .collect();
    let value = |column: &arrow_array::StringArray, at: usize| column.is_valid(at).then(|| column.value(at).to_owned());
    (0..batch.num_rows())
        .map(|at| {
            let mut values: BTreeMap<String, Option<String>> =
                texts.iter().map(|(name, column)| ((*name).clone(), value(column, at))).collect();
            let day = values.remove("day").flatten().unwrap_or_default();
            (ids.value(at), day, values)
        })
        .collect()
}

/// All files that a snapshot names, itself included, by their paths in the table.
async fn named(lake: &LakeTable, snapshot: &Snapshot) -> BTreeSet<String> {
    let mut named = BTreeSet::from([path::snapshot(snapshot.id)]);
    named.extend([&snapshot.base_manifest_list, &snapshot.delta_manifest_list].map(|list| path::manifest(list)));
    for manifest in lake.manifests(snapshot).await.unwrap() {
        named.insert(path::manifest(&manifest.file_name));
    }
    for entry in lake.live_entries(snapshot, None).await.unwrap() {
        named.insert(path::data_file(lake.schema(), &entry).unwrap());
    }
    named
}

/// All files below a folder, with their bytes.
pub(super) fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut names = BTreeSet::new();
    files_below(folder, folder, &mut names);
    names.into_iter().map(|name| folder.join(name)).map(|place| (place.clone(), std::fs::read(place).unwrap())).collect()
}

fn files_below(root: &Path, folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let place: PathBuf = entry.unwrap().path();
        if place.is_dir() {
            files_below(root, &place, found);
        } else {
            found.insert(place.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
        }
    }
}
