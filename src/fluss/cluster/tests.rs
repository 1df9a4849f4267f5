use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use prost::Message;

use super::*;
use crate::error::Kind;
use crate::fluss::api::ApiKey;
use crate::fluss::auth::Credentials;
use crate::fluss::fake::{FakeServer, Reply, servers};
use crate::fluss::proto::*;
use crate::model::{BucketId, PartitionId, TableBucket, TableId};

fn quick() -> ClusterOptions {
    let backoff = BackoffOptions { first: Duration::from_millis(1), max: Duration::from_millis(2), attempts_max: 4 };
    ClusterOptions { retry: backoff, bootstrap: backoff, ..Default::default() }
}

fn runtime() -> Runtime {
    Runtime::simulated(1, 0, 1 << 20)
}

fn bucket(partition: i64, bucket: i32) -> TableBucket {
    TableBucket { table: TableId(7), partition: Some(PartitionId(partition)), bucket: BucketId(bucket) }
}

fn partition(id: i64, leaders: &[Option<i32>]) -> PbPartitionMetadata {
    let bucket_metadata = leaders.iter().zip(0..).map(|(leader, bucket)| PbBucketMetadata {
        bucket_id: bucket,
        leader_id: *leader,
        ..Default::default()
    });
    PbPartitionMetadata {
        table_id: 7,
        partition_name: id.to_string(),
        partition_id: id,
        bucket_metadata: bucket_metadata.collect(),
        bucket_count: None,
    }
}

#[tokio::test]
async fn what_is_no_address_is_a_fault_of_the_input_and_not_tried() {
    for wrong in ["cluster", ":9123", "cluster:", "cluster:port", "cluster:99999"] {
        let error = Cluster::connect(&[wrong.into()], quick(), &runtime()).await.unwrap_err();
        assert_eq!((error.kind(), error.hint().is_some()), (Kind::Invalid, true), "{wrong}");
    }
}

#[tokio::test]
async fn the_next_bootstrap_server_is_asked_when_one_is_silent_and_the_missing_ones_are_named() {
    let port = Arc::new(AtomicI32::new(0));
    let own = Arc::clone(&port);
    let server = FakeServer::start(None, 0, move |_, _, _| {
        let port = own.load(Ordering::SeqCst);
        servers(port, &[port]).into()
    })
    .await;
    port.store(server.port, Ordering::SeqCst);
    let cluster = Cluster::connect(&["127.0.0.1:1".into(), server.address()], quick(), &runtime()).await.unwrap();
    assert_eq!(cluster.metadata().tablets.len(), 1);
    let error = Cluster::connect(&["127.0.0.1:1".into()], quick(), &runtime()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    assert!(error.to_string().contains("5 attempts"), "{error}");
}

#[tokio::test]
async fn a_cluster_without_tablet_servers_is_not_ready() {
    let server = FakeServer::start(None, 0, |_, _, _| servers(1, &[]).into()).await;
    let error = Cluster::connect(&[server.address()], quick(), &runtime()).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Unavailable, Some(44)));
    assert!(server.requests.load(Ordering::SeqCst) > 3);
}

#[tokio::test]
async fn a_coordinator_that_moved_is_found_again() {
    let ports = Arc::new(Mutex::new((0, 0)));
    let known = Arc::clone(&ports);
    let new = FakeServer::start(Some(1), 0, |_, _, _| TableExistsResponse { exists: true }.into()).await;
    let moved = Arc::clone(&ports);
    let new_port = new.port;
    let old = FakeServer::start(Some(1), 0, move |_, _, _| {
        moved.lock().unwrap().0 = new_port;
        Reply::Error(Code::NOT_COORDINATOR_LEADER.error("moved"))
    })
    .await;
    let tablet = FakeServer::start(Some(2), 0, move |key, _, _| {
        assert_eq!(key, ApiKey::GetMetadata);
        let ports = *known.lock().unwrap();
        servers(ports.0, &[ports.1]).into()
    })
    .await;
    *ports.lock().unwrap() = (old.port, tablet.port);
    let cluster = Cluster::connect(&[tablet.address()], quick(), &runtime()).await.unwrap();
    let request = TableExistsRequest { table_path: PbTablePath { database_name: "db".into(), table_name: "t".into() } };
    assert!(cluster.coordinator(&request).await.unwrap().exists);
    assert_eq!((old.requests.load(Ordering::SeqCst), new.requests.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test]
async fn a_server_of_the_wrong_type_is_not_asked() {
    let port = Arc::new(AtomicI32::new(0));
    let own = Arc::clone(&port);
    let server = FakeServer::start(Some(2), 0, move |_, _, _| {
        let port = own.load(Ordering::SeqCst);
        servers(port, &[port]).into()
    })
    .await;
    port.store(server.port, Ordering::SeqCst);
    let cluster = Cluster::connect(&[server.address()], quick(), &runtime()).await.unwrap();
    let error = cluster.coordinator(&LakeTieringHeartbeatRequest::default()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.chain().contains("is a tablet server, not a coordinator"), "{}", error.chain());
}

#[tokio::test]
async fn a_dead_connection_is_made_again_and_a_final_error_is_not_repeated() {
    let port = Arc::new(AtomicI32::new(0));
    let own = Arc::clone(&port);
    let calls = AtomicUsize::new(0);
    let server = FakeServer::start(None, 0, move |key, _, _| {
        let port = own.load(Ordering::SeqCst);
        match key {
            ApiKey::GetMetadata => servers(port, &[port]).into(),
            ApiKey::ListTables if calls.fetch_add(1, Ordering::SeqCst) == 0 => Reply::HangUp,
            ApiKey::ListTables => ListTablesResponse { table_name: vec!["t".into()] }.into(),
            _ => Reply::Error(Code::DATABASE_NOT_EXIST.error("no such database")),
        }
    })
    .await;
    port.store(server.port, Ordering::SeqCst);
    let cluster = Cluster::connect(&[server.address()], quick(), &runtime()).await.unwrap();
    let tables = cluster.any(&ListTablesRequest { database_name: "db".into() }).await.unwrap();
    assert_eq!(tables.table_name, ["t"]);
    let before = server.requests.load(Ordering::SeqCst);
    let error = cluster.any(&GetDatabaseInfoRequest { database_name: "db".into() }).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Invalid, Some(4)));
    // The coordinator is looked up again, since its connection died; the question itself goes out once.
    assert_eq!(server.requests.load(Ordering::SeqCst), before + 2);
}

