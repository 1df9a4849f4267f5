//! A lake table: open, newest snapshot, schema, manifest scan, staging, publish (docs/spec/paimon-format.md, **P**).
//!
//! Owns the reading and writing of everything in a table's folder but data files being written. Formats are `paimon`'s,
//! decisions about commits `commit`'s. Callers: plan, write, commit, catalog, node, audit.

mod admin;
mod live;
mod rows;
mod stage;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::{Error, Kind, Result};
use crate::paimon::{Snapshot, TableOptions, TableSchema, path};
use crate::runtime::Runtime;
use crate::storage::{self, Created, Store, StoreOptions};

pub use admin::{SchemaChange, Warehouse};
pub use live::{LivePartition, PartitionFilter};
#[cfg(any(test, fuzzing))]
pub(crate) use rows::read_bytes;
pub use rows::{FileReader, FileRows, MergeReader};
pub use stage::{CommitFacts, Delta, Staged};

/// Objects of a table that are read at once.
const READS_MAX: usize = 16;
/// Ids behind the LATEST hint that are tried one by one before the folder is listed.
const PROBES_MAX: i64 = 16;
/// Larger ids in names and hints are somebody's garbage; below it, counting on can't overflow.
const ID_MAX: i64 = i64::MAX / 2;

/// A table of the lake. Clones share what was read and the names of manifests to come.
#[derive(Debug, Clone)]
pub struct LakeTable {
    store: Store,
    root: String,
    runtime: Runtime,
    schema: Arc<TableSchema>,
    /// Creation time of schema 0, if that was there.
    born_ms: Option<i64>,
    names: Arc<Names>,
    live: Arc<Mutex<Option<live::Cached>>>,
    lists: Arc<Mutex<Option<live::CachedLists>>>,
}

/// Names of manifests and lists: one uuid per opened table, one counter (P1.2).
#[derive(Debug)]
struct Names {
    uuid: Uuid,
    next: AtomicU64,
}

/// What a publish did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Published {
    /// The snapshot is there, and it is ours.
    Created,
    /// There is a snapshot of that id: read it to tell whose.
    Exists,
}

/// A consumer file: it keeps snapshots from `next_snapshot` on from expiring (P10.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// Its name; the file is `consumer/consumer-NAME`.
    pub name: String,
    /// The oldest snapshot it holds; 0 where the file can't be read: a write of it was cut, and it may hold anything.
    pub next_snapshot: i64,
    /// When it was written, epoch milliseconds by the store's clock.
    pub written_ms: i64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConsumerJson {
    next_snapshot: i64,
}

const WRONG_SNAPSHOT: &str = "put the file back as it was; or, if no newer one is there, roll the lake table back to the snapshot below it \
                              (Paimon's procedure `rollback_to`), then state that with `lakeward repair accept-base DB.TABLE`";
/// What helps where an object is missing or wrong.
pub const WAY_BACK: &str =
    "bring the object back from a copy, or roll the lake table back to a snapshot that does not need it (docs/compatibility.md)";
const WRONG_COPY: &str = "put the file back as it was; or take it away, if what it keeps is not needed";
const WRONG_SCHEMA: &str = "put the file back as it was: files that were written by it can't be read without";

impl LakeTable {
    /// Opens the table in folder `root` (e.g. `demo.db/orders`) of `store`; `None` when there is no schema file.
    ///
    /// # Errors
    /// `Unavailable`; `Data` and `Unsupported` as [`TableSchema::from_json`], the file named.
    pub async fn open(store: Store, root: impl Into<String>, runtime: Runtime) -> Result<Option<Self>> {
        let root = root.into();
        // Most tables have no other, and what tells a table that was made again has to be read anyway.
        let zero = find_schema(&store, &root, 0).await?;
        let newest = match &zero {
            Some(_) => Some(newest_schema_above(&store, &root).await?),
            None => max_id(&store, &root, path::SCHEMAS, "schema-").await?,
        };
        let Some(newest) = newest else { return Ok(None) };
        let born_ms = zero.as_ref().map(|schema| schema.time_ms);
        let schema = match zero {
            Some(zero) if newest == 0 => zero,
            _ => read_schema(&store, &root, newest).await?,
        };
        let names = Arc::new(Names { uuid: runtime.rng.uuid(), next: AtomicU64::new(0) });
        let (schema, live, lists) = (Arc::new(schema), Arc::default(), Arc::default());
        Ok(Some(Self { store, root, runtime, schema, born_ms, names, live, lists }))
    }

