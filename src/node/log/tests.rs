use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::fluss::record::{RawBatch, batches};
use crate::model::{BucketId, TableId};

const START_MS: i64 = 1_700_000_000_000;

/// A batch of `rows` rows with `payload` bytes of nonsense behind the header.
pub(in crate::node) fn batch(writer: i64, sequence: i32, rows: i32, payload: usize) -> RawBatch {
    let mut bytes = vec![0_u8; 48 + payload];
    let length = i32::try_from(bytes.len()).unwrap() - 12;
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes[25..27].copy_from_slice(&1_i16.to_le_bytes());
    bytes[27] = 1;
    bytes[28..32].copy_from_slice(&(rows - 1).max(0).to_le_bytes());
    bytes[32..40].copy_from_slice(&writer.to_le_bytes());
    bytes[40..44].copy_from_slice(&sequence.to_le_bytes());
    bytes[44..48].copy_from_slice(&rows.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[25..]);
    bytes[21..25].copy_from_slice(&crc.to_le_bytes());
    batches(bytes.into()).next().unwrap().unwrap()
}

fn id(bucket: i32) -> TableBucket {
    TableBucket { table: TableId(1), partition: None, bucket: BucketId(bucket) }
}

fn store(folder: &Path, options: LogOptions) -> LogStore {
    LogStore::open(folder.to_owned(), options, &Runtime::simulated(1, START_MS, 1 << 20)).unwrap()
}

fn small() -> LogOptions {
    LogOptions { segment_bytes: 1_000, ..LogOptions::default() }
}

async fn append(log: &Arc<BucketLog>, batch: &RawBatch) -> Appending {
    let appending = log.append(batch).unwrap();
    log.durable(appending.end_offset).await.unwrap();
    appending
}

fn offsets(bytes: Bytes) -> Vec<i64> {
    batches(bytes).map(|batch| batch.unwrap().header.base_offset).collect()
}

#[tokio::test]
async fn batches_come_back_whole_from_the_one_that_holds_the_offset_across_segments() {
    let folder = tempfile::tempdir().unwrap();
    let log = store(folder.path(), small()).bucket(id(0)).unwrap();
    assert!(log.read(0, 100, true).unwrap().is_empty());
    assert!(matches!(log.read(1, 100, true), Err(ReadError::OutOfRange { start: 0, end: 0 })));
    for index in 0..20 {
        let appended = append(&log, &batch(-1, -1, 10, 252)).await;
        assert_eq!(appended, Appending { base_offset: index * 10, end_offset: index * 10 + 10 });
    }
    assert!(log.segment_count() > 5);
    assert_eq!(offsets(log.read(0, 1 << 20, true).unwrap()), (0..20).map(|index| index * 10).collect::<Vec<_>>());
    assert_eq!(offsets(log.read(57, 650, true).unwrap()), [50, 60]);
    assert_eq!(offsets(log.read(57, 1, true).unwrap()), [50], "the first batch comes even if it is too large");
    assert!(log.read(57, 1, false).unwrap().is_empty());
    assert!(log.read(200, 1 << 20, true).unwrap().is_empty());
    assert!(matches!(log.read(201, 1, true), Err(ReadError::OutOfRange { start: 0, end: 200 })));
    assert_eq!(log.rows(), 200);
}

#[tokio::test]
async fn a_batch_that_does_not_fit_is_not_skipped_for_a_smaller_one_of_the_next_segment() {
    let folder = tempfile::tempdir().unwrap();
    let log = store(folder.path(), small()).bucket(id(0)).unwrap();
    for payload in [252, 552, 152] {
        append(&log, &batch(-1, -1, 10, payload)).await;
    }
    assert_eq!(log.segment_count(), 2);
    assert_eq!(offsets(log.read(0, 550, true).unwrap()), [0]);
    assert_eq!(offsets(log.read(0, 1_100, true).unwrap()), [0, 10, 20]);
}

#[tokio::test]
async fn everything_is_there_after_a_restart_and_a_torn_tail_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    {
        let log = store(folder.path(), small()).bucket(id(0)).unwrap();
        for sequence in 0..12 {
            append(&log, &batch(7, sequence, 3, 252)).await;
        }
    }
    let files = || {
        let all: BTreeSet<_> = fs::read_dir(folder.path().join("1/0")).unwrap().map(|entry| entry.unwrap().path()).collect();
        all
    };
    let newest = files().into_iter().rfind(|path| path.extension().unwrap() == "log").unwrap();
    let whole = fs::read(&newest).unwrap();
    for tail in [vec![1_u8; 3], vec![0; 500], whole[..250].to_vec(), batch(7, 12, 3, 10).bytes.to_vec()] {
        fs::write(&newest, [&whole[..], &tail].concat()).unwrap();
        let log = store(folder.path(), small()).bucket(id(0)).unwrap();
        assert_eq!((log.log_end(), log.high_watermark(), log.rows()), (36, 36, 36));
        assert_eq!(fs::read(&newest).unwrap(), whole);
    }
    for lost in [None, Some("seal"), Some("writers")] {
        for path in files().iter().filter(|path| lost.is_some() && path.extension().unwrap().to_str() == lost) {
            fs::remove_file(path).unwrap();
        }
        let log = store(folder.path(), small()).bucket(id(0)).unwrap();
        assert_eq!(log.append(&batch(7, 8, 3, 252)).unwrap(), Appending { base_offset: 24, end_offset: 27 }, "{lost:?}");
        assert!(matches!(log.append(&batch(7, 13, 3, 252)), Err(AppendError::OutOfOrder { last: Some(11), .. })));
        assert_eq!(offsets(log.read(0, 1 << 20, true).unwrap()).len(), 12);
    }
}

