//! The twin's primary-key tables: puts and their changelog (S6.3), the state and its scans (F5.7).

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, RecordBatch, new_null_array};
use arrow_select::concat::concat_batches;
use arrow_select::filter::filter_record_batch;
use async_trait::async_trait;
use bytes::Bytes;

use super::{MemoryCluster, MemoryService, State, Table, faults, wrong_routing};
use crate::error::{Error, Result};
use crate::fluss::bucket::{KeyRules, KeyWriter};
use crate::fluss::record::{
    BatchSchema, Compression, EncodeOptions, KvFormat, RowEncoder, Value, ValueBatchBuilder, decode_rows, encode_arrow_batch,
};
use crate::model::{ChangeKind, Schema, SchemaId, TableBucket, TablePath, TypeKind};
use crate::source::state::state_lost;
use crate::source::{StateRequest, StateScan, StateSlice};

impl MemoryCluster {
    /// Upserts rows (columns of schema `schema_id`), or deletes those whose place in `deletes` says so (only their keys count), as one
    /// batch of a client. One batch of changes is appended; an empty one where nothing changes. Returns the offset behind it.
    ///
    /// # Errors
    /// `Invalid` when there is no such bucket (21), schema (9), when the table has no primary key (20), or a key is NULL.
    ///
    /// Source: S6.3.
    pub fn put(&self, bucket: TableBucket, schema_id: SchemaId, rows: &RecordBatch, deletes: Option<&[bool]>) -> Result<i64> {
        let now_ms = self.now_ms();
        let mut state = self.state();
        let table = state.tables.get_mut(&bucket.table);
        let table = table.ok_or_else(|| Error::invalid(format!("{bucket} does not exist")).with_code(21))?;
        let batch = table.changed(bucket, schema_id, rows, deletes)?;
        state.append_raw(bucket, &batch, now_ms, &self.runtime.rng)?;
        Ok(state.log_mut(bucket)?.end)
    }

    /// [`MemoryCluster::put`] in the newest schema, to the buckets that the keys hash to, of the partition that the first row names.
    ///
    /// # Errors
    /// As [`MemoryCluster::put`]; `Invalid` (7, 36).
    pub fn put_rows(&self, path: &TablePath, rows: &RecordBatch, deletes: Option<&[bool]>) -> Result<()> {
        let (info, buckets) = self.routed(path, rows)?;
        for (bucket, mask) in buckets {
            let mine = filter(rows, &mask)?;
            let gone: Option<Vec<bool>> = deletes
                .map(|deletes| deletes.iter().zip(&mask).filter(|(_, mine)| *mine == Some(true)).map(|(gone, _)| *gone).collect());
            if mine.num_rows() > 0 {
                self.put(bucket, info.schema.id, &mine, gone.as_deref())?;
            }
        }
        Ok(())
    }

    /// All rows of a bucket as they are now, in the newest schema and in the order of their encoded keys.
    ///
    /// # Errors
    /// `Invalid` (21) when there is no such bucket.
    pub fn state_of(&self, bucket: TableBucket) -> Result<RecordBatch> {
        let mut state = self.state();
        let values: Vec<Bytes> = state.log_mut(bucket)?.values.values().cloned().collect();
        let table = state.tables.get(&bucket.table);
        table.ok_or_else(|| Error::invalid(format!("{bucket} does not exist")).with_code(21))?.widened(&values)
    }

    /// Whether servers offer ScanKv from now on; they do at first.
    pub fn serve_states(&self, serve: bool) {
        self.state().no_states = !serve;
    }

    /// All open state scans are lost, as when leaders move.
    pub fn lose_states(&self) {
        self.state().scans.clear();
    }

    /// State scans that are open now.
    #[must_use]
    pub fn open_states(&self) -> usize {
        self.state().scans.len()
    }
}

pub(super) fn filter(rows: &RecordBatch, mask: &BooleanArray) -> Result<RecordBatch> {
    filter_record_batch(rows, mask).map_err(|source| Error::internal("split rows").with_source(source))
}

