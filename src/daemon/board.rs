//! The board: what the service knows of each table and of itself, for whoever wants to look (`/status`, metrics, `lakeward status`).
//!
//! Owns the shape and the figures that follow from the clock (lag). The supervisor and the heartbeat write it; nobody decides by it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind};
use crate::model::{RoundOutcome, RoundSummary, SnapshotId, TableId, TablePath};

/// Where a table stands in this service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableState {
    /// Not in our hands: its freshness has not run out, or it stands in the queue. With a reason when its last round failed.
    Waiting,
    /// A round works on it.
    Tiering,
    /// In our hands; something was out of reach, and the round runs again after a pause.
    BackingOff,
    /// Kept off until an operator or time has helped; looked at again at `next_look_ms`.
    Held,
    /// As `Held`, because this build can't tier it.
    Unsupported,
    /// The table filter leaves it to others.
    Excluded,
    /// As far as we know another service has it: its lease was lost, or it has not been handed out to us for long.
    Elsewhere,
}

impl TableState {
    /// Every state.
    pub const ALL: [Self; 7] =
        [Self::Waiting, Self::Tiering, Self::BackingOff, Self::Held, Self::Unsupported, Self::Excluded, Self::Elsewhere];

    /// Lower-case words for output and labels, as in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Tiering => "tiering",
            Self::BackingOff => "backing_off",
            Self::Held => "held",
            Self::Unsupported => "unsupported",
            Self::Excluded => "excluded",
            Self::Elsewhere => "elsewhere",
        }
    }

    /// Whether we hold its lease.
    #[must_use]
    pub const fn in_hand(self) -> bool {
        matches!(self, Self::Tiering | Self::BackingOff)
    }
}

/// What the service knows of one table. Moments are epoch milliseconds; what is not known is absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableStatus {
    /// The table.
    pub table: TablePath,
    /// Its id.
    pub id: TableId,
    /// Where it stands.
    pub state: TableState,
    /// Since when it stands there; for a table on hold, since its first failure in a row.
    pub since_ms: i64,
    /// Why it is not tiered, or why its last round failed: the error with all that caused it.
    pub reason: Option<String>,
    /// Kind of that error.
    pub kind: Option<Kind>,
    /// What would help.
    pub help: Option<String>,
    /// When it will be due or looked at again.
    pub next_look_ms: Option<i64>,
    /// `table.datalake.freshness`.
    pub freshness_ms: Option<i64>,
    /// All rows that were there at this moment are in the lake.
    pub tiered_to_ms: Option<i64>,
    /// Seconds since `tiered_to_ms`: how old a row that is not in the lake can be. Filled in when the board is read.
    pub lag_seconds: Option<u64>,
    /// Rows that the last round found and left for the next.
    pub lag_rows: Option<u64>,
    /// Newest lake snapshot of ours or of another service, as of our last round that ended well.
    pub snapshot: Option<SnapshotId>,
    /// When a round last ended well.
    pub last_success_ms: Option<i64>,
    /// Rounds that ended well.
    pub rounds: u64,
    /// Rows that they brought into the lake.
    pub rows: u64,
    /// Rounds that failed since the last that ended well.
    pub failures_in_row: u32,
    /// When the first of them failed.
    pub failing_since_ms: Option<i64>,
}

impl TableStatus {
    /// A table met for the first time, at `now_ms`.
    #[must_use]
    pub fn new(table: TablePath, id: TableId, state: TableState, now_ms: i64) -> Self {
        Self {
            table,
            id,
            state,
            since_ms: now_ms,
            reason: None,
            kind: None,
            help: None,
            next_look_ms: None,
            freshness_ms: None,
            tiered_to_ms: None,
            lag_seconds: None,
            lag_rows: None,
            snapshot: None,
            last_success_ms: None,
            rounds: 0,
            rows: 0,
            failures_in_row: 0,
            failing_since_ms: None,
        }
    }

