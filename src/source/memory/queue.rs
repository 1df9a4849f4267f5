//! The twin's tiering queue (F1.3, D1). The node has its own: a twin that shared it could not find its faults.

use std::collections::{BTreeMap, VecDeque};

use crate::model::{CoordinatorEpoch, TableId, TablePath, TieringEpoch};
use crate::source::{Assignment, Heartbeat, HeartbeatFault, HeartbeatReply, Held};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Scheduled { due_ms: i64 },
    Pending,
    Tiering { lease_end_ms: i64 },
}

#[derive(Debug)]
struct Entry {
    path: TablePath,
    freshness_ms: i64,
    state: State,
    epoch: i64,
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) epoch: CoordinatorEpoch,
    pub(super) lease_ms: i64,
    entries: BTreeMap<TableId, Entry>,
    line: VecDeque<TableId>,
}

impl Queue {
    pub(super) fn new(lease_ms: i64) -> Self {
        Self { epoch: CoordinatorEpoch(0), lease_ms, entries: BTreeMap::new(), line: VecDeque::new() }
    }

    /// Epoch 0, due one freshness from now.
    pub(super) fn add(&mut self, table: TableId, path: TablePath, freshness_ms: i64, now_ms: i64) {
        let state = State::Scheduled { due_ms: now_ms.saturating_add(freshness_ms) };
        self.entries.insert(table, Entry { path, freshness_ms, state, epoch: 0 });
    }

    /// The line keeps it: a dropped table is skipped, one that came again may stand there twice.
    pub(super) fn remove(&mut self, table: TableId) {
        self.entries.remove(&table);
    }

    /// Everything in memory is lost; 0.9.1 keeps its coordinator epoch (D1).
    pub(super) fn restart(&mut self, new_epoch: bool, now_ms: i64) {
        self.line.clear();
        self.epoch.0 += i32::from(new_epoch);
        for entry in self.entries.values_mut() {
            (entry.epoch, entry.state) = (0, State::Scheduled { due_ms: now_ms.saturating_add(entry.freshness_ms) });
        }
    }

    pub(super) fn heartbeat(&mut self, heartbeat: &Heartbeat, now_ms: i64) -> HeartbeatReply {
        self.pass_time(now_ms);
        let failed = heartbeat.failed.iter().map(|held| (held.table, self.fail(*held).err())).collect();
        let tiering = heartbeat.tiering.iter().map(|held| (held.table, self.renew(*held, now_ms).err())).collect();
        let finished = heartbeat.finished.iter();
        let finished = finished.map(|done| (done.held.table, self.finish(done.held, done.forced, now_ms).err())).collect();
        self.pass_time(now_ms);
        let assigned = if heartbeat.request_table { self.hand_out(now_ms) } else { None };
        HeartbeatReply { coordinator_epoch: self.epoch, assigned, tiering, finished, failed }
    }

    fn pass_time(&mut self, now_ms: i64) {
        let due = |entry: &Entry| match entry.state {
            State::Scheduled { due_ms: at } | State::Tiering { lease_end_ms: at } => Some(at).filter(|at| *at <= now_ms),
            State::Pending => None,
        };
        let mut passed: Vec<_> = self.entries.iter().filter_map(|(table, entry)| Some((due(entry)?, *table))).collect();
        passed.sort_unstable();
        passed.into_iter().for_each(|(_, table)| self.enter(table));
    }

    fn enter(&mut self, table: TableId) {
        if let Some(entry) = self.entries.get_mut(&table) {
            (entry.state, entry.epoch) = (State::Pending, entry.epoch + 1);
            self.line.push_back(table);
        }
    }

    fn hand_out(&mut self, now_ms: i64) -> Option<Assignment> {
        while let Some(table) = self.line.pop_front() {
            let Some(entry) = self.entries.get_mut(&table) else { continue };
            // A table that stands in the line twice is handed out twice; only the state change is refused (F1.3).
            entry.state = State::Tiering { lease_end_ms: now_ms.saturating_add(self.lease_ms) };
            let held = Held { table, coordinator_epoch: self.epoch, tiering_epoch: TieringEpoch(entry.epoch) };
            return Some(Assignment { held, path: entry.path.clone() });
        }
        None
    }

    fn check(&mut self, held: Held) -> Result<&mut Entry, HeartbeatFault> {
        let fault = |code, message: &str| HeartbeatFault { code, message: message.into() };
        if held.coordinator_epoch != self.epoch {
            return Err(fault(23, "another coordinator epoch"));
        }
        let entry = self.entries.get_mut(&held.table).ok_or_else(|| fault(7, "the table is not known to the queue"))?;
        if held.tiering_epoch.0 == entry.epoch { Ok(entry) } else { Err(fault(50, "the tiering epoch is fenced")) }
    }

    fn renew(&mut self, held: Held, now_ms: i64) -> Result<(), HeartbeatFault> {
        let lease_end_ms = now_ms.saturating_add(self.lease_ms);
        let entry = self.check(held)?;
        if !matches!(entry.state, State::Tiering { .. }) {
            return Err(HeartbeatFault { code: -1, message: "the table is not being tiered".into() });
        }
        entry.state = State::Tiering { lease_end_ms };
        Ok(())
    }

    fn fail(&mut self, held: Held) -> Result<(), HeartbeatFault> {
        if self.check(held)?.state != State::Pending {
            self.enter(held.table);
        }
        Ok(())
    }

    fn finish(&mut self, held: Held, forced: bool, now_ms: i64) -> Result<(), HeartbeatFault> {
        let entry = self.check(held)?;
        if matches!(entry.state, State::Tiering { .. }) {
            entry.state = State::Scheduled { due_ms: now_ms.saturating_add(entry.freshness_ms) };
            if forced {
                self.enter(held.table);
            }
        }
        Ok(())
    }
}
