//! Footer and pages of a Parquet file, looked at before the `parquet` crate believes what they say about memory.
//!
//! Found by fuzzing: a dictionary of 2³¹ values is allocated by the header's word alone, and so are a page of 2 GiB and a
//! group of 2²⁹ columns in the footer. All are Thrift's compact protocol; of it only sizes and counts are read. Called where files are opened: `lake`, `client`.

use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::basic::Compression;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::ChunkReader;

use crate::error::{Error, Result};

/// What a page may decompress to for each of its bytes, the most that ZSTD makes of one, and in any case.
const PAGE_RATIO_MAX: u64 = 32_768;
const PAGE_BYTES: u64 = 64 << 10;
/// Largest page after decompression, unless a good part of it is really there.
const PAGE_BYTES_MAX: u64 = 1 << 30;
const LARGE_RATIO_MAX: u64 = 16;
/// Bytes that a header is looked for in first; statistics in it may need more.
const HEADER_BYTES: u64 = 256;
const HEADER_BYTES_MAX: u64 = 1 << 20;
/// Nested structures at most, as the `parquet` crate has it; today's footers have eight.
const DEPTH_MAX: usize = 64;
/// Groups of columns in each other at most: the `parquet` crate goes down by a call each.
const LEVELS_MAX: usize = 256;

/// Types of the fields of a footer and of a column in it, by their numbers from 1 on. The `parquet` crate reads a field as what it should
/// be, of whatever type it says it is.
const FOOTER: [u8; 9] = [5, 9, 6, 9, 9, 8, 9, 12, 8];
const COLUMN: [u8; 10] = [5, 5, 5, 8, 5, 5, 5, 5, 5, 12];

fn is_of(types: &[u8], id: i64, kind: u8) -> bool {
    let place = usize::try_from(id - 1).ok();
    place.and_then(|place| types.get(place)).is_none_or(|wanted| *wanted == kind)
}

/// A column's pages in one row group, as the file's footer places them.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    start: u64,
    end: u64,
    /// Values, NULLs included.
    values: i64,
}

/// Runs the `parquet` crate on a file: on some that are damaged it panics.
///
/// # Errors
/// `Data` when it does; as `read`.
pub fn guarded<T>(read: impl FnOnce() -> Result<T>) -> Result<T> {
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
    done.unwrap_or_else(|_told_already| Err(Error::data("the file is damaged: its pages are not what its footer says")))
}

/// Checks that lists and groups of columns in the footer at the end of `file` are as large as they say. What is no footer at all is left
/// to the `parquet` crate.
///
/// # Errors
/// `Data` names the byte where the footer begins.
pub fn check_footer(file: &impl ChunkReader) -> Result<()> {
    const END: u64 = 8;
    let Some((at, end)) = file.len().checked_sub(END).and_then(|at| Some((at, file.get_bytes(at, 8).ok()?))) else { return Ok(()) };
    let [one, two, three, four, b'P', b'A', b'R', b'1'] = *end else { return Ok(()) };
    let length = u32::from_le_bytes([one, two, three, four]);
    let Some(start) = at.checked_sub(u64::from(length)) else { return Ok(()) };
    let Ok(footer) = file.get_bytes(start, usize::try_from(length).unwrap_or(usize::MAX)) else { return Ok(()) };
    let read = Cursor { rest: &footer }.footer();
    read.ok_or_else(|| Error::data(format!("the footer at byte `{start}` has less in it than it says")))
}

