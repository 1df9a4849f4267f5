//! Damaged objects of a lake, read as rounds and audits read them: the error names the object.

use std::fs;
use std::path::Path;

use crate::error::{Kind, Result};
use crate::lake::LakeTable;
use crate::runtime::Runtime;
use crate::storage::{StoreOptions, open};

fn copy(from: &Path, to: &Path, found: &mut Vec<String>, below: &str) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        let place = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        if entry.path().is_dir() {
            copy(&entry.path(), &to.join(name), found, &place);
        } else {
            fs::copy(entry.path(), to.join(&name)).unwrap();
            found.push(place);
        }
    }
}

async fn read(folder: &Path) -> Result<usize> {
    let store = open(folder.to_str().unwrap(), &StoreOptions::default())?;
    let table = LakeTable::open(store, "t", Runtime::simulated(7, 1_700_000_000_000, 64 << 20)).await?.unwrap();
    table.options()?;
    let newest = table.newest_snapshot_id().await?.unwrap();
    let snapshot = table.snapshot(newest).await?.unwrap();
    let rows = table.read_rows(&snapshot, None, None).await?;
    Ok(rows.iter().map(arrow_array::RecordBatch::num_rows).sum())
}

#[tokio::test]
async fn a_damaged_object_of_the_lake_is_named_by_the_error() {
    for name in ["append_partitioned", "pk_partitioned"] {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/paimon").join(name);
        let folder = tempfile::tempdir().unwrap();
        let (mut files, mut named) = (Vec::new(), 0);
        copy(&golden, &folder.path().join("t"), &mut files, "");
        let rows = read(folder.path()).await.unwrap();
        for file in files {
            let path = folder.path().join("t").join(&file);
            let good = fs::read(&path).unwrap();
            let mut flipped = good.clone();
            flipped[good.len() / 2] ^= 4;
            let garbage = vec![0xff; good.len()];
            let changes = [("half", &good[..good.len() / 2]), ("empty", &[][..]), ("flipped", &flipped), ("garbage", &garbage)];
            for (change, bytes) in changes {
                fs::write(&path, bytes).unwrap();
                match read(folder.path()).await {
                    Err(error) => {
                        let (chain, object) = (error.chain(), file.rsplit('/').next().unwrap());
                        // A flipped bit may well say something, such as another file's name.
                        assert!(change == "flipped" || chain.contains(object), "{name}: {change} `{file}`: {chain}");
                        let theirs = matches!(error.kind(), Kind::Data | Kind::Unsupported | Kind::Invalid);
                        assert!(theirs, "{name}: {change} `{file}`: {chain}");
                        named += 1;
                    }
                    // What nobody reads, hints, and bits of values do no harm that could be seen.
                    Ok(found) => assert!(change == "flipped" || found == rows, "{name}: {change} `{file}`: {found} of {rows} rows"),
                }
            }
            fs::write(&path, good).unwrap();
        }
        assert!(named >= 10, "{name}: {named}");
    }
}
