//! One moment of lake and ledger, taken while rounds go on.

use std::time::Duration;

use super::AuditContext;
use crate::commit::Statement;
use crate::error::{Error, Result};
use crate::model::{LakeOffsets, RoundId, SnapshotId, TableId};
use crate::paimon::Snapshot;
use crate::source::{LedgerEntry, LedgerState};

/// How long a snapshot may be in the lake before it counts as not recorded: a round records right after it publishes.
const RECORD_PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at the ledger.
const LOOK: Duration = Duration::from_millis(200);

/// A lake snapshot, and what Fluss has to say about it.
#[derive(Debug, Clone)]
pub struct View {
    /// The newest snapshot: what is looked at. `None` when the lake table was never written.
    pub newest: Option<Snapshot>,
    /// The newest Fluss-made snapshot at or below it.
    pub tiered: Option<Tiered>,
    /// What Fluss knows.
    pub known: Option<LedgerEntry>,
    /// Why it can't be told what Fluss knows.
    pub unknown: Option<String>,
    /// A Fluss-made snapshot that Fluss did not get to know in the time that a round takes for it.
    pub unrecorded: Option<SnapshotId>,
}

/// The newest Fluss-made snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tiered {
    /// Its id.
    pub snapshot: SnapshotId,
    /// The table that it says it belongs to.
    pub table: Option<TableId>,
    /// The round that made it; `None` = a Java job did, or it has expired.
    pub round: Option<RoundId>,
    /// Exclusive end offsets: the lake has all rows below them. `None` when its offsets file is gone.
    pub offsets: Option<LakeOffsets>,
    /// Whether the snapshot is still there; else its offsets are those that Fluss has for it.
    pub is_there: bool,
}

impl View {
    /// Exclusive end offsets of what is in the lake, as far as they can be told; none on a table that was never tiered.
    #[must_use]
    pub fn offsets(&self) -> LakeOffsets {
        self.tiered.as_ref().and_then(|tiered| tiered.offsets.clone()).unwrap_or_default()
    }
}

/// Takes a view. A Fluss-made snapshot that Fluss does not know yet is waited for: a round may be about to record it.
///
/// # Errors
/// `Unavailable`; `Data` when a snapshot or its offsets can't be read; `Stale` when the table is gone.
pub async fn view(context: &AuditContext) -> Result<View> {
    let clock = &context.runtime.clock;
    let began = clock.moment();
    let mut first: Option<SnapshotId> = None;
    loop {
        let mut view = look(context).await?;
        let known = view.known.as_ref().map(|known| known.snapshot);
        let newest = view.tiered.as_ref().filter(|tiered| tiered.is_there).map(|tiered| tiered.snapshot);
        let Some(behind) = newest.filter(|newest| known.is_none_or(|known| known < *newest)) else { return Ok(view) };
        // One that was not known at the first look is by now: what is not known now is younger, and on its way.
        if first.is_some_and(|first| known.is_some_and(|known| first <= known)) {
            return Ok(view);
        }
        let first = *first.get_or_insert(behind);
        if began.elapsed() >= RECORD_PATIENCE {
            view.unrecorded = Some(first);
            return Ok(view);
        }
        clock.sleep(LOOK).await;
    }
}

/// What is there right now; a snapshot may be about to be recorded.
pub(super) async fn look(context: &AuditContext) -> Result<View> {
    // The ledger first: what is committed between the two reads is then met in the lake.
    let (known, unknown) = match context.ledger.latest(&context.table.path).await? {
        LedgerState::At(entry) => (Some(entry), None),
        LedgerState::Empty => (None, None),
        LedgerState::Unknown { message } => (None, Some(message)),
        LedgerState::TableGone => return Err(context.gone()),
    };
    let lake = &context.lake;
    let newest = match lake.newest_snapshot_id().await? {
        Some(id) => Some(lake.snapshot(id).await?.ok_or_else(|| moved(context))?),
        None => None,
    };
    let mut tiered = None;
    let mut next = newest.clone();
    while let Some(snapshot) = next.take() {
        if let Some(statement) = Statement::of(&snapshot) {
            let entry = known.as_ref().filter(|entry| entry.snapshot.0 == snapshot.id);
            let told = statement
                .offsets(context.ledger.as_ref())
                .await
                .map_err(|error| error.context(format!("snapshot `{}` of `{}`", snapshot.id, lake.location())))?;
            tiered = Some(Tiered {
                snapshot: SnapshotId(snapshot.id),
                table: statement.table,
                round: statement.round,
                offsets: told.or_else(|| entry.map(|entry| entry.offsets.clone())),
                is_there: true,
            });
            break;
        }
        next = lake.snapshot(snapshot.id - 1).await?;
    }
    // Snapshot K has expired under those of others: normal, and the lake has its rows (commit.md 1).
    if tiered.is_none()
        && let (Some(known), Some(newest)) = (&known, &newest)
        && known.snapshot.0 <= newest.id
        && known.table == context.table.id
    {
        let (snapshot, offsets) = (known.snapshot, Some(known.offsets.clone()));
        tiered = Some(Tiered { snapshot, table: Some(known.table), round: None, offsets, is_there: false });
    }
    Ok(View { newest, tiered, known, unknown, unrecorded: None })
}

fn moved(context: &AuditContext) -> Error {
    Error::stale(format!("the newest snapshot of `{}` went away while it was looked at", context.lake.location()))
}
