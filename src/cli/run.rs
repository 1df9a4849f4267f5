//! `lakeward run`: the daemon, or with `--once` what the queue has, then the end.

use tokio_util::sync::CancellationToken;
use tracing::info;

use super::End;
use super::args::Run;
use super::connect::service;
use super::output::{Output, count};
use crate::config::Settings;
use crate::daemon::board::Board;
use crate::daemon::http::Admin;
use crate::daemon::{self, OnceReport};
use crate::error::{Error, Kind, Result};
use crate::model::{RoundOutcome, RoundSummary};
use crate::runtime::Runtime;

pub(super) async fn run(args: &Run, settings: Settings, runtime: Runtime, output: &mut Output) -> Result<(), End> {
    if !args.once {
        return serve(args, &settings, runtime, output).await;
    }
    let (_, service) = tokio::select! {
        found = service(&settings, &runtime) => found?,
        // Nothing is held yet.
        () = runtime.shutdown.cancelled() => return Ok(()),
    };
    let mut closed = None;
    let mut on_round = |summary: &RoundSummary| {
        let printed = if args.json { output.json(summary) } else { output.data(&line(summary)) };
        if let Err(end) = printed {
            // Nobody reads any more: hand back and end.
            closed.get_or_insert(end);
            runtime.shutdown.cancel();
        }
    };
    let report = daemon::run_once(&service, settings.wait, &mut on_round).await?;
    if report.rounds == 0 && report.faults.is_empty() {
        // Else silence would look like a fault to whoever has just made a table.
        info!("no table was due: one is when `table.datalake.freshness` has passed since it was made or last tiered");
    }
    match closed {
        Some(end) => Err(end),
        None => verdict(report).map_err(End::from),
    }
}

/// The daemon: until a signal comes, or nobody reads what it prints.
async fn serve(args: &Run, settings: &Settings, runtime: Runtime, output: &mut Output) -> Result<(), End> {
    // The signal asks to stop; what runs is aborted by a token of its own, when the grace is over.
    let stop = runtime.shutdown.clone();
    let runtime = Runtime { shutdown: CancellationToken::new(), ..runtime };
    // First, so that an address that is taken is told at once, and the start can be watched.
    let board = Board::new(settings.daemon.parallel, runtime.clock.now_ms());
    let _admin = match &settings.daemon.admin {
        Some(listen) => Some(Admin::start(listen, board.clone(), &runtime).await?),
        None => None,
    };
    let (_, service) = tokio::select! {
        found = service(settings, &runtime) => found?,
        // Nothing is held yet.
        () = stop.cancelled() => return Ok(()),
    };
    let mut closed = None;
    let nobody_reads = stop.clone();
    let mut on_round = |summary: &RoundSummary| {
        // The log tells people; stdout is for programs.
        if args.json
            && let Err(end) = output.json(summary)
        {
            closed.get_or_insert(end);
            nobody_reads.cancel();
        }
    };
    daemon::run(&service, stop, &board, &mut on_round).await?;
    closed.map_or(Ok(()), Err)
}

/// One round in one line.
pub(super) fn line(summary: &RoundSummary) -> String {
    match summary.outcome {
        RoundOutcome::Idle => format!("{}: nothing to tier", summary.table),
        RoundOutcome::Gone => format!("{}: dropped meanwhile", summary.table),
        RoundOutcome::Committed { snapshot } => format!(
            "{}: snapshot {snapshot}: {} rows in {} files, {}",
            summary.table,
            count(summary.rows),
            count(summary.files),
            seconds(summary)
        ),
    }
}

/// Time of a round, as people say it.
pub(super) fn seconds(summary: &RoundSummary) -> String {
    let tenths = (summary.plan_ms + summary.write_ms + summary.commit_ms + 50) / 100;
    format!("{}.{} s", tenths / 10, tenths % 10)
}

/// The gravest fault decides the exit code; the others are in the log.
fn verdict(report: OnceReport) -> Result<()> {
    let failed = report.faults.len() as u64;
    match gravest(report.faults) {
        None => Ok(()),
        Some((table, error)) => Err(error.context(format!(
            "{failed} of {} tables could not be tiered, `{table}` among them",
            report.rounds.saturating_add(failed)
        ))),
    }
}

/// The gravest of some faults (README, exit codes).
pub(super) fn gravest<T>(faults: Vec<(T, Error)>) -> Option<(T, Error)> {
    faults.into_iter().min_by_key(|(_, error)| rank(error.kind()))
}

const fn rank(kind: Kind) -> u8 {
    match kind {
        Kind::Internal => 0,
        Kind::Data => 1,
        Kind::Invalid => 2,
        Kind::Unsupported => 3,
        Kind::Unavailable => 4,
        Kind::Stale => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::TablePath;

    #[test]
    fn the_gravest_fault_decides_and_no_fault_is_fine() {
        let table = || TablePath::new("demo", "t");
        assert!(verdict(OnceReport { rounds: 3, faults: vec![] }).is_ok());
        let faults = vec![(table(), Error::stale("s")), (table(), Error::data("d")), (table(), Error::unsupported("u"))];
        let error = verdict(OnceReport { rounds: 1, faults }).unwrap_err();
        assert_eq!(error.kind(), Kind::Data);
        assert!(error.chain().contains("3 of 4 tables"), "{}", error.chain());
    }
}
