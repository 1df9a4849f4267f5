//! What comes over the wire: frames, messages, batches, table JSON.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use arrow_array::Array;
use bytes::{Bytes, BytesMut};
use serde_json::Value;
use tokio_util::codec::Decoder;

use super::{DECODED_MAX, broken};
use crate::client::ddl::parse_ddl;
use crate::error::{Error, Kind, Result};
use crate::fluss::api::ApiKey;
use crate::fluss::auth::Credentials;
use crate::fluss::frame::{RequestCodec, ResponseCodec};
use crate::fluss::partition::parse_value;
use crate::fluss::proto::{self, AuthenticateRequest, PbRemoteLogFetchInfo};
use crate::fluss::record::{BatchHeader, BatchSchema, KvBatch, KvFormat, LogFormat, batch_bytes, batches, decode_rows, project};
use crate::fluss::table_json::{schema_from_json, table_from_json};
use crate::mapping;
use crate::model::{
    BucketCountEpoch, BucketId, BucketLayout, DataType, LogBatch, Partition, PartitionId, Schema, SchemaId, TableBucket, TableId,
    TableInfo, TablePath,
};
use crate::source::{LogSlice, StateSlice, cluster};

const BUCKET: TableBucket = TableBucket { table: TableId(1), partition: None, bucket: BucketId(0) };

/// Schemas that batches are read by: those of the golden ones.
pub(super) fn schemas() -> &'static [Arc<Schema>] {
    static SCHEMAS: OnceLock<Vec<Arc<Schema>>> = OnceLock::new();
    SCHEMAS.get_or_init(|| {
        let golden: Value = serde_json::from_str(include_str!("../../fixtures/vectors/fluss-records.json")).unwrap();
        let mut columns: Vec<String> = Vec::new();
        for file in golden["files"].as_array().unwrap() {
            let list = file["schema"].as_array().unwrap().iter();
            let list = list.map(|column| format!("`{}` {}", column["name"].as_str().unwrap(), column["type"].as_str().unwrap()));
            let list = list.collect::<Vec<_>>().join(", ");
            if !columns.contains(&list) {
                columns.push(list);
            }
        }
        let of = |columns: &String| parse_ddl(&format!("CREATE TABLE t ({columns})")).unwrap().descriptor.schema;
        let mut schemas: Vec<Schema> = columns.iter().map(of).collect();
        let nested: Value = serde_json::from_str(include_str!("../../fixtures/vectors/fluss-nested.json")).unwrap();
        schemas.push(schema_from_json(nested["schema"].to_string().as_bytes(), SchemaId(1)).unwrap());
        schemas.into_iter().map(Arc::new).collect()
    })
}

/// What the first byte chooses, of so many; the rest.
fn chosen(input: &[u8], of: usize) -> (usize, &[u8]) {
    input.split_first().map_or((0, input), |(first, rest)| (usize::from(*first) % of, rest))
}

pub(super) fn frame(input: &[u8]) -> Result<()> {
    let (way, rest) = chosen(input, 4);
    let mut buffer = BytesMut::new();
    // As they come off a socket: in pieces.
    for piece in rest.chunks(if way < 2 { 7 } else { 1 << 16 }) {
        buffer.extend_from_slice(piece);
        loop {
            let found = if way % 2 == 0 {
                RequestCodec::default().decode(&mut buffer)?.map(drop)
            } else {
                ResponseCodec::default().decode(&mut buffer)?.map(drop)
            };
            if found.is_none() {
                break;
            }
        }
    }
    Ok(())
}

pub(super) fn message(input: &[u8]) -> Result<()> {
    let (key, rest) = chosen(input, ApiKey::ALL.len());
    let (way, body) = chosen(rest, 2);
    ApiKey::ALL[key].read_message(way == 0, Bytes::copy_from_slice(body))?;
    if ApiKey::ALL[key] == ApiKey::Authenticate && way == 0 {
        let request: AuthenticateRequest = proto::decode("AuthenticateRequest", Bytes::copy_from_slice(body))?;
        drop(Credentials::read(&request));
    }
    Ok(())
}

