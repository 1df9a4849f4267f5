//! `lakeward check`: tries out configuration, cluster and lake, and says what a round could not do. Leaves nothing behind.

mod report;

use std::collections::BTreeSet;
use std::time::Duration;

use futures::{StreamExt, stream};

use super::args::Check;
use super::output::{self, Output, count};
use super::plan::look;
use super::{End, connect};
use crate::commit;
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::fluss::api::ApiKey;
use crate::fluss::cluster::Cluster;
use crate::fluss::connection::{Connection, ConnectionOptions, ServerType};
use crate::fluss::proto::{DescribeClusterConfigsRequest, MetadataRequest, MetadataResponse};
use crate::model::TableInfo;
use crate::plan::{LakePlace, check_table};
use crate::round::{RoundContext, open_lake};
use crate::runtime::{Runtime, memory_default, threads_default};
use crate::storage::{self, Remote, StoreOptions};
use report::Report;

/// Servers and tables that are looked at at once.
const LOOKS_MAX: usize = 8;

/// What every server is asked for (F2.3).
const ANY: &[ApiKey] = &[
    ApiKey::GetMetadata,
    ApiKey::ListDatabases,
    ApiKey::ListTables,
    ApiKey::GetTableInfo,
    ApiKey::GetTableSchema,
    ApiKey::ListPartitionInfos,
    ApiKey::GetLakeSnapshot,
];
/// What only the coordinator serves.
const COORDINATOR: &[ApiKey] = &[ApiKey::LakeTieringHeartbeat, ApiKey::PrepareLakeTableSnapshot, ApiKey::CommitLakeTableSnapshot];
/// What only tablet servers serve.
const TABLET: &[ApiKey] = &[ApiKey::ListOffsets, ApiKey::FetchLog];

pub(super) async fn run(args: &Check, settings: Settings, runtime: Runtime, output: &mut Output) -> Result<(), End> {
    let mut report = Report::new(output, args.json);
    configuration(&settings, &mut report)?;
    if let Some(cluster) = cluster(&settings, &runtime, &mut report).await? {
        let (source, rounds) = connect::rounds(&cluster, &settings, &runtime);
        let tables = tables(&cluster, &settings, &rounds, &mut report).await?;
        remote(&cluster, source.remote(), &tables, &mut report).await?;
    }
    report.end()
}

fn configuration(settings: &Settings, report: &mut Report<'_>) -> Result<(), End> {
    let from = settings.file.as_ref().map_or_else(|| "no file".to_owned(), |file| format!("`{}`", file.display()));
    let memory = output::size(settings.memory_limit.unwrap_or_else(memory_default));
    let threads = settings.encoder_threads.unwrap_or_else(threads_default);
    report.ok(
        "configuration",
        "",
        &format!("sound, from {from}, environment and flags; {memory} of memory, {threads} encoders"),
    )?;
    for notice in &settings.notices {
        report.warn("configuration", "", notice, None)?;
    }
    Ok(())
}

/// Reaches the cluster, step by step: each server that is named, login, who coordinates, every server of the cluster, what they speak.
async fn cluster(settings: &Settings, runtime: &Runtime, report: &mut Report<'_>) -> Result<Option<Cluster>, End> {
    let options = settings.cluster.options().connection;
    let named = stream::iter(settings.cluster.servers.clone())
        .map(|server| {
            let options = &options;
            async move { (meet(&server, options, runtime).await, server) }
        })
        .buffered(LOOKS_MAX);
    let mut named = std::pin::pin!(named);
    let (mut found, mut unmet) = (None, Vec::new());
    while let Some((met, server)) = named.next().await {
        match met {
            Ok(connection) => {
                let user =
                    options.credentials.as_ref().map_or_else(String::new, |who| format!(", logged in as `{}`", who.username()));
                report.ok("connect", &server, &format!("{}{user}", said(connection.server_type())))?;
                found.get_or_insert(connection);
            }
            Err(error) => unmet.push((server, error)),
        }
    }
    for (server, error) in unmet {
        // One that answers is enough; the others are for when that one is down.
        if found.is_some() {
            report.warn("connect", &server, &error.chain(), error.hint())?;
        } else {
            report.fault("connect", &server, error)?;
        }
    }
    let Some(connection) = found else {
        if settings.cluster.servers.is_empty() {
            report.fault("connect", "", connect::no_server())?;
        }
        return Ok(None);
    };
    let metadata = match connection.call(&MetadataRequest::default()).await {
        Ok(metadata) => metadata,
        Err(error) => {
            report.fault("cluster", "", error)?;
            return Ok(None);
        }
    };
    let whole = servers(metadata, &options, runtime, report).await?;
    if !whole {
        return Ok(None);
    }
    match connect::reach(settings, runtime).await {
        Ok(cluster) => Ok(Some(cluster)),
        Err(error) => {
            report.fault("cluster", "", error)?;
            Ok(None)
        }
    }
}

