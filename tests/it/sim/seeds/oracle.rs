//! What has to be true when the faults are over and the services have gone on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use lakeward::commit::{COMMIT_USER, invariants};
use lakeward::daemon::board::{Board, TableState};
use lakeward::lake::LakeTable;
use lakeward::model::{LakeOffsets, OffsetsFile, TableId};
use lakeward::paimon::{Snapshot, path};

use super::actors::Process;
use super::keyed;
use super::stage::Stage;

/// What a plan excuses a hold by: a part of the message.
fn excuses(stage: &Stage) -> Vec<&'static str> {
    let happened = stage.counts.lock().unwrap();
    let mut excuses = vec![];
    if happened.contains_key("rollback") {
        excuses.extend([
            "the lake was rolled back",
            "the snapshot overwritten",
            "overwritten after the other was built on it",
            "carries other offsets in",
        ]);
    }
    if happened.contains_key("table dropped and made again") {
        excuses.push("belongs to table id");
        if happened.contains_key("Java commit") || happened.contains_key("Java recovery") {
            // It records the earlier table's snapshot, whose file goes with the next record (docs/reliability.md).
            excuses.extend(["beyond the log's end", "can't read the offsets file of its newest lake snapshot"]);
        }
    }
    if happened.contains_key("Java commit") {
        excuses.extend(["has written rows twice", "is not known to Fluss, and its offsets file"]);
    }
    excuses
}

/// A list that is behind shows for a moment what a rollback would, or no table at all: it may hold a table, until the next look.
fn excuses_for_a_moment(stage: &Stage) -> Vec<&'static str> {
    let mut excuses = excuses(stage);
    if stage.plan.stale_lists > 0 {
        excuses.extend(["the lake was rolled back", "the snapshot overwritten", "is missing in"]);
    }
    excuses
}

/// Services go on without faults until all is in the lake, or the table is held. Then everything is looked at.
pub(crate) async fn settles(stage: &Stage) -> Result<(), String> {
    let excused = excuses_for_a_moment(stage);
    if let Some(held) = stage.held.lock().unwrap().iter().find(|held| !excused.iter().any(|excuse| held.contains(excuse))) {
        return Err(format!("held without a reason: {held}"));
    }
    match goes_on(stage, "first").await? {
        Some(reason) if reason.contains("belongs to table id") => {
            // The way out that the message names.
            stage.new_lake_table().await;
            match goes_on(stage, "second").await? {
                None => whole(stage).await,
                // What Java had recorded is gone, and the lake is new: only an operator's word helps (docs/reliability.md, seed 9433).
                Some(reason) if reason.contains("can't read the offsets file") => Ok(()),
                Some(reason) => Err(format!("held after the lake table was made anew: {reason}")),
            }
        }
        Some(_) => {
            named_files_are_there(stage).await?;
            we_never_doubled(stage).await
        }
        None => whole(stage).await,
    }
}

/// A new daemon, until nothing is left to do or it is held.
async fn goes_on(stage: &Stage, who: &str) -> Result<Option<String>, String> {
    let process = Process::new(stage, &format!("the {who} afterwards"), None);
    let board = Board::new(4, stage.runtime.clock.now_ms());
    tokio::select! {
        () = process.daemon(&board) => Err("the daemon ended".to_owned()),
        settled = until_settled(stage, &board) => settled,
    }
}

/// `Some` = held for this reason, which the plan excuses.
async fn until_settled(stage: &Stage, board: &Board) -> Result<Option<String>, String> {
    let excuses = excuses(stage);
    let mut last = String::new();
    // The longest pause of a hold is half an hour, twice that for what a stale list or a late message still did.
    for _ in 0..4000 {
        stage.sleep(Duration::from_secs(2)).await;
        let table = stage.table().await;
        let Some(status) = board.table(table.id) else { continue };
        if status.state == TableState::Held {
            last = status.reason.unwrap_or_default();
            let persists = status.failures_in_row > 1;
            if persists && excuses.iter().any(|excuse| last.contains(excuse)) {
                return Ok(Some(last));
            }
            if persists {
                return Err(format!("held without a reason: {last}"));
            }
            continue;
        }
        if status.state == TableState::Waiting && is_settled(stage, table.id).await {
            return Ok(None);
        }
    }
    Err(format!("rows do not get to the lake: {:?}, {last}", board.tables(stage.runtime.clock.now_ms())))
}

