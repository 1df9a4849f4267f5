//! Read and write: all splits of a round, some at a time, each from its stream into its bucket's writer.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use futures::stream::{self, StreamExt};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::pressure::{Buffer, Pressure};
use crate::error::{Error, Result};
use crate::mapping::LakeRows;
use crate::model::{LogBatch, Schema, SchemaId, Split, TableInfo};
use crate::read::{Chunk, Reader, SplitStream};
use crate::runtime::Runtime;
use crate::source::TableScan;
use crate::write::{BucketTarget, BucketWriter, ManifestEntry, WriteContext};

/// What all splits of a round share.
pub(super) struct Work {
    pub(super) table: Arc<TableInfo>,
    pub(super) scan: Arc<dyn TableScan>,
    pub(super) reader: Reader,
    pub(super) rows: Arc<LakeRows>,
    pub(super) write: Arc<WriteContext>,
    pub(super) runtime: Runtime,
    /// Ends the work early: lease lost, or the process is to end.
    pub(super) stop: CancellationToken,
}

/// A split and where its rows go.
pub(super) struct Target {
    pub(super) split: Split,
    pub(super) bucket: BucketTarget,
    pub(super) first_sequence: i64,
}

/// A split that is written.
pub(super) struct Done {
    pub(super) split: Split,
    pub(super) entries: Vec<ManifestEntry>,
    pub(super) rows: u64,
    /// Commit timestamp of the last row; −1 = no row.
    pub(super) max_timestamp_ms: i64,
}

impl Work {
    /// Reads and writes all `targets`, at most `at_once` at a time. All or nothing: on an error everything that was
    /// written is deleted again, since nothing can name it yet.
    ///
    /// # Errors
    /// The first one of any split; `Stale` when the work was stopped.
    pub(super) async fn run(&self, targets: Vec<Target>, at_once: usize) -> Result<Vec<Done>> {
        let pressure = Pressure::default();
        let failed = CancellationToken::new();
        let mut done = Vec::with_capacity(targets.len());
        let mut fault = None;
        let splits = targets.into_iter().enumerate().map(|(index, target)| self.one(target, pressure.enter(index), &failed));
        let mut splits = std::pin::pin!(stream::iter(splits).buffer_unordered(at_once.max(1)));
        let mut relief = std::pin::pin!(pressure.relieve(&self.runtime.budget));
        loop {
            let ended = tokio::select! {
                ended = splits.next() => ended,
                () = &mut relief => continue,
            };
            match ended {
                Some(Ok(split)) => done.push(split),
                Some(Err(error)) => {
                    // The others end at their next chunk and clean up behind themselves; the first error is the cause.
                    failed.cancel();
                    fault.get_or_insert(error);
                }
                None => break,
            }
        }
        let Some(fault) = fault else { return Ok(done) };
        let entries: Vec<ManifestEntry> = done.into_iter().flat_map(|split| split.entries).collect();
        if let Err(error) = self.write.discard(&entries).await {
            debug!(error = %error.chain(), "files of a failed round stay for the orphan sweep");
        }
        Err(fault)
    }

    async fn one(&self, target: Target, buffer: Buffer<'_>, failed: &CancellationToken) -> Result<Done> {
        let Target { split, bucket, first_sequence } = target;
        if failed.is_cancelled() {
            return Err(stopped());
        }
        let stream = self.reader.open(&split)?;
        let mut writer = BucketWriter::new(Arc::clone(&self.write), bucket, first_sequence)?;
        let filled = tokio::select! {
            filled = self.fill(&split, stream, &mut writer, &buffer) => filled,
            () = self.stop.cancelled() => Err(Error::stale("the round was stopped: its lease is lost or the process ends")),
            () = failed.cancelled() => Err(stopped()),
        };
        match filled {
            Ok((rows, max_timestamp_ms)) => {
                let entries = writer.finish().await?;
                debug!(bucket = %split.bucket, rows, files = entries.len(), "split written");
                Ok(Done { split, entries, rows, max_timestamp_ms })
            }
            Err(error) => {
                if let Err(left) = writer.abort().await {
                    debug!(error = %left.chain(), "files of a failed round stay for the orphan sweep");
                }
                Err(error)
            }
        }
    }

    /// Rows written and commit timestamp of the last one.
    async fn fill(
        &self,
        split: &Split,
        mut stream: SplitStream,
        writer: &mut BucketWriter,
        buffer: &Buffer<'_>,
    ) -> Result<(u64, i64)> {
        let (mut rows, mut max_timestamp_ms) = (0_u64, -1);
        loop {
            let chunk = tokio::select! {
                chunk = stream.next() => chunk?,
                () = buffer.flush_wanted() => {
                    if self.runtime.budget.is_pressed() {
                        writer.flush().await?;
                    }
                    buffer.holds(writer.buffered_bytes());
                    continue;
                }
            };
            let Some(Chunk { batches, mut permit, .. }) = chunk else { return Ok((rows, max_timestamp_ms)) };
            if let Some(last) = batches.last() {
                max_timestamp_ms = last.commit_timestamp_ms;
            }
            for (batch, base_offset, bytes) in self.convert(split, batches).await? {
                rows = rows.saturating_add(batch.num_rows() as u64);
                let share = permit.split(bytes);
                writer.write(batch, base_offset, share).await?;
            }
            buffer.holds(writer.buffered_bytes());
        }
    }

    /// To the lake's columns, on an encoder thread. Each with its base offset and the memory that it was given.
    async fn convert(&self, split: &Split, batches: Vec<LogBatch>) -> Result<Vec<(arrow_array::RecordBatch, i64, usize)>> {
        let mut schemas: BTreeMap<SchemaId, Arc<Schema>> = BTreeMap::new();
        for batch in &batches {
            if batch.schema_id > self.table.schema_id() {
                return Err(Error::stale(format!(
                    "{} has rows of schema `{}` at offset `{}`, newer than the plan's schema `{}`",
                    split.bucket,
                    batch.schema_id,
                    batch.base_offset,
                    self.table.schema_id()
                )));
            }
            if let Entry::Vacant(missing) = schemas.entry(batch.schema_id) {
                let schema = if batch.schema_id == self.table.schema_id() {
                    Arc::clone(&self.table.schema)
                } else {
                    self.scan.schema(&self.table.path, batch.schema_id).await?
                };
                missing.insert(schema);
            }
        }
        let rows = Arc::clone(&self.rows);
        let partition = split.partition.clone();
        let convert = move || {
            let one = |batch: LogBatch| {
                let schema = schemas.get(&batch.schema_id).ok_or_else(|| Error::internal("a batch without schema"))?;
                let bytes = batch.rows.get_array_memory_size();
                let converted = rows.convert(&batch, schema, partition.as_deref())?;
                Ok((converted, batch.base_offset, bytes))
            };
            batches.into_iter().map(one).collect::<Result<Vec<_>>>()
        };
        self.runtime.encoders.run(convert).await?
    }
}

/// Said by splits that end because another one failed; never the round's error.
fn stopped() -> Error {
    Error::internal("another split of the round has failed")
}
