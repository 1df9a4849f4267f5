//! The embedded server: coordinator and tablet server of the Fluss protocol in one process (architecture.md 7).
//!
//! Owns a folder: the registry, the logs, the states of primary-key tables, the offsets files, and by default the warehouse of the
//! lake tables it creates. Official clients work against it and get a clear error for what it does not serve. The service cannot tell it
//! from a cluster: it has one source path, the wire. Called by `cli` and by tests.

mod lake;
pub mod kv;
pub mod log;
mod places;
pub mod registry;
mod server;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
mod slots;
mod snapshots;
pub mod tiering;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::{Error, Result};
use crate::fluss::connection::Credentials;
use crate::runtime::Runtime;

use kv::{KvOptions, KvStore};
use log::{LogOptions, LogStore};
use registry::{Limits, Registry};
use server::Server;

/// How a node runs.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// Its folder; made when missing. One node at a time.
    pub dir: PathBuf,
    /// Address to listen on; port 0 = a free one.
    pub listen: String,
    /// Address that clients are told, `HOST` or `HOST:PORT`; the listening one if not set.
    pub advertise: Option<String>,
    /// Who may talk to it, by SASL/PLAIN; nobody has to log in if there are none.
    pub users: Vec<Credentials>,
    /// Root of the lake tables, a path or `file:` URL; `warehouse` in the folder if not set.
    pub warehouse: Option<String>,
    /// How long a table stays with its holder after the last heartbeat.
    pub lease: Duration,
    /// What is asked of clients of rescaled tables.
    pub routing: RoutingOptions,
    /// Bounds on who is connected.
    pub clients: ClientOptions,
    /// Bounds on what users create.
    pub limits: Limits,
    /// How logs are kept; `log.fsync` also covers offsets files.
    pub log: LogOptions,
    /// How states of primary-key tables are kept.
    pub kv: KvOptions,
    /// Pause between two looks for rows that are past their time.
    pub retention_interval: Duration,
    /// Pause between two looks for partitions to create and drop.
    pub partition_interval: Duration,
}

impl NodeOptions {
    /// Defaults for the folder `dir`: a free loopback port, everything synced.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            listen: "127.0.0.1:0".to_owned(),
            advertise: None,
            users: Vec::new(),
            warehouse: None,
            lease: Duration::from_secs(120),
            routing: RoutingOptions::default(),
            clients: ClientOptions::default(),
            limits: Limits::default(),
            log: LogOptions::default(),
            kv: KvOptions::default(),
            retention_interval: Duration::from_secs(60),
            partition_interval: Duration::from_secs(600),
        }
    }
}

/// The keys `clients.*`. What clients send and leave unread holds at most half of the runtime's budget each way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientOptions {
    /// Connections at once; `None` = by the open files that the machine gives.
    pub connections_max: Option<usize>,
    /// How long a connection may ask nothing (F8: official servers and clients close it after 10 min as well).
    pub idle: Duration,
    /// How long a new connection may say nothing sound, and a request or an answer may hardly move.
    pub stall: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { connections_max: None, idle: Duration::from_secs(600), stall: Duration::from_secs(30) }
    }
}

/// The keys `routing.*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoutingOptions {
    /// Requests that don't say by which bucket count they are routed: which of them rescaled tables serve.
    pub accept_absent_count: AcceptAbsentCount,
}

/// Which requests without `routing_bucket_count` are served on rescaled tables. On others all are (F4.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AcceptAbsentCount {
    /// None, as in Fluss.
    #[default]
    Never,
    /// Those that read the rows of a bucket they name: FetchLog, ListOffsets, LimitScan, ScanKv, GetTableStats. Older clients and pyfluss 1.0 can
    /// then read; but one that takes the table's count for a partition's asks for too few buckets and misses rows (S10.1 trap 16).
    Reads,
}

/// A running node. Dropping it ends it without a flush, as a crash would; [`Node::stop`] ends it well.
#[derive(Debug)]
pub struct Node {
    address: SocketAddr,
    server: Arc<Server>,
    stopping: CancellationToken,
    tasks: TaskTracker,
}

impl Node {
    /// Opens the folder and serves it from now on.
    ///
    /// # Errors
    /// `Invalid` when an address or a folder can't be used; `Unavailable` when another node has the folder; `Data` when what is
    /// stored is damaged.
    pub async fn start(options: NodeOptions, runtime: Runtime) -> Result<Self> {
        let listener = TcpListener::bind(&options.listen)
            .await
            .map_err(|source| Error::invalid(format!("listen on `{}`", options.listen)).with_source(source))?;
        let address = listener
            .local_addr()
            .map_err(|source| Error::invalid(format!("listen on `{}`", options.listen)).with_source(source))?;
        let (stopping, tasks) = (CancellationToken::new(), TaskTracker::new());
        if options.routing.accept_absent_count == AcceptAbsentCount::Reads {
            tracing::warn!("clients that don't say by which bucket count they route may read rescaled tables: some may miss rows");
        }
        let server = Arc::new(Server::open(options, address, runtime, stopping.clone()).await?);
        tasks.spawn(server::connection::accept(Arc::clone(&server), listener, tasks.clone()));
        tasks.spawn(server::chores::retention(Arc::clone(&server)));
        tasks.spawn(server::chores::partitions(Arc::clone(&server)));
        tasks.spawn(server::chores::states(Arc::clone(&server)));
        tracing::info!(%address, "node started");
        Ok(Self { address, server, stopping, tasks })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Root of the lake tables it creates.
    #[must_use]
    pub fn warehouse(&self) -> &str {
        self.server.warehouse()
    }

    /// Takes no more requests, answers those in flight, makes everything durable.
    pub async fn stop(self) {
        self.stopping.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.server.flush().await;
        tracing::info!(address = %self.address, "node stopped");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stopping.cancel();
    }
}

/// Opens registry, logs and states, and clears away what a crash left of dropped tables (blocking).
fn open(options: &NodeOptions, runtime: &Runtime) -> Result<(Registry, Arc<LogStore>, KvStore)> {
    std::fs::create_dir_all(&options.dir)
        .map_err(|source| Error::invalid(format!("create folder `{}`", options.dir.display())).with_source(source))?;
    let registry = Registry::open(&options.dir.join("registry.redb"), runtime.clock.now_ms(), runtime.fail.clone())?;
    let logs = Arc::new(LogStore::open(options.dir.join("log"), options.log.clone(), runtime)?);
    let states = KvStore::open(options.dir.join("kv"), options.kv.clone(), Arc::clone(&logs), runtime)?;
    let known = |table, partition: Option<_>| {
        registry
            .table_by_id(table)
            .is_some_and(|table| partition.is_none_or(|partition| table.partitions_by_id.contains_key(&partition)))
    };
    logs.delete_unknown(known)?;
    states.delete_unknown(known)?;
    Ok((registry, logs, states))
}
