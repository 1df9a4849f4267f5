//! Rows of the cluster kit, by the same arithmetic.

use std::sync::Arc;

use arrow_array::types::{Int64Type, TimestampMicrosecondType};
use arrow_array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, PrimitiveArray, RecordBatch,
    StringArray,
};
use lakeward::fluss::record::BatchSchema;
use lakeward::model::{DataType, Field, TypeKind};

const WORDS: [&str; 32] = [
    "lake", "river", "stream", "delta", "basin", "harbor", "tide", "shore", "reef", "cove", "marsh", "inlet", "fjord", "lagoon",
    "brook", "estuary", "anchor", "beacon", "buoy", "canal", "dock", "ferry", "jetty", "keel", "mast", "oar", "pier", "quay",
    "rudder", "sail", "wharf", "skiff",
];

pub(super) fn fields() -> Vec<Field> {
    let kinds = [
        ("id", TypeKind::BigInt),
        ("qty", TypeKind::Int),
        ("amount", TypeKind::BigInt),
        ("ratio", TypeKind::Double),
        ("price", TypeKind::Decimal { precision: 12, scale: 2 }),
        ("ts", TypeKind::Timestamp { precision: 6 }),
        ("day", TypeKind::Date),
        ("flag", TypeKind::Boolean),
        ("region", TypeKind::String),
        ("customer", TypeKind::String),
        ("product", TypeKind::String),
        ("note", TypeKind::String),
    ];
    let field = |(id, (name, kind)): (i32, (&str, TypeKind))| Field {
        id,
        name: name.to_owned(),
        data_type: DataType::nullable(kind),
        comment: None,
    };
    (0..).zip(kinds).map(field).collect()
}

pub(super) fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn word(bits: u64) -> &'static str {
    WORDS.get(usize::try_from(bits & 31).unwrap()).unwrap()
}

fn customer(index: u64) -> String {
    format!("cust-{:08x}", mix(index) & 0xffff_ffff)
}

fn product(index: u64) -> String {
    let h = mix(index * 31 + 7);
    let mut text = format!("{}-{}-{}", word(h), word(h >> 5), h >> 10 & 0xfff);
    while text.len() < 8 + usize::try_from(h >> 30 & 15).unwrap() {
        text.push('x');
    }
    text.truncate(32);
    text
}

fn note(h: u64, g: u64) -> String {
    let mut text = String::with_capacity(64);
    for step in 0..5 {
        let word = word(g >> (5 * step));
        text.push_str(word.get(..word.len().min(48_usize.saturating_sub(text.len()))).unwrap());
        text.push(' ');
    }
    for digit in 0..16 {
        let digit = char::from_digit(u32::try_from(h >> (digit * 4) & 15).unwrap(), 16).unwrap();
        if text.len() == 64 {
            text.pop();
        }
        text.push(digit);
    }
    text
}

#[expect(clippy::cast_precision_loss, reason = "53 bits")]
pub(super) fn rows(schema: &BatchSchema, ids: impl Iterator<Item = i64>) -> RecordBatch {
    let seeds: Vec<(i64, u64, u64)> = ids
        .map(|id| {
            let h = mix(id.cast_unsigned().wrapping_mul(1_000_003));
            (id, h, mix(h))
        })
        .collect();
    let row = || seeds.iter().copied();
    let price = row().map(|(_, _, g)| i128::from((g >> 5) % 10_000_000)).collect::<Decimal128Array>();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(row().map(|(id, ..)| id).collect::<Int64Array>()),
        Arc::new(row().map(|(_, h, _)| i32::try_from(h & 0x3ff).unwrap()).collect::<Int32Array>()),
        Arc::new(row().map(|(_, _, g)| (g >> 20).cast_signed()).collect::<Int64Array>()),
        Arc::new(row().map(|(_, h, _)| (h >> 11) as f64 / (1_u64 << 53) as f64).collect::<Float64Array>()),
        Arc::new(price.with_precision_and_scale(12, 2).unwrap()),
        Arc::new(
            row()
                .map(|(id, h, _)| (1_760_000_000_000 + id * 3) * 1000 + (h & 999).cast_signed())
                .collect::<PrimitiveArray<Int64Type>>()
                .reinterpret_cast::<TimestampMicrosecondType>(),
        ),
        Arc::new(row().map(|(id, ..)| Some(20_000 + i32::try_from(id / 1000 % 365).unwrap())).collect::<Date32Array>()),
        Arc::new(row().map(|(_, h, _)| Some(h & 1 == 0)).collect::<BooleanArray>()),
        Arc::new(row().map(|(id, ..)| Some(format!("region-{:02}", id % 16))).collect::<StringArray>()),
        Arc::new(row().map(|(_, _, g)| Some(customer((g >> 8 & 0xff_ffff) % 20_000))).collect::<StringArray>()),
        Arc::new(row().map(|(_, h, _)| Some(product((h >> 12 & 0xff_ffff) % 2_000))).collect::<StringArray>()),
        Arc::new(row().map(|(_, h, g)| Some(note(h, g))).collect::<StringArray>()),
    ];
    RecordBatch::try_new(Arc::clone(&schema.arrow), columns).unwrap()
}
