//! What Fluss knows against what the lake says, and the lake's offsets against the logs.

use std::collections::BTreeMap;

use futures::stream::{self, StreamExt, TryStreamExt};

use super::{Check, Fault, Findings, Pass};
use crate::audit::AuditPartition;
use crate::error::{Error, Result};
use crate::model::{BucketKey, LakeOffsets, PartitionId};

/// Partitions whose offsets are asked for at once.
const LOOKUPS_MAX: usize = 16;

pub(super) async fn check(pass: &Pass<'_>, found: &mut Findings) -> Result<()> {
    agreement(pass, found).await?;
    let lookups = pass.partitions.iter().filter(|known| pass.wants(&known.row)).map(|known| look_up(pass, known));
    let ends: Vec<Logs<'_>> = stream::iter(lookups).buffered(LOOKUPS_MAX).try_collect().await?;
    let offsets = pass.view.offsets();
    let mut by_partition: BTreeMap<Option<PartitionId>, Vec<(BucketKey, i64)>> = BTreeMap::new();
    for (key, offset) in &offsets.0 {
        by_partition.entry(key.partition).or_default().push((*key, *offset));
    }
    for logs in &ends {
        let id = logs.known.partition.as_ref().map(|partition| partition.id);
        for (key, offset) in by_partition.get(&id).into_iter().flatten() {
            bucket(pass, logs, *key, *offset, found);
        }
    }
    Ok(())
}

/// The newest snapshots of both sides.
async fn agreement(pass: &Pass<'_>, found: &mut Findings) -> Result<()> {
    let (view, table) = (&pass.view, &pass.context.table);
    let fault = |message: String| Fault::new(Check::Ledger, message);
    if let Some(why) = &view.unknown {
        let message = format!("Fluss can't read what it knows of the lake: {why}");
        found.fault(fault(message).hint(pass.repair_hint("record")));
    }
    if let Some(tiered) = &view.tiered {
        if let Some(other) = tiered.table.filter(|other| *other != table.id) {
            let message = format!("snapshot `{}` belongs to table id `{other}`, this table has id `{}`", tiered.snapshot, table.id);
            let hint =
                "an earlier table of this name has left its lake table: move that away, and let the coordinator make a new one";
            found.fault(fault(message).snapshot(tiered.snapshot.0).hint(hint));
            return Ok(());
        }
        if tiered.offsets.is_none() {
            let message = format!("the offsets of snapshot `{}` are gone: its offsets file is not there", tiered.snapshot);
            found.fault(fault(message).snapshot(tiered.snapshot.0).hint(pass.repair_hint("reset-offsets")));
        }
    }
    if let Some(snapshot) = view.unrecorded {
        let known = view.known.as_ref().map_or_else(|| "none".to_owned(), |known| format!("snapshot `{}`", known.snapshot));
        let message = format!("snapshot `{snapshot}` is in the lake, and Fluss does not know it: it knows {known}");
        let hint = format!("the next round records it; {}", pass.repair_hint("record"));
        found.fault(fault(message).snapshot(snapshot.0).hint(hint));
    }
    let Some(known) = &view.known else { return Ok(()) };
    if known.table != table.id {
        let message = format!(
            "Fluss knows snapshot `{}` of table id `{}` here, this table has id `{}`",
            known.snapshot, known.table, table.id
        );
        found.fault(
            fault(message)
                .snapshot(known.snapshot.0)
                .hint("a Java job recorded what an earlier table has left; the next round of Lakeward goes past it"),
        );
        return Ok(());
    }
    let newest = view.newest.as_ref().map_or(0, |newest| newest.id);
    let ways = || format!("roll the lake table forward again, or say what counts: {}", pass.repair_hint("reset-offsets"));
    if newest < known.snapshot.0 {
        let message =
            format!("the lake ends at snapshot `{newest}`, Fluss knows snapshot `{}`: it was rolled back", known.snapshot);
        found.fault(fault(message).snapshot(known.snapshot.0).hint(ways()));
        return Ok(());
    }
    match &view.tiered {
        Some(tiered) if tiered.snapshot == known.snapshot => {
            if let Some(offsets) = tiered.offsets.as_ref().filter(|_| tiered.is_there) {
                for (key, lake, fluss) in differences(offsets, &known.offsets) {
                    let text = |offset: Option<i64>| offset.map_or_else(|| "nothing".to_owned(), |offset| format!("`{offset}`"));
                    let message = format!(
                        "{} is tiered to {} by snapshot `{}` of the lake, and to {} by what Fluss knows of it",
                        pass.name(key),
                        text(lake),
                        known.snapshot,
                        text(fluss)
                    );
                    let fault = fault(message).snapshot(known.snapshot.0).bucket(key.bucket.0).offset(lake.or(fluss).unwrap_or(0));
                    found.fault(fault.partition(&pass.folder_of(key.partition)).hint(pass.repair_hint("record")));
                }
            }
        }
        // K lies above: it has to be there and Fluss-made, and so it would have been found.
        Some(tiered) if tiered.snapshot < known.snapshot => {
            let is_there = pass.context.lake.snapshot(known.snapshot.0).await?.is_some();
            let what = if is_there { "is not Fluss-made" } else { "is missing" };
            let message =
                format!("snapshot `{}`, which Fluss knows, {what} in the lake: that was rolled back and overgrown", known.snapshot);
            found.fault(fault(message).snapshot(known.snapshot.0).hint(ways()));
        }
        Some(_) | None => {}
    }
    Ok(())
}

