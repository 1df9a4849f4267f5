//! A small server that speaks S3: what Lakeward asks for, with the answers of the real one, and troubles at will.
//!
//! Buckets are made by the first write. It is also who hands out credentials: STS, instance metadata and a container's endpoint.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use lakeward::runtime::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// What a request asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    /// `get`, `head`, `put`, `create`, `delete`, `list`, `begin`, `part`, `finish`, `abort`, `uploads`, `sts`, `metadata`.
    pub(crate) act: &'static str,
    /// Key, or prefix of a list.
    pub(crate) key: String,
    /// Bytes that are asked for, if not all.
    pub(crate) range: Option<(u64, u64)>,
    /// The bucket stood in the host's name.
    pub(crate) host_style: bool,
}

/// What goes wrong with a request.
#[derive(Debug, Clone)]
pub(crate) enum Trouble {
    /// This answer, and nothing is done.
    Answer(u16, &'static str),
    /// It is done, and this is answered.
    Done(u16, &'static str),
    /// The connection ends without an answer, and nothing is done.
    Cut,
    /// It is done, and the connection ends without an answer.
    Lost,
    /// It is answered so much later.
    Slow(Duration),
    /// A condition is passed over: such a store has no create-if-absent.
    Unconditional,
}

#[derive(Debug, Clone)]
struct Object {
    bytes: Bytes,
    written_ms: i64,
}

struct Parts {
    bucket: String,
    key: String,
    begun_ms: i64,
    parts: BTreeMap<usize, Bytes>,
}

/// What a container shows to be given credentials.
pub(crate) const PASS: &str = "hush-pass";

type Script = Box<dyn FnMut(&Asked) -> Option<Trouble> + Send>;

#[derive(Default)]
struct State {
    objects: BTreeMap<(String, String), Object>,
    uploads: BTreeMap<String, Parts>,
    log: Vec<Asked>,
    script: Option<Script>,
    /// Rights that are denied: act and prefix.
    denied: Vec<(&'static str, String)>,
    /// Keys that are let in until then; empty = everybody.
    keys: BTreeMap<String, i64>,
    /// How long keys last that are handed out.
    life: Duration,
    refused: u64,
    handed_out: u64,
    page: usize,
    next: u64,
}

/// A running server; ends when dropped.
pub(crate) struct Server {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    /// Ends the thread when dropped.
    _end: oneshot::Sender<()>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// On a thread of its own: tests that block, and processes that they start, are served as well.
    pub(crate) fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State { page: 1_000, life: Duration::from_secs(3_600), ..State::default() }));
        let shared = Arc::clone(&state);
        let (end, ended) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = accept(TcpListener::from_std(listener).unwrap(), shared) => {}
                    _gone = ended => {}
                }
            });
        });
        Self { address, state, _end: end }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Options by which a store here is reached.
    pub(crate) fn options(&self) -> BTreeMap<String, String> {
        let pairs = [("s3.endpoint", self.endpoint()), ("s3.access-key", "me".into()), ("s3.secret-key", "hush-hush".into())];
        pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// Calls `script` with each request.
    pub(crate) fn trouble(&self, script: impl FnMut(&Asked) -> Option<Trouble> + Send + 'static) {
        lock(&self.state).script = Some(Box::new(script));
    }

    pub(crate) fn calm(&self) {
        lock(&self.state).script = None;
    }

    /// Denies `act` below `prefix`.
    pub(crate) fn deny(&self, act: &'static str, prefix: &str) {
        lock(&self.state).denied.push((act, prefix.to_owned()));
    }

    pub(crate) fn allow_all(&self) {
        lock(&self.state).denied.clear();
    }

    /// Lets in `key` for so long, and from now on nobody whose key is not known.
    pub(crate) fn let_in(&self, key: &str, life: Duration) {
        lock(&self.state).keys.insert(key.to_owned(), ends(life));
    }

    /// Keys that are handed out last so long, and nobody else is let in.
    pub(crate) fn hand_out(&self, life: Duration) {
        let mut state = lock(&self.state);
        state.life = life;
        state.keys.insert("nobody".to_owned(), 0);
    }

    /// Requests turned away for their key.
    pub(crate) fn refused(&self) -> u64 {
        lock(&self.state).refused
    }

    /// Sets of keys handed out.
    pub(crate) fn handed_out(&self) -> u64 {
        lock(&self.state).handed_out
    }

    /// Names of a list come so many at a time.
    pub(crate) fn page(&self, names: usize) {
        lock(&self.state).page = names;
    }

    /// What was asked for since the last call.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut lock(&self.state).log)
    }

    /// Keys of all objects.
    pub(crate) fn keys(&self) -> Vec<String> {
        lock(&self.state).objects.keys().map(|(bucket, key)| format!("{bucket}/{key}")).collect()
    }

    pub(crate) fn object(&self, bucket: &str, key: &str) -> Option<Bytes> {
        lock(&self.state).objects.get(&(bucket.to_owned(), key.to_owned())).map(|object| object.bytes.clone())
    }

    pub(crate) fn put(&self, bucket: &str, key: &str, bytes: &'static str) {
        let object = Object { bytes: bytes.into(), written_ms: Clock::system().now_ms() };
        lock(&self.state).objects.insert((bucket.to_owned(), key.to_owned()), object);
    }

    /// An upload that was begun so long ago, and nobody ended.
    pub(crate) fn hang(&self, bucket: &str, key: &str, age: Duration) {
        let begun_ms = Clock::system().now_ms() - i64::try_from(age.as_millis()).unwrap();
        let parts = Parts { bucket: bucket.to_owned(), key: key.to_owned(), begun_ms, parts: BTreeMap::new() };
        lock(&self.state).uploads.insert(format!("hangs-{key}"), parts);
    }

    /// Everything has been done that was sent before, also by processes that are dead by now.
    ///
    /// The server is one thread that takes what has arrived in turn: a question that is asked when an earlier one was answered is answered
    /// behind what had arrived before that.
    pub(crate) async fn has_caught_up(&self) {
        for _ in 0..4 {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(b"GET /ping HTTP/1.1\r\nhost: me\r\nconnection: close\r\n\r\n").await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        }
    }

    /// Uploads that hang.
    pub(crate) fn uploads(&self) -> usize {
        lock(&self.state).uploads.len()
    }
}