async fn is_settled(stage: &Stage, id: TableId) -> bool {
    let living = living_ends(stage, id).await;
    living.0.is_empty() || stage.known().await.is_some_and(|known| known.table == id && reaches(&known.offsets, &living))
}

fn reaches(offsets: &LakeOffsets, ends: &LakeOffsets) -> bool {
    ends.0.iter().all(|(bucket, end)| offsets.get(*bucket) >= Some(*end))
}

/// Ends of the buckets that are still there.
async fn living_ends(stage: &Stage, id: TableId) -> LakeOffsets {
    let partitions: BTreeSet<_> =
        stage.partitions(&stage.table().await).await.into_iter().map(|partition| partition.map(|partition| partition.id)).collect();
    let ends = stage.ends(id).into_iter().filter(|(bucket, _)| partitions.contains(&bucket.partition));
    LakeOffsets(ends.map(|(bucket, end)| (bucket.into(), end)).collect())
}

/// All rows once, what Fluss knows, files, pins.
async fn whole(stage: &Stage) -> Result<(), String> {
    let id = stage.table().await.id;
    let doubled_by_java = stage.plan.java > 0 && we_never_doubled(stage).await.is_ok() && doubles_newest(stage).await?;
    if doubled_by_java {
        return named_files_are_there(stage).await;
    }
    each_row_once(stage, id).await?;
    named_files_are_there(stage).await?;
    each_stands_on_the_one_below(stage).await?;
    nothing_is_left_behind(stage).await?;
    pins_do_not_pile_up(stage).await
}

async fn newest(stage: &Stage) -> Option<(LakeTable, Snapshot)> {
    let lake = stage.lake().await;
    let newest = lake.newest_snapshot_id().await.unwrap()?;
    let snapshot = lake.snapshot(newest).await.unwrap()?;
    Some((lake, snapshot))
}

/// Whether rows that are not the table's own were there before it: in a lake table that was kept when its table was made again, and
/// whose snapshots of that time are gone (a rollback, expiry) or were taken over by a Java job (docs/reliability.md). Never added by us.
async fn are_left_by_an_earlier_table(
    stage: &Stage,
    lake: &LakeTable,
    snapshot: &Snapshot,
    counts: &BTreeMap<i64, u32>,
    own: &BTreeSet<i64>,
) -> Result<bool, String> {
    if !stage.counts.lock().unwrap().contains_key("table dropped and made again") {
        return Ok(false);
    }
    if !snapshot.properties.contains_key("lakeward.round-id") {
        return Ok(true);
    }
    let Some(below) = lake.snapshot(snapshot.id - 1).await.unwrap() else { return Ok(true) };
    let below = numbers(stage, lake, &below).await?;
    Ok(counts.keys().filter(|number| !own.contains(number)).all(|number| below.contains_key(number)))
}

/// How often each number is in a snapshot: that of a row, on primary-key tables of the version that a key shows.
async fn numbers(stage: &Stage, lake: &LakeTable, snapshot: &Snapshot) -> Result<BTreeMap<i64, u32>, String> {
    let column = if stage.is_primary() { "number" } else { "id" };
    let rows = lake.read_rows(snapshot, None, Some(&[column])).await.map_err(|error| error.chain())?;
    let mut counts = BTreeMap::new();
    for id in rows.iter().flat_map(|rows| rows.column(0).as_primitive::<Int64Type>().values().to_vec()) {
        *counts.entry(id).or_default() += 1;
    }
    Ok(counts)
}

/// The offsets that a Fluss-made snapshot tells; `None` = in a file that is gone, or somebody else's snapshot.
async fn offsets_of(stage: &Stage, snapshot: &Snapshot) -> Option<OffsetsFile> {
    if !snapshot.commit_user.starts_with(COMMIT_USER) {
        return None;
    }
    match snapshot.properties.get("lakeward.offsets") {
        Some(json) => OffsetsFile::from_json(json).ok(),
        None => stage.cluster.offsets_file(snapshot.properties.get("fluss-offsets")?),
    }
}

