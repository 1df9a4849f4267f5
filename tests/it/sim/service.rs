//! A Lakeward reduced to its commit stage: recovers, reads ends, writes one text file per bucket, commits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use lakeward::commit::{self, CommitContext, CommitOutcome, DataFiles, Options, RoundWork};
use lakeward::error::{Error, Kind, Result};
use lakeward::lake::LakeTable;
use lakeward::model::{
    BucketLayout, LakeOffsets, OffsetsFile, Partition, RoundId, SnapshotId, TableBucket, TableId, TableInfo, TablePath,
};
use lakeward::paimon::{BinaryRow, DataFile, EntryKind, ManifestEntry, SimpleStats, path};
use lakeward::runtime::{FailPoints, Runtime};
use lakeward::source::memory::{self, MemoryService};
use lakeward::source::{LakeLedger, Lease, LedgerRecord, LedgerState, TableScan};
use lakeward::storage::{self, Store};
use tokio::sync::Notify;

use super::mutants::Off;
use super::world::{ROOT, World};

/// One process: its own faults, its own fail points.
#[derive(Clone)]
pub(crate) struct Service {
    world: World,
    runtime: Runtime,
    store: Store,
    cluster: Arc<MemoryService>,
    pub(crate) options: Options,
    pub(crate) lease: Option<Lease>,
    /// Its first read of K is followed by a stall until this is told.
    pub(crate) stall_after_k: Option<Arc<Notify>>,
    /// A stall between recovery and commit.
    pub(crate) stall_after_recovery: Option<Arc<Notify>>,
}

/// How a round ended well.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// `None` = nothing to tier.
    pub(crate) snapshot: Option<SnapshotId>,
    pub(crate) recovered: Option<SnapshotId>,
}

impl Service {
    /// A service without faults.
    pub(crate) fn healthy(world: &World) -> Self {
        Self::with_faults(world, None, memory::Faults::default())
    }

    pub(crate) fn with_faults(world: &World, store: Option<storage::Faults>, cluster: memory::Faults) -> Self {
        Self {
            runtime: Runtime { fail: FailPoints::default(), ..world.runtime.clone() },
            store: store.map_or_else(|| world.store.clone(), |faults| world.store.with_faults(faults)),
            cluster: Arc::new(match world.off {
                Some(Off::Earliest) => world.cluster.service(cluster).without_earliest(),
                _ => world.cluster.service(cluster),
            }),
            options: Options { off: world.off.and_then(Off::rule), ..Options::default() },
            lease: None,
            stall_after_k: None,
            stall_after_recovery: None,
            world: world.clone(),
        }
    }

    /// Where this process can be made to fail.
    pub(crate) fn fail(&self) -> &FailPoints {
        &self.runtime.fail
    }

    /// What each step of the protocol has at hand.
    pub(crate) async fn context(&self) -> Result<CommitContext> {
        let table = Arc::new(self.cluster.table_info(&self.world.path).await?);
        let lake = LakeTable::open(self.store.clone(), ROOT, self.runtime.clone()).await?;
        Ok(CommitContext {
            table,
            lake: Arc::new(lake.ok_or_else(|| Error::unavailable("no lake table yet"))?),
            ledger: Arc::new(Stalling {
                inner: Arc::clone(&self.cluster),
                stall: Mutex::new(self.stall_after_k.clone()),
                off: self.world.off,
            }),
            lease: self.lease.clone(),
            scan: Arc::clone(&self.cluster) as _,
            runtime: self.runtime.clone(),
            options: self.options,
        })
    }

    /// One round.
    pub(crate) async fn round(&self) -> Result<Ended> {
        let started_ms = self.runtime.clock.now_ms();
        let context = self.context().await?;
        let (table, lake) = (Arc::clone(&context.table), Arc::clone(&context.lake));
        let base = commit::recover(&context).await?;
        if let Some(stall) = &self.stall_after_recovery {
            stall.notified().await;
        }
        let mut work = RoundWork {
            round: RoundId(self.runtime.rng.uuid()),
            started_ms,
            tiering_epoch: None,
            entries: vec![],
            changelog: vec![],
            end_offsets: LakeOffsets::default(),
            max_timestamps: BTreeMap::new(),
        };
        let written = self.write(&table, &lake, &base.offsets, &mut work).await;
        let outcome = match written {
            Ok(()) => commit::commit(&context, &base, &work).await,
            Err(error) => CommitOutcome::Failed { error, files: DataFiles::Unnamed, published: None },
        };
        match outcome {
            CommitOutcome::Committed { snapshot, .. } => Ok(Ended { snapshot: Some(snapshot), recovered: base.recovered }),
            CommitOutcome::Nothing => Ok(Ended { snapshot: None, recovered: base.recovered }),
            CommitOutcome::Failed { error, files, .. } => {
                if files == DataFiles::Unnamed {
                    for entry in &work.entries {
                        let file = path::data_file(lake.schema(), entry)?;
                        drop(self.store.delete(&lake.object(&file)).await);
                    }
                }
                Err(error)
            }
        }
    }

