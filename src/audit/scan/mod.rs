//! `scan`: the union of a lake snapshot and of the logs behind it, row by row.
//!
//! **Order**: partitions by their folder's name, in each the buckets ascending. In a bucket of a log table the rows of the lake in the
//! order of its manifests, then those of the log by offset; a lake table without buckets has its files first, then the logs bucket by
//! bucket. In a bucket of a primary-key table by key (`merged`). What a scan reads is fixed when it opens: a lake snapshot, the
//! offsets that belong to it, and the ends of the logs then.

mod merged;
mod overlay;
mod text;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};

use super::rows::LogRows;
use super::tail::Tail;
use super::view::look;
use super::{AuditContext, AuditPartition};
use crate::error::{Error, Kind, Result};
use crate::lake::FileReader;
use crate::mapping::{LakeForm, SYSTEM_COLUMNS};
use crate::model::{BucketId, BucketKey, Field, LakeOffsets, PartitionId, Split, SplitKind, StartOffset, TableBucket};
use crate::paimon::{BinaryRow, ManifestEntry, SimpleStats, Snapshot, path};
use crate::runtime::Permit;

pub(super) use merged::Merged;
pub(super) use overlay::key_columns;
pub use text::{Format, Printer};

/// A file takes about this many times its size while it is read: its bytes, and a decoded block.
const EXPANSION: usize = 3;

/// What is read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// These columns, in this order; `None` = those of the Fluss table. Without any, rows are only counted.
    pub columns: Option<Vec<String>>,
    /// Only these partitions; `None` = all, those that Fluss has dropped included.
    pub only: Option<BTreeSet<PartitionId>>,
    /// This lake snapshot alone, and no log.
    pub snapshot: Option<i64>,
}

/// Rows of a table, batch by batch.
pub struct Scan {
    context: AuditContext,
    fields: Vec<Field>,
    log: Option<Arc<LogRows>>,
    parts: VecDeque<Part>,
    open: Option<Open>,
    snapshot: Option<Snapshot>,
}

impl std::fmt::Debug for Scan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scan").field("table", &self.context.table.path).field("parts", &self.parts.len()).finish_non_exhaustive()
    }
}

/// What is read one after the other.
#[derive(Debug)]
enum Part {
    File(Box<ManifestEntry>),
    Log(Box<Split>),
    Merged(Vec<ManifestEntry>, Option<Box<Split>>),
}

enum Open {
    File(Box<FileReader>, Permit),
    Log(Box<Tail>),
    Merged(Box<Merged>),
}

impl Scan {
    /// Decides what is read. Nothing of it is read yet.
    ///
    /// # Errors
    /// `Data` when what would be read can't be right: the lake has a bucket at or above its partition's count, keys by several counts, an
    /// offset that the log does not reach back to; `Invalid` names a column or snapshot that is not there; `Stale`; `Unavailable`.
    pub async fn open(context: &AuditContext, options: &Options) -> Result<Self> {
        let fields = fields(context, options.columns.as_deref())?;
        let (snapshot, offsets) = match options.snapshot {
            Some(id) => (Some(chosen(context, id).await?), None),
            None => {
                let view = look(context).await?;
                let offsets = base(context, &view)?;
                (view.newest, Some(offsets))
            }
        };
        let partitions = context.partitions().await?;
        let mut places = Places::default();
        if let Some(snapshot) = &snapshot {
            for mut entry in told(context, snapshot, context.lake.live_entries(snapshot, None).await).await? {
                // Not needed any more, and most of what an entry takes.
                entry.file.value_stats = SimpleStats::empty();
                places.0.entry(entry.partition.clone()).or_default().entry(entry.bucket).or_default().0.push(entry);
            }
        }
        places.check(context, &partitions, offsets.is_some())?;
        let logged = match &offsets {
            Some(offsets) => splits(context, &partitions, offsets, options.only.as_ref()).await?,
            None => vec![],
        };
        for (row, split) in logged {
            let bucket = if context.table.bucket_keys.is_empty() { 0 } else { split.bucket.bucket.0 };
            places.0.entry(row).or_default().entry(bucket).or_default().1.push(split);
        }
        let known = |row: &BinaryRow| partitions.iter().find(|known| known.row == *row);
        let wants = |row: &BinaryRow| match &options.only {
            None => true,
            Some(only) => known(row).and_then(|known| known.partition.as_ref()).is_some_and(|known| only.contains(&known.id)),
        };
        let mut named = BTreeMap::new();
        for (row, buckets) in places.0.into_iter().filter(|(row, _)| wants(row)) {
            named.insert((path::partition_path(context.lake.schema(), &row)?, row), buckets);
        }
        let keyed = context.table.has_primary_key();
        let mut parts = VecDeque::new();
        for (files, splits) in named.into_values().flat_map(BTreeMap::into_values) {
            if keyed {
                parts.push_back(Part::Merged(files, splits.into_iter().next().map(Box::new)));
            } else {
                parts.extend(files.into_iter().map(|file| Part::File(Box::new(file))));
                parts.extend(splits.into_iter().map(|split| Part::Log(Box::new(split))));
            }
        }
        // Only where there is one: a lake that lacks a column yet can still be read by itself.
        let log = if offsets.is_some() { Some(Arc::new(LogRows::new(context)?)) } else { None };
        Ok(Self { context: context.clone(), fields, log, parts, open: None, snapshot })
    }

