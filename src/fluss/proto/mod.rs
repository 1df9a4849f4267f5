//! The messages of the Fluss RPC protocol, generated from `tools/protogen/fluss.proto` (F2.4, S2).
//!
//! Required fields that are missing on the wire read as their default: callers check what they rely on. Packed numbers
//! are read packed, unpacked and empty. `bytes` fields share the memory of the frame that they came in.

#[allow(missing_docs, clippy::all, clippy::pedantic, clippy::restriction, unused_qualifications, reason = "generated code")]
mod messages;

pub use messages::*;
pub use prost::Message;

use crate::error::{Error, Result};
use crate::model::TablePath;

impl From<&TablePath> for PbTablePath {
    fn from(path: &TablePath) -> Self {
        Self { database_name: path.database.clone(), table_name: path.table.clone() }
    }
}

impl From<PbTablePath> for TablePath {
    fn from(path: PbTablePath) -> Self {
        Self::new(path.database_name, path.table_name)
    }
}

impl PbServerNode {
    /// `HOST:PORT`.
    #[must_use]
    pub fn address(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        format!("{host}:{}", self.port)
    }
}

/// Reads a message, naming it when it can't be read.
///
/// # Errors
/// `Data` when `body` is no such message.
pub fn decode<M: Message + Default>(name: &str, body: bytes::Bytes) -> Result<M> {
    M::decode(body).map_err(|source| Error::data(format!("`{name}` message can't be read")).with_source(source))
}
