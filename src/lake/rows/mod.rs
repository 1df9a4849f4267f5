//! Reading rows back, for checks: quickstart, tests, audits. Not a query engine: columns are all that is pruned.
//! Of large files in object stores only footer and wanted columns are read, other files whole.

mod bytes;
mod file;
mod merge;
mod run;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::TimestampNanosecondType;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow_cast::{CastOptions, can_cast_types, cast_with_options};
use arrow_schema::{DataType as ArrowType, Field as ArrowField, Schema as ArrowSchema, TimeUnit};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::file::reader::ChunkReader;
use parquet::schema::types::SchemaDescriptor;

use self::bytes::{FileBytes, Share, TAIL_BYTES, by_range};
pub use self::file::{FileReader, FileRows};
pub use self::merge::MergeReader;
use super::{LakeTable, PartitionFilter};
use crate::error::{Error, Result};
use crate::model::Field;
use crate::paimon::{ManifestEntry, Snapshot, TableSchema, lake_arrow_field, pages, path};

/// A column of the table as it is now, and where a file has it.
#[derive(Debug, Clone)]
struct Column {
    now: Field,
    /// Name and type in the file; `None` when the column was added later.
    stored: Option<Field>,
}

impl LakeTable {
    /// All rows of a snapshot: the columns `columns` (`None` = all) of the schema that the table was opened with, in its order.
    /// Append tables file by file in manifest order, primary-key tables merged, bucket by bucket ([`MergeReader`]).
    ///
    /// In files of other schemas columns go by field id: what came later is NULL, another type is cast, what is gone is left out
    /// (P2.5). Sizes and row counts are checked against the manifests. Timestamps of precision 7–9 come as nanoseconds.
    ///
    /// # Errors
    /// `Unavailable`; `Data` when a file is missing or contradicts its schema or manifest entry; `Unsupported` on deletion vectors,
    /// merge engines other than deduplicate, and where the type of a column changed in a way that can't be followed.
    pub async fn read_rows(
        &self,
        snapshot: &Snapshot,
        filter: PartitionFilter<'_>,
        columns: Option<&[&str]>,
    ) -> Result<Vec<RecordBatch>> {
        if snapshot.index_manifest.is_some() {
            return Err(Error::unsupported("reading rows of tables with deletion vectors"));
        }
        let entries = self.live_entries(snapshot, filter).await?;
        let mut batches = Vec::new();
        if self.schema.primary_keys.is_empty() {
            let mut schemas = Schemas::default();
            for entry in entries {
                let (schema, columns) = schemas.of(self, entry.file.schema_id, columns).await?;
                batches.extend(self.read_file(&schema, &entry, columns).await?);
            }
        } else {
            let mut buckets: BTreeMap<_, Vec<ManifestEntry>> = BTreeMap::new();
            for entry in entries {
                buckets.entry((entry.partition.clone(), entry.bucket)).or_default().push(entry);
            }
            for files in buckets.into_values() {
                let mut reader = self.merge_files(files, columns).await?;
                while let Some(batch) = reader.next_batch().await? {
                    batches.push(batch);
                }
            }
        }
        Ok(batches)
    }

    /// The table's columns with the names of `names`, and where files of schema `written` have them.
    fn columns_in(&self, written: &TableSchema, names: Option<&[&str]>) -> Vec<Column> {
        let wanted = self.schema.fields.iter().filter(|field| names.is_none_or(|names| names.contains(&field.name.as_str())));
        let stored = |now: &Field| written.fields.iter().find(|field| field.id == now.id).cloned();
        wanted.map(|now| Column { now: now.clone(), stored: stored(now) }).collect()
    }

