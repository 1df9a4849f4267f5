//! The command line as types. What it means is decided by the commands.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Parser, Subcommand, ValueEnum};

use super::load::Load;
use super::repair::Repair;
use crate::config::{Sources, Typed, duration, server};
use crate::daemon::backfill::PartitionSpec;
use crate::model::TablePath;
use crate::telemetry::{LogFormat, LogLevel};

/// Tiers Apache Fluss tables into Apache Paimon, exactly once, without a JVM.
#[derive(Debug, Parser)]
#[command(name = "lakeward", version, propagate_version = true, arg_required_else_help = true)]
pub(super) struct Args {
    /// Settings, as `config/tiering.toml` explains them; LAKEWARD_ variables and flags win over the file.
    #[arg(long, value_name = "FILE", global = true)]
    pub(super) config: Option<PathBuf>,
    /// Any other setting, such as `read.ahead=4`. Fluss's own are taken as `--fluss.client.request-timeout 30s`.
    #[arg(long, value_name = "KEY=VALUE", global = true)]
    pub(super) set: Vec<String>,
    /// Shape of the log lines on stderr [default: text].
    #[arg(long, value_enum, global = true)]
    pub(super) log_format: Option<LogFormat>,
    /// Least grave level that is logged [default: info for `run`, `node` and, without a terminal, `backfill`; warn else].
    #[arg(long, value_enum, global = true)]
    pub(super) log_level: Option<LogLevel>,
    /// Settings among the arguments, which `parse` takes out.
    #[arg(skip)]
    typed: Vec<Typed>,
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
    /// Bring into the lake what a table's logs hold now, beside whoever else tiers it.
    Backfill(Backfill),
    /// Show what a running service does: state of each table, why, since when, and what would help.
    Status(Status),
    /// Try out configuration, cluster and lake, and say what a round could not do.
    Check(Check),
    /// Show what a round would do, and change nothing.
    Plan(Plan),
    /// Change `bucket.num`, the bucket count of partitions made from then on: shows first, changes with --confirm.
    Rescale(Rescale),
    /// Compare lake tables with their Fluss tables: columns, keys, options, bucket count; mend with --apply what needs no person.
    Sync(Sync),
    /// Do what a held table needs, once its operator has decided: shows first, does it with --confirm.
    Repair(Repair),
    /// Find files in lake tables that nothing names any more, and delete them with --delete.
    Orphans(Orphans),
    /// Show the metadata of a lake table.
    Inspect(Inspect),
    /// Look whether a lake table has what Fluss gave it, and say what is wrong and what to do.
    Verify(Verify),
    /// Print the rows of a table, those in the lake and those that only the log has, as JSON lines or CSV.
    Scan(Scan),
    /// Load JSON lines, CSV or Parquet into a table.
    Load(Box<Load>),
}

#[derive(Debug, clap::Args)]
pub(super) struct Quickstart {
    /// Folder for everything that is made; kept [default: a temporary folder, removed at the end].
    #[arg(long, value_name = "DIR")]
    pub(super) dir: Option<PathBuf>,
    /// Where the lake is, a path or `s3://BUCKET/FOLDER`; kept [default: in that folder].
    #[arg(long, value_name = "URL")]
    pub(super) warehouse: Option<String>,
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
    /// File with a line `USER:PASSWORD` for each who may log in (SASL/PLAIN) [default: nobody has to].
    #[arg(long, value_name = "FILE")]
    pub(super) sasl_users: Option<PathBuf>,
    /// Where lake tables are made, a path or `s3://BUCKET/FOLDER` [default: `warehouse` in the node's folder].
    #[arg(long, value_name = "URL")]
    pub(super) warehouse: Option<String>,
    /// How long a tiering service may be silent before its table is handed to another.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "2m")]
    pub(super) lease: Duration,
}

