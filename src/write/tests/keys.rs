//! Keys of every type that Fluss allows (S3.4, F6.7), alone, in front of and behind others, and beside partition columns.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Int32Array, Int64Array, PrimitiveArray, RecordBatch,
    StringArray, Time32MillisecondArray, UInt32Array,
};
use arrow_select::take::take;

use super::*;
use crate::lake::Warehouse;
use crate::model::ChangeKind;

/// A key type, values of it in ascending order as Java sorts them (P7.4), and the smallest and the greatest as the lake has them.
struct KeyType {
    kind: TypeKind,
    ascending: ArrayRef,
    ends: (Datum, Datum),
}

fn key_types() -> Vec<KeyType> {
    let mut all = Vec::new();
    let mut add = |kind: TypeKind, ascending: ArrayRef, first: Datum, last: Datum| {
        all.push(KeyType { kind, ascending, ends: (first, last) });
    };
    let text = |values: &[&str]| -> ArrayRef { Arc::new(StringArray::from(values.to_vec())) };
    let bytes = |values: &[&[u8]]| -> ArrayRef { Arc::new(BinaryArray::from(values.to_vec())) };
    add(TypeKind::Boolean, Arc::new(BooleanArray::from(vec![false, true])), Datum::Boolean(false), Datum::Boolean(true));
    let numbers = PrimitiveArray::<Int8Type>::from(vec![-128, -1, 0, 1, 127]);
    add(TypeKind::TinyInt, Arc::new(numbers), Datum::TinyInt(-128), Datum::TinyInt(127));
    let numbers = PrimitiveArray::<Int16Type>::from(vec![i16::MIN, -129, 0, 255, 256, i16::MAX]);
    add(TypeKind::SmallInt, Arc::new(numbers), Datum::SmallInt(i16::MIN), Datum::SmallInt(i16::MAX));
    let numbers = PrimitiveArray::<Int32Type>::from(vec![i32::MIN, -256, -1, 0, 255, 65_536, i32::MAX]);
    add(TypeKind::Int, Arc::new(numbers), Datum::Int(i32::MIN), Datum::Int(i32::MAX));
    let numbers = PrimitiveArray::<Int64Type>::from(vec![i64::MIN, -1 << 40, -1, 0, 1, 1 << 40, i64::MAX]);
    add(TypeKind::BigInt, Arc::new(numbers), Datum::BigInt(i64::MIN), Datum::BigInt(i64::MAX));
    let floats = [f32::NEG_INFINITY, -1.5, -f32::from_bits(1), -0.0, 0.0, f32::from_bits(1), 1.5, f32::INFINITY, f32::NAN];
    let ends = (Datum::Float(f32::NEG_INFINITY), Datum::Float(f32::NAN));
    add(TypeKind::Float, Arc::new(PrimitiveArray::<Float32Type>::from(floats.to_vec())), ends.0, ends.1);
    let floats = [f64::NEG_INFINITY, f64::MIN, -0.0, 0.0, f64::MIN_POSITIVE, f64::MAX, f64::INFINITY];
    let ends = (Datum::Double(f64::NEG_INFINITY), Datum::Double(f64::INFINITY));
    add(TypeKind::Double, Arc::new(PrimitiveArray::<Float64Type>::from(floats.to_vec())), ends.0, ends.1);
    for (precision, scale) in [(5, 2), (18, 4), (38, 10)] {
        let greatest = 10_i128.pow(precision) - 1;
        let values = Decimal128Array::from(vec![-greatest, -256, -1, 0, 1, 255, greatest]);
        let values = values.with_precision_and_scale(u8::try_from(precision).unwrap(), scale).unwrap();
        let (precision, scale) = (u8::try_from(precision).unwrap(), u8::try_from(scale).unwrap());
        let end = |unscaled| Datum::Decimal { unscaled, precision, scale };
        add(TypeKind::Decimal { precision, scale }, Arc::new(values), end(-greatest), end(greatest));
    }
    let string = |text: &str| Datum::String(text.into());
    let chars = ["", "a", "a ", "aa", "b", "zz", "é", "日本", "\u{ffff}", "😀"];
    add(TypeKind::Char { length: 20 }, text(&chars), string(""), string("😀"));
    let long = "x".repeat(200);
    let longer = format!("{long}y");
    let strings = ["", "\0", "\0\0", "same beginning", "same beginning \0", "same beginning, then more", &long, &longer, "é"];
    add(TypeKind::String, text(&strings), string(""), string("é"));
    let ends = (Datum::Bytes(vec![0; 4]), Datum::Bytes(vec![0xff; 4]));
    add(TypeKind::Binary { length: 4 }, bytes(&[&[0; 4], &[0, 0, 0, 1], &[0x7f; 4], &[0x80, 0, 0, 0], &[0xff; 4]]), ends.0, ends.1);
    let ends = (Datum::Bytes(vec![]), Datum::Bytes(vec![0xff; 40]));
    add(TypeKind::Bytes, bytes(&[&[], &[0], &[0; 8], &[0; 9], &[0, 1], &[0x7f], &[0x80], &[0xff], &[0xff; 40]]), ends.0, ends.1);
    let days = Date32Array::from(vec![-719_162, -1, 0, 1, 2_932_896]);
    add(TypeKind::Date, Arc::new(days), Datum::Date(-719_162), Datum::Date(2_932_896));
    let times = Time32MillisecondArray::from(vec![0, 1, 256, 86_399_999]);
    add(TypeKind::Time { precision: 0 }, Arc::new(times), Datum::Time(0), Datum::Time(86_399_999));
    for precision in [0, 3, 4, 6, 7, 9] {
        // Units of the lake's type: 1 = a millisecond, microsecond, nanosecond.
        let ascending = Int64Array::from(vec![-1_000_000_000_001, -1, 0, 1, 999, 1_000_000, 1_700_000_000_000_000]);
        let (per_milli, unit) = match precision {
            0..=3 => (1, arrow_schema::TimeUnit::Millisecond),
            4..=6 => (1_000, arrow_schema::TimeUnit::Microsecond),
            _ => (1_000_000, arrow_schema::TimeUnit::Nanosecond),
        };
        let end = |value: i64| Datum::Timestamp {
            millis: value.div_euclid(per_milli),
            nanos: i32::try_from(value.rem_euclid(per_milli) * (1_000_000 / per_milli)).unwrap(),
        };
        for (kind, zone) in
            [(TypeKind::Timestamp { precision }, None), (TypeKind::TimestampLtz { precision }, Some(Arc::from("UTC")))]
        {
            let ascending = as_type(&(Arc::new(ascending.clone()) as ArrayRef), &arrow_schema::DataType::Timestamp(unit, zone));
            add(kind, ascending, end(-1_000_000_000_001), end(1_700_000_000_000_000));
        }
    }
    all
}

