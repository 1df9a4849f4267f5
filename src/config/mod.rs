//! Settings: the file of `run --config`, checked as a whole.
//!
//! Owns the names of the file's keys, their units and bounds; what they mean and their defaults belong to the part whose
//! `Options` they fill. Called by `cli`, which lays flags over the file. A stage's option that has no key here does not compile.

mod units;

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use toml::{Table, Value};

use crate::daemon::{TableFilter, TableGlob};
use crate::error::{Error, Result};
use crate::write::WriteOptions;
use crate::{commit, daemon, plan, read, round};
pub use units::duration;

/// What `run` works by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Any server of the Fluss cluster.
    pub server: Option<String>,
    /// With `--once`: how long after the start an empty queue is looked at again.
    pub wait: Duration,
    /// Bytes of memory; `None` = by what the machine gives.
    pub memory_limit: Option<usize>,
    /// Encoder threads; `None` = the cores.
    pub encoder_threads: Option<usize>,
    /// The service.
    pub daemon: daemon::Options,
    /// The round and its stages.
    pub round: round::Options,
}

/// Checks a value and puts it where it belongs.
type Setter<'a> = Box<dyn FnOnce(&Value) -> Result<(), String> + 'a>;

/// How a number is written.
#[derive(Clone, Copy)]
enum Unit {
    Count,
    Bytes,
    Time,
}

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000;
const HOUR: u64 = 3_600 * SECOND;

impl Settings {
    /// Reads a file over the defaults.
    ///
    /// # Errors
    /// `Invalid` names the file and every key that is wrong in it.
    pub fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .map_err(|source| Error::invalid(format!("read configuration `{}`", path.display())).with_source(source))?;
        Self::parse(&text).map_err(|faults| {
            let (lead, gap) = if faults.len() == 1 { (String::new(), " ") } else { (format!(" {} faults:", faults.len()), "\n  ") };
            Error::invalid(format!("configuration `{}`:{lead}{gap}{}", path.display(), faults.join(gap)))
        })
    }

    /// All faults, in the order of their keys.
    fn parse(text: &str) -> Result<Self, Vec<String>> {
        let file: Table = text.parse().map_err(|source: toml::de::Error| vec![source.to_string().trim_end().to_owned()])?;
        let mut settings = Self::default();
        let mut faults = fill(file, settings.keys());
        let commit = &settings.round.commit;
        if commit.pause_first > commit.pause_max {
            faults.push("`commit.pause_first`: is longer than `commit.pause_max`".to_owned());
        }
        if faults.is_empty() { Ok(settings) } else { Err(faults) }
    }

    /// Every key. Taken apart without `..`, so that no option is forgotten.
    fn keys(&mut self) -> BTreeMap<&'static str, Setter<'_>> {
        let Self { server: any, wait, memory_limit, encoder_threads, daemon, round } = self;
        // Timers follow from the protocol.
        let daemon::Options { parallel, tables, poll, grace, admin, timers: _ } = daemon;
        let TableFilter { include, exclude } = tables;
        let round::Options { splits_max, replans_max, replan_pause, plan, read, write, commit } = round;
        let plan::Options { lookups_max } = plan;
        let read::Options { bucket_bytes, wait: read_wait, requests_max, remote_max, ahead, stall } = read;
        let WriteOptions { row_group_bytes, row_group_rows, part_bytes } = write;
        let commit::Options { tries_max, pause_first, pause_max, unknown_pause, round_age_max } = commit;
        BTreeMap::from([
            ("run.server", address(any)),
            ("run.wait", time(wait, 0..=8_760 * HOUR)),
            ("memory.limit", auto(memory_limit, Unit::Bytes, 64 * MIB..=1 << 40)),
            ("encoders.threads", auto(encoder_threads, Unit::Count, 1..=1_024)),
            ("tables.parallel", number(parallel, Unit::Count, 1..=1_000)),
            ("tables.include", globs(include)),
            ("tables.exclude", globs(exclude)),
            ("poll.interval", time(poll, 100..=600 * SECOND)),
            ("shutdown.grace", time(grace, 0..=HOUR)),
            ("admin.listen", listener(admin)),
            ("round.splits_max", number(splits_max, Unit::Count, 1..=100_000)),
            ("round.replans_max", number(replans_max, Unit::Count, 0..=1_000)),
            ("round.replan_pause", time(replan_pause, 1..=60 * SECOND)),
            ("plan.lookups_max", number(lookups_max, Unit::Count, 1..=10_000)),
            // A fetch has to fit into a frame, and its answer to come before the request times out.
            ("read.bucket_bytes", number(bucket_bytes, Unit::Bytes, 1_024..=64 * MIB)),
            ("read.wait", time(read_wait, 0..=10 * SECOND)),
            ("read.requests_max", number(requests_max, Unit::Count, 1..=64)),
            ("read.remote_max", number(remote_max, Unit::Count, 1..=1_024)),
            ("read.ahead", number(ahead, Unit::Count, 1..=64)),
            ("read.stall", time(stall, 15 * SECOND..=24 * HOUR)),
            ("write.row_group_bytes", number(row_group_bytes, Unit::Bytes, MIB..=1_024 * MIB)),
            ("write.row_group_rows", number(row_group_rows, Unit::Count, 1_000..=1 << 30)),
            ("write.part_bytes", number(part_bytes, Unit::Bytes, 5 * MIB..=1_024 * MIB)),
            ("commit.tries_max", number(tries_max, Unit::Count, 1..=1_000)),
            ("commit.pause_first", time(pause_first, 1..=60 * SECOND)),
            ("commit.pause_max", time(pause_max, 1..=600 * SECOND)),
            ("commit.unknown_pause", time(unknown_pause, 0..=600 * SECOND)),
            ("commit.round_age_max", time(round_age_max, 60 * SECOND..=168 * HOUR)),
        ])
    }
}

