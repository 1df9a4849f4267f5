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
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let width =
            |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                if column == 0 {
                    line.push_str(&format!("{cell:<width$}"));
                } else {
                    line.push_str(&format!("  {cell:>width$}"));
                }
            }
            self.data(line.trim_end())?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_thousands_separators() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (-35_000, "-35,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), text);
        }
    }
}
