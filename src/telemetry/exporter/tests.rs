//! What a scrape shows after events, and of tables that come and go.

use std::time::Duration;

use super::*;
use crate::model::{ChangeCounts, RoundId, RoundOutcome, RoundSummary, SnapshotId, TableId, TablePath};
use crate::telemetry::{
    HeartbeatFailed, LeaseLost, Replanned, RoundFailed, RoundFinished, SnapshotRecovered, StoreRequest, TableHeld,
};

/// What events count in a process of its own.
fn counted(events: impl FnOnce()) -> Exporter {
    let recorder = events_recorder().unwrap();
    ::metrics::with_local_recorder(&recorder, || {
        show_zeroes();
        events();
    });
    Exporter(recorder.handle())
}

/// The value of a series; `None` = there is none.
fn value(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

fn round(outcome: RoundOutcome) -> RoundSummary {
    RoundSummary {
        outcome,
        cut: true,
        splits: 4,
        fetched_bytes: 70_000,
        rows: 1_200,
        changes: Some(ChangeCounts { inserts: 700, updates: 400, deletes: 100 }),
        files: 3,
        bytes: 65_536,
        attempts: 2,
        plan_ms: 15,
        write_ms: 300,
        commit_ms: 40,
        ..RoundSummary::new(TablePath::new("demo", "orders"), TableId(7), RoundId(uuid::Uuid::nil()))
    }
}

#[test]
fn a_round_moves_the_counters_by_its_exact_figures() {
    let exporter = counted(|| {
        RoundFinished(&round(RoundOutcome::Committed { snapshot: SnapshotId(9) })).emit();
        RoundFinished(&round(RoundOutcome::Committed { snapshot: SnapshotId(10) })).emit();
        RoundFinished(&RoundSummary {
            rows: 0,
            changes: None,
            files: 0,
            bytes: 0,
            attempts: 0,
            cut: false,
            fetched_bytes: 0,
            ..round(RoundOutcome::Idle)
        })
        .emit();
    });
    let text = exporter.render(&State::default());
    for (series, expected) in [
        ("tiering_written_rows_total", 2_400.0),
        ("tiering_written_changes_total{kind=\"update\"}", 800.0),
        ("tiering_written_changes_total{kind=\"delete\"}", 200.0),
        ("tiering_written_files_total", 6.0),
        ("tiering_written_bytes_total", 131_072.0),
        ("tiering_fetched_bytes_total", 140_000.0),
        ("tiering_round_cut_total", 2.0),
        ("tiering_commit_attempts_total", 4.0),
        ("tiering_round_finished_total{outcome=\"committed\"}", 2.0),
        ("tiering_round_finished_total{outcome=\"idle\"}", 1.0),
        ("tiering_round_finished_total{outcome=\"gone\"}", 0.0),
        ("tiering_round_seconds_count{stage=\"write\"}", 2.0),
        ("tiering_round_seconds_sum{stage=\"write\"}", 0.6),
        ("tiering_round_seconds_bucket{stage=\"plan\",le=\"0.01\"}", 0.0),
        ("tiering_round_seconds_bucket{stage=\"plan\",le=\"0.05\"}", 2.0),
    ] {
        assert_eq!(value(&text, series), Some(expected), "{series} in\n{text}");
    }
}

#[test]
fn each_other_event_moves_its_own_counter_and_no_other() {
    let table = &TablePath::new("demo", "orders");
    let error = &Error::data("offset `7` is gone");
    let events: [(&str, &dyn Fn()); 7] = [
        ("tiering_round_failed_total{kind=\"data\"}", &|| RoundFailed { table, error }.emit()),
        ("tiering_table_held_total{kind=\"data\"}", &|| TableHeld { table, error }.emit()),
        ("tiering_lease_lost_total", &|| LeaseLost { table, reason: "late" }.emit()),
        ("tiering_round_replanned_total", &|| Replanned { table, attempt: 1, error }.emit()),
        ("tiering_snapshot_recovered_total", &|| SnapshotRecovered { table, snapshot: SnapshotId(3) }.emit()),
        ("tiering_store_requests_total{operation=\"get\"}", &|| StoreRequest("get").emit()),
        ("tiering_heartbeat_failed_total", &|| HeartbeatFailed { error, pause: Duration::from_secs(1) }.emit()),
    ];
    let before = counted(|| {}).0.render();
    let of_changes =
        |line: &str| line.strip_prefix("tiering_written_changes_total{kind=\"")?.strip_suffix("\"} 0").map(str::to_owned);
    let mut kinds: Vec<String> = before.lines().filter_map(of_changes).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["delete", "insert", "update"], "and none of errors");
    for (series, emit) in events {
        assert_eq!(value(&before, series), Some(0.0), "{series} shows before anything happens");
        let after = counted(emit).0.render();
        assert_eq!(value(&after, series), Some(1.0), "{series}");
        let sorted = |text: &str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(sorted(&after).difference(&sorted(&before)).count(), 1, "{series} alone");
    }
}

