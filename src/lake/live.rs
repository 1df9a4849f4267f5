//! What is live in a snapshot: manifests read, ADD and DELETE cancelled, partitions described.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};

use super::stage::Hands;
use super::{LakeTable, READS_MAX};
use crate::error::{Error, Result};
use crate::model::{DataType, Datum};
use crate::paimon::manifest::{decode_entries, decode_index_names, decode_list};
use crate::paimon::merge::{FileIdentity, merge_entries};
use crate::paimon::{BinaryRow, EntryKind, ManifestEntry, ManifestFile, Snapshot, path};
use crate::runtime::{Budget, Permit};

/// What the entries of a manifest take in memory, as a multiple of the manifest, about.
const EXPANSION: usize = 16;

/// Which partitions a scan looks at; `None` = all.
pub type PartitionFilter<'a> = Option<&'a BTreeSet<BinaryRow>>;

/// What the live files of one partition say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LivePartition {
    /// `_TOTAL_BUCKETS` of its files: one value, unless somebody has mixed them (P6.4).
    pub totals: BTreeSet<i32>,
    /// Largest sequence number of each bucket that has files.
    pub max_sequence: BTreeMap<i32, i64>,
    /// Files.
    pub files: u64,
    /// Rows of the files.
    pub rows: i64,
    /// Bytes of the files.
    pub bytes: i64,
}

/// The last answer of [`LakeTable::live_partitions`], by snapshot and question.
#[derive(Debug)]
pub(super) struct Cached {
    snapshot: i64,
    /// Ids are used again after a rollback; list names are not.
    delta_list: String,
    filter: Option<BTreeSet<BinaryRow>>,
    partitions: Arc<BTreeMap<BinaryRow, LivePartition>>,
}

/// The manifests of a snapshot, by the names of its lists, which are never used again.
#[derive(Debug)]
pub(super) struct CachedLists {
    base: String,
    delta: String,
    manifests: Vec<ManifestFile>,
}

/// A partition filter with the values that manifests are pruned by.
struct Pruning {
    types: Vec<DataType>,
    wanted: Option<Vec<Vec<Option<Datum>>>>,
}

impl Pruning {
    fn wants(&self, manifest: &ManifestFile) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| wanted.iter().any(|values| manifest.may_hold(values, &self.types)))
    }
}

