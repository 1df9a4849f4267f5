//! A real node process, its tables, who writes into them, and what they were told.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use lakeward::client::{Admin, Writer, WriterOptions};
use lakeward::error::Result;
use lakeward::fluss::bucket::{BucketFunction, buckets_of};
use lakeward::fluss::cluster::{Cluster, ClusterOptions};
use lakeward::fluss::table_json::TableDescriptor;
use lakeward::model::{BucketId, BucketKey, TablePath, TypeKind};
use lakeward::runtime::{FailPoints, Rng, Runtime};
use tempfile::TempDir;

use super::audit::Auditor;
use crate::keys::{self, Keys};
use crate::rounds::binary::{Ended, Running, run};
use crate::rounds::{descriptor, field, rows, until};
use crate::s3::server::Server;

/// A service that is silent for so long loses its table.
const LEASE: &str = "1s";

/// A row as it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// Partition; empty on a table without.
    pub(super) day: String,
    /// Columns that its writer knew.
    pub(super) columns: Vec<String>,
    /// Its text is long and can't be compressed.
    pub(super) large: bool,
}

impl Row {
    /// What column `name` of row `id` holds.
    pub(super) fn value(&self, id: i64, name: &str) -> Option<String> {
        if !self.columns.iter().any(|column| column == name) {
            return None;
        }
        if self.large { Some(large_text(id)) } else { (id % 7 != 0).then(|| format!("{name} of {id}")) }
    }
}

/// 1 KiB that can hardly be compressed.
fn large_text(id: i64) -> String {
    let rng = Rng::from_seed(u64::try_from(id).unwrap());
    (0..64).flat_map(|_| rng.uuid().into_bytes()).map(|byte| char::from(b'0' + byte % 64)).collect()
}

/// What was written into a table.
#[derive(Debug, Clone, Default)]
pub(super) struct Source {
    /// Acknowledged, by id.
    pub(super) rows: BTreeMap<i64, Row>,
    /// Sent, but the node died before it said anything.
    pub(super) unsure: BTreeMap<i64, Row>,
}

/// How a step ended that the node may have died in.
#[derive(Debug)]
pub(super) enum Ending<T> {
    Done(T),
    /// The node is dead; whether the step was done is not known.
    Died,
}

/// One node process and all around it.
pub(super) struct World {
    pub(super) dir: TempDir,
    /// Where the lake is, if not in the node's folder.
    bucket: Option<Server>,
    pub(super) runtime: Runtime,
    node: Option<Running>,
    log: PathBuf,
    address: String,
    link: Option<(Cluster, Admin)>,
    pub(super) sources: BTreeMap<TablePath, Source>,
    /// Buckets of [`accounts`].
    pub(super) keys: BTreeMap<BucketKey, Keys>,
    next_id: i64,
    pub(super) auditor: Auditor,
}

/// Where somebody died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Death {
    pub(super) point: String,
    pub(super) place: String,
}

/// ``fail point `P` kills at `PLACE` `` in a log.
pub(super) fn death(log: &str) -> Option<Death> {
    let line = log.lines().rev().find(|line| line.contains("fail point `") && line.contains("` kills at `"))?;
    let (_, rest) = line.split_once("fail point `")?;
    let (point, rest) = rest.split_once("` kills at `")?;
    Some(Death { point: point.to_owned(), place: rest.split('`').next()?.to_owned() })
}

impl World {
    /// Nothing runs yet.
    pub(super) fn new() -> Self {
        Self::on(None)
    }

    /// As [`World::new`], with the lake in a bucket of this server.
    pub(super) fn on(bucket: Option<Server>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Settings of this environment must not reach the test.
        let runtime = Runtime { fail: FailPoints::default(), ..Runtime::system(1, 64 << 20).unwrap() };
        let options = bucket.as_ref().map(Server::options).unwrap_or_default();
        let runtime = Runtime { stores: runtime.stores.clone().with_options(options), ..runtime };
        let log = dir.path().join("node.log");
        let address = "127.0.0.1:0".to_owned();
        Self {
            dir,
            bucket,
            runtime,
            node: None,
            log,
            address,
            link: None,
            sources: BTreeMap::new(),
            keys: BTreeMap::new(),
            next_id: 0,
            auditor: Auditor::default(),
        }
    }

