//! A verdict for each sentence of commit.md 1.

use super::super::testing::{Lake, TABLE, offsets, round};
use super::*;

struct World {
    lake: Lake,
    ledger: Ledger,
    files: BTreeMap<String, OffsetsFile>,
    newest: i64,
    log_table: bool,
    reads: Vec<i64>,
}

fn world(lake: Lake, ledger: Ledger) -> World {
    World { newest: lake.newest(), lake, ledger, files: BTreeMap::new(), log_table: true, reads: vec![] }
}

fn at(id: i64, ends: &[i64]) -> Ledger {
    Ledger::At(id, offsets(ends))
}

impl World {
    fn file(mut self, path: &str, ends: &[i64]) -> Self {
        self.files.insert(path.into(), OffsetsFile { table: TABLE, offsets: offsets(ends) });
        self
    }

    fn decide(&mut self) -> Step {
        let mut facts = Facts {
            table: TABLE,
            log_table: self.log_table,
            ledger: self.ledger.clone(),
            newest: self.newest,
            snapshots: BTreeMap::new(),
            files: BTreeMap::new(),
            options: Options::default(),
        };
        loop {
            match decide(&facts) {
                Step::ReadSnapshot(id) => {
                    assert!(id >= 1 && id <= self.newest.max(self.ledger.id()), "read {id}");
                    self.reads.push(id);
                    assert_eq!(facts.snapshots.insert(id, self.lake.0.get(&id).cloned()), None);
                }
                Step::ReadFile(path) | Step::CompareFile(path) => {
                    let file = self.files.get(&path).cloned();
                    assert_eq!(facts.files.insert(path, file), None);
                }
                step => return step,
            }
        }
    }
}

fn decide_in(lake: Lake, ledger: Ledger) -> Step {
    world(lake, ledger).decide()
}

fn stands(id: i64, there: bool, ends: &[i64], floor: i64, hole: bool) -> Step {
    let delta_list = there.then(|| format!("list-{id}"));
    Step::Stands { base: Some(Found { id, delta_list, offsets: offsets(ends) }), floor, hole }
}

fn record(id: i64, ends: &[i64]) -> Step {
    Step::Record(Found { id, delta_list: Some(format!("list-{id}")), offsets: offsets(ends) })
}

fn lake() -> Lake {
    Lake::default()
}

#[test]
fn an_empty_lake_that_fluss_knows_nothing_of_has_no_base() {
    assert_eq!(decide_in(lake(), Ledger::Empty), Step::Stands { base: None, floor: 0, hole: false });
}

#[test]
fn rows_that_a_user_put_there_first_are_no_fault() {
    assert_eq!(decide_in(lake().foreign(5).foreign(5), Ledger::Empty), Step::Stands { base: None, floor: 0, hole: false });
    let expired = lake().foreign(5).foreign(5).foreign(5).expired_to(2);
    assert_eq!(decide_in(expired, Ledger::Empty), Step::Stands { base: None, floor: 2, hole: true });
}

#[test]
fn k_reached_is_floor_and_base() {
    assert_eq!(decide_in(lake().ours(1, 5, &[5]), at(1, &[5])), stands(1, true, &[5], 1, false));
    assert_eq!(decide_in(lake().ours(1, 5, &[5]).foreign(0).foreign(3), at(1, &[5])), stands(1, true, &[5], 1, false));
}

#[test]
fn the_walk_reads_down_to_k_and_not_below() {
    let mut world = world(lake().foreign(1).foreign(1).ours(1, 5, &[5]).foreign(0).foreign(3), at(3, &[5]));
    assert_eq!(world.decide(), stands(3, true, &[5], 3, false));
    assert_eq!(world.reads, [5, 4, 3]);
}

#[test]
fn that_snapshot_k_has_expired_is_normal() {
    let lake = lake().ours(1, 5, &[5]).foreign(0).foreign(3).expired_to(1);
    assert_eq!(decide_in(lake, at(1, &[5])), stands(1, false, &[5], 1, false));
}

