//! The command line as types. What it means is decided by the commands.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::config::{Settings, duration, server};
use crate::error::Result;
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
    /// Show what a running service does: state of each table, why, since when, and what would help.
    Status(Status),
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
    /// Settings, as `config/tiering.toml` explains them; flags win over the file.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Any server of the Fluss cluster.
    #[arg(long, value_name = "HOST:PORT", value_parser = server, required_unless_present = "config")]
    pub(super) server: Option<String>,
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
pub(super) struct Status {
    /// Where the service answers [default: `admin.listen` of the file, else 127.0.0.1:9180].
    #[arg(long, value_name = "HOST:PORT", value_parser = server)]
    pub(super) admin: Option<String>,
    /// The service's settings, for their `admin.listen`.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Print JSON.
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
    /// What the command works by: defaults, under the file, under the flags.
    pub(super) fn settings(&self) -> Result<Settings> {
        match self {
            Self::Run(args) => {
                let settings = args.config.as_deref().map_or_else(|| Ok(Settings::default()), Settings::load)?;
                Ok(Settings {
                    server: args.server.clone().or(settings.server),
                    wait: args.wait.unwrap_or(settings.wait),
                    ..settings
                })
            }
            Self::Status(args) => args.config.as_deref().map_or_else(|| Ok(Settings::default()), Settings::load),
            Self::Quickstart(_) | Self::Node(_) | Self::Plan(_) | Self::Inspect(_) => Ok(Settings::default()),
        }
    }

    /// Level logged when none was typed.
    pub(super) fn log_level(&self) -> LogLevel {
        match self {
            Self::Node(_) | Self::Run(_) => LogLevel::Info,
            Self::Quickstart(_) | Self::Status(_) | Self::Plan(_) | Self::Inspect(_) => LogLevel::Warn,
        }
    }

    /// Whether it ends by itself after a shutdown request, having handed back what it holds.
    pub(super) fn hands_back(&self) -> bool {
        matches!(self, Self::Node(_) | Self::Run(_))
    }
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
    fn wait_makes_sense_with_once_only() {
        assert!(Args::try_parse_from(["lakeward", "run", "--server", "a:1", "--once", "--wait", "3s"]).is_ok());
        assert!(Args::try_parse_from(["lakeward", "run", "--server", "a:1", "--wait", "3s"]).is_err());
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.toml");
        std::fs::write(&file, "run = { server = 'file:1', wait = '1s' }\nread = { requests_max = 3, ahead = 4 }").unwrap();
        let settings = |more: &[&str]| {
            let typed = ["lakeward", "run", "--once", "--config", file.to_str().unwrap()];
            Args::try_parse_from(typed.iter().chain(more)).unwrap().command.settings().unwrap()
        };
        let from_file = settings(&[]);
        assert_eq!((from_file.server.as_deref(), from_file.wait), (Some("file:1"), Duration::from_secs(1)));
        assert_eq!((from_file.round.read.requests_max, from_file.round.read.ahead), (3, 4));
        let typed = settings(&["--server", "flag:2", "--wait", "2s"]);
        assert_eq!((typed.server.as_deref(), typed.wait), (Some("flag:2"), Duration::from_secs(2)));
        assert!(Args::try_parse_from(["lakeward", "run", "--once"]).is_err(), "neither server nor file");
    }
}
