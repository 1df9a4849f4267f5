//! The service on a cluster of which one server misbehaves: tables of the other are tiered on, leases are kept, the table in trouble says
//! why, and is tiered as soon as it can be.

use std::sync::Arc;
use std::time::Duration;

use lakeward::client::{Admin, Writer, WriterOptions};
use lakeward::daemon::board::Board;
use lakeward::daemon::{self, Service};
use lakeward::error::Kind;
use lakeward::fluss::api::ApiKey;
use lakeward::fluss::cluster::{Cluster, ClusterOptions};
use lakeward::model::{TablePath, TypeKind};
use lakeward::round::{self, RoundContext};
use lakeward::runtime::Runtime;
use lakeward::source::cluster::ClusterSource;
use tokio_util::sync::CancellationToken;

use super::servers::{Manner, Stand};
use crate::rounds::{descriptor, field, rows, until};

async fn append(cluster: &Cluster, path: &TablePath, ids: std::ops::Range<i64>) {
    let mut writer = Writer::open(cluster, path, WriterOptions::default()).await.unwrap();
    let batch = rows(&writer, ids, "");
    writer.append(&batch).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_bad_server_holds_up_its_own_tables_alone() {
    let stand = Stand::new().await;
    let runtime = &stand.runtime;
    let user = Cluster::connect(&[stand.node.address().to_string()], ClusterOptions::default(), runtime).await.unwrap();
    let admin = Admin::new(user.clone());
    admin.create_database("demo", false).await.unwrap();
    let paths = [TablePath::new("demo", "good"), TablePath::new("demo", "bad")];
    let mut ids = Vec::new();
    for (path, tablet) in paths.iter().zip(0..) {
        let mut table = descriptor(vec![field("id", TypeKind::BigInt, false)], &[], &["id"], 2);
        table.properties.insert("table.datalake.freshness".into(), "50ms".into());
        admin.create_table(path, &table, false).await.unwrap();
        let id = admin.table_info(path).await.unwrap().id;
        stand.lead(id.0, tablet);
        ids.push(id);
    }
    let source = Arc::new(ClusterSource::new(stand.cluster(Duration::from_secs(1)).await.unwrap()));
    let mut round_options = round::Options::default();
    round_options.read.wait = Duration::from_millis(50);
    let rounds = RoundContext {
        scan: Arc::<ClusterSource>::clone(&source),
        ledger: Arc::<ClusterSource>::clone(&source),
        runtime: Runtime { shutdown: CancellationToken::new(), ..runtime.clone() },
        options: round_options,
    };
    let mut options = daemon::Options { poll: Duration::from_millis(100), ..daemon::Options::default() };
    options.timers.retry_max = Duration::from_millis(300);
    let board = Board::new(options.parallel, runtime.clock.now_ms());
    let (told, stop) = (board.clone(), CancellationToken::new());
    let asked = stop.clone();
    let running = tokio::spawn(async move {
        let service = Service { queue: source, rounds, options };
        daemon::run(&service, asked, &told, &mut |_| {}).await
    });
    let mut written = [0; 2];
    let mut more = async |which: usize| {
        append(&user, &paths[which], written[which]..written[which] + 40).await;
        written[which] += 40;
        u64::try_from(written[which]).unwrap()
    };
    let rows_of = |which: usize| board.table(ids[which]).map_or(0, |table| table.rows);
    let garbage = b"HTTP/1.1 503 Service Unavailable\r\n\r\n".to_vec();
    for (key, manner, kind, words) in [
        (ApiKey::FetchLog, Manner::Silent, Kind::Unavailable, "no answer within 1 s"),
        // Both requests in flight get a byte; four zeros would be a frame, of length 0.
        (ApiKey::FetchLog, Manner::Trickles(vec![0]), Kind::Unavailable, "bytes of one"),
        (ApiKey::ListOffsets, Manner::SaysAndCloses(vec![]), Kind::Unavailable, "server closed the connection"),
        (ApiKey::FetchLog, Manner::Says(garbage), Kind::Data, "frame of `1213486160` bytes"),
    ] {
        let held = kind == Kind::Data;
        stand.tablets[1].set_for(key, manner);
        let wanted = more(1).await;
        let reason = until(runtime, "the table in trouble says why", async || {
            board.table(ids[1]).filter(|table| table.kind == Some(kind))?.reason
        })
        .await;
        for part in [words, key.name(), &stand.tablets[1].address(), &paths[1].to_string()] {
            assert!(reason.contains(part), "`{part}` is not in `{reason}`");
        }
        // Meanwhile the other goes on, round by round, and the lease is kept: nobody else is handed the table.
        for _ in 0..2 {
            let wanted = more(0).await;
            until(runtime, "the table of the other server is tiered", async || (rows_of(0) >= wanted).then_some(())).await;
        }
        let table = board.table(ids[1]).unwrap();
        assert!(table.state.in_hand() != held, "{:?}", table.state);
        assert!(rows_of(1) < wanted, "{table:?}");
        stand.tablets[1].sound();
        if !held {
            until(runtime, "it is tiered as soon as it can be", async || (rows_of(1) >= wanted).then_some(())).await;
        }
    }
    let table = board.table(ids[1]).unwrap();
    assert!(table.next_look_ms.is_some() && table.help.is_some_and(|help| help.contains("address of a Fluss server")));
    stop.cancel();
    running.await.unwrap().unwrap();
}

/// The server of the queue is silent for a while: leases are kept as long as they are trusted, and rounds go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_that_answers_no_heartbeats_is_told_of_and_forgiven() {
    let stand = Stand::new().await;
    let runtime = &stand.runtime;
    let source = Arc::new(ClusterSource::new(stand.cluster(Duration::from_secs(1)).await.unwrap()));
    let rounds = RoundContext {
        scan: Arc::<ClusterSource>::clone(&source),
        ledger: Arc::<ClusterSource>::clone(&source),
        runtime: Runtime { shutdown: CancellationToken::new(), ..runtime.clone() },
        options: round::Options::default(),
    };
    let options = daemon::Options { poll: Duration::from_millis(50), ..daemon::Options::default() };
    let board = Board::new(options.parallel, runtime.clock.now_ms());
    let (told, stop) = (board.clone(), CancellationToken::new());
    let asked = stop.clone();
    let running = tokio::spawn(async move {
        let service = Service { queue: source, rounds, options };
        daemon::run(&service, asked, &told, &mut |_| {}).await
    });
    for (manner, words) in [
        (Manner::Silent, "no answer within 1 s"),
        (Manner::Says(vec![0xff; 4]), "frame of `-1` bytes"),
        (Manner::SaysAndCloses(vec![]), "server closed the connection"),
    ] {
        stand.coordinator.set_for(ApiKey::LakeTieringHeartbeat, manner);
        let fault =
            until(runtime, "the fault is told", async || board.service().heartbeat_fault.filter(|fault| fault.contains(words)))
                .await;
        assert!(fault.contains(&stand.coordinator.address()) && fault.contains("LakeTieringHeartbeat"), "{fault}");
        stand.coordinator.sound();
        until(runtime, "it is over", async || board.service().heartbeat_fault.is_none().then_some(())).await;
    }
    stop.cancel();
    running.await.unwrap().unwrap();
    assert!(stand.dir.path().exists());
}
