//! What `lakeward orphans` leaves alone: what tags, branches and changelogs name, and all of a table that is held.

use std::fs;
use std::time::SystemTime;

use serde_json::{Value, json as value};

use super::binary::{run, run_unread};
use super::repair::{rolled_back, tiered_twice_and_tagged};
use super::*;

pub(super) fn everything(folder: &std::path::Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(everything(&path)) } else { found.push(path) }
    }
    found
}

/// Makes all that is there older than any round.
pub(super) fn age(folder: &std::path::Path) {
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for file in everything(folder) {
        fs::File::options().write(true).open(file).unwrap().set_modified(long_ago).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_held_table_is_deleted_as_its_snapshots_may_come_back() {
    let (stage, path) = rolled_back().await;
    let (folder, address) = (stage.folder(&path), stage.address());
    let (snapshots, aside) = (folder.join("snapshot"), stage.dir.path().join("aside"));
    let sweep = ["orphans", "demo.orders", "--server", &address, "--delete"];
    for is_empty in [false, true] {
        if is_empty {
            fs::rename(&snapshots, &aside).unwrap();
        }
        age(&folder);
        let before = everything(&folder);
        let ended = run(&sweep, None).await;
        assert_eq!(ended.code, Some(5), "{ended:?}");
        for said in ["nothing was deleted", "hint: "] {
            assert!(ended.stderr.contains(said), "{ended:?}");
        }
        assert_eq!(everything(&folder), before, "with no snapshot at all: {is_empty}");
    }
    fs::rename(&aside, &snapshots).unwrap();
    let listed = run(&[&sweep[..4], &["--json"]].concat(), None).await;
    assert!(listed.code == Some(0) && !listed.json()[0]["files"].as_array().unwrap().is_empty(), "{listed:?}");
    // An operator has decided: now they are orphans.
    assert_eq!(stage.repair("accept-base", &["--confirm"]).await.code, Some(0));
    age(&folder);
    let before = everything(&folder);
    let unread = run_unread(&sweep).await;
    assert!(unread.code == Some(3) && unread.stderr.contains("nothing was done"), "{unread:?}");
    assert_eq!(everything(&folder), before);
    let ended = run(&sweep, None).await;
    assert!(ended.code == Some(0) && everything(&folder).len() < before.len(), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_tag_a_branch_or_a_changelog_names_is_no_orphan() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    for (ids, snapshot) in [(0..40, 1), (40..80, 2)] {
        stage.append(&path, ids, "a").await;
        assert_eq!(stage.tier().await, [Some(snapshot)]);
    }
    let (folder, address) = (stage.folder(&path), stage.address());
    age(&folder);
    let orphans = async || {
        let ended = run(&["orphans", "demo.orders", "--server", &address, "--json"], None).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.json()[0]["files"].clone()
    };
    // Expired: its manifest lists are needed by nothing else.
    let first = folder.join("snapshot/snapshot-1");
    let text = fs::read(&first).unwrap();
    fs::remove_file(&first).unwrap();
    fs::write(folder.join("snapshot/EARLIEST"), "2").unwrap();
    assert_eq!(orphans().await.as_array().unwrap().len(), 2);
    for place in ["tag/tag-kept", "branch/branch-b/snapshot/snapshot-1", "branch/branch-b/tag/tag-kept", "changelog/changelog-1"] {
        let file = folder.join(place);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, &text).unwrap();
        assert_eq!(orphans().await, value!([]), "{place}");
        // What is damaged may name anything.
        fs::write(&file, &text[..9]).unwrap();
        let sweep = run(&["orphans", "demo.orders", "--server", &address, "--delete"], None).await;
        assert_eq!(sweep.code, Some(5), "{sweep:?}");
        for said in ["nothing can be called an orphan: read `", place, "hint: put the file back as it was"] {
            assert!(sweep.stderr.contains(said), "`{said}`: {sweep:?}");
        }
        fs::remove_file(&file).unwrap();
        assert_eq!(orphans().await.as_array().unwrap().len(), 2, "without {place}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn index_files_that_a_snapshot_names_are_no_orphans() {
    let (stage, path) = tiered_twice_and_tagged().await;
    let (folder, address) = (stage.folder(&path), stage.address());
    // Deletion vectors, as Java has written them for a table of its own.
    let java = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/paimon/pk_deletion_vectors"));
    let newest: Value = serde_json::from_slice(&fs::read(java.join("snapshot/snapshot-5")).unwrap()).unwrap();
    let manifest = newest["indexManifest"].as_str().unwrap();
    fs::create_dir(folder.join("index")).unwrap();
    let mut copied = vec![format!("manifest/{manifest}")];
    copied.extend(fs::read_dir(java.join("index")).unwrap().map(|file| format!("index/{}", file.unwrap().file_name().display())));
    for place in &copied {
        fs::copy(java.join(place), folder.join(place)).unwrap();
    }
    age(&folder);
    let orphans = async || -> Vec<String> {
        let ended = run(&["orphans", "demo.orders", "--server", &address, "--json"], None).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.json()[0]["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect()
    };
    copied.sort();
    assert_eq!(orphans().await, copied, "nothing names them");
    let tag = folder.join("tag/tag-first");
    let mut text: Value = serde_json::from_slice(&fs::read(&tag).unwrap()).unwrap();
    text["indexManifest"] = manifest.into();
    fs::write(&tag, text.to_string()).unwrap();
    assert_eq!(orphans().await, Vec::<String>::new(), "the tag names them");
}
