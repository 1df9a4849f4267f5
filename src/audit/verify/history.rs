//! Rows against offsets: as many rows have come into each bucket as its offset went forward (log tables).
//!
//! It must hold from a snapshot on whose offsets are known, if what others added or removed since is told apart. So it is counted from the
//! oldest Fluss-made snapshot that is there, or, where the history is whole, from the very first. A commit of a tiering job without
//! lease doubles rows, and is then named. A partition that was dropped in Fluss is known by its id alone: what went on in those
//! is compared in sum.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt, TryStreamExt};

use super::live::Live;
use super::{Check, Fault, Findings, Pass};
use crate::audit::tail::{self, Tail};
use crate::commit::Statement;
use crate::error::{Error, Kind, Result};
use crate::model::{BucketId, BucketKey, LakeOffsets, PartitionId, RoundId};
use crate::paimon::{BinaryRow, EntryKind, ManifestFile, Snapshot};

/// Snapshots that are read at once.
const READS_MAX: usize = 16;
/// Snapshots that are gone through at most; the history begins later then.
const SNAPSHOTS_MAX: usize = 20_000;
/// Java-made snapshots whose offsets files are looked for: Fluss keeps that of the newest only.
const FILES_MAX: usize = 16;
/// Snapshots that a message names.
const NAMED_MAX: usize = 5;

/// Rows per bucket; of a table without buckets per partition.
type Rows = BTreeMap<(BinaryRow, i32), i64>;

/// A snapshot, as far as it is counted.
#[derive(Debug, Clone)]
struct Step {
    id: i64,
    kind: String,
    user: String,
    delta_list: String,
    total: Option<i64>,
    delta: Option<i64>,
    /// Fluss-made, of this table: by one of our rounds, or by Java.
    fluss: Option<Option<RoundId>>,
    /// Fluss-made, of another table.
    other: bool,
}

/// Where counting begins.
struct Start {
    /// The snapshot below the first that is counted; 0 = from the beginning.
    id: i64,
    rows: Rows,
    offsets: LakeOffsets,
    /// Nothing from Fluss lies below it.
    whole: bool,
}

pub(super) async fn check(pass: &Pass<'_>, live: &Live, found: &mut Findings) -> Result<()> {
    let (Some(newest), Some(tiered)) = (&pass.view.newest, &pass.view.tiered) else { return Ok(()) };
    match count(pass, live, newest, tiered.snapshot.0, found).await {
        Err(error) if error.kind() == Kind::Data => {
            // What an expired snapshot names goes away under us.
            found.note(format!("rows were not counted against offsets: {}", error.chain()));
            Ok(())
        }
        ended => ended,
    }
}

async fn count(pass: &Pass<'_>, live: &Live, newest: &Snapshot, tiered: i64, found: &mut Findings) -> Result<()> {
    let steps = steps(pass, newest, found).await?;
    standing(pass, &steps, found);
    if pass.context.table.has_primary_key() {
        return Ok(());
    }
    let Some(end) = pass.view.tiered.as_ref().and_then(|tiered| tiered.offsets.clone()) else { return Ok(()) };
    let Some(start) = start(pass, &steps, tiered).await? else {
        found.note("rows were not counted against offsets: no earlier snapshot with readable offsets is there");
        return Ok(());
    };
    if !start.whole {
        found.note(format!(
            "rows are counted against offsets from snapshot {} on: what came before has expired or can't be read",
            start.id
        ));
    }
    pass.progress.enter("counting rows", steps.len());
    let mut foreign = Rows::new();
    for step in steps.iter().filter(|step| step.id > start.id && step.fluss.is_none() && step.moves()) {
        add(&mut foreign, delta_of(pass, step).await?);
        pass.progress.step();
    }
    let exact = begins_at_zero(pass).await?;
    let mut now = Rows::new();
    for (row, partition) in &live.partitions {
        for (bucket, of) in &partition.buckets {
            *now.entry((row.clone(), *bucket)).or_default() += of.rows;
        }
    }
    let sums = Sums { now, before: start.rows.clone(), foreign, advance: Advance::of(pass, &start.offsets, &end) };
    let odd = sums.odd(|bucket| start.offsets.get(bucket.1).is_some() || exact.contains(&bucket.1));
    if odd.is_empty() {
        return Ok(());
    }
    let culprits = culprits(pass, &steps, &start).await?;
    for odd in odd {
        let logged = match &odd.place {
            Some(place) if odd.rows < odd.advance => {
                let sources = sums.advance.sources.get(place).map(Vec::as_slice).unwrap_or_default();
                match log_rows(pass, sources, &start.offsets, &end).await? {
                    Some(rows) if rows <= odd.rows => continue,
                    Some(_) => true,
                    None => false,
                }
            }
            _ => true,
        };
        let fault = odd.fault(pass, &start, &culprits);
        if logged {
            found.fault(fault);
        } else {
            found.note(format!("{}; its log has expired, so whether these were empty batches can't be told", fault.message));
        }
    }
    Ok(())
}

