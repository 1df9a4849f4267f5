use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, StringArray};

use super::*;
use crate::error::Kind;
use crate::fluss::api::ApiKey;
use crate::fluss::cluster::ClusterOptions;
use crate::fluss::fake::{FakeServer, Reply, read, servers};
use crate::fluss::proto::*;
use crate::fluss::record::{BatchSchema, EncodeOptions, KvBatch, LogFormat, arrow_schema, batches, encode_arrow_batch, stamp};
use crate::fluss::table_json::{TableDescriptor, table_to_json};
use crate::model::{BucketId, DataType, Field, Schema, SchemaId, TableId, TypeKind};
use crate::runtime::Runtime;

/// Sequence and rows of each batch of a bucket.
type Log = Vec<(i32, i32)>;

/// What the fake server has: partitions in order of their making, and per bucket the batches (sequence, rows).
#[derive(Debug, Default)]
struct Store {
    partitions: Vec<PbPartitionSpec>,
    batches: BTreeMap<(Option<i64>, i32), Log>,
    /// Stored batches of each bucket, and offset behind them.
    raw: BTreeMap<(Option<i64>, i32), (Vec<u8>, i64)>,
    /// Ids of the rows of each bucket, in order.
    ids: BTreeMap<(Option<i64>, i32), Vec<i64>>,
    /// Last sequence of each writer in each bucket.
    writers: BTreeMap<(Option<i64>, i32, i64), i32>,
    writers_made: i64,
    /// Bucket, key and row of each change, in order.
    changes: Vec<(i32, Vec<u8>, Option<Vec<u8>>)>,
    routing: Vec<Option<i32>>,
    /// Bucket errors to answer with before anything is stored, first to last; none stands for none.
    refuse: VecDeque<Code>,
    /// Bucket errors to answer with after the batch is stored.
    refuse_stored: VecDeque<Code>,
    /// Whether to hang up after the next batch is stored.
    lose_answer: bool,
    /// Whether logs can't be looked into.
    blind: bool,
    /// How often a log was looked into.
    looked: usize,
    /// Whether to forget all writers with the next lost answer or refusal.
    forget: bool,
    /// Whether to lose all records with the next answer.
    lose_log: bool,
    /// What requests have to be routed by; what is listed is out of date until so many of them were turned away.
    count: Option<(i32, usize)>,
    /// Whether the next request finds its partition dropped.
    drop_partition: bool,
    /// Answer to CreatePartition.
    refuse_partition: Option<Code>,
}

impl Store {
    fn produce(&mut self, request: ProduceLogRequest) -> Reply {
        let mut answer = ProduceLogResponse::default();
        if std::mem::take(&mut self.drop_partition) {
            self.partitions.clear();
        }
        for entry in request.buckets_req {
            self.routing.push(entry.routing_bucket_count);
            let mut told =
                PbProduceLogRespForBucket { partition_id: entry.partition_id, bucket_id: entry.bucket_id, ..Default::default() };
            let before = self.end((entry.partition_id, entry.bucket_id));
            told.error_code = self.store(&entry).map(|code| code.0);
            told.base_offset = told.error_code.is_none().then_some(before);
            answer.buckets_resp.push(told);
        }
        if std::mem::take(&mut self.lose_log) {
            self.raw.clear();
        }
        if std::mem::take(&mut self.forget) {
            self.writers.clear();
        }
        if std::mem::take(&mut self.lose_answer) { Reply::HangUp } else { answer.into() }
    }

