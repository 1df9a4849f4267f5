//! The only place that prints: stdout is data, stderr is talk.

use std::io::{ErrorKind, Write};

use serde::Serialize;

use super::End;
use crate::error::{Error, Kind};

/// Both streams of the process.
#[derive(Debug)]
pub(crate) struct Output {
    _private: (),
}

impl Output {
    pub(super) const fn new() -> Self {
        Self { _private: () }
    }

    /// Prints one or more lines of data.
    ///
    /// # Errors
    /// `End::OutputClosed` when nobody reads any more.
    pub(crate) fn data(&mut self, lines: &str) -> Result<(), End> {
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{lines}").and_then(|()| stdout.flush()).map_err(|source| match source.kind() {
            ErrorKind::BrokenPipe => End::OutputClosed,
            _ => Error::new(Kind::Unavailable, "write to stdout").with_source(source).into(),
        })
    }

    /// Prints a value as one line of JSON.
    ///
    /// # Errors
    /// As [`Output::data`].
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), End> {
        let line = serde_json::to_string(value).map_err(|source| Error::internal("write JSON").with_source(source))?;
        self.data(&line)
    }

    /// Prints a table: left-aligned first column, the others right-aligned, two spaces between.
    ///
    /// # Errors
    /// As [`Output::data`].
    pub(crate) fn table(&mut self, rows: &[Vec<String>]) -> Result<(), End> {
        for line in aligned(rows) {
            self.data(&line)?;
        }
        Ok(())
    }

    /// Says something to the operator. Nobody listening is no fault.
    pub(crate) fn talk(&mut self, text: &str) {
        drop(writeln!(std::io::stderr().lock(), "{}", text.trim_end()));
    }

    /// Says why a command failed and, where known, the way out.
    pub(crate) fn error(&mut self, error: &Error) {
        self.talk(&format!("error: {}", error.chain()));
        if let Some(hint) = error.hint() {
            self.talk(&format!("hint: {hint}"));
        }
    }
}

/// How showing ended that comes before an act: unless all of it was read, nothing is to be done.
///
/// # Errors
/// `Unavailable` when nobody read it to its end and something `acts`; else as `shown`.
pub(crate) fn seen(shown: Result<(), End>, acts: bool) -> Result<(), End> {
    match shown {
        Err(End::OutputClosed) if acts => {
            let text = "stdout was closed before all was shown that would be done: nothing was done";
            Err(Error::new(Kind::Unavailable, text).with_hint("let it be read to its end, or send it to a file").into())
        }
        shown => shown,
    }
}

/// The lines of a table: left-aligned first column, the others right-aligned, two spaces between.
pub(crate) fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            if column == 0 {
                line.push_str(&format!("{cell:<width$}"));
            } else {
                line.push_str(&format!("  {cell:>width$}"));
            }
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// A count with thousands separators.
pub(crate) fn count(number: impl Into<i128>) -> String {
    let number: i128 = number.into();
    let digits = number.unsigned_abs().to_string();
    let mut text = String::new();
    if number < 0 {
        text.push('-');
    }
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A point in time, epoch milliseconds, as UTC text.
pub(crate) fn time(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms)
        .map_or_else(|_| ms.to_string(), |moment| moment.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}

/// A length of time, as people say it: its two largest units. What lies before its start is none.
pub(crate) fn duration(ms: i64) -> String {
    let (ms, s) = (ms.max(0), ms.max(0) / 1_000);
    let two = |large: i64, unit: &str, small: i64, part: &str| {
        if small == 0 { format!("{large} {unit}") } else { format!("{large} {unit} {small} {part}") }
    };
    match s {
        0 => format!("{ms} ms"),
        1..60 => format!("{s} s"),
        60..3_600 => two(s / 60, "min", s % 60, "s"),
        3_600..86_400 => two(s / 3_600, "h", s / 60 % 60, "min"),
        _ => two(s / 86_400, "d", s / 3_600 % 24, "h"),
    }
}

/// A number of bytes, as people say it.
pub(crate) fn size(bytes: usize) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let step = (bytes.max(1).ilog2() / 10).min(4);
    let unit = units.get(step as usize).copied().unwrap_or_default();
    let tenths = (bytes as u128 * 10) >> (10 * step);
    if step == 0 { format!("{bytes} {unit}") } else { format!("{}.{} {unit}", tenths / 10, tenths % 10) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_thousands_separators() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (-35_000, "-35,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), text);
        }
    }
    #[test]
    fn durations_and_sizes_are_said_in_units_that_fit() {
        let said = [-5, 0, 999, 1_000, 59_999, 60_000, 725_000, 3_600_000, 11_520_000, 86_400_000, 183_600_000].map(duration);
        let expected = ["0 ms", "0 ms", "999 ms", "1 s", "59 s", "1 min", "12 min 5 s", "1 h", "3 h 12 min", "1 d", "2 d 3 h"];
        assert_eq!(said, expected);
        let said = [0, 1_023, 1_024, 12 << 20, (1 << 30) + (1 << 29), 5 << 50].map(size);
        assert_eq!(said, ["0 B", "1023 B", "1.0 KiB", "12.0 MiB", "1.5 GiB", "5120.0 TiB"]);
    }
}
