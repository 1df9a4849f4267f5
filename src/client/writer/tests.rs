use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use arrow_array::{Int64Array, StringArray};

use super::*;
use crate::fluss::api::ApiKey;
use crate::fluss::cluster::ClusterOptions;
use crate::fluss::fake::{FakeServer, Reply, read, servers};
use crate::fluss::proto::*;
use crate::fluss::record::BatchHeader;
use crate::fluss::table_json::{TableDescriptor, table_to_json};
use crate::model::{DataType, Field, Schema, SchemaId, TypeKind};
use crate::runtime::{BackoffOptions, Runtime};

/// Sequence and rows of each batch of a bucket.
type Log = Vec<(i32, i32)>;

/// What the fake server has: partitions in order of their making, and per bucket the batches (sequence, rows).
#[derive(Debug, Default)]
struct Store {
    partitions: Vec<PbPartitionSpec>,
    batches: BTreeMap<(Option<i64>, i32), Log>,
    routing: Vec<Option<i32>>,
    /// Bucket errors to answer with before anything is stored, first to last.
    refuse: VecDeque<Code>,
    /// Whether to hang up after the next batch is stored.
    lose_answer: bool,
}

impl Store {
    fn produce(&mut self, request: ProduceLogRequest) -> Reply {
        let mut answer = ProduceLogResponse::default();
        for entry in request.buckets_req {
            self.routing.push(entry.routing_bucket_count);
            let mut told =
                PbProduceLogRespForBucket { partition_id: entry.partition_id, bucket_id: entry.bucket_id, ..Default::default() };
            match self.refuse.pop_front() {
                Some(code) => told.error_code = Some(code.0),
                None => {
                    let header = BatchHeader::parse(&entry.records).unwrap();
                    assert_eq!(header.writer_id, 77);
                    let log = self.batches.entry((entry.partition_id, entry.bucket_id)).or_default();
                    if log.last().is_none_or(|(sequence, _)| *sequence != header.batch_sequence) {
                        log.push((header.batch_sequence, header.record_count));
                    }
                }
            }
            answer.buckets_resp.push(told);
        }
        if std::mem::take(&mut self.lose_answer) { Reply::HangUp } else { answer.into() }
    }

    fn rows(&self) -> i32 {
        self.batches.values().flatten().map(|(_, rows)| rows).sum()
    }
}

fn descriptor(partitioned: bool, keyed: bool) -> TableDescriptor {
    let field = |id, name: &str, kind| Field { id, name: name.into(), data_type: DataType::nullable(kind), comment: None };
    TableDescriptor {
        schema: Schema {
            id: SchemaId(1),
            fields: vec![field(0, "id", TypeKind::BigInt), field(1, "day", TypeKind::String)],
            primary_key: vec![],
            highest_field_id: 1,
        },
        comment: None,
        partition_keys: if partitioned { vec!["day".into()] } else { vec![] },
        bucket_keys: if keyed { vec!["id".into()] } else { vec![] },
        bucket_count: Some(2),
        properties: BTreeMap::new(),
        custom_properties: BTreeMap::new(),
    }
}

async fn writer(table: TableDescriptor, options: WriterOptions) -> (Writer, Arc<Mutex<Store>>) {
    let store = Arc::new(Mutex::new(Store::default()));
    let port = Arc::new(AtomicI32::new(0));
    let (own, shared) = (Arc::clone(&port), Arc::clone(&store));
    let server = FakeServer::start(None, 1, move |key, _, body| {
        let mut store = shared.lock().unwrap();
        let bucket = |bucket_id| PbBucketMetadata { bucket_id, leader_id: Some(0), ..Default::default() };
        match key {
            ApiKey::GetMetadata => {
                let request = read::<MetadataRequest>(body);
                let port = own.load(Ordering::SeqCst);
                let mut answer = servers(port, &[port]);
                answer.table_metadata.extend(request.table_path.into_iter().map(|table_path| PbTableMetadata {
                    table_path,
                    table_id: 1,
                    bucket_metadata: if table.partition_keys.is_empty() { vec![bucket(0), bucket(1)] } else { vec![] },
                    ..Default::default()
                }));
                // Partitions have more buckets the later they are made.
                answer.partition_metadata.extend(request.partitions_id.into_iter().map(|id| PbPartitionMetadata {
                    table_id: 1,
                    partition_id: id,
                    bucket_metadata: (0..=i32::try_from(id).unwrap()).map(bucket).collect(),
                    ..Default::default()
                }));
                answer.into()
            }
            ApiKey::GetTableInfo => GetTableInfoResponse {
                table_id: 1,
                schema_id: 1,
                table_json: table_to_json(&table).unwrap().into(),
                ..Default::default()
            }
            .into(),
            ApiKey::InitWriter => InitWriterResponse { writer_id: 77 }.into(),
            ApiKey::ListPartitionInfos => {
                let infos = store.partitions.iter().zip(0..).map(|(spec, id)| PbPartitionInfo {
                    partition_id: id,
                    partition_spec: spec.clone(),
                    bucket_count: Some(i32::try_from(id).unwrap() + 1),
                    ..Default::default()
                });
                ListPartitionInfosResponse { partitions_info: infos.collect(), ..Default::default() }.into()
            }
            ApiKey::CreatePartition => {
                store.partitions.push(read::<CreatePartitionRequest>(body).partition_spec);
                CreatePartitionResponse {}.into()
            }
            ApiKey::ProduceLog => store.produce(read::<ProduceLogRequest>(body)),
            other => panic!("{other}"),
        }
    })
    .await;
    port.store(server.port, Ordering::SeqCst);
    let backoff = BackoffOptions { first: Duration::from_millis(1), max: Duration::from_millis(2), attempts_max: 4 };
    let cluster_options = ClusterOptions { retry: backoff, bootstrap: backoff, ..Default::default() };
    let cluster = Cluster::connect(&[server.address()], cluster_options, &Runtime::simulated(1, 0, 1 << 20)).await.unwrap();
    (Writer::open(&cluster, &TablePath::new("demo", "t"), options).await.unwrap(), store)
}

