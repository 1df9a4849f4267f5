//! Credentials for a bucket: had once, renewed before they end, never used past it.
//!
//! Owns when they are renewed; where they come from is `sources`'. A renewal that fails harms nothing while the old ones last.

mod sources;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use object_store::client::HttpClient;
use tokio::sync::Mutex;

use super::settings::From;
use super::wire::Fault;
use crate::runtime::{Clock, Moment};

/// A file is read again when it was read longer ago than this.
const FILE_TRUSTED: Duration = Duration::from_secs(1);
/// Pause after a renewal that failed, while the old ones last.
const RETRY: Duration = Duration::from_secs(5);
/// Pause between two renewals.
const RENEWAL_MIN: Duration = Duration::from_secs(1);
/// What is used has to last so long at least: a request takes its time, and clocks differ.
const MARGIN: Duration = Duration::from_secs(2);

/// What a source gave.
#[derive(Debug)]
struct Got {
    credential: AwsCredential,
    /// Epoch milliseconds; `None` = not told.
    ends_ms: Option<i64>,
}

#[derive(Debug)]
struct Held {
    credential: Arc<AwsCredential>,
    ends: Option<Moment>,
    renew: Option<Moment>,
}

/// Credentials of one bucket.
#[derive(Debug)]
pub(super) struct Credentials {
    from: From,
    client: HttpClient,
    clock: Clock,
    held: Mutex<Option<Held>>,
}

impl Credentials {
    pub(super) fn new(from: From, client: HttpClient, clock: Clock) -> Self {
        Self { from, client, clock, held: Mutex::default() }
    }

    /// Whether others can be had than those that were.
    pub(super) const fn can_be_renewed(&self) -> bool {
        !matches!(self.from, From::Anonymous | From::Static { .. })
    }

    /// The store has refused them: the next request asks again. They stay for as long as nobody has others: it may have been about rights.
    pub(super) async fn refuse(&self) {
        if let Some(held) = self.held.lock().await.as_mut() {
            held.renew = Some(self.clock.moment());
        }
    }

    /// Those to use now.
    pub(super) async fn current(&self) -> Result<Arc<AwsCredential>, Fault> {
        // Held over the await: of many that find them old one asks.
        let mut held = self.held.lock().await;
        let now = self.clock.moment();
        let fresh = held.as_ref().filter(|held| held.renew.is_none_or(|renew| now < renew));
        if let Some(fresh) = fresh {
            return Ok(Arc::clone(&fresh.credential));
        }
        match sources::ask(&self.from, &self.client).await {
            Ok(got) => {
                let now = self.clock.moment();
                let life = got
                    .ends_ms
                    .map(|ends| Duration::from_millis(u64::try_from(ends.saturating_sub(self.clock.now_ms())).unwrap_or(0)));
                if life.is_some_and(|life| life <= MARGIN) {
                    return Err(Fault::Credentials {
                        later: true,
                        message: format!("{} gives credentials that have run out", name(&self.from)),
                    });
                }
                let renew = match (&self.from, life) {
                    (From::Anonymous | From::Static { .. }, _) => None,
                    // Whatever it says: somebody may have put others there.
                    (From::File { .. }, _) => Some(FILE_TRUSTED),
                    (_, Some(life)) => Some((life * 3 / 4).max(RENEWAL_MIN)),
                    (_, None) => Some(Duration::from_secs(15 * 60)),
                };
                let credential = Arc::new(got.credential);
                *held = Some(Held {
                    credential: Arc::clone(&credential),
                    ends: life.map(|life| now + life),
                    renew: renew.map(|renew| now + renew),
                });
                Ok(credential)
            }
            Err(fault) => match held.as_mut() {
                Some(held) if held.ends.is_none_or(|ends| now + MARGIN < ends) => {
                    tracing::warn!(from = name(&self.from), %fault, "credentials could not be renewed; those that are there still last");
                    held.renew = Some(now + RETRY);
                    Ok(Arc::clone(&held.credential))
                }
                _ => Err(fault),
            },
        }
    }
}

#[async_trait]
impl CredentialProvider for Credentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.current().await.map_err(|fault| object_store::Error::Generic { store: "S3", source: Box::new(fault) })
    }
}

/// Reads credentials in each of the spellings that they come in.
#[cfg(any(test, fuzzing))]
pub(super) fn read_answer(text: &str) -> Result<(), Fault> {
    sources::read_answer(text)
}

/// Where they come from, for messages.
const fn name(from: &From) -> &'static str {
    match from {
        From::Anonymous => "nobody",
        From::Static { .. } => "the configuration",
        From::File { .. } => "the credentials file",
        From::WebIdentity { .. } => "web identity",
        From::Container { .. } => "the container's endpoint",
        From::Instance { .. } => "the instance's metadata",
        From::Tokens(_) => "the Fluss cluster",
    }
}
