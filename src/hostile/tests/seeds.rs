//! Where the seeds come from: golden bytes of `fixtures/`, cut to what a target reads. `cargo test --lib seeds_are_made_from_fixtures`
//! holds them against the files; with `-- --ignored` next to it they are written again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::parquet::arrow::ArrowWriter;
use arrow_array::{Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType as ArrowType, Field as ArrowField, Schema as ArrowSchema};
use serde_json::Value;
use uuid::Uuid;

use crate::fluss::api::ApiKey;
use crate::fluss::record::{BatchHeader, batches};
use crate::hostile::{TARGETS, wire};
use crate::paimon::manifest;
use crate::paimon::options::ManifestCompression;

type Seeds = BTreeMap<&'static str, BTreeMap<String, Vec<u8>>>;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn read(path: &str) -> Vec<u8> {
    fs::read(fixtures().join(path)).unwrap()
}

fn json(path: &str) -> Value {
    serde_json::from_slice(&read(path)).unwrap()
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn files(folder: &str) -> Vec<(String, Vec<u8>)> {
    let mut found: Vec<(String, Vec<u8>)> = fs::read_dir(fixtures().join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap()))
        .collect();
    found.sort();
    found
}

/// The number that chooses the schema of `columns`, as [`wire::schemas`] has it.
fn schema_number(columns: &Value) -> usize {
    let names: Vec<&str> = columns.as_array().unwrap().iter().map(|column| column["name"].as_str().unwrap()).collect();
    let same = |schema: &Arc<crate::model::Schema>| schema.fields.iter().map(|field| field.name.as_str()).eq(names.iter().copied());
    wire::schemas().iter().position(same).unwrap()
}

fn all() -> Seeds {
    let mut seeds = Seeds::new();
    wire_seeds(&mut seeds);
    lake_seeds(&mut seeds);
    file_seeds(&mut seeds);
    seeds
}

