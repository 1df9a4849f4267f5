//! `lakeward load`: rows of files into a table, which it makes if asked to.

mod args;

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

pub(in crate::cli) use self::args::Load;
use self::args::Wanted;
use super::output::{Output, count};
use super::{End, connect};
use crate::client::ddl::{differences, option_differences, parse_ddl};
use crate::client::files::Input;
use crate::client::{Admin, LoadReport, Writer, WriterOptions, load};
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::fluss::cluster::ClusterOptions;
use crate::fluss::code::Code;
use crate::fluss::table_json::TableDescriptor;
use crate::runtime::{BackoffOptions, Runtime};

/// A load outlives a server's restart: giving up in the middle costs more than waiting.
const RETRY_TIME: Duration = Duration::from_secs(180);

pub(super) async fn run(args: &Load, settings: Settings, runtime: Runtime, output: &mut Output) -> Result<(), End> {
    let inputs = args.inputs()?;
    let wanted = if args.create { Some(descriptor(args)?) } else { None };
    let mut writer = tokio::select! {
        opened = open(args, &settings, wanted.as_ref(), &runtime, output) => opened?,
        // Nothing is under way yet.
        () = runtime.shutdown.cancelled() => return Ok(()),
    };
    let bar = bar(&inputs);
    let mut watch = |report: &LoadReport, bad: &[String]| {
        bar.set_position(report.bytes_read);
        bar.set_message(format!("{} rows", count(report.rows)));
        bar.suspend(|| bad.iter().for_each(|row| output.talk(&format!("left out: {row}"))));
    };
    let (report, outcome) = load(&mut writer, inputs, args.options(), &runtime, &mut watch).await;
    bar.finish_and_clear();
    if args.json {
        output.json(&report)?;
    } else if report.complete {
        output.data(&line(&report))?;
    }
    if !report.complete {
        output.talk(&left(&report));
    }
    outcome.map_err(End::from)
}

/// The table to be made.
fn descriptor(args: &Load) -> Result<TableDescriptor> {
    match args.wanted() {
        Wanted::Parts(parts) => parts.descriptor(),
        Wanted::Ddl(file) => {
            let named = |error: Error| error.context(format!("read `{}`", file.display()));
            let text =
                std::fs::read_to_string(&file).map_err(|source| named(Error::invalid("open the file").with_source(source)))?;
            let ddl = parse_ddl(&text).map_err(named)?;
            ddl.expect(&args.table).map_err(named)?;
            Ok(ddl.descriptor)
        }
    }
}

async fn open(
    args: &Load,
    settings: &Settings,
    wanted: Option<&TableDescriptor>,
    runtime: &Runtime,
    output: &mut Output,
) -> Result<Writer> {
    let options = settings.cluster.options();
    let retry = BackoffOptions { attempts_max: 1000, ..options.retry };
    let options = ClusterOptions { retry, retry_time: RETRY_TIME, ..options };
    let cluster = connect::cluster_with(settings, options, runtime).await?;
    if let Some(wanted) = wanted {
        create(&Admin::new(cluster.clone()), args, wanted, output).await?;
    }
    let options = WriterOptions { create_partitions: args.new_partitions(), ..WriterOptions::default() };
    Writer::open(&cluster, &args.table, options)
        .await
        .map_err(|error| if error.code() == Some(Code::TABLE_NOT_EXIST.0) { error.with_hint("`--create` makes it") } else { error })
}

/// Makes the table, or finds one that is like it.
async fn create(admin: &Admin, args: &Load, wanted: &TableDescriptor, output: &mut Output) -> Result<()> {
    let path = &args.table;
    let found = match admin.table_info(path).await {
        Ok(found) => found,
        Err(error) if error.code() == Some(Code::TABLE_NOT_EXIST.0) => {
            admin.create_database(&path.database, true).await?;
            admin.create_table(path, wanted, true).await?;
            admin.table_info(path).await?
        }
        Err(error) => return Err(error),
    };
    let differences = differences(wanted, &found);
    if !differences.is_empty() {
        return Err(Error::invalid(format!("table `{path}` is there and is another: {}", differences.join("; ")))
            .with_hint("load into it without `--create`, or take another name"));
    }
    for difference in option_differences(wanted, &found) {
        output.talk(&format!("table `{path}` is left as it is: {difference}"));
    }
    Ok(())
}

/// Progress by bytes of input where their number is known; on a terminal only.
fn bar(inputs: &[Input]) -> ProgressBar {
    let bytes = inputs.iter().map(|input| match input {
        Input::File(path) => std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|found| found.len()),
        Input::Stdin => None,
    });
    let (bar, template) = match bytes.sum::<Option<u64>>() {
        Some(bytes) => (ProgressBar::new(bytes), "{wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec} {msg}, {eta} left"),
        None => (ProgressBar::no_length(), "{spinner} {bytes} {binary_bytes_per_sec} {msg}"),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// What was done, in one line.
fn line(report: &LoadReport) -> String {
    let mut skipped = if report.skipped > 0 { format!(", {} bad rows left out", count(report.skipped)) } else { String::new() };
    if report.images > 0 {
        skipped.push_str(&format!(", {} images before updates left out", count(report.images)));
    }
    let changes = if report.upserts + report.deletes > 0 {
        format!(" ({} upserts, {} deletes)", count(report.upserts), count(report.deletes))
    } else {
        String::new()
    };
    let made =
        if report.partitions_made > 0 { format!(", {} partitions made", count(report.partitions_made)) } else { String::new() };
    let tenths = (report.elapsed_ms + 50) / 100;
    format!(
        "{}: {} rows{changes} in {} batches, {} KiB{made}{skipped}, {}.{} s",
        report.table,
        count(report.rows),
        count(report.batches),
        count(report.bytes.div_ceil(1024)),
        tenths / 10,
        tenths % 10
    )
}

/// What is in the table although not all of the input is, and how to go on.
fn left(report: &LoadReport) -> String {
    let mut text = format!("not complete: {} rows are in `{}`", count(report.rows), report.table);
    if let Some(place) = &report.go_on {
        text.push_str(&format!("; go on at line {} of `{}` with `--from-line {}`", place.line, place.file, place.line));
    }
    if report.upserts + report.deletes > 0 {
        text.push_str("; what of the rows from there on is in the table already is repeated then, and ends the same");
        return text;
    }
    if report.rows_beyond > 0 {
        text.push_str(&format!(", where {} rows from there on are in the table already", count(report.rows_beyond)));
    }
    if report.rows_unsure > 0 {
        text.push_str(&format!(
            "; {} rows from there on may be in the table or not, as an answer was lost: look before going on",
            count(report.rows_unsure)
        ));
    }
    text
}