    fn store(&mut self, entry: &PbProduceLogReqForBucket) -> Option<Code> {
        if let Some(code) = self.refuse.pop_front().filter(|code| *code != Code::NONE) {
            return Some(code);
        }
        if entry.partition_id.is_some_and(|id| usize::try_from(id).unwrap() >= self.partitions.len()) {
            return Some(Code::UNKNOWN_TABLE_OR_BUCKET);
        }
        if let Some((count, left)) = &mut self.count
            && entry.routing_bucket_count != Some(*count)
        {
            *left = left.saturating_sub(1);
            return Some(Code::INVALID_BUCKET_ROUTING);
        }
        let batch = batches(entry.records.clone()).next().unwrap().unwrap();
        let (writer, sequence) = (batch.header.writer_id, batch.header.batch_sequence);
        let place = (entry.partition_id, entry.bucket_id);
        match self.writers.get(&(place.0, place.1, writer)).copied() {
            Some(last) if last == sequence => return None,
            last if sequence != last.map_or(0, |last| last + 1) => return Some(Code::OUT_OF_ORDER_SEQUENCE),
            _ => {}
        }
        self.writers.insert((place.0, place.1, writer), sequence);
        let (raw, end) = self.raw.entry(place).or_default();
        let mut bytes = entry.records.to_vec();
        stamp(&mut bytes, *end, 0, 0).unwrap();
        raw.extend(bytes);
        *end += i64::from(batch.header.record_count);
        self.batches.entry(place).or_default().push((sequence, batch.header.record_count));
        let schema = BatchSchema::new(Arc::new(descriptor(false, false).schema)).unwrap();
        let bucket = TableBucket { table: TableId(1), partition: None, bucket: BucketId(entry.bucket_id) };
        let rows = batch.decode(LogFormat::Arrow, &schema, bucket).unwrap().unwrap().rows;
        self.ids.entry(place).or_default().extend(rows.column(0).as_primitive::<Int64Type>().values());
        self.refuse_stored.pop_front()
    }

    /// Takes changes as a server does; the changelog has batches without rows.
    fn put(&mut self, request: PutKvRequest) -> Reply {
        assert_eq!((request.acks, request.target_columns.len(), request.agg_mode), (-1, 0, Some(0)));
        let mut answer = PutKvResponse::default();
        for entry in request.buckets_req {
            self.routing.push(entry.routing_bucket_count);
            let place = (entry.partition_id, entry.bucket_id);
            let batch = KvBatch::parse(entry.records).unwrap();
            let writer = (place.0, place.1, batch.writer_id);
            let known = self.writers.get(&writer).copied();
            let is_next = batch.sequence == known.map_or(0, |last| last + 1);
            if is_next {
                self.writers.insert(writer, batch.sequence);
                self.batches.entry(place).or_default().push((batch.sequence, i32::try_from(batch.count).unwrap()));
                for record in batch.records() {
                    self.changes.push((place.1, record.key.to_vec(), record.row.map(<[u8]>::to_vec)));
                }
                let (raw, end) = self.raw.entry(place).or_default();
                let nothing = RecordBatch::new_empty(arrow_schema(&descriptor(false, false).schema).unwrap());
                let options =
                    EncodeOptions { writer_id: batch.writer_id, sequence: batch.sequence, ..EncodeOptions::new(SchemaId(1)) };
                let mut bytes = encode_arrow_batch(options, &nothing, Some(&[])).unwrap().to_vec();
                stamp(&mut bytes, *end, 0, 0).unwrap();
                raw.extend(bytes);
                *end += 1;
            }
            let is_out_of_order = !is_next && known != Some(batch.sequence);
            answer.buckets_resp.push(PbPutKvRespForBucket {
                partition_id: entry.partition_id,
                bucket_id: entry.bucket_id,
                error_code: is_out_of_order.then_some(Code::OUT_OF_ORDER_SEQUENCE.0),
                log_end_offset: Some(self.end(place)),
                ..Default::default()
            });
        }
        if std::mem::take(&mut self.forget) {
            self.writers.clear();
        }
        if std::mem::take(&mut self.lose_answer) { Reply::HangUp } else { answer.into() }
    }

    fn end(&self, place: (Option<i64>, i32)) -> i64 {
        self.raw.get(&place).map_or(0, |(_, end)| *end)
    }

