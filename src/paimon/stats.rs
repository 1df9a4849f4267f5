//! Statistics of columns: modes, cutting of long texts, and the rows that manifests keep (P4.6).

use super::meta::{BinaryRow, SimpleStats};
use crate::error::{Error, Result};
use crate::model::{DataType, Datum, Field, TypeKind};

/// How much is kept of a column's statistics (options `metadata.stats-mode`, `fields.<column>.stats-mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StatsMode {
    /// Nothing.
    None,
    /// The number of NULLs.
    Counts,
    /// Bounds too, texts cut to this many code points.
    Truncate(usize),
    /// Exact bounds.
    Full,
}

impl StatsMode {
    /// Reads the text of an option: `none`, `counts`, `truncate(16)`, `full`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_lowercase();
        match text.as_str() {
            "none" => Some(Self::None),
            "counts" => Some(Self::Counts),
            "full" => Some(Self::Full),
            _ => {
                let length = text.strip_prefix("truncate(")?.strip_suffix(')')?.trim().parse().ok()?;
                (length > 0).then_some(Self::Truncate(length))
            }
        }
    }
}

/// Bounds and NULL count of one column of one file; `None` = unknown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ColumnStats {
    /// At most the smallest value; `None` also when all are NULL.
    pub min: Option<Datum>,
    /// At least the largest value.
    pub max: Option<Datum>,
    /// NULLs.
    pub null_count: Option<i64>,
}

impl ColumnStats {
    /// What `mode` keeps of exact statistics of a column of `kind`. Never wrong bounds: where a bound can't be given, both are unknown.
    #[must_use]
    pub fn limited(self, kind: &TypeKind, mode: StatsMode) -> Self {
        let Self { min, max, null_count } = self;
        let counts = |null_count| Self { min: None, max: None, null_count };
        let length = match mode {
            StatsMode::None => return Self::default(),
            StatsMode::Counts => return counts(null_count),
            StatsMode::Truncate(length) => length,
            StatsMode::Full => usize::MAX,
        };
        let int96 = matches!(kind, TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision } if *precision > 6);
        let binary = matches!(kind, TypeKind::Binary { .. } | TypeKind::VarBinary { .. } | TypeKind::Bytes);
        if int96 || binary || kind.is_nested() || is_nan(min.as_ref()) || is_nan(max.as_ref()) {
            return counts(null_count);
        }
        match (min, max) {
            (Some(Datum::String(min)), Some(Datum::String(max))) => match truncate_max(max, length) {
                Some(max) => {
                    let min = truncate_min(min, length);
                    Self { min: Some(Datum::String(min)), max: Some(Datum::String(max)), null_count }
                }
                None => counts(null_count),
            },
            (Some(min), Some(max)) => Self { min: Some(min), max: Some(max), null_count },
            _ => counts(null_count),
        }
    }
}

fn is_nan(value: Option<&Datum>) -> bool {
    match value {
        Some(Datum::Float(value)) => value.is_nan(),
        Some(Datum::Double(value)) => value.is_nan(),
        _ => false,
    }
}

/// Where `text` is to be cut to keep `length` code points; `None` when it is no longer than that.
fn cut(text: &str, length: usize) -> Option<usize> {
    text.char_indices().nth(length).map(|(at, _)| at)
}

fn truncate_min(mut text: String, length: usize) -> String {
    if let Some(at) = cut(&text, length) {
        text.truncate(at);
    }
    text
}

/// The shortest raise of the cut text: its last code point that has a successor is replaced by that, what follows is dropped.
fn truncate_max(mut text: String, length: usize) -> Option<String> {
    let Some(at) = cut(&text, length) else { return Some(text) };
    text.truncate(at);
    while let Some(last) = text.pop() {
        let next = if last == '\u{d7ff}' { Some('\u{e000}') } else { char::from_u32(u32::from(last) + 1) };
        if let Some(next) = next {
            text.push(next);
            return Some(text);
        }
    }
    None
}

impl SimpleStats {
    /// Statistics of no columns: two empty rows and an empty array.
    #[must_use]
    pub fn empty() -> Self {
        Self { min_values: BinaryRow::empty(), max_values: BinaryRow::empty(), null_counts: Some(Vec::new()) }
    }
}

/// The rows of some columns' statistics, all of them present (key statistics, partition statistics).
///
/// # Errors
/// `Internal` when a bound is not of its column's type.
pub fn simple_stats(types: &[DataType], columns: &[ColumnStats]) -> Result<SimpleStats> {
    let min: Vec<Option<Datum>> = columns.iter().map(|column| column.min.clone()).collect();
    let max: Vec<Option<Datum>> = columns.iter().map(|column| column.max.clone()).collect();
    Ok(SimpleStats {
        min_values: BinaryRow::write(&min, types)?,
        max_values: BinaryRow::write(&max, types)?,
        null_counts: Some(columns.iter().map(|column| column.null_count).collect()),
    })
}

