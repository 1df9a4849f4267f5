//! Writes rows to a table, each once.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{RecordBatch, UInt32Array};
use arrow_schema::SchemaRef;
use futures::future::try_join_all;

use super::assigner::{Assigners, name_of};
use super::deliver::{Delivery, Parcel, deliver};
use super::form::Form;
use super::rows::{RowName, Spec, by_key, by_partition, grouped, pieces, row_bytes, row_count};
use super::trace::{Mark, find, log_ends};
use crate::error::{Error, Result};
use crate::fluss::cluster::Cluster;
use crate::fluss::code::Code;
use crate::fluss::proto::InitWriterRequest;
use crate::model::{BucketLayout, PartitionId, TableBucket, TableInfo, TablePath};
use crate::runtime::{Backoff, BackoffOptions};

/// Pauses between waves that were only refused, and how many of them in a row.
const SETBACKS: BackoffOptions = BackoffOptions { first: Duration::from_millis(20), max: Duration::from_secs(1), attempts_max: 8 };

/// Bounds of a [`Writer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterOptions {
    /// Size of one record batch before compression, about; a larger row makes a larger batch.
    pub batch_bytes: usize,
    /// Bytes of batches, before compression, that are on their way at once; a batch is sent even if it alone has more.
    pub in_flight_bytes: usize,
    /// How long a server may take to make a batch durable.
    pub timeout_ms: i32,
    /// Whether partitions that rows name are made when they are not there.
    pub create_partitions: bool,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self { batch_bytes: 2 << 20, in_flight_bytes: 32 << 20, timeout_ms: 25_000, create_partitions: true }
    }
}

/// What a [`Writer`] has brought about so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriterFigures {
    /// Rows acknowledged as durable, deletes among them.
    pub rows: u64,
    /// Deletes among them.
    pub deletes: u64,
    /// Their batches.
    pub batches: u64,
    /// Bytes of these batches, as sent.
    pub bytes: u64,
    /// Partitions that were made.
    pub partitions_made: u64,
}

/// An idempotent writer for one table: appends rows to a log table, upserts and deletes rows of one with a primary key.
///
/// Each batch carries the writer's id and the bucket's next sequence number (S4.3). When its answer is lost, the log is looked
/// into before it is sent again with the same numbers, so that nothing is doubled even if a server has forgotten the writer.
/// With a primary key that holds too: each batch of changes becomes one batch of the changelog, with the same numbers (S6.3).
/// Partitions that rows name are made as needed. Rows of a table
/// with bucket key go to the bucket that the key hashes to, others to one bucket per batch in turn.
///
/// One batch per bucket is on its way at a time: batches of a bucket can't overtake each other, and an answer always speaks of
/// the newest batch. Rows that a server turns away because their bucket count is out of date (74) are routed again by the
/// count of now, in their order; a writer id that a server does not know any more (31, 33) is replaced, as nothing else is open.
#[derive(Debug)]
pub struct Writer {
    cluster: Cluster,
    table: Arc<TableInfo>,
    arrow: SchemaRef,
    form: Arc<Form>,
    options: WriterOptions,
    writer_id: i64,
    /// Next sequence number per bucket.
    sequences: BTreeMap<TableBucket, i32>,
    /// An offset per bucket that is not behind any batch which is on its way.
    ends: BTreeMap<TableBucket, i64>,
    assigners: Assigners,
    figures: WriterFigures,
    /// First row of the last append that is not acknowledged.
    missing: Option<u32>,
    /// Rows of the last append that may be stored or not.
    unsure: u64,
    /// An append ended without word on each of its batches: their sequence numbers may or may not be used up.
    broken: bool,
}

/// Batches for one bucket, as row numbers, in order; each stays until it is acknowledged.
#[derive(Debug)]
struct Queue {
    spec: Spec,
    layout: BucketLayout,
    batches: VecDeque<UInt32Array>,
}

impl Queue {
    fn first_row(&self) -> Option<u32> {
        self.batches.front().and_then(|numbers| numbers.values().first().copied())
    }
}

/// One append: its rows, and those that are not acknowledged.
struct Append<'a> {
    rows: RecordBatch,
    /// Which rows are deletes; empty = none.
    deletes: Arc<[bool]>,
    at: RowName<'a>,
    row_bytes: usize,
    /// Bucket of each row by key, per count that a partition has.
    hashed: BTreeMap<i32, Vec<i32>>,
    queues: BTreeMap<TableBucket, Queue>,
    /// Buckets whose first batch was sent without an answer that settles it.
    doubted: BTreeSet<TableBucket>,
    /// Those of them whose log has not been looked into since.
    open: BTreeSet<TableBucket>,
}

