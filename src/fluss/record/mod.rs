//! Log record batches: header, checksum, rows ⇄ Arrow, projection (F5.2–5.5).
//!
//! Owns the bytes of a log. Knows no connection and no segment. Callers: `source` (decode), `node` (parse, stamp, project),
//! `client` (encode).

mod header;

pub use header::{BATCH_BYTES_MAX, BatchHeader, HEADER_BYTES_MIN, NO_SEQUENCE, NO_WRITER, RawBatch, RawBatches, batches, stamp};
