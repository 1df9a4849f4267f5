//! A maintenance commit: the live files of one partition replaced by others, in one OVERWRITE (P8.4), beside rounds and compactions.
//!
//! Not Fluss-made: its user is [`MAINTENANCE_USER`], so that no worker looks for offsets in it, and rounds go on over it. It may be
//! published only while the files that it replaces are exactly those that are live in the partition: whoever wrote or compacted there
//! meanwhile makes it `Stale`. Identity is the round id, and an outcome that is not known is settled by the next look, as in a round's
//! steps 5a and 5d. From its beginning a pin keeps the snapshot that it reads from, and with it ids from being used again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::pins;
use super::publish::layout_change;
use super::seen::{COMMIT_IDENTIFIER, ROUND};
use super::{CommitOutcome, DataFiles, Options, invariants};
use crate::error::{Error, Kind, Result};
use crate::lake::{CommitFacts, Delta, LakeTable, Published, Staged};
use crate::model::{RoundId, SnapshotId};
use crate::paimon::merge::FileIdentity;
use crate::paimon::{BinaryRow, EntryKind, ManifestEntry, Snapshot, TableOptions};
use crate::runtime::{Backoff, BackoffOptions};

/// Commit user of what Lakeward does to a lake table beside tiering.
pub const MAINTENANCE_USER: &str = "lakeward-maintenance";

/// Files of one partition on their way to be replaced.
#[derive(Debug)]
pub struct Replacement<'a> {
    lake: &'a LakeTable,
    options: Options,
    round: RoundId,
    started_ms: i64,
    born_ms: i64,
    partition: BinaryRow,
    base: Snapshot,
    replaced: Vec<ManifestEntry>,
    attempts: u32,
    /// Ids that were tried and are not settled.
    open: BTreeSet<i64>,
    /// One of the tries got no answer.
    unanswered: bool,
    delta: Option<Delta>,
    staged: Vec<(i64, Staged)>,
}

impl<'a> Replacement<'a> {
    /// Takes down what is live in `partition` now, and pins it. `None` on a table without snapshots. End it with
    /// [`Replacement::finish`] or [`Replacement::give_up`].
    ///
    /// # Errors
    /// `Unavailable`; `Stale` when the newest snapshot goes away meanwhile; `Data`; `Unsupported` on deletion vectors.
    pub async fn begin(lake: &'a LakeTable, partition: BinaryRow, options: Options) -> Result<Option<Self>> {
        let runtime = lake.runtime();
        let Some(id) = lake.newest_snapshot_id().await? else { return Ok(None) };
        let round = RoundId(runtime.rng.uuid());
        let born_ms = lake.schema_zero().await?.time_ms;
        lake.write_pin(&pins::name_of(round), id).await?;
        let read = async {
            let gone = || Error::stale(format!("the newest snapshot `{id}` of `{}` went away meanwhile", lake.location()));
            let base = lake.snapshot(id).await?.ok_or_else(gone)?;
            if base.index_manifest.is_some() {
                return Err(Error::unsupported(format!(
                    "replacing files of `{}`, which has an index or deletion vectors",
                    lake.location()
                )));
            }
            let replaced = lake.live_entries(&base, Some(&BTreeSet::from([partition.clone()]))).await?;
            Ok((base, replaced))
        };
        match read.await {
            Ok((base, replaced)) => Ok(Some(Self {
                lake,
                options,
                round,
                started_ms: runtime.clock.now_ms(),
                born_ms,
                partition,
                base,
                replaced,
                attempts: 0,
                open: BTreeSet::new(),
                unanswered: false,
                delta: None,
                staged: vec![],
            })),
            Err(error) => {
                drop(lake.delete_pin(&pins::name_of(round)).await);
                Err(error)
            }
        }
    }

    /// The snapshot that the files are live in.
    #[must_use]
    pub const fn base(&self) -> &Snapshot {
        &self.base
    }

    /// The live files, in manifest order.
    #[must_use]
    pub fn files(&self) -> &[ManifestEntry] {
        &self.replaced
    }

    /// Its uuid is in the names of the files that are to take their place.
    #[must_use]
    pub const fn round(&self) -> RoundId {
        self.round
    }

    /// Nothing is to be replaced.
    pub async fn give_up(self) {
        drop(self.lake.delete_pin(&pins::name_of(self.round)).await);
    }

