//! Growing pauses between attempts.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

use super::Rng;

/// Bounds of a [`Backoff`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffOptions {
    /// First pause.
    pub first: Duration,
    /// Longest pause.
    pub max: Duration,
    /// Attempts after which [`Backoff::next_pause`] says no.
    pub attempts_max: usize,
}

/// Pauses that double from `first` to `max`, with jitter, `attempts_max` times.
#[derive(Debug)]
pub struct Backoff(ExponentialBackoff);

impl Backoff {
    /// A fresh sequence; jitter is drawn from `rng`.
    #[must_use]
    pub fn new(options: BackoffOptions, rng: &Rng) -> Self {
        Self(
            ExponentialBuilder::default()
                .with_min_delay(options.first)
                .with_max_delay(options.max)
                .with_max_times(options.attempts_max)
                .with_jitter()
                .with_jitter_seed(rng.below(u64::MAX))
                .build(),
        )
    }

    /// The next pause, or `None` when all attempts are used up.
    pub fn next_pause(&mut self) -> Option<Duration> {
        self.0.next()
    }
}
