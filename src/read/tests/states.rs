//! State splits, and logs that tell of changes.

use arrow_array::types::Int32Type;
use serde_json::{Value, json};

use super::*;
use crate::model::ChangeKind;
use crate::source::is_state_lost;

/// Three buckets; bucket 0 has the keys 0..200, bucket 2 none.
fn keyed(memory: usize) -> World {
    let mut world = world(memory);
    let schema = Schema { primary_key: vec!["id".into()], ..(*world.table.schema).clone() };
    let table = described(schema, None);
    world.table = Arc::new(world.cluster.create_table(&TablePath::new("demo", "keyed"), &table).unwrap());
    world.put(0, 0..200, &[]);
    world.put(1, 200..300, &[]);
    world
}

fn described(schema: Schema, format: Option<&str>) -> TableDescriptor {
    TableDescriptor {
        bucket_keys: schema.primary_key.clone(),
        schema,
        comment: None,
        partition_keys: vec![],
        bucket_count: Some(LAYOUT.count),
        properties: format.map(|format| ("table.log.format".to_owned(), format.to_owned())).into_iter().collect(),
        custom_properties: BTreeMap::new(),
    }
}

impl World {
    fn put(&self, bucket: i32, ids: std::ops::Range<i64>, deletes: &[i64]) {
        let gone: Vec<bool> = ids.clone().map(|id| deletes.contains(&id)).collect();
        let ids = Arc::new(ids.collect::<Int64Array>());
        let rows = RecordBatch::try_new(arrow_schema(&self.table.schema).unwrap(), vec![ids]).unwrap();
        self.cluster.put(self.bucket(bucket), SchemaId(1), &rows, Some(&gone)).unwrap();
    }

    fn state(&self, bucket: i32) -> Split {
        Split { kind: SplitKind::State, ..self.split(bucket, StartOffset::Earliest, 1) }
    }

    async fn state_reader(&self, splits: &[Split], faults: Faults, cut: Cut, bucket_bytes: i32) -> Reader {
        let scan = Arc::new(self.cluster.service(faults));
        let options = Options { bucket_bytes, ..Options::default() };
        Reader::new(scan, Arc::clone(&self.table), splits, options, cut, self.runtime.clone()).await.unwrap()
    }

    async fn nothing_held(&self) {
        while self.runtime.budget.used() > 0 || self.cluster.open_states() > 0 {
            tokio::task::yield_now().await;
        }
    }
}

/// The sorted keys of a state, the offset that it names, and the chunks that it came in.
async fn state(mut stream: SplitStream) -> Result<(Vec<i64>, i64, usize)> {
    let (mut ids, mut end, mut chunks) = (vec![], -1, 0);
    while let Some(chunk) = stream.next().await? {
        for batch in &chunk.batches {
            assert_eq!((batch.base_offset, batch.commit_timestamp_ms), (-1, -1));
            assert_eq!(batch.changes, Some(vec![ChangeKind::Insert; batch.rows.num_rows()]));
            ids.extend(batch.rows.column(0).as_primitive::<Int64Type>().values());
        }
        end = chunk.end_offset;
        chunks += 1;
    }
    ids.sort_unstable();
    Ok((ids, end, chunks))
}

