use proptest::prelude::*;

use super::*;
use crate::error::Kind;

#[test]
fn a_whole_ddl_is_read() {
    let ddl = parse_ddl(
        "-- orders\nCREATE TABLE IF NOT EXISTS demo.`or-ders` (\n  id BIGINT NOT NULL COMMENT 'the ''id''',\n  price decimal(10, 2) NULL,\n \
         /* two\nlines */ seen TIMESTAMP(3) WITH LOCAL TIME ZONE, at TIMESTAMP_LTZ(6), \"day\" STRING NOT NULL,\n \
         tags ARRAY<STRING NOT NULL>, m MAP<STRING, INT> NOT NULL, r ROW<a INT COMMENT 'x', b ARRAY<ROW<c DATE>>>\n)\nCOMMENT 'all'\n\
         PARTITIONED BY (`day`) WITH ('bucket.num' = '4', 'bucket.key' = 'id, price', 'connector' = 'fluss',\n\
         'table.datalake.enabled' = 'true', 'paimon.file.format' = 'parquet');\n",
    )
    .unwrap();
    assert_eq!((ddl.database.as_deref(), ddl.table.as_str()), (Some("demo"), "or-ders"));
    let table = ddl.descriptor;
    let columns: Vec<String> =
        table.schema.fields.iter().map(|field| format!("{} {} {}", field.id, field.name, type_text(&field.data_type))).collect();
    assert_eq!(
        columns,
        [
            "0 id BIGINT NOT NULL",
            "1 price DECIMAL(10, 2)",
            "2 seen TIMESTAMP(3) WITH LOCAL TIME ZONE",
            "3 at TIMESTAMP(6) WITH LOCAL TIME ZONE",
            "4 day STRING NOT NULL",
            "5 tags ARRAY<STRING NOT NULL>",
            "6 m MAP<STRING NOT NULL, INT> NOT NULL",
            "7 r ROW<a INT, b ARRAY<ROW<c DATE>>>",
        ]
    );
    assert_eq!(table.schema.highest_field_id, 10, "nested fields are counted too");
    assert_eq!(table.schema.fields[0].comment.as_deref(), Some("the 'id'"));
    assert_eq!(
        (table.comment.as_deref(), table.partition_keys, table.bucket_keys),
        (Some("all"), vec!["day".to_owned()], vec!["id".to_owned(), "price".to_owned()])
    );
    assert_eq!(table.bucket_count, Some(4));
    assert_eq!(table.properties, BTreeMap::from([("table.datalake.enabled".to_owned(), "true".to_owned())]));
    assert_eq!(table.custom_properties, BTreeMap::from([("paimon.file.format".to_owned(), "parquet".to_owned())]));
}

#[test]
fn keys_and_buckets_have_a_second_form() {
    let ddl = parse_ddl("create table t (a int primary key not enforced, b string) distributed by (a) into 3 buckets").unwrap();
    assert_eq!((ddl.database, ddl.table.as_str()), (None, "t"));
    let table = ddl.descriptor;
    assert_eq!(
        (table.schema.primary_key, table.bucket_keys, table.bucket_count),
        (vec!["a".to_owned()], vec!["a".to_owned()], Some(3))
    );
    assert!(!table.schema.fields[0].data_type.nullable);
    let ddl = parse_ddl("CREATE TABLE t (a INT, b INT, PRIMARY KEY (a, b) NOT ENFORCED) DISTRIBUTED INTO 2 BUCKETS").unwrap();
    assert_eq!((ddl.descriptor.schema.primary_key.len(), ddl.descriptor.bucket_count), (2, Some(2)));
}

