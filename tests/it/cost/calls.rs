//! A round without anything to tier: each call and each request, by name.

use super::*;

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

/// The requests to the table's folder.
fn of_table(world: &World) -> Vec<String> {
    world.requests().into_iter().map(|request| request.replace("demo.db/t/", "")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_table_with_nothing_new_costs_four_kinds_of_calls_and_five_requests() {
    let world = World::new("calls");
    let table = world.table("t", 2, &[]).await;
    let days = world.days(&table, 20);
    world.load(&table, &days);
    for round in 1..=3 {
        let summary = world.round(&table).await;
        assert_eq!(summary.rows, if round == 1 { 80 } else { 0 });
        let (calls, requests) = (world.calls(), of_table(&world));
        if round == 1 {
            continue;
        }
        // GetTableInfo, GetLakeSnapshot, ListPartitionInfos, then a ListOffsets per partition.
        assert_eq!(calls[..3], ["table_info", "latest", "partitions"]);
        assert_eq!(counted(calls[3..].iter().cloned()), BTreeMap::from([("end_offsets".to_owned(), 20)]));
        // Is it the same table, are there new columns; what is newest; what does it say.
        let needed = [
            "get schema/schema-0",
            "get snapshot/LATEST",
            "get snapshot/snapshot-1",
            "head schema/schema-1",
            "head snapshot/snapshot-2",
        ];
        assert_eq!(sorted(requests), needed);
    }
}

#[tokio::test(start_paused = true)]
async fn the_ends_of_all_partitions_are_asked_for_at_once() {
    let world = World::new("at-once");
    let table = world.table("t", 2, &[]).await;
    let days = world.days(&table, 20);
    world.load(&table, &days);
    world.round(&table).await;
    let began = world.runtime.clock.moment();
    world.round(&table).await;
    let time = began.elapsed();
    // Each rests on the one before: table, its newest snapshot, its partitions, their ends.
    assert!((4 * MS..9 * MS).contains(&time), "{time:?}");
}

#[tokio::test(start_paused = true)]
async fn a_table_that_was_never_tiered_costs_a_list_of_its_snapshots_and_one_with_columns_added_a_schema() {
    let world = World::new("never");
    let table = world.table("t", 2, &[]).await;
    world.round(&table).await;
    assert_eq!(world.calls(), ["table_info", "latest", "partitions"]);
    assert_eq!(
        sorted(of_table(&world)),
        ["get schema/schema-0", "get snapshot/LATEST", "head schema/schema-1", "list demo.db/t/snapshot"]
            .map(|name| name.replace("demo.db/t/", ""))
    );
    let added = Field { id: 2, name: "note".into(), data_type: DataType::nullable(TypeKind::String), comment: None };
    world.cluster.add_column(&table.path, &added).unwrap();
    let brought_up = world.round(&table).await;
    assert_eq!((brought_up.rows, world.lake(&table).await.schema().id), (0, 1));
    of_table(&world);
    world.round(&table).await;
    let needed = [
        "get schema/schema-0",
        "get schema/schema-1",
        "get snapshot/LATEST",
        "head schema/schema-1",
        "head schema/schema-2",
        "head schema/schema-3",
        "list snapshot",
    ];
    let asked = sorted(of_table(&world));
    assert!(asked.iter().all(|request| needed.contains(&request.as_str())) && asked.len() <= needed.len(), "{asked:?}");
}
