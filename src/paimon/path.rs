//! Names of files and folders inside a table (P1): paths are relative to the table's root, `/`-separated.

use uuid::Uuid;

use super::meta::{BinaryRow, ManifestEntry, TableSchema};
use crate::error::{Error, Result};
use crate::model::{DataType, Datum, TypeKind};

/// Hint: a snapshot id that is likely the newest (P1.3).
pub const LATEST: &str = "snapshot/LATEST";
/// Hint: a snapshot id that is likely the oldest (P1.3).
pub const EARLIEST: &str = "snapshot/EARLIEST";
/// Folder of the snapshot files.
pub const SNAPSHOTS: &str = "snapshot";
/// Folder of the schema files.
pub const SCHEMAS: &str = "schema";
/// Folder of the consumer files.
pub const CONSUMERS: &str = "consumer";
/// Folder of the manifests and their lists.
pub const MANIFESTS: &str = "manifest";

/// Root folder of a table below the warehouse.
#[must_use]
pub fn table(database: &str, table: &str) -> String {
    format!("{database}.db/{table}")
}

/// A snapshot file.
#[must_use]
pub fn snapshot(id: i64) -> String {
    format!("{SNAPSHOTS}/snapshot-{id}")
}

/// A schema file.
#[must_use]
pub fn schema(id: i64) -> String {
    format!("{SCHEMAS}/schema-{id}")
}

/// A manifest or manifest list.
#[must_use]
pub fn manifest(name: &str) -> String {
    format!("{MANIFESTS}/{name}")
}

/// A consumer file.
#[must_use]
pub fn consumer(name: &str) -> String {
    format!("{CONSUMERS}/consumer-{name}")
}

/// The number at the end of `path` after `prefix`, as in `snapshot/snapshot-7`; `None` for hints and anything else.
#[must_use]
pub fn id_of(path: &str, prefix: &str) -> Option<i64> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let digits = name.strip_prefix(prefix)?;
    (digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
}

/// Name of a manifest; `uuid` is the committer's, `counter` is shared with its lists.
#[must_use]
pub fn manifest_name(uuid: Uuid, counter: u64) -> String {
    format!("manifest-{uuid}-{counter}")
}

/// Name of a manifest list.
#[must_use]
pub fn manifest_list_name(uuid: Uuid, counter: u64) -> String {
    format!("manifest-list-{uuid}-{counter}")
}

/// Name of a data file; `prefix` is option `data-file.prefix`, `uuid` the bucket writer's, `counter` its files from 0,
/// `extension` for example `parquet` or `zstd.parquet`.
#[must_use]
pub fn data_file_name(prefix: &str, uuid: Uuid, counter: u64, extension: &str) -> String {
    format!("{prefix}{uuid}-{counter}.{extension}")
}

/// Folder of a bucket inside a partition.
#[must_use]
pub fn bucket(bucket: i32) -> String {
    if bucket == -2 { "bucket-postpone".to_owned() } else { format!("bucket-{bucket}") }
}

/// Folder of a bucket: `day=2024-01-01/bucket-0`.
///
/// # Errors
/// As [`partition_path`].
pub fn bucket_path(schema: &TableSchema, partition: &BinaryRow, bucket: i32) -> Result<String> {
    let folder = self::bucket(bucket);
    let partition = partition_path(schema, partition)?;
    Ok(if partition.is_empty() { folder } else { format!("{partition}/{folder}") })
}

/// The data file of a manifest entry.
///
/// # Errors
/// As [`partition_path`]; `Unsupported` for a file outside the table (`_EXTERNAL_PATH`).
pub fn data_file(schema: &TableSchema, entry: &ManifestEntry) -> Result<String> {
    if let Some(path) = &entry.file.external_path {
        return Err(Error::unsupported(format!("data file outside the table: `{path}`")));
    }
    Ok(format!("{}/{}", bucket_path(schema, &entry.partition, entry.bucket)?, entry.file.file_name))
}

/// Folder of a partition (P1.5), `""` on a table without partitions. Heeds `partition.default-name` and `partition.legacy-name`.
///
/// # Errors
/// `Data` when the row does not fit the partition columns; `Unsupported` names a column type that has no text.
pub fn partition_path(schema: &TableSchema, partition: &BinaryRow) -> Result<String> {
    let types = schema.partition_types()?;
    let values = partition.read(&types)?;
    let default_name = schema.option("partition.default-name").unwrap_or("__DEFAULT_PARTITION__");
    let legacy = schema.option("partition.legacy-name").is_none_or(|text| !text.trim().eq_ignore_ascii_case("false"));
    let mut path = String::new();
    for ((key, value), data_type) in schema.partition_keys.iter().zip(&values).zip(&types) {
        if !path.is_empty() {
            path.push('/');
        }
        escape(&mut path, key);
        path.push('=');
        let text = match value {
            Some(value) => {
                value_text(value, data_type, legacy).map_err(|error| error.context(format!("partition column `{key}`")))?
            }
            None => String::new(),
        };
        escape(&mut path, if text.chars().all(is_java_whitespace) { default_name } else { &text });
    }
    Ok(path)
}