    /// Starts the node, at the address it had before; how it died if it does so at once.
    pub(super) async fn start(&mut self, fail: Option<&str>) -> Option<Death> {
        let folder = self.dir.path().join("node").display().to_string();
        let args = ["node", "--dir", &folder, "--listen", &self.address, "--lease", LEASE];
        let (flags, mut args) = (self.flags(), args.to_vec());
        if self.bucket.is_some() {
            args.extend(["--warehouse", "s3://lake/w"]);
        }
        args.extend(flags.iter().map(String::as_str));
        let mut node = Running::failing_into(&args, fail, &self.log);
        let line = node.line();
        self.node = Some(node);
        let Some(line) = line else { return Some(self.buried().await) };
        self.address = line.split(' ').nth(1).unwrap().to_owned();
        let servers = [self.address.clone()];
        let runtime = self.runtime.clone();
        match self.step(async move { Cluster::connect(&servers, ClusterOptions::default(), &runtime).await }).await {
            Ending::Done(cluster) => {
                self.link = Some((cluster.clone(), Admin::new(cluster)));
                None
            }
            Ending::Died => Some(self.buried().await),
        }
    }

    /// Where the lake is.
    pub(super) fn bucket(&self) -> &Server {
        self.bucket.as_ref().expect("the lake is in a bucket")
    }

    /// How a process reaches the bucket.
    pub(super) fn flags(&self) -> Vec<String> {
        let options = self.bucket.as_ref().map(Server::options).unwrap_or_default();
        options.into_iter().map(|(key, value)| format!("--{key}={value}")).collect()
    }

    /// The node is dying: how.
    pub(super) async fn buried(&mut self) -> Death {
        self.link = None;
        let mut node = self.node.take().unwrap();
        let signal = until(&self.runtime, "the node is dead", async || node.killed()).await;
        let log = std::fs::read_to_string(&self.log).unwrap();
        assert_eq!(signal, 9, "{log}");
        death(&log).unwrap_or_else(|| panic!("the node died for no reason:\n{log}"))
    }

    /// SIGKILL from outside, at no certain point.
    pub(super) fn kill_node(&mut self) {
        self.link = None;
        drop(self.node.take());
    }

    pub(super) fn lives(&self) -> bool {
        self.link.is_some()
    }

    pub(super) fn cluster(&self) -> Cluster {
        self.link.as_ref().unwrap().0.clone()
    }

