//! What the tests of this stage share.

use std::collections::BTreeMap;

use super::seen::{FlussMade, Seen, Told};
use crate::model::{BucketId, BucketKey, LakeOffsets, RoundId, TableId};
use crate::paimon::Snapshot;

/// A foreign snapshot.
pub(super) fn snapshot(id: i64, total: i64, delta: i64) -> Snapshot {
    Snapshot {
        id,
        schema_id: 0,
        base_manifest_list: format!("manifest-list-{id}-0"),
        base_manifest_list_size: None,
        delta_manifest_list: format!("manifest-list-{id}-1"),
        delta_manifest_list_size: None,
        changelog_manifest_list: None,
        changelog_manifest_list_size: None,
        index_manifest: None,
        commit_user: "user".into(),
        commit_identifier: 1,
        commit_kind: "APPEND".into(),
        time_ms: id,
        total_record_count: Some(total),
        delta_record_count: Some(delta),
        changelog_record_count: None,
        watermark: None,
        statistics: None,
        properties: BTreeMap::new(),
        next_row_id: None,
    }
}

pub(super) const TABLE: TableId = TableId(12);

pub(super) fn round(number: u128) -> RoundId {
    RoundId(uuid::Uuid::from_u128(number))
}

/// Offsets of buckets 0, 1, …; negative = never tiered.
pub(super) fn offsets(ends: &[i64]) -> LakeOffsets {
    let ends = (0..).map(BucketId).zip(ends).filter(|(_, end)| **end >= 0);
    LakeOffsets(ends.map(|(bucket, end)| (BucketKey { partition: None, bucket }, *end)).collect())
}

/// Snapshots by id, each built on the one below it.
#[derive(Debug, Clone, Default)]
pub(super) struct Lake(pub(super) BTreeMap<i64, Seen>);

impl Lake {
    fn push(mut self, rows: i64, fluss: Option<FlussMade>) -> Self {
        let (id, total) = self.0.last_key_value().map_or((1, 0), |(id, seen)| (id + 1, seen.total.unwrap()));
        let seen = Seen { id, delta_list: format!("list-{id}"), total: Some(total + rows), delta: Some(rows), fluss };
        self.0.insert(id, seen);
        self
    }

    /// A user's or compactor's snapshot.
    pub(super) fn foreign(self, rows: i64) -> Self {
        self.push(rows, None)
    }

    /// One of ours.
    pub(super) fn ours(self, number: u128, rows: i64, ends: &[i64]) -> Self {
        let told = Told::Here(offsets(ends));
        self.push(rows, Some(FlussMade { round: Some(round(number)), table: Some(TABLE), offsets: told }))
    }

    /// A Java-made one whose offsets are in file `path`.
    pub(super) fn java(self, rows: i64, path: &str) -> Self {
        self.push(rows, Some(FlussMade { round: None, table: Some(TABLE), offsets: Told::InFile(path.into()) }))
    }

    /// Changes the newest one.
    pub(super) fn but(mut self, change: impl FnOnce(&mut Seen)) -> Self {
        change(self.0.last_entry().unwrap().get_mut());
        self
    }

    /// As `but`, for what Fluss-made ones say.
    pub(super) fn but_says(self, change: impl FnOnce(&mut FlussMade)) -> Self {
        self.but(|seen| change(seen.fluss.as_mut().unwrap()))
    }

    /// Without the snapshots up to `id`.
    pub(super) fn expired_to(mut self, id: i64) -> Self {
        self.0 = self.0.split_off(&(id + 1));
        self
    }

    pub(super) fn newest(&self) -> i64 {
        self.0.last_key_value().map_or(0, |(id, _)| *id)
    }
}
