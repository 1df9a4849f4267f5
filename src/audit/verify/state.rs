//! Primary-key tables: merged lake and change log from the tiered offset on are the state that Fluss has.
//!
//! The state comes from the servers (ScanKv), which name the offset it belongs to. Where they have none of that (0.9) the change log is
//! replayed from its very beginning up to the tiered offset, if it is all there. Both sides are compared by sums of hashes, so that a
//! bucket of any size takes little memory; the keys that differ are then looked for in a second pass.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use arrow_array::RecordBatch;

use super::live::Live;
use super::{Check, Fault, Findings, Pass};
use crate::audit::AuditPartition;
use crate::audit::rows::LogRows;
use crate::audit::scan::{Format, Merged, Printer, key_columns};
use crate::audit::tail::{self, Tail};
use crate::error::{Error, Kind, Result};
use crate::mapping::SYSTEM_COLUMNS;
use crate::model::{BucketId, BucketKey, Field, LakeOffsets, Split, SplitKind, StartOffset, TableBucket, TableInfo};
use crate::paimon::{KeyOrder, ManifestEntry, SimpleStats, TableOptions, TableSchema};
use crate::source::is_state_lost;

/// Parts that keys are spread over: those that differ tell where to look.
const SLOTS: usize = 4096;
/// Parts that are looked into for keys that differ.
const LOOKED_INTO: usize = 4;
/// Keys that a message names.
const NAMED_MAX: usize = 5;
/// Buckets of a sample.
const SAMPLE_BUCKETS: usize = 32;
/// Bytes of lake files of a sample.
const SAMPLE_BYTES: i64 = 1 << 30;
/// Times that a lost state scan, or a state that lags behind the lake, is begun again.
const TRIES_MAX: usize = 4;

pub(super) async fn check(pass: &Pass<'_>, live: &Live, found: &mut Findings) -> Result<()> {
    let context = pass.context;
    if !context.table.has_primary_key() || context.table.bucket_keys.is_empty() {
        return Ok(());
    }
    let offsets = match &pass.view.tiered {
        Some(tiered) if tiered.table.is_none_or(|table| table == context.table.id) => match &tiered.offsets {
            Some(offsets) => offsets.clone(),
            None => return Ok(()),
        },
        Some(_) => return Ok(()),
        None => LakeOffsets::default(),
    };
    if let Some(option) = other_rows(&context.table, context.lake.schema())? {
        found.note(format!("the state was not compared: option `{option}` lets the lake have other rows than Fluss"));
        return Ok(());
    }
    let served = context.scan.serves_states().await?;
    let (buckets, left_out) = buckets(pass, live);
    if left_out > 0 {
        found.note(format!("the state of {left_out} buckets was not compared: `--all` does"));
    }
    pass.progress.enter("comparing state", buckets.len());
    let mut files = files(pass, &buckets).await?;
    let compare = Compare { rows: Arc::new(LogRows::new(context)?), form: Form::of(pass)?, served };
    let mut skipped: BTreeMap<String, u64> = BTreeMap::new();
    for (known, bucket) in buckets {
        let key = BucketKey { partition: known.partition.as_ref().map(|partition| partition.id), bucket: BucketId(bucket) };
        let place =
            Place { known, key, from: offsets.get(key), files: files.remove(&(known.row.clone(), bucket)).unwrap_or_default() };
        match compare.bucket(pass, &place).await {
            Ok(Outcome::Same) => {}
            Ok(Outcome::Skipped(why)) => *skipped.entry(why).or_default() += 1,
            Ok(Outcome::Differs { offset, rows, state, keys }) => {
                let name = pass.name(key);
                let message = format!(
                    "{name} has {rows} rows in lake and change log at offset `{offset}`, Fluss has {state} then; they differ{}",
                    if keys.is_empty() { String::new() } else { format!(" in {}", keys.join(", ")) }
                );
                let folder = pass.folder(&known.row);
                let fault = Fault::new(Check::State, message).partition(&folder).bucket(bucket).offset(offset);
                found.fault(fault.hint(pass.repair_hint("reset-offsets")));
            }
            // What is wrong with the files themselves is said by those who look at files.
            Err(error) if matches!(error.kind(), Kind::Data | Kind::Invalid | Kind::Unsupported) => {
                *skipped.entry(error.chain()).or_default() += 1;
            }
            Err(error) => return Err(error),
        }
        pass.progress.step();
    }
    for (why, count) in skipped {
        let buckets = if count == 1 { "1 bucket".to_owned() } else { format!("{count} buckets") };
        found.note(format!("the state of {buckets} could not be compared: {why}"));
    }
    Ok(())
}

