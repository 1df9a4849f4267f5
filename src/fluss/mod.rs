//! The wire: messages, frames, connections, record batches, row encodings, bucket functions. Client and node alike use it.
