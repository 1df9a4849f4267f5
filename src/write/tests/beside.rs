//! Files that are made beside the writer.

use std::sync::mpsc;

use super::*;
use crate::model::ChangeKind;

/// Keeps all encoder threads busy until it is dropped.
type Occupied = Vec<mpsc::Sender<()>>;

async fn occupy(encoders: &Encoders) -> Occupied {
    let mut senders = Vec::new();
    for _ in 0..encoders.count() {
        let (sender, receiver) = mpsc::channel::<()>();
        let (begun, begins) = tokio::sync::oneshot::channel();
        let encoders = encoders.clone();
        tokio::spawn(async move {
            let wait = move || {
                begun.send(()).unwrap();
                receiver.recv().unwrap_err();
            };
            encoders.run(wait).await.unwrap();
        });
        begins.await.unwrap();
        senders.push(sender);
    }
    senders
}

async fn turns() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

fn contexts(
    store: &Store,
    schema: &Arc<TableSchema>,
    encoders: Encoders,
    memory: usize,
    row_group_bytes: usize,
) -> Arc<WriteContext> {
    let mut runtime = Runtime::simulated(1, 1_000, memory);
    runtime.encoders = encoders;
    let options = WriteOptions { row_group_bytes, ..WriteOptions::default() };
    WriteContext::new(store.clone(), "demo.db/t", Arc::clone(schema), RoundId(uuid::Uuid::from_u128(7)), runtime, options).unwrap()
}

#[tokio::test]
async fn rows_go_on_coming_while_those_before_them_are_encoded_one_row_group_ahead() {
    let (schema, store, encoders) = (orders(&[]), Store::in_memory(), Encoders::threads(2).unwrap());
    let context = contexts(&store, &schema, encoders.clone(), 64 << 20, 64 << 10);
    let occupied = occupy(&encoders).await;
    let (told, mut written) = tokio::sync::mpsc::unbounded_channel();
    let writing = tokio::spawn(async move {
        let mut writer = BucketWriter::new(Arc::clone(&context), target(), 0).unwrap();
        for part in 0..3 {
            // A little more than a row group.
            let (rows, permit) = (order_rows(&schema, part * 800, (part + 1) * 800), context.runtime.budget.acquire(1).await);
            writer.write(rows, None, part * 800, permit).await.unwrap();
            told.send(writer.buffered_bytes()).unwrap();
        }
        writer.finish().await.unwrap()
    });
    assert!(written.recv().await.unwrap() > 64 << 10, "what is at work counts");
    turns().await;
    assert!(written.try_recv().is_err(), "the next row group waits for the one before it");
    drop(occupied);
    let files = writing.await.unwrap();
    assert_eq!(files.data.iter().map(|entry| entry.file.row_count).sum::<i64>(), 2_400);
    assert_eq!((files.data[0].file.min_sequence_number, files.data[0].file.max_sequence_number), (0, 2_399));
}

#[tokio::test]
async fn an_abort_gives_up_what_is_at_work_and_leaves_nothing_behind() {
    // Row groups are files here.
    let (schema, store) = (orders(&[("target-file-row-num", "1000")]), Store::in_memory());
    let encoders = Encoders::threads(2).unwrap();
    let context = contexts(&store, &schema, encoders.clone(), 64 << 20, 1 << 20);
    let mut writer = BucketWriter::new(Arc::clone(&context), target(), 0).unwrap();
    for part in 0..3 {
        let (rows, permit) = (order_rows(&schema, part * 1_000, (part + 1) * 1_000), context.runtime.budget.acquire(1).await);
        writer.write(rows, None, part * 1_000, permit).await.unwrap();
    }
    writer.flush().await.unwrap();
    assert_eq!(store.list("").await.unwrap().len(), 3);
    let occupied = occupy(&encoders).await;
    writer.write(order_rows(&schema, 0, 1_000), None, 0, context.runtime.budget.acquire(1).await).await.unwrap();
    assert!(writer.buffered_bytes() > 0 && context.runtime.budget.used() > 0, "it is at work");
    turns().await;
    writer.abort().await.unwrap();
    assert_eq!(store.list("").await.unwrap(), []);
    drop(occupied);
    while context.runtime.budget.used() > 0 {
        tokio::task::yield_now().await;
    }
    turns().await;
    assert_eq!(store.list("").await.unwrap(), []);
}

#[tokio::test]
async fn sorted_files_made_side_by_side_are_those_made_one_after_the_other_in_the_same_order() {
    let mut schema = (*orders(&[("changelog-producer", "input"), ("bucket", "4")])).clone();
    let key = schema.fields[0].name.clone();
    schema.fields[0].data_type.nullable = false;
    schema.primary_keys = vec![key];
    let schema = Arc::new(schema);
    let mut made = Vec::new();
    for encoders in [Encoders::inline(), Encoders::threads(4).unwrap()] {
        let store = Store::in_memory();
        let context = contexts(&store, &schema, encoders, 1 << 20, 64 << 10);
        let mut writer = BucketWriter::new(Arc::clone(&context), target(), 100).unwrap();
        for part in 0..24 {
            let rows = order_rows(&schema, part * 1_500, (part + 1) * 1_500);
            let kinds: Vec<ChangeKind> =
                (0..1_500).map(|row| if row % 7 == 0 { ChangeKind::Delete } else { ChangeKind::Insert }).collect();
            writer.write(rows, Some(&kinds), part * 1_500, context.runtime.budget.acquire(1).await).await.unwrap();
        }
        let files = writer.finish().await.unwrap();
        let about = |entry: &ManifestEntry| {
            let file = &entry.file;
            (
                file.min_sequence_number,
                file.max_sequence_number,
                file.row_count,
                file.delete_row_count,
                file.min_key.clone(),
                file.file_size,
            )
        };
        made.push([&files.data, &files.changelog].map(|entries| entries.iter().map(about).collect::<Vec<_>>()));
    }
    for entries in &made[0] {
        assert!(entries.len() > 3, "{}", entries.len());
        assert!(entries.windows(2).all(|pair| pair[0].1 < pair[1].0), "in the order of their sequence numbers");
        assert_eq!((entries[0].0, entries[entries.len() - 1].1), (100, 100 + 24 * 1_500 - 1));
    }
    assert_eq!(made[0], made[1]);
}
