//! The queue: what is handed out when, under which epochs, and who may still report (F1.3, D1).

use std::time::Duration;

use super::ledger::{record, stands};
use super::{World, check, descriptor, eventually, made};
use crate::error::{Error, Result};
use crate::model::{BucketId, BucketKey, CoordinatorEpoch, LakeOffsets, TableId, TableInfo, TieringEpoch};
use crate::runtime::Moment;
use crate::source::{Assignment, Finished, Heartbeat, HeartbeatFault, HeartbeatReply, Held};

/// A real coordinator looks for leases that ran out each 15 s (F1.3).
const LEASES_LOOKED_AT: Duration = Duration::from_secs(15);

/// The codes of a heartbeat's answers, by table.
type Codes = Vec<(TableId, Option<i32>)>;

async fn beat(world: &dyn World, heartbeat: Heartbeat) -> Result<HeartbeatReply> {
    world.assignments().heartbeat(heartbeat).await
}

fn codes(answers: &[(TableId, Option<HeartbeatFault>)]) -> Codes {
    answers.iter().map(|(table, fault)| (*table, fault.as_ref().map(|fault| fault.code))).collect()
}

fn done(held: Held, forced: bool) -> Finished {
    Finished { held, forced }
}

fn at(held: Held, epoch: i64) -> Held {
    Held { tiering_epoch: TieringEpoch(epoch), ..held }
}

/// The next one out is `table`, at this epoch.
fn comes(reply: &HeartbeatReply, table: &TableInfo, epoch: i64, when: &str) -> Result<Held> {
    let Some(Assignment { held, path }) = &reply.assigned else { return Err(Error::internal(format!("nothing came {when}"))) };
    let wanted = Held { table: table.id, coordinator_epoch: reply.coordinator_epoch, tiering_epoch: TieringEpoch(epoch) };
    check((held, path) == (&wanted, &table.path), || format!("{when} came {:?} instead of {wanted:?}", reply.assigned))?;
    Ok(*held)
}

/// Asks until a table comes, which has to be this one.
async fn next(world: &dyn World, table: &TableInfo, epoch: i64, when: &str) -> Result<Held> {
    eventually(world, &format!("assignment of `{}` {when}", table.path), async || {
        let reply = beat(world, Heartbeat { request_table: true, ..Heartbeat::default() }).await?;
        if reply.assigned.is_some() { comes(&reply, table, epoch, when).map(Some) } else { Ok(None) }
    })
    .await
}

async fn renewal(world: &dyn World, held: Held) -> Result<Option<i32>> {
    let reply = beat(world, Heartbeat { tiering: vec![held], ..Heartbeat::default() }).await?;
    match codes(&reply.tiering).as_slice() {
        [(table, code)] if *table == held.table => Ok(*code),
        other => Err(Error::internal(format!("a renewal got {other:?}"))),
    }
}

/// Waits until renewals of `held` get this code.
async fn renews_with(world: &dyn World, held: Held, code: Option<i32>) -> Result<()> {
    eventually(world, &format!("{code:?} for a renewal of {held:?}"), async || {
        Ok((renewal(world, held).await? == code).then_some(()))
    })
    .await
}

async fn lake_table(world: &dyn World, name: &str, freshness: &str) -> Result<TableInfo> {
    let mut table = descriptor(false, true);
    table.properties.insert("table.datalake.freshness".to_owned(), freshness.to_owned());
    made(world, name, &table).await
}

