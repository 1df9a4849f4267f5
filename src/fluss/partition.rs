//! Partition values as text, both ways (F6.6). A partition's name joins them with `$`.
//!
//! The same text names partitions on the wire and is parsed once per split into the typed values of the lake's partition row.

use crate::error::{Error, Result};
use crate::model::{DataType, Datum, TypeKind};

const DAY_MS: i64 = 86_400_000;

/// Reads the text of one partition value as `data_type`.
///
/// # Errors
/// `Data` when the text is not of that type; `Unsupported` for types that can't be partition keys (DECIMAL, nested).
///
/// Source: F6.6, `PartitionUtils` of the Java client.
pub fn parse_value(text: &str, data_type: &DataType) -> Result<Datum> {
    let wrong = || Error::data(format!("`{text}` is no partition value of type {:?}", data_type.kind));
    let found = match &data_type.kind {
        TypeKind::String | TypeKind::Char { .. } | TypeKind::VarChar { .. } => Some(Datum::String(text.to_owned())),
        TypeKind::Boolean if text.eq_ignore_ascii_case("true") => Some(Datum::Boolean(true)),
        TypeKind::Boolean if text.eq_ignore_ascii_case("false") => Some(Datum::Boolean(false)),
        TypeKind::Boolean => None,
        TypeKind::TinyInt => text.parse().ok().map(Datum::TinyInt),
        TypeKind::SmallInt => text.parse().ok().map(Datum::SmallInt),
        TypeKind::Int => text.parse().ok().map(Datum::Int),
        TypeKind::BigInt => text.parse().ok().map(Datum::BigInt),
        TypeKind::Float => parse_float(text).map(Datum::Float),
        TypeKind::Double => parse_float(text).map(Datum::Double),
        TypeKind::Binary { .. } | TypeKind::VarBinary { .. } | TypeKind::Bytes => parse_hex(text).map(Datum::Bytes),
        TypeKind::Date => parse_date(text).map(Datum::Date),
        TypeKind::Time { .. } => parse_time(text).map(Datum::Time),
        TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision } => parse_timestamp(text, *precision),
        TypeKind::Decimal { .. } | TypeKind::Array(_) | TypeKind::Multiset(_) | TypeKind::Map(..) | TypeKind::Row(_) => {
            return Err(Error::unsupported(format!("a partition key of type {:?}", data_type.kind)));
        }
    };
    found.ok_or_else(wrong)
}

/// Writes one partition value as text.
///
/// # Errors
/// `Invalid` when the value is not of `data_type`, or a date outside the years 0 to 9999; `Unsupported` as in [`parse_value`].
///
/// Source: F6.6.
pub fn format_value(value: &Datum, data_type: &DataType) -> Result<String> {
    let text = match (value, &data_type.kind) {
        (Datum::String(text), TypeKind::String | TypeKind::Char { .. } | TypeKind::VarChar { .. }) => Some(text.clone()),
        (Datum::Boolean(value), TypeKind::Boolean) => Some(value.to_string()),
        (Datum::TinyInt(value), TypeKind::TinyInt) => Some(value.to_string()),
        (Datum::SmallInt(value), TypeKind::SmallInt) => Some(value.to_string()),
        (Datum::Int(value), TypeKind::Int) => Some(value.to_string()),
        (Datum::BigInt(value), TypeKind::BigInt) => Some(value.to_string()),
        (Datum::Float(value), TypeKind::Float) => Some(float_text(&java_float(*value))),
        (Datum::Double(value), TypeKind::Double) => Some(float_text(&java_double(*value))),
        (Datum::Bytes(bytes), TypeKind::Binary { .. } | TypeKind::VarBinary { .. } | TypeKind::Bytes) => {
            Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
        }
        (Datum::Date(days), TypeKind::Date) => date_text(i64::from(*days)),
        (Datum::Time(millis), TypeKind::Time { .. }) if (0..DAY_MS).contains(&i64::from(*millis)) => {
            Some(format!("{}_{:03}", clock_text(i64::from(*millis)), millis % 1000))
        }
        (Datum::Timestamp { millis, nanos }, TypeKind::Timestamp { .. } | TypeKind::TimestampLtz { .. })
            if (0..1_000_000).contains(nanos) =>
        {
            let fraction = format!("{:03}{nanos:06}", millis.rem_euclid(1000));
            date_text(millis.div_euclid(DAY_MS))
                .map(|date| format!("{date}-{}_{}", clock_text(millis.rem_euclid(DAY_MS)), fraction.trim_end_matches('0')))
        }
        (_, TypeKind::Decimal { .. } | TypeKind::Array(_) | TypeKind::Multiset(_) | TypeKind::Map(..) | TypeKind::Row(_)) => {
            return Err(Error::unsupported(format!("a partition key of type {:?}", data_type.kind)));
        }
        _ => None,
    };
    text.ok_or_else(|| Error::invalid(format!("{value:?} is no partition value of type {:?}", data_type.kind)))
}

