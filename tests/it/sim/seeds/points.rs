//! One thing that happens right before each call of a round, to lake or coordinator, one call after the other: what `plan` leaves to
//! chance is looked at here everywhere.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use lakeward::error::{Kind, Result};
use lakeward::model::{RoundSummary, TieringEpoch};
use lakeward::round::{self, Job, Limits};
use lakeward::source::{LEASE_TRUSTED, Lease, LedgerRecord};
use tokio_util::sync::CancellationToken;

use super::Off;
use super::actors::{self, Process};
use super::oracle;
use super::plan::Plan;
use super::stage::Stage;

type Act = fn(Stage) -> Pin<Box<dyn Future<Output = ()> + Send>>;

macro_rules! act {
    (|$stage:ident| $body:expr) => {
        |$stage: Stage| Box::pin(async move { $body }) as Pin<Box<dyn Future<Output = ()> + Send>>
    };
}

/// What happens, by name; `None` = the process dies, its call done or not.
#[rustfmt::skip]
const ACTS: &[(&str, Option<Act>)] = &[
    ("it dies", None),
    ("another service does a round", Some(act!(|stage| drop(one_round(&stage, "rival").await)))),
    ("two others do, and all that may expire does", Some(act!(|stage| {
        let rng = stage.rng("chance");
        for who in ["second", "third"] {
            stage.append(&rng).await;
            drop(one_round(&stage, who).await);
            actors::foreign(stage.clone(), rng.clone()).await;
        }
        actors::expire(stage.clone(), rng).await;
    }))),
    ("the table is dropped and made again", Some(act!(|stage| actors::recreate(stage.clone(), stage.rng("chance")).await))),
    ("the bucket count changes", Some(act!(|stage| stage.rescale(&stage.rng("chance")).await))),
    ("a column is added", Some(act!(|stage| stage.add_column()))),
    ("a user commits", Some(act!(|stage| actors::foreign(stage.clone(), stage.rng("chance")).await))),
    ("files are merged", Some(act!(|stage| actors::compact(stage.clone(), stage.rng("chance")).await))),
    ("the lake is rolled back", Some(act!(|stage| actors::roll_back(stage.clone(), stage.rng("chance")).await))),
    ("the Java job commits", Some(act!(|stage| actors::java_round(stage.clone(), stage.rng("chance")).await))),
    ("the coordinator starts again", Some(act!(|stage| {
        stage.cluster.restart_coordinator(false);
        stage.cluster.start_slowly(Duration::from_secs(1));
    }))),
    ("an older record comes late", Some(act!(|stage| older_record(&stage).await))),
    ("the lease runs out, and another has the table", Some(act!(|stage| {
        stage.sleep(LEASE_TRUSTED).await;
        stage.append(&stage.rng("chance")).await;
        drop(one_round(&stage, "next holder").await);
    }))),
];

/// What everybody does meanwhile is over when the call goes on.
const MEANWHILE: Duration = Duration::from_secs(300);

async fn one_round(stage: &Stage, who: &str) -> Result<RoundSummary> {
    of(stage, &Process::new(stage, who, None)).await
}

async fn of(stage: &Stage, process: &Process) -> Result<RoundSummary> {
    let clock = stage.runtime.clock.clone();
    let lease = Lease::new(clock.clone(), clock.moment(), LEASE_TRUSTED, CancellationToken::new());
    let table = stage.table().await.id;
    let job = Job { path: stage.path.clone(), table, epoch: TieringEpoch(1), lease: Some(lease), limits: Limits::default() };
    round::run(&process.rounds(), &job).await
}

/// Somebody repeats the oldest record that the coordinator has.
async fn older_record(stage: &Stage) {
    let table = stage.table().await.id;
    let Some(oldest) = stage.cluster.recorded(table).into_iter().next() else { return };
    let record = LedgerRecord {
        table,
        path: stage.path.clone(),
        snapshot: oldest.snapshot,
        offsets_path: oldest.offsets_path,
        offsets: lakeward::model::LakeOffsets::default(),
        max_timestamps: std::collections::BTreeMap::new(),
        earliest_to_keep: -1,
    };
    stage.cluster.record_raw(&record, Some(-1));
}

/// A table that was tiered twice, rows for a third round, and `act` right before call `at` of it. Returns the calls that it made.
async fn interrupted(seed: u64, plan: Plan, off: Off, at: u64, act: Option<Act>) -> std::result::Result<u64, String> {
    let stage = Stage::new(seed, plan, off).await;
    let rng = stage.rng("rows");
    for who in ["first", "second", "third"] {
        for _ in 0..2 {
            stage.append(&rng).await;
        }
        if who != "third" {
            one_round(&stage, &format!("{who} before")).await.map_err(|error| error.chain())?;
        }
    }
    let process = match act {
        None => Process::new(&stage, "dying", Some(at)),
        Some(act) => {
            let process = Process::new(&stage, "interrupted", None);
            let scene = stage.clone();
            process.interrupt(at, MEANWHILE, move || drop(tokio::spawn(act(scene))));
            process
        }
    };
    let ended = tokio::select! {
        ended = of(&stage, &process) => Some(ended),
        () = process.dead.cancelled() => None,
    };
    if let Some(Err(error)) = &ended
        && matches!(error.kind(), Kind::Internal | Kind::Invalid)
    {
        return Err(error.chain());
    }
    if let Some(Err(error)) = ended
        && error.kind() == Kind::Data
    {
        stage.held.lock().unwrap().push(error.chain());
    }
    stage.calm.store(true, std::sync::atomic::Ordering::Relaxed);
    stage.sleep(MEANWHILE).await;
    oracle::settles(&stage).await.map(|()| process.calls())
}

/// Every `step`th call, from a different one on for each act. Returns how many points there were.
fn at_every(step: u64, seed: u64, off: Off) -> std::result::Result<u64, String> {
    let mut points = 0;
    for (number, (name, act)) in ACTS.iter().enumerate() {
        let java = u64::from(name.contains("Java"));
        let plan = Plan { partitioned: seed % 2, keyed: seed / 2 % 2, primary: seed / 4, java, crashes: 1, ..Plan::default() };
        let mut at = number as u64 % step;
        loop {
            let calls = super::in_paused_time(|| interrupted(seed, plan, off, at, *act))
                .map_err(|wrong| format!("{name}, right before call {at} (seed {seed}): {wrong}"))?;
            points += 1;
            if at >= calls {
                break;
            }
            at += step;
        }
    }
    Ok(points)
}

#[test]
fn something_happens_right_before_some_calls_of_a_round() {
    for seed in 0..6 {
        at_every(23, seed, Off::default()).unwrap();
    }
}

#[test]
#[ignore = "each call: cargo test --test it -- --ignored seeds::points --nocapture"]
#[expect(clippy::print_stdout, reason = "figures of a long run")]
fn something_happens_right_before_each_call_of_a_round() {
    let points: u64 = (0..20).map(|seed| at_every(1, seed, Off::default()).unwrap()).sum();
    println!("{points} points, {} things", ACTS.len());
}
