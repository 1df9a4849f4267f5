//! Minimum, maximum and NULL count of a column, streaming over Arrow arrays (P4.6).

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    Time32MillisecondType, TimestampMicrosecondType, TimestampMillisecondType,
};
use arrow_array::{Array, ArrayRef, StringArray};

use crate::error::{Error, Result};
use crate::model::{Datum, TypeKind};
use crate::paimon::stats::{ColumnStats, StatsMode};

use super::nested::{child_types, children};
use super::schema::is_int96;

/// What has been seen of one column of one file.
#[derive(Debug, Clone)]
pub struct Bounds {
    kind: TypeKind,
    nulls: i64,
    seen: Seen,
}

#[derive(Debug, Clone)]
enum Seen {
    /// Bounds are not asked for or not defined (bytes, INT96): only NULLs count.
    Nothing,
    /// Nested: no bounds, but what is inside has to be of its type.
    Inside,
    /// Every integer type, dates, times, timestamps and booleans (0, 1).
    Int(Option<(i64, i64)>),
    Decimal(Option<(i128, i128)>),
    /// FLOAT too: widening keeps order and value.
    Float {
        range: Option<(f64, f64)>,
        nan: bool,
    },
    Text(Option<(String, String)>),
}

impl Bounds {
    /// Nothing seen yet of a column of `kind` whose statistics have `mode`.
    #[must_use]
    pub fn new(kind: &TypeKind, mode: StatsMode) -> Self {
        let seen = match kind {
            // Whatever the mode: the file's own statistics depend on whether there is a NaN.
            TypeKind::Float | TypeKind::Double => Seen::Float { range: None, nan: false },
            // Whatever the mode: a value of too many digits would be cut to the bytes that the precision has.
            TypeKind::Decimal { .. } => Seen::Decimal(None),
            kind if kind.is_nested() => Seen::Inside,
            _ if matches!(mode, StatsMode::None | StatsMode::Counts) || is_int96(kind) => Seen::Nothing,
            TypeKind::Boolean
            | TypeKind::TinyInt
            | TypeKind::SmallInt
            | TypeKind::Int
            | TypeKind::BigInt
            | TypeKind::Date
            | TypeKind::Time { .. }
            | TypeKind::Timestamp { .. }
            | TypeKind::TimestampLtz { .. } => Seen::Int(None),
            TypeKind::Char { .. } | TypeKind::VarChar { .. } | TypeKind::String => Seen::Text(None),
            _ => Seen::Nothing,
        };
        Self { kind: kind.clone(), nulls: 0, seen }
    }

    /// Adds an array of the column's Arrow type.
    ///
    /// # Errors
    /// `Internal` when the array has another type; `Data` names a decimal of more digits than its type has.
    pub fn add(&mut self, array: &ArrayRef) -> Result<()> {
        self.nulls += i64::try_from(array.null_count()).unwrap_or(i64::MAX);
        match &mut self.seen {
            Seen::Nothing => {}
            Seen::Inside => check_inside(&self.kind, array)?,
            Seen::Int(range) => widen(range, int_range(&self.kind, array)?),
            Seen::Decimal(range) => {
                let found = range_of::<Decimal128Type, _>(array, |value| value)?;
                if let Some((min, max)) = found {
                    check_digits(&self.kind, min)?;
                    check_digits(&self.kind, max)?;
                }
                widen(range, found);
            }
            Seen::Float { range, nan } => {
                let found = if self.kind == TypeKind::Float {
                    float_range::<Float32Type>(array, f64::from, nan)?
                } else {
                    float_range::<Float64Type>(array, |value| value, nan)?
                };
                widen(range, found);
            }
            Seen::Text(range) => {
                let found = text_range(array.as_string_opt().ok_or_else(|| wrong_type(array))?);
                match (&mut *range, found) {
                    (_, None) => {}
                    (Some((min, max)), Some((low, high))) => {
                        if low < min.as_str() {
                            low.clone_into(min);
                        }
                        if high > max.as_str() {
                            high.clone_into(max);
                        }
                    }
                    (None, Some((low, high))) => *range = Some((low.to_owned(), high.to_owned())),
                }
            }
        }
        Ok(())
    }

    /// Whether a NaN was among the values.
    pub(super) const fn has_nan(&self) -> bool {
        matches!(self.seen, Seen::Float { nan: true, .. })
    }

