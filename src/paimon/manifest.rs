//! Manifests and manifest lists, both ways (P4.2–P4.4), and what a list entry says about its manifest.

use std::cmp::Ordering;

use bytes::Bytes;
use uuid::Uuid;

use super::avro::{self, Container, Record, Value, put_bytes, put_int, put_long, put_some};
use super::meta::{BinaryRow, DataFile, EntryKind, ManifestEntry, ManifestFile, SimpleStats};
use super::options::ManifestCompression;
use super::stats::{ColumnStats, simple_stats};
use crate::error::{Error, Result};
use crate::model::{DataType, Datum};

/// `_VERSION` of every record.
const VERSION: i32 = 2;

/// Manifests of about `target_bytes` each, in the order of `entries`, with the entries that each holds. No entries, no manifest.
/// `sync` gives each file its marker: any uuid of its own.
///
/// # Errors
/// `Internal` when compressing fails.
pub fn encode_rolling(
    entries: &[ManifestEntry],
    target_bytes: u64,
    compression: ManifestCompression,
    mut sync: impl FnMut() -> Uuid,
) -> Result<Vec<(Bytes, &[ManifestEntry])>> {
    let mut files = Vec::new();
    let mut rest = entries;
    while !rest.is_empty() {
        let mut file = Container::new(avro::MANIFEST, compression, sync());
        let mut count = 0;
        for entry in rest {
            file.record(|block| put_entry(block, entry))?;
            count += 1;
            if file.bytes() >= target_bytes {
                break;
            }
        }
        let (written, after) = rest.split_at(count);
        files.push((file.finish()?, written));
        rest = after;
    }
    Ok(files)
}

/// Reads a manifest.
///
/// # Errors
/// `Data` when the bytes are wrong; `Unsupported` names a codec.
pub fn decode_entries(bytes: &[u8]) -> Result<Vec<ManifestEntry>> {
    let mut entries = Vec::new();
    avro::read(bytes, |record| {
        entries.push(entry(Fields(record))?);
        Ok(())
    })?;
    Ok(entries)
}

/// A manifest list's bytes; none is fine.
///
/// # Errors
/// `Internal` when compressing fails.
pub fn encode_list(manifests: &[ManifestFile], compression: ManifestCompression, sync: Uuid) -> Result<Bytes> {
    let mut file = Container::new(avro::MANIFEST_LIST, compression, sync);
    for manifest in manifests {
        file.record(|block| put_manifest(block, manifest))?;
    }
    file.finish()
}

/// Reads a manifest list.
///
/// # Errors
/// As [`decode_entries`].
pub fn decode_list(bytes: &[u8]) -> Result<Vec<ManifestFile>> {
    let mut manifests = Vec::new();
    avro::read(bytes, |record| {
        manifests.push(manifest(Fields(record))?);
        Ok(())
    })?;
    Ok(manifests)
}

/// Names of the index files that an index manifest lists (P4.8).
///
/// # Errors
/// As [`decode_entries`].
pub fn decode_index_names(bytes: &[u8]) -> Result<Vec<String>> {
    let mut names = Vec::new();
    avro::read(bytes, |record| {
        names.push(Fields(record).string("_FILE_NAME")?);
        Ok(())
    })?;
    Ok(names)
}

fn put_strings(to: &mut Vec<u8>, texts: &[String]) {
    if !texts.is_empty() {
        put_long(to, i64::try_from(texts.len()).unwrap_or(i64::MAX));
        for text in texts {
            put_bytes(to, text.as_bytes());
        }
    }
    put_long(to, 0);
}

fn put_stats(to: &mut Vec<u8>, stats: &SimpleStats) {
    put_bytes(to, &stats.min_values.0);
    put_bytes(to, &stats.max_values.0);
    put_some(to, stats.null_counts.as_deref(), |to, counts| {
        if !counts.is_empty() {
            put_long(to, i64::try_from(counts.len()).unwrap_or(i64::MAX));
            for count in counts {
                put_some(to, *count, put_long);
            }
        }
        put_long(to, 0);
    });
}

