//! Log record batches: header, checksum, rows ⇄ Arrow, projection (F5.2–5.5); batches of primary-key tables (F5.7, F5.8).
//!
//! Owns the bytes of a log and of puts and values. Knows no connection and no segment. Callers: `source` (decode), `node` (parse, stamp, project),
//! `client` (encode).

mod cells;
mod columns;
mod decode;
mod encode;
mod header;
mod kv;
mod message;
mod project;
mod row_writer;
mod rows;
mod schema;
#[cfg(test)]
mod tests;
mod values;

pub(super) use cells::{Cell, Cells, compacted_cell, push_minimal};
pub use decode::{BatchSchema, LogFormat};
pub use encode::{Compression, EncodeOptions, encode_arrow_batch};
pub use header::{
    BATCH_BYTES_MAX, BatchHeader, HEADER_BYTES_MIN, NO_SEQUENCE, NO_WRITER, RawBatch, RawBatches, batch_bytes, batches, stamp,
};
pub use kv::{KvBatch, KvBatchBuilder, KvFormat, KvRecord, Value, ValueBatchBuilder, Values, decode_rows};
pub use project::project;
pub use row_writer::RowEncoder;
pub use schema::{arrow_schema, arrow_type};
pub use values::{array_of, value_at};
