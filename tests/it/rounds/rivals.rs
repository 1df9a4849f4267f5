//! Services that hold one table at the same time, and messages of theirs that come late or twice.

use std::sync::Mutex;

use async_trait::async_trait;
use lakeward::error::{Kind, Result};
use lakeward::model::{LakeOffsets, OffsetsFile, TableId, TieringEpoch};
use lakeward::round::{Job, Limits};
use lakeward::source::LedgerRecord;
use tokio::sync::Semaphore;

use super::*;

/// The ledger over the wire, with a gate before each prepare; it keeps what was recorded.
struct Gated {
    source: Arc<ClusterSource>,
    /// Prepares that wait for the gate or are through.
    arrived: tokio::sync::watch::Sender<usize>,
    gate: Semaphore,
    recorded: Mutex<Vec<LedgerRecord>>,
}

impl Gated {
    fn new(stage: &Stage, permits: usize) -> Arc<Self> {
        let arrived = tokio::sync::watch::Sender::new(0);
        Arc::new(Self { source: stage.source(), arrived, gate: Semaphore::new(permits), recorded: Mutex::default() })
    }
}

#[async_trait]
impl LakeLedger for Gated {
    async fn latest(&self, path: &TablePath) -> Result<LedgerState> {
        self.source.latest(path).await
    }

    async fn prepare(&self, table: TableId, path: &TablePath, offsets: &LakeOffsets) -> Result<String> {
        self.arrived.send_modify(|count| *count += 1);
        self.gate.acquire().await.unwrap().forget();
        self.source.prepare(table, path, offsets).await
    }

    async fn offsets_file(&self, path: &str) -> Result<Option<OffsetsFile>> {
        self.source.offsets_file(path).await
    }

    async fn record(&self, record: LedgerRecord) -> Result<()> {
        self.source.record(record.clone()).await?;
        self.recorded.lock().unwrap().push(record);
        Ok(())
    }
}

/// Everything below `data` folders of a table that no live entry names, and every manifest that no snapshot needs is fine: readers
/// come from snapshots. Data files left behind by a loser would be litter.
async fn orphans(stage: &Stage, path: &TablePath) -> Vec<String> {
    let lake = stage.lake(path).await;
    let named: BTreeSet<PathBuf> = files(&lake).await.into_iter().map(|file| file.place).collect();
    let root = lake.store().local_root().unwrap().to_owned();
    let listed = lake.store().list(lake.root()).await.unwrap();
    listed
        .into_iter()
        .map(|found| found.path)
        .filter(|path| path.contains("/bucket-") && !named.contains(&root.join(path)))
        .collect()
}

