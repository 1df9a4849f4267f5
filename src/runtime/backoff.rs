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
pub struct Backoff {
    pauses: ExponentialBackoff,
    max: Duration,
}

impl Backoff {
    /// A fresh sequence; jitter is drawn from `rng`.
    #[must_use]
    pub fn new(options: BackoffOptions, rng: &Rng) -> Self {
        // Jitter adds up to the pause again: what it is added to grows to half of the longest.
        let pauses = ExponentialBuilder::default()
            .with_min_delay(options.first)
            .with_max_delay(options.max / 2)
            .with_max_times(options.attempts_max)
            .with_jitter()
            .with_jitter_seed(rng.below(u64::MAX))
            .build();
        Self { pauses, max: options.max }
    }

    /// The next pause, or `None` when all attempts are used up.
    pub fn next_pause(&mut self) -> Option<Duration> {
        self.pauses.next().map(|pause| pause.min(self.max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_none_is_longer_than_the_longest() {
        let max = Duration::from_secs(10);
        for seed in 0..50 {
            let options = BackoffOptions { first: Duration::from_millis(200), max, attempts_max: 20 };
            let pauses: Vec<_> = std::iter::from_fn({
                let mut backoff = Backoff::new(options, &Rng::from_seed(seed));
                move || backoff.next_pause()
            })
            .collect();
            assert_eq!(pauses.len(), 20);
            assert!(pauses[0] < Duration::from_millis(401) && pauses.iter().all(|pause| *pause <= max), "{pauses:?}");
            assert!(pauses[10..].iter().all(|pause| *pause >= max / 2), "{pauses:?}");
        }
        let options = BackoffOptions { first: max, max, attempts_max: 2 };
        assert!(Backoff::new(options, &Rng::from_seed(1)).next_pause() <= Some(max));
    }
}