    /// The columns of what comes.
    #[must_use]
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The next rows, at least one; `None` at the end.
    ///
    /// # Errors
    /// `Unavailable`; `Data` when a file or log is wrong; `Stale` when the snapshot has expired meanwhile. After an error nothing comes.
    pub async fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let Some(open) = self.open.take() else {
                match self.parts.pop_front() {
                    Some(part) => {
                        let (open, batch) = self.begin(part).await?;
                        self.open = open;
                        if batch.as_ref().is_some_and(|batch| batch.num_rows() > 0) {
                            return Ok(batch);
                        }
                        continue;
                    }
                    None => return Ok(None),
                }
            };
            let (open, batch) = self.go_on(open).await?;
            let Some(batch) = batch else { continue };
            self.open = Some(open);
            if batch.num_rows() > 0 {
                return self.project(&batch).map(Some);
            }
        }
    }

    /// What a part is read by; a file of which only the rows are counted is not read at all.
    async fn begin(&self, part: Part) -> Result<(Option<Open>, Option<RecordBatch>)> {
        let context = &self.context;
        let names: Vec<&str> = self.fields.iter().map(|field| field.name.as_str()).collect();
        Ok(match part {
            Part::File(entry) if names.is_empty() => {
                let rows = usize::try_from(entry.file.row_count).unwrap_or(0);
                (None, Some(only_rows(rows)?))
            }
            Part::File(entry) => {
                let bytes = usize::try_from(entry.file.file_size).unwrap_or(0).saturating_mul(EXPANSION);
                let permit = context.runtime.budget.acquire(bytes).await;
                let reader = context.lake.read_entry(&entry, Some(&names)).await;
                (Some(Open::File(Box::new(self.told(reader).await?), permit)), None)
            }
            Part::Log(split) => (Some(Open::Log(Box::new(Tail::open(context, vec![*split]).await?))), None),
            Part::Merged(files, split) => {
                let log = self.log.clone().filter(|_| split.is_some());
                let merged = Merged::open(context, files, split.zip(log), &names).await;
                (Some(Open::Merged(Box::new(self.told(merged).await?))), None)
            }
        })
    }

    async fn go_on(&self, open: Open) -> Result<(Open, Option<RecordBatch>)> {
        Ok(match open {
            Open::File(mut reader, permit) => {
                let rows = self.told(reader.next_rows().await).await?;
                (Open::File(reader, permit), rows.map(|block| block.rows))
            }
            Open::Log(mut tail) => {
                let Some((split, chunk)) = tail.next().await? else { return Ok((Open::Log(tail), None)) };
                let log = self.log.as_ref().ok_or_else(|| Error::internal("a log is read without its form"))?;
                let converted = log.convert(&split, chunk.batches).await?;
                let batches: Vec<RecordBatch> = converted.into_iter().map(|(rows, _)| rows).collect();
                (Open::Log(tail), Some(joined(&batches)?))
            }
            Open::Merged(mut merged) => {
                let rows = self.told(merged.next_batch().await).await?;
                (Open::Merged(merged), rows)
            }
        })
    }

    /// As [`told`], of the snapshot that is read.
    async fn told<T>(&self, result: Result<T>) -> Result<T> {
        match &self.snapshot {
            Some(snapshot) => told(&self.context, snapshot, result).await,
            None => result,
        }
    }

    fn project(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        if self.fields.is_empty() {
            return only_rows(batch.num_rows());
        }
        let column = |field: &Field| {
            let found = batch.schema_ref().fields().find(&field.name).map(|(index, _)| index);
            found.ok_or_else(|| Error::internal(format!("rows without column `{}`", field.name)))
        };
        let wanted = self.fields.iter().map(column).collect::<Result<Vec<_>>>()?;
        batch.project(&wanted).map_err(|source| Error::internal("pick columns").with_source(source))
    }
}

