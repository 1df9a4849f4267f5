//! Tokens that a cluster hands out for its remote storage (F5.6), and who is asked for them.
//!
//! A bucket's settings are compared and remembered, so they name whom to ask by a number; what can ask registers here.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{Error, Result};

static KNOWN: Mutex<BTreeMap<usize, Weak<dyn Tokens>>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicUsize = AtomicUsize::new(0);

fn known() -> MutexGuard<'static, BTreeMap<usize, Weak<dyn Tokens>>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A token for the storage that a cluster keeps its remote log in.
#[derive(Clone)]
pub struct Token {
    /// Scheme of its URLs.
    pub scheme: String,
    /// Keys, as JSON; empty where none are needed. Secret.
    pub json: Bytes,
    /// Its end, epoch milliseconds.
    pub ends_ms: Option<i64>,
    /// Options of the store (`fs.s3a.endpoint`, …).
    pub options: BTreeMap<String, String>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("scheme", &self.scheme).field("ends_ms", &self.ends_ms).finish_non_exhaustive()
    }
}

/// Who hands out tokens.
#[async_trait]
pub trait Tokens: fmt::Debug + Send + Sync {
    /// A new token.
    ///
    /// # Errors
    /// As the cluster says.
    async fn token(&self) -> Result<Token>;
}

/// Somebody who can be asked; forgotten when dropped.
#[derive(Debug)]
pub(super) struct Registered(pub(super) usize);

impl Drop for Registered {
    fn drop(&mut self) {
        known().remove(&self.0);
    }
}

pub(super) fn register(tokens: &Arc<dyn Tokens>) -> Registered {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    known().insert(number, Arc::downgrade(tokens));
    Registered(number)
}

/// A token of whoever has this number.
pub(super) async fn ask(number: usize) -> Result<Token> {
    let tokens = known().get(&number).and_then(Weak::upgrade);
    match tokens {
        Some(tokens) => tokens.token().await,
        None => Err(Error::unavailable("the cluster that hands out tokens is gone")),
    }
}