    /// Publishes: the files that were live are removed, `added` are there instead.
    pub async fn finish(mut self, added: &[ManifestEntry]) -> CommitOutcome {
        match self.publish(added).await {
            Ok(id) => {
                let mut warnings = vec![];
                warnings.extend(self.lake.write_latest_hint(id).await.err());
                self.discard(Some(id)).await;
                // Whether a committer without atomic create has overwritten it (commit.md 6).
                match self.lake.snapshot(id).await {
                    Ok(Some(now)) if !self.is_ours(&now) => {
                        let error = Error::data(format!(
                            "snapshot `{id}` in `{}` was that of our maintenance and is another's now: a committer without atomic \
                             create overwrote it",
                            self.lake.location()
                        ))
                        .with_hint("keep committers without atomic create away from this table, then run the same command again");
                        return CommitOutcome::Failed { error, files: DataFiles::MayBeNamed, published: Some(SnapshotId(id)) };
                    }
                    Ok(_) => {}
                    Err(error) => warnings.push(error),
                }
                warnings.extend(self.lake.delete_pin(&pins::name_of(self.round)).await.err());
                CommitOutcome::Committed { snapshot: SnapshotId(id), attempts: self.attempts, warnings }
            }
            Err(error) => {
                let settled = invariants::may_delete(false, self.unsettled());
                self.discard(None).await;
                if settled {
                    drop(self.lake.delete_pin(&pins::name_of(self.round)).await);
                }
                let files = if settled { DataFiles::Unnamed } else { DataFiles::MayBeNamed };
                CommitOutcome::Failed { error, files, published: None }
            }
        }
    }

    fn unsettled(&self) -> usize {
        self.open.len().max(usize::from(self.unanswered))
    }

    fn is_ours(&self, snapshot: &Snapshot) -> bool {
        snapshot.commit_user == MAINTENANCE_USER && snapshot.properties.get(ROUND) == Some(&self.round.to_string())
    }

    async fn publish(&mut self, added: &[ManifestEntry]) -> Result<i64> {
        let options = TableOptions::parse(self.lake.schema())?;
        let runtime = self.lake.runtime();
        let tries_max = options.commit_retries.saturating_add(1);
        let bounds = BackoffOptions {
            first: options.commit_wait_min.max(Duration::from_millis(1)),
            max: options.commit_wait_max,
            attempts_max: usize::try_from(tries_max).unwrap_or(usize::MAX).saturating_mul(2),
        };
        let mut pauses = Backoff::new(bounds, &runtime.rng);
        loop {
            let tried = match self.attempt(added, tries_max).await {
                Ok(Some(id)) => return Ok(id),
                Ok(None) => Ok(()),
                Err(error) if error.kind() == Kind::Unavailable => Err(error),
                Err(error) => return Err(error),
            };
            match pauses.next_pause() {
                Some(pause) => runtime.clock.sleep(pause).await,
                None => {
                    tried?;
                    return Err(self.gave_up());
                }
            }
        }
    }

    fn gave_up(&self) -> Error {
        Error::stale(format!("`{}`: gave up after `{}` publish tries", self.lake.location(), self.attempts))
    }

