//! Wall clock and monotonic time.

use std::time::Duration;

/// A moment of monotonic time; follows tokio's paused time in simulations.
pub type Moment = tokio::time::Instant;

/// Tells time and waits. Clones tell the same time.
#[derive(Debug, Clone)]
pub struct Clock {
    simulated: Option<(i64, Moment)>,
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub const fn system() -> Self {
        Self { simulated: None }
    }

    /// Starts at `start_ms` and follows tokio's time, which tests pause. Call inside a tokio runtime.
    #[must_use]
    pub fn simulated(start_ms: i64) -> Self {
        Self { simulated: Some((start_ms, Moment::now())) }
    }

    /// Epoch milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        match self.simulated {
            Some((start_ms, start)) => start_ms.saturating_add(i64::try_from(start.elapsed().as_millis()).unwrap_or(i64::MAX)),
            None => {
                #[expect(clippy::disallowed_methods, reason = "the one place that asks the machine")]
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
                i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
            }
        }
    }

    /// Monotonic time.
    #[must_use]
    pub fn moment(&self) -> Moment {
        Moment::now()
    }

    /// Waits.
    pub async fn sleep(&self, duration: Duration) {
        #[expect(clippy::disallowed_methods, reason = "the one place that waits")]
        tokio::time::sleep(duration).await;
    }

    /// Runs `future` for at most `limit`; `None` when time ran out.
    pub async fn timeout<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        tokio::time::timeout(limit, future).await.ok()
    }
}
