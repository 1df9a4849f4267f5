//! Facts, gathered concurrently, → splits, decided purely (F4.1, architecture.md 4).
//!
//! Owns which buckets a round touches, from where to where, and by which layout; and what is refused before anything is
//! read. Does not own the base offsets (commit recovers them) nor reading. Callers: `round`, `cli` (plan).

mod facts;
mod support;

use std::sync::Arc;

use serde::Serialize;

use crate::error::Error;
use crate::model::{
    BucketId, BucketKey, BucketLayout, LakeOffsets, Partition, PartitionId, Split, SplitKind, StartOffset, TableBucket,
};

pub use facts::{Facts, PartitionFacts, gather};
pub use support::{LakePlace, check_table, lake_place};

/// Bounds of planning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Partitions whose offsets are asked for at once: more hides latency, and costs the servers more at a time.
    pub lookups_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { lookups_max: 32 }
    }
}

/// Which part of a table a plan is about. Default: all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Exclusive end offsets beyond which nothing is read; buckets that are not in it are left alone. `None` = all buckets, to the
    /// ends of their logs.
    pub stops: Option<Arc<LakeOffsets>>,
}

impl Scope {
    /// Whether some bucket of the partition is in it.
    #[must_use]
    pub fn has(&self, partition: Option<PartitionId>) -> bool {
        let first = BucketKey { partition, bucket: BucketId(0) };
        self.stops.as_ref().is_none_or(|stops| stops.0.range(first..).next().is_some_and(|(key, _)| key.partition == partition))
    }

    /// Where reading of a bucket whose log ends at `end` ends; `None` = it is not in it.
    fn stop(&self, bucket: TableBucket, end: i64) -> Option<i64> {
        self.stops.as_ref().map_or(Some(end), |stops| stops.get(bucket).map(|stop| stop.min(end)))
    }
}

/// Layout of the table, or of one partition, taken once for the round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedPartition {
    /// The partition; `None` on a table without partitions.
    pub partition: Option<Arc<Partition>>,
    /// Its layout.
    pub layout: BucketLayout,
    /// Splits of it.
    pub splits: u64,
    /// Splits that read a bucket's state.
    pub states: u64,
    /// Records between the lake and the end of the log, of the buckets in scope; without known log start, and where the bucket's state
    /// is read in their place, counted from 0.
    pub backlog: u64,
}

/// What a round would do.
#[derive(Debug, Default)]
pub struct Plan {
    /// Work: states first (F1.5), then in order of partition name and bucket; each bucket at most once.
    pub splits: Vec<Split>,
    /// Every partition that is there, in name order.
    pub partitions: Vec<PlannedPartition>,
    /// Why the table can't be tiered; empty = it can.
    pub faults: Vec<Error>,
    /// Names of partitions that were dropped while the plan was made.
    pub skipped: Vec<String>,
}

impl Plan {
    /// Records between the lake and the ends of the logs.
    #[must_use]
    pub fn backlog(&self) -> u64 {
        self.partitions.iter().map(|planned| planned.backlog).fold(0, u64::saturating_add)
    }
}

