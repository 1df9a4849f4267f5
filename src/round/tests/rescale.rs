//! What an ALTER of `bucket.num` beside a round does to it, and what a server that knows better does (F4.2, F4.6).

use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;

use super::*;
use crate::catalog;
use crate::model::{BucketLayout, LayoutOrigin};
use crate::source::{FetchRequest, FetchedBucket, StateRequest, StateScan};

/// Does something once, when a round makes its first call of `act`.
fn once_at(act: &'static str, mut todo: impl FnMut() + Send + 'static) -> Faults {
    let mut done = false;
    Faults::scripted(move |called, _| {
        if called == act && !std::mem::replace(&mut done, true) {
            todo();
        }
        None
    })
}

fn layouts(summary: &RoundSummary) -> Vec<(&str, i32)> {
    summary.partitions.iter().map(|partition| (partition.partition.as_str(), partition.layout.count)).collect()
}

/// Rows of one partition as a client appends them that knows its count.
async fn fill(world: &World, partition: &Partition, count: i32) {
    for bucket in 0..count {
        world.append(partition, bucket, 5).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_alter_during_a_round_changes_nothing_in_it_and_the_next_sees_the_new_partitions() {
    // Before the partitions are listed, after it, and while rows are on their way.
    for (act, seen_at_once) in [("partitions", true), ("end_offsets", false), ("fetch", false)] {
        let mut world = World::new(2, true, MEMORY).await;
        let a = world.cluster.create_partition(&world.path, &["a"]).unwrap();
        fill(&world, &a, 2).await;
        let (cluster, path) = (world.cluster.clone(), world.path.clone());
        world.through(once_at(act, move || {
            cluster.alter_bucket_count(&path, 4).unwrap();
            cluster.create_partition(&path, &["b"]).unwrap();
        }));
        // As a coordinator does, the lake comes first: here while the round has it open.
        let warehouse = Warehouse::new(world.lake().await.store().clone(), world.context.runtime.clone());
        let table = world.table().await;
        let (first, ()) = tokio::join!(world.round(), async { catalog::set_bucket_count(&warehouse, &table, 4).await.unwrap() });
        let first = first.unwrap();
        assert_eq!((first.rows, layouts(&first)), (10, vec![("a", 2)]), "{act}");
        assert_eq!(first.attempts, 1, "{act}: a schema of the lake that others bring is no reason to begin again");
        let b = world.context.scan.partitions(&world.table().await).await.unwrap().pop().unwrap();
        assert_eq!((b.name().as_str(), b.bucket_count), ("b", Some(4)));
        assert!(seen_at_once || !first.partitions.iter().any(|partition| partition.partition == "b"));
        fill(&world, &b, 4).await;
        fill(&world, &a, 2).await;
        let second = world.round().await.unwrap();
        assert_eq!((second.rows, layouts(&second)), (30, vec![("a", 2), ("b", 4)]), "{act}");
        assert_eq!(world.ids().await, world.written());
        let lake = world.lake().await;
        let newest = lake.snapshot(2).await.unwrap().unwrap();
        let live = lake.live_partitions(&newest, None).await.unwrap();
        let totals: Vec<_> = live.values().map(|live| live.totals.clone()).collect();
        assert_eq!(totals, [BTreeSet::from([2]), BTreeSet::from([4])]);
    }
}

/// Servers and metadata disagree, so often.
struct Misled {
    scan: Arc<dyn TableScan>,
    /// Partition lists that tell one bucket too many; the servers turn what is asked by it away with 74.
    wrong_lists: AtomicU32,
    /// Partition lists of a server that knows of no counts.
    old_lists: AtomicU32,
    /// Fetches that are turned away with 74.
    wrong_fetches: AtomicU32,
    lists: AtomicU32,
    forgotten: AtomicU32,
}

fn one_of(left: &AtomicU32) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

impl Misled {
    fn new(scan: &Arc<dyn TableScan>, [wrong_lists, old_lists, wrong_fetches]: [u32; 3]) -> Arc<Self> {
        Arc::new(Self {
            scan: Arc::clone(scan),
            wrong_lists: wrong_lists.into(),
            old_lists: old_lists.into(),
            wrong_fetches: wrong_fetches.into(),
            lists: 0.into(),
            forgotten: 0.into(),
        })
    }
}

#[async_trait]
impl TableScan for Misled {
    async fn table_info(&self, path: &TablePath) -> Result<TableInfo> {
        self.scan.table_info(path).await
    }
    async fn schema(&self, path: &TablePath, id: SchemaId) -> Result<Arc<Schema>> {
        self.scan.schema(path, id).await
    }
    async fn partitions(&self, table: &TableInfo) -> Result<Vec<Partition>> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        let mut partitions = self.scan.partitions(table).await?;
        if one_of(&self.wrong_lists) {
            partitions.iter_mut().for_each(|partition| partition.bucket_count = partition.bucket_count.map(|count| count + 1));
        }
        if one_of(&self.old_lists) {
            partitions.iter_mut().for_each(|partition| partition.bucket_count = None);
        }
        Ok(partitions)
    }
    async fn end_offsets(&self, table: &TableInfo, of: Option<&Partition>, layout: BucketLayout) -> Result<Option<Vec<i64>>> {
        self.scan.end_offsets(table, of, layout).await
    }
    async fn start_offsets(&self, table: &TableInfo, of: Option<&Partition>, layout: BucketLayout) -> Result<Option<Vec<i64>>> {
        self.scan.start_offsets(table, of, layout).await
    }
    async fn lanes(&self, table: &TableInfo, buckets: &[TableBucket]) -> Result<Vec<Vec<TableBucket>>> {
        self.scan.lanes(table, buckets).await
    }
    async fn fetch(&self, request: FetchRequest) -> Result<Vec<FetchedBucket>> {
        if one_of(&self.wrong_fetches) {
            return Err(Error::stale("a new leader has another count").with_code(74));
        }
        self.scan.fetch(request).await
    }
    async fn serves_states(&self) -> Result<bool> {
        self.scan.serves_states().await
    }
    async fn open_state(&self, request: StateRequest) -> Result<Box<dyn StateScan>> {
        self.scan.open_state(request).await
    }
    fn forget(&self, path: &TablePath) {
        self.forgotten.fetch_add(1, Ordering::Relaxed);
        self.scan.forget(path);
    }
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_is_routed_wrongly_has_the_round_planned_afresh_at_once_and_a_bounded_number_of_times() {
    let max = Options::default().replans_max;
    for (wrong_lists, wrong_fetches, plans) in
        [(1, 0, Some(2)), (0, 1, Some(2)), (2, 1, Some(4)), (u32::MAX, 0, None), (0, u32::MAX, None)]
    {
        let mut world = World::new(2, true, MEMORY).await;
        let a = world.cluster.create_partition(&world.path, &["a"]).unwrap();
        fill(&world, &a, 2).await;
        let misled = Misled::new(&world.context.scan, [wrong_lists, 0, wrong_fetches]);
        world.context.scan = Arc::<Misled>::clone(&misled);
        let began = world.context.runtime.clock.moment();
        let ended = world.round().await;
        let (lists, forgotten) = (misled.lists.load(Ordering::Relaxed), misled.forgotten.load(Ordering::Relaxed));
        match plans {
            Some(plans) => {
                assert_eq!((ended.unwrap().rows, lists, forgotten), (10, plans, plans - 1));
                // Each pause doubles, and may be drawn out by as much again.
                let pauses = world.context.options.replan_pause * 2_u32.pow(plans);
                assert!(began.elapsed() <= pauses, "at once: {:?}", began.elapsed());
                assert_eq!(world.ids().await, world.written(), "each row once");
            }
            None => {
                let error = ended.unwrap_err();
                assert_eq!((error.kind(), error.code(), lists), (Kind::Stale, Some(74), max + 1), "{}", error.chain());
                assert_eq!(forgotten, max, "metadata goes each time");
            }
        }
        assert_eq!(files(&world).await.len(), if plans.is_some() { 2 } else { 0 }, "what stale plans wrote is gone");
        assert_eq!(world.context.runtime.budget.used(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_partition_without_count_is_never_guessed_once_the_table_was_rescaled() {
    let mut world = World::new(2, true, MEMORY).await;
    let a = world.cluster.create_partition(&world.path, &["a"]).unwrap();
    fill(&world, &a, 2).await;
    let scan = Arc::clone(&world.context.scan);
    world.context.scan = Misled::new(&scan, [0, u32::MAX, 0]);
    let first = world.round().await.unwrap();
    assert_eq!(first.partitions[0].layout, BucketLayout { count: 2, origin: LayoutOrigin::TableAtEpochZero });
    world.cluster.alter_bucket_count(&world.path, 4).unwrap();
    fill(&world, &a, 2).await;
    let error = world.round().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Stale);
    assert!(error.chain().contains("partition `a`") && error.chain().contains("epoch `1`"), "{}", error.chain());
    // A new server answers when asked again.
    world.context.scan = Misled::new(&scan, [0, 1, 0]);
    assert_eq!(layouts(&world.round().await.unwrap()), [("a", 2)]);
    assert_eq!(world.ids().await, world.written());
}
