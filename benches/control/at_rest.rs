//! A daemon over tables without rows, at the default freshness (3 minutes): core time, memory, threads.
//!
//! The node runs in this process, the daemon is the binary of this build, or the one that `LAKEWARD_BIN` names.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lakeward::client::Admin;
use lakeward::fluss::cluster::{Cluster, ClusterOptions};
use lakeward::fluss::table_json::TableDescriptor;
use lakeward::model::{DataType, Field, Schema, SchemaId, TablePath, TypeKind};
use lakeward::node::{Node, NodeOptions};
use lakeward::runtime::Runtime;

/// The daemon; it ends with this.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

pub(super) fn report(tables: u64, settle: Duration, minutes: u32) {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let node = tokio.block_on(node_with(tables, dir.path()));
    let binary = std::env::var("LAKEWARD_BIN").unwrap_or_else(|_| env!("CARGO_BIN_EXE_lakeward").to_owned());
    let daemon = Command::new(&binary).args(["run", "--server", &node.address().to_string()]).stdin(Stdio::null()).spawn().unwrap();
    let daemon = Daemon(daemon);
    let process = daemon.0.id().to_string();
    println!("{tables} empty tables, {binary}: looked at after {} s", settle.as_secs());
    super::sleep(settle);
    let first = super::core_seconds(&process);
    println!("start and first looks: {first:.2} core seconds, {}", memory(&process));
    let mut before = first;
    for minute in 1..=minutes {
        super::sleep(Duration::from_secs(60));
        let now = super::core_seconds(&process);
        println!("minute {minute}: {:.2} core seconds, {}", now - before, memory(&process));
        before = now;
    }
    println!("per minute: {:.3} core seconds", (before - first) / f64::from(minutes));
    drop(daemon);
    drop(node);
}

async fn node_with(tables: u64, dir: &std::path::Path) -> Node {
    let runtime = Runtime::system(2, 64 << 20).unwrap();
    let mut options = NodeOptions::new(dir);
    options.log.fsync = false;
    let node = Node::start(options, runtime.clone()).await.unwrap();
    let cluster = Cluster::connect(&[node.address().to_string()], ClusterOptions::default(), &runtime).await.unwrap();
    let admin = Admin::new(cluster);
    admin.create_database("demo", true).await.unwrap();
    let field = |id, name: &str, kind| Field { id, name: name.to_owned(), data_type: DataType::nullable(kind), comment: None };
    let fields = vec![field(0, "id", TypeKind::BigInt), field(1, "note", TypeKind::String)];
    for number in 0..tables {
        let table = TableDescriptor {
            schema: Schema { id: SchemaId(1), fields: fields.clone(), primary_key: vec![], highest_field_id: 1 },
            comment: None,
            partition_keys: vec![],
            bucket_keys: vec!["id".to_owned()],
            bucket_count: Some(4),
            properties: [("table.datalake.enabled".to_owned(), "true".to_owned())].into(),
            custom_properties: [].into(),
        };
        admin.create_table(&TablePath::new("demo", format!("t{number:04}")), &table, false).await.unwrap();
    }
    node
}

/// What the kernel says of its memory and threads.
fn memory(process: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let wanted = ["VmHWM:", "VmRSS:", "RssAnon:", "RssFile:", "Threads:"];
    let fields = status.lines().filter(|line| wanted.iter().any(|name| line.starts_with(name)));
    fields.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join(", ")
}
