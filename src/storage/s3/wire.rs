//! One HTTP request and what became of it: answers that refuse, answers that never came, and nothing secret in either.
//!
//! Every request of `object_store` goes through [`Wire`], which turns whatever is no success into a [`Fault`] that the client
//! never repeats by itself: a repeated create could hide that the first one was ours (P8.3).

use async_trait::async_trait;
use futures::StreamExt;
use http_body_util::{BodyExt, Limited};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService, ReqwestConnector,
};
use object_store::{Certificate, ClientOptions};

use super::settings::Settings;
use super::xml;
use crate::error::{Error, Kind, Result};

/// Bytes of an answer that refuses that are looked at.
const BODY_MAX: usize = 64 << 10;
/// Bytes of an answer that is read as text: a page of a list has a thousand entries.
const TEXT_MAX: usize = 16 << 20;
/// Bytes of an answer that is no range of an object: a page of a list has a thousand names.
const ANSWER_MAX: usize = 64 << 20;
/// Characters of its words that are shown.
const WORDS_MAX: usize = 300;

/// Codes of credentials that have run out, and of those that the store does not know.
const ENDED: [&str; 4] = ["ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"];
const FOREIGN: [&str; 2] = ["InvalidToken", "InvalidAccessKeyId"];

/// How a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::storage) enum Fault {
    /// The server's answer.
    #[error("the store answers {status}{}{code}{}{message}", if code.is_empty() { "" } else { " " }, if message.is_empty() { "" } else { ": " })]
    Refused {
        /// HTTP status.
        status: u16,
        /// S3's code; empty where there is no body (HEAD).
        code: String,
        /// Its words.
        message: String,
    },
    /// Nothing came, or not all of it: whether it was done is not known.
    #[error("no answer: {0}")]
    Lost(String),
    /// Nothing was sent: there are no credentials.
    #[error("{message}")]
    Credentials {
        /// Whether they can be had later.
        later: bool,
        /// Why.
        message: String,
    },
    /// An answer that can't be.
    #[error("{0}")]
    Odd(String),
}