/// Every snapshot of Fluss that is still there holds exactly the rows that its offsets tell, on primary-key tables the state at them,
/// and the newest all that are left; Fluss knows it.
async fn each_row_once(stage: &Stage, id: TableId) -> Result<(), String> {
    let lake = stage.lake().await;
    let rows = stage.rows(id);
    // Not seen (commit.md, Who runs beside us): Java builds on a lake that was rolled back before we look, or carries a dropped
    // table's offsets into the new one's file.
    let (java_skips, java) = {
        let happened = stage.counts.lock().unwrap();
        let java = happened.contains_key("Java commit");
        (java && (happened.contains_key("rollback") || happened.contains_key("table dropped and made again")), java)
    };
    let mut told_by = vec![];
    for at in lake.snapshot_ids().await.unwrap() {
        let Some(snapshot) = lake.snapshot(at).await.unwrap() else { continue };
        if let Some(told) = offsets_of(stage, &snapshot).await.filter(|told| told.table == id) {
            told_by.push((snapshot, told.offsets));
        }
    }
    let newest = told_by.last().map(|(snapshot, offsets)| (snapshot.id, offsets.clone()));
    if stage.is_primary() && java {
        // A worker without a lease may take keys back, until what it took back is read again (commit.md 1).
        told_by.drain(..told_by.len().saturating_sub(1));
    }
    for (snapshot, offsets) in told_by {
        let (at, counts) = (snapshot.id, numbers(stage, &lake, &snapshot).await?);
        let covered: BTreeMap<i64, bool> = match stage.is_primary() {
            true => stage.keys(id, |keys| keyed::covered(keys, &offsets)),
            false => rows.iter().map(|((bucket, offset), number)| (*number, offsets.get(*bucket) > Some(*offset))).collect(),
        };
        for (number, covered) in &covered {
            let verdict = invariants::row(*covered, counts.get(number).copied().unwrap_or(0));
            if verdict == Err(invariants::Broken::Skipped) && java_skips {
                continue;
            }
            verdict.map_err(|broken| format!("snapshot {at}, row {number}: {broken}"))?;
        }
        let own: BTreeSet<i64> = covered.into_keys().collect();
        let strange = counts.keys().any(|number| !own.contains(number));
        if strange && !are_left_by_an_earlier_table(stage, &lake, &snapshot, &counts, &own).await? {
            return Err(format!("snapshot {at} holds rows of another table"));
        }
    }
    let living = living_ends(stage, id).await;
    let Some((at, offsets)) = newest else {
        return if living.0.is_empty() { Ok(()) } else { Err("nothing is in the lake".to_owned()) };
    };
    if !reaches(&offsets, &living) {
        return Err(format!("snapshot {at} ends at {offsets:?}, the logs at {living:?}"));
    }
    match stage.known().await {
        Some(known) if known.snapshot.0 == at && known.offsets == offsets => Ok(()),
        known => Err(format!("Fluss knows {known:?}, the lake has snapshot {at} with {offsets:?}")),
    }
}

/// No snapshot is a stray, or was overwritten. A publish that lands above a rollback may be one (commit.md, Files).
async fn each_stands_on_the_one_below(stage: &Stage) -> Result<(), String> {
    if stage.counts.lock().unwrap().contains_key("rollback") {
        return Ok(());
    }
    let lake = stage.lake().await;
    let mut below: Option<Snapshot> = None;
    for id in lake.snapshot_ids().await.unwrap() {
        let Some(snapshot) = lake.snapshot(id).await.unwrap() else { continue };
        if let Some(below) = below.filter(|below| below.id == id - 1) {
            invariants::stands_on(snapshot.total_record_count, snapshot.delta_record_count, below.total_record_count)
                .map_err(|broken| format!("snapshot {id}: {broken}"))?;
        }
        below = Some(snapshot);
    }
    Ok(())
}

async fn doubles_newest(stage: &Stage) -> Result<bool, String> {
    let Some((lake, snapshot)) = newest(stage).await else { return Ok(false) };
    Ok(numbers(stage, &lake, &snapshot).await?.values().any(|count| *count > 1))
}