    /// Exact bounds; both unknown where there are none, or a NaN is among the values.
    #[must_use]
    pub fn stats(&self) -> ColumnStats {
        let (min, max) = match &self.seen {
            Seen::Int(Some((min, max))) => (self.int(*min), self.int(*max)),
            Seen::Decimal(Some((min, max))) => (self.decimal(*min), self.decimal(*max)),
            Seen::Float { range: Some((min, max)), nan: false } => {
                // Readers tell −0.0 from 0.0, the comparison above does not: take in both.
                let min = if *min == 0.0 { -0.0 } else { *min };
                let max = if *max == 0.0 { 0.0 } else { *max };
                (self.float(min), self.float(max))
            }
            Seen::Text(Some((min, max))) => (Some(Datum::String(min.clone())), Some(Datum::String(max.clone()))),
            _ => (None, None),
        };
        ColumnStats { min, max, null_count: Some(self.nulls) }
    }

    fn int(&self, value: i64) -> Option<Datum> {
        let timestamp = |precision: u8| {
            if precision <= 3 {
                Datum::Timestamp { millis: value, nanos: 0 }
            } else {
                let nanos = i32::try_from(value.rem_euclid(1000) * 1000).unwrap_or(0);
                Datum::Timestamp { millis: value.div_euclid(1000), nanos }
            }
        };
        Some(match &self.kind {
            TypeKind::Boolean => Datum::Boolean(value != 0),
            TypeKind::TinyInt => Datum::TinyInt(i8::try_from(value).ok()?),
            TypeKind::SmallInt => Datum::SmallInt(i16::try_from(value).ok()?),
            TypeKind::Int => Datum::Int(i32::try_from(value).ok()?),
            TypeKind::BigInt => Datum::BigInt(value),
            TypeKind::Date => Datum::Date(i32::try_from(value).ok()?),
            TypeKind::Time { .. } => Datum::Time(i32::try_from(value).ok()?),
            TypeKind::Timestamp { precision } | TypeKind::TimestampLtz { precision } => timestamp(*precision),
            _ => return None,
        })
    }

    fn decimal(&self, unscaled: i128) -> Option<Datum> {
        let TypeKind::Decimal { precision, scale } = self.kind else { return None };
        Some(Datum::Decimal { unscaled, precision, scale })
    }

    fn float(&self, value: f64) -> Option<Datum> {
        #[expect(clippy::cast_possible_truncation, reason = "a FLOAT column's values were widened from f32")]
        let narrow = value as f32;
        Some(if self.kind == TypeKind::Float { Datum::Float(narrow) } else { Datum::Double(value) })
    }
}

/// [`check_digits`] for the decimals inside a nested type.
fn check_inside(kind: &TypeKind, array: &ArrayRef) -> Result<()> {
    if let TypeKind::Decimal { .. } = kind
        && let Some((min, max)) = range_of::<Decimal128Type, _>(array, |value| value)?
    {
        check_digits(kind, min)?;
        check_digits(kind, max)?;
    }
    child_types(kind).into_iter().zip(children(array)).try_for_each(|(child, array)| check_inside(&child.kind, &array))
}

/// Parquet's writer cuts what does not fit, without a word.
fn check_digits(kind: &TypeKind, unscaled: i128) -> Result<()> {
    match kind {
        TypeKind::Decimal { precision, scale } if unscaled.unsigned_abs() >= 10_u128.saturating_pow(u32::from(*precision)) => {
            Err(Error::data(format!("the unscaled value `{unscaled}` has more digits than DECIMAL({precision}, {scale})")))
        }
        _ => Ok(()),
    }
}

fn wrong_type(array: &ArrayRef) -> Error {
    Error::internal(format!("statistics of an array of type `{}`", array.data_type()))
}

fn widen<T: PartialOrd>(range: &mut Option<(T, T)>, found: Option<(T, T)>) {
    match (range.as_mut(), found) {
        (_, None) => {}
        (None, found) => *range = found,
        (Some((min, max)), Some((low, high))) => {
            if low < *min {
                *min = low;
            }
            if high > *max {
                *max = high;
            }
        }
    }
}

fn int_range(kind: &TypeKind, array: &ArrayRef) -> Result<Option<(i64, i64)>> {
    match kind {
        TypeKind::Boolean => {
            let array = array.as_boolean_opt().ok_or_else(|| wrong_type(array))?;
            let (trues, values) = (array.true_count(), array.len() - array.null_count());
            Ok((values > 0).then(|| (i64::from(trues == values), i64::from(trues > 0))))
        }
        TypeKind::TinyInt => range_of::<Int8Type, _>(array, i64::from),
        TypeKind::SmallInt => range_of::<Int16Type, _>(array, i64::from),
        TypeKind::Int => range_of::<Int32Type, _>(array, i64::from),
        TypeKind::BigInt => range_of::<Int64Type, _>(array, |value| value),
        TypeKind::Date => range_of::<Date32Type, _>(array, i64::from),
        TypeKind::Time { .. } => range_of::<Time32MillisecondType, _>(array, i64::from),
        TypeKind::Timestamp { precision: 0..=3 } | TypeKind::TimestampLtz { precision: 0..=3 } => {
            range_of::<TimestampMillisecondType, _>(array, |value| value)
        }
        _ => range_of::<TimestampMicrosecondType, _>(array, |value| value),
    }
}

