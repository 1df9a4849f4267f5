//! The statements that make a lake table fit again, as Flink SQL on the Paimon catalog. Only ever shown, never run.

use super::schema::lake_path;
use crate::model::{DataType, Field, Partition, TableInfo, TablePath, TypeKind};
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

/// The ways out for a partition whose files in the lake are of another bucket count than its `count` in Fluss: it was dropped there, and
/// made again after a rescale, or Paimon's own writers wrote to it (P, appendix D.4).
///
/// The procedure and not INSERT OVERWRITE: that goes by the option `bucket` of the lake table, which may be another, and which Paimon
/// before 1.4 takes from no statement.
#[must_use]
pub fn other_count_hint(table: &TableInfo, partition: Option<&Partition>, count: i32) -> String {
    let lake = lake_path(table).unwrap_or_else(|_| table.path.clone());
    let name = format!("{}.{}", quoted(&lake.database), quoted(&lake.table));
    let spec: &[(String, String)] = partition.map_or(&[], |partition| &partition.spec);
    let pairs: Vec<String> = spec.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let equal: Vec<String> = spec.iter().map(|(key, value)| format!("{} = {}", quoted(key), text(value))).collect();
    let (only, drop) = match spec {
        [] => (String::new(), String::new()),
        _ => (
            format!(", `partition` => {}", text(&pairs.join(","))),
            format!("; if they went with the partition that was dropped: ALTER TABLE {name} DROP PARTITION ({})", equal.join(", ")),
        ),
    };
    let command = match spec {
        [] => format!("lakeward repair rewrite-partition {}", table.path),
        _ => format!("lakeward repair rewrite-partition {} --partition {}", table.path, pairs.join("/")),
    };
    let table = text(&format!("{}.{}", lake.database, lake.table));
    format!(
        "if its rows are to stay: `{command}`, or in Flink SQL (batch mode), with the lake's catalog, written again by `{count}` \
         buckets: CALL sys.rescale(`table` => {table}, `bucket_num` => {count}{only}){drop}"
    )
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
