//! What decoded rows copy, and what they keep alive.

use arrow_array::Int64Array;
use arrow_array::types::Int64Type;

use super::*;

/// Whether the bytes at `place` lie in `frame`.
fn lies_in(frame: &Bytes, place: *const u8) -> bool {
    frame.as_ptr_range().contains(&place)
}

fn numbers_and_texts(rows: usize) -> (BatchSchema, RecordBatch) {
    let fields = vec![field(0, "number", TypeKind::BigInt), field(1, "text", TypeKind::String)];
    let schema = Schema { id: SchemaId(1), fields, primary_key: vec![], highest_field_id: 1 };
    let schema = BatchSchema::new(Arc::new(schema)).unwrap();
    let random = |row: usize| i64::try_from(row).unwrap().wrapping_mul(-7_046_029_254_386_353_131);
    let numbers: Int64Array = (0..rows).map(random).collect();
    let texts: arrow_array::StringArray = (0..rows).map(|row| Some(format!("{:016x}", random(row)))).collect();
    let rows = RecordBatch::try_new(Arc::clone(&schema.arrow), vec![Arc::new(numbers), Arc::new(texts)]).unwrap();
    (schema, rows)
}

fn encoded(rows: &RecordBatch, compression: Compression) -> Vec<u8> {
    encode_arrow_batch(EncodeOptions { compression, ..EncodeOptions::new(SchemaId(1)) }, rows, None).unwrap().to_vec()
}

/// `bytes` at an address of which 16 is a divisor, and `shift` behind that.
fn placed(bytes: &[u8], shift: usize) -> Bytes {
    let mut frame = vec![0; 16 + shift + bytes.len()];
    let start = frame.as_ptr().align_offset(16) + shift;
    frame[start..start + bytes.len()].copy_from_slice(bytes);
    Bytes::from(frame).slice(start..start + bytes.len())
}

fn places(batch: &LogBatch) -> (*const u8, *const u8) {
    let numbers = batch.rows.column(0).as_primitive::<Int64Type>().values().inner().as_ptr();
    (numbers, batch.rows.column(1).as_string::<i32>().values().as_ptr())
}

#[test]
fn rows_that_are_not_compressed_stay_where_they_came_in_if_they_lie_well() {
    let (schema, rows) = numbers_and_texts(1000);
    let bytes = encoded(&rows, Compression::None);
    for shift in 0..16 {
        let frame = placed(&bytes, shift);
        let batch = batches(frame.clone()).next().unwrap().unwrap().decode(LogFormat::Arrow, &schema, BUCKET).unwrap().unwrap();
        assert_eq!(batch.rows, rows);
        let (numbers, texts) = places(&batch);
        assert_eq!(lies_in(&frame, numbers), shift % 8 == 0, "numbers at {shift}");
        assert!(lies_in(&frame, texts), "texts lie well anywhere");
        assert_eq!(batch.memory.shared, frame.len());
        let copied = [(8, 8000), (4, 4004)].iter().filter(|(align, _)| shift % align != 0).map(|(_, bytes)| bytes).sum::<usize>();
        assert!((copied..copied + 1000).contains(&batch.memory.own), "{shift}: {:?}", batch.memory);
        assert!(batch.memory.bytes() <= batch.rows.get_array_memory_size() + frame.len());
    }
}

#[test]
fn compressed_rows_keep_nothing_of_their_frame_not_even_what_was_stored_raw() {
    let (schema, rows) = numbers_and_texts(1000);
    for compression in [Compression::Zstd(3), Compression::Lz4] {
        let frame = placed(&encoded(&rows, compression), 0);
        let raw = batches(frame.clone()).next().unwrap().unwrap();
        // Random numbers don't shrink, so that their buffer is stored as it is.
        assert!(frame.windows(8).any(|window| window == (-1_i64).to_le_bytes()), "nothing is stored raw");
        let batch = raw.decode(LogFormat::Arrow, &schema, BUCKET).unwrap().unwrap();
        assert_eq!(batch.rows, rows);
        let (numbers, texts) = places(&batch);
        assert!(!lies_in(&frame, numbers) && !lies_in(&frame, texts));
        assert_eq!((batch.memory.shared, batch.memory.own), (0, batch.rows.get_array_memory_size()));
    }
}

#[test]
fn a_batch_in_memory_of_its_own_is_the_same_and_shares_only_that() {
    let (schema, rows) = numbers_and_texts(100);
    let frame = placed(&encoded(&rows, Compression::None), 3);
    let raw = batches(frame.clone()).next().unwrap().unwrap();
    assert!(raw.is_shared(LogFormat::Arrow).unwrap());
    let batch = raw.apart().decode(LogFormat::Arrow, &schema, BUCKET).unwrap().unwrap();
    assert_eq!(batch.rows, rows);
    assert!(!lies_in(&frame, places(&batch).1));
    assert_eq!(batch.memory.shared, raw.bytes.len());
    let packed = batches(encoded(&rows, Compression::Zstd(3)).into()).next().unwrap().unwrap();
    assert!(!packed.is_shared(LogFormat::Arrow).unwrap());
}