    async fn write(&self, table: &TableInfo, lake: &LakeTable, base: &LakeOffsets, work: &mut RoundWork) -> Result<()> {
        let partitions: Vec<Option<Partition>> =
            if table.is_partitioned() { self.cluster.partitions(table).await?.into_iter().map(Some).collect() } else { vec![None] };
        for partition in partitions {
            let layout = BucketLayout::of(table, partition.as_ref())?;
            let Some(ends) = self.cluster.end_offsets(table, partition.as_ref(), layout).await? else { continue };
            for (index, end) in (0..).zip(ends) {
                let bucket = super::world::bucket(table.id, partition.as_ref().map(|partition| partition.id), index);
                let from = base.get(bucket).unwrap_or(0);
                if end <= from {
                    continue;
                }
                work.end_offsets.0.insert(bucket.into(), end);
                let rows = self.world.rows_in(bucket, from, end);
                if let Some(first) = rows.first() {
                    let row = partition_row(lake, partition.as_ref())?;
                    let file = format!("data-{}-{}.parquet", work.round, work.entries.len());
                    let entry = entry(row, index, layout.count, file, *first, rows.len());
                    let object = lake.object(&path::data_file(lake.schema(), &entry)?);
                    self.store.put(&object, body(bucket, &rows).into()).await?;
                    work.entries.push(entry);
                }
            }
        }
        Ok(())
    }

    /// Rounds until nothing is left to tier.
    pub(crate) async fn tier_all(&self) -> Result<()> {
        let mut stale = 0;
        loop {
            match self.round().await {
                Ok(Ended { snapshot: None, .. }) => return Ok(()),
                Ok(_) => {}
                // The world may still be settling; a held table never is.
                Err(error) if stale < 20 && matches!(error.kind(), Kind::Stale | Kind::Unavailable) => stale += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

/// A ledger whose first answer about K is old when it is used.
struct Stalling {
    inner: Arc<MemoryService>,
    stall: Mutex<Option<Arc<Notify>>>,
    off: Option<Off>,
}

#[async_trait]
impl LakeLedger for Stalling {
    async fn latest(&self, path: &TablePath) -> Result<LedgerState> {
        let state = self.inner.latest(path).await?;
        let stall = self.stall.lock().unwrap().take();
        if let Some(stall) = stall {
            stall.notified().await;
        }
        Ok(state)
    }

    async fn prepare(&self, table: TableId, path: &TablePath, offsets: &LakeOffsets) -> Result<String> {
        match self.off {
            Some(Off::IgnorePrevious) => self.inner.cluster().prepare_raw(table, path, offsets, false),
            _ => self.inner.prepare(table, path, offsets).await,
        }
    }

    async fn offsets_file(&self, path: &str) -> Result<Option<OffsetsFile>> {
        self.inner.offsets_file(path).await
    }

    async fn record(&self, record: LedgerRecord) -> Result<()> {
        self.inner.record(record).await
    }
}

pub(crate) fn partition_row(lake: &LakeTable, partition: Option<&Partition>) -> Result<BinaryRow> {
    let values = partition.map_or(&[][..], |partition| &partition.spec);
    let values: Vec<_> = values.iter().map(|(_, value)| Some(lakeward::model::Datum::String(value.clone()))).collect();
    BinaryRow::write(&values, &lake.schema().partition_types()?)
}

/// What a data file says: its bucket and the offsets of its rows.
pub(crate) fn body(bucket: TableBucket, rows: &[i64]) -> String {
    serde_json::to_string(&(bucket, rows)).unwrap()
}

pub(crate) fn entry(partition: BinaryRow, bucket: i32, total: i32, file_name: String, first: i64, rows: usize) -> ManifestEntry {
    let rows = i64::try_from(rows).unwrap();
    let stats = || SimpleStats { min_values: BinaryRow::empty(), max_values: BinaryRow::empty(), null_counts: Some(vec![]) };
    ManifestEntry {
        kind: EntryKind::Add,
        partition,
        bucket,
        total_buckets: total,
        file: DataFile {
            file_name,
            file_size: 1,
            row_count: rows,
            min_key: BinaryRow::empty(),
            max_key: BinaryRow::empty(),
            key_stats: stats(),
            value_stats: stats(),
            min_sequence_number: first,
            max_sequence_number: first + rows - 1,
            schema_id: 0,
            level: 0,
            extra_files: vec![],
            creation_time_ms: Some(0),
            delete_row_count: Some(0),
            embedded_file_index: None,
            file_source: Some(0),
            value_stats_cols: None,
            external_path: None,
            first_row_id: None,
            write_cols: None,
        },
    }
}
