//! Batches of primary-key tables, against those that Java made.

use super::*;

fn described_file(name: &str) -> Value {
    described()["files"].as_array().unwrap().iter().find(|file| file["file"] == name).unwrap().clone()
}

#[test]
fn a_put_of_java_reads_as_its_keys_and_rows_and_is_written_byte_for_byte() {
    let (golden, file) = (fixture("kv-record-batch.bin"), described_file("kv-record-batch.bin"));
    let batch = KvBatch::parse(golden.clone().into()).unwrap();
    assert_eq!((batch.schema_id, batch.writer_id, batch.sequence, batch.count), (SchemaId(1), 77, 3, 3));
    let keys: Vec<String> = batch.records().map(|record| record.key.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    assert_eq!(json!(keys), file["keys"]);
    let schema = schema_of(1, &file["schema"]);
    for (record, row) in batch.records().zip(file["rows"].as_array().unwrap()) {
        assert_eq!(record.row.is_none(), row.is_null());
        if let Some(bytes) = record.row {
            let rows = decode_rows(KvFormat::Compacted, &schema, [bytes]).unwrap();
            assert_eq!(plain(&rows, &schema.schema), json!([row]));
        }
    }
    let mut builder = KvBatchBuilder::new(SchemaId(1)).unwrap();
    for record in batch.records() {
        builder.push(record.key, record.row).unwrap();
    }
    assert_eq!((builder.count(), builder.bytes()), (3, golden.len()));
    assert_eq!(builder.finish(77, 3), golden);
}

fn plain(rows: &RecordBatch, schema: &Schema) -> Value {
    let value =
        |row: usize, (column, field): (usize, &Field)| rendered(value_at(rows.column(column), &field.data_type.kind, row).unwrap());
    let rows = (0..rows.num_rows()).map(|row| schema.fields.iter().enumerate().map(|at| value(row, at)).collect::<Vec<_>>());
    json!(rows.collect::<Vec<_>>())
}

#[test]
fn values_of_java_read_as_their_rows_and_are_written_byte_for_byte() {
    let (golden, file) = (fixture("value-record-batch.bin"), described_file("value-record-batch.bin"));
    let values = Values::parse(&golden).unwrap();
    assert_eq!((values.len(), values.schema_ids().into_iter().collect::<Vec<_>>()), (2, vec![SchemaId(1)]));
    let schema = schema_of(1, &file["schema"]);
    let rows = decode_rows(KvFormat::Compacted, &schema, values.map(|value| value.row).collect::<Vec<_>>()).unwrap();
    assert_eq!(plain(&rows, &schema.schema), file["rows"]);
    let mut builder = ValueBatchBuilder::default();
    for value in values {
        let bytes = value.to_bytes().unwrap();
        assert_eq!(super::super::Value::parse(&bytes).unwrap(), value);
        builder.push(&bytes).unwrap();
    }
    assert_eq!((builder.count(), builder.bytes()), (2, golden.len()));
    assert_eq!(builder.finish(), golden);
}

/// Rows of every scalar type, in both formats.
#[test]
fn rows_decode_alike_in_both_formats() {
    let all = described();
    let rows: Vec<&Value> = all["rows"].as_array().unwrap().iter().collect();
    assert!(rows.len() >= 7);
    for row in rows.into_iter().filter(|row| row["schema"].as_array().unwrap().iter().all(|column| column["name"] != "m")) {
        let schema = schema_of(1, &row["schema"]);
        for (name, format) in [("compacted", KvFormat::Compacted), ("indexed", KvFormat::Indexed)] {
            let hex = row[name].as_str().unwrap().as_bytes();
            let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
            let bytes: Vec<u8> = hex.chunks(2).map(byte).collect();
            let rows = decode_rows(format, &schema, [&bytes[..], &bytes]).unwrap();
            assert_eq!(plain(&rows, &schema.schema), json!([row["row"], row["row"]]), "{name}");
            assert!(decode_rows(format, &schema, [&bytes[..bytes.len() - 1]]).is_err(), "{name}");
        }
    }
}

#[test]
fn what_is_no_whole_batch_is_refused_and_a_broken_checksum_named() {
    let golden = fixture("kv-record-batch.bin");
    for length in 0..golden.len() {
        assert!(KvBatch::parse(Bytes::from(golden[..length].to_vec())).is_err(), "{length}");
    }
    for at in 0..golden.len() {
        let mut bytes = golden.clone();
        bytes[at] ^= 0x40;
        assert!(KvBatch::parse(bytes.into()).is_err(), "byte {at}");
    }
    let mut bytes = golden.clone();
    bytes[40] ^= 1;
    let error = KvBatch::parse(bytes.into()).unwrap_err();
    assert!(error.to_string().contains("checksum"), "{error}");
    // Counts and lengths that lie, under a right checksum.
    for (at, value) in [(24, 2_i32), (24, 4), (24, i32::MAX), (24, -1), (28, 8), (28, 10), (28, -1), (28, i32::MAX)] {
        let mut bytes = golden.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[9..]);
        bytes[5..9].copy_from_slice(&crc.to_le_bytes());
        assert!(KvBatch::parse(bytes.into()).is_err(), "{value} at {at}");
    }
    let values = fixture("value-record-batch.bin");
    for length in 1..values.len() {
        assert!(Values::parse(&values[..length]).is_err(), "{length}");
    }
    assert!(Values::parse(&[]).unwrap().is_empty());
    for (at, value) in [(5, 1_i32), (5, 3), (5, -1), (9, 1), (9, -1), (9, i32::MAX)] {
        let mut bytes = values.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        assert!(Values::parse(&bytes).is_err(), "{value} at {at}");
    }
    assert!(KvBatchBuilder::new(SchemaId(1)).unwrap().push(b"k", Some(b"")).is_err());
    assert!(KvBatchBuilder::new(SchemaId(40_000)).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_keys_and_rows_survive_the_round_trip(records in proptest::collection::vec(
        (proptest::collection::vec(any::<u8>(), 0..300), proptest::option::of(proptest::collection::vec(any::<u8>(), 1..50))), 0..20)) {
        let mut builder = KvBatchBuilder::new(SchemaId(9)).unwrap();
        let mut values = ValueBatchBuilder::default();
        for (key, row) in &records {
            builder.push(key, row.as_deref()).unwrap();
            if let Some(row) = row {
                values.push(&super::super::Value { schema_id: SchemaId(3), row }.to_bytes().unwrap()).unwrap();
            }
        }
        let batch = KvBatch::parse(builder.finish(-1, -1)).unwrap();
        let found: Vec<_> = batch.records().map(|record| (record.key.to_vec(), record.row.map(<[u8]>::to_vec))).collect();
        prop_assert_eq!(&found, &records);
        let bytes = values.finish();
        let found: Vec<_> = Values::parse(&bytes).unwrap().map(|value| value.row.to_vec()).collect();
        prop_assert_eq!(found, records.into_iter().filter_map(|(_, row)| row).collect::<Vec<_>>());
    }

    #[test]
    fn hostile_puts_and_values_never_panic(changes in proptest::collection::vec((0_usize..60, any::<u8>()), 1..6)) {
        let file = described_file("value-record-batch.bin");
        let schema = schema_of(1, &file["schema"]);
        let (mut put, mut values) = (fixture("kv-record-batch.bin"), fixture("value-record-batch.bin"));
        for (at, value) in changes {
            let (a, b) = (at % put.len(), at % values.len());
            put[a] = value;
            values[b] = value;
        }
        let crc = crc32c::crc32c(&put[9..]);
        put[5..9].copy_from_slice(&crc.to_le_bytes());
        if let Ok(batch) = KvBatch::parse(put.into()) {
            prop_assert_eq!(batch.records().count(), batch.count);
            drop(decode_rows(KvFormat::Indexed, &schema, batch.records().filter_map(|record| record.row).collect::<Vec<_>>()));
        }
        if let Ok(values) = Values::parse(&values) {
            for format in [KvFormat::Compacted, KvFormat::Indexed] {
                drop(decode_rows(format, &schema, values.map(|value| value.row).collect::<Vec<_>>()));
            }
        }
    }
}
