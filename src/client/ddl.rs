//! `CREATE TABLE` as text, in the dialect of Flink SQL, → a table descriptor. Strict: what it does not know is an error.
//!
//! ```sql
//! CREATE TABLE demo.orders (
//!   id BIGINT NOT NULL,
//!   price DECIMAL(10, 2) COMMENT 'in euros',
//!   day STRING NOT NULL
//! ) PARTITIONED BY (day)
//! WITH ('bucket.num' = '4', 'bucket.key' = 'id', 'table.datalake.enabled' = 'true');
//! ```
//!
//! `bucket.num` and `bucket.key` are what they are in Flink; options that start with `table.` are the table's, others its custom
//! properties. `DISTRIBUTED BY (id) INTO 4 BUCKETS` says the same as the two.

use std::collections::BTreeMap;

use self::tokens::{Token, Tokens};
use crate::error::{Error, Result};
use crate::fluss::table_json::TableDescriptor;
use crate::model::{DataType, Field, NESTED_DEPTH_MAX, Schema, SchemaId, TableInfo, TablePath, TypeKind, number_fields};
use crate::paimon::{parse_type, type_text};

mod tokens;

/// A table to be made, and its name where the DDL tells one: `db.table` or the table alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ddl {
    /// Database, if it is named.
    pub database: Option<String>,
    /// Table name.
    pub table: String,
    /// The table.
    pub descriptor: TableDescriptor,
}

impl Ddl {
    /// Refuses a DDL that is about another table than `path`.
    ///
    /// # Errors
    /// `Invalid` names both.
    pub fn expect(&self, path: &TablePath) -> Result<()> {
        if self.table == path.table && self.database.as_ref().is_none_or(|database| *database == path.database) {
            return Ok(());
        }
        let named = self.database.as_ref().map_or_else(|| self.table.clone(), |database| format!("{database}.{}", self.table));
        Err(Error::invalid(format!("the DDL makes table `{named}`, not `{path}`")))
    }
}

/// Parts of a table as flags name them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableParts {
    /// `name TYPE [NOT NULL]`.
    pub columns: Vec<(String, DataType)>,
    /// Primary key; none = a log table.
    pub primary_key: Vec<String>,
    /// Partition columns.
    pub partition_keys: Vec<String>,
    /// Bucket key.
    pub bucket_keys: Vec<String>,
    /// Bucket count; `None` = the cluster's default.
    pub buckets: Option<i32>,
    /// Options.
    pub options: Vec<(String, String)>,
}

impl TableParts {
    /// The table that they describe.
    ///
    /// # Errors
    /// `Invalid` when a key names no column, or a column is there twice.
    pub fn descriptor(self) -> Result<TableDescriptor> {
        let columns = self.columns.into_iter().map(|(name, data_type)| Field { id: 0, name, data_type, comment: None });
        let mut table = Table { columns: columns.collect(), primary_key: self.primary_key, ..Table::default() };
        (table.partition_keys, table.bucket_keys, table.buckets) = (self.partition_keys, self.bucket_keys, self.buckets);
        for (key, value) in self.options {
            table.option(key, value)?;
        }
        table.finish()
    }
}

/// Reads one `CREATE TABLE`.
///
/// # Errors
/// `Invalid` names the line and what was expected there; `Unsupported` what Fluss or we don't have.
pub fn parse_ddl(text: &str) -> Result<Ddl> {
    let mut tokens = Tokens::of(text)?;
    tokens.words(&["CREATE", "TABLE"])?;
    if tokens.take_word("IF") {
        tokens.words(&["NOT", "EXISTS"])?;
    }
    let first = tokens.name("a table name")?;
    let (database, name) = if tokens.take('.') { (Some(first), tokens.name("a table name")?) } else { (None, first) };
    let mut table = Table::default();
    tokens.sign('(')?;
    loop {
        if tokens.take_word("PRIMARY") {
            tokens.words(&["KEY"])?;
            table.primary_key = names(&mut tokens)?;
            not_enforced(&mut tokens)?;
        } else {
            column(&mut tokens, &mut table)?;
        }
        if !tokens.take(',') {
            break;
        }
    }
    tokens.sign(')')?;
    loop {
        if tokens.take_word("COMMENT") {
            table.comment = Some(tokens.text("a comment")?);
        } else if tokens.take_word("PARTITIONED") {
            tokens.words(&["BY"])?;
            table.partition_keys = names(&mut tokens)?;
        } else if tokens.take_word("DISTRIBUTED") {
            if tokens.take_word("BY") {
                tokens.take_word("HASH");
                table.bucket_keys = names(&mut tokens)?;
            }
            if tokens.take_word("INTO") {
                table.buckets = Some(tokens.number("a bucket count")?);
                tokens.words(&["BUCKETS"])?;
            }
        } else if tokens.take_word("WITH") {
            tokens.sign('(')?;
            loop {
                let key = tokens.text("an option's name")?;
                tokens.sign('=')?;
                table.option(key, tokens.text("an option's value")?)?;
                if !tokens.take(',') {
                    break;
                }
            }
            tokens.sign(')')?;
        } else {
            break;
        }
    }
    tokens.take(';');
    tokens.end()?;
    Ok(Ddl { database, table: name, descriptor: table.finish()? })
}

