//! What may be typed behind `lakeward repair`.

use std::path::PathBuf;

use crate::daemon::backfill::PartitionSpec;
use crate::model::TablePath;

#[derive(Debug, clap::Args)]
pub(crate) struct Repair {
    #[command(subcommand)]
    pub(crate) action: Action,
}

/// What is to be repaired. Each shows what it would do, and does it with --confirm.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Action {
    /// Tell Fluss the newest snapshot that it has made in the lake and does not know: what a round would do first.
    Record {
        #[command(flatten)]
        on: On,
    },
    /// State that the lake is right as it is, with the offsets that its newest Fluss-made snapshot carries: ends a hold.
    AcceptBase {
        #[command(flatten)]
        on: On,
        /// The newest snapshot, as it was looked at; if it is another by now, nothing is done.
        #[arg(long, value_name = "SNAPSHOT")]
        at: Option<i64>,
    },
    /// State from where on rows are to be tiered: ends a hold; what lies beyond is tiered (again).
    #[command(group = clap::ArgGroup::new("to").required(true))]
    ResetOffsets {
        #[command(flatten)]
        on: On,
        /// The offsets of this Fluss-made snapshot; 0 = none, everything is tiered from the start of the logs.
        #[arg(long, value_name = "SNAPSHOT", group = "to", value_parser = clap::value_parser!(i64).range(0..))]
        snapshot: Option<i64>,
        /// The offsets in this file, in the form of Fluss's own offsets files (and of `lakeward.offsets` in a snapshot).
        #[arg(long, value_name = "FILE", group = "to")]
        offsets: Option<PathBuf>,
        /// The newest snapshot, as it was looked at; if it is another by now, nothing is done.
        #[arg(long, value_name = "SNAPSHOT")]
        at: Option<i64>,
    },
    /// Take our pins off a table, so that its lake expires as it would without Lakeward. Stop every Lakeward that tiers it first.
    Release {
        #[command(flatten)]
        on: On,
        /// Also pins of rounds that may still be at work.
        #[arg(long)]
        force: bool,
    },
    /// Write one partition of the lake table again by the bucket count that Fluss has for it.
    RewritePartition {
        #[command(flatten)]
        on: On,
        /// The partition, such as `day=2026-11-30` or `a=1/b=2`; left away on a table without partitions.
        #[arg(long, value_name = "SPEC")]
        partition: Option<PartitionSpec>,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct On {
    /// The table.
    #[arg(value_name = "DB.TABLE")]
    pub(crate) table: TablePath,
    /// Servers of the Fluss cluster, comma-separated; the others are found through the first that answers.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) server: Option<String>,
    /// Do it; without, only what would be done is shown.
    #[arg(long)]
    pub(crate) confirm: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Action {
    /// What every one of them takes.
    pub(crate) const fn on(&self) -> &On {
        match self {
            Self::Record { on }
            | Self::AcceptBase { on, .. }
            | Self::ResetOffsets { on, .. }
            | Self::Release { on, .. }
            | Self::RewritePartition { on, .. } => on,
        }
    }

    /// Its name as it is typed.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Record { .. } => "record",
            Self::AcceptBase { .. } => "accept-base",
            Self::ResetOffsets { .. } => "reset-offsets",
            Self::Release { .. } => "release",
            Self::RewritePartition { .. } => "rewrite-partition",
        }
    }
}