impl Append<'_> {
    fn first_missing(&self) -> Option<u32> {
        self.queues.values().filter_map(Queue::first_row).min()
    }

    /// Rows of which it is not known whether they are stored.
    fn unsure(&self) -> u64 {
        let batches = self.open.iter().filter_map(|bucket| self.queues.get(bucket)?.batches.front());
        batches.map(|numbers| numbers.len() as u64).sum()
    }

    /// Where the first of the rows stands that `bucket` waits for.
    fn place(&self, bucket: &TableBucket) -> String {
        self.queues.get(bucket).and_then(Queue::first_row).map_or_else(|| bucket.to_string(), self.at)
    }
}

impl Writer {
    /// Opens a writer for a table.
    ///
    /// # Errors
    /// `Invalid` with code 7 when there is no such table; `Unsupported` for row log formats and merge engines;
    /// `Unavailable`.
    pub async fn open(cluster: &Cluster, path: &TablePath, options: WriterOptions) -> Result<Self> {
        let table = cluster.table_info(path).await?;
        let form = Form::of(&table)?;
        Ok(Self {
            cluster: cluster.clone(),
            arrow: form.schema(&table)?,
            form: Arc::new(form),
            writer_id: new_writer_id(cluster, path).await?,
            table: Arc::new(table),
            options,
            sequences: BTreeMap::new(),
            ends: BTreeMap::new(),
            assigners: Assigners::new(cluster, options.create_partitions),
            figures: WriterFigures::default(),
            missing: None,
            unsure: 0,
            broken: false,
        })
    }

    /// The table as it was when the writer was opened.
    #[must_use]
    pub fn table(&self) -> &TableInfo {
        &self.table
    }

