//! The source traits over the wire, against the embedded node and, where one is named, a real cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use async_trait::async_trait;
use bytes::Bytes;
use lakeward::client::{Admin, Writer, WriterOptions};
use lakeward::error::Result;
use lakeward::fluss::bucket::{BucketFunction, KeyRules, KeyWriter, buckets_of};
use lakeward::fluss::cluster::{Cluster, ClusterOptions};
use lakeward::fluss::code::Code;
use lakeward::fluss::proto::{
    CommitLakeTableSnapshotRequest, PbBucketOffset, PbLakeTableSnapshotMetadata, PbPutKvReqForBucket, PbTableOffsets,
    PrepareLakeTableSnapshotRequest, PutKvRequest,
};
use lakeward::fluss::record::{KvBatchBuilder, KvFormat, NO_SEQUENCE, NO_WRITER, RowEncoder};
use lakeward::fluss::table_json::TableDescriptor;
use lakeward::model::{BucketId, BucketLayout, Field, LakeOffsets, PartitionId, TableBucket, TableInfo, TablePath};
use lakeward::node::{Node, NodeOptions};
use lakeward::runtime::{BackoffOptions, Clock, Runtime};
use lakeward::source::cluster::ClusterSource;
use lakeward::source::conformance::{World, run};
use lakeward::source::{Assignments, LakeLedger, LedgerRecord, TableScan};

struct Wire {
    source: ClusterSource,
    admin: Admin,
    runtime: Runtime,
    database: String,
    rescales: bool,
    offloads: bool,
    lease: Option<Duration>,
}

impl Wire {
    /// A node, or a real cluster of 0.9.1.
    async fn connect(address: String, runtime: Runtime, node: bool, lease: Option<Duration>) -> Self {
        // The suite asks for what is gone, which is looked for as long as this.
        let retry = BackoffOptions { attempts_max: if node { 3 } else { 7 }, ..ClusterOptions::default().retry };
        let options = ClusterOptions { retry, ..ClusterOptions::default() };
        let cluster = Cluster::connect(&[address], options, &runtime).await.unwrap();
        let admin = Admin::new(cluster.clone());
        let database = format!("conformance_{}", runtime.rng.uuid().simple());
        admin.create_database(&database, false).await.unwrap();
        Self { source: ClusterSource::new(cluster), admin, runtime, database, rescales: node, offloads: !node, lease }
    }
}

