//! Parquet: columns by name, rows as they stand.

use std::fs::File;
use std::path::Path;

use arrow_array::{ArrayRef, RecordBatch, UInt32Array};
use arrow_select::take::take_record_batch;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::file::reader::ChunkReader;

use super::changes::tells;
use super::values::{Fault, fits};
use super::{CHUNK_BYTES, Columns, twice};
use crate::error::{Error, Kind, Result};
use crate::paimon::{pages, type_text};

/// Rows of one chunk.
const ROWS_MAX: usize = 64 << 10;

/// An open file and the number of its next row.
#[derive(Debug)]
pub(super) struct Rows {
    reader: ParquetRecordBatchReader,
    next: u64,
    /// Bytes of the file for each of its rows, about.
    row_bytes: u64,
}

impl Rows {
    /// Opens a file and checks its columns; the first row that is read is `from` (from 1).
    ///
    /// # Errors
    /// `Invalid` when it is no Parquet file, or a column is unknown, missing or of a type that can't become the table's.
    pub(super) fn open(path: &Path, columns: &Columns, from: u64) -> Result<Self> {
        Self::of(File::open(path).map_err(|source| Error::invalid("open the file").with_source(source))?, columns, from)
    }

    /// As [`Rows::open`], of whatever holds the file.
    ///
    /// # Errors
    /// As there.
    pub(super) fn of(file: impl ChunkReader + 'static, columns: &Columns, from: u64) -> Result<Self> {
        let broken =
            |source: parquet::errors::ParquetError| Error::invalid("it is no Parquet file that can be read").with_source(source);
        let lies = |source: Error| match source.kind() {
            Kind::Unsupported => source,
            _ => Error::invalid("it is no Parquet file that can be read").with_source(source),
        };
        let bytes = file.len();
        pages::check_footer(&file).map_err(lies)?;
        let footer = pages::guarded(|| ArrowReaderMetadata::load(&file, ArrowReaderOptions::default()).map_err(broken))?;
        let names: Vec<String> = footer.schema().fields().iter().map(|field| field.name().clone()).collect();
        if let Some(name) = twice(&names) {
            return Err(Error::invalid(format!("the file has column `{name}` twice")));
        }
        let mut roots = Vec::new();
        for (root, field) in footer.schema().fields().iter().enumerate() {
            let Some(place) = columns.place(field.name())? else { continue };
            roots.push(root);
            let Some(wanted) = columns.fields.get(place) else { continue };
            let is_told = place >= columns.arrow.fields().len() && tells(field.data_type());
            if !is_told && !fits(field.data_type(), &wanted.data_type.kind) {
                let text =
                    format!("column `{}` is {}, in the table {}", wanted.name, field.data_type(), type_text(&wanted.data_type));
                return Err(Error::invalid(text).with_hint("types are not changed where values could be lost"));
            }
        }
        for field in &columns.fields {
            columns.may_miss(field, footer.schema().field_with_name(&field.name).is_ok())?;
        }
        let rows = footer.metadata().file_metadata().num_rows();
        let row_bytes = bytes / u64::try_from(rows).unwrap_or_default().max(1);
        // Sizes before compression are what counts in memory.
        let plain: i64 = footer.metadata().row_groups().iter().map(|group| group.total_byte_size()).fold(0, i64::saturating_add);
        let plain = usize::try_from(plain / rows.max(1)).unwrap_or_default().max(1);
        let mask = ProjectionMask::roots(footer.parquet_schema(), roots);
        pages::check(&file, footer.metadata(), &mask).map_err(lies)?;
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(file, footer)
            .with_projection(mask)
            .with_batch_size((CHUNK_BYTES / plain).clamp(1, ROWS_MAX))
            .with_offset(usize::try_from(from - 1).unwrap_or(usize::MAX))
            .build()
            .map_err(broken)?;
        Ok(Self { reader, next: from, row_bytes })
    }

    /// The next rows, the number of the first, and bytes of the file, about.
    ///
    /// # Errors
    /// `Invalid` when the file is broken.
    pub(super) fn next(&mut self) -> Result<Option<(RecordBatch, u64, u64)>> {
        let broken = || Error::invalid(format!("read rows from `{}` on", self.next));
        let next = pages::guarded(|| self.reader.next().transpose().map_err(|source| broken().with_source(source)));
        let Some(batch) = next.map_err(|error| if error.kind() == Kind::Data { broken().with_source(error) } else { error })?
        else {
            return Ok(None);
        };
        let (first, rows) = (self.next, batch.num_rows() as u64);
        self.next += rows;
        Ok(Some((batch, first, rows * self.row_bytes)))
    }
}

/// The rows with these indices, one array per column of the table; `None` = the file does not have it.
pub(super) fn read(batch: &RecordBatch, selection: &[usize], columns: &Columns) -> Result<Vec<Option<ArrayRef>>, Fault> {
    let taken = if selection.len() == batch.num_rows() {
        batch.clone()
    } else {
        let numbers: UInt32Array = selection.iter().map(|row| u32::try_from(*row).ok()).collect();
        take_record_batch(batch, &numbers).map_err(|source| Error::internal("leave out rows").with_source(source))?
    };
    Ok(columns.fields.iter().map(|field| taken.column_by_name(&field.name).cloned()).collect())
}
