//! URL and options → [`Store`].

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use object_store::local::LocalFileSystem;

use super::{LocalRoot, Store, local, memory};
use crate::error::{Error, Kind, Result};
use crate::runtime::FailPoints;

/// How to open a store.
#[derive(Debug, Clone, Default)]
pub struct StoreOptions {
    /// Store-specific keys (access keys, endpoint, region), as in `table.datalake.paimon.*`.
    pub options: BTreeMap<String, String>,
    /// Sync local files and folders before a write returns; off only for benchmarks.
    pub unsynced: bool,
}

/// Opens the store at `url`: a local path, `file:/…` or `file:///…`. The folder is made when missing.
///
/// # Errors
/// `Unsupported` names a scheme that is not there; `Invalid` a folder that can't be made, `Unavailable` where there is no room for it.
pub fn open(url: &str, options: &StoreOptions) -> Result<Store> {
    if let Some(mounted) = memory::at(url) {
        return Ok(mounted);
    }
    let path = local_path(url)?;
    std::fs::create_dir_all(&path).map_err(|source| {
        let full = matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
        let kind = if full { Kind::Unavailable } else { Kind::Invalid };
        local::fault(format!("create folder `{}`", path.display()), kind, source)
    })?;
    let local = LocalFileSystem::new_with_prefix(&path)
        .map_err(|source| Error::invalid(format!("open folder `{}`", path.display())).with_source(source))?
        .with_fsync(!options.unsynced);
    let url = path.display().to_string();
    let root = LocalRoot { folder: path, synced: !options.unsynced };
    Ok(Store { inner: Arc::new(local), url, local: Some(root), faults: None, written: None, fail: FailPoints::default() })
}

/// Whether there is a root at `url`. Where roots can't be missing (object stores), there is.
///
/// # Errors
/// `Unsupported` names a scheme that is not there.
pub fn is_there(url: &str) -> Result<bool> {
    Ok(memory::at(url).is_some() || local_path(url)?.is_dir())
}

/// Whether there is a root at `url` that can be listed. Nothing is made.
///
/// # Errors
/// `Unsupported` names a scheme that is not there; `Unavailable`; `Invalid` when access is denied.
pub fn readable(url: &str) -> Result<bool> {
    match std::fs::read_dir(local_path(url)?) {
        Ok(_) => Ok(true),
        Err(source) if source.kind() == ErrorKind::NotFound => Ok(false),
        Err(source) => Err(fault(url, source)),
    }
}

/// Reads the object at a whole URL, without opening (and making) a root; `None` when it is not there.
///
/// # Errors
/// `Unsupported` names a scheme that is not there; `Unavailable`; `Invalid` when access is denied.
pub async fn read(url: &str) -> Result<Option<Bytes>> {
    let path = local_path(url)?;
    found(url, tokio::fs::read(&path).await)
}

/// Reads bytes `start..end` (exclusive) of the object at a whole URL, fewer when it is shorter; `None` when it is not there.
///
/// # Errors
/// As [`read`].
pub async fn read_range(url: &str, start: u64, end: u64) -> Result<Option<Bytes>> {
    let path = local_path(url)?;
    let read = move || {
        let mut file = File::open(&path)?;
        file.seek(SeekFrom::Start(start))?;
        let length = end.saturating_sub(start);
        // What is asked for is no more than what there is, so that a wrong length allocates nothing.
        let there = file.metadata()?.len().saturating_sub(start).min(length);
        let mut bytes = Vec::with_capacity(usize::try_from(there).map_err(std::io::Error::other)?);
        file.take(length).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    found(url, tokio::task::spawn_blocking(read).await.unwrap_or_else(|source| Err(std::io::Error::other(source))))
}

fn found(url: &str, read: std::io::Result<Vec<u8>>) -> Result<Option<Bytes>> {
    match read {
        Ok(bytes) => Ok(Some(bytes.into())),
        Err(source) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(fault(url, source)),
    }
}

fn fault(url: &str, source: std::io::Error) -> Error {
    local::fault(format!("read `{url}`"), local::kind(&source), source)
}

fn local_path(url: &str) -> Result<PathBuf> {
    match url.split_once(':') {
        Some(("file", rest)) => Ok(PathBuf::from(format!("/{}", rest.trim_start_matches('/')))),
        Some((scheme, _)) if !scheme.contains('/') => {
            Err(Error::unsupported(format!("storage scheme `{scheme}` of `{url}` is not supported"))
                .with_hint("use a local path or file:///…"))
        }
        _ => std::path::absolute(url).map_err(|source| Error::invalid(format!("`{url}` is no path")).with_source(source)),
    }
}
