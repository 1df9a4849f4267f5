//! A held table's lease as this process knows it: the last accepted renewal by the local clock, and whether it is lost.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::runtime::{Clock, Moment};

/// How long after the last accepted renewal a lease counts as ours: the coordinator's 2 minutes with a margin (commit.md 4).
pub const LEASE_TRUSTED: Duration = Duration::from_secs(90);

/// The lease of one table in our hands. Clones share it. It saves work; the commit decides.
#[derive(Debug, Clone)]
pub struct Lease {
    clock: Clock,
    trusted: Duration,
    accepted: Arc<Mutex<Moment>>,
    lost: CancellationToken,
}

impl Lease {
    /// A lease accepted at `accepted` and trusted for `trusted` after each renewal. `lost` is cancelled when it ends.
    #[must_use]
    pub fn new(clock: Clock, accepted: Moment, trusted: Duration, lost: CancellationToken) -> Self {
        Self { clock, trusted, accepted: Arc::new(Mutex::new(accepted)), lost }
    }

    /// The coordinator accepted a renewal that was sent at `sent`.
    pub fn renewed(&self, sent: Moment) {
        *self.accepted.lock().unwrap_or_else(PoisonError::into_inner) = sent;
    }

    /// Cancelled when the lease is lost or the process ends: whoever works for it should stop.
    #[must_use]
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Time for which it may still be trusted; zero when it ran out.
    #[must_use]
    pub fn left(&self) -> Duration {
        let accepted = *self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        self.trusted.saturating_sub(self.clock.moment().saturating_duration_since(accepted))
    }

    /// Whether it is ours as far as we can tell (commit.md 4).
    ///
    /// # Errors
    /// `Stale` when it was lost, or not renewed for too long.
    pub fn check(&self) -> Result<()> {
        if self.lost.is_cancelled() {
            return Err(Error::stale("the lease of the table was given up"));
        }
        if self.left().is_zero() {
            return Err(Error::stale(format!("the lease of the table was not renewed for `{}` s", self.trusted.as_secs())));
        }
        Ok(())
    }
}
