//! Appends rows to a log table, each once.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use futures::future::FutureExt;

use super::Admin;
use super::rows::{Spec, by_key, by_partition, grouped, pieces, row_count};
use crate::error::{Error, Kind, Result};
use crate::fluss::cluster::{Answers, Cluster};
use crate::fluss::code::Code;
use crate::fluss::proto::{InitWriterRequest, PbProduceLogReqForBucket, ProduceLogRequest};
use crate::fluss::record::{Compression, EncodeOptions, LogFormat, arrow_schema, encode_arrow_batch};
use crate::model::{BucketId, BucketLayout, Partition, PartitionId, TableBucket, TableInfo, TablePath};

/// Bounds of a [`Writer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterOptions {
    /// Size of one record batch before compression, about; a larger row makes a larger batch.
    pub batch_bytes: usize,
    /// Bytes of batches that are on their way at once.
    pub in_flight_bytes: usize,
    /// How long a server may take to make a batch durable.
    pub timeout_ms: i32,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self { batch_bytes: 2 << 20, in_flight_bytes: 8 << 20, timeout_ms: 25_000 }
    }
}

/// An idempotent writer for one log table.
///
/// Each batch carries the writer's id and the bucket's next sequence number, and is repeated with the same until it is
/// acknowledged, so that a lost answer doubles nothing (S4.3). Partitions that rows name are made as needed. Rows of a table
/// with bucket key go to the bucket that the key hashes to, others to one bucket per batch in turn.
#[derive(Debug)]
pub struct Writer {
    cluster: Cluster,
    table: Arc<TableInfo>,
    arrow: SchemaRef,
    compression: Compression,
    options: WriterOptions,
    writer_id: i64,
    /// Next sequence number per bucket.
    sequences: BTreeMap<TableBucket, i32>,
    /// Partitions met so far, with the layout that their rows are routed by.
    partitions: BTreeMap<Spec, (Option<PartitionId>, BucketLayout)>,
    /// Next bucket of keyless rows, per partition.
    turns: BTreeMap<Spec, i32>,
    /// An append ended without word on each of its batches: their sequence numbers may or may not be used up.
    broken: bool,
}

/// Batches of one append, per bucket in order.
type Queues = BTreeMap<TableBucket, (BucketLayout, VecDeque<RecordBatch>)>;

impl Writer {
    /// Opens a writer for a log table.
    ///
    /// # Errors
    /// `Invalid` with code 7 when there is no such table; `Unsupported` for primary-key tables and row log formats;
    /// `Unavailable`.
    pub async fn open(cluster: &Cluster, path: &TablePath, options: WriterOptions) -> Result<Self> {
        let table = cluster.table_info(path).await?;
        if table.has_primary_key() {
            return Err(Error::unsupported(format!("writing to `{path}`, which has a primary key")));
        }
        if LogFormat::of(&table)? != LogFormat::Arrow {
            return Err(Error::unsupported(format!("writing to `{path}`, whose log format is not ARROW")));
        }
        let writer = cluster.tablet(&InitWriterRequest { table_path: vec![path.into()] }).await?;
        Ok(Self {
            cluster: cluster.clone(),
            arrow: arrow_schema(&table.schema)?,
            compression: compression_of(&table)?,
            table: Arc::new(table),
            options,
            writer_id: writer.writer_id,
            sequences: BTreeMap::new(),
            partitions: BTreeMap::new(),
            turns: BTreeMap::new(),
            broken: false,
        })
    }

    /// The table as it was when the writer was opened.
    #[must_use]
    pub fn table(&self) -> &TableInfo {
        &self.table
    }

