//! State splits (F5.7): the whole state of a bucket, to its end whatever the round's limits say (F1.5).

use std::sync::Arc;

use futures::stream::{self, TryStreamExt};
use tokio::sync::mpsc;
use tracing::debug;

use super::lane::memory;
use super::pump::Pump;
use super::{Chunk, EXPANSION, fit};
use crate::error::Result;
use crate::runtime::Permit;
use crate::source::{STATE_BYTES_MAX, StateRequest, StateScan, StateSlice};

/// Scans of one round that are open at once. A server has places for 200, of all its clients together (F8.1).
pub(super) const STATES_MAX: usize = 16;

/// Raw values, and the memory that they and their rows may take.
struct Page {
    slice: StateSlice,
    permit: Permit,
}

/// An open scan. The permit of its first page was there before it was opened.
struct Open {
    scan: Box<dyn StateScan>,
    first: Option<Permit>,
}

impl Pump {
    /// Delivers the whole state: at least one chunk, each with the offset at which the log goes on. Nothing, if it was cut before it
    /// began.
    pub(super) async fn run_state(self: Arc<Self>, to: &mpsc::Sender<Result<Chunk>>) -> Result<()> {
        let bytes_max = self.options.bucket_bytes.clamp(1, STATE_BYTES_MAX);
        let room = async {
            // Before the permit: who waits for a place must not hold memory that others need to get on.
            let slot = Arc::clone(&self.states).acquire_owned().await;
            (slot, self.runtime.budget.acquire(memory(bytes_max, EXPANSION)).await)
        };
        let (_slot, permit) = tokio::select! {
            room = room => room,
            () = self.cut.cancelled() => return Ok(()),
        };
        if self.cut.is_due() {
            return Ok(());
        }
        self.runtime.fail.hit("read.before_fetch").await?;
        let request =
            StateRequest { table: Arc::clone(&self.remote.table), bucket: self.split.bucket, layout: self.split.layout, bytes_max };
        let scan = self.remote.scan.open_state(request).await?;
        let log_offset = scan.log_offset();
        debug!(bucket = %self.split.bucket, log_offset, "state split begins");
        let (fetcher, decoder) = (Arc::clone(&self), self);
        let open = Open { scan, first: Some(permit) };
        let pages = stream::try_unfold(open, move |open| Arc::clone(&fetcher).page(open, bytes_max));
        // Pages come one after the other, whatever the cores.
        let ahead = decoder.decodes_max().min(2);
        let chunks = pages.map_ok(|page| Arc::clone(&decoder).decode_page(page, log_offset)).try_buffered(ahead);
        let mut chunks = std::pin::pin!(chunks);
        while let Some(chunk) = chunks.try_next().await? {
            if to.send(Ok(chunk)).await.is_err() {
                break; // nobody listens any more: the scan is closed behind it
            }
        }
        Ok(())
    }

    async fn page(self: Arc<Self>, mut open: Open, bytes_max: i32) -> Result<Option<(Page, Open)>> {
        let permit = match open.first.take() {
            Some(permit) => permit,
            None if open.scan.is_done() => return Ok(None),
            None => {
                self.runtime.fail.hit("read.before_fetch").await?;
                self.runtime.budget.acquire(memory(bytes_max, EXPANSION)).await
            }
        };
        let Some(slice) = open.scan.next().await? else { return Ok(None) };
        self.cut.count(slice.len());
        Ok(Some((Page { slice, permit }, open)))
    }

    async fn decode_page(self: Arc<Self>, page: Page, log_offset: i64) -> Result<Chunk> {
        let Page { slice, mut permit } = page;
        let fetched_bytes = slice.len();
        // Row formats: about twice their bytes as Arrow.
        fit(&self.runtime, &mut permit, fetched_bytes.saturating_mul(3));
        let batches = self.runtime.encoders.run(move || slice.decode()).await??;
        fit(&self.runtime, &mut permit, batches.iter().map(|batch| batch.memory.bytes()).sum());
        Ok(Chunk { batches, end_offset: log_offset, fetched_bytes, permit })
    }
}
