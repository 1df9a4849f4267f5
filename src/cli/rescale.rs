//! `lakeward rescale DB.TABLE N`: the bucket count of partitions to come. Shows what would change, and changes it with `--confirm`.
//!
//! The coordinator does the work, the lake first (F4.4). What it would refuse is refused here before, all of it at once; so is a
//! coordinator that is too old, which would say yes and change nothing. The same count again only mends the lake's.

use serde::Serialize;

use super::args::Rescale;
use super::output::{Output, count};
use super::{End, connect};
use crate::catalog::{bucket_change, check_rescale};
use crate::client::Admin;
use crate::config::Settings;
use crate::error::{Error, Kind, Result};
use crate::fluss::code::Code;
use crate::lake::LakeTable;
use crate::mapping::is_lake_enabled;
use crate::model::{BucketCountEpoch, BucketLayout, LayoutOrigin, Partition, TableId, TableInfo, TablePath};
use crate::plan::lake_place;
use crate::runtime::Runtime;

/// Default of `max.bucket.num` (F4.4).
const BUCKETS_USUALLY_MAX: i32 = 4096;

/// The JSON shape.
#[derive(Debug, Serialize)]
struct Report {
    table: TablePath,
    table_id: TableId,
    outcome: Outcome,
    /// `bucket.num`: what partitions made from then on get.
    buckets: Change<i32>,
    epoch: Change<BucketCountEpoch>,
    /// Option `bucket` of the lake table; absent where it has no count, or can't be looked at from here.
    lake_bucket: Option<Change<i32>>,
    /// Partitions that are there, which keep their counts.
    partitions: Vec<PartitionReport>,
    warnings: Vec<String>,
    refusals: Vec<Refusal>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    /// This would change; nothing was.
    Shown,
    Changed,
    /// It is so already.
    Unchanged,
    /// It can't be done, for `refusals`.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Change<T> {
    from: T,
    to: T,
}

#[derive(Debug, Serialize)]
struct PartitionReport {
    partition: String,
    buckets: i32,
    origin: LayoutOrigin,
}

#[derive(Debug, Serialize)]
struct Refusal {
    kind: &'static str,
    message: String,
    hint: Option<String>,
}

/// What is known before anything is changed.
#[derive(Debug)]
struct Facts {
    table: TableInfo,
    partitions: Vec<Partition>,
    lake: Lake,
    /// Why the coordinator is too old.
    too_old: Option<Error>,
}

/// The lake table, as far as a bucket count goes.
#[derive(Debug)]
enum Lake {
    /// There is none, or it has no count.
    Without,
    Seen(Box<LakeTable>),
    /// It is there or will be asked for, but can't be looked at from here.
    Unseen(Error),
}

pub(super) async fn run(args: &Rescale, settings: Settings, runtime: Runtime, output: &mut Output) -> Result<(), End> {
    let cluster = connect::cluster(&settings, &runtime).await?;
    let admin = Admin::new(cluster);
    let facts = look(&admin, &args.table, &runtime).await?;
    let (mut report, refusals) = decide(&facts, args.count);
    let refused = refusals.into_iter().next();
    // It shows before it acts; one object of JSON can only come at the end.
    let shown = if args.json { Ok(()) } else { print(&report, output) };
    match shown {
        // That nobody reads it makes it no less refused, and what nobody was shown is not done.
        Err(End::OutputClosed) if refused.is_some() => {}
        Err(End::OutputClosed) if args.confirm && report.outcome == Outcome::Shown => {
            let text = "stdout was closed before all was shown that would change: nothing was changed";
            return Err(Error::new(Kind::Unavailable, text).with_hint("let it be read to its end, or send it to a file").into());
        }
        shown => shown?,
    }
    let failed = match (refused, report.outcome) {
        (Some(refusal), _) => Some(refusal),
        (None, Outcome::Shown) if args.confirm => change(&admin, &facts, &mut report, &runtime).await.err(),
        _ => None,
    };
    let told = if args.json { output.json(&report) } else { Ok(()) };
    if let Some(error) = failed {
        return Err(error.into());
    }
    told?;
    if !args.json {
        tell(&report, output)?;
    }
    Ok(())
}

