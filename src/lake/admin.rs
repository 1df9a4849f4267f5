//! A warehouse: making tables, and changing what their newest schema says (P2.4, P2.5).

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::{LakeTable, newest_schema, text};
use crate::error::{Error, Result};
use crate::model::Field;
use crate::paimon::{TableSchema, number_nested, path, type_json};
use crate::runtime::Runtime;
use crate::storage::{self, Created, Store, StoreOptions};

/// Lost races for the next schema id before altering gives up.
const TRIES_MAX: usize = 20;

/// A folder of databases: the filesystem catalog (P1.1).
#[derive(Debug, Clone)]
pub struct Warehouse {
    store: Store,
    runtime: Runtime,
}

/// One change of a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SchemaChange {
    /// Sets an option, or removes it.
    Option {
        /// Its key.
        key: String,
        /// Its value; `None` removes it.
        value: Option<String>,
    },
    /// Adds a nullable column.
    AddColumn {
        /// Name, type, comment; the ids are given by the table.
        field: Field,
        /// The column that it comes before; `None` = at the end.
        before: Option<String>,
    },
    /// Sets the bucket count of partitions to come: option `bucket`.
    BucketCount(i32),
}

impl Warehouse {
    /// The warehouse that is the root of `store`.
    #[must_use]
    pub const fn new(store: Store, runtime: Runtime) -> Self {
        Self { store, runtime }
    }

    /// The warehouse at `url`; `None` when there is none. Nothing is made: an empty folder may be where one was mounted.
    ///
    /// # Errors
    /// As [`storage::open`].
    pub fn open_in(url: &str, options: &BTreeMap<String, String>, runtime: Runtime) -> Result<Option<Self>> {
        if !storage::is_there(url)? {
            return Ok(None);
        }
        let options = StoreOptions { options: options.clone(), own: runtime.stores.options(), ..StoreOptions::default() };
        let store = storage::open(url, &options)?.with_fail_points(runtime.fail.clone());
        Ok(Some(Self::new(store, runtime)))
    }

    /// Path or URL of the warehouse.
    #[must_use]
    pub fn url(&self) -> &str {
        self.store.url()
    }

    /// Opens a table; `None` when there is none.
    ///
    /// # Errors
    /// As [`LakeTable::open`].
    pub async fn table(&self, database: &str, table: &str) -> Result<Option<LakeTable>> {
        LakeTable::open(self.store.clone(), path::table(database, table), self.runtime.clone()).await
    }

    /// Makes a table: schema file 0, if there is none. Databases are folders, so nothing else is needed.
    ///
    /// `false` when the table is there already, whatever its schema.
    ///
    /// # Errors
    /// `Unavailable`: the outcome is unknown, call again.
    pub async fn create_table(&self, database: &str, table: &str, schema: &TableSchema) -> Result<bool> {
        let root = path::table(database, table);
        if newest_schema(&self.store, &root).await?.is_some() {
            return Ok(false);
        }
        let place = format!("{root}/{}", path::schema(schema.id));
        Ok(self.store.create(&place, Bytes::from(schema.to_json()?)).await? == Created::Yes)
    }

    /// Changes the newest schema by a new schema file: `decide` tells the changes from it, and is asked again when somebody else
    /// was faster. Everything else of the schema stays as it is, members that this build does not know included.
    ///
    /// `false` when nothing was to be changed.
    ///
    /// # Errors
    /// `Unavailable`: the outcome is unknown, call again; `Data` when there is no table or its schema file is wrong; as `decide`.
    pub async fn alter_table(
        &self,
        database: &str,
        table: &str,
        decide: impl Fn(&TableSchema) -> Result<Vec<SchemaChange>>,
    ) -> Result<bool> {
        alter(&self.store, &path::table(database, table), &self.runtime, decide).await
    }
}

impl LakeTable {
    /// As [`Warehouse::alter_table`]. This handle goes on with the schema that it was opened with.
    ///
    /// # Errors
    /// As [`Warehouse::alter_table`].
    pub async fn alter(&self, decide: impl Fn(&TableSchema) -> Result<Vec<SchemaChange>>) -> Result<bool> {
        alter(&self.store, &self.root, &self.runtime, decide).await
    }
}

async fn alter(
    store: &Store,
    root: &str,
    runtime: &Runtime,
    decide: impl Fn(&TableSchema) -> Result<Vec<SchemaChange>>,
) -> Result<bool> {
    for _ in 0..TRIES_MAX {
        let newest = newest_schema(store, root).await?;
        let newest = newest.ok_or_else(|| Error::data(format!("there is no lake table in `{}`", store.name(root))))?;
        let place = format!("{root}/{}", path::schema(newest));
        let bytes = store.get_existing(&place).await?;
        let at = |error: Error| error.context(format!("read `{}`", store.name(&place)));
        let json = text(&bytes).map_err(at)?;
        let changes = decide(&TableSchema::from_json(json).map_err(at)?)?;
        if changes.is_empty() {
            return Ok(false);
        }
        let altered = altered(json, newest + 1, &changes, runtime.clock.now_ms()).map_err(at)?;
        let next = format!("{root}/{}", path::schema(newest + 1));
        if store.create(&next, Bytes::from(altered)).await? == Created::Yes {
            return Ok(true);
        }
        // Somebody was faster, or our own reply got lost: look again.
    }
    Err(Error::unavailable(format!("others keep changing the schema of `{}`", store.name(root))))
}

/// The schema file after `changes`, made from the raw members, so that none gets lost.
fn altered(json: &str, id: i64, changes: &[SchemaChange], now_ms: i64) -> Result<String> {
    let wrong = || Error::data("schema file is no JSON object");
    let mut value: Value = serde_json::from_str(json).map_err(|source| wrong().with_source(source))?;
    let members = value.as_object_mut().ok_or_else(wrong)?;
    members.insert("id".to_owned(), id.into());
    members.insert("timeMillis".to_owned(), now_ms.into());
    for change in changes {
        match change {
            SchemaChange::Option { key, value } => set_option(members, key, value.as_deref()).ok_or_else(wrong)?,
            SchemaChange::AddColumn { field, before } => add_column(members, field, before.as_deref()).ok_or_else(wrong)?,
            SchemaChange::BucketCount(count) => set_option(members, "bucket", Some(&count.to_string())).ok_or_else(wrong)?,
        }
    }
    serde_json::to_string_pretty(&value).map_err(|source| Error::internal("write schema").with_source(source))
}

fn set_option(members: &mut Map<String, Value>, key: &str, value: Option<&str>) -> Option<()> {
    let options = members.get_mut("options")?.as_object_mut()?;
    match value {
        Some(text) => drop(options.insert(key.to_owned(), text.into())),
        None => drop(options.remove(key)),
    }
    Some(())
}

fn add_column(members: &mut Map<String, Value>, field: &Field, before: Option<&str>) -> Option<()> {
    let id = i32::try_from(members.get("highestFieldId")?.as_i64()?).ok()?.checked_add(1)?;
    let (mut data_type, mut highest) = (field.data_type.clone(), id);
    number_nested(&mut data_type, &mut highest);
    let mut added = json!({"id": id, "name": field.name, "type": type_json(&data_type)});
    if let Some(comment) = &field.comment {
        added.as_object_mut()?.insert("description".to_owned(), comment.as_str().into());
    }
    let fields = members.get_mut("fields")?.as_array_mut()?;
    let place = before.and_then(|name| fields.iter().position(|field| field.get("name").is_some_and(|found| found == name)));
    fields.insert(place.unwrap_or(fields.len()), added);
    members.insert("highestFieldId".to_owned(), highest.into());
    Some(())
}
