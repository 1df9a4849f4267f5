//! Local disk and memory alike, odd names, the traps of P8.3, and faults.

use std::path::Path;

use super::*;
use crate::runtime::Rng;

fn root(folder: &Path) -> Store {
    open(folder.to_str().unwrap(), &StoreOptions::default()).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn paths(listed: &[Listed]) -> Vec<&str> {
    listed.iter().map(|object| object.path.as_str()).collect()
}

#[tokio::test]
async fn create_happens_once_and_leaves_nothing_but_the_object() {
    let dir = tempfile::tempdir().unwrap();
    for store in [root(dir.path()), Store::in_memory()] {
        assert_eq!(store.create("t/snapshot/snapshot-7", "first".into()).await.unwrap(), Created::Yes);
        assert_eq!(store.create("t/snapshot/snapshot-7", "second".into()).await.unwrap(), Created::Exists);
        assert_eq!(store.get("t/snapshot/snapshot-7").await.unwrap().unwrap(), "first");
    }
    assert_eq!(names(&dir.path().join("t/snapshot")), ["snapshot-7"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_creators_one_wins_and_readers_see_it_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = root(dir.path());
    let body = |index: usize| Bytes::from(vec![u8::try_from(index).unwrap(); 64 * 1024]);
    let creators: Vec<_> = (0..16)
        .map(|index| {
            let store = store.clone();
            tokio::spawn(async move { (index, store.create("snapshot/snapshot-1", body(index)).await.unwrap()) })
        })
        .collect();
    let mut winners = vec![];
    for creator in creators {
        let (index, created) = creator.await.unwrap();
        if created == Created::Yes {
            winners.push(index);
        }
    }
    assert_eq!(winners.len(), 1);
    assert_eq!(store.get("snapshot/snapshot-1").await.unwrap().unwrap(), body(winners[0]));
    assert_eq!(names(&dir.path().join("snapshot")), ["snapshot-1"]);
}

/// A name that Java would parse as a snapshot number must not be visible at any moment, not even after a crash.
#[tokio::test]
async fn what_is_staged_is_hidden_and_a_leftover_is_harmless() {
    let dir = tempfile::tempdir().unwrap();
    let store = root(dir.path());
    let folder = dir.path().join("snapshot");
    std::fs::create_dir(&folder).unwrap();
    for leftover in [".snapshot-2.0000000000000000-0.tmp", ".snapshot-2.f81d4fae-7dec-11d0-a765-00a0c91e6bf6.tmp"] {
        std::fs::write(folder.join(leftover), "torn").unwrap();
    }
    assert_eq!(store.create("snapshot/snapshot-2", "whole".into()).await.unwrap(), Created::Yes);
    assert_eq!(paths(&store.list("snapshot").await.unwrap()), ["snapshot/snapshot-2"]);
    assert!(names(&folder).iter().all(|name| name.starts_with('.') || name == "snapshot-2"));
}

#[tokio::test]
async fn put_replaces_and_stages_nothing_that_a_listing_shows() {
    let dir = tempfile::tempdir().unwrap();
    for store in [root(dir.path()), Store::in_memory()] {
        store.put("consumer/consumer-a", "{\"nextSnapshot\":1}".into()).await.unwrap();
        store.put("consumer/consumer-a", "{\"nextSnapshot\":22}".into()).await.unwrap();
        assert_eq!(store.get("consumer/consumer-a").await.unwrap().unwrap(), "{\"nextSnapshot\":22}");
        assert_eq!(store.size("consumer/consumer-a").await.unwrap(), Some(19));
        assert_eq!(store.get_range("consumer/consumer-a", 1, 5).await.unwrap(), "\"nex");
    }
    assert_eq!(names(&dir.path().join("consumer")), ["consumer-a"]);
}

#[tokio::test]
async fn odd_names_are_taken_literally() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("a folder % ü");
    for url in [root.display().to_string(), format!("file:{}", root.display()), format!("file://{}", root.display())] {
        let store = open(&url, &StoreOptions::default()).unwrap();
        assert_eq!(store.local_root().unwrap(), root);
        for path in ["t/dt=a%3Ab/bucket-0/data-1", "t/dt=日本 &+~/bucket-0/data-1", "t/dt=%25/data-1", "t/dt=a;b,c!/data-1"] {
            store.put(path, path.to_owned().into()).await.unwrap();
            assert_eq!(std::fs::read_to_string(root.join(path)).unwrap(), path);
            assert_eq!(store.get(path).await.unwrap().unwrap(), path);
            assert_eq!(store.size(path).await.unwrap(), Some(path.len() as u64));
            assert_eq!(paths(&store.list("t").await.unwrap()), [path]);
            let mut upload = store.upload(&format!("{path}.parquet")).await.unwrap();
            upload.part("ab".into(), None).await.unwrap();
            upload.part("c".into(), None).await.unwrap();
            assert_eq!(upload.finish().await.unwrap(), 3);
            assert_eq!(std::fs::read_to_string(root.join(format!("{path}.parquet"))).unwrap(), "abc");
            store.delete(path).await.unwrap();
            store.delete(&format!("{path}.parquet")).await.unwrap();
            assert!(!root.join(path).exists());
        }
    }
}

#[tokio::test]
async fn paths_do_not_leave_the_root() {
    let dir = tempfile::tempdir().unwrap();
    let store = root(&dir.path().join("root"));
    for path in ["../outside", "a/../../outside", "a//b", "./a"] {
        assert_eq!(store.create(path, "x".into()).await.unwrap_err().kind(), Kind::Invalid, "{path}");
        assert_eq!(store.put(path, "x".into()).await.unwrap_err().kind(), Kind::Invalid, "{path}");
    }
    assert_eq!(names(dir.path()), ["root"]);
}

#[tokio::test]
async fn what_is_not_there_is_told_apart_from_a_fault() {
    let dir = tempfile::tempdir().unwrap();
    for store in [root(dir.path()), Store::in_memory()] {
        assert_eq!(store.get("a/b").await.unwrap(), None);
        assert_eq!(store.size("a/b").await.unwrap(), None);
        assert_eq!(store.list("a").await.unwrap(), []);
        store.delete("a/b").await.unwrap();
        let error = store.get_existing("a/b").await.unwrap_err();
        assert_eq!(error.kind(), Kind::Data);
        assert!(error.to_string().contains("a/b"));
    }
}

#[test]
fn a_fault_of_the_disk_says_what_would_help_whoever_wraps_it() {
    let store = root(Path::new("/"));
    for (kind, expected, help) in [
        (std::io::ErrorKind::PermissionDenied, Kind::Invalid, Some("the user that this process runs as")),
        (std::io::ErrorKind::ReadOnlyFilesystem, Kind::Invalid, Some("mount the file system for writing")),
        (std::io::ErrorKind::StorageFull, Kind::Unavailable, Some("make room there")),
        (std::io::ErrorKind::QuotaExceeded, Kind::Unavailable, Some("raise the quota")),
        (std::io::ErrorKind::TimedOut, Kind::Unavailable, None),
    ] {
        let whole = local::fault("write `x`".into(), local::kind(&kind.into()), std::io::Error::from(kind));
        let generic = object_store::Error::Generic { store: "local", source: Box::new(std::io::Error::from(kind)) };
        for error in [whole, store.fault("write", "x", generic)] {
            assert_eq!(error.kind(), expected, "{}", error.chain());
            assert_eq!(error.hint().is_some(), help.is_some(), "{}", error.chain());
            assert!(help.is_none_or(|help| error.hint().unwrap().contains(help)), "{:?}", error.hint());
        }
    }
}

#[tokio::test]
async fn an_aborted_upload_never_shows() {
    let dir = tempfile::tempdir().unwrap();
    let store = root(dir.path());
    let mut upload = store.upload("bucket-0/data-1.parquet").await.unwrap();
    upload.part("abc".into(), None).await.unwrap();
    assert_eq!(store.list("").await.unwrap(), []);
    upload.abort().await.unwrap();
    assert_eq!(store.list("").await.unwrap(), []);
}

#[test]
fn an_unknown_scheme_is_refused_by_name() {
    for scheme in ["oss", "gs", "abfs", "hdfs", "s3n"] {
        let error = open(&format!("{scheme}://bucket/warehouse"), &StoreOptions::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.to_string().contains(&format!("`{scheme}`")), "{error}");
    }
    for url in ["s3:bucket/w", "s3:///w", "s3://me:hush@bucket/w", "s3a://bucket:9000/w", "s3://b?x/w"] {
        let error = open(url, &StoreOptions::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{url}");
        assert!(!error.chain().contains("hush"), "{}", error.chain());
    }
}

#[tokio::test]
async fn an_object_is_read_by_its_whole_url_without_making_folders() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a b%3A.offsets");
    std::fs::write(&file, "x").unwrap();
    for scheme in ["", "file:", "file://"] {
        assert_eq!(read(&format!("{scheme}{}", file.display()), &StoreOptions::default()).await.unwrap().unwrap(), "x");
        assert_eq!(read(&format!("{scheme}{}/none/x", dir.path().display()), &StoreOptions::default()).await.unwrap(), None);
    }
    assert_eq!(names(dir.path()), ["a b%3A.offsets"]);
    assert_eq!(read("hdfs://host/x", &StoreOptions::default()).await.unwrap_err().kind(), Kind::Unsupported);
}

#[tokio::test]
async fn a_lost_reply_has_done_its_work_and_a_fault_before_has_not() {
    let script = |act: &str, path: &str| match (act, path) {
        ("create", "before") => Some(Fault::Before),
        ("create" | "delete" | "put", "after") => Some(Fault::After),
        _ => None,
    };
    let plain = Store::in_memory();
    let faulty = plain.with_faults(Faults::scripted(script));
    assert_eq!(faulty.create("before", "x".into()).await.unwrap_err().kind(), Kind::Unavailable);
    assert_eq!(plain.get("before").await.unwrap(), None);
    assert_eq!(faulty.create("after", "x".into()).await.unwrap_err().kind(), Kind::Unavailable);
    assert_eq!(plain.get("after").await.unwrap().unwrap(), "x");
    assert!(faulty.put("after", "y".into()).await.is_err());
    assert_eq!(plain.get("after").await.unwrap().unwrap(), "y");
    assert!(faulty.delete("after").await.is_err());
    assert_eq!(plain.get("after").await.unwrap(), None);
}

#[tokio::test]
async fn a_late_create_lands_when_it_is_let_go_unless_something_is_there() {
    for rival in [false, true] {
        let release = tokio_util::sync::CancellationToken::new();
        let mut late = Some(release.clone());
        let plain = Store::in_memory();
        let faulty = plain.with_faults(Faults::scripted(move |_, _| late.take().map(Fault::Late)));
        assert_eq!(faulty.create("s", "late".into()).await.unwrap_err().kind(), Kind::Unavailable);
        assert_eq!(faulty.get("s").await.unwrap(), None);
        if rival {
            assert_eq!(plain.create("s", "rival".into()).await.unwrap(), Created::Yes);
        }
        release.cancel();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(plain.get("s").await.unwrap().unwrap(), if rival { "rival" } else { "late" });
    }
}

#[tokio::test]
async fn the_same_seed_gives_the_same_faults() {
    let run = |seed| async move {
        let store = Store::in_memory().with_faults(Faults::seeded(Rng::from_seed(seed), 3));
        let mut outcomes = vec![];
        for index in 0..50 {
            outcomes.push(store.create(&format!("o{index}"), "x".into()).await.is_ok());
        }
        outcomes
    };
    let (first, again, other) = (run(1).await, run(1).await, run(2).await);
    assert_eq!(first, again);
    assert_ne!(first, other);
    assert!(first.contains(&true) && first.contains(&false));
}

#[tokio::test]
async fn a_range_of_a_whole_url_ends_where_the_file_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    std::fs::write(&path, "0123456789").unwrap();
    let url = format!("file://{}", path.display());
    for (start, end, expected) in [(0, 10, "0123456789"), (3, 5, "34"), (8, u64::MAX, "89"), (10, 12, ""), (90, 99, ""), (5, 4, "")]
    {
        assert_eq!(read_range(&url, start, end, &StoreOptions::default()).await.unwrap().unwrap(), expected, "{start}..{end}");
    }
    assert!(read_range(&format!("{url}x"), 0, 1, &StoreOptions::default()).await.unwrap().is_none());
    let error = read_range("gs://bucket/key", 0, 1, &StoreOptions::default()).await.unwrap_err();
    assert!(error.kind() == Kind::Unsupported && error.to_string().contains("`gs`"), "{error}");
}
