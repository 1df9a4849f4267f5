//! The tiering queue of the coordinator: states, epochs, leases, freshness, force-finish. Pure: time comes in as a number.
//!
//! Owns which table is handed out next and who may still report about it. Owns no snapshots (`snapshots.rs`) and no I/O.
//! Called by the server for each heartbeat and by DDL when lake tables come, change and go.
//!
//! Nothing here is persisted: after a restart all lake tables are Scheduled and epochs start over (F1.3, F D1).
//!
//! Source: F1.3, F D1.

use std::collections::{BTreeMap, VecDeque};

use crate::model::{CoordinatorEpoch, TableId, TablePath, TieringEpoch};

/// Where a table stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Waits until its freshness has run out since it was last tiered.
    Scheduled,
    /// In the queue since this moment.
    Pending,
    /// Handed out; the last accepted heartbeat was at this moment.
    Tiering { renewed_ms: i64 },
}

#[derive(Debug)]
struct Entry {
    path: TablePath,
    freshness_ms: i64,
    state: State,
    epoch: i64,
    last_tiered_ms: i64,
}

/// A table that a heartbeat was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// Its id.
    pub table: TableId,
    /// Its path.
    pub path: TablePath,
    /// The epoch its holder has to name.
    pub epoch: TieringEpoch,
}

/// What a heartbeat says about one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// The table.
    pub table: TableId,
    /// Coordinator epoch that its holder knows.
    pub coordinator_epoch: CoordinatorEpoch,
    /// Tiering epoch that its holder was given.
    pub epoch: TieringEpoch,
}

/// Why a report about one table was not accepted (F1.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// 23: another coordinator epoch.
    InvalidCoordinator,
    /// 7: no lake table that the queue knows.
    UnknownTable,
    /// 50: the table has entered the queue again since.
    FencedEpoch {
        /// The epoch it has now.
        current: TieringEpoch,
    },
    /// −1: a renewal for a table that is not handed out.
    NotTiering,
}

/// One heartbeat, in the order in which its parts are handled.
#[derive(Debug, Clone, Default)]
pub struct Heartbeat {
    /// Rounds that failed.
    pub failed: Vec<Report>,
    /// Rounds that go on.
    pub renewed: Vec<Report>,
    /// Rounds that are done.
    pub finished: Vec<Report>,
    /// Tables among `finished` that are to be queued again at once.
    pub force_finished: Vec<TableId>,
    /// Whether a table is asked for.
    pub request: bool,
}

/// Outcome per reported table, in the order of the report.
pub type Outcomes = Vec<(TableId, Result<(), Refusal>)>;

/// Answer to a heartbeat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// The table handed out.
    pub assignment: Option<Assignment>,
    /// For `failed`.
    pub failed: Outcomes,
    /// For `renewed`.
    pub renewed: Outcomes,
    /// For `finished`.
    pub finished: Outcomes,
}

/// The queue.
#[derive(Debug)]
pub struct Queue {
    coordinator_epoch: CoordinatorEpoch,
    lease_ms: i64,
    tables: BTreeMap<TableId, Entry>,
    fifo: VecDeque<TableId>,
}

impl Queue {
    /// An empty queue whose leases last `lease_ms` since the last accepted heartbeat.
    #[must_use]
    pub fn new(coordinator_epoch: CoordinatorEpoch, lease_ms: i64) -> Self {
        Self { coordinator_epoch, lease_ms, tables: BTreeMap::new(), fifo: VecDeque::new() }
    }

    /// Epoch of this coordinator.
    #[must_use]
    pub fn coordinator_epoch(&self) -> CoordinatorEpoch {
        self.coordinator_epoch
    }

    /// A lake table has come (created, lake enabled, or found at start): Scheduled, epoch 0, last tiered now.
    pub fn add(&mut self, table: TableId, path: TablePath, freshness_ms: i64, now_ms: i64) {
        let entry = Entry { path, freshness_ms, state: State::Scheduled, epoch: 0, last_tiered_ms: now_ms };
        self.tables.insert(table, entry);
    }

    /// A lake table has gone (dropped, or lake disabled).
    pub fn remove(&mut self, table: TableId) {
        self.tables.remove(&table);
    }

    /// The freshness was altered; matters from the next time that the table is Scheduled, or now if it is.
    pub fn set_freshness(&mut self, table: TableId, freshness_ms: i64) {
        if let Some(entry) = self.tables.get_mut(&table) {
            entry.freshness_ms = freshness_ms;
        }
    }

