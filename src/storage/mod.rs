//! URL and options → a store of objects below one root, with create-if-absent that is atomic and durable.
//!
//! Owns the object_store types (they stop here), the local create by hidden temporary and hard link, what is done about requests to S3
//! that fail, and the faults that tests inject. Knows nothing of tables. Callers: lake, write, commit, source, node, audit.

mod faults;
mod local;
mod memory;
mod open;
mod remote;
mod s3;
#[cfg(test)]
mod tests;
mod tokens;
mod upload;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path as StorePath;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutPayload};

use crate::error::{Error, Kind, Result};
use crate::runtime::FailPoints;
use s3::Act;

pub use faults::{Fault, Faults};
#[doc(hidden)]
pub use memory::{Mounted, mount};
pub use open::{StoreOptions, check, is_option, is_there, open, read, read_range, readable};
pub use remote::Remote;
pub use tokens::{Token, Tokens};
pub use upload::Upload;

/// What a store answers, as far as we read it ourselves, for [`crate::hostile`].
#[cfg(any(test, fuzzing))]
pub(crate) fn read_answer(text: &str) -> Result<()> {
    s3::read_answer(text)
}

/// What a create-if-absent did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Created {
    /// The object is there now, and it is ours.
    Yes,
    /// Something was there already (on object stores also: a retried request of ours): read it to tell.
    Exists,
}

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Path below the store's root, `/`-separated.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Last change, epoch milliseconds.
    pub modified_ms: i64,
}

/// Objects below one root. Paths are relative to it, `/`-separated, taken literally (no percent decoding).
///
/// Everything written is durable when the call returns: local files and their folders are synced.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Inner,
    url: String,
    local: Option<LocalRoot>,
    faults: Option<Faults>,
    /// Simulations only.
    written: Option<Arc<memory::Written>>,
    fail: FailPoints,
}

#[derive(Debug, Clone)]
enum Inner {
    /// Local disk and memory.
    Plain(Arc<dyn ObjectStore>),
    S3(S3Root),
}

/// A folder of a bucket.
#[derive(Debug, Clone)]
struct S3Root {
    bucket: Arc<s3::Bucket>,
    /// Without slashes at its ends.
    folder: String,
    requests: Arc<s3::Requests>,
}

impl S3Root {
    fn key(&self, path: &str) -> Result<StorePath> {
        // What leaves the root is refused as on a disk.
        let path = parse(path)?;
        if self.folder.is_empty() { Ok(path) } else { parse(&format!("{}/{path}", self.folder)) }
    }
}

/// An upload in parts that was begun and neither ended nor given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HangingUpload {
    /// Path below the store's root of the object that it would make.
    pub path: String,
    /// Its number in the store.
    pub id: String,
    /// Its begin, epoch milliseconds; far in the future where the store does not tell.
    pub begun_ms: i64,
}

#[derive(Debug, Clone)]
struct LocalRoot {
    folder: PathBuf,
    synced: bool,
}

impl Store {
    /// The root as the user wrote it, without secrets.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The root folder, if it is on a local disk.
    #[must_use]
    pub fn local_root(&self) -> Option<&std::path::Path> {
        self.local.as_ref().map(|root| root.folder.as_path())
    }

