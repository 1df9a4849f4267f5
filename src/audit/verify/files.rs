//! Data files: that they are there, and what is in them (P12.1, 1 to 6).
//!
//! All are looked for, by listing the folders of their buckets. A sample is read, or all: rows against the entry, columns against the
//! schema, partition and bucket of each row, statistics against the values, order and versions of primary-key files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::types::{Int8Type, Int64Type};
use arrow_array::{ArrayRef, PrimitiveArray, RecordBatch};
use arrow_row::OwnedRow;
use futures::stream::{self, StreamExt, TryStreamExt};

use super::live::Live;
use super::{Check, Fault, Findings, Pass};
use crate::error::{Error, Kind, Result};
use crate::lake::{FileRows, LakeTable};
use crate::model::{DataType, Datum, Field};
use crate::paimon::stats::{ColumnStats, StatsMode};
use crate::paimon::{
    BinaryRow, EntryKind, HashedBy, KeyOrder, ManifestEntry, RowBuckets, TableSchema, compare_values, path, value_at,
};
use crate::write::Bounds;

/// Folders that are listed at once.
const LISTINGS_MAX: usize = 16;
/// Files of a sample.
const SAMPLE_FILES: usize = 256;
/// Bytes of a sample.
const SAMPLE_BYTES: i64 = 1 << 30;
/// A file takes about this many times its size while it is read: its bytes, and a decoded block.
const EXPANSION: usize = 3;

/// How much was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) files: u64,
    pub(super) rows: u64,
}

pub(super) async fn check(pass: &Pass<'_>, live: &Live, found: &mut Findings) -> Result<Read> {
    let mut suspects = presence(pass, live, found).await?;
    let (read, faults) = content(pass, live, &suspects, found).await?;
    for fault in faults {
        match fault {
            Wrong::Fault(fault) => found.fault(*fault),
            Wrong::Missing(place, fault) => {
                suspects.insert(place, *fault);
            }
        }
    }
    confirm(pass, suspects, found).await?;
    Ok(read)
}

/// A file that is not there may have left the table: expired with the snapshot that is looked at. One that the newest snapshot has too
/// is missing.
async fn confirm(pass: &Pass<'_>, suspects: BTreeMap<String, Fault>, found: &mut Findings) -> Result<()> {
    if suspects.is_empty() {
        return Ok(());
    }
    let lake = &pass.context.lake;
    let mut gone = 0_u64;
    let named = if pass.moved().await? {
        let newest = match lake.newest_snapshot_id().await? {
            Some(id) => lake.snapshot(id).await?,
            None => None,
        };
        match newest {
            Some(newest) => Some(lake.live_entries(&newest, None).await?),
            None => Some(vec![]),
        }
    } else {
        None
    };
    let named: Option<BTreeSet<String>> =
        named.map(|entries| entries.iter().filter_map(|entry| path::data_file(lake.schema(), entry).ok()).collect());
    for (place, fault) in suspects {
        if named.as_ref().is_none_or(|named| named.contains(&place)) {
            found.fault(fault);
        } else {
            gone += 1;
        }
    }
    if gone > 0 {
        found.note(format!("{gone} files left the table while it was looked at"));
    }
    Ok(())
}

