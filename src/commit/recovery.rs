//! Step 1, decided: facts → what to read next, or what stands (commit.md 1). No I/O; `recover` acts on it.

use std::collections::BTreeMap;

use super::Options;
use super::fault::Fault;
use super::invariants;
use super::rules::Rule;
use super::seen::{FlussMade, Seen, Told};
use crate::model::{BucketKey, LakeOffsets, OffsetsFile, TableId};

/// Ids that the look for Java-made snapshots goes down at most: it only detects, and must not read a whole history each round.
const JAVA_WALK_MAX: usize = 1000;

/// K as the coordinator told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ledger {
    /// No K.
    Empty,
    /// K and its offsets.
    At(i64, LakeOffsets),
    /// A snapshot of another table was recorded for this one: a Java job does that when it finds one in a lake table that an earlier
    /// table of this name has left (F1.4 step 6). No K of ours.
    Other(i64, TableId),
    /// The coordinator can't read what it has, and could not after a pause either.
    Unknown,
}

impl Ledger {
    /// K, 0 when there is none or it is unknown.
    pub(super) const fn id(&self) -> i64 {
        match self {
            Self::At(id, _) => *id,
            Self::Empty | Self::Other(..) | Self::Unknown => 0,
        }
    }
}

/// What has been read so far. Reads are not one moment: see [`Step::needs_second_look`].
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) table: TableId,
    /// Log tables only can have their rows counted against offsets.
    pub(super) log_table: bool,
    pub(super) ledger: Ledger,
    /// Newest snapshot id, 0 = none.
    pub(super) newest: i64,
    /// Snapshots read; `None` = missing.
    pub(super) snapshots: BTreeMap<i64, Option<Seen>>,
    /// Offsets files read; `None` = gone.
    pub(super) files: BTreeMap<String, Option<OffsetsFile>>,
    /// Which rules hold: all, outside tests.
    pub(super) options: Options,
}

/// What recovery does next.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// Read this snapshot and decide again.
    ReadSnapshot(i64),
    /// Read this offsets file and decide again.
    ReadFile(String),
    /// The same, if it can be read: it is only compared with what Fluss says.
    CompareFile(String),
    /// L was never recorded, or not for good: prepare again from these offsets, record it, plan from it.
    Record(Found),
    /// K stands (`None`: never tiered).
    Stands {
        base: Option<Found>,
        floor: i64,
        /// The walk ended at a missing id.
        hole: bool,
    },
    /// The table is held.
    Fault(Fault),
}

/// L or K: what the next round is based on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) id: i64,
    /// Delta manifest list name, while its snapshot is there.
    pub(super) delta_list: Option<String>,
    pub(super) offsets: LakeOffsets,
}

impl Step {
    /// A fault, or a missing id, snapshot K included, stands only if K and the newest id, read again, are the same.
    pub(super) const fn needs_second_look(&self) -> bool {
        matches!(
            self,
            Self::Fault(_) | Self::Stands { hole: true, .. } | Self::Stands { base: Some(Found { delta_list: None, .. }), .. }
        )
    }
}

/// A read that is not there yet, or a fault, ends a decision early.
type Early<T> = Result<T, Step>;

/// Decides step 1 from what is known; asks for one more read where that does not suffice.
pub(super) fn decide(facts: &Facts) -> Step {
    facts.decide().unwrap_or_else(|early| early)
}

impl Facts {
    fn decide(&self) -> Early<Step> {
        let k = self.ledger.id();
        if self.newest < k && self.holds(Rule::NewestBelowKnown) {
            return Err(Step::Fault(Fault::NewestBelow { newest: self.newest, known: k }));
        }
        let mut hole = None;
        let top = if self.holds(Rule::LakeCounts) { self.newest } else { k };
        for id in (k + 1..=top).rev() {
            match self.snapshot(id)? {
                None => {
                    hole = Some(id);
                    break;
                }
                Some(seen) => {
                    if let Some(made) = &seen.fluss {
                        return self.found(seen, made).map(Step::Record);
                    }
                }
            }
        }
        let base = match &self.ledger {
            Ledger::Unknown => return Err(Step::Fault(Fault::LedgerLost)),
            // What has expired could have been ours.
            Ledger::Other(snapshot, theirs) if hole.is_some() => {
                let (snapshot, theirs) = (*snapshot, *theirs);
                return Err(Step::Fault(Fault::OtherTable { snapshot, theirs, ours: self.table }));
            }
            Ledger::Empty | Ledger::Other(..) => None,
            Ledger::At(id, offsets) => Some(self.known(*id, offsets)?),
        };
        Ok(Step::Stands { base, floor: hole.filter(|_| self.holds(Rule::Floor)).unwrap_or(k), hole: hole.is_some() })
    }