/// Value text of a partition column in folder names, before escaping; `legacy` is option `partition.legacy-name`.
///
/// # Errors
/// `Unsupported` names a type that has no text.
pub fn value_text(value: &Datum, data_type: &DataType, legacy: bool) -> Result<String> {
    Ok(match value {
        Datum::Boolean(value) => value.to_string(),
        Datum::TinyInt(value) => value.to_string(),
        Datum::SmallInt(value) => value.to_string(),
        Datum::Int(value) => value.to_string(),
        Datum::BigInt(value) => value.to_string(),
        Datum::Float(value) => java_float(f64::from(*value), &format!("{value:e}")),
        Datum::Double(value) => java_float(*value, &format!("{value:e}")),
        Datum::Decimal { unscaled, scale, .. } => decimal_text(*unscaled, *scale),
        Datum::String(value) => value.clone(),
        Datum::Date(days) if legacy => days.to_string(),
        Datum::Date(days) => date_text(i64::from(*days)),
        Datum::Time(millis) if legacy => millis.to_string(),
        Datum::Timestamp { millis, nanos } => {
            let precision = match data_type.kind {
                TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision } => precision,
                _ => 6,
            };
            timestamp_text(*millis, *nanos, precision, legacy)
        }
        Datum::Time(millis) => time_text(*millis, data_type),
        // Java's `new String(bytes, UTF_8)`: what is no text becomes U+FFFD, so partitions may share a folder; the manifest tells them apart.
        Datum::Bytes(bytes) if !legacy => String::from_utf8_lossy(bytes).into_owned(),
        // Java names the folder by the identity of its array: no reader finds it again.
        Datum::Bytes(_) => {
            return Err(Error::unsupported("partition folder of bytes with option `partition.legacy-name` = `true`"));
        }
    })
}

fn escape(path: &mut String, text: &str) {
    for c in text.chars() {
        let special = c.is_ascii_control() || "\"#%'*/:=?\\{}[]^".contains(c);
        if special {
            path.push_str(&format!("%{:02X}", u32::from(c)));
        } else {
            path.push(c);
        }
    }
}

/// Java's `Character.isWhitespace`: like Unicode's, but without the no-break spaces and with the file separators.
fn is_java_whitespace(c: char) -> bool {
    match c {
        '\u{1c}'..='\u{1f}' => true,
        '\u{85}' | '\u{a0}' | '\u{2007}' | '\u{202f}' => false,
        _ => c.is_whitespace(),
    }
}

fn decimal_text(unscaled: i128, scale: u8) -> String {
    let scale = usize::from(scale);
    let digits = format!("{:0>width$}", unscaled.unsigned_abs(), width = scale + 1);
    let sign = if unscaled < 0 { "-" } else { "" };
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    if scale == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
}

/// Java's `Double.toString`, from the shortest digits in Rust's `{:e}` form.
fn java_float(value: f64, scientific: &str) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let (sign, rest) = scientific.strip_prefix('-').map_or(("", scientific), |rest| ("-", rest));
    let (mantissa, exponent) = rest.split_once('e').unwrap_or((rest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    if value == 0.0 {
        return format!("{sign}0.0");
    }
    let or_zero = |text: &str| if text.is_empty() { "0".to_owned() } else { text.to_owned() };
    match exponent {
        -3..=-1 => {
            let zeros = "0".repeat(usize::try_from(-exponent - 1).unwrap_or(0));
            format!("{sign}0.{zeros}{digits}")
        }
        0..=6 => {
            let whole = usize::try_from(exponent + 1).unwrap_or(1);
            let padded = format!("{digits:0<whole$}");
            let (whole, fraction) = padded.split_at(whole);
            format!("{sign}{whole}.{}", or_zero(fraction))
        }
        _ => {
            let (first, fraction) = digits.split_at(1);
            format!("{sign}{first}.{}E{exponent}", or_zero(fraction))
        }
    }
}

/// `2024-01-01`, as Java's `LocalDate` prints it.
fn date_text(days: i64) -> String {
    // Civil from days, on eras of 400 years that start on March 1st.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let year = match year {
        10_000.. => format!("+{year}"),
        0.. => format!("{year:04}"),
        _ => format!("-{:04}", year.unsigned_abs()),
    };
    format!("{year}-{month:02}-{day:02}")
}

