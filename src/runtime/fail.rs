//! Fail points: named places where a test makes a round fail, or the process stop or die.
//!
//! They exist in builds with debug assertions (what `cargo test` builds); in release builds hitting one is empty.
//! [`POINTS`] lists them all, so that the kill matrix leaves none out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};

/// Every fail point there is. The kill matrix (`tests/it/kill`) dies at each, and fails when one is never reached.
pub const POINTS: &[&str] = &[
    // A write into a store: nothing is there; whole under a hidden name (local disks); shown, the hidden name still there; done.
    "store.before_write",
    "store.staged",
    "store.shown",
    "store.after_write",
    // A large object goes up in parts and shows with the last step, which is a write.
    "store.before_part",
    "store.after_part",
    "store.before_delete",
    "store.after_delete",
    // A round.
    "read.before_fetch",
    "commit.before_pin",
    "commit.before_prepare",
    "commit.after_prepare",
    "commit.before_publish",
    "commit.after_publish",
    "commit.before_record",
    "commit.after_record",
    "commit.before_unpin",
    // A snapshot that Fluss does not know, in recovery.
    "recover.before_prepare",
    "recover.after_prepare",
    "recover.after_record",
    // The node: logs (a segment begun; bytes written, synced, acknowledged; a folder deleted), the registry, a DDL between lake and registry.
    "log.before_segment",
    "log.after_segment",
    "log.before_append",
    "log.after_append",
    "log.before_sync",
    "log.after_sync",
    "log.before_delete",
    "log.after_delete",
    // The state of a primary-key bucket: a batch's changes, which are in the log already; made durable.
    "kv.before_commit",
    "kv.after_commit",
    "kv.before_save",
    "kv.after_save",
    "registry.before_write",
    "registry.after_write",
    "node.add_columns",
];

/// What happens at a fail point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailAction {
    /// Hitting it returns an `Unavailable` error.
    Error,
    /// The process is killed by SIGKILL; who hit the point does not go on meanwhile.
    Kill,
    /// Hitting it never returns: the task stands still until it is dropped.
    Hang,
    /// The whole process stands still (SIGSTOP) until somebody sends it SIGCONT.
    Stop,
}

/// Fail points of one instance: each name with the hit that acts (1 = the first) and its action.
#[derive(Debug, Clone, Default)]
pub struct FailPoints {
    armed: Arc<Mutex<BTreeMap<String, (u32, FailAction)>>>,
}

