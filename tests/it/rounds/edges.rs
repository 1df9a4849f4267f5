//! Logs and tables that are not as a round would like them: empty batches, gaps, things dropped and altered under it.

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use lakeward::error::{Kind, Result};
use lakeward::fluss::proto::{PbProduceLogReqForBucket, ProduceLogRequest};
use lakeward::fluss::record::{EncodeOptions, encode_arrow_batch};
use lakeward::model::{BucketId, BucketLayout, Partition, TableBucket};
use lakeward::source::{FetchRequest, FetchedBucket, LedgerEntry, StateRequest, StateScan, TableScan};
use tokio::sync::OnceCell;

use super::binary::run;
use super::*;

/// Tables over the wire; something happens right before the first fetch, when the plan stands, or earlier.
struct Interrupted {
    source: Arc<ClusterSource>,
    /// When the table is known, but not yet how long its logs are.
    early: bool,
    happened: OnceCell<()>,
    act: Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
}

#[async_trait]
impl TableScan for Interrupted {
    async fn table_info(&self, path: &TablePath) -> Result<TableInfo> {
        self.source.table_info(path).await
    }
    async fn schema(&self, path: &TablePath, id: SchemaId) -> Result<Arc<Schema>> {
        self.source.schema(path, id).await
    }
    async fn partitions(&self, table: &TableInfo) -> Result<Vec<Partition>> {
        self.source.partitions(table).await
    }
    async fn end_offsets(
        &self,
        table: &TableInfo,
        partition: Option<&Partition>,
        layout: BucketLayout,
    ) -> Result<Option<Vec<i64>>> {
        if self.early {
            self.happened.get_or_init(|| (self.act)()).await;
        }
        self.source.end_offsets(table, partition, layout).await
    }
    async fn start_offsets(
        &self,
        table: &TableInfo,
        partition: Option<&Partition>,
        layout: BucketLayout,
    ) -> Result<Option<Vec<i64>>> {
        self.source.start_offsets(table, partition, layout).await
    }
    async fn lanes(&self, table: &TableInfo, buckets: &[TableBucket]) -> Result<Vec<Vec<TableBucket>>> {
        self.source.lanes(table, buckets).await
    }
    async fn fetch(&self, request: FetchRequest) -> Result<Vec<FetchedBucket>> {
        self.happened.get_or_init(|| (self.act)()).await;
        self.source.fetch(request).await
    }
    async fn serves_states(&self) -> Result<bool> {
        self.source.serves_states().await
    }
    async fn open_state(&self, request: StateRequest) -> Result<Box<dyn StateScan>> {
        self.source.open_state(request).await
    }
    fn forget(&self, path: &TablePath) {
        self.source.forget(path);
    }
}

/// A service to whose first round `act` happens between plan and read.
pub(super) fn interrupted(stage: &Stage, act: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static) -> Service {
    interrupted_at(stage, false, act)
}

/// A service to whose first round `act` happens while it plans, between describing the table and asking for the ends of its logs.
pub(super) fn interrupted_early(stage: &Stage, act: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static) -> Service {
    interrupted_at(stage, true, act)
}

fn interrupted_at(stage: &Stage, early: bool, act: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static) -> Service {
    let scan = Interrupted { source: stage.source(), early, happened: OnceCell::new(), act: Box::new(act) };
    stage.service(RoundContext { scan: Arc::new(scan), ..stage.rounds() })
}

