//! Text records by key in redb; changes in checked transactions.

use std::collections::BTreeMap;
use std::path::Path;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use crate::error::{Error, Result};
use crate::model::CoordinatorEpoch;
use crate::runtime::FailPoints;

const RECORDS: TableDefinition<'static, &str, &str> = TableDefinition::new("registry");
const EPOCH: &str = "/coordinators/epoch";

/// Judges what is stored at a key.
type Judge = Box<dyn FnOnce(Option<&str>) -> bool + Send>;

/// One step of a transaction; all steps happen or none.
pub(super) enum Change {
    /// Go on only if the record at the key is as expected.
    Check(String, Judge),
    /// Write a record.
    Put(String, String),
    /// Delete a record; one that is absent is fine.
    Delete(String),
}

/// The file.
#[derive(Debug)]
pub(super) struct Store {
    database: Database,
    fail: FailPoints,
}

fn fault(act: &str, source: impl Into<redb::Error>) -> Error {
    let source: redb::Error = source.into();
    Error::unavailable(format!("{act} the registry")).with_source(source)
}

impl Store {
    /// Opens the file and takes the next coordinator epoch: whoever held an earlier one can't write any more.
    pub(super) fn open(path: &Path, fail: FailPoints) -> Result<(Self, CoordinatorEpoch)> {
        let database = Database::create(path).map_err(|source| {
            fault("open", source)
                .context(format!("registry file `{}`", path.display()))
                .with_hint("is another node running on this folder?")
        })?;
        let store = Self { database, fail };
        let before: Option<i32> = store.get(EPOCH)?.and_then(|text| text.parse().ok());
        let next = before.map_or(0, |epoch| epoch + 1);
        let write = store.database.begin_write().map_err(|source| fault("write", source))?;
        {
            let mut table = write.open_table(RECORDS).map_err(|source| fault("write", source))?;
            table.insert(EPOCH, next.to_string().as_str()).map_err(|source| fault("write", source))?;
        }
        store.commit(write, EPOCH)?;
        Ok((store, CoordinatorEpoch(next)))
    }

    /// All records whose key begins with `prefix`.
    pub(super) fn scan(&self, prefix: &str) -> Result<BTreeMap<String, String>> {
        let read = self.database.begin_read().map_err(|source| fault("read", source))?;
        let table = read.open_table(RECORDS).map_err(|source| fault("read", source))?;
        let mut found = BTreeMap::new();
        for entry in table.range(prefix..).map_err(|source| fault("read", source))? {
            let (key, value) = entry.map_err(|source| fault("read", source))?;
            if !key.value().starts_with(prefix) {
                break;
            }
            found.insert(key.value().to_owned(), value.value().to_owned());
        }
        Ok(found)
    }

    /// One record.
    pub(super) fn get(&self, key: &str) -> Result<Option<String>> {
        let read = self.database.begin_read().map_err(|source| fault("read", source))?;
        let table = match read.open_table(RECORDS) {
            // Before the first write.
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            table => table.map_err(|source| fault("read", source))?,
        };
        let found = table.get(key).map_err(|source| fault("read", source))?;
        Ok(found.map(|value| value.value().to_owned()))
    }

    /// Applies `changes` as one durable transaction, provided that `epoch` is still the newest.
    ///
    /// # Errors
    /// `Stale` when it is not, or when an expectation fails.
    pub(super) fn write(&self, changes: Vec<Change>, epoch: CoordinatorEpoch) -> Result<()> {
        let write = self.database.begin_write().map_err(|source| fault("write", source))?;
        let mut last = String::new();
        {
            let mut table = write.open_table(RECORDS).map_err(|source| fault("write", source))?;
            let expected = epoch.to_string();
            let fence = Change::Check(EPOCH.to_owned(), Box::new(move |found| found == Some(expected.as_str())));
            for change in std::iter::once(fence).chain(changes) {
                let (Change::Check(key, _) | Change::Put(key, _) | Change::Delete(key)) = &change;
                last.clone_from(key);
                match change {
                    Change::Check(key, judge) => {
                        let found = table.get(key.as_str()).map_err(|source| fault("read", source))?;
                        if !judge(found.as_ref().map(|value| value.value())) {
                            return Err(Error::stale(format!("registry record `{key}` was changed meanwhile")));
                        }
                    }
                    Change::Put(key, value) => {
                        table.insert(key.as_str(), value.as_str()).map_err(|source| fault("write", source))?;
                    }
                    Change::Delete(key) => {
                        table.remove(key.as_str()).map_err(|source| fault("write", source))?;
                    }
                }
            }
        }
        self.commit(write, &last)
    }

    fn commit(&self, write: WriteTransaction, place: &str) -> Result<()> {
        self.fail.hit_blocking("registry.before_write", place)?;
        write.commit().map_err(|source| fault("write", source))?;
        self.fail.hit_blocking("registry.after_write", place)
    }
}
