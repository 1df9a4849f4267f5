//! The admin endpoints: `/metrics`, `/healthz`, `/readyz`, `/status`. Read-only, of the board; nobody waits for them.
//!
//! Owns what they answer and the bounds that keep whoever asks from harming the service: connections, header size, time.
//! Started by `cli`; it answers until its handle is dropped, so that a service that is asked to stop can be watched to its end.

mod health;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::task::AbortOnDropHandle;

use super::board::{Board, ServiceStatus, TableState, TableStatus};
use crate::error::{Error, Kind, Result};
use crate::runtime::Runtime;
use crate::telemetry;

/// Connections at once; with one more, the oldest is closed: a sound one is answered within milliseconds.
const CONNECTIONS_MAX: usize = 64;
/// How long a connection may take, from its first byte to the answer's last. It serves one request.
const CONNECTION_MAX: Duration = Duration::from_secs(10);
/// How long a request's head may take.
const HEAD_MAX: Duration = Duration::from_secs(5);
/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Header lines of a request.
const HEADERS_MAX: usize = 64;
/// Pause after a connection that could not be accepted: the process may be out of file handles.
const PAUSE: Duration = Duration::from_secs(1);
/// Time between two tidyings of the counts.
const TIDY: Duration = Duration::from_secs(60);

/// What `/status` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReport {
    /// Version of the binary.
    pub version: String,
    /// When it was told, epoch milliseconds.
    pub now_ms: i64,
    /// The service.
    pub service: ServiceStatus,
    /// Bytes that rows in flight may take.
    pub budget_bytes: usize,
    /// Bytes that they take.
    pub budget_used_bytes: usize,
    /// Each table, in the order of their paths.
    pub tables: Vec<TableStatus>,
}

impl StatusReport {
    /// How things are now.
    #[must_use]
    pub fn new(board: &Board, runtime: &Runtime) -> Self {
        let now_ms = runtime.clock.now_ms();
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            now_ms,
            service: board.service(),
            budget_bytes: runtime.budget.total(),
            budget_used_bytes: runtime.budget.used(),
            tables: board.tables(now_ms),
        }
    }

    /// The same for a scrape.
    fn gauges(&self) -> telemetry::State {
        let age = |since_ms: i64| u64::try_from(self.now_ms.saturating_sub(since_ms)).unwrap_or(0);
        let mut tables: BTreeMap<&'static str, u64> = TableState::ALL.iter().map(|state| (state.as_str(), 0)).collect();
        for table in &self.tables {
            *tables.entry(table.state.as_str()).or_default() += 1;
        }
        // What others do with a table is not ours to tell.
        let ours = |table: &TableStatus| !matches!(table.state, TableState::Excluded | TableState::Elsewhere);
        let held = |table: &&TableStatus| matches!(table.state, TableState::Held | TableState::Unsupported);
        telemetry::State {
            heartbeat_age_ms: age(self.service.heartbeat_ms.unwrap_or(self.service.started_ms)),
            rounds_running: tables.get(TableState::Tiering.as_str()).copied().unwrap_or_default(),
            held: self.tables.iter().filter(held).map(|table| table.kind.unwrap_or(Kind::Internal)).collect(),
            each: self
                .tables
                .iter()
                .map(|table| telemetry::TableState {
                    table: table.table.to_string(),
                    lag_seconds: table.lag_seconds.filter(|_| ours(table)),
                    lag_rows: table.lag_rows.filter(|_| ours(table)),
                    // One that never ended well ages from the start, so that an alert sees it.
                    success_age_ms: ours(table).then(|| age(table.last_success_ms.unwrap_or(self.service.started_ms))),
                    freshness_ms: table.freshness_ms.and_then(|ms| u64::try_from(ms).ok()),
                    rows: table.rows,
                })
                .collect(),
            tables,
            budget_bytes: self.budget_bytes,
            budget_used_bytes: self.budget_used_bytes,
        }
    }
}

/// The endpoints while they answer; dropped, they are gone.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    _task: AbortOnDropHandle<()>,
}

impl Admin {
    /// Answers on `listen`, `HOST:PORT`; port 0 takes a free one.
    ///
    /// # Errors
    /// `Invalid` names the address when it can't be listened on.
    pub async fn start(listen: &str, board: Board, runtime: &Runtime) -> Result<Self> {
        let refused = |source| {
            Error::invalid(format!("listen on `{listen}` for the admin endpoints"))
                .with_source(source)
                .with_hint("`admin.listen` is an address of this machine with a free port, or `off`")
        };
        let listener = TcpListener::bind(listen).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let exporter = telemetry::Exporter::install()?;
        telemetry::AdminListens { address }.emit();
        let asked = Arc::new(Asked { board, runtime: runtime.clone(), exporter });
        let task = async move {
            tokio::select! {
                () = serve(listener, Arc::clone(&asked)) => {}
                () = tidy(&asked) => {}
            }
        };
        Ok(Self { address, _task: AbortOnDropHandle::new(tokio::spawn(task)) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// What the answers are made of.
struct Asked {
    board: Board,
    runtime: Runtime,
    exporter: telemetry::Exporter,
}

impl Asked {
    fn report(&self) -> StatusReport {
        StatusReport::new(&self.board, &self.runtime)
    }
}

/// Takes connections until it is aborted; those that are open then are closed.
async fn serve(listener: TcpListener, asked: Arc<Asked>) {
    let clock = asked.runtime.clock.clone();
    let router = router(asked);
    let (mut connections, mut handles) = (JoinSet::new(), VecDeque::new());
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    handles.retain(|handle: &AbortHandle| !handle.is_finished());
                    if handles.len() >= CONNECTIONS_MAX
                        && let Some(oldest) = handles.pop_front()
                    {
                        oldest.abort();
                    }
                    let (router, clock) = (router.clone(), clock.clone());
                    handles.push_back(connections.spawn(async move {
                        // One that takes too long, or says what is no HTTP, is closed.
                        drop(clock.timeout(CONNECTION_MAX, answer(stream, router)).await);
                    }));
                }
                Err(error) => {
                    telemetry::AdminRefused { error: &error }.emit();
                    clock.sleep(PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn tidy(asked: &Asked) {
    loop {
        asked.runtime.clock.sleep(TIDY).await;
        asked.exporter.tidy();
    }
}

async fn answer(stream: TcpStream, router: Router) -> hyper::Result<()> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await
}

const PLACES: &str = "lakeward: /metrics, /healthz, /readyz, /status\n";

fn router(asked: Arc<Asked>) -> Router {
    Router::new()
        .route("/", get(async || PLACES))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/status", get(status))
        .fallback(async || (StatusCode::NOT_FOUND, PLACES))
        .with_state(asked)
}

async fn metrics(State(asked): State<Arc<Asked>>) -> impl IntoResponse {
    let text = asked.exporter.render(&asked.report().gauges());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

async fn healthz(State(asked): State<Arc<Asked>>) -> impl IntoResponse {
    told(health::alive(&asked.report()))
}

async fn readyz(State(asked): State<Arc<Asked>>) -> impl IntoResponse {
    told(health::ready(&asked.report()))
}

async fn status(State(asked): State<Arc<Asked>>) -> impl IntoResponse {
    Json(asked.report())
}

fn told(looked: std::result::Result<(), String>) -> (StatusCode, String) {
    match looked {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

#[cfg(test)]
mod tests;
