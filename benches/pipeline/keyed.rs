//! Primary-key tables: a change log through the write stage, beside what decode, sort, take and encode need.
//!
//! Keys come in no order; of ten changes six are inserts, three update a key from before (−U, +U) and one deletes one. **Floor** = each
//! step by itself: decode; put the batches into one and sort it by arrow-row's keys and arrival; take the rows in that order; encode them with
//! parquet's own writer, only the table's columns. With changelog files all rows are taken and encoded, and the newest of each key once more.
//! **Tuned** = the same with the write stage's own encoder instead of parquet's.

use std::sync::Arc;

use arrow_array::{RecordBatch, UInt32Array};
use arrow_row::{RowConverter, SortField};
use arrow_schema::SchemaRef;
use arrow_select::concat::concat_batches;
use arrow_select::take::take_record_batch;
use bytes::Bytes;
use lakeward::fluss::record::{BatchSchema, Compression, EncodeOptions, LogFormat, batches, encode_arrow_batch, stamp};
use lakeward::model::{ChangeKind, Field, Schema, SchemaId};

use super::{BATCH_ROWS, BUCKET, ROWS, fastest, kit, line, plain_encode, write_stage};

/// A change log of [`ROWS`] rows, as a server keeps it.
pub(super) struct ChangeLog {
    schema: BatchSchema,
    bytes: Bytes,
    key: &'static [usize],
    fields: Vec<Field>,
}

type Changes = (RecordBatch, Option<Vec<ChangeKind>>);

impl ChangeLog {
    /// `key`: places of the key columns.
    fn new(key: &'static [usize]) -> Self {
        let mut fields = kit::fields();
        key.iter().for_each(|place| fields.get_mut(*place).unwrap().data_type.nullable = false);
        let names = key.iter().map(|place| fields.get(*place).unwrap().name.clone()).collect();
        let schema = Schema { id: SchemaId(1), fields: fields.clone(), primary_key: names, highest_field_id: 11 };
        let schema = BatchSchema::new(Arc::new(schema)).unwrap();
        let events = events();
        let mut bytes = Vec::new();
        for (number, events) in (0..).zip(events.chunks(usize::try_from(BATCH_ROWS).unwrap())) {
            let rows = kit::rows(&schema, events.iter().map(|(id, _)| *id));
            let changes: Vec<ChangeKind> = events.iter().map(|(_, change)| *change).collect();
            let options = EncodeOptions { compression: Compression::Zstd(3), ..EncodeOptions::new(SchemaId(1)) };
            let mut batch = encode_arrow_batch(options, &rows, Some(&changes)).unwrap().to_vec();
            stamp(&mut batch, number * BATCH_ROWS, 1_700_000_000_000, 0).unwrap();
            bytes.extend_from_slice(&batch);
        }
        Self { schema, bytes: bytes.into(), key, fields }
    }

    fn decode(&self) -> impl Iterator<Item = Changes> + '_ {
        batches(self.bytes.clone()).map(|batch| {
            let batch = batch.unwrap();
            batch.verify_crc().unwrap();
            let decoded = batch.decode(LogFormat::Arrow, &self.schema, BUCKET).unwrap().unwrap();
            (decoded.rows, decoded.changes)
        })
    }
}

/// Ids and what happens to them.
fn events() -> Vec<(i64, ChangeKind)> {
    let wanted = usize::try_from(ROWS).unwrap();
    let mut events = Vec::with_capacity(wanted + 2);
    // A permutation of 0..2²⁰, so that keys come in no order; what was inserted is at the ends of these two.
    let id = |number: i64| (number * 704_653 + 12_345) & 0xf_ffff;
    let (mut inserted, mut deleted) = (0_i64, 0_i64);
    for step in 0.. {
        match step % 10 {
            0..6 => {
                events.push((id(inserted), ChangeKind::Insert));
                inserted += 1;
            }
            6..9 if inserted - deleted > 1 => {
                let one = id(deleted + (step * 48_271) % (inserted - deleted));
                events.extend([(one, ChangeKind::UpdateBefore), (one, ChangeKind::UpdateAfter)]);
            }
            _ => {
                events.push((id(deleted), ChangeKind::Delete));
                deleted += 1;
            }
        }
        if events.len() >= wanted {
            break;
        }
    }
    events.truncate(wanted);
    events
}

