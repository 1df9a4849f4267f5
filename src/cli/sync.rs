//! `lakeward sync [DB.TABLE]`: lake tables against their Fluss tables. Shows what differs; `--check` ends with 6 on any of it; `--apply`
//! does what needs no person.
//!
//! An ALTER goes to the lake before Fluss knows of it (F4.4, F6.5), so that for a moment the two differ rightly: what a running ALTER
//! could explain is mended only if it is the same in a second look, and what was mended is looked at again.

use std::time::Duration;

use serde::Serialize;

use super::args::Sync;
use super::output::Output;
use super::run::gravest;
use super::{End, connect};
use crate::catalog::{self, State};
use crate::config::Settings;
use crate::error::{Error, Kind, Result};
use crate::lake::Warehouse;
use crate::mapping::{self, Aspect, Difference};
use crate::model::{TableInfo, TablePath};
use crate::plan::lake_place;
use crate::runtime::Runtime;
use crate::source::cluster::ClusterSource;
use crate::source::{LakeLedger, LedgerState, TableScan};

/// Passes over one table before it is left as it is: others change it all the time.
const PASSES_MAX: usize = 5;
/// An ALTER that is on its way is through after this.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// The JSON shape, one line per table.
#[derive(Debug, Serialize)]
struct Report {
    table: TablePath,
    /// The lake table, where it is known.
    lake: Option<String>,
    outcome: Outcome,
    /// What differs now.
    differences: Vec<Difference>,
    /// What was mended.
    applied: Vec<Difference>,
    /// The lake table was made.
    created: bool,
    /// Why it was skipped, or what a person has to know.
    note: Option<String>,
    hint: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    InStep,
    Drift,
    /// There is no lake table.
    Missing,
    /// Not for this build: no drift.
    Skipped,
}

pub(super) async fn run(args: &Sync, settings: Settings, runtime: Runtime, output: &mut Output) -> Result<(), End> {
    let cluster = connect::cluster(&settings, &runtime).await?;
    let (source, _) = connect::rounds(&cluster, &settings, &runtime);
    let tables = match &args.table {
        Some(table) => vec![table.clone()],
        None => connect::lake_tables(&cluster).await?.into_iter().map(|table| table.path).collect(),
    };
    if tables.is_empty() {
        output.talk("no table has the lake enabled");
    }
    // What differs counts, and is mended, also when nobody reads any more.
    let (mut faults, mut drifted, mut closed) = (Vec::new(), 0_u64, false);
    for path in tables {
        match look(&source, &path, args.apply, &runtime).await {
            Ok(report) => {
                drifted += u64::from(matches!(report.outcome, Outcome::Drift | Outcome::Missing));
                match if args.json { output.json(&report) } else { print(&report, args.apply, output) } {
                    Err(End::OutputClosed) => closed = true,
                    told => told?,
                }
            }
            // One of many does not hide the others; a cluster that does not answer answers for none.
            Err(error) if args.table.is_none() && error.kind() != Kind::Unavailable => {
                output.talk(&format!("{path}: {}", error.chain()));
                faults.push((path, error));
            }
            Err(error) => return Err(error.into()),
        }
    }
    match gravest(faults) {
        Some((table, fault)) => Err(fault.context(format!("table `{table}` could not be compared")).into()),
        None if drifted > 0 && args.apply => Err(End::Drift(format!("{drifted} of the tables need a person: see above"))),
        None if drifted > 0 && args.check => Err(End::Drift(format!("{drifted} of the tables differ from the lake"))),
        None if closed => Err(End::OutputClosed),
        None => Ok(()),
    }
}

