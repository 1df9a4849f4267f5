//! Whole rounds over a store that fails: every kind of fault at every call of a round, once and from there on, then mixes of them.
//!
//! Whatever happens, a round ends after a bounded number of calls; its error names the path and, where waiting does not help, the way
//! out; and when the faults have ended, the next rounds bring every row into the lake once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, RecordBatch, StringArray};
use lakeward::daemon::board::{Board, TableState};
use lakeward::daemon::{self, Service};
use lakeward::error::{Error, Kind, Result};
use lakeward::fluss::record::arrow_schema;
use lakeward::fluss::table_json::TableDescriptor;
use lakeward::lake::{LakeTable, Warehouse};
use lakeward::mapping;
use lakeward::model::{
    BucketId, Partition, RoundOutcome, RoundSummary, SchemaId, TableBucket, TableInfo, TablePath, TieringEpoch, TypeKind,
};
use lakeward::round::{self, Job, Limits, Options, RoundContext};
use lakeward::runtime::{Runtime, Stores};
use lakeward::source::LedgerState;
use lakeward::source::memory::{self, MemoryCluster, MemoryService};
use lakeward::storage::{Fault, Faults, Mounted, Store, mount};
use tokio_util::sync::CancellationToken;

use crate::rounds::{self, field};

/// Calls of one round, replans and tries included, that no store may make it exceed.
const CALLS_MAX: u64 = 2_500;

