//! Raw log bytes of one bucket and how they are decoded.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::fluss::record::{BatchSchema, LogFormat, RawBatch, batches};
use crate::model::{LogBatch, Schema, SchemaId, TableBucket};

/// Raw record batches of one bucket, as a server sent them, with the schemas that they name.
///
/// Cheap to move; [`LogSlice::decode`] is CPU-bound and belongs on an encoder thread.
#[derive(Clone)]
pub struct LogSlice {
    bucket: TableBucket,
    format: LogFormat,
    raw: Bytes,
    schemas: BTreeMap<SchemaId, Arc<Schema>>,
    first_offset: Option<i64>,
    next_offset: Option<i64>,
    /// Whole batches, and their bytes.
    count: usize,
    whole_bytes: usize,
    /// Bytes of the answer that `raw` is a part of, and keeps alive.
    answer_bytes: usize,
    /// Where the bytes lay, if not in a server's answer.
    place: Option<Arc<str>>,
}

impl fmt::Debug for LogSlice {
    /// Sizes, not megabytes of bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogSlice")
            .field("bucket", &self.bucket)
            .field("bytes", &self.raw.len())
            .field("schemas", &self.schemas.keys())
            .field("next_offset", &self.next_offset)
            .finish_non_exhaustive()
    }
}

/// Decoded rows of a slice.
#[derive(Debug)]
pub struct Decoded {
    /// Batches with at least one row, in offset order.
    pub batches: Vec<LogBatch>,
    /// Exclusive end of what was consumed, empty batches included, at most the stop offset.
    pub next_offset: i64,
}

/// Some first batches of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fitting {
    /// Exclusive end of their records, at most the stop offset.
    pub end: i64,
    /// Their bytes, as they came.
    pub raw_bytes: usize,
    /// Those of the largest.
    pub batch_bytes: usize,
    /// Bytes that decoding allocates for them, about: what to ask a permit for.
    pub decoded_bytes: usize,
}

impl LogSlice {
    /// A slice of what a server sent for `bucket`. `schemas` holds at least [`LogSlice::schema_ids`] of the same bytes.
    ///
    /// # Errors
    /// `Data` when a header is broken, or the batches do not follow each other offset by offset.
    pub fn new(bucket: TableBucket, format: LogFormat, raw: Bytes, schemas: BTreeMap<SchemaId, Arc<Schema>>) -> Result<Self> {
        let (mut first_offset, mut next_offset, mut count) = (None, None, 0);
        let mut all = batches(raw.clone());
        for batch in all.by_ref() {
            let header = batch.map_err(|error| error.context(format!("read the log of {bucket}")))?.header;
            if let Some(expected) = next_offset.filter(|expected| *expected != header.base_offset) {
                let found = header.base_offset;
                return Err(Error::data(format!("the log of {bucket} goes on at offset `{found}` where `{expected}` is due")));
            }
            first_offset = first_offset.or(Some(header.base_offset));
            next_offset = Some(header.next_offset());
            count += 1;
        }
        let whole_bytes = raw.len().saturating_sub(all.rest().len());
        let answer_bytes = raw.len();
        Ok(Self { bucket, format, raw, schemas, first_offset, next_offset, count, whole_bytes, answer_bytes, place: None })
    }

    /// Says that the bytes are a part of an answer of so many.
    #[must_use]
    pub(super) fn part_of(mut self, answer_bytes: usize) -> Self {
        self.answer_bytes = self.answer_bytes.max(answer_bytes);
        self
    }

    /// Without a cut-off tail.
    #[must_use]
    pub(super) fn whole(mut self) -> Self {
        self.raw.truncate(self.whole_bytes);
        self
    }

    /// Says where the bytes lay, for errors.
    #[must_use]
    pub(super) fn read_from(mut self, place: String) -> Self {
        self.place = Some(place.into());
        self
    }

    /// The schemas that whole batches in `raw` name.
    ///
    /// # Errors
    /// `Data` when a header is broken.
    pub fn schema_ids(raw: &Bytes) -> Result<BTreeSet<SchemaId>> {
        batches(raw.clone()).map(|batch| batch.map(|batch| batch.header.schema_id)).collect()
    }

    /// Bytes held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Where the first batch begins: at or before the offset that was fetched. `None` when there is no whole batch.
    #[must_use]
    pub fn first_offset(&self) -> Option<i64> {
        self.first_offset
    }

    /// End of the last whole batch = the next offset to fetch; `None` when there is no whole batch. Known without decoding.
    #[must_use]
    pub fn next_offset(&self) -> Option<i64> {
        self.next_offset
    }

