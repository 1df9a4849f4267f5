//! The Arrow message of a batch: metadata checked once, then its nodes and buffers by bounds-checked steps.
//!
//! arrow-ipc's own reader trusts buffer offsets (it panics on wrong ones) and makes a ZSTD context per batch; both are done here.

use std::cell::RefCell;
use std::io::Read;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, ListArray, MapArray, StructArray, make_array};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_data::ArrayData;
use arrow_ipc::{CompressionType, MessageHeader};
use arrow_schema::{ArrowError, DataType, Field};
use bytes::Bytes;

use crate::error::{Error, Result};

/// Largest size of one batch after decompression. Writers bound batches by compressed size, so this is far above the wire's bound.
pub(super) const DECODED_BYTES_MAX: usize = 1 << 30;
/// `0xFFFFFFFF` and the metadata's size.
const PREFIX_BYTES: usize = 8;
/// In front of each compressed buffer: its size when decompressed; −1 = stored raw.
const LENGTH_PREFIX_BYTES: usize = 8;
/// A decompressed length up to so many times the compressed one is believed at once, and so many bytes in any case.
const BELIEVED_RATIO: usize = 256;
const BELIEVED_BYTES: usize = 64 << 10;

/// How the body's buffers are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    None,
    Lz4,
    Zstd,
}

/// A parsed message: row count, field nodes as (length, NULL count), buffers as (offset, length) inside `body`, all in bounds.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) rows: usize,
    pub(super) codec: Codec,
    pub(super) nodes: Vec<(usize, usize)>,
    pub(super) buffers: Vec<(usize, usize)>,
    pub(super) body: Bytes,
}

fn wrong(what: impl Into<String>) -> Error {
    Error::data(format!("the Arrow message {}", what.into()))
}

fn size(value: i64, what: &str) -> Result<usize> {
    usize::try_from(value).map_err(|source| wrong(format!("says {what} `{value}`")).with_source(source))
}

impl Message {
    /// Parses an encapsulated RecordBatch message.
    pub(super) fn parse(bytes: &Bytes) -> Result<Self> {
        let prefix = bytes.first_chunk::<PREFIX_BYTES>().ok_or_else(|| wrong("is cut off"))?;
        let ([255, 255, 255, 255], length) = prefix.split_at(4) else { return Err(wrong("has no continuation marker")) };
        let length = i32::from_le_bytes(length.try_into().unwrap_or_default());
        let end = size(i64::from(length), "metadata length")? + PREFIX_BYTES;
        let metadata = bytes.get(PREFIX_BYTES..end).ok_or_else(|| wrong(format!("says metadata length `{length}`")))?;
        let message = arrow_ipc::root_as_message(metadata)
            .map_err(|source| wrong("has broken metadata").with_source(Error::data(source.to_string())))?;
        if message.header_type() != MessageHeader::RecordBatch {
            return Err(wrong("is no record batch"));
        }
        let batch = message.header_as_record_batch().ok_or_else(|| wrong("has no header"))?;
        let codec = match batch.compression().map(|compression| compression.codec()) {
            None => Codec::None,
            Some(CompressionType::LZ4_FRAME) => Codec::Lz4,
            Some(CompressionType::ZSTD) => Codec::Zstd,
            Some(other) => return Err(Error::unsupported(format!("Arrow body compression {other:?}"))),
        };
        let body_bytes = size(message.bodyLength(), "body length")?;
        let rest = bytes.len() - end;
        if body_bytes > rest {
            return Err(wrong(format!("says body length `{body_bytes}`, `{rest}` are there")));
        }
        let body = bytes.slice(end..end + body_bytes);
        let nodes = batch.nodes().into_iter().flatten();
        let nodes = nodes
            .map(|node| Ok((size(node.length(), "node length")?, size(node.null_count(), "null count")?)))
            .collect::<Result<_>>()?;
        let buffers = batch.buffers().into_iter().flatten();
        let buffers = buffers
            .map(|buffer| {
                let (offset, length) = (size(buffer.offset(), "buffer offset")?, size(buffer.length(), "buffer length")?);
                if offset.checked_add(length).is_none_or(|end| end > body_bytes) {
                    return Err(wrong(format!("places a buffer at `{offset}`+`{length}` in a body of `{body_bytes}`")));
                }
                Ok((offset, length))
            })
            .collect::<Result<_>>()?;
        Ok(Self { rows: size(batch.length(), "row count")?, codec, nodes, buffers, body })
    }

    /// Bytes of a buffer as they are in the message.
    pub(super) fn raw(&self, (offset, length): (usize, usize)) -> Bytes {
        self.body.slice(offset..offset + length)
    }

