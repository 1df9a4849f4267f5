//! The commit protocol (docs/commit.md): how a round becomes visible exactly once, in two systems that don't know each other.
//!
//! Fluss fences nothing, so the lake is the fence: a round publishes by create-if-absent, only if nobody from Fluss has
//! committed since its base; its identity is its round id; the snapshot itself carries the complete offsets; and what Fluss
//! knows can be made again from it. In the order of a round:
//!
//! * **1 recover** ([`recover`], decided in `recovery`): K and the lake → a [`Base`]. What Fluss does not know is recorded
//!   first. Plan from the base, write.
//! * **3 pin**: a consumer file keeps everything above the floor from expiring.
//! * **4 check**, then prepare an offsets file with the complete map.
//! * **5 attempt** ([`commit`], decided in `attempt`): look at all that stands above the floor, build, create
//!   `snapshot-(newest+1)`. A create whose outcome is unknown is settled by the next look: a snapshot with our round id is ours,
//!   another one settles that ours will never be there, a missing one below the newest leaves it open.
//! * **6 record** in Fluss, then look at the snapshot once more.
//! * **7 unpin** what earlier rounds left (`pins`); our own pin stays as the standing one.
//!
//! Decisions are pure functions from facts to verdicts, told apart from the code that acts on them. What all of it promises stands in
//! [`invariants`], and is asserted where it is cheap. Owns no data files: it
//! tells the round whether they may be deleted ([`DataFiles`]). Imports no other stage. Callers: `round`; `audit` and `cli` for an
//! operator's word ([`say`]), maintenance ([`Replacement`]) and pins that are taken off.

mod attempt;
mod context;
mod fault;
pub mod invariants;
mod pins;
mod probe;
mod publish;
mod recover;
mod recovery;
mod release;
mod replace;
mod rules;
mod seen;
mod told;
#[cfg(test)]
mod testing;
mod word;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::model::{BucketKey, LakeOffsets, RoundId, SnapshotId, TableId, TieringEpoch};
use crate::paimon::{BinaryRow, EntryKind, ManifestEntry};

pub use context::CommitContext;
pub use probe::{prove, prove_once};
pub use publish::{commit, keep_standing_pin};
pub use recover::{Judgement, judge, recover};
pub use release::{OurPin, PinUse, Pins, check_release, look_at_pins, take_off};
pub use replace::{MAINTENANCE_USER, Replacement};
#[doc(hidden)]
pub use rules::Rule;
pub use seen::{COMMIT_IDENTIFIER, COMMIT_USER};
pub use told::Statement;
pub use word::{ground, say};

/// Bounds of the commit stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Tries of one call to the coordinator, and passes of recovery, before they give up. More rides out longer outages inside
    /// a round; the round that gives up is repeated anyway.
    pub tries_max: usize,
    /// First pause between such tries; doubles, jittered.
    pub pause_first: Duration,
    /// Longest such pause.
    pub pause_max: Duration,
    /// Pause before the coordinator's "can't read it" is believed: a starting one says it too.
    pub unknown_pause: Duration,
    /// A round older than this publishes no more: its files could be swept as orphans.
    pub round_age_max: Duration,
    /// Switched off by a test.
    #[doc(hidden)]
    pub off: Option<Rule>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tries_max: 8,
            pause_first: Duration::from_millis(50),
            pause_max: Duration::from_secs(5),
            unknown_pause: Duration::from_secs(3),
            round_age_max: Duration::from_secs(12 * 60 * 60),
            off: None,
        }
    }
}

/// What a round starts from: the Fluss-made snapshot that its start offsets belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// The table; a round of another id is dropped.
    pub table: TableId,
    /// Exclusive end offsets in the lake.
    pub offsets: LakeOffsets,
    /// Snapshot that recovery found in the lake and recorded in Fluss.
    pub recovered: Option<SnapshotId>,
    /// 0 = never tiered.
    id: i64,
    /// Identity while its snapshot is there: ids are used again after a rollback.
    delta_list: Option<String>,
    /// The round looks only at ids above it.
    floor: i64,
    /// Creation time of schema 0: another one = the lake table was made again.
    born_ms: i64,
    /// Rounds whose snapshots were read: their pins may go.
    published: BTreeSet<RoundId>,
}

impl Base {
    /// The snapshot, if the table was ever tiered.
    #[must_use]
    pub fn snapshot(&self) -> Option<SnapshotId> {
        (self.id > 0).then_some(SnapshotId(self.id))
    }
}

/// What a round has written and read.
#[derive(Debug, Clone)]
pub struct RoundWork {
    /// The round; its uuid is in the names of its files.
    pub round: RoundId,
    /// When it began, epoch milliseconds.
    pub started_ms: i64,
    /// Tiering epoch of the assignment; a round without lease has none.
    pub tiering_epoch: Option<TieringEpoch>,
    /// Data files, all added; empty when only empty batches were read.
    pub entries: Vec<ManifestEntry>,
    /// Changelog files, all added (P9.3).
    pub changelog: Vec<ManifestEntry>,
    /// Exclusive end offsets of the buckets that were read.
    pub end_offsets: LakeOffsets,
    /// Newest commit timestamp per bucket that got rows, epoch milliseconds.
    pub max_timestamps: BTreeMap<BucketKey, i64>,
}

