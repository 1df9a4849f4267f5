//! `lakeward quickstart`: the whole story in one process, checked by reading the lake back.

mod orders;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::End;
use super::args;
use super::connect::service;
use super::output::{Output, count};
use super::run::seconds;
use crate::client::{Admin, Writer, WriterOptions};
use crate::config::Settings;
use crate::daemon::{self, Service};
use crate::error::{Error, Result};
use crate::fluss::cluster::Cluster;
use crate::lake::LakeTable;
use crate::model::{Partition, RoundOutcome, RoundSummary, TablePath};
use crate::node::{Node, NodeOptions};
use crate::round::open_lake;
use crate::runtime::Runtime;
use crate::storage::{self, StoreOptions};
use orders::{Orders, table};

/// Rows written into each partition of the first round, and into the new one of the second.
const ROWS: i64 = 10_000;
/// Rows written into the old partition in the second round.
const ROWS_LATE: i64 = 5_000;
/// Bucket counts before and after.
const BUCKETS: (i32, i32) = (2, 4);
/// Within this time the queue hands the table out again: its freshness, with a wide margin.
const ROUND_MAX: Duration = Duration::from_secs(30);

/// The JSON shape.
#[derive(Debug, Serialize)]
struct Report {
    node: String,
    table: TablePath,
    warehouse: String,
    /// Whether the folder is still there after this.
    kept: bool,
    rounds: Vec<RoundSummary>,
    partitions: Vec<PartitionReport>,
    rows_written: u64,
    rows_read: u64,
    /// The command that starts the node on the folder again, where it is kept.
    serve_with: Option<String>,
    read_with: ReadWith,
}

#[derive(Debug, Serialize)]
struct PartitionReport {
    partition: String,
    /// Bucket count in Fluss.
    buckets: i32,
    /// Bucket totals of its files in the lake.
    totals: Vec<i32>,
    files: u64,
    rows: u64,
}

#[derive(Debug, Serialize)]
struct ReadWith {
    pypaimon: String,
    flink_sql: String,
}

pub(super) async fn run(args: &args::Quickstart, runtime: Runtime, output: &mut Output) -> Result<(), End> {
    if let Some(url) = &args.warehouse {
        // Of what a node can't reach its clients hear less.
        let options = StoreOptions { own: runtime.stores.options(), ..StoreOptions::default() };
        storage::open(url, &options)?
            .size("lakeward-quickstart")
            .await
            .map_err(|error| error.context(format!("use the warehouse `{url}`")))?;
    }
    let home = Home::make(args.dir.as_deref(), &runtime)?;
    let mut options = NodeOptions::new(home.path.join("node"));
    options.warehouse = Some(args.warehouse.clone().unwrap_or_else(|| home.path.join("lake").display().to_string()));
    let node = Node::start(options, runtime.clone()).await?;
    let told = story(args, &home, &node, &runtime, output).await;
    node.stop().await;
    told
}

async fn story(args: &args::Quickstart, home: &Home, node: &Node, runtime: &Runtime, output: &mut Output) -> Result<(), End> {
    let say = |output: &mut Output, line: String| if args.json { Ok(()) } else { output.data(&line) };
    let path = TablePath::new("demo", "orders");
    let mut settings = Settings::default();
    settings.cluster.servers.push(node.address().to_string());
    let (cluster, service) = service(&settings, runtime).await?;
    let admin = Admin::new(cluster.clone());
    let mut orders = Orders::new(runtime.clock.now_ms());
    let [old, middle, new] = orders.days();
    say(output, format!("node      {}, data in {}", node.address(), home.path.display()))?;

    admin.create_database(&path.database, true).await?;
    admin.create_table(&path, &table(BUCKETS.0), false).await?;
    say(output, format!("table     {path}: log, by day, bucket key order_id, {} buckets per partition", BUCKETS.0))?;
    append(&cluster, &path, &mut orders, &[(&old, ROWS), (&middle, ROWS)]).await?;
    let first = round(&service).await?;
    say(output, format!("round 1   {}", line(&first)))?;

    admin.alter_bucket_count(&path, BUCKETS.1).await?;
    say(output, format!("rescale   bucket.num {} → {}, for partitions made from now on", BUCKETS.0, BUCKETS.1))?;
    append(&cluster, &path, &mut orders, &[(&old, ROWS_LATE), (&new, ROWS)]).await?;
    let second = round(&service).await?;
    say(output, format!("round 2   {}", line(&second)))?;

    let info = service.rounds.scan.table_info(&path).await?;
    let (lake, _) = open_lake(&info, runtime).await?;
    let partitions = partitions(&lake, &admin.partitions(&path).await?).await?;
    let read = check(&lake, &orders, &partitions).await?;
    let report = Report {
        node: node.address().to_string(),
        warehouse: node.warehouse().to_owned(),
        kept: args.dir.is_some() || args.warehouse.is_some(),
        rounds: vec![first, second],
        partitions,
        rows_written: orders.written(),
        rows_read: read,
        serve_with: args.dir.as_ref().map(|_| serve_with(home, node)),
        read_with: read_with(node.warehouse(), &path, &runtime.stores.options()),
        table: path,
    };
    if args.json { output.json(&report) } else { print(&report, output) }
}

