//! `run`: several tables at once, until somebody asks it to stop.
//!
//! Owns the tables in hand: which round runs, pauses or waits for a slot, what the coordinator is told, and how it all ends. One
//! task decides; rounds, pauses and calls to the heartbeat are tasks of their own that end in an [`Event`]. What follows from
//! an event is decided by `outcome`, `roster` and `asking`; the `board` is told.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::asking::Asking;
use super::board::{Board, Phase, TableState, TableStatus};
use super::heart::{Claim, Heart};
use super::outcome::{self, Ended, Next, Report};
use super::roster::{Roster, Verdict, Why};
use super::{Options, Service, Timers};
use crate::error::{Error, Kind, Result};
use crate::model::{RoundOutcome, RoundSummary, TableId, TableInfo, TablePath};
use crate::round::{self, Job, Limits, RoundContext};
use crate::runtime::{Backoff, BackoffOptions, Moment, Runtime};
use crate::telemetry;

/// After the grace: rounds have this long to notice that they are aborted ...
const ABORT_MAX: Duration = Duration::from_secs(2);
/// ... and the coordinator this long, from the end of the grace, to hear which tables come back.
const HAND_BACK_MAX: Duration = Duration::from_secs(5);

/// A round that is still not done so long after its deadline, and has read nothing for so long, never will be.
const STUCK_MAX: Duration = Duration::from_secs(60 * 60);
/// One whose lease is lost has so long to notice.
const LOST_MAX: Duration = Duration::from_secs(30);
const BUG: &str = "this is a bug: please report it with the log";

/// Claims and tiers tables, up to `options.parallel` at once, until `stop` is cancelled; tells `on_round` of each round that ends
/// well.
///
/// Asked to stop it claims no more, ends the reading of its rounds, lets them commit for `options.grace`, then cancels the
/// shutdown token of its runtime, and hands back what is left. A table is reported in any case, unless the coordinator can't be
/// reached; then its lease runs out.
///
/// # Errors
/// `Internal` when the heartbeat task has ended. Everything else is a table's trouble or goes by.
pub async fn run(
    service: &Service,
    stop: CancellationToken,
    board: &Board,
    on_round: &mut (dyn FnMut(&RoundSummary) + Send),
) -> Result<()> {
    let runtime = service.rounds.runtime.clone();
    let options = service.options.clone();
    let heart = Heart::start(Arc::clone(&service.queue), options.timers, board.clone(), runtime.clone());
    let supervisor = Supervisor {
        roster: Roster::new(options.tables.clone(), options.poll),
        asking: Asking::new(options.poll),
        hands: BTreeMap::new(),
        claiming: false,
        reporting: 0,
        events: JoinSet::new(),
        ending: None,
        rounds: service.rounds.clone(),
        board: board.clone(),
        options,
        runtime,
        heart,
        on_round,
    };
    supervisor.run(stop).await
}

enum Event {
    /// What a request for a table brought.
    Claimed(Result<Option<Claim>>),
    /// A round ended. The freshness, as far as it is known.
    Ended(TableId, Result<RoundSummary>, Option<Duration>),
    /// A pause ended, or the lease was lost meanwhile.
    Paused(TableId),
    /// Whether the coordinator heard it.
    Reported(TableId, TablePath, Report, Result<()>),
    /// What Fluss says about a table that has not come for long.
    AskedAfter(TableId, Result<TableInfo>),
}

/// A table in hand.
struct Hand {
    claim: Claim,
    step: Step,
    /// First failure of this assignment.
    failing_since: Option<Moment>,
    pauses: Backoff,
}

enum Step {
    Running {
        doubtful: bool,
        cut: CancellationToken,
        task: AbortHandle,
    },
    Pausing(Then),
    /// Waits for a slot.
    Ready,
}

#[derive(Clone, Copy)]
enum Then {
    Retry,
    Report(Report),
}

/// How far the end has come.
#[derive(Clone, Copy)]
enum Ending {
    /// Rounds commit what they have read, until then.
    Grace(Moment),
    /// They are aborted; those that don't notice until then are dropped.
    Abort(Moment),
    /// The coordinator is told, until then.
    HandBack(Moment),
}

