//! The metadata cache: servers, and who leads which bucket.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Cluster;
use crate::error::{Error, Kind, Result};
use crate::fluss::code::Code;
use crate::fluss::proto::{MetadataRequest, MetadataResponse, PbBucketMetadata, PbServerNode};
use crate::model::{BucketId, BucketKey, PartitionId, Schema, SchemaId, TableBucket, TableId, TablePath};

/// Partitions that one GetMetadata request asks for at most.
const PARTITIONS_PER_REQUEST: usize = 500;

/// A server as metadata names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) address: String,
}

impl From<PbServerNode> for Server {
    fn from(node: PbServerNode) -> Self {
        Self { address: node.address() }
    }
}

/// Where buckets are led now.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Located {
    /// Tablet server id and the buckets it leads.
    pub servers: BTreeMap<i32, Vec<TableBucket>>,
    /// Buckets without a leader (44), that metadata does not know (21), or whose partition is gone (36).
    pub missing: BTreeMap<TableBucket, Code>,
}

#[derive(Debug, Default)]
pub(super) struct Metadata {
    pub(super) coordinator: Option<Server>,
    pub(super) tablets: BTreeMap<i32, Server>,
    tables: BTreeMap<TablePath, Table>,
}

#[derive(Debug, Default)]
struct Table {
    id: Option<TableId>,
    leaders: BTreeMap<BucketKey, i32>,
    schemas: BTreeMap<SchemaId, Arc<Schema>>,
}

impl Metadata {
    /// Each answer replaces the list of tablet servers (S1.4).
    pub(super) fn take_servers(&mut self, coordinator: Option<PbServerNode>, tablets: Vec<PbServerNode>) -> Result<()> {
        if let Some(coordinator) = coordinator {
            self.coordinator = Some(coordinator.into());
        }
        if tablets.is_empty() {
            return Err(Code::LEADER_NOT_AVAILABLE.error("no tablet server is alive"));
        }
        self.tablets = tablets.into_iter().map(|node| (node.node_id, node.into())).collect();
        Ok(())
    }

    pub(super) fn addresses(&self) -> BTreeSet<String> {
        self.coordinator.iter().chain(self.tablets.values()).map(|server| server.address.clone()).collect()
    }

    pub(super) fn forget(&mut self, path: &TablePath) {
        self.tables.remove(path);
    }

    /// Drops what is known of a table that was at `path` before, and keeps `schema` of the one with this id.
    pub(super) fn meet(&mut self, path: &TablePath, id: TableId, schema: Arc<Schema>) {
        self.table(path, id).schemas.insert(schema.id, schema);
    }

    /// The entry of the table with this id; what an earlier one at `path` left is dropped.
    fn table(&mut self, path: &TablePath, id: TableId) -> &mut Table {
        let table = self.tables.entry(path.clone()).or_default();
        if table.id.is_some_and(|known| known != id) {
            *table = Table::default();
        }
        table.id = Some(id);
        table
    }

    pub(super) fn schema(&self, path: &TablePath, id: SchemaId) -> Option<Arc<Schema>> {
        self.tables.get(path)?.schemas.get(&id).map(Arc::clone)
    }

    pub(super) fn keep_schema(&mut self, path: &TablePath, schema: Arc<Schema>) {
        self.tables.entry(path.clone()).or_default().schemas.insert(schema.id, schema);
    }

    /// Sorts `buckets` into those with a known leader and the rest.
    fn locate(&self, path: &TablePath, buckets: &[TableBucket], located: &mut Located) -> Vec<TableBucket> {
        let table = self.tables.get(path);
        let mut rest = Vec::new();
        for bucket in buckets {
            let leader =
                table.filter(|table| table.id == Some(bucket.table)).and_then(|table| table.leaders.get(&(*bucket).into()));
            match leader.filter(|leader| self.tablets.contains_key(*leader)) {
                Some(leader) => located.servers.entry(*leader).or_default().push(*bucket),
                None => rest.push(*bucket),
            }
        }
        rest
    }