/// The table of a schema as a server tells of it.
fn table_of(schema: &Arc<Schema>, properties: BTreeMap<String, String>) -> TableInfo {
    TableInfo {
        path: TablePath::new("demo", "t"),
        id: TableId(1),
        schema: Arc::clone(schema),
        comment: None,
        partition_keys: vec![],
        bucket_keys: vec![],
        bucket_count: 1,
        bucket_count_epoch: BucketCountEpoch(0),
        properties,
        custom_properties: BTreeMap::new(),
        remote_data_dir: None,
        created_ms: 0,
        modified_ms: 0,
    }
}

/// Decoded rows have to be what Arrow wants, and to survive the way into the lake's columns.
fn used(batch: &LogBatch, schema: &Arc<Schema>) -> Result<()> {
    for column in batch.rows.columns() {
        column.to_data().validate_full().map_err(|source| broken("decoded to a broken array").with_source(source))?;
    }
    let table = table_of(schema, BTreeMap::new());
    let Ok(lake) = mapping::lake_schema(&table) else { return Ok(()) };
    let rows = mapping::LakeRows::new(&table, &lake, mapping::compatible(&table, &lake)?)?;
    match rows.convert(batch, schema, None) {
        // Rows of a log table that are no appends; values that the lake's types do not hold.
        Err(error) if error.kind() != Kind::Data => Err(broken("the way into the lake").with_source(error)),
        _ => Ok(()),
    }
}

/// Puts right checksums into whole batches, so that what they guard is reached.
fn sealed(input: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    let mut at = 0;
    while let Ok(Some(total)) = batch_bytes(&bytes[at..]) {
        let Some(batch) = bytes.get_mut(at..at + total) else { break };
        let checked = if batch[12] == 2 { 29 } else { 25 };
        let crc = crc32c::crc32c(&batch[checked..]);
        batch[checked - 4..checked].copy_from_slice(&crc.to_le_bytes());
        at += total;
    }
    bytes
}

pub(super) fn log_batch(input: &[u8]) -> Result<()> {
    const FORMATS: [LogFormat; 3] = [LogFormat::Arrow, LogFormat::Indexed, LogFormat::Compacted];
    let (choice, rest) = chosen(input, FORMATS.len() * schemas().len());
    let (format, schema) = (FORMATS[choice % FORMATS.len()], &schemas()[choice / FORMATS.len()]);
    let raw = Bytes::from(sealed(rest));
    let located = |error: Error| error.context(format!("read the log of {BUCKET}"));
    let ids = LogSlice::schema_ids(&raw).map_err(located)?;
    if ids.len() > 2 {
        return Ok(());
    }
    let with_id = |id: SchemaId| Arc::new(Schema { id, ..Schema::clone(schema) });
    if format == LogFormat::Arrow {
        for batch in batches(raw.clone()).flatten().take(2) {
            let schema = BatchSchema::new(with_id(batch.header.schema_id))?;
            let mut newest = Schema::clone(schema.schema.as_ref());
            newest.fields.extend(schemas()[0].fields.iter().chain(&schemas()[schemas().len() - 1].fields).cloned());
            let newest = BatchSchema::new(Arc::new(newest))?;
            let columns = schema.schema.fields.len();
            let kept: Vec<usize> = (0..newest.schema.fields.len()).filter(|at| *at == 1 || *at > columns + 3).collect();
            if let Ok(cut) = project(&batch, &schema, &newest, &kept) {
                BatchHeader::parse(&cut).map_err(|source| broken("a projected batch that is none").with_source(source))?;
            }
        }
    }
    let slice = LogSlice::new(BUCKET, format, raw, ids.into_iter().map(|id| (id, with_id(id))).collect())?;
    if slice.fitting(-2, i64::MAX, usize::MAX)?.decoded_bytes > DECODED_MAX {
        return Ok(());
    }
    for batch in slice.decode(-2, i64::MAX)?.batches {
        used(&batch, &with_id(batch.schema_id))?;
    }
    let _cut = slice.decode(-2, slice.next_offset().unwrap_or_default().saturating_sub(1))?;
    Ok(())
}