    pub(super) fn admin(&self) -> Admin {
        self.link.as_ref().unwrap().1.clone()
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// `act`, unless the node dies meanwhile. An error with a living node is a fault.
    pub(super) async fn step<T>(&mut self, act: impl Future<Output = Result<T>>) -> Ending<T> {
        let node = self.node.as_mut().unwrap();
        let clock = self.runtime.clock.clone();
        let dead = async {
            while node.try_wait().is_none() {
                clock.sleep(Duration::from_millis(2)).await;
            }
        };
        // The node dies a moment after the call that killed it: an error waits for that.
        let done = async {
            match act.await {
                Ok(done) => done,
                Err(error) => {
                    clock.sleep(Duration::from_secs(20)).await;
                    panic!("the node lives, and says: {}", error.chain());
                }
            }
        };
        tokio::select! {
            biased;
            done = done => Ending::Done(done),
            () = dead => Ending::Died,
        }
    }

    /// Ids of rows to come.
    pub(super) fn ids(&mut self, count: i64) -> std::ops::Range<i64> {
        let first = self.next_id;
        self.next_id += count;
        first..self.next_id
    }

    /// Rows into one partition (or a table without); what is acknowledged is the source.
    pub(super) async fn append(&mut self, path: &TablePath, day: &str, count: i64) -> Ending<()> {
        self.append_sized(path, day, count, false).await
    }

    pub(super) async fn append_sized(&mut self, path: &TablePath, day: &str, count: i64, large: bool) -> Ending<()> {
        let ids = self.ids(count);
        let (cluster, place, range) = (self.cluster(), path.clone(), ids.clone());
        let columns = Arc::new(Mutex::new(vec![]));
        let known = Arc::clone(&columns);
        let day_of = day.to_owned();
        let sending = Box::pin(async move {
            let mut writer = Writer::open(&cluster, &place, WriterOptions::default()).await?;
            let batch = rows(&writer, range.clone(), &day_of);
            let batch = if large {
                let text = Arc::new(range.map(|id| Some(large_text(id))).collect::<StringArray>());
                RecordBatch::try_new(batch.schema(), vec![Arc::clone(batch.column(0)), text]).unwrap()
            } else {
                batch
            };
            *known.lock().unwrap() = batch.schema().fields().iter().map(|field| field.name().clone()).collect();
            writer.append(&batch).await
        });
        let sent = self.step(sending).await;
        let source = self.sources.entry(path.clone()).or_default();
        let columns = columns.lock().unwrap().clone();
        let row = |id| (id, Row { day: day.to_owned(), columns: columns.clone(), large });
        match sent {
            Ending::Done(()) => source.rows.extend(ids.map(row)),
            Ending::Died => source.unsure.extend(ids.map(row)),
        }
        sent
    }

    /// Upserts and deletes in one partition of [`accounts`], whose node has to live.
    pub(super) async fn put(&mut self, day: &str, puts: &[(i64, Option<i64>)]) {
        let mut writer = Writer::open(&self.cluster(), &accounts(), WriterOptions::default()).await.unwrap();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(puts.iter().map(|(key, _)| *key).collect::<Int64Array>()),
            Arc::new(StringArray::from(vec![day; puts.len()])),
            Arc::new(puts.iter().map(|(_, number)| *number).collect::<Int64Array>()),
        ];
        let rows = RecordBatch::try_new(writer.schema(), columns).unwrap();
        let deletes: Vec<bool> = puts.iter().map(|(_, number)| number.is_none()).collect();
        writer.change(&rows, &deletes).await.map_err(|error| error.chain()).unwrap();
        let info = self.admin().table_info(&accounts()).await.unwrap();
        let partitions = self.admin().partitions(&accounts()).await.unwrap();
        let partition = partitions.iter().find(|partition| partition.name() == day).unwrap();
        let keys = [(&TypeKind::BigInt, &rows.columns()[0])];
        let buckets = buckets_of(BucketFunction::of(&info).unwrap(), &keys, partition.bucket_count.unwrap()).unwrap();
        for bucket in 0..partition.bucket_count.unwrap() {
            let mine: Vec<_> = puts.iter().zip(&buckets).filter(|(_, of)| **of == bucket).map(|(put, _)| *put).collect();
            if !mine.is_empty() {
                let bucket = BucketKey { partition: Some(partition.id), bucket: BucketId(bucket) };
                self.keys.entry(bucket).or_default().put(false, &mine);
            }
        }
    }

    /// The service works until the queue is empty, or dies at `fail`.
    pub(super) async fn serve(&self, fail: Option<&str>, wait: &str, more: &[&str]) -> (Ended, Option<Death>) {
        let flags = self.flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let args = [&["run", "--server", &self.address, "--once", "--wait", wait, "--json"], more, &flags].concat();
        Self::ended(run(&args, fail.map(str::to_owned)).await)
    }

    /// A backfill of `orders` that is to die at `fail`.
    pub(super) async fn backfill(&self, fail: &str) -> (Ended, Option<Death>) {
        self.command(&["backfill", "demo.orders", "--server", &self.address], fail).await
    }

    /// Any command that is to die at `fail`.
    pub(super) async fn command(&self, args: &[&str], fail: &str) -> (Ended, Option<Death>) {
        let flags = self.flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Self::ended(run(&[args, &flags].concat(), Some(fail.to_owned())).await)
    }

    fn ended(ended: Ended) -> (Ended, Option<Death>) {
        let death = (ended.signal == Some(9)).then(|| death(&ended.stderr).unwrap_or_else(|| panic!("{ended:?}")));
        assert!(death.is_some() || ended.code.is_some(), "{ended:?}");
        (ended, death)
    }