    /// Arrow schema that rows must have (F5.3).
    #[must_use]
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.arrow)
    }

    /// Appends rows, with the columns of [`Writer::schema`], and returns when all of them are durable.
    ///
    /// # Errors
    /// `Invalid` when the rows do not fit the table, before anything is sent; `Stale` (74) when a bucket count is out of date;
    /// `Unavailable` when a leader stays out of reach. After an error from sending it is unknown which of the rows are there, and
    /// the writer refuses further rows.
    pub async fn append(&mut self, rows: &RecordBatch) -> Result<()> {
        if self.broken {
            let path = &self.table.path;
            return Err(Error::invalid(format!("an append to `{path}` failed before")).with_hint("open a new writer"));
        }
        let rows = RecordBatch::try_new(self.schema(), rows.columns().to_vec())
            .map_err(|source| Error::invalid(format!("rows do not fit table `{}`", self.table.path)).with_source(source))?;
        let mut queues = self.route(&rows).await?;
        self.broken = true;
        while !queues.is_empty() {
            self.send_wave(&mut queues).await?;
        }
        self.broken = false;
        Ok(())
    }

    async fn route(&mut self, rows: &RecordBatch) -> Result<Queues> {
        let mut queues = Queues::new();
        if row_count(rows)? == 0 {
            return Ok(queues);
        }
        // Bucket of each row by key, per count that a partition has.
        let mut hashed: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for (spec, numbers) in by_partition(&self.table, rows)? {
            let (partition, layout) = self.partition(&spec).await?;
            let place = |bucket| TableBucket { table: self.table.id, partition, bucket: BucketId(bucket) };
            if self.table.bucket_keys.is_empty() {
                let turn = self.turns.entry(spec).or_insert(0);
                for piece in pieces(rows, numbers, self.options.batch_bytes)? {
                    queues.entry(place(*turn)).or_insert_with(|| (layout, VecDeque::new())).1.push_back(piece);
                    *turn = (*turn + 1) % layout.count;
                }
            } else {
                let buckets = match hashed.entry(layout.count) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(free) => free.insert(by_key(&self.table, rows, layout.count)?),
                };
                for (bucket, numbers) in grouped(numbers, buckets) {
                    let batches = pieces(rows, numbers, self.options.batch_bytes)?.into();
                    queues.insert(place(bucket), (layout, batches));
                }
            }
        }
        Ok(queues)
    }

    /// Id and layout of a partition, which is made if it is not there; of the table, when it has no partitions.
    async fn partition(&mut self, spec: &Spec) -> Result<(Option<PartitionId>, BucketLayout)> {
        if let Some(known) = self.partitions.get(spec) {
            return Ok(*known);
        }
        let path = &self.table.path;
        let found = if spec.is_empty() {
            (None, BucketLayout::of(&self.table, None)?)
        } else {
            let mut partition = self.find_partition(spec).await?;
            if partition.is_none() {
                Admin::new(self.cluster.clone()).create_partition(path, spec, true).await?;
                partition = self.find_partition(spec).await?;
            }
            let partition =
                partition.ok_or_else(|| Code::PARTITION_NOT_EXISTS.error(format!("a new partition of `{path}` is gone")))?;
            // The epoch may have grown since the writer was opened: the rule needs the table as it is now.
            let layout = match BucketLayout::of(&self.table, Some(&partition)) {
                Ok(layout) if partition.bucket_count.is_some() => layout,
                _ => BucketLayout::of(&self.cluster.table_info(path).await?, Some(&partition))?,
            };
            (Some(partition.id), layout)
        };
        self.partitions.insert(spec.clone(), found);
        Ok(found)
    }

    async fn find_partition(&self, spec: &Spec) -> Result<Option<Partition>> {
        let partitions = self.cluster.partitions(&self.table.path).await?;
        // Servers list the columns of a spec in their own order.
        let same =
            |partition: &Partition| partition.spec.len() == spec.len() && spec.iter().all(|pair| partition.spec.contains(pair));
        Ok(partitions.into_iter().find(same))
    }

    /// Sends the first batch of as many buckets as the bound allows and waits for all acknowledgements.
    async fn send_wave(&mut self, queues: &mut Queues) -> Result<()> {
        let mut wave: BTreeMap<TableBucket, (BucketLayout, Bytes)> = BTreeMap::new();
        let mut bytes = 0;
        for (bucket, (layout, batches)) in queues.iter_mut() {
            if bytes >= self.options.in_flight_bytes {
                break;
            }
            let Some(rows) = batches.pop_front() else { continue };
            let options = EncodeOptions {
                compression: self.compression,
                writer_id: self.writer_id,
                sequence: self.sequences.get(bucket).copied().unwrap_or(0),
                ..EncodeOptions::new(self.table.schema.id)
            };
            let batch = self.cluster.runtime().encoders.run(move || encode_arrow_batch(options, &rows, None)).await??;
            bytes += batch.len();
            wave.insert(*bucket, (*layout, batch));
        }
        queues.retain(|_, (_, batches)| !batches.is_empty());
        let (table, timeout_ms, wave) = (self.table.id, self.options.timeout_ms, &wave);
        self.cluster
            .routed("append", &self.table.path, wave.keys().copied(), |server, buckets| {
                let batches = buckets.iter().filter_map(|bucket| wave.get(bucket).map(|(layout, batch)| (bucket, layout, batch)));
                let request = ProduceLogRequest {
                    acks: -1,
                    table_id: table.0,
                    timeout_ms,
                    buckets_req: batches
                        .map(|(bucket, layout, batch)| PbProduceLogReqForBucket {
                            partition_id: bucket.partition.map(|partition| partition.0),
                            bucket_id: bucket.bucket.0,
                            records: batch.clone(),
                            original_partition_name: None,
                            routing_bucket_count: Some(layout.count),
                        })
                        .collect(),
                };
                let cluster = self.cluster.clone();
                async move { produce(&cluster, server, &request).await }.boxed()
            })
            .await?;
        for bucket in wave.keys() {
            let sequence = self.sequences.entry(*bucket).or_insert(0);
            // After the largest number comes 0 (S4.3).
            *sequence = sequence.checked_add(1).unwrap_or(0);
        }
        Ok(())
    }
}

async fn produce(cluster: &Cluster, server: i32, request: &ProduceLogRequest) -> Result<Answers<()>> {
    let answer = cluster.server(server, request).await?;
    let entries = answer.buckets_resp.into_iter().map(|entry| {
        let bucket = TableBucket {
            table: crate::model::TableId(request.table_id),
            partition: entry.partition_id.map(PartitionId),
            bucket: BucketId(entry.bucket_id),
        };
        let outcome = match Code::refusal(entry.error_code, entry.error_message.as_deref()) {
            // Already there: an earlier answer was lost.
            Some(error) if error.code() == Some(Code::DUPLICATE_SEQUENCE.0) => Ok(()),
            Some(error) => Err(error),
            None => Ok(()),
        };
        (bucket, outcome)
    });
    Ok(entries.collect())
}

fn compression_of(table: &TableInfo) -> Result<Compression> {
    let name = table.property("table.log.arrow.compression.type").unwrap_or("ZSTD");
    let wrong = |what: &str| Error::new(Kind::Unsupported, format!("`{what}` as compression of table `{}`", table.path));
    match name.to_ascii_uppercase().as_str() {
        "NONE" => Ok(Compression::None),
        "LZ4_FRAME" => Ok(Compression::Lz4),
        "ZSTD" => {
            let level = table.property("table.log.arrow.compression.zstd.level").unwrap_or("3");
            level.parse().map(Compression::Zstd).map_err(|source| wrong(level).with_source(source))
        }
        other => Err(wrong(other)),
    }
}

#[cfg(test)]
mod tests;
