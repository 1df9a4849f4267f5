//! Steps 4, 5a, 5b and 5d, decided: may the next snapshot be built, and what became of the last try (commit.md 5). No I/O.

use std::collections::{BTreeMap, BTreeSet};

use super::fault::Fault;
use super::rules::Rule;
use super::seen::Seen;
use super::{Base, Options};
use crate::lake::LivePartition;
use crate::model::RoundId;
use crate::paimon::BinaryRow;

/// What has been read so far, in this attempt alone: every attempt reads all of it again.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    pub(super) base: &'a Base,
    pub(super) round: RoundId,
    /// Newest snapshot id, 0 = none.
    pub(super) newest: i64,
    /// Snapshots read; `None` = missing.
    pub(super) snapshots: BTreeMap<i64, Option<Seen>>,
    /// Which rules hold: all, outside tests.
    pub(super) options: Options,
}

/// What an attempt does next.
#[derive(Debug, PartialEq)]
pub(super) enum Look {
    /// Read this snapshot and decide again.
    Read(i64),
    /// Nobody from Fluss has committed since the base: build on the newest.
    Free,
    /// A PUT of ours whose outcome was unknown made this snapshot. The round id tells; user and identifier are everybody's (P8.1).
    Published(i64),
    /// The base is out of date: plan afresh.
    Stale(String),
    /// The table is held.
    Fault(Fault),
}

/// Decides 5a, which is 5d of the attempt before: whatever is above the floor now is looked at, ours included.
pub(super) fn look(facts: &Facts<'_>) -> Look {
    facts.look().unwrap_or_else(|early| early)
}

impl Facts<'_> {
    fn look(&self) -> Result<Look, Look> {
        let base = self.base;
        // Ours first: once published, nothing that others did above can undo it.
        for id in base.floor + 1..=self.newest {
            if let Some(seen) = self.snapshot(id)?
                && seen.round() == Some(self.round)
            {
                return Ok(Look::Published(id));
            }
        }
        if self.newest < base.id && self.holds(Rule::NewestBelowBase) {
            return Ok(Look::Fault(Fault::NewestBelow { newest: self.newest, known: base.id }));
        }
        if base.id > 0 {
            self.check_base()?;
        }
        for id in base.floor + 1..=self.newest {
            match self.snapshot(id)? {
                None if !self.holds(Rule::MissingAbove) => {}
                None => return Ok(Look::Stale(format!("snapshot `{id}` has expired since this round looked"))),
                Some(seen) if seen.fluss.is_some() && self.holds(Rule::FlussMadeAbove) => {
                    return Ok(Look::Stale(format!(
                        "somebody else has tiered since this round's base `{}`: snapshot `{id}`",
                        base.id
                    )));
                }
                Some(_) => {}
            }
        }
        // A newest at the floor may be a missing one, which nothing can be built on.
        if self.newest > 0 && self.snapshot(self.newest)?.is_none() {
            return Ok(Look::Stale(format!("the newest snapshot `{}` is gone", self.newest)));
        }
        Ok(Look::Free)
    }

    fn holds(&self, rule: Rule) -> bool {
        self.options.holds(rule)
    }

    fn check_base(&self) -> Result<(), Look> {
        let base = self.base;
        let now = self.snapshot(base.id)?;
        match (&base.delta_list, now) {
            (None, None) => return Ok(()),
            (Some(was), None) if !self.holds(Rule::BaseGone) => {
                return Err(Look::Fault(Fault::BaseReplaced { base: base.id, was: was.clone(), is: "gone".to_owned() }));
            }
            (Some(_), None) => {
                return Err(Look::Stale(format!("the base snapshot `{}` has expired since this round looked", base.id)));
            }
            (Some(was), Some(now)) if *was == now.delta_list => {}
            (_, Some(_)) if !self.holds(Rule::BaseIdentity) => {}
            (was, Some(now)) => {
                return Err(Look::Fault(Fault::BaseReplaced {
                    base: base.id,
                    was: was.clone().unwrap_or_else(|| "expired".to_owned()),
                    is: now.delta_list.clone(),
                }));
            }
        }
        if let Some(now) = now
            && base.id < self.newest
            && let Some(above) = self.snapshot(base.id + 1)?
            && !above.stands_on(now)
            && self.holds(Rule::Standing)
        {
            return Err(Look::Fault(Fault::not_standing(above, now)));
        }
        Ok(())
    }

    fn snapshot(&self, id: i64) -> Result<Option<&Seen>, Look> {
        self.snapshots.get(&id).map(Option::as_ref).ok_or(Look::Read(id))
    }
}

/// Publish tries whose outcome is not known: while there is one, a snapshot may still name this round's files.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Unknown {
    ids: BTreeSet<i64>,
    /// One of them got no answer.
    unanswered: bool,
}

impl Unknown {
    /// A try under this id is about to be made.
    pub(super) fn add(&mut self, id: i64) {
        self.ids.insert(id);
    }

    /// The try got no answer. It may land as long as the network keeps it, and under an id that a rollback has freed again: no look
    /// settles it for the round's files.
    pub(super) fn unanswered(&mut self) {
        self.unanswered = true;
    }

    /// Whether a try under this id has no clear outcome yet.
    pub(super) fn has(&self, id: i64) -> bool {
        self.ids.contains(&id)
    }

    /// Settles what `facts` settles: a snapshot that is there and not ours can't become ours.
    pub(super) fn settle(&mut self, facts: &Facts<'_>) {
        self.ids.retain(|id| !matches!(facts.snapshots.get(id), Some(Some(seen)) if seen.round() != Some(facts.round)));
    }

    /// Whether a try may still land above `id`: the lake was rolled back below it, and whatever is built there could be followed by it.
    pub(super) fn reaches_beyond(&self, id: i64) -> bool {
        self.ids.last().is_some_and(|last| *last > id)
    }

    /// Whether a try got no answer: its lists and files stay, whoever won.
    pub(super) fn is_unanswered(&self) -> bool {
        self.unanswered
    }

    /// Tries that are not settled: while there are any, a snapshot may still come to name the round's files.
    pub(super) fn open(&self) -> usize {
        self.ids.len().max(usize::from(self.unanswered))
    }
}

/// Partitions whose live files have other totals than ours (P8.5, P6.4): partition, totals in the lake, ours.
pub(super) fn mixed_totals(
    live: &BTreeMap<BinaryRow, LivePartition>,
    ours: &BTreeMap<BinaryRow, i32>,
) -> Option<(BinaryRow, BTreeSet<i32>, i32)> {
    ours.iter().find_map(|(partition, total)| {
        let live = &live.get(partition)?.totals;
        live.iter().any(|live| live != total).then(|| (partition.clone(), live.clone(), *total))
    })
}

/// A bucket that has a sequence number now which is not below our first (P7.5): partition, bucket, the lake's greatest, our first.
pub(super) fn used_sequence(
    live: &BTreeMap<BinaryRow, LivePartition>,
    ours: &BTreeMap<(BinaryRow, i32), i64>,
) -> Option<(BinaryRow, i32, i64, i64)> {
    ours.iter().find_map(|((partition, bucket), first)| {
        let greatest = live.get(partition)?.max_sequence.get(bucket)?;
        (greatest >= first).then(|| (partition.clone(), *bucket, *greatest, *first))
    })
}

#[cfg(test)]
mod tests;
