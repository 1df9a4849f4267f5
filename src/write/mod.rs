//! Batches of one bucket → Parquet files and their metadata, for append and primary-key tables.
//!
//! Owns the Parquet shape of a lake table (P7), late encoding, rolling, and typed statistics. Does not own how rows get
//! their lake columns (`mapping`), nor how files become visible (`commit`). Caller: `round`.

mod beside;
mod bounds;
mod bucket;
mod buffer;
mod encode;
mod encoding;
mod files;
mod keyed;
mod nested;
mod order;
mod schema;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_schema::SchemaRef;
use futures::StreamExt;

use self::encode::Shape;
use self::encoding::Codec;
use self::order::Keys;
use crate::error::{Error, Result};
use crate::model::RoundId;
use crate::paimon::options::TableOptions;
use crate::paimon::{TableSchema, lake_arrow_schema, path};
use crate::runtime::Runtime;
use crate::storage::Store;

pub use crate::paimon::ManifestEntry;
pub use bounds::Bounds;
pub use bucket::{BucketFiles, BucketTarget, BucketWriter};

/// Deletes in flight at once.
const DELETES_AT_ONCE: usize = 16;

/// Bounds of the write stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOptions {
    /// Arrow bytes that a bucket buffers before it encodes a row group. Larger row groups read faster and take more memory.
    pub row_group_bytes: usize,
    /// Rows of a row group at most.
    pub row_group_rows: usize,
    /// Bytes of an upload part; S3 wants at least 5 MiB.
    pub part_bytes: usize,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { row_group_bytes: 64 << 20, row_group_rows: 1 << 20, part_bytes: 8 << 20 }
    }
}

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileKind {
    /// Rows of the table.
    Data,
    /// What has happened to them (P9.3).
    Changelog,
}

/// What all bucket writers of one round share.
#[derive(Debug)]
pub struct WriteContext {
    store: Store,
    root: String,
    schema: Arc<TableSchema>,
    /// How batches have to look.
    arrow: SchemaRef,
    shape: Arc<Shape>,
    /// The shape of changelog files, if there are any.
    changelog: Option<Arc<Shape>>,
    /// On primary-key tables.
    keys: Option<Arc<Keys>>,
    table: TableOptions,
    round: RoundId,
    runtime: Runtime,
    options: WriteOptions,
    files: AtomicU64,
}

impl WriteContext {
    /// Prepares writing into the table at `root` (its folder inside `store`, e.g. `demo.db/orders`).
    ///
    /// # Errors
    /// `Unsupported` names what this build can't write: a type, an option; `Invalid` an option's value.
    pub fn new(
        store: Store,
        root: impl Into<String>,
        schema: Arc<TableSchema>,
        round: RoundId,
        runtime: Runtime,
        options: WriteOptions,
    ) -> Result<Arc<Self>> {
        let table = TableOptions::parse(&schema)?;
        let unnamed = |keys: &[&str]| keys.iter().all(|key| schema.option(key).is_none());
        let by_default = unnamed(&["file.compression", "file.compression.per.level"]) && table.data_file_extension == "parquet";
        let codec = Codec::new(table.compression, by_default)?;
        let shape = Arc::new(Shape::new(&schema, codec, table.stats_modes(&schema.fields), table.thin)?);
        let changelog = if table.changelog_input {
            let codec = Codec::new(table.changelog_compression, by_default && unnamed(&["changelog-file.compression"]))?;
            Some(Arc::new(Shape::new(&schema, codec, table.changelog_stats_modes(&schema.fields), table.thin)?))
        } else {
            None
        };
        let keyed = !schema.primary_keys.is_empty();
        let keys = keyed.then(|| Keys::new(&schema, &table)).transpose()?.map(Arc::new);
        let arrow = lake_arrow_schema(&schema)?;
        let (root, files) = (root.into(), AtomicU64::new(0));
        Ok(Arc::new(Self { store, root, schema, arrow, shape, changelog, keys, table, round, runtime, options, files }))
    }

    fn keys(&self) -> Result<Arc<Keys>> {
        self.keys.clone().ok_or_else(|| Error::internal("a table without key"))
    }

    /// Deletes files of this round that no snapshot can name (commit.md). Files that are gone already are fine.
    ///
    /// # Errors
    /// `Unavailable` when some could not be deleted; the others are.
    pub async fn discard(&self, files: impl IntoIterator<Item = &ManifestEntry>) -> Result<()> {
        let paths = files
            .into_iter()
            .map(|entry| Ok(format!("{}/{}", self.root, path::data_file(&self.schema, entry)?)))
            .collect::<Result<Vec<_>>>()?;
        self.delete(paths).await
    }

    async fn delete(&self, paths: Vec<String>) -> Result<()> {
        let deleted: Vec<Result<()>> = futures::stream::iter(paths)
            .map(|path| async move { self.store.delete(&path).await })
            .buffer_unordered(DELETES_AT_ONCE)
            .collect()
            .await;
        deleted.into_iter().collect()
    }

    fn shape(&self, kind: FileKind) -> &Arc<Shape> {
        match (kind, &self.changelog) {
            (FileKind::Changelog, Some(shape)) => shape,
            _ => &self.shape,
        }
    }

    /// A file name that no other writer of any round uses: the round's uuid and a counter (P1.2, commit.md step 2).
    fn next_file_name(&self, kind: FileKind) -> String {
        let counter = self.files.fetch_add(1, Ordering::Relaxed);
        let (prefix, extension) = match kind {
            FileKind::Data => (&self.table.data_file_prefix, &self.table.data_file_extension),
            FileKind::Changelog => (&self.table.changelog_file_prefix, &self.table.changelog_file_extension),
        };
        path::data_file_name(prefix, self.round.0, counter, extension)
    }
}

#[cfg(test)]
mod tests;
