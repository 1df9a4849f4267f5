//! One TCP connection to a server: many requests in flight, answers matched by id.
//!
//! Owns the handshake (ApiVersions, SASL), version choice, time-outs and what happens when the connection dies. Does not own
//! which server to ask, nor repeating: see `cluster`. Two tasks per connection, one that writes and one that reads;
//! neither waits for a caller, so a slow answer holds up nobody else.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio_util::codec::{Decoder, FramedRead, FramedWrite};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::api::{ApiKey, Request};
use super::auth;
pub use super::auth::Credentials;
use super::code::Code;
use super::frame::{
    self, CLIENT_FRAME_BYTES_MAX, FAILURE_BYTES_MAX, FrameError, RequestCodec, RequestFrame, ResponseCodec, ResponseFrame,
    SERVER_FRAME_BYTES_MAX,
};
use super::proto::{self, ApiVersionsRequest, ErrorResponse};
use crate::error::{Error, Kind, Result};
use crate::runtime::{Backoff, BackoffOptions, Clock, Moment, Runtime};

/// Requests that wait to be written; more wait in their callers.
const WRITE_QUEUE: usize = 64;

/// Requests that nobody waits for any more and whose answers may still come; with more the connection is given up.
const ABANDONED_MAX: usize = 1024;

/// Pauses while a server asks to come back (51) with the credentials (F2.2); all of them fit into the connect time-out.
const LOGIN: BackoffOptions = BackoffOptions { first: Duration::from_millis(100), max: Duration::from_secs(5), attempts_max: 6 };

/// Bounds of a [`Connection`], and who it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionOptions {
    /// Who we are, for clusters that ask (SASL/PLAIN); `None` sends nothing (PLAINTEXT). Every new connection logs in with it.
    pub credentials: Option<Credentials>,
    /// For connecting and the handshake together.
    pub connect_timeout: Duration,
    /// From handing in a request to its answer. Official servers never answer what they can't read (F2.1).
    pub request_timeout: Duration,
    /// Largest answer taken.
    pub frame_bytes_max: usize,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self {
            credentials: None,
            connect_timeout: Duration::from_secs(15),
            request_timeout: Duration::from_secs(30),
            frame_bytes_max: CLIENT_FRAME_BYTES_MAX,
        }
    }
}

/// What a server says it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServerType {
    /// Type 1.
    Coordinator,
    /// Type 2.
    Tablet,
}

impl std::fmt::Display for ServerType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Coordinator => "coordinator",
            Self::Tablet => "tablet server",
        })
    }
}

/// A connection that has shaken hands. Clones share it; it closes with the last clone.
#[derive(Debug, Clone)]
pub struct Connection {
    address: Arc<str>,
    shared: Arc<Shared>,
    frames: mpsc::Sender<RequestFrame>,
    versions: Arc<BTreeMap<i32, (i32, i32)>>,
    server_type: Option<ServerType>,
    frame_bytes_max: usize,
    runtime: Runtime,
    // Ends both tasks when the last clone goes.
    _close: Arc<DropGuard>,
}

/// What callers and the two tasks share.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Ends both tasks.
    closed: CancellationToken,
    clock: Clock,
    request_timeout: Duration,
    /// Bytes of a frame that is not here whole.
    partial: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    next_id: i32,
    waiting: BTreeMap<i32, Waiting>,
    /// Sent, not answered, and nobody waits: largest answers by id.
    abandoned: BTreeMap<i32, usize>,
    /// Frames that came in so far, to tell a slow answer from a dead peer.
    received: u64,
    /// Since when an answer is due and no frame at all has come.
    silent_since: Option<Moment>,
    /// Why no more answers will come.
    death: Option<Death>,
}

#[derive(Debug)]
struct Waiting {
    sender: oneshot::Sender<Result<Bytes, ErrorResponse>>,
    /// Largest answer taken.
    bytes_max: usize,
    sent: bool,
}

/// An error that many callers get.
#[derive(Debug, Clone)]
struct Death {
    kind: Kind,
    message: String,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails everything in flight and all that comes later. The first cause stays.
    fn die(&self, kind: Kind, message: impl Into<String>) {
        let waiting = {
            let mut state = self.state();
            state.death.get_or_insert(Death { kind, message: message.into() });
            std::mem::take(&mut state.waiting)
        };
        // Callers find the cause in `death` when their sender is gone.
        drop(waiting);
        self.closed.cancel();
    }

    fn answer(&self, id: i32, answer: Result<Bytes, ErrorResponse>) {
        let waiter = {
            let mut state = self.state();
            state.received += 1;
            // No waiter: it timed out or was dropped.
            state.abandoned.remove(&id);
            let waiter = state.waiting.remove(&id);
            let due = !state.abandoned.is_empty() || state.waiting.values().any(|waiting| waiting.sent);
            state.silent_since = due.then(|| self.clock.moment());
            waiter
        };
        if let Some(waiter) = waiter {
            drop(waiter.sender.send(answer));
        }
    }

