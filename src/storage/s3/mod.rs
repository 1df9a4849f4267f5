//! Buckets of S3 and of what speaks like it: requests that may fail, what is done about it, and what they cost.
//!
//! `object_store` signs and sends; every retry is ours, so that credentials are fresh in each, throttling is heeded by prefix, and no
//! repeated create hides that the first one was ours. Called by `storage` alone, which owns paths and faults that tests inject.

mod credentials;
mod settings;
mod slow;
mod upload;
mod wire;
mod xml;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, AwsAuthorizer};
use object_store::client::{HttpClient, HttpRequest};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::multipart::MultipartStore;
use object_store::path::Path as StorePath;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutPayload, RetryConfig};

use super::{Created, Listed};
use crate::error::{Error, Kind, Result};
use crate::runtime::{Backoff, BackoffOptions, Clock, Rng};
use crate::telemetry::StoreRequest;
use credentials::Credentials;
use settings::{Encryption, From, Settings};
use slow::Slow;

pub(super) use settings::is_key;
pub(super) use upload::Upload;
pub(super) use wire::Fault;

/// Sendings of one request; 503 SlowDown alone, which costs only time, is waited for longer.
const TRIES_MAX: usize = 5;
const SLOW_TRIES_MAX: usize = 12;
const PAUSES: BackoffOptions =
    BackoffOptions { first: Duration::from_millis(100), max: Duration::from_secs(5), attempts_max: usize::MAX };
/// Bytes of an object that are asked for at once, and how many such ranges of one object are on their way.
const RANGE_BYTES: u64 = 8 << 20;
const RANGES_MAX: usize = 4;
/// Rounds of "409, but nothing is there" before a create is given up.
const CREATES_MAX: usize = 6;

/// What a request does: how it is counted, and the right that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Get,
    Head,
    Put,
    Delete,
    List,
    /// Everything of an upload in parts but its abort.
    Upload,
    Abort,
    ListUploads,
}

/// Names of what is counted, in the order of the counters.
const COUNTED: [&str; 6] = ["delete", "get", "head", "list", "put", "upload"];

impl Act {
    const fn counter(self) -> usize {
        match self {
            Self::Delete | Self::Abort => 0,
            Self::Get => 1,
            Self::Head => 2,
            Self::List | Self::ListUploads => 3,
            Self::Put => 4,
            Self::Upload => 5,
        }
    }

    const fn right(self) -> &'static str {
        match self {
            Self::Get | Self::Head => "s3:GetObject",
            Self::Put | Self::Upload => "s3:PutObject",
            Self::Delete => "s3:DeleteObject",
            Self::List => "s3:ListBucket",
            Self::Abort => "s3:AbortMultipartUpload",
            Self::ListUploads => "s3:ListBucketMultipartUploads",
        }
    }
}

/// Requests sent, by what they do; every sending counts, as on the bill.
#[derive(Debug, Default)]
pub(super) struct Requests([AtomicU64; 6]);

impl Requests {
    fn count(&self, act: Act) {
        if let Some(counter) = self.0.get(act.counter()) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        StoreRequest(COUNTED.get(act.counter()).copied().unwrap_or_default()).emit();
    }

    /// Those that there were any of.
    pub(super) fn told(&self) -> BTreeMap<&'static str, u64> {
        let counts = COUNTED.into_iter().zip(&self.0).map(|(name, count)| (name, count.load(Ordering::Relaxed)));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

/// An upload that was begun and neither ended nor given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hanging {
    pub(super) key: String,
    pub(super) id: String,
    pub(super) begun_ms: i64,
}

/// A bucket as one set of settings reaches it. Shared by all stores in it.
#[derive(Debug)]
pub(super) struct Bucket {
    settings: Settings,
    client: AmazonS3,
    http: HttpClient,
    credentials: Arc<Credentials>,
    slow: Slow,
    clock: Clock,
    rng: Rng,
}

/// Buckets that this process has opened, and when each was last asked for: their connections, credentials and pauses outlive a round.
static OPENED: Mutex<BTreeMap<Settings, (Arc<Bucket>, u64)>> = Mutex::new(BTreeMap::new());
/// So many are remembered, those that were asked for last; one that changes its keys all the time must not pile up.
const OPENED_MAX: usize = 64;

/// Whether `own` options can be right.
///
/// # Errors
/// As [`open`].
pub(super) fn check(own: &BTreeMap<String, String>) -> Result<()> {
    Settings::new("bucket", own, &BTreeMap::new(), &|name| std::env::var(name).ok()).map(drop)
}

