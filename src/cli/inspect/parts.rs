//! Lists of one kind: snapshots, manifests, files, partitions, tags, consumers. A table, or a line of JSON each.

use serde::Serialize;

use super::{SnapshotReport, chosen, partitions_of, print_partitions, snapshot_report};
use crate::cli::End;
use crate::cli::args::Part;
use crate::cli::output::{Output, count, time};
use crate::error::Result;
use crate::lake::LakeTable;
use crate::paimon::{ManifestEntry, ManifestFile, Snapshot, path};

#[derive(Debug, Serialize)]
struct Manifest {
    file: String,
    bytes: i64,
    added_files: i64,
    deleted_files: i64,
    schema: i64,
    min_bucket: Option<i32>,
    max_bucket: Option<i32>,
}

#[derive(Debug, Serialize)]
struct File {
    partition: String,
    bucket: i32,
    total_buckets: i32,
    level: i32,
    file: String,
    rows: i64,
    deletes: Option<i64>,
    bytes: i64,
    min_sequence: i64,
    max_sequence: i64,
    schema: i64,
    created_ms: Option<i64>,
}

#[derive(Debug, Serialize)]
struct Tag {
    name: String,
    snapshot: i64,
    time_ms: i64,
    rows: Option<i64>,
}

#[derive(Debug, Serialize)]
struct Consumer {
    name: String,
    /// The oldest snapshot that it keeps.
    next_snapshot: i64,
    written_ms: i64,
    /// A pin of Lakeward (commit.md 3).
    ours: bool,
}

/// Lists `part` of a table.
pub(super) async fn list(lake: &LakeTable, part: Part, id: Option<i64>, json: bool, output: &mut Output) -> Result<(), End> {
    if part == Part::Partitions {
        let snapshot = chosen(lake, id).await?;
        let found = match &snapshot {
            Some(snapshot) => partitions_of(lake, snapshot).await?,
            None => vec![],
        };
        return if json { lines(&found, output) } else { print_partitions(&found, output) };
    }
    match part {
        Part::Partitions => Ok(()),
        Part::Snapshots => {
            let found = snapshots(lake, id).await?;
            let head = ["snapshot", "kind", "user", "rows", "of them new", "schema", "time"];
            show(&found, json, head, output, |snapshot| {
                let number = |rows: Option<i64>| rows.map_or_else(|| "?".to_owned(), count);
                [
                    snapshot.id.to_string(),
                    snapshot.kind.clone(),
                    snapshot.user.clone(),
                    number(snapshot.total_rows),
                    number(snapshot.added_rows),
                    snapshot.schema.to_string(),
                    time(snapshot.time_ms),
                ]
            })
        }
        Part::Manifests => {
            let found: Vec<Manifest> = match chosen(lake, id).await? {
                Some(snapshot) => lake.manifests(&snapshot).await?.into_iter().map(manifest).collect(),
                None => vec![],
            };
            show(&found, json, ["manifest", "bytes", "added files", "deleted files", "schema", "buckets"], output, |manifest| {
                let buckets = match (manifest.min_bucket, manifest.max_bucket) {
                    (Some(min), Some(max)) => format!("{min}–{max}"),
                    _ => "?".to_owned(),
                };
                let numbers = [manifest.bytes, manifest.added_files, manifest.deleted_files].map(count);
                let [bytes, added, deleted] = numbers;
                [manifest.file.clone(), bytes, added, deleted, manifest.schema.to_string(), buckets]
            })
        }
        Part::Files => {
            let found = match chosen(lake, id).await? {
                Some(snapshot) => files(lake, &snapshot).await?,
                None => vec![],
            };
            let head = ["partition", "bucket", "of", "level", "file", "rows", "bytes", "sequence", "schema"];
            show(&found, json, head, output, |file| {
                let partition = if file.partition.is_empty() { "(whole table)" } else { &file.partition };
                [
                    partition.to_owned(),
                    file.bucket.to_string(),
                    file.total_buckets.to_string(),
                    file.level.to_string(),
                    file.file.clone(),
                    count(file.rows),
                    count(file.bytes),
                    format!("{}–{}", file.min_sequence, file.max_sequence),
                    file.schema.to_string(),
                ]
            })
        }
        Part::Tags => {
            let found = tags(lake).await?;
            show(&found, json, ["tag", "snapshot", "rows", "time"], output, |tag| {
                let rows = tag.rows.map_or_else(|| "?".to_owned(), count);
                [tag.name.clone(), tag.snapshot.to_string(), rows, time(tag.time_ms)]
            })
        }
        Part::Consumers => {
            let found: Vec<Consumer> = lake.pins("").await?.into_iter().map(consumer).collect();
            show(&found, json, ["consumer", "keeps from snapshot", "written", "whose"], output, |consumer| {
                let whose = if consumer.ours { "Lakeward" } else { "others" };
                [consumer.name.clone(), consumer.next_snapshot.to_string(), time(consumer.written_ms), whose.to_owned()]
            })
        }
    }
}

