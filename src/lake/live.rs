//! What is live in a snapshot: manifests read, ADD and DELETE cancelled, partitions described.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use futures::{StreamExt, TryStreamExt, stream};

use super::{LakeTable, READS_MAX};
use crate::error::{Error, Result};
use crate::model::{DataType, Datum};
use crate::paimon::manifest::{decode_entries, decode_index_names, decode_list};
use crate::paimon::merge::{FileIdentity, merge_entries};
use crate::paimon::{BinaryRow, EntryKind, ManifestEntry, ManifestFile, Snapshot, path};

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
        let place = path::manifest(name);
        let bytes = self.store.get_existing(&self.object(&place)).await?;
        self.runtime.encoders.run(move || decode_list(&bytes)).await?.map_err(|error| self.at(error, &place))
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// `Unavailable`; `Data` when it is missing or wrong.
    pub async fn read_manifest(&self, name: &str) -> Result<Vec<ManifestEntry>> {
        let place = path::manifest(name);
        let bytes = self.store.get_existing(&self.object(&place)).await?;
        self.runtime.encoders.run(move || decode_entries(&bytes)).await?.map_err(|error| self.at(error, &place))
    }

    /// Names of the index files that an index manifest lists.
    ///
    /// # Errors
    /// `Unavailable`; `Data` when it is missing or wrong.
    pub async fn index_files(&self, name: &str) -> Result<Vec<String>> {
        let place = path::manifest(name);
        let bytes = self.store.get_existing(&self.object(&place)).await?;
        decode_index_names(&bytes).map_err(|error| self.at(error, &place))
    }

    /// All manifests of a snapshot: base list, then delta list.
    ///
    /// # Errors
    /// As [`LakeTable::read_manifest_list`].
    pub async fn manifests(&self, snapshot: &Snapshot) -> Result<Vec<ManifestFile>> {
        let (base, delta) = futures::try_join!(
            self.read_manifest_list(&snapshot.base_manifest_list),
            self.read_manifest_list(&snapshot.delta_manifest_list)
        )?;
        Ok(base.into_iter().chain(delta).collect())
    }

    /// Reads manifests, several at once, and calls `each` with the entries of one after the other, in order.
    ///
    /// # Errors
    /// As [`LakeTable::read_manifest`]; those of `each`.
    pub async fn for_each_manifest(
        &self,
        names: Vec<String>,
        mut each: impl FnMut(Vec<ManifestEntry>) -> Result<()>,
    ) -> Result<()> {
        let mut reads = stream::iter(names).map(|name| async move { self.read_manifest(&name).await }).buffered(READS_MAX);
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
    /// Partitions without live files are absent.
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
                    && (cached.filter.is_none() || cached.filter.as_ref() == filter)
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
        self.for_each_manifest(manifests.into_iter().map(|manifest| manifest.file_name).collect(), |mut entries| {
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
            each(entries, deletes)
        })
        .await
    }
}

/// Collects live partitions. Identities are kept only where files are removed: on most append tables none ever is.
#[derive(Default)]
struct Facts {
    partitions: BTreeMap<BinaryRow, LivePartition>,
    open: BTreeMap<FileIdentity, ManifestEntry>,
}

impl Facts {
    fn add(&mut self, entries: Vec<ManifestEntry>, deletes: bool) {
        for entry in entries {
            match entry.kind {
                EntryKind::Add if deletes => {
                    self.open.insert(FileIdentity::of(&entry), entry);
                }
                EntryKind::Add => self.count(&entry),
                EntryKind::Delete => {
                    self.open.remove(&FileIdentity::of(&entry));
                }
            }
        }
    }

    fn count(&mut self, entry: &ManifestEntry) {
        let partition = self.partitions.entry(entry.partition.clone()).or_default();
        partition.totals.insert(entry.total_buckets);
        let sequence = entry.file.max_sequence_number;
        partition.max_sequence.entry(entry.bucket).and_modify(|max| *max = sequence.max(*max)).or_insert(sequence);
        partition.files += 1;
        partition.rows = partition.rows.saturating_add(entry.file.row_count);
        partition.bytes = partition.bytes.saturating_add(entry.file.file_size);
    }

    fn finish(mut self) -> BTreeMap<BinaryRow, LivePartition> {
        for entry in std::mem::take(&mut self.open).into_values() {
            self.count(&entry);
        }
        self.partitions
    }
}
