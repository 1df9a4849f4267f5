//! A round of ours, step by step (docs/commit.md), as `src/commit` does it: each read and each write is a step of its own, but for
//! those of step 4, which only saves work.

use lakeward::commit::invariants::{self, Broken, Hold};

use super::recovery;
use super::rules;
use super::step::Turn;
use super::world::{Act, BUCKETS, By, Ends, K, Keep, Pc, Pin, Record, Snap, Who, World, copies, stated};

/// What a service, or an operator's command, can do now.
pub(super) fn turn(turn: &mut Turn<'_>) {
    let (cfg, rules, act, index) = (turn.cfg, turn.rules, turn.act, turn.index);
    if cfg.leases && rules.has(rules::LEASE_90_S) && act.age >= 3 && act.pc != Pc::Idle {
        return turn.does("the lease is given up, the round dropped", |world, act| stale(world, act, rules));
    }
    match act.pc {
        Pc::RecordPin => turn.does("1 pins, if no pin of ours is there", |world, act| {
            let pin = Pin { round: world.fresh_uid(), next: act.base + 1 };
            if world.pins.iter().all(|there| there.next > pin.next) {
                world.pins.push(pin);
            }
            act.pc = Pc::RecordPrepare;
        }),
        Pc::RecordPrepare => turn.does("1 prepares an offsets file for L again", |world, act| {
            if rules.has(rules::L_PREPARED_AGAIN) || world.file(act.path).is_none() {
                let offs = act.offs;
                match world.prepare(act.table, |ends| *ends = offs, rules.has(rules::IGNORE_PREVIOUS)) {
                    Some(path) => act.path = path,
                    None => return *act = Act::idle(act.who),
                }
            }
            act.pc = if rules.has(rules::K_AT_LEAST_N) { Pc::RecordK } else { Pc::RecordSend };
        }),
        Pc::RecordK => turn.does("1 reads K before it records L", |world, act| {
            let known = world.k(act.table).id() >= act.base;
            act.pc = if known { Pc::Plan } else { Pc::RecordSend };
        }),
        Pc::RecordSend => {
            let keep = if rules.has(rules::EARLIEST_TO_KEEP) { Keep::All } else { Keep::Absent };
            let record = Record { table: act.table, id: act.base, path: act.path, keep };
            send(turn, record, Pc::RecordWrite, Pc::Plan, Pc::RecordK);
        }
        Pc::RecordWrite => turn.does("coordinator: writes the list that it read, with L", |world, act| {
            let record = Record { table: act.table, id: act.base, path: act.path, keep: Keep::All };
            world.record(record, act.view);
            (act.view, act.pc) = (super::world::Entries::default(), Pc::Plan);
        }),
        Pc::Plan => turn.does("2 plans and writes files, 3 pins", |world, act| plan(world, act, rules)),
        Pc::Check => turn.does("4 checks", |world, act| {
            let newest = world.newest();
            let taken = (act.floor + 1..=newest).any(|id| match world.snap(id) {
                None => rules.has(rules::MISSING_ABOVE),
                Some(snap) => snap.by != By::User && rules.has(rules::FLUSS_MADE_ABOVE),
            });
            let table = rules.has(rules::TABLE_CHECKED) && world.table != act.table;
            if table || rules.has(rules::LAKE_CHECKED) && taken {
                return stale(world, act, rules);
            }
            act.pc = Pc::Prepare;
        }),
        Pc::Prepare => turn.does("4 prepares", |world, act| {
            let (offs, end) = (act.offs, act.end);
            let all = rules.has(rules::COMPLETE_MAP) || act.who == Who::Operator;
            let set = |ends: &mut Ends| {
                for bucket in (0..BUCKETS).filter(|bucket| all || end[*bucket] != offs[*bucket]) {
                    ends[bucket] = end[bucket];
                }
            };
            match world.prepare(act.table, set, rules.has(rules::IGNORE_PREVIOUS)) {
                Some(path) => (act.path, act.pc) = (path, Pc::Newest),
                None => stale(world, act, rules),
            }
        }),
        Pc::Newest => {
            turn.does("5a reads the newest id", |world, act| {
                (act.newest, act.at, act.above) = (world.newest(), act.floor + 1, 0);
                (act.missing, act.made, act.parent) = (false, false, Snap::default());
                act.pc = if act.at <= act.newest { Pc::Look } else { Pc::LookBase };
            });
            turn.fails("GIVES UP", |left| &mut left.gives_up, |world, act| stale(world, act, rules));
        }
        Pc::Look => turn.does("5a reads a snapshot above the floor", |world, act| look(world, act, rules)),
        Pc::LookBase => turn.does("5a reads the base, 5b", |world, act| decide(world, act, rules, cfg.keyed)),
        Pc::Put => put(turn),
        Pc::ReadK => turn.does("6 reads K", |world, act| {
            let k = world.k(act.table);
            let known = match act.who {
                // An operator's word is newer than whatever Fluss knows, ids of before a rollback included.
                Who::Operator if rules.has(rules::WORD_RECORDED) => k == K::At(act.n, act.end),
                _ => k.id() >= act.n,
            };
            act.pc = if known { after_record(rules) } else { Pc::Send };
        }),
        Pc::Send => send(turn, record_n(&act, rules), Pc::Write, after_record(rules), Pc::ReadK),
        Pc::Write => turn.does("coordinator: writes the list that it read, with N", |world, act| {
            world.record(record_n(act, rules), act.view);
            (act.view, act.pc) = (super::world::Entries::default(), after_record(rules));
        }),
        Pc::After => turn.does("6 reads snapshot N again", |world, act| match world.snap(act.n) {
            Some(snap) if snap.uid != act.round => act.held = Some(Hold::Overwritten),
            Some(_) => act.pc = Pc::Unpin,
            None => act.pc = Pc::AfterNewest,
        }),
        Pc::AfterNewest => turn.does("6 reads the newest id again", |world, act| {
            if world.newest() < act.n {
                act.held = Some(Hold::RolledBack);
            } else {
                act.pc = Pc::Unpin;
            }
        }),
        Pc::Unpin => {
            turn.does("7 unpins others, dead ones included", |world, act| unpin(world, act, index, rules, true));
            turn.may("7 unpins others", |world, act| unpin(world, act, index, rules, false));
        }
        _ => recovery::turn(turn),
    }
}

