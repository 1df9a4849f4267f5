//! `lakeward inspect PATH [WHAT]`: what is in a lake table. Needs no cluster.

mod parts;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::End;
use super::args::Inspect;
use super::output::{Output, count, time};
use crate::error::{Error, Result};
use crate::lake::LakeTable;
use crate::paimon::{Snapshot, TableSchema, path, type_text};
use crate::runtime::Runtime;

/// The JSON shape.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) path: String,
    pub(super) schema: SchemaReport,
    /// Absent on a table that was never written.
    pub(super) snapshot: Option<SnapshotReport>,
    pub(super) partitions: Vec<PartitionReport>,
}

#[derive(Debug, Serialize)]
pub(super) struct SchemaReport {
    id: i64,
    columns: Vec<ColumnReport>,
    partition_keys: Vec<String>,
    primary_keys: Vec<String>,
    options: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
struct ColumnReport {
    name: String,
    r#type: String,
}

#[derive(Debug, Serialize)]
pub(super) struct SnapshotReport {
    pub(super) id: i64,
    schema: i64,
    kind: String,
    user: String,
    time_ms: i64,
    total_rows: Option<i64>,
    added_rows: Option<i64>,
    properties: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
pub(super) struct PartitionReport {
    /// `day=2026-11-28`; empty on a table without partitions.
    pub(super) partition: String,
    /// Bucket totals that its files name: one, unless somebody has mixed them. −1 = bucket-unaware.
    pub(super) totals: BTreeSet<i32>,
    pub(super) files: u64,
    pub(super) rows: i64,
    pub(super) bytes: i64,
}

pub(super) async fn run(args: &Inspect, runtime: Runtime, output: &mut Output) -> Result<(), End> {
    let lake = open(&args.path, runtime).await?;
    if let Some(part) = args.what {
        return parts::list(&lake, part, args.snapshot, args.json, output).await;
    }
    let report = report_of(&lake, args.snapshot).await?;
    if args.json { output.json(&report) } else { print(&report, output) }
}

async fn open(place: &str, runtime: Runtime) -> Result<LakeTable> {
    let missing = || {
        Error::invalid(format!("there is no lake table in `{place}`"))
            .with_hint("name the table's folder, such as WAREHOUSE/DATABASE.db/TABLE")
    };
    if std::path::Path::new(place.strip_prefix("file:").unwrap_or(place)).is_file() {
        return Err(missing());
    }
    let (url, root) = split(place).ok_or_else(missing)?;
    LakeTable::open_in(&url, &BTreeMap::new(), root, runtime).await?.ok_or_else(missing)
}

/// The folder above, and the table's own.
fn split(place: &str) -> Option<(String, String)> {
    let place = place.trim_end_matches('/');
    if place.contains(':') {
        return place.rsplit_once('/').map(|(url, root)| (url.to_owned(), root.to_owned()));
    }
    let path = std::path::absolute(place).ok()?;
    Some((path.parent()?.to_str()?.to_owned(), path.file_name()?.to_str()?.to_owned()))
}

/// The newest snapshot, or the one that is asked for; `None` on a table that was never written.
async fn chosen(lake: &LakeTable, id: Option<i64>) -> Result<Option<Snapshot>> {
    match (id, lake.newest_snapshot_id().await?) {
        (Some(id), _) => {
            let missing = || Error::invalid(format!("there is no snapshot `{id}` in `{}`", lake.location()));
            lake.snapshot(id).await?.map(Some).ok_or_else(missing)
        }
        (None, Some(newest)) => lake.snapshot(newest).await,
        (None, None) => Ok(None),
    }
}

async fn partitions_of(lake: &LakeTable, snapshot: &Snapshot) -> Result<Vec<PartitionReport>> {
    let mut partitions = Vec::new();
    for (row, live) in lake.live_partitions(snapshot, None).await?.iter() {
        partitions.push(PartitionReport {
            partition: path::partition_path(lake.schema(), row)?.trim_end_matches('/').to_owned(),
            totals: live.totals.clone(),
            files: live.files,
            rows: live.rows,
            bytes: live.bytes,
        });
    }
    partitions.sort_by(|a, b| a.partition.cmp(&b.partition));
    Ok(partitions)
}

pub(super) async fn report(lake: &LakeTable) -> Result<Report> {
    report_of(lake, None).await
}

async fn report_of(lake: &LakeTable, id: Option<i64>) -> Result<Report> {
    let newest = chosen(lake, id).await?;
    let partitions = match &newest {
        Some(newest) => partitions_of(lake, newest).await?,
        None => vec![],
    };
    Ok(Report { path: lake.location(), schema: schema_report(lake.schema()), snapshot: newest.map(snapshot_report), partitions })
}

fn schema_report(schema: &TableSchema) -> SchemaReport {
    let column = |field: &crate::model::Field| ColumnReport { name: field.name.clone(), r#type: type_text(&field.data_type) };
    SchemaReport {
        id: schema.id,
        columns: schema.fields.iter().map(column).collect(),
        partition_keys: schema.partition_keys.clone(),
        primary_keys: schema.primary_keys.clone(),
        options: schema.options.clone(),
    }
}

fn snapshot_report(snapshot: Snapshot) -> SnapshotReport {
    SnapshotReport {
        id: snapshot.id,
        schema: snapshot.schema_id,
        kind: snapshot.commit_kind,
        user: snapshot.commit_user,
        time_ms: snapshot.time_ms,
        total_rows: snapshot.total_record_count,
        added_rows: snapshot.delta_record_count,
        properties: snapshot.properties,
    }
}

/// Values longer than this are cut in text output; JSON has all of them.
const VALUE_CHARS_MAX: usize = 100;

fn print(report: &Report, output: &mut Output) -> Result<(), End> {
    let schema = &report.schema;
    output.data(&format!("table      {}", report.path))?;
    output.data(&format!("schema     {}", schema.id))?;
    for column in &schema.columns {
        let key = if schema.partition_keys.contains(&column.name) { "  (partition key)" } else { "" };
        output.data(&format!("           {} {}{key}", column.name, column.r#type))?;
    }
    pairs("options", &schema.options, output)?;
    let Some(snapshot) = &report.snapshot else {
        return output.data("snapshot   none: nothing was written yet");
    };
    output.data(&format!(
        "snapshot   {}: {} by {}, {}, {} rows, {} of them new",
        snapshot.id,
        snapshot.kind,
        snapshot.user,
        time(snapshot.time_ms),
        snapshot.total_rows.map_or_else(|| "?".to_owned(), count),
        snapshot.added_rows.map_or_else(|| "?".to_owned(), count),
    ))?;
    pairs("properties", &snapshot.properties, output)?;
    output.data("")?;
    print_partitions(&report.partitions, output)
}

fn print_partitions(partitions: &[PartitionReport], output: &mut Output) -> Result<(), End> {
    let mut rows = vec![["partition", "total buckets", "files", "rows", "bytes"].map(str::to_owned).to_vec()];
    for partition in partitions {
        let totals: Vec<String> = partition.totals.iter().map(i32::to_string).collect();
        let name = if partition.partition.is_empty() { "(whole table)" } else { &partition.partition };
        rows.push(vec![name.to_owned(), totals.join(", "), count(partition.files), count(partition.rows), count(partition.bytes)]);
    }
    output.table(&rows)
}

fn pairs(title: &str, pairs: &BTreeMap<String, String>, output: &mut Output) -> Result<(), End> {
    for (index, (key, value)) in pairs.iter().enumerate() {
        let title = if index == 0 { title } else { "" };
        let cut = value.chars().count() > VALUE_CHARS_MAX;
        let shown: String = value.chars().take(VALUE_CHARS_MAX).collect();
        output.data(&format!("{title:<10} {key} = {shown}{}", if cut { "…" } else { "" }))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_folder_is_split_into_the_folder_above_and_its_own() {
        let here = std::env::current_dir().unwrap().to_str().unwrap().to_owned();
        for (place, url, root) in [
            ("/w/demo.db/orders", "/w/demo.db", "orders"),
            ("/w/demo.db/orders/", "/w/demo.db", "orders"),
            ("file:/w/demo.db/orders", "file:/w/demo.db", "orders"),
            ("orders", &here, "orders"),
            ("./orders", &here, "orders"),
        ] {
            assert_eq!(split(place), Some((url.to_owned(), root.to_owned())), "{place}");
        }
        assert_eq!(split("/"), None);
    }
}
