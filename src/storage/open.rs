//! URL and options → [`Store`].

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use object_store::local::LocalFileSystem;

use super::{Inner, LocalRoot, S3Root, Store, local, memory, s3};
use crate::error::{Error, Kind, Result};
use crate::runtime::FailPoints;

/// How to open a store.
#[derive(Clone, Default)]
pub struct StoreOptions {
    /// Store-specific keys (access keys, endpoint, region), as in `table.datalake.paimon.*`; keys of others are passed over.
    pub options: BTreeMap<String, String>,
    /// The same, as this process was told: they win.
    pub own: Arc<BTreeMap<String, String>>,
    /// Sync local files and folders before a write returns; off only for benchmarks.
    pub unsynced: bool,
    /// Who hands out credentials, by its number in `tokens`; set by [`super::Remote`] alone.
    #[doc(hidden)]
    pub tokens: Option<usize>,
}

impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may be secrets.
        let keys: Vec<&String> = self.own.keys().chain(self.options.keys()).collect();
        f.debug_struct("StoreOptions").field("keys", &keys).field("unsynced", &self.unsynced).finish_non_exhaustive()
    }
}

/// Whether `key` is an option of an object store, whatever it means (`s3.…`, `s3a.…`, `fs.s3a.…`).
#[must_use]
pub fn is_option(key: &str) -> bool {
    s3::is_key(key)
}

/// Whether options can be right, whatever they are for. Nothing is sent.
///
/// # Errors
/// `Invalid` and `Unsupported` name the option.
pub fn check(options: &BTreeMap<String, String>) -> Result<()> {
    s3::check(options)
}

/// What a URL names.
enum Place<'a> {
    Local(PathBuf),
    /// Bucket and the path in it, without slashes at its ends.
    S3(&'a str, &'a str),
}

/// Opens the store at `url`: a local path, `file:/…` or `file:///…`, whose folder is made when missing, or `s3://BUCKET/…` (`s3a:`).
///
/// # Errors
/// `Unsupported` names a scheme or option that is not there; `Invalid` an option that is wrong, or a folder that can't be made,
/// `Unavailable` where there is no room for it.
pub fn open(url: &str, options: &StoreOptions) -> Result<Store> {
    if let Some(mounted) = memory::at(url) {
        return Ok(mounted);
    }
    let path = match place(url)? {
        Place::Local(path) => path,
        Place::S3(bucket, folder) => return open_s3(url, bucket, folder, options),
    };
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
    let inner = Inner::Plain(Arc::new(local));
    Ok(Store { inner, url, local: Some(root), faults: None, written: None, fail: FailPoints::default() })
}

fn open_s3(url: &str, bucket: &str, folder: &str, options: &StoreOptions) -> Result<Store> {
    let bucket = s3::open(bucket, &options.own, &options.options, options.tokens)?;
    let inner = Inner::S3(S3Root { bucket, folder: folder.to_owned(), requests: Arc::default() });
    let url = url.trim_end_matches('/').to_owned();
    Ok(Store { inner, url, local: None, faults: None, written: None, fail: FailPoints::default() })
}

/// Whether there is a root at `url`. Where roots can't be missing (object stores), there is.
///
/// # Errors
/// `Unsupported` names a scheme that is not there.
pub fn is_there(url: &str) -> Result<bool> {
    Ok(memory::at(url).is_some()
        || match place(url)? {
            Place::Local(path) => path.is_dir(),
            Place::S3(..) => true,
        })
}

/// Whether there is a root at `url` that can be listed. Nothing is made.
///
/// # Errors
/// `Unsupported` names a scheme that is not there; `Unavailable`; `Invalid` when access is denied.
pub async fn readable(url: &str, options: &StoreOptions) -> Result<bool> {
    let path = match place(url)? {
        Place::Local(path) => path,
        Place::S3(bucket, folder) => return open_s3(url, bucket, folder, options)?.begins().await.map(|()| true),
    };
    match std::fs::read_dir(path) {
        Ok(_) => Ok(true),
        Err(source) if source.kind() == ErrorKind::NotFound => Ok(false),
        Err(source) => Err(fault(url, source)),
    }
}

/// Reads the object at a whole URL, without opening (and making) a root; `None` when it is not there.
///
/// # Errors
/// `Unsupported` names a scheme that is not there; `Unavailable`; `Invalid` when access is denied.
pub async fn read(url: &str, options: &StoreOptions) -> Result<Option<Bytes>> {
    match place(url)? {
        Place::Local(path) => found(url, tokio::fs::read(&path).await),
        Place::S3(bucket, key) => open_s3(&root_of(url, key), bucket, "", options)?.get(key).await,
    }
}

/// Reads bytes `start..end` (exclusive) of the object at a whole URL, fewer when it is shorter; `None` when it is not there.
///
/// # Errors
/// As [`read`].
pub async fn read_range(url: &str, start: u64, end: u64, options: &StoreOptions) -> Result<Option<Bytes>> {
    let path = match place(url)? {
        Place::Local(path) => path,
        Place::S3(bucket, key) => {
            return open_s3(&root_of(url, key), bucket, "", options)?.range_of(key, start, end).await;
        }
    };
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

/// The bucket's own URL.
fn root_of(url: &str, key: &str) -> String {
    url.trim_end_matches('/').strip_suffix(key).unwrap_or(url).to_owned()
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

fn place(url: &str) -> Result<Place<'_>> {
    match url.split_once(':') {
        Some(("file", rest)) => Ok(Place::Local(PathBuf::from(format!("/{}", rest.trim_start_matches('/'))))),
        Some((scheme @ ("s3" | "s3a"), rest)) => {
            let rest = rest.strip_prefix("//").unwrap_or_default();
            let (bucket, folder) = rest.split_once('/').unwrap_or((rest, ""));
            let named = |letter: char| letter.is_ascii_alphanumeric() || ".-_".contains(letter);
            if bucket.is_empty() || !bucket.chars().all(named) {
                // What may be a password is not repeated.
                return Err(Error::invalid(format!("a location of S3 is `{scheme}://BUCKET/FOLDER`, without user, port or query")));
            }
            Ok(Place::S3(bucket, folder.trim_matches('/')))
        }
        Some((scheme, _)) if !scheme.contains('/') => {
            Err(Error::unsupported(format!("storage scheme `{scheme}` of `{url}` is not supported"))
                .with_hint("use a local path, file:///… or s3://…"))
        }
        _ => {
            let path = std::path::absolute(url);
            Ok(Place::Local(path.map_err(|source| Error::invalid(format!("`{url}` is no path")).with_source(source))?))
        }
    }
}