/// Asks for the table before its partitions, so that an ALTER between the two only makes the list newer.
async fn look(admin: &Admin, path: &TablePath, runtime: &Runtime) -> Result<Facts> {
    let table = admin.table_info(path).await?;
    let partitions = if table.is_partitioned() { admin.partitions(path).await? } else { vec![] };
    let too_old = match admin.check_bucket_count().await {
        Ok(()) => None,
        Err(error) if error.kind() == Kind::Unsupported => Some(error),
        Err(error) => return Err(error),
    };
    let lake = look_into_lake(&table, runtime).await;
    Ok(Facts { table, partitions, lake, too_old })
}

async fn look_into_lake(table: &TableInfo, runtime: &Runtime) -> Lake {
    if !table.has_lake_count() || check_rescale(table).is_err() {
        return Lake::Without;
    }
    let open = async {
        let place = lake_place(table)?;
        let found = LakeTable::open_in(&place.warehouse, &place.options, place.root, runtime.clone()).await?;
        found.ok_or_else(|| Error::data(format!("there is no lake table in `{}`", place.warehouse)))
    };
    match open.await {
        Ok(lake) => Lake::Seen(Box::new(lake)),
        // With the lake off there need be none.
        Err(_) if !is_lake_enabled(table) => Lake::Without,
        Err(error) => Lake::Unseen(error),
    }
}

/// What would change, what to know about it, and why it can't be done (F4.4).
fn decide(facts: &Facts, to: i32) -> (Report, Vec<Error>) {
    let Facts { table, partitions, lake, too_old } = facts;
    let from = table.bucket_count;
    let mut refusals = Vec::new();
    let mut refuse = |what: String| refusals.push(Error::unsupported(what).with_code(Code::INVALID_ALTER_TABLE.0));
    if !table.is_partitioned() {
        refuse(format!("table `{}` has no partitions: its bucket count is that of its rows, and can't be changed", table.path));
    }
    let is = |key: &str, value: &str| table.property(key).is_some_and(|found| found.eq_ignore_ascii_case(value));
    if from != to {
        if is("table.merge-engine", "aggregation") {
            refuse(format!("table `{}` has the aggregation merge engine, whose bucket count can't be changed", table.path));
        }
        if is("table.datalake.historical-partition.enabled", "true") {
            refuse(format!(
                "table `{}` has a historical partition (`table.datalake.historical-partition.enabled`), whose bucket count can't \
                 be changed",
                table.path
            ));
        }
    }
    let mut reports = Vec::new();
    for partition in partitions {
        match BucketLayout::of(table, Some(partition)) {
            Ok(layout) => {
                reports.push(PartitionReport { partition: partition.name(), buckets: layout.count, origin: layout.origin });
            }
            Err(error) => refusals.push(error),
        }
    }
    reports.sort_by(|one, other| one.partition.cmp(&other.partition));
    let mut warnings = Vec::new();
    let mut lake_bucket = None;
    match lake {
        Lake::Without => {}
        Lake::Unseen(error) => warnings.push(format!("the lake table can't be looked at from here: {}", error.chain())),
        Lake::Seen(lake) => match bucket_change(table, to, lake.schema()) {
            Ok(_) => {
                let now = lake.schema().option("bucket").and_then(|bucket| bucket.trim().parse().ok());
                lake_bucket = now.map(|from| Change { from, to });
            }
            Err(error) => refusals.push(error),
        },
    }
    if from != to {
        refusals.extend(check_rescale(table).err());
        if let Some(error) = too_old {
            let error = Error::unsupported(error.chain()).with_hint(error.hint().unwrap_or_default());
            refusals.push(error.with_code(Code::UNSUPPORTED_VERSION.0));
        }
        warnings.extend(cautions(table, &reports, lake_bucket, to));
    }
    let to_do = from != to || lake_bucket.is_some_and(|bucket| bucket.from != bucket.to);
    let outcome = match (refusals.is_empty(), to_do) {
        (false, _) => Outcome::Refused,
        (true, true) => Outcome::Shown,
        (true, false) => Outcome::Unchanged,
    };
    let epoch = table.bucket_count_epoch;
    let report = Report {
        table: table.path.clone(),
        table_id: table.id,
        outcome,
        buckets: Change { from, to },
        epoch: Change { from: epoch, to: if from == to { epoch } else { BucketCountEpoch(epoch.0.saturating_add(1)) } },
        lake_bucket,
        partitions: reports,
        warnings,
        refusals: refusals.iter().map(Refusal::of).collect(),
    };
    (report, refusals)
}

