use arrow_array::types::Int32Type as Keys;
use arrow_array::types::TimestampMillisecondType;
use arrow_array::{
    Date64Array, Decimal128Array, DictionaryArray, Float64Array, Int32Array, Int64Array, LargeStringArray,
    TimestampMicrosecondArray, TimestampNanosecondArray, UInt64Array,
};
use proptest::prelude::*;

use super::*;
use crate::fluss::record::value_at;
use crate::model::Datum;
use crate::paimon::parse_type;

const READING: Reading = Reading { bytes: BytesText::Base64, faults_max: 10 };

/// `text` as a value of type `kind`, or why not.
fn read(kind: &str, text: &str) -> Result<Datum, String> {
    let data_type = parse_type(kind).unwrap();
    let texts: ArrayRef = Arc::new(StringArray::from(vec![text]));
    match column(&texts, "c", &data_type, READING) {
        Ok(array) => Ok(value_at(array.as_ref(), &data_type.kind, 0).unwrap().unwrap()),
        Err(Fault::Values(bad)) => Err(bad[0].why.clone()),
        Err(Fault::Other(error)) => panic!("{}", error.chain()),
    }
}

fn decimal_of(unscaled: i128, precision: u8, scale: u8) -> Result<Datum, String> {
    Ok(Datum::Decimal { unscaled, precision, scale })
}

#[test]
fn every_scalar_type_is_read_from_text() {
    let at = |millis, nanos| Ok(Datum::Timestamp { millis, nanos });
    for (kind, text, value) in [
        ("BOOLEAN", "True", Ok(Datum::Boolean(true))),
        ("TINYINT", "-128", Ok(Datum::TinyInt(-128))),
        ("SMALLINT", " 7 ", Ok(Datum::SmallInt(7))),
        ("INT", "2147483647", Ok(Datum::Int(i32::MAX))),
        ("BIGINT", "-9223372036854775808", Ok(Datum::BigInt(i64::MIN))),
        ("FLOAT", "1.5", Ok(Datum::Float(1.5))),
        ("DOUBLE", "-Infinity", Ok(Datum::Double(f64::NEG_INFINITY))),
        ("DECIMAL(10, 2)", "-12.5", decimal_of(-1250, 10, 2)),
        ("DECIMAL(10, 2)", "1.25e2", decimal_of(12500, 10, 2)),
        ("DECIMAL(10, 2)", "1.2500", decimal_of(125, 10, 2)),
        ("DECIMAL(3, 0)", "99900e-2", decimal_of(999, 3, 0)),
        ("DECIMAL(38, 0)", "99999999999999999999999999999999999999", decimal_of(10_i128.pow(38) - 1, 38, 0)),
        ("STRING", " a ", Ok(Datum::String(" a ".to_owned()))),
        ("CHAR(2)", "äö", Ok(Datum::String("äö".to_owned()))),
        ("BYTES", "AAH/", Ok(Datum::Bytes(vec![0, 1, 255]))),
        ("BINARY(3)", "AAH/", Ok(Datum::Bytes(vec![0, 1, 255]))),
        ("DATE", "1969-12-31", Ok(Datum::Date(-1))),
        ("TIME(0)", "12:34:56", Ok(Datum::Time(45_296_000))),
        ("TIME(3)", "12:34:56.789", Ok(Datum::Time(45_296_789))),
        ("TIME(6)", "12:34:56.789000", Ok(Datum::Time(45_296_789))),
        ("TIMESTAMP(0)", "1970-01-01T00:00:01", at(1000, 0)),
        ("TIMESTAMP(3)", "1969-12-31 23:59:59.999", at(-1, 0)),
        ("TIMESTAMP(3)", "2024-02-29", at(1_709_164_800_000, 0)),
        ("TIMESTAMP(3)", "0001-01-01T00:00:00", at(-62_135_596_800_000, 0)),
        ("TIMESTAMP(5)", "1970-01-01T00:00:00.00001", at(0, 10_000)),
        ("TIMESTAMP(6)", "1969-12-31T23:59:59.999999", at(-1, 999_000)),
        ("TIMESTAMP(9)", "1970-01-01T00:00:00.000000001", at(0, 1)),
        ("TIMESTAMP_LTZ(3)", "1970-01-01T00:00:00.001Z", at(1, 0)),
        ("TIMESTAMP_LTZ(3)", "1970-01-01T02:00:00+02:00", at(0, 0)),
        ("TIMESTAMP_LTZ(3)", "1970-01-01T00:00:00", at(0, 0)),
        ("TIMESTAMP_LTZ(3)", "1969-12-31 18:29 -0530", at(-60_000, 0)),
        ("TIMESTAMP_LTZ(0)", "1970-01-01 00:00:00 UTC", at(0, 0)),
    ] {
        assert_eq!(read(kind, text), value, "{kind} {text}");
    }
}

