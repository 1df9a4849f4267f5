//! What is served: requests in, answers out.
//!
//! `connection` moves frames, `clients` bounds what those who are connected can do, `login` says whose, the other files answer: `metadata` and `ddl` for databases, tables and partitions, `data` for logs,
//! `tiering` for the lake service. `chores` are what nobody asks for.

pub(super) mod chores;
mod clients;
pub(super) mod connection;
mod data;
mod ddl;
mod fetch;
mod keyed;
mod login;
mod metadata;
mod tiering;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use self::clients::Clients;
use super::kv::{KvStore, Scanners};
use super::lake::Lake;
use super::log::{BucketLog, LogStore};
use super::registry::{Registry, Table, freshness_ms, lake_enabled};
use super::snapshots::Snapshots;
use super::tiering::Queue;
use super::{AcceptAbsentCount, NodeOptions, open};
use crate::error::{Error, Result};
use crate::fluss::api::ApiKey;
use crate::fluss::code::Code;
use crate::fluss::frame::{RequestFrame, ResponseFrame};
use crate::fluss::proto::{ApiVersionsRequest, ApiVersionsResponse, Message, PbApiVersion, PbServerNode, decode};
use crate::model::{BucketId, BucketLayout, PartitionId, TableBucket, TableId};
use crate::runtime::{Moment, Runtime};
use crate::storage::{self, StoreOptions};

/// Both roles have this node id (S1.2).
const NODE_ID: i32 = 0;

/// Everything that answering takes.
#[derive(Debug)]
pub(super) struct Server {
    options: NodeOptions,
    runtime: Runtime,
    registry: Arc<Registry>,
    logs: Arc<LogStore>,
    states: Arc<KvStore>,
    scanners: Arc<Scanners>,
    clients: Arc<Clients>,
    snapshots: Snapshots,
    lake: Lake,
    queue: Mutex<Queue>,
    /// End offset in the lake per bucket, as committers reported it; it only grows (F3.3).
    lake_ends: Mutex<BTreeMap<TableBucket, i64>>,
    node: PbServerNode,
    started: Moment,
    stopping: CancellationToken,
}

impl Server {
    pub(super) async fn open(
        options: NodeOptions,
        address: SocketAddr,
        runtime: Runtime,
        stopping: CancellationToken,
    ) -> Result<Self> {
        let node = advertised(options.advertise.as_deref(), address)?;
        let (registry, logs, states) = {
            let (options, runtime) = (options.clone(), runtime.clone());
            tokio::task::spawn_blocking(move || open(&options, &runtime))
                .await
                .map_err(|source| Error::internal("start task ended").with_source(source))??
        };
        let registry = Arc::new(registry);
        let folder = |name: &str| options.dir.join(name).display().to_string();
        let unsynced = !options.log.fsync;
        let open_store = |url: &str| {
            let own = runtime.stores.options();
            let store = storage::open(url, &StoreOptions { unsynced, own, ..StoreOptions::default() })?;
            Ok::<_, Error>(store.with_fail_points(runtime.fail.clone()))
        };
        let remote = open_store(&folder("remote"))?;
        let warehouse = options.warehouse.clone().unwrap_or_else(|| folder("warehouse"));
        // Clients get an absolute path whatever was typed.
        let warehouse = open_store(&warehouse)?;
        let started = runtime.clock.moment();
        let mut queue = Queue::new(registry.epoch(), i64::try_from(options.lease.as_millis()).unwrap_or(i64::MAX));
        for table in registry.tables().iter().filter(|table| lake_enabled(&table.info)) {
            queue.add(table.info.id, table.info.path.clone(), freshness_ms(&table.info), 0);
        }
        Ok(Self {
            snapshots: Snapshots::new(Arc::clone(&registry), remote, runtime.rng.clone()),
            lake: Lake::new(warehouse, runtime.clone()),
            scanners: Arc::new(Scanners::new(states.options(), runtime.clock.clone())),
            clients: Clients::new(options.clients, &runtime),
            options,
            runtime,
            registry,
            logs,
            states: Arc::new(states),
            queue: Mutex::new(queue),
            lake_ends: Mutex::default(),
            node,
            started,
            stopping,
        })
    }

    pub(super) fn warehouse(&self) -> &str {
        self.lake.warehouse()
    }

    pub(super) async fn flush(&self) {
        self.logs.flush().await;
        self.save_states(true).await;
    }

    /// Connections, and bytes that their requests and answers hold.
    #[cfg(test)]
    pub(super) fn client_counts(&self) -> (usize, usize, usize) {
        self.clients.counts()
    }

    #[cfg(test)]
    pub(super) fn states(&self) -> &KvStore {
        &self.states
    }