/// What an operator should know before the count is changed.
fn cautions(table: &TableInfo, partitions: &[PartitionReport], lake_bucket: Option<Change<i32>>, to: i32) -> Vec<String> {
    let mut cautions = Vec::new();
    if table.bucket_count_epoch == BucketCountEpoch(0) {
        cautions.push(
            "this is the first change of the table's count: from then on servers refuse clients that don't say by which count they \
             route (Fluss 0.9, pyfluss 1.0; error 74), and the cluster can't go back to an older Fluss"
                .to_owned(),
        );
    }
    if to > BUCKETS_USUALLY_MAX {
        cautions
            .push(format!("`max.bucket.num` is `{BUCKETS_USUALLY_MAX}` by default: a server that has it so refuses (error 49)"));
    }
    let ahead = table.property("table.auto-partition.num-precreate").unwrap_or("2");
    if table.property("table.auto-partition.enabled").is_some_and(|value| value.eq_ignore_ascii_case("true"))
        && ahead != "0"
        && let Some(last) = partitions.last()
    {
        cautions.push(format!(
            "partitions are made ahead of time (`table.auto-partition.num-precreate` = `{ahead}`): the last there is `{}`, and the new \
             count begins behind it",
            last.partition
        ));
    }
    if let Some(lake) = lake_bucket {
        if lake.from != table.bucket_count && lake.from != to {
            cautions.push(format!(
                "option `bucket` of the lake table is `{}` where `bucket.num` is `{}`: an earlier change got half way",
                lake.from, table.bucket_count
            ));
        }
        if partitions.iter().any(|partition| partition.buckets != to) {
            cautions.push(format!(
                "a partition that is dropped and made again has `{to}` buckets then; if the lake still has its files of another \
                 count, tiering of the table is held until they are written again"
            ));
        }
    }
    cautions
}

/// Changes it, the lake first, and looks whether it is so.
async fn change(admin: &Admin, facts: &Facts, report: &mut Report, runtime: &Runtime) -> Result<()> {
    let (path, to) = (&facts.table.path, report.buckets.to);
    if report.buckets.from == to {
        // To the coordinator nothing would change, so it would not call the lake either (F4.4).
        if let Lake::Seen(lake) = &facts.lake {
            lake.alter(|found| bucket_change(&facts.table, to, found)).await?;
        }
    } else if let Err(error) = admin.alter_bucket_count(path, to).await {
        let lost = error.kind() == Kind::Unavailable;
        // An answer may be lost behind a change that was made.
        if !lost || !admin.table_info(path).await.is_ok_and(|now| now.bucket_count == to) {
            return Err(explained(error));
        }
    }
    let now = admin.table_info(path).await?;
    if now.id != facts.table.id || now.bucket_count != to {
        let text = format!("table `{path}` has `bucket.num` `{}` by now: somebody else changes it too", now.bucket_count);
        return Err(Error::stale(text).with_hint("agree on a count, then run the same command again"));
    }
    (report.outcome, report.epoch.to) = (Outcome::Changed, now.bucket_count_epoch);
    if report.lake_bucket.is_some()
        && let Lake::Seen(lake) = look_into_lake(&now, runtime).await
        && !bucket_change(&now, to, lake.schema()).is_ok_and(|changes| changes.is_empty())
    {
        let bucket = lake.schema().option("bucket").unwrap_or("-1").to_owned();
        report.warnings.push(format!("option `bucket` of the lake table is `{bucket}` by now: run the same command again"));
    }
    Ok(())
}