/// Connects, logs in and hangs up nothing: the connection stays for the next question. The first connection is made without login, so that
/// an address that is wrong and a password that is wrong are told apart.
async fn meet(server: &str, options: &ConnectionOptions, runtime: &Runtime) -> Result<Connection> {
    let plain = ConnectionOptions { credentials: None, ..options.clone() };
    let connection = Connection::connect(server, &plain, runtime).await?;
    if options.credentials.is_none() {
        return Ok(connection);
    }
    Connection::connect(server, options, runtime)
        .await
        .map_err(|error| error.context("the server is there, but does not let us in"))
}

const fn said(server: Option<ServerType>) -> &'static str {
    match server {
        Some(ServerType::Coordinator) => "a coordinator answers",
        Some(ServerType::Tablet) => "a tablet server answers",
        None => "a server answers",
    }
}

/// Whether there is a coordinator and a tablet server that both speak what rounds need; each server is told.
async fn servers(
    metadata: MetadataResponse,
    options: &ConnectionOptions,
    runtime: &Runtime,
    report: &mut Report<'_>,
) -> Result<bool, End> {
    let coordinator = metadata.coordinator_server.map(|node| (node.address(), COORDINATOR, "coordinator".to_owned()));
    let tablets = metadata.tablet_servers.iter().map(|node| (node.address(), TABLET, format!("tablet server {}", node.node_id)));
    let (mut coordinators, mut tablet_servers) = (0, 0);
    let asked =
        stream::iter(coordinator.into_iter().chain(tablets).collect::<Vec<_>>())
            .map(|(address, keys, role)| async move {
                (speaks(&address, keys, options, runtime).await, address, keys == COORDINATOR, role)
            })
            .buffered(LOOKS_MAX);
    let mut asked = std::pin::pin!(asked);
    while let Some((spoken, address, coordinates, role)) = asked.next().await {
        match spoken {
            Ok(()) => {
                *(if coordinates { &mut coordinators } else { &mut tablet_servers }) += 1;
                report.ok("cluster", &address, &format!("{role}: speaks what rounds need"))?;
            }
            Err(error) => report.fault("cluster", &address, error.context(role))?,
        }
    }
    if coordinators == 0 && report.has_no_fault() {
        report.fault("cluster", "", Error::unavailable("the cluster names no coordinator").with_hint("is it starting?"))?;
    }
    if tablet_servers == 0 && report.has_no_fault() {
        report.fault("cluster", "", Error::unavailable("the cluster names no tablet server").with_hint("is it starting?"))?;
    }
    Ok(coordinators > 0 && tablet_servers > 0)
}

async fn speaks(address: &str, keys: &[ApiKey], options: &ConnectionOptions, runtime: &Runtime) -> Result<()> {
    let connection = Connection::connect(address, options, runtime).await.map_err(|error| {
        let hint = "this is where the cluster says that the server is; it has to be reachable from here (its advertised listener)";
        if error.hint().is_none() { error.with_hint(hint) } else { error }
    })?;
    let lacking: Vec<String> =
        ANY.iter().chain(keys).filter_map(|key| connection.version(*key).err()).map(|error| error.chain()).collect();
    if lacking.is_empty() {
        return Ok(());
    }
    Err(Error::unsupported(lacking.join("; ")).with_hint("Lakeward needs Fluss 0.9 or newer"))
}

/// Looks at each table that this service wants: its lake is there and can be published in, and what a round would make of it.
async fn tables(
    cluster: &Cluster,
    settings: &Settings,
    rounds: &RoundContext,
    report: &mut Report<'_>,
) -> Result<Vec<TableInfo>, End> {
    let all = match connect::lake_tables(cluster).await {
        Ok(tables) => tables,
        Err(error) => {
            report.fault("table", "", error)?;
            return Ok(vec![]);
        }
    };
    let (wanted, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|table| settings.daemon.tables.wants(&table.path));
    let named = format!("{} with the lake enabled", count(wanted.len() as u64));
    let left = if others.is_empty() { String::new() } else { format!(", {} more are left to others", count(others.len() as u64)) };
    if wanted.is_empty() {
        let hint = "make one with `table.datalake.enabled` = `true`, or see `tables.include` and `tables.exclude`";
        report.warn("table", "", &format!("{named}{left}"), Some(hint))?;
    } else {
        report.ok("table", "", &format!("{named}{left}"))?;
    }
    let mut warehouses = BTreeSet::new();
    for info in &wanted {
        // What is refused is told with the table below.
        if let Ok(place) = check_table(info)
            && warehouses.insert(place.warehouse.clone())
        {
            warehouse(&place, &rounds.runtime, report).await?;
        }
    }
    for error in connect::disagreements(settings, &wanted) {
        report.fault("warehouse", "", error)?;
    }
    let looked = stream::iter(&wanted).map(|info| async move { (info, table(info, rounds).await) }).buffered(LOOKS_MAX);
    let mut looked = Box::pin(looked);
    while let Some((info, found)) = looked.next().await {
        let on = info.path.to_string();
        for (message, hint) in found.warnings {
            report.warn("table", &on, &message, hint)?;
        }
        if found.faults.is_empty() {
            report.ok("table", &on, &found.message)?;
        }
        for fault in found.faults {
            report.fault("table", &on, fault)?;
        }
    }
    drop(looked);
    Ok(wanted)
}

