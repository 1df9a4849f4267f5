//! Rows in both row formats: byte for byte as Java writes them, and back again.

use super::*;
use crate::fluss::table_json::schema_from_json;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn encoded(format: LogFormat, schema: &BatchSchema, rows: &RecordBatch) -> Vec<Vec<u8>> {
    let format = if format == LogFormat::Indexed { KvFormat::Indexed } else { KvFormat::Compacted };
    let encoder = RowEncoder::new(format, &schema.schema, rows).unwrap();
    let encode = |row| {
        let mut bytes = vec![7; 3];
        encoder.encode(row, &mut bytes).unwrap();
        bytes.split_off(3)
    };
    (0..rows.num_rows()).map(encode).collect()
}

/// A log batch of these rows.
fn batch_of(rows: &[Vec<u8>]) -> RawBatch {
    let mut bytes = fixture("log-compacted-v0-nested.bin")[..48].to_vec();
    for row in rows {
        bytes.extend(i32::try_from(row.len() + 1).unwrap().to_le_bytes());
        bytes.push(1);
        bytes.extend(row);
    }
    let total = i32::try_from(bytes.len() - 12).unwrap();
    let count = i32::try_from(rows.len()).unwrap();
    bytes[8..12].copy_from_slice(&total.to_le_bytes());
    bytes[28..32].copy_from_slice(&(count - 1).to_le_bytes());
    bytes[44..48].copy_from_slice(&count.to_le_bytes());
    batches(bytes.into()).next().unwrap().unwrap()
}