/// What the coordinator refused is refused, and what failed on the way is to be run again.
fn explained(error: Error) -> Error {
    let again =
        "nothing was changed in Fluss, or all of it; what the lake has of it by now does no harm: run the same command again";
    match error.code().map(Code) {
        Some(Code::INVALID_ALTER_TABLE | Code::TOO_MANY_BUCKETS | Code::INVALID_CONFIG) => {
            let code = error.code().unwrap_or_default();
            Error::unsupported("the coordinator refuses it, and changed nothing").with_code(code).with_source(error)
        }
        _ if error.hint().is_none() && matches!(error.kind(), Kind::Unavailable | Kind::Data) => error.with_hint(again),
        _ => error,
    }
}

impl Refusal {
    fn of(error: &Error) -> Self {
        Self { kind: error.kind().as_str(), message: error.chain(), hint: error.hint().map(str::to_owned) }
    }
}

fn print(report: &Report, output: &mut Output) -> Result<(), End> {
    let Change { from, to } = report.buckets;
    let what = if from == to {
        format!("bucket.num is {to} already")
    } else {
        format!("bucket.num {from} → {to}, for partitions made from then on")
    };
    output.data(&format!("{}: {what}", report.table))?;
    if from != to {
        output.data(&format!("  bucket count epoch {} → {}", report.epoch.from, report.epoch.to))?;
    }
    match report.lake_bucket {
        Some(Change { from: lake, .. }) if lake != to && from != to => {
            output.data(&format!("  lake table: option bucket {lake} → {to}, before anything else"))?;
        }
        Some(Change { from: lake, .. }) if lake != to => {
            output.data(&format!("  lake table: option bucket {lake} → {to}; an earlier change got half way"))?;
        }
        Some(_) => output.data(&format!("  lake table: option bucket is {to}"))?,
        None => {}
    }
    for line in kept(&report.partitions) {
        output.data(&format!("  {line}"))?;
    }
    for warning in &report.warnings {
        output.data(&format!("  note: {warning}"))?;
    }
    for refusal in &report.refusals {
        output.data(&format!("  refused ({}): {}", refusal.kind, refusal.message))?;
    }
    Ok(())
}

/// A line per bucket count: how many partitions have it, the first and the last of them.
fn kept(partitions: &[PartitionReport]) -> Vec<String> {
    let mut counts: Vec<i32> = partitions.iter().map(|partition| partition.buckets).collect();
    counts.sort_unstable();
    counts.dedup();
    let line = |buckets: i32| {
        let names: Vec<&str> =
            partitions.iter().filter(|found| found.buckets == buckets).map(|found| found.partition.as_str()).collect();
        let word = if buckets == 1 { "bucket" } else { "buckets" };
        match *names {
            [] => String::new(),
            [one] => format!("1 partition keeps {buckets} {word}: {one}"),
            [first, second] => format!("2 partitions keep {buckets} {word}: {first}, {second}"),
            [first, .., last] => format!("{} partitions keep {buckets} {word}: {first} … {last}", count(names.len() as i128)),
        }
    };
    counts.into_iter().map(line).collect()
}

/// What became of it.
fn tell(report: &Report, output: &mut Output) -> Result<(), End> {
    match report.outcome {
        Outcome::Shown => output.talk("nothing was changed: add --confirm to change it"),
        Outcome::Unchanged => output.talk("there is nothing to change"),
        Outcome::Changed => output.data(&format!(
            "changed: new partitions of {} have {} buckets, bucket count epoch {}",
            report.table, report.buckets.to, report.epoch.to
        ))?,
        Outcome::Refused => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests;