#[test]
fn what_a_column_can_not_hold_exactly_is_refused_and_shown() {
    for (kind, text, why) in [
        ("BOOLEAN", "1", "`1` is no BOOLEAN"),
        ("TINYINT", "128", "`128` is no TINYINT"),
        ("INT", "1.0", "`1.0` is no INT"),
        ("BIGINT", "", "`` is no BIGINT"),
        ("FLOAT", "1e39", "`1e39` is no FLOAT: too large"),
        ("DOUBLE", "abc", "`abc` is no DOUBLE"),
        ("DECIMAL(10, 2)", "1.255", "`1.255` is no DECIMAL(10, 2): more digits behind the point than the column has"),
        ("DECIMAL(3, 1)", "100", "`100` is no DECIMAL(3, 1): too large"),
        ("DECIMAL(3, 1)", "1e999999999", "`1e999999999` is no DECIMAL(3, 1): too large"),
        ("DECIMAL(3, 1)", ".", "`.` is no DECIMAL(3, 1)"),
        ("CHAR(2)", "abc", "`abc` is no CHAR(2): too long"),
        ("BYTES", "0x!!", "`0x!!` is no BYTES: not base64; `--bytes hex` reads hex"),
        ("BINARY(2)", "AAH/", "`AAH/` is no BINARY(2): another length"),
        ("DATE", "2023-02-29", "`2023-02-29` is no DATE: a date is written 2024-02-29"),
        ("DATE", "2024-02-29T00:00:00", "`2024-02-29T00:00:00` is no DATE: a date is written 2024-02-29"),
        ("TIME(0)", "12:34:56.5", "`12:34:56.5` is no TIME(0): finer than the column's precision"),
        ("TIME(3)", "25:00:00", "`25:00:00` is no TIME(3): a time is written 12:34:56.789"),
        (
            "TIMESTAMP(3)",
            "2024-02-29T00:00:00.0001",
            "`2024-02-29T00:00:00.0001` is no TIMESTAMP(3): finer than the column's precision",
        ),
        (
            "TIMESTAMP(3)",
            "2024-02-29T00:00:00Z",
            "`2024-02-29T00:00:00Z` is no TIMESTAMP(3): it has a zone, and the column has none",
        ),
        ("TIMESTAMP(3)", "1700000000000", "`1700000000000` is no TIMESTAMP(3): a timestamp is written 2024-02-29T12:34:56.789"),
        ("TIMESTAMP(9)", "0001-01-01T00:00:00", "`0001-01-01T00:00:00` is no TIMESTAMP(9): too far from 1970 for nanoseconds"),
        ("STRING NOT NULL", "x", ""),
    ] {
        let found = read(kind, text);
        assert_eq!(found.err().unwrap_or_default(), why, "{kind} {text}");
    }
    let long = "x".repeat(100);
    assert_eq!(read("INT", &long).unwrap_err(), format!("`{}…` is no INT", "x".repeat(40)));
    assert_eq!(read("INT", "a\nb").unwrap_err(), "`a\\nb` is no INT");
}

#[test]
fn hex_is_read_when_asked_for_and_null_where_it_may_not_be_is_told() {
    let reading = Reading { bytes: BytesText::Hex, faults_max: 1 };
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("0x00fF"), None, None]));
    let array = column(&texts, "c", &parse_type("BYTES").unwrap(), reading).unwrap();
    assert_eq!(array.as_binary::<i32>().value(0), [0, 255]);
    let Err(Fault::Values(bad)) = column(&texts, "c", &parse_type("BYTES NOT NULL").unwrap(), reading) else { panic!() };
    assert_eq!(bad, [BadValue { row: 1, path: "c".into(), why: "no value, and the column is NOT NULL".into() }]);
    let odd: ArrayRef = Arc::new(StringArray::from(vec!["abc"]));
    assert!(column(&odd, "c", &parse_type("BYTES").unwrap(), reading).is_err());
}

/// A typed column as one of type `kind`: the values, or the first that does not fit.
fn typed_as(array: ArrayRef, kind: &str) -> Result<Vec<Option<Datum>>, String> {
    let data_type = parse_type(kind).unwrap();
    assert!(fits(array.data_type(), &data_type.kind), "{} as {kind}", array.data_type());
    match column(&array, "c", &data_type, READING) {
        Ok(made) => Ok((0..made.len()).map(|row| value_at(made.as_ref(), &data_type.kind, row).unwrap()).collect()),
        Err(Fault::Values(bad)) => Err(format!("{} {}", bad[0].row, bad[0].why)),
        Err(Fault::Other(error)) => panic!("{}", error.chain()),
    }
}