    /// `schema` is the one that the file was written with.
    async fn read_file(&self, schema: &TableSchema, entry: &ManifestEntry, columns: Arc<[Column]>) -> Result<Vec<RecordBatch>> {
        let (place, bytes) = self.file_bytes(schema, entry, (&columns, &[]), &Share::any()).await?;
        let decoded = move || open(bytes, &columns, &[])?.map(|batch| shape(&batch?, &columns)).collect();
        let batches: Result<Vec<RecordBatch>> = self.runtime.encoders.run(decoded).await?;
        let batches = batches.map_err(|error| self.at(error, &place))?;
        check_rows(batches.iter().map(RecordBatch::num_rows).sum(), entry).map_err(|error| self.at(error, &place))?;
        Ok(batches)
    }

    /// Place of a data file, whose size is what the manifest says, and what a reader of the stored ones among `columns` and of `more` needs.
    async fn file_bytes(
        &self,
        schema: &TableSchema,
        entry: &ManifestEntry,
        (columns, more): (&[Column], &[&str]),
        share: &Share,
    ) -> Result<(String, FileBytes)> {
        let place = path::data_file(schema, entry)?;
        let size = u64::try_from(entry.file.file_size).ok().filter(|size| *size > TAIL_BYTES && self.store.is_remote());
        if let Some(size) = size {
            let wanted = |schema: &SchemaDescriptor| picked(schema, columns, more);
            let read = by_range(&self.store, &self.object(&place), (size, TAIL_BYTES), share, wanted).await;
            return Ok((place.clone(), read.map_err(|error| self.at(error, &place))?));
        }
        let held = share.take(u64::try_from(entry.file.file_size).unwrap_or(0)).map_err(|error| self.at(error, &place))?;
        let bytes = self.named(&place).await?;
        if i64::try_from(bytes.len()).ok() != Some(entry.file.file_size) {
            let error = Error::data(format!("file has {} bytes, its manifest says {}", bytes.len(), entry.file.file_size));
            return Err(self.at(error, &place));
        }
        Ok((place, FileBytes::whole(bytes, held)))
    }
}

/// Schemas that files were written with, and where they have the wanted columns.
#[derive(Debug, Default)]
struct Schemas(BTreeMap<i64, (Arc<TableSchema>, Arc<[Column]>)>);

impl Schemas {
    async fn of(&mut self, table: &LakeTable, id: i64, names: Option<&[&str]>) -> Result<(Arc<TableSchema>, Arc<[Column]>)> {
        if let Some((schema, columns)) = self.0.get(&id) {
            return Ok((Arc::clone(schema), Arc::clone(columns)));
        }
        let schema = table.load_schema(id).await?;
        let columns: Arc<[Column]> = table.columns_in(&schema, names).into();
        self.0.insert(id, (Arc::clone(&schema), Arc::clone(&columns)));
        Ok((schema, columns))
    }
}

fn check_rows(rows: usize, entry: &ManifestEntry) -> Result<()> {
    match i64::try_from(rows).ok() == Some(entry.file.row_count) {
        true => Ok(()),
        false => Err(Error::data(format!("file has {rows} rows, its manifest says {}", entry.file.row_count))),
    }
}

fn arrow_fault(source: arrow_schema::ArrowError) -> Error {
    Error::data("read parquet").with_source(source)
}

/// The stored ones among `columns`, and columns with the names `more`.
fn picked(schema: &SchemaDescriptor, columns: &[Column], more: &[&str]) -> ProjectionMask {
    // By place: a nested column is all its leaves, and a name may hold a dot.
    let stored = |name: &str| columns.iter().any(|column| column.stored.as_ref().is_some_and(|stored| stored.name == name));
    let roots = schema.root_schema().get_fields().iter().enumerate();
    let picked = roots.filter(|(_, field)| stored(field.name()) || more.contains(&field.name())).map(|(index, _)| index);
    ProjectionMask::roots(schema, picked)
}

