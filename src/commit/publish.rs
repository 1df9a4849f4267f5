//! Steps 3 to 7, acted: pin, check, prepare, attempt, record, unpin (commit.md).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::attempt::{Facts, Look, Unknown, look, mixed_totals, used_sequence};
use super::context::{CommitContext, Entry, KEEP_ALL};
use super::fault::Fault;
use super::pins;
use super::recovery::advance;
use super::rules::Rule;
use super::seen::{COMMIT_IDENTIFIER, COMMIT_USER, Properties, Seen};
use super::{Base, CommitOutcome, DataFiles, RoundWork, invariants};
use crate::error::{Error, Kind, Result};
use crate::lake::{CommitFacts, Delta, Published, Staged};
use crate::model::{OffsetsFile, RoundId, SnapshotId};
use crate::paimon::{BinaryRow, Snapshot, TableOptions, TableSchema};
use crate::runtime::{Backoff, BackoffOptions};

/// Makes a round visible: steps 3 to 7.
///
/// Nothing is made, and no pin touched but the standing one, when no offset advanced beyond `base`.
pub async fn commit(context: &CommitContext, base: &Base, work: &RoundWork) -> CommitOutcome {
    let failed = |error| CommitOutcome::Failed { error, files: DataFiles::Unnamed, published: None };
    match work.check(base).map(|()| work.advances(base)) {
        Ok(true) => drive(context, base, work, false).await,
        Ok(false) => keep_standing_pin(context, base).await.map_or_else(failed, |()| CommitOutcome::Nothing),
        Err(error) => failed(error),
    }
}

/// Makes an operator's word visible, which has no rows and advances nothing: the same steps; recorded over any K.
pub(super) async fn state(context: &CommitContext, base: &Base, work: &RoundWork) -> CommitOutcome {
    drive(context, base, work, true).await
}

async fn drive(context: &CommitContext, base: &Base, work: &RoundWork, word: bool) -> CommitOutcome {
    let mut round = match Round::new(context, base, work, word) {
        Ok(round) => round,
        Err(error) => return CommitOutcome::Failed { error, files: DataFiles::Unnamed, published: None },
    };
    match round.publish().await {
        Ok((id, path)) => round.finish(id, &path).await,
        Err(error) => {
            let settled = invariants::may_delete(false, round.unknown.open()) || !context.options.holds(Rule::FilesStay);
            let files = if settled { DataFiles::Unnamed } else { DataFiles::MayBeNamed };
            round.discard_manifests(None).await;
            if files == DataFiles::Unnamed && context.options.holds(Rule::OwnPinGoes) {
                // A pin that stays only keeps the lake from expiring for a day.
                drop(context.lake.delete_pin(&pins::name_of(work.round)).await);
            }
            CommitOutcome::Failed { error, files, published: None }
        }
    }
}

/// What a look at a table with nothing to tier does: where `consumer.expiration-time` is set, the standing pin is written again.
///
/// # Errors
/// `Unavailable`.
pub async fn keep_standing_pin(context: &CommitContext, base: &Base) -> Result<()> {
    let expiration = TableOptions::parse(context.lake.schema())?.consumer_expiration;
    if expiration.is_none() || !context.options.holds(Rule::PinAgain) {
        return Ok(());
    }
    let now_ms = context.runtime.clock.now_ms();
    for pin in our_pins(context).await? {
        if base.published.contains(&pin.round) && pins::is_due(expiration, pin.written_ms, now_ms) {
            context.lake.write_pin(&pins::name_of(pin.round), pin.next_snapshot).await?;
        }
    }
    Ok(())
}

pub(super) async fn our_pins(context: &CommitContext) -> Result<Vec<pins::Pin>> {
    let pins = context.lake.pins(pins::PREFIX).await?;
    Ok(pins
        .into_iter()
        .filter_map(|pin| {
            let round = pins::round_of(&pin.name)?;
            Some(pins::Pin { round, next_snapshot: pin.next_snapshot, written_ms: pin.written_ms })
        })
        .collect())
}

