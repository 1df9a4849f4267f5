//! Faults of the twin: chosen by a seed, or by a script per call.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::runtime::{Clock, Rng};

/// What goes wrong with one call.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The call fails and does nothing.
    Before,
    /// The call does its work, but its reply is lost.
    After,
    /// The call does nothing and is never answered.
    Hang,
    /// Nothing goes wrong, but the call takes so long.
    Slow(Duration),
    /// `prepare` and `record`: the reply is lost now, the work is done when the token is cancelled. Else as `After`.
    Late(CancellationToken),
    /// `record`: the answer is OK, but nothing is done (a concurrent record overwrote it). Else as `After`.
    Lost,
}

type Script = Box<dyn FnMut(&str, &str) -> Option<Fault> + Send>;

/// Decides, for each call of one service, whether it yields and what goes wrong. Clones share the decision.
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

impl Default for Faults {
    fn default() -> Self {
        Self::scripted(|_, _| None)
    }
}

impl Faults {
    /// Calls `script(act, target)` at each call. Acts are the names of the trait's methods; the target is a table path.
    pub fn scripted(script: impl FnMut(&str, &str) -> Option<Fault> + Send + 'static) -> Self {
        Self { rng: None, script: Arc::new(Mutex::new(Box::new(script))) }
    }

    /// Yields at each call as `rng` says and spoils one call in `one_in` (0 = none): before, after, late by up to 5 minutes, or lost.
    /// Call inside a tokio runtime.
    #[must_use]
    pub fn seeded(rng: Rng, clock: Clock, one_in: u64) -> Self {
        let dice = rng.clone();
        let script = move |act: &str, _: &str| {
            if one_in == 0 || dice.below(one_in) != 0 {
                return None;
            }
            Some(match dice.below(if act == "record" { 4 } else { 2 }) {
                0 => Fault::Before,
                1 => Fault::After,
                2 => Fault::Lost,
                _ => {
                    let (token, clock, delay) = (CancellationToken::new(), clock.clone(), dice.below(300_000));
                    let late = token.clone();
                    tokio::spawn(async move {
                        clock.sleep(Duration::from_millis(delay)).await;
                        late.cancel();
                    });
                    Fault::Late(token)
                }
            })
        };
        Self { rng: Some(rng), script: Arc::new(Mutex::new(Box::new(script))) }
    }

    /// Yields, then fails or passes the fault on to [`after`].
    pub(super) async fn before(&self, act: &'static str, target: &str) -> Result<Option<Fault>> {
        if let Some(rng) = &self.rng {
            for _ in 0..rng.below(4) {
                tokio::task::yield_now().await;
            }
        }
        let fault = self.script.lock().unwrap_or_else(PoisonError::into_inner)(act, target);
        match fault {
            Some(Fault::Before) => Err(Error::unavailable(format!("injected: {act} of `{target}` failed"))),
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Slow(time)) => {
                Clock::system().sleep(time).await;
                Ok(None)
            }
            other => Ok(other),
        }
    }
}

pub(super) fn after(fault: Option<&Fault>, act: &str) -> Result<()> {
    match fault {
        Some(_) => Err(Error::unavailable(format!("injected: the reply to {act} was lost"))),
        None => Ok(()),
    }
}