fn put_entry(to: &mut Vec<u8>, entry: &ManifestEntry) {
    put_int(to, VERSION);
    put_int(to, i32::from(entry.kind == EntryKind::Delete));
    put_bytes(to, &entry.partition.0);
    put_int(to, entry.bucket);
    put_int(to, entry.total_buckets);
    let file = &entry.file;
    put_bytes(to, file.file_name.as_bytes());
    put_long(to, file.file_size);
    put_long(to, file.row_count);
    put_bytes(to, &file.min_key.0);
    put_bytes(to, &file.max_key.0);
    put_stats(to, &file.key_stats);
    put_stats(to, &file.value_stats);
    put_long(to, file.min_sequence_number);
    put_long(to, file.max_sequence_number);
    put_long(to, file.schema_id);
    put_int(to, file.level);
    put_strings(to, &file.extra_files);
    put_some(to, file.creation_time_ms, put_long);
    put_some(to, file.delete_row_count, put_long);
    put_some(to, file.embedded_file_index.as_deref(), put_bytes);
    put_some(to, file.file_source, put_int);
    put_some(to, file.value_stats_cols.as_deref(), put_strings);
    put_some(to, file.external_path.as_deref(), |to, path| put_bytes(to, path.as_bytes()));
    put_some(to, file.first_row_id, put_long);
    put_some(to, file.write_cols.as_deref(), put_strings);
}

fn put_manifest(to: &mut Vec<u8>, manifest: &ManifestFile) {
    put_int(to, VERSION);
    put_bytes(to, manifest.file_name.as_bytes());
    put_long(to, manifest.file_size);
    put_long(to, manifest.num_added_files);
    put_long(to, manifest.num_deleted_files);
    put_stats(to, &manifest.partition_stats);
    put_long(to, manifest.schema_id);
    put_some(to, manifest.min_bucket, put_int);
    put_some(to, manifest.max_bucket, put_int);
    put_some(to, manifest.min_level, put_int);
    put_some(to, manifest.max_level, put_int);
    put_some(to, manifest.min_row_id, put_long);
    put_some(to, manifest.max_row_id, put_long);
}

/// A record's fields, typed; a field that is missing is NULL.
struct Fields<'a>(Record<'a>);

impl<'a> Fields<'a> {
    fn version(&mut self) -> Result<()> {
        match self.int("_VERSION")? {
            VERSION => Ok(()),
            other => Err(Error::unsupported(format!("manifest record of version {other}"))),
        }
    }

    fn long_or_null(&mut self, name: &str) -> Result<Option<i64>> {
        match self.0.take(name) {
            Value::Null => Ok(None),
            Value::Number(value) => Ok(Some(value)),
            _ => Err(wrong_type(name)),
        }
    }

    fn int_or_null(&mut self, name: &str) -> Result<Option<i32>> {
        let narrow =
            |value| i32::try_from(value).map_err(|source| Error::data(format!("`{name}` is `{value}`")).with_source(source));
        self.long_or_null(name)?.map(narrow).transpose()
    }

    fn long(&mut self, name: &str) -> Result<i64> {
        self.long_or_null(name)?.ok_or_else(|| missing(name))
    }

    fn int(&mut self, name: &str) -> Result<i32> {
        self.int_or_null(name)?.ok_or_else(|| missing(name))
    }

    fn string_or_null(&mut self, name: &str) -> Result<Option<String>> {
        match self.0.take(name) {
            Value::Null => Ok(None),
            Value::String(value) => Ok(Some(value.to_owned())),
            _ => Err(wrong_type(name)),
        }
    }

    fn string(&mut self, name: &str) -> Result<String> {
        self.string_or_null(name)?.ok_or_else(|| missing(name))
    }

    fn bytes_or_null(&mut self, name: &str) -> Result<Option<Bytes>> {
        match self.0.take(name) {
            Value::Null => Ok(None),
            Value::Bytes(value) => Ok(Some(Bytes::copy_from_slice(value))),
            _ => Err(wrong_type(name)),
        }
    }

    fn row(&mut self, name: &str) -> Result<BinaryRow> {
        self.bytes_or_null(name)?.map(BinaryRow).ok_or_else(|| missing(name))
    }

    fn strings_or_null(&mut self, name: &str) -> Result<Option<Vec<String>>> {
        let items = match self.0.take(name) {
            Value::Null => return Ok(None),
            Value::Array(items) => items,
            _ => return Err(wrong_type(name)),
        };
        let text = |item| match item {
            Value::String(text) => Ok(text.to_owned()),
            _ => Err(wrong_type(name)),
        };
        items.into_iter().map(text).collect::<Result<_>>().map(Some)
    }

    fn record(&mut self, name: &str) -> Result<Self> {
        match self.0.take(name) {
            Value::Record(record) => Ok(Self(record)),
            Value::Null => Err(missing(name)),
            _ => Err(wrong_type(name)),
        }
    }

