//! The Java tiering job (F1.4): plans from K alone, looks into the lake once, overlays its offsets file, publishes by "check, then
//! rename", records with `earliest` absent, pins nothing, and never asks about its lease.

use super::step::Turn;
use super::world::{Act, BUCKETS, By, Ends, K, Keep, Pc, ROWS, Record, Snap, copies};

pub(super) fn turn(turn: &mut Turn<'_>) {
    let cfg = turn.cfg;
    match turn.act.pc {
        Pc::Idle => {
            let k = turn.world.k(turn.world.table);
            let offs = if let K::At(_, ends) = k { ends } else { Ends::default() };
            if k == K::Unknown || offs == turn.world.source {
                return;
            }
            turn.does("java: plans from K", |world, act| {
                (act.table, act.offs, act.end, act.round) = (world.table, offs, world.source, world.fresh_uid());
                act.pc = Pc::JavaCheck;
            });
        }
        Pc::JavaCheck => turn.does("java: looks for L above K", |world, act| {
            let k = world.k(act.table);
            if world.table != act.table || k == K::Unknown {
                return *act = Act::idle(act.who);
            }
            match world.lake.iter().rev().find(|snap| snap.by != By::User) {
                Some(snap) if snap.id > k.id() => (act.base, act.path, act.pc) = (snap.id, snap.path, Pc::JavaRecord),
                _ => act.pc = Pc::JavaPrepare,
            }
        }),
        Pc::JavaRecord => turn.does("java: records L and fails its round", |world, act| {
            world.record_now(Record { table: act.table, id: act.base, path: act.path, keep: Keep::All });
            *act = Act::idle(act.who);
        }),
        Pc::JavaPrepare => turn.does("java: prepares, overlaid", |world, act| {
            let (offs, end) = (act.offs, act.end);
            let set = |ends: &mut Ends| {
                for bucket in (0..BUCKETS).filter(|bucket| end[*bucket] != offs[*bucket]) {
                    ends[bucket] = end[bucket];
                }
            };
            match world.prepare(act.table, set, false) {
                Some(path) => (act.path, act.pc) = (path, Pc::JavaList),
                None => *act = Act::idle(act.who),
            }
        }),
        Pc::JavaList => turn.does("java: sees that newest + 1 is not there", |world, act| {
            act.parent = world.snap(world.newest()).unwrap_or_default();
            (act.n, act.pc) = (act.parent.id + 1, Pc::JavaPut);
        }),
        Pc::JavaPut => turn.does("java: renames", |world, act| {
            // No retained snapshot expires sooner than a PUT can be late.
            if act.n <= world.newest() && world.snap(act.n).is_none() && !cfg.put_outlives {
                (act.parent, act.pc) = (Snap::default(), Pc::JavaList);
                return;
            }
            if world.snap(act.n).is_some() {
                if !cfg.java_overwrites {
                    (act.parent, act.pc) = (Snap::default(), Pc::JavaList);
                    return;
                }
                world.lake.retain(|snap| snap.id != act.n);
                (world.troubles.overwritten, world.answered) = (true, false);
            }
            let ends = world.file(act.path).unwrap_or(act.end);
            let parent = act.parent.uid;
            let made = act.parent.plus(act, false);
            let rows = |bucket: usize| (0..ROWS).any(|offset| copies(made.rows, act.table, bucket, offset) > 1);
            if (0..BUCKETS).any(rows) {
                (world.troubles.java, world.answered) = (true, false);
            }
            world.put(Snap { id: act.n, uid: act.round, by: By::Java, parent, table: act.table, ends, path: act.path, ..made });
            (act.parent, act.pc) = (Snap::default(), Pc::JavaSend);
        }),
        Pc::JavaSend => turn.does("java: records, earliest absent", |world, act| {
            world.record_now(Record { table: act.table, id: act.n, path: act.path, keep: Keep::Absent });
            *act = Act::idle(act.who);
        }),
        pc => panic!("no turn of a Java job at {pc:?}"),
    }
}
