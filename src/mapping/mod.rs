//! Fluss ⇄ Paimon, pure: types, options, partition values, system columns, names (F6).
//!
//! Owns what a lake table has to look like for a Fluss table, whether an existing one does, and how rows get from the one's columns to
//! the other's. Does not own the formats (`fluss`, `paimon`) and does no I/O. Callers: plan, write (through round), catalog, node.

mod compatible;
mod difference;
mod partition;
mod repair;
mod rows;
mod schema;
#[cfg(test)]
mod tests;

pub use compatible::{BucketDrift, Fit, LakeForm, bucket_drift, compatible, fit, not_taken_away};
pub use difference::{Aspect, Difference, Mend, differences};
pub use partition::partition_row;
pub use repair::other_count_hint;
pub use rows::LakeRows;
pub use schema::{SYSTEM_COLUMNS, check_columns, check_options, is_lake_enabled, lake_path, lake_schema};
