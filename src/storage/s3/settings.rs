//! Options → how a bucket is reached. Owns the names: ours, Paimon's, Fluss's and Hadoop's for the same thing.
//!
//! `s3.X`, `s3a.X` and `fs.s3a.X` are one key, and so are spellings with `.`, `-` and `_`, as in Paimon's own file system. What only tunes
//! Hadoop is passed over; what would change what is stored, or who may read it, is honoured or refused by name.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::error::{Error, Result};

/// Text that is never shown.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Hidden(pub(super) String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden(…)")
    }
}

/// How a bucket is reached.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Settings {
    pub(super) bucket: String,
    /// With scheme, without bucket; `None` = AWS.
    pub(super) endpoint: Option<String>,
    pub(super) region: String,
    /// The bucket is a part of the host's name.
    pub(super) host_style: bool,
    pub(super) credentials: From,
    pub(super) encryption: Encryption,
    pub(super) requester_pays: bool,
    pub(super) ca_file: Option<String>,
    pub(super) request_timeout: Duration,
    pub(super) connect_timeout: Duration,
    /// Parts of one upload that are on their way at once.
    pub(super) parts_max: usize,
}

/// Where credentials come from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum From {
    /// Nobody asks for any.
    Anonymous,
    /// As given.
    Static { key_id: String, secret: Hidden, token: Option<Hidden> },
    /// A file that is read again: a profile of it, or JSON.
    File { path: String, profile: String },
    /// A token of the platform is exchanged (AssumeRoleWithWebIdentity).
    WebIdentity { token_file: String, role: String, session: String, endpoint: String },
    /// What a container is given.
    Container { url: String, token: Option<Hidden>, token_file: Option<String> },
    /// What a machine is given (IMDSv2).
    Instance { endpoint: String },
    /// What the cluster hands out, by a number of whom it is asked.
    Tokens(usize),
}

/// How objects are encrypted by the store.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Encryption {
    /// As the bucket says.
    #[default]
    Bucket,
    /// SSE-S3.
    Aes256,
    /// SSE-KMS, with this key.
    Kms(Option<String>),
}

/// Every key that means something, as it stands behind the prefix, dots only; several names of one thing stand together.
const NAMES: &[(&str, &[&str])] = &[
    ("endpoint", &["endpoint"]),
    ("region", &["region", "endpoint.region"]),
    ("style", &["style"]),
    ("path_style", &["path.style.access"]),
    ("ssl", &["connection.ssl.enabled"]),
    ("access_key_id", &["access.key.id", "access.key"]),
    ("secret_access_key", &["secret.access.key", "secret.key"]),
    ("session_token", &["session.token"]),
    ("credentials", &["credentials"]),
    ("provider", &["aws.credentials.provider"]),
    ("credentials_file", &["credentials.file"]),
    ("profile", &["profile"]),
    ("role_arn", &["role.arn"]),
    ("web_identity_token_file", &["web.identity.token.file"]),
    ("sts_endpoint", &["sts.endpoint"]),
    ("instance_endpoint", &["instance.endpoint"]),
    ("encryption", &["encryption.algorithm", "server.side.encryption.algorithm"]),
    ("encryption_key", &["encryption.key", "server.side.encryption.key"]),
    ("requester_pays", &["requester.pays.enabled"]),
    ("ca_file", &["ca.file"]),
    ("request_timeout", &["request.timeout"]),
    ("connect_timeout", &["connect.timeout"]),
    ("parts_max", &["parts.max"]),
];

/// Beginnings of keys that only tune Hadoop's client.
const TUNING: &[&str] = &[
    "analytics.",
    "attempts.",
    "block.",
    "bucket.probe",
    "buffer.",
    "change.detection.",
    "committer.",
    "connection.",
    "create.",
    "delete.",
    "directory.marker",
    "etag.",
    "executor.",
    "experimental.",
    "fast.upload",
    "impl",
    "input.",
    "list.version",
    "max.",
    "metadatastore.",
    "multiobjectdelete.",
    "multipart.",
    "optimized.",
    "paging.",
    "performance.",
    "prefetch.",
    "readahead.",
    "retry.",
    "s3guard.",
    "socket.",
    "threads.",
    "upload.",
    "user.agent.",
    "vectored.",
];

