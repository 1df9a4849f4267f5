//! A server for unit tests: answers each request by a closure, over loopback.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use prost::Message;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::codec::{Decoder, Encoder, Framed};

use super::api::ApiKey;
use super::frame::{FrameError, RequestCodec, RequestFrame, ResponseCodec, ResponseFrame};
use super::proto::{ApiVersionsResponse, MetadataResponse, PbApiVersion, PbServerNode};
use crate::error::Result;

/// The server's side of a connection.
pub(crate) struct ServerCodec;

impl Decoder for ServerCodec {
    type Item = RequestFrame;
    type Error = FrameError;
    fn decode(&mut self, source: &mut BytesMut) -> Result<Option<RequestFrame>, FrameError> {
        RequestCodec::default().decode(source)
    }
}

impl Encoder<ResponseFrame> for ServerCodec {
    type Error = FrameError;
    fn encode(&mut self, frame: ResponseFrame, target: &mut BytesMut) -> Result<(), FrameError> {
        ResponseCodec::default().encode(frame, target)
    }
}

/// The server's side of a connection over TCP.
pub(crate) type ServerStream = Framed<TcpStream, ServerCodec>;

/// What a fake server does with a request.
pub(crate) enum Reply {
    /// Answers with this message.
    Message(Vec<u8>),
    /// Answers with this error.
    Error(crate::error::Error),
    /// Hangs up.
    HangUp,
}

impl<M: Message> From<M> for Reply {
    fn from(message: M) -> Self {
        Self::Message(message.encode_to_vec())
    }
}

/// A listening server; ends with the runtime of its test.
#[derive(Debug)]
pub(crate) struct FakeServer {
    pub(crate) port: i32,
    pub(crate) requests: Arc<AtomicUsize>,
}

impl FakeServer {
    /// Listens; `handler` answers everything but ApiVersions. `max` caps the offered versions.
    pub(crate) async fn start(
        server_type: Option<i32>,
        max: i16,
        handler: impl Fn(ApiKey, i16, Bytes) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port().into();
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        let handler = Arc::new(handler);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (handler, count) = (Arc::clone(&handler), Arc::clone(&count));
                tokio::spawn(async move {
                    let mut stream = Framed::new(stream, ServerCodec);
                    while let Some(Ok(frame)) = stream.next().await {
                        let key = ApiKey::from_number(frame.key).unwrap();
                        let reply = if key == ApiKey::ApiVersions {
                            versions(server_type, max).into()
                        } else {
                            count.fetch_add(1, Ordering::SeqCst);
                            handler(key, frame.version, frame.body)
                        };
                        let answer = match reply {
                            Reply::Message(body) => ResponseFrame::Success { id: frame.id, body: body.into() },
                            Reply::Error(error) => ResponseFrame::error(frame.id, &error),
                            Reply::HangUp => return,
                        };
                        if stream.send(answer).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { port, requests }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

fn versions(server_type: Option<i32>, max: i16) -> ApiVersionsResponse {
    let api_versions = ApiKey::ALL.iter().map(|key| PbApiVersion {
        api_key: key.number().into(),
        min_version: 0,
        max_version: key.versions().1.min(max).into(),
    });
    ApiVersionsResponse { api_versions: api_versions.collect(), server_type }
}

/// Metadata that names `coordinator` and tablet servers 0, 1, … at these ports.
pub(crate) fn servers(coordinator: i32, tablets: &[i32]) -> MetadataResponse {
    let node = |node_id, port| PbServerNode { node_id, host: "127.0.0.1".into(), port, listeners: None, rack: None };
    MetadataResponse {
        coordinator_server: Some(node(0, coordinator)),
        tablet_servers: tablets.iter().zip(0..).map(|(port, id)| node(id, *port)).collect(),
        ..Default::default()
    }
}

/// The request in `body`.
pub(crate) fn read<M: Message + Default>(body: Bytes) -> M {
    M::decode(body).unwrap()
}