fn wire_seeds(seeds: &mut Seeds) {
    let mut add = |target: &'static str, name: String, bytes: Vec<u8>| drop(seeds.entry(target).or_default().insert(name, bytes));
    let choice = |number: usize| u8::try_from(number).unwrap();
    let frames = json("vectors/fluss-server-frames.json");
    let mut messages = BTreeMap::new();
    for entry in frames["entries"].as_array().unwrap() {
        for (way, kind) in [(0_u8, "request"), (1, "response")] {
            let frame = unhex(entry[kind].as_str().unwrap_or_default());
            let number: i16 = entry["api"].as_str().unwrap().split(['(', ')']).nth(1).unwrap().parse().unwrap();
            let Some(key) = ApiKey::ALL.iter().position(|key| key.number() == number) else { continue };
            let header = if way == 0 { 12 } else { 9 };
            if frame.len() > 4000 || frame.len() < header || (way == 1 && frame[4] != 0) {
                continue;
            }
            let name = format!("seed-{}-{kind}", ApiKey::ALL[key].name());
            let message = [&[choice(key), way], &frame[header..]].concat();
            messages.entry(name).or_insert((way, frame, message));
        }
    }
    let (mut requests, mut answers) = (vec![0], vec![1]);
    for (name, (way, frame, message)) in messages {
        if way == 0 {
            requests.extend(frame)
        } else {
            answers.extend(frame)
        }
        add("message", name, message);
    }
    requests.truncate(3000);
    answers.truncate(3000);
    add("frame", "seed-requests".into(), requests);
    add("frame", "seed-answers".into(), answers);

    let golden = json("vectors/fluss-records.json");
    for file in golden["files"].as_array().unwrap() {
        let name = file["file"].as_str().unwrap();
        let (number, bytes) = (schema_number(&file["schema"]), read(&format!("vectors/{name}")));
        let format = match (name, file["format"].as_str()) {
            (_, Some("INDEXED")) => 1,
            (name, Some("COMPACTED")) if name.starts_with("log-") => 2,
            _ => 0,
        };
        if name.starts_with("log-") {
            if name.contains("many-none") {
                continue;
            }
            add("log_batch", format!("seed-{name}"), [&[choice(format + 3 * number)], &bytes[..]].concat());
        } else {
            let target = if name.starts_with("kv") { "kv_batch" } else { "values" };
            add(target, format!("seed-{name}"), [&[choice(2 * number)], &bytes[..]].concat());
        }
    }
    let nested = wire::schemas().len() - 1;
    for (format, name) in
        ["log-arrow-v0-nested-deep-zstd.bin", "log-indexed-v0-nested.bin", "log-compacted-v0-nested.bin"].iter().enumerate()
    {
        let bytes = read(&format!("vectors/{name}"));
        add("log_batch", format!("seed-{name}"), [&[choice(format + 3 * nested)], &bytes[..]].concat());
    }
    // Nested rows without the batch around them.
    for (format, name) in [(1_usize, "log-indexed-v0-nested.bin"), (0, "log-compacted-v0-nested.bin")] {
        let batch = batches(read(&format!("vectors/{name}")).into()).next().unwrap().unwrap();
        let payload = batch.payload();
        let length = usize::try_from(i32::from_le_bytes(payload[..4].try_into().unwrap())).unwrap();
        let row = &payload[5..4 + length];
        let header = BatchHeader::parse(&batch.bytes).unwrap();
        let mut builder = crate::fluss::record::KvBatchBuilder::new(header.schema_id).unwrap();
        builder.push(b"key", Some(row)).unwrap();
        add("kv_batch", format!("seed-nested-{format}"), [&[choice(format + 2 * nested)], &builder.finish(7, 1)[..]].concat());
        let mut values = crate::fluss::record::ValueBatchBuilder::default();
        let value = crate::fluss::record::Value { schema_id: header.schema_id, row }.to_bytes().unwrap();
        values.push(&value).unwrap();
        add("values", format!("seed-nested-{format}"), [&[choice(format + 2 * nested)], &values.finish()[..]].concat());
    }
    let segment = |id: &str, start, end, size| crate::fluss::proto::PbRemoteLogSegment {
        remote_log_segment_id: id.into(),
        remote_log_start_offset: start,
        remote_log_end_offset: end,
        segment_size_in_bytes: size,
        max_timestamp: None,
    };
    let info = crate::fluss::proto::PbRemoteLogFetchInfo {
        remote_log_tablet_dir: "file:/remote/log/demo/t-1/0".into(),
        partition_name: None,
        remote_log_segments: vec![segment("0c5b-1", 0, 100, 4096), segment("0c5b-2", 100, 180, 9000)],
        first_start_pos: Some(17),
    };
    add("remote_log", "seed-two-segments".into(), prost_bytes(&info));
    let texts = json("vectors/fluss-text.json");
    for (number, text) in texts["table_json"].as_array().unwrap().iter().enumerate() {
        add("table_json", format!("seed-{number}"), text.as_str().unwrap().as_bytes().to_vec());
    }
    let schema = &wire::schemas()[0];
    for case in texts["partition_values"].as_array().unwrap().iter().step_by(5) {
        let text = case["text"].as_str().unwrap();
        let fits = |field: &&crate::model::Field| crate::fluss::partition::parse_value(text, &field.data_type).is_ok();
        let Some(at) = schema.fields.iter().position(|field| fits(&field)) else { continue };
        add("partition", format!("seed-{}", case["type"].as_str().unwrap()), [&[choice(at)], text.as_bytes()].concat());
    }
}

fn prost_bytes(message: &impl crate::fluss::proto::Message) -> Vec<u8> {
    message.encode_to_vec()
}

