//! A verdict for each sentence of commit.md 4 and 5.

use bytes::Bytes;

use super::super::testing::{Lake, TABLE, offsets, round};
use super::*;

fn base(id: i64, there: bool, floor: i64) -> Base {
    Base {
        table: TABLE,
        offsets: offsets(&[5]),
        recovered: None,
        id,
        delta_list: there.then(|| format!("list-{id}")),
        floor,
        born_ms: 0,
        published: BTreeSet::new(),
    }
}

fn look_at(lake: &Lake, base: &Base) -> (Look, Vec<i64>) {
    let mut facts = Facts { base, round: round(9), newest: lake.newest(), snapshots: BTreeMap::new(), options: Options::default() };
    let mut reads = vec![];
    loop {
        match look(&facts) {
            Look::Read(id) => {
                reads.push(id);
                assert_eq!(facts.snapshots.insert(id, lake.0.get(&id).cloned()), None);
            }
            look => return (look, reads),
        }
    }
}

fn is_stale(look: &Look, word: &str) -> bool {
    matches!(look, Look::Stale(why) if why.contains(word))
}

fn lake() -> Lake {
    Lake::default()
}

#[test]
fn a_lake_where_nobody_from_fluss_has_committed_since_the_base_is_free() {
    assert_eq!(look_at(&lake(), &base(0, false, 0)), (Look::Free, vec![]));
    assert_eq!(look_at(&lake().foreign(1), &base(0, false, 0)).0, Look::Free);
    assert_eq!(look_at(&lake().ours(1, 5, &[5]), &base(1, true, 1)), (Look::Free, vec![1]));
    assert_eq!(look_at(&lake().ours(1, 5, &[5]).foreign(2).foreign(1), &base(1, true, 1)).0, Look::Free);
}

#[test]
fn anything_fluss_made_above_the_floor_is_stale() {
    let (look, _) = look_at(&lake().ours(1, 5, &[5]).foreign(1).ours(2, 5, &[10]), &base(1, true, 1));
    assert!(is_stale(&look, "snapshot `3`"), "{look:?}");
    let (look, _) = look_at(&lake().ours(1, 5, &[5]).java(5, "p"), &base(1, true, 1));
    assert!(is_stale(&look, "snapshot `2`"), "{look:?}");
}

#[test]
fn a_missing_id_above_the_floor_is_stale_and_one_below_is_not() {
    let gap = lake().ours(1, 5, &[5]).foreign(1).foreign(1).foreign(1).expired_to(3);
    assert!(is_stale(&look_at(&gap, &base(1, false, 2)).0, "snapshot `3` has expired"));
    assert_eq!(look_at(&gap, &base(1, false, 3)).0, Look::Free);
}

#[test]
fn a_base_that_has_gone_is_stale_and_one_that_was_never_there_is_fine() {
    let gone = lake().ours(1, 5, &[5]).foreign(1).expired_to(1);
    assert!(is_stale(&look_at(&gone, &base(1, true, 1)).0, "base snapshot `1`"));
    assert_eq!(look_at(&gone, &base(1, false, 1)).0, Look::Free);
}

#[test]
fn a_base_that_is_another_snapshot_now_holds_the_table() {
    let other = lake().ours(1, 5, &[5]).but(|seen| seen.delta_list = "other".into());
    let fault = |was: &str| Look::Fault(Fault::BaseReplaced { base: 1, was: was.into(), is: "other".into() });
    assert_eq!(look_at(&other, &base(1, true, 1)).0, fault("list-1"));
    assert_eq!(look_at(&other, &base(1, false, 1)).0, fault("expired"));
}

#[test]
fn newest_below_the_base_means_rolled_back() {
    let fault = Look::Fault(Fault::NewestBelow { newest: 1, known: 2 });
    assert_eq!(look_at(&lake().foreign(1), &base(2, true, 2)).0, fault);
}

#[test]
fn the_snapshot_above_the_base_must_stand_on_it() {
    let lake = lake().ours(1, 5, &[5]).foreign(1).but(|seen| seen.total = Some(9));
    assert!(matches!(look_at(&lake, &base(1, true, 1)).0, Look::Fault(Fault::NotStanding { above: 2, below: 1, .. })));
}

#[test]
fn nothing_is_built_on_a_newest_that_is_gone() {
    let mut lake = lake().foreign(1).foreign(1);
    lake.0.get_mut(&2).unwrap().id = 2;
    let base = base(0, false, 2);
    let facts =
        Facts { base: &base, round: round(9), newest: 2, snapshots: BTreeMap::from([(2, None)]), options: Options::default() };
    assert!(is_stale(&look(&facts), "newest snapshot `2` is gone"));
}

