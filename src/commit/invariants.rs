//! What docs/commit.md promises, as predicates over plain facts: the same for the explicit-state model (`tests/it/model`), the
//! simulation (`tests/it/sim`), whoever audits a lake, and the debug assertions of this stage.
//!
//! A predicate knows neither Paimon nor Fluss: its caller counts rows, offsets, files or pins in the form that it has them in, and hands
//! over one row, bucket, file or table at a time, so that nothing is copied or allocated. No I/O.
//!
//! * **Rows**: the offsets of the newest Fluss-made snapshot say exactly which rows are in the lake: [`row`] of log tables, [`key`] of
//!   primary-key tables; with what can be told without reading rows: [`bucket_goes_on`], [`rows_fit`], [`stands_on`], [`one_total`].
//! * **Files**: nothing that a snapshot names, or may still come to name, is deleted: [`named_file`], [`may_delete`].
//! * **Progress**: from every reachable state, without further faults, all rows get to the lake and Fluss learns of it, unless a listed
//!   reason holds the table: [`End::check`], [`Hold`].
//! * **Pins** do not pile up, and the newest snapshot of ours never expires: [`no_pin_left`], [`newest_is_pinned`].

use std::fmt;

/// A promise that does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Broken {
    /// A row is in the lake more than once.
    Twice,
    /// Offsets count a row as tiered that is not in the lake.
    Skipped,
    /// A row is in the lake that offsets do not count: it will be tiered again.
    Uncovered,
    /// A key shows another version than the last one that was committed.
    OldVersion,
    /// Live files of one partition have different bucket totals.
    MixedTotals,
    /// Offsets of a bucket are lower than, or missing after, those that they follow.
    WentBack,
    /// More rows than offsets.
    MoreRows,
    /// A snapshot was not built on the one right below it.
    NotStanding,
    /// Fluss and the snapshot disagree about its offsets.
    OffsetsDiffer,
    /// A file that a snapshot names was deleted.
    NamedGone,
    /// A table is held without any of the troubles that explain it.
    Unexplained(Hold),
    /// Services work on and get nowhere.
    Circle,
    /// Nothing is left to do, and rows are not in the lake.
    RowsLeft,
    /// Nothing is left to do, and Fluss does not know what is in the lake.
    FlussBehind,
    /// A pin stays that nobody needs: the lake will not expire beyond it.
    PinLeft,
    /// The newest snapshot of ours may expire.
    NewestUnpinned,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Twice => "a row is in the lake twice",
            Self::Skipped => "offsets count a row that is not in the lake",
            Self::Uncovered => "a row is in the lake that offsets do not count",
            Self::OldVersion => "a key shows an older version than the last one committed",
            Self::MixedTotals => "live files of one partition have different bucket totals",
            Self::WentBack => "the offset of a bucket went back",
            Self::MoreRows => "more rows than offsets",
            Self::NotStanding => "a snapshot was not built on the one below it",
            Self::OffsetsDiffer => "Fluss knows other offsets for a snapshot than it carries",
            Self::NamedGone => "a file that a snapshot names was deleted",
            Self::Unexplained(hold) => return write!(f, "held without a cause: {hold}"),
            Self::Circle => "the services go round in circles",
            Self::RowsLeft => "the services have ended and rows are not in the lake",
            Self::FlussBehind => "the services have ended and Fluss does not know what is in the lake",
            Self::PinLeft => "a pin is left behind",
            Self::NewestUnpinned => "the newest snapshot of ours may expire",
        })
    }
}

/// `Err` names the promise that is broken.
pub type Verdict = Result<(), Broken>;

const fn holds(promise: bool, broken: Broken) -> Verdict {
    if promise { Ok(()) } else { Err(broken) }
}

/// A row of the source, as one snapshot has it.
///
/// `covered`: its offset lies below its bucket's end in the offsets of that snapshot, or of the newest Fluss-made one below it.
/// `copies`: how often it is in the files of the snapshot. Log tables only.
///
/// # Errors
/// `Twice`, `Skipped`, `Uncovered`.
pub const fn row(covered: bool, copies: u32) -> Verdict {
    match (covered, copies) {
        (true, 1) | (false, 0) => Ok(()),
        (true, 0) => Err(Broken::Skipped),
        (false, 1) => Err(Broken::Uncovered),
        (_, _) => Err(Broken::Twice),
    }
}

/// A key of a primary-key table: the version that was `committed` last against the one that a merge read has `shown`.
///
/// # Errors
/// `OldVersion`.
pub fn key<V: PartialEq>(committed: Option<&V>, shown: Option<&V>) -> Verdict {
    holds(committed == shown, Broken::OldVersion)
}

