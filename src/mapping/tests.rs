use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Int32Type, Int64Type, Time32MillisecondType, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
};
use arrow_array::{Array, ListArray, RecordBatch, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::DataType as ArrowType;

use super::*;
use crate::error::Kind;
use crate::fluss::record::{array_of, arrow_schema};
use crate::fluss::table_json::schema_from_json;
use crate::model::{
    BucketId, ChangeKind, DataType, Datum, Field, LogBatch, Memory, Partition, PartitionId, Schema, SchemaId, TableBucket,
    TableInfo, TypeKind,
};
use crate::paimon::{BinaryRow, TableSchema, lake_arrow_schema};

pub(super) fn field(id: i32, name: &str, kind: TypeKind) -> Field {
    Field { id, name: name.into(), data_type: DataType::nullable(kind), comment: None }
}

pub(super) fn table(fields: Vec<Field>) -> TableInfo {
    let highest_field_id = fields.iter().map(|field| field.id).max().unwrap_or(-1);
    let schema = Schema { id: SchemaId(1), fields, primary_key: vec![], highest_field_id };
    TableInfo { schema: Arc::new(schema), bucket_keys: vec![], ..TableInfo::for_tests("demo.t", 2) }
}

pub(super) fn golden(name: &str) -> TableSchema {
    let path = format!("{}/fixtures/fluss-lake/{name}/schema/schema-0", env!("CARGO_MANIFEST_DIR"));
    TableSchema::from_json(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The Fluss table of the cluster kit that a golden lake table was made for.
pub(super) fn kit_table(lake: &TableSchema, bucket_keys: &[&str]) -> TableInfo {
    let fields = lake.fields[..lake.fields.len() - 3].to_vec();
    let mut table = table(fields);
    table.partition_keys.clone_from(&lake.partition_keys);
    Arc::make_mut(&mut table.schema).primary_key.clone_from(&lake.primary_keys);
    table.bucket_keys = bucket_keys.iter().map(|key| (*key).to_owned()).collect();
    for (key, value) in &lake.options {
        if let Some(key) = key.strip_prefix("fluss.") {
            table.properties.insert(key.to_owned(), value.clone());
        }
    }
    table.properties.insert("table.datalake.paimon.warehouse".into(), "/lake".into());
    table
}

#[test]
fn lake_tables_of_a_real_coordinator_are_what_we_would_make_and_compatible() {
    for (name, keys) in [("log", &[][..]), ("log_keyed", &["id"]), ("log_part", &[]), ("pk", &["id"]), ("pk_part", &["id"])] {
        let lake = golden(name);
        let table = kit_table(&lake, keys);
        let mut made = lake_schema(&table).unwrap();
        assert_eq!(made.options.remove("lakestream.enabled").as_deref(), Some("true"), "1.0 says it, 0.9.1 did not");
        assert_eq!(made.options, lake.options, "{name}");
        assert_eq!(made.fields, lake.fields[..12], "{name}");
        assert_eq!((&made.partition_keys, &made.primary_keys), (&lake.partition_keys, &lake.primary_keys));
        assert_eq!(compatible(&table, &lake).unwrap(), LakeForm::Legacy, "{name}");
        assert_eq!(compatible(&table, &made).unwrap(), LakeForm::Clean, "{name}");
    }
}

#[test]
fn names_options_and_types_follow_the_coordinator() {
    let mut table = table(vec![field(0, "id", TypeKind::BigInt), field(4, "at", TypeKind::Time { precision: 3 })]);
    table.bucket_keys = vec!["id".into(), "at".into()];
    for (key, value) in [
        ("paimon.file.format", "orc"),
        ("paimon.partition.default-name", "none"),
        ("owner", "me"),
        ("table.datalake.database-name", "lake_db"),
    ] {
        table.custom_properties.insert(key.into(), value.into());
    }
    let made = lake_schema(&table).unwrap();
    assert_eq!(made.fields[1].data_type.kind, TypeKind::Time { precision: 0 });
    assert_eq!((made.fields[1].id, made.highest_field_id), (1, 1), "ids are Paimon's own");
    let expected = [
        ("bucket", "2"),
        ("bucket-key", "id,at"),
        ("file.format", "orc"),
        ("fluss.owner", "me"),
        ("fluss.table.datalake.database-name", "lake_db"),
        ("partition.default-name", "none"),
        ("partition.legacy-name", "false"),
    ];
    assert_eq!(made.options, expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    assert_eq!(lake_path(&table).unwrap().to_string(), "lake_db.t");
    for (key, code) in [("paimon.bucket", 39), ("bucket-key", 39), ("partition.legacy-name", 39)] {
        let mut table = table.clone();
        table.custom_properties.insert(key.into(), "1".into());
        assert_eq!(lake_schema(&table).unwrap_err().code(), Some(code));
    }
    table.custom_properties.insert("paimon.path".into(), "/elsewhere".into());
    assert_eq!(lake_path(&table).unwrap_err().kind(), Kind::Unsupported);
    let reserved = self::table(vec![field(0, "__offset", TypeKind::BigInt)]);
    assert_eq!(lake_schema(&reserved).unwrap_err().code(), Some(15));
}

/// The Fluss table with nested columns of Java's vectors, and the lake table that Java Paimon made for it.
fn nested() -> (TableInfo, TableSchema) {
    let read = |path: &str| std::fs::read_to_string(format!("{}/fixtures/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let all: serde_json::Value = serde_json::from_str(&read("vectors/fluss-nested.json")).unwrap();
    let schema = schema_from_json(all["schema"].to_string().as_bytes(), SchemaId(1)).unwrap();
    let table = TableInfo { schema: Arc::new(schema), bucket_keys: vec![], ..TableInfo::for_tests("demo.t", 2) };
    (table, TableSchema::from_json(&read("paimon/nested/schema/schema-0")).unwrap())
}

#[test]
fn nested_columns_get_java_s_types_and_ids_and_are_compared_without_ids() {
    let (table, lake) = nested();
    let made = lake_schema(&table).unwrap();
    assert_eq!((&made.fields, made.highest_field_id), (&lake.fields, lake.highest_field_id));
    check_columns(&table).unwrap();
    let mut other = made.clone();
    other.fields[0].comment = Some("c".into());
    let mut highest = 100;
    other.fields.iter_mut().for_each(|field| crate::paimon::number_nested(&mut field.data_type, &mut highest));
    assert_eq!(compatible(&table, &other).unwrap(), LakeForm::Clean);
    let last = other.fields.iter().position(|field| field.name == "aa").unwrap();
    other.fields[last].data_type.kind = TypeKind::Array(Box::new(DataType::nullable(TypeKind::Int)));
    let error = compatible(&table, &other).unwrap_err().to_string();
    assert!(error.contains("`aa ARRAY<ARRAY<INT>>`") && error.contains("`aa ARRAY<INT>`"), "{error}");
}

#[test]
fn what_can_t_be_tiered_is_named_with_its_place() {
    let nullable = |kind| Box::new(DataType::nullable(kind));
    let row = |kind| TypeKind::Row(vec![field(5, "x", TypeKind::Int), field(6, "at", kind)]);
    for (kind, words) in [
        (TypeKind::Array(nullable(TypeKind::Timestamp { precision: 9 })), "TIMESTAMP(9) inside a nested type"),
        (TypeKind::Array(nullable(TypeKind::Timestamp { precision: 7 })), "at `c.element`"),
        (TypeKind::Map(nullable(TypeKind::TimestampLtz { precision: 8 }), nullable(TypeKind::Int)), "at `c.key`"),
        (
            TypeKind::Map(
                nullable(TypeKind::Int),
                nullable(TypeKind::Array(nullable(row(TypeKind::TimestampLtz { precision: 9 })))),
            ),
            "TIMESTAMP(9) WITH LOCAL TIME ZONE inside a nested type, which only INT96 could hold, at `c.value.element.at`",
        ),
        (row(TypeKind::Row(vec![])), "a ROW without fields at `c.at`"),
    ] {
        let error = check_columns(&table(vec![field(0, "c", kind)])).unwrap_err();
        assert!(error.kind() == Kind::Unsupported && error.to_string().contains(words), "{error}");
    }
    check_columns(&table(vec![field(0, "c", row(TypeKind::Timestamp { precision: 6 }))])).unwrap();
    let keys = |partition: &[&str], bucket: &[&str], kind| {
        let mut keyed = table(vec![field(0, "c", kind)]);
        keyed.partition_keys = partition.iter().map(|key| (*key).to_owned()).collect();
        keyed.bucket_keys = bucket.iter().map(|key| (*key).to_owned()).collect();
        check_columns(&keyed).map_err(|error| error.to_string())
    };
    let decimal = TypeKind::Decimal { precision: 5, scale: 2 };
    assert!(keys(&["c"], &[], decimal.clone()).unwrap_err().contains("partition key `c` of type DECIMAL(5, 2)"));
    assert!(keys(&["c"], &[], row(TypeKind::Int)).unwrap_err().contains("partition key `c`"));
    assert!(keys(&[], &["c"], row(TypeKind::Int)).unwrap_err().contains("bucket key `c` of type ROW<x INT, at INT>"));
    assert_eq!(keys(&[], &["c"], decimal), Ok(()));
}

fn batch(table: &TableInfo, schema: &Schema, values: &[Vec<Option<Datum>>]) -> LogBatch {
    let arrays = schema.fields.iter().zip(values).map(|(field, values)| array_of(&field.data_type.kind, values).unwrap()).collect();
    LogBatch {
        bucket: TableBucket { table: table.id, partition: None, bucket: BucketId(1) },
        base_offset: 40,
        commit_timestamp_ms: 1_767_225_600_123,
        schema_id: schema.id,
        rows: RecordBatch::try_new(arrow_schema(schema).unwrap(), arrays).unwrap(),
        changes: None,
        memory: Memory::default(),
    }
}

#[test]
fn every_scalar_type_gets_the_unit_and_form_of_the_lake() {
    let at = Datum::Timestamp { millis: -1, nanos: 456_789 };
    let columns = [
        (TypeKind::Time { precision: 0 }, Datum::Time(5_000)),
        (TypeKind::Time { precision: 3 }, Datum::Time(5_001)),
        (TypeKind::Time { precision: 6 }, Datum::Time(86_399_999)),
        (TypeKind::Time { precision: 9 }, Datum::Time(86_399_999)),
        (TypeKind::Timestamp { precision: 0 }, Datum::Timestamp { millis: -5_000, nanos: 0 }),
        (TypeKind::Timestamp { precision: 3 }, at.clone()),
        (TypeKind::TimestampLtz { precision: 6 }, at.clone()),
        (TypeKind::TimestampLtz { precision: 9 }, at),
        (TypeKind::Binary { length: 3 }, Datum::Bytes(vec![1, 2, 3])),
        (TypeKind::Char { length: 3 }, Datum::String("ab".into())),
        (TypeKind::Decimal { precision: 38, scale: 2 }, Datum::Decimal { unscaled: -7, precision: 38, scale: 2 }),
    ];
    let fields = columns.iter().zip(0..).map(|((kind, _), id)| field(id, &format!("c{id}"), kind.clone())).collect();
    let table = table(fields);
    let lake = lake_schema(&table).unwrap();
    let rows = LakeRows::new(&table, &lake, LakeForm::Clean).unwrap();
    let values: Vec<_> = columns.iter().map(|(_, value)| vec![Some(value.clone()), None, Some(value.clone())]).collect();
    let found = rows.convert(&batch(&table, &table.schema, &values), &table.schema, None).unwrap();
    assert_eq!(found.schema(), lake_arrow_schema(&lake).unwrap());
    for (index, millis) in [5_000, 5_001, 86_399_999, 86_399_999].into_iter().enumerate() {
        let times = found.column(index).as_primitive::<Time32MillisecondType>();
        assert_eq!(times.iter().collect::<Vec<_>>(), [Some(millis), None, Some(millis)]);
    }
    assert_eq!(found.column(4).as_primitive::<TimestampMillisecondType>().value(0), -5_000);
    assert_eq!(found.column(5).as_primitive::<TimestampMillisecondType>().value(2), -1);
    assert_eq!(found.column(6).as_primitive::<TimestampMicrosecondType>().value(0), -544);
    assert_eq!(found.column(7).as_primitive::<TimestampNanosecondType>().value(0), -543_211);
    let bytes = found.column(8).as_binary::<i32>();
    assert_eq!(bytes.iter().collect::<Vec<_>>(), [Some(&[1_u8, 2, 3][..]), None, Some(&[1, 2, 3])]);
    let sliced = batch(&table, &table.schema, &values);
    let sliced = LogBatch { rows: sliced.rows.slice(1, 2), ..sliced };
    assert_eq!(rows.convert(&sliced, &table.schema, None).unwrap().column(8).as_binary::<i32>().value(1), [1, 2, 3]);
    let metadata: Vec<_> = found.schema().fields().iter().map(|field| field.metadata().get("PARQUET:field_id").cloned()).collect();
    assert_eq!(metadata[10].as_deref(), Some("10"));
}

#[test]
fn columns_go_by_id_over_schema_changes_and_none_is_ever_dropped() {
    let mut table = table(vec![field(0, "a", TypeKind::Int), field(3, "b", TypeKind::String)]);
    let old = (*table.schema).clone();
    let mut newer = old.clone();
    newer.id = SchemaId(2);
    newer.fields.push(field(4, "c", TypeKind::Int));
    table.schema = Arc::new(newer.clone());
    let lake = lake_schema(&table).unwrap();
    let values = [vec![Some(Datum::Int(1))], vec![Some(Datum::String("x".into()))], vec![Some(Datum::Int(9))]];
    let rows = LakeRows::new(&table, &lake, LakeForm::Clean).unwrap();
    let found = rows.convert(&batch(&table, &old, &values), &old, None).unwrap();
    assert!(found.column(2).is_null(0) && found.column(1).as_string::<i32>().value(0) == "x");
    let found = rows.convert(&batch(&table, &newer, &values), &newer, None).unwrap();
    assert_eq!(found.column(2).as_primitive::<Int32Type>().value(0), 9);

    // The lake and the table as they were before the column came.
    let narrow = TableSchema { fields: lake.fields[..2].to_vec(), ..lake.clone() };
    let described = TableInfo { schema: Arc::new(old.clone()), ..table.clone() };
    let rows = LakeRows::new(&described, &narrow, LakeForm::Clean).unwrap();
    let error = rows.convert(&batch(&table, &newer, &values), &newer, None).unwrap_err();
    assert!(error.kind() == Kind::Stale && error.to_string().contains("`c`"), "{error}");

    // A column that newer schemas don't have any more, nor the lake: planning again would not help.
    let rows = LakeRows::new(
        &TableInfo { schema: Arc::new(Schema { id: SchemaId(3), ..old.clone() }), ..table.clone() },
        &narrow,
        LakeForm::Clean,
    )
    .unwrap();
    let error = rows.convert(&batch(&table, &newer, &values), &newer, None).unwrap_err();
    assert!(error.kind() == Kind::Data && error.to_string().contains("`c`"), "{error}");

    // The table as it was described before the column came, the lake after: the lake is altered first.
    let rows = LakeRows::new(&described, &lake, compatible(&described, &lake).unwrap()).unwrap();
    assert!(rows.convert(&batch(&table, &old, &values), &old, None).unwrap().column(2).is_null(0));
    let found = rows.convert(&batch(&table, &newer, &values), &newer, None).unwrap();
    assert_eq!(found.column(2).as_primitive::<Int32Type>().value(0), 9);

    let mut strict = lake.clone();
    strict.fields[2].data_type.nullable = false;
    let rows = LakeRows::new(&table, &strict, LakeForm::Clean).unwrap();
    assert_eq!(rows.convert(&batch(&table, &old, &values), &old, None).unwrap_err().kind(), Kind::Data);
    let mut deleted = batch(&table, &old, &values);
    deleted.changes = Some(vec![ChangeKind::Delete]);
    assert_eq!(rows.convert(&deleted, &old, None).unwrap_err().kind(), Kind::Data);
}

#[test]
fn legacy_tables_get_bucket_offset_and_timestamp() {
    for (precision, micros) in [(3, 1), (6, 1000)] {
        let mut lake = golden("log");
        lake.fields.drain(1..12);
        lake.fields[3].data_type.kind = TypeKind::TimestampLtz { precision };
        let table = table(vec![field(0, "id", TypeKind::BigInt)]);
        let rows = LakeRows::new(&table, &lake, LakeForm::Legacy).unwrap();
        let values = [vec![Some(Datum::BigInt(7)), Some(Datum::BigInt(8))]];
        let found = rows.convert(&batch(&table, &table.schema, &values), &table.schema, None).unwrap();
        assert_eq!(found.column(1).as_primitive::<Int32Type>().values(), &[1, 1]);
        assert_eq!(found.column(2).as_primitive::<Int64Type>().values(), &[40, 41]);
        let expected = 1_767_225_600_123 * micros;
        let stamp = match precision {
            3 => found.column(3).as_primitive::<TimestampMillisecondType>().value(1),
            _ => found.column(3).as_primitive::<TimestampMicrosecondType>().value(1),
        };
        assert_eq!(stamp, expected);
    }
}

#[test]
fn partition_columns_come_from_the_partition_and_not_from_the_rows() {
    let mut table = table(vec![
        field(0, "id", TypeKind::BigInt),
        field(1, "day", TypeKind::Date),
        field(2, "at", TypeKind::TimestampLtz { precision: 6 }),
        field(3, "region", TypeKind::String),
    ]);
    table.partition_keys = vec!["region".into(), "day".into(), "at".into()];
    let spec = [("region", "eu"), ("day", "2026-01-01"), ("at", "2026-01-01-00-00-00_5")];
    let spec = spec.map(|(name, text)| (name.to_owned(), text.to_owned())).to_vec();
    let partition = Partition { id: PartitionId(3), spec, bucket_count: Some(2) };
    let lake = lake_schema(&table).unwrap();
    let row = partition_row(Some(&partition), &table, &lake).unwrap();
    let expected =
        [Datum::String("eu".into()), Datum::Date(20_454), Datum::Timestamp { millis: 1_767_225_600_500, nanos: 0 }].map(Some);
    assert_eq!(row.read(&lake.partition_types().unwrap()).unwrap(), expected);
    assert_eq!(row, BinaryRow::write(&expected, &lake.partition_types().unwrap()).unwrap());

    let rows = LakeRows::new(&table, &lake, LakeForm::Clean).unwrap();
    let values = [
        vec![Some(Datum::BigInt(7)), None],
        vec![Some(Datum::Date(1)), None],
        vec![None, None],
        vec![Some(Datum::String("other".into())), None],
    ];
    let batch = batch(&table, &table.schema, &values);
    let found = rows.convert(&batch, &table.schema, Some(&partition)).unwrap();
    assert_eq!(found.column(3).as_string::<i32>().iter().collect::<Vec<_>>(), [Some("eu"), Some("eu")]);
    assert_eq!(found.column(2).as_primitive::<TimestampMicrosecondType>().value(1), 1_767_225_600_500_000);
    assert_eq!(rows.convert(&batch, &table.schema, None).unwrap_err().kind(), Kind::Internal);
    let wrong = Partition { spec: vec![("day".into(), "2026-01-01".into())], ..partition.clone() };
    assert_eq!(partition_row(Some(&wrong), &table, &lake).unwrap_err().kind(), Kind::Data);
    let mut unreadable = partition;
    unreadable.spec[1].1 = "yesterday".into();
    assert_eq!(partition_row(Some(&unreadable), &table, &lake).unwrap_err().kind(), Kind::Data);
}

#[test]
fn nested_rows_get_the_lake_s_units_and_missing_fields_but_lose_none() {
    let time = TypeKind::Time { precision: 6 };
    let row = |fields: Vec<Field>| TypeKind::Array(Box::new(DataType::nullable(TypeKind::Row(fields))));
    let (t, z) = (field(1, "t", time), field(2, "z", TypeKind::TimestampLtz { precision: 0 }));
    let fluss = table(vec![field(0, "a", row(vec![t.clone(), z.clone()]))]);
    let schema = &fluss.schema;
    let arrow = arrow_schema(schema).unwrap();
    let ArrowType::List(element) = arrow.field(0).data_type() else { panic!() };
    let ArrowType::Struct(inner) = element.data_type() else { panic!() };
    let values = [
        array_of(&t.data_type.kind, &[Some(Datum::Time(1)), None, Some(Datum::Time(86_399_999))]).unwrap(),
        array_of(&z.data_type.kind, &[None, Some(Datum::Timestamp { millis: -1000, nanos: 0 }), None]).unwrap(),
    ];
    let rows = StructArray::try_new(inner.clone(), values.to_vec(), None).unwrap();
    let lists = ListArray::try_new(Arc::clone(element), OffsetBuffer::from_lengths([1, 0, 2]), Arc::new(rows), None).unwrap();
    let batch = LogBatch {
        bucket: TableBucket { table: fluss.id, partition: None, bucket: BucketId(0) },
        base_offset: 0,
        commit_timestamp_ms: 0,
        schema_id: schema.id,
        rows: RecordBatch::try_new(arrow, vec![Arc::new(lists)]).unwrap(),
        changes: None,
        memory: Memory::default(),
    };
    let convert = |lake: &TableSchema| LakeRows::new(&fluss, lake, LakeForm::Clean).unwrap().convert(&batch, schema, None);

    let lake = lake_schema(&fluss).unwrap();
    let found = convert(&lake).unwrap();
    assert_eq!(found.schema(), lake_arrow_schema(&lake).unwrap());
    let inside = |found: &RecordBatch| found.column(0).as_list::<i32>().values().as_struct().clone();
    let times = inside(&found).column(0).as_primitive::<Time32MillisecondType>().iter().collect::<Vec<_>>();
    assert_eq!(times, [Some(1), None, Some(86_399_999)]);
    assert_eq!(inside(&found).column(1).as_primitive::<TimestampMillisecondType>().value(1), -1000);

    // Rows older than the lake's type: as for columns, what they do not have is NULL, what the lake does not have is kept back.
    let later = field(9, "later", TypeKind::String);
    let mut wider = lake.clone();
    let TypeKind::Array(element) = &lake.fields[0].data_type.kind else { panic!() };
    let TypeKind::Row(fields) = &element.kind else { panic!() };
    wider.fields[0].data_type.kind = row([fields.as_slice(), std::slice::from_ref(&later)].concat());
    assert_eq!(inside(&convert(&wider).unwrap()).column(2).null_count(), 3);
    let required = Field { data_type: DataType::required(TypeKind::String), ..later };
    wider.fields[0].data_type.kind = row([fields.as_slice(), &[required]].concat());
    let error = convert(&wider).unwrap_err();
    assert!(error.kind() == Kind::Data && error.chain().contains("`later`"), "{}", error.chain());
    let mut narrower = lake.clone();
    narrower.fields[0].data_type.kind = row(fields[..1].to_vec());
    let error = convert(&narrower).unwrap_err();
    assert!(error.kind() == Kind::Stale && error.chain().contains("`z`"), "{}", error.chain());
}

#[test]
fn lake_options_that_this_build_can_t_follow_are_named_with_the_table_and_what_to_do() {
    let mut keyed = table(vec![Field { data_type: DataType::required(TypeKind::Int), ..field(0, "id", TypeKind::Int) }]);
    Arc::make_mut(&mut keyed.schema).primary_key = vec!["id".into()];
    keyed.bucket_keys = vec!["id".into()];
    check_options(&keyed).unwrap();
    for (key, value) in [("merge-engine", "first-row"), ("deletion-vectors.enabled", "true"), ("rowkind.field", "id")] {
        let mut wrong = keyed.clone();
        wrong.custom_properties.insert(format!("paimon.{key}"), value.to_owned());
        let error = check_options(&wrong).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        for word in ["demo.t", key, value] {
            assert!(error.chain().contains(word), "{}", error.chain());
        }
        assert!(error.hint().is_some_and(|hint| hint.contains("tables.exclude")));
    }
}
