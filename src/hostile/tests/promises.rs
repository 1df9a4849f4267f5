//! What decoders promise about inputs that lie on purpose: each made by hand for one promise.

use bytes::{Bytes, BytesMut};
use serde_json::Value;
use tokio_util::codec::Decoder;

use super::*;
use crate::fluss::frame::{RequestCodec, ResponseCodec};
use crate::fluss::record::{BatchSchema, LogFormat, batches, project};
use crate::model::{BucketLayout, DataType, Field, OffsetsFile, Schema, SchemaId, TableInfo, TypeKind};
use crate::paimon::manifest;
use std::sync::Arc;

/// Most bytes that `work` has at a time.
fn peak<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let mut done = None;
    let memory = allocation_counter::measure(|| done = Some(work()));
    (memory.bytes_max, done.unwrap())
}

#[test]
fn a_frame_s_length_alone_asks_for_no_memory() {
    let mut head = BytesMut::from(&100_000_000_i32.to_be_bytes()[..]);
    let (bytes, found) = peak(|| RequestCodec::default().decode(&mut head).unwrap());
    assert!(found.is_none() && bytes < 1 << 20, "{bytes}");
    let mut head = BytesMut::from(&250_000_000_i32.to_be_bytes()[..]);
    let (bytes, found) = peak(|| ResponseCodec::default().decode(&mut head).unwrap());
    assert!(found.is_none() && bytes < 1 << 20, "{bytes}");
}