/// One batch of all rows, and their order by key and arrival: every row, and the newest of each key.
fn sort(schema: &SchemaRef, key: &[usize], changes: &[Changes]) -> (RecordBatch, [UInt32Array; 2]) {
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

/// Ours beside the floor, on the same bytes in the same run.
pub(super) fn report() {
    println!("\nprimary-key tables: six inserts, three updates (−U, +U) and a delete of ten changes");
    for (name, key) in [("integer key", &[0][..]), ("composite key", &[8, 0])] {
        let log = ChangeLog::new(key);
        let arrow = &log.schema.arrow;
        let decoded: Vec<Changes> = log.decode().collect();
        let decode = fastest(|| log.decode().map(|(rows, _)| rows.num_rows()).sum::<usize>());
        let sorting = fastest(|| sort(arrow, key, &decoded));
        let (all, [every, newest]) = sort(arrow, key, &decoded);
        for (with, changelog) in [("", false), (", changelog files", true)] {
            let name = format!("{name}{with}");
            let order = if changelog { &every } else { &newest };
            let taking = fastest(|| take_record_batch(&all, order).unwrap());
            let files: Vec<RecordBatch> = if changelog { vec![&every, &newest] } else { vec![&newest] }
                .into_iter()
                .map(|order| take_record_batch(&all, order).unwrap())
                .collect();
            let rows = |batch: &RecordBatch| {
                let step = usize::try_from(BATCH_ROWS).unwrap();
                let count = batch.num_rows();
                (0..count).step_by(step).map(|from| batch.slice(from, step.min(count - from))).collect::<Vec<_>>()
            };
            let files: Vec<Vec<RecordBatch>> = files.iter().map(rows).collect();
            let plain = fastest(|| files.iter().map(|rows| plain_encode(arrow, rows.iter().cloned())).sum::<usize>());
            let tuned = fastest(|| {
                files
                    .iter()
                    .map(|rows| write_stage(&log.fields, &[], &[], rows.iter().map(|rows| (rows.clone(), None))))
                    .sum::<usize>()
            });
            let names: Vec<String> = key.iter().map(|place| log.fields.get(*place).unwrap().name.clone()).collect();
            let options: &[(&str, &str)] = if changelog { &[("changelog-producer", "input")] } else { &[] };
            let ours = fastest(|| write_stage(&log.fields, &names, options, log.decode()));
            let (floor, floor_tuned) = (decode + sorting + taking + plain, decode + sorting + taking + tuned);
            line(&format!("{name}: decode"), decode);
            line("       sort", sorting);
            line("       take", taking);
            line("       encode (ArrowWriter, zstd 1)", plain);
            line("       encode (tuned)", tuned);
            line("floor: their sum", floor);
            line("floor: their sum, tuned", floor_tuned);
            line("ours:  decode + write stage", ours);
            println!("{name}: ours ÷ floor {:.2}, ÷ tuned floor {:.2}", floor / ours, floor_tuned / ours);
        }
    }
}

/// What the parts of one kind of table cost, for a profiler: `-- --keyed`.
pub(super) fn profile() {
    let log = ChangeLog::new(&[0]);
    let decoded: Vec<Changes> = log.decode().collect();
    let names = [log.fields.first().unwrap().name.clone()];
    for _ in 0..20 {
        std::hint::black_box(write_stage(&log.fields, &names, &[("changelog-producer", "input")], decoded.iter().cloned()));
    }
    assert_eq!(log.key.len(), 1);
}
