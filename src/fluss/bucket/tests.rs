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
fn value<'a>(kind: &TypeKind, datum: &'a Datum) -> Cell<'a> {
    let (precision, zoned) = match kind {
        TypeKind::Timestamp { precision } => (*precision, false),
        TypeKind::TimestampLtz { precision } => (*precision, true),
        _ => (0, false),
    };
    match datum {
        Datum::Boolean(value) => Cell::Boolean(*value),
        Datum::TinyInt(value) => Cell::I8(*value),
        Datum::SmallInt(value) => Cell::I16(*value),
        Datum::Int(value) => Cell::I32(*value),
        Datum::BigInt(value) => Cell::I64(*value),
        Datum::Float(value) => Cell::F32(*value),
        Datum::Double(value) => Cell::F64(*value),
        Datum::Decimal { unscaled, precision, scale } => {
            Cell::Decimal { unscaled: *unscaled, precision: *precision, scale: *scale }
        }
        Datum::String(value) => Cell::Text(value),
        Datum::Bytes(value) => Cell::Bytes(value),
        Datum::Date(value) => Cell::Date(*value),
        Datum::Time(value) => Cell::Time(*value),
        Datum::Timestamp { millis, nanos } => Cell::Timestamp { millis: *millis, nanos: *nanos, precision, zoned },
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
        let key: Vec<Option<Cell<'_>>> =
            kinds.iter().zip(&data).map(|(kind, datum)| datum.as_ref().map(|datum| value(kind, datum))).collect();
        for (name, function) in [
            ("paimon", BucketFunction::Paimon),
            ("iceberg", BucketFunction::Iceberg),
            ("hudi", BucketFunction::Hudi),
            ("fluss", BucketFunction::Fluss),
        ] {
            let expected = &case[name];
            let mut encoder = Encoder::new(function, key.len());
            if expected.get("error").is_some() {
                assert!(encoder.bucket(&key, 4).is_err(), "{name} {case}");
                refused += 1;
                continue;
            }
            rows += 1;
            for (count, bucket) in counts.iter().zip(expected["buckets"].as_array().unwrap()) {
                assert_eq!(i64::from(encoder.bucket(&key, *count).unwrap()), bucket.as_i64().unwrap(), "{name} {count} {case}");
            }
            assert_eq!(encoder.bytes(), hex(expected["key"].as_str().unwrap()), "{name} {case}");
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
            if data.iter().all(Option::is_some) {
                let mut keys = KeyWriter::new(function, &columns).unwrap();
                assert_eq!(hex(expected["key"].as_str().unwrap()), keys.key(1).unwrap(), "{name} {case}");
            }
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

#[test]
fn keys_are_encoded_as_format_lake_version_and_bucket_key_say() {
    let table = |format: Option<&str>, version: Option<&str>, bucket_keys: &[&str]| {
        let mut table = TableInfo::for_tests("demo.t", 3);
        let fields = ["day", "id", "line"].map(|name| crate::model::Field { name: name.into(), ..table.schema.fields[0].clone() });
        let primary_key = vec!["id".into(), "day".into(), "line".into()];
        table.schema = Arc::new(crate::model::Schema { fields: fields.into(), primary_key, ..(*table.schema).clone() });
        table.partition_keys = vec!["day".into()];
        table.bucket_keys = bucket_keys.iter().map(|name| (*name).to_owned()).collect();
        let options = [("table.datalake.format", format), ("table.kv.format-version", version)];
        table.properties = options.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned()))).collect();
        table
    };
    let default = &["id", "line"][..];
    for (format, version, bucket_keys, encoding) in [
        (Some("paimon"), None, default, BucketFunction::Paimon),
        (Some("paimon"), None, &["id"][..], BucketFunction::Paimon),
        (Some("paimon"), Some("2"), default, BucketFunction::Paimon),
        (Some("paimon"), Some("2"), &[], BucketFunction::Paimon),
        (Some("paimon"), Some("2"), &["id"], BucketFunction::Fluss),
        (Some("paimon"), Some("2"), &["line", "id"], BucketFunction::Fluss),
        (Some("hudi"), Some("1"), default, BucketFunction::Fluss),
        (Some("iceberg"), Some("2"), default, BucketFunction::Iceberg),
        (None, Some("2"), default, BucketFunction::Fluss),
    ] {
        let rules = KeyRules::of(&table(format, version, bucket_keys)).unwrap();
        assert_eq!(
            (rules.encoding, &rules.columns[..]),
            (encoding, &["id".to_owned(), "line".to_owned()][..]),
            "{format:?} {version:?}"
        );
        let hashed = if bucket_keys.is_empty() { default } else { bucket_keys };
        assert_eq!(rules.bucket_columns, hashed);
    }
    assert!(KeyRules::of(&table(None, Some("3"), default)).is_err());
    let nulls = array_of(&TypeKind::String, &[None]).unwrap();
    for encoding in [BucketFunction::Paimon, BucketFunction::Fluss, BucketFunction::Hudi] {
        assert!(KeyWriter::new(encoding, &[(&TypeKind::String, &nulls)]).unwrap().key(0).is_err());
    }
}
