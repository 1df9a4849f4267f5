use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::error::Kind;
use crate::mapping::tests::{field, golden, kit_table, table};
use crate::model::{DataType, TablePath};
use crate::paimon::parse_type;

fn column(id: i32, text: &str) -> Field {
    let (name, kind) = text.split_once(' ').unwrap();
    Field { data_type: parse_type(kind).unwrap(), ..field(id, name, TypeKind::Int) }
}

/// `a INT, b STRING, c BIGINT NOT NULL, d DATE` in Fluss.
fn fluss() -> TableInfo {
    table(["a INT", "b STRING", "c BIGINT NOT NULL", "d DATE"].iter().zip(0..).map(|(text, id)| column(id, text)).collect())
}

/// Columns `id name TYPE` in the lake.
fn lake(columns: &[&str]) -> TableSchema {
    let fields = columns.iter().map(|text| {
        let (id, text) = text.split_once(' ').unwrap();
        column(id.parse().unwrap(), text)
    });
    TableSchema { fields: fields.collect(), ..lake_schema(&fluss()).unwrap() }
}

#[test]
fn each_difference_of_columns_is_named_with_the_statement_that_repairs_it() {
    for (columns, text, sql) in [
        (
            &["0 a BIGINT", "1 b STRING", "2 c BIGINT NOT NULL", "3 d DATE"][..],
            "its column `a BIGINT` is `a INT` in Fluss",
            "MODIFY `a` INT;",
        ),
        (
            &["0 a INT NOT NULL", "1 b STRING", "2 c BIGINT NOT NULL", "3 d DATE"],
            "its column `a INT NOT NULL` is `a INT` in Fluss",
            "MODIFY `a` INT;",
        ),
        (
            &["0 a INT", "1 b STRING", "2 c BIGINT", "3 d DATE"],
            "its column `c BIGINT` is `c BIGINT NOT NULL` in Fluss",
            "MODIFY `c` BIGINT NOT NULL; NOT NULL needs the table option `alter-column-null-to-not-null.disabled` = `false`",
        ),
        (
            &["0 a INT", "1 text STRING", "2 c BIGINT NOT NULL", "3 d DATE"],
            "its column `text` is `b` in Fluss",
            "RENAME `text` TO `b`;",
        ),
        (&["0 a INT", "2 c BIGINT NOT NULL", "3 d DATE"], "it lacks the column `b STRING`", "ADD `b` STRING AFTER `a`;"),
        (&["1 b STRING", "2 c BIGINT NOT NULL", "3 d DATE"], "it lacks the column `a INT`", "ADD `a` INT FIRST;"),
        (
            &["0 a INT", "1 b STRING", "3 d DATE"],
            "it lacks the column `c BIGINT NOT NULL`",
            "ADD `c` BIGINT AFTER `b`; ALTER TABLE `demo`.`t` MODIFY `c` BIGINT NOT NULL;",
        ),
        (
            &["0 a INT", "1 b STRING"],
            "it lacks the column `c BIGINT NOT NULL`; it lacks the column `d DATE`",
            "MODIFY `c` BIGINT NOT NULL; ALTER TABLE `demo`.`t` ADD `d` DATE AFTER `c`;",
        ),
        (
            &["1 b STRING", "0 a INT", "2 c BIGINT NOT NULL", "3 d DATE"],
            "its column `b` stands before `a`, in Fluss behind it",
            "MODIFY `b` STRING AFTER `a`;",
        ),
        (
            &["0 a INT", "1 b STRING", "2 c BIGINT NOT NULL", "3 d DATE", "9 e INT NOT NULL"],
            "its column `e INT NOT NULL` is not in Fluss, and is NOT NULL",
            "MODIFY `e` INT;",
        ),
        (&["7 x INT"], "it lacks the column `a INT`; it lacks the column `b STRING`", "ADD `a` INT AFTER `x`;"),
    ] {
        let error = fit(&fluss(), &lake(columns)).unwrap_err();
        assert_eq!(error.kind(), Kind::Data);
        assert!(error.to_string().contains(text), "{columns:?}: {error}");
        let hint = error.hint().unwrap();
        assert!(hint.contains(sql) && hint.contains("ALTER TABLE `demo`.`t` "), "{columns:?}: {hint}");
    }
}

#[test]
fn several_differences_are_all_named_in_one_error() {
    let mut lake = lake(&["0 a BIGINT", "2 c BIGINT NOT NULL", "1 b STRING", "3 day DATE", "4 e INT NOT NULL", "5 f INT"]);
    lake.options.insert("bucket-function.type".into(), "mod".into());
    let mut fluss = fluss();
    Arc::make_mut(&mut fluss.schema).fields.push(column(4, "z TIMESTAMP(3)"));
    lake.fields.push(column(6, "z TIMESTAMP(3)"));
    let error = fit(&fluss, &lake).unwrap_err();
    let expected = "the lake table of `demo.t` does not fit: its column `day` is `d` in Fluss; its column `a BIGINT` is `a INT` in Fluss; \
         its column `e INT NOT NULL` is not in Fluss, and is NOT NULL; its column `c` stands before `b`, in Fluss behind it; \
         its option `bucket-function.type` is `mod` where Fluss has `unset`";
    assert_eq!(error.to_string(), expected);
    let hint = error.hint().unwrap();
    for sql in [
        "RENAME `day` TO `d`",
        "MODIFY `a` INT;",
        "MODIFY `e` INT;",
        "MODIFY `c` BIGINT NOT NULL AFTER `b`",
        "RESET ('bucket-function.type')",
    ] {
        assert!(hint.contains(sql), "{sql}: {hint}");
    }
    assert!(hint.contains("move the lake table away"), "{hint}");
}

