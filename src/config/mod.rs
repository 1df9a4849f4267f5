//! Settings: defaults, under a TOML file, under the environment, under flags; checked as a whole.
//!
//! Owns the names of keys, their units and bounds (`keys`), what Fluss's own keys mean here (`fluss`), and secrets. What an option means
//! and its default belong to the part whose `Options` it fills. Called by `cli`, once per process. A stage's option that has no key
//! does not compile. No fault, notice or Debug shows a secret.

mod fluss;
mod given;
mod keys;
mod secret;
mod security;
mod units;
mod values;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

pub use given::{Sources, Typed, variable};
pub use secret::Secret;
pub use security::{Protocol, Security};
pub use units::duration;

use crate::daemon::backfill;
use crate::error::{Error, Result};
use crate::fluss::cluster::ClusterOptions;
use crate::fluss::connection::ConnectionOptions;
use crate::telemetry::{LogFormat, LogLevel};
use crate::{daemon, node, round};

/// What commands work by.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// The file that they come from.
    pub file: Option<PathBuf>,
    /// How the cluster is reached.
    pub cluster: ClusterSettings,
    /// With `run --once`: how long after the start an empty queue is looked at again.
    pub wait: Duration,
    /// Log lines.
    pub log: Log,
    /// Bytes of memory; `None` = by what the machine gives.
    pub memory_limit: Option<usize>,
    /// Encoder threads; `None` = the cores.
    pub encoder_threads: Option<usize>,
    /// The service.
    pub daemon: daemon::Options,
    /// Backfills.
    pub backfill: backfill::Options,
    /// The round and its stages.
    pub round: round::Options,
    /// What `lakeward node` asks of its clients.
    pub routing: node::RoutingOptions,
    /// Options of the lake catalog in Fluss's words (`datalake.paimon.…`, without that prefix). The lake is where the cluster says; these
    /// have to agree with it.
    pub lake: BTreeMap<String, Secret>,
    /// What was accepted and is worth a word.
    pub notices: Vec<String>,
}

/// The keys `cluster.*` and `security.*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSettings {
    /// Servers of the Fluss cluster, HOST:PORT; the others are found through the first that answers.
    pub servers: Vec<String>,
    /// For connecting and the handshake together.
    pub connect_timeout: Duration,
    /// From a request to its answer.
    pub request_timeout: Duration,
    /// Who we are.
    pub security: Security,
}

impl Default for ClusterSettings {
    fn default() -> Self {
        let ConnectionOptions { connect_timeout, request_timeout, .. } = ConnectionOptions::default();
        Self { servers: vec![], connect_timeout, request_timeout, security: Security::default() }
    }
}

impl ClusterSettings {
    /// What `fluss::cluster` takes.
    #[must_use]
    pub fn options(&self) -> ClusterOptions {
        let connection = ConnectionOptions {
            credentials: self.security.credentials.clone(),
            connect_timeout: self.connect_timeout,
            request_timeout: self.request_timeout,
            ..ConnectionOptions::default()
        };
        ClusterOptions { connection, ..ClusterOptions::default() }
    }
}

/// The keys `log.*`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Log {
    /// Shape of the lines.
    pub format: LogFormat,
    /// Least grave level; `None` = by command.
    pub level: Option<LogLevel>,
}

impl Settings {
    /// Lays the sources over the defaults.
    ///
    /// # Errors
    /// `Invalid` names everything that is wrong, each with its place.
    pub fn load(sources: &Sources) -> Result<Self> {
        Self::checked(sources).map_err(|faults| {
            Error::invalid(match faults.as_slice() {
                [fault] => format!("configuration: {fault}"),
                faults => format!("configuration: {} faults:\n  {}", faults.len(), faults.join("\n  ")),
            })
        })
    }

    /// All faults, in the order of their places.
    fn checked(sources: &Sources) -> Result<Self, Vec<String>> {
        let (given, mut faults) = given::gather(sources, Self::key_of);
        let mut settings = Self { file: sources.file.clone(), ..Self::default() };
        let mut filled = keys::fill(given, settings.keys());
        faults.append(&mut filled.faults);
        settings.lake = filled.lake;
        settings.notices = filled.notices;
        settings.cluster.security.settle(&filled.winners, &mut faults, &mut settings.notices);
        let (commit, read) = (&settings.round.commit, &settings.round.read);
        let pairs = [
            ("commit.pause_first", commit.pause_first, "commit.pause_max", commit.pause_max),
            // The server holds a fetch for so long.
            ("read.wait", read.wait, "cluster.request_timeout", settings.cluster.request_timeout),
        ];
        for (short, shorter, long, longer) in pairs.into_iter().filter(|(_, shorter, _, longer)| shorter > longer) {
            let places = [short, long].into_iter().filter_map(|key| filled.winners.get(key));
            let place = places.max().map(ToString::to_string).unwrap_or_default();
            faults.push(format!("{place}: `{short}` ({shorter:?}) is longer than `{long}` ({longer:?})"));
        }
        if faults.is_empty() { Ok(settings) } else { Err(faults) }
    }
}

/// `HOST:PORT`. Whether there is such a host is found out by connecting.
///
/// # Errors
/// What it should look like.
pub fn server(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        // What may be a password is not repeated.
        _ if text.contains('@') => {
            Err("user and password can't be part of a server: `security.sasl.username` has the user".to_owned())
        }
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) => Ok(text.to_owned()),
        _ => Err(format!("`{text}` is not of the form HOST:PORT")),
    }
}

/// Where to listen; `None` = nowhere.
pub type Listen = Option<String>;

/// `HOST:PORT`, where port 0 takes a free one, or `off`.
///
/// # Errors
/// What it should look like.
pub fn listen(text: &str) -> Result<Listen, String> {
    if text == "off" {
        return Ok(None);
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(Some(text.to_owned())),
        _ => Err(format!("`{text}` is neither of the form HOST:PORT nor `off`")),
    }
}

#[cfg(test)]
mod tests;
