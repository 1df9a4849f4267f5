//! Whole rounds with the lake in a bucket: two services that fight over one table, servers that lose, delay and refuse, what a round costs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, RecordBatch, StringArray};
use lakeward::error::{Kind, Result};
use lakeward::fluss::record::arrow_schema;
use lakeward::fluss::table_json::TableDescriptor;
use lakeward::lake::{LakeTable, Warehouse};
use lakeward::mapping;
use lakeward::model::{
    BucketId, Partition, RoundOutcome, RoundSummary, SchemaId, TableBucket, TableInfo, TablePath, TieringEpoch, TypeKind,
};
use lakeward::round::{self, Job, Limits, Options, RoundContext};
use lakeward::runtime::{FailPoints, Rng, Runtime};
use lakeward::source::LedgerState;
use lakeward::source::memory::{self, MemoryCluster, MemoryService};
use lakeward::storage::{StoreOptions, open};

use super::server::{Asked, Server, Trouble};
use crate::rounds::{self, field};

const WAREHOUSE: &str = "s3://lake/w";

/// A cluster in memory, whose tables have their lake in a bucket.
struct World {
    server: Server,
    runtime: Runtime,
    cluster: MemoryCluster,
    tables: Vec<(TableInfo, Partition)>,
    next_id: i64,
}

fn path(name: &str) -> TablePath {
    TablePath::new("demo", name)
}

fn descriptor() -> TableDescriptor {
    let fields =
        vec![field("id", TypeKind::BigInt, true), field("day", TypeKind::String, true), field("words", TypeKind::String, true)];
    rounds::in_warehouse(rounds::descriptor(fields, &["day"], &["id"], 2), WAREHOUSE, "30s")
}

impl World {
    async fn new(names: &[&str]) -> Self {
        let server = Server::start();
        let mut options = server.options();
        options.insert("s3.request_timeout".into(), "500".into());
        Self::on(server, options, names).await
    }

    async fn on(server: Server, options: BTreeMap<String, String>, names: &[&str]) -> Self {
        let runtime = Runtime { fail: FailPoints::default(), ..Runtime::system(2, 64 << 20).unwrap() };
        let runtime = Runtime { stores: runtime.stores.clone().with_options(options.clone()), ..runtime };
        let cluster = MemoryCluster::new(runtime.clone());
        let store = open(WAREHOUSE, &StoreOptions { options, ..StoreOptions::default() }).unwrap();
        let mut tables = vec![];
        for name in names {
            let table = cluster.create_table(&path(name), &descriptor()).unwrap();
            let lake = Warehouse::new(store.clone(), runtime.clone());
            assert!(lake.create_table("demo", name, &mapping::lake_schema(&table).unwrap()).await.unwrap());
            let day = cluster.create_partition(&path(name), &["a"]).unwrap();
            tables.push((table, day));
        }
        server.asked();
        Self { server, runtime, cluster, tables, next_id: 0 }
    }

    /// Rows into every bucket of every table.
    fn load(&mut self) {
        for (table, day) in &self.tables {
            for bucket in 0..day.bucket_count.unwrap() {
                let ids: Vec<i64> = (self.next_id..).take(8).collect();
                self.next_id += 8;
                let columns = vec![
                    Arc::new(Int64Array::from(ids.clone())) as _,
                    Arc::new(StringArray::from_iter_values(ids.iter().map(|_| "a"))) as _,
                    Arc::new(StringArray::from_iter_values(ids.iter().map(|id| format!("words of {id}")))) as _,
                ];
                let rows = RecordBatch::try_new(arrow_schema(&table.schema).unwrap(), columns).unwrap();
                let bucket = TableBucket { table: table.id, partition: Some(day.id), bucket: BucketId(bucket) };
                self.cluster.append(bucket, SchemaId(1), &rows, None).unwrap();
            }
        }
    }

