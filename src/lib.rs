//! Lakeward tiers Apache Fluss tables into Apache Paimon, exactly once, without a JVM.
//!
//! Read the modules in the order below: it is the order of the flow (docs/architecture.md 2 and 3).

pub mod error;
pub mod model;
pub mod paimon;
pub mod runtime;
pub mod source;
pub mod storage;