impl LakeTable {
    /// Reads a manifest list.
    ///
    /// # Errors
    /// `Unavailable`; `Data` when it is missing or wrong.
    pub async fn read_manifest_list(&self, name: &str) -> Result<Vec<ManifestFile>> {
        let (place, bytes) = self.manifest_bytes(name).await?;
        self.runtime.encoders.run(move || decode_list(&bytes)).await?.map_err(|error| self.at(error, &place))
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// `Unavailable`; `Data` when it is missing or wrong.
    pub async fn read_manifest(&self, name: &str) -> Result<Vec<ManifestEntry>> {
        self.decode_manifest(&self.hands(), name).await
    }

    pub(super) async fn decode_manifest(&self, hands: &Hands, name: &str) -> Result<Vec<ManifestEntry>> {
        let (place, bytes) = self.manifest_bytes(name).await?;
        hands.run(move || decode_entries(&bytes)).await?.map_err(|error| self.at(error, &place))
    }

    /// Names of the index files that an index manifest lists.
    ///
    /// # Errors
    /// `Unavailable`; `Data` when it is missing or wrong.
    pub async fn index_files(&self, name: &str) -> Result<Vec<String>> {
        let (place, bytes) = self.manifest_bytes(name).await?;
        decode_index_names(&bytes).map_err(|error| self.at(error, &place))
    }

    /// A manifest, list or index manifest, and its place. A name is what a stored object says, so it is looked at first.
    async fn manifest_bytes(&self, name: &str) -> Result<(String, Bytes)> {
        if name.is_empty() || name == "." || name == ".." || name.contains('/') {
            return Err(Error::data(format!(
                "a snapshot of `{}` names a manifest `{name}`, which is no file name",
                self.location()
            ))
            .with_hint("something else than Paimon or Lakeward has written it: put the snapshot back as it was"));
        }
        let place = path::manifest(name);
        let bytes = self.named(&place).await?;
        Ok((place, bytes))
    }

    /// All manifests of a snapshot: base list, then delta list. The last answer is kept: a round needs it to plan and to commit.
    ///
    /// # Errors
    /// As [`LakeTable::read_manifest_list`].
    pub async fn manifests(&self, snapshot: &Snapshot) -> Result<Vec<ManifestFile>> {
        let (base, delta) = (&snapshot.base_manifest_list, &snapshot.delta_manifest_list);
        {
            let cached = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(cached) = cached.as_ref().filter(|cached| (&cached.base, &cached.delta) == (base, delta)) {
                return Ok(cached.manifests.clone());
            }
        }
        let (of_base, of_delta) = futures::try_join!(self.read_manifest_list(base), self.read_manifest_list(delta))?;
        let manifests: Vec<ManifestFile> = of_base.into_iter().chain(of_delta).collect();
        let kept = CachedLists { base: base.clone(), delta: delta.clone(), manifests: manifests.clone() };
        *self.lists.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
        Ok(manifests)
    }

    /// Reads manifests, several at once, and calls `each` with the entries of one after the other, in order.
    ///
    /// # Errors
    /// As [`LakeTable::read_manifest`]; those of `each`.
    pub async fn for_each_manifest(&self, names: Vec<String>, each: impl FnMut(Vec<ManifestEntry>) -> Result<()>) -> Result<()> {
        self.decode_manifests(&self.hands(), names, each).await
    }

    pub(super) async fn decode_manifests(
        &self,
        hands: &Hands,
        names: Vec<String>,
        mut each: impl FnMut(Vec<ManifestEntry>) -> Result<()>,
    ) -> Result<()> {
        let mut reads = stream::iter(names).map(|name| async move { self.decode_manifest(hands, &name).await }).buffered(READS_MAX);
        while let Some(entries) = reads.try_next().await? {
            each(entries)?;
        }
        Ok(())
    }

    /// The live files of a snapshot as ADD entries, in manifest order.
    ///
    /// # Errors
    /// `Unavailable`; `Data` when a manifest is missing or wrong.
    pub async fn live_entries(&self, snapshot: &Snapshot, filter: PartitionFilter<'_>) -> Result<Vec<ManifestEntry>> {
        let mut entries = Vec::new();
        self.scan(snapshot, filter, |found, _| {
            entries.extend(found);
            Ok(())
        })
        .await?;
        let mut live = merge_entries(entries);
        live.retain(|entry| entry.kind == EntryKind::Add);
        Ok(live)
    }

    /// What the live files say, partition by partition, from one pass over the manifests; the last answer is kept.
    ///
    /// Partitions without live files are absent; some that were not asked for may be there.
    ///
    /// # Errors
    /// As [`LakeTable::live_entries`].
    pub async fn live_partitions(
        &self,
        snapshot: &Snapshot,
        filter: PartitionFilter<'_>,
    ) -> Result<Arc<BTreeMap<BinaryRow, LivePartition>>> {
        {
            let cached = self.live.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(cached) = cached.as_ref().filter(|cached| {
                cached.snapshot == snapshot.id
                    && cached.delta_list == snapshot.delta_manifest_list
                    && cached.filter.as_ref().is_none_or(|known| filter.is_some_and(|filter| filter.is_subset(known)))
            }) {
                return Ok(Arc::clone(&cached.partitions));
            }
        }
        let mut facts = Facts::default();
        self.scan(snapshot, filter, |entries, deletes| {
            facts.add(entries, deletes);
            Ok(())
        })
        .await?;
        let partitions = Arc::new(facts.finish());
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = Some(Cached {
            snapshot: snapshot.id,
            delta_list: snapshot.delta_manifest_list.clone(),
            filter: filter.cloned(),
            partitions: Arc::clone(&partitions),
        });
        Ok(partitions)
    }

    /// Calls `each` with the wanted entries of each manifest, in order, and whether any manifest removes files.
    async fn scan(
        &self,
        snapshot: &Snapshot,
        filter: PartitionFilter<'_>,
        mut each: impl FnMut(Vec<ManifestEntry>, bool) -> Result<()>,
    ) -> Result<()> {
        let types = self.schema.partition_types()?;
        let wanted = filter.map(|rows| rows.iter().map(|row| row.read(&types)).collect::<Result<_>>()).transpose()?;
        let pruning = Pruning { types, wanted };
        let mut manifests = self.manifests(snapshot).await?;
        manifests.retain(|manifest| pruning.wants(manifest));
        let deletes = manifests.iter().any(|manifest| manifest.num_deleted_files != 0);
        let read = async |manifest: ManifestFile| {
            let permit = room_for(&self.runtime.aside.scans, [&manifest]).await;
            self.read_manifest(&manifest.file_name).await.map(|entries| (entries, permit))
        };
        // Each takes its place in the queue for memory in its turn, so the first never waits for one behind it.
        let mut reads = stream::iter(manifests).map(read).buffered(READS_MAX);
        while let Some((mut entries, _permit)) = reads.try_next().await? {
            if let Some(filter) = filter {
                entries.retain(|entry| filter.contains(&entry.partition));
            }
            if !deletes && entries.iter().any(|entry| entry.kind == EntryKind::Delete) {
                return Err(Error::data(format!(
                    "a manifest of snapshot `{}` of `{}` removes files although its list says that none does",
                    snapshot.id,
                    self.location()
                )));
            }
            each(entries, deletes)?;
        }
        Ok(())
    }
}

/// Waits for memory for these manifests and their entries. Who has it must not ask again.
pub(super) async fn room_for(budget: &Budget, manifests: impl IntoIterator<Item = &ManifestFile>) -> Permit {
    let bytes = manifests.into_iter().map(|manifest| usize::try_from(manifest.file_size).unwrap_or(0));
    budget.acquire(bytes.fold(0_usize, usize::saturating_add).saturating_mul(EXPANSION)).await
}

/// Collects live partitions. Identities are kept only where files are removed: on most append tables none ever is.
#[derive(Default)]
struct Facts {
    partitions: BTreeMap<BinaryRow, LivePartition>,
    open: BTreeMap<FileIdentity, Open>,
}

/// What is kept of a file that may be removed further on.
struct Open {
    partition: BinaryRow,
    bucket: i32,
    total_buckets: i32,
    max_sequence: i64,
    rows: i64,
    bytes: i64,
}

impl Open {
    fn new(entry: ManifestEntry) -> Self {
        Self {
            partition: entry.partition,
            bucket: entry.bucket,
            total_buckets: entry.total_buckets,
            max_sequence: entry.file.max_sequence_number,
            rows: entry.file.row_count,
            bytes: entry.file.file_size,
        }
    }
}

impl Facts {
    fn add(&mut self, entries: Vec<ManifestEntry>, deletes: bool) {
        for entry in entries {
            match entry.kind {
                EntryKind::Add if deletes => {
                    self.open.insert(FileIdentity::of(&entry), Open::new(entry));
                }
                EntryKind::Add => self.count(Open::new(entry)),
                EntryKind::Delete => {
                    self.open.remove(&FileIdentity::of(&entry));
                }
            }
        }
    }

    fn count(&mut self, file: Open) {
        let partition = self.partitions.entry(file.partition).or_default();
        partition.totals.insert(file.total_buckets);
        let sequence = file.max_sequence;
        partition.max_sequence.entry(file.bucket).and_modify(|max| *max = sequence.max(*max)).or_insert(sequence);
        partition.files += 1;
        partition.rows = partition.rows.saturating_add(file.rows);
        partition.bytes = partition.bytes.saturating_add(file.bytes);
    }

    fn finish(mut self) -> BTreeMap<BinaryRow, LivePartition> {
        for entry in std::mem::take(&mut self.open).into_values() {
            self.count(entry);
        }
        self.partitions
    }
}
