//! `lakeward plan`: what a round would do. Changes nothing.

use std::sync::Arc;

use serde::Serialize;

use super::args::Plan;
use super::output::{Output, count};
use super::run::gravest;
use super::{End, connect};
use crate::catalog;
use crate::commit::{self, COMMIT_USER, CommitContext, Judgement};
use crate::config::Settings;
use crate::error::{Error, Kind, Result};
use crate::mapping::{BucketDrift, bucket_drift};
use crate::model::{BucketLayout, LakeOffsets, SnapshotId, TableId, TablePath};
use crate::plan::{Scope, gather, splits};
use crate::round::{RoundContext, open_lake};
use crate::runtime::Runtime;
use crate::source::LedgerState;

/// The JSON shape, one line per table.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    table: TablePath,
    table_id: TableId,
    /// Newest lake snapshot that Fluss knows: where a round would start.
    known_snapshot: Option<SnapshotId>,
    /// Newest snapshot that a Fluss service made in the lake; beyond `known_snapshot`, a round would record it first.
    unknown_snapshot: Option<SnapshotId>,
    pub(super) splits: u64,
    /// Splits that read a primary-key bucket's state, and not its log.
    states: u64,
    /// Records between the lake and the end of the log.
    pub(super) backlog: u64,
    partitions: Vec<PartitionReport>,
    /// Partitions that were dropped while the plan was made.
    skipped: Vec<String>,
    /// The lake's `bucket` option is not the table's count: no fault, files carry their partition's own.
    pub(super) bucket_drift: Option<BucketDrift>,
    /// Columns that the lake table lacks, which a round would add first.
    pub(super) missing_columns: Vec<String>,
    /// Why `bucket.num` can't be changed on it (F4.6), however it is tiered.
    rescale_refused: Option<String>,
    faults: Vec<FaultReport>,
}

#[derive(Debug, Serialize)]
struct PartitionReport {
    partition: String,
    layout: BucketLayout,
    splits: u64,
    states: u64,
    backlog: u64,
}

#[derive(Debug, Serialize)]
struct FaultReport {
    kind: &'static str,
    message: String,
    hint: Option<String>,
}

