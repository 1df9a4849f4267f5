//! The twin's list of lake snapshots and its offsets files, as destructive as the real coordinator's (F3.2, F3.3).

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::model::{LakeOffsets, OffsetsFile, SnapshotId, TableBucket, TableId};
use crate::source::{LedgerEntry, LedgerState};

/// One entry of a table's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The lake snapshot.
    pub snapshot: SnapshotId,
    /// Its offsets file: tiered and readable path alike.
    pub offsets_path: String,
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    entries: BTreeMap<TableId, Vec<Recorded>>,
    files: BTreeMap<String, OffsetsFile>,
    /// What the leaders were told: it only ever grows.
    pub(super) told: BTreeMap<TableBucket, i64>,
}

impl Ledger {
    pub(super) fn entries(&self, table: TableId) -> &[Recorded] {
        self.entries.get(&table).map_or(&[], Vec::as_slice)
    }

    pub(super) fn file(&self, path: &str) -> Option<&OffsetsFile> {
        self.files.get(path)
    }

    pub(super) fn remove_file(&mut self, path: &str) -> bool {
        self.files.remove(path).is_some()
    }

    pub(super) fn latest(&self, table: TableId) -> LedgerState {
        let Some(newest) = self.entries(table).last() else { return LedgerState::Empty };
        match self.files.get(&newest.offsets_path) {
            Some(file) => {
                let entry = LedgerEntry { table: file.table, snapshot: newest.snapshot, offsets: file.offsets.clone() };
                LedgerState::At(entry)
            }
            None => LedgerState::Unknown { message: format!("offsets file `{}` can't be read", newest.offsets_path) },
        }
    }

    /// Writes a file with these offsets, over the newest entry's unless `ignore_previous`.
    pub(super) fn prepare(&mut self, path: String, file: OffsetsFile, ignore_previous: bool) -> Result<String> {
        let offsets = match self.latest(file.table) {
            LedgerState::At(newest) if !ignore_previous => newest.offsets.overlaid(&file.offsets),
            LedgerState::Unknown { message } if !ignore_previous => return Err(Error::invalid(message).with_code(-1)),
            _ => file.offsets,
        };
        self.files.insert(path.clone(), OffsetsFile { table: file.table, offsets });
        Ok(path)
    }

    /// Appends an entry; whatever `earliest` does not keep goes, and its file with it. Nothing is checked.
    pub(super) fn record(&mut self, table: TableId, entry: Recorded, earliest: Option<SnapshotId>, told: &LakeOffsets) {
        let list = self.entries.entry(table).or_default();
        let first_kept = match earliest {
            None => list.len(),
            Some(id) => list.iter().position(|known| known.snapshot == id).unwrap_or(0),
        };
        let discarded: Vec<Recorded> = list.drain(..first_kept).collect();
        list.push(entry);
        // Even when the new entry names the same file.
        for old in discarded {
            self.files.remove(&old.offsets_path);
        }
        for (key, offset) in &told.0 {
            let bucket = TableBucket { table, partition: key.partition, bucket: key.bucket };
            let known = self.told.entry(bucket).or_insert(*offset);
            *known = (*known).max(*offset);
        }
    }
}