/// The option by which merged rows of the lake are others than those of Fluss though all is well. Rows that Fluss expires leave no
/// change in the log (F5.7).
fn other_rows(table: &TableInfo, schema: &TableSchema) -> Result<Option<&'static str>> {
    if table.property("table.kv.ttl").is_some() {
        return Ok(Some("table.kv.ttl"));
    }
    if TableOptions::ignores_deletes(schema)? {
        return Ok(Some("ignore-delete"));
    }
    let is_set = |key: &&str| schema.option(key).is_some_and(|value| !value.trim().is_empty());
    Ok(["sequence.field", "record-level.expire-time"].into_iter().find(is_set))
}

/// The buckets that are compared, those with the fewest bytes in the lake first, and how many are left out.
fn buckets<'a>(pass: &'a Pass<'_>, live: &Live) -> (Vec<(&'a AuditPartition, i32)>, usize) {
    let mut all: Vec<(i64, &AuditPartition, i32)> = Vec::new();
    for known in pass.partitions.iter().filter(|known| pass.wants(&known.row)) {
        let files = live.partitions.get(&known.row);
        for bucket in 0..known.layout.count {
            let of = files.and_then(|files| files.buckets.get(&bucket));
            let bytes = of.map_or(0, |of| of.files.iter().map(|file| file.bytes).fold(0, i64::saturating_add));
            all.push((bytes, known, bucket));
        }
    }
    let count = all.len();
    if !pass.options.all {
        all.sort_by_key(|(bytes, _, _)| *bytes);
        let mut sum = 0_i64;
        all.truncate(SAMPLE_BUCKETS);
        all.retain(|(bytes, _, _)| {
            sum = sum.saturating_add(*bytes);
            sum <= SAMPLE_BYTES
        });
    }
    let left_out = count - all.len();
    (all.into_iter().map(|(_, known, bucket)| (known, bucket)).collect(), left_out)
}

type Files = BTreeMap<(crate::paimon::BinaryRow, i32), Vec<ManifestEntry>>;

async fn files(pass: &Pass<'_>, buckets: &[(&AuditPartition, i32)]) -> Result<Files> {
    let Some(snapshot) = &pass.view.newest else { return Ok(Files::new()) };
    let wanted: BTreeSet<_> = buckets.iter().map(|(known, bucket)| (known.row.clone(), *bucket)).collect();
    let rows: BTreeSet<_> = wanted.iter().map(|(row, _)| row.clone()).collect();
    let mut files = Files::new();
    for mut entry in pass.context.lake.live_entries(snapshot, Some(&rows)).await? {
        let key = (entry.partition.clone(), entry.bucket);
        if wanted.contains(&key) {
            entry.file.value_stats = SimpleStats::empty();
            files.entry(key).or_default().push(entry);
        }
    }
    Ok(files)
}

/// One bucket: in Fluss, and in the lake.
struct Place<'a> {
    known: &'a AuditPartition,
    key: BucketKey,
    /// Where the lake ends; `None` = it was never tiered.
    from: Option<i64>,
    files: Vec<ManifestEntry>,
}

enum Outcome {
    Same,
    Differs { offset: i64, rows: u64, state: u64, keys: Vec<String> },
    Skipped(String),
}

/// How rows are told from each other.
struct Form {
    fields: Vec<Field>,
    printer: Printer,
    key_fields: Vec<Field>,
    key_printer: Printer,
    order: KeyOrder,
}

impl Form {
    fn of(pass: &Pass<'_>) -> Result<Self> {
        let schema = pass.context.lake.schema();
        // A row of a state has no offset and no timestamp.
        let fields: Vec<Field> =
            schema.fields.iter().filter(|field| !SYSTEM_COLUMNS.contains(&field.name.as_str())).cloned().collect();
        let names = schema.trimmed_primary_keys();
        let key_fields: Vec<Field> = names.iter().filter_map(|name| schema.field(name).cloned()).collect();
        let order = KeyOrder::new(schema, names, &[])?;
        let (printer, key_printer) = (Printer::new(Format::Json, fields.clone()), Printer::new(Format::Json, key_fields.clone()));
        Ok(Self { fields, printer, key_fields, key_printer, order })
    }