/// Classes of Hadoop and AWS that hand out credentials, and ours for the same.
const PROVIDERS: &[(&str, &str)] = &[
    ("SimpleAWSCredentialsProvider", "static"),
    ("TemporaryAWSCredentialsProvider", "static"),
    ("EnvironmentVariableCredentialsProvider", "environment"),
    ("ProfileCredentialsProvider", "file"),
    ("WebIdentityTokenCredentialsProvider", "web_identity"),
    ("WebIdentityTokenFileCredentialsProvider", "web_identity"),
    ("ContainerCredentialsProvider", "instance"),
    ("EC2ContainerCredentialsProviderWrapper", "instance"),
    ("IAMInstanceCredentialsProvider", "instance"),
    ("InstanceProfileCredentialsProvider", "instance"),
    ("AnonymousAWSCredentialsProvider", "anonymous"),
    ("AnonymousCredentialsProvider", "anonymous"),
    ("DefaultAWSCredentialsProviderChain", "auto"),
    ("DefaultCredentialsProvider", "auto"),
    // Fluss's own, which hands the cluster's tokens to Hadoop.
    ("DynamicTemporaryAWSCredentialsProvider", "auto"),
];

const SECRET: [&str; 2] = ["secret_access_key", "session_token"];
const CREDENTIALS: &str = "`auto`, `static`, `environment`, `file`, `web_identity`, `instance` or `anonymous`";

/// A value, with the key that it was given by.
struct Given<'a>(&'a str, &'a str);

/// Our name of a key of S3; `None` for keys of others.
pub(in crate::storage) fn is_key(key: &str) -> bool {
    behind(key).is_some()
}

fn behind(key: &str) -> Option<String> {
    // The longest first.
    let rest = ["fs.s3a.", "s3a.", "s3."].iter().find_map(|prefix| key.strip_prefix(prefix))?;
    Some(rest.replace(['-', '_'], "."))
}

/// Sorts one layer of options by our names.
fn sorted(options: &BTreeMap<String, String>) -> Result<BTreeMap<&'static str, Given<'_>>> {
    let mut found: BTreeMap<&'static str, Given<'_>> = BTreeMap::new();
    for (key, value) in options {
        let Some(rest) = behind(key) else { continue };
        let Some((name, _)) = NAMES.iter().find(|(_, spelled)| spelled.contains(&rest.as_str())) else {
            if TUNING.iter().any(|start| rest.starts_with(start)) {
                continue;
            }
            return Err(Error::unsupported(format!("option `{key}` of S3 is not supported")).with_hint(
                "config/tiering.toml, `[s3]`, has those that are; what is set for Java alone can stay in Java's own files",
            ));
        };
        if let Some(Given(before, other)) = found.insert(name, Given(key, value))
            && other != value
        {
            let values = if SECRET.contains(name) { String::new() } else { format!(": `{other}` and `{value}`") };
            return Err(Error::invalid(format!("`{before}` and `{key}` contradict each other{values}"))
                .with_hint("they are two names of one thing: leave one out"));
        }
    }
    Ok(found)
}

/// Both layers laid over each other, with the words of the environment beneath.
struct Layers<'a> {
    own: BTreeMap<&'static str, Given<'a>>,
    table: BTreeMap<&'static str, Given<'a>>,
    env: &'a dyn Fn(&str) -> Option<String>,
}