    fn list_offsets(&self, request: &ListOffsetsRequest) -> Reply {
        let entries = request.bucket_id.iter().map(|bucket_id| PbListOffsetsRespForBucket {
            bucket_id: *bucket_id,
            offset: Some(self.end((request.partition_id, *bucket_id))),
            ..Default::default()
        });
        ListOffsetsResponse { buckets_resp: entries.collect() }.into()
    }

    /// All that a bucket has, one batch at a time.
    fn fetch(&mut self, request: &FetchLogRequest) -> Reply {
        let table = &request.tables_req[0];
        let asked = table.buckets_req[0];
        self.looked += 1;
        if self.blind {
            return Reply::HangUp;
        }
        let place = (asked.partition_id, asked.bucket_id);
        let is_beyond = asked.fetch_offset > self.end(place);
        let raw = self.raw.get(&place).map(|(raw, _)| raw.clone()).unwrap_or_default();
        let mut rest = batches(raw.into()).map(Result::unwrap);
        let batch = rest.find(|batch| batch.header.next_offset() > asked.fetch_offset);
        let entry = PbFetchLogRespForBucket {
            partition_id: asked.partition_id,
            bucket_id: asked.bucket_id,
            error_code: is_beyond.then_some(Code::LOG_OFFSET_OUT_OF_RANGE.0),
            high_watermark: Some(self.end(place)),
            records: batch.map(|batch| batch.bytes),
            ..Default::default()
        };
        FetchLogResponse { tables_resp: vec![PbFetchLogRespForTable { table_id: 1, buckets_resp: vec![entry] }] }.into()
    }

    fn rows(&self) -> i32 {
        self.batches.values().flatten().map(|(_, rows)| rows).sum()
    }

    /// Ids of all rows, sorted.
    fn all_ids(&self) -> Vec<i64> {
        let mut ids: Vec<i64> = self.ids.values().flatten().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// The count that listings tell, where `own` is what they tell else.
    fn told(&self, own: i32) -> i32 {
        self.count.filter(|(_, left)| *left == 0).map_or(own, |(count, _)| count)
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
    let (writer, store) = opened(table, options).await;
    (writer.unwrap(), store)
}

async fn opened(table: TableDescriptor, options: WriterOptions) -> (Result<Writer>, Arc<Mutex<Store>>) {
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
                    bucket_metadata: if table.partition_keys.is_empty() { (0..8).map(bucket).collect() } else { vec![] },
                    ..Default::default()
                }));
                let gone = |id: &i64| usize::try_from(*id).unwrap() >= store.partitions.len();
                if request.partitions_id.iter().any(gone) {
                    return Reply::Error(Code::PARTITION_NOT_EXISTS.answer("gone"));
                }
                answer.partition_metadata.extend(request.partitions_id.into_iter().map(|id| PbPartitionMetadata {
                    table_id: 1,
                    partition_id: id,
                    bucket_metadata: (0..8).map(bucket).collect(),
                    ..Default::default()
                }));
                answer.into()
            }
            ApiKey::GetTableInfo => GetTableInfoResponse {
                table_id: 1,
                schema_id: 1,
                table_json: table_to_json(&TableDescriptor { bucket_count: Some(store.told(2)), ..table.clone() }).unwrap().into(),
                ..Default::default()
            }
            .into(),
            ApiKey::InitWriter => {
                store.writers_made += 1;
                InitWriterResponse { writer_id: 76 + store.writers_made }.into()
            }
            ApiKey::ListPartitionInfos => {
                // Partitions have more buckets the later they are made.
                let infos = store.partitions.iter().zip(0..).map(|(spec, id)| PbPartitionInfo {
                    partition_id: id,
                    partition_spec: spec.clone(),
                    bucket_count: Some(store.told(i32::try_from(id).unwrap() + 1)),
                    ..Default::default()
                });
                ListPartitionInfosResponse { partitions_info: infos.collect(), ..Default::default() }.into()
            }
            ApiKey::CreatePartition => {
                if let Some(code) = store.refuse_partition {
                    return Reply::Error(code.answer("refused"));
                }
                store.partitions.push(read::<CreatePartitionRequest>(body).partition_spec);
                CreatePartitionResponse {}.into()
            }
            ApiKey::ListOffsets => store.list_offsets(&read::<ListOffsetsRequest>(body)),
            ApiKey::FetchLog => store.fetch(&read::<FetchLogRequest>(body)),
            ApiKey::PutKv => store.put(read::<PutKvRequest>(body)),
            ApiKey::ProduceLog => store.produce(read::<ProduceLogRequest>(body)),
            other => panic!("{other}"),
        }
    })
    .await;
    port.store(server.port, Ordering::SeqCst);
    let backoff = BackoffOptions { first: Duration::from_millis(1), max: Duration::from_millis(2), attempts_max: 4 };
    let cluster_options = ClusterOptions { retry: backoff, bootstrap: backoff, ..Default::default() };
    let cluster = Cluster::connect(&[server.address()], cluster_options, &Runtime::simulated(1, 0, 1 << 20)).await.unwrap();
    (Writer::open(&cluster, &TablePath::new("demo", "t"), options).await, store)
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
    let expected = by_key(&writer.table, &writer.table.bucket_keys, &batch, 2, &|_| String::new()).unwrap()[50..]
        .iter()
        .filter(|bucket| **bucket == 1)
        .count();
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
    store.lock().unwrap().refuse = [Code::INVALID_TABLE].into();
    let batch = rows(&writer, 0..10, |_| "a");
    let error = writer.append(&batch).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Invalid, Some(15)));
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
    assert_eq!(error.chain(), "row `0`: NULL in partition column `day` of table `demo.t`");
    let fits = rows(&writer, 0..1, |_| "a");
    writer.append(&fits).await.unwrap();
    assert_eq!(store.lock().unwrap().rows(), 1);
}

