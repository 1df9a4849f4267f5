use std::collections::BTreeMap;

use super::*;
use crate::fluss::api::ApiKey;
use crate::fluss::cluster::{Cluster, ClusterOptions};
use crate::fluss::fake::{FakeServer, Reply, servers};
use crate::lake::Warehouse;
use crate::mapping::lake_schema;
use crate::model::PartitionId;
use crate::storage::Store;

fn table(count: i32, epoch: i64) -> TableInfo {
    let mut table = TableInfo::for_tests("demo.t", count);
    table.partition_keys = vec!["id".into()];
    table.bucket_count_epoch = BucketCountEpoch(epoch);
    table.properties = BTreeMap::from([("table.datalake.enabled".into(), "true".into())]);
    table
}

fn partition(id: i64, bucket_count: Option<i32>) -> Partition {
    Partition { id: PartitionId(id), spec: vec![("id".into(), id.to_string())], bucket_count }
}

fn facts(table: TableInfo, partitions: Vec<Partition>) -> Facts {
    Facts { table, partitions, lake: Lake::Without, too_old: None }
}

/// The lake table of `table`, with this option `bucket`.
async fn lake(table: &TableInfo, bucket: &str) -> Lake {
    let warehouse = Warehouse::new(Store::in_memory(), Runtime::simulated(1, 0, 1 << 20));
    let mut schema = lake_schema(table).unwrap();
    schema.options.insert("bucket".into(), bucket.into());
    assert!(warehouse.create_table("demo", "t", &schema).await.unwrap());
    Lake::Seen(Box::new(warehouse.table("demo", "t").await.unwrap().unwrap()))
}

type Alteration<'a> = &'a dyn Fn(&mut TableInfo);