    fn stats(&mut self, name: &str) -> Result<SimpleStats> {
        let mut stats = self.record(name)?;
        let (min_values, max_values) = (stats.row("_MIN_VALUES")?, stats.row("_MAX_VALUES")?);
        let count = |item| match item {
            Value::Null => Ok(None),
            Value::Number(count) => Ok(Some(count)),
            _ => Err(wrong_type("_NULL_COUNTS")),
        };
        let null_counts = match stats.0.take("_NULL_COUNTS") {
            Value::Null => None,
            Value::Array(items) => Some(items.into_iter().map(count).collect::<Result<_>>()?),
            _ => return Err(wrong_type("_NULL_COUNTS")),
        };
        Ok(SimpleStats { min_values, max_values, null_counts })
    }
}

fn missing(name: &str) -> Error {
    Error::data(format!("manifest record lacks `{name}`"))
}

fn wrong_type(name: &str) -> Error {
    Error::data(format!("`{name}` of a manifest record is of another type"))
}

fn entry(mut fields: Fields<'_>) -> Result<ManifestEntry> {
    fields.version()?;
    let kind = match fields.int("_KIND")? {
        0 => EntryKind::Add,
        1 => EntryKind::Delete,
        other => return Err(Error::data(format!("manifest entry has kind `{other}`"))),
    };
    let (partition, bucket) = (fields.row("_PARTITION")?, fields.int("_BUCKET")?);
    let total_buckets = fields.int("_TOTAL_BUCKETS")?;
    let mut file = fields.record("_FILE")?;
    let file = DataFile {
        file_name: file.string("_FILE_NAME")?,
        file_size: file.long("_FILE_SIZE")?,
        row_count: file.long("_ROW_COUNT")?,
        min_key: file.row("_MIN_KEY")?,
        max_key: file.row("_MAX_KEY")?,
        key_stats: file.stats("_KEY_STATS")?,
        value_stats: file.stats("_VALUE_STATS")?,
        min_sequence_number: file.long("_MIN_SEQUENCE_NUMBER")?,
        max_sequence_number: file.long("_MAX_SEQUENCE_NUMBER")?,
        schema_id: file.long("_SCHEMA_ID")?,
        level: file.int("_LEVEL")?,
        extra_files: file.strings_or_null("_EXTRA_FILES")?.unwrap_or_default(),
        creation_time_ms: file.long_or_null("_CREATION_TIME")?,
        delete_row_count: file.long_or_null("_DELETE_ROW_COUNT")?,
        embedded_file_index: file.bytes_or_null("_EMBEDDED_FILE_INDEX")?,
        file_source: file.int_or_null("_FILE_SOURCE")?,
        value_stats_cols: file.strings_or_null("_VALUE_STATS_COLS")?,
        external_path: file.string_or_null("_EXTERNAL_PATH")?,
        first_row_id: file.long_or_null("_FIRST_ROW_ID")?,
        write_cols: file.strings_or_null("_WRITE_COLS")?,
    };
    Ok(ManifestEntry { kind, partition, bucket, total_buckets, file })
}

fn manifest(mut fields: Fields<'_>) -> Result<ManifestFile> {
    fields.version()?;
    Ok(ManifestFile {
        file_name: fields.string("_FILE_NAME")?,
        file_size: fields.long("_FILE_SIZE")?,
        num_added_files: fields.long("_NUM_ADDED_FILES")?,
        num_deleted_files: fields.long("_NUM_DELETED_FILES")?,
        partition_stats: fields.stats("_PARTITION_STATS")?,
        schema_id: fields.long("_SCHEMA_ID")?,
        min_bucket: fields.int_or_null("_MIN_BUCKET")?,
        max_bucket: fields.int_or_null("_MAX_BUCKET")?,
        min_level: fields.int_or_null("_MIN_LEVEL")?,
        max_level: fields.int_or_null("_MAX_LEVEL")?,
        min_row_id: fields.long_or_null("_MIN_ROW_ID")?,
        max_row_id: fields.long_or_null("_MAX_ROW_ID")?,
    })
}

impl ManifestFile {
    /// The list entry of a manifest of `file_size` bytes that holds `entries`.
    ///
    /// # Errors
    /// `Data` when a partition row does not fit `partition_types`.
    pub fn of(
        file_name: impl Into<String>,
        file_size: i64,
        entries: &[ManifestEntry],
        partition_types: &[DataType],
    ) -> Result<Self> {
        let count = |kind| i64::try_from(entries.iter().filter(|entry| entry.kind == kind).count()).unwrap_or(i64::MAX);
        let buckets = || entries.iter().map(|entry| entry.bucket);
        let levels = || entries.iter().map(|entry| entry.file.level);
        let row_ids: Option<Vec<(i64, i64)>> = entries
            .iter()
            .map(|entry| entry.file.first_row_id.map(|first| (first, first.saturating_add(entry.file.row_count).saturating_sub(1))))
            .collect();
        let row_ids = row_ids.unwrap_or_default();
        Ok(Self {
            file_name: file_name.into(),
            file_size,
            num_added_files: count(EntryKind::Add),
            num_deleted_files: count(EntryKind::Delete),
            partition_stats: partition_stats(entries, partition_types)?,
            schema_id: entries.iter().map(|entry| entry.file.schema_id).max().unwrap_or(0),
            min_bucket: buckets().min(),
            max_bucket: buckets().max(),
            min_level: levels().min(),
            max_level: levels().max(),
            min_row_id: row_ids.iter().map(|(first, _)| *first).min(),
            max_row_id: row_ids.iter().map(|(_, last)| *last).max(),
        })
    }

