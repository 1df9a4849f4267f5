//! What nobody can do without, each step by itself, with the crates that we use: arrow-row's keys, arrow's `take`, parquet's own writer.

use std::sync::Arc;

use arrow_array::{RecordBatch, UInt32Array};
use arrow_row::{RowConverter, SortField};
use arrow_schema::SchemaRef;
use arrow_select::concat::concat_batches;
use bytes::Bytes;
use lakeward::model::ChangeKind;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::log::Changes;

fn zstd() -> WriterPropertiesBuilder {
    WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::try_new(1).unwrap()))
}

/// What parquet's writer does if not told otherwise.
pub(super) fn plain() -> WriterProperties {
    zstd().build()
}

/// The encodings that `file` has, column by column, for parquet's own writer.
pub(super) fn tuned(file: Bytes) -> WriterProperties {
    let reader = SerializedFileReader::new(file).unwrap();
    let mut properties = zstd().set_dictionary_enabled(false).set_encoding(Encoding::PLAIN);
    for column in reader.metadata().row_group(0).columns() {
        let path = column.column_path().clone();
        if column.dictionary_page_offset().is_some() {
            properties = properties.set_column_dictionary_enabled(path, true);
        } else if column.encodings().any(|encoding| encoding == Encoding::DELTA_BINARY_PACKED) {
            properties = properties.set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
        }
    }
    properties.build()
}

pub(super) fn encode(schema: &SchemaRef, properties: &WriterProperties, rows: impl Iterator<Item = RecordBatch>) -> usize {
    let mut writer = ArrowWriter::try_new(Vec::new(), Arc::clone(schema), Some(properties.clone())).unwrap();
    for rows in rows {
        writer.write(&rows).unwrap();
    }
    writer.into_inner().unwrap().len()
}

/// One batch of all rows, and their order by key and arrival: every row, and the newest of each key.
pub(super) fn sort(schema: &SchemaRef, key: &[usize], changes: &[Changes]) -> (RecordBatch, [UInt32Array; 2]) {
    let all = concat_batches(schema, changes.iter().map(|(rows, _)| rows)).unwrap();
    let is_before: Vec<bool> =
        changes.iter().flat_map(|(_, kinds)| kinds.iter().flatten()).map(|kind| *kind == ChangeKind::UpdateBefore).collect();
    let keys = all.project(key).unwrap();
    let fields = keys.columns().iter().map(|column| SortField::new(column.data_type().clone())).collect();
    let rows = RowConverter::new(fields).unwrap().convert_columns(keys.columns()).unwrap();
    let mut order: Vec<(arrow_row::Row<'_>, u32)> = rows.iter().zip(0..).collect();
    order.sort_unstable();
    let mut newest: Vec<(arrow_row::Row<'_>, u32)> = Vec::new();
    for (key, row) in order.iter().filter(|(_, row)| !is_before.get(*row as usize).copied().unwrap()) {
        match newest.last_mut() {
            Some(last) if last.0 == *key => last.1 = *row,
            _ => newest.push((*key, *row)),
        }
    }
    let rows = |order: &[(arrow_row::Row<'_>, u32)]| order.iter().map(|(_, row)| *row).collect::<UInt32Array>();
    let picked = [rows(&order), rows(&newest)];
    (all, picked)
}