/// What differs, after what could be mended was, if that is wanted.
async fn look(source: &ClusterSource, path: &TablePath, apply: bool, runtime: &Runtime) -> Result<Report> {
    let mut report = Report {
        table: path.clone(),
        lake: None,
        outcome: Outcome::InStep,
        differences: vec![],
        applied: vec![],
        created: false,
        note: None,
        hint: None,
    };
    let mut earlier: Option<Vec<Difference>> = None;
    for _ in 0..PASSES_MAX {
        source.forget(path);
        let table = source.table_info(path).await?;
        let (warehouse, state) = match find(&table, runtime).await {
            Ok(found) => found,
            Err(error) if error.kind() == Kind::Unsupported || !mapping::is_lake_enabled(&table) => {
                report.outcome = Outcome::Skipped;
                report.note = Some(error.chain());
                return Ok(report);
            }
            Err(error) => return Err(error),
        };
        let place = mapping::lake_path(&table)?;
        report.lake = Some(format!("{}/{}.db/{}", warehouse.url().trim_end_matches('/'), place.database, place.table));
        let found = match state {
            State::Missing => {
                report.outcome = Outcome::Missing;
                if let Some(known) = known(source, path).await? {
                    report.note =
                        Some(format!("Fluss knows {known} of it: an empty one in its place would have none of those rows"));
                    report.hint = Some(format!(
                        "bring the lake table back where the cluster expects it; if its rows are gone for good: \
                         set `table.datalake.enabled` to `false` and to `true` again, then `lakeward repair reset-offsets {path} --snapshot 0`"
                    ));
                    return Ok(report);
                }
                if !apply {
                    return Ok(report);
                }
                catalog::create(&warehouse, &table, false).await?;
                report.created = true;
                continue;
            }
            State::There(found) => found,
        };
        report.outcome = if found.is_empty() { Outcome::InStep } else { Outcome::Drift };
        report.hint =
            mapping::fit(&table, &schema_of(&warehouse, &table).await?).err().and_then(|error| error.hint().map(str::to_owned));
        report.differences = found;
        let mut now: Vec<Difference> = report.differences.iter().filter(|found| found.mend.is_some()).cloned().collect();
        if !apply || now.is_empty() {
            return Ok(report);
        }
        if now.iter().any(is_of_an_alter) {
            match &earlier {
                None => {
                    earlier = Some(now);
                    runtime.clock.sleep(SECOND_LOOK).await;
                    continue;
                }
                Some(earlier) => now.retain(|now| earlier.contains(now)),
            }
        }
        if catalog::mend(&warehouse, &table, &now).await? {
            report.applied.extend(now);
        }
        // An ALTER may have come between: what it wants now is looked at afresh.
        earlier = None;
    }
    Err(Error::stale(format!("lake table and Fluss table of `{path}` keep changing")).with_hint("run the same command again"))
}

/// What lake and Fluss rightly differ in while an ALTER is on its way. Columns that the lake lacks are none: it gets them first.
const fn is_of_an_alter(found: &Difference) -> bool {
    matches!(found.aspect, Aspect::Option | Aspect::Bucket)
}

async fn find(table: &TableInfo, runtime: &Runtime) -> Result<(Warehouse, State)> {
    if !mapping::is_lake_enabled(table) {
        return Err(Error::invalid(format!("table `{}` has its lake off", table.path)));
    }
    if let Some(format) = table.property("table.datalake.format").filter(|format| !format.eq_ignore_ascii_case("paimon")) {
        return Err(Error::unsupported(format!("lake format `{format}`")));
    }
    mapping::check_columns(table)?;
    let place = lake_place(table)?;
    let warehouse = Warehouse::open_in(&place.warehouse, &place.options, runtime.clone())?.ok_or_else(|| {
        Error::data(format!("the warehouse of `{}` is missing: `{}`", table.path, place.warehouse))
            .with_hint("mount it, or make its folder if this is a new one; coordinator and Lakeward have to see the same warehouse")
    })?;
    let state = catalog::state(&warehouse, table).await?;
    Ok((warehouse, state))
}

