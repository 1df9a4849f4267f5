//! Option values of a table (P appendix A): what a writer honours, and by name what it refuses.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use super::meta::TableSchema;
use super::stats::StatsMode;
use crate::error::{Error, Result};
use crate::model::Field;

/// Codec of data files (`file.compression`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compression {
    /// `none`.
    None,
    /// `snappy`.
    Snappy,
    /// `lz4`: raw LZ4 blocks.
    Lz4,
    /// `zstd` of this level.
    Zstd(i32),
}

impl Compression {
    /// Name in file names (`file.suffix.include.compression`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd(_) => "zstd",
        }
    }
}

/// Codec of manifests and lists (`manifest.compression`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ManifestCompression {
    /// Avro codec `null`.
    None,
    /// Avro codec `zstandard` of this level.
    Zstd(i32),
}

/// The options of a table that writing and committing heed.
#[derive(Debug, Clone, PartialEq)]
pub struct TableOptions {
    /// `bucket`: at least 1, or −1 = bucket-unaware.
    pub bucket: i32,
    /// `bucket-key`, in order; empty without.
    pub bucket_key: Vec<String>,
    /// `file.compression` and its level.
    pub compression: Compression,
    /// `target-file-size` in bytes.
    pub target_file_bytes: u64,
    /// `target-file-row-num`.
    pub target_file_rows: u64,
    /// `data-file.prefix`.
    pub data_file_prefix: String,
    /// `changelog-file.prefix`.
    pub changelog_file_prefix: String,
    /// `changelog-producer` = `input` on a primary-key table: the writer writes changelog files (P9.3).
    pub changelog_input: bool,
    /// `data-file.thin-mode` on a primary-key table: files do not repeat the key (P7.3).
    pub thin: bool,
    /// `parquet` or, with `file.suffix.include.compression`, for example `zstd.parquet`.
    pub data_file_extension: String,
    /// `metadata.stats-dense-store`.
    pub stats_dense: bool,
    stats_mode: StatsMode,
    stats_keep_first: Option<usize>,
    stats_fields: BTreeMap<String, StatsMode>,
    /// `manifest.compression`.
    pub manifest_compression: ManifestCompression,
    /// `manifest.target-file-size` in bytes.
    pub manifest_target_bytes: u64,
    /// `manifest.merge-min-count`.
    pub manifest_merge_min: usize,
    /// `manifest.full-compaction-threshold-size` in bytes.
    pub manifest_full_bytes: u64,
    /// `commit.max-retries`.
    pub commit_retries: u32,
    /// `commit.timeout`.
    pub commit_timeout: Option<Duration>,
    /// `commit.min-retry-wait`.
    pub commit_wait_min: Duration,
    /// `commit.max-retry-wait`.
    pub commit_wait_max: Duration,
    /// `consumer.expiration-time`, at least 1 h.
    pub consumer_expiration: Option<Duration>,
}

/// Below this a pin could expire before it is written again (commit.md step 3).
const CONSUMER_EXPIRATION_MIN: Duration = Duration::from_secs(3600);

