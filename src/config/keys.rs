//! The keys: name, unit and bounds of each, and how what was given finds its place.
//!
//! To add one: take the option apart in [`Settings::keys`], give it a line there (a setter of `values`), and explain it in
//! `config/tiering.toml` at its default; tests compare the two. File, environment and flags then all know it.

use std::collections::{BTreeMap, BTreeSet};

use super::fluss::{self, Translated};
use super::given::{Given, Origin, PREFIX, Raw, variable};
use super::security::{Protocol, Security};
use super::values::{HOUR, MIB, SECOND, Setter, Unit, choice, list, made, number, number_or, only, secret, time, words};
use super::{ClusterSettings, Log, Settings, listen, server};
use crate::daemon::{TableFilter, backfill};
use crate::node::AcceptAbsentCount;
use crate::telemetry::{LogFormat, LogLevel};
use crate::write::WriteOptions;
use crate::{commit, daemon, node, plan, read, round};

const PROTOCOLS: [(&str, Protocol); 2] = [("plaintext", Protocol::Plaintext), ("sasl", Protocol::Sasl)];
const FORMATS: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];
const ACCEPTED: [(&str, AcceptAbsentCount); 2] = [("never", AcceptAbsentCount::Never), ("reads", AcceptAbsentCount::Reads)];
const LEVELS: [(&str, Option<LogLevel>); 6] = [
    ("auto", None),
    ("error", Some(LogLevel::Error)),
    ("warn", Some(LogLevel::Warn)),
    ("info", Some(LogLevel::Info)),
    ("debug", Some(LogLevel::Debug)),
    ("trace", Some(LogLevel::Trace)),
];