#[derive(Debug, clap::Args)]
pub(super) struct Run {
    /// Servers of the Fluss cluster, comma-separated; the others are found through the first that answers.
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) server: Option<String>,
    /// Work until the queue gives nothing more, then end.
    #[arg(long)]
    pub(super) once: bool,
    /// With --once: look at an empty queue again until so long after the start, for a dead holder's lease to end.
    #[arg(long, value_name = "DURATION", requires = "once")]
    pub(super) wait: Option<String>,
    /// Print a summary of each round as one line of JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Backfill {
    /// The table.
    #[arg(value_name = "DB.TABLE")]
    pub(super) table: TablePath,
    /// Only this partition, such as `day=2026-11-30` or `a=1/b=2`; without all keys: all partitions that fit. May be repeated
    /// [default: all partitions].
    #[arg(long, value_name = "SPEC")]
    pub(super) partition: Vec<PartitionSpec>,
    /// Servers of the Fluss cluster, comma-separated; the others are found through the first that answers.
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) server: Option<String>,
    /// Print the last line as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Status {
    /// Where the service answers [default: `admin.listen`, else 127.0.0.1:9180].
    #[arg(long, value_name = "HOST:PORT", value_parser = server)]
    pub(super) admin: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Check {
    /// Servers of the Fluss cluster, comma-separated; the others are found through the first that answers.
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) server: Option<String>,
    /// Print one JSON object per check.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Plan {
    /// Servers of the Fluss cluster, comma-separated; the others are found through the first that answers.
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) server: Option<String>,
    /// The table [default: all tables with the lake enabled].
    #[arg(value_name = "DB.TABLE")]
    pub(super) table: Option<TablePath>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Sync {
    /// The table [default: all tables with the lake enabled].
    #[arg(value_name = "DB.TABLE")]
    pub(super) table: Option<TablePath>,
    /// Servers of the Fluss cluster, comma-separated; the others are found through the first that answers.
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) server: Option<String>,
    /// End with code 6 when something differs.
    #[arg(long, conflicts_with = "apply")]
    pub(super) check: bool,
    /// Make lake tables that are missing, add nullable columns at the end, set `bucket` and Fluss's own options; what is left is for a
    /// person to decide (code 6).
    #[arg(long)]
    pub(super) apply: bool,
    /// Print one JSON object per table.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Rescale {
    /// The table.
    #[arg(value_name = "DB.TABLE")]
    pub(super) table: TablePath,
    /// Buckets of each partition made from then on; partitions that are there keep theirs.
    #[arg(value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    pub(super) count: i32,
    /// Servers of the Fluss cluster, comma-separated; the others are found through the first that answers.
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) server: Option<String>,
    /// Change it; without, only what would change is shown.
    #[arg(long)]
    pub(super) confirm: bool,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Inspect {
    /// Folder of a lake table, such as `warehouse/demo.db/orders`.
    #[arg(value_name = "PATH")]
    pub(super) path: String,
    /// What to list of it [default: an overview].
    #[arg(value_enum, value_name = "WHAT")]
    pub(super) what: Option<Part>,
    /// The snapshot to look at [default: the newest].
    #[arg(long, value_name = "ID")]
    pub(super) snapshot: Option<i64>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// What of a lake table is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// All snapshots that are there.
    Snapshots,
    /// The manifests of a snapshot.
    Manifests,
    /// The live files of a snapshot.
    Files,
    /// Files, rows and bucket totals of each partition in a snapshot.
    Partitions,
    /// Tags, which keep the files of their snapshot.
    Tags,
    /// Consumers, which keep snapshots from expiring; Lakeward's pins among them.
    Consumers,
}

