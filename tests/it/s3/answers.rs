//! Servers that lose replies, delay and refuse: what is made of each answer (P8.3, commit.md 5d).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lakeward::error::Kind;
use lakeward::storage::{Created, Store, StoreOptions, open};

use super::server::{Asked, Server, Trouble};

fn store(server: &Server) -> Store {
    let mut options = server.options();
    options.insert("s3.request_timeout".into(), "400".into());
    open("s3://lake/w", &StoreOptions { options, ..StoreOptions::default() }).unwrap()
}

const OBJECT: &str = "t/snapshot/snapshot-1";

/// Troubles of creates, one after the other; then none.
fn creates(server: &Server, troubles: Vec<Trouble>) {
    let mut troubles = troubles.into_iter();
    server.trouble(move |asked| if asked.act == "create" { troubles.next() } else { None });
}

#[tokio::test]
async fn a_create_whose_answer_says_nothing_is_read_back() {
    let own = [
        // Done, and the answer lost, late or an error; then 412 to whoever asks again.
        vec![Trouble::Lost],
        vec![Trouble::Done(500, "InternalError")],
        vec![Trouble::Done(503, "SlowDown")],
        vec![Trouble::Done(412, "PreconditionFailed")],
        vec![Trouble::Done(409, "ConditionalRequestConflict")],
        vec![Trouble::Done(304, "NotModified")],
        // Not done, and asked for again.
        vec![Trouble::Cut],
        vec![Trouble::Answer(500, "InternalError"), Trouble::Answer(503, "SlowDown")],
        vec![Trouble::Answer(409, "ConditionalRequestConflict"), Trouble::Answer(409, "ConditionalRequestConflict")],
        vec![Trouble::Answer(503, "SlowDown"), Trouble::Lost],
        vec![Trouble::Slow(Duration::from_millis(600))],
    ];
    for troubles in own {
        let server = Server::start();
        creates(&server, troubles.clone());
        assert_eq!(store(&server).create(OBJECT, "ours".into()).await.unwrap(), Created::Yes, "{troubles:?}");
        assert_eq!(server.object("lake", &format!("w/{OBJECT}")).unwrap(), "ours");
    }
}

#[tokio::test]
async fn anothers_object_is_told_unless_a_request_of_ours_went_unanswered() {
    for (troubles, expected) in [
        (vec![], Some(Created::Exists)),
        (vec![Trouble::Answer(409, "ConditionalRequestConflict")], Some(Created::Exists)),
        (vec![Trouble::Answer(304, "")], Some(Created::Exists)),
        // That request may still land, should the other's object go: nobody may call it settled.
        (vec![Trouble::Answer(500, "InternalError")], None),
        (vec![Trouble::Answer(503, "SlowDown")], None),
        (vec![Trouble::Cut], None),
    ] {
        let server = Server::start();
        server.put("lake", "w/t/snapshot/snapshot-1", "theirs");
        creates(&server, troubles.clone());
        let created = store(&server).create(OBJECT, "ours".into()).await;
        match expected {
            Some(expected) => assert_eq!(created.unwrap(), expected, "{troubles:?}"),
            None => assert_eq!(created.unwrap_err().kind(), Kind::Unavailable, "{troubles:?}"),
        }
        assert_eq!(server.object("lake", &format!("w/{OBJECT}")).unwrap(), "theirs");
    }
}