pub(super) fn kv_batch(input: &[u8]) -> Result<()> {
    let (choice, rest) = chosen(input, 2 * schemas().len());
    let (format, schema) = ([KvFormat::Compacted, KvFormat::Indexed][choice % 2], &schemas()[choice / 2]);
    let mut bytes = rest.to_vec();
    if bytes.len() > 9 {
        let crc = crc32c::crc32c(&bytes[9..]);
        bytes[5..9].copy_from_slice(&crc.to_le_bytes());
    }
    let batch = KvBatch::parse(bytes.into())?;
    let rows: Vec<&[u8]> = batch.records().filter_map(|record| record.row).collect();
    let decoded = decode_rows(format, &BatchSchema::new(Arc::clone(schema))?, rows)?;
    for column in decoded.columns() {
        column.to_data().validate_full().map_err(|source| broken("decoded to a broken array").with_source(source))?;
    }
    Ok(())
}

pub(super) fn values(input: &[u8]) -> Result<()> {
    let (choice, rest) = chosen(input, 2 * schemas().len());
    let (format, schema) = ([KvFormat::Compacted, KvFormat::Indexed][choice % 2], &schemas()[choice / 2]);
    let located = |error: Error| error.context(format!("scan the state of {BUCKET}"));
    let ids = StateSlice::schema_ids(rest).map_err(located)?;
    if ids.len() > 2 {
        return Ok(());
    }
    let schemas = ids.into_iter().map(|id| (id, Arc::new(Schema { id, ..Schema::clone(schema) }))).collect();
    StateSlice::new(BUCKET, format, Bytes::copy_from_slice(rest), schemas).decode().map(drop)
}

pub(super) fn remote_log(input: &[u8]) -> Result<()> {
    let info: PbRemoteLogFetchInfo = proto::decode("PbRemoteLogFetchInfo", Bytes::copy_from_slice(input))?;
    cluster::remote_log(BUCKET, info).map(drop)
}

pub(super) fn table_json(input: &[u8]) -> Result<()> {
    drop(schema_from_json(input, SchemaId(1)).and_then(|schema| BatchSchema::new(Arc::new(schema))));
    let found = table_from_json(input, SchemaId(1))?;
    let schema = Arc::new(found.schema);
    let table = TableInfo {
        partition_keys: found.partition_keys,
        bucket_keys: found.bucket_keys,
        bucket_count: found.bucket_count.unwrap_or(1),
        custom_properties: found.custom_properties,
        ..table_of(&schema, found.properties)
    };
    BatchSchema::new(schema)?;
    BucketLayout::of(&table, None)?;
    drop((LogFormat::of(&table), KvFormat::of(&table), table.lake_freshness(), mapping::lake_path(&table)));
    mapping::check_columns(&table)?;
    mapping::check_options(&table)?;
    let lake = mapping::lake_schema(&table)?;
    mapping::compatible(&table, &lake).map(drop)
}

/// Values of partition columns as their names tell them.
pub(super) fn partition(input: &[u8]) -> Result<()> {
    let scalars: Vec<&DataType> = schemas()[0].fields.iter().map(|field| &field.data_type).collect();
    let (choice, rest) = chosen(input, scalars.len());
    let Some(text) = super::text(rest) else { return Ok(()) };
    let partition = Partition { id: PartitionId(1), spec: vec![("p".into(), text.into())], bucket_count: None };
    drop(partition.name());
    parse_value(text, scalars[choice]).map(drop)
}