/// Rows that the logs have in the counted range: an empty batch takes an offset too. `None` when some of it has expired.
async fn log_rows(pass: &Pass<'_>, sources: &[BucketKey], from: &LakeOffsets, to: &LakeOffsets) -> Result<Option<i64>> {
    let ranges = sources.iter().map(|key| (*key, from.get(*key).unwrap_or(0), to.get(*key).unwrap_or(0)));
    let Some(splits) = tail::splits(pass.context, &pass.partitions, ranges).await? else { return Ok(None) };
    let mut tail = Tail::open(pass.context, splits).await?;
    let mut rows = 0_i64;
    while let Some((_, chunk)) = tail.next().await? {
        let more: usize = chunk.batches.iter().map(|batch| batch.rows.num_rows()).sum();
        rows = rows.saturating_add(i64::try_from(more).unwrap_or(i64::MAX));
    }
    Ok(Some(rows))
}

impl Step {
    fn of(snapshot: &Snapshot, pass: &Pass<'_>) -> Self {
        let statement = Statement::of(snapshot);
        let other = statement.as_ref().is_some_and(|made| made.table.is_some_and(|table| table != pass.context.table.id));
        Self {
            id: snapshot.id,
            kind: snapshot.commit_kind.clone(),
            user: snapshot.commit_user.clone(),
            delta_list: snapshot.delta_manifest_list.clone(),
            total: snapshot.total_record_count,
            delta: snapshot.delta_record_count,
            fluss: statement.filter(|_| !other).map(|made| made.round),
            other,
        }
    }

    /// Whether rows come or go, or move between buckets.
    fn moves(&self) -> bool {
        self.delta != Some(0) || !matches!(self.kind.as_str(), "COMPACT" | "ANALYZE")
    }

    fn name(&self) -> String {
        let by = match &self.fluss {
            Some(Some(_)) => "by Lakeward".to_owned(),
            Some(None) => "by a Java tiering job".to_owned(),
            None => format!("by `{}`", self.user),
        };
        format!("snapshot {} ({} {by})", self.id, self.kind)
    }
}

/// The snapshots that are there, without a gap below the newest, oldest first. One that can't be read is a fault, and a gap.
async fn steps(pass: &Pass<'_>, newest: &Snapshot, found: &mut Findings) -> Result<Vec<Step>> {
    let lake = &pass.context.lake;
    let mut ids: Vec<i64> = lake.snapshot_ids().await?.into_iter().filter(|id| *id < newest.id).collect();
    let mut due = newest.id;
    let keep = ids.iter().rev().take(SNAPSHOTS_MAX).take_while(|id| {
        due -= 1;
        **id == due
    });
    let keep = keep.count();
    ids.drain(..ids.len().saturating_sub(keep));
    pass.progress.enter("reading snapshots", ids.len());
    let reads = ids.into_iter().map(|id| async move {
        let snapshot = lake.snapshot(id).await;
        pass.progress.step();
        match snapshot {
            Ok(snapshot) => Ok((snapshot.map(|snapshot| Step::of(&snapshot, pass)), None)),
            Err(error) if error.kind() == Kind::Data => {
                let fault = Fault::new(Check::History, error.chain()).snapshot(id).hint(error.hint().unwrap_or_default());
                Ok((None, Some(fault)))
            }
            Err(error) => Err(error),
        }
    });
    let read: Vec<(Option<Step>, Option<Fault>)> = stream::iter(reads).buffered(READS_MAX).try_collect().await?;
    let (read, faults): (Vec<_>, Vec<_>) = read.into_iter().unzip();
    faults.into_iter().flatten().for_each(|fault| found.fault(fault));
    // Expired meanwhile: the oldest go first.
    let gone = read.iter().rposition(Option::is_none).map_or(0, |at| at + 1);
    let mut steps: Vec<Step> = read.into_iter().skip(gone).flatten().collect();
    steps.push(Step::of(newest, pass));
    Ok(steps)
}

