//! ALTER, creation (by hand, by writers, by time), drop and listing from many tasks at once.
//!
//! What happened is told by the registry's transactions, in the order of their commits, not by the answers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::super::registry::{Moment, seed};
use super::*;

const TABLE: &str = "/metadata/databases/fluss/tables/t";

#[derive(Debug, Clone)]
enum Act {
    Alter(i32),
    Create(i32),
    /// As a writer does: fine if it is there, and looked up afterwards.
    Write(i32),
    /// Partitions by time, so many ahead.
    Roll(i32),
    Drop(i32),
    List,
}

fn act() -> impl Strategy<Value = Act> {
    let year = 0..6_i32;
    prop_oneof![
        3 => (1..6_i32).prop_map(Act::Alter),
        2 => year.clone().prop_map(Act::Create),
        2 => year.clone().prop_map(Act::Write),
        1 => (1..4_i32).prop_map(Act::Roll),
        2 => year.prop_map(Act::Drop),
        3 => Just(Act::List),
    ]
}

/// The table at one moment: count, epoch, and per partition its id and own count.
#[derive(Debug, Clone, PartialEq, Default)]
struct State {
    count: i64,
    epoch: i64,
    partitions: BTreeMap<String, (i64, Option<i64>)>,
}

impl State {
    fn apply(&mut self, key: &str, json: Option<&str>) {
        let json: Option<Value> = json.and_then(|json| serde_json::from_str(json).ok());
        let number = |json: &Value, name: &str| json[name].as_i64();
        if key == TABLE {
            let json = json.unwrap();
            (self.count, self.epoch) =
                (number(&json, "bucket_count").unwrap(), number(&json, "bucket_count_epoch").unwrap_or_default());
        } else if let Some(name) = key.strip_prefix(&format!("{TABLE}/partitions/")) {
            match json {
                Some(json) => {
                    let partition = (number(&json, "partition_id").unwrap(), number(&json, "bucket_count"));
                    self.partitions.insert(name.to_owned(), partition);
                }
                None => drop(self.partitions.remove(name)),
            }
        }
    }
}

/// What a client saw between two reads: how many transactions everybody could see before the first, and how many had happened after
/// the second.
#[derive(Debug)]
struct Seen {
    from: usize,
    to: usize,
    count: i64,
    epoch: i64,
    partitions: BTreeMap<String, (i64, Option<i64>)>,
}

/// What a transaction put, or deleted, by key.
type Commit = Vec<(String, Option<String>)>;

#[derive(Debug, Default)]
struct Journal {
    commits: Mutex<Vec<Commit>>,
    shown: AtomicUsize,
}

impl Journal {
    fn meet(&self, moment: &Moment<'_>) {
        let mut commits = self.commits.lock().unwrap();
        match moment {
            Moment::Commit(changes) => commits.push(changes.to_vec()),
            Moment::Shown => self.shown.store(commits.len(), Ordering::SeqCst),
            Moment::Begin | Moment::Step => {}
        }
    }
}

fn name(year: i32) -> String {
    (2024 + year).to_string()
}

async fn look(client: &Connection, journal: &Journal) -> Seen {
    let from = journal.shown.load(Ordering::SeqCst);
    let info = client.call(&GetTableInfoRequest { table_path: path("t") }).await.unwrap();
    let list = client.call(&ListPartitionInfosRequest { table_path: path("t"), ..Default::default() }).await.unwrap();
    let to = journal.commits.lock().unwrap().len();
    let json: Value = serde_json::from_slice(&info.table_json).unwrap();
    let partitions = list.partitions_info.iter().map(|found| {
        let name = found.partition_spec.partition_key_values[0].value.clone();
        (name, (found.partition_id, found.bucket_count.map(i64::from)))
    });
    Seen {
        from,
        to,
        count: json["bucket_count"].as_i64().unwrap(),
        epoch: info.bucket_count_epoch.unwrap_or(0),
        partitions: partitions.collect(),
    }
}

/// Runs the acts of one client, one after the other; what it saw.
async fn client(client: Connection, acts: Vec<Act>, journal: Arc<Journal>) -> Vec<Seen> {
    let mut seen = Vec::new();
    let create = |year: i32, ignore_if_not_exists| CreatePartitionRequest {
        table_path: path("t"),
        partition_spec: spec(&name(year)),
        ignore_if_not_exists,
    };
    let alter = |config_changes, modify_bucket_count| AlterTableRequest {
        table_path: path("t"),
        config_changes,
        modify_bucket_count,
        ..Default::default()
    };
    for act in acts {
        let (outcome, fine) = match act {
            Act::Alter(new_bucket_count) => {
                let request = alter(vec![], Some(PbModifyBucketCount { new_bucket_count }));
                (code(client.call(&request).await), [0, 0])
            }
            Act::Create(year) => (code(client.call(&create(year, false)).await), [0, 42]),
            Act::Write(year) => {
                let outcome = code(client.call(&create(year, true)).await);
                let found =
                    PbPhysicalTablePath { database_name: "fluss".into(), table_name: "t".into(), partition_name: Some(name(year)) };
                let request = MetadataRequest { partitions_path: vec![found], ..Default::default() };
                match client.call(&request).await {
                    Ok(answer) => {
                        let found = &answer.partition_metadata[0];
                        if let Some(count) = found.bucket_count {
                            assert_eq!(usize::try_from(count).unwrap(), found.bucket_metadata.len());
                        }
                    }
                    Err(error) => assert_eq!(error.code(), Some(36), "dropped meanwhile"),
                }
                (outcome, [0, 0])
            }
            Act::Roll(ahead) => {
                let config_key = "table.auto-partition.num-precreate".into();
                let change = PbAlterConfig { config_key, config_value: Some(ahead.to_string()), op_type: 0 };
                (code(client.call(&alter(vec![change], None)).await), [0, 0])
            }
            Act::Drop(year) => {
                let partition_spec = spec(&name(year));
                let request = DropPartitionRequest { table_path: path("t"), partition_spec, ignore_if_not_exists: false };
                (code(client.call(&request).await), [0, 36])
            }
            Act::List => {
                seen.push(look(&client, &journal).await);
                (0, [0, 0])
            }
        };
        assert!(fine.contains(&outcome), "{act:?} was answered with {outcome}");
    }
    seen
}

