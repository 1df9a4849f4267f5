//! A node that dies: at each durable step of what its users and services do, once, twice in a row, and while it starts again.
//! What it acknowledged is never lost; an ALTER, a partition, a table is there or not, never half.

use lakeward::client::Admin;
use lakeward::error::Result;
use lakeward::model::TypeKind;

use super::world::{Ending, World, blobs_table, day, events, events_table, gone, orders, orders_table};
use super::*;
use crate::rounds::binary::Running;
use crate::rounds::field;

/// What users do, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Database,
    Orders,
    Events,
    Gone,
    Partition(&'static str),
    Append(&'static str),
    AppendEvents,
    AppendGone,
    Rescale(i32),
    Column,
    Tier,
    DropPartition(&'static str),
    DropTable,
}

use Step::{
    Append, AppendEvents, AppendGone, Column, Database, DropPartition, DropTable, Events, Gone, Orders, Partition, Rescale, Tier,
};

const SCRIPT: &[Step] = &[
    Database,
    Orders,
    Events,
    Partition("a"),
    Append("a"),
    AppendEvents,
    Rescale(4),
    Partition("b"),
    Append("b"),
    Tier,
    Gone,
    AppendGone,
    Column,
    Append("a"),
    AppendEvents,
    Partition("c"),
    Append("c"),
    DropPartition("c"),
    Rescale(3),
    Partition("d"),
    Append("d"),
    Append("b"),
    Tier,
    DropTable,
    AppendEvents,
    Tier,
];

/// What the node should say about its tables; a step changes all of it or nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct State {
    database: bool,
    tables: BTreeMap<String, Table>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Table {
    count: i32,
    epoch: i64,
    columns: Vec<String>,
    partitions: BTreeMap<String, i32>,
}

impl State {
    fn after(&self, step: Step) -> Self {
        let mut after = self.clone();
        let table = |count, columns: &[&str]| Table {
            count,
            epoch: 0,
            columns: columns.iter().map(|name| (*name).to_owned()).collect(),
            partitions: BTreeMap::new(),
        };
        match step {
            Database => after.database = true,
            Orders => drop(after.tables.insert("orders".into(), table(2, &["id", "words", "day"]))),
            Events => drop(after.tables.insert("events".into(), table(3, &["id", "words"]))),
            Partition(name) => {
                let orders = after.tables.get_mut("orders").unwrap();
                orders.partitions.insert(name.into(), orders.count);
            }
            Rescale(count) => {
                let orders = after.tables.get_mut("orders").unwrap();
                (orders.count, orders.epoch) = (count, orders.epoch + 1);
            }
            Gone => drop(after.tables.insert("gone".into(), table(1, &["id", "words"]))),
            Column => after.tables.get_mut("events").unwrap().columns.push("extra".into()),
            DropPartition(name) => drop(after.tables.get_mut("orders").unwrap().partitions.remove(name)),
            DropTable => drop(after.tables.remove("gone")),
            Append(_) | AppendEvents | AppendGone | Tier => {}
        }
        after
    }

    /// What the node says.
    async fn read(admin: &Admin) -> Result<Self> {
        let database = admin.databases().await?.contains(&"demo".to_owned());
        let mut state = Self { database, ..Self::default() };
        for name in if database { admin.tables("demo").await? } else { vec![] } {
            let info = admin.table_info(&lakeward::model::TablePath::new("demo", &name)).await?;
            let partitions = if info.is_partitioned() { admin.partitions(&info.path).await? } else { vec![] };
            let table = Table {
                count: info.bucket_count,
                epoch: info.bucket_count_epoch.0,
                columns: info.schema.fields.iter().map(|field| field.name.clone()).collect(),
                partitions: partitions.into_iter().map(|part| (part.name(), part.bucket_count.unwrap())).collect(),
            };
            state.tables.insert(name, table);
        }
        Ok(state)
    }
}

/// Does the step; the node may die meanwhile.
async fn take(world: &mut World, step: Step) -> Ending<()> {
    let admin = world.admin();
    match step {
        Database => world.step(admin.create_database("demo", false)).await,
        Orders => world.step(admin.create_table(&orders(), &orders_table(), false)).await,
        Events => world.step(admin.create_table(&events(), &events_table(), false)).await,
        Gone => world.step(admin.create_table(&gone(), &blobs_table(), false)).await,
        Partition(name) => world.step(admin.create_partition(&orders(), &day(name), false)).await,
        Append(day) => world.append(&orders(), day, 16).await,
        AppendEvents => world.append(&events(), "", 12).await,
        AppendGone => world.append(&gone(), "", 5).await,
        Rescale(count) => world.step(admin.alter_bucket_count(&orders(), count)).await,
        Column => world.step(admin.add_columns(&events(), &[field("extra", TypeKind::String, true)])).await,
        DropPartition(name) => world.step(admin.drop_partition(&orders(), &day(name), false)).await,
        DropTable => world.step(admin.drop_table(&gone(), false)).await,
        Tier => {
            let server = world.address().to_owned();
            let log = world.dir.path().join("service.log");
            // Dropped, and so killed, where the node dies.
            let mut service = Running::failing_into(&["run", "--server", &server, "--once"], None, &log);
            let clock = world.runtime.clock.clone();
            let ended = async move {
                loop {
                    match service.try_wait() {
                        Some(Some(0)) => return Ok(()),
                        Some(code) => {
                            let text = std::fs::read_to_string(&log).unwrap();
                            return Err(lakeward::error::Error::internal(format!("the service ended with {code:?}: {text}")));
                        }
                        None => clock.sleep(Duration::from_millis(5)).await,
                    }
                }
            };
            world.step(ended).await
        }
    }
}

/// What a step leaves behind in the source.
fn settle_source(world: &mut World, step: Step) {
    match step {
        DropPartition(name) => {
            if let Some(source) = world.sources.get_mut(&orders()) {
                source.rows.retain(|_, row| row.day != name);
                source.unsure.retain(|_, row| row.day != name);
            }
        }
        DropTable => drop(world.sources.remove(&gone())),
        _ => {}
    }
}

/// The script over a node that dies at `fails`, one process after the other; the last lives. `false` = the last point was not reached.
async fn case(case: &Case, kills: &mut Kills) -> bool {
    let mut world = World::new();
    let mut fails = case.fails.iter();
    let mut reached = 0;
    let mut state = State::default();
    let mut last = None;
    for step in SCRIPT {
        loop {
            if !world.lives() {
                // A node may die at its start.
                while let Some(death) = world.start(fails.next().map(String::as_str)).await {
                    kills.add(&death.point, &death.place);
                    reached += 1;
                }
                let admin = world.admin();
                match world.step(State::read(&admin)).await {
                    Ending::Died => {
                        let death = world.buried().await;
                        kills.add(&death.point, &death.place);
                        reached += 1;
                        continue;
                    }
                    Ending::Done(found) => {
                        let after = last.map_or_else(|| state.clone(), |step| state.after(step));
                        assert!(found == state || found == after, "{case:?}: {last:?} left half of it\n{found:?}\n{state:?}");
                        if let Some(step) = last.take()
                            && found == after
                            && after != state
                        {
                            state = after;
                            settle_source(&mut world, step);
                            break;
                        }
                    }
                }
            }
            match take(&mut world, *step).await {
                Ending::Done(()) => {
                    state = state.after(*step);
                    settle_source(&mut world, *step);
                    break;
                }
                Ending::Died => {
                    let death = world.buried().await;
                    kills.add(&death.point, &death.place);
                    reached += 1;
                    last = Some(*step);
                    // What was sent may be there or not: it is not sent again, others are.
                }
            }
        }
    }
    // One that was to die and did not must not do so now.
    world.kill_node();
    assert_eq!(world.start(None).await, None, "{case:?}");
    world.inspect().await;
    world.settle().await;
    world.audit().await;
    reached == case.fails.len()
}

fn run(cases: &Cases) -> Kills {
    let work = || async {
        let mut kills = Kills::default();
        while let Some(one) = cases.take() {
            if !case(&one, &mut kills).await {
                cases.not_reached(&one);
            }
        }
        kills
    };
    let mut kills = Kills::default();
    side_by_side(work).into_iter().for_each(|more| kills.merge(more));
    kills
}

/// Points that a node passes.
fn of_nodes() -> Vec<&'static str> {
    points(|point| is_of_the_node(point) || (point.starts_with("store.") && !point.ends_with("_part")))
}

#[test]
fn a_node_that_is_killed_at_any_point_loses_nothing_that_it_acknowledged_and_does_nothing_by_halves() {
    let mut cases = Cases::default();
    for point in of_nodes() {
        // The first registry write is the epoch's: the node dies while it starts.
        cases.series(&[&format!("{point}=kill@HIT")], if point.starts_with("registry.") { 2 } else { 1 });
    }
    let kills = run(&cases);
    kills.print("node, in part");
    kills.assert_reached(&of_nodes());
}

#[test]
#[ignore = "minutes: `cargo test --test it -- --ignored kill_matrix --nocapture`"]
fn kill_matrix_of_nodes() {
    let mut cases = Cases::default();
    for point in of_nodes() {
        let fail = format!("{point}=kill@HIT");
        cases.series(&[&fail], 100);
        // One append is like another.
        let hits_max = if point.starts_with("log.") { 6 } else { 100 };
        // The next one dies at the same point at once, be it at its start or in what its users do again.
        cases.series(&[&fail, &format!("{point}=kill@1")], hits_max);
        // ... or at its first durable step, which is the epoch's.
        cases.series(&[&fail, "registry.after_write=kill@1"], hits_max);
    }
    let kills = run(&cases);
    kills.print("node");
    kills.assert_reached(&of_nodes());
    for kind in ["schema", "offsets file"] {
        for point in ["store.before_write", "store.staged", "store.shown", "store.after_write"] {
            assert!(kills.0[point].contains_key(kind), "no node died at {point} of a {kind}");
        }
    }
    for kind in ["registry record", "lake record"] {
        for point in ["registry.before_write", "registry.after_write"] {
            assert!(kills.0[point].contains_key(kind), "no node died at {point} of a {kind}");
        }
    }
}