#[tokio::test]
async fn a_duplicate_sequence_is_a_success() {
    let (mut writer, store) = writer(descriptor(false, false), WriterOptions::default()).await;
    store.lock().unwrap().refuse_stored = [Code::REQUEST_TIME_OUT, Code::DUPLICATE_SEQUENCE].into();
    let batch = rows(&writer, 0..10, |_| "a");
    writer.append(&batch).await.unwrap();
    writer.append(&batch).await.unwrap();
    assert_eq!(store.lock().unwrap().batches, [((None, 0), vec![(0, 10)]), ((None, 1), vec![(0, 10)])].into());
    assert_eq!(writer.figures().rows, 20);
}

#[tokio::test]
async fn a_writer_that_the_server_forgot_gets_a_new_id_and_each_row_is_there_once() {
    for told in [None, Some(Code::UNKNOWN_WRITER_ID), Some(Code::OUT_OF_ORDER_SEQUENCE)] {
        let (mut writer, store) = writer(descriptor(false, true), WriterOptions::default()).await;
        let batch = rows(&writer, 0..50, |_| "a");
        writer.append(&batch).await.unwrap();
        match told {
            None => store.lock().unwrap().writers.clear(),
            Some(code) => store.lock().unwrap().refuse = [code].into(),
        }
        let batch = rows(&writer, 50..100, |_| "a");
        writer.append(&batch).await.unwrap();
        let batch = rows(&writer, 100..150, |_| "a");
        writer.append(&batch).await.unwrap();
        let store = store.lock().unwrap();
        assert_eq!(store.all_ids(), Vec::from_iter(0..150));
        assert_eq!(store.writers_made, 2);
        assert!(store.ids.values().all(|ids| ids.is_sorted()));
        assert_eq!(writer.figures().rows, 150);
    }
}

