use std::io::Write;

use ::parquet::arrow::ArrowWriter;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, StringArray};
use proptest::prelude::*;
use tempfile::NamedTempFile;

use super::*;
use crate::client::ddl::parse_ddl;
use crate::error::Kind;

fn file(suffix: &str, bytes: &[u8]) -> NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(suffix).tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn schema(columns: &str) -> Schema {
    parse_ddl(&format!("CREATE TABLE t ({columns})")).unwrap().descriptor.schema
}

/// All rows of `files` as one JSON object each, with their lines, and what was left out.
fn read_all(files: &[&NamedTempFile], columns: &str, options: &FileOptions) -> Result<(Vec<String>, Vec<u64>, Vec<String>)> {
    let columns = Arc::new(Columns::new(&schema(columns), options)?);
    let inputs = files.iter().map(|file| Input::File(file.path().to_owned())).collect();
    let mut files = Files::new(inputs, Arc::clone(&columns), options.clone());
    let (mut rows, mut lines, mut bad) = (vec![], vec![], vec![]);
    while let Some(chunk) = files.next()? {
        let read = chunk.read(&columns)?;
        assert_eq!(read.rows.num_rows(), read.lines.len());
        let mut writer = arrow_json::LineDelimitedWriter::new(Vec::new());
        writer.write(&read.rows).unwrap();
        rows.extend(String::from_utf8(writer.into_inner()).unwrap().lines().map(str::to_owned));
        lines.extend(read.lines);
        bad.extend(read.bad);
    }
    Ok((rows, lines, bad))
}

fn read_text(suffix: &str, text: &str, columns: &str, options: &FileOptions) -> Result<(Vec<String>, Vec<u64>, Vec<String>)> {
    read_all(&[&file(suffix, text.as_bytes())], columns, options)
}

/// The error of a file, without its folder.
fn fault(suffix: &str, text: &str, columns: &str) -> String {
    let error = read_text(suffix, text, columns, &FileOptions::default()).unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{}", error.chain());
    let chain = error.chain();
    chain.rsplit_once(&format!("{suffix}`")).map_or(chain.clone(), |(_, rest)| rest.trim_start_matches([':', ' ']).to_owned())
}

const COLUMNS: &str = "id BIGINT NOT NULL, words STRING, price DECIMAL(5, 2), tags ARRAY<STRING>, \
    counts MAP<STRING, INT>, r ROW<a INT NOT NULL, b ARRAY<ROW<c DATE>>>";

#[test]
fn json_lines_fill_columns_by_name_at_any_depth() {
    let text = "{\"words\":\"a\",\"id\":1,\"price\":1.5,\"tags\":[\"x\",null],\"counts\":{\"k\":7},\"r\":{\"a\":\"5\",\"b\":[{\"c\":\"2024-02-29\"},{}]}}\n\
        \n{\"id\":\"2\"}\r\n  {\"id\":3,\"words\":null,\"r\":null,\"tags\":[]}";
    let (rows, lines, _) = read_text(".json", text, COLUMNS, &FileOptions::default()).map_err(|error| error.chain()).unwrap();
    assert_eq!(
        rows,
        [
            r#"{"id":1,"words":"a","price":1.50,"tags":["x",null],"counts":{"k":7},"r":{"a":5,"b":[{"c":"2024-02-29"},{}]}}"#,
            r#"{"id":2}"#,
            r#"{"id":3,"tags":[]}"#,
        ]
    );
    assert_eq!(lines, [1, 3, 4]);
}

