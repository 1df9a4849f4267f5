//! Rows in files: JSON lines, CSV and Parquet as batches of a table's columns, each row with its place.
//!
//! Owns cutting files into chunks (`Files`, blocking, in order), reading chunks by the table's schema (`Chunk::read`, any
//! thread), and saying what is wrong where. Columns go by name; a nullable one that is missing is NULL. Called by
//! [`load`](super::load).

mod changes;
mod csv;
mod json;
mod moments;
mod nested;
mod parquet;
mod text;
mod values;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, new_null_array};
use arrow_schema::SchemaRef;
use arrow_select::filter::filter_record_batch;
use strsim::normalized_damerau_levenshtein;

pub use self::changes::ChangeColumn;
use self::changes::{Act, is_word};
use self::csv::Header;
use self::text::{Cutter, Form, Records};
use self::values::{BadValue, Fault, Reading, column};
use crate::error::{Error, Result};
use crate::fluss::record::{arrow_schema, arrow_type};
use crate::model::{DataType, Field, Schema, TypeKind};
use crate::paimon::type_text;

/// Bytes of a file that are read as one chunk, about.
const CHUNK_BYTES: usize = 8 << 20;

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// One JSON object per line.
    Json,
    /// Comma-separated values (or another delimiter), RFC 4180.
    Csv,
    /// Apache Parquet.
    Parquet,
}

/// How bytes are written in text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum BytesText {
    /// As Flink's JSON and CSV formats do.
    #[default]
    Base64,
    /// Two digits a byte, with or without `0x`.
    Hex,
}

/// Where rows come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A file.
    File(PathBuf),
    /// The standard input: JSON or CSV.
    Stdin,
}

impl Input {
    /// How messages name it.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Stdin => "-".to_owned(),
        }
    }

    /// The format that the file's name tells.
    ///
    /// # Errors
    /// `Invalid` when it tells none; `Unsupported` when it tells of compression.
    pub fn format(&self) -> Result<Format> {
        let name = self.name();
        let extension = Path::new(&name).extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        match extension.to_ascii_lowercase().as_str() {
            "json" | "jsonl" | "ndjson" => Ok(Format::Json),
            "csv" => Ok(Format::Csv),
            "parquet" | "parq" => Ok(Format::Parquet),
            "gz" | "zst" | "bz2" | "xz" => Err(Error::unsupported(format!("compressed input `{name}`"))
                .with_hint("unpack it and pipe it in: `zcat F | lakeward load DB.TABLE -`")),
            _ => Err(Error::invalid(format!("the name `{name}` tells no format"))
                .with_hint("name it with `--format json`, `csv` or `parquet`")),
        }
    }
}

/// How files are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileOptions {
    /// Format of all of them; `None` = by each one's name, JSON from the standard input.
    pub format: Option<Format>,
    /// How bytes are written in text.
    pub bytes: BytesText,
    /// Between the fields of CSV.
    pub delimiter: u8,
    /// Whether CSV starts with a line of column names; else its columns are the table's, in order.
    pub header: bool,
    /// The text that stands for NULL in CSV, when not quoted.
    pub null: String,
    /// Whether columns that the table does not have are left out.
    pub ignore_unknown: bool,
    /// Bad rows that are left out before it is an error.
    pub bad_rows_max: usize,
    /// First line (Parquet: row) of the first file that is read, from 1.
    pub from_line: u64,
    /// What tells deletes from upserts; `None` = there are no deletes. Only for tables with a primary key.
    pub changes: Option<ChangeColumn>,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            format: None,
            bytes: BytesText::Base64,
            delimiter: b',',
            header: true,
            null: String::new(),
            ignore_unknown: false,
            bad_rows_max: 0,
            from_line: 1,
            changes: None,
        }
    }
}

/// The table's columns, and how values become theirs.
#[derive(Debug)]
pub(super) struct Columns {
    /// The table's, in order, and behind them the one that tells what rows do, unless it is one of the table's.
    fields: Vec<Field>,
    /// Of the table's columns; with `changes` all but the key are nullable, since a delete needs the key only.
    arrow: SchemaRef,
    primary_key: Vec<String>,
    /// What tells what rows do, and its position among `fields`.
    changes: Option<(ChangeColumn, usize)>,
    /// Columns that are NOT NULL in the table, but may be NULL in deletes.
    upserted: Vec<usize>,
    bytes: BytesText,
    delimiter: u8,
    null: String,
    ignore_unknown: bool,
    /// Bad values that are told at once.
    faults_max: usize,
}