    /// Whether it is in an object store, where a request costs a round trip and bytes that nobody needs cost time.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        matches!(self.inner, Inner::S3(_))
    }

    /// Requests sent to an object store through this store and its clones since it was opened, by what they do (`get`, `put`, …); empty
    /// where they cost nothing.
    #[must_use]
    pub fn requests(&self) -> BTreeMap<&'static str, u64> {
        match &self.inner {
            Inner::Plain(_) => BTreeMap::new(),
            Inner::S3(root) => root.requests.told(),
        }
    }

    /// An empty store in memory, for tests.
    #[must_use]
    pub fn in_memory() -> Self {
        let inner = Inner::Plain(Arc::new(object_store::memory::InMemory::new()));
        Self { inner, url: "memory:///".to_owned(), local: None, faults: None, written: None, fail: FailPoints::default() }
    }

    /// The same objects, with `faults` in every call.
    #[must_use]
    pub fn with_faults(&self, faults: Faults) -> Self {
        Self { faults: Some(faults), ..self.clone() }
    }

    /// The same objects; what writes and deletes passes these points.
    #[must_use]
    pub fn with_fail_points(&self, fail: FailPoints) -> Self {
        Self { fail, ..self.clone() }
    }

    async fn before(&self, act: &'static str, path: &str) -> Result<Option<Fault>> {
        let Some(faults) = &self.faults else { return Ok(None) };
        match faults.before(act, path).await? {
            Some(Fault::Denied) => {
                let source = object_store::Error::PermissionDenied { path: path.to_owned(), source: "injected".into() };
                Err(self.fault(act, path, source))
            }
            fault => Ok(fault),
        }
    }

    /// A read whose reply is lost has failed.
    async fn before_read(&self, act: &'static str, path: &str) -> Result<Option<Fault>> {
        let fault = self.before(act, path).await?;
        faults::after(fault.as_ref(), path)?;
        Ok(fault)
    }

    /// Reads a whole object; `None` when it is not there.
    ///
    /// # Errors
    /// `Unavailable`; `Invalid` when access is denied.
    pub async fn get(&self, path: &str) -> Result<Option<Bytes>> {
        self.before_read("get", path).await?;
        let plain = match &self.inner {
            Inner::Plain(plain) => plain,
            Inner::S3(root) => {
                let found = Box::pin(root.bucket.get(&root.key(path)?, &root.requests)).await;
                return found.map_err(|fault| self.refused(Act::Get, "read", path, fault));
            }
        };
        let read = async {
            let found = plain.get(&parse(path)?).await.map_err(|source| self.fault("read", path, source))?;
            found.bytes().await.map_err(|source| self.fault("read", path, source))
        };
        absent_as_none(read.await)
    }

    /// Reads a whole object that has to be there.
    ///
    /// # Errors
    /// As [`Store::get`]; `Data` when it is missing.
    pub async fn get_existing(&self, path: &str) -> Result<Bytes> {
        self.get(path).await?.ok_or_else(|| self.missing(path))
    }

    fn missing(&self, path: &str) -> Error {
        Error::data(format!("`{}` is missing", self.name(path)))
    }

    /// Reads bytes `start..end` (exclusive) of an object.
    ///
    /// # Errors
    /// As [`Store::get_existing`].
    pub async fn get_range(&self, path: &str, start: u64, end: u64) -> Result<Bytes> {
        self.before_read("get_range", path).await?;
        match &self.inner {
            Inner::Plain(plain) => {
                plain.get_range(&parse(path)?, start..end).await.map_err(|source| self.fault("read", path, source))
            }
            Inner::S3(_) => self.range_of(path, start, end).await?.ok_or_else(|| self.missing(path)),
        }
    }

    /// As [`Store::get_range`] of an object store; `None` when it is not there.
    async fn range_of(&self, path: &str, start: u64, end: u64) -> Result<Option<Bytes>> {
        let Inner::S3(root) = &self.inner else { return Ok(None) };
        let found = Box::pin(root.bucket.get_range(&root.key(path)?, start, end, &root.requests)).await;
        found.map_err(|fault| self.refused(Act::Get, "read", path, fault))
    }

    /// Asks an object store for one name below the root.
    async fn begins(&self) -> Result<()> {
        let Inner::S3(root) = &self.inner else { return Ok(()) };
        let below = if root.folder.is_empty() { String::new() } else { format!("{}/", root.folder) };
        let found = Box::pin(root.bucket.list(&below, Some(1), &root.requests)).await;
        found.map(drop).map_err(|fault| self.refused(Act::List, "list", "", fault))
    }

    /// Size of an object in bytes; `None` when it is not there.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn size(&self, path: &str) -> Result<Option<u64>> {
        self.before_read("head", path).await?;
        match &self.inner {
            Inner::Plain(plain) => absent_as_none(
                plain.head(&parse(path)?).await.map(|meta| meta.size).map_err(|source| self.fault("look at", path, source)),
            ),
            Inner::S3(root) => {
                let found = Box::pin(root.bucket.size(&root.key(path)?, &root.requests)).await;
                found.map_err(|fault| self.refused(Act::Head, "look at", path, fault))
            }
        }
    }

    /// Writes an object, replacing what was there.
    ///
    /// # Errors
    /// `Unavailable` (the outcome is then unknown); `Invalid` when access is denied.
    pub async fn put(&self, path: &str, bytes: Bytes) -> Result<()> {
        let fault = self.before("put", path).await?;
        self.fail.hit_at("store.before_write", path).await?;
        if let Some(Fault::Cut) = fault {
            self.put_now(path, bytes.slice(..bytes.len() / 2)).await?;
            return Err(Error::unavailable(format!("injected: the write of `{path}` was cut")));
        }
        self.put_now(path, bytes).await?;
        self.fail.hit_at("store.after_write", path).await?;
        faults::after(fault.as_ref(), path)
    }

    async fn put_now(&self, path: &str, bytes: Bytes) -> Result<()> {
        let object = parse(path)?;
        if let Some(target) = self.local_target(path) {
            return blocking(move || target.replace(&bytes)).await;
        }
        match &self.inner {
            Inner::Plain(plain) => {
                plain.put(&object, PutPayload::from_bytes(bytes)).await.map_err(|source| self.fault("write", path, source))?;
                self.note(path);
                Ok(())
            }
            Inner::S3(root) => {
                let done = Box::pin(root.bucket.put(&root.key(path)?, &bytes, &root.requests)).await;
                done.map_err(|fault| self.refused(Act::Put, "write", path, fault))
            }
        }
    }

    /// Writes an object unless one is there: atomically, and never visible half-written or under another visible name.
    ///
    /// # Errors
    /// `Unavailable`: **the outcome is unknown**, read the object to tell (P8.3).
    pub async fn create(&self, path: &str, bytes: Bytes) -> Result<Created> {
        let fault = self.before("create", path).await?;
        self.fail.hit_at("store.before_write", path).await?;
        let created = match &fault {
            Some(Fault::Late(release)) => return self.create_late(path, bytes, release.clone()),
            Some(Fault::Conflict) => return Ok(Created::Exists),
            Some(Fault::Replaces) => self.put_now(path, bytes).await.map(|()| Created::Yes)?,
            Some(Fault::Repeated) => {
                let _made_before = self.create_now(path, bytes).await?;
                Created::Exists
            }
            _ => self.create_now(path, bytes).await?,
        };
        self.fail.hit_at("store.after_write", path).await?;
        faults::after(fault.as_ref(), path)?;
        Ok(created)
    }

    async fn create_now(&self, path: &str, bytes: Bytes) -> Result<Created> {
        let object = parse(path)?;
        if let Some(target) = self.local_target(path) {
            return blocking(move || target.create(&bytes)).await;
        }
        let plain = match &self.inner {
            Inner::Plain(plain) => plain,
            Inner::S3(root) => {
                let done = Box::pin(root.bucket.create(&root.key(path)?, &bytes, &root.requests)).await;
                return done.map_err(|(act, fault)| self.refused(act, "create", path, fault));
            }
        };
        match plain.put_opts(&object, PutPayload::from_bytes(bytes), PutMode::Create.into()).await {
            Ok(_) => {
                self.note(path);
                Ok(Created::Yes)
            }
            Err(object_store::Error::AlreadyExists { .. }) => Ok(Created::Exists),
            Err(source) => Err(self.fault("create", path, source)),
        }
    }

    fn note(&self, path: &str) {
        if let Some(written) = &self.written {
            written.note(path);
        }
    }

    fn local_target(&self, path: &str) -> Option<local::Target> {
        let root = self.local.as_ref()?;
        let (path, name) = (root.folder.join(path), self.name(path));
        Some(local::Target { path, name, synced: root.synced, fail: self.fail.clone() })
    }

    /// A test's PUT that lands later than its caller waits for: the caller sees an unknown outcome now.
    fn create_late(&self, path: &str, bytes: Bytes, release: tokio_util::sync::CancellationToken) -> Result<Created> {
        let (store, place) = (self.clone(), path.to_owned());
        tokio::spawn(async move {
            release.cancelled().await;
            drop(store.create_now(&place, bytes).await);
        });
        Err(Error::unavailable(format!("injected: the reply to create `{path}` was lost")))
    }

    /// Deletes an object; one that is not there is fine.
    ///
    /// # Errors
    /// `Unavailable`; `Invalid` when access is denied.
    pub async fn delete(&self, path: &str) -> Result<()> {
        let fault = self.before("delete", path).await?;
        self.fail.hit_at("store.before_delete", path).await?;
        match &self.inner {
            Inner::Plain(plain) => {
                absent_as_none(plain.delete(&parse(path)?).await.map_err(|source| self.fault("delete", path, source)))?;
            }
            Inner::S3(root) => {
                let done = Box::pin(root.bucket.delete(&root.key(path)?, &root.requests)).await;
                done.map_err(|fault| self.refused(Act::Delete, "delete", path, fault))?;
            }
        }
        self.fail.hit_at("store.after_delete", path).await?;
        faults::after(fault.as_ref(), path)
    }

    /// All objects below the folder `prefix` (recursive; `""` = the root), in path order. Temporaries of a write that is
    /// under way or died, ours or Java's (`.NAME.….tmp`), are no objects.
    ///
    /// # Errors
    /// `Unavailable`; `Invalid` when access is denied.
    pub async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        let fault = self.before_read("list", prefix).await?;
        let age_ms = if let Some(Fault::Stale(age)) = &fault { i64::try_from(age.as_millis()).unwrap_or(i64::MAX) } else { 0 };
        let mut found = self.listed(prefix).await?;
        found.retain(|listed| !listed.path.rsplit('/').next().is_some_and(local::is_temporary));
        if let Some(written) = &self.written {
            found.retain(|listed| !written.is_newer(&listed.path, age_ms));
            for listed in &mut found {
                listed.modified_ms = written.at_ms(&listed.path).unwrap_or(listed.modified_ms);
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        if let Some(Fault::StaleList) = fault {
            let newest = found.iter().enumerate().max_by_key(|(_, listed)| listed.modified_ms).map(|(place, _)| place);
            newest.map(|place| found.remove(place));
        }
        Ok(found)
    }

    async fn listed(&self, prefix: &str) -> Result<Vec<Listed>> {
        let folder = if prefix.is_empty() { None } else { Some(parse(prefix)?) };
        match &self.inner {
            Inner::Plain(plain) => {
                let found: Vec<_> =
                    plain.list(folder.as_ref()).try_collect().await.map_err(|source| self.fault("list", prefix, source))?;
                let listed = |meta: object_store::ObjectMeta| Listed {
                    path: meta.location.to_string(),
                    size: meta.size,
                    modified_ms: meta.last_modified.timestamp_millis(),
                };
                Ok(found.into_iter().map(listed).collect())
            }
            Inner::S3(root) => {
                let key = root.key(prefix)?;
                let below = if key.as_ref().is_empty() { String::new() } else { format!("{key}/") };
                let found = Box::pin(root.bucket.list(&below, None, &root.requests)).await;
                let mut found = found.map_err(|fault| self.refused(Act::List, "list", prefix, fault))?;
                // Other writers put an empty object where a folder is; its slash is gone by now.
                let folders: BTreeSet<String> =
                    found.iter().filter_map(|listed| Some(listed.path.rsplit_once('/')?.0.to_owned())).collect();
                found.retain(|listed| listed.path.starts_with(&below) && !(listed.size == 0 && folders.contains(&listed.path)));
                let root = if root.folder.is_empty() { 0 } else { root.folder.len() + 1 };
                for listed in &mut found {
                    listed.path = listed.path.split_off(root.min(listed.path.len()));
                }
                Ok(found)
            }
        }
    }

    /// Uploads in parts below the folder `prefix` that hang; none where there is no such thing.
    ///
    /// # Errors
    /// As [`Store::list`].
    pub async fn hanging_uploads(&self, prefix: &str) -> Result<Vec<HangingUpload>> {
        self.before_read("list_uploads", prefix).await?;
        let Inner::S3(root) = &self.inner else { return Ok(Vec::new()) };
        let key = root.key(prefix)?;
        let below = if key.as_ref().is_empty() { String::new() } else { format!("{key}/") };
        let found = Box::pin(root.bucket.list_uploads(&below, &root.requests)).await;
        let found = found.map_err(|fault| self.refused(Act::ListUploads, "list the uploads below", prefix, fault))?;
        let start = if root.folder.is_empty() { String::new() } else { format!("{}/", root.folder) };
        let below_root = |hanging: s3::Hanging| {
            let path = hanging.key.strip_prefix(&start)?.to_owned();
            Some(HangingUpload { path, id: hanging.id, begun_ms: hanging.begun_ms })
        };
        Ok(found.into_iter().filter_map(below_root).collect())
    }

    /// Gives an upload up, whoever began it; one that is gone is fine.
    ///
    /// # Errors
    /// As [`Store::delete`].
    pub async fn abort_upload(&self, hanging: &HangingUpload) -> Result<()> {
        self.before("abort_upload", &hanging.path).await?;
        let Inner::S3(root) = &self.inner else { return Ok(()) };
        let done = Box::pin(root.bucket.abort_upload(&root.key(&hanging.path)?, &hanging.id, &root.requests)).await;
        done.map_err(|fault| self.refused(Act::Abort, "abort the upload of", &hanging.path, fault))
    }

    /// Root and path, for messages.
    #[must_use]
    pub fn name(&self, path: &str) -> String {
        format!("{}/{path}", self.url.trim_end_matches('/'))
    }

    /// What a bucket did not do, with the right and the folder that it was about.
    fn refused(&self, act: Act, what: &str, path: &str, fault: s3::Fault) -> Error {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let folder = if act == Act::List { format!("{path}/") } else { format!("{folder}/") };
        s3::error(act, what, &self.name(path), &self.name(folder.trim_start_matches('/')), fault)
    }

    fn fault(&self, act: &str, path: &str, source: object_store::Error) -> Error {
        let kind = match &source {
            object_store::Error::NotFound { .. } => Kind::Data,
            object_store::Error::PermissionDenied { .. }
            | object_store::Error::Unauthenticated { .. }
            | object_store::Error::InvalidPath { .. }
            | object_store::Error::UnknownConfigurationKey { .. } => Kind::Invalid,
            object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => Kind::Unsupported,
            // Those of the local disk come without a name of their own.
            _ => local::disk(&source).map_or(Kind::Unavailable, local::kind),
        };
        let denied = matches!(source, object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. });
        let error = local::fault(format!("{act} `{}`", self.name(path)), kind, source);
        match error.hint() {
            None if denied => error.with_hint(format!("let this service list, read, write and delete below `{}`", self.url)),
            _ => error,
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|source| Error::internal("a write on the local disk ended").with_source(source))?
}

fn parse(path: &str) -> Result<StorePath> {
    StorePath::parse(path).map_err(|source| Error::invalid(format!("`{path}` can't be an object path")).with_source(source))
}

fn absent_as_none<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) => {
            let absent = std::error::Error::source(&error)
                .and_then(|source| source.downcast_ref::<object_store::Error>())
                .is_some_and(|source| matches!(source, object_store::Error::NotFound { .. }));
            if absent { Ok(None) } else { Err(error) }
        }
    }
}