#[tokio::test]
async fn a_damaged_closed_segment_is_an_error_and_not_cut() {
    let folder = tempfile::tempdir().unwrap();
    {
        let log = store(folder.path(), small()).bucket(id(0)).unwrap();
        for _ in 0..6 {
            append(&log, &batch(-1, -1, 3, 252)).await;
        }
    }
    let first = folder.path().join("1/0").join(segment::Segment::file_name(0));
    let mut bytes = fs::read(&first).unwrap();
    fs::remove_file(first.with_extension("seal")).unwrap();
    bytes[400] ^= 1;
    fs::write(&first, bytes).unwrap();
    let error = store(folder.path(), small()).bucket(id(0)).unwrap_err();
    assert_eq!(error.kind(), crate::error::Kind::Data);
}

#[tokio::test]
async fn rejected_and_repeated_batches_write_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let log = store(folder.path(), LogOptions::default()).bucket(id(0)).unwrap();
    assert!(matches!(log.append(&batch(5, 5, 1, 8)), Err(AppendError::OutOfOrder { last: None, .. })));
    let first = append(&log, &batch(5, 0, 4, 8)).await;
    assert_eq!(append(&log, &batch(5, 0, 4, 8)).await, first);
    append(&log, &batch(5, 1, 4, 8)).await;
    assert!(matches!(log.append(&batch(5, 3, 1, 8)), Err(AppendError::OutOfOrder { last: Some(1), .. })));
    let mut damaged = batch(5, 2, 1, 8).bytes.to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    let damaged = batches(damaged.into()).next().unwrap().unwrap();
    assert!(matches!(log.append(&damaged), Err(AppendError::Corrupt(_))));
    append(&log, &batch(5, 2, 1, 8)).await;
    append(&log, &batch(5, 3, 1, 8)).await;
    assert_eq!((log.log_end(), offsets(log.read(0, 1 << 20, true).unwrap())), (10, vec![0, 4, 8, 9]));
}

#[tokio::test]
async fn concurrent_appends_all_become_durable() {
    let folder = tempfile::tempdir().unwrap();
    let log = store(folder.path(), small()).bucket(id(0)).unwrap();
    let mut tasks = Vec::new();
    for writer in 0..8 {
        let log = Arc::clone(&log);
        tasks.push(tokio::spawn(async move {
            for sequence in 0..20 {
                append(&log, &batch(writer, sequence, 2, 100)).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!((log.high_watermark(), offsets(log.read(0, 1 << 20, true).unwrap()).len()), (320, 160));
}

#[tokio::test(start_paused = true)]
async fn times_lead_to_the_first_batch_that_is_not_older_and_old_segments_expire_as_far_as_tiered() {
    let folder = tempfile::tempdir().unwrap();
    let logs = store(folder.path(), small());
    let log = logs.bucket(id(0)).unwrap();
    let start = logs.shared.clock.now_ms();
    for _ in 0..8 {
        append(&log, &batch(1, i32::try_from(log.log_end() / 10).unwrap(), 10, 252)).await;
        tokio::time::advance(std::time::Duration::from_millis(100)).await;
    }
    assert_eq!(log.offset_at(start - 5).unwrap(), 0);
    let times: Vec<i64> =
        batches(log.read(0, 1 << 20, true).unwrap()).map(|batch| batch.unwrap().header.commit_timestamp_ms).collect();
    for (index, time) in (0..).zip(&times) {
        assert_eq!(log.offset_at(*time).unwrap(), index * 10);
        assert_eq!(log.offset_at(*time + 1).unwrap(), index * 10 + 10);
    }
    log.expire(times[5], 40).unwrap();
    assert_eq!(log.log_start(), 30, "segments of three batches; the second reaches beyond what is tiered");
    log.expire(i64::MAX, i64::MAX).unwrap();
    assert_eq!((log.log_start(), log.log_end()), (80, 80));
    assert!(matches!(log.read(79, 1, true), Err(ReadError::OutOfRange { start: 80, end: 80 })));
    drop(log);
    let log = store(folder.path(), small()).bucket(id(0)).unwrap();
    assert_eq!((log.log_start(), log.log_end()), (80, 80));
    assert_eq!(append(&log, &batch(1, 8, 1, 8)).await.base_offset, 80, "the producer is still known");
}

#[tokio::test]
async fn a_deleted_table_takes_no_appends_and_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path(), LogOptions::default());
    let log = store.bucket(id(0)).unwrap();
    append(&log, &batch(-1, -1, 1, 8)).await;
    store.delete(TableId(1), None).unwrap();
    assert!(matches!(log.append(&batch(-1, -1, 1, 8)), Err(AppendError::Storage(_))));
    assert!(!folder.path().join("1").exists());
    fs::create_dir_all(folder.path().join("2/p3/0")).unwrap();
    fs::create_dir_all(folder.path().join("2/p4/0")).unwrap();
    fs::create_dir_all(folder.path().join("9/0")).unwrap();
    store.delete_unknown(|table, partition| table == TableId(2) && partition != Some(PartitionId(4))).unwrap();
    assert!(folder.path().join("2/p3").exists() && !folder.path().join("2/p4").exists() && !folder.path().join("9").exists());
}