    #[cfg(test)]
    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Milliseconds since the start, for the queue: it must not jump when the wall clock does.
    fn uptime_ms(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers any request but ProduceLog and PutKv, which `connection` keeps in order (see [`Self::append`], [`Self::put`]), and FetchLog,
    /// which waits ([`Self::fetch`]).
    async fn answer(self: Arc<Self>, frame: RequestFrame) -> ResponseFrame {
        let id = frame.id;
        let Some(key) = ApiKey::from_number(frame.key).filter(|key| is_served(*key)) else {
            let text = format!("api key `{}` is not served here", frame.key);
            return ResponseFrame::error(id, &Code::UNSUPPORTED_VERSION.answer(text));
        };
        match self.dispatch(key, frame.version, frame.body).await {
            Ok(body) => ResponseFrame::Success { id, body },
            Err(error) => {
                tracing::debug!(%key, error = %error.chain(), "request refused");
                ResponseFrame::error(id, &error)
            }
        }
    }

    async fn dispatch(&self, key: ApiKey, version: i16, body: Bytes) -> Result<Bytes> {
        macro_rules! with {
            ($handler:ident) => {
                encoded(self.$handler(decoded(key, body)?).await)
            };
        }
        match key {
            ApiKey::ApiVersions => with!(api_versions),
            ApiKey::CreateDatabase => with!(create_database),
            ApiKey::DropDatabase => with!(drop_database),
            ApiKey::ListDatabases => with!(list_databases),
            ApiKey::DatabaseExists => with!(database_exists),
            ApiKey::GetDatabaseInfo => with!(database_info),
            ApiKey::AlterDatabase => with!(alter_database),
            ApiKey::CreateTable => with!(create_table),
            ApiKey::DropTable => with!(drop_table),
            ApiKey::AlterTable => encoded(self.alter_table(version, decoded(key, body)?).await),
            ApiKey::GetTableInfo => with!(table_info),
            ApiKey::GetTableSchema => with!(table_schema),
            ApiKey::ListTables => with!(list_tables),
            ApiKey::TableExists => with!(table_exists),
            ApiKey::ListPartitionInfos => with!(list_partitions),
            ApiKey::CreatePartition => with!(create_partition),
            ApiKey::DropPartition => with!(drop_partition),
            ApiKey::GetMetadata => with!(metadata),
            ApiKey::Lookup => with!(lookup),
            ApiKey::PrefixLookup => with!(prefix_lookup),
            ApiKey::ScanKv => with!(scan_kv),
            ApiKey::ListOffsets => with!(list_offsets),
            ApiKey::LimitScan => with!(limit_scan),
            ApiKey::GetTableStats => with!(table_stats),
            ApiKey::InitWriter => with!(init_writer),
            ApiKey::GetFileSystemSecurityToken => with!(security_token),
            ApiKey::GetLatestKvSnapshots => with!(latest_kv_snapshots),
            ApiKey::DescribeClusterConfigs => with!(cluster_configs),
            ApiKey::LakeTieringHeartbeat => with!(heartbeat),
            ApiKey::PrepareLakeTableSnapshot => with!(prepare_snapshot),
            ApiKey::CommitLakeTableSnapshot => with!(commit_snapshot),
            ApiKey::GetLakeSnapshot => with!(lake_snapshot),
            _ => Err(Code::UNSUPPORTED_VERSION.answer(format!("{key} is not served here"))),
        }
    }

    async fn api_versions(&self, _: ApiVersionsRequest) -> Result<ApiVersionsResponse> {
        let versions = ApiKey::ALL.iter().filter(|key| is_served(**key)).map(|key| {
            let (min, max) = key.versions();
            PbApiVersion { api_key: key.number().into(), min_version: min.into(), max_version: max.into() }
        });
        // One port serves both roles: naming a type would make clients that look up the other one hang up (S1.2).
        Ok(ApiVersionsResponse { api_versions: versions.collect(), server_type: None })
    }

    /// The table with this id and the bucket in it, after the checks that every routed request undergoes (F4.6).
    fn routed(&self, table: TableId, partition: Option<i64>, bucket: i32, routing: Option<i32>, act: Act) -> Result<Routed> {
        let found = self.registry.table_by_id(table);
        let found = found.ok_or_else(|| Code::UNKNOWN_TABLE_OR_BUCKET.answer(format!("table id `{table}` is unknown")))?;
        let bucket = TableBucket { table, partition: partition.map(PartitionId), bucket: BucketId(bucket) };
        let info = &found.info;
        let unknown = || Code::UNKNOWN_TABLE_OR_BUCKET.answer(format!("{bucket} of `{}` is unknown", info.path));
        let partition = bucket.partition.map(|id| found.partitions_by_id.get(&id).ok_or_else(unknown)).transpose()?;
        if partition.is_some() != info.is_partitioned() {
            return Err(unknown());
        }
        let refuse = |text: String| Err(Code::INVALID_BUCKET_ROUTING.answer(text));
        let count = match BucketLayout::of(info, partition.map(Arc::as_ref)) {
            Ok(layout) => layout.count,
            Err(error) => return refuse(error.chain()),
        };
        if !(0..count).contains(&bucket.bucket.0) {
            return Err(unknown());
        }
        let lenient = act == Act::Read && self.options.routing.accept_absent_count == AcceptAbsentCount::Reads;
        match routing {
            Some(routing) if routing != count => refuse(format!("{bucket} was routed by `{routing}` buckets, there are `{count}`")),
            None if info.bucket_count_epoch.0 > 0 && !lenient => refuse(format!(
                "table `{}` was rescaled: requests must say the bucket count that they are routed by, which clients older than 1.0 and \
                 pyfluss 1.0 can't",
                info.path
            )),
            _ => Ok(Routed { table: found, bucket }),
        }
    }
}

/// What a routed request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// Reads the rows of the bucket that it names, whatever their keys.
    Read,
    /// Writes or looks up rows, whose keys must belong there.
    ByKey,
}