impl Layers<'_> {
    fn given(&self, name: &str) -> Option<(&str, &str)> {
        let Given(key, value) = self.own.get(name).or_else(|| self.table.get(name))?;
        Some((*key, *value)).filter(|(_, value)| !value.is_empty())
    }

    fn text(&self, name: &str) -> Option<String> {
        self.given(name).map(|(_, value)| value.to_owned())
    }

    fn env(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| (self.env)(name)).filter(|text| !text.is_empty())
    }

    fn truth(&self, name: &str) -> Result<Option<bool>> {
        let Some((key, value)) = self.given(name) else { return Ok(None) };
        match value.to_ascii_lowercase().as_str() {
            "true" => Ok(Some(true)),
            "false" => Ok(Some(false)),
            _ => Err(Error::invalid(format!("`{key}` is `{value}`, neither `true` nor `false`"))),
        }
    }

    fn time(&self, name: &str, default: Duration) -> Result<Duration> {
        let Some((key, value)) = self.given(name) else { return Ok(default) };
        let millis =
            value.parse().map_err(|_no_number| Error::invalid(format!("`{key}` is `{value}`, no number of milliseconds")))?;
        Ok(Duration::from_millis(millis))
    }
}

impl Settings {
    /// The settings of `bucket`: `own` are those of this process and win over `table`, which come from the cluster.
    ///
    /// # Errors
    /// `Invalid` and `Unsupported` name the option.
    pub(super) fn new(
        bucket: &str,
        own: &BTreeMap<String, String>,
        table: &BTreeMap<String, String>,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self> {
        let layers = Layers { own: sorted(own)?, table: sorted(table)?, env };
        let endpoint = layers.text("endpoint").or_else(|| layers.env(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]));
        let plain = layers.truth("ssl")? == Some(false);
        let endpoint = endpoint.map(|endpoint| {
            let endpoint = endpoint.trim_end_matches('/');
            if endpoint.contains("://") {
                endpoint.to_owned()
            } else {
                format!("{}://{endpoint}", if plain { "http" } else { "https" })
            }
        });
        if let Some(endpoint) = endpoint.as_deref().filter(|endpoint| !is_url(endpoint)) {
            // What may be a password is not repeated.
            let shown = if endpoint.contains('@') { "what is given" } else { endpoint };
            return Err(Error::invalid(format!("`{shown}` is no endpoint of S3: `https://HOST[:PORT]` or `http://HOST[:PORT]`")));
        }
        let region = layers
            .text("region")
            .or_else(|| layers.env(&["AWS_REGION", "AWS_DEFAULT_REGION"]))
            .or_else(|| endpoint.as_deref().and_then(region_of))
            .unwrap_or_else(|| "us-east-1".to_owned());
        // A name with dots does not fit the certificate's wildcard.
        let automatic = endpoint.is_none() && !bucket.contains('.');
        let host_style = match (layers.given("style"), layers.truth("path_style")?) {
            (Some((_, "path")), _) => false,
            (Some((_, "host")), _) => true,
            (Some((_, "auto")) | None, path) => path.map_or(automatic, |path| !path),
            (Some((key, other)), _) => {
                return Err(Error::invalid(format!("`{key}` is `{other}`, none of `auto`, `path` and `host`")));
            }
        };
        let parts_max = match layers.given("parts_max") {
            None => 4,
            Some((key, value)) => value
                .parse()
                .ok()
                .filter(|parts| (1..=64).contains(parts))
                .ok_or_else(|| Error::invalid(format!("`{key}` is `{value}`, not within 1 and 64")))?,
        };
        Ok(Self {
            bucket: bucket.to_owned(),
            credentials: credentials(&layers, &region)?,
            encryption: encryption(&layers)?,
            requester_pays: layers.truth("requester_pays")?.unwrap_or(false),
            ca_file: layers.text("ca_file"),
            request_timeout: layers.time("request_timeout", Duration::from_secs(60))?,
            connect_timeout: layers.time("connect_timeout", Duration::from_secs(5))?,
            endpoint,
            region,
            host_style,
            parts_max,
        })
    }

    /// Where objects of the bucket are, without a slash at the end.
    pub(super) fn bucket_url(&self) -> String {
        let endpoint = self.endpoint.clone().unwrap_or_else(|| format!("https://s3.{}.amazonaws.com", self.region));
        match endpoint.split_once("://") {
            Some((scheme, host)) if self.host_style => format!("{scheme}://{}.{host}", self.bucket),
            _ => format!("{endpoint}/{}", self.bucket),
        }
    }
}

