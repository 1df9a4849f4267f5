//! The twin: a cluster in memory, with faults.