/// The columns `names` of rows with the columns of `schema`.
pub(super) fn columns_of<'a>(
    schema: &'a Schema,
    rows: &'a RecordBatch,
    names: &[String],
) -> Result<Vec<(&'a TypeKind, &'a ArrayRef)>> {
    let column = |name: &String| {
        let at = schema.index_of(name);
        let found = at.and_then(|at| Some((&schema.fields.get(at)?.data_type.kind, rows.columns().get(at)?)));
        found.ok_or_else(|| Error::invalid(format!("rows lack `{name}`")))
    };
    names.iter().map(column).collect()
}

impl Table {
    /// Applies a put to the state, and says what changed as a batch.
    fn changed(&mut self, bucket: TableBucket, schema_id: SchemaId, rows: &RecordBatch, deletes: Option<&[bool]>) -> Result<Bytes> {
        let schema = self.schemas.get(&schema_id).ok_or_else(|| Error::invalid("no such schema").with_code(9))?;
        if !self.info.has_primary_key() {
            return Err(Error::invalid(format!("`{}` is a log table", self.info.path)).with_code(20));
        }
        let rules = KeyRules::of(&self.info)?;
        let keys = columns_of(schema, rows, &rules.columns)?;
        let mut keys = KeyWriter::new(rules.encoding, &keys)?;
        let encoder = RowEncoder::new(KvFormat::of(&self.info)?, schema, rows)?;
        let wal = self.info.property("table.changelog.image").is_some_and(|image| image.eq_ignore_ascii_case("wal"));
        // What can fail comes first: nothing of a put that fails may stay.
        let mut puts = Vec::with_capacity(rows.num_rows());
        for row in 0..rows.num_rows() {
            let gone = deletes.and_then(|deletes| deletes.get(row)).copied().unwrap_or(false);
            let mut bytes = vec![];
            encoder.encode(row, &mut bytes)?;
            let value = Bytes::from(Value { schema_id, row: &bytes }.to_bytes()?);
            puts.push((keys.key(row)?.to_vec(), (!gone).then_some(value)));
        }
        let log = self.logs.get_mut(&bucket.into());
        let log = log.ok_or_else(|| Error::invalid(format!("{bucket} does not exist")).with_code(21))?;
        let (mut kinds, mut changes) = (vec![], vec![]);
        for (key, value) in puts {
            let old = match &value {
                Some(new) => log.values.insert(key, new.clone()),
                None => log.values.remove(&key),
            };
            let made = match (old, value) {
                (_, Some(new)) if wal => vec![(ChangeKind::UpdateAfter, new)],
                (Some(old), Some(new)) => vec![(ChangeKind::UpdateBefore, old), (ChangeKind::UpdateAfter, new)],
                (None, Some(new)) => vec![(ChangeKind::Insert, new)],
                (Some(old), None) => vec![(ChangeKind::Delete, old)],
                (None, None) => vec![],
            };
            for (kind, value) in made {
                kinds.push(kind);
                changes.push(value);
            }
        }
        let options = EncodeOptions { compression: Compression::Zstd(1), ..EncodeOptions::new(self.info.schema.id) };
        encode_arrow_batch(options, &self.widened(&changes)?, Some(&kinds))
    }

    /// Stored values as rows of the newest schema.
    fn widened(&self, values: &[Bytes]) -> Result<RecordBatch> {
        let newest = BatchSchema::new(Arc::clone(&self.info.schema))?;
        let values: Vec<Value<'_>> = values.iter().map(|value| Value::parse(value)).collect::<Result<_>>()?;
        let mut parts = vec![RecordBatch::new_empty(Arc::clone(&newest.arrow))];
        for run in values.chunk_by(|one, other| one.schema_id == other.schema_id) {
            let schema = run.first().and_then(|value| self.schemas.get(&value.schema_id));
            let schema = BatchSchema::new(Arc::clone(schema.ok_or_else(|| Error::internal("a value of no schema"))?))?;
            let rows = run.iter().map(|value| value.row).collect::<Vec<_>>();
            let rows = decode_rows(KvFormat::of(&self.info)?, &schema, rows)?;
            let columns = newest.arrow.fields().iter().enumerate().map(|(at, field)| {
                rows.columns().get(at).map_or_else(|| new_null_array(field.data_type(), rows.num_rows()), Arc::clone)
            });
            let rows = RecordBatch::try_new(Arc::clone(&newest.arrow), columns.collect());
            parts.push(rows.map_err(|source| Error::internal("widen rows").with_source(source))?);
        }
        concat_batches(&newest.arrow, &parts).map_err(|source| Error::internal("join rows").with_source(source))
    }
}

