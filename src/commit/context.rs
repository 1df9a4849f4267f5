//! What every step of the protocol has at hand, and the reads and calls that more than one of them makes.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::recovery::Ledger;
use super::rules::Rule;
use super::seen::Seen;
use super::{Options, fault};
use crate::error::{Error, Kind, Result};
use crate::lake::LakeTable;
use crate::model::{BucketKey, LakeOffsets, SnapshotId, TableInfo};
use crate::runtime::{Backoff, BackoffOptions, Runtime};
use crate::source::{LakeLedger, Lease, LedgerRecord, LedgerState, TableScan};

/// One table, as a round sees it: in Fluss, in the lake, in the ledger between them.
#[derive(Clone)]
pub struct CommitContext {
    /// The table as the round was planned by it.
    pub table: Arc<TableInfo>,
    /// Its lake table.
    pub lake: Arc<LakeTable>,
    /// What Fluss knows about the lake.
    pub ledger: Arc<dyn LakeLedger>,
    /// The lease of a round of the daemon: what is published or recorded after it ran out could make a Java job that holds the table
    /// now double rows (commit.md 4).
    pub lease: Option<Lease>,
    /// Tells whether the table is still the same one.
    pub scan: Arc<dyn TableScan>,
    /// Time, chance, fail points.
    pub runtime: Runtime,
    /// Bounds.
    pub options: Options,
}

impl std::fmt::Debug for CommitContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommitContext").field("table", &self.table.path).field("lake", &self.lake).finish_non_exhaustive()
    }
}

impl CommitContext {
    /// K. What can't be read is asked for again after a pause: a starting coordinator says so too.
    ///
    /// # Errors
    /// `Stale` when the table is gone or another one; `Unavailable`; `Invalid`.
    pub(super) async fn known(&self) -> Result<Ledger> {
        let path = &self.table.path;
        let mut state = self.ledger.latest(path).await?;
        if matches!(state, LedgerState::Unknown { .. }) && self.options.holds(Rule::UnknownPause) {
            self.runtime.clock.sleep(self.options.unknown_pause).await;
            state = self.ledger.latest(path).await?;
        }
        match state {
            LedgerState::Empty => Ok(Ledger::Empty),
            LedgerState::At(entry) if entry.table == self.table.id => Ok(Ledger::At(entry.snapshot.0, entry.offsets)),
            LedgerState::At(entry) => {
                self.check_same_table().await?;
                Ok(Ledger::Other(entry.snapshot.0, entry.table))
            }
            LedgerState::Unknown { .. } => Ok(Ledger::Unknown),
            LedgerState::TableGone => Err(Error::stale(format!("table `{path}` is gone")).with_code(7)),
        }
    }

    /// Whether the table is still ours to work on, as far as we can tell.
    ///
    /// # Errors
    /// `Stale`.
    pub(super) fn check_lease(&self) -> Result<()> {
        self.lease.iter().filter(|_| self.options.holds(Rule::CheckLease)).try_for_each(Lease::check)
    }

    /// Fails unless the table at the path is still the one the round was planned by.
    ///
    /// # Errors
    /// `Stale`; those of [`TableScan::table_info`].
    pub(super) async fn check_same_table(&self) -> Result<()> {
        let now = self.scan.table_info(&self.table.path).await?.id;
        if now == self.table.id { Ok(()) } else { Err(self.replaced(&now.to_string())) }
    }

    fn replaced(&self, now: &str) -> Error {
        Error::stale(format!("table `{}` was dropped and made again: id `{}` is now `{now}`", self.table.path, self.table.id))
    }

    /// Newest snapshot id, 0 = none.
    pub(super) async fn newest(&self) -> Result<i64> {
        Ok(self.lake.newest_snapshot_id().await?.unwrap_or(0))
    }

    /// The same, and the snapshot where it was read on the way.
    pub(super) async fn newest_seen(&self) -> Result<(i64, Option<Seen>)> {
        let (id, snapshot) = self.lake.newest_snapshot().await?;
        Ok((id.unwrap_or(0), snapshot.as_ref().map(Seen::of)))
    }

    pub(super) async fn see(&self, id: i64) -> Result<Option<Seen>> {
        Ok(self.lake.snapshot(id).await?.as_ref().map(Seen::of))
    }

