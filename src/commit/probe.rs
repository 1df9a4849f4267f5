//! Whether a lake can do what the commit rests on: an object that is made twice is made once.

use bytes::Bytes;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::lake::LakeTable;
use crate::paimon::path;
use crate::storage::{Created, Store};

/// Makes an object twice beside the table's snapshots, reads it and takes it away.
///
/// It lies where it matters, in the folder that snapshots are published in, so that rights are tried too. Readers look there for names
/// that begin with `snapshot-` and for the two hints; what else is left there, should we die here, Paimon's orphan sweep takes away.
///
/// # Errors
/// `Unsupported` when both creates say that they made it, or the first content is not the one that stays; `Unavailable`; `Invalid` when
/// access is denied.
pub async fn prove(lake: &LakeTable) -> Result<()> {
    create_if_absent(lake.store(), lake.root(), lake.runtime().rng.uuid()).await
}

/// As [`prove`], once per process and store: before the first round there writes anything.
///
/// # Errors
/// As [`prove`].
pub async fn prove_once(lake: &LakeTable) -> Result<()> {
    let (stores, url) = (&lake.runtime().stores, lake.store().url());
    if !stores.is_sound(url) {
        prove(lake).await.map_err(|error| error.context("a snapshot could not be published safely"))?;
        stores.passed(url);
    }
    Ok(())
}

async fn create_if_absent(store: &Store, root: &str, id: Uuid) -> Result<()> {
    let object = format!("{root}/{}/.lakeward-check-{id}", path::SNAPSHOTS);
    let tried = try_twice(store, &object).await;
    let removed = store.delete(&object).await;
    tried?;
    removed.map_err(|error| error.context("take the probe away again"))
}

async fn try_twice(store: &Store, object: &str) -> Result<()> {
    let first = store.create(object, Bytes::from_static(b"first")).await?;
    let second = store.create(object, Bytes::from_static(b"second")).await?;
    let found = store.get(object).await?;
    if verdict(first, second, found.as_deref()) {
        return Ok(());
    }
    Err(Error::unsupported(format!("`{}` has no atomic create-if-absent", store.name(object)))
        .with_hint("two services could both publish a snapshot there; use a store that has it: a local disk, or S3 with conditional writes (`If-None-Match: *`)"))
}

/// Whether two creates of one object came out as they have to.
fn verdict(first: Created, second: Created, found: Option<&[u8]>) -> bool {
    (first, second, found) == (Created::Yes, Created::Exists, Some(b"first"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_probe_passes_on_a_sound_store_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let local = crate::storage::open(folder.path().to_str().unwrap(), &crate::storage::StoreOptions::default()).unwrap();
        for store in [local, Store::in_memory()] {
            create_if_absent(&store, "demo.db/t", Uuid::from_u128(7)).await.unwrap();
            assert_eq!(store.list("").await.unwrap(), []);
        }
    }

    #[test]
    fn a_store_that_makes_an_object_twice_or_replaces_it_is_found_out() {
        assert!(verdict(Created::Yes, Created::Exists, Some(b"first")));
        assert!(!verdict(Created::Yes, Created::Yes, Some(b"second")));
        assert!(!verdict(Created::Yes, Created::Yes, Some(b"first")));
        assert!(!verdict(Created::Yes, Created::Exists, Some(b"second")));
        assert!(!verdict(Created::Yes, Created::Exists, None));
    }

    #[tokio::test]
    async fn what_lies_there_under_that_name_fails_the_probe_and_goes() {
        let store = Store::in_memory();
        store.put("t/snapshot/.lakeward-check-00000000-0000-0000-0000-000000000007", Bytes::from_static(b"x")).await.unwrap();
        assert!(create_if_absent(&store, "t", Uuid::from_u128(7)).await.is_err());
        assert_eq!(store.list("").await.unwrap(), []);
    }
}