    /// Whether it may hold entries of `partition` (its row and its values), as far as its partition statistics tell.
    #[must_use]
    pub fn may_hold(&self, partition: &[Option<Datum>], types: &[DataType]) -> bool {
        let stats = &self.partition_stats;
        let (Ok(min), Ok(max)) = (stats.min_values.read(types), stats.max_values.read(types)) else { return true };
        let nulls = |index: usize| stats.null_counts.as_ref().and_then(|counts| counts.get(index).copied()).flatten();
        partition.iter().zip(min.iter().zip(&max)).enumerate().all(|(index, (value, bounds))| match (value, bounds) {
            (None, _) => nulls(index) != Some(0),
            (Some(value), (Some(min), Some(max))) => {
                compare(value, min) != Some(Ordering::Less) && compare(value, max) != Some(Ordering::Greater)
            }
            (Some(_), _) => true,
        })
    }
}

fn partition_stats(entries: &[ManifestEntry], types: &[DataType]) -> Result<SimpleStats> {
    let mut columns = vec![ColumnStats { null_count: Some(0), ..ColumnStats::default() }; types.len()];
    let mut unknown = vec![false; types.len()];
    let mut last: Option<&BinaryRow> = None;
    let mut values = Vec::new();
    for entry in entries {
        // Entries of one partition mostly stand together: read its row once.
        if last != Some(&entry.partition) {
            values = entry.partition.read(types)?;
            last = Some(&entry.partition);
        }
        for ((column, unknown), value) in columns.iter_mut().zip(&mut unknown).zip(&values) {
            match value {
                None => column.null_count = column.null_count.map(|count| count + 1),
                // Java keeps no bounds of byte strings; NaN has no place in an order that all readers share.
                Some(value) if compare(value, value).is_none() => *unknown = true,
                Some(value) => widen(column, value),
            }
        }
    }
    for (column, _) in columns.iter_mut().zip(unknown).filter(|(_, unknown)| *unknown) {
        (column.min, column.max) = (None, None);
    }
    simple_stats(types, &columns)
}

fn widen(column: &mut ColumnStats, value: &Datum) {
    if column.min.as_ref().is_none_or(|min| compare(value, min) == Some(Ordering::Less)) {
        column.min = Some(value.clone());
    }
    if column.max.as_ref().is_none_or(|max| compare(value, max) == Some(Ordering::Greater)) {
        column.max = Some(value.clone());
    }
}

/// Order of two values of one column as Java has it; `None` where there is none: NaN, byte strings, different types.
fn compare(a: &Datum, b: &Datum) -> Option<Ordering> {
    let floats = |a: f64, b: f64| (!a.is_nan() && !b.is_nan()).then(|| a.total_cmp(&b));
    match (a, b) {
        (Datum::Boolean(a), Datum::Boolean(b)) => Some(a.cmp(b)),
        (Datum::TinyInt(a), Datum::TinyInt(b)) => Some(a.cmp(b)),
        (Datum::SmallInt(a), Datum::SmallInt(b)) => Some(a.cmp(b)),
        (Datum::Int(a), Datum::Int(b)) | (Datum::Date(a), Datum::Date(b)) | (Datum::Time(a), Datum::Time(b)) => Some(a.cmp(b)),
        (Datum::BigInt(a), Datum::BigInt(b)) => Some(a.cmp(b)),
        (Datum::Float(a), Datum::Float(b)) => floats(f64::from(*a), f64::from(*b)),
        (Datum::Double(a), Datum::Double(b)) => floats(*a, *b),
        (Datum::Decimal { unscaled: a, .. }, Datum::Decimal { unscaled: b, .. }) => Some(a.cmp(b)),
        (Datum::String(a), Datum::String(b)) => Some(a.as_bytes().cmp(b.as_bytes())),
        (Datum::Timestamp { millis, nanos }, Datum::Timestamp { millis: other_millis, nanos: other_nanos }) => {
            Some((millis, nanos).cmp(&(other_millis, other_nanos)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
