//! How every command reaches the cluster: by the same settings.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::audit::AuditContext;
use crate::client::Admin;
use crate::commit;
use crate::config::Settings;
use crate::daemon::Service;
use crate::daemon::backfill::{PartitionSpec, choose};
use crate::error::{Error, Kind, Result};
use crate::fluss::cluster::{Cluster, ClusterOptions};
use crate::fluss::code::Code;
use crate::lake::LakeTable;
use crate::mapping::{self, is_lake_enabled};
use crate::model::{PartitionId, TableInfo, TablePath};
use crate::plan::lake_place;
use crate::round::{RoundContext, open_lake};
use crate::runtime::Runtime;
use crate::source::TableScan;
use crate::source::cluster::ClusterSource;

/// Tables beside which the store of a warehouse is tried at the start, until it has answered.
const PROBED_MAX: usize = 4;
/// A store that has not answered by then does not keep the service from its start.
const PROBE_TIME: Duration = Duration::from_secs(10);

/// The cluster that the settings name, which has its lake where they say, if they say so.
///
/// # Errors
/// As [`reach`]; the first of [`disagreements`].
pub(super) async fn cluster(settings: &Settings, runtime: &Runtime) -> Result<Cluster> {
    Ok(with_tables(settings, runtime).await?.0)
}

/// As [`cluster`], and the tables whose lake is where the settings say; none if these say nothing.
async fn with_tables(settings: &Settings, runtime: &Runtime) -> Result<(Cluster, Vec<TableInfo>)> {
    let cluster = reach(settings, runtime).await?;
    if settings.lake.is_empty() {
        return Ok((cluster, vec![]));
    }
    let mut tables = lake_tables(&cluster).await?;
    tables.retain(|table| settings.daemon.tables.wants(&table.path));
    match disagreements(settings, &tables).into_iter().next() {
        Some(fault) => Err(fault),
        None => Ok((cluster, tables)),
    }
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
/// As [`cluster`]; `Unsupported` when the settings say where the lake is, and that store has no create-if-absent.
pub(super) async fn service(settings: &Settings, runtime: &Runtime) -> Result<(Cluster, Service)> {
    let (cluster, tables) = with_tables(settings, runtime).await?;
    if settings.lake.contains_key("warehouse") {
        prove_warehouse(&tables, runtime).await?;
    }
    let (queue, rounds) = rounds(&cluster, settings, runtime);
    Ok((cluster, Service { queue, rounds, options: settings.daemon.clone() }))
}

/// Tries the store of a warehouse before any round does, beside the first of its tables that can be reached. What is out of reach, denied
/// or wrong may be so for one table alone: rounds tell, and hold or retry that one.
async fn prove_warehouse(tables: &[TableInfo], runtime: &Runtime) -> Result<()> {
    let proved = async {
        for table in tables.iter().take(PROBED_MAX) {
            let Ok((lake, _)) = open_lake(table, runtime).await else { continue };
            match commit::prove_once(&lake).await {
                Err(fault) if fault.kind() == Kind::Unsupported => return Err(fault),
                Err(_) => {}
                Ok(()) => break,
            }
        }
        Ok(())
    };
    runtime.clock.timeout(PROBE_TIME, proved).await.unwrap_or(Ok(()))
}

/// A table of that cluster and its lake table, as audits look at them: also where rounds would refuse the pair.
///
/// # Errors
/// `Invalid` when there is no such table, or it never had a lake; `Unavailable`; `Data` when the lake table is missing or its columns
/// are not the table's.
pub(super) async fn audit(cluster: &Cluster, settings: &Settings, runtime: &Runtime, path: &TablePath) -> Result<AuditContext> {
    let (source, _) = rounds(cluster, settings, runtime);
    let table = Arc::new(source.table_info(path).await?);
    if !table.has_lake_table() {
        return Err(Error::invalid(format!("table `{path}` has no lake table: its lake was never on")));
    }
    let place = lake_place(&table)?;
    let lake = LakeTable::open_in(&place.warehouse, &place.options, place.root, runtime.clone()).await?;
    let lake = lake.ok_or_else(|| {
        Error::data(format!("the lake table of `{path}` is missing in `{}`", place.warehouse)).with_hint(
            "if the warehouse was moved or is not mounted, bring it back; this machine has to see it as the cluster does",
        )
    })?;
    let form = mapping::fit(&table, lake.schema())?.form;
    let scan: Arc<ClusterSource> = Arc::clone(&source);
    Ok(AuditContext {
        table,
        lake: Arc::new(lake),
        form,
        scan,
        ledger: source,
        runtime: runtime.clone(),
        read: settings.round.read,
    })
}

/// The partitions that were named; `None` = all.
///
/// # Errors
/// `Invalid` names what is not there; `Unavailable`.
pub(super) async fn chosen(context: &AuditContext, specs: &[PartitionSpec]) -> Result<Option<BTreeSet<PartitionId>>> {
    if specs.is_empty() {
        return Ok(None);
    }
    let partitions = context.partitions().await?;
    let partitions: Vec<_> = partitions.into_iter().filter_map(|known| known.partition).collect();
    choose(&context.table, &partitions, specs).map(Some)
}
