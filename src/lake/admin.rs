//! Making tables and changing their options (P2.4, P2.5).

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::Value;

use super::{max_id, text};
use crate::error::{Error, Result};
use crate::paimon::{TableSchema, path};
use crate::runtime::Clock;
use crate::storage::{Created, Store};

/// Lost races for the next schema id before altering gives up.
const TRIES_MAX: usize = 20;

/// Makes a table: schema file 0, if there is none. Databases are folders, so nothing else is needed.
///
/// [`Created::Exists`] when the table is there already, whatever its schema.
///
/// # Errors
/// `Unavailable`: the outcome is unknown, call again.
pub async fn create_table(store: &Store, root: &str, schema: &TableSchema) -> Result<Created> {
    if max_id(store, root, path::SCHEMAS, "schema-").await?.is_some() {
        return Ok(Created::Exists);
    }
    store.create(&format!("{root}/{}", path::schema(schema.id)), Bytes::from(schema.to_json()?)).await
}

/// Sets options (`None` removes one) by a new schema file; `false` when the newest schema has them so already.
///
/// Everything else of the schema stays as it is, members that this build does not know included.
///
/// # Errors
/// `Unavailable`: the outcome is unknown, call again; `Data` when there is no table or its schema file is wrong.
pub async fn alter_options(store: &Store, root: &str, changes: &BTreeMap<String, Option<String>>, clock: &Clock) -> Result<bool> {
    for _ in 0..TRIES_MAX {
        let newest = max_id(store, root, path::SCHEMAS, "schema-").await?;
        let newest = newest.ok_or_else(|| Error::data(format!("there is no lake table in `{}`", store.name(root))))?;
        let place = format!("{root}/{}", path::schema(newest));
        let bytes = store.get_existing(&place).await?;
        let altered = altered(text(&bytes)?, newest + 1, changes, clock.now_ms())
            .map_err(|error| error.context(format!("read `{}`", store.name(&place))))?;
        let Some(json) = altered else { return Ok(false) };
        match store.create(&format!("{root}/{}", path::schema(newest + 1)), Bytes::from(json)).await? {
            Created::Yes => return Ok(true),
            // Somebody was faster, or our own reply got lost: look again.
            Created::Exists => {}
        }
    }
    Err(Error::unavailable(format!("others keep changing the schema of `{}`", store.name(root))))
}

fn altered(json: &str, id: i64, changes: &BTreeMap<String, Option<String>>, now_ms: i64) -> Result<Option<String>> {
    // Checks the file; what is written comes from the raw members, so that none gets lost.
    let before = TableSchema::from_json(json)?;
    if changes.iter().all(|(key, value)| before.options.get(key) == value.as_ref()) {
        return Ok(None);
    }
    let wrong = || Error::data("schema file is no JSON object");
    let mut value: Value = serde_json::from_str(json).map_err(|source| wrong().with_source(source))?;
    let members = value.as_object_mut().ok_or_else(wrong)?;
    members.insert("id".to_owned(), id.into());
    members.insert("timeMillis".to_owned(), now_ms.into());
    let options = members.get_mut("options").and_then(Value::as_object_mut).ok_or_else(wrong)?;
    for (key, change) in changes {
        match change {
            Some(text) => options.insert(key.clone(), text.as_str().into()),
            None => options.remove(key),
        };
    }
    serde_json::to_string_pretty(&value).map(Some).map_err(|source| Error::internal("write schema").with_source(source))
}
