//! Client and source over the wire, against the embedded node.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{Int64Array, RecordBatch, StringArray};
use lakeward::client::{Admin, Writer, WriterOptions};
use lakeward::error::Kind;
use lakeward::fluss::cluster::{Cluster, ClusterOptions};
use lakeward::fluss::table_json::TableDescriptor;
use lakeward::model::{
    BucketId, BucketLayout, DataType, Field, LayoutOrigin, Schema, SchemaId, StartOffset, TableBucket, TablePath, TypeKind,
};
use lakeward::node::{Node, NodeOptions};
use lakeward::runtime::Runtime;
use lakeward::source::cluster::ClusterSource;
use lakeward::source::{FetchBucket, FetchRequest, TableScan};

fn orders() -> TableDescriptor {
    let field =
        |id, name: &str, kind, nullable| Field { id, name: name.into(), data_type: DataType { kind, nullable }, comment: None };
    TableDescriptor {
        schema: Schema {
            id: SchemaId(1),
            fields: vec![field(0, "id", TypeKind::BigInt, true), field(1, "day", TypeKind::String, false)],
            primary_key: vec![],
            highest_field_id: 1,
        },
        comment: None,
        partition_keys: vec!["day".into()],
        bucket_keys: vec!["id".into()],
        bucket_count: Some(2),
        properties: BTreeMap::new(),
        custom_properties: BTreeMap::new(),
    }
}

fn rows(writer: &Writer, ids: std::ops::Range<i64>, day: &str) -> RecordBatch {
    let days = StringArray::from_iter_values(ids.clone().map(|_| day));
    RecordBatch::try_new(writer.schema(), vec![Arc::new(Int64Array::from_iter_values(ids)), Arc::new(days)]).unwrap()
}

/// Ids in each bucket of each partition, read to its end, several buckets per request.
async fn read(source: &ClusterSource, path: &TablePath) -> BTreeMap<String, Vec<Vec<i64>>> {
    let table = Arc::new(source.table_info(path).await.unwrap());
    let mut found = BTreeMap::new();
    for partition in source.partitions(&table).await.unwrap() {
        let layout = BucketLayout::of(&table, Some(&partition)).unwrap();
        let ends = source.end_offsets(&table, Some(&partition), layout).await.unwrap().unwrap();
        let buckets =
            (0..layout.count).map(|id| TableBucket { table: table.id, partition: Some(partition.id), bucket: BucketId(id) });
        let mut reached: BTreeMap<TableBucket, (i64, i64, Vec<i64>)> =
            buckets.zip(ends).map(|(bucket, end)| (bucket, (0, end, Vec::new()))).collect();
        loop {
            let wanted: Vec<FetchBucket> = reached
                .iter()
                .filter(|(_, (at, end, _))| at < end)
                .map(|(bucket, (at, _, _))| FetchBucket { bucket: *bucket, offset: StartOffset::At(*at), bytes_max: 2000, layout })
                .collect();
            if wanted.is_empty() {
                break;
            }
            for answer in source.fetch(FetchRequest { table: Arc::clone(&table), buckets: wanted, wait_ms: 500 }).await.unwrap() {
                let (at, end, ids) = reached.get_mut(&answer.bucket).unwrap();
                let decoded = answer.log.decode(*at, *end).unwrap();
                for batch in &decoded.batches {
                    let column = batch.rows.column(0).as_any().downcast_ref::<Int64Array>().unwrap();
                    ids.extend(column.values());
                }
                *at = decoded.next_offset;
            }
        }
        found.insert(partition.name(), reached.into_values().map(|(_, _, ids)| ids).collect());
    }
    found
}

#[tokio::test]
async fn rows_written_around_a_rescale_are_read_back_each_once_from_the_bucket_count_of_their_partition() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = Runtime::system(2, 64 << 20).unwrap();
    let node = Node::start(NodeOptions::new(dir.path()), runtime.clone()).await.unwrap();
    let cluster = Cluster::connect(&[node.address().to_string()], ClusterOptions::default(), &runtime).await.unwrap();
    let (admin, path) = (Admin::new(cluster.clone()), TablePath::new("demo", "orders"));
    admin.create_database("demo", false).await.unwrap();
    admin.create_table(&path, &orders(), false).await.unwrap();
    assert_eq!(admin.create_table(&path, &orders(), false).await.unwrap_err().code(), Some(8));
    assert_eq!(admin.tables("demo").await.unwrap(), ["orders"]);

    let options = WriterOptions { batch_bytes: 4000, ..WriterOptions::default() };
    let mut writer = Writer::open(&cluster, &path, options).await.unwrap();
    let batch = rows(&writer, 0..1000, "a");
    writer.append(&batch).await.unwrap();
    admin.alter_bucket_count(&path, 4).await.unwrap();
    // The writer was opened before the change and goes on with each partition's own count.
    for (ids, day) in [(1000..2000, "a"), (2000..4000, "b")] {
        let batch = rows(&writer, ids, day);
        writer.append(&batch).await.unwrap();
    }

    let source = ClusterSource::new(cluster);
    let found = read(&source, &path).await;
    for (day, count, ids) in [("a", 2, 0..2000), ("b", 4, 2000..4000)] {
        let buckets = &found[day];
        assert_eq!(buckets.len(), count);
        assert!(buckets.iter().all(|ids| !ids.is_empty()));
        let mut all: Vec<i64> = buckets.concat();
        all.sort_unstable();
        assert_eq!(all, ids.collect::<Vec<_>>());
    }

    let table = source.table_info(&path).await.unwrap();
    assert_eq!((table.bucket_count, table.bucket_count_epoch.0), (4, 1));
    let old = source.partitions(&table).await.unwrap().into_iter().find(|partition| partition.name() == "a").unwrap();
    let wrong = BucketLayout { count: 4, origin: LayoutOrigin::Own };
    let error = source.end_offsets(&table, Some(&old), wrong).await.unwrap_err();
    assert!(matches!((error.kind(), error.code()), (Kind::Stale, Some(74)) | (Kind::Unavailable, Some(21))), "{}", error.chain());
    admin.drop_partition(&path, &old.spec, false).await.unwrap();
    let layout = BucketLayout::of(&table, Some(&old)).unwrap();
    assert_eq!(source.end_offsets(&table, Some(&old), layout).await.unwrap(), None);
    admin.drop_table(&path, false).await.unwrap();
    assert_eq!(source.table_info(&path).await.unwrap_err().code(), Some(7));
    node.stop().await;
}