/// A kind of fault, by its name in the figures.
type Named = (&'static str, fn() -> Fault);
/// Decides from a call's number (1 = the next), act and path.
type Judge = Box<dyn FnMut(u64, &str, &str) -> Option<Fault> + Send>;

/// What can go wrong.
const KINDS: &[Named] = &[
    ("503 or no connection", || Fault::Before),
    ("reply lost after the work", || Fault::After),
    ("403", || Fault::Denied),
    ("409 although nothing is there", || Fault::Conflict),
    ("412 to our own repeated request", || Fault::Repeated),
    ("slow", || Fault::Slow(Duration::from_secs(30))),
    ("stale list", || Fault::StaleList),
    ("cut upload", || Fault::Cut),
];

/// Kinds that fit the act; the others would do nothing.
fn fits(fault: &Fault, act: &str) -> bool {
    match fault {
        Fault::Conflict | Fault::Repeated => act == "create",
        Fault::StaleList => act == "list",
        Fault::Cut => act == "put",
        _ => true,
    }
}

/// What the store does with calls from now on.
#[derive(Default)]
struct Script {
    calls: u64,
    /// Calls as they came, while somebody wants to know.
    seen: Vec<(String, String)>,
    judge: Option<Judge>,
    /// Paths of calls that went wrong.
    spoiled: BTreeSet<String>,
}

/// A cluster, two warehouses with a table each, and the script of the first one's store.
struct World {
    runtime: Runtime,
    cluster: MemoryCluster,
    script: Arc<Mutex<Script>>,
    /// The stores as they are, without faults.
    stores: Vec<Store>,
    tables: Vec<TableInfo>,
    days: Vec<Partition>,
    next_id: i64,
    _mounts: Vec<Mounted>,
}

static WORLDS: AtomicU64 = AtomicU64::new(0);

fn path(name: &str) -> TablePath {
    TablePath::new("demo", name)
}

impl World {
    async fn new(seed: u64) -> Self {
        let runtime = Runtime::simulated(seed, 1_790_000_000_000, 64 << 20);
        let cluster = MemoryCluster::new(runtime.clone());
        let script = Arc::new(Mutex::new(Script::default()));
        let (of_store, number) = (Arc::clone(&script), WORLDS.fetch_add(1, Ordering::Relaxed));
        let faults = Faults::scripted(move |act, path| {
            let mut script = of_store.lock().unwrap();
            script.calls += 1;
            script.seen.push((act.to_owned(), path.to_owned()));
            let number = script.calls;
            let fault = script.judge.as_mut()?(number, act, path).filter(|fault| fits(fault, act))?;
            script.spoiled.insert(path.to_owned());
            Some(fault)
        });
        let (mut stores, mut mounts, mut tables) = (vec![], vec![], vec![]);
        for (name, faults) in [("t", Some(faults)), ("u", None)] {
            let store = Store::in_memory_at(runtime.clock.clone());
            let url = format!("memory:faulty-{number}-{name}");
            mounts.push(mount(&url, faults.map_or_else(|| store.clone(), |faults| store.with_faults(faults))));
            let table = cluster.create_table(&path(name), &descriptor(&url)).unwrap();
            let lake = Warehouse::new(store.clone(), runtime.clone());
            assert!(lake.create_table("demo", name, &mapping::lake_schema(&table).unwrap()).await.unwrap());
            stores.push(store);
            tables.push(table);
        }
        let mut days = vec![cluster.create_partition(&path("t"), &["a"]).unwrap()];
        cluster.alter_bucket_count(&path("t"), 4).unwrap();
        days.push(cluster.create_partition(&path("t"), &["b"]).unwrap());
        days.push(cluster.create_partition(&path("u"), &["a"]).unwrap());
        Self { runtime, cluster, script, stores, tables, days, next_id: 0, _mounts: mounts }
    }

    /// Rows into every bucket of both tables; a text is so long that files go up in parts.
    fn load(&mut self) {
        for (day, table) in self.days.iter().zip([0, 0, 1]) {
            for bucket in 0..day.bucket_count.unwrap() {
                let ids: Vec<i64> = (self.next_id..).take(8).collect();
                self.next_id += 8;
                let long = ids.iter().map(|id| format!("{id:x}").repeat(if id % 24 == 0 { 600 } else { 3 }));
                let days = ids.iter().map(|_| day.spec[0].1.as_str());
                let columns = vec![
                    Arc::new(Int64Array::from(ids.clone())) as _,
                    Arc::new(StringArray::from_iter_values(days)) as _,
                    Arc::new(StringArray::from_iter_values(long)) as _,
                ];
                let rows = RecordBatch::try_new(arrow_schema(&self.tables[table].schema).unwrap(), columns).unwrap();
                let bucket = TableBucket { table: self.tables[table].id, partition: Some(day.id), bucket: BucketId(bucket) };
                self.cluster.append(bucket, SchemaId(1), &rows, None).unwrap();
            }
        }
    }

    fn context(&self) -> RoundContext {
        let service: Arc<MemoryService> = Arc::new(self.cluster.service(memory::Faults::default()));
        let mut options = Options::default();
        // Small enough for uploads in parts.
        (options.write.part_bytes, options.write.row_group_rows) = (1024, 3);
        RoundContext { scan: Arc::clone(&service) as _, ledger: service, runtime: self.runtime.clone(), options }
    }

    async fn round(&self, name: &str) -> Result<RoundSummary> {
        let context = self.context();
        let table = context.scan.table_info(&path(name)).await?.id;
        let job = Job { path: path(name), table, epoch: TieringEpoch(1), lease: None, limits: Limits::default() };
        Box::pin(round::run(&context, &job)).await
    }

    /// From now on calls of `t`'s store go wrong as `judge` says.
    fn spoil(&self, judge: impl FnMut(u64, &str, &str) -> Option<Fault> + Send + 'static) {
        *self.script.lock().unwrap() = Script { judge: Some(Box::new(judge)), ..Script::default() };
    }

    /// The faults are over: calls, and paths that went wrong.
    fn mend(&self) -> Script {
        std::mem::take(&mut *self.script.lock().unwrap())
    }

    async fn lake(&self, table: usize) -> LakeTable {
        let root = format!("demo.db/{}", self.tables[table].path.table);
        LakeTable::open(self.stores[table].clone(), root, self.runtime.clone()).await.unwrap().unwrap()
    }

    /// A round of `t` that meets faults; it ends, after a bounded number of calls, and says what was wrong.
    async fn tried(&self, what: &str) -> (Result<RoundSummary>, u64) {
        let ended = self.runtime.clock.timeout(Duration::from_secs(3 * 3600), self.round("t")).await;
        let ended = ended.unwrap_or_else(|| panic!("{what}: the round never ends"));
        let script = self.mend();
        assert!(script.calls <= CALLS_MAX, "{what}: {} calls", script.calls);
        if let Err(error) = &ended {
            assert_told(what, error, &script.spoiled);
        }
        (ended, script.calls)
    }

    /// Healthy rounds bring everything up, and every row is there once.
    async fn heals(&self, what: &str) {
        for name in ["t", "u"] {
            for turn in 0.. {
                assert!(turn < 4, "{what}: `{name}` does not come to rest");
                let round = self.round(name).await.map_err(|error| error.chain());
                if round.unwrap_or_else(|error| panic!("{what}: {error}")).outcome == RoundOutcome::Idle {
                    break;
                }
            }
        }
        let mut ids: Vec<i64> = Vec::new();
        for (table, info) in self.tables.iter().enumerate() {
            let lake = self.lake(table).await;
            let newest = lake.newest_snapshot_id().await.unwrap().unwrap();
            let snapshot = lake.snapshot(newest).await.unwrap().unwrap();
            for rows in lake.read_rows(&snapshot, None, Some(&["id"])).await.unwrap() {
                ids.extend(rows.column(0).as_primitive::<Int64Type>().values());
            }
            for live in lake.live_partitions(&snapshot, None).await.unwrap().values() {
                assert_eq!(live.totals.len(), 1, "{what}");
            }
            let context = self.context();
            let known = match context.ledger.latest(&info.path).await.unwrap() {
                LedgerState::At(entry) => entry,
                other => panic!("{what}: {other:?}"),
            };
            let ends = round::log_ends(&context, &info.path).await.unwrap();
            let ends: BTreeMap<_, _> = ends.buckets.into_iter().map(|(bucket, _, end)| (bucket, end)).collect();
            assert_eq!((known.snapshot.0, known.offsets.0), (newest, ends), "{what}");
        }
        ids.sort_unstable();
        assert_eq!(ids, Vec::from_iter(0..self.next_id), "{what}");
    }
}

fn descriptor(warehouse: &str) -> TableDescriptor {
    let fields =
        vec![field("id", TypeKind::BigInt, true), field("day", TypeKind::String, true), field("words", TypeKind::String, true)];
    rounds::in_warehouse(rounds::descriptor(fields, &["day"], &["id"], 2), warehouse, "30s")
}

/// The error names what went wrong and where; where waiting does not help, also what would.
fn assert_told(what: &str, error: &Error, spoiled: &BTreeSet<String>) {
    let chain = error.chain();
    assert!(chain.contains("demo.db/t") || chain.contains("demo.t"), "{what}: `{chain}` names nothing");
    match error.kind() {
        Kind::Unavailable => {
            assert!(spoiled.iter().any(|path| chain.contains(path)), "{what}: `{chain}` names no path of {spoiled:?}")
        }
        Kind::Invalid => {
            assert!(spoiled.iter().any(|path| chain.contains(path)), "{what}: `{chain}` names no path of {spoiled:?}");
            assert!(
                error.hint().is_some_and(|hint| hint.contains("read, write and delete")),
                "{what}: `{chain}`: {:?}",
                error.hint()
            );
        }
        Kind::Data => assert!(error.hint().is_some(), "{what}: `{chain}` tells no way out"),
        Kind::Stale => {}
        Kind::Unsupported | Kind::Internal => panic!("{what}: {chain}"),
    }
}

/// Runs `test` in a runtime of its own with paused time.
fn paused(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(test);
}

/// How rounds of one kind of fault ended.
#[derive(Debug, Default)]
struct Figures {
    rounds: u32,
    /// By outcome: committed, or the kind of the error.
    ended: BTreeMap<&'static str, u32>,
    calls_max: u64,
}

impl Figures {
    fn add(&mut self, ended: &Result<RoundSummary>, calls: u64) {
        self.rounds += 1;
        *self.ended.entry(ended.as_ref().map_or_else(|error| error.kind().as_str(), |_| "went through")).or_default() += 1;
        self.calls_max = self.calls_max.max(calls);
    }
}

/// Each kind at each `stride`-th call of a round: that call alone, and all calls from there on.
async fn each_kind_at_each_call(stride: u64) -> BTreeMap<&'static str, Figures> {
    let mut figures: BTreeMap<&'static str, Figures> = BTreeMap::new();
    for (index, (name, fault)) in (0..).zip(KINDS) {
        let mut world = World::new(index).await;
        world.load();
        world.spoil(|_, _, _| None);
        world.round("t").await.unwrap();
        let first_round = world.mend().calls;
        world.heals(name).await;
        for first in [true, false] {
            let mut call = 1 + index % stride;
            // A round may make more calls than the first one: until the fault comes too late.
            for _ in 0..first_round {
                for lasting in [false, true] {
                    if first {
                        world = World::new(call).await;
                    }
                    world.load();
                    let what = format!(
                        "{name} at call {call}{} of a {}",
                        if lasting { " and on" } else { "" },
                        if first { "first round" } else { "later round" }
                    );
                    world.spoil(move |number, _, _| (number == call || (lasting && number > call)).then(fault));
                    let (ended, calls) = world.tried(&what).await;
                    figures.entry(name).or_default().add(&ended, calls);
                    world.heals(&what).await;
                }
                call += stride;
                if call > first_round + 8 {
                    break;
                }
            }
        }
    }
    figures
}