/// Appends a batch as it is to one bucket of a table without partitions.
async fn produce(stage: &Stage, path: &TablePath, bucket: i32, records: Bytes) {
    let table = stage.info(path).await;
    let place = TableBucket { table: table.id, partition: None, bucket: BucketId(bucket) };
    let request = ProduceLogRequest {
        acks: -1,
        table_id: table.id.0,
        timeout_ms: 10_000,
        buckets_req: vec![PbProduceLogReqForBucket {
            partition_id: None,
            bucket_id: bucket,
            records,
            original_partition_name: None,
            routing_bucket_count: Some(table.bucket_count),
        }],
    };
    let cluster = &stage.cluster;
    let ask = |server: i32, _buckets: Vec<TableBucket>| {
        let (cluster, request) = (cluster.clone(), request.clone());
        async move {
            let answer = cluster.server(server, &request).await?;
            assert_eq!(answer.buckets_resp[0].error_code, None, "{answer:?}");
            Ok(vec![(place, Ok(()))])
        }
        .boxed()
    };
    cluster.routed("append", path, [place], ask).await.unwrap();
}

async fn ledger(stage: &Stage, path: &TablePath) -> LedgerEntry {
    match stage.source().latest(path).await.unwrap() {
        LedgerState::At(entry) => entry,
        other => panic!("the ledger says {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_of_empty_batches_advances_once_and_then_there_is_nothing_to_do() {
    let stage = Stage::new().await;
    let path = stage.table("events", &events()).await;
    let schema = lakeward::fluss::record::arrow_schema(&stage.info(&path).await.schema).unwrap();
    let empty = encode_arrow_batch(EncodeOptions::new(SchemaId(1)), &RecordBatch::new_empty(schema), None).unwrap();
    produce(&stage, &path, 1, empty.clone()).await;
    produce(&stage, &path, 1, empty.clone()).await;
    let (report, rounds) = stage.run_once().await;
    assert_no_faults(&report);
    assert_eq!(rounds.iter().map(|round| (snapshot_of(round), round.rows, round.files)).collect::<Vec<_>>(), [(Some(1), 0, 0)]);
    let entry = ledger(&stage, &path).await;
    let bucket = |bucket| TableBucket { table: entry.table, partition: None, bucket: BucketId(bucket) };
    assert_eq!((entry.offsets.get(bucket(0)), entry.offsets.get(bucket(1))), (None, Some(2)));
    assert_eq!(stage.tier().await, [None]);

    // Among rows they take their offsets, and nothing else.
    stage.append(&path, 0..20, "").await;
    produce(&stage, &path, 1, empty).await;
    stage.append(&path, 20..40, "").await;
    assert_eq!(stage.tier().await, [Some(2)]);
    assert_eq!(stage.ids(&path).await, Vec::from_iter(0..40));
    let entry = ledger(&stage, &path).await;
    assert_eq!(entry.offsets.0.values().sum::<i64>(), 40 + 3);
    assert_eq!(stage.tier().await, [None]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_was_cut_beyond_the_lake_holds_its_table_and_names_both_offsets() {
    let stage = Stage::with(|options| options.retention_interval = Duration::from_millis(10)).await;
    let mut table = events();
    table.bucket_count = Some(1);
    let path = stage.table("events", &table).await;
    let other = stage.table("others", &events()).await;
    stage.append(&path, 0..10, "").await;
    assert_eq!(stage.tier().await.len(), 2);

    // With the lake off nothing keeps rows back from their time to live.
    let set = |key: &str, value: &str| (key.to_owned(), Some(value.to_owned()));
    stage.admin.alter_options(&path, &[set("table.datalake.enabled", "false")]).await.unwrap();
    stage.append(&path, 10..15, "").await;
    stage.admin.alter_options(&path, &[set("table.log.ttl", "1ms")]).await.unwrap();
    let info = stage.info(&path).await;
    let layout = BucketLayout::of(&info, None).unwrap();
    let source = stage.source();
    until(&stage.runtime, "the log is cut", async || {
        (source.start_offsets(&info, None, layout).await.unwrap() == Some(vec![15])).then_some(())
    })
    .await;
    stage.admin.alter_options(&path, &[set("table.log.ttl", "1d"), set("table.datalake.enabled", "true")]).await.unwrap();
    stage.append(&path, 15..20, "").await;
    stage.append(&other, 0..10, "").await;

    let address = stage.address();
    let ended = run(&["run", "--server", &address, "--once", "--json"], None).await;
    assert_eq!(ended.code, Some(5), "{ended:?}");
    for said in ["demo.events", "the lake ends at `10`", "the log starts at `15`", "bucket `0`", "table held"] {
        assert!(ended.stderr.contains(said), "`{said}` is not in: {}", ended.stderr);
    }
    assert_eq!(stage.ids(&path).await, Vec::from_iter(0..10), "nothing is tiered beyond a gap");
    assert_eq!(stage.ids(&other).await, Vec::from_iter(0..10), "one table's trouble is its own");
    let planned = run(&["plan", "--server", &address, "demo.events", "--json"], None).await;
    assert_eq!(planned.code, Some(5), "{planned:?}");
    let fault = &planned.json()[0]["faults"][0];
    assert_eq!(fault["kind"], "data");
    assert!(fault["message"].as_str().unwrap().contains("records `10` to `15`"), "{fault}");
    let verified = run(&["verify", "demo.events", "--server", &address, "--json"], None).await;
    let fault = &verified.json()[0]["faults"][0];
    let said = "records `10` to `15` of bucket `0` are gone: the lake ends at `10`, the log starts at `15`";
    assert_eq!((verified.code, &fault["check"], &fault["message"]), (Some(5), &"offsets".into(), &said.into()), "{verified:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_dropped_between_plan_and_read_is_left_out() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 0..100, "a").await;
    stage.append(&path, 100..200, "b").await;
    assert_eq!(stage.tier().await, [Some(1)]);
    for (ids, day) in [(200..300, "a"), (300..400, "b"), (400..500, "c")] {
        stage.append(&path, ids, day).await;
    }
    let (admin, dropped) = (stage.admin.clone(), path.clone());
    let service = interrupted(&stage, move || {
        let (admin, dropped) = (admin.clone(), dropped.clone());
        async move { admin.drop_partition(&dropped, &spec("b"), false).await.unwrap() }.boxed()
    });
    let (report, rounds) = run_once(&service, Duration::ZERO).await;
    assert_no_faults(&report);
    assert_eq!(rounds.iter().map(|round| (snapshot_of(round), round.rows)).collect::<Vec<_>>(), [(Some(2), 200)]);
    assert_eq!(stage.ids(&path).await, all(&[0..300, 400..500]));
    // Made again, it is another partition, with the table's bucket count of now.
    stage.append(&path, 500..600, "b").await;
    assert_eq!(stage.tier().await, [Some(3)]);
    assert_eq!(stage.ids(&path).await, all(&[0..300, 400..600]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_dropped_and_made_again_is_another_one_and_held_while_the_old_lake_table_stands() {
    let stage = Stage::new().await;
    let path = stage.table("events", &events()).await;
    stage.append(&path, 0..100, "").await;
    assert_eq!(stage.tier().await, [Some(1)]);
    stage.append(&path, 100..200, "").await;
    let (admin, dropped) = (stage.admin.clone(), path.clone());
    let service = interrupted(&stage, move || {
        let (admin, dropped) = (admin.clone(), dropped.clone());
        async move {
            admin.drop_table(&dropped, false).await.unwrap();
            // With the lake on, the lake table that is not empty would stand in the way already here.
            let refused = admin.create_table(&dropped, &events(), false).await.unwrap_err();
            assert_eq!(refused.kind(), Kind::Invalid, "{}", refused.chain());
            let mut table = events();
            table.properties.insert("table.datalake.enabled".into(), "false".into());
            admin.create_table(&dropped, &table, false).await.unwrap();
        }
        .boxed()
    });
    let (report, rounds) = run_once(&service, Duration::ZERO).await;
    assert_no_faults(&report);
    assert_eq!(rounds.iter().map(|round| round.outcome).collect::<Vec<_>>(), [RoundOutcome::Gone]);
    let on = [("table.datalake.enabled".to_owned(), Some("true".to_owned()))];
    stage.admin.alter_options(&path, &on).await.unwrap();
    assert_eq!(stage.newest(&path).await.map(|snapshot| snapshot.id), Some(1), "nothing came of the round");
    stage.append(&path, 200..300, "").await;
    let (report, rounds) = stage.run_once().await;
    assert_eq!((report.faults.len(), rounds.len()), (1, 0));
    let (_, fault) = &report.faults[0];
    assert_eq!(fault.kind(), Kind::Data, "{}", fault.chain());
    assert!(fault.chain().contains("belongs to table id"), "{}", fault.chain());
    assert!(fault.hint().is_some_and(|hint| hint.contains("drop or move away")));
    assert_eq!(stage.ids(&path).await, Vec::from_iter(0..100), "the old rows are left alone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_dropped_between_plan_and_read_is_nobodys_fault() {
    let stage = Stage::new().await;
    let path = stage.table("events", &events()).await;
    let other = stage.table("others", &events()).await;
    stage.append(&path, 0..100, "").await;
    stage.append(&other, 0..100, "").await;
    let (admin, dropped) = (stage.admin.clone(), path.clone());
    let service = interrupted(&stage, move || {
        let (admin, dropped) = (admin.clone(), dropped.clone());
        async move { admin.drop_table(&dropped, false).await.unwrap() }.boxed()
    });
    let (report, rounds) = run_once(&service, Duration::ZERO).await;
    assert_no_faults(&report);
    let outcomes: BTreeMap<_, _> = rounds.iter().map(|round| (round.table.clone(), round.outcome)).collect();
    let committed = RoundOutcome::Committed { snapshot: SnapshotId(1) };
    assert_eq!(outcomes, BTreeMap::from([(path, RoundOutcome::Gone), (other, committed)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_count_changed_between_plan_and_read_matters_to_new_partitions_only() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 0..100, "a").await;
    let (admin, cluster, altered) = (stage.admin.clone(), stage.cluster.clone(), path.clone());
    let service = interrupted(&stage, move || {
        let (admin, cluster, altered) = (admin.clone(), cluster.clone(), altered.clone());
        async move {
            admin.alter_bucket_count(&altered, 5).await.unwrap();
            append(&cluster, &altered, 100..200, "b").await;
        }
        .boxed()
    });
    let (report, rounds) = run_once(&service, Duration::ZERO).await;
    assert_no_faults(&report);
    assert_eq!(rounds.iter().map(|round| (snapshot_of(round), round.rows)).collect::<Vec<_>>(), [(Some(1), 100)]);
    assert_eq!(stage.tier().await, [Some(2)]);
    let files = stage.files(&path).await;
    assert_eq!(totals(&files).into_values().collect::<Vec<_>>(), [BTreeSet::from([2]), BTreeSet::from([5])]);
    assert_eq!(ids(&files), Vec::from_iter(0..200));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_expire_once_they_are_tiered_are_no_gap() {
    let stage = Stage::with(|options| options.retention_interval = Duration::from_millis(10)).await;
    let mut table = events();
    table.properties.insert("table.log.ttl".into(), "1ms".into());
    let path = stage.table("events", &table).await;
    let (info, source) = (stage.info(&path).await, stage.source());
    let layout = BucketLayout::of(&info, None).unwrap();
    for round in 0..3 {
        stage.append(&path, round * 50..round * 50 + 50, "").await;
        assert_eq!(stage.tier().await, [Some(round + 1)]);
        until(&stage.runtime, "the tiered rows are gone from the log", async || {
            let start = source.start_offsets(&info, None, layout).await.unwrap();
            (start == source.end_offsets(&info, None, layout).await.unwrap()).then_some(())
        })
        .await;
    }
    assert_eq!(stage.ids(&path).await, Vec::from_iter(0..150));
    assert_eq!(stage.tier().await, [None]);
}