    /// How far a fetch of `bytes` reaches where the log goes on like this: offsets of the whole batches, and of half a batch. `None` when
    /// there is no whole batch.
    #[must_use]
    pub fn reach(&self, bytes: i32) -> Option<(i64, i64)> {
        let offsets = i128::from(self.next_offset?.saturating_sub(self.first_offset?).max(1));
        let (count, whole) = (i128::try_from(self.count.max(1)).ok()?, i128::try_from(self.whole_bytes.max(1)).ok()?);
        let fit = (i128::from(bytes) * count / whole).max(count);
        let reach = i64::try_from(offsets.saturating_mul(fit) / count).unwrap_or(i64::MAX);
        Some((reach, i64::try_from(offsets / count / 2).unwrap_or(i64::MAX)))
    }

    /// As many whole batches from `from` on, one at least, as [`LogSlice::decode`] will allocate `bytes_max` bytes for, about, beside their own.
    ///
    /// # Errors
    /// As [`LogSlice::decode`].
    pub fn fitting(&self, from: i64, stop: i64, bytes_max: usize) -> Result<Fitting> {
        let mut all = Fitting { end: from, raw_bytes: 0, batch_bytes: 0, decoded_bytes: 0 };
        for batch in self.overlapping(from, stop) {
            let batch = batch?;
            // Nothing is checked yet: a wrong checksum says more than what it leads to.
            let bytes = batch.decoded_bytes(self.format);
            let bytes = bytes.map_err(|error| self.located(batch.verify_crc().err().unwrap_or_else(|| at(&batch, error))))?;
            if all.raw_bytes > 0 && all.decoded_bytes.saturating_add(bytes) > bytes_max {
                break;
            }
            all.end = batch.header.next_offset().min(stop);
            all.raw_bytes = all.raw_bytes.saturating_add(batch.bytes.len());
            all.batch_bytes = all.batch_bytes.max(batch.bytes.len());
            all.decoded_bytes = all.decoded_bytes.saturating_add(bytes);
        }
        Ok(all)
    }

    /// Decodes the records in `from..stop` (exclusive): skips earlier ones, cuts the last batch at `stop`, drops a cut-off tail.
    /// A negative `from` means from the slice's own beginning.
    ///
    /// Rows that are not compressed stay where they came in ([`RawBatch::decode`]), and with them the whole answer, unless most of it
    /// belongs to other buckets: those may be written long before, and a few rows must not keep megabytes. Then batches are copied once.
    ///
    /// # Errors
    /// `Data` when a batch fails its checksum or can't be parsed, or the slice begins after `from`: table bucket and offset are named.
    pub fn decode(&self, from: i64, stop: i64) -> Result<Decoded> {
        let mut schemas: BTreeMap<SchemaId, BatchSchema> = BTreeMap::new();
        let mut decoded = Decoded { batches: vec![], next_offset: from };
        let mostly_others = self.raw.len().saturating_mul(2) < self.answer_bytes;
        for raw in self.overlapping(from, stop) {
            let raw = raw?;
            let base = raw.header.base_offset;
            if from >= 0 && base > decoded.next_offset {
                let due = decoded.next_offset;
                return Err(self.located(Error::data(format!("it begins at offset `{base}` where `{due}` is due"))));
            }
            raw.verify_crc().map_err(|error| self.located(error))?;
            let schema = match schemas.get(&raw.header.schema_id) {
                Some(schema) => schema,
                None => schemas.entry(raw.header.schema_id).or_insert(self.schema(raw.header.schema_id)?),
            };
            let end = raw.header.next_offset().min(stop);
            let apart = mostly_others && raw.is_shared(self.format).map_err(|error| self.located(at(&raw, error)))?;
            let raw = if apart { raw.apart() } else { raw };
            if let Some(mut batch) = raw.decode(self.format, schema, self.bucket).map_err(|error| self.located(at(&raw, error)))? {
                cut(&mut batch, from, stop);
                decoded.batches.push(batch);
            }
            decoded.next_offset = end;
        }
        if !mostly_others {
            let counted: usize = decoded.batches.iter().map(|batch| batch.memory.shared).sum();
            if let Some(last) = decoded.batches.iter_mut().rfind(|batch| batch.memory.shared > 0) {
                last.memory.shared += self.answer_bytes.saturating_sub(counted);
            }
        }
        Ok(decoded)
    }

    fn overlapping(&self, from: i64, stop: i64) -> impl Iterator<Item = Result<RawBatch>> {
        batches(self.raw.clone())
            .skip_while(move |batch| batch.as_ref().is_ok_and(|batch| batch.header.next_offset() <= from))
            .take_while(move |batch| from < stop && !batch.as_ref().is_ok_and(|batch| batch.header.base_offset >= stop))
    }

