use std::sync::Arc;

use arrow_array::StringArray;
use serde_json::Value as Json;

use super::*;
use crate::fluss::record::array_of;
use crate::model::Datum;
use crate::paimon::parse_type;

fn number(text: &str) -> i64 {
    text.split(' ').next().unwrap().parse().unwrap()
}

fn unscaled(text: &str) -> i128 {
    text.replace('.', "").parse().unwrap()
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().map(|char| char.to_digit(16).unwrap()).collect();
    digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap()).collect()
}

fn datum(kind: &TypeKind, text: &str) -> Datum {
    let short = |value: i64| i32::try_from(value).unwrap();
    match kind {
        TypeKind::Boolean => Datum::Boolean(text == "true"),
        TypeKind::TinyInt => Datum::TinyInt(text.parse().unwrap()),
        TypeKind::SmallInt => Datum::SmallInt(text.parse().unwrap()),
        TypeKind::Int => Datum::Int(text.parse().unwrap()),
        TypeKind::BigInt => Datum::BigInt(text.parse().unwrap()),
        TypeKind::Float => Datum::Float(text.parse().unwrap()),
        TypeKind::Double => Datum::Double(text.parse().unwrap()),
        TypeKind::Decimal { precision, scale } => Datum::Decimal { unscaled: unscaled(text), precision: *precision, scale: *scale },
        TypeKind::Date => Datum::Date(short(number(text))),
        TypeKind::Time { .. } => Datum::Time(short(number(text))),
        TypeKind::Timestamp { .. } | TypeKind::TimestampLtz { .. } => {
            Datum::Timestamp { millis: number(text), nanos: short(number(text.split_once("+ ").unwrap().1)) }
        }
        TypeKind::Bytes | TypeKind::Binary { .. } => Datum::Bytes(hex(text)),
        _ => Datum::String(text.to_owned()),
    }
}

/// The value as it is, also where Arrow's unit would cut it (TIMESTAMP(0) with milliseconds).
fn value<'a>(kind: &TypeKind, datum: &'a Datum) -> Value<'a> {
    let (precision, zoned) = match kind {
        TypeKind::Timestamp { precision } => (*precision, false),
        TypeKind::TimestampLtz { precision } => (*precision, true),
        _ => (0, false),
    };
    match datum {
        Datum::Boolean(value) => Value::Boolean(*value),
        Datum::TinyInt(value) => Value::I8(*value),
        Datum::SmallInt(value) => Value::I16(*value),
        Datum::Int(value) => Value::I32(*value),
        Datum::BigInt(value) => Value::I64(*value),
        Datum::Float(value) => Value::F32(*value),
        Datum::Double(value) => Value::F64(*value),
        Datum::Decimal { unscaled, precision, scale } => {
            Value::Decimal { unscaled: *unscaled, precision: *precision, scale: *scale }
        }
        Datum::String(value) => Value::Text(value),
        Datum::Bytes(value) => Value::Bytes(value),
        Datum::Date(value) => Value::Date(*value),
        Datum::Time(value) => Value::Time(*value),
        Datum::Timestamp { millis, nanos } => Value::Timestamp { millis: *millis, nanos: *nanos, precision, zoned },
    }
}

#[test]
fn every_key_of_the_java_client_has_its_bytes_and_buckets() {
    let all: Json = serde_json::from_str(include_str!("../../../fixtures/vectors/fluss-buckets.json")).unwrap();
    let counts: Vec<i32> =
        all["bucket_counts"].as_array().unwrap().iter().map(|count| i32::try_from(count.as_i64().unwrap()).unwrap()).collect();
    let (mut rows, mut refused) = (0, 0);
    for case in all["cases"].as_array().unwrap() {
        let columns = case["columns"].as_array().unwrap();
        let kinds: Vec<TypeKind> =
            columns.iter().map(|column| parse_type(column["type"].as_str().unwrap()).unwrap().kind).collect();
        let data: Vec<Option<Datum>> =
            columns.iter().zip(&kinds).map(|(column, kind)| column["value"].as_str().map(|text| datum(kind, text))).collect();
        let key: Vec<Option<Value<'_>>> =
            kinds.iter().zip(&data).map(|(kind, datum)| datum.as_ref().map(|datum| value(kind, datum))).collect();
        for (name, function) in [
            ("paimon", BucketFunction::Paimon),
            ("iceberg", BucketFunction::Iceberg),
            ("hudi", BucketFunction::Hudi),
            ("fluss", BucketFunction::Fluss),
        ] {
            let expected = &case[name];
            let mut hasher = Hasher::new(function, key.len());
            if expected.get("error").is_some() {
                assert!(hasher.bucket(&key, 4).is_err(), "{name} {case}");
                refused += 1;
                continue;
            }
            rows += 1;
            for (count, bucket) in counts.iter().zip(expected["buckets"].as_array().unwrap()) {
                assert_eq!(i64::from(hasher.bucket(&key, *count).unwrap()), bucket.as_i64().unwrap(), "{name} {count} {case}");
            }
            assert_eq!(hasher.key_bytes(), hex(expected["key"].as_str().unwrap()), "{name} {case}");
            let cut = kinds.iter().zip(&data).any(|(kind, datum)| match (kind, datum) {
                (
                    TypeKind::Timestamp { precision: 0 } | TypeKind::TimestampLtz { precision: 0 },
                    Some(Datum::Timestamp { millis, .. }),
                ) => millis % 1000 != 0,
                (
                    TypeKind::Timestamp { precision: 6 } | TypeKind::TimestampLtz { precision: 6 },
                    Some(Datum::Timestamp { nanos, .. }),
                ) => nanos % 1000 != 0,
                _ => false,
            });
            if cut {
                continue;
            }
            let arrays: Vec<ArrayRef> =
                kinds.iter().zip(&data).map(|(kind, datum)| array_of(kind, &[datum.clone(), datum.clone()]).unwrap()).collect();
            let columns: Vec<(&TypeKind, &ArrayRef)> = kinds.iter().zip(&arrays).collect();
            for (count, bucket) in counts.iter().zip(expected["buckets"].as_array().unwrap()) {
                let bucket = i32::try_from(bucket.as_i64().unwrap()).unwrap();
                assert_eq!(buckets_of(function, &columns, *count).unwrap(), [bucket, bucket], "{name} {count} {case}");
            }
        }
    }
    assert_eq!((rows, rows + refused), (477, 532));
}

#[test]
fn wrong_columns_are_refused() {
    let text: ArrayRef = Arc::new(StringArray::from(vec!["a,b"]));
    let hudi = buckets_of(BucketFunction::Hudi, &[(&TypeKind::String, &text), (&TypeKind::String, &text)], 4);
    assert!(hudi.is_err() && buckets_of(BucketFunction::Hudi, &[(&TypeKind::String, &text)], 4).is_ok());
    assert!(buckets_of(BucketFunction::Paimon, &[(&TypeKind::Int, &text)], 4).is_err());
    assert!(buckets_of(BucketFunction::Paimon, &[(&TypeKind::String, &text)], 0).is_err());
    assert!(buckets_of(BucketFunction::Paimon, &[], 1).is_err());
}