fn lake_seeds(seeds: &mut Seeds) {
    let mut add = |target: &'static str, name: String, bytes: Vec<u8>| drop(seeds.entry(target).or_default().insert(name, bytes));
    for table in ["append_partitioned", "pk_changelog_input", "append_properties"] {
        for (name, bytes) in files(&format!("paimon/{table}/snapshot")) {
            if name == "snapshot-2" {
                add("snapshot", format!("seed-{table}"), bytes);
            }
        }
    }
    for (name, bytes) in files("fluss-lake/log_part/snapshot") {
        if name.starts_with("snapshot-") {
            add("snapshot", format!("seed-flink-{name}"), bytes);
        }
    }
    for table in ["all_types", "nested", "pk_key_types", "append_partitioned"] {
        add("schema", format!("seed-{table}"), read(&format!("paimon/{table}/schema/schema-0")));
    }
    for table in ["pk_partitioned", "append_partitioned", "pk_deletion_vectors"] {
        let mut manifests = 0;
        for (name, bytes) in files(&format!("paimon/{table}/manifest")) {
            let kind = if name.starts_with("manifest-list") {
                "list"
            } else if name.starts_with("index") {
                "index"
            } else {
                "entries"
            };
            if kind == "index" || manifests > 3 {
                continue;
            }
            manifests += 1;
            // Uncompressed too, so that changes reach the records.
            let (none, sync) = (ManifestCompression::None, Uuid::nil());
            let plain = match kind {
                "list" => manifest::encode_list(&manifest::decode_list(&bytes).unwrap(), none, sync).unwrap(),
                _ => {
                    let entries = manifest::decode_entries(&bytes).unwrap();
                    for entry in &entries {
                        let rows = [(2 + 4, &entry.partition), (1 + 8, &entry.file.min_key)];
                        for (choice, row) in rows {
                            if table == "append_partitioned" && choice == 6 {
                                add("binary_row", "seed-partition".into(), [&[choice], &row.0[..]].concat());
                            }
                        }
                    }
                    manifest::encode_rolling(&entries, u64::MAX, none, Uuid::nil).unwrap()[0].0.clone()
                }
            };
            add("manifest", format!("seed-{table}-{manifests}-{kind}"), bytes);
            add("manifest", format!("seed-{table}-{manifests}-{kind}-plain"), plain.to_vec());
        }
    }
    for (name, bytes) in files("paimon/pk_key_types/manifest")
        .into_iter()
        .filter(|(name, _)| name.starts_with("manifest-") && !name.contains("list"))
    {
        let entries = manifest::decode_entries(&bytes).unwrap();
        add("binary_row", "seed-key".into(), [&[1 + 8], &entries[0].file.min_key.0[..]].concat());
        drop(name);
    }
    for table in ["log", "log_part", "pk"] {
        add("offsets", format!("seed-{table}"), read(&format!("fluss-lake/{table}.offsets")));
    }
    for (number, table) in [(0_u8, "all_types"), (1, "pk_key_types"), (3, "nested")] {
        let parts = ["bucket-0", "bucket-1", "p=7/bucket-0"].map(|part| format!("paimon/{table}/{part}"));
        let buckets = parts.into_iter().filter(|folder| fixtures().join(folder).is_dir());
        let stored = buckets.flat_map(|folder| files(&folder)).filter(|(name, _)| name.ends_with(".parquet"));
        let smallest = stored.min_by_key(|(_, bytes)| bytes.len());
        let (_, bytes) = smallest.unwrap();
        add("data_file", format!("seed-{table}"), [&[number], &bytes[..]].concat());
    }
}

