//! Buckets that one server leads, fetched together: as many in a request as the budget has permits for.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::Options;
use crate::error::{Error, Result};
use crate::model::TableInfo;
use crate::runtime::{Permit, Runtime};
use crate::source::{FetchBucket, FetchRequest, LogSlice, RemoteLog, TableScan};

/// Bytes asked of all buckets in one request, unless one alone asks for more: the answer has to fit into a frame that we take
/// (256 MiB), also when its first batch is larger than what was asked for.
const REQUEST_BYTES_MAX: i64 = 64 << 20;

/// What a bucket got, and the memory that it and its rows may take.
pub(super) struct Slice {
    pub(super) log: LogSlice,
    pub(super) permit: Permit,
}

/// What a bucket's server answered.
pub(super) enum Answer {
    Slice(Slice),
    /// The records have left the server.
    Remote(RemoteLog),
}

impl Slice {
    /// Gives back what `permit` has more than `log` and its rows may take, if they take `expansion` times its bytes.
    pub(super) fn new(log: LogSlice, mut permit: Permit, expansion: usize) -> Self {
        permit.shrink(log.len().saturating_mul(expansion));
        Self { log, permit }
    }
}

struct Want {
    bucket: FetchBucket,
    expansion: usize,
    reply: oneshot::Sender<Result<Answer>>,
}

/// How requests get to one server.
struct Way {
    scan: Arc<dyn TableScan>,
    table: Arc<TableInfo>,
    options: Options,
    /// Places for requests. Whoever has one waits for the server alone, never for memory.
    slots: Arc<Semaphore>,
}

/// The way to one server. Clones share it; it ends, with its requests in flight, with the last clone.
#[derive(Clone)]
pub(super) struct Lane {
    wants: mpsc::UnboundedSender<Want>,
    way: Arc<Way>,
    _task: Arc<AbortOnDropHandle<()>>,
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("table", &self.way.table.path).finish_non_exhaustive()
    }
}

impl Lane {
    pub(super) fn start(scan: Arc<dyn TableScan>, table: Arc<TableInfo>, options: Options, runtime: Runtime) -> Self {
        let slots = Arc::new(Semaphore::new(options.requests_max.max(1)));
        let way = Arc::new(Way { scan, table, options, slots });
        // Each bucket has one want at most, so the queue is as long as the round has open splits.
        let (wants, queue) = mpsc::unbounded_channel();
        let task = tokio::spawn(serve(Arc::clone(&way), runtime, queue));
        Self { wants, way, _task: Arc::new(AbortOnDropHandle::new(task)) }
    }

    /// Fetches once from one bucket, in a request with whatever else is wanted now.
    /// Its rows may take `expansion` times what it gets.
    pub(super) async fn fetch(&self, bucket: FetchBucket, expansion: usize) -> Result<Answer> {
        let (reply, answer) = oneshot::channel();
        self.wants.send(Want { bucket, expansion, reply }).map_err(|_want| gone())?;
        answer.await.map_err(|source| gone().with_source(source))?
    }

    /// Fetches once from one bucket in a request of its own, with memory that is there already.
    pub(super) async fn fetch_alone(&self, bucket: FetchBucket, expansion: usize, permit: Permit) -> Result<Answer> {
        let (reply, answer) = oneshot::channel();
        let slot = self.way.slots.acquire().await.map_err(|source| gone().with_source(source))?;
        request(&self.way, vec![(Want { bucket, expansion, reply }, permit)]).await;
        drop(slot);
        answer.await.map_err(|source| gone().with_source(source))?
    }
}

fn gone() -> Error {
    Error::internal("the lane of a bucket has ended")
}

async fn serve(way: Arc<Way>, runtime: Runtime, mut queue: mpsc::UnboundedReceiver<Want>) {
    let mut requests = JoinSet::new();
    let mut waiting: Option<Want> = None;
    loop {
        let first = match waiting.take() {
            Some(want) => want,
            None => match queue.recv().await {
                Some(want) => want,
                None => return,
            },
        };
        if first.reply.is_closed() {
            continue;
        }
        // Memory first: who waits for it must not keep a place from those that have theirs.
        let permit = runtime.budget.acquire(memory(first.bucket.bytes_max, first.expansion)).await;
        let Ok(slot) = Arc::clone(&way.slots).acquire_owned().await else { return };
        let mut bytes = i64::from(first.bucket.bytes_max);
        let mut batch = vec![(first, permit)];
        while let Ok(want) = queue.try_recv() {
            bytes += i64::from(want.bucket.bytes_max);
            let fits = bytes <= REQUEST_BYTES_MAX;
            match fits.then(|| runtime.budget.try_acquire(memory(want.bucket.bytes_max, want.expansion))).flatten() {
                _ if want.reply.is_closed() => {}
                Some(permit) => batch.push((want, permit)),
                None => {
                    waiting = Some(want);
                    break;
                }
            }
        }
        while requests.try_join_next().is_some() {}
        let way = Arc::clone(&way);
        requests.spawn(async move {
            request(&way, batch).await;
            drop(slot);
        });
    }
}

/// What so many bytes of a log may take until decoding tells.
pub(super) fn memory(bytes_max: i32, expansion: usize) -> usize {
    usize::try_from(bytes_max).unwrap_or(0).saturating_mul(expansion)
}

async fn request(way: &Way, batch: Vec<(Want, Permit)>) {
    let buckets = batch.iter().map(|(want, _)| want.bucket).collect();
    let wait_ms = i32::try_from(way.options.wait.as_millis()).unwrap_or(i32::MAX);
    match way.scan.fetch(FetchRequest { table: Arc::clone(&way.table), buckets, wait_ms }).await {
        Ok(answers) => {
            let mut answers: BTreeMap<_, _> = answers.into_iter().map(|answer| (answer.bucket, answer)).collect();
            for (want, permit) in batch {
                let bucket = want.bucket.bucket;
                let answer = answers.remove(&bucket).ok_or_else(|| Error::unavailable(format!("no answer for {bucket}")));
                let answer = answer.map(|answer| match answer.remote {
                    Some(remote) => Answer::Remote(remote),
                    None => Answer::Slice(Slice::new(answer.log, permit, want.expansion)),
                });
                // Whoever asked may have given up.
                drop(want.reply.send(answer));
            }
        }
        Err(error) => {
            for (want, _) in batch {
                drop(want.reply.send(Err(error.echo())));
            }
        }
    }
}
