//! `table.*` options: which exist, and how their values read (F8.2, S3.4).

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::fluss::code::Code;
use crate::model::{TableInfo, parse_duration_ms};

/// What an option's value has to be.
#[derive(Clone, Copy)]
pub(super) enum Form {
    Text,
    Bool,
    Int,
    Duration,
    OneOf(&'static [&'static str]),
}

/// Every option that is known, its form, and whether it may be altered (S3.6).
const OPTIONS: &[(&str, Form, bool)] = &[
    ("table.auto-increment.cache-size", Form::Int, false),
    ("table.auto-partition.enabled", Form::Bool, true),
    ("table.auto-partition.key", Form::Text, false),
    ("table.auto-partition.num-precreate", Form::Int, true),
    ("table.auto-partition.num-retention", Form::Int, true),
    ("table.auto-partition.time-format", Form::Text, false),
    ("table.auto-partition.time-unit", Form::OneOf(&["YEAR", "QUARTER", "MONTH", "DAY", "HOUR"]), false),
    ("table.auto-partition.time-zone", Form::Text, false),
    ("table.changelog.image", Form::OneOf(&["FULL", "WAL"]), false),
    ("table.datalake.auto-compaction", Form::Bool, true),
    ("table.datalake.auto-expire-snapshot", Form::Bool, false),
    ("table.datalake.database-name", Form::Text, true),
    ("table.datalake.enabled", Form::Bool, true),
    ("table.datalake.format", Form::OneOf(&["paimon", "iceberg", "hudi", "lance"]), false),
    ("table.datalake.freshness", Form::Duration, true),
    ("table.datalake.historical-partition.enabled", Form::Bool, true),
    ("table.datalake.table-name", Form::Text, true),
    ("table.delete.behavior", Form::OneOf(&["ALLOW", "IGNORE", "DISABLE"]), false),
    ("table.kv.format", Form::OneOf(&["COMPACTED", "INDEXED"]), false),
    ("table.kv.format-version", Form::Int, false),
    ("table.kv.standby-replica.enabled", Form::Bool, true),
    ("table.kv.ttl", Form::Duration, false),
    ("table.kv.ttl.time-column", Form::Text, false),
    ("table.kv.value-layout-version", Form::Int, false),
    ("table.log.arrow.compression.type", Form::OneOf(&["NONE", "LZ4_FRAME", "ZSTD"]), false),
    ("table.log.arrow.compression.zstd.level", Form::Int, false),
    ("table.log.format", Form::OneOf(&["ARROW", "INDEXED", "COMPACTED"]), false),
    ("table.log.local-ttl", Form::Duration, true),
    ("table.log.tiered.local-segments", Form::Int, true),
    ("table.log.ttl", Form::Duration, true),
    ("table.merge-engine", Form::OneOf(&["first_row", "versioned", "aggregation"]), false),
    ("table.merge-engine.versioned.ver-column", Form::Text, false),
    ("table.replication.factor", Form::Int, false),
    ("table.statistics.columns", Form::Text, true),
];

const DAY_MS: i64 = 86_400_000;

/// Whether `key` is an option that may be altered.
pub(super) fn is_alterable(key: &str) -> bool {
    OPTIONS.iter().any(|(known, _, alterable)| *known == key && *alterable)
}

/// Checks that every option exists and reads well.
pub(super) fn check_forms(properties: &BTreeMap<String, String>) -> Result<()> {
    for (key, value) in properties {
        let Some((_, form, _)) = OPTIONS.iter().find(|(known, _, _)| known == key) else {
            return Err(Code::INVALID_CONFIG.answer(format!("`{key}` is not a table option")));
        };
        let fits = match form {
            Form::Text => true,
            Form::Bool => parse_bool(value).is_some(),
            Form::Int => value.trim().parse::<i32>().is_ok(),
            Form::Duration => parse_duration_ms(value).is_some(),
            Form::OneOf(words) => words.iter().any(|word| word.eq_ignore_ascii_case(value)),
        };
        if !fits {
            return Err(Code::INVALID_CONFIG.answer(format!("value `{value}` of `{key}` can't be read")));
        }
    }
    Ok(())
}

fn parse_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// The value of option `key` as a number.
pub(super) fn int(properties: &BTreeMap<String, String>, key: &str) -> Option<i32> {
    properties.get(key)?.trim().parse().ok()
}

/// Whether option `key` is on.
pub(super) fn is_on(properties: &BTreeMap<String, String>, key: &str) -> bool {
    properties.get(key).and_then(|value| parse_bool(value)).unwrap_or(false)
}

/// Whether the table goes to the lake.
#[must_use]
pub fn lake_enabled(info: &TableInfo) -> bool {
    is_on(&info.properties, "table.datalake.enabled")
}

/// How far the lake may lag behind, in milliseconds; 3 min if not set.
#[must_use]
pub fn freshness_ms(info: &TableInfo) -> i64 {
    i64::try_from(info.lake_freshness().as_millis()).unwrap_or(i64::MAX)
}