    /// Opens the table in folder `root` of the warehouse at `url`; `None` when there is none. Nothing is made.
    ///
    /// # Errors
    /// As [`storage::open`] and [`LakeTable::open`].
    pub async fn open_in(
        url: &str,
        options: &BTreeMap<String, String>,
        root: impl Into<String>,
        runtime: Runtime,
    ) -> Result<Option<Self>> {
        if !storage::is_there(url)? {
            return Ok(None);
        }
        let options = StoreOptions { options: options.clone(), own: runtime.stores.options(), ..StoreOptions::default() };
        let store = storage::open(url, &options)?.with_fail_points(runtime.fail.clone());
        Self::open(store, root, runtime).await
    }

    /// The newest schema when the table was opened.
    #[must_use]
    pub fn schema(&self) -> &Arc<TableSchema> {
        &self.schema
    }

    /// The options of that schema.
    ///
    /// # Errors
    /// As [`TableOptions::parse`]: what can't be honoured is refused by name.
    pub fn options(&self) -> Result<TableOptions> {
        TableOptions::parse(&self.schema)
    }

    /// Folder of the table inside its store.
    #[must_use]
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Where the table is, for messages and users.
    #[must_use]
    pub fn location(&self) -> String {
        self.store.name(&self.root)
    }

    /// The machine it was opened with.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Path inside the store of an object of the table.
    #[must_use]
    pub fn object(&self, path: &str) -> String {
        format!("{}/{path}", self.root)
    }

    /// Reads a schema.
    ///
    /// # Errors
    /// `Unavailable`; `Data` when it is missing or wrong.
    pub async fn load_schema(&self, id: i64) -> Result<Arc<TableSchema>> {
        if id == self.schema.id {
            return Ok(Arc::clone(&self.schema));
        }
        Ok(Arc::new(read_schema(&self.store, &self.root, id).await?))
    }

    /// Creation time of schema 0, epoch milliseconds, when the table was opened: another one = the table was dropped and made again.
    ///
    /// # Errors
    /// `Data` when schema 0 was missing.
    pub fn born_ms(&self) -> Result<i64> {
        self.born_ms.ok_or_else(|| Error::data(format!("`{}` is missing", self.store.name(&self.object(&path::schema(0))))))
    }

    /// Reads schema 0 from the store, as it is now.
    ///
    /// # Errors
    /// As [`LakeTable::load_schema`].
    pub async fn schema_zero(&self) -> Result<TableSchema> {
        read_schema(&self.store, &self.root, 0).await
    }