impl Settings {
    /// Every key. Taken apart without `..`, so that no option is forgotten.
    pub(super) fn keys(&mut self) -> BTreeMap<&'static str, Setter<'_>> {
        // `lake` has Fluss's keys only; `stores` follows from `s3` and them; the file and the notices are no settings.
        let Self {
            file: _,
            cluster,
            wait,
            log,
            memory_limit,
            encoder_threads,
            daemon,
            backfill,
            round,
            routing,
            clients,
            s3,
            stores: _,
            lake: _,
            notices: _,
        } = self;
        let ClusterSettings { servers, connect_timeout, request_timeout, security } = cluster;
        // The credentials follow from the other four.
        let Security { protocol, username, password, password_file, credentials: _ } = security;
        let Log { format, level } = log;
        // Timers follow from the protocol.
        let daemon::Options { parallel, tables, poll, grace, admin, timers: _ } = daemon;
        let TableFilter { include, exclude } = tables;
        let backfill::Options { bytes_max, time_max, patience } = backfill;
        let round::Options { splits_max, replans_max, replan_pause, plan, read, write, commit, off: _ } = round;
        let plan::Options { lookups_max } = plan;
        let read::Options { bucket_bytes, wait: read_wait, requests_max, remote_max, ahead, range_rows, stall } = read;
        let WriteOptions { row_group_bytes, row_group_rows, part_bytes } = write;
        let node::RoutingOptions { accept_absent_count } = routing;
        let node::ClientOptions { connections_max, idle, stall: client_stall } = clients;
        let commit::Options { tries_max, pause_first, pause_max, unknown_pause, round_age_max, off: _ } = commit;
        let mut keys = BTreeMap::from([
            ("cluster.servers", list(servers, server)),
            ("cluster.connect_timeout", time(connect_timeout, SECOND..=10 * 60 * SECOND)),
            ("cluster.request_timeout", time(request_timeout, SECOND..=10 * 60 * SECOND)),
            ("security.protocol", choice(protocol, &PROTOCOLS)),
            ("security.sasl.mechanism", only("PLAIN")),
            ("security.sasl.username", words(username)),
            ("security.sasl.password", secret(password)),
            ("security.sasl.password_file", words(password_file)),
            ("log.format", choice(format, &FORMATS)),
            ("log.level", choice(level, &LEVELS)),
            ("run.wait", time(wait, 0..=8_760 * HOUR)),
            ("memory.limit", number_or("auto", memory_limit, Unit::Bytes, 64 * MIB..=1 << 40)),
            ("encoders.threads", number_or("auto", encoder_threads, Unit::Count, 1..=1_024)),
            ("tables.parallel", number(parallel, Unit::Count, 1..=1_000)),
            ("tables.include", list(include, str::parse)),
            ("tables.exclude", list(exclude, str::parse)),
            ("poll.interval", time(poll, 100..=30 * SECOND)),
            ("shutdown.grace", time(grace, 0..=HOUR)),
            ("admin.listen", made(admin, listen)),
            ("round.splits_max", number(splits_max, Unit::Count, 1..=100_000)),
            ("round.replans_max", number(replans_max, Unit::Count, 0..=1_000)),
            ("round.replan_pause", time(replan_pause, 1..=60 * SECOND)),
            ("round.bytes_max", number(bytes_max, Unit::Bytes, MIB..=1 << 50)),
            ("round.time_max", time(time_max, SECOND..=24 * HOUR)),
            ("backfill.patience", time(patience, SECOND..=168 * HOUR)),
            ("plan.lookups_max", number(lookups_max, Unit::Count, 1..=10_000)),
            // A fetch has to fit into a frame, and its answer to come before the request times out.
            ("read.bucket_bytes", number(bucket_bytes, Unit::Bytes, 1_024..=64 * MIB)),
            ("read.wait", time(read_wait, 0..=10 * SECOND)),
            ("read.requests_max", number(requests_max, Unit::Count, 1..=64)),
            ("read.remote_max", number(remote_max, Unit::Count, 1..=1_024)),
            ("read.ahead", number_or("auto", ahead, Unit::Count, 1..=64)),
            ("read.range_rows", number(range_rows, Unit::Count, 0..=1 << 40)),
            ("read.stall", time(stall, 15 * SECOND..=24 * HOUR)),
            ("write.row_group_bytes", number(row_group_bytes, Unit::Bytes, MIB..=1_024 * MIB)),
            ("write.row_group_rows", number(row_group_rows, Unit::Count, 1_000..=1 << 30)),
            ("write.part_bytes", number(part_bytes, Unit::Bytes, 5 * MIB..=1_024 * MIB)),
            ("routing.accept_absent_count", choice(accept_absent_count, &ACCEPTED)),
            ("clients.connections_max", number_or("auto", connections_max, Unit::Count, 8..=1_000_000)),
            ("clients.idle", time(idle, 5 * SECOND..=24 * HOUR)),
            ("clients.stall", time(client_stall, SECOND..=HOUR)),
            ("commit.tries_max", number(tries_max, Unit::Count, 1..=1_000)),
            ("commit.pause_first", time(pause_first, 1..=60 * SECOND)),
            ("commit.pause_max", time(pause_max, 1..=600 * SECOND)),
            ("commit.unknown_pause", time(unknown_pause, 0..=600 * SECOND)),
            ("commit.round_age_max", time(round_age_max, 60 * SECOND..=168 * HOUR)),
        ]);
        keys.extend(s3.keys());
        keys
    }

    /// The key of a variable of the environment; else what is wrong with its name.
    pub(super) fn key_of(name: &str) -> Result<String, String> {
        let mut settings = Self::default();
        let keys: Vec<&'static str> = settings.keys().into_keys().collect();
        if let Some(key) = keys.iter().find(|key| variable(key) == name) {
            return Ok((*key).to_owned());
        }
        let wrong = name.strip_prefix(PREFIX).unwrap_or(name).to_ascii_lowercase();
        Err(format!("unknown variable; the nearest is `{}`", variable(nearest(&wrong, &keys, '_'))))
    }
}

/// Which source's value of each key stands.
pub(super) type Winners = BTreeMap<&'static str, Origin>;

