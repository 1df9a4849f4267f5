use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::paimon::parse_type;

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(text.get(2 * i..2 * i + 2).unwrap(), 16).unwrap()).collect()
}

/// `2024-01-01` and `2024-01-01T00:00:00.123456789`, read by jiff.
fn days(text: &str) -> i32 {
    let date: jiff::civil::Date = text.parse().unwrap();
    (date - jiff::civil::date(1970, 1, 1)).get_days()
}

fn timestamp(text: &str) -> Datum {
    let time: jiff::civil::DateTime = text.trim_end_matches('Z').parse().unwrap();
    let nanos = jiff::tz::TimeZone::UTC.to_timestamp(time).unwrap().as_nanosecond();
    let millis = i64::try_from(nanos.div_euclid(1_000_000)).unwrap();
    Datum::Timestamp { millis, nanos: i32::try_from(nanos.rem_euclid(1_000_000)).unwrap() }
}

fn datum(value: &Value, kind: &TypeKind) -> Option<Datum> {
    if value.is_null() {
        return None;
    }
    let text = value.as_str().unwrap_or_default();
    let number = value.as_i64().unwrap_or_default();
    Some(match kind {
        TypeKind::Boolean => Datum::Boolean(value.as_bool().unwrap()),
        TypeKind::TinyInt => Datum::TinyInt(i8::try_from(number).unwrap()),
        TypeKind::SmallInt => Datum::SmallInt(i16::try_from(number).unwrap()),
        TypeKind::Int => Datum::Int(i32::try_from(number).unwrap()),
        TypeKind::BigInt => Datum::BigInt(number),
        TypeKind::Float => Datum::Float(f32::from_bits(u32::from_str_radix(text, 16).unwrap())),
        TypeKind::Double => Datum::Double(f64::from_bits(u64::from_str_radix(text, 16).unwrap())),
        TypeKind::Decimal { precision, scale } => {
            Datum::Decimal { unscaled: text.replace('.', "").parse().unwrap(), precision: *precision, scale: *scale }
        }
        TypeKind::Char { .. } | TypeKind::VarChar { .. } | TypeKind::String => Datum::String(text.to_owned()),
        TypeKind::Bytes | TypeKind::Binary { .. } | TypeKind::VarBinary { .. } => Datum::Bytes(hex(text)),
        TypeKind::Date => Datum::Date(days(text)),
        TypeKind::Time { .. } => {
            let time: jiff::civil::Time = text.parse().unwrap();
            let millis = (time - jiff::civil::Time::midnight()).total(jiff::Unit::Millisecond).unwrap();
            Datum::Time(format!("{millis:.0}").parse().unwrap())
        }
        TypeKind::Timestamp { .. } | TypeKind::TimestampLtz { .. } => timestamp(text),
        other => panic!("{other:?}"),
    })
}

#[test]
fn rows_hashes_and_buckets_are_those_of_java_paimon() {
    let vectors: Vec<Value> = serde_json::from_str(include_str!("../../../fixtures/vectors/paimon-buckets.json")).unwrap();
    assert_eq!(vectors.len(), 79);
    for vector in &vectors {
        let types: Vec<DataType> =
            vector["types"].as_array().unwrap().iter().map(|text| parse_type(text.as_str().unwrap()).unwrap()).collect();
        let values: Vec<Option<Datum>> =
            vector["values"].as_array().unwrap().iter().zip(&types).map(|(value, t)| datum(value, &t.kind)).collect();
        let row = BinaryRow::write(&values, &types).unwrap();
        assert_eq!(row.0, hex(vector["serialized"].as_str().unwrap()), "{vector}");
        assert_eq!(row.row_bytes(), hex(vector["row"].as_str().unwrap()), "{vector}");
        let hash = murmur_hash(row.row_bytes());
        assert_eq!(i64::from(hash), vector["hash"].as_i64().unwrap(), "{vector}");
        for (count, bucket) in vector["buckets"].as_object().unwrap() {
            assert_eq!(i64::from(bucket_of_hash(hash, count.parse().unwrap())), bucket.as_i64().unwrap(), "{vector}");
        }
        let read = row.read(&types).unwrap();
        assert_eq!(BinaryRow::write(&read, &types).unwrap(), row, "{vector}");
    }
}