async fn accept(listener: TcpListener, state: Arc<Mutex<State>>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let service = service_fn(move |request| serve(Arc::clone(&state), request));
            // A client that hangs up is no matter.
            drop(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

fn ends(life: Duration) -> i64 {
    Clock::system().now_ms() + i64::try_from(life.as_millis()).unwrap()
}

/// What hyper hangs up at.
#[derive(Debug)]
struct HangUp;

impl std::fmt::Display for HangUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("hang up")
    }
}

impl std::error::Error for HangUp {}

type Answer = Response<Full<Bytes>>;

async fn serve(state: Arc<Mutex<State>>, request: Request<Incoming>) -> Result<Answer, HangUp> {
    if request.uri().path() == "/ping" {
        return Ok(answer(200, ""));
    }
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_gone| HangUp)?.to_bytes();
    let call = Call::read(&head, body);
    let trouble = {
        let mut state = lock(&state);
        state.log.push(call.asked.clone());
        state.script.as_mut().and_then(|script| script(&call.asked))
    };
    if let Some(Trouble::Slow(time)) = trouble {
        Clock::system().sleep(time).await;
    }
    match trouble {
        None | Some(Trouble::Slow(_)) => Ok(act(&state, &call, true)),
        Some(Trouble::Unconditional) => Ok(act(&state, &call, false)),
        Some(Trouble::Answer(status, code)) => Ok(error(status, code)),
        Some(Trouble::Done(status, code)) => {
            act(&state, &call, true);
            Ok(error(status, code))
        }
        Some(Trouble::Cut) => Err(HangUp),
        Some(Trouble::Lost) => {
            act(&state, &call, true);
            Err(HangUp)
        }
    }
}

/// A request, taken apart.
struct Call {
    asked: Asked,
    bucket: String,
    query: BTreeMap<String, String>,
    key_id: String,
    authorization: String,
    path: String,
    body: Bytes,
}

impl Call {
    fn read(head: &hyper::http::request::Parts, body: Bytes) -> Self {
        let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        let query: BTreeMap<String, String> = head
            .uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(key, value)| (decoded(key), decoded(&value.replace('+', " "))))
            .collect();
        let mut path = decoded(head.uri.path());
        // As of a proxy the host's name is any; whoever asks for an address says the bucket in the path.
        let host = head.uri.host().map_or_else(|| header("host"), str::to_owned);
        let virtual_host = host.split_once(".s3.").map(|(bucket, _)| bucket.to_owned());
        if let Some(bucket) = &virtual_host {
            path = format!("/{bucket}{path}");
        }
        let (bucket, key) = path.trim_start_matches('/').split_once('/').unwrap_or((path.trim_start_matches('/'), ""));
        let has = |name: &str| query.contains_key(name);
        let act = match head.method.as_str() {
            "POST" if bucket.is_empty() => "sts",
            _ if path.starts_with("/latest/") || path == "/credentials" => "metadata",
            "GET" if key.is_empty() && has("uploads") => "uploads",
            "GET" if key.is_empty() => "list",
            "GET" => "get",
            "HEAD" => "head",
            "PUT" if has("uploadId") => "part",
            "PUT" if header("if-none-match") == "*" => "create",
            "PUT" => "put",
            "DELETE" if has("uploadId") => "abort",
            "DELETE" => "delete",
            "POST" if has("uploads") => "begin",
            "POST" if has("uploadId") => "finish",
            _ => "odd",
        };
        let authorization = header("authorization");
        let key_id = authorization.split_once("Credential=").and_then(|(_, rest)| rest.split('/').next()).unwrap_or_default();
        let shown = if key.is_empty() { query.get("prefix").cloned().unwrap_or_default() } else { key.to_owned() };
        let range = header("range");
        let range = range
            .strip_prefix("bytes=")
            .and_then(|range| range.split_once('-'))
            .map(|(start, end)| (start.parse().unwrap(), end.parse().unwrap_or(u64::MAX)));
        Self {
            asked: Asked { act, key: shown, range, host_style: virtual_host.is_some() },
            bucket: bucket.to_owned(),
            key_id: key_id.to_owned(),
            authorization,
            path: path.clone(),
            query,
            body,
        }
    }

    fn place(&self) -> (String, String) {
        (self.bucket.clone(), self.asked.key.clone())
    }
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let escaped = (*first == b'%').then(|| behind.get(..2)).flatten();
        let byte = escaped.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match byte {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8(bytes).unwrap()
}

