//! Reading rows back, for checks: quickstart, tests, audits. Not a query engine: a file's batches are held in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{Array, RecordBatch};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::{LakeTable, PartitionFilter};
use crate::error::{Error, Result};
use crate::paimon::{ManifestEntry, Snapshot, TableSchema, path};

impl LakeTable {
    /// All rows of an append table's snapshot: the columns `columns` (`None` = all) of the file's own schema, file by file in
    /// manifest order. Sizes and row counts are checked against the manifests. Timestamps of precision 7–9 come as nanoseconds.
    ///
    /// # Errors
    /// `Unavailable`; `Data` when a file is missing or contradicts its manifest entry; `Unsupported` on primary-key tables and
    /// deletion vectors.
    pub async fn read_rows(
        &self,
        snapshot: &Snapshot,
        filter: PartitionFilter<'_>,
        columns: Option<&[&str]>,
    ) -> Result<Vec<RecordBatch>> {
        if !self.schema.primary_keys.is_empty() {
            return Err(Error::unsupported("reading rows of primary-key tables"));
        }
        if snapshot.index_manifest.is_some() {
            return Err(Error::unsupported("reading rows of tables with deletion vectors"));
        }
        let mut schemas: BTreeMap<i64, Arc<TableSchema>> = BTreeMap::new();
        let mut batches = Vec::new();
        for entry in self.live_entries(snapshot, filter).await? {
            let id = entry.file.schema_id;
            let schema = match schemas.get(&id) {
                Some(schema) => Arc::clone(schema),
                None => {
                    let schema = self.load_schema(id).await?;
                    schemas.insert(id, Arc::clone(&schema));
                    schema
                }
            };
            batches.extend(self.read_file(&schema, &entry, columns).await?);
        }
        Ok(batches)
    }

    /// `schema` is the one that the file was written with.
    async fn read_file(&self, schema: &TableSchema, entry: &ManifestEntry, columns: Option<&[&str]>) -> Result<Vec<RecordBatch>> {
        let place = path::data_file(schema, entry)?;
        let bytes = self.store.get_existing(&self.object(&place)).await?;
        if i64::try_from(bytes.len()).ok() != Some(entry.file.file_size) {
            let error = Error::data(format!("file has {} bytes, its manifest says {}", bytes.len(), entry.file.file_size));
            return Err(self.at(error, &place));
        }
        let columns: Option<Vec<String>> = columns.map(|columns| columns.iter().map(|name| (*name).to_owned()).collect());
        let decode = move || decode(bytes, columns.as_deref());
        let batches = self.runtime.encoders.run(decode).await?.map_err(|error| self.at(error, &place))?;
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        if i64::try_from(rows).ok() != Some(entry.file.row_count) {
            let error = Error::data(format!("file has {rows} rows, its manifest says {}", entry.file.row_count));
            return Err(self.at(error, &place));
        }
        for field in schema.fields.iter().filter(|field| !field.data_type.nullable) {
            if batches.iter().filter_map(|batch| batch.column_by_name(&field.name)).any(|column| column.null_count() > 0) {
                return Err(self.at(Error::data(format!("NOT NULL column `{}` has NULLs", field.name)), &place));
            }
        }
        Ok(batches)
    }
}

fn decode(bytes: bytes::Bytes, columns: Option<&[String]>) -> Result<Vec<RecordBatch>> {
    let fault = |source: parquet::errors::ParquetError| Error::data("read parquet").with_source(source);
    let mut builder = ParquetRecordBatchReaderBuilder::try_new(bytes).map_err(fault)?;
    if let Some(columns) = columns {
        let mask = ProjectionMask::columns(builder.parquet_schema(), columns.iter().map(String::as_str));
        builder = builder.with_projection(mask);
    }
    let reader = builder.build().map_err(fault)?;
    reader.map(|batch| batch.map_err(|source| Error::data("read parquet").with_source(source))).collect()
}
