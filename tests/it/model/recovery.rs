//! Step 1: recovery, each read a step (`src/commit/recover.rs` and `recovery.rs`).

use lakeward::commit::invariants::{self, Hold};

use super::rules::{self, Rules};
use super::step::Turn;
use super::world::{Act, BUCKETS, By, Ends, K, Pc, Snap, World};

pub(super) fn turn(turn: &mut Turn<'_>) {
    let rules = turn.rules;
    match turn.act.pc {
        Pc::Idle => {
            let begin = move |world: &World, act: &mut Act, k: K| {
                (act.table, act.born) = (world.table, world.born);
                if rules.has(rules::K_FIRST) {
                    act.k = k;
                } else {
                    act.newest = world.newest();
                }
                act.pc = if act.k == K::Unknown && rules.has(rules::K_ASKED_AGAIN) { Pc::KAgain } else { Pc::List };
            };
            turn.does("1 reads K", |world, act| begin(world, act, world.k(world.table)));
            turn.fails(
                "1 reads K: −1, the coordinator is starting",
                |left| &mut left.starting,
                |world, act| {
                    begin(world, act, K::Unknown);
                },
            );
        }
        Pc::KAgain => {
            turn.does("1 reads K again after −1", |world, act| (act.k, act.pc) = (world.k(act.table), Pc::List));
            turn.fails("1 reads K again: −1 still", |left| &mut left.starting, |_, act| act.pc = Pc::List);
        }
        Pc::List => turn.does("1 reads the newest id", |world, act| {
            if rules.has(rules::K_FIRST) {
                act.newest = world.newest();
            } else {
                act.k = world.k(act.table);
            }
            if act.newest < act.k.id() && rules.has(rules::SNAPSHOT_K) {
                return fault(act, Hold::RolledBack, rules);
            }
            act.at = act.newest;
            walk_on(act, rules);
        }),
        Pc::Walk => turn.does("1 reads a snapshot above K", |world, act| walk(world, act, rules)),
        Pc::File => turn.does("1 reads the offsets file of Java's L", |world, act| {
            let snap = world.snap(act.at).unwrap_or_default();
            match world.file(act.path) {
                None => fault(act, Hold::OffsetsLost, rules),
                Some(_) if rules.has(rules::JAVA_COUNTED) && java_doubled(world, act.table, &snap) => {
                    fault(act, Hold::JavaDoubled, rules);
                }
                Some(ends) => {
                    act.offs = ends;
                    found(act, rules);
                }
            }
        }),
        Pc::Known => turn.does("1 reads snapshot K", |world, act| known(world, act, rules)),
        Pc::KnownFile => turn.does("1 reads the offsets file of a Java-made K", |world, act| {
            if world.file(act.path).is_some_and(|ends| ends != act.offs) {
                return fault(act, Hold::Overwritten, rules);
            }
            let uid = act.base_uid;
            known_above(act, uid, rules);
        }),
        Pc::Above => turn.does("1 reads the snapshot above K", |world, act| {
            if world.snap(act.base + 1).is_some_and(|above| above.parent != act.base_uid) {
                return fault(act, Hold::Overwritten, rules);
            }
            stands(act, rules);
        }),
        Pc::TwiceK => turn.does("1 second look: table id and K", |world, act| {
            if world.table != act.table || world.k(act.table) != act.k {
                return again(act);
            }
            act.pc = Pc::TwiceNewest;
        }),
        Pc::TwiceNewest => turn.does("1 second look: the newest id", |world, act| {
            if world.newest() != act.newest {
                return again(act);
            }
            match act.fault {
                Some(hold) => act.held = Some(hold),
                None => act.pc = if act.hole > 0 && rules.has(rules::HOLE_READ_AGAIN) { Pc::TwiceHole } else { Pc::Plan },
            }
        }),
        Pc::TwiceHole => turn.does("1 second look: the missing id", |world, act| {
            if world.snap(act.hole).is_some() {
                return again(act);
            }
            act.pc = Pc::Plan;
        }),
        pc => panic!("no turn at {pc:?}"),
    }
}

fn again(act: &mut Act) {
    *act = Act { holds: act.holds, age: act.age, ..Act::idle(act.who) };
}

fn fault(act: &mut Act, hold: Hold, rules: Rules) {
    if rules.has(rules::FAULT_TWICE) {
        (act.fault, act.pc) = (Some(hold), Pc::TwiceK);
    } else {
        act.held = Some(hold);
    }
}

fn walk_on(act: &mut Act, rules: Rules) {
    act.pc = if act.at > act.k.id() && rules.has(rules::LAKE_LOOKED_AT) { Pc::Walk } else { Pc::Known };
}

