//! The source traits over the wire, against the embedded node and, where one is named, a real cluster.

use std::time::Duration;

use arrow_array::RecordBatch;
use async_trait::async_trait;
use lakeward::client::{Admin, Writer, WriterOptions};
use lakeward::error::Result;
use lakeward::fluss::cluster::{Cluster, ClusterOptions};
use lakeward::fluss::table_json::TableDescriptor;
use lakeward::model::TablePath;
use lakeward::node::{Node, NodeOptions};
use lakeward::runtime::{Clock, Runtime};
use lakeward::source::cluster::ClusterSource;
use lakeward::source::conformance::{World, run};
use lakeward::source::{Assignments, LakeLedger, TableScan};

struct Wire {
    source: ClusterSource,
    admin: Admin,
    runtime: Runtime,
    database: String,
    rescales: bool,
    lease: Option<Duration>,
}

impl Wire {
    async fn connect(address: String, runtime: Runtime, rescales: bool, lease: Option<Duration>) -> Self {
        let cluster = Cluster::connect(&[address], ClusterOptions::default(), &runtime).await.unwrap();
        let admin = Admin::new(cluster.clone());
        let database = format!("conformance_{}", runtime.rng.uuid().simple());
        admin.create_database(&database, false).await.unwrap();
        Self { source: ClusterSource::new(cluster), admin, runtime, database, rescales, lease }
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
    async fn append(&self, path: &TablePath, rows: &RecordBatch) -> Result<()> {
        Writer::open(self.source.cluster(), path, WriterOptions::default()).await?.append(rows).await
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
/// nobody else uses: the suite empties its queue. With the lease's seconds it waits for one to run out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Fluss 0.9.1 cluster at LAKEWARD_CLUSTER"]
async fn a_real_cluster_conforms() {
    let address = std::env::var("LAKEWARD_CLUSTER").unwrap();
    let lease = std::env::var("LAKEWARD_CLUSTER_LEASE").ok().map(|seconds| Duration::from_secs(seconds.parse().unwrap()));
    let world = Wire::connect(address, runtime(), false, lease).await;
    run(&world).await.map_err(|error| error.chain()).unwrap();
}
