//! The real binary against a real node process, killed by SIGKILL at every fail point, with an auditor that compares source and lake;
//! and whole rounds over a store that fails in every way a store can.
//!
//! `cargo test --test it -- --ignored kill_matrix` runs all of it: `LAKEWARD_KILL_WORLDS` nodes side by side; of the matrix on S3 only every
//! `LAKEWARD_KILL_EVERY`-th hit of each point, if that is given.

mod audit;
mod bucket;
mod cluster;
mod keyed;
mod places;
mod service;
mod store;
mod world;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lakeward::runtime::POINTS;

/// Kills by fail point and what was written or deleted there.
#[derive(Debug, Default)]
struct Kills(BTreeMap<String, BTreeMap<String, u32>>);

impl Kills {
    fn add(&mut self, point: &str, place: &str) {
        *self.0.entry(point.to_owned()).or_default().entry(places::kind(place).to_owned()).or_default() += 1;
    }

    fn merge(&mut self, others: Self) {
        for (point, places) in others.0 {
            for (place, count) in places {
                *self.0.entry(point.clone()).or_default().entry(place).or_default() += count;
            }
        }
    }

    /// No silent gaps: somebody died at each of these points.
    fn assert_reached(&self, points: &[&str]) {
        let missed: Vec<_> = points.iter().filter(|point| !self.0.contains_key(**point)).collect();
        assert!(missed.is_empty(), "nobody ever died at {missed:?}");
    }

    #[expect(clippy::print_stdout, reason = "the figures of docs/reliability.md")]
    fn print(&self, title: &str) {
        let total: u32 = self.0.values().flat_map(BTreeMap::values).sum();
        println!("{title}: {total} kills");
        for (point, places) in &self.0 {
            let places: Vec<String> = places.iter().map(|(place, count)| format!("{place} {count}")).collect();
            println!("  {point}: {}", places.join(", "));
        }
    }
}

/// What one kill test does: the fail points of processes that follow each other, each dying at its own. `backfill ` in front of a
/// fail point makes that process a backfill.
#[derive(Debug, Clone)]
struct Case {
    /// `LAKEWARD_FAIL` of each.
    fails: Vec<String>,
    /// Cases of a series differ in the hit; the first that nobody reaches ends the series.
    series: usize,
    hit: u32,
}

/// Cases that several worlds take from side by side.
#[derive(Debug, Clone, Default)]
struct Cases {
    queue: Arc<Mutex<VecDeque<Case>>>,
    /// By series: the lowest hit that was not reached.
    ends: Arc<Mutex<BTreeMap<usize, u32>>>,
    series: usize,
}

impl Cases {
    /// `fails` for each hit of the last one, until it is not reached. `HIT` stands for the hit.
    fn series(&mut self, fails: &[&str], hits_max: u32) {
        for hit in 1..=hits_max {
            let fails = fails.iter().map(|fail| fail.replace("HIT", &hit.to_string())).collect();
            self.queue.lock().unwrap().push_back(Case { fails, series: self.series, hit });
        }
        self.series += 1;
    }

    /// These alone.
    fn once(&mut self, fails: &[&str]) {
        self.series(fails, 1);
    }

    /// Leaves only every `step`-th hit of each series.
    fn thin(&mut self, step: u32) {
        self.queue.lock().unwrap().retain(|case| (case.hit - 1).is_multiple_of(step));
    }

    fn take(&self) -> Option<Case> {
        loop {
            let case = self.queue.lock().unwrap().pop_front()?;
            if self.ends.lock().unwrap().get(&case.series).is_none_or(|end| case.hit < *end) {
                return Some(case);
            }
        }
    }

    fn not_reached(&self, case: &Case) {
        let mut ends = self.ends.lock().unwrap();
        let end = ends.entry(case.series).or_insert(case.hit);
        *end = case.hit.min(*end);
    }
}

/// Runs `work` on some threads side by side, each with a node of its own most of the time.
fn side_by_side<T: Send, F: Future<Output = T>>(work: impl Fn() -> F + Sync) -> Vec<T> {
    let worlds = std::env::var("LAKEWARD_KILL_WORLDS").map_or(4, |text| text.parse().unwrap());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..worlds).map(|_| scope.spawn(|| block_on(work()))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn is_of_the_node(point: &str) -> bool {
    ["log.", "registry.", "node."].iter().any(|part| point.starts_with(part))
}

/// Without those of states, where `rounds/states.rs` has nodes die.
fn points(wanted: impl Fn(&str) -> bool) -> Vec<&'static str> {
    POINTS.iter().copied().filter(|point| !point.starts_with("kv.") && wanted(point)).collect()
}
