//! The DDL that makes a lake table fit again, as Flink SQL on the Paimon catalog. Only ever shown, never run.

use crate::model::{DataType, Field, TablePath, TypeKind};
use crate::paimon::type_text;

/// One `ALTER TABLE` of a lake table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Repair {
    Rename {
        from: String,
        to: String,
    },
    /// `after`: the column it comes behind; `None` = first.
    Add {
        field: Field,
        after: Option<String>,
    },
    /// Type and nullability.
    Modify(Field),
    Move {
        field: Field,
        after: Option<String>,
    },
    Set {
        key: String,
        value: Option<String>,
    },
}

impl Repair {
    /// The statement, without semicolon.
    pub(super) fn sql(&self, table: &TablePath) -> String {
        let place = |after: &Option<String>| match after {
            Some(name) => format!("AFTER {}", quoted(name)),
            None => "FIRST".to_owned(),
        };
        let change = match self {
            Self::Rename { from, to } => format!("RENAME {} TO {}", quoted(from), quoted(to)),
            Self::Add { field, after } => format!("ADD {} {}", column(field), place(after)),
            Self::Modify(field) => format!("MODIFY {}", column(field)),
            Self::Move { field, after } => format!("MODIFY {} {}", column(field), place(after)),
            Self::Set { key, value: Some(value) } => format!("SET ({} = {})", text(key), text(value)),
            Self::Set { key, value: None } => format!("RESET ({})", text(key)),
        };
        format!("ALTER TABLE {}.{} {change}", quoted(&table.database), quoted(&table.table))
    }
}

fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

fn text(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

fn column(field: &Field) -> String {
    let mut column = format!("{} {}", quoted(&field.name), sql_type(&field.data_type));
    // Flink takes a comment that is not repeated for one that is to go.
    if let Some(comment) = &field.comment {
        column.push_str(&format!(" COMMENT {}", text(comment)));
    }
    column
}

fn sql_type(data_type: &DataType) -> String {
    let base = match &data_type.kind {
        TypeKind::Array(element) => format!("ARRAY<{}>", sql_type(element)),
        TypeKind::Multiset(element) => format!("MULTISET<{}>", sql_type(element)),
        TypeKind::Map(key, value) => format!("MAP<{}, {}>", sql_type(key), sql_type(value)),
        TypeKind::Row(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|field| format!("{} {}", quoted(&field.name), sql_type(&field.data_type))).collect();
            format!("ROW<{}>", fields.join(", "))
        }
        _ => return type_text(data_type),
    };
    if data_type.nullable { base } else { format!("{base} NOT NULL") }
}