/// Each snapshot stands on the one before it.
fn standing(pass: &Pass<'_>, steps: &[Step], found: &mut Findings) {
    for (below, above) in steps.iter().zip(steps.iter().skip(1)) {
        let (Some(before), Some(total), Some(delta)) = (below.total, above.total, above.delta) else { continue };
        if total.saturating_sub(delta) != before {
            let message = format!(
                "{} says {total} rows of which {delta} are its own, but snapshot {} below it has {before}: it was built on another one, \
                 which has been overwritten",
                above.name(),
                below.id
            );
            let hint = format!(
                "somebody commits without atomic create (docs/compatibility.md); rows of the snapshot that was lost may be missing. {}",
                pass.repair_hint("reset-offsets")
            );
            found.fault(Fault::new(Check::History, message).snapshot(above.id).hint(hint));
        }
    }
}

async fn start(pass: &Pass<'_>, steps: &[Step], tiered: i64) -> Result<Option<Start>> {
    // What an earlier table of this name has left is before our time.
    let first = steps.iter().rposition(|step| step.other).map_or(0, |at| at + 1);
    let ours = steps.get(first..).unwrap_or_default();
    let whole = first > 0 || steps.first().is_some_and(|step| step.id == 1);
    if whole && let Some(begin) = ours.iter().position(|step| step.fluss.is_some()) {
        let below = begin.checked_sub(1).and_then(|at| ours.get(at)).or_else(|| first.checked_sub(1).and_then(|at| steps.get(at)));
        return Ok(Some(match below {
            Some(below) => {
                Start { id: below.id, rows: rows_at(pass, below.id).await?, offsets: LakeOffsets::default(), whole: true }
            }
            None => Start { id: 0, rows: Rows::new(), offsets: LakeOffsets::default(), whole: true },
        }));
    }
    let made = || ours.iter().filter(|step| step.fluss.is_some() && step.id < tiered);
    let own = made().filter(|step| step.fluss.is_some_and(|round| round.is_some()));
    let java = made().filter(|step| step.fluss == Some(None)).rev().take(FILES_MAX);
    for step in own.take(1).chain(java) {
        if let Some(offsets) = offsets_of(pass, step.id).await? {
            return Ok(Some(Start { id: step.id, rows: rows_at(pass, step.id).await?, offsets, whole: false }));
        }
    }
    Ok(None)
}

async fn offsets_of(pass: &Pass<'_>, id: i64) -> Result<Option<LakeOffsets>> {
    let Some(snapshot) = pass.context.lake.snapshot(id).await? else { return Ok(None) };
    match Statement::of(&snapshot) {
        Some(statement) => statement.offsets(pass.context.ledger.as_ref()).await,
        None => Ok(None),
    }
}

async fn rows_at(pass: &Pass<'_>, id: i64) -> Result<Rows> {
    let lake = &pass.context.lake;
    let gone = || Error::data(format!("snapshot `{id}` has expired meanwhile"));
    let snapshot = lake.snapshot(id).await?.ok_or_else(gone)?;
    rows_of(pass, lake.manifests(&snapshot).await?).await
}

async fn delta_of(pass: &Pass<'_>, step: &Step) -> Result<Rows> {
    rows_of(pass, pass.context.lake.read_manifest_list(&step.delta_list).await?).await
}

/// Rows added less rows removed: no file has to be told from another for that.
async fn rows_of(pass: &Pass<'_>, manifests: Vec<ManifestFile>) -> Result<Rows> {
    let mut rows = Rows::new();
    let names = manifests.into_iter().map(|manifest| manifest.file_name).collect();
    pass.context
        .lake
        .for_each_manifest(names, |entries| {
            for entry in entries {
                let sum = rows.entry((entry.partition, entry.bucket)).or_default();
                *sum = match entry.kind {
                    EntryKind::Add => sum.saturating_add(entry.file.row_count),
                    EntryKind::Delete => sum.saturating_sub(entry.file.row_count),
                };
            }
            Ok(())
        })
        .await?;
    Ok(rows)
}

fn add(to: &mut Rows, more: Rows) {
    for (key, rows) in more {
        let sum = to.entry(key).or_default();
        *sum = sum.saturating_add(rows);
    }
}

