//! When to ask the queue for a table. Pure: moments come in.
//!
//! The queue is first in, first out, and gives one table per call (F1.3). A *sweep* asks again and again until it has nothing for
//! us: it gives none, or only tables that this sweep has had and given back. A sweep begins when a table is finished, at
//! the moment when one that we know is due (if a poll is much beside its freshness), and else one `poll` after the last.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::model::TableId;
use crate::runtime::Moment;

/// The coordinator looks at its timers when it likes, up to a second late (F1.3): a table that is due is asked for this often ...
const DUE_STEP: Duration = Duration::from_millis(200);
/// ... and so long before it is left to the next poll: another service has it.
const DUE_MAX: Duration = Duration::from_millis(1_400);
/// What a table costs that was asked for in vain: this much time without a sweep, so that thousands of unwanted tables don't keep
/// the coordinator busy.
const VAIN_PAUSE: Duration = Duration::from_millis(10);

/// The state of asking.
#[derive(Debug)]
pub(super) struct Asking {
    poll: Duration,
    sweeping: bool,
    /// Tables that this sweep, or the last one, was given in vain since the last one that was of use.
    vain: BTreeSet<TableId>,
    ended: Option<Moment>,
}

impl Asking {
    /// Sweeps at once.
    pub(super) fn new(poll: Duration) -> Self {
        Self { poll, sweeping: true, vain: BTreeSet::new(), ended: None }
    }

    /// Whether to ask as soon as there is a free slot.
    pub(super) fn is_sweeping(&self) -> bool {
        self.sweeping
    }

    /// Whether the last sweep came to its end: what the queue had then, we have been given.
    pub(super) fn has_seen_all(&self) -> bool {
        !self.sweeping
    }

    /// A table was given that is worked on.
    pub(super) fn got(&mut self) {
        self.vain.clear();
    }

    /// A table was given that we don't want now.
    pub(super) fn got_in_vain(&mut self, table: TableId, now: Moment) {
        if !self.vain.insert(table) {
            self.end(now);
        }
    }

    /// None was given, or nobody answered.
    pub(super) fn got_none(&mut self, now: Moment) {
        self.end(now);
    }

    /// A table has been finished: the call that tells so can ask as well, unless that would only bring what nobody wants.
    pub(super) fn finished(&mut self) {
        self.sweeping = self.sweeping || self.vain.is_empty();
    }

    /// Begins a sweep if it is time for one.
    pub(super) fn look(&mut self, now: Moment, due: impl Iterator<Item = Moment>) {
        if self.next(due).is_some_and(|next| next <= now) {
            self.sweeping = true;
            self.vain.clear();
        }
    }

    /// When the next sweep begins, given when known tables are due; `None` while there is one.
    pub(super) fn next(&self, due: impl Iterator<Item = Moment>) -> Option<Moment> {
        let ended = self.ended.filter(|_| !self.sweeping)?;
        let rest = VAIN_PAUSE.saturating_mul(u32::try_from(self.vain.len()).unwrap_or(u32::MAX));
        let asks = due.filter_map(|due| {
            if due > ended {
                return Some(due);
            }
            Some(ended + DUE_STEP).filter(|next| *next <= due + DUE_MAX)
        });
        Some(asks.min().unwrap_or(ended + self.poll).min(ended + self.poll).max(ended + rest))
    }

    fn end(&mut self, now: Moment) {
        (self.sweeping, self.ended) = (false, Some(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: Duration = Duration::from_secs(1);
    const A: TableId = TableId(1);
    const B: TableId = TableId(2);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn swept(vain: i64, now: Moment) -> Asking {
        let mut asking = Asking::new(POLL);
        (0..vain).for_each(|table| asking.got_in_vain(TableId(table), now));
        asking.got_none(now);
        asking
    }

    #[test]
    fn an_empty_queue_is_asked_again_after_a_poll_and_when_a_table_is_due() {
        let t0 = Moment::now();
        let asking = swept(0, t0);
        let next = |due: &[Moment]| asking.next(due.iter().copied()).unwrap() - t0;
        assert_eq!(next(&[]), POLL);
        assert_eq!(next(&[t0 + ms(300), t0 + ms(5_000)]), ms(300));
        assert_eq!(next(&[t0 + ms(5_000)]), POLL);
        // Due, and not there yet: soon again, but not for ever.
        assert_eq!(next(&[t0]), DUE_STEP);
        assert_eq!(next(&[t0 - ms(1_200)]), DUE_STEP);
        assert_eq!(next(&[t0 - ms(1_201)]), POLL);
    }

    #[test]
    fn a_sweep_ends_when_only_what_it_has_had_comes_back() {
        let now = Moment::now();
        let mut asking = Asking::new(POLL);
        for (table, sweeping) in [(A, true), (B, true), (A, false)] {
            asking.got_in_vain(table, now);
            assert_eq!(asking.is_sweeping(), sweeping, "{table}");
        }
        asking.finished();
        assert!(!asking.is_sweeping(), "it would bring the same two again");
        assert_eq!(asking.next(std::iter::empty()), Some(now + POLL));
        asking.look(now + POLL, std::iter::empty());
        asking.got_in_vain(A, now);
        asking.got();
        asking.got_in_vain(A, now);
        assert!(asking.is_sweeping(), "something of use came between");
    }

    #[test]
    fn what_comes_in_vain_slows_the_sweeps_down() {
        let t0 = Moment::now();
        let due = [t0 + ms(1)];
        assert_eq!(swept(0, t0).next(due.into_iter()), Some(t0 + ms(1)));
        assert_eq!(swept(50, t0).next(due.into_iter()), Some(t0 + ms(500)));
        assert_eq!(swept(1_000, t0).next(due.into_iter()), Some(t0 + ms(10_000)));
    }

    #[test]
    fn a_finished_table_is_followed_by_the_next_at_once() {
        let mut asking = swept(0, Moment::now());
        assert!(!asking.is_sweeping());
        asking.finished();
        assert!(asking.is_sweeping() && asking.next(std::iter::empty()).is_none());
    }
}
