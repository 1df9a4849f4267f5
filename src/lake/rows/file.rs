//! One data file, block by block: what audits and rewrites look at, with its system columns.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, Int64Type};
use arrow_array::{Array, ArrayRef, Int8Array, Int64Array, RecordBatch};
use arrow_cast::cast;
use arrow_schema::DataType as ArrowType;

use super::bytes::Share;
use super::run::{KIND, SEQUENCE};
use super::{Blocks, Column, arrow_fault, check_rows, open, shape};
use crate::error::{Error, Result};
use crate::lake::LakeTable;
use crate::paimon::ManifestEntry;

/// Rows of a block of a file.
#[derive(Debug, Clone)]
pub struct FileRows {
    /// The columns that were asked for.
    pub rows: RecordBatch,
    /// Of files of primary-key tables: sequence number and row kind (0 +I, 1 −U, 2 +U, 3 −D) of each row (P7.3).
    pub versions: Option<(Int64Array, Int8Array)>,
}

/// Reads one data file, as it lies there: nothing is merged. Holds the bytes of the file and one decoded block.
pub struct FileReader {
    table: LakeTable,
    entry: ManifestEntry,
    place: String,
    columns: Arc<[Column]>,
    reader: Option<Blocks>,
    rows: usize,
}

impl std::fmt::Debug for FileReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileReader").field("place", &self.place).field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl LakeTable {
    /// The same table with the columns of one of its earlier schemas: files of that schema are then read as they were written.
    #[must_use]
    pub fn with_schema(&self, schema: Arc<crate::paimon::TableSchema>) -> Self {
        Self { schema, live: Arc::default(), ..self.clone() }
    }

    /// Opens the file of a live entry: the columns `columns` (`None` = all) of the schema that the table was opened with, in its order.
    ///
    /// # Errors
    /// `Unavailable`; `Data` when the file is missing, has another size, or is no Parquet.
    pub async fn read_entry(&self, entry: &ManifestEntry, columns: Option<&[&str]>) -> Result<FileReader> {
        let schema = self.load_schema(entry.file.schema_id).await?;
        let columns: Arc<[Column]> = self.columns_in(&schema, columns).into();
        let more: &'static [&'static str] = if self.schema.primary_keys.is_empty() { &[] } else { &[SEQUENCE, KIND] };
        let (place, bytes) = self.file_bytes(&schema, entry, (&columns, more), &Share::any()).await?;
        let wanted = Arc::clone(&columns);
        let reader = self.runtime.encoders.run(move || open(bytes, &wanted, more)).await?;
        let reader = Some(reader.map_err(|error| self.at(error, &place))?);
        Ok(FileReader { table: self.clone(), entry: entry.clone(), place, columns, reader, rows: 0 })
    }
}

impl FileReader {
    /// Where the file lies, below the table's folder.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The next rows; `None` at the end.
    ///
    /// # Errors
    /// `Data` when the file contradicts its schema or manifest entry. After an error nothing comes.
    pub async fn next_rows(&mut self) -> Result<Option<FileRows>> {
        let Some(mut reader) = self.reader.take() else { return Ok(None) };
        let (columns, keyed) = (Arc::clone(&self.columns), !self.table.schema.primary_keys.is_empty());
        let next = move || {
            let block = reader.next().map(|stored| block(&stored?, &columns, keyed));
            (reader, block.transpose())
        };
        let (reader, block) = self.table.runtime.encoders.run(next).await?;
        let at = |error| self.table.at(error, &self.place);
        let Some(block) = block.map_err(at)? else {
            check_rows(self.rows, &self.entry).map_err(at)?;
            return Ok(None);
        };
        self.rows += block.rows.num_rows();
        self.reader = Some(reader);
        Ok(Some(block))
    }
}

fn block(stored: &RecordBatch, columns: &[Column], keyed: bool) -> Result<FileRows> {
    let rows = shape(stored, columns)?;
    let versions = if keyed { Some((system::<Int64Type>(stored, SEQUENCE)?, system::<Int8Type>(stored, KIND)?)) } else { None };
    Ok(FileRows { rows, versions })
}

/// A system column, which has no NULLs.
fn system<T: arrow_array::ArrowPrimitiveType>(stored: &RecordBatch, name: &str) -> Result<arrow_array::PrimitiveArray<T>> {
    let values: &ArrayRef = stored.column_by_name(name).ok_or_else(|| Error::data(format!("no column `{name}`")))?;
    let target: ArrowType = T::DATA_TYPE;
    let values = cast(values, &target).map_err(arrow_fault)?;
    if values.null_count() > 0 {
        return Err(Error::data(format!("column `{name}` has NULLs")));
    }
    values.as_primitive_opt::<T>().cloned().ok_or_else(|| Error::internal(format!("column `{name}`")))
}
