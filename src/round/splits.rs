//! Read and write: all splits of a round, some at a time, each from its stream into its bucket's writer.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use futures::stream::{self, StreamExt};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::limits::Progress;
use super::pressure::{Buffer, Pressure};
use super::{Options, Rule};
use crate::error::{Error, Result};
use crate::mapping::LakeRows;
use crate::model::{ChangeCounts, ChangeKind, LogBatch, Schema, SchemaId, Split, SplitKind, StartOffset, TableInfo};
use crate::read::{Chunk, Cut, Reader, SplitStream};
use crate::runtime::{Moment, Runtime};
use crate::source::{TableScan, is_state_lost};
use crate::telemetry;
use crate::write::{BucketFiles, BucketTarget, BucketWriter, ManifestEntry, WriteContext};

/// Reading has so long, even where recovery and planning took the whole time up to the deadline: else a table of which they always do
/// would never come forward.
const READ_MIN: Duration = Duration::from_secs(1);

/// How often the state of a bucket is begun in one round: a server that loses it again and again will do so in the next try as well.
const STATE_TRIES_MAX: u32 = 5;

/// What all splits of a round share.
pub(super) struct Work {
    pub(super) options: Options,
    pub(super) table: Arc<TableInfo>,
    pub(super) scan: Arc<dyn TableScan>,
    pub(super) reader: Reader,
    pub(super) rows: Arc<LakeRows>,
    pub(super) write: Arc<WriteContext>,
    pub(super) runtime: Runtime,
    /// Ends the work without result: lease lost, or the process is to end at once.
    pub(super) stop: CancellationToken,
    /// Ends reading early; what was read by then is the result. The reader has it too.
    pub(super) cut: Cut,
    /// When to cut.
    pub(super) deadline: Option<Moment>,
    pub(super) progress: Progress,
}

/// A split and where its rows go.
pub(super) struct Target {
    pub(super) split: Split,
    pub(super) bucket: BucketTarget,
    pub(super) first_sequence: i64,
}

/// A split that is written, as far as it was read.
pub(super) struct Done {
    pub(super) split: Split,
    /// Exclusive end of what was read, at most the split's stop offset, or where the log goes on from the state; `None` = nothing was.
    pub(super) end_offset: Option<i64>,
    pub(super) files: BucketFiles,
    pub(super) fetched_bytes: u64,
    /// Rows read.
    pub(super) rows: u64,
    pub(super) changes: ChangeCounts,
    /// Commit timestamp of the last row; −1 = no row.
    pub(super) max_timestamp_ms: i64,
}

impl Done {
    fn new(split: Split) -> Self {
        Self {
            split,
            end_offset: None,
            files: BucketFiles::default(),
            fetched_bytes: 0,
            rows: 0,
            changes: ChangeCounts::default(),
            max_timestamp_ms: -1,
        }
    }

    /// Whether something is left up to its stop offset: a limit ended it, or the state that was read is older than the plan.
    pub(super) fn is_cut(&self) -> bool {
        self.end_offset.is_none_or(|end| end < self.split.stop_offset)
    }

    /// Whether its rows are in its files, and fit between its offsets. Of a primary-key table the data files have the last row of a key
    /// alone, changelog files every row that its options don't leave out.
    pub(super) fn is_sound(&self, has_primary_key: bool) -> bool {
        let end = self.end_offset.unwrap_or(-1);
        let start = match self.split.start {
            StartOffset::At(offset) => offset,
            StartOffset::Earliest => 0,
        };
        let sum = |entries: &[ManifestEntry]| entries.iter().map(|entry| entry.file.row_count).sum::<i64>();
        let (data, changelog) = (sum(&self.files.data), sum(&self.files.changelog));
        let rows = i64::try_from(self.rows).unwrap_or(i64::MAX);
        let told = rows.saturating_sub(i64::try_from(self.files.ignored).unwrap_or(i64::MAX));
        let in_files = if has_primary_key { data <= told && (changelog == 0 || changelog == told) } else { data == rows };
        let in_offsets = match self.split.kind {
            SplitKind::Log => start <= end && end <= self.split.stop_offset && rows <= end - start,
            SplitKind::State => end > 0,
        };
        in_files && in_offsets
    }

    fn files(&self) -> impl Iterator<Item = &ManifestEntry> {
        self.files.data.iter().chain(&self.files.changelog)
    }
}

/// A batch in the lake's columns.
struct Converted {
    rows: RecordBatch,
    /// What each row does; `None` = all are appends.
    changes: Option<Vec<ChangeKind>>,
    base_offset: i64,
    /// The memory that it was given, and keeps alive.
    bytes: usize,
}