    /// Calls `each` with key bytes, number and text of each row.
    fn rows(&self, batch: &RecordBatch, mut each: impl FnMut(&[u8], usize, &str)) -> Result<()> {
        let keys = self.order.rows(&key_columns(&self.order, batch)?)?;
        let text = self.printer.rows(&pick(batch, &self.fields)?)?;
        for (row, line) in text.lines().enumerate().take(keys.num_rows()) {
            each(keys.row(row).as_ref(), row, line);
        }
        Ok(())
    }

    fn key_texts(&self, batch: &RecordBatch) -> Result<Vec<String>> {
        let text = self.key_printer.rows(&pick(batch, &self.key_fields)?)?;
        Ok(text.lines().map(str::to_owned).collect())
    }
}

fn pick(batch: &RecordBatch, fields: &[Field]) -> Result<RecordBatch> {
    let place = |field: &Field| {
        let found = batch.schema_ref().fields().find(&field.name).map(|(index, _)| index);
        found.ok_or_else(|| Error::internal(format!("rows without column `{}`", field.name)))
    };
    let places = fields.iter().map(place).collect::<Result<Vec<_>>>()?;
    batch.project(&places).map_err(|source| Error::internal("pick columns").with_source(source))
}

fn hash(seed: u8, bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u8(seed);
    hasher.write(bytes);
    hasher.finish()
}

fn slot_of(key: &[u8]) -> usize {
    usize::try_from(hash(0, key) % SLOTS as u64).unwrap_or(0)
}

fn fingerprint(line: &str) -> u128 {
    u128::from(hash(1, line.as_bytes())) << 64 | u128::from(hash(2, line.as_bytes()))
}

/// Rows by part: how many, and the sum of their hashes.
struct Sums(Vec<(u64, u128)>);

impl Sums {
    fn new() -> Self {
        Self(vec![(0, 0); SLOTS])
    }

    fn add(&mut self, form: &Form, batch: &RecordBatch) -> Result<()> {
        form.rows(batch, |key, _, line| {
            if let Some((count, sum)) = self.0.get_mut(slot_of(key)) {
                *count += 1;
                *sum = sum.wrapping_add(fingerprint(line));
            }
        })
    }

    fn rows(&self) -> u64 {
        self.0.iter().map(|(count, _)| count).sum()
    }
}

/// Rows of some parts: key text and hash by key.
type Keyed = BTreeMap<Vec<u8>, (String, u128)>;

/// What is made of the rows of one side.
enum Sink<'a> {
    Sums(Sums),
    Keyed(&'a BTreeSet<usize>, Keyed),
}

impl Sink<'_> {
    fn add(&mut self, form: &Form, batch: &RecordBatch) -> Result<()> {
        match self {
            Self::Sums(sums) => sums.add(form, batch),
            Self::Keyed(slots, keyed) => {
                let texts = form.key_texts(batch)?;
                form.rows(batch, |key, row, line| {
                    if slots.contains(&slot_of(key)) {
                        let text = texts.get(row).cloned().unwrap_or_default();
                        keyed.insert(key.to_vec(), (text, fingerprint(line)));
                    }
                })
            }
        }
    }
}

struct Compare {
    rows: Arc<LogRows>,
    form: Form,
    served: bool,
}

impl Compare {
    async fn bucket(&self, pass: &Pass<'_>, place: &Place<'_>) -> Result<Outcome> {
        let (lake, fluss, offset) = match self.sides(pass, place, || Sink::Sums(Sums::new())).await? {
            Sides::Read { lake: Sink::Sums(lake), fluss: Sink::Sums(fluss), offset } => (lake, fluss, offset),
            Sides::Skipped(why) => return Ok(Outcome::Skipped(why)),
            Sides::Read { .. } => return Err(Error::internal("another sink came back")),
        };
        let odd: BTreeSet<usize> =
            lake.0.iter().zip(&fluss.0).enumerate().filter(|(_, (one, other))| one != other).map(|(slot, _)| slot).collect();
        if odd.is_empty() {
            return Ok(Outcome::Same);
        }
        let looked: BTreeSet<usize> = odd.into_iter().take(LOOKED_INTO).collect();
        let keys = match self.sides(pass, place, || Sink::Keyed(&looked, Keyed::new())).await? {
            Sides::Read { lake: Sink::Keyed(_, lake), fluss: Sink::Keyed(_, fluss), .. } => differences(&lake, &fluss),
            _ => vec![],
        };
        Ok(Outcome::Differs { offset, rows: lake.rows(), state: fluss.rows(), keys })
    }

