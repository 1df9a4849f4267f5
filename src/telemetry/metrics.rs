//! Every metric: name, shape, unit, label and help, each said once. The README's table is made of this one (a test holds it).
//!
//! `tiering_<noun>_<unit>`; counters end in `_total`; sizes are bytes, times seconds. A metric has one label at most, from a
//! closed set, or `table`: those are told afresh at each scrape, so that a table that has gone takes its series along.

/// How a metric moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Up only, from 0 at the start of the process.
    Counter,
    /// As it is now.
    Gauge,
    /// Values in buckets, with count and sum.
    Histogram,
}

/// What a metric counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    Count,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

/// A metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Name.
    pub name: &'static str,
    /// How it moves.
    pub shape: Shape,
    /// Unit.
    pub unit: Unit,
    /// Its label, if it has one.
    pub label: Option<&'static str>,
    /// One line of help.
    pub help: &'static str,
}

const fn counter(name: &'static str, unit: Unit, help: &'static str) -> Metric {
    Metric { name, shape: Shape::Counter, unit, label: None, help }
}

const fn gauge(name: &'static str, unit: Unit, help: &'static str) -> Metric {
    Metric { name, shape: Shape::Gauge, unit, label: None, help }
}

impl Metric {
    const fn by(self, label: &'static str) -> Self {
        Self { label: Some(label), ..self }
    }

    /// Moves a counter up. `value` is that of its label, if it has one.
    pub(super) fn add(self, value: &str, more: u64) {
        match self.label {
            Some(label) => ::metrics::counter!(self.name, label => value.to_owned()).increment(more),
            None => ::metrics::counter!(self.name).increment(more),
        }
    }

    /// Sets a counter to what somebody else has counted.
    pub(super) fn counted(self, value: &str, total: u64) {
        match self.label {
            Some(label) => ::metrics::counter!(self.name, label => value.to_owned()).absolute(total),
            None => ::metrics::counter!(self.name).absolute(total),
        }
    }

    /// Sets a gauge.
    pub(super) fn set(self, value: &str, now: f64) {
        match self.label {
            Some(label) => ::metrics::gauge!(self.name, label => value.to_owned()).set(now),
            None => ::metrics::gauge!(self.name).set(now),
        }
    }

    /// Puts a value into a histogram.
    pub(super) fn record(self, value: &str, seen: f64) {
        match self.label {
            Some(label) => ::metrics::histogram!(self.name, label => value.to_owned()).record(seen),
            None => ::metrics::histogram!(self.name).record(seen),
        }
    }

    /// Tells whoever records about it.
    pub(super) fn describe(self) {
        let unit = match self.unit {
            Unit::Count => ::metrics::Unit::Count,
            Unit::Bytes => ::metrics::Unit::Bytes,
            Unit::Seconds => ::metrics::Unit::Seconds,
        };
        match self.shape {
            Shape::Counter => ::metrics::describe_counter!(self.name, unit, self.help),
            Shape::Gauge => ::metrics::describe_gauge!(self.name, unit, self.help),
            Shape::Histogram => ::metrics::describe_histogram!(self.name, unit, self.help),
        }
    }
}

/// Rows now in the lake.
pub const ROWS: Metric = counter("tiering_written_rows_total", Unit::Count, "rows of committed rounds");
/// What they do.
pub const CHANGES: Metric = counter(
    "tiering_written_changes_total",
    Unit::Count,
    "the same of primary-key tables by what they do: `insert`, `update` or `delete` (rows before updates are not counted)",
)
.by("kind");
/// Data files now in the lake.
pub const FILES: Metric = counter("tiering_written_files_total", Unit::Count, "data files of committed rounds");
/// Bytes now in the lake.
pub const BYTES: Metric = counter("tiering_written_bytes_total", Unit::Bytes, "bytes of the data files of committed rounds");
/// Log bytes read.
pub const FETCHED: Metric = counter("tiering_fetched_bytes_total", Unit::Bytes, "bytes of log that committed rounds have fetched");
/// Rounds that ended well.
pub const ROUNDS: Metric =
    counter("tiering_round_finished_total", Unit::Count, "rounds that ended well: `committed`, `idle` or `gone`").by("outcome");
/// Rounds that failed.
pub const ROUNDS_FAILED: Metric =
    counter("tiering_round_failed_total", Unit::Count, "rounds that failed, by the kind of error").by("kind");
/// Rounds that ended before everything was read.
pub const ROUNDS_CUT: Metric =
    counter("tiering_round_cut_total", Unit::Count, "rounds that ended at a deadline or bound and left the rest to the next");
/// States begun again.
pub const STATES_LOST: Metric = counter(
    "tiering_state_lost_total",
    Unit::Count,
    "times that a primary-key bucket's first read lost its session at the server and began again",
);
/// Time of rounds.
pub const ROUND_SECONDS: Metric = Metric {
    name: "tiering_round_seconds",
    shape: Shape::Histogram,
    unit: Unit::Seconds,
    label: Some("stage"),
    help: "time of committed rounds: `plan`, `write` (reading included) and `commit`",
};
/// Tries to publish.
pub const ATTEMPTS: Metric = counter(
    "tiering_commit_attempts_total",
    Unit::Count,
    "tries to publish a snapshot; more than rounds where others write to the same tables",
);
/// Rounds planned afresh within one assignment.
pub const REPLANS: Metric = counter("tiering_round_replanned_total", Unit::Count, "rounds dropped as stale and planned afresh");
/// Snapshots recovered.
pub const RECOVERED: Metric =
    counter("tiering_snapshot_recovered_total", Unit::Count, "lake snapshots that Fluss did not know and that recovery recorded");
