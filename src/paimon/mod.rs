//! The Paimon format, pure: bytes in, types out, no I/O (docs/spec/paimon-format.md, **P**).
//!
//! Owns schema JSON and type text, BinaryRow, the bucket function, statistics rows, Avro manifests and lists, snapshots,
//! paths and option values. Golden tests hold it against bytes from Java Paimon. Callers: mapping, lake, write, commit, node.

mod meta;

pub use meta::{BinaryRow, DataFile, EntryKind, ManifestEntry, ManifestFile, SimpleStats, Snapshot, TableSchema};
