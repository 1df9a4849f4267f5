//! What the service remembers of each table between assignments, and what follows when one is handed out (architecture.md 5). Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::TableFilter;
use super::outcome::{self, Next, Report};
use crate::error::Kind;
use crate::model::{TableId, TablePath};
use crate::runtime::Moment;

/// A table that had nothing to do is left alone for so long, or one poll if that is shorter, however small its freshness.
const REST_MAX: Duration = Duration::from_secs(1);

/// A table that does not come for so long, or its freshness if that is longer, is asked after ...
const MISSED_FIRST: Duration = Duration::from_secs(60);
/// ... and then this often; so is one that we don't want anyway.
const MISSED_NEXT: Duration = Duration::from_secs(600);

/// Of a freshness of so many polls, a poll is too little to ask for the table at the very moment when it is due: hundreds of tables
/// would cost the coordinator a call each, and more where its timer is late.
const POLLS_SOON: u32 = 60;

/// One table.
#[derive(Debug, Default)]
struct Known {
    path: Option<TablePath>,
    /// When it is missed; `None` while it is in our hands, or asked after.
    missed: Option<Moment>,
    freshness: Option<Duration>,
    /// When the queue has it again, as far as we know; `None` while it is in our hands.
    due: Option<Moment>,
    /// Not looked at before: its last round, just now, had nothing to do.
    rests_until: Option<Moment>,
    hold: Option<Hold>,
    internal_in_row: u32,
    stale_in_row: u32,
    /// Its last round found something out of reach.
    doubtful: bool,
}

#[derive(Debug, Clone, Copy)]
struct Hold {
    looks: u32,
    next_look: Moment,
}

/// What to do with a table that was handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Run a round.
    Run,
    /// Give it back.
    Return(Report, Why),
}

/// Why a table is given back without a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// The filter leaves it to others.
    Excluded,
    /// It is held, and its next look has not come.
    Held,
    /// It had nothing to do a moment ago.
    JustLooked,
    /// Its former assignment is void, and the round of that has not ended yet.
    StillBusy,
}

/// All tables that were ever handed out.
#[derive(Debug)]
pub(super) struct Roster {
    filter: TableFilter,
    poll: Duration,
    rest: Duration,
    tables: BTreeMap<TableId, Known>,
}

impl Roster {
    pub(super) fn new(filter: TableFilter, poll: Duration) -> Self {
        Self { filter, poll, rest: poll.min(REST_MAX), tables: BTreeMap::new() }
    }

    /// A table is handed out.
    pub(super) fn claimed(&mut self, id: TableId, path: &TablePath, now: Moment) -> Verdict {
        let wanted = self.filter.wants(path);
        let known = self.tables.entry(id).or_default();
        known.path = Some(path.clone());
        (known.due, known.missed) = (None, None);
        if !wanted {
            return Verdict::Return(Report::ForceFinished, Why::Excluded);
        }
        if known.hold.is_some_and(|hold| now < hold.next_look) {
            return Verdict::Return(Report::Finished, Why::Held);
        }
        if known.rests_until.is_some_and(|until| now < until) {
            return Verdict::Return(Report::ForceFinished, Why::JustLooked);
        }
        Verdict::Run
    }

    /// How often its rounds have failed as `Internal` and `Stale` in a row, the one of this `kind` included.
    pub(super) fn in_row(&self, id: TableId, kind: Kind) -> (u32, u32) {
        let (internal, stale) = self.tables.get(&id).map_or((0, 0), |known| (known.internal_in_row, known.stale_in_row));
        (internal.saturating_add(u32::from(kind == Kind::Internal)), stale.saturating_add(u32::from(kind == Kind::Stale)))
    }

    /// Its last round found something out of reach.
    pub(super) fn is_doubtful(&self, id: TableId) -> bool {
        self.tables.get(&id).is_some_and(|known| known.doubtful)
    }

    /// How far its lake may lag behind, if a round has told.
    pub(super) fn freshness(&self, id: TableId) -> Option<Duration> {
        self.tables.get(&id)?.freshness
    }

    /// A round told the freshness.
    pub(super) fn set_freshness(&mut self, id: TableId, freshness: Duration) {
        if let Some(known) = self.tables.get_mut(&id) {
            known.freshness = Some(freshness);
        }
    }

    /// A round ended well: whatever was wrong is so no more. `idle` = it had nothing to do.
    pub(super) fn ended_well(&mut self, id: TableId, idle: bool, now: Moment) {
        let rests_until = idle.then(|| now + self.rest);
        if let Some(known) = self.tables.get_mut(&id) {
            *known = Known { path: known.path.take(), freshness: known.freshness, rests_until, ..Known::default() };
        }
    }

