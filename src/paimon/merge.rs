//! Which manifests a commit merges, decided without reading them, and the merging of their entries (P4.7).
//!
//! Order is kept throughout: a DELETE stays behind its ADD, and the entries of a bucket stay in the order of their commits.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use super::meta::{BinaryRow, EntryKind, ManifestEntry, ManifestFile};
use super::options::TableOptions;

/// What becomes of the manifests of the newest snapshot in the next base list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Merge {
    /// These groups of at least two neighbours become one (or more, rolled) each; all others stay.
    Minor(Vec<Range<usize>>),
    /// The manifests marked are read together, pairs are cancelled everywhere, what is left is written in place of each run of
    /// them. One that is not marked stays unless a DELETE removes one of its files.
    Full(Vec<bool>),
}

/// Plans the merging of `manifests`: base list, then delta list, of the newest snapshot.
#[must_use]
pub fn plan(manifests: &[ManifestFile], options: &TableOptions) -> Merge {
    let bytes = |manifest: &ManifestFile| u64::try_from(manifest.file_size).unwrap_or(0);
    let target = options.manifest_target_bytes;
    let small_or_deleting: Vec<bool> =
        manifests.iter().map(|manifest| manifest.num_deleted_files > 0 || bytes(manifest) < target).collect();
    let marked: u64 = manifests.iter().zip(&small_or_deleting).filter(|(_, marked)| **marked).map(|(file, _)| bytes(file)).sum();
    if marked >= options.manifest_full_bytes {
        return Merge::Full(small_or_deleting);
    }
    let mut groups = Vec::new();
    let (mut start, mut size) = (0, 0);
    for (index, manifest) in manifests.iter().enumerate() {
        size += bytes(manifest);
        if size >= target {
            groups.push(start..index + 1);
            (start, size) = (index + 1, 0);
        }
    }
    if manifests.len() - start >= options.manifest_merge_min {
        groups.push(start..manifests.len());
    }
    groups.retain(|group| group.len() > 1);
    Merge::Minor(groups)
}

/// What makes two entries speak of the same file (P4.3).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileIdentity {
    partition: BinaryRow,
    bucket: i32,
    level: i32,
    file_name: String,
    extra_files: Vec<String>,
    embedded_file_index: Option<Bytes>,
    external_path: Option<String>,
}

impl FileIdentity {
    /// The identity of an entry's file.
    #[must_use]
    pub fn of(entry: &ManifestEntry) -> Self {
        Self {
            partition: entry.partition.clone(),
            bucket: entry.bucket,
            level: entry.file.level,
            file_name: entry.file.file_name.clone(),
            extra_files: entry.file.extra_files.clone(),
            embedded_file_index: entry.file.embedded_file_index.clone(),
            external_path: entry.file.external_path.clone(),
        }
    }
}

/// Cancels each DELETE with the ADD before it; the rest stays in order. A DELETE without its ADD stays.
#[must_use]
pub fn merge_entries(entries: Vec<ManifestEntry>) -> Vec<ManifestEntry> {
    if entries.iter().all(|entry| entry.kind == EntryKind::Add) {
        return entries;
    }
    cancel(vec![entries]).into_iter().flatten().collect()
}

/// The live files of runs of entries that together are complete: pairs are cancelled across all runs, each run keeps its ADDs.
#[must_use]
pub fn live_runs(runs: Vec<Vec<ManifestEntry>>) -> Vec<Vec<ManifestEntry>> {
    let mut runs = cancel(runs);
    for run in &mut runs {
        run.retain(|entry| entry.kind == EntryKind::Add);
    }
    runs
}

