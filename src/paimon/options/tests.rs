//! Options that are honoured, and those that are refused.

use super::*;
use crate::error::Kind;
use crate::model::{DataType, TypeKind};

fn schema(options: &[(&str, &str)]) -> TableSchema {
    let field = |id, name: &str| Field { id, name: name.into(), data_type: DataType::nullable(TypeKind::String), comment: None };
    TableSchema {
        id: 0,
        fields: vec![field(0, "k"), field(1, "v"), field(2, "w")],
        highest_field_id: 2,
        partition_keys: vec![],
        primary_keys: vec![],
        options: options.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
        comment: None,
        time_ms: 0,
    }
}

#[test]
fn defaults_are_paimons() {
    let options = TableOptions::parse(&schema(&[("fluss.whatever", "x"), ("snapshot.num-retained.min", "3")])).unwrap();
    assert_eq!(options.bucket, -1);
    assert_eq!(options.compression, Compression::Zstd(1));
    assert_eq!((options.target_file_bytes, options.target_file_rows), (256 << 20, u64::MAX));
    assert_eq!((options.data_file_prefix.as_str(), options.data_file_extension.as_str()), ("data-", "parquet"));
    assert_eq!(options.manifest_compression, ManifestCompression::Zstd(1));
    assert_eq!((options.manifest_target_bytes, options.manifest_merge_min), (8 << 20, 30));
    assert_eq!(options.manifest_full_bytes, 16 << 20);
    assert_eq!(options.stats_modes(&schema(&[]).fields), [StatsMode::Truncate(16); 3]);
    assert!(options.stats_dense && options.consumer_expiration.is_none());
}

#[test]
fn values_are_honoured() {
    let options = TableOptions::parse(&schema(&[
        ("bucket", "4"),
        ("bucket-key", "k,v"),
        ("file.compression", "LZ4"),
        ("file.suffix.include.compression", "true"),
        ("target-file-size", "64 mb"),
        ("metadata.stats-mode", "full"),
        ("fields.w.stats-mode", "counts"),
        ("metadata.stats-keep-first-n-columns", "1"),
        ("manifest.compression", "none"),
        ("commit.max-retry-wait", "1 min"),
        ("consumer.expiration-time", "2 h"),
    ]))
    .unwrap();
    assert_eq!(options.bucket_key, ["k", "v"]);
    assert_eq!(options.data_file_extension, "lz4.parquet");
    assert_eq!(options.target_file_bytes, 64 << 20);
    assert_eq!(options.stats_modes(&schema(&[]).fields), [StatsMode::Full, StatsMode::None, StatsMode::Counts]);
    assert_eq!(options.manifest_compression, ManifestCompression::None);
    assert_eq!(options.commit_wait_max, Duration::from_secs(60));
    assert_eq!(options.consumer_expiration, Some(Duration::from_secs(7200)));
}

#[test]
fn what_we_cannot_follow_is_refused_by_name() {
    for (key, value) in [
        ("file.format", "orc"),
        ("bucket-function.type", "mod"),
        ("row-tracking.enabled", "true"),
        ("data-evolution.enabled", "true"),
        ("deletion-vectors.enabled", "true"),
        ("sequence.snapshot-ordering", "true"),
        ("write.sequence-number-init-mode", "snapshot"),
        ("consumer.changelog-only", "true"),
        ("consumer.expiration-time", "59 min"),
        ("data-file.path-directory", "data"),
        ("data-file.external-paths", "s3://x"),
        ("file.compression", "gzip"),
        ("manifest.compression", "snappy"),
        ("manifest.format", "orc"),
        ("type", "format-table"),
        ("branch", "b1"),
        ("metadata.iceberg.storage", "table-location"),
        ("commit.callbacks", "a.b.C"),
        ("rowkind.field", "k"),
        ("file.format.per.level", "0:avro"),
    ] {
        refuses(&schema(&[(key, value)]), key, value);
    }
    for (key, value) in [
        ("bucket", "0"),
        ("bucket", "many"),
        ("bucket", "4"),
        ("bucket-key", "k"),
        ("target-file-size", "1 parsec"),
        ("metadata.stats-mode", "most"),
    ] {
        assert_eq!(TableOptions::parse(&schema(&[(key, value)])).unwrap_err().kind(), Kind::Invalid, "{key}");
    }
    let spaced = schema(&[("bucket", "4"), ("bucket-key", "k, v")]);
    assert_eq!(TableOptions::parse(&spaced).unwrap_err().kind(), Kind::Invalid);
}

fn refuses(schema: &TableSchema, key: &str, value: &str) {
    let error = TableOptions::parse(schema).unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{key}");
    let text = error.chain();
    assert!(text.contains(&format!("`{key}` = `{value}`: ")), "{text}");
    let hint = error.hint().unwrap_or_default();
    assert!(hint.contains("tables.exclude") && hint.contains(key), "{key}: {hint}");
}

