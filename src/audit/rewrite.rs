//! One lake partition written again by another bucket count (P6.4): what a partition of another total, or of mixed ones, needs.
//!
//! All live files of the partition are read, every row is hashed among the right number of buckets, and one OVERWRITE puts the new files
//! in the place of the old ones ([`Replacement`]). Append tables keep all rows, in the order of each old bucket. On primary-key tables
//! one row per key stays: within one total a key has one bucket, whose files are merged; where totals are mixed a key may lie in several
//! buckets whose sequence numbers don't compare, so the files are replayed in the order of their commits, deletes included. Numbers
//! are given anew from 0, as Java's INSERT OVERWRITE does: nothing else is live in the partition, and a round that has planned with
//! older numbers finds that out before it publishes (commit.md 5b).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::{RecordBatch, UInt32Array};
use arrow_select::take::take_record_batch;
use serde::Serialize;

use super::{AuditContext, AuditPartition};
use crate::commit::{self, CommitOutcome, DataFiles, Replacement};
use crate::error::{Error, Kind, Result};
use crate::lake::LakeTable;
use crate::model::{BucketId, ChangeKind, SnapshotId, TableBucket};
use crate::paimon::merge::FileIdentity;
use crate::paimon::{EntryKind, HashedBy, ManifestEntry, RowBuckets, TableSchema, lake_arrow_schema};
use crate::write::{BucketTarget, BucketWriter, WriteContext, WriteOptions};

/// How often a partition is written that others wrote to meanwhile.
const TRIES_MAX: u32 = 3;

/// Bounds of a rewrite.
#[derive(Debug, Clone, Copy, Default)]
pub struct RewriteOptions {
    /// Writing.
    pub write: WriteOptions,
    /// Committing.
    pub commit: commit::Options,
}

/// Files and rows of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Held {
    /// Bucket totals that the files name.
    pub totals: BTreeSet<i32>,
    /// Files.
    pub files: u64,
    /// Rows in them, versions and deletes of primary-key tables included.
    pub rows: i64,
}

impl Held {
    fn of(entries: &[ManifestEntry]) -> Self {
        Self {
            totals: entries.iter().map(|entry| entry.total_buckets).collect(),
            files: entries.len() as u64,
            rows: entries.iter().map(|entry| entry.file.row_count).fold(0, i64::saturating_add),
        }
    }
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewritten {
    /// The snapshot that does it.
    pub snapshot: SnapshotId,
    /// What was there.
    pub before: Held,
    /// What is there instead.
    pub after: Held,
    /// What failed beside and heals by itself.
    pub warnings: Vec<String>,
}

/// What is live in a partition; `None` when nothing is.
///
/// # Errors
/// `Unavailable`; `Data` when a manifest is missing or wrong.
pub async fn held(lake: &LakeTable, partition: &AuditPartition) -> Result<Option<Held>> {
    let Some(id) = lake.newest_snapshot_id().await? else { return Ok(None) };
    let Some(newest) = lake.snapshot(id).await? else {
        return Err(Error::stale(format!("the newest snapshot `{id}` of `{}` went away meanwhile", lake.location())));
    };
    let entries = lake.live_entries(&newest, Some(&BTreeSet::from([partition.row.clone()]))).await?;
    Ok((!entries.is_empty()).then(|| Held::of(&entries)))
}

/// Writes `partition` again by its own count. `None` when all its files are of that count already, or there are none.
///
/// # Errors
/// `Stale` when others write to the partition all the time; `Unsupported` names what can't be merged; `Data` when a file is missing or
/// wrong; `Unavailable`. Nothing of the partition is lost in any of them: it is as it was, or it is rewritten.
pub async fn rewrite(context: &AuditContext, partition: &AuditPartition, options: RewriteOptions) -> Result<Option<Rewritten>> {
    check(context.lake.schema())?;
    let mut tries = 1;
    loop {
        match once(context, partition, options).await {
            Err(error) if error.kind() == Kind::Stale && tries < TRIES_MAX => tries += 1,
            ended => return ended,
        }
    }
}

/// What the order of rows can't be told of here.
fn check(schema: &TableSchema) -> Result<()> {
    if schema.primary_keys.is_empty() {
        return Ok(());
    }
    let text = |key: &str| schema.option(key).map(str::trim).filter(|text| !text.is_empty());
    let plain = [
        ("merge-engine", "deduplicate"),
        ("sequence.field", ""),
        ("ignore-delete", "false"),
        ("deletion-vectors.enabled", "false"),
    ];
    for (key, only) in plain {
        if let Some(value) = text(key).filter(|value| !value.eq_ignore_ascii_case(only)) {
            return Err(Error::unsupported(format!("rewriting a partition of a table with `{key}` = `{value}`"))
                .with_hint("Paimon's own `rescale` procedure does it"));
        }
    }
    Ok(())
}

async fn once(context: &AuditContext, partition: &AuditPartition, options: RewriteOptions) -> Result<Option<Rewritten>> {
    let (lake, total) = (&*context.lake, partition.total(&context.table));
    let Some(replacement) = Replacement::begin(lake, partition.row.clone(), options.commit).await? else { return Ok(None) };
    let before = Held::of(replacement.files());
    if before.files == 0 || before.totals == BTreeSet::from([total]) {
        replacement.give_up().await;
        return Ok(None);
    }
    let mut writer = match Writer::new(context, partition, &replacement, options.write) {
        Ok(writer) => writer,
        Err(error) => {
            replacement.give_up().await;
            return Err(error);
        }
    };
    let written = match writer.fill(&replacement, before.totals.len() > 1).await {
        Ok(()) => writer.finish().await,
        Err(error) => {
            writer.abort().await;
            Err(error)
        }
    };
    let write = Arc::clone(&writer.write);
    let added = match written {
        Ok(added) => added,
        Err(error) => {
            let moved = error.kind() == Kind::Data && lake.newest_snapshot_id().await? != Some(replacement.base().id);
            replacement.give_up().await;
            // A file that is gone was compacted away, unless nothing has happened.
            return Err(if moved { Error::stale("the lake table changed meanwhile").with_source(error) } else { error });
        }
    };
    let after = Held::of(&added);
    if lake.schema().primary_keys.is_empty() && after.rows != before.rows {
        drop(write.discard(&added).await);
        replacement.give_up().await;
        return Err(Error::internal(format!("`{}` rows became `{}`", before.rows, after.rows)));
    }
    match replacement.finish(&added).await {
        CommitOutcome::Committed { snapshot, warnings, .. } => {
            let warnings = warnings.iter().map(Error::chain).collect();
            Ok(Some(Rewritten { snapshot, before, after, warnings }))
        }
        CommitOutcome::Nothing => Ok(None),
        CommitOutcome::Failed { error, files, .. } => {
            if files == DataFiles::Unnamed {
                drop(write.discard(&added).await);
            }
            Err(error)
        }
    }
}

/// The new files of a partition, bucket by bucket.
struct Writer<'a> {
    context: &'a AuditContext,
    partition: &'a AuditPartition,
    total: i32,
    /// `None` on a table without buckets.
    buckets: Option<RowBuckets>,
    write: Arc<WriteContext>,
    writers: BTreeMap<i32, BucketWriter>,
}