    /// Rows of 20 KB that no codec makes much smaller, into the first bucket of the first table.
    fn load_large(&mut self, rows: i64) {
        let rng = Rng::from_seed(9);
        let word = |_: &i64| (0..20_000).map(|_| char::from(u8::try_from(rng.below(127)).unwrap())).collect::<String>();
        let ids: Vec<i64> = (self.next_id..self.next_id + rows).collect();
        self.next_id += rows;
        let (table, day) = &self.tables[0];
        for ids in ids.chunks(50) {
            let columns = vec![
                Arc::new(Int64Array::from(ids.to_vec())) as _,
                Arc::new(StringArray::from_iter_values(ids.iter().map(|_| "a"))) as _,
                Arc::new(StringArray::from_iter_values(ids.iter().map(word))) as _,
            ];
            let batch = RecordBatch::try_new(arrow_schema(&table.schema).unwrap(), columns).unwrap();
            let bucket = TableBucket { table: table.id, partition: Some(day.id), bucket: BucketId(0) };
            self.cluster.append(bucket, SchemaId(1), &batch, None).unwrap();
        }
    }

    fn context(&self) -> RoundContext {
        let service: Arc<MemoryService> = Arc::new(self.cluster.service(memory::Faults::default()));
        let mut options = Options::default();
        (options.write.row_group_bytes, options.write.part_bytes) = (2 << 20, 5 << 20);
        RoundContext { scan: Arc::clone(&service) as _, ledger: service, runtime: self.runtime.clone(), options }
    }

    async fn round(&self, name: &str) -> Result<RoundSummary> {
        let context = self.context();
        let table = context.scan.table_info(&path(name)).await?.id;
        let job = Job { path: path(name), table, epoch: TieringEpoch(1), lease: None, limits: Limits::default() };
        Box::pin(round::run(&context, &job)).await
    }

    /// Healthy rounds bring everything up, and every row is there once.
    async fn heals(&self) {
        self.server.calm();
        let mut ids: Vec<i64> = Vec::new();
        for (info, _) in &self.tables {
            let name = info.path.table.as_str();
            for turn in 0.. {
                assert!(turn < 4, "`{name}` does not come to rest");
                if self.round(name).await.map_err(|error| error.chain()).unwrap().outcome == RoundOutcome::Idle {
                    break;
                }
            }
            let (lake, _) = round::open_lake(info, &self.runtime).await.unwrap();
            let newest = lake.newest_snapshot_id().await.unwrap().unwrap();
            assert_eq!(lake.snapshot_ids().await.unwrap(), Vec::from_iter(1..=newest), "snapshots follow each other");
            ids.extend(rows(&lake, newest).await);
            let context = self.context();
            let LedgerState::At(known) = context.ledger.latest(&info.path).await.unwrap() else { panic!("nothing is known") };
            let ends = round::log_ends(&context, &info.path).await.unwrap();
            let ends: BTreeMap<_, _> = ends.buckets.into_iter().map(|(bucket, _, end)| (bucket, end)).collect();
            assert_eq!((known.snapshot.0, known.offsets.0), (newest, ends));
        }
        ids.sort_unstable();
        assert_eq!(ids, Vec::from_iter(0..self.next_id));
    }
}

async fn rows(lake: &LakeTable, snapshot: i64) -> Vec<i64> {
    let snapshot = lake.snapshot(snapshot).await.unwrap().unwrap();
    let batches = lake.read_rows(&snapshot, None, Some(&["id"])).await.unwrap();
    batches.iter().flat_map(|rows| rows.column(0).as_primitive::<Int64Type>().values().to_vec()).collect()
}

