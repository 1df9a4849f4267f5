use std::collections::BTreeMap;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, RecordBatch};

use super::*;
use crate::error::Kind;
use crate::fluss::record::arrow_schema;
use crate::fluss::table_json::TableDescriptor;
use crate::model::{BucketId, BucketLayout, DataType, Field, LayoutOrigin, Partition, Schema, SchemaId, TablePath, TypeKind};
use crate::source::memory::{Faults, MemoryCluster};
use crate::source::{FetchRequest, FetchedBucket};

const LAYOUT: BucketLayout = BucketLayout { count: 3, origin: LayoutOrigin::Own };

struct World {
    cluster: MemoryCluster,
    table: Arc<TableInfo>,
    runtime: Runtime,
}

fn world(memory: usize) -> World {
    let runtime = Runtime::simulated(7, 0, memory);
    let cluster = MemoryCluster::new(runtime.clone());
    let field = Field { id: 0, name: "id".into(), data_type: DataType::nullable(TypeKind::BigInt), comment: None };
    let descriptor = TableDescriptor {
        schema: Schema { id: SchemaId(1), fields: vec![field], primary_key: vec![], highest_field_id: 0 },
        comment: None,
        partition_keys: vec![],
        bucket_keys: vec!["id".into()],
        bucket_count: Some(LAYOUT.count),
        properties: BTreeMap::new(),
        custom_properties: BTreeMap::new(),
    };
    let table = Arc::new(cluster.create_table(&TablePath::new("demo", "t"), &descriptor).unwrap());
    World { cluster, table, runtime }
}

impl World {
    fn bucket(&self, bucket: i32) -> TableBucket {
        TableBucket { table: self.table.id, partition: None, bucket: BucketId(bucket) }
    }

    /// Appends the ids `first..first + count` in one batch.
    fn append(&self, bucket: i32, first: i64, count: i64) {
        let ids = Arc::new((first..first + count).collect::<Int64Array>());
        let rows = RecordBatch::try_new(arrow_schema(&self.table.schema).unwrap(), vec![ids]).unwrap();
        self.cluster.append(self.bucket(bucket), SchemaId(1), &rows, None).unwrap();
    }

    fn split(&self, bucket: i32, start: StartOffset, stop_offset: i64) -> Split {
        Split { bucket: self.bucket(bucket), partition: None, layout: LAYOUT, start, stop_offset }
    }

    async fn reader(&self, splits: &[Split], options: Options) -> Reader {
        let scan = Arc::new(self.cluster.service(Faults::default()));
        Reader::new(scan, Arc::clone(&self.table), splits, options, self.runtime.clone()).await.unwrap()
    }
}

/// All ids of a stream, and its last end offset. Offsets and ids are the same in these tests.
async fn ids(mut stream: SplitStream) -> Result<(Vec<i64>, i64)> {
    let (mut ids, mut end) = (vec![], -1);
    while let Some(chunk) = stream.next().await? {
        for batch in &chunk.batches {
            let column = batch.rows.column(0).as_primitive::<Int64Type>();
            assert_eq!(column.value(0), batch.base_offset);
            ids.extend(column.values());
        }
        assert!(chunk.end_offset > end, "every chunk goes on");
        end = chunk.end_offset;
    }
    Ok((ids, end))
}

fn small() -> Options {
    // One batch per fetch: a server gives at least one, whatever it is asked for.
    Options { bucket_bytes: 1, ..Options::default() }
}

#[tokio::test(start_paused = true)]
async fn all_records_come_once_in_order_and_end_at_the_stop() {
    for options in [Options::default(), small()] {
        let world = world(1 << 20);
        for bucket in 0..3 {
            for batch in 0..20 {
                world.append(bucket, batch * 10, 10);
            }
        }
        let splits = [
            world.split(0, StartOffset::Earliest, 200),
            world.split(1, StartOffset::At(33), 187),
            world.split(2, StartOffset::At(199), 200),
        ];
        let reader = world.reader(&splits, options).await;
        let streams = splits.iter().map(|split| ids(reader.open(split).unwrap()));
        let found = futures::future::try_join_all(streams).await.unwrap();
        assert_eq!(found[0], ((0..200).collect(), 200));
        assert_eq!(found[1], ((33..187).collect(), 187));
        assert_eq!(found[2], (vec![199], 200));
        assert_eq!(world.runtime.budget.used(), 0, "everything was given back");
    }
}

#[tokio::test(start_paused = true)]
async fn empty_batches_advance_without_rows() {
    let world = world(1 << 20);
    world.append(0, 0, 3);
    world.cluster.append_empty(world.bucket(0)).unwrap();
    world.cluster.append_empty(world.bucket(0)).unwrap();
    world.cluster.append_empty(world.bucket(1)).unwrap();
    let splits = [world.split(0, StartOffset::At(1), 5), world.split(1, StartOffset::Earliest, 1)];
    let reader = world.reader(&splits, small()).await;
    assert_eq!(ids(reader.open(&splits[0]).unwrap()).await.unwrap(), (vec![1, 2], 5));
    assert_eq!(ids(reader.open(&splits[1]).unwrap()).await.unwrap(), (vec![], 1));
}

