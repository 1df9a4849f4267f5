//! Writes on a local disk that show whole or not at all: hidden temporary, sync, link or rename, sync of the folders (P8.3).
//!
//! object_store stages as `NAME#1`, which Java takes for a snapshot or a consumer (P8.3, temp-name trap); hence our own.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Created;
use crate::error::{Error, Kind, Result};
use crate::runtime::FailPoints;

/// Tells temporaries of this process from those of others, also where process ids repeat (containers on one volume).
static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());
static COUNTER: AtomicU64 = AtomicU64::new(0);

/// Whether `file_name` is a temporary of ours or of Java: never an object.
pub(super) fn is_temporary(file_name: &str) -> bool {
    file_name.starts_with('.') && file_name.ends_with(".tmp")
}

/// One write: where, under which name in messages, and whether it is synced.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) path: PathBuf,
    pub(super) name: String,
    pub(super) synced: bool,
    pub(super) fail: FailPoints,
}

impl Target {
    /// Makes the file unless one is there.
    pub(super) fn create(&self, bytes: &[u8]) -> Result<Created> {
        let staged = self.stage(bytes)?;
        self.fail.hit_blocking("store.staged", &self.name)?;
        let linked = fs::hard_link(&staged.0, &self.path);
        self.fail.hit_blocking("store.shown", &self.name)?;
        drop(staged);
        match linked {
            Ok(()) => self.published().map(|()| Created::Yes),
            Err(source) if source.kind() == ErrorKind::AlreadyExists => Ok(Created::Exists),
            Err(source) => Err(self.fault("create", source)),
        }
    }

    /// Makes or replaces the file.
    pub(super) fn replace(&self, bytes: &[u8]) -> Result<()> {
        let staged = self.stage(bytes)?;
        self.fail.hit_blocking("store.staged", &self.name)?;
        fs::rename(&staged.0, &self.path).map_err(|source| self.fault("write", source))?;
        self.fail.hit_blocking("store.shown", &self.name)?;
        self.published()
    }

    fn stage(&self, bytes: &[u8]) -> Result<Temporary> {
        let (Some(folder), Some(file_name)) = (self.path.parent(), self.path.file_name().and_then(|name| name.to_str())) else {
            return Err(Error::invalid(format!("`{}` has no folder or no file name", self.name)));
        };
        make_folder(folder, self.synced).map_err(|source| self.fault("create the folder of", source))?;
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".{file_name}.{:016x}-{count}.tmp", *PROCESS));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(|source| self.fault("create the temporary of", source))?;
        let staged = Temporary(path);
        file.write_all(bytes)
            .and_then(|()| if self.synced { file.sync_all() } else { Ok(()) })
            .map_err(|source| self.fault("write the temporary of", source))?;
        Ok(staged)
    }

    fn published(&self) -> Result<()> {
        match self.path.parent() {
            Some(folder) if self.synced => sync_folder(folder).map_err(|source| self.fault("sync the folder of", source)),
            _ => Ok(()),
        }
    }

    fn fault(&self, act: &str, source: io::Error) -> Error {
        fault(format!("{act} `{}`", self.name), kind(&source), source)
    }
}

/// What to do about a fault of the disk.
pub(super) fn kind(source: &io::Error) -> Kind {
    match source.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Kind::Invalid,
        ErrorKind::Unsupported => Kind::Unsupported,
        _ => Kind::Unavailable,
    }
}

/// An error of the disk, with the way out where there is one.
pub(super) fn fault(message: String, kind: Kind, source: impl std::error::Error + Send + Sync + 'static) -> Error {
    let help = disk(&source).and_then(help);
    let error = Error::new(kind, message).with_source(source);
    match help {
        Some(help) => error.with_hint(help),
        None => error,
    }
}

/// What the disk said, behind what others made of it.
pub(super) fn disk<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a io::Error> {
    let said = |error: &&'a (dyn std::error::Error + 'static)| error.is::<io::Error>();
    std::iter::successors(Some(error), |error| error.source()).find(said)?.downcast_ref()
}

fn help(source: &io::Error) -> Option<&'static str> {
    match source.kind() {
        ErrorKind::PermissionDenied => Some("let the user that this process runs as read and write there"),
        ErrorKind::ReadOnlyFilesystem => Some("mount the file system for writing"),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Some("make room there, or raise the quota; nothing is lost meanwhile"),
        _ => None,
    }
}

/// Gone when dropped, unless it was renamed. Hidden and harmless if it stays.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}

/// Makes `folder` and what is missing above it; each entry made is durable.
fn make_folder(folder: &Path, synced: bool) -> io::Result<()> {
    let missing: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
    fs::create_dir_all(folder)?;
    if synced {
        for made in missing {
            made.parent().map_or(Ok(()), sync_folder)?;
        }
    }
    Ok(())
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
