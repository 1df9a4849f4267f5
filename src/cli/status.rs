//! `lakeward status`: what a running service says of itself and of each table.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use super::End;
use super::args::Status;
use super::output::{self, Output, count};
use crate::config::Settings;
use crate::daemon::board::{Phase, TableState, TableStatus};
use crate::daemon::http::StatusReport;
use crate::error::{Error, Result};
use crate::runtime::Runtime;

/// Where a service is looked for when nobody says where.
pub(super) const ADDRESS: &str = "127.0.0.1:9180";
/// How long the whole answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Bytes of an answer: tens of thousands of tables.
const ANSWER_BYTES_MAX: usize = 64 << 20;

pub(super) async fn run(args: &Status, settings: &Settings, runtime: &Runtime, output: &mut Output) -> Result<(), End> {
    let address = match (&args.admin, &settings.daemon.admin, &settings.file) {
        (Some(address), ..) => address.clone(),
        (None, Some(listen), _) => reachable(listen)?,
        (None, None, None) => ADDRESS.to_owned(),
        (None, None, Some(file)) => {
            return Err(Error::invalid(format!("`{}` has the admin endpoints off", file.display()))
                .with_hint(turn_on(ADDRESS))
                .into());
        }
    };
    let answer = runtime.clock.timeout(ANSWER_MAX, fetch(&address)).await;
    let body = answer.unwrap_or_else(|| Err(unreachable(&address).with_hint(turn_on(&address))))?;
    let report: StatusReport = serde_json::from_slice(&body).map_err(|source| foreign(&address).with_source(source))?;
    if args.json { output.json(&report) } else { output.data(&text(&report)) }
}

fn turn_on(address: &str) -> String {
    format!("it answers while `lakeward run` runs with `--set admin.listen={address}`, or `admin.listen` in its file")
}

fn unreachable(address: &str) -> Error {
    Error::unavailable(format!("no service answers on `{address}`"))
}

fn foreign(address: &str) -> Error {
    Error::invalid(format!("what answers on `{address}` is no lakeward of this version"))
}

/// Where to connect to what listens on `listen`.
fn reachable(listen: &str) -> Result<String> {
    let (host, port) = listen.rsplit_once(':').unwrap_or((listen, "0"));
    match (host, port) {
        (_, "0") => Err(Error::invalid("`admin.listen` leaves the port to the machine")
            .with_hint("the service logs the real one at its start: `lakeward status --admin HOST:PORT`")),
        ("0.0.0.0", _) => Ok(format!("127.0.0.1:{port}")),
        ("[::]", _) => Ok(format!("[::1]:{port}")),
        _ => Ok(listen.to_owned()),
    }
}

/// The body of `/status`.
async fn fetch(address: &str) -> Result<Bytes> {
    let lost = |error: hyper::Error| {
        let what = if error.is_parse() { foreign(address) } else { unreachable(address) };
        what.with_source(error)
    };
    let stream =
        TcpStream::connect(address).await.map_err(|source| unreachable(address).with_source(source).with_hint(turn_on(address)))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let request = Request::get("/status")
        .header(header::HOST, address)
        .body(Empty::<Bytes>::new())
        .map_err(|source| Error::internal("make a request").with_source(source))?;
    let response = sender.send_request(request).await.map_err(lost)?;
    if response.status() != StatusCode::OK {
        return Err(foreign(address).with_source(Error::invalid(format!("`/status` answers `{}`", response.status()))));
    }
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    Ok(body.map_err(|source| unreachable(address).with_source(source))?.to_bytes())
}

/// The report for people.
fn text(report: &StatusReport) -> String {
    let mut lines = vec![head(report)];
    if report.tables.is_empty() {
        lines.push("no table yet: the coordinator hands one out when its freshness has run out".to_owned());
        return lines.join("\n");
    }
    lines.push(String::new());
    let titles = ["table", "state", "for", "lag", "rows left", "snapshot", "last success", "next look"];
    let rows =
        std::iter::once(titles.map(str::to_owned).to_vec()).chain(report.tables.iter().map(|table| row(table, report.now_ms)));
    let mut aligned = output::aligned(&rows.collect::<Vec<_>>()).into_iter();
    lines.extend(aligned.next());
    for (line, table) in aligned.zip(&report.tables) {
        lines.push(line);
        lines.extend(table.reason.as_deref().map(|reason| format!("  why   {}", one_line(reason))));
        lines.extend(table.help.as_deref().map(|help| format!("  help  {}", one_line(help))));
    }
    lines.join("\n")
}

fn head(report: &StatusReport) -> String {
    let service = &report.service;
    let ago = |then_ms: i64| output::duration(report.now_ms.saturating_sub(then_ms));
    let phase = match service.phase {
        Phase::Starting => "starting",
        Phase::Running => "running",
        Phase::Stopping => "stopping",
    };
    let heart = match (service.heart_alive, service.heartbeat_ms) {
        (false, _) => "the heartbeat task has ended".to_owned(),
        (true, None) => "the coordinator has not answered yet".to_owned(),
        (true, Some(then_ms)) => format!("the coordinator answered {} ago", ago(then_ms)),
    };
    let in_hand = report.tables.iter().filter(|table| table.state.in_hand()).count();
    let states: Vec<String> = TableState::ALL
        .into_iter()
        .map(|state| (state, report.tables.iter().filter(|table| table.state == state).count()))
        .filter(|(_, tables)| *tables > 0)
        .map(|(state, tables)| format!("{tables} {}", words(state)))
        .collect();
    let mut head = format!(
        "lakeward {}, {phase} for {}; {heart}\n{in_hand} of {} tables in hand; {} of {} in flight",
        report.version,
        ago(service.started_ms),
        service.parallel,
        output::size(report.budget_used_bytes),
        output::size(report.budget_bytes),
    );
    if !states.is_empty() {
        head.push_str(&format!("; {}", states.join(", ")));
    }
    if let Some(fault) = &service.heartbeat_fault {
        head.push_str(&format!("\nlast heartbeat: {}", one_line(fault)));
    }
    head
}

fn words(state: TableState) -> String {
    state.as_str().replace('_', " ")
}

fn row(table: &TableStatus, now_ms: i64) -> Vec<String> {
    let none = || "–".to_owned();
    let seconds = |seconds: u64| output::duration(i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000));
    let kind = table.kind.map_or_else(String::new, |kind| format!(" ({kind})"));
    vec![
        one_line(&table.table.to_string()),
        format!("{}{kind}", words(table.state)),
        output::duration(now_ms.saturating_sub(table.since_ms)),
        table.lag_seconds.map_or_else(none, seconds),
        table.lag_rows.map_or_else(none, count),
        table.snapshot.map_or_else(none, |snapshot| snapshot.to_string()),
        table.last_success_ms.map_or_else(none, |then_ms| format!("{} ago", output::duration(now_ms.saturating_sub(then_ms)))),
        match table.next_look_ms.map(|then_ms| then_ms.saturating_sub(now_ms)) {
            None => none(),
            Some(left_ms) if left_ms <= 0 => "due".to_owned(),
            Some(left_ms) => format!("in {}", output::duration(left_ms)),
        },
    ]
}

/// Text from elsewhere: it may not move the cursor or fake a line.
fn one_line(text: &str) -> String {
    text.chars().map(|next| if next.is_control() { ' ' } else { next }).collect()
}

#[cfg(test)]
mod tests;
