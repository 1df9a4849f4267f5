//! Option values of a table (P appendix A): what a writer honours, and by name what it refuses.

mod refused;

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use self::refused::refused;
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
    /// `changelog-file.compression`, else that of data files.
    pub changelog_compression: Compression,
    /// As `data_file_extension`, of changelog files.
    pub changelog_file_extension: String,
    /// `sequence.field` on a primary-key table: the version of a row, before its sequence number; empty without (P7.3).
    pub sequence_fields: Vec<String>,
    /// `ignore-delete` on a primary-key table: −U and −D rows are left out everywhere.
    pub ignore_delete: bool,
    /// `ignore-update-before` on a primary-key table: −U rows are left out everywhere.
    pub ignore_update_before: bool,
    /// `metadata.stats-dense-store`.
    pub stats_dense: bool,
    stats_mode: StatsMode,
    changelog_stats_mode: Option<StatsMode>,
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
            -1 => {
                return Err(refused(
                    "bucket",
                    "-1",
                    "rows of a primary-key table lie in the buckets that Fluss gave them, not in dynamic ones",
                ));
            }
            -2 => return Err(refused("bucket", "-2", "rows would wait for somebody to give them buckets (postpone)")),
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
        let (key, text) = match options.of_level_zero("file.compression.per.level") {
            Some(text) if has_key => ("file.compression.per.level", text),
            _ => ("file.compression", options.text("file.compression").unwrap_or("zstd")),
        };
        let compression = Options::compression(key, text, level)?;
        let changelog_compression = match options.text("changelog-file.compression") {
            Some(text) => Options::compression("changelog-file.compression", text, level)?,
            None => compression,
        };
        let in_name = options.boolean("file.suffix.include.compression", false)?;
        let extension = |codec: Compression| if in_name { format!("{}.parquet", codec.name()) } else { "parquet".to_owned() };
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
            data_file_extension: extension(compression),
            changelog_file_extension: extension(changelog_compression),
            changelog_compression,
            sequence_fields: if has_key { options.sequence_fields()? } else { vec![] },
            ignore_delete: has_key && options.ignore_delete()?,
            ignore_update_before: has_key && options.boolean("ignore-update-before", false)?,
            stats_dense: options.boolean("metadata.stats-dense-store", true)?,
            changelog_stats_mode: options
                .text("changelog-file.stats-mode")
                .map(|_| options.stats_mode("changelog-file.stats-mode"))
                .transpose()?,
            stats_mode: match options.of_level_zero("metadata.stats-mode.per.level") {
                Some(text) if has_key => StatsMode::parse(text).ok_or_else(|| invalid("metadata.stats-mode.per.level", text))?,
                _ => options.stats_mode("metadata.stats-mode")?,
            },
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

    /// Statistics mode of each column of a data file, in schema order.
    #[must_use]
    pub fn stats_modes(&self, fields: &[Field]) -> Vec<StatsMode> {
        self.modes(fields, self.stats_mode)
    }

    /// The same of a changelog file.
    #[must_use]
    pub fn changelog_stats_modes(&self, fields: &[Field]) -> Vec<StatsMode> {
        self.modes(fields, self.changelog_stats_mode.unwrap_or(self.stats_mode))
    }

    /// Whether merging a primary-key table's files leaves −U and −D rows out of account (`ignore-delete`).
    ///
    /// # Errors
    /// `Invalid` when the option's value is no value.
    pub fn ignores_deletes(schema: &TableSchema) -> Result<bool> {
        Options(schema).ignore_delete()
    }

    fn modes(&self, fields: &[Field], mode: StatsMode) -> Vec<StatsMode> {
        let keep = self.stats_keep_first.unwrap_or(usize::MAX);
        let mode_of = |(index, field): (usize, &Field)| match self.stats_fields.get(&field.name) {
            Some(mode) => *mode,
            None if index < keep => mode,
            None => StatsMode::None,
        };
        fields.iter().enumerate().map(mode_of).collect()
    }
}

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

struct Options<'a>(&'a TableSchema);

impl<'a> Options<'a> {
    fn text(&self, key: &str) -> Option<&'a str> {
        self.0.options.get(key).map(|text| text.trim()).filter(|text| !text.is_empty())
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

    /// The codec that `text`, the value of `key`, names.
    fn compression(key: &str, text: &str, level: i32) -> Result<Compression> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "zstd" => Compression::Zstd(level),
            "none" | "uncompressed" => Compression::None,
            "snappy" => Compression::Snappy,
            "lz4" | "lz4_raw" => Compression::Lz4,
            _ => return Err(refused(key, text, "this build has zstd, lz4, snappy and none")),
        })
    }

    /// What a list like `0:none,5:full` says of level 0, the only one that we write.
    fn of_level_zero(&self, key: &str) -> Option<&'a str> {
        let of_level = |pair: &'a str| pair.split_once(':').filter(|(level, _)| level.trim() == "0").map(|(_, value)| value.trim());
        self.text(key)?.split(',').find_map(of_level)
    }

    fn sequence_fields(&self) -> Result<Vec<String>> {
        let Some(text) = self.text("sequence.field") else { return Ok(vec![]) };
        let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
        for name in &names {
            let field = self.0.field(name).ok_or_else(|| invalid("sequence.field", text))?;
            if field.data_type.kind.is_nested() {
                return Err(refused("sequence.field", text, "nested columns have no order"));
            }
        }
        Ok(names)
    }

    /// Java takes the names that it had under other merge engines for the same.
    fn ignore_delete(&self) -> Result<bool> {
        let keys = ["ignore-delete", "first-row.ignore-delete", "deduplicate.ignore-delete", "partial-update.ignore-delete"];
        let found = keys.into_iter().find(|key| self.text(key).is_some());
        found.map_or(Ok(false), |key| self.boolean(key, false))
    }

    fn manifest_compression(&self, level: i32) -> Result<ManifestCompression> {
        let text = self.text("manifest.compression").unwrap_or("zstd");
        Ok(match text.to_ascii_lowercase().as_str() {
            "zstd" | "zstandard" => ManifestCompression::Zstd(level),
            "none" | "null" => ManifestCompression::None,
            _ => return Err(refused("manifest.compression", text, "this build has zstd and none")),
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
            other => Err(refused(key, other, "no producer that this build knows")),
        }
    }

    fn consumer_expiration(&self) -> Result<Option<Duration>> {
        let key = "consumer.expiration-time";
        let expiration = self.duration(key)?;
        match expiration {
            Some(time) if time < CONSUMER_EXPIRATION_MIN => {
                Err(refused(key, self.text(key).unwrap_or_default(), "pins need at least 1 h"))
            }
            _ => Ok(expiration),
        }
    }
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
mod tests;
