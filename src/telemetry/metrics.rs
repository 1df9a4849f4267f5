//! Metric names, units and help, each said once. Counters end in `_total`; sizes are bytes, times seconds.
//!
//! Nothing exports them yet; the README lists them, and the events that move them are in `events`.

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

/// A metric: its name, unit, and one line of help.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Name.
    pub name: &'static str,
    /// Unit.
    pub unit: Unit,
    /// Help.
    pub help: &'static str,
}

/// Rows now in the lake.
pub const ROWS: Metric = Metric { name: "tiering_written_rows_total", unit: Unit::Count, help: "rows of committed rounds" };
/// Data files now in the lake.
pub const FILES: Metric = Metric { name: "tiering_written_files_total", unit: Unit::Count, help: "data files of committed rounds" };
/// Bytes now in the lake.
pub const BYTES: Metric =
    Metric { name: "tiering_written_bytes_total", unit: Unit::Bytes, help: "bytes of the data files of committed rounds" };
/// Rounds that ended well, by outcome (`committed`, `idle`, `gone`).
pub const ROUNDS: Metric =
    Metric { name: "tiering_round_finished_total", unit: Unit::Count, help: "rounds that ended well, by `outcome`" };
/// Rounds that failed, by error kind.
pub const ROUNDS_FAILED: Metric =
    Metric { name: "tiering_round_failed_total", unit: Unit::Count, help: "rounds that failed, by `kind`" };
/// Time of rounds, by stage (`plan`, `write`, `commit`).
pub const ROUND_SECONDS: Metric =
    Metric { name: "tiering_round_seconds_total", unit: Unit::Seconds, help: "time spent in rounds, by `stage`" };
/// Rounds planned afresh within one assignment.
pub const REPLANS: Metric =
    Metric { name: "tiering_round_replanned_total", unit: Unit::Count, help: "rounds dropped as stale and planned afresh" };
/// Leases given up.
pub const LEASES_LOST: Metric =
    Metric { name: "tiering_lease_lost_total", unit: Unit::Count, help: "tables given up because the lease was lost" };
/// Tables held.
pub const HOLDS: Metric =
    Metric { name: "tiering_table_held_total", unit: Unit::Count, help: "times that a table was put on hold, by `kind`" };
/// Snapshots recovered.
pub const RECOVERED: Metric = Metric {
    name: "tiering_snapshot_recovered_total",
    unit: Unit::Count,
    help: "lake snapshots that Fluss did not know and that recovery recorded",
};
/// Heartbeats failed.
pub const HEARTBEATS_FAILED: Metric =
    Metric { name: "tiering_heartbeat_failed_total", unit: Unit::Count, help: "heartbeats without an answer" };

/// All of them, in README order.
pub const ALL: [Metric; 11] =
    [ROWS, FILES, BYTES, ROUNDS, ROUNDS_FAILED, ROUND_SECONDS, REPLANS, LEASES_LOST, HOLDS, RECOVERED, HEARTBEATS_FAILED];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_tell_their_unit() {
        let mut names: Vec<&str> = ALL.iter().map(|metric| metric.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        for metric in ALL {
            assert!(metric.name.starts_with("tiering_") && metric.name.ends_with("_total"), "{}", metric.name);
            assert_eq!(metric.name.contains("_bytes_"), metric.unit == Unit::Bytes, "{}", metric.name);
            assert_eq!(metric.name.contains("_seconds_"), metric.unit == Unit::Seconds, "{}", metric.name);
        }
    }

    #[test]
    fn the_readme_lists_each_metric() {
        let readme = include_str!("../../README.md");
        for metric in ALL {
            assert!(readme.contains(&format!("`{}`", metric.name)), "{}", metric.name);
        }
    }
}