    /// Bytes that all buffers take when decompressed.
    pub(super) fn decoded_bytes(&self) -> Result<usize> {
        let mut total = 0_usize;
        for buffer in &self.buffers {
            let length = match (self.codec, buffer.1) {
                (Codec::None, length) | (_, length @ 0) => length,
                _ => decompressed_length(&self.raw(*buffer))?.unwrap_or(buffer.1),
            };
            total = total.saturating_add(length);
        }
        if total > DECODED_BYTES_MAX {
            return Err(wrong(format!("wants `{total}` bytes when decompressed; at most `{DECODED_BYTES_MAX}` are allowed")));
        }
        Ok(total)
    }
}

/// What the prefix of a compressed buffer says; `None` = stored raw.
fn decompressed_length(raw: &[u8]) -> Result<Option<usize>> {
    let prefix = raw.first_chunk::<LENGTH_PREFIX_BYTES>().ok_or_else(|| wrong("has a compressed buffer without a length"))?;
    match i64::from_le_bytes(*prefix) {
        -1 => Ok(None),
        length => size(length, "decompressed length").map(Some),
    }
}

thread_local! {
    /// A ZSTD context costs far more than a small buffer; one per decoding thread.
    static ZSTD: RefCell<zstd::bulk::Decompressor<'static>> = RefCell::new(zstd::bulk::Decompressor::default());
}

fn decompress(codec: Codec, raw: &[u8]) -> Result<Buffer> {
    // Stored raw: a copy, or one small buffer would keep the whole answer in memory that it came in.
    let Some(length) = decompressed_length(raw)? else {
        return Ok(Buffer::from(raw.get(LENGTH_PREFIX_BYTES..).unwrap_or_default()));
    };
    let source = raw.get(LENGTH_PREFIX_BYTES..).unwrap_or_default();
    // What says to be far larger than it is gets its room as it keeps its word.
    let believed = source.len().saturating_mul(BELIEVED_RATIO).saturating_add(BELIEVED_BYTES);
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(length.min(believed))
        .map_err(|source| wrong(format!("wants a buffer of `{length}` bytes")).with_source(source))?;
    let limit = u64::try_from(length).unwrap_or(u64::MAX).saturating_add(1);
    let cant = |source: std::io::Error| wrong("has a buffer that can't be decompressed").with_source(source);
    match codec {
        Codec::Zstd if length > 0 && length <= believed => {
            ZSTD.with_borrow_mut(|context| context.decompress_to_buffer(source, &mut bytes)).map_err(cant)?;
        }
        Codec::Zstd if length > 0 => {
            let decoder = zstd::stream::read::Decoder::with_buffer(source).map_err(cant)?;
            decoder.take(limit).read_to_end(&mut bytes).map_err(cant)?;
        }
        Codec::Lz4 if length > 0 => {
            lz4_flex::frame::FrameDecoder::new(source).take(limit).read_to_end(&mut bytes).map_err(cant)?;
        }
        Codec::None | Codec::Zstd | Codec::Lz4 => {}
    }
    if bytes.len() != length {
        return Err(wrong(format!("has a buffer of `{}` bytes that says `{length}`", bytes.len())));
    }
    bytes.shrink_to_fit();
    Ok(Buffer::from_vec(bytes))
}

/// Takes the arrays out of a message, column by column.
pub(super) struct Arrays<'a> {
    message: &'a Message,
    node: usize,
    buffer: usize,
    /// Bytes of the body that arrays share rather than copy.
    pub(super) shared: usize,
}

impl<'a> Arrays<'a> {
    /// Nothing is decompressed before the total has been checked.
    pub(super) fn of(message: &'a Message) -> Result<Self> {
        message.decoded_bytes()?;
        Ok(Self { message, node: 0, buffer: 0, shared: 0 })
    }

    fn next_node(&mut self) -> Result<(usize, usize)> {
        let node = self.message.nodes.get(self.node).copied().ok_or_else(|| wrong("has too few nodes"))?;
        self.node += 1;
        Ok(node)
    }

    fn skip_buffer(&mut self) -> Result<(usize, usize)> {
        let buffer = self.message.buffers.get(self.buffer).copied().ok_or_else(|| wrong("has too few buffers"))?;
        self.buffer += 1;
        Ok(buffer)
    }

    /// The next buffer, at an address that is a multiple of `align`. One that is not compressed is shared with the message if it lies
    /// well: batches lie anywhere in an answer.
    fn next_buffer(&mut self, align: usize) -> Result<Buffer> {
        let place = self.skip_buffer()?;
        let raw = self.message.raw(place);
        match self.message.codec {
            _ if raw.is_empty() => Ok(Buffer::default()),
            Codec::None if raw.as_ptr().align_offset(align) == 0 => {
                self.shared += raw.len();
                Ok(raw.into())
            }
            Codec::None => Ok(Buffer::from(&*raw)),
            codec => decompress(codec, &raw),
        }
    }