    /// A round failed, and `next` follows. Returns whether the table is held from now on and was not before.
    pub(super) fn failed(&mut self, id: TableId, kind: Kind, next: Next, now: Moment) -> bool {
        let (internal_in_row, stale_in_row) = self.in_row(id, kind);
        let Some(known) = self.tables.get_mut(&id) else { return false };
        known.internal_in_row = if kind == Kind::Internal { internal_in_row } else { 0 };
        known.stale_in_row = if kind == Kind::Stale { stale_in_row } else { 0 };
        known.doubtful = kind == Kind::Unavailable;
        known.rests_until = None;
        if next != Next::Hold {
            return false;
        }
        let looks = known.hold.map_or(0, |hold| hold.looks.saturating_add(1));
        let first = known.hold.is_none();
        known.hold = Some(Hold { looks, next_look: now + outcome::hold_for(looks) });
        first
    }

    /// The coordinator was told: the queue has it from a moment on, which is returned if it is known, and if we want it.
    pub(super) fn reported(&mut self, id: TableId, report: Report, now: Moment) -> Option<Moment> {
        let known = self.tables.get_mut(&id)?;
        if known.path.as_ref().is_some_and(|path| !self.filter.wants(path)) {
            known.missed = Some(now + MISSED_NEXT);
            return None;
        }
        let queued = match report {
            Report::Finished => known.freshness.map(|freshness| now + freshness),
            Report::ForceFinished | Report::Failed => Some(now),
        };
        let until = known.hold.map(|hold| hold.next_look).max(known.rests_until);
        known.due = queued.map(|queued| until.map_or(queued, |until| queued.max(until)));
        known.missed = Some(queued.unwrap_or(now) + known.freshness.unwrap_or_default().max(MISSED_FIRST));
        known.due
    }

    /// The lease was lost: somebody else has it.
    pub(super) fn lost(&mut self, id: TableId, now: Moment) {
        if let Some(known) = self.tables.get_mut(&id) {
            known.missed = Some(now + MISSED_NEXT);
        }
    }

    /// When the next table is missed.
    pub(super) fn next_missed(&self) -> Option<Moment> {
        self.tables.values().filter_map(|known| known.missed).min()
    }

    /// Tables that are missed by now. Each is told once, until [`Roster::asked_after`].
    pub(super) fn missed(&mut self, now: Moment) -> Vec<(TableId, TablePath)> {
        let missed = self.tables.iter_mut().filter(|(_, known)| known.missed.is_some_and(|missed| missed <= now));
        let missed = missed.filter_map(|(id, known)| {
            known.missed = None;
            Some((*id, known.path.clone()?))
        });
        missed.collect()
    }

    /// A missed table is still there. Returns whether it is still missed, and wanted.
    pub(super) fn asked_after(&mut self, id: TableId, now: Moment) -> bool {
        let Some(known) = self.tables.get_mut(&id) else { return false };
        known.missed = Some(now + MISSED_NEXT);
        known.path.as_ref().is_some_and(|path| self.filter.wants(path))
    }

    /// When a held table is looked at again.
    pub(super) fn next_look(&self, id: TableId) -> Option<Moment> {
        Some(self.tables.get(&id)?.hold?.next_look)
    }

    /// When known tables are due that are worth a look at the queue of their own.
    pub(super) fn due(&self) -> impl Iterator<Item = Moment> {
        let patient = self.poll.saturating_mul(POLLS_SOON);
        let urgent = move |known: &&Known| known.freshness.is_none_or(|freshness| freshness < patient);
        self.tables.values().filter(urgent).filter_map(|known| known.due)
    }

