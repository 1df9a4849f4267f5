//! `lakeward verify DB.TABLE`: lake against Fluss. Looks only.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::args::Verify;
use super::output::{Output, count};
use super::{End, connect};
use crate::audit::AuditContext;
use crate::audit::verify::{self, Fault, Options, Progress, Report};
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::runtime::{Clock, Runtime};

/// How often the spinner moves.
const TICK: Duration = Duration::from_millis(250);

pub(super) async fn run(args: &Verify, settings: Settings, runtime: Runtime, output: &mut Output) -> Result<(), End> {
    let cluster = connect::cluster(&settings, &runtime).await?;
    let context = connect::audit(&cluster, &settings, &runtime, &args.table).await?;
    let only = connect::chosen(&context, &args.partition).await?;
    let options = Options { all: args.all, only };
    let report = look(&context, &options, &runtime.clock).await?;
    let shown = if args.json { output.json(&report) } else { print(&report, output) };
    match failure(&report) {
        // A fault counts also when nobody reads the report.
        Some(error) => Err(error.into()),
        None => shown,
    }
}

async fn look(context: &AuditContext, options: &Options, clock: &Clock) -> Result<Report> {
    let progress = Progress::default();
    let spin = async {
        if !std::io::stderr().is_terminal() {
            return std::future::pending().await;
        }
        let bar = Bar(ProgressBar::new_spinner());
        let style = ProgressStyle::with_template("{spinner} {msg}").unwrap_or_else(|_source| ProgressStyle::default_spinner());
        bar.0.set_style(style);
        loop {
            let (stage, done, total) = progress.now();
            bar.0.set_message(if total == 0 { stage.to_owned() } else { format!("{stage}: {} of {}", count(done), count(total)) });
            bar.0.tick();
            clock.sleep(TICK).await;
        }
    };
    tokio::select! {
        report = verify::verify(context, options, &progress) => report,
        never = spin => never,
    }
}

/// Cleared when it is dropped, so that the report stands alone.
struct Bar(ProgressBar);

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// What the exit code tells.
fn failure(report: &Report) -> Option<Error> {
    let faults = report.faults.len() as u64 + report.faults_more;
    (faults > 0).then(|| {
        let what = if faults == 1 { "a fault was found".to_owned() } else { format!("{} faults were found", count(faults)) };
        Error::data(format!("{what} in `{}`", report.table))
    })
}

pub(super) fn print(report: &Report, output: &mut Output) -> Result<(), End> {
    for line in lines(report) {
        output.data(&line)?;
    }
    Ok(())
}

fn lines(report: &Report) -> Vec<String> {
    let id = |id: Option<crate::model::SnapshotId>| id.map_or_else(|| "none".to_owned(), |id| id.to_string());
    let mut lines = vec![format!(
        "{}: snapshot {} of {}, newest from Fluss {}, known to Fluss {}",
        report.table,
        id(report.snapshot),
        report.lake,
        id(report.tiered_snapshot),
        id(report.known_snapshot)
    )];
    let mut rows = vec![["  partition", "buckets", "totals in lake", "files", "rows", "offsets"].map(str::to_owned).to_vec()];
    for partition in &report.partitions {
        let name = if partition.partition.is_empty() { "(whole table)" } else { &partition.partition };
        let totals: Vec<String> = partition.totals.iter().map(i32::to_string).collect();
        rows.push(vec![
            format!("  {name}"),
            partition.buckets.map_or_else(|| "-".to_owned(), |count| count.to_string()),
            if totals.is_empty() { "-".to_owned() } else { totals.join(", ") },
            count(partition.files),
            count(partition.rows),
            partition.offsets.map_or_else(|| "-".to_owned(), count),
        ]);
    }
    lines.extend(super::output::aligned(&rows));
    let files: u64 = report.partitions.iter().map(|partition| partition.files).sum();
    lines.push(format!("  read {} of {} files, {} rows", count(report.files_read), count(files), count(report.rows_read)));
    lines.extend(report.notes.iter().map(|note| format!("  note: {note}")));
    lines.extend(report.faults.iter().flat_map(fault));
    if report.faults_more > 0 {
        lines.push(format!("  and {} more faults of these kinds", count(report.faults_more)));
    }
    if report.faults.is_empty() {
        lines.push("  no faults".to_owned());
    }
    lines
}

fn fault(fault: &Fault) -> Vec<String> {
    let mut lines = vec![format!("  fault ({}): {}", fault.check.as_str(), fault.message)];
    lines.extend(fault.hint.iter().map(|hint| format!("    way out: {hint}")));
    lines
}