impl Fault {
    /// What is behind an error of `object_store`.
    pub(super) fn of(error: &object_store::Error) -> Self {
        let chain = std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |error| error.source());
        let mut lost = None;
        for link in chain {
            if let Some(fault) = link.downcast_ref::<Self>() {
                return fault.clone();
            }
            if link.is::<HttpError>() {
                lost = Some(words(link));
            }
        }
        match lost {
            Some(words) => Self::Lost(words),
            None => {
                let text = cut(&error.to_string());
                // A success with an error in its body: CompleteMultipartUpload answers so.
                let failed = ["InternalError", "SlowDown"].into_iter().find(|code| text.contains(code));
                failed.map_or(Self::Odd(text), |code| Self::Refused {
                    status: 503,
                    code: code.to_owned(),
                    message: "in the body of a success".to_owned(),
                })
            }
        }
    }

    const fn status(&self) -> u16 {
        match self {
            Self::Refused { status, .. } => *status,
            Self::Lost(_) | Self::Credentials { .. } | Self::Odd(_) => 0,
        }
    }

    fn code(&self) -> &str {
        match self {
            Self::Refused { code, .. } => code,
            Self::Lost(_) | Self::Credentials { .. } | Self::Odd(_) => "",
        }
    }

    /// Whether the same request may do better later. Whether it was done is not known.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self, Self::Lost(_)) || matches!(self.status(), 408 | 429 | 500 | 502..=599)
    }

    /// Whether the store asks for fewer requests.
    pub(super) fn is_slow_down(&self) -> bool {
        matches!(self.status(), 429 | 503) || self.code() == "SlowDown"
    }

    /// Whether something is there already: 412, and what some stores say instead. After 409 nothing may be there yet (P8.3).
    pub(super) fn is_there(&self) -> bool {
        matches!(self.status(), 304 | 409 | 412)
    }

    /// Whether the object, and not its bucket, is not there.
    pub(super) fn is_absent(&self) -> bool {
        self.status() == 404 && self.code() != "NoSuchBucket"
    }

    /// Whether other credentials may help: those are too old, or may be (HEAD has no words).
    pub(super) fn may_be_expired(&self) -> bool {
        ENDED.contains(&self.code()) || FOREIGN.contains(&self.code()) || self.is_wordless()
    }

    /// Whether it was refused without saying why, as a HEAD is.
    pub(super) fn is_wordless(&self) -> bool {
        self.code().is_empty() && matches!(self.status(), 400 | 401 | 403)
    }

    /// Whether the store knows who asks, and does not let them.
    pub(super) fn is_about_rights(&self) -> bool {
        const OTHERS: [&str; 2] = ["SignatureDoesNotMatch", "RequestTimeTooSkewed"];
        let code = self.code();
        matches!(self.status(), 401 | 403) && !OTHERS.contains(&code) && !ENDED.contains(&code) && !FOREIGN.contains(&code)
    }

    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Lost(_) => Kind::Unavailable,
            Self::Credentials { later, .. } if *later => Kind::Unavailable,
            Self::Credentials { .. } => Kind::Invalid,
            Self::Odd(_) => Kind::Unavailable,
            Self::Refused { status, .. } => match status {
                501 => Kind::Unsupported,
                408 | 429 | 500..=599 => Kind::Unavailable,
                // Somebody else's request is under way.
                409 => Kind::Unavailable,
                _ => Kind::Invalid,
            },
        }
    }

    /// What would help, where `right` on `place` was needed.
    pub(super) fn hint(&self, right: &str, place: &str) -> Option<String> {
        let (status, code) = match self {
            Self::Refused { status, code, .. } => (status, code),
            Self::Lost(words) if words.contains("certificate") => {
                return Some("if the store has a certificate of its own, name it in `s3.ca_file`".to_owned());
            }
            Self::Lost(words) if words.contains("(Connect)") => {
                return Some("is the store up, and `s3.endpoint` its address as seen from here?".to_owned());
            }
            Self::Credentials { .. } => {
                return Some(
                    "`s3.credentials` says where credentials come from; keys of your own are `s3.access_key_id` and `s3.secret_access_key`"
                        .to_owned(),
                );
            }
            Self::Lost(_) | Self::Odd(_) => return None,
        };
        Some(match (status, code.as_str()) {
            (_, "NoSuchBucket") => "make the bucket, or see the warehouse's URL".to_owned(),
            (_, "RequestTimeTooSkewed") => "the clock of this machine is wrong: set it".to_owned(),
            (_, "SignatureDoesNotMatch") => {
                "the secret is not that of the key: see `s3.secret_access_key`, or where the credentials come from".to_owned()
            }
            (_, code) if FOREIGN.contains(&code) => {
                "the store does not know these keys: see `s3.access_key_id` and `s3.session_token`, or where the credentials come from"
                    .to_owned()
            }
            (_, code) if ENDED.contains(&code) => {
                "the credentials have run out, and newer ones were not to be had: see where they come from (`s3.credentials`)"
                    .to_owned()
            }
            (301 | 307 | 308, _)
            | (400, "AuthorizationHeaderMalformed" | "PermanentRedirect" | "IllegalLocationConstraintException") => {
                "the bucket is in another region: set `s3.region` (and `s3.endpoint`, if it names one)".to_owned()
            }
            (401 | 403, _) if right == "s3:GetObject" => format!(
                "the credentials need the right `{right}` on `{place}*`, and `s3:ListBucket` on the bucket: without that, S3 answers 403 for an object that is not there"
            ),
            (401 | 403, _) => format!("the credentials need the right `{right}` on `{place}*`"),
            (501, _) => "the store does not know this request; Lakeward needs conditional writes (`If-None-Match: *`)".to_owned(),
            _ => return None,
        })
    }
}