pub(super) async fn run(args: &Plan, settings: Settings, runtime: Runtime, output: &mut Output) -> Result<(), End> {
    let cluster = connect::cluster(&settings, &runtime).await?;
    let (_, rounds) = connect::rounds(&cluster, &settings, &runtime);
    let tables = match &args.table {
        Some(table) => vec![table.clone()],
        None => connect::lake_tables(&cluster).await?.into_iter().map(|table| table.path).collect(),
    };
    if tables.is_empty() {
        output.talk("no table has the lake enabled");
    }
    let mut faults = Vec::new();
    for table in tables {
        let (report, found) = match look(&rounds, &table).await {
            Ok(looked) => looked,
            // One of many does not hide the others; a cluster that does not answer answers for none.
            Err(error) if args.table.is_none() && error.kind() != Kind::Unavailable => {
                output.talk(&format!("{table}: {}", error.chain()));
                faults.push((table, error));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if args.json {
            output.json(&report)?
        } else {
            print(&report, output)?
        }
        faults.extend(found.into_iter().map(|fault| (table.clone(), fault)));
    }
    match gravest(faults) {
        None => Ok(()),
        Some((table, fault)) => Err(fault.context(format!("a round of `{table}` would not succeed")).into()),
    }
}

/// The report, and the faults as they are.
pub(super) async fn look(context: &RoundContext, path: &TablePath) -> Result<(Report, Vec<Error>)> {
    let table = Arc::new(context.scan.table_info(path).await?);
    let mut report = Report {
        table: path.clone(),
        table_id: table.id,
        known_snapshot: None,
        unknown_snapshot: None,
        splits: 0,
        states: 0,
        backlog: 0,
        partitions: vec![],
        skipped: vec![],
        bucket_drift: None,
        missing_columns: vec![],
        rescale_refused: if table.is_partitioned() {
            catalog::check_rescale(&table).err().map(|error| error.chain())
        } else {
            None
        },
        faults: vec![],
    };
    let base = match context.ledger.latest(path).await? {
        LedgerState::At(entry) => {
            report.known_snapshot = Some(entry.snapshot);
            entry.offsets
        }
        LedgerState::Empty | LedgerState::Unknown { .. } => LakeOffsets::default(),
        LedgerState::TableGone => return Err(Error::invalid(format!("table `{path}` is gone")).with_code(7)),
    };
    let mut faults = Vec::new();
    match open_lake(&table, &context.runtime).await {
        Ok((lake, _)) => {
            // What would hold the table before anything is planned.
            let protocol = CommitContext {
                table: Arc::clone(&table),
                lake: Arc::clone(&lake),
                ledger: Arc::clone(&context.ledger),
                lease: None,
                scan: Arc::clone(&context.scan),
                runtime: context.runtime.clone(),
                options: context.options.commit,
            };
            if let Judgement::Held(fault) = commit::judge(&protocol).await? {
                faults.push(fault);
            }
            report.bucket_drift = bucket_drift(&table, lake.schema());
            match catalog::missing(&lake, &table).await {
                Ok(missing) => report.missing_columns = missing.into_iter().map(|field| field.name).collect(),
                Err(fault) => faults.push(fault),
            }
            let newest = match lake.newest_snapshot_id().await? {
                Some(id) => lake.snapshot(id).await?,
                None => None,
            };
            report.unknown_snapshot = newest
                .filter(|newest| newest.commit_user.starts_with(COMMIT_USER))
                .map(|newest| SnapshotId(newest.id))
                .filter(|newest| report.known_snapshot.is_none_or(|known| known < *newest));
        }
        Err(fault) => faults.push(fault),
    }
    let facts = gather(context.scan.as_ref(), table, &base, &Scope::default(), context.options.plan).await?;
    let plan = splits(&facts, &base, &Scope::default());
    for planned in plan.partitions {
        report.splits += planned.splits;
        report.states += planned.states;
        report.backlog = report.backlog.saturating_add(planned.backlog);
        report.partitions.push(PartitionReport {
            partition: planned.partition.map(|partition| partition.name()).unwrap_or_default(),
            layout: planned.layout,
            splits: planned.splits,
            states: planned.states,
            backlog: planned.backlog,
        });
    }
    report.skipped = plan.skipped;
    faults.extend(plan.faults);
    report.faults = faults
        .iter()
        .map(|fault| FaultReport { kind: fault.kind().as_str(), message: fault.chain(), hint: fault.hint().map(str::to_owned) })
        .collect();
    Ok((report, faults))
}

fn print(report: &Report, output: &mut Output) -> Result<(), End> {
    let from = match report.known_snapshot {
        Some(snapshot) => format!("from snapshot {snapshot}"),
        None => "never tiered".to_owned(),
    };
    output.data(&format!("{}: {} splits, {} records behind, {from}", report.table, count(report.splits), count(report.backlog)))?;
    if report.states > 0 {
        output.data(&format!("  {} buckets were never tiered: their state is read, not their log", count(report.states)))?;
    }
    if let Some(snapshot) = report.unknown_snapshot {
        output.data(&format!(
            "  snapshot {snapshot} is in the lake, but not known to Fluss: a round would record it first, and has less to do"
        ))?;
    }
    let mut rows = vec![["  partition", "buckets", "splits", "backlog"].map(str::to_owned).to_vec()];
    for partition in &report.partitions {
        let name = if partition.partition.is_empty() { "(whole table)" } else { &partition.partition };
        rows.push(vec![format!("  {name}"), partition.layout.count.to_string(), count(partition.splits), count(partition.backlog)]);
    }
    output.table(&rows)?;
    for name in &report.skipped {
        output.data(&format!("  partition {name} was dropped meanwhile"))?;
    }
    if let Some(BucketDrift { fluss, lake }) = report.bucket_drift {
        output.data(&format!(
            "  option bucket of the lake table is {lake}, bucket.num is {fluss}: an ALTER got half way, run it again (`lakeward rescale`)"
        ))?;
    }
    if !report.missing_columns.is_empty() {
        output.data(&format!("  columns that a round would add to the lake table first: {}", report.missing_columns.join(", ")))?;
    }
    if let Some(refused) = &report.rescale_refused {
        output.data(&format!("  finding: {refused}"))?;
    }
    for fault in &report.faults {
        output.data(&format!("  fault ({}): {}", fault.kind, fault.message))?;
        if let Some(hint) = &fault.hint {
            output.data(&format!("    {hint}"))?;
        }
    }
    Ok(())
}
