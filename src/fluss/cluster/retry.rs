//! Repeating a call: when, how often, how long.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::fluss::code::{Class, Code};
use crate::runtime::{Backoff, BackoffOptions, Moment, Runtime};

/// The attempts at one thing. Ask [`Retry::after`] after each failure.
#[derive(Debug)]
pub struct Retry {
    what: String,
    backoff: Backoff,
    time_max: Duration,
    runtime: Runtime,
    started: Moment,
    attempts: u32,
}

impl Retry {
    pub(super) fn new(what: String, options: BackoffOptions, time_max: Duration, runtime: &Runtime) -> Self {
        Self {
            what,
            backoff: Backoff::new(options, &runtime.rng),
            time_max,
            runtime: runtime.clone(),
            started: runtime.clock.moment(),
            attempts: 0,
        }
    }

    /// Waits before the next attempt and returns the class of `error`, whose cure is the caller's; or gives `error` back when
    /// repeating does not help, attempts or time are used up, or the process shuts down.
    ///
    /// # Errors
    /// `error` itself; with attempts and time named when they are used up.
    pub async fn after(&mut self, error: Error) -> Result<Class> {
        self.attempts += 1;
        let class = error.code().map_or(Class::Final, |code| Code(code).class());
        if matches!(class, Class::Final | Class::Stale) {
            return Err(error);
        }
        let elapsed = self.started.elapsed();
        let pause = self.backoff.next_pause().filter(|pause| elapsed + *pause < self.time_max);
        let Some(pause) = pause else {
            return Err(error.context(format!(
                "{}: given up after {} attempts in {:.1} s",
                self.what,
                self.attempts,
                elapsed.as_secs_f32()
            )));
        };
        tracing::debug!(error = %error.chain(), attempt = self.attempts, "{}: again in {} ms", self.what, pause.as_millis());
        tokio::select! {
            () = self.runtime.clock.sleep(pause) => Ok(class),
            () = self.runtime.shutdown.cancelled() => Err(error),
        }
    }
}
