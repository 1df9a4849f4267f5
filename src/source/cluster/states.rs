//! State scans over the wire (F5.7): one request in flight, counted calls, closed when dropped before the end.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::FutureExt;

use super::{ClusterSource, gone_is_stale};
use crate::error::{Error, Kind, Result};
use crate::fluss::api::ApiKey;
use crate::fluss::code::Code;
use crate::fluss::proto::{PbScanReqForBucket, ScanKvRequest, ScanKvResponse};
use crate::fluss::record::KvFormat;
use crate::model::TableInfo;
use crate::source::TableScan;
use crate::source::state::{STATE_BYTES_MAX, StateRequest, StateScan, StateSlice, state_lost};

/// A session at the leader of a bucket.
#[derive(Debug)]
struct Session {
    source: ClusterSource,
    request: StateRequest,
    server: i32,
    /// Empty: the server has none (any more).
    scanner: Bytes,
    calls: i32,
    log_offset: i64,
    /// Values that came and were not handed out.
    records: Option<Bytes>,
    more: bool,
    /// A call was made whose answer is not known: the sequence can't go on.
    broken: bool,
}

impl ClusterSource {
    /// Whether the tablet servers offer ScanKv; one of them is asked.
    pub(super) async fn offers_states(&self) -> Result<bool> {
        match self.cluster.tablet_version(ApiKey::ScanKv).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == Kind::Unsupported => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens a session. An answer that is lost leaves one behind at the server, which ends it when it is idle.
    pub(super) async fn open_session(&self, request: StateRequest) -> Result<Box<dyn StateScan>> {
        let (bucket, path) = (request.bucket, request.table.path.clone());
        let open = ScanKvRequest {
            scanner_id: None,
            bucket_scan_req: Some(PbScanReqForBucket {
                table_id: bucket.table.0,
                partition_id: bucket.partition.map(|partition| partition.0),
                bucket_id: bucket.bucket.0,
                limit: None,
                routing_bucket_count: Some(request.layout.count),
            }),
            call_seq_id: Some(0),
            batch_size_bytes: Some(request.bytes_max.clamp(1, STATE_BYTES_MAX)),
            close_scanner: None,
        };
        let answers = self.cluster.routed("scan the state", &path, [bucket], |server, _| {
            let (cluster, open) = (self.cluster.clone(), open.clone());
            async move {
                let answer = cluster.server(server, &open).await?;
                let refusal = Code::refusal(answer.error_code, answer.error_message.as_deref());
                Ok(vec![(bucket, refusal.map_or(Ok((server, answer)), Err))])
            }
            .boxed()
        });
        let opened = answers.await.map_err(gone_is_stale)?.remove(&bucket);
        let (server, answer) = opened.ok_or_else(|| Error::internal("a bucket without answer"))?;
        let mut session = Session {
            source: self.clone(),
            request,
            server,
            scanner: answer.scanner_id.clone().unwrap_or_default(),
            calls: 0,
            log_offset: answer.log_offset.unwrap_or(-1),
            records: None,
            more: false,
            broken: false,
        };
        session.take(answer).map_err(|error| session.located(error))?;
        if session.log_offset < 0 {
            return Err(session.located(Error::data("the first answer names no offset to go on at")));
        }
        Ok(Box::new(session))
    }
}

impl Session {
    fn located(&self, error: Error) -> Error {
        error.context(format!("scan the state of table `{}`, {}", self.request.table.path, self.request.bucket))
    }

    fn take(&mut self, answer: ScanKvResponse) -> Result<()> {
        let more = answer.has_more_results.ok_or_else(|| Error::data("the answer does not say whether more comes"))?;
        if more && self.scanner.is_empty() {
            return Err(Error::data("more is to come, but the answer names no scanner"));
        }
        self.records = Some(answer.records.unwrap_or_default());
        self.more = more;
        Ok(())
    }

    async fn call(&mut self) -> Result<()> {
        self.calls = self.calls.checked_add(1).ok_or_else(|| Error::internal("so many calls"))?;
        let request = ScanKvRequest {
            scanner_id: Some(self.scanner.clone()),
            bucket_scan_req: None,
            call_seq_id: Some(self.calls),
            batch_size_bytes: Some(self.request.bytes_max.clamp(1, STATE_BYTES_MAX)),
            close_scanner: None,
        };
        let answer = self.source.cluster.server(self.server, &request).await?;
        match Code::refusal(answer.error_code, answer.error_message.as_deref()) {
            Some(error) => Err(error),
            None => self.take(answer),
        }
    }

    /// Never sent twice: the sequence has gone on, whether the answer came or not.
    async fn go_on(&mut self) -> Result<()> {
        let bucket = self.request.bucket;
        if self.broken {
            return Err(self.located(state_lost(bucket, Error::unavailable("an answer was not waited for, or refused"))));
        }
        self.broken = true;
        match self.call().await {
            Ok(()) => {
                self.broken = false;
                Ok(())
            }
            Err(error) => {
                self.source.cluster.suspect(&self.request.table.path, bucket);
                let error = gone_is_stale(error);
                let lost = error.kind() == Kind::Unavailable;
                Err(self.located(if lost { state_lost(bucket, error) } else { error }))
            }
        }
    }

    async fn slice(&self, raw: Bytes) -> Result<StateSlice> {
        let table: &TableInfo = &self.request.table;
        let mut schemas = BTreeMap::new();
        for id in StateSlice::schema_ids(&raw)? {
            let known = id == table.schema.id;
            let schema = if known { Arc::clone(&table.schema) } else { self.source.schema(&table.path, id).await? };
            schemas.insert(id, schema);
        }
        Ok(StateSlice::new(self.request.bucket, KvFormat::of(table)?, raw, schemas))
    }
}

#[async_trait]
impl StateScan for Session {
    fn log_offset(&self) -> i64 {
        self.log_offset
    }

    fn is_done(&self) -> bool {
        self.records.is_none() && !self.more
    }

    async fn next(&mut self) -> Result<Option<StateSlice>> {
        if self.records.is_none() {
            if !self.more {
                return Ok(None);
            }
            self.go_on().await?;
        }
        let raw = self.records.take().unwrap_or_default();
        self.slice(raw).await.map(Some).map_err(|error| self.located(error))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.more || self.scanner.is_empty() {
            return;
        }
        let request = ScanKvRequest {
            scanner_id: Some(std::mem::take(&mut self.scanner)),
            close_scanner: Some(true),
            ..ScanKvRequest::default()
        };
        let (source, server) = (self.source.clone(), self.server);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                // What fails here ends by itself when it is idle.
                if let Err(error) = source.cluster.server(server, &request).await {
                    tracing::debug!(error = %error.chain(), "a state scan was not closed");
                }
            });
        }
    }
}
