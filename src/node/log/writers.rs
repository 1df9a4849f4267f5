//! What each idempotent producer last appended to one bucket. Pure.
//!
//! Source: S4.3.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

/// Batches remembered per writer: as many as a client keeps in flight.
const REMEMBERED: usize = 5;

/// A batch that was appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Appended {
    /// Its sequence number.
    pub(super) sequence: i32,
    /// Offset of its first record.
    pub(super) base_offset: i64,
    /// Offset after its last record.
    pub(super) end_offset: i64,
    /// Commit timestamp, epoch milliseconds.
    pub(super) timestamp_ms: i64,
}

/// What to do with a batch that arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The next one.
    Append,
    /// One of the remembered ones: answer as then.
    Duplicate(Appended),
    /// Neither: error 31. Carries the last sequence known.
    OutOfOrder { last: Option<i32> },
}

/// Producer state of one bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Writers(BTreeMap<i64, VecDeque<Appended>>);

impl Writers {
    /// Judges `sequence` of `writer`; `writer` −1 asks for no check.
    pub(super) fn judge(&self, writer: i64, sequence: i32) -> Verdict {
        if writer < 0 {
            return Verdict::Append;
        }
        let Some(known) = self.0.get(&writer) else {
            return if sequence == 0 { Verdict::Append } else { Verdict::OutOfOrder { last: None } };
        };
        if let Some(original) = known.iter().find(|batch| batch.sequence == sequence) {
            return Verdict::Duplicate(*original);
        }
        let last = known.back().map(|batch| batch.sequence);
        // After the largest sequence a writer starts again from 0.
        let next = last.map_or(0, |last| last.checked_add(1).unwrap_or(0));
        if sequence == next { Verdict::Append } else { Verdict::OutOfOrder { last } }
    }

    /// Remembers a batch that was appended.
    pub(super) fn remember(&mut self, writer: i64, batch: Appended) {
        if writer < 0 {
            return;
        }
        let known = self.0.entry(writer).or_default();
        known.push_back(batch);
        if known.len() > REMEMBERED {
            known.pop_front();
        }
    }

    /// Forgets writers whose last batch is older than `oldest_ms`.
    pub(super) fn expire(&mut self, oldest_ms: i64) {
        self.0.retain(|_, known| known.back().is_some_and(|batch| batch.timestamp_ms >= oldest_ms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(sequence: i32) -> Appended {
        let base_offset = i64::from(sequence) * 10;
        Appended { sequence, base_offset, end_offset: base_offset + 10, timestamp_ms: base_offset }
    }

    #[test]
    fn the_last_five_are_duplicates_and_anything_but_the_next_is_out_of_order() {
        let mut writers = Writers::default();
        assert_eq!(writers.judge(7, 5), Verdict::OutOfOrder { last: None });
        for sequence in 0..7 {
            assert_eq!(writers.judge(7, sequence), Verdict::Append);
            writers.remember(7, batch(sequence));
        }
        assert_eq!(writers.judge(7, 2), Verdict::Duplicate(batch(2)));
        assert_eq!(writers.judge(7, 1), Verdict::OutOfOrder { last: Some(6) });
        assert_eq!(writers.judge(7, 8), Verdict::OutOfOrder { last: Some(6) });
        assert_eq!(writers.judge(-1, -1), Verdict::Append);
    }

    #[test]
    fn sequences_wrap_to_zero_and_idle_writers_are_forgotten() {
        let mut writers = Writers::default();
        writers.remember(1, Appended { timestamp_ms: 50, ..batch(0) });
        writers.remember(1, Appended { sequence: i32::MAX, ..batch(0) });
        writers.remember(2, Appended { timestamp_ms: 90, ..batch(3) });
        assert_eq!(writers.judge(2, 4), Verdict::Append);
        writers.expire(60);
        assert_eq!(writers.judge(1, 1), Verdict::OutOfOrder { last: None }, "forgotten: its last batch is too old");
        let mut fresh = Writers::default();
        fresh.remember(1, Appended { sequence: i32::MAX, ..batch(9) });
        assert_eq!(fresh.judge(1, 0), Verdict::Append);
    }
}
