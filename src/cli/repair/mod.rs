//! `lakeward repair ACTION DB.TABLE`: what a held table may need. Shows what it would do, and does it with `--confirm`.
//!
//! What each action rests on is `commit`'s (an operator's word, step 1, pins, maintenance) and `audit`'s (rewriting); here is decided,
//! from facts, whether it may be done, what it means for the rows, and how all of it is said.

mod args;
mod facts;

use std::sync::Arc;

use serde::Serialize;

pub(super) use self::args::{Action, Repair};
use self::facts::{Stand, advance};
use super::output::{Output, count, seen, time};
use super::{End, connect};
use crate::audit::{self, AuditContext, AuditPartition, RewriteOptions};
use crate::commit::{self, Base, CommitContext, CommitOutcome, Judgement, OurPin, PinUse};
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::fluss::cluster::Cluster;
use crate::lake::LakeTable;
use crate::mapping::LakeForm;
use crate::model::{LakeOffsets, OffsetsFile, SnapshotId, TablePath};
use crate::plan::lake_place;
use crate::round::Options;
use crate::runtime::Runtime;
use crate::source::TableScan;

/// The JSON shape.
#[derive(Debug, Serialize)]
struct Report {
    table: TablePath,
    action: &'static str,
    outcome: Outcome,
    lake: String,
    /// The newest snapshot in the lake, whoever made it.
    newest_snapshot: Option<i64>,
    /// Why the table is held, if it is.
    held: Option<String>,
    /// What would be done, or was.
    steps: Vec<String>,
    /// The complete offsets that are stated.
    offsets: Option<serde_json::Value>,
    /// Rows that the newest Fluss-made snapshot counts as tiered, and that are tiered again.
    rows_again: Option<i64>,
    /// Rows that it does not count, and that are never tiered.
    rows_skipped: Option<i64>,
    pins: Vec<PinReport>,
    partition: Option<PartitionReport>,
    /// The snapshot that was made or recorded.
    snapshot: Option<SnapshotId>,
    warnings: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    /// This would be done; nothing was.
    Shown,
    Done,
    /// There is nothing to do.
    Unchanged,
}

#[derive(Debug, Serialize)]
struct PinReport {
    name: String,
    next_snapshot: i64,
    written_ms: i64,
    r#use: &'static str,
}

#[derive(Debug, Serialize)]
struct PartitionReport {
    partition: String,
    buckets: i32,
    before: audit::Held,
    after: Option<audit::Held>,
}

/// What is to be done after it was shown.
enum Act {
    Nothing,
    Record,
    Say(Box<Base>, LakeOffsets),
    TakeOff(Vec<OurPin>),
    Rewrite(AuditPartition),
}

/// A table, as audits and commits see it.
pub(super) struct Patient {
    audit: AuditContext,
    pub(super) commit: CommitContext,
    options: Options,
}

pub(super) async fn run(args: &Repair, settings: Settings, runtime: Runtime, output: &mut Output) -> Result<(), End> {
    let on = args.action.on();
    let cluster = connect::cluster(&settings, &runtime).await?;
    let patient = admit(&on.table, &cluster, &settings, &runtime).await?;
    let (mut report, act) = decide(&args.action, &patient).await?;
    // It shows before it acts; one object of JSON can only come at the end.
    let to_do = !matches!(act, Act::Nothing);
    seen(if on.json { Ok(()) } else { print(&report, output) }, on.confirm && to_do)?;
    let done = if on.confirm && to_do { operate(act, &patient, &mut report).await } else { Ok(()) };
    let told = if on.json { output.json(&report) } else { Ok(()) };
    done?;
    told?;
    if !on.json {
        tell(&report, output)?;
    }
    Ok(())
}

/// Opens a table with its lake table, whether its rows could be tiered or not.
///
/// # Errors
/// `Invalid` when there is no such table, or it has no lake; `Data` when the lake table is missing; `Unsupported`; `Unavailable`.
pub(super) async fn admit(path: &TablePath, cluster: &Cluster, settings: &Settings, runtime: &Runtime) -> Result<Patient> {
    let (source, rounds) = connect::rounds(cluster, settings, runtime);
    let table = Arc::new(source.table_info(path).await?);
    let place = lake_place(&table)?;
    let lake = LakeTable::open_in(&place.warehouse, &place.options, place.root, runtime.clone()).await?.ok_or_else(|| {
        Error::data(format!("the lake table of `{path}` is missing in `{}`", place.warehouse)).with_hint(format!(
            "bring it back; or, if its rows are gone for good, set `table.datalake.enabled` to `false` and to `true` again, which \
             makes a new one (or `lakeward sync {path} --apply`, if nothing was ever tiered into it), then run this command again"
        ))
    })?;
    let lake = Arc::new(lake);
    let commit = CommitContext {
        table: Arc::clone(&table),
        lake: Arc::clone(&lake),
        ledger: Arc::clone(&rounds.ledger),
        lease: None,
        scan: Arc::clone(&rounds.scan),
        runtime: runtime.clone(),
        options: settings.round.commit,
    };
    let form = LakeForm::of(lake.schema());
    let (runtime, read) = (runtime.clone(), settings.round.read);
    let audit = AuditContext { table, lake, form, scan: rounds.scan, ledger: rounds.ledger, runtime, read };
    Ok(Patient { audit, commit, options: settings.round })
}