#[tokio::test]
async fn a_lost_answer_doubles_nothing_even_if_the_server_forgot_the_writer() {
    // What is lost with an answer: only the answer, or the batch too.
    for (stored, appends_before) in [(true, 0), (true, 3), (false, 0), (false, 3)] {
        let (mut writer, store) = writer(descriptor(false, true), WriterOptions::default()).await;
        for append in 0..appends_before {
            let batch = rows(&writer, append * 10..append * 10 + 10, |_| "a");
            writer.append(&batch).await.unwrap();
        }
        {
            let mut store = store.lock().unwrap();
            (store.lose_answer, store.forget) = (true, true);
            if !stored {
                store.refuse = [Code::NETWORK_EXCEPTION, Code::NETWORK_EXCEPTION].into();
            }
        }
        let start = appends_before * 10;
        let batch = rows(&writer, start..start + 10, |_| "a");
        writer.append(&batch).await.map_err(|error| error.chain()).unwrap();
        let batch = rows(&writer, start + 10..start + 20, |_| "a");
        writer.append(&batch).await.map_err(|error| error.chain()).unwrap();
        let store = store.lock().unwrap();
        assert_eq!(store.all_ids(), Vec::from_iter(0..start + 20), "{stored} {appends_before}");
        assert!(store.ids.values().all(|ids| ids.is_sorted()));
        assert!(store.looked > 0);
        assert_eq!(writer.figures().rows, u64::try_from(start + 20).unwrap());
    }
}

#[tokio::test]
async fn an_answer_lost_at_the_end_is_looked_up_and_what_stays_open_is_counted() {
    // Stored: the append is whole. Not stored: its rows are missing for sure. No look possible: nobody knows.
    for (stored, blind, unsure) in [(true, false, 0), (false, false, 0), (true, true, 10)] {
        let (mut writer, store) = writer(descriptor(false, false), WriterOptions::default()).await;
        let batch = rows(&writer, 0..10, |_| "a");
        writer.append(&batch).await.unwrap();
        writer.append(&batch).await.unwrap();
        writer.cluster.runtime().shutdown.cancel();
        {
            let mut store = store.lock().unwrap();
            (store.lose_answer, store.blind) = (true, blind);
            if !stored {
                store.refuse = [Code::NETWORK_EXCEPTION].into();
            }
        }
        let appended = writer.append(&batch).await;
        let whole = stored && !blind;
        assert_eq!(appended.is_ok(), whole, "{appended:?}");
        assert_eq!((writer.first_missing(), writer.unsure_rows()), ((!whole).then_some(0), unsure), "{stored} {blind}");
        assert_eq!(writer.figures().rows, if whole { 30 } else { 20 });
        assert_eq!(store.lock().unwrap().rows(), if stored { 30 } else { 20 });
    }
}

#[tokio::test]
async fn a_server_that_lost_acknowledged_rows_is_told_of() {
    let (mut writer, store) = writer(descriptor(false, false), WriterOptions::default()).await;
    for _ in 0..2 {
        let batch = rows(&writer, 0..10, |_| "a");
        writer.append(&batch).await.unwrap();
    }
    {
        let mut store = store.lock().unwrap();
        (store.lose_answer, store.lose_log, store.forget) = (true, true, true);
    }
    let batch = rows(&writer, 20..30, |_| "a");
    let error = writer.append(&batch).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Data, "{}", error.chain());
    let said = "bucket 0 ends at offset `0`, although rows before `10` were acknowledged";
    assert!(error.chain().contains(said) && error.hint().is_some(), "{}", error.chain());
}

