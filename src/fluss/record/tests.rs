use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, RecordBatch};
use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::model::{BucketId, ChangeKind, DataType, Datum, Field, LogBatch, Schema, SchemaId, TableBucket, TableId, TypeKind};

mod kv;
mod memory;
mod nested;
mod row_writer;

const BUCKET: TableBucket = TableBucket { table: TableId(1), partition: None, bucket: BucketId(0) };

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/fixtures/vectors/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn described() -> Value {
    serde_json::from_slice(&fixture("fluss-records.json")).unwrap()
}

/// Reads the SQL text of a type, as the fixtures name it.
fn parse_type(text: &str) -> DataType {
    let (text, nullable) = text.strip_suffix(" NOT NULL").map_or((text, true), |text| (text, false));
    let (name, arguments) = text.split_once('(').unwrap_or((text, ""));
    let numbers: Vec<u8> = arguments
        .split(|char: char| !char.is_ascii_digit())
        .filter(|text| !text.is_empty())
        .map(|text| text.parse().unwrap())
        .collect();
    let kind = match name {
        "BOOLEAN" => TypeKind::Boolean,
        "TINYINT" => TypeKind::TinyInt,
        "SMALLINT" => TypeKind::SmallInt,
        "INT" => TypeKind::Int,
        "BIGINT" => TypeKind::BigInt,
        "FLOAT" => TypeKind::Float,
        "DOUBLE" => TypeKind::Double,
        "CHAR" => TypeKind::Char { length: numbers[0].into() },
        "STRING" => TypeKind::String,
        "BINARY" => TypeKind::Binary { length: numbers[0].into() },
        "BYTES" => TypeKind::Bytes,
        "DECIMAL" => TypeKind::Decimal { precision: numbers[0], scale: numbers[1] },
        "DATE" => TypeKind::Date,
        "TIME" => TypeKind::Time { precision: numbers[0] },
        "TIMESTAMP" if text.contains("LOCAL") => TypeKind::TimestampLtz { precision: numbers[0] },
        "TIMESTAMP" => TypeKind::Timestamp { precision: numbers[0] },
        "ARRAY<INT>" => TypeKind::Array(Box::new(DataType::nullable(TypeKind::Int))),
        "ARRAY<STRING>" => TypeKind::Array(Box::new(DataType::nullable(TypeKind::String))),
        "MAP<STRING NOT NULL, BIGINT>" => {
            TypeKind::Map(Box::new(DataType::required(TypeKind::String)), Box::new(DataType::nullable(TypeKind::BigInt)))
        }
        "ROW<`a` INT, `b` STRING>" => TypeKind::Row(vec![field(9, "a", TypeKind::Int), field(10, "b", TypeKind::String)]),
        other => panic!("{other}"),
    };
    DataType { kind, nullable }
}

fn field(id: i32, name: &str, kind: TypeKind) -> Field {
    Field { id, name: name.into(), data_type: DataType::nullable(kind), comment: None }
}

fn schema_of(id: i32, columns: &Value) -> BatchSchema {
    let columns = columns.as_array().unwrap();
    let fields = columns.iter().zip(0..).map(|(column, id)| Field {
        id,
        name: column["name"].as_str().unwrap().into(),
        data_type: parse_type(column["type"].as_str().unwrap()),
        comment: None,
    });
    let schema = Schema { id: SchemaId(id), fields: fields.collect(), primary_key: vec![], highest_field_id: 0 };
    BatchSchema::new(Arc::new(schema)).unwrap()
}

