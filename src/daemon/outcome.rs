//! What follows from how a round ended (architecture.md 5). Pure.

use std::time::Duration;

use crate::error::Kind;

/// What the coordinator is told about a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// Done: back in the queue one freshness later.
    Finished,
    /// Back into the queue at once.
    ForceFinished,
    /// Back into the queue at once, counted as a failure.
    Failed,
}

/// What to do after a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Tell the coordinator and let go.
    Report(Report),
    /// Tell the coordinator that it is done, and keep off it until an operator or time has helped.
    Hold,
    /// Keep the lease, pause, and run the round again.
    Retry,
    /// Somebody else has the table: say nothing.
    LetGo,
}

/// How a round ended, as far as the rules look.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// Why it failed; `None` = it ended well.
    pub fault: Option<Kind>,
    /// A limit ended it before everything that it had planned was in the lake.
    pub cut: bool,
    /// The lease was lost meanwhile.
    pub lease_lost: bool,
    /// The process is to end.
    pub stopping: bool,
    /// Time since the first failure of the table in our hands.
    pub failing_for: Duration,
    /// `Internal` errors of this table in a row, this one included.
    pub internal_in_row: u32,
}

/// `Unavailable` is waited for so long before the table goes back as failed.
pub(super) const UNAVAILABLE_MAX: Duration = Duration::from_secs(120);

/// So many `Internal` errors in a row hold a table.
const INTERNAL_MAX: u32 = 3;

/// Decides.
#[must_use]
pub fn next(ended: Ended) -> Next {
    match ended.fault {
        _ if ended.lease_lost => Next::LetGo,
        None if ended.cut => Next::Report(Report::ForceFinished),
        None => Next::Report(Report::Finished),
        Some(Kind::Data | Kind::Unsupported | Kind::Invalid) => Next::Hold,
        Some(_) if ended.stopping => Next::Report(Report::ForceFinished),
        Some(Kind::Stale) => Next::Report(Report::ForceFinished),
        Some(Kind::Unavailable) if ended.failing_for < UNAVAILABLE_MAX => Next::Retry,
        Some(Kind::Internal) if ended.internal_in_row >= INTERNAL_MAX => Next::Hold,
        Some(Kind::Unavailable | Kind::Internal) => Next::Report(Report::Failed),
    }
}

/// A held table is looked at again after so long, and then after twice as long each time.
const HOLD_FIRST: Duration = Duration::from_secs(60);
const HOLD_MAX: Duration = Duration::from_secs(30 * 60);

/// Time until the next look at a table that was found at fault `looks` times before.
pub(super) fn hold_for(looks: u32) -> Duration {
    doubled(HOLD_FIRST, looks, HOLD_MAX)
}

/// Pause before a table that gave up as stale for the `in_row`th time goes back to the queue.
pub(super) fn stale_pause(first: Duration, max: Duration, in_row: u32) -> Duration {
    doubled(first, in_row.saturating_sub(1), max)
}

fn doubled(first: Duration, times: u32, max: Duration) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(times)).min(max)
}

/// A round that has no time at all brings nothing into the lake: tables of a shorter freshness get this much.
const ROUND_TIME_MIN: Duration = Duration::from_secs(5);

/// How long a round may read before it is force-finished: the table's freshness (F1.5).
pub(super) fn round_time(freshness: Duration) -> Duration {
    freshness.max(ROUND_TIME_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_leads_to_its_report() {
        let ended = |fault| Ended {
            fault,
            cut: false,
            lease_lost: false,
            stopping: false,
            failing_for: Duration::ZERO,
            internal_in_row: 1,
        };
        for (fault, expected) in [
            (None, Next::Report(Report::Finished)),
            (Some(Kind::Stale), Next::Report(Report::ForceFinished)),
            (Some(Kind::Unavailable), Next::Retry),
            (Some(Kind::Internal), Next::Report(Report::Failed)),
            (Some(Kind::Data), Next::Hold),
            (Some(Kind::Invalid), Next::Hold),
            (Some(Kind::Unsupported), Next::Hold),
        ] {
            assert_eq!(next(ended(fault)), expected, "{fault:?}");
        }
        let late = Ended { failing_for: UNAVAILABLE_MAX, ..ended(Some(Kind::Unavailable)) };
        assert_eq!(next(late), Next::Report(Report::Failed));
        assert_eq!(next(Ended { internal_in_row: 3, ..ended(Some(Kind::Internal)) }), Next::Hold);
        assert_eq!(next(Ended { cut: true, ..ended(None) }), Next::Report(Report::ForceFinished));
    }

    #[test]
    fn a_lost_lease_reports_nothing_and_a_stop_hands_back() {
        let ended = Ended {
            fault: Some(Kind::Unavailable),
            cut: false,
            lease_lost: false,
            stopping: true,
            failing_for: Duration::ZERO,
            internal_in_row: 0,
        };
        assert_eq!(next(ended), Next::Report(Report::ForceFinished));
        assert_eq!(next(Ended { lease_lost: true, fault: None, ..ended }), Next::LetGo);
    }

    #[test]
    fn looks_at_a_held_table_get_rarer_up_to_half_an_hour() {
        let minutes: Vec<u64> = (0..8).map(|looks| hold_for(looks).as_secs() / 60).collect();
        assert_eq!(minutes, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(hold_for(u32::MAX), HOLD_MAX);
        let (first, max) = (Duration::from_millis(500), Duration::from_secs(10));
        assert_eq!(stale_pause(first, max, 1), first);
        assert_eq!(stale_pause(first, max, 3), first * 4);
        assert_eq!(stale_pause(first, max, 99), max);
    }
}
