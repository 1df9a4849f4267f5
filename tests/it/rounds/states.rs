//! States of primary-key tables: a node that is killed between its log and a state, before and after either, loses nothing.

use std::collections::BTreeMap;

use arrow_array::types::Int32Type;
use arrow_array::{Array, Int32Array};
use bytes::Bytes;
use lakeward::error::Result;
use lakeward::fluss::bucket::{KeyRules, KeyWriter};
use lakeward::fluss::connection::{Connection, ConnectionOptions};
use lakeward::fluss::proto::{
    CreateTableRequest, FetchLogRequest, GetTableInfoRequest, PbFetchLogReqForBucket, PbFetchLogReqForTable, PbPutKvReqForBucket,
    PbScanReqForBucket, PbTablePath, PutKvRequest, ScanKvRequest,
};
use lakeward::fluss::record::{BatchSchema, KvBatchBuilder, KvFormat, LogFormat, RowEncoder, Values, batches, decode_rows};
use lakeward::fluss::table_json::table_from_json;
use lakeward::model::{BucketId, ChangeKind, PartitionId, TableBucket, TableId};
use serde_json::json;

use super::binary::Running;
use super::*;

const POINTS: [&str; 8] = [
    "log.before_append",
    "log.after_append",
    "log.before_sync",
    "log.after_sync",
    "kv.before_commit",
    "kv.after_commit",
    "kv.before_save",
    "kv.after_save",
];

/// Rows by key.
type Rows = BTreeMap<i32, String>;

fn table() -> String {
    json!({"version":1,"schema":{"version":1,"columns":[
        {"name":"k","data_type":{"type":"INTEGER","nullable":false},"id":0},{"name":"v","data_type":{"type":"STRING"},"id":1}],
        "primary_key":["k"],"highest_field_id":1},
        "partition_key":[],"bucket_key":["k"],"bucket_count":1,
        "properties":{"table.datalake.format":"paimon","table.kv.format-version":"2"},"custom_properties":{}})
    .to_string()
}

/// A node process and what it is asked.
struct Keyed {
    node: Running,
    client: Connection,
    table_id: i64,
    schema: BatchSchema,
    info: TableInfo,
}

impl Keyed {
    /// `None` when it dies while it starts.
    async fn start(dir: &TempDir, fail: Option<&str>, runtime: &Runtime) -> Option<Self> {
        let folder = dir.path().join("node").display().to_string();
        let mut node = Running::failing_into(&["node", "--dir", &folder, "--listen", "127.0.0.1:0"], fail, &dir.path().join("log"));
        let address = node.line()?.split(' ').nth(1)?.to_owned();
        let client = Connection::connect(&address, &ConnectionOptions::default(), runtime).await.ok()?;
        let path = PbTablePath { database_name: "fluss".into(), table_name: "t".into() };
        let create = CreateTableRequest { table_path: path.clone(), table_json: table().into(), ignore_if_exists: true };
        client.call(&create).await.ok()?;
        let table_id = client.call(&GetTableInfoRequest { table_path: path }).await.ok()?.table_id;
        let table = table_from_json(table().as_bytes(), SchemaId(1)).unwrap();
        let mut info = TableInfo::for_tests("t", 1);
        (info.schema, info.bucket_keys, info.properties) = (Arc::new(table.schema), table.bucket_keys, table.properties);
        let schema = BatchSchema::new(Arc::clone(&info.schema)).unwrap();
        Some(Self { node, client, table_id, schema, info })
    }

    /// Upserts `rows` and deletes `gone`, as batch `sequence` of one writer.
    async fn put(&self, sequence: i32, rows: &Rows, gone: &[i32]) -> Result<i64> {
        let keys: ArrayRef = Arc::new(rows.keys().chain(gone).copied().collect::<Int32Array>());
        let texts: ArrayRef =
            Arc::new(rows.values().map(|text| Some(text.as_str())).chain(gone.iter().map(|_| None)).collect::<StringArray>());
        let batch = RecordBatch::try_new(Arc::clone(&self.schema.arrow), vec![Arc::clone(&keys), texts]).unwrap();
        let encoder = RowEncoder::new(KvFormat::Compacted, &self.schema.schema, &batch).unwrap();
        let mut writer = KeyWriter::new(KeyRules::of(&self.info).unwrap().encoding, &[(&TypeKind::Int, &keys)]).unwrap();
        let mut records = KvBatchBuilder::new(SchemaId(1)).unwrap();
        for row in 0..keys.len() {
            let mut bytes = Vec::new();
            encoder.encode(row, &mut bytes).unwrap();
            records.push(writer.key(row).unwrap(), (row < rows.len()).then_some(bytes.as_slice())).unwrap();
        }
        let bucket = PbPutKvReqForBucket { records: records.finish(7, sequence), ..Default::default() };
        let request =
            PutKvRequest { acks: -1, table_id: self.table_id, timeout_ms: 1000, buckets_req: vec![bucket], ..Default::default() };
        let entry = self.client.call(&request).await?.buckets_resp.remove(0);
        assert_eq!(entry.error_code, None, "{:?}", entry.error_message);
        Ok(entry.log_end_offset.unwrap())
    }