/// `Double.toString` of Java: shortest digits that read back equal, `E` outside 10⁻³ to 10⁷.
pub(crate) fn java_double(value: f64) -> String {
    java_text(value, value.abs() < 1e7 && value.abs() >= 1e-3, &format!("{value:e}"), &format!("{value:.1e}"))
}

/// `Float.toString` of Java; see [`java_double`].
pub(crate) fn java_float(value: f32) -> String {
    let plain = value.abs() < 1e7 && value.abs() >= 1e-3;
    java_text(f64::from(value), plain, &format!("{value:e}"), &format!("{value:.1e}"))
}

/// `shortest` and `two` are the value in `{:e}` and `{:.1e}`: Java never prints fewer than two digits (4.9E-324, not 5E-324).
fn java_text(value: f64, plain: bool, shortest: &str, two: &str) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    let sign = if value.is_sign_negative() { "-" } else { "" };
    if value.is_infinite() {
        return format!("{sign}Infinity");
    }
    if value == 0.0 {
        return format!("{sign}0.0");
    }
    let text = if shortest.contains('.') { shortest } else { two };
    let (mantissa, exponent) = text.trim_start_matches('-').split_once('e').unwrap_or((text, "0"));
    if !plain {
        return format!("{sign}{mantissa}E{exponent}");
    }
    let digits: String = mantissa.chars().filter(|digit| *digit != '.').collect();
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let point = usize::try_from(exponent + 1).unwrap_or_default();
    let (whole, fraction) = if exponent < 0 {
        ("0".to_owned(), format!("{}{digits}", "0".repeat(usize::try_from(-exponent - 1).unwrap_or_default())))
    } else {
        let (whole, fraction) = digits.split_at(point.min(digits.len()));
        (format!("{whole}{}", "0".repeat(point.saturating_sub(digits.len()))), fraction.to_owned())
    };
    let fraction = fraction.trim_end_matches('0');
    format!("{sign}{whole}.{}", if fraction.is_empty() { "0" } else { fraction })
}

fn float_text(java: &str) -> String {
    java.replace('.', "_").replace("Infinity", "Inf")
}

fn parse_float<T: std::str::FromStr>(text: &str) -> Option<T> {
    match text {
        "NaN" | "Inf" | "-Inf" => text.parse().ok(),
        _ if text.chars().all(|char| char.is_ascii_digit() || matches!(char, '-' | '_' | 'E' | '+' | '.')) => {
            text.replace('_', ".").parse().ok()
        }
        _ => None,
    }
}

fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|char| char.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks_exact(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect())
}

/// A number of exactly `digits` decimal digits, at most `max`.
fn number(text: &str, digits: usize, max: i64) -> Option<i64> {
    let right = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|value| right && *value <= max)
}

/// Days since 1970-01-01 of a proleptic Gregorian date (Hinnant's algorithm).
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let (day, month) = (day_of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    (year_of_era + days.div_euclid(146_097) * 400 + i64::from(month <= 2), month, day)
}

fn date_text(days: i64) -> Option<String> {
    // 0000-01-01 to 9999-12-31: four digits, no sign.
    if !(-719_528..=2_932_896).contains(&days) {
        return None;
    }
    let (year, month, day) = date_of(days);
    Some(format!("{year:04}-{month:02}-{day:02}"))
}

/// `YYYY-MM-DD` and `HH-MM-SS` of a moment; `None` outside the years 0 to 9999.
pub(crate) fn civil_text(millis: i64) -> Option<(String, String)> {
    Some((date_text(millis.div_euclid(DAY_MS))?, clock_text(millis.rem_euclid(DAY_MS))))
}