/// What would be done, and what to know about it. Changes nothing.
async fn decide(action: &Action, patient: &Patient) -> Result<(Report, Act)> {
    let lake = &patient.audit.lake;
    let mut report = Report {
        table: patient.audit.table.path.clone(),
        action: action.name(),
        outcome: Outcome::Shown,
        lake: lake.location(),
        newest_snapshot: lake.newest_snapshot_id().await?,
        held: None,
        steps: vec![],
        offsets: None,
        rows_again: None,
        rows_skipped: None,
        pins: vec![],
        partition: None,
        snapshot: None,
        warnings: vec![],
    };
    let act = match action {
        Action::Record { .. } => record(patient, &mut report).await?,
        Action::AcceptBase { at, .. } => accept_base(patient, *at, &mut report).await?,
        Action::ResetOffsets { snapshot, offsets, at, .. } => {
            let stated = match (snapshot, offsets) {
                (_, Some(file)) => facts::offsets_in_file(file, &patient.audit.table)?,
                (snapshot, None) => facts::offsets_of(patient, snapshot.unwrap_or(0)).await?,
            };
            reset(patient, stated, *at, &mut report).await?
        }
        Action::Release { force, .. } => release(patient, *force, &mut report).await?,
        Action::RewritePartition { partition, .. } => {
            let partition = facts::partition(patient, partition.as_ref(), &mut report.warnings).await?;
            rewrite(patient, partition, &mut report).await?
        }
    };
    if matches!(act, Act::Nothing) {
        report.outcome = Outcome::Unchanged;
    }
    Ok((report, act))
}

async fn record(patient: &Patient, report: &mut Report) -> Result<Act> {
    match commit::judge(&patient.commit).await? {
        Judgement::Held(error) => Err(error),
        Judgement::Stands(known) => {
            report.snapshot = known;
            report.steps.push(match known {
                Some(known) => format!("Fluss knows snapshot {known}, the newest that it has made"),
                None => "no snapshot in the lake is made by Fluss".to_owned(),
            });
            Ok(Act::Nothing)
        }
        Judgement::Unrecorded(snapshot) => {
            report.steps.push(format!("record snapshot {snapshot} in Fluss, with the offsets that it carries"));
            Ok(Act::Record)
        }
    }
}

async fn accept_base(patient: &Patient, at: Option<i64>, report: &mut Report) -> Result<Act> {
    let path = &patient.audit.table.path;
    match commit::judge(&patient.commit).await? {
        Judgement::Held(error) => report.held = Some(error.chain()),
        Judgement::Stands(_) => {
            report.steps.push("the table is not held: lake and Fluss agree".to_owned());
            return Ok(Act::Nothing);
        }
        Judgement::Unrecorded(snapshot) => {
            report
                .steps
                .push(format!("the table is not held: the next round records snapshot {snapshot}, or `lakeward repair record`"));
            return Ok(Act::Nothing);
        }
    }
    let from_nothing =
        || format!("`lakeward repair reset-offsets {path} --snapshot 0` tiers everything again, from the start of the logs");
    let stand = Stand::of(patient).await?;
    let Some(tiered) = &stand.tiered else {
        return Err(Error::invalid(format!("no snapshot of `{}` is made by Fluss: there are no offsets to accept", report.lake))
            .with_hint(from_nothing()));
    };
    facts::check_table(patient, tiered.snapshot, tiered.table)?;
    let Some(offsets) = tiered.offsets.clone() else {
        return Err(Error::data(format!("the offsets of snapshot `{}` in `{}` can't be told any more", tiered.snapshot, report.lake))
            .with_hint(format!(
                "say them: `lakeward repair reset-offsets {path} --offsets FILE`; or roll the lake back to a snapshot whose offsets can be \
                 told, and accept that; {}",
                from_nothing()
            )));
    };
    report.steps.push(format!(
        "state that the lake's rows, as snapshot {} has them, are those up to the offsets of snapshot {}, the newest made by Fluss",
        report.newest_snapshot.unwrap_or(0),
        tiered.snapshot
    ));
    say(patient, offsets, at, report).await
}

