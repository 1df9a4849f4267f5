//! Setters: each checks a value and puts it where it belongs. A key's line in `keys` names one of them.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::given::Raw;
use super::secret::Secret;
use super::units;

/// Checks a value and puts it where it belongs; called for each source that gives one, the strongest last.
pub(super) type Setter<'a> = Box<dyn FnMut(&Raw) -> Result<(), String> + 'a>;

/// How a number is written.
#[derive(Clone, Copy)]
pub(super) enum Unit {
    Count,
    Bytes,
    Time,
}

pub(super) const MIB: u64 = 1 << 20;
pub(super) const SECOND: u64 = 1_000;
pub(super) const HOUR: u64 = 3_600 * SECOND;

/// The value as a number within `range`, which is in bytes or milliseconds where it has a unit.
fn within(raw: &Raw, unit: Unit, range: &RangeInclusive<u64>) -> Result<u64, String> {
    let number = match (unit, raw) {
        (Unit::Count, Raw::Whole(number)) => u64::try_from(*number).ok(),
        (Unit::Count, Raw::Plain(text)) if is_whole(text) => text.parse::<u64>().ok(),
        (Unit::Bytes, Raw::Quoted(text) | Raw::Plain(text)) => Some(units::bytes(text)?),
        (Unit::Time, Raw::Quoted(text) | Raw::Plain(text)) => Some(units::millis(text)?),
        (Unit::Count, _) => return Err(format!("`{raw}` is not a whole number")),
        (Unit::Bytes, _) => return Err(format!("`{raw}` is not a size in quotes, such as `\"128MiB\"`")),
        (Unit::Time, _) => return Err(format!("`{raw}` is not a duration in quotes, such as `\"30s\"`")),
    };
    number.filter(|number| range.contains(number)).ok_or_else(|| {
        let show = |number: u64| match unit {
            Unit::Count => number.to_string(),
            Unit::Bytes => units::bytes_text(number),
            Unit::Time => format!("{:?}", Duration::from_millis(number)),
        };
        format!("`{raw}` is not within {} and {}", show(*range.start()), show(*range.end()))
    })
}

fn is_whole(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn text(raw: &Raw) -> Result<&str, String> {
    match raw {
        Raw::Quoted(text) | Raw::Plain(text) => Ok(text),
        Raw::Whole(_) | Raw::Truth(_) | Raw::List(_) | Raw::Empty | Raw::Other(_) => Err(format!("`{raw}` is not text in quotes")),
    }
}

/// A count or a size.
pub(super) fn number<T: TryFrom<u64>>(place: &mut T, unit: Unit, range: RangeInclusive<u64>) -> Setter<'_> {
    Box::new(move |raw| {
        *place = within(raw, unit, &range)?.try_into().map_err(|_source| format!("`{raw}` is too large here"))?;
        Ok(())
    })
}

/// A duration; the range is in milliseconds.
pub(super) fn time(place: &mut Duration, range: RangeInclusive<u64>) -> Setter<'_> {
    Box::new(move |raw| {
        *place = Duration::from_millis(within(raw, Unit::Time, &range)?);
        Ok(())
    })
}

/// A count or a size, or a `word` that stands for none.
pub(super) fn number_or<'a, T: TryFrom<u64>>(
    word: &'static str,
    place: &'a mut Option<T>,
    unit: Unit,
    range: RangeInclusive<u64>,
) -> Setter<'a> {
    Box::new(move |raw| {
        let found = if is_word(raw, word) {
            None
        } else {
            Some(within(raw, unit, &range)?.try_into().map_err(|_source| format!("`{raw}` is too large here"))?)
        };
        *place = found;
        Ok(())
    })
}

fn is_word(raw: &Raw, word: &str) -> bool {
    matches!(raw, Raw::Quoted(text) | Raw::Plain(text) if text == word)
}

/// Text as it is; it may be shown.
pub(super) fn words<'a>(place: &'a mut Option<String>) -> Setter<'a> {
    Box::new(move |raw| {
        *place = Some(text(raw)?.to_owned());
        Ok(())
    })
}

/// Text that `make` turns into what it stands for.
pub(super) fn made<'a, T>(place: &'a mut T, make: impl Fn(&str) -> Result<T, String> + 'a) -> Setter<'a> {
    Box::new(move |raw| {
        *place = make(text(raw)?)?;
        Ok(())
    })
}

/// Text that is never shown.
pub(super) fn secret(place: &mut Option<Secret>) -> Setter<'_> {
    Box::new(move |raw| {
        // The value is not quoted, whatever it is.
        let found = text(raw).map_err(|_quotes_it| "is not text in quotes".to_owned())?;
        if found.is_empty() {
            return Err("is empty".to_owned());
        }
        *place = Some(Secret::new(found.to_owned()));
        Ok(())
    })
}

/// One of some words, whatever their case. What stands there instead is not shown: it may be meant for the line above.
pub(super) fn choice<'a, T: Clone>(place: &'a mut T, choices: &'a [(&'static str, T)]) -> Setter<'a> {
    Box::new(move |raw| {
        let found = text(raw).ok().and_then(|text| choices.iter().find(|(word, _)| word.eq_ignore_ascii_case(text)));
        let Some((_, choice)) = found else {
            let words: Vec<String> = choices.iter().map(|(word, _)| format!("`{word}`")).collect();
            return Err(format!("is not one of {}", words.join(", ")));
        };
        *place = choice.clone();
        Ok(())
    })
}

/// A key that has one value only so far.
pub(super) fn only(word: &'static str) -> Setter<'static> {
    Box::new(move |raw| {
        let right = text(raw).is_ok_and(|text| word.eq_ignore_ascii_case(text));
        if right { Ok(()) } else { Err(format!("can only be `{word}` so far")) }
    })
}

/// A list: of TOML, or one text with commas (those in braces belong to a glob). `check` makes each member.
pub(super) fn list<'a, T>(place: &'a mut Vec<T>, check: impl Fn(&str) -> Result<T, String> + 'a) -> Setter<'a> {
    Box::new(move |raw| {
        let mut depth = 0_u32;
        let parts: Vec<&str> = match raw {
            Raw::List(texts) => texts.iter().map(String::as_str).collect(),
            raw => text(raw)?
                .split(|next: char| {
                    match next {
                        '{' => depth = depth.saturating_add(1),
                        '}' => depth = depth.saturating_sub(1),
                        _ => {}
                    }
                    next == ',' && depth == 0
                })
                .collect(),
        };
        let found = parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).map(&check);
        *place = found.collect::<Result<_, _>>()?;
        Ok(())
    })
}