impl FailPoints {
    /// Reads `LAKEWARD_FAIL`, a comma list of `NAME=error|kill|hang|stop[@HIT]`. Release builds refuse the variable.
    ///
    /// # Errors
    /// `Invalid` when it is not of that form or names no point, `Unsupported` in a release build.
    pub fn from_env() -> Result<Self> {
        let Ok(text) = std::env::var("LAKEWARD_FAIL") else { return Ok(Self::default()) };
        if !cfg!(debug_assertions) {
            return Err(Error::unsupported("`LAKEWARD_FAIL` is set, but this build has no fail points"));
        }
        let points = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let wrong = || Error::invalid(format!("`LAKEWARD_FAIL`: `{part}` is not NAME=error|kill|hang|stop[@HIT]"));
            let (name, action) = part.split_once('=').ok_or_else(wrong)?;
            let (action, hit) = action.split_once('@').unwrap_or((action, "1"));
            let hit = hit.parse().map_err(|source| wrong().with_source(source))?;
            let action = match action {
                "error" => FailAction::Error,
                "kill" => FailAction::Kill,
                "hang" => FailAction::Hang,
                "stop" => FailAction::Stop,
                _ => return Err(wrong()),
            };
            if !POINTS.contains(&name) {
                return Err(Error::invalid(format!("`LAKEWARD_FAIL`: there is no fail point `{name}`")));
            }
            points.arm(name, hit, action);
        }
        Ok(points)
    }

    /// Acts at hit number `hit` (1 = the next) of `name`.
    pub fn arm(&self, name: impl Into<String>, hit: u32, action: FailAction) {
        let name = name.into();
        debug_assert!(POINTS.contains(&name.as_str()), "there is no fail point `{name}`");
        self.armed.lock().unwrap_or_else(PoisonError::into_inner).insert(name, (hit.max(1), action));
    }

    /// Passes the point `name`.
    ///
    /// # Errors
    /// `Unavailable` where a test armed it so.
    #[inline]
    pub async fn hit(&self, name: &str) -> Result<()> {
        self.hit_at(name, "").await
    }

    /// As [`FailPoints::hit`]; who dies there says `place`.
    ///
    /// # Errors
    /// As [`FailPoints::hit`].
    #[cfg_attr(not(debug_assertions), expect(clippy::unused_async, reason = "empty in release builds"))]
    pub async fn hit_at(&self, name: &str, place: &str) -> Result<()> {
        #[cfg(debug_assertions)]
        match self.action(name) {
            Some(FailAction::Hang) => {
                tracing::info!("fail point `{name}` hangs");
                std::future::pending::<()>().await;
            }
            Some(action) => act(action, name, place)?,
            None => {}
        }
        #[cfg(not(debug_assertions))]
        let _ = (name, place);
        Ok(())
    }

    /// As [`FailPoints::hit_at`], on a thread that may block.
    ///
    /// # Errors
    /// As [`FailPoints::hit`]; `Internal` where it is to hang: nothing could drop the thread.
    pub fn hit_blocking(&self, name: &str, place: &str) -> Result<()> {
        #[cfg(debug_assertions)]
        match self.action(name) {
            Some(FailAction::Hang) => return Err(Error::internal(format!("fail point `{name}` can't hang, it blocks a thread"))),
            Some(action) => act(action, name, place)?,
            None => {}
        }
        #[cfg(not(debug_assertions))]
        let _ = (name, place);
        Ok(())
    }

    #[cfg(debug_assertions)]
    fn action(&self, name: &str) -> Option<FailAction> {
        debug_assert!(POINTS.contains(&name), "fail point `{name}` is not in the list");
        let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        match armed.get_mut(name)? {
            (1, action) => {
                let action = *action;
                armed.remove(name);
                Some(action)
            }
            (left, _) => {
                *left -= 1;
                None
            }
        }
    }
}

#[cfg(debug_assertions)]
fn act(action: FailAction, name: &str, place: &str) -> Result<()> {
    match action {
        FailAction::Error => return Err(Error::unavailable(format!("fail point `{name}`"))),
        FailAction::Kill => {
            tracing::error!("fail point `{name}` kills at `{place}`");
            signal("-KILL");
            // The signal may come a moment later: nothing goes on from here.
            loop {
                std::thread::park();
            }
        }
        FailAction::Stop => {
            tracing::error!("fail point `{name}` stops at `{place}`");
            signal("-STOP");
        }
        FailAction::Hang => {}
    }
    Ok(())
}

/// Sends this process a signal. The crate forbids `unsafe`, so somebody else has to do it.
#[cfg(debug_assertions)]
fn signal(signal: &str) {
    let sent = std::process::Command::new("kill").args([signal, &std::process::id().to_string()]).status();
    if !sent.is_ok_and(|status| status.success()) {
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_point_acts_at_its_hit_and_only_once() {
        let points = FailPoints::default();
        points.arm("commit.before_pin", 2, FailAction::Error);
        let hits = [
            points.hit("commit.before_pin").await,
            points.hit_blocking("commit.before_pin", ""),
            points.hit("commit.before_pin").await,
        ];
        assert_eq!(hits.map(|hit| hit.is_err()), [false, true, false]);
    }

    #[test]
    #[should_panic(expected = "there is no fail point `commit.before_lunch`")]
    fn a_point_that_is_not_in_the_list_can_not_be_armed() {
        FailPoints::default().arm("commit.before_lunch", 1, FailAction::Error);
    }
}