/// Hands each value of the file to its setter; tells what is wrong.
fn fill(file: Table, mut setters: BTreeMap<&'static str, Setter<'_>>) -> Vec<String> {
    let names: Vec<&'static str> = setters.keys().copied().collect();
    let tables: Vec<&'static str> = names.iter().map(|name| table_of(name)).collect();
    let mut faults = Vec::new();
    for (table, value) in file {
        let known = tables.contains(&table.as_str());
        match value {
            Value::Table(values) if known => {
                for (key, value) in values {
                    let name = format!("{table}.{key}");
                    match setters.remove(name.as_str()).map(|set| set(&value)) {
                        Some(Ok(())) => {}
                        Some(Err(fault)) => faults.push(format!("`{name}`: {fault}")),
                        None => faults.push(format!("`{name}`: unknown key; the nearest is `{}`", nearest(&name, &names))),
                    }
                }
            }
            Value::Table(_) => {
                faults.push(format!("`[{table}]`: unknown table; the nearest is `[{}]`", nearest(&table, &tables)));
            }
            _ if known => faults.push(format!("`{table}`: is a table, `[{table}]`")),
            _ => faults.push(format!("`{table}`: unknown key; the nearest is `{}`", nearest(&table, &names))),
        }
    }
    faults
}

fn table_of(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// The known name next to `wrong`: the same key elsewhere, else by spelling.
fn nearest(wrong: &str, known: &[&'static str]) -> &'static str {
    let key = |name: &str| name.rsplit('.').next().map(str::to_owned);
    let distance = |name: &&&'static str| (key(name) != key(wrong), strsim::damerau_levenshtein(name, wrong));
    known.iter().min_by_key(distance).copied().unwrap_or_default()
}

/// The value as a number within `range`, which is in bytes or milliseconds where it has a unit.
fn within(value: &Value, unit: Unit, range: &RangeInclusive<u64>) -> Result<u64, String> {
    let number = match (unit, value) {
        (Unit::Count, Value::Integer(number)) => u64::try_from(*number).ok(),
        (Unit::Bytes, Value::String(text)) => Some(units::bytes(text)?),
        (Unit::Time, Value::String(text)) => Some(units::millis(text)?),
        (Unit::Count, _) => return Err(format!("`{value}` is not a whole number")),
        (Unit::Bytes, _) => return Err(format!("`{value}` is not a size in quotes, such as `\"128MiB\"`")),
        (Unit::Time, _) => return Err(format!("`{value}` is not a duration in quotes, such as `\"30s\"`")),
    };
    number.filter(|number| range.contains(number)).ok_or_else(|| {
        let show = |number: u64| match unit {
            Unit::Count => number.to_string(),
            Unit::Bytes => units::bytes_text(number),
            Unit::Time => format!("{:?}", Duration::from_millis(number)),
        };
        format!("`{value}` is not within {} and {}", show(*range.start()), show(*range.end()))
    })
}

fn number<T: TryFrom<u64>>(place: &mut T, unit: Unit, range: RangeInclusive<u64>) -> Setter<'_> {
    Box::new(move |value| {
        *place = within(value, unit, &range)?.try_into().map_err(|_source| format!("`{value}` is too large here"))?;
        Ok(())
    })
}

fn time(place: &mut Duration, range: RangeInclusive<u64>) -> Setter<'_> {
    Box::new(move |value| {
        *place = Duration::from_millis(within(value, Unit::Time, &range)?);
        Ok(())
    })
}

/// `"auto"` leaves it to the machine.
fn auto(place: &mut Option<usize>, unit: Unit, range: RangeInclusive<u64>) -> Setter<'_> {
    Box::new(move |value| {
        if value.as_str() == Some("auto") {
            *place = None;
            return Ok(());
        }
        number(place.insert(0), unit, range)(value)
    })
}

fn globs(place: &mut Vec<TableGlob>) -> Setter<'_> {
    Box::new(move |value| {
        let list = value.as_array().ok_or_else(|| format!("`{value}` is not a list such as `[\"sales.*\"]`"))?;
        let glob = |value: &Value| value.as_str().ok_or_else(|| format!("`{value}` is not text in quotes"))?.parse();
        *place = list.iter().map(glob).collect::<Result<_, _>>()?;
        Ok(())
    })
}

fn listener(place: &mut Option<String>) -> Setter<'_> {
    Box::new(move |value| {
        *place = listen(value.as_str().ok_or_else(|| format!("`{value}` is not text in quotes"))?)?;
        Ok(())
    })
}

fn address(place: &mut Option<String>) -> Setter<'_> {
    Box::new(move |value| {
        *place = Some(server(value.as_str().ok_or_else(|| format!("`{value}` is not text in quotes"))?)?);
        Ok(())
    })
}

/// `HOST:PORT`. Whether there is such a host is found out by connecting.
///
/// # Errors
/// What it should look like.
pub fn server(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
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
