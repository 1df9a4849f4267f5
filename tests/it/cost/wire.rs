//! The same on the wire: a node behind a listener that reads which requests pass.

use lakeward::client::{Admin, Writer, WriterOptions};
use lakeward::fluss::api::ApiKey;
use lakeward::fluss::cluster::{Cluster, ClusterOptions};
use lakeward::model::RoundOutcome;
use lakeward::node::{Node, NodeOptions};
use lakeward::source::TableScan;
use lakeward::source::cluster::ClusterSource;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use super::*;

/// Lets connections through to `to`, and notes the names of the requests.
async fn listen(listener: TcpListener, to: String, log: Arc<Mutex<Vec<String>>>) {
    while let Ok((client, _)) = listener.accept().await {
        let server = TcpStream::connect(&to).await.unwrap();
        let ((mut asks, mut hears), (mut answers, mut told)) = (client.into_split(), server.into_split());
        tokio::spawn(async move { tokio::io::copy(&mut answers, &mut hears).await });
        let log = Arc::clone(&log);
        tokio::spawn(async move {
            // Length, key, version, id, body (F2.1).
            while let Ok(length) = asks.read_u32().await {
                let mut frame = vec![0; usize::try_from(length).unwrap()];
                if asks.read_exact(&mut frame).await.is_err() {
                    return;
                }
                let key = ApiKey::from_number(i16::from_be_bytes([frame[0], frame[1]]));
                log.lock().unwrap().push(key.map_or("unknown", ApiKey::name).to_owned());
                told.write_u32(length).await.unwrap();
                told.write_all(&frame).await.unwrap();
            }
        });
    }
}

#[tokio::test]
async fn an_idle_round_sends_what_it_has_to_and_no_more() {
    let (dir, log) = (tempfile::tempdir().unwrap(), Arc::<Mutex<Vec<String>>>::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let runtime = Runtime::system(2, 64 << 20).unwrap();
    let mut options = NodeOptions::new(dir.path());
    options.log.fsync = false;
    options.advertise = Some(listener.local_addr().unwrap().to_string());
    let address = listener.local_addr().unwrap().to_string();
    let node = Node::start(options, runtime.clone()).await.unwrap();
    let _listening = AbortOnDropHandle::new(tokio::spawn(listen(listener, node.address().to_string(), Arc::clone(&log))));
    let cluster = Cluster::connect(std::slice::from_ref(&address), ClusterOptions::default(), &runtime).await.unwrap();
    let admin = Admin::new(cluster.clone());
    admin.create_database("demo", true).await.unwrap();
    let fields = vec![field("id", TypeKind::BigInt, true), field("day", TypeKind::String, false)];
    let mut descriptor = descriptor(fields, &["day"], &["id"], 2);
    descriptor.properties.remove("table.datalake.freshness");
    let path = path("t");
    admin.create_table(&path, &descriptor, false).await.unwrap();
    let mut writer = Writer::open(&cluster, &path, WriterOptions::default()).await.unwrap();
    for day in 0..12_i64 {
        let (ids, days) = (Int64Array::from(vec![day, day + 1]), StringArray::from(vec![format!("d{day}"); 2]));
        writer.append(&RecordBatch::try_new(writer.schema(), vec![Arc::new(ids), Arc::new(days)]).unwrap()).await.unwrap();
    }

    // A service of its own: what the writer has learned about leaders is not the round's.
    let cluster = Cluster::connect(&[address], ClusterOptions::default(), &runtime).await.unwrap();
    let source = Arc::new(ClusterSource::new(cluster));
    let table = source.table_info(&path).await.unwrap();
    log.lock().unwrap().clear();
    let context = RoundContext { scan: Arc::<ClusterSource>::clone(&source), ledger: source, runtime, options: Options::default() };
    let job = Job { path, table: table.id, epoch: TieringEpoch(1), lease: None, limits: Limits::default() };
    let first = round::run(&context, &job).await.map_err(|error| error.chain()).unwrap();
    assert!(matches!(first.outcome, RoundOutcome::Committed { .. }) && first.rows == 24);
    let sent = counted(std::mem::take(&mut *log.lock().unwrap()));
    assert_eq!(sent.get("GetMetadata"), Some(&1), "leaders of all partitions come in one answer: {sent:?}");
    assert_eq!(sent.get("ListOffsets"), Some(&24), "starts and ends: {sent:?}");

    let idle = round::run(&context, &job).await.map_err(|error| error.chain()).unwrap();
    assert_eq!(idle.outcome, RoundOutcome::Idle);
    let sent = counted(std::mem::take(&mut *log.lock().unwrap()));
    let wanted = [("GetLakeSnapshot", 1), ("GetTableInfo", 1), ("ListOffsets", 12), ("ListPartitionInfos", 1)];
    assert_eq!(sent, wanted.map(|(name, times)| (name.to_owned(), times)).into());
}