fn file_seeds(seeds: &mut Seeds) {
    let mut add = |target: &'static str, name: &str, bytes: Vec<u8>| {
        drop(seeds.entry(target).or_default().insert(format!("seed-{name}"), bytes))
    };
    let config = |name: &str| fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name)).unwrap();
    let plain: Vec<u8> = String::from_utf8(config("tiering.toml"))
        .unwrap()
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect::<Vec<_>>()
        .join("\n")
        .into_bytes();
    add("config", "tiering", plain);
    add("config", "local", config("local.toml"));
    let json = "\u{10}{\"id\":1,\"words\":\"a\\u00e9\",\"price\":1.5,\"big\":\"12.5\",\"tiny\":7,\"f\":1e3,\"d\":-0.0,\"b\":true,\"day\":\"2024-02-29\",\"t\":\"12:00:01.5\",\"ts\":\"2024-02-29 12:00:00\",\"tz\":\"2024-02-29T12:00:00Z\",\"raw\":\"AQID\",\"bin\":\"AQI=\"}\n{\"id\":\"2\"}\n";
    add("load_json", "scalars", json.as_bytes().to_vec());
    let json = "\u{1}{\"id\":1,\"tags\":[\"x\",null],\"counts\":{\"k\":7},\"r\":{\"a\":\"5\",\"b\":[{\"c\":\"2024-02-29\"},{}]},\"deep\":[[{\"1\":{\"x\":2}}]]}\n{\"id\":2,\"r\":null}\n";
    add("load_json", "nested", json.as_bytes().to_vec());
    let json = "\u{18}{\"id\":1,\"op\":\"c\",\"words\":\"x\"}\n{\"id\":1,\"op\":\"-U\"}\n{\"id\":2,\"op\":\"d\",\"more\":[1,{}]}\n";
    add("load_json", "changes", json.as_bytes().to_vec());
    let csv = "\u{0}id,words,price,tiny,b,day,t,ts,tz,raw,bin,c\n1,\"a \"\"b\"\"\n c\",1.50,7,true,2024-02-29,12:00:00,2024-02-29 12:00:00.123456,2024-02-29T12:00:00Z,AQID,AQI=,abc\n2,,,,,,,,,,,\n";
    add("load_csv", "scalars", csv.as_bytes().to_vec());
    let rows = RecordBatch::try_new(
        Arc::new(ArrowSchema::new(vec![
            ArrowField::new("id", ArrowType::Int64, false),
            ArrowField::new("words", ArrowType::Utf8, true),
        ])),
        vec![Arc::new(Int64Array::from(vec![1, 2, 3])), Arc::new(StringArray::from(vec![Some("a"), None, Some("b")]))],
    )
    .unwrap();
    let mut writer = ArrowWriter::try_new(vec![0_u8], rows.schema(), None).unwrap();
    writer.write(&rows).unwrap();
    add("load_parquet", "two-columns", writer.into_inner().unwrap());
    add("ddl", "whole", "CREATE TABLE IF NOT EXISTS demo.`or-ders` (id BIGINT NOT NULL COMMENT 'the ''id''', price decimal(10, 2) NULL, /* x */ seen TIMESTAMP(3) WITH LOCAL TIME ZONE, \"day\" STRING NOT NULL, tags ARRAY<STRING NOT NULL>, m MAP<STRING, INT> NOT NULL, r ROW<a INT COMMENT 'x', b ARRAY<ROW<c DATE>>>) COMMENT 'all' PARTITIONED BY (`day`) WITH ('bucket.num' = '4', 'bucket.key' = 'id', 'table.datalake.enabled' = 'true');".into());
    add("ddl", "keyed", "create table t (a int primary key not enforced, b string) distributed by (a) into 3 buckets".into());
    add("s3_answer", "web-identity", "<AssumeRoleWithWebIdentityResponse><Credentials><AccessKeyId>A&amp;B</AccessKeyId><SecretAccessKey>s&#x2F;</SecretAccessKey><SessionToken>t</SessionToken><Expiration>2026-11-30T19:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResponse>".into());
    add(
        "s3_answer",
        "json",
        "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"s\",\"Token\":\"t\",\"Expiration\":\"2026-11-30T19:00:00Z\"}".into(),
    );
    let uploads = "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker><NextUploadIdMarker>i</NextUploadIdMarker><Upload><Key>a&lt;b</Key><UploadId>1</UploadId><Initiated>2026-11-30T19:00:00Z</Initiated></Upload></ListMultipartUploadsResult>";
    let with =
        |text: &str| format!("{{\"access_key_id\":\"A\",\"secret_access_key\":\"{}\"}}", text.replace('"', "\\\"")).into_bytes();
    add("s3_answer", "uploads", with(uploads));
    add("s3_answer", "profile", with("[default]\\naws_access_key_id = A\\naws_secret_access_key = s\\n"));
    add("node_record", "all-kinds", r#"{"version":1,"table_id":16,"comment":"c","partition_key":["d"],"bucket_key":["id"],"bucket_count":3,"bucket_count_epoch":1,"properties":{"table.replication.factor":"1"},"custom_properties":{},"created_time":5,"modified_time":6,"partition_id":7,"lake_snapshots":[{"snapshot_id":1,"tiered_offsets":"file:/a","readable_offsets":"file:/a"}]}"#.into());
    let batch = read("vectors/log-arrow-v0-changes-none.bin");
    add("node_segment", "one-batch", [&[0, 0], &batch[..]].concat());
    let seal = r#"{"start_offset":0,"end_offset":5,"bytes":477,"rows":5,"max_timestamp_ms":1767225600123,"marks":[{"offset":0,"position":0,"timestamp_ms":1767225600123}]}"#;
    let writers = r#"{"77":[{"sequence":3,"base_offset":0,"end_offset":5,"timestamp_ms":1767225600123}]}"#;
    let checked = |text: &str| format!("{:08x}\n{text}", crc32c::crc32c(text.as_bytes()));
    let (seal, writers) = (checked(seal), checked(writers));
    let lengths = [u8::try_from(seal.len()).unwrap(), u8::try_from(writers.len()).unwrap()];
    add("node_segment", "sealed", [&lengths[..], seal.as_bytes(), writers.as_bytes(), &batch].concat());
}

#[test]
fn seeds_are_made_from_fixtures() {
    let seeds = all();
    for target in TARGETS {
        let made = seeds.get(target.name).unwrap_or_else(|| panic!("`{}` has no seed", target.name));
        let stored: BTreeMap<String, Vec<u8>> = super::inputs(target, "seed-").into_iter().collect();
        // The shipped files change; what was taken from them once serves.
        assert!(
            *made == stored || (target.name == "config" && !stored.is_empty()),
            "`{}`: cargo test --lib seeds_are_written -- --ignored",
            target.name
        );
    }
    assert_eq!(seeds.len(), TARGETS.len());
}

#[test]
#[ignore = "writes fixtures/hostile/*/seed-*"]
fn seeds_are_written() {
    for (target, made) in all() {
        let folder = super::folder(target);
        fs::create_dir_all(&folder).unwrap();
        for entry in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.file_name().unwrap().to_str().unwrap().starts_with("seed-") {
                fs::remove_file(entry).unwrap();
            }
        }
        for (name, bytes) in made {
            fs::write(folder.join(name), bytes).unwrap();
        }
    }
}
