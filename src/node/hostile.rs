//! The node's own files, whatever they hold, for [`crate::hostile`].

use std::path::Path;

use crate::error::Result;
#[cfg(test)]
use crate::runtime::FailPoints;

/// Reads a record of the registry as each of its kinds.
pub(crate) fn record(json: &str) -> Result<()> {
    super::registry::read_record(json)?;
    super::snapshots::read_record(json)
}

/// Reads a segment that lies at `path`, which has what it needs beside it.
pub(crate) fn segment(path: &Path, seal: &[u8], writers: &[u8]) -> Result<()> {
    super::log::read_segment(path, seal, writers)
}

/// Opens the registry and the state that lie at `path`.
#[cfg(test)]
pub(crate) fn database(path: &Path) -> Result<()> {
    let registry = super::registry::Registry::open(path, 0, FailPoints::default()).map(drop);
    let state = super::kv::read_state(path);
    registry.and(state)
}