async fn reset(patient: &Patient, offsets: LakeOffsets, at: Option<i64>, report: &mut Report) -> Result<Act> {
    if let Judgement::Held(error) = commit::judge(&patient.commit).await? {
        report.held = Some(error.chain());
    }
    report.steps.push(match offsets.is_empty() {
        true => "state that no row is tiered: everything is tiered from the start of the logs".to_owned(),
        false => format!("state that rows are tiered up to the given offsets of {} buckets", count(offsets.0.len() as i128)),
    });
    // Of another table's rows nothing can be told.
    if let Some(lake) = Stand::of(patient).await?.tiered.filter(|tiered| tiered.table == Some(patient.audit.table.id))
        && let Some(lake) = lake.offsets
    {
        let (again, skipped) = (advance(&offsets, &lake), advance(&lake, &offsets));
        (report.rows_again, report.rows_skipped) = (Some(again), Some(skipped));
        if again > 0 {
            report.warnings.push(format!(
                "{} records that the lake's newest Fluss-made snapshot counts as tiered are tiered again: those that are in the lake will \
                 be there twice (on a table with a primary key: once)",
                count(again)
            ));
        }
        if skipped > 0 {
            report.warnings.push(format!("{} records that it does not count are never tiered", count(skipped)));
        }
    }
    say(patient, offsets, at, report).await
}

/// The end of what is said of an operator's word.
async fn say(patient: &Patient, offsets: LakeOffsets, at: Option<i64>, report: &mut Report) -> Result<Act> {
    let ground = commit::ground(&patient.commit).await?;
    let newest = ground.snapshot().map(|snapshot| snapshot.0).unwrap_or(0);
    if let Some(at) = at.filter(|at| *at != newest) {
        return Err(Error::stale(format!("the newest snapshot of `{}` is `{newest}` by now, not `{at}`", report.lake))
            .with_hint("look at it again without --confirm, then say which one was looked at"));
    }
    report.steps.push(format!(
        "by snapshot {} without rows, on top of snapshot {newest}; recorded in Fluss over whatever it knows",
        newest + 1
    ));
    report
        .warnings
        .push("a Flink tiering job that works on this table right now would not notice: let none have it meanwhile".to_owned());
    let file = OffsetsFile { table: patient.audit.table.id, offsets };
    report.offsets = serde_json::from_str(&file.to_json()).ok();
    Ok(Act::Say(Box::new(ground), file.offsets))
}

async fn release(patient: &Patient, force: bool, report: &mut Report) -> Result<Act> {
    let path = patient.audit.table.path.to_string();
    let found = commit::look_at_pins(&patient.commit).await?;
    report.pins = found.pins.iter().map(PinReport::of).collect();
    report.snapshot = found.known;
    if found.pins.is_empty() {
        report.steps.push("no pin of ours is there".to_owned());
        return Ok(Act::Nothing);
    }
    commit::check_release(&path, &found)?;
    let living: Vec<&str> = found.pins.iter().filter(|pin| pin.for_what == PinUse::Living).map(|pin| pin.name.as_str()).collect();
    if !living.is_empty() {
        let text = format!("`{}` may be of a round that is at work on `{path}`", living.join("`, `"));
        if !force {
            return Err(Error::unsupported(text).with_hint("stop every Lakeward that tiers the table, then add --force"));
        }
        report.warnings.push(text);
    }
    report.steps.push(format!(
        "take {} of ours off: from then on the lake expires snapshots as if Lakeward had never been there",
        if found.pins.len() == 1 { "1 pin".to_owned() } else { format!("{} pins", found.pins.len()) }
    ));
    report.warnings.push("the next round of a Lakeward on this table pins it again".to_owned());
    Ok(Act::TakeOff(found.pins))
}

async fn rewrite(patient: &Patient, partition: AuditPartition, report: &mut Report) -> Result<Act> {
    let total = partition.total(&patient.audit.table);
    let name = facts::spec_text(&partition);
    let Some(held) = audit::held(&patient.audit.lake, &partition).await? else {
        report.steps.push(format!("{name} has no files in the lake"));
        return Ok(Act::Nothing);
    };
    if held.totals.iter().all(|found| *found == total) {
        report.steps.push(format!("all files of {name} are of {total} buckets already"));
        report.partition = Some(PartitionReport { partition: name, buckets: total, before: held, after: None });
        return Ok(Act::Nothing);
    }
    let totals: Vec<String> = held.totals.iter().map(i32::to_string).collect();
    report.steps.push(format!(
        "write {name} again by {total} buckets: {} rows in {} files of {} buckets, replaced in one OVERWRITE by `{}`",
        count(held.rows),
        count(held.files),
        totals.join(" and "),
        commit::MAINTENANCE_USER
    ));
    report.partition = Some(PartitionReport { partition: name, buckets: total, before: held, after: None });
    Ok(Act::Rewrite(partition))
}