/// A reader of [`picked`].
fn open(bytes: impl ChunkReader + 'static, columns: &[Column], more: &[&str]) -> Result<Blocks> {
    let fault = |source: parquet::errors::ParquetError| Error::data("read parquet").with_source(source);
    pages::check_footer(&bytes).map_err(|error| error.context("read parquet"))?;
    let footer = pages::guarded(|| ArrowReaderMetadata::load(&bytes, ArrowReaderOptions::default()).map_err(fault))?;
    let mask = picked(footer.parquet_schema(), columns, more);
    pages::check(&bytes, footer.metadata(), &mask).map_err(|error| error.context("read parquet"))?;
    let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(bytes, footer).with_projection(mask);
    pages::guarded(|| reader.build().map_err(fault)).map(Blocks)
}

/// What a file holds, block by block; an error where the `parquet` crate panics.
struct Blocks(ParquetRecordBatchReader);

impl Iterator for Blocks {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Result<RecordBatch>> {
        pages::guarded(|| self.0.next().transpose().map_err(arrow_fault)).map_err(|error| error.context("read parquet")).transpose()
    }
}

/// Reads all rows of a data file of a table of `schema`, for [`crate::hostile`].
#[cfg(any(test, fuzzing))]
pub(crate) fn read_bytes(bytes: ::bytes::Bytes, schema: &TableSchema) -> Result<usize> {
    let columns: Vec<Column> =
        schema.fields.iter().map(|field| Column { now: field.clone(), stored: Some(field.clone()) }).collect();
    let mut rows = 0;
    for batch in open(bytes, &columns, &[run::SEQUENCE, run::KIND])? {
        rows += shape(&batch?, &columns)?.num_rows();
    }
    Ok(rows)
}

/// A batch of a file as the table has it now.
fn shape(batch: &RecordBatch, columns: &[Column]) -> Result<RecordBatch> {
    let found = columns.iter().map(|column| {
        let values = value_of(column, batch).map_err(|error| error.context(format!("column `{}`", column.now.name)))?;
        Ok((ArrowField::new(&column.now.name, values.data_type().clone(), true), values))
    });
    let (fields, arrays): (Vec<_>, Vec<_>) = found.collect::<Result<Vec<_>>>()?.into_iter().unzip();
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::new(ArrowSchema::new(fields)), arrays, &options)
        .map_err(|source| Error::internal("columns of a file").with_source(source))
}

/// The values of one column in a batch of a file, as the table has them now.
fn value_of(column: &Column, batch: &RecordBatch) -> Result<ArrayRef> {
    let Column { now, stored } = column;
    let values = match stored {
        None => new_null_array(lake_arrow_field(now)?.data_type(), batch.num_rows()),
        Some(stored) => {
            let values = batch.column_by_name(&stored.name).ok_or_else(|| Error::data("the file does not have it"))?;
            let same = now.data_type.same_as(&stored.data_type);
            cast(values, lake_arrow_field(now)?.data_type(), same)?
        }
    };
    if !now.data_type.nullable && values.null_count() > 0 {
        return Err(Error::data("it is NOT NULL and has NULLs"));
    }
    Ok(values)
}

/// `same`: the type has not changed, so that nested values differ in the metadata of what is inside at most.
fn cast(values: &ArrayRef, target: &ArrowType, same: bool) -> Result<ArrayRef> {
    let found = values.data_type();
    match (found, target) {
        (found, target) if found == target => Ok(Arc::clone(values)),
        // INT96 tells no zone.
        (ArrowType::Timestamp(TimeUnit::Nanosecond, None), ArrowType::Timestamp(TimeUnit::Nanosecond, zone)) => {
            Ok(Arc::new(values.as_primitive::<TimestampNanosecondType>().clone().with_timezone_opt(zone.clone())))
        }
        (found, target) if (same || !found.is_nested()) && can_cast_types(found, target) => {
            let strict = CastOptions { safe: false, ..CastOptions::default() };
            cast_with_options(values, target, &strict)
                .map_err(|source| Error::data(format!("values of type {found} as {target}")).with_source(source))
        }
        (found, target) => Err(Error::unsupported(format!("reading values of type {found} as {target}"))),
    }
}
