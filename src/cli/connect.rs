//! How every command reaches the cluster: by the same settings.

use std::sync::Arc;

use crate::config::Settings;
use crate::daemon::Service;
use crate::error::{Error, Result};
use crate::fluss::cluster::{Cluster, ClusterOptions};
use crate::round::RoundContext;
use crate::runtime::Runtime;
use crate::source::cluster::ClusterSource;

/// The cluster that the settings name.
///
/// # Errors
/// `Invalid` when they name none, or it refuses the credentials; `Unavailable` when no server answers.
pub(super) async fn cluster(settings: &Settings, runtime: &Runtime) -> Result<Cluster> {
    cluster_with(settings, settings.cluster.options(), runtime).await
}

/// As [`cluster`], with other bounds.
///
/// # Errors
/// As [`cluster`].
pub(super) async fn cluster_with(settings: &Settings, options: ClusterOptions, runtime: &Runtime) -> Result<Cluster> {
    let servers = &settings.cluster.servers;
    if servers.is_empty() {
        return Err(Error::invalid("no server of the Fluss cluster is given")
            .with_hint("add `--server HOST:PORT`, `cluster.servers` in the file, or LAKEWARD_CLUSTER_SERVERS"));
    }
    Cluster::connect(servers, options, runtime).await
}

/// What rounds need on that cluster.
pub(super) fn rounds(cluster: &Cluster, settings: &Settings, runtime: &Runtime) -> (Arc<ClusterSource>, RoundContext) {
    let source = Arc::new(ClusterSource::new(cluster.clone()));
    let rounds = RoundContext {
        scan: Arc::<ClusterSource>::clone(&source),
        ledger: Arc::<ClusterSource>::clone(&source),
        runtime: runtime.clone(),
        options: settings.round,
    };
    (source, rounds)
}

/// A tiering service on that cluster.
///
/// # Errors
/// As [`cluster`].
pub(super) async fn service(settings: &Settings, runtime: &Runtime) -> Result<(Cluster, Service)> {
    let cluster = cluster(settings, runtime).await?;
    let (queue, rounds) = rounds(&cluster, settings, runtime);
    Ok((cluster, Service { queue, rounds, options: settings.daemon.clone() }))
}