fn clock_text(millis_of_day: i64) -> String {
    let seconds = millis_of_day / 1000;
    format!("{:02}-{:02}-{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Days since 1970-01-01 of `YYYY-MM-DD`; `None` for what is no date.
pub(crate) fn parse_date(text: &str) -> Option<i32> {
    let mut parts = text.split('-');
    let year = number(parts.next()?, 4, 9999)?;
    let month = number(parts.next()?, 2, 12)?;
    let day = number(parts.next()?, 2, 31)?;
    let days = days_of(year, month, day);
    // 2026-02-30 would come back as another date.
    (parts.next().is_none() && date_of(days) == (year, month, day)).then(|| i32::try_from(days).ok()).flatten()
}

/// `HH-MM-SS` and an optional `_` with 0 to `digits` digits → milliseconds of the day, nanoseconds of the millisecond.
fn parse_clock(text: &str, digits: usize) -> Option<(i64, i32)> {
    let (clock, fraction) = text.split_once('_').unwrap_or((text, ""));
    let mut parts = clock.split('-');
    let hour = number(parts.next()?, 2, 23)?;
    let minute = number(parts.next()?, 2, 59)?;
    let second = number(parts.next()?, 2, 59)?;
    if parts.next().is_some() || fraction.len() > digits {
        return None;
    }
    let nanos = number(&format!("{fraction:0<9}"), 9, i64::MAX)?;
    let millis = ((hour * 60 + minute) * 60 + second) * 1000 + nanos / 1_000_000;
    Some((millis, i32::try_from(nanos % 1_000_000).ok()?))
}

fn parse_time(text: &str) -> Option<i32> {
    parse_clock(text, 3).and_then(|(millis, _)| i32::try_from(millis).ok())
}

fn parse_timestamp(text: &str, precision: u8) -> Option<Datum> {
    let (date, clock) = text.split_at_checked(10)?;
    let (of_day, nanos) = if clock.is_empty() { (0, 0) } else { parse_clock(clock.strip_prefix('-')?, 9)? };
    let millis = i64::from(parse_date(date)?) * DAY_MS + of_day;
    // A value finer than its type would be cut in the lake, and two partitions could become one.
    let unit = 10_i64.pow(9_u32.saturating_sub(u32::from(precision)));
    let fits = (millis.rem_euclid(1000) * 1_000_000 + i64::from(nanos)) % unit == 0;
    fits.then_some(Datum::Timestamp { millis, nanos })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn kind(name: &str) -> TypeKind {
        match name {
            "STRING" => TypeKind::String,
            "CHAR" => TypeKind::Char { length: 2 },
            "BOOLEAN" => TypeKind::Boolean,
            "TINYINT" => TypeKind::TinyInt,
            "SMALLINT" => TypeKind::SmallInt,
            "INTEGER" => TypeKind::Int,
            "BIGINT" => TypeKind::BigInt,
            "FLOAT" => TypeKind::Float,
            "DOUBLE" => TypeKind::Double,
            "DATE" => TypeKind::Date,
            "TIME_WITHOUT_TIME_ZONE" => TypeKind::Time { precision: 3 },
            "TIMESTAMP_WITHOUT_TIME_ZONE" => TypeKind::Timestamp { precision: 9 },
            "TIMESTAMP_WITH_LOCAL_TIME_ZONE" => TypeKind::TimestampLtz { precision: 9 },
            "BYTES" => TypeKind::Bytes,
            "BINARY" => TypeKind::Binary { length: 1 },
            other => panic!("{other}"),
        }
    }

    fn value(kind: &TypeKind, text: &str) -> Datum {
        let first = |text: &str| text.split(' ').next().unwrap().parse::<i64>().unwrap();
        match kind {
            TypeKind::Boolean => Datum::Boolean(text == "true"),
            TypeKind::TinyInt => Datum::TinyInt(text.parse().unwrap()),
            TypeKind::SmallInt => Datum::SmallInt(text.parse().unwrap()),
            TypeKind::Int => Datum::Int(text.parse().unwrap()),
            TypeKind::BigInt => Datum::BigInt(text.parse().unwrap()),
            TypeKind::Float => Datum::Float(text.parse().unwrap()),
            TypeKind::Double => Datum::Double(text.parse().unwrap()),
            TypeKind::Date => Datum::Date(first(text).try_into().unwrap()),
            TypeKind::Time { .. } => Datum::Time(first(text).try_into().unwrap()),
            TypeKind::Timestamp { .. } | TypeKind::TimestampLtz { .. } => {
                let nanos = text.split_once("+ ").map_or(0, |(_, nanos)| first(nanos).try_into().unwrap());
                Datum::Timestamp { millis: first(text), nanos }
            }
            TypeKind::Bytes | TypeKind::Binary { .. } => Datum::Bytes(parse_hex(text.trim_start_matches("0x")).unwrap()),
            _ => Datum::String(text.to_owned()),
        }
    }

    #[test]
    fn values_have_the_text_that_java_gives_them_and_read_back() {
        let all: Value = serde_json::from_str(include_str!("../../fixtures/vectors/fluss-text.json")).unwrap();
        let cases = all["partition_values"].as_array().unwrap();
        assert_eq!(cases.len(), 41);
        for case in cases {
            let data_type = DataType::required(kind(case["type"].as_str().unwrap()));
            let value = value(&data_type.kind, case["value"].as_str().unwrap());
            let text = case["text"].as_str().unwrap();
            assert_eq!(format_value(&value, &data_type).unwrap(), text, "{case}");
            let read = parse_value(text, &data_type).unwrap();
            assert_eq!(format!("{read:?}"), format!("{value:?}"), "{case}");
        }
    }

    #[test]
    fn floats_are_written_as_java_writes_them() {
        for (value, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1e-3, "0.001"),
            (9.99e-4, "9.99E-4"),
            (1_234_567.0, "1234567.0"),
            (9_999_999.5, "9999999.5"),
            (1e7, "1.0E7"),
            (100.0, "100.0"),
            (f64::MIN_POSITIVE, "2.2250738585072014E-308"),
            (5e-324, "4.9E-324"),
            (f64::MAX, "1.7976931348623157E308"),
        ] {
            assert_eq!(java_double(value), text);
        }
        assert_eq!(java_float(1.1), "1.1");
        assert_eq!(java_float(f32::MAX), "3.4028235E38");
    }

    #[test]
    fn dates_times_and_wrong_texts() {
        let parse = |text, kind| parse_value(text, &DataType::nullable(kind));
        let timestamp = TypeKind::Timestamp { precision: 3 };
        assert_eq!(parse("2026-01-01", timestamp.clone()).unwrap(), Datum::Timestamp { millis: 1_767_225_600_000, nanos: 0 });
        for (text, kind) in [
            ("2026-02-30", TypeKind::Date),
            ("2026-2-3", TypeKind::Date),
            ("26-02-03", TypeKind::Date),
            ("24-00-00_000", TypeKind::Time { precision: 3 }),
            ("2026-01-01-00-00-00_1234567891", timestamp.clone()),
            ("2026-01-01-00-00-00_1234", timestamp),
            ("yes", TypeKind::Boolean),
            ("0x1", TypeKind::Int),
            ("300", TypeKind::TinyInt),
            ("abc", TypeKind::Bytes),
            ("infinity", TypeKind::Double),
        ] {
            assert!(parse(text, kind).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_value_reads_back_equal(days in -719_528_i32..=2_932_896, millis in 0_i32..86_400_000, nanos in 0_i32..1_000_000,
            float in any::<f32>(), double in any::<f64>(), long in any::<i64>(), bytes in proptest::collection::vec(any::<u8>(), 0..20)) {
            let at = Datum::Timestamp { millis: i64::from(days) * DAY_MS + i64::from(millis), nanos };
            for (value, kind) in [
                (Datum::Date(days), TypeKind::Date),
                (Datum::Time(millis), TypeKind::Time { precision: 3 }),
                (at.clone(), TypeKind::Timestamp { precision: 9 }),
                (at, TypeKind::TimestampLtz { precision: 9 }),
                (Datum::Float(float), TypeKind::Float),
                (Datum::Double(double), TypeKind::Double),
                (Datum::BigInt(long), TypeKind::BigInt),
                (Datum::Bytes(bytes), TypeKind::Bytes),
            ] {
                let data_type = DataType::required(kind);
                let text = format_value(&value, &data_type).unwrap();
                let read = parse_value(&text, &data_type).unwrap();
                prop_assert!(read == value || text == "NaN", "{text} {read:?}");
                prop_assert!(text.chars().all(|char| char.is_ascii_alphanumeric() || char == '-' || char == '_'), "{text}");
            }
        }

        #[test]
        fn foreign_text_never_panics(text in ".{0,30}") {
            for kind in [TypeKind::Date, TypeKind::Time { precision: 3 }, TypeKind::Timestamp { precision: 6 }, TypeKind::Bytes, TypeKind::Float] {
                drop(parse_value(&text, &DataType::required(kind)));
            }
        }
    }
}