/// Buckets whose logs still begin at 0: none of their rows can have expired before they were tiered.
async fn begins_at_zero(pass: &Pass<'_>) -> Result<BTreeSet<BucketKey>> {
    let context = pass.context;
    let mut whole = BTreeSet::new();
    let lookups = pass.partitions.iter().map(|known| async move {
        let partition = known.partition.as_deref();
        let gone = |error: Error| if error.code() == Some(36) { Ok(None) } else { Err(error) };
        let starts = context.scan.start_offsets(&context.table, partition, known.layout).await.or_else(gone)?;
        Ok::<_, Error>((partition.map(|partition| partition.id), starts))
    });
    let found: Vec<_> = stream::iter(lookups).buffered(READS_MAX).try_collect().await?;
    for (partition, starts) in found {
        for (bucket, start) in (0..).map(BucketId).zip(starts.unwrap_or_default()) {
            if start == 0 {
                whole.insert(BucketKey { partition, bucket });
            }
        }
    }
    Ok(whole)
}

/// How far offsets went forward: of buckets whose place in the lake is known, and of those of dropped partitions in sum.
#[derive(Debug, Default, PartialEq, Eq)]
struct Advance {
    known: BTreeMap<(BinaryRow, i32), i64>,
    sources: BTreeMap<(BinaryRow, i32), Vec<BucketKey>>,
    dropped: i64,
}

impl Advance {
    fn of(pass: &Pass<'_>, from: &LakeOffsets, to: &LakeOffsets) -> Self {
        let aware = !pass.context.table.bucket_keys.is_empty();
        let rows: BTreeMap<Option<PartitionId>, &BinaryRow> =
            pass.partitions.iter().map(|known| (known.partition.as_ref().map(|partition| partition.id), &known.row)).collect();
        let mut advance = Self::default();
        for (key, end) in &to.0 {
            let forward = end.saturating_sub(from.get(*key).unwrap_or(0));
            match rows.get(&key.partition) {
                Some(row) => {
                    let place = ((*row).clone(), if aware { key.bucket.0 } else { 0 });
                    let sum = advance.known.entry(place.clone()).or_default();
                    *sum = sum.saturating_add(forward);
                    advance.sources.entry(place).or_default().push(*key);
                }
                None => advance.dropped = advance.dropped.saturating_add(forward),
            }
        }
        advance
    }
}

/// What is compared.
struct Sums {
    now: Rows,
    before: Rows,
    foreign: Rows,
    advance: Advance,
}

/// A bucket of the lake whose rows are not what its offsets say.
#[derive(Debug, PartialEq, Eq)]
struct Odd {
    place: Option<(BinaryRow, i32)>,
    /// Rows that came in from Fluss.
    rows: i64,
    advance: i64,
}

impl Sums {
    /// `is_exact`: whether fewer rows than offsets are a fault too; else the log may have expired before the bucket was first tiered.
    fn odd(&self, is_exact: impl Fn((&BinaryRow, BucketKey)) -> bool) -> Vec<Odd> {
        let places: BTreeSet<&(BinaryRow, i32)> =
            self.now.keys().chain(self.before.keys()).chain(self.foreign.keys()).chain(self.advance.known.keys()).collect();
        let of = |rows: &Rows, place: &(BinaryRow, i32)| rows.get(place).copied().unwrap_or(0);
        let mut odd = Vec::new();
        for place in places {
            let rows = of(&self.now, place).saturating_sub(of(&self.before, place)).saturating_sub(of(&self.foreign, place));
            let advance = of(&self.advance.known, place);
            let sources = self.advance.sources.get(place);
            let exact = sources.is_none_or(|sources| sources.iter().all(|source| is_exact((&place.0, *source))));
            if rows > advance || (exact && rows < advance) {
                odd.push(Odd { place: Some(place.clone()), rows, advance });
            }
        }
        // Rows of partitions that Fluss no longer has, perhaps under the name of one that it has again.
        let more: i64 = odd.iter().map(|odd| odd.rows.saturating_sub(odd.advance)).fold(0, i64::saturating_add);
        if self.advance.dropped > 0 && odd.iter().all(|odd| odd.rows > odd.advance) {
            odd.clear();
            // Their logs may have expired before they were tiered, and the partitions may be gone from the lake as well.
            if more > self.advance.dropped {
                odd.push(Odd { place: None, rows: more, advance: self.advance.dropped });
            }
        }
        odd
    }
}

