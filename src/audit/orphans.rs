//! Files in a lake table that nothing names: what rounds, rewrites and foreign writers that died have left (P10.5).
//!
//! What names a file: every snapshot, tag and decoupled changelog of the table and of its branches, through their manifest lists,
//! manifests, index and statistics. An entry that removes a file names it too, since earlier snapshots may still need it.
//! The folder is listed before those are read, so that whatever was published since names what was listed; and only what is older
//! than the age that is asked for counts: no living round has files older than a day (commit.md), and Paimon's own sweep goes by the
//! same. Where Paimon does not look, we don't either: other folders are somebody else's. Dead pins are told too; the standing one stays.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;

use crate::commit::{CommitContext, Judgement, OurPin, PinUse, judge, look_at_pins};
use crate::error::{Error, Kind, Result};
use crate::lake::LakeTable;
use crate::paimon::{Snapshot, path};
use crate::storage::{HangingUpload, Listed};

/// Files older than this can be of no living round, nor of a PUT that is still on its way (commit.md, Files).
pub const AGE_MIN: Duration = Duration::from_secs(24 * 60 * 60);
/// Snapshots whose names are collected at once.
const SNAPSHOTS_AT_ONCE: usize = 4;
/// Whoever can't tell what is named, calls nothing an orphan.
const UNTOLD: &str = "nothing can be called an orphan";
/// Deletes in flight.
const DELETES_AT_ONCE: usize = 16;

/// A file that nothing names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Orphan {
    /// Below the table's folder.
    pub path: String,
    /// Bytes.
    pub bytes: u64,
    /// Epoch milliseconds by the store's clock.
    pub modified_ms: i64,
}

/// What a sweep has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphans {
    /// Files, by path.
    pub files: Vec<Orphan>,
    /// Uploads in parts that were never ended: they show nowhere, and are paid for.
    pub uploads: Vec<HangingUpload>,
    /// Pins of ours that nobody needs.
    pub pins: Vec<OurPin>,
    /// Files that something names.
    pub named: u64,
    /// Files that nothing names yet, and that are too young.
    pub young: u64,
}

/// Looks for what nothing names and is older than `age`. Changes nothing.
///
/// # Errors
/// `Unavailable`; `Data` when a snapshot, list or manifest is missing or wrong: then nothing can be told, and nothing is.
pub async fn orphans(context: &CommitContext, age: Duration) -> Result<Orphans> {
    let lake = &*context.lake;
    let now_ms = context.runtime.clock.now_ms();
    let cutoff = now_ms.saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
    let listed = lake.store().list(lake.root()).await?;
    let below = |listed: &Listed| listed.path.strip_prefix(lake.root()).map(|path| path.trim_start_matches('/').to_owned());
    let candidates: Vec<(String, &Listed)> =
        listed.iter().filter_map(|listed| Some((below(listed)?, listed))).filter(|(path, _)| is_swept(path)).collect();
    let names = named(lake).await?;
    let mut found = Orphans { files: vec![], uploads: vec![], pins: vec![], named: 0, young: 0 };
    for (path, listed) in candidates {
        if names.contains(file_name(&path)) {
            found.named += 1;
        } else if listed.modified_ms >= cutoff {
            found.young += 1;
        } else {
            found.files.push(Orphan { path, bytes: listed.size, modified_ms: listed.modified_ms });
        }
    }
    found.files.sort();
    found.uploads = lake.store().hanging_uploads(lake.root()).await?;
    found.uploads.retain(|upload| upload.begun_ms < cutoff);
    let pins = look_at_pins(context).await?.pins;
    found.pins = pins.into_iter().filter(|pin| pin.for_what == PinUse::Dead && pin.written_ms < cutoff).collect();
    Ok(found)
}

/// Deletes what was found. What is gone already is fine. Of a lake that recovery holds against Fluss nothing is: snapshots that were
/// rolled back or moved away may come back, and then need what nothing names now.
///
/// # Errors
/// `Data` when recovery holds the table, with its ways out; `Invalid` when anything of it is younger than [`AGE_MIN`]; `Unavailable` when
/// some could not be deleted: call again.
pub async fn delete(context: &CommitContext, found: &Orphans) -> Result<()> {
    if let Judgement::Held(fault) = judge(context).await? {
        return Err(fault.context("nothing was deleted, since snapshots that the lake lacks may come back"));
    }
    let lake = &*context.lake;
    let cutoff = context.runtime.clock.now_ms().saturating_sub(i64::try_from(AGE_MIN.as_millis()).unwrap_or(i64::MAX));
    if let Some(young) = found.files.iter().find(|file| file.modified_ms >= cutoff) {
        return Err(Error::invalid(format!("`{}` is younger than a day: a round at work may still name it", young.path)));
    }
    if let Some(young) = found.uploads.iter().find(|upload| upload.begun_ms >= cutoff) {
        return Err(Error::invalid(format!("the upload of `{}` is younger than a day: a round may be at it", young.path)));
    }
    let deletes = found.files.iter().map(|file| async move { lake.store().delete(&lake.object(&file.path)).await });
    let ended: Vec<Result<()>> = stream::iter(deletes).buffer_unordered(DELETES_AT_ONCE).collect().await;
    ended.into_iter().collect::<Result<()>>()?;
    for upload in &found.uploads {
        lake.store().abort_upload(upload).await?;
    }
    for pin in &found.pins {
        lake.delete_pin(&pin.name).await?;
    }
    Ok(())
}

