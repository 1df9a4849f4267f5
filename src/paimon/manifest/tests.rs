use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;
use crate::error::Kind;
use crate::paimon::{Snapshot, TableSchema, path};

fn encode_entries(entries: &[ManifestEntry], compression: ManifestCompression, sync: Uuid) -> Result<Bytes> {
    let mut file = Container::new(avro::MANIFEST, compression, sync);
    for entry in entries {
        file.record(|block| put_entry(block, entry))?;
    }
    file.finish()
}

const ZSTD: ManifestCompression = ManifestCompression::Zstd(1);

/// Folders of all golden tables.
fn tables() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for group in ["fixtures/paimon", "fixtures/fluss-lake"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(group);
        found.extend(fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()));
    }
    assert!(found.len() >= 22, "{found:?}");
    found
}

fn files(table: &Path, prefix: &str) -> Vec<PathBuf> {
    let named = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(prefix);
    let mut found: Vec<PathBuf> = fs::read_dir(table.join("manifest")).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(named);
    found.retain(|path| prefix == "manifest-list-" || !path.file_name().unwrap().to_str().unwrap().starts_with("manifest-list-"));
    found
}

fn dump(table: &Path) -> Vec<Json> {
    let name = table.with_extension("dump.jsonl");
    fs::read_to_string(name).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn schema(table: &Path, id: i64) -> TableSchema {
    TableSchema::from_json(&fs::read_to_string(table.join(path::schema(id))).unwrap()).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn named(container: &[u8], key: &str) -> Json {
    let text = String::from_utf8_lossy(container);
    let start = text.find('{').unwrap();
    let end = text.find("avro.codec").unwrap();
    let schema = text.get(start..end).unwrap().trim_end_matches(|c: char| c != '}');
    assert!(!schema.is_empty(), "{key}");
    serde_json::from_str(schema).unwrap()
}

#[test]
fn every_golden_manifest_is_read_and_written_again_with_the_same_records() {
    let (mut entries_seen, mut lists_seen) = (0, 0);
    for table in tables() {
        for file in files(&table, "manifest-") {
            let bytes = fs::read(&file).unwrap();
            let entries = decode_entries(&bytes).unwrap();
            assert_eq!(decode_entries(&encode_entries(&entries, ZSTD, Uuid::nil()).unwrap()).unwrap(), entries, "{file:?}");
            let plain = encode_entries(&entries, ManifestCompression::None, Uuid::nil()).unwrap();
            assert_eq!(decode_entries(&plain).unwrap(), entries, "{file:?}");
            entries_seen += entries.len();
        }
        for file in files(&table, "manifest-list-") {
            let list = decode_list(&fs::read(&file).unwrap()).unwrap();
            assert_eq!(decode_list(&encode_list(&list, ZSTD, Uuid::nil()).unwrap()).unwrap(), list, "{file:?}");
            lists_seen += 1;
        }
    }
    assert!(entries_seen > 80 && lists_seen > 60, "{entries_seen} {lists_seen}");
}

#[test]
fn our_schemas_equal_those_of_java() {
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/paimon/append_bucket");
    for (prefix, ours) in [
        ("manifest-", encode_entries(&[], ZSTD, Uuid::nil()).unwrap()),
        ("manifest-list-", encode_list(&[], ZSTD, Uuid::nil()).unwrap()),
    ] {
        for file in files(&table, prefix) {
            assert_eq!(named(&ours, prefix), named(&fs::read(&file).unwrap(), prefix), "{file:?}");
        }
    }
}

#[test]
fn list_entries_equal_what_we_say_about_the_same_manifest() {
    for table in tables() {
        // The largest schema id counts, so the partition types are those of any schema: partition columns never change.
        let types = schema(&table, 0).partition_types().unwrap();
        for list in files(&table, "manifest-list-") {
            for listed in decode_list(&fs::read(&list).unwrap()).unwrap() {
                let bytes = fs::read(table.join(path::manifest(&listed.file_name))).unwrap();
                let entries = decode_entries(&bytes).unwrap();
                let ours = ManifestFile::of(&listed.file_name, i64::try_from(bytes.len()).unwrap(), &entries, &types).unwrap();
                assert_eq!(ours, listed, "{table:?}");
                for entry in &entries {
                    assert!(listed.may_hold(&entry.partition.read(&types).unwrap(), &types), "{table:?}");
                }
            }
        }
    }
}

#[test]
fn decoded_values_equal_those_that_java_prints() {
    let mut compared = 0;
    for table in tables() {
        let lines = dump(&table);
        let mut entries = Vec::new();
        for file in files(&table, "manifest-") {
            entries.extend(decode_entries(&fs::read(file).unwrap()).unwrap());
        }
        for line in lines.iter().filter(|line| line["type"] == "file") {
            let entry = entries.iter().rfind(|entry| {
                entry.kind == EntryKind::Add
                    && entry.file.file_name == line["fileName"]
                    && Some(i64::from(entry.file.level)) == line["level"].as_i64()
            });
            let entry = entry.unwrap_or_else(|| panic!("{line}"));
            let file = &entry.file;
            let schema = schema(&table, file.schema_id);
            let place = path::data_file(&schema, entry).unwrap();
            assert_eq!(place, line["path"].as_str().unwrap());
            assert_eq!(fs::metadata(table.join(&place)).unwrap().len(), u64::try_from(file.file_size).unwrap());
            let ours = json!({
                "partitionHex": hex(&entry.partition.0), "bucket": entry.bucket, "totalBuckets": entry.total_buckets,
                "fileSize": file.file_size, "rowCount": file.row_count, "deleteRowCount": file.delete_row_count,
                "minSequenceNumber": file.min_sequence_number, "maxSequenceNumber": file.max_sequence_number,
                "schemaId": file.schema_id, "minKeyHex": hex(&file.min_key.0), "maxKeyHex": hex(&file.max_key.0),
                "valueStatsCols": file.value_stats_cols, "extraFiles": file.extra_files, "externalPath": file.external_path,
                "firstRowId": file.first_row_id, "writeCols": file.write_cols,
                "fileSource": file.file_source.map(|source| if source == 0 { "APPEND" } else { "COMPACT" }),
            });
            for (key, value) in ours.as_object().unwrap() {
                assert_eq!(value, &line[key], "`{key}` of {place}");
            }
            assert_eq!(json!(file.value_stats.null_counts), line["valueStats"]["nullCounts"]);
            stats_rows_are_canonical(&schema, file);
            compared += 1;
        }
    }
    assert!(compared > 60, "{compared}");
}

/// Java's own statistics rows come out of our writer byte for byte.
fn stats_rows_are_canonical(schema: &TableSchema, file: &DataFile) {
    let names: Vec<String> = match &file.value_stats_cols {
        Some(names) => names.clone(),
        None => schema.fields.iter().map(|field| field.name.clone()).collect(),
    };
    let types = schema.types_of(&names).unwrap();
    for row in [&file.value_stats.min_values, &file.value_stats.max_values] {
        if row.arity().unwrap() == types.len() {
            assert_eq!(&BinaryRow::write(&row.read(&types).unwrap(), &types).unwrap(), row, "{}", file.file_name);
        }
    }
}

#[test]
fn golden_snapshots_and_schemas_survive_a_round_trip() {
    for table in tables() {
        for line in dump(&table) {
            match line["type"].as_str().unwrap() {
                "schema" => {
                    let json = &line["schema"];
                    let schema = TableSchema::from_json(&json.to_string()).unwrap();
                    assert_eq!(&serde_json::from_str::<Json>(&schema.to_json().unwrap()).unwrap(), json, "{table:?}");
                }
                "snapshot" => {
                    let json = &line["snapshot"];
                    let snapshot = Snapshot::from_json(&json.to_string()).unwrap();
                    assert_eq!(&serde_json::from_str::<Json>(&snapshot.to_json().unwrap()).unwrap(), json, "{table:?}");
                }
                _ => {}
            }
        }
    }
}

fn any_entry() -> impl Strategy<Value = ManifestEntry> {
    let name = "[a-z0-9]{0,40}";
    let numbers = (any::<i64>(), any::<i32>(), any::<i32>(), any::<bool>());
    let optional = (prop::option::of(any::<i64>()), prop::option::of(any::<i32>()), prop::option::of(name));
    let lists = (prop::collection::vec(name, 0..3), prop::option::of(prop::collection::vec(name, 0..3)));
    (name, numbers, optional, lists, prop::collection::vec(any::<u8>(), 0..30)).prop_map(
        |(file_name, (long, int, bucket, delete), (some_long, some_int, some_name), (extra_files, names), bytes)| {
            let row = BinaryRow(Bytes::from(bytes));
            let stats = SimpleStats {
                min_values: row.clone(),
                max_values: row.clone(),
                null_counts: names.as_ref().map(|names: &Vec<String>| vec![some_long; names.len()]),
            };
            ManifestEntry {
                kind: if delete { EntryKind::Delete } else { EntryKind::Add },
                partition: row.clone(),
                bucket,
                total_buckets: int,
                file: DataFile {
                    file_name,
                    file_size: long,
                    row_count: long,
                    min_key: row.clone(),
                    max_key: row.clone(),
                    key_stats: stats.clone(),
                    value_stats: stats,
                    min_sequence_number: long,
                    max_sequence_number: long,
                    schema_id: long,
                    level: int,
                    extra_files,
                    creation_time_ms: some_long,
                    delete_row_count: some_long,
                    embedded_file_index: some_long.map(|_| row.0.clone()),
                    file_source: some_int,
                    value_stats_cols: names.clone(),
                    external_path: some_name,
                    first_row_id: some_long,
                    write_cols: names,
                },
            }
        },
    )
}

proptest! {
    #[test]
    fn entries_survive_a_round_trip(entries in prop::collection::vec(any_entry(), 0..20), zstd in any::<bool>()) {
        let compression = if zstd { ZSTD } else { ManifestCompression::None };
        let bytes = encode_entries(&entries, compression, Uuid::from_u128(7)).unwrap();
        prop_assert_eq!(decode_entries(&bytes).unwrap(), entries);
    }

    #[test]
    fn mutated_manifests_never_panic(
        entries in prop::collection::vec(any_entry(), 1..4),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        end in any::<prop::sample::Index>(),
    ) {
        let mut bytes = encode_entries(&entries, ManifestCompression::None, Uuid::from_u128(7)).unwrap().to_vec();
        for (at, byte) in changes {
            // Half of the changes hit the records, which come last.
            let at = if byte % 2 == 0 { at.index(bytes.len()) } else { bytes.len() - 1 - at.index(bytes.len().min(300)) };
            bytes[at] = byte;
        }
        drop(decode_entries(&bytes));
        drop(decode_list(&bytes));
        bytes.truncate(end.index(bytes.len()));
        drop(decode_entries(&bytes));
    }
}

/// A container with `schema` that holds `block` as `count` records.
fn container(schema: &str, codec: &str, count: i64, block: &[u8]) -> Vec<u8> {
    let mut file = b"Obj\x01".to_vec();
    put_long(&mut file, 2);
    for (key, value) in [("avro.schema", schema), ("avro.codec", codec)] {
        put_bytes(&mut file, key.as_bytes());
        put_bytes(&mut file, value.as_bytes());
    }
    put_long(&mut file, 0);
    file.extend_from_slice(&[5; 16]);
    put_long(&mut file, count);
    put_bytes(&mut file, block);
    file.extend_from_slice(&[5; 16]);
    file
}

#[test]
fn foreign_forms_are_read_by_name() {
    // A union at the top, another order, unknown fields of every type, a timestamp in microseconds, named references.
    let schema = r#"["null",{"type":"record","name":"x.R","fields":[
        {"name":"new","type":{"type":"map","values":["null","double"]}},
        {"name":"_FILE_NAME","type":"string"},{"name":"_VERSION","type":"int"},
        {"name":"_FILE_SIZE","type":["null","long"]},{"name":"_NUM_ADDED_FILES","type":"long"},{"name":"_NUM_DELETED_FILES","type":"long"},
        {"name":"e","type":{"type":"enum","name":"E","symbols":["A"]}},{"name":"f","type":{"type":"fixed","name":"F","size":2}},
        {"name":"_PARTITION_STATS","type":{"type":"record","name":"S","fields":[
            {"name":"_MIN_VALUES","type":"bytes"},{"name":"_MAX_VALUES","type":"bytes"},
            {"name":"_NULL_COUNTS","type":["null",{"type":"array","items":["null","long"]}]}]}},
        {"name":"_MORE","type":"S"},{"name":"_SCHEMA_ID","type":{"type":"long","logicalType":"timestamp-micros"}},{"name":"b","type":"boolean"},{"name":"g","type":"float"}]}]"#;
    let mut block = Vec::new();
    put_long(&mut block, 1);
    put_long(&mut block, -1); // a map block with its size
    put_long(&mut block, 11);
    put_bytes(&mut block, b"k");
    put_long(&mut block, 1);
    block.extend_from_slice(&[0; 8]);
    put_long(&mut block, 0);
    put_bytes(&mut block, b"manifest-1");
    put_long(&mut block, 2);
    put_some(&mut block, Some(77), put_long);
    put_long(&mut block, 3);
    put_long(&mut block, 4);
    put_long(&mut block, 0);
    block.extend_from_slice(&[1, 2]);
    put_stats(&mut block, &SimpleStats::empty());
    put_stats(&mut block, &SimpleStats::empty());
    put_long(&mut block, 5_000);
    block.push(1);
    block.extend_from_slice(&[0; 4]);
    let list = decode_list(&container(schema, "null", 1, &block)).unwrap();
    assert_eq!((list[0].file_name.as_str(), list[0].file_size, list[0].num_added_files), ("manifest-1", 77, 3));
    assert_eq!((list[0].schema_id, list[0].min_bucket), (5, None));
}