#[tokio::test]
async fn rows_that_are_turned_away_with_74_are_routed_again_in_their_order() {
    for partitioned in [false, true] {
        let options = WriterOptions { batch_bytes: 2000, in_flight_bytes: 3000, ..WriterOptions::default() };
        let (mut writer, store) = writer(descriptor(partitioned, true), options).await;
        let first = rows(&writer, 0..500, |_| "x");
        writer.append(&first).await.unwrap();
        let before = store.lock().unwrap().ids.clone();
        store.lock().unwrap().count = Some((5, 1));
        // Each key comes twice: its later row has to be behind the earlier one.
        let keys: Vec<i64> = (1000..1500).chain(1000..1500).collect();
        let days = StringArray::from_iter_values(keys.iter().map(|_| "x"));
        let batch = RecordBatch::try_new(writer.schema(), vec![Arc::new(Int64Array::from(keys.clone())), Arc::new(days)]).unwrap();
        writer.append(&batch).await.map_err(|error| error.chain()).unwrap();

        let store = store.lock().unwrap();
        let by_five = by_key(&writer.table, &writer.table.bucket_keys, &batch, 5, &|_| String::new()).unwrap();
        let partition = partitioned.then_some(0);
        for bucket in 0..5 {
            let mut expected = before.get(&(partition, bucket)).cloned().unwrap_or_default();
            expected.extend(keys.iter().zip(&by_five).filter(|(_, of)| **of == bucket).map(|(key, _)| *key));
            assert_eq!(store.ids[&(partition, bucket)], expected, "bucket {bucket}");
        }
        assert_eq!(store.rows(), 1500);
        assert!(store.batches.values().all(|log| log.iter().zip(0..).all(|((sequence, _), index)| *sequence == index)));
        assert_eq!(writer.figures().rows, 1500);
    }
}

#[tokio::test]
async fn keyless_rows_are_routed_again_too_and_slow_metadata_is_waited_for() {
    let (mut writer, store) = writer(descriptor(true, false), WriterOptions::default()).await;
    store.lock().unwrap().count = Some((3, 3));
    let batch = rows(&writer, 0..10, |_| "x");
    writer.append(&batch).await.unwrap();
    let store = store.lock().unwrap();
    assert_eq!(store.all_ids(), Vec::from_iter(0..10));
    assert_eq!(store.routing, [Some(1), Some(1), Some(1), Some(3)]);
}

#[tokio::test]
async fn a_routing_that_stays_wrong_is_stale() {
    let (mut writer, store) = writer(descriptor(true, true), WriterOptions::default()).await;
    store.lock().unwrap().count = Some((7, usize::MAX));
    let batch = rows(&writer, 0..10, |_| "x");
    let error = writer.append(&batch).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Stale, Some(74)), "{}", error.chain());
    assert_eq!((store.lock().unwrap().rows(), writer.first_missing()), (0, Some(0)));
}

#[tokio::test]
async fn a_count_that_changes_while_an_answer_is_lost_doubles_nothing() {
    let (mut writer, store) = writer(descriptor(false, true), WriterOptions::default()).await;
    store.lock().unwrap().refuse_stored = [Code::REQUEST_TIME_OUT, Code::NOT_ENOUGH_REPLICAS_AFTER_APPEND].into();
    let batch = rows(&writer, 0..100, |_| "x");
    let rescaler = async {
        // As soon as a batch is stored the count changes, before anything is sent again.
        loop {
            tokio::task::yield_now().await;
            let mut store = store.lock().unwrap();
            if store.rows() > 0 {
                store.count = Some((5, 0));
                break;
            }
        }
    };
    let (sent, ()) = tokio::join!(writer.append(&batch), rescaler);
    sent.map_err(|error| error.chain()).unwrap();
    assert_eq!(store.lock().unwrap().all_ids(), Vec::from_iter(0..100));
}

#[tokio::test]
async fn a_failed_append_says_what_is_acknowledged_and_from_where_rows_are_missing() {
    let (mut writer, store) = writer(descriptor(false, true), WriterOptions::default()).await;
    let batch = rows(&writer, 0..100, |_| "a");
    store.lock().unwrap().refuse = [Code::NONE, Code::RECORD_TOO_LARGE].into();
    let error = writer.change_named(&batch, &[], &|row| format!("line {}", row + 2)).await.unwrap_err();
    let buckets = by_key(&writer.table, &writer.table.bucket_keys, &batch, 2, &|_| String::new()).unwrap();
    let missing = buckets.iter().position(|bucket| *bucket == 1).unwrap();
    assert!(error.to_string().starts_with(&format!("line {}", missing + 2)), "{}", error.chain());
    assert_eq!(error.code(), Some(13));
    assert_eq!(writer.first_missing(), Some(u32::try_from(missing).unwrap()));
    let stored = store.lock().unwrap().rows();
    assert_eq!((writer.figures().rows, writer.figures().batches), (u64::try_from(stored).unwrap(), 1));
    assert_eq!(usize::try_from(stored).unwrap(), buckets.iter().filter(|bucket| **bucket == 0).count());
}