#[test]
fn the_empty_row_is_twelve_zero_bytes() {
    assert_eq!(BinaryRow::write(&[], &[]).unwrap(), BinaryRow::empty());
    assert_eq!(BinaryRow::empty().read(&[]).unwrap(), vec![]);
}

#[test]
fn values_of_another_type_are_refused() {
    let types = [DataType::nullable(TypeKind::Int)];
    assert!(BinaryRow::write(&[Some(Datum::BigInt(1))], &types).is_err());
    assert!(BinaryRow::write(&[], &types).is_err());
    let short = [DataType::nullable(TypeKind::Decimal { precision: 18, scale: 0 })];
    let large = Datum::Decimal { unscaled: i128::MAX, precision: 18, scale: 0 };
    assert!(BinaryRow::write(&[Some(large)], &short).is_err());
}

fn any_column() -> impl Strategy<Value = (DataType, Option<Datum>)> {
    let of = |kind: TypeKind| DataType::nullable(kind);
    let value = prop_oneof![
        any::<bool>().prop_map(move |v| (of(TypeKind::Boolean), Datum::Boolean(v))),
        any::<i8>().prop_map(move |v| (of(TypeKind::TinyInt), Datum::TinyInt(v))),
        any::<i16>().prop_map(move |v| (of(TypeKind::SmallInt), Datum::SmallInt(v))),
        any::<i32>().prop_map(move |v| (of(TypeKind::Int), Datum::Int(v))),
        any::<i64>().prop_map(move |v| (of(TypeKind::BigInt), Datum::BigInt(v))),
        any::<f32>().prop_map(move |v| (of(TypeKind::Float), Datum::Float(v))),
        any::<f64>().prop_map(move |v| (of(TypeKind::Double), Datum::Double(v))),
        any::<i128>().prop_map(move |v| {
            let kind = TypeKind::Decimal { precision: 38, scale: 4 };
            (of(kind), Datum::Decimal { unscaled: v, precision: 38, scale: 4 })
        }),
        ".{0,12}".prop_map(move |v| (of(TypeKind::String), Datum::String(v))),
        prop::collection::vec(any::<u8>(), 0..20).prop_map(move |v| (of(TypeKind::Bytes), Datum::Bytes(v))),
        (any::<i64>(), 0..1_000_000_i32)
            .prop_map(move |(millis, nanos)| { (of(TypeKind::Timestamp { precision: 9 }), Datum::Timestamp { millis, nanos }) }),
    ];
    (value, any::<bool>()).prop_map(|((data_type, value), null)| (data_type, (!null).then_some(value)))
}

proptest! {
    #[test]
    fn rows_survive_a_round_trip(columns in prop::collection::vec(any_column(), 0..70)) {
        let (types, values): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
        let row = BinaryRow::write(&values, &types).unwrap();
        prop_assert_eq!(row.row_bytes().len() % 8, 0);
        prop_assert_eq!(format!("{:?}", row.read(&types).unwrap()), format!("{values:?}"));
    }

    #[test]
    fn mutated_rows_never_panic(
        columns in prop::collection::vec(any_column(), 1..8),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        len in any::<prop::sample::Index>(),
    ) {
        let (types, values): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
        let mut bytes = BinaryRow::write(&values, &types).unwrap().0.to_vec();
        for (at, byte) in cuts {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        drop(BinaryRow(Bytes::copy_from_slice(&bytes)).read(&types));
        bytes.truncate(len.index(bytes.len()));
        drop(BinaryRow(Bytes::from(bytes)).read(&types));
    }
}