/// Opens `bucket` by our own options and those of a table; nothing is sent.
///
/// # Errors
/// `Invalid` and `Unsupported` name the option.
pub(super) fn open(
    bucket: &str,
    own: &BTreeMap<String, String>,
    table: &BTreeMap<String, String>,
    tokens: Option<usize>,
) -> Result<Arc<Bucket>> {
    let mut settings = Settings::new(bucket, own, table, &|name| std::env::var(name).ok())?;
    if let Some(number) = tokens {
        settings.credentials = From::Tokens(number);
    }
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let turn = opened.values().map(|(_, turn)| turn + 1).max().unwrap_or(0);
    if let Some((known, last)) = opened.get_mut(&settings) {
        *last = turn;
        return Ok(Arc::clone(known));
    }
    let made = Arc::new(Bucket::new(settings.clone())?);
    if opened.len() >= OPENED_MAX
        && let Some(oldest) = opened.iter().min_by_key(|(_, (_, turn))| *turn).map(|(settings, _)| settings.clone())
    {
        opened.remove(&oldest);
    }
    opened.insert(settings, (Arc::clone(&made), turn));
    Ok(made)
}

impl Bucket {
    fn new(settings: Settings) -> Result<Self> {
        let (http, options) = wire::client(&settings)?;
        let (clock, rng) = (Clock::system(), Rng::from_entropy());
        let credentials = Arc::new(Credentials::new(settings.credentials.clone(), http.clone(), clock.clone()));
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&settings.bucket)
            .with_region(&settings.region)
            .with_virtual_hosted_style_request(settings.host_style)
            .with_client_options(options)
            .with_http_connector(wire::Connector)
            .with_credentials(Arc::<Credentials>::clone(&credentials))
            .with_skip_signature(settings.credentials == From::Anonymous)
            .with_request_payer(settings.requester_pays)
            // One DELETE per object: POST ?delete costs more, and not every store has it.
            .with_disable_bulk_delete(true)
            // Every retry is ours.
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() });
        if let Some(endpoint) = &settings.endpoint {
            let endpoint = if settings.host_style { settings.bucket_url() } else { endpoint.clone() };
            builder = builder.with_endpoint(endpoint);
        }
        builder = match &settings.encryption {
            Encryption::Bucket => builder,
            Encryption::Aes256 => {
                let key: AmazonS3ConfigKey = "aws_server_side_encryption"
                    .parse()
                    .map_err(|source: object_store::Error| Error::internal("name the encryption").with_source(source))?;
                builder.with_config(key, "AES256")
            }
            Encryption::Kms(key) => builder.with_sse_kms_encryption(key.clone().unwrap_or_default()),
        };
        let client = builder
            .build()
            .map_err(|source| Error::invalid(format!("bucket `{}` can't be opened", settings.bucket)).with_source(source))?;
        let slow = Slow::new(clock.clone(), rng.clone());
        Ok(Self { settings, client, http, credentials, slow, clock, rng })
    }

    /// Sends a request once, when its prefix may.
    async fn once<T>(
        &self,
        act: Act,
        key: &str,
        requests: &Requests,
        send: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, Fault> {
        let prefix = throttled_by(key);
        self.slow.wait(prefix).await;
        requests.count(act);
        match send.await {
            Ok(answer) => {
                self.slow.served(prefix);
                Ok(answer)
            }
            Err(error) => {
                let fault = Fault::of(&error);
                if fault.is_slow_down() {
                    self.slow.down(prefix);
                }
                if fault.may_be_expired() && self.credentials.can_be_renewed() {
                    self.credentials.refuse().await;
                }
                Err(fault)
            }
        }
    }

    /// Sends a request that may be repeated, until it is answered or has failed often enough.
    async fn answered<T, F: Future<Output = object_store::Result<T>>>(
        &self,
        act: Act,
        key: &str,
        requests: &Requests,
        mut send: impl FnMut() -> F,
    ) -> Result<T, Fault> {
        let mut pauses = Backoff::new(PAUSES, &self.rng);
        let (mut tries, mut renewed) = (0, false);
        loop {
            let fault = match self.once(act, key, requests, send()).await {
                Ok(answer) => return Ok(answer),
                Err(fault) => fault,
            };
            tries += 1;
            if fault.may_be_expired() && self.credentials.can_be_renewed() && !renewed {
                renewed = true;
                continue;
            }
            let most = if fault.is_slow_down() { SLOW_TRIES_MAX } else { TRIES_MAX };
            if !fault.is_passing() || tries >= most {
                return Err(fault);
            }
            tracing::debug!(?act, key, %fault, tries, "a request to the store failed and is sent again");
            // After 503 the prefix waits by itself.
            if !fault.is_slow_down() {
                self.clock.sleep(pauses.next_pause().unwrap_or(PAUSES.max)).await;
            }
        }
    }

    /// A whole object, range by range: a large one comes over several connections, and what fails of it alone is asked for again.
    pub(super) async fn get(&self, key: &StorePath, requests: &Requests) -> Result<Option<Bytes>, Fault> {
        let part = |range: std::ops::Range<u64>, if_match: Option<String>| {
            let send = move || {
                let range = Some(GetRange::Bounded(range.clone()));
                let options = GetOptions { range, if_match: if_match.clone(), ..GetOptions::default() };
                async {
                    let found = self.client.get_opts(key, options).await?;
                    let (size, tag) = (found.meta.size, found.meta.e_tag.clone());
                    Ok((found.bytes().await?, size, tag))
                }
            };
            self.answered(Act::Get, key.as_ref(), requests, send)
        };
        let (first, size, tag) = match part(0..RANGE_BYTES, None).await {
            Ok(found) => found,
            // No byte is there to begin with.
            Err(Fault::Refused { status: 416, .. }) => return Ok(Some(Bytes::new())),
            Err(fault) => return absent_as_none(Err(fault)),
        };
        if size <= RANGE_BYTES {
            return Ok(Some(first));
        }
        let mut whole = BytesMut::from(first);
        let starts = (1..size.div_ceil(RANGE_BYTES)).map(|range| range * RANGE_BYTES);
        let ranges = starts.map(|start| part(start..start.saturating_add(RANGE_BYTES).min(size), tag.clone()));
        let mut rest = stream::iter(ranges).buffered(RANGES_MAX);
        while let Some((more, ..)) = rest.try_next().await? {
            whole.extend_from_slice(&more);
        }
        Ok(Some(whole.freeze()))
    }

    /// Bytes `start..end`, fewer where the object ends.
    pub(super) async fn get_range(
        &self,
        key: &StorePath,
        start: u64,
        end: u64,
        requests: &Requests,
    ) -> Result<Option<Bytes>, Fault> {
        if start >= end {
            return Ok(Some(Bytes::new()));
        }
        let found = self.answered(Act::Get, key.as_ref(), requests, || self.client.get_range(key, start..end)).await;
        match found {
            // The object ends before.
            Err(Fault::Refused { status: 416, .. }) => Ok(Some(Bytes::new())),
            found => absent_as_none(found),
        }
    }

    pub(super) async fn size(&self, key: &StorePath, requests: &Requests) -> Result<Option<u64>, Fault> {
        let found = self.answered(Act::Head, key.as_ref(), requests, || self.client.head(key)).await;
        let found = match found {
            Ok(meta) => Ok(meta.size),
            // What a HEAD is refused for has no words: a GET of one byte, by the same right, has.
            Err(fault) if fault.is_wordless() => {
                let range = Some(GetRange::Bounded(0..1));
                let options = || GetOptions { range: range.clone(), ..GetOptions::default() };
                match self.once(Act::Get, key.as_ref(), requests, self.client.get_opts(key, options())).await {
                    Ok(found) => Ok(found.meta.size),
                    Err(Fault::Refused { status: 416, .. }) => Ok(0),
                    Err(told @ Fault::Refused { .. }) if !told.is_passing() => Err(told),
                    Err(_) => Err(fault),
                }
            }
            Err(fault) => Err(fault),
        };
        absent_as_none(found)
    }

    pub(super) async fn put(&self, key: &StorePath, bytes: &Bytes, requests: &Requests) -> Result<(), Fault> {
        let send = || self.client.put(key, PutPayload::from_bytes(bytes.clone()));
        self.answered(Act::Put, key.as_ref(), requests, send).await.map(|_| ())
    }

    pub(super) async fn delete(&self, key: &StorePath, requests: &Requests) -> Result<(), Fault> {
        let done = self.answered(Act::Delete, key.as_ref(), requests, || self.client.delete(key)).await;
        absent_as_none(done).map(|_| ())
    }

    /// `If-None-Match: *`, with each answer looked at by reading back (P8.3).
    ///
    /// Equal bytes are ours: whoever creates an object that it matters of puts something of its own into it. As soon as one
    /// sending went unanswered, another's object is no answer for it: that request may still land, should the object go. An error names
    /// the request that failed.
    pub(super) async fn create(&self, key: &StorePath, bytes: &Bytes, requests: &Requests) -> Result<Created, (Act, Fault)> {
        let mut pauses = Backoff::new(PAUSES, &self.rng);
        let (mut unanswered, mut last): (Option<Fault>, Option<Fault>) = (None, None);
        let mut renewed = false;
        for _ in 0..CREATES_MAX {
            let send = self.client.put_opts(key, PutPayload::from_bytes(bytes.clone()), PutMode::Create.into());
            let fault = match self.once(Act::Put, key.as_ref(), requests, send).await {
                Ok(_) => return Ok(Created::Yes),
                Err(fault) => fault,
            };
            if fault.may_be_expired() && self.credentials.can_be_renewed() && !renewed {
                renewed = true;
                continue;
            }
            let passing = fault.is_passing();
            if !passing && !fault.is_there() {
                return Err((Act::Put, unanswered.unwrap_or(fault)));
            }
            tracing::debug!(key = key.as_ref(), %fault, "a create was not answered with a yes: read back");
            if passing {
                unanswered = Some(fault.clone());
            }
            match self.get(key, requests).await {
                Ok(Some(found)) if found == *bytes => return Ok(Created::Yes),
                Ok(Some(_)) => return unanswered.map_or(Ok(Created::Exists), |fault| Err((Act::Put, fault))),
                // 409 while somebody else's request was under way, or ours did not arrive.
                Ok(None) => {}
                Err(unread) => return Err(unanswered.map_or((Act::Get, unread), |fault| (Act::Put, fault))),
            }
            last = Some(fault);
            self.clock.sleep(pauses.next_pause().unwrap_or(PAUSES.max)).await;
        }
        let refused = || Fault::Lost("a create was refused again and again".to_owned());
        Err((Act::Put, unanswered.or(last).unwrap_or_else(refused)))
    }

    /// All objects whose keys begin with `prefix`, in no order; at most `most`.
    pub(super) async fn list(&self, prefix: &str, most: Option<usize>, requests: &Requests) -> Result<Vec<Listed>, Fault> {
        let (mut found, mut token) = (Vec::new(), None);
        loop {
            let options = || PaginatedListOptions { max_keys: most, page_token: token.clone(), ..PaginatedListOptions::default() };
            let page = self.answered(Act::List, prefix, requests, || self.client.list_paginated(Some(prefix), options())).await?;
            found.extend(page.result.objects.into_iter().map(|meta| Listed {
                path: meta.location.to_string(),
                size: meta.size,
                modified_ms: meta.last_modified.timestamp_millis(),
            }));
            match page.page_token {
                // A server that repeats itself must not hold us.
                Some(next) if token.as_ref() == Some(&next) => return Err(Fault::Odd("a list that does not move on".to_owned())),
                Some(next) if most.is_none_or(|most| found.len() < most) => token = Some(next),
                _ => return Ok(found),
            }
        }
    }

    /// Uploads below `prefix` that hang. `object_store` has no such request, so it is signed here.
    pub(super) async fn list_uploads(&self, prefix: &str, requests: &Requests) -> Result<Vec<Hanging>, Fault> {
        let mut found: Vec<Hanging> = Vec::new();
        let (mut key_marker, mut id_marker) = (String::new(), String::new());
        loop {
            let mut query = vec![("prefix", prefix.to_owned()), ("uploads", String::new())];
            if !key_marker.is_empty() {
                query.extend([("key-marker", key_marker.clone()), ("upload-id-marker", id_marker.clone())]);
            }
            let text = self.answered(Act::ListUploads, prefix, requests, || self.signed_get(&query)).await?;
            let (uploads, markers) = uploads_of(&text);
            found.extend(uploads);
            match markers {
                // Keys are in order: a server that repeats itself must not hold us.
                Some(markers) if markers.0 >= key_marker && (&markers.0, &markers.1) != (&key_marker, &id_marker) => {
                    (key_marker, id_marker) = markers
                }
                _ => return Ok(found),
            }
        }
    }

    async fn signed_get(&self, query: &[(&str, String)]) -> object_store::Result<String> {
        let generic = |source: Box<dyn std::error::Error + Send + Sync>| object_store::Error::Generic { store: "S3", source };
        let query: Vec<String> = query.iter().map(|(key, value)| format!("{key}={}", xml::percent(value))).collect();
        let url = format!("{}/?{}", self.settings.bucket_url(), query.join("&"));
        let mut request = HttpRequest::new(Bytes::new().into());
        *request.uri_mut() = url.parse().map_err(|source| generic(Box::new(Fault::Odd(format!("{url}: {source}")))))?;
        if self.settings.credentials != From::Anonymous {
            let credential = self.credentials.current().await.map_err(|fault| generic(Box::new(fault)))?;
            AwsAuthorizer::new(&credential, "s3", &self.settings.region)
                .with_request_payer(self.settings.requester_pays)
                .try_authorize(&mut request, None)?;
        }
        let answer = self.http.execute(request).await.map_err(|source| generic(Box::new(source)))?;
        wire::text(answer).await.map_err(|source| generic(Box::new(source)))
    }

    pub(super) async fn abort_upload(&self, key: &StorePath, id: &str, requests: &Requests) -> Result<(), Fault> {
        let id = id.to_owned();
        let done = self.answered(Act::Abort, key.as_ref(), requests, || self.client.abort_multipart(key, &id)).await;
        absent_as_none(done).map(|_| ())
    }
}

