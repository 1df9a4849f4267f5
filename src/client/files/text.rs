//! Text files as chunks of whole records: lines of JSON, records of CSV. Each record knows its line.

use std::io::Read;

use crate::error::{Error, Result};

/// Longest record: what a server could still take in one batch.
const RECORD_BYTES_MAX: usize = 64 << 20;

/// Where records end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// At each line's end.
    Lines,
    /// At a line's end outside quotes.
    Csv { delimiter: u8 },
}

/// A record's bytes, without what ends it, and the line it starts in (from 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) line: u64,
    start: usize,
    end: usize,
}

/// Whole records, in order. Blank ones are left out.
#[derive(Debug, Default)]
pub(super) struct Records {
    bytes: Vec<u8>,
    pub(super) list: Vec<Record>,
}

impl Records {
    pub(super) fn bytes(&self, record: Record) -> &[u8] {
        self.bytes.get(record.start..record.end).unwrap_or_default()
    }

    /// Bytes of the file that they take.
    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// Where a byte of CSV is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    FieldStart,
    Field,
    Quoted,
    /// Behind a quote inside quotes: the end of the field's quotes, or the first half of a doubled one.
    Quote,
}

/// Cuts one text file.
#[derive(Debug)]
pub(super) struct Cutter<R> {
    reader: R,
    form: Form,
    chunk_bytes: usize,
    /// Bytes that are not given out yet; the first `scanned` of them were looked at.
    buffer: Vec<u8>,
    scanned: usize,
    at: At,
    /// Start of the record at hand and its line, and the line at `scanned`.
    start: usize,
    start_line: u64,
    line: u64,
    is_first: bool,
    /// The last byte was a carriage return that ended a record and its line.
    after_return: bool,
    ended: bool,
    /// What came with the header.
    rest: Option<Records>,
}

impl<R: Read> Cutter<R> {
    pub(super) fn new(reader: R, form: Form, chunk_bytes: usize) -> Self {
        Self {
            reader,
            form,
            chunk_bytes,
            buffer: Vec::new(),
            scanned: 0,
            at: At::FieldStart,
            start: 0,
            start_line: 1,
            line: 1,
            is_first: true,
            after_return: false,
            ended: false,
            rest: None,
        }
    }

    /// Takes the first record, to be called first.
    ///
    /// # Errors
    /// As [`Cutter::next`]; `Invalid` when there is none.
    pub(super) fn header(&mut self) -> Result<Vec<u8>> {
        let mut records = self.next()?.unwrap_or_default();
        if records.list.is_empty() {
            return Err(Error::invalid("the file is empty, it has no header line"));
        }
        let first = records.list.remove(0);
        let bytes = records.bytes(first).to_vec();
        self.rest = Some(records).filter(|records| !records.list.is_empty());
        Ok(bytes)
    }

    /// The next records, about `chunk_bytes` of them; `None` at the end.
    ///
    /// # Errors
    /// `Invalid` when the file can't be read or a record has no end.
    pub(super) fn next(&mut self) -> Result<Option<Records>> {
        if let Some(rest) = self.rest.take() {
            return Ok(Some(rest));
        }
        let mut list = Vec::new();
        while list.is_empty() && !self.ended {
            let wanted = self.chunk_bytes as u64;
            let read = self.reader.by_ref().take(wanted).read_to_end(&mut self.buffer);
            let read = read.map_err(|source| Error::invalid("read the file").with_source(source))?;
            self.ended = (read as u64) < wanted;
            if std::mem::take(&mut self.is_first) && self.buffer.starts_with(b"\xEF\xBB\xBF") {
                self.buffer.drain(..3);
            }
            self.scan(&mut list);
            if list.is_empty() && self.buffer.len() - self.start > RECORD_BYTES_MAX {
                let text = format!("line {} starts a record of more than {} MiB", self.start_line, RECORD_BYTES_MAX >> 20);
                let hint =
                    if self.form == Form::Lines { "each line has to be one object" } else { "look for a quote that is not closed" };
                return Err(Error::invalid(text).with_hint(hint));
            }
        }
        if self.ended && self.start < self.buffer.len() {
            if self.at != At::Quoted {
                self.close(self.buffer.len(), &mut list);
            } else if list.is_empty() {
                // It took everything behind it into one value; what stands before is handed out first.
                let text = format!("line {} starts a record with a quote that is not closed before the file ends", self.start_line);
                return Err(Error::invalid(text).with_hint("the file is cut off, or a quote inside quotes is not doubled"));
            }
        }
        if list.is_empty() {
            return Ok(None);
        }
        let rest = self.buffer.split_off(self.start);
        let bytes = std::mem::replace(&mut self.buffer, rest);
        self.scanned -= self.start;
        self.start = 0;
        Ok(Some(Records { bytes, list }))
    }