/// Checks the headers of all pages of the columns in `mask`.
///
/// # Errors
/// `Unsupported` names the codec that is not read. `Data` names the column, and the byte where a header is that can't be read, or promises
/// more than the page could hold.
pub fn check(file: &impl ChunkReader, footer: &ParquetMetaData, mask: &ProjectionMask) -> Result<()> {
    let read = |at: u64, length: usize| {
        file.get_bytes(at, length).map_err(|source| Error::data(format!("read from byte `{at}`")).with_source(source))
    };
    for group in footer.row_groups() {
        for (_, column) in group.columns().iter().enumerate().filter(|(leaf, _)| mask.leaf_included(*leaf)) {
            let named = |error: Error| error.context(format!("column `{}`", column.column_path()));
            if let Some(codec) = unread(column.compression()) {
                let error = Error::unsupported(format!("parquet codec `{codec}`"));
                return Err(named(error.with_hint("ZSTD, SNAPPY, LZ4, LZ4_RAW and none are read")));
            }
            // Where the `parquet` crate begins, even if that is behind the data.
            let first = column.dictionary_page_offset().unwrap_or_else(|| column.data_page_offset());
            let range = u64::try_from(first).ok().zip(u64::try_from(column.compressed_size()).ok());
            let range = range.and_then(|(start, length)| Some((start, start.checked_add(length)?)));
            let Some((start, end)) = range.filter(|(_, end)| *end <= file.len()) else {
                let (length, of) = (column.compressed_size(), file.len());
                return Err(named(Error::data(format!("its pages lie at `{first}`+`{length}`, in a file of `{of}` bytes"))));
            };
            pages(Chunk { start, end, values: column.num_values() }, read).map_err(named)?;
        }
    }
    Ok(())
}

/// A codec that the `parquet` crate is compiled without.
const fn unread(codec: Compression) -> Option<&'static str> {
    match codec {
        Compression::GZIP(_) => Some("GZIP"),
        Compression::BROTLI(_) => Some("BROTLI"),
        Compression::LZO => Some("LZO"),
        Compression::UNCOMPRESSED | Compression::SNAPPY | Compression::LZ4 | Compression::ZSTD(_) | Compression::LZ4_RAW => None,
    }
}

fn pages(chunk: Chunk, mut read: impl FnMut(u64, usize) -> Result<Bytes>) -> Result<()> {
    let (mut at, mut left) = (chunk.start, chunk.values);
    // Also where no values are due any more: the `parquet` crate counts bytes alone.
    while at < chunk.end {
        let page = header(at, chunk.end, &mut read)?;
        let wrong = |what: String| Error::data(format!("the page at byte `{at}` {what}"));
        let (plain, stored) = (page.plain_bytes, page.stored_bytes);
        let most = stored.saturating_mul(PAGE_RATIO_MAX).saturating_add(PAGE_BYTES);
        let most = most.min(PAGE_BYTES_MAX.max(stored.saturating_mul(LARGE_RATIO_MAX)));
        if plain > most {
            return Err(wrong(format!("says `{plain}` bytes when decompressed, of `{stored}`")));
        }
        match page.values {
            Values::Dictionary(count) if u64::try_from(count).is_ok_and(|count| count <= plain) => {}
            Values::Data(count) if (0..=left).contains(&count) => left -= count,
            Values::Other => {}
            Values::Dictionary(count) | Values::Data(count) => {
                return Err(wrong(format!("says `{count}` values in `{plain}` bytes, where `{left}` are due")));
            }
        }
        at = at.saturating_add(page.header_bytes).saturating_add(stored);
        if at > chunk.end {
            return Err(Error::data(format!("a page ends at byte `{at}`, behind its column, which ends at `{}`", chunk.end)));
        }
    }
    Ok(())
}

#[derive(Debug, Clone, Copy)]
enum Values {
    Dictionary(i64),
    Data(i64),
    /// An index page, which nobody reads.
    Other,
}

#[derive(Debug)]
struct Page {
    header_bytes: u64,
    plain_bytes: u64,
    stored_bytes: u64,
    values: Values,
}

fn header(at: u64, end: u64, read: &mut impl FnMut(u64, usize) -> Result<Bytes>) -> Result<Page> {
    let mut wanted = HEADER_BYTES;
    loop {
        let there = wanted.min(end - at);
        let bytes = read(at, usize::try_from(there).unwrap_or(usize::MAX))?;
        let mut cursor = Cursor { rest: &bytes };
        match cursor.page() {
            Some(page) => return Ok(Page { header_bytes: (bytes.len() - cursor.rest.len()) as u64, ..page }),
            // Maybe it goes on.
            None if there < end - at && wanted < HEADER_BYTES_MAX && cursor.rest.is_empty() => wanted *= 8,
            None => return Err(Error::data(format!("there is no page header at byte `{at}`"))),
        }
    }
}

/// Thrift's compact protocol. `None`: that is none, or it goes on behind the bytes (then nothing is left).
struct Cursor<'a> {
    rest: &'a [u8],
}

