//! A cluster as a client sees it: who coordinates, who leads which bucket, and how to go on when that changes.
//!
//! Owns bootstrap, the server list, the metadata cache (droppable per table), one connection per server and role, and
//! repeating what may be repeated. Does not own what the calls mean: `source::cluster` and `client` stand on it.

mod metadata;
mod pool;
mod retry;
mod routed;
mod tables;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

pub use self::metadata::Located;
pub use self::retry::Retry;
pub use self::routed::Answers;

use self::metadata::{Metadata, Server};
use self::pool::Pool;
use super::api::{ApiKey, Request};
use super::code::{Class, Code};
use super::connection::{Connection, ConnectionOptions, ServerType};
use super::proto::MetadataRequest;
use crate::error::{Error, Result};
use crate::model::TablePath;
use crate::runtime::{BackoffOptions, Runtime};

/// Where several servers can answer, one that has not answered for so long does not keep the next from being asked as well.
const NEXT_AFTER: Duration = Duration::from_secs(1);

/// Bounds of a [`Cluster`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterOptions {
    /// Of each connection.
    pub connection: ConnectionOptions,
    /// Pauses between the attempts of a call that may be repeated.
    pub retry: BackoffOptions,
    /// No further attempt after this time.
    pub retry_time: Duration,
    /// Pauses between attempts to find the cluster at all.
    pub bootstrap: BackoffOptions,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            connection: ConnectionOptions::default(),
            retry: BackoffOptions { first: Duration::from_millis(100), max: Duration::from_secs(5), attempts_max: 10 },
            retry_time: Duration::from_secs(60),
            bootstrap: BackoffOptions { first: Duration::from_millis(100), max: Duration::from_secs(1), attempts_max: 3 },
        }
    }
}

/// A cluster. Clones share connections and cache; connections close with the last clone.
#[derive(Debug, Clone)]
pub struct Cluster(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bootstrap: Vec<String>,
    options: ClusterOptions,
    runtime: Runtime,
    pool: Pool,
    metadata: Mutex<Metadata>,
}

impl Cluster {
    /// Finds the cluster through the first of `bootstrap` (`HOST:PORT`) that answers.
    ///
    /// # Errors
    /// `Invalid` when no address is given or the credentials are refused; `Unavailable` when none answers or no tablet server is alive.
    ///
    /// Source: S1.1.
    pub async fn connect(bootstrap: &[String], options: ClusterOptions, runtime: &Runtime) -> Result<Self> {
        if bootstrap.is_empty() {
            return Err(Error::invalid("no bootstrap server is given").with_hint("name one as HOST:PORT"));
        }
        let is_address =
            |text: &str| text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        if let Some(wrong) = bootstrap.iter().find(|address| !is_address(address)) {
            return Err(Error::invalid(format!("`{wrong}` is no address of a server")).with_hint("name one as HOST:PORT"));
        }
        let cluster = Self(Arc::new(Inner {
            bootstrap: bootstrap.to_vec(),
            runtime: runtime.clone(),
            pool: Pool::new(options.connection.clone(), runtime.clone()),
            metadata: Mutex::default(),
            options,
        }));
        let what = format!("find the cluster at `{}`", bootstrap.join("`, `"));
        let options = &cluster.0.options;
        let mut retry = Retry::new(what, options.bootstrap, options.retry_time, runtime);
        loop {
            match cluster.refresh_servers().await {
                Ok(()) => return Ok(cluster),
                Err(error) => retry.after(error).await?,
            };
        }
    }

    /// What this cluster was built with.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    /// A sequence of attempts at `what`, with this cluster's bounds.
    pub fn retry(&self, what: impl Into<String>) -> Retry {
        Retry::new(what.into(), self.0.options.retry, self.0.options.retry_time, &self.0.runtime)
    }

    fn metadata(&self) -> MutexGuard<'_, Metadata> {
        self.0.metadata.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Throws away everything cached about a table.
    pub fn forget(&self, path: &TablePath) {
        self.metadata().forget(path);
    }

