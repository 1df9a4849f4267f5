//! Fail points: named places where a test makes a round fail, stop, or the process die.
//!
//! They exist in builds with debug assertions (what `cargo test` builds); in release builds [`FailPoints::hit`] is empty.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};

/// What happens at a fail point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailAction {
    /// `hit` returns an `Unavailable` error.
    Error,
    /// The process is killed at once, as by SIGKILL (abort: nothing is flushed or dropped).
    Kill,
    /// `hit` never returns: the task stands still until it is dropped.
    Hang,
}

/// Fail points of one instance: each name with the hit that acts (1 = the first) and its action.
#[derive(Debug, Clone, Default)]
pub struct FailPoints {
    armed: Arc<Mutex<BTreeMap<String, (u32, FailAction)>>>,
}

impl FailPoints {
    /// Reads `LAKEWARD_FAIL`, a comma list of `NAME=error|kill|hang[@HIT]`. Release builds refuse the variable.
    ///
    /// # Errors
    /// `Invalid` when it is not of that form, `Unsupported` in a release build.
    pub fn from_env() -> Result<Self> {
        let Ok(text) = std::env::var("LAKEWARD_FAIL") else { return Ok(Self::default()) };
        if !cfg!(debug_assertions) {
            return Err(Error::unsupported("`LAKEWARD_FAIL` is set, but this build has no fail points"));
        }
        let points = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let wrong = || Error::invalid(format!("`LAKEWARD_FAIL`: `{part}` is not NAME=error|kill|hang[@HIT]"));
            let (name, action) = part.split_once('=').ok_or_else(wrong)?;
            let (action, hit) = action.split_once('@').unwrap_or((action, "1"));
            let hit = hit.parse().map_err(|source| wrong().with_source(source))?;
            let action = match action {
                "error" => FailAction::Error,
                "kill" => FailAction::Kill,
                "hang" => FailAction::Hang,
                _ => return Err(wrong()),
            };
            points.arm(name, hit, action);
        }
        Ok(points)
    }

    /// Acts at hit number `hit` (1 = the next) of `name`.
    pub fn arm(&self, name: impl Into<String>, hit: u32, action: FailAction) {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner).insert(name.into(), (hit.max(1), action));
    }

    /// Passes the point `name`.
    ///
    /// # Errors
    /// `Unavailable` where a test armed it so.
    #[cfg_attr(not(debug_assertions), expect(clippy::unused_async, reason = "empty in release builds"))]
    pub async fn hit(&self, name: &str) -> Result<()> {
        #[cfg(debug_assertions)]
        {
            let action = {
                let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
                match armed.get_mut(name) {
                    Some((1, action)) => {
                        let action = *action;
                        armed.remove(name);
                        Some(action)
                    }
                    Some((left, _)) => {
                        *left -= 1;
                        None
                    }
                    None => None,
                }
            };
            match action {
                Some(FailAction::Error) => return Err(Error::unavailable(format!("fail point `{name}`"))),
                Some(FailAction::Kill) => std::process::abort(),
                Some(FailAction::Hang) => {
                    tracing::info!("fail point `{name}` hangs");
                    std::future::pending::<()>().await;
                }
                None => {}
            }
        }
        #[cfg(not(debug_assertions))]
        let _ = name;
        Ok(())
    }
}
