//! The records that Paimon keeps about a table: schema, snapshot, manifest list entry, manifest entry, data file.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::model::Field;

/// A serialized row: 4 bytes big-endian arity, then the row bytes (P5). Equality is by bytes, as in Java (P5.4).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BinaryRow(pub Bytes);

/// A schema file (P2.1). Field ids are Paimon's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSchema {
    /// Its id = the file's suffix, from 0.
    pub id: i64,
    /// Columns in order.
    pub fields: Vec<Field>,
    /// Largest field id ever assigned; −1 without fields.
    pub highest_field_id: i32,
    /// Partition columns.
    pub partition_keys: Vec<String>,
    /// Primary key columns.
    pub primary_keys: Vec<String>,
    /// Options, all values text.
    pub options: BTreeMap<String, String>,
    /// Comment.
    pub comment: Option<String>,
    /// Epoch milliseconds.
    pub time_ms: i64,
}

/// A snapshot file (P3.1). Members of newer versions that we do not write are not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its id = the file's suffix, from 1.
    pub id: i64,
    /// Newest schema at commit time.
    pub schema_id: i64,
    /// File name of the list of all manifests before this commit.
    pub base_manifest_list: String,
    /// Bytes of that file.
    pub base_manifest_list_size: Option<i64>,
    /// File name of the list of this commit's manifests.
    pub delta_manifest_list: String,
    /// Bytes of that file.
    pub delta_manifest_list_size: Option<i64>,
    /// File name of the list of this commit's changelog manifests.
    pub changelog_manifest_list: Option<String>,
    /// Bytes of that file.
    pub changelog_manifest_list_size: Option<i64>,
    /// File name of the index manifest; inherited.
    pub index_manifest: Option<String>,
    /// Who committed.
    pub commit_user: String,
    /// 9223372036854775807 = a batch commit.
    pub commit_identifier: i64,
    /// `APPEND`, `COMPACT`, `OVERWRITE`, `ANALYZE`.
    pub commit_kind: String,
    /// Epoch milliseconds.
    pub time_ms: i64,
    /// Rows of all data files after this commit.
    pub total_record_count: Option<i64>,
    /// Rows added minus rows removed by this commit.
    pub delta_record_count: Option<i64>,
    /// Rows of changelog files of this commit.
    pub changelog_record_count: Option<i64>,
    /// Inherited maximum.
    pub watermark: Option<i64>,
    /// Name of the statistics file; inherited while the schema stays.
    pub statistics: Option<String>,
    /// Free text; not inherited.
    pub properties: BTreeMap<String, String>,
    /// Row tracking; inherited.
    pub next_row_id: Option<i64>,
}

/// Minimum, maximum and NULL counts of some columns (P4.6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimpleStats {
    /// One field per column; a NULL field = unknown.
    pub min_values: BinaryRow,
    /// As `min_values`.
    pub max_values: BinaryRow,
    /// One element per column; `None` = unknown. `Some(vec![])` for no columns; the whole array may be NULL only in foreign files.
    pub null_counts: Option<Vec<Option<i64>>>,
}

/// A record of a manifest list (P4.2).
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the format's, explained in P4.2")]
pub struct ManifestFile {
    pub file_name: String,
    pub file_size: i64,
    pub num_added_files: i64,
    pub num_deleted_files: i64,
    pub partition_stats: SimpleStats,
    pub schema_id: i64,
    pub min_bucket: Option<i32>,
    pub max_bucket: Option<i32>,
    pub min_level: Option<i32>,
    pub max_level: Option<i32>,
    pub min_row_id: Option<i64>,
    pub max_row_id: Option<i64>,
}

/// Whether a manifest entry adds or removes a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EntryKind {
    /// 0.
    Add,
    /// 1.
    Delete,
}

/// A record of a manifest (P4.3): a data file, where it lies, and the bucket count it was hashed with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestEntry {
    /// Add or delete.
    pub kind: EntryKind,
    /// Partition row in the order of the partition keys; arity 0 on a table without partitions.
    pub partition: BinaryRow,
    /// Bucket.
    pub bucket: i32,
    /// Bucket count of the partition when the file was written; −1 = bucket-unaware (P6.3).
    pub total_buckets: i32,
    /// The file.
    pub file: DataFile,
}

/// Metadata of a data file (P4.4).
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the format's, explained in P4.4")]
pub struct DataFile {
    pub file_name: String,
    pub file_size: i64,
    pub row_count: i64,
    pub min_key: BinaryRow,
    pub max_key: BinaryRow,
    pub key_stats: SimpleStats,
    pub value_stats: SimpleStats,
    pub min_sequence_number: i64,
    pub max_sequence_number: i64,
    pub schema_id: i64,
    pub level: i32,
    pub extra_files: Vec<String>,
    /// UTC epoch milliseconds.
    pub creation_time_ms: Option<i64>,
    pub delete_row_count: Option<i64>,
    pub embedded_file_index: Option<Bytes>,
    /// 0 = append, 1 = compact.
    pub file_source: Option<i32>,
    /// `None` = statistics cover all columns.
    pub value_stats_cols: Option<Vec<String>>,
    pub external_path: Option<String>,
    pub first_row_id: Option<i64>,
    pub write_cols: Option<Vec<String>>,
}