/// One round on its way into the lake.
struct Round<'a> {
    context: &'a CommitContext,
    base: &'a Base,
    work: &'a RoundWork,
    /// An operator's word.
    word: bool,
    options: TableOptions,
    /// The complete map: base and round.
    offsets: OffsetsFile,
    /// Bucket total of each touched partition, as the files are stamped.
    totals: BTreeMap<BinaryRow, i32>,
    published: BTreeSet<RoundId>,
    pinned_ms: i64,
    attempts: u32,
    unknown: Unknown,
    delta: Option<Delta>,
    /// Lists by the id that they were to be published under.
    staged: Vec<(i64, Staged)>,
}

impl<'a> Round<'a> {
    fn new(context: &'a CommitContext, base: &'a Base, work: &'a RoundWork, word: bool) -> Result<Self> {
        if base.table != context.table.id {
            return Err(Error::internal(format!("base of table id `{}` for table id `{}`", base.table, context.table.id)));
        }
        Ok(Self {
            context,
            base,
            work,
            word,
            options: TableOptions::parse(context.lake.schema())?,
            offsets: OffsetsFile {
                table: base.table,
                offsets: if context.options.holds(Rule::CompleteMap) {
                    base.offsets.overlaid(&work.end_offsets)
                } else {
                    work.end_offsets.clone()
                },
            },
            totals: work.totals()?,
            published: base.published.clone(),
            pinned_ms: 0,
            attempts: 0,
            unknown: Unknown::default(),
            delta: None,
            staged: vec![],
        })
    }

    /// Steps 3 to 5: the snapshot that carries this round, and its offsets file.
    async fn publish(&mut self) -> Result<(i64, String)> {
        let fail = &self.context.runtime.fail;
        fail.hit("commit.before_pin").await?;
        let holds = |rule| self.context.options.holds(rule);
        let pins = holds(Rule::Pin);
        if pins && holds(Rule::PinFirst) {
            self.pin().await?;
        }
        // Step 4 saves work; the look of each attempt decides.
        self.context.check_lease()?;
        if holds(Rule::CheckFirst) {
            self.context.check_same_table().await?;
            self.look().await?;
        }
        fail.hit("commit.before_prepare").await?;
        let path = self.context.prepare(&self.offsets.offsets).await?;
        fail.hit("commit.after_prepare").await?;
        let tries_max = self.options.commit_retries.saturating_add(1);
        let began = self.context.runtime.clock.moment();
        let mut pauses = Backoff::new(
            BackoffOptions {
                first: self.options.commit_wait_min.max(Duration::from_millis(1)),
                max: self.options.commit_wait_max,
                // A look that fails is tried again too.
                attempts_max: usize::try_from(tries_max).unwrap_or(usize::MAX).saturating_mul(2),
            },
            &self.context.runtime.rng,
        );
        loop {
            let timed_out = self.options.commit_timeout.is_some_and(|limit| began.elapsed() >= limit);
            let tried = match self.attempt(&path, tries_max, timed_out).await {
                Ok(Some(id)) => return Ok((id, path)),
                Ok(None) => Ok(()),
                Err(error) if error.kind() == Kind::Unavailable => Err(error),
                Err(error) => return Err(error),
            };
            match pauses.next_pause() {
                Some(pause) => self.context.runtime.clock.sleep(pause).await,
                None => {
                    tried?;
                    return Err(self.gave_up());
                }
            }
        }
    }

    fn gave_up(&self) -> Error {
        Error::stale(format!(
            "round `{}` of `{}` gave up after `{}` publish tries",
            self.work.round, self.context.table.path, self.attempts
        ))
    }

    /// Create if absent; again where `consumer.expiration-time` is set and a quarter of it has passed.
    async fn pin(&mut self) -> Result<()> {
        let now_ms = self.context.runtime.clock.now_ms();
        self.context.lake.write_pin(&pins::name_of(self.work.round), self.base.floor + 1).await?;
        self.pinned_ms = now_ms;
        Ok(())
    }

