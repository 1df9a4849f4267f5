//! Whether the service lives, and whether it can work. Pure.

use super::StatusReport;
use crate::daemon::board::{Phase, TableState, TableStatus};
use crate::error::Kind;

/// Older than this, the coordinator's last answer says nothing: three renewals.
const HEARTBEAT_MAX_MS: i64 = 60_000;

/// The process answers and the heartbeat task runs; else only a restart helps.
pub(super) fn alive(report: &StatusReport) -> Result<(), String> {
    if report.service.heart_alive { Ok(()) } else { Err("the heartbeat task has ended".to_owned()) }
}

/// It can take tables and bring them into the lake, as far as the last calls tell.
pub(super) fn ready(report: &StatusReport) -> Result<(), String> {
    alive(report)?;
    let service = &report.service;
    match service.phase {
        Phase::Starting => Err("starting: the coordinator has not answered yet".to_owned()),
        Phase::Stopping => Err("stopping".to_owned()),
        Phase::Running => Ok(()),
    }?;
    let silence_ms = report.now_ms.saturating_sub(service.heartbeat_ms.unwrap_or(service.started_ms));
    if silence_ms > HEARTBEAT_MAX_MS {
        let why = service.heartbeat_fault.as_deref().unwrap_or("no heartbeat was due");
        return Err(format!("the coordinator has not answered for {} s: {why}", silence_ms / 1_000));
    }
    match out_of_reach(&report.tables) {
        Some(table) => {
            let why = table.reason.as_deref().unwrap_or("something is out of reach");
            Err(format!("no table can be tiered; `{}`: {why}", table.table))
        }
        None => Ok(()),
    }
}

/// A table whose last round found something out of reach, when no table's last round ended well. One that fares ill beside
/// others is its own trouble.
fn out_of_reach(tables: &[TableStatus]) -> Option<&TableStatus> {
    let failing = |table: &&TableStatus| table.kind == Some(Kind::Unavailable) && table.failures_in_row > 0;
    let well = |table: &TableStatus| {
        matches!(table.state, TableState::Waiting | TableState::Tiering)
            && table.failures_in_row == 0
            && table.last_success_ms.is_some()
    };
    if tables.iter().any(well) { None } else { tables.iter().find(failing) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::board::Board;
    use crate::error::Error;
    use crate::model::{TableId, TablePath};
    use crate::runtime::Runtime;

    const NOW: i64 = 1_000_000;

    fn table(id: i64, change: impl FnOnce(&mut TableStatus)) -> TableStatus {
        let mut table = TableStatus::new(TablePath::new("demo", format!("t{id}")), TableId(id), TableState::Waiting, NOW);
        change(&mut table);
        table
    }

    fn well(table: &mut TableStatus) {
        table.last_success_ms = Some(NOW - 5);
    }

    fn lost(table: &mut TableStatus) {
        table.failed(&Error::unavailable("the store does not answer"), TableState::BackingOff, NOW);
    }

    /// A running service whose coordinator has just answered.
    #[tokio::main(flavor = "current_thread")]
    async fn report(tables: Vec<TableStatus>) -> StatusReport {
        let board = Board::new(4, 0);
        board.set_service(|service| {
            service.phase = Phase::Running;
            service.heartbeat_ms = Some(NOW);
        });
        StatusReport { now_ms: NOW, tables, ..StatusReport::new(&board, &Runtime::simulated(1, 0, 1 << 20)) }
    }

    #[test]
    fn without_the_heartbeat_task_it_is_neither_alive_nor_ready() {
        let mut report = report(vec![]);
        assert_eq!((alive(&report), ready(&report)), (Ok(()), Ok(())));
        report.service.heart_alive = false;
        assert!(alive(&report).is_err() && ready(&report).is_err());
    }

    #[test]
    fn it_is_ready_while_it_runs_and_the_coordinator_answers() {
        let mut report = report(vec![]);
        for (phase, ready_then) in [(Phase::Starting, false), (Phase::Stopping, false), (Phase::Running, true)] {
            report.service.phase = phase;
            assert_eq!(ready(&report).is_ok(), ready_then, "{phase:?}");
        }
        report.now_ms = NOW + HEARTBEAT_MAX_MS;
        assert_eq!(ready(&report), Ok(()));
        report.now_ms += 1_000;
        report.service.heartbeat_fault = Some("connection refused".into());
        let reason = ready(&report).unwrap_err();
        assert!(reason.contains("61 s") && reason.contains("connection refused"), "{reason}");
        assert_eq!(alive(&report), Ok(()), "a restart would not help");
    }

    #[test]
    fn one_table_out_of_reach_is_its_own_trouble_and_all_of_them_are_the_services() {
        let held = |table: &mut TableStatus| {
            well(table);
            table.failed(&Error::data("two totals"), TableState::Held, NOW);
        };
        assert_eq!(ready(&report(vec![table(1, well), table(2, lost)])), Ok(()));
        assert_eq!(ready(&report(vec![table(1, held)])), Ok(()), "a held table needs an operator, not a restart");
        let reason = ready(&report(vec![table(1, held), table(2, lost), table(3, |_| {})])).unwrap_err();
        assert!(reason.contains("`demo.t2`: the store does not answer"), "{reason}");
    }
}