/// An HTTP client as the settings say.
///
/// # Errors
/// `Invalid` when the file of certificates can't be read.
pub(super) fn client(settings: &Settings) -> Result<(HttpClient, ClientOptions)> {
    install_tls();
    let mut options = ClientOptions::new()
        .with_allow_http(true)
        .with_timeout(settings.request_timeout)
        .with_connect_timeout(settings.connect_timeout);
    if let Some(file) = &settings.ca_file {
        let wrong = |source: &dyn std::fmt::Display| Error::invalid(format!("certificates in `{file}` can't be read: {source}"));
        let pem = std::fs::read(file).map_err(|source| wrong(&source))?;
        for certificate in Certificate::from_pem_bundle(&pem).map_err(|source| wrong(&source))? {
            options = options.with_root_certificate(certificate);
        }
    }
    Ok((Connector.connect(&options).map_err(|source| Error::invalid("make an HTTP client").with_source(source))?, options))
}

/// The text of an answer.
pub(super) async fn text(answer: HttpResponse) -> Result<String, HttpError> {
    let (mut bytes, mut stream) = (Vec::new(), answer.into_body().bytes_stream());
    while let Some(more) = stream.next().await {
        bytes.extend_from_slice(&more?);
        if bytes.len() > TEXT_MAX {
            return Err(failed(Fault::Odd(format!("the answer has more than {TEXT_MAX} bytes"))));
        }
    }
    String::from_utf8(bytes).map_err(|_not_shown| failed(Fault::Odd("the answer is no UTF-8".to_owned())))
}

/// TLS by ring; whoever installed another before is left alone.
fn install_tls() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}

/// Clients whose failures are [`Fault`]s.
#[derive(Debug)]
pub(super) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Wire(ReqwestConnector::default().connect(options)?)))
    }
}

#[derive(Debug)]
struct Wire(HttpClient);

#[async_trait]
impl HttpService for Wire {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let bytes_max = request.headers().get("range").and_then(|range| range.to_str().ok()).and_then(range_bytes);
        let answer = self.0.execute(request).await.map_err(|error| failed(Fault::Lost(words(&error))))?;
        if answer.status().is_success() {
            // What is longer than it can be is not read to its end.
            let too_long = || failed(Fault::Odd("the store answers more than was asked for".to_owned()));
            let bounded = |body| {
                Limited::new(body, bytes_max.unwrap_or(ANSWER_MAX)).map_err(move |error| {
                    error.downcast::<HttpError>().map_or_else(|_limit| too_long(), |lost| failed(Fault::Lost(words(&*lost))))
                })
            };
            return Ok(answer.map(|body| HttpResponseBody::new(bounded(body))));
        }
        let status = answer.status().as_u16();
        let mut body = Vec::new();
        let mut stream = answer.into_body().bytes_stream();
        while let Some(Ok(more)) = stream.next().await {
            body.extend_from_slice(&more);
            if body.len() > BODY_MAX {
                break;
            }
        }
        let body = String::from_utf8_lossy(&body);
        // Of the body only these two: others repeat what was sent, session token included.
        let text = |tag: &str| xml::first(&body, tag).map(|text| cut(&text)).unwrap_or_default();
        Err(failed(Fault::Refused { status, code: text("Code"), message: text("Message") }))
    }
}

/// Bytes of a range such as `bytes=0-9`.
fn range_bytes(range: &str) -> Option<usize> {
    let (start, end) = range.strip_prefix("bytes=")?.split_once('-')?;
    let (start, end): (u64, u64) = (start.parse().ok()?, end.parse().ok()?);
    usize::try_from(end.checked_sub(start)?.checked_add(1)?).ok()
}

/// `Unknown` is the kind that is never repeated.
fn failed(fault: Fault) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, fault)
}

/// An error and what is behind it, in one line.
fn words(error: &(dyn std::error::Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    let mut words: Vec<String> = chain.map(ToString::to_string).collect();
    words.dedup_by(|next, before| before.contains(next.as_str()));
    cut(&words.join(": "))
}

fn cut(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(WORDS_MAX).collect()
}