    /// 5a, which is 5d of the attempt before: the newest snapshot, if it may be built on, or the one that is ours already.
    async fn look(&mut self) -> Result<Found> {
        let context = self.context;
        let (newest, mut parent) = context.lake.newest_snapshot().await?;
        let newest = newest.unwrap_or(0);
        let snapshots = parent.as_ref().map(|parent| (newest, Some(Seen::of(parent)))).into_iter().collect();
        let mut facts = Facts { base: self.base, round: self.work.round, newest, snapshots, options: context.options };
        let step = loop {
            match look(&facts) {
                Look::Read(id) => {
                    let snapshot = context.lake.snapshot(id).await?;
                    facts.snapshots.insert(id, snapshot.as_ref().map(Seen::of));
                    if id == newest {
                        parent = snapshot;
                    }
                }
                step => break step,
            }
        };
        self.published.extend(facts.snapshots.values().flatten().filter_map(Seen::round));
        if let Look::Stale(_) = step
            && !context.options.holds(Rule::RoundId)
            && let Some(id) = facts
                .snapshots
                .values()
                .flatten()
                .find_map(|seen| seen.fluss.as_ref().map(|_| seen.id).filter(|id| self.unknown.has(*id)))
        {
            return Ok(Found::Ours(id));
        }
        self.unknown.settle(&facts);
        match step {
            Look::Free => Ok(Found::Free(Box::new(parent))),
            Look::Published(id) => Ok(Found::Ours(id)),
            Look::Stale(why) => Err(Error::stale(format!("table `{}`: {why}", context.table.path))),
            Look::Fault(fault) => Err(context.held(fault)),
            Look::Read(_) => Err(Error::internal("an attempt was not decided")),
        }
    }

    /// One attempt; `None` when it was lost or its outcome is unknown: the next one's look tells.
    async fn attempt(&mut self, path: &str, tries_max: u32, timed_out: bool) -> Result<Option<i64>> {
        let context = self.context;
        let spent = timed_out || self.attempts >= tries_max;
        if spent && !context.options.holds(Rule::LastLook) {
            return Err(self.gave_up());
        }
        let parent = match self.look().await? {
            Found::Ours(id) => return Ok(Some(id)),
            Found::Free(parent) => *parent,
        };
        let newest = parent.as_ref().map_or(0, |parent| parent.id);
        if self.unknown.reaches_beyond(newest + 1) && context.options.holds(Rule::UnknownBeyond) {
            return Err(Error::stale(format!(
                "`{}` was rolled back while a publish try of round `{}` was under way",
                context.lake.location(),
                self.work.round
            )));
        }
        let now_ms = context.runtime.clock.now_ms();
        let age = now_ms.saturating_sub(self.work.started_ms);
        if i128::from(age) > i128::try_from(context.options.round_age_max.as_millis()).unwrap_or(i128::MAX)
            && context.options.holds(Rule::RoundAge)
        {
            return Err(Error::stale(format!(
                "round `{}` is older than `{}` s",
                self.work.round,
                context.options.round_age_max.as_secs()
            )));
        }
        if spent {
            return Err(self.gave_up());
        }
        if pins::is_due(self.options.consumer_expiration, self.pinned_ms, now_ms) && context.options.holds(Rule::PinAgain) {
            self.pin().await?;
        }
        let (snapshot, staged) = match self.build(parent.as_ref(), path).await {
            // What was to be built on has expired meanwhile, its manifests first (P10.1): others went on, look again.
            Err(error) if error.kind() == Kind::Data && context.newest().await? != newest => return Ok(None),
            built => built?,
        };
        debug_assert_eq!(
            self.promises(parent.as_ref(), &snapshot),
            Ok(()),
            "snapshot `{}` of round `{}`",
            snapshot.id,
            self.work.round
        );
        if context.options.holds(Rule::Pin) && !context.options.holds(Rule::PinFirst) {
            self.pin().await?;
        }
        context.runtime.fail.hit("commit.before_publish").await?;
        context.check_lease()?;
        self.attempts += 1;
        // Counted as unknown before it is sent, so that no way out of here forgets it.
        self.unknown.add(snapshot.id);
        self.staged.push((snapshot.id, staged));
        if !context.options.holds(Rule::CreateIfAbsent) {
            let place = context.lake.object(&crate::paimon::path::snapshot(snapshot.id));
            context.lake.store().put(&place, snapshot.to_json()?.into()).await?;
            return Ok(Some(snapshot.id));
        }
        match context.lake.publish(&snapshot).await {
            Ok(Published::Created) => Ok(Some(snapshot.id)),
            // On object stores also what a repeated request of ours meets (P8.3).
            Ok(Published::Exists) => Ok(None),
            Err(error) => {
                if context.options.holds(Rule::Unanswered) {
                    self.unknown.unanswered();
                }
                if error.kind() == Kind::Unavailable { Ok(None) } else { Err(error) }
            }
        }
    }

