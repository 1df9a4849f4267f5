//! ScanKv: sessions that walk a state as it was when they were opened (F5.7, S6.8).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::KvOptions;
use super::bucket::Snapshot;
use crate::error::Result;
use crate::fluss::code::Code;
use crate::fluss::record::ValueBatchBuilder;
use crate::model::{PartitionId, TableBucket, TableId};
use crate::runtime::{Clock, Moment};

/// Most bytes of an answer, whatever is asked for (F8.1).
const BATCH_BYTES_MAX: usize = 10 << 20;
/// Sessions that ended by age and are remembered for that.
const EXPIRED_KEPT: usize = 1000;

/// The sessions of a node.
#[derive(Debug)]
pub struct Scanners {
    per_bucket_max: usize,
    all_max: usize,
    idle_max: std::time::Duration,
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sessions: BTreeMap<Bytes, Entry>,
    expired: VecDeque<Bytes>,
}

#[derive(Debug)]
struct Entry {
    bucket: TableBucket,
    used: Moment,
    sequence: i32,
    /// Absent while an answer is made.
    session: Option<Session>,
}

#[derive(Debug)]
struct Session {
    snapshot: Arc<Snapshot>,
    /// The last key that was answered.
    after: Option<Vec<u8>>,
    /// Rows that may still come.
    left: Option<u64>,
}

/// What a session answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The session; absent when nothing was there to scan.
    pub scanner: Option<Bytes>,
    /// The values, if there are any.
    pub records: Option<Bytes>,
    /// Whether the session goes on.
    pub more: bool,
}

/// A session that was asked for its next answer; it must be given back by [`Next::answer`] (blocking).
#[derive(Debug)]
pub struct Next {
    scanner: Bytes,
    session: Session,
    bytes_max: usize,
}

impl Scanners {
    /// None yet.
    #[must_use]
    pub fn new(options: &KvOptions, clock: Clock) -> Self {
        let (per_bucket_max, all_max) = (options.scanners_per_bucket_max, options.scanners_max);
        Self { per_bucket_max, all_max, idle_max: options.scanner_idle_max, clock, state: Mutex::default() }
    }

    /// Opens the session `scanner` on `snapshot`, for at most `limit` rows.
    ///
    /// # Errors
    /// 69 when there are too many.
    pub fn open(&self, scanner: Bytes, snapshot: Arc<Snapshot>, limit: Option<u64>, bytes_max: usize) -> Result<Next> {
        self.expire();
        let (bucket, mut state) = (snapshot.bucket(), self.lock());
        let of_bucket = state.sessions.values().filter(|entry| entry.bucket == bucket).count();
        if of_bucket >= self.per_bucket_max || state.sessions.len() >= self.all_max {
            let text = format!("{of_bucket} scans of {bucket} and {} in all are open", state.sessions.len());
            return Err(Code::TOO_MANY_SCANNERS.answer(text));
        }
        state.sessions.insert(scanner.clone(), Entry { bucket, used: self.clock.moment(), sequence: 0, session: None });
        Ok(Next { scanner, session: Session { snapshot, after: None, left: limit }, bytes_max })
    }

    /// Asks the session `scanner` to go on.
    ///
    /// # Errors
    /// 66 when it ended by age, 67 when there is none, 68 when it is asked already or `sequence` is not the next.
    pub fn next(&self, scanner: Bytes, sequence: i32, bytes_max: usize) -> Result<Next> {
        self.expire();
        let mut state = self.lock();
        if state.expired.contains(&scanner) {
            return Err(Code::SCANNER_EXPIRED.answer("the scan was idle for too long"));
        }
        let Some(entry) = state.sessions.get_mut(&scanner) else {
            return Err(Code::UNKNOWN_SCANNER_ID.answer("there is no such scan"));
        };
        let expected = entry.sequence.wrapping_add(1);
        if sequence != expected {
            return Err(Code::INVALID_SCAN_REQUEST.answer(format!("call `{sequence}` of a scan, the next one is `{expected}`")));
        }
        let Some(session) = entry.session.take() else {
            return Err(Code::INVALID_SCAN_REQUEST.answer("another call of the same scan is not answered yet"));
        };
        entry.sequence = sequence;
        entry.used = self.clock.moment();
        Ok(Next { scanner, session, bytes_max })
    }

    /// Ends the session `scanner`, if there is one.
    pub fn close(&self, scanner: &Bytes) {
        self.lock().sessions.remove(scanner);
    }

    /// Ends the sessions of a table, or of one partition of it.
    pub fn forget(&self, table: TableId, partition: Option<PartitionId>) {
        let gone = |bucket: TableBucket| bucket.table == table && (partition.is_none() || bucket.partition == partition);
        self.lock().sessions.retain(|_, entry| !gone(entry.bucket));
    }

    /// Ends sessions that nobody asked for too long.
    pub fn expire(&self) {
        let mut state = self.lock();
        let State { sessions, expired } = &mut *state;
        let old = |entry: &Entry| entry.used.elapsed() >= self.idle_max;
        expired.extend(sessions.extract_if(.., |_, entry| old(entry)).map(|(scanner, _)| scanner));
        let too_many = expired.len().saturating_sub(EXPIRED_KEPT);
        expired.drain(..too_many);
    }

    fn give_back(&self, scanner: &Bytes, session: Session) {
        if let Some(entry) = self.lock().sessions.get_mut(scanner) {
            entry.session = Some(session);
            entry.used = self.clock.moment();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Next {
    /// Reads on (blocking): as many values as fit, at least one. The session ends with its last value, or with an error.
    ///
    /// # Errors
    /// Code 11 when the state can't be read.
    pub fn answer(self, scanners: &Scanners) -> Result<Answer> {
        let Self { scanner, mut session, bytes_max } = self;
        let read = session.read(bytes_max.min(BATCH_BYTES_MAX));
        match read {
            Ok((values, true)) => {
                scanners.give_back(&scanner, session);
                Ok(Answer { scanner: Some(scanner), records: Some(values.finish()), more: true })
            }
            Ok((values, false)) => {
                scanners.close(&scanner);
                let any = values.count() > 0;
                Ok(Answer { scanner: any.then_some(scanner), records: any.then(|| values.finish()), more: false })
            }
            Err(error) => {
                scanners.close(&scanner);
                Err(error)
            }
        }
    }
}

impl Session {
    fn read(&mut self, bytes_max: usize) -> Result<(ValueBatchBuilder, bool)> {
        let mut values = ValueBatchBuilder::default();
        let (mut last, mut left, mut more) = (None, self.left, false);
        let from = self.after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        self.snapshot.walk(from, |key, value| {
            if left == Some(0) {
                return Ok(false);
            }
            if values.count() > 0 && values.bytes() + 4 + value.len() > bytes_max {
                more = true;
                return Ok(false);
            }
            values.push(value)?;
            left = left.map(|left| left - 1);
            last = Some(key.to_vec());
            Ok(true)
        })?;
        self.left = left;
        self.after = last.or_else(|| self.after.take());
        Ok((values, more))
    }
}