impl Columns {
    /// Columns of `schema`.
    ///
    /// # Errors
    /// `Invalid` when the schema has a type that Fluss does not have, or the column that tells what rows do can't do so.
    pub(super) fn new(schema: &Schema, options: &FileOptions) -> Result<Self> {
        let mut schema = schema.clone();
        let mut upserted = Vec::new();
        if options.changes.is_some() {
            for (at, field) in schema.fields.iter_mut().enumerate().filter(|(_, field)| !schema.primary_key.contains(&field.name)) {
                if !std::mem::replace(&mut field.data_type.nullable, true) {
                    upserted.push(at);
                }
            }
        }
        let arrow = arrow_schema(&schema)?;
        let mut fields = schema.fields;
        let changes = options.changes.clone().map(|changes| {
            let name = changes.name().to_owned();
            let place = match fields.iter().position(|field| field.name == name) {
                Some(place) => place,
                None => {
                    let data_type = DataType::nullable(TypeKind::String);
                    fields.push(Field { id: -1, name, data_type, comment: None });
                    fields.len() - 1
                }
            };
            (changes, place)
        });
        if let Some(field) =
            changes.as_ref().and_then(|(_, place)| fields.get(*place)).filter(|field| !is_word(&field.data_type.kind))
        {
            let text = format!("column `{}` of the table is {}", field.name, type_text(&field.data_type));
            return Err(Error::invalid(text).with_hint("what tells deletes is a text, a number or a truth value"));
        }
        Ok(Self {
            fields,
            arrow,
            primary_key: schema.primary_key,
            changes,
            upserted,
            bytes: options.bytes,
            delimiter: options.delimiter,
            null: options.null.clone(),
            ignore_unknown: options.ignore_unknown,
            faults_max: options.bad_rows_max.saturating_add(1),
        })
    }

    /// Position of column `name`; `None` = to be left out.
    fn place(&self, name: &str) -> Result<Option<usize>> {
        let place = self.fields.iter().position(|field| field.name == name);
        if place.is_none() && !self.ignore_unknown {
            return Err(Error::invalid(Self::unknown(name, &self.fields)).with_hint(IGNORE_UNKNOWN));
        }
        Ok(place)
    }

    fn unknown(name: &str, fields: &[Field]) -> String {
        let last = name.rsplit('.').next().unwrap_or_default().to_lowercase();
        let likeness = |field: &&Field| normalized_damerau_levenshtein(&last, &field.name.to_lowercase());
        // What tells what rows do is a column of the file alone.
        let (own, told): (Vec<&Field>, Vec<&Field>) = fields.iter().partition(|field| field.id >= 0);
        let nearest =
            own.into_iter().max_by(|one, other| likeness(one).total_cmp(&likeness(other))).filter(|field| likeness(field) > 0.4);
        let meant = nearest.map_or_else(String::new, |field| format!("; the nearest is `{}`", field.name));
        let told = told.first().map_or_else(String::new, |told| {
            format!(", and what rows do is told by column `{}` (`--op-column`, `--delete-column`)", told.name)
        });
        format!("the table has no column `{}`{told}{meant}", values::shown(name))
    }

    /// Refuses that a file leaves out a column which has to have values.
    fn may_miss(&self, field: &Field, is_there: bool) -> Result<()> {
        if is_there || field.data_type.nullable {
            return Ok(());
        }
        let why = if self.primary_key.contains(&field.name) { "of the primary key" } else { "NOT NULL" };
        Err(Error::invalid(format!("column `{}` is missing, and it is {why}", field.name)))
    }
}

const IGNORE_UNKNOWN: &str = "`--ignore-unknown` leaves such columns out";

