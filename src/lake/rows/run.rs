//! One sorted run of a primary-key bucket: files one after the other in key order, block by block (P7.3, P7.4, P9.1).

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int8Type;
use arrow_array::{Array, Int8Array, RecordBatch};
use arrow_cast::cast;
use arrow_row::{OwnedRow, Rows};
use arrow_schema::DataType as ArrowType;

use super::bytes::Share;
use super::{Blocks, Column, arrow_fault, check_rows, open, shape};
use crate::error::{Error, Result};
use crate::lake::LakeTable;
use crate::model::Datum;
use crate::paimon::{KeyOrder, ManifestEntry, TableSchema, compare_values};

pub(super) const SEQUENCE: &str = "_SEQUENCE_NUMBER";
pub(super) const KIND: &str = "_VALUE_KIND";

/// How rows of a table are compared: by key, then by what decides between versions.
#[derive(Debug)]
pub(super) struct Order {
    keys: KeyOrder,
    /// `sequence.field`, then the sequence number.
    versions: KeyOrder,
}

impl Order {
    pub(super) fn of(schema: &TableSchema, version_names: Vec<String>) -> Result<Self> {
        let keys = KeyOrder::new(schema, schema.trimmed_primary_keys(), &[])?;
        Ok(Self { keys, versions: KeyOrder::new(schema, version_names, &[ArrowType::Int64])? })
    }

    /// Columns that merging needs beside those that are asked for.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.keys.names().iter().chain(self.versions.names()).map(String::as_str)
    }

    fn block(&self, stored: &RecordBatch, columns: &[Column]) -> Result<Block> {
        let batch = shape(stored, columns)?;
        let system = |name: &str, data_type: &ArrowType| {
            let values = stored.column_by_name(name).ok_or_else(|| Error::data(format!("no column `{name}`")))?;
            let values = cast(values, data_type).map_err(arrow_fault)?;
            if values.null_count() > 0 { Err(Error::data(format!("column `{name}` has NULLs"))) } else { Ok(values) }
        };
        let picked = |names: &[String]| {
            let column =
                |name: &String| batch.column_by_name(name).cloned().ok_or_else(|| Error::internal("a key column is not there"));
            names.iter().map(column).collect::<Result<Vec<_>>>()
        };
        let keys = self.keys.rows(&picked(self.keys.names())?)?;
        let mut versions = picked(self.versions.names())?;
        versions.push(system(SEQUENCE, &ArrowType::Int64)?);
        let versions = self.versions.rows(&versions)?;
        let kinds = system(KIND, &ArrowType::Int8)?.as_primitive::<Int8Type>().clone();
        if let Some(kind) = kinds.values().iter().find(|kind| !(0..=3).contains(*kind)) {
            return Err(Error::data(format!("row kind {kind}")));
        }
        if let Some(at) = (1..keys.num_rows()).find(|at| keys.row(at - 1) >= keys.row(*at)) {
            return Err(Error::data(format!(
                "row {at} of a block is not above the one before it: the file is not sorted by its key"
            )));
        }
        Ok(Block { batch, keys, versions, kinds, at: 0 })
    }
}

/// Decoded rows of a file, and where the merge stands in them.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) batch: RecordBatch,
    keys: Rows,
    versions: Rows,
    kinds: Int8Array,
    pub(super) at: usize,
}

impl Block {
    pub(super) fn key(&self) -> arrow_row::Row<'_> {
        self.keys.row(self.at)
    }

    pub(super) fn version(&self) -> arrow_row::Row<'_> {
        self.versions.row(self.at)
    }

    /// −U and −D take the key away.
    pub(super) fn retracts(&self) -> bool {
        self.kinds.values().get(self.at).is_some_and(|kind| kind % 2 == 1)
    }

    pub(super) fn is_done(&self) -> bool {
        self.at >= self.keys.num_rows()
    }
}

