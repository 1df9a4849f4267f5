//! Folders per table and partition below one root: where logs lie, and states.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::model::{PartitionId, TableId};
use crate::runtime::FailPoints;

/// The folders below a root.
#[derive(Debug)]
pub(super) struct Places {
    root: PathBuf,
    /// Folders that this process has made durable; one that a dead process made may not be.
    made: Mutex<BTreeSet<PathBuf>>,
    fail: FailPoints,
}

impl Places {
    /// Below `root`, which is made when missing.
    ///
    /// # Errors
    /// `Invalid` when it can't be made.
    pub(super) fn open(root: PathBuf, fail: FailPoints) -> Result<Self> {
        fs::create_dir_all(&root)
            .map_err(|source| Error::invalid(format!("create folder `{}`", root.display())).with_source(source))?;
        Ok(Self { root, made: Mutex::default(), fail })
    }

    /// The folder of a table, or of one partition of it.
    pub(super) fn folder(&self, table: TableId, partition: Option<PartitionId>) -> PathBuf {
        let folder = self.root.join(table.to_string());
        partition.map_or_else(|| folder.clone(), |partition| folder.join(format!("p{partition}")))
    }

    /// Makes `folder` and its parents up to the root, durably.
    ///
    /// # Errors
    /// `Unavailable` when that fails.
    pub(super) fn create(&self, folder: &Path) -> Result<()> {
        let fault = |source| Error::unavailable(format!("create folder `{}`", folder.display())).with_source(source);
        let above = |folder: &&Path| folder.starts_with(&self.root) && *folder != self.root;
        let new: Vec<PathBuf> = {
            let made = self.made();
            folder.ancestors().take_while(above).take_while(|folder| !made.contains(*folder)).map(Path::to_owned).collect()
        };
        if new.is_empty() {
            return Ok(());
        }
        fs::create_dir_all(folder).map_err(fault)?;
        for folder in &new {
            folder.parent().map_or(Ok(()), sync_folder).map_err(fault)?;
        }
        self.made().extend(new);
        Ok(())
    }

    fn made(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Deletes a folder with all that is in it; one that is absent is fine.
    ///
    /// # Errors
    /// `Unavailable` when that fails.
    pub(super) fn remove(&self, folder: &Path) -> Result<()> {
        self.fail.hit_blocking("log.before_delete", &folder.display().to_string())?;
        self.made().retain(|made| !made.starts_with(folder));
        match fs::remove_dir_all(folder) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::unavailable(format!("delete folder `{}`", folder.display())).with_source(source))
            }
            _ => self.fail.hit_blocking("log.after_delete", &folder.display().to_string()),
        }
    }

    /// Deletes the folders of tables and partitions that `known` does not know: what a crash left of dropped ones.
    ///
    /// # Errors
    /// `Unavailable` when a folder can't be read or deleted.
    pub(super) fn remove_unknown(&self, known: impl Fn(TableId, Option<PartitionId>) -> bool) -> Result<()> {
        for (name, folder) in folders(&self.root)? {
            let Ok(table) = name.parse().map(TableId) else { continue };
            if !known(table, None) {
                tracing::info!(%table, folder = %folder.display(), "folder of a dropped table deleted");
                self.remove(&folder)?;
                continue;
            }
            for (name, folder) in folders(&folder)? {
                let partition = name.strip_prefix('p').and_then(|id| id.parse().ok()).map(PartitionId);
                if partition.is_some() && !known(table, partition) {
                    self.remove(&folder)?;
                }
            }
        }
        Ok(())
    }
}

/// Makes durable which files a folder has.
pub(super) fn sync_folder(folder: &Path) -> std::io::Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all())
}

/// Opens a database file. On one that is damaged redb may panic.
pub(super) fn guarded<T>(path: &Path, open: impl FnOnce() -> Result<T>) -> Result<T> {
    let opened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(open));
    opened.unwrap_or_else(|_told_already| {
        let text = format!("database file `{}` is damaged", path.display());
        Err(Error::data(text).with_hint("bring it back from a copy"))
    })
}

fn folders(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let fault = |source| Error::unavailable(format!("list folder `{}`", folder.display())).with_source(source);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(fault)? {
        let entry = entry.map_err(fault)?;
        if entry.file_type().map_err(fault)?.is_dir() {
            found.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_was_deleted_is_made_again() {
        let root = tempfile::tempdir().unwrap();
        let places = Places::open(root.path().join("log"), FailPoints::default()).unwrap();
        let (partition, other) = (places.folder(TableId(1), Some(PartitionId(2))), places.folder(TableId(1), Some(PartitionId(3))));
        let made = |places: &Places| places.made().iter().cloned().collect::<Vec<_>>();
        for _ in 0..2 {
            places.create(&partition.join("0")).unwrap();
            places.create(&other).unwrap();
            assert!(partition.join("0").is_dir() && other.is_dir());
            assert_eq!(made(&places), [places.folder(TableId(1), None), partition.clone(), partition.join("0"), other.clone()]);
            places.remove(&partition).unwrap();
            assert_eq!(made(&places), [places.folder(TableId(1), None), other.clone()]);
            places.remove(&places.folder(TableId(1), None)).unwrap();
            assert!(made(&places).is_empty());
        }
    }
}