/// The name that is in `names` twice.
fn twice(names: &[String]) -> Option<&String> {
    names.iter().enumerate().find(|(at, name)| names.get(..*at).is_some_and(|before| before.contains(name))).map(|(_, name)| name)
}

/// Some whole rows of one file, as they stand there.
#[derive(Debug)]
pub(super) struct Chunk {
    source: Arc<Source>,
    content: Content,
    /// Bytes of the file, about.
    pub(super) bytes: u64,
}

#[derive(Debug)]
pub(super) struct Source {
    pub(super) name: String,
    /// What its rows are counted in.
    pub(super) unit: &'static str,
}

impl Source {
    /// How messages name a place.
    pub(super) fn place(&self, line: u64) -> String {
        format!("`{}` {} {line}", self.name, self.unit)
    }
}

#[derive(Debug)]
enum Content {
    Json(Records),
    Csv(Records, Arc<Header>),
    Rows(RecordBatch, u64),
}

/// Rows that fit the table.
#[derive(Debug)]
pub(super) struct ReadRows {
    pub(super) source: Arc<Source>,
    pub(super) rows: RecordBatch,
    /// Which of them are deletes; empty = none.
    pub(super) deletes: Vec<bool>,
    /// Images before updates, which were left out.
    pub(super) ignored: u64,
    /// Line of each row (Parquet: its number).
    pub(super) lines: Vec<u64>,
    /// What was wrong with rows that were left out.
    pub(super) bad: Vec<String>,
    /// Bytes of the file, about.
    pub(super) bytes: u64,
}

impl Chunk {
    /// File, and line of the first row.
    pub(super) fn start(&self) -> (Arc<Source>, u64) {
        (Arc::clone(&self.source), self.line(0))
    }

    fn line(&self, index: usize) -> u64 {
        match &self.content {
            Content::Json(records) | Content::Csv(records, _) => records.list.get(index).map_or(1, |record| record.line),
            Content::Rows(_, first) => first + index as u64,
        }
    }

    fn len(&self) -> usize {
        match &self.content {
            Content::Json(records) | Content::Csv(records, _) => records.list.len(),
            Content::Rows(batch, _) => batch.num_rows(),
        }
    }

    /// Reads the rows.
    ///
    /// # Errors
    /// `Invalid` names file, line, column and value of the first bad row, when there are more than may be left out.
    pub(super) fn read(&self, columns: &Columns) -> Result<ReadRows> {
        let mut selection: Vec<usize> = (0..self.len()).collect();
        let mut told = Vec::new();
        loop {
            let bad = match self.batch(&selection, columns) {
                Ok((rows, acts)) => {
                    let mut lines: Vec<u64> = selection.iter().map(|index| self.line(*index)).collect();
                    let mut kept = acts.iter().map(|act| *act != Act::Nothing);
                    lines.retain(|_| kept.next().unwrap_or(true));
                    let rows = without_images(rows, &acts)?;
                    let deletes = acts.iter().filter(|act| **act != Act::Nothing).map(|act| *act == Act::Delete).collect();
                    let ignored = acts.iter().filter(|act| **act == Act::Nothing).count() as u64;
                    let source = Arc::clone(&self.source);
                    return Ok(ReadRows { source, rows, deletes, ignored, lines, bad: told, bytes: self.bytes });
                }
                Err(Fault::Other(error)) => return Err(error.context(self.source.place(self.line(0)))),
                Err(Fault::Values(mut bad)) => {
                    bad.sort_by_key(|bad| bad.row);
                    bad.dedup_by_key(|bad| bad.row);
                    bad
                }
            };
            for bad in &bad {
                let line = selection.get(bad.row).map_or(1, |index| self.line(*index));
                let column = if bad.path.is_empty() { String::new() } else { format!(", column `{}`", bad.path) };
                told.push(format!("{}{column}: {}", self.source.place(line), bad.why));
                if told.len() >= columns.faults_max {
                    return Err(bad_row(told.pop().unwrap_or_default()));
                }
            }
            let mut index = 0;
            selection.retain(|_| {
                index += 1;
                bad.binary_search_by_key(&(index - 1), |bad| bad.row).is_err()
            });
        }
    }

