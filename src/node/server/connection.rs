//! Frames in and out: one task reads a connection, one writes it, one per request answers.
//!
//! How long any of it may take and how much memory it may hold is up to `clients`.

use std::sync::Arc;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::codec::Decoder;
use tokio_util::task::TaskTracker;

use super::Server;
use super::clients::{Client, Held, InFlight};
use super::login::Login;
use crate::error::Error;
use crate::fluss::api::ApiKey;
use crate::fluss::frame::{FrameError, RequestCodec, RequestFrame, ResponseFrame, SERVER_FRAME_BYTES_MAX, announced};
use crate::runtime::Clock;

/// Requests of one connection that are answered at the same time; more wait unread.
const IN_FLIGHT_MAX: usize = 1024;
/// Answers that wait to be written.
const WRITE_QUEUE: usize = 16;
/// Bytes that are read at once.
const READ: usize = 8 << 10;
/// Largest frame of a client that has not logged in where it has to.
const STRANGER_BYTES_MAX: usize = 64 << 10;
/// How long a stopping node waits for a client to take the answers.
const DRAIN_MAX: std::time::Duration = std::time::Duration::from_secs(10);
/// Pause after a connection could not be accepted: most likely there are too many.
const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Takes connections until the node stops.
pub(in crate::node) async fn accept(server: Arc<Server>, listener: TcpListener, tasks: TaskTracker) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = server.stopping.cancelled() => return,
        };
        match accepted {
            Ok((stream, peer)) => match server.clients.enter(peer) {
                Some(client) => {
                    tracing::debug!(%peer, "connection opened");
                    tasks.spawn(serve(Arc::clone(&server), client, stream));
                }
                None => {
                    tracing::warn!(%peer, "connection refused: there are too many (`clients.connections_max`), and all are busy")
                }
            },
            Err(error) => {
                tracing::warn!(%error, "connection not accepted");
                server.runtime.clock.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// An answer on its way, and what it holds until it is written.
struct Outgoing {
    frame: ResponseFrame,
    _held: Held,
    _begun: Option<(OwnedSemaphorePermit, InFlight)>,
}

impl From<ResponseFrame> for Outgoing {
    fn from(frame: ResponseFrame) -> Self {
        Self { frame, _held: Held::none(), _begun: None }
    }
}

/// Serves one connection until it closes or the node stops; answers what it has read in either case, also where the client has closed
/// its side only.
///
/// Requests run side by side, so that a long poll delays nobody; but writes are put into their logs and states one after another, in the order in
/// which they came, before the next frame is read (S1.5).
async fn serve(server: Arc<Server>, client: Arc<Client>, stream: TcpStream) {
    // Small answers must not wait for each other; without it they only come later.
    drop(stream.set_nodelay(true));
    let (reader, writer) = stream.into_split();
    let (answers, queue) = mpsc::channel::<Outgoing>(WRITE_QUEUE);
    let mut writing = tokio::spawn(write(writer, queue, Arc::clone(&client), server.runtime.clock.clone()));
    tokio::select! {
        () = read(&server, &client, reader, answers) => {}
        () = server.stopping.cancelled() => {}
        () = client.closed.cancelled() => {}
    }
    client.ended.cancel();
    let stopped = async {
        server.stopping.cancelled().await;
        server.runtime.clock.sleep(DRAIN_MAX).await;
    };
    tokio::select! {
        _written = &mut writing => {}
        // A client that takes nothing must not keep the node from stopping.
        () = stopped => writing.abort(),
    }
    // What nobody can be told any more need not be waited for.
    client.closed.cancel();
    server.clients.leave(&client);
}

/// Reads requests and has them answered, until there are no more.
async fn read(server: &Arc<Server>, client: &Arc<Client>, half: OwnedReadHalf, answers: mpsc::Sender<Outgoing>) {
    let users = &server.options.users;
    let mut login = Login::of(users);
    let mut incoming = Incoming { half, buffer: BytesMut::new(), client: Arc::clone(client), clock: server.runtime.clock.clone() };
    let in_flight = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
    loop {
        let bytes_max = if login == Login::Wanted { STRANGER_BYTES_MAX } else { SERVER_FRAME_BYTES_MAX };
        let (frame, held) = match incoming.next(bytes_max).await {
            Ok(Some(next)) => next,
            Ok(None) => return,
            Err(error) => {
                let failure = ResponseFrame::Failure((&Error::from(error)).into());
                drop(answers.send(failure.into()).await);
                return;
            }
        };
        let answer = login.answer(&frame, users);
        if login != Login::Wanted {
            client.greet();
        }
        if let Some(answer) = answer {
            // Before the next frame is read, which may rely on it.
            drop(answers.send(answer.into()).await);
            continue;
        }
        let Ok(permit) = Arc::clone(&in_flight).acquire_owned().await else { return };
        let begun = (permit, client.begin());
        let (server, client, answers) = (Arc::clone(server), Arc::clone(client), answers.clone());
        let send = async move |frame, held| {
            drop(answers.send(Outgoing { frame, _held: held, _begun: Some(begun) }).await);
        };
        match ApiKey::from_number(frame.key) {
            Some(ApiKey::ProduceLog) => {
                let appended = server.append(frame).await;
                tokio::spawn(async move { send(appended.acknowledged().await, Held::none()).await });
            }
            Some(ApiKey::PutKv) => {
                let put = server.put(frame).await;
                tokio::spawn(async move { send(put.acknowledged().await, Held::none()).await });
            }
            Some(ApiKey::FetchLog) => {
                tokio::spawn(async move {
                    // Reads alone: it need not be done for a client that has gone.
                    let fetched = tokio::select! {
                        fetched = server.fetch(frame, &client) => fetched,
                        () = client.closed.cancelled() => None,
                    };
                    drop(held);
                    if let Some((answer, room)) = fetched {
                        send(answer, room).await;
                    }
                });
            }
            key => {
                // Apart from this task: what was begun is done, even if the client goes away.
                tokio::spawn(async move {
                    let _working = client.working.acquire().await;
                    let least = key.map_or(0, answer_estimate);
                    let Some(mut room) = client.hold_answer(least).await else { return };
                    let answer = server.answer(frame).await;
                    drop(held);
                    let bytes = if let ResponseFrame::Success { body, .. } = &answer { body.len() } else { 0 };
                    if bytes > room.bytes() {
                        drop(room);
                        match client.hold_answer(bytes).await {
                            Some(more) => room = more,
                            None => return,
                        }
                    }
                    room.shrink(bytes);
                    send(answer, room).await;
                });
            }
        }
    }
}

/// Room for an answer before it is made, where it is usually large.
const fn answer_estimate(key: ApiKey) -> usize {
    match key {
        ApiKey::LimitScan => 64 << 20,
        ApiKey::ScanKv => 10 << 20,
        ApiKey::Lookup | ApiKey::PrefixLookup => 1 << 20,
        _ => 0,
    }
}

/// The requests of a connection.
struct Incoming {
    half: OwnedReadHalf,
    buffer: BytesMut,
    client: Arc<Client>,
    clock: Clock,
}

impl Incoming {
    /// The next request, and the memory that it holds until it is carried out. `None` = the client has closed its side, or is given up.
    async fn next(&mut self, bytes_max: usize) -> Result<Option<(RequestFrame, Held)>, FrameError> {
        let mut codec = RequestCodec { bytes_max };
        let mut held = None;
        self.client.reads(self.buffer.len());
        loop {
            if let Some(frame) = codec.decode(&mut self.buffer)? {
                self.client.is_through(true);
                return Ok(Some((frame, held.unwrap_or(Held::none()))));
            }
            if held.is_none()
                && let Some(bytes) = announced(&self.buffer)
            {
                // Its time begins when there is room; until then it is we who are slow.
                let waits = self.client.begin();
                self.client.reads(0);
                held = Some(self.client.hold_request(bytes).await);
                self.client.reads(self.buffer.len());
                drop(waits);
            }
            let until = match self.client.read_until() {
                Ok(until) => until,
                Err(why) => {
                    self.client.give_up(why);
                    return Ok(None);
                }
            };
            if self.buffer.len() == self.buffer.capacity() {
                self.buffer.reserve(READ);
            }
            let left = until.saturating_duration_since(self.clock.moment());
            match self.clock.timeout(left, self.half.read_buf(&mut self.buffer)).await {
                None => {}
                Some(Err(source)) => return Err(source.into()),
                Some(Ok(0)) if self.buffer.is_empty() => return Ok(None),
                Some(Ok(0)) => return Err(FrameError::CutOff(self.buffer.len())),
                Some(Ok(bytes)) => self.client.came(bytes),
            }
        }
    }
}

/// Writes answers until there are no more, or the client takes none.
async fn write(mut half: OwnedWriteHalf, mut queue: mpsc::Receiver<Outgoing>, client: Arc<Client>, clock: Clock) {
    let work = async {
        while let Some(outgoing) = queue.recv().await {
            let Outgoing { frame, _held, _begun } = outgoing;
            let Ok((head, body)) = frame.into_wire() else { return };
            let mut bytes = head.chain(body);
            client.writes();
            while bytes.has_remaining() {
                let left = client.write_until().saturating_duration_since(clock.moment());
                match clock.timeout(left, half.write_buf(&mut bytes)).await {
                    Some(Ok(written)) => client.went(written),
                    // The client has gone; what it still asked for is done and dropped.
                    Some(Err(_gone)) => return,
                    None => {
                        client.give_up("it does not take its answers");
                        return;
                    }
                }
            }
            client.is_through(false);
        }
    };
    tokio::select! {
        () = work => {}
        () = client.closed.cancelled() => {}
    }
    client.closed.cancel();
}