#[test]
fn a_missing_id_above_k_has_expired_and_becomes_the_floor_after_a_second_look() {
    let lake = lake().ours(1, 5, &[5]).foreign(0).foreign(3).foreign(1).expired_to(2);
    let step = decide_in(lake, at(1, &[5]));
    assert_eq!(step, stands(1, false, &[5], 2, true));
    assert!(step.needs_second_look());
}

#[test]
fn l_above_k_is_recorded_whatever_is_missing_below_it() {
    assert_eq!(decide_in(lake().ours(1, 5, &[5]).foreign(0), Ledger::Empty), record(1, &[5]));
    assert_eq!(decide_in(lake().ours(1, 5, &[5]).ours(2, 1, &[6]), at(1, &[5])), record(2, &[6]));
    let gap = lake().ours(1, 5, &[5]).foreign(0).ours(2, 1, &[6]).expired_to(2);
    let step = decide_in(gap, at(1, &[5]));
    assert_eq!(step, record(3, &[6]));
    assert!(!step.needs_second_look());
}

#[test]
fn l_counts_only_if_it_belongs_to_this_table() {
    let other = TableId(11);
    let ours = lake().ours(1, 5, &[5]).but_says(|made| made.table = Some(other));
    let java = lake().java(5, "p").but_says(|made| made.table = Some(other));
    for lake in [ours, java] {
        let step = decide_in(lake, Ledger::Empty);
        assert_eq!(step, Step::Fault(Fault::OtherTable { snapshot: 1, theirs: other, ours: TABLE }));
        assert!(step.needs_second_look());
    }
}

#[test]
fn the_offsets_file_tells_the_table_where_its_path_does_not() {
    let mut world = world(lake().java(5, "p").but_says(|made| made.table = None), Ledger::Empty).file("p", &[5]);
    world.files.get_mut("p").unwrap().table = TableId(11);
    assert_eq!(world.decide(), Step::Fault(Fault::OtherTable { snapshot: 1, theirs: TableId(11), ours: TABLE }));
}

#[test]
fn javas_l_is_prepared_again_from_its_file_and_held_when_that_is_gone() {
    assert_eq!(world(lake().java(5, "p"), Ledger::Empty).file("p", &[5]).decide(), record(1, &[5]));
    let gone = Step::Fault(Fault::OffsetsGone { snapshot: 1, path: "p".into() });
    assert_eq!(decide_in(lake().java(5, "p"), Ledger::Empty), gone);
}

#[test]
fn snapshots_of_0_8_and_0_7_are_unsupported_by_name() {
    for (told, version) in [(Told::Inline08, "0.8"), (Told::Nothing07, "0.7")] {
        let lake = lake().java(5, "").but_says(|made| (made.table, made.offsets) = (None, told));
        assert_eq!(decide_in(lake, Ledger::Empty), Step::Fault(Fault::OldVersion { snapshot: 1, version }));
    }
    // As K they are no trouble: Fluss knows their offsets.
    let lake = lake().java(5, "").but_says(|made| (made.table, made.offsets) = (None, Told::Nothing07));
    assert_eq!(decide_in(lake, at(1, &[5])), stands(1, true, &[5], 1, false));
}

#[test]
fn unreadable_offsets_of_ours_hold_the_table() {
    let lake = lake().ours(1, 5, &[5]).but_says(|made| made.offsets = Told::Broken("torn".into()));
    let fault = Step::Fault(Fault::OffsetsBroken { snapshot: 1, why: "torn".into() });
    assert_eq!(decide_in(lake.clone(), Ledger::Empty), fault);
    assert_eq!(decide_in(lake, at(1, &[5])), fault);
}

#[test]
fn newest_below_k_means_rolled_back() {
    assert_eq!(decide_in(lake().ours(1, 5, &[5]), at(2, &[6])), Step::Fault(Fault::NewestBelow { newest: 1, known: 2 }));
    assert_eq!(decide_in(lake(), at(2, &[6])), Step::Fault(Fault::NewestBelow { newest: 0, known: 2 }));
}

