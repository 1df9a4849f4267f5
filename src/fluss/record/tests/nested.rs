//! Nested columns: what Java wrote in each log format, our own batches, hostile bytes.

use super::*;
use crate::error::Kind;
use crate::fluss::table_json::schema_from_json;

const FILES: [(&str, LogFormat); 4] = [
    ("log-arrow-v0-nested-deep.bin", LogFormat::Arrow),
    ("log-arrow-v0-nested-deep-zstd.bin", LogFormat::Arrow),
    ("log-indexed-v0-nested.bin", LogFormat::Indexed),
    ("log-compacted-v0-nested.bin", LogFormat::Compacted),
];

fn golden() -> (BatchSchema, Value) {
    let all: Value = serde_json::from_slice(&fixture("fluss-nested.json")).unwrap();
    let schema = schema_from_json(all["schema"].to_string().as_bytes(), SchemaId(1)).unwrap();
    (BatchSchema::new(Arc::new(schema)).unwrap(), all["rows"].clone())
}

fn raw(name: &str) -> RawBatch {
    batches(fixture(name).into()).next().unwrap().unwrap()
}

/// A value as the fixture writes it: a list as such, a map as a list of pairs, a row as the list of its fields.
fn shown(array: &dyn Array, kind: &TypeKind, row: usize) -> Value {
    if kind.is_nested() && array.is_null(row) {
        return Value::Null;
    }
    let all = |array: &dyn Array, kind: &TypeKind| (0..array.len()).map(|row| shown(array, kind, row)).collect::<Vec<_>>();
    match kind {
        TypeKind::Array(element) => all(&array.as_list::<i32>().value(row), &element.kind).into(),
        TypeKind::Map(key, value) => {
            let entries = array.as_map().value(row);
            let (keys, values) = (all(entries.column(0), &key.kind), all(entries.column(1), &value.kind));
            keys.into_iter().zip(values).map(|(key, value)| json!([key, value])).collect()
        }
        TypeKind::Row(fields) => {
            let columns = array.as_struct().columns();
            fields.iter().zip(columns).map(|(field, column)| shown(column, &field.data_type.kind, row)).collect()
        }
        kind => rendered(value_at(array, kind, row).unwrap()),
    }
}

fn shown_rows(schema: &Schema, rows: &RecordBatch) -> Value {
    let row = |row| {
        let columns = schema.fields.iter().zip(rows.columns());
        columns.map(|(field, column)| shown(column, &field.data_type.kind, row)).collect::<Value>()
    };
    (0..rows.num_rows()).map(row).collect()
}

#[test]
fn java_s_nested_rows_decode_alike_from_every_log_format() {
    let (schema, rows) = golden();
    for (name, format) in FILES {
        let raw = raw(name);
        raw.verify_crc().unwrap();
        let batch = raw.decode(format, &schema, BUCKET).unwrap().unwrap();
        let found = shown_rows(&schema.schema, &batch.rows);
        for (found, wanted) in found.as_array().unwrap().iter().zip(rows.as_array().unwrap()) {
            for ((found, wanted), field) in
                found.as_array().unwrap().iter().zip(wanted.as_array().unwrap()).zip(&schema.schema.fields)
            {
                assert_eq!(found, wanted, "{name} column {}", field.name);
            }
        }
        assert_eq!((batch.rows.num_rows(), batch.base_offset), (5, 300));
    }
}

#[test]
fn nested_rows_that_are_encoded_decode_equal_whole_sliced_and_projected() {
    let (schema, _) = golden();
    let rows = raw(FILES[0].0).decode(LogFormat::Arrow, &schema, BUCKET).unwrap().unwrap().rows;
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd(3)] {
        for (at, count) in [(0, 5), (1, 4), (2, 2), (4, 1)] {
            let rows = rows.slice(at, count);
            let options = EncodeOptions { compression, ..EncodeOptions::new(SchemaId(1)) };
            let raw = batches(encode_arrow_batch(options, &rows, None).unwrap()).next().unwrap().unwrap();
            let decoded = raw.decode(LogFormat::Arrow, &schema, BUCKET).unwrap().unwrap().rows;
            assert_eq!(decoded, rows);
            let positions = [0, 22, 24, 27];
            let cut = batches(project(&raw, &schema, &schema, &positions).unwrap()).next().unwrap().unwrap();
            let decoded = cut.decode(LogFormat::Arrow, &projected(&schema, &schema, &positions), BUCKET).unwrap().unwrap();
            assert_eq!(decoded.rows, rows.project(&positions).unwrap());
        }
    }
}