async fn append(cluster: &Cluster, path: &TablePath, orders: &mut Orders, rows: &[(&str, i64)]) -> Result<()> {
    let mut writer = Writer::open(cluster, path, WriterOptions::default()).await?;
    for (day, count) in rows {
        writer.append(&orders.next(day, *count)?).await?;
    }
    Ok(())
}

/// Works on the queue, as `run --once` does, until the table has had a round.
async fn round(service: &Service) -> Result<RoundSummary> {
    let clock = &service.rounds.runtime.clock;
    let began = clock.moment();
    while began.elapsed() < ROUND_MAX {
        let mut committed = None;
        let mut keep = |summary: &RoundSummary| {
            if matches!(summary.outcome, RoundOutcome::Committed { .. }) {
                committed = Some(summary.clone());
            }
        };
        let report = daemon::run_once(service, Duration::ZERO, &mut keep).await?;
        if let Some((_, fault)) = report.faults.into_iter().next() {
            return Err(fault);
        }
        if let Some(summary) = committed {
            return Ok(summary);
        }
        clock.sleep(Duration::from_millis(20)).await;
    }
    Err(Error::unavailable(format!("the queue did not hand out the table within `{}` s", ROUND_MAX.as_secs())))
}

fn line(summary: &RoundSummary) -> String {
    let snapshot = match summary.outcome {
        RoundOutcome::Committed { snapshot } => snapshot.to_string(),
        RoundOutcome::Idle | RoundOutcome::Gone => "none".to_owned(),
    };
    format!("snapshot {snapshot}: {} rows in {} files, {}", count(summary.rows), count(summary.files), seconds(summary))
}

/// Each partition as Fluss and the lake see it.
async fn partitions(lake: &LakeTable, fluss: &[Partition]) -> Result<Vec<PartitionReport>> {
    let lake = super::inspect::report(lake).await?;
    let mut found = BTreeMap::new();
    for partition in fluss {
        let name = partition.name();
        let live = lake.partitions.iter().find(|live| live.partition == format!("day={name}"));
        let live = live.ok_or_else(|| Error::data(format!("partition `{name}` is missing in the lake")))?;
        let report = PartitionReport {
            partition: name.clone(),
            buckets: partition.bucket_count.unwrap_or_default(),
            totals: live.totals.iter().copied().collect(),
            files: live.files,
            rows: u64::try_from(live.rows).unwrap_or_default(),
        };
        found.insert(name, report);
    }
    Ok(found.into_values().collect())
}

/// Reads the lake back and compares: every row that was written, once and as it was. Returns the number of rows read.
async fn check(lake: &LakeTable, orders: &Orders, partitions: &[PartitionReport]) -> Result<u64> {
    let newest = match lake.newest_snapshot_id().await? {
        Some(id) => lake.snapshot(id).await?,
        None => None,
    };
    let newest = newest.ok_or_else(|| Error::data("the lake has no snapshot"))?;
    let read = orders.check(&lake.read_rows(&newest, None, None).await?)?;
    let summed: u64 = partitions.iter().map(|partition| partition.rows).sum();
    if summed != read {
        return Err(Error::data(format!("the manifests tell `{summed}` rows, the files hold `{read}`")));
    }
    for partition in partitions {
        if partition.totals != [partition.buckets] {
            let (name, totals) = (&partition.partition, &partition.totals);
            return Err(Error::data(format!(
                "partition `{name}` has `{}` buckets, but totals `{totals:?}` in the lake",
                partition.buckets
            )));
        }
    }
    Ok(read)
}

fn serve_with(home: &Home, node: &Node) -> String {
    let folder = home.path.join("node");
    format!("lakeward node --dir '{}' --warehouse '{}' --listen 127.0.0.1:9123", folder.display(), node.warehouse())
}

