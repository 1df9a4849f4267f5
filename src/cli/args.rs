//! The command line as types. What it means is decided by the commands.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::model::TablePath;
use crate::telemetry::{LogFormat, LogLevel};

/// Tiers Apache Fluss tables into Apache Paimon, exactly once, without a JVM.
#[derive(Debug, Parser)]
#[command(name = "lakeward", version, propagate_version = true, arg_required_else_help = true)]
pub(super) struct Args {
    /// Shape of the log lines on stderr.
    #[arg(long, value_enum, default_value_t, global = true)]
    pub(super) log_format: LogFormat,
    /// Least grave level that is logged [default: info for `run` and `node`, warn else].
    #[arg(long, value_enum, global = true)]
    pub(super) log_level: Option<LogLevel>,
    #[command(subcommand)]
    pub(super) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show the whole story in one process: node, table, rows, rounds, a rescale, and the lake read back.
    Quickstart(Quickstart),
    /// Run the embedded Fluss node.
    Node(Node),
    /// Tier what the cluster's queue hands out.
    Run(Run),
    /// Show what a round would do, and change nothing.
    Plan(Plan),
    /// Show the metadata of a lake table.
    Inspect(Inspect),
}

#[derive(Debug, clap::Args)]
pub(super) struct Quickstart {
    /// Folder for everything that is made; kept [default: a temporary folder, removed at the end].
    #[arg(long, value_name = "DIR")]
    pub(super) dir: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Node {
    /// Folder for tables, logs and metadata.
    #[arg(long, value_name = "DIR")]
    pub(super) dir: PathBuf,
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) listen: String,
    /// Address that clients are told; needed when listening on all addresses [default: where it listens].
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(super) advertise: Option<String>,
    /// Where lake tables are made [default: `warehouse` in the node's folder].
    #[arg(long, value_name = "PATH")]
    pub(super) warehouse: Option<PathBuf>,
    /// How long a tiering service may be silent before its table is handed to another.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "2m")]
    pub(super) lease: Duration,
}

#[derive(Debug, clap::Args)]
pub(super) struct Run {
    /// Any server of the Fluss cluster.
    #[arg(long, value_name = "HOST:PORT", value_parser = server)]
    pub(super) server: String,
    /// Work until the queue gives nothing more, then end.
    #[arg(long)]
    pub(super) once: bool,
    /// With --once: look at an empty queue again until so long after the start, for a dead holder's lease to end.
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "once")]
    pub(super) wait: Option<Duration>,
    /// Print a summary of each round as one line of JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Plan {
    /// Any server of the Fluss cluster.
    #[arg(long, value_name = "HOST:PORT", value_parser = server)]
    pub(super) server: String,
    /// The table [default: all tables with the lake enabled].
    #[arg(value_name = "DB.TABLE")]
    pub(super) table: Option<TablePath>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Inspect {
    /// Folder of a lake table, such as `warehouse/demo.db/orders`.
    #[arg(value_name = "PATH")]
    pub(super) path: String,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

impl Command {
    /// Level logged when none was typed.
    pub(super) fn log_level(&self) -> LogLevel {
        match self {
            Self::Node(_) | Self::Run(_) => LogLevel::Info,
            Self::Quickstart(_) | Self::Plan(_) | Self::Inspect(_) => LogLevel::Warn,
        }
    }

    /// Whether it ends by itself after a shutdown request, having handed back what it holds.
    pub(super) fn hands_back(&self) -> bool {
        matches!(self, Self::Node(_) | Self::Run(_))
    }
}

/// `HOST:PORT`. Whether there is such a host is found out by connecting.
fn server(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) => Ok(text.to_owned()),
        _ => Err(format!("`{text}` is not of the form HOST:PORT")),
    }
}

/// A number with a unit: `500ms`, `30s`, `2m`, `1h`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration such as `500ms`, `30s`, `2m` or `1h`");
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(unit_at);
    let number: u64 = number.parse().map_err(|_source| wrong())?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(millis).map(Duration::from_millis).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_table_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_server_has_a_host_and_a_port() {
        for right in ["localhost:9123", "10.0.0.1:1", "[::1]:65535"] {
            assert_eq!(server(right).unwrap(), right);
        }
        for wrong in ["", "localhost", "localhost:", ":9123", "localhost:0", "localhost:65536", "localhost:x"] {
            assert!(server(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(duration("2m").unwrap(), Duration::from_secs(120));
        for wrong in ["", "5", "s", "5d", "-1s", "99999999999999999999s", "18446744073709551615h"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn wait_makes_sense_with_once_only() {
        assert!(Args::try_parse_from(["lakeward", "run", "--server", "a:1", "--once", "--wait", "3s"]).is_ok());
        assert!(Args::try_parse_from(["lakeward", "run", "--server", "a:1", "--wait", "3s"]).is_err());
    }
}