    /// 5b and the lists of 5c.
    async fn build(&mut self, parent: Option<&Snapshot>, path: &str) -> Result<(Snapshot, Staged)> {
        let lake = &self.context.lake;
        let schema_id = self.check_conflicts(parent).await?;
        let delta = match &self.delta {
            Some(delta) => delta,
            // It does not depend on the newest snapshot, so one does for all attempts (P8.1).
            None => self.delta.insert(lake.write_delta(self.work.entries.clone(), self.work.changelog.clone()).await?),
        };
        // Who lost a race has no time for merging (P4.7).
        let staged = lake.stage(parent, delta, self.attempts == 0).await?;
        Ok((staged.snapshot(parent, self.facts(path, schema_id)?), staged))
    }

    /// What a snapshot of ours must keep, as far as it is cheap to tell (debug builds).
    fn promises(&self, parent: Option<&Snapshot>, made: &Snapshot) -> invariants::Verdict {
        let (before, after) = (&self.base.offsets, &self.offsets.offsets);
        for (bucket, offset) in &before.0 {
            invariants::bucket_goes_on(Some(*offset), after.get(*bucket))?;
        }
        if !self.context.table.has_primary_key() {
            invariants::rows_fit(self.work.rows(), advance(before, after))?;
        }
        let below = parent.map_or(Some(0), |parent| parent.total_record_count);
        invariants::stands_on(made.total_record_count, made.delta_record_count, below)
    }

    /// 5b (P8.5): the lake table is the same, its files still lie the same way, no partition gets a second bucket total, and no
    /// bucket of a primary-key table a sequence number that it has. Returns the newest schema id.
    async fn check_conflicts(&self, newest: Option<&Snapshot>) -> Result<i64> {
        let (lake, table) = (&self.context.lake, &self.context.table.path);
        if lake.schema_zero().await?.time_ms != self.base.born_ms && self.context.options.holds(Rule::SameLakeTable) {
            return Err(Error::stale(format!(
                "the lake table of `{table}`, `{}`, was made again since this round looked",
                lake.location()
            )));
        }
        let schema_id = lake.newest_schema_id().await?;
        if schema_id != lake.schema().id {
            let schema = lake.load_schema(schema_id).await?;
            TableOptions::parse(&schema)?;
            if let Some(what) = layout_change(lake.schema(), &schema) {
                return Err(Error::stale(format!("{what} of the lake table of `{table}` changed since this round looked")));
            }
        }
        let Some(newest) = newest.filter(|_| !self.totals.is_empty()) else { return Ok(schema_id) };
        let touched: BTreeSet<BinaryRow> = self.totals.keys().cloned().collect();
        let live = lake.live_partitions(newest, Some(&touched)).await?;
        let mixed = mixed_totals(&live, &self.totals).filter(|_| self.context.options.holds(Rule::Totals));
        let folder = |partition: &BinaryRow| crate::paimon::path::partition_path(lake.schema(), partition);
        let Some((partition, theirs, ours)) = mixed else {
            // Rows of others that came meanwhile would hide ours, or be hidden by them: which of both is newer was not looked at.
            if self.context.table.has_primary_key()
                && self.context.options.holds(Rule::Sequences)
                && let Some((partition, bucket, theirs, ours)) = used_sequence(&live, &self.work.first_sequences())
            {
                return Err(Error::stale(format!(
                    "somebody else has written to bucket `{bucket}` of `{}{}` since this round looked: sequence number `{theirs}`, ours begin at `{ours}`",
                    lake.object(""),
                    folder(&partition)?
                )));
            }
            return Ok(schema_id);
        };
        let folder = folder(&partition)?;
        let theirs: Vec<String> = theirs.iter().map(i32::to_string).collect();
        Err(Error::data(format!(
            "table `{table}`: partition `{folder}` has bucket count `{ours}` in Fluss, but files of total `{}` in `{}`",
            theirs.join("`, `"),
            lake.location()
        ))
        .with_hint(format!(
            "write that partition of the lake table again by the count that Fluss says: `lakeward repair rewrite-partition {table}{}`, or \
             Paimon's `rescale` procedure",
            if folder.is_empty() { String::new() } else { format!(" --partition {}", folder.trim_end_matches('/')) }
        )))
    }