fn keyed(options: &[(&str, &str)]) -> TableSchema {
    let mut keyed = schema(options);
    keyed.primary_keys.push("k".into());
    keyed.options.entry("bucket".into()).or_insert_with(|| "1".into());
    keyed
}

#[test]
fn what_changes_the_meaning_of_a_primary_key_table_is_refused_by_name_and_on_others_ignored() {
    for (key, value) in [
        ("merge-engine", "aggregation"),
        ("merge-engine", "partial-update"),
        ("merge-engine", "first-row"),
        ("changelog-file.format", "avro"),
        ("sequence.field.sort-order", "descending"),
        ("pk-clustering-override", "true"),
        ("chain-table.enabled", "true"),
        ("primary-key.nullable", "true"),
    ] {
        refuses(&keyed(&[(key, value)]), key, value);
        TableOptions::parse(&schema(&[(key, value)])).unwrap();
    }
    for (key, value) in
        [("bucket", "-1"), ("bucket", "-2"), ("changelog-producer", "tea-leaves"), ("deletion-vectors.enabled", "true")]
    {
        refuses(&keyed(&[(key, value)]), key, value);
    }
    let mut across = keyed(&[]);
    across.partition_keys.push("v".into());
    let error = TableOptions::parse(&across).unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("partition column `v`") && error.hint().is_some(), "{error}");
    let unknown = keyed(&[("sequence.field", "v,nothing")]);
    assert_eq!(TableOptions::parse(&unknown).unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn what_a_coordinator_sets_on_a_primary_key_table_is_accepted_and_what_readers_and_compactors_heed_is_theirs() {
    let options = TableOptions::parse(&keyed(&[
        ("bucket-key", "k"),
        ("changelog-producer", "input"),
        ("partition.legacy-name", "false"),
        ("lakestream.enabled", "true"),
        ("fluss.table.datalake.enabled", "true"),
        ("record-level.expire-time", "1 d"),
        ("record-level.time-field", "v"),
        ("file-index.bloom-filter.columns", "v"),
        ("write-only", "true"),
        ("num-sorted-run.stop-trigger", "7"),
    ]))
    .unwrap();
    assert!(options.changelog_input && !options.thin && !options.ignore_delete && options.sequence_fields.is_empty());
    assert_eq!(options.target_file_bytes, 128 << 20);
    for producer in ["none", "lookup", "full-compaction"] {
        assert!(!TableOptions::parse(&keyed(&[("changelog-producer", producer)])).unwrap().changelog_input, "{producer}");
    }
}

#[test]
fn what_of_a_primary_key_table_is_honoured() {
    let options = TableOptions::parse(&keyed(&[
        ("sequence.field", "v, w"),
        ("deduplicate.ignore-delete", "true"),
        ("ignore-update-before", "true"),
        ("file.compression.per.level", "0:lz4,5:zstd"),
        ("metadata.stats-mode.per.level", "0:none"),
        ("changelog-file.compression", "snappy"),
        ("changelog-file.stats-mode", "full"),
        ("file.suffix.include.compression", "true"),
    ]))
    .unwrap();
    assert_eq!(options.sequence_fields, ["v", "w"]);
    assert!(options.ignore_delete && options.ignore_update_before);
    assert_eq!((options.compression, options.changelog_compression), (Compression::Lz4, Compression::Snappy));
    assert_eq!(
        (options.data_file_extension.as_str(), options.changelog_file_extension.as_str()),
        ("lz4.parquet", "snappy.parquet")
    );
    let fields = schema(&[]).fields;
    assert_eq!(options.stats_modes(&fields), [StatsMode::None; 3]);
    assert_eq!(options.changelog_stats_modes(&fields), [StatsMode::Full; 3]);
    let mut none_keyed = keyed(&[("file.compression.per.level", "0:lz4"), ("ignore-delete", "true"), ("sequence.field", "v")]);
    none_keyed.primary_keys.clear();
    none_keyed.options.remove("bucket");
    let append = TableOptions::parse(&none_keyed).unwrap();
    assert!(append.compression == Compression::Zstd(1) && !append.ignore_delete && append.sequence_fields.is_empty());
}

#[test]
fn sizes_and_durations_are_read() {
    assert_eq!(parse_size("128 mb"), Some(128 << 20));
    assert_eq!(parse_size("500 B"), Some(500));
    assert_eq!(parse_size("7"), Some(7));
    assert_eq!(parse_size("99999999999999 tb"), None);
    assert_eq!(parse_size("mb"), None);
    assert_eq!(parse_duration("1 h"), Some(Duration::from_secs(3600)));
    assert_eq!(parse_duration("10ms"), Some(Duration::from_millis(10)));
    assert_eq!(parse_duration("1 fortnight"), None);
}
