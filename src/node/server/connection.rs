//! Frames in and out: one task reads a connection, one writes it, one per request answers.

use std::sync::Arc;

use futures::{SinkExt, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::codec::{FramedRead, FramedWrite};
use tokio_util::task::TaskTracker;

use super::Server;
use super::login::Login;
use crate::error::Error;
use crate::fluss::api::ApiKey;
use crate::fluss::frame::{RequestCodec, ResponseCodec, ResponseFrame};

/// Requests of one connection that are answered at the same time; more wait unread.
const IN_FLIGHT_MAX: usize = 1024;
/// Answers that wait to be written.
const WRITE_QUEUE: usize = 16;
/// How long a closing connection waits for its client to take the answers.
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
            Ok((stream, peer)) => {
                tracing::debug!(%peer, "connection opened");
                tasks.spawn(serve(Arc::clone(&server), stream));
            }
            Err(error) => {
                tracing::warn!(%error, "connection not accepted");
                server.runtime.clock.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one connection until it closes or the node stops; answers what it has read in either case.
///
/// Requests run side by side, so that a long poll delays nobody; but writes are put into their logs and states one after another, in the order in
/// which they came, before the next frame is read (S1.5).
async fn serve(server: Arc<Server>, stream: TcpStream) {
    // Small answers must not wait for each other; without it they only come later.
    drop(stream.set_nodelay(true));
    let (reader, writer) = stream.into_split();
    let mut requests = FramedRead::new(reader, RequestCodec::default());
    let (answers, mut queue) = mpsc::channel::<ResponseFrame>(WRITE_QUEUE);
    let mut writing = tokio::spawn(async move {
        let mut answers = FramedWrite::new(writer, ResponseCodec { bytes_max: i32::MAX as usize });
        while let Some(answer) = queue.recv().await {
            if answers.send(answer).await.is_err() {
                // The client has gone; what it still asked for is done and dropped.
                return;
            }
        }
    });
    let mut login = Login::of(&server.options.users);
    let in_flight = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
    loop {
        let request = tokio::select! {
            request = requests.next() => request,
            () = server.stopping.cancelled() => break,
        };
        let frame = match request {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                let failure = ResponseFrame::Failure((&Error::from(error)).into());
                drop(answers.send(failure).await);
                break;
            }
            None => break,
        };
        if let Some(answer) = login.answer(&frame, &server.options.users) {
            // Before the next frame is read, which may rely on it.
            drop(answers.send(answer).await);
            continue;
        }
        let Ok(permit) = Arc::clone(&in_flight).acquire_owned().await else { break };
        let (server, answers) = (Arc::clone(&server), answers.clone());
        if frame.key == ApiKey::ProduceLog.number() {
            let appended = server.append(frame).await;
            tokio::spawn(async move {
                drop(answers.send(appended.acknowledged().await).await);
                drop(permit);
            });
        } else if frame.key == ApiKey::PutKv.number() {
            let put = server.put(frame).await;
            tokio::spawn(async move {
                drop(answers.send(put.acknowledged().await).await);
                drop(permit);
            });
        } else {
            // Apart from this task: what was begun is done, even if the client goes away.
            tokio::spawn(async move {
                drop(answers.send(server.answer(frame).await).await);
                drop(permit);
            });
        }
    }
    drop(answers);
    // A client that takes nothing must not keep the node from stopping.
    if server.runtime.clock.timeout(DRAIN_MAX, &mut writing).await.is_none() {
        writing.abort();
    }
}