async fn schema_of(warehouse: &Warehouse, table: &TableInfo) -> Result<crate::paimon::TableSchema> {
    let place = mapping::lake_path(table)?;
    let lake = warehouse.table(&place.database, &place.table).await?;
    lake.map(|lake| (**lake.schema()).clone()).ok_or_else(|| Error::stale(format!("the lake table of `{}` has gone", table.path)))
}

/// What Fluss knows to be in the lake.
async fn known(source: &ClusterSource, path: &TablePath) -> Result<Option<String>> {
    Ok(match source.latest(path).await? {
        LedgerState::At(entry) => Some(format!("snapshot {}", entry.snapshot)),
        LedgerState::Unknown { .. } => Some("a snapshot".to_owned()),
        LedgerState::Empty | LedgerState::TableGone => None,
    })
}

fn print(report: &Report, apply: bool, output: &mut Output) -> Result<(), End> {
    let lake = report.lake.as_deref().unwrap_or("its lake");
    let head = match (report.outcome, report.differences.len()) {
        (Outcome::Skipped, _) => format!("skipped: {}", report.note.as_deref().unwrap_or_default()),
        (Outcome::Missing, _) if apply || report.note.is_some() => format!("there is no lake table in {lake}"),
        (Outcome::Missing, _) => format!("there is no lake table in {lake}: --apply makes it"),
        (Outcome::InStep, _) => format!("in step with {lake}"),
        (Outcome::Drift, 1) => format!("1 difference to {lake}"),
        (Outcome::Drift, number) => format!("{number} differences to {lake}"),
    };
    output.data(&format!("{}: {head}", report.table))?;
    if report.created {
        output.data("  made: the lake table")?;
    }
    for done in &report.applied {
        output.data(&format!("  mended: {} {} is {}", aspect(done.aspect), done.name, value(done.fluss.as_deref())))?;
    }
    if report.outcome == Outcome::Skipped {
        return Ok(());
    }
    if let Some(note) = &report.note {
        output.data(&format!("  {note}"))?;
    }
    let mut rows = vec![["  what differs", "in Fluss", "in the lake", "who mends it"].map(str::to_owned).to_vec()];
    for found in &report.differences {
        let who = if found.mend.is_some() { "--apply" } else { "a person" };
        let what = format!("  {} {}", aspect(found.aspect), found.name);
        rows.push(vec![what.trim_end().to_owned(), value(found.fluss.as_deref()), value(found.lake.as_deref()), who.to_owned()]);
    }
    if rows.len() > 1 {
        output.table(&rows)?;
    }
    if let Some(hint) = &report.hint {
        output.data(&format!("  {hint}"))?;
    }
    // The hint has all that keeps rows from the lake, in the order in which it has to run; the rest comes behind it.
    let is_told = |found: &Difference| report.hint.is_some() && is_of_rows(found.aspect);
    let left = report.differences.iter().filter(|found| found.mend.is_none() && !is_told(found));
    for sql in left.filter_map(|found| found.sql.as_deref()) {
        output.data(&format!("  in Flink SQL, with the lake's catalog: {sql};"))?;
    }
    Ok(())
}

/// What [`mapping::fit`] judges as well.
const fn is_of_rows(aspect: Aspect) -> bool {
    match aspect {
        Aspect::Comment | Aspect::Option => false,
        Aspect::Column
        | Aspect::Type
        | Aspect::Nullability
        | Aspect::Order
        | Aspect::PartitionKeys
        | Aspect::PrimaryKey
        | Aspect::Bucket => true,
    }
}

fn value(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}

const fn aspect(aspect: Aspect) -> &'static str {
    match aspect {
        Aspect::Column => "column",
        Aspect::Type => "type of column",
        Aspect::Nullability => "nullability of column",
        Aspect::Order => "order of columns",
        Aspect::Comment => "comment of column",
        Aspect::PartitionKeys => "partition keys",
        Aspect::PrimaryKey => "primary key",
        Aspect::Option | Aspect::Bucket => "option",
    }
}
