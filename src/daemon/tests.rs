use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use super::board::Board;
use super::heart::Heart;
use super::{Report, Timers};
use crate::error::{Error, Kind, Result};
use crate::model::{CoordinatorEpoch, TableId, TablePath, TieringEpoch};
use crate::runtime::Runtime;
use crate::source::{Assignment, Assignments, Heartbeat, HeartbeatFault, HeartbeatReply, Held};

/// A coordinator by script: hands out `tables`, answers renewals as `answers` says (then always well), keeps what it was told.
#[derive(Default)]
struct Coordinator {
    tables: Mutex<VecDeque<i64>>,
    answers: Mutex<VecDeque<Answer>>,
    told: Mutex<Vec<Heartbeat>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Answer {
    Well,
    Fault(i32),
    Silence,
    Hang,
}

#[async_trait]
impl Assignments for Coordinator {
    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatReply> {
        let answer = if heartbeat.tiering.is_empty() { None } else { self.answers.lock().unwrap().pop_front() };
        self.told.lock().unwrap().push(heartbeat.clone());
        if answer == Some(Answer::Silence) {
            return Err(Error::unavailable("nobody there"));
        }
        if answer == Some(Answer::Hang) {
            std::future::pending::<()>().await;
        }
        let fault = match answer {
            Some(Answer::Fault(code)) => Some(HeartbeatFault { code, message: "no".into() }),
            _ => None,
        };
        let assigned = heartbeat.request_table.then(|| self.tables.lock().unwrap().pop_front()).flatten().map(|id| Assignment {
            held: Held { table: TableId(id), coordinator_epoch: CoordinatorEpoch(0), tiering_epoch: TieringEpoch(1) },
            path: TablePath::new("demo", format!("t{id}")),
        });
        Ok(HeartbeatReply {
            coordinator_epoch: CoordinatorEpoch(0),
            assigned,
            tiering: heartbeat.tiering.iter().map(|held| (held.table, fault.clone())).collect(),
            finished: heartbeat.finished.iter().map(|finished| (finished.held.table, None)).collect(),
            failed: heartbeat.failed.iter().map(|held| (held.table, None)).collect(),
        })
    }
}

fn heart(tables: &[i64], answers: &[Answer]) -> (Arc<Coordinator>, Heart, Runtime) {
    let coordinator = Arc::new(Coordinator {
        tables: Mutex::new(tables.iter().copied().collect()),
        answers: Mutex::new(answers.iter().copied().collect()),
        ..Coordinator::default()
    });
    let runtime = Runtime::simulated(1, 0, 1 << 20);
    let queue: Arc<dyn Assignments> = Arc::<Coordinator>::clone(&coordinator);
    let heart = Heart::start(queue, Timers::default(), Board::new(1, 0), runtime.clone());
    (coordinator, heart, runtime)
}

#[tokio::test(start_paused = true)]
async fn a_lease_lives_as_long_as_renewals_are_accepted() {
    let (coordinator, heart, runtime) = heart(&[7], &[Answer::Well, Answer::Silence, Answer::Hang, Answer::Well]);
    let claim = heart.claim().await.unwrap().unwrap();
    runtime.clock.sleep(Duration::from_secs(600)).await;
    claim.lease.check().unwrap();
    heart.report(claim.assignment.held, Report::Finished).await.unwrap();
    let told = coordinator.told.lock().unwrap();
    assert_eq!(told.last().unwrap().finished.len(), 1);
    assert!(told.last().unwrap().tiering.is_empty(), "a reported table is not renewed");
}

#[tokio::test(start_paused = true)]
async fn any_error_on_a_renewal_ends_the_lease_at_once() {
    for code in [7, 23, 50, -1] {
        let (_, heart, runtime) = heart(&[7], &[Answer::Well, Answer::Fault(code)]);
        let claim = heart.claim().await.unwrap().unwrap();
        let began = runtime.clock.moment();
        claim.lease.lost().cancelled().await;
        assert_eq!(began.elapsed(), Timers::default().renew * 2, "{code}");
        assert_eq!(claim.lease.check().unwrap_err().kind(), Kind::Stale);
    }
}

#[tokio::test(start_paused = true)]
async fn without_an_accepted_renewal_the_local_clock_gives_the_lease_up() {
    let (_, heart, runtime) = heart(&[7], &[Answer::Silence; 100]);
    let claim = heart.claim().await.unwrap().unwrap();
    let began = runtime.clock.moment();
    claim.lease.lost().cancelled().await;
    assert!(began.elapsed() >= Timers::default().lease);
    assert!(began.elapsed() < Duration::from_secs(120), "before the coordinator hands it to another");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_leases_and_results_are_still_delivered() {
    let (coordinator, heart, runtime) = heart(&[7], &[]);
    let claim = heart.claim().await.unwrap().unwrap();
    runtime.shutdown.cancel();
    claim.lease.lost().cancelled().await;
    heart.report(claim.assignment.held, Report::ForceFinished).await.unwrap();
    assert!(coordinator.told.lock().unwrap().last().unwrap().finished[0].forced);
    assert!(heart.claim().await.unwrap().is_none());
}