fn answer(status: u16, body: impl Into<Bytes>) -> Answer {
    let body: Bytes = body.into();
    Response::builder()
        .status(status)
        .header("etag", "\"tag\"")
        .header("last-modified", "Mon, 30 Nov 2026 12:00:00 GMT")
        .body(Full::new(body))
        .unwrap()
}

fn error(status: u16, code: &str) -> Answer {
    answer(status, format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>as the test wants</Message></Error>"))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn time(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).unwrap().to_string()
}

/// Does it. Without `conditions`, `If-None-Match` is passed over.
fn act(state: &Mutex<State>, call: &Call, conditions: bool) -> Answer {
    let mut state = lock(state);
    let now = Clock::system().now_ms();
    match call.asked.act {
        "sts" => return hand_out(&mut state, "sts"),
        "metadata" if call.path == "/latest/api/token" => return answer(200, "session"),
        "metadata" if call.path.ends_with("security-credentials/") => return answer(200, "role"),
        "metadata" if call.path == "/credentials" && call.authorization != PASS => return error(401, "WhoAreYou"),
        "metadata" => return hand_out(&mut state, "json"),
        _ => {}
    }
    if !state.keys.is_empty() {
        match state.keys.get(&call.key_id) {
            Some(ends) if *ends > now => {}
            known => {
                let code = if known.is_some() { "ExpiredToken" } else { "InvalidAccessKeyId" };
                state.refused += 1;
                return if call.asked.act == "head" { answer(400, "") } else { error(400, code) };
            }
        }
    }
    let (act, key) = (call.asked.act, &call.asked.key);
    if state.denied.iter().any(|(denied, prefix)| *denied == act && key.starts_with(prefix.as_str())) {
        return if act == "head" { answer(403, "") } else { error(403, "AccessDenied") };
    }
    let upload = call.query.get("uploadId").cloned().unwrap_or_default();
    match act {
        "put" | "create" => {
            if act == "create" && conditions && state.objects.contains_key(&call.place()) {
                return error(412, "PreconditionFailed");
            }
            state.objects.insert(call.place(), Object { bytes: call.body.clone(), written_ms: now });
            answer(200, "")
        }
        "get" | "head" => {
            let Some(object) = state.objects.get(&call.place()) else {
                return if act == "head" { answer(404, "") } else { error(404, "NoSuchKey") };
            };
            let size = object.bytes.len() as u64;
            let length = |builder: hyper::http::response::Builder| {
                builder.header("etag", "\"tag\"").header("last-modified", "Mon, 30 Nov 2026 12:00:00 GMT")
            };
            match call.asked.range {
                Some((start, _)) if start >= size => error(416, "InvalidRange"),
                Some((start, end)) => {
                    let end = end.saturating_add(1).min(size);
                    let bytes = object.bytes.slice(usize::try_from(start).unwrap()..usize::try_from(end).unwrap());
                    let range = format!("bytes {start}-{}/{size}", end - 1);
                    length(Response::builder().status(206)).header("content-range", range).body(Full::new(bytes)).unwrap()
                }
                // hyper sends no body to HEAD, but its length.
                None => length(Response::builder()).body(Full::new(object.bytes.clone())).unwrap(),
            }
        }
        "delete" => {
            state.objects.remove(&call.place());
            answer(204, "")
        }
        "list" => list(&state, call),
        "begin" => {
            state.next += 1;
            let id = format!("upload-{}", state.next);
            let xml = format!("<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>");
            let (bucket, key) = call.place();
            state.uploads.insert(id, Parts { bucket, key, begun_ms: now, parts: BTreeMap::new() });
            answer(200, xml)
        }
        "part" => match state.uploads.get_mut(&upload) {
            Some(parts) => {
                parts.parts.insert(call.query["partNumber"].parse().unwrap(), call.body.clone());
                answer(200, "")
            }
            None => error(404, "NoSuchUpload"),
        },
        "finish" => {
            let Some(parts) = state.uploads.get(&upload) else { return error(404, "NoSuchUpload") };
            let last = parts.parts.keys().max().copied();
            if parts.parts.iter().any(|(number, part)| Some(*number) != last && part.len() < 5 << 20) {
                return error(400, "EntityTooSmall");
            }
            let named = String::from_utf8_lossy(&call.body).matches("<PartNumber>").count();
            if named != parts.parts.len() || named == 0 {
                return error(400, "InvalidPart");
            }
            let bytes: Vec<u8> = parts.parts.values().flat_map(|part| part.to_vec()).collect();
            let place = (parts.bucket.clone(), parts.key.clone());
            state.uploads.remove(&upload);
            state.objects.insert(place, Object { bytes: bytes.into(), written_ms: now });
            answer(200, "<CompleteMultipartUploadResult><ETag>\"tag\"</ETag></CompleteMultipartUploadResult>")
        }
        "abort" => {
            let known = state.uploads.remove(&upload).is_some();
            if known { answer(204, "") } else { error(404, "NoSuchUpload") }
        }
        "uploads" => uploads(&state, call),
        _ => error(501, "NotImplemented"),
    }
}

fn list(state: &State, call: &Call) -> Answer {
    let prefix = &call.asked.key;
    let after = call.query.get("continuation-token").or_else(|| call.query.get("start-after")).cloned().unwrap_or_default();
    let page = call.query.get("max-keys").map_or(state.page, |most| most.parse().unwrap()).min(state.page);
    let found: Vec<_> = state
        .objects
        .iter()
        .filter(|((bucket, key), _)| *bucket == call.bucket && key.starts_with(prefix.as_str()) && *key > after)
        .collect();
    let mut xml = "<?xml version=\"1.0\"?><ListBucketResult>".to_owned();
    for ((_, key), object) in found.iter().take(page) {
        let (key, time, size) = (escaped(key), time(object.written_ms), object.bytes.len());
        xml.push_str(&format!(
            "<Contents><Key>{key}</Key><LastModified>{time}</LastModified><ETag>t</ETag><Size>{size}</Size></Contents>"
        ));
    }
    if found.len() > page {
        let ((_, last), _) = found[page - 1];
        xml.push_str(&format!("<IsTruncated>true</IsTruncated><NextContinuationToken>{}</NextContinuationToken>", escaped(last)));
    }
    answer(200, xml + "</ListBucketResult>")
}

fn uploads(state: &State, call: &Call) -> Answer {
    let after = call.query.get("upload-id-marker").cloned().unwrap_or_default();
    let of = |parts: &Parts| parts.bucket == call.bucket && parts.key.starts_with(&call.asked.key);
    let found: Vec<_> = state.uploads.iter().filter(|(id, parts)| of(parts) && **id > after).collect();
    let mut xml = "<ListMultipartUploadsResult>".to_owned();
    for (id, parts) in found.iter().take(state.page) {
        let (key, time) = (escaped(&parts.key), time(parts.begun_ms));
        xml.push_str(&format!("<Upload><Key>{key}</Key><UploadId>{id}</UploadId><Initiated>{time}</Initiated></Upload>"));
    }
    if found.len() > state.page {
        let (id, parts) = found[state.page - 1];
        let key = escaped(&parts.key);
        xml.push_str(&format!(
            "<IsTruncated>true</IsTruncated><NextKeyMarker>{key}</NextKeyMarker><NextUploadIdMarker>{id}</NextUploadIdMarker>"
        ));
    }
    answer(200, xml + "</ListMultipartUploadsResult>")
}

fn hand_out(state: &mut State, form: &str) -> Answer {
    state.handed_out += 1;
    let key = format!("KEY{}", state.handed_out);
    let end = ends(state.life);
    state.keys.insert(key.clone(), end);
    let end = time(end);
    answer(
        200,
        if form == "sts" {
            format!(
                "<AssumeRoleWithWebIdentityResponse><Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>hush-hush</SecretAccessKey><SessionToken>hush-token</SessionToken><Expiration>{end}</Expiration></Credentials></AssumeRoleWithWebIdentityResponse>"
            )
        } else {
            format!(
                "{{\"Code\":\"Success\",\"AccessKeyId\":\"{key}\",\"SecretAccessKey\":\"hush-hush\",\"Token\":\"hush-token\",\"Expiration\":\"{end}\"}}"
            )
        },
    )
}
