//! F4.3, F4.4: the transaction of a rescale, against whatever comes in between.

use super::*;

const OLD_TABLE: &str = r#"{"version":2,"table_id":0,"partition_key":["day"],"bucket_key":["id"],"bucket_count":2,"properties":{},"custom_properties":{}}"#;

fn path() -> TablePath {
    TablePath::new("fluss", "t")
}

/// A registry with a table of 2 buckets whose records are from before 1.0, and so are those of partitions `1` to `3`.
async fn old_registry(folder: &Path) -> Registry {
    let file = folder.join("registry.redb");
    let path = path();
    {
        let registry = Registry::open(&file, 7, FailPoints::default()).unwrap();
        let lock = registry.lock_table(&path).await;
        registry.create_table(TableInfo { path: path.clone(), ..info("t") }, &lock).await.unwrap();
        for day in ["1", "2", "3"] {
            registry.create_partition(&path, spec(day), &lock).await.unwrap();
        }
    }
    let mut records = vec![(table_key(&path), OLD_TABLE.to_owned())];
    for id in 0..3 {
        let json = format!(r#"{{"version":1,"table_id":0,"partition_id":{id},"remote_data_dir":"/x"}}"#);
        records.push((partition_key(&path, &(id + 1).to_string()), json));
    }
    seed(&file, &records.iter().map(|(key, json)| (key.as_str(), json.as_str())).collect::<Vec<_>>());
    Registry::open(&file, 7, FailPoints::default()).unwrap()
}

impl Registry {
    async fn to(&self, count: i32) -> Result<Arc<Table>> {
        let lock = self.lock_table(&path()).await;
        self.rescale_table(&path(), count, &Limits::default(), 9, &lock).await
    }
}

/// Count, epoch, and each partition's own count.
fn counts(table: &Table) -> (i32, i64, Vec<Option<i32>>) {
    let own = table.partitions.values().map(|partition| partition.bucket_count).collect();
    assert!(table.partitions.values().all(|partition| table.partitions_by_id[&partition.id] == *partition));
    (table.info.bucket_count, table.info.bucket_count_epoch.0, own)
}

/// The table record with another comment.
fn commented(store: &Store, comment: &str) {
    let key = table_key(&path());
    let mut json: Value = serde_json::from_str(&store.get(&key).unwrap().unwrap()).unwrap();
    json["comment"] = json!(comment);
    store.put(&key, &json.to_string());
}

#[tokio::test]
async fn partitions_from_before_1_0_get_their_count_with_the_first_rescale() {
    let folder = tempfile::tempdir().unwrap();
    let registry = old_registry(folder.path()).await;
    assert_eq!(counts(&registry.table(&path()).unwrap()), (2, 0, vec![None; 3]), "what is absent is read as absent and 0");
    assert_eq!(counts(&registry.to(2).await.unwrap()), (2, 0, vec![None; 3]), "the same count changes nothing");
    for (count, epoch) in [(8, 1), (4, 2), (8, 3), (8, 3)] {
        assert_eq!(counts(&registry.to(count).await.unwrap()), (count, epoch, vec![Some(2); 3]));
    }
    drop(registry);
    let registry = Registry::open(&folder.path().join("registry.redb"), 7, FailPoints::default()).unwrap();
    assert_eq!(counts(&registry.table(&path()).unwrap()), (8, 3, vec![Some(2); 3]));
}

#[tokio::test]
async fn a_crash_at_any_step_leaves_all_of_a_rescale_or_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let registry = old_registry(folder.path()).await;
    let (file, steps) = (folder.path().join("registry.redb"), Arc::new(Mutex::new(Vec::new())));
    let (from, left) = (file.clone(), Arc::clone(&steps));
    registry.on(move |_, moment| {
        // What the disk has at this moment is what a crash leaves.
        let mut left = left.lock().unwrap();
        let copy = from.with_file_name(format!("crash-{}", left.len()));
        std::fs::copy(&from, copy).unwrap();
        left.push(matches!(moment, Moment::Shown));
    });
    registry.to(8).await.unwrap();
    let steps = steps.lock().unwrap().clone();
    assert_eq!(steps.len(), 1 + 8 + 1 + 1, "beginning, a check and a put for the table and three partitions, commit, shown");
    for (step, done) in steps.into_iter().enumerate() {
        let left = Registry::open(&folder.path().join(format!("crash-{step}")), 7, FailPoints::default()).unwrap();
        let expected = if done { (8, 1, vec![Some(2); 3]) } else { (2, 0, vec![None; 3]) };
        assert_eq!(counts(&left.table(&path()).unwrap()), expected, "step {step}");
    }
}

#[tokio::test]
async fn a_task_that_dies_within_the_transaction_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let registry = old_registry(folder.path()).await;
    for step in 1..=8 {
        let mut passed = 0;
        registry.on(move |_, moment| {
            assert!(!matches!(moment, Moment::Step) || passed < step, "dies at step {step}");
            passed += 1;
        });
        assert_eq!(registry.to(8).await.unwrap_err().kind(), Kind::Internal);
        registry.store.hook.clear_poison();
        *registry.store.hook.lock().unwrap() = None;
        assert_eq!(counts(&registry.table(&path()).unwrap()), (2, 0, vec![None; 3]));
    }
    assert_eq!(counts(&registry.to(8).await.unwrap()), (8, 1, vec![Some(2); 3]), "and the next one goes through");
}