#[derive(Debug, clap::Args)]
pub(super) struct Orphans {
    /// The tables [default: all tables with the lake enabled].
    #[arg(value_name = "DB.TABLE")]
    pub(super) tables: Vec<TablePath>,
    /// Servers of the Fluss cluster, comma-separated; the others are found through the first that answers.
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) server: Option<String>,
    /// Only what is older than this: with --delete at least a day, since a round at work may name what is younger.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1d")]
    pub(super) older_than: Duration,
    /// Delete them; without, they are only listed.
    #[arg(long)]
    pub(super) delete: bool,
    /// Print one JSON object per table.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Verify {
    /// The table.
    #[arg(value_name = "DB.TABLE")]
    pub(super) table: TablePath,
    /// Read every data file [default: a sample, the newest files of each bucket first].
    #[arg(long)]
    pub(super) all: bool,
    /// Only this partition, such as `day=2026-11-30` or `a=1/b=2`; without all keys: all partitions that fit. May be repeated
    /// [default: all partitions, those that Fluss has dropped included].
    #[arg(long, value_name = "SPEC")]
    pub(super) partition: Vec<PartitionSpec>,
    /// Servers of the Fluss cluster, comma-separated; the others are found through the first that answers.
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) server: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// How rows are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ScanFormat {
    /// JSON lines, one object per row.
    Json,
    /// RFC 4180 with a header line; an empty field is NULL, nested values are JSON.
    Csv,
}

#[derive(Debug, clap::Args)]
pub(super) struct Scan {
    /// The table.
    #[arg(value_name = "DB.TABLE")]
    pub(super) table: TablePath,
    /// Only these columns, comma-separated, in this order [default: all of the table].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(super) columns: Option<Vec<String>>,
    /// Only this partition, such as `day=2026-11-30` or `a=1/b=2`; without all keys: all partitions that fit. May be repeated
    /// [default: all partitions, those that Fluss has dropped included].
    #[arg(long, value_name = "SPEC")]
    pub(super) partition: Vec<PartitionSpec>,
    /// At most so many rows.
    #[arg(long, value_name = "N")]
    pub(super) limit: Option<u64>,
    /// Print the number of rows only.
    #[arg(long, conflicts_with_all = ["columns", "format"])]
    pub(super) count: bool,
    /// Only what this lake snapshot has, and nothing of the log.
    #[arg(long, value_name = "ID")]
    pub(super) snapshot: Option<i64>,
    /// How rows are printed.
    #[arg(long, value_enum, default_value = "json")]
    pub(super) format: ScanFormat,
    /// Servers of the Fluss cluster, comma-separated; the others are found through the first that answers.
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) server: Option<String>,
}

/// Reads the arguments of the process, its own name first.
///
/// # Errors
/// What clap says; help and version are among them.
pub(super) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Args, clap::Error> {
    let (arguments, typed) = take_settings(arguments);
    Args::try_parse_from(arguments).map(|args| Args { typed, ..args })
}

/// Takes out what sets a key: `--set KEY=VALUE`, and flags whose name is a key, as Flink jobs take them (`--fluss.bootstrap.servers
/// HOST:PORT`). clap never sees them, so that no message of it quotes a secret.
fn take_settings(arguments: impl IntoIterator<Item = OsString>) -> (Vec<OsString>, Vec<Typed>) {
    let (mut others, mut typed) = (Vec::new(), Vec::new());
    let mut arguments = arguments.into_iter().peekable();
    while let Some(argument) = arguments.next() {
        if argument == "--" {
            others.push(argument);
            others.extend(arguments);
            break;
        }
        let Some((name, value)) = argument.to_str().and_then(setting) else {
            others.push(argument);
            continue;
        };
        // As Flink reads it: what looks like a flag is no value.
        let value = value.or_else(|| arguments.next_if(|next| !next.as_encoded_bytes().starts_with(b"--"))?.into_string().ok());
        typed.push(match (name.as_str(), value) {
            ("set", value) => Typed::pair(&value.unwrap_or_default()),
            (_, value) => Typed { flag: format!("--{name}"), key: name, value },
        });
    }
    (others, typed)
}

/// Name and value behind `=` of an argument that sets a key.
fn setting(argument: &str) -> Option<(String, Option<String>)> {
    // Flink takes one dash as well.
    let pasted = |flag: &&str| {
        ["fluss.", "datalake.", "lake.tiering.", "s3.", "s3a.", "fs.s3a."].iter().any(|prefix| flag.starts_with(prefix))
    };
    let flag = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-').filter(pasted))?;
    let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value.to_owned())));
    let is_key = name.contains('.') && name.chars().all(|next| next.is_ascii_alphanumeric() || "._-".contains(next));
    (is_key || name == "set").then(|| (name.to_owned(), value))
}