    /// The largest answer to request `id` that is taken; `None` when no answer to it is due.
    fn due(&self, id: i32) -> Option<usize> {
        let state = self.state();
        let sent = state.waiting.get(&id).filter(|waiting| waiting.sent).map(|waiting| waiting.bytes_max);
        sent.or_else(|| state.abandoned.get(&id).copied())
    }

    /// Gives up a peer that has said nothing for longer than one request may take, also where no caller waited to the end. Half as long
    /// again: an answer that just misses its time-out is late, not lost.
    fn give_up_the_silent(&self) {
        let silent_since = self.state().silent_since;
        if silent_since.is_some_and(|since| since.elapsed() >= self.request_timeout * 3 / 2) {
            self.die(Kind::Unavailable, self.no_answer());
        }
    }

    fn no_answer(&self) -> String {
        let within = self.request_timeout.as_secs_f32();
        match self.partial.load(Ordering::Relaxed) {
            0 => format!("no answer within {within} s"),
            bytes => format!("no answer within {within} s, only {bytes} bytes of one"),
        }
    }
}

/// Answers, as far as they are due.
struct Answers {
    shared: Arc<Shared>,
    bytes_max: usize,
}

impl Decoder for Answers {
    type Item = ResponseFrame;
    type Error = FrameError;

    fn decode(&mut self, source: &mut BytesMut) -> Result<Option<ResponseFrame>, FrameError> {
        let bytes_max = match ResponseFrame::answered(source) {
            Some(id) if frame::announced(source).is_some_and(|bytes| bytes <= self.bytes_max) => {
                self.shared.due(id).ok_or(FrameError::NotOpen(id))?
            }
            _ if source.get(4).is_some_and(|kind| *kind > 1) => FAILURE_BYTES_MAX,
            _ => self.bytes_max,
        };
        let frame = ResponseCodec { bytes_max }.decode(source)?;
        self.shared.partial.store(if frame.is_none() { source.len() } else { 0 }, Ordering::Relaxed);
        Ok(frame)
    }

    fn decode_eof(&mut self, source: &mut BytesMut) -> Result<Option<ResponseFrame>, FrameError> {
        match self.decode(source)? {
            None if !source.is_empty() => Err(FrameError::CutOff(source.len())),
            frame => Ok(frame),
        }
    }
}

/// A caller's place among the waiting; leaves it when dropped.
struct Place<'a> {
    shared: &'a Shared,
    id: i32,
    received_before: u64,
}

impl Place<'_> {
    /// The request is on its way: an answer is due.
    fn sent(&self) {
        let mut state = self.shared.state();
        if let Some(waiting) = state.waiting.get_mut(&self.id) {
            waiting.sent = true;
            let now = self.shared.clock.moment();
            state.silent_since.get_or_insert(now);
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let too_many = {
            let mut state = self.shared.state();
            if let Some(left) = state.waiting.remove(&self.id).filter(|waiting| waiting.sent) {
                state.abandoned.insert(self.id, left.bytes_max);
            }
            state.abandoned.len() > ABANDONED_MAX
        };
        if too_many {
            self.shared.die(Kind::Unavailable, format!("server leaves more than {ABANDONED_MAX} requests unanswered"));
        }
    }
}

impl Connection {
    /// Connects to `address` (`HOST:PORT`) and shakes hands.
    ///
    /// # Errors
    /// `Unavailable` when the server can't be reached in time or hangs up; `Data` when it does not speak this protocol;
    /// `Invalid` with code 46 when it refuses the credentials.
    ///
    /// Source: F2.2.
    pub async fn connect(address: &str, options: &ConnectionOptions, runtime: &Runtime) -> Result<Self> {
        let limit = options.connect_timeout;
        let connected = runtime.clock.timeout(limit, Box::pin(Self::open(address, options, runtime))).await;
        connected
            .unwrap_or_else(|| {
                Err(Error::unavailable(format!("no answer within {} s", limit.as_secs_f32())).with_code(Code::NETWORK_EXCEPTION.0))
            })
            .map_err(|error| error.context(format!("connect to `{address}`")))
    }