/// A bucket's end in the offsets that a snapshot follows, and in its own; `None` = not in the map. Maps are complete: a bucket never
/// leaves them, and an operator's word (`reset-offsets`) alone may take one back.
///
/// # Errors
/// `WentBack`.
pub const fn bucket_goes_on(before: Option<i64>, after: Option<i64>) -> Verdict {
    match (before, after) {
        (None, _) => Ok(()),
        (Some(_), None) => Err(Broken::WentBack),
        (Some(before), Some(after)) => holds(before <= after, Broken::WentBack),
    }
}

/// Rows that a snapshot adds to a log table, against the sum of how far it takes the offsets of its buckets. Fewer is legal: offsets
/// of empty batches hold no row, and what has left the log is counted over.
///
/// # Errors
/// `MoreRows`.
pub const fn rows_fit(rows: i64, advance: i64) -> Verdict {
    holds(rows <= advance, Broken::MoreRows)
}

/// A snapshot's `totalRecordCount` and `deltaRecordCount`, against the total of the one right below it. Totals that are not told prove nothing.
///
/// # Errors
/// `NotStanding`.
pub const fn stands_on(total: Option<i64>, delta: Option<i64>, below: Option<i64>) -> Verdict {
    match (total, delta, below) {
        (Some(total), Some(delta), Some(below)) => match total.checked_sub(delta) {
            Some(before) => holds(before == below, Broken::NotStanding),
            None => Err(Broken::NotStanding),
        },
        _ => Ok(()),
    }
}

/// Bucket totals of the live files of one partition.
///
/// # Errors
/// `MixedTotals`.
pub fn one_total<T: PartialEq>(totals: impl IntoIterator<Item = T>) -> Verdict {
    let mut totals = totals.into_iter();
    let Some(first) = totals.next() else { return Ok(()) };
    holds(totals.all(|total| total == first), Broken::MixedTotals)
}

/// Offsets that Fluss knows for a snapshot, against those that the snapshot carries.
///
/// # Errors
/// `OffsetsDiffer`.
pub fn same_offsets<O: PartialEq + ?Sized>(known: &O, carried: &O) -> Verdict {
    holds(known == carried, Broken::OffsetsDiffer)
}

/// A file of a round.
///
/// # Errors
/// `NamedGone`.
pub const fn named_file(named: bool, deleted: bool) -> Verdict {
    holds(!(named && deleted), Broken::NamedGone)
}

/// Whether a round that has ended may delete its files: no snapshot names them, and no publish try is left that could still make one.
#[must_use]
pub const fn may_delete(published: bool, tries_open: usize) -> bool {
    !published && tries_open == 0
}

/// Why a table is held: recovery, an attempt or the look after the record say so as `Data`. Nothing else may hold one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hold {
    /// L or K belongs to another table id.
    OtherTable,
    /// The newest snapshot lies below one that was committed.
    RolledBack,
    /// K, the base, N, or one that another was built on, is not what it was.
    Overwritten,
    /// K can't be read, or Java's L has lost its offsets file.
    OffsetsLost,
    /// Java-made snapshots hold more rows than offsets, or offsets went back.
    JavaDoubled,
    /// The lake has files of another bucket total in a partition than Fluss says.
    MixedTotals,
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherTable => "another table's snapshot",
            Self::RolledBack => "the lake was rolled back",
            Self::Overwritten => "a snapshot was overwritten",
            Self::OffsetsLost => "offsets are lost",
            Self::JavaDoubled => "a Java job doubled rows",
            Self::MixedTotals => "another bucket total",
        })
    }
}

/// What users, operators and other programs did to a table, as far as it may end in a [`Hold`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Troubles {
    /// Dropped and made again in Fluss while the lake table stayed.
    pub recreated: bool,
    /// The lake table was rolled back, or snapshots of it were put away.
    pub rolled_back: bool,
    /// A committer without atomic create has overwritten a snapshot.
    pub overwritten: bool,
    /// A Java tiering job worked on the table without its lease, or on a table that no pin protects.
    pub java: bool,
    /// The coordinator has lost an offsets file.
    pub file_lost: bool,
    /// Somebody has rewritten a partition of the lake table with another bucket total.
    pub rescaled: bool,
}

impl Hold {
    /// Whether one of `troubles` explains it.
    #[must_use]
    pub const fn is_explained(self, troubles: Troubles) -> bool {
        let history = troubles.rolled_back || troubles.overwritten || troubles.java;
        match self {
            Self::OtherTable => troubles.recreated,
            Self::RolledBack | Self::Overwritten => history,
            Self::OffsetsLost => troubles.file_lost || history,
            Self::JavaDoubled => troubles.java || troubles.overwritten,
            Self::MixedTotals => troubles.rescaled,
        }
    }
}

/// How a table stands when every service has nothing left to do and nothing fails any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Why it is held, if it is.
    pub held: Option<Hold>,
    /// What was done to it.
    pub troubles: Troubles,
    /// Rows of the source that are not in the newest snapshot.
    pub rows_left: bool,
    /// K; 0 = none, or it can't be read.
    pub known: i64,
    /// The newest Fluss-made snapshot of the table, 0 = none.
    pub newest: i64,
    /// Whether the offsets of K are the ends of the logs.
    pub known_to_ends: bool,
}