impl Args {
    /// Where the settings come from.
    pub(super) fn sources(&self, variables: impl Iterator<Item = (OsString, OsString)>) -> Sources {
        let name = |value: Option<PossibleValue>| value.map(|value| value.get_name().to_owned());
        let logs = [
            ("--log-format", "log.format", name(self.log_format.and_then(|format| format.to_possible_value()))),
            ("--log-level", "log.level", name(self.log_level.and_then(|level| level.to_possible_value()))),
        ];
        let named = logs.into_iter().chain(self.command.settings());
        let named = named.filter_map(|(flag, key, value)| Some(Typed::new(flag, key, value?)));
        Sources {
            file: self.config.clone(),
            variables: variables.collect(),
            typed: named.chain(self.typed.iter().cloned()).collect(),
        }
    }
}

impl Command {
    /// Flags that set a key: flag, key, value.
    fn settings(&self) -> Vec<(&'static str, &'static str, Option<String>)> {
        let server = |server: &Option<String>| ("--server", "cluster.servers", server.clone());
        match self {
            Self::Run(args) => vec![server(&args.server), ("--wait", "run.wait", args.wait.clone())],
            Self::Check(args) => vec![server(&args.server)],
            Self::Plan(args) => vec![server(&args.server)],
            Self::Rescale(args) => vec![server(&args.server)],
            Self::Sync(args) => vec![server(&args.server)],
            Self::Orphans(args) => vec![server(&args.server)],
            Self::Repair(args) => vec![server(&args.action.on().server)],
            Self::Backfill(args) => vec![server(&args.server)],
            Self::Verify(args) => vec![server(&args.server)],
            Self::Scan(args) => vec![server(&args.server)],
            Self::Load(args) => vec![server(&args.server)],
            Self::Quickstart(_) | Self::Node(_) | Self::Status(_) | Self::Inspect(_) => vec![],
        }
    }

    /// Level logged when none was typed.
    pub(super) fn log_level(&self) -> LogLevel {
        match self {
            Self::Node(_) | Self::Run(_) => LogLevel::Info,
            // Lines would tear the progress bar.
            Self::Backfill(_) if !std::io::stderr().is_terminal() => LogLevel::Info,
            Self::Quickstart(_)
            | Self::Backfill(_)
            | Self::Status(_)
            | Self::Check(_)
            | Self::Plan(_)
            | Self::Rescale(_)
            | Self::Sync(_)
            | Self::Orphans(_)
            | Self::Repair(_)
            | Self::Inspect(_)
            | Self::Verify(_)
            | Self::Scan(_)
            | Self::Load(_) => LogLevel::Warn,
        }
    }