    async fn open(address: &str, options: &ConnectionOptions, runtime: &Runtime) -> Result<Self> {
        let refused = |source: std::io::Error| {
            Error::unavailable("can't be reached").with_code(Code::NETWORK_EXCEPTION.0).with_source(source)
        };
        let stream = TcpStream::connect(address).await.map_err(refused)?;
        stream.set_nodelay(true).map_err(refused)?;
        let (reader, writer) = stream.into_split();
        let closed = CancellationToken::new();
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            closed: closed.clone(),
            clock: runtime.clock.clone(),
            request_timeout: options.request_timeout,
            partial: AtomicUsize::new(0),
        });
        let (frames, queue) = mpsc::channel(WRITE_QUEUE);
        tokio::spawn(write(writer, queue, Arc::clone(&shared)));
        tokio::spawn(read(reader, options.frame_bytes_max, Arc::clone(&shared)));
        let mut connection = Self {
            address: address.into(),
            shared,
            frames,
            // What the handshake itself needs.
            versions: Arc::new(BTreeMap::from([(ApiKey::ApiVersions.number().into(), (0, 0))])),
            server_type: None,
            frame_bytes_max: options.frame_bytes_max,
            runtime: runtime.clone(),
            _close: Arc::new(closed.drop_guard()),
        };
        let hello = ApiVersionsRequest {
            client_software_name: env!("CARGO_PKG_NAME").to_owned(),
            client_software_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let offered = connection.call(&hello).await?;
        connection.versions = Arc::new(
            offered.api_versions.into_iter().map(|version| (version.api_key, (version.min_version, version.max_version))).collect(),
        );
        connection.server_type = match offered.server_type {
            Some(1) => Some(ServerType::Coordinator),
            Some(2) => Some(ServerType::Tablet),
            _ => None,
        };
        if let Some(credentials) = &options.credentials {
            connection.log_in(credentials).await?;
        }
        Ok(connection)
    }

    /// Proves who we are: one exchange, repeated as long as the server asks for patience.
    async fn log_in(&self, credentials: &Credentials) -> Result<()> {
        let mut backoff = Backoff::new(LOGIN, &self.runtime.rng);
        let user = credentials.username();
        loop {
            let error = match self.call(&credentials.request()).await {
                // PLAIN ends with an empty challenge or none.
                Ok(answer) if answer.challenge.as_ref().is_none_or(Bytes::is_empty) => return Ok(()),
                Ok(_) => Error::unsupported("the server asks for more than SASL/PLAIN has to say"),
                Err(error) => error,
            };
            let pause = backoff.next_pause().filter(|_| error.code() == Some(Code::RETRIABLE_AUTHENTICATE.0));
            let Some(pause) = pause else {
                let error = error.context(format!("log in as `{user}`"));
                return Err(if error.kind() == Kind::Unavailable { error } else { error.with_hint(auth::HINT) });
            };
            self.runtime.clock.sleep(pause).await;
        }
    }

    /// `HOST:PORT` of the server.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What the server says it is; `None` when it does not say.
    #[must_use]
    pub fn server_type(&self) -> Option<ServerType> {
        self.server_type
    }

    /// Whether it can't be used any more.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.shared.give_up_the_silent();
        self.shared.closed.is_cancelled()
    }

    /// The version that requests of `key` are sent with: the highest that both sides speak.
    ///
    /// # Errors
    /// `Unsupported` with code 2 when there is none; nothing was sent then.
    pub fn version(&self, key: ApiKey) -> Result<i16> {
        let (ours_min, ours_max) = key.versions();
        let refuse = |what: &str| Code::UNSUPPORTED_VERSION.error(format!("server `{}` {what} `{key}`", self.address));
        let (min, max) = self.versions.get(&key.number().into()).ok_or_else(|| refuse("does not offer"))?;
        let version = i32::from(ours_max).min(*max);
        if version < (*min).max(ours_min.into()) {
            return Err(refuse(&format!("speaks versions {min} to {max}, we {ours_min} to {ours_max} of")));
        }
        i16::try_from(version).map_err(|_out_of_range| refuse("offers a version out of range of"))
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// What the server refused the whole request for, by its code ([`Code::kind`]); `Unavailable` with code 1 when the
    /// connection died or no answer came in time (whether the request was carried out is then unknown); `Unsupported`
    /// when there is no common version; `Data` when the answer can't be read.
    pub async fn call<R: Request>(&self, request: &R) -> Result<R::Response> {
        let key = R::KEY;
        let version = self.version(key)?;
        let body = Bytes::from(request.encode_to_vec());
        if body.len() > SERVER_FRAME_BYTES_MAX - 8 {
            return Err(Error::invalid(format!("`{key}` request of {} bytes is larger than servers take", body.len())));
        }
        let named = |error: Error| {
            let error = error.context(format!("`{key}` to `{}`", self.address));
            if error.code() == Some(Code::AUTHENTICATE.0) { error.with_hint(auth::HINT) } else { error }
        };
        let body = self.exchange(key, version, body).await.map_err(named)?;
        proto::decode(key.name(), body).map_err(named)
    }

    async fn exchange(&self, key: ApiKey, version: i16, body: Bytes) -> Result<Bytes> {
        self.shared.give_up_the_silent();
        let (sender, answer) = oneshot::channel();
        let place = self.enter(sender, key.answer_bytes_max(self.frame_bytes_max))?;
        let frame = RequestFrame { key: key.number(), version, id: place.id, body };
        let outcome = self
            .runtime
            .clock
            .timeout(self.shared.request_timeout, async {
                // Either fails only when the connection has died; the cause is in the state.
                let slot = self.frames.reserve().await.ok()?;
                place.sent();
                slot.send(frame);
                answer.await.ok()
            })
            .await;
        match outcome {
            Some(Some(Ok(body))) => Ok(body),
            Some(Some(Err(error))) => Err(Code::refusal(Some(error.error_code), error.error_message.as_deref())
                .unwrap_or_else(|| Code::UNKNOWN_SERVER_ERROR.error("server refused without a code"))),
            Some(None) => Err(self.death()),
            None => {
                let message = self.shared.no_answer();
                // Nothing at all came in meanwhile: the peer is gone without a word, and others should not wait as long.
                if self.shared.state().received == place.received_before {
                    self.shared.die(Kind::Unavailable, message.clone());
                }
                Err(Error::unavailable(message).with_code(Code::NETWORK_EXCEPTION.0))
            }
        }
    }

    fn enter(&self, sender: oneshot::Sender<Result<Bytes, ErrorResponse>>, bytes_max: usize) -> Result<Place<'_>> {
        let mut state = self.shared.state();
        if let Some(death) = &state.death {
            return Err(death.error());
        }
        // Ids go round; one that is still waited for is passed over.
        while state.waiting.contains_key(&state.next_id) || state.abandoned.contains_key(&state.next_id) {
            state.next_id = next(state.next_id);
        }
        let id = state.next_id;
        state.next_id = next(id);
        state.waiting.insert(id, Waiting { sender, bytes_max, sent: false });
        Ok(Place { shared: &self.shared, id, received_before: state.received })
    }

    fn death(&self) -> Error {
        let cause = self.shared.state().death.clone();
        cause.map_or_else(|| Error::unavailable("connection closed").with_code(Code::NETWORK_EXCEPTION.0), |death| death.error())
    }

    #[cfg(test)]
    fn waiting(&self) -> usize {
        self.shared.state().waiting.len()
    }
}