    pub(super) fn held(&self, fault: fault::Fault) -> Error {
        fault.into_error(&self.table.path.to_string(), &self.lake.location())
    }

    pub(super) fn backoff(&self) -> Backoff {
        let options = self.options;
        let bounds = BackoffOptions { first: options.pause_first, max: options.pause_max, attempts_max: options.tries_max };
        Backoff::new(bounds, &self.runtime.rng)
    }

    /// Prepares an offsets file with exactly these offsets. A file that is prepared twice is only litter.
    ///
    /// # Errors
    /// Those of [`LakeLedger::prepare`].
    pub(super) async fn prepare(&self, offsets: &LakeOffsets) -> Result<String> {
        let mut pauses = self.backoff();
        loop {
            match self.ledger.prepare(self.table.id, &self.table.path, offsets).await {
                Err(error) if error.kind() == Kind::Unavailable => match pauses.next_pause() {
                    Some(pause) => self.runtime.clock.sleep(pause).await,
                    None => return Err(error),
                },
                done => return done,
            }
        }
    }

    /// Records a snapshot (commit.md 6), unless Fluss knows it or a later one by now.
    ///
    /// That look saves a step of K backwards and proves nothing; nor does an OK. The next recovery repairs both.
    ///
    /// # Errors
    /// `Unavailable` when all tries are used up; `Stale` when the table is gone; those of [`LakeLedger::record`].
    pub(super) async fn record(&self, entry: &Entry<'_>) -> Result<()> {
        let mut pauses = self.backoff();
        loop {
            match self.record_once(entry).await {
                Err(error) if error.kind() == Kind::Unavailable => match pauses.next_pause() {
                    Some(pause) => self.runtime.clock.sleep(pause).await,
                    None => return Err(error.context(format!("record snapshot `{}` of `{}` in Fluss", entry.id, self.table.path))),
                },
                done => return done,
            }
        }
    }

    /// Records a snapshot over whatever Fluss knows, ids of before a rollback included, and again until it is K.
    ///
    /// # Errors
    /// `Unavailable` when all tries are used up; `Stale` when the table is gone; those of [`LakeLedger::record`].
    pub(super) async fn record_over(&self, entry: &Entry<'_>) -> Result<()> {
        let mut pauses = self.backoff();
        loop {
            let sent = self.send(entry).await;
            match sent {
                Err(error) if error.kind() != Kind::Unavailable => return Err(error),
                sent => {
                    if self.known().await? == Ledger::At(entry.id, entry.offsets.clone()) {
                        return Ok(());
                    }
                    let what = format!("record snapshot `{}` of `{}` in Fluss over what it knows", entry.id, self.table.path);
                    match pauses.next_pause() {
                        Some(pause) => self.runtime.clock.sleep(pause).await,
                        None => {
                            sent.map_err(|error| error.context(what.clone()))?;
                            return Err(Error::unavailable(format!("{what}: somebody else records another one again and again")));
                        }
                    }
                }
            }
        }
    }

    async fn record_once(&self, entry: &Entry<'_>) -> Result<()> {
        if self.options.holds(Rule::ReadKnown) && self.known().await?.id() >= entry.id {
            return Ok(());
        }
        self.send(entry).await
    }

    async fn send(&self, entry: &Entry<'_>) -> Result<()> {
        self.check_lease()?;
        self.ledger
            .record(LedgerRecord {
                table: self.table.id,
                path: self.table.path.clone(),
                snapshot: SnapshotId(entry.id),
                offsets_path: entry.path.to_owned(),
                offsets: entry.offsets.clone(),
                max_timestamps: entry.max_timestamps.clone(),
                earliest_to_keep: entry.earliest_to_keep,
            })
            .await
    }
}

/// A snapshot to record.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) id: i64,
    pub(super) path: &'a str,
    pub(super) offsets: &'a LakeOffsets,
    pub(super) max_timestamps: &'a BTreeMap<BucketKey, i64>,
    /// Never absent: absent makes the server throw away every other entry and its file (F3.3).
    pub(super) earliest_to_keep: i64,
}

/// `earliest_snapshot_id_to_keep` that keeps everything.
pub(super) const KEEP_ALL: i64 = -1;
