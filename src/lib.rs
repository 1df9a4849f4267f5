//! Lakeward tiers Apache Fluss tables into Apache Paimon, exactly once, without a JVM.
//!
//! ```text
//!              coordinator                                    lake (object store)
//!    heartbeat ┌────────┐ table, epoch                              ▲ data files      ▲ manifests, snapshot N+1
//!   ┌──────────│ source │──────────┐                               │                 │ (create if absent)
//!   │          └────────┘          ▼                               │                 │
//! report ◄── commit ◄── written ◄── write ◄── batches ◄── read ◄── splits ◄── plan ◄─┘ base = last Fluss-made snapshot
//!   ▲          │ prepare offsets, record snapshot
//!   └──────────┘
//! ```
//!
//! The [`daemon`] asks the cluster's queue for a table and keeps its lease with heartbeats, on a task of their own. A
//! [`round`] is one pass over that table, and all or nothing. It recovers first: [`commit`] compares the lake's newest
//! snapshots with what the coordinator knows, records what that has missed, and so finds the base, the offsets up to which
//! rows are in the lake. [`plan`] asks for partitions and log ends and cuts the rest into splits, an offset range per bucket,
//! each with the bucket layout of its own partition. [`read`] fetches and decodes them within a memory budget, [`mapping`]
//! gives the rows the lake's columns, [`mod@write`] buffers them per bucket and encodes Parquet files late. [`commit`] then publishes one
//! snapshot by create-if-absent, if nobody from Fluss has committed since the base, and records it in Fluss. Whatever dies on
//! the way, the next round finds what it needs in the lake: the snapshot itself carries offsets and round id.
//!
//! Cluster and lake are behind [`source`] and [`lake`]; their formats are pure modules, [`fluss`] and [`paimon`], joined by
//! [`mapping`]. [`node`] is a Fluss server in one process, [`client`] the client half of the protocol, [`catalog`] keeps the lake's tables
//! like Fluss's, [`audit`] looks at both from outside. Time, chance, memory, threads and fail points come from [`runtime`], so that a whole round runs in a simulation.
//!
//! Read the modules in the order below: it is the order of the flow (docs/architecture.md 2 and 3).

pub mod error;
pub mod model;
pub mod runtime;
pub mod telemetry;
pub mod storage;
pub mod paimon;
pub mod fluss;
pub mod mapping;
pub mod lake;
pub mod source;
pub mod catalog;
pub mod plan;
pub mod read;
pub mod write;
pub mod commit;
pub mod round;
pub mod client;
pub mod audit;
pub mod node;
pub mod config;
pub mod daemon;
pub mod cli;
#[cfg(any(test, fuzzing))]
pub mod hostile;
