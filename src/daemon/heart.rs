//! The heartbeat: one task that alone talks to the queue, and never waits for tables, stores or logs.
//!
//! One call carries renewals, results and the wish for another table (F1.3). Renewals keep to their own time, whatever
//! the rounds do; results are kept until a call has delivered them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use super::board::{Board, Phase};
use super::{Report, Timers};
use crate::error::{Error, Result};
use crate::model::{TableId, TablePath};
use crate::runtime::{Backoff, BackoffOptions, Moment, Runtime};
use crate::source::{Assignment, Assignments, Finished, Heartbeat, HeartbeatFault, HeartbeatReply, Held, Lease};
use crate::telemetry;

/// A table in our hands.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub(super) assignment: Assignment,
    pub(super) lease: Lease,
}

enum Order {
    /// Ask for a table.
    Claim(oneshot::Sender<Result<Option<Claim>>>),
    /// Give a table back; answered once a call has delivered it.
    Report(Held, Report, oneshot::Sender<Result<()>>),
}

/// The way to the heartbeat task. Dropped, it stops the task: leases then run out.
#[derive(Debug)]
pub(super) struct Heart {
    /// Without a bound of its own: at most one claim, and a report per table in hand.
    orders: mpsc::UnboundedSender<Order>,
    _task: AbortOnDropHandle<()>,
}

impl Heart {
    pub(super) fn start(queue: Arc<dyn Assignments>, timers: Timers, board: Board, runtime: Runtime) -> Self {
        let (orders, inbox) = mpsc::unbounded_channel();
        let beat = Beat { queue, timers, board, runtime, held: BTreeMap::new(), reports: Vec::new(), claims: Vec::new(), inbox };
        Self { orders, _task: AbortOnDropHandle::new(tokio::spawn(beat.run())) }
    }

    /// Asks for a table; `None` when the queue has none. Tries again while the coordinator can't be reached. The order is
    /// given now, in the same call as what was ordered before; await the answer to its end: a table that nobody receives waits for
    /// its lease to end.
    pub(super) fn claim(&self) -> impl Future<Output = Result<Option<Claim>>> + Send + use<> {
        answer(self.order(Order::Claim))
    }

    /// Gives a table back: the order is given now, the answer comes once a call has delivered it.
    pub(super) fn report(&self, held: Held, report: Report) -> impl Future<Output = Result<()>> + Send + use<> {
        answer(self.order(move |reply| Order::Report(held, report, reply)))
    }

    fn order<T>(&self, order: impl FnOnce(oneshot::Sender<Result<T>>) -> Order) -> oneshot::Receiver<Result<T>> {
        let (reply, answer) = oneshot::channel();
        // Where the task has ended, the answer says so.
        drop(self.orders.send(order(reply)));
        answer
    }
}

async fn answer<T>(answer: oneshot::Receiver<Result<T>>) -> Result<T> {
    answer.await.map_err(|source| Error::internal("the heartbeat task has ended").with_source(source))?
}

struct Mine {
    held: Held,
    path: TablePath,
    lease: Lease,
}

struct Beat {
    queue: Arc<dyn Assignments>,
    timers: Timers,
    board: Board,
    runtime: Runtime,
    held: BTreeMap<TableId, Mine>,
    reports: Vec<(Held, Report, oneshot::Sender<Result<()>>)>,
    claims: Vec<oneshot::Sender<Result<Option<Claim>>>>,
    inbox: mpsc::UnboundedReceiver<Order>,
}