impl End {
    /// # Errors
    /// `Unexplained`, `RowsLeft`, `FlussBehind`.
    pub const fn check(self) -> Verdict {
        if let Some(hold) = self.held {
            return holds(hold.is_explained(self.troubles), Broken::Unexplained(hold));
        }
        if self.rows_left {
            return Err(Broken::RowsLeft);
        }
        holds(self.known >= self.newest && self.known_to_ends, Broken::FlussBehind)
    }
}

/// A pin of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinFact {
    /// Its `nextSnapshot`.
    pub next_snapshot: i64,
    /// Its round has published, or is too old to live.
    pub over: bool,
}

/// Pins as they are right after a round with this floor has ended well.
///
/// # Errors
/// `PinLeft`.
pub fn no_pin_left(pins: impl IntoIterator<Item = PinFact>, floor: i64) -> Verdict {
    holds(!pins.into_iter().any(|pin| pin.over && pin.next_snapshot <= floor), Broken::PinLeft)
}

/// The `nextSnapshot` of each pin, against the newest Fluss-made snapshot, if it is ours, at any moment without an operator's interference.
///
/// # Errors
/// `NewestUnpinned`.
pub fn newest_is_pinned(newest_own: i64, pins: impl IntoIterator<Item = i64>) -> Verdict {
    holds(pins.into_iter().any(|next| next <= newest_own), Broken::NewestUnpinned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_there_once_if_it_is_covered_and_else_not_at_all() {
        assert_eq!(row(true, 1), Ok(()));
        assert_eq!(row(false, 0), Ok(()));
        assert_eq!(row(true, 0), Err(Broken::Skipped));
        assert_eq!(row(false, 1), Err(Broken::Uncovered));
        assert_eq!(row(true, 2), Err(Broken::Twice));
        assert_eq!(row(false, 2), Err(Broken::Twice));
    }

    #[test]
    fn complete_maps_lose_no_bucket_and_take_none_back() {
        assert_eq!(bucket_goes_on(None, None), Ok(()));
        assert_eq!(bucket_goes_on(None, Some(0)), Ok(()));
        assert_eq!(bucket_goes_on(Some(5), Some(5)), Ok(()));
        assert_eq!(bucket_goes_on(Some(5), Some(4)), Err(Broken::WentBack));
        assert_eq!(bucket_goes_on(Some(0), None), Err(Broken::WentBack));
    }

    #[test]
    fn totals_tell_what_a_snapshot_was_built_on_unless_they_are_not_told() {
        assert_eq!(stands_on(Some(7), Some(3), Some(4)), Ok(()));
        assert_eq!(stands_on(Some(7), Some(3), Some(5)), Err(Broken::NotStanding));
        assert_eq!(stands_on(Some(i64::MIN), Some(1), Some(0)), Err(Broken::NotStanding));
        assert_eq!(stands_on(None, Some(3), Some(5)), Ok(()));
        assert_eq!(one_total([2, 2]), Ok(()));
        assert_eq!(one_total([2, 4]), Err(Broken::MixedTotals));
        assert_eq!(one_total::<i32>([]), Ok(()));
    }

    #[test]
    fn files_go_only_when_nothing_names_them_and_nothing_can() {
        assert!(may_delete(false, 0));
        assert!(!may_delete(false, 1) && !may_delete(true, 0));
        assert_eq!(named_file(true, true), Err(Broken::NamedGone));
    }

    #[test]
    fn a_table_ends_whole_and_known_or_held_for_a_cause() {
        let end = End { held: None, troubles: Troubles::default(), rows_left: false, known: 3, newest: 3, known_to_ends: true };
        assert_eq!(end.check(), Ok(()));
        assert_eq!(End { rows_left: true, ..end }.check(), Err(Broken::RowsLeft));
        assert_eq!(End { known: 2, ..end }.check(), Err(Broken::FlussBehind));
        assert_eq!(End { known_to_ends: false, ..end }.check(), Err(Broken::FlussBehind));
        let held = End { held: Some(Hold::RolledBack), rows_left: true, ..end };
        assert_eq!(held.check(), Err(Broken::Unexplained(Hold::RolledBack)));
        assert_eq!(End { troubles: Troubles { rolled_back: true, ..Troubles::default() }, ..held }.check(), Ok(()));
    }

    #[test]
    fn pins_of_rounds_that_are_over_do_not_stay_below_the_floor() {
        let pin = |next_snapshot, over| PinFact { next_snapshot, over };
        assert_eq!(no_pin_left([pin(4, true), pin(2, false)], 3), Ok(()));
        assert_eq!(no_pin_left([pin(3, true)], 3), Err(Broken::PinLeft));
        assert_eq!(newest_is_pinned(5, [7, 5]), Ok(()));
        assert_eq!(newest_is_pinned(5, [6]), Err(Broken::NewestUnpinned));
    }
}