    /// Arrow schema that rows must have (F5.3). On a table with a primary key its other columns may be NULL here, for deletes.
    #[must_use]
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.arrow)
    }

    /// What has been acknowledged and made so far, by appends that failed too.
    #[must_use]
    pub fn figures(&self) -> WriterFigures {
        WriterFigures { partitions_made: self.assigners.made, ..self.figures }
    }

    /// After a failed append: the number of its first row that is not acknowledged. Rows before it are durable; of those
    /// behind it some may be too.
    #[must_use]
    pub fn first_missing(&self) -> Option<u32> {
        self.missing
    }

    /// Rows from there on of which it is not known whether they are in the table: their answer was lost, and their log could not be
    /// looked into.
    #[must_use]
    pub fn unsure_rows(&self) -> u64 {
        self.unsure
    }

    /// Appends rows, with the columns of [`Writer::schema`], and returns when all of them are durable; upserts them on a table with a
    /// primary key.
    ///
    /// # Errors
    /// `Invalid` when the rows do not fit the table or their partitions can't be made, before anything is sent. From sending:
    /// `Invalid` (36) when a partition is dropped meanwhile, `Stale` (74) when servers and metadata go on disagreeing about a
    /// bucket count, `Unavailable` when a leader stays out of reach, `Data` when a server lost rows that it had acknowledged.
    /// [`Writer::first_missing`] then tells from where rows are missing, and the writer refuses further rows.
    pub async fn append(&mut self, rows: &RecordBatch) -> Result<()> {
        self.change(rows, &[]).await
    }

    /// As [`Writer::append`]; rows for which `deletes` is true delete what has their key. The changes of one key happen in order.
    ///
    /// # Errors
    /// As [`Writer::append`]; `Invalid` for deletes of a log table.
    pub async fn change(&mut self, rows: &RecordBatch, deletes: &[bool]) -> Result<()> {
        self.change_named(rows, deletes, &|row| format!("row `{row}`")).await
    }

    /// As [`Writer::change`], with errors that name rows by `at`, which is given row numbers.
    ///
    /// # Errors
    /// As [`Writer::change`].
    pub async fn change_named(
        &mut self,
        rows: &RecordBatch,
        deletes: &[bool],
        at: &(dyn Fn(u32) -> String + Send + Sync),
    ) -> Result<()> {
        let path = &self.table.path;
        if self.broken {
            return Err(Error::invalid(format!("an append to `{path}` failed before")).with_hint("open a new writer"));
        }
        let rows = RecordBatch::try_new(self.schema(), rows.columns().to_vec())
            .map_err(|source| Error::invalid(format!("rows do not fit table `{path}`")).with_source(source))?;
        self.missing = Some(0);
        self.form.accept(&self.table, &rows, deletes, at)?;
        if row_count(&rows)? > 0 {
            let mut append = Append {
                row_bytes: row_bytes(&rows),
                rows,
                deletes: deletes.into(),
                at,
                hashed: BTreeMap::new(),
                queues: BTreeMap::new(),
                doubted: BTreeSet::new(),
                open: BTreeSet::new(),
            };
            self.route(&mut append).await?;
            self.broken = true;
            let sent = self.send(&mut append).await;
            (self.missing, self.unsure) = (append.first_missing(), append.unsure());
            sent?;
        }
        self.missing = None;
        self.broken = false;
        Ok(())
    }

    /// Queues all rows.
    async fn route(&mut self, append: &mut Append<'_>) -> Result<()> {
        let partitions = by_partition(&self.table, &append.rows, append.at)?;
        self.assigners.meet(&self.table, partitions.keys()).await.map_err(|(spec, error)| {
            let first = spec.and_then(|spec| partitions.get(&spec)).and_then(|rows| rows.first());
            match first {
                Some(row) => error.context((append.at)(*row)),
                None => error,
            }
        })?;
        for (spec, numbers) in partitions {
            self.queue(append, spec, numbers)?;
        }
        Ok(())
    }

    /// Queues rows of one partition, in the order of their numbers.
    fn queue(&mut self, append: &mut Append<'_>, spec: Spec, numbers: Vec<u32>) -> Result<()> {
        let rows_max = self.options.batch_bytes / append.row_bytes;
        let assigner = self.assigners.get_mut(&spec)?;
        let layout = assigner.layout;
        let new_queue = || Queue { spec: spec.clone(), layout, batches: VecDeque::new() };
        let bucket_columns = self.form.bucket_columns(&self.table);
        if bucket_columns.is_empty() {
            for batch in pieces(numbers, rows_max) {
                let bucket = assigner.next_bucket();
                let place = assigner.place(self.table.id, bucket);
                if assigner.is_new {
                    self.ends.entry(place).or_insert(0);
                }
                append.queues.entry(place).or_insert_with(new_queue).batches.push_back(batch);
            }
            return Ok(());
        }
        let buckets = match append.hashed.entry(layout.count) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => free.insert(by_key(&self.table, bucket_columns, &append.rows, layout.count, append.at)?),
        };
        for (bucket, numbers) in grouped(numbers, buckets) {
            let place = assigner.place(self.table.id, bucket);
            if assigner.is_new {
                self.ends.entry(place).or_insert(0);
            }
            append.queues.entry(place).or_insert_with(new_queue).batches.extend(pieces(numbers, rows_max));
        }
        Ok(())
    }

    /// Sends until nothing is queued.
    async fn send(&mut self, append: &mut Append<'_>) -> Result<()> {
        let cluster = self.cluster.clone();
        let backoff = || Backoff::new(SETBACKS, &cluster.runtime().rng);
        let again = || cluster.retry("append");
        let (mut setbacks, mut retry) = (backoff(), again());
        while !append.queues.is_empty() {
            let parcels = self.pack(append).await?;
            let Delivery { acknowledged, refused, unsure, doubt, failure } =
                deliver(&self.cluster, &self.table, self.options.timeout_ms, &parcels).await;
            for (bucket, end) in &acknowledged {
                self.settle(append, bucket, parcels.get(bucket), *end);
            }
            if !acknowledged.is_empty() {
                (setbacks, retry) = (backoff(), again());
            }
            append.open.extend(&unsure);
            let end = match (failure, doubt) {
                (None, Some(error)) => retry.after(error).await.err(),
                (failure, _) => failure,
            };
            // At an end, too: from where a load goes on depends on what is stored.
            let looked = self.look(append, &parcels, unsure).await;
            if let Some(error) = end {
                return if append.queues.is_empty() { Ok(()) } else { Err(self.explained(append, &parcels, error).await) };
            }
            looked?;
            if !refused.is_empty() {
                // Before an id is given up, once more: right after a restart a log may have shown too little.
                let doubted = refused.keys().copied().filter(|bucket| append.doubted.contains(bucket)).collect();
                self.look(append, &parcels, doubted).await?;
                self.cure(append, refused, &mut setbacks).await?;
            }
        }
        Ok(())
    }

    /// Looks which of the batches are in their logs, and settles these.
    async fn look(
        &mut self,
        append: &mut Append<'_>,
        parcels: &BTreeMap<TableBucket, Parcel>,
        buckets: BTreeSet<TableBucket>,
    ) -> Result<()> {
        if !buckets.is_empty() {
            // Counts may have changed meanwhile, and what is asked by an old one is turned away.
            self.assigners.refresh(&self.table).await?;
        }
        for bucket in &buckets {
            append.doubted.insert(*bucket);
            let Some(spec) = append.queues.get(bucket).map(|queue| queue.spec.clone()) else { continue };
            let layout = match self.assigners.get_mut(&spec) {
                Ok(assigner) if assigner.partition == bucket.partition => assigner.layout,
                _ => return Err(self.gone(append, bucket, &spec)),
            };
            let mark = Mark { writer: self.writer_id, sequence: self.sequences.get(bucket).copied().unwrap_or(0) };
            let from = self.ends.get(bucket).copied().unwrap_or(0);
            let found = find(&self.cluster, &self.table, (*bucket, layout), from, mark).await;
            let found = found.map_err(|error| error.context(append.place(bucket)))?;
            tracing::debug!(table = %self.table.path, %bucket, stored = found.is_some(), "an answer was lost: looked into the log");
            if let Some(end) = found {
                self.settle(append, bucket, parcels.get(bucket), Some(end));
            }
            append.open.remove(bucket);
        }
        Ok(())
    }

    fn gone(&self, append: &Append<'_>, bucket: &TableBucket, spec: &Spec) -> Error {
        Code::PARTITION_NOT_EXISTS.error(dropped(&self.table.path, spec)).context(append.place(bucket))
    }

    /// Encodes the first batch of as many buckets as the bound allows.
    async fn pack(&mut self, append: &Append<'_>) -> Result<BTreeMap<TableBucket, Parcel>> {
        let unmet = append.queues.iter().filter(|(bucket, _)| !self.ends.contains_key(bucket));
        let unmet: BTreeMap<TableBucket, BucketLayout> = unmet.map(|(bucket, queue)| (*bucket, queue.layout)).collect();
        if !unmet.is_empty() {
            let found = log_ends(&self.cluster, &self.table, &unmet).await;
            self.ends.extend(found.map_err(|error| error.context(format!("append to table `{}`", self.table.path)))?);
        }
        let mut bytes: usize = 0;
        let mut encodings = Vec::new();
        for (bucket, queue) in &append.queues {
            let Some(numbers) = queue.batches.front() else { continue };
            if bytes > 0 && bytes >= self.options.in_flight_bytes {
                break;
            }
            bytes = bytes.saturating_add(numbers.len().saturating_mul(append.row_bytes));
            let mark = (self.writer_id, self.sequences.get(bucket).copied().unwrap_or(0));
            let (form, table, deletes) = (Arc::clone(&self.form), Arc::clone(&self.table), Arc::clone(&append.deletes));
            let (bucket, layout, rows, numbers) = (*bucket, queue.layout, append.rows.clone(), numbers.clone());
            let (count, place) = (numbers.len(), append.place(&bucket));
            let encoding = self.cluster.runtime().encoders.run(move || form.encode(&table, &rows, &deletes, &numbers, mark));
            encodings.push(async move {
                let batch = encoding.await?.map_err(|error| error.context(place))?;
                Ok::<_, Error>((bucket, Parcel { layout, batch, rows: count }))
            });
        }
        Ok(try_join_all(encodings).await?.into_iter().collect())
    }

    /// Takes an acknowledged batch out of its queue.
    fn settle(&mut self, append: &mut Append<'_>, bucket: &TableBucket, parcel: Option<&Parcel>, end: Option<i64>) {
        let (Some(parcel), Entry::Occupied(mut queue)) = (parcel, append.queues.entry(*bucket)) else { return };
        let numbers = queue.get_mut().batches.pop_front();
        if queue.get().batches.is_empty() {
            queue.remove();
        }
        if let Some(end) = end {
            self.ends.insert(*bucket, end);
        }
        append.doubted.remove(bucket);
        let numbers = numbers.as_ref().map(|numbers| &numbers.values()[..]).unwrap_or_default();
        let deletes = numbers.iter().filter(|row| append.deletes.get(**row as usize) == Some(&true)).count();
        self.figures.rows += numbers.len() as u64;
        self.figures.deletes += deletes as u64;
        self.figures.batches += 1;
        self.figures.bytes += parcel.batch.len() as u64;
        let sequence = self.sequences.entry(*bucket).or_insert(0);
        // After the largest number comes 0 (S4.3).
        *sequence = sequence.checked_add(1).unwrap_or(0);
    }

    /// Does what refused batches need before they are sent again. Nothing else is on its way meanwhile.
    async fn cure(&mut self, append: &mut Append<'_>, refused: BTreeMap<TableBucket, Error>, setbacks: &mut Backoff) -> Result<()> {
        let (mut misrouted, mut unknown) = (BTreeSet::new(), false);
        let mut first = None;
        for (bucket, error) in refused {
            if !append.queues.contains_key(&bucket) {
                continue;
            }
            let error = error.context(format!("append to table `{}`, {bucket}, {}", self.table.path, append.place(&bucket)));
            if error.code() == Some(Code::INVALID_BUCKET_ROUTING.0) {
                misrouted.insert(bucket.partition);
            } else {
                unknown = true;
            }
            first.get_or_insert(error);
        }
        let Some(error) = first else { return Ok(()) };
        let Some(pause) = setbacks.next_pause() else { return Err(error) };
        if unknown {
            // No batch is open, so a new id with sequences from 0 can double nothing.
            tracing::warn!(table = %self.table.path, error = %error.chain(), "new writer id");
            self.writer_id = new_writer_id(&self.cluster, &self.table.path).await?;
            self.sequences.clear();
        }
        if !misrouted.is_empty() {
            let changed = self.assigners.refresh(&self.table).await?;
            if !changed {
                // A new leader may not have learnt its count yet (F4.6).
                self.cluster.runtime().clock.sleep(pause).await;
            }
            for partition in misrouted {
                self.route_again(append, partition)?;
            }
        }
        Ok(())
    }

    /// Queues what a partition waits for by its layout of now. Each key's rows were in one queue, in order; sorted by number
    /// they still are.
    fn route_again(&mut self, append: &mut Append<'_>, partition: Option<PartitionId>) -> Result<()> {
        let waiting = append.queues.iter().find(|(bucket, _)| bucket.partition == partition);
        let Some((bucket, spec)) = waiting.map(|(bucket, queue)| (*bucket, queue.spec.clone())) else { return Ok(()) };
        if self.assigners.get_mut(&spec).is_err() {
            return Err(self.gone(append, &bucket, &spec));
        }
        let mut numbers = Vec::new();
        for (_, queue) in append.queues.extract_if(.., |bucket, _| bucket.partition == partition) {
            numbers.extend(queue.batches.iter().flat_map(|batch| batch.values().iter().copied()));
        }
        numbers.sort_unstable();
        self.queue(append, spec, numbers)
    }

    /// Says which rows a failure is about, and which partition if one is gone.
    async fn explained(&self, append: &Append<'_>, parcels: &BTreeMap<TableBucket, Parcel>, error: Error) -> Error {
        let mut waiting: Vec<&Queue> = parcels.keys().filter_map(|bucket| append.queues.get(bucket)).collect();
        waiting.sort_by_key(|queue| queue.first_row());
        if error.code() == Some(Code::PARTITION_NOT_EXISTS.0)
            && let Ok(left) = self.cluster.partitions(&self.table.path).await
        {
            let is_left = |spec: &Spec| left.iter().any(|partition| spec.iter().all(|pair| partition.spec.contains(pair)));
            if let Some(queue) = waiting.iter().find(|queue| !is_left(&queue.spec)) {
                let place = queue.first_row().map(append.at).unwrap_or_default();
                return error.context(format!("{place}: {}", dropped(&self.table.path, &queue.spec)));
            }
        }
        match waiting.first().and_then(|queue| queue.first_row()) {
            Some(row) => error.context((append.at)(row)),
            None => error,
        }
    }
}

fn dropped(path: &TablePath, spec: &Spec) -> String {
    format!("partition `{}` of table `{path}` was dropped while rows were written to it", name_of(spec))
}

async fn new_writer_id(cluster: &Cluster, path: &TablePath) -> Result<i64> {
    Ok(cluster.tablet(&InitWriterRequest { table_path: vec![path.into()] }).await?.writer_id)
}

#[cfg(test)]
mod tests;
