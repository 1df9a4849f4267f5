//! Settings: defaults, under a TOML file, under the environment, under flags; checked as a whole.
//!
//! Owns the names of keys, their units and bounds (`keys`), what Fluss's own keys mean here (`fluss`), and secrets. What an option means
//! and its default belong to the part whose `Options` it fills. Called by `cli`, once per process. A stage's option that has no key
//! does not compile. No fault, notice or Debug shows a secret.

mod fluss;
mod given;
mod keys;
mod s3;
mod secret;
mod security;
mod units;
mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub use given::{Sources, Typed, variable};
pub use s3::S3;
pub use secret::Secret;
pub use security::{Protocol, Security};
pub use units::duration;

use crate::daemon::backfill;
use crate::error::{Error, Result};
use crate::fluss::cluster::ClusterOptions;
use crate::fluss::connection::ConnectionOptions;
use crate::telemetry::{LogFormat, LogLevel};
use crate::{daemon, node, round, storage};

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
    /// Who may be connected to `lakeward node`.
    pub clients: node::ClientOptions,
    /// How object stores are reached.
    pub s3: S3,
    /// The same, as options of `storage`: `s3` as it was given, and what was given in Fluss's, Paimon's and Hadoop's words.
    pub stores: Stores,
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

/// Options for object stores; values may be secrets.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Stores(pub BTreeMap<String, String>);

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
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

    /// Puts together what is said of object stores. `datalake.paimon.s3.…` and `fs.s3a.…` say how they are reached, not where the lake is.
    fn settle_stores(&mut self, winners: &keys::Winners, faults: &mut Vec<String>) {
        self.stores.0 = self.s3.options();
        let (stores, lake) = std::mem::take(&mut self.lake).into_iter().partition(|(key, _)| storage::is_option(key));
        self.lake = lake;
        let stores: BTreeMap<String, Secret> = stores;
        for (key, value) in stores {
            // Under Hadoop's prefix, so that it does not replace what stands under ours: `storage` tells a contradiction.
            let key = key.strip_prefix("s3.").map_or_else(|| key.clone(), |rest| format!("fs.s3a.{rest}"));
            self.stores.0.insert(key, value.expose().to_owned());
        }
        if let Err(error) = storage::check(&self.stores.0) {
            let place = winners.iter().find(|(key, _)| key.starts_with("s3.")).map(|(_, origin)| format!("{origin}: "));
            faults.push(format!("{}{}", place.unwrap_or_default(), error.chain()));
        }
    }

    /// All faults, in the order of their places.
    fn checked(sources: &Sources) -> Result<Self, Vec<String>> {
        let (given, mut faults) = given::gather(sources, Self::key_of);
        let mut settings = Self { file: sources.file.clone(), ..Self::default() };
        let mut filled = keys::fill(given, settings.keys());
        faults.append(&mut filled.faults);
        settings.lake = filled.lake;
        settings.settle_stores(&filled.winners, &mut faults);
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

/// Reads the text of a file, as [`Settings::load`] does, for [`crate::hostile`].
#[cfg(any(test, fuzzing))]
pub(crate) fn read_text(text: &str) -> Result<()> {
    let (given, mut faults) = match given::parse(std::path::Path::new("lakeward.toml"), text) {
        Ok(given) => (given, Vec::new()),
        Err(faults) => (Vec::new(), faults),
    };
    let mut settings = Settings::default();
    let mut filled = keys::fill(given, settings.keys());
    faults.append(&mut filled.faults);
    settings.lake = filled.lake;
    settings.settle_stores(&filled.winners, &mut faults);
    if faults.is_empty() { Ok(()) } else { Err(Error::invalid(faults.join("\n"))) }
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