#[expect(clippy::print_stdout, reason = "the figures of docs/reliability.md")]
fn print(figures: &BTreeMap<&'static str, Figures>) {
    for (name, figures) in figures {
        println!("{name}: {} rounds: {:?}, at most {} calls", figures.rounds, figures.ended, figures.calls_max);
    }
}

#[test]
fn a_fault_of_any_kind_at_any_call_of_a_round_costs_no_row_and_ends() {
    paused(async {
        let figures = each_kind_at_each_call(7).await;
        print(&figures);
        for (name, expected) in [
            ("503 or no connection", "unavailable"),
            ("403", "invalid"),
            ("slow", "went through"),
            ("412 to our own repeated request", "went through"),
        ] {
            assert!(figures[name].ended.contains_key(expected), "{name}: {figures:?}");
        }
    });
}

#[test]
#[ignore = "a minute: `cargo test --test it -- --ignored faulty_store --nocapture`"]
fn faulty_store_matrix() {
    paused(async { print(&each_kind_at_each_call(1).await) });
}

/// A round of each table side by side, two services each, over a store where one call in `one_in` goes wrong somehow.
async fn mix(seed: u64) {
    let mut world = World::new(seed).await;
    let rng = world.runtime.rng.clone();
    for turn in 0..4 {
        world.load();
        let (dice, one_in) = (rng.clone(), [3, 10, 30, 100][turn]);
        world.spoil(move |_, _, _| {
            (dice.below(one_in) == 0).then(|| KINDS[usize::try_from(dice.below(KINDS.len() as u64)).unwrap()].1())
        });
        let what = format!("seed {seed}, turn {turn}");
        let both = async { futures::join!(world.round("t"), world.round("t"), world.round("u")) };
        let (one, other, beside) = world.runtime.clock.timeout(Duration::from_secs(6 * 3600), both).await.expect(&what);
        let script = world.mend();
        assert!(script.calls <= 2 * CALLS_MAX, "{what}: {} calls", script.calls);
        for error in [one, other].into_iter().filter_map(Result::err) {
            assert_told(&what, &error, &script.spoiled);
        }
        assert!(beside.is_ok(), "{what}: another store has no faults");
        world.heals(&what).await;
    }
}

