//! The ledger: what is prepared, recorded, kept and thrown away (F3.1–F3.3, D1).

use super::{World, check, descriptor, eventually, made};
use crate::error::{Error, Result};
use crate::model::{BucketId, BucketKey, LakeOffsets, PartitionId, SnapshotId, TableId, TableInfo, TablePath};
use crate::source::{LedgerRecord, LedgerState};

fn offsets(values: &[(i32, i64)]) -> LakeOffsets {
    let key = |bucket| BucketKey { partition: None, bucket: BucketId(bucket) };
    LakeOffsets(values.iter().map(|(bucket, offset)| (key(*bucket), *offset)).collect())
}

/// A snapshot with an offsets file, with what else a service tells about it.
pub(super) fn record(
    table: &TableInfo,
    snapshot: i64,
    offsets_path: &str,
    told: &LakeOffsets,
    earliest_to_keep: i64,
) -> LedgerRecord {
    LedgerRecord {
        table: table.id,
        path: table.path.clone(),
        snapshot: SnapshotId(snapshot),
        offsets_path: offsets_path.to_owned(),
        offsets: told.clone(),
        max_timestamps: told.0.keys().map(|key| (*key, 1)).collect(),
        earliest_to_keep,
    }
}

/// The newest entry is this one, now.
pub(super) async fn stands(world: &dyn World, table: &TableInfo, snapshot: i64, told: &LakeOffsets) -> Result<()> {
    let state = world.ledger().latest(&table.path).await?;
    let LedgerState::At(entry) = &state else {
        return Err(Error::internal(format!("snapshot `{snapshot}` was recorded, there is {state:?}")));
    };
    let found = (entry.table, entry.snapshot, &entry.offsets);
    check(found == (table.id, SnapshotId(snapshot), told), || format!("after `{snapshot}` of {told:?} stands {entry:?}"))
}

async fn holds(world: &dyn World, path: &str, table: TableId, told: &LakeOffsets) -> Result<()> {
    let file = world.ledger().offsets_file(path).await?.map(|file| (file.table, file.offsets));
    check(file == Some((table, told.clone())), || format!("offsets file `{path}` of {told:?} is {file:?}"))
}

/// Which of these offsets files are left, once it is as many as wanted: servers delete a moment after their answer.
async fn left(world: &dyn World, files: &[&str], wanted: &[bool]) -> Result<()> {
    eventually(world, &format!("offsets files {files:?} that are left: {wanted:?}"), async || {
        let mut found = vec![];
        for file in files {
            found.push(world.ledger().offsets_file(file).await?.is_some());
        }
        Ok((found == wanted).then_some(()))
    })
    .await
}

pub(super) async fn the_ledger_keeps_what_it_was_told_last(world: &dyn World) -> Result<()> {
    let ledger = world.ledger();
    let table = made(world, "ledger", &descriptor(false, false)).await?;
    let gone = ledger.latest(&TablePath::new(world.database(), "nobody")).await?;
    check(gone == LedgerState::TableGone, || format!("a missing table has {gone:?}"))?;

    // What is prepared is a file of its own each time, with exactly these offsets; nobody sees it before it is recorded.
    let one = offsets(&[(0, 5), (1, 7)]);
    let first = ledger.prepare(table.id, &table.path, &one).await?;
    let again = ledger.prepare(table.id, &table.path, &one).await?;
    let folder = format!("/lake/{}/{}-{}/metadata/", table.path.database, table.path.table, table.id);
    check(first != again && first.contains(&folder) && first.starts_with("file:/"), || format!("files `{first}`, `{again}`"))?;
    holds(world, &first, table.id, &one).await?;
    let empty = ledger.latest(&table.path).await?;
    check(empty == LedgerState::Empty, || format!("a new table has {empty:?}"))?;

    // Ids as told, the last one counts, nothing is laid over what was there before; all is kept by -1, an id in the list, another id.
    ledger.record(record(&table, 3, &first, &one, -1)).await?;
    stands(world, &table, 3, &one).await?;
    let two = offsets(&[(0, 9)]);
    let second = ledger.prepare(table.id, &table.path, &two).await?;
    ledger.record(record(&table, 4, &second, &two, 3)).await?;
    stands(world, &table, 4, &two).await?;
    let three = offsets(&[(1, 6)]);
    let third = ledger.prepare(table.id, &table.path, &three).await?;
    ledger.record(record(&table, 3, &third, &three, 99)).await?;
    stands(world, &table, 3, &three).await?;
    left(world, &[&first, &second, &third, &again], &[true; 4]).await?;

    // A job's prepare overlays the newest entry, bucket by bucket, and what it tells wins, be it smaller.
    let overlaid = world.prepare_overlaid(&table, &offsets(&[(0, 1), (1, 2)])).await?;
    holds(world, &overlaid, table.id, &offsets(&[(0, 1), (1, 2)])).await?;
    let overlaid = world.prepare_overlaid(&table, &offsets(&[(0, 1)])).await?;
    holds(world, &overlaid, table.id, &offsets(&[(0, 1), (1, 6)])).await?;

    // From the place of the id on, which is no order of numbers: 3, 4, 3 and now 7.
    let four = offsets(&[(0, 12), (1, 12)]);
    let fourth = ledger.prepare(table.id, &table.path, &four).await?;
    ledger.record(record(&table, 7, &fourth, &four, 4)).await?;
    stands(world, &table, 7, &four).await?;
    left(world, &[&first, &second, &third, &fourth], &[false, true, true, true]).await?;

    // Whether a file is there is not looked at. A good one repairs it.
    ledger.record(record(&table, 8, &format!("{fourth}.not-there"), &one, -1)).await?;
    unreadable(world, &table).await?;
    let fifth = ledger.prepare(table.id, &table.path, &four).await?;
    ledger.record(record(&table, 8, &fifth, &four, -1)).await?;
    stands(world, &table, 8, &four).await?;

    // None at all, and partitions: their existence is nobody's business, each has its own buckets.
    for (snapshot, told) in [(9, LakeOffsets::default()), (10, partitioned(&[(100, 0, 4), (7, 3, 9), (7, 0, 0)]))] {
        let file = ledger.prepare(table.id, &table.path, &told).await?;
        holds(world, &file, table.id, &told).await?;
        ledger.record(record(&table, snapshot, &file, &told, -1)).await?;
        stands(world, &table, snapshot, &told).await?;
    }
    a_table_that_is_gone_has_none(world, &table).await
}