fn cancel(runs: Vec<Vec<ManifestEntry>>) -> Vec<Vec<ManifestEntry>> {
    let mut added: BTreeMap<FileIdentity, (usize, usize)> = BTreeMap::new();
    let mut kept: Vec<Vec<Option<ManifestEntry>>> = Vec::with_capacity(runs.len());
    for run in runs {
        kept.push(Vec::with_capacity(run.len()));
        let last = kept.len() - 1;
        for entry in run {
            let identity = FileIdentity::of(&entry);
            let cancelled = if entry.kind == EntryKind::Delete { added.remove(&identity) } else { None };
            if let Some((run, index)) = cancelled {
                if let Some(slot) = kept.get_mut(run).and_then(|run| run.get_mut(index)) {
                    *slot = None;
                }
            } else if let Some(run) = kept.last_mut() {
                if entry.kind == EntryKind::Add {
                    added.insert(identity, (last, run.len()));
                }
                run.push(Some(entry));
            }
        }
    }
    kept.into_iter().map(|run| run.into_iter().flatten().collect()).collect()
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;
    use crate::paimon::{DataFile, SimpleStats, TableSchema};

    fn options() -> TableOptions {
        let schema = r#"{"id":0,"fields":[],"highestFieldId":-1,"partitionKeys":[],"primaryKeys":[],
            "options":{"manifest.target-file-size":"100 b","manifest.merge-min-count":"3","manifest.full-compaction-threshold-size":"300 b"}}"#;
        TableOptions::parse(&TableSchema::from_json(schema).unwrap()).unwrap()
    }

    fn listed(sizes: &[i64]) -> Vec<ManifestFile> {
        sizes.iter().map(|size| ManifestFile::of("m", *size, &[], &[]).unwrap()).collect()
    }

    #[test]
    fn small_neighbours_are_merged_and_a_short_tail_waits() {
        let plan = |sizes: &[i64]| plan(&listed(sizes), &options());
        assert_eq!(plan(&[]), Merge::Minor(vec![]));
        assert_eq!(plan(&[40, 40]), Merge::Minor(vec![]));
        assert_eq!(plan(&[10, 10, 10]), Merge::Minor(iter::once(0..3).collect()));
        assert_eq!(plan(&[60, 60, 10, 10]), Merge::Minor(iter::once(0..2).collect()));
        assert_eq!(plan(&[120, 130, 60, 40, 5, 5, 5]), Merge::Minor(vec![2..4, 4..7]));
    }

    #[test]
    fn many_bytes_in_small_or_deleting_manifests_are_merged_in_full() {
        let mut manifests = listed(&[120, 99, 99, 99, 130]);
        assert!(matches!(plan(&manifests, &options()), Merge::Minor(_)));
        manifests[4].num_deleted_files = 1;
        assert_eq!(plan(&manifests, &options()), Merge::Full(vec![false, true, true, true, true]));
    }

    fn entry(kind: EntryKind, name: &str) -> ManifestEntry {
        ManifestEntry {
            kind,
            partition: BinaryRow::empty(),
            bucket: 0,
            total_buckets: 1,
            file: DataFile {
                file_name: name.into(),
                file_size: 1,
                row_count: 1,
                min_key: BinaryRow::empty(),
                max_key: BinaryRow::empty(),
                key_stats: SimpleStats::empty(),
                value_stats: SimpleStats::empty(),
                min_sequence_number: 0,
                max_sequence_number: 0,
                schema_id: 0,
                level: 0,
                extra_files: vec![],
                creation_time_ms: None,
                delete_row_count: None,
                embedded_file_index: None,
                file_source: None,
                value_stats_cols: None,
                external_path: None,
                first_row_id: None,
                write_cols: None,
            },
        }
    }

    #[test]
    fn pairs_cancel_and_order_stays() {
        use EntryKind::{Add, Delete};
        let merged = |entries: &[(EntryKind, &str)]| -> Vec<(EntryKind, String)> {
            let entries = entries.iter().map(|(kind, name)| entry(*kind, name)).collect();
            merge_entries(entries).into_iter().map(|entry| (entry.kind, entry.file.file_name)).collect()
        };
        assert_eq!(
            merged(&[(Add, "a"), (Delete, "old"), (Add, "b"), (Delete, "a"), (Add, "c")]),
            [(Delete, "old".into()), (Add, "b".into()), (Add, "c".into())]
        );
        assert_eq!(merged(&[(Delete, "a"), (Add, "a")]), [(Delete, "a".into()), (Add, "a".into())]);
        let mut other_level = entry(Delete, "a");
        other_level.file.level = 1;
        assert_eq!(merge_entries(vec![entry(Add, "a"), other_level]).len(), 2);
    }
}
