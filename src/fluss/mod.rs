//! The wire: messages, frames, connections, record batches, row encodings, bucket functions.
//!
//! Client and node alike use it. Pure parts (messages, frames, codes, records, rows) stand beside the client half
//! ([`connection`]). Knows nothing of lakes, rounds or files.

pub mod api;
pub mod auth;
pub mod bucket;
pub mod cluster;
pub mod code;
pub mod connection;
#[cfg(test)]
pub(crate) mod fake;
pub mod frame;
pub mod partition;
pub mod proto;
pub mod record;
pub mod table_json;