    fn rows_of(batch: &RecordBatch) -> Vec<(i32, String)> {
        let (keys, texts) = (batch.column(0).as_primitive::<Int32Type>(), batch.column(1).as_string::<i32>());
        (0..batch.num_rows()).map(|row| (keys.value(row), texts.value(row).to_owned())).collect()
    }

    /// What the changelog leads to, and its end.
    async fn changelog(&self) -> (Rows, i64) {
        let bucket = PbFetchLogReqForBucket { fetch_offset: 0, max_fetch_bytes: 1 << 24, ..Default::default() };
        let table = PbFetchLogReqForTable { table_id: self.table_id, buckets_req: vec![bucket], ..Default::default() };
        let request = FetchLogRequest { follower_server_id: -1, max_bytes: 1 << 24, tables_req: vec![table], ..Default::default() };
        let entry = self.client.call(&request).await.unwrap().tables_resp.remove(0).buckets_resp.remove(0);
        let bucket = TableBucket { table: TableId(self.table_id), partition: None::<PartitionId>, bucket: BucketId(0) };
        let (mut rows, mut end) = (Rows::new(), 0);
        for batch in batches(entry.records.unwrap()) {
            let batch = batch.unwrap();
            assert_eq!(batch.header.base_offset, end);
            end = batch.header.next_offset();
            let Some(decoded) = batch.decode(LogFormat::Arrow, &self.schema, bucket).unwrap() else { continue };
            for (kind, (key, text)) in decoded.changes.unwrap().into_iter().zip(Self::rows_of(&decoded.rows)) {
                match kind {
                    ChangeKind::UpdateBefore | ChangeKind::Delete => assert_eq!(rows.remove(&key), Some(text)),
                    _ => assert_eq!(rows.insert(key, text), None),
                }
            }
        }
        (rows, end)
    }

    /// The state, and the log offset that it names.
    async fn state(&self) -> (Rows, i64) {
        let bucket_scan_req = Some(PbScanReqForBucket { table_id: self.table_id, ..Default::default() });
        let open = ScanKvRequest { bucket_scan_req, call_seq_id: Some(0), batch_size_bytes: Some(1 << 20), ..Default::default() };
        let answer = self.client.call(&open).await.unwrap();
        let records: Bytes = answer.records.unwrap_or_default();
        let values = Values::parse(&records).unwrap();
        let rows: Vec<&[u8]> = values.map(|value| value.row).collect();
        let batch = decode_rows(KvFormat::Compacted, &self.schema, rows.iter().copied()).unwrap();
        (Self::rows_of(&batch).into_iter().collect(), answer.log_offset.unwrap())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_killed_between_log_and_state_has_both_as_if_it_had_not_been() {
    let runtime = Runtime { fail: FailPoints::default(), ..Runtime::system(1, 64 << 20).unwrap() };
    for point in POINTS {
        let hit = if point.ends_with("_save") { 1 } else { 3 };
        let dir = tempfile::tempdir().unwrap();
        let mut keyed = Keyed::start(&dir, Some(&format!("{point}=kill@{hit}")), &runtime).await.unwrap();
        let (mut model, mut ends) = (Rows::new(), Vec::new());
        for sequence in 0..6 {
            let rows: Rows = (0..3).map(|key| (sequence % 4 + key, format!("{point} {sequence}"))).collect();
            let gone = [sequence - 1, 99];
            let end = match keyed.put(sequence, &rows, &gone).await {
                Ok(end) => end,
                Err(_) => {
                    // The same batch again, as a client sends it.
                    assert_eq!(until(&runtime, "the node is dead", async || keyed.node.killed()).await, 9, "{point}");
                    keyed = Keyed::start(&dir, None, &runtime).await.unwrap();
                    keyed.put(sequence, &rows, &gone).await.unwrap()
                }
            };
            ends.push(end);
            model.extend(rows);
            model.retain(|key, _| !gone.contains(key));
        }
        if point.ends_with("_save") {
            keyed.node.signal("TERM");
            let code = until(&runtime, "the node is dead", async || keyed.node.killed()).await;
            assert_eq!(code, 9, "{point}");
            keyed = Keyed::start(&dir, None, &runtime).await.unwrap();
        }
        assert_eq!(keyed.changelog().await, (model.clone(), *ends.last().unwrap()), "{point}");
        assert_eq!(keyed.state().await, (model, *ends.last().unwrap()), "{point}");
        assert_eq!(keyed.put(5, &Rows::new(), &[]).await.unwrap(), ends[5], "{point}: the writer is known");
    }
}