#[tokio::test]
async fn a_partition_that_is_dropped_while_rows_are_written_is_named_with_the_row() {
    let (mut writer, store) = writer(descriptor(true, true), WriterOptions::default()).await;
    let batch = rows(&writer, 0..10, |_| "x");
    writer.append(&batch).await.unwrap();
    store.lock().unwrap().drop_partition = true;
    let error = writer.change_named(&batch, &[], &|row| format!("line {row}")).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Invalid, Some(36)), "{}", error.chain());
    let text = "line 0: partition `x` of table `demo.t` was dropped while rows were written to it";
    assert!(error.to_string().starts_with(text), "{}", error.chain());
}

#[tokio::test]
async fn a_partition_dropped_between_appends_is_made_again_also_when_a_new_one_brings_it_up() {
    let (mut writer, store) = writer(descriptor(true, true), WriterOptions::default()).await;
    let batch = rows(&writer, 0..10, |_| "x");
    writer.append(&batch).await.unwrap();
    store.lock().unwrap().partitions.clear();
    let batch = rows(&writer, 10..20, |id| if id < 15 { "x" } else { "y" });
    writer.append(&batch).await.unwrap();
    assert_eq!(store.lock().unwrap().all_ids(), (0..20).collect::<Vec<i64>>());
    assert_eq!(writer.figures().partitions_made, 3);
}

#[tokio::test]
async fn partitions_that_can_not_be_made_are_refused_with_the_row_that_names_them() {
    let (mut writer, store) = writer(descriptor(true, true), WriterOptions::default()).await;
    store.lock().unwrap().refuse_partition = Some(Code::PARTITION_SPEC_INVALID);
    let batch = rows(&writer, 0..10, |id| if id < 7 { "x" } else { "y" });
    let error = writer.append(&batch).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Invalid, Some(43)));
    assert!(["row `0`", "row `7`"].contains(&error.to_string().as_str()), "{}", error.chain());
    store.lock().unwrap().refuse_partition = None;
    writer.append(&batch).await.unwrap();
    assert_eq!(writer.figures(), WriterFigures { partitions_made: 2, ..writer.figures() });

    let (mut writer, _) =
        self::writer(descriptor(true, true), WriterOptions { create_partitions: false, ..Default::default() }).await;
    let error = writer.append(&batch).await.unwrap_err();
    assert_eq!(error.code(), Some(36));
    assert!(error.chain().starts_with("row `0`: table `demo.t` has no partition `x`"), "{}", error.chain());
}

/// With primary key `id`, and `day` NOT NULL.
fn keyed_by_id() -> TableDescriptor {
    let mut table = descriptor(false, true);
    table.schema.primary_key = vec!["id".into()];
    table.schema.fields.iter_mut().for_each(|field| field.data_type.nullable = false);
    table
}

fn changes(writer: &Writer, changes: &[(i64, Option<&str>)]) -> (RecordBatch, Vec<bool>) {
    let ids = Int64Array::from_iter_values(changes.iter().map(|(id, _)| *id));
    let days: StringArray = changes.iter().map(|(_, day)| *day).collect();
    let rows = RecordBatch::try_new(writer.schema(), vec![Arc::new(ids), Arc::new(days)]).unwrap();
    (rows, changes.iter().map(|(_, day)| day.is_none()).collect())
}

