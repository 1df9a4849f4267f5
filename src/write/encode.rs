//! Row groups of one Parquet file: columns are encoded side by side, then joined.
//!
//! Everything here is CPU-bound and synchronous; `bucket` sends it to the encoder threads.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::TimestampNanosecondType;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{Field as ArrowField, Schema as ArrowSchema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::column::writer::{ColumnCloseResult, ColumnWriter, get_column_writer};
use parquet::data_type::Int96;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterPropertiesPtr;
use parquet::file::writer::{SerializedFileWriter, SerializedPageWriter, TrackedWrite};
use parquet::schema::types::{ColumnDescPtr, SchemaDescriptor};

use super::bounds::Bounds;
use super::encoding::{self, Codec};
use super::nested::{leaf_count, size_of};
use super::schema::{is_int96, parquet_schema};
use crate::error::{Error, Result};
use crate::model::{DataType, Field, TypeKind};
use crate::paimon::stats::{self, ColumnStats, StatsMode};
use crate::paimon::{SimpleStats, TableSchema, lake_arrow_field};

/// What all files of a table have in common.
#[derive(Debug)]
pub(super) struct Shape {
    /// Columns of a file: those of the table, on primary-key tables behind key, sequence number and kind.
    fields: Vec<Field>,
    /// How batches have to look.
    pub(super) arrow: SchemaRef,
    parquet: Arc<SchemaDescriptor>,
    codec: Codec,
    /// What is kept of the statistics of the table's columns.
    modes: Vec<StatsMode>,
    /// Places of the key among `fields`.
    keys: Vec<usize>,
}

/// Statistics of a file (P4.4, P4.6).
pub(super) struct FileStats {
    pub(super) keys: SimpleStats,
    pub(super) values: SimpleStats,
    pub(super) value_columns: Option<Vec<String>>,
}

/// System columns of primary-key files: names and ids (P2.3), as they stand in the file (P7.3).
const SYSTEM: [(&str, i32, TypeKind); 2] =
    [("_SEQUENCE_NUMBER", 2_147_483_646, TypeKind::BigInt), ("_VALUE_KIND", 2_147_483_645, TypeKind::TinyInt)];
/// Added to the id of a key column for its repetition (P2.3).
const KEY_ID: i32 = 1_073_741_823;
/// What is kept of the statistics of a key (P4.4).
const KEY_MODE: StatsMode = StatsMode::Truncate(128);

impl Shape {
    /// For files of `schema`. `modes` has one element per column; `thin`: a primary-key file does not repeat its key.
    ///
    /// # Errors
    /// `Unsupported` names a column of a type that a lake file can't hold; `Data` a key that is no column.
    pub(super) fn new(schema: &TableSchema, codec: Codec, modes: Vec<StatsMode>, thin: bool) -> Result<Self> {
        let mut fields: Vec<Field> = Vec::new();
        let names = schema.trimmed_primary_keys();
        if !names.is_empty() {
            for (name, data_type) in names.iter().zip(schema.types_of(&names)?).filter(|_| !thin) {
                let id = schema.field(name).map_or(KEY_ID, |field| KEY_ID.saturating_add(field.id));
                let data_type = DataType::required(data_type.kind);
                fields.push(Field { id, name: format!("_KEY_{name}"), data_type, comment: None });
            }
            fields.extend(SYSTEM.map(|(name, id, kind)| Field {
                id,
                name: name.into(),
                data_type: DataType::required(kind),
                comment: None,
            }));
        }
        let lead = fields.len();
        let value_place = |name: &String| schema.fields.iter().position(|field| field.name == *name).map(|place| lead + place);
        let keys = if thin { names.iter().filter_map(value_place).collect() } else { (0..names.len()).collect() };
        fields.extend(schema.fields.iter().cloned());
        let parquet = parquet_schema(&fields)?;
        let arrow = Arc::new(ArrowSchema::new(fields.iter().map(lake_arrow_field).collect::<Result<Vec<_>>>()?));
        Ok(Self { fields, arrow, parquet, codec, modes, keys })
    }

    /// Whether files of this shape are what files of the other are.
    pub(super) fn is_as(&self, other: &Self) -> bool {
        self.codec == other.codec && self.modes == other.modes
    }