/// Where Paimon sweeps (P10.5): temporary names beside snapshots and changelogs; manifests, indexes, statistics; buckets below partitions.
fn is_swept(path: &str) -> bool {
    let Some((folder, name)) = path.rsplit_once('/') else { return false };
    match folder {
        "snapshot" | "changelog" | "schema" | "tag" | "consumer" => name.starts_with('.'),
        path::MANIFESTS | "index" | "statistics" => true,
        _ => {
            let mut parts = folder.rsplit('/');
            parts.next().is_some_and(|bucket| bucket.starts_with("bucket-")) && parts.all(|part| part.contains('='))
        }
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Names of all files that snapshots, tags and changelogs of all branches name. Names are unique: a uuid is in each.
async fn named(lake: &LakeTable) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    // Many snapshots share their manifests.
    let mut read: BTreeSet<String> = BTreeSet::new();
    let places = snapshots_of_all(lake).await?;
    let mut snapshots = stream::iter(places).map(|place| read_at(lake, place)).buffered(SNAPSHOTS_AT_ONCE);
    while let Some(snapshot) = snapshots.try_next().await? {
        let Some((place, snapshot)) = snapshot else { continue };
        match collect(lake, &snapshot, &mut names, &mut read).await {
            Ok(()) => {}
            // It has expired while it was read, its manifests first.
            Err(error) if error.kind() == Kind::Data && lake.store().size(&lake.object(&place)).await?.is_none() => {}
            Err(error) => {
                return Err(error.context(format!("what `{place}` names can't be told")).context(UNTOLD));
            }
        }
    }
    Ok(names)
}

/// Places of everything that has the form of a snapshot, below the table's folder.
async fn snapshots_of_all(lake: &LakeTable) -> Result<Vec<String>> {
    let mut roots = vec![String::new()];
    for listed in lake.store().list(&lake.object("branch")).await? {
        let below = listed.path.strip_prefix(&lake.object("branch/")).and_then(|path| path.split_once('/')).map(|(name, _)| name);
        if let Some(root) = below.map(|name| format!("branch/{name}/")).filter(|root| !roots.contains(root)) {
            roots.push(root);
        }
    }
    let mut places = Vec::new();
    for root in roots {
        for (folder, prefix) in [("snapshot", "snapshot-"), ("tag", "tag-"), ("changelog", "changelog-")] {
            for listed in lake.store().list(&lake.object(&format!("{root}{folder}"))).await? {
                let name = file_name(&listed.path);
                if name.starts_with(prefix) {
                    places.push(format!("{root}{folder}/{name}"));
                }
            }
        }
    }
    Ok(places)
}

/// `None` when it has expired meanwhile.
async fn read_at(lake: &LakeTable, place: String) -> Result<Option<(String, Snapshot)>> {
    let told = |error: Error| if error.kind() == Kind::Data { error.context(UNTOLD) } else { error };
    Ok(lake.snapshot_at(&place).await.map_err(told)?.map(|snapshot| (place, snapshot)))
}

async fn collect(lake: &LakeTable, snapshot: &Snapshot, names: &mut BTreeSet<String>, read: &mut BTreeSet<String>) -> Result<()> {
    let lists =
        [Some(&snapshot.base_manifest_list), Some(&snapshot.delta_manifest_list), snapshot.changelog_manifest_list.as_ref()];
    for list in lists.into_iter().flatten() {
        names.insert(list.clone());
        if !read.insert(list.clone()) {
            continue;
        }
        for manifest in lake.read_manifest_list(list).await? {
            names.insert(manifest.file_name.clone());
            if !read.insert(manifest.file_name.clone()) {
                continue;
            }
            for entry in lake.read_manifest(&manifest.file_name).await? {
                names.extend(entry.file.extra_files);
                names.insert(entry.file.file_name);
            }
        }
    }
    if let Some(index) = &snapshot.index_manifest {
        names.insert(index.clone());
        if read.insert(index.clone()) {
            names.extend(lake.index_files(index).await?);
        }
    }
    names.extend(snapshot.statistics.clone());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_where_paimon_sweeps_is_anything_an_orphan() {
        for (path, swept) in [
            ("manifest/manifest-1", true),
            ("bucket-0/data-1.parquet", true),
            ("day=a/hour=1/bucket-3/data-1.parquet", true),
            ("index/index-1", true),
            ("snapshot/.snapshot-7.x.tmp", true),
            ("snapshot/snapshot-7", false),
            ("snapshot/LATEST", false),
            ("schema/schema-0", false),
            ("consumer/consumer-x", false),
            ("tag/tag-x", false),
            ("branch/branch-b/snapshot/snapshot-1", false),
            ("other/bucket-0/data-1.parquet", false),
            ("notes.txt", false),
            ("day=a/notes.txt", false),
        ] {
            assert_eq!(is_swept(path), swept, "{path}");
        }
    }
}