/// Rows without columns.
fn only_rows(rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let schema = Arc::new(arrow_schema::Schema::empty());
    RecordBatch::try_new_with_options(schema, Vec::<ArrayRef>::new(), &options)
        .map_err(|source| Error::internal("count rows").with_source(source))
}

fn joined(batches: &[RecordBatch]) -> Result<RecordBatch> {
    match batches {
        [] => only_rows(0),
        [one] => Ok(one.clone()),
        [first, ..] => arrow_select::concat::concat_batches(first.schema_ref(), batches)
            .map_err(|source| Error::internal("put rows together").with_source(source)),
    }
}

/// What an expired snapshot named may be gone by now.
async fn told<T>(context: &AuditContext, snapshot: &Snapshot, result: Result<T>) -> Result<T> {
    match result {
        Err(error) if error.kind() == Kind::Data => {
            let there = context.lake.snapshot(snapshot.id).await?;
            let expired = there.is_none_or(|there| there.delta_manifest_list != snapshot.delta_manifest_list);
            // Expiry takes the files before it takes their snapshot.
            let expires = error.chain().contains("is missing") && context.lake.newest_snapshot_id().await? != Some(snapshot.id);
            Err(if expired || expires { moved(context, snapshot, error) } else { error })
        }
        result => result,
    }
}

fn moved(context: &AuditContext, snapshot: &Snapshot, error: Error) -> Error {
    if error.kind() != Kind::Data {
        return error;
    }
    let text = format!("snapshot `{}` of `{}` can't be read to its end", snapshot.id, context.lake.location());
    Error::stale(text)
        .with_source(error)
        .with_hint("if it has expired meanwhile, run it again; a tag or a consumer keeps a snapshot for as long as it takes")
}

/// The columns of what comes.
fn fields(context: &AuditContext, columns: Option<&[String]>) -> Result<Vec<Field>> {
    let all = &context.lake.schema().fields;
    let Some(columns) = columns else {
        let system = |field: &&Field| context.form == LakeForm::Legacy && SYSTEM_COLUMNS.contains(&field.name.as_str());
        return Ok(all.iter().filter(|field| !system(field)).cloned().collect());
    };
    let column = |name: &String| {
        all.iter().find(|field| field.name == *name).cloned().ok_or_else(|| {
            let names: Vec<String> = all.iter().map(|field| format!("`{}`", field.name)).collect();
            Error::invalid(format!("table `{}` has no column `{name}`", context.table.path))
                .with_hint(format!("there is {}", names.join(", ")))
        })
    };
    let fields = columns.iter().map(column).collect::<Result<Vec<_>>>()?;
    let different: BTreeSet<&str> = fields.iter().map(|field| field.name.as_str()).collect();
    if different.len() < fields.len() {
        return Err(Error::invalid("a column is named twice"));
    }
    Ok(fields)
}

async fn chosen(context: &AuditContext, id: i64) -> Result<Snapshot> {
    let found = context.lake.snapshot(id).await?;
    match found {
        Some(snapshot) => Ok(snapshot),
        None => {
            let ids = context.lake.snapshot_ids().await?;
            let there = match (ids.first(), ids.last()) {
                (Some(first), Some(last)) => format!("there is snapshot {first} to {last}"),
                _ => "it has no snapshot yet".to_owned(),
            };
            Err(Error::invalid(format!("`{}` has no snapshot `{id}`", context.lake.location())).with_hint(there))
        }
    }
}

/// The offsets that the snapshot ends at.
fn base(context: &AuditContext, view: &super::View) -> Result<LakeOffsets> {
    let Some(tiered) = &view.tiered else { return Ok(LakeOffsets::default()) };
    let verify = format!("`lakeward verify {}` tells more", context.table.path);
    if let Some(other) = tiered.table.filter(|other| *other != context.table.id) {
        let (snapshot, ours) = (tiered.snapshot, context.table.id);
        let text =
            format!("snapshot `{snapshot}` of the lake belongs to table id `{other}`, `{}` has id `{ours}`", context.table.path);
        return Err(Error::data(text).with_hint(verify));
    }
    tiered.offsets.clone().ok_or_else(|| {
        Error::data(format!(
            "the offsets of snapshot `{}` of the lake are gone: where the log goes on can't be told",
            tiered.snapshot
        ))
        .with_hint(verify)
    })
}

/// Live files and what is to be read of logs, by partition and bucket of the lake.
#[derive(Default)]
struct Places(BTreeMap<BinaryRow, BTreeMap<i32, Place>>);

/// Files of a bucket, and the logs behind them.
type Place = (Vec<ManifestEntry>, Vec<Split>);

