//! Who brought how much of what a backfill is about. Pure.

use std::collections::BTreeMap;

use crate::model::{BucketKey, LakeOffsets, PartitionId};

/// How far the lake is on the way to the stop offsets, in records.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    buckets: BTreeMap<BucketKey, Way>,
    /// Whether the lake has been seen: before that nothing is known but the stops.
    seen: bool,
    counts: Counts,
}

#[derive(Debug, Clone, Copy)]
struct Way {
    /// Exclusive end in the lake; the log's start where nothing of it was tiered.
    at: i64,
    stop: i64,
}

/// Records, of the buckets' ways from where the backfill began to the stop offsets: `total` is the sum of the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) total: u64,
    pub(super) ours: u64,
    pub(super) others: u64,
    /// Left the log before they came into the lake.
    pub(super) gone: u64,
    pub(super) left: u64,
}

impl Tally {
    /// From each bucket's log start to its stop offset.
    pub(super) fn new(ways: impl IntoIterator<Item = (BucketKey, i64, i64)>) -> Self {
        let buckets = ways.into_iter().map(|(bucket, start, stop)| (bucket, Way { at: start, stop })).collect();
        Self { buckets, seen: false, counts: Counts::default() }
    }

    pub(super) fn stops(&self) -> LakeOffsets {
        LakeOffsets(self.buckets.iter().map(|(bucket, way)| (*bucket, way.stop)).collect())
    }

    /// Partitions of which something is not there yet.
    pub(super) fn partitions(&self) -> impl Iterator<Item = PartitionId> {
        self.buckets.iter().filter(|(_, way)| way.at < way.stop).filter_map(|(bucket, _)| bucket.partition)
    }

    /// `None` until the lake was seen.
    pub(super) fn counts(&self) -> Option<Counts> {
        self.seen.then_some(self.counts)
    }

    /// The lake as a round found it: what is new there, others have brought.
    pub(super) fn saw(&mut self, lake: &LakeOffsets) {
        let advanced = self.advance(lake);
        if !self.seen {
            self.seen = true;
            let left = self.left();
            self.counts = Counts { total: left, left, ..Counts::default() };
            return;
        }
        self.counts.others += advanced;
        self.counts.left = self.counts.left.saturating_sub(advanced);
    }

    /// What a round of ours has brought into the lake.
    pub(super) fn wrote(&mut self, ends: &LakeOffsets) {
        let advanced = self.advance(ends);
        self.counts.ours += advanced;
        self.counts.left = self.counts.left.saturating_sub(advanced);
    }

    /// A partition is no more.
    pub(super) fn dropped(&mut self, partition: PartitionId) {
        self.buckets.retain(|bucket, _| bucket.partition != Some(partition));
        self.settle_gone();
    }

    /// There is nothing to read any more: what is left has expired.
    pub(super) fn ended(&mut self) {
        self.buckets.clear();
        self.settle_gone();
    }

    fn settle_gone(&mut self) {
        if self.seen {
            let left = self.left();
            self.counts.gone += self.counts.left.saturating_sub(left);
            self.counts.left = left;
        }
    }

    fn left(&self) -> u64 {
        self.buckets.values().map(|way| distance(way.at, way.stop)).fold(0, u64::saturating_add)
    }

    fn advance(&mut self, lake: &LakeOffsets) -> u64 {
        let mut advanced = 0_u64;
        for (bucket, way) in &mut self.buckets {
            let now = lake.get(*bucket).map_or(way.at, |end| end.min(way.stop));
            if now > way.at {
                advanced = advanced.saturating_add(distance(way.at, now));
                way.at = now;
            }
        }
        advanced
    }
}

fn distance(from: i64, to: i64) -> u64 {
    u64::try_from(to.saturating_sub(from)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::BucketId;

    fn key(partition: i64, bucket: i32) -> BucketKey {
        BucketKey { partition: Some(PartitionId(partition)), bucket: BucketId(bucket) }
    }

    fn lake(ends: &[(i64, i32, i64)]) -> LakeOffsets {
        LakeOffsets(ends.iter().map(|(partition, bucket, end)| (key(*partition, *bucket), *end)).collect())
    }

    fn tally() -> Tally {
        Tally::new([(key(1, 0), 0, 100), (key(1, 1), 40, 100), (key(2, 0), 0, 50)])
    }

    #[test]
    fn what_was_in_the_lake_at_the_start_is_nobodys_and_the_rest_is_told_apart() {
        let mut tally = tally();
        assert_eq!(tally.counts(), None);
        tally.saw(&lake(&[(1, 0, 30), (9, 0, 7)]));
        assert_eq!(tally.counts().unwrap(), Counts { total: 180, left: 180, ..Counts::default() });
        tally.wrote(&lake(&[(1, 0, 60), (1, 1, 50)]));
        tally.saw(&lake(&[(1, 0, 60), (1, 1, 50)]));
        tally.saw(&lake(&[(1, 0, 500), (1, 1, 50), (2, 0, 10)]));
        assert_eq!(tally.counts().unwrap(), Counts { total: 180, ours: 40, others: 50, gone: 0, left: 90 });
        // A round that saw an older lake takes nothing back.
        tally.saw(&lake(&[(1, 0, 60)]));
        tally.wrote(&lake(&[(1, 1, 100), (2, 0, 50)]));
        assert_eq!(tally.counts().unwrap(), Counts { total: 180, ours: 130, others: 50, gone: 0, left: 0 });
    }

    #[test]
    fn what_goes_before_it_is_tiered_is_told_apart_too() {
        let mut tally = tally();
        tally.saw(&LakeOffsets::default());
        tally.wrote(&lake(&[(2, 0, 20)]));
        tally.dropped(PartitionId(2));
        assert_eq!(tally.counts().unwrap(), Counts { total: 210, ours: 20, others: 0, gone: 30, left: 160 });
        assert_eq!(tally.partitions().collect::<Vec<_>>(), [PartitionId(1), PartitionId(1)]);
        assert_eq!(tally.stops(), lake(&[(1, 0, 100), (1, 1, 100)]));
        tally.ended();
        assert_eq!(tally.counts().unwrap(), Counts { total: 210, ours: 20, others: 0, gone: 190, left: 0 });
    }
}
