//! Open segment files, least recently used closed first: there may be many more buckets than file handles.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};

/// A bounded cache of open files.
#[derive(Debug)]
pub(super) struct Handles {
    capacity: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    clock: u64,
    open: BTreeMap<PathBuf, (u64, Arc<File>)>,
    by_use: BTreeMap<u64, PathBuf>,
}

impl Handles {
    /// Keeps at most `capacity` files open, beside those in use at the moment.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), inner: Mutex::default() }
    }

    /// The file at `path`, open for reading and writing; it has to exist.
    pub(super) fn open(&self, path: &Path) -> Result<Arc<File>> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.clock += 1;
        let now = inner.clock;
        if let Some((used, file)) = inner.open.get_mut(path) {
            let file = Arc::clone(file);
            let before = std::mem::replace(used, now);
            if let Some(path) = inner.by_use.remove(&before) {
                inner.by_use.insert(now, path);
            }
            return Ok(file);
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|source| Error::unavailable(format!("open segment `{}`", path.display())).with_source(source))?;
        let file = Arc::new(file);
        inner.open.insert(path.to_owned(), (now, Arc::clone(&file)));
        inner.by_use.insert(now, path.to_owned());
        while inner.open.len() > self.capacity {
            let Some((_, oldest)) = inner.by_use.pop_first() else { break };
            inner.open.remove(&oldest);
        }
        Ok(file)
    }

    /// Closes every file below `folder`, before it is removed.
    pub(super) fn forget(&self, folder: &Path) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.open.retain(|path, _| !path.starts_with(folder));
        let Inner { open, by_use, .. } = &mut *inner;
        by_use.retain(|_, path| open.contains_key(path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_file_is_closed_first() {
        let folder = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..3).map(|index| folder.path().join(index.to_string())).collect();
        for path in &paths {
            std::fs::write(path, b"x").unwrap();
        }
        let handles = Handles::new(2);
        for index in [0, 1, 0, 2] {
            handles.open(&paths[index]).unwrap();
        }
        let open: Vec<_> = handles.inner.lock().unwrap().open.keys().cloned().collect();
        assert_eq!(open, [paths[0].clone(), paths[2].clone()]);
        handles.forget(folder.path());
        assert!(handles.inner.lock().unwrap().by_use.is_empty());
        assert!(handles.open(&folder.path().join("missing")).is_err());
    }
}
