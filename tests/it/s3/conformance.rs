//! What `storage` promises, on memory, local disk and S3 alike. With LAKEWARD_INTEROP_S3 (an endpoint) on that server as well:
//! `LAKEWARD_INTEROP_S3=http://127.0.0.1:5000 cargo test --test it s3::conformance`.

use std::collections::BTreeMap;

use bytes::Bytes;
use lakeward::error::Kind;
use lakeward::storage::{Created, Listed, Store, StoreOptions, open};

use super::server::Server;

/// Stores that have to behave alike, and what holds them.
struct Stores {
    each: Vec<(String, Store)>,
    _folder: tempfile::TempDir,
    _server: Server,
}

async fn stores() -> Stores {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start();
    let local = open(folder.path().to_str().unwrap(), &StoreOptions::default()).unwrap();
    let mut each = vec![("memory".to_owned(), Store::in_memory()), ("local".to_owned(), local)];
    for (name, url) in [("bucket", "s3://lake"), ("folder", "s3a://lake/deep/er")] {
        let options = StoreOptions { options: server.options(), ..StoreOptions::default() };
        each.push((name.to_owned(), open(url, &options).unwrap()));
    }
    if let Ok(endpoint) = std::env::var("LAKEWARD_INTEROP_S3") {
        let id = lakeward::runtime::Rng::from_entropy().uuid();
        let pairs = [("s3.endpoint", endpoint.as_str()), ("s3.access-key", "me"), ("s3.secret-key", "hush")];
        let options = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let options = StoreOptions { options, ..StoreOptions::default() };
        each.push((endpoint, open(&format!("s3://lake/{id}"), &options).unwrap()));
    }
    Stores { each, _folder: folder, _server: server }
}