/// A value as the fixtures write it.
fn rendered(value: Option<Datum>) -> Value {
    match value {
        None => Value::Null,
        Some(Datum::Boolean(value)) => json!(value),
        Some(Datum::TinyInt(value)) => json!(value),
        Some(Datum::SmallInt(value)) => json!(value),
        Some(Datum::Int(value) | Datum::Date(value) | Datum::Time(value)) => json!(value),
        Some(Datum::BigInt(value)) => json!(value),
        Some(Datum::Float(value)) => json!(crate::fluss::partition::java_float(value)),
        Some(Datum::Double(value)) => json!(crate::fluss::partition::java_double(value)),
        Some(Datum::String(value)) => json!(value),
        Some(Datum::Bytes(value)) => json!(format!("0x{}", value.iter().map(|byte| format!("{byte:02x}")).collect::<String>())),
        Some(Datum::Decimal { unscaled, scale, .. }) => {
            let digits = format!("{:0width$}", unscaled.unsigned_abs(), width = usize::from(scale) + 1);
            let (whole, fraction) = digits.split_at(digits.len() - usize::from(scale));
            json!(format!("{}{whole}.{fraction}", if unscaled < 0 { "-" } else { "" }))
        }
        Some(Datum::Timestamp { millis, nanos }) => json!({"ms": millis, "nanos_of_ms": nanos}),
    }
}

fn assert_rows(name: &str, batch: &LogBatch, schema: &Schema, rows: &Value) {
    let rows = rows.as_array().unwrap();
    assert_eq!(batch.rows.num_rows(), rows.len(), "{name}");
    for (index, row) in rows.iter().enumerate() {
        for (column, field) in schema.fields.iter().enumerate().filter(|(_, field)| !field.data_type.kind.is_nested()) {
            let found = rendered(value_at(batch.rows.column(column), &field.data_type.kind, index).unwrap());
            assert_eq!(found, row[column], "{name} row {index} column {}", field.name);
        }
    }
}

fn changes_text(batch: &LogBatch) -> Vec<&'static str> {
    let text = |change: &ChangeKind| match change {
        ChangeKind::Append => "+A",
        ChangeKind::Insert => "+I",
        ChangeKind::UpdateBefore => "-U",
        ChangeKind::UpdateAfter => "+U",
        ChangeKind::Delete => "-D",
    };
    batch.changes.as_ref().map_or_else(|| vec!["+A"; batch.rows.num_rows()], |changes| changes.iter().map(text).collect())
}

fn format_of(file: &Value) -> LogFormat {
    match file["format"].as_str().unwrap() {
        "INDEXED" => LogFormat::Indexed,
        "COMPACTED" => LogFormat::Compacted,
        _ => LogFormat::Arrow,
    }
}

#[test]
fn every_golden_batch_decodes_to_the_rows_that_java_wrote() {
    let all = described();
    let mut seen = 0;
    for file in all["files"].as_array().unwrap() {
        let name = file["file"].as_str().unwrap();
        if !name.starts_with("log-") || file["format"].is_null() {
            continue;
        }
        seen += 1;
        let schema = schema_of(1, &file["schema"]);
        let raw = batches(fixture(name).into()).next().unwrap().unwrap();
        let Some(batch) = raw.decode(format_of(file), &schema, BUCKET).unwrap() else {
            assert_eq!(file["record_count"], 0, "{name}");
            continue;
        };
        assert_eq!(batch.end_offset(), file["next_offset"].as_i64().unwrap(), "{name}");
        if let Some(rows) = file.get("rows") {
            assert_rows(name, &batch, &schema.schema, rows);
            assert_eq!(json!(changes_text(&batch)), file["change_types"], "{name}");
        } else {
            assert_eq!(batch.rows.num_rows(), 400);
            for i in 0..400 {
                assert_eq!(batch.rows.column(0).as_primitive::<Int32Type>().value(i), i32::try_from(i).unwrap());
                let text = batch.rows.column(1).as_string::<i32>();
                assert_eq!(text.is_null(i), i % 10 == 9);
                assert!(text.is_null(i) || text.value(i) == format!("name-{}", i % 7));
            }
            assert!(raw.decoded_bytes(LogFormat::Arrow).unwrap() > 400 * 12, "{name}");
        }
    }
    assert_eq!(seen, 18);
}