    fn holds(&self, rule: Rule) -> bool {
        self.options.holds(rule)
    }

    fn snapshot(&self, id: i64) -> Early<Option<&Seen>> {
        self.snapshots.get(&id).map(Option::as_ref).ok_or(Step::ReadSnapshot(id))
    }

    fn file(&self, path: &str) -> Early<Option<&OffsetsFile>> {
        self.files.get(path).map(Option::as_ref).ok_or_else(|| Step::ReadFile(path.to_owned()))
    }

    /// L: it counts only if it belongs to this table, and only with its own complete offsets.
    fn found(&self, seen: &Seen, made: &FlussMade) -> Early<Found> {
        self.check_table(seen.id, made.table)?;
        self.check_above(seen)?;
        let offsets = match &made.offsets {
            Told::Here(offsets) => offsets.clone(),
            Told::InFile(path) => match self.file(path)? {
                None => return Err(Step::Fault(Fault::OffsetsGone { snapshot: seen.id, path: path.clone() })),
                Some(file) => {
                    self.check_table(seen.id, Some(file.table))?;
                    file.offsets.clone()
                }
            },
            Told::Inline08 => return Err(Step::Fault(Fault::OldVersion { snapshot: seen.id, version: "0.8" })),
            Told::Nothing07 => return Err(Step::Fault(Fault::OldVersion { snapshot: seen.id, version: "0.7" })),
            Told::Broken(why) => return Err(Step::Fault(Fault::OffsetsBroken { snapshot: seen.id, why: why.clone() })),
        };
        self.check_java_since_own(seen, made, &offsets)?;
        Ok(Found { id: seen.id, delta_list: Some(seen.delta_list.clone()), offsets })
    }

    /// K: that its snapshot has expired is normal; if it is there, it has to be what Fluss says.
    fn known(&self, id: i64, offsets: &LakeOffsets) -> Early<Found> {
        let Some(seen) = self.snapshot(id)? else { return Ok(Found { id, delta_list: None, offsets: offsets.clone() }) };
        if !self.holds(Rule::KnownSnapshot) {
            return Ok(Found { id, delta_list: Some(seen.delta_list.clone()), offsets: offsets.clone() });
        }
        let Some(made) = &seen.fluss else { return Err(Step::Fault(Fault::KnownNotFluss { snapshot: id })) };
        self.check_table(id, made.table)?;
        match &made.offsets {
            Told::Here(here) if here != offsets => {
                return Err(Step::Fault(Fault::KnownOffsetsDiffer { snapshot: id, difference: difference(here, offsets) }));
            }
            Told::Broken(why) => return Err(Step::Fault(Fault::OffsetsBroken { snapshot: id, why: why.clone() })),
            // Another Java-made snapshot may have been put over the one that was recorded.
            Told::InFile(path) if self.holds(Rule::KnownOfJava) => {
                let file = self.files.get(path).ok_or_else(|| Step::CompareFile(path.clone()))?;
                if let Some(file) = file.as_ref().filter(|file| file.offsets != *offsets) {
                    let difference = difference(&file.offsets, offsets);
                    return Err(Step::Fault(Fault::KnownOffsetsDiffer { snapshot: id, difference }));
                }
            }
            Told::Here(_) | Told::InFile(_) | Told::Inline08 | Told::Nothing07 => {}
        }
        self.check_above(seen)?;
        self.check_java_since_own(seen, made, offsets)?;
        Ok(Found { id, delta_list: Some(seen.delta_list.clone()), offsets: offsets.clone() })
    }

    fn check_table(&self, snapshot: i64, told: Option<TableId>) -> Early<()> {
        match told {
            Some(table) if table != self.table && self.holds(Rule::TableOfFound) => {
                Err(Step::Fault(Fault::OtherTable { snapshot, theirs: table, ours: self.table }))
            }
            _ => Ok(()),
        }
    }

