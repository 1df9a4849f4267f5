//! Hostile input: every decoder of foreign bytes under one name, and what it promises about any of them.
//!
//! Compiled for `cargo test` and for the fuzz targets in `fuzz/` only (cargo-fuzz sets `cfg(fuzzing)`); both call [`TARGETS`] and
//! [`Target::judge`]. A decoder promises, for n bytes of anything: no panic; at most [`Target::memory`] of n bytes at a time; an error
//! that is the input's fault, never ours, and names its place. The first bytes of some inputs choose what the rest is read as.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "not part of the product")]

mod files;
mod lake;
mod wire;
#[cfg(test)]
mod tests;

use crate::error::{Error, Kind, Result};

/// Largest size that inputs say they decompress to which are decoded here; above it a round waits for a permit of that size.
const DECODED_MAX: usize = 16 << 20;

/// A decoder, or several that read the same bytes.
#[derive(Debug)]
pub struct Target {
    /// Names the fuzz target and the folder of its inputs.
    pub name: &'static str,
    /// Decodes.
    pub run: fn(&[u8]) -> Result<()>,
    /// Bytes of memory for each byte of input.
    per_byte: u64,
    /// Bytes of memory whatever the input.
    fixed: u64,
    /// One of these is in each error: what went wrong, or where.
    places: &'static [&'static str],
}

impl Target {
    /// Bytes of memory that decoding an input of `length` bytes may take at a time.
    #[must_use]
    pub const fn memory(&self, length: usize) -> u64 {
        self.fixed + self.per_byte * length as u64
    }

    /// What is wrong with how `input` was decoded: with this much memory at a time, to this outcome.
    ///
    /// # Errors
    /// Says it.
    pub fn judge(&self, input: &[u8], peak: u64, outcome: &Result<()>) -> Result<(), String> {
        let most = self.memory(input.len());
        if peak > most {
            return Err(format!("`{}` takes {peak} bytes for {}, {most} are allowed", self.name, input.len()));
        }
        let Err(error) = outcome else { return Ok(()) };
        let chain = error.chain();
        if !matches!(error.kind(), Kind::Data | Kind::Invalid | Kind::Unsupported) {
            return Err(format!("`{}` blames itself ({}): {chain}", self.name, error.kind()));
        }
        if !self.places.iter().any(|place| chain.contains(place)) {
            return Err(format!("`{}` names no place: {chain}", self.name));
        }
        Ok(())
    }

    /// The target with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }
}

const fn target(name: &'static str, run: fn(&[u8]) -> Result<()>, places: &'static [&'static str]) -> Target {
    Target { name, run, per_byte: 256, fixed: 64 << 10, places }
}

/// Makes what decoders share, which is not to be counted for the first input.
pub fn prepare() {
    wire::schemas();
    lake::schemas();
    files::prepare();
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target {
        fixed: 512 << 10,
        ..target("frame", wire::frame, &["frame of `", "answer of unknown type", "error answer can't be read"])
    },
    target("message", wire::message, &["message can't be read"]),
    // Row formats: `columns::Allowance`; compressed bodies: what their buffers say, as far as they keep it.
    Target {
        per_byte: 4096,
        fixed: (8 << 20) + 4 * DECODED_MAX as u64,
        ..target("log_batch", wire::log_batch, &["the log of ", "projection of the columns"])
    },
    Target {
        per_byte: 4096,
        fixed: 4 << 20,
        ..target(
            "kv_batch",
            wire::kv_batch,
            &[
                "KV record batch",
                "record `",
                "records do not fit the schema",
                "nested values",
                "is no value of type",
                "in BINARY(",
                "far more values",
            ],
        )
    },
    Target { per_byte: 4096, fixed: 4 << 20, ..target("values", wire::values, &["the state of ", "value record batch"]) },
    target("remote_log", wire::remote_log, &["remote log segment", "message can't be read"]),
    Target {
        per_byte: 1024,
        ..target(
            "table_json",
            wire::table_json,
            &[
                "table JSON",
                "schema JSON",
                "column `",
                "type `",
                "field `",
                "key",
                "bucket",
                "columns",
                "table `",
                "table.",
                "nested",
            ],
        )
    },
    target("partition", wire::partition, &["`", "a partition key of type"]),
    target("binary_row", lake::binary_row, &["row ", "field ", "timestamp", "decimal", "value", "nested"]),
    // zstd: decompressed block by block; a hard bound besides.
    Target { per_byte: 1024, fixed: 4 << 20, ..target("manifest", lake::manifest, &["avro ", "manifest ", "`_", "row "]) },
    target("snapshot", lake::snapshot, &["snapshot file"]),
    Target { per_byte: 1024, ..target("schema", lake::schema, &["schema", "field `", "column", "`", "type"]) },
    target("offsets", lake::offsets, &["offsets"]),
    Target { per_byte: 1024, fixed: 8 << 20, ..target("data_file", lake::data_file, &["read parquet", "column `"]) },
    Target { per_byte: 1024, ..target("config", files::config, &["lakeward.toml:"]) },
    Target { per_byte: 1024, fixed: 20 << 20, ..target("load_json", files::load_json, &["`fuzz`"]) },
    Target { per_byte: 1024, fixed: 20 << 20, ..target("load_csv", files::load_csv, &["`fuzz`"]) },
    Target { per_byte: 1024, fixed: 20 << 20, ..target("load_parquet", files::load_parquet, &["`fuzz`"]) },
    Target { per_byte: 1024, ..target("ddl", files::ddl, &["line ", "`", "column", "type", "table"]) },
    target("s3_answer", files::s3_answer, &["credentials"]),
    target("node_record", files::node_record, &["registry record", "lake snapshots"]),
    Target { fixed: 2 << 20, ..target("node_segment", files::node_segment, &["segment"]) },
];

/// What a target says when the bytes are no text: the callers of text decoders say so themselves.
fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// A rule of ours that does not hold.
fn broken(what: impl Into<String>) -> Error {
    Error::internal(what)
}
