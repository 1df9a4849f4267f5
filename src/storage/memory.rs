//! Stores in memory under a URL of their own, for simulations: whole rounds open the warehouse that a table names.
//!
//! They tell simulated time: age decides about pins and unnamed files.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Store;
use crate::runtime::Clock;

static MOUNTED: Mutex<BTreeMap<String, Store>> = Mutex::new(BTreeMap::new());

fn mounted() -> MutexGuard<'static, BTreeMap<String, Store>> {
    MOUNTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A store that [`super::open`] finds at a URL until this is dropped.
#[derive(Debug)]
pub struct Mounted(String);

impl Drop for Mounted {
    fn drop(&mut self) {
        mounted().remove(&self.0);
    }
}

/// Mounts `store` at `url` (`memory:NAME`).
#[must_use]
pub fn mount(url: &str, store: Store) -> Mounted {
    mounted().insert(url.to_owned(), store);
    Mounted(url.to_owned())
}

pub(super) fn at(url: &str) -> Option<Store> {
    if url.starts_with("memory:") { mounted().get(url).cloned() } else { None }
}

/// When each object was written last, by a simulation's clock.
#[derive(Debug)]
pub(super) struct Written {
    clock: Clock,
    at_ms: Mutex<BTreeMap<String, i64>>,
}

impl Written {
    pub(super) fn note(&self, path: &str) {
        self.at_ms.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned(), self.clock.now_ms());
    }

    pub(super) fn at_ms(&self, path: &str) -> Option<i64> {
        self.at_ms.lock().unwrap_or_else(PoisonError::into_inner).get(path).copied()
    }

    /// Whether a list that is `age_ms` old can't have it.
    pub(super) fn is_newer(&self, path: &str, age_ms: i64) -> bool {
        self.at_ms(path).is_some_and(|at| at > self.clock.now_ms().saturating_sub(age_ms))
    }
}

impl Store {
    /// An empty store in memory that tells `clock`'s time.
    #[must_use]
    pub fn in_memory_at(clock: Clock) -> Self {
        Self { written: Some(Arc::new(Written { clock, at_ms: Mutex::default() })), ..Self::in_memory() }
    }
}
