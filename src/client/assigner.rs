//! Which partition and bucket a row goes to: one assigner per partition, made when a row first names it.
//!
//! Owns finding and making partitions and their bucket layouts. Called by the writer alone.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, TryStreamExt};

use super::Admin;
use super::rows::Spec;
use crate::error::{Error, Result};
use crate::fluss::cluster::Cluster;
use crate::fluss::code::Code;
use crate::model::{BucketId, BucketLayout, Partition, PartitionId, TableBucket, TableId, TableInfo};

/// Partitions that are made at once.
const CREATIONS_MAX: usize = 8;

/// Where the rows of one partition go; of the table, when it has no partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Assigner {
    pub(super) partition: Option<PartitionId>,
    pub(super) layout: BucketLayout,
    /// Next bucket of rows without key.
    turn: i32,
    /// Whether this writer made the partition: nothing was in it before.
    pub(super) is_new: bool,
}

impl Assigner {
    /// The bucket for the next batch of rows without key.
    pub(super) fn next_bucket(&mut self) -> i32 {
        let bucket = self.turn;
        self.turn = (self.turn + 1) % self.layout.count;
        bucket
    }

    pub(super) fn place(&self, table: TableId, bucket: i32) -> TableBucket {
        TableBucket { table, partition: self.partition, bucket: BucketId(bucket) }
    }
}

/// The assigners of one table.
#[derive(Debug)]
pub(super) struct Assigners {
    cluster: Cluster,
    known: BTreeMap<Spec, Assigner>,
    create: bool,
    /// Partitions that were made because rows named them (or were being made by somebody else at that moment).
    pub(super) made: u64,
}

/// Why rows of a partition can't be placed, and which partition, where it is one's fault.
pub(super) type Refusal = (Option<Spec>, Error);

impl Assigners {
    pub(super) fn new(cluster: &Cluster, create: bool) -> Self {
        Self { cluster: cluster.clone(), known: BTreeMap::new(), create, made: 0 }
    }

    pub(super) fn get_mut(&mut self, spec: &Spec) -> Result<&mut Assigner> {
        self.known.get_mut(spec).ok_or_else(|| Error::internal(format!("no assigner for partition `{}`", name_of(spec))))
    }