/// A bucket that exists.
#[derive(Debug, Clone)]
struct Routed {
    table: Arc<Table>,
    bucket: TableBucket,
}

/// Buckets of one request that are written to at the same time. New ones wait for the disk again and again (folders, segment, state),
/// and what is synced at the same time is synced together.
const LANES: usize = 16;

/// Entries of a request with their numbers, in at most [`LANES`] lanes: those of one bucket are in one, in the order in which they came.
fn lanes<T>(entries: Vec<T>, bucket: impl Fn(&T) -> (Option<i64>, i32)) -> Vec<Vec<(usize, T)>> {
    let mut lane_of = BTreeMap::new();
    let mut lanes: Vec<Vec<(usize, T)>> = Vec::new();
    for (number, entry) in entries.into_iter().enumerate() {
        let next = lane_of.len() % LANES;
        let lane = *lane_of.entry(bucket(&entry)).or_insert(next);
        match lanes.get_mut(lane) {
            Some(lane) => lane.push((number, entry)),
            None => lanes.push(vec![(number, entry)]),
        }
    }
    lanes
}

/// What became of the entries, in the order in which they came.
fn in_order<T>(lanes: impl IntoIterator<Item = Vec<(usize, T)>>) -> Vec<T> {
    let mut all: Vec<(usize, T)> = lanes.into_iter().flatten().collect();
    all.sort_unstable_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, entry)| entry).collect()
}

/// Runs blocking work on `logs`.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|source| Error::internal("log task ended").with_source(source))
}

/// The log of `bucket`; what goes wrong becomes error 10 (blocking).
fn log_of(logs: &LogStore, bucket: TableBucket) -> Result<Arc<BucketLog>> {
    logs.bucket(bucket).map_err(|error| {
        tracing::error!(%bucket, error = %error.chain(), "log can't be opened");
        Code::LOG_STORAGE.answer(format!("the log of {bucket} can't be opened")).with_source(error)
    })
}

const fn is_served(key: ApiKey) -> bool {
    !matches!(key, ApiKey::GetKvSnapshotMetadata | ApiKey::ListRemoteLogManifests | ApiKey::ListKvSnapshots)
}

fn decoded<M: Message + Default>(key: ApiKey, body: Bytes) -> Result<M> {
    decode(key.name(), body).map_err(|error| Code::CORRUPT_MESSAGE.answer("unreadable request").with_source(error))
}

fn encoded<M: Message>(answer: Result<M>) -> Result<Bytes> {
    answer.map(|message| message.encode_to_vec().into())
}

/// Code and text of an error inside an answer.
fn told(error: &Error) -> (Option<i32>, Option<String>) {
    (Some(Code::of(error).0), Some(Code::text(error)))
}

pub(super) fn advertised(text: Option<&str>, address: SocketAddr) -> Result<PbServerNode> {
    let (host, port) = match text {
        // Clients would be told an address that leads nowhere, or to themselves (S1.4).
        None if address.ip().is_unspecified() => {
            return Err(Error::invalid(format!("`{address}` is no address that clients can be told"))
                .with_hint("name one with --advertise HOST[:PORT], or listen on a single address"));
        }
        None => (address.ip().to_string(), address.port()),
        Some(text) => match text.rsplit_once(':') {
            // More than one colon and no brackets: an IPv6 address alone.
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                let wrong = || Error::invalid(format!("`{text}` is not HOST or HOST:PORT"));
                (host.trim_matches(['[', ']']).to_owned(), port.parse().map_err(|source| wrong().with_source(source))?)
            }
            _ => (text.to_owned(), address.port()),
        },
    };
    Ok(PbServerNode { node_id: NODE_ID, host, port: port.into(), listeners: None, rack: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_bucket_share_a_lane_in_their_order_and_answers_come_in_that_of_the_request() {
        let entries: Vec<(i32, usize)> = (0..200).map(|number| (i32::try_from(number * 7 % 50).unwrap(), number)).collect();
        let lanes = lanes(entries.clone(), |(bucket, _)| (None, *bucket));
        assert_eq!(lanes.len(), LANES);
        let mut lane_of = BTreeMap::new();
        for (number, lane) in lanes.iter().enumerate() {
            assert!(lane.is_sorted_by_key(|(number, _)| *number) && lane.len() < 30, "{lane:?}");
            assert!(lane.iter().all(|(_, (bucket, _))| *lane_of.entry(*bucket).or_insert(number) == number), "{lane:?}");
        }
        assert_eq!(in_order(lanes), entries);
    }
}
