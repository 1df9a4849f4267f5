//! Lake snapshots of tables: the list that CommitLakeTableSnapshot grows, and the offsets files it names.
//!
//! As loose as the real coordinator, on purpose (F3.3): nothing is fenced, ids may go back or repeat, files are not looked at when
//! they are committed, and a commit that does not say otherwise forgets all earlier entries and deletes their files.
//!
//! Source: F3.1–F3.3, F D1.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::registry::Registry;
use crate::error::{Error, Result};
use crate::fluss::code::Code;
use crate::model::{LakeOffsets, OffsetsFile, SnapshotId, TableId, TablePath};
use crate::runtime::Rng;
use crate::storage::{Created, Store, StoreOptions, read};

/// One lake snapshot that was recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) snapshot_id: SnapshotId,
    pub(super) tiered_offsets: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) readable_offsets: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    version: i32,
    lake_snapshots: Vec<Entry>,
}

/// Which snapshot GetLakeSnapshot asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    Latest,
    Readable,
    Id(SnapshotId),
}

/// The snapshots of all tables.
#[derive(Debug)]
pub(super) struct Snapshots {
    registry: Arc<Registry>,
    /// The remote data dir.
    store: Store,
    rng: Rng,
    /// A commit reads the list and writes it again.
    committing: tokio::sync::Mutex<()>,
}

impl Snapshots {
    pub(super) fn new(registry: Arc<Registry>, store: Store, rng: Rng) -> Self {
        Self { registry, store, rng, committing: tokio::sync::Mutex::default() }
    }

    /// Prefix of the paths that are handed out: `file:` and the remote data dir.
    fn prefix(&self) -> String {
        format!("file:{}/", self.store.url().trim_end_matches('/'))
    }

    /// Writes an offsets file, durably, and returns its path. Unless `alone`, the latest recorded offsets lie under `offsets`.
    ///
    /// # Errors
    /// −1 when the latest recorded file can't be read.
    pub(super) async fn prepare(&self, table: TableId, path: &TablePath, offsets: &LakeOffsets, alone: bool) -> Result<String> {
        let base = if alone { None } else { self.latest(table).await? };
        let offsets = base.map_or_else(|| offsets.clone(), |base| base.overlaid(offsets));
        let text = OffsetsFile { table, offsets }.to_json();
        let place = format!("lake/{}/{}-{table}/metadata/{}.offsets", path.database, path.table, self.rng.uuid());
        match self.store.create(&place, text.into()).await? {
            Created::Yes => Ok(format!("{}{place}", self.prefix())),
            Created::Exists => Err(Error::internal(format!("offsets file `{place}` exists already"))),
        }
    }

    /// Records a snapshot. `earliest`: absent = forget all others; an id in the list = forget those before it (by position); −1 or an
    /// id that is not there = forget none.
    pub(super) async fn commit(&self, table: TableId, entry: Entry, earliest: Option<i64>) -> Result<()> {
        let _committing = self.committing.lock().await;
        let mut entries = self.entries(table).await?;
        let kept = match earliest {
            None => entries.len(),
            Some(id) => entries.iter().position(|entry| entry.snapshot_id.0 == id).unwrap_or(0),
        };
        let forgotten: Vec<Entry> = entries.drain(..kept).collect();
        entries.push(entry);
        let record = Record { version: 2, lake_snapshots: entries };
        let json = serde_json::to_string(&record).map_err(|source| Error::internal("write lake snapshots").with_source(source))?;
        self.registry.put_lake_record(table, json).await?;
        let prefix = self.prefix();
        // Also a file that the new entry names again, as the real coordinator does.
        for path in forgotten.iter().flat_map(paths) {
            // A path that is not ours was committed on trust; it is not ours to delete either.
            if let Some(place) = path.strip_prefix(&prefix)
                && let Err(error) = self.store.delete(place).await
            {
                tracing::warn!(%path, error = %error.chain(), "offsets file of a forgotten snapshot stays");
            }
        }
        Ok(())
    }

    /// The snapshot asked for and its offsets.
    ///
    /// # Errors
    /// 53 when there is none; −1 when its offsets file can't be read.
    pub(super) async fn get(&self, table: TableId, which: Which) -> Result<(SnapshotId, LakeOffsets)> {
        let entries = self.entries(table).await?;
        let found = match which {
            Which::Latest => entries.last().map(|entry| (entry.snapshot_id, &entry.tiered_offsets)),
            Which::Readable => {
                entries.iter().rev().find_map(|entry| entry.readable_offsets.as_ref().map(|path| (entry.snapshot_id, path)))
            }
            Which::Id(id) => entries.iter().find(|entry| entry.snapshot_id == id).map(|entry| (id, &entry.tiered_offsets)),
        };
        let Some((id, path)) = found else {
            return Err(Code::LAKE_SNAPSHOT_NOT_EXIST.answer(format!("table id `{table}` has no such lake snapshot")));
        };
        Ok((id, self.read(table, path).await?))
    }

    /// The latest recorded offsets, if any.
    pub(super) async fn latest(&self, table: TableId) -> Result<Option<LakeOffsets>> {
        match self.entries(table).await?.last() {
            Some(entry) => self.read(table, &entry.tiered_offsets).await.map(Some),
            None => Ok(None),
        }
    }

    async fn read(&self, table: TableId, path: &str) -> Result<LakeOffsets> {
        let fault = || Code::UNKNOWN_SERVER_ERROR.answer(format!("offsets file `{path}` of table id `{table}` can't be read"));
        let bytes = read(path, &StoreOptions::default()).await.map_err(|error| fault().with_source(error))?.ok_or_else(fault)?;
        let text = std::str::from_utf8(&bytes).map_err(|source| fault().with_source(source))?;
        Ok(OffsetsFile::from_json(text).map_err(|error| fault().with_source(error))?.offsets)
    }

    async fn entries(&self, table: TableId) -> Result<Vec<Entry>> {
        let Some(json) = self.registry.lake_record(table).await? else { return Ok(Vec::new()) };
        let record: Record = serde_json::from_str(&json)
            .map_err(|source| Error::data(format!("lake snapshots of table id `{table}` can't be read")).with_source(source))?;
        Ok(record.lake_snapshots)
    }
}

/// Reads a record, for [`crate::hostile`].
#[cfg(any(test, fuzzing))]
pub(super) fn read_record(json: &str) -> Result<()> {
    serde_json::from_str::<Record>(json)
        .map(drop)
        .map_err(|source| Error::data("lake snapshots of table id `1`").with_source(source))
}

fn paths(entry: &Entry) -> impl Iterator<Item = &String> {
    std::iter::once(&entry.tiered_offsets).chain(&entry.readable_offsets)
}