    /// Healthy runs until everything is in the lake and Fluss knows it. Returns how many it took.
    pub(super) async fn settle(&self) -> u32 {
        for runs in 1..=6 {
            let (ended, _) = self.serve(None, "1500ms", &[]).await;
            assert_eq!(ended.code, Some(0), "{ended:?}");
            assert!(!ended.stderr.contains("table held") && !ended.stderr.contains("panicked"), "{}", ended.stderr);
            if self.auditor.is_settled(self).await {
                return runs;
            }
        }
        panic!("six runs of a healthy service do not bring the lake up");
    }

    pub(super) async fn inspect(&mut self) {
        // What the dead one had sent and nobody had taken yet must not land behind the look.
        if let Some(bucket) = &self.bucket {
            bucket.has_caught_up().await;
        }
        let mut auditor = std::mem::take(&mut self.auditor);
        auditor.look(self, false).await;
        self.auditor = auditor;
    }

    pub(super) async fn audit(&mut self) {
        let mut auditor = std::mem::take(&mut self.auditor);
        auditor.look(self, true).await;
        self.auditor = auditor;
    }
}

pub(super) fn orders() -> TablePath {
    TablePath::new("demo", "orders")
}

pub(super) fn events() -> TablePath {
    TablePath::new("demo", "events")
}

fn column(name: &str, kind: TypeKind) -> lakeward::model::Field {
    field(name, kind, false)
}

/// `id` and a text, by partitions `day`; 2 buckets to begin with.
pub(super) fn orders_table() -> TableDescriptor {
    let fields = vec![column("id", TypeKind::BigInt), field("words", TypeKind::String, true), column("day", TypeKind::String)];
    descriptor(fields, &["day"], &["id"], 2)
}

/// `id` and a text; 3 buckets.
pub(super) fn events_table() -> TableDescriptor {
    descriptor(vec![column("id", TypeKind::BigInt), field("words", TypeKind::String, true)], &[], &["id"], 3)
}

pub(super) fn blobs() -> TablePath {
    TablePath::new("demo", "blobs")
}

/// A table with a primary key.
pub(super) fn accounts() -> TablePath {
    TablePath::new("demo", "accounts")
}

/// By partitions `day`; 2 buckets to begin with.
pub(super) fn accounts_table() -> TableDescriptor {
    let mut table = descriptor(keys::fields(), &["day"], &["id"], 2);
    table.schema.primary_key = vec!["id".into(), "day".into()];
    table
}

/// A table that is dropped again.
pub(super) fn gone() -> TablePath {
    TablePath::new("demo", "gone")
}

/// As [`events_table`], with one bucket.
pub(super) fn blobs_table() -> TableDescriptor {
    TableDescriptor { bucket_count: Some(1), ..events_table() }
}

pub(super) fn day(name: &str) -> Vec<(String, String)> {
    vec![("day".to_owned(), name.to_owned())]
}

/// `Ok` where the node lives.
pub(super) fn done<T>(ending: Ending<T>) -> T {
    match ending {
        Ending::Done(done) => done,
        Ending::Died => panic!("the node died"),
    }
}

/// The tables that each service case works on: `orders` with partitions of 2 and 4 buckets, `events` with 3 buckets.
pub(super) async fn with_tables() -> World {
    with_tables_on(None).await
}

/// As [`with_tables`], with the lake in a bucket of this server.
pub(super) async fn with_tables_on(bucket: Option<Server>) -> World {
    let mut world = World::on(bucket);
    assert_eq!(world.start(None).await, None);
    let admin = world.admin();
    let all = async {
        admin.create_database("demo", true).await?;
        admin.create_table(&orders(), &orders_table(), false).await?;
        admin.create_table(&events(), &events_table(), false).await?;
        admin.create_partition(&orders(), &day("a"), false).await?;
        admin.alter_bucket_count(&orders(), 4).await?;
        admin.create_partition(&orders(), &day("b"), false).await
    };
    done(world.step(all).await);
    world
}

/// Fresh rows into every bucket of every table.
pub(super) async fn load(world: &mut World) {
    for (path, day) in [(orders(), "a"), (orders(), "b"), (events(), "")] {
        done(world.append(&path, day, 40).await);
    }
}

/// Rows that are more than the source knows, by table.
pub(super) fn of_days(source: &Source) -> BTreeMap<String, BTreeSet<i64>> {
    let mut days: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
    for (id, row) in &source.rows {
        days.entry(row.day.clone()).or_default().insert(*id);
    }
    days
}