/// Each row of F4.4 that can be told from here: what is refused, the words, exit code by kind.
#[test]
fn what_a_coordinator_would_refuse_is_refused_here_with_all_its_reasons() {
    let set = |key: &str, value: &str| {
        let (key, value) = (key.to_owned(), value.to_owned());
        move |table: &mut TableInfo| drop(table.properties.insert(key.clone(), value.clone()))
    };
    let partitions = || vec![partition(1, Some(2)), partition(2, Some(2))];
    let cases: [(&str, Alteration<'_>); 6] = [
        ("has no partitions", &|table| table.partition_keys.clear()),
        ("aggregation merge engine", &set("table.merge-engine", "AGGREGATION")),
        ("historical partition", &set("table.datalake.historical-partition.enabled", "true")),
        ("`iceberg` has one bucket count", &set("table.datalake.format", "iceberg")),
        ("`hudi` has one bucket count", &set("table.datalake.format", "hudi")),
        ("`lance` has one bucket count", &set("table.datalake.format", "lance")),
    ];
    for (said, change) in cases {
        let mut table = table(2, 0);
        change(&mut table);
        let (report, refusals) = decide(&facts(table, partitions()), 4);
        assert_eq!((report.outcome, refusals.len(), report.refusals.len()), (Outcome::Refused, 1, 1), "{said}");
        assert_eq!((refusals[0].kind(), refusals[0].code()), (Kind::Unsupported, Some(56)));
        assert!(refusals[0].chain().contains(said), "`{said}` is not in {}", refusals[0].chain());
    }
    let (report, refusals) = decide(&facts(table(2, 1), vec![partition(1, None)]), 4);
    assert_eq!((report.outcome, refusals[0].kind()), (Outcome::Refused, Kind::Stale));
    let (report, _) = decide(&facts(table(2, 0), vec![partition(1, None)]), 4);
    assert_eq!((report.outcome, report.partitions[0].origin), (Outcome::Shown, LayoutOrigin::TableAtEpochZero));

    let mut all = table(2, 1);
    all.properties.extend(
        [("table.merge-engine", "aggregation"), ("table.datalake.format", "hudi")].map(|(key, value)| (key.into(), value.into())),
    );
    let old = Facts { too_old: Some(Error::unsupported("too old")), ..facts(all, partitions()) };
    assert_eq!(decide(&old, 4).1.len(), 3);
    // The same count is what it is, whatever else could not be done.
    let (report, refusals) = decide(&old, 2);
    assert_eq!((report.outcome, refusals.len(), report.epoch.to), (Outcome::Unchanged, 0, BucketCountEpoch(1)));
}

#[tokio::test]
async fn what_would_change_is_shown_up_and_down_and_where_an_earlier_change_got_half_way() {
    // Fluss, lake, wanted: outcome, lake before, notes about a half-way change.
    for (fluss, in_lake, to, outcome, half_way) in [
        (2, "2", 4, Outcome::Shown, 0),
        (4, "4", 1, Outcome::Shown, 0),
        // Its own half-way change, run again; another's; back to what Fluss has; nothing at all.
        (2, "4", 4, Outcome::Shown, 0),
        (2, "8", 4, Outcome::Shown, 1),
        (2, "8", 2, Outcome::Shown, 0),
        (2, "2", 2, Outcome::Unchanged, 0),
    ] {
        let table = table(fluss, 3);
        let lake = lake(&table, in_lake).await;
        let (report, refusals) = decide(&Facts { lake, ..facts(table, vec![partition(2, Some(7)), partition(1, Some(to))]) }, to);
        assert!(refusals.is_empty(), "{refusals:?}");
        assert_eq!(report.outcome, outcome, "{fluss} {in_lake} {to}");
        assert_eq!(
            (report.buckets, report.lake_bucket.unwrap().from.to_string()),
            (Change { from: fluss, to }, in_lake.to_owned())
        );
        let epoch = if fluss == to { 3 } else { 4 };
        assert_eq!(report.epoch, Change { from: BucketCountEpoch(3), to: BucketCountEpoch(epoch) });
        assert_eq!(report.warnings.iter().filter(|warning| warning.contains("half way")).count(), half_way);
        assert_eq!(report.warnings.iter().any(|warning| warning.contains("dropped and made again")), fluss != to);
        assert_eq!(kept(&report.partitions).len(), 2);
    }
    let table = table(2, 0);
    let lake = lake(&table, "-1").await;
    let (_, refusals) = decide(&Facts { lake, ..facts(table, vec![]) }, 4);
    assert_eq!(refusals[0].kind(), Kind::Data, "a lake table that is not ours");
}

#[test]
fn an_operator_is_told_what_comes_with_it() {
    let mut auto = table(2, 0);
    auto.properties.insert("table.auto-partition.enabled".into(), "true".into());
    let lake = Lake::Unseen(Error::unavailable("no way there"));
    let partitions = (1..=1_234).map(|id| partition(id, Some(if id < 3 { id.try_into().unwrap() } else { 5 }))).collect();
    let (report, refusals) = decide(&Facts { lake, ..facts(auto, partitions) }, 5_000);
    assert!(refusals.is_empty());
    for said in ["no way there", "first change", "error 74", "`max.bucket.num` is `4096`", "the last there is `999`"] {
        assert!(report.warnings.iter().any(|warning| warning.contains(said)), "`{said}` is not in {:?}", report.warnings);
    }
    let said = ["1 partition keeps 1 bucket: 1", "1 partition keeps 2 buckets: 2", "1,232 partitions keep 5 buckets: 10 … 999"];
    assert_eq!(kept(&report.partitions), said);
}

#[tokio::test]
async fn a_coordinator_that_would_say_yes_and_change_nothing_is_never_asked() {
    let asked = |key: ApiKey| matches!(key, ApiKey::AlterTable);
    let own_port = std::sync::Arc::new(std::sync::OnceLock::new());
    let port = std::sync::Arc::clone(&own_port);
    let server = FakeServer::start(None, 0, move |key, _, _| match key {
        ApiKey::GetMetadata => servers(*port.get().unwrap(), &[*port.get().unwrap()]).into(),
        key if asked(key) => panic!("it was asked"),
        _ => Reply::HangUp,
    })
    .await;
    own_port.set(server.port).unwrap();
    let runtime = Runtime::system(1, 1 << 20).unwrap();
    let cluster = Cluster::connect(&[server.address()], ClusterOptions::default(), &runtime).await.unwrap();
    let admin = Admin::new(cluster);
    let told = admin.check_bucket_count().await.unwrap_err();
    assert_eq!((told.kind(), told.code()), (Kind::Unsupported, Some(2)), "{}", told.chain());
    assert!(told.chain().contains("older than 1.0") && told.hint().is_some(), "{}", told.chain());
    let error = admin.alter_bucket_count(&TablePath::new("demo", "t"), 4).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (Kind::Unsupported, Some(2)));
    let (report, refusals) = decide(&Facts { too_old: Some(told), ..facts(table(2, 0), vec![]) }, 4);
    assert_eq!((report.outcome, refusals[0].kind(), refusals[0].code()), (Outcome::Refused, Kind::Unsupported, Some(2)));
}

#[test]
fn a_refusal_is_told_from_a_failure() {
    for (code, kind) in
        [(56, Kind::Unsupported), (49, Kind::Unsupported), (39, Kind::Unsupported), (48, Kind::Invalid), (-1, Kind::Unavailable)]
    {
        let error = explained(Code(code).error("the server's words"));
        assert_eq!((error.kind(), error.code()), (kind, Some(code)));
        assert!(error.chain().contains("the server's words"));
        assert_eq!(error.hint().is_some_and(|hint| hint.contains("same command again")), code == -1);
    }
}