    /// Whether it ends by itself after a shutdown request, having handed back what it holds.
    pub(super) fn hands_back(&self) -> bool {
        matches!(self, Self::Node(_) | Self::Run(_) | Self::Backfill(_) | Self::Load(_))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::config::Settings;

    #[test]
    fn the_command_table_is_consistent() {
        Args::command().debug_assert();
    }

    /// The settings that these arguments and variables come to.
    fn settings(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Settings, String> {
        let arguments = ["lakeward"].iter().chain(arguments).map(OsString::from);
        let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        Settings::load(&parse(arguments).unwrap().sources(variables)).map_err(|error| error.to_string())
    }

    #[test]
    fn wait_makes_sense_with_once_only() {
        let parse = |more: &[&str]| parse(["lakeward", "run", "--server", "a:1"].iter().chain(more).map(OsString::from));
        assert!(parse(&["--once", "--wait", "3s"]).is_ok());
        assert!(parse(&["--wait", "3s"]).is_err());
    }

    #[test]
    fn flags_win_over_variables_those_over_the_file_and_the_file_over_defaults() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.toml");
        std::fs::write(&file, "cluster.servers = 'file:1'\nrun.wait = '1s'\nread = { requests_max = 3, ahead = 4 }").unwrap();
        let run = ["run", "--once", "--config", file.to_str().unwrap()];
        let found = settings(&run, &[]).unwrap();
        assert_eq!((found.cluster.servers, found.wait), (vec!["file:1".to_owned()], Duration::from_secs(1)));
        assert_eq!((found.round.read.requests_max, found.round.read.ahead), (3, Some(4)));
        let variables = [("LAKEWARD_CLUSTER_SERVERS", "a:1, b:2"), ("LAKEWARD_READ_AHEAD", "5"), ("LAKEWARD_RUN_WAIT", "2s")];
        let found = settings(&run, &variables).unwrap();
        assert_eq!((found.cluster.servers, found.wait), (vec!["a:1".to_owned(), "b:2".to_owned()], Duration::from_secs(2)));
        assert_eq!((found.round.read.requests_max, found.round.read.ahead), (3, Some(5)));
        let flags = ["--server", "flag:2", "--wait", "3s", "--set", "read.ahead=6", "--log-level", "debug"];
        let found = settings(&[&run[..], &flags].concat(), &variables).unwrap();
        assert_eq!((found.cluster.servers, found.wait), (vec!["flag:2".to_owned()], Duration::from_secs(3)));
        assert_eq!((found.round.read.requests_max, found.round.read.ahead), (3, Some(6)));
        assert_eq!(found.log.level, Some(LogLevel::Debug));
    }

    #[test]
    fn arguments_of_a_flink_job_can_be_pasted() {
        let pasted = [
            "--fluss.bootstrap.servers",
            "a:9123,b:9123",
            "--datalake.format",
            "paimon",
            "--datalake.paimon.metastore",
            "filesystem",
            "--datalake.paimon.warehouse=/lake",
            "--fluss.client.security.protocol",
            "sasl",
            "--fluss.client.security.sasl.mechanism",
            "PLAIN",
            "--fluss.client.security.sasl.username",
            "otto",
            "-fluss.client.security.sasl.password",
            "canary",
            "--fluss.client.request-timeout",
            "40 s",
            "--fluss.client.scanner.log.fetch.max-bytes-for-bucket",
            "2mb",
            "--fluss.client.scanner.log.max-poll-records",
            "500",
            "--lake.tiering.auto-expire-snapshot",
            "false",
        ];
        let found = settings(&[&["run"][..], &pasted, &["--once"]].concat(), &[]).unwrap();
        assert_eq!(found.cluster.servers, ["a:9123", "b:9123"]);
        assert_eq!(found.cluster.request_timeout, Duration::from_secs(40));
        assert_eq!(found.round.read.bucket_bytes, 2 << 20);
        assert_eq!(found.lake["warehouse"].expose(), "/lake");
        assert_eq!(found.cluster.security.credentials.as_ref().unwrap().username(), "otto");
        assert_eq!(found.notices.len(), 2, "{:?}", found.notices);
        assert!(
            found.notices[0].starts_with("--fluss.client.scanner.log.max-poll-records: has no meaning here"),
            "{:?}",
            found.notices
        );
        assert!(found.notices[1].contains("password_file"), "{:?}", found.notices);
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_arguments_never_panic(words in proptest::collection::vec("(--?|--set|--fluss\\.|=|[a-z.]|\\PC){0,8}", 0..6)) {
            let words = ["lakeward", "run"].into_iter().map(OsString::from).chain(words.into_iter().map(OsString::from));
            if let Ok(args) = parse(words) {
                drop(Settings::load(&args.sources(std::iter::empty())));
            }
        }
    }

    #[test]
    fn a_flag_without_value_and_what_stands_behind_two_dashes_are_told_apart() {
        assert_eq!(settings(&["plan", "--read.ahead", "--json"], &[]).unwrap_err(), "configuration: --read.ahead: needs a value");
        assert_eq!(settings(&["plan", "--set", "canary"], &[]).unwrap_err(), "configuration: --set: needs KEY=VALUE");
        let (others, typed) = take_settings(["load", "--", "--a.json", "--set"].map(OsString::from));
        assert_eq!((others.len(), typed.len()), (4, 0));
    }
}