/// `_VALUE_STATS` and `_VALUE_STATS_COLS` of a data file, from exact statistics of all columns in schema order.
///
/// `modes` has one mode per column; `dense` is option `metadata.stats-dense-store`. Names are `None` when every column has
/// statistics.
///
/// # Errors
/// `Internal` when the numbers differ or a bound is not of its column's type.
pub fn value_stats(
    fields: &[Field],
    modes: &[StatsMode],
    columns: Vec<ColumnStats>,
    dense: bool,
) -> Result<(SimpleStats, Option<Vec<String>>)> {
    if fields.len() != modes.len() || fields.len() != columns.len() {
        return Err(Error::internal(format!("statistics of {} of {} columns", columns.len(), fields.len())));
    }
    let mut kept = Vec::new();
    for ((field, mode), column) in fields.iter().zip(modes).zip(columns) {
        let mode = if field.data_type.kind.is_nested() { StatsMode::None } else { *mode };
        if !dense || mode != StatsMode::None {
            kept.push((field, column.limited(&field.data_type.kind, mode)));
        }
    }
    let types: Vec<DataType> = kept.iter().map(|(field, _)| field.data_type.clone()).collect();
    let names = (kept.len() < fields.len()).then(|| kept.iter().map(|(field, _)| field.name.clone()).collect());
    let columns: Vec<ColumnStats> = kept.into_iter().map(|(_, column)| column).collect();
    Ok((simple_stats(&types, &columns)?, names))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(min: &str, max: &str) -> ColumnStats {
        ColumnStats { min: Some(Datum::String(min.into())), max: Some(Datum::String(max.into())), null_count: Some(1) }
    }

    fn bounds(stats: ColumnStats, mode: StatsMode) -> (Option<Datum>, Option<Datum>) {
        let limited = stats.limited(&TypeKind::String, mode);
        assert_eq!(limited.null_count, Some(1));
        (limited.min, limited.max)
    }

    #[test]
    fn long_texts_are_cut_so_that_they_stay_bounds() {
        let string = |text: &str| Some(Datum::String(text.into()));
        let mode = StatsMode::Truncate(3);
        assert_eq!(bounds(text("abc", "abc"), mode), (string("abc"), string("abc")));
        assert_eq!(bounds(text("abcd", "xyzw"), mode), (string("abc"), string("xy{")));
        assert_eq!(bounds(text("日本語です", "日本語です"), mode), (string("日本語"), string("日本誟")));
        assert_eq!(bounds(text("a", "ab\u{10ffff}z"), mode), (string("a"), string("ac")));
        assert_eq!(bounds(text("a", "ab\u{d7ff}z"), mode), (string("a"), string("ab\u{e000}")));
        assert_eq!(bounds(text("a", "\u{10ffff}\u{10ffff}\u{10ffff}z"), mode), (None, None));
        assert_eq!(bounds(text("abcd", "xyzw"), StatsMode::Full), (string("abcd"), string("xyzw")));
        assert_eq!(bounds(text("abcd", "xyzw"), StatsMode::Counts), (None, None));
    }

    #[test]
    fn bounds_that_readers_could_misread_are_unknown() {
        let nan = ColumnStats { min: Some(Datum::Double(0.0)), max: Some(Datum::Double(f64::NAN)), null_count: Some(0) };
        let limited = nan.limited(&TypeKind::Double, StatsMode::Full);
        assert_eq!(limited, ColumnStats { min: None, max: None, null_count: Some(0) });
        let bytes = ColumnStats { min: Some(Datum::Bytes(vec![1])), max: Some(Datum::Bytes(vec![2])), null_count: Some(0) };
        assert_eq!(bytes.limited(&TypeKind::Bytes, StatsMode::Full).max, None);
        let one = ColumnStats { min: Some(Datum::Int(1)), max: None, null_count: Some(0) };
        assert_eq!(one.limited(&TypeKind::Int, StatsMode::Full).min, None);
    }

    #[test]
    fn modes_are_read() {
        assert_eq!(StatsMode::parse(" Truncate(16) "), Some(StatsMode::Truncate(16)));
        assert_eq!(StatsMode::parse("full"), Some(StatsMode::Full));
        for wrong in ["", "truncate", "truncate(0)", "truncate(-1)", "all"] {
            assert_eq!(StatsMode::parse(wrong), None);
        }
    }

    #[test]
    fn the_dense_store_names_the_columns_that_it_keeps() {
        let field = |id, name: &str, kind| Field { id, name: name.into(), data_type: DataType::nullable(kind), comment: None };
        let fields = [
            field(0, "a", TypeKind::Int),
            field(1, "b", TypeKind::Array(Box::new(DataType::nullable(TypeKind::Int)))),
            field(2, "c", TypeKind::String),
        ];
        let columns = vec![
            ColumnStats { min: Some(Datum::Int(1)), max: Some(Datum::Int(2)), null_count: Some(0) },
            ColumnStats::default(),
            text("x", "y"),
        ];
        let modes = [StatsMode::Full, StatsMode::Full, StatsMode::None];
        let (stats, names) = value_stats(&fields, &modes, columns.clone(), true).unwrap();
        assert_eq!(names, Some(vec!["a".to_owned()]));
        assert_eq!(stats.min_values.arity().unwrap(), 1);
        assert_eq!(stats.null_counts, Some(vec![Some(0)]));
        let (stats, names) = value_stats(&fields, &[StatsMode::None; 3], columns.clone(), true).unwrap();
        assert_eq!((stats, names), (SimpleStats::empty(), Some(vec![])));
        let (stats, names) = value_stats(&fields, &modes, columns, false).unwrap();
        assert_eq!(names, None);
        assert_eq!(stats.null_counts, Some(vec![Some(0), None, None]));
    }
}