impl Places {
    /// Wrong rows are worse than none.
    fn check(&self, context: &AuditContext, partitions: &[AuditPartition], with_logs: bool) -> Result<()> {
        let table = &context.table;
        if table.bucket_keys.is_empty() {
            return Ok(());
        }
        for (row, buckets) in &self.0 {
            let folder = path::partition_path(context.lake.schema(), row)?;
            let folder = folder.trim_end_matches('/');
            let place =
                if folder.is_empty() { format!("`{}`", table.path) } else { format!("partition `{folder}` of `{}`", table.path) };
            let option = if folder.is_empty() { String::new() } else { format!(" --partition {folder}") };
            let fault = |text: String| {
                Error::data(text).with_hint(format!(
                    "`lakeward verify {0}` tells more; `lakeward repair rewrite-partition {0}{option}` shows what would mend it",
                    table.path
                ))
            };
            let entries = || buckets.values().flat_map(|(files, _)| files);
            let totals: BTreeSet<i32> = entries().map(|entry| entry.total_buckets).collect();
            // Alone, a snapshot may be from before a partition was rewritten by another count.
            let known = partitions.iter().find(|known| known.row == *row).filter(|_| with_logs);
            let count = known.map(|known| known.layout.count).or_else(|| totals.iter().copied().max());
            if let Some((bucket, _)) = buckets.last_key_value().filter(|(bucket, _)| count.is_some_and(|count| **bucket >= count)) {
                let count = count.unwrap_or_default();
                return Err(fault(format!("the lake has rows of bucket `{bucket}` of {place}, which has `{count}` buckets")));
            }
            let mixed = totals.len() > 1 || known.is_some_and(|known| totals.iter().any(|total| *total != known.layout.count));
            if table.has_primary_key() && mixed {
                let totals: Vec<String> = totals.iter().map(|total| format!("`{total}`")).collect();
                let text = format!("the keys of {place} are spread over {} buckets in the lake", totals.join(" and "));
                return Err(fault(match known {
                    Some(known) => format!("{text}, over `{}` in Fluss: a key may be there twice", known.layout.count),
                    None => format!("{text}: a key may be there twice"),
                }));
            }
        }
        Ok(())
    }
}

/// What logs have behind the offsets, to their ends now.
async fn splits(
    context: &AuditContext,
    partitions: &[AuditPartition],
    offsets: &LakeOffsets,
    only: Option<&BTreeSet<PartitionId>>,
) -> Result<Vec<(BinaryRow, Split)>> {
    let table = &context.table;
    let mut splits = Vec::new();
    for known in partitions {
        let id = known.partition.as_ref().map(|partition| partition.id);
        if only.is_some_and(|only| id.is_none_or(|id| !only.contains(&id))) {
            continue;
        }
        let place = if known.name().is_empty() { "table".to_owned() } else { format!("partition `{}`", known.name()) };
        if let Some(key) = offsets.0.keys().find(|key| key.partition == id && key.bucket.0 >= known.layout.count) {
            return Err(Error::data(format!(
                "the lake has rows of bucket `{}` of {place} of `{}`, which has `{}` buckets in Fluss",
                key.bucket, table.path, known.layout.count
            )));
        }
        let gone = |error: Error| if error.code() == Some(36) { Ok(None) } else { Err(error) };
        let partition = known.partition.as_deref();
        let starts = context.scan.start_offsets(table, partition, known.layout).await.or_else(gone)?;
        let ends = context.scan.end_offsets(table, partition, known.layout).await.or_else(gone)?;
        let Some((starts, ends)) = starts.zip(ends) else { continue };
        for (bucket, (start, end)) in (0..).map(BucketId).zip(starts.into_iter().zip(ends)) {
            let from = offsets.get(BucketKey { partition: id, bucket });
            if from.unwrap_or(start) >= end {
                continue;
            }
            // The change log of a key is whole only from its beginning on.
            let due = from.unwrap_or(if table.has_primary_key() { 0 } else { start });
            if due < start {
                let text = format!(
                    "records `{due}` to `{start}` of bucket `{bucket}` of {place} of `{}` are neither in the lake nor in the log",
                    table.path
                );
                return Err(Error::data(text).with_hint(
                    "the log was cut before it was tiered (`table.log.ttl`); tier the table, or read the lake alone (`--snapshot`)",
                ));
            }
            let bucket = TableBucket { table: table.id, partition: id, bucket };
            let (start, kind) = (StartOffset::At(due), SplitKind::Log);
            let (partition, layout) = (known.partition.clone(), known.layout);
            splits.push((known.row.clone(), Split { bucket, partition, layout, start, stop_offset: end, kind }));
        }
    }
    Ok(splits)
}
