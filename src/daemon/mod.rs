//! The service: claims tables from the queue, keeps their leases, runs rounds, tells the coordinator how they ended.
//!
//! Owns heartbeats and leases (`heart`), what follows from how a round ended (`outcome`), and the loop of `run --once`
//! (`once`), which works on one table at a time. With `round` the only place where an error kind turns into retry or stop.
//! Caller: `cli`.

pub mod board;
mod heart;
mod once;
mod outcome;

use std::time::Duration;

use crate::source::LEASE_TRUSTED;

pub use once::{OnceReport, Service, run_once};
pub use outcome::{Ended, Next, Report, next};

/// Times and bounds of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Time between renewals of the leases. The coordinator takes a table back after 2 minutes without one.
    pub renew: Duration,
    /// How long an accepted renewal is trusted.
    pub lease: Duration,
    /// Pause between two looks at an empty queue while `--wait` lasts.
    pub poll: Duration,
    /// First pause after a heartbeat or a round that found something out of reach; it doubles.
    pub retry_first: Duration,
    /// Longest such pause.
    pub retry_max: Duration,
    /// How long something may be out of reach before it is given up.
    pub unavailable_max: Duration,
    /// Pause before a table that gave up as stale goes back to the queue.
    pub stale_pause: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            renew: Duration::from_secs(20),
            lease: LEASE_TRUSTED,
            poll: Duration::from_secs(1),
            retry_first: Duration::from_millis(200),
            retry_max: Duration::from_secs(10),
            unavailable_max: outcome::UNAVAILABLE_MAX,
            stale_pause: Duration::from_millis(500),
        }
    }
}

#[cfg(test)]
mod tests;