/// Decides the splits: from the base to the end of each bucket's log, or to its stop; of primary-key buckets that were never tiered
/// their state, or their log where that is whole (F4.1).
#[must_use]
pub fn splits(facts: &Facts, base: &LakeOffsets, scope: &Scope) -> Plan {
    let mut plan = Plan::default();
    let path = &facts.table.path;
    for found in &facts.partitions {
        let id = found.partition.as_ref().map(|partition| partition.id);
        if found.ends.is_none() {
            plan.skipped.push(found.name());
            continue;
        }
        let (partition, layout) = (found.partition.clone(), found.layout);
        let mut planned = PlannedPartition { partition, layout, splits: 0, states: 0, backlog: 0 };
        let beyond = base.0.keys().filter(|key| key.partition == id && key.bucket.0 >= found.layout.count);
        for key in beyond {
            plan.faults.push(Error::data(format!(
                "the lake has rows of bucket `{}` of {} of `{path}`, which has `{}` buckets in Fluss",
                key.bucket,
                found.place(),
                found.layout.count
            )));
        }
        for (index, (bucket, end)) in found.buckets(&facts.table).enumerate() {
            let Some(stop_offset) = scope.stop(bucket, end) else { continue };
            let log_start = found.starts.as_ref().and_then(|starts| starts.get(index)).copied();
            let place = || format!("{} bucket `{}` of `{path}`", found.place(), bucket.bucket);
            let mut read = |kind, start, from, records| {
                planned.backlog = planned.backlog.saturating_add(records);
                if from < stop_offset {
                    planned.splits += 1;
                    planned.states += u64::from(kind == SplitKind::State);
                    let partition = found.partition.clone();
                    plan.splits.push(Split { bucket, partition, layout: found.layout, start, stop_offset, kind });
                }
            };
            let verdict = match base.get(bucket) {
                None if facts.table.has_primary_key() => decide_first(facts.serves_states, log_start, end),
                tiered => decide(tiered, log_start, end),
            };
            match verdict {
                Verdict::Nothing => {}
                Verdict::Read { start, records } => {
                    let from = match start {
                        StartOffset::At(offset) => offset,
                        StartOffset::Earliest => log_start.unwrap_or(0),
                    };
                    read(SplitKind::Log, start, from, records);
                }
                Verdict::State { records } => read(SplitKind::State, StartOffset::Earliest, 0, records),
                Verdict::NoBeginning => {
                    let start = log_start.map_or_else(|| "is not known".to_owned(), |start| format!("is `{start}`"));
                    plan.faults.push(
                        Error::data(format!(
                            "{} was never tiered, its log does not begin at `0` any more (its start {start}), and the servers do not serve \
                             its state (ScanKv)",
                            place()
                        ))
                        .with_hint(
                            "let the cluster's Flink tiering job do this table's first round, it reads KV snapshots: Lakeward goes on where \
                             it ends; or upgrade the servers to Fluss 1.0 or later",
                        ),
                    );
                }
                Verdict::Gap { tiered, log_start } => plan.faults.push(
                    Error::data(format!(
                        "records `{tiered}` to `{log_start}` of {} are gone: the lake ends at `{tiered}`, the log starts at `{log_start}`",
                        place(),
                    ))
                    .with_hint("the log was cut before it was tiered (`table.log.ttl`); the rows in between are lost to the lake"),
                ),
                Verdict::Ahead { tiered } => plan.faults.push(
                    Error::data(format!("the lake ends at `{tiered}` in {}, beyond the log's end `{end}`", place()))
                        .with_hint("Fluss has lost acknowledged records, or the lake belongs to another cluster"),
                ),
            }
        }
        plan.partitions.push(planned);
    }
    plan.splits.sort_by_key(|split| split.kind != SplitKind::State);
    plan
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Nothing,
    Read {
        start: StartOffset,
        records: u64,
    },
    State {
        records: u64,
    },
    /// Neither a state nor a whole log.
    NoBeginning,
    Gap {
        tiered: i64,
        log_start: i64,
    },
    Ahead {
        tiered: i64,
    },
}

/// A primary-key bucket that was never tiered: a log that has lost its beginning tells nothing of the keys that changed in it.
fn decide_first(serves_states: bool, log_start: Option<i64>, end: i64) -> Verdict {
    let records = u64::try_from(end).unwrap_or(0);
    match log_start {
        _ if records == 0 => Verdict::Nothing,
        _ if serves_states => Verdict::State { records },
        Some(0) => Verdict::Read { start: StartOffset::At(0), records },
        _ => Verdict::NoBeginning,
    }
}

/// One bucket: `tiered` = exclusive end in the lake, `end` = exclusive end of the log.
fn decide(tiered: Option<i64>, log_start: Option<i64>, end: i64) -> Verdict {
    let count = |from: i64| u64::try_from(end.saturating_sub(from)).unwrap_or(0);
    match (tiered, log_start) {
        (Some(tiered), _) if tiered > end.max(0) => Verdict::Ahead { tiered },
        (Some(tiered), Some(log_start)) if tiered < end && tiered < log_start => Verdict::Gap { tiered, log_start },
        (Some(tiered), _) if tiered < end => Verdict::Read { start: StartOffset::At(tiered), records: count(tiered) },
        (None, log_start) if end > 0 && log_start.is_none_or(|start| start < end) => {
            Verdict::Read { start: StartOffset::Earliest, records: count(log_start.unwrap_or(0)) }
        }
        _ => Verdict::Nothing,
    }
}

#[cfg(test)]
mod tests;