#[test]
fn hostile_containers_are_refused() {
    let kind = |bytes: &[u8]| decode_list(bytes).unwrap_err().kind();
    assert_eq!(kind(&container("\"null\"", "snappy", 0, &[])), Kind::Unsupported);
    assert_eq!(kind(&container("\"null\"", "null", i64::MAX, &[])), Kind::Data);
    let nulls = r#"{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"array","items":"null"}}]}"#;
    let mut block = Vec::new();
    put_long(&mut block, i64::MAX);
    assert_eq!(kind(&container(nulls, "null", 1, &block)), Kind::Data);
    let empty = r#"{"type":"record","name":"R","fields":[]}"#;
    assert_eq!(kind(&container(empty, "null", i64::MAX, &[])), Kind::Data);
    let itself = r#"{"type":"record","name":"R","fields":[{"name":"a","type":"R"}]}"#;
    assert_eq!(kind(&container(itself, "null", 1, &[])), Kind::Data);
    let mut twice = r#"{"type":"record","name":"R0","fields":[{"name":"a","type":"int"}]}"#.to_owned();
    for level in 1..30 {
        let below = level - 1;
        twice = format!(
            r#"{{"type":"record","name":"R{level}","fields":[{{"name":"a","type":{twice}}},{{"name":"b","type":"R{below}"}}]}}"#
        );
    }
    assert_eq!(kind(&container(&twice, "null", 1, &[])), Kind::Data);
    let mut bomb = zstd::bulk::compress(&vec![0; 1 << 20], 1).unwrap();
    bomb.truncate(bomb.len() - 3);
    assert_eq!(kind(&container(empty, "zstandard", 1, &bomb)), Kind::Data);
    assert_eq!(kind(b"PAR1"), Kind::Data);
}

#[test]
fn manifests_roll_by_size_and_keep_their_order() {
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/paimon/append_bucket");
    let entry = decode_entries(&fs::read(&files(&table, "manifest-")[0]).unwrap()).unwrap().remove(0);
    let entries: Vec<ManifestEntry> = (0..5000)
        .map(|number: u128| {
            let mut entry = entry.clone();
            entry.file.file_name = format!(
                "data-{}-0.parquet",
                Uuid::from_u128(
                    number
                        .wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
                        .rotate_left(64)
                        .wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
                )
            );
            entry
        })
        .collect();
    let files = encode_rolling(&entries, 50_000, ZSTD, Uuid::nil).unwrap();
    assert!(files.len() > 3);
    let mut read = Vec::new();
    for (bytes, held) in &files {
        assert!(bytes.len() < 100_000);
        let decoded = decode_entries(bytes).unwrap();
        assert_eq!(&decoded, held);
        read.extend(decoded);
    }
    assert_eq!(read, entries);
    assert!(encode_rolling(&[], 1, ZSTD, Uuid::nil).unwrap().is_empty());
}
