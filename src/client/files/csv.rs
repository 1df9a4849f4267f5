//! CSV: fields of a record, header and columns, what is NULL.

use std::borrow::Cow;

use arrow_array::ArrayRef;
use arrow_array::builder::StringBuilder;
use std::sync::Arc;

use super::text::Records;
use super::values::{BadValue, Fault};
use super::{Columns, twice};
use crate::error::{Error, Result};
use crate::model::TypeKind;

/// Where each column of a CSV file goes: the table's column, or nowhere.
#[derive(Debug)]
pub(super) struct Header(Vec<Option<usize>>);

impl Header {
    /// Reads the header line.
    ///
    /// # Errors
    /// `Invalid` when it names a column twice, one that the table does not have, or leaves out one that is NOT NULL.
    pub(super) fn read(record: &[u8], delimiter: u8, columns: &Columns) -> Result<Self> {
        let mut names = Vec::new();
        for Part { bytes, broken, .. } in Fields::of(record, delimiter) {
            if broken {
                return Err(Error::invalid(format!("the header has {BEHIND_QUOTE}")));
            }
            let name =
                std::str::from_utf8(&bytes).map_err(|source| Error::invalid("the header is not UTF-8").with_source(source))?;
            names.push(name.trim().to_owned());
        }
        if let Some(name) = twice(&names) {
            return Err(Error::invalid(format!("the header names column `{name}` twice")));
        }
        let places = names.iter().map(|name| columns.place(name)).collect::<Result<Vec<_>>>()?;
        Self::checked(places, columns)
    }

    /// Without a header line: the table's columns in their order.
    ///
    /// # Errors
    /// As [`Header::read`].
    pub(super) fn of_table(columns: &Columns) -> Result<Self> {
        Self::checked((0..columns.fields.len()).map(Some).collect(), columns)
    }

    fn checked(places: Vec<Option<usize>>, columns: &Columns) -> Result<Self> {
        for (index, field) in columns.fields.iter().enumerate() {
            let is_there = places.contains(&Some(index));
            if is_there && field.data_type.kind.is_nested() {
                let text = format!("column `{}` is nested, and CSV holds no nested values", field.name);
                return Err(Error::unsupported(text).with_hint("load JSON or Parquet"));
            }
            columns.may_miss(field, is_there)?;
        }
        Ok(Self(places))
    }
}

const BEHIND_QUOTE: &str = "text behind a closing quote; a quote inside quotes has to be doubled";

/// One field of a record.
#[derive(Debug, PartialEq, Eq)]
struct Part<'a> {
    bytes: Cow<'a, [u8]>,
    quoted: bool,
    /// Something stands between its closing quote and the delimiter, so that nobody knows what was meant.
    broken: bool,
}

/// The fields of one record.
struct Fields<'a> {
    rest: Option<&'a [u8]>,
    delimiter: u8,
}

impl<'a> Fields<'a> {
    const fn of(record: &'a [u8], delimiter: u8) -> Self {
        Self { rest: Some(record), delimiter }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Part<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest.take()?;
        let cut = |bytes: &'a [u8]| match bytes.iter().position(|byte| *byte == self.delimiter) {
            Some(at) => (bytes.get(..at).unwrap_or_default(), bytes.get(at + 1..)),
            None => (bytes, None),
        };
        let Some(mut quoted) = rest.strip_prefix(b"\"") else {
            let (field, rest) = cut(rest);
            self.rest = rest;
            return Some(Part { bytes: Cow::Borrowed(field), quoted: false, broken: false });
        };
        let mut whole = Cow::Borrowed(&[][..]);
        loop {
            let end = quoted.iter().position(|byte| *byte == b'"').unwrap_or(quoted.len());
            push(&mut whole, quoted.get(..end).unwrap_or_default());
            let behind = quoted.get(end + 1..).unwrap_or_default();
            match behind.strip_prefix(b"\"") {
                Some(more) => {
                    push(&mut whole, b"\"");
                    quoted = more;
                }
                None => {
                    let (tail, rest) = cut(behind);
                    self.rest = rest;
                    return Some(Part { bytes: whole, quoted: true, broken: !tail.is_empty() });
                }
            }
        }
    }
}

fn push<'a>(whole: &mut Cow<'a, [u8]>, more: &'a [u8]) {
    if whole.is_empty() {
        *whole = Cow::Borrowed(more);
    } else if !more.is_empty() {
        whole.to_mut().extend_from_slice(more);
    }
}

