//! A large object that is written in parts.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use object_store::{ObjectStoreExt, PutPayload};

use super::s3::{self, Act};
use super::{Inner, Store, faults, parse};
use crate::error::Result;
use crate::runtime::Permit;

/// A large object being written. Dropped or aborted, nothing of it becomes visible.
#[derive(Debug)]
pub struct Upload {
    store: Store,
    path: String,
    parts: Parts,
    bytes: u64,
}

#[derive(Debug)]
enum Parts {
    /// In a mutex only to be `Sync`, so that futures that borrow an upload can move between threads.
    Plain(Mutex<Box<dyn object_store::MultipartUpload>>),
    S3(s3::Upload),
}

impl Store {
    /// Bytes that a part should have at least, unless it is the last one.
    #[must_use]
    pub fn part_bytes_min(&self) -> usize {
        match &self.inner {
            Inner::Plain(_) => 64 << 10,
            Inner::S3(_) => 5 << 20,
        }
    }

    /// Starts a large object that is written in parts; it becomes visible with [`Upload::finish`].
    ///
    /// # Errors
    /// As [`Store::put`].
    pub async fn upload(&self, path: &str) -> Result<Upload> {
        self.before("upload", path).await?;
        let parts = match &self.inner {
            Inner::Plain(plain) => {
                let parts = plain.put_multipart(&parse(path)?).await.map_err(|source| self.fault("write", path, source))?;
                Parts::Plain(Mutex::new(parts))
            }
            Inner::S3(root) => {
                let (bucket, requests) = (Arc::clone(&root.bucket), Arc::clone(&root.requests));
                let begun = Box::pin(s3::Upload::begin(bucket, root.key(path)?, requests)).await;
                Parts::S3(begun.map_err(|fault| self.refused(Act::Upload, "write", path, fault))?)
            }
        };
        Ok(Upload { store: self.clone(), path: path.to_owned(), parts, bytes: 0 })
    }
}

impl Upload {
    /// Appends a part. Parts but the last should have [`Store::part_bytes_min`] at least. On object stores several are on their way at once,
    /// each with its `permit`: its share of the memory budget, given back when it has arrived everywhere.
    ///
    /// # Errors
    /// As [`Store::put`], maybe of an earlier part; abort then.
    pub async fn part(&mut self, bytes: Bytes, permit: Option<Arc<Permit>>) -> Result<()> {
        let fault = self.store.before("upload_part", &self.path).await?;
        self.store.fail.hit_at("store.before_part", &self.path).await?;
        self.bytes += bytes.len() as u64;
        match &mut self.parts {
            Parts::Plain(parts) => {
                let parts = parts.get_mut().unwrap_or_else(PoisonError::into_inner);
                let sent = parts.put_part(PutPayload::from_bytes(bytes)).await;
                sent.map_err(|source| self.store.fault("write", &self.path, source))?;
            }
            Parts::S3(upload) => {
                let sent = Box::pin(upload.part(bytes, permit)).await;
                sent.map_err(|fault| self.store.refused(Act::Upload, "write", &self.path, fault))?;
            }
        }
        self.store.fail.hit_at("store.after_part", &self.path).await?;
        faults::after(fault.as_ref(), &self.path)
    }

    /// Completes the object and returns its size in bytes.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub async fn finish(mut self) -> Result<u64> {
        let fault = self.store.before("upload_finish", &self.path).await?;
        self.store.fail.hit_at("store.before_write", &self.path).await?;
        match &mut self.parts {
            Parts::Plain(parts) => {
                let parts = parts.get_mut().unwrap_or_else(PoisonError::into_inner);
                parts.complete().await.map_err(|source| self.store.fault("write", &self.path, source))?;
                self.store.note(&self.path);
            }
            Parts::S3(upload) => {
                Box::pin(upload.finish()).await.map_err(|fault| self.store.refused(Act::Upload, "write", &self.path, fault))?;
            }
        }
        self.store.fail.hit_at("store.after_write", &self.path).await?;
        faults::after(fault.as_ref(), &self.path)?;
        Ok(self.bytes)
    }

    /// Gives up; what was sent is thrown away.
    ///
    /// # Errors
    /// As [`Store::delete`].
    pub async fn abort(mut self) -> Result<()> {
        match &mut self.parts {
            Parts::Plain(parts) => {
                let parts = parts.get_mut().unwrap_or_else(PoisonError::into_inner);
                parts.abort().await.map_err(|source| self.store.fault("abort", &self.path, source))
            }
            Parts::S3(upload) => Box::pin(upload.abort())
                .await
                .map_err(|fault| self.store.refused(Act::Abort, "abort the upload of", &self.path, fault)),
        }
    }
}