#[test]
fn what_is_no_column_is_named_with_both_values() {
    let lake = golden("log_part");
    let base = kit_table(&lake, &[]);
    let check = |change: &dyn Fn(&mut TableInfo, &mut TableSchema), words: &[&str]| {
        let (mut table, mut changed) = (base.clone(), lake.clone());
        change(&mut table, &mut changed);
        let error = fit(&table, &changed).unwrap_err();
        assert_eq!(error.kind(), Kind::Data, "{error}");
        assert!(words.iter().all(|word| error.to_string().contains(word)), "{error} lacks {words:?}");
        assert!(error.hint().unwrap().contains("move the lake table away"));
    };
    check(&|_, lake| lake.partition_keys.clear(), &["partition keys ``", "`region`"]);
    check(&|_, lake| lake.fields[14].data_type.kind = TypeKind::TimestampLtz { precision: 9 }, &["__timestamp"]);
    check(&|_, lake| drop(lake.options.remove("partition.legacy-name")), &["`partition.legacy-name`", "`unset`", "`false`"]);
    check(&|_, lake| drop(lake.options.insert("bucket".into(), "4".into())), &["option `bucket` is `4`", "`-1`"]);
    check(&|_, lake| drop(lake.options.insert("bucket-function.type".into(), "mod".into())), &["bucket-function.type"]);
}

#[test]
fn what_is_tolerated() {
    let mut lake = golden("log_part");
    let mut table = kit_table(&lake, &["id"]);
    lake.options.extend([("bucket".into(), "4".into()), ("bucket-key".into(), "id".into()), ("owner".into(), "me".into())]);
    lake.fields[14].data_type.kind = TypeKind::TimestampLtz { precision: 6 };
    // The lake is altered first, and users may have columns of their own.
    lake.fields.insert(12, field(30, "added_first_in_the_lake", TypeKind::String));
    lake.fields.insert(3, field(31, "of_the_user", TypeKind::String));
    lake.fields[4].comment = Some("a comment".into());
    assert_eq!(compatible(&table, &lake).unwrap(), LakeForm::Legacy);
    assert_eq!(bucket_drift(&table, &lake), Some(BucketDrift { fluss: 2, lake: 4 }));
    table.bucket_count = 4;
    assert_eq!(bucket_drift(&table, &lake), None);
    // Without partitions no rescale can have got half way.
    (table.bucket_count, table.partition_keys) = (2, vec![]);
    lake.partition_keys.clear();
    assert!(compatible(&table, &lake).unwrap_err().to_string().contains("option `bucket`"));
}

#[test]
fn ids_and_comments_inside_of_types_do_not_matter_but_their_fields_do() {
    let row = |fields: Vec<Field>| DataType::nullable(TypeKind::Array(Box::new(DataType::nullable(TypeKind::Row(fields)))));
    let ours = row(vec![column(3, "x INT"), column(4, "y STRING")]);
    let mut theirs = row(vec![column(8, "x INT"), Field { comment: Some("c".into()), ..column(9, "y STRING") }]);
    assert!(ours.same_as(&theirs));
    for other in [
        row(vec![column(3, "x INT")]),
        row(vec![column(3, "x INT"), column(4, "z STRING")]),
        row(vec![column(3, "x INT"), column(4, "y STRING NOT NULL")]),
        row(vec![column(4, "y STRING"), column(3, "x INT")]),
        row(vec![column(3, "x INT"), column(4, "y STRING"), column(5, "z INT")]),
    ] {
        assert!(!ours.same_as(&other) && !other.same_as(&theirs), "{other:?}");
    }
    theirs.nullable = false;
    assert!(!ours.same_as(&theirs));
}

