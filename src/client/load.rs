//! Files into a table: chunks are read ahead on encoder threads and written in order, one after the other.
//!
//! Not a transaction: after a failure the report says what is acknowledged and from where to go on. Called by the command line.

use std::sync::Arc;

use futures::stream::{self, StreamExt};
use serde::Serialize;

use super::Writer;
use super::files::{Chunk, Columns, FileOptions, Files, Input, ReadRows, Source, bad_row};
use crate::error::{Error, Result};
use crate::model::TablePath;
use crate::runtime::{Runtime, feed};

/// A place in the input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Place {
    /// File, `-` for the standard input.
    pub file: String,
    /// Line, in Parquet row, from 1.
    pub line: u64,
}

/// What a load has done. One shape for JSON and people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LoadReport {
    /// The table.
    pub table: TablePath,
    /// Whether all of the input is in the table.
    pub complete: bool,
    /// Rows acknowledged as durable: appended, upserted or deleted.
    pub rows: u64,
    /// Those of them that were upserted; 0 for a log table.
    pub upserts: u64,
    /// Those of them that were deletes, whether there was such a key or not.
    pub deletes: u64,
    /// Batches of these rows.
    pub batches: u64,
    /// Bytes of these batches, compressed.
    pub bytes: u64,
    /// Bytes of input behind these rows, about.
    pub bytes_read: u64,
    /// Partitions that were made.
    pub partitions_made: u64,
    /// Bad rows that were left out.
    pub skipped: u64,
    /// Images before updates that were left out, since the updates bring what is needed.
    pub images: u64,
    /// Milliseconds since the start.
    pub elapsed_ms: u64,
    /// Where to go on when it is not complete: all rows before are in the table.
    pub go_on: Option<Place>,
    /// Rows from there on that are in the table as well: going on doubles them, or with a primary key repeats them.
    pub rows_beyond: u64,
    /// Rows from there on that may be in the table or not: an answer was lost, and the log could not be looked into.
    pub rows_unsure: u64,
}

/// Writes all rows of `inputs`, in order: appends them to a log table, else upserts and deletes. `watch` is called after each chunk, with the rows left out since the last call.
/// Ends early, without error, when the process shuts down.
///
/// # Errors
/// Beside what [`Writer::change`] says, `Invalid` for a file or row that can't be read, with file, line and column. The report
/// tells how far it came.
pub async fn load(
    writer: &mut Writer,
    inputs: Vec<Input>,
    options: FileOptions,
    runtime: &Runtime,
    watch: &mut (dyn FnMut(&LoadReport, &[String]) + Send),
) -> (LoadReport, Result<()>) {
    let started = runtime.clock.moment();
    let mut report = LoadReport {
        table: writer.table().path.clone(),
        complete: false,
        rows: 0,
        upserts: 0,
        deletes: 0,
        batches: 0,
        bytes: 0,
        bytes_read: 0,
        partitions_made: 0,
        skipped: 0,
        images: 0,
        elapsed_ms: 0,
        go_on: inputs.first().map(|input| Place { file: input.name(), line: options.from_line.max(1) }),
        rows_beyond: 0,
        rows_unsure: 0,
    };
    let elapsed_ms = || u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let mut step = |report: &mut LoadReport, bad: &[String]| {
        report.elapsed_ms = elapsed_ms();
        watch(report, bad);
    };
    let outcome = pump(writer, inputs, options, runtime, &mut report, &mut step).await;
    report.take(writer);
    report.elapsed_ms = elapsed_ms();
    (report, outcome)
}

impl LoadReport {
    fn take(&mut self, writer: &Writer) {
        let figures = writer.figures();
        (self.rows, self.batches, self.bytes) = (figures.rows, figures.batches, figures.bytes);
        self.deletes = figures.deletes;
        self.upserts = if writer.table().has_primary_key() { figures.rows - figures.deletes } else { 0 };
        self.partitions_made = figures.partitions_made;
    }
}

/// A chunk's place, and its rows.
type Step = Result<((Arc<Source>, u64), Result<ReadRows>)>;

async fn pump(
    writer: &mut Writer,
    inputs: Vec<Input>,
    options: FileOptions,
    runtime: &Runtime,
    report: &mut LoadReport,
    watch: &mut (dyn FnMut(&mut LoadReport, &[String]) + Send),
) -> Result<()> {
    if options.changes.is_some() && !writer.table().has_primary_key() {
        let text = format!("rows of `{}` can't be deleted: it has no primary key", writer.table().path);
        return Err(Error::invalid(text).with_hint("load it without `--delete-column` and `--op-column`"));
    }
    let columns = Arc::new(Columns::new(&writer.table().schema, &options)?);
    let bad_rows_max = options.bad_rows_max;
    let mut files = Files::new(inputs, Arc::clone(&columns), options);
    let mut chunks = feed("files", 1, move |hand_over: &mut dyn FnMut(Result<Chunk>) -> bool| {
        while let Some(chunk) = files.next().transpose() {
            let is_last = chunk.is_err();
            if !hand_over(chunk) || is_last {
                return;
            }
        }
    })?;
    let read = |chunk: Result<Chunk>| {
        let (columns, encoders) = (Arc::clone(&columns), runtime.encoders.clone());
        async move {
            let chunk = chunk?;
            let start = chunk.start();
            Ok((start, encoders.run(move || chunk.read(&columns)).await?)) as Step
        }
    };
    let ahead = runtime.encoders.count();
    let mut steps = Box::pin(stream::poll_fn(move |context| chunks.poll_recv(context)).map(read).buffered(ahead));
    loop {
        let step = tokio::select! {
            biased;
            () = runtime.shutdown.cancelled() => return Ok(()),
            step = steps.next() => step,
        };
        let Some(step) = step else { break };
        let ((source, line), rows) = step?;
        report.go_on = Some(Place { file: source.name.clone(), line });
        let rows = rows?;
        report.skipped += rows.bad.len() as u64;
        if report.skipped > bad_rows_max as u64 {
            return Err(bad_row(rows.bad.last().cloned().unwrap_or_default()));
        }
        append(writer, &rows, report).await?;
        report.images += rows.ignored;
        report.take(writer);
        report.bytes_read += rows.bytes;
        watch(report, &rows.bad);
    }
    (report.complete, report.go_on) = (true, None);
    Ok(())
}

async fn append(writer: &mut Writer, rows: &ReadRows, report: &mut LoadReport) -> Result<()> {
    let before = writer.figures().rows;
    let line = |row: u32| rows.lines.get(row as usize).copied();
    let at = |row: u32| rows.source.place(line(row).unwrap_or_default());
    let appended = writer.change_named(&rows.rows, &rows.deletes, &at).await;
    if appended.is_ok() {
        // What comes next goes on behind this chunk, wherever that is.
        if let Some(last) = rows.lines.last() {
            report.go_on = Some(Place { file: rows.source.name.clone(), line: last + 1 });
        }
    } else if let Some(row) = writer.first_missing()
        && let Some(line) = line(row)
    {
        report.go_on = Some(Place { file: rows.source.name.clone(), line });
        report.rows_unsure = writer.unsure_rows();
        report.rows_beyond = (writer.figures().rows - before).saturating_sub(u64::from(row));
    }
    appended.map_err(|error: Error| error.context(format!("write to `{}`", writer.table().path)))
}