impl Work {
    /// Reads and writes all `targets`, at most `at_once` at a time, to their stop offsets or until cut. All or nothing otherwise: on
    /// an error everything that was written is deleted again, since nothing can name it yet.
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
        let mut deadline = std::pin::pin!(self.deadline());
        loop {
            let ended = tokio::select! {
                ended = splits.next() => ended,
                () = &mut relief => continue,
                () = &mut deadline => continue,
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
        if let Err(error) = self.write.discard(done.iter().flat_map(Done::files)).await {
            debug!(error = %error.chain(), "files of a failed round stay for the orphan sweep");
        }
        Err(fault)
    }

    /// Cuts when the time has come. Never returns.
    async fn deadline(&self) {
        if let Some(deadline) = self.deadline {
            let left = deadline.saturating_duration_since(self.runtime.clock.moment());
            self.runtime.clock.sleep(left.max(READ_MIN)).await;
            self.cut.cut();
        }
        std::future::pending().await
    }

    /// One split. A state that is lost on the way begins again, from nothing (F5.7).
    async fn one(&self, target: Target, buffer: Buffer<'_>, failed: &CancellationToken) -> Result<Done> {
        for attempt in 1.. {
            let mut done = Done::new(target.split.clone());
            if failed.is_cancelled() {
                return Err(stopped());
            }
            if self.cut.is_due() {
                return Ok(done);
            }
            match self.attempt(&mut done, &target, &buffer, failed).await {
                Err(error) if is_state_lost(&error) && attempt < STATE_TRIES_MAX => {
                    let bucket = done.split.bucket;
                    telemetry::StateLost { table: &self.table.path, bucket, attempt, rows: done.rows, error: &error }.emit();
                    self.progress.take_back(done.rows);
                    buffer.holds(0);
                }
                ended => return ended.map(|()| done),
            }
        }
        Err(Error::internal("attempts have run out"))
    }

    /// Reads and writes a split as far as it goes; after an error nothing of it is there.
    async fn attempt(&self, done: &mut Done, target: &Target, buffer: &Buffer<'_>, failed: &CancellationToken) -> Result<()> {
        let stream = self.reader.open(&target.split)?;
        let mut writer = BucketWriter::new(Arc::clone(&self.write), target.bucket.clone(), target.first_sequence)?;
        let filled = tokio::select! {
            filled = self.fill(done, stream, &mut writer, buffer) => filled,
            () = self.stop.cancelled() => Err(Error::stale("the round was stopped: its lease is lost or the process ends")),
            () = failed.cancelled() => Err(stopped()),
        };
        if let Err(error) = filled {
            if let Err(left) = writer.abort().await {
                debug!(error = %left.chain(), "files of a failed round stay for the orphan sweep");
            }
            return Err(error);
        }
        done.files = writer.finish().await?;
        debug!(bucket = %done.split.bucket, rows = done.rows, files = done.files.data.len(), cut = done.is_cut(), "split written");
        Ok(())
    }

    /// Moves the stream into the writer, and tells in `done` how far that is.
    async fn fill(&self, done: &mut Done, mut stream: SplitStream, writer: &mut BucketWriter, buffer: &Buffer<'_>) -> Result<()> {
        let (mut end, bucket) = (None, done.split.bucket);
        loop {
            let chunk = tokio::select! {
                chunk = stream.next() => match chunk {
                    Err(error) if is_state_lost(&error) && !self.options.holds(Rule::StateAgain) => None,
                    chunk => chunk?,
                },
                () = buffer.flush_wanted() => {
                    if self.runtime.budget.is_pressed() {
                        writer.relieve().await?;
                    }
                    buffer.holds(writer.held_bytes());
                    continue;
                }
            };
            let Some(Chunk { batches, end_offset, fetched_bytes, mut permit }) = chunk else { break };
            if let Some(last) = batches.last() {
                done.max_timestamp_ms = last.commit_timestamp_ms;
            }
            let (fetched_bytes, before) = (fetched_bytes as u64, done.rows);
            for Converted { rows, changes, base_offset, bytes } in self.convert(&done.split, batches).await? {
                done.rows = done.rows.saturating_add(rows.num_rows() as u64);
                done.changes.add(changes.as_deref().unwrap_or_default());
                let share = permit.split(bytes);
                let changes = changes.as_deref().filter(|_| self.options.holds(Rule::Kinds));
                writer.write(rows, changes, base_offset, share).await?;
            }
            end = Some(end_offset);
            done.fetched_bytes = done.fetched_bytes.saturating_add(fetched_bytes);
            self.progress.add(done.rows - before, fetched_bytes);
            buffer.holds(writer.held_bytes());
            if done.split.kind == SplitKind::State && !self.options.holds(Rule::WholeState) {
                break;
            }
        }
        // Not before the stream has ended: of a state the rest counts too.
        done.end_offset = end;
        let ended_early = match done.split.kind {
            SplitKind::Log => done.is_cut(),
            SplitKind::State => end.is_none(),
        };
        if ended_early && !self.cut.is_due() {
            let stop = done.split.stop_offset;
            return Err(Error::internal(format!("{bucket} was read to `{end:?}` only, not to `{stop}`")));
        }
        if done.split.kind == SplitKind::State && end.is_some_and(|end| end <= 0) {
            if done.rows > 0 {
                return Err(Error::data(format!("the state of {bucket} has `{}` rows and names log offset `{end:?}`", done.rows)));
            }
            // Nothing has got there yet: as if it had not been read.
            done.end_offset = None;
        }
        Ok(())
    }

    /// To the lake's columns, on an encoder thread.
    async fn convert(&self, split: &Split, batches: Vec<LogBatch>) -> Result<Vec<Converted>> {
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
                let rows = rows.convert(&batch, schema, partition.as_deref())?;
                Ok(Converted { rows, changes: batch.changes, base_offset: batch.base_offset, bytes: batch.memory.bytes() })
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
