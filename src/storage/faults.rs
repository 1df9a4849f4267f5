//! Faults that tests inject into a [`super::Store`]: chosen by a seed, or by a script per call.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::runtime::{Clock, Rng};

/// What goes wrong with one call. One that does not fit the call does nothing.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The call fails and does nothing, as with 503.
    Before,
    /// The call does its work, but its reply is lost.
    After,
    /// `create` only: the reply is lost now, the work is done when the token is cancelled.
    Late(CancellationToken),
    /// The call does nothing and is never answered.
    Hang,
    /// Nothing goes wrong, but the call takes so long.
    Slow(Duration),
    /// `list` of a store in memory only: it lacks what was written since so long ago. Else as `Before`.
    Stale(Duration),
    /// `list` only: leaves out the newest object.
    StaleList,
    /// Access is denied, as with 403; nothing is done.
    Denied,
    /// `create` only: answers that something is there and does nothing, as with 409 while somebody else's request is under way.
    Conflict,
    /// `create` only: makes the object and answers that something is there, as with 412 to a request that the client repeated.
    Repeated,
    /// `create` only: replaces what is there and says that it made it. Such a store is no ground for a commit.
    Replaces,
    /// `put` only: half of the bytes show, and the call fails.
    Cut,
}

type Script = Box<dyn FnMut(&str, &str) -> Option<Fault> + Send>;

/// Decides, for each call, whether it yields and what goes wrong. Clones share the decision.
#[derive(Clone)]
pub struct Faults {
    rng: Option<Rng>,
    script: Arc<Mutex<Script>>,
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faults").finish_non_exhaustive()
    }
}

impl Faults {
    /// Calls `script(act, path)` at each call.
    pub fn scripted(script: impl FnMut(&str, &str) -> Option<Fault> + Send + 'static) -> Self {
        Self { rng: None, script: Arc::new(Mutex::new(Box::new(script))) }
    }

    /// Yields at each call as `rng` says and fails (before or after, evenly) one call in `one_in` (0 = none).
    #[must_use]
    pub fn seeded(rng: Rng, one_in: u64) -> Self {
        let dice = rng.clone();
        let script = move |_: &str, _: &str| {
            (one_in > 0 && dice.below(one_in) == 0).then(|| if dice.below(2) == 0 { Fault::Before } else { Fault::After })
        };
        Self::scripted(script).yielding(rng)
    }

    /// Yields at each call as `rng` says, besides.
    #[must_use]
    pub fn yielding(self, rng: Rng) -> Self {
        Self { rng: Some(rng), ..self }
    }

    pub(super) async fn before(&self, act: &'static str, path: &str) -> Result<Option<Fault>> {
        if let Some(rng) = &self.rng {
            // Once in a while a call takes so long that others do whole rounds meanwhile.
            let turns = if rng.below(48) == 0 { 800 } else { 4 };
            for _ in 0..rng.below(turns) {
                tokio::task::yield_now().await;
            }
        }
        let fault = self.script.lock().unwrap_or_else(PoisonError::into_inner)(act, path);
        match fault {
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Slow(time)) => {
                Clock::system().sleep(time).await;
                Ok(None)
            }
            Some(Fault::Stale(age)) if act == "list" => Ok(Some(Fault::Stale(age))),
            Some(Fault::Before | Fault::Stale(_)) => Err(Error::unavailable(format!("injected: {act} `{path}` failed"))),
            other => Ok(other),
        }
    }
}

pub(super) fn after(fault: Option<&Fault>, path: &str) -> Result<()> {
    match fault {
        Some(Fault::After | Fault::Late(_)) => Err(Error::unavailable(format!("injected: the reply for `{path}` was lost"))),
        _ => Ok(()),
    }
}
