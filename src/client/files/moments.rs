//! Dates, times and timestamps as people write them: `2024-02-29`, `12:34:56.789`, `2024-02-29T12:34:56.789+02:00`.

use crate::fluss::partition::parse_date;

pub(super) const FINER: &str = "finer than the column's precision";
const DATE: &str = "a date is written 2024-02-29";
const TIME: &str = "a time is written 12:34:56.789";
const TIMESTAMP: &str = "a timestamp is written 2024-02-29T12:34:56.789";

/// Days since 1970-01-01.
pub(super) fn date(text: &str) -> Result<i32, &'static str> {
    parse_date(text).ok_or(DATE)
}

/// Nanoseconds of the day, in whole steps of the `digits`-th part of a second.
pub(super) fn time(text: &str, digits: u8) -> Result<i64, &'static str> {
    clock(text, digits, TIME).map(|(seconds, nanos)| seconds * 1_000_000_000 + nanos)
}

/// Seconds since 1970-01-01 and nanoseconds of the second. A zone may stand at the end where `zoned`; without one it is UTC.
pub(super) fn timestamp(text: &str, digits: u8, zoned: bool) -> Result<(i64, i64), &'static str> {
    let (date, rest) = text.split_at_checked(10).ok_or(TIMESTAMP)?;
    let days = i64::from(parse_date(date).ok_or(TIMESTAMP)?);
    if rest.is_empty() {
        return Ok((days * 86_400, 0));
    }
    let rest = rest.strip_prefix(['T', 't', ' ']).ok_or(TIMESTAMP)?;
    let end = rest.find(|next: char| !next.is_ascii_digit() && !matches!(next, ':' | '.')).unwrap_or(rest.len());
    let (of_day, zone) = rest.split_at_checked(end).ok_or(TIMESTAMP)?;
    let (seconds, nanos) = clock(of_day, digits, TIMESTAMP)?;
    let offset = offset(zone.trim_start()).ok_or(TIMESTAMP)?;
    match offset {
        Some(_) if !zoned => Err("it has a zone, and the column has none"),
        offset => Ok((days * 86_400 + seconds - offset.unwrap_or(0), nanos)),
    }
}

/// `HH:MM`, `HH:MM:SS`, `HH:MM:SS.f…` → seconds of the day and nanoseconds.
fn clock(text: &str, digits: u8, form: &'static str) -> Result<(i64, i64), &'static str> {
    let (whole, fraction) = match text.split_once('.') {
        Some((_, "")) => return Err(form),
        Some(parts) => parts,
        None => (text, ""),
    };
    let mut parts = whole.split(':');
    let mut part = |max| parts.next().map(|part| two(part, max).ok_or(form)).transpose();
    let (Some(hour), Some(minute)) = (part(23)?, part(59)?) else { return Err(form) };
    let second = part(59)?;
    if parts.next().is_some() || (second.is_none() && !fraction.is_empty()) {
        return Err(form);
    }
    let fraction = fraction.trim_end_matches('0');
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(form);
    }
    if fraction.len() > usize::from(digits) {
        return Err(FINER);
    }
    let nanos =
        fraction.bytes().chain(std::iter::repeat(b'0')).take(9).fold(0, |nanos, digit| nanos * 10 + i64::from(digit - b'0'));
    Ok(((hour * 60 + minute) * 60 + second.unwrap_or(0), nanos))
}

/// Two digits, at most `max`.
fn two(text: &str, max: i64) -> Option<i64> {
    let [high, low] = text.as_bytes() else { return None };
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| i64::from(byte - b'0'));
    Some(digit(high)? * 10 + digit(low)?).filter(|value| *value <= max)
}

/// Seconds east of UTC of `Z`, `UTC`, `+02`, `+0200`, `+02:00`; `Some(None)` for nothing.
fn offset(text: &str) -> Option<Option<i64>> {
    let (sign, rest) = match text {
        "" => return Some(None),
        "Z" | "z" | "UTC" => return Some(Some(0)),
        text => match (text.strip_prefix('+'), text.strip_prefix('-')) {
            (Some(rest), _) => (1, rest),
            (_, Some(rest)) => (-1, rest),
            _ => return None,
        },
    };
    let (hours, minutes) = rest.split_at_checked(2)?;
    let minutes = minutes.strip_prefix(':').unwrap_or(minutes);
    let minutes = if minutes.is_empty() && rest.len() == 2 { 0 } else { two(minutes, 59)? };
    Some(Some(sign * (two(hours, 18)? * 60 + minutes) * 60))
}