/// What `fill` found out.
#[derive(Default)]
pub(super) struct Filled {
    pub(super) winners: Winners,
    pub(super) faults: Vec<String>,
    pub(super) notices: Vec<String>,
    /// `datalake.paimon.…` of Fluss, without that prefix.
    pub(super) lake: BTreeMap<String, super::Secret>,
}

/// Hands each value to its setter, in order, so that the last source wins; tells everything that is wrong.
pub(super) fn fill(given: Vec<Given>, mut setters: BTreeMap<&'static str, Setter<'_>>) -> Filled {
    let names: Vec<&'static str> = setters.keys().copied().collect();
    let mut filled = Filled::default();
    let mut strangers = BTreeSet::new();
    for given in given {
        let place = place(&given);
        let (key, raw) = match fluss::translate(&given.key, given.raw) {
            Translated::Ours(raw) => (given.key.clone(), raw),
            Translated::Key(key, raw) => (key.to_owned(), raw),
            Translated::Lake(option, value) => {
                filled.lake.insert(option, value);
                continue;
            }
            Translated::Fine => continue,
            Translated::Notice(notice) => {
                filled.notices.push(format!("{place}: {notice}"));
                continue;
            }
            Translated::Fault(fault) => {
                filled.faults.push(format!("{place}: {fault}"));
                continue;
            }
        };
        let Some((name, set)) = names.iter().find(|name| **name == key).and_then(|name| Some((*name, setters.get_mut(name)?)))
        else {
            if let Some(fault) = unknown(&key, &raw, &names, &mut strangers) {
                let place = if matches!(given.origin, Origin::File(..)) { given.origin.to_string() } else { place };
                filled.faults.push(format!("{place}: {fault}"));
            }
            continue;
        };
        if let Err(fault) = set(&raw) {
            filled.faults.push(format!("{place}: {fault}"));
        }
        let before = filled.winners.insert(name, given.origin.clone());
        if let Some(before) = before.filter(|before| before.rank() == given.origin.rank()) {
            filled.faults.push(format!("{place}: gives `{name}` again, which {before} gives already"));
        }
    }
    filled
}

/// Where a value stands, and its key where the place does not tell it.
fn place(given: &Given) -> String {
    match &given.origin {
        Origin::File(..) => format!("{}: `{}`", given.origin, given.key),
        Origin::Flag(flag) if given.key.is_empty() || !flag.contains('.') => flag.clone(),
        Origin::Variable(_) | Origin::Flag(_) => given.origin.to_string(),
    }
}

/// What to say of a key that is not there. An unknown table is told once, whatever is in it.
fn unknown(key: &str, raw: &Raw, names: &[&'static str], strangers: &mut BTreeSet<String>) -> Option<String> {
    let is_table = |name: &str| names.iter().any(|known| known.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')));
    if is_table(key) {
        return if matches!(raw, Raw::Empty) { None } else { Some(format!("`{key}`: is a table, `[{key}]`")) };
    }
    let top = key.split('.').next().unwrap_or(key);
    if is_table(top) || (top == key && !matches!(raw, Raw::Empty)) {
        return Some(format!("`{key}`: unknown key; the nearest is `{}`", nearest(key, names, '.')));
    }
    let tables: Vec<&'static str> = names.iter().map(|name| name.split('.').next().unwrap_or(name)).collect();
    let first = strangers.insert(top.to_owned());
    first.then(|| format!("`[{top}]`: unknown table; the nearest is `[{}]`", nearest(top, &tables, '.')))
}

/// The known name next to `wrong`: the same key elsewhere, else by spelling.
pub(super) fn nearest(wrong: &str, known: &[&'static str], separator: char) -> &'static str {
    let key = |name: &str| name.rsplit(separator).next().map(str::to_owned);
    let plain = |name: &str| name.replace('.', "_");
    let distance = |name: &&&'static str| {
        let far = strsim::damerau_levenshtein(&plain(name), &plain(wrong));
        (separator == '.' && key(name) != key(wrong), far)
    };
    known.iter().min_by_key(distance).copied().unwrap_or_default()
}