/// Reads a type alone, `NOT NULL` included.
///
/// # Errors
/// As [`parse_ddl`].
pub fn parse_column_type(text: &str) -> Result<DataType> {
    let mut tokens = Tokens::of(text)?;
    let found = data_type(&mut tokens, 0)?;
    tokens.end()?;
    Ok(found)
}

#[derive(Default)]
struct Table {
    columns: Vec<Field>,
    primary_key: Vec<String>,
    comment: Option<String>,
    partition_keys: Vec<String>,
    bucket_keys: Vec<String>,
    buckets: Option<i32>,
    properties: BTreeMap<String, String>,
    custom_properties: BTreeMap<String, String>,
}

impl Table {
    fn option(&mut self, key: String, value: String) -> Result<()> {
        match key.as_str() {
            "bucket.num" => {
                let count =
                    value.parse().map_err(|source| Error::invalid(format!("`bucket.num` = `{value}`")).with_source(source))?;
                self.buckets = Some(count);
            }
            "bucket.key" => self.bucket_keys = value.split(',').map(|name| name.trim().to_owned()).collect(),
            // What Flink needs to find Fluss, and Fluss does not.
            "connector" if value == "fluss" => {}
            _ if key.starts_with("table.") => drop(self.properties.insert(key, value)),
            _ => drop(self.custom_properties.insert(key, value)),
        }
        Ok(())
    }

    fn finish(mut self) -> Result<TableDescriptor> {
        if self.columns.is_empty() {
            return Err(Error::invalid("a table without columns"));
        }
        for (at, field) in self.columns.iter().enumerate() {
            if self.columns.get(..at).is_some_and(|before| before.iter().any(|other| other.name == field.name)) {
                return Err(Error::invalid(format!("column `{}` is there twice", field.name)));
            }
        }
        let keys = [("primary", &self.primary_key), ("partition", &self.partition_keys), ("bucket", &self.bucket_keys)];
        for (what, names) in keys {
            if let Some(name) = names.iter().find(|name| !self.columns.iter().any(|field| field.name == **name)) {
                return Err(Error::invalid(format!("{what} key `{name}` is no column")));
            }
        }
        for field in &mut self.columns {
            // As the server does, without a word (S3.4).
            field.data_type.nullable &= !self.primary_key.contains(&field.name);
        }
        let mut highest_field_id = -1;
        number_fields(&mut self.columns, &mut highest_field_id);
        Ok(TableDescriptor {
            schema: Schema { id: SchemaId(1), fields: self.columns, primary_key: self.primary_key, highest_field_id },
            comment: self.comment,
            partition_keys: self.partition_keys,
            bucket_keys: self.bucket_keys,
            bucket_count: self.buckets,
            properties: self.properties,
            custom_properties: self.custom_properties,
        })
    }
}

fn column(tokens: &mut Tokens, table: &mut Table) -> Result<()> {
    let name = tokens.name("a column name")?;
    let data_type = data_type(tokens, 0)?;
    let mut field = Field { id: 0, name, data_type, comment: None };
    if tokens.take_word("PRIMARY") {
        tokens.words(&["KEY"])?;
        not_enforced(tokens)?;
        table.primary_key = vec![field.name.clone()];
    }
    if tokens.take_word("COMMENT") {
        field.comment = Some(tokens.text("a comment")?);
    }
    table.columns.push(field);
    Ok(())
}

fn not_enforced(tokens: &mut Tokens) -> Result<()> {
    if tokens.take_word("NOT") { tokens.words(&["ENFORCED"]) } else { Ok(()) }
}

/// `(a, b)`, maybe empty.
fn names(tokens: &mut Tokens) -> Result<Vec<String>> {
    tokens.sign('(')?;
    let mut names = vec![tokens.name("a column name")?];
    while tokens.take(',') {
        names.push(tokens.name("a column name")?);
    }
    tokens.sign(')')?;
    Ok(names)
}

