//! A large object that goes up in parts: several on their way at once, each with its share of the memory budget.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use object_store::PutPayload;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as StorePath;
use tokio::task::JoinSet;

use super::{Act, Bucket, Fault, Requests};
use crate::runtime::Permit;

/// An upload. Dropped before its end, it is aborted, if somebody is left to do it; else `orphans` finds it.
#[derive(Debug)]
pub(in crate::storage) struct Upload {
    bucket: Arc<Bucket>,
    key: StorePath,
    id: String,
    requests: Arc<Requests>,
    sending: JoinSet<Result<(usize, PartId), Fault>>,
    sent: BTreeMap<usize, PartId>,
    next: usize,
    bytes: u64,
    open: bool,
}

impl Upload {
    pub(in crate::storage) async fn begin(bucket: Arc<Bucket>, key: StorePath, requests: Arc<Requests>) -> Result<Self, Fault> {
        let id = bucket.answered(Act::Upload, key.as_ref(), &requests, || bucket.client.create_multipart(&key)).await?;
        let (sending, sent) = (JoinSet::new(), BTreeMap::new());
        Ok(Self { bucket, key, id, requests, sending, sent, next: 0, bytes: 0, open: true })
    }

    /// Sends a part, as soon as fewer than the settings say are on their way. `permit` is given back when it has arrived.
    pub(in crate::storage) async fn part(&mut self, bytes: Bytes, permit: Option<Arc<Permit>>) -> Result<(), Fault> {
        while self.sending.len() >= self.bucket.settings.parts_max {
            self.joined().await?;
        }
        let (bucket, key, id) = (Arc::clone(&self.bucket), self.key.clone(), self.id.clone());
        let (requests, at) = (Arc::clone(&self.requests), self.next);
        self.next += 1;
        self.bytes += bytes.len() as u64;
        self.sending.spawn(async move {
            let send = || bucket.client.put_part(&key, &id, at, PutPayload::from_bytes(bytes.clone()));
            let part = bucket.answered(Act::Upload, key.as_ref(), &requests, send).await;
            drop(permit);
            part.map(|part| (at, part))
        });
        Ok(())
    }

    /// Waits for one part.
    async fn joined(&mut self) -> Result<(), Fault> {
        let Some(joined) = self.sending.join_next().await else { return Ok(()) };
        let (at, part) = joined.map_err(|source| Fault::Lost(format!("the task of a part ended: {source}")))??;
        self.sent.insert(at, part);
        Ok(())
    }

    /// Completes the object.
    pub(in crate::storage) async fn finish(&mut self) -> Result<(), Fault> {
        while !self.sending.is_empty() {
            self.joined().await?;
        }
        let parts: Vec<PartId> = std::mem::take(&mut self.sent).into_values().collect();
        let (bucket, key, id) = (&self.bucket, &self.key, &self.id);
        let send = || bucket.client.complete_multipart(key, id, parts.clone());
        let done = bucket.answered(Act::Upload, key.as_ref(), &self.requests, send).await;
        match done {
            Ok(_) => {}
            // An earlier sending has done it, and its answer was lost: the upload is gone, and the object there.
            Err(fault) if fault.is_absent() || fault.is_passing() => {
                if bucket.size(key, &self.requests).await? != Some(self.bytes) {
                    return Err(fault);
                }
            }
            Err(fault) => return Err(fault),
        }
        self.open = false;
        Ok(())
    }

    /// Gives up.
    pub(in crate::storage) async fn abort(&mut self) -> Result<(), Fault> {
        // A part that lands behind the abort would keep its bytes.
        self.sending.shutdown().await;
        self.bucket.abort_upload(&self.key, &self.id, &self.requests).await?;
        self.open = false;
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        // A round may be dropped anywhere; nobody waits for this.
        let Ok(handle) = tokio::runtime::Handle::try_current() else { return };
        let (bucket, key, id, requests) = (Arc::clone(&self.bucket), self.key.clone(), self.id.clone(), Arc::clone(&self.requests));
        let mut sending = std::mem::take(&mut self.sending);
        handle.spawn(async move {
            sending.shutdown().await;
            if let Err(fault) = bucket.abort_upload(&key, &id, &requests).await {
                tracing::debug!(key = key.as_ref(), %fault, "an upload that was given up hangs; `lakeward orphans` finds it");
            }
        });
    }
}