fn is_url(endpoint: &str) -> bool {
    endpoint.split_once("://").is_some_and(|(scheme, rest)| {
        ["http", "https"].contains(&scheme) && !rest.is_empty() && !rest.contains(['@', '?', '#', ' '])
    })
}

/// The region in a host's name of AWS, such as `s3.eu-central-1.amazonaws.com`.
fn region_of(endpoint: &str) -> Option<String> {
    let host = endpoint.split_once("://")?.1;
    let region = host.strip_prefix("s3.")?.split_once(".amazonaws.com")?.0;
    Some(region.trim_start_matches("dualstack.").to_owned())
}

fn encryption(layers: &Layers<'_>) -> Result<Encryption> {
    let Some((key, value)) = layers.given("encryption") else { return Ok(Encryption::Bucket) };
    match value.to_ascii_uppercase().as_str() {
        "AES256" | "SSE-S3" => Ok(Encryption::Aes256),
        "SSE-KMS" | "AWS:KMS" => Ok(Encryption::Kms(layers.text("encryption_key"))),
        _ => Err(Error::unsupported(format!("`{key}` = `{value}` is not supported"))
            .with_hint("`AES256` and `SSE-KMS` are, or leave it to the bucket's own setting")),
    }
}

fn credentials(layers: &Layers<'_>, region: &str) -> Result<From> {
    let wanted = match (layers.given("credentials"), layers.given("provider")) {
        (Some((key, word)), _) => (key, word),
        (None, Some((key, classes))) => (key, provider(key, classes)?),
        (None, None) => ("s3.credentials", "auto"),
    };
    let lacks = |what: &str| {
        Error::invalid(format!("`{}` is `{}`, but {what}", wanted.0, wanted.1))
            .with_hint("config/tiering.toml, `[s3]`, tells what each kind of credentials needs")
    };
    match wanted.1 {
        "anonymous" => Ok(From::Anonymous),
        "static" => given(layers)?.ok_or_else(|| lacks("`s3.access_key_id` and `s3.secret_access_key` are not given")),
        "environment" => environment(layers).ok_or_else(|| lacks("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set")),
        "file" => file(layers).ok_or_else(|| lacks("no file is named, and there is no home folder")),
        "web_identity" => web_identity(layers, region).ok_or_else(|| {
            lacks("`s3.web_identity_token_file` and `s3.role_arn` (AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN) are not given")
        }),
        "instance" => Ok(container(layers).unwrap_or_else(|| instance(layers))),
        // In the order of AWS's own clients.
        "auto" => {
            let named = |name| layers.given(name).is_some();
            if let Some(found) = given(layers)? {
                return Ok(found);
            }
            let ours = match () {
                () if named("credentials_file") || named("profile") => file(layers),
                () if named("web_identity_token_file") => web_identity(layers, region),
                () => None,
            };
            let found = ours.or_else(|| environment(layers)).or_else(|| web_identity(layers, region));
            let found = found.or_else(|| {
                file(layers).filter(|file| matches!(file, From::File { path, .. } if std::path::Path::new(path).is_file()))
            });
            Ok(found.or_else(|| container(layers)).unwrap_or_else(|| instance(layers)))
        }
        other => Err(Error::invalid(format!("`{}` is `{other}`, not {CREDENTIALS}", wanted.0))),
    }
}

fn provider(key: &str, classes: &str) -> Result<&'static str> {
    let mut kinds = Vec::new();
    for class in classes.split(',').map(str::trim).filter(|class| !class.is_empty()) {
        let name = class.rsplit('.').next().unwrap_or(class);
        let (_, kind) = PROVIDERS.iter().find(|(known, _)| *known == name).ok_or_else(|| {
            Error::unsupported(format!("`{key}` names `{class}`, which is not supported"))
                .with_hint(format!("set `s3.credentials` here: {CREDENTIALS}"))
        })?;
        kinds.push(*kind);
    }
    kinds.dedup();
    Ok(if let [kind] = kinds.as_slice() { kind } else { "auto" })
}