/// Tables held.
pub const HOLDS: Metric =
    counter("tiering_table_held_total", Unit::Count, "times that a table was put on hold, by the kind of error").by("kind");
/// Leases given up.
pub const LEASES_LOST: Metric = counter("tiering_lease_lost_total", Unit::Count, "tables given up because the lease was lost");
/// Heartbeats failed.
pub const HEARTBEATS_FAILED: Metric = counter("tiering_heartbeat_failed_total", Unit::Count, "heartbeats without an answer");
/// Requests to object stores.
pub const REQUESTS: Metric = counter(
    "tiering_store_requests_total",
    Unit::Count,
    "requests sent to object stores, repeated ones included: `get`, `head`, `put`, `delete`, `list`, `upload` (in parts)",
)
.by("operation");

/// All that events move, in README order.
pub const EVENTS: [Metric; 17] = [
    ROWS,
    CHANGES,
    FILES,
    BYTES,
    FETCHED,
    ROUNDS,
    ROUNDS_FAILED,
    ROUNDS_CUT,
    STATES_LOST,
    ROUND_SECONDS,
    ATTEMPTS,
    REPLANS,
    RECOVERED,
    HOLDS,
    LEASES_LOST,
    HEARTBEATS_FAILED,
    REQUESTS,
];

/// Age of the last answer to a heartbeat.
pub const HEARTBEAT_AGE: Metric = gauge(
    "tiering_heartbeat_age_seconds",
    Unit::Seconds,
    "time since the coordinator last answered a heartbeat; if it never has, since the start",
);
/// Rounds now.
pub const ROUNDS_RUNNING: Metric = gauge("tiering_rounds_running", Unit::Count, "rounds in progress");
/// Tables by state.
pub const TABLES: Metric = gauge("tiering_tables", Unit::Count, "tables that this service has met, by state").by("state");
/// Tables on hold.
pub const TABLES_HELD: Metric = gauge("tiering_held_tables", Unit::Count, "tables on hold now, by the kind of error").by("kind");
/// Lag in time.
pub const LAG_SECONDS: Metric =
    gauge("tiering_table_lag_seconds", Unit::Seconds, "how old a row can be that is not in the lake yet").by("table");
/// Lag in rows.
pub const LAG_ROWS: Metric =
    gauge("tiering_table_lag_rows", Unit::Count, "rows of the table that its last round knew of and left").by("table");
/// Age of the last success.
pub const SUCCESS_AGE: Metric = gauge(
    "tiering_table_success_age_seconds",
    Unit::Seconds,
    "time since a round of the table last ended well; if none has, since the start",
)
.by("table");
/// Lag that is wanted.
pub const FRESHNESS: Metric =
    gauge("tiering_table_freshness_seconds", Unit::Seconds, "`table.datalake.freshness`, the lag that is wanted").by("table");
/// Rows of a table.
pub const TABLE_ROWS: Metric =
    counter("tiering_table_rows_total", Unit::Count, "rows of the table in committed rounds").by("table");
/// Size of the budget.
pub const BUDGET: Metric = gauge("tiering_budget_bytes", Unit::Bytes, "memory that rows in flight may take");
/// Use of the budget.
pub const BUDGET_USED: Metric = gauge("tiering_budget_used_bytes", Unit::Bytes, "memory that rows in flight take now");
/// Which build this is.
pub const BUILD: Metric = gauge("tiering_build_info", Unit::Count, "1, with the version of the binary").by("version");

/// All that tell how things are when they are asked for, in README order.
pub const STATE: [Metric; 12] = [
    HEARTBEAT_AGE,
    ROUNDS_RUNNING,
    TABLES,
    TABLES_HELD,
    LAG_SECONDS,
    LAG_ROWS,
    SUCCESS_AGE,
    FRESHNESS,
    TABLE_ROWS,
    BUDGET,
    BUDGET_USED,
    BUILD,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Metric> {
        EVENTS.into_iter().chain(STATE)
    }

    #[test]
    fn names_are_unique_and_tell_their_shape_and_unit() {
        let mut names: Vec<&str> = all().map(|metric| metric.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().count());
        for Metric { name, shape, unit, .. } in all() {
            assert!(name.starts_with("tiering_"), "{name}");
            assert_eq!(name.ends_with("_total"), shape == Shape::Counter, "{name}");
            assert_eq!(name.contains("_bytes"), unit == Unit::Bytes, "{name}");
            assert_eq!(name.contains("_seconds"), unit == Unit::Seconds, "{name}");
        }
    }

    #[test]
    fn the_readme_has_the_same_table() {
        let rows: Vec<String> = all()
            .map(|metric| {
                let shape = format!("{:?}", metric.shape).to_lowercase();
                let label = metric.label.map_or_else(String::new, |label| format!("`{label}`"));
                format!("| `{}` | {shape} | {label} | {} |", metric.name, metric.help)
            })
            .collect();
        let readme = include_str!("../../README.md");
        let section = readme.split("\n## ").find(|section| section.starts_with("Metrics\n")).unwrap();
        let stated: Vec<&str> = section.lines().filter(|line| line.starts_with("| `tiering_")).collect();
        assert_eq!(stated, rows, "README.md should say:\n{}", rows.join("\n"));
    }
}