    fn schema(&self, id: SchemaId) -> Result<BatchSchema> {
        let schema =
            self.schemas.get(&id).ok_or_else(|| Error::internal(format!("schema `{id}` of {} is missing", self.bucket)))?;
        BatchSchema::new(Arc::clone(schema))
    }

    fn located(&self, error: Error) -> Error {
        match &self.place {
            Some(place) => error.context(format!("read the log of {} in {place}", self.bucket)),
            None => error.context(format!("read the log of {}", self.bucket)),
        }
    }
}

fn at(batch: &RawBatch, error: Error) -> Error {
    error.context(format!("the record batch at offset `{}`", batch.header.base_offset))
}

/// Leaves the rows in `from..stop`; the batch overlaps that range.
fn cut(batch: &mut LogBatch, from: i64, stop: i64) {
    let rows = batch.rows.num_rows();
    let place = |offset: i64| usize::try_from(offset.saturating_sub(batch.base_offset)).unwrap_or_default().min(rows);
    let (first, end) = (place(from), place(stop));
    if (first, end) == (0, rows) {
        return;
    }
    batch.base_offset = batch.base_offset.max(from);
    batch.rows = batch.rows.slice(first, end.saturating_sub(first));
    if let Some(changes) = &mut batch.changes {
        changes.truncate(end);
        changes.drain(..first.min(end));
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{ArrayRef, Int64Array, RecordBatch};
    use serde_json::Value;

    use super::*;
    use crate::error::Kind;
    use crate::fluss::record::{Compression, EncodeOptions, arrow_schema, encode_arrow_batch, stamp};
    use crate::model::{BucketId, DataType, Field, TableId, TypeKind};

    const BUCKET: TableBucket = TableBucket { table: TableId(7), partition: None, bucket: BucketId(1) };

    fn payload() -> Vec<u8> {
        std::fs::read(format!("{}/fixtures/vectors/log-fetch-payload.bin", env!("CARGO_MANIFEST_DIR"))).unwrap()
    }

    /// The golden fetch answer: offsets 200–204 by schema 1, 205 empty, 206–210 by schema 2, a cut-off batch.
    fn slice(raw: Vec<u8>) -> Result<LogSlice> {
        let field =
            |id, name: &str, kind, nullable| Field { id, name: name.into(), data_type: DataType { kind, nullable }, comment: None };
        let fields = [
            field(0, "id", TypeKind::Int, false),
            field(1, "name", TypeKind::String, true),
            field(2, "amount", TypeKind::Decimal { precision: 10, scale: 2 }, true),
        ];
        let schema = |id, fields: &[Field]| {
            let schema = Schema { id: SchemaId(id), fields: fields.to_vec(), primary_key: vec![], highest_field_id: 3 };
            (SchemaId(id), Arc::new(schema))
        };
        LogSlice::new(BUCKET, LogFormat::Arrow, raw.into(), BTreeMap::from([schema(1, &fields), schema(2, &fields)]))
    }

    fn offsets(decoded: &Decoded) -> Vec<i64> {
        decoded.batches.iter().flat_map(|batch| batch.base_offset..batch.end_offset()).collect()
    }

    #[test]
    fn each_range_yields_exactly_its_offsets_over_two_schemas_and_an_empty_batch() {
        let raw = payload();
        let described: Value = serde_json::from_str(include_str!("../../fixtures/vectors/fluss-records.json")).unwrap();
        assert!(described["files"].as_array().unwrap().iter().any(|file| file["file"] == "log-fetch-payload.bin"));
        let slice = slice(raw.clone()).unwrap();
        assert_eq!((slice.first_offset(), slice.next_offset()), (Some(200), Some(211)));
        // Three batches: as many again fit into as many bytes, twice as many into twice as many.
        let whole = i32::try_from(slice.whole_bytes).unwrap();
        assert_eq!(
            [1, whole, whole + 100, 2 * whole].map(|bytes| slice.reach(bytes).unwrap()),
            [(11, 1), (11, 1), (11, 1), (22, 1)]
        );
        assert_eq!(LogSlice::schema_ids(&raw.into()).unwrap(), BTreeSet::from([SchemaId(1), SchemaId(2)]));
        for from in 200..=211 {
            for stop in from..=215 {
                let decoded = slice.decode(from, stop).unwrap();
                let expected: Vec<i64> = (from..stop.min(211)).filter(|offset| *offset != 205).collect();
                assert_eq!(offsets(&decoded), expected, "{from}..{stop}");
                assert_eq!(decoded.next_offset, stop.min(211), "{from}..{stop}");
                for batch in &decoded.batches {
                    assert!(batch.changes.as_ref().is_none_or(|changes| changes.len() == batch.rows.num_rows()));
                }
                assert_eq!(decoded.batches.is_empty(), expected.is_empty());
                let fitting = slice.fitting(from, stop, usize::MAX).unwrap();
                assert_eq!((fitting.end, fitting.decoded_bytes > 0), (decoded.next_offset, !expected.is_empty()));
            }
        }
        assert_eq!(offsets(&slice.decode(-2, 203).unwrap()), [200, 201, 202]);
        let all = slice.fitting(-1, 300, usize::MAX).unwrap();
        assert_eq!((all.end, all.raw_bytes), (211, slice.whole_bytes));
        // One at least, and the empty one behind it takes nothing.
        let first = slice.fitting(-1, 300, 0).unwrap();
        assert_eq!((first.end, slice.fitting(203, 300, first.decoded_bytes).unwrap().end), (205, 206));
        assert_eq!(slice.fitting(-1, 300, all.decoded_bytes - 1).unwrap().end, 206);
    }

    /// Three batches of 1,000 numbers, not compressed.
    fn plain() -> (Bytes, LogSlice) {
        let number = Field { id: 0, name: "n".into(), data_type: DataType::nullable(TypeKind::BigInt), comment: None };
        let schema = Schema { id: SchemaId(1), fields: vec![number], primary_key: vec![], highest_field_id: 0 };
        let arrow = arrow_schema(&schema).unwrap();
        let mut bytes = Vec::new();
        for base in (0..3000).step_by(1000) {
            let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(base..base + 1000));
            let rows = RecordBatch::try_new(Arc::clone(&arrow), vec![numbers]).unwrap();
            let options = EncodeOptions { compression: Compression::None, ..EncodeOptions::new(SchemaId(1)) };
            let mut batch = encode_arrow_batch(options, &rows, None).unwrap().to_vec();
            stamp(&mut batch, base, 0, 0).unwrap();
            bytes.extend_from_slice(&batch);
        }
        let raw = Bytes::from(bytes);
        (raw.clone(), LogSlice::new(BUCKET, LogFormat::Arrow, raw, BTreeMap::from([(SchemaId(1), Arc::new(schema))])).unwrap())
    }

    fn lies_in(raw: &Bytes, batch: &LogBatch) -> bool {
        raw.as_ptr_range().contains(&batch.rows.column(0).as_primitive::<Int64Type>().values().inner().as_ptr())
    }

    #[test]
    fn batches_that_share_an_answer_account_for_all_of_it() {
        let (raw, slice) = plain();
        let of = |batches: &[LogBatch]| batches.iter().map(|batch| batch.memory.shared).sum::<usize>();
        let all = slice.decode(0, 3000).unwrap().batches;
        assert!(all.iter().all(|batch| lies_in(&raw, batch)), "allocations of that size lie at multiples of 16");
        assert_eq!(of(&all), raw.len());
        // What was skipped or comes later lives on too.
        assert_eq!(of(&slice.decode(1200, 1300).unwrap().batches), raw.len());
        let part = slice.part_of(raw.len() + 10_000).decode(0, 3000).unwrap().batches;
        assert!(part.iter().all(|batch| lies_in(&raw, batch)));
        assert_eq!(of(&part), raw.len() + 10_000);
    }

    #[test]
    fn a_few_rows_do_not_keep_an_answer_that_is_mostly_others() {
        let (raw, slice) = plain();
        let batches = slice.part_of(raw.len() * 2 + 1).decode(500, 3000).unwrap().batches;
        assert_eq!(batches.iter().map(|batch| batch.rows.num_rows()).collect::<Vec<_>>(), [500, 1000, 1000]);
        assert!(batches.iter().all(|batch| !lies_in(&raw, batch)));
        assert_eq!(batches.iter().map(|batch| batch.memory.shared).sum::<usize>(), raw.len());
        assert_eq!(batches[2].rows.column(0).as_primitive::<Int64Type>().value(999), 2999);
    }

    #[test]
    fn gaps_and_wrong_checksums_are_data_faults_that_name_the_offset() {
        let gap = slice(payload()).unwrap().decode(150, 205).unwrap_err();
        assert!(gap.kind() == Kind::Data && gap.chain().contains("`200`") && gap.chain().contains("`150`"), "{gap}");
        let mut broken = payload();
        broken[470] ^= 1;
        let error = slice(broken).unwrap().decode(200, 211).unwrap_err();
        assert!(error.kind() == Kind::Data && error.chain().contains("`200`"), "{}", error.chain());
        let mut jump = payload();
        jump[477..485].copy_from_slice(&207_i64.to_le_bytes());
        assert_eq!(slice(jump).unwrap_err().kind(), Kind::Data);
        assert_eq!(slice(payload()[..60].to_vec()).unwrap().next_offset(), None);
    }
}
