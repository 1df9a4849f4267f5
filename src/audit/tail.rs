//! Ranges of logs, bucket after bucket.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{AuditContext, AuditPartition};
use crate::error::{Error, Result};
use crate::model::{BucketKey, Split, SplitKind, StartOffset, TableBucket};
use crate::read::{Chunk, Cut, Reader, SplitStream};

/// Splits for ranges of offsets (exclusive end) of some buckets; empty ranges are left out. `None` when the log of one does not reach so
/// far, back or forward, or its partition is gone: reading would wait in vain.
///
/// # Errors
/// `Stale` on 74; `Unavailable`.
pub(super) async fn splits(
    context: &AuditContext,
    partitions: &[AuditPartition],
    ranges: impl Iterator<Item = (BucketKey, i64, i64)>,
) -> Result<Option<Vec<Split>>> {
    let ranges: Vec<_> = ranges.filter(|(_, from, to)| from < to).collect();
    let mut splits = Vec::new();
    for known in partitions {
        let id = known.partition.as_ref().map(|partition| partition.id);
        let wanted: Vec<_> = ranges.iter().filter(|(key, _, _)| key.partition == id).collect();
        if wanted.is_empty() {
            continue;
        }
        let gone = |error: Error| if error.code() == Some(36) { Ok(None) } else { Err(error) };
        let starts = context.scan.start_offsets(&context.table, known.partition.as_deref(), known.layout).await.or_else(gone)?;
        let ends = context.scan.end_offsets(&context.table, known.partition.as_deref(), known.layout).await.or_else(gone)?;
        let Some((starts, ends)) = starts.zip(ends) else { return Ok(None) };
        for (key, from, to) in wanted {
            let at = |offsets: &[i64]| usize::try_from(key.bucket.0).ok().and_then(|index| offsets.get(index).copied());
            if at(&starts).is_none_or(|start| start > *from) || at(&ends).is_none_or(|end| end < *to) {
                return Ok(None);
            }
            let bucket = TableBucket { table: context.table.id, partition: id, bucket: key.bucket };
            let (partition, layout) = (known.partition.clone(), known.layout);
            splits.push(Split { bucket, partition, layout, start: StartOffset::At(*from), stop_offset: *to, kind: SplitKind::Log });
        }
    }
    Ok((splits.len() == ranges.len()).then_some(splits))
}

/// Reads splits one after the other.
pub(super) struct Tail {
    reader: Option<Reader>,
    splits: VecDeque<Split>,
    open: Option<(Split, SplitStream)>,
}

impl Tail {
    pub(super) async fn open(context: &AuditContext, splits: Vec<Split>) -> Result<Self> {
        let reader = if splits.is_empty() {
            None
        } else {
            let (scan, table) = (Arc::clone(&context.scan), Arc::clone(&context.table));
            let cut = Cut::new(CancellationToken::new(), None);
            Some(Reader::new(scan, table, &splits, context.read, cut, context.runtime.clone()).await?)
        };
        Ok(Self { reader, splits: splits.into(), open: None })
    }

    /// The next records, and whose they are; `None` at the end of the last split.
    pub(super) async fn next(&mut self) -> Result<Option<(Split, Chunk)>> {
        loop {
            if let Some((split, stream)) = &mut self.open {
                if let Some(chunk) = stream.next().await? {
                    return Ok(Some((split.clone(), chunk)));
                }
                self.open = None;
            }
            let (Some(split), Some(reader)) = (self.splits.pop_front(), &self.reader) else { return Ok(None) };
            let stream = reader.open(&split)?;
            self.open = Some((split, stream));
        }
    }
}