/// Seconds, then milliseconds without trailing zeros as far as the precision goes, at least one digit (seen in Java 1.4.2).
fn time_text(millis: i32, data_type: &DataType) -> String {
    let TypeKind::Time { precision } = data_type.kind else { return millis.to_string() };
    let (seconds, fraction) = (millis.div_euclid(1_000), millis.rem_euclid(1_000));
    let text = format!("{:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60);
    if precision == 0 {
        return text;
    }
    let digits = format!("{fraction:03}");
    let digits = digits.get(..usize::from(precision).min(3)).unwrap_or_default().trim_end_matches('0');
    format!("{text}.{}", if digits.is_empty() { "0" } else { digits })
}

fn timestamp_text(millis: i64, nanos: i32, precision: u8, legacy: bool) -> String {
    let of_day = millis.rem_euclid(86_400_000);
    let nanos = of_day % 1_000 * 1_000_000 + i64::from(nanos);
    let (hour, minute, second) = (of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1_000 % 60);
    let date = date_text(millis.div_euclid(86_400_000));
    if !legacy {
        let fraction = format!("{nanos:09}");
        let fraction = fraction.get(..usize::from(precision).min(9)).unwrap_or_default();
        let dot = if fraction.is_empty() { "" } else { "." };
        return format!("{date} {hour:02}:{minute:02}:{second:02}{dot}{fraction}");
    }
    let mut text = format!("{date}T{hour:02}:{minute:02}");
    if second > 0 || nanos > 0 {
        text.push_str(&format!(":{second:02}"));
    }
    if nanos > 0 {
        text.push_str(&match (nanos % 1_000_000, nanos % 1_000) {
            (0, _) => format!(".{:03}", nanos / 1_000_000),
            (_, 0) => format!(".{:06}", nanos / 1_000),
            _ => format!(".{nanos:09}"),
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn java_prints_numbers_and_dates_like_this() {
        for (value, text) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (1e10, "1.0E10"),
            (0.001, "0.001"),
            (0.00012, "1.2E-4"),
            (9_999_999.5, "9999999.5"),
            (1e7, "1.0E7"),
            (123.25, "123.25"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
            (f64::MAX, "1.7976931348623157E308"),
        ] {
            assert_eq!(java_float(value, &format!("{value:e}")), text);
        }
        assert_eq!(date_text(19_723), "2024-01-01");
        assert_eq!(date_text(-1), "1969-12-31");
        assert_eq!(date_text(-719_529), "-0001-12-31");
        assert_eq!(date_text(19_782), "2024-02-29");
        assert_eq!(date_text(2_932_897), "+10000-01-01");
        assert_eq!(decimal_text(-5, 2), "-0.05");
        assert_eq!(decimal_text(i128::MIN, 0), i128::MIN.to_string());
        assert_eq!(timestamp_text(-1, 0, 3, true), "1969-12-31T23:59:59.999");
        assert_eq!(timestamp_text(0, 0, 0, false), "1970-01-01 00:00:00");
    }

    #[test]
    fn times_and_bytes_have_the_texts_that_java_gave_them() {
        let text = |value: &Datum, data_type: &str| {
            value_text(value, &crate::paimon::parse_type(data_type).unwrap(), false).map_err(|error| error.kind())
        };
        for (millis, data_type, expected) in [
            (45_296_789, "TIME(0)", "12:34:56"),
            (45_296_700, "TIME(3)", "12:34:56.7"),
            (45_296_000, "TIME(3)", "12:34:56.0"),
            (45_296_001, "TIME(3)", "12:34:56.001"),
            (10, "TIME(3)", "00:00:00.01"),
        ] {
            assert_eq!(text(&Datum::Time(millis), data_type).as_deref(), Ok(expected));
        }
        assert_eq!(text(&Datum::Bytes(b"abc".to_vec()), "BYTES").as_deref(), Ok("abc"));
        assert_eq!(text(&Datum::Bytes(vec![0, 0xff, 0x7f]), "BYTES").as_deref(), Ok("\u{0}\u{fffd}\u{7f}"));
    }

    #[test]
    fn ids_are_taken_from_digits_only() {
        assert_eq!(id_of("snapshot/snapshot-12", "snapshot-"), Some(12));
        assert_eq!(id_of("snapshot/snapshot-12#1", "snapshot-"), None);
        assert_eq!(id_of("snapshot/LATEST", "snapshot-"), None);
        assert_eq!(id_of("snapshot/snapshot-", "snapshot-"), None);
    }
}
