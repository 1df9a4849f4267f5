//! `run --once`: works until the queue gives nothing new, then ends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::Service;
use super::board::Board;
use super::heart::{Claim, Heart};
use super::outcome::{self, Ended, Next, Report};
use crate::error::{Error, Kind, Result};
use crate::model::{RoundSummary, TableId, TablePath};
use crate::round::{self, Job, Limits};
use crate::runtime::{Backoff, BackoffOptions};
use crate::telemetry;

/// What `run --once` did.
#[derive(Debug, Default)]
pub struct OnceReport {
    /// Rounds that ended well.
    pub rounds: u64,
    /// Tables whose round did not, with the reason.
    pub faults: Vec<(TablePath, Error)>,
}

/// Claims and tiers tables until the queue gives none, or only tables that this call has had or does not want; tells `on_round` of each
/// round that ends well. `wait`: how long after its start it still looks for new tables when the queue has none: a lease that somebody
/// dead held at the start ends by then.
///
/// A shutdown request ends it after the table in hand has been handed back.
///
/// # Errors
/// `Unavailable` when the coordinator can't be reached for long. Faults of single tables are in the report.
pub async fn run_once(service: &Service, wait: Duration, on_round: &mut (dyn FnMut(&RoundSummary) + Send)) -> Result<OnceReport> {
    let runtime = &service.rounds.runtime;
    let board = Board::new(1, runtime.clock.now_ms());
    let heart = Heart::start(Arc::clone(&service.queue), service.options.timers, board, runtime.clone());
    let mut report = OnceReport::default();
    let mut had: BTreeSet<TableId> = BTreeSet::new();
    let mut returned: BTreeSet<TableId> = BTreeSet::new();
    let wants = |claim: &Claim| service.options.tables.wants(&claim.assignment.path);
    let started = runtime.clock.moment();
    while !runtime.shutdown.is_cancelled() {
        let claim = heart.claim().await?;
        let new = match claim {
            Some(claim) if !wants(&claim) || had.contains(&claim.assignment.held.table) => {
                let reason = if wants(&claim) { "this run has had it" } else { "the table filter leaves it to others" };
                telemetry::TableReturned { table: &claim.assignment.path, reason }.emit();
                heart.report(claim.assignment.held, Report::ForceFinished).await?;
                // The queue is first in, first out: seen twice means that there is nothing else in it.
                if returned.insert(claim.assignment.held.table) {
                    continue;
                }
                None
            }
            other => other,
        };
        let Some(claim) = new else {
            if started.elapsed() >= wait {
                break;
            }
            returned.clear();
            tokio::select! {
                () = runtime.clock.sleep(service.options.poll.min(wait)) => {}
                () = runtime.shutdown.cancelled() => {}
            }
            continue;
        };
        had.insert(claim.assignment.held.table);
        match work(service, &heart, &claim).await? {
            Ok(Some(summary)) => {
                report.rounds += 1;
                on_round(&summary);
            }
            Ok(None) => {}
            Err(error) => report.faults.push((claim.assignment.path, error)),
        }
        returned.clear();
    }
    Ok(report)
}

/// Runs rounds of one table until the rules say that it leaves our hands. The outer error is the service's, the inner one
/// the table's; no summary when somebody else has the table now and does the rest.
async fn work(service: &Service, heart: &Heart, claim: &Claim) -> Result<Result<Option<RoundSummary>>> {
    let runtime = &service.rounds.runtime;
    let (held, path) = (claim.assignment.held, &claim.assignment.path);
    telemetry::TableClaimed { table: path, epoch: held.tiering_epoch }.emit();
    let job = Job {
        path: path.clone(),
        table: held.table,
        epoch: held.tiering_epoch,
        lease: Some(claim.lease.clone()),
        limits: Limits::default(),
    };
    let options = service.options.timers;
    let pauses = BackoffOptions { first: options.retry_first, max: options.retry_max, attempts_max: usize::MAX };
    let mut pauses = Backoff::new(pauses, &runtime.rng);
    let mut failing_since = None;
    loop {
        let ended = round::run(&service.rounds, &job).await;
        let now = runtime.clock.moment();
        let stopping = runtime.shutdown.is_cancelled();
        let next = outcome::next(Ended {
            fault: ended.as_ref().err().map(Error::kind),
            cut: false,
            lease_lost: claim.lease.lost().is_cancelled() && !stopping,
            stopping,
            failing_for: now.saturating_duration_since(*failing_since.get_or_insert(now)),
            internal_in_row: 1,
        });
        match (&ended, next) {
            (Ok(summary), _) => telemetry::RoundFinished(summary).emit(),
            (Err(error), Next::Hold) => {
                telemetry::RoundFailed { table: path, error }.emit_quietly();
                telemetry::TableHeld { table: path, error }.emit();
            }
            (Err(error), Next::Report(_) | Next::Retry) if !stopping => telemetry::RoundFailed { table: path, error }.emit(),
            // The heartbeat has said that the lease is lost; a stop is no failure.
            (Err(_), _) => {}
        }
        match next {
            Next::Retry => {
                let pause = pauses.next_pause().unwrap_or(options.retry_max);
                tokio::select! {
                    () = runtime.clock.sleep(pause) => {}
                    () = claim.lease.lost().cancelled() => {}
                }
                if !claim.lease.lost().is_cancelled() {
                    continue;
                }
                if !runtime.shutdown.is_cancelled() {
                    return Ok(Ok(None));
                }
                heart.report(held, Report::ForceFinished).await?;
            }
            Next::Hold => heart.report(held, Report::Finished).await?,
            Next::Report(report) => {
                if ended.as_ref().is_err_and(|error| error.kind() == Kind::Stale) && !stopping {
                    runtime.clock.sleep(options.stale_pause).await;
                }
                heart.report(held, report).await?;
            }
            Next::LetGo => return Ok(Ok(ended.ok())),
        }
        return Ok(ended.map(Some));
    }
}
