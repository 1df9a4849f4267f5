//! A bucket of a primary-key table as a server makes it of puts (S6.3): a model of its own, for simulation and kill matrix.
//!
//! Each version of a key has a number of its own, in column `number`: a state is a set of numbers.

use std::collections::{BTreeMap, BTreeSet};

use lakeward::model::{DataType, Field, TypeKind};

pub(crate) const INSERT: i8 = 0;
pub(crate) const UPDATE_BEFORE: i8 = 1;
pub(crate) const UPDATE_AFTER: i8 = 2;
pub(crate) const DELETE: i8 = 3;

/// A change, or a row in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) sequence: i64,
    pub(crate) kind: i8,
    pub(crate) key: i64,
    pub(crate) number: i64,
}

/// A bucket as its puts have made it.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    state: BTreeMap<i64, i64>,
    /// The numbers of the state at each end that the log has had.
    history: BTreeMap<i64, BTreeSet<i64>>,
    /// By log offset.
    changes: BTreeMap<i64, Row>,
    numbers: BTreeSet<i64>,
    end: i64,
}

impl Keys {
    /// Applies a put of (key, number), `None` = delete; returns where the log ends now.
    pub(crate) fn put(&mut self, wal: bool, puts: &[(i64, Option<i64>)]) -> i64 {
        let base = self.end;
        for (key, number) in puts {
            let old = match number {
                Some(number) => self.state.insert(*key, *number),
                None => self.state.remove(key),
            };
            let made = match (old, *number) {
                (_, Some(new)) if wal => vec![(UPDATE_AFTER, new)],
                (Some(old), Some(new)) => vec![(UPDATE_BEFORE, old), (UPDATE_AFTER, new)],
                (None, Some(new)) => vec![(INSERT, new)],
                (Some(old), None) => vec![(DELETE, old)],
                (None, None) => vec![],
            };
            for (kind, number) in made {
                self.changes.insert(self.end, Row { sequence: 0, kind, key: *key, number });
                self.end += 1;
            }
            self.numbers.extend(number);
        }
        // A put that changes nothing takes an offset too.
        self.end = self.end.max(base + 1);
        self.history.insert(self.end, self.state.values().copied().collect());
        self.end
    }

    /// Where its log ends.
    pub(crate) const fn end(&self) -> i64 {
        self.end
    }

    /// Every number that it ever had.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = i64> {
        self.numbers.iter().copied()
    }

    /// The numbers of the state at an end that the log has had.
    pub(crate) fn state_at(&self, end: i64) -> BTreeSet<i64> {
        self.history.range(..=end).next_back().map(|(_, state)| state.clone()).unwrap_or_default()
    }

    /// The changes in `from..to`.
    pub(crate) fn changes(&self, from: i64, to: i64) -> Vec<Row> {
        self.changes.range(from..to).map(|(_, row)| *row).collect()
    }
}

/// `id`, which is the key (of a partitioned table with `day`), and the number of the version.
pub(crate) fn fields() -> Vec<Field> {
    let field = |id, name: &str, data_type| Field { id, name: name.into(), data_type, comment: None };
    vec![
        field(0, "id", DataType::required(TypeKind::BigInt)),
        field(1, "day", DataType::required(TypeKind::String)),
        field(2, "number", DataType::nullable(TypeKind::BigInt)),
    ]
}
