//! Text records by key in redb; changes in checked transactions.

use std::collections::BTreeMap;
use std::path::Path;
#[cfg(test)]
use std::sync::Mutex;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use crate::error::{Error, Result};
use crate::fluss::code::Code;
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

/// What happens to a transaction, for tests that watch or disturb it.
#[cfg(test)]
#[derive(Debug)]
pub(in crate::node) enum Moment<'a> {
    /// Before it begins.
    Begin,
    /// Before each of its steps.
    Step,
    /// Before it is committed, in the order of commits: keys with what is put there, or deleted.
    Commit(&'a [(String, Option<String>)]),
    /// After it is committed, when everybody can see it.
    Shown,
}

#[cfg(test)]
pub(super) type Hook = Box<dyn FnMut(&Store, &Moment<'_>) + Send>;

/// The file.
pub(in crate::node) struct Store {
    database: Database,
    fail: FailPoints,
    #[cfg(test)]
    pub(super) hook: Mutex<Option<Hook>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
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
        let store = Self {
            database,
            fail,
            #[cfg(test)]
            hook: Mutex::default(),
        };
        let wrong = |text: &str| Error::data(format!("registry record `{EPOCH}` is `{text}`, no epoch that another can follow"));
        let next = match store.get(EPOCH)? {
            None => 0,
            Some(text) => text.parse::<i32>().ok().and_then(|epoch| epoch.checked_add(1)).ok_or_else(|| wrong(&text))?,
        };
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
    /// 65 when it is not; `Stale` when an expectation fails: read again what it is about, and decide again.
    pub(super) fn write(&self, changes: Vec<Change>, epoch: CoordinatorEpoch) -> Result<()> {
        #[cfg(test)]
        self.meet(&Moment::Begin);
        #[cfg(test)]
        let done = changes.iter().filter_map(Change::effect).collect::<Vec<_>>();
        let write = self.database.begin_write().map_err(|source| fault("write", source))?;
        let mut last = String::new();
        {
            let mut table = write.open_table(RECORDS).map_err(|source| fault("write", source))?;
            let newest = table.get(EPOCH).map_err(|source| fault("read", source))?.map(|text| text.value().to_owned());
            if newest.as_deref() != Some(epoch.to_string().as_str()) {
                let newest = newest.as_deref().unwrap_or("none");
                let text = format!("this coordinator has epoch `{epoch}`, the newest is `{newest}`: another one has taken over");
                return Err(Code::NOT_COORDINATOR_LEADER.answer(text));
            }
            for change in changes {
                #[cfg(test)]
                self.meet(&Moment::Step);
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
        #[cfg(test)]
        self.meet(&Moment::Commit(&done));
        self.commit(write, &last)
    }

    fn commit(&self, write: WriteTransaction, place: &str) -> Result<()> {
        self.fail.hit_blocking("registry.before_write", place)?;
        write.commit().map_err(|source| fault("write", source))?;
        self.fail.hit_blocking("registry.after_write", place)
    }
}

#[cfg(test)]
impl Store {
    pub(super) fn meet(&self, moment: &Moment<'_>) {
        if let Some(hook) = self.hook.lock().unwrap().as_mut() {
            hook(self, moment);
        }
    }

    /// Puts a record as nobody does who asks: without check, epoch or hook.
    pub(super) fn put(&self, key: &str, json: &str) {
        let write = self.database.begin_write().unwrap();
        write.open_table(RECORDS).unwrap().insert(key, json).unwrap();
        write.commit().unwrap();
    }
}

#[cfg(test)]
impl Change {
    fn effect(&self) -> Option<(String, Option<String>)> {
        match self {
            Self::Check(..) => None,
            Self::Put(key, json) => Some((key.clone(), Some(json.clone()))),
            Self::Delete(key) => Some((key.clone(), None)),
        }
    }
}