    /// Reads both sides at one offset.
    async fn sides<'s>(&self, pass: &Pass<'_>, place: &Place<'_>, sink: impl Fn() -> Sink<'s>) -> Result<Sides<'s>> {
        if !self.served {
            return self.replayed(pass, place, sink).await;
        }
        let context = pass.context;
        let mut tries = 0;
        loop {
            tries += 1;
            let mut fluss = sink();
            let offset = match self.state(pass, place, &mut fluss).await {
                Ok(offset) => offset,
                Err(error) if is_state_lost(&error) && tries < TRIES_MAX => continue,
                Err(error) if error.code() == Some(36) => return Ok(Sides::Skipped("its partition was dropped".to_owned())),
                Err(error) => return Err(error),
            };
            let from = place.from.unwrap_or(0);
            if offset < from {
                if tries < TRIES_MAX {
                    context.runtime.clock.sleep(std::time::Duration::from_millis(500)).await;
                    continue;
                }
                return Ok(Sides::Skipped(format!("the state that Fluss serves lags behind the lake: it is of offset `{offset}`")));
            }
            let range = [(place.key, from, offset)];
            let known = std::slice::from_ref(place.known);
            let Some(splits) = tail::splits(context, known, range.into_iter()).await? else {
                return Ok(Sides::Skipped(format!("its change log no longer reaches back to offset `{from}`")));
            };
            let mut lake = sink();
            self.merged(pass, place.files.clone(), splits.into_iter().next(), &mut lake).await?;
            return Ok(Sides::Read { lake, fluss, offset });
        }
    }

    /// Without states: the change log from its beginning, to where the lake ends.
    async fn replayed<'s>(&self, pass: &Pass<'_>, place: &Place<'_>, sink: impl Fn() -> Sink<'s>) -> Result<Sides<'s>> {
        let offset = place.from.unwrap_or(0);
        let range = [(place.key, 0, offset)];
        let Some(splits) = tail::splits(pass.context, std::slice::from_ref(place.known), range.into_iter()).await? else {
            return Ok(Sides::Skipped(
                "the cluster serves no states (ScanKv), and the beginning of its change log has expired".to_owned(),
            ));
        };
        let (mut lake, mut fluss) = (sink(), sink());
        self.merged(pass, vec![], splits.into_iter().next(), &mut fluss).await?;
        self.merged(pass, place.files.clone(), None, &mut lake).await?;
        Ok(Sides::Read { lake, fluss, offset })
    }

    /// The offset that the state names.
    async fn state(&self, pass: &Pass<'_>, place: &Place<'_>, sink: &mut Sink<'_>) -> Result<i64> {
        let bucket = TableBucket { table: pass.context.table.id, partition: place.key.partition, bucket: place.key.bucket };
        let (partition, layout) = (place.known.partition.clone(), place.known.layout);
        let split =
            Split { bucket, partition, layout, start: StartOffset::Earliest, stop_offset: i64::MAX, kind: SplitKind::State };
        let mut tail = Tail::open(pass.context, vec![split]).await?;
        let mut offset = 0;
        while let Some((split, chunk)) = tail.next().await? {
            offset = chunk.end_offset;
            for (rows, _) in self.rows.convert(&split, chunk.batches).await? {
                sink.add(&self.form, &rows)?;
            }
        }
        Ok(offset)
    }

    async fn merged(&self, pass: &Pass<'_>, files: Vec<ManifestEntry>, split: Option<Split>, sink: &mut Sink<'_>) -> Result<()> {
        let names: Vec<&str> = self.form.fields.iter().map(|field| field.name.as_str()).collect();
        let log = split.map(|split| (Box::new(split), Arc::clone(&self.rows)));
        let mut merged = Merged::open(pass.context, files, log, &names).await?;
        while let Some(batch) = merged.next_batch().await? {
            sink.add(&self.form, &batch)?;
        }
        Ok(())
    }
}

enum Sides<'a> {
    Read { lake: Sink<'a>, fluss: Sink<'a>, offset: i64 },
    Skipped(String),
}

fn differences(lake: &Keyed, fluss: &Keyed) -> Vec<String> {
    let keys: BTreeSet<&Vec<u8>> = lake.keys().chain(fluss.keys()).collect();
    let told = keys.into_iter().filter_map(|key| match (lake.get(key), fluss.get(key)) {
        (Some((text, one)), Some((_, other))) if one != other => Some(format!("key {text} (another row)")),
        (Some((text, _)), None) => Some(format!("key {text} (not in Fluss)")),
        (None, Some((text, _))) => Some(format!("key {text} (not in the lake)")),
        _ => None,
    });
    told.take(NAMED_MAX).collect()
}
