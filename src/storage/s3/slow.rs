//! How fast a store lets us be: after 503 SlowDown, requests below that prefix wait (S3 counts by prefix).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::runtime::{Clock, Moment, Rng};

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// Pauses by prefix.
#[derive(Debug)]
pub(super) struct Slow {
    clock: Clock,
    rng: Rng,
    pauses: Mutex<BTreeMap<String, Pause>>,
}

#[derive(Debug, Clone, Copy)]
struct Pause {
    until: Moment,
    length: Duration,
}

impl Slow {
    pub(super) fn new(clock: Clock, rng: Rng) -> Self {
        Self { clock, rng, pauses: Mutex::default() }
    }

    /// Waits until a request below `prefix` may go.
    pub(super) async fn wait(&self, prefix: &str) {
        let pause = self.pauses.lock().unwrap_or_else(PoisonError::into_inner).get(prefix).copied();
        let Some(pause) = pause else { return };
        let left = pause.until.saturating_duration_since(self.clock.moment());
        if !left.is_zero() {
            // Not all at the same moment.
            let spread = u64::try_from(pause.length.as_millis() / 4).unwrap_or(0);
            self.clock.sleep(left + Duration::from_millis(self.rng.below(spread.max(1)))).await;
        }
    }

    /// The store asked for fewer requests below `prefix`.
    pub(super) fn down(&self, prefix: &str) {
        let now = self.clock.moment();
        let mut pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        let pause = pauses.entry(prefix.to_owned()).or_insert(Pause { until: now, length: FIRST / 2 });
        // Requests in flight that are all turned away count once.
        if pause.until <= now {
            pause.length = (pause.length * 2).min(LONGEST);
            pause.until = now + pause.length;
        }
    }

    /// A request below `prefix` was served.
    pub(super) fn served(&self, prefix: &str) {
        let now = self.clock.moment();
        let mut pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pause) = pauses.get_mut(prefix)
            && pause.until <= now
        {
            pause.length /= 2;
            if pause.length < FIRST {
                pauses.remove(prefix);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_prefix_that_is_too_busy_waits_longer_each_time_and_others_do_not() {
        let clock = Clock::simulated(0);
        let slow = Slow::new(clock.clone(), Rng::from_seed(1));
        let waited = async |prefix| {
            let start = clock.moment();
            slow.wait(prefix).await;
            clock.moment().saturating_duration_since(start)
        };
        slow.down("a");
        slow.down("a");
        assert_eq!(waited("b").await, Duration::ZERO);
        let first = waited("a").await;
        assert!(first >= FIRST && first < FIRST * 2, "{first:?}");
        slow.down("a");
        assert!(waited("a").await >= FIRST * 2);
        for _ in 0..20 {
            slow.down("a");
            assert!(waited("a").await <= LONGEST * 2);
        }
        for _ in 0..20 {
            slow.served("a");
        }
        assert_eq!(waited("a").await, Duration::ZERO);
        assert!(slow.pauses.lock().unwrap().is_empty());
    }
}