pub(super) async fn the_queue_hands_out_fences_and_takes_back(world: &dyn World) -> Result<()> {
    // It rests one freshness first, so that nothing of the following may hand it out.
    let resting = lake_table(world, "resting", "1h").await?;
    let a = lake_table(world, "queued_a", "1s").await?;
    let first = next(world, &a, 1, "when it was due").await?;
    reports_are_refused_by_what_is_wrong(world, first).await?;
    let reply = beat(world, Heartbeat { request_table: true, ..Heartbeat::default() }).await?;
    check(reply.assigned.is_none(), || format!("with nothing due came {:?}", reply.assigned))?;
    check(renewal(world, at(Held { table: resting.id, ..first }, 0)).await? == Some(-1), || "a resting table was renewed".into())?;

    // Forced: queued again at once, for the request in the same heartbeat already.
    let forced = Heartbeat { finished: vec![done(first, true)], request_table: true, ..Heartbeat::default() };
    let reply = beat(world, forced).await?;
    check(codes(&reply.finished) == [(a.id, None)], || format!("forced got {:?}", reply.finished))?;
    let held_a = comes(&reply, &a, 2, "after it was forced")?;
    let late = Heartbeat { finished: vec![done(first, false)], ..Heartbeat::default() };
    let reply = beat(world, late).await?;
    check(codes(&reply.finished) == [(a.id, Some(50))], || format!("an old epoch's finish got {:?}", reply.finished))?;
    let reply = beat(world, Heartbeat { failed: vec![first], ..Heartbeat::default() }).await?;
    check(codes(&reply.failed) == [(a.id, Some(50))], || format!("an old epoch's failure got {:?}", reply.failed))?;

    // A table in the line is nobody's; reports about it are read over.
    let b = lake_table(world, "queued_b", "1s").await?;
    let pending_b = at(Held { table: b.id, ..held_a }, 1);
    renews_with(world, pending_b, Some(-1)).await?;
    let over = Heartbeat { failed: vec![pending_b], finished: vec![done(pending_b, true)], ..Heartbeat::default() };
    let reply = beat(world, over).await?;
    check(codes(&reply.failed) == [(b.id, None)] && codes(&reply.finished) == [(b.id, None)], || format!("in line: {reply:?}"))?;
    check(renewal(world, pending_b).await? == Some(-1), || "it left the line".into())?;

    // First in, first out; what comes back goes to the tail, what failed before what is done.
    let forced = Heartbeat { finished: vec![done(held_a, true)], request_table: true, ..Heartbeat::default() };
    let held_b = comes(&beat(world, forced).await?, &b, 1, "with another behind it")?;
    let held_a = next(world, &a, 3, "behind the other").await?;
    let both = Heartbeat { finished: vec![done(held_b, true)], failed: vec![held_a], request_table: true, ..Heartbeat::default() };
    let held_a = comes(&beat(world, both).await?, &a, 4, "as what failed")?;
    let held_b = next(world, &b, 2, "as what was forced").await?;

    // Failed and done at once: failed.
    let both = Heartbeat { failed: vec![held_b], finished: vec![done(held_b, false)], ..Heartbeat::default() };
    let reply = beat(world, both).await?;
    let found = (codes(&reply.failed), codes(&reply.finished));
    check(found == (vec![(b.id, None)], vec![(b.id, Some(50))]), || format!("failed and done got {reply:?}"))?;
    let held_b = next(world, &b, 3, "after it failed").await?;

    // Done: it rests for its freshness and is nobody's. Done again is read over, failed puts it in the line.
    let finished = world.clock().moment();
    for _ in 0..2 {
        let reply = beat(world, Heartbeat { finished: vec![done(held_a, false)], ..Heartbeat::default() }).await?;
        check(codes(&reply.finished) == [(a.id, None)], || format!("done got {:?}", reply.finished))?;
    }
    check(renewal(world, held_a).await? == Some(-1), || "a resting table was renewed".into())?;
    let held_a = next(world, &a, 5, "after its rest").await?;
    let rested = finished.elapsed();
    check(rested >= Duration::from_millis(800), || format!("of 1 s it rested {} ms", rested.as_millis()))?;
    beat(world, Heartbeat { finished: vec![done(held_b, false)], ..Heartbeat::default() }).await?;
    let reply = beat(world, Heartbeat { failed: vec![held_b], ..Heartbeat::default() }).await?;
    let code = renewal(world, at(held_b, 4)).await?;
    check(codes(&reply.failed) == [(b.id, None)] && code == Some(-1), || format!("failed while resting: {reply:?}, {code:?}"))?;
    let held_b = next(world, &b, 4, "after it failed while resting").await?;

    a_disabled_lake_begins_again(world, &a, held_a).await?;
    world.drop_table(&b.path).await?;
    renews_with(world, held_b, Some(7)).await
}

/// The coordinator's epoch first, then the table, then its epoch; each table by itself, each list alike.
async fn reports_are_refused_by_what_is_wrong(world: &dyn World, held: Held) -> Result<()> {
    let another = CoordinatorEpoch(held.coordinator_epoch.0 + 9);
    let unknown = Held { table: TableId(i64::from(i32::MAX)), ..held };
    for (wrong, code) in [
        (unknown, 7),
        (at(unknown, 9), 7),
        (at(held, held.tiering_epoch.0 + 9), 50),
        (at(held, 0), 50),
        (Held { coordinator_epoch: another, ..held }, 23),
        (Held { coordinator_epoch: another, ..unknown }, 23),
    ] {
        let heartbeat =
            Heartbeat { tiering: vec![wrong], finished: vec![done(wrong, true)], failed: vec![wrong], request_table: false };
        let reply = beat(world, heartbeat).await?;
        for answers in [&reply.tiering, &reply.finished, &reply.failed] {
            check(codes(answers) == [(wrong.table, Some(code))], || format!("{wrong:?} got {reply:?} instead of `{code}`"))?;
        }
    }
    let reply = beat(world, Heartbeat { tiering: vec![unknown, held], ..Heartbeat::default() }).await?;
    let mut found = codes(&reply.tiering);
    found.sort_unstable();
    check(found == [(held.table, None), (unknown.table, Some(7))], || format!("two renewals got {reply:?}"))
}