    /// Takes in what a server says about `path`; returns what it told of each bucket: its leader or that it has none.
    fn take_table(&mut self, path: &TablePath, id: TableId, answer: MetadataResponse) -> Result<BTreeMap<BucketKey, Option<i32>>> {
        self.take_servers(answer.coordinator_server, answer.tablet_servers)?;
        let mut told = BTreeMap::new();
        let mut take = |partition: Option<PartitionId>, buckets: Vec<PbBucketMetadata>| {
            told.extend(
                buckets.into_iter().map(|bucket| (BucketKey { partition, bucket: BucketId(bucket.bucket_id) }, bucket.leader_id)),
            );
        };
        for table in answer.table_metadata {
            if TablePath::from(table.table_path) != *path {
                continue;
            }
            if table.table_id != id.0 {
                self.forget(path);
                return Err(another_id(path, id, TableId(table.table_id)));
            }
            take(None, table.bucket_metadata);
        }
        for partition in answer.partition_metadata.into_iter().filter(|partition| partition.table_id == id.0) {
            take(Some(PartitionId(partition.partition_id)), partition.bucket_metadata);
        }
        let table = self.table(path, id);
        for (bucket, leader) in &told {
            match leader {
                Some(leader) => drop(table.leaders.insert(*bucket, *leader)),
                None => drop(table.leaders.remove(bucket)),
            }
        }
        Ok(told)
    }
}

fn another_id(path: &TablePath, wanted: TableId, found: TableId) -> Error {
    Error::stale(format!("table `{path}` was dropped and made again: its id is `{found}`, not `{wanted}`"))
        .with_code(Code::TABLE_NOT_EXIST.0)
}

impl Cluster {
    /// Says who leads each of `buckets` of one table, asking for what is not cached. One look; nothing is repeated.
    ///
    /// # Errors
    /// `Invalid` (7) when there is no such table, `Stale` (7) when it has another id now; `Unavailable`.
    pub async fn locate(&self, path: &TablePath, buckets: &[TableBucket]) -> Result<Located> {
        let mut located = Located::default();
        let rest = self.metadata().locate(path, buckets, &mut located);
        let Some(id) = rest.first().map(|bucket| bucket.table) else { return Ok(located) };
        let partitions: BTreeSet<PartitionId> = rest.iter().filter_map(|bucket| bucket.partition).collect();
        let partitions: Vec<PartitionId> = partitions.into_iter().collect();
        let mut told = BTreeMap::new();
        let mut gone = BTreeSet::new();
        if partitions.is_empty() {
            told = self.ask_table(path, id, &[]).await?;
        }
        for chunk in partitions.chunks(PARTITIONS_PER_REQUEST) {
            match self.ask_table(path, id, chunk).await {
                Ok(more) => told.extend(more),
                // One missing partition fails the whole request (S1.4): ask for each alone to find out which.
                Err(error) if error.code() == Some(Code::PARTITION_NOT_EXISTS.0) => {
                    for partition in chunk {
                        match self.ask_table(path, id, &[*partition]).await {
                            Ok(more) => told.extend(more),
                            Err(error) if error.code() == Some(Code::PARTITION_NOT_EXISTS.0) => drop(gone.insert(*partition)),
                            Err(error) => return Err(error),
                        }
                    }
                }
                Err(error) => return Err(error),
            }
        }
        let metadata = self.metadata();
        for bucket in rest {
            match told.get(&bucket.into()) {
                Some(Some(leader)) if metadata.tablets.contains_key(leader) => {
                    located.servers.entry(*leader).or_default().push(bucket);
                }
                Some(_) => drop(located.missing.insert(bucket, Code::LEADER_NOT_AVAILABLE)),
                None if bucket.partition.is_some_and(|partition| gone.contains(&partition)) => {
                    located.missing.insert(bucket, Code::PARTITION_NOT_EXISTS);
                }
                None => drop(located.missing.insert(bucket, Code::UNKNOWN_TABLE_OR_BUCKET)),
            }
        }
        Ok(located)
    }

    async fn ask_table(
        &self,
        path: &TablePath,
        id: TableId,
        partitions: &[PartitionId],
    ) -> Result<BTreeMap<BucketKey, Option<i32>>> {
        let request = MetadataRequest {
            table_path: vec![path.into()],
            partitions_path: Vec::new(),
            partitions_id: partitions.iter().map(|partition| partition.0).collect(),
        };
        match self.ask_metadata(&request).await {
            Ok(answer) => self.metadata().take_table(path, id, answer),
            // 0.9.1 says -1 where the table is missing (S1.4); GetTableInfo tells.
            Err(error) if error.code() == Some(Code::UNKNOWN_SERVER_ERROR.0) => match self.table_info(path).await {
                Err(told) if told.kind() == Kind::Invalid => Err(told),
                Ok(info) if info.id != id => Err(another_id(path, id, info.id)),
                _ => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// Forgets who leads `bucket`: the next [`Cluster::locate`] asks again.
    pub fn suspect(&self, path: &TablePath, bucket: TableBucket) {
        if let Some(table) = self.metadata().tables.get_mut(path) {
            table.leaders.remove(&bucket.into());
        }
    }
}