/// The client sends a create again only when we say so: a repeat of its own would turn our success into "exists".
#[tokio::test]
async fn a_create_that_is_never_answered_stays_unknown_and_is_not_repeated_for_ever() {
    for trouble in [Trouble::Cut, Trouble::Answer(500, "InternalError"), Trouble::Answer(409, "ConditionalRequestConflict")] {
        let server = Server::start();
        let always = trouble.clone();
        server.trouble(move |asked| (asked.act == "create").then(|| always.clone()));
        let error = store(&server).create(OBJECT, "ours".into()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{trouble:?}");
        let sent = server.asked().into_iter().filter(|asked| asked.act == "create").count();
        assert_eq!(sent, 6, "{trouble:?}");
    }
}

#[tokio::test]
async fn what_may_be_repeated_is_and_a_refusal_is_final() {
    let server = Server::start();
    let plain = store(&server);
    plain.put("a/b", "0123".into()).await.unwrap();
    for trouble in [Trouble::Cut, Trouble::Lost, Trouble::Answer(500, "InternalError"), Trouble::Answer(503, "SlowDown")] {
        let mut left = 2;
        let mut last = String::new();
        server.trouble(move |asked| {
            if last != asked.act {
                (last, left) = (asked.act.to_owned(), 2);
            }
            left -= i32::from(left > 0);
            (left > 0).then(|| trouble.clone())
        });
        let store = store(&server);
        assert_eq!(store.get("a/b").await.unwrap().unwrap(), "0123");
        assert_eq!(store.size("a/b").await.unwrap(), Some(4));
        assert_eq!(store.get_range("a/b", 1, 3).await.unwrap(), "12");
        assert_eq!(store.list("a").await.unwrap().len(), 1);
        store.put("a/c", "x".into()).await.unwrap();
        store.delete("a/c").await.unwrap();
        assert!(store.requests().values().all(|count| *count >= 2), "{:?}", store.requests());
    }
    server.trouble(|_| Some(Trouble::Answer(501, "NotImplemented")));
    server.asked();
    let error = plain.create("a/d", "x".into()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.hint().unwrap().contains("If-None-Match"), "{:?}", error.hint());
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn a_table_that_is_throttled_slows_down_by_itself() {
    let server = Server::start();
    server.trouble(|asked| asked.key.starts_with("w/d.db/busy/").then_some(Trouble::Answer(503, "SlowDown")));
    let store = store(&server);
    let busy = async || store.put("d.db/busy/a", "x".into()).await;
    let mut puts = std::pin::pin!(futures::future::join_all([busy(), busy(), busy(), busy()]));
    let others = async {
        for name in 0..200 {
            store.put(&format!("d.db/calm/{name}"), "x".into()).await.unwrap();
        }
    };
    tokio::select! {
        biased;
        ended = &mut puts => panic!("{ended:?}"),
        () = others => {}
    }
    let sent = server.asked().into_iter().filter(|asked| asked.key.contains("/busy/")).count();
    assert!((4..40).contains(&sent), "{sent} requests to a store that asks for fewer");
    server.calm();
    for put in puts.await {
        put.unwrap();
    }
}

#[tokio::test]
async fn a_part_that_fails_is_sent_again_and_a_lost_completion_is_found_out() {
    for trouble in [Trouble::Lost, Trouble::Cut, Trouble::Answer(503, "SlowDown"), Trouble::Done(500, "InternalError")] {
        let server = Server::start();
        let first = Arc::new(AtomicUsize::new(0));
        let (seen, of) = (Arc::clone(&first), trouble.clone());
        server.trouble(move |asked| {
            let due = matches!(asked.act, "part" | "finish") && seen.fetch_add(1, Ordering::SeqCst) % 3 == 0;
            due.then(|| of.clone())
        });
        let store = store(&server);
        let mut upload = store.upload("b/data-1").await.unwrap();
        for _ in 0..4 {
            upload.part(vec![7_u8; 5 << 20].into(), None).await.unwrap();
        }
        assert_eq!(upload.finish().await.unwrap(), 20 << 20, "{trouble:?}");
        assert_eq!(server.object("lake", "w/b/data-1").unwrap().len(), 20 << 20);
        assert_eq!(server.uploads(), 0);
    }
    let server = Server::start();
    server.trouble(|asked| (asked.act == "finish").then_some(Trouble::Answer(500, "InternalError")));
    let store = store(&server);
    let mut upload = store.upload("b/data-1").await.unwrap();
    upload.part("x".into(), None).await.unwrap();
    assert_eq!(upload.finish().await.unwrap_err().kind(), Kind::Unavailable);
    while server.uploads() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.keys(), [""; 0], "nothing shows, and nothing hangs");
}

#[tokio::test]
async fn several_parts_are_on_their_way_at_once_and_no_more_than_the_settings_say() {
    let server = Server::start();
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, highest) = (Arc::clone(&now), Arc::clone(&most));
    server.trouble(move |asked| {
        (asked.act == "part").then(|| {
            highest.fetch_max(counted.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            Trouble::Slow(Duration::from_millis(50))
        })
    });
    let mut options = server.options();
    options.insert("s3.parts_max".into(), "3".into());
    let store = open("s3://lake/w", &StoreOptions { options, ..StoreOptions::default() }).unwrap();
    let budget = lakeward::runtime::Budget::new(64 << 20);
    let mut upload = store.upload("b/data-1").await.unwrap();
    for sent in 0..8 {
        let permit = budget.acquire(5 << 20).await;
        upload.part(vec![7_u8; 5 << 20].into(), Some(Arc::new(permit))).await.unwrap();
        assert!(budget.used() <= 3 * (5 << 20), "{} after {sent}", budget.used());
        if sent == 2 {
            assert_eq!(budget.used(), 3 * (5 << 20), "parts on their way are counted");
        }
    }
    upload.finish().await.unwrap();
    assert_eq!(budget.used(), 0);
}

#[tokio::test]
async fn what_is_denied_names_the_right_and_the_prefix_and_nothing_secret() {
    let server = Server::start();
    let store = store(&server);
    store.put("d.db/t/a", "x".into()).await.unwrap();
    for (act, right) in [
        ("get", "s3:GetObject"),
        ("head", "s3:GetObject"),
        ("put", "s3:PutObject"),
        ("create", "s3:PutObject"),
        ("delete", "s3:DeleteObject"),
        ("list", "s3:ListBucket"),
        ("begin", "s3:PutObject"),
        ("uploads", "s3:ListBucketMultipartUploads"),
    ] {
        server.allow_all();
        server.deny(act, "w/d.db");
        if act == "head" {
            server.deny("get", "w/d.db");
        }
        let error = match act {
            "get" => store.get("d.db/t/a").await.map(drop),
            "head" => store.size("d.db/t/a").await.map(drop),
            "put" => store.put("d.db/t/b", "x".into()).await,
            "create" => store.create("d.db/t/c", "x".into()).await.map(drop),
            "delete" => store.delete("d.db/t/a").await,
            "list" => store.list("d.db/t").await.map(drop),
            "begin" => store.upload("d.db/t/e").await.map(drop),
            _ => store.hanging_uploads("d.db/t").await.map(drop),
        }
        .unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{act}");
        let (chain, hint) = (error.chain(), error.hint().unwrap().to_owned());
        assert!(chain.contains(right) && hint.contains(right), "{act}: {chain}; {hint}");
        assert!(hint.contains("`s3://lake/w/d.db/"), "{act}: {hint}");
        assert!(!chain.contains("hush") && !format!("{error:?}").contains("hush"), "{chain}");
    }
}

/// A HEAD is answered without a body, whatever is wrong.
#[tokio::test]
async fn why_a_look_at_an_object_is_refused_is_found_out_by_reading_a_byte_of_it() {
    for (status, code, denied, help) in [
        (403, "SignatureDoesNotMatch", false, "`s3.secret_access_key`"),
        (403, "InvalidAccessKeyId", false, "`s3.access_key_id`"),
        (400, "InvalidToken", false, "`s3.session_token`"),
        (403, "RequestTimeTooSkewed", false, "clock"),
        (400, "ExpiredToken", false, "have run out"),
        (403, "AccessDenied", true, "the right `s3:GetObject` on `s3://lake/w/d.db/`"),
    ] {
        let server = Server::start();
        server.trouble(move |_| Some(Trouble::Answer(status, code)));
        let error = store(&server).size("d.db/a").await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{code}");
        assert!(error.chain().contains(code), "{}", error.chain());
        assert_eq!(error.chain().contains("the right is"), denied, "{}", error.chain());
        let hint = error.hint().unwrap().replace("d.db/*", "d.db/");
        assert!(hint.contains(help), "{code}: {hint}");
        let asked = server.asked();
        assert_eq!(asked.iter().map(|asked| asked.act).collect::<Vec<_>>(), ["head", "get"], "{code}");
        assert_eq!(asked[1].range, Some((0, 0)));
    }
    // A server that minds HEAD alone.
    let server = Server::start();
    server.put("lake", "w/a", "0123456789");
    server.deny("head", "w/");
    assert_eq!(store(&server).size("a").await.unwrap(), Some(10));
    assert_eq!(store(&server).size("b").await.unwrap(), None);
    // The second answer does not come: what is known of the first is told.
    server.trouble(|asked| (asked.act == "get").then_some(Trouble::Cut));
    let error = store(&server).size("a").await.unwrap_err();
    assert!(error.chain().contains("the right is `s3:GetObject`"), "{}", error.chain());
}

#[tokio::test]
async fn a_store_that_passes_over_the_condition_lets_two_creates_pass() {
    let server = Server::start();
    server.trouble(|asked: &Asked| (asked.act == "create").then_some(Trouble::Unconditional));
    let store = store(&server);
    assert_eq!(store.create(OBJECT, "first".into()).await.unwrap(), Created::Yes);
    assert_eq!(store.create(OBJECT, "second".into()).await.unwrap(), Created::Yes, "`commit::prove` refuses it for this");
}

#[tokio::test]
async fn a_bucket_or_server_that_is_not_there_is_named() {
    let server = Server::start();
    server.trouble(|_| Some(Trouble::Answer(404, "NoSuchBucket")));
    let error = store(&server).get("a").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.hint().unwrap().contains("bucket"), "{:?}", error.hint());
    server.trouble(|_| Some(Trouble::Answer(301, "PermanentRedirect")));
    let error = store(&server).get("a").await.unwrap_err();
    assert!(error.hint().unwrap().contains("`s3.region`"), "{:?}", error.hint());
    let gone = store(&server);
    drop(server);
    let error = gone.get("a").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.hint().unwrap().contains("`s3.endpoint`"), "{:?}", error.hint());
}