impl TableOptions {
    /// Reads the options of `schema`. Options that do not concern a writer are ignored.
    ///
    /// # Errors
    /// `Unsupported` names the option whose value this build can't follow, `Invalid` one whose value is no value.
    ///
    /// Source: P appendix A, P2.4, P6.2, P6.3; commit.md step 3.
    pub fn parse(schema: &TableSchema) -> Result<Self> {
        let options = Options(schema);
        options.refuse_unsupported()?;
        let has_key = !schema.primary_keys.is_empty();
        let bucket = options.number("bucket", -1_i32)?;
        let bucket_key: Vec<String> =
            options.text("bucket-key").map(|text| text.split(',').map(str::to_owned).collect()).unwrap_or_default();
        match bucket {
            1.. if !has_key && bucket_key.is_empty() => {
                return Err(Error::invalid(format!("option `bucket` = `{bucket}` needs a `bucket-key`")));
            }
            -1 if !bucket_key.is_empty() => return Err(Error::invalid("option `bucket-key` needs a positive `bucket`")),
            1.. => {}
            -1 if !has_key => {}
            -1 => return Err(Error::unsupported("option `bucket` = `-1` on a primary-key table (dynamic buckets)")),
            -2 => return Err(Error::unsupported("option `bucket` = `-2` (postpone)")),
            _ => return Err(Error::invalid(format!("option `bucket` = `{bucket}`"))),
        }
        for name in &bucket_key {
            if schema.field(name).is_none() || schema.partition_keys.contains(name) {
                return Err(Error::invalid(format!("option `bucket-key` names `{name}`, which is no column that it could name")));
            }
        }
        let level = options.number("file.compression.zstd-level", 1_i32)?;
        if !(-7..=22).contains(&level) {
            return Err(Error::invalid(format!("option `file.compression.zstd-level` = `{level}`")));
        }
        let compression = options.compression(level)?;
        let extension = match options.boolean("file.suffix.include.compression", false)? {
            true => format!("{}.parquet", compression.name()),
            false => "parquet".to_owned(),
        };
        let mut stats_fields = BTreeMap::new();
        for field in &schema.fields {
            let key = format!("fields.{}.stats-mode", field.name);
            if options.text(&key).is_some() {
                stats_fields.insert(field.name.clone(), options.stats_mode(&key)?);
            }
        }
        let wait_min = options.duration("commit.min-retry-wait")?.unwrap_or(Duration::from_millis(10));
        Ok(Self {
            bucket,
            bucket_key,
            compression,
            target_file_bytes: options.size("target-file-size", if has_key { 128 << 20 } else { 256 << 20 })?,
            target_file_rows: options.number("target-file-row-num", u64::MAX)?.max(1),
            data_file_prefix: options.file_prefix("data-file.prefix", "data-")?,
            changelog_file_prefix: options.file_prefix("changelog-file.prefix", "changelog-")?,
            changelog_input: has_key && options.changelog_input()?,
            thin: has_key && options.boolean("data-file.thin-mode", false)?,
            data_file_extension: extension,
            stats_dense: options.boolean("metadata.stats-dense-store", true)?,
            stats_mode: options.stats_mode("metadata.stats-mode")?,
            stats_keep_first: usize::try_from(options.number("metadata.stats-keep-first-n-columns", -1_i64)?).ok(),
            stats_fields,
            manifest_compression: options.manifest_compression(level)?,
            manifest_target_bytes: options.size("manifest.target-file-size", 8 << 20)?,
            manifest_merge_min: options.number("manifest.merge-min-count", 30_usize)?,
            manifest_full_bytes: options.size("manifest.full-compaction-threshold-size", 16 << 20)?,
            commit_retries: options.number("commit.max-retries", 10_u32)?,
            commit_timeout: options.duration("commit.timeout")?,
            commit_wait_min: wait_min,
            commit_wait_max: options.duration("commit.max-retry-wait")?.unwrap_or(Duration::from_secs(10)).max(wait_min),
            consumer_expiration: options.consumer_expiration()?,
        })
    }

    /// Statistics mode of each column of a file, in schema order.
    #[must_use]
    pub fn stats_modes(&self, fields: &[Field]) -> Vec<StatsMode> {
        let keep = self.stats_keep_first.unwrap_or(usize::MAX);
        let mode_of = |(index, field): (usize, &Field)| match self.stats_fields.get(&field.name) {
            Some(mode) => *mode,
            None if index < keep => self.stats_mode,
            None => StatsMode::None,
        };
        fields.iter().enumerate().map(mode_of).collect()
    }
}

/// Options with which a writer that does not know them would spoil the table: name, the one value that we follow.
const ONLY: &[(&str, &str)] = &[
    ("type", "table"),
    ("branch", "main"),
    ("file.format", "parquet"),
    ("manifest.format", "avro"),
    ("bucket-function.type", "default"),
    ("row-tracking.enabled", "false"),
    ("data-evolution.enabled", "false"),
    ("deletion-vectors.enabled", "false"),
    ("sequence.snapshot-ordering", "false"),
    ("write.sequence-number-init-mode", "scan"),
    ("consumer.changelog-only", "false"),
];