/// Each partition's count is the table's at its creation and never changes; the epoch counts real changes.
fn states_of(first: State, commits: &[Commit]) -> Vec<State> {
    let mut states = vec![first];
    let mut largest_id = -1;
    for commit in commits {
        let before = states.last().unwrap().clone();
        let mut after = before.clone();
        commit.iter().for_each(|(key, json)| after.apply(key, json.as_deref()));
        let rescaled = after.count != before.count;
        assert_eq!(after.epoch, before.epoch + i64::from(rescaled), "{commit:?}");
        for (name, (id, count)) in &after.partitions {
            match before.partitions.get(name) {
                Some((known, own)) if known == id => {
                    let filled = own.or(Some(before.count).filter(|_| rescaled));
                    assert_eq!(*count, filled, "partition {name} ({id}) by {commit:?}");
                }
                _ => {
                    assert_eq!((*count, rescaled), (Some(before.count), false), "new partition {name} ({id}) by {commit:?}");
                    assert!(*id > largest_id, "ids are never used again");
                }
            }
            largest_id = largest_id.max(*id);
        }
        states.push(after);
    }
    states
}

/// What was seen was in force between the two reads, the table's part no later than the partitions'.
fn was_in_force(seen: &Seen, states: &[State]) -> bool {
    let between = &states[seen.from..=seen.to];
    let table = between.iter().position(|state| (state.count, state.epoch) == (seen.count, seen.epoch));
    table.is_some_and(|table| between[table..].iter().any(|state| state.partitions == seen.partitions))
}

async fn play(plans: Vec<Vec<Act>>) {
    let stage = Stage::new().await;
    let mut json = table(true, 2);
    json["properties"] = json!({"table.auto-partition.enabled":"true","table.auto-partition.time-unit":"YEAR",
        "table.auto-partition.num-precreate":"0","table.auto-partition.num-retention":"-1"});
    stage.create("t", json).await;
    // Two partitions from before 1.0, without a count of their own.
    for year in [0, 1] {
        stage.add_partition("t", &name(year)).await;
    }
    let table_id = stage.info("t").await.table_id;
    let old = |year: i32| {
        let json = format!(r#"{{"version":1,"table_id":{table_id},"partition_id":{year}}}"#);
        (format!("{TABLE}/partitions/{}", name(year)), json)
    };
    let olds = [old(0), old(1)];
    let records: Vec<(&str, &str)> = olds.iter().map(|(key, json)| (key.as_str(), json.as_str())).collect();
    let stage = stage.restarted_after(true, |folder| seed(&folder.join("registry.redb"), &records)).await;
    let journal = Arc::new(Journal::default());
    let watch = Arc::clone(&journal);
    stage.node.server.registry().on(move |_, moment| watch.meet(moment));
    let first = look(&stage.client, &journal).await;
    let first = State { count: first.count, epoch: first.epoch, partitions: first.partitions };
    assert_eq!(first.partitions.values().map(|(_, count)| *count).collect::<Vec<_>>(), [None, None]);

    let mut tasks = Vec::new();
    for acts in plans {
        tasks.push(tokio::spawn(client(stage.connect().await, acts, Arc::clone(&journal))));
    }
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    all.push(look(&stage.client, &journal).await);
    let states = states_of(first, &journal.commits.lock().unwrap());
    for seen in &all {
        assert!(was_in_force(seen, &states), "{seen:?} within {:?}", &states[seen.from..=seen.to]);
    }
    // What is on the disk is what everybody saw last.
    let stage = stage.restarted(false).await;
    let left = look(&stage.client, &Journal::default()).await;
    let left = State { count: left.count, epoch: left.epoch, partitions: left.partitions };
    assert_eq!(Some(&left), states.last());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_partition_keeps_the_count_of_its_creation_and_no_list_tells_another(
        plans in prop::collection::vec(prop::collection::vec(act(), 4..10), 3..7),
    ) {
        let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
        threads.block_on(play(plans));
    }
}
