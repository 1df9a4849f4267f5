//! What others do to a table: writers, users, operators, expiry, the network, time.

use super::step::Step;
use super::world::{Act, Budget, Cfg, Ends, Expiry, Pc, Pin, ROWS, Snap, Who, World, copies};

/// How many 30 s steps after the last renewal the coordinator hands a table out again.
const LEASE_STEPS: u8 = 4;

pub(super) fn steps(world: &World, cfg: &Cfg, out: &mut Vec<Step>) {
    rows(world, cfg, out);
    crashes(world, out);
    late_messages(world, cfg, out);
    lake(world, cfg, out);
    expiry(world, cfg, out);
    operator(world, out);
    if cfg.leases {
        time(world, out);
    }
}

fn push(out: &mut Vec<Step>, label: &'static str, next: World) {
    out.push(Step { next, label, who: None, well: false });
}

/// A step that costs one of its kind.
fn spend(
    out: &mut Vec<Step>,
    label: &'static str,
    world: &World,
    of: impl Fn(&mut Budget) -> &mut u8,
    act: impl FnOnce(&mut World),
) {
    let mut next = *world;
    let count = of(&mut next.left);
    if *count > 0 {
        *count -= 1;
        act(&mut next);
        push(out, label, next);
    }
}

fn rows(world: &World, cfg: &Cfg, out: &mut Vec<Step>) {
    for bucket in 0..cfg.buckets {
        if world.source[bucket] < ROWS {
            spend(out, "a row is appended", world, |left| &mut left.appends, |next| next.source[bucket] += 1);
        }
    }
    if world.table == 0 {
        spend(
            out,
            "the table is RE-CREATED",
            world,
            |left| &mut left.recreates,
            |next| {
                (next.table, next.source, next.troubles.recreated, next.answered) = (1, cfg.start, true, false);
            },
        );
    }
}

fn crashes(world: &World, out: &mut Vec<Step>) {
    for (index, act) in world.acts.iter().enumerate() {
        if act.pc != Pc::Idle {
            spend(
                out,
                "CRASH",
                world,
                |left| &mut left.crashes,
                |next| {
                    if act.who == Who::Operator {
                        next.acts.remove(index);
                    } else {
                        // A dead holder is found out by its lease.
                        next.acts[index] = Act { holds: act.holds, age: act.age, ..Act::idle(act.who) };
                    }
                },
            );
        }
    }
}

fn late_messages(world: &World, cfg: &Cfg, out: &mut Vec<Step>) {
    for index in 0..world.puts.len() {
        let mut next = *world;
        let snap = next.puts.remove(index);
        push(out, "the late PUT dies", next);
        let hole = snap.id <= world.newest() && world.snap(snap.id).is_none();
        if !hole || cfg.put_outlives {
            next.put(snap);
            push(out, "the late PUT lands", next);
        }
    }
    for index in 0..world.records.len() {
        let mut next = *world;
        let record = next.records.remove(index);
        next.record_now(record);
        push(out, "the late RECORD lands", next);
    }
}

fn lake(world: &World, cfg: &Cfg, out: &mut Vec<Step>) {
    let Some(newest) = world.lake.last().copied() else { return };
    let uid = world.fresh_uid();
    spend(out, "a foreign commit", world, |left| &mut left.foreign, |next| next.lake.push(newest.foreign(uid)));
    if cfg.keyed {
        spend(
            out,
            "a user writes the key",
            world,
            |left| &mut left.user_writes,
            |next| {
                next.lake.push(newest.users_row().foreign(uid));
            },
        );
    }
    spend(
        out,
        "a user rewrites the partition with another total",
        world,
        |left| &mut left.rescales,
        |next| {
            next.lake.push(Snap { totals: 2, ..newest.foreign(uid) });
            next.troubles.rescaled = true;
        },
    );
    for snap in &world.lake[..world.lake.len() - 1] {
        spend(
            out,
            "ROLLBACK",
            world,
            |left| &mut left.rollbacks,
            |next| {
                next.lake.retain(|there| there.id <= snap.id);
                (next.troubles.rolled_back, next.answered, next.expiring) = (true, false, 0);
            },
        );
    }
    if world.troubles.recreated {
        spend(
            out,
            "the lake table is dropped and MADE ANEW",
            world,
            |left| &mut left.lake_drops,
            |next| {
                next.lake.retain(|_| false);
                next.pins.retain(|_| false);
                next.puts.retain(|_| false);
                next.born += 1;
                (next.troubles.rolled_back, next.answered) = (true, false);
                next.expiring = 0;
                next.acts.iter_mut().for_each(|act| act.held = None);
            },
        );
    }
}