    /// One attempt; `None` when it was lost or its outcome is unknown: the next one's look tells.
    async fn attempt(&mut self, added: &[ManifestEntry], tries_max: u32) -> Result<Option<i64>> {
        let (lake, runtime) = (self.lake, self.lake.runtime());
        let newest = match self.look().await? {
            Ok(newest) => newest,
            Err(ours) => return Ok(Some(ours)),
        };
        if self.open.last().is_some_and(|last| *last > newest.id + 1) {
            return Err(Error::stale(format!("`{}` was rolled back while a publish try was under way", lake.location())));
        }
        let age = runtime.clock.now_ms().saturating_sub(self.started_ms);
        if i128::from(age) > i128::try_from(self.options.round_age_max.as_millis()).unwrap_or(i128::MAX)
            || self.attempts >= tries_max
        {
            return Err(self.gave_up());
        }
        let schema_id = self.check(&newest).await?;
        if self.delta.is_none() {
            let removed = self.replaced.iter().cloned().map(|entry| ManifestEntry { kind: EntryKind::Delete, ..entry });
            self.delta = Some(lake.write_delta(removed.chain(added.iter().cloned()).collect(), vec![]).await?);
        }
        let Some(delta) = &self.delta else { return Err(Error::internal("no delta")) };
        let staged = match lake.stage(Some(&newest), delta, self.attempts == 0).await {
            // What was to be built on has expired meanwhile.
            Err(error) if error.kind() == Kind::Data && lake.newest_snapshot_id().await? != Some(newest.id) => return Ok(None),
            staged => staged?,
        };
        let facts = CommitFacts {
            schema_id,
            user: MAINTENANCE_USER.to_owned(),
            identifier: COMMIT_IDENTIFIER,
            kind: "OVERWRITE".to_owned(),
            time_ms: runtime.clock.now_ms(),
            properties: BTreeMap::from([(ROUND.to_owned(), self.round.to_string())]),
        };
        let snapshot = staged.snapshot(Some(&newest), facts);
        self.attempts += 1;
        self.open.insert(snapshot.id);
        self.staged.push((snapshot.id, staged));
        match lake.publish(&snapshot).await {
            Ok(Published::Created) => Ok(Some(snapshot.id)),
            Ok(Published::Exists) => Ok(None),
            Err(error) => {
                self.unanswered = true;
                if error.kind() == Kind::Unavailable { Ok(None) } else { Err(error) }
            }
        }
    }

    /// The newest snapshot, or `Err` with the id of the one that a try of ours has made.
    async fn look(&mut self) -> Result<std::result::Result<Snapshot, i64>> {
        let (lake, base) = (self.lake, &self.base);
        let newest = lake.newest_snapshot_id().await?.unwrap_or(0);
        let mut found = None;
        for id in base.id + 1..=newest {
            let Some(snapshot) = lake.snapshot(id).await? else {
                return Err(Error::stale(format!("snapshot `{id}` of `{}` has gone since we looked", lake.location())));
            };
            if self.is_ours(&snapshot) {
                return Ok(Err(id));
            }
            self.open.remove(&id);
            found = Some(snapshot);
        }
        let now = lake.snapshot(base.id).await?;
        if newest < base.id || now.as_ref().is_none_or(|now| now.delta_manifest_list != base.delta_manifest_list) {
            return Err(Error::stale(format!("`{}` was rolled back since we looked", lake.location())));
        }
        found.or(now).map(Ok).ok_or_else(|| Error::internal("no newest snapshot"))
    }

    /// The lake table is the same, and in the partition lives what was read, no file more or less. Returns the newest schema id.
    async fn check(&self, newest: &Snapshot) -> Result<i64> {
        let lake = self.lake;
        let changed = |what: &str| Error::stale(format!("{what} of `{}` changed since we looked", lake.location()));
        if lake.schema_zero().await?.time_ms != self.born_ms {
            return Err(changed("the table"));
        }
        let schema_id = lake.newest_schema_id().await?;
        if schema_id != lake.schema().id {
            let schema = lake.load_schema(schema_id).await?;
            TableOptions::parse(&schema)?;
            if let Some(what) = layout_change(lake.schema(), &schema) {
                return Err(changed(what));
            }
        }
        if newest.index_manifest.is_some() {
            return Err(changed("the index"));
        }
        if newest.id != self.base.id {
            let live = lake.live_entries(newest, Some(&BTreeSet::from([self.partition.clone()]))).await?;
            let identities =
                |entries: &[ManifestEntry]| -> BTreeSet<FileIdentity> { entries.iter().map(FileIdentity::of).collect() };
            if identities(&live) != identities(&self.replaced) {
                return Err(changed("what is live in the partition"));
            }
        }
        Ok(schema_id)
    }

    /// Deletes lists of attempts that are settled as lost, and the manifests when none `won`.
    async fn discard(&mut self, won: Option<i64>) {
        let free = invariants::may_delete(false, self.unsettled());
        for (id, staged) in std::mem::take(&mut self.staged) {
            if won.map_or(free, |won| won != id && !self.unanswered) {
                drop(self.lake.discard_staged(&staged).await);
            }
        }
        if let Some(delta) = self.delta.take().filter(|_| won.is_none() && free) {
            drop(self.lake.discard_delta(&delta).await);
        }
    }
}