/// By act: how often.
fn counts(asked: &[Asked]) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    for asked in asked {
        let name = match asked.act {
            "create" => "put",
            "begin" | "part" | "finish" => "upload",
            "abort" => "delete",
            "uploads" => "list",
            act => act,
        };
        *counts.entry(name).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn a_round_lists_nothing_but_pins_while_the_hint_is_there_and_tells_what_it_cost() {
    let mut world = World::new(&["t"]).await;
    world.load();
    let first = world.round("t").await.unwrap();
    assert_eq!(first.requests, counts(&world.server.asked()));
    // Whoever may list nothing else goes on.
    for folder in ["snapshot", "schema", "manifest", "day="] {
        world.server.deny("list", &format!("w/demo.db/t/{folder}"));
    }
    for _ in 0..3 {
        world.load();
        let summary = world.round("t").await.map_err(|error| error.chain()).unwrap();
        assert!(matches!(summary.outcome, RoundOutcome::Committed { .. }));
        let asked = world.server.asked();
        let listed: BTreeSet<&str> = asked.iter().filter(|asked| asked.act == "list").map(|asked| asked.key.as_str()).collect();
        assert_eq!(listed, BTreeSet::from(["w/demo.db/t/consumer/"]));
        assert_eq!(summary.requests, counts(&asked));
        assert!(!asked.iter().any(|asked| asked.act == "begin"), "small files go up in one request");
        let total: u64 = summary.requests.values().sum();
        assert!(total <= 70, "{total} requests: {:?}", summary.requests);
    }
    let idle = world.round("t").await.unwrap();
    assert_eq!(idle.outcome, RoundOutcome::Idle);
    assert!(!idle.requests.contains_key("put") && !idle.requests.is_empty(), "{:?}", idle.requests);
    world.server.allow_all();
    world.heals().await;
}

#[tokio::test]
async fn a_table_that_is_denied_says_the_right_and_the_prefix_and_others_go_on() {
    for (act, folder, right) in [
        ("put", "manifest/", "s3:PutObject"),
        ("create", "snapshot/snapshot-", "s3:PutObject"),
        ("put", "day=a/", "s3:PutObject"),
        ("get", "snapshot/", "s3:GetObject"),
        ("list", "consumer/", "s3:ListBucket"),
        ("delete", "consumer/", "s3:DeleteObject"),
    ] {
        let mut world = World::new(&["t", "u"]).await;
        world.load();
        world.server.deny(act, &format!("w/demo.db/t/{folder}"));
        match world.round("t").await {
            Err(error) => {
                assert_eq!(error.kind(), Kind::Invalid, "{act} {folder}: {}", error.chain());
                let told = format!("{} {}", error.chain(), error.hint().unwrap_or_default());
                assert!(told.contains(right) && told.contains("s3://lake/w/demo.db/t/"), "{act} {folder}: {told}");
            }
            // Removing pins is no reason to fail a round that has published.
            Ok(summary) => {
                assert!(folder == "consumer/" && matches!(summary.outcome, RoundOutcome::Committed { .. }), "{act} {folder}")
            }
        }
        assert!(matches!(world.round("u").await.unwrap().outcome, RoundOutcome::Committed { .. }));
        world.server.allow_all();
        world.heals().await;
    }
}

#[tokio::test]
async fn a_table_whose_hint_is_missing_is_listed_and_whoever_may_not_is_told() {
    let mut world = World::new(&["t"]).await;
    world.load();
    world.round("t").await.unwrap();
    world.server.trouble(|asked| asked.key.ends_with("/LATEST").then_some(Trouble::Answer(404, "NoSuchKey")));
    world.server.deny("list", "w/demo.db/t/snapshot/");
    world.load();
    let error = world.round("t").await.unwrap_err();
    let told = format!("{} {}", error.chain(), error.hint().unwrap_or_default());
    assert!(error.kind() == Kind::Invalid && told.contains("s3:ListBucket") && told.contains("w/demo.db/t/snapshot/"), "{told}");
    world.server.allow_all();
    assert!(matches!(world.round("t").await.unwrap().outcome, RoundOutcome::Committed { .. }));
    world.heals().await;
}

#[tokio::test]
async fn a_store_without_create_if_absent_is_refused_before_anything_lies_there() {
    let mut world = World::new(&["t"]).await;
    world.load();
    world.server.trouble(|asked| (asked.act == "create").then_some(Trouble::Unconditional));
    let before = world.server.keys();
    let error = world.round("t").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{}", error.chain());
    assert!(error.chain().contains("no atomic create-if-absent"), "{}", error.chain());
    assert_eq!(world.server.keys(), before);
}

#[tokio::test]
async fn uploads_of_a_round_that_fails_or_is_dropped_are_given_up() {
    let mut world = World::new(&["t"]).await;
    world.load_large(600);
    let parts = |asked: Vec<Asked>| asked.iter().filter(|asked| asked.act == "part").count();
    let none_hangs = async |world: &World| {
        while world.server.uploads() > 0 {
            tokio::task::yield_now().await;
        }
    };
    world.server.deny("finish", "w/demo.db/t/");
    assert_eq!(world.round("t").await.unwrap_err().kind(), Kind::Invalid);
    assert!(parts(world.server.asked()) > 1);
    none_hangs(&world).await;
    world.server.allow_all();
    // The service loses the lease, or ends, while parts are on their way.
    let (begun, seen) = tokio::sync::oneshot::channel();
    let mut begun = Some(begun);
    world.server.trouble(move |asked| {
        (asked.act == "part").then(|| {
            begun.take().map(|begun| begun.send(()));
            Trouble::Slow(Duration::from_millis(300))
        })
    });
    tokio::select! {
        ended = world.round("t") => panic!("{ended:?}"),
        seen = seen => seen.unwrap(),
    }
    assert!(world.server.uploads() > 0);
    none_hangs(&world).await;
    assert!(!world.server.keys().iter().any(|key| key.contains("/data-")), "{:?}", world.server.keys());
    world.heals().await;
}

#[tokio::test]
async fn of_a_large_file_footer_and_wanted_columns_are_read_by_range_and_a_small_one_in_one_request() {
    let mut world = World::new(&["t"]).await;
    world.load();
    world.round("t").await.unwrap();
    world.load_large(300);
    world.round("t").await.unwrap();
    let (lake, _) = round::open_lake(&world.tables[0].0, &world.runtime).await.unwrap();
    let snapshot = lake.snapshot(2).await.unwrap().unwrap();
    let sizes: BTreeMap<i64, String> = lake
        .live_entries(&snapshot, None)
        .await
        .unwrap()
        .into_iter()
        .map(|entry| (entry.file.file_size, entry.file.file_name))
        .collect();
    let (large, name) = sizes.last_key_value().unwrap();
    assert!(*large > 4_000_000 && sizes.len() > 1, "{sizes:?}");
    let asked_for = |columns: Option<Vec<&'static str>>| {
        let (world, lake, snapshot, others) = (&world, &lake, &snapshot, sizes.len() - 1);
        async move {
            world.server.asked();
            let batches = lake.read_rows(snapshot, None, columns.as_deref()).await.unwrap();
            let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
            assert_eq!(i64::try_from(rows).unwrap(), world.next_id);
            let asked: Vec<Asked> = world.server.asked().into_iter().filter(|asked| asked.key.contains("/data-")).collect();
            let (large, small): (Vec<_>, Vec<_>) = asked.into_iter().partition(|asked| asked.key.ends_with(name.as_str()));
            assert_eq!(small.len(), others, "one each: {small:?}");
            let bytes: u64 = large.iter().map(|asked| asked.range.map_or(0, |(start, end)| end + 1 - start)).sum();
            (large.len(), bytes)
        }
    };
    // The footer, and what is wanted of each row group, which lie apart.
    let groups = large / (2 << 20) + 1;
    let (requests, bytes) = asked_for(Some(vec!["id", "day"])).await;
    assert!(
        requests > 1 && i64::try_from(requests).unwrap() <= 2 + groups && bytes < 200_000,
        "{requests} requests, {bytes} bytes of {large}"
    );
    let (requests, bytes) = asked_for(None).await;
    assert!(requests <= 3 && i64::try_from(bytes).unwrap() <= large + (64 << 10), "{requests} requests, {bytes} bytes of {large}");
    world.heals().await;
}

