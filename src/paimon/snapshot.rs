//! Snapshot files, both ways (P3.1).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::meta::Snapshot;
use crate::error::{Error, Result};

/// The version that we write.
const VERSION: i32 = 3;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SnapshotJson {
    #[serde(default)]
    version: Option<i32>,
    id: i64,
    schema_id: i64,
    base_manifest_list: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base_manifest_list_size: Option<i64>,
    delta_manifest_list: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delta_manifest_list_size: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    changelog_manifest_list: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    changelog_manifest_list_size: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    index_manifest: Option<String>,
    commit_user: String,
    commit_identifier: i64,
    commit_kind: String,
    time_millis: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    total_record_count: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delta_record_count: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    changelog_record_count: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    watermark: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    statistics: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    properties: Option<BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next_row_id: Option<i64>,
}

impl Snapshot {
    /// The text of a snapshot file, members in Java's order, absent ones left out.
    ///
    /// # Errors
    /// `Internal` when JSON can't be made of it.
    pub fn to_json(&self) -> Result<String> {
        let this = self.clone();
        let json = SnapshotJson {
            version: Some(VERSION),
            id: this.id,
            schema_id: this.schema_id,
            base_manifest_list: this.base_manifest_list,
            base_manifest_list_size: this.base_manifest_list_size,
            delta_manifest_list: this.delta_manifest_list,
            delta_manifest_list_size: this.delta_manifest_list_size,
            changelog_manifest_list: this.changelog_manifest_list,
            changelog_manifest_list_size: this.changelog_manifest_list_size,
            index_manifest: this.index_manifest,
            commit_user: this.commit_user,
            commit_identifier: this.commit_identifier,
            commit_kind: this.commit_kind,
            time_millis: this.time_ms,
            total_record_count: this.total_record_count,
            delta_record_count: this.delta_record_count,
            changelog_record_count: this.changelog_record_count,
            watermark: this.watermark,
            statistics: this.statistics,
            properties: (!this.properties.is_empty()).then_some(this.properties),
            next_row_id: this.next_row_id,
        };
        serde_json::to_string_pretty(&json).map_err(|source| Error::internal("write snapshot").with_source(source))
    }

    /// Reads the text of a snapshot file. Unknown members are ignored, explicit NULLs count as absent.
    ///
    /// # Errors
    /// `Data` when it is not JSON or a mandatory member is missing.
    pub fn from_json(text: &str) -> Result<Self> {
        let json: SnapshotJson =
            serde_json::from_str(text).map_err(|source| Error::data("snapshot file is wrong").with_source(source))?;
        Ok(Self {
            id: json.id,
            schema_id: json.schema_id,
            base_manifest_list: json.base_manifest_list,
            base_manifest_list_size: json.base_manifest_list_size,
            delta_manifest_list: json.delta_manifest_list,
            delta_manifest_list_size: json.delta_manifest_list_size,
            changelog_manifest_list: json.changelog_manifest_list,
            changelog_manifest_list_size: json.changelog_manifest_list_size,
            index_manifest: json.index_manifest,
            commit_user: json.commit_user,
            commit_identifier: json.commit_identifier,
            commit_kind: json.commit_kind,
            time_ms: json.time_millis,
            total_record_count: json.total_record_count,
            delta_record_count: json.delta_record_count,
            changelog_record_count: json.changelog_record_count,
            watermark: json.watermark,
            statistics: json.statistics,
            properties: json.properties.unwrap_or_default(),
            next_row_id: json.next_row_id,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nulls_and_unknown_members_are_read_and_absent_members_are_left_out() {
        let text = r#"{"version":3,"uuid":"x","id":2,"schemaId":0,"baseManifestList":"b","deltaManifestList":"d","watermark":null,
            "commitUser":"u","commitIdentifier":9223372036854775807,"commitKind":"APPEND","timeMillis":5,
            "totalRecordCount":4,"deltaRecordCount":4,"properties":{"a":"b"},"logOffsets":{}}"#;
        let snapshot = Snapshot::from_json(text).unwrap();
        assert_eq!(snapshot.commit_identifier, i64::MAX);
        let json = snapshot.to_json().unwrap();
        assert!(!json.contains("null") && !json.contains("watermark"), "{json}");
        assert_eq!(Snapshot::from_json(&json).unwrap(), snapshot);
        assert!(Snapshot::from_json(r#"{"id":2}"#).is_err());
    }
}