fn given(layers: &Layers<'_>) -> Result<Option<From>> {
    // Of one layer: half a pair from here and half from there fits nothing.
    for layer in [&layers.own, &layers.table] {
        let text = |name: &str| layer.get(name).map(|Given(_, value)| (*value).to_owned()).filter(|text| !text.is_empty());
        match (text("access_key_id"), text("secret_access_key")) {
            (Some(key_id), Some(secret)) => {
                return Ok(Some(From::Static { key_id, secret: Hidden(secret), token: text("session_token").map(Hidden) }));
            }
            (None, None) => {}
            _ => return Err(Error::invalid("of `s3.access_key_id` and `s3.secret_access_key` only one is given")),
        }
    }
    Ok(None)
}

fn environment(layers: &Layers<'_>) -> Option<From> {
    Some(From::Static {
        key_id: layers.env(&["AWS_ACCESS_KEY_ID"])?,
        secret: Hidden(layers.env(&["AWS_SECRET_ACCESS_KEY"])?),
        token: layers.env(&["AWS_SESSION_TOKEN"]).map(Hidden),
    })
}

fn file(layers: &Layers<'_>) -> Option<From> {
    let path = layers
        .text("credentials_file")
        .or_else(|| layers.env(&["AWS_SHARED_CREDENTIALS_FILE"]))
        .or_else(|| Some(format!("{}/.aws/credentials", layers.env(&["HOME"])?)))?;
    let profile = layers.text("profile").or_else(|| layers.env(&["AWS_PROFILE"])).unwrap_or_else(|| "default".to_owned());
    Some(From::File { path, profile })
}

fn web_identity(layers: &Layers<'_>, region: &str) -> Option<From> {
    let endpoint = layers.text("sts_endpoint").or_else(|| layers.env(&["AWS_ENDPOINT_URL_STS"]));
    Some(From::WebIdentity {
        token_file: layers.text("web_identity_token_file").or_else(|| layers.env(&["AWS_WEB_IDENTITY_TOKEN_FILE"]))?,
        role: layers.text("role_arn").or_else(|| layers.env(&["AWS_ROLE_ARN"]))?,
        session: layers.env(&["AWS_ROLE_SESSION_NAME"]).unwrap_or_else(|| "lakeward".to_owned()),
        endpoint: endpoint.unwrap_or_else(|| format!("https://sts.{region}.amazonaws.com")),
    })
}

fn container(layers: &Layers<'_>) -> Option<From> {
    let url = layers.env(&["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"]).map(|path| format!("http://169.254.170.2{path}"));
    Some(From::Container {
        url: url.or_else(|| layers.env(&["AWS_CONTAINER_CREDENTIALS_FULL_URI"]))?,
        token: layers.env(&["AWS_CONTAINER_AUTHORIZATION_TOKEN"]).map(Hidden),
        token_file: layers.env(&["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"]),
    })
}

