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
        None => Next::Report(Report::Finished),
        Some(Kind::Data | Kind::Unsupported | Kind::Invalid) => Next::Hold,
        Some(_) if ended.stopping => Next::Report(Report::ForceFinished),
        Some(Kind::Stale) => Next::Report(Report::ForceFinished),
        Some(Kind::Unavailable) if ended.failing_for < UNAVAILABLE_MAX => Next::Retry,
        Some(Kind::Internal) if ended.internal_in_row >= INTERNAL_MAX => Next::Hold,
        Some(Kind::Unavailable | Kind::Internal) => Next::Report(Report::Failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_leads_to_its_report() {
        let ended = |fault| Ended { fault, lease_lost: false, stopping: false, failing_for: Duration::ZERO, internal_in_row: 1 };
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
    }

    #[test]
    fn a_lost_lease_reports_nothing_and_a_stop_hands_back() {
        let ended = Ended {
            fault: Some(Kind::Unavailable),
            lease_lost: false,
            stopping: true,
            failing_for: Duration::ZERO,
            internal_in_row: 0,
        };
        assert_eq!(next(ended), Next::Report(Report::ForceFinished));
        assert_eq!(next(Ended { lease_lost: true, fault: None, ..ended }), Next::LetGo);
    }
}