impl RoundWork {
    /// Whether there is anything to commit beyond `base`: a bucket that advanced, be it over empty batches only (F1.4).
    #[must_use]
    pub fn advances(&self, base: &Base) -> bool {
        self.end_offsets.0.iter().any(|(bucket, end)| base.offsets.get(*bucket).unwrap_or(0) < *end)
    }

    /// Bucket total of each touched partition, as its files are stamped.
    fn totals(&self) -> Result<BTreeMap<BinaryRow, i32>> {
        let mut totals = BTreeMap::new();
        for entry in self.files() {
            let total = *totals.entry(entry.partition.clone()).or_insert(entry.total_buckets);
            if total != entry.total_buckets {
                return Err(Error::internal(format!(
                    "round `{}` stamps files of one partition with totals `{total}` and `{}`",
                    self.round, entry.total_buckets
                )));
            }
        }
        Ok(totals)
    }

    fn files(&self) -> impl Iterator<Item = &ManifestEntry> {
        self.entries.iter().chain(&self.changelog)
    }

    /// Smallest sequence number that the round has given in each bucket that it adds files to.
    fn first_sequences(&self) -> BTreeMap<(BinaryRow, i32), i64> {
        let mut first = BTreeMap::new();
        for entry in &self.entries {
            let number = entry.file.min_sequence_number;
            first
                .entry((entry.partition.clone(), entry.bucket))
                .and_modify(|min: &mut i64| *min = number.min(*min))
                .or_insert(number);
        }
        first
    }

    fn rows(&self) -> i64 {
        self.entries.iter().map(|entry| entry.file.row_count).fold(0, i64::saturating_add)
    }

    /// A round that breaks its own word must not reach the lake.
    fn check(&self, base: &Base) -> Result<()> {
        if self.files().any(|entry| entry.kind != EntryKind::Add) {
            return Err(Error::internal(format!("round `{}` removes files", self.round)));
        }
        for (bucket, end) in &self.end_offsets.0 {
            if let Some(start) = base.offsets.get(*bucket).filter(|start| start > end) {
                let bucket = fault::bucket_name(*bucket);
                return Err(Error::internal(format!("round `{}` ends {bucket} at `{end}`, below its start `{start}`", self.round)));
            }
        }
        if self.files().next().is_some() && !self.advances(base) {
            return Err(Error::internal(format!("round `{}` has files although no offset advanced", self.round)));
        }
        Ok(())
    }
}

/// What may be done with the round's data files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum DataFiles {
    /// No snapshot names them and none can: delete them.
    Unnamed,
    /// A snapshot names them, or may still come to: leave them, the orphan sweep knows later.
    MayBeNamed,
}

/// How a commit ended.
#[derive(Debug)]
#[must_use]
pub enum CommitOutcome {
    /// Published and recorded.
    Committed {
        /// The snapshot.
        snapshot: SnapshotId,
        /// Publish tries.
        attempts: u32,
        /// What failed beside and heals by itself: hint file, pins of others.
        warnings: Vec<Error>,
    },
    /// No offset advanced: nothing was made.
    Nothing,
    /// Ended early: `Stale` plans afresh, `Data` holds the table, `Unavailable` is repeated from recovery on.
    Failed {
        /// Why.
        error: Error,
        /// The fate of the round's files.
        files: DataFiles,
        /// The round is in the lake all the same: the next recovery records it.
        published: Option<SnapshotId>,
    },
}

#[cfg(test)]
mod tests {
    use super::testing::{TABLE, offsets, round};
    use super::*;

    fn base(ends: &[i64]) -> Base {
        Base {
            table: TABLE,
            offsets: offsets(ends),
            recovered: None,
            id: 1,
            delta_list: None,
            floor: 1,
            born_ms: 0,
            published: BTreeSet::new(),
        }
    }

    fn work(ends: &[i64]) -> RoundWork {
        RoundWork {
            round: round(9),
            started_ms: 0,
            tiering_epoch: None,
            entries: vec![],
            changelog: vec![],
            end_offsets: offsets(ends),
            max_timestamps: BTreeMap::new(),
        }
    }

    #[test]
    fn a_round_advances_when_one_bucket_does_be_it_over_empty_batches() {
        assert!(work(&[5, 7]).advances(&base(&[5, 6])));
        assert!(work(&[1]).advances(&base(&[])));
        assert!(!work(&[5, 6]).advances(&base(&[5, 6])));
        assert!(!work(&[]).advances(&base(&[5, 6])));
        assert!(!work(&[0]).advances(&base(&[])));
    }

    #[test]
    fn a_round_that_goes_back_is_a_bug_of_ours() {
        assert!(work(&[5]).check(&base(&[5])).is_ok());
        let error = work(&[4]).check(&base(&[5])).unwrap_err();
        assert_eq!(error.kind(), crate::error::Kind::Internal);
        assert!(error.to_string().contains("bucket `0` at `4`, below its start `5`"));
    }
}