fn after_record(rules: rules::Rules) -> Pc {
    if rules.has(rules::LOOK_AFTER_RECORD) { Pc::After } else { Pc::Unpin }
}

fn record_n(act: &Act, rules: rules::Rules) -> Record {
    let keep = match act.base {
        _ if !rules.has(rules::EARLIEST_TO_KEEP) => Keep::Absent,
        0 => Keep::All,
        base => Keep::From(base),
    };
    Record { table: act.table, id: act.n, path: act.path, keep }
}

fn plan(world: &mut World, act: &mut Act, rules: rules::Rules) {
    (act.k, act.newest, act.at, act.hole, act.above, act.path) = (K::None, 0, 0, 0, 0, 0);
    // Reading a table that is no more fails.
    if world.table != act.table {
        return *act = Act::idle(act.who);
    }
    for bucket in 0..BUCKETS {
        act.end[bucket] = act.offs[bucket].max(world.source[bucket]);
    }
    if act.end == act.offs {
        return *act = Act::idle(act.who);
    }
    act.round = world.fresh_uid();
    act.first = world.snap(world.newest()).map_or(0, |snap| snap.sequence) + 1;
    if rules.has(rules::PIN_BEFORE_CHECKS) {
        pin(world, act, rules);
    }
    act.pc = Pc::Check;
}

fn pin(world: &mut World, act: &Act, rules: rules::Rules) {
    let pin = Pin { round: act.round, next: act.floor + 1 };
    if rules.has(rules::PIN) && !world.pins.contains(&pin) {
        world.pins.push(pin);
    }
}

fn look(world: &World, act: &mut Act, rules: rules::Rules) {
    let bit = 1 << act.at;
    match world.snap(act.at) {
        None => act.missing = true,
        Some(snap) => {
            let alike = !rules.has(rules::ROUND_ID) && snap.by == By::Ours && act.open & bit != 0;
            if snap.uid == act.round || alike {
                (act.n, act.pc) = (act.at, Pc::ReadK);
                return;
            }
            act.open &= !bit;
            act.made |= snap.by != By::User;
            if act.at == act.base + 1 {
                act.above = snap.parent;
            }
            act.parent = snap;
        }
    }
    act.at += 1;
    if act.at > act.newest {
        act.pc = Pc::LookBase;
    }
}

