//! Events, metrics and log set-up: an event is a struct; emitting it writes the log line and moves the counters.
//!
//! Owns what is said and under which name. Does not own when: the part that handles a fact emits its event. Logs go to
//! stderr, since stdout is data. The target of a log line tells what it is about (`lakeward::round`: one line per round). ERROR needs an operator; WARN went on by itself; INFO is a change of state; DEBUG is per split.

mod events;
mod exporter;
pub mod metrics;

use clap::ValueEnum;
use tracing::level_filters::LevelFilter;

pub use events::{
    AdminListens, AdminRefused, HeartbeatFailed, LakeColumnsAdded, LeaseLost, Replanned, ReportLost, RoundFailed, RoundFinished,
    SnapshotRecovered, Stopping, TableClaimed, TableHeld, TableReturned,
};
pub use exporter::{Exporter, State, TableState};

use crate::error::{Error, Result};

/// Shape of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Least grave level that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Needs an operator.
    Error,
    /// Went on by itself.
    Warn,
    /// Changes of state.
    Info,
    /// Per split.
    Debug,
    /// Per request.
    Trace,
}

impl From<LogLevel> for LevelFilter {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
            LogLevel::Trace => Self::TRACE,
        }
    }
}

/// Sends the process's events to stderr. Call once.
///
/// # Errors
/// `Internal` when logging is set up already.
pub fn set_up(format: LogFormat, level: LogLevel) -> Result<()> {
    let lines = tracing_subscriber::fmt().with_max_level(LevelFilter::from(level)).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => lines.with_ansi(false).with_target(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).try_init(),
    }
    .map_err(|source| Error::internal("set up logging").with_source(source))
}