/// The first service stands still with its files written until its lease has run out and the second one has committed.
async fn overtaken(replans_max: u32) -> (Stage, TablePath, OnceReport, Vec<RoundSummary>) {
    let stage = Stage::with(|options| options.lease = Duration::from_millis(200)).await;
    let path = stage.table("orders", &orders()).await;
    stage.append(&path, 0..100, "a").await;
    let ledger = Gated::new(&stage, 0);
    let mut rounds = stage.rounds();
    rounds.ledger = Arc::<Gated>::clone(&ledger);
    rounds.options.replans_max = replans_max;
    let slow = stage.service(rounds);
    let slow = tokio::spawn(async move { run_once(&slow, Duration::ZERO).await });
    ledger.arrived.subscribe().wait_for(|count| *count == 1).await.unwrap();

    stage.append(&path, 100..200, "a").await;
    stage.append(&path, 200..300, "b").await;
    let (report, rounds) = run_once(&stage.service(stage.rounds()), Duration::from_millis(1200)).await;
    assert_no_faults(&report);
    assert_eq!(rounds.iter().map(|round| (snapshot_of(round), round.rows)).collect::<Vec<_>>(), [(Some(1), 300)]);
    stage.append(&path, 300..400, "b").await;
    ledger.gate.add_permits(100);
    let (report, rounds) = slow.await.unwrap();
    (stage, path, report, rounds)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_overtaken_after_its_lease_gives_up_as_stale_and_takes_its_files_away() {
    let (stage, path, report, rounds) = overtaken(0).await;
    let faults: Vec<_> = report.faults.iter().map(|(table, error)| (table.clone(), error.kind())).collect();
    assert_eq!((faults, rounds.len()), (vec![(path.clone(), Kind::Stale)], 0));
    assert_eq!(orphans(&stage, &path).await, Vec::<String>::new());
    assert_eq!(stage.ids(&path).await, Vec::from_iter(0..300));
    assert_eq!(
        stage.lake(&path).await.pins("lakeward-").await.unwrap().len(),
        1,
        "the loser's pin is gone, the standing one is not"
    );
    assert_eq!(stage.tier().await, [Some(2)]);
    assert_eq!(stage.ids(&path).await, Vec::from_iter(0..400));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_overtaken_after_its_lease_plans_afresh_and_tiers_only_what_is_new() {
    let (stage, path, report, rounds) = overtaken(5).await;
    assert_no_faults(&report);
    assert_eq!(rounds.iter().map(|round| (snapshot_of(round), round.rows)).collect::<Vec<_>>(), [(Some(2), 100)]);
    assert_eq!(orphans(&stage, &path).await, Vec::<String>::new());
    assert_eq!(stage.ids(&path).await, Vec::from_iter(0..400));
    assert_eq!(stage.tier().await, [None]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_that_fight_over_a_table_while_rows_arrive_tier_each_row_once() {
    let stage = Stage::with(|options| options.lease = Duration::from_millis(20)).await;
    let path = stage.table("orders", &orders()).await;
    let writing = async {
        for start in (0..400).step_by(20) {
            stage.append(&path, start..start + 20, if start % 40 == 0 { "a" } else { "b" }).await;
        }
    };
    let table = stage.info(&path).await.id;
    // Some through the queue, whose leases run out at once; one that never asked for the table.
    let fighter = |queued: bool| {
        let mut rounds = stage.rounds();
        rounds.options.replan_pause = Duration::from_millis(1);
        let service = stage.service(rounds);
        let job = Job { path: path.clone(), table, epoch: TieringEpoch(1), lease: None, limits: Limits::default() };
        tokio::spawn(async move {
            let mut written = 0;
            // Each goes on until the lake has everything, whoever brought it there.
            loop {
                let (done, faults) = if queued {
                    let (report, done) = run_once(&service, Duration::ZERO).await;
                    (done, report.faults.into_iter().map(|(_, error)| error).collect())
                } else {
                    match round::run(&service.rounds, &job).await {
                        Ok(summary) => (vec![summary], vec![]),
                        Err(error) => (vec![], vec![error]),
                    }
                };
                written += done.iter().map(|summary| summary.rows).sum::<u64>();
                assert!(faults.iter().all(|error| error.kind() == Kind::Stale), "{faults:?}");
                let table = service.rounds.scan.table_info(&job.path).await.unwrap();
                let (lake, _) = round::open_lake(&table, &service.rounds.runtime).await.unwrap();
                if newest(&lake).await.is_some_and(|newest| newest.total_record_count >= Some(400)) {
                    return written;
                }
            }
        })
    };
    let fighters = [fighter(true), fighter(true), fighter(false)];
    writing.await;
    let mut written = 0;
    for fighter in fighters {
        written += fighter.await.unwrap();
    }
    assert_eq!((written, stage.ids(&path).await), (400, Vec::from_iter(0..400)));
    assert_eq!(stage.tier().await, [None]);
    assert_eq!(orphans(&stage, &path).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_and_repeated_records_destroy_nothing() {
    let stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    let ledger = Gated::new(&stage, 100);
    let mut rounds = stage.rounds();
    rounds.ledger = Arc::<Gated>::clone(&ledger);
    let service = stage.service(rounds);
    for round in 0..3 {
        stage.append(&path, round * 50..round * 50 + 50, "a").await;
        let (report, rounds) = run_once(&service, Duration::ZERO).await;
        assert_no_faults(&report);
        assert_eq!(rounds.iter().map(snapshot_of).collect::<Vec<_>>(), [Some(round + 1)]);
    }
    let recorded = ledger.recorded.lock().unwrap().clone();
    assert_eq!(recorded.iter().map(|record| record.snapshot.0).collect::<Vec<_>>(), [1, 2, 3]);
    let source = stage.source();

    // The last one again: the file that it names is still the newest entry's.
    source.record(recorded[2].clone()).await.unwrap();
    let entry = match source.latest(&path).await.unwrap() {
        LedgerState::At(entry) => entry,
        other => panic!("the ledger says {other:?}"),
    };
    assert_eq!((entry.snapshot, &entry.offsets), (SnapshotId(3), &recorded[2].offsets));

    // Older ones, late: Fluss goes back to the one, whose file is still there, and can't read the other's. The next round sets
    // either right before it plans.
    let mut rounds = stage.rounds();
    rounds.options.commit.unknown_pause = Duration::from_millis(10);
    let service = stage.service(rounds);
    for (late, known) in [(&recorded[1], Some(SnapshotId(2))), (&recorded[0], None)] {
        source.record(late.clone()).await.unwrap();
        let state = source.latest(&path).await.unwrap();
        match (&state, known) {
            (LedgerState::At(entry), Some(known)) => assert_eq!((entry.snapshot, &entry.offsets), (known, &late.offsets)),
            (LedgerState::Unknown { .. }, None) => {}
            other => panic!("the ledger says {other:?}"),
        }
        let (report, rounds) = run_once(&service, Duration::ZERO).await;
        assert_no_faults(&report);
        let found: Vec<_> = rounds.iter().map(|round| (snapshot_of(round), round.recovered)).collect();
        assert_eq!(found, [(None, Some(SnapshotId(3)))]);
        assert_eq!(stage.known(&path).await, Some(SnapshotId(3)));
    }
    stage.append(&path, 150..200, "b").await;
    source.record(recorded[2].clone()).await.unwrap();
    let (report, rounds) = run_once(&service, Duration::ZERO).await;
    assert_no_faults(&report);
    assert_eq!(rounds.iter().map(snapshot_of).collect::<Vec<_>>(), [Some(4)]);
    assert_eq!((stage.known(&path).await, stage.ids(&path).await), (Some(SnapshotId(4)), Vec::from_iter(0..200)));
}