/// 5a and 5b, decided; at the floor nothing was read yet.
fn decide(world: &mut World, act: &mut Act, rules: rules::Rules, keyed: bool) {
    let (newest, base) = (act.newest, act.base);
    if newest <= act.floor {
        act.parent = world.snap(newest).unwrap_or_default();
    }
    let checked = act.who == Who::Service || rules.has(rules::WORD_CHECKED);
    if checked && newest < base && rules.has(rules::NEWEST_BELOW_BASE) {
        return act.held = held(act, Hold::RolledBack);
    }
    if checked && base > 0 {
        let now = world.snap(base);
        if now.is_some_and(|now| now.uid != act.base_uid) && rules.has(rules::BASE_IDENTITY) {
            return act.held = held(act, Hold::Overwritten);
        }
        if now.is_none() && act.base_uid != 0 && rules.has(rules::BASE_GONE) {
            return stale(world, act, rules);
        }
        let above = if act.floor > base { world.snap(base + 1).map_or(0, |snap| snap.parent) } else { act.above };
        if base < newest && above != 0 && now.is_some_and(|now| now.uid != above) && rules.has(rules::STANDS_ON) {
            return act.held = held(act, Hold::Overwritten);
        }
    }
    let missing = act.missing && rules.has(rules::MISSING_ABOVE);
    let made = act.made && rules.has(rules::FLUSS_MADE_ABOVE);
    let gone = newest > 0 && act.parent.id != newest;
    let late = act.open >> (newest + 2) != 0 && rules.has(rules::BELOW_A_TRY);
    let other = act.born != world.born && rules.has(rules::LAKE_TABLE_SAME);
    let numbers = keyed && act.parent.sequence >= act.first && rules.has(rules::SEQUENCE_NUMBERS);
    if checked && (missing || made || late || other || numbers) || gone {
        return stale(world, act, rules);
    }
    if act.parent.totals & !1 != 0 && rules.has(rules::PARTITION_TOTALS) {
        return act.held = held(act, Hold::MixedTotals);
    }
    if !rules.has(rules::PIN_BEFORE_CHECKS) {
        pin(world, act, rules);
    }
    (act.n, act.above, act.at, act.newest) = (newest + 1, 0, 0, 0);
    act.pc = Pc::Put;
}

/// An operator's command ends with an error; a service holds the table.
fn held(act: &mut Act, hold: Hold) -> Option<Hold> {
    if act.who == Who::Operator {
        *act = Act::idle(Who::Operator);
        return None;
    }
    Some(hold)
}

fn put(turn: &mut Turn<'_>) {
    let (cfg, rules, before) = (turn.cfg, turn.rules, turn.act);
    let parent = before.parent;
    let mut snap = Snap {
        id: before.n,
        uid: before.round,
        by: By::Ours,
        parent: parent.uid,
        table: before.table,
        ends: before.end,
        path: before.path,
        ..parent.plus(&before, cfg.keyed)
    };
    if before.who == Who::Operator {
        (snap.rows, snap.totals) = (stated(parent.rows, before.table, before.end), parent.totals);
    }
    let create = move |world: &mut World, act: &mut Act| {
        act.open |= 1 << snap.id;
        let unanswered = act.unanswered && rules.has(rules::UNANSWERED_TRY);
        act.parent = Snap::default();
        if !rules.has(rules::CREATE_IF_ABSENT) {
            world.lake.retain(|there| there.id != snap.id);
        }
        let created = world.put(snap);
        if created {
            // Lists of lost tries are deleted.
            if !unanswered && world.puts.iter().any(|put| put.uid == snap.uid && put.id != snap.id) {
                world.deleted.push(snap.uid);
            }
            let doubled = (0..BUCKETS)
                .any(|bucket| (act.offs[bucket]..act.end[bucket]).any(|offset| copies(snap.rows, snap.table, bucket, offset) > 1));
            let lies = act.who == Who::Operator && !cfg.java_is_loose() && snap.rows != parent.rows;
            if doubled || lies {
                world.broken = Some(if doubled { Broken::Twice } else { Broken::Skipped });
            }
        }
        created
    };
    turn.does("5c PUT", move |world, act| act.pc = if create(world, act) { Pc::ReadK } else { Pc::Newest });
    turn.fails(
        "5c PUT done, reply LOST",
        |left| &mut left.lost,
        move |world, act| {
            create(world, act);
            (act.unanswered, act.pc) = (true, Pc::Newest);
        },
    );
    turn.fails(
        "5c PUT LATE, no reply",
        |left| &mut left.late,
        move |world, act| {
            act.open |= 1 << snap.id;
            act.parent = Snap::default();
            world.puts.push(snap);
            (act.unanswered, act.pc) = (true, Pc::Newest);
        },
    );
    turn.fails(
        "5c PUT answered, a COPY in flight",
        |left| &mut left.late,
        move |world, act| {
            // A copy of one that was refused can only land across a rollback: assumed away (docs/commit.md, Files).
            if create(world, act) {
                world.puts.push(snap);
                act.pc = Pc::ReadK;
            } else {
                act.pc = Pc::Newest;
            }
        },
    );
}