/// No snapshot of ours added a row that was there before it.
async fn we_never_doubled(stage: &Stage) -> Result<(), String> {
    let lake = stage.lake().await;
    let mut before: Option<(i64, u32)> = None;
    for id in lake.snapshot_ids().await.unwrap() {
        let Some(snapshot) = lake.snapshot(id).await.unwrap() else { continue };
        let now: u32 = numbers(stage, &lake, &snapshot).await?.values().map(|count| count - 1).sum();
        let ours = snapshot.properties.contains_key("lakeward.round-id");
        if let Some((below, surplus)) = before
            && ours
            && below == id - 1
            && now > surplus
        {
            return Err(format!("snapshot {id} of ours doubles rows"));
        }
        if stage.plan.java == 0 && now > 0 {
            return Err(format!("snapshot {id} doubles rows"));
        }
        before = Some((id, now));
    }
    Ok(())
}

/// Objects that snapshots, tags and the like name.
async fn named(stage: &Stage) -> Result<BTreeSet<String>, String> {
    let lake = stage.lake().await;
    let mut named = BTreeSet::new();
    for id in lake.snapshot_ids().await.unwrap() {
        let Some(snapshot) = lake.snapshot(id).await.unwrap() else { continue };
        let lists =
            [Some(&snapshot.base_manifest_list), Some(&snapshot.delta_manifest_list), snapshot.changelog_manifest_list.as_ref()];
        named.extend(lists.into_iter().flatten().map(|list| lake.object(&format!("manifest/{list}"))));
        if let Some(list) = &snapshot.changelog_manifest_list {
            for manifest in lake.read_manifest_list(list).await.map_err(|error| error.chain())? {
                named.insert(lake.object(&format!("manifest/{}", manifest.file_name)));
                for entry in lake.read_manifest(&manifest.file_name).await.map_err(|error| error.chain())? {
                    named.insert(lake.object(&path::data_file(lake.schema(), &entry).unwrap()));
                }
            }
        }
        for manifest in lake.manifests(&snapshot).await.map_err(|error| error.chain())? {
            named.insert(lake.object(&format!("manifest/{}", manifest.file_name)));
        }
        for entry in lake.live_entries(&snapshot, None).await.map_err(|error| error.chain())? {
            named.insert(lake.object(&path::data_file(lake.schema(), &entry).unwrap()));
        }
    }
    Ok(named)
}

async fn named_files_are_there(stage: &Stage) -> Result<(), String> {
    let there: BTreeSet<String> = stage.store.list("").await.unwrap().into_iter().map(|object| object.path).collect();
    match named(stage).await?.difference(&there).next() {
        Some(missing) => Err(format!("a snapshot names {missing}, which is not there")),
        None => Ok(()),
    }
}

/// Where nothing died and no outcome stayed unknown, no data file is there that no snapshot names.
async fn nothing_is_left_behind(stage: &Stage) -> Result<(), String> {
    let plan = stage.plan;
    let excused = [
        plan.crashes,
        plan.late_puts,
        plan.lake_faults,
        plan.backfills,
        plan.deaf,
        plan.java,
        plan.expiries,
        plan.compactions,
        plan.rollbacks,
        plan.recreates,
        plan.restarts,
        plan.slow,
        plan.coordinator_faults,
        plan.stale_lists,
    ];
    if excused.iter().any(|amount| *amount > 0) {
        return Ok(());
    }
    let named = named(stage).await?;
    let data = stage.store.list("").await.unwrap().into_iter().map(|object| object.path).filter(|path| path.contains("/bucket-"));
    match data.into_iter().find(|path| !named.contains(path)) {
        Some(left) => Err(format!("{left} was left behind")),
        None => Ok(()),
    }
}

/// Two days and two rounds later one pin is left: the standing one. Then all but the newest snapshots can expire.
async fn pins_do_not_pile_up(stage: &Stage) -> Result<(), String> {
    let rng = stage.rng("afterwards");
    let id = stage.table().await.id;
    if stage.partitions(&stage.table().await).await.is_empty() {
        return Ok(());
    }
    let mut rounds = 0;
    while rounds < 2 {
        stage.sleep(Duration::from_secs(26 * 3600)).await;
        let before = living_ends(stage, id).await;
        stage.append(&rng).await;
        if living_ends(stage, id).await == before {
            continue;
        }
        rounds += 1;
        if let Some(reason) = goes_on(stage, &format!("{rounds}.")).await? {
            return Err(format!("held when all was well: {reason}"));
        }
    }
    let pins = stage.lake().await.pins("lakeward-").await.unwrap();
    if pins.len() > 1 {
        return Err(format!("pins pile up: {pins:?}"));
    }
    each_row_once(stage, id).await
}