    /// Columns before those of the table.
    fn lead(&self) -> usize {
        self.fields.len() - self.modes.len()
    }

    fn bounds(&self) -> Vec<Bounds> {
        let mode = |place: usize| if self.keys.contains(&place) { None } else { self.modes.get(place.checked_sub(self.lead())?) };
        let all = self.fields.iter().enumerate();
        all.map(|(place, field)| Bounds::new(&field.data_type.kind, mode(place).copied().unwrap_or(StatsMode::Full))).collect()
    }

    /// Statistics of a file whose columns have `bounds`.
    ///
    /// # Errors
    /// `Internal`.
    pub(super) fn stats(&self, bounds: &[Bounds], dense: bool) -> Result<FileStats> {
        let exact: Vec<ColumnStats> = bounds.iter().map(Bounds::stats).collect();
        let key = |place: &usize| Some((self.fields.get(*place)?.data_type.clone(), exact.get(*place)?));
        let (types, keys): (Vec<_>, Vec<_>) = self.keys.iter().filter_map(key).unzip();
        let keys: Vec<ColumnStats> =
            types.iter().zip(keys).map(|(data_type, stats)| stats.clone().limited(&data_type.kind, KEY_MODE)).collect();
        let keys = stats::simple_stats(&types, &keys)?;
        let columns = self.fields.get(self.lead()..).unwrap_or_default();
        let (values, value_columns) =
            stats::value_stats(columns, &self.modes, exact.into_iter().skip(self.lead()).collect(), dense)?;
        Ok(FileStats { keys, values, value_columns })
    }
}

fn fault(source: ParquetError) -> Error {
    Error::internal("encode parquet").with_source(source)
}

/// A file that is being encoded into memory.
pub(super) struct FileEncoder {
    shape: Arc<Shape>,
    writer: SerializedFileWriter<Vec<u8>>,
    bounds: Vec<Bounds>,
    row_groups: usize,
}

impl FileEncoder {
    /// A file that starts with `first`, which decides its encodings; `bytes` of Arrow data make its first row group.
    ///
    /// # Errors
    /// `Internal`.
    pub(super) fn new(shape: Arc<Shape>, first: &[RecordBatch], bytes: usize) -> Result<Self> {
        let rows = first.iter().map(RecordBatch::num_rows).sum();
        let properties = Arc::new(encoding::properties(&shape.parquet, shape.codec, first, rows, bytes));
        let writer = SerializedFileWriter::new(Vec::new(), shape.parquet.root_schema_ptr(), properties).map_err(fault)?;
        let bounds = shape.bounds();
        Ok(Self { shape, writer, bounds, row_groups: 0 })
    }

    /// Cuts the next row group into up to `count` parts of about the same work, each a set of columns.
    ///
    /// # Errors
    /// `Internal`.
    pub(super) fn split(&mut self, batches: &Arc<Vec<RecordBatch>>, count: usize) -> Result<Vec<ColumnSet>> {
        let sinks = ArrowRowGroupWriterFactory::new(&self.writer, Arc::clone(&self.shape.arrow))
            .create_column_writers(self.row_groups)
            .map_err(fault)?;
        self.row_groups += 1;
        let count = count.clamp(1, self.shape.fields.len().max(1));
        let mut parts: Vec<(usize, ColumnSet)> =
            (0..count).map(|_| (0, ColumnSet { batches: Arc::clone(batches), columns: Vec::new() })).collect();
        let mut columns = Vec::with_capacity(self.shape.fields.len());
        let bounds = std::mem::take(&mut self.bounds);
        // A leaf each, in the order of the columns.
        let mut leaves = sinks.into_iter().zip(self.shape.parquet.columns());
        let fields = self.shape.fields.iter().zip(self.shape.arrow.fields());
        for (index, (bounds, (field, arrow))) in bounds.into_iter().zip(fields).enumerate() {
            let kind = &field.data_type.kind;
            let (leaves, descriptors): (Vec<_>, Vec<_>) = leaves.by_ref().take(leaf_count(kind)).unzip();
            let sink = match descriptors.first() {
                Some(descriptor) if is_int96(kind) => Sink::Int96(Arc::clone(descriptor), Arc::clone(self.writer.properties())),
                _ => Sink::Arrow(leaves),
            };
            let weight = batches.iter().filter_map(|batch| batch.columns().get(index)).map(work).sum::<usize>();
            columns.push((weight, Column { index, field: Arc::clone(arrow), sink, bounds }));
        }
        columns.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
        for (weight, column) in columns {
            if let Some((load, set)) = parts.iter_mut().min_by_key(|(load, _)| *load) {
                *load += weight;
                set.columns.push(column);
            }
        }
        Ok(parts.into_iter().map(|(_, set)| set).filter(|set| !set.columns.is_empty()).collect())
    }

