//! Batches of one bucket → Parquet files and their metadata, for append tables.
//!
//! Owns the Parquet shape of a lake table (P7), late encoding, rolling, and typed statistics. Does not own how rows get
//! their lake columns (`mapping`), nor how files become visible (`commit`). Caller: `round`.

mod bucket;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::model::{RoundId, TypeKind};
use crate::paimon::{ManifestEntry, TableSchema};
use crate::runtime::Runtime;
use crate::storage::Store;

pub use bucket::{BucketTarget, BucketWriter};

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

/// What all bucket writers of one round share.
#[derive(Debug)]
#[expect(dead_code, reason = "signatures first")]
pub struct WriteContext {
    store: Store,
    root: String,
    schema: Arc<TableSchema>,
    round: RoundId,
    runtime: Runtime,
    options: WriteOptions,
    files: AtomicU64,
}

impl WriteContext {
    /// Prepares writing into the append table at `root` (its folder inside `store`, e.g. `demo.db/orders`).
    ///
    /// # Errors
    /// `Unsupported` names what this build can't write: primary keys, nested types, an option.
    pub fn new(
        store: Store,
        root: impl Into<String>,
        schema: Arc<TableSchema>,
        round: RoundId,
        runtime: Runtime,
        options: WriteOptions,
    ) -> Result<Arc<Self>> {
        if !schema.primary_keys.is_empty() {
            return Err(Error::unsupported("writing primary-key tables"));
        }
        if let Some(field) = schema.fields.iter().find(|field| TypeKind::is_nested(&field.data_type.kind)) {
            return Err(Error::unsupported(format!("writing column `{}` of a nested type", field.name)));
        }
        Ok(Arc::new(Self { store, root: root.into(), schema, round, runtime, options, files: AtomicU64::new(0) }))
    }

    /// Deletes files of this round that no snapshot can name (commit.md). Files that are gone already are fine.
    ///
    /// # Errors
    /// `Unavailable` when some could not be deleted; the others are.
    pub async fn discard(&self, files: &[ManifestEntry]) -> Result<()> {
        let _ = files;
        Err(Error::unsupported("discarding files"))
    }

    /// A file name that no other writer of any round uses: the round's uuid and a counter (P1.2, commit.md step 2).
    fn next_file_name(&self) -> String {
        format!("data-{}-{}.parquet", self.round, self.files.fetch_add(1, Ordering::Relaxed))
    }
}