#[test]
fn typed_columns_are_cast_where_nothing_is_lost() {
    let ints: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(300)]));
    assert_eq!(typed_as(Arc::clone(&ints), "INT").unwrap(), [Some(Datum::Int(1)), None, Some(Datum::Int(300))]);
    assert_eq!(typed_as(Arc::clone(&ints), "TINYINT").unwrap_err(), "2 `300` is no TINYINT");
    assert_eq!(
        typed_as(Arc::new(UInt64Array::from(vec![u64::MAX])), "BIGINT").unwrap_err(),
        "0 `18446744073709551615` is no BIGINT"
    );
    let decimals = Decimal128Array::from(vec![12300, 12345]).with_precision_and_scale(10, 4).unwrap();
    assert_eq!(typed_as(Arc::new(decimals.slice(0, 1)), "DECIMAL(5, 2)").unwrap(), [decimal_of(123, 5, 2).ok()]);
    assert_eq!(typed_as(Arc::new(decimals), "DECIMAL(5, 2)").unwrap_err(), "1 `1.2345` is no DECIMAL(5, 2)");
    let micros = TimestampMicrosecondArray::from(vec![-1000, 1500]).with_timezone("+02:00");
    assert_eq!(typed_as(Arc::new(micros.slice(0, 1)), "TIMESTAMP(3)").unwrap(), [Some(Datum::Timestamp { millis: -1, nanos: 0 })]);
    assert!(typed_as(Arc::new(micros), "TIMESTAMP_LTZ(3)").unwrap_err().starts_with("1 `"));
    let nanos: ArrayRef = Arc::new(TimestampNanosecondArray::from(vec![100]));
    assert_eq!(typed_as(Arc::clone(&nanos), "TIMESTAMP(7)").unwrap(), [Some(Datum::Timestamp { millis: 0, nanos: 100 })]);
    assert!(typed_as(Arc::new(TimestampNanosecondArray::from(vec![101])), "TIMESTAMP(7)").unwrap_err().contains("finer"));
    // A file may say fewer digits than its decimals have.
    let lying = Decimal128Array::from(vec![Some(999), None, Some(10_i128.pow(19))]).with_precision_and_scale(3, 0).unwrap();
    assert!(typed_as(Arc::new(lying), "DECIMAL(3, 0)").unwrap_err().contains("is no DECIMAL(3, 0): too many digits"));
    let words: ArrayRef = Arc::new(LargeStringArray::from(vec!["2024-02-29"]));
    assert_eq!(typed_as(words, "DATE").unwrap(), [Some(Datum::Date(19_782))]);
    let coded: ArrayRef = Arc::new(["a", "b", "a"].into_iter().collect::<DictionaryArray<Keys>>());
    assert_eq!(typed_as(coded, "STRING").unwrap()[1], Some(Datum::String("b".into())));
    assert_eq!(typed_as(Arc::new(Date64Array::from(vec![86_400_000])), "DATE").unwrap(), [Some(Datum::Date(1))]);
    assert_eq!(typed_as(Arc::new(Int32Array::from(vec![5])), "DOUBLE").unwrap(), [Some(Datum::Double(5.0))]);
    for (array, kind) in [
        (Arc::new(Float64Array::from(vec![1.0])) as ArrayRef, "INT"),
        (Arc::new(Float64Array::from(vec![1.0])), "FLOAT"),
        (ints, "DOUBLE"),
        (nanos, "DATE"),
    ] {
        assert!(!fits(array.data_type(), &parse_type(kind).unwrap().kind), "{} as {kind}", array.data_type());
    }
}

proptest! {
    #[test]
    fn decimals_read_as_they_were_written(unscaled in -10_i128.pow(30)..10_i128.pow(30), scale in 0_u8..20) {
        let digits = format!("{:0>width$}", unscaled.unsigned_abs(), width = usize::from(scale) + 1);
        let (whole, fraction) = digits.split_at(digits.len() - usize::from(scale));
        let text = format!("{}{whole}.{fraction}", if unscaled < 0 { "-" } else { "" });
        prop_assert_eq!(decimal(&text, 38, scale), Ok(unscaled));
        prop_assert_eq!(decimal(&format!("{unscaled}e-{scale}"), 38, scale), Ok(unscaled));
    }

    #[test]
    fn timestamps_read_as_they_are_shown(millis in -62_135_596_800_000_i64..253_402_300_799_000) {
        let shown = array_value_to_string(&PrimitiveArray::<TimestampMillisecondType>::from(vec![millis]), 0).unwrap();
        prop_assert_eq!(read("TIMESTAMP(3)", &shown), Ok(Datum::Timestamp { millis, nanos: 0 }));
    }

    #[test]
    fn foreign_text_never_panics(text in ".{0,30}") {
        for kind in ["BOOLEAN", "INT", "DOUBLE", "DECIMAL(38, 10)", "CHAR(3)", "BYTES", "BINARY(2)", "DATE", "TIME(6)", "TIMESTAMP(0)", "TIMESTAMP(9)", "TIMESTAMP_LTZ(6)"] {
            drop(read(kind, &text));
        }
        drop(read("TIMESTAMP(3)", &format!("2024-01-01{text}")));
        assert!(decimal(&format!("1{text}"), 10, 2).is_ok() || !text.is_empty());
    }
}
