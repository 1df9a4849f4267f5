//! The commit protocol under every trouble that docs/commit.md names, on one thread, in simulated time, by seed.
//!
//! `world` is the cluster, the lake and their surroundings; `service` is a Lakeward whose rounds are as thin as can be (a
//! data file holds bucket and offsets as text), so that thousands of schedules run in seconds; `audit` counts each source row;
//! `rounds` does the same with whole rounds and real files, `backfill` with backfills beside a daemon.
//! `word` lets an operator heal what was rolled back while rounds go on.
//! `seeds` makes everything happen at once by seed, with daemons and real files; `mutants` switches the protocol's rules off one by one.
//! Seeds are printed before they run: `LAKEWARD_SIM_SEED=N cargo test --test it sim::…` repeats one, `LAKEWARD_SIM_SEEDS=N` runs many.

mod audit;
mod backfill;
mod chaos;
mod daemon;
mod mutants;
mod rivals;
mod rounds;
mod schedules;
mod seeds;
mod service;
mod traces;
mod word;
mod world;
