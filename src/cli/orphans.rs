//! `lakeward orphans [DB.TABLE…]`: files in lake tables that nothing names. Lists them; `--delete` takes them away.

use serde::Serialize;

use super::args::Orphans as Args;
use super::output::{Output, count, seen, size, time};
use super::run::gravest;
use super::{End, connect, repair};
use crate::audit::orphans::{self, AGE_MIN, Orphan, Orphans};
use crate::config::Settings;
use crate::error::{Error, Kind, Result};
use crate::model::TablePath;
use crate::runtime::Runtime;

/// Files that text lists; JSON has all of them.
const LISTED_MAX: usize = 20;

/// The JSON shape, one line per table.
#[derive(Debug, Serialize)]
struct Report {
    table: TablePath,
    lake: String,
    files: Vec<Orphan>,
    bytes: u64,
    /// Objects that uploads would make which were never ended, below the store's root.
    uploads: Vec<String>,
    /// Consumer names of pins of ours that nobody needs.
    pins: Vec<String>,
    /// Files that something names.
    named: u64,
    /// Files that nothing names, too young to judge.
    young: u64,
    deleted: bool,
}

pub(super) async fn run(args: &Args, settings: Settings, runtime: Runtime, output: &mut Output) -> Result<(), End> {
    if args.delete && args.older_than < AGE_MIN {
        return Err(Error::invalid("--older-than is below a day: a round at work may still name what is younger")
            .with_hint("leave --delete away to see younger ones")
            .into());
    }
    let cluster = connect::cluster(&settings, &runtime).await?;
    let tables = match args.tables.as_slice() {
        [] => connect::lake_tables(&cluster).await?.into_iter().map(|table| table.path).collect(),
        tables => tables.to_vec(),
    };
    if tables.is_empty() {
        output.talk("no table has the lake enabled");
    }
    let mut faults = Vec::new();
    for path in tables {
        let swept = async {
            let patient = repair::admit(&path, &cluster, &settings, &runtime).await?;
            let found = orphans::orphans(&patient.commit, args.older_than).await?;
            let lake = patient.commit.lake.location();
            Ok::<_, Error>((patient, lake, found))
        };
        match swept.await {
            Ok((patient, lake, found)) => {
                let mut report = Report::of(path, lake, &found);
                // It shows before it acts; one object of JSON can only come at the end.
                let is_any = !found.files.is_empty() || !found.uploads.is_empty() || !found.pins.is_empty();
                let acts = args.delete && is_any;
                seen(if args.json { Ok(()) } else { print(&report, output) }, acts)?;
                let ended = if acts { orphans::delete(&patient.commit, &found).await } else { Ok(()) };
                report.deleted = acts && ended.is_ok();
                if args.json {
                    output.json(&report)?;
                } else if report.deleted {
                    output.data("  deleted")?;
                }
                ended?;
            }
            // One of many does not hide the others; a cluster that does not answer answers for none.
            Err(error) if args.tables.len() != 1 && error.kind() != Kind::Unavailable => {
                output.talk(&format!("{path}: {}", error.chain()));
                faults.push((path, error));
            }
            Err(error) => return Err(error.into()),
        }
    }
    match gravest(faults) {
        Some((table, fault)) => Err(fault.context(format!("`{table}` could not be swept")).into()),
        None => Ok(()),
    }
}

impl Report {
    fn of(table: TablePath, lake: String, found: &Orphans) -> Self {
        Self {
            table,
            lake,
            bytes: found.files.iter().map(|file| file.bytes).sum(),
            files: found.files.clone(),
            uploads: found.uploads.iter().map(|upload| upload.path.clone()).collect(),
            pins: found.pins.iter().map(|pin| pin.name.clone()).collect(),
            named: found.named,
            young: found.young,
            deleted: false,
        }
    }
}

fn print(report: &Report, output: &mut Output) -> Result<(), End> {
    let files = report.files.len();
    output.data(&format!(
        "{}: {} {}, {}; {} files are named, {} are too young to judge",
        report.table,
        count(files as i128),
        if files == 1 { "orphan" } else { "orphans" },
        size(usize::try_from(report.bytes).unwrap_or(usize::MAX)),
        count(report.named),
        count(report.young)
    ))?;
    for file in report.files.iter().take(LISTED_MAX) {
        output.data(&format!("  {}  {}  {}", time(file.modified_ms), size(usize::try_from(file.bytes).unwrap_or(0)), file.path))?;
    }
    if files > LISTED_MAX {
        output.data(&format!("  … and {} more (--json has all)", count((files - LISTED_MAX) as i128)))?;
    }
    for upload in &report.uploads {
        output.data(&format!("  an upload that was never ended: {upload}"))?;
    }
    for pin in &report.pins {
        output.data(&format!("  dead pin consumer-{pin}"))?;
    }
    Ok(())
}