    /// A round failed, and the table is in `state` from now on.
    pub fn failed(&mut self, error: &Error, state: TableState, now_ms: i64) {
        self.failures_in_row = self.failures_in_row.saturating_add(1);
        let since_ms = *self.failing_since_ms.get_or_insert(now_ms);
        (self.reason, self.kind, self.help) = (Some(error.chain()), Some(error.kind()), error.hint().map(str::to_owned));
        self.enter(state, now_ms);
        if matches!(state, TableState::Held | TableState::Unsupported) {
            self.since_ms = since_ms;
        }
    }

    /// A round ended well: nothing is wrong (any more).
    pub fn ended_well(&mut self, summary: &RoundSummary, freshness: Option<Duration>, now_ms: i64) {
        (self.reason, self.kind, self.help) = (None, None, None);
        (self.failures_in_row, self.failing_since_ms) = (0, None);
        self.rounds = self.rounds.saturating_add(1);
        self.rows = self.rows.saturating_add(summary.rows);
        // Cut before it had anything: no success that should quieten an alert.
        if !summary.cut || summary.rows > 0 {
            self.last_success_ms = Some(now_ms);
        }
        self.freshness_ms = freshness.and_then(|freshness| i64::try_from(freshness.as_millis()).ok());
        self.lag_rows = Some(summary.backlog_rows);
        if summary.backlog_rows == 0 {
            self.tiered_to_ms = Some(summary.planned_ms);
        }
        self.snapshot = match summary.outcome {
            RoundOutcome::Committed { snapshot } => Some(snapshot),
            RoundOutcome::Idle | RoundOutcome::Gone => summary.base,
        };
    }

    /// Somebody else has it: how far the lake is we don't know.
    pub fn left_to_others(&mut self, now_ms: i64) {
        self.enter(TableState::Elsewhere, now_ms);
        (self.next_look_ms, self.tiered_to_ms, self.lag_rows) = (None, None, None);
    }

    /// Changes the state; `since_ms` stays when it is the same.
    pub fn enter(&mut self, state: TableState, now_ms: i64) {
        if self.state != state {
            (self.state, self.since_ms) = (state, now_ms);
        }
    }
}

/// What the service is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// No heartbeat has been answered yet.
    Starting,
    /// Tables are claimed and tiered.
    Running,
    /// Asked to stop: no table is claimed, the rounds in hand end or are handed back.
    Stopping,
}

/// What the service knows of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// What it does.
    pub phase: Phase,
    /// When it started, epoch milliseconds.
    pub started_ms: i64,
    /// Whether the heartbeat task runs. Without it no lease lives, whatever else the process still does.
    pub heart_alive: bool,
    /// When the coordinator last answered a heartbeat, epoch milliseconds.
    pub heartbeat_ms: Option<i64>,
    /// Why it has not answered since.
    pub heartbeat_fault: Option<String>,
    /// Tables that may be in hand at once.
    pub parallel: usize,
}

#[derive(Debug)]
struct Sheet {
    service: ServiceStatus,
    tables: BTreeMap<TableId, TableStatus>,
}

/// A handle to the board; clones are the same board.
#[derive(Debug, Clone)]
pub struct Board(Arc<Mutex<Sheet>>);

impl Board {
    /// An empty board of a service that starts at `now_ms`.
    #[must_use]
    pub fn new(parallel: usize, now_ms: i64) -> Self {
        let service = ServiceStatus {
            phase: Phase::Starting,
            started_ms: now_ms,
            heart_alive: true,
            heartbeat_ms: None,
            heartbeat_fault: None,
            parallel,
        };
        Self(Arc::new(Mutex::new(Sheet { service, tables: BTreeMap::new() })))
    }

    /// What the service knows of itself.
    #[must_use]
    pub fn service(&self) -> ServiceStatus {
        self.sheet().service.clone()
    }

    /// All tables that the queue has ever handed out, by path, with their lag at `now_ms`.
    #[must_use]
    pub fn tables(&self, now_ms: i64) -> Vec<TableStatus> {
        let mut tables: Vec<TableStatus> = self.sheet().tables.values().cloned().collect();
        for table in &mut tables {
            let lag_ms = table.tiered_to_ms.map(|tiered| now_ms.saturating_sub(tiered));
            table.lag_seconds = lag_ms.map(|lag_ms| u64::try_from(lag_ms / 1_000).unwrap_or(0));
        }
        tables.sort_by(|one, other| (&one.table, one.id).cmp(&(&other.table, other.id)));
        tables
    }