fn rows(writer: &Writer, ids: std::ops::Range<i64>, day: impl Fn(i64) -> &'static str) -> RecordBatch {
    let days = StringArray::from_iter_values(ids.clone().map(day));
    RecordBatch::try_new(writer.schema(), vec![Arc::new(Int64Array::from_iter_values(ids)), Arc::new(days)]).unwrap()
}

#[tokio::test]
async fn keyless_batches_take_buckets_in_turn_with_a_sequence_each() {
    let (mut writer, store) = writer(descriptor(false, false), WriterOptions::default()).await;
    for start in [0, 10, 20] {
        let batch = rows(&writer, start..start + 10, |_| "a");
        writer.append(&batch).await.unwrap();
    }
    let store = store.lock().unwrap();
    assert_eq!(store.batches, [((None, 0), vec![(0, 10), (1, 10)]), ((None, 1), vec![(0, 10)])].into());
    assert_eq!(store.routing, [Some(2), Some(2), Some(2)]);
}

#[tokio::test]
async fn partitions_are_made_as_needed_and_routed_by_their_own_count() {
    let (mut writer, store) = writer(descriptor(true, false), WriterOptions::default()).await;
    let batch = rows(&writer, 0..9, |id| ["x", "x", "y"][usize::try_from(id % 3).unwrap()]);
    writer.append(&batch).await.unwrap();
    let store = store.lock().unwrap();
    let made: Vec<&str> = store.partitions.iter().map(|spec| spec.partition_key_values[0].value.as_str()).collect();
    assert_eq!(made, ["x", "y"]);
    assert_eq!(store.batches, [((Some(0), 0), vec![(0, 6)]), ((Some(1), 0), vec![(0, 3)])].into());
    assert_eq!(store.routing, [Some(1), Some(2)]);
}

#[tokio::test]
async fn keyed_rows_go_where_their_key_hashes_by_the_count_of_their_partition() {
    let (mut writer, store) = writer(descriptor(true, true), WriterOptions::default()).await;
    let batch = rows(&writer, 0..100, |id| if id < 50 { "x" } else { "y" });
    writer.append(&batch).await.unwrap();
    let expected = by_key(&writer.table, &batch, 2).unwrap()[50..].iter().filter(|bucket| **bucket == 1).count();
    let store = store.lock().unwrap();
    assert_eq!(store.batches[&(Some(0), 0)], [(0, 50)]);
    assert_eq!(store.batches[&(Some(1), 1)], [(0, i32::try_from(expected).unwrap())]);
    assert_eq!(store.rows(), 100);
}

#[tokio::test]
async fn large_appends_become_many_batches_in_bounded_waves() {
    let options = WriterOptions { batch_bytes: 1000, in_flight_bytes: 1, ..WriterOptions::default() };
    let (mut writer, store) = writer(descriptor(false, false), options).await;
    let batch = rows(&writer, 0..1000, |_| "a");
    writer.append(&batch).await.unwrap();
    let store = store.lock().unwrap();
    assert_eq!(store.rows(), 1000);
    assert!(store.batches.values().all(|log| log.len() > 5));
    assert!(store.batches.values().all(|log| log.iter().zip(0..).all(|((sequence, _), index)| *sequence == index)));
}

#[tokio::test]
async fn a_lost_answer_and_retriable_errors_double_nothing() {
    let (mut writer, store) = writer(descriptor(false, false), WriterOptions::default()).await;
    store.lock().unwrap().lose_answer = true;
    let batch = rows(&writer, 0..10, |_| "a");
    writer.append(&batch).await.unwrap();
    store.lock().unwrap().refuse = [Code::NOT_LEADER_OR_FOLLOWER, Code::STORAGE].into();
    writer.append(&batch).await.unwrap();
    assert_eq!(store.lock().unwrap().batches, [((None, 0), vec![(0, 10)]), ((None, 1), vec![(0, 10)])].into());
}

#[tokio::test]
async fn after_a_failed_append_the_writer_refuses_rows() {
    let (mut writer, store) = writer(descriptor(false, false), WriterOptions::default()).await;
    store.lock().unwrap().refuse = [Code::OUT_OF_ORDER_SEQUENCE].into();
    let batch = rows(&writer, 0..10, |_| "a");
    let error = writer.append(&batch).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Invalid, Some(31)));
    let error = writer.append(&batch).await.unwrap_err();
    assert!(error.hint().is_some_and(|hint| hint.contains("new writer")), "{error}");
    assert_eq!(store.lock().unwrap().rows(), 0);
}

#[tokio::test]
async fn rows_that_do_not_fit_are_refused_before_sending() {
    let (mut writer, store) = writer(descriptor(true, false), WriterOptions::default()).await;
    let id_only = rows(&writer, 0..1, |_| "a").project(&[0]).unwrap();
    assert_eq!(writer.append(&id_only).await.unwrap_err().kind(), Kind::Invalid);
    let ids = Int64Array::from_iter_values([1]);
    let null_day =
        RecordBatch::try_new(writer.schema(), vec![Arc::new(ids), Arc::new(StringArray::from(vec![None::<&str>]))]).unwrap();
    let error = writer.append(&null_day).await.unwrap_err();
    assert!(error.to_string().contains("partition column `day`"), "{error}");
    let fits = rows(&writer, 0..1, |_| "a");
    writer.append(&fits).await.unwrap();
    assert_eq!(store.lock().unwrap().rows(), 1);
}
