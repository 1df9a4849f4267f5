//! What every implementation of the source traits has to do: one suite for the twin, the node and a real cluster.
//!
//! A [`World`] lends the traits and does what a user would do; each check makes its own tables in the world's database. What a real
//! 0.9.1 cluster does is right. On purpose differs, and is asked of a world or left out here:
//! * counts of partitions, their epoch and error 74 come with 1.0 ([`World::rescales`]);
//! * states of primary-key tables are served from 1.0 on ([`World::serves_states`]);
//! * nothing of a log ever leaves a node (S8; [`World::offloads`]);
//! * when a fetch that waits is answered: at once by a node, as S5.1 wants it; by 0.9.1 when its time is over, as the twin does it;
//! * how soon DDL has its effect: a node answers when it has, a real server up to some seconds before.

mod keyed;
mod ledger;
mod logs;
mod queue;

use std::collections::BTreeMap;
use std::time::Duration;

use arrow_array::RecordBatch;
use async_trait::async_trait;

use super::{Assignments, LakeLedger, LedgerRecord, TableScan};
use crate::error::{Error, Result};
use crate::fluss::table_json::TableDescriptor;
use crate::model::{DataType, Field, LakeOffsets, Schema, SchemaId, TableInfo, TablePath, TypeKind};
use crate::runtime::Clock;

/// A cluster with a database of the suite's own, and a user's hands in it. Nobody else uses its queue.
#[async_trait]
pub trait World: Send + Sync {
    /// The queue.
    fn assignments(&self) -> &dyn Assignments;
    /// Tables and logs.
    fn scan(&self) -> &dyn TableScan;
    /// The ledger.
    fn ledger(&self) -> &dyn LakeLedger;
    /// Time.
    fn clock(&self) -> &Clock;
    /// Name of the database, which exists.
    fn database(&self) -> &str;
    /// Whether partitions have bucket counts of their own and `bucket.num` can be altered (1.0).
    fn rescales(&self) -> bool;
    /// Whether old parts of logs leave the servers.
    fn offloads(&self) -> bool;
    /// Whether states of primary-key tables are served (ScanKv, 1.0).
    fn serves_states(&self) -> bool;
    /// Lease time, if it is worth waiting for.
    fn lease(&self) -> Option<Duration>;
    /// Creates a table.
    async fn create_table(&self, path: &TablePath, table: &TableDescriptor) -> Result<()>;
    /// Drops a table.
    async fn drop_table(&self, path: &TablePath) -> Result<()>;
    /// Creates a partition.
    async fn create_partition(&self, path: &TablePath, spec: &[(String, String)]) -> Result<()>;
    /// Drops a partition.
    async fn drop_partition(&self, path: &TablePath, spec: &[(String, String)]) -> Result<()>;
    /// Alters `bucket.num`.
    async fn alter_bucket_count(&self, path: &TablePath, count: i32) -> Result<()>;
    /// Sets an option.
    async fn set_option(&self, path: &TablePath, key: &str, value: &str) -> Result<()>;
    /// Adds a nullable column at the end.
    async fn add_column(&self, path: &TablePath, column: &Field) -> Result<()>;
    /// Appends rows as a client does, to the buckets that their keys hash to.
    async fn append(&self, path: &TablePath, rows: &RecordBatch) -> Result<()>;
    /// Upserts rows of a primary-key table as a client does, or deletes those that `deletes` says.
    async fn put(&self, path: &TablePath, rows: &RecordBatch, deletes: &[bool]) -> Result<()>;
    /// Prepares as a Flink job does: over the offsets of the newest entry (`ignore_previous_table_offsets` absent).
    async fn prepare_overlaid(&self, table: &TableInfo, offsets: &LakeOffsets) -> Result<String>;
    /// Records as a Flink job does that knows of no entry to keep (`earliest_snapshot_id_to_keep` absent).
    async fn record_alone(&self, record: LedgerRecord) -> Result<()>;
}

