//! Everything of a commit that stands before its publish: manifests, lists, the snapshot (P4.7, P8.1 steps 4–7).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt, stream};

use super::live::room_for;
use super::{LakeTable, Names};
use crate::error::{Error, Result};
use crate::model::{DataType, Datum};
use crate::paimon::manifest::{encode_list, encode_rolling};
use crate::paimon::merge::{FileIdentity, Merge, live_runs, merge_entries, plan};
use crate::paimon::{EntryKind, ManifestEntry, ManifestFile, Snapshot, TableOptions, path};
use crate::runtime::{Aside, Encoders};

/// Manifests that are written at once.
const WRITES_MAX: usize = 4;

/// The manifests of one commit alone: written once, used by each attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delta {
    manifests: Vec<ManifestFile>,
    rows: i64,
    changelog: Vec<ManifestFile>,
    /// Rows of the changelog files; 0 without any.
    changelog_rows: i64,
}

/// Lists of one attempt, written for one newest snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staged {
    base: Listed,
    delta: Listed,
    /// Where the commit has changelog files, and their rows.
    changelog: Option<(Listed, i64)>,
    rows: i64,
    /// Manifests that merging made.
    merged: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Listed {
    name: String,
    bytes: i64,
}

/// What a commit says of itself, beyond what follows from the snapshot before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitFacts {
    /// Newest schema id, read in this attempt.
    pub schema_id: i64,
    /// Who commits.
    pub user: String,
    /// Its number for this user.
    pub identifier: i64,
    /// `APPEND`, …
    pub kind: String,
    /// Now, epoch milliseconds.
    pub time_ms: i64,
    /// Free text.
    pub properties: BTreeMap<String, String>,
}

impl Names {
    fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

impl LakeTable {
    /// Writes the manifests of a commit, rolled by size: of its data files, and of its `changelog` files (P9.3). No entries, no
    /// manifest.
    ///
    /// # Errors
    /// `Unavailable`; `Data` when a partition row does not fit the table; `Internal` when an entry is named twice.
    pub async fn write_delta(&self, entries: Vec<ManifestEntry>, changelog: Vec<ManifestEntry>) -> Result<Delta> {
        let identities: BTreeSet<FileIdentity> = entries.iter().chain(&changelog).map(FileIdentity::of).collect();
        if identities.len() < entries.len() + changelog.len() {
            return Err(Error::internal("a commit names a file twice"));
        }
        let (rows, changelog_rows) = (rows_of(&entries), rows_of(&changelog));
        let options = TableOptions::parse(&self.schema)?;
        let hands = self.hands();
        let manifests = self.write_manifests(&hands, entries, &options).await?;
        Ok(Delta { manifests, rows, changelog: self.write_manifests(&hands, changelog, &options).await?, changelog_rows })
    }

    /// Hands for what a commit waits for.
    pub(super) fn hands(&self) -> Hands {
        Hands::Encoders(self.runtime.encoders.clone())
    }

    async fn write_manifests(
        &self,
        hands: &Hands,
        entries: Vec<ManifestEntry>,
        options: &TableOptions,
    ) -> Result<Vec<ManifestFile>> {
        let types = self.schema.partition_types()?;
        let (target, compression) = (options.manifest_target_bytes, options.manifest_compression);
        let (names, rng) = (std::sync::Arc::clone(&self.names), self.runtime.rng.clone());
        let encode = move || -> Result<Vec<_>> {
            let files = encode_rolling(&entries, target, compression, || rng.uuid())?;
            let describe = |(bytes, held): (bytes::Bytes, &[ManifestEntry])| {
                let name = path::manifest_name(names.uuid, names.next());
                let size = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
                Ok((bytes, ManifestFile::of(name, size, held, &types)?))
            };
            files.into_iter().map(describe).collect()
        };
        let write = |(bytes, manifest): (bytes::Bytes, ManifestFile)| async move {
            self.store.put(&self.object(&path::manifest(&manifest.file_name)), bytes).await?;
            Ok(manifest)
        };
        stream::iter(hands.run(encode).await??).map(write).buffered(WRITES_MAX).try_collect().await
    }

    async fn write_list(&self, name: String, manifests: Vec<ManifestFile>, options: &TableOptions) -> Result<Listed> {
        let (compression, sync) = (options.manifest_compression, self.runtime.rng.uuid());
        let bytes = self.runtime.encoders.run(move || encode_list(&manifests, compression, sync)).await??;
        let listed = Listed { name, bytes: i64::try_from(bytes.len()).unwrap_or(i64::MAX) };
        self.store.put(&self.object(&path::manifest(&listed.name)), bytes).await?;
        Ok(listed)
    }

