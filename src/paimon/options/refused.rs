//! What a writer that does not follow it would spoil, or that readers would miss: refused by name before a file is written.
//!
//! The one place that decides it; whoever opens a table for writing comes by, through [`super::TableOptions::parse`].

use super::{IMMUTABLE, Options};
use crate::error::{Error, Result};

/// The one value that we follow.
type Only = (&'static str, &'static str, &'static str);

const NO_ROW_IDS: &str = "rows would need ids that go on through all commits";
const INVISIBLE: &str = "readers skip new files of such a table until somebody compacts it";

/// Name, value, what is wrong with any other.
const ONLY: &[Only] = &[
    ("type", "table", "tiering writes plain tables"),
    ("branch", "main", "tiering writes the main branch"),
    ("file.format", "parquet", "this build writes Parquet"),
    ("manifest.format", "avro", "this build writes Avro manifests"),
    ("bucket-function.type", "default", "rows lie in the buckets that Fluss gave them, by the default function"),
    ("row-tracking.enabled", "false", NO_ROW_IDS),
    ("data-evolution.enabled", "false", NO_ROW_IDS),
    ("deletion-vectors.enabled", "false", INVISIBLE),
    ("sequence.snapshot-ordering", "false", "sequence numbers would have to be those of snapshots"),
    ("write.sequence-number-init-mode", "scan", "sequence numbers go on from those of the bucket's files"),
    ("consumer.changelog-only", "false", "pins would not keep snapshots"),
    (
        "metadata.iceberg.storage",
        "disabled",
        "Iceberg metadata is written by Paimon's own committers: Iceberg readers would miss the rows",
    ),
];

/// The same for options that mean something on primary-key tables only.
const ONLY_WITH_KEY: &[Only] = &[
    ("merge-engine", "deduplicate", "a lake table holds the rows as Fluss has them, the newest one of each key"),
    ("changelog-file.format", "parquet", "this build writes Parquet"),
    ("sequence.field.sort-order", "ascending", "Java's own writers sort ascending whatever it says"),
    ("pk-clustering-override", "false", "files would not be sorted by key"),
    ("chain-table.enabled", "false", "a chain table is of several branches"),
    ("primary-key.nullable", "false", "keys of Fluss are NOT NULL"),
];

/// Refused whenever they are set.
const NEVER: &[(&str, &str)] = &[
    ("data-file.path-directory", "files would lie elsewhere"),
    ("data-file.external-paths", "files would lie elsewhere"),
    ("file.format.per.level", "this build writes Parquet"),
    ("rowkind.field", "what a row does is told by Fluss's change log, not by a column"),
    ("commit.callbacks", "they are Java classes"),
];

impl Options<'_> {
    /// # Errors
    /// `Unsupported` names option and value, and its hint what to do.
    pub(super) fn refuse_unsupported(&self) -> Result<()> {
        let has_key = !self.0.primary_keys.is_empty();
        let with_key = if has_key { ONLY_WITH_KEY } else { &[] };
        for (key, only, why) in ONLY.iter().chain(with_key) {
            if let Some(text) = self.text(key).filter(|text| !text.eq_ignore_ascii_case(only)) {
                return Err(refused(
                    key,
                    text,
                    if *key == "merge-engine" && text.eq_ignore_ascii_case("first-row") { INVISIBLE } else { why },
                ));
            }
        }
        if let Some((key, text, why)) = NEVER.iter().find_map(|(key, why)| Some((key, self.text(key)?, why))) {
            return Err(refused(key, text, why));
        }
        if has_key && let Some(missing) = self.0.partition_keys.iter().find(|name| !self.0.primary_keys.contains(name)) {
            let what = format!("primary key `{}` without partition column `{missing}`", self.0.primary_keys.join(","));
            return Err(Error::unsupported(format!("{what}: a key could move between partitions"))
                .with_hint("make the lake table anew with the partition columns in its key, as Fluss's coordinator does"));
        }
        Ok(())
    }
}

/// The refusal of an option, with what to do about it.
pub(super) fn refused(key: &str, value: &str, why: &str) -> Error {
    let leave = "leave the table to the Flink job (`tables.exclude`)";
    let hint = if IMMUTABLE.contains(&key) || matches!(key, "bucket" | "file.format") {
        format!("{leave}, or make it anew without `{key}`: it stays as it is once there are rows")
    } else {
        format!("reset it (`ALTER TABLE … RESET ('paimon.{key}')` in Fluss, `'{key}'` in Paimon), or {leave}")
    };
    Error::unsupported(format!("lake table option `{key}` = `{value}`: {why}")).with_hint(hint)
}
