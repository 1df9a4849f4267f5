//! What repairs are decided from.

use std::path::Path;
use std::sync::Arc;

use super::Patient;
use crate::audit::AuditPartition;
use crate::commit::Statement;
use crate::daemon::backfill::PartitionSpec;
use crate::error::{Error, Kind, Result};
use crate::mapping;
use crate::model::{BucketLayout, LakeOffsets, LayoutOrigin, OffsetsFile, Partition, PartitionId, TableId, TableInfo};
use crate::source::LedgerState;

/// The newest Fluss-made snapshot that is in the lake.
#[derive(Debug)]
pub(super) struct Stand {
    pub(super) tiered: Option<Tiered>,
}

#[derive(Debug)]
pub(super) struct Tiered {
    pub(super) snapshot: i64,
    /// The table that it belongs to, as far as that can be told.
    pub(super) table: Option<TableId>,
    /// `None` when they can't be told any more.
    pub(super) offsets: Option<LakeOffsets>,
}

impl Stand {
    pub(super) async fn of(patient: &Patient) -> Result<Self> {
        let lake = &patient.audit.lake;
        for id in lake.snapshot_ids().await?.into_iter().rev() {
            let Some(snapshot) = lake.snapshot(id).await? else { continue };
            let Some(statement) = Statement::of(&snapshot) else { continue };
            return Ok(Self { tiered: Some(told(patient, id, &statement).await?) });
        }
        Ok(Self { tiered: None })
    }
}

async fn told(patient: &Patient, snapshot: i64, statement: &Statement) -> Result<Tiered> {
    let ledger = &patient.audit.ledger;
    // Damaged ones are as good as gone: what heals them must not fail by them.
    let offsets = match statement.offsets(ledger.as_ref()).await {
        Err(error) if error.kind() == Kind::Data => None,
        offsets => offsets?,
    };
    let mut tiered = Tiered { snapshot, table: statement.table, offsets };
    if tiered.offsets.is_none()
        && let LedgerState::At(entry) = ledger.latest(&patient.audit.table.path).await?
        && entry.snapshot.0 == snapshot
    {
        (tiered.table, tiered.offsets) = (Some(entry.table), Some(entry.offsets));
    }
    Ok(tiered)
}

/// Fails when a snapshot belongs to another table.
pub(super) fn check_table(patient: &Patient, snapshot: i64, told: Option<TableId>) -> Result<()> {
    let table = &patient.audit.table;
    match told {
        Some(other) if other != table.id => {
            let path = &table.path;
            Err(Error::unsupported(format!(
                "snapshot `{snapshot}` in `{}` belongs to table id `{other}`, this table has id `{}`: its offsets mean nothing here",
                patient.audit.lake.location(),
                table.id
            ))
            .with_hint(format!(
                "drop or move away the lake table if its rows are those of the dropped table; if they are to stay: `lakeward repair \
                 reset-offsets {path} --snapshot 0`, which tiers this table's rows on top of them"
            )))
        }
        _ => Ok(()),
    }
}

/// The offsets of snapshot `id`; of 0, none.
pub(super) async fn offsets_of(patient: &Patient, id: i64) -> Result<LakeOffsets> {
    if id == 0 {
        return Ok(LakeOffsets::default());
    }
    let (lake, ledger) = (&patient.audit.lake, &patient.audit.ledger);
    let Some(snapshot) = lake.snapshot(id).await? else {
        // It may have expired; Fluss knows its offsets still.
        return match ledger.latest(&patient.audit.table.path).await? {
            LedgerState::At(entry) if entry.snapshot.0 == id => {
                check_table(patient, id, Some(entry.table))?;
                Ok(entry.offsets)
            }
            _ => Err(Error::invalid(format!("there is no snapshot `{id}` in `{}`", lake.location()))
                .with_hint("`lakeward inspect PATH snapshots` lists them")),
        };
    };
    let statement = Statement::of(&snapshot).ok_or_else(|| {
        Error::invalid(format!("snapshot `{id}` in `{}` is not made by Fluss: it carries no offsets", lake.location()))
            .with_hint("`lakeward inspect PATH snapshots` tells who made which")
    })?;
    let tiered = told(patient, id, &statement).await?;
    check_table(patient, id, tiered.table)?;
    tiered.offsets.ok_or_else(|| {
        Error::data(format!("the offsets of snapshot `{id}` in `{}` can't be told any more", lake.location()))
            .with_hint("take another snapshot, or say them with --offsets")
    })
}