struct Supervisor<'a> {
    roster: Roster,
    asking: Asking,
    hands: BTreeMap<TableId, Hand>,
    /// A request for a table is on its way: it has a slot.
    claiming: bool,
    /// Reports on their way.
    reporting: usize,
    events: JoinSet<Event>,
    ending: Option<Ending>,
    rounds: RoundContext,
    board: Board,
    options: Options,
    runtime: Runtime,
    heart: Heart,
    on_round: &'a mut (dyn FnMut(&RoundSummary) + Send),
}

impl Supervisor<'_> {
    async fn run(mut self, stop: CancellationToken) -> Result<()> {
        loop {
            let now = self.runtime.clock.moment();
            if self.ending.is_none() {
                self.asking.look(now, self.roster.due());
                self.ask();
                self.start_ready(now);
                self.ask_after(now);
            } else if self.hands.is_empty() && self.reporting == 0 {
                if !self.claiming {
                    return Ok(());
                }
                self.stop_asking(now);
            }
            let wake = self.wake();
            let sleep = async {
                match wake {
                    Some(wake) => self.runtime.clock.sleep(wake.saturating_duration_since(now)).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                Some(event) = self.events.join_next() => match event {
                    Ok(event) => self.handle(event)?,
                    // Only what we aborted, or tasks that do nothing but wait.
                    Err(ended) if ended.is_cancelled() => {}
                    Err(ended) => return Err(Error::internal("a task of the supervisor panicked").with_source(ended)),
                },
                () = stop.cancelled(), if self.ending.is_none() => self.begin_to_end(),
                () = sleep => if self.end_further() { return Ok(()) },
            }
        }
    }

    /// The next moment at which something is to be done without an event.
    fn wake(&self) -> Option<Moment> {
        match self.ending {
            Some(Ending::Grace(until) | Ending::Abort(until) | Ending::HandBack(until)) => Some(until),
            None => {
                let ask = if self.has_slot() { self.asking.next(self.roster.due()) } else { None };
                let give_up = self.hands.values().filter(|hand| matches!(hand.step, Step::Ready));
                let give_up = give_up.filter_map(|hand| Some(hand.failing_since? + self.options.timers.unavailable_max)).min();
                [ask, give_up, self.roster.next_missed()].into_iter().flatten().min()
            }
        }
    }

    fn running(&self) -> impl Iterator<Item = bool> {
        self.hands.values().filter_map(|hand| match hand.step {
            Step::Running { doubtful, .. } => Some(doubtful),
            Step::Pausing(_) | Step::Ready => None,
        })
    }

    fn has_slot(&self) -> bool {
        self.running().count() + usize::from(self.claiming) < self.options.parallel
    }

    /// Rounds that will probably find something out of reach again don't take all slots.
    fn has_slot_for_doubtful(&self) -> bool {
        self.has_slot() && self.running().filter(|doubtful| *doubtful).count() < (self.options.parallel / 2).max(1)
    }

    fn ask(&mut self) {
        if self.asking.is_sweeping() && self.has_slot() && !self.claiming {
            let claim = self.heart.claim();
            self.claiming = true;
            self.events.spawn(async move { Event::Claimed(claim.await) });
        }
    }

    fn handle(&mut self, event: Event) -> Result<()> {
        let now = self.runtime.clock.moment();
        match event {
            Event::Claimed(claim) => {
                self.claiming = false;
                match claim {
                    Ok(Some(claim)) => self.take(claim, now),
                    Ok(None) => self.asking.got_none(now),
                    Err(error) if error.kind() == Kind::Internal => return Err(error),
                    // The heartbeat has said why.
                    Err(_) => self.asking.got_none(now),
                }
            }
            Event::Ended(id, ended, freshness) => {
                if let Some(freshness) = freshness {
                    self.roster.set_freshness(id, freshness);
                }
                self.ended(id, ended, now);
            }
            Event::Paused(id) => self.paused(id),
            Event::Reported(id, path, report, delivered) => {
                self.reporting = self.reporting.saturating_sub(1);
                match delivered {
                    Ok(()) if self.hands.contains_key(&id) => {}
                    Ok(()) => self.reported(id, report, now),
                    Err(error) if error.kind() == Kind::Internal => return Err(error),
                    Err(error) => {
                        telemetry::ReportLost { table: &path, error: &error }.emit();
                        self.roster.lost(id, now);
                        if !self.hands.contains_key(&id) {
                            // Its lease runs out, and whoever asks first gets it.
                            self.post(id, &path, TableStatus::left_to_others);
                        }
                    }
                }
            }
            Event::AskedAfter(id, found) => self.asked_after(id, found, now),
        }
        Ok(())
    }

    /// A table was handed out.
    fn take(&mut self, claim: Claim, now: Moment) {
        let (held, path) = (claim.assignment.held, claim.assignment.path.clone());
        let id = held.table;
        if self.ending.is_some() {
            self.report(&claim, Report::ForceFinished);
            return;
        }
        telemetry::TableClaimed { table: &path, epoch: held.tiering_epoch }.emit();
        let verdict = if self.hands.contains_key(&id) {
            Verdict::Return(Report::ForceFinished, Why::StillBusy)
        } else {
            self.roster.claimed(id, &path, now)
        };
        match verdict {
            Verdict::Return(report, why) => {
                self.asking.got_in_vain(id, now);
                let (reason, state) = match why {
                    Why::Excluded => ("the table filter leaves it to others", Some(TableState::Excluded)),
                    Why::Held => ("it is held", None),
                    Why::JustLooked => ("it had nothing to tier a moment ago", None),
                    Why::StillBusy => ("the round of a former assignment has not ended yet", None),
                };
                telemetry::TableReturned { table: &path, reason }.emit();
                if let Some(state) = state {
                    self.post(id, &path, |status, now_ms| status.enter(state, now_ms));
                }
                self.report(&claim, report);
            }
            Verdict::Run => {
                self.asking.got();
                let timers = self.options.timers;
                let pauses = BackoffOptions { first: timers.retry_first, max: timers.retry_max, attempts_max: usize::MAX };
                let pauses = Backoff::new(pauses, &self.runtime.rng);
                let doubtful = self.roster.is_doubtful(id);
                self.hands.insert(id, Hand { claim, step: Step::Ready, failing_since: doubtful.then_some(now), pauses });
                if doubtful {
                    self.post(id, &path, |status, now_ms| status.enter(TableState::BackingOff, now_ms));
                } else {
                    self.start(id, now);
                }
            }
        }
    }

    /// Gives slots to tables that wait for one, longest failing first, once the queue has nothing more.
    fn start_ready(&mut self, now: Moment) {
        let mut ready: Vec<_> = self
            .hands
            .iter()
            .filter(|(_, hand)| matches!(hand.step, Step::Ready))
            .map(|(id, hand)| (hand.failing_since, *id))
            .collect();
        ready.sort_unstable();
        for (since, id) in ready {
            let lost = self.hands.get(&id).is_some_and(|hand| hand.claim.lease.lost().is_cancelled());
            if lost {
                self.let_go(id);
            } else if since.is_some_and(|since| now.saturating_duration_since(since) >= self.options.timers.unavailable_max) {
                self.give_back(id, Report::Failed);
            } else if !self.asking.is_sweeping() && self.has_slot_for_doubtful() {
                self.start(id, now);
            }
        }
    }

    fn start(&mut self, id: TableId, now: Moment) {
        let doubtful = self.roster.is_doubtful(id);
        let freshness = self.roster.freshness(id);
        let Some(hand) = self.hands.get_mut(&id) else { return };
        let Claim { assignment, lease } = hand.claim.clone();
        let cut = CancellationToken::new();
        let job = Job {
            path: assignment.path.clone(),
            table: id,
            epoch: assignment.held.tiering_epoch,
            lease: Some(lease),
            limits: Limits { cut: cut.clone(), ..Limits::default() },
        };
        let context = self.rounds.clone();
        let round = AbortOnDropHandle::new(tokio::spawn(Box::pin(work(context, job, freshness, now))));
        let task = self.events.spawn(async move {
            let (ended, freshness) = round.await.unwrap_or_else(|ended| (Err(panicked(ended)), None));
            Event::Ended(id, ended, freshness)
        });
        hand.step = Step::Running { doubtful, cut, task };
        self.post(id, &assignment.path, |status, now_ms| {
            status.next_look_ms = None;
            status.enter(TableState::Tiering, now_ms);
        });
    }

    fn ended(&mut self, id: TableId, ended: Result<RoundSummary>, now: Moment) {
        let Some(hand) = self.hands.get_mut(&id) else { return };
        let path = hand.claim.assignment.path.clone();
        let aborting = self.runtime.shutdown.is_cancelled();
        let fault = ended.as_ref().err().map(Error::kind);
        let failing_for = now.saturating_duration_since(*hand.failing_since.get_or_insert(now));
        let lease_lost = hand.claim.lease.lost().is_cancelled() && !aborting;
        let pause = hand.pauses.next_pause().unwrap_or(self.options.timers.retry_max);
        let (internal_in_row, stale_in_row) = fault.map_or((0, 0), |kind| self.roster.in_row(id, kind));
        let next = outcome::next(Ended {
            fault,
            cut: ended.as_ref().is_ok_and(|summary| summary.cut),
            lease_lost,
            stopping: self.ending.is_some(),
            failing_for,
            internal_in_row,
        });
        match &ended {
            Ok(summary) => {
                telemetry::RoundFinished(summary).emit();
                (self.on_round)(summary);
                if summary.outcome == RoundOutcome::Gone {
                    self.roster.forget(id);
                    self.board.remove(id);
                } else {
                    self.roster.ended_well(id, summary.outcome == RoundOutcome::Idle && !summary.cut, now);
                    let freshness = self.roster.freshness(id);
                    self.post(id, &path, |status, now_ms| status.ended_well(summary, freshness, now_ms));
                }
            }
            // The heartbeat has said that the lease is lost; being aborted is no failure.
            Err(_) if lease_lost || aborting => {}
            Err(error) => {
                let known = self.board_reason(id);
                let newly_held = self.roster.failed(id, error.kind(), next, now);
                if next != Next::Hold {
                    telemetry::RoundFailed { table: &path, error }.emit();
                } else {
                    telemetry::RoundFailed { table: &path, error }.emit_quietly();
                    if newly_held || known.as_deref() != Some(error.chain().as_str()) {
                        telemetry::TableHeld { table: &path, error }.emit();
                    }
                }
                let state = match next {
                    Next::Hold if error.kind() == Kind::Unsupported => TableState::Unsupported,
                    Next::Hold => TableState::Held,
                    // A stale one pauses before it is given back.
                    Next::Retry | Next::Report(Report::ForceFinished) => TableState::BackingOff,
                    Next::Report(_) | Next::LetGo => TableState::Waiting,
                };
                self.post(id, &path, |status, now_ms| status.failed(error, state, now_ms));
            }
        }
        match next {
            Next::LetGo => self.let_go(id),
            Next::Hold => self.give_back(id, Report::Finished),
            Next::Retry => self.pause(id, pause, Then::Retry),
            Next::Report(report) if fault == Some(Kind::Stale) && self.ending.is_none() => {
                let Timers { stale_pause, retry_max, .. } = self.options.timers;
                self.pause(id, outcome::stale_pause(stale_pause, retry_max, stale_in_row), Then::Report(report));
            }
            Next::Report(report) => self.give_back(id, report),
        }
    }

    fn pause(&mut self, id: TableId, pause: Duration, then: Then) {
        let Some(hand) = self.hands.get_mut(&id) else { return };
        hand.step = Step::Pausing(then);
        let (clock, lost) = (self.runtime.clock.clone(), hand.claim.lease.lost().clone());
        let next_ms = clock.now_ms().saturating_add(i64::try_from(pause.as_millis()).unwrap_or(i64::MAX));
        self.board.change_table(id, |status| status.next_look_ms = Some(next_ms));
        self.events.spawn(async move {
            tokio::select! {
                () = clock.sleep(pause) => {}
                () = lost.cancelled() => {}
            }
            Event::Paused(id)
        });
    }

    fn paused(&mut self, id: TableId) {
        let Some(hand) = self.hands.get_mut(&id) else { return };
        let Step::Pausing(then) = hand.step else { return };
        match then {
            _ if hand.claim.lease.lost().is_cancelled() => self.let_go(id),
            Then::Retry => hand.step = Step::Ready,
            Then::Report(report) => self.give_back(id, report),
        }
    }

    /// Somebody else has it: nothing is said.
    fn let_go(&mut self, id: TableId) {
        let Some(hand) = self.hands.remove(&id) else { return };
        self.roster.lost(id, self.runtime.clock.moment());
        self.post(id, &hand.claim.assignment.path, TableStatus::left_to_others);
    }

    /// Looks for tables that have not come for long: tables are dropped, and lakes turned off, without a word to us.
    fn ask_after(&mut self, now: Moment) {
        for (id, path) in self.roster.missed(now) {
            let scan = Arc::clone(&self.rounds.scan);
            self.events.spawn(async move { Event::AskedAfter(id, scan.table_info(&path).await) });
        }
    }

    fn asked_after(&mut self, id: TableId, found: Result<TableInfo>, now: Moment) {
        if self.hands.contains_key(&id) {
            return;
        }
        let gone = match found {
            Ok(table) => table.id != id || !table.is_lake_enabled(),
            Err(error) => error.code() == Some(round::TABLE_NOT_EXIST),
        };
        if gone {
            self.roster.forget(id);
            self.board.remove(id);
        } else if self.roster.asked_after(id, now) && self.asking.has_seen_all() {
            let now_ms = self.runtime.clock.now_ms();
            self.board.change_table(id, |status| status.left_to_others(now_ms));
        }
    }

    fn give_back(&mut self, id: TableId, report: Report) {
        let Some(hand) = self.hands.remove(&id) else { return };
        self.report(&hand.claim, report);
    }

    /// Tells the coordinator, and asks it for the next table in the same call.
    fn report(&mut self, claim: &Claim, report: Report) {
        let (held, path) = (claim.assignment.held, claim.assignment.path.clone());
        let delivered = self.heart.report(held, report);
        self.reporting += 1;
        self.events.spawn(async move { Event::Reported(held.table, path, report, delivered.await) });
        if self.ending.is_none() {
            self.asking.finished();
            self.ask();
        }
    }

    /// The coordinator has heard it; the table is not in hand again yet.
    fn reported(&mut self, id: TableId, report: Report, now: Moment) {
        let due = self.roster.reported(id, report, now);
        let next_look = self.roster.next_look(id).max(due);
        let now_ms = self.runtime.clock.now_ms();
        self.board.change_table(id, |status| {
            if status.state.in_hand() {
                status.enter(TableState::Waiting, now_ms);
            }
            let left_ms = |at: Moment| i64::try_from(at.saturating_duration_since(now).as_millis()).unwrap_or(i64::MAX);
            status.next_look_ms = next_look.map(|at| now_ms.saturating_add(left_ms(at)));
        });
    }

    fn begin_to_end(&mut self) {
        telemetry::Stopping { grace: self.options.grace, tables: self.hands.len() }.emit();
        self.board.set_service(|service| service.phase = Phase::Stopping);
        self.ending = Some(Ending::Grace(self.runtime.clock.moment() + self.options.grace));
        let mut idle = Vec::new();
        for (id, hand) in &self.hands {
            match &hand.step {
                Step::Running { cut, .. } => cut.cancel(),
                Step::Pausing(_) | Step::Ready => idle.push(*id),
            }
        }
        for id in idle {
            self.give_back(id, Report::ForceFinished);
        }
    }

    /// Nothing needs the grace any more but the answer to a request for a table: a coordinator that is away is not waited for.
    fn stop_asking(&mut self, now: Moment) {
        if let Some(Ending::Grace(_)) = self.ending {
            self.runtime.shutdown.cancel();
            self.ending = Some(Ending::HandBack(now + HAND_BACK_MAX));
        }
    }

    /// A time has run out. Returns whether it was the last.
    fn end_further(&mut self) -> bool {
        let now = self.runtime.clock.moment();
        match self.ending {
            Some(Ending::Grace(until)) if until <= now => {
                self.runtime.shutdown.cancel();
                self.ending = Some(Ending::Abort(now + ABORT_MAX));
                false
            }
            Some(Ending::Abort(until)) if until <= now => {
                for id in self.hands.keys().copied().collect::<Vec<_>>() {
                    if let Some(Hand { step: Step::Running { task, .. }, .. }) = self.hands.get(&id) {
                        task.abort();
                    }
                    self.give_back(id, Report::ForceFinished);
                }
                self.ending = Some(Ending::HandBack(now + (HAND_BACK_MAX - ABORT_MAX)));
                false
            }
            Some(Ending::HandBack(until)) => until <= now,
            _ => false,
        }
    }

    fn post(&self, id: TableId, path: &TablePath, change: impl FnOnce(&mut TableStatus, i64)) {
        let now_ms = self.runtime.clock.now_ms();
        let fresh = || TableStatus::new(path.clone(), id, TableState::Waiting, now_ms);
        self.board.set_table(id, fresh, |status| change(status, now_ms));
    }

    fn board_reason(&self, id: TableId) -> Option<String> {
        self.board.table(id)?.reason
    }
}

