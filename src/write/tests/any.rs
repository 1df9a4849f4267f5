//! Nested rows of any type come back from the files as they went in.

use arrow_array::builder::BooleanBufferBuilder;
use arrow_array::{BinaryArray, BooleanArray, ListArray, MapArray, StructArray, TimestampMicrosecondArray};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::DataType as ArrowType;
use proptest::prelude::*;

use super::*;

fn scalar() -> impl Strategy<Value = TypeKind> {
    prop::sample::select(vec![
        TypeKind::Boolean,
        TypeKind::Int,
        TypeKind::Double,
        TypeKind::String,
        TypeKind::Bytes,
        TypeKind::Decimal { precision: 20, scale: 3 },
        TypeKind::Timestamp { precision: 6 },
    ])
}

fn any_type() -> impl Strategy<Value = DataType> {
    let leaf = (scalar(), any::<bool>()).prop_map(|(kind, nullable)| DataType { kind, nullable });
    leaf.prop_recursive(4, 12, 3, |inner| {
        let kind = prop_oneof![
            inner.clone().prop_map(|element| TypeKind::Array(Box::new(element))),
            (scalar(), inner.clone()).prop_map(|(key, value)| TypeKind::Map(Box::new(DataType::required(key)), Box::new(value))),
            prop::collection::vec(inner, 1..4).prop_map(|types| {
                TypeKind::Row(types.into_iter().zip(1..).map(|(data_type, id)| field(id, &format!("f{id}"), data_type)).collect())
            }),
        ];
        (kind, any::<bool>()).prop_map(|(kind, nullable)| DataType { kind, nullable })
    })
}

/// A source of small numbers that repeats for a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn nulls(nullable: bool, rows: usize, numbers: &mut Numbers) -> Option<NullBuffer> {
    let mut valid = BooleanBufferBuilder::new(rows);
    (0..rows).for_each(|_| valid.append(!nullable || numbers.below(4) > 0));
    nullable.then(|| NullBuffer::new(valid.finish()))
}

/// Any array of the type. Under a NULL there may be values, as Arrow allows.
fn any_array(data_type: &DataType, arrow: &ArrowType, rows: usize, numbers: &mut Numbers) -> ArrayRef {
    let nulls = nulls(data_type.nullable, rows, numbers);
    let lengths = |numbers: &mut Numbers| -> Vec<usize> { (0..rows).map(|_| usize::try_from(numbers.below(4)).unwrap()).collect() };
    let valid = |row: usize| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
    match (&data_type.kind, arrow) {
        (TypeKind::Array(element), ArrowType::List(child)) => {
            let offsets = OffsetBuffer::from_lengths(lengths(numbers));
            let count = usize::try_from(offsets.last()).unwrap();
            let values = any_array(element, child.data_type(), count, numbers);
            Arc::new(ListArray::try_new(Arc::clone(child), offsets, values, nulls).unwrap())
        }
        (TypeKind::Map(key, value), ArrowType::Map(child, ordered)) => {
            let ArrowType::Struct(fields) = child.data_type() else { panic!() };
            let offsets = OffsetBuffer::from_lengths(lengths(numbers));
            let count = usize::try_from(offsets.last()).unwrap();
            let keys = any_array(key, fields[0].data_type(), count, numbers);
            let values = any_array(value, fields[1].data_type(), count, numbers);
            let entries = StructArray::try_new(fields.clone(), vec![keys, values], None).unwrap();
            Arc::new(MapArray::try_new(Arc::clone(child), offsets, entries, nulls, *ordered).unwrap())
        }
        (TypeKind::Row(inner), ArrowType::Struct(fields)) => {
            let columns =
                inner.iter().zip(fields).map(|(field, arrow)| any_array(&field.data_type, arrow.data_type(), rows, numbers));
            Arc::new(StructArray::try_new_with_length(fields.clone(), columns.collect(), nulls, rows).unwrap())
        }
        (kind, _) => {
            let texts: Vec<Option<String>> =
                (0..rows).map(|row| valid(row).then(|| "é".repeat(usize::try_from(numbers.below(9)).unwrap()))).collect();
            let small = texts.iter().map(|text| text.as_ref().map(|text| i32::try_from(text.len()).unwrap() - 5));
            match kind {
                TypeKind::Boolean => Arc::new(small.map(|value| value.map(|value| value > 0)).collect::<BooleanArray>()),
                TypeKind::Int => Arc::new(small.collect::<Int32Array>()),
                TypeKind::Double => Arc::new(small.map(|value| value.map(f64::from)).collect::<Float64Array>()),
                TypeKind::String => Arc::new(texts.iter().map(Option::as_deref).collect::<StringArray>()),
                TypeKind::Bytes => Arc::new(texts.iter().map(|text| text.as_ref().map(String::as_bytes)).collect::<BinaryArray>()),
                TypeKind::Decimal { precision, scale } => {
                    let values = small.map(|value| value.map(i128::from)).collect::<Decimal128Array>();
                    Arc::new(values.with_precision_and_scale(*precision, i8::try_from(*scale).unwrap()).unwrap())
                }
                _ => Arc::new(small.map(|value| value.map(i64::from)).collect::<TimestampMicrosecondArray>()),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_nested_rows_come_back_however_they_are_cut(
        types in prop::collection::vec(any_type(), 1..4), rows in 1_usize..60, group in 1_usize..40, skip in 0_usize..5, seed: u64,
    ) {
        let fields = types.iter().zip(0..).map(|(data_type, id)| field(id, &format!("c{id}"), data_type.clone())).collect();
        let schema = table(fields, &[]);
        let arrow = lake_arrow_schema(&schema).unwrap();
        let mut numbers = Numbers(seed);
        let columns = schema.fields.iter().zip(arrow.fields());
        let columns = columns.map(|(field, arrow)| any_array(&field.data_type, arrow.data_type(), rows + skip, &mut numbers));
        let whole = RecordBatch::try_new(Arc::clone(&arrow), columns.collect()).unwrap().slice(skip, rows);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let back = runtime.block_on(async {
            let store = Store::in_memory();
            let options = WriteOptions { row_group_rows: group, ..WriteOptions::default() };
            let context = context(&store, &schema, options);
            let mut writer = BucketWriter::new(Arc::clone(&context), target(), 0).unwrap();
            for at in (0..rows).step_by(23) {
                let part = whole.slice(at, 23.min(rows - at));
                writer.write(part, None, 0, context.runtime.budget.acquire(64).await).await.unwrap();
            }
            let entries = writer.finish().await.map_err(|error| error.chain()).unwrap().data;
            read(written(&store, &entries[0]).await)
        });
        let back = arrow_select::concat::concat_batches(&back[0].schema(), &back).unwrap();
        prop_assert_eq!(back.num_rows(), rows);
        for (column, wanted) in back.columns().iter().zip(whole.columns()) {
            let found = if wanted.data_type().is_nested() { arrow_cast::cast(column, wanted.data_type()).unwrap() } else { Arc::clone(column) };
            prop_assert_eq!(&found, wanted);
        }
    }
}