#[test]
fn nested_columns_decode_too() {
    let all = described();
    let file = all["files"].as_array().unwrap().iter().find(|file| file["file"] == "log-arrow-v0-nested.bin").unwrap();
    let raw = batches(fixture("log-arrow-v0-nested.bin").into()).next().unwrap().unwrap();
    let batch = raw.decode(LogFormat::Arrow, &schema_of(1, &file["schema"]), BUCKET).unwrap().unwrap();
    let list = batch.rows.column(1).as_list::<i32>();
    assert_eq!(list.value(0).as_primitive::<Int32Type>().iter().collect::<Vec<_>>(), [Some(1), None, Some(3)]);
    assert!(list.is_null(1));
    assert_eq!(batch.rows.column(2).as_list::<i32>().value(0).as_string::<i32>().value(1), "a longer element");
    assert_eq!(batch.rows.column(3).as_map().value(0).column(0).as_string::<i32>().value(1), "key number two");
    let row = batch.rows.column(4).as_struct();
    assert_eq!((row.column(1).as_string::<i32>().value(0), row.is_null(1)), ("in row", true));
}

fn scalars() -> (BatchSchema, RecordBatch) {
    let all = described();
    let file = &all["files"][0];
    let schema = schema_of(1, &file["schema"]);
    let raw = batches(fixture("log-arrow-v0-scalars-none.bin").into()).next().unwrap().unwrap();
    let rows = raw.decode(LogFormat::Arrow, &schema, BUCKET).unwrap().unwrap().rows;
    (schema, rows)
}

#[test]
fn what_is_encoded_decodes_equal_in_every_magic_and_compression() {
    let (schema, rows) = scalars();
    let changes = [ChangeKind::Insert, ChangeKind::UpdateBefore, ChangeKind::UpdateAfter];
    for magic in 0..=2 {
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd(3), Compression::Zstd(9)] {
            for changes in [None, Some(&changes[..])] {
                let options = EncodeOptions { magic, compression, writer_id: 7, sequence: 2, ..EncodeOptions::new(SchemaId(1)) };
                let raw = batches(encode_arrow_batch(options, &rows, changes).unwrap()).next().unwrap().unwrap();
                raw.verify_crc().unwrap();
                assert_eq!((raw.header.magic, raw.header.writer_id, raw.header.batch_sequence), (magic, 7, 2));
                let batch = raw.decode(LogFormat::Arrow, &schema, BUCKET).unwrap().unwrap();
                assert_eq!(batch.rows, rows);
                assert_eq!(batch.changes.as_deref(), changes);
            }
        }
        let empty =
            encode_arrow_batch(EncodeOptions { magic, ..EncodeOptions::new(SchemaId(1)) }, &rows.slice(0, 0), None).unwrap();
        let raw = batches(empty).next().unwrap().unwrap();
        assert_eq!((raw.bytes.len(), raw.header.next_offset()), (raw.header.header_bytes(), 1));
        assert!(raw.decode(LogFormat::Arrow, &schema, BUCKET).unwrap().is_none());
    }
    let sliced = encode_arrow_batch(EncodeOptions::new(SchemaId(1)), &rows.slice(1, 2), None).unwrap();
    let batch = batches(sliced).next().unwrap().unwrap().decode(LogFormat::Arrow, &schema, BUCKET).unwrap().unwrap();
    assert_eq!(batch.rows, rows.slice(1, 2));
}

#[test]
fn an_empty_batch_is_written_byte_for_byte_as_java_writes_it() {
    let (_, rows) = scalars();
    for (name, changes) in [("log-arrow-v0-empty-append.bin", None), ("log-arrow-v0-empty.bin", Some(&[][..]))] {
        let golden = fixture(name);
        let header = BatchHeader::parse(&golden).unwrap();
        let options =
            EncodeOptions { writer_id: header.writer_id, sequence: header.batch_sequence, ..EncodeOptions::new(header.schema_id) };
        let mut bytes = encode_arrow_batch(options, &rows.slice(0, 0), changes).unwrap().to_vec();
        stamp(&mut bytes, header.base_offset, header.commit_timestamp_ms, 0).unwrap();
        assert_eq!(bytes, golden, "{name}");
    }
}

