//! Breadth first through every interleaving of a world, so that the first trace that breaks a promise is a shortest one.

#![expect(clippy::disallowed_types, reason = "millions of hashed states; their order is never looked at")]

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};

use lakeward::commit::invariants::{self, Broken, PinFact};

use super::rules::Rules;
use super::step;
use super::world::{By, Cfg, Pc, ROWS, Who, World};

/// A hash that is its own key.
#[derive(Default)]
struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers");
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

type Keys = HashSet<u64, BuildHasherDefault<Same>>;
type Parents = HashMap<u64, u64, BuildHasherDefault<Same>>;

fn key(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// What an exploration found.
pub(super) struct Found {
    pub(super) states: usize,
    pub(super) depth: usize,
    /// Whether nothing was left to explore.
    pub(super) whole: bool,
    /// For each broken promise the length of a shortest trace to it, and the trace.
    pub(super) broken: BTreeMap<Broken, (usize, Vec<String>)>,
}

/// How far to go.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) states: usize,
    /// Ends with the first broken promise.
    pub(super) first: bool,
}

pub(super) fn explore(cfg: &Cfg, rules: Rules, bounds: Bounds) -> Found {
    let start = World::start(cfg);
    let mut parents = Parents::default();
    parents.insert(key(&start), 0);
    let (mut good, mut pinned) = (Keys::default(), Keys::default());
    let mut found = Found { states: 0, depth: 0, whole: true, broken: BTreeMap::new() };
    let mut level = vec![start];
    while !level.is_empty() && found.whole {
        let mut next = vec![];
        for world in &level {
            let id = key(world);
            let verdict = world.check(cfg, !bounds.first).and_then(|()| progress(world, cfg, rules, &mut good, &mut pinned));
            if let Err(broken) = verdict {
                found.broken.entry(broken).or_insert_with(|| (found.depth, trace(cfg, rules, &parents, id)));
                if bounds.first {
                    found.whole = false;
                    break;
                }
                continue;
            }
            for step in step::all(world, cfg, rules) {
                if let Entry::Vacant(entry) = parents.entry(key(&step.next)) {
                    entry.insert(id);
                    next.push(step.next);
                }
            }
            if parents.len() > bounds.states {
                found.whole = false;
                break;
            }
        }
        level = next;
        found.depth += 1;
    }
    found.states = parents.len();
    found
}

/// Without further faults the services reach the goal, whoever works first, or end held for a cause; then no pin is left behind.
fn progress(world: &World, cfg: &Cfg, rules: Rules, good: &mut Keys, pinned: &mut Keys) -> invariants::Verdict {
    for last in [false, true] {
        let mut path = vec![];
        let mut seen = Keys::default();
        let mut now = *world;
        loop {
            let id = key(&now) ^ u64::from(last);
            if good.contains(&id) {
                break;
            }
            now.check(cfg, false)?;
            let end = now.end();
            let helped = now.left.words > 0 || now.acts.iter().any(|act| act.who == Who::Operator);
            if end.held.is_some() && !helped {
                end.check()?;
                break;
            }
            if !seen.insert(id) {
                return Err(end.check().err().unwrap_or(Broken::Circle));
            }
            path.push(id);
            if is_quiet(&now) && end.held.is_none() && end.check().is_ok() {
                if !last && cfg.java == 0 && pinned.insert(id) {
                    pins(&now, cfg, rules)?;
                }
                break;
            }
            match step::alone(&now, cfg, rules, last) {
                Some(next) => now = next,
                None => {
                    end.check()?;
                    break;
                }
            }
        }
        good.extend(path);
    }
    Ok(())
}

fn is_quiet(world: &World) -> bool {
    let idle = world.acts.iter().all(|act| act.who == Who::Java || act.pc == Pc::Idle);
    idle && world.puts.is_empty() && world.records.is_empty()
}

/// One more round: all pins below its floor go.
fn pins(world: &World, cfg: &Cfg, rules: Rules) -> invariants::Verdict {
    if world.source[0] >= ROWS || world.troubles != invariants::Troubles::default() {
        return Ok(());
    }
    let mut now = *world;
    now.source[0] += 1;
    now.canon();
    for _ in 0..200 {
        if is_quiet(&now) && now.end().check().is_ok() {
            break;
        }
        match step::alone(&now, cfg, rules, false) {
            Some(next) => now = next,
            None => break,
        }
    }
    let floor = now.pins.iter().map(|pin| i64::from(pin.next) - 1).max().unwrap_or(0);
    invariants::no_pin_left(now.pins.iter().map(|pin| PinFact { next_snapshot: i64::from(pin.next), over: true }), floor)
}

fn trace(cfg: &Cfg, rules: Rules, parents: &Parents, end: u64) -> Vec<String> {
    let mut chain = vec![end];
    while let Some(parent) = chain.last().and_then(|id| parents.get(id)).filter(|id| **id != 0) {
        chain.push(*parent);
    }
    let mut world = World::start(cfg);
    let mut lines = vec![format!("{:<48} | {}", "start", shown(&world, cfg))];
    for id in chain.iter().rev().skip(1) {
        let steps = step::all(&world, cfg, rules);
        let step = steps.into_iter().find(|step| key(&step.next) == *id).expect("a step of the trace");
        let who = match step.who.map(|index| world.acts[index]) {
            None => "around".to_owned(),
            Some(act) => format!("{:?} r{} b{}", act.who, act.round, act.base),
        };
        world = step.next;
        lines.push(format!("{:<48} | {}", format!("{who}: {}", step.label), shown(&world, cfg)));
    }
    lines.push(format!("then: {:?}", world.acts.iter().map(|act| (act.pc, act.held)).collect::<Vec<_>>()));
    lines
}

fn shown(world: &World, cfg: &Cfg) -> String {
    let lake: Vec<String> = world
        .lake
        .iter()
        .map(|snap| match snap.by {
            By::User => format!("{}f", snap.id),
            by => format!("{}{}{:?}", snap.id, if by == By::Ours { "L" } else { "J" }, &snap.ends[..cfg.buckets]),
        })
        .collect();
    let known: Vec<u8> = world.ledger[usize::from(world.table)].iter().map(|entry| entry.0).collect();
    let pins: Vec<u8> = world.pins.iter().map(|pin| pin.next).collect();
    format!("rows {:?} lake {} K {known:?} pins {pins:?}", &world.source[..cfg.buckets], lake.join(" "))
}