    /// Joins the parts of a row group.
    ///
    /// # Errors
    /// `Internal`.
    pub(super) fn append(&mut self, parts: Vec<Vec<EncodedColumn>>) -> Result<()> {
        let mut columns: Vec<EncodedColumn> = parts.into_iter().flatten().collect();
        columns.sort_by_key(|column| column.index);
        // Once, rather than by doubling: each time all that is there would be copied.
        let bytes = columns.iter().map(|column| column.chunk.bytes()).fold(0, usize::saturating_add);
        self.writer.inner_mut().reserve(bytes);
        let mut row_group = self.writer.next_row_group().map_err(fault)?;
        for column in columns {
            self.bounds.push(column.bounds);
            match column.chunk {
                Chunk::Arrow(leaves) => {
                    for chunk in leaves {
                        chunk.append_to_row_group(&mut row_group).map_err(fault)?;
                    }
                }
                Chunk::Int96(bytes, close) => row_group.append_column(&bytes, *close).map_err(fault)?,
            }
        }
        row_group.close().map_err(fault)?;
        Ok(())
    }

    /// Size of the file so far.
    pub(super) fn bytes(&self) -> u64 {
        self.writer.bytes_written() as u64
    }

    /// Bytes that [`FileEncoder::take_bytes`] would take.
    pub(super) fn unsent(&self) -> usize {
        self.writer.inner().len()
    }

    /// Takes the bytes encoded since the last call; their order is the file's.
    ///
    /// # Errors
    /// `Internal`.
    pub(super) fn take_bytes(&mut self) -> Result<Bytes> {
        self.writer.flush().map_err(|source| Error::internal("encode parquet").with_source(source))?;
        Ok(std::mem::take(self.writer.inner_mut()).into())
    }

    /// Ends the file: its last bytes, and the bounds of each column.
    ///
    /// # Errors
    /// `Internal`.
    pub(super) fn close(mut self) -> Result<(Bytes, Vec<Bounds>)> {
        self.writer.finish().map_err(fault)?;
        let bytes = self.take_bytes()?;
        Ok((bytes, self.bounds))
    }
}

/// Rough cost of a column: what has to be touched, plus something per value.
fn work(array: &ArrayRef) -> usize {
    size_of(array) + 8 * array.len()
}

/// Some columns of a row group, still to be encoded.
pub(super) struct ColumnSet {
    batches: Arc<Vec<RecordBatch>>,
    columns: Vec<Column>,
}

struct Column {
    index: usize,
    field: Arc<ArrowField>,
    sink: Sink,
    bounds: Bounds,
}

enum Sink {
    /// One for each leaf.
    Arrow(Vec<ArrowColumnWriter>),
    /// parquet's Arrow writer has no INT96.
    Int96(ColumnDescPtr, WriterPropertiesPtr),
}

/// A column chunk, and what is known of the column's values so far.
pub(super) struct EncodedColumn {
    index: usize,
    chunk: Chunk,
    bounds: Bounds,
}

enum Chunk {
    Arrow(Vec<ArrowColumnChunk>),
    Int96(Bytes, Box<ColumnCloseResult>),
}

impl Chunk {
    /// What it adds to the file.
    fn bytes(&self) -> usize {
        let of = |close: &ColumnCloseResult| usize::try_from(close.bytes_written).unwrap_or(0);
        match self {
            Self::Arrow(leaves) => leaves.iter().map(|chunk| of(chunk.close())).sum(),
            Self::Int96(_, close) => of(close),
        }
    }
}