/// A column of lists of lists of …, and a record whose list points at itself a thousand times.
#[test]
fn lists_that_multiply_themselves_are_refused_before_they_take_memory() {
    let levels = 8;
    let kind = (0..levels).fold(TypeKind::Int, |kind, _| TypeKind::Array(Box::new(DataType::nullable(kind))));
    let fields = vec![field(0, "a", kind)];
    let schema = Schema { id: SchemaId(1), fields, primary_key: vec![], highest_field_id: 0 };
    let schema = BatchSchema::new(Arc::new(schema)).unwrap();
    let count = 1_000_u32;
    let mut list = count.to_le_bytes().to_vec();
    list.resize(4 + usize::try_from(count.div_ceil(32)).unwrap() * 4, 0);
    let length = list.len() + 8 * usize::try_from(count).unwrap();
    for _ in 0..count {
        list.extend_from_slice(&u64::try_from(length).unwrap().to_le_bytes());
    }
    let mut record = vec![0_u8];
    let mut rest = length;
    while rest >= 0x80 {
        record.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
        rest >>= 7;
    }
    record.push(u8::try_from(rest).unwrap());
    record.extend_from_slice(&list);
    let mut bytes = fixture("log-compacted-v0-nested.bin")[..48].to_vec();
    bytes.extend_from_slice(&i32::try_from(record.len() + 1).unwrap().to_le_bytes());
    bytes.push(0);
    bytes.extend_from_slice(&record);
    let total = i32::try_from(bytes.len() - 12).unwrap();
    bytes[8..12].copy_from_slice(&total.to_le_bytes());
    bytes[32 + 12..48].copy_from_slice(&1_i32.to_le_bytes());
    bytes[28..32].copy_from_slice(&0_i32.to_le_bytes());
    let raw = batches(bytes.into()).next().unwrap().unwrap();
    let error = raw.decode(LogFormat::Compacted, &schema, BUCKET).unwrap_err();
    assert!(error.kind() == Kind::Data && error.chain().contains("far more values"), "{}", error.chain());
}

#[test]
fn a_schema_at_the_bound_of_depth_decodes() {
    let levels = crate::model::NESTED_DEPTH_MAX;
    let kind = (0..levels).fold(TypeKind::Int, |kind, _| TypeKind::Row(vec![field(1, "x", kind)]));
    let schema = Schema { id: SchemaId(1), fields: vec![field(0, "a", kind)], primary_key: vec![], highest_field_id: 0 };
    let schema = BatchSchema::new(Arc::new(schema)).unwrap();
    let nulls = arrow_array::new_null_array(schema.arrow.field(0).data_type(), 3);
    let rows = RecordBatch::try_new(Arc::clone(&schema.arrow), vec![nulls]).unwrap();
    let raw = batches(encode_arrow_batch(EncodeOptions::new(SchemaId(1)), &rows, None).unwrap()).next().unwrap().unwrap();
    let decoded = raw.decode(LogFormat::Arrow, &schema, BUCKET).unwrap().unwrap().rows;
    assert_eq!(shown_rows(&schema.schema, &decoded), json!([[null], [null], [null]]));
}

/// Everything that comes out of a decoder can be walked by arrow without a check of its own.
fn assert_valid(rows: &RecordBatch) {
    rows.columns().iter().for_each(|column| column.to_data().validate_full().unwrap());
}

#[test]
fn no_wrong_byte_in_the_metadata_of_nested_columns_panics() {
    let (schema, _) = golden();
    let good = fixture(FILES[0].0);
    let metadata = 56 + usize::try_from(i32::from_le_bytes(good[52..56].try_into().unwrap())).unwrap();
    for at in 48..metadata {
        for value in [0, 7, 255] {
            let mut bytes = good.clone();
            bytes[at] = value;
            let raw = batches(bytes.into()).next().unwrap().unwrap();
            if let Ok(Some(batch)) = raw.decode(LogFormat::Arrow, &schema, BUCKET) {
                assert_valid(&batch.rows);
            }
            drop(project(&raw, &schema, &schema, &[0, 22, 27]));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn mutated_nested_batches_give_errors_or_valid_rows(which in 0_usize..4, changes in proptest::collection::vec((0_usize..1 << 14, any::<u8>()), 1..8), cut in 0_usize..1 << 15) {
        let (schema, _) = golden();
        let (name, format) = FILES[which];
        let mut bytes = fixture(name);
        let length = bytes.len();
        for (at, value) in changes {
            bytes[48 + at % (length - 48)] = value;
        }
        if cut < length && cut > 60 {
            bytes.truncate(cut);
            bytes[8..12].copy_from_slice(&i32::try_from(cut - 12).unwrap().to_le_bytes());
        }
        for raw in batches(Bytes::from(bytes)).flatten() {
            drop(raw.decoded_bytes(format));
            if let Ok(Some(batch)) = raw.decode(format, &schema, BUCKET) {
                assert_valid(&batch.rows);
            }
        }
    }
}