fn data_type(tokens: &mut Tokens, depth: usize) -> Result<DataType> {
    if depth > NESTED_DEPTH_MAX {
        return Err(tokens.wrong("a type that is nested less deeply"));
    }
    let name = match tokens.next() {
        Some(Token::Word(word)) => word.to_ascii_uppercase(),
        _ => return Err(tokens.wrong_before("a type")),
    };
    let inner = |tokens: &mut Tokens| data_type(tokens, depth + 1).map(Box::new);
    let kind = match name.as_str() {
        "ARRAY" => {
            tokens.sign('<')?;
            let element = inner(tokens)?;
            tokens.sign('>')?;
            TypeKind::Array(element)
        }
        "MAP" => {
            tokens.sign('<')?;
            // As the Java client makes it, whatever is typed.
            let key = Box::new(DataType { nullable: false, ..*inner(tokens)? });
            tokens.sign(',')?;
            let value = inner(tokens)?;
            tokens.sign('>')?;
            TypeKind::Map(key, value)
        }
        "ROW" => {
            tokens.sign('<')?;
            let mut fields = Vec::new();
            loop {
                let name = tokens.name("a field name")?;
                let data_type = *inner(tokens)?;
                let comment = if tokens.take_word("COMMENT") { Some(tokens.text("a comment")?) } else { None };
                fields.push(Field { id: 0, name, data_type, comment });
                if !tokens.take(',') {
                    break;
                }
            }
            tokens.sign('>')?;
            TypeKind::Row(fields)
        }
        _ => scalar(tokens, name)?,
    };
    let nullable = if tokens.take_word("NOT") {
        tokens.words(&["NULL"])?;
        false
    } else {
        tokens.take_word("NULL");
        true
    };
    Ok(DataType { kind, nullable })
}

fn scalar(tokens: &mut Tokens, name: String) -> Result<TypeKind> {
    let mut text = name;
    if tokens.take('(') {
        text.push_str(&format!("({}", tokens.number::<u32>("a number")?));
        if tokens.take(',') {
            text.push_str(&format!(", {}", tokens.number::<u32>("a number")?));
        }
        tokens.sign(')')?;
        text.push(')');
    }
    let (local, without) = (tokens.peek_word("WITH"), tokens.peek_word("WITHOUT"));
    if matches!(text.split('(').next(), Some("TIMESTAMP" | "TIME")) && (local || without) {
        let words: &[&str] = if local { &["WITH", "LOCAL", "TIME", "ZONE"] } else { &["WITHOUT", "TIME", "ZONE"] };
        tokens.words(words)?;
        text = format!("{text} {}", words.join(" "));
    }
    match parse_type(&text) {
        Ok(DataType { kind: TypeKind::VarChar { .. }, .. }) => {
            Err(Error::unsupported(format!("type `{text}`: Fluss has no VARCHAR")).with_hint("take STRING"))
        }
        Ok(DataType { kind: TypeKind::VarBinary { .. }, .. }) => {
            Err(Error::unsupported(format!("type `{text}`: Fluss has no VARBINARY")).with_hint("take BYTES"))
        }
        Ok(found) => Ok(found.kind),
        Err(error) => Err(Error::invalid(format!("line {}: `{text}` is no type that Fluss has", tokens.line())).with_source(error)),
    }
}

/// What a table that is there has otherwise than `wanted`: columns, keys. Bucket count and options are another matter, see
/// [`option_differences`].
#[must_use]
pub fn differences(wanted: &TableDescriptor, found: &TableInfo) -> Vec<String> {
    let mut told = Vec::new();
    let text = |field: &Field| format!("`{} {}`", field.name, type_text(&field.data_type));
    let (ours, theirs) = (&wanted.schema.fields, &found.schema.fields);
    for at in 0..ours.len().max(theirs.len()) {
        match (ours.get(at), theirs.get(at)) {
            (Some(our), Some(their)) if our.name != their.name || !our.data_type.same_as(&their.data_type) => {
                told.push(format!("column {}: {} wanted, {} in the table", at + 1, text(our), text(their)));
            }
            (Some(our), None) => told.push(format!("column {}: {} is not in the table", at + 1, text(our))),
            (None, Some(their)) => told.push(format!("column {}: {} in the table only", at + 1, text(their))),
            _ => {}
        }
    }
    let (mut bucket_keys, primary_key) = (wanted.bucket_keys.clone(), &wanted.schema.primary_key);
    if bucket_keys.is_empty() {
        // What the server takes when none is named.
        bucket_keys.extend(primary_key.iter().filter(|key| !wanted.partition_keys.contains(key)).cloned());
    }
    for (what, ours, theirs) in [
        ("primary key", &wanted.schema.primary_key, &found.schema.primary_key),
        ("partitioned by", &wanted.partition_keys, &found.partition_keys),
        ("bucket key", &bucket_keys, &found.bucket_keys),
    ] {
        if ours != theirs {
            told.push(format!("{what}: ({}) wanted, ({}) in the table", ours.join(", "), theirs.join(", ")));
        }
    }
    told
}

/// Options and bucket count that `wanted` names and a table has otherwise. They may have been altered since it was made.
#[must_use]
pub fn option_differences(wanted: &TableDescriptor, found: &TableInfo) -> Vec<String> {
    let count = wanted.bucket_count.filter(|count| *count != found.bucket_count);
    let count = count.map(|count| format!("`bucket.num` is {}, not {count}", found.bucket_count));
    let options = wanted.properties.iter().chain(&wanted.custom_properties);
    let options = options.filter_map(|(key, value)| match found.property(key) {
        Some(same) if same == value => None,
        Some(other) => Some(format!("`{key}` is `{other}`, not `{value}`")),
        None => Some(format!("`{key}` is not set, `{value}` is wanted")),
    });
    count.into_iter().chain(options).collect()
}

#[cfg(test)]
mod tests;
