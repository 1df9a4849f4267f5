//! Cutting columns out of an Arrow batch without decoding it: what a server does for projection push-down (S5.2).

use arrow_ipc::{
    BodyCompressionBuilder, BodyCompressionMethod, Buffer as BufferPlace, CompressionType, FieldNode, MessageBuilder,
    MessageHeader, MetadataVersion, RecordBatchBuilder,
};
use arrow_schema::DataType;
use bytes::Bytes;
use flatbuffers::FlatBufferBuilder;

use super::decode::BatchSchema;
use super::header::{BATCH_BYTES_MAX, RawBatch, layout};
use super::message::{Codec, Message};
use crate::error::{Error, Result};

/// Keeps the columns at `positions` (ascending) of a batch that was written with `schema`.
///
/// Positions beyond the batch's own columns become all-NULL columns of the type that `newest` has there: they were added later.
/// The checksum stays as it was, so it no longer fits; readers of projected batches do not look at it. An empty batch comes back as is.
///
/// # Errors
/// `Invalid` (34) when `positions` is empty, not ascending, or beyond `newest`; `Data` when the batch is broken.
///
/// Source: S5.2.
pub fn project(batch: &RawBatch, schema: &BatchSchema, newest: &BatchSchema, positions: &[usize]) -> Result<Bytes> {
    let ascending = positions.is_sorted_by(|a, b| a < b);
    if !ascending || positions.last().is_none_or(|last| *last >= newest.arrow.fields().len().max(schema.arrow.fields().len())) {
        return Err(Error::invalid(format!("projection of the columns {positions:?}")).with_code(34));
    }
    if batch.header.is_empty() {
        return Ok(batch.bytes.clone());
    }
    let message = Message::parse(&batch.arrow_message()?)?;
    let says = batch.header.record_count;
    if usize::try_from(says).ok() != Some(message.rows) {
        let (base, rows) = (batch.header.base_offset, message.rows);
        return Err(Error::data(format!("the record batch at offset `{base}` says `{says}` records, its Arrow message `{rows}`")));
    }
    let mut cut = Cut::default();
    let (mut node, mut buffer) = (0, 0);
    for (position, field) in schema.arrow.fields().iter().enumerate() {
        let (nodes, buffers) = shape(field.data_type());
        if positions.contains(&position) {
            cut.copy(&message, node..node + nodes, buffer..buffer + buffers)?;
        }
        (node, buffer) = (node + nodes, buffer + buffers);
    }
    for position in positions.iter().filter(|position| **position >= schema.arrow.fields().len()) {
        if let Some(field) = newest.arrow.fields().get(*position) {
            // Rows cost nothing in a batch that lies about them, and a value each here.
            let bytes = null_bytes(field.data_type(), message.rows);
            if cut.body.len().saturating_add(bytes) > BATCH_BYTES_MAX {
                let (base, rows) = (batch.header.base_offset, message.rows);
                return Err(Error::data(format!(
                    "the record batch at offset `{base}` says `{rows}` rows: too many for column `{}`",
                    field.name()
                )));
            }
            cut.nulls(field.data_type(), message.rows, message.codec);
        }
    }
    let changes = if batch.header.is_append_only() { 0 } else { usize::try_from(batch.header.record_count).unwrap_or_default() };
    assemble(batch, changes, &cut.message(message.rows, message.codec), &cut.body)
}

/// Field nodes and buffers that a column takes, its children included.
fn shape(data_type: &DataType) -> (usize, usize) {
    let with = |children: (usize, usize), buffers| (children.0 + 1, children.1 + buffers);
    match data_type {
        DataType::Utf8 | DataType::Binary => (1, 3),
        DataType::List(child) | DataType::Map(child, _) => with(shape(child.data_type()), 2),
        DataType::Struct(children) => {
            let all = children.iter().map(|child| shape(child.data_type())).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            with(all, 1)
        }
        _ => (1, 2),
    }
}

/// Bytes of a column of so many NULLs, at least.
fn null_bytes(data_type: &DataType, rows: usize) -> usize {
    let width = match data_type {
        DataType::FixedSizeBinary(width) => usize::try_from(*width).unwrap_or_default(),
        DataType::Struct(children) => {
            return children.iter().fold(rows / 8, |sum, child| sum.saturating_add(null_bytes(child.data_type(), rows)));
        }
        other => other.primitive_width().unwrap_or(4),
    };
    rows.saturating_mul(width)
}

#[derive(Default)]
struct Cut {
    nodes: Vec<FieldNode>,
    buffers: Vec<BufferPlace>,
    body: Vec<u8>,
}