    /// One table.
    #[must_use]
    pub fn table(&self, id: TableId) -> Option<TableStatus> {
        self.sheet().tables.get(&id).cloned()
    }

    /// Changes what is known of the service.
    pub fn set_service(&self, change: impl FnOnce(&mut ServiceStatus)) {
        change(&mut self.sheet().service);
    }

    /// Changes what is known of a table, which is made by `fresh` when it is new.
    pub fn set_table(&self, id: TableId, fresh: impl FnOnce() -> TableStatus, change: impl FnOnce(&mut TableStatus)) {
        change(self.sheet().tables.entry(id).or_insert_with(fresh));
    }

    /// Changes what is known of a table, if anything is.
    pub fn change_table(&self, id: TableId, change: impl FnOnce(&mut TableStatus)) {
        if let Some(table) = self.sheet().tables.get_mut(&id) {
            change(table);
        }
    }

    /// Forgets a table that is gone.
    pub fn remove(&self, id: TableId) {
        self.sheet().tables.remove(&id);
    }

    fn sheet(&self) -> MutexGuard<'_, Sheet> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::RoundId;

    #[test]
    fn lag_follows_the_clock_and_a_state_keeps_its_since() {
        let board = Board::new(4, 1_000);
        let path = TablePath::new("demo", "t");
        let fresh = || TableStatus::new(path.clone(), TableId(1), TableState::Tiering, 2_000);
        board.set_table(TableId(1), fresh, |table| table.tiered_to_ms = Some(2_000));
        board.set_table(TableId(1), fresh, |table| table.enter(TableState::Tiering, 9_000));
        let [table] = &*board.tables(7_500) else { panic!("one table") };
        assert_eq!((table.since_ms, table.lag_seconds), (2_000, Some(5)));
        assert_eq!(board.tables(0)[0].lag_seconds, Some(0), "clocks differ");
        board.set_table(TableId(1), fresh, |table| table.enter(TableState::Held, 9_000));
        assert_eq!(board.tables(9_000)[0].since_ms, 9_000);
    }

    #[test]
    fn a_round_that_was_cut_with_empty_hands_is_no_success() {
        let (table, table_id) = (TablePath::new("demo", "t"), TableId(1));
        let cut = RoundSummary {
            base: Some(SnapshotId(4)),
            cut: true,
            backlog_rows: 9,
            planned_ms: 1,
            splits: 1,
            ..RoundSummary::new(table.clone(), table_id, RoundId(uuid::Uuid::nil()))
        };
        let mut status = TableStatus::new(table, table_id, TableState::Tiering, 0);
        status.ended_well(&cut, None, 5);
        assert_eq!((status.last_success_ms, status.lag_rows, status.tiered_to_ms), (None, Some(9), None));
        assert_eq!(status.snapshot, Some(SnapshotId(4)));
        status.ended_well(&RoundSummary { rows: 3, ..cut }, None, 7);
        assert_eq!(status.last_success_ms, Some(7));
    }

    #[test]
    fn states_and_kinds_have_the_same_name_in_json_and_in_text() {
        for state in TableState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
        let mut table = TableStatus::new(TablePath::new("demo", "t"), TableId(1), TableState::Held, 7);
        table.failed(&Error::data("offset `7` is gone").with_hint("run verify"), TableState::Held, 8);
        let json = serde_json::to_string(&table).unwrap();
        assert_eq!(serde_json::from_str::<TableStatus>(&json).unwrap(), table);
        table.enter(TableState::Tiering, 9);
        table.failed(&Error::data("offset `7` is gone"), TableState::Held, 10);
        assert_eq!((table.since_ms, table.failures_in_row), (8, 2), "held since the first failure");
        assert!(json.contains("\"kind\":\"data\"") && json.contains("run verify"), "{json}");
    }
}
