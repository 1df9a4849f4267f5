//! `verify`: lake against Fluss, and the lake against itself. Looks only.
//!
//! In order: what Fluss knows (`ledger`), manifests and what lives in the snapshot (`live`), bucket totals and ids (`totals`), rows
//! against offsets (`history`), files in the store and what is in them (`files`), primary keys against Fluss's state (`state`). Each gives faults; what could not be looked at
//! is a note. Everything is judged at one snapshot; what went away under it meanwhile (expired, compacted) is no fault.

mod files;
mod history;
mod ledger;
mod live;
mod state;
mod totals;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::{AuditContext, AuditPartition, view};
use crate::error::{Error, Kind, Result};
use crate::lake::WAY_BACK;
use crate::model::{PartitionId, SnapshotId, TableId, TablePath};
use crate::paimon::{BinaryRow, path};
use live::Live;

/// Views that are taken before a table counts as never standing still.
const VIEWS_MAX: usize = 4;
/// Faults of one kind that are listed; the rest is counted.
const LISTED_MAX: usize = 50;

/// What is looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Read every file, not a sample.
    pub all: bool,
    /// Only these partitions, and none that Fluss does not have.
    pub only: Option<BTreeSet<PartitionId>>,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The table.
    pub table: TablePath,
    /// Its id.
    pub table_id: TableId,
    /// Where its lake table is.
    pub lake: String,
    /// The snapshot that was looked at; absent on a lake table that was never written.
    pub snapshot: Option<SnapshotId>,
    /// The newest Fluss-made snapshot at or below it.
    pub tiered_snapshot: Option<SnapshotId>,
    /// The newest that Fluss knows.
    pub known_snapshot: Option<SnapshotId>,
    /// Each partition of Fluss or of the lake.
    pub partitions: Vec<PartitionReport>,
    /// Whether all files were read, or a sample.
    pub all: bool,
    /// Files that were read.
    pub files_read: u64,
    /// Their rows.
    pub rows_read: u64,
    /// What is wrong.
    pub faults: Vec<Fault>,
    /// Faults that are not listed, because there are so many of their kind.
    pub faults_more: u64,
    /// What could not be looked at, and what is strange but no fault.
    pub notes: Vec<String>,
}

/// One partition, in Fluss and in the lake.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PartitionReport {
    /// `day=2026-11-28`; empty on a table without partitions.
    pub partition: String,
    /// Bucket count in Fluss; absent where Fluss has no such partition.
    pub buckets: Option<i32>,
    /// Bucket totals that its live files name; −1 = bucket-unaware.
    pub totals: BTreeSet<i32>,
    /// Live files.
    pub files: u64,
    /// Rows in them.
    pub rows: i64,
    /// Sum of the offsets up to which its buckets are in the lake; absent where Fluss has no such partition.
    pub offsets: Option<i64>,
}

/// What a fault is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// What Fluss knows is not what the lake says.
    Ledger,
    /// Offsets of the lake and the logs contradict each other.
    Offsets,
    /// A snapshot does not stand on the one before it.
    History,
    /// A manifest, or what a list says of it.
    Manifest,
    /// Bucket totals.
    Totals,
    /// Bucket ids.
    Bucket,
    /// A data file is missing, or has another size.
    File,
    /// More or fewer rows than offsets advanced.
    Rows,
    /// A file can't be read, or has other rows than its entry says.
    Content,
    /// Rows of another partition.
    Partition,
    /// Rows of another bucket.
    Hash,
    /// Statistics that do not contain the values.
    Statistics,
    /// Order, keys or versions of a primary-key file.
    Keys,
    /// Merged lake and log are not the state that Fluss has.
    State,
}

impl Check {
    /// Lower-case word, as in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ledger => "ledger",
            Self::Offsets => "offsets",
            Self::History => "history",
            Self::Manifest => "manifest",
            Self::Totals => "totals",
            Self::Bucket => "bucket",
            Self::File => "file",
            Self::Rows => "rows",
            Self::Content => "content",
            Self::Partition => "partition",
            Self::Hash => "hash",
            Self::Statistics => "statistics",
            Self::Keys => "keys",
            Self::State => "state",
        }
    }
}