fn instance(layers: &Layers<'_>) -> From {
    let endpoint = layers.text("instance_endpoint").or_else(|| layers.env(&["AWS_EC2_METADATA_SERVICE_ENDPOINT"]));
    let endpoint = endpoint.unwrap_or_else(|| "http://169.254.169.254".to_owned());
    From::Instance { endpoint: endpoint.trim_end_matches('/').to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    fn options(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn of(own: &[(&str, &str)], table: &[(&str, &str)]) -> Result<Settings> {
        Settings::new("b", &options(own), &options(table), &|_| None)
    }

    #[test]
    fn what_paimon_fluss_and_hadoop_call_a_thing_is_the_same_thing() {
        for keys in [
            ["s3.endpoint", "s3.access-key", "s3.secret-key", "s3.path.style.access", "s3.endpoint.region"],
            ["s3.endpoint", "s3.access.key", "s3.secret.key", "s3.path-style-access", "s3.region"],
            ["fs.s3a.endpoint", "fs.s3a.access.key", "fs.s3a.secret.key", "fs.s3a.path.style.access", "fs.s3a.endpoint.region"],
            ["s3.endpoint", "s3.access_key_id", "s3.secret_access_key", "s3.path.style.access", "s3.region"],
        ] {
            let values = ["http://minio:9000/", "me", "hush", "true", "eu-x"];
            let pairs: Vec<_> = keys.into_iter().zip(values).collect();
            for settings in [of(&pairs, &[]).unwrap(), of(&[], &pairs).unwrap()] {
                assert_eq!(settings.bucket_url(), "http://minio:9000/b");
                assert_eq!(settings.region, "eu-x");
                let credentials = From::Static { key_id: "me".into(), secret: Hidden("hush".into()), token: None };
                assert_eq!(settings.credentials, credentials);
                assert!(!format!("{settings:?}").contains("hush"));
            }
        }
    }

    #[test]
    fn the_address_follows_from_endpoint_style_and_region() {
        for (pairs, url) in [
            (&[][..], "https://b.s3.us-east-1.amazonaws.com"),
            (&[("s3.region", "eu-central-1")], "https://b.s3.eu-central-1.amazonaws.com"),
            (&[("s3.style", "path")], "https://s3.us-east-1.amazonaws.com/b"),
            (&[("s3.endpoint", "minio:9000")], "https://minio:9000/b"),
            (&[("s3.endpoint", "minio:9000"), ("fs.s3a.connection.ssl.enabled", "false")], "http://minio:9000/b"),
            (&[("s3.endpoint", "https://minio:9000"), ("s3.path.style.access", "false")], "https://b.minio:9000"),
            (&[("s3.endpoint", "https://minio:9000"), ("s3.style", "host")], "https://b.minio:9000"),
        ] {
            assert_eq!(of(pairs, &[]).unwrap().bucket_url(), url, "{pairs:?}");
        }
        assert_eq!(of(&[("s3.endpoint", "https://s3.eu-west-2.amazonaws.com")], &[]).unwrap().region, "eu-west-2");
        let dotted = Settings::new("a.b", &options(&[]), &options(&[]), &|_| None).unwrap();
        assert_eq!(dotted.bucket_url(), "https://s3.us-east-1.amazonaws.com/a.b");
    }

    #[test]
    fn our_own_settings_win_over_what_the_cluster_says_and_the_environment_comes_last() {
        let table = options(&[("s3.endpoint", "http://inside:1"), ("s3.access-key", "theirs"), ("s3.secret-key", "x")]);
        let env = |name: &str| match name {
            "AWS_REGION" => Some("eu-env".to_owned()),
            "AWS_ENDPOINT_URL" => Some("http://env:1".to_owned()),
            "AWS_ACCESS_KEY_ID" | "AWS_SECRET_ACCESS_KEY" => Some("env".to_owned()),
            _ => None,
        };
        let found = Settings::new("b", &options(&[("s3.endpoint", "http://outside:1")]), &table, &env).unwrap();
        assert_eq!((found.bucket_url().as_str(), found.region.as_str()), ("http://outside:1/b", "eu-env"));
        assert!(matches!(found.credentials, From::Static { key_id, .. } if key_id == "theirs"));
        let found = Settings::new("b", &options(&[]), &options(&[]), &env).unwrap();
        assert_eq!(found.bucket_url(), "http://env:1/b");
        assert!(matches!(found.credentials, From::Static { key_id, .. } if key_id == "env"));
    }

    #[test]
    fn what_is_unknown_contradictory_or_half_given_is_named_and_no_secret_is() {
        for (pairs, kind, words) in [
            (&[("fs.s3a.shoe.size", "44")][..], Kind::Unsupported, "`fs.s3a.shoe.size`"),
            (&[("fs.s3a.bucket.b.endpoint", "x")], Kind::Unsupported, "`fs.s3a.bucket.b.endpoint`"),
            (&[("fs.s3a.assumed.role.arn", "x")], Kind::Unsupported, "`fs.s3a.assumed.role.arn`"),
            (&[("s3.endpoint", "http://a"), ("fs.s3a.endpoint", "http://b")], Kind::Invalid, "`http://b` and `http://a`"),
            (
                &[("s3.secret-key", "hush"), ("fs.s3a.secret.key", "hush2")],
                Kind::Invalid,
                "`fs.s3a.secret.key` and `s3.secret-key`",
            ),
            (&[("s3.access-key", "me")], Kind::Invalid, "only one is given"),
            (&[("s3.endpoint", "ftp://a")], Kind::Invalid, "`ftp://a`"),
            (&[("s3.endpoint", "http://me:hush@a")], Kind::Invalid, "`what is given` is no endpoint"),
            (&[("s3.style", "odd")], Kind::Invalid, "`s3.style` is `odd`"),
            (&[("s3.path.style.access", "maybe")], Kind::Invalid, "`maybe`"),
            (&[("s3.credentials", "wish")], Kind::Invalid, "`wish`"),
            (&[("s3.credentials", "static")], Kind::Invalid, "`s3.access_key_id`"),
            (&[("s3.credentials", "environment")], Kind::Invalid, "AWS_ACCESS_KEY_ID"),
            (&[("s3.credentials", "web_identity")], Kind::Invalid, "AWS_WEB_IDENTITY_TOKEN_FILE"),
            (&[("fs.s3a.aws.credentials.provider", "com.me.Mine")], Kind::Unsupported, "`com.me.Mine`"),
            (&[("fs.s3a.encryption.algorithm", "SSE-C")], Kind::Unsupported, "`SSE-C`"),
        ] {
            let error = of(pairs, &[]).unwrap_err();
            assert_eq!(error.kind(), kind, "{pairs:?}");
            assert!(error.chain().contains(words), "{}", error.chain());
        }
        let error = of(&[("s3.secret-key", "hush"), ("fs.s3a.secret.key", "hush2")], &[]).unwrap_err();
        assert!(!error.chain().contains("hush"), "{}", error.chain());
    }

    #[test]
    fn what_only_tunes_hadoop_and_what_is_not_of_s3_is_passed_over() {
        let pairs = [
            ("fs.s3a.connection.maximum", "9"),
            ("fs.s3a.threads.max", "9"),
            ("s3.fast.upload", "true"),
            ("uri", "x"),
            ("fs.oss.endpoint", "y"),
        ];
        assert_eq!(of(&pairs, &pairs).unwrap(), of(&[], &[]).unwrap());
    }

    #[test]
    fn where_credentials_come_from_is_told_or_found_in_the_order_of_awss_own_clients() {
        let simple = [("fs.s3a.aws.credentials.provider", "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider")];
        assert_eq!(of(&simple, &[]).unwrap().credentials, From::Anonymous);
        assert!(matches!(of(&[], &[]).unwrap().credentials, From::Instance { .. }));
        let file = of(&[("s3.credentials_file", "/c"), ("s3.profile", "p")], &[("s3.credentials", "auto")]).unwrap();
        assert_eq!(file.credentials, From::File { path: "/c".into(), profile: "p".into() });
        let env = |name: &str| match name {
            "AWS_WEB_IDENTITY_TOKEN_FILE" => Some("/t".to_owned()),
            "AWS_ROLE_ARN" => Some("arn".to_owned()),
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI" => Some("/x".to_owned()),
            _ => None,
        };
        let found = Settings::new("b", &options(&[("s3.region", "r")]), &options(&[]), &env).unwrap();
        assert!(matches!(&found.credentials, From::WebIdentity { endpoint, .. } if endpoint == "https://sts.r.amazonaws.com"));
        let found = Settings::new("b", &options(&[("s3.credentials", "instance")]), &options(&[]), &env).unwrap();
        assert!(matches!(&found.credentials, From::Container { url, .. } if url == "http://169.254.170.2/x"));
    }
}