    /// Makes sure that each of `specs` has its assigner, making partitions that are not there.
    ///
    /// # Errors
    /// `Invalid` when a partition is not there and may not be made, or when the cluster refuses it; `Unavailable`.
    pub(super) async fn meet<'a>(
        &mut self,
        table: &TableInfo,
        specs: impl Iterator<Item = &'a Spec> + Send,
    ) -> Result<(), Refusal> {
        let wanted: BTreeSet<&Spec> = specs.collect();
        let mut missing = self.unknown(&wanted);
        if missing.is_empty() {
            return Ok(());
        }
        self.look(table, &missing, false).await.map_err(|error| (None, error))?;
        // Others of them may turn out to be dropped.
        missing = self.unknown(&wanted);
        if missing.is_empty() {
            return Ok(());
        }
        if !self.create {
            let spec = missing.first().map(|spec| (*spec).clone());
            let name = spec.as_ref().map(name_of).unwrap_or_default();
            let text = format!("table `{}` has no partition `{name}`, and none may be made", table.path);
            return Err((spec, Code::PARTITION_NOT_EXISTS.error(text)));
        }
        let mut retry = self.cluster.retry(format!("find new partitions of table `{}`", table.path));
        loop {
            // Those that are there already are fine.
            let makings = missing.iter().map(|spec| Ok(self.create(table, spec)));
            stream::iter(makings).try_for_each_concurrent(CREATIONS_MAX, |making| making).await?;
            self.look(table, &missing, true).await.map_err(|error| (None, error))?;
            self.made += missing.iter().filter(|spec| self.known.contains_key(**spec)).count() as u64;
            missing = self.unknown(&wanted);
            let Some(unseen) = missing.first() else { return Ok(()) };
            // The listing came from a server that does not know it yet, or somebody dropped it at once.
            let unseen = Code::LEADER_NOT_AVAILABLE.error(format!("partition `{}` is made, but not listed", name_of(unseen)));
            retry.after(unseen).await.map_err(|error| (None, error))?;
        }
    }

    fn unknown<'a>(&self, wanted: &BTreeSet<&'a Spec>) -> BTreeSet<&'a Spec> {
        wanted.iter().copied().filter(|spec| !self.known.contains_key(*spec)).collect()
    }

    async fn create(&self, table: &TableInfo, spec: &Spec) -> Result<(), Refusal> {
        let admin = Admin::new(self.cluster.clone());
        let mut retry = self.cluster.retry(format!("make partition `{}` of table `{}`", name_of(spec), table.path));
        loop {
            // One that is there already is fine, so this may be sent again after a lost answer.
            match admin.create_partition(&table.path, spec, true).await {
                Ok(()) => return Ok(()),
                Err(error) => retry.after(error).await.map_err(|error| (Some(spec.clone()), error))?,
            };
        }
    }

    /// Takes counts and ids as they are now; says whether anything known has changed.
    ///
    /// # Errors
    /// `Stale` when the table was made anew; `Unavailable`.
    pub(super) async fn refresh(&mut self, table: &TableInfo) -> Result<bool> {
        let before = self.known.clone();
        self.cluster.forget(&table.path);
        let specs: BTreeSet<&Spec> = before.keys().collect();
        self.look(table, &specs, false).await?;
        let same = |spec: &Spec, old: &Assigner| {
            self.known.get(spec).is_some_and(|new| new.partition == old.partition && new.layout == old.layout)
        };
        Ok(!before.iter().all(|(spec, old)| same(spec, old)))
    }

    /// Lists what is there; `are_new` says that the wanted ones were just made. Table before partitions, so that an ALTER between the two only makes the list newer
    /// (architecture.md 4).
    async fn look(&mut self, table: &TableInfo, wanted: &BTreeSet<&Spec>, are_new: bool) -> Result<()> {
        let now = self.cluster.table_info(&table.path).await?;
        if now.id != table.id {
            let text = format!("table `{}` was dropped and made again while rows were written", table.path);
            return Err(Error::stale(text).with_code(Code::TABLE_NOT_EXIST.0));
        }
        if !table.is_partitioned() {
            self.take(Vec::new(), None, BucketLayout::of(&now, None)?, false);
            return Ok(());
        }
        let mut listed = BTreeSet::new();
        for partition in self.cluster.partitions(&table.path).await? {
            let Some(spec) = spec_of(table, &partition) else { continue };
            match BucketLayout::of(&now, Some(&partition)) {
                Ok(layout) => self.take(spec.clone(), Some(partition.id), layout, are_new && wanted.contains(&spec)),
                Err(error) if wanted.contains(&spec) => return Err(error),
                Err(_) => {}
            }
            listed.insert(spec);
        }
        self.known.retain(|spec, _| listed.contains(spec));
        Ok(())
    }

    fn take(&mut self, spec: Spec, partition: Option<PartitionId>, layout: BucketLayout, is_new: bool) {
        let fresh = Assigner { partition, layout, turn: 0, is_new };
        let known = self.known.entry(spec).or_insert(fresh);
        if known.partition != partition || known.layout != layout {
            *known = fresh;
        }
    }
}

/// A partition's values in the order of the table's keys: servers list them in their own.
fn spec_of(table: &TableInfo, partition: &Partition) -> Option<Spec> {
    let value = |key: &String| partition.spec.iter().find(|(name, _)| name == key).cloned();
    table.partition_keys.iter().map(value).collect()
}

/// A partition's name, as people see it.
pub(super) fn name_of(spec: &Spec) -> String {
    let values: Vec<&str> = spec.iter().map(|(_, value)| value.as_str()).collect();
    values.join("$")
}