#[async_trait]
impl World for Wire {
    fn assignments(&self) -> &dyn Assignments {
        &self.source
    }
    fn scan(&self) -> &dyn TableScan {
        &self.source
    }
    fn ledger(&self) -> &dyn LakeLedger {
        &self.source
    }
    fn clock(&self) -> &Clock {
        &self.runtime.clock
    }
    fn database(&self) -> &str {
        &self.database
    }
    fn rescales(&self) -> bool {
        self.rescales
    }
    fn offloads(&self) -> bool {
        self.offloads
    }
    fn serves_states(&self) -> bool {
        self.rescales
    }
    fn lease(&self) -> Option<Duration> {
        self.lease
    }
    async fn create_table(&self, path: &TablePath, table: &TableDescriptor) -> Result<()> {
        self.admin.create_table(path, table, false).await
    }
    async fn drop_table(&self, path: &TablePath) -> Result<()> {
        self.admin.drop_table(path, false).await
    }
    async fn create_partition(&self, path: &TablePath, spec: &[(String, String)]) -> Result<()> {
        self.admin.create_partition(path, spec, false).await
    }
    async fn drop_partition(&self, path: &TablePath, spec: &[(String, String)]) -> Result<()> {
        self.admin.drop_partition(path, spec, false).await
    }
    async fn alter_bucket_count(&self, path: &TablePath, count: i32) -> Result<()> {
        self.admin.alter_bucket_count(path, count).await
    }
    async fn set_option(&self, path: &TablePath, key: &str, value: &str) -> Result<()> {
        self.admin.alter_options(path, &[(key.to_owned(), Some(value.to_owned()))]).await
    }
    async fn add_column(&self, path: &TablePath, column: &Field) -> Result<()> {
        self.admin.add_columns(path, std::slice::from_ref(column)).await
    }
    async fn append(&self, path: &TablePath, rows: &RecordBatch) -> Result<()> {
        Writer::open(self.source.cluster(), path, WriterOptions::default()).await?.append(rows).await
    }
    async fn put(&self, path: &TablePath, rows: &RecordBatch, deletes: &[bool]) -> Result<()> {
        let table = self.source.table_info(path).await?;
        let partition = match table.is_partitioned() {
            false => None,
            // Rows of the suite name the partition in their third column.
            true => {
                let day = rows.column(2).as_string::<i32>().value(0);
                self.source.partitions(&table).await?.into_iter().find(|partition| partition.name() == day)
            }
        };
        let layout = BucketLayout::of(&table, partition.as_ref())?;
        let rules = KeyRules::of(&table)?;
        let column = |name: &String| {
            let at = table.schema.index_of(name).unwrap();
            (&table.schema.fields[at].data_type.kind, rows.column(at))
        };
        let keys: Vec<_> = rules.columns.iter().map(column).collect();
        let hashed: Vec<_> = rules.bucket_columns.iter().map(column).collect();
        let of_rows = buckets_of(BucketFunction::of(&table)?, &hashed, layout.count)?;
        let mut keys = KeyWriter::new(rules.encoding, &keys)?;
        let encoder = RowEncoder::new(KvFormat::Compacted, &table.schema, rows)?;
        let mut batches: BTreeMap<TableBucket, KvBatchBuilder> = BTreeMap::new();
        for (row, bucket) in of_rows.into_iter().enumerate() {
            let partition = partition.as_ref().map(|partition| partition.id);
            let bucket = TableBucket { table: table.id, partition, bucket: BucketId(bucket) };
            let batch = batches.entry(bucket).or_insert(KvBatchBuilder::new(table.schema.id)?);
            let mut bytes = vec![];
            encoder.encode(row, &mut bytes)?;
            batch.push(keys.key(row)?, (!deletes[row]).then_some(&bytes[..]))?;
        }
        let sent: BTreeMap<TableBucket, Bytes> =
            batches.into_iter().map(|(bucket, batch)| (bucket, batch.finish(NO_WRITER, NO_SEQUENCE))).collect();
        let (cluster, id) = (self.source.cluster(), table.id);
        let answers = cluster.routed("put rows", path, sent.keys().copied(), |server, buckets| {
            let request = PutKvRequest {
                acks: -1,
                table_id: table.id.0,
                timeout_ms: 30_000,
                buckets_req: buckets
                    .iter()
                    .map(|bucket| PbPutKvReqForBucket {
                        partition_id: bucket.partition.map(|partition| partition.0),
                        bucket_id: bucket.bucket.0,
                        records: sent[bucket].clone(),
                        original_partition_name: None,
                        routing_bucket_count: Some(layout.count),
                    })
                    .collect(),
                ..PutKvRequest::default()
            };
            Box::pin(async move {
                let answer = cluster.server(server, &request).await?;
                let answers = answer.buckets_resp.into_iter().map(|answer| {
                    let (partition, bucket) = (answer.partition_id.map(PartitionId), BucketId(answer.bucket_id));
                    let refusal = Code::refusal(answer.error_code, answer.error_message.as_deref());
                    (TableBucket { table: id, partition, bucket }, refusal.map_or(Ok(()), Err))
                });
                Ok(answers.collect())
            })
        });
        answers.await.map(drop)
    }
    async fn prepare_overlaid(&self, table: &TableInfo, offsets: &LakeOffsets) -> Result<String> {
        let bucket_offsets = offsets.0.iter().map(|(key, offset)| PbBucketOffset {
            partition_id: key.partition.map(|partition| partition.0),
            bucket_id: key.bucket.0,
            log_end_offset: Some(*offset),
        });
        let request = PrepareLakeTableSnapshotRequest {
            bucket_offsets: vec![PbTableOffsets {
                table_id: table.id.0,
                table_path: (&table.path).into(),
                bucket_offsets: bucket_offsets.collect(),
            }],
            ignore_previous_table_offsets: None,
        };
        let mut entries = self.source.cluster().coordinator(&request).await?.prepare_lake_table_resp;
        let entry = entries.pop().unwrap();
        match Code::refusal(entry.error_code, entry.error_message.as_deref()) {
            Some(error) => Err(error),
            None => Ok(entry.lake_table_offsets_path.unwrap()),
        }
    }
    async fn record_alone(&self, record: LedgerRecord) -> Result<()> {
        let request = CommitLakeTableSnapshotRequest {
            tables_req: vec![],
            lake_table_snapshot_metadata: vec![PbLakeTableSnapshotMetadata {
                table_id: record.table.0,
                snapshot_id: record.snapshot.0,
                tiered_bucket_offsets_file_path: record.offsets_path.clone(),
                readable_bucket_offsets_file_path: Some(record.offsets_path),
                earliest_snapshot_id_to_keep: None,
            }],
        };
        let answer = self.source.cluster().coordinator_once(&request).await?;
        let fault = answer.table_resp.iter().find_map(|entry| Code::refusal(entry.error_code, entry.error_message.as_deref()));
        fault.map_or(Ok(()), Err)
    }
}

fn runtime() -> Runtime {
    Runtime::system(1, 64 << 20).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let lease = Duration::from_secs(2);
    let options = NodeOptions { lease, ..NodeOptions::new(dir.path()) };
    let node = Node::start(options, runtime()).await.unwrap();
    let world = Wire::connect(node.address().to_string(), runtime(), true, Some(lease)).await;
    run(&world).await.map_err(|error| error.chain()).unwrap();
    node.stop().await;
}

/// `LAKEWARD_CLUSTER=HOST:PORT [LAKEWARD_CLUSTER_LEASE=120] cargo test --test it -- --ignored a_real_cluster_conforms`, on a cluster that
/// nobody else uses and whose logs leave it soon (64 KiB segments). With the lease's seconds it waits for one to run out.
/// The case `conformance` of the interop suite does it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Fluss 0.9.1 cluster at LAKEWARD_CLUSTER"]
async fn a_real_cluster_conforms() {
    let address = std::env::var("LAKEWARD_CLUSTER").unwrap();
    let lease = std::env::var("LAKEWARD_CLUSTER_LEASE").ok().map(|seconds| Duration::from_secs(seconds.parse().unwrap()));
    let world = Wire::connect(address, runtime(), false, lease).await;
    run(&world).await.map_err(|error| error.chain()).unwrap();
}