#[tokio::test(start_paused = true)]
async fn a_budget_smaller_than_one_batch_still_reads_everything() {
    let world = world(1024);
    for bucket in 0..3 {
        for batch in 0..5 {
            world.append(bucket, batch * 100, 100);
        }
    }
    let splits: Vec<Split> = (0..3).map(|bucket| world.split(bucket, StartOffset::Earliest, 500)).collect();
    let reader = world.reader(&splits, Options::default()).await;
    let streams = splits.iter().map(|split| ids(reader.open(split).unwrap()));
    for found in futures::future::try_join_all(streams).await.unwrap() {
        assert_eq!(found, ((0..500).collect(), 500));
    }
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_gives_nothing_is_named_with_its_offsets() {
    let world = world(1 << 20);
    world.append(0, 0, 10);
    let split = world.split(0, StartOffset::At(10), 20);
    let reader = world.reader(std::slice::from_ref(&split), Options::default()).await;
    let error = ids(reader.open(&split).unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    for word in ["bucket 0", "`10`", "`20`"] {
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_log_is_a_data_fault() {
    let world = world(1 << 20);
    world.append(0, 0, 10);
    world.append(0, 10, 10);
    world.cluster.set_log_start(world.bucket(0), 10).unwrap();
    let split = world.split(0, StartOffset::At(5), 20);
    let reader = world.reader(std::slice::from_ref(&split), Options::default()).await;
    assert_eq!(ids(reader.open(&split).unwrap()).await.unwrap_err().kind(), Kind::Data);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_dropped_gives_its_memory_back() {
    let world = world(1 << 20);
    for batch in 0..50 {
        world.append(0, batch * 10, 10);
    }
    let split = world.split(0, StartOffset::Earliest, 500);
    let reader = world.reader(std::slice::from_ref(&split), small()).await;
    let mut stream = reader.open(&split).unwrap();
    drop(stream.next().await.unwrap());
    drop((stream, reader));
    while world.runtime.budget.used() > 0 {
        tokio::task::yield_now().await;
    }
}

/// Answers every fetch with a refusal and keeps what was asked.
#[derive(Default)]
struct Asked(std::sync::Mutex<Vec<i64>>);

#[async_trait::async_trait]
impl TableScan for Asked {
    async fn table_info(&self, _: &TablePath) -> Result<TableInfo> {
        unreachable!()
    }

    async fn schema(&self, _: &TablePath, _: SchemaId) -> Result<Arc<Schema>> {
        unreachable!()
    }

    async fn partitions(&self, _: &TableInfo) -> Result<Vec<Partition>> {
        unreachable!()
    }

    async fn end_offsets(&self, _: &TableInfo, _: Option<&Partition>, _: BucketLayout) -> Result<Option<Vec<i64>>> {
        unreachable!()
    }

    async fn start_offsets(&self, _: &TableInfo, _: Option<&Partition>, _: BucketLayout) -> Result<Option<Vec<i64>>> {
        unreachable!()
    }

    async fn lanes(&self, _: &TableInfo, buckets: &[TableBucket]) -> Result<Vec<Vec<TableBucket>>> {
        Ok(vec![buckets.to_vec()])
    }

    async fn fetch(&self, request: FetchRequest) -> Result<Vec<FetchedBucket>> {
        self.0.lock().unwrap().push(request.buckets.iter().map(|bucket| i64::from(bucket.bytes_max)).sum());
        Err(Error::unavailable("no"))
    }

    fn forget(&self, _: &TablePath) {}
}

#[tokio::test(start_paused = true)]
async fn a_request_never_asks_for_more_than_a_frame_holds() {
    let world = world(4 << 30);
    let asked = Arc::new(Asked::default());
    let splits: Vec<Split> = (0..100).map(|bucket| world.split(bucket, StartOffset::Earliest, 500)).collect();
    let reader =
        Reader::new(Arc::<Asked>::clone(&asked), Arc::clone(&world.table), &splits, Options::default(), world.runtime.clone());
    let reader = reader.await.unwrap();
    for failed in futures::future::join_all(splits.iter().map(|split| ids(reader.open(split).unwrap()))).await {
        assert_eq!(failed.unwrap_err().kind(), Kind::Unavailable);
    }
    let asked = asked.0.lock().unwrap();
    assert_eq!(asked.iter().sum::<i64>(), 100 * (4 << 20));
    assert!(asked.iter().all(|bytes| *bytes <= 64 << 20), "{asked:?}");
}