    /// What the snapshot says beyond its lists, in this attempt.
    fn facts(&self, path: &str, schema_id: i64) -> Result<CommitFacts> {
        let properties =
            Properties { path, offsets: &self.offsets, round: self.work.round, base: self.base.id, epoch: self.work.tiering_epoch };
        Ok(CommitFacts {
            schema_id,
            user: COMMIT_USER.to_owned(),
            identifier: COMMIT_IDENTIFIER,
            kind: "APPEND".to_owned(),
            time_ms: self.context.runtime.clock.now_ms(),
            properties: properties.to_map()?,
        })
    }

    /// Steps 6 and 7. The round is in the lake; whatever fails here, the next recovery repairs.
    async fn finish(&mut self, id: i64, path: &str) -> CommitOutcome {
        match self.record_and_unpin(id, path).await {
            Ok(warnings) => CommitOutcome::Committed { snapshot: SnapshotId(id), attempts: self.attempts, warnings },
            Err(error) => CommitOutcome::Failed { error, files: DataFiles::MayBeNamed, published: Some(SnapshotId(id)) },
        }
    }

    async fn record_and_unpin(&mut self, id: i64, path: &str) -> Result<Vec<Error>> {
        let context = self.context;
        let fail = &context.runtime.fail;
        fail.hit("commit.after_publish").await?;
        let mut warnings = vec![];
        // A hint only (P1.3): stale or missing is legal.
        warnings.extend(context.lake.write_latest_hint(id).await.err());
        self.discard_manifests(Some(id)).await;
        fail.hit("commit.before_record").await?;
        let entry = Entry {
            id,
            path,
            offsets: &self.offsets.offsets,
            max_timestamps: &self.work.max_timestamps,
            earliest_to_keep: if self.base.id > 0 { self.base.id } else { KEEP_ALL },
        };
        if self.word {
            context.record_over(&entry).await?;
        } else {
            context.record(&entry).await?;
        }
        fail.hit("commit.after_record").await?;
        let looked = if context.options.holds(Rule::LookAfter) { self.look_after(id).await } else { Ok(None) };
        match looked {
            Ok(Some(fault)) => return Err(context.held(fault)),
            Ok(None) => {}
            // The next recovery would find the same, later.
            Err(error) => warnings.push(error),
        }
        fail.hit("commit.before_unpin").await?;
        warnings.extend(self.unpin_others().await.err());
        Ok(warnings)
    }

    /// Snapshot N once more, after it was recorded.
    async fn look_after(&self, id: i64) -> Result<Option<Fault>> {
        let seen = self.context.see(id).await?;
        // What is there needs no other: the newest id tells only why it is gone.
        let newest = if seen.is_some() { id } else { self.context.newest().await? };
        Ok(after_record(seen.as_ref(), id, newest, self.work))
    }

    /// Our own pin stays as the standing one.
    async fn unpin_others(&self) -> Result<()> {
        let (context, now_ms) = (self.context, self.context.runtime.clock.now_ms());
        let pins = our_pins(context).await?;
        if !context.options.holds(Rule::StandingPin) {
            context.lake.delete_pin(&pins::name_of(self.work.round)).await?;
        }
        let gone = pins::removable(&pins, self.work.round, self.base.floor, &self.published, now_ms, &context.options);
        debug_assert_eq!(
            invariants::no_pin_left(
                pins.iter()
                    .filter(|pin| pin.round != self.work.round && !gone.contains(&pin.round))
                    .map(|pin| invariants::PinFact { next_snapshot: pin.next_snapshot, over: self.published.contains(&pin.round) }),
                self.base.floor
            ),
            Ok(())
        );
        for round in gone {
            context.lake.delete_pin(&pins::name_of(round)).await?;
        }
        Ok(())
    }

