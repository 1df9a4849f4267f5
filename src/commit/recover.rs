//! Step 1, acted: reads what the decision asks for, looks twice where it must, records what Fluss does not know.

use std::collections::{BTreeMap, BTreeSet};

use super::Base;
use super::context::{CommitContext, Entry, KEEP_ALL};
use super::pins;
use super::publish::our_pins;
use super::recovery::{Facts, Found, Step, decide};
use super::rules::Rule;
use super::seen::Seen;
use crate::error::{Error, Kind, Result};
use crate::model::{RoundId, SnapshotId};

/// Finds what the next round starts from, and makes Fluss know it (commit.md 1). Always before planning.
///
/// # Errors
/// `Data` and `Unsupported` hold the table and name snapshot, path, both values and the ways out; `Stale` when the table is
/// gone, another one, or never stands still; `Unavailable`; `Invalid` when the coordinator answers something else.
pub async fn recover(context: &CommitContext) -> Result<Base> {
    let born_ms = context.lake.born_ms()?;
    let (step, facts) = decided(context).await?;
    let published: BTreeSet<RoundId> = facts.snapshots.values().flatten().filter_map(Seen::round).collect();
    let base = |found: Option<Found>, floor: i64, recovered: Option<SnapshotId>| {
        let found = found.unwrap_or_default();
        let (id, delta_list, offsets) = (found.id, found.delta_list, found.offsets);
        Base { table: context.table.id, offsets, recovered, id, delta_list, floor, born_ms, published }
    };
    match step {
        Step::Record(found) => {
            if context.options.holds(Rule::RecordFound) {
                record(context, &found).await?;
            }
            let id = found.id;
            Ok(base(Some(found), id, Some(SnapshotId(id))))
        }
        Step::Stands { base: found, floor, .. } => Ok(base(found, floor, None)),
        Step::Fault(fault) => Err(context.held(fault)),
        Step::ReadSnapshot(_) | Step::ReadFile(_) | Step::CompareFile(_) => Err(Error::internal("recovery was not decided")),
    }
}

/// What recovery would find.
#[derive(Debug)]
pub enum Judgement {
    /// K stands; `None` = never tiered.
    Stands(Option<SnapshotId>),
    /// This snapshot is in the lake and would be recorded.
    Unrecorded(SnapshotId),
    /// The table is held.
    Held(Error),
}

/// Step 1 without its acts: nothing is recorded or pinned.
///
/// # Errors
/// As [`recover`], but for what holds the table.
pub async fn judge(context: &CommitContext) -> Result<Judgement> {
    let (step, _) = decided(context).await?;
    match step {
        Step::Record(found) => Ok(Judgement::Unrecorded(SnapshotId(found.id))),
        Step::Stands { base, .. } => Ok(Judgement::Stands(base.map(|found| SnapshotId(found.id)))),
        Step::Fault(fault) => Ok(Judgement::Held(context.held(fault))),
        Step::ReadSnapshot(_) | Step::ReadFile(_) | Step::CompareFile(_) => Err(Error::internal("recovery was not decided")),
    }
}

/// Looks until all stands still.
async fn decided(context: &CommitContext) -> Result<(Step, Facts)> {
    let mut pauses = context.backoff();
    loop {
        // K first: what is committed between the two reads is then met by the walk.
        let early = if context.options.holds(Rule::KnownFirst) { None } else { Some(context.newest_seen().await?) };
        let ledger = context.known().await?;
        let (newest, seen) = match early {
            Some(early) => early,
            None => context.newest_seen().await?,
        };
        let mut facts = Facts {
            table: context.table.id,
            log_table: !context.table.has_primary_key(),
            ledger,
            newest,
            snapshots: seen.map(|seen| (newest, Some(seen))).into_iter().collect(),
            files: BTreeMap::new(),
            options: context.options,
        };
        let step = read_until_decided(context, &mut facts).await?;
        if step.needs_second_look() && context.options.holds(Rule::SecondLook) && !is_unchanged(context, &facts, &step).await? {
            match pauses.next_pause() {
                Some(pause) => context.runtime.clock.sleep(pause).await,
                None => {
                    return Err(Error::stale(format!("`{}` never stood still while it was looked at", context.lake.location())));
                }
            }
            continue;
        }
        return Ok((step, facts));
    }
}

async fn read_until_decided(context: &CommitContext, facts: &mut Facts) -> Result<Step> {
    loop {
        match decide(facts) {
            Step::ReadSnapshot(id) => {
                let seen = context.see(id).await?;
                facts.snapshots.insert(id, seen);
            }
            Step::ReadFile(path) => {
                let file = context.ledger.offsets_file(&path).await?;
                facts.files.insert(path, file);
            }
            Step::CompareFile(path) => {
                let file = match context.ledger.offsets_file(&path).await {
                    // Only compared: K's offsets are known without it.
                    Err(error) if error.kind() != Kind::Unavailable => None,
                    file => file?,
                };
                facts.files.insert(path, file);
            }
            step => return Ok(step),
        }
    }
}

/// Reads are not one moment: a fault, or a missing id, stands only if K, the newest id and the table are the same again, and the id
/// is missing still: a rollback and a commit between the looks bring the newest id back, not what stands under it.
async fn is_unchanged(context: &CommitContext, facts: &Facts, step: &Step) -> Result<bool> {
    context.check_same_table().await?;
    if context.known().await? != facts.ledger || context.newest().await? != facts.newest {
        return Ok(false);
    }
    match step {
        Step::Stands { floor, hole: true, .. } if context.options.holds(Rule::HoleAgain) => {
            Ok(context.see(*floor).await?.is_none())
        }
        _ => Ok(true),
    }
}

/// Prepares again, always: somebody else's record of the path that L names would delete the very file.
///
/// A slow record takes K back, behind what a Java job, which pins nothing, has committed and recorded meanwhile: where no pin of ours
/// keeps that from expiring, one is written first. It goes as those of dead rounds do.
async fn record(context: &CommitContext, found: &Found) -> Result<()> {
    let next = found.id + 1;
    let pinned = our_pins(context).await?.iter().any(|pin| pin.next_snapshot <= next);
    if !pinned && context.options.holds(Rule::PinFound) {
        context.lake.write_pin(&pins::name_of(RoundId(context.runtime.rng.uuid())), next).await?;
    }
    let fail = &context.runtime.fail;
    fail.hit("recover.before_prepare").await?;
    let path = if context.options.holds(Rule::PrepareAgain) {
        context.prepare(&found.offsets).await?
    } else {
        let snapshot = context.lake.snapshot(found.id).await?;
        snapshot.and_then(|snapshot| snapshot.properties.get("fluss-offsets").cloned()).unwrap_or_default()
    };
    fail.hit("recover.after_prepare").await?;
    let entry =
        Entry { id: found.id, path: &path, offsets: &found.offsets, max_timestamps: &BTreeMap::new(), earliest_to_keep: KEEP_ALL };
    context.record(&entry).await?;
    fail.hit("recover.after_record").await
}