#[test]
fn after_any_mix_of_faults_every_row_is_there_once() {
    for seed in 0..25 {
        paused(Box::pin(mix(seed)));
    }
}

#[test]
#[ignore = "a minute: `cargo test --test it -- --ignored faulty_store`"]
fn faulty_store_seeds() {
    for seed in 0..1_000 {
        paused(Box::pin(mix(seed)));
    }
}

#[test]
fn a_store_that_ignores_create_if_absent_is_refused_before_anything_is_written_and_others_go_on() {
    paused(async {
        let mut world = World::new(1).await;
        world.load();
        // Simulations take every store for sound; a process does not.
        world.runtime.stores = Stores::default();
        world.spoil(|_, act, _| (act == "create").then_some(Fault::Replaces));
        let queue = Arc::new(world.cluster.service(memory::Faults::default()));
        let service = Service { queue, rounds: world.context(), options: daemon::Options::default() };
        let (mut committed, before) = (vec![], world.stores[0].list("").await.unwrap());
        let report =
            daemon::run_once(&service, Duration::from_secs(60), &mut |round| committed.push(round.table.clone())).await.unwrap();
        assert_eq!(committed, [path("u")]);
        let [(table, error)] = report.faults.as_slice() else { panic!("{:?}", report.faults) };
        assert_eq!((table, error.kind()), (&path("t"), Kind::Unsupported));
        assert!(error.chain().contains("no atomic create-if-absent") && error.chain().contains("demo.db/t"), "{}", error.chain());
        assert!(error.hint().unwrap().contains("use a store that has it"), "{:?}", error.hint());
        assert_eq!(world.stores[0].list("").await.unwrap(), before, "nothing was written, the probe is gone");
        // It was tried by a call of each kind, once; the sound one is not tried again.
        let creates = world.mend().seen.iter().filter(|(act, path)| act == "create" && path.contains(".lakeward-check-")).count();
        assert_eq!(creates, 2);
        world.heals("the store was replaced by a sound one").await;
    });
}

