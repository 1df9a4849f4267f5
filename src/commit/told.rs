//! What a Fluss-made snapshot says of itself, for audits. Nothing is decided here.

use super::seen::{FlussMade, Seen, Told};
use crate::error::{Error, Result};
use crate::model::{LakeOffsets, OffsetsFile, RoundId, TableId};
use crate::paimon::Snapshot;
use crate::source::LakeLedger;

/// What a Fluss-made snapshot says of itself (commit.md, Words).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// The round that made it; `None` = a Java job did.
    pub round: Option<RoundId>,
    /// The table that it belongs to, as far as the snapshot itself tells it.
    pub table: Option<TableId>,
    told: Told,
}

impl Statement {
    /// What `snapshot` says; `None` when it is not Fluss-made.
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Option<Self> {
        let FlussMade { round, table, offsets } = Seen::of(snapshot).fluss?;
        Some(Self { round, table, told: offsets })
    }

    /// Its complete end offsets: from the snapshot, or from the file that a Java-made one names; `None` when that is gone, as it is
    /// once a later snapshot was recorded, or when the snapshot is of a Fluss that told none.
    ///
    /// # Errors
    /// `Unavailable`; `Data` when they are there and wrong; as [`LakeLedger::offsets_file`].
    pub async fn offsets(&self, ledger: &dyn LakeLedger) -> Result<Option<LakeOffsets>> {
        Ok(match &self.told {
            Told::Here(offsets) => Some(offsets.clone()),
            Told::InFile(path) => ledger.offsets_file(path).await?.map(|OffsetsFile { offsets, .. }| offsets),
            Told::Inline08 | Told::Nothing07 => None,
            Told::Broken(why) => return Err(Error::data(format!("the offsets of the snapshot can't be read: {why}"))),
        })
    }
}
