//! An operator's word (commit.md): a commit without rows that states where a table's lake stands.
//!
//! It goes through steps 3 to 7 as a round does, from the snapshot that the operator has looked at. Other than a round's its offsets
//! need not go on from anywhere, and it is recorded over whatever Fluss knows: ids of before a rollback are higher.

use std::collections::{BTreeMap, BTreeSet};

use super::context::CommitContext;
use super::publish::state;
use super::seen::Seen;
use super::{Base, CommitOutcome, RoundWork};
use crate::error::{Error, Result};
use crate::model::{LakeOffsets, RoundId};

/// The ground that an operator's word stands on: the newest snapshot, whoever made it.
///
/// # Errors
/// `Unavailable`; `Stale` when the newest snapshot goes away meanwhile; `Data` when it is wrong.
pub async fn ground(context: &CommitContext) -> Result<Base> {
    let born_ms = context.lake.schema_zero().await?.time_ms;
    let id = context.newest().await?;
    let mut base = Base {
        table: context.table.id,
        offsets: LakeOffsets::default(),
        recovered: None,
        id,
        delta_list: None,
        floor: id,
        born_ms,
        published: BTreeSet::new(),
    };
    if id > 0 {
        let gone = || Error::stale(format!("the newest snapshot `{id}` of `{}` went away meanwhile", context.lake.location()));
        let seen: Seen = context.see(id).await?.ok_or_else(gone)?;
        base.published = seen.round().into_iter().collect();
        base.delta_list = Some(seen.delta_list);
    }
    Ok(base)
}

/// States that the rows of `ground` are those below `offsets`, the complete map.
///
/// Said again after it failed, or in a process that died, it does no harm: then the word before is the ground of the new one.
pub async fn say(context: &CommitContext, ground: &Base, offsets: LakeOffsets) -> CommitOutcome {
    let base = Base { offsets, ..ground.clone() };
    let work = RoundWork {
        round: RoundId(context.runtime.rng.uuid()),
        started_ms: context.runtime.clock.now_ms(),
        tiering_epoch: None,
        entries: vec![],
        changelog: vec![],
        end_offsets: LakeOffsets::default(),
        max_timestamps: BTreeMap::new(),
    };
    state(context, &base, &work).await
}
