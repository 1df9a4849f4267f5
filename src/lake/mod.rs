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

use crate::error::{Error, Result};
use crate::paimon::{Snapshot, TableOptions, TableSchema, path};
use crate::runtime::Runtime;
use crate::storage::{self, Created, Store, StoreOptions};

pub use admin::{SchemaChange, Warehouse};
pub use live::{LivePartition, PartitionFilter};
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
    names: Arc<Names>,
    live: Arc<Mutex<Option<live::Cached>>>,
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

impl LakeTable {
    /// Opens the table in folder `root` (e.g. `demo.db/orders`) of `store`; `None` when there is no schema file.
    ///
    /// # Errors
    /// `Unavailable`; `Data` and `Unsupported` as [`TableSchema::from_json`], the file named.
    pub async fn open(store: Store, root: impl Into<String>, runtime: Runtime) -> Result<Option<Self>> {
        let root = root.into();
        let Some(newest) = newest_schema(&store, &root).await? else { return Ok(None) };
        let schema = read_schema(&store, &root, newest).await?;
        let names = Names { uuid: runtime.rng.uuid(), next: AtomicU64::new(0) };
        Ok(Some(Self { store, root, runtime, schema: Arc::new(schema), names: Arc::new(names), live: Arc::new(Mutex::new(None)) }))
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

    /// Reads schema 0 from the store: its creation time tells a table that was dropped and made again.
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
        if let Some(hint) = self.latest_hint().await? {
            for id in hint..hint.saturating_add(PROBES_MAX) {
                let (this, next) = (path::snapshot(id), path::snapshot(id + 1));
                match futures::try_join!(self.exists(&this), self.exists(&next))? {
                    (_, true) => {}
                    (true, false) => return Ok(Some(id)),
                    (false, false) => break,
                }
            }
        }
        max_id(&self.store, &self.root, path::SNAPSHOTS, "snapshot-").await
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
        let place = path::snapshot(id);
        let Some(bytes) = self.store.get(&self.object(&place)).await? else { return Ok(None) };
        let snapshot = Snapshot::from_json(text(&bytes)?).map_err(|error| self.at(error, &place))?;
        if snapshot.id != id {
            return Err(self.at(Error::data(format!("snapshot file says id `{}`", snapshot.id)), &place));
        }
        Ok(Some(snapshot))
    }

    fn at(&self, error: Error, path: &str) -> Error {
        error.context(format!("read `{}`", self.store.name(&self.object(path))))
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

fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|source| Error::data("not UTF-8").with_source(source))
}

async fn read_schema(store: &Store, root: &str, id: i64) -> Result<TableSchema> {
    let place = format!("{root}/{}", path::schema(id));
    let bytes = store.get_existing(&place).await?;
    let schema = text(&bytes).and_then(TableSchema::from_json);
    schema.map_err(|error| error.context(format!("read `{}`", store.name(&place))))
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
    let exists = async |id: i64| Ok::<_, Error>(store.size(&format!("{root}/{}", path::schema(id))).await?.is_some());
    if !exists(0).await? {
        return max_id(store, root, path::SCHEMAS, "schema-").await;
    }
    let (mut there, mut step) = (0_i64, 1_i64);
    while exists(there + step).await? {
        (there, step) = (there + step, (step * 2).min(ID_MAX - there));
    }
    // The newest is `there` or behind it, and below `there + step`.
    let mut absent = there + step;
    while absent - there > 1 {
        let middle = there + (absent - there) / 2;
        if exists(middle).await? { there = middle } else { absent = middle }
    }
    Ok(Some(there))
}

async fn max_id(store: &Store, root: &str, folder: &str, prefix: &str) -> Result<Option<i64>> {
    Ok(ids(store, root, folder, prefix).await?.last().copied())
}