#[test]
fn snapshot_k_has_to_be_what_fluss_says() {
    assert_eq!(decide_in(lake().foreign(5), at(1, &[5])), Step::Fault(Fault::KnownNotFluss { snapshot: 1 }));
    let other = lake().ours(1, 5, &[5]).but_says(|made| made.table = Some(TableId(11)));
    assert!(matches!(decide_in(other, at(1, &[5])), Step::Fault(Fault::OtherTable { .. })));
    match decide_in(lake().ours(1, 5, &[4]), at(1, &[5])) {
        Step::Fault(Fault::KnownOffsetsDiffer { snapshot: 1, difference }) => {
            assert_eq!(difference, "bucket `0`: `4` in the lake, `5` in Fluss");
        }
        step => panic!("{step:?}"),
    }
}

#[test]
fn the_snapshot_right_above_k_or_l_must_stand_on_it() {
    let overwritten = |lake: Lake| lake.but(|seen| seen.total = Some(7)).foreign(1).but(|seen| seen.total = Some(6));
    for ledger in [at(1, &[5]), Ledger::Empty] {
        let step = decide_in(overwritten(lake().ours(1, 5, &[5])), ledger);
        assert!(matches!(step, Step::Fault(Fault::NotStanding { above: 2, below: 1, .. })), "{step:?}");
    }
    // Where one of the two is missing there is nothing to compare.
    let gone = overwritten(lake().ours(1, 5, &[5])).foreign(1).expired_to(2);
    assert_eq!(decide_in(gone, at(1, &[5])), stands(1, false, &[5], 2, true));
}

#[test]
fn an_unknown_k_lets_l_count_wherever_it_is() {
    assert_eq!(decide_in(lake().foreign(1).ours(1, 5, &[5]).foreign(0), Ledger::Unknown), record(2, &[5]));
}

#[test]
fn an_unknown_k_without_l_holds_the_table() {
    for lake in [lake(), lake().foreign(1), lake().ours(1, 5, &[5]).foreign(1).foreign(1).expired_to(2)] {
        assert_eq!(decide_in(lake, Ledger::Unknown), Step::Fault(Fault::LedgerLost));
    }
}

#[test]
fn java_snapshots_since_our_own_may_hold_fewer_rows_than_offsets_advanced() {
    let lake = lake().ours(1, 5, &[5]).java(2, "a").foreign(9).java(3, "b");
    assert_eq!(world(lake, at(4, &[10])).file("a", &[7]).file("b", &[10]).decide(), stands(4, true, &[10], 4, false));
}

#[test]
fn a_zombie_that_doubled_rows_is_told_by_rows_beyond_the_advance() {
    // K and L alike: Java records its snapshot itself, or dies before.
    for (ledger, file) in [(at(3, &[8]), None), (at(1, &[5]), Some("b"))] {
        let mut world = world(lake().ours(1, 5, &[5]).java(3, "a").java(3, "b"), ledger);
        if let Some(file) = file {
            world = world.file(file, &[8]);
        }
        let fault = Fault::Doubled { own: 1, newest: 3, rows: 6, advance: 3 };
        assert_eq!(world.decide(), Step::Fault(fault));
    }
}

#[test]
fn java_rows_are_counted_on_log_tables_only_and_only_from_one_of_ours_on() {
    let lake = lake().ours(1, 5, &[5]).java(6, "a");
    let mut keyed = world(lake.clone(), at(2, &[8]));
    keyed.log_table = false;
    assert_eq!(keyed.decide(), stands(2, true, &[8], 2, false));
    assert_eq!(decide_in(lake.clone().expired_to(1), at(2, &[8])), stands(2, true, &[8], 2, false));
    // One of ours after them ends the look: it was based on what they say.
    assert_eq!(decide_in(lake.ours(2, 1, &[9]), at(3, &[9])), stands(3, true, &[9], 3, false));
}

