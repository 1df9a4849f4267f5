//! Prometheus text: what events have counted, and how things are now.
//!
//! Counts live in one recorder of the process. The state is recorded afresh for each scrape, in a recorder of its own: what
//! is no longer there has no series.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use super::metrics;
use crate::error::{Error, Kind, Result};

/// Upper bounds of the buckets of round times, in seconds: a few milliseconds to some hours.
const SECONDS_BUCKETS: [f64; 12] = [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 600.0, 3_600.0];

/// How things are at a scrape.
#[derive(Debug, Default)]
pub struct State {
    /// Milliseconds since the coordinator answered a heartbeat, or since the start.
    pub heartbeat_age_ms: u64,
    /// Rounds in progress.
    pub rounds_running: u64,
    /// Tables by state; states without tables included.
    pub tables: BTreeMap<&'static str, u64>,
    /// Kind of the error that holds a table, per held table.
    pub held: Vec<Kind>,
    /// Each table.
    pub each: Vec<TableState>,
    /// Size of the memory budget.
    pub budget_bytes: usize,
    /// Bytes taken from it.
    pub budget_used_bytes: usize,
}

/// How one table is; what is not known has no series.
#[derive(Debug)]
pub struct TableState {
    /// The table.
    pub table: String,
    /// Lag, seconds.
    pub lag_seconds: Option<u64>,
    /// Lag, rows.
    pub lag_rows: Option<u64>,
    /// Milliseconds since a round ended well, or since the start.
    pub success_age_ms: Option<u64>,
    /// `table.datalake.freshness`.
    pub freshness_ms: Option<u64>,
    /// Rows of committed rounds.
    pub rows: u64,
}

/// The way to the process's counts. Clones are the same.
#[derive(Clone)]
pub struct Exporter(PrometheusHandle);

impl std::fmt::Debug for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Exporter").finish()
    }
}

impl Exporter {
    /// Counts from now on, in the whole process. A second call gives what the first has made.
    ///
    /// # Errors
    /// `Internal` when somebody else counts already.
    pub fn install() -> Result<Self> {
        static INSTALLED: OnceLock<Result<Exporter, String>> = OnceLock::new();
        let install = || {
            let recorder = events_recorder().map_err(|error| error.to_string())?;
            let exporter = Self(recorder.handle());
            ::metrics::set_global_recorder(recorder).map_err(|error| error.to_string())?;
            show_zeroes();
            Ok(exporter)
        };
        INSTALLED.get_or_init(install).clone().map_err(|fault| Error::internal(format!("set up metrics: {fault}")))
    }

    /// Everything, as Prometheus text.
    #[must_use]
    pub fn render(&self, state: &State) -> String {
        let recorder = PrometheusBuilder::new().build_recorder();
        ::metrics::with_local_recorder(&recorder, || state.record());
        let mut text = self.0.render();
        text.push_str(&recorder.handle().render());
        text
    }

    /// Sorts values into buckets that wait for it; call now and then, since else only a scrape does, and there may be none.
    pub fn tidy(&self) {
        self.0.run_upkeep();
    }
}

fn events_recorder() -> Result<PrometheusRecorder> {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full(metrics::ROUND_SECONDS.name.to_owned()), &SECONDS_BUCKETS)
        .map_err(|source| Error::internal("set the buckets of round times").with_source(source))?;
    Ok(builder.build_recorder())
}

/// Every counter at 0, so that the first event of a kind shows as an increase.
fn show_zeroes() {
    for metric in metrics::EVENTS {
        metric.describe();
        let values: Vec<&str> = match metric.label {
            Some("outcome") => vec!["committed", "idle", "gone"],
            Some("kind") if metric.name == metrics::CHANGES.name => vec!["insert", "update", "delete"],
            Some("kind") => Kind::ALL.iter().map(|kind| kind.as_str()).collect(),
            Some("operation") => vec!["delete", "get", "head", "list", "put", "upload"],
            Some(_) => vec![],
            None => vec![""],
        };
        for value in values {
            metric.add(value, 0);
        }
    }
}

impl State {
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
    fn record(&self) {
        for metric in metrics::STATE {
            metric.describe();
        }
        let seconds = |ms: u64| ms as f64 / 1e3;
        metrics::HEARTBEAT_AGE.set("", seconds(self.heartbeat_age_ms));
        metrics::ROUNDS_RUNNING.set("", self.rounds_running as f64);
        for (state, tables) in &self.tables {
            metrics::TABLES.set(state, *tables as f64);
        }
        for kind in Kind::ALL {
            let held = self.held.iter().filter(|of| **of == kind).count();
            metrics::TABLES_HELD.set(kind.as_str(), held as f64);
        }
        for TableState { table, lag_seconds, lag_rows, success_age_ms, freshness_ms, rows } in &self.each {
            if let Some(lag) = lag_seconds {
                metrics::LAG_SECONDS.set(table, *lag as f64);
            }
            if let Some(lag) = lag_rows {
                metrics::LAG_ROWS.set(table, *lag as f64);
            }
            if let Some(age) = success_age_ms {
                metrics::SUCCESS_AGE.set(table, seconds(*age));
            }
            if let Some(freshness) = freshness_ms {
                metrics::FRESHNESS.set(table, seconds(*freshness));
            }
            metrics::TABLE_ROWS.counted(table, *rows);
        }
        metrics::BUDGET.set("", self.budget_bytes as f64);
        metrics::BUDGET_USED.set("", self.budget_used_bytes as f64);
        metrics::BUILD.set(env!("CARGO_PKG_VERSION"), 1.0);
    }
}

#[cfg(test)]
mod tests;