/// Runs of non-NULL values, so that the loops inside have no branch per value.
fn runs<T: ArrowPrimitiveType>(array: &ArrayRef) -> Result<impl Iterator<Item = &[T::Native]>> {
    let array = array.as_primitive_opt::<T>().ok_or_else(|| wrong_type(array))?;
    let values: &[T::Native] = array.values();
    let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
    let whole = nulls.is_none().then_some(values);
    let valid = nulls.into_iter().flat_map(|nulls| nulls.valid_slices()).filter_map(move |(from, to)| values.get(from..to));
    Ok(whole.into_iter().chain(valid).filter(|run| !run.is_empty()))
}

fn range_of<T, U>(array: &ArrayRef, convert: impl Fn(T::Native) -> U) -> Result<Option<(U, U)>>
where
    T: ArrowPrimitiveType,
    T::Native: Ord,
{
    let mut range: Option<(T::Native, T::Native)> = None;
    for run in runs::<T>(array)? {
        let (mut min, mut max) = match (range, run.first()) {
            (Some(range), _) => range,
            (None, Some(first)) => (*first, *first),
            (None, None) => continue,
        };
        for value in run {
            min = min.min(*value);
            max = max.max(*value);
        }
        range = Some((min, max));
    }
    Ok(range.map(|(min, max)| (convert(min), convert(max))))
}

fn float_range<T>(array: &ArrayRef, widen: impl Fn(T::Native) -> f64, nan: &mut bool) -> Result<Option<(f64, f64)>>
where
    T: ArrowPrimitiveType,
{
    let mut range: Option<(f64, f64)> = None;
    for run in runs::<T>(array)? {
        let (mut min, mut max) = range.unwrap_or((f64::INFINITY, f64::NEG_INFINITY));
        let mut unordered = false;
        for value in run {
            let value = widen(*value);
            unordered |= value.is_nan();
            min = if value < min { value } else { min };
            max = if value > max { value } else { max };
        }
        *nan |= unordered;
        range = Some((min, max));
    }
    Ok(range)
}

/// The first eight bytes as a number that sorts like them; equal for texts that share them.
fn prefix(text: &[u8]) -> u64 {
    text.first_chunk::<8>().map_or_else(
        || {
            let mut padded = [0; 8];
            padded.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
            u64::from_be_bytes(padded)
        },
        |bytes| u64::from_be_bytes(*bytes),
    )
}

