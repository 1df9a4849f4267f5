//! What was typed, what is printed, and how the process ends.
//!
//! Owns arguments, output and exit codes (architecture.md 8); everything else is done by the parts it calls.
//! `output` is the only place that prints: stdout is data, stderr is talk.

mod args;
mod backfill;
mod check;
mod connect;
mod exit;
mod inspect;
mod load;
mod node;
mod orphans;
mod output;
mod plan;
mod quickstart;
mod repair;
mod rescale;
mod run;
mod scan;
mod signals;
mod status;
mod sync;
mod verify;

use std::process::ExitCode;

use tracing::warn;

use crate::config::Settings;
use crate::error::{Error, Result};
use crate::runtime::{Runtime, memory_default, threads_default};
use crate::telemetry;
use args::{Args, Command};
pub(crate) use exit::End;
use output::Output;
use signals::Signals;

/// Runs the command that was typed.
#[must_use]
pub fn main() -> ExitCode {
    let mut output = Output::new();
    let args = match args::parse(std::env::args_os()) {
        Ok(args) => args,
        Err(error) => return exit::of_usage(&error, &mut output),
    };
    let end = start(&args).and_then(|(tokio, settings, runtime)| {
        // Deep futures live on the heap, not on the main thread's stack.
        tokio.block_on(Box::pin(drive(args, settings, runtime, &mut output)))
    });
    exit::of(end, &mut output)
}

/// Logging, settings, threads, time: what every command needs.
fn start(args: &Args) -> Result<(tokio::runtime::Runtime, Settings, Runtime), End> {
    let settings = Settings::load(&args.sources(std::env::vars_os()))?;
    telemetry::set_up(settings.log.format, settings.log.level.unwrap_or_else(|| args.command.log_level()))?;
    for notice in &settings.notices {
        warn!("configuration: {notice}");
    }
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::internal("start the async runtime").with_source(source))?;
    let memory = settings.memory_limit.unwrap_or_else(memory_default);
    let threads = settings.encoder_threads.unwrap_or_else(threads_default);
    // A quarter is set aside for what encoders, uploads, sorts and manifest scans take; the rest is for rows in flight.
    let runtime = Runtime::system(threads, memory - memory / 4)?;
    let stores = runtime.stores.clone().with_options(settings.stores.0.clone());
    Ok((tokio, settings, Runtime { stores, ..runtime }))
}

/// Runs the command until it ends or a signal comes: the first asks it to hand back and end, a second ends it at once.
async fn drive(args: Args, settings: Settings, runtime: Runtime, output: &mut Output) -> Result<(), End> {
    let mut signals = Signals::listen()?;
    let shutdown = runtime.shutdown.clone();
    let hands_back = args.command.hands_back();
    let mut command = Box::pin(run(args.command, settings, runtime, output));
    let signal = tokio::select! {
        end = &mut command => return end,
        signal = signals.next() => signal,
    };
    shutdown.cancel();
    if hands_back {
        tokio::select! {
            end = &mut command => end?,
            _ = signals.next() => {}
        }
    }
    Err(End::Signal(signal))
}

async fn run(command: Command, settings: Settings, runtime: Runtime, output: &mut Output) -> Result<(), End> {
    match command {
        Command::Run(args) => run::run(&args, settings, runtime, output).await,
        Command::Backfill(args) => backfill::run(&args, settings, runtime, output).await,
        Command::Inspect(args) => inspect::run(&args, runtime, output).await,
        Command::Quickstart(args) => quickstart::run(&args, runtime, output).await,
        Command::Node(args) => node::run(&args, &settings, runtime, output).await,
        Command::Status(args) => status::run(&args, &settings, &runtime, output).await,
        Command::Check(args) => check::run(&args, settings, runtime, output).await,
        Command::Plan(args) => plan::run(&args, settings, runtime, output).await,
        Command::Rescale(args) => rescale::run(&args, settings, runtime, output).await,
        Command::Repair(args) => Box::pin(repair::run(&args, settings, runtime, output)).await,
        Command::Orphans(args) => orphans::run(&args, settings, runtime, output).await,
        Command::Sync(args) => sync::run(&args, settings, runtime, output).await,
        Command::Verify(args) => verify::run(&args, settings, runtime, output).await,
        Command::Scan(args) => scan::run(&args, settings, runtime, output).await,
        Command::Load(args) => load::run(&args, settings, runtime, output).await,
    }
}