    /// The rows, and what each does; nothing said = upserts.
    fn batch(&self, selection: &[usize], columns: &Columns) -> Result<(RecordBatch, Vec<Act>), Fault> {
        let mut found = match &self.content {
            Content::Json(records) => json::read(records, selection, columns)?,
            Content::Csv(records, header) => csv::read(records, selection, header, columns)?,
            Content::Rows(batch, _) => parquet::read(batch, selection, columns)?,
        };
        let reading = Reading { bytes: columns.bytes, faults_max: columns.faults_max };
        let table_columns = columns.arrow.fields().len();
        let told = found.get(table_columns).cloned().flatten();
        found.truncate(table_columns);
        let made = found.into_iter().zip(&columns.fields).map(|(array, field)| match array {
            Some(array) => column(&array, &field.name, &field.data_type, reading),
            None => Ok(new_null_array(&arrow_type(&field.data_type.kind)?, selection.len())),
        });
        let arrays = made.collect::<Result<Vec<ArrayRef>, Fault>>()?;
        let mut acts = Vec::new();
        if let Some((changes, place)) = &columns.changes {
            let told = told.as_ref().or_else(|| arrays.get(*place));
            let told = told.ok_or_else(|| Error::invalid(format!("the file has no column `{}`", changes.name())))?;
            acts = changes.acts(told, columns.faults_max)?;
            for at in &columns.upserted {
                let (Some(array), Some(field)) = (arrays.get(*at), columns.fields.get(*at)) else { continue };
                let is_missing = |row: &usize| array.is_null(*row) && acts.get(*row) == Some(&Act::Upsert);
                let why = || "no value, and the column is NOT NULL (a delete may leave it out)".to_owned();
                let bad = (0..array.len()).filter(is_missing).take(columns.faults_max);
                let bad: Vec<_> = bad.map(|row| BadValue { row, path: field.name.clone(), why: why() }).collect();
                if !bad.is_empty() {
                    return Err(Fault::Values(bad));
                }
            }
        }
        let batch = RecordBatch::try_new(Arc::clone(&columns.arrow), arrays);
        Ok((batch.map_err(|source| Error::internal("put columns together").with_source(source))?, acts))
    }
}

fn without_images(rows: RecordBatch, acts: &[Act]) -> Result<RecordBatch> {
    if !acts.contains(&Act::Nothing) {
        return Ok(rows);
    }
    let kept: BooleanArray = acts.iter().map(|act| Some(*act != Act::Nothing)).collect();
    filter_record_batch(&rows, &kept).map_err(|source| Error::internal("leave out images before updates").with_source(source))
}

/// What stops a load at a bad row.
pub(super) fn bad_row(told: String) -> Error {
    Error::invalid(told).with_hint("`--skip-bad N` leaves up to N such rows out, `--ignore-unknown` unknown columns")
}

/// Chunks of all files, one after the other. Blocks while it reads.
#[derive(Debug)]
pub(super) struct Files {
    inputs: std::vec::IntoIter<Input>,
    columns: Arc<Columns>,
    options: FileOptions,
    open: Option<(Arc<Source>, Open)>,
    is_first: bool,
}

enum Open {
    Text(Cutter<Box<dyn Read + Send>>, Option<Arc<Header>>),
    Parquet(parquet::Rows),
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Self::Text(..)) { "Text" } else { "Parquet" })
    }
}

impl Files {
    pub(super) fn new(inputs: Vec<Input>, columns: Arc<Columns>, options: FileOptions) -> Self {
        Self { inputs: inputs.into_iter(), columns, options, open: None, is_first: true }
    }

