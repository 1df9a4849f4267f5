//! What a seed makes happen, and how a failing one is made smaller.

use std::fmt::{Display, Formatter, Result as FmtResult};
use std::str::FromStr;

use lakeward::runtime::Rng;

/// How much there is of each thing; the order is the one in which shrinking tries to do without it.
macro_rules! amounts {
    ($($(#[doc = $doc:literal])+ $name:ident),* $(,)?) => {
        /// How much of each thing. All 0 = one daemon and its rows.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub(crate) struct Plan { $($(#[doc = $doc])+ pub(crate) $name: u64,)* }

        impl Plan {
            fn amounts(&mut self) -> Vec<(&'static str, &mut u64)> {
                vec![$((stringify!($name), &mut self.$name)),*]
            }
        }
    };
}

amounts! {
    /// Rounds of a Java job that respects no lease.
    java,
    /// Rollbacks of the lake table.
    rollbacks,
    /// Times the table is dropped and made again.
    recreates,
    /// Partitions dropped.
    drops,
    /// Commits of a compactor that merges files.
    compactions,
    /// Commits of users.
    foreign,
    /// Runs of an expirer that keeps one snapshot.
    expiries,
    /// Coordinator restarts, every other one with its epoch back where it was, tiering epochs always at 0.
    restarts,
    /// Times a daemon's heartbeats go unheard for longer than its lease.
    deaf,
    /// Processes that die at some call, done or not.
    crashes,
    /// One publish in this many lands later than its caller waits for, or never.
    late_puts,
    /// One call to the lake in this many fails, before or after its work.
    lake_faults,
    /// The same for the coordinator; records may also come late, or be lost after an OK.
    coordinator_faults,
    /// One call in this many takes up to minutes.
    slow,
    /// One list in this many does not show what is younger than some seconds.
    stale_lists,
    /// ALTERs of the bucket count, each followed by a new partition (of a partitioned table).
    rescales,
    /// Columns added.
    columns,
    /// Backfills, one after the other.
    backfills,
    /// Daemons beyond the first.
    daemons,
    /// The table is partitioned.
    partitioned,
    /// The table has a bucket key.
    keyed,
    /// The table has a primary key: 1 = change log with the rows before updates, 2 = without, 3 and 4 = the same of servers without states.
    primary,
    /// Logs leave the servers.
    remote,
    /// Batches appended while everything runs.
    rows,
}

impl Plan {
    /// Each trouble is there in one seed of three; a few at once find more than all of them.
    pub(crate) fn of(seed: u64) -> Self {
        let rng = Rng::from_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let some = |max: u64| if rng.below(3) == 0 { 1 + rng.below(max) } else { 0 };
        let one_in = |least: u64, most: u64| if rng.below(3) == 0 { least + rng.below(most - least) } else { 0 };
        let rare = |max: u64| if rng.below(8) == 0 { 1 + rng.below(max) } else { 0 };
        Self {
            java: rare(4),
            rollbacks: rare(1),
            recreates: rare(2),
            drops: some(2),
            compactions: some(3),
            foreign: some(4),
            expiries: some(6),
            restarts: some(3),
            deaf: some(2),
            crashes: some(4),
            late_puts: one_in(2, 5),
            lake_faults: one_in(20, 120),
            coordinator_faults: one_in(5, 40),
            slow: one_in(10, 100),
            stale_lists: one_in(2, 10),
            rescales: some(3),
            columns: some(2),
            backfills: some(3),
            daemons: rng.below(3),
            partitioned: rng.below(2),
            keyed: rng.below(2),
            remote: u64::from(rng.below(4) == 0),
            rows: 4 + rng.below(12),
            primary: if rng.below(3) == 0 { 1 + rng.below(4) } else { 0 },
        }
    }

    /// What is smaller by one step, most promising first.
    pub(crate) fn smaller(self) -> Vec<Self> {
        let mut plans = vec![];
        for index in 0..self.clone().amounts().len() {
            let with = |amount: u64| {
                let mut plan = self;
                *plan.amounts()[index].1 = amount;
                plan
            };
            let now = *self.clone().amounts()[index].1;
            if now > 0 {
                plans.push(with(0));
            }
            // Rates are halved by being doubled.
            if now > 1 {
                plans.push(with(now / 2));
            }
        }
        plans
    }
}

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> FmtResult {
        let mut plan = *self;
        let text: Vec<String> =
            plan.amounts().iter().filter(|(_, amount)| **amount > 0).map(|(name, amount)| format!("{name}={amount}")).collect();
        f.write_str(&text.join(","))
    }
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut plan = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, amount) = part.split_once('=').ok_or_else(|| format!("`{part}` is not NAME=AMOUNT"))?;
            let mut amounts = plan.amounts();
            let found = amounts.iter_mut().find(|(known, _)| *known == name).ok_or_else(|| format!("no `{name}`"))?;
            *found.1 = amount.parse().map_err(|error| format!("`{amount}`: {error}"))?;
        }
        Ok(plan)
    }
}