#[test]
fn errors_name_the_line_and_what_should_be_there() {
    for (text, kind, said) in [
        ("", Kind::Invalid, "line 1: the end where `CREATE` should be"),
        ("CREATE TABLE t\n(a INT\n b INT)", Kind::Invalid, "line 3: `b` where `)` should be"),
        ("CREATE TABLE t (a INT,)", Kind::Invalid, "line 1: `)` where a column name should be"),
        ("CREATE TABLE t (a INTT)", Kind::Invalid, "line 1: `INTT` is no type that Fluss has"),
        ("CREATE TABLE t (a 'x')", Kind::Invalid, "line 1: `'x'` where a type should be"),
        ("CREATE TABLE t (a VARCHAR(10))", Kind::Unsupported, "type `VARCHAR(10)`: Fluss has no VARCHAR"),
        ("CREATE TABLE t (a INT, a INT)", Kind::Invalid, "column `a` is there twice"),
        ("CREATE TABLE t (a INT) PARTITIONED BY (b)", Kind::Invalid, "partition key `b` is no column"),
        ("CREATE TABLE t (a INT) WITH ('bucket.num' = 'x')", Kind::Invalid, "`bucket.num` = `x`"),
        ("CREATE TABLE t (a INT) WITH (a = 'x')", Kind::Invalid, "line 1: `a` where an option's name in single quotes should be"),
        ("CREATE TABLE t (a INT); DROP TABLE t", Kind::Invalid, "line 1: `DROP` where the end should be"),
        ("CREATE TABLE t (a INT) COMMENT 'x", Kind::Invalid, "line 1: a quote starts that does not end"),
        ("CREATE TABLE t (a INT) # b", Kind::Invalid, "line 1: `#` has no place in a DDL"),
        ("CREATE TABLE t (a DECIMAL(99999999999))", Kind::Invalid, "line 1: `99999999999` where a number should be"),
    ] {
        let error = parse_ddl(text).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (kind, said), "{text}");
    }
    let deep = format!("CREATE TABLE t (a {}INT{})", "ARRAY<".repeat(5000), ">".repeat(5000));
    assert!(parse_ddl(&deep).unwrap_err().to_string().contains("nested less deeply"));
    assert!(parse_ddl("CREATE TABLE a.b (c INT)").unwrap().expect(&TablePath::new("a", "c")).is_err());
}

#[test]
fn differences_name_columns_keys_and_options() {
    let table = TableInfo::for_tests("demo.t", 2);
    let same = parse_ddl("CREATE TABLE t (id BIGINT) WITH ('bucket.key' = 'id', 'bucket.num' = '2')").unwrap().descriptor;
    assert_eq!((differences(&same, &table), option_differences(&same, &table)), (vec![], vec![]));
    let other =
        parse_ddl("CREATE TABLE t (id INT, more DATE) PARTITIONED BY (more) WITH ('bucket.num' = '3', 'table.log.ttl' = '1d')");
    let other = other.unwrap().descriptor;
    assert_eq!(
        differences(&other, &table),
        [
            "column 1: `id INT` wanted, `id BIGINT` in the table",
            "column 2: `more DATE` is not in the table",
            "partitioned by: (more) wanted, () in the table",
            "bucket key: () wanted, (id) in the table",
        ]
    );
    assert_eq!(option_differences(&other, &table), ["`bucket.num` is 2, not 3", "`table.log.ttl` is not set, `1d` is wanted"]);
}

proptest! {
    #[test]
    fn foreign_text_never_panics(text in "[a-zA-Z0-9_'\"`(),;<>=.\\-/* \n]{0,60}") {
        drop(parse_ddl(&text));
        drop(parse_ddl(&format!("CREATE TABLE t ({text}")));
        drop(parse_column_type(&text));
    }

    #[test]
    fn types_read_as_they_are_written(precision in 1_u8..=38, scale in 0_u8..=38, length in 1_u32..1000, nullable in any::<bool>()) {
        for kind in [
            TypeKind::Decimal { precision, scale: scale.min(precision) },
            TypeKind::Char { length },
            TypeKind::Timestamp { precision: scale.min(9) },
            TypeKind::TimestampLtz { precision: scale.min(9) },
            TypeKind::Map(Box::new(DataType::required(TypeKind::Int)), Box::new(DataType::nullable(TypeKind::Binary { length }))),
        ] {
            let data_type = DataType { kind, nullable };
            prop_assert_eq!(parse_column_type(&type_text(&data_type)).unwrap(), data_type);
        }
    }
}