fn expiry(world: &World, cfg: &Cfg, out: &mut Vec<Step>) {
    let held = world.pins.iter().map(|pin| pin.next).min().unwrap_or(u8::MAX);
    let until = (world.newest() + 1).saturating_sub(cfg.retained).min(held);
    if cfg.java_records_in_time && world.acts.iter().any(|act| act.pc == Pc::JavaSend) {
        return;
    }
    let oldest = world.lake.first().map_or(u8::MAX, |snap| snap.id);
    let mut next = *world;
    match cfg.expiry {
        Expiry::AtOnce if oldest < until => {
            next.lake.retain(|snap| snap.id >= until);
            push(out, "expiry", next);
        }
        Expiry::Apart if world.expiring == 0 && oldest < until => {
            next.expiring = until;
            push(out, "expiry decides", next);
        }
        Expiry::Apart if world.expiring > 0 => {
            next.lake.remove(0);
            if next.lake.first().is_none_or(|snap| snap.id >= next.expiring) {
                next.expiring = 0;
            }
            push(out, "expiry deletes the oldest", next);
        }
        _ => {}
    }
}

/// The operator of a held table states its offsets as the newest snapshot has its rows (`repair accept-base`); where rows are there
/// twice, or lacking, that is how they stay (`reset-offsets`).
pub(super) fn operator(world: &World, out: &mut Vec<Step>) {
    let busy = world.acts.iter().any(|act| act.who == Who::Operator);
    if busy || world.acts.iter().all(|act| act.held.is_none()) {
        return;
    }
    let before = out.len();
    spend(
        out,
        "OPERATOR: states offsets, pins",
        world,
        |left| &mut left.words,
        |next| {
            let base = world.snap(world.newest()).unwrap_or_default();
            let ends: Ends = std::array::from_fn(|bucket| {
                (0..ROWS).find(|offset| copies(base.rows, world.table, bucket, *offset) == 0).unwrap_or(ROWS)
            });
            let act = Act {
                who: Who::Operator,
                pc: Pc::Prepare,
                table: world.table,
                born: world.born,
                base: base.id,
                base_uid: base.uid,
                floor: base.id,
                offs: ends,
                end: ends,
                round: world.fresh_uid(),
                ..Act::default()
            };
            next.pins.push(Pin { round: act.round, next: base.id + 1 });
            next.acts.push(act);
        },
    );
    out[before..].iter_mut().for_each(|step| step.well = true);
}

/// 30 s pass, or a holder renews. A Java job ends in time, unless it is a zombie.
fn time(world: &World, out: &mut Vec<Step>) {
    for (index, act) in world.acts.iter().enumerate() {
        if act.holds && act.age > 0 && act.pc != Pc::Idle {
            let mut next = *world;
            next.acts[index].age = 0;
            push(out, "a heartbeat renews the lease", next);
        }
    }
    let mut next = *world;
    let mut zombie = false;
    for act in next.acts.iter_mut().filter(|act| act.holds || act.pc != Pc::Idle) {
        act.age = (act.age + 1).min(LEASE_STEPS);
        if act.holds && act.age == LEASE_STEPS {
            act.holds = false;
            zombie |= act.who == Who::Java && act.pc != Pc::Idle;
        }
    }
    if zombie {
        if next.left.zombies == 0 {
            return;
        }
        next.left.zombies -= 1;
    }
    let dead = next.acts.iter_mut().filter(|act| act.pc == Pc::Idle && act.age == LEASE_STEPS);
    dead.for_each(|act| act.age = 0);
    if next != *world {
        push(out, "30 s pass", next);
    }
}