    /// Asks the coordinator. The call is repeated on retriable errors, so it must be one that may be carried out twice.
    ///
    /// # Errors
    /// What the coordinator answered, or `Unavailable` when it stays out of reach.
    pub async fn coordinator<R: Request>(&self, request: &R) -> Result<R::Response> {
        let mut retry = self.retry(format!("`{}` to the coordinator", R::KEY));
        loop {
            match self.coordinator_once(request).await {
                Ok(answer) => return Ok(answer),
                Err(error) => retry.after(error).await?,
            };
        }
    }

    /// Asks the coordinator, sending the request at most once. A coordinator that moved is looked up before.
    ///
    /// # Errors
    /// As [`Cluster::coordinator`]; after `Unavailable` with code 1 it is unknown whether the request was carried out.
    pub async fn coordinator_once<R: Request>(&self, request: &R) -> Result<R::Response> {
        // A caller who gives up before we do has learned the same.
        let mut doubt = Doubt(Some(self));
        let answer = match self.coordinator_connection().await {
            Ok(connection) => connection.call(request).await,
            Err(error) => Err(error),
        };
        doubt.0 = None;
        if let Err(error) = &answer {
            self.suspect_coordinator(error);
        }
        answer
    }

    /// The version that the coordinator gets requests of `key` in.
    ///
    /// # Errors
    /// `Unsupported` with code 2 when there is no common one; `Unavailable`.
    pub async fn coordinator_version(&self, key: ApiKey) -> Result<i16> {
        match self.coordinator_connection().await {
            Ok(connection) => connection.version(key),
            Err(error) => {
                self.suspect_coordinator(&error);
                Err(error)
            }
        }
    }

    async fn coordinator_connection(&self) -> Result<Connection> {
        let known = self.metadata().coordinator.clone();
        let server = match known {
            Some(server) => server,
            None => {
                self.refresh_servers().await?;
                let found = self.metadata().coordinator.clone();
                found.ok_or_else(|| Code::NOT_COORDINATOR_LEADER.error("the cluster names no coordinator"))?
            }
        };
        self.0.pool.get(Some(ServerType::Coordinator), &server.address).await
    }

    /// After such an error the coordinator may be elsewhere: look it up before the next call.
    fn suspect_coordinator(&self, error: &Error) {
        let class = error.code().map(|code| Code(code).class());
        let garbage = error.code() == Some(Code::CORRUPT_MESSAGE.0);
        if garbage || matches!(class, Some(Class::RefreshCoordinator | Class::RefreshMetadata)) {
            self.metadata().coordinator = None;
        }
    }