/// Smallest and largest text by unsigned bytes (= by code points, as Java's BinaryString compares).
fn text_range(array: &StringArray) -> Option<(&str, &str)> {
    let mut values = array.iter().flatten();
    let first = values.next()?;
    let (mut min, mut max) = (first, first);
    let (mut min_prefix, mut max_prefix) = (prefix(first.as_bytes()), prefix(first.as_bytes()));
    for value in values {
        let key = prefix(value.as_bytes());
        if key < min_prefix || (key == min_prefix && value < min) {
            (min, min_prefix) = (value, key);
        }
        if key > max_prefix || (key == max_prefix && value > max) {
            (max, max_prefix) = (value, key);
        }
    }
    Some((min, max))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{BooleanArray, Decimal128Array, Float64Array, Int64Array, TimestampMicrosecondArray};
    use proptest::prelude::*;

    use super::*;

    /// What is known after the values came in arrays of 5.
    fn seen<T: Clone>(kind: &TypeKind, values: &[T], array: impl Fn(&[T]) -> ArrayRef) -> ColumnStats {
        let mut bounds = Bounds::new(kind, StatsMode::Full);
        for chunk in values.chunks(5) {
            bounds.add(&array(chunk)).unwrap();
        }
        bounds.stats()
    }

    fn nulls<T>(values: &[Option<T>]) -> Option<i64> {
        Some(i64::try_from(values.iter().filter(|value| value.is_none()).count()).unwrap())
    }

    const DIGITS_38: i128 = 10_i128.pow(38) - 1;

    proptest! {
        #[test]
        fn integers_have_exact_bounds(values: Vec<Option<i64>>) {
            let stats = seen(&TypeKind::BigInt, &values, |chunk| Arc::new(Int64Array::from(chunk.to_vec())));
            prop_assert_eq!(stats.min, values.iter().flatten().min().map(|value| Datum::BigInt(*value)));
            prop_assert_eq!(stats.max, values.iter().flatten().max().map(|value| Datum::BigInt(*value)));
            prop_assert_eq!(stats.null_count, nulls(&values));
        }

        #[test]
        fn timestamps_split_into_millis_and_nanos_on_both_sides_of_the_epoch(values: Vec<i64>) {
            let kind = TypeKind::Timestamp { precision: 6 };
            let stats = seen(&kind, &values, |chunk| Arc::new(TimestampMicrosecondArray::from(chunk.to_vec())));
            let micros = |datum: Option<Datum>| datum.map(|datum| match datum {
                Datum::Timestamp { millis, nanos } => {
                    assert!((0..1_000_000).contains(&nanos));
                    i128::from(millis) * 1_000 + i128::from(nanos / 1_000)
                }
                other => panic!("{other:?}"),
            });
            prop_assert_eq!(micros(stats.min), values.iter().min().map(|value| i128::from(*value)));
            prop_assert_eq!(micros(stats.max), values.iter().max().map(|value| i128::from(*value)));
        }

        #[test]
        fn decimals_have_exact_bounds(values in prop::collection::vec(prop::option::of(-DIGITS_38..=DIGITS_38), 0..40)) {
            let kind = TypeKind::Decimal { precision: 38, scale: 4 };
            let stats = seen(&kind, &values, |chunk| Arc::new(Decimal128Array::from(chunk.to_vec())));
            let datum = |unscaled: &i128| Datum::Decimal { unscaled: *unscaled, precision: 38, scale: 4 };
            prop_assert_eq!(stats.min, values.iter().flatten().min().map(datum));
            prop_assert_eq!(stats.max, values.iter().flatten().max().map(datum));
        }

        #[test]
        fn floats_are_bounded_in_java_s_order_or_unknown(values in prop::collection::vec(prop::option::of(prop::num::f64::ANY), 0..40)) {
            let stats = seen(&TypeKind::Double, &values, |chunk| Arc::new(Float64Array::from(chunk.to_vec())));
            prop_assert_eq!(stats.null_count, nulls(&values));
            let mut found = values.iter().flatten();
            if found.clone().any(|value| value.is_nan()) || found.clone().next().is_none() {
                prop_assert_eq!((stats.min, stats.max), (None, None));
            } else {
                let (Some(Datum::Double(min)), Some(Datum::Double(max))) = (stats.min, stats.max) else { panic!() };
                prop_assert!(found.all(|value| min.total_cmp(value).is_le() && max.total_cmp(value).is_ge()));
            }
        }

        #[test]
        fn cut_texts_still_bound_every_value_by_unsigned_bytes(
            values in prop::collection::vec(prop::option::of("\\PC{0,12}|[a-c]{6,12}|[\u{d7f0}-\u{e010}\u{10fff0}-\u{10ffff}]{0,6}"), 0..40),
            length in 1_usize..8,
        ) {
            let exact = seen(&TypeKind::String, &values, |chunk| Arc::new(StringArray::from(chunk.to_vec())));
            let present = || values.iter().flatten();
            prop_assert_eq!(&exact.min, &present().min().map(|value| Datum::String(value.clone())));
            prop_assert_eq!(&exact.max, &present().max().map(|value| Datum::String(value.clone())));
            let cut = exact.limited(&TypeKind::String, StatsMode::Truncate(length));
            prop_assert_eq!(cut.null_count, nulls(&values));
            if let (Some(Datum::String(min)), Some(Datum::String(max))) = (cut.min, cut.max) {
                prop_assert!(present().all(|value| min.as_bytes() <= value.as_bytes() && value.as_bytes() <= max.as_bytes()));
            }
        }
    }

    #[test]
    fn a_decimal_of_too_many_digits_is_refused_in_every_mode() {
        let kind = TypeKind::Decimal { precision: 9, scale: 2 };
        let add = |mode, value| {
            let array: ArrayRef = Arc::new(Decimal128Array::from(vec![Some(1), None, Some(value)]));
            Bounds::new(&kind, mode).add(&array).map_err(|error| error.kind())
        };
        for mode in [StatsMode::None, StatsMode::Counts, StatsMode::Full] {
            assert_eq!(add(mode, -999_999_999), Ok(()));
            for wrong in [1_000_000_000, -1_000_000_000, 1 << 32, i128::MIN] {
                assert_eq!(add(mode, wrong), Err(crate::error::Kind::Data), "{wrong}");
            }
        }
    }

    #[test]
    fn booleans_are_bounded_by_what_there_is() {
        let of = |values: &[Option<bool>]| {
            let stats = seen(&TypeKind::Boolean, values, |chunk| Arc::new(BooleanArray::from(chunk.to_vec())));
            (stats.min, stats.max)
        };
        let datum = |value| Some(Datum::Boolean(value));
        assert_eq!(of(&[Some(true), None, Some(true)]), (datum(true), datum(true)));
        assert_eq!(of(&[Some(false), None]), (datum(false), datum(false)));
        assert_eq!(of(&[Some(true), Some(false)]), (datum(false), datum(true)));
        assert_eq!(of(&[None]), (None, None));
    }
}