fn walk(world: &World, act: &mut Act, rules: Rules) {
    let Some(snap) = world.snap(act.at) else {
        if act.hole == 0 {
            act.hole = act.at;
        }
        act.above = 0;
        if rules.has(rules::HOLE_ENDS_WALK) {
            act.pc = Pc::Known;
        } else {
            act.at -= 1;
            walk_on(act, rules);
        }
        return;
    };
    if snap.by == By::User {
        (act.above, act.at) = (snap.parent, act.at - 1);
        return walk_on(act, rules);
    }
    if snap.table != act.table && rules.has(rules::TABLE_OF_L) {
        return fault(act, Hold::OtherTable, rules);
    }
    if act.above != 0 && act.above != snap.uid && rules.has(rules::STANDS_ON) {
        return fault(act, Hold::Overwritten, rules);
    }
    (act.base, act.base_uid, act.floor, act.offs, act.path) = (snap.id, snap.uid, snap.id, snap.ends, snap.path);
    if snap.by == By::Java {
        act.pc = Pc::File;
    } else {
        found(act, rules);
    }
}

fn found(act: &mut Act, rules: Rules) {
    (act.k, act.newest, act.at, act.hole, act.above) = (K::None, 0, 0, 0, 0);
    act.pc = match (rules.has(rules::L_RECORDED), rules.has(rules::L_PINNED)) {
        (true, true) => Pc::RecordPin,
        (true, false) => Pc::RecordPrepare,
        (false, _) => Pc::Plan,
    };
}

fn known(world: &World, act: &mut Act, rules: Rules) {
    let (id, ends) = match act.k {
        K::Unknown => return fault(act, Hold::OffsetsLost, rules),
        K::None => return stands(act, rules),
        K::At(id, ends) => (id, ends),
    };
    let snap = world.snap(id);
    (act.base, act.base_uid, act.offs) = (id, snap.map_or(0, |snap| snap.uid), ends);
    let Some(snap) = snap.filter(|_| rules.has(rules::SNAPSHOT_K)) else { return stands(act, rules) };
    if snap.table != act.table && snap.by != By::User {
        return fault(act, Hold::OtherTable, rules);
    }
    if snap.by == By::User || snap.by == By::Ours && snap.ends != ends {
        return fault(act, Hold::Overwritten, rules);
    }
    if snap.by == By::Java && rules.has(rules::JAVA_COUNTED) && java_doubled(world, act.table, &Snap { ends, ..snap }) {
        return fault(act, Hold::JavaDoubled, rules);
    }
    if snap.by == By::Java && rules.has(rules::JAVA_K_COMPARED) {
        (act.path, act.pc) = (snap.path, Pc::KnownFile);
        return;
    }
    known_above(act, snap.uid, rules);
}

fn known_above(act: &mut Act, uid: u8, rules: Rules) {
    if rules.has(rules::STANDS_ON) {
        if act.above != 0 && act.above != uid {
            return fault(act, Hold::Overwritten, rules);
        }
        // The walk ended above: the snapshot right above K was not read.
        if act.hole > act.base + 1 {
            act.pc = Pc::Above;
            return;
        }
    }
    stands(act, rules);
}

fn stands(act: &mut Act, rules: Rules) {
    act.floor = if act.hole > 0 && rules.has(rules::FLOOR) { act.hole } else { act.base };
    let hole = act.hole > 0 && rules.has(rules::HOLE_TWICE);
    let gone = act.base > 0 && act.base_uid == 0 && rules.has(rules::K_GONE_TWICE);
    act.pc = if hole || gone { Pc::TwiceK } else { Pc::Plan };
}

/// Java-made snapshots since our newest own one hold more rows than offsets advanced, or offsets went back. One step: snapshots do
/// not change, and a missing one only ends the look.
fn java_doubled(world: &World, table: u8, newest: &Snap) -> bool {
    let mut java = vec![*newest];
    let mut own = None;
    for id in (1..newest.id).rev() {
        let Some(snap) = world.snap(id) else { break };
        if snap.by == By::User {
            continue;
        }
        if snap.table != table {
            break;
        }
        if snap.by == By::Ours {
            own = Some(snap);
            break;
        }
        java.push(snap);
    }
    let Some(own) = own else { return false };
    let advance = |from: Ends, to: Ends| (0..BUCKETS).map(|bucket| i64::from(to[bucket].saturating_sub(from[bucket]))).sum();
    let rows = java.iter().map(|snap| i64::from(snap.delta)).sum();
    let mut before = own.ends;
    let back = java.iter().rev().any(|snap| {
        if snap.id != newest.id && world.file(snap.path).is_none() {
            return false;
        }
        let from = std::mem::replace(&mut before, snap.ends);
        (0..BUCKETS).any(|at| invariants::bucket_goes_on(Some(i64::from(from[at])), Some(i64::from(snap.ends[at]))).is_err())
    });
    back || invariants::rows_fit(rows, advance(own.ends, newest.ends)).is_err()
}
