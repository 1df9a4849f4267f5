//! The twin's remote log: old batches leave the servers as segments (F5.6, D3).

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{Log, MemoryCluster, State};
use crate::error::Result;
use crate::fluss::record::BatchHeader;
use crate::model::{BucketKey, TableBucket};
use crate::runtime::Rng;
use crate::source::{RemoteLog, RemoteSegment};

/// Files of the remote log by URL.
pub(super) type Files = BTreeMap<String, Bytes>;

fn folder(bucket: TableBucket) -> String {
    let partition = bucket.partition.map_or_else(String::new, |partition| format!("/p{partition}"));
    format!("memory:/remote/log/{}{partition}/{}", bucket.table, bucket.bucket)
}

fn file(bucket: TableBucket, segment: &RemoteSegment) -> String {
    format!("{}/{}/{:020}.log", folder(bucket), segment.id, segment.start_offset)
}

impl Log {
    /// Where what the server still has begins.
    pub(super) fn local_start(&self) -> i64 {
        self.segments.last().map_or(self.start, |segment| segment.end_offset.max(self.start))
    }

    /// Moves the oldest `batches` batches into a segment of their own.
    fn offload(&mut self, bucket: TableBucket, batches: usize, files: &mut Files, rng: &Rng) -> Result<()> {
        let moved: Vec<Bytes> = self.batches.drain(..batches.min(self.batches.len())).collect();
        let (Some(first), Some(last)) = (moved.first(), moved.last()) else { return Ok(()) };
        let segment = RemoteSegment {
            id: rng.uuid().to_string(),
            start_offset: BatchHeader::parse(first)?.base_offset,
            end_offset: BatchHeader::parse(last)?.next_offset(),
            bytes: moved.iter().map(|batch| batch.len() as u64).sum(),
        };
        files.insert(file(bucket, &segment), Bytes::from(moved.concat()));
        self.segments.push(segment);
        Ok(())
    }

    /// The log of `bucket` from offset `from` on, which has left the server. Where to begin is looked up in an index: mostly one batch
    /// too early (D3).
    pub(super) fn remote(&self, bucket: TableBucket, from: i64, files: &Files, rng: &Rng) -> Result<RemoteLog> {
        let segments: Vec<RemoteSegment> = self.segments.iter().filter(|segment| segment.end_offset > from).cloned().collect();
        let mut positions = vec![0];
        if let Some(bytes) = segments.first().and_then(|first| files.get(&file(bucket, first))) {
            let mut position = 0;
            let mut rest = &bytes[..];
            while let Ok(header) = BatchHeader::parse(rest)
                && header.next_offset() <= from
            {
                position += header.total_bytes;
                positions.push(position);
                rest = rest.get(header.total_bytes..).unwrap_or_default();
            }
        }
        let early = usize::from(rng.below(6) > 0).min(positions.len() - 1);
        let position = positions.get(positions.len() - 1 - early).copied().unwrap_or_default();
        RemoteLog::new(bucket, &folder(bucket), segments, position as u64)
    }
}

impl State {
    /// Lets batches leave as the cluster was told to.
    pub(super) fn offload(&mut self, bucket: TableBucket, rng: &Rng) -> Result<()> {
        let Some(batches) = self.segment_batches else { return Ok(()) };
        let mut files = std::mem::take(&mut self.files);
        let log = self.log_mut(bucket)?;
        let mut done = Ok(());
        // The newest segment stays where it is, as with `table.log.tiered.local-segments` = 1.
        while done.is_ok() && log.batches.len() > batches {
            done = log.offload(bucket, batches, &mut files, rng);
        }
        self.files = files;
        done
    }

    /// Deletes the segments that end at or before the log's start.
    pub(super) fn expire(&mut self, bucket: TableBucket) -> Result<()> {
        let log = self.log_mut(bucket)?;
        let start = log.start;
        let gone: Vec<RemoteSegment> = log.segments.extract_if(.., |segment| segment.end_offset <= start).collect();
        for segment in gone {
            self.files.remove(&file(bucket, &segment));
        }
        Ok(())
    }
}

impl MemoryCluster {
    /// From now on each bucket's batches leave the servers for remote segments of `batches` batches each, all but the newest.
    ///
    /// # Errors
    /// `Data` when a batch that is there is none.
    pub fn segments_leave(&self, batches: usize) -> Result<()> {
        let mut state = self.state();
        state.segment_batches = Some(batches.max(1));
        let buckets: Vec<TableBucket> = state
            .tables
            .iter()
            .flat_map(|(table, entry)| {
                entry.logs.keys().map(|BucketKey { partition, bucket }| TableBucket {
                    table: *table,
                    partition: *partition,
                    bucket: *bucket,
                })
            })
            .collect();
        buckets.into_iter().try_for_each(|bucket| state.offload(bucket, &self.runtime.rng))
    }

    /// Changes or loses files of the remote log: `act` gets each URL with its bytes and says what is there from now on.
    pub fn alter_remote(&self, mut act: impl FnMut(&str, Bytes) -> Option<Bytes>) {
        let mut state = self.state();
        let files = std::mem::take(&mut state.files);
        state.files = files.into_iter().filter_map(|(url, bytes)| act(&url, bytes).map(|bytes| (url, bytes))).collect();
    }

    /// Puts a file of the remote log (back) in its place.
    pub fn restore_remote(&self, url: &str, bytes: Bytes) {
        self.state().files.insert(url.to_owned(), bytes);
    }

    pub(super) fn remote_bytes(&self, url: &str, start: u64, end: u64) -> Result<Option<Bytes>> {
        let state = self.state();
        let Some(bytes) = state.files.get(url) else { return Ok(None) };
        let place = |at: u64| usize::try_from(at).map_or(bytes.len(), |at| at.min(bytes.len()));
        Ok(Some(bytes.slice(place(start)..place(end.max(start)))))
    }
}