/// What S3 throttles by, as far as one can know: the folder of a table.
fn throttled_by(key: &str) -> &str {
    let table = key.split_inclusive('/').scan(0, |at, part| {
        *at += part.len();
        Some((*at, part))
    });
    let mut database = false;
    for (end, part) in table {
        if database {
            return key.get(..end).unwrap_or(key);
        }
        database = part.ends_with(".db/");
    }
    key.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Uploads of one page, and where the next begins, if there is one.
fn uploads_of(xml: &str) -> (Vec<Hanging>, Option<(String, String)>) {
    let upload = |upload: &str| {
        let part = |tag: &str| xml::first(upload, tag);
        let begun = part("Initiated").and_then(|text| text.parse::<jiff::Timestamp>().ok());
        Some(Hanging {
            key: part("Key")?,
            id: part("UploadId")?,
            begun_ms: begun.map_or(i64::MAX, jiff::Timestamp::as_millisecond),
        })
    };
    let next = |tag: &str| xml::first(xml, tag).unwrap_or_default();
    let markers = (next("NextKeyMarker"), next("NextUploadIdMarker"));
    let goes_on = next("IsTruncated") == "true" && !markers.0.is_empty();
    (xml::blocks(xml, "Upload").filter_map(upload).collect(), goes_on.then_some(markers))
}

/// Reads an answer of a store or of who hands out credentials, whatever it is, for [`crate::hostile`].
#[cfg(any(test, fuzzing))]
pub(super) fn read_answer(text: &str) -> Result<()> {
    drop(uploads_of(text));
    drop((xml::first(text, "Code"), xml::first(text, "Message")));
    credentials::read_answer(text).map_err(|fault| Error::data(fault.to_string()))
}

fn absent_as_none<T>(found: Result<T, Fault>) -> Result<Option<T>, Fault> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(fault) if fault.is_absent() => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// A fault as an error: what was done where, what right it needed.
pub(super) fn error(act: Act, what: &str, name: &str, folder: &str, fault: Fault) -> Error {
    let hint = fault.hint(act.right(), folder);
    let denied = fault.is_about_rights();
    let kind: Kind = fault.kind();
    let right = if denied { format!(": access is denied, the right is `{}`", act.right()) } else { String::new() };
    let error = Error::new(kind, format!("{what} `{name}`{right}")).with_source(fault);
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_slowed_down_table_by_table() {
        for (key, prefix) in [
            ("w/demo.db/orders/bucket-0/data-1.parquet", "w/demo.db/orders/"),
            ("demo.db/orders/snapshot/snapshot-1", "demo.db/orders/"),
            ("a/b/c", "a/b"),
            ("a", ""),
        ] {
            assert_eq!(throttled_by(key), prefix);
        }
    }

    #[test]
    fn a_bucket_in_use_is_remembered_however_many_others_are_opened() {
        let own = BTreeMap::from([("s3.endpoint".to_owned(), "http://127.0.0.1:1".to_owned())]);
        let bucket = |name: &str| open(name, &own, &BTreeMap::new(), None).unwrap();
        let (used, left) = (bucket("used"), bucket("left"));
        for number in 0..2 * OPENED_MAX {
            bucket(&format!("other-{number}"));
            assert!(Arc::ptr_eq(&used, &bucket("used")), "{number}");
        }
        assert!(!Arc::ptr_eq(&left, &bucket("left")));
        assert!(OPENED.lock().unwrap().len() <= OPENED_MAX);
    }
}
