//! Fluss's own keys: what each means here (F8.3), so that a Flink job's arguments can be pasted.
//!
//! Durations and sizes of these keys are read as Fluss reads them. A key without meaning here is told of, a key that would change what is
//! written is refused; both say why.

use super::given::Raw;
use super::keys::nearest;
use super::secret::Secret;
use super::units;

/// What became of a key and its value.
pub(super) enum Translated {
    /// No key of Fluss.
    Ours(Raw),
    /// The same as a key of ours.
    Key(&'static str, Raw),
    /// An option of the lake catalog.
    Lake(String, Secret),
    /// Says what is so anyway.
    Fine,
    /// Without meaning here, and why.
    Notice(String),
    /// Refused, and why.
    Fault(String),
}

/// What a key of Fluss means.
enum Meaning {
    /// Text of our key.
    Is(&'static str),
    /// Duration of our key.
    Time(&'static str),
    /// Size of our key.
    Bytes(&'static str),
    /// Only this value, else refused.
    Only(&'static str, &'static str),
    /// Nothing here.
    Nothing(&'static str),
    /// Not doable.
    Refused(&'static str),
    /// An option of object stores under its own name.
    Store,
}

const READS: &str = "reading has its own bounds, `[read]` and `memory.limit`";
const STATES: &str = "states of primary-key tables are asked for in portions of `read.bucket_bytes`";
const WRITES: &str = "it belongs to other clients of Fluss";
const REMOTE: &str = "segments in remote storage are read in ranges within `memory.limit`";

/// Key, where `*` stands for anything behind, and its meaning.
const KEYS: &[(&str, Meaning)] = &[
    ("fluss.bootstrap.servers", Meaning::Is("cluster.servers")),
    ("fluss.client.security.protocol", Meaning::Is("security.protocol")),
    ("fluss.client.security.sasl.mechanism", Meaning::Is("security.sasl.mechanism")),
    ("fluss.client.security.sasl.username", Meaning::Is("security.sasl.username")),
    ("fluss.client.security.sasl.password", Meaning::Is("security.sasl.password")),
    (
        "fluss.client.security.sasl.jaas.config",
        Meaning::Refused("give user and password apart, as `security.sasl.username` and `security.sasl.password`"),
    ),
    ("fluss.client.security.enable-plugin-discovery", Meaning::Nothing("there are no plugins here")),
    ("fluss.client.connect-timeout", Meaning::Time("cluster.connect_timeout")),
    ("fluss.client.request-timeout", Meaning::Time("cluster.request_timeout")),
    ("fluss.client.scanner.log.fetch.max-bytes-for-bucket", Meaning::Bytes("read.bucket_bytes")),
    ("fluss.client.scanner.log.fetch.wait-max-time", Meaning::Time("read.wait")),
    ("fluss.client.scanner.log.fetch.max-bytes", Meaning::Nothing(READS)),
    ("fluss.client.scanner.log.fetch.min-bytes", Meaning::Nothing(READS)),
    ("fluss.client.scanner.log.max-poll-records", Meaning::Nothing(READS)),
    (
        "fluss.client.scanner.log.read-preference",
        Meaning::Nothing("what the servers still have is read from them, the rest from remote storage"),
    ),
    ("fluss.client.scanner.log.check-crc", Meaning::Only("true", "checksums are always checked")),
    ("fluss.client.scanner.io.tmpdir", Meaning::Nothing("nothing is kept on the local disk")),
    ("fluss.client.scanner.remote-log.prefetch-num", Meaning::Nothing(REMOTE)),
    ("fluss.client.remote-file.download-thread-num", Meaning::Nothing(REMOTE)),
    ("fluss.client.scanner.kv.*", Meaning::Nothing(STATES)),
    ("fluss.client.filesystem.*", Meaning::Nothing("tokens of the cluster are renewed at 75 % of their life")),
    ("fluss.client.writer.*", Meaning::Nothing(WRITES)),
    ("fluss.client.lookup.*", Meaning::Nothing(WRITES)),
    ("fluss.client.metrics.*", Meaning::Nothing("metrics are Lakeward's own")),
    ("fluss.client.id", Meaning::Nothing("the servers are told `lakeward` and its version")),
    ("fluss.netty.*", Meaning::Nothing("there is no Netty here")),
    ("fluss.tiering.poll.table.interval", Meaning::Time("poll.interval")),
    ("datalake.format", Meaning::Only("paimon", "only Paimon is written")),
    ("datalake.enabled", Meaning::Only("true", "tiering is what this is for")),
    ("datalake.paimon.metastore", Meaning::Only("filesystem", "other metastores are not supported yet")),
    ("datalake.iceberg.*", Meaning::Nothing("only Paimon is written")),
    ("datalake.lance.*", Meaning::Nothing("only Paimon is written")),
    ("datalake.hudi.*", Meaning::Nothing("only Paimon is written")),
    (
        "lake.tiering.auto-expire-snapshot",
        Meaning::Only("false", "Lakeward does not expire snapshots; let Paimon's `expire_snapshots` do it"),
    ),
    ("s3.access-key", Meaning::Is("s3.access_key_id")),
    ("s3.access.key", Meaning::Is("s3.access_key_id")),
    ("s3.secret-key", Meaning::Is("s3.secret_access_key")),
    ("s3.secret.key", Meaning::Is("s3.secret_access_key")),
    ("s3.session-token", Meaning::Is("s3.session_token")),
    ("s3.endpoint.region", Meaning::Is("s3.region")),
    ("s3.path.style.access", Meaning::Store),
    ("s3.path-style-access", Meaning::Store),
    ("s3.connection.ssl.enabled", Meaning::Store),
    ("s3.aws.credentials.provider", Meaning::Store),
    ("s3a.*", Meaning::Store),
    ("fs.s3a.*", Meaning::Store),
    ("lake.tiering.io.tmp.dirs", Meaning::Nothing("nothing is spilled to the local disk")),
];

const LAKE_PREFIX: &str = "datalake.paimon.";

/// Looks a key up among those of Fluss.
pub(super) fn translate(key: &str, raw: Raw) -> Translated {
    let pasted = ["fluss.", "datalake.", "lake.tiering.", "fs.", "s3a."].iter().any(|prefix| key.starts_with(prefix));
    if !pasted && !KEYS.iter().any(|(name, _)| name.starts_with("s3.") && *name == key) {
        return Translated::Ours(raw);
    }
    let found = KEYS.iter().find(|(name, _)| match name.strip_suffix('*') {
        Some(prefix) => key.starts_with(prefix),
        None => key == *name,
    });
    let text = match raw.into_plain() {
        Ok(text) => text,
        Err(fault) => return Translated::Fault(fault),
    };
    // A provider of Fluss would put the value in; here that is the environment or a file.
    if text.contains("${") {
        return Translated::Fault(
            "has a placeholder `${…}`, which only Fluss resolves: use the environment or `security.sasl.password_file`".to_owned(),
        );
    }
    let ours = |key: &'static str, value: Result<String, String>| {
        value.map_or_else(Translated::Fault, |text| Translated::Key(key, Raw::Plain(text)))
    };
    match found.map(|(_, meaning)| meaning) {
        Some(Meaning::Is(key)) => Translated::Key(key, Raw::Plain(text)),
        Some(Meaning::Time(key)) => ours(key, units::fluss_millis(&text).map(|millis| format!("{millis}ms"))),
        Some(Meaning::Bytes(key)) => ours(key, units::fluss_bytes(&text).map(|bytes| format!("{bytes}B"))),
        Some(Meaning::Only(value, _)) if value.eq_ignore_ascii_case(text.trim()) => Translated::Fine,
        Some(Meaning::Only(value, why)) => Translated::Fault(format!("can only be `{value}` here: {why}")),
        Some(Meaning::Nothing(why)) => Translated::Notice(format!("has no meaning here: {why}")),
        Some(Meaning::Store) => Translated::Lake(key.to_owned(), Secret::new(text)),
        Some(Meaning::Refused(why)) => Translated::Fault(format!("is not supported: {why}")),
        None => match key.strip_prefix(LAKE_PREFIX) {
            Some(option) => Translated::Lake(option.to_owned(), Secret::new(text)),
            None => {
                let known: Vec<&'static str> = KEYS.iter().map(|(name, _)| *name).collect();
                Translated::Fault(format!("unknown key; the nearest is `{}`", nearest(key, &known, '.')))
            }
        },
    }
}
