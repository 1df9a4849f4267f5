use std::sync::Arc;

use arrow_array::{Int64Array, RecordBatch};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::error::Kind;
use crate::fluss::record::arrow_schema;
use crate::model::{DataType, LayoutOrigin, TypeKind};
use crate::source::Held;

mod states;

fn path() -> TablePath {
    TablePath::new("demo", "t")
}

fn descriptor(partitioned: bool) -> TableDescriptor {
    let field = |id, name: &str, kind| Field { id, name: name.into(), data_type: DataType::nullable(kind), comment: None };
    let fields = vec![field(0, "id", TypeKind::BigInt), field(1, "day", TypeKind::BigInt)];
    TableDescriptor {
        schema: Schema { id: SchemaId(1), fields, primary_key: vec![], highest_field_id: 1 },
        comment: None,
        partition_keys: if partitioned { vec!["day".into()] } else { vec![] },
        bucket_keys: vec!["id".into()],
        bucket_count: Some(2),
        properties: BTreeMap::from([
            ("table.datalake.enabled".into(), "true".into()),
            ("table.datalake.freshness".into(), "1s".into()),
        ]),
        custom_properties: BTreeMap::new(),
    }
}

fn rows(info: &TableInfo, count: i64) -> RecordBatch {
    let column = Arc::new((0..count).collect::<Int64Array>());
    RecordBatch::try_new(arrow_schema(&info.schema).unwrap(), vec![Arc::clone(&column) as _, column]).unwrap()
}

fn bucket(info: &TableInfo, partition: Option<PartitionId>, bucket: i32) -> TableBucket {
    TableBucket { table: info.id, partition, bucket: BucketId(bucket) }
}

fn own(count: i32) -> BucketLayout {
    BucketLayout { count, origin: LayoutOrigin::Own }
}

fn cluster() -> MemoryCluster {
    MemoryCluster::new(Runtime::simulated(1, 0, 1 << 20))
}