#[test]
fn columns_missing_at_the_end_are_for_us_to_add_unless_the_lake_had_them() {
    let lacks = lake(&["0 a INT", "1 b STRING", "2 c BIGINT NOT NULL"]);
    let missing = fit(&fluss(), &lacks).unwrap().missing;
    assert_eq!(missing, [column(3, "d DATE")]);
    not_taken_away(&fluss(), &lacks, &lake(&["0 a INT"]), &missing).unwrap();
    // As the lake is, nothing may be written.
    let error = compatible(&fluss(), &lacks).unwrap_err();
    assert!(error.to_string().contains("it lacks the column `d DATE`"), "{error}");
    assert!(error.hint().unwrap().contains("ADD `d` DATE AFTER `c`"));

    let had = lake(&["0 a INT", "1 b STRING", "2 c BIGINT NOT NULL", "3 d DATE"]);
    let error = not_taken_away(&fluss(), &lacks, &had, &missing).unwrap_err();
    assert!(error.kind() == Kind::Data && error.chain().contains("it lacks the column `d DATE`"), "{}", error.chain());
    assert!(error.hint().unwrap().contains("ADD `d` DATE AFTER `c`"), "{:?}", error.hint());
    let renamed = lake(&["0 a INT", "1 b STRING", "2 c BIGINT NOT NULL", "3 day DATE"]);
    let missing = fit(&fluss(), &renamed).unwrap().missing;
    let error = not_taken_away(&fluss(), &renamed, &had, &missing).unwrap_err();
    assert!(error.hint().unwrap().contains("RENAME `day` TO `d`"), "{:?}", error.hint());
}

#[test]
fn statements_quote_what_they_name() {
    let strange = TablePath::new("d`b", "t");
    let row = DataType::required(TypeKind::Row(vec![column(1, "select INT")]));
    let field = Field { id: 0, name: "it's".into(), data_type: row, comment: Some("it's".into()) };
    let add = Repair::Add { field, after: None };
    assert_eq!(add.sql(&strange), "ALTER TABLE `d``b`.`t` ADD `it's` ROW<`select` INT> NOT NULL COMMENT 'it''s' FIRST");
    let set = Repair::Set { key: "k".into(), value: Some("it's".into()) };
    assert_eq!(set.sql(&strange), "ALTER TABLE `d``b`.`t` SET ('k' = 'it''s')");
}

/// What a statement does to the columns.
fn apply(repair: &Repair, fields: &mut Vec<Field>) {
    let place = |fields: &[Field], name: &str| fields.iter().position(|field| field.name == name).unwrap();
    match repair {
        Repair::Rename { from, to } => {
            assert!(fields.iter().all(|field| field.name != *to));
            let at = place(fields, from);
            fields[at].name.clone_from(to);
        }
        Repair::Add { field, after } => {
            assert!(fields.iter().all(|other| other.name != field.name) && field.data_type.nullable);
            let at = after.as_ref().map_or(0, |after| place(fields, after) + 1);
            fields.insert(at, field.clone());
        }
        Repair::Modify(field) => {
            let at = place(fields, &field.name);
            fields[at].data_type = field.data_type.clone();
        }
        Repair::Move { field, after } => {
            let moved = fields.remove(place(fields, &field.name));
            let at = after.as_ref().map_or(0, |after| place(fields, after) + 1);
            fields.insert(at, moved);
        }
        Repair::Set { .. } => {}
    }
}

/// What somebody did to the lake table.
#[derive(Debug, Clone)]
enum Deed {
    Drop(prop::sample::Index),
    Rename(prop::sample::Index),
    Type(prop::sample::Index, bool),
    Move(prop::sample::Index, prop::sample::Index),
    Add(prop::sample::Index, bool),
}

fn deed() -> impl Strategy<Value = Deed> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        index().prop_map(Deed::Drop),
        index().prop_map(Deed::Rename),
        (index(), any::<bool>()).prop_map(|(at, nullable)| Deed::Type(at, nullable)),
        (index(), index()).prop_map(|(from, to)| Deed::Move(from, to)),
        (index(), any::<bool>()).prop_map(|(at, nullable)| Deed::Add(at, nullable)),
    ]
}

proptest! {
    #[test]
    fn the_statements_of_any_differences_make_the_table_fit(deeds in prop::collection::vec(deed(), 0..8)) {
        let expected = lake_schema(&fluss()).unwrap().fields;
        let mut found = expected.clone();
        for (deed, number) in deeds.into_iter().zip(10..) {
            match deed {
                Deed::Drop(at) if found.len() > 1 => drop(found.remove(at.index(found.len()))),
                Deed::Drop(_) => {}
                Deed::Rename(at) => {
                    let at = at.index(found.len());
                    found[at].name = format!("n{number}");
                }
                Deed::Type(at, nullable) => {
                    let at = at.index(found.len());
                    found[at].data_type = DataType { kind: TypeKind::Double, nullable };
                }
                Deed::Move(from, to) => {
                    let moved = found.remove(from.index(found.len()));
                    found.insert(to.index(found.len() + 1), moved);
                }
                Deed::Add(at, nullable) => {
                    let added = Field { id: number, data_type: DataType { kind: TypeKind::Int, nullable }, ..column(0, &format!("n{number} INT")) };
                    found.insert(at.index(found.len() + 1), added);
                }
            }
        }
        let mut differences = Differences::default();
        let missing = differences.columns(&expected, &found);
        prop_assert!(missing.iter().all(|field| field.data_type.nullable));
        for repair in &differences.repairs {
            apply(repair, &mut found);
        }
        found.extend(missing);
        let mut again = Differences::default();
        prop_assert_eq!(again.columns(&expected, &found), vec![]);
        prop_assert!(again.texts.is_empty(), "{:?} after {:?}", again.texts, differences.repairs);
    }
}