#[tokio::test]
async fn records_that_were_changed_meanwhile_are_read_again_up_to_three_times() {
    for (rivals, passes) in [(1, true), (2, true), (3, false)] {
        let folder = tempfile::tempdir().unwrap();
        let registry = old_registry(folder.path()).await;
        let mut left = rivals;
        registry.on(move |store, moment| {
            if matches!(moment, Moment::Begin) && left > 0 {
                commented(store, &format!("rival {left}"));
                left -= 1;
            }
        });
        let outcome = registry.to(8).await;
        if passes {
            let table = outcome.unwrap();
            assert_eq!(counts(&table), (8, 1, vec![Some(2); 3]));
            assert_eq!(table.info.comment.as_deref(), Some("rival 1"), "what the rival wrote stays");
        } else {
            assert_eq!(outcome.unwrap_err().kind(), Kind::Stale);
            drop(registry);
            let registry = Registry::open(&folder.path().join("registry.redb"), 7, FailPoints::default()).unwrap();
            assert_eq!(counts(&registry.table(&path()).unwrap()), (2, 0, vec![None; 3]));
        }
    }
}

#[tokio::test]
async fn what_was_read_again_is_judged_again() {
    let rescaled = r#"{"version":1,"table_id":0,"partition_key":["day"],"bucket_key":["id"],"bucket_count":4,"bucket_count_epoch":5,"properties":{},"custom_properties":{}}"#;
    let rival = |changes: Vec<(String, String)>| {
        let mut once = Some(changes);
        move |store: &Store, moment: &Moment<'_>| {
            if matches!(moment, Moment::Begin) {
                once.take().into_iter().flatten().for_each(|(key, json)| store.put(&key, &json));
            }
        }
    };
    let filled = |id: i32| {
        let json = format!(r#"{{"version":1,"table_id":0,"partition_id":{id},"bucket_count":2}}"#);
        (partition_key(&path(), &(id + 1).to_string()), json)
    };
    // A partition got its count: it is the one that it keeps.
    let folder = tempfile::tempdir().unwrap();
    let registry = old_registry(folder.path()).await;
    registry.on(rival(vec![(filled(1).0, filled(1).1.replace(":2}", ":3}"))]));
    assert_eq!(counts(&registry.to(8).await.unwrap()), (8, 1, vec![Some(2), Some(3), Some(2)]));
    // Somebody else rescaled, to what is asked for: nothing is left to do.
    let folder = tempfile::tempdir().unwrap();
    let registry = old_registry(folder.path()).await;
    let all = vec![(table_key(&path()), rescaled.to_owned()), filled(0), filled(1), filled(2)];
    registry.on(rival(all.clone()));
    assert_eq!(counts(&registry.to(4).await.unwrap()), (4, 5, vec![Some(2); 3]));
    assert_eq!(counts(&registry.to(8).await.unwrap()), (8, 6, vec![Some(2); 3]));
    // Somebody else rescaled and left a partition without count: that is refused.
    let folder = tempfile::tempdir().unwrap();
    let registry = old_registry(folder.path()).await;
    registry.on(rival(all[..3].to_vec()));
    assert_eq!(registry.to(8).await.unwrap_err().code(), Some(56));
    // Another table of that name: not ours to change.
    let folder = tempfile::tempdir().unwrap();
    let registry = old_registry(folder.path()).await;
    registry.on(rival(vec![(table_key(&path()), OLD_TABLE.replace(r#""table_id":0"#, r#""table_id":9"#))]));
    assert_eq!(registry.to(8).await.unwrap_err().code(), Some(7));
}

#[tokio::test]
async fn a_coordinator_that_was_followed_by_another_changes_nothing_and_does_not_try_again() {
    let folder = tempfile::tempdir().unwrap();
    let registry = old_registry(folder.path()).await;
    let tries = Arc::new(AtomicI64::new(0));
    let seen = Arc::clone(&tries);
    registry.on(move |store, moment| {
        if matches!(moment, Moment::Begin) {
            store.put("/coordinators/epoch", "99");
            seen.fetch_add(1, Ordering::Relaxed);
        }
    });
    let error = registry.to(8).await.unwrap_err();
    assert_eq!((error.code(), tries.load(Ordering::Relaxed)), (Some(65), 1), "{}", error.chain());
    let lock = registry.lock_table(&path()).await;
    let creation = registry.create_partition(&path(), spec("4"), &lock).await.unwrap_err();
    assert_eq!(creation.code(), Some(65));
    drop(registry);
    let registry = Registry::open(&folder.path().join("registry.redb"), 7, FailPoints::default()).unwrap();
    assert_eq!(registry.epoch(), CoordinatorEpoch(100));
    assert_eq!(counts(&registry.table(&path()).unwrap()), (2, 0, vec![None; 3]));
}
