//! What can happen next in a state, and how an actor's turn is written down.

use super::around;
use super::java;
use super::ours;
use super::rules::Rules;
use super::world::{Act, Budget, Cfg, Pc, Who, World};

/// One step and the state after it.
pub(super) struct Step {
    pub(super) next: World,
    pub(super) label: &'static str,
    /// Who does it; `None` = the surroundings.
    pub(super) who: Option<usize>,
    /// Whether it goes well: part of a continuation without faults.
    pub(super) well: bool,
}

/// Everything that can happen.
pub(super) fn all(world: &World, cfg: &Cfg, rules: Rules) -> Vec<Step> {
    let mut out = Vec::with_capacity(16);
    for index in 0..world.acts.len() {
        of_actor(world, cfg, rules, index, false, &mut out);
    }
    around::steps(world, cfg, &mut out);
    for step in &mut out {
        step.next.canon();
    }
    out
}

/// What the services do when nothing fails any more: what is in flight dies, then one works at a time, the first or the `last` one.
/// An operator who can help does so.
pub(super) fn alone(world: &World, cfg: &Cfg, rules: Rules, last: bool) -> Option<World> {
    let mut next = *world;
    if !next.puts.is_empty() || !next.records.is_empty() || next.expiring > 0 {
        next.puts.retain(|_| false);
        next.records.retain(|_| false);
        next.expiring = 0;
        next.canon();
        return Some(next);
    }
    let free = |index: &usize| world.acts[*index].held.is_none() && world.acts[*index].who != Who::Java;
    let busy = |index: &usize| world.acts[*index].pc != Pc::Idle;
    let mut order: Vec<usize> = (0..world.acts.len()).filter(free).collect();
    if last {
        order.reverse();
    }
    let operator = |index: &&usize| world.acts[**index].who == Who::Operator;
    let held = world.acts.iter().any(|act| act.held.is_some());
    let pick = order.iter().find(operator).or_else(|| order.iter().find(|index| busy(index)));
    let mut out = Vec::with_capacity(4);
    match pick {
        Some(index) => of_actor(world, cfg, rules, *index, true, &mut out),
        None if held => around::operator(world, &mut out),
        None => of_actor(world, cfg, rules, *order.first()?, true, &mut out),
    }
    out.into_iter().find(|step| step.well).map(|mut step| {
        step.next.canon();
        step.next
    })
}

fn of_actor(world: &World, cfg: &Cfg, rules: Rules, index: usize, alone: bool, out: &mut Vec<Step>) {
    let act = world.acts[index];
    if act.held.is_some() {
        return;
    }
    let taken = cfg.leases && !alone && world.acts.iter().enumerate().any(|(other, act)| other != index && act.holds);
    if act.pc == Pc::Idle && taken {
        return;
    }
    let mut turn = Turn { world, cfg, rules, index, act, out };
    match act.who {
        Who::Java => java::turn(&mut turn),
        Who::Service | Who::Operator => ours::turn(&mut turn),
    }
}

/// One actor's turn.
pub(super) struct Turn<'a> {
    pub(super) world: &'a World,
    pub(super) cfg: &'a Cfg,
    pub(super) rules: Rules,
    pub(super) index: usize,
    pub(super) act: Act,
    out: &'a mut Vec<Step>,
}

impl Turn<'_> {
    /// It goes well.
    pub(super) fn does(&mut self, label: &'static str, act: impl FnOnce(&mut World, &mut Act)) {
        let next = self.after(act);
        self.out.push(Step { next, label, who: Some(self.index), well: true });
    }

    /// It goes in a way that is no fault, but not the one of the continuation without faults.
    pub(super) fn may(&mut self, label: &'static str, act: impl FnOnce(&mut World, &mut Act)) {
        let next = self.after(act);
        self.out.push(Step { next, label, who: Some(self.index), well: false });
    }

    /// It goes wrong, if the budget has that.
    pub(super) fn fails(
        &mut self,
        label: &'static str,
        of: impl Fn(&mut Budget) -> &mut u8,
        act: impl FnOnce(&mut World, &mut Act),
    ) {
        let mut left = self.world.left;
        let count = of(&mut left);
        if *count == 0 {
            return;
        }
        *count -= 1;
        let mut next = self.after(act);
        next.left = Budget { words: next.left.words, ..left };
        self.out.push(Step { next, label, who: Some(self.index), well: false });
    }

    fn after(&self, act: impl FnOnce(&mut World, &mut Act)) -> World {
        let (mut world, mut now) = (*self.world, self.act);
        act(&mut world, &mut now);
        if now.held.is_some() {
            now = Act { held: now.held, ..Act::idle(now.who) };
        }
        if self.cfg.leases && self.act.pc == Pc::Idle && now.pc != Pc::Idle {
            (now.holds, now.age) = (true, 0);
        }
        // A put of this turn has marked the act in the world.
        now.published |= now.round != 0 && now.round == self.act.round && world.acts[self.index].published;
        world.acts[self.index] = now;
        if now.who == Who::Operator && now.pc == Pc::Idle {
            world.acts.remove(self.index);
        }
        world
    }
}
