//! A writer that is dropped or fails anywhere leaves nothing behind; one that ends has every row, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use proptest::prelude::*;

use super::*;
use crate::model::ChangeKind;

/// What is done to a writer.
#[derive(Debug, Clone, Copy)]
enum Act {
    Write(i64),
    Relieve,
    Flush,
}

#[derive(Debug, Clone)]
struct Case {
    keyed: bool,
    threads: usize,
    memory: usize,
    group_bytes: usize,
    part_bytes: usize,
    file_rows: i64,
    acts: Vec<Act>,
    /// A call of the store that fails, and whether its work is done.
    failing: Option<(usize, bool)>,
    /// An act (or the end) that is dropped after so many turns.
    dropped: Option<(usize, usize)>,
}

fn cases() -> impl Strategy<Value = Case> {
    let act = prop_oneof![6 => (1_i64..900).prop_map(Act::Write), 1 => Just(Act::Relieve), 1 => Just(Act::Flush)];
    let sizes = (1_usize..5, 6_u32..11, 12_u32..18, 10_u32..17, 100_i64..5000);
    let trouble =
        (prop::option::weighted(0.4, (0_usize..30, any::<bool>())), prop::option::weighted(0.4, (0_usize..14, 0_usize..200)));
    (any::<bool>(), sizes, prop::collection::vec(act, 1..14), trouble).prop_map(
        |(keyed, (threads, memory, group, part, file_rows), acts, (failing, dropped))| Case {
            keyed,
            threads,
            memory: 1024 << memory,
            group_bytes: 1 << group,
            part_bytes: 1 << part,
            file_rows,
            acts,
            failing,
            dropped,
        },
    )
}

/// What comes of `work`, unless it takes more turns than `turns`.
async fn within<T>(turns: Option<usize>, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = async {
            match turns {
                Some(turns) => for _ in 0..turns { tokio::task::yield_now().await },
                None => std::future::pending().await,
            }
        } => None,
    }
}

async fn check(case: Case) {
    let rows = case.file_rows.to_string();
    let options = [("target-file-row-num", rows.as_str()), ("changelog-producer", "input"), ("bucket", "4")];
    let mut schema = (*orders(if case.keyed { &options } else { &options[..1] })).clone();
    if case.keyed {
        schema.primary_keys = vec![schema.fields[0].name.clone()];
    }
    let schema = Arc::new(schema);
    let plain = Store::in_memory();
    let (calls, failing) = (AtomicUsize::new(0), case.failing);
    let store = plain.with_faults(Faults::scripted(move |act, _| {
        // What can't be deleted stays, by the contract.
        let (place, done) = failing.filter(|_| act != "delete")?;
        (calls.fetch_add(1, Ordering::Relaxed) == place).then(|| if done { Fault::After } else { Fault::Before })
    }));
    let mut runtime = Runtime::simulated(1, 1_000, case.memory);
    runtime.encoders = Encoders::threads(case.threads).unwrap();
    let options = WriteOptions { row_group_bytes: case.group_bytes, part_bytes: case.part_bytes, ..WriteOptions::default() };
    let round = RoundId(uuid::Uuid::from_u128(7));
    let context = WriteContext::new(store, "demo.db/t", Arc::clone(&schema), round, runtime.clone(), options).unwrap();
    let mut writer = BucketWriter::new(Arc::clone(&context), target(), 10).unwrap();
    // Key and sequence number of all rows.
    let (mut written_rows, mut whole) = (Vec::new(), true);
    for (index, act) in case.acts.iter().enumerate() {
        let turns = case.dropped.filter(|(at, _)| *at == index).map(|(_, turns)| turns);
        let done = match act {
            Act::Relieve => within(turns, writer.relieve()).await,
            Act::Flush => within(turns, writer.flush()).await,
            Act::Write(count) => {
                let from = i64::try_from(written_rows.len()).unwrap();
                let first = if case.keyed { from * 7 % 400 } else { from };
                written_rows.extend((first..first + count).zip(from + 10..));
                let rows = order_rows(&schema, first, first + count);
                // As a reader that waits for memory makes its writer give some back.
                let permit = loop {
                    match runtime.budget.try_acquire(rows.get_array_memory_size()) {
                        Some(permit) => break Some(permit),
                        None if writer.held_bytes() == 0 => break Some(runtime.budget.acquire(rows.get_array_memory_size()).await),
                        None if writer.relieve().await.is_err() => break None,
                        None => {}
                    }
                };
                let Some(permit) = permit else {
                    whole = false;
                    break;
                };
                let kinds = vec![ChangeKind::Insert; usize::try_from(*count).unwrap()];
                within(turns, writer.write(rows, case.keyed.then_some(kinds.as_slice()), first, permit)).await
            }
        };
        if !matches!(done, Some(Ok(()))) {
            whole = false;
            break;
        }
    }
    let files = if whole {
        writer.finish().await.ok()
    } else {
        drop(writer.abort().await);
        None
    };
    while runtime.budget.used() + runtime.aside.used() > 0 {
        tokio::task::yield_now().await;
    }
    let mut there: BTreeSet<String> = plain.list("").await.unwrap().into_iter().map(|object| object.path).collect();
    let Some(files) = files else {
        assert_eq!(there, BTreeSet::new(), "nothing is left");
        return;
    };
    let (mut sequence, mut newest, mut logged) = (10, BTreeMap::new(), BTreeSet::new());
    for (entry, log) in files.data.iter().map(|entry| (entry, false)).chain(files.changelog.iter().map(|entry| (entry, true))) {
        assert!(there.remove(&format!("demo.db/t/bucket-{}/{}", entry.bucket, entry.file.file_name)));
        let mut count = 0;
        for batch in read(written(&plain, entry).await) {
            let column = |name: &str| batch.column_by_name(name).unwrap().as_primitive::<Int64Type>().values().to_vec();
            count += i64::try_from(batch.num_rows()).unwrap();
            if !case.keyed {
                let ids = column("id");
                assert_eq!(ids, (sequence - 10..sequence - 10 + i64::try_from(ids.len()).unwrap()).collect::<Vec<_>>());
                sequence += i64::try_from(ids.len()).unwrap();
                continue;
            }
            for row in column("id").into_iter().zip(column("_SEQUENCE_NUMBER")) {
                if log {
                    assert!(logged.insert(row), "{row:?} is told twice");
                } else {
                    let last = newest.insert(row.0, row.1);
                    assert!(last.is_none_or(|last| last < row.1), "files are in the order of their sequence numbers");
                }
            }
        }
        assert_eq!(count, entry.file.row_count);
        if !case.keyed {
            assert_eq!((entry.file.min_sequence_number, entry.file.max_sequence_number), (sequence - count, sequence - 1));
        }
    }
    assert_eq!(there, BTreeSet::new(), "nothing is there that no entry names");
    if case.keyed {
        assert_eq!(newest, written_rows.iter().copied().collect());
        assert_eq!(logged, written_rows.into_iter().collect());
    } else {
        assert_eq!(sequence - 10, i64::try_from(written_rows.len()).unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_writer_that_is_cut_anywhere_leaves_nothing_and_one_that_ends_has_every_row(case in cases()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ended = runtime.block_on(async { tokio::time::timeout(std::time::Duration::from_secs(60), check(case)).await });
        ended.expect("nobody waits for himself");
    }
}