/// The same for options that mean something on primary-key tables only.
const ONLY_WITH_KEY: &[(&str, &str)] =
    &[("merge-engine", "deduplicate"), ("ignore-delete", "false"), ("changelog-file.format", "parquet")];

/// Options that can't change once a table has snapshots (P2.5), beside those of keys and buckets.
pub const IMMUTABLE: [&str; 16] = [
    "type",
    "primary-key",
    "partition",
    "bucket-function.type",
    "data-file.path-directory",
    "merge-engine",
    "sequence.snapshot-ordering",
    "rowkind.field",
    "primary-key.nullable",
    "dynamic-bucket.initial-buckets",
    "force-lookup",
    "row-tracking.enabled",
    "data-evolution.enabled",
    "index-file-in-data-file-dir",
    "pk-clustering-override",
    "deletion-vectors.enabled",
];

/// Options that are refused whenever they are set.
const NEVER: &[&str] = &["data-file.path-directory", "data-file.external-paths", "file.format.per.level", "rowkind.field"];

struct Options<'a>(&'a TableSchema);

impl<'a> Options<'a> {
    fn text(&self, key: &str) -> Option<&'a str> {
        self.0.options.get(key).map(|text| text.trim()).filter(|text| !text.is_empty())
    }

    fn refuse_unsupported(&self) -> Result<()> {
        let has_key = !self.0.primary_keys.is_empty();
        let with_key = if has_key { ONLY_WITH_KEY } else { &[] };
        for (key, only) in ONLY.iter().chain(with_key) {
            if let Some(text) = self.text(key)
                && !text.eq_ignore_ascii_case(only)
            {
                return Err(unsupported(key, text));
            }
        }
        let sequence: &[&str] = if has_key { &["sequence.field"] } else { &[] };
        match NEVER.iter().chain(sequence).find_map(|key| Some((key, self.text(key)?))) {
            Some((key, text)) => Err(unsupported(key, text)),
            None => Ok(()),
        }
    }

    fn number<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(&self, key: &str, default: T) -> Result<T> {
        match self.text(key) {
            Some(text) => text.parse().map_err(|source| invalid(key, text).with_source(source)),
            None => Ok(default),
        }
    }

    fn boolean(&self, key: &str, default: bool) -> Result<bool> {
        match self.text(key) {
            None => Ok(default),
            Some(text) if text.eq_ignore_ascii_case("true") => Ok(true),
            Some(text) if text.eq_ignore_ascii_case("false") => Ok(false),
            Some(text) => Err(invalid(key, text)),
        }
    }

    fn size(&self, key: &str, default: u64) -> Result<u64> {
        match self.text(key) {
            Some(text) => parse_size(text).filter(|size| *size > 0).ok_or_else(|| invalid(key, text)),
            None => Ok(default),
        }
    }

    fn duration(&self, key: &str) -> Result<Option<Duration>> {
        self.text(key).map(|text| parse_duration(text).ok_or_else(|| invalid(key, text))).transpose()
    }

    fn stats_mode(&self, key: &str) -> Result<StatsMode> {
        match self.text(key) {
            Some(text) => StatsMode::parse(text).ok_or_else(|| invalid(key, text)),
            None => Ok(StatsMode::Truncate(16)),
        }
    }

    fn compression(&self, level: i32) -> Result<Compression> {
        let text = self.text("file.compression").unwrap_or("zstd");
        Ok(match text.to_ascii_lowercase().as_str() {
            "zstd" => Compression::Zstd(level),
            "none" | "uncompressed" => Compression::None,
            "snappy" => Compression::Snappy,
            "lz4" | "lz4_raw" => Compression::Lz4,
            _ => return Err(unsupported("file.compression", text)),
        })
    }

    fn manifest_compression(&self, level: i32) -> Result<ManifestCompression> {
        let text = self.text("manifest.compression").unwrap_or("zstd");
        Ok(match text.to_ascii_lowercase().as_str() {
            "zstd" | "zstandard" => ManifestCompression::Zstd(level),
            "none" | "null" => ManifestCompression::None,
            _ => return Err(unsupported("manifest.compression", text)),
        })
    }

    fn file_prefix(&self, key: &str, default: &str) -> Result<String> {
        let text = self.text(key).unwrap_or(default);
        if text.contains(['/', '\\']) {
            return Err(invalid(key, text));
        }
        Ok(text.to_owned())
    }

    /// The other producers' changelogs are the compactor's to write.
    fn changelog_input(&self) -> Result<bool> {
        let key = "changelog-producer";
        match self.text(key).unwrap_or("none").to_ascii_lowercase().as_str() {
            "input" => Ok(true),
            "none" | "lookup" | "full-compaction" => Ok(false),
            other => Err(unsupported(key, other)),
        }
    }

    fn consumer_expiration(&self) -> Result<Option<Duration>> {
        let key = "consumer.expiration-time";
        let expiration = self.duration(key)?;
        match expiration {
            Some(time) if time < CONSUMER_EXPIRATION_MIN => {
                Err(unsupported(key, self.text(key).unwrap_or_default()).with_hint("pins need at least 1 h"))
            }
            _ => Ok(expiration),
        }
    }
}