    /// Id of the newest schema now. Schema files are never removed, so it is looked for from the one that is known.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn newest_schema_id(&self) -> Result<i64> {
        let mut id = self.schema.id;
        while self.exists(&path::schema(id + 1)).await? {
            id += 1;
        }
        Ok(id)
    }

    async fn exists(&self, path: &str) -> Result<bool> {
        Ok(self.store.size(&self.object(path)).await?.is_some())
    }

    /// Id of the newest snapshot now; `None` on a table without snapshots.
    ///
    /// # Errors
    /// `Unavailable`.
    ///
    /// Source: P1.3. Other than Java's, a hint that names no snapshot does no harm.
    pub async fn newest_snapshot_id(&self) -> Result<Option<i64>> {
        Ok(self.find_newest(false).await?.0)
    }

    /// Id of the newest snapshot now, and the snapshot where it was read on the way: one request fewer than one after the other.
    ///
    /// # Errors
    /// `Unavailable`; `Data` when that snapshot is wrong.
    pub async fn newest_snapshot(&self) -> Result<(Option<i64>, Option<Snapshot>)> {
        match self.find_newest(true).await? {
            (Some(id), Some(bytes)) => Ok((Some(id), Some(self.parse_snapshot(id, &bytes)?))),
            (id, _) => Ok((id, None)),
        }
    }

    /// The newest id; if `read`, with the snapshot's bytes, unless it was found in a list.
    async fn find_newest(&self, read: bool) -> Result<(Option<i64>, Option<Bytes>)> {
        if let Some(hint) = self.latest_hint().await? {
            for id in hint..hint.saturating_add(PROBES_MAX) {
                let next = path::snapshot(id + 1);
                match futures::try_join!(self.look(id, read), self.exists(&next))? {
                    (_, true) => {}
                    (Some(found), false) => return Ok((Some(id), Some(found).filter(|_| read))),
                    (None, false) => break,
                }
            }
        }
        Ok((max_id(&self.store, &self.root, path::SNAPSHOTS, "snapshot-").await?, None))
    }

    /// `None` where the snapshot is not there; nothing of it unless it is to be `read`.
    async fn look(&self, id: i64, read: bool) -> Result<Option<Bytes>> {
        let place = path::snapshot(id);
        if read { self.store.get(&self.object(&place)).await } else { Ok(self.exists(&place).await?.then(Bytes::new)) }
    }

    async fn latest_hint(&self) -> Result<Option<i64>> {
        let hint = self.store.get(&self.object(path::LATEST)).await?;
        Ok(hint.and_then(|bytes| std::str::from_utf8(&bytes).ok()?.trim().parse().ok()).filter(|id| (1..=ID_MAX).contains(id)))
    }

    /// Ids of all snapshots that are there, ascending.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn snapshot_ids(&self) -> Result<Vec<i64>> {
        ids(&self.store, &self.root, path::SNAPSHOTS, "snapshot-").await
    }

    /// Reads a snapshot; `None` when it is not there.
    ///
    /// # Errors
    /// `Unavailable`; `Data` when it is wrong.
    pub async fn snapshot(&self, id: i64) -> Result<Option<Snapshot>> {
        let bytes = self.store.get(&self.object(&path::snapshot(id))).await?;
        bytes.map(|bytes| self.parse_snapshot(id, &bytes)).transpose()
    }

    fn parse_snapshot(&self, id: i64, bytes: &[u8]) -> Result<Snapshot> {
        let place = path::snapshot(id);
        let wrong = |error: Error| self.at(error, &place).with_hint(WRONG_SNAPSHOT);
        let snapshot = text(bytes).and_then(Snapshot::from_json).map_err(wrong)?;
        if snapshot.id != id {
            return Err(wrong(Error::data(format!("snapshot file says id `{}`", snapshot.id))));
        }
        Ok(snapshot)
    }

    /// Reads what has the form of a snapshot: a tag, a changelog, or one of a branch. `None` when it is not there.
    ///
    /// # Errors
    /// `Unavailable`; `Data` when it is wrong.
    pub async fn snapshot_at(&self, place: &str) -> Result<Option<Snapshot>> {
        if let Some(id) = place.strip_prefix(path::SNAPSHOTS).and_then(|name| path::id_of(name, "snapshot-")) {
            return self.snapshot(id).await;
        }
        let Some(bytes) = self.store.get(&self.object(place)).await? else { return Ok(None) };
        let wrong = |error: Error| self.at(error, place).with_hint(WRONG_COPY);
        text(&bytes).and_then(Snapshot::from_json).map(Some).map_err(wrong)
    }

    fn at(&self, error: Error, path: &str) -> Error {
        with_way_back(error.context(format!("read `{}`", self.store.name(&self.object(path)))))
    }

    /// What is there, as something names it.
    async fn named(&self, path: &str) -> Result<Bytes> {
        self.store.get_existing(&self.object(path)).await.map_err(with_way_back)
    }

    /// Publishes a snapshot by create-if-absent.
    ///
    /// # Errors
    /// `Unavailable`: **the outcome is unknown**, only reading tells (commit.md 5d).
    pub async fn publish(&self, snapshot: &Snapshot) -> Result<Published> {
        let json = Bytes::from(snapshot.to_json()?);
        Ok(match self.store.create(&self.object(&path::snapshot(snapshot.id)), json).await? {
            Created::Yes => Published::Created,
            Created::Exists => Published::Exists,
        })
    }

    /// Writes the LATEST hint; `id` must be there. Losing it does no harm.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn write_latest_hint(&self, id: i64) -> Result<()> {
        self.store.put(&self.object(path::LATEST), Bytes::from(id.to_string())).await
    }

    /// Consumers whose name starts with `prefix`, in the order of their names.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn pins(&self, prefix: &str) -> Result<Vec<Pin>> {
        let mut pins = Vec::new();
        for listed in self.store.list(&self.object(path::CONSUMERS)).await? {
            let name = listed.path.rsplit('/').next().and_then(|name| name.strip_prefix("consumer-"));
            let Some(name) = name.filter(|name| name.starts_with(prefix)) else { continue };
            // Removed between listing and reading: gone.
            let Some(bytes) = self.store.get(&listed.path).await? else { continue };
            // An error would keep every later round from taking any pin away.
            let next_snapshot = serde_json::from_slice::<ConsumerJson>(&bytes).map_or(0, |consumer| consumer.next_snapshot);
            pins.push(Pin { name: name.to_owned(), next_snapshot, written_ms: listed.modified_ms });
        }
        Ok(pins)
    }

    /// Writes a pin, or writes it again.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn write_pin(&self, name: &str, next_snapshot: i64) -> Result<()> {
        let json = serde_json::to_string_pretty(&ConsumerJson { next_snapshot })
            .map_err(|source| Error::internal("write consumer").with_source(source))?;
        self.store.put(&self.object(&path::consumer(name)), Bytes::from(json)).await
    }

    /// Removes a pin; one that is gone is fine.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn delete_pin(&self, name: &str) -> Result<()> {
        self.store.delete(&self.object(&path::consumer(name))).await
    }
}