impl<'a> Writer<'a> {
    fn new(
        context: &'a AuditContext,
        partition: &'a AuditPartition,
        replacement: &Replacement<'_>,
        options: WriteOptions,
    ) -> Result<Self> {
        let lake = &context.lake;
        let mut schema = (**lake.schema()).clone();
        // As Java: what an OVERWRITE does is in no changelog.
        schema.options.remove("changelog-producer");
        let total = partition.total(&context.table);
        let buckets = if total > 0 { RowBuckets::new(&schema)? } else { None };
        if total > 0 && buckets.is_none() {
            return Err(Error::data(format!("the lake table `{}` has no buckets, its Fluss table has", lake.location())));
        }
        let write = WriteContext::new(
            lake.store().clone(),
            lake.root(),
            Arc::new(schema),
            replacement.round(),
            context.runtime.clone(),
            options,
        )?;
        Ok(Self { context, partition, total, buckets, write, writers: BTreeMap::new() })
    }

    /// Reads all that is live and writes it.
    async fn fill(&mut self, replacement: &Replacement<'_>, mixed: bool) -> Result<()> {
        let lake = &self.context.lake;
        let keyed = !lake.schema().primary_keys.is_empty();
        let mut files = replacement.files().to_vec();
        if !keyed {
            files.sort_by_key(|entry| (entry.total_buckets, entry.bucket, entry.file.min_sequence_number));
        } else if mixed {
            files = in_order_of_commits(lake, files).await?;
        } else {
            let mut merged: BTreeMap<i32, Vec<ManifestEntry>> = BTreeMap::new();
            for entry in files {
                merged.entry(entry.bucket).or_default().push(entry);
            }
            for files in merged.into_values() {
                let mut reader = lake.merge_files(files, None).await?;
                while let Some(rows) = reader.next_batch().await? {
                    self.write(rows, None).await?;
                }
            }
            return Ok(());
        }
        for entry in files {
            let mut reader = lake.read_entry(&entry, None).await?;
            while let Some(block) = reader.next_rows().await? {
                let changes: Option<Vec<ChangeKind>> =
                    block.versions.map(|(_, kinds)| kinds.values().iter().map(|kind| change_of(*kind)).collect());
                self.write(block.rows, changes).await?;
            }
        }
        Ok(())
    }