/// The offsets in a file.
pub(super) fn offsets_in_file(file: &Path, table: &TableInfo) -> Result<LakeOffsets> {
    // What an operator has typed is no fault of a stored object.
    let wrong = |error: Error| {
        Error::invalid(format!("`{}` is no offsets file", file.display())).with_source(error).with_hint(
            "it has the form of Fluss's own offsets files, and of the property `lakeward.offsets` of a snapshot (`lakeward inspect`)",
        )
    };
    let text =
        std::fs::read_to_string(file).map_err(|source| Error::invalid(format!("read `{}`", file.display())).with_source(source))?;
    let OffsetsFile { table: told, offsets } = OffsetsFile::from_json(&text).map_err(wrong)?;
    if told != table.id {
        return Err(Error::invalid(format!(
            "`{}` is of table id `{told}`, `{}` has id `{}`",
            file.display(),
            table.path,
            table.id
        )));
    }
    Ok(offsets)
}

/// Sum over all buckets of how far `to` is beyond `from`.
pub(super) fn advance(from: &LakeOffsets, to: &LakeOffsets) -> i64 {
    let beyond = |(bucket, end): (&crate::model::BucketKey, &i64)| end.saturating_sub(from.get(*bucket).unwrap_or(0)).max(0);
    to.0.iter().map(beyond).fold(0, i64::saturating_add)
}

/// The partition that was typed, with the count that Fluss has for it.
pub(super) async fn partition(patient: &Patient, typed: Option<&PartitionSpec>, notes: &mut Vec<String>) -> Result<AuditPartition> {
    let table = &patient.audit.table;
    let partitions = patient.audit.partitions().await?;
    let pairs = typed.map(PartitionSpec::pairs).unwrap_or_default();
    let named = |name: &String| pairs.iter().any(|(key, _)| key == name);
    if pairs.len() != table.partition_keys.len() || !table.partition_keys.iter().all(named) {
        let keys = table.partition_keys.join("`, `");
        let text = match table.is_partitioned() {
            true => format!("name one partition of `{}`: --partition with a value for each of `{keys}`", table.path),
            false => format!("table `{}` has no partitions: leave --partition away", table.path),
        };
        return Err(Error::invalid(text));
    }
    let is_it = |found: &AuditPartition| match &found.partition {
        Some(partition) => partition.spec.iter().all(|pair| pairs.contains(pair)),
        None => true,
    };
    if let Some(found) = partitions.into_iter().find(is_it) {
        return Ok(found);
    }
    notes.push(format!(
        "Fluss has no such partition: the count is `bucket.num` of the table, `{}`, which it would get if it were made again",
        table.bucket_count
    ));
    let value = |key: &String| pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone()).unwrap_or_default();
    let spec = table.partition_keys.iter().map(|key| (key.clone(), value(key))).collect();
    let partition = Partition { id: PartitionId(-1), spec, bucket_count: Some(table.bucket_count) };
    let row = mapping::partition_row(Some(&partition), table, patient.audit.lake.schema())?;
    let layout = BucketLayout { count: table.bucket_count, origin: LayoutOrigin::Own };
    Ok(AuditPartition { partition: Some(Arc::new(partition)), layout, row })
}

/// As it is typed: `day=2026-11-30`.
pub(super) fn spec_text(partition: &AuditPartition) -> String {
    match &partition.partition {
        None => "the table".to_owned(),
        Some(partition) => {
            let pairs: Vec<String> = partition.spec.iter().map(|(key, value)| format!("{key}={value}")).collect();
            pairs.join("/")
        }
    }
}