async fn operate(act: Act, patient: &Patient, report: &mut Report) -> Result<()> {
    commit::prove_once(&patient.audit.lake).await?;
    match act {
        Act::Nothing => return Ok(()),
        Act::Record => {
            let base = commit::recover(&patient.commit).await?;
            report.snapshot = base.snapshot();
        }
        Act::Say(ground, offsets) => match commit::say(&patient.commit, &ground, offsets).await {
            CommitOutcome::Committed { snapshot, warnings, .. } => {
                report.snapshot = Some(snapshot);
                report.warnings.extend(warnings.iter().map(Error::chain));
            }
            CommitOutcome::Nothing => return Err(Error::internal("an operator's word said nothing")),
            CommitOutcome::Failed { error, published, .. } => {
                report.snapshot = published;
                let hint = match (error.hint(), published) {
                    (Some(hint), _) => hint.to_owned(),
                    (None, Some(_)) => "it is in the lake, but not known to Fluss yet: run the same command again".to_owned(),
                    (None, None) => "nothing was changed: look at it again, then run the same command again".to_owned(),
                };
                return Err(error.with_hint(hint));
            }
        },
        Act::TakeOff(pins) => commit::take_off(&patient.commit, &pins).await?,
        Act::Rewrite(partition) => {
            let options = RewriteOptions { write: patient.options.write, commit: patient.options.commit };
            let done = audit::rewrite(&patient.audit, &partition, options).await?;
            if let (Some(done), Some(told)) = (done, &mut report.partition) {
                report.snapshot = Some(done.snapshot);
                (told.before, told.after) = (done.before, Some(done.after));
                report.warnings.extend(done.warnings);
            }
        }
    }
    report.outcome = Outcome::Done;
    Ok(())
}

impl PinReport {
    fn of(pin: &OurPin) -> Self {
        let r#use = match pin.for_what {
            PinUse::Standing => "standing",
            PinUse::Living => "living",
            PinUse::Dead => "dead",
        };
        Self { name: pin.name.clone(), next_snapshot: pin.next_snapshot, written_ms: pin.written_ms, r#use }
    }
}

fn print(report: &Report, output: &mut Output) -> Result<(), End> {
    output.data(&format!("{}: {}", report.table, report.action))?;
    output.data(&format!("  lake table {}", report.lake))?;
    if let Some(held) = &report.held {
        output.data(&format!("  held: {held}"))?;
    }
    for step in &report.steps {
        output.data(&format!("  {step}"))?;
    }
    if !report.pins.is_empty() {
        let mut rows = vec![["  pin", "use", "keeps from snapshot", "written"].map(str::to_owned).to_vec()];
        for pin in &report.pins {
            let row = [format!("  {}", pin.name), pin.r#use.to_owned(), pin.next_snapshot.to_string(), time(pin.written_ms)];
            rows.push(row.to_vec());
        }
        output.table(&rows)?;
    }
    for warning in &report.warnings {
        output.data(&format!("  note: {warning}"))?;
    }
    Ok(())
}

/// What became of it.
fn tell(report: &Report, output: &mut Output) -> Result<(), End> {
    match (report.outcome, &report.partition, report.snapshot) {
        (Outcome::Shown, ..) => {
            let at = match (report.action, report.newest_snapshot) {
                ("accept-base" | "reset-offsets", Some(newest)) => format!(" --at {newest}"),
                _ => String::new(),
            };
            output.talk(&format!("nothing was done: add{at} --confirm to do it"));
            Ok(())
        }
        (Outcome::Unchanged, ..) => {
            output.talk("there is nothing to do");
            Ok(())
        }
        (Outcome::Done, Some(PartitionReport { after: Some(after), buckets, .. }), Some(snapshot)) => output.data(&format!(
            "done: snapshot {snapshot} has {} rows in {} files of {buckets} buckets there",
            count(after.rows),
            count(after.files)
        )),
        (Outcome::Done, Some(_), _) => output.data("done: somebody else had written it again meanwhile"),
        (Outcome::Done, None, Some(snapshot)) if report.action != "release" => {
            output.data(&format!("done: Fluss knows snapshot {snapshot}"))
        }
        (Outcome::Done, ..) => output.data("done"),
    }
}