#[test]
fn a_pin_whose_write_was_cut_goes_with_its_day_and_keeps_no_round_from_its_work() {
    paused(async {
        let mut world = World::new(3).await;
        let half = "demo.db/t/consumer/consumer-lakeward-00000000-0000-0000-0000-000000000007";
        world.stores[0].put(half, "{\n  \"nextSn".into()).await.unwrap();
        for (turn, hours) in [(1, 1), (2, 22), (3, 2), (4, 1)] {
            world.load();
            world.round("t").await.unwrap();
            let pins: Vec<String> = world.lake(0).await.pins("lakeward-").await.unwrap().into_iter().map(|pin| pin.name).collect();
            assert_eq!(pins.iter().any(|pin| pin.ends_with("7") && half.ends_with(pin.as_str())), turn < 4, "{turn}: {pins:?}");
            assert_eq!(pins.len(), if turn < 4 { 2 } else { 1 }, "{turn}: {pins:?}");
            world.runtime.clock.sleep(Duration::from_secs(hours * 3600)).await;
        }
    });
}

#[test]
fn a_denied_table_is_held_and_said_while_others_go_on_and_catches_up_when_the_rights_are_back() {
    paused(async {
        let mut world = World::new(2).await;
        world.load();
        let writes = |act: &str| matches!(act, "put" | "create" | "upload" | "delete");
        world.spoil(move |_, act, _| writes(act).then_some(Fault::Denied));
        let queue = Arc::new(world.cluster.service(memory::Faults::default()));
        let board = Board::new(2, world.runtime.clock.now_ms());
        let service =
            Service { queue, rounds: world.context(), options: daemon::Options { parallel: 2, ..daemon::Options::default() } };
        let (stop, told, ids) =
            (CancellationToken::new(), board.clone(), world.tables.iter().map(|table| table.id).collect::<Vec<_>>());
        let asked = stop.clone();
        let running = tokio::spawn(async move { daemon::run(&service, asked, &told, &mut |_| {}).await });
        let until = async |what: &str, look: &dyn Fn() -> bool| {
            let wait = async {
                while !look() {
                    world.runtime.clock.sleep(Duration::from_millis(500)).await;
                }
            };
            world.runtime.clock.timeout(Duration::from_secs(3600), wait).await.unwrap_or_else(|| panic!("never: {what}"));
        };
        let state = |table: usize| board.table(ids[table]).map(|status| status.state);
        until("the denied table is held", &|| state(0) == Some(TableState::Held)).await;
        until("the other one goes on", &|| board.table(ids[1]).is_some_and(|status| status.snapshot.is_some())).await;
        let said = board.table(ids[0]).unwrap();
        let reason = serde_json::to_string(&said).unwrap();
        assert!(reason.contains("demo.db/t") && reason.contains("read, write and delete"), "{reason}");
        let calls = world.mend().calls;
        assert!(calls <= CALLS_MAX, "{calls} calls until it is held");
        until("the rights are back", &|| board.table(ids[0]).is_some_and(|status| status.snapshot.is_some())).await;
        stop.cancel();
        running.await.unwrap().unwrap();
        world.heals("denied").await;
    });
}