/// A snapshot that brought more or fewer rows into buckets than their offsets went forward.
struct Culprit {
    name: String,
    differs: BTreeMap<(BinaryRow, i32), i64>,
}

/// Goes through the Fluss-made snapshots one by one. Those whose offsets are gone are taken together with the next.
async fn culprits(pass: &Pass<'_>, steps: &[Step], start: &Start) -> Result<Vec<Culprit>> {
    let mut culprits = Vec::new();
    let (mut before, mut rows, mut names) = (start.offsets.clone(), Rows::new(), Vec::new());
    for step in steps.iter().filter(|step| step.id > start.id && step.fluss.is_some()) {
        add(&mut rows, delta_of(pass, step).await?);
        names.push(step.name());
        let Some(after) = offsets_of(pass, step.id).await? else { continue };
        let advance = Advance::of(pass, &before, &after);
        let places: BTreeSet<_> = rows.keys().chain(advance.known.keys()).cloned().collect();
        let differs = places.into_iter().filter_map(|place| {
            let more = rows.get(&place).unwrap_or(&0).saturating_sub(*advance.known.get(&place).unwrap_or(&0));
            (more != 0).then_some((place, more))
        });
        let differs: BTreeMap<_, _> = differs.collect();
        if !differs.is_empty() {
            culprits.push(Culprit { name: names.join(" and "), differs });
        }
        (before, rows, names) = (after, Rows::new(), Vec::new());
    }
    Ok(culprits)
}

impl Odd {
    fn fault(&self, pass: &Pass<'_>, start: &Start, culprits: &[Culprit]) -> Fault {
        let since = if start.whole { "since the first snapshot".to_owned() } else { format!("since snapshot {}", start.id) };
        let Some(place) = &self.place else {
            let message = format!(
                "partitions that Fluss has dropped got {} rows {since}, where their offsets went forward by {} in all",
                self.rows, self.advance
            );
            return Fault::new(Check::Rows, message).hint(doubled_hint(pass));
        };
        let folder = pass.folder(&place.0);
        let bucket = if pass.context.table.bucket_keys.is_empty() { String::new() } else { format!("bucket `{}` of ", place.1) };
        let name = if folder.is_empty() { format!("{bucket}the table") } else { format!("{bucket}partition `{folder}`") };
        let by: Vec<String> = culprits
            .iter()
            .filter_map(|culprit| culprit.differs.get(place).map(|more| format!("{}: {more:+}", culprit.name)))
            .take(NAMED_MAX)
            .collect();
        let by = if by.is_empty() { String::new() } else { format!("; {}", by.join(", ")) };
        let (rows, advance, more) = (self.rows, self.advance, self.rows.saturating_sub(self.advance));
        let what = if more > 0 { format!("`{more}` rows too many") } else { format!("`{}` rows too few", -more) };
        let message =
            format!("{name} has {what}: {rows} rows came from Fluss {since}, where its offsets went forward by {advance}{by}");
        let hint = if more > 0 { doubled_hint(pass) } else { missing_hint(pass) };
        let fault = Fault::new(Check::Rows, message).partition(&folder).bucket(place.1).hint(hint);
        match pass.view.tiered.as_ref().and_then(|tiered| Some((tiered.snapshot.0, tiered.offsets.as_ref()?))) {
            Some((snapshot, offsets)) => {
                let key = pass.of_row(&place.0).map(|known| BucketKey {
                    partition: known.partition.as_ref().map(|partition| partition.id),
                    bucket: BucketId(place.1),
                });
                let fault = fault.snapshot(snapshot);
                match key.and_then(|key| offsets.get(key)).filter(|_| !pass.context.table.bucket_keys.is_empty()) {
                    Some(offset) => fault.offset(offset),
                    None => fault,
                }
            }
            None => fault,
        }
    }
}

fn doubled_hint(pass: &Pass<'_>) -> String {
    format!(
        "a tiering job worked on without a lease, or somebody writes as if he was one: stop it, then roll the lake table back below \
         the first snapshot named (docs/compatibility.md); if its rows are right as they are: {}",
        pass.repair_hint("accept-base")
    )
}

fn missing_hint(pass: &Pass<'_>) -> String {
    format!(
        "rows were lost in the lake while Fluss counts them as tiered: as long as the log still has them, tier again from before: {}",
        pass.repair_hint("reset-offsets")
    )
}
