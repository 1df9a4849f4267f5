//! What lives in the snapshot, by partition and bucket, and whether its manifests are what their list says (P12.1, 9 to 11).

use std::collections::{BTreeMap, BTreeSet};

use super::{Check, Fault, Findings, Pass};
use crate::error::Result;
use crate::paimon::merge::FileIdentity;
use crate::paimon::{BinaryRow, EntryKind, ManifestEntry, ManifestFile};

/// Live files of the snapshot. No statistics: they are read again where they are looked at.
#[derive(Debug, Default)]
pub(super) struct Live {
    pub(super) partitions: BTreeMap<BinaryRow, LivePartition>,
}

#[derive(Debug, Default)]
pub(super) struct LivePartition {
    pub(super) buckets: BTreeMap<i32, LiveBucket>,
}

#[derive(Debug, Default)]
pub(super) struct LiveBucket {
    pub(super) totals: BTreeSet<i32>,
    pub(super) rows: i64,
    pub(super) files: Vec<LiveFile>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LiveFile {
    pub(super) name: String,
    pub(super) bytes: i64,
    pub(super) max_sequence: i64,
    /// It lies outside the table's folder.
    pub(super) external: bool,
}

/// Reads all manifests of the snapshot.
///
/// # Errors
/// `Unavailable`; `Data` when a list or manifest is missing or can't be read.
pub(super) async fn read(pass: &Pass<'_>, found: &mut Findings) -> Result<Live> {
    let mut live = Live::default();
    let Some(snapshot) = &pass.view.newest else { return Ok(live) };
    let lake = &pass.context.lake;
    let manifests = lake.manifests(snapshot).await?;
    pass.progress.enter("reading manifests", manifests.len());
    let names = manifests.iter().map(|manifest| manifest.file_name.clone()).collect();
    let mut lists = manifests.iter();
    let types = lake.schema().partition_types()?;
    // Identities are kept only where files are removed: on most append tables none ever is.
    let mut open = manifests.iter().any(|manifest| manifest.num_deleted_files != 0).then(BTreeMap::new);
    lake.for_each_manifest(names, |entries| {
        if let Some(manifest) = lists.next() {
            for what in contradictions(manifest, &entries, &types) {
                let message = format!("manifest `{}`: {what}", manifest.file_name);
                let hint = "readers may leave out what it holds: roll the lake table back below it, or have its manifests rewritten (Paimon's `compact_manifest`)";
                found.fault(Fault::new(Check::Manifest, message).file(format!("manifest/{}", manifest.file_name)).snapshot(snapshot.id).hint(hint));
            }
        }
        for entry in entries {
            match (entry.kind, &mut open) {
                (EntryKind::Add, None) => live.add(entry),
                (EntryKind::Add, Some(open)) => {
                    if let Some(before) = open.insert(FileIdentity::of(&entry), entry) {
                        let message = format!("file `{}` is added twice", before.file.file_name);
                        found.fault(Fault::new(Check::Manifest, message).snapshot(snapshot.id).bucket(before.bucket).hint(pass.roll_back_hint()));
                    }
                }
                (EntryKind::Delete, open) => {
                    if open.as_mut().is_none_or(|open| open.remove(&FileIdentity::of(&entry)).is_none()) {
                        let message = format!("file `{}` is removed, but no manifest before adds it", entry.file.file_name);
                        found.fault(Fault::new(Check::Manifest, message).snapshot(snapshot.id).bucket(entry.bucket).hint(pass.roll_back_hint()));
                    }
                }
            }
        }
        pass.progress.step();
        Ok(())
    })
    .await?;
    for entry in open.into_iter().flat_map(BTreeMap::into_values) {
        live.add(entry);
    }
    let rows = live.rows();
    if let Some(total) = snapshot.total_record_count.filter(|total| *total != rows) {
        let message = format!("snapshot `{}` says `{total}` rows in all, its files have `{rows}`", snapshot.id);
        found.fault(Fault::new(Check::History, message).snapshot(snapshot.id).hint("it was built on another snapshot than the one below it: somebody commits without atomic create (docs/compatibility.md)"));
    }
    Ok(live)
}

impl Live {
    fn add(&mut self, entry: ManifestEntry) {
        let bucket = self.partitions.entry(entry.partition).or_default().buckets.entry(entry.bucket).or_default();
        bucket.totals.insert(entry.total_buckets);
        bucket.rows = bucket.rows.saturating_add(entry.file.row_count);
        let file = entry.file;
        bucket.files.push(LiveFile {
            name: file.file_name,
            bytes: file.file_size,
            max_sequence: file.max_sequence_number,
            external: file.external_path.is_some(),
        });
    }

    fn rows(&self) -> i64 {
        let buckets = self.partitions.values().flat_map(|partition| partition.buckets.values());
        buckets.map(|bucket| bucket.rows).fold(0, i64::saturating_add)
    }
}

/// What a manifest holds against what its list says: readers skip manifests by it.
fn contradictions(manifest: &ManifestFile, entries: &[ManifestEntry], types: &[crate::model::DataType]) -> Vec<String> {
    let mut found = Vec::new();
    let count = |kind| i64::try_from(entries.iter().filter(|entry| entry.kind == kind).count()).unwrap_or(i64::MAX);
    for (what, says, has) in [
        ("added", manifest.num_added_files, count(EntryKind::Add)),
        ("removed", manifest.num_deleted_files, count(EntryKind::Delete)),
    ] {
        if says != has {
            found.push(format!("its list says `{says}` files {what}, it has `{has}`"));
        }
    }
    let mut last = None;
    for entry in entries {
        if last != Some(&entry.partition) {
            last = Some(&entry.partition);
            let held = entry.partition.read(types).is_ok_and(|values| manifest.may_hold(&values, types));
            if !held {
                found.push(format!("its list's partition bounds leave out the partition of file `{}`", entry.file.file_name));
                break;
            }
        }
    }
    let below = manifest.min_bucket.and_then(|min| entries.iter().find(|entry| entry.bucket < min));
    let above = manifest.max_bucket.and_then(|max| entries.iter().find(|entry| entry.bucket > max));
    if let Some(entry) = below.or(above) {
        found.push(format!("its list's bucket bounds leave out bucket `{}`", entry.bucket));
    }
    found
}