impl Cursor<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn skip(&mut self, bytes: u64) -> Option<()> {
        let Some(rest) = usize::try_from(bytes).ok().and_then(|bytes| self.rest.get(bytes..)) else {
            self.rest = &[];
            return None;
        };
        self.rest = rest;
        Some(())
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn zigzag(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// The next field of a structure: its number and type; 0 = its end.
    fn field(&mut self, last: &mut i64) -> Option<(i64, u8)> {
        let head = self.byte()?;
        if head == 0 {
            return Some((0, 0));
        }
        *last = match head >> 4 {
            0 => self.zigzag().filter(|id| i16::try_from(*id).is_ok())?,
            delta => last.checked_add(i64::from(delta))?,
        };
        Some((*last, head & 15))
    }

    /// Field by field as the `parquet` crate takes them, which goes by their numbers alone, in any order, and by the page's type. One that is
    /// of another type than it should be would be as long for us, not for that crate, and hide what comes behind it.
    fn page(&mut self) -> Option<Page> {
        let (mut last, mut kind, mut plain, mut stored) = (0, None, None, None);
        let (mut first, mut dictionary, mut second) = (None, None, None);
        loop {
            match self.field(&mut last)? {
                (0, 0) => break,
                (1, 5) => kind = Some(self.number()?),
                (2, 5) => plain = Some(u64::try_from(self.number()?).ok()?),
                (3, 5) => stored = Some(u64::try_from(self.number()?).ok()?),
                (4, 5) => drop(self.number()?),
                (5, 12) => first = self.count(4)?,
                (6, 12) => drop(self.count(0)?),
                (7, 12) => dictionary = self.count(2)?,
                (8, 12) => second = self.count(6)?,
                (1..=8, _) => return None,
                (_, kind) => self.value(kind, 0)?,
            }
        }
        let values = match kind? {
            0 => Values::Data(first?),
            1 => Values::Other,
            2 => Values::Dictionary(dictionary?),
            3 => Values::Data(second?),
            _ => return None,
        };
        Some(Page { header_bytes: 0, plain_bytes: plain?, stored_bytes: stored?, values })
    }

    /// Field 1 of a structure that begins with so many numbers, if it has one.
    fn count(&mut self, numbers: i64) -> Option<Option<i64>> {
        let (mut last, mut count) = (0, None);
        loop {
            match self.field(&mut last)? {
                (0, 0) => return Some(count),
                (id, kind) if (1..=numbers).contains(&id) => {
                    let number = if kind == 5 { self.number()? } else { return None };
                    count = if id == 1 { Some(number) } else { count };
                }
                (_, kind) => self.value(kind, 1)?,
            }
        }
    }

    /// A number of 32 bits; of a larger one the `parquet` crate takes a part.
    fn number(&mut self) -> Option<i64> {
        self.zigzag().filter(|number| i32::try_from(*number).is_ok())
    }

    fn footer(&mut self) -> Option<()> {
        let mut last = 0;
        loop {
            match self.field(&mut last)? {
                (0, 0) => return Some(()),
                (id, kind) if !is_of(&FOOTER, id, kind) => return None,
                (2, _) => self.columns()?,
                (_, kind) => self.value(kind, 1)?,
            }
        }
    }

    /// Columns and their groups, parents first.
    fn columns(&mut self) -> Option<()> {
        let count = self.list()?.1;
        let mut left = i64::try_from(count).ok()?;
        // Of the groups that are not complete: columns to come.
        let mut open: Vec<i64> = Vec::new();
        for _ in 0..count {
            let (mut last, mut children) = (0, 0);
            loop {
                match self.field(&mut last)? {
                    (0, 0) => break,
                    (id, kind) if !is_of(&COLUMN, id, kind) => return None,
                    (5, _) => children = self.number()?,
                    (_, kind) => self.value(kind, 2)?,
                }
            }
            left = left.checked_sub(children).filter(|left| children >= 0 && *left >= 0)?;
            while open.pop_if(|to_come| *to_come == 0).is_some() {}
            if let Some(to_come) = open.last_mut() {
                *to_come -= 1;
            }
            open.push(children);
            if open.len() > LEVELS_MAX {
                return None;
            }
        }
        Some(())
    }

    /// The head of a list: its elements' type and number.
    fn list(&mut self) -> Option<(u8, u64)> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        if count > self.rest.len() as u64 {
            self.rest = &[];
            return None;
        }
        Some((head & 15, count))
    }

