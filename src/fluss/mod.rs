//! The wire: messages, frames, connections, record batches, row encodings, bucket functions. Client and node alike use it.

pub mod partition;
pub mod record;
pub mod table_json;
