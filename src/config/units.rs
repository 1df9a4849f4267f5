//! Durations and sizes as people write them: a whole number and its unit.

use std::time::Duration;

const KIB: u64 = 1 << 10;

fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, unit) = text.split_at_checked(text.find(|next: char| !next.is_ascii_digit())?)?;
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// Milliseconds of a duration text.
pub(super) fn millis(text: &str) -> Result<u64, String> {
    scaled(text, &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)])
        .ok_or_else(|| format!("`{text}` is not a duration such as `500ms`, `30s`, `2m`, `1h` or `1d`"))
}

/// Bytes of a size text.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    scaled(text, &[("B", 1), ("KiB", KIB), ("MiB", KIB * KIB), ("GiB", KIB * KIB * KIB)])
        .ok_or_else(|| format!("`{text}` is not a size such as `64KiB`, `128MiB` or `2GiB`"))
}

/// Milliseconds of a duration as Fluss writes it (`30 s`, `10min`, `500 ms`); without unit milliseconds.
pub(super) fn fluss_millis(text: &str) -> Result<u64, String> {
    const UNITS: [(u64, &[&str]); 5] = [
        (1, &["ms", "milli", "millis", "millisecond", "milliseconds", ""]),
        (1_000, &["s", "sec", "secs", "second", "seconds"]),
        (60_000, &["m", "min", "minute", "minutes"]),
        (3_600_000, &["h", "hour", "hours"]),
        (86_400_000, &["d", "day", "days"]),
    ];
    fluss_scaled(text, &UNITS).ok_or_else(|| "is not a duration as Fluss writes it, such as `30 s` or `10min`".to_owned())
}

/// Bytes of a size as Fluss writes it (`16mb`, `64 kb`); without unit bytes.
pub(super) fn fluss_bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(u64, &[&str]); 5] = [
        (1, &["", "b", "bytes"]),
        (KIB, &["k", "kb", "kibibytes"]),
        (KIB * KIB, &["m", "mb", "mebibytes"]),
        (KIB * KIB * KIB, &["g", "gb", "gibibytes"]),
        (KIB * KIB * KIB * KIB, &["t", "tb", "tebibytes"]),
    ];
    fluss_scaled(text, &UNITS).ok_or_else(|| "is not a size as Fluss writes it, such as `16mb`".to_owned())
}

fn fluss_scaled(text: &str, units: &[(u64, &[&str])]) -> Option<u64> {
    let text = text.trim();
    let (number, unit) = text.split_at_checked(text.find(|next: char| !next.is_ascii_digit()).unwrap_or(text.len()))?;
    let unit = unit.trim_start().to_ascii_lowercase();
    let (factor, _) = units.iter().find(|(_, names)| names.contains(&unit.as_str()))?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// The text of a number of bytes, in the largest unit that takes it whole.
pub(super) fn bytes_text(bytes: u64) -> String {
    let mut left = (bytes, "B");
    for unit in ["KiB", "MiB", "GiB"] {
        if left.0 == 0 || !left.0.is_multiple_of(KIB) {
            break;
        }
        left = (left.0 / KIB, unit);
    }
    format!("{}{}", left.0, left.1)
}

/// A duration text, such as `500ms`, `30s`, `2m`, `1h`.
///
/// # Errors
/// What it should look like.
pub fn duration(text: &str) -> Result<Duration, String> {
    millis(text).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(duration("2m").unwrap(), Duration::from_secs(120));
        assert_eq!(duration("1d").unwrap(), Duration::from_secs(86_400));
        for wrong in ["", "5", "s", "5w", "-1s", "99999999999999999999s", "18446744073709551615h"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_fluss_writes_is_read_as_fluss_reads_it() {
        for (text, millis) in [("30 s", 30_000), ("10min", 600_000), ("500", 500), ("1 h", 3_600_000), ("2 DAYS", 172_800_000)] {
            assert_eq!(fluss_millis(text).unwrap(), millis, "{text}");
        }
        for (text, bytes) in [("16mb", 16 << 20), ("1 b", 1), ("1024", 1024), ("64 KB", 64 << 10), ("2g", 2 << 30)] {
            assert_eq!(fluss_bytes(text).unwrap(), bytes, "{text}");
        }
        for wrong in ["", "s", "1.5 s", "5 weeks", "-1 s", "18446744073709551615 d"] {
            assert!(fluss_millis(wrong).is_err() && fluss_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_need_a_unit_and_are_shown_in_the_largest_whole_one() {
        assert_eq!(bytes("128MiB").unwrap(), 128 << 20);
        assert_eq!(bytes("3 GiB").unwrap(), 3 << 30);
        for wrong in ["", "5", "MiB", "1.5MiB", "1mb", "18446744073709551615KiB"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!([0, 1, 1536, 64 << 20, 2 << 30, 1 << 50].map(bytes_text), ["0B", "1B", "1536B", "64MiB", "2GiB", "1048576GiB"]);
    }
}
