//! The Paimon format, pure: bytes in, types out, no I/O (docs/spec/paimon-format.md, **P**).
//!
//! Owns schema JSON and type text, BinaryRow, the bucket function, statistics rows, Avro manifests and lists, snapshots,
//! paths and option values. Golden tests hold it against bytes from Java Paimon. Callers: mapping, lake, write, commit, node.

mod avro;
mod arrow;
mod binary_row;
mod key_order;
pub mod manifest;
pub mod merge;
mod meta;
pub mod options;
pub mod pages;
pub mod path;
mod schema;
mod snapshot;
pub mod stats;
mod types;
mod values;

pub use arrow::{lake_arrow_field, lake_arrow_schema};
pub use binary_row::{RowWriter, bucket_of_hash, murmur_hash};
pub use key_order::KeyOrder;
pub use meta::{BinaryRow, DataFile, EntryKind, ManifestEntry, ManifestFile, SimpleStats, Snapshot, TableSchema};
pub use options::TableOptions;
pub use types::{number_nested, parse_type, type_json, type_text};
pub use values::{HashedBy, RowBuckets, compare_values, value_at};
