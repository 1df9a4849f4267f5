//! What a row of a file does in a primary-key table: it upserts, deletes, or is only the image before an update.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_cast::cast;
use arrow_schema::DataType as ArrowType;

use super::values::{BadValue, Fault, shown};
use crate::error::{Error, Result};
use crate::model::TypeKind;

/// The column that tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeColumn {
    /// Rows in which this column is true are deletes.
    Delete(String),
    /// This column names the operation, as Debezium (`c`, `r`, `u`, `d`), Flink (`+I`, `-U`, `+U`, `-D`) and people do.
    Op(String),
}

impl ChangeColumn {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Delete(name) | Self::Op(name) => name,
        }
    }

    fn read(&self, text: Option<&str>) -> Result<Act, String> {
        let word = text.unwrap_or_default().trim().to_ascii_lowercase();
        match self {
            Self::Delete(_) => match word.as_str() {
                "true" | "t" | "yes" | "y" | "1" => Ok(Act::Delete),
                "false" | "f" | "no" | "n" | "0" | "" => Ok(Act::Upsert),
                _ => Err(format!("`{}` is neither true nor false", shown(&word))),
            },
            Self::Op(_) => match word.as_str() {
                "c" | "r" | "u" | "i" | "create" | "read" | "insert" | "update" | "upsert" | "update_after" | "+i" | "+u" => {
                    Ok(Act::Upsert)
                }
                "d" | "delete" | "-d" => Ok(Act::Delete),
                "-u" | "update_before" => Ok(Act::Nothing),
                "" => Err("no operation".to_owned()),
                _ => {
                    Err(format!("`{}` is no operation that a row can be: `c`, `r`, `u`, `d`, insert, update, delete", shown(&word)))
                }
            },
        }
    }

    /// What each row does, by the column as the file has it, or as the table does.
    ///
    /// # Errors
    /// [`Fault::Values`] for rows that say nothing known, `faults_max` of them at most.
    pub(super) fn acts(&self, column: &ArrayRef, faults_max: usize) -> Result<Vec<Act>, Fault> {
        let text = cast(column, &ArrowType::Utf8).map_err(|source| {
            Error::invalid(format!("column `{}` is {}, no text, number or truth value", self.name(), column.data_type()))
                .with_source(source)
        })?;
        let text = text.as_string::<i32>();
        let (mut acts, mut bad) = (Vec::with_capacity(text.len()), Vec::new());
        for row in 0..text.len() {
            match self.read(text.is_valid(row).then(|| text.value(row))) {
                Ok(act) => acts.push(act),
                Err(why) if bad.len() < faults_max => bad.push(BadValue { row, path: self.name().to_owned(), why }),
                Err(_) => {}
            }
        }
        if bad.is_empty() { Ok(acts) } else { Err(Fault::Values(bad)) }
    }
}

/// Whether a column of Parquet can tell what rows do.
pub(super) fn tells(source: &ArrowType) -> bool {
    match source {
        ArrowType::Dictionary(_, values) => tells(values),
        ArrowType::Boolean | ArrowType::Utf8 | ArrowType::LargeUtf8 | ArrowType::Utf8View | ArrowType::Null => true,
        other => other.is_integer(),
    }
}

/// Whether a column of the table can.
pub(super) fn is_word(kind: &TypeKind) -> bool {
    matches!(
        kind,
        TypeKind::Boolean
            | TypeKind::TinyInt
            | TypeKind::SmallInt
            | TypeKind::Int
            | TypeKind::BigInt
            | TypeKind::String
            | TypeKind::Char { .. }
    )
}

/// What one row does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Upsert,
    Delete,
    /// The row before an update: the update brings what is needed.
    Nothing,
}
