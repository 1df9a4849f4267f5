//! How every command reaches the cluster: by the same settings.

use std::sync::Arc;

use crate::client::Admin;
use crate::config::Settings;
use crate::daemon::Service;
use crate::error::{Error, Result};
use crate::fluss::cluster::{Cluster, ClusterOptions};
use crate::fluss::code::Code;
use crate::mapping::is_lake_enabled;
use crate::model::{TableInfo, TablePath};
use crate::round::RoundContext;
use crate::runtime::Runtime;
use crate::source::cluster::ClusterSource;

/// The cluster that the settings name, which has its lake where they say, if they say so.
///
/// # Errors
/// As [`reach`]; the first of [`disagreements`].
pub(super) async fn cluster(settings: &Settings, runtime: &Runtime) -> Result<Cluster> {
    let cluster = reach(settings, runtime).await?;
    let wanted =
        |tables: Vec<TableInfo>| tables.into_iter().filter(|table| settings.daemon.tables.wants(&table.path)).collect::<Vec<_>>();
    if !settings.lake.is_empty()
        && let Some(fault) = disagreements(settings, &wanted(lake_tables(&cluster).await?)).into_iter().next()
    {
        return Err(fault);
    }
    Ok(cluster)
}

/// The cluster that the settings name.
///
/// # Errors
/// `Invalid` when they name none, or it refuses the credentials; `Unavailable` when no server answers.
pub(super) async fn reach(settings: &Settings, runtime: &Runtime) -> Result<Cluster> {
    cluster_with(settings, settings.cluster.options(), runtime).await
}

/// As [`reach`], with other bounds.
///
/// # Errors
/// As [`reach`].
pub(super) async fn cluster_with(settings: &Settings, options: ClusterOptions, runtime: &Runtime) -> Result<Cluster> {
    let servers = &settings.cluster.servers;
    if servers.is_empty() {
        return Err(no_server());
    }
    Cluster::connect(servers, options, runtime).await
}

pub(super) fn no_server() -> Error {
    Error::invalid("no server of the Fluss cluster is given")
        .with_hint("add `--server HOST:PORT`, `cluster.servers` in the file, or LAKEWARD_CLUSTER_SERVERS")
}

/// Where tables have their lake elsewhere than `datalake.paimon.…` in the settings says. A Flink job writes where its own arguments say;
/// Lakeward where the cluster says, so both have to be the same.
pub(super) fn disagreements(settings: &Settings, tables: &[TableInfo]) -> Vec<Error> {
    let mut faults = Vec::new();
    for (option, wanted) in &settings.lake {
        let found = |table: &TableInfo| table.property(&format!("table.datalake.paimon.{option}")).map(str::to_owned);
        let other = tables
            .iter()
            .map(|table| (table, found(table)))
            .find(|(_, found)| found.as_deref().map(bare) != Some(bare(wanted.expose())));
        let Some((table, found)) = other else { continue };
        // Others than the place may be secrets.
        let values = match found {
            Some(found) if option == "warehouse" => format!(": `{}` in the settings, `{found}` in the cluster", wanted.expose()),
            _ => String::new(),
        };
        faults.push(
            Error::invalid(format!("`datalake.paimon.{option}` is not what the cluster has for table `{}`{values}", table.path))
                .with_hint("the lake is where the cluster says; leave the key out, or change it in the cluster's `server.yaml`"),
        );
    }
    faults
}

/// A place without what spells it differently: scheme of local paths, slashes at either end.
fn bare(text: &str) -> &str {
    text.strip_prefix("file:").unwrap_or(text).trim_matches('/')
}

/// All tables with the lake enabled, in name order.
///
/// # Errors
/// `Unavailable`; `Invalid` when we may not list them.
pub(super) async fn lake_tables(cluster: &Cluster) -> Result<Vec<TableInfo>> {
    let admin = Admin::new(cluster.clone());
    let mut tables = Vec::new();
    for database in admin.databases().await? {
        for table in admin.tables(&database).await? {
            match admin.table_info(&TablePath::new(&database, table)).await {
                Ok(table) if is_lake_enabled(&table) => tables.push(table),
                Ok(_) => {}
                // Dropped meanwhile.
                Err(error) if error.code() == Some(Code::TABLE_NOT_EXIST.0) => {}
                Err(error) => return Err(error),
            }
        }
    }
    tables.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(tables)
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