#[test]
fn an_offset_that_went_back_between_readable_ones_holds_the_table() {
    let lake = lake().ours(1, 5, &[5, 5]).java(0, "a").java(2, "b");
    let mut both = world(lake.clone(), at(3, &[6, 6])).file("a", &[7, 5]).file("b", &[6, 6]);
    assert!(matches!(both.decide(), Step::Fault(Fault::WentBack { before: 2, after: 3, .. })));
    let mut gone = world(lake.clone(), at(3, &[6, 6]));
    assert_eq!(gone.decide(), stands(3, true, &[6, 6], 3, false));
    let mut own = world(lake, at(3, &[4, 9]));
    assert!(matches!(own.decide(), Step::Fault(Fault::WentBack { before: 1, after: 3, .. })));
}

#[test]
fn a_bucket_that_a_later_snapshot_lacks_has_gone_back() {
    assert!(went_back(&offsets(&[5, 3]), &offsets(&[5])).unwrap().contains("bucket `1`"));
    assert_eq!(went_back(&offsets(&[5]), &offsets(&[5, 3])), None);
}

#[test]
fn faults_name_table_lake_values_and_a_way_out() {
    let (table, lake) = ("demo.orders", "/wh/demo.db/orders");
    let all = [
        Fault::OtherTable { snapshot: 71, theirs: TableId(72), ours: TableId(73) },
        Fault::NewestBelow { newest: 71, known: 72 },
        Fault::KnownNotFluss { snapshot: 71 },
        Fault::KnownOffsetsDiffer { snapshot: 71, difference: "72".into() },
        Fault::NotStanding { above: 71, total: 72, delta: 73, below: 74, below_total: 75 },
        Fault::BaseReplaced { base: 71, was: "72".into(), is: "73".into() },
        Fault::Doubled { own: 71, newest: 72, rows: 73, advance: 74 },
        Fault::WentBack { before: 71, after: 72, what: "73".into() },
        Fault::LedgerLost,
        Fault::OffsetsGone { snapshot: 71, path: "72".into() },
        Fault::OffsetsBroken { snapshot: 71, why: "72".into() },
        Fault::OldVersion { snapshot: 71, version: "72" },
        Fault::Overwritten { snapshot: 71, round: round(1), rows: 72 },
        Fault::RolledBack { snapshot: 71, newest: 72, round: round(1), rows: 73 },
    ];
    for fault in all {
        let shape = format!("{fault:?}");
        let error = fault.into_error(table, lake);
        let text = error.to_string();
        assert!(text.contains(table) && text.contains(lake), "{text}");
        for value in 71..=75 {
            assert_eq!(shape.contains(&value.to_string()), text.contains(&value.to_string()), "{value} in {text}");
        }
        assert!(!error.hint().unwrap().is_empty());
    }
}

#[test]
fn a_snapshot_of_another_table_that_was_recorded_for_ours_is_no_k() {
    let other = || Ledger::Other(1, TableId(11));
    // The old table's snapshot is still there: held by it.
    let theirs = || Lake::default().ours(1, 5, &[5]).but_says(|made| made.table = Some(TableId(11)));
    let fault = Step::Fault(Fault::OtherTable { snapshot: 1, theirs: TableId(11), ours: TABLE });
    assert_eq!(decide_in(theirs(), other()), fault);
    // The way out: a new lake table, which is filled from the start, whoever has been there.
    let fresh = Step::Stands { base: None, floor: 0, hole: false };
    assert_eq!(decide_in(Lake::default(), other()), fresh);
    assert_eq!(decide_in(Lake::default().foreign(3), other()), fresh);
    // What has expired could have been ours.
    assert_eq!(decide_in(Lake::default().foreign(3).foreign(1).expired_to(1), other()), fault);
}

#[test]
fn a_java_made_k_with_other_offsets_than_fluss_says_was_put_over_the_one_that_was_recorded() {
    let k = |ends: &[i64]| world(lake().java(2, "p"), at(1, &[1])).file("p", ends).decide();
    assert_eq!(k(&[1]), stands(1, true, &[1], 1, false));
    let difference = "bucket `0`: `2` in the lake, `1` in Fluss".into();
    assert_eq!(k(&[2]), Step::Fault(Fault::KnownOffsetsDiffer { snapshot: 1, difference }));
    // A file that is gone or can't be read proves nothing.
    assert_eq!(decide_in(lake().java(2, "p"), at(1, &[1])), stands(1, true, &[1], 1, false));
}