    /// Writes the lists that a snapshot on top of `newest` needs. With `merge`, small manifests are merged on the way.
    ///
    /// # Errors
    /// `Unavailable`; `Data` when a manifest of `newest` is missing or wrong.
    pub async fn stage(&self, newest: Option<&Snapshot>, delta: &Delta, merge: bool) -> Result<Staged> {
        let options = TableOptions::parse(&self.schema)?;
        let mut manifests = match newest {
            Some(newest) => self.manifests(newest).await?,
            None => Vec::new(),
        };
        let mut merged = Vec::new();
        if merge {
            (manifests, merged) = self.merge(manifests, &options).await?;
        }
        // Numbers in Java's order: base, delta, changelog.
        let name = || path::manifest_list_name(self.names.uuid, self.names.next());
        let (base, listed) = (name(), name());
        let changelog = async {
            if delta.changelog.is_empty() {
                return Ok(None);
            }
            let listed = self.write_list(name(), delta.changelog.clone(), &options).await?;
            Ok(Some((listed, delta.changelog_rows)))
        };
        let (base, listed, changelog) = futures::try_join!(
            self.write_list(base, manifests, &options),
            self.write_list(listed, delta.manifests.clone(), &options),
            changelog
        )?;
        Ok(Staged { base, delta: listed, changelog, rows: delta.rows, merged })
    }

    /// The manifests after merging, and the names of those that it made.
    ///
    /// Merging reads and writes what a table has gathered over months, so it is done aside: no other table's encoding waits for it, and no
    /// other table's commit either. Where another table merges now, this one does without until its next commit.
    async fn merge(&self, manifests: Vec<ManifestFile>, options: &TableOptions) -> Result<(Vec<ManifestFile>, Vec<String>)> {
        let planned = plan(&manifests, options);
        if matches!(&planned, Merge::Minor(groups) if groups.is_empty()) {
            return Ok((manifests, Vec::new()));
        }
        let Some(aside) = self.runtime.encoders.aside() else { return Ok((manifests, Vec::new())) };
        let hands = Hands::Aside(aside);
        let (mut after, mut made) = (Vec::new(), Vec::new());
        // What is read together is in memory together.
        let _room = match &planned {
            Merge::Minor(groups) => {
                let bytes = |group: &&[ManifestFile]| group.iter().map(|manifest| manifest.file_size).sum::<i64>();
                let largest = groups.iter().filter_map(|group| manifests.get(group.clone())).max_by_key(bytes);
                room_for(&self.runtime.aside.merges, largest.unwrap_or_default()).await
            }
            Merge::Full(marked) => {
                let marked = manifests.iter().zip(marked).filter(|(_, marked)| **marked);
                room_for(&self.runtime.aside.merges, marked.map(|(manifest, _)| manifest)).await
            }
        };
        match planned {
            Merge::Minor(groups) => {
                let mut rest = manifests.into_iter();
                let mut position = 0;
                for group in groups {
                    after.extend(rest.by_ref().take(group.start - position));
                    let names = rest.by_ref().take(group.len()).map(|manifest| manifest.file_name).collect();
                    let mut entries = Vec::new();
                    self.decode_manifests(&hands, names, |found| {
                        entries.extend(found);
                        Ok(())
                    })
                    .await?;
                    let entries = hands.run(move || merge_entries(entries)).await?;
                    let written = self.write_manifests(&hands, entries, options).await?;
                    made.extend(written.iter().map(|manifest| manifest.file_name.clone()));
                    after.extend(written);
                    position = group.end;
                }
                after.extend(rest);
            }
            Merge::Full(marked) => {
                let runs = self.full_runs(&hands, &manifests, &marked).await?;
                for run in runs {
                    match run {
                        Run::Kept(manifest) => after.push(manifest),
                        Run::Rewritten(entries) => {
                            let written = self.write_manifests(&hands, entries, options).await?;
                            made.extend(written.iter().map(|manifest| manifest.file_name.clone()));
                            after.extend(written);
                        }
                    }
                }
            }
        }
        Ok((after, made))
    }

    /// Reads the marked manifests, finds all that is removed, and tells what stands where afterwards.
    async fn full_runs(&self, hands: &Hands, manifests: &[ManifestFile], marked: &[bool]) -> Result<Vec<Run>> {
        let types = self.schema.partition_types()?;
        let marked = manifests.iter().zip(marked).filter(|(_, marked)| **marked);
        let names: Vec<String> = marked.map(|(manifest, _)| manifest.file_name.clone()).collect();
        let mut read: BTreeMap<String, Vec<ManifestEntry>> = BTreeMap::new();
        let mut order = names.clone().into_iter();
        self.decode_manifests(hands, names, |entries| {
            if let Some(name) = order.next() {
                read.insert(name, entries);
            }
            Ok(())
        })
        .await?;
        let removing = read.values().flatten().filter(|entry| entry.kind == EntryKind::Delete);
        let removed: BTreeSet<FileIdentity> = removing.clone().map(FileIdentity::of).collect();
        let touched: BTreeSet<_> = removing.map(|entry| entry.partition.clone()).collect();
        let touched: Vec<Vec<Option<Datum>>> = touched.iter().map(|row| row.read(&types)).collect::<Result<_>>()?;
        let mut runs: Vec<Run> = Vec::new();
        for manifest in manifests {
            let entries = match read.remove(&manifest.file_name) {
                Some(entries) => Some(entries),
                None => self.untouched(hands, manifest, &touched, &types, &removed).await?,
            };
            match (entries, runs.last_mut()) {
                (None, _) => runs.push(Run::Kept(manifest.clone())),
                (Some(entries), Some(Run::Rewritten(before))) => before.extend(entries),
                (Some(entries), _) => runs.push(Run::Rewritten(entries)),
            }
        }
        let rewritten = runs.iter_mut().filter_map(|run| match run {
            Run::Rewritten(entries) => Some(std::mem::take(entries)),
            Run::Kept(_) => None,
        });
        let rewritten: Vec<Vec<ManifestEntry>> = rewritten.collect();
        let mut live = hands.run(move || live_runs(rewritten)).await?.into_iter();
        for run in &mut runs {
            if let Run::Rewritten(entries) = run {
                *entries = live.next().unwrap_or_default();
            }
        }
        Ok(runs)
    }