async fn snapshots(lake: &LakeTable, only: Option<i64>) -> Result<Vec<SnapshotReport>> {
    if let Some(id) = only {
        return Ok(chosen(lake, Some(id)).await?.map(snapshot_report).into_iter().collect());
    }
    let mut found = Vec::new();
    for id in lake.snapshot_ids().await? {
        // One that has expired meanwhile is left out.
        found.extend(lake.snapshot(id).await?.map(snapshot_report));
    }
    Ok(found)
}

fn manifest(manifest: ManifestFile) -> Manifest {
    Manifest {
        file: manifest.file_name,
        bytes: manifest.file_size,
        added_files: manifest.num_added_files,
        deleted_files: manifest.num_deleted_files,
        schema: manifest.schema_id,
        min_bucket: manifest.min_bucket,
        max_bucket: manifest.max_bucket,
    }
}

async fn files(lake: &LakeTable, snapshot: &Snapshot) -> Result<Vec<File>> {
    let file = |entry: ManifestEntry| {
        Ok(File {
            partition: path::partition_path(lake.schema(), &entry.partition)?,
            bucket: entry.bucket,
            total_buckets: entry.total_buckets,
            level: entry.file.level,
            file: entry.file.file_name,
            rows: entry.file.row_count,
            deletes: entry.file.delete_row_count,
            bytes: entry.file.file_size,
            min_sequence: entry.file.min_sequence_number,
            max_sequence: entry.file.max_sequence_number,
            schema: entry.file.schema_id,
            created_ms: entry.file.creation_time_ms,
        })
    };
    let mut files = lake.live_entries(snapshot, None).await?.into_iter().map(file).collect::<Result<Vec<_>>>()?;
    files.sort_by(|one, other| {
        (&one.partition, one.bucket, one.min_sequence).cmp(&(&other.partition, other.bucket, other.min_sequence))
    });
    Ok(files)
}

async fn tags(lake: &LakeTable) -> Result<Vec<Tag>> {
    let mut tags = Vec::new();
    for listed in lake.store().list(&lake.object("tag")).await? {
        let Some(name) = listed.path.rsplit('/').next().and_then(|name| name.strip_prefix("tag-")) else { continue };
        let Some(snapshot) = lake.snapshot_at(&format!("tag/tag-{name}")).await? else { continue };
        let rows = snapshot.total_record_count;
        tags.push(Tag { name: name.to_owned(), snapshot: snapshot.id, time_ms: snapshot.time_ms, rows });
    }
    Ok(tags)
}

fn consumer(pin: crate::lake::Pin) -> Consumer {
    let ours = pin.name.starts_with("lakeward-");
    Consumer { name: pin.name, next_snapshot: pin.next_snapshot, written_ms: pin.written_ms, ours }
}

fn lines<T: Serialize>(found: &[T], output: &mut Output) -> Result<(), End> {
    found.iter().try_for_each(|one| output.json(one))
}

fn show<T: Serialize, const N: usize>(
    found: &[T],
    json: bool,
    head: [&str; N],
    output: &mut Output,
    row: impl Fn(&T) -> [String; N],
) -> Result<(), End> {
    if json {
        return lines(found, output);
    }
    let rows: Vec<Vec<String>> =
        std::iter::once(head.map(str::to_owned).to_vec()).chain(found.iter().map(|found| row(found).to_vec())).collect();
    output.table(&rows)
}