fn projected(schema: &BatchSchema, newest: &BatchSchema, positions: &[usize]) -> BatchSchema {
    let fields = positions.iter().map(|position| newest.schema.fields[*position].clone()).collect();
    BatchSchema::new(Arc::new(Schema { fields, ..(*schema.schema).clone() })).unwrap()
}

#[test]
fn projection_cuts_columns_and_adds_those_that_came_later() {
    let (schema, rows) = scalars();
    let mut fields = schema.schema.fields.clone();
    for (kind, name) in [
        (TypeKind::String, "later_text"),
        (TypeKind::Boolean, "later_flag"),
        (TypeKind::Decimal { precision: 20, scale: 2 }, "later_decimal"),
        (TypeKind::Array(Box::new(DataType::nullable(TypeKind::String))), "later_list"),
    ] {
        fields.push(field(100, name, kind));
    }
    let newest = BatchSchema::new(Arc::new(Schema { id: SchemaId(2), fields, ..(*schema.schema).clone() })).unwrap();
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd(3)] {
        for magic in 0..=2 {
            let changes = [ChangeKind::Insert, ChangeKind::UpdateBefore, ChangeKind::Delete];
            let options = EncodeOptions { magic, compression, ..EncodeOptions::new(SchemaId(1)) };
            let raw = batches(encode_arrow_batch(options, &rows, Some(&changes)).unwrap()).next().unwrap().unwrap();
            for positions in [&[0_usize][..], &[3, 8, 12], &[8, 21, 22, 23, 24], &(0..21).collect::<Vec<_>>()] {
                let cut = batches(project(&raw, &schema, &newest, positions).unwrap()).next().unwrap().unwrap();
                assert_eq!(cut.header.crc, raw.header.crc);
                let batch = cut.decode(LogFormat::Arrow, &projected(&schema, &newest, positions), BUCKET).unwrap().unwrap();
                assert_eq!(batch.changes.as_deref(), Some(&changes[..]));
                for (column, position) in positions.iter().enumerate() {
                    match rows.columns().get(*position) {
                        Some(whole) => assert_eq!(batch.rows.column(column), whole),
                        None => assert_eq!(batch.rows.column(column).null_count(), 3),
                    }
                }
            }
            for wrong in [&[][..], &[1, 0], &[1, 1], &[25]] {
                assert_eq!(project(&raw, &schema, &newest, wrong).unwrap_err().code(), Some(34));
            }
        }
    }
    let stats = batches(fixture("log-arrow-v1-stats-append.bin").into()).next().unwrap().unwrap();
    let cut = batches(project(&stats, &schema, &newest, &[1]).unwrap()).next().unwrap().unwrap();
    assert_eq!(cut.header.statistics_bytes, 0);
}

#[test]
fn a_decompressed_length_out_of_all_proportion_is_refused_before_it_allocates() {
    let all = described();
    let file = all["files"].as_array().unwrap().iter().find(|file| file["file"] == "log-arrow-v0-many-zstd.bin").unwrap();
    let schema = schema_of(1, &file["schema"]);
    for name in ["log-arrow-v0-many-zstd.bin", "log-arrow-v0-many-lz4.bin"] {
        let good = fixture(name);
        let at = good.windows(8).position(|window| window == 3200_i64.to_le_bytes()).unwrap();
        for length in [3199_i64, 3201, 0, -2, i64::MAX, 1 << 40, 1 << 29] {
            let mut bytes = good.clone();
            bytes[at..at + 8].copy_from_slice(&length.to_le_bytes());
            let raw = batches(bytes.into()).next().unwrap().unwrap();
            assert!(raw.decode(LogFormat::Arrow, &schema, BUCKET).is_err(), "{name} {length}");
        }
    }
}