#[test]
fn a_bad_line_of_json_is_named_with_column_and_value() {
    let after = |line: &str| fault(".json", &format!("{{\"id\":1}}\n\n{line}\n{{\"id\":4}}"), COLUMNS);
    for (line, said) in [
        (r#"{"id":2,"price":"dear"}"#, "line 3, column `price`: `dear` is no DECIMAL(5, 2)"),
        (r#"{"id":2,"wrods":"x"}"#, "line 3: the table has no column `wrods`; the nearest is `words`"),
        (r#"{"id":2,"r":{"a":1,"z":2}}"#, "line 3: the table has no column `r.z`"),
        (r#"{"words":"x"}"#, "line 3, column `id`: no value, and the column is NOT NULL"),
        (r#"{"id":2,"words":{"a":1}}"#, "line 3, column `words`: `{\"a\":1}` is no STRING"),
        (r#"{"id":2,"tags":"x"}"#, "line 3, column `tags`: `\"x\"` is no ARRAY<STRING>"),
        (r#"{"id":2,"counts":{"k":"seven"}}"#, "line 3, column `counts{}`: `seven` is no INT"),
        (r#"{"id":2,"r":{"a":1,"b":[{},{"c":"x"}]}}"#, "line 3, column `r.b[].c`: `x` is no DATE: a date is written 2024-02-29"),
        (r#"{"id":2,"r":{}}"#, "line 3, column `r.a`: no value, and the column is NOT NULL"),
        (r#"{"id":2"#, "line 3: not JSON: EOF while parsing an object at character 7"),
        (r#"{"id":2} {"id":3}"#, "line 3: not JSON: trailing characters at character 10"),
        (r#"{"id":2,"words":"a","words":"b"}"#, "line 3: an object names `words` twice"),
        (r#"{"id":2,"r":{"a":1,"\u0061":2}}"#, "line 3: an object names `a` twice"),
        (r#"{"id":2,"counts":{"k":1,"l":1,"k":1}}"#, "line 3: an object names `k` twice"),
        (r#"{"id":2 "words":"x"}"#, "line 3: not JSON: expected `,` or `}` at character 9"),
        (r#"{"id":2,"words":1.2.3}"#, "line 3: not JSON: expected `,` or `}` at character 20"),
        (r#"{"id":02}"#, "line 3: not JSON: invalid number at character 8"),
        ("[1]", "line 3: `[1]` is no object"),
        ("7", "line 3: `7` is no object"),
    ] {
        assert_eq!(after(line), said, "{line}");
    }
}

#[test]
fn csv_columns_go_by_the_header_and_empty_fields_are_null() {
    let columns = "id BIGINT NOT NULL, words STRING, must STRING NOT NULL, price DOUBLE";
    let text = "price, must ,id,words\r\n1.5,a,1,\"x, \"\"y\"\"\nz\"\r\n,,2,\n\"\",b,3,\"\"\n";
    let (rows, lines, _) = read_text(".csv", text, columns, &FileOptions::default()).map_err(|error| error.chain()).unwrap();
    assert_eq!(
        rows,
        [r#"{"id":1,"words":"x, \"y\"\nz","must":"a","price":1.5}"#, r#"{"id":2,"must":""}"#, r#"{"id":3,"words":"","must":"b"}"#,]
    );
    assert_eq!(lines, [2, 4, 5]);
    let options = FileOptions { header: false, delimiter: b'|', null: "\\N".to_owned(), ..FileOptions::default() };
    let (rows, ..) = read_text(".csv", "1|\\N|x|2\n2||\"\\N\"|\\N\n", columns, &options).unwrap();
    assert_eq!(rows, [r#"{"id":1,"must":"x","price":2.0}"#, r#"{"id":2,"words":"","must":"\\N"}"#]);
}

#[test]
fn quoted_nothing_is_no_bytes_and_not_null() {
    let (rows, ..) = read_text(".csv", "id,b\n1,\"\"\n2,\n3,YQ==\n", "id INT, b BYTES", &FileOptions::default()).unwrap();
    assert_eq!(rows, [r#"{"id":1,"b":""}"#, r#"{"id":2}"#, r#"{"id":3,"b":"61"}"#]);
}

#[test]
fn a_bad_header_or_record_of_csv_is_named() {
    let columns = "id BIGINT NOT NULL, words STRING";
    for (text, said) in [
        ("id,wrods\n1,a\n", "the table has no column `wrods`; the nearest is `words`"),
        ("id,id\n1,2\n", "the header names column `id` twice"),
        ("words\na\n", "column `id` is missing, and it is NOT NULL"),
        ("", "the file is empty, it has no header line"),
        ("id,words\n1,a\n2\n", "line 3: 1 fields where there should be 2"),
        ("id,words\n1,a,b\n", "line 2: 3 fields where there should be 2"),
        ("id,words\nx,\"a\n\nb\"\n", "line 2, column `id`: `x` is no BIGINT"),
        ("id,words\n1,\"a\n\nb\"\ny,c\n", "line 5, column `id`: `y` is no BIGINT"),
        ("id,words\n1,\"a\n2,b\n", "line 2 starts a record with a quote that is not closed before the file ends"),
        (
            "id,words\n1,\"say \"hi\" loud\"\n",
            "line 2: field 2 has text behind a closing quote; a quote inside quotes has to be doubled",
        ),
        ("id,\"wor\"ds\n1,a\n", "the header has text behind a closing quote; a quote inside quotes has to be doubled"),
        ("id,words\r1,a\rx,b\r", "line 3, column `id`: `x` is no BIGINT"),
        ("id,words\n,c\n", "line 2, column `id`: no value, and the column is NOT NULL"),
    ] {
        assert_eq!(fault(".csv", text, columns), said, "{text}");
    }
    let error = read_text(".csv", "id,tags\n1,a\n", "id INT, tags ARRAY<INT>", &FileOptions::default()).unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{}", error.chain());
}

#[test]
fn bad_rows_are_left_out_up_to_a_bound_and_each_is_told() {
    let text = "{\"id\":1}\nnonsense\n{\"id\":\"x\"}\n{\"id\":4}\n{\"id\":\"y\"}\n{\"id\":6}\n";
    let options = FileOptions { bad_rows_max: 3, ..FileOptions::default() };
    let (rows, lines, bad) = read_text(".json", text, "id BIGINT", &options).unwrap();
    assert_eq!(rows, [r#"{"id":1}"#, r#"{"id":4}"#, r#"{"id":6}"#]);
    assert_eq!(lines, [1, 4, 6]);
    let ends: Vec<&str> = bad.iter().map(|told| told.split("` ").nth(1).unwrap()).collect();
    assert_eq!(ends, ["line 2: not JSON: expected ident at character 2", "line 3, column `id`: `x", "line 5, column `id`: `y"]);
    let options = FileOptions { bad_rows_max: 2, ..FileOptions::default() };
    let error = read_text(".json", text, "id BIGINT", &options).unwrap_err();
    assert!(error.chain().ends_with("line 5, column `id`: `y` is no BIGINT"), "{}", error.chain());
    let (rows, ..) =
        read_text(".csv", "id,x\n1,2\nz,2\n3\n4,2\n", "id INT, x INT", &FileOptions { bad_rows_max: 2, ..FileOptions::default() })
            .unwrap();
    assert_eq!(rows, [r#"{"id":1,"x":2}"#, r#"{"id":4,"x":2}"#]);
}

#[test]
fn unknown_columns_can_be_left_out_and_a_load_can_start_further_on() {
    let options = FileOptions { ignore_unknown: true, from_line: 3, ..FileOptions::default() };
    let first = file(".json", b"{\"id\":1}\n{\"id\":2}\n{\"id\":3,\"more\":{\"a\":[1]}}\n");
    let second = file(".csv", b"more,id\nx,4\n");
    let (rows, lines, _) = read_all(&[&first, &second], "id BIGINT", &options).unwrap();
    assert_eq!(rows, [r#"{"id":3}"#, r#"{"id":4}"#]);
    assert_eq!(lines, [3, 2]);
}

fn parquet_file(columns: Vec<(&str, ArrayRef)>) -> NamedTempFile {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let file = file(".parquet", b"");
    let mut writer = ArrowWriter::try_new(file.reopen().unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    file
}

#[test]
fn parquet_columns_go_by_name_and_rows_are_numbered() {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100_000));
    let words: ArrayRef = Arc::new((0..100_000).map(|id| (id % 3 > 0).then(|| id.to_string())).collect::<StringArray>());
    let found = parquet_file(vec![("words", words), ("id", ids)]);
    let columns = "id BIGINT NOT NULL, words STRING, more INT";
    let options = FileOptions { from_line: 90_000, ..FileOptions::default() };
    let (rows, lines, _) = read_all(&[&found], columns, &options).unwrap();
    assert_eq!((rows.len(), rows[0].as_str(), rows[1].as_str()), (10_001, r#"{"id":89999,"words":"89999"}"#, r#"{"id":90000}"#));
    assert_eq!((lines[0], *lines.last().unwrap()), (90_000, 100_000));

    let error = read_all(&[&found], "id TINYINT, words STRING", &FileOptions::default()).unwrap_err();
    assert!(error.chain().ends_with("row 129, column `id`: `128` is no TINYINT"), "{}", error.chain());
    let options = FileOptions { bad_rows_max: 100_000, ..FileOptions::default() };
    let (rows, _, bad) = read_all(&[&found], "id TINYINT, words STRING", &options).unwrap();
    assert_eq!((rows.len(), bad.len()), (128, 99_872));
    for (columns, said) in [
        ("id BIGINT, wrods STRING", "the table has no column `words`; the nearest is `wrods`"),
        ("id DATE, words STRING", "column `id` is Int64, in the table DATE"),
        ("id BIGINT, words STRING, must INT NOT NULL", "column `must` is missing, and it is NOT NULL"),
    ] {
        let error = read_all(&[&found], columns, &FileOptions::default()).unwrap_err();
        assert_eq!((error.kind(), error.chain().ends_with(said)), (Kind::Invalid, true), "{}", error.chain());
    }
    let id: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let twice = parquet_file(vec![("id", Arc::clone(&id)), ("id", id)]);
    let error = read_all(&[&twice], "id BIGINT", &FileOptions::default()).unwrap_err();
    assert!(error.chain().ends_with("the file has column `id` twice"), "{}", error.chain());
    let broken = file(".parquet", b"PAR1 this is none PAR1");
    assert_eq!(read_all(&[&broken], columns, &FileOptions::default()).unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn nested_columns_of_parquet_are_taken_over() {
    let json = "{\"id\":1,\"tags\":[\"x\"],\"counts\":{\"k\":7},\"r\":{\"a\":5,\"b\":[{\"c\":\"2024-02-29\"}]}}\n{\"id\":2}\n";
    let source = file(".json", json.as_bytes());
    let columns = Arc::new(Columns::new(&schema(COLUMNS), &FileOptions::default()).unwrap());
    let mut files = Files::new(vec![Input::File(source.path().to_owned())], Arc::clone(&columns), FileOptions::default());
    let batch = files.next().unwrap().unwrap().read(&columns).unwrap().rows;
    assert_eq!(batch.column(0).as_primitive::<Int64Type>().values(), &[1, 2]);
    let fields = batch.schema();
    let found =
        parquet_file(fields.fields().iter().map(|field| field.name().as_str()).zip(batch.columns().iter().cloned()).collect());
    let (rows, ..) = read_all(&[&found], COLUMNS, &FileOptions::default()).map_err(|error| error.chain()).unwrap();
    assert_eq!(rows, [r#"{"id":1,"tags":["x"],"counts":{"k":7},"r":{"a":5,"b":[{"c":"2024-02-29"}]}}"#, r#"{"id":2}"#]);
}

#[test]
fn names_tell_formats() {
    for (name, format) in [
        ("a.JSON", Some(Format::Json)),
        ("a.ndjson", Some(Format::Json)),
        ("a.b.csv", Some(Format::Csv)),
        ("a.parquet", Some(Format::Parquet)),
        ("a", None),
    ] {
        assert_eq!(Input::File(name.into()).format().ok(), format, "{name}");
    }
    assert_eq!(Input::File("a.csv.gz".into()).format().unwrap_err().kind(), Kind::Unsupported);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn foreign_bytes_never_panic(bytes in proptest::collection::vec(prop_oneof![Just(b'"'), Just(b','), Just(b'{'), Just(b'}'), Just(b'\n'), any::<u8>()], 0..300)) {
        for suffix in [".json", ".csv", ".parquet"] {
            for bad_rows_max in [0, 1000] {
                let options = FileOptions { bad_rows_max, header: false, ..FileOptions::default() };
                drop(read_all(&[&file(suffix, &bytes)], "id BIGINT, words STRING", &options));
            }
        }
    }
}

const KEYED: &str = "id BIGINT, words STRING NOT NULL, PRIMARY KEY (id) NOT ENFORCED";

/// Id, delete or not, and line of each row.
type Told = Vec<(i64, bool, u64)>;

/// What is told, and images that were left out.
fn changes_of(file: &NamedTempFile, columns: &str, changes: ChangeColumn) -> Result<(Told, u64)> {
    let options = FileOptions { changes: Some(changes), ..FileOptions::default() };
    let columns = Arc::new(Columns::new(&schema(columns), &options)?);
    let mut files = Files::new(vec![Input::File(file.path().to_owned())], Arc::clone(&columns), options);
    let (mut rows, mut images) = (vec![], 0);
    while let Some(chunk) = files.next()? {
        let read = chunk.read(&columns)?;
        assert_eq!(read.rows.num_columns(), columns.arrow.fields().len());
        let ids = read.rows.column(0).as_primitive::<Int64Type>().values().iter().copied();
        assert_eq!((read.deletes.len(), read.lines.len()), (read.rows.num_rows(), read.rows.num_rows()));
        rows.extend(ids.zip(read.deletes).zip(read.lines).map(|((id, delete), line)| (id, delete, line)));
        images += read.ignored;
    }
    Ok((rows, images))
}

#[test]
fn a_delete_column_tells_deletes_which_need_the_key_only() {
    let delete = || ChangeColumn::Delete("gone".into());
    let json =
        "{\"id\":1,\"words\":\"a\"}\n{\"id\":1,\"gone\":true}\n{\"id\":2,\"words\":\"b\",\"gone\":0}\n{\"id\":3,\"gone\":\"Yes\"}";
    let wanted = vec![(1, false, 1), (1, true, 2), (2, false, 3), (3, true, 4)];
    assert_eq!(changes_of(&file(".json", json.as_bytes()), KEYED, delete()).unwrap(), (wanted.clone(), 0));
    let csv = "id,words,gone\n1,a,\n1,,t\n2,b,false\n3,,1\n";
    let csv_wanted: Vec<_> = wanted.iter().map(|(id, delete, line)| (*id, *delete, line + 1)).collect();
    assert_eq!(changes_of(&file(".csv", csv.as_bytes()), KEYED, delete()).unwrap(), (csv_wanted, 0));
    let parquet = tempfile::Builder::new().suffix(".parquet").tempfile().unwrap();
    let columns: [(&str, ArrayRef); 3] = [
        ("gone", Arc::new(BooleanArray::from(vec![None, Some(true), Some(false), Some(true)]))),
        ("id", Arc::new(Int64Array::from(vec![1, 1, 2, 3]))),
        ("words", Arc::new(StringArray::from(vec![Some("a"), None, Some("b"), None]))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ArrowWriter::try_new(parquet.reopen().unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    assert_eq!(changes_of(&parquet, KEYED, delete()).unwrap(), (wanted, 0));
    // A column of the table may tell it too, and is loaded all the same.
    let own = "id BIGINT, gone BOOLEAN, PRIMARY KEY (id) NOT ENFORCED";
    let found = changes_of(&file(".csv", b"id,gone\n7,true\n8,\n"), own, delete()).unwrap();
    assert_eq!(found, (vec![(7, true, 2), (8, false, 3)], 0));
}

#[test]
fn an_op_column_speaks_as_debezium_flink_and_people_do() {
    let op = || ChangeColumn::Op("op".into());
    let words = ["c", "r", "u", "d", "+I", "-U", "+U", "-D", "insert", "UPDATE", "Delete", "update_before"];
    let csv: String = words.iter().enumerate().map(|(id, word)| format!("{id},w,{word}\n")).collect();
    let (rows, images) = changes_of(&file(".csv", format!("id,words,op\n{csv}").as_bytes()), KEYED, op()).unwrap();
    assert_eq!(images, 2);
    let deletes: Vec<i64> = rows.iter().filter(|(_, delete, _)| *delete).map(|(id, ..)| *id).collect();
    let lines: Vec<u64> = rows.iter().map(|(_, _, line)| *line).collect();
    assert_eq!((deletes, lines), (vec![3, 7, 10], vec![2, 3, 4, 5, 6, 8, 9, 10, 11, 12]));
}

#[test]
fn what_tells_no_change_is_told_with_its_line() {
    let told = |text: &str, columns: &str, changes: ChangeColumn| {
        let error = changes_of(&file(".csv", text.as_bytes()), columns, changes).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{}", error.chain());
        error.chain()
    };
    let (op, gone) = (|| ChangeColumn::Op("op".into()), || ChangeColumn::Delete("gone".into()));
    for (text, changes, wanted) in [
        ("id,words,op\n1,a,c\n2,a,t\n", op(), "line 3, column `op`: `t` is no operation"),
        ("id,words,op\n1,a,\n", op(), "line 2, column `op`: no operation"),
        ("id,words,gone\n1,a,maybe\n", gone(), "line 2, column `gone`: `maybe` is neither true nor false"),
        ("id,words,gone\n1,,true\n1,,false\n", gone(), "line 3, column `words`: no value"),
        ("id,words,gone\n,a,true\n", gone(), "line 2, column `id`: no value"),
        ("id,words\n1,a\n", op(), "the file has no column `op`"),
        ("id,words,kind\n1,a,c\n", op(), "the table has no column `kind`, and what rows do is told by column `op` (`--op-column`"),
        ("words,gone\na,true\n", gone(), "column `id` is missing, and it is of the primary key"),
    ] {
        let found = told(text, KEYED, changes);
        assert!(found.contains(wanted), "{found}");
    }
    let price = "id BIGINT, op DECIMAL(5, 2), PRIMARY KEY (id) NOT ENFORCED";
    assert!(told("id,op\n1,1\n", price, op()).contains("column `op` of the table is DECIMAL(5, 2)"));
}
