//! Error kinds: what went wrong, told by what to do about it.
//!
//! Owns the one error type that crosses module borders. Parts may have enums of their own inside; at
//! their border they become an [`Error`] whose message names table, partition, bucket, offset or path.
//! Only `round` and `daemon` turn a [`Kind`] into a retry or a stop.

use std::error::Error as StdError;
use std::fmt;

use serde::{Deserialize, Serialize};

/// What to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A peer or store can't be reached or asks for patience: retry.
    Unavailable,
    /// What we planned by is out of date: drop the round and plan afresh.
    Stale,
    /// The input (options, arguments, access) is wrong: fix it.
    Invalid,
    /// A stored object is wrong, or two systems contradict each other: an operator has to look.
    Data,
    /// A feature that this build does not have, by name.
    Unsupported,
    /// A bug of ours.
    Internal,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 6] = [Self::Unavailable, Self::Stale, Self::Invalid, Self::Data, Self::Unsupported, Self::Internal];

    /// Lower-case word for logs, status and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Stale => "stale",
            Self::Invalid => "invalid",
            Self::Data => "data",
            Self::Unsupported => "unsupported",
            Self::Internal => "internal",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error with its kind, one level of message, an optional way out, and what caused it.
///
/// `Display` prints this level only; [`Error::chain`] prints all levels. Messages are lower-case
/// without full stop, values in backticks.
#[derive(Debug)]
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Debug)]
struct Inner {
    kind: Kind,
    message: String,
    hint: Option<String>,
    code: Option<i32>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// Result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind` that says `message`.
    #[must_use]
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { inner: Box::new(Inner { kind, message: message.into(), hint: None, code: None, source: None }) }
    }

    /// [`Kind::Unavailable`].
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Kind::Unavailable, message)
    }

    /// [`Kind::Stale`].
    #[must_use]
    pub fn stale(message: impl Into<String>) -> Self {
        Self::new(Kind::Stale, message)
    }

    /// [`Kind::Invalid`].
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// [`Kind::Data`].
    #[must_use]
    pub fn data(message: impl Into<String>) -> Self {
        Self::new(Kind::Data, message)
    }

    /// [`Kind::Unsupported`].
    #[must_use]
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Kind::Unsupported, message)
    }

    /// [`Kind::Internal`].
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Kind::Internal, message)
    }

    /// Adds what caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.inner.source = Some(source.into());
        self
    }

    /// Adds the way out, a sentence for the operator.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.inner.hint = Some(hint.into());
        self
    }

    /// Adds the Fluss error code that a server answered with (F2.5).
    #[must_use]
    pub fn with_code(mut self, code: i32) -> Self {
        self.inner.code = Some(code);
        self
    }

    /// Wraps this error in one more level of message; kind, code and hint stay.
    #[must_use]
    pub fn context(self, message: impl Into<String>) -> Self {
        let mut outer = Self::new(self.inner.kind, message);
        outer.inner.code = self.inner.code;
        outer.inner.hint.clone_from(&self.inner.hint);
        outer.inner.source = Some(Box::new(self));
        outer
    }

    /// The same for one more who waited for it: all levels as one.
    #[must_use]
    pub fn echo(&self) -> Self {
        let mut echo = Self::new(self.inner.kind, self.chain());
        echo.inner.code = self.inner.code;
        echo.inner.hint.clone_from(&self.inner.hint);
        echo
    }

    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.inner.kind
    }

    /// The Fluss error code a server answered with, if one did.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        self.inner.code
    }

    /// The way out, if one is known.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        self.inner.hint.as_deref()
    }

    /// All levels, outermost first, joined by `: `.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = StdError::source(self);
        while let Some(error) = next {
            let level = error.to_string();
            if !text.ends_with(&level) {
                text.push_str(": ");
                text.push_str(&level);
            }
            next = error.source();
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_names_every_level_and_keeps_kind_code_and_hint() {
        let inner = Error::data("offset `7` is gone").with_code(19).with_hint("run verify");
        let error = inner.context("read bucket `2`");
        assert_eq!(error.kind(), Kind::Data);
        assert_eq!(error.code(), Some(19));
        assert_eq!(error.hint(), Some("run verify"));
        assert_eq!(error.chain(), "read bucket `2`: offset `7` is gone");
        let echo = error.echo();
        assert_eq!((echo.kind(), echo.code(), echo.hint()), (Kind::Data, Some(19), Some("run verify")));
        assert_eq!(echo.to_string(), error.chain());
    }
}