/// The queue forgets it, what it holds in hand too; the ledger does not care. Enabled again it starts over.
async fn a_disabled_lake_begins_again(world: &dyn World, table: &TableInfo, held: Held) -> Result<()> {
    world.set_option(&table.path, "table.datalake.enabled", "false").await?;
    renews_with(world, held, Some(7)).await?;
    let told = LakeOffsets([(BucketKey { partition: None, bucket: BucketId(0) }, 0)].into());
    let file = world.ledger().prepare(table.id, &table.path, &told).await?;
    world.ledger().record(record(table, 1, &file, &told, -1)).await?;
    stands(world, table, 1, &told).await?;
    world.set_option(&table.path, "table.datalake.enabled", "true").await?;
    renews_with(world, held, Some(50)).await?;
    let again = next(world, table, 1, "with its lake enabled again").await?;
    check(renewal(world, again).await?.is_none(), || "it is not ours".into())?;
    world.drop_table(&table.path).await?;
    renews_with(world, again, Some(7)).await
}

/// A table in the hands of one who says nothing any more.
pub(super) struct Silent {
    table: TableInfo,
    held: Held,
    since: Moment,
}

/// Takes a table and falls silent. Nothing else may ask for tables until [`a_lease_ends`].
pub(super) async fn a_lease_begins(world: &dyn World) -> Result<Silent> {
    let table = lake_table(world, "silent", "1s").await?;
    let held = next(world, &table, 1, "to be held in silence").await?;
    let since = world.clock().moment();
    check(renewal(world, held).await?.is_none(), || "it is not ours".into())?;
    Ok(Silent { table, held, since })
}

/// It goes to another, at the next epoch, when its lease is over and not before; one that is renewed stays. The late holder's reports are
/// fenced, its prepare and record are not.
pub(super) async fn a_lease_ends(world: &dyn World, silent: Silent, lease: Duration) -> Result<()> {
    let Silent { table, held, since } = silent;
    let kept = lake_table(world, "kept", "1s").await?;
    let mut in_hand = None;
    let next = loop {
        let reply =
            beat(world, Heartbeat { tiering: in_hand.into_iter().collect(), request_table: true, ..Heartbeat::default() }).await?;
        check(reply.tiering.iter().all(|(_, fault)| fault.is_none()), || {
            format!("a table that is renewed got {:?}", reply.tiering)
        })?;
        match &reply.assigned {
            Some(assigned) if in_hand.is_none() && assigned.held.table == kept.id => in_hand = Some(comes(&reply, &kept, 1, "")?),
            Some(_) => break comes(&reply, &table, 2, "after its lease")?,
            None => {
                check(since.elapsed() < lease + LEASES_LOOKED_AT + Duration::from_secs(15), || "a lease does not end".into())?;
                world.clock().sleep(Duration::from_millis(100)).await;
            }
        }
    };
    let lasted = since.elapsed();
    check(lasted >= lease, || format!("a lease of {} s lasted {} ms", lease.as_secs(), lasted.as_millis()))?;
    let late = Heartbeat { tiering: vec![held], finished: vec![done(held, true)], failed: vec![held], request_table: false };
    let reply = beat(world, late).await?;
    for answers in [&reply.tiering, &reply.finished, &reply.failed] {
        check(codes(answers) == [(table.id, Some(50))], || format!("the late holder got {reply:?}"))?;
    }
    let told = LakeOffsets([(BucketKey { partition: None, bucket: BucketId(1) }, 4)].into());
    let file = world.ledger().prepare(table.id, &table.path, &told).await?;
    world.ledger().record(record(&table, 1, &file, &told, -1)).await?;
    stands(world, &table, 1, &told).await?;
    check(renewal(world, next).await?.is_none(), || "the new holder lost it".into())?;
    world.drop_table(&kept.path).await?;
    world.drop_table(&table.path).await
}