    /// Handles a heartbeat at `now_ms`: failed, renewed, finished, then the request.
    pub fn heartbeat(&mut self, heartbeat: &Heartbeat, now_ms: i64) -> Answer {
        self.advance(now_ms);
        let failed = heartbeat.failed.iter().map(|report| (report.table, self.fail(*report))).collect();
        let renewed = heartbeat.renewed.iter().map(|report| (report.table, self.renew(*report, now_ms))).collect();
        let finished = heartbeat
            .finished
            .iter()
            .map(|report| (report.table, self.finish(*report, heartbeat.force_finished.contains(&report.table), now_ms)))
            .collect();
        self.advance(now_ms);
        let assignment = if heartbeat.request { self.hand_out(now_ms) } else { None };
        Answer { assignment, failed, renewed, finished }
    }

    /// Lets time pass: due tables enter the queue, leases expire, in the order in which that happened.
    fn advance(&mut self, now_ms: i64) {
        let mut due: Vec<(i64, TableId)> = self
            .tables
            .iter()
            .filter_map(|(table, entry)| {
                let at = match entry.state {
                    State::Scheduled => entry.last_tiered_ms.saturating_add(entry.freshness_ms),
                    State::Tiering { renewed_ms } => renewed_ms.saturating_add(self.lease_ms),
                    State::Pending => return None,
                };
                (at <= now_ms).then_some((at, *table))
            })
            .collect();
        due.sort_unstable();
        for (_, table) in due {
            self.enqueue(table);
        }
    }

    fn enqueue(&mut self, table: TableId) {
        if let Some(entry) = self.tables.get_mut(&table) {
            if matches!(entry.state, State::Tiering { .. }) {
                tracing::debug!(table = %entry.path, epoch = entry.epoch, "round ended without success, table queued again");
            }
            entry.state = State::Pending;
            entry.epoch += 1;
            self.fifo.push_back(table);
        }
    }

    fn hand_out(&mut self, now_ms: i64) -> Option<Assignment> {
        // Tables that were dropped, or that left the queue and entered again, are still in line: skip what is not Pending.
        while let Some(table) = self.fifo.pop_front() {
            if let Some(entry) = self.tables.get_mut(&table).filter(|entry| entry.state == State::Pending) {
                entry.state = State::Tiering { renewed_ms: now_ms };
                return Some(Assignment { table, path: entry.path.clone(), epoch: TieringEpoch(entry.epoch) });
            }
        }
        None
    }

    fn check(&mut self, report: Report) -> Result<&mut Entry, Refusal> {
        if report.coordinator_epoch != self.coordinator_epoch {
            return Err(Refusal::InvalidCoordinator);
        }
        let entry = self.tables.get_mut(&report.table).ok_or(Refusal::UnknownTable)?;
        if report.epoch.0 != entry.epoch {
            return Err(Refusal::FencedEpoch { current: TieringEpoch(entry.epoch) });
        }
        Ok(entry)
    }

    fn renew(&mut self, report: Report, now_ms: i64) -> Result<(), Refusal> {
        let entry = self.check(report)?;
        match &mut entry.state {
            State::Tiering { renewed_ms } => {
                *renewed_ms = now_ms;
                Ok(())
            }
            State::Scheduled | State::Pending => Err(Refusal::NotTiering),
        }
    }

    /// Not an error in any state (F1.3): a Scheduled table, too, becomes Pending at once.
    fn fail(&mut self, report: Report) -> Result<(), Refusal> {
        let state = self.check(report)?.state;
        if state != State::Pending {
            self.enqueue(report.table);
        }
        Ok(())
    }