/// In memory, so it always fits.
fn long(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

impl Cut {
    fn copy(&mut self, message: &Message, nodes: std::ops::Range<usize>, buffers: std::ops::Range<usize>) -> Result<()> {
        let few = || Error::data("the Arrow message has fewer columns than its schema");
        for (length, nulls) in message.nodes.get(nodes).ok_or_else(few)? {
            self.nodes.push(FieldNode::new(long(*length), long(*nulls)));
        }
        for buffer in message.buffers.get(buffers).ok_or_else(few)? {
            self.push(&message.raw(*buffer));
        }
        Ok(())
    }

    fn push(&mut self, bytes: &[u8]) {
        self.buffers.push(BufferPlace::new(long(self.body.len()), long(bytes.len())));
        self.body.extend_from_slice(bytes);
        self.body.resize(self.body.len().next_multiple_of(8), 0);
    }

    /// A column of NULLs: validity and values of zero bytes.
    fn nulls(&mut self, data_type: &DataType, rows: usize, codec: Codec) {
        self.nodes.push(FieldNode::new(long(rows), long(rows)));
        let mut zeros = |bytes: usize| {
            // −1 in front: stored raw.
            let mut buffer = if codec == Codec::None || bytes == 0 { vec![] } else { vec![255; 8] };
            buffer.resize(buffer.len() + bytes, 0);
            self.push(&buffer);
        };
        zeros(rows.div_ceil(8));
        match data_type {
            DataType::Utf8 | DataType::Binary => {
                zeros((rows + 1) * 4);
                zeros(0);
            }
            DataType::List(_) | DataType::Map(..) => zeros((rows + 1) * 4),
            DataType::Struct(_) => {}
            DataType::Boolean => zeros(rows.div_ceil(8)),
            DataType::FixedSizeBinary(width) => zeros(rows * usize::try_from(*width).unwrap_or_default()),
            other => zeros(rows * other.primitive_width().unwrap_or_default()),
        }
        match data_type {
            DataType::List(child) | DataType::Map(child, _) => self.nulls(child.data_type(), 0, codec),
            DataType::Struct(children) => children.iter().for_each(|child| self.nulls(child.data_type(), rows, codec)),
            _ => {}
        }
    }

    /// The metadata, prefixed and padded, that describes the body.
    fn message(&self, rows: usize, codec: Codec) -> Vec<u8> {
        let mut builder = FlatBufferBuilder::new();
        let nodes = builder.create_vector(&self.nodes);
        let buffers = builder.create_vector(&self.buffers);
        let codec = match codec {
            Codec::None => None,
            Codec::Lz4 => Some(CompressionType::LZ4_FRAME),
            Codec::Zstd => Some(CompressionType::ZSTD),
        };
        let compression = codec.map(|codec| {
            let mut compression = BodyCompressionBuilder::new(&mut builder);
            compression.add_method(BodyCompressionMethod::BUFFER);
            compression.add_codec(codec);
            compression.finish()
        });
        let mut batch = RecordBatchBuilder::new(&mut builder);
        batch.add_length(long(rows));
        batch.add_nodes(nodes);
        batch.add_buffers(buffers);
        if let Some(compression) = compression {
            batch.add_compression(compression);
        }
        let batch = batch.finish();
        let mut message = MessageBuilder::new(&mut builder);
        message.add_version(MetadataVersion::V5);
        message.add_header_type(MessageHeader::RecordBatch);
        message.add_bodyLength(long(self.body.len()));
        message.add_header(batch.as_union_value());
        let message = message.finish();
        builder.finish(message, None);
        let metadata = builder.finished_data();
        let padded = metadata.len().next_multiple_of(8);
        let mut bytes = vec![255; 4];
        bytes.extend_from_slice(&i32::try_from(padded).unwrap_or(i32::MAX).to_le_bytes());
        bytes.extend_from_slice(metadata);
        bytes.resize(8 + padded, 0);
        bytes
    }
}

/// Header with new length and without statistics, change types, message, body.
fn assemble(batch: &RawBatch, changes: usize, message: &[u8], body: &[u8]) -> Result<Bytes> {
    let header_bytes = batch.header.header_bytes();
    let payload = batch.payload();
    let mut bytes = Vec::with_capacity(header_bytes + changes + message.len() + body.len());
    bytes.extend_from_slice(batch.bytes.get(..header_bytes).unwrap_or_default());
    bytes.extend_from_slice(payload.get(..changes).unwrap_or_default());
    bytes.extend_from_slice(message);
    bytes.extend_from_slice(body);
    let length = i32::try_from(bytes.len().saturating_sub(12))
        .map_err(|source| Error::data("a projected batch is too large").with_source(source))?;
    let mut put = |at: usize, value: i32| {
        if let Some(place) = bytes.get_mut(at..at + 4) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    };
    put(8, length);
    if batch.header.magic > 0 {
        put(layout(batch.header.magic).0 + 23, 0);
    }
    Ok(bytes.into())
}