    fn value(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        match kind {
            // Truth is in the type itself.
            1 | 2 => Some(()),
            3 => self.skip(1),
            4..=6 => self.varint().map(drop),
            7 => self.skip(8),
            8 => {
                let bytes = self.varint()?;
                self.skip(bytes)
            }
            9 | 10 => {
                let (kind, count) = self.list()?;
                // Of truths the format has no list; the `parquet` crate takes them to have no bytes there.
                (0..count).try_for_each(|_| if kind <= 2 { None } else { self.value(kind, depth + 1) })
            }
            12 => {
                let mut last = 0;
                loop {
                    match self.field(&mut last)? {
                        (0, 0) => return Some(()),
                        (_, kind) => self.value(kind, depth + 1)?,
                    }
                }
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int64Array, RecordBatch};
    use parquet::arrow::ArrowWriter;
    use parquet::file::metadata::ParquetMetaDataReader;

    use super::*;

    fn varint(bytes: &mut Vec<u8>, value: u32) {
        let mut value = u64::from(value) << 1;
        while value > 0x7f {
            bytes.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
            value >>= 7;
        }
        bytes.push(u8::try_from(value).unwrap());
    }

    /// A page of `stored` zeros. `kind`: 0 = data, 2 = dictionary.
    fn page(kind: u8, stored: u32, values: u32) -> Vec<u8> {
        let mut bytes = vec![0x15, kind << 1];
        for size in [stored, stored] {
            bytes.push(0x15);
            varint(&mut bytes, size);
        }
        bytes.extend([if kind == 0 { 0x2c } else { 0x4c }, 0x15]);
        varint(&mut bytes, values);
        bytes.extend([0, 0]);
        bytes.resize(bytes.len() + stored as usize, 0);
        bytes
    }

    fn checked(chunk: &[Vec<u8>], values: i64) -> Result<()> {
        let bytes = Bytes::from(chunk.concat());
        pages(Chunk { start: 0, end: bytes.len() as u64, values }, |at, length| {
            let at = usize::try_from(at).unwrap();
            Ok(bytes.slice(at..at + length))
        })
    }

    #[test]
    fn pages_behind_the_last_value_are_looked_at_too() {
        let (dictionary, data) = (page(2, 80, 10), page(0, 300, 100));
        checked(&[dictionary.clone(), data.clone(), data.clone()], 200).unwrap();
        checked(&[data.clone(), page(0, 0, 0)], 100).unwrap();
        for (behind, what) in
            [(page(2, 8, 1 << 30), "`1073741824` values"), (data.clone(), "where `0` are due"), (vec![0], "no page")]
        {
            let error = checked(&[dictionary.clone(), data.clone(), behind], 100).unwrap_err();
            assert!(error.chain().contains(what), "{}", error.chain());
        }
    }

    /// A field whose number is said in full, a number or the structure of one.
    fn field(id: u32, kind: u8, value: u32) -> Vec<u8> {
        let mut bytes = vec![kind];
        varint(&mut bytes, id);
        if kind == 12 {
            bytes.push(0x15);
        }
        varint(&mut bytes, value);
        bytes.extend(vec![0; usize::from(kind == 12)]);
        bytes
    }

    #[test]
    fn no_field_of_a_header_hides_what_the_reader_goes_by() {
        let header = |fields: &[Vec<u8>]| vec![fields.concat(), vec![0]];
        let sizes = [field(2, 5, 0), field(3, 5, 0)].concat();
        let (data, dictionary) = (field(1, 5, 0), field(1, 5, 2));
        checked(&header(&[dictionary.clone(), field(7, 12, 0), sizes.clone(), field(5, 12, 9)]), 9).unwrap();
        // The kind of page says which of several counts holds, in whatever order they come.
        let error = checked(&header(&[field(7, 12, 1 << 30), dictionary.clone(), sizes.clone(), field(5, 12, 0)]), 9).unwrap_err();
        assert!(error.chain().contains("`1073741824` values"), "{}", error.chain());
        let other = [
            // Numbers of other types, and a number that is cut to that of a field.
            vec![dictionary.clone(), field(7, 12, 0), sizes.clone(), field(2, 6, 1 << 30)],
            vec![dictionary, field(7, 12, 0), sizes.clone(), field(3, 4, 1 << 20)],
            vec![data.clone(), field(5, 12, 0), sizes.clone(), field(65_536 + 2, 5, 1 << 30)],
            // A checksum that is text, a list of truths: longer for us than for the reader.
            vec![data.clone(), field(5, 12, 0), field(4, 8, 1), vec![0], sizes.clone()],
            vec![data, field(5, 12, 0), vec![9, 18, 0x11, 0], sizes],
        ];
        for fields in other {
            let error = checked(&header(&fields), 9).unwrap_err();
            assert!(error.chain().contains("no page header at byte `0`"), "{}: {fields:?}", error.chain());
        }
    }

    #[test]
    fn good_pages_may_be_far_larger_than_what_is_stored() {
        let large = |stored: u64, plain: u64| {
            let fields = [field(1, 5, 0), field(2, 5, u32::try_from(plain).unwrap()), field(3, 5, u32::try_from(stored).unwrap())];
            let header = [fields.concat(), field(5, 12, 1), vec![0]].concat();
            let end = header.len() as u64 + stored;
            pages(Chunk { start: 0, end, values: 1 }, |at, length| {
                let at = usize::try_from(at).unwrap();
                Ok(Bytes::from(header.clone()).slice(at..(at + length).min(header.len())))
            })
        };
        // What ZSTD makes of equal bytes, 130 million of them.
        large(4000, 130_000_000).unwrap();
        // Twenty values of 60 MB in one page, as pyarrow writes them.
        large(1_200_000_000, 1_200_000_000).unwrap();
        large(80_000_000, 1_200_000_000).unwrap();
        large(1_000_000, 1_200_000_000).unwrap_err();
        large(100, 130_000_000).unwrap_err();
    }

    /// A file of these rows, and its footer.
    fn written(rows: &RecordBatch) -> (Bytes, ParquetMetaData) {
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, rows.schema(), None).unwrap();
        writer.write(rows).unwrap();
        writer.close().unwrap();
        let bytes = Bytes::from(bytes);
        let footer = ParquetMetaDataReader::new().parse_and_finish(&bytes).unwrap();
        (bytes, footer)
    }

    #[test]
    fn a_codec_that_is_not_read_is_named() {
        let rows = RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]).unwrap();
        let (bytes, footer) = written(&rows);
        for (codec, name) in [
            (Compression::GZIP(parquet::basic::GzipLevel::default()), "`GZIP`"),
            (Compression::BROTLI(parquet::basic::BrotliLevel::default()), "`BROTLI`"),
        ] {
            let group = footer.row_group(0).clone();
            let column = group.column(0).clone().into_builder().set_compression(codec).build().unwrap();
            let group = group.into_builder().set_column_metadata(vec![column]).build().unwrap();
            let changed = footer.clone().into_builder().set_row_groups(vec![group]).build();
            let error = check(&bytes, &changed, &ProjectionMask::all()).unwrap_err();
            assert_eq!(error.kind(), crate::error::Kind::Unsupported);
            assert!(error.chain().contains(name) && error.chain().contains("`\"n\"`"), "{}", error.chain());
        }
    }

    #[test]
    fn a_dictionary_is_looked_for_where_the_footer_says_also_behind_the_data() {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
        let rows = RecordBatch::try_from_iter([("n", numbers)]).unwrap();
        let (bytes, footer) = written(&rows);
        check(&bytes, &footer, &ProjectionMask::all()).unwrap();
        let group = footer.row_group(0).clone();
        let column = group.column(0).clone();
        // The type of the page, which is no page.
        let astray = column.data_page_offset() + 1;
        let length = i64::try_from(bytes.len()).unwrap() - astray;
        let column = column.into_builder().set_dictionary_page_offset(Some(astray)).set_total_compressed_size(length.min(100));
        let group = group.into_builder().set_column_metadata(vec![column.build().unwrap()]).build().unwrap();
        let footer = footer.into_builder().set_row_groups(vec![group]).build();
        let error = check(&bytes, &footer, &ProjectionMask::all()).unwrap_err();
        assert!(error.chain().contains(&format!("no page header at byte `{astray}`")), "{}", error.chain());
    }
}