    /// Not an error in any state (F1.3): without a round to finish it does nothing.
    fn finish(&mut self, report: Report, force: bool, now_ms: i64) -> Result<(), Refusal> {
        let entry = self.check(report)?;
        if matches!(entry.state, State::Tiering { .. }) {
            entry.last_tiered_ms = now_ms;
            entry.state = State::Scheduled;
            if force {
                self.enqueue(report.table);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TableId = TableId(1);
    const B: TableId = TableId(2);

    fn queue() -> Queue {
        let mut queue = Queue::new(CoordinatorEpoch(3), 120_000);
        queue.add(A, TablePath::new("demo", "a"), 1_000, 0);
        queue.add(B, TablePath::new("demo", "b"), 2_000, 0);
        queue
    }

    fn report(table: TableId, epoch: i64) -> Report {
        Report { table, coordinator_epoch: CoordinatorEpoch(3), epoch: TieringEpoch(epoch) }
    }

    fn request() -> Heartbeat {
        Heartbeat { request: true, ..Heartbeat::default() }
    }

    fn given(answer: &Answer) -> Option<(TableId, i64)> {
        answer.assignment.as_ref().map(|given| (given.table, given.epoch.0))
    }

    #[test]
    fn a_table_is_handed_out_one_freshness_after_it_came_and_once() {
        let mut queue = queue();
        assert_eq!(given(&queue.heartbeat(&request(), 999)), None);
        assert_eq!(given(&queue.heartbeat(&request(), 2_500)), Some((A, 1)), "due first, whatever the poll");
        assert_eq!(given(&queue.heartbeat(&request(), 2_500)), Some((B, 1)));
        assert_eq!(given(&queue.heartbeat(&request(), 2_500)), None);
    }

    #[test]
    fn finished_rests_and_force_finished_is_queued_at_once_even_for_the_same_heartbeat() {
        let mut queue = queue();
        queue.heartbeat(&request(), 1_000);
        let rests = Heartbeat { finished: vec![report(A, 1)], request: true, ..Heartbeat::default() };
        let answer = queue.heartbeat(&rests, 1_500);
        assert_eq!((answer.finished.clone(), given(&answer)), (vec![(A, Ok(()))], None));
        assert_eq!(given(&queue.heartbeat(&request(), 2_499)), Some((B, 1)));
        assert_eq!(given(&queue.heartbeat(&request(), 2_500)), Some((A, 2)));
        let force = Heartbeat { finished: vec![report(A, 2)], force_finished: vec![A, B], request: true, ..Heartbeat::default() };
        assert_eq!(given(&queue.heartbeat(&force, 2_600)), Some((A, 3)), "b is not in finished: ignored");
    }

    #[test]
    fn an_expired_lease_fences_its_holder_and_a_renewal_keeps_it() {
        let mut queue = queue();
        queue.heartbeat(&request(), 1_000);
        let renew = Heartbeat { renewed: vec![report(A, 1)], ..Heartbeat::default() };
        assert_eq!(queue.heartbeat(&renew, 120_999).renewed, vec![(A, Ok(()))]);
        queue.heartbeat(&request(), 121_000);
        assert_eq!(given(&queue.heartbeat(&request(), 240_998)), None);
        let answer = queue.heartbeat(&request(), 240_999);
        assert_eq!(given(&answer), Some((A, 2)));
        let fenced = Err(Refusal::FencedEpoch { current: TieringEpoch(2) });
        assert_eq!(queue.heartbeat(&renew, 241_000).renewed, vec![(A, fenced)]);
    }

    #[test]
    fn reports_are_refused_by_coordinator_epoch_then_table_then_epoch_then_state() {
        let mut queue = queue();
        let wrong = Report { coordinator_epoch: CoordinatorEpoch(2), ..report(TableId(9), 7) };
        let renewed = vec![wrong, report(TableId(9), 1), report(A, 7), report(A, 0)];
        let outcomes = queue.heartbeat(&Heartbeat { renewed, ..Heartbeat::default() }, 0).renewed;
        let refusals: Vec<_> = outcomes.into_iter().map(|(_, outcome)| outcome.unwrap_err()).collect();
        let fenced = Refusal::FencedEpoch { current: TieringEpoch(0) };
        assert_eq!(refusals, [Refusal::InvalidCoordinator, Refusal::UnknownTable, fenced, Refusal::NotTiering]);
    }

    #[test]
    fn failed_wins_over_finished_in_one_heartbeat_and_goes_to_the_tail() {
        let mut queue = queue();
        queue.heartbeat(&request(), 2_000);
        let both = Heartbeat { failed: vec![report(A, 1)], finished: vec![report(A, 1)], ..Heartbeat::default() };
        let answer = queue.heartbeat(&both, 2_100);
        assert_eq!(answer.failed, vec![(A, Ok(()))]);
        assert_eq!(answer.finished, vec![(A, Err(Refusal::FencedEpoch { current: TieringEpoch(2) }))]);
        assert_eq!(given(&queue.heartbeat(&request(), 2_100)), Some((B, 1)));
        assert_eq!(given(&queue.heartbeat(&request(), 2_100)), Some((A, 2)));
    }

    #[test]
    fn reports_without_a_round_are_no_errors() {
        let mut queue = queue();
        let finished = Heartbeat { finished: vec![report(A, 0)], ..Heartbeat::default() };
        assert_eq!(queue.heartbeat(&finished, 0).finished, vec![(A, Ok(()))]);
        let failed = Heartbeat { failed: vec![report(A, 0)], request: true, ..Heartbeat::default() };
        assert_eq!(given(&queue.heartbeat(&failed, 0)), Some((A, 1)), "a scheduled table becomes pending at once");
    }

    #[test]
    fn a_table_that_was_dropped_while_queued_is_skipped_and_one_enabled_again_starts_at_epoch_zero() {
        let mut queue = queue();
        queue.heartbeat(&Heartbeat::default(), 1_000);
        queue.remove(A);
        queue.add(A, TablePath::new("demo", "a"), 1_000, 1_000);
        assert_eq!(given(&queue.heartbeat(&request(), 1_500)), None);
        assert_eq!(given(&queue.heartbeat(&request(), 2_000)), Some((A, 1)), "once, though it is twice in line");
    }
}