/// The records with these indices, as one array of text per column of the table; `None` = the file does not have it.
pub(super) fn read(
    records: &Records,
    selection: &[usize],
    header: &Header,
    columns: &Columns,
) -> Result<Vec<Option<ArrayRef>>, Fault> {
    let mut builders: Vec<Option<StringBuilder>> = columns.fields.iter().map(|_| None).collect();
    for place in header.0.iter().flatten() {
        if let Some(builder) = builders.get_mut(*place) {
            *builder = Some(StringBuilder::with_capacity(selection.len(), selection.len() * 8));
        }
    }
    let mut bad = Vec::new();
    for (row, record) in selection.iter().enumerate().filter_map(|(row, index)| Some((row, *records.list.get(*index)?))) {
        let mut count = 0;
        let mut refuse = |path: &str, why: String| {
            if bad.len() < columns.faults_max {
                bad.push(BadValue { row, path: path.to_owned(), why });
            }
        };
        for Part { bytes, quoted, broken } in Fields::of(records.bytes(record), columns.delimiter) {
            if broken {
                refuse("", format!("field {} has {BEHIND_QUOTE}", count + 1));
            }
            let place = header.0.get(count).copied();
            count += 1;
            let Some(Some(place)) = place else { continue };
            let (Some(Some(builder)), Some(field)) = (builders.get_mut(place), columns.fields.get(place)) else { continue };
            let Ok(text) = std::str::from_utf8(&bytes) else {
                refuse(&field.name, "not UTF-8".to_owned());
                builder.append_null();
                continue;
            };
            // Nothing between two delimiters can be a value of these; of the others only NULL.
            let may_be_empty = matches!(field.data_type.kind, TypeKind::String | TypeKind::Char { .. } | TypeKind::Bytes);
            let is_null = if may_be_empty {
                !quoted && text == columns.null && (field.data_type.nullable || !text.is_empty())
            } else {
                text.trim().is_empty() || text == columns.null
            };
            builder.append_option((!is_null).then_some(text));
        }
        if count != header.0.len() {
            refuse("", format!("{count} fields where there should be {}", header.0.len()));
            // The columns stay of one length; the row is bad anyway.
            for builder in builders.iter_mut().flatten() {
                while arrow_array::builder::ArrayBuilder::len(builder) <= row {
                    builder.append_null();
                }
            }
        }
    }
    if !bad.is_empty() {
        return Err(Fault::Values(bad));
    }
    let finish = |builder: Option<StringBuilder>| builder.map(|mut builder| Arc::new(builder.finish()) as ArrayRef);
    Ok(builders.into_iter().map(finish).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fields(record: &str) -> Vec<(String, bool)> {
        Fields::of(record.as_bytes(), b',').map(|part| (String::from_utf8(part.bytes.into_owned()).unwrap(), part.quoted)).collect()
    }

    #[test]
    fn fields_lose_their_quotes_and_doubled_quotes_become_one() {
        let plain = |text: &str| (text.to_owned(), false);
        let quoted = |text: &str| (text.to_owned(), true);
        assert_eq!(fields("a,,b"), [plain("a"), plain(""), plain("b")]);
        assert_eq!(fields("\"a,b\",\"\",\"x\"\"y\",5\" pipe"), [quoted("a,b"), quoted(""), quoted("x\"y"), plain("5\" pipe")]);
        assert_eq!(fields(","), [plain(""), plain("")]);
    }

    #[test]
    fn text_behind_a_closing_quote_breaks_the_field() {
        let broken = |record: &str| Fields::of(record.as_bytes(), b',').map(|part| part.broken).collect::<Vec<_>>();
        assert_eq!(broken("\"q\"r,\"say \"hi\" loud\",\"q\",5\" pipe"), [true, true, false, false]);
        assert_eq!(broken("\"a\" ,b"), [true, false]);
    }

    proptest! {
        #[test]
        fn what_is_written_by_the_rules_reads_back(values in proptest::collection::vec(".{0,12}", 1..6)) {
            let written: Vec<String> = values.iter().map(|value| format!("\"{}\"", value.replace('"', "\"\""))).collect();
            let read: Vec<String> = fields(&written.join(",")).into_iter().map(|(text, _)| text).collect();
            prop_assert_eq!(read, values);
        }
    }
}
