//! JSON lines: one object per line.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use arrow_array::{ArrayRef, StructArray};
use arrow_json::ReaderBuilder;
use arrow_schema::{Field as ArrowField, Schema as ArrowSchema};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::Columns;
use super::nested::text_type;
use super::text::Records;
use super::values::{BadValue, Fault, shown};
use crate::error::Error;
use crate::model::{DataType, Field, TypeKind};

/// The records with these indices, as one array per column of the table: its structure, with all scalars as text.
pub(super) fn read(records: &Records, selection: &[usize], columns: &Columns) -> Result<Vec<Option<ArrayRef>>, Fault> {
    match decode(records, selection, columns) {
        Ok(arrays) => Ok(arrays.into_iter().map(Some).collect()),
        Err(Stop::At(row)) => Err(explained(records, selection, row, columns)),
        Err(Stop::Somewhere) => {
            // The decoder does not say which row it stumbled over: halve until there is one.
            let (mut low, mut high) = (0, selection.len());
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                let first = selection.get(low..middle).unwrap_or_default();
                if decode(records, first, columns).is_err() { high = middle } else { low = middle }
            }
            Err(explained(records, selection, low, columns))
        }
        Err(Stop::Broken(error)) => Err(error.into()),
    }
}

/// JSON by the book, in which no object names a member twice.
struct Sound;

impl<'de> Deserialize<'de> for Sound {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Sound {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self, A::Error> {
        while elements.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self, A::Error> {
        let mut names = BTreeSet::new();
        while let Some((Name(name), Self)) = members.next_entry()? {
            if let Some(name) = names.replace(name) {
                return Err(A::Error::custom(format_args!("an object names `{}` twice", shown(&name))));
            }
        }
        Ok(self)
    }
}

/// A member's name, borrowed where it holds no escapes.
struct Name<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl<'de> Visitor<'de> for Words {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(name)))
            }

            fn visit_str<E>(self, name: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(name.to_owned())))
            }
        }
        deserializer.deserialize_str(Words)
    }
}

enum Stop {
    /// This row is wrong.
    At(usize),
    /// One of the rows is.
    Somewhere,
    /// Our own fault.
    Broken(Error),
}

fn decode(records: &Records, selection: &[usize], columns: &Columns) -> Result<Vec<ArrayRef>, Stop> {
    let broken = |source: arrow_schema::ArrowError| Stop::Broken(Error::internal("read JSON").with_source(source));
    let field = |field: &Field| ArrowField::new(&field.name, text_type(&field.data_type.kind), true);
    let schema = Arc::new(ArrowSchema::new(columns.fields.iter().map(field).collect::<Vec<_>>()));
    let decoder = ReaderBuilder::new(schema).with_batch_size(selection.len() + 1).with_coerce_primitive(true);
    let mut decoder = decoder.with_strict_mode(!columns.ignore_unknown).build_decoder().map_err(broken)?;
    for (row, index) in selection.iter().enumerate() {
        let Some(record) = records.list.get(*index) else { return Err(Stop::At(row)) };
        let bytes = records.bytes(*record);
        // One object, all of it, and nothing behind it: so that rows and lines go together.
        let is_object = bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
        // The decoder reads over faults (commas, numbers), and of a member named twice it takes one.
        if !is_object
            || serde_json::from_slice::<Sound>(bytes).is_err()
            || decoder.decode(bytes).is_err()
            || decoder.has_partial_record()
            || decoder.len() != row + 1
        {
            return Err(Stop::At(row));
        }
    }
    match decoder.flush() {
        Ok(Some(batch)) if batch.num_rows() == selection.len() => Ok(StructArray::from(batch).into_parts().1),
        Ok(None) if selection.is_empty() => {
            Ok(columns.fields.iter().map(|field| arrow_array::new_empty_array(&text_type(&field.data_type.kind))).collect())
        }
        _ => Err(Stop::Somewhere),
    }
}

/// What is wrong with a row, told from its text.
fn explained(records: &Records, selection: &[usize], row: usize, columns: &Columns) -> Fault {
    let record = selection.get(row).and_then(|index| records.list.get(*index));
    let bytes = record.map(|record| records.bytes(*record)).unwrap_or_default();
    let (path, why) = match serde_json::from_slice::<Sound>(bytes).and_then(|_| serde_json::from_slice::<Value>(bytes)) {
        Err(error) if error.is_data() => {
            let text = error.to_string();
            (String::new(), text.rsplit_once(" at line").map_or(text.as_str(), |(words, _)| words).to_owned())
        }
        Err(error) => (String::new(), format!("not JSON: {}", plain(&error))),
        Ok(Value::Object(members)) => wrong_member("", &members, &columns.fields, columns)
            .unwrap_or_else(|| (String::new(), "the object does not fit the table".to_owned())),
        Ok(_) => (String::new(), format!("`{}` is no object", shown(&String::from_utf8_lossy(bytes)))),
    };
    Fault::Values(vec![BadValue { row, path, why }])
}

/// The parser's words without its line, which is always the first.
fn plain(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column", " at character")
}

fn wrong_member(
    path: &str,
    members: &serde_json::Map<String, Value>,
    fields: &[Field],
    columns: &Columns,
) -> Option<(String, String)> {
    for (name, value) in members {
        let place = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match fields.iter().find(|field| field.name == *name) {
            Some(field) => {
                if let Some(wrong) = wrong_value(&place, value, &field.data_type, columns) {
                    return Some(wrong);
                }
            }
            None if columns.ignore_unknown => {}
            None => return Some((String::new(), Columns::unknown(&place, fields))),
        }
    }
    None
}

fn wrong_value(path: &str, value: &Value, data_type: &DataType, columns: &Columns) -> Option<(String, String)> {
    match (&data_type.kind, value) {
        (_, Value::Null) => None,
        (TypeKind::Row(fields), Value::Object(members)) => wrong_member(path, members, fields, columns),
        (TypeKind::Map(_, kind), Value::Object(members)) => {
            members.values().find_map(|value| wrong_value(&format!("{path}{{}}"), value, kind, columns))
        }
        (TypeKind::Array(kind), Value::Array(elements)) => {
            elements.iter().find_map(|value| wrong_value(&format!("{path}[]"), value, kind, columns))
        }
        (kind, value) if kind.is_nested() || value.is_object() || value.is_array() => {
            let kind = crate::paimon::type_text(&DataType::nullable(kind.clone()));
            Some((path.to_owned(), format!("`{}` is no {kind}", shown(&value.to_string()))))
        }
        _ => None,
    }
}