fn with_way_back(error: Error) -> Error {
    if error.kind() == Kind::Data && error.hint().is_none() { error.with_hint(WAY_BACK) } else { error }
}

fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|source| Error::data("not UTF-8").with_source(source))
}

async fn read_schema(store: &Store, root: &str, id: i64) -> Result<TableSchema> {
    let found = find_schema(store, root, id).await?;
    found.ok_or_else(|| Error::data(format!("`{}` is missing", store.name(&format!("{root}/{}", path::schema(id))))))
}

async fn find_schema(store: &Store, root: &str, id: i64) -> Result<Option<TableSchema>> {
    let place = format!("{root}/{}", path::schema(id));
    let Some(bytes) = store.get(&place).await? else { return Ok(None) };
    let schema = text(&bytes).and_then(TableSchema::from_json);
    let wrong = |error: Error| {
        let error = error.context(format!("read `{}`", store.name(&place)));
        if error.kind() == Kind::Data { error.with_hint(WRONG_SCHEMA) } else { error }
    };
    schema.map(Some).map_err(wrong)
}

async fn ids(store: &Store, root: &str, folder: &str, prefix: &str) -> Result<Vec<i64>> {
    let listed = store.list(&format!("{root}/{folder}")).await?;
    let mut ids: Vec<i64> =
        listed.iter().filter_map(|listed| path::id_of(&listed.path, prefix)).filter(|id| *id <= ID_MAX).collect();
    ids.sort_unstable();
    Ok(ids)
}

/// Id of the newest schema; `None` where there is none. Schema files are numbered without a gap and never removed, so they are asked for
/// by name: a list costs more, and needs a right of its own on object stores.
async fn newest_schema(store: &Store, root: &str) -> Result<Option<i64>> {
    if store.size(&format!("{root}/{}", path::schema(0))).await?.is_some() {
        newest_schema_above(store, root).await.map(Some)
    } else {
        max_id(store, root, path::SCHEMAS, "schema-").await
    }
}

/// Id of the newest schema of a table that has schema 0.
async fn newest_schema_above(store: &Store, root: &str) -> Result<i64> {
    let exists = async |id: i64| Ok::<_, Error>(store.size(&format!("{root}/{}", path::schema(id))).await?.is_some());
    let (mut there, mut step) = (0_i64, 1_i64);
    // No step is left only in a store that has everything.
    while step > 0 && exists(there + step).await? {
        (there, step) = (there + step, (step * 2).min(ID_MAX - there));
    }
    // The newest is `there` or behind it, and below `there + step`.
    let mut absent = there + step;
    while absent - there > 1 {
        let middle = there + (absent - there) / 2;
        if exists(middle).await? { there = middle } else { absent = middle }
    }
    Ok(there)
}

async fn max_id(store: &Store, root: &str, folder: &str, prefix: &str) -> Result<Option<i64>> {
    Ok(ids(store, root, folder, prefix).await?.last().copied())
}