    /// Deletes lists of attempts that are settled as lost, and all manifests when no attempt `won`. What stays is for the orphan sweep.
    async fn discard_manifests(&mut self, won: Option<i64>) {
        let lake = &self.context.lake;
        for (id, staged) in std::mem::take(&mut self.staged) {
            // Tries under one id differ in their lists alone, and any of them may have won.
            let lost =
                won.map_or(invariants::may_delete(false, self.unknown.open()), |won| won != id && !self.unknown.is_unanswered());
            if lost {
                drop(lake.discard_staged(&staged).await);
            }
        }
        if let Some(delta) = self.delta.take().filter(|_| invariants::may_delete(won.is_some(), self.unknown.open())) {
            drop(lake.discard_delta(&delta).await);
        }
    }
}

/// What the look before an attempt found.
enum Found {
    /// Nobody from Fluss has committed since the base; this is the newest snapshot.
    Free(Box<Option<Snapshot>>),
    /// A publish try of ours has made this snapshot.
    Ours(i64),
}

/// What tells where rows lie and has changed. New columns and another bucket count for partitions to come are fine: files carry
/// their own schema id and total.
pub(super) fn layout_change(before: &TableSchema, after: &TableSchema) -> Option<&'static str> {
    let unaware = |schema: &TableSchema| schema.option("bucket").is_none_or(|bucket| bucket.trim() == "-1");
    if before.partition_keys != after.partition_keys {
        Some("the partition keys")
    } else if before.primary_keys != after.primary_keys {
        Some("the primary key")
    } else if before.option("bucket-key") != after.option("bucket-key") {
        Some("the option `bucket-key`")
    } else if unaware(before) != unaware(after) {
        Some("the option `bucket`")
    } else {
        None
    }
}

/// What snapshot N says after it was recorded (commit.md 6).
fn after_record(seen: Option<&Seen>, id: i64, newest: i64, work: &RoundWork) -> Option<Fault> {
    let (round, rows) = (work.round, work.rows());
    match seen {
        Some(seen) if seen.round() == Some(round) => None,
        Some(_) => Some(Fault::Overwritten { snapshot: id, round, rows }),
        None if newest < id => Some(Fault::RolledBack { snapshot: id, newest, round, rows }),
        // Others went on and it expired.
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Lake, offsets, round};
    use super::*;

    fn work() -> RoundWork {
        RoundWork {
            round: round(9),
            started_ms: 0,
            tiering_epoch: None,
            entries: vec![],
            changelog: vec![],
            end_offsets: offsets(&[7]),
            max_timestamps: BTreeMap::new(),
        }
    }

    #[test]
    fn after_the_record_the_snapshot_is_ours_or_the_table_is_held() {
        let lake = Lake::default().ours(9, 5, &[5]).foreign(1);
        let verdict = |id: i64, newest| after_record(lake.0.get(&id), id, newest, &work());
        assert_eq!(verdict(1, 2), None);
        assert_eq!(verdict(2, 2), Some(Fault::Overwritten { snapshot: 2, round: round(9), rows: 0 }));
        assert_eq!(verdict(3, 2), Some(Fault::RolledBack { snapshot: 3, newest: 2, round: round(9), rows: 0 }));
        // Others went on, and it expired.
        assert_eq!(verdict(3, 4), None);
    }

    #[test]
    fn a_change_of_where_rows_lie_is_named_and_a_rescale_is_none() {
        let schema = |options: &[(&str, &str)]| TableSchema {
            id: 0,
            fields: vec![],
            highest_field_id: -1,
            partition_keys: vec!["day".into()],
            primary_keys: vec![],
            options: options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            comment: None,
            time_ms: 0,
        };
        let before = schema(&[("bucket", "2"), ("bucket-key", "id")]);
        assert_eq!(layout_change(&before, &schema(&[("bucket", "4"), ("bucket-key", "id"), ("write-only", "true")])), None);
        assert_eq!(layout_change(&before, &schema(&[("bucket", "2"), ("bucket-key", "name")])), Some("the option `bucket-key`"));
        assert_eq!(layout_change(&before, &schema(&[("bucket-key", "id")])), Some("the option `bucket`"));
        let keys = TableSchema { partition_keys: vec![], ..before.clone() };
        assert_eq!(layout_change(&before, &keys), Some("the partition keys"));
    }

    #[test]
    fn rounds_are_futures_that_can_be_spawned() {
        fn is_send<T: Send>(_: impl FnOnce(&'static CommitContext, &'static Base, &'static RoundWork) -> T) {}
        is_send(commit);
        is_send(|context, _, _| super::super::recover(context));
    }
}