/// How long rows stay in the log, in milliseconds; 7 days if not set.
#[must_use]
pub fn log_ttl_ms(info: &TableInfo) -> i64 {
    info.properties.get("table.log.ttl").and_then(|text| parse_duration_ms(text)).unwrap_or(7 * DAY_MS)
}

/// Time unit of an automatically partitioned table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the units")]
pub enum TimeUnit {
    Year,
    Quarter,
    Month,
    Day,
    Hour,
}

/// Which partitions a table gets and loses by itself (S7.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AutoPartition {
    /// The partition column that holds the time.
    pub key: String,
    /// Its unit.
    pub unit: TimeUnit,
    /// Partitions made ahead, the current one included; 0 = none.
    pub precreate: i32,
    /// Past partitions kept; negative = all.
    pub retention: i32,
    /// Days are written with dashes: the key is a DATE or the format says so.
    pub dashed: bool,
    offset_seconds: i32,
}

impl AutoPartition {
    /// Reads the options of a table; `None` when it is off.
    ///
    /// # Errors
    /// 39 for what can't be read or is not supported.
    pub fn of(
        properties: &BTreeMap<String, String>,
        partition_keys: &[String],
        date_key: impl Fn(&str) -> bool,
    ) -> Result<Option<Self>> {
        if !is_on(properties, "table.auto-partition.enabled") {
            return Ok(None);
        }
        let get = |key: &str| properties.get(&format!("table.auto-partition.{key}"));
        let refuse = |message: String| Code::INVALID_CONFIG.answer(message);
        let key = match (get("key"), partition_keys) {
            (_, []) => return Err(refuse("a table without partitions can't be partitioned automatically".into())),
            (Some(key), keys) if keys.contains(key) => key.clone(),
            (None, [key]) => key.clone(),
            (Some(key), _) => {
                return Err(Code::INVALID_TABLE.answer(format!("`table.auto-partition.key` `{key}` is not a partition key")));
            }
            (None, _) => {
                let text = "`table.auto-partition.key` is required with several partition keys";
                return Err(Code::INVALID_TABLE.answer(text));
            }
        };
        let unit = match get("time-unit").map(|unit| unit.to_ascii_uppercase()).as_deref() {
            Some("YEAR") => TimeUnit::Year,
            Some("QUARTER") => TimeUnit::Quarter,
            Some("MONTH") => TimeUnit::Month,
            Some("HOUR") => TimeUnit::Hour,
            _ => TimeUnit::Day,
        };
        let number = |name: &str, default: i32| get(name).and_then(|text| text.trim().parse().ok()).unwrap_or(default);
        let several = partition_keys.len() > 1;
        let precreate = number("num-precreate", if several { 0 } else { 2 });
        if several && precreate != 0 {
            return Err(Code::INVALID_TABLE.answer("`table.auto-partition.num-precreate` must be 0 with several partition keys"));
        }
        let dashed = match get("time-format").map(String::as_str) {
            None => date_key(&key),
            Some("yyyy-MM-dd") if unit == TimeUnit::Day => true,
            Some(format) if format == unit.format() && !date_key(&key) => false,
            Some(format) => {
                return Err(
                    Code::INVALID_TABLE.answer(format!("`table.auto-partition.time-format` `{format}` does not fit its unit"))
                );
            }
        };
        if date_key(&key) && unit != TimeUnit::Day {
            return Err(Code::INVALID_TABLE.answer(format!("partition key `{key}` is a DATE: its time unit must be DAY")));
        }
        let offset_seconds = zone_offset_seconds(get("time-zone").map_or("UTC", String::as_str))?;
        Ok(Some(Self { key, unit, precreate, retention: number("num-retention", 7), dashed, offset_seconds }))
    }

    /// Text of the unit of time that begins `units` after the current one.
    #[must_use]
    pub fn value(&self, now_ms: i64, units: i64) -> Option<String> {
        let seconds = now_ms.div_euclid(1000).checked_add(i64::from(self.offset_seconds))?;
        let now = jiff::tz::Offset::UTC.to_datetime(jiff::Timestamp::from_second(seconds).ok()?);
        let span = jiff::Span::new();
        let span = match self.unit {
            TimeUnit::Year => span.try_years(units),
            TimeUnit::Quarter => span.try_months(units.checked_mul(3)?),
            TimeUnit::Month => span.try_months(units),
            TimeUnit::Day => span.try_days(units),
            TimeUnit::Hour => span.try_hours(units),
        };
        // The first of a month first: a month from 31 January is February, not March.
        let start = match self.unit {
            TimeUnit::Year | TimeUnit::Quarter | TimeUnit::Month => now.first_of_month(),
            TimeUnit::Day | TimeUnit::Hour => now,
        };
        let time = start.checked_add(span.ok()?).ok()?;
        let (year, month, day) = (time.year(), time.month(), time.day());
        Some(match self.unit {
            TimeUnit::Year => format!("{year:04}"),
            TimeUnit::Quarter => format!("{year:04}{}", (month - 1) / 3 + 1),
            TimeUnit::Month => format!("{year:04}{month:02}"),
            TimeUnit::Day if self.dashed => format!("{year:04}-{month:02}-{day:02}"),
            TimeUnit::Day => format!("{year:04}{month:02}{day:02}"),
            TimeUnit::Hour => format!("{year:04}{month:02}{day:02}{:02}", time.hour()),
        })
    }