fn differences(lake: &LakeOffsets, fluss: &LakeOffsets) -> Vec<(BucketKey, Option<i64>, Option<i64>)> {
    let mut keys: Vec<BucketKey> = lake.0.keys().chain(fluss.0.keys()).copied().collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().map(|key| (key, lake.get(key), fluss.get(key))).filter(|(_, lake, fluss)| lake != fluss).collect()
}

/// Where the logs of a partition begin and end; `None` when it was dropped meanwhile.
struct Logs<'a> {
    known: &'a AuditPartition,
    bounds: Option<(Vec<i64>, Vec<i64>)>,
}

async fn look_up<'a>(pass: &Pass<'_>, known: &'a AuditPartition) -> Result<Logs<'a>> {
    let (context, partition) = (pass.context, known.partition.as_deref());
    let gone = |error: Error| if error.code() == Some(36) { Ok(None) } else { Err(error) };
    // Starts first: they only grow, and so do ends.
    let starts = context.scan.start_offsets(&context.table, partition, known.layout).await.or_else(gone)?;
    let ends = context.scan.end_offsets(&context.table, partition, known.layout).await.or_else(gone)?;
    Ok(Logs { known, bounds: starts.zip(ends) })
}

fn bucket(pass: &Pass<'_>, logs: &Logs<'_>, key: BucketKey, offset: i64, found: &mut Findings) {
    let folder = pass.folder(&logs.known.row);
    let fault = |message| Fault::new(Check::Offsets, message).partition(&folder).bucket(key.bucket.0).offset(offset);
    let name = pass.name(key);
    if key.bucket.0 >= logs.known.layout.count {
        let message = format!("the lake has offset `{offset}` of {name}, which has `{}` buckets in Fluss", logs.known.layout.count);
        found.fault(fault(message).hint(pass.rewrite_hint(&folder)));
        return;
    }
    let Some((starts, ends)) = &logs.bounds else { return };
    let at = |offsets: &[i64]| usize::try_from(key.bucket.0).ok().and_then(|index| offsets.get(index).copied());
    let (Some(start), Some(end)) = (at(starts), at(ends)) else { return };
    if offset > end {
        let message = format!("{name} is tiered to `{offset}`, beyond its log's end `{end}`");
        found.fault(fault(message).hint("Fluss has lost acknowledged records, or the lake belongs to another cluster"));
    } else if offset < start && start < end {
        let message =
            format!("records `{offset}` to `{start}` of {name} are gone: the lake ends at `{offset}`, the log starts at `{start}`");
        found.fault(
            fault(message).hint("the log was cut before it was tiered (`table.log.ttl`); the rows in between are lost to the lake"),
        );
    }
}

impl Pass<'_> {
    /// A bucket, for messages.
    pub(super) fn name(&self, key: BucketKey) -> String {
        match self.folder_of(key.partition) {
            folder if folder.is_empty() => format!("bucket `{}`", key.bucket),
            folder => format!("bucket `{}` of partition `{folder}`", key.bucket),
        }
    }

    pub(super) fn folder_of(&self, partition: Option<PartitionId>) -> String {
        let known = self.partitions.iter().find(|known| known.partition.as_ref().map(|partition| partition.id) == partition);
        match (known, partition) {
            (Some(known), _) => self.folder(&known.row),
            (None, Some(id)) => format!("partition id {id}"),
            (None, None) => String::new(),
        }
    }
}