/// Where the type stands in the key.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    Alone,
    First,
    Last,
    BesidePartition,
}

const NAMES: [&str; 3] = ["", "name", "name, longer"];

impl Place {
    /// Columns of the key (and the partition), with the rows of all combinations in the order of the key.
    fn columns(self, key: &KeyType) -> (Vec<Field>, Vec<ArrayRef>, Vec<&'static str>) {
        let count = u32::try_from(key.ascending.len()).unwrap();
        let k = |id, kind: &TypeKind| field(id, "k", DataType::required(kind.clone()));
        let repeat = |rows: Vec<u32>| take(&key.ascending, &UInt32Array::from(rows), None).unwrap();
        match self {
            Self::Alone => (vec![k(0, &key.kind)], vec![Arc::clone(&key.ascending)], vec!["k"]),
            Self::First => {
                let rows: Vec<(u32, i32)> = (0..count).flat_map(|row| [(row, -7), (row, 0), (row, 7)]).collect();
                let numbers: ArrayRef = Arc::new(rows.iter().map(|(_, number)| Some(*number)).collect::<Int32Array>());
                let fields = vec![k(0, &key.kind), field(1, "n", DataType::required(TypeKind::Int))];
                (fields, vec![repeat(rows.iter().map(|(row, _)| *row).collect()), numbers], vec!["k", "n"])
            }
            // The key has another order than the columns.
            Self::Last => {
                let rows: Vec<(&str, u32)> = NAMES.into_iter().flat_map(|name| (0..count).map(move |row| (name, row))).collect();
                let names: ArrayRef = Arc::new(rows.iter().map(|(name, _)| Some(*name)).collect::<StringArray>());
                let fields = vec![k(0, &key.kind), field(1, "name", DataType::required(TypeKind::String))];
                (fields, vec![repeat(rows.iter().map(|(_, row)| *row).collect()), names], vec!["name", "k"])
            }
            Self::BesidePartition => {
                let fields = vec![field(0, "p", DataType::required(TypeKind::String)), k(1, &key.kind)];
                let names: ArrayRef = Arc::new(StringArray::from(vec!["today"; key.ascending.len()]));
                (fields, vec![names, Arc::clone(&key.ascending)], vec!["p", "k"])
            }
        }
    }
}

/// Rows of all ranks in no order.
fn shuffled(count: usize) -> Vec<u32> {
    let mut all: Vec<u32> = (0..u32::try_from(count).unwrap()).collect();
    all.sort_by_key(|rank| rank.wrapping_mul(2_654_435_761).rotate_left(7));
    all
}