/// The record call; `write` = where the coordinator goes on when its read and its write are apart.
fn send(turn: &mut Turn<'_>, record: Record, write: Pc, next: Pc, again: Pc) {
    turn.does("records", |world, act| {
        world.record_now(record);
        act.pc = next;
    });
    turn.fails(
        "RECORD done, reply LOST",
        |left| &mut left.lost,
        |world, act| {
            world.record_now(record);
            act.pc = again;
        },
    );
    turn.fails(
        "RECORD LATE, no reply",
        |left| &mut left.late,
        |world, act| {
            world.records.push(record);
            act.pc = again;
        },
    );
    turn.fails(
        "RECORD answered, a COPY in flight",
        |left| &mut left.late,
        |world, act| {
            world.record_now(record);
            world.records.push(record);
            act.pc = next;
        },
    );
    turn.fails("RECORD answered but LOST", |left| &mut left.swallowed, |_, act| act.pc = next);
    turn.fails(
        "coordinator: reads the list for a RECORD",
        |left| &mut left.races,
        |world, act| {
            act.view = world.ledger[usize::from(record.table)];
            act.pc = write;
        },
    );
}

/// Pins of rounds that are known to have published go, and with `dead` those of rounds that are too old to live.
fn unpin(world: &mut World, act: &mut Act, index: usize, rules: rules::Rules, dead: bool) {
    let before = *world;
    let (own, known, floor) = (act.round, act.base_uid, act.floor);
    world.pins.retain(|pin| {
        let below = pin.next <= floor || pin.next == floor + 1 && !rules.has(rules::PINS_AT_OUR_FLOOR);
        let over = pin.round == known || dead && !before.lives(*pin, index) || !rules.has(rules::LIVING_PINS);
        !(below && over) && pin.round != own || pin.round == own && rules.has(rules::STANDING_PIN)
    });
    if act.who == Who::Operator {
        for other in world.acts.iter_mut() {
            other.held = None;
        }
        let busy = before.acts.iter().any(|other| other.who != Who::Operator && other.pc != Pc::Idle);
        let last = before.newest_made().is_some_and(|made| made.id == act.n);
        // It ends well only when K is its own; without the rule it believes so.
        let stays = before.k(act.table) == K::At(act.n, act.end) || !rules.has(rules::WORD_RECORDED);
        world.answered = stays && last && !busy && before.puts.is_empty() && before.records.is_empty();
    }
    *act = Act::idle(act.who);
}

/// Drops the round; its files and its pin where that is allowed.
pub(super) fn stale(world: &mut World, act: &mut Act, rules: rules::Rules) {
    let round = act.round;
    let unanswered = act.unanswered && rules.has(rules::UNANSWERED_TRY);
    let open = if unanswered { 1 } else { act.open.count_ones().try_into().unwrap() };
    if invariants::may_delete(false, open) || !rules.has(rules::FILES_KEPT) {
        if act.published && !world.troubles.rolled_back {
            world.broken = Some(Broken::NamedGone);
        }
        if world.puts.iter().any(|put| put.uid == round) {
            world.deleted.push(round);
        }
        if rules.has(rules::OWN_PIN_GOES) {
            world.pins.retain(|pin| pin.round != round);
        }
    }
    // Somebody else was faster: the operator says it again.
    world.left.words += u8::from(act.who == Who::Operator);
    *act = Act::idle(act.who);
}
