//! Encodings and codec of a file's columns, chosen from its first rows.
//!
//! Dictionary only where it pays, with PLAIN behind it; DELTA_BINARY_PACKED for everything that is an integer inside. Java
//! 1.4.2 reads wrong strings from DELTA_BYTE_ARRAY and DELTA_LENGTH_BYTE_ARRAY and fails on BYTE_STREAM_SPLIT (P, section D):
//! they are not used, and neither is writer version 2, which brings the first in by itself.

use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::DataType as ArrowType;
use parquet::basic::{Compression, Encoding, Type as Physical, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor};

use super::nested;
use crate::error::{Error, Result};
use crate::paimon::options::Compression as TableCompression;

/// Values looked at per column.
const SAMPLE: usize = 2048;
/// A dictionary page that grows beyond this is given up for PLAIN.
const DICTIONARY_BYTES_MAX: usize = 1 << 20;
/// Files with fewer rows or Arrow bytes are small: a zstd context costs more than it saves.
const SMALL_ROWS: usize = 500;
const SMALL_BYTES: usize = 64 << 10;

/// How pages are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Codec {
    /// What the table asks for.
    compression: Compression,
    /// Nobody asked for it in so many words, so that small files may do without.
    by_default: bool,
}

impl Codec {
    /// `by_default`: the table's options do not name a codec.
    ///
    /// # Errors
    /// `Invalid` names the zstd level.
    pub(super) fn new(compression: TableCompression, by_default: bool) -> Result<Self> {
        let compression = match compression {
            TableCompression::None => Compression::UNCOMPRESSED,
            TableCompression::Snappy => Compression::SNAPPY,
            TableCompression::Lz4 => Compression::LZ4_RAW,
            TableCompression::Zstd(level) => ZstdLevel::try_new(level).map(Compression::ZSTD).map_err(|source| {
                Error::invalid(format!("option `file.compression.zstd-level` = `{level}`")).with_source(source)
            })?,
        };
        Ok(Self { compression, by_default })
    }

    fn of(self, rows: usize, bytes: usize) -> Compression {
        if self.by_default && (rows < SMALL_ROWS || bytes < SMALL_BYTES) { Compression::LZ4_RAW } else { self.compression }
    }
}

/// Writer properties for a file that starts with `batches`; `rows` and `bytes` say how much a row group will hold.
pub(super) fn properties(
    schema: &SchemaDescriptor,
    codec: Codec,
    batches: &[RecordBatch],
    rows: usize,
    bytes: usize,
) -> WriterProperties {
    let mut leaves: Vec<Vec<ArrayRef>> = vec![Vec::new(); schema.num_columns()];
    for batch in batches {
        let mut all = Vec::with_capacity(leaves.len());
        batch.columns().iter().for_each(|column| nested::leaves(column, &mut all));
        leaves.iter_mut().zip(all).for_each(|(leaf, array)| leaf.push(array));
    }
    let mut builder = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_compression(codec.of(rows, bytes))
        .set_dictionary_enabled(false)
        .set_dictionary_page_size_limit(DICTIONARY_BYTES_MAX)
        .set_encoding(Encoding::PLAIN);
    for (column, arrays) in schema.columns().iter().zip(leaves) {
        let path = column.path().clone();
        if path.parts().len() > 1 {
            // Nobody filters by what is nested, and NaN would have to be left out.
            builder = builder.set_column_statistics_enabled(path.clone(), EnabledStatistics::None);
        }
        match column.physical_type() {
            Physical::INT32 | Physical::INT64 => {
                builder = builder.set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
            }
            // INT96 has no order that readers agree on.
            Physical::INT96 => builder = builder.set_column_statistics_enabled(path, EnabledStatistics::None),
            // Wide decimals: Java looks into a dictionary with as few bytes as the value needs, and finds nothing.
            Physical::BOOLEAN | Physical::FIXED_LEN_BYTE_ARRAY => {}
            Physical::FLOAT | Physical::DOUBLE | Physical::BYTE_ARRAY => {
                if dictionary_pays(column, &arrays) {
                    builder = builder.set_column_dictionary_enabled(path, true);
                }
            }
        }
    }
    builder.build()
}

/// Whether a dictionary makes a row group of these values clearly smaller, judged by a sample.
fn dictionary_pays(column: &ColumnDescriptor, arrays: &[ArrayRef]) -> bool {
    let total = arrays.iter().map(|array| array.len()).sum();
    let sample = sample(arrays, total);
    if sample.values == 0 {
        return false;
    }
    let width = match column.physical_type() {
        Physical::BYTE_ARRAY => 4.0 + sample.bytes / to_f64(sample.values),
        Physical::FLOAT => 4.0,
        _ => 8.0,
    };
    let values = to_f64(total) * to_f64(sample.values) / to_f64(sample.rows.max(1));
    let distinct = expected_distinct(sample.values, sample.distinct, values);
    let dictionary = distinct * width;
    // Plain pages shrink by half or so under compression, indices do not.
    let indices = values * distinct.max(2.0).log2().ceil() / 8.0;
    dictionary < to_f64(DICTIONARY_BYTES_MAX) && dictionary * 0.5 + indices < values * width * 0.5 * 0.8
}

/// Distinct values to expect among `values`, when a sample of `sampled` had `distinct`.
///
/// Values are taken as evenly spread over an unknown number D: a sample of n then repeats about n²/2D times.
fn expected_distinct(sampled: usize, distinct: usize, values: f64) -> f64 {
    let repeats = sampled.saturating_sub(distinct);
    if repeats == 0 {
        return values;
    }
    let (sampled, distinct) = (to_f64(sampled), to_f64(distinct));
    let domain = (sampled * sampled / (2.0 * to_f64(repeats))).max(distinct);
    domain * (1.0 - (-values / domain).exp())
}

struct Sample {
    rows: usize,
    values: usize,
    distinct: usize,
    bytes: f64,
}

/// Looks at up to [`SAMPLE`] of the `total` values, evenly over all arrays.
fn sample(arrays: &[ArrayRef], total: usize) -> Sample {
    let step = total.div_ceil(SAMPLE).max(1);
    let mut seen: Vec<&[u8]> = Vec::with_capacity(SAMPLE);
    let mut numbers: Vec<u128> = Vec::new();
    let (mut rows, mut next) = (0, 0);
    for array in arrays {
        while next < array.len() {
            let row = next;
            next += step;
            rows += 1;
            if array.is_valid(row) {
                match array.data_type() {
                    ArrowType::Utf8 => seen.push(array.as_string::<i32>().value(row).as_bytes()),
                    ArrowType::Binary => seen.push(array.as_binary::<i32>().value(row)),
                    ArrowType::Float32 => {
                        numbers.push(array.as_primitive::<Float32Type>().value(row).to_bits().into());
                    }
                    ArrowType::Float64 => {
                        numbers.push(array.as_primitive::<Float64Type>().value(row).to_bits().into());
                    }
                    ArrowType::Decimal128(..) => {
                        let value = array.as_primitive::<Decimal128Type>().value(row);
                        numbers.push(value.cast_unsigned());
                    }
                    _ => {}
                }
            }
        }
        next = next.saturating_sub(array.len());
    }
    let bytes = seen.iter().map(|value| to_f64(value.len())).sum();
    let values = seen.len() + numbers.len();
    seen.sort_unstable();
    seen.dedup();
    numbers.sort_unstable();
    numbers.dedup();
    Sample { rows, values, distinct: seen.len() + numbers.len(), bytes }
}

fn to_f64(count: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let value = count as f64;
    value
}
