//! Primary-key tables of the twin.

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;

use super::*;
use crate::source::{StateRequest, is_state_lost};

fn keyed(image: Option<&str>) -> TableDescriptor {
    let mut table = descriptor(false);
    table.schema.primary_key = vec!["id".into()];
    table.bucket_keys = vec![];
    if let Some(image) = image {
        table.properties.insert("table.changelog.image".into(), image.into());
    }
    table
}

/// Rows of these ids and values (in the column `day`), by the table's first schema.
fn pairs(pairs: &[(i64, i64)]) -> RecordBatch {
    let column = |of: fn(&(i64, i64)) -> i64| Arc::new(pairs.iter().map(of).collect::<Int64Array>()) as _;
    let schema = arrow_schema(&descriptor(false).schema).unwrap();
    RecordBatch::try_new(schema, vec![column(|pair| pair.0), column(|pair| pair.1)]).unwrap()
}

fn read_pairs(rows: &RecordBatch) -> Vec<(i64, i64)> {
    let column = |at: usize| rows.column(at).as_primitive::<Int64Type>().values().to_vec();
    column(0).into_iter().zip(column(1)).collect()
}

type Change = (i64, ChangeKind, (i64, i64));

async fn changelog(service: &MemoryService, info: &TableInfo, place: TableBucket) -> Vec<Change> {
    let wanted = FetchBucket { bucket: place, offset: StartOffset::Earliest, bytes_max: i32::MAX, layout: own(2) };
    let request = FetchRequest { table: Arc::new(info.clone()), buckets: vec![wanted], wait_ms: 0 };
    let log = service.fetch(request).await.unwrap().remove(0).log;
    let batches = log.decode(-1, i64::MAX).unwrap().batches;
    let changes = batches.iter().flat_map(|batch| {
        let kinds = batch.changes.clone().unwrap();
        (batch.base_offset..).zip(kinds).zip(read_pairs(&batch.rows)).map(|((offset, kind), pair)| (offset, kind, pair))
    });
    changes.collect()
}

#[tokio::test(start_paused = true)]
async fn changes_are_logged_as_fluss_does_in_both_images_and_what_changes_nothing_takes_an_offset() {
    use ChangeKind::{Delete as D, Insert as I, UpdateAfter as After, UpdateBefore as Before};
    let (one, uno, two, eins) = ((1, 10), (1, 11), (2, 20), (1, 12));
    let full = vec![(0, I, one), (1, I, two), (2, Before, one), (3, After, uno), (4, D, uno), (6, I, eins)];
    let wal = vec![(0, After, one), (1, After, two), (2, After, uno), (3, D, uno), (5, After, eins)];
    for (image, expected, end) in [(None, full, 7), (Some("WAL"), wal, 6)] {
        let cluster = cluster();
        let info = cluster.create_table(&path(), &keyed(image)).unwrap();
        assert_eq!(info.bucket_keys, ["id"]);
        let place = bucket(&info, None, 0);
        let put = |rows: &[(i64, i64)], deletes: Option<&[bool]>| cluster.put(place, SchemaId(1), &pairs(rows), deletes).unwrap();
        put(&[one, two, uno], None);
        put(&[(1, 0)], Some(&[true]));
        // Nobody has the key: an empty batch.
        let before = put(&[(1, 0), (3, 0)], Some(&[true, true]));
        assert_eq!(put(&[eins], None), before + 1);
        let service = cluster.service(Faults::default());
        assert_eq!(changelog(&service, &info, place).await, expected);
        assert_eq!(service.end_offsets(&info, None, own(2)).await.unwrap(), Some(vec![end, 0]));
        assert_eq!(read_pairs(&cluster.state_of(place).unwrap()), [eins, two]);
    }
    let cluster = cluster();
    let log = cluster.create_table(&path(), &descriptor(false)).unwrap();
    let refused = cluster.put(bucket(&log, None, 0), SchemaId(1), &pairs(&[one]), None).unwrap_err();
    assert_eq!(refused.code(), Some(20));
}