impl State {
    fn open_scan(&mut self, request: &StateRequest) -> Result<(u64, i64, VecDeque<Bytes>)> {
        let (bucket, path) = (request.bucket, &request.table.path);
        if self.no_states {
            return Err(Error::unsupported("the server does not offer `ScanKv`").with_code(2));
        }
        let missing = || Error::stale(format!("{bucket} of `{path}` is gone")).with_code(21);
        let table = self.tables.get(&bucket.table).ok_or_else(missing)?;
        if !table.info.has_primary_key() {
            return Err(Error::invalid(format!("`{path}` is a log table")).with_code(20));
        }
        let log = table.logs.get(&bucket.into()).ok_or_else(missing)?;
        let actual = table.actual_count(bucket.partition);
        if actual != request.layout.count {
            return Err(wrong_routing(&bucket.to_string(), request.layout.count, actual));
        }
        let opened = (self.next_scan, log.end, log.values.values().cloned().collect());
        self.scans.insert(self.next_scan, bucket);
        self.next_scan += 1;
        Ok(opened)
    }
}

/// An open scan: the image was taken when it was opened.
#[derive(Debug)]
struct Scan {
    service: MemoryService,
    request: StateRequest,
    id: u64,
    log_offset: i64,
    rest: VecDeque<Bytes>,
    first: bool,
}

impl MemoryService {
    pub(super) async fn open_scan(&self, request: StateRequest) -> Result<Box<dyn StateScan>> {
        let path = request.table.path.clone();
        let (id, log_offset, rest) = self.call("open_state", &path, |cluster| cluster.state().open_scan(&request)).await?;
        Ok(Box::new(Scan { service: self.clone(), request, id, log_offset, rest, first: true }))
    }
}

impl Scan {
    fn take(&mut self) -> Result<StateSlice> {
        let limit = usize::try_from(self.request.bytes_max).unwrap_or_default();
        let mut batch = ValueBatchBuilder::default();
        while let Some(value) = self.rest.pop_front() {
            // One whole value always.
            if batch.count() > 0 && batch.bytes().saturating_add(value.len()) > limit {
                self.rest.push_front(value);
                break;
            }
            batch.push(&value)?;
        }
        let (bucket, cluster) = (self.request.bucket, &self.service.cluster);
        let mut state = cluster.state();
        if self.rest.is_empty() {
            state.scans.remove(&self.id);
        }
        let table = state.tables.get(&bucket.table).ok_or_else(|| Error::stale(format!("{bucket} is gone")).with_code(21))?;
        Ok(StateSlice::new(bucket, KvFormat::of(&table.info)?, batch.finish(), table.schemas.clone()))
    }
}

#[async_trait]
impl StateScan for Scan {
    fn log_offset(&self) -> i64 {
        self.log_offset
    }

    fn is_done(&self) -> bool {
        !self.first && self.rest.is_empty()
    }

    async fn next(&mut self) -> Result<Option<StateSlice>> {
        if std::mem::take(&mut self.first) {
            return self.take().map(Some);
        }
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (bucket, path) = (self.request.bucket, self.request.table.path.to_string());
        let lost = |error| state_lost(bucket, error);
        let fault = self.service.faults.before("next_state", &path).await.map_err(lost)?;
        if !self.service.cluster.state().scans.contains_key(&self.id) {
            return Err(lost(Error::unavailable("the server knows no such scan").with_code(67)));
        }
        if let Err(error) = faults::after(fault.as_ref(), "next_state") {
            // The sequence has gone on.
            self.service.cluster.state().scans.remove(&self.id);
            return Err(lost(error));
        }
        self.take().map(Some)
    }
}

impl Drop for Scan {
    fn drop(&mut self) {
        self.service.cluster.state().scans.remove(&self.id);
    }
}