/// Files that are not there, or have another size, by place.
async fn presence(pass: &Pass<'_>, live: &Live, found: &mut Findings) -> Result<BTreeMap<String, Fault>> {
    let lake = &pass.context.lake;
    let folders: Vec<_> = live
        .partitions
        .iter()
        .filter(|(row, _)| pass.wants(row))
        .flat_map(|(row, partition)| partition.buckets.iter().map(move |(bucket, of)| (row, *bucket, of)))
        .collect();
    pass.progress.enter("looking for files", folders.len());
    let id = pass.view.newest.as_ref().map_or(0, |newest| newest.id);
    let external: usize = folders.iter().map(|(_, _, of)| of.files.iter().filter(|file| file.external).count()).sum();
    if external > 0 {
        found.note(format!("{external} files lie outside the table's folder: they were not looked at"));
    }
    let looks = folders.into_iter().map(|(row, bucket, of)| async move {
        let folder = path::bucket_path(lake.schema(), row, bucket)?;
        let listed = lake.store().list(&lake.object(&folder)).await?;
        let sizes: BTreeMap<&str, u64> =
            listed.iter().filter_map(|listed| Some((listed.path.rsplit('/').next()?, listed.size))).collect();
        let mut missing = Vec::new();
        for file in of.files.iter().filter(|file| !file.external) {
            let message = match sizes.get(file.name.as_str()) {
                None => "is missing".to_owned(),
                Some(size) if i64::try_from(*size).ok() != Some(file.bytes) => {
                    format!("has {size} bytes, its manifest says {}", file.bytes)
                }
                Some(_) => continue,
            };
            let place = format!("{folder}/{}", file.name);
            let fault = Fault::new(Check::File, format!("file `{place}` {message}"));
            let fault = fault.partition(&pass.folder(row)).bucket(bucket).file(&place).snapshot(id).hint(pass.roll_back_hint());
            missing.push((place, fault));
        }
        pass.progress.step();
        Ok::<_, Error>(missing)
    });
    let found: Vec<Vec<(String, Fault)>> = stream::iter(looks).buffered(LISTINGS_MAX).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

/// The newest files of each bucket first: what was written last was looked at least.
fn sample(pass: &Pass<'_>, live: &Live) -> BTreeSet<(BinaryRow, i32, String)> {
    let mut by_age: Vec<(usize, i64, (BinaryRow, i32, String))> = Vec::new();
    for (row, partition) in live.partitions.iter().filter(|(row, _)| pass.wants(row)) {
        for (bucket, of) in &partition.buckets {
            let mut files: Vec<_> = of.files.iter().collect();
            files.sort_by(|one, other| (other.max_sequence, &other.name).cmp(&(one.max_sequence, &one.name)));
            let files = files.into_iter().enumerate().take(SAMPLE_FILES);
            by_age.extend(files.map(|(age, file)| (age, file.bytes, (row.clone(), *bucket, file.name.clone()))));
        }
    }
    by_age.sort();
    let mut bytes = 0_i64;
    let mut fits = |(_, size, _): &(usize, i64, _)| {
        bytes = bytes.saturating_add(*size);
        bytes <= SAMPLE_BYTES
    };
    let mut picked: BTreeSet<_> =
        by_age.iter().take(SAMPLE_FILES).take_while(|file| fits(file)).map(|(_, _, file)| file.clone()).collect();
    // However large it is.
    picked.extend(by_age.into_iter().take(1).map(|(_, _, file)| file));
    picked
}

/// What reading a file may find.
enum Wrong {
    Fault(Box<Fault>),
    /// By place.
    Missing(String, Box<Fault>),
}

async fn content(
    pass: &Pass<'_>,
    live: &Live,
    suspects: &BTreeMap<String, Fault>,
    found: &mut Findings,
) -> Result<(Read, Vec<Wrong>)> {
    let mut read = Read::default();
    let mut wrong = Vec::new();
    let Some(snapshot) = &pass.view.newest else { return Ok((read, wrong)) };
    let wanted: BTreeSet<(BinaryRow, i32, String)> = if pass.options.all {
        let buckets = live.partitions.iter().filter(|(row, _)| pass.wants(row)).flat_map(|(row, partition)| {
            partition
                .buckets
                .iter()
                .flat_map(move |(bucket, of)| of.files.iter().map(move |file| (row.clone(), *bucket, file.name.clone())))
        });
        buckets.collect()
    } else {
        sample(pass, live)
    };
    pass.progress.enter("reading files", wanted.len());
    let lake = &pass.context.lake;
    let manifests = lake.manifests(snapshot).await?;
    let mut seen = BTreeSet::new();
    let schemas = Schemas::default();
    for manifest in manifests {
        let entries = lake.read_manifest(&manifest.file_name).await?;
        let picked = entries.into_iter().filter(|entry| {
            let key = (entry.partition.clone(), entry.bucket, entry.file.file_name.clone());
            entry.kind == EntryKind::Add && entry.file.external_path.is_none() && wanted.contains(&key) && seen.insert(key)
        });
        let picked: Vec<ManifestEntry> = picked.collect();
        let schemas = &schemas;
        let reads = picked.into_iter().map(|entry| async move {
            let place = path::data_file(lake.schema(), &entry)?;
            let looked = if suspects.contains_key(&place) { None } else { Some(one(pass, schemas, &entry, &place).await?) };
            pass.progress.step();
            Ok::<_, Error>(looked)
        });
        let mut reads = stream::iter(reads).buffered(pass.context.runtime.encoders.count().max(2));
        while let Some(looked) = reads.try_next().await? {
            let Some((rows, more)) = looked else { continue };
            read.files += 1;
            read.rows += rows;
            wrong.extend(more);
        }
    }
    if let Some(why) = schemas.no_buckets() {
        found.note(format!("rows were not hashed into buckets: {why}"));
    }
    Ok((read, wrong))
}

/// What is known of the schemas that files were written with.
#[derive(Default)]
struct Schemas(std::sync::Mutex<BTreeMap<i64, Arc<Form>>>);

/// How files of one schema are looked at.
struct Form {
    lake: LakeTable,
    buckets: Option<RowBuckets>,
    /// Why the buckets of rows can't be told.
    no_buckets: Option<String>,
    order: Option<KeyOrder>,
    keys: Vec<(usize, DataType)>,
}

impl Form {
    fn of(lake: &LakeTable, schema: &Arc<TableSchema>) -> Result<Self> {
        let (buckets, no_buckets) = match RowBuckets::new(schema) {
            Ok(buckets) => (buckets, None),
            Err(error) => (None, Some(error.chain())),
        };
        let names = schema.trimmed_primary_keys();
        let place = |name: &String| schema.fields.iter().position(|field| field.name == *name);
        let keys = names.iter().filter_map(|name| Some((place(name)?, schema.field(name)?.data_type.clone()))).collect();
        let order = if names.is_empty() { None } else { Some(KeyOrder::new(schema, names, &[])?) };
        Ok(Self { lake: lake.with_schema(Arc::clone(schema)), buckets, no_buckets, order, keys })
    }
}

impl Schemas {
    /// Why the buckets of rows could not be told.
    fn no_buckets(&self) -> Option<String> {
        let known = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        known.values().find_map(|form| form.no_buckets.clone())
    }

    async fn of(&self, lake: &LakeTable, id: i64) -> Result<Arc<Form>> {
        let known = || self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(form) = known().get(&id) {
            return Ok(Arc::clone(form));
        }
        let form = Arc::new(Form::of(lake, &lake.load_schema(id).await?)?);
        known().insert(id, Arc::clone(&form));
        Ok(form)
    }
}

/// Reads one file: its rows, and what is wrong with it.
async fn one(pass: &Pass<'_>, schemas: &Schemas, entry: &ManifestEntry, place: &str) -> Result<(u64, Vec<Wrong>)> {
    let context = pass.context;
    let fault = |check, message: String| {
        let id = pass.view.newest.as_ref().map_or(0, |newest| newest.id);
        let fault = Fault::new(check, format!("file `{place}`: {message}"));
        fault.partition(&pass.folder(&entry.partition)).bucket(entry.bucket).file(place).snapshot(id)
    };
    let bytes = usize::try_from(entry.file.file_size).unwrap_or(0);
    let _permit = context.runtime.budget.acquire(bytes.saturating_mul(EXPANSION)).await;
    let form = schemas.of(&context.lake, entry.file.schema_id).await?;
    let mut look = Look::new(Arc::clone(&form), entry.clone());
    let mut rows = 0_u64;
    let ended = async {
        let mut reader = form.lake.read_entry(entry, None).await?;
        while let Some(block) = reader.next_rows().await? {
            rows += block.rows.num_rows() as u64;
            let mut mine = look;
            let (back, done) = context
                .runtime
                .encoders
                .run(move || {
                    let done = mine.add(&block);
                    (mine, done)
                })
                .await?;
            look = back;
            done?;
        }
        Ok::<_, Error>(look)
    };
    match ended.await {
        Ok(look) => {
            let found = look.finish().into_iter().map(|(check, message)| {
                let hint = match check {
                    Check::Hash => pass.rewrite_hint(&pass.folder(&entry.partition)),
                    Check::Statistics => {
                        format!("readers may leave its rows out; {}", pass.rewrite_hint(&pass.folder(&entry.partition)))
                    }
                    _ => pass.roll_back_hint(),
                };
                Wrong::Fault(Box::new(fault(check, message).hint(hint)))
            });
            Ok((rows, found.collect()))
        }
        Err(error) if error.kind() == Kind::Data || error.kind() == Kind::Unsupported => {
            let wrong = Box::new(fault(Check::Content, error.chain()).hint(pass.roll_back_hint()));
            // Gone since it was listed?
            let gone = context.lake.store().size(&context.lake.object(place)).await?.is_none();
            Ok((rows, vec![if gone { Wrong::Missing(place.to_owned(), wrong) } else { Wrong::Fault(wrong) }]))
        }
        Err(error) => Err(error),
    }
}

/// What has been seen of one file.
struct Look {
    form: Arc<Form>,
    entry: ManifestEntry,
    bounds: Vec<Bounds>,
    rows: u64,
    /// Rows of other buckets: how many, the first one's number and its right bucket.
    strays: u64,
    stray: Option<(u64, i32)>,
    keys: Option<Keys>,
}

/// What has been seen of the keys and versions of a primary-key file.
struct Keys {
    first: Option<BinaryRow>,
    last: Option<BinaryRow>,
    last_row: Option<OwnedRow>,
    /// The first row that is not above the one before it.
    unsorted: Option<u64>,
    sequences: Option<(i64, i64)>,
    deletes: i64,
}

impl Look {
    fn new(form: Arc<Form>, entry: ManifestEntry) -> Self {
        let bounds = form.lake.schema().fields.iter().map(|field| Bounds::new(&field.data_type.kind, StatsMode::Full)).collect();
        let keys = Keys { first: None, last: None, last_row: None, unsorted: None, sequences: None, deletes: 0 };
        let keys = form.order.is_some().then_some(keys);
        Self { form, entry, bounds, rows: 0, strays: 0, stray: None, keys }
    }

    fn add(&mut self, block: &FileRows) -> Result<()> {
        for (bounds, column) in self.bounds.iter_mut().zip(block.rows.columns()) {
            bounds.add(column)?;
        }
        self.buckets(&block.rows)?;
        if let Some((sequences, kinds)) = &block.versions {
            self.versions(&block.rows, sequences, kinds)?;
        }
        self.rows += block.rows.num_rows() as u64;
        Ok(())
    }

    fn buckets(&mut self, rows: &RecordBatch) -> Result<()> {
        let total = self.entry.total_buckets;
        let Some(buckets) = self.form.buckets.as_ref().filter(|_| total > 0) else { return Ok(()) };
        let columns: Vec<ArrayRef> = buckets.names().iter().filter_map(|name| rows.column_by_name(name).cloned()).collect();
        let found = buckets.buckets(&columns, total, HashedBy::Fluss)?;
        if found.iter().all(|bucket| *bucket == self.entry.bucket) {
            return Ok(());
        }
        // Paimon's own writers hash some NULL keys otherwise, and are right as well.
        let other = buckets.buckets(&columns, total, HashedBy::Paimon)?;
        for ((row, by_fluss), by_paimon) in (self.rows..).zip(found).zip(other) {
            if by_fluss != self.entry.bucket && by_paimon != self.entry.bucket {
                self.strays += 1;
                self.stray.get_or_insert((row, by_fluss));
            }
        }
        Ok(())
    }

    fn versions(
        &mut self,
        rows: &RecordBatch,
        sequences: &PrimitiveArray<Int64Type>,
        kinds: &PrimitiveArray<Int8Type>,
    ) -> Result<()> {
        let (Some(order), Some(keys)) = (&self.form.order, &mut self.keys) else { return Ok(()) };
        let columns: Vec<ArrayRef> = self.form.keys.iter().filter_map(|(place, _)| rows.columns().get(*place).cloned()).collect();
        let key = |row: usize| {
            let types: Vec<DataType> = self.form.keys.iter().map(|(_, data_type)| data_type.clone()).collect();
            let values: Vec<Option<Datum>> = columns
                .iter()
                .zip(&types)
                .map(|(column, data_type)| value_at(column, &data_type.kind, row))
                .collect::<Result<_>>()?;
            BinaryRow::write(&values, &types)
        };
        let encoded = order.rows(&columns)?;
        let count = encoded.num_rows();
        if count == 0 {
            return Ok(());
        }
        if keys.first.is_none() {
            keys.first = Some(key(0)?);
        }
        keys.last = Some(key(count - 1)?);
        if keys.unsorted.is_none() {
            let breaks = keys.last_row.as_ref().is_some_and(|last| last.row() >= encoded.row(0));
            let at = if breaks { Some(0) } else { (1..count).find(|at| encoded.row(at - 1) >= encoded.row(*at)) };
            keys.unsorted = at.map(|at| self.rows + at as u64);
        }
        keys.last_row = Some(encoded.row(count - 1).owned());
        for sequence in sequences.values() {
            keys.sequences =
                Some(keys.sequences.map_or((*sequence, *sequence), |(min, max)| (min.min(*sequence), max.max(*sequence))));
        }
        keys.deletes += i64::try_from(kinds.values().iter().filter(|kind| **kind % 2 == 1).count()).unwrap_or(i64::MAX);
        Ok(())
    }

    /// What is wrong, by what it is about.
    fn finish(self) -> Vec<(Check, String)> {
        let mut wrong = Vec::new();
        if let Some((row, bucket)) = self.stray {
            wrong.push((
                Check::Hash,
                format!(
                    "{} of its {} rows belong into other buckets than {} of {}: row {row}, for one, into bucket {bucket}",
                    self.strays, self.rows, self.entry.bucket, self.entry.total_buckets
                ),
            ));
        }
        let schema = Arc::clone(self.form.lake.schema());
        let seen: Vec<ColumnStats> = self.bounds.iter().map(Bounds::stats).collect();
        wrong.extend(self.partition(&schema, &seen));
        wrong.extend(statistics(&schema, &self.entry, &seen).into_iter().map(|text| (Check::Statistics, text)));
        if let Some(keys) = &self.keys {
            wrong.extend(self.key_faults(keys, &schema, &seen));
        }
        wrong
    }

    /// Every row is of the partition that its entry says: then both bounds are its values.
    fn partition(&self, schema: &TableSchema, seen: &[ColumnStats]) -> Option<(Check, String)> {
        if self.rows == 0 {
            return None;
        }
        let values = self.entry.partition.read(&schema.partition_types().ok()?).ok()?;
        for (name, value) in schema.partition_keys.iter().zip(values) {
            let stats = seen.get(schema.fields.iter().position(|field| field.name == *name)?)?;
            let nulls = stats.null_count.unwrap_or(0);
            let same = |bound: &Option<Datum>| match (bound, &value) {
                (Some(bound), Some(value)) => compare_values(bound, value).is_eq(),
                _ => true,
            };
            let right = match &value {
                Some(_) => nulls == 0 && same(&stats.min) && same(&stats.max),
                None => stats.min.is_none() && u64::try_from(nulls) == Ok(self.rows),
            };
            if !right {
                return Some((Check::Partition, format!("it has rows of other partitions: column `{name}` has {}", range(stats))));
            }
        }
        None
    }

    fn key_faults(&self, keys: &Keys, schema: &TableSchema, seen: &[ColumnStats]) -> Vec<(Check, String)> {
        let file = &self.entry.file;
        let mut wrong = Vec::new();
        let mut fault = |message: String| wrong.push((Check::Keys, message));
        if let Some(row) = keys.unsorted {
            fault(format!("it is not sorted by its key: row {row} is not above the one before it"));
        } else if self.rows > 0 {
            for (what, says, has) in [("smallest", &file.min_key, &keys.first), ("largest", &file.max_key, &keys.last)] {
                if has.as_ref().is_some_and(|has| has != says) {
                    fault(format!("its {what} key is not the one that its entry says"));
                }
            }
        }
        if let Some((min, max)) = keys.sequences
            && (min, max) != (file.min_sequence_number, file.max_sequence_number)
        {
            fault(format!(
                "its sequence numbers are {min} to {max}, its entry says {} to {}",
                file.min_sequence_number, file.max_sequence_number
            ));
        }
        if let Some(says) = file.delete_row_count.filter(|says| *says != keys.deletes) {
            fault(format!("it has {} rows that delete, its entry says {says}", keys.deletes));
        }
        let names = schema.trimmed_primary_keys();
        let stats = &file.key_stats;
        wrong.extend(against(schema, &names, stats, seen).into_iter().map(|text| (Check::Statistics, format!("key {text}"))));
        wrong
    }
}

fn range(stats: &ColumnStats) -> String {
    let nulls = stats.null_count.unwrap_or(0);
    match (&stats.min, &stats.max) {
        (Some(min), Some(max)) => format!("{} to {} and {nulls} NULLs", text(min), text(max)),
        _ => format!("{nulls} NULLs"),
    }
}

fn text(value: &Datum) -> String {
    match value {
        Datum::String(text) => format!("`{text}`"),
        other => format!("`{other:?}`"),
    }
}

/// Value statistics of the entry that do not contain what was seen.
fn statistics(schema: &TableSchema, entry: &ManifestEntry, seen: &[ColumnStats]) -> Vec<String> {
    // Rows of some columns only: their statistics are of other files as well.
    if entry.file.write_cols.is_some() {
        return vec![];
    }
    let all = || schema.fields.iter().map(|field| field.name.clone()).collect::<Vec<_>>();
    let names = entry.file.value_stats_cols.clone().unwrap_or_else(all);
    against(schema, &names, &entry.file.value_stats, seen)
}

fn against(schema: &TableSchema, names: &[String], stats: &crate::paimon::SimpleStats, seen: &[ColumnStats]) -> Vec<String> {
    if names.is_empty() {
        return vec![];
    }
    let fields: Option<Vec<(usize, &Field)>> =
        names.iter().map(|name| schema.fields.iter().enumerate().find(|(_, field)| field.name == *name)).collect();
    let Some(fields) = fields else { return vec!["statistics name a column that its schema does not have".to_owned()] };
    let types: Vec<DataType> = fields.iter().map(|(_, field)| field.data_type.clone()).collect();
    let (min, max) = match (stats.min_values.read(&types), stats.max_values.read(&types)) {
        (Ok(min), Ok(max)) => (min, max),
        (Err(error), _) | (_, Err(error)) => return vec![format!("statistics can't be read: {}", error.chain())],
    };
    let mut wrong = Vec::new();
    for (index, (place, field)) in fields.into_iter().enumerate() {
        let Some(seen) = seen.get(place) else { continue };
        let told = |bound: &[Option<Datum>]| bound.get(index).cloned().flatten();
        if let (Some(told), Some(seen)) = (told(&min), &seen.min)
            && compare_values(&told, seen).is_gt()
        {
            wrong.push(format!("statistics of column `{}` begin at {}, its values at {}", field.name, text(&told), text(seen)));
        }
        if let (Some(told), Some(seen)) = (told(&max), &seen.max)
            && compare_values(&told, seen).is_lt()
        {
            wrong.push(format!("statistics of column `{}` end at {}, its values at {}", field.name, text(&told), text(seen)));
        }
        let nulls = stats.null_counts.as_ref().and_then(|counts| counts.get(index).copied()).flatten();
        if let (Some(told), Some(seen)) = (nulls, seen.null_count)
            && told != seen
        {
            wrong.push(format!("statistics of column `{}` say {told} NULLs, it has {seen}", field.name));
        }
    }
    wrong
}
