//! What people and the node itself wrote: configuration, files to load, DDL, answers of stores, node state.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::client::ddl::parse_ddl;
use crate::client::files::{ChangeColumn, FileOptions, Format, read_bytes};
use crate::error::Result;
use crate::model::Schema;
use crate::{config, node, storage};

pub(super) fn config(input: &[u8]) -> Result<()> {
    super::text(input).map_or(Ok(()), config::read_text)
}

fn schema() -> &'static Schema {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let columns = "id BIGINT NOT NULL, words STRING, price DECIMAL(5, 2), big DECIMAL(38, 10), tiny TINYINT, small SMALLINT, i INT, \
            f FLOAT, d DOUBLE, b BOOLEAN, c CHAR(3), day DATE, t TIME(3), ts TIMESTAMP(6), tz TIMESTAMP_LTZ(3), raw BYTES, bin BINARY(2)";
        parse_ddl(&format!("CREATE TABLE t ({columns})")).unwrap().descriptor.schema
    })
}

fn nested() -> &'static Schema {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let columns = "id BIGINT NOT NULL, words STRING, tags ARRAY<STRING>, counts MAP<STRING, INT>, \
            r ROW<a INT NOT NULL, b ARRAY<ROW<c DATE>>>, deep ARRAY<ARRAY<MAP<INT, ROW<x DOUBLE>>>>";
        parse_ddl(&format!("CREATE TABLE t ({columns})")).unwrap().descriptor.schema
    })
}

pub(super) fn prepare() {
    schema();
    nested();
}

fn load(input: &[u8], format: Format) -> Result<()> {
    let Some((choice, rest)) = input.split_first() else { return Ok(()) };
    let schema = if choice & 1 == 1 && format != Format::Csv { nested() } else { schema() };
    let changes = match choice >> 1 & 3 {
        0 => Some(ChangeColumn::Op("op".to_owned())),
        1 => Some(ChangeColumn::Delete("words".to_owned())),
        _ => None,
    };
    let changes = changes.filter(|_| choice & 8 == 8);
    let options = FileOptions {
        ignore_unknown: choice & 16 == 16,
        bad_rows_max: usize::from(choice >> 5),
        changes,
        ..FileOptions::default()
    };
    read_bytes(rest, format, schema, &options).map(drop)
}

pub(super) fn load_json(input: &[u8]) -> Result<()> {
    load(input, Format::Json)
}

pub(super) fn load_csv(input: &[u8]) -> Result<()> {
    load(input, Format::Csv)
}

pub(super) fn load_parquet(input: &[u8]) -> Result<()> {
    load(input, Format::Parquet)
}

pub(super) fn ddl(input: &[u8]) -> Result<()> {
    super::text(input).map_or(Ok(()), |text| parse_ddl(text).map(drop))
}

pub(super) fn s3_answer(input: &[u8]) -> Result<()> {
    super::text(input).map_or(Ok(()), storage::read_answer)
}

pub(super) fn node_record(input: &[u8]) -> Result<()> {
    super::text(input).map_or(Ok(()), node::hostile::record)
}

/// A folder of this thread's own.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let thread = format!("{:?}", std::thread::current().id());
        let path = std::env::temp_dir().join(format!("lakeward-hostile-{}-{thread}", std::process::id()));
        fs::create_dir_all(&path).map_err(|source| super::broken("make a folder").with_source(source))?;
        Ok(Self(path))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        let path = self.0.join(name);
        fs::write(&path, bytes).map_err(|source: std::io::Error| super::broken("write a file").with_source(source))?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Three parts: the segment, its seal, its producer state, by two lengths in front.
pub(super) fn node_segment(input: &[u8]) -> Result<()> {
    let Some((lengths, rest)) = input.split_first_chunk::<2>() else { return Ok(()) };
    let [seal, writers] = lengths.map(usize::from);
    let (seal, rest) = rest.split_at(seal.min(rest.len()));
    let (writers, segment) = rest.split_at(writers.min(rest.len()));
    let folder = Folder::new()?;
    node::hostile::segment(&folder.write("00000000000000000000.log", segment)?, seal, writers)
}

/// A file that should be a database of ours. Not among the targets: see `tests`.
#[cfg(test)]
pub(super) fn node_database(input: &[u8]) -> Result<()> {
    let folder = Folder::new()?;
    node::hostile::database(&folder.write("node.redb", input)?)
}