    /// The next buffer without its padding: arrow panics on one that is no whole number of values.
    fn sized_buffer(&mut self, bytes: Option<usize>, align: usize) -> Result<Buffer> {
        let buffer = self.next_buffer(align)?;
        match bytes.filter(|bytes| *bytes <= buffer.len()) {
            Some(bytes) => Ok(buffer.slice_with_length(0, bytes)),
            None => Err(wrong(format!("has a buffer of `{}` bytes where `{bytes:?}` are wanted", buffer.len()))),
        }
    }

    /// The next column, of `rows` rows.
    pub(super) fn column(&mut self, field: &Field, rows: usize) -> Result<ArrayRef> {
        self.array(field.data_type(), Some(rows)).map_err(|error| error.context(format!("column `{}`", field.name())))
    }

    /// The next array with all its children; recursion ends with the type, whose depth is bounded.
    ///
    /// Every node is validated once: leaves by arrow-data (offsets in order and in bounds, UTF-8), the others here and by their
    /// constructors (lengths, offsets, no NULL where none may be).
    fn array(&mut self, data_type: &DataType, rows: Option<usize>) -> Result<ArrayRef> {
        let (length, null_count) = self.next_node()?;
        if rows.is_some_and(|rows| rows != length) || null_count > length {
            return Err(wrong(format!("has a node of `{length}` rows and `{null_count}` nulls where `{rows:?}` rows are wanted")));
        }
        let bits = length.div_ceil(8);
        let validity = match null_count {
            0 => self.skip_buffer().map(|_| None)?,
            _ => Some(self.sized_buffer(Some(bits), 1)?),
        };
        let nulls = |validity: Option<Buffer>| validity.map(|bits| NullBuffer::new(BooleanBuffer::new(bits, 0, length)));
        let broken = |source: ArrowError| wrong("holds a broken column").with_source(source);
        Ok(match data_type {
            DataType::List(child) => {
                let offsets = self.offsets(length)?;
                let values = self.array(child.data_type(), None)?;
                Arc::new(ListArray::try_new(Arc::clone(child), offsets, values, nulls(validity)).map_err(broken)?)
            }
            DataType::Map(child, ordered) => {
                let offsets = self.offsets(length)?;
                let entries = self.array(child.data_type(), None)?;
                let entries = entries.as_struct_opt().ok_or_else(|| Error::internal("map entries that are no rows"))?.clone();
                let map = MapArray::try_new(Arc::clone(child), offsets, entries, nulls(validity), *ordered);
                Arc::new(map.map_err(broken)?)
            }
            DataType::Struct(fields) => {
                let children = fields.iter().map(|child| self.array(child.data_type(), Some(length))).collect::<Result<_>>()?;
                let rows = StructArray::try_new_with_length(fields.clone(), children, nulls(validity), length);
                Arc::new(rows.map_err(broken)?)
            }
            leaf => {
                let mut builder = ArrayData::builder(leaf.clone())
                    .len(length)
                    .null_bit_buffer(validity)
                    // What was decompressed lies well as allocators go, but a `Vec` of bytes promises nothing.
                    .align_buffers(true);
                builder = match leaf {
                    DataType::Utf8 | DataType::Binary => {
                        builder.add_buffer(self.sized_buffer(offset_bytes(length), 4)?).add_buffer(self.next_buffer(1)?)
                    }
                    DataType::Boolean => builder.add_buffer(self.sized_buffer(Some(bits), 1)?),
                    other => {
                        let (width, align) = match other {
                            DataType::FixedSizeBinary(width) => (usize::try_from(*width).ok(), 1),
                            // No value of Arrow is wider than its alignment allows: 16 bytes at most.
                            other => (other.primitive_width(), other.primitive_width().unwrap_or(1).min(16)),
                        };
                        builder.add_buffer(self.sized_buffer(width.and_then(|width| length.checked_mul(width)), align)?)
                    }
                };
                make_array(builder.build().map_err(broken)?)
            }
        })
    }

    /// Where the elements of `length` lists or maps begin and end: in order, not below 0. Arrow panics on others.
    fn offsets(&mut self, length: usize) -> Result<OffsetBuffer<i32>> {
        let buffer = self.sized_buffer(offset_bytes(length), 4)?;
        if length == 0 {
            return Ok(OffsetBuffer::new_empty());
        }
        let buffer = if buffer.as_ptr().align_offset(4) == 0 { buffer } else { Buffer::from(buffer.as_slice()) };
        let offsets = ScalarBuffer::<i32>::from(buffer);
        if offsets.first().is_none_or(|first| *first < 0) || !offsets.is_sorted() {
            return Err(wrong("has list offsets that are not in order"));
        }
        Ok(OffsetBuffer::new(offsets))
    }
}

/// Bytes of the offsets of `length` values; writers may leave out the one offset of none.
fn offset_bytes(length: usize) -> Option<usize> {
    if length == 0 { Some(0) } else { length.checked_add(1).and_then(|offsets| offsets.checked_mul(4)) }
}
