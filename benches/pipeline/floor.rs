//! What nobody can do without, each step by itself, with the crates that we use: arrow-row's keys, arrow's `take`, parquet's own writer.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int8Array, Int64Array, RecordBatch, UInt32Array};
use arrow_row::{RowConverter, SortField};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use arrow_select::concat::concat_batches;
use arrow_select::take::take_record_batch;
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

/// The columns that a primary-key file has (P7.3): key, sequence number and kind before those of the table; the rows of `order`.
pub(super) fn file_rows(all: &RecordBatch, key: &[usize], changes: &[Changes], order: &UInt32Array) -> RecordBatch {
    let kind = |kind: &ChangeKind| match kind {
        ChangeKind::Append | ChangeKind::Insert => 0,
        ChangeKind::UpdateBefore => 1,
        ChangeKind::UpdateAfter => 2,
        ChangeKind::Delete => 3,
    };
    let kinds: Vec<i8> = changes.iter().flat_map(|(_, kinds)| kinds.iter().flatten()).map(kind).collect();
    let picked = take_record_batch(all, order).unwrap();
    let sequences: Int64Array = order.values().iter().map(|row| i64::from(*row)).collect();
    let kinds: Int8Array = order.values().iter().map(|row| kinds.get(*row as usize).copied()).collect();
    let system: [(Field, ArrayRef); 2] = [
        (Field::new("_SEQUENCE_NUMBER", DataType::Int64, false), Arc::new(sequences)),
        (Field::new("_VALUE_KIND", DataType::Int8, false), Arc::new(kinds)),
    ];
    let column = |place: usize, lead: &str| {
        let field = picked.schema().field(place).clone();
        (field.clone().with_name(format!("{lead}{}", field.name())), Arc::clone(picked.column(place)))
    };
    let columns = key.iter().map(|place| column(*place, "_KEY_")).chain(system);
    let (fields, columns): (Vec<Field>, Vec<ArrayRef>) =
        columns.chain((0..picked.num_columns()).map(|place| column(place, ""))).unzip();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

pub(super) fn encode(properties: &WriterProperties, rows: impl Iterator<Item = RecordBatch>) -> usize {
    let mut rows = rows.peekable();
    let schema = rows.peek().unwrap().schema();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema, Some(properties.clone())).unwrap();
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
