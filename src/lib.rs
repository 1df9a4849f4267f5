//! Lakeward tiers Apache Fluss tables into Apache Paimon, exactly once, without a JVM.
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
pub mod node;
pub mod daemon;
pub mod cli;