#[test]
fn our_round_id_above_the_floor_means_published_even_if_others_went_on() {
    let late = lake().ours(1, 5, &[5]).foreign(1).ours(9, 5, &[10]).ours(2, 1, &[11]);
    assert_eq!(look_at(&late, &base(1, true, 1)).0, Look::Published(3));
}

#[test]
fn a_round_looks_only_at_base_and_above_its_floor() {
    let lake = lake().foreign(1).foreign(1).ours(1, 5, &[5]).foreign(1).foreign(1).foreign(1);
    let (look, mut reads) = look_at(&lake, &base(3, true, 5));
    reads.sort_unstable();
    assert_eq!((look, reads), (Look::Free, vec![3, 4, 6]));
}

#[test]
fn an_unknown_try_is_settled_only_by_a_snapshot_that_is_there_and_not_ours() {
    let base = base(1, true, 1);
    let facts = |seen: Option<Lake>| Facts {
        base: &base,
        round: round(9),
        newest: 2,
        snapshots: BTreeMap::from([(2, seen.map(|lake| lake.0[&2].clone()))]),
        options: Options::default(),
    };
    let mut unknown = Unknown::default();
    assert!(unknown.open() == 0);
    unknown.add(2);
    for unsettled in [facts(None), facts(Some(lake().foreign(0).ours(9, 1, &[6])))] {
        unknown.settle(&unsettled);
        assert!(unknown.open() > 0);
    }
    unknown.settle(&Facts { snapshots: BTreeMap::new(), ..facts(None) });
    assert!(unknown.open() > 0);
    unknown.settle(&facts(Some(lake().foreign(0).foreign(1))));
    assert!(unknown.open() == 0);
    // A rollback frees the id again, and a PUT that was never answered may still be under way.
    unknown.add(2);
    unknown.unanswered();
    unknown.settle(&facts(Some(lake().foreign(0).foreign(1))));
    assert!(unknown.open() > 0);
}

#[test]
fn nothing_is_built_below_a_try_that_may_still_land() {
    let mut unknown = Unknown::default();
    assert!(!unknown.reaches_beyond(0));
    unknown.add(6);
    assert!(unknown.reaches_beyond(5) && !unknown.reaches_beyond(6));
}

#[test]
fn totals_of_touched_partitions_must_be_ours() {
    let row = |byte: u8| BinaryRow(Bytes::from(vec![0, 0, 0, 1, byte]));
    let totals = |totals: &[i32]| LivePartition { totals: totals.iter().copied().collect(), ..LivePartition::default() };
    let live = BTreeMap::from([(row(1), totals(&[2])), (row(2), totals(&[4, 8])), (row(3), totals(&[-1]))]);
    let ours = |partition: u8, total: i32| BTreeMap::from([(row(partition), total)]);
    assert_eq!(mixed_totals(&live, &ours(1, 2)), None);
    assert_eq!(mixed_totals(&live, &ours(9, 2)), None);
    assert_eq!(mixed_totals(&live, &ours(3, -1)), None);
    assert_eq!(mixed_totals(&live, &ours(1, 4)), Some((row(1), BTreeSet::from([2]), 4)));
    assert_eq!(mixed_totals(&live, &ours(2, 4)), Some((row(2), BTreeSet::from([4, 8]), 4)));
    assert_eq!(mixed_totals(&live, &ours(3, 4)), Some((row(3), BTreeSet::from([-1]), 4)));
}

#[test]
fn a_bucket_that_has_one_of_our_sequence_numbers_by_now_is_named() {
    let row = |byte: u8| BinaryRow(Bytes::from(vec![0, 0, 0, 1, byte]));
    let live = |max: &[(i32, i64)]| LivePartition { max_sequence: max.iter().copied().collect(), ..LivePartition::default() };
    let live = BTreeMap::from([(row(1), live(&[(0, 9), (1, 20)]))]);
    let ours = |partition: u8, bucket: i32, first: i64| BTreeMap::from([((row(partition), bucket), first)]);
    assert_eq!(used_sequence(&live, &ours(1, 0, 10)), None);
    assert_eq!(used_sequence(&live, &ours(1, 2, 0)), None);
    assert_eq!(used_sequence(&live, &ours(2, 0, 0)), None);
    assert_eq!(used_sequence(&live, &ours(1, 0, 9)), Some((row(1), 0, 9, 9)));
    assert_eq!(used_sequence(&live, &ours(1, 1, 10)), Some((row(1), 1, 20, 10)));
}