/// One round, with the freshness of a table that is new to us.
async fn work(
    context: RoundContext,
    mut job: Job,
    freshness: Option<Duration>,
    now: Moment,
) -> (Result<RoundSummary>, Option<Duration>) {
    let freshness = match freshness {
        Some(freshness) => Some(freshness),
        // What fails here fails in the round, too.
        None => context.scan.table_info(&job.path).await.ok().map(|table| table.lake_freshness()),
    };
    let time = outcome::round_time(freshness.unwrap_or_default());
    job.limits.deadline = Some(now + time);
    let ended = tokio::select! {
        ended = round::run(&context, &job) => ended,
        error = stuck(&context.runtime, &job, time) => Err(error),
    };
    let found = ended.as_ref().ok().and_then(|summary| summary.freshness_ms).map(Duration::from_millis);
    (ended, found.or(freshness))
}

/// Ends a round that does not end by itself, long after its `time` and what it has read last, or soon after its lease. A round may die
/// anywhere. (A bucket's state is read to its end, however long that takes: F1.5.)
async fn stuck(runtime: &Runtime, job: &Job, time: Duration) -> Error {
    let lost = async {
        match &job.lease {
            Some(lease) => lease.lost().cancelled().await,
            None => pending().await,
        }
        runtime.clock.sleep(LOST_MAX).await;
    };
    let began = runtime.clock.moment();
    let stands_still = async {
        runtime.clock.sleep(time).await;
        loop {
            let read = job.limits.progress.fetched_bytes();
            runtime.clock.sleep(STUCK_MAX).await;
            if job.limits.progress.fetched_bytes() == read {
                return;
            }
        }
    };
    tokio::select! {
        () = lost => Error::stale("the round did not end when its lease was lost"),
        () = stands_still => {
            let seconds = began.elapsed().as_secs();
            Error::internal(format!("the round did not end within `{seconds}` s, and read nothing in the last hour")).with_hint(BUG)
        }
    }
}

fn panicked(ended: tokio::task::JoinError) -> Error {
    let words = match ended.try_into_panic() {
        Ok(panic) => match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(panic) => panic.downcast_ref::<&str>().map_or("unknown", |text| text).to_owned(),
        },
        Err(ended) => ended.to_string(),
    };
    Error::internal(format!("the round panicked: `{words}`")).with_hint(BUG)
}
