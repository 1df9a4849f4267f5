//! Events, metrics and log set-up: an event is a struct; emitting it writes the log line and moves the counters.
//!
//! Owns what is said and under which name. Does not own when: the part that handles a fact emits its event. Logs go to
//! stderr, since stdout is data. The target of a log line tells what it is about (`lakeward::round`: one line per round). ERROR needs an operator; WARN went on by itself; INFO is a change of state; DEBUG is per split.

mod events;
mod exporter;
pub mod metrics;

use std::io::{self, Write};

use clap::ValueEnum;
use tracing::level_filters::LevelFilter;

pub use events::{
    AdminListens, AdminRefused, BackfillProgress, HeartbeatFailed, LakeColumnsAdded, LeaseLost, PartitionDropped, Replanned,
    ReportLost, RoundFailed, RoundFinished, SnapshotRecovered, StateLost, Stopping, StoreRequest, TableClaimed, TableHeld,
    TableReturned,
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

/// Writes each event as one line: what a server or a file says can't fake another, nor move the cursor.
struct OneLine<W>(W);

impl<W: Write> Write for OneLine<W> {
    /// Takes an event whole, as the subscriber gives it.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let body = event.strip_suffix(b"\n").unwrap_or(event);
        let mut line = String::with_capacity(event.len());
        for next in String::from_utf8_lossy(body).chars() {
            if next.is_control() { line.extend(next.escape_default()) } else { line.push(next) }
        }
        line.push('\n');
        self.0.write_all(line.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Sends the process's events to stderr. Call once.
///
/// # Errors
/// `Internal` when logging is set up already.
pub fn set_up(format: LogFormat, level: LogLevel) -> Result<()> {
    let lines = tracing_subscriber::fmt().with_max_level(LevelFilter::from(level)).with_writer(|| OneLine(io::stderr()));
    match format {
        LogFormat::Text => lines.with_ansi(false).with_target(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).try_init(),
    }
    .map_err(|source| Error::internal("set up logging").with_source(source))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::model::TablePath;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_a_server_says_stays_within_the_line_of_its_event() {
        let kept = Kept::default();
        let writer = kept.clone();
        let lines = tracing_subscriber::fmt().with_ansi(false).with_writer(move || OneLine(writer.clone()));
        let error = &Error::data("it says\r\n2026-01-01 INFO all is well\u{1b}[2J\n");
        tracing::subscriber::with_default(lines.finish(), || {
            RoundFailed { table: &TablePath::new("demo", "t"), error }.emit();
            RoundFailed { table: &TablePath::new("demo", "u"), error: &Error::data("short") }.emit();
        });
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains(r"it says\r\n2026-01-01") && text.contains("table=demo.u"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }
}