/// Rounds follow each other with credentials of `life`, from the instance or for a web identity, over a server that turns away those
/// that have ended.
async fn rounds_with_credentials_of(life: Duration, time: Duration, web_identity: bool) {
    let server = Server::start();
    server.hand_out(life);
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "hush-web").unwrap();
    let pairs = if web_identity {
        vec![
            ("s3.credentials", "web_identity".to_owned()),
            ("s3.web_identity_token_file", token.to_str().unwrap().to_owned()),
            ("s3.role_arn", "arn:aws:iam::1:role/lakeward".to_owned()),
            ("s3.sts_endpoint", server.endpoint()),
        ]
    } else {
        vec![("s3.credentials", "instance".to_owned()), ("s3.instance_endpoint", server.endpoint())]
    };
    let pairs = pairs.into_iter().chain([("s3.endpoint", server.endpoint())]);
    let options = pairs.map(|(key, value)| (key.to_owned(), value)).collect();
    let mut world = World::on(server, options, &["t"]).await;
    let clock = world.runtime.clock.clone();
    let (start, mut rounds) = (clock.moment(), 0);
    while clock.moment().saturating_duration_since(start) < time {
        world.load();
        let ended = world.round("t").await.map_err(|error| error.chain());
        assert!(matches!(ended.unwrap().outcome, RoundOutcome::Committed { .. }));
        rounds += 1;
        // As a table of that freshness: ten minutes of it are no more snapshots than that.
        clock.sleep(life / 20).await;
    }
    assert_eq!(world.server.refused(), 0, "none was used past its end");
    assert!(rounds > 3 && world.server.handed_out() >= 2, "{rounds} rounds, {} sets", world.server.handed_out());
    world.heals().await;
}

