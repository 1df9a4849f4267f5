//! Rows as JSON lines or CSV, in the forms that `load` reads (docs/load.md).

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, BinaryArray, BooleanArray, ListArray, MapArray, RecordBatch, StringArray, StructArray};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::ArrowError;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::error::{Error, Result};
use crate::model::{DataType, Datum, Field, TypeKind};
use crate::paimon::value_at;

/// How rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One object per line.
    Json,
    /// RFC 4180, with a header line.
    Csv,
}

/// Writes rows of these columns.
#[derive(Debug, Clone)]
pub struct Printer {
    format: Format,
    fields: Vec<Field>,
}

impl Printer {
    /// For rows of `fields`.
    #[must_use]
    pub const fn new(format: Format, fields: Vec<Field>) -> Self {
        Self { format, fields }
    }

    /// What stands before the first row, without line end.
    #[must_use]
    pub fn header(&self) -> Option<String> {
        let names = || self.fields.iter().map(|field| quoted(&field.name)).collect::<Vec<_>>().join(",");
        (self.format == Format::Csv).then(names)
    }

    /// The rows, a line each, every line ended.
    ///
    /// # Errors
    /// `Internal` when the columns are not those of the fields.
    pub fn rows(&self, batch: &RecordBatch) -> Result<String> {
        if batch.num_columns() != self.fields.len() {
            return Err(Error::internal(format!("`{}` columns where `{}` are printed", batch.num_columns(), self.fields.len())));
        }
        let cells = self.fields.iter().zip(batch.columns()).map(|(field, column)| Cell::of(column, &field.data_type));
        let cells = cells.collect::<Result<Vec<_>>>()?;
        let names: Vec<String> = self.fields.iter().map(|field| json_text(&field.name)).collect();
        let mut text = String::new();
        for row in 0..batch.num_rows() {
            match self.format {
                Format::Json => {
                    text.push('{');
                    for (index, (name, cell)) in names.iter().zip(&cells).enumerate() {
                        if index > 0 {
                            text.push(',');
                        }
                        text.push_str(name);
                        text.push(':');
                        cell.json(row, &mut text)?;
                    }
                    text.push('}');
                }
                Format::Csv => {
                    for (index, cell) in cells.iter().enumerate() {
                        if index > 0 {
                            text.push(',');
                        }
                        cell.csv(row, &mut text)?;
                    }
                }
            }
            text.push('\n');
        }
        Ok(text)
    }
}

fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A CSV field: quoted where it has to be, and where it is empty, since an empty field is NULL.
fn quoted(text: &str) -> String {
    if text.is_empty() || text.contains(['"', ',', '\n', '\r']) || text.starts_with(' ') || text.ends_with(' ') {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// A column, ready to print any of its rows.
enum Cell<'a> {
    /// As it is shown: numbers.
    Bare(ArrayFormatter<'a>, &'a dyn Array),
    /// As it is shown, in quotes: dates, times, decimals (a JSON reader may round them as numbers).
    Shown(ArrayFormatter<'a>, &'a dyn Array),
    /// With as many digits of a second as its precision has, and a `Z` if it has a zone.
    Moment(&'a ArrayRef, TypeKind, u8, &'static str),
    Boolean(&'a BooleanArray),
    Float(&'a dyn Array, Box<dyn Fn(usize) -> f64 + 'a>, bool),
    Text(&'a StringArray),
    Bytes(&'a BinaryArray),
    List(&'a ListArray, Box<Self>),
    Map(&'a MapArray, Box<Self>, Box<Self>),
    Row(&'a StructArray, Vec<(String, Self)>),
}

const SHOWN: FormatOptions<'static> = FormatOptions::new().with_time_format(Some("%H:%M:%S%.3f"));

fn wrong(source: ArrowError) -> Error {
    Error::internal("print a value").with_source(source)
}

impl<'a> Cell<'a> {
    fn of(column: &'a ArrayRef, data_type: &DataType) -> Result<Self> {
        let other = || Error::internal(format!("a column of type {:?} comes as `{}`", data_type.kind, column.data_type()));
        let shown = || ArrayFormatter::try_new(column.as_ref(), &SHOWN).map_err(wrong);
        Ok(match &data_type.kind {
            TypeKind::Boolean => Self::Boolean(column.as_boolean_opt().ok_or_else(other)?),
            TypeKind::TinyInt | TypeKind::SmallInt | TypeKind::Int | TypeKind::BigInt => Self::Bare(shown()?, column.as_ref()),
            TypeKind::Float => {
                let values = column.as_primitive_opt::<Float32Type>().ok_or_else(other)?;
                Self::Float(column.as_ref(), Box::new(move |row| f64::from(values.value(row))), true)
            }
            TypeKind::Double => {
                let values = column.as_primitive_opt::<Float64Type>().ok_or_else(other)?;
                Self::Float(column.as_ref(), Box::new(move |row| values.value(row)), false)
            }
            TypeKind::Char { .. } | TypeKind::VarChar { .. } | TypeKind::String => {
                Self::Text(column.as_string_opt().ok_or_else(other)?)
            }
            TypeKind::Binary { .. } | TypeKind::VarBinary { .. } | TypeKind::Bytes => {
                Self::Bytes(column.as_binary_opt().ok_or_else(other)?)
            }
            TypeKind::Decimal { .. } | TypeKind::Date | TypeKind::Time { .. } => Self::Shown(shown()?, column.as_ref()),
            TypeKind::Timestamp { precision } => Self::Moment(column, data_type.kind.clone(), *precision, ""),
            TypeKind::TimestampLtz { precision } => Self::Moment(column, data_type.kind.clone(), *precision, "Z"),
            TypeKind::Array(element) | TypeKind::Multiset(element) => {
                let lists: &ListArray = column.as_list_opt().ok_or_else(other)?;
                Self::List(lists, Box::new(Self::of(lists.values(), element)?))
            }
            TypeKind::Map(key, value) => {
                let maps = column.as_map_opt().ok_or_else(other)?;
                Self::Map(maps, Box::new(Self::of(maps.keys(), key)?), Box::new(Self::of(maps.values(), value)?))
            }
            TypeKind::Row(fields) => {
                let rows = column.as_struct_opt().ok_or_else(other)?;
                let inside = fields.iter().zip(rows.columns());
                let cells = inside.map(|(field, column)| Ok((field.name.clone(), Self::of(column, &field.data_type)?)));
                Self::Row(rows, cells.collect::<Result<_>>()?)
            }
        })
    }

    fn array(&self) -> &dyn Array {
        match self {
            Self::Bare(_, array) | Self::Shown(_, array) | Self::Float(array, ..) => *array,
            Self::Moment(array, ..) => array.as_ref(),
            Self::Boolean(array) => *array,
            Self::Text(array) => *array,
            Self::Bytes(array) => *array,
            Self::List(array, _) => *array,
            Self::Map(array, ..) => *array,
            Self::Row(array, _) => *array,
        }
    }

    fn is_null(&self, row: usize) -> bool {
        row >= self.array().len() || self.array().is_null(row)
    }

    /// Without quotes; `None` where the form is JSON's own.
    fn plain(&self, row: usize) -> Result<Option<String>> {
        let shown = |formatter: &ArrayFormatter<'_>| formatter.value(row).try_to_string().map_err(wrong);
        Ok(Some(match self {
            Self::Bare(formatter, _) | Self::Shown(formatter, _) => shown(formatter)?,
            Self::Moment(values, kind, precision, zone) => {
                let Some(Datum::Timestamp { millis, nanos }) = value_at(values, kind, row)? else { return Ok(None) };
                moment(millis, nanos, *precision, zone)
            }
            Self::Boolean(values) => values.value(row).to_string(),
            Self::Float(_, value, narrow) => float(value(row), *narrow),
            Self::Text(values) => values.value(row).to_owned(),
            Self::Bytes(values) => BASE64.encode(values.value(row)),
            Self::List(..) | Self::Map(..) | Self::Row(..) => return Ok(None),
        }))
    }

    fn json(&self, row: usize, to: &mut String) -> Result<()> {
        if self.is_null(row) {
            to.push_str("null");
            return Ok(());
        }
        if let Some(plain) = self.plain(row)? {
            let finite = |text: &str| text.ends_with(|last: char| last.is_ascii_digit());
            match self {
                Self::Bare(..) | Self::Boolean(_) => to.push_str(&plain),
                Self::Float(..) if finite(&plain) => to.push_str(&plain),
                _ => to.push_str(&json_text(&plain)),
            }
            return Ok(());
        }
        let range = |offsets: &[i32]| {
            let at = |index: usize| offsets.get(index).and_then(|offset| usize::try_from(*offset).ok()).unwrap_or(0);
            at(row)..at(row + 1)
        };
        match self {
            Self::List(lists, element) => {
                to.push('[');
                let all = range(lists.value_offsets());
                for at in all.clone() {
                    if at > all.start {
                        to.push(',');
                    }
                    element.json(at, to)?;
                }
                to.push(']');
            }
            Self::Map(maps, keys, values) => {
                to.push('{');
                let all = range(maps.value_offsets());
                for at in all.clone() {
                    if at > all.start {
                        to.push(',');
                    }
                    let key = match keys.plain(at)? {
                        Some(key) => key,
                        None => {
                            let mut key = String::new();
                            keys.json(at, &mut key)?;
                            key
                        }
                    };
                    to.push_str(&json_text(&key));
                    to.push(':');
                    values.json(at, to)?;
                }
                to.push('}');
            }
            Self::Row(_, cells) => {
                to.push('{');
                for (index, (name, cell)) in cells.iter().enumerate() {
                    if index > 0 {
                        to.push(',');
                    }
                    to.push_str(&json_text(name));
                    to.push(':');
                    cell.json(row, to)?;
                }
                to.push('}');
            }
            _ => {}
        }
        Ok(())
    }

    fn csv(&self, row: usize, to: &mut String) -> Result<()> {
        if self.is_null(row) {
            return Ok(());
        }
        match self.plain(row)? {
            Some(plain) => to.push_str(&quoted(&plain)),
            None => {
                let mut json = String::new();
                self.json(row, &mut json)?;
                to.push_str(&quoted(&json));
            }
        }
        Ok(())
    }
}

/// `2024-02-29T12:34:56.789`, with `precision` digits of a second; milliseconds since 1970 outside the years 0 to 9999.
fn moment(millis: i64, nanos: i32, precision: u8, zone: &str) -> String {
    let seconds = jiff::SignedDuration::from_secs(millis.div_euclid(1000));
    let Ok(at) = jiff::civil::date(1970, 1, 1).at(0, 0, 0, 0).checked_add(seconds) else { return millis.to_string() };
    let digits: String = format!("{:03}{nanos:06}", millis.rem_euclid(1000)).chars().take(usize::from(precision)).collect();
    let point = if digits.is_empty() { "" } else { "." };
    format!("{}{point}{digits}{zone}", at.strftime("%Y-%m-%dT%H:%M:%S"))
}

/// The shortest digits that read back as the same value.
fn float(value: f64, narrow: bool) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "it was widened from f32")]
    let text = if narrow { format!("{:?}", value as f32) } else { format!("{value:?}") };
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::Int32Type;
    use arrow_array::{
        BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array, Int64Array, Time32MillisecondArray,
        TimestampMicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray,
    };
    use arrow_schema::{DataType as ArrowType, Field as ArrowField, Schema};

    use super::*;

    fn printed(columns: Vec<(&str, TypeKind, ArrayRef)>) -> (String, String) {
        let field =
            |name: &str, kind: TypeKind| Field { id: 0, name: name.into(), data_type: DataType::nullable(kind), comment: None };
        let fields: Vec<Field> = columns.iter().map(|(name, kind, _)| field(name, kind.clone())).collect();
        let arrow = columns.iter().map(|(name, _, array)| ArrowField::new(*name, array.data_type().clone(), true));
        let schema = Arc::new(Schema::new(arrow.collect::<Vec<_>>()));
        let batch = RecordBatch::try_new(schema, columns.into_iter().map(|(_, _, array)| array).collect()).unwrap();
        let json = Printer::new(Format::Json, fields.clone());
        let csv = Printer::new(Format::Csv, fields);
        assert_eq!(json.header(), None);
        (json.rows(&batch).unwrap(), format!("{}\n{}", csv.header().unwrap(), csv.rows(&batch).unwrap()))
    }

    #[test]
    fn values_are_written_as_load_reads_them() {
        let zone = |micros: Vec<Option<i64>>| TimestampMicrosecondArray::from(micros).with_timezone("UTC");
        let (json, csv) = printed(vec![
            ("b", TypeKind::Boolean, Arc::new(BooleanArray::from(vec![Some(true), None]))),
            ("n", TypeKind::BigInt, Arc::new(Int64Array::from(vec![Some(i64::MIN), None]))),
            ("f", TypeKind::Float, Arc::new(Float32Array::from(vec![Some(1.1), Some(f32::NAN)]))),
            ("d", TypeKind::Double, Arc::new(Float64Array::from(vec![Some(-1e-7), Some(f64::NEG_INFINITY)]))),
            (
                "m",
                TypeKind::Decimal { precision: 10, scale: 2 },
                Arc::new(Decimal128Array::from(vec![Some(-1250), None]).with_precision_and_scale(10, 2).unwrap()),
            ),
            ("s", TypeKind::String, Arc::new(StringArray::from(vec![Some("a \"b\",\nü"), Some("")]))),
            ("x", TypeKind::Bytes, Arc::new(BinaryArray::from(vec![Some(&b"\x00\xff"[..]), None]))),
            ("day", TypeKind::Date, Arc::new(Date32Array::from(vec![Some(19_782), None]))),
            ("t", TypeKind::Time { precision: 3 }, Arc::new(Time32MillisecondArray::from(vec![Some(45_296_789), None]))),
            (
                "ts",
                TypeKind::Timestamp { precision: 3 },
                Arc::new(TimestampMillisecondArray::from(vec![Some(1_709_210_096_789), None])),
            ),
            ("ltz", TypeKind::TimestampLtz { precision: 6 }, Arc::new(zone(vec![Some(1_709_210_096_000_001), None]))),
            ("ns", TypeKind::Timestamp { precision: 9 }, Arc::new(TimestampNanosecondArray::from(vec![Some(1), None]))),
        ]);
        assert_eq!(
            json,
            "{\"b\":true,\"n\":-9223372036854775808,\"f\":1.1,\"d\":-1e-7,\"m\":\"-12.50\",\"s\":\"a \\\"b\\\",\\nü\",\"x\":\"AP8=\",\
             \"day\":\"2024-02-29\",\"t\":\"12:34:56.789\",\"ts\":\"2024-02-29T12:34:56.789\",\"ltz\":\"2024-02-29T12:34:56.000001Z\",\
             \"ns\":\"1970-01-01T00:00:00.000000001\"}\n\
             {\"b\":null,\"n\":null,\"f\":\"NaN\",\"d\":\"-inf\",\"m\":null,\"s\":\"\",\"x\":null,\"day\":null,\"t\":null,\"ts\":null,\
             \"ltz\":null,\"ns\":null}\n"
        );
        assert_eq!(
            csv,
            "b,n,f,d,m,s,x,day,t,ts,ltz,ns\n\
             true,-9223372036854775808,1.1,-1e-7,-12.50,\"a \"\"b\"\",\nü\",AP8=,2024-02-29,12:34:56.789,2024-02-29T12:34:56.789,\
             2024-02-29T12:34:56.000001Z,1970-01-01T00:00:00.000000001\n\
             ,,NaN,-inf,,\"\",,,,,,\n"
        );
    }

    #[test]
    fn nested_values_are_json() {
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1), None]), None, Some(vec![])]);
        let inner = Field { id: 1, name: "a".into(), data_type: DataType::nullable(TypeKind::String), comment: None };
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("x,y"), None, Some("z")]));
        let rows = StructArray::from(vec![(Arc::new(ArrowField::new("a", ArrowType::Utf8, true)), texts)]);
        let element = TypeKind::Array(Box::new(DataType::nullable(TypeKind::Int)));
        let (json, csv) = printed(vec![("l", element, Arc::new(lists)), ("r", TypeKind::Row(vec![inner]), Arc::new(rows))]);
        assert_eq!(
            json,
            "{\"l\":[1,null],\"r\":{\"a\":\"x,y\"}}\n{\"l\":null,\"r\":{\"a\":null}}\n{\"l\":[],\"r\":{\"a\":\"z\"}}\n"
        );
        assert_eq!(csv, "l,r\n\"[1,null]\",\"{\"\"a\"\":\"\"x,y\"\"}\"\n,\"{\"\"a\"\":null}\"\n[],\"{\"\"a\"\":\"\"z\"\"}\"\n");
    }
}
