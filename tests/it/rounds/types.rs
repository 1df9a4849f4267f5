//! Every scalar type through the whole path: Arrow of a client, log, round, Parquet, and back.

use arrow_array::types::{
    Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Time32MillisecondType,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
};
use arrow_array::{Array, BooleanArray};
use arrow_schema::{DataType as ArrowType, TimeUnit};
use lakeward::fluss::bucket::{BucketFunction, buckets_of};
use lakeward::fluss::record::array_of;
use lakeward::model::Datum;

use super::*;

const DAY_MS: i64 = 86_400_000;
/// The years 1 and 9999.
const OLD_MS: i64 = -62_135_596_800_000;
const LATE_MS: i64 = 253_402_300_799_000;

fn time(millis: i64, nanos: i32) -> Datum {
    Datum::Timestamp { millis, nanos }
}

/// Each type with its extremes and what is odd about it.
fn columns() -> Vec<(TypeKind, Vec<Datum>)> {
    let decimal = |precision: u8, scale: u8| {
        let most = 10_i128.pow(u32::from(precision)) - 1;
        let values = [0, 1, -1, most, -most].map(|unscaled| Datum::Decimal { unscaled, precision, scale });
        (TypeKind::Decimal { precision, scale }, values.to_vec())
    };
    let text = |text: &str| Datum::String(text.to_owned());
    let long = "a long text, with more than the bytes that statistics keep … ".repeat(40);
    let floats = [0.0, -0.0, f32::MIN, f32::MAX, f32::MIN_POSITIVE, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let doubles = [0.0, -0.0, f64::MIN, f64::MAX, 4.9e-324, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    let mut columns = vec![
        (TypeKind::Boolean, vec![Datum::Boolean(true), Datum::Boolean(false)]),
        (TypeKind::TinyInt, [i8::MIN, -1, 0, i8::MAX].map(Datum::TinyInt).to_vec()),
        (TypeKind::SmallInt, [i16::MIN, -1, 0, i16::MAX].map(Datum::SmallInt).to_vec()),
        (TypeKind::Int, [i32::MIN, -1, 0, i32::MAX].map(Datum::Int).to_vec()),
        (TypeKind::BigInt, [i64::MIN, -1, 0, i64::MAX].map(Datum::BigInt).to_vec()),
        (TypeKind::Float, floats.map(Datum::Float).to_vec()),
        (TypeKind::Double, doubles.map(Datum::Double).to_vec()),
        decimal(1, 0),
        decimal(9, 2),
        decimal(10, 10),
        decimal(18, 0),
        decimal(19, 5),
        decimal(38, 10),
        (TypeKind::Char { length: 5 }, vec![text("abcde"), text("äöüßé")]),
        (TypeKind::String, vec![text(""), text("plain"), text("🦀 \0 \u{10ffff}"), Datum::String(long.clone())]),
        (TypeKind::Binary { length: 3 }, vec![Datum::Bytes(vec![0; 3]), Datum::Bytes(vec![255; 3])]),
        (TypeKind::Bytes, vec![Datum::Bytes(vec![]), Datum::Bytes(vec![0, 255, 128]), Datum::Bytes(long.into_bytes())]),
        (TypeKind::Date, [0, -1, -719_162, 2_932_896].map(Datum::Date).to_vec()),
        (TypeKind::Time { precision: 0 }, [0, 86_399_000].map(Datum::Time).to_vec()),
    ];
    for precision in [3, 6, 9] {
        columns.push((TypeKind::Time { precision }, [0, 1, 86_399_999].map(Datum::Time).to_vec()));
    }
    for zoned in [false, true] {
        let kind = |precision| if zoned { TypeKind::TimestampLtz { precision } } else { TypeKind::Timestamp { precision } };
        // What nanoseconds in 64 bits reach.
        let (first, last) = (-9_223_372_036_854, 9_223_372_036_853);
        columns.extend([
            (kind(0), vec![time(0, 0), time(-1000, 0), time(OLD_MS, 0), time(LATE_MS, 0)]),
            (kind(3), vec![time(0, 0), time(-1, 0), time(OLD_MS, 0), time(LATE_MS + 999, 0)]),
            (kind(6), vec![time(0, 1000), time(-1, 999_000), time(OLD_MS, 0), time(LATE_MS + 999, 999_000)]),
            (kind(9), vec![time(0, 1), time(-1, 999_999), time(first, 999_999), time(last, 999_999), time(-DAY_MS, 0)]),
        ]);
    }
    columns
}

/// The value in the lake, by its Arrow type alone.
fn lake_value(array: &dyn Array, row: usize) -> Option<Datum> {
    macro_rules! plain {
        ($arrow:ty) => {
            array.as_primitive::<$arrow>().value(row)
        };
    }
    let split = |value: i64, per_milli: i64| {
        let nanos = i32::try_from(value.rem_euclid(per_milli) * (1_000_000 / per_milli)).unwrap();
        time(value.div_euclid(per_milli), nanos)
    };
    array.is_valid(row).then(|| match array.data_type() {
        ArrowType::Boolean => Datum::Boolean(array.as_boolean().value(row)),
        ArrowType::Int8 => Datum::TinyInt(plain!(Int8Type)),
        ArrowType::Int16 => Datum::SmallInt(plain!(Int16Type)),
        ArrowType::Int32 => Datum::Int(plain!(Int32Type)),
        ArrowType::Int64 => Datum::BigInt(plain!(Int64Type)),
        ArrowType::Float32 => Datum::Float(plain!(Float32Type)),
        ArrowType::Float64 => Datum::Double(plain!(Float64Type)),
        ArrowType::Decimal128(precision, scale) => {
            Datum::Decimal { unscaled: plain!(Decimal128Type), precision: *precision, scale: u8::try_from(*scale).unwrap() }
        }
        ArrowType::Utf8 => Datum::String(array.as_string::<i32>().value(row).to_owned()),
        ArrowType::Binary => Datum::Bytes(array.as_binary::<i32>().value(row).to_vec()),
        ArrowType::Date32 => Datum::Date(plain!(Date32Type)),
        ArrowType::Time32(TimeUnit::Millisecond) => Datum::Time(plain!(Time32MillisecondType)),
        ArrowType::Timestamp(TimeUnit::Millisecond, _) => split(plain!(TimestampMillisecondType), 1),
        ArrowType::Timestamp(TimeUnit::Microsecond, _) => split(plain!(TimestampMicrosecondType), 1000),
        ArrowType::Timestamp(TimeUnit::Nanosecond, _) => split(plain!(TimestampNanosecondType), 1_000_000),
        other => panic!("no lake column is {other}"),
    })
}

/// Equal for the same bits only: NaN is itself, and -0 is not 0.
fn text(value: Option<&Datum>) -> String {
    match value {
        Some(Datum::Float(value)) => format!("f32 {:08x}", value.to_bits()),
        Some(Datum::Double(value)) => format!("f64 {:016x}", value.to_bits()),
        other => format!("{other:?}"),
    }
}

/// A table of all types behind the columns `first`, and rows whose `id` is their number.
struct Wide {
    fields: Vec<Field>,
    values: Vec<Vec<Option<Datum>>>,
}

impl Wide {
    /// `first`: NOT NULL columns in front, each with its values, taken in turn.
    fn new(first: &[(&str, TypeKind, Vec<Datum>)], rows: usize) -> Self {
        let mut fields = vec![field("id", TypeKind::BigInt, false)];
        let mut values = vec![(0..rows).map(|id| Some(Datum::BigInt(i64::try_from(id).unwrap()))).collect()];
        for (name, kind, given) in first {
            fields.push(field(name, kind.clone(), false));
            values.push((0..rows).map(|row| Some(given[row % given.len()].clone())).collect());
        }
        for (index, (kind, given)) in columns().into_iter().enumerate() {
            fields.push(field(&format!("c{index}"), kind, true));
            // One NULL per turn, and row 0 is all NULL.
            values.push((0..rows).map(|row| if row == 0 { None } else { given.get(row % (given.len() + 1)).cloned() }).collect());
        }
        Self { fields, values }
    }

    fn arrays(&self) -> Vec<ArrayRef> {
        self.fields.iter().zip(&self.values).map(|(field, values)| array_of(&field.data_type.kind, values).unwrap()).collect()
    }

    async fn append(&self, stage: &Stage, path: &TablePath) {
        let mut writer = Writer::open(&stage.cluster, path, WriterOptions::default()).await.unwrap();
        let batch = RecordBatch::try_new(writer.schema(), self.arrays()).unwrap();
        writer.append(&batch).await.map_err(|error| error.chain()).unwrap();
    }

    /// Each row is there once and has the values that were written.
    fn assert_in(&self, files: &[LakeFile]) {
        assert_eq!(ids(files), Vec::from_iter(0..i64::try_from(self.values[0].len()).unwrap()));
        for file in files {
            for (row, id) in file.ids().into_iter().enumerate() {
                for (field, values) in self.fields.iter().zip(&self.values) {
                    let found = lake_value(file.rows.column_by_name(&field.name).unwrap(), row);
                    let wanted = &values[usize::try_from(id).unwrap()];
                    assert_eq!(text(found.as_ref()), text(wanted.as_ref()), "row {id}, `{}` {:?}", field.name, field.data_type);
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_scalar_type_comes_through_a_table_without_bucket_key() {
    let stage = Stage::new().await;
    let wide = Wide::new(&[], 40);
    let path = stage.table("wide", &descriptor(wide.fields.clone(), &[], &[], 3)).await;
    wide.append(&stage, &path).await;
    assert_eq!(stage.tier().await, [Some(1)]);
    wide.assert_in(&stage.files(&path).await);
    assert_eq!(stage.tier().await, [None]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_scalar_type_comes_through_a_table_with_keys_and_each_row_is_in_the_bucket_of_its_key() {
    let stage = Stage::new().await;
    let ltz = TypeKind::TimestampLtz { precision: 6 };
    let decimal = TypeKind::Decimal { precision: 20, scale: 2 };
    let keys = [
        ("k_text", TypeKind::String, ["", "a", "longer than seven"].map(|text| Datum::String(text.to_owned())).to_vec()),
        ("k_time", ltz, vec![time(0, 1000), time(OLD_MS, 0), time(LATE_MS, 999_000)]),
        (
            "k_decimal",
            decimal,
            [0, -1, 10_i128.pow(19)].map(|unscaled| Datum::Decimal { unscaled, precision: 20, scale: 2 }).to_vec(),
        ),
        ("k_date", TypeKind::Date, [-1, 20_000].map(Datum::Date).to_vec()),
        ("k_double", TypeKind::Double, [-1.5, f64::MAX].map(Datum::Double).to_vec()),
    ];
    let wide = Wide::new(&keys, 60);
    let names = ["k_text", "k_time", "k_decimal", "k_date", "k_double", "id"];
    let path = stage.table("wide", &descriptor(wide.fields.clone(), &[], &names, 3)).await;
    wide.append(&stage, &path).await;
    assert_eq!(stage.tier().await, [Some(1)]);
    let files = stage.files(&path).await;
    wide.assert_in(&files);

    let arrays = wide.arrays();
    let column = |name: &str| wide.fields.iter().position(|field| field.name == name).unwrap();
    let columns: Vec<_> = names.iter().map(|name| (&wide.fields[column(name)].data_type.kind, &arrays[column(name)])).collect();
    let function = BucketFunction::of(&stage.info(&path).await).unwrap();
    let buckets = buckets_of(function, &columns, 3).unwrap();
    assert_eq!(buckets.iter().collect::<BTreeSet<_>>().len(), 3);
    for file in &files {
        assert_eq!(file.entry.total_buckets, 3);
        assert!(file.ids().into_iter().all(|id| buckets[usize::try_from(id).unwrap()] == file.entry.bucket));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partition_values_of_every_type_lead_to_the_same_rows() {
    let stage = Stage::new().await;
    let text = |text: &str| Datum::String(text.to_owned());
    let keys = [
        ("p_flag", TypeKind::Boolean, vec![Datum::Boolean(true), Datum::Boolean(false)]),
        ("p_tiny", TypeKind::TinyInt, [i8::MIN, i8::MAX].map(Datum::TinyInt).to_vec()),
        ("p_small", TypeKind::SmallInt, [i16::MIN, i16::MAX].map(Datum::SmallInt).to_vec()),
        ("p_int", TypeKind::Int, [i32::MIN, i32::MAX].map(Datum::Int).to_vec()),
        ("p_big", TypeKind::BigInt, [i64::MIN, i64::MAX].map(Datum::BigInt).to_vec()),
        ("p_float", TypeKind::Float, [-1.5, 16_777_216.0].map(Datum::Float).to_vec()),
        ("p_double", TypeKind::Double, [0.1, -100.25].map(Datum::Double).to_vec()),
        ("p_char", TypeKind::Char { length: 2 }, vec![text("ab"), text("-_")]),
        ("p_text", TypeKind::String, vec![text("A-b_9"), text("z")]),
        ("p_fixed", TypeKind::Binary { length: 2 }, vec![Datum::Bytes(vec![0, 255]), Datum::Bytes(vec![1, 2])]),
        ("p_bytes", TypeKind::Bytes, vec![Datum::Bytes(vec![127]), Datum::Bytes(vec![7; 9])]),
        ("p_date", TypeKind::Date, [-719_162, 2_932_896].map(Datum::Date).to_vec()),
        ("p_time", TypeKind::Time { precision: 3 }, [1, 86_399_999].map(Datum::Time).to_vec()),
        ("p_stamp", TypeKind::Timestamp { precision: 6 }, vec![time(-1, 999_000), time(LATE_MS, 1000)]),
        ("p_moment", TypeKind::TimestampLtz { precision: 3 }, vec![time(0, 0), time(OLD_MS, 0)]),
    ];
    let wide = Wide::new(&keys, 12);
    let names = keys.each_ref().map(|(name, _, _)| *name);
    let path = stage.table("wide", &descriptor(wide.fields.clone(), &names, &["id"], 2)).await;
    wide.append(&stage, &path).await;
    assert_eq!(stage.admin.partitions(&path).await.unwrap().len(), 2);
    assert_eq!(stage.tier().await, [Some(1)]);
    let files = stage.files(&path).await;
    wide.assert_in(&files);

    // The typed partition row of each file says the same as its rows.
    let lake = stage.lake(&path).await;
    let types = lake.schema().partition_types().unwrap();
    for file in &files {
        let row = usize::try_from(file.ids()[0]).unwrap();
        let wanted: Vec<Option<Datum>> = wide.values[1..=keys.len()].iter().map(|values| values[row].clone()).collect();
        assert_eq!(file.entry.partition.read(&types).unwrap(), wanted);
    }
    wide.append(&stage, &path).await;
    assert_eq!(stage.tier().await, [Some(2)]);
    assert_eq!(stage.ids(&path).await.len(), 24, "the same partitions, once more");
    assert_eq!(totals(&stage.files(&path).await).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn booleans_and_nulls_alone_make_a_file_too() {
    let stage = Stage::new().await;
    let fields = vec![field("id", TypeKind::BigInt, true), field("flag", TypeKind::Boolean, true)];
    let path = stage.table("bare", &descriptor(fields, &[], &[], 1)).await;
    let mut writer = Writer::open(&stage.cluster, &path, WriterOptions::default()).await.unwrap();
    let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::new_null(1000)), Arc::new(BooleanArray::from(vec![None; 1000]))];
    let batch = RecordBatch::try_new(writer.schema(), columns).unwrap();
    writer.append(&batch).await.unwrap();
    assert_eq!(stage.tier().await, [Some(1)]);
    let files = stage.files(&path).await;
    assert_eq!(files.iter().map(|file| file.rows.num_rows()).sum::<usize>(), 1000);
    assert!(files.iter().all(|file| file.rows.columns().iter().all(|column| column.null_count() == 1000)));
}