    /// Whether `value` is written as this table's times are.
    #[must_use]
    pub fn fits(&self, value: &str) -> bool {
        let number = |range: std::ops::Range<usize>| {
            let part = value.get(range)?;
            part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse::<i32>().ok())?
        };
        let in_range = |range, low: i32, high: i32| number(range).is_some_and(|value| (low..=high).contains(&value));
        let (length, rest) = match self.unit {
            TimeUnit::Year => (4, true),
            TimeUnit::Quarter => (5, in_range(4..5, 1, 4)),
            TimeUnit::Month => (6, in_range(4..6, 1, 12)),
            TimeUnit::Day if self.dashed => (
                10,
                value.get(4..5) == Some("-") && value.get(7..8) == Some("-") && in_range(5..7, 1, 12) && in_range(8..10, 1, 31),
            ),
            TimeUnit::Day => (8, in_range(4..6, 1, 12) && in_range(6..8, 1, 31)),
            TimeUnit::Hour => (10, in_range(4..6, 1, 12) && in_range(6..8, 1, 31) && in_range(8..10, 0, 23)),
        };
        value.len() == length && number(0..4).is_some() && rest
    }

    /// Whether `value` is older than what is kept.
    #[must_use]
    pub fn is_expired(&self, value: &str, now_ms: i64) -> bool {
        self.retention >= 0 && self.value(now_ms, -i64::from(self.retention)).is_some_and(|oldest| value < oldest.as_str())
    }
}

impl TimeUnit {
    const fn format(self) -> &'static str {
        match self {
            Self::Year => "yyyy",
            Self::Quarter => "yyyyQ",
            Self::Month => "yyyyMM",
            Self::Day => "yyyyMMdd",
            Self::Hour => "yyyyMMddHH",
        }
    }
}

/// Seconds east of UTC; zones with rules are refused, since this build carries no zone database.
fn zone_offset_seconds(zone: &str) -> Result<i32> {
    let refuse = || -> Error {
        Code::INVALID_CONFIG.answer(format!("time zone `{zone}` is not supported, use `UTC` or an offset such as `+08:00`"))
    };
    let text = zone.strip_prefix("UTC").or_else(|| zone.strip_prefix("GMT")).unwrap_or(zone);
    if text.is_empty() || text == "Z" || zone == "Etc/UTC" {
        return Ok(0);
    }
    let (sign, digits) = match text.split_at_checked(1) {
        Some(("+", digits)) => (1, digits),
        Some(("-", digits)) => (-1, digits),
        _ => return Err(refuse()),
    };
    let (hours, minutes) = digits.split_once(':').unwrap_or((digits, "0"));
    match (hours.parse::<i32>(), minutes.parse::<i32>()) {
        (Ok(hours @ 0..=18), Ok(minutes @ 0..=59)) => Ok(sign * (hours * 3600 + minutes * 60)),
        _ => Err(refuse()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_times_are_written_in_the_tables_zone_and_unit() {
        let auto = |pairs: &[(&str, &str)]| {
            let mut properties = BTreeMap::from([("table.auto-partition.enabled".to_owned(), "true".to_owned())]);
            properties.extend(pairs.iter().map(|(key, value)| (format!("table.auto-partition.{key}"), (*value).to_owned())));
            AutoPartition::of(&properties, &["p".to_owned()], |_| false)
        };
        let now_ms = 1_706_657_400_000; // 2024-01-30T23:30:00Z
        for (unit, zone, units, expected) in [
            ("DAY", "UTC", 0, "20240130"),
            ("DAY", "+08:00", 0, "20240131"),
            ("DAY", "UTC", -30, "20231231"),
            ("HOUR", "UTC+1", 1, "2024013101"),
            ("MONTH", "UTC", 1, "202402"),
            ("QUARTER", "UTC", -1, "20234"),
            ("YEAR", "UTC", 1, "2025"),
        ] {
            let auto = auto(&[("time-unit", unit), ("time-zone", zone)]).unwrap().unwrap();
            let value = auto.value(now_ms, units).unwrap();
            assert_eq!(value, expected);
            assert!(auto.fits(&value) && !auto.fits("x") && !auto.fits(&format!("{value}1")));
        }
        let day = auto(&[("num-retention", "2")]).unwrap().unwrap();
        assert!(day.is_expired("20240127", now_ms) && !day.is_expired("20240128", now_ms));
        assert!(auto(&[("time-zone", "Asia/Shanghai")]).is_err());
        assert!(auto(&[("time-unit", "MONTH"), ("time-format", "yyyyMMdd")]).is_err());
    }
}