fn record(info: &TableInfo, snapshot: i64, offsets_path: &str, earliest_to_keep: i64) -> LedgerRecord {
    LedgerRecord {
        table: info.id,
        path: path(),
        snapshot: SnapshotId(snapshot),
        offsets_path: offsets_path.into(),
        offsets: LakeOffsets(BTreeMap::from([(BucketKey { partition: None, bucket: BucketId(0) }, snapshot * 10)])),
        max_timestamps: BTreeMap::new(),
        earliest_to_keep,
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_is_handed_out_again_and_fences_the_first_holder() {
    let cluster = cluster();
    let info = cluster.create_table(&path(), &descriptor(false)).unwrap();
    let service = cluster.service(Faults::default());
    let ask = Heartbeat { request_table: true, ..Heartbeat::default() };
    assert!(service.heartbeat(ask.clone()).await.unwrap().assigned.is_none());
    cluster.runtime.clock.sleep(Duration::from_secs(1)).await;
    let first = service.heartbeat(ask.clone()).await.unwrap().assigned.unwrap();
    assert_eq!((first.held.table, first.held.tiering_epoch.0), (info.id, 1));
    cluster.runtime.clock.sleep(Duration::from_secs(119)).await;
    let renew = Heartbeat { tiering: vec![first.held], ..Heartbeat::default() };
    assert_eq!(service.heartbeat(renew.clone()).await.unwrap().tiering, [(info.id, None)]);
    cluster.runtime.clock.sleep(Duration::from_secs(120)).await;
    let second = service.heartbeat(ask).await.unwrap().assigned.unwrap();
    assert_eq!(second.held.tiering_epoch.0, 2);
    let reply = service.heartbeat(renew).await.unwrap();
    assert_eq!(reply.tiering.first().unwrap().1.as_ref().unwrap().code, 50);
    cluster.alter_property(&path(), "table.datalake.enabled", Some("false")).unwrap();
    let gone = service.heartbeat(Heartbeat { tiering: vec![second.held], ..Heartbeat::default() }).await.unwrap();
    assert_eq!(gone.tiering.first().unwrap().1.as_ref().unwrap().code, 7);
    cluster.alter_property(&path(), "table.datalake.enabled", Some("true")).unwrap();
    cluster.restart_coordinator(true);
    let old = Held { tiering_epoch: second.held.tiering_epoch, ..second.held };
    let reply = service.heartbeat(Heartbeat { failed: vec![old], ..Heartbeat::default() }).await.unwrap();
    assert_eq!(reply.failed.first().unwrap().1.as_ref().unwrap().code, 23);
}

#[tokio::test(start_paused = true)]
async fn an_absent_earliest_destroys_and_a_repeated_record_deletes_its_own_file() {
    let cluster = cluster();
    let info = cluster.create_table(&path(), &descriptor(false)).unwrap();
    let service = cluster.service(Faults::default());
    assert_eq!(service.latest(&path()).await.unwrap(), LedgerState::Empty);
    let one = LakeOffsets(BTreeMap::from([(BucketKey { partition: None, bucket: BucketId(0) }, 10)]));
    let two = LakeOffsets(BTreeMap::from([(BucketKey { partition: None, bucket: BucketId(1) }, 7)]));
    let first = service.prepare(info.id, &path(), &one).await.unwrap();
    service.record(record(&info, 1, &first, -1)).await.unwrap();
    let second = service.prepare(info.id, &path(), &one.overlaid(&two)).await.unwrap();
    service.record(record(&info, 2, &second, 1)).await.unwrap();
    assert_eq!(cluster.recorded(info.id).len(), 2);
    let LedgerState::At(entry) = service.latest(&path()).await.unwrap() else { panic!() };
    assert_eq!((entry.snapshot, entry.offsets.0.len()), (SnapshotId(2), 2));
    let java = cluster.prepare_raw(info.id, &path(), &two, false).unwrap();
    assert_eq!(service.offsets_file(&java).await.unwrap().unwrap().offsets.0.len(), 2, "overlaid");
    cluster.record_raw(&record(&info, 2, &second, -1), None);
    assert_eq!(cluster.recorded(info.id).len(), 1);
    assert!(matches!(service.latest(&path()).await.unwrap(), LedgerState::Unknown { .. }), "its own file went with the old entry");
    assert_eq!(cluster.prepare_raw(info.id, &path(), &two, false).unwrap_err().code(), Some(-1));
    service.prepare(info.id, &path(), &two).await.unwrap();
    assert_eq!(cluster.told_lake_end(bucket(&info, None, 0)), Some(20), "never goes back");
}

#[tokio::test(start_paused = true)]
async fn partitions_keep_their_own_counts_and_wrong_routing_is_stale() {
    let cluster = cluster();
    let info = cluster.create_table(&path(), &descriptor(true)).unwrap();
    let old = cluster.create_partition(&path(), &["1"]).unwrap();
    cluster.alter_bucket_count(&path(), 3).unwrap();
    let new = cluster.create_partition(&path(), &["2"]).unwrap();
    let service = cluster.service(Faults::default());
    let counts: Vec<_> = service.partitions(&info).await.unwrap().iter().map(|partition| partition.bucket_count).collect();
    assert_eq!(counts, [Some(2), Some(3)]);
    cluster.append(bucket(&info, Some(old.id), 1), SchemaId(1), &rows(&info, 4), None).unwrap();
    assert_eq!(service.end_offsets(&info, Some(&old), own(2)).await.unwrap(), Some(vec![0, 4]));
    assert_eq!(service.end_offsets(&info, Some(&new), own(2)).await.unwrap_err().code(), Some(74));
    cluster.drop_partition(&path(), old.id).unwrap();
    assert_eq!(service.start_offsets(&info, Some(&old), own(2)).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn fetch_starts_inside_a_batch_cuts_the_tail_and_names_both_offsets_when_out_of_range() {
    let cluster = cluster();
    let info = cluster.create_table(&path(), &descriptor(false)).unwrap();
    let place = bucket(&info, None, 0);
    for _ in 0..3 {
        cluster.append(place, SchemaId(1), &rows(&info, 5), None).unwrap();
    }
    assert_eq!(cluster.append_empty(place).unwrap(), 15);
    let service = cluster.service(Faults::default());
    let fetch = async |offset, bytes_max| {
        let wanted = FetchBucket { bucket: place, offset, bytes_max, layout: own(2) };
        let request = FetchRequest { table: Arc::new(info.clone()), buckets: vec![wanted], wait_ms: 10 };
        service.fetch(request).await.map(|mut fetched| fetched.remove(0))
    };
    let all = fetch(StartOffset::At(7), i32::MAX).await.unwrap();
    assert_eq!((all.high_watermark, all.log.next_offset()), (16, Some(16)));
    let decoded = all.log.decode(7, 14).unwrap();
    assert_eq!(decoded.batches.iter().map(|batch| batch.rows.num_rows()).sum::<usize>(), 7);
    assert_eq!(fetch(StartOffset::Earliest, 1).await.unwrap().log.next_offset(), Some(5));
    let one = fetch(StartOffset::Earliest, 1).await.unwrap().log.len();
    assert_eq!(fetch(StartOffset::Earliest, i32::try_from(one).unwrap() + 30).await.unwrap().log.len(), one + 30);
    assert!(fetch(StartOffset::At(16), 100).await.unwrap().log.is_empty());
    cluster.set_log_start(place, 5).unwrap();
    let error = fetch(StartOffset::At(2), 100).await.unwrap_err();
    assert!(error.kind() == Kind::Data && error.to_string().contains("`2`") && error.to_string().contains("`5`"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn faults_act_as_scripted() {
    let cluster = cluster();
    let info = cluster.create_table(&path(), &descriptor(false)).unwrap();
    let release = CancellationToken::new();
    let mut faults = vec![Some(Fault::Late(release.clone())), Some(Fault::Lost), Some(Fault::After), Some(Fault::Before)];
    let script = move |act: &str, target: &str| {
        assert!(target.is_empty() || target == "demo.t");
        if act == "record" { faults.pop().flatten() } else { None }
    };
    let service = cluster.service(Faults::scripted(script));
    let file = service.prepare(info.id, &path(), &LakeOffsets::default()).await.unwrap();
    let mut ids = vec![];
    for snapshot in 1..=5 {
        let answer = service.record(record(&info, snapshot, &file, -1)).await;
        ids.push((answer.is_ok(), cluster.recorded(info.id).len()));
    }
    assert_eq!(ids, [(false, 0), (false, 1), (true, 1), (false, 1), (true, 2)]);
    release.cancel();
    tokio::task::yield_now().await;
    let snapshots: Vec<i64> = cluster.recorded(info.id).iter().map(|entry| entry.snapshot.0).collect();
    assert_eq!(snapshots, [2, 5, 4], "the late one took the ledger backwards");
}

struct Twin {
    service: MemoryService,
    offloads: bool,
    clock: crate::runtime::Clock,
}

#[async_trait]
impl crate::source::conformance::World for Twin {
    fn assignments(&self) -> &dyn Assignments {
        &self.service
    }
    fn scan(&self) -> &dyn TableScan {
        &self.service
    }
    fn ledger(&self) -> &dyn LakeLedger {
        &self.service
    }
    fn clock(&self) -> &crate::runtime::Clock {
        &self.clock
    }
    fn database(&self) -> &'static str {
        "demo"
    }
    fn rescales(&self) -> bool {
        true
    }
    fn offloads(&self) -> bool {
        self.offloads
    }
    fn serves_states(&self) -> bool {
        true
    }
    fn lease(&self) -> Option<Duration> {
        Some(Duration::from_mins(2))
    }
    async fn create_table(&self, path: &TablePath, table: &TableDescriptor) -> Result<()> {
        self.service.cluster().create_table(path, table).map(|_| ())
    }
    async fn drop_table(&self, path: &TablePath) -> Result<()> {
        self.service.cluster().drop_table(path)
    }
    async fn create_partition(&self, path: &TablePath, spec: &[(String, String)]) -> Result<()> {
        let values: Vec<&str> = spec.iter().map(|(_, value)| value.as_str()).collect();
        self.service.cluster().create_partition(path, &values).map(|_| ())
    }
    async fn drop_partition(&self, path: &TablePath, spec: &[(String, String)]) -> Result<()> {
        let info = self.service.table_info(path).await?;
        let partitions = self.service.partitions(&info).await?;
        let id = partitions.iter().find(|partition| partition.spec == spec).unwrap().id;
        self.service.cluster().drop_partition(path, id)
    }
    async fn alter_bucket_count(&self, path: &TablePath, count: i32) -> Result<()> {
        self.service.cluster().alter_bucket_count(path, count)
    }
    async fn set_option(&self, path: &TablePath, key: &str, value: &str) -> Result<()> {
        self.service.cluster().alter_property(path, key, Some(value))
    }
    async fn add_column(&self, path: &TablePath, column: &Field) -> Result<()> {
        self.service.cluster().add_column(path, column).map(|_| ())
    }
    async fn append(&self, path: &TablePath, rows: &RecordBatch) -> Result<()> {
        self.service.cluster().append_rows(path, rows)
    }
    async fn put(&self, path: &TablePath, rows: &RecordBatch, deletes: &[bool]) -> Result<()> {
        self.service.cluster().put_rows(path, rows, Some(deletes))
    }
    async fn prepare_overlaid(&self, table: &TableInfo, offsets: &LakeOffsets) -> Result<String> {
        self.service.cluster().prepare_raw(table.id, &table.path, offsets, false)
    }
    async fn record_alone(&self, record: LedgerRecord) -> Result<()> {
        self.service.cluster().record_raw(&record, None);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn the_twin_conforms_also_when_it_yields_and_when_most_of_its_logs_have_left() {
    for segments in [None, Some(1), Some(2)] {
        let runtime = Runtime::simulated(5, 0, 1 << 20);
        let clock = runtime.clock.clone();
        let faults = Faults::seeded(runtime.rng.clone(), clock.clone(), 0);
        let cluster = MemoryCluster::new(runtime);
        if let Some(batches) = segments {
            cluster.segments_leave(batches).unwrap();
        }
        let twin = Twin { service: cluster.service(faults), offloads: segments.is_some(), clock };
        crate::source::conformance::run(&twin).await.map_err(|error| error.chain()).unwrap();
        let mut files = 0;
        cluster.alter_remote(|_, bytes| {
            files += 1;
            Some(bytes)
        });
        assert_eq!(files > 0, segments.is_some());
    }
}