/// Something that is wrong: what, where, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// What it is about.
    pub check: Check,
    /// What is wrong.
    pub message: String,
    /// The way out.
    pub hint: Option<String>,
    /// The partition, as its folder in the lake.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// The bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket: Option<i32>,
    /// The file, below the table's folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The lake snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<i64>,
    /// The offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<i64>,
}

impl Fault {
    fn new(check: Check, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { check, message, hint: None, partition: None, bucket: None, file: None, snapshot: None, offset: None }
    }

    fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    fn partition(self, partition: &str) -> Self {
        Self { partition: (!partition.is_empty()).then(|| partition.to_owned()), ..self }
    }

    fn bucket(self, bucket: i32) -> Self {
        Self { bucket: Some(bucket), ..self }
    }

    fn file(self, file: impl Into<String>) -> Self {
        Self { file: Some(file.into()), ..self }
    }

    fn snapshot(self, snapshot: i64) -> Self {
        Self { snapshot: Some(snapshot), ..self }
    }

    fn offset(self, offset: i64) -> Self {
        Self { offset: Some(offset), ..self }
    }
}

/// How far a verification is, for whoever shows it.
#[derive(Debug, Default)]
pub struct Progress {
    stage: Mutex<&'static str>,
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// What it does now, and how much of how much is done; 0 of 0 where that can't be told.
    #[must_use]
    pub fn now(&self) -> (&'static str, u64, u64) {
        let stage = *self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        (stage, self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }

    fn enter(&self, stage: &'static str, total: usize) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total as u64, Ordering::Relaxed);
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    fn step(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Faults and notes as they are found.
#[derive(Debug, Default)]
struct Findings {
    faults: BTreeMap<Check, Vec<Fault>>,
    more: u64,
    notes: Vec<String>,
}

impl Findings {
    fn fault(&mut self, fault: Fault) {
        let list = self.faults.entry(fault.check).or_default();
        if list.len() < LISTED_MAX {
            list.push(fault);
        } else {
            self.more += 1;
        }
    }

    fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }
}

/// One look at everything, at one snapshot.
struct Pass<'a> {
    context: &'a AuditContext,
    options: &'a Options,
    progress: &'a Progress,
    partitions: Vec<AuditPartition>,
    view: super::View,
}

/// Verifies a table.
///
/// # Errors
/// `Unavailable`; `Stale` when the table is gone, or moves so fast that no snapshot of it can be looked at; `Data` when the lake
/// can't be read at all. What is wrong otherwise is in the report.
pub async fn verify(context: &AuditContext, options: &Options, progress: &Progress) -> Result<Report> {
    let mut missing = BTreeSet::new();
    let (mut context, mut tries) = (context.clone(), 0);
    loop {
        tries += 1;
        match attempt(&context, options, progress, &mut missing).await {
            // Maybe by an ALTER: rows of a new column can't be looked at by the schema of before.
            Err(error) if error.kind() == Kind::Stale && tries < VIEWS_MAX => context = context.afresh().await?,
            Err(error) if error.kind() == Kind::Stale => {
                return Err(error.with_hint(
                    "let the lake keep its snapshots for longer than this takes, or verify fewer partitions (--partition)",
                ));
            }
            ended => return ended,
        }
    }
}

async fn attempt(context: &AuditContext, options: &Options, progress: &Progress, missing: &mut BTreeSet<String>) -> Result<Report> {
    progress.enter("looking at the ledger", 0);
    let view = view(context).await?;
    // Behind the view: partitions that it has rows of are then listed, unless they were dropped.
    let partitions = context.partitions().await?;
    let pass = Pass { context, options, progress, partitions, view };
    let mut found = Findings::default();
    ledger::check(&pass, &mut found).await?;
    let live = match live::read(&pass, &mut found).await {
        Ok(live) => live,
        // What an expired snapshot names goes away; what the next view names as well is missing.
        Err(error) if error.kind() == Kind::Data && pass.moved().await? && missing.insert(error.chain()) => {
            return Err(Error::stale("a snapshot expired while it was looked at").with_source(error));
        }
        Err(error) if error.kind() != Kind::Data => return Err(error),
        Err(error) => {
            let id = pass.view.newest.as_ref().map_or(0, |newest| newest.id);
            found.fault(Fault::new(Check::Manifest, error.chain()).snapshot(id).hint(pass.roll_back_hint()));
            return Ok(pass.report(&Live::default(), files::Read::default(), found));
        }
    };
    totals::check(&pass, &live, &mut found);
    history::check(&pass, &live, &mut found).await?;
    let read = files::check(&pass, &live, &mut found).await?;
    state::check(&pass, &live, &mut found).await?;
    Ok(pass.report(&live, read, found))
}

impl Pass<'_> {
    /// Whether the snapshot that is looked at is no longer the newest.
    async fn moved(&self) -> Result<bool> {
        let Some(newest) = &self.view.newest else { return Ok(false) };
        let id = self.context.lake.newest_snapshot_id().await?;
        let now = match id {
            Some(id) => self.context.lake.snapshot(id).await?,
            None => None,
        };
        Ok(now.is_none_or(|now| now.id != newest.id || now.delta_manifest_list != newest.delta_manifest_list))
    }

    /// Folder of a partition, as it is named in what is told.
    fn folder(&self, row: &BinaryRow) -> String {
        let schema = self.context.lake.schema();
        path::partition_path(schema, row).map_or_else(|_| "?".to_owned(), |folder| folder.trim_end_matches('/').to_owned())
    }

    fn of_row(&self, row: &BinaryRow) -> Option<&AuditPartition> {
        self.partitions.iter().find(|partition| partition.row == *row)
    }

    /// Whether a partition of the lake is looked at.
    fn wants(&self, row: &BinaryRow) -> bool {
        let Some(only) = &self.options.only else { return true };
        self.of_row(row).and_then(|found| found.partition.as_ref()).is_some_and(|partition| only.contains(&partition.id))
    }

    fn repair_hint(&self, what: &str) -> String {
        let more = if what == "reset-offsets" { " --snapshot ID" } else { "" };
        format!("`lakeward repair {what} {}{more}` shows what it would do, and does it with `--confirm`", self.context.table.path)
    }

    fn rewrite_hint(&self, folder: &str) -> String {
        let partition = if folder.is_empty() { String::new() } else { format!(" --partition {folder}") };
        format!(
            "`lakeward repair rewrite-partition {}{partition}` shows what it would do, and does it with `--confirm`",
            self.context.table.path
        )
    }

    fn roll_back_hint(&self) -> String {
        WAY_BACK.to_owned()
    }

    fn report(&self, live: &Live, read: files::Read, found: Findings) -> Report {
        let offsets = self.view.offsets();
        let mut partitions: BTreeMap<String, PartitionReport> = BTreeMap::new();
        for known in self.partitions.iter().filter(|known| self.wants(&known.row)) {
            let id = known.partition.as_ref().map(|partition| partition.id);
            let tiered = offsets.0.iter().filter(|(key, _)| key.partition == id).map(|(_, offset)| *offset);
            let partition = self.folder(&known.row);
            partitions.insert(
                partition.clone(),
                PartitionReport {
                    partition,
                    buckets: Some(known.layout.count),
                    offsets: Some(tiered.fold(0, i64::saturating_add)),
                    ..PartitionReport::default()
                },
            );
        }
        for (row, of) in live.partitions.iter().filter(|(row, _)| self.wants(row)) {
            let partition = self.folder(row);
            let report = partitions.entry(partition.clone()).or_default();
            report.partition = partition;
            report.totals = of.buckets.values().flat_map(|bucket| bucket.totals.iter().copied()).collect();
            report.files = of.buckets.values().map(|bucket| bucket.files.len() as u64).sum();
            report.rows = of.buckets.values().map(|bucket| bucket.rows).fold(0, i64::saturating_add);
        }
        Report {
            table: self.context.table.path.clone(),
            table_id: self.context.table.id,
            lake: self.context.lake.location(),
            snapshot: self.view.newest.as_ref().map(|newest| SnapshotId(newest.id)),
            tiered_snapshot: self.view.tiered.as_ref().map(|tiered| tiered.snapshot),
            known_snapshot: self.view.known.as_ref().map(|known| known.snapshot),
            partitions: partitions.into_values().collect(),
            all: self.options.all,
            files_read: read.files,
            rows_read: read.rows,
            faults: found.faults.into_values().flatten().collect(),
            faults_more: found.more,
            notes: found.notes,
        }
    }
}