#[tokio::test]
async fn rounds_go_on_while_credentials_end_and_are_renewed() {
    let rounds = |web_identity| rounds_with_credentials_of(Duration::from_secs(4), Duration::from_secs(6), web_identity);
    futures::join!(rounds(false), rounds(true));
}

#[tokio::test]
#[ignore = "ten minutes: `cargo test --test it -- --ignored s3::rounds::ten_minutes`"]
async fn ten_minutes_with_credentials_of_a_minute_pass_without_a_failed_round() {
    rounds_with_credentials_of(Duration::from_secs(60), Duration::from_secs(600), false).await;
}

/// What a seed says of one request.
fn trouble(rng: &Rng, one_in: u64, asked: &Asked) -> Option<Trouble> {
    if rng.below(one_in) > 0 {
        return None;
    }
    Some(match rng.below(8) {
        0 => Trouble::Answer(503, "SlowDown"),
        1 => Trouble::Answer(500, "InternalError"),
        2 => Trouble::Done(500, "InternalError"),
        3 => Trouble::Lost,
        4 => Trouble::Cut,
        5 => Trouble::Slow(Duration::from_millis(20)),
        6 if asked.act == "create" => Trouble::Answer(409, "ConditionalRequestConflict"),
        7 if asked.act == "create" => Trouble::Done(412, "PreconditionFailed"),
        // Longer than a request may take.
        _ => Trouble::Slow(Duration::from_millis(700)),
    })
}

/// Two services work on the same table at once, over a server that fails one request in so many.
async fn soak(seed: u64, time: Duration, one_in: u64) -> (u32, BTreeMap<&'static str, u32>) {
    let mut world = World::new(&["t"]).await;
    let clock = world.runtime.clock.clone();
    let (start, rng) = (clock.moment(), Rng::from_seed(seed));
    let (mut committed, mut ended) = (0, BTreeMap::new());
    while clock.moment().saturating_duration_since(start) < time {
        world.load();
        let dice = rng.clone();
        world.server.trouble(move |asked| trouble(&dice, one_in, asked));
        for round in futures::future::join_all([world.round("t"), world.round("t"), world.round("t")]).await {
            match round {
                Ok(summary) => committed += u32::from(matches!(summary.outcome, RoundOutcome::Committed { .. })),
                Err(error) => {
                    assert!(matches!(error.kind(), Kind::Unavailable | Kind::Stale), "seed {seed}: {}", error.chain());
                    assert!(!error.chain().contains("hush"), "{}", error.chain());
                    *ended.entry(error.kind().as_str()).or_default() += 1;
                }
            }
        }
    }
    world.heals().await;
    (committed, ended)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_that_fight_over_one_table_on_a_failing_server_lose_and_double_nothing() {
    let (committed, _) = soak(1, Duration::from_secs(4), 12).await;
    assert!(committed > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: `cargo test --test it -- --ignored s3::rounds::soak --nocapture`"]
async fn soak_of_some_minutes_on_s3() {
    for (seed, one_in) in [(2, 100), (3, 30), (4, 10), (5, 5)] {
        let (committed, ended) = soak(seed, Duration::from_secs(60), one_in).await;
        assert!(committed > 10, "{committed}");
        #[expect(clippy::print_stdout, reason = "the figures of docs/reliability.md")]
        {
            println!("one request in {one_in} fails: {committed} rounds committed, others ended {ended:?}");
        }
    }
}