/// A record without an oldest entry to keep throws all others away, newer ones too: what a job's late one does to ours.
pub(super) async fn a_record_throws_away_what_it_does_not_keep(world: &dyn World) -> Result<()> {
    let ledger = world.ledger();
    let table = made(world, "destroyed", &descriptor(false, false)).await?;
    let mut files = vec![];
    for snapshot in 1..=3 {
        let told = offsets(&[(0, snapshot), (1, snapshot)]);
        let file = ledger.prepare(table.id, &table.path, &told).await?;
        if snapshot != 2 {
            ledger.record(record(&table, snapshot, &file, &told, -1)).await?;
        }
        files.push(file);
    }
    let [first, late, newest] = files.as_slice() else { return Err(Error::internal("three files")) };
    world.record_alone(record(&table, 2, late, &offsets(&[]), -1)).await?;
    stands(world, &table, 2, &offsets(&[(0, 2), (1, 2)])).await?;
    left(world, &[first, late, newest], &[false, true, false]).await?;
    // Even a file that the new entry names again goes with the old entry, and what it has can't be read any more.
    world.record_alone(record(&table, 2, late, &offsets(&[]), -1)).await?;
    left(world, &[late], &[false]).await?;
    unreadable(world, &table).await?;
    world.drop_table(&table.path).await
}

fn partitioned(values: &[(i64, i32, i64)]) -> LakeOffsets {
    let key = |partition, bucket| BucketKey { partition: Some(PartitionId(partition)), bucket: BucketId(bucket) };
    LakeOffsets(values.iter().map(|(partition, bucket, offset)| (key(*partition, *bucket), *offset)).collect())
}

/// The newest entry can't be read: nothing can be laid over it, but exact offsets can be prepared.
async fn unreadable(world: &dyn World, table: &TableInfo) -> Result<()> {
    let state = world.ledger().latest(&table.path).await?;
    check(matches!(state, LedgerState::Unknown { .. }), || format!("an entry without its file is {state:?}"))?;
    let refused = world.prepare_overlaid(table, &offsets(&[(0, 1)])).await;
    let code = refused.as_ref().err().and_then(Error::code);
    check(code == Some(-1), || format!("over an entry that can't be read is laid {refused:?}"))?;
    world.ledger().prepare(table.id, &table.path, &offsets(&[(0, 1)])).await.map(drop)
}

/// Ids are taken on trust: of tables that are not there, too, and nobody else sees it.
async fn a_table_that_is_gone_has_none(world: &dyn World, table: &TableInfo) -> Result<()> {
    let (ledger, told) = (world.ledger(), offsets(&[(0, 3)]));
    let stranger = TableInfo { id: TableId(i64::from(i32::MAX)), ..table.clone() };
    let file = ledger.prepare(stranger.id, &stranger.path, &told).await?;
    holds(world, &file, stranger.id, &told).await?;
    ledger.record(record(&stranger, 20, &file, &told, -1)).await?;
    stands(world, table, 10, &partitioned(&[(100, 0, 4), (7, 3, 9), (7, 0, 0)])).await?;
    world.drop_table(&table.path).await?;
    eventually(world, "end of a dropped table's ledger", async || {
        Ok((ledger.latest(&table.path).await? == LedgerState::TableGone).then_some(()))
    })
    .await?;
    let file = ledger.prepare(table.id, &table.path, &told).await?;
    ledger.record(record(table, 21, &file, &told, -1)).await?;
    let gone = ledger.latest(&table.path).await?;
    check(gone == LedgerState::TableGone, || format!("a dropped table has {gone:?}"))?;
    let made_again = made(world, "ledger", &descriptor(false, false)).await?;
    let empty = ledger.latest(&made_again.path).await?;
    check(empty == LedgerState::Empty, || format!("a table made again has {empty:?}"))
}