/// A file of a run.
#[derive(Debug)]
pub(super) struct RunFile {
    pub(super) entry: ManifestEntry,
    pub(super) schema: Arc<TableSchema>,
    pub(super) columns: Arc<[Column]>,
}

struct Open {
    file: RunFile,
    place: String,
    reader: Blocks,
    rows: usize,
}

/// The files of a run that are still to be read. One is open at a time: its bytes and a decoded block are held.
pub(super) struct Run {
    files: VecDeque<RunFile>,
    open: Option<Open>,
    last: Option<OwnedRow>,
    /// That of all runs of the merge.
    share: Share,
}

impl Run {
    /// Reads the next block with rows; `None` at the end.
    pub(super) async fn next_block(&mut self, table: &LakeTable, order: &Arc<Order>) -> Result<Option<Block>> {
        loop {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => match self.files.pop_front() {
                    Some(file) => open_file(table, file, &self.share).await?,
                    None => return Ok(None),
                },
            };
            let order = Arc::clone(order);
            let (open, block) = table
                .runtime
                .encoders
                .run(move || {
                    let block = open.reader.next().map(|stored| order.block(&stored?, &open.file.columns));
                    (open, block.transpose())
                })
                .await?;
            let at = |error| table.at(error, &open.place);
            let Some(block) = block.map_err(at)? else {
                check_rows(open.rows, &open.file.entry).map_err(at)?;
                continue;
            };
            let rows = block.keys.num_rows();
            if rows > 0 {
                if self.last.as_ref().is_some_and(|last| last.row() >= block.keys.row(0)) {
                    return Err(at(Error::data("its keys do not follow those before: the run is not sorted")));
                }
                self.last = Some(block.keys.row(rows - 1).owned());
            }
            self.open = Some(Open { rows: open.rows + rows, ..open });
            if rows > 0 {
                return Ok(Some(block));
            }
        }
    }
}

async fn open_file(table: &LakeTable, file: RunFile, share: &Share) -> Result<Open> {
    let (place, bytes) = table.file_bytes(&file.schema, &file.entry, (&file.columns, &[SEQUENCE, KIND]), share).await?;
    let columns = Arc::clone(&file.columns);
    let reader = table.runtime.encoders.run(move || open(bytes, &columns, &[SEQUENCE, KIND])).await?;
    let reader = reader.map_err(|error| table.at(error, &place))?;
    Ok(Open { file, place, reader, rows: 0 })
}

/// The runs of a bucket: each file of level 0 is one, and so is each level above (P9.1). In the order of the manifest, upper levels first.
pub(super) fn runs_of(files: Vec<RunFile>, share: &Share) -> Result<Vec<Run>> {
    let mut levels: BTreeMap<i32, Vec<RunFile>> = BTreeMap::new();
    for file in files {
        levels.entry(file.entry.file.level).or_default().push(file);
    }
    let run = |files: VecDeque<RunFile>| Run { files, open: None, last: None, share: share.clone() };
    let zero = levels.remove(&0).unwrap_or_default();
    let mut runs = Vec::new();
    for files in levels.into_values().rev() {
        let key_of = |file: RunFile| {
            let types = file.schema.types_of(&file.schema.trimmed_primary_keys())?;
            Ok((file.entry.file.min_key.read(&types)?, file))
        };
        let mut keyed = files.into_iter().map(key_of).collect::<Result<Vec<_>>>()?;
        keyed.sort_by(|(one, _), (other, _)| compare_keys(one, other));
        runs.push(run(keyed.into_iter().map(|(_, file)| file).collect()));
    }
    runs.extend(zero.into_iter().map(|file| run(VecDeque::from([file]))));
    Ok(runs)
}

fn compare_keys(one: &[Option<Datum>], other: &[Option<Datum>]) -> Ordering {
    let compare = |(one, other): (&Option<Datum>, &Option<Datum>)| match (one, other) {
        (Some(one), Some(other)) => compare_values(one, other),
        (one, other) => one.is_some().cmp(&other.is_some()),
    };
    one.iter().zip(other).map(compare).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}