    /// The snapshot right above L or K, if it is there, must stand on it.
    fn check_above(&self, below: &Seen) -> Early<()> {
        if below.id >= self.newest {
            return Ok(());
        }
        match self.snapshot(below.id + 1)? {
            Some(above) if !above.stands_on(below) && self.holds(Rule::Standing) => {
                Err(Step::Fault(Fault::not_standing(above, below)))
            }
            _ => Ok(()),
        }
    }

    /// A zombie Java worker doubles rows: then Java-made snapshots since our newest own one hold more rows than offsets advanced,
    /// or their offsets went back.
    fn check_java_since_own(&self, newest: &Seen, made: &FlussMade, newest_offsets: &LakeOffsets) -> Early<()> {
        if made.round.is_some() || !self.log_table {
            return Ok(());
        }
        let mut java = vec![newest];
        let mut own = None;
        for id in (1..newest.id).rev().take(JAVA_WALK_MAX) {
            let Some(seen) = self.snapshot(id)? else { break };
            let Some(made) = &seen.fluss else { continue };
            if made.table.is_some_and(|table| table != self.table) {
                break;
            }
            if made.round.is_some() {
                own = Some((seen, made));
                break;
            }
            java.push(seen);
        }
        // Without one of ours there is nothing to count from.
        let Some((own, FlussMade { offsets: Told::Here(own_offsets), .. })) = own else { return Ok(()) };
        let rows = java.iter().filter_map(|seen| seen.delta).fold(0_i64, i64::saturating_add);
        let advance = advance(own_offsets, newest_offsets);
        if invariants::rows_fit(rows, advance).is_err() && self.holds(Rule::JavaDoubled) {
            return Err(Step::Fault(Fault::Doubled { own: own.id, newest: newest.id, rows, advance }));
        }
        let mut before = (own.id, own_offsets);
        for seen in java.into_iter().rev() {
            let after = if seen.id == newest.id {
                newest_offsets
            } else {
                match seen.fluss.as_ref().map(|made| &made.offsets) {
                    Some(Told::InFile(path)) => match self.file(path)? {
                        Some(file) => &file.offsets,
                        None => continue,
                    },
                    _ => continue,
                }
            };
            if let Some(what) = went_back(before.1, after).filter(|_| self.holds(Rule::JavaWentBack)) {
                return Err(Step::Fault(Fault::WentBack { before: before.0, after: seen.id, what }));
            }
            before = (seen.id, after);
        }
        Ok(())
    }
}

/// Sum over all buckets of how far `to` is beyond `from`; a bucket that `from` lacks counts from 0.
pub(super) fn advance(from: &LakeOffsets, to: &LakeOffsets) -> i64 {
    to.0.iter().map(|(bucket, end)| end.saturating_sub(from.get(*bucket).unwrap_or(0)).max(0)).fold(0_i64, i64::saturating_add)
}

/// The first bucket whose offset in `after` is below the one in `before`.
pub(super) fn went_back(before: &LakeOffsets, after: &LakeOffsets) -> Option<String> {
    let back = |(bucket, offset): &(&BucketKey, &i64)| {
        invariants::bucket_goes_on(Some(**offset), Some(after.get(**bucket).unwrap_or(0))).is_err()
    };
    before.0.iter().find(back).map(|(bucket, offset)| {
        format!("{} from `{offset}` to `{}`", super::fault::bucket_name(*bucket), after.get(*bucket).unwrap_or(-1))
    })
}

/// The first bucket that two maps disagree about.
fn difference(lake: &LakeOffsets, fluss: &LakeOffsets) -> String {
    let text = |offset: Option<i64>| offset.map_or_else(|| "nothing".to_owned(), |offset| offset.to_string());
    lake.0
        .keys()
        .chain(fluss.0.keys())
        .find(|bucket| lake.get(**bucket) != fluss.get(**bucket))
        .map(|bucket| {
            format!(
                "{}: `{}` in the lake, `{}` in Fluss",
                super::fault::bucket_name(*bucket),
                text(lake.get(*bucket)),
                text(fluss.get(*bucket))
            )
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
