//! Ranges of one split that are fetched side by side: those behind the one that is due, ahead of their turn.
//!
//! The rule that keeps readers from waiting for each other: **a range ahead of its turn never waits for memory**. It begins only with a
//! permit that is free, and is given up, permit and all, when the due range of its split has to wait for one. So whoever holds
//! memory needs none to go on: it is due and gets through, or it is ahead and is given up by its own split.

use std::collections::VecDeque;
use std::future::Future;

use tokio_util::task::AbortOnDropHandle;

use crate::error::{Error, Result};

/// What is fetched ahead of its turn, in the order in which it is due. Dropped, it gives up what is under way.
pub(super) struct Beside<K, T>(VecDeque<(K, Flight<T>)>);

enum Flight<T> {
    Coming(AbortOnDropHandle<Result<T>>),
    Here(Result<T>),
}

impl<K, T: Send + 'static> Beside<K, T> {
    pub(super) const fn new() -> Self {
        Self(VecDeque::new())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Gives up everything.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Begins to fetch `key`, which is due behind all the others.
    pub(super) fn begin(&mut self, key: K, fetch: impl Future<Output = Result<T>> + Send + 'static) {
        self.0.push_back((key, Flight::Coming(AbortOnDropHandle::new(tokio::spawn(fetch)))));
    }

    /// What is due first.
    pub(super) fn first(&self) -> Option<&K> {
        self.0.front().map(|(key, _)| key)
    }

    /// What is due last.
    pub(super) fn last(&self) -> Option<&K> {
        self.0.back().map(|(key, _)| key)
    }

    /// Takes what is due first, once it has come; `None` when there is none. May be dropped while it waits.
    pub(super) async fn next(&mut self) -> Option<(K, Result<T>)> {
        let (_, flight) = self.0.front_mut()?;
        if let Flight::Coming(coming) = flight {
            let ended = |source| Error::internal("a fetch has ended without a result").with_source(source);
            let result = coming.await.map_err(ended).flatten();
            *flight = Flight::Here(result);
        }
        match self.0.pop_front()? {
            (key, Flight::Here(result)) => Some((key, result)),
            (_, Flight::Coming(_)) => None,
        }
    }

    /// Puts back what was taken and is not due yet.
    pub(super) fn put_back(&mut self, key: K, here: T) {
        self.0.push_front((key, Flight::Here(Ok(here))));
    }
}
