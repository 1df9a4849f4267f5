//! Rows that wait to be encoded in the order they came.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::Schema;
use arrow_select::concat::concat_batches;

use super::nested::size_of;
use crate::error::{Error, Result};
use crate::runtime::Permit;

/// Batches of fewer rows are joined once there are enough of them: an array costs hundreds of bytes, however few its rows.
const SMALL_BATCH_ROWS: usize = 256;
/// How many small batches are joined into one.
const JOINED_BATCHES: usize = 64;

/// Batches that wait, each with the memory permit that covers it.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    batches: VecDeque<(RecordBatch, usize, Permit)>,
    pub(super) rows: usize,
    pub(super) bytes: usize,
    /// Small batches at the end of `batches`.
    small: usize,
}

/// The front of a buffer.
pub(super) struct Taken {
    pub(super) batches: Vec<RecordBatch>,
    pub(super) permits: Vec<Permit>,
    pub(super) rows: usize,
    pub(super) bytes: usize,
}

impl Buffer {
    pub(super) fn push(&mut self, rows: RecordBatch, permit: Permit) -> Result<()> {
        let (count, size) = (rows.num_rows(), size_of_rows(&rows));
        self.rows += count;
        self.bytes += size;
        self.batches.push_back((rows, size, permit));
        self.small = if count < SMALL_BATCH_ROWS { self.small + 1 } else { 0 };
        if self.small >= JOINED_BATCHES { self.join() } else { Ok(()) }
    }

    /// Makes one batch of the small ones at the end.
    fn join(&mut self) -> Result<()> {
        let tail = self.batches.split_off(self.batches.len() - self.small);
        self.small = 0;
        let schema = tail.front().map_or_else(|| Arc::new(Schema::empty()), |(rows, ..)| rows.schema());
        let joined = concat_batches(&schema, tail.iter().map(|(rows, ..)| rows))
            .map_err(|source| Error::internal("join small batches").with_source(source))?;
        let size = size_of_rows(&joined);
        self.bytes = self.bytes + size - tail.iter().map(|(_, size, _)| size).sum::<usize>();
        let permit = tail.into_iter().map(|(_, _, permit)| permit).reduce(|mut all, permit| {
            all.merge(permit);
            all
        });
        if let Some(mut permit) = permit {
            permit.shrink(size);
            self.batches.push_back((joined, size, permit));
        }
        Ok(())
    }

    /// Takes batches from the front until one limit is reached; the last one is cut where it crosses. At least one row.
    /// A cut batch's permit stays with its rest.
    pub(super) fn take(&mut self, rows_max: usize, bytes_max: usize) -> Taken {
        let (mut batches, mut permits, mut rows, mut bytes) = (Vec::new(), Vec::new(), 0, 0);
        while rows < rows_max && bytes < bytes_max {
            let Some((batch, size, permit)) = self.batches.pop_front() else { break };
            let by_bytes = batch.num_rows().saturating_mul(bytes_max - bytes) / size.max(1);
            let fits = (rows_max - rows).min(by_bytes.max(1));
            if fits < batch.num_rows() {
                let part = size * fits / batch.num_rows();
                self.batches.push_front((batch.slice(fits, batch.num_rows() - fits), size - part, permit));
                batches.push(batch.slice(0, fits));
                rows += fits;
                bytes += part;
                break;
            }
            rows += batch.num_rows();
            bytes += size;
            batches.push(batch);
            permits.push(permit);
        }
        self.rows -= rows;
        self.bytes -= bytes;
        self.small = self.small.min(self.batches.len());
        Taken { batches, permits, rows, bytes }
    }
}

/// Bytes of the values, however large the buffers behind them are.
pub(super) fn size_of_rows(rows: &RecordBatch) -> usize {
    rows.columns().iter().map(size_of).sum()
}