/// Regression: arrow panics on a buffer whose length is no whole number of values.
#[test]
fn no_wrong_byte_in_the_metadata_panics() {
    let all = described();
    for file in all["files"].as_array().unwrap() {
        let name = file["file"].as_str().unwrap();
        if !["log-arrow-v0-scalars-none.bin", "log-arrow-v0-many-zstd.bin", "log-arrow-v0-nested.bin"].contains(&name) {
            continue;
        }
        let (schema, good) = (schema_of(1, &file["schema"]), fixture(name));
        let metadata = 56 + usize::try_from(i32::from_le_bytes(good[52..56].try_into().unwrap())).unwrap();
        for at in 48..metadata {
            for value in [0, 13, 255] {
                let mut bytes = good.clone();
                bytes[at] = value;
                let raw = batches(bytes.into()).next().unwrap().unwrap();
                drop(raw.decode(LogFormat::Arrow, &schema, BUCKET));
                drop(project(&raw, &schema, &schema, &[0, 2]));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn mutated_bytes_never_panic(which in 0_usize..100, changes in proptest::collection::vec((0_usize..4000, any::<u8>()), 1..6), cut in 0_usize..4000) {
        let all = described();
        let files: Vec<&Value> = all["files"].as_array().unwrap().iter()
            .filter(|file| file["file"].as_str().unwrap().starts_with("log-") && !file["format"].is_null()).collect();
        let file = files[which % files.len()];
        let schema = schema_of(1, &file["schema"]);
        let mut bytes = fixture(file["file"].as_str().unwrap());
        // Past the lengths of the header, so that the body is reached.
        let length = bytes.len();
        for (at, value) in changes {
            let at = 25 + at % (length - 25);
            bytes[at] = value;
        }
        if cut < length && cut > 60 {
            bytes.truncate(cut);
            let length = i32::try_from(cut - 12).unwrap();
            bytes[8..12].copy_from_slice(&length.to_le_bytes());
        }
        for raw in batches(Bytes::from(bytes)).flatten() {
            drop(raw.verify_crc());
            drop(raw.decode(format_of(file), &schema, BUCKET));
            drop(raw.decoded_bytes(format_of(file)));
            drop(project(&raw, &schema, &schema, &[0, 1]));
        }
    }

    #[test]
    fn any_rows_survive_the_round_trip(ints in proptest::collection::vec(proptest::option::of(any::<i32>()), 1..50), seed in any::<u64>()) {
        let values: Vec<Option<Datum>> = ints.iter().map(|value| value.map(Datum::Int)).collect();
        let texts: Vec<Option<Datum>> = ints.iter().map(|value| value.map(|value| Datum::String("é".repeat(usize::from(value.to_le_bytes()[0]))))).collect();
        let wide: Vec<Option<Datum>> = ints.iter().map(|value| value.map(|value| Datum::Timestamp {
            millis: i64::from(value) * 7, nanos: i32::try_from(seed % 1_000_000).unwrap() })).collect();
        let fields = vec![field(0, "a", TypeKind::Int), field(1, "b", TypeKind::String), field(2, "c", TypeKind::TimestampLtz { precision: 9 })];
        let columns = [&values, &texts, &wide];
        let schema = BatchSchema::new(Arc::new(Schema { id: SchemaId(1), fields, primary_key: vec![], highest_field_id: 2 })).unwrap();
        let arrays = schema.schema.fields.iter().zip(columns).map(|(field, values)| array_of(&field.data_type.kind, values).unwrap()).collect();
        let rows = RecordBatch::try_new(Arc::clone(&schema.arrow), arrays).unwrap();
        let compression = [Compression::None, Compression::Lz4, Compression::Zstd(1)][usize::try_from(seed % 3).unwrap()];
        let bytes = encode_arrow_batch(EncodeOptions { compression, ..EncodeOptions::new(SchemaId(1)) }, &rows, None).unwrap();
        // At every alignment.
        let shift = usize::try_from(seed % 8).unwrap();
        let mut shifted = vec![0; shift];
        shifted.extend_from_slice(&bytes);
        let batch = batches(Bytes::from(shifted).slice(shift..)).next().unwrap().unwrap().decode(LogFormat::Arrow, &schema, BUCKET).unwrap().unwrap();
        for (column, values) in columns.iter().enumerate() {
            for (row, value) in values.iter().enumerate() {
                prop_assert_eq!(&value_at(batch.rows.column(column), &schema.schema.fields[column].data_type.kind, row).unwrap(), value);
            }
        }
    }
}
