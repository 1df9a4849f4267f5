//! A lake snapshot as far as the protocol looks at it, and the properties that carry progress (commit.md, Words; F3.4).

use std::collections::BTreeMap;
use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::invariants;
use crate::error::{Error, Result};
use crate::model::{LakeOffsets, OffsetsFile, RoundId, TableId, TieringEpoch};
use crate::paimon::Snapshot;

/// Commit user of every snapshot that tiers (F3.4). Workers of 0.9 and 1.0 find their snapshots by exactly this name.
pub const COMMIT_USER: &str = "__fluss_lake_tiering";
/// Commit identifier of a batch commit (P3.1).
pub const COMMIT_IDENTIFIER: i64 = i64::MAX;

/// Path of the offsets file, for Java.
const PATH: &str = "fluss-offsets";
/// The complete offsets as JSON (F3.1); above [`PLAIN_BYTES_MAX`] with [`PACKED`] in front, then base64 of zstd of it.
const OFFSETS: &str = "lakeward.offsets";
pub(super) const ROUND: &str = "lakeward.round-id";
const BASE: &str = "lakeward.base";
const EPOCH: &str = "lakeward.tiering-epoch";

const PACKED: &str = "zstd+base64:";
const PLAIN_BYTES_MAX: usize = 16 * 1024;
/// Bound of an unpacked offsets text: some ten million buckets.
const UNPACKED_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// A snapshot: what tells it from another with the same id, what it stands on, and who made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) id: i64,
    /// Its identity: a uuid is in the name.
    pub(super) delta_list: String,
    pub(super) total: Option<i64>,
    pub(super) delta: Option<i64>,
    /// `None` = not Fluss-made.
    pub(super) fluss: Option<FlussMade>,
}

/// What a Fluss-made snapshot says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FlussMade {
    /// `None` = Java-made.
    pub(super) round: Option<RoundId>,
    /// The table, as far as the snapshot itself tells it.
    pub(super) table: Option<TableId>,
    pub(super) offsets: Told,
}

/// Where the offsets of a Fluss-made snapshot are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    /// In `lakeward.offsets`.
    Here(LakeOffsets),
    /// In this file.
    InFile(String),
    /// Fluss 0.8 put JSON into the property.
    Inline08,
    /// Fluss 0.7 put nothing.
    Nothing07,
    /// `lakeward.offsets` can't be read.
    Broken(String),
}

impl Seen {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        Self {
            id: snapshot.id,
            delta_list: snapshot.delta_manifest_list.clone(),
            total: snapshot.total_record_count,
            delta: snapshot.delta_record_count,
            fluss: is_fluss_made(&snapshot.commit_user).then(|| FlussMade::of(&snapshot.properties)),
        }
    }

    /// The round that made it, if it was one of ours.
    pub(super) fn round(&self) -> Option<RoundId> {
        self.fluss.as_ref().and_then(|made| made.round)
    }

    /// Whether it was built on `below`, the snapshot right below it. Totals that are not told prove nothing.
    pub(super) fn stands_on(&self, below: &Self) -> bool {
        invariants::stands_on(self.total, self.delta, below.total).is_ok()
    }
}

impl FlussMade {
    fn of(properties: &BTreeMap<String, String>) -> Self {
        let round = properties.get(ROUND).and_then(|text| text.parse().ok());
        if let Some(text) = properties.get(OFFSETS) {
            return match decode_offsets(text) {
                Ok(file) => Self { round, table: Some(file.table), offsets: Told::Here(file.offsets) },
                Err(error) => Self { round, table: None, offsets: Told::Broken(error.chain()) },
            };
        }
        match properties.get(PATH) {
            None => Self { round, table: None, offsets: Told::Nothing07 },
            Some(text) if text.contains('{') => Self { round, table: None, offsets: Told::Inline08 },
            Some(path) => Self { round, table: table_in_path(path), offsets: Told::InFile(path.clone()) },
        }
    }
}

fn is_fluss_made(user: &str) -> bool {
    user.strip_prefix(COMMIT_USER).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

/// `…/{table}-{table id}/metadata/{uuid}.offsets` (F3.1) → table id.
fn table_in_path(path: &str) -> Option<TableId> {
    let mut parts = path.rsplit('/');
    let (_file, metadata, folder) = (parts.next()?, parts.next()?, parts.next()?);
    let (_name, id) = folder.rsplit_once('-')?;
    if metadata == "metadata" { id.parse().ok().map(TableId) } else { None }
}

/// What a snapshot of ours says about itself.
#[derive(Debug)]
pub(super) struct Properties<'a> {
    pub(super) path: &'a str,
    pub(super) offsets: &'a OffsetsFile,
    pub(super) round: RoundId,
    /// 0 = none.
    pub(super) base: i64,
    pub(super) epoch: Option<TieringEpoch>,
}

impl Properties<'_> {
    pub(super) fn to_map(&self) -> Result<BTreeMap<String, String>> {
        let mut map = BTreeMap::from([
            (PATH.to_owned(), self.path.to_owned()),
            (OFFSETS.to_owned(), encode_offsets(self.offsets)?),
            (ROUND.to_owned(), self.round.to_string()),
            (BASE.to_owned(), self.base.to_string()),
        ]);
        if let Some(epoch) = self.epoch {
            map.insert(EPOCH.to_owned(), epoch.to_string());
        }
        Ok(map)
    }
}