fn read_with(warehouse: &str, table: &TablePath, stores: &BTreeMap<String, String>) -> ReadWith {
    let remote = warehouse.starts_with("s3");
    // Where the store is can be shown, its keys can't.
    let of = |key: &str| stores.get(key).map(|value| format!("'{value}'")).filter(|_| remote);
    let python: String = [("fs.s3.endpoint", of("s3.endpoint")), ("fs.s3.region", of("s3.region"))]
        .into_iter()
        .filter_map(|(key, value)| Some(format!(", '{key}': {}", value?)))
        .chain(remote.then(|| ", 'fs.s3.accessKeyId': '…', 'fs.s3.accessKeySecret': '…'".to_owned()))
        .collect();
    let sql: String = [("s3.endpoint", of("s3.endpoint")), ("s3.endpoint.region", of("s3.region"))]
        .into_iter()
        .filter_map(|(key, value)| Some(format!(", '{key}' = {}", value?)))
        .chain(remote.then(|| ", 's3.path.style.access' = 'true', 's3.access-key' = '…', 's3.secret-key' = '…'".to_owned()))
        .collect();
    let scheme = if remote { "" } else { "file://" };
    ReadWith {
        pypaimon: [
            "from pypaimon import CatalogFactory".to_owned(),
            format!("table = CatalogFactory.create({{'warehouse': '{warehouse}'{python}}}).get_table('{table}')"),
            "builder = table.new_read_builder()".to_owned(),
            "print(builder.new_read().to_arrow(builder.new_scan().plan().splits()).to_pandas())".to_owned(),
        ]
        .join("\n"),
        flink_sql: [
            format!("CREATE CATALOG lake WITH ('type' = 'paimon', 'warehouse' = '{scheme}{warehouse}'{sql});"),
            format!("SELECT `day`, COUNT(*), SUM(amount) FROM lake.{}.{} GROUP BY `day`;", table.database, table.table),
        ]
        .join("\n"),
    }
}

fn print(report: &Report, output: &mut Output) -> Result<(), End> {
    let mut rows = vec![["partition", "buckets", "totals in lake", "files", "rows"].map(str::to_owned).to_vec()];
    for partition in &report.partitions {
        let totals: Vec<String> = partition.totals.iter().map(i32::to_string).collect();
        rows.push(vec![
            partition.partition.clone(),
            partition.buckets.to_string(),
            totals.join(", "),
            count(partition.files),
            count(partition.rows),
        ]);
    }
    output.data("")?;
    output.table(&rows)?;
    output.data(&format!(
        "checked: {} rows written, {} read back from the lake, each once",
        count(report.rows_written),
        count(report.rows_read)
    ))?;
    output.data(&format!(
        "\nlake      {}{}",
        report.warehouse,
        if report.kept { "" } else { ", removed now: keep it with --dir DIR" }
    ))?;
    if let Some(serve) = &report.serve_with {
        output.data(&format!("\nserve it again:\n  {serve}"))?;
    }
    for (title, text) in [("pypaimon", &report.read_with.pypaimon), ("Flink SQL", &report.read_with.flink_sql)] {
        output.data(&format!("\nread it with {title}:"))?;
        for line in text.lines() {
            output.data(&format!("  {line}"))?;
        }
    }
    Ok(())
}

/// Where everything is; a temporary one goes away with it.
struct Home {
    path: PathBuf,
    temporary: bool,
}

impl Home {
    fn make(dir: Option<&Path>, runtime: &Runtime) -> Result<Self> {
        let (path, temporary) = match dir {
            Some(dir) => (dir.to_owned(), false),
            None => (std::env::temp_dir().join(format!("lakeward-quickstart-{}", runtime.rng.uuid())), true),
        };
        let fault = |source: std::io::Error| Error::invalid(format!("use the folder `{}`", path.display())).with_source(source);
        std::fs::create_dir_all(&path).map_err(fault)?;
        if std::fs::read_dir(&path).map_err(fault)?.next().is_some() {
            return Err(Error::invalid(format!("the folder `{}` is not empty", path.display()))
                .with_hint("the quickstart begins with nothing: name another folder"));
        }
        Ok(Self { path, temporary })
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.temporary {
            // What can't be removed is left to the system's own cleaning of its temporary folder.
            drop(std::fs::remove_dir_all(&self.path));
        }
    }
}
