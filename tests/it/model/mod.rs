//! An explicit-state model of the commit protocol (docs/commit.md): every interleaving of small worlds, explored to the end.
//!
//! `world` is a state and its ghosts, `ours`, `recovery`, `java` and `around` say what can happen in it, `rules` can be switched
//! off one by one, `worlds` names what is explored, `explore` goes through it all. The promises are `commit::invariants`.
//!
//! `cargo test --release --test it -- --ignored model` explores every world (minutes, one core) and runs the mutation check.
//! `LAKEWARD_MODEL_WORLD='rollback' [LAKEWARD_MODEL_OFF=FLOOR,PIN] cargo test --release --test it -- --ignored model_of_one --nocapture`
//! explores one, with rules switched off, and prints the shortest trace to each broken promise.

mod around;
mod explore;
mod java;
mod list;
mod ours;
mod recovery;
mod rules;
mod step;
mod world;
mod worlds;

use explore::{Bounds, Found, explore};
use rules::{ALL, Rule, Rules};
use world::Cfg;
use worlds::{ECONOMY, LIMITS, NOTICED, WORLDS};

/// More states than any world has: a world that outgrows it is cut, and fails.
const STATES_MAX: usize = 4_000_000;
/// A debug build explores worlds of up to so many states in `cargo test`.
const STATES_QUICK: usize = 1_500;

#[expect(clippy::print_stdout, reason = "figures for docs/reliability.md")]
fn say(line: &str) {
    println!("{line}");
}

fn world(name: &str) -> &'static Cfg {
    let all = WORLDS.iter().chain(LIMITS.iter().map(|(world, _)| world));
    all.clone().find(|(found, _)| *found == name).map_or_else(|| panic!("no world `{name}`"), |(_, cfg)| cfg)
}

fn told(name: &str, found: &Found) -> String {
    let broken: Vec<String> = found.broken.iter().map(|(broken, (depth, _))| format!("{broken} [{depth}]")).collect();
    let whole = if found.whole { "" } else { ", cut" };
    format!("{name}: {} states, depth {}{whole} {}", found.states, found.depth, broken.join("; "))
}

#[test]
fn small_worlds_keep_every_promise() {
    let mut whole = 0;
    for (name, cfg) in WORLDS {
        let found = explore(cfg, Rules::all(), Bounds { states: STATES_QUICK, first: false });
        assert!(found.broken.is_empty(), "{}\n{:#?}", told(name, &found), found.broken);
        whole += usize::from(found.whole);
    }
    assert!(whole >= 4, "{whole} worlds to their end");
}

#[test]
fn rules_whose_absence_shows_soon_are_missed() {
    let soon = NOTICED.iter().filter(|(_, _, length)| *length <= 12);
    let mut missed = 0;
    for (rule, name, length) in soon {
        let found = explore(world(name), Rules::all().without(*rule), Bounds { states: STATES_QUICK, first: true });
        let depth = found.broken.values().map(|(depth, _)| *depth).min();
        assert_eq!(depth, Some(*length), "without {}: {}", rule.name, told(name, &found));
        missed += 1;
    }
    assert!(missed >= 4);
}

#[test]
fn every_rule_is_noticed_or_economy() {
    for rule in ALL {
        let noticed = NOTICED.iter().filter(|(noticed, ..)| noticed == rule).count();
        let economy = ECONOMY.iter().filter(|(economy, ..)| economy == rule).count();
        assert_eq!(noticed + economy, 1, "{}", rule.name);
    }
}

#[test]
#[ignore = "minutes in a release build: cargo test --release --test it -- --ignored model"]
fn model_explores_every_world_to_its_end() {
    let mut states = 0;
    for (name, cfg) in WORLDS {
        let found = explore(cfg, Rules::all(), Bounds { states: STATES_MAX, first: false });
        say(&told(name, &found));
        assert!(found.whole && found.broken.is_empty(), "{}\n{:#?}", told(name, &found), found.broken);
        states += found.states;
    }
    say(&format!("{} worlds, {states} states", WORLDS.len()));
    for ((name, cfg), breaks) in LIMITS {
        let found = explore(cfg, Rules::all(), Bounds { states: STATES_MAX, first: true });
        say(&told(name, &found));
        assert!(found.broken.keys().eq([breaks]), "{}", told(name, &found));
    }
}

#[test]
#[ignore = "minutes in a release build: cargo test --release --test it -- --ignored model"]
fn model_notices_each_rule_that_is_switched_off() {
    let mut wrong = vec![];
    for (rule, name, length) in NOTICED {
        let found = explore(world(name), Rules::all().without(*rule), Bounds { states: STATES_MAX, first: true });
        let line = format!("{} ({}): {}", rule.name, rule.off, told(name, &found));
        say(&line);
        if found.broken.values().all(|(depth, _)| depth != length) {
            wrong.push(line);
        }
    }
    for (rule, names, why) in ECONOMY {
        for name in *names {
            let found = explore(world(name), Rules::all().without(*rule), Bounds { states: STATES_MAX, first: true });
            let line = format!("{} ({why}): {}", rule.name, told(name, &found));
            say(&line);
            if !found.whole || !found.broken.is_empty() {
                wrong.push(line);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
#[ignore = "LAKEWARD_MODEL_WORLD names a world"]
fn model_of_one_world_and_its_traces() {
    let Ok(wanted) = std::env::var("LAKEWARD_MODEL_WORLD") else { return };
    let rule = |name: &str| -> Rule { *ALL.iter().find(|rule| rule.name == name).expect("a rule") };
    let off = std::env::var("LAKEWARD_MODEL_OFF").unwrap_or_default();
    let rules = off.split(',').filter(|name| !name.is_empty()).fold(Rules::all(), |rules, name| rules.without(rule(name)));
    let first = std::env::var("LAKEWARD_MODEL_FIRST").is_ok();
    for name in wanted.split(';') {
        let found = explore(world(name), rules, Bounds { states: STATES_MAX, first });
        say(&told(name, &found));
        for (broken, (_, trace)) in &found.broken {
            say(&format!("  {broken}\n    {}", trace.join("\n    ")));
        }
    }
}