    /// `None` when nothing of an unmarked manifest is removed, else its entries.
    async fn untouched(
        &self,
        hands: &Hands,
        manifest: &ManifestFile,
        touched: &[Vec<Option<Datum>>],
        types: &[DataType],
        removed: &BTreeSet<FileIdentity>,
    ) -> Result<Option<Vec<ManifestEntry>>> {
        if !touched.iter().any(|partition| manifest.may_hold(partition, types)) {
            return Ok(None);
        }
        let entries = self.decode_manifest(hands, &manifest.file_name).await?;
        let hit = entries.iter().any(|entry| removed.contains(&FileIdentity::of(entry)));
        Ok(hit.then_some(entries))
    }

    /// Deletes what an attempt wrote for itself, when no snapshot can name it.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn discard_staged(&self, staged: &Staged) -> Result<()> {
        let lists = [&staged.base, &staged.delta].into_iter().chain(staged.changelog.as_ref().map(|(listed, _)| listed));
        self.delete_manifests(lists.map(|listed| listed.name.clone()).chain(staged.merged.iter().cloned())).await
    }

    /// Deletes the manifests of a commit, when no snapshot can name them.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn discard_delta(&self, delta: &Delta) -> Result<()> {
        let manifests = delta.manifests.iter().chain(&delta.changelog);
        self.delete_manifests(manifests.map(|manifest| manifest.file_name.clone())).await
    }

    async fn delete_manifests(&self, names: impl Iterator<Item = String>) -> Result<()> {
        let places: Vec<String> = names.map(|name| self.object(&path::manifest(&name))).collect();
        try_join_all(places.iter().map(|place| self.store.delete(place))).await.map(|_| ())
    }
}

/// Rows that entries add, less those that they remove.
fn rows_of(entries: &[ManifestEntry]) -> i64 {
    entries.iter().fold(0_i64, |rows, entry| match entry.kind {
        EntryKind::Add => rows.saturating_add(entry.file.row_count),
        EntryKind::Delete => rows.saturating_sub(entry.file.row_count),
    })
}

/// Who decodes, merges and encodes.
pub(super) enum Hands {
    /// All that do so.
    Encoders(Encoders),
    /// One of its own.
    Aside(Aside),
}

impl Hands {
    pub(super) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        match self {
            Self::Encoders(encoders) => encoders.run(work).await,
            Self::Aside(aside) => aside.run(work).await,
        }
    }
}

/// What stands at a place of the base list after a full merge.
enum Run {
    Kept(ManifestFile),
    Rewritten(Vec<ManifestEntry>),
}

impl Staged {
    /// The snapshot that publishes this on top of `newest`, which must be the one it was staged on.
    ///
    /// Index manifest, watermark, next row id and, while the schema stays, statistics are inherited (P3.1).
    #[must_use]
    pub fn snapshot(&self, newest: Option<&Snapshot>, facts: CommitFacts) -> Snapshot {
        let total = newest.and_then(|newest| newest.total_record_count).unwrap_or(0);
        let same_schema = newest.is_some_and(|newest| newest.schema_id == facts.schema_id);
        Snapshot {
            id: newest.map_or(1, |newest| newest.id + 1),
            schema_id: facts.schema_id,
            base_manifest_list: self.base.name.clone(),
            base_manifest_list_size: Some(self.base.bytes),
            delta_manifest_list: self.delta.name.clone(),
            delta_manifest_list_size: Some(self.delta.bytes),
            changelog_manifest_list: self.changelog.as_ref().map(|(listed, _)| listed.name.clone()),
            changelog_manifest_list_size: self.changelog.as_ref().map(|(listed, _)| listed.bytes),
            index_manifest: newest.and_then(|newest| newest.index_manifest.clone()),
            commit_user: facts.user,
            commit_identifier: facts.identifier,
            commit_kind: facts.kind,
            time_ms: newest.map_or(facts.time_ms, |newest| facts.time_ms.max(newest.time_ms)),
            total_record_count: Some(total.saturating_add(self.rows)),
            delta_record_count: Some(self.rows),
            changelog_record_count: self.changelog.as_ref().map(|(_, rows)| *rows),
            watermark: newest.and_then(|newest| newest.watermark),
            statistics: newest.and_then(|newest| newest.statistics.clone()).filter(|_| same_schema),
            properties: facts.properties,
            next_row_id: Some(newest.and_then(|newest| newest.next_row_id).unwrap_or(0)),
        }
    }
}
