//! Our pins on a table, and taking them off: what keeps its lake from expiring once Lakeward is taken away (commit.md 7).

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt, stream};

use super::context::CommitContext;
use super::pins::{self, Pin};
use super::publish::our_pins;
use super::recovery::Ledger;
use super::seen::Seen;
use crate::error::{Error, Result};
use crate::model::{RoundId, SnapshotId};

/// Snapshots read at once.
const READS_MAX: usize = 16;

/// What a pin of ours is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinUse {
    /// It keeps the newest Fluss-made snapshot.
    Standing,
    /// Its round may still be at work: younger than a day, and no snapshot is of it.
    Living,
    /// Nobody needs it.
    Dead,
}

/// A pin of ours on a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OurPin {
    /// Consumer name.
    pub name: String,
    /// The oldest snapshot that it keeps.
    pub next_snapshot: i64,
    /// Epoch milliseconds by the store's clock.
    pub written_ms: i64,
    /// What it is for.
    pub for_what: PinUse,
}

/// Our pins on a table, and whether it can do without them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pins {
    /// All of them.
    pub pins: Vec<OurPin>,
    /// The newest snapshot that Fluss knows.
    pub known: Option<SnapshotId>,
    /// The newest Fluss-made snapshot that is there.
    pub newest: Option<SnapshotId>,
}

impl Pins {
    /// Whether Fluss knows the newest Fluss-made snapshot: then nothing is lost when that expires.
    #[must_use]
    pub fn may_go(&self) -> bool {
        self.newest.is_none() || self.newest == self.known
    }
}

/// Looks at our pins. Changes nothing.
///
/// # Errors
/// `Unavailable`; `Stale` when the table is gone; `Data` when a snapshot is wrong.
pub async fn look_at_pins(context: &CommitContext) -> Result<Pins> {
    let pins = our_pins(context).await?;
    let known = match context.known().await? {
        Ledger::At(id, _) => Some(SnapshotId(id)),
        Ledger::Empty | Ledger::Other(..) | Ledger::Unknown => None,
    };
    let ids = context.lake.snapshot_ids().await?;
    let seen: Vec<Option<Seen>> = stream::iter(ids).map(|id| context.see(id)).buffered(READS_MAX).try_collect().await?;
    let seen: Vec<&Seen> = seen.iter().flatten().collect();
    let published: BTreeSet<RoundId> = seen.iter().filter_map(|seen| seen.round()).collect();
    let newest = seen.iter().rev().find(|seen| seen.fluss.is_some());
    let standing = standing(&pins, newest.and_then(|newest| Some((newest.id, newest.round()?))), newest.map(|newest| newest.id));
    let now_ms = context.runtime.clock.now_ms();
    let use_of = |pin: &Pin| match pin {
        pin if Some(pin.round) == standing => PinUse::Standing,
        pin if !published.contains(&pin.round) && now_ms.saturating_sub(pin.written_ms) <= pins::AGE_MAX_MS => PinUse::Living,
        _ => PinUse::Dead,
    };
    let told = |pin: &Pin| OurPin {
        name: pins::name_of(pin.round),
        next_snapshot: pin.next_snapshot,
        written_ms: pin.written_ms,
        for_what: use_of(pin),
    };
    Ok(Pins { pins: pins.iter().map(told).collect(), known, newest: newest.map(|newest| SnapshotId(newest.id)) })
}

/// The pin that keeps the newest Fluss-made snapshot: that of its own round, else the one that keeps least beyond it.
fn standing(pins: &[Pin], own: Option<(i64, RoundId)>, newest: Option<i64>) -> Option<RoundId> {
    let newest = newest?;
    let keeps = |pin: &&Pin| pin.next_snapshot <= newest + 1;
    let of_its_round = own.and_then(|(_, round)| pins.iter().filter(keeps).find(|pin| pin.round == round));
    of_its_round.or_else(|| pins.iter().filter(keeps).max_by_key(|pin| pin.next_snapshot)).map(|pin| pin.round)
}

/// Takes pins off.
///
/// # Errors
/// `Unavailable`: call again.
pub async fn take_off(context: &CommitContext, pins: &[OurPin]) -> Result<()> {
    for pin in pins {
        context.lake.delete_pin(&pin.name).await?;
    }
    Ok(())
}

/// Fails unless all pins of `found` may go.
///
/// # Errors
/// `Unsupported` tells what is to be done first.
pub fn check_release(table: &str, found: &Pins) -> Result<()> {
    if found.may_go() {
        return Ok(());
    }
    let text = |id: Option<SnapshotId>| id.map_or_else(|| "nothing".to_owned(), |id| format!("snapshot `{id}`"));
    Err(Error::unsupported(format!(
        "table `{table}`: {} is in the lake, but Fluss knows {}: without our pins it could expire before anybody has recorded it",
        text(found.newest),
        text(found.known)
    ))
    .with_hint(format!("record it first: `lakeward repair record {table} --confirm`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(number: u128) -> RoundId {
        RoundId(uuid::Uuid::from_u128(number))
    }

    fn pin(number: u128, next_snapshot: i64) -> Pin {
        Pin { round: round(number), next_snapshot, written_ms: 0 }
    }

    #[test]
    fn the_pin_of_the_newest_round_stands_and_else_the_one_that_keeps_least() {
        let pins = [pin(1, 2), pin(2, 5), pin(3, 9)];
        assert_eq!(standing(&pins, Some((6, round(1))), Some(6)), Some(round(1)));
        assert_eq!(standing(&pins, None, Some(6)), Some(round(2)), "of a snapshot that Java made");
        assert_eq!(standing(&pins, Some((1, round(7))), Some(1)), Some(round(1)));
        assert_eq!(standing(&pins[1..], None, Some(1)), None);
        assert_eq!(standing(&pins, None, None), None, "nothing was tiered");
    }
}