impl Beat {
    async fn run(mut self) {
        loop {
            if self.held.is_empty() {
                let Some(order) = self.inbox.recv().await else { return };
                self.take(order);
            } else {
                let due = self.runtime.clock.sleep(self.timers.renew);
                tokio::select! {
                    order = self.inbox.recv() => match order {
                        Some(order) => self.take(order),
                        None => return,
                    },
                    () = due => {}
                }
            }
            while let Ok(order) = self.inbox.try_recv() {
                self.take(order);
            }
            self.beat_until_answered().await;
        }
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Claim(answer) => self.claims.push(answer),
            Order::Report(held, report, answer) => {
                if self.held.get(&held.table).is_some_and(|mine| mine.held == held) {
                    self.held.remove(&held.table);
                }
                self.reports.push((held, report, answer));
            }
        }
    }

    /// Sends the state of things until the coordinator answers. Gives up waiting orders (not leases, which run out by
    /// themselves) after `unavailable_max`, and at the first failure when the process is to end.
    async fn beat_until_answered(&mut self) {
        let began = self.runtime.clock.moment();
        let mut pauses = Backoff::new(
            BackoffOptions { first: self.timers.retry_first, max: self.timers.retry_max, attempts_max: usize::MAX },
            &self.runtime.rng,
        );
        loop {
            let sent = self.runtime.clock.moment();
            let heartbeat = self.heartbeat();
            // A call without an answer may not hold up the next renewal.
            let answer = self.runtime.clock.timeout(self.timers.renew, self.queue.heartbeat(heartbeat)).await;
            let error = match answer {
                Some(Ok(reply)) => {
                    self.board.set_service(|service| {
                        (service.heartbeat_ms, service.heartbeat_fault) = (Some(self.runtime.clock.now_ms()), None);
                        if service.phase == Phase::Starting {
                            service.phase = Phase::Running;
                        }
                    });
                    self.adopt(reply, sent);
                    return;
                }
                Some(Err(error)) => error,
                None => Error::unavailable(format!("no answer to a heartbeat for `{}` s", self.timers.renew.as_secs())),
            };
            self.board.set_service(|service| service.heartbeat_fault = Some(error.chain()));
            self.drop_outdated();
            let pause = pauses.next_pause().unwrap_or(self.timers.retry_max);
            telemetry::HeartbeatFailed { error: &error, pause }.emit();
            if began.elapsed() >= self.timers.unavailable_max || self.runtime.shutdown.is_cancelled() {
                self.refuse_orders(&error);
                return;
            }
            tokio::select! {
                () = self.runtime.clock.sleep(pause) => {}
                () = self.runtime.shutdown.cancelled() => {}
            }
            while let Ok(order) = self.inbox.try_recv() {
                self.take(order);
            }
        }
    }

    fn heartbeat(&self) -> Heartbeat {
        let mut heartbeat = Heartbeat {
            tiering: self.held.values().map(|mine| mine.held).collect(),
            request_table: !self.claims.is_empty(),
            ..Heartbeat::default()
        };
        for (held, report, _) in &self.reports {
            match report {
                Report::Finished => heartbeat.finished.push(Finished { held: *held, forced: false }),
                Report::ForceFinished => heartbeat.finished.push(Finished { held: *held, forced: true }),
                Report::Failed => heartbeat.failed.push(*held),
            }
        }
        heartbeat
    }

    fn adopt(&mut self, reply: HeartbeatReply, sent: Moment) {
        for (table, fault) in &reply.tiering {
            match fault {
                None => {
                    if let Some(mine) = self.held.get(table) {
                        mine.lease.renewed(sent);
                    }
                }
                Some(fault) => self.lose(*table, &words(fault)),
            }
        }
        for (_, _, answer) in self.reports.drain(..) {
            // A per-table error here proves nothing and changes nothing: the round has ended anyway.
            drop(answer.send(Ok(())));
        }
        self.drop_outdated();
        let fresh = reply.assigned.and_then(|assignment| self.assign(assignment, sent));
        let mut fresh = Some(fresh);
        for claim in self.claims.drain(..) {
            drop(claim.send(Ok(fresh.take().flatten())));
        }
    }

    /// The same assignment of a table that we hold is none (F1.3); another one makes ours void.
    fn assign(&mut self, assignment: Assignment, sent: Moment) -> Option<Claim> {
        let held = assignment.held;
        if self.held.get(&held.table).is_some_and(|mine| mine.held == held) {
            return None;
        }
        self.lose(held.table, "the coordinator has assigned it anew");
        let lost = self.runtime.shutdown.child_token();
        let lease = Lease::new(self.runtime.clock.clone(), sent, self.timers.lease, lost);
        self.held.insert(held.table, Mine { held, path: assignment.path.clone(), lease: lease.clone() });
        Some(Claim { assignment, lease })
    }

    fn drop_outdated(&mut self) {
        let outdated: Vec<TableId> =
            self.held.values().filter(|mine| mine.lease.left().is_zero()).map(|mine| mine.held.table).collect();
        for table in outdated {
            self.lose(table, "not renewed in time");
        }
    }

    fn lose(&mut self, table: TableId, reason: &str) {
        if let Some(mine) = self.held.remove(&table) {
            telemetry::LeaseLost { table: &mine.path, reason }.emit();
            mine.lease.lost().cancel();
        }
    }

    fn refuse_orders(&mut self, error: &Error) {
        let refusal =
            || Error::unavailable("the coordinator can't be reached").with_source(Error::new(error.kind(), error.chain()));
        for claim in self.claims.drain(..) {
            drop(claim.send(Err(refusal())));
        }
        for (_, _, answer) in self.reports.drain(..) {
            drop(answer.send(Err(refusal())));
        }
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        self.board.set_service(|service| service.heart_alive = false);
    }
}

fn words(fault: &HeartbeatFault) -> String {
    format!("the coordinator says {}: {}", fault.code, fault.message)
}
