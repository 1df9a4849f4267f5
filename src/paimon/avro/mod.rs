//! Avro object containers, as much as manifests and manifest lists need (P4.1).
//!
//! `schema` reads a writer's schema, `read` turns a container into values by it, `write` makes containers. The records
//! themselves are those of [`super::manifest`].

mod read;
mod schema;
mod write;

pub(super) use read::{Record, Value, read};
pub(super) use write::{Container, put_bytes, put_int, put_long, put_some};

/// First bytes of a container.
const MAGIC: &[u8; 4] = b"Obj\x01";
/// Schema of a manifest, as Java 1.4.2 writes it: fields 1–6 of P4.3 and 1–20 of P4.4.
pub(super) const MANIFEST: &str = include_str!("manifest.json");
/// Schema of a manifest list, as Java 1.4.2 writes it: fields 1–13 of P4.2.
pub(super) const MANIFEST_LIST: &str = include_str!("manifest_list.json");