/// Runs every check, whatever the others found. While a lease runs out, those that need no queue.
///
/// # Errors
/// `Internal` names each check that does not hold, and what it found.
pub async fn run(world: &dyn World) -> Result<()> {
    let mut wrong = vec![];
    let mut note = |name: &str, found: Result<()>| {
        if let Err(error) = found {
            wrong.push(format!("`{name}`: {}", error.chain()));
        }
    };
    note("the_queue_hands_out_fences_and_takes_back", queue::the_queue_hands_out_fences_and_takes_back(world).await);
    let silent = queue::a_lease_begins(world).await;
    note("tables_are_described", logs::tables_are_described(world).await);
    note("rows_come_back_once_and_in_offset_order", logs::rows_come_back_once_and_in_offset_order(world).await);
    note("columns_come_behind_the_others", logs::columns_come_behind_the_others(world).await);
    note("partitions_have_their_layout", logs::partitions_have_their_layout(world).await);
    note("what_is_gone_is_stale", logs::what_is_gone_is_stale(world).await);
    note("puts_become_changes", keyed::puts_become_changes(world).await);
    note("states_are_what_the_log_comes_to", keyed::states_are_what_the_log_comes_to(world).await);
    note("states_are_routed_by_their_partition", keyed::states_are_routed_by_their_partition(world).await);
    if world.offloads() {
        note("what_left_the_servers_reads_the_same", logs::what_left_the_servers_reads_the_same(world).await);
    }
    note("a_record_throws_away_what_it_does_not_keep", ledger::a_record_throws_away_what_it_does_not_keep(world).await);
    note("the_ledger_keeps_what_it_was_told_last", ledger::the_ledger_keeps_what_it_was_told_last(world).await);
    match (silent, world.lease()) {
        (Ok(silent), Some(lease)) => note("a_lease_ends", queue::a_lease_ends(world, silent, lease).await),
        (silent, _) => note("a_lease_begins", silent.map(drop)),
    }
    if wrong.is_empty() { Ok(()) } else { Err(Error::internal(format!("conformance: {}", wrong.join("; and ")))) }
}

fn check(holds: bool, found: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::internal(found())) }
}

/// Asks until there is something.
async fn eventually<T>(world: &dyn World, what: &str, mut ask: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    for _ in 0..600 {
        if let Some(found) = ask().await? {
            return Ok(found);
        }
        world.clock().sleep(Duration::from_millis(100)).await;
    }
    Err(Error::internal(format!("no {what} within 60 s")))
}

/// A column `id` that is the bucket key, a text, and a partition column where `partitioned`.
fn descriptor(partitioned: bool, lake: bool) -> TableDescriptor {
    let field = |id, name: &str, kind| Field { id, name: name.into(), data_type: DataType::nullable(kind), comment: None };
    let mut fields = vec![field(0, "id", TypeKind::BigInt), field(1, "words", TypeKind::String)];
    if partitioned {
        fields.push(field(2, "day", TypeKind::String));
    }
    let mut properties = BTreeMap::new();
    if lake {
        properties.insert("table.datalake.enabled".to_owned(), "true".to_owned());
        properties.insert("table.datalake.freshness".to_owned(), "1s".to_owned());
    }
    let highest_field_id = fields.last().map_or(-1, |field| field.id);
    TableDescriptor {
        schema: Schema { id: SchemaId(1), fields, primary_key: vec![], highest_field_id },
        comment: Some("conformance".into()),
        partition_keys: if partitioned { vec!["day".into()] } else { vec![] },
        bucket_keys: vec!["id".into()],
        bucket_count: Some(2),
        properties,
        custom_properties: BTreeMap::from([("owner".to_owned(), "suite".to_owned())]),
    }
}

async fn made(world: &dyn World, name: &str, table: &TableDescriptor) -> Result<TableInfo> {
    let path = TablePath::new(world.database(), name);
    world.create_table(&path, table).await?;
    world.scan().table_info(&path).await
}