#[test]
fn a_compressed_buffer_that_says_it_is_huge_gets_memory_as_it_keeps_its_word() {
    let golden: Value = serde_json::from_str(include_str!("../../../fixtures/vectors/fluss-records.json")).unwrap();
    for name in ["log-arrow-v0-many-zstd.bin", "log-arrow-v0-many-lz4.bin"] {
        let file = golden["files"].as_array().unwrap().iter().find(|file| file["file"] == name).unwrap();
        let columns = file["schema"].as_array().unwrap();
        let names: Vec<&str> = columns.iter().map(|column| column["name"].as_str().unwrap()).collect();
        let schema = wire::schemas().iter().find(|schema| schema.fields.iter().map(|field| field.name.as_str()).eq(names.clone()));
        let schema = BatchSchema::new(Arc::new(Schema { id: SchemaId(1), ..Schema::clone(schema.unwrap()) })).unwrap();
        let mut bytes = fs::read(format!("{}/fixtures/vectors/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let at = bytes.windows(8).rposition(|window| window == 3200_i64.to_le_bytes()).unwrap();
        bytes[at..at + 8].copy_from_slice(&(1_i64 << 29).to_le_bytes());
        let raw = batches(bytes.into()).next().unwrap().unwrap();
        let bucket =
            crate::model::TableBucket { table: crate::model::TableId(1), partition: None, bucket: crate::model::BucketId(0) };
        assert!(raw.decoded_bytes(LogFormat::Arrow).unwrap() >= 1 << 29);
        let (bytes, decoded) = peak(|| raw.decode(LogFormat::Arrow, &schema, bucket));
        assert!(decoded.is_err() && bytes < 8 << 20, "{name}: {bytes}");
    }
}

/// Regression: NULLs of added columns were made for as many rows as the Arrow message said.
#[test]
fn a_projection_makes_no_nulls_for_rows_that_are_not_there() {
    let bytes = fs::read(format!("{}/fixtures/vectors/log-arrow-v0-many-none.bin", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let schema = wire::schemas().iter().find(|schema| schema.fields.len() == 3).unwrap();
    let mut newest = Schema::clone(schema);
    newest.fields.push(Field {
        id: 9,
        name: "x".into(),
        data_type: DataType::nullable(TypeKind::Binary { length: 1000 }),
        comment: None,
    });
    let (schema, newest) = (BatchSchema::new(Arc::clone(schema)).unwrap(), BatchSchema::new(Arc::new(newest)).unwrap());
    let good = batches(bytes.clone().into()).next().unwrap().unwrap();
    assert!(project(&good, &schema, &newest, &[0, 3]).unwrap().len() > 400_000);
    // The header alone, then both: row counts of 2^31 − 1.
    let mut lying = bytes;
    lying[28..32].copy_from_slice(&(i32::MAX - 1).to_le_bytes());
    lying[44..48].copy_from_slice(&i32::MAX.to_le_bytes());
    let raw = batches(lying.clone().into()).next().unwrap().unwrap();
    let (bytes, error) = peak(|| project(&raw, &schema, &newest, &[0, 3]).unwrap_err());
    assert!(bytes < 1 << 20 && error.chain().contains("at offset `1000`"), "{bytes} {}", error.chain());
    let at = lying.windows(8).rposition(|window| window == 400_i64.to_le_bytes());
    for place in 48..=at.unwrap() {
        if lying[place..place + 8] == 400_i64.to_le_bytes() {
            lying[place..place + 8].copy_from_slice(&i64::from(i32::MAX).to_le_bytes());
        }
    }
    let raw = batches(lying.into()).next().unwrap().unwrap();
    let (bytes, error) = peak(|| project(&raw, &schema, &newest, &[0, 3]).unwrap_err());
    assert!(bytes < 1 << 20 && error.chain().contains("at offset `1000`"), "{bytes} {}", error.chain());
}

#[test]
fn records_of_a_table_without_columns_have_to_be_there() {
    let schema = Schema { id: SchemaId(1), fields: vec![], primary_key: vec![], highest_field_id: -1 };
    let schema = BatchSchema::new(Arc::new(schema)).unwrap();
    let mut bytes = fs::read(format!("{}/fixtures/vectors/log-indexed-v0-changes.bin", env!("CARGO_MANIFEST_DIR"))).unwrap();
    bytes[28..32].copy_from_slice(&(i32::MAX - 1).to_le_bytes());
    bytes[44..48].copy_from_slice(&i32::MAX.to_le_bytes());
    let raw = batches(Bytes::from(bytes)).next().unwrap().unwrap();
    let bucket = crate::model::TableBucket { table: crate::model::TableId(1), partition: None, bucket: crate::model::BucketId(0) };
    let (bytes, error) = peak(|| raw.decode(LogFormat::Indexed, &schema, bucket).unwrap_err());
    assert!(bytes < 1 << 20 && error.chain().contains("offset `300`"), "{bytes} {}", error.chain());
}

fn long(to: &mut Vec<u8>, value: i64) {
    let mut rest = (value << 1 ^ value >> 63).cast_unsigned();
    while rest >= 0x80 {
        to.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
        rest >>= 7;
    }
    to.push(u8::try_from(rest).unwrap());
}

/// A container of one block.
fn container(schema: &str, codec: &str, block: &[u8]) -> Vec<u8> {
    let mut file = b"Obj\x01".to_vec();
    long(&mut file, 2);
    for text in ["avro.schema", schema, "avro.codec", codec] {
        long(&mut file, i64::try_from(text.len()).unwrap());
        file.extend_from_slice(text.as_bytes());
    }
    long(&mut file, 0);
    file.extend_from_slice(&[7; 16]);
    long(&mut file, 1);
    long(&mut file, i64::try_from(block.len()).unwrap());
    file.extend_from_slice(block);
    file.extend_from_slice(&[7; 16]);
    file
}

/// Regression: lists of values that take no bytes grew by the square of the file, since each of their blocks may say as many as bytes are left.
#[test]
fn avro_values_that_take_no_bytes_are_counted_too() {
    let nulls = r#"{"type":"record","name":"R","fields":[{"name":"_VERSION","type":"int"},{"name":"a","type":{"type":"array","items":"null"}}]}"#;
    let mut block = Vec::new();
    long(&mut block, 2);
    for _ in 0..1000 {
        long(&mut block, 1500);
    }
    long(&mut block, 0);
    let (bytes, error) = peak(|| manifest::decode_entries(&container(nulls, "null", &block)).unwrap_err());
    assert!(bytes < 2 << 20 && error.chain().contains("avro record has more values"), "{bytes} {}", error.chain());
    let fields: Vec<String> = (0..3000).map(|field| format!(r#"{{"name":"f{field}","type":"null"}}"#)).collect();
    let wide = format!(
        r#"{{"type":"record","name":"R","fields":[{{"name":"_VERSION","type":"int"}},{{"name":"a","type":{{"type":"array","items":{{"type":"record","name":"I","fields":[{{"name":"x","type":"int"}},{}]}}}}}}]}}"#,
        fields.join(",")
    );
    let mut block = Vec::new();
    long(&mut block, 2);
    long(&mut block, 4000);
    block.extend_from_slice(&[0; 4001]);
    let (bytes, error) = peak(|| manifest::decode_entries(&container(&wide, "null", &block)).unwrap_err());
    assert!(bytes < 8 << 20 && error.chain().contains("avro record has more values"), "{bytes} {}", error.chain());
}

#[test]
fn an_avro_block_that_grows_out_of_all_proportion_is_refused() {
    let record = r#"{"type":"record","name":"R","fields":[{"name":"_VERSION","type":"int"}]}"#;
    let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 1).unwrap();
    assert!(bomb.len() < 8000);
    let (bytes, error) = peak(|| manifest::decode_entries(&container(record, "zstandard", &bomb)).unwrap_err());
    assert!(bytes < 80 << 20 && error.chain().contains("when decompressed"), "{bytes} {}", error.chain());
}

#[test]
fn a_bucket_count_that_nobody_could_mean_is_refused() {
    for count in [0, -1, (1 << 20) + 1, i32::MAX] {
        let table = TableInfo::for_tests("demo.t", count);
        let error = BucketLayout::of(&table, None).unwrap_err();
        assert!(error.chain().contains(&format!("`demo.t` says bucket count `{count}`")), "{}", error.chain());
    }
}

#[test]
fn offsets_that_name_a_partition_twice_are_refused() {
    let text = r#"{"version":1,"table_id":12,"partition_offsets":[{"partition_id":3,"bucket_offsets":[40]},{"partition_id":3,"bucket_offsets":[7]}]}"#;
    assert!(OffsetsFile::from_json(text).unwrap_err().chain().contains("partition `3` twice"));
}

/// Found by fuzzing: the `parquet` crate makes room for as many values as a dictionary's header says.
#[test]
fn a_dictionary_that_says_it_is_huge_is_refused_before_anything_is_made_of_it() {
    let input = fs::read(folder("data_file").join("found-dictionary-of-a-billion-values")).unwrap();
    prepare();
    let (bytes, error) = peak(|| lake::data_file(&input).unwrap_err());
    assert!(bytes < 1 << 20 && error.chain().contains("read parquet: column `"), "{bytes} {}", error.chain());
}