async fn warehouse(place: &LakePlace, runtime: &Runtime, report: &mut Report<'_>) -> Result<(), End> {
    let url = place.warehouse.as_str();
    let options = StoreOptions { options: place.options.clone(), own: runtime.stores.options(), ..StoreOptions::default() };
    match storage::readable(url, &options).await {
        Ok(true) => report.ok("warehouse", url, "is there"),
        Ok(false) => report.fault(
            "warehouse",
            url,
            Error::unavailable(format!("there is no folder `{url}` on this machine")).with_hint(
                "the cluster's `datalake.paimon.warehouse` has to be a path that both see, the cluster and this machine",
            ),
        ),
        Err(error) => report.fault("warehouse", url, error),
    }
}

/// What a look at one table found.
#[derive(Default)]
struct Found {
    message: String,
    warnings: Vec<(String, Option<&'static str>)>,
    faults: Vec<Error>,
}

async fn table(info: &TableInfo, rounds: &RoundContext) -> Found {
    let mut found = Found::default();
    match look(rounds, &info.path).await {
        Ok((report, faults)) => {
            found.message =
                format!("{} splits, {} records behind; the lake takes a snapshot", count(report.splits), count(report.backlog));
            found.faults = faults;
            if !report.missing_columns.is_empty() {
                let columns = report.missing_columns.join("`, `");
                found.warnings.push((format!("the lake table lacks `{columns}`; a round adds what it lacks first"), None));
            }
            if report.bucket_drift.is_some() {
                found.warnings.push((
                    "option `bucket` of the lake table is not `bucket.num`".to_owned(),
                    Some("an ALTER got half way: run it again"),
                ));
            }
        }
        Err(error) => found.faults.push(error),
    }
    // Where the lake does not open, `look` has said why.
    if let Ok((lake, _)) = open_lake(info, &rounds.runtime).await {
        if let Err(error) = commit::prove(&lake).await {
            found.faults.push(error.context("a snapshot could not be published"));
        }
        if let Err(error) = lake.pins("").await {
            found.faults.push(error.context("pins of earlier rounds could not be taken away"));
        }
        if let Ok(Some(expiration)) = lake.options().map(|options| options.consumer_expiration) {
            found.warnings.push(pins_expire(expiration));
        }
    }
    found
}

/// commit.md 7: a pin that nobody writes again expires.
fn pins_expire(expiration: Duration) -> (String, Option<&'static str>) {
    let shown = output::duration(i64::try_from(expiration.as_millis()).unwrap_or(i64::MAX));
    (
        format!(
            "`consumer.expiration-time` is {shown}: the pin that keeps the newest snapshot expires when no service has looked at the table for so long"
        ),
        Some("unset it on the lake table, or keep the service from being stopped for longer than that"),
    )
}

/// Whether log segments that have left the servers can be read here.
async fn remote(cluster: &Cluster, storage: &Remote, tables: &[TableInfo], report: &mut Report<'_>) -> Result<(), End> {
    let mut folders: BTreeSet<String> = tables.iter().filter_map(|table| table.remote_data_dir.clone()).collect();
    let told = cluster.any(&DescribeClusterConfigsRequest::default()).await;
    if let Ok(told) = &told {
        let values =
            told.configs.iter().filter(|config| matches!(config.config_key.as_str(), "remote.data.dir" | "remote.data.dirs"));
        let values = values.filter_map(|config| config.config_value.as_deref());
        folders.extend(
            values.flat_map(|value| value.split(',')).map(str::trim).filter(|folder| !folder.is_empty()).map(str::to_owned),
        );
    }
    if folders.is_empty() {
        return match told {
            Ok(_) => report.ok("remote", "", "the cluster names no `remote.data.dir`: logs stay on its servers"),
            Err(error) => report.warn(
                "remote",
                "",
                &format!("the cluster does not tell its `remote.data.dir`: {}", error.chain()),
                Some("log segments that have left the servers are read from there; see that this machine can"),
            ),
        };
    }
    for folder in folders {
        match storage.readable(&folder).await {
            Ok(true) => report.ok("remote", &folder, "log segments that have left the servers can be read")?,
            // Nothing may have left the servers yet.
            Ok(false) => report.warn(
                "remote",
                &folder,
                "there is no such folder on this machine: log segments that have left the servers can't be read",
                Some("the cluster's `remote.data.dir` has to be a path that both see, the cluster and this machine"),
            )?,
            Err(error) => report.warn("remote", &folder, &error.chain(), error.hint())?,
        }
    }
    Ok(())
}