#[tokio::test(start_paused = true)]
async fn a_state_comes_whole_as_inserts_and_names_where_the_log_goes_on() {
    for (bucket_bytes, many) in [(1, true), (100, true), (4 << 20, false)] {
        let world = keyed(1 << 20);
        world.put(0, 190..200, &[190, 195]);
        let splits = [world.state(0), world.state(1), world.state(2)];
        let reader = world.state_reader(&splits, Faults::default(), whole(), bucket_bytes).await;
        let streams = splits.iter().map(|split| state(reader.open(split).unwrap()));
        let found = futures::future::try_join_all(streams).await.unwrap();
        let left: Vec<i64> = (0..200).filter(|id| ![190, 195].contains(id)).collect();
        assert_eq!((&found[0].0, found[0].1), (&left, 200 + 2 + 2 * 8));
        assert_eq!((&found[1].0, found[1].1), (&(200..300).collect(), 100));
        assert_eq!(found[2], (vec![], 0, 1), "an empty state says so, too");
        assert_eq!(found[0].2 > 1, many);
        world.nothing_held().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_state_is_never_cut_once_it_has_begun_and_does_not_begin_after_a_cut() {
    let world = keyed(1 << 20);
    let split = world.state(0);
    let cut = whole();
    let reader = world.state_reader(std::slice::from_ref(&split), Faults::default(), cut.clone(), 1).await;
    let mut stream = reader.open(&split).unwrap();
    let first = stream.next().await.unwrap().unwrap();
    cut.cut();
    let (rest, end, _) = state(stream).await.unwrap();
    assert_eq!((rest.len() + first.batches[0].rows.num_rows(), end), (200, 200));
    drop(first);
    assert_eq!(state(reader.open(&split).unwrap()).await.unwrap(), (vec![], -1, 0));
    // What a state takes counts for the others.
    let cut = Cut::new(CancellationToken::new(), Some(100));
    let reader = world.state_reader(std::slice::from_ref(&split), Faults::default(), cut.clone(), 1).await;
    assert_eq!(state(reader.open(&split).unwrap()).await.unwrap().0.len(), 200);
    assert!(cut.is_due());
    world.nothing_held().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_state_is_told_from_other_failures_and_nothing_stays_behind() {
    let world = keyed(1 << 20);
    let split = world.state(0);
    let mut calls = 0;
    let lost = Faults::scripted(move |act, _| {
        calls += i32::from(act == "next_state");
        (act == "next_state" && calls == 3).then_some(Fault::After)
    });
    let reader = world.state_reader(std::slice::from_ref(&split), lost, whole(), 1).await;
    let error = state(reader.open(&split).unwrap()).await.unwrap_err();
    assert!(is_state_lost(&error), "{}", error.chain());
    // The same reader begins it again.
    assert_eq!(state(reader.open(&split).unwrap()).await.unwrap().0.len(), 200);
    let never = Faults::scripted(|act, _| (act == "open_state").then_some(Fault::Before));
    let reader = world.state_reader(std::slice::from_ref(&split), never, whole(), 1).await;
    let error = state(reader.open(&split).unwrap()).await.unwrap_err();
    assert!(error.kind() == Kind::Unavailable && !is_state_lost(&error), "{}", error.chain());
    world.cluster.serve_states(false);
    let reader = world.state_reader(std::slice::from_ref(&split), Faults::default(), whole(), 1).await;
    assert_eq!(state(reader.open(&split).unwrap()).await.unwrap_err().kind(), Kind::Unsupported);
    world.cluster.serve_states(true);
    let mut stream = reader.open(&split).unwrap();
    drop(stream.next().await.unwrap());
    drop(stream);
    world.nothing_held().await;
}

#[tokio::test(start_paused = true)]
async fn more_states_than_places_are_read_one_after_the_other_in_a_small_budget() {
    let world = keyed(8 << 10);
    let splits: Vec<Split> = (0..3).cycle().take(90).map(|bucket| world.state(bucket)).collect();
    let slow = Faults::scripted(|act, _| (act == "next_state").then_some(Fault::Slow(Duration::from_millis(1))));
    let reader = world.state_reader(&splits, slow, whole(), 500).await;
    let most = AtomicUsize::new(0);
    let all = futures::future::try_join_all(splits.iter().map(|split| state(reader.open(split).unwrap())));
    let watch = async {
        loop {
            most.fetch_max(world.cluster.open_states(), Ordering::Relaxed);
            world.runtime.clock.sleep(Duration::from_millis(1)).await;
        }
    };
    let found = tokio::select! {
        found = all => found.unwrap(),
        () = watch => unreachable!(),
    };
    assert_eq!(found.iter().map(|(ids, ..)| ids.len()).sum::<usize>(), 30 * 300);
    let most = most.into_inner();
    assert!(most > 0 && most <= 16, "{most}");
    world.nothing_held().await;
}

#[tokio::test(start_paused = true)]
async fn a_cut_ends_the_wait_for_a_place_and_no_state_begins_after_it() {
    let world = keyed(8 << 20);
    let splits: Vec<Split> = (0..40).map(|_| world.state(0)).collect();
    let hangs = Faults::scripted(|act, _| (act == "next_state").then_some(Fault::Hang));
    let cut = whole();
    let reader = world.state_reader(&splits, hangs, cut.clone(), 1).await;
    let mut streams: Vec<SplitStream> = splits.iter().map(|split| reader.open(split).unwrap()).collect();
    while world.cluster.open_states() < 16 {
        tokio::task::yield_now().await;
    }
    cut.cut();
    let mut waiting = 0;
    for stream in &mut streams {
        waiting += usize::from(stream.next().await.unwrap().is_none());
    }
    assert_eq!((waiting, world.cluster.open_states()), (24, 16));
    drop((streams, reader));
    world.nothing_held().await;
}

/// The golden batches with changes: +I −U +U +I −D, each kind in its place also where a split begins or ends inside.
#[tokio::test(start_paused = true)]
async fn changes_keep_their_kinds_in_every_log_format() {
    let all: Value = serde_json::from_str(include_str!("../../../fixtures/vectors/fluss-records.json")).unwrap();
    let files = all["files"].as_array().unwrap().iter().filter(|file| {
        file["file"].as_str().unwrap().contains("-changes") && file["schema"].as_array().is_some_and(|schema| schema.len() == 3)
    });
    let files: Vec<&Value> = files.collect();
    assert!(["ARROW", "INDEXED", "COMPACTED"].iter().all(|format| files.iter().any(|file| file["format"] == *format)));
    let field = |id, name: &str, kind| Field { id, name: name.into(), data_type: DataType::nullable(kind), comment: None };
    let mut fields = vec![
        field(0, "id", TypeKind::Int),
        field(1, "name", TypeKind::String),
        field(2, "amount", TypeKind::Decimal { precision: 10, scale: 2 }),
    ];
    fields[0].data_type.nullable = false;
    for (number, file) in files.into_iter().enumerate() {
        let name = file["file"].as_str().unwrap();
        let schema = Schema { id: SchemaId(1), fields: fields.clone(), primary_key: vec!["id".into()], highest_field_id: 2 };
        let mut world = world(1 << 20);
        let table = described(schema, file["format"].as_str());
        world.table = Arc::new(world.cluster.create_table(&TablePath::new("demo", format!("t{number}")), &table).unwrap());
        let bytes = std::fs::read(format!("{}/fixtures/vectors/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        for _ in 0..2 {
            world.cluster.append_raw(world.bucket(0), &bytes).unwrap();
        }
        let rows: Vec<(Value, Value)> = std::iter::repeat_n(file, 2)
            .flat_map(|file| file["change_types"].as_array().unwrap().iter().zip(file["rows"].as_array().unwrap()))
            .map(|(kind, row)| (kind.clone(), row[0].clone()))
            .collect();
        for (from, stop) in [(0, 10), (2, 10), (1, 7), (3, 4), (6, 9)] {
            let split = world.split(0, StartOffset::At(from), stop);
            let reader = world.reader(std::slice::from_ref(&split), small()).await;
            let mut stream = reader.open(&split).unwrap();
            let mut found = vec![];
            while let Some(chunk) = stream.next().await.unwrap() {
                for batch in chunk.batches {
                    let ids = batch.rows.column(0).as_primitive::<Int32Type>().values().to_vec();
                    let kinds = batch.changes.unwrap().into_iter().map(|kind| match kind {
                        ChangeKind::Append => "+A",
                        ChangeKind::Insert => "+I",
                        ChangeKind::UpdateBefore => "-U",
                        ChangeKind::UpdateAfter => "+U",
                        ChangeKind::Delete => "-D",
                    });
                    found.extend(kinds.map(|kind| json!(kind)).zip(ids.into_iter().map(|id| json!(id))));
                }
            }
            let place = |offset: i64| usize::try_from(offset).unwrap();
            assert_eq!(found, rows[place(from)..place(stop)], "{name} {from}..{stop}");
        }
    }
}