impl Death {
    fn error(&self) -> Error {
        let error = Error::new(self.kind, self.message.clone());
        match self.kind {
            Kind::Unavailable => error.with_code(Code::NETWORK_EXCEPTION.0),
            // What came can't be read. Whether the request was carried out is unknown.
            Kind::Data => error.with_code(Code::CORRUPT_MESSAGE.0).with_hint("is this the address of a Fluss server?"),
            Kind::Stale | Kind::Invalid | Kind::Unsupported | Kind::Internal => error,
        }
    }
}

const fn next(id: i32) -> i32 {
    id.wrapping_add(1) & 0x7fff_ffff
}

async fn write(half: OwnedWriteHalf, mut queue: mpsc::Receiver<RequestFrame>, shared: Arc<Shared>) {
    let mut sink = FramedWrite::new(half, RequestCodec::default());
    let work = async {
        while let Some(frame) = queue.recv().await {
            sink.feed(frame).await?;
            while let Ok(frame) = queue.try_recv() {
                sink.feed(frame).await?;
            }
            sink.flush().await?;
        }
        Ok(())
    };
    tokio::select! {
        () = shared.closed.cancelled() => {}
        ended = work => {
            let error = ended.err().map_or_else(|| Error::unavailable("connection closed"), |error: FrameError| error.into());
            shared.die(error.kind(), error.chain());
        }
    }
}

async fn read(half: OwnedReadHalf, bytes_max: usize, shared: Arc<Shared>) {
    let mut stream = FramedRead::new(half, Answers { shared: Arc::clone(&shared), bytes_max });
    let work = async {
        loop {
            match stream.next().await {
                Some(Ok(ResponseFrame::Success { id, body })) => shared.answer(id, Ok(body)),
                Some(Ok(ResponseFrame::Error { id, error })) => shared.answer(id, Err(error)),
                Some(Ok(ResponseFrame::Failure(error))) => {
                    let text = error.error_message.as_deref().and_then(|text| text.lines().next()).unwrap_or_default().to_owned();
                    return (
                        Kind::Unavailable,
                        format!("server gave up the connection with error {}: {text}", Code(error.error_code)),
                    );
                }
                Some(Err(error)) => {
                    let error = Error::from(error);
                    return (error.kind(), error.chain());
                }
                None => return (Kind::Unavailable, "server closed the connection".to_owned()),
            }
        }
    };
    tokio::select! {
        () = shared.closed.cancelled() => {}
        (kind, message) = work => shared.die(kind, message),
    }
}

#[cfg(test)]
mod tests;