fn encode_offsets(file: &OffsetsFile) -> Result<String> {
    let json = file.to_json();
    if json.len() <= PLAIN_BYTES_MAX {
        return Ok(json);
    }
    let packed = zstd::stream::encode_all(json.as_bytes(), 3)
        .map_err(|source| Error::internal("compress the offsets of a snapshot").with_source(source))?;
    Ok(format!("{PACKED}{}", BASE64.encode(packed)))
}

fn decode_offsets(text: &str) -> Result<OffsetsFile> {
    let Some(packed) = text.strip_prefix(PACKED) else { return OffsetsFile::from_json(text) };
    let wrong = || Error::data(format!("property `{OFFSETS}` can't be unpacked"));
    let packed = BASE64.decode(packed).map_err(|source| wrong().with_source(source))?;
    let mut json = String::new();
    zstd::stream::read::Decoder::new(packed.as_slice())
        .and_then(|decoder| decoder.take(UNPACKED_BYTES_MAX).read_to_string(&mut json))
        .map_err(|source| wrong().with_source(source))?;
    OffsetsFile::from_json(&json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{BucketId, BucketKey, PartitionId};

    fn file(buckets: i32) -> OffsetsFile {
        let offsets = (0..buckets)
            .map(|bucket| {
                let partition = Some(PartitionId(i64::from(bucket / 16)));
                (BucketKey { partition, bucket: BucketId(bucket % 16) }, i64::from(bucket) * 1_000_003)
            })
            .collect();
        OffsetsFile { table: TableId(12), offsets: LakeOffsets(offsets) }
    }

    fn made(pairs: &[(&str, &str)]) -> FlussMade {
        FlussMade::of(&pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn offsets_are_plain_json_until_16_kib_and_packed_above() {
        for (buckets, packed) in [(0, false), (100, false), (5000, true)] {
            let text = encode_offsets(&file(buckets)).unwrap();
            assert_eq!(text.starts_with(PACKED), packed);
            assert_eq!(text.starts_with('{'), !packed);
            assert_eq!(decode_offsets(&text).unwrap(), file(buckets));
        }
    }

    #[test]
    fn properties_carry_round_base_epoch_and_the_complete_offsets() {
        let (round, offsets) = (RoundId(uuid::Uuid::from_u128(7)), file(3));
        let properties = Properties {
            path: "file:/r/lake/demo/t-12/metadata/x.offsets",
            offsets: &offsets,
            round,
            base: 4,
            epoch: Some(TieringEpoch(9)),
        };
        let map = properties.to_map().unwrap();
        assert_eq!(map["fluss-offsets"], properties.path);
        assert_eq!(map["lakeward.round-id"], "00000000-0000-0000-0000-000000000007");
        assert_eq!((map["lakeward.base"].as_str(), map["lakeward.tiering-epoch"].as_str()), ("4", "9"));
        assert_eq!(
            FlussMade::of(&map),
            FlussMade { round: Some(round), table: Some(TableId(12)), offsets: Told::Here(offsets.offsets.clone()) }
        );
        assert!(!Properties { epoch: None, ..properties }.to_map().unwrap().contains_key("lakeward.tiering-epoch"));
    }

    #[test]
    fn a_fluss_made_snapshot_has_the_plain_user_or_a_suffixed_one() {
        for (user, fluss) in [
            (COMMIT_USER, true),
            ("__fluss_lake_tiering_1f0c", true),
            ("__fluss_lake_tieringx", false),
            ("__fluss_lake", false),
            ("lakeward-maintenance", false),
        ] {
            assert_eq!(is_fluss_made(user), fluss, "{user}");
        }
    }

    /// A manifest rewrite by Java copies our properties under another user (P3.2): it is not our round.
    #[test]
    fn properties_under_a_foreign_user_mean_nothing() {
        let mut snapshot = super::super::testing::snapshot(3, 10, 0);
        snapshot.properties.insert(ROUND.into(), uuid::Uuid::from_u128(7).to_string());
        snapshot.commit_user = "rewriter".into();
        assert_eq!(Seen::of(&snapshot).fluss, None);
        snapshot.commit_user = COMMIT_USER.into();
        assert_eq!(Seen::of(&snapshot).round(), Some(RoundId(uuid::Uuid::from_u128(7))));
    }

    #[test]
    fn java_snapshots_tell_a_path_and_old_ones_json_or_nothing() {
        let path = "file:/remote/lake/demo/my-orders-12/metadata/5c1d.offsets";
        assert_eq!(made(&[(PATH, path)]), FlussMade { round: None, table: Some(TableId(12)), offsets: Told::InFile(path.into()) });
        assert_eq!(made(&[(PATH, "file:/elsewhere/x.offsets")]).table, None);
        assert_eq!(made(&[(PATH, r#"[{"bucket":0,"offset":5}]"#)]).offsets, Told::Inline08);
        assert_eq!(made(&[]).offsets, Told::Nothing07);
        assert!(matches!(made(&[(OFFSETS, "{}")]).offsets, Told::Broken(_)));
        assert!(matches!(made(&[(OFFSETS, "zstd+base64:AAAA")]).offsets, Told::Broken(_)));
    }

    #[test]
    fn a_snapshot_stands_on_the_one_below_when_total_minus_delta_is_its_total() {
        let seen = |id, total, delta| Seen::of(&super::super::testing::snapshot(id, total, delta));
        assert!(seen(2, 15, 5).stands_on(&seen(1, 10, 10)));
        assert!(!seen(2, 15, 5).stands_on(&seen(1, 12, 12)));
        let mut untold = seen(1, 12, 12);
        untold.total = None;
        assert!(seen(2, 15, 5).stands_on(&untold));
    }
}