    /// The next chunk; `None` behind the last file.
    ///
    /// # Errors
    /// `Invalid` names the file that can't be read, or whose columns don't fit.
    pub(super) fn next(&mut self) -> Result<Option<Chunk>> {
        loop {
            if self.open.is_none() {
                let Some(input) = self.inputs.next() else { return Ok(None) };
                self.open = Some(self.opened(&input).map_err(|error| error.context(format!("load `{}`", input.name())))?);
            }
            let Some((source, open)) = &mut self.open else { continue };
            let named = |error: Error| error.context(format!("load `{}`", source.name));
            let from = if self.is_first { self.options.from_line } else { 1 };
            let content = match open {
                Open::Parquet(rows) => {
                    rows.next().map_err(named)?.map(|(batch, first, bytes)| (Content::Rows(batch, first), bytes))
                }
                Open::Text(cutter, header) => cutter.next().map_err(named)?.map(|mut records| {
                    let bytes = records.len();
                    records.list.retain(|record| record.line >= from);
                    match header {
                        Some(header) => (Content::Csv(records, Arc::clone(header)), bytes),
                        None => (Content::Json(records), bytes),
                    }
                }),
            };
            match content {
                Some((content, bytes)) => {
                    let chunk = Chunk { source: Arc::clone(source), content, bytes };
                    if chunk.len() > 0 {
                        return Ok(Some(chunk));
                    }
                }
                None => {
                    self.open = None;
                    self.is_first = false;
                }
            }
        }
    }

    fn opened(&self, input: &Input) -> Result<(Arc<Source>, Open)> {
        let format = match (self.options.format, input) {
            (Some(format), _) => format,
            (None, Input::Stdin) => Format::Json,
            (None, Input::File(_)) => input.format()?,
        };
        let from = if self.is_first { self.options.from_line.max(1) } else { 1 };
        let open = match (format, input) {
            (Format::Parquet, Input::Stdin) => {
                return Err(Error::invalid("Parquet can't be read from a pipe").with_hint("name the file"));
            }
            (Format::Parquet, Input::File(path)) => Open::Parquet(parquet::Rows::open(path, &self.columns, from)?),
            (Format::Json, _) => Open::Text(Cutter::new(reader(input)?, Form::Lines, CHUNK_BYTES), None),
            (Format::Csv, _) => {
                let delimiter = self.columns.delimiter;
                let mut cutter = Cutter::new(reader(input)?, Form::Csv { delimiter }, CHUNK_BYTES);
                let header = if self.options.header {
                    Header::read(&cutter.header()?, delimiter, &self.columns)?
                } else {
                    Header::of_table(&self.columns)?
                };
                Open::Text(cutter, Some(Arc::new(header)))
            }
        };
        let unit = if format == Format::Parquet { "row" } else { "line" };
        Ok((Arc::new(Source { name: input.name(), unit }), open))
    }
}

fn reader(input: &Input) -> Result<Box<dyn Read + Send>> {
    Ok(match input {
        Input::Stdin => Box::new(std::io::stdin()),
        Input::File(path) => Box::new(File::open(path).map_err(|source| Error::invalid("open the file").with_source(source))?),
    })
}

/// Reads all rows of one file that lies in memory, for [`crate::hostile`].
#[cfg(any(test, fuzzing))]
pub(crate) fn read_bytes(bytes: &[u8], format: Format, schema: &Schema, options: &FileOptions) -> Result<usize> {
    let columns = Arc::new(Columns::new(schema, options)?);
    let mut files = Files::new(vec![Input::Stdin], Arc::clone(&columns), FileOptions { format: Some(format), ..options.clone() });
    let text = || Box::new(std::io::Cursor::new(bytes.to_vec())) as Box<dyn Read + Send>;
    let named = |error: Error| error.context("load `fuzz`");
    let open = match format {
        Format::Parquet => Open::Parquet(parquet::Rows::of(bytes::Bytes::copy_from_slice(bytes), &columns, 1).map_err(named)?),
        Format::Json => Open::Text(Cutter::new(text(), Form::Lines, CHUNK_BYTES), None),
        Format::Csv => {
            let mut cutter = Cutter::new(text(), Form::Csv { delimiter: b',' }, CHUNK_BYTES);
            let header = cutter.header().and_then(|header| Header::read(&header, b',', &columns)).map_err(named)?;
            Open::Text(cutter, Some(Arc::new(header)))
        }
    };
    files.inputs = Vec::new().into_iter();
    files.open = Some((Arc::new(Source { name: "fuzz".to_owned(), unit: "line" }), open));
    let mut rows = 0;
    while let Some(chunk) = files.next()? {
        rows += chunk.read(&columns)?.rows.num_rows();
    }
    Ok(rows)
}

#[cfg(test)]
mod tests;