impl ColumnSet {
    /// Encodes the columns one after the other.
    ///
    /// # Errors
    /// `Internal`.
    pub(super) fn encode(self) -> Result<Vec<EncodedColumn>> {
        let Self { batches, columns } = self;
        columns.into_iter().map(|column| column.encode(&batches)).collect()
    }
}

impl Column {
    fn encode(mut self, batches: &[RecordBatch]) -> Result<EncodedColumn> {
        let arrays: Vec<&ArrayRef> = batches.iter().filter_map(|batch| batch.columns().get(self.index)).collect();
        for array in &arrays {
            self.bounds.add(array).map_err(|error| error.context(format!("column `{}`", self.field.name())))?;
        }
        let chunk = match self.sink {
            Sink::Arrow(mut writers) => {
                for array in arrays {
                    for (writer, leaf) in writers.iter_mut().zip(compute_leaves(&self.field, array).map_err(fault)?) {
                        writer.write(&leaf).map_err(fault)?;
                    }
                }
                let mut chunks = writers.into_iter().map(|writer| writer.close().map_err(fault)).collect::<Result<Vec<_>>>()?;
                if self.bounds.has_nan() {
                    chunks.iter_mut().try_for_each(|chunk| forget_bounds(chunk.close_mut()))?;
                }
                Chunk::Arrow(chunks)
            }
            Sink::Int96(descriptor, properties) => {
                let (bytes, close) = encode_int96(descriptor, properties, &arrays)?;
                Chunk::Int96(bytes, Box::new(close))
            }
        };
        Ok(EncodedColumn { index: self.index, chunk, bounds: self.bounds })
    }
}

/// Takes the statistics out of a column chunk with NaN. parquet's writer leaves NaN out of them; Java sorts NaN above all other
/// values and would skip rows that `x > 1` finds. (Java writes none there either.)
fn forget_bounds(close: &mut ColumnCloseResult) -> Result<()> {
    close.metadata = close.metadata.clone().into_builder().clear_statistics().build().map_err(fault)?;
    close.column_index = None;
    Ok(())
}

fn encode_int96(
    descriptor: ColumnDescPtr,
    properties: WriterPropertiesPtr,
    arrays: &[&ArrayRef],
) -> Result<(Bytes, ColumnCloseResult)> {
    let optional = descriptor.max_def_level() > 0;
    let mut bytes = TrackedWrite::new(Vec::new());
    let mut writer = get_column_writer(descriptor, properties, Box::new(SerializedPageWriter::new(&mut bytes)));
    let ColumnWriter::Int96ColumnWriter(typed) = &mut writer else {
        return Err(Error::internal("a column writer of another type than INT96"));
    };
    for array in arrays {
        let array = array
            .as_primitive_opt::<TimestampNanosecondType>()
            .ok_or_else(|| Error::internal(format!("an INT96 column of type `{}`", array.data_type())))?;
        let levels: Option<Vec<i16>> = optional.then(|| (0..array.len()).map(|row| i16::from(array.is_valid(row))).collect());
        let values: Vec<Int96> = array.iter().flatten().map(int96).collect();
        typed.write_batch(&values, levels.as_deref(), None).map_err(fault)?;
    }
    let close = writer.close().map_err(fault)?;
    Ok((bytes.into_inner().map_err(fault)?.into(), close))
}

/// Nanoseconds since the epoch → nanoseconds of the day and Julian day, as Impala and parquet-mr have it.
fn int96(nanos: i64) -> Int96 {
    const NANOS_PER_DAY: i64 = 86_400_000_000_000;
    const JULIAN_DAY_OF_EPOCH: i64 = 2_440_588;
    let of_day = nanos.rem_euclid(NANOS_PER_DAY).cast_unsigned();
    // ±106,752 days around the epoch: the sum is positive and small.
    let day = u32::try_from(nanos.div_euclid(NANOS_PER_DAY) + JULIAN_DAY_OF_EPOCH).unwrap_or(0);
    let mut value = Int96::new();
    #[expect(clippy::cast_possible_truncation, reason = "the low half")]
    value.set_data(of_day as u32, (of_day >> 32) as u32, day);
    value
}
