//! What lies in the lake: rows, manifests, snapshots, schemas, offsets, data files.

use std::sync::OnceLock;

use bytes::Bytes;

use crate::error::Result;
use crate::lake;
use crate::model::{DataType, OffsetsFile};
use crate::paimon::{BinaryRow, ManifestFile, Snapshot, TableOptions, TableSchema, lake_arrow_schema, manifest, path};

/// Schemas that rows and files are read by: tables of Java.
pub(super) fn schemas() -> &'static [TableSchema] {
    static SCHEMAS: OnceLock<Vec<TableSchema>> = OnceLock::new();
    SCHEMAS.get_or_init(|| {
        [
            include_str!("../../fixtures/paimon/all_types/schema/schema-0"),
            include_str!("../../fixtures/paimon/pk_key_types/schema/schema-0"),
            include_str!("../../fixtures/paimon/append_partitioned/schema/schema-0"),
            include_str!("../../fixtures/paimon/nested/schema/schema-0"),
        ]
        .map(|text| TableSchema::from_json(text).unwrap())
        .into()
    })
}

fn types(schema: &TableSchema) -> Vec<DataType> {
    schema.fields.iter().map(|field| field.data_type.clone()).collect()
}

pub(super) fn binary_row(input: &[u8]) -> Result<()> {
    let Some((choice, rest)) = input.split_first() else { return Ok(()) };
    let schema = &schemas()[usize::from(choice % 4)];
    let types = match choice / 4 % 3 {
        0 => types(schema),
        1 => schema.partition_types()?,
        _ => schema.types_of(&schema.trimmed_primary_keys())?,
    };
    let values = BinaryRow(Bytes::copy_from_slice(rest)).read(&types)?;
    // What is read is written again, and reads back the same.
    let again = BinaryRow::write(&values, &types).map_err(|error| super::broken("write what was read").with_source(error))?;
    let same = again.read(&types)?;
    if format!("{values:?}") == format!("{same:?}") { Ok(()) } else { Err(super::broken("a row reads back as another")) }
}

pub(super) fn manifest(input: &[u8]) -> Result<()> {
    drop(manifest::decode_index_names(input));
    let partition = schemas()[2].partition_types()?;
    if let Ok(list) = manifest::decode_list(input) {
        for file in &list {
            std::hint::black_box(file.may_hold(&[], &partition));
        }
        return Ok(());
    }
    let entries = manifest::decode_entries(input)?;
    drop(ManifestFile::of("m", 1, &entries, &partition));
    for entry in &entries {
        drop(path::data_file(&schemas()[2], entry));
    }
    Ok(())
}

pub(super) fn snapshot(input: &[u8]) -> Result<()> {
    let Some(text) = super::text(input) else { return Ok(()) };
    let snapshot = Snapshot::from_json(text)?;
    let again = snapshot.to_json().and_then(|json| Snapshot::from_json(&json));
    match again {
        Ok(again) if again == snapshot => Ok(()),
        _ => Err(super::broken("a snapshot reads back as another")),
    }
}

pub(super) fn schema(input: &[u8]) -> Result<()> {
    let Some(text) = super::text(input) else { return Ok(()) };
    let schema = TableSchema::from_json(text)?;
    let again = schema.to_json().and_then(|json| TableSchema::from_json(&json));
    if again.as_ref().ok() != Some(&schema) {
        return Err(super::broken("a schema reads back as another"));
    }
    schema.partition_types()?;
    lake_arrow_schema(&schema)?;
    TableOptions::parse(&schema).map(drop)
}

pub(super) fn offsets(input: &[u8]) -> Result<()> {
    let Some(text) = super::text(input) else { return Ok(()) };
    let file = OffsetsFile::from_json(text)?;
    // Not for those that a few digits can blow up: it fills gaps with −1.
    if file.offsets.0.len() < 100 && OffsetsFile::from_json(&file.to_json()).as_ref().ok() != Some(&file) {
        return Err(super::broken("offsets read back as others"));
    }
    Ok(())
}

pub(super) fn data_file(input: &[u8]) -> Result<()> {
    let Some((choice, rest)) = input.split_first() else { return Ok(()) };
    lake::read_bytes(Bytes::copy_from_slice(rest), &schemas()[usize::from(choice % 4)]).map(drop)
}
