//! The keys `s3.*`: how object stores are reached from here, as options for `storage`, which knows what they mean.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Secret;
use super::values::{SECOND, Setter, Unit, choice, number, secret, time, words};

/// The keys `s3.*`. What is not given is found as AWS's own clients find it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3 {
    /// `path`, `host` or `auto`.
    pub style: &'static str,
    /// Where credentials come from.
    pub credentials: &'static str,
    /// Text that may be shown, in the order of the keys.
    pub words: [Option<String>; WORDS.len()],
    /// The secret key.
    pub secret_access_key: Option<Secret>,
    /// The token that goes with temporary keys.
    pub session_token: Option<Secret>,
    /// From a request to the end of its answer.
    pub request_timeout: Duration,
    /// For connecting.
    pub connect_timeout: Duration,
    /// Parts of one file that are on their way at once.
    pub parts_max: usize,
}

/// Keys that are any text and have no default.
pub(super) const WORDS: [&str; 11] = [
    "s3.endpoint",
    "s3.region",
    "s3.access_key_id",
    "s3.credentials_file",
    "s3.profile",
    "s3.web_identity_token_file",
    "s3.role_arn",
    "s3.sts_endpoint",
    "s3.encryption_algorithm",
    "s3.encryption_key",
    "s3.ca_file",
];

const STYLES: [(&str, &str); 3] = [("auto", "auto"), ("path", "path"), ("host", "host")];
const CREDENTIALS: [(&str, &str); 7] = [
    ("auto", "auto"),
    ("static", "static"),
    ("environment", "environment"),
    ("file", "file"),
    ("web_identity", "web_identity"),
    ("instance", "instance"),
    ("anonymous", "anonymous"),
];

impl Default for S3 {
    fn default() -> Self {
        Self {
            style: "auto",
            credentials: "auto",
            words: Default::default(),
            secret_access_key: None,
            session_token: None,
            request_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(5),
            parts_max: 4,
        }
    }
}

impl S3 {
    /// Every key.
    pub(super) fn keys(&mut self) -> Vec<(&'static str, Setter<'_>)> {
        let Self {
            style,
            credentials,
            words: texts,
            secret_access_key,
            session_token,
            request_timeout,
            connect_timeout,
            parts_max,
        } = self;
        let mut keys: Vec<(&'static str, Setter<'_>)> = vec![
            ("s3.style", choice(style, &STYLES)),
            ("s3.credentials", choice(credentials, &CREDENTIALS)),
            ("s3.secret_access_key", secret(secret_access_key)),
            ("s3.session_token", secret(session_token)),
            ("s3.request_timeout", time(request_timeout, SECOND..=600 * SECOND)),
            ("s3.connect_timeout", time(connect_timeout, 100..=60 * SECOND)),
            ("s3.parts_max", number(parts_max, Unit::Count, 1..=64)),
        ];
        keys.extend(WORDS.into_iter().zip(texts).map(|(key, place)| (key, words(place))));
        keys
    }

    /// What was given, for `storage`. At its default a key says nothing, so that the cluster's word stands.
    pub(super) fn options(&self) -> BTreeMap<String, String> {
        let defaults = Self::default().told();
        self.told().into_iter().filter(|(key, value)| defaults.get(key) != Some(value)).collect()
    }

    fn told(&self) -> BTreeMap<String, String> {
        let Self { style, credentials, words, secret_access_key, session_token, request_timeout, connect_timeout, parts_max } =
            self;
        let words = WORDS.into_iter().zip(words.iter().map(Option::as_deref));
        let secrets = [("s3.secret_access_key", secret_access_key), ("s3.session_token", session_token)];
        let choices = [("s3.style", *style), ("s3.credentials", *credentials)];
        let numbers = [
            ("s3.request_timeout", request_timeout.as_millis()),
            ("s3.connect_timeout", connect_timeout.as_millis()),
            ("s3.parts_max", *parts_max as u128),
        ];
        let words = words.chain(secrets.into_iter().map(|(key, secret)| (key, secret.as_ref().map(Secret::expose))));
        let words = words.chain(choices.into_iter().map(|(key, word)| (key, Some(word))));
        let words = words.filter_map(|(key, word)| Some((key.to_owned(), word?.to_owned())));
        let numbers = numbers.into_iter().map(|(key, number)| (key.to_owned(), number.to_string()));
        words.chain(numbers).collect()
    }
}