fn paths(listed: &[Listed]) -> Vec<&str> {
    listed.iter().map(|object| object.path.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_made_once_whoever_is_first() {
    let stores = stores().await;
    for (name, store) in &stores.each {
        assert_eq!(store.create("t/snapshot/snapshot-7", "first".into()).await.unwrap(), Created::Yes, "{name}");
        assert_eq!(store.create("t/snapshot/snapshot-7", "second".into()).await.unwrap(), Created::Exists, "{name}");
        assert_eq!(store.get("t/snapshot/snapshot-7").await.unwrap().unwrap(), "first", "{name}");
        let body = |index: usize| Bytes::from(vec![u8::try_from(index).unwrap(); 4 * 1024]);
        let creators = (0..16).map(|index| {
            let store = store.clone();
            tokio::spawn(async move { (index, store.create("t/snapshot/snapshot-8", body(index)).await.unwrap()) })
        });
        let mut winners = vec![];
        for creator in creators.collect::<Vec<_>>() {
            let (index, created) = creator.await.unwrap();
            if created == Created::Yes {
                winners.push(index);
            }
        }
        assert_eq!(winners.len(), 1, "{name}");
        assert_eq!(store.get("t/snapshot/snapshot-8").await.unwrap().unwrap(), body(winners[0]), "{name}");
    }
}

#[tokio::test]
async fn objects_are_written_read_in_parts_replaced_listed_and_deleted() {
    let stores = stores().await;
    for (name, store) in &stores.each {
        assert_eq!(store.get("a/b").await.unwrap(), None, "{name}");
        assert_eq!(store.size("a/b").await.unwrap(), None, "{name}");
        assert_eq!(store.list("a").await.unwrap(), [], "{name}");
        store.delete("a/b").await.unwrap();
        assert_eq!(store.get_existing("a/b").await.unwrap_err().kind(), Kind::Data, "{name}");
        assert_eq!(store.get_range("a/b", 0, 1).await.unwrap_err().kind(), Kind::Data, "{name}");
        store.put("a/b", "0123456789".into()).await.unwrap();
        store.put("a/b", "abcdefghij".into()).await.unwrap();
        store.put("a/c/d", Bytes::new()).await.unwrap();
        store.put("ab/e", "x".into()).await.unwrap();
        store.put("a/.f.1.tmp", "x".into()).await.unwrap();
        assert_eq!(store.get("a/b").await.unwrap().unwrap(), "abcdefghij", "{name}");
        assert_eq!(store.get("a/c/d").await.unwrap().unwrap(), "", "{name}");
        assert_eq!(store.get_range("a/b", 2, 5).await.unwrap(), "cde", "{name}");
        assert_eq!(store.size("a/b").await.unwrap(), Some(10), "{name}");
        let listed = store.list("a").await.unwrap();
        assert_eq!(paths(&listed), ["a/b", "a/c/d"], "{name}");
        assert_eq!(listed[0].size, 10, "{name}");
        let now = lakeward::runtime::Clock::system().now_ms();
        assert!((now - listed[0].modified_ms).abs() < 60_000, "{name}");
        assert_eq!(paths(&store.list("").await.unwrap()), ["a/b", "a/c/d", "ab/e"], "{name}");
        store.delete("a/b").await.unwrap();
        assert_eq!(paths(&store.list("a").await.unwrap()), ["a/c/d"], "{name}");
    }
}

#[tokio::test]
async fn odd_names_are_taken_literally_and_none_leaves_the_root() {
    let stores = stores().await;
    for (name, store) in &stores.each {
        for path in ["t/dt=a%3Ab/bucket-0/data-1", "t/dt=日本 &+~/bucket-0/data-1", "t/dt=%25/data-1", "t/dt=a;b,c!=/data-1"] {
            store.put(path, path.to_owned().into()).await.unwrap();
            assert_eq!(store.get(path).await.unwrap().unwrap(), path, "{name}");
            assert_eq!(store.size(path).await.unwrap(), Some(path.len() as u64), "{name}");
            assert_eq!(paths(&store.list("t").await.unwrap()), [path], "{name}");
            store.delete(path).await.unwrap();
        }
        for path in ["../outside", "a/../../outside", "a//b", "./a"] {
            assert_eq!(store.create(path, "x".into()).await.unwrap_err().kind(), Kind::Invalid, "{name} {path}");
        }
    }
}

#[tokio::test]
async fn a_large_object_shows_whole_when_it_is_finished_and_not_at_all_when_given_up() {
    let stores = stores().await;
    let part = Bytes::from(vec![b'a'; 5 << 20]);
    for (name, store) in &stores.each {
        let mut upload = store.upload("b/data-1.parquet").await.unwrap();
        for _ in 0..3 {
            upload.part(part.clone(), None).await.unwrap();
        }
        upload.part("end".into(), None).await.unwrap();
        assert_eq!(store.list("").await.unwrap(), [], "{name}");
        assert_eq!(upload.finish().await.unwrap(), (15 << 20) + 3, "{name}");
        assert_eq!(store.size("b/data-1.parquet").await.unwrap(), Some((15 << 20) + 3), "{name}");
        assert_eq!(store.get_range("b/data-1.parquet", (15 << 20) - 1, (15 << 20) + 3).await.unwrap(), "aend", "{name}");
        let whole = store.get("b/data-1.parquet").await.unwrap().unwrap();
        assert_eq!((whole.len(), &whole[(15 << 20) - 1..]), ((15 << 20) + 3, &b"aend"[..]), "{name}");
        let mut upload = store.upload("b/data-2.parquet").await.unwrap();
        upload.part(part.clone(), None).await.unwrap();
        upload.abort().await.unwrap();
        assert_eq!(store.hanging_uploads("").await.unwrap(), [], "{name}");
        assert_eq!(paths(&store.list("").await.unwrap()), ["b/data-1.parquet"], "{name}");
    }
}

#[tokio::test]
async fn a_list_of_many_pages_is_whole_and_requests_are_counted() {
    let server = Server::start();
    server.page(7);
    let options = StoreOptions { options: server.options(), ..StoreOptions::default() };
    let store = open("s3://lake/w", &options).unwrap();
    let names: Vec<String> = (0..30).map(|index| format!("t/{index:02}")).collect();
    for name in &names {
        store.put(name, "x".into()).await.unwrap();
    }
    // Other writers' marks for folders are no objects.
    server.put("lake", "w/t/", "");
    server.put("lake", "w/x", "");
    server.put("lake", "w/x/y", "1");
    assert_eq!(paths(&store.list("t").await.unwrap()), names);
    assert_eq!(paths(&store.list("x").await.unwrap()), ["x/y"]);
    assert_eq!(store.list("").await.unwrap().len(), 31);
    let counted = BTreeMap::from([("list", 5 + 1 + 5), ("put", 30)]);
    assert_eq!(store.requests(), counted);
    assert_eq!(server.asked().len(), 41);
}

#[tokio::test]
async fn uploads_that_hang_are_found_and_given_up() {
    let server = Server::start();
    server.page(2);
    let options = StoreOptions { options: server.options(), ..StoreOptions::default() };
    let store = open("s3://lake/w", &options).unwrap();
    let mut uploads = vec![];
    for name in ["t/a b", "t/c&d", "t/e", "u/f"] {
        let mut upload = store.upload(name).await.unwrap();
        upload.part("x".into(), None).await.unwrap();
        uploads.push(upload);
    }
    let found = store.hanging_uploads("t").await.unwrap();
    assert_eq!(found.iter().map(|hanging| hanging.path.as_str()).collect::<Vec<_>>(), ["t/a b", "t/c&d", "t/e"]);
    let now = lakeward::runtime::Clock::system().now_ms();
    assert!(found.iter().all(|hanging| (now - hanging.begun_ms).abs() < 60_000));
    for hanging in &found {
        store.abort_upload(hanging).await.unwrap();
        store.abort_upload(hanging).await.unwrap();
    }
    assert_eq!(server.uploads(), 1);
    // The last one is given up by being dropped.
    drop(uploads);
    while server.uploads() > 0 {
        tokio::task::yield_now().await;
    }
}