#[tokio::test]
async fn changes_of_a_key_keep_their_order_and_a_lost_answer_repeats_none() {
    for forget in [false, true] {
        let options = WriterOptions { batch_bytes: 64, ..WriterOptions::default() };
        let (mut writer, store) = writer(keyed_by_id(), options).await;
        let wanted: Vec<(i64, Option<&str>)> = (0..60)
            .map(|step| {
                (step % 7, if step % 3 == 2 { None } else { Some(["a", "b", "c", "d"][usize::try_from(step % 4).unwrap()]) })
            })
            .collect();
        for (at, part) in wanted.chunks(20).enumerate() {
            let (rows, deletes) = changes(&writer, part);
            {
                let mut store = store.lock().unwrap();
                (store.lose_answer, store.forget) = (at == 1, forget && at == 1);
            }
            writer.change(&rows, &deletes).await.unwrap();
        }
        let figures = writer.figures();
        assert_eq!((figures.rows, figures.deletes), (60, 20));
        let store = store.lock().unwrap();
        assert!(store.looked > 0 && store.batches.values().flatten().count() > 6, "{:?}", store.batches);
        // Each change once, in the order of its key, with the bytes of F5.8 and F6.7.
        for key in 0..7_i64 {
            let found: Vec<Option<Vec<u8>>> = store
                .changes
                .iter()
                .filter(|(_, bytes, _)| *bytes == [u8::try_from(key).unwrap()])
                .map(|(_, _, row)| row.clone())
                .collect();
            let row = |day: &str| [&[0, u8::try_from(key).unwrap(), 1][..], day.as_bytes()].concat();
            let expected: Vec<Option<Vec<u8>>> = wanted.iter().filter(|(id, _)| *id == key).map(|(_, day)| day.map(row)).collect();
            assert_eq!(found, expected, "{key}");
        }
        let buckets: BTreeSet<(i32, &Vec<u8>)> = store.changes.iter().map(|(bucket, key, _)| (*bucket, key)).collect();
        assert_eq!(buckets.len(), 7);
    }
}

#[tokio::test]
async fn rows_that_a_keyed_table_can_not_take_are_refused_before_anything_is_sent() {
    let (mut writer, store) = writer(keyed_by_id(), WriterOptions::default()).await;
    let (rows, deletes) = changes(&writer, &[(1, Some("a")), (2, None)]);
    let error = writer.append(&rows).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.chain().contains("row `1`: NULL in column `day`"), "{}", error.chain());
    writer.change(&rows, &deletes).await.unwrap();
    let with_nulls = RecordBatch::try_new(
        Arc::new(::arrow_schema::Schema::new(
            writer.schema().fields().iter().map(|field| field.as_ref().clone().with_nullable(true)).collect::<Vec<_>>(),
        )),
        vec![Arc::new(Int64Array::from(vec![None])), Arc::new(StringArray::from(vec!["a"]))],
    );
    assert_eq!(writer.append(&with_nulls.unwrap()).await.unwrap_err().kind(), Kind::Invalid);
    assert_eq!(store.lock().unwrap().changes.len(), 2);

    let (mut log, store) = self::writer(descriptor(false, true), WriterOptions::default()).await;
    let batch = self::rows(&log, 0..3, |_| "a");
    let error = log.change(&batch, &[false, true, false]).await.unwrap_err();
    assert!(error.chain().contains("row `1`: a delete, but table `demo.t` is a log table"), "{}", error.chain());
    assert_eq!(store.lock().unwrap().rows(), 0);
}

#[tokio::test]
async fn tables_that_do_more_than_keep_the_last_row_are_refused_by_name() {
    let with = |key: &str, value: &str| {
        let mut table = keyed_by_id();
        table.properties.insert(key.into(), value.into());
        table
    };
    let refused = opened(with("table.merge-engine", "first_row"), WriterOptions::default()).await.0.unwrap_err();
    assert!(refused.kind() == Kind::Unsupported && refused.chain().contains("`first_row`"), "{}", refused.chain());
    let (mut writer, _) = writer(with("table.delete.behavior", "ignore"), WriterOptions::default()).await;
    let (rows, deletes) = changes(&writer, &[(1, None)]);
    let error = writer.change(&rows, &deletes).await.unwrap_err();
    assert!(error.chain().contains("`table.delete.behavior` to ignore deletes"), "{}", error.chain());
}