    /// Asks any server for something that all of them know, the coordinator first. Repeated on retriable errors.
    ///
    /// # Errors
    /// What the server answered, or `Unavailable` when none can be reached.
    pub async fn any<R: Request>(&self, request: &R) -> Result<R::Response> {
        let mut retry = self.retry(format!("`{}`", R::KEY));
        loop {
            let answer = match self.coordinator_once(request).await {
                // The coordinator can't be reached: the others know as well.
                Err(error) if error.code() == Some(Code::NETWORK_EXCEPTION.0) => self.tablet_once(request).await,
                answer => answer,
            };
            match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => retry.after(error).await?,
            };
        }
    }

    /// Asks a tablet server, whichever. Repeated on retriable errors.
    ///
    /// # Errors
    /// As [`Cluster::any`].
    pub async fn tablet<R: Request>(&self, request: &R) -> Result<R::Response> {
        let mut retry = self.retry(format!("`{}` to a tablet server", R::KEY));
        loop {
            match self.tablet_once(request).await {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    retry.after(error).await?;
                    // What fails here fails again with the attempt, which tells more.
                    drop(self.refresh_servers().await);
                }
            }
        }
    }

    async fn tablet_once<R: Request>(&self, request: &R) -> Result<R::Response> {
        self.tablet_connection().await?.call(request).await
    }

    async fn tablet_connection(&self) -> Result<Connection> {
        let mut servers: Vec<Server> = self.metadata().tablets.values().cloned().collect();
        self.0.runtime.rng.shuffle(&mut servers);
        let attempts =
            servers.into_iter().map(|server| async move { self.0.pool.get(Some(ServerType::Tablet), &server.address).await });
        let connection = self.first_of(attempts).await;
        connection.unwrap_or_else(|| Err(Code::LEADER_NOT_AVAILABLE.error("the cluster names no tablet server")))
    }

    /// The first answer of servers that are asked one after the other: the next one after a failure that it may know more about, or when
    /// nothing was heard for [`NEXT_AFTER`], so that a silent one costs little. `None` = nobody to ask.
    async fn first_of<T, F: Future<Output = Result<T>>>(&self, attempts: impl IntoIterator<Item = F>) -> Option<Result<T>> {
        let mut attempts = attempts.into_iter().fuse();
        let mut asked = FuturesUnordered::new();
        asked.extend(attempts.next());
        loop {
            tokio::select! {
                biased;
                answer = asked.next() => match answer? {
                    // Only what the server itself could not say is worth asking the next one for.
                    Err(error) if error.code().is_none_or(|code| Code(code).class() != Class::Final) => {
                        asked.extend(attempts.next());
                        if asked.is_empty() {
                            return Some(Err(error));
                        }
                    }
                    answer => return Some(answer),
                },
                () = self.0.runtime.clock.sleep(NEXT_AFTER) => asked.extend(attempts.next()),
            }
        }
    }

    /// The version that a tablet server, whichever answers, gets requests of `key` in.
    ///
    /// # Errors
    /// `Unsupported` with code 2 when there is no common one; `Unavailable`.
    pub async fn tablet_version(&self, key: ApiKey) -> Result<i16> {
        let mut retry = self.retry(format!("versions of `{key}`"));
        loop {
            match self.tablet_connection().await.and_then(|connection| connection.version(key)) {
                Ok(version) => return Ok(version),
                Err(error) => {
                    retry.after(error).await?;
                    // What fails here fails again with the attempt, which tells more.
                    drop(self.refresh_servers().await);
                }
            }
        }
    }

    /// Asks tablet server `id` (from [`Cluster::locate`]), once.
    ///
    /// # Errors
    /// What the server answered; `Unavailable` when it can't be reached or is not in the cluster any more.
    pub async fn server<R: Request>(&self, id: i32, request: &R) -> Result<R::Response> {
        let server = self.metadata().tablets.get(&id).cloned();
        let server = server.ok_or_else(|| Code::LEADER_NOT_AVAILABLE.error(format!("tablet server {id} is not in the cluster")))?;
        self.0.pool.get(Some(ServerType::Tablet), &server.address).await?.call(request).await
    }

    /// Asks the servers, one after the other, who belongs to the cluster now.
    async fn refresh_servers(&self) -> Result<()> {
        let answer = self.ask_metadata(&MetadataRequest::default()).await?;
        let keep = {
            let mut metadata = self.metadata();
            metadata.take_servers(answer.coordinator_server, answer.tablet_servers)?;
            metadata.addresses()
        };
        self.0.pool.retain(&keep);
        Ok(())
    }

    /// GetMetadata from whichever server answers: tablet servers, coordinator, bootstrap servers.
    async fn ask_metadata(&self, request: &MetadataRequest) -> Result<super::proto::MetadataResponse> {
        let mut targets: Vec<(Option<ServerType>, String)> = {
            let metadata = self.metadata();
            metadata.tablets.values().map(|server| (Some(ServerType::Tablet), server.address.clone())).collect()
        };
        self.0.runtime.rng.shuffle(&mut targets);
        if let Some(server) = &self.metadata().coordinator {
            targets.push((Some(ServerType::Coordinator), server.address.clone()));
        }
        targets.extend(self.0.bootstrap.iter().map(|address| (None, address.clone())));
        let attempts =
            targets.into_iter().map(|(role, address)| async move { self.0.pool.get(role, &address).await?.call(request).await });
        self.first_of(attempts).await.unwrap_or_else(|| Err(Error::internal("no server to ask for metadata")))
    }
}

/// Forgets who coordinates when dropped with something in it.
struct Doubt<'a>(Option<&'a Cluster>);

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if let Some(cluster) = self.0 {
            cluster.metadata().coordinator = None;
        }
    }
}

#[cfg(test)]
mod tests;