#[tokio::test]
async fn buckets_are_located_once_and_missing_ones_tell_why() {
    let port = Arc::new(AtomicI32::new(0));
    let own = Arc::clone(&port);
    let server = FakeServer::start(None, 0, move |_, _, body| {
        let request = MetadataRequest::decode(body).unwrap();
        let port = own.load(Ordering::SeqCst);
        let mut answer = servers(port, &[port]);
        for id in request.partitions_id {
            match id {
                3 => answer.partition_metadata.push(partition(3, &[Some(0), Some(0)])),
                4 => answer.partition_metadata.push(partition(4, &[None, Some(9)])),
                _ => return Reply::Error(Code::PARTITION_NOT_EXISTS.error("gone")),
            }
        }
        answer.into()
    })
    .await;
    port.store(server.port, Ordering::SeqCst);
    let cluster = Cluster::connect(&[server.address()], quick(), &runtime()).await.unwrap();
    let path = TablePath::new("db", "t");
    let wanted = [bucket(3, 0), bucket(3, 1), bucket(3, 2), bucket(4, 0), bucket(4, 1), bucket(5, 0)];
    let located = cluster.locate(&path, &wanted).await.unwrap();
    assert_eq!(located.servers, [(0, vec![bucket(3, 0), bucket(3, 1)])].into());
    let missing = [
        (bucket(3, 2), Code::UNKNOWN_TABLE_OR_BUCKET),
        (bucket(4, 0), Code::LEADER_NOT_AVAILABLE),
        (bucket(4, 1), Code::LEADER_NOT_AVAILABLE),
        (bucket(5, 0), Code::PARTITION_NOT_EXISTS),
    ];
    assert_eq!(located.missing, missing.into());
    let before = server.requests.load(Ordering::SeqCst);
    cluster.locate(&path, &wanted[..2]).await.unwrap();
    assert_eq!(server.requests.load(Ordering::SeqCst), before);
    cluster.suspect(&path, bucket(3, 1));
    cluster.locate(&path, &wanted[..2]).await.unwrap();
    cluster.forget(&path);
    cluster.locate(&path, &wanted[..2]).await.unwrap();
    assert_eq!(server.requests.load(Ordering::SeqCst), before + 2);
}

#[tokio::test]
async fn a_table_that_was_made_again_is_stale() {
    let port = Arc::new(AtomicI32::new(0));
    let own = Arc::clone(&port);
    let server = FakeServer::start(None, 0, move |_, _, body| {
        let request = MetadataRequest::decode(body).unwrap();
        let port = own.load(Ordering::SeqCst);
        let mut answer = servers(port, &[port]);
        answer.table_metadata.extend(request.table_path.into_iter().map(|table_path| PbTableMetadata {
            table_path,
            table_id: 8,
            ..Default::default()
        }));
        answer.into()
    })
    .await;
    port.store(server.port, Ordering::SeqCst);
    let cluster = Cluster::connect(&[server.address()], quick(), &runtime()).await.unwrap();
    let wanted = TableBucket { table: TableId(7), partition: None, bucket: BucketId(0) };
    let error = cluster.locate(&TablePath::new("db", "t"), &[wanted]).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Stale, Some(7)));
}

#[tokio::test]
async fn a_refused_login_ends_the_search_at_once_for_everyone_who_waits_for_it() {
    let server = FakeServer::start(None, 0, |key, _, _| {
        assert_eq!(key, ApiKey::Authenticate);
        Reply::Error(Code::AUTHENTICATE.error("who are you"))
    })
    .await;
    let mut options = quick();
    options.connection.credentials = Some(Credentials::new("otto", "geheim").unwrap());
    let error = Cluster::connect(&[server.address()], options.clone(), &runtime()).await.unwrap_err();
    assert_eq!((error.kind(), error.code(), error.hint().is_some()), (Kind::Invalid, Some(46), true), "{}", error.chain());
    assert_eq!(server.requests.load(Ordering::SeqCst), 1);
    let pool = Pool::new(options.connection, runtime());
    for _ in 0..3 {
        let error = pool.get(None, &server.address()).await.unwrap_err();
        assert_eq!((error.kind(), error.code(), error.hint().is_some()), (Kind::Invalid, Some(46), true), "{}", error.chain());
    }
    assert_eq!(server.requests.load(Ordering::SeqCst), 2);
}