/// A table whose bucket 0 has ten rows by two schemas.
async fn filled(cluster: &MemoryCluster) -> (TableInfo, TableBucket) {
    let info = cluster.create_table(&path(), &keyed(None)).unwrap();
    let place = bucket(&info, None, 0);
    let rows: Vec<(i64, i64)> = (0..10).map(|id| (id, id * 10)).collect();
    cluster.put(place, SchemaId(1), &pairs(&rows), None).unwrap();
    let field = Field { id: 2, name: "later".into(), data_type: DataType::nullable(TypeKind::BigInt), comment: None };
    cluster.add_column(&path(), &field).unwrap();
    let info = cluster.service(Faults::default()).table_info(&path()).await.unwrap();
    let rows = RecordBatch::try_new(
        arrow_schema(&info.schema).unwrap(),
        [4_i64, 44, 444].into_iter().map(|value| Arc::new(Int64Array::from(vec![value])) as _).collect(),
    );
    assert_eq!(cluster.put(place, SchemaId(2), &rows.unwrap(), None).unwrap(), 12);
    (info, place)
}

fn wanted(info: &TableInfo, place: TableBucket, bytes_max: i32) -> StateRequest {
    StateRequest { table: Arc::new(info.clone()), bucket: place, layout: own(2), bytes_max }
}

#[tokio::test(start_paused = true)]
async fn a_state_is_the_image_of_the_moment_it_was_opened_whatever_is_written_meanwhile() {
    let cluster = cluster();
    let (info, place) = filled(&cluster).await;
    let service = cluster.service(Faults::default());
    assert!(service.serves_states().await.unwrap());
    for bytes_max in [1, 40, 1 << 20] {
        let mut scan = service.open_state(wanted(&info, place, bytes_max)).await.unwrap();
        let offset = scan.log_offset();
        let before = read_pairs(&cluster.state_of(place).unwrap());
        let deletes: Vec<bool> = (0..10).map(|id| id == 9).collect();
        let rows: Vec<(i64, i64)> = (0..10).map(|id| (id, id + offset)).collect();
        assert!(cluster.put(place, SchemaId(1), &pairs(&rows), Some(&deletes)).unwrap() > offset);
        let (mut found, mut pages) = (vec![], 0);
        while let Some(slice) = scan.next().await.unwrap() {
            pages += 1;
            for batch in slice.decode().unwrap() {
                assert_eq!(batch.rows.num_columns(), if batch.schema_id == SchemaId(1) { 2 } else { 3 });
                found.extend(read_pairs(&batch.rows));
            }
        }
        found.sort_unstable();
        assert_eq!(found, before);
        assert_ne!(read_pairs(&cluster.state_of(place).unwrap()), before);
        assert_eq!(pages > 1, bytes_max < 100, "{pages}");
        assert_eq!(cluster.open_states(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_scan_stays_lost_and_a_dropped_one_is_closed() {
    let cluster = cluster();
    let (info, place) = filled(&cluster).await;
    let service = cluster.service(Faults::default());
    let mut scan = service.open_state(wanted(&info, place, 1)).await.unwrap();
    scan.next().await.unwrap().unwrap();
    cluster.lose_states();
    for _ in 0..2 {
        assert!(is_state_lost(&scan.next().await.unwrap_err()));
    }
    let open = service.open_state(wanted(&info, place, 1)).await.unwrap();
    assert_eq!(cluster.open_states(), 1);
    drop(open);
    assert_eq!(cluster.open_states(), 0);
    let faulty = cluster.service(Faults::scripted(|act, _| (act == "next_state").then_some(Fault::After)));
    let mut scan = faulty.open_state(wanted(&info, place, 1)).await.unwrap();
    scan.next().await.unwrap().unwrap();
    assert!(is_state_lost(&scan.next().await.unwrap_err()));
    assert!(is_state_lost(&scan.next().await.unwrap_err()), "its sequence has gone on");
    cluster.serve_states(false);
    assert!(!service.serves_states().await.unwrap());
    let refused = service.open_state(wanted(&info, place, 1)).await.unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (Kind::Unsupported, Some(2)));
}