fn unsupported(key: &str, value: &str) -> Error {
    Error::unsupported(format!("lake table option `{key}` = `{value}`"))
}

fn invalid(key: &str, value: &str) -> Error {
    Error::invalid(format!("lake table option `{key}` = `{value}` can't be read"))
}

fn number_and_unit(text: &str) -> Option<(u64, String)> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit.trim().to_lowercase()))
}

/// Bytes of a size text: `128 mb`, `500 B`, `1024`. Units are powers of 1024.
#[must_use]
pub fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = number_and_unit(text)?;
    let shift = match unit.as_str() {
        "" | "b" | "bytes" => 0,
        "k" | "kb" | "kibibytes" => 10,
        "m" | "mb" | "mebibytes" => 20,
        "g" | "gb" | "gibibytes" => 30,
        "t" | "tb" | "tebibytes" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

/// A duration text: `1 h`, `10 ms`, `2 days`; a bare number counts milliseconds.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = number_and_unit(text)?;
    let seconds = |factor: u64| number.checked_mul(factor).map(Duration::from_secs);
    match unit.as_str() {
        "d" | "day" | "days" => seconds(86_400),
        "h" | "hour" | "hours" => seconds(3_600),
        "m" | "min" | "minute" | "minutes" => seconds(60),
        "s" | "sec" | "secs" | "second" | "seconds" => seconds(1),
        "" | "ms" | "milli" | "millis" | "millisecond" | "milliseconds" => Some(Duration::from_millis(number)),
        "µs" | "micro" | "micros" | "microsecond" | "microseconds" => Some(Duration::from_micros(number)),
        "ns" | "nano" | "nanos" | "nanosecond" | "nanoseconds" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;
    use crate::model::{DataType, TypeKind};

    fn schema(options: &[(&str, &str)]) -> TableSchema {
        let field =
            |id, name: &str| Field { id, name: name.into(), data_type: DataType::nullable(TypeKind::String), comment: None };
        TableSchema {
            id: 0,
            fields: vec![field(0, "k"), field(1, "v"), field(2, "w")],
            highest_field_id: 2,
            partition_keys: vec![],
            primary_keys: vec![],
            options: options.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            comment: None,
            time_ms: 0,
        }
    }

    #[test]
    fn defaults_are_paimons() {
        let options = TableOptions::parse(&schema(&[("fluss.whatever", "x"), ("snapshot.num-retained.min", "3")])).unwrap();
        assert_eq!(options.bucket, -1);
        assert_eq!(options.compression, Compression::Zstd(1));
        assert_eq!((options.target_file_bytes, options.target_file_rows), (256 << 20, u64::MAX));
        assert_eq!((options.data_file_prefix.as_str(), options.data_file_extension.as_str()), ("data-", "parquet"));
        assert_eq!(options.manifest_compression, ManifestCompression::Zstd(1));
        assert_eq!((options.manifest_target_bytes, options.manifest_merge_min), (8 << 20, 30));
        assert_eq!(options.manifest_full_bytes, 16 << 20);
        assert_eq!(options.stats_modes(&schema(&[]).fields), [StatsMode::Truncate(16); 3]);
        assert!(options.stats_dense && options.consumer_expiration.is_none());
    }

    #[test]
    fn values_are_honoured() {
        let options = TableOptions::parse(&schema(&[
            ("bucket", "4"),
            ("bucket-key", "k,v"),
            ("file.compression", "LZ4"),
            ("file.suffix.include.compression", "true"),
            ("target-file-size", "64 mb"),
            ("metadata.stats-mode", "full"),
            ("fields.w.stats-mode", "counts"),
            ("metadata.stats-keep-first-n-columns", "1"),
            ("manifest.compression", "none"),
            ("commit.max-retry-wait", "1 min"),
            ("consumer.expiration-time", "2 h"),
        ]))
        .unwrap();
        assert_eq!(options.bucket_key, ["k", "v"]);
        assert_eq!(options.data_file_extension, "lz4.parquet");
        assert_eq!(options.target_file_bytes, 64 << 20);
        assert_eq!(options.stats_modes(&schema(&[]).fields), [StatsMode::Full, StatsMode::None, StatsMode::Counts]);
        assert_eq!(options.manifest_compression, ManifestCompression::None);
        assert_eq!(options.commit_wait_max, Duration::from_secs(60));
        assert_eq!(options.consumer_expiration, Some(Duration::from_secs(7200)));
    }

    #[test]
    fn what_we_cannot_follow_is_refused_by_name() {
        for (key, value) in [
            ("file.format", "orc"),
            ("bucket-function.type", "mod"),
            ("row-tracking.enabled", "true"),
            ("data-evolution.enabled", "true"),
            ("deletion-vectors.enabled", "true"),
            ("sequence.snapshot-ordering", "true"),
            ("write.sequence-number-init-mode", "snapshot"),
            ("consumer.changelog-only", "true"),
            ("consumer.expiration-time", "59 min"),
            ("data-file.path-directory", "data"),
            ("data-file.external-paths", "s3://x"),
            ("file.compression", "gzip"),
            ("manifest.compression", "snappy"),
            ("manifest.format", "orc"),
            ("type", "format-table"),
        ] {
            let error = TableOptions::parse(&schema(&[(key, value)])).unwrap_err();
            assert_eq!(error.kind(), Kind::Unsupported, "{key}");
            assert!(error.to_string().contains(key), "{error}");
        }
        for (key, value) in [
            ("bucket", "0"),
            ("bucket", "many"),
            ("bucket", "4"),
            ("bucket-key", "k"),
            ("target-file-size", "1 parsec"),
            ("metadata.stats-mode", "most"),
        ] {
            assert_eq!(TableOptions::parse(&schema(&[(key, value)])).unwrap_err().kind(), Kind::Invalid, "{key}");
        }
        let spaced = schema(&[("bucket", "4"), ("bucket-key", "k, v")]);
        assert_eq!(TableOptions::parse(&spaced).unwrap_err().kind(), Kind::Invalid);
    }

    #[test]
    fn merge_engines_matter_on_primary_key_tables_only() {
        let mut keyed = schema(&[("bucket", "1"), ("merge-engine", "aggregation")]);
        keyed.primary_keys.push("k".into());
        assert_eq!(TableOptions::parse(&keyed).unwrap_err().kind(), Kind::Unsupported);
        TableOptions::parse(&schema(&[("merge-engine", "aggregation")])).unwrap();
    }

    #[test]
    fn sizes_and_durations_are_read() {
        assert_eq!(parse_size("128 mb"), Some(128 << 20));
        assert_eq!(parse_size("500 B"), Some(500));
        assert_eq!(parse_size("7"), Some(7));
        assert_eq!(parse_size("99999999999999 tb"), None);
        assert_eq!(parse_size("mb"), None);
        assert_eq!(parse_duration("1 h"), Some(Duration::from_secs(3600)));
        assert_eq!(parse_duration("10ms"), Some(Duration::from_millis(10)));
        assert_eq!(parse_duration("1 fortnight"), None);
    }
}