    fn scan(&mut self, list: &mut Vec<Record>) {
        let buffer = std::mem::take(&mut self.buffer);
        for (index, byte) in buffer.iter().enumerate().skip(self.scanned) {
            let ends = match self.form {
                Form::Lines => *byte == b'\n',
                Form::Csv { delimiter } => self.step(*byte, delimiter),
            };
            let is_return = ends && *byte == b'\r';
            self.line += u64::from(is_return || (*byte == b'\n' && !self.after_return));
            self.after_return = is_return;
            if ends {
                self.buffer_close(&buffer, index, list);
                self.start = index + 1;
                self.start_line = self.line;
            }
        }
        self.scanned = buffer.len();
        self.buffer = buffer;
    }

    /// Whether `byte` ends a record.
    fn step(&mut self, byte: u8, delimiter: u8) -> bool {
        let ends = self.at != At::Quoted && matches!(byte, b'\n' | b'\r');
        self.at = match (self.at, byte) {
            _ if ends => At::FieldStart,
            (At::Quoted, b'"') => At::Quote,
            (At::Quoted, _) => At::Quoted,
            (At::FieldStart | At::Quote, b'"') => At::Quoted,
            (_, byte) if byte == delimiter => At::FieldStart,
            _ => At::Field,
        };
        ends
    }

    fn close(&mut self, end: usize, list: &mut Vec<Record>) {
        let buffer = std::mem::take(&mut self.buffer);
        self.buffer_close(&buffer, end, list);
        self.buffer = buffer;
        self.start = end;
    }

    fn buffer_close(&self, buffer: &[u8], end: usize, list: &mut Vec<Record>) {
        let bytes = buffer.get(self.start..end).unwrap_or_default();
        let is_blank = match self.form {
            Form::Lines => bytes.iter().all(u8::is_ascii_whitespace),
            Form::Csv { .. } => bytes.is_empty(),
        };
        if !is_blank {
            list.push(Record { line: self.start_line, start: self.start, end });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Records of `text`, cut in chunks of this size: line and text; an error's words behind them, as line 0.
    fn cut(text: &[u8], form: Form, chunk_bytes: usize) -> Vec<(u64, String)> {
        let mut cutter = Cutter::new(text, form, chunk_bytes);
        let mut found = Vec::new();
        loop {
            match cutter.next() {
                Ok(Some(records)) => found.extend(
                    records.list.iter().map(|record| (record.line, String::from_utf8_lossy(records.bytes(*record)).into_owned())),
                ),
                Ok(None) => return found,
                Err(error) => {
                    found.push((0, error.chain()));
                    return found;
                }
            }
        }
    }

    const CSV: Form = Form::Csv { delimiter: b',' };

    #[test]
    fn lines_are_numbered_from_one_and_blank_ones_left_out() {
        let text = "\u{feff}{\"a\":1}\n\n  \r\n{\"a\":2}\r\n{\"a\":3}";
        for size in [3, 7, 100] {
            let found = cut(text.as_bytes(), Form::Lines, size);
            let found: Vec<_> = found.iter().map(|(line, text)| (*line, text.trim_end())).collect();
            assert_eq!(found, [(1, "{\"a\":1}"), (4, "{\"a\":2}"), (5, "{\"a\":3}")], "{size}");
        }
        assert_eq!(cut(b"", Form::Lines, 10), []);
        assert_eq!(cut(b"\n\n", Form::Lines, 1), []);
    }

    #[test]
    fn a_line_end_in_quotes_ends_no_record_and_a_quote_inside_a_field_opens_none() {
        let text = "a,b\r\n\"x\ny\",1\n\"say \"\"\n\"\"\",2\n\n5\" pipe,3\n\"q\"r,4";
        for size in [1, 2, 5, 1000] {
            let expected = [(1, "a,b"), (2, "\"x\ny\",1"), (4, "\"say \"\"\n\"\"\",2"), (7, "5\" pipe,3"), (8, "\"q\"r,4")];
            assert_eq!(cut(text.as_bytes(), CSV, size), expected.map(|(line, text)| (line, text.to_owned())), "{size}");
        }
    }

    #[test]
    fn a_quote_that_is_never_closed_is_an_error_behind_the_records_before_it() {
        for size in [1, 4, 1000] {
            let found = cut(b"a,b\n1,x\n2,\"y\n3,z\n", CSV, size);
            let lines: Vec<u64> = found.iter().map(|(line, _)| *line).collect();
            assert_eq!(lines, [1, 2, 0], "{size}");
            let words = "line 3 starts a record with a quote that is not closed";
            assert!(found.last().unwrap().1.contains(words), "{found:?}");
        }
        assert_eq!(cut(b"1,\"y\"", CSV, 2), [(1, "1,\"y\"".to_owned())]);
    }

    #[test]
    fn lines_that_end_with_a_carriage_return_alone_are_counted_too() {
        for size in [1, 2, 1000] {
            let found = cut(b"a\rb\r\nc\n\rd", CSV, size);
            let expected = [(1, "a"), (2, "b"), (3, "c"), (5, "d")];
            assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())), "{size}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_cut_the_same_in_any_chunks(bytes in proptest::collection::vec(prop_oneof![Just(b'"'), Just(b','), Just(b'\n'), Just(b'\r'), any::<u8>()], 0..200), size in 1_usize..50) {
            for form in [Form::Lines, CSV] {
                prop_assert_eq!(cut(&bytes, form, size), cut(&bytes, form, 1000));
            }
        }
    }
}
