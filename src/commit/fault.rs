//! What holds a table, with the facts that an operator needs and the ways out.

use super::seen::Seen;
use crate::error::{Error, Kind};
use crate::model::{BucketKey, RoundId, TableId};

/// Lake and Fluss contradict each other, or one of them itself. Nothing here heals by waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// L or K belongs to another table: dropped and made again in Fluss, while the lake table stayed.
    OtherTable { snapshot: i64, theirs: TableId, ours: TableId },
    /// The newest snapshot lies below one that Fluss or we know of.
    NewestBelow { newest: i64, known: i64 },
    /// Snapshot K is there and somebody else's.
    KnownNotFluss { snapshot: i64 },
    /// Snapshot K is there with other offsets than Fluss has for it.
    KnownOffsetsDiffer { snapshot: i64, difference: String },
    /// A snapshot was built on another one than the one that is below it now.
    NotStanding { above: i64, total: i64, delta: i64, below: i64, below_total: i64 },
    /// Our base is another snapshot now.
    BaseReplaced { base: i64, was: String, is: String },
    /// More rows than offsets.
    Doubled { own: i64, newest: i64, rows: i64, advance: i64 },
    /// An offset went back from one snapshot to a later one.
    WentBack { before: i64, after: i64, what: String },
    /// K can't be read and the lake has nothing newer.
    LedgerLost,
    /// The offsets file of a Java-made L is gone.
    OffsetsGone { snapshot: i64, path: String },
    /// `lakeward.offsets` can't be read.
    OffsetsBroken { snapshot: i64, why: String },
    /// L was made by a Fluss that is too old.
    OldVersion { snapshot: i64, version: &'static str },
    /// After recording: snapshot N is there, and not ours.
    Overwritten { snapshot: i64, round: RoundId, rows: i64 },
    /// After recording: snapshot N is gone, and with it everything above the newest.
    RolledBack { snapshot: i64, newest: i64, round: RoundId, rows: i64 },
}

impl Fault {
    pub(super) fn not_standing(above: &Seen, below: &Seen) -> Self {
        Self::NotStanding {
            above: above.id,
            total: above.total.unwrap_or(-1),
            delta: above.delta.unwrap_or(-1),
            below: below.id,
            below_total: below.total.unwrap_or(-1),
        }
    }

    /// `lake` = the lake table's URL, `table` = its name in Fluss.
    pub(super) fn into_error(self, table: &str, lake: &str) -> Error {
        let kind = if matches!(self, Self::OldVersion { .. }) { Kind::Unsupported } else { Kind::Data };
        Error::new(kind, format!("table `{table}`: {}", self.message(lake))).with_hint(self.hint(table, lake))
    }