    async fn write(&mut self, rows: RecordBatch, changes: Option<Vec<ChangeKind>>) -> Result<()> {
        if rows.num_rows() == 0 {
            return Ok(());
        }
        let schema = lake_arrow_schema(self.context.lake.schema())?;
        let fault = |source| Error::internal("rows of a partition").with_source(source);
        let rows = RecordBatch::try_new(schema, rows.columns().to_vec()).map_err(fault)?;
        let mut parts: BTreeMap<i32, Vec<u32>> = BTreeMap::new();
        match &self.buckets {
            None => drop(parts.insert(0, (0..u32::try_from(rows.num_rows()).unwrap_or(u32::MAX)).collect())),
            Some(buckets) => {
                let column = |name: &String| {
                    rows.column_by_name(name).cloned().ok_or_else(|| Error::internal(format!("bucket key `{name}` is not there")))
                };
                let columns = buckets.names().iter().map(column).collect::<Result<Vec<_>>>()?;
                for (row, bucket) in (0_u32..).zip(buckets.buckets(&columns, self.total, HashedBy::Fluss)?) {
                    parts.entry(bucket).or_default().push(row);
                }
            }
        }
        for (bucket, picked) in parts {
            let kinds: Option<Vec<ChangeKind>> =
                changes.as_ref().map(|changes| picked.iter().filter_map(|row| changes.get(*row as usize).copied()).collect());
            let part = take_record_batch(&rows, &UInt32Array::from(picked)).map_err(fault)?;
            let permit = self.permit(part.get_array_memory_size()).await?;
            let writer = match self.writers.entry(bucket) {
                std::collections::btree_map::Entry::Occupied(writer) => writer.into_mut(),
                std::collections::btree_map::Entry::Vacant(place) => {
                    let partition = &self.partition;
                    let source = TableBucket {
                        table: self.context.table.id,
                        partition: partition.partition.as_ref().map(|partition| partition.id),
                        bucket: BucketId(bucket),
                    };
                    let target = BucketTarget { source, partition: partition.row.clone(), bucket, total_buckets: self.total };
                    place.insert(BucketWriter::new(Arc::clone(&self.write), target, 0)?)
                }
            };
            writer.write(part, kinds.as_deref(), 0, permit).await?;
        }
        Ok(())
    }

    /// Memory for a batch; where there is none, the bucket that holds most gives back.
    async fn permit(&mut self, bytes: usize) -> Result<crate::runtime::Permit> {
        let budget = self.context.runtime.budget.clone();
        loop {
            if let Some(permit) = budget.try_acquire(bytes) {
                return Ok(permit);
            }
            match self.writers.values_mut().max_by_key(|writer| writer.held_bytes()) {
                Some(writer) if writer.held_bytes() > 0 => writer.relieve().await?,
                _ => return Ok(budget.acquire(bytes).await),
            }
        }
    }

    async fn finish(&mut self) -> Result<Vec<ManifestEntry>> {
        let mut added = Vec::new();
        while let Some((_, writer)) = self.writers.pop_first() {
            match writer.finish().await {
                Ok(files) => added.extend(files.data),
                Err(error) => {
                    self.abort().await;
                    drop(self.write.discard(&added).await);
                    return Err(error);
                }
            }
        }
        Ok(added)
    }

    /// What can't be deleted is left to the orphan sweep.
    async fn abort(&mut self) {
        while let Some((_, writer)) = self.writers.pop_first() {
            drop(writer.abort().await);
        }
    }
}

/// A −U without its +U takes the key away.
const fn change_of(kind: i8) -> ChangeKind {
    match kind {
        0 => ChangeKind::Insert,
        2 => ChangeKind::UpdateAfter,
        _ => ChangeKind::Delete,
    }
}

/// Files of a primary-key partition such that a later version of a key comes later: by the snapshot that added them (what has expired
/// comes first, by its time of creation); where several in a row are of one total, bucket by bucket in the order of their numbers.
async fn in_order_of_commits(lake: &LakeTable, files: Vec<ManifestEntry>) -> Result<Vec<ManifestEntry>> {
    let wanted: BTreeSet<FileIdentity> = files.iter().map(FileIdentity::of).collect();
    let partitions: BTreeSet<_> = files.iter().map(|entry| entry.partition.clone()).collect();
    let mut added: BTreeMap<FileIdentity, i64> = BTreeMap::new();
    for id in lake.snapshot_ids().await? {
        // Expired between the two looks.
        let Some(snapshot) = lake.snapshot(id).await? else { continue };
        for manifest in lake.read_manifest_list(&snapshot.delta_manifest_list).await? {
            for entry in lake.read_manifest(&manifest.file_name).await? {
                let identity = FileIdentity::of(&entry);
                if entry.kind == EntryKind::Add && partitions.contains(&entry.partition) && wanted.contains(&identity) {
                    added.insert(identity, id);
                }
            }
        }
    }
    let since = |entry: &ManifestEntry| added.get(&FileIdentity::of(entry)).copied().unwrap_or(0);
    Ok(ordered(files, since))
}

fn ordered(mut files: Vec<ManifestEntry>, since: impl Fn(&ManifestEntry) -> i64) -> Vec<ManifestEntry> {
    files.sort_by_key(|entry| (since(entry), entry.file.creation_time_ms, entry.total_buckets));
    for run in files.chunk_by_mut(|one, next| one.total_buckets == next.total_buckets) {
        run.sort_by_key(|entry| (entry.bucket, entry.file.max_sequence_number));
    }
    files
}
