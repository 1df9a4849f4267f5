//! Keys of primary-key tables: which columns they have, and in which bytes (F6.7).

use arrow_array::ArrayRef;

use super::{BucketFunction, Encoder, cells_of};
use crate::error::{Error, Result};
use crate::fluss::record::{Cell, Cells};
use crate::model::{TableInfo, TypeKind};

/// How a primary-key table writes its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRules {
    /// Columns of the key bytes, in order: the primary key without partition columns.
    pub columns: Vec<String>,
    /// Columns that the bucket is hashed from, in order; the same ones unless the table names others.
    pub bucket_columns: Vec<String>,
    /// Which function's bytes keys have. Buckets are hashed as [`BucketFunction::of`] says.
    pub encoding: BucketFunction,
}

impl KeyRules {
    /// The rules of `table`, by its lake format, `table.kv.format-version` and bucket key.
    ///
    /// # Errors
    /// `Unsupported` when the format, or the version, is unknown; `Internal` for a log table.
    pub fn of(table: &TableInfo) -> Result<Self> {
        if !table.has_primary_key() {
            return Err(Error::internal(format!("keys of log table `{}`", table.path)));
        }
        let keys = table.schema.primary_key.iter();
        let columns: Vec<String> = keys.filter(|key| !table.partition_keys.contains(key)).cloned().collect();
        let bucket_columns = if table.bucket_keys.is_empty() { columns.clone() } else { table.bucket_keys.clone() };
        let lake = BucketFunction::of(table)?;
        let encoding = match (table.property("table.kv.format-version").unwrap_or("1"), lake) {
            ("1" | "2", BucketFunction::Hudi) => BucketFunction::Fluss,
            ("1", lake) => lake,
            ("2", lake) if bucket_columns == columns => lake,
            ("2", _) => BucketFunction::Fluss,
            (other, _) => {
                return Err(Error::unsupported(format!("`table.kv.format-version` = `{other}` of table `{}`", table.path)));
            }
        };
        Ok(Self { columns, bucket_columns, encoding })
    }
}

/// Writes the keys of rows, one after another.
#[derive(Debug)]
pub struct KeyWriter<'a> {
    cells: Vec<Cells<'a>>,
    key: Vec<Option<Cell<'a>>>,
    encoder: Encoder,
}

impl<'a> KeyWriter<'a> {
    /// Of the key columns in order, each with its Fluss type (columns in the types of F5.3).
    ///
    /// # Errors
    /// `Invalid` when a column is nested, or there is none; `Internal` when one is not of its type.
    pub fn new(encoding: BucketFunction, columns: &[(&TypeKind, &'a ArrayRef)]) -> Result<Self> {
        if columns.is_empty() {
            return Err(Error::invalid("a key without columns"));
        }
        Ok(Self {
            cells: cells_of(columns)?,
            key: Vec::with_capacity(columns.len()),
            encoder: Encoder::new(encoding, columns.len()),
        })
    }

    /// The key of `row`.
    ///
    /// # Errors
    /// `Invalid` when a column is NULL, or the encoding refuses a value.
    ///
    /// Source: F6.7.
    pub fn key(&mut self, row: usize) -> Result<&[u8]> {
        self.key.clear();
        self.key.extend(self.cells.iter().map(|cells| cells.get(row)));
        if self.key.iter().any(Option::is_none) {
            return Err(Error::invalid("a primary key is NULL"));
        }
        self.encoder.encode(&self.key)?;
        Ok(self.encoder.bytes())
    }
}
