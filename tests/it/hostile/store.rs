//! Object stores and admin endpoints that are none: silent, endless, broken off, garbage.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lakeward::error::Kind;
use lakeward::runtime::Clock;
use lakeward::storage::{Store, StoreOptions, open};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::rounds::binary::run;

/// What a server says to each request: a head, then a piece of body again and again.
#[derive(Clone)]
struct Says {
    head: String,
    piece: Vec<u8>,
    pieces: usize,
    pause: Duration,
    closes: bool,
}

impl Says {
    fn once(head: &str, body: &str) -> Self {
        Self { head: head.to_owned(), piece: body.into(), pieces: 1, pause: Duration::ZERO, closes: true }
    }
}

struct Server {
    address: String,
    requests: Arc<AtomicUsize>,
    _task: AbortOnDropHandle<()>,
}

async fn server(says: Says) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let requests = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&requests);
    let task = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            let says = says.clone();
            tokio::spawn(async move {
                drop(stream.read(&mut [0; 4096]).await);
                drop(stream.write_all(says.head.as_bytes()).await);
                for _ in 0..says.pieces {
                    if stream.write_all(&says.piece).await.is_err() {
                        return;
                    }
                    if !says.pause.is_zero() {
                        Clock::system().sleep(says.pause).await;
                    }
                }
                if !says.closes {
                    // Until the client has had enough.
                    drop(stream.read(&mut [0; 1]).await);
                }
            });
        }
    });
    Server { address, requests, _task: AbortOnDropHandle::new(task) }
}

fn store(server: &Server) -> Store {
    let options = [
        ("s3.endpoint", format!("http://{}", server.address)),
        ("s3.access-key", "me".to_owned()),
        ("s3.secret-key", "hush-hush".to_owned()),
        ("s3.request_timeout", "300".to_owned()),
        ("s3.connect_timeout", "300".to_owned()),
    ];
    let options = options.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    open("s3://lake/w", &StoreOptions { options, ..StoreOptions::default() }).unwrap()
}

const OK: &str = "HTTP/1.1 200 OK\r\nLast-Modified: Mon, 30 Nov 2026 12:00:00 GMT\r\nETag: \"t\"\r\n";

fn head(rest: &str) -> String {
    format!("{OK}{rest}\r\n\r\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_silent_endless_or_broken_fails_in_time_within_bounds_and_by_name() {
    let chunk = [b"100000\r\n".to_vec(), vec![b'x'; 1 << 20], b"\r\n".to_vec()].concat();
    let endless = |head: String| Says { head, piece: chunk.clone(), pieces: usize::MAX, pause: Duration::ZERO, closes: true };
    let range = "HTTP/1.1 206 Partial Content\r\nLast-Modified: Mon, 30 Nov 2026 12:00:00 GMT\r\nETag: \"t\"\r\n";
    let quiet = Says { closes: false, ..Says::once("", "") };
    let trickle = Says {
        piece: vec![b'x'],
        pieces: usize::MAX,
        pause: Duration::from_millis(20),
        ..Says::once(&head("Content-Length: 100000"), "")
    };
    let cases = [
        ("silent", quiet),
        ("closes", Says::once("", "")),
        ("head trickles", Says { head: "HT".into(), ..trickle.clone() }),
        ("body trickles", trickle),
        ("garbage", Says::once("SSH-2.0-OpenSSH_9.6\r\n", "")),
        ("no XML", Says::once(&head("Content-Length: 9"), "{\"a\": 1}\n")),
        ("broken off", Says::once(&head("Content-Length: 1000"), "<?xml version=\"1.0\"?><ListBucketResult><Contents>")),
        ("not UTF-8", Says { piece: vec![0xff; 9], ..Says::once(&head("Content-Length: 9"), "") }),
        ("endless", endless(head("Transfer-Encoding: chunked"))),
        ("endless range", endless(format!("{range}Content-Range: bytes 0-9/10\r\nTransfer-Encoding: chunked\r\n\r\n"))),
        ("endless refusal", endless("HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n".into())),
        (
            "a list that repeats itself",
            Says::once(
                &head("Connection: close"),
                "<?xml version=\"1.0\"?><ListBucketResult>\
            <IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken></ListBucketResult>",
            ),
        ),
    ];
    futures::future::join_all(cases.into_iter().map(|(name, says)| case(name, says))).await;
}

async fn case(name: &'static str, says: Says) {
    let server = server(says).await;
    let store = store(&server);
    let (listed, read) = tokio::join!(store.list("t"), store.get_range("t/a", 0, 10));
    assert!(listed.is_err(), "{name}: {listed:?}");
    for error in [listed.map(drop), read.map(drop)].into_iter().filter_map(Result::err) {
        let text = error.chain();
        assert!(matches!(error.kind(), Kind::Unavailable | Kind::Invalid), "{name}: {text}");
        assert!(text.contains("s3://lake/w/t") && !text.contains("hush") && text.len() < 2_000, "{name}: {text}");
    }
    assert!(server.requests.load(Ordering::SeqCst) < 40, "{name}: repeated for ever");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_of_what_is_no_service_ends_in_time_with_what_to_do() {
    let (ok, chunked) = ("HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    let mebibyte = [b"100000\r\n".to_vec(), vec![b' '; 1 << 20], b"\r\n".to_vec()].concat();
    let once = |head: String, body: &str| Says::once(&head, body);
    for (says, code, words) in [
        (once("\u{1}\u{2}garbage\r\n\r\n".into(), ""), 2, "no lakeward of this version"),
        (once(format!("{ok}Content-Length: 50\r\n\r\n"), "{\"version\": \"1"), 3, "no service answers"),
        (once(format!("{ok}Content-Length: 2\r\n\r\n"), "[]"), 2, "no lakeward of this version"),
        (Says { piece: mebibyte, pieces: 100, ..once(chunked.into(), "") }, 3, "no service answers"),
        (Says { piece: vec![b'x'; 4096], pieces: 1_000, ..once(format!("{ok}X: "), "") }, 2, "no lakeward of this version"),
    ] {
        let server = server(says).await;
        let ended = run(&["status", "--admin", &server.address], None).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(code), ""), "{words}: {}", ended.stderr);
        assert!(ended.stderr.contains(words) && ended.stderr.contains(&server.address), "{}", ended.stderr);
    }
}