    fn message(&self, lake: &str) -> String {
        match self {
            Self::OtherTable { snapshot, theirs, ours } => {
                format!("snapshot `{snapshot}` in `{lake}` belongs to table id `{theirs}`, this table has id `{ours}`")
            }
            Self::NewestBelow { newest, known } => {
                format!(
                    "the newest snapshot in `{lake}` is `{newest}`, although snapshot `{known}` was committed: the lake was rolled back"
                )
            }
            Self::KnownNotFluss { snapshot } => {
                format!(
                    "snapshot `{snapshot}`, which Fluss knows as its newest, is not made by Fluss in `{lake}`: the lake was rolled back or the snapshot overwritten"
                )
            }
            Self::KnownOffsetsDiffer { snapshot, difference } => {
                format!(
                    "snapshot `{snapshot}` carries other offsets in `{lake}` than Fluss knows for it ({difference}): the lake was rolled back and went on, or Fluss was told otherwise"
                )
            }
            Self::NotStanding { above, total, delta, below, below_total } => format!(
                "snapshot `{above}` in `{lake}` has `{total}` rows after adding `{delta}`, but snapshot `{below}` below it has `{below_total}`: one of them was overwritten after the other was built on it"
            ),
            Self::BaseReplaced { base, was, is } => {
                format!(
                    "snapshot `{base}` in `{lake}`, which this round is based on, was `{was}` and is `{is}`: the lake was rolled back or the snapshot overwritten"
                )
            }
            Self::Doubled { own, newest, rows, advance } => format!(
                "the Java-made snapshots above `{own}` up to `{newest}` in `{lake}` hold `{rows}` rows, but offsets advanced by `{advance}` only: a worker without a lease has written rows twice"
            ),
            Self::WentBack { before, after, what } => format!(
                "offsets went back from snapshot `{before}` to `{after}` in `{lake}` ({what}): a worker without a lease has written rows twice"
            ),
            Self::LedgerLost => {
                format!(
                    "Fluss can't read the offsets file of its newest lake snapshot, and `{lake}` holds no snapshot that carries them"
                )
            }
            Self::OffsetsGone { snapshot, path } => {
                format!("snapshot `{snapshot}` in `{lake}` is not known to Fluss, and its offsets file `{path}` is gone")
            }
            Self::OffsetsBroken { snapshot, why } => {
                format!("the offsets that snapshot `{snapshot}` in `{lake}` carries can't be read: {why}")
            }
            Self::OldVersion { snapshot, version } => {
                format!("snapshot `{snapshot}` in `{lake}` was made by Fluss {version}, which did not leave a path of its offsets")
            }
            Self::Overwritten { snapshot, round, rows } => format!(
                "snapshot `{snapshot}` in `{lake}` was made by round `{round}` and is another's now: a committer without atomic create overwrote it, its `{rows}` rows are not in the lake although Fluss counts them as tiered"
            ),
            Self::RolledBack { snapshot, newest, round, rows } => format!(
                "snapshot `{snapshot}` of round `{round}` in `{lake}` is gone and `{newest}` is the newest: the lake was rolled back, `{rows}` rows of that round are not in it although Fluss counts them as tiered"
            ),
        }
    }

    /// The ways out, down to the command (README, "What a held table needs").
    fn hint(&self, table: &str, lake: &str) -> String {
        let accept = format!("`lakeward repair accept-base {table}`");
        let reset = format!("`lakeward repair reset-offsets {table}");
        match self {
            Self::OtherTable { .. } => format!(
                "drop or move away the lake table `{lake}` if its rows are those of the dropped table; the next round fills a new one; if \
                 they are to stay below those of this table: {reset} --snapshot 0`"
            ),
            Self::NewestBelow { .. } | Self::KnownNotFluss { .. } | Self::KnownOffsetsDiffer { .. } | Self::BaseReplaced { .. } => {
                format!(
                    "if that was wanted: {accept} takes the newest Fluss-made snapshot that is left, and what lies beyond is tiered again; if \
                 not: put the snapshot files back"
                )
            }
            Self::NotStanding { .. } => format!(
                "compare both with `lakeward inspect`; let every committer of this table use atomic creates (a catalog with a lock), then \
                 roll the lake table back to the last snapshot that is whole, and {accept}: what lies beyond is tiered again"
            ),
            Self::Doubled { own: back, .. } | Self::WentBack { before: back, .. } => format!(
                "stop the Java job, roll the lake table back to snapshot `{back}`, and {accept}: what lies beyond is tiered again; without \
                 the rollback that leaves the rows as they are"
            ),
            Self::LedgerLost => format!(
                "put the offsets file back where Fluss keeps remote data; or say where the lake stands: {reset} --offsets FILE`, or \
                 {reset} --snapshot 0` if no row of this table is in it"
            ),
            Self::OffsetsGone { .. } | Self::OffsetsBroken { .. } => {
                format!("put the file back, or say the offsets that this snapshot ends at: {reset} --offsets FILE`")
            }
            Self::OldVersion { .. } => "let the tiering job of Fluss 0.9 or 1.0 run one round on this table first".to_owned(),
            Self::Overwritten { .. } => format!(
                "keep committers without atomic create away from this table, then {accept}: the rows of that round are tiered again"
            ),
            Self::RolledBack { snapshot, .. } => format!(
                "if the rollback was not wanted, put `snapshot/snapshot-{snapshot}` back; else {accept}: what lies beyond the newest \
                 Fluss-made snapshot that is left is tiered again"
            ),
        }
    }
}

/// A bucket in words.
pub(super) fn bucket_name(bucket: BucketKey) -> String {
    match bucket.partition {
        Some(partition) => format!("partition `{partition}` bucket `{}`", bucket.bucket),
        None => format!("bucket `{}`", bucket.bucket),
    }
}