#[test]
fn a_scrape_shows_each_metric_with_its_help_and_a_table_that_has_gone_takes_its_series_along() {
    let exporter = counted(|| RoundFinished(&round(RoundOutcome::Committed { snapshot: SnapshotId(9) })).emit());
    let table = |name: &str| TableState {
        table: name.to_owned(),
        lag_seconds: Some(12),
        lag_rows: Some(0),
        success_age_ms: Some(1_500),
        freshness_ms: Some(10_000),
        rows: 77,
    };
    let state = State {
        heartbeat_age_ms: 250,
        rounds_running: 2,
        tables: BTreeMap::from([("held", 1), ("tiering", 2), ("waiting", 0)]),
        held: vec![Kind::Unsupported],
        each: vec![table("demo.orders"), table("demo.odd\"name\nof a table")],
        budget_bytes: 1 << 30,
        budget_used_bytes: 1 << 20,
    };
    let text = exporter.render(&state);
    for metric in metrics::EVENTS.into_iter().chain(metrics::STATE) {
        let name = metric.name;
        assert!(text.contains(&format!("# HELP {name} {}\n", metric.help)), "{name} has its help in\n{text}");
        assert_eq!(text.matches(&format!("# TYPE {name} ")).count(), 1, "{name}");
    }
    for (series, expected) in [
        ("tiering_heartbeat_age_seconds", 0.25),
        ("tiering_rounds_running", 2.0),
        ("tiering_tables{state=\"tiering\"}", 2.0),
        ("tiering_tables{state=\"waiting\"}", 0.0),
        ("tiering_held_tables{kind=\"unsupported\"}", 1.0),
        ("tiering_held_tables{kind=\"data\"}", 0.0),
        ("tiering_table_lag_seconds{table=\"demo.orders\"}", 12.0),
        ("tiering_table_lag_rows{table=\"demo.orders\"}", 0.0),
        ("tiering_table_success_age_seconds{table=\"demo.orders\"}", 1.5),
        ("tiering_table_freshness_seconds{table=\"demo.orders\"}", 10.0),
        ("tiering_table_rows_total{table=\"demo.orders\"}", 77.0),
        ("tiering_budget_bytes", 1_073_741_824.0),
        ("tiering_budget_used_bytes", 1_048_576.0),
        (concat!("tiering_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}"), 1.0),
        ("tiering_table_rows_total{table=\"demo.odd\\\"name\\nof a table\"}", 77.0),
    ] {
        assert_eq!(value(&text, series), Some(expected), "{series} in\n{text}");
    }
    let without = exporter.render(&State { each: vec![], ..state });
    assert!(!without.contains("demo."), "{without}");
    assert_eq!(value(&without, "tiering_written_rows_total"), Some(1_200.0), "counts stay");
}
