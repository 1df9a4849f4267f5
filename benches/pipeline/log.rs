//! Logs as a server keeps them: appends, and changes of primary-key tables.
//!
//! Keys come in no order; of ten changes six are inserts, three update a key from before (−U, +U) and one deletes one.

use std::sync::Arc;

use arrow_array::RecordBatch;
use bytes::Bytes;
use lakeward::fluss::record::{BatchSchema, Compression, EncodeOptions, LogFormat, batches, encode_arrow_batch, stamp};
use lakeward::model::{BucketId, ChangeKind, Field, Schema, SchemaId, TableBucket, TableId};

use super::{ROWS, kit};

pub(super) const BATCH_ROWS: usize = 10_000;
/// Buckets of the table that a round tiers.
pub(super) const BUCKETS: u64 = 4;
pub(super) const BUCKET: TableBucket = TableBucket { table: TableId(1), partition: None, bucket: BucketId(0) };

/// Rows, and what they do; `None` = all are appends.
pub(super) type Changes = (RecordBatch, Option<Vec<ChangeKind>>);

/// A bucket's log, in batches of [`BATCH_ROWS`].
pub(super) struct Log {
    pub(super) schema: BatchSchema,
    pub(super) bytes: Bytes,
    pub(super) decoded: Vec<Changes>,
}

/// The kit's columns with a primary key.
pub(super) fn schema(key: &[usize]) -> Schema {
    let mut fields = kit::fields();
    key.iter().for_each(|place| fields.get_mut(*place).unwrap().data_type.nullable = false);
    let primary_key = key.iter().map(|place| fields.get(*place).unwrap().name.clone()).collect();
    Schema { id: SchemaId(1), fields, primary_key, highest_field_id: 11 }
}

impl Log {
    /// Of a log table if `key` names no column; all rows in one bucket.
    pub(super) fn new(key: &[usize], compression: Compression) -> Self {
        Self::of(key, compression, |_| true)
    }

    /// The same rows, spread by their ids over [`BUCKETS`] buckets.
    pub(super) fn buckets(key: &[usize], compression: Compression) -> Vec<Self> {
        (0..BUCKETS).map(|bucket| Self::of(key, compression, |id| kit::mix(id.cast_unsigned()) % BUCKETS == bucket)).collect()
    }

    fn of(key: &[usize], compression: Compression, here: impl Fn(i64) -> bool) -> Self {
        let schema = BatchSchema::new(Arc::new(schema(key))).unwrap();
        let all: Vec<Changes> = if key.is_empty() {
            let ids: Vec<i64> = (0..ROWS).filter(|id| here(*id)).collect();
            ids.chunks(BATCH_ROWS).map(|ids| (kit::rows(&schema, ids.iter().copied()), None)).collect()
        } else {
            let rows = usize::try_from(ROWS).unwrap();
            let events: Vec<(i64, ChangeKind)> = events().take(rows).filter(|(id, _)| here(*id)).collect();
            let batch = |events: &[(i64, ChangeKind)]| {
                let rows = kit::rows(&schema, events.iter().map(|(id, _)| *id));
                (rows, Some(events.iter().map(|(_, change)| *change).collect()))
            };
            events.chunks(BATCH_ROWS).map(batch).collect()
        };
        let (mut bytes, mut offset) = (Vec::new(), 0);
        for (rows, changes) in all {
            let options = EncodeOptions { compression, ..EncodeOptions::new(SchemaId(1)) };
            let mut batch = encode_arrow_batch(options, &rows, changes.as_deref()).unwrap().to_vec();
            stamp(&mut batch, offset, 1_700_000_000_000, 0).unwrap();
            offset += i64::try_from(rows.num_rows()).unwrap();
            bytes.extend_from_slice(&batch);
        }
        let mut log = Self { schema, bytes: bytes.into(), decoded: Vec::new() };
        log.decoded = log.decode().collect();
        log
    }

    pub(super) fn fields(&self) -> &[Field] {
        &self.schema.schema.fields
    }

    /// Names of the primary key.
    pub(super) fn names(&self) -> &[String] {
        &self.schema.schema.primary_key
    }

    /// As reading does it: checksum, then rows.
    pub(super) fn decode(&self) -> impl Iterator<Item = Changes> + '_ {
        batches(self.bytes.clone()).map(|batch| {
            let batch = batch.unwrap();
            batch.verify_crc().unwrap();
            let decoded = batch.decode(LogFormat::Arrow, &self.schema, BUCKET).unwrap().unwrap();
            (decoded.rows, decoded.changes)
        })
    }

    /// The rows alone.
    pub(super) fn rows(&self) -> impl Iterator<Item = RecordBatch> + '_ {
        self.decoded.iter().map(|(rows, _)| rows.clone())
    }
}

/// Keys of [`events`] lie below this.
pub(super) const KEYS: i64 = 1 << 23;

/// Ids and what happens to them, without end: each key's changes follow each other as a server would write them.
pub(super) fn events() -> impl Iterator<Item = (i64, ChangeKind)> {
    // A permutation of 0..2²³, so that keys come in no order; what was inserted is at the ends of these two.
    let id = |number: i64| (number * 704_653 + 12_345) & (KEYS - 1);
    let (mut inserted, mut deleted) = (0_i64, 0_i64);
    (0..).flat_map(move |step: i64| match step % 10 {
        0..6 => {
            inserted += 1;
            vec![(id(inserted - 1), ChangeKind::Insert)]
        }
        6..9 if inserted - deleted > 1 => {
            let one = id(deleted + (step * 48_271) % (inserted - deleted));
            vec![(one, ChangeKind::UpdateBefore), (one, ChangeKind::UpdateAfter)]
        }
        _ => {
            deleted += 1;
            vec![(id(deleted - 1), ChangeKind::Delete)]
        }
    })
}
