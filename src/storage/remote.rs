//! The remote storage of a cluster: log segments and offsets files, read by whole URLs (F5.6, F3.1).
//!
//! What the cluster hands out a token for is read with it, the rest as our own settings say.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::OnceCell;

use super::tokens::{self, Registered, Tokens};
use super::{StoreOptions, open};
use crate::error::{Kind, Result};

/// How the remote storage of one cluster is reached. Clones share its credentials.
#[derive(Clone)]
pub struct Remote(Arc<Inner>);

struct Inner {
    own: Arc<BTreeMap<String, String>>,
    tokens: Option<(Arc<dyn Tokens>, Registered)>,
    /// Options that came with the first token; `None` = the cluster has no tokens.
    told: OnceCell<Option<BTreeMap<String, String>>>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("tokens", &self.0.tokens.is_some()).finish_non_exhaustive()
    }
}

impl Remote {
    /// Reached by `own` options, and the tokens of the cluster where it has some.
    #[must_use]
    pub fn new(own: Arc<BTreeMap<String, String>>, tokens: Option<Arc<dyn Tokens>>) -> Self {
        let tokens = tokens.map(|tokens| {
            let registered = tokens::register(&tokens);
            (tokens, registered)
        });
        Self(Arc::new(Inner { own, tokens, told: OnceCell::new() }))
    }

    /// How to open what is at `url`.
    async fn options(&self, url: &str) -> Result<StoreOptions> {
        let own = StoreOptions { own: Arc::clone(&self.0.own), ..StoreOptions::default() };
        let Some((tokens, registered)) = self.0.tokens.as_ref().filter(|_| url.starts_with("s3:") || url.starts_with("s3a:"))
        else {
            return Ok(own);
        };
        let ask = || async {
            match tokens.token().await {
                Ok(token) if token.json.is_empty() || !token.scheme.starts_with("s3") => Ok(None),
                Ok(token) => Ok(Some(token.options)),
                Err(error) if error.kind() == Kind::Unavailable => Err(error),
                // It has none to give (30), or does not know the request.
                Err(error) => {
                    tracing::debug!(error = %error.chain(), "the cluster hands out no tokens for its remote storage: our own settings are used");
                    Ok(None)
                }
            }
        };
        Ok(match self.0.told.get_or_try_init(ask).await? {
            Some(options) => StoreOptions { options: options.clone(), tokens: Some(registered.0), ..own },
            None => own,
        })
    }

    /// Reads an object; `None` when it is not there.
    ///
    /// # Errors
    /// `Unsupported` names a scheme that is not there; `Unavailable`; `Invalid` when access is denied.
    pub async fn read(&self, url: &str) -> Result<Option<Bytes>> {
        open::read(url, &self.options(url).await?).await
    }

    /// Reads bytes `start..end` (exclusive) of an object, fewer when it is shorter; `None` when it is not there.
    ///
    /// # Errors
    /// As [`Remote::read`].
    pub async fn read_range(&self, url: &str, start: u64, end: u64) -> Result<Option<Bytes>> {
        open::read_range(url, start, end, &self.options(url).await?).await
    }

    /// Whether the folder at `url` is there and can be read.
    ///
    /// # Errors
    /// As [`Remote::read`].
    pub async fn readable(&self, url: &str) -> Result<bool> {
        open::readable(url, &self.options(url).await?).await
    }
}