    /// The table is gone.
    pub(super) fn forget(&mut self, id: TableId) {
        self.tables.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: TableId = TableId(7);
    const FRESHNESS: Duration = Duration::from_secs(10);

    fn claimed(roster: &mut Roster, now: Moment) -> Verdict {
        roster.claimed(T, &TablePath::new("demo", "t"), now)
    }

    fn roster() -> (Roster, Moment) {
        let mut roster = Roster::new(TableFilter::default(), Duration::from_secs(1));
        let now = Moment::now();
        assert_eq!(claimed(&mut roster, now), Verdict::Run);
        roster.set_freshness(T, FRESHNESS);
        (roster, now)
    }

    #[test]
    fn a_finished_table_is_due_one_freshness_later_and_a_returned_one_at_once() {
        let (mut roster, now) = roster();
        assert_eq!(roster.due().count(), 0, "in hand");
        roster.ended_well(T, false, now);
        assert_eq!(roster.reported(T, Report::Finished, now), Some(now + FRESHNESS));
        assert_eq!(roster.due().collect::<Vec<_>>(), [now + FRESHNESS]);
        assert_eq!(claimed(&mut roster, now + FRESHNESS), Verdict::Run);
        for report in [Report::Failed, Report::ForceFinished] {
            assert_eq!(roster.reported(T, report, now), Some(now));
        }
    }

    #[test]
    fn a_freshness_of_many_polls_is_left_to_the_polls() {
        let (mut roster, now) = roster();
        for (polls, asks) in [(59, 1), (60, 0)] {
            roster.set_freshness(T, Duration::from_secs(polls));
            assert_eq!(roster.reported(T, Report::Finished, now), Some(now + Duration::from_secs(polls)), "the board knows it");
            assert_eq!(roster.due().count(), asks, "{polls} polls");
        }
    }

    #[test]
    fn a_table_that_does_not_come_is_asked_after_once_and_then_ever_again() {
        let (mut roster, now) = roster();
        assert_eq!(roster.next_missed(), None, "in hand");
        roster.reported(T, Report::Finished, now);
        let missed = now + FRESHNESS + MISSED_FIRST;
        assert_eq!((roster.next_missed(), roster.missed(now)), (Some(missed), vec![]));
        assert_eq!(roster.missed(missed), [(T, TablePath::new("demo", "t"))]);
        assert_eq!((roster.next_missed(), roster.missed(missed)), (None, vec![]));
        assert!(roster.asked_after(T, missed));
        assert_eq!(roster.next_missed(), Some(missed + MISSED_NEXT));
        claimed(&mut roster, missed);
        assert_eq!(roster.next_missed(), None);
        roster.lost(T, now);
        assert_eq!(roster.next_missed(), Some(now + MISSED_NEXT));
        roster.forget(T);
        assert!(roster.next_missed().is_none() && !roster.asked_after(T, now));
    }

    #[test]
    fn a_held_table_is_given_back_until_its_next_look_which_lifts_the_hold_or_doubles_it() {
        let (mut roster, mut now) = roster();
        assert!(roster.failed(T, Kind::Data, Next::Hold, now));
        for minutes in [1, 2, 4] {
            let hold = Duration::from_secs(minutes * 60);
            assert_eq!(roster.next_look(T), Some(now + hold));
            assert_eq!(roster.reported(T, Report::Finished, now), Some(now + hold), "later than its freshness");
            let early = now + hold - Duration::from_millis(1);
            assert_eq!(claimed(&mut roster, early), Verdict::Return(Report::Finished, Why::Held));
            assert_eq!(roster.reported(T, Report::Finished, early), Some(early + FRESHNESS));
            now += hold;
            assert_eq!(claimed(&mut roster, now), Verdict::Run);
            assert!(!roster.failed(T, Kind::Data, Next::Hold, now), "held all the time");
        }
        roster.ended_well(T, false, now);
        assert_eq!((roster.next_look(T), claimed(&mut roster, now)), (None, Verdict::Run));
        assert!(roster.failed(T, Kind::Unsupported, Next::Hold, now));
        assert_eq!(roster.next_look(T), Some(now + Duration::from_secs(60)), "from the start again");
    }

    #[test]
    fn failures_in_a_row_are_counted_by_kind() {
        let (mut roster, now) = roster();
        assert_eq!(roster.in_row(T, Kind::Internal), (1, 0));
        for _ in 0..2 {
            roster.failed(T, Kind::Internal, Next::Report(Report::Failed), now);
        }
        assert_eq!(roster.in_row(T, Kind::Internal), (3, 0));
        roster.failed(T, Kind::Stale, Next::Report(Report::ForceFinished), now);
        assert_eq!(roster.in_row(T, Kind::Stale), (0, 2));
        assert!(!roster.is_doubtful(T));
        roster.failed(T, Kind::Unavailable, Next::Retry, now);
        assert!(roster.is_doubtful(T));
        roster.ended_well(T, true, now);
        assert!(!roster.is_doubtful(T));
        assert_eq!(roster.in_row(T, Kind::Internal), (1, 0));
    }

    #[test]
    fn a_table_of_tiny_freshness_that_had_nothing_is_not_looked_at_all_the_time() {
        let (mut roster, now) = roster();
        roster.set_freshness(T, Duration::ZERO);
        roster.ended_well(T, true, now);
        let later = now + Duration::from_secs(1);
        assert_eq!(roster.reported(T, Report::Finished, now), Some(later));
        assert_eq!(claimed(&mut roster, now), Verdict::Return(Report::ForceFinished, Why::JustLooked));
        assert_eq!(roster.reported(T, Report::ForceFinished, now), Some(later));
        assert_eq!(claimed(&mut roster, later), Verdict::Run);
        roster.ended_well(T, false, later);
        assert_eq!(roster.reported(T, Report::Finished, later), Some(later), "one that has rows is");
    }

    #[test]
    fn an_unwanted_table_is_given_back_at_once() {
        let filter = TableFilter { include: vec![], exclude: vec!["demo.*".parse().unwrap()] };
        let mut roster = Roster::new(filter, Duration::from_secs(1));
        let now = Moment::now();
        assert_eq!(claimed(&mut roster, now), Verdict::Return(Report::ForceFinished, Why::Excluded));
        assert_eq!(roster.reported(T, Report::ForceFinished, now), None, "never due");
    }
}
