//! The service: claims tables from the queue, keeps their leases, runs rounds, tells the coordinator how they ended.
//!
//! Owns heartbeats and leases (`heart`), what follows from how a round ended (`outcome`), what is remembered of a table between
//! assignments (`roster`), when the queue is asked (`asking`), what others may look at (`board`, `http`), and the two loops: the
//! daemon (`supervisor`), several tables at once, and `run --once` (`once`), one table after the other; and rounds of one table
//! without queue and lease (`backfill`). With `round` the only place where an error kind turns into retry or stop. Caller: `cli`.

mod asking;
pub mod backfill;
pub mod board;
mod filter;
mod heart;
pub mod http;
mod once;
mod outcome;
mod roster;
mod supervisor;

use std::sync::Arc;
use std::time::Duration;

use crate::round::RoundContext;
use crate::source::{Assignments, LEASE_TRUSTED};

pub use filter::{TableFilter, TableGlob};
pub use once::{OnceReport, run_once};
pub use outcome::{Ended, Next, Report, next};
pub use supervisor::run;

/// A tiering service.
#[derive(Clone)]
pub struct Service {
    /// The queue.
    pub queue: Arc<dyn Assignments>,
    /// What rounds need.
    pub rounds: RoundContext,
    /// Times and bounds.
    pub options: Options,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("options", &self.options).finish_non_exhaustive()
    }
}

/// What an operator decides about the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Tables in hand at once.
    pub parallel: usize,
    /// Tables that it wants.
    pub tables: TableFilter,
    /// Pause between two looks at a queue that had nothing for us.
    pub poll: Duration,
    /// How long rounds may go on after a request to stop.
    pub grace: Duration,
    /// Where the admin endpoints listen, `HOST:PORT`; `None` = nowhere.
    pub admin: Option<String>,
    /// Times that follow from the protocol.
    pub timers: Timers,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            parallel: 4,
            tables: TableFilter::default(),
            poll: Duration::from_secs(1),
            grace: Duration::from_secs(30),
            admin: None,
            timers: Timers::default(),
        }
    }
}

/// Times that follow from the protocol (F1.3, architecture.md 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timers {
    /// Time between renewals of the leases. The coordinator takes a table back after 2 minutes without one.
    pub renew: Duration,
    /// How long an accepted renewal is trusted.
    pub lease: Duration,
    /// First pause after a heartbeat or a round that found something out of reach; it doubles.
    pub retry_first: Duration,
    /// Longest such pause.
    pub retry_max: Duration,
    /// How long something may be out of reach before it is given up.
    pub unavailable_max: Duration,
    /// Pause before a table that gave up as stale goes back to the queue.
    pub stale_pause: Duration,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            renew: Duration::from_secs(20),
            lease: LEASE_TRUSTED,
            retry_first: Duration::from_millis(200),
            retry_max: Duration::from_secs(10),
            unavailable_max: outcome::UNAVAILABLE_MAX,
            stale_pause: Duration::from_millis(500),
        }
    }
}

#[cfg(test)]
mod tests;
