//! What nobody asks for: rows past their time, partitions that come and go with time.
//!
//! Source: S7.2, S8.

use std::sync::Arc;

use super::ddl::auto_partition;
use super::{Server, blocking};
use crate::error::Result;
use crate::model::{BucketId, BucketLayout, PartitionId, TableBucket};
use crate::node::kv::Shape;
use crate::node::registry::{Table, TableLock, lake_enabled, log_ttl_ms};

/// Pause between two looks at the states.
const STATES_INTERVAL: std::time::Duration = std::time::Duration::from_secs(5);

/// Deletes rows past their time until the node stops.
pub(in crate::node) async fn retention(server: Arc<Server>) {
    while server.pause(server.options.retention_interval).await {
        for table in server.registry.tables() {
            if let Err(error) = server.expire(&table).await {
                tracing::warn!(table = %table.info.path, error = %error.chain(), "old rows stay for now");
            }
        }
    }
}

/// Makes states durable whose last changes were some time ago, and ends scans that nobody asks, until the node stops.
pub(in crate::node) async fn states(server: Arc<Server>) {
    while server.pause(STATES_INTERVAL).await {
        server.scanners.expire();
        server.save_states(false).await;
    }
}

/// Creates and drops partitions by time until the node stops.
pub(in crate::node) async fn partitions(server: Arc<Server>) {
    while server.pause(server.options.partition_interval).await {
        for table in server.registry.tables() {
            if matches!(auto_partition(&table.info), Ok(None)) {
                continue;
            }
            let lock = server.registry.lock_table(&table.info.path).await;
            if let Ok(table) = server.registry.table(&table.info.path) {
                server.roll_partitions(&table, &lock).await;
            }
        }
    }
}

impl Server {
    /// Waits; false when the node stops.
    async fn pause(&self, pause: std::time::Duration) -> bool {
        tokio::select! {
            () = self.runtime.clock.sleep(pause) => true,
            () = self.stopping.cancelled() => false,
        }
    }

    /// Makes states durable: those that are due, or `all` of them.
    pub(in crate::node) async fn save_states(&self, all: bool) {
        for kv in self.states.all_open() {
            // Who puts at the moment looks for itself.
            let turn = if all { Some(kv.turn().await) } else { kv.try_writing() };
            if let Some(progress) = turn.filter(|progress| all || kv.is_due(progress))
                && let Err(error) = kv.save(progress).await
            {
                tracing::warn!(bucket = %kv.log().bucket(), error = %error.chain(), "state not made durable for now");
            }
        }
    }

    async fn expire(&self, table: &Arc<Table>) -> Result<()> {
        let info = &table.info;
        let oldest_ms = self.runtime.clock.now_ms().saturating_sub(log_ttl_ms(info));
        let tiered = if lake_enabled(info) { Some(self.lake_ends(info.id).await?) } else { None };
        if info.has_primary_key() && tiered.is_none() {
            // Without snapshots of its state, its changelog is all that tells of its rows (S6.9).
            return Ok(());
        }
        let buckets = |partition: Option<PartitionId>, count: i32| {
            (0..count).map(move |bucket| TableBucket { table: info.id, partition, bucket: BucketId(bucket) })
        };
        let mut all: Vec<TableBucket> = Vec::new();
        if info.is_partitioned() {
            for partition in table.partitions_by_id.values() {
                all.extend(buckets(Some(partition.id), BucketLayout::of(info, Some(partition))?.count));
            }
        } else {
            all.extend(buckets(None, info.bucket_count));
        }
        let (logs, states) = (Arc::clone(&self.logs), Arc::clone(&self.states));
        let shape = if info.has_primary_key() { Some(Shape::of(Arc::clone(table))?) } else { None };
        blocking(move || {
            for bucket in all {
                // What was never tiered may not go at all.
                let mut end = tiered.as_ref().map_or(i64::MAX, |offsets| offsets.get(bucket).unwrap_or(0));
                let log = logs.bucket(bucket)?;
                if let Some(shape) = shape.as_ref().filter(|_| log.expires(oldest_ms, end)) {
                    // What a crash would take from the state must be there to be replayed.
                    end = end.min(states.bucket(bucket, shape)?.saved());
                }
                log.expire(oldest_ms, end)?;
            }
            Ok(())
        })
        .await?
    }

    /// Drops the partitions that are older than what is kept, then makes those that are due. What fails is logged.
    pub(super) async fn roll_partitions(&self, table: &Arc<Table>, lock: &TableLock) {
        let auto = match auto_partition(&table.info) {
            Ok(Some(auto)) => auto,
            _ => return,
        };
        let now_ms = self.runtime.clock.now_ms();
        let path = &table.info.path;
        for (name, partition) in &table.partitions {
            let expired = partition.spec.iter().any(|(key, value)| *key == auto.key && auto.is_expired(value, now_ms));
            if expired && let Err(error) = self.remove_partition(table, name, lock).await {
                tracing::warn!(table = %path, partition = %name, error = %error.chain(), "old partition not dropped");
            }
        }
        for units in 0..i64::from(auto.precreate) {
            let Some(value) = auto.value(now_ms, units) else { break };
            let current = match self.registry.table(path) {
                Ok(current) if current.partitions.contains_key(&value) => continue,
                Ok(current) => current,
                Err(_) => return,
            };
            if let Err(error) = self.add_partition(&current, vec![(auto.key.clone(), value)], lock).await {
                tracing::warn!(table = %path, error = %error.chain(), "partition not created");
            }
        }
    }
}