fn decoded(format: LogFormat, schema: &BatchSchema, rows: &[Vec<u8>]) -> RecordBatch {
    batch_of(rows).decode(format, schema, BUCKET).unwrap().unwrap().rows
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().map(|char| u8::try_from(char.to_digit(16).unwrap()).unwrap()).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

#[test]
fn rows_have_the_bytes_that_java_gives_them() {
    let all = described();
    let rows = all["rows"].as_array().unwrap();
    for row in rows {
        let schema = schema_of(1, &row["schema"]);
        for (format, name) in [(LogFormat::Compacted, "compacted"), (LogFormat::Indexed, "indexed")] {
            let golden = row[name].as_str().unwrap();
            let values = decoded(format, &schema, &[unhex(golden)]);
            assert_eq!(hex(&encoded(format, &schema, &values)[0]), golden, "{name} {row}");
            let other = if format == LogFormat::Indexed { LogFormat::Compacted } else { LogFormat::Indexed };
            assert_eq!(decoded(other, &schema, &encoded(other, &schema, &values)), values);
        }
    }
    assert!(rows.len() >= 9);
}

#[test]
fn nested_rows_have_the_bytes_that_java_gives_them() {
    let all: Value = serde_json::from_slice(&fixture("fluss-nested.json")).unwrap();
    let schema = schema_from_json(all["schema"].to_string().as_bytes(), SchemaId(1)).unwrap();
    let schema = BatchSchema::new(Arc::new(schema)).unwrap();
    for (format, name) in [(LogFormat::Compacted, "log-compacted-v0-nested.bin"), (LogFormat::Indexed, "log-indexed-v0-nested.bin")]
    {
        let golden = fixture(name);
        let values = batches(golden.clone().into()).next().unwrap().unwrap().decode(format, &schema, BUCKET).unwrap().unwrap().rows;
        let mut rest = &golden[48..];
        for row in encoded(format, &schema, &values) {
            let length = usize::try_from(i32::from_le_bytes(rest[..4].try_into().unwrap())).unwrap();
            assert_eq!(hex(&row), hex(&rest[5..4 + length]), "{name}");
            rest = &rest[4 + length..];
        }
        assert!(rest.is_empty());
        // Slices have offsets of their own.
        for (at, count) in [(1, 3), (4, 1)] {
            let part = values.slice(at, count);
            assert_eq!(encoded(format, &schema, &part), encoded(format, &schema, &values)[at..at + count]);
        }
    }
}

#[test]
fn a_char_that_has_no_room_is_refused_in_indexed_rows_only() {
    let char = DataType::nullable(TypeKind::Char { length: 2 });
    let fields = vec![Field { data_type: char, ..field(0, "a", TypeKind::Int) }];
    let schema = BatchSchema::new(Arc::new(Schema { id: SchemaId(1), fields, primary_key: vec![], highest_field_id: 0 })).unwrap();
    let column = array_of(&TypeKind::Char { length: 2 }, &[Some(Datum::String("éé".into()))]).unwrap();
    let rows = RecordBatch::try_new(Arc::clone(&schema.arrow), vec![column]).unwrap();
    let error = RowEncoder::new(KvFormat::Indexed, &schema.schema, &rows).unwrap().encode(0, &mut Vec::new()).unwrap_err();
    assert!(error.chain().contains("CHAR(2)"), "{}", error.chain());
    assert_eq!(decoded(LogFormat::Compacted, &schema, &encoded(LogFormat::Compacted, &schema, &rows)), rows);
}

fn scalar() -> impl Strategy<Value = (TypeKind, BoxedStrategy<Datum>)> {
    let decimal = |precision: u8| {
        let bound = 10_i128.pow(u32::from(precision)) - 1;
        let kind = TypeKind::Decimal { precision, scale: 2 };
        let value = (-bound..=bound).prop_map(move |unscaled| Datum::Decimal { unscaled, precision, scale: 2 });
        (kind, value.boxed())
    };
    let timestamp = |precision: u8| {
        let step = if precision <= 3 { 1_000_000 } else { 1000 };
        let value = (-4_000_000_000_000_i64..4_000_000_000_000, 0..1_000_000 / step);
        (
            TypeKind::Timestamp { precision },
            value.prop_map(move |(millis, nanos)| Datum::Timestamp { millis, nanos: nanos * step }).boxed(),
        )
    };
    proptest::sample::select(vec![
        (TypeKind::Boolean, any::<bool>().prop_map(Datum::Boolean).boxed()),
        (TypeKind::TinyInt, any::<i8>().prop_map(Datum::TinyInt).boxed()),
        (TypeKind::SmallInt, any::<i16>().prop_map(Datum::SmallInt).boxed()),
        (TypeKind::Int, any::<i32>().prop_map(Datum::Int).boxed()),
        (TypeKind::BigInt, any::<i64>().prop_map(Datum::BigInt).boxed()),
        (TypeKind::Double, any::<f64>().prop_filter("equal to itself", |value| !value.is_nan()).prop_map(Datum::Double).boxed()),
        (TypeKind::String, "\\PC{0,12}".prop_map(Datum::String).boxed()),
        (TypeKind::Bytes, proptest::collection::vec(any::<u8>(), 0..12).prop_map(Datum::Bytes).boxed()),
        (TypeKind::Binary { length: 3 }, proptest::collection::vec(any::<u8>(), 3).prop_map(Datum::Bytes).boxed()),
        (TypeKind::Date, any::<i32>().prop_map(Datum::Date).boxed()),
        decimal(9),
        decimal(18),
        decimal(30),
        timestamp(3),
        timestamp(6),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_rows_survive_both_row_formats(
        columns in proptest::collection::vec(scalar().prop_flat_map(|(kind, value)| (Just(kind), proptest::collection::vec(proptest::option::of(value), 8))), 1..20),
    ) {
        let fields = columns.iter().zip(0..).map(|((kind, _), id)| field(id, &format!("c{id}"), kind.clone())).collect();
        let schema = BatchSchema::new(Arc::new(Schema { id: SchemaId(1), fields, primary_key: vec![], highest_field_id: 0 })).unwrap();
        let arrays = columns.iter().map(|(kind, values)| array_of(kind, values).unwrap()).collect();
        let rows = RecordBatch::try_new(Arc::clone(&schema.arrow), arrays).unwrap();
        for format in [LogFormat::Compacted, LogFormat::Indexed] {
            prop_assert_eq!(&decoded(format, &schema, &encoded(format, &schema, &rows)), &rows);
        }
        // The same values as lists: four rows of two.
        for (kind, values) in &columns {
            let list = TypeKind::Array(Box::new(DataType::nullable(kind.clone())));
            let schema = Schema { id: SchemaId(1), fields: vec![field(0, "l", list)], primary_key: vec![], highest_field_id: 0 };
            let schema = BatchSchema::new(Arc::new(schema)).unwrap();
            let arrow_schema::DataType::List(element) = schema.arrow.field(0).data_type() else { unreachable!() };
            let offsets = arrow_buffer::OffsetBuffer::new(vec![0, 2, 4, 6, 8].into());
            let column = arrow_array::ListArray::new(Arc::clone(element), offsets, array_of(kind, values).unwrap(), None);
            let rows = RecordBatch::try_new(Arc::clone(&schema.arrow), vec![Arc::new(column)]).unwrap();
            for format in [LogFormat::Compacted, LogFormat::Indexed] {
                prop_assert_eq!(&decoded(format, &schema, &encoded(format, &schema, &rows)), &rows);
            }
        }
    }
}