#[tokio::test(start_paused = true)]
async fn keys_of_every_type_are_sorted_as_java_sorts_them_alone_and_with_others() {
    let places = [Place::Alone, Place::First, Place::Last, Place::BesidePartition];
    for (key, place) in key_types().iter().flat_map(|key| places.map(|place| (key, place))) {
        let what = format!("{:?}, {place:?}", key.kind);
        if place == Place::BesidePartition && matches!(key.kind, TypeKind::Decimal { .. }) {
            continue; // fine as a key, but one of them is enough
        }
        let (mut fields, columns, names) = place.columns(key);
        fields.push(field(2, "rank", DataType::nullable(TypeKind::Int)));
        let mut schema = (*table(fields, &[("bucket", "1"), ("changelog-producer", "input")])).clone();
        (schema.id, schema.highest_field_id) = (0, 2);
        schema.primary_keys = names.iter().map(|name| (*name).to_owned()).collect();
        if place == Place::BesidePartition {
            schema.partition_keys = vec!["p".into()];
        }
        let (store, arrow) = (Store::in_memory(), lake_arrow_schema(&schema).unwrap());
        let warehouse = Warehouse::new(store.clone(), Runtime::simulated(3, 0, 1 << 20));
        assert!(warehouse.create_table("demo", "t", &schema).await.unwrap());
        let lake = warehouse.table("demo", "t").await.unwrap().unwrap();
        let schema = Arc::new(schema);
        let partition = match place {
            Place::BesidePartition => {
                BinaryRow::write(&[Some(Datum::String("today".into()))], &schema.partition_types().unwrap()).unwrap()
            }
            _ => BinaryRow::empty(),
        };
        let batch = |ranks: &[u32], add: i32| {
            let rows = UInt32Array::from(ranks.to_vec());
            let mut columns: Vec<ArrayRef> = columns.iter().map(|column| take(column, &rows, None).unwrap()).collect();
            columns.push(Arc::new(ranks.iter().map(|rank| Some(i32::try_from(*rank).unwrap() + add)).collect::<Int32Array>()));
            RecordBatch::try_new(Arc::clone(&arrow), columns).unwrap()
        };
        let context = context(&store, &schema, WriteOptions::default());
        let target = BucketTarget { partition, bucket: 0, total_buckets: 1, ..target() };
        let count = columns[0].len();
        let ranks = shuffled(count);
        // Each key twice: the second is the newest. Then, in a file of their own, every second key is deleted.
        let mut live = Vec::new();
        let mut writer = BucketWriter::new(Arc::clone(&context), target.clone(), 0).unwrap();
        for add in [1000, 0] {
            writer.write(batch(&ranks, add), None, 0, context.runtime.budget.acquire(64).await).await.unwrap();
        }
        let written = writer.finish().await.unwrap();
        let file = &written.data[0].file;
        let bytes = store.get_existing(&format!("{}/{}", lake.root(), path::data_file(&schema, &written.data[0]).unwrap())).await;
        let rows = read(bytes.unwrap());
        let column = |name: &str| {
            arrow_select::concat::concat(&rows.iter().map(|batch| &**batch.column_by_name(name).unwrap()).collect::<Vec<_>>())
                .unwrap()
        };
        let found: Vec<i32> = column("rank").as_primitive::<Int32Type>().values().to_vec();
        assert_eq!(found, (0..i32::try_from(count).unwrap()).collect::<Vec<_>>(), "{what}: one row per key, ascending");
        for (rank, sequence) in found.iter().zip(column("_SEQUENCE_NUMBER").as_primitive::<Int64Type>().values()) {
            let arrived = ranks.iter().position(|other| i32::try_from(*other).unwrap() == *rank).unwrap();
            assert_eq!(*sequence, i64::try_from(count + arrived).unwrap(), "{what}: each row keeps the number of its arrival");
        }
        assert_eq!((file.row_count, file.delete_row_count), (i64::try_from(count).unwrap(), Some(0)), "{what}");
        assert_eq!(written.changelog[0].file.row_count, 2 * file.row_count, "{what}");
        let trimmed = schema.trimmed_primary_keys();
        let types = schema.types_of(&trimmed).unwrap();
        let at = trimmed.iter().position(|name| name == "k").unwrap();
        for (row, end) in [(&file.min_key, &key.ends.0), (&file.max_key, &key.ends.1)] {
            let values = row.read(&types).unwrap();
            assert_eq!(format!("{:?}", values[at]), format!("{:?}", Some(end)), "{what}");
            assert_eq!(values.len(), if matches!(place, Place::First | Place::Last) { 2 } else { 1 }, "{what}");
        }
        live.extend(written.data);
        let mut writer = BucketWriter::new(Arc::clone(&context), target, i64::try_from(2 * count).unwrap()).unwrap();
        let even: Vec<u32> = ranks.iter().copied().filter(|rank| rank % 2 == 0).collect();
        let permit = context.runtime.budget.acquire(64).await;
        writer.write(batch(&even, 0), Some(&vec![ChangeKind::Delete; even.len()]), 0, permit).await.unwrap();
        let deleted = writer.finish().await.unwrap().data;
        assert_eq!(deleted[0].file.delete_row_count, Some(i64::try_from(even.len()).unwrap()), "{what}");
        live.extend(deleted);
        let mut reader = lake.merge_files(live, Some(&["rank"])).await.unwrap();
        let mut left = Vec::new();
        while let Some(batch) = reader.next_batch().await.unwrap() {
            left.extend(batch.column(0).as_primitive::<Int32Type>().values().iter().copied());
        }
        assert_eq!(left, (0..i32::try_from(count).unwrap()).filter(|rank| rank % 2 == 1).collect::<Vec<_>>(), "{what}: merged");
    }
}
